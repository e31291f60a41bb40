//! `remuda pool check`, `scrub`, `grow` and `forget-log`: what an operator does when something is, or may be, wrong.

use super::exit::{Exit, Failure};
use super::{Context, output, poll, understood};
use crate::clock::timestamp;
use crate::node::pool_check::{CheckProgress, CheckView, Checked, FindingView, Verdict, check_on};
use crate::node::pool_view::PoolView;
use crate::node::scrub_view::{BadHeaderView, BadMetadataView, ScrubState, ScrubView};
use crate::node::{ForgetLogProgress, LogLoss, Opener, UnfoundView};
use crate::offline::{Offline, RestingDevices, RestingPool};
use base::ByteSize;
use bdev::OpenFor;
use clap::{ArgGroup, Args};
use engine::CheckOptions;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often it is told how far something is where nobody sees a line that changes.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Findings of one kind that are shown for people; the others of it are counted.
const SHOWN_ALIKE: usize = 20;
/// Runs of bad blocks that are shown; all that are known are in the JSON.
const BAD_SHOWN_MAX: usize = 20;

#[derive(Args)]
#[command(group(ArgGroup::new("which").required(true).multiple(true).args(["name", "capacity"])))]
pub struct CheckArgs {
    /// The pool; not needed with --capacity
    name: Option<String>,
    /// Check without a node, on the devices that this configuration file names
    #[arg(long, value_name = "FILE", conflicts_with = "capacity")]
    config: Option<String>,
    /// Check without a node: the file or drive that blocks end up on
    #[arg(long, value_name = "PATH")]
    capacity: Option<String>,
    /// The file or drive that the log is on
    #[arg(long, value_name = "PATH", requires = "capacity")]
    log: Option<String>,
    /// Restore copies from valid copies, give back the space of volumes that there are not, and give up table pages that
    /// neither of their places has: whatever of a volume these may have described is lost (a check without this names it)
    #[arg(long)]
    repair: bool,
    /// Repair although a part of a mirror, of a parity device or of a flash cache below the pool is absent. It is given up, as by a
    /// node that starts without it
    #[arg(long, requires_all = ["repair", "config"])]
    degraded: bool,
    /// Verify what every log record carries
    #[arg(long)]
    payloads: bool,
    /// Read and verify every block of every volume
    #[arg(long)]
    data: bool,
}

#[derive(Args)]
pub struct ScrubArgs {
    /// Name
    name: String,
    /// Bytes to read each second, at most [default: 100MiB]
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["stop", "status"])]
    rate: Option<ByteSize>,
    /// Stop it; the next one goes on from there
    #[arg(long, conflicts_with = "status")]
    stop: bool,
    /// Only say how far it is and what it has found
    #[arg(long)]
    status: bool,
    /// Wait until it has ended; exits with 9 when blocks are bad
    #[arg(long, conflicts_with = "stop")]
    wait: bool,
}

#[derive(Args)]
pub struct ForgetLogArgs {
    /// Name
    name: String,
    /// The device that is the log from now on [default: the one in the pool's definition]
    #[arg(long, value_name = "DEVICE", conflicts_with = "log_pmem")]
    log: Option<String>,
    /// DAX device or file for the log
    #[arg(long, value_name = "PATH", requires = "log_size")]
    log_pmem: Option<String>,
    /// Bytes of it to use
    #[arg(long, value_name = "SIZE", requires = "log_pmem")]
    log_size: Option<String>,
    /// Accept log memory that loses its contents with the power: for tests
    #[arg(long, requires = "log_pmem")]
    volatile: bool,
    /// Take a device that holds something, or give up a log that can be read
    #[arg(long)]
    force: bool,
    /// Do it: what is newest in the old log is lost
    #[arg(long)]
    yes_lose_data: bool,
    /// Only say how far it is, or what it took
    #[arg(long, conflicts_with_all = ["log", "log_pmem", "force", "yes_lose_data"])]
    status: bool,
}

