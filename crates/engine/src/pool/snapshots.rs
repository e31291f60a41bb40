//! Snapshots and clones: layers that lie over others, see `docs/decisions/engine.md`.
//!
//! A snapshot leaves the layer of its volume as it is and lays a new one over it. The catalog says so first, durably; the new
//! layer is empty, so whether writes have gone to it when a crash comes makes no difference to what is read. Then writers to
//! the volumes are kept waiting in all shards at once, the volumes take their new layers, and writers go on. Nothing is copied
//! and nothing is read, whatever the volumes hold.

use super::control::Control;
use super::{Grounds, Pool, PoolError, random_uuid, volume_of};
use crate::format::catalog::{VOLUME_NAME_BYTES_MAX, VolumeEntry, VolumeState};
use crate::meta::catalog::{SNAPSHOT_MARK, volume_part};
use crate::meta::{self, Edit};
use crate::shard::{Defect, Shard, Succession};
use crate::units::Below;
use crate::volume::{PoolVolume, Shown};
use bdev::Status;
use reactor::Reactor;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Layers that leave the list of volumes between two looks at the clock.
const LAYERS_PER_STEP: usize = 64;

/// A volume that is to have a snapshot.
struct Wanted {
    /// Its uppermost layer.
    layer: u32,
    /// The snapshot's full name.
    name: String,
    uuid: Uuid,
    /// What it is a copy of.
    content: Option<Uuid>,
    shown: Shown,
}

/// A volume that is to become what a snapshot is.
struct Returning {
    /// The snapshot's layer.
    below: u32,
    volume: Arc<PoolVolume>,
}

impl Returning {
    /// The volume's uppermost layer, which goes.
    fn former(&self) -> u32 {
        self.volume.shown().layer()
    }
}

impl Pool {
    /// Makes a snapshot of each of these volumes, all of them at one moment: (volume, name of the snapshot). A snapshot is a
    /// volume named `volume@snapshot` that can be read. It takes no time and no space, however large the volume is; each
    /// extent (4 MiB) that is written to afterwards takes one more.
    pub async fn snapshot(
        &self,
        reactor: &Rc<Reactor>,
        wanted: &[(&str, &str)],
        created_s: u64,
    ) -> Result<Vec<Arc<PoolVolume>>, PoolError> {
        let mut all: Vec<Wanted> = Vec::new();
        for (volume, snapshot) in wanted {
            let wanted = self.wanted(reactor, volume, snapshot, None)?;
            if all.iter().any(|other| other.layer == wanted.layer) {
                let reason = format!("volume '{volume}' is named twice: one snapshot of it is enough");
                return Err(self.shared.refuse(Grounds::Value, reason));
            }
            all.push(wanted);
        }
        self.make_snapshots(reactor, all, created_s).await
    }

    /// Makes a snapshot of a volume that holds what another pool's snapshot does.
    pub(crate) async fn snapshot_copy(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        snapshot: &str,
        content: Uuid,
        created_s: u64,
    ) -> Result<Arc<PoolVolume>, PoolError> {
        let wanted = self.wanted(reactor, volume, snapshot, Some(content))?;
        Ok(self.make_snapshots(reactor, vec![wanted], created_s).await?.remove(0))
    }

    fn wanted(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        snapshot: &str,
        content: Option<Uuid>,
    ) -> Result<Wanted, PoolError> {
        let (shown, name) = (self.live(volume)?.shown().clone(), self.snapshot_name(volume, snapshot)?);
        Ok(Wanted { layer: shown.layer(), name, uuid: random_uuid(reactor), content, shown })
    }

