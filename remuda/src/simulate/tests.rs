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

// --- warm pools ---------------------------------------------------------------------------------------------------

const WARM: &str = "--shape warm --capacity 2GiB --log 72MiB --cache 64MiB";
const HOUR_US: u64 = 3_600_000_000;

/// A trace of reads of so many hours: one block each, and times if they are wanted.
fn reads(hours: u64, count: u64, timed: bool, mut choose: impl FnMut(u64, &mut Rng) -> u64) -> tempfile::NamedTempFile {
    let (mut rng, mut text) = (Rng::new(5), format!("fio version {} iolog\n", if timed { 3 } else { 2 }));
    let mut line = |nth: u64, what: String| match timed {
        true => writeln!(text, "{} /dev/a {what}", nth * hours * HOUR_US / count).unwrap(),
        false => writeln!(text, "/dev/a {what}").unwrap(),
    };
    line(0, "add".to_string());
    (0..count).for_each(|nth| line(nth, format!("read {} 4096", choose(nth, &mut rng) * BLOCK)));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn warm(trace: &Path, more: &str) -> (serde_json::Value, String) {
    let args = args(trace, &format!("{WARM} {more}"));
    let outcome = simulate(&args, BOUNDS).unwrap();
    (report::to_json(&args, &outcome), report::to_text(&args, &outcome))
}

#[test]
fn the_flash_cache_keeps_what_is_read_often_beside_a_scan() {
    // Half of the reads go to 48 MiB, the others to blocks that are read once.
    let trace = reads(20, 200_000, true, |nth, rng| if nth % 2 == 0 { rng.below(12_000) } else { 20_000 + nth });
    let (found, text) = warm(trace.path(), "--write-budget 100GiB --endurance 10TiB --passes 4");
    let of = |what: &str| number(&found, &format!("/flash_cache/{what}"));
    assert!(of("last_pass/hit") > 0.45, "{}", of("last_pass/hit"));
    assert!(of("sizes/0/hit_lru") < of("sizes/0/hit") - 0.1, "LRU lets the scan in: {text}");
    assert_eq!(found["flash_cache"]["budget_is_limit"], false);
    assert!(of("written_day_bytes") < 3e9 && text.contains("at least 102 days within the budget"), "{text}");
    assert!(text.contains("not the limit") && text.contains("the trace covers 19h 59m"), "{text}");
    assert!(found.get("read_cache").is_none() && found["write_amplification"].is_null());
}

#[test]
fn a_small_write_budget_is_told_to_be_the_limit_and_is_kept() {
    let trace = reads(20, 200_000, true, |_, rng| rng.below(60_000));
    let (found, text) = warm(trace.path(), "--write-budget 45MiB --passes 1");
    let of = |what: &str| number(&found, &format!("/flash_cache/{what}"));
    let budget = (45 << 20) as f64;
    assert!((0.6 * budget..1.05 * budget).contains(&of("written_day_bytes")), "{text}");
    assert_eq!(found["flash_cache"]["budget_is_limit"], true);
    assert!(text.contains("THE LIMIT: it refused") && text.contains("no --endurance is given"), "{text}");
    assert!(of("sizes/0/hit_without_budget") > of("sizes/0/hit") + 0.05, "{text}");
}

#[test]
fn without_times_nothing_is_said_of_days_until_somebody_says_how_long_it_took() {
    let trace = reads(0, 60_000, false, |_, rng| rng.below(12_000));
    let (found, text) = warm(trace.path(), "--write-budget 45MiB --endurance 1TiB --passes 3");
    assert_eq!(found["flash_cache"]["time"], "unknown");
    assert!(found["flash_cache"]["written_day_bytes"].is_null() && found["flash_cache"]["days"].is_null());
    assert!(number(&found, "/flash_cache/last_pass/hit") > 0.9, "{text}");
    assert!(text.contains("THE TRACE DOES NOT SAY WHEN") && text.contains("--duration"), "{text}");
    let (found, text) = warm(trace.path(), "--write-budget 45MiB --endurance 1TiB --passes 3 --duration 20h");
    assert_eq!(
        (&found["flash_cache"]["time"], &found["flash_cache"]["pass_seconds"]),
        (&"spread".into(), &72_000.0.into())
    );
    assert!(found["flash_cache"]["written_day_bytes"].is_number() && text.contains("20h 0m (--duration)"), "{text}");
}

#[test]
fn what_is_written_is_read_from_the_log_and_then_no_longer_cached() {
    // One block in two is written anew between two reads.
    let mut text = "fio version 3 iolog\n0 /dev/a add\n".to_string();
    let mut rng = Rng::new(9);
    for step in 0..200_000u64 {
        let what = if step % 2 == 0 { "read" } else { "write" };
        writeln!(text, "{} /dev/a {what} {} 4096", step * 1000, rng.below(60_000) * BLOCK).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let (found, _) = warm(file.path(), "--cache 256MiB --write-budget 10TiB --passes 3");
    let shares =
        ["from_log", "from_flash", "from_disks"].map(|what| number(&found, &format!("/flash_cache/last_pass/{what}")));
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
    assert!(shares[0] > 0.02 && shares[1] > 0.01 && shares[1] < 0.6, "{shares:?}");
    assert!(
        number(&found, "/write_amplification/from_log") < 1.0 && number(&found, "/write_amplification/map_pages") > 0.0
    );
    assert!(found["write_amplification"]["nand"].is_null(), "disks program nothing");
}

#[test]
fn a_sampled_flash_cache_hits_as_the_whole_does() {
    let trace = reads(10, 150_000, true, |_, rng| rng.below(30_000) * rng.below(30_000) / 30_000);
    let args = args(trace.path(), &format!("{WARM} --write-budget 10GiB --passes 3"));
    let hit = |blocks| {
        let found = report::to_json(&args, &simulate(&args, Bounds { blocks, ..BOUNDS }).unwrap());
        (found["sampled_one_in"].clone(), number(&found, "/flash_cache/last_pass/hit"))
    };
    let (whole, sampled) = (hit(BLOCKS_MAX), hit(1 << 17));
    assert_eq!((&whole.0, &sampled.0), (&1.into(), &2.into()));
    assert!((whole.1 - sampled.1).abs() < 0.05, "{whole:?} {sampled:?}");
}

#[test]
fn what_makes_no_sense_of_a_shape_is_refused_by_name() {
    let trace = reads(1, 10, true, |nth, _| nth);
    let text = |more: &str| simulate(&args(trace.path(), more), BOUNDS).err().expect("refused").message;
    let base = "--capacity 2GiB --log 72MiB";
    assert!(
        text(&format!("{base} --shape warm")).contains("needs --cache SIZE (its flash device) and --write-budget SIZE")
    );
    assert!(
        text(&format!("{base} --write-budget 1GiB")).contains("--write-budget is for warm pools; add --shape warm")
    );
    assert!(
        text(&format!("{base} --shape hot --overprovision 20"))
            .contains("--overprovision is for shaped pools, and this one is hot")
    );
    assert!(
        text(&format!("{WARM} --write-budget 1GiB --drive-unit 4KiB")).contains("--drive-unit: disks have no flash")
    );
    assert!(text(&format!("{WARM} --write-budget 1MiB")).contains("a write budget of 1048576 bytes per day"));
    assert!(text(&format!("{WARM} --write-budget 1GiB --duration 1h")).contains("says itself when its accesses were"));
    assert!(
        text(&format!("{base} --shape warm --cache 1MiB --write-budget 1GiB")).contains("takes at least nine segments")
    );
    assert!(
        text(&format!("{base} --shape warm --cache 3GiB --write-budget 1GiB"))
            .contains("--cache 3 GiB: volumes of this pool have no more")
    );
}

// --- hot pools, and other drives ----------------------------------------------------------------------------------

/// 4 KiB all over 256 MiB.
fn uniform(count: u32) -> tempfile::NamedTempFile {
    iolog(count, |rng| rng.below(BLOCKS))
}

#[test]
fn a_hot_pool_writes_to_its_places_what_its_log_does_not_absorb_and_map_pages() {
    let trace = uniform(60_000);
    let of = |more: &str| {
        let args = args(trace.path(), &format!("--shape hot --capacity 512MiB --log 72MiB {more}"));
        let outcome = simulate(&args, BOUNDS).unwrap();
        (report::to_json(&args, &outcome), report::to_text(&args, &outcome))
    };
    let (found, text) = of("");
    let write = |what: &str| number(&found, &format!("/write_amplification/{what}"));
    let absorbed = number(&found, "/log/2/absorbed");
    assert!((write("from_log") + absorbed - 1.0).abs() < 0.05, "{text}");
    assert!(write("map_pages") > 0.0 && write("map_pages") < 0.1, "{text}");
    // Blocks in one unit go together where an extent has some of them.
    assert!(write("nand") > 4.0 && write("nand") < write("nand_without_pool"), "{text}");
    assert!(text.contains("the drive had been written over"), "{text}");
    assert!(number(&found, "/log_device/least") < 1.05 && number(&found, "/log_device/most") == 2.0);
    let (disk, text) = of("--drive disk --passes 3");
    assert!(
        disk["write_amplification"]["nand"].is_null() && text.contains("disks: only what they are given counts"),
        "{text}"
    );
    assert!(number(&disk, "/log/2/absorbed") < absorbed, "disks that are idle are written to earlier");
}

#[test]
fn a_shaped_pool_on_streams_or_zones_makes_its_drive_add_little_or_nothing() {
    let trace = uniform(150_000);
    let of = |more: &str| {
        let found = outcome(trace.path(), more);
        (number(&found, "/write_amplification/drive"), number(&found, "/write_amplification/capacity"), found)
    };
    let (mixed, streams, zoned) = (of(""), of("--drive streams"), of("--drive zoned --band 4MiB"));
    assert!(streams.0 <= mixed.0 && streams.0 < 1.02, "{} against {}", streams.0, mixed.0);
    assert!(zoned.0 < 1.001, "{}", zoned.0);
    assert!((zoned.1 / mixed.1 - 1.0).abs() < 0.3, "{} against {}", zoned.1, mixed.1);
    assert_eq!((&zoned.2["pool"]["band_bytes"], &zoned.2["drive"]["kind"]), (&(4 << 20).into(), &"zoned".into()));
    assert!(zoned.2["drive"]["spare_percent"].is_null());
}

#[test]
fn drives_that_a_shape_does_not_run_on_are_refused() {
    let trace = uniform(10);
    let text = |more: &str| {
        simulate(&args(trace.path(), &format!("--capacity 2GiB --log 72MiB {more}")), BOUNDS)
            .err()
            .expect("refused")
            .message
    };
    assert!(text("--drive disk").contains("--drive disk: a shaped pool writes in long runs"));
    assert!(text("--shape hot --drive zoned").contains("add --shape shaped"));
    assert!(text("--shape hot --drive streams").contains("uses no streams"));
    assert!(text("--shape warm --drive conventional --cache 64MiB --write-budget 1GiB").contains("would be in vain"));
    assert!(text("--drive zoned --drive-spare 20").contains("neither a map nor spare flash"));
    assert!(
        text("--drive zoned").contains("use smaller bands, fewer shards or a larger device"),
        "{}",
        text("--drive zoned")
    );
}

#[test]
fn a_log_that_absorbs_everything_is_said_to_and_the_trace_is_not_played_on() {
    let trace = iolog(20_000, |rng| rng.below(200));
    let args = args(trace.path(), POOL);
    let outcome = simulate(&args, BOUNDS).unwrap();
    let text = report::to_text(&args, &outcome);
    assert_eq!((outcome.passes, outcome.is_absorbed), (2, true));
    assert!(text.contains("the log absorbs everything") && !text.contains("NOT WRITTEN OVER"), "{text}");
}

#[test]
fn a_log_that_absorbs_nearly_everything_is_said_to() {
    let trace = iolog(20_000, |rng| rng.below(1_000));
    let args = args(trace.path(), &format!("{POOL} --passes 3"));
    let text = report::to_text(&args, &simulate(&args, BOUNDS).unwrap());
    assert!(text.contains("the log absorbs all but") && !text.contains("NOT WRITTEN OVER"), "{text}");
}

#[test]
fn a_pause_of_writers_destages_what_the_log_has() {
    let mut text = "fio version 3 iolog\n0 /dev/a add\n".to_string();
    for step in 0..10_000u64 {
        // A minute of silence after every thousand writes of the same places.
        let at = step * 100 + step / 1000 * 60_000_000;
        writeln!(text, "{at} /dev/a write {} 4096", step % 100 * BLOCK).unwrap();
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let args = args(file.path(), &format!("{POOL} --passes 1"));
    let outcome = simulate(&args, BOUNDS).unwrap();
    let found = report::to_json(&args, &outcome);
    assert_eq!((&found["rests"], outcome.is_absorbed), (&9.into(), false));
    assert_eq!(number(&found, "/write_amplification/from_log"), 0.09);
    assert!(report::to_text(&args, &outcome).contains("9 times nobody wrote for more than a second"));
}