pub fn check(context: &Context, args: &CheckArgs) -> Result<(), Failure> {
    let options = CheckOptions { payloads: args.payloads, data: args.data, repair: args.repair };
    let purpose = if args.repair { OpenFor::Use } else { OpenFor::Inspect };
    let report = match (&args.name, &args.config, &args.capacity) {
        (Some(name), None, None) => check_by_node(context, name, options)?,
        (Some(name), Some(config), _) => {
            let pool = RestingPool::find(name, config)?;
            let offline = Offline::start()?;
            let opener = Opener { start_degraded: args.degraded, ..offline.opener(purpose) };
            offline.block_on(async {
                let devices = RestingDevices::open(&pool, &opener).await?;
                check_resting(&opener, Some(name.clone()), devices, options).await
            })?
        }
        (name, _, Some(capacity)) => {
            let offline = Offline::start()?;
            offline.block_on(async {
                let opener = offline.opener(purpose);
                let devices = RestingDevices::open_paths(capacity, args.log.as_deref(), &opener).await?;
                check_resting(&opener, name.clone(), devices, options).await
            })?
        }
        (None, ..) => return Err(Failure::new(Exit::Usage, "name the pool, or its devices with --capacity and --log")),
    };
    if context.json {
        output::print_json(&serde_json::to_value(&report).expect("a report serialises"));
    } else {
        output::print_line(&check_text(&report, args));
    }
    match report.verdict {
        Verdict::Clean => Ok(()),
        Verdict::Repaired => Err(Failure::quiet(Exit::Repaired)),
        Verdict::Degraded | Verdict::Damaged => Err(Failure::quiet(Exit::Damaged)),
    }
}

fn check_by_node(context: &Context, name: &str, options: CheckOptions) -> Result<CheckView, Failure> {
    let params = json!({
        "name": name, "repair": options.repair, "payloads": options.payloads, "data": options.data,
    });
    context.call("pool.check", params).map_err(|failure| match failure.exit {
        Exit::Unreachable => {
            let hint = format!("{}; without a node: remuda pool check {name} --config FILE", failure.message);
            Failure::new(Exit::Unreachable, hint)
        }
        _ => failure,
    })?;
    let ask = || {
        let progress: CheckProgress = understood(context.call("pool.check_report", json!({ "name": name }))?)?;
        Ok(progress.report.filter(|_| !progress.running))
    };
    let report = poll::until(ask, Option::is_some)?;
    Ok(report.expect("it is over when there is a report"))
}

async fn check_resting(
    opener: &Opener,
    name: Option<String>,
    devices: RestingDevices,
    options: CheckOptions,
) -> Result<CheckView, Failure> {
    if let Err(refusal) = &devices.log {
        eprintln!("checking without the log: {refusal}");
    }
    let (log, lacking) = (devices.log.clone().ok(), devices.lacking());
    let what = Checked { name, capacity: devices.capacity.clone(), log, lacking };
    let checked = check_on(&opener.reactor, what, options).await;
    let closed = devices.close(opener).await;
    let report = checked?;
    closed?;
    Ok(report)
}

/// Findings that a repair would put right.
fn repairable(report: &CheckView) -> u64 {
    report.findings.iter().filter(|finding| !finding.repaired && finding.advice.contains("repair it")).count() as u64
}

/// A line for each finding, but for those that only say of more places what others say.
fn finding_lines(findings: &[FindingView]) -> Vec<String> {
    let mut alike: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut lines = Vec::new();
    for finding in findings {
        let count = alike.entry((&finding.severity, &finding.advice)).or_default();
        *count += 1;
        if *count <= SHOWN_ALIKE {
            lines.push(finding.text.clone());
        }
    }
    for ((severity, advice), count) in alike.into_iter().filter(|(_, count)| *count > SHOWN_ALIKE) {
        let (more, what) = (output::count((count - SHOWN_ALIKE) as u64), if advice.is_empty() { "" } else { ": " });
        lines.push(format!("and {more} more of this kind, which --json lists ({severity}{what}{advice})"));
    }
    lines
}

