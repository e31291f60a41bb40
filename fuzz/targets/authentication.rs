//! Authentication between a target and hosts that have not the key.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::fuzz::fuzz_authentication(input));
