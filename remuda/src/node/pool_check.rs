//! Checking a pool that is not open: by its node, which has the devices, or without one.

use super::Node;
use super::lacking::lacking;
use super::pools::{UNPOISONED, object, pool_refused};
use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use bdev::BlockDevice;
use engine::{CheckOptions, CheckReport, Finding, LogDevice, LogKind, Pool, Severity};
use reactor::{Reactor, ReactorHandle};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::rc::Rc;
use std::sync::Arc;

/// How a pool was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is wrong.
    Clean,
    /// What was wrong has been put right.
    Repaired,
    /// Nothing is wrong in the pool that has not been put right; a device below it lacks a part, or has one that lacks data.
    Degraded,
    /// Something is wrong.
    Damaged,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FindingView {
    /// `note`, `warning` or `error`.
    pub severity: String,
    /// What it is about.
    pub object: String,
    /// Where that is.
    pub place: String,
    /// What is wrong, and what follows from it.
    pub meaning: String,
    /// What to do about it.
    pub advice: String,
    /// It has been put right.
    pub repaired: bool,
    /// All of that in a line.
    pub text: String,
}

/// The result of a check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckView {
    /// The pool's name, if a superblock could be read.
    pub pool: Option<String>,
    /// In a word.
    pub verdict: Verdict,
    /// What was found.
    pub findings: Vec<FindingView>,
    /// Further findings, counted.
    pub findings_left_off: u64,
    /// What was looked at, by its name.
    pub counts: Value,
}

/// A check by the node, in the background.
#[derive(Default)]
pub(super) struct CheckRun {
    pub(super) running: bool,
    outcome: Option<Result<CheckView, Refusal>>,
}

/// How far a check by the node is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckProgress {
    /// It is under way.
    pub running: bool,
    /// What it found, once it has ended.
    pub report: Option<CheckView>,
}

impl CheckView {
    /// What was found in a pool, and before that what the devices below it lack.
    fn of(report: &CheckReport, lacking: &[Finding]) -> CheckView {
        let repaired = report.findings.iter().any(|finding| finding.repaired);
        let verdict = match report.is_sound() {
            true if !lacking.is_empty() => Verdict::Degraded,
            true if repaired => Verdict::Repaired,
            true => Verdict::Clean,
            false => Verdict::Damaged,
        };
        let findings = lacking.iter().chain(&report.findings).map(|finding| FindingView {
            severity: match finding.severity {
                Severity::Note => "note",
                Severity::Warning => "warning",
                Severity::Error => "error",
            }
            .to_string(),
            object: finding.object.clone(),
            place: finding.place.clone(),
            meaning: finding.meaning.clone(),
            advice: finding.advice.clone(),
            repaired: finding.repaired,
            text: finding.to_string(),
        });
        let counts = &report.counts;
        CheckView {
            pool: report.pool.clone(),
            verdict,
            findings: findings.collect(),
            findings_left_off: report.findings_left_off,
            counts: json!({
                "superblocks": counts.superblocks,
                "catalogs": counts.catalogs,
                "volumes": counts.volumes,
                "roots": counts.roots,
                "table_pages": counts.table_pages,
                "extents": counts.extents,
                "map_pages": counts.map_pages,
                "dirty_slices": counts.dirty_slices,
                "segments": counts.segments,
                "records": counts.records,
                "payload_blocks": counts.payload_blocks,
                "data_blocks": counts.data_blocks,
                "corrupt_blocks": counts.corrupt_blocks,
                "lost_blocks": counts.lost_blocks,
                "healable_blocks": counts.healable_blocks,
                "stripes": counts.stripes,
                "damaged_headers": counts.damaged_headers,
            }),
        }
    }
}

/// What is checked.
pub struct Checked {
    /// The name that the pool must have, if any.
    pub name: Option<String>,
    /// What its blocks end up on.
    pub capacity: Arc<dyn BlockDevice>,
    /// `None` when it is missing.
    pub log: Option<LogDevice>,
    /// What the devices below lack.
    pub lacking: Vec<Finding>,
}