fn check_text(report: &CheckView, args: &CheckArgs) -> String {
    let repair = args.repair;
    let count = |key: &str| output::count(report.counts[key].as_u64().unwrap_or(0));
    let mut lines = finding_lines(&report.findings);
    if report.findings_left_off > 0 {
        lines.push(format!("and {} findings more", output::count(report.findings_left_off)));
    }
    let name = report.pool.as_ref().map_or("no pool".to_string(), |name| format!("pool '{name}'"));
    lines.push(format!(
        "{name}: looked at {} superblocks, {} volumes, {} roots, {} extents, {} map pages, {} log records",
        count("superblocks"),
        count("volumes"),
        count("roots"),
        count("extents"),
        count("map_pages"),
        count("records"),
    ));
    let read = report.counts["data_blocks"].as_u64().unwrap_or(0);
    if read > 0 || count("corrupt_blocks") != "0" {
        lines.push(format!(
            "{} blocks of volumes are good, {} are not, {} are known to be lost",
            count("data_blocks"),
            count("corrupt_blocks"),
            count("lost_blocks")
        ));
    }
    if count("stripes") != "0" || count("damaged_headers") != "0" {
        lines.push(format!(
            "{} headers of stripes are good, {} are damaged while blocks are in use there",
            count("stripes"),
            count("damaged_headers")
        ));
    }
    lines.push(match report.verdict {
        Verdict::Clean if !args.data => format!("{name} is clean, as far as was read: --data reads the data, too"),
        Verdict::Clean => format!("{name} is clean"),
        Verdict::Repaired => format!("{name} was repaired"),
        Verdict::Degraded => format!("{name} is whole, and a device below it is degraded: see above"),
        Verdict::Damaged if report.pool.is_none() => {
            "no pool was looked at: put right first what is said above".to_string()
        }
        Verdict::Damaged if !repair && report.findings_left_off + repairable(report) > 0 => {
            format!("{name} is damaged; --repair puts right what says 'repair it', and nothing else")
        }
        Verdict::Damaged => format!("{name} is damaged"),
    });
    lines.join("\n")
}

pub fn scrub(context: &Context, args: &ScrubArgs) -> Result<(), Failure> {
    let name = json!({ "name": args.name });
    let first = match (args.stop, args.status, args.rate) {
        (true, ..) => context.call("pool.scrub_stop", name.clone())?,
        (_, true, _) => context.call("pool.scrub_status", name.clone())?,
        (_, _, Some(rate)) => context.call("pool.scrub", json!({ "name": args.name, "rate": rate.0 }))?,
        (_, _, None) => context.call("pool.scrub", name.clone())?,
    };
    let is_over = |scrub: &ScrubView| !args.wait || scrub.state != ScrubState::Running;
    let (raw, scrub) = poll::until_told(context, first, ("pool.scrub_status", name), is_over)?;
    if context.json {
        output::print_json(&raw);
    } else {
        output::print_line(&scrub_text(&args.name, &scrub));
    }
    let bad = scrub.corrupt_blocks + scrub.lost_blocks > 0 || scrub.damaged_metadata > scrub.repaired_metadata;
    if bad && args.wait { Err(Failure::quiet(Exit::Damaged)) } else { Ok(()) }
}