    async fn make_snapshots(
        &self,
        reactor: &Rc<Reactor>,
        all: Vec<Wanted>,
        created_s: u64,
    ) -> Result<Vec<Arc<PoolVolume>>, PoolError> {
        let shared = self.shared.clone();
        let make =
            move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.snapshot(all, created_s).await };
        let made = reactor.call_on(self.shared.control, make).await?;
        let mut volumes = self.known_volumes();
        let mut snapshots = Vec::new();
        for (snapshot, layer) in made {
            if let Some(volume) = volumes.remove(snapshot.id) {
                volumes.insert(layer, volume);
            }
            let volume = Arc::new(volume_of(&self.shared, &snapshot));
            volumes.insert(snapshot.id, volume.clone());
            snapshots.push(volume);
        }
        Ok(snapshots)
    }

    /// Makes a volume that begins as a snapshot is. It takes no time; what neither writes, both share.
    pub async fn clone_volume(
        &self,
        reactor: &Rc<Reactor>,
        snapshot: &str,
        name: &str,
        created_s: u64,
    ) -> Result<Arc<PoolVolume>, PoolError> {
        let source = self.of_name(snapshot)?;
        if !source.identity().is_snapshot {
            let reason = format!("'{snapshot}' is a volume that is written to: make a snapshot of it, and clone that");
            return Err(self.shared.refuse(Grounds::Value, reason));
        }
        self.check_volume_name(name)?;
        let (shared, layer) = (self.shared.clone(), source.shown().layer());
        let (name, uuid) = (name.to_string(), random_uuid(reactor));
        let make = move |there: Rc<Reactor>| async move {
            Control::of(&there, &shared)?.clone_layer(layer, name, uuid, created_s).await
        };
        let entry = reactor.call_on(self.shared.control, make).await?;
        let volume = Arc::new(volume_of(&self.shared, &entry));
        self.known_volumes().insert(entry.id, volume.clone());
        Ok(volume)
    }

    /// Makes a volume what one of its snapshots is, as [`roll_back_all`](Self::roll_back_all).
    pub async fn roll_back(&self, reactor: &Rc<Reactor>, snapshot: &str) -> Result<(), PoolError> {
        self.roll_back_all(reactor, &[snapshot]).await
    }

    /// Makes volumes what one snapshot of each is, size included, all of them or, after a crash, none. What was written since is given
    /// up; later snapshots stay. It takes no time. Hosts that use the volumes find them changed under them: nobody should.
    pub async fn roll_back_all(&self, reactor: &Rc<Reactor>, snapshots: &[&str]) -> Result<(), PoolError> {
        let mut all: Vec<Returning> = Vec::new();
        for snapshot in snapshots {
            let source = self.of_name(snapshot)?;
            let Some((volume, _)) = snapshot.rsplit_once(SNAPSHOT_MARK).filter(|_| source.identity().is_snapshot)
            else {
                let reason = format!("'{snapshot}' is no snapshot: those are named 'volume@snapshot'");
                return Err(self.shared.refuse(Grounds::Value, reason));
            };
            let returning = self.returning(volume, snapshot)?;
            if all.iter().any(|other| other.former() == returning.former()) {
                let reason = format!("volume '{volume}' is named twice: it cannot become what two snapshots are");
                return Err(self.shared.refuse(Grounds::Value, reason));
            }
            all.push(returning);
        }
        self.return_all(reactor, all).await
    }

    /// The same of a volume that goes on from the snapshot, whosever that is.
    pub(crate) async fn roll_back_volume(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        snapshot: &str,
    ) -> Result<(), PoolError> {
        let returning = self.returning(volume, snapshot)?;
        self.return_all(reactor, vec![returning]).await
    }

    fn returning(&self, volume: &str, snapshot: &str) -> Result<Returning, PoolError> {
        let (source, volume) = (self.of_name(snapshot)?, self.live(volume)?);
        if volume.identity().origin != source.identity().origin {
            let reason = format!("'{snapshot}' is not a snapshot of this volume '{}'", volume.identity().name);
            return Err(self.shared.refuse(Grounds::Value, reason));
        }
        Ok(Returning { below: source.shown().layer(), volume })
    }

    async fn return_all(&self, reactor: &Rc<Reactor>, all: Vec<Returning>) -> Result<(), PoolError> {
        let steps: Vec<(u32, u32, Shown)> =
            all.iter().map(|one| (one.former(), one.below, one.volume.shown().clone())).collect();
        let (shared, formers) = (self.shared.clone(), steps.iter().map(|(former, ..)| *former).collect::<Vec<_>>());
        let roll = move |there: Rc<Reactor>| async move {
            let control = Control::of(&there, &shared)?;
            let layers = control.roll_back(&steps).await?;
            control.reap_beside();
            Ok::<_, PoolError>(layers)
        };
        let layers = reactor.call_on(self.shared.control, roll).await?;
        let mut volumes = self.known_volumes();
        for ((one, former), layer) in all.into_iter().zip(formers).zip(layers) {
            volumes.remove(former);
            volumes.insert(layer, one.volume);
        }
        Ok(())
    }

    /// Deletes a volume and frees what it has. Nobody may use it any more. One that has snapshots is refused.
    pub async fn delete_volume(&self, reactor: &Rc<Reactor>, name: &str) -> Result<(), PoolError> {
        let volume = self.live(name)?;
        let snapshots = self.snapshots_of(name);
        if let Some(first) = snapshots.first() {
            let (count, first) = (snapshots.len(), &first.identity().name);
            let reason = format!(
                "volume '{name}' has snapshots ({count}, the first is '{first}'): delete these first, or together with it"
            );
            return Err(self.shared.refuse(Grounds::State, reason));
        }
        self.delete_all(reactor, vec![volume]).await
    }

    /// Deletes a volume and all of its snapshots. What clones show of these becomes their own.
    pub async fn delete_volume_and_snapshots(&self, reactor: &Rc<Reactor>, name: &str) -> Result<(), PoolError> {
        let mut all = self.snapshots_of(name);
        all.push(self.live(name)?);
        self.delete_all(reactor, all).await
    }

    /// The same, giving way to users: nobody waits for its end. [`PoolStatus::going_unshown`](crate::PoolStatus::going_unshown) tells of that.
    pub async fn let_volume_and_snapshots_go(&self, reactor: &Rc<Reactor>, name: &str) -> Result<(), PoolError> {
        let mut all = self.snapshots_of(name);
        all.push(self.live(name)?);
        self.let_all_go_beside(reactor, &all).await
    }

    async fn delete_all(&self, reactor: &Rc<Reactor>, all: Vec<Arc<PoolVolume>>) -> Result<(), PoolError> {
        let going: Vec<u32> = self.let_go(reactor, &all).await?;
        let shared = self.shared.clone();
        let gone = move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.gone(&going).await };
        reactor.call_on(self.shared.control, gone).await
    }

    /// Has volumes and snapshots go: from here on they cannot be used any more. Their layers.
    async fn let_go(&self, reactor: &Rc<Reactor>, all: &[Arc<PoolVolume>]) -> Result<Vec<u32>, PoolError> {
        let state = |volume: &PoolVolume| match volume.identity().is_snapshot {
            true => VolumeState::Snapshot,
            false => VolumeState::Live,
        };
        let going: Vec<(u32, VolumeState)> = all.iter().map(|volume| (volume.shown().layer(), state(volume))).collect();
        let layers: Vec<u32> = going.iter().map(|(layer, _)| *layer).collect();
        let shared = self.shared.clone();
        let delete = move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.let_go(&going).await };
        reactor.call_on(self.shared.control, delete).await?;
        for some in layers.chunks(LAYERS_PER_STEP) {
            {
                let mut volumes = self.known_volumes();
                some.iter().for_each(|layer| _ = volumes.remove(*layer));
            }
            if reactor.is_turn_long() {
                reactor.yield_now().await;
            }
        }
        Ok(layers)
    }

    /// Deletes a snapshot, as [`delete_snapshots`](Self::delete_snapshots).
    pub async fn delete_snapshot(&self, reactor: &Rc<Reactor>, name: &str) -> Result<(), PoolError> {
        self.delete_snapshots(reactor, &[name]).await
    }

    /// Deletes snapshots, all of them at once. What the layer above one shows becomes that one's own, in the background; while several
    /// clones lie over it, its blocks stay. Nobody may use them any more.
    pub async fn delete_snapshots(&self, reactor: &Rc<Reactor>, names: &[&str]) -> Result<(), PoolError> {
        let mut all: Vec<Arc<PoolVolume>> = Vec::new();
        for name in names {
            let snapshot = self.of_name(name)?;
            if !snapshot.identity().is_snapshot {
                return Err(self.shared.refuse(Grounds::Value, format!("'{name}' is a volume, not a snapshot")));
            }
            if all.iter().any(|other| other.layer() == snapshot.layer()) {
                return Err(self.shared.refuse(Grounds::Value, format!("'{name}' is named twice")));
            }
            all.push(snapshot);
        }
        self.let_all_go_beside(reactor, &all).await
    }

    /// Has a volume or snapshot go; what it has is given back in the background.
    pub(crate) async fn let_go_beside(&self, reactor: &Rc<Reactor>, volume: Arc<PoolVolume>) -> Result<(), PoolError> {
        self.let_all_go_beside(reactor, &[volume]).await
    }

    async fn let_all_go_beside(&self, reactor: &Rc<Reactor>, all: &[Arc<PoolVolume>]) -> Result<(), PoolError> {
        self.let_go(reactor, all).await?;
        let shared = self.shared.clone();
        let reap =
            move |there: Rc<Reactor>| async move { Control::of(&there, &shared).map(|control| control.reap_beside()) };
        reactor.call_on(self.shared.control, reap).await
    }

    /// Waits until everything that is deleted is gone, as far as clones allow that.
    pub async fn reap(&self, reactor: &Rc<Reactor>) -> Result<(), PoolError> {
        let shared = self.shared.clone();
        let reap = move |there: Rc<Reactor>| async move { Control::of(&there, &shared)?.reap().await };
        reactor.call_on(self.shared.control, reap).await
    }

    pub(crate) fn of_name(&self, name: &str) -> Result<Arc<PoolVolume>, PoolError> {
        self.volume(name).ok_or_else(|| self.shared.refuse(Grounds::Missing, format!("has no volume '{name}'")))
    }

    /// A volume that is not a snapshot.
    pub(crate) fn live(&self, name: &str) -> Result<Arc<PoolVolume>, PoolError> {
        let found = self.of_name(name)?;
        match found.identity().is_snapshot {
            false => Ok(found),
            true => Err(self.shared.refuse(Grounds::Value, format!("'{name}' is a snapshot, not a volume"))),
        }
    }

    fn snapshots_of(&self, name: &str) -> Vec<Arc<PoolVolume>> {
        let is_its =
            |volume: &&Arc<PoolVolume>| volume.identity().is_snapshot && volume_part(&volume.identity().name) == name;
        let mut found: Vec<Arc<PoolVolume>> =
            self.known_volumes().of_prefix(format!("{name}{SNAPSHOT_MARK}")).filter(is_its).cloned().collect();
        // The oldest first.
        found.sort_unstable_by_key(|volume| volume.layer());
        found
    }

    pub(crate) fn snapshot_name(&self, volume: &str, snapshot: &str) -> Result<String, PoolError> {
        let name = format!("{volume}{SNAPSHOT_MARK}{snapshot}");
        let is_text = snapshot.chars().all(|char| char != SNAPSHOT_MARK && !char.is_control());
        if snapshot.is_empty() || !is_text || name.len() > VOLUME_NAME_BYTES_MAX {
            let reason = format!(
                "a snapshot named '{name}': expected 'volume@snapshot' of at most {VOLUME_NAME_BYTES_MAX} bytes, with one '@'"
            );
            return Err(self.shared.refuse(Grounds::Value, reason));
        }
        Ok(name)
    }

    pub(super) fn check_volume_name(&self, name: &str) -> Result<(), PoolError> {
        if name.is_empty() || name.len() > VOLUME_NAME_BYTES_MAX {
            return Err(self
                .shared
                .refuse(Grounds::Value, format!("a volume name of {} bytes: expected 1 to 128", name.len())));
        }
        if name.contains(SNAPSHOT_MARK) {
            return Err(self
                .shared
                .refuse(Grounds::Value, format!("a volume named '{name}': '{SNAPSHOT_MARK}' is for snapshots")));
        }
        Ok(())
    }
}

