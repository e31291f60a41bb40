//! Volumes: contiguous parts of devices, with an identity that stays.

use super::build::deallocate;
use super::extents::{ALIGN, Extent, largest_free, place, room_at};
use super::pool_view::PoolView;
use super::refusal::{Refusal, RefusalKind};
use super::state::{Origin, VolumeRecord};
use super::view::{DeletedView, VolumeView};
use super::window::Window;
use super::{Node, OBJECTS_MAX};
use crate::config::{UNITS_HINT, VolumeEntry};
use base::ByteSize;
use bdev::{BlockDevice, StatsDevice};
use engine::Holds;
use std::sync::Arc;
use uuid::Uuid;

/// How a new size is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// So many bytes.
    To(u64),
    /// So many bytes more.
    By(u64),
    /// As far as it goes where it is.
    Max,
}

impl NewSize {
    /// Reads `10GiB`, `+1GiB` or `max`.
    pub fn parse(text: &str) -> Result<NewSize, String> {
        let size = |text: &str| text.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string());
        match text.trim() {
            "max" => Ok(NewSize::Max),
            text => match text.strip_prefix('+') {
                Some(more) => size(more).map(NewSize::By),
                None => size(text).map(NewSize::To),
            },
        }
    }
}

/// Bytes that a volume has of its pool.
fn allocated(pools: &[PoolView], volume: &str, pool: Option<&str>) -> Option<u64> {
    let pool = pools.iter().find(|view| Some(view.name.as_str()) == pool)?;
    pool.open.as_ref()?.allocated.get(volume).copied()
}

impl Node {
    pub(super) fn open_volumes(&mut self) -> Result<(), Refusal> {
        for entry in self.config.volumes.clone() {
            self.place_volume(&entry)?;
        }
        for (name, record) in self.state.volumes.clone() {
            let configured = self.is_configured_volume(&name);
            if record.origin == Origin::Config && !configured {
                self.warn(format!(
                    "volume '{name}' is no longer in {}: its place is kept, it is not served; put it back or run 'remuda volume \
                     delete {name}'",
                    self.config.source.path
                ));
                continue;
            }
            if self.is_closed(&record.device) {
                continue;
            }
            match self.open_volume(&name, &record) {
                Ok(volume) => {
                    self.volumes.insert(name, volume);
                }
                Err(refusal) if configured => return Err(refusal),
                Err(refusal) => self.warn(refusal.to_string()),
            }
        }
        Ok(())
    }

    /// Opens the volumes of a device that could not be opened before, as far as they can be; gives those that are open now.
    pub(super) fn open_volumes_on(&mut self, device: &str) -> Vec<String> {
        for entry in self.config.volumes.clone() {
            if entry.device.value == device
                && let Err(refusal) = self.place_volume(&entry)
            {
                self.warn_now(refusal.to_string());
            }
        }
        let mut opened = Vec::new();
        for (name, record) in self.state.volumes.clone() {
            let is_dropped = record.origin == Origin::Config && !self.is_configured_volume(&name);
            if record.device != device || is_dropped {
                continue;
            }
            match self.open_volume(&name, &record) {
                Ok(volume) => {
                    self.volumes.insert(name.clone(), volume);
                    opened.push(name);
                }
                Err(refusal) => self.warn_now(refusal.to_string()),
            }
        }
        opened
    }

    fn is_configured_volume(&self, name: &str) -> bool {
        self.config.volumes.iter().any(|entry| entry.name.value == name)
    }

    /// Finds a configured volume's place, if its device is open.
    fn place_volume(&mut self, entry: &VolumeEntry) -> Result<(), Refusal> {
        let (name, device) = (&entry.name.value, &entry.device.value);
        let size = entry.size.as_ref().map(|size| size.value);
        let offset = entry.offset.as_ref().map(|offset| offset.value);
        let old = self.state.volumes.get(name).cloned();
        if let Some(old) = &old
            && old.origin == Origin::Runtime
        {
            self.warn(format!(
                "volume '{name}' is defined in {} and was also created at run time: the file wins{}",
                self.config.source.path,
                if old.device == *device { ", the place is kept" } else { "" }
            ));
        }
        let old = old.filter(|old| old.device == *device);
        if self.is_closed(device) {
            if old.is_none() {
                self.state.volumes.remove(name);
            }
            return Ok(());
        }
        // Its place is not in the way of its own.
        let before = self.state.volumes.remove(name);
        let placed = self.configured_volume(name, device, size, offset, old);
        let record = placed.as_ref().ok().cloned().or(before);
        self.state.volumes.extend(record.map(|record| (name.clone(), record)));
        placed.map(drop)
    }

