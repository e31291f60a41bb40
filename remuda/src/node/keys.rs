//! Keys of encrypted devices: changed and destroyed while they are in use.
//!
//! A change of key is remembered before it is made, with the key that held until then: whenever the node dies, one of the two
//! opens the device.

use super::Node;
use super::build::{self, Handle};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::state::{KeyOverlay, Origin, State};
use super::view::DeviceView;
use crate::config::{DeviceDef, DeviceParams, check_key_file, read_key};
use bdev::{Built, DeviceError, EncryptDevice};
use std::sync::Arc;

impl Node {
    fn encrypted(&self, name: &str) -> Result<(Arc<EncryptDevice>, DeviceDef), Refusal> {
        let slot = self.slot(name)?;
        self.open_device(name)?;
        match slot.live.as_ref().map(|opened| &opened.handle) {
            Ok(Handle::Local(Built::Encrypt(device))) => Ok((device.clone(), slot.def.clone())),
            _ => {
                let cause = format!("it is a '{}' device and has no key", slot.def.kind());
                Err(Refusal::invalid(format!("device '{name}'"), cause, ""))
            }
        }
    }

    /// Wraps the key of an encrypted device with the key in another file. The old one does not open it any more.
    pub async fn device_change_key(&mut self, name: &str, key_file: &str) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let (device, def) = self.encrypted(name)?;
        let DeviceParams::Encrypt { key_file: old_file, .. } = &def.params else { unreachable!("it is encrypted") };
        check_key_file(key_file).map_err(|(cause, next)| Refusal::failed(&object, cause, next))?;
        let read = |path: &str| read_key(path).map_err(|reason| Refusal::failed(&object, reason, ""));
        let (old, new) = (read(old_file)?, read(key_file)?);
        self.remember_key(name, key_file, Some(old_file))?;
        let reactor = self.reactors.first();
        let changed =
            on_reactor_async(reactor, move |reactor| async move { device.change_key(&reactor, &old, &new).await });
        match changed.await? {
            Ok(()) => self.remember_key(name, key_file, None)?,
            Err(error) => {
                // After a failed write either key may be the one: both stay remembered.
                if matches!(error, DeviceError::Config { .. }) {
                    self.remember_key(name, old_file, None)?;
                }
                return Err(build::refused(object, error));
            }
        }
        tracing::info!(device = name, key_file, "key changed");
        self.device_show(name)
    }

    /// Remembers which file opens a device, or which of two.
    fn remember_key(&mut self, name: &str, file: &str, previous: Option<&str>) -> Result<(), Refusal> {
        let slot = self.slot(name)?;
        let mut def = slot.def.clone();
        def.set_key_file(file, previous);
        let mut state = self.state.clone();
        match slot.origin {
            Origin::Runtime => {
                state.devices.iter_mut().filter(|known| known.name == name).for_each(|known| *known = def.clone());
            }
            Origin::Config => {
                let entry = self.config.devices.iter().find(|entry| entry.def.name == name);
                let configured = entry.and_then(|entry| entry.def.resource_path()).unwrap_or_default().to_string();
                let (key_file, previous) = (file.to_string(), previous.map(str::to_string));
                state.key_overlays.insert(name.to_string(), KeyOverlay { configured, key_file, previous });
            }
        }
        self.remember(state)?;
        self.devices.get_mut(name).expect("it was there a moment ago").def = def;
        Ok(())
    }

    /// Destroys the key of an encrypted device and with it all data, for good. `confirm` repeats its name. With `renew` there
    /// is a new key in its place, and the device goes on.
    pub async fn device_erase(
        &mut self,
        name: &str,
        confirm: &str,
        in_use: bool,
        renew: bool,
    ) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let (device, _) = self.encrypted(name)?;
        if confirm != name {
            let next = "repeat the device's name to confirm";
            return Err(Refusal::invalid(object, "this destroys all of its data, and was not confirmed", next));
        }
        let users = self.users_of_device(name);
        if !users.is_empty() && !in_use {
            let next = "delete these first, or add --in-use";
            return Err(Refusal::conflict(object, format!("it is used by {}", users.join(", ")), next));
        }
        if renew {
            let reactor = self.reactors.first();
            let renewed = on_reactor_async(reactor, move |reactor| async move { device.renew(&reactor).await });
            renewed.await?.map_err(|error| build::refused(object, error))?;
            return self.device_show(name);
        }
        // First, so that a node that dies in between starts without it.
        let mut state = self.state.clone();
        state.erased.insert(name.to_string());
        self.remember(state)?;
        let reactor = self.reactors.first();
        let erased = on_reactor_async(reactor, move |reactor| async move { device.erase(&reactor).await });
        erased.await?.map_err(|error| build::refused(object, error))?;
        tracing::warn!(device = name, "erased: its key is destroyed");
        self.device_show(name)
    }

    /// A key changed at run time holds until the file names another one.
    pub(super) fn with_key_overlay(&mut self, def: &mut DeviceDef) {
        let Some(overlay) = self.state.key_overlays.get(&def.name) else { return };
        if def.resource_path() == Some(overlay.configured.as_str()) {
            def.set_key_file(&overlay.key_file, overlay.previous.as_deref());
        } else {
            self.state.key_overlays.remove(&def.name);
        }
    }
}

impl State {
    /// A device that opens has not been erased, or has been made anew since; and its file is there to stay.
    pub(super) fn note_open(&mut self, def: &DeviceDef, bytes: u64) {
        self.erased.remove(&def.name);
        self.note_size(def, bytes);
    }

    /// A file has so many bytes by now.
    pub(super) fn note_size(&mut self, def: &DeviceDef, bytes: u64) {
        if let DeviceParams::File { path, .. } = &def.params {
            self.files.insert(def.name.clone(), path.clone());
            self.file_bytes.insert(def.name.clone(), bytes);
        }
    }
}
