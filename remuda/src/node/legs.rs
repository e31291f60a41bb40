//! Legs of mirrors in use: those that were absent, or failed with a connection, are taken in when they are there.
//!
//! ```text
//!                    reachable, due                  taken in: resync
//! out of the mirror ----------------> under way -------------------> settled, until its connection is built again
//!        ^                                | |---- not its leg: warned ----^
//!        \---- I/O failed: pause grows ---/
//! ```
//! A leg of this machine that failed is not tried by itself: its disk is to be looked at first.

use super::awaited::Awaited;
use super::build::{self, Handle, Opened};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::view::DeviceView;
use super::{DeviceSlot, Node};
use bdev::{BlockDevice, Built, DeviceError, LegState, MirrorDevice};
use reactor::ReactorHandle;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// Where a leg stands that is out of its mirror.
pub(super) struct LegOut {
    awaited: Awaited,
    /// How often its connections had been built when it was last settled.
    settled: Option<u64>,
}

/// How taking in a leg ended.
pub struct Joined {
    mirror: String,
    leg: usize,
    attempt: u64,
    reach: u64,
    outcome: Result<(), Refusal>,
    /// Trying again may help.
    is_passing: bool,
}

fn mirror_of(slot: &DeviceSlot) -> Option<&Arc<MirrorDevice>> {
    match slot.live.as_ref().map(|opened| &opened.handle) {
        Ok(Handle::Local(Built::Mirror(mirror))) => Some(mirror),
        _ => None,
    }
}

impl Node {
    /// Whether a leg of an open mirror is out.
    pub(super) fn has_legs_out(&self) -> bool {
        let is_out = |mirror: &Arc<MirrorDevice>| mirror.legs().iter().any(|leg| leg.state == LegState::Failed);
        self.devices.values().filter_map(mirror_of).any(is_out)
    }

    /// What is there to use a device: how often the connections below it have been built, 0 without any; `None` while one
    /// is down.
    fn reach(&self, name: &str) -> Option<u64> {
        let slot = self.devices.get(name)?;
        match &slot.live.as_ref().ok()?.handle {
            Handle::Nvmf(remote) => remote.is_connected().then(|| remote.stats().reconnects + 1),
            Handle::Local(Built::Mirror(_)) => {
                Some(slot.def.children().iter().filter_map(|child| self.reach(child)).sum())
            }
            Handle::Local(_) => slot.def.children().iter().map(|child| self.reach(child)).sum(),
        }
    }

    /// Legs that can be tried now: mirror, number, and how often its connections have been built.
    fn legs_to_try(&self, now: Instant) -> Vec<(String, usize, u64)> {
        let mut found = Vec::new();
        for (name, slot) in &self.devices {
            let Some(mirror) = mirror_of(slot) else { continue };
            for (leg, status) in mirror.legs().iter().enumerate() {
                let Some(reach) = slot.def.children().get(leg).and_then(|child| self.reach(child)) else { continue };
                let tried = self.legs_out.get(&(name.clone(), leg));
                let is_due = tried.is_none_or(|out| out.awaited.is_due(now) && out.settled != Some(reach));
                if status.state == LegState::Failed && (status.name.is_none() || reach > 0) && is_due {
                    found.push((name.clone(), leg, reach));
                }
            }
        }
        found
    }

    /// Begins to take in the legs that can be tried. Outcomes come out of `joins`, for [`joined`](Self::joined).
    pub fn mend(&mut self, joins: &mpsc::UnboundedSender<Joined>) {
        let now = Instant::now();
        for (name, leg, reach) in self.legs_to_try(now) {
            let Ok((mirror, device)) = self.leg_of(&name, leg) else { continue };
            self.attempts += 1;
            let (attempt, reactor, joins) = (self.attempts, self.reactors.first().clone(), joins.clone());
            let fresh = || LegOut { awaited: Awaited::new(now), settled: None };
            self.legs_out.entry((name.clone(), leg)).or_insert_with(fresh).awaited.begin(attempt);
            tokio::spawn(async move {
                let outcome = join(&reactor, mirror, leg, device, false).await;
                let is_passing = matches!(outcome, Ok(Err(DeviceError::Io { .. } | DeviceError::Os { .. })));
                let object = format!("device '{name}'");
                let outcome = outcome.and_then(|joined| joined.map_err(|error| build::refused(object, error)));
                let _ = joins.send(Joined { mirror: name, leg, attempt, reach, outcome, is_passing });
            });
        }
    }

