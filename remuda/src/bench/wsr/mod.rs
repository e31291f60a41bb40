//! `remuda bench wsr-table`: the ten rows of the write-shaping paper, and one more, on a modelled QLC drive, in virtual time.
//!
//! The drive is the model of `bdev::model_ssd`, the cache drive a model too, the host's cores servers with a cost per
//! request. The shaped pool is the engine's. Nothing here depends on the machine but what that pool costs the host, which is
//! measured unless it is given: the same parameters give the same numbers. What is compared with what, and with how much flash, is
//! beside every number.

mod cost;
mod disk;
mod figure;
mod host;
mod ocf;
mod places;
mod pool;
mod report;
mod rows;
mod run;
mod shaping;
mod sparse;
mod stack;

use crate::cli::exit::{Exit, Failure};
use crate::cli::out_file::{Existing, Readers, write_whole};
use crate::cli::{Context, output};
use base::ByteSize;
use clap::Args;
use host::{Cores, HostCost};
use indicatif::{ProgressBar, ProgressStyle};
use rows::ROWS;
use run::{Conditions, Measured, RunError};
use stack::{Column, Setting, Sizes};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Args)]
pub struct WsrArgs {
    /// Divides the sizes of everything (16 GiB of the user, superblocks, chunks of the log): 1, 2, 4, 8 or 16
    #[arg(long, default_value_t = 4, value_parser = parse_scale)]
    scale: u64,
    /// Rows to run, 11 is 4 KiB zipf 1.2 [default: all]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=11))]
    rows: Vec<u64>,
    /// Indirection unit of the drive: 4KiB to 64KiB
    #[arg(long, default_value = "64KiB")]
    unit: ByteSize,
    /// CPU time of a request of the policy model of shaping on its one core, ns
    #[arg(long, default_value_t = Column::Shaping.host_cost().request_ns)]
    host_ns: u64,
    /// And for each of its blocks of 4 KiB, ns
    #[arg(long, default_value_t = Column::Shaping.host_cost().block_ns)]
    host_block_ns: u64,
    /// CPU time of a request of the shaped pool, ns [default: measured]
    #[arg(long, requires_all = ["pool_block_ns", "pool_band_ns"])]
    pool_ns: Option<u64>,
    /// And for each of its blocks of 4 KiB, ns [default: measured]
    #[arg(long, requires = "pool_ns")]
    pool_block_ns: Option<u64>,
    /// And for each block that the pool writes to its bands, ns: destage and collection [default: measured]
    #[arg(long, requires = "pool_ns")]
    pool_band_ns: Option<u64>,
    /// Cores of the shaped pool, each with a shard of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=8))]
    pool_cores: u16,
    /// Bytes that the shaped pool may write to its log once more, for each hundred of users', to keep what is written often off the
    /// drive [default: 50, while writers wait for that]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=engine::REINSERTION_PERCENT_MAX as i64))]
    pool_reinsertion: Option<u32>,
    /// Writes come at a fixed rate, evenly spaced, so many MB/s (10^6) of all jobs together [default: as fast as they end]
    #[arg(long, value_name = "MB/S", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate: Option<u64>,
    /// How much flash there is, and as what [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    setting: Vec<Setting>,
    /// Stacks to run [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    stack: Vec<Column>,
    /// Threads [default: all cores]; the numbers do not depend on it
    #[arg(long)]
    threads: Option<usize>,
    /// Write the figure to a file, which is replaced if it exists
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn parse_scale(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(scale @ (1 | 2 | 4 | 8 | 16)) => Ok(scale),
        _ => Err(format!("'{text}' is none of 1, 2, 4, 8 and 16")),
    }
}

/// A row on a stack.
pub struct Cell {
    pub row: usize,
    pub setting: Setting,
    pub column: Column,
    pub measured: Measured,
}

/// What requests cost on each stack that is run.
pub struct Hosts {
    of: Vec<(Column, HostCost)>,
    /// That of the pool was measured.
    pub is_measured: bool,
}

