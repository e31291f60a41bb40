//! The table as text and as JSON.

use super::rows::{ROWS, Rate};
use super::stack::{Column, Setting};
use super::{Cell, Hosts, WsrArgs};
use crate::cli::output;
use crate::config::show_duration_ns;
use base::ByteSize;
use serde_json::{Value, json};

/// MB/s per job as measured.
pub fn rate_of(cell: &Cell) -> Rate {
    let (row, measured) = (&ROWS[cell.row], &cell.measured);
    let write = measured.rate(measured.user_write_bytes, row.writers.count);
    Rate(write, row.readers.map(|readers| measured.rate(measured.user_read_bytes, readers.count)))
}

fn show_rate(rate: Rate) -> String {
    let digits = |value: f64| if value < 20.0 { format!("{value:.1}") } else { format!("{value:.0}") };
    match rate.1 {
        Some(read) => format!("{} | {}", digits(rate.0), digits(read)),
        None => digits(rate.0),
    }
}

/// Writes over those of the drive alone with the same flash; None where that was not run.
fn over_drive(cells: &[Cell], cell: &Cell) -> Option<f64> {
    let is_its =
        |other: &&Cell| other.row == cell.row && other.setting == cell.setting && other.column == Column::Drive;
    let drive = cells.iter().find(is_its).filter(|_| cell.column != Column::Drive)?;
    Some(rate_of(cell).0 / rate_of(drive).0)
}

/// Reads beside the writes over those of the same stack alone, after the prefill.
fn over_idle(cell: &Cell) -> Option<f64> {
    let measured = &cell.measured;
    let beside = measured.user_read_bytes as f64 * 1e9 / measured.window_ns.max(1) as f64;
    measured.idle_reads.map(|[before, _]| beside / before)
}

/// What readers get alone, MB/s of each: after the prefill, and at the end.
fn idle_rates(cell: &Cell) -> Option<[f64; 2]> {
    let jobs = ROWS[cell.row].readers?.count;
    cell.measured.idle_reads.map(|rates| rates.map(|rate| rate / 1e6 / jobs as f64))
}

/// Raw flash per byte that users can store.
fn flash_per_user_byte(args: &WsrArgs, cell: &Cell) -> f64 {
    cell.measured.raw_bytes as f64 / args.sizes().user_bytes as f64
}

/// Measured writes over the reference's, row by row: lowest, median, highest. None when no row was run.
fn closeness(cells: &[Cell], column: Column) -> Option<[f64; 3]> {
    let of_column = cells.iter().filter(|cell| cell.column == column && cell.setting == Setting::Published);
    let ratio = |cell: &Cell| Some(rate_of(cell).0 / ROWS[cell.row].others.as_ref()?.reference[column.published()].0);
    let mut ratios: Vec<f64> = of_column.filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    Some([*ratios.first()?, ratios[ratios.len() / 2], *ratios.last()?])
}

