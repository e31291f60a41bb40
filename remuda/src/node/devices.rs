//! Devices: opened children first, created, resized and deleted at run time.

use super::awaited::Awaited;
use super::build::{self, KnownFile, Opener, open_device};
use super::extents::{Extent, free_extents};
use super::paths::PathChange;
use super::redundant::is_redundant;
use super::refusal::{Refusal, RefusalKind};
use super::state::{DeviceOverlay, Origin};
use super::view::DeviceView;
use super::{DeviceSlot, Node, OBJECTS_MAX};
use crate::config::change::read_changes;
use crate::config::value::Table;
use crate::config::{DeviceDef, DeviceParams, Problems, UNITS_HINT};
use base::ByteSize;
use bdev::BlockDevice;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

pub(super) fn is_mirror(def: &DeviceDef) -> bool {
    matches!(def.params, DeviceParams::Mirror { .. })
}

/// Why a device is not open, said where its name was said before.
pub(super) fn why_closed<'a>(name: &str, reason: &'a str) -> &'a str {
    reason.strip_prefix(&format!("device '{name}': ")).unwrap_or(reason)
}

impl Node {
    pub(super) fn opener(&self, device: &str) -> Opener {
        let known = self.state.remotes.get(device).cloned();
        let bytes = self.state.file_bytes.get(device).copied();
        let file = self.state.files.get(device).map(|path| KnownFile { path: path.clone(), bytes });
        Opener { known, file, ..Opener::new(self.reactors.first().clone(), self.state.node_id) }
    }

    /// Whether a device could not be opened because something remote cannot be reached: itself, or what it stands on. The
    /// node serves what else there is. So it does when the parts of a mirror or a parity device do not suffice or disagree:
    /// which of them count is said by a command to a running node.
    fn is_excused(&self, def: &DeviceDef, refusal: &Refusal) -> bool {
        let is_away = |child: &String| {
            self.devices.get(child).is_some_and(|slot| match &slot.live {
                Ok(opened) => opened.is_awaited(),
                Err(_) => true,
            })
        };
        let is_remote = matches!(def.params, DeviceParams::Nvmf { .. });
        (is_remote && refusal.kind == RefusalKind::Failed) || is_redundant(def) || def.children().iter().any(is_away)
    }

