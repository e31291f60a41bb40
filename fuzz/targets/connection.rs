//! Programs of what hosts send to the real TCP target, over sockets in memory.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| remuda_fuzz::play::play(input));
