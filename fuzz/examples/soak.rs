//! Random programs against the target as it ships, until it has decoded so many whole PDUs: without sanitizer and coverage,
//! so several times as many a second as the fuzzer does.
//!
//! `soak PDUS [SEED]`

use nvme::fuzz::pdus;
use remuda_fuzz::play::play;

/// Bytes of a program: some hundred steps.
const PROGRAM_BYTES: usize = 4096;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let wanted: u64 = arguments.next().and_then(|text| text.parse().ok()).expect("usage: soak PDUS [SEED]");
    let seed: u64 = arguments.next().map_or(1, |text| text.parse().expect("the seed is a number"));
    let mut rng = base::Rng::new(seed);
    let mut program = vec![0; PROGRAM_BYTES];
    let mut programs = 0u64;
    while pdus() < wanted {
        program.fill_with(|| rng.next_u64() as u8);
        play(&program);
        programs += 1;
    }
    println!("{} PDUs decoded, {programs} programs of {PROGRAM_BYTES} bytes, seed {seed}", pdus());
}
