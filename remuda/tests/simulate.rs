//! `remuda pool simulate` as those use it who have a trace and no drives yet.

use crate::common::{Run, remuda};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

const POOL: [&str; 6] = ["--capacity", "1GiB", "--log", "72MiB", "--shape", "hot"];

/// So many writes of 4 KiB, over and over the same 4 MiB.
fn iolog(writes: u64) -> String {
    let mut text = "fio version 3 iolog\n0 /dev/a add\n".to_string();
    (0..writes).for_each(|nth| writeln!(text, "{} /dev/a write {} 4096", nth * 10, nth % 1024 * 4096).unwrap());
    text
}

fn simulate(trace: &str, more: &[&str]) -> Run {
    remuda(&[&["--json", "pool", "simulate", "--trace", trace][..], &POOL, more].concat())
}

fn refused(trace: &str, more: &[&str], parts: &[&str]) {
    let run = remuda(&[&["pool", "simulate", "--trace", trace][..], &POOL, more].concat());
    assert!(matches!(run.code, 1 | 2), "{}{}", run.out, run.err);
    parts.iter().for_each(|part| assert!(run.err.contains(part), "{part}: {}", run.err));
}

#[test]
fn a_trace_comes_from_a_file_or_from_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.log");
    std::fs::write(&path, iolog(5_000)).unwrap();
    let found = simulate(path.to_str().unwrap(), &[]).json();
    assert_eq!(
        (&found["trace"]["writes"], &found["passes"], &found["absorbs_all"]),
        (&5_000.into(), &2.into(), &true.into())
    );
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_remuda"));
        command.args(["--json", "pool", "simulate", "--trace", "-"]).args(POOL).stdout(Stdio::piped());
        command
    };
    let mut child = command().stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(iolog(5_000).as_bytes()).unwrap();
    let piped: serde_json::Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!((&piped["trace"]["file"], &piped["passes"]), (&"standard input".into(), &1.into()));
    let redirected = command().stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
    let redirected: serde_json::Value = serde_json::from_slice(&redirected.stdout).unwrap();
    assert_eq!(redirected["passes"], 2, "a file is played again");
}

#[test]
fn what_is_no_trace_is_refused_with_its_name_the_cause_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.log");
    let name = path.to_str().unwrap();
    let with = |bytes: &[u8], more: &[&str], parts: &[&str]| {
        std::fs::write(&path, bytes).unwrap();
        refused(name, more, &[&[name][..], parts].concat());
    };
    with(b"", &[], &["it is empty: record while the load runs"]);
    with(b"fio version 3 iolog\n0 /dev/a add\n", &[], &["no read, write or trim"]);
    with(b"\x7fELF\x02\x01", &[], &["its format is not known: expected a fio iolog", "--format"]);
    with(iolog(3).trim_end_matches("96\n").as_bytes(), &["--format", "blktrace"], &["line 1"]);
    with(iolog(3).as_bytes(), &["--event", "D"], &["--event is for what blktrace records"]);
    let cut = iolog(3);
    with(&cut.as_bytes()[..cut.len() - 6], &[], &["line 5: the length is missing"]);
    refused(dir.path().join("none").to_str().unwrap(), &[], &["none: cannot open it: No such file"]);
    refused(dir.path().to_str().unwrap(), &[], &["cannot read it: Is a directory"]);
}

#[test]
fn what_no_pool_or_drive_can_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.log");
    std::fs::write(&path, iolog(100)).unwrap();
    let name = path.to_str().unwrap();
    refused(
        name,
        &["--drive", "zoned"],
        &["--drive zoned: zones are written in order alone, and a hot pool writes in place; add --shape shaped"],
    );
    refused(name, &["--drive", "streams"], &["--drive streams: a hot pool writes in place and uses no streams"]);
    refused(name, &["--drive", "disk", "--drive-unit", "4KiB"], &["--drive-unit: disks have no flash"]);
    refused(name, &["--overprovision", "20"], &["--overprovision is for shaped pools"]);
    refused(name, &["--write-budget", "1GiB"], &["--write-budget is for warm pools; add --shape warm"]);
}
