//! Programs of host and operator actions against the target's state machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::fuzz::fuzz_target_state(input));
