//! `remuda bench` on pools, through the built program.

use crate::common::{Run, remuda};
use serde_json::json;

fn good(run: &Run) -> serde_json::Value {
    assert_eq!(run.code, 0, "{}{}", run.out, run.err);
    run.json()
}

const SHORT: [&str; 7] = ["--rw", "randrw", "--time", "200ms", "--warmup", "0s", "--verify"];

#[test]
fn a_pool_of_its_own_is_loaded_and_verified() {
    let pool = ["--json", "bench", "device", "--kind", "pool", "log_size=64MiB", "capacity_size=256MiB", "size=16MiB"];
    let report = good(&remuda(&[&pool[..], &SHORT].concat()));
    assert!(report["ios"].as_u64().unwrap() > 0 && report["verify"]["mismatches"] == json!(0), "{report}");
    assert_eq!(report["parameters"]["size"], json!(16 << 20));
    let run = remuda(&[&pool[..], &["log=a", "log_pmem=b"]].concat());
    assert_eq!(run.code, 2, "{}", run.out);
    let run = remuda(&["bench", "device", "--kind", "pool", "log_sise=1GiB"]);
    assert_eq!(run.code, 2, "{}", run.out);
    assert!(run.err.contains("log_size"), "{}", run.err);
    let run = remuda(&["bench", "device", "--kind", "pool", "reinsertion=50"]);
    assert!(run.code == 2 && run.err.contains("'reinsertion' is for shaped pools"), "{}{}", run.out, run.err);
}

#[test]
fn files_that_hold_something_are_not_taken_for_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    let (log, big) = (path("log"), path("big"));
    std::fs::write(&big, vec![7; 256 << 20]).unwrap();
    let (log_key, big_key) = (format!("log={log}"), format!("capacity={big}"));
    let pool =
        ["--json", "bench", "device", "--kind", "pool", "log_size=64MiB", "capacity_size=256MiB", &log_key, &big_key];
    let run = remuda(&[&pool[..], &SHORT].concat());
    assert_eq!(run.code, 5, "{}", run.out);
    assert!(run.json()["error"]["message"].as_str().unwrap().contains("force=true"), "{}", run.out);
    assert!(std::fs::read(&big).unwrap().iter().all(|byte| *byte == 7), "not a byte was changed");
    let forced = ["force=true", "size=16MiB"];
    good(&remuda(&[&pool[..], &forced, &SHORT].concat()));
    let run = remuda(&["pool", "check", "--capacity", &big, "--log", &log, "--data"]);
    assert_eq!(run.code, 0, "what is left is a pool: {}{}", run.out, run.err);
}

#[test]
fn appends_are_measured_beside_bare_stores() {
    let args =
        ["--json", "bench", "append", "--bs", "4k", "--samples", "500", "--addresses", "1GiB", "--log-size", "64MiB"];
    let report = good(&remuda(&args));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["source"].as_str().unwrap()).collect::<Vec<_>>(), ["warm", "cold"]);
    for row in rows {
        for kind in ["append_ns", "store_ns"] {
            assert!(row[kind]["p50"].as_u64().unwrap() > 0 && row[kind]["max"].is_u64(), "{row}");
        }
    }
    let run = remuda(&["bench", "append", "--bs", "5000"]);
    assert_eq!(run.code, 2, "{}", run.out);
}

#[test]
fn the_engine_is_compared_with_models_of_drives() {
    let dir = tempfile::tempdir().unwrap();
    let svg = dir.path().join("t.svg").to_string_lossy().into_owned();
    let args =
        ["--json", "bench", "engine-table", "--runs", "1", "--time", "60ms", "--range", "4MiB", "--log-size", "64MiB"];
    let report = good(&remuda(&[&args[..], &["--svg", &svg]].concat()));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "three devices, reads and writes at two depths: {report}");
    let models: Vec<bool> = rows.iter().map(|row| row["model"].as_bool().unwrap()).collect();
    assert_eq!((&models[..4], &models[4..]), (&[false; 4][..], &[true; 8][..]));
    assert_eq!(report["models"][0]["read"]["parallel"], json!(10), "parameters are told");
    let figure = std::fs::read_to_string(&svg).unwrap();
    assert!(figure.starts_with("<svg") && figure.contains("a model"), "{figure}");
    let cores = |list: &str| remuda(&[&args[..10], &["128MiB", "--cores", list]].concat());
    assert_eq!(good(&cores("0,0"))["cores"], json!(2), "one core may have two reactors");
    assert_eq!(cores("4096").code, 2);
}

#[test]
fn rows_on_a_modelled_drive_say_what_they_were_run_with_and_are_the_same_every_time() {
    let costs = ["--pool-ns", "900", "--pool-block-ns", "80", "--pool-band-ns", "650"];
    let base = ["--json", "bench", "wsr-table", "--scale", "16", "--rows", "7", "--stack", "drive,pool"];
    let zones = [&base[..], &costs, &["--setting", "zones", "--rate", "100"]].concat();
    let report = good(&remuda(&zones));
    assert_eq!(report, good(&remuda(&zones)));
    assert_eq!((&report["write_mb_per_second"], &report["zone_bytes"]), (&json!(100), &json!(4 << 20)), "{report}");
    let hosts = report["host"].as_array().unwrap();
    assert_eq!((&hosts[1]["band_block_ns"], &hosts[1]["measured"]), (&json!(650), &json!(false)), "{report}");
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2, "{report}");
    let pool = &rows[1];
    let number = |key: &str| pool[key].as_f64().unwrap_or_else(|| panic!("{key} in {pool}"));
    let rate = pool["mb_per_second_per_job"]["write"].as_f64().unwrap();
    assert!((24.0..26.0).contains(&rate), "four jobs: {pool}");
    assert!((0.9..1.3).contains(&number("write_over_drive_alone")), "both write what comes: {pool}");
    assert!(number("read_over_idle") > 0.3 && number("read_over_idle") < 1.05, "{pool}");
    assert!(number("die_utilisation") > 0.0 && number("host_utilisation") > 0.0, "{pool}");
    assert!(number("write_p50_ns") <= number("write_p99_ns") && number("write_p99_ns") <= number("write_p999_ns"));
    assert!(number("flash_per_user_byte") < 1.11 && number("drive_write_amplification") < 1.02, "{pool}");
    for wrong in [&["--pool-ns", "900"][..], &["--setting", "none"], &["--rate", "0"], &["--rows", "12"]] {
        assert_eq!(remuda(&[&base[..5], wrong].concat()).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_killed_node_serves_its_pool_again_and_the_time_is_told() {
    let base = ["--json", "bench", "restart", "--log-size", "64MiB", "--capacity", "256MiB", "--runs", "1"];
    for log in ["mapped", "block"] {
        let report = good(&remuda(&[&base[..], &["--log", log]].concat()));
        assert_eq!((&report["log"], &report["log_size"]), (&json!(log), &json!(64 << 20)), "{report}");
        let restart = &report["restarts"].as_array().unwrap()[0];
        let number = |key: &str| restart[key].as_u64().unwrap_or_else(|| panic!("{key} in {report}"));
        assert!(number("records") > 1000 && number("resident_bytes") > 0, "{report}");
        assert!(number("pool_open_ns") < number("ready_ns"), "{report}");
        assert!(number("ready_ns") < number("first_read_ns") && number("first_read_ns") < number("first_write_ns"));
    }
    assert_eq!(remuda(&["bench", "restart", "--log-size", "1MiB"]).code, 2);
    assert_eq!(remuda(&["bench", "restart", "--cold"]).code, 2, "memory has no page cache to drop");
}
