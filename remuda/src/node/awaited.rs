//! Devices that are not open since a target cannot be reached: tried again while the node runs, and taken in with all that
//! stands on them.
//!
//! ```text
//!            due                     opened
//! waiting ---------> under way -----------------> open
//!    ^                   |
//!    \_____ refused _____/   (the pause doubles, up to a limit)
//! ```
//! An attempt runs beside the node, which goes on serving requests meanwhile; its outcome comes back as an [`Arrival`].

use super::build::{Opened, open_device};
use super::refusal::Refusal;
use super::{DeviceSlot, Node};
use crate::config::{DeviceDef, DeviceParams};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Pause before the second attempt; it doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// Longest pause: a target that comes up is noticed within it.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Where a device stands that is waited for.
pub(super) struct Awaited {
    /// The pause after the next attempt that fails.
    pause: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Until then.
    Waiting(Instant),
    /// The attempt of this number.
    UnderWay(u64),
}

impl Awaited {
    /// An attempt has failed a moment ago.
    pub(super) fn new(now: Instant) -> Awaited {
        Awaited { pause: PAUSE_FIRST * 2, stage: Stage::Waiting(now + PAUSE_FIRST) }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Waiting(until) if until <= now)
    }

    pub(super) fn begin(&mut self, attempt: u64) {
        self.stage = Stage::UnderWay(attempt);
    }

    pub(super) fn is_under_way(&self, attempt: u64) -> bool {
        self.stage == Stage::UnderWay(attempt)
    }

    pub(super) fn refused(&mut self, now: Instant) {
        self.stage = Stage::Waiting(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Something that it waits for has changed.
    fn hurry(&mut self, now: Instant) {
        if let Stage::Waiting(_) = self.stage {
            *self = Awaited { pause: PAUSE_FIRST, stage: Stage::Waiting(now) };
        }
    }
}

/// How an attempt ended.
pub struct Arrival {
    device: String,
    attempt: u64,
    opened: Result<Opened, Refusal>,
}

impl Node {
    /// Whether any device is waited for, any part of a mirror or parity device, or any door.
    pub fn is_waiting(&self) -> bool {
        let devices = self.devices.values().any(|slot| slot.awaited.is_some());
        !self.stopping && (devices || self.has_legs_out() || self.has_doors_out())
    }

    /// Begins the attempts that are due. Their outcomes come out of `arrivals`, for [`arrived`](Self::arrived).
    pub fn seek(&mut self, arrivals: &mpsc::UnboundedSender<Arrival>) {
        let now = Instant::now();
        let is_due = |slot: &DeviceSlot| slot.awaited.as_ref().is_some_and(|awaited| awaited.is_due(now));
        let due = self.devices.values().filter(|slot| is_due(slot) && self.can_try(&slot.def));
        let due: Vec<DeviceDef> = due.map(|slot| slot.def.clone()).collect();
        for def in due {
            let Ok(children) = self.children_of(&def) else { continue };
            let (opener, arrivals) = (self.opener(&def.name), arrivals.clone());
            self.attempts += 1;
            let attempt = self.attempts;
            let slot = self.devices.get_mut(&def.name).expect("it was found there");
            slot.awaited.as_mut().expect("it is due").begin(attempt);
            tokio::spawn(async move {
                let opened = open_device(&def, children, &opener).await;
                let _ = arrivals.send(Arrival { device: def.name, attempt, opened });
            });
        }
    }

    /// Whether what a device stands on is there; a mirror makes do with one leg, a parity device with all members but one.
    fn can_try(&self, def: &DeviceDef) -> bool {
        let is_there = |child: &String| {
            let live = self.devices.get(child).map(|slot| &slot.live);
            matches!(live, Some(Ok(opened)) if !opened.is_awaited())
        };
        match def.params {
            DeviceParams::Mirror { .. } => def.children().iter().any(is_there),
            DeviceParams::Parity { .. } => def.children().iter().filter(|child| !is_there(child)).count() <= 1,
            _ => def.children().iter().all(is_there),
        }
    }

    /// Takes in the outcome of an attempt: a device that is open now, the volumes on it, and the namespaces that show them.
    pub async fn arrived(&mut self, arrival: Arrival) {
        let Arrival { device: name, attempt, opened } = arrival;
        let now = Instant::now();
        // It may have been deleted, and another created under its name.
        let slot = self.devices.get_mut(&name).filter(|_| !self.stopping);
        let Some(slot) = slot else { return };
        let Some(awaited) = slot.awaited.as_mut().filter(|awaited| awaited.is_under_way(attempt)) else {
            return;
        };
        match opened {
            Err(refusal) => {
                tracing::debug!(device = %name, "not open yet: {refusal}");
                slot.live = Err(refusal.to_string());
                awaited.refused(now);
            }
            Ok(opened) => {
                if let Err(refusal) = self.came_open(&name, opened, now).await {
                    tracing::warn!(device = %name, "{refusal}");
                    let slot = self.devices.get_mut(&name).expect("it was there a moment ago");
                    slot.awaited.iter_mut().for_each(|awaited| awaited.refused(now));
                }
            }
        }
    }

    /// Puts a device that has been opened into its place, with the volumes on it and the namespaces that show them.
    pub(super) async fn came_open(&mut self, name: &str, opened: Opened, now: Instant) -> Result<(), Refusal> {
        let slot = self.devices.get_mut(name).expect("devices are not removed while one is opened");
        let (live, awaited) = (std::mem::replace(&mut slot.live, Ok(opened)), slot.awaited.take());
        match self.take_in(name) {
            Ok(volumes) => {
                self.show(name, volumes, now).await;
                Ok(())
            }
            Err(refusal) => {
                let slot = self.devices.get_mut(name).expect("it was there a moment ago");
                (slot.live, slot.awaited) = (live, awaited);
                Err(refusal)
            }
        }
    }

    /// Opens the volumes of a device that has been opened, and remembers what is new; gives the volumes.
    fn take_in(&mut self, name: &str) -> Result<Vec<String>, Refusal> {
        let before = self.state.clone();
        let slot = &self.devices[name];
        if let Some(remote) = slot.live.as_ref().ok().and_then(|opened| opened.remote(&slot.def)) {
            self.state.remotes.insert(name.to_string(), remote);
        }
        if let Ok(opened) = &slot.live {
            self.state.note_open(&slot.def, opened.device.info().bytes());
        }
        let volumes = self.open_volumes_on(name);
        let state = std::mem::replace(&mut self.state, before);
        if state != self.state
            && let Err(refusal) = self.remember(state)
        {
            volumes.iter().for_each(|volume| drop(self.volumes.remove(volume)));
            return Err(refusal);
        }
        Ok(volumes)
    }

    async fn show(&mut self, name: &str, volumes: Vec<String>, now: Instant) {
        tracing::info!(device = name, "open now");
        for volume in volumes {
            if let Err(refusal) = self.announce_volume(&volume).await {
                self.warn_now(refusal.to_string());
            }
        }
        let above = self.devices.values_mut().filter(|slot| slot.def.children().iter().any(|child| child == name));
        above.filter_map(|slot| slot.awaited.as_mut()).for_each(|awaited| awaited.hurry(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_between_attempts_grows_up_to_a_limit_and_ends_when_something_changed() {
        let begun = Instant::now();
        let mut awaited = Awaited::new(begun);
        let mut now = begun;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let Stage::Waiting(until) = awaited.stage else { panic!("nothing is under way") };
            assert!(!awaited.is_due(now) && awaited.is_due(until));
            pauses.push((until - now).as_millis());
            now = until;
            awaited.stage = Stage::UnderWay(1);
            assert!(!awaited.is_due(now + PAUSE_MAX * 2));
            awaited.hurry(now);
            assert!(awaited.stage == Stage::UnderWay(1), "its outcome is still to come");
            awaited.refused(now);
        }
        assert_eq!(pauses, [500, 1000, 2000, 4000, 8000, 10_000, 10_000, 10_000]);
        awaited.hurry(now);
        assert!(awaited.is_due(now));
    }
}