impl Control {
    /// Lays a new layer over each; the snapshots, and the numbers of the new layers.
    async fn snapshot(&self, all: Vec<Wanted>, created_s: u64) -> Result<Vec<(VolumeEntry, u32)>, PoolError> {
        let _alone = self.alone().await;
        self.check_room(all.len())?;
        let first = self.catalog.borrow().next_id();
        let (mut made, mut successions) = (Vec::new(), Vec::new());
        for (next, wanted) in (first..).zip(&all) {
            if self.catalog.borrow().is_taken(&wanted.name) {
                return Err(self.shared.refuse(Grounds::State, format!("already has a snapshot '{}'", wanted.name)));
            }
            let volume = self.entry(wanted.layer)?;
            self.expect_state(&volume, VolumeState::Live)?;
            let (state, name, uuid) = (VolumeState::Snapshot, wanted.name.clone(), wanted.uuid);
            let content = wanted.content.unwrap_or(uuid);
            let snapshot = VolumeEntry { state, name, uuid, content, created_s, ..volume.clone() };
            let over = VolumeEntry { id: next, parent: volume.id, overlap: volume.blocks, ..volume };
            let below = Below { layer: snapshot.id, blocks: over.overlap };
            successions.push((Succession { from: snapshot.id, to: next, below }, wanted.shown.clone()));
            made.push((snapshot, over));
        }
        self.use_layers().await?;
        let mut edit = Edit::default();
        for (snapshot, over) in &made {
            edit.put(snapshot.clone());
            edit.put(over.clone());
        }
        self.change(edit).await?;
        self.succeed(successions).await?;
        Ok(made.into_iter().map(|(snapshot, over)| (snapshot, over.id)).collect())
    }

