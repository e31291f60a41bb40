//! Who comes, who goes and who is turned away: what the log hears of it, sparingly, and what is counted.
//!
//! A host comes when its admin queue is connected and, if it has to, authenticated; it goes with that queue's controller.
//! What goes on at the discovery service, where hosts look in again and again, is said at level debug alone.

use super::home::{Home, Place};
use super::sparing::Sparing;
use crate::spec::Nqn;
use crate::target::{ControllerHandle, RefusedConnect, WhyRefused};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reasons that are counted.
const REASONS: usize = WhyRefused::LABELS.len();

/// How often hosts were turned away, by reason. Any reactor may count; it is rare.
#[derive(Debug, Default)]
pub(super) struct Refusals([AtomicU64; REASONS]);

impl Refusals {
    pub(super) fn count(&self, why: WhyRefused) {
        self.0[why.index()].fetch_add(1, Relaxed);
    }

    /// The counts, in the order of [`WhyRefused::LABELS`].
    pub(super) fn counts(&self) -> [u64; REASONS] {
        std::array::from_fn(|at| self.0[at].load(Relaxed))
    }
}

/// A controller's host, as the log names it.
struct Guest {
    host: Nqn,
    subsystem: Option<Nqn>,
    cntlid: u16,
    peer: SocketAddr,
}

/// See the module.
#[derive(Default)]
pub(super) struct Guests {
    here: RefCell<BTreeMap<ControllerHandle, Guest>>,
    came: Sparing,
    left: Sparing,
    refused: [Sparing; REASONS],
}

impl Home {
    /// A controller's host may use it from now on.
    pub(super) fn guest_came(&self, controller: ControllerHandle, place: Place) {
        let Place { peer, tls, authenticated, .. } = place;
        let guest = self.with_target(|target| {
            let controller = target.controller(controller)?;
            let subsystem = target.subsystem(controller.subsystem()).map(|found| found.nqn().clone());
            let (host, cntlid) = (controller.host_nqn().clone(), controller.cntlid());
            (!controller.is_discovery()).then_some(Guest { host, subsystem, cntlid, peer })
        });
        let Some(guest) = guest.filter(|_| !self.guests.here.borrow().contains_key(&controller)) else { return };
        let Guest { host, subsystem, cntlid, .. } = &guest;
        let subsystem = subsystem.as_ref().map(Nqn::as_str);
        let host = host.as_str();
        if self.guests.came.admit(self.reactor.now_ns()) {
            let others = self.guests.came.others();
            tracing::info!(host, %peer, subsystem, cntlid, authenticated, tls, others, "host connected");
        } else {
            tracing::debug!(host, %peer, subsystem, cntlid, authenticated, tls, "host connected");
        }
        self.guests.here.borrow_mut().insert(controller, guest);
    }

    /// A controller has ended. Whoever knows best why says so first.
    pub(super) fn guest_left(&self, controller: ControllerHandle, why: &dyn std::fmt::Display) {
        let Some(guest) = self.guests.here.borrow_mut().remove(&controller) else { return };
        let Guest { host, subsystem, cntlid, peer } = &guest;
        let (host, subsystem) = (host.as_str(), subsystem.as_ref().map(Nqn::as_str));
        if self.guests.left.admit(self.reactor.now_ns()) {
            let others = self.guests.left.others();
            tracing::info!(host, %peer, subsystem, cntlid, reason = %why, others, "host left");
        } else {
            tracing::debug!(host, %peer, subsystem, cntlid, reason = %why, "host left");
        }
    }

    /// A Connect command was refused.
    pub(super) fn guest_refused(&self, refused: &RefusedConnect, peer: SocketAddr) {
        let RefusedConnect { why, host, subsystem, .. } = refused;
        let (host, subsystem) = (host.as_ref().map(Nqn::as_str), subsystem.as_ref().map(Nqn::as_str));
        self.shared.refusals.count(*why);
        match self.others_refused(*why) {
            Some(others) => tracing::warn!(host, %peer, subsystem, reason = %why, others, "host refused"),
            None => tracing::debug!(host, %peer, subsystem, reason = %why, "host refused"),
        }
    }

    /// Whether the log may hear of such a refusal now, and then how many it did not hear of, if any.
    pub(super) fn others_refused(&self, why: WhyRefused) -> Option<Option<u64>> {
        let lines = &self.guests.refused[why.index()];
        lines.admit(self.reactor.now_ns()).then(|| lines.others())
    }
}
