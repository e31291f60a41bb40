//! What a controller may say to a host about its transfers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::fuzz::fuzz_host(input));