    /// Where a configured volume is: where it was, or the place that the file names, or a free one.
    fn configured_volume(
        &mut self,
        name: &str,
        device: &str,
        size: Option<u64>,
        offset: Option<u64>,
        old: Option<VolumeRecord>,
    ) -> Result<VolumeRecord, Refusal> {
        let object = format!("volume '{name}'");
        let info = self.open_device(device)?.info();
        let uuid = old.as_ref().map_or_else(Uuid::new_v4, |old| old.uuid);
        let record = |offset, size, whole, configured_size| VolumeRecord {
            device: device.to_string(),
            offset,
            size,
            whole,
            uuid,
            origin: Origin::Config,
            configured_size,
        };
        let Some(size) = size else { return Ok(record(0, info.bytes(), true, None)) };
        let others = self.extents_on(device);
        let unchanged = old.as_ref().is_some_and(|old| old.configured_size == Some(size));
        // A size changed at run time holds until the file asks for another.
        let size_now = match &old {
            Some(old) if unchanged && !old.whole => old.size,
            _ => size,
        };
        let start = match (offset, &old) {
            (Some(offset), Some(old)) if !old.whole && old.offset != offset => {
                let cause = format!("its offset changed from {} to {offset} in the configuration", old.offset);
                let next = "volumes do not move: restore the offset, or copy the data to a new volume";
                return Err(Refusal::conflict(object, cause, next));
            }
            (Some(offset), _) => offset,
            (None, Some(old)) => old.offset,
            (None, None) => {
                let placed = place(&others, info.bytes(), size_now);
                placed.ok_or_else(|| no_space(&object, device, size_now, &others, info.bytes()))?.start
            }
        };
        let extent = Extent { start, len: size_now };
        check_extent(&object, device, &extent, &others, info.bytes(), info.block_size)?;
        Ok(record(start, size_now, false, Some(size)))
    }

    fn open_volume(&mut self, name: &str, record: &VolumeRecord) -> Result<Arc<StatsDevice>, Refusal> {
        let object = format!("volume '{name}'");
        let device =
            self.open_device(&record.device).map_err(|refusal| Refusal { object: object.clone(), ..refusal })?;
        let info = device.info();
        let block = info.block_size as u64;
        if record.offset + record.size > info.bytes() {
            let cause = format!(
                "it ends at {} but device '{}' is {} long",
                ByteSize(record.offset + record.size),
                record.device,
                ByteSize(info.bytes())
            );
            return Err(Refusal::failed(object, cause, "restore the device's size"));
        }
        if !record.offset.is_multiple_of(block) || !record.size.is_multiple_of(block) {
            let cause = format!("its place does not fit the block size {block} of device '{}'", record.device);
            return Err(Refusal::failed(object, cause, "restore the device's block size"));
        }
        if info.zoned.is_some() && (record.offset, record.size) != (0, info.bytes()) {
            let cause = format!("device '{}' is zoned, and zones are not shared among volumes", record.device);
            return Err(Refusal::invalid(object, cause, "leave 'size' and 'offset' out: the volume takes it whole"));
        }
        if info.rows.is_some() {
            let cause = format!("device '{}' is written in whole rows alone", record.device);
            return Err(Refusal::invalid(object, cause, "put a shaped pool on it, and the volume into that"));
        }
        let window = Window::new(name, device, record.offset / block, record.size / block);
        Ok(self.served(name, Arc::new(window)))
    }

    pub(super) fn record(&self, name: &str) -> Result<&VolumeRecord, Refusal> {
        let missing = || match self.importing(name) {
            Some(pool) => {
                let cause = format!("it is being imported into pool '{pool}'");
                Refusal::conflict(format!("volume '{name}'"), cause, "it is there when the import has ended")
            }
            None => {
                let known = self.state.volumes.keys().chain(self.pool_volumes.keys()).map(String::as_str);
                Refusal::not_found("volume", name, known)
            }
        };
        self.state.volumes.get(name).ok_or_else(missing)
    }

    /// An open volume.
    pub(super) fn volume_device(&self, name: &str) -> Result<Arc<StatsDevice>, Refusal> {
        if self.place_of_volume(name).is_none() {
            self.record(name)?;
        }
        let closed = || Refusal::failed(format!("volume '{name}'"), "it is not open", "see 'remuda status'");
        self.volumes.get(name).cloned().ok_or_else(closed)
    }

