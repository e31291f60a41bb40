//! `remuda pool`.

use super::cache::{self, CacheArgs};
use super::exit::{Exit, Failure};
use super::flatten;
use super::pool_care::{self, CheckArgs, ForgetLogArgs, ScrubArgs};
use super::watch::Watch;
use super::{Context, output, poll, pool_top, pool_written, understood};
use crate::config::diagnostic::counted;
use crate::config::{LogDef, show_duration_ns};
use crate::node::flatten::FlattenView;
use crate::node::pool_view::{LayoutView, PoolNumbers, PoolView, ShardNumbers, WARM};
use crate::simulate::{self, SimulateArgs};
use base::ByteSize;
use clap::{ArgGroup, Args, Subcommand};
use engine::Shape;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};

/// What a pool is made of.
#[derive(Args)]
#[command(group(ArgGroup::new("log_place").required(true).args(["log", "log_pmem"])))]
pub struct CreateArgs {
    /// Name
    name: String,
    /// Device for the log: fast, 64 MiB or more
    #[arg(long, value_name = "DEVICE")]
    log: Option<String>,
    /// DAX device or file for the log
    #[arg(long, value_name = "PATH", requires = "log_size")]
    log_pmem: Option<String>,
    /// Bytes of it to use; a file that is missing is made so large
    #[arg(long, value_name = "SIZE", requires = "log_pmem")]
    log_size: Option<String>,
    /// Device that blocks end up on, 256 MiB or more
    #[arg(long, value_name = "DEVICE")]
    capacity: String,
    /// Parts that work on their own [default: by size]
    #[arg(long)]
    shards: Option<u16>,
    /// Memory for pages of the map [default: 16 MiB per TiB]
    #[arg(long, value_name = "SIZE")]
    map_cache: Option<String>,
    /// Shaped: bytes, of each hundred that are written, that may go to the log once more, to keep what is written often off
    /// the capacity device [default: 50, while writers wait for that]
    #[arg(long, value_name = "PERCENT")]
    reinsertion: Option<u16>,
    /// How blocks are placed: hot (in place), shaped (long runs alone, for QLC) or warm (in place on slow disks, whose
    /// reads are cached on flash)
    #[arg(long, value_name = "SHAPE", value_parser = ["hot", "shaped", "warm"])]
    shape: Option<String>,
    /// Shaped: percent of the capacity that volumes do not get [default: 15]
    #[arg(long, value_name = "PERCENT")]
    overprovision: Option<u8>,
    /// Shaped: writes are multiples of this, a power of two or over parity a multiple of its rows, best the drive's indirection unit
    /// [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    write_unit: Option<String>,
    /// Shaped: bytes that are written and collected as one, a power of two or over parity a multiple of the write unit [default: by
    /// size]
    #[arg(long, value_name = "SIZE")]
    band: Option<String>,
    /// Shaped: keep room on the log device for growing to a capacity device of this size [default: twice the capacity,
    /// where that takes an eighth of the log at most]
    #[arg(long, value_name = "SIZE")]
    grow_to: Option<String>,
    /// Volumes and snapshots, together, that there is room for; fixed when the pool is made [default: 16 for each GiB of capacity,
    /// 4096 at least and 65536 at most]
    #[arg(long, value_name = "N")]
    volumes_max: Option<u32>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Take devices that hold something; it is lost
    #[arg(long)]
    force: bool,
    /// Accept log memory that loses its contents with the power: for tests
    #[arg(long, requires = "log_pmem")]
    volatile: bool,
}

#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool on two devices that hold nothing
    #[command(after_help = "\
