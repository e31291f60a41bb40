//! Clones that come, are flattened and go beside a scenario's own volumes, each with a number as these have: a [`Ledger`] knows what
//! they hold.
//!
//! [`Ledger`]: crate::ledger::Ledger

use crate::ledger::Hands;
use base::Rng;
use bdev::BlockDevice;
use engine::{FlattenState, FlattenStatus};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// What outlives the processes.
#[derive(Clone)]
pub(crate) struct Branches {
    /// The number of the volume that was made last.
    made: Rc<Cell<u64>>,
    /// The volume that is being made or deleted: after a crash it may be there or not.
    unsure: Rc<Cell<Option<u64>>>,
    /// Volumes that are there from the beginning, and stay.
    own: u64,
}

impl Branches {
    pub(crate) fn beside(own: u64) -> Branches {
        Branches { made: Rc::new(Cell::new(own.max(1) - 1)), unsure: Rc::default(), own }
    }

    /// After a crash: a volume that was being made or deleted is there or not.
    pub(crate) fn find(&self, hands: &Hands) {
        let there = |number: &u64| hands.pool.volume(&format!("v{number}")).is_some();
        let known: BTreeSet<u64> = hands.ledger.borrow().volumes();
        for number in known.iter().filter(|number| !there(number) && **number >= self.own) {
            let is_allowed = self.unsure.get() == Some(*number);
            hands.expect(is_allowed, || format!("volume v{number} is missing"));
            if hands.is_alive() {
                hands.ledger.borrow_mut().remove(*number);
            }
        }
        let deleted = (self.own..=self.made.get()).find(|number| there(number) && !known.contains(number));
        hands.expect(deleted.is_none(), || format!("volume v{deleted:?} was deleted, and is there"));
        if hands.is_alive() {
            self.unsure.set(None);
        }
    }

    /// The number of the next clone.
    pub(crate) fn next(&self) -> u64 {
        self.made.get() + 1
    }

    /// Makes a clone of a volume as it is; its number.
    pub(crate) async fn branch(&self, hands: &Hands, of: u64) -> u64 {
        let number = self.next();
        self.made.set(number);
        self.unsure.set(Some(number));
        hands.ledger.borrow_mut().copy(of, number);
        let (volume, snapshot) = (format!("v{of}"), format!("s{number}"));
        let made = hands.pool.snapshot(&hands.reactor, &[(&volume, &snapshot)], 0).await;
        hands.expect(made.is_ok(), || format!("a snapshot cannot be made: {:?}", made.err()));
        let (from, name) = (format!("{volume}@{snapshot}"), format!("v{number}"));
        let made = hands.pool.clone_volume(&hands.reactor, &from, &name, 0).await;
        hands.expect(made.is_ok(), || format!("a clone cannot be made: {:?}", made.err()));
        if hands.is_alive() {
            self.unsure.set(None);
        }
        number
    }

    /// Deletes a volume and its snapshots.
    pub(crate) async fn delete(&self, hands: &Hands, number: u64) {
        self.unsure.set(Some(number));
        let deleted = hands.pool.delete_volume_and_snapshots(&hands.reactor, &format!("v{number}")).await;
        hands.expect(deleted.is_ok(), || format!("v{number} cannot be deleted: {deleted:?}"));
        if hands.is_alive() {
            self.unsure.set(None);
            hands.ledger.borrow_mut().remove(number);
        }
    }

    /// The numbers of those that came later.
    pub(crate) fn later(&self, hands: &Hands) -> Vec<u64> {
        hands.ledger.borrow().volumes().into_iter().filter(|number| *number >= self.own).collect()
    }

    /// One of those, if there are any.
    pub(crate) fn any(&self, hands: &Hands, rng: &mut Rng) -> Option<u64> {
        let later = self.later(hands);
        later.get(rng.below(later.len().max(1) as u64) as usize).copied()
    }

    /// Deletes a snapshot from which nobody has to read any more, if there is one.
    pub(crate) async fn delete_snapshot(&self, hands: &Hands, rng: &mut Rng) {
        let there = hands.pool.volumes();
        let all: Vec<&str> = there.iter().map(|volume| volume.name()).filter(|name| name.contains('@')).collect();
        let Some(snapshot) = all.get(rng.below(all.len().max(1) as u64) as usize) else { return };
        let deleted = hands.pool.delete_snapshot(&hands.reactor, snapshot).await;
        hands.expect(deleted.is_ok(), || format!("{snapshot} cannot be deleted: {deleted:?}"));
    }

    /// Nothing is left but the first volumes, and nothing is on its way out.
    pub(crate) async fn clear(&self, hands: &Hands) {
        for number in self.later(hands) {
            self.delete(hands, number).await;
        }
        for volume in hands.pool.volumes().iter().filter(|volume| volume.name().contains('@')) {
            let deleted = hands.pool.delete_snapshot(&hands.reactor, volume.name()).await;
            hands.expect(deleted.is_ok(), || format!("{} cannot be deleted: {deleted:?}", volume.name()));
        }
        self.reap(hands).await;
    }

    /// What has been deleted goes.
    pub(crate) async fn reap(&self, hands: &Hands) {
        let reaped = hands.pool.reap(&hands.reactor).await;
        hands.expect(reaped.is_ok(), || format!("what was deleted does not go: {reaped:?}"));
    }

    /// The clones that are not independent.
    pub(crate) async fn clones(&self, hands: &Hands) -> Vec<String> {
        let tree = hands.pool.tree(&hands.reactor).await;
        let tree = tree.map_or_else(|_| Vec::new(), |(tree, _)| tree);
        tree.into_iter().filter(|volume| volume.clone_of.is_some()).map(|volume| volume.name).collect()
    }

    pub(crate) async fn begin_to_flatten(&self, hands: &Hands, name: &str) {
        let before = hands.pool.flatten_status(&hands.reactor, name).await;
        let runs = matches!(before, Ok(Some(FlattenStatus { state: FlattenState::Running, .. })));
        let begun = hands.pool.flatten(&hands.reactor, name).await;
        hands.expect(runs || begun.is_ok(), || format!("{name} cannot be flattened: {begun:?}"));
    }

    /// Flattens a clone to the end, which there may be no space for.
    pub(crate) async fn flatten_if_space(&self, hands: &Hands, number: u64) {
        let name = format!("v{number}");
        if !self.clones(hands).await.contains(&name) {
            return;
        }
        let begun = hands.pool.flatten(&hands.reactor, &name).await;
        hands.sim.note(format!("{name} is flattened: {:?}", begun.as_ref().map(|status| status.state)));
        if begun.is_ok() {
            let ended = hands.pool.flattened(&hands.reactor, &name).await;
            hands.expect(ended.is_ok(), || format!("{name} is not flattened: {ended:?}"));
        }
    }
}