    pub(super) async fn open_devices(&mut self) -> Result<(), Refusal> {
        let mut wanted: BTreeMap<String, (DeviceDef, Origin)> = BTreeMap::new();
        for entry in self.config.devices.clone() {
            let def = self.with_overlay(entry.def);
            wanted.insert(def.name.clone(), (def, Origin::Config));
        }
        for def in self.state.devices.clone() {
            if wanted.contains_key(&def.name) {
                let name = &def.name;
                self.warn(format!(
                    "device '{name}' is defined in {} and was also created at run time: the file wins; delete or rename one",
                    self.config.source.path
                ));
                continue;
            }
            wanted.insert(def.name.clone(), (def, Origin::Runtime));
        }
        let mut failures = Vec::new();
        while let Some(name) = self.next_to_open(&wanted) {
            let (def, origin) = wanted.remove(&name).expect("it was just found there");
            let live = match self.children_of(&def) {
                Ok(children) => open_device(&def, children, &self.opener(&name)).await,
                Err(refusal) => Err(refusal),
            };
            // What is redundant is there to do without one of its parts, a flash cache perhaps without its flash, and a node without one of
            // its pools.
            let lacks = |def: &DeviceDef| {
                def.children().iter().enumerate().any(|(place, child)| *child == name && def.may_lack(place))
            };
            let spare = wanted.values().any(|(above, _)| lacks(above)) || self.below_a_pool(&name);
            match (live, origin) {
                // One that was erased cannot be opened, as was wanted.
                (Err(refusal), Origin::Config)
                    if !spare && !self.is_excused(&def, &refusal) && !self.state.erased.contains(&name) =>
                {
                    failures.push(refusal);
                }
                (live, _) => {
                    let is_excused = |refusal| self.is_excused(&def, refusal);
                    let awaited = live.as_ref().err().is_some_and(is_excused).then(|| Awaited::new(Instant::now()));
                    if let Some(remote) = live.as_ref().ok().and_then(|opened| opened.remote(&def)) {
                        self.state.remotes.insert(name.clone(), remote);
                    }
                    if let Ok(opened) = &live {
                        self.state.note_open(&def, opened.device.info().bytes());
                    }
                    let live = live.map_err(|refusal| refusal.to_string());
                    self.devices.insert(name, DeviceSlot { def, origin, live, awaited });
                }
            }
        }
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => {
                let all: Vec<_> = failures.iter().map(ToString::to_string).collect();
                Err(Refusal::failed("devices", all.join("; "), ""))
            }
        }
    }

    /// Whether a configured pool stands on it, directly or through others.
    fn below_a_pool(&self, name: &str) -> bool {
        let direct = self.config.pools.iter().any(|pool| pool.def.devices().contains(&name));
        let above = self.config.devices.iter().filter(|above| above.def.children().iter().any(|child| child == name));
        direct || above.into_iter().any(|above| self.below_a_pool(&above.def.name))
    }

    /// Tries again to open a device that is not, after those below it.
    pub(super) async fn reopen_device(&mut self, name: &str) {
        let Some(slot) = self.devices.get(name).filter(|slot| slot.live.is_err()) else { return };
        let def = slot.def.clone();
        for child in def.children() {
            Box::pin(self.reopen_device(child)).await;
        }
        let live = match self.children_of(&def) {
            Ok(children) => open_device(&def, children, &self.opener(name)).await,
            Err(refusal) => Err(refusal),
        };
        if let Ok(opened) = &live {
            self.remember_open(&def, opened.device.info().bytes());
        }
        let slot = self.devices.get_mut(name).expect("devices are not removed while one is opened");
        if live.is_ok() {
            slot.awaited = None;
        }
        slot.live = live.map_err(|refusal| refusal.to_string());
    }

    /// A device is open that was not when the node was started.
    pub(super) fn remember_open(&mut self, def: &DeviceDef, bytes: u64) {
        let mut state = self.state.clone();
        state.note_open(def, bytes);
        if state != self.state
            && let Err(refusal) = self.remember(state)
        {
            tracing::warn!("{refusal}");
        }
    }

    /// A device whose children are open already, or cannot be any more.
    fn next_to_open(&self, wanted: &BTreeMap<String, (DeviceDef, Origin)>) -> Option<String> {
        let ready = wanted.values().find(|(def, _)| !def.children().iter().any(|child| wanted.contains_key(child)));
        ready.or_else(|| wanted.values().next()).map(|(def, _)| def.name.clone())
    }

    /// A run-time resize holds until the file asks for another size.
    fn with_overlay(&mut self, mut def: DeviceDef) -> DeviceDef {
        if let Some(overlay) = self.state.device_overlays.get(&def.name) {
            if overlay.configured_size == def.size() {
                def.set_size(overlay.size);
            } else {
                self.state.device_overlays.remove(&def.name);
                let name = &def.name;
                self.warn(format!(
                    "device '{name}': its size in the configuration changed, which ends the resize made at run time"
                ));
            }
        }
        self.with_key_overlay(&mut def);
        def
    }

    /// The devices below; `None` for a part that a mirror or a parity device has to do without.
    pub(super) fn children_of(&self, def: &DeviceDef) -> Result<Vec<Option<Arc<dyn BlockDevice>>>, Refusal> {
        let object = || format!("device '{}'", def.name);
        let mut children = Vec::new();
        for (place, child) in def.children().iter().enumerate() {
            match self.devices.get(child).map(|slot| &slot.live) {
                // A part that cannot be read is none.
                Some(Ok(opened)) if is_redundant(def) && opened.is_awaited() => children.push(None),
                Some(Ok(opened)) => children.push(Some(opened.device.clone())),
                Some(Err(_)) if def.may_lack(place) => children.push(None),
                Some(Err(reason)) => {
                    let why = why_closed(child, reason);
                    return Err(Refusal::failed(object(), format!("device '{child}' below it is not open: {why}"), ""));
                }
                None => {
                    let known = self.devices.keys().map(String::as_str);
                    return Err(Refusal::not_found("device", child, known));
                }
            }
        }
        Ok(children)
    }

    /// What uses a device.
    pub(super) fn users_of_device(&self, name: &str) -> Vec<String> {
        let above = self.devices.values().filter(|slot| slot.def.children().iter().any(|child| child == name));
        let above = above.map(|slot| format!("device '{}'", slot.def.name));
        let volumes = self.state.volumes.iter().filter(|(_, volume)| volume.device == name);
        let pool = self.pool_on(name).map(|pool| format!("pool '{pool}'"));
        above.chain(pool).chain(volumes.map(|(volume, _)| format!("volume '{volume}'"))).collect()
    }

    /// What to do with a user of a device that somebody else is to have.
    pub(super) fn without_user(user: &str) -> String {
        let verb = if user.starts_with("pool ") { "destroy" } else { "delete" };
        format!("{verb} {user} first")
    }

    pub(super) fn extents_on(&self, device: &str) -> Vec<Extent> {
        let volumes = self.state.volumes.values().filter(|volume| volume.device == device);
        volumes.map(|volume| Extent { start: volume.offset, len: volume.size }).collect()
    }

    pub(super) fn slot(&self, name: &str) -> Result<&DeviceSlot, Refusal> {
        self.devices
            .get(name)
            .ok_or_else(|| Refusal::not_found("device", name, self.devices.keys().map(String::as_str)))
    }

    /// An open device.
    pub(super) fn open_device(&self, name: &str) -> Result<Arc<dyn BlockDevice>, Refusal> {
        match &self.slot(name)?.live {
            Ok(opened) => Ok(opened.device.clone()),
            Err(reason) => {
                let why = why_closed(name, reason);
                Err(Refusal::failed(format!("device '{name}'"), format!("it is not open: {why}"), ""))
            }
        }
    }

    fn device_view(&self, slot: &DeviceSlot) -> DeviceView {
        let name = &slot.def.name;
        let mut view = DeviceView {
            name: name.clone(),
            kind: slot.def.kind().to_string(),
            size: 0,
            block_size: 0,
            free: 0,
            used_by: self.users_of_device(name),
            origin: slot.origin,
            differs_from_file: slot.origin == Origin::Config && !self.is_as_configured(&slot.def),
            mirror: None,
            zoned: None,
            parity: None,
            zones: None,
            flash_cache: None,
            paths: Vec::new(),
            open: slot.live.is_ok(),
            state: slot.live.as_ref().map_or_else(|reason| reason.clone(), |_| "open".to_string()),
            definition: serde_json::to_value(&slot.def).expect("a definition serialises"),
        };
        if let Ok(opened) = &slot.live {
            build::fill_view(&mut view, opened, slot.def.children());
            let below_another = self.devices.values().any(|above| above.def.children().contains(name));
            if !below_another && self.pool_on(name).is_none() {
                view.free = free_extents(&self.extents_on(name), view.size).iter().map(|extent| extent.len).sum();
            }
        }
        view
    }

    fn is_as_configured(&self, def: &DeviceDef) -> bool {
        self.config.devices.iter().any(|entry| entry.def == *def)
    }

    /// All devices.
    pub fn device_list(&self) -> Vec<DeviceView> {
        self.devices.values().map(|slot| self.device_view(slot)).collect()
    }

    /// One device.
    pub fn device_show(&self, name: &str) -> Result<DeviceView, Refusal> {
        Ok(self.device_view(self.slot(name)?))
    }

    /// Opens and remembers a new device.
    pub async fn device_create(&mut self, def: DeviceDef) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{}'", def.name);
        if let Some(slot) = self.devices.get(&def.name) {
            let next = "choose another name, or delete it first";
            return Err(Refusal::conflict(object, format!("it exists already (kind {})", slot.def.kind()), next));
        }
        if self.devices.len() >= OBJECTS_MAX {
            return Err(Refusal::conflict(
                object,
                format!("there are {OBJECTS_MAX} devices already"),
                "delete some first",
            ));
        }
        for child in def.children() {
            if let Some(user) = self.users_of_device(child).first() {
                let next = format!("{}, or use another device", Node::without_user(user));
                return Err(Refusal::conflict(object, format!("device '{child}' is already used by {user}"), next));
            }
        }
        self.check_resources(&object, &def)?;
        let children = self.children_of(&def)?;
        self.check_saving()?;
        let opened = open_device(&def, children, &Opener { known: None, file: None, ..self.opener(&def.name) }).await?;
        let mut state = self.state.clone();
        if let Some(remote) = opened.remote(&def) {
            state.remotes.insert(def.name.clone(), remote);
        }
        state.devices.retain(|other| other.name != def.name);
        state.devices.push(def.clone());
        state.note_open(&def, opened.device.info().bytes());
        self.remember(state).map_err(|refusal| Refusal {
            next: format!(
                "check the space and the health of the disk below the state directory; there is no {object} in the node, but what it \
                 has written of its own to its file, or to the devices below, is there"
            ),
            ..refusal
        })?;
        let slot = DeviceSlot { def: def.clone(), origin: Origin::Runtime, live: Ok(opened), awaited: None };
        self.devices.insert(def.name.clone(), slot);
        tracing::info!(device = %def.name, kind = def.kind(), "device created");
        self.device_show(&def.name)
    }

    /// Files that another device uses, or that cannot be used at all.
    fn check_resources(&self, object: &str, def: &DeviceDef) -> Result<(), Refusal> {
        match &def.params {
            DeviceParams::File { path, size, .. } => {
                for slot in self.devices.values() {
                    if matches!(&slot.def.params, DeviceParams::File { path: other, .. } if other == path) {
                        let cause = format!("device '{}' uses {path} already", slot.def.name);
                        return Err(Refusal::conflict(object, cause, "choose another file"));
                    }
                }
                crate::config::check_file(path, *size).map_err(|(cause, next)| Refusal::failed(object, cause, next))
            }
            DeviceParams::Encrypt { key_file, .. } => {
                crate::config::check_key_file(key_file).map_err(|(cause, next)| Refusal::failed(object, cause, next))
            }
            _ => Ok(()),
        }
    }

    /// Changes a device's size; volumes on it keep theirs, save one that takes the whole device.
    pub async fn device_resize(&mut self, name: &str, size: u64, force: bool) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let device = self.open_device(name)?;
        let info = device.info();
        if size == 0 || !size.is_multiple_of(info.block_size as u64) {
            let cause = format!("{size} bytes is not a positive multiple of its block size {}", info.block_size);
            return Err(Refusal::invalid(object, cause, UNITS_HINT));
        }
        let above = self.devices.values().find(|slot| slot.def.children().iter().any(|child| child == name));
        if let Some(above) = above {
            let cause = format!("device '{}' stands on it", above.def.name);
            let next = match &above.def.params {
                DeviceParams::Mirror { .. } | DeviceParams::Parity { .. } => {
                    format!("resize that one: remuda device resize {} SIZE", above.def.name)
                }
                _ => format!("delete device '{}' first", above.def.name),
            };
            return Err(Refusal::conflict(object, cause, next));
        }
        self.check_pool_resize(name, size, &object)?;
        let volumes = self.state.volumes.iter().filter(|(_, volume)| volume.device == name && !volume.whole);
        if let Some((volume, record)) = volumes.max_by_key(|(_, volume)| volume.offset + volume.size)
            && record.offset + record.size > size
        {
            let end = ByteSize(record.offset + record.size);
            let cause = format!("volume '{volume}' on it ends at {end}, past the new size {}", ByteSize(size));
            return Err(Refusal::conflict(object, cause, format!("shrink or delete volume '{volume}' first")));
        }
        let old = info.blocks;
        if size < info.bytes() {
            let whole = self.state.volumes.iter().filter(|(_, volume)| volume.device == name && volume.whole);
            for volume in whole.map(|(volume, _)| volume).filter(|_| !force) {
                self.check_nobody_is_cut(volume).await?;
            }
            // Before it is cut: a node that ends in between finds a file that is long enough.
            let mut shorter = self.state.clone();
            shorter.note_size(&self.devices[name].def, size);
            self.remember(shorter)?;
        }
        build::resize(self.reactors.first(), device.clone(), size / info.block_size as u64).await?;
        let mut state = self.state.clone();
        let slot = &self.devices[name];
        state.note_size(&slot.def, size);
        match slot.origin {
            Origin::Runtime => {
                state.devices.iter_mut().filter(|def| def.name == name).for_each(|def| def.set_size(size))
            }
            Origin::Config => {
                let entry = self.config.devices.iter().find(|entry| entry.def.name == name);
                let configured_size = entry.and_then(|entry| entry.def.size());
                state.device_overlays.insert(name.to_string(), DeviceOverlay { configured_size, size });
            }
        }
        let followers: Vec<String> = state
            .volumes
            .iter()
            .filter(|(_, volume)| volume.device == name && volume.whole)
            .map(|(name, _)| name.clone())
            .collect();
        for follower in &followers {
            state.volumes.get_mut(follower).expect("just listed").size = size;
        }
        if let Err(refusal) = self.remember(state) {
            let _ = build::resize(self.reactors.first(), device, old).await;
            return Err(refusal);
        }
        self.devices.get_mut(name).expect("it was open above").def.set_size(size);
        for follower in followers {
            self.volume_changed(&follower).await?;
        }
        tracing::info!(device = name, size, "device resized");
        self.device_show(name)
    }

    /// Changes parameters of a device while it is in use. One made at run time keeps them; a configured one starts with
    /// those of the file again.
    pub async fn device_set(&mut self, name: &str, changes: &Table) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let slot = self.slot(name)?;
        let mut problems = Problems::default();
        let Some(def) = read_changes(&slot.def, changes, &mut problems) else {
            let next = format!("see 'remuda device kinds {}'", slot.def.kind());
            return Err(Refusal::invalid(object, problems.one_line(), next));
        };
        let change = match &slot.live {
            Ok(opened) => Some(PathChange::begin(self.reactors.first(), &object, opened, &def.params).await?),
            Err(_) => None,
        };
        let slot = self.slot(name)?;
        if slot.origin == Origin::Runtime {
            let mut state = self.state.clone();
            state.devices.iter_mut().filter(|known| known.name == name).for_each(|known| *known = def.clone());
            self.remember(state)?;
        }
        if let Some(change) = change {
            change.finish();
        }
        let slot = self.devices.get_mut(name).expect("it was there a moment ago");
        if let Ok(opened) = &slot.live {
            build::tune(opened, &def.params).map_err(|error| build::refused(object, error))?;
        }
        slot.def = def;
        tracing::info!(device = name, changes = ?slot.def.params, "device changed");
        self.device_show(name)
    }

    /// Forgets a device. What its file holds stays.
    pub fn device_delete(&mut self, name: &str) -> Result<(), Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        if self.slot(name)?.origin == Origin::Config {
            return Err(self.belongs_to_config(object));
        }
        let users = self.users_of_device(name);
        if !users.is_empty() {
            return Err(Refusal::conflict(object, format!("it is used by {}", users.join(", ")), "delete these first"));
        }
        let mut state = self.state.clone();
        state.devices.retain(|def| def.name != name);
        state.remotes.remove(name);
        state.erased.remove(name);
        state.files.remove(name);
        state.file_bytes.remove(name);
        self.remember(state)?;
        self.devices.remove(name);
        self.legs_out.retain(|(mirror, _), _| mirror != name);
        tracing::info!(device = name, "device deleted");
        Ok(())
    }

    pub(super) fn belongs_to_config(&self, object: String) -> Refusal {
        let path = &self.config.source.path;
        let next = format!("remove it from {path} and restart the node");
        Refusal::new(RefusalKind::Conflict, object, format!("it is defined in {path}"), next)
    }
}
