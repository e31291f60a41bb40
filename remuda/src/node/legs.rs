//! Legs of mirrors and members of parity devices in use: those that were absent, or failed with a connection, are taken in
//! when they are there.
//!
//! ```text
//!                    reachable, due                  taken in: resync
//! out of the device ----------------> under way -------------------> settled, until its connection is built again
//!        ^                                | |---- not its leg: warned ----^
//!        \---- I/O failed: pause grows ---/
//! ```
//! One of this machine that failed is not tried by itself: its disk is to be looked at first.

use super::awaited::Awaited;
use super::build::{self, Handle, Opened, Opener};
use super::reactors::on_reactor_async;
use super::redundant::{Out, Redundant, is_redundant};
use super::refusal::Refusal;
use super::view::DeviceView;
use super::{DeviceSlot, Node};
use crate::config::DeviceParams;
use bdev::{BlockDevice, Built, DeviceError};
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

fn redundant_of(slot: &DeviceSlot) -> Option<Redundant> {
    slot.live.as_ref().ok().and_then(Redundant::of)
}

impl Node {
    /// Whether a leg of an open mirror, or a member of an open parity device, is out.
    pub(super) fn has_legs_out(&self) -> bool {
        self.devices.values().filter_map(redundant_of).any(|device| device.outs().iter().any(Option::is_some))
    }

    /// What is there to use a device: how often the connections below it have been built, 0 without any; `None` while one
    /// is down.
    fn reach(&self, name: &str) -> Option<u64> {
        let slot = self.devices.get(name)?;
        match &slot.live.as_ref().ok()?.handle {
            Handle::Nvmf(remote) => remote.is_connected().then(|| remote.stats().reconnects + 1),
            Handle::Local(Built::Mirror(_) | Built::Parity(_)) => {
                Some(slot.def.children().iter().filter_map(|child| self.reach(child)).sum())
            }
            Handle::Local(_) => slot.def.children().iter().map(|child| self.reach(child)).sum(),
        }
    }

    /// Legs that can be tried now: mirror, number, and how often its connections have been built.
    fn legs_to_try(&self, now: Instant) -> Vec<(String, usize, u64)> {
        let mut found = Vec::new();
        for (name, slot) in &self.devices {
            let Some(device) = redundant_of(slot) else { continue };
            for (leg, out) in device.outs().into_iter().enumerate().filter_map(|(leg, out)| Some((leg, out?))) {
                let Some(reach) = slot.def.children().get(leg).and_then(|child| self.reach(child)) else { continue };
                let tried = self.legs_out.get(&(name.clone(), leg));
                let is_due = tried.is_none_or(|out| out.awaited.is_due(now) && out.settled != Some(reach));
                if (out == Out::Absent || reach > 0) && is_due {
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
            let Ok((above, device)) = self.leg_of(&name, leg) else { continue };
            self.attempts += 1;
            let (attempt, reactor, joins) = (self.attempts, self.reactors.first().clone(), joins.clone());
            let fresh = || LegOut { awaited: Awaited::new(now), settled: None };
            self.legs_out.entry((name.clone(), leg)).or_insert_with(fresh).awaited.begin(attempt);
            tokio::spawn(async move {
                let outcome = join(&reactor, above, leg, device, false).await;
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

    /// A mirror or parity device in use and the device of one of its parts.
    fn leg_of(&self, name: &str, leg: usize) -> Result<(Redundant, Arc<dyn BlockDevice>), Refusal> {
        let slot = self.slot(name)?;
        self.open_device(name)?;
        let Some(above) = redundant_of(slot) else {
            let cause = format!("it is a '{}' device and has no legs", slot.def.kind());
            return Err(Refusal::invalid(format!("device '{name}'"), cause, ""));
        };
        Ok((above, self.open_device(&slot.def.children()[leg])?))
    }

    /// The number of a mirror's leg, or of a parity device's member, by the name of its device.
    pub(super) fn leg_number(&self, name: &str, leg: &str) -> Result<usize, Refusal> {
        let slot = self.slot(name)?;
        if !is_redundant(&slot.def) {
            let cause = format!("it is a '{}' device: only mirrors and parity devices have parts", slot.def.kind());
            return Err(Refusal::invalid(format!("device '{name}'"), cause, "see 'remuda device list'"));
        }
        let legs = slot.def.children();
        legs.iter().position(|child| child == leg).ok_or_else(|| {
            let next = format!("it stands on: {}", legs.join(", "));
            Refusal::invalid(format!("device '{name}'"), format!("'{leg}' is not a part of it"), next)
        })
    }

    /// Takes a part into a mirror or parity device in use, although it failed; with `overwrite`, whatever it holds.
    pub async fn device_rejoin(&mut self, name: &str, leg: &str, overwrite: bool) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let number = self.leg_number(name, leg)?;
        let replacement = self.replacement(name, number, leg).await;
        let (above, device) = match &replacement {
            Some((above, opened)) => (above.clone(), opened.device.clone()),
            None => {
                if self.slot(leg)?.live.is_err() {
                    // It may be right again; why it is not is told as of now.
                    self.device_open(leg, false, None).await?;
                }
                self.leg_of(name, number)?
            }
        };
        let joined = join(self.reactors.first(), above, number, device, overwrite).await?;
        joined.map_err(|error| build::refused_as_it_is(format!("device '{name}'"), error))?;
        if let (Some((_, opened)), Some(slot)) = (replacement, self.devices.get_mut(leg)) {
            let (def, bytes) = (slot.def.clone(), opened.device.info().bytes());
            (slot.live, slot.awaited) = (Ok(opened), None);
            self.remember_open(&def, bytes);
        }
        tracing::info!(device = name, leg, overwrite, "leg taken in");
        self.device_show(name)
    }

    /// What is at the path of the file of a failed or absent member now, if that is another file than the one that is open: a
    /// new drive.
    async fn replacement(&self, name: &str, number: usize, leg: &str) -> Option<(Redundant, Opened)> {
        let above = redundant_of(self.slot(name).ok()?)?;
        let slot = self.slot(leg).ok()?;
        let is_out = above.outs().get(number).is_some_and(Option::is_some);
        if !is_out || !matches!((&above, &slot.def.params), (Redundant::Parity(_), DeviceParams::File { .. })) {
            return None;
        }
        // The file that is open is locked, and refused.
        let opener = Opener { make: false, ..self.opener(leg) };
        Some((above, build::open_device(&slot.def, Vec::new(), &opener).await.ok()?))
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
        let opened: Opened = build::open_device(&def, children, &opener).await.map_err(build::as_it_is)?;
        self.came_open(name, opened, Instant::now()).await?;
        self.device_show(name)
    }
}

/// Takes in a part and starts to write what it lacks.
async fn join(
    reactor: &ReactorHandle,
    above: Redundant,
    part: usize,
    device: Arc<dyn BlockDevice>,
    overwrite: bool,
) -> Result<Result<(), DeviceError>, Refusal> {
    on_reactor_async(reactor, move |reactor| async move { above.join(&reactor, part, device, overwrite).await }).await
}