    async fn clone_layer(
        &self,
        layer: u32,
        name: String,
        uuid: Uuid,
        created_s: u64,
    ) -> Result<VolumeEntry, PoolError> {
        let _alone = self.alone().await;
        self.check_room(1)?;
        if self.catalog.borrow().is_taken(&name) {
            return Err(self.shared.refuse(Grounds::State, format!("already has a volume '{name}'")));
        }
        let source = self.entry(layer)?;
        self.expect_state(&source, VolumeState::Snapshot)?;
        let id = self.catalog.borrow().next_id();
        let (state, overlap) = (VolumeState::Live, source.blocks);
        let entry = VolumeEntry { id, state, name, uuid, content: uuid, created_s, parent: layer, overlap, ..source };
        let mut edit = Edit::default();
        edit.put(entry.clone());
        self.change(edit).await?;
        self.lay(&entry).await;
        Ok(entry)
    }

    /// Lays new layers, each over the second one of a step and in the place of the first; their numbers.
    async fn roll_back(&self, steps: &[(u32, u32, Shown)]) -> Result<Vec<u32>, PoolError> {
        let _alone = self.alone().await;
        self.check_room(steps.len())?;
        let first = self.catalog.borrow().next_id();
        let (mut edit, mut successions) = (Edit::default(), Vec::new());
        for (id, (former, below, shown)) in (first..).zip(steps) {
            let (volume, snapshot) = (self.entry(*former)?, self.entry(*below)?);
            self.expect_state(&volume, VolumeState::Live)?;
            self.expect_state(&snapshot, VolumeState::Snapshot)?;
            let blocks = snapshot.blocks;
            edit.put(VolumeEntry { state: VolumeState::Deleting, ..volume.clone() });
            edit.put(VolumeEntry { id, parent: *below, overlap: blocks, blocks, ..volume });
            let succession = Succession { from: *former, to: id, below: Below { layer: *below, blocks } };
            successions.push((succession, shown.clone()));
            if self.shared.defect == Some(Defect::RollBackApart) {
                self.change(std::mem::take(&mut edit)).await?;
            }
        }
        self.change(edit).await?;
        for (succession, shown) in &successions {
            shown.shrink_to(succession.below.blocks);
        }
        self.succeed(successions.clone()).await?;
        for (succession, shown) in &successions {
            shown.resize(succession.below.blocks);
        }
        Ok(successions.iter().map(|(succession, _)| succession.to).collect())
    }

