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

/// Raw flash per byte that users can store.
fn flash_per_user_byte(args: &WsrArgs, cell: &Cell) -> f64 {
    cell.measured.raw_bytes as f64 / args.sizes().user_bytes as f64
}

/// Measured writes over the reference's, row by row: lowest, median, highest. None when no row was run.
fn closeness(cells: &[Cell], column: Column) -> Option<[f64; 3]> {
    let of_column = cells.iter().filter(|cell| cell.column == column && cell.setting == Setting::Published);
    let mut ratios: Vec<f64> =
        of_column.map(|cell| rate_of(cell).0 / ROWS[cell.row].reference[column.published()].0).collect();
    ratios.sort_by(f64::total_cmp);
    Some([*ratios.first()?, ratios[ratios.len() / 2], *ratios.last()?])
}

pub fn to_json(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> Value {
    let rate = |rate: Rate| json!({ "write": rate.0, "read": rate.1 });
    let each = cells.iter().map(|cell| {
        let (row, measured, column) = (&ROWS[cell.row], &cell.measured, cell.column.published());
        json!({
            "row": row.number, "load": row.load(), "setting": cell.setting.name(), "stack": cell.column.name(),
            "model": cell.column != Column::Pool, "mb_per_second_per_job": rate(rate_of(cell)), "seed": rate(row.seed[column]),
            "reference": rate(row.reference[column]), "flash_per_user_byte": flash_per_user_byte(args, cell),
            "raw_bytes": measured.raw_bytes, "window_ns": measured.window_ns,
            "user_write_bytes": measured.user_write_bytes, "user_read_bytes": measured.user_read_bytes,
            "cache_write_bytes": measured.fast_bytes, "drive_write_bytes": measured.device_write_bytes,
            "nand_bytes": measured.nand_bytes, "nand_per_user_byte": measured.per_user_byte(measured.nand_bytes),
            "cache_per_user_byte": measured.per_user_byte(measured.fast_bytes),
            "drive_write_amplification": measured.drive_amplification(),
            "write_p50_ns": measured.write_ns.percentile(50.0), "write_p999_ns": measured.write_ns.percentile(99.9),
            "read_p50_ns": row.readers.map(|_| measured.read_ns.percentile(50.0)),
            "read_p999_ns": row.readers.map(|_| measured.read_ns.percentile(99.9)),
        })
    });
    let sizes = args.sizes();
    let host = |column: Column| {
        let cost = hosts.of(column);
        json!({ "stack": column.name(), "request_ns": cost.request_ns, "block_ns": cost.block_ns, "shared": cost.shared })
    };
    json!({
        "rows": each.collect::<Vec<_>>(), "scale": args.scale, "user_bytes": sizes.user_bytes,
        "cache_bytes": sizes.cache_bytes, "unit_bytes": sizes.unit_bytes, "superblock_bytes": sizes.superblock_bytes,
        "host": hosts.columns().map(host).collect::<Vec<_>>(),
    })
}

pub fn to_text(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> String {
    let parts = Setting::ALL.map(|setting| {
        let rows = cells.iter().filter(|cell| cell.setting == setting).map(|cell| text_row(args, cell));
        let title = match setting {
            Setting::Published => {
                "As published: a drive with 10 % spare flash; shaping on one that is a quarter larger"
            }
            Setting::EqualFlash => {
                "The same raw flash for all: as spare flash of the drive, as zones (policy model), or as the pool's own on a drive \
                 that keeps its write streams apart"
            }
        };
        format!("{title}\n\n{}", output::table(&HEADINGS, rows.collect()))
    });
    format!("{}\n\n{}", parts.join("\n\n"), notes(args, hosts, cells))
}

const HEADINGS: [&str; 12] = [
    ">#",
    "LOAD",
    "STACK",
    ">FLASH/USER",
    ">MB/S PER JOB",
    ">SEED",
    ">REFERENCE",
    ">NAND/USER",
    ">CACHE/USER",
    ">DRIVE WAF",
    ">WRITE P50",
    ">P99.9",
];

fn text_row(args: &WsrArgs, cell: &Cell) -> Vec<String> {
    let (row, measured, column) = (&ROWS[cell.row], &cell.measured, cell.column.published());
    // What others measured or computed holds for the published amount of flash alone.
    let published = |rate: Rate| if cell.setting == Setting::Published { show_rate(rate) } else { String::new() };
    vec![
        row.number.to_string(),
        row.load(),
        cell.column.name().to_string(),
        format!("{:.3}", flash_per_user_byte(args, cell)),
        show_rate(rate_of(cell)),
        published(row.seed[column]),
        published(row.reference[column]),
        format!("{:.2}", measured.per_user_byte(measured.nand_bytes)),
        format!("{:.2}", measured.per_user_byte(measured.fast_bytes)),
        format!("{:.2}", measured.drive_amplification()),
        show_duration_ns(measured.write_ns.percentile(50.0)),
        show_duration_ns(measured.write_ns.percentile(99.9)),
    ]
}

fn notes(args: &WsrArgs, hosts: &Hosts, cells: &[Cell]) -> String {
    let sizes = args.sizes();
    let mut text = format!(
        "Models of drives in virtual time; the shaped pool is the engine itself on them, its log on the modelled cache device: scale 1/{}, {} of the user's, cache {}, superblocks and bands {}, indirection unit {}.\n\
         MB/s of each job: writes | reads. Seed: measured by its authors on 16 TB. Reference: another program of the same model, \
         16 GiB (shaping there: greedy victims).\n",
        args.scale,
        ByteSize(sizes.user_bytes),
        ByteSize(sizes.cache_bytes),
        ByteSize(sizes.superblock_bytes),
        ByteSize(sizes.unit_bytes),
    );
    for column in hosts.columns() {
        let cost = hosts.of(column);
        let core = if cost.shared { "on one core for all" } else { "without a queue" };
        text += &format!(
            "Host, {}: {} ns a request and {} ns a block{}, {core}.",
            column.name(),
            cost.request_ns,
            cost.block_ns,
            if column == Column::Pool && hosts.is_measured { " (measured of this build, on this machine)" } else { "" },
        );
        if let Some([lowest, median, highest]) = closeness(cells, column) {
            text += &format!(" Writes / reference: {lowest:.2} to {highest:.2}, median {median:.2}.");
        }
        text += "\n";
    }
    text.trim_end().to_string()
}
