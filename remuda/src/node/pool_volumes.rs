//! Volumes in pools: thin, and known to the pool's catalog alone. The node remembers of them only what hosts were told
//! (identity and size of those that are namespaces), to show them as not ready while their pool is not open.

use super::absent::AbsentVolume;
use super::pools::pool_refused;
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::snapshots::is_snapshot;
use super::state::{Origin, ShownVolume};
use super::view::{DeletedView, VolumeView};
use super::{NewSize, Node};
use crate::clock::seconds_now;
use crate::config::{POOL_VOLUME_BYTES_MAX as SIZE_MAX, PoolVolumeEntry, UNITS_HINT};
use base::ByteSize;
use bdev::BlockDevice;
use engine::PoolVolume;
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

/// The engine's block; sizes are multiples of it.
const BLOCK: u64 = engine::BLOCK_BYTES as u64;

/// Names of snapshots in a message.
const NAMES_MAX: usize = 8;

/// An open volume of a pool.
pub(super) struct PoolVolumeSlot {
    pub(super) pool: String,
    pub(super) volume: Arc<PoolVolume>,
}

impl Node {
    /// Makes the volumes of an open pool the node's, and those that the configuration wants and the pool lacks.
    pub(super) async fn adopt_volumes(&mut self, pool: &str) {
        self.drop_half_imports(pool).await;
        let Ok(open) = self.open_pool_of(pool) else { return };
        for volume in open.pool.volumes() {
            self.adopt_volume(pool, volume);
        }
        for entry in self.config.pool_volumes.clone().into_iter().filter(|entry| entry.pool.value == pool) {
            let name = &entry.name.value;
            if self.pool_volumes.get(name).is_some_and(|slot| slot.pool == pool) {
                continue;
            }
            if let Err(refusal) = self.pool_volume_create(name, pool, entry.size, entry.block_size).await {
                self.warn(refusal.to_string());
            }
        }
    }

    pub(super) fn adopt_volume(&mut self, pool: &str, volume: Arc<PoolVolume>) {
        let name = volume.name().to_string();
        if let Some(place) = self.place_as_made(&name) {
            self.warn(format!(
                "volume '{name}' of pool '{pool}' is not served: there is a volume of this name {place} too; delete that one \
                 and restart the node"
            ));
            return;
        }
        let served = self.served(&name, volume.clone());
        self.volumes.insert(name.clone(), served);
        self.pool_volumes.insert(name, PoolVolumeSlot { pool: pool.to_string(), volume });
    }

    /// Where the volume of a name is, for messages; a name that the configuration file gives to a volume is taken, also
    /// while the pool is not open.
    pub(super) fn place_of_volume(&self, name: &str) -> Option<String> {
        let unseen = || self.unseen(name).map(|entry| format!("in pool '{}', which is not open", entry.pool.value));
        self.place_as_made(name).or_else(unseen)
    }

    /// Where the volume of a name is that has certainly been made.
    fn place_as_made(&self, name: &str) -> Option<String> {
        let on_device = self.state.volumes.get(name).map(|record| format!("on device '{}'", record.device));
        let in_pool = || self.pool_volumes.get(name).map(|slot| format!("in pool '{}'", slot.pool));
        let absent = || self.absent(name).map(|shown| format!("in pool '{}', which is not open", shown.pool));
        let imported = || self.importing(name).map(|pool| format!("in pool '{pool}', where it is being imported"));
        on_device.or_else(in_pool).or_else(absent).or_else(imported)
    }

    /// What hosts were told of a volume whose pool is known but not open.
    fn absent(&self, name: &str) -> Option<&ShownVolume> {
        let shown = self.state.shown.get(name)?;
        self.pools.get(&shown.pool).filter(|slot| slot.live.is_err()).map(|_| shown)
    }

    /// A volume of the configuration file whose pool is not open, and of which no host was told.
    fn unseen(&self, name: &str) -> Option<&PoolVolumeEntry> {
        let entry = self.config.pool_volumes.iter().find(|entry| entry.name.value == name)?;
        let is_closed = self.pools.get(&entry.pool.value).is_some_and(|slot| slot.live.is_err());
        let is_other = self.pool_volumes.contains_key(name) || self.state.volumes.contains_key(name);
        (is_closed && !is_other).then_some(entry)
    }

    /// What stands for a volume towards hosts, and its identity.
    pub(super) fn export_of(&self, name: &str) -> Option<(Arc<dyn BlockDevice>, Uuid)> {
        if let Some(device) = self.volumes.get(name) {
            let (_, uuid) = self.identity_of(name)?;
            return Some((device.clone(), uuid));
        }
        let shown = self.absent(name)?;
        Some((Arc::new(AbsentVolume::new(name, shown.block_size, shown.blocks)), shown.uuid))
    }