    /// Takes note of how taking in a leg has ended.
    pub fn joined(&mut self, joined: Joined) {
        let Joined { mirror, leg, attempt, reach, outcome, is_passing } = joined;
        let Some(out) = self.legs_out.get_mut(&(mirror.clone(), leg)) else { return };
        if !out.awaited.is_under_way(attempt) {
            return;
        }
        let now = Instant::now();
        match outcome {
            Ok(()) => *out = LegOut { awaited: Awaited::new(now), settled: Some(reach) },
            Err(refusal) if is_passing => {
                tracing::debug!(mirror, leg, "not taken in yet: {refusal}");
                out.awaited.refused(now);
            }
            Err(refusal) => {
                *out = LegOut { awaited: Awaited::new(now), settled: Some(reach) };
                let child = self.devices.get(&mirror).and_then(|slot| slot.def.children().get(leg).cloned());
                let child = child.unwrap_or_default();
                self.warn_now(format!(
                    "{refusal}; to give up what '{child}' holds: remuda device rejoin {mirror} {child} --overwrite"
                ));
            }
        }
    }

    /// A mirror in use and the device of one of its legs.
    fn leg_of(&self, name: &str, leg: usize) -> Result<(Arc<MirrorDevice>, Arc<dyn BlockDevice>), Refusal> {
        let slot = self.slot(name)?;
        self.open_device(name)?;
        let Some(mirror) = mirror_of(slot) else {
            let cause = format!("it is a '{}' device and has no legs", slot.def.kind());
            return Err(Refusal::invalid(format!("device '{name}'"), cause, ""));
        };
        Ok((mirror.clone(), self.open_device(&slot.def.children()[leg])?))
    }

    /// The number of a mirror's leg, by the name of its device.
    pub(super) fn leg_number(&self, name: &str, leg: &str) -> Result<usize, Refusal> {
        let slot = self.slot(name)?;
        let legs = slot.def.children();
        legs.iter().position(|child| child == leg).filter(|_| super::devices::is_mirror(&slot.def)).ok_or_else(|| {
            let next = format!("it stands on: {}", legs.join(", "));
            Refusal::invalid(format!("device '{name}'"), format!("'{leg}' is not a leg of it"), next)
        })
    }

    /// Takes a leg into a mirror in use, although it failed; with `overwrite`, whatever it holds.
    pub async fn device_rejoin(&mut self, name: &str, leg: &str, overwrite: bool) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let number = self.leg_number(name, leg)?;
        let (mirror, device) = self.leg_of(name, number)?;
        let joined = join(self.reactors.first(), mirror, number, device, overwrite).await?;
        joined.map_err(|error| build::refused(format!("device '{name}'"), error))?;
        tracing::info!(device = name, leg, overwrite, "leg taken in");
        self.device_show(name)
    }

    /// Tries again to open a device that is not open. A mirror goes on without absent legs if it is `degraded`, and with the
    /// data of leg `prefer` where legs were used without each other.
    pub async fn device_open(
        &mut self,
        name: &str,
        degraded: bool,
        prefer: Option<&str>,
    ) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let slot = self.slot(name)?;
        if slot.live.is_ok() {
            return Err(Refusal::conflict(object, "it is open", format!("see 'remuda device show {name}'")));
        }
        if degraded && !super::devices::is_mirror(&slot.def) {
            return Err(Refusal::invalid(object, "only a mirror can be opened degraded", ""));
        }
        let prefer = prefer.map(|leg| self.leg_number(name, leg)).transpose()?;
        let slot = self.slot(name)?;
        let (def, children) = (slot.def.clone(), self.children_of(&slot.def)?);
        let mut opener = self.opener(name);
        (opener.start_degraded, opener.prefer) = (degraded, prefer);
        let opened: Opened = build::open_device(&def, children, &opener).await?;
        self.came_open(name, opened, Instant::now()).await?;
        self.device_show(name)
    }
}

/// Takes in a leg and starts to copy what it lacks.
async fn join(
    reactor: &ReactorHandle,
    mirror: Arc<MirrorDevice>,
    leg: usize,
    device: Arc<dyn BlockDevice>,
    overwrite: bool,
) -> Result<Result<(), DeviceError>, Refusal> {
    on_reactor_async(reactor, move |reactor| async move {
        mirror.join(&reactor, leg, Some(device), overwrite).await?;
        mirror.resync_in_background(&reactor);
        Ok(())
    })
    .await
}