    fn volume_view(&self, name: &str, record: &VolumeRecord) -> VolumeView {
        let open = self.volumes.get(name);
        let device_len = self.open_device(&record.device).map_or(0, |device| device.info().bytes());
        VolumeView {
            name: name.to_string(),
            device: Some(record.device.clone()),
            pool: None,
            size: record.size,
            offset: Some(record.offset),
            block_size: open.map_or(0, |volume| volume.info().block_size),
            uuid: record.uuid,
            size_max: self.room(name, record, device_len),
            allocated: None,
            kin: None,
            exports: self.exports_of(name),
            origin: record.origin,
            state: if open.is_some() { "open" } else { "closed" }.to_string(),
        }
    }

    fn room(&self, name: &str, record: &VolumeRecord, device_len: u64) -> u64 {
        let others =
            self.state.volumes.iter().filter(|(other, volume)| *other != name && volume.device == record.device);
        let others: Vec<Extent> = others.map(|(_, volume)| Extent { start: volume.offset, len: volume.size }).collect();
        room_at(&Extent { start: record.offset, len: record.size }, &others, device_len)
    }

    /// All volumes; with what they have of pools, as these were seen a moment ago.
    pub fn volume_list(&self, pools: &[PoolView]) -> Vec<VolumeView> {
        let on_devices = self.state.volumes.iter().map(|(name, record)| self.volume_view(name, record));
        let mut views: Vec<VolumeView> = on_devices.chain(self.pool_volume_views()).collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views.iter_mut().for_each(|view| view.allocated = allocated(pools, &view.name, view.pool.as_deref()));
        views
    }

    /// One volume, with what it has of its pool, its snapshots and its clones.
    pub async fn volume_look(&self, name: &str) -> Result<VolumeView, Refusal> {
        let mut view = self.volume_show(name)?;
        if let Some(pool) = view.pool.clone()
            && self.pool_volumes.contains_key(name)
        {
            let pools = [self.pool_show(&pool).await?];
            view.allocated = allocated(&pools, name, Some(&pool));
            let mut kin = self.kin_of(&pool, name).await?;
            let sizes = kin.snapshots.iter().filter_map(|snapshot| allocated(&pools, snapshot, Some(&pool)));
            kin.snapshots_allocated = sizes.sum();
            view.kin = Some(kin);
        }
        Ok(view)
    }

    /// One volume, as far as it is known without a look at its pool.
    pub fn volume_show(&self, name: &str) -> Result<VolumeView, Refusal> {
        match self.pool_volume_view(name) {
            Some(view) => Ok(view),
            None => Ok(self.volume_view(name, self.record(name)?)),
        }
    }

