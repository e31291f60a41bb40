//! `remuda bench append`: what a write into a mapped log takes, beside the bare store of the same bytes.

use super::report::latencies;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use crate::node::reactors::{END_MAX_NS, Reactors, on_reactor_async};
use base::{ByteSize, Histogram};
use bdev::{FileDevice, FileDeviceOptions};
use clap::Args;
use engine::LogDevice;
use engine::measure::{AppendOptions, AppendReport, measure_append};
use reactor::{PollPolicy, ReactorConfig};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args)]
pub struct AppendArgs {
    /// Bytes of each append: 4k to 64k; several are measured one after the other
    #[arg(long, value_delimiter = ',', default_value = "4k,16k")]
    bs: Vec<ByteSize>,
    /// Appends of each kind
    #[arg(long, default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    samples: u64,
    /// Addresses that the index is spread over; one block of each 4 MiB of them is stored
    #[arg(long, default_value = "1TiB")]
    addresses: ByteSize,
    /// Bytes of log
    #[arg(long, default_value = "1GiB")]
    log_size: ByteSize,
    /// Where log and blocks are: memory, unless it is a DAX file system
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Core to measure on
    #[arg(long)]
    core: Option<usize>,
}

impl AppendArgs {
    fn check(&self) -> Result<(), Failure> {
        let usage = |text: String| Err(Failure::new(Exit::Usage, text));
        if let Some(bs) = self.bs.iter().find(|bs| !(4096..=65_536).contains(&bs.0) || !bs.0.is_power_of_two()) {
            return usage(format!("--bs {bs}: expected 4k, 8k, 16k, 32k or 64k"));
        }
        if self.addresses.0 < 256 << 20 || self.addresses.0 > 8 << 40 {
            return usage(format!("--addresses {}: expected 256MiB to 8TiB", self.addresses));
        }
        if self.log_size.0 < 64 << 20 || self.log_size.0 > 64 << 30 {
            return usage(format!("--log-size {}: expected 64MiB to 64GiB", self.log_size));
        }
        Ok(())
    }
}

pub fn run(context: &Context, args: &AppendArgs) -> Result<(), Failure> {
    args.check()?;
    let config = ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() };
    let reactors = Reactors::start_with(vec![args.core], config, END_MAX_NS);
    let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start the control thread: {error}")))?;
    let mut reports = Vec::new();
    for bs in &args.bs {
        reports.push((bs.0, runtime.block_on(measure(args, bs.0, &reactors))?));
    }
    if context.json {
        output::print_json(&to_json(args, &reports));
    } else {
        output::print_line(&to_text(&reports));
    }
    Ok(())
}

async fn measure(args: &AppendArgs, bytes: u64, reactors: &Reactors) -> Result<AppendReport, Failure> {
    let failed = |error: std::io::Error| {
        let dir = args.dir.display();
        Failure::new(Exit::Failed, format!("cannot make the log in {dir}: {error}; choose another place with --dir"))
    };
    let dir = tempfile::Builder::new().prefix("remuda-append-").tempdir_in(&args.dir).map_err(failed)?;
    let make = |name: &str| {
        let path = dir.path().join(name);
        File::options().read(true).write(true).create_new(true).open(path).map_err(failed)
    };
    let (mut file, capacity_file) = (make("log")?, make("capacity")?);
    // Without names from now on: however this program ends, its memory is given back.
    drop(dir);
    let path = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let (log, capacity) = (path(&file), path(&capacity_file));
    // Its pages exist before anything is measured.
    let zeroes = vec![0; 1 << 20];
    (0..args.log_size.0 >> 20).try_for_each(|_| file.write_all(&zeroes)).map_err(failed)?;
    let (log_bytes, capacity_bytes, samples) = (args.log_size.0 >> 20 << 20, args.addresses.0, args.samples);
    let measured = on_reactor_async(reactors.first(), move |reactor| async move {
        let options = FileDeviceOptions {
            create_bytes: Some(capacity_bytes),
            direct: false,
            ..FileDeviceOptions::new(&capacity)
        };
        let capacity = FileDevice::open(&reactor, "capacity", options).map_err(|error| error.to_string())?;
        let log = LogDevice::Mapped { path: log, bytes: log_bytes, volatile_allowed: true };
        let options = AppendOptions { log, capacity: Arc::new(capacity), bytes: bytes as usize, samples };
        measure_append(&reactor, &options).await.map_err(|error| error.to_string())
    });
    measured.await?.map_err(|error| Failure::new(Exit::Failed, error))
}

fn to_json(args: &AppendArgs, reports: &[(u64, AppendReport)]) -> Value {
    let rows = reports.iter().flat_map(|(bytes, report)| {
        report.rows.iter().map(move |row| {
            json!({
                "bs": bytes,
                "source": if row.cold { "cold" } else { "warm" },
                "append_ns": latencies(&row.append),
                "store_ns": latencies(&row.store),
                "clock_ns": report.clock_ns,
                "address_bytes": report.address_bytes,
            })
        })
    });
    json!({ "rows": rows.collect::<Vec<_>>(), "samples": args.samples, "dir": args.dir, "log_size": args.log_size.0 })
}

fn to_text(reports: &[(u64, AppendReport)]) -> String {
    let numbers = |samples: &Histogram| {
        [samples.mean().round() as u64, samples.percentile(50.0), samples.percentile(99.0), samples.max()]
            .map(output::count)
    };
    let rows = reports.iter().flat_map(|(bytes, report)| {
        report.rows.iter().map(|row| {
            let source = if row.cold { "cold" } else { "warm" };
            let mut cells = vec![ByteSize(*bytes).to_string(), source.to_string()];
            cells.extend(numbers(&row.append));
            cells.extend(numbers(&row.store));
            cells
        })
    });
    let headings = [
        "APPEND",
        "SOURCE",
        ">AVERAGE",
        ">P50",
        ">P99",
        ">MAX",
        ">STORE AVERAGE",
        ">STORE P50",
        ">STORE P99",
        ">STORE MAX",
    ];
    let mut text = output::table(&headings, rows.collect());
    if let Some((_, report)) = reports.first() {
        text += &format!(
            "\n\nns, of which the clock takes {}. An append is: find the extent, checksums, copy, fence, index (over {} of addresses); a \
             store is copy and fence alone.",
            report.clock_ns,
            ByteSize(report.address_bytes)
        );
    }
    text
}