    /// Bytes and identity of a volume, wherever it is.
    pub(super) fn identity_of(&self, name: &str) -> Option<(u64, Uuid)> {
        if let Some(record) = self.state.volumes.get(name) {
            return Some((record.size, record.uuid));
        }
        if let Some(slot) = self.pool_volumes.get(name) {
            return Some((slot.volume.info().bytes(), slot.volume.identity().uuid));
        }
        self.absent(name).map(|shown| (shown.blocks * shown.block_size as u64, shown.uuid))
    }

    /// Remembers what hosts are told of volumes in pools, if that is something new.
    pub(super) fn remember_shown(&mut self) -> Result<(), Refusal> {
        let namespaces = self.subsystems.values().flat_map(|subsystem| &subsystem.record.namespaces);
        let names: BTreeSet<&str> = namespaces.map(|namespace| namespace.volume.as_str()).collect();
        let mut shown = std::collections::BTreeMap::new();
        for name in names {
            let now = self.pool_volumes.get(name).map(|slot| {
                let info = slot.volume.info();
                let uuid = slot.volume.identity().uuid;
                ShownVolume { pool: slot.pool.clone(), uuid, block_size: info.block_size, blocks: info.blocks }
            });
            if let Some(now) = now.or_else(|| self.absent(name).cloned()) {
                shown.insert(name.to_string(), now);
            }
        }
        if shown == self.state.shown {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.shown = shown;
        self.remember(state)
    }

    /// Names of the volumes of a pool, as far as they are known.
    pub(super) fn volumes_of_pool<'a>(&'a self, pool: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        let open = self.pool_volumes.iter().filter(move |(_, slot)| slot.pool == pool).map(|(name, _)| name.as_str());
        let absent = self.absent_volumes().filter(move |(_, shown)| shown.pool == pool);
        open.chain(absent.map(|(name, _)| name.as_str()))
    }

    /// What hosts were told of volumes whose pools are known but not open.
    pub(super) fn absent_volumes(&self) -> impl Iterator<Item = (&String, &ShownVolume)> {
        self.state.shown.iter().filter(|(name, _)| self.absent(name).is_some())
    }

    /// Lets go of the volumes of a pool that is being closed.
    pub(super) fn drop_volumes(&mut self, pool: &str) {
        let names: Vec<String> = self.volumes_of_pool(pool).map(str::to_string).collect();
        for name in names {
            self.volumes.remove(&name);
            self.pool_volumes.remove(&name);
        }
    }

    fn pool_volume_origin(&self, name: &str) -> Origin {
        let configured = self.config.pool_volumes.iter().any(|entry| entry.name.value == name);
        if configured { Origin::Config } else { Origin::Runtime }
    }

    /// A volume of a pool that is open, or of one that is not but whose hosts know of it.
    pub(super) fn pool_volume_view(&self, name: &str) -> Option<VolumeView> {
        let (pool, block_size, state) = match self.pool_volumes.get(name) {
            Some(slot) => (&slot.pool, slot.volume.info().block_size, "open".to_string()),
            None => match self.absent(name) {
                Some(shown) => (&shown.pool, shown.block_size, not_ready(&shown.pool)),
                None => {
                    let entry = self.unseen(name)?;
                    (&entry.pool.value, entry.block_size, not_ready(&entry.pool.value))
                }
            },
        };
        let (size, uuid) = match self.identity_of(name) {
            Some(known) => known,
            // As the file has it; what it has become since is in its pool.
            None => (self.unseen(name)?.size, Uuid::nil()),
        };
        Some(VolumeView {
            name: name.to_string(),
            device: None,
            pool: Some(pool.clone()),
            size,
            offset: None,
            block_size,
            uuid,
            size_max: SIZE_MAX,
            allocated: None,
            kin: None,
            exports: self.exports_of(name),
            origin: self.pool_volume_origin(name),
            state,
        })
    }

    /// All volumes in pools, and the snapshots that hosts may use.
    pub(super) fn pool_volume_views(&self) -> Vec<VolumeView> {
        let exported = self.exported();
        let is_listed = |slot: &PoolVolumeSlot, name: &str| !is_snapshot(&slot.volume) || exported.contains(name);
        let open = self.pool_volumes.iter().filter(|(name, slot)| is_listed(slot, name)).map(|(name, _)| name);
        let absent = self.absent_volumes().map(|(name, _)| name);
        let configured = self.config.pool_volumes.iter().map(|entry| &entry.name.value);
        let unseen = configured.filter(|name| self.absent(name).is_none() && self.unseen(name).is_some());
        let names = open.chain(absent).chain(unseen);
        names.filter_map(|name| self.pool_volume_view(name)).collect()
    }