impl Hosts {
    pub fn columns(&self) -> impl Iterator<Item = Column> + '_ {
        self.of.iter().map(|(column, _)| *column)
    }

    pub fn of(&self, column: Column) -> HostCost {
        self.of.iter().find(|(other, _)| *other == column).map_or(column.host_cost(), |(_, cost)| *cost)
    }
}

impl WsrArgs {
    fn hosts(&self) -> Result<Hosts, RunError> {
        let columns = Column::ALL.into_iter().filter(|column| self.stack.is_empty() || self.stack.contains(column));
        let mut hosts = Hosts { of: Vec::new(), is_measured: self.pool_ns.is_none() };
        for column in columns {
            let given = (self.pool_ns, self.pool_block_ns, self.pool_band_ns);
            let cores = Cores::Shared(self.pool_cores);
            let cost = match (column, given) {
                (Column::Shaping, _) => {
                    HostCost { request_ns: self.host_ns, block_ns: self.host_block_ns, ..column.host_cost() }
                }
                (Column::Pool, (Some(request_ns), Some(block_ns), Some(band_block_ns))) => {
                    HostCost { request_ns, block_ns, band_block_ns, cores }
                }
                (Column::Pool, _) => HostCost { cores, ..cost::measure_host_cost()? },
                (other, _) => other.host_cost(),
            };
            hosts.of.push((column, cost));
        }
        Ok(hosts)
    }

    fn sizes(&self) -> Sizes {
        Sizes::of(self.scale, self.unit.0)
    }
}

pub fn run(context: &Context, args: &WsrArgs) -> Result<(), Failure> {
    if ![4, 8, 16, 32, 64].contains(&(args.unit.0 >> 10)) || !args.unit.0.is_power_of_two() {
        let text = format!("--unit {}: expected 4KiB, 8KiB, 16KiB, 32KiB or 64KiB", args.unit);
        return Err(Failure::new(Exit::Usage, text));
    }
    let hosts = args.hosts().map_err(failure)?;
    let wanted = |number: u64| args.rows.is_empty() || args.rows.contains(&number);
    let plan: Vec<(usize, Setting, Column)> = Setting::ALL
        .into_iter()
        .filter(|setting| args.setting.is_empty() || args.setting.contains(setting))
        .flat_map(|setting| (0..ROWS.len()).map(move |row| (setting, row)))
        .filter(|(_, row)| wanted(ROWS[*row].number))
        .flat_map(|(setting, row)| hosts.columns().map(move |column| (row, setting, column)))
        .collect();
    let cells = run_all(context, args, &hosts, &plan)?;
    if let Some(path) = &args.svg {
        write_whole(path, figure::draw(&cells).as_bytes(), Existing::Replace, Readers::Umask)?;
    }
    if context.json {
        output::print_json(&report::to_json(args, &hosts, &cells));
    } else {
        output::print_line(&report::to_text(args, &hosts, &cells));
    }
    Ok(())
}

fn failure(error: RunError) -> Failure {
    match error {
        RunError::Interrupted => Failure::quiet(Exit::Interrupted),
        RunError::Failed(text) => Failure::new(Exit::Failed, text),
    }
}