    /// Has the layers go, which are in these states; volumes only with all of their snapshots.
    async fn let_go(&self, going: &[(u32, VolumeState)]) -> Result<(), PoolError> {
        let _alone = self.alone().await;
        let layers: BTreeSet<u32> = going.iter().map(|(layer, _)| *layer).collect();
        let mut edit = Edit::default();
        for (layer, state) in going {
            let entry = self.entry(*layer)?;
            self.expect_state(&entry, *state)?;
            self.give_way().await;
            if *state == VolumeState::Live {
                let snapshots = self.snapshots_of(&entry.name).await;
                if let Some(left) = snapshots.into_iter().find(|other| !layers.contains(other)) {
                    let reason = format!("volume '{}' has a new snapshot '{}'", entry.name, self.entry(left)?.name);
                    return Err(self.shared.refuse(Grounds::State, reason));
                }
            }
            edit.put(VolumeEntry { state: VolumeState::Deleting, ..entry });
        }
        self.change(edit).await
    }

    fn expect_state(&self, entry: &VolumeEntry, state: VolumeState) -> Result<(), PoolError> {
        if entry.state == state {
            return Ok(());
        }
        Err(self.shared.refuse(Grounds::State, format!("'{}' has been deleted, or has changed meanwhile", entry.name)))
    }

