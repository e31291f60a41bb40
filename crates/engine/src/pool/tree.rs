//! What volumes and snapshots there are, and who shows whom: as lists for people and programs.
//!
//! There may be thousands. A list is made in parts, between which the reactor does what others wait for; what is made or deleted
//! meanwhile is in it or not.

use super::control::Control;
use super::{Pool, PoolError};
use crate::format::catalog::{VolumeEntry, VolumeState};
use crate::meta::Catalog;
use crate::meta::catalog::SNAPSHOT_MARK;
use crate::units::BLOCK_BYTES;
use reactor::Reactor;
use std::collections::BTreeSet;
use std::rc::Rc;
use uuid::Uuid;

/// Entries between two looks at the clock.
const STEP: usize = 64;

/// A volume of a pool, with its snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name.
    pub name: String,
    /// Its name to hosts.
    pub uuid: Uuid,
    /// Size in bytes.
    pub bytes: u64,
    /// When it was created, seconds since 1970.
    pub created_s: u64,
    /// The snapshot that it is a clone of, while it shows one that is not its own.
    pub clone_of: Option<String>,
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<SnapshotInfo>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Its name: `volume@snapshot`.
    pub name: String,
    /// Its name to hosts.
    pub uuid: Uuid,
    /// Names what it holds: equal to that of the snapshot in another pool that it is a copy of, else to its own uuid.
    pub content: Uuid,
    /// Size in bytes of the volume when it was made.
    pub bytes: u64,
    /// When it was made, seconds since 1970.
    pub created_s: u64,
    /// Volumes and snapshots that show it, its own volume's among them.
    pub users: usize,
}

/// Whose snapshots are wanted.
#[derive(Clone, Debug)]
enum Wanted {
    All,
    Of(String),
}

impl Wanted {
    fn has(&self, volume: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Of(name) => name == volume,
        }
    }
}

impl Pool {
    /// The volumes, each with its snapshots, by name; and how many deleted ones have not gone yet.
    pub async fn tree(&self, reactor: &Rc<Reactor>) -> Result<(Vec<VolumeInfo>, usize), PoolError> {
        self.tree_of(reactor, Wanted::All).await
    }

    /// The volumes, by name, that of this name alone with its snapshots.
    pub async fn tree_with(&self, reactor: &Rc<Reactor>, volume: &str) -> Result<Vec<VolumeInfo>, PoolError> {
        Ok(self.tree_of(reactor, Wanted::Of(volume.to_string())).await?.0)
    }

    async fn tree_of(&self, reactor: &Rc<Reactor>, wanted: Wanted) -> Result<(Vec<VolumeInfo>, usize), PoolError> {
        self.on_control(reactor, move |control| async move { Ok(control.tree(&wanted).await) }).await
    }

    /// Snapshots of these names, as far as there are any; of each its volume and what is known of it.
    pub async fn snapshot_infos(
        &self,
        reactor: &Rc<Reactor>,
        names: Vec<String>,
    ) -> Result<Vec<SnapshotInfo>, PoolError> {
        let look = move |control: Rc<Control>| async move {
            let catalog = control.catalog.borrow();
            let found = names.iter().filter_map(|name| catalog.of_name(name));
            let found = found.filter(|entry| entry.state == VolumeState::Snapshot);
            Ok(found.map(|entry| info_of(&catalog, entry)).collect())
        };
        self.on_control(reactor, look).await
    }
}

impl Control {
    async fn tree(&self, wanted: &Wanted) -> (Vec<VolumeInfo>, usize) {
        let mut live: Vec<(String, u32)> =
            self.catalog.borrow().live().map(|entry| (entry.name.clone(), entry.id)).collect();
        live.sort_unstable();
        let mut tree = Vec::with_capacity(live.len());
        for (name, id) in live {
            self.give_way().await;
            let own: BTreeSet<u32> = self.snapshots_of(&name).await.into_iter().collect();
            let Some(mut volume) = self.volume_info(id, &own) else { continue };
            if wanted.has(&name) {
                for (number, id) in own.iter().enumerate() {
                    if number % STEP == STEP - 1 {
                        self.give_way().await;
                    }
                    let catalog = self.catalog.borrow();
                    let entry = catalog.get(*id).filter(|entry| entry.state == VolumeState::Snapshot);
                    volume.snapshots.extend(entry.map(|entry| info_of(&catalog, entry)));
                }
            }
            tree.push(volume);
        }
        (tree, self.catalog.borrow().going().len())
    }

    /// The snapshots of a volume, by name.
    pub(super) async fn snapshots_of(&self, volume: &str) -> Vec<u32> {
        let mut all = Vec::new();
        let (mut name, mut id) = (format!("{volume}{SNAPSHOT_MARK}"), 0);
        loop {
            let before = all.len();
            {
                let catalog = self.catalog.borrow();
                let mut last = None;
                for entry in catalog.snapshots_from(volume, name.clone(), id).take(STEP) {
                    all.push(entry.id);
                    last = Some(entry);
                }
                if let Some(last) = last {
                    (name, id) = (last.name.clone(), last.id + 1);
                }
            }
            if all.len() < before + STEP {
                return all;
            }
            self.give_way().await;
        }
    }

    /// Of a volume whose snapshots are `own`, without these.
    fn volume_info(&self, id: u32, own: &BTreeSet<u32>) -> Option<VolumeInfo> {
        let catalog = self.catalog.borrow();
        let entry = catalog.get(id).filter(|entry| entry.state == VolumeState::Live)?;
        let mut below = catalog.get(entry.parent);
        let is_passed = |other: &&VolumeEntry| other.state == VolumeState::Deleting || own.contains(&other.id);
        while let Some(other) = below.filter(is_passed) {
            below = catalog.get(other.parent);
        }
        Some(VolumeInfo {
            name: entry.name.clone(),
            uuid: entry.uuid,
            bytes: entry.blocks * BLOCK_BYTES as u64,
            created_s: entry.created_s,
            clone_of: below.map(|other| other.name.clone()),
            snapshots: Vec::new(),
        })
    }

    pub(super) async fn give_way(&self) {
        if self.reactor.is_turn_long() {
            self.reactor.yield_now().await;
        }
    }
}

fn info_of(catalog: &Catalog, entry: &VolumeEntry) -> SnapshotInfo {
    SnapshotInfo {
        name: entry.name.clone(),
        uuid: entry.uuid,
        content: entry.content,
        bytes: entry.blocks * BLOCK_BYTES as u64,
        created_s: entry.created_s,
        users: catalog.over(entry.id).count(),
    }
}