Examples:
  remuda device create log --kind file path=/dev/nvme0n1
  remuda device create big --kind file path=/dev/sdb
  remuda pool create hot --log log --capacity big
  remuda pool create hot --log-pmem /dev/dax0.0 --log-size 16GiB --capacity big
  remuda pool create warm --shape warm --log log --cache flash --write-budget 300GiB --endurance 600TiB --capacity disks
  remuda pool create cold --log log --capacity qlc --shape shaped --overprovision 20
  remuda volume create v0 --pool hot --size 1TiB")]
    Create(Box<CreateArgs>),
    /// List pools
    List,
    /// Show one pool: what it is made of, and how it is
    Show {
        /// Name
        name: String,
    },
    /// Show every number of a pool, or of all; exits with 1 when one is not open, full or in trouble
    Status {
        /// Name
        name: Option<String>,
    },
    /// Watch pools work
    Top {
        /// One pool only
        name: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Try again to open a pool that is not open
    Open {
        /// Name
        name: String,
    },
    /// Change a shaped pool while it is in use
    #[command(after_help = "\
A pool made by command keeps it; one of the configuration file starts with what that says again.

Examples:
  remuda pool set cold --reinsertion 80
  remuda pool set cold --reinsertion default")]
    Set {
        /// Name
        name: String,
        /// Bytes, of each hundred that are written, that may go to the log once more, to keep what is written often off the
        /// capacity device: 0 to 400, or 'default' (50, while writers wait for that device)
        #[arg(long, value_name = "PERCENT")]
        reinsertion: String,
    },
    /// Move everything from the log to the capacity device, and wait for it
    Settle {
        /// Name
        name: String,
    },
    /// Check a pool that is not open, with or without a node
    #[command(after_help = "\
Exit codes: 0 clean, 8 something was wrong and has been repaired, 9 something is wrong

Examples:
  remuda pool check hot                                     a pool that the running node has not opened
  remuda pool check hot --config node.toml --data           no node is running
  remuda pool check --capacity big.img --log log.img --repair")]
    Check(CheckArgs),
    /// Read every block of an open pool in the background, to find what is bad while there are backups
    #[command(after_help = "\
Examples:
  remuda pool scrub hot --rate 50MiB
  remuda pool scrub hot --status
  remuda pool scrub hot --stop")]
    Scrub(ScrubArgs),
    /// Take into use by what the capacity device has become larger, while I/O goes on
    Grow {
        /// Name
        name: String,
    },
    /// Predict from a block trace what a pool would write, absorb and cache, before there is one
    #[command(after_help = "\
Examples:
  fio --name=app --write_iolog=app.log ...          then, or: blktrace -d /dev/sda -o - | blkparse -i - > app.log
  remuda pool simulate --trace app.log --capacity 15TiB --log 400GiB --overprovision 20
  remuda pool simulate --trace app.log --capacity 15TiB --log 400GiB --drive streams --cache 64GiB,256GiB --json
  remuda pool simulate --trace app.log --capacity 100TiB --log 400GiB --shape warm --cache 4TiB --write-budget 300GiB
  blkparse -i sda | remuda pool simulate --trace - --shape hot --capacity 15TiB --log 400GiB")]
    Simulate(Box<SimulateArgs>),
    /// Give up the log of a pool after its device was lost; without --yes-lose-data, say what that would lose
    ForgetLog(ForgetLogArgs),
    /// Destroy a pool and all of its volumes
    Destroy {
        /// Name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

pub fn pool(context: &Context, command: PoolCommand) -> Result<(), Failure> {
    match command {
        PoolCommand::Create(args) => create(context, *args),
        PoolCommand::List => context.call_and_show("pool.list", json!({}), list),
        PoolCommand::Show { name } => context.call_and_show("pool.show", json!({ "name": name }), show),
        PoolCommand::Status { name } => status(context, name),
        PoolCommand::Top { name, watch } => pool_top::top(context, name, &watch),
        PoolCommand::Open { name } => context.call_and_show("pool.open", json!({ "name": name }), |pool: PoolView| {
            let recovered = pool.open.as_ref().map_or(String::new(), recovered);
            format!("pool '{}' is open: {recovered}", pool.name)
        }),
        PoolCommand::Set { name, reinsertion } => {
            let mut params = json!({ "name": name });
            if reinsertion != "default" {
                let percent: u64 = reinsertion.parse().map_err(|_| {
                    Failure::new(
                        Exit::Usage,
                        format!(
                            "--reinsertion takes 0 to {}, or 'default', not '{reinsertion}'",
                            engine::REINSERTION_PERCENT_MAX
                        ),
                    )
                })?;
                params["reinsertion"] = json!(percent);
            }
            context.call_and_show("pool.set", params, |pool: PoolView| {
                format!("pool '{}': reinsertion {}", pool.name, reinsertion_text(pool.definition.reinsertion))
            })
        }
        PoolCommand::Settle { name } => settle(context, &name),
        PoolCommand::Simulate(args) => simulate::run(context, &args),
        PoolCommand::Check(args) => pool_care::check(context, &args),
        PoolCommand::Scrub(args) => pool_care::scrub(context, &args),
        PoolCommand::Grow { name } => pool_care::grow(context, &name),
        PoolCommand::ForgetLog(args) => pool_care::forget_log(context, &args),
        PoolCommand::Destroy { name, yes } => {
            if !yes {
                confirm(context, &name)?;
            }
            let text = format!("destroyed pool '{name}'");
            context.call_and_show("pool.destroy", json!({ "name": name }), |_: Value| text)
        }
    }
}

fn create(context: &Context, args: CreateArgs) -> Result<(), Failure> {
    let CreateArgs {
        name,
        log,
        log_pmem,
        log_size,
        capacity,
        shards,
        map_cache,
        reinsertion,
        shape,
        overprovision,
        write_unit,
        band,
        grow_to,
        volumes_max,
        cache,
        force,
        volatile,
    } = args;
    let mut params = json!({ "name": name, "capacity": capacity, "force": force, "volatile": volatile });
    let is_cached = cache.add_to(&mut params, shape.as_deref())?;
    let shape = shape.filter(|shape| shape != "warm");
    let log_pmem = log_pmem.map(|path| match std::path::absolute(&path) {
        Ok(absolute) => absolute.to_string_lossy().into_owned(),
        Err(_) => path,
    });
    let texts = [
        ("log", log),
        ("log_pmem", log_pmem),
        ("log_size", log_size),
        ("map_cache", map_cache),
        ("shape", shape),
        ("write_unit", write_unit),
        ("band", band),
        ("grow_to", grow_to),
    ];
    for (key, value) in texts {
        if let Some(value) = value {
            params[key] = json!(value);
        }
    }
    if let Some(shards) = shards {
        params["shards"] = json!(shards);
    }
    if let Some(volumes) = volumes_max {
        params["volumes_max"] = json!(volumes);
    }
    if let Some(percent) = overprovision {
        params["overprovision"] = json!(percent);
    }
    if let Some(percent) = reinsertion {
        params["reinsertion"] = json!(percent);
    }
    context.call_and_show("pool.create", params, |pool: PoolView| {
        let (shards, free) = pool.open.map_or((0, 0), |open| (open.shards.len(), open.total.free_bytes));
        let on = if is_cached { format!(" behind the flash cache '{}-cache'", pool.name) } else { String::new() };
        format!("created pool '{}'{on}: {}, {} free", pool.name, counted(shards, "shard"), ByteSize(free))
    })
}

fn reinsertion_text(percent: Option<u16>) -> String {
    match percent {
        Some(0) => "never".to_string(),
        Some(percent) => format!("of up to {percent} % of what is written"),
        None => "while writers wait for the capacity device".to_string(),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub(super) fn ratio(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.2}"))
}

fn log_text(log: &LogDef) -> String {
    match log {
        LogDef::Device(name) => name.clone(),
        LogDef::Pmem { path, volatile, .. } => format!("{path}{}", if *volatile { " (volatile)" } else { "" }),
    }
}

pub(super) fn with_problems(mut text: String, pools: &[PoolView]) -> String {
    for line in pools.iter().flat_map(PoolView::problem_lines) {
        text += &format!("\n{line}");
    }
    text
}

fn list(pools: Vec<PoolView>) -> String {
    let rows = pools.iter().map(|pool| {
        let number = |text: &dyn Fn(&PoolNumbers) -> String| pool.open.as_ref().map_or("-".to_string(), text);
        vec![
            pool.name.clone(),
            pool.state.clone(),
            log_text(&pool.definition.log),
            pool.definition.capacity.clone(),
            number(&|open| open.volumes.to_string()),
            number(&|open| ByteSize(open.capacity_bytes).to_string()),
            number(&|open| ByteSize(open.total.free_bytes).to_string()),
            number(&|open| percent(open.total.log_fill)),
            number(&|open| ByteSize(open.total.dirty_bytes).to_string()),
            format!("{:?}", pool.origin).to_lowercase(),
        ]
    });
    let headings = ["NAME", "STATE", "LOG", "CAPACITY", ">VOLUMES", ">SIZE", ">FREE", ">LOG FILL", ">DIRTY", "ORIGIN"];
    with_problems(output::table(&headings, rows.collect()), &pools)
}

fn recovered(open: &PoolNumbers) -> String {
    let (records, time) = (output::count(open.recovered_records), show_duration_ns(open.recovered_ns));
    format!("{records} records replayed in {time}, {} blocks in the log", output::count(open.recovered_blocks))
}

pub(super) fn estimate(replay_ns: Option<u64>) -> String {
    replay_ns.map_or("-".to_string(), |ns| format!("about {}", show_duration_ns(ns)))
}

fn lost_with_log(open: &PoolNumbers) -> String {
    let growth = match open.forget_log_growth_bytes {
        0 => String::new(),
        bytes => format!(
            "; to give it up, the capacity device would have to be {} larger: what is lost of thin volumes is noted in extents that \
             there are not",
            ByteSize(bytes)
        ),
    };
    match open.total.dirty_slices {
        None => "would be the pool lost: mirror the log device".to_string(),
        Some(0) => "would take nothing".to_string(),
        Some(slices) => format!("would take up to {} slices of 64 MiB{growth}", output::count(slices)),
    }
}

/// How it is made, or would be.
fn shape(pool: &PoolView) -> String {
    match &pool.open {
        Some(open) => layout(&open.layout, pool.cache.as_deref()),
        None => {
            let shape = match (pool.definition.placement.shape(), &pool.cache) {
                (Shape::Hot, Some(_)) => WARM,
                (shape, _) => shape.name(),
            };
            format!("{shape}, as it is defined")
        }
    }
}

fn layout(layout: &LayoutView, cache: Option<&str>) -> String {
    let mut text = layout.shape.clone();
    if let (Some(band), Some(unit)) = (layout.band_bytes, layout.write_unit_bytes) {
        text += &format!(": bands of {}, written in units of {}", ByteSize(band), ByteSize(unit));
    } else if cache.is_some() {
        text += ": in place";
    }
    if let Some(row) = layout.row_bytes {
        text += &format!(", rows of {}", ByteSize(row));
    }
    if let Some(members) = layout.parity_members {
        text += &format!(" on {} of {members} members, parity on the other one", members.saturating_sub(1));
    }
    if let Some(cache) = cache {
        text += &format!(", reads cached on '{cache}'");
    }
    text
}

fn facts(pool: &PoolView) -> String {
    let mut facts = vec![
        ("name", pool.name.clone()),
        ("state", pool.state.clone()),
        ("log", log_text(&pool.definition.log)),
        ("capacity", pool.definition.capacity.clone()),
        ("shape", shape(pool)),
        ("origin", format!("{:?}", pool.origin).to_lowercase()),
    ];
    facts.extend(pool.forgetting.map(|steps| ("giving up its log", steps.words())));
    if let Some(open) = &pool.open {
        let total = &open.total;
        let (size, free) = (ByteSize(open.capacity_bytes), ByteSize(total.free_bytes));
        let log = |numbers: &ShardNumbers| {
            let (fill, size) = (percent(numbers.log_fill), ByteSize(numbers.log_bytes));
            format!("{fill} of {size} in use, {} dirty", ByteSize(numbers.dirty_bytes))
        };
        facts.extend([
            ("uuid", open.uuid.to_string()),
            (
                "volumes",
                format!(
                    "{}, {} snapshots, room for {} in all",
                    output::count(open.volumes as u64),
                    output::count(open.snapshots as u64),
                    output::count(open.volumes_max)
                ),
            ),
            ("being deleted", format!("{}, which have {} extents", open.going, output::count(open.going_extents))),
            (
                "provisioned",
                format!(
                    "{} by volumes; {} allocated, with their snapshots",
                    ByteSize(open.provisioned_bytes),
                    ByteSize(open.allocated_bytes)
                ),
            ),
            ("space", format!("{free} free of {size} ({} of {} extents)", total.free_extents, total.extents)),
            (
                "not used",
                match &open.unused_why {
                    Some(why) => format!("{}: {why}", ByteSize(open.unused_bytes)),
                    None => format!("{}: remuda pool grow {}", ByteSize(open.unused_bytes), pool.name),
                },
            ),
            ("unusable extents", output::count(total.unusable_extents)),
            ("bands", bands(total)),
            ("gc debt", pool_written::debt(total)),
            ("reinsertion", reinsertion_text(pool.definition.reinsertion)),
            ("log fill", log(total)),
            ("write amplification", pool_written::amplification(open)),
            ("copied by flattening", ByteSize(total.flattened_bytes).to_string()),
            ("opened", recovered(open)),
            ("repaired copies", format!("{} of superblocks or catalog, when it was opened", open.repaired_copies)),
            (
                "a crash now",
                format!(
                    "{} records to replay, {}",
                    output::count(total.replay_records),
                    estimate(total.recovery_estimate_ns)
                ),
            ),
            ("a lost log now", lost_with_log(open)),
            (
                "blocks",
                format!(
                    "since it was opened: {} lost, {} failed their checksum, {} healed",
                    total.lost_blocks, total.corrupt_blocks, total.healed_blocks
                ),
            ),
            ("lost", format!("{}: 'remuda pool scrub {}' lists it", total.lost_text(), pool.name)),
            (
                "waiting writes",
                format!("{} now, {} since it was opened", total.waiting_writes, output::count(total.waits)),
            ),
            (
                "disks",
                format!("{}, of which hosts read {} that destage leaves alone for now", total.disks, total.read_disks),
            ),
            ("scrub", pool_care::scrub_line(&open.scrub)),
            ("memory", ByteSize(total.memory_bytes).to_string()),
        ]);
        if open.unused_bytes < pool_care::UNUSED_TOLD {
            facts.retain(|(name, _)| *name != "not used");
        }
        if total.lost_bytes + total.uncounted_lost_extents == 0 {
            facts.retain(|(name, _)| *name != "lost");
        }
        if total.disks == 0 {
            facts.retain(|(name, _)| *name != "disks");
        }
        if total.flattened_bytes == 0 {
            facts.retain(|(name, _)| *name != "copied by flattening");
        }
        if open.repaired_copies == 0 {
            facts.retain(|(name, _)| *name != "repaired copies");
        }
        let flattening = |view: &FlattenView| format!("volume '{}': {}", view.volume, flatten::line(view));
        facts.extend(open.flattening.iter().map(|view| ("flattening", flattening(view))));
        if open.going == 0 {
            facts.retain(|(name, _)| *name != "being deleted");
        }
        if total.bands == 0 {
            facts.retain(|(name, _)| !matches!(*name, "bands" | "gc debt" | "reinsertion"));
        }
        if open.settling {
            facts.push(("settling", format!("{} left", ByteSize(total.dirty_bytes))));
        }
    }
    facts.extend(pool.flash_cache.as_ref().map(cache::facts).unwrap_or_default());
    let mut text = output::facts(&facts);
    for problem in &pool.problems {
        text += &format!("\nproblem: {problem}");
    }
    text
}

/// How the bands of a shaped pool are used.
fn bands(numbers: &ShardNumbers) -> String {
    let ShardNumbers { bands, free_bands, pending_bands, retired_bands, .. } = numbers;
    let valid = numbers.band_valid_share.map_or("-".to_string(), percent);
    let (collected, padding) = (ByteSize(numbers.collected_bytes), ByteSize(numbers.padding_bytes));
    let reinserted = ByteSize(numbers.reinserted_bytes);
    format!(
        "{free_bands} free of {bands}, {pending_bands} free with the next checkpoint, {retired_bands} retired; {valid} of the \
         blocks valid; {collected} collected, {padding} of headers and padding, {reinserted} reinserted into the log"
    )
}

fn show(pool: PoolView) -> String {
    match &pool.open {
        Some(open) => format!("{}\n\n{}", facts(&pool), pool_written::tables(open)),
        None => facts(&pool),
    }
}

fn shards(open: &PoolNumbers) -> String {
    let rows = open.shards.iter().enumerate().map(|(number, shard)| {
        vec![
            number.to_string(),
            percent(shard.log_fill),
            ByteSize(shard.dirty_bytes).to_string(),
            format!("{} of {}", shard.free_extents, shard.extents),
            ByteSize(shard.user_write_bytes).to_string(),
            ratio(shard.log_amplification),
            ratio(shard.capacity_amplification),
            output::count(shard.replay_records),
            output::count(shard.checkpoints),
            output::count(shard.waits),
            shard.log_trouble.as_ref().or(shard.trouble.as_ref()).cloned().unwrap_or("-".to_string()),
        ]
    });
    let headings = [
        ">SHARD",
        ">LOG FILL",
        ">DIRTY",
        ">FREE EXTENTS",
        ">WRITTEN",
        ">WA LOG",
        ">WA CAPACITY",
        ">REPLAY",
        ">CHECKPOINTS",
        ">WAITS",
        "TROUBLE",
    ];
    output::table(&headings, rows.collect())
}

/// A pool, or all of them: as the node tells it, and understood.
pub(super) fn fetch(context: &Context, name: &Option<String>) -> Result<(Value, Vec<PoolView>), Failure> {
    let raw = match name {
        Some(name) => Value::Array(vec![context.call("pool.show", json!({ "name": name }))?]),
        None => context.call("pool.list", json!({}))?,
    };
    let pools = understood(raw.clone())?;
    Ok((raw, pools))
}

fn status(context: &Context, name: Option<String>) -> Result<(), Failure> {
    let show = |pools: &Vec<PoolView>| {
        if pools.is_empty() {
            return "no pools; 'remuda pool create --help' has examples".to_string();
        }
        let texts = pools.iter().map(|pool| match &pool.open {
            Some(open) => format!("{}\n\n{}\n\n{}", facts(pool), pool_written::tables(open), shards(open)),
            None => facts(pool),
        });
        texts.collect::<Vec<_>>().join("\n\n")
    };
    let (raw, pools) = fetch(context, &name)?;
    context.judge(&raw, &pools, show, |pools| pools.iter().all(PoolView::is_well))
}

fn settle(context: &Context, name: &str) -> Result<(), Failure> {
    let first = context.call("pool.settle", json!({ "name": name }))?;
    let is_over = |pool: &PoolView| pool.open.as_ref().is_none_or(|open| !open.settling);
    let (raw, pool) = poll::until_told(context, first, ("pool.show", json!({ "name": name })), is_over)?;
    if pool.open.is_none() {
        return Err(Failure::new(Exit::Failed, format!("pool '{name}' was closed meanwhile")));
    }
    let failed = pool.problems.iter().find(|problem| problem.starts_with("the last settle failed"));
    if let Some(problem) = failed {
        return Err(Failure::new(Exit::Failed, format!("pool '{name}': {problem}")));
    }
    if context.json {
        output::print_json(&raw);
    } else {
        output::print_line(&format!("pool '{name}' is settled: nothing is in the log alone"));
    }
    Ok(())
}

/// Asks for the pool's name before it is destroyed.
fn confirm(context: &Context, name: &str) -> Result<(), Failure> {
    let (_, pools) = fetch(context, &Some(name.to_string()))?;
    let volumes = match pools.first().and_then(|pool| pool.open.as_ref()) {
        Some(open) => {
            format!("its {} volumes, in which {} are allocated", open.volumes, ByteSize(open.allocated_bytes))
        }
        None => "its volumes, of which the node does not know now how many there are".to_string(),
    };
    if context.json || !std::io::stdin().is_terminal() {
        let message = format!("this destroys pool '{name}' and {volumes}; add --yes if that is meant");
        return Err(Failure::new(Exit::Usage, message));
    }
    eprint!("This destroys pool '{name}' and {volumes}. Type the pool's name to go on: ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    if answer.trim() == name { Ok(()) } else { Err(Failure::new(Exit::Failed, "nothing was destroyed")) }
}
