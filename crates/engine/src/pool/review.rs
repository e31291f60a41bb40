//! A scrub of what all shards have in common: the superblocks of both devices and the catalog, which nobody changes meanwhile.

use super::PoolShared;
use super::control::Control;
use crate::format::superblock::{Role, Superblock};
use crate::meta::flaw::{Flaw, Review};
use crate::meta::{self, MetaError};
use crate::shard::{CommonReview, Defect, MetadataPlace};
use bdev::{Channel, DeviceInfo};
use reactor::Reactor;
use std::rc::Rc;

impl PoolShared {
    /// On the reactor of the control part; `None` when the pool is being closed.
    pub(crate) async fn review_here(&self, reactor: &Rc<Reactor>) -> Option<CommonReview> {
        let control = Control::of(reactor, self).ok()?;
        let is_closing = || control.closing.get();
        let _alone = control.turn_unless(&control.busy, is_closing).await?;
        let mut all = CommonReview::default();
        for role in [Role::Log, Role::Capacity] {
            control.review_superblocks(role, &mut all).await;
        }
        control.review_catalog(&mut all).await;
        Some(all)
    }
}

impl Control {
    /// Nothing is written on purpose, and counts as written all the same.
    fn repairs_unwritten(&self) -> bool {
        self.shared.defect == Some(Defect::RepairUnwritten)
    }

    async fn review_superblocks(&self, role: Role, all: &mut CommonReview) {
        let place = MetadataPlace { of_shadow: false, on_log: role == Role::Log };
        let Ok(found) = self.superblocks_of(role, true).await else { return };
        let is_due = found.flaws.iter().any(|flaw| flaw.is_due);
        if is_due && !self.repairs_unwritten() {
            let (channel, info) = self.device_of(role);
            let mut superblock = self.superblock_of(role);
            if let Err(error) = meta::write_superblock(&self.reactor, channel, info, &mut superblock).await {
                let (pool, device) = (&self.shared.name, role.name());
                tracing::warn!("pool '{pool}': the superblock of the {device} device cannot be written anew: {error}");
            }
            if role == Role::Capacity {
                let generation = &mut self.superblock.borrow_mut().generation;
                *generation = superblock.generation.max(*generation);
            }
        }
        let again = match is_due {
            true => self.superblocks_of(role, false).await.map_or_else(|_| found.flaws.clone(), |again| again.flaws),
            false => found.flaws.clone(),
        };
        self.add(all, place, found, &again);
    }

    /// What the device is to have, but for the generation.
    fn superblock_of(&self, role: Role) -> Superblock {
        let owner = self.superblock.borrow();
        match role {
            Role::Capacity => owner.clone(),
            Role::Log => owner.counterpart(),
        }
    }

    fn device_of(&self, role: Role) -> (Rc<dyn Channel>, DeviceInfo) {
        match role {
            Role::Log => (self.log.channel.clone(), self.log.info),
            Role::Capacity => (self.capacity.clone(), self.capacity_info),
        }
    }

    async fn superblocks_of(&self, role: Role, renews: bool) -> Result<Review, MetaError> {
        let (channel, info) = self.device_of(role);
        meta::review_superblocks(&self.reactor, channel, info, &self.superblock_of(role), renews).await
    }

    async fn review_catalog(&self, all: &mut CommonReview) {
        let Some(mut store) = self.store.take() else { return };
        let found = store.review(true).await;
        let mut again = Vec::new();
        if !found.flaws.is_empty() {
            if !self.closing.get()
                && !self.repairs_unwritten()
                && let Err(error) = store.write_anew().await
            {
                store.renew(&self.catalog.borrow());
                tracing::warn!("pool '{}': the catalog cannot be written anew: {error}", self.shared.name);
            }
            again = store.review(false).await.flaws;
        }
        self.store.set(Some(store));
        self.add(all, MetadataPlace::default(), found, &again);
    }

    /// What is not found again has been repaired.
    fn add(&self, all: &mut CommonReview, place: MetadataPlace, found: Review, again: &[Flaw]) {
        all.good += found.good;
        all.read_bytes += found.read_bytes;
        for flaw in found.flaws {
            let is_left = again.iter().any(|other| (other.kind, other.number) == (flaw.kind, flaw.number));
            all.flaws.push((place, flaw, !is_left || self.repairs_unwritten()));
        }
    }
}