    /// Takes a part of `device`: `size` bytes at `offset`, or at a place of the node's choice, or the largest free part.
    /// A place that the node chose reads as zeroes if the device can deallocate.
    pub async fn volume_create(
        &mut self,
        name: &str,
        device: &str,
        size: Option<u64>,
        offset: Option<u64>,
        force: bool,
    ) -> Result<VolumeView, Refusal> {
        self.check_running()?;
        let object = format!("volume '{name}'");
        if let Some(place) = self.place_of_volume(name) {
            let cause = format!("it exists already {place}");
            return Err(Refusal::conflict(object, cause, "choose another name, or delete it first"));
        }
        if self.state.volumes.len() >= OBJECTS_MAX {
            return Err(Refusal::conflict(
                object,
                format!("there are {OBJECTS_MAX} volumes already"),
                "delete some first",
            ));
        }
        let below = self.open_device(device)?;
        if let Some(above) = self.devices.values().find(|slot| slot.def.children().iter().any(|child| child == device))
        {
            let cause = format!("device '{device}' is already used by device '{}'", above.def.name);
            return Err(Refusal::conflict(object, cause, format!("put the volume on '{}'", above.def.name)));
        }
        if let Some(pool) = self.pool_on(device) {
            let cause = format!("device '{device}' is already used by pool '{pool}'");
            return Err(Refusal::conflict(object, cause, format!("put the volume in it: --pool {pool}")));
        }
        if let Some((other, _)) = self.state.volumes.iter().find(|(_, volume)| volume.device == device && volume.whole)
        {
            let cause = format!("volume '{other}' takes the whole device '{device}'");
            return Err(Refusal::conflict(object, cause, format!("give '{other}' a size in the configuration first")));
        }
        let info = below.info();
        let used = self.extents_on(device);
        let extent = match (size, offset) {
            (Some(len), Some(start)) => Extent { start, len },
            (Some(len), None) => {
                place(&used, info.bytes(), len).ok_or_else(|| no_space(&object, device, len, &used, info.bytes()))?
            }
            (None, None) => largest_free(&used, info.bytes())
                .ok_or_else(|| no_space(&object, device, ALIGN, &used, info.bytes()))?,
            (None, Some(_)) => return Err(Refusal::invalid(object, "an offset needs a size", "give both or neither")),
        };
        check_extent(&object, device, &extent, &used, info.bytes(), info.block_size)?;
        if offset.is_none() {
            if used.is_empty() && !force {
                self.check_nothing_known_on(device, &object).await?;
            }
            deallocate(self.reactors.first(), below, extent.start, extent.len).await?;
        }
        let record = VolumeRecord {
            device: device.to_string(),
            offset: extent.start,
            size: extent.len,
            whole: false,
            uuid: Uuid::new_v4(),
            origin: Origin::Runtime,
            configured_size: None,
        };
        let volume = self.open_volume(name, &record)?;
        let mut state = self.state.clone();
        state.volumes.insert(name.to_string(), record);
        self.remember(state)?;
        self.volumes.insert(name.to_string(), volume);
        tracing::info!(volume = name, device, size = extent.len, "volume created");
        self.volume_show(name)
    }

    /// Refuses a device without volumes on which somebody's data is that can be told: what a new volume takes of it reads as
    /// zeroes.
    async fn check_nothing_known_on(&self, device: &str, object: &str) -> Result<(), Refusal> {
        match self.holds(device).await?.map_err(|error| super::build::refused(object.to_string(), error))? {
            Holds::Nothing | Holds::Unknown => Ok(()),
            holds => {
                let next = match holds {
                    Holds::Known(_) => "'--offset' with '--size' keeps what is there",
                    _ => "put the volume on another device, or in a pool",
                };
                Err(Refusal::conflict(object.to_string(), holds.in_use(device, ""), next))
            }
        }
    }

    /// Grows or, with `shrink`, cuts a volume where it is.
    /// What connected hosts and virtual machines would lose by a cut, they lose with `force` alone.
    pub async fn volume_resize(
        &mut self,
        name: &str,
        new: NewSize,
        shrink: bool,
        force: bool,
    ) -> Result<VolumeView, Refusal> {
        self.check_running()?;
        if self.pool_volumes.contains_key(name) {
            return self.pool_volume_resize(name, new, shrink, force).await;
        }
        if self.volume_device(name).is_ok_and(|volume| volume.info().zoned.is_some()) {
            let cause = "it is a zoned device, whose number of zones is fixed";
            return Err(Refusal::invalid(format!("volume '{name}'"), cause, "make a zoned device of the other size"));
        }
        let object = format!("volume '{name}'");
        let record = self.record(name)?.clone();
        let volume = self.volume_device(name)?;
        if record.whole {
            let next = format!("resize the device: remuda device resize {} SIZE", record.device);
            return Err(Refusal::conflict(object, format!("it takes the whole device '{}'", record.device), next));
        }
        let block = volume.info().block_size as u64;
        let room = self.room(name, &record, self.open_device(&record.device)?.info().bytes()) / block * block;
        let size = match new {
            NewSize::To(size) => Some(size),
            NewSize::By(more) => record.size.checked_add(more),
            NewSize::Max => Some(room),
        };
        let size = size.unwrap_or(u64::MAX);
        if size == 0 || !size.is_multiple_of(block) {
            let cause = format!("{size} bytes is not a positive multiple of its block size {block}");
            return Err(Refusal::invalid(object, cause, UNITS_HINT));
        }
        if size > room {
            let cause = format!("it can grow to {} where it is, {} asked for", ByteSize(room), ByteSize(size));
            let next = format!("'remuda volume resize {name} max' takes what there is; volumes do not move");
            return Err(Refusal::new(RefusalKind::NoSpace, object, cause, next));
        }
        if size < record.size && !shrink {
            let cause = format!(
                "{} is less than its size {}: the data past the end would be lost",
                ByteSize(size),
                ByteSize(record.size)
            );
            return Err(Refusal::invalid(object, cause, "add --shrink if that is meant"));
        }
        if size < record.size && !force {
            self.check_nobody_is_cut(name).await?;
        }
        let mut state = self.state.clone();
        state.volumes.get_mut(name).expect("it is there").size = size;
        self.remember(state)?;
        self.volume_changed(name).await?;
        tracing::info!(volume = name, size, "volume resized");
        self.volume_show(name)
    }