    /// A new thin volume of `size` bytes, all zeroes; it may be larger than the pool.
    pub async fn pool_volume_create(
        &mut self,
        name: &str,
        pool: &str,
        size: u64,
        block_size: u32,
    ) -> Result<VolumeView, Refusal> {
        self.check_running()?;
        let object = format!("volume '{name}'");
        if let Some(place) = self.place_of_volume(name) {
            let cause = format!("it exists already {place}");
            return Err(Refusal::conflict(object, cause, "choose another name, or delete it first"));
        }
        let open = self.open_pool_of(pool)?;
        check_size(&object, size)?;
        if !matches!(block_size, 512 | 4096) {
            return Err(Refusal::invalid(object, format!("blocks of {block_size} bytes"), "use 512 or 4096"));
        }
        let created_s = seconds_now();
        let (new, shift) = (name.to_string(), block_size.trailing_zeros() as u16);
        let created = on_reactor_async(self.reactors.first(), move |reactor| async move {
            open.pool.create_volume(&reactor, &new, size / BLOCK, shift, created_s).await
        });
        let volume = created.await?.map_err(|error| pool_refused(pool, error, ""))?;
        self.adopt_volume(pool, volume);
        tracing::info!(volume = name, pool, size, "volume created");
        self.volume_show(name)
    }

    /// Gives a volume in a pool another size.
    pub(super) async fn pool_volume_resize(
        &mut self,
        name: &str,
        new: NewSize,
        shrink: bool,
        force: bool,
    ) -> Result<VolumeView, Refusal> {
        let object = format!("volume '{name}'");
        self.check_not_streamed(name)?;
        let volume = self.volume_device(name)?;
        let info = volume.info();
        let size = match new {
            NewSize::To(size) => Some(size),
            NewSize::By(more) => info.bytes().checked_add(more),
            NewSize::Max => {
                let next = "give it a size; it takes space only for what is written";
                return Err(Refusal::invalid(
                    object,
                    "a volume in a pool is thin and has no natural largest size",
                    next,
                ));
            }
        };
        let size = size.unwrap_or(u64::MAX);
        check_size(&object, size)?;
        if size < info.bytes() && !shrink {
            let (new, old) = (ByteSize(size), ByteSize(info.bytes()));
            let cause = format!("{new} is less than its size {old}: the data past the end would be lost");
            return Err(Refusal::invalid(object, cause, "add --shrink if that is meant"));
        }
        if size < info.bytes() && !force {
            self.check_nobody_is_cut(name).await?;
        }
        super::build::resize(self.reactors.first(), volume, size / info.block_size as u64).await?;
        self.remember_shown()?;
        self.announce_volume(name).await?;
        tracing::info!(volume = name, size, "volume resized");
        self.volume_show(name)
    }

    /// Deletes a volume in a pool and frees what it has; with its snapshots, if it has any.
    pub(super) async fn pool_volume_delete(
        &mut self,
        name: &str,
        snapshots: bool,
        background: bool,
    ) -> Result<DeletedView, Refusal> {
        let object = format!("volume '{name}'");
        if self.pool_volume_origin(name) == Origin::Config {
            return Err(self.belongs_to_config(object));
        }
        let mut going = self.snapshots_of(name);
        if !snapshots && !going.is_empty() {
            let cause = format!("it has snapshots: {}", some_of(&going));
            let next = "delete these first ('remuda snapshot delete'), or all at once with --snapshots";
            return Err(Refusal::conflict(object, cause, next));
        }
        going.push(name.to_string());
        going.iter().try_for_each(|name| self.check_unused(name))?;
        let pool = self.pool_volumes.get(name).map(|slot| slot.pool.clone());
        let pool = pool.ok_or_else(|| Refusal::failed(&object, "its pool is not open", "see 'remuda pool list'"))?;
        let open = self.open_pool_of(&pool)?;
        for name in &going {
            self.volumes.remove(name);
            self.pool_volumes.remove(name);
        }
        let old = name.to_string();
        let deleted = on_reactor_async(self.reactors.first(), move |reactor| async move {
            let ended = match background {
                true => open.pool.let_volume_and_snapshots_go(&reactor, &old).await,
                false => open.pool.delete_volume_and_snapshots(&reactor, &old).await,
            };
            let left = if ended.is_ok() { Vec::new() } else { going };
            (ended, left.into_iter().filter_map(|name| open.pool.volume(&name)).collect::<Vec<_>>())
        });
        let (ended, left) = deleted.await?;
        if let Err(error) = ended {
            left.into_iter().for_each(|volume| self.adopt_volume(&pool, volume));
            return Err(pool_refused(&pool, error, "try again; see 'remuda pool status'"));
        }
        tracing::info!(volume = name, pool, "volume deleted");
        Ok(DeletedView { pool: background.then_some(pool) })
    }
}

/// The first names of many.
fn some_of(names: &[String]) -> String {
    let (first, others) = names.split_at(names.len().min(NAMES_MAX));
    let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    format!("{}{others}", first.join(", "))
}

fn not_ready(pool: &str) -> String {
    format!("not ready: pool '{pool}' is not open")
}

fn check_size(object: &str, size: u64) -> Result<(), Refusal> {
    if size == 0 || !size.is_multiple_of(BLOCK) || size > SIZE_MAX {
        let cause = format!("{size} bytes is not a multiple of 4 KiB from 4 KiB to {}", ByteSize(SIZE_MAX));
        return Err(Refusal::invalid(object, cause, UNITS_HINT));
    }
    Ok(())
}
