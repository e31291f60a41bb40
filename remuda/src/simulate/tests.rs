use super::*;
use base::Rng;
use clap::Parser;
use std::fmt::Write;
use std::path::Path;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SimulateArgs,
}

fn args(trace: &Path, more: &str) -> SimulateArgs {
    let base = ["simulate", "--trace", trace.to_str().unwrap()];
    Line::parse_from(base.into_iter().chain(more.split_whitespace())).args
}

const POOL: &str = "--capacity 512MiB --log 72MiB --overprovision 25";

/// `count` writes of 4 KiB to a file of 256 MiB, each followed by a read of the same place.
fn iolog(count: u32, mut choose: impl FnMut(&mut Rng) -> u64) -> tempfile::NamedTempFile {
    let mut text = "fio version 2 iolog\n/dev/a add\n/dev/a open\n".to_string();
    let mut rng = Rng::new(7);
    for _ in 0..count {
        let at = choose(&mut rng) * BLOCK;
        writeln!(text, "/dev/a write {at} 4096\n/dev/a read {at} 4096").unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn outcome(trace: &Path, more: &str) -> serde_json::Value {
    let args = args(trace, &format!("{POOL} {more}"));
    report::to_json(&args, &simulate(&args, BOUNDS).unwrap())
}

fn number(value: &serde_json::Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{pointer}: {value:#}"))
}

const BLOCKS: u64 = (256 << 20) / BLOCK;

#[test]
fn uniform_small_writes_wear_a_shaped_pool_far_less_than_its_drive() {
    let trace = iolog(200_000, |rng| rng.below(BLOCKS));
    let found = outcome(trace.path(), "");
    assert_eq!(found["steady"], true);
    let capacity = number(&found, "/write_amplification/capacity");
    assert!((1.3..3.0).contains(&capacity), "{capacity}");
    let (pool, alone) =
        (number(&found, "/write_amplification/nand"), number(&found, "/write_amplification/nand_without_pool"));
    assert!(pool >= capacity * 0.99 && alone > 16.0 && alone > 6.0 * pool, "{pool} against {alone}");
    assert!(found["read_cache"][0]["hit"].as_f64() > Some(0.99), "what was just written is in the log");
}

#[test]
fn writes_to_few_places_are_absorbed_and_more_so_by_larger_logs() {
    let trace = iolog(100_000, |rng| rng.below(16_384));
    let found = outcome(trace.path(), "--passes 3");
    let absorbed: Vec<f64> = (0..5).map(|index| number(&found, &format!("/log/{index}/absorbed"))).collect();
    assert!(absorbed.is_sorted() && absorbed[2] > 0.2 && absorbed[4] > 0.5, "{absorbed:?}");
    assert!(number(&found, "/write_amplification/from_log") < 0.9);
}

#[test]
fn an_empty_pool_collects_less_than_a_full_one() {
    let trace = iolog(120_000, |rng| rng.below(BLOCKS / 2));
    let (full, empty) = (outcome(trace.path(), "--passes 6"), outcome(trace.path(), "--passes 6 --filled 0"));
    let of = |value| number(value, "/write_amplification/collected");
    assert!(of(&empty) < of(&full) / 2.0, "{} against {}", of(&empty), of(&full));
}

#[test]
fn a_pool_that_is_too_small_or_cannot_be_is_refused_with_the_reason() {
    let trace = iolog(100_000, |rng| rng.below(1 << 20));
    let text = |more: &str| simulate(&args(trace.path(), more), BOUNDS).err().expect("refused").message;
    let full = text(POOL);
    assert!(full.contains("line ") && full.contains("give it a larger --capacity"), "{full}");
    let small = text("--capacity 1MiB --log 72MiB");
    assert!(small.contains("there can be no such pool: the capacity device has 1 MiB"), "{small}");
    let percent = text("--capacity 1GiB --log 72MiB --overprovision 99");
    assert!(percent.contains("over-provisioning of 99 %"), "{percent}");
    let unit = text("--capacity 1GiB --log 72MiB --write-unit 6KiB");
    assert_eq!(unit, "--write-unit: expected a multiple of 4KiB");
}

#[test]
fn a_sample_predicts_what_the_whole_does() {
    let trace = iolog(150_000, |rng| rng.below(BLOCKS) * rng.below(BLOCKS) / BLOCKS);
    let args = args(trace.path(), POOL);
    let of = |blocks| {
        let outcome = simulate(&args, Bounds { blocks, ..BOUNDS }).unwrap();
        let found = report::to_json(&args, &outcome);
        let pool = ["capacity", "from_log", "nand_without_pool"];
        (found["sampled_one_in"].clone(), pool.map(|what| number(&found, &format!("/write_amplification/{what}"))))
    };
    let (whole, sampled) = (of(BLOCKS_MAX), of(BLOCKS_MAX / 64));
    assert_eq!((whole.0, sampled.0), (1.into(), 2.into()));
    for (whole, sampled) in whole.1.into_iter().zip(sampled.1) {
        assert!((sampled / whole - 1.0).abs() < 0.15, "{sampled} for {whole}");
    }
}

#[test]
fn a_pipe_is_played_once_from_its_first_byte() {
    let trace = iolog(2_000, |rng| rng.below(BLOCKS));
    let text = std::fs::read(trace.path()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.is_ok_and(|made| made.success()), "mkfifo is in every system");
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || std::fs::write(path, text).unwrap())
    };
    let args = args(&path, POOL);
    let found = report::to_json(&args, &simulate(&args, BOUNDS).unwrap());
    writer.join().unwrap();
    assert_eq!((&found["trace"]["writes"], &found["passes"]), (&2_000.into(), &1.into()));
}

#[test]
fn few_lines_of_much_are_refused_before_they_take_long() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    let head = "fio version 2 iolog\n/dev/a add\n/dev/a open\n";
    let refused = |body: &str, bounds| {
        std::fs::write(trace.path(), format!("{head}{body}")).unwrap();
        simulate(&args(trace.path(), POOL), bounds).err().expect("refused").message
    };
    let huge = refused(&format!("/dev/a trim 0 {}\n", 1u64 << 44), BOUNDS);
    assert!(huge.contains("line 4: ") && huge.contains("give it a larger --capacity"), "{huge}");
    let few = Bounds { work: 1 << 17, ..BOUNDS };
    let write = format!("/dev/a write 0 {}\n", 200 << 20);
    let long = refused(&write.repeat(1000), few);
    assert!(long.contains("line 6: ") && long.contains("pass 1") && long.contains("--passes"), "{long}");
    let reads = format!("/dev/a read 0 {}\n", 200 << 20);
    assert!(refused(&reads.repeat(1000), few).contains("fewer --passes"));
}