/// Checks the pool on these devices.
pub async fn check_devices(
    reactor: Rc<Reactor>,
    checked: Checked,
    options: CheckOptions,
) -> Result<CheckView, Refusal> {
    let Checked { name, capacity, log, lacking } = checked;
    let shown = name.clone().unwrap_or_else(|| capacity.name().to_string());
    let refuse = |error| pool_refused(&shown, error, "check the device");
    let channel = capacity.open_channel(&reactor).map_err(|error| refuse(error.into()))?;
    if let (Some(name), Ok(found)) = (&name, engine::read_superblocks(&reactor, channel, capacity.info()).await)
        && found.name != *name
    {
        let cause = format!("device '{}' belongs to pool '{}'", capacity.name(), found.name);
        return Err(Refusal::conflict(
            object(name),
            cause,
            format!("name the right device, or the pool '{}'", found.name),
        ));
    }
    let report = Pool::check(&reactor, &capacity, log.as_ref(), options).await.map_err(refuse)?;
    Ok(CheckView::of(&report, &lacking))
}

impl Node {
    /// Begins to check a pool that is not open.
    pub async fn pool_check(&mut self, name: &str, options: CheckOptions) -> Result<CheckProgress, Refusal> {
        self.check_running()?;
        let slot = self.pool_slot(name)?;
        slot.check_free()?;
        if slot.live.is_ok() {
            let next = format!(
                "stop the node and run: remuda pool check {name} --config FILE; 'remuda pool scrub {name}' reads every block of \
                 an open pool"
            );
            return Err(Refusal::conflict(object(name), "it is open, and a check needs it closed", next));
        }
        let def = slot.def.clone();
        for device in def.devices() {
            self.reopen_device(device).await;
        }
        let capacity = self.device_below(&def, &def.capacity)?;
        let (log, lock) = match self.log_device(&def, false) {
            Ok((log, lock)) => (Some(log), lock),
            Err(refusal) => {
                tracing::warn!("{refusal}; checking without the log");
                (None, None)
            }
        };
        if options.repair {
            self.distrust_scrub(name);
        }
        let lacking = def.devices().into_iter().flat_map(|device| self.lacking_below(device)).collect();
        let run = self.pool_slot(name)?.check.clone();
        *run.lock().expect(UNPOISONED) = CheckRun { running: true, outcome: None };
        let (checked, ended) = (Checked { name: Some(name.to_string()), capacity, log, lacking }, run.clone());
        self.reactors.first().run(move |reactor| {
            let there = reactor.clone();
            reactor.spawn(async move {
                let outcome = check_devices(there, checked, options).await;
                drop(lock);
                *ended.lock().expect(UNPOISONED) = CheckRun { running: false, outcome: Some(outcome) };
            });
        });
        Ok(CheckProgress { running: true, report: None })
    }

    /// What a device and those below it lack.
    fn lacking_below(&self, name: &str) -> Vec<Finding> {
        let Some(slot) = self.devices.get(name) else { return Vec::new() };
        let closed = |child: &str| self.devices.get(child)?.live.as_ref().err().cloned();
        let own = slot.live.iter().flat_map(|opened| lacking(&slot.def, opened, closed));
        let own = own.map(|lacking| lacking.finding);
        slot.def.children().iter().flat_map(|child| self.lacking_below(child)).chain(own).collect()
    }

    /// How far the check of a pool is, and what it found.
    pub fn pool_check_report(&self, name: &str) -> Result<CheckProgress, Refusal> {
        let slot = self.pool_slot(name)?;
        let run = slot.check.lock().expect(UNPOISONED);
        match &run.outcome {
            _ if run.running => Ok(CheckProgress { running: true, report: None }),
            Some(outcome) => Ok(CheckProgress { running: false, report: Some(outcome.clone()?) }),
            None => {
                let cause = "it was not checked since the node was started";
                let next = format!("remuda pool check {name}");
                Err(Refusal::new(RefusalKind::NotFound, object(name), cause, next))
            }
        }
    }
}

/// Bytes of the log that belongs to a capacity device, if it is one in memory: a path alone does not say that.
pub async fn mapped_log_of(reactor: &ReactorHandle, capacity: Arc<dyn BlockDevice>) -> Result<Option<u64>, Refusal> {
    on_reactor_async(reactor, move |reactor| async move {
        let channel = capacity.open_channel(&reactor).ok()?;
        let found = engine::read_superblocks(&reactor, channel, capacity.info()).await.ok()?;
        (found.log_kind == LogKind::Mapped).then_some(found.log_blocks * engine::BLOCK_BYTES as u64)
    })
    .await
}

/// As [`check_devices`], from another thread.
pub async fn check_on(reactor: &ReactorHandle, checked: Checked, options: CheckOptions) -> Result<CheckView, Refusal> {
    on_reactor_async(reactor, move |reactor| check_devices(reactor, checked, options)).await?
}