    /// Says on both devices that there may be layers, before there are: older programs must not open the pool any more.
    async fn use_layers(&self) -> Result<(), PoolError> {
        let mut superblock = self.superblock.borrow().clone();
        if superblock.layered {
            return Ok(());
        }
        superblock.layered = true;
        let mut on_log = superblock.counterpart();
        meta::write_superblock(&self.reactor, self.log.channel.clone(), self.log.info, &mut on_log).await?;
        meta::write_superblock(&self.reactor, self.capacity.clone(), self.capacity_info, &mut superblock).await?;
        self.superblock.replace(superblock);
        Ok(())
    }

    /// Tells all shards what lies below a layer.
    pub(super) async fn lay(&self, entry: &VolumeEntry) {
        let (layer, below) = (entry.id, Below { layer: entry.parent, blocks: entry.overlap });
        let below = (below.layer != 0).then_some(below);
        self.shared.on_shards(&self.reactor, move |shard| async move { shard.lay(layer, below) }).await;
    }

    /// Makes the new layers those of their volumes, in all shards at one moment.
    async fn succeed(&self, all: Vec<(Succession, Shown)>) -> Result<(), PoolError> {
        let successions: Arc<[Succession]> = all.iter().map(|(succession, _)| *succession).collect();
        let freeze = |shard: Rc<Shard>, all: Arc<[Succession]>| async move { shard.freeze(&all).await };
        let frozen = self.shared.on_all_shards(&self.reactor, successions.clone(), freeze).await;
        if frozen.iter().any(Option::is_none) {
            let thaw = |shard: Rc<Shard>, all: Arc<[Succession]>| async move { shard.thaw_unchanged(&all) };
            self.shared.on_all_shards(&self.reactor, successions, thaw).await;
            return Err(self.shared.io_error("keep writers waiting", Status::Gone));
        }
        // What is begun from here on goes to the new layers, and nothing goes to the former ones any more.
        for (succession, shown) in &all {
            shown.lay(succession.to);
        }
        let thaw = |shard: Rc<Shard>, all: Arc<[Succession]>| async move { shard.thaw(&all) };
        self.shared.on_all_shards(&self.reactor, successions, thaw).await;
        Ok(())
    }
}
