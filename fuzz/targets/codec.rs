//! Streams of valid, damaged and random PDUs through the decoders of both ends.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::fuzz::fuzz_codec(input));