/// How far a scrub is, in a line.
pub fn scrub_line(scrub: &ScrubView) -> String {
    let share = 100.0 * scrub.extents_done as f64 / scrub.extents_total.max(1) as f64;
    let read = ByteSize(scrub.good_bytes);
    let bad = match scrub.corrupt_blocks + scrub.lost_blocks {
        0 if scrub.state == ScrubState::Done => "nothing bad".to_string(),
        0 => "nothing bad so far".to_string(),
        _ => format!("{} blocks corrupt, {} lost", scrub.corrupt_blocks, scrub.lost_blocks),
    };
    let bad = if scrub.healed_blocks > 0 { format!("{bad}, {} healed", scrub.healed_blocks) } else { bad };
    let bad = match scrub.damaged_headers {
        0 => bad,
        headers => {
            format!("{bad}, {headers} headers of stripes damaged ({} blocks written anew)", scrub.rewritten_blocks)
        }
    };
    let bad = match scrub.damaged_metadata {
        0 => bad,
        structures => {
            format!("{bad}, {structures} structures of the metadata damaged ({} written anew)", scrub.repaired_metadata)
        }
    };
    let bad = match scrub.bad_before {
        before if scrub.state != ScrubState::Done && before > 0 => {
            format!("{bad}; the scrub before found {before} bad")
        }
        _ => bad,
    };
    let ended = scrub.ended_s.map(timestamp);
    let last = ended.as_ref().map_or(String::new(), |ended| format!("; the last one ended {ended}"));
    match scrub.state {
        ScrubState::None => match ended {
            Some(ended) => {
                format!("the last one ended {ended}; the pool was opened elsewhere, or something of it given up, since")
            }
            None => "none yet".to_string(),
        },
        ScrubState::Running => format!("running, {share:.1} % passed, {read} good, {bad}{last}"),
        ScrubState::Stopped => format!("stopped at {share:.1} %, {read} good, {bad}{last}"),
        ScrubState::Done => match ended {
            Some(ended) => format!("done {ended}, {read} good, {bad}"),
            None => format!("done, {read} good, {bad}"),
        },
    }
}

fn scrub_text(name: &str, scrub: &ScrubView) -> String {
    let mut text = format!("scrub of pool '{name}': {}", scrub_line(scrub));
    for bad in scrub.bad.iter().take(BAD_SHOWN_MAX) {
        let (what, size) = (if bad.lost { "lost" } else { "corrupt" }, ByteSize(bad.block_size as u64));
        let last = bad.lba + bad.blocks - 1;
        let shared = bad.of.as_ref().map_or(String::new(), |of| format!(", shown from '{of}'"));
        text += &format!("\n  volume '{}': LBA {} to {last} (blocks of {size}) {what}{shared}", bad.volume, bad.lba);
    }
    let hidden = scrub.bad.len().saturating_sub(BAD_SHOWN_MAX);
    if hidden > 0 {
        text += &format!("\n  and {hidden} runs more: --json has them");
    }
    if scrub.bad_left_off > 0 {
        text += &format!("\n  and {} blocks that are not listed", output::count(scrub.bad_left_off));
    }
    for header in scrub.bad_headers.iter().take(BAD_SHOWN_MAX) {
        let BadHeaderView { shard, band, first, blocks, in_use, rewritten, in_one_version } = header;
        let what = if *in_one_version { "damaged in one version of the device" } else { "damaged" };
        text += &format!(
            "\n  shard {shard}, band {band}, blocks {first} to {}: header {what}; of {in_use} blocks in use {rewritten} were written anew",
            first + blocks - 1
        );
    }
    if scrub.damaged_headers > BAD_SHOWN_MAX as u64 {
        text += "\n  and further headers: --json has more of them";
    }
    for BadMetadataView { what, meaning, .. } in scrub.bad_metadata.iter().take(BAD_SHOWN_MAX) {
        text += &format!("\n  {what}: {meaning}");
    }
    if scrub.damaged_metadata > BAD_SHOWN_MAX as u64 {
        text += "\n  and further structures of the metadata: --json has more of them";
    }
    if !scrub.bad.is_empty() {
        text += "\nrestore these blocks from a copy; writing them mends them, each volume by itself: a snapshot keeps what it has";
    }
    text
}

/// Unused bytes of a capacity device that are worth a word.
pub const UNUSED_TOLD: u64 = 1 << 20;