/// Every cell is a world of its own, so threads share nothing but the list of what is left.
fn run_all(
    context: &Context,
    args: &WsrArgs,
    hosts: &Hosts,
    plan: &[(usize, Setting, Column)],
) -> Result<Vec<Cell>, Failure> {
    let interrupt = Arc::new(AtomicBool::new(false));
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGINT, interrupt.clone());
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, interrupt.clone());
    let show = !context.json && std::io::stderr().is_terminal();
    let bar = if show { ProgressBar::new(plan.len() as u64) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{elapsed} {wide_bar} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let (next, sizes) = (AtomicUsize::new(0), args.sizes());
    let results: Mutex<Vec<(usize, Result<Measured, RunError>)>> = Mutex::default();
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, 64).min(plan.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((row, setting, column)) = plan.get(index).copied() else { return };
                    bar.set_message(format!("row {}, {}, {}", ROWS[row].number, column.name(), setting.name()));
                    let (host, rate) = (hosts.of(column), args.rate.map(|rate| rate * 1_000_000));
                    let conditions =
                        Conditions { column, setting, sizes, host, rate, reinsertion: args.pool_reinsertion };
                    let outcome = run::run(&ROWS[row], conditions, interrupt.clone());
                    if outcome.is_err() {
                        next.store(plan.len(), Ordering::Relaxed);
                    }
                    bar.inc(1);
                    results.lock().expect("nothing panics while holding it").push((index, outcome));
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut results = results.into_inner().expect("nothing panics while holding it");
    results.sort_by_key(|(index, _)| *index);
    let cell = |(index, outcome): (usize, Result<Measured, RunError>)| {
        let (row, setting, column) = plan[index];
        match outcome {
            Ok(measured) => Ok(Cell { row, setting, column, measured }),
            Err(RunError::Failed(error)) => {
                let place = format!("row {} on {} ({})", ROWS[row].number, column.name(), setting.name());
                Err(failure(RunError::Failed(format!("{place}: {error}"))))
            }
            Err(interrupted) => Err(failure(interrupted)),
        }
    };
    results.into_iter().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(number: u64, column: Column, setting: Setting) -> Measured {
        measure_at(number, column, setting, None)
    }

    fn measure_at(number: u64, column: Column, setting: Setting, rate: Option<u64>) -> Measured {
        let host = HostCost { band_block_ns: 300, ..column.host_cost() };
        let conditions = Conditions { column, setting, sizes: Sizes::of(16, 64 << 10), host, rate, reinsertion: None };
        run::run(&ROWS[number as usize - 1], conditions, Arc::default()).expect("the row runs")
    }

    #[test]
    fn a_row_gives_the_same_numbers_every_time() {
        let once = || {
            let measured = measure(2, Column::Drive, Setting::EqualFlash);
            (measured.window_ns, measured.nand_bytes, measured.user_write_bytes, measured.write_ns.max())
        };
        assert_eq!(once(), once());
    }

    #[test]
    fn shaping_makes_large_writes_of_small_ones_and_never_programs_less_than_it_writes() {
        for setting in Setting::ALL {
            let (drive, shaped) = (measure(6, Column::Drive, setting), measure(6, Column::Shaping, setting));
            let rate = |measured: &Measured| measured.rate(measured.user_write_bytes, 8);
            assert!(rate(&shaped) > 10.0 * rate(&drive), "{} against {}", rate(&shaped), rate(&drive));
            assert!(shaped.fast_bytes >= shaped.user_write_bytes, "everything goes through the log");
            // But for what is in the drive's buffer, and in pages of zones that are not full, when the window ends.
            let (nand, written) = (shaped.nand_bytes, shaped.device_write_bytes);
            let model = bdev::SsdModel::qlc(16 << 30, 0);
            let buffered = u64::from(model.buffer_pages) * model.page_bytes;
            assert!(nand + buffered >= written, "{nand} bytes programmed of {written}, {}", setting.name());
            assert!(drive.per_user_byte(drive.nand_bytes) > 16.0, "a 4 KiB write programs a whole unit");
        }
    }

    #[test]
    fn the_shaped_pool_beats_its_drive_with_the_same_flash() {
        let (drive, pool) =
            (measure(6, Column::Drive, Setting::EqualFlash), measure(6, Column::Pool, Setting::EqualFlash));
        let rate = |measured: &Measured| measured.rate(measured.user_write_bytes, 8);
        assert!(rate(&pool) > 1.5 * rate(&drive), "{} against {}", rate(&pool), rate(&drive));
        assert!(pool.drive_amplification() < 1.1, "streams keep bands together: {}", pool.drive_amplification());
        assert!(pool.nand_bytes * 8 < pool.user_write_bytes * 32, "a fraction of what the drive alone programs");
        assert!(pool.fast_bytes >= pool.user_write_bytes, "everything goes through the log");
    }

    #[test]
    fn the_shaped_pool_takes_turns_on_a_drive_that_keeps_nothing_apart_and_it_adds_little() {
        let pool = measure(3, Column::Pool, Setting::Published);
        assert!(pool.drive_amplification() < 1.15, "{}", pool.drive_amplification());
    }

    #[test]
    fn the_shaped_pool_runs_on_zones_with_a_tenth_more_flash_and_the_drive_adds_nothing() {
        let pool = measure(2, Column::Pool, Setting::Zones);
        assert!(pool.raw_bytes * 100 < (1 << 30) * 111, "{} bytes", pool.raw_bytes);
        assert!(pool.drive_amplification() < 1.02, "{}", pool.drive_amplification());
        assert!(pool.host_utilisation > 0.0 && pool.host_utilisation <= 1.0);
    }

    #[test]
    fn a_pool_of_two_cores_has_two_shards_and_shares_its_work_among_them() {
        // Slow enough that the drive and its collection hardly matter; random, so that both have something to do all the time.
        let host = |cores| HostCost { request_ns: 20_000, block_ns: 0, band_block_ns: 0, cores: Cores::Shared(cores) };
        let [one, two] = [1, 2].map(|cores| {
            let sizes = Sizes::of(16, 64 << 10);
            let (column, setting) = (Column::Pool, Setting::EqualFlash);
            let conditions = Conditions { column, setting, sizes, host: host(cores), rate: None, reinsertion: None };
            run::run(&ROWS[5], conditions, Arc::default()).expect("the row runs")
        });
        let rate = |measured: &Measured| measured.rate(measured.user_write_bytes, 8);
        assert!(rate(&two) > 1.5 * rate(&one), "{} against {}", rate(&two), rate(&one));
    }

    #[test]
    fn at_a_fixed_rate_writes_come_as_fast_as_they_should_and_wait_less() {
        let rate = 300_000_000;
        let (full, fixed) = (
            measure(6, Column::Shaping, Setting::EqualFlash),
            measure_at(6, Column::Shaping, Setting::EqualFlash, Some(rate)),
        );
        let achieved = fixed.rate(fixed.user_write_bytes, 1) * 1e6 / rate as f64;
        assert!((0.98..1.02).contains(&achieved), "{achieved}");
        assert!(fixed.die_utilisation < full.die_utilisation);
        assert!(fixed.write_ns.percentile(99.0) < full.write_ns.percentile(99.0));
    }

    #[test]
    fn reads_are_measured_alone_and_beside_writes() {
        let drive = measure(7, Column::Drive, Setting::EqualFlash);
        let [before, after] = drive.idle_reads.expect("the row reads");
        let beside = drive.user_read_bytes as f64 * 1e9 / drive.window_ns as f64;
        assert!(beside < before && beside < after, "{beside} of {before} and {after}");
        assert!(drive.die_utilisation > 0.5 && drive.die_utilisation <= 1.01, "{}", drive.die_utilisation);
        assert_eq!(measure(6, Column::Drive, Setting::EqualFlash).idle_reads, None);
    }

    #[test]
    fn the_policy_goes_on_with_small_bands() {
        let shaped = measure(10, Column::Shaping, Setting::Published);
        assert!(shaped.user_write_bytes > 0 && shaped.user_read_bytes > 0);
    }

    #[test]
    fn a_cache_that_is_written_in_place_absorbs_what_is_hot() {
        let cold = measure(2, Column::InPlace, Setting::Published);
        let hot = measure(4, Column::InPlace, Setting::Published);
        assert!(hot.device_write_bytes < hot.user_write_bytes / 2);
        assert!(cold.device_write_bytes > cold.user_write_bytes * 8 / 10);
    }
}