pub fn to_json(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> Value {
    let rate = |rate: Rate| json!({ "write": rate.0, "read": rate.1 });
    let each = cells.iter().map(|cell| {
        let (row, measured, column) = (&ROWS[cell.row], &cell.measured, cell.column.published());
        let others = row.others.as_ref();
        let [write_us, read_us] = [&measured.write_ns, &measured.read_ns]
            .map(|of| [50.0, 99.0, 99.9].map(|percent| of.percentile(percent)));
        let read_us = row.readers.map(|_| read_us);
        json!({
            "row": row.number, "load": row.load(), "setting": cell.setting.name(), "stack": cell.column.name(),
            "model": cell.column != Column::Pool, "mb_per_second_per_job": rate(rate_of(cell)), "seed": others.map(|others| rate(others.seed[column])),
            "reference": others.map(|others| rate(others.reference[column])), "flash_per_user_byte": flash_per_user_byte(args, cell),
            "raw_bytes": measured.raw_bytes, "window_ns": measured.window_ns,
            "user_write_bytes": measured.user_write_bytes, "user_read_bytes": measured.user_read_bytes,
            "cache_write_bytes": measured.fast_bytes, "drive_write_bytes": measured.device_write_bytes,
            "nand_bytes": measured.nand_bytes, "nand_per_user_byte": measured.per_user_byte(measured.nand_bytes),
            "cache_per_user_byte": measured.per_user_byte(measured.fast_bytes),
            "drive_write_amplification": measured.drive_amplification(),
            "write_over_drive_alone": over_drive(cells, cell),
            "die_utilisation": measured.die_utilisation, "host_utilisation": measured.host_utilisation,
            "idle_read_mb_per_second_per_job": idle_rates(cell).map(|[before, after]| json!({ "before": before, "after": after })),
            "read_over_idle": over_idle(cell),
            "write_p50_ns": write_us[0], "write_p99_ns": write_us[1], "write_p999_ns": write_us[2],
            "read_p50_ns": read_us.map(|of| of[0]), "read_p99_ns": read_us.map(|of| of[1]),
            "read_p999_ns": read_us.map(|of| of[2]),
        })
    });
    let sizes = args.sizes();
    let host = |column: Column| {
        let cost = hosts.of(column);
        json!({
            "stack": column.name(), "request_ns": cost.request_ns, "block_ns": cost.block_ns,
            "band_block_ns": cost.band_block_ns, "shared": cost.shared_cores().is_some(), "cores": cost.shared_cores(),
            "measured": column == Column::Pool && hosts.is_measured,
        })
    };
    json!({
        "rows": each.collect::<Vec<_>>(), "scale": args.scale, "user_bytes": sizes.user_bytes,
        "cache_bytes": sizes.cache_bytes, "unit_bytes": sizes.unit_bytes, "superblock_bytes": sizes.superblock_bytes,
        "zone_bytes": sizes.zone_bytes, "write_mb_per_second": args.rate,
        "host": hosts.columns().map(host).collect::<Vec<_>>(),
    })
}

pub fn to_text(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> String {
    let part = |setting: Setting| {
        let rows: Vec<_> =
            cells.iter().filter(|cell| cell.setting == setting).map(|cell| text_row(args, cells, cell)).collect();
        let title = match setting {
            Setting::Published => {
                "As published: a drive with 10 % spare flash; shaping on one that is a quarter larger"
            }
            Setting::EqualFlash => {
                "The same raw flash for all: as spare flash of the drive, as zones (policy model), or as the pool's own on a drive \
                 that keeps its write streams apart"
            }
            Setting::Zones => {
                "A tenth more flash than users have: as spare flash of the drive, or as zones, the pool's too"
            }
            Setting::EqualZones => {
                "The same raw flash for all, 1.375 times the user's: as spare flash of the drive, or as zones, the pool's too"
            }
        };
        (!rows.is_empty()).then(|| format!("{title}\n\n{}", output::table(&HEADINGS, rows)))
    };
    let parts: Vec<String> = Setting::ALL.into_iter().filter_map(part).collect();
    format!("{}\n\n{}", parts.join("\n\n"), notes(args, hosts, cells))
}

const HEADINGS: [&str; 17] = [
    ">#",
    "LOAD",
    "STACK",
    ">FLASH/USER",
    ">MB/S PER JOB",
    ">/DRIVE",
    ">READ/IDLE",
    ">SEED",
    ">REFERENCE",
    ">NAND/USER",
    ">CACHE/USER",
    ">DRIVE WAF",
    ">DIES",
    ">CORES",
    ">WRITE P50",
    ">P99",
    ">P99.9",
];

fn text_row(args: &WsrArgs, cells: &[Cell], cell: &Cell) -> Vec<String> {
    let (row, measured, column) = (&ROWS[cell.row], &cell.measured, cell.column.published());
    // What others measured or computed holds for the published amount of flash alone.
    let others = row.others.as_ref().filter(|_| cell.setting == Setting::Published);
    let ratio = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    vec![
        row.number.to_string(),
        row.load(),
        cell.column.name().to_string(),
        format!("{:.3}", flash_per_user_byte(args, cell)),
        show_rate(rate_of(cell)),
        ratio(over_drive(cells, cell)),
        ratio(over_idle(cell)),
        others.map_or(String::new(), |others| show_rate(others.seed[column])),
        others.map_or(String::new(), |others| show_rate(others.reference[column])),
        format!("{:.2}", measured.per_user_byte(measured.nand_bytes)),
        format!("{:.2}", measured.per_user_byte(measured.fast_bytes)),
        format!("{:.2}", measured.drive_amplification()),
        percent(measured.die_utilisation),
        percent(measured.host_utilisation),
        show_duration_ns(measured.write_ns.percentile(50.0)),
        show_duration_ns(measured.write_ns.percentile(99.0)),
        show_duration_ns(measured.write_ns.percentile(99.9)),
    ]
}

fn notes(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> String {
    let sizes = args.sizes();
    let mut text = format!(
        "Models of drives in virtual time; the shaped pool is the engine itself on them, its log on the modelled cache device: scale 1/{}, {} of the user's, cache {}, superblocks and bands {} (the pool's on a drive without streams twice that), zones of the last setting {} (their pool's head is on the cache device too), indirection unit {}.\n\
         MB/s of each job: writes | reads. Seed: measured by its authors on 16 TB. Reference: another program of the same model, \
         16 GiB (shaping there: greedy victims). /DRIVE: writes over the drive's alone with the same flash. READ/IDLE: reads over \
         those of the same stack alone, after the prefill. DIES and CORES: how busy they were.\n",
        args.scale,
        ByteSize(sizes.user_bytes),
        ByteSize(sizes.cache_bytes),
        ByteSize(sizes.superblock_bytes),
        ByteSize(sizes.zone_bytes),
        ByteSize(sizes.unit_bytes),
    );
    if let Some(rate) = args.rate {
        text += &format!(
            "Writes come at {rate} MB/s, evenly spaced, whatever has become of those before; their time counts from when they were \
             due. Where MB/S PER JOB is less, that is what the stack sustains.\n"
        );
    }
    for column in hosts.columns() {
        let cost = hosts.of(column);
        let core = match cost.shared_cores() {
            None => "without a queue".to_string(),
            Some(1) => "on one core for all".to_string(),
            Some(count) => format!("on {count} cores, each with a shard"),
        };
        text += &format!("Host, {}: {} ns a request and {} ns a block", column.name(), cost.request_ns, cost.block_ns);
        if column == Column::Pool {
            text += &format!(", {} ns a block that is written to the bands", cost.band_block_ns);
        }
        if column == Column::Pool && hosts.is_measured {
            text += " (CPU time of this build on this machine: the engine with its copies, checksums, log, index, destage and \
                     collection, and its reactor; what the devices do, which here were memory, is not in it)";
        }
        text += &format!(", {core}.");
        if let Some([lowest, median, highest]) = closeness(cells, column) {
            text += &format!(" Writes / reference: {lowest:.2} to {highest:.2}, median {median:.2}.");
        }
        text += "\n";
    }
    text.trim_end().to_string()
}