pub fn grow(context: &Context, name: &str) -> Result<(), Failure> {
    context.call_and_show("pool.grow", json!({ "name": name }), |pool: PoolView| {
        let Some(open) = pool.open else { return format!("pool '{name}' has grown") };
        let (size, free) = (ByteSize(open.capacity_bytes), ByteSize(open.total.free_bytes));
        let mut text = format!("pool '{name}' has grown to {size}, {free} free");
        if open.unused_bytes >= UNUSED_TOLD {
            let why = open.unused_why.as_deref().unwrap_or("they can be taken into use: grow it again");
            text += &format!("\n{} of '{}' stay unused: {why}", ByteSize(open.unused_bytes), pool.definition.capacity);
        }
        text
    })
}

pub fn forget_log(context: &Context, args: &ForgetLogArgs) -> Result<(), Failure> {
    let name = &args.name;
    if args.status {
        let show = |progress: ForgetLogProgress| forget_text(name, &progress);
        return context.call_and_show("pool.forget_log_report", json!({ "name": name }), show);
    }
    let log_pmem = args.log_pmem.as_ref().map(|path| match std::path::absolute(path) {
        Ok(absolute) => absolute.to_string_lossy().into_owned(),
        Err(_) => path.clone(),
    });
    let mut params = json!({ "name": name, "force": args.force, "volatile": args.volatile, "lose_data": false });
    for (key, value) in [("log", &args.log), ("log_pmem", &log_pmem), ("log_size", &args.log_size)] {
        if let Some(value) = value {
            params[key] = json!(value);
        }
    }
    if args.yes_lose_data {
        params["lose_data"] = json!(true);
        context.call("pool.forget_log", params)?;
        let loss = wait_until_forgotten(context, name)?;
        if context.json {
            output::print_json(&serde_json::to_value(&loss).expect("a report serialises"));
        } else {
            output::print_line(&forgotten_text(name, &loss));
        }
        return Ok(());
    }
    let raw = context.call("pool.forget_log", params)?;
    let loss: LogLoss = understood(raw.clone())?;
    let what = loss_text(&loss, "could not be read until written again");
    let message = format!("this gives up the log of pool '{name}': {what}\nadd --yes-lose-data if that is meant");
    let mut failure = Failure::new(Exit::Usage, message);
    failure.json["loss"] = raw;
    Err(failure)
}

/// Shows meanwhile how far it is, on standard error.
fn wait_until_forgotten(context: &Context, name: &str) -> Result<LogLoss, Failure> {
    let is_seen = !context.json && std::io::stderr().is_terminal();
    let line = if is_seen { indicatif::ProgressBar::no_length() } else { indicatif::ProgressBar::hidden() };
    line.set_style(indicatif::ProgressStyle::with_template("{msg}").expect("the template is right"));
    let mut told = Instant::now();
    let ask = || {
        let asked = context.call("pool.forget_log_report", json!({ "name": name }));
        let asked = asked.map_err(|failure| match failure.exit {
            Exit::Unreachable => {
                let next = format!("start it again and see 'remuda pool show {name}'; the command may be repeated");
                let message = format!("the node has ended while the log of pool '{name}' was being given up; {next}");
                Failure::new(Exit::Unreachable, message)
            }
            _ => failure,
        });
        match understood(asked?)? {
            ForgetLogProgress { running: false, report: Some(loss), .. } => Ok(Some(loss)),
            progress => {
                let text = forget_text(name, &progress);
                if !is_seen && !context.json && told.elapsed() >= TOLD_EVERY {
                    eprintln!("{text}");
                    told = Instant::now();
                }
                line.set_message(text);
                Ok(None)
            }
        }
    };
    let ended = poll::until(ask, Option::is_some);
    line.finish_and_clear();
    Ok(ended?.expect("it is over when there is a report"))
}

fn forget_text(name: &str, progress: &ForgetLogProgress) -> String {
    match (&progress.steps, &progress.report) {
        (_, Some(loss)) => forgotten_text(name, loss),
        (Some(steps), None) => format!("giving up the log of pool '{name}': {}", steps.words()),
        (None, None) => format!("giving up the log of pool '{name}'"),
    }
}