    /// Brings an open volume, and the hosts that see it, to its remembered size.
    pub(super) async fn volume_changed(&mut self, name: &str) -> Result<(), Refusal> {
        let size = self.record(name)?.size;
        let volume = self.volume_device(name)?;
        let blocks = size / volume.info().block_size as u64;
        super::build::resize(self.reactors.first(), volume, blocks).await?;
        self.announce_volume(name).await
    }

    /// No namespace and no door shows it.
    pub(super) fn check_unused(&self, name: &str) -> Result<(), Refusal> {
        self.check_not_streamed(name)?;
        let exports = self.exports_of(name);
        let Some(first) = exports.first() else { return Ok(()) };
        let cause = format!("hosts may use it as {}", exports.join(", "));
        let next = Node::end_export(first);
        Err(Refusal::conflict(format!("volume '{name}'"), cause, next))
    }

    /// Gives a volume's place back; on devices that can, its data is deallocated.
    /// One in a pool that has snapshots goes only together with these; what they have may be given back in the background.
    pub async fn volume_delete(
        &mut self,
        name: &str,
        snapshots: bool,
        background: bool,
    ) -> Result<DeletedView, Refusal> {
        self.check_running()?;
        if self.pool_volume_view(name).is_some() {
            return self.pool_volume_delete(name, snapshots, background).await;
        }
        let object = format!("volume '{name}'");
        let record = self.record(name)?.clone();
        if self.config.volumes.iter().any(|entry| entry.name.value == name) {
            return Err(self.belongs_to_config(object));
        }
        self.check_unused(name)?;
        let mut state = self.state.clone();
        state.volumes.remove(name);
        self.remember(state)?;
        self.volumes.remove(name);
        if !record.whole
            && let Ok(device) = self.open_device(&record.device)
            && let Err(refusal) = deallocate(self.reactors.first(), device, record.offset, record.size).await
        {
            tracing::warn!(volume = name, "deleted, but its space could not be deallocated: {refusal}");
        }
        tracing::info!(volume = name, "volume deleted");
        self.forget_limit(name).map(|()| DeletedView::default())
    }
}

fn no_space(object: &str, device: &str, size: u64, used: &[Extent], device_len: u64) -> Refusal {
    let largest = largest_free(used, device_len).map_or(0, |extent| extent.len);
    let cause =
        format!("device '{device}' has no free range of {}; the largest is {}", ByteSize(size), ByteSize(largest));
    Refusal::new(RefusalKind::NoSpace, object, cause, "ask for less, delete a volume, or resize the device")
}

fn check_extent(
    object: &str,
    device: &str,
    extent: &Extent,
    others: &[Extent],
    device_len: u64,
    block_size: u32,
) -> Result<(), Refusal> {
    let block = block_size as u64;
    if extent.len == 0 || !extent.len.is_multiple_of(block) || !extent.start.is_multiple_of(block) {
        let cause =
            format!("offset {} and size {} are not multiples of the block size {block}", extent.start, extent.len);
        return Err(Refusal::invalid(object, cause, ""));
    }
    if extent.start.checked_add(extent.len).is_none_or(|end| end > device_len) {
        let cause = format!("it would end past the end of device '{device}' ({})", ByteSize(device_len));
        return Err(Refusal::new(RefusalKind::NoSpace, object, cause, "ask for less, or resize the device"));
    }
    if let Some(other) = others.iter().find(|other| other.overlaps(extent)) {
        let cause = format!("bytes {} to {} of device '{device}' belong to another volume", other.start, other.end());
        return Err(Refusal::conflict(object, cause, "see 'remuda volume list'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_can_be_absolute_relative_or_all_there_is() {
        assert_eq!(NewSize::parse("4k"), Ok(NewSize::To(4096)));
        assert_eq!(NewSize::parse("+1MiB"), Ok(NewSize::By(1 << 20)));
        assert_eq!(NewSize::parse(" max "), Ok(NewSize::Max));
        assert!(NewSize::parse("+").is_err());
    }
}