fn forgotten_text(name: &str, loss: &LogLoss) -> String {
    let what = loss_text(loss, "cannot be read until written again");
    format!("pool '{name}' has given up its old log and is open: {what}")
}

fn loss_text(loss: &LogLoss, verb: &str) -> String {
    let mut text = match loss.ranges {
        0 => "nothing is lost with the log, everything was on the capacity device".to_string(),
        1 => format!("1 range, {}, {}", ByteSize(loss.bytes), verb),
        ranges => format!("{} ranges, {} together, {verb}", output::count(ranges), ByteSize(loss.bytes)),
    };
    for lost in &loss.volumes {
        let (ranges, bytes) = (output::count(lost.ranges), ByteSize(lost.bytes));
        let ranges = if lost.ranges == 1 { "1 range".to_string() } else { format!("{ranges} ranges") };
        text += &format!("\n  volume '{}': {ranges}, {bytes}{}", lost.volume, shown_text(&lost.shown_by));
    }
    if loss.shards_without_journal > 0 {
        text += &format!(
            "\nthe dirty journals of {} shards are damaged: which of their ranges were newer in the log is unknown, so all of them count",
            output::count(loss.shards_without_journal)
        );
    }
    match loss.unfound_bytes {
        None => {
            text += "\nblocks that are damaged on the capacity device would be lost as well: how many, only doing it tells, since all \
                     of it has to be read"
        }
        Some(0) => {}
        Some(bytes) => {
            text += &format!("\n{} more are damaged on the capacity device, and lost as well", ByteSize(bytes));
            loss.unfound.iter().for_each(|unfound| text += &unfound_text(unfound));
        }
    }
    text
}

/// Who else has lost it.
fn shown_text(shown_by: &[String]) -> String {
    let named: Vec<String> = shown_by.iter().take(BAD_SHOWN_MAX).map(|name| format!("'{name}'")).collect();
    match (shown_by.len(), shown_by.len() - named.len()) {
        (0, _) => String::new(),
        (_, 0) => format!(", shown by {} too", named.join(", ")),
        (_, more) => format!(", shown by {} and {more} others too", named.join(", ")),
    }
}

fn unfound_text(unfound: &UnfoundView) -> String {
    let shown_by = shown_text(&unfound.shown_by);
    let mut text = format!("\n  volume '{}': {}{shown_by}", unfound.volume, ByteSize(unfound.bytes));
    let shown = unfound.ranges.iter().take(BAD_SHOWN_MAX);
    for range in shown.clone() {
        text += &format!("\n    {} from byte {} on", ByteSize(range.bytes), output::count(range.offset));
    }
    let hidden = unfound.bytes - shown.map(|range| range.bytes).sum::<u64>();
    if hidden > 0 {
        text += &format!("\n    and {} elsewhere: 'pool scrub' finds them", ByteSize(hidden));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_findings_of_one_kind_are_counted_and_no_other_is_hidden_by_them() {
        let finding = |number: usize, advice: &str| FindingView {
            severity: "error".into(),
            object: format!("extent {number}"),
            place: String::new(),
            meaning: String::new(),
            advice: advice.into(),
            repaired: false,
            text: format!("error: extent {number}"),
        };
        let mut findings: Vec<FindingView> =
            (0..SHOWN_ALIKE + 1_500).map(|number| finding(number, "restore")).collect();
        findings.push(finding(7_777, "repair it"));
        let lines = finding_lines(&findings);
        assert_eq!(lines.len(), SHOWN_ALIKE + 2);
        assert!(lines.contains(&"error: extent 7777".to_string()));
        assert_eq!(lines.last().unwrap(), "and 1 500 more of this kind, which --json lists (error: restore)");
        assert_eq!(finding_lines(&findings[..3]).len(), 3);
    }
}
