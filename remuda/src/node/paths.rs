//! Paths of remote namespaces: which there are, how they are, their change while the device is in use, and a namespace behind them
//! that was replaced.

use super::Node;
use super::build::{Handle, Opened};
use super::devices::why_closed;
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::remote::RemoteRecord;
use super::view::{DeviceView, PathView};
use crate::config::DeviceParams;
use base::ByteSize;
use bdev::BlockDevice;
use nvme::initiator::{ConnectError, NvmfDevice, PathStatus};
use reactor::ReactorHandle;
use std::net::SocketAddr;
use std::sync::Arc;

/// The paths of an open device, by what its definition says.
pub fn path_views(device: &NvmfDevice) -> Vec<PathView> {
    let view = |path: PathStatus| PathView {
        address: path.address.to_string(),
        state: match (path.ana, path.trouble) {
            (Some(state), _) => state.name().to_string(),
            (None, Some(trouble)) if path.other.is_some() => {
                format!(
                    "not connected: {trouble}; if it was replaced: remuda device accept-namespace {}",
                    device.name()
                )
            }
            (None, Some(trouble)) => format!("not connected: {trouble}"),
            (None, None) => "connecting".to_string(),
        },
        connected: path.controller.is_some(),
        controller: path.controller,
        operations: path.ios,
        lost: path.lost,
        refused: path.refused,
        reconnects: path.reconnects,
    };
    device.paths().into_iter().map(view).collect()
}

/// The paths of an open device by which nothing can be reached, and why.
pub fn unreachable_paths(name: &str, opened: &Opened) -> Vec<String> {
    let Handle::Nvmf(device) = &opened.handle else { return Vec::new() };
    let paths = device.paths();
    let any_is_usable = paths.iter().any(PathStatus::is_usable);
    let trouble = |path: &PathStatus| match (path.ana, &path.trouble) {
        // On standby, as long as there is another.
        (Some(_), _) if any_is_usable => None,
        (Some(state), _) => Some(format!("its target reports the namespace as {}", state.name())),
        (None, Some(trouble)) => Some(trouble.clone()),
        (None, None) => None,
    };
    let warning = |path: &PathStatus| {
        let left =
            if any_is_usable { "; the device goes on by its other paths" } else { "; its I/O waits, then fails" };
        trouble(path).map(|trouble| format!("device '{name}': path {} is of no use: {trouble}{left}", path.address))
    };
    paths.iter().filter_map(warning).collect()
}

/// The addresses of a definition's paths; one that cannot be read is the error.
pub fn addresses(params: &DeviceParams) -> Result<Vec<SocketAddr>, String> {
    let DeviceParams::Nvmf { address, paths, .. } = params else { return Ok(Vec::new()) };
    std::iter::once(address).chain(paths).map(|text| text.parse().map_err(|_| text.clone())).collect()
}

/// A change of the paths of a remote namespace in use, to those of a definition. New ones come first: operations go on over
/// them. Dropped before it is finished, it takes them away again.
pub struct PathChange {
    device: Option<Arc<NvmfDevice>>,
    added: Vec<SocketAddr>,
    removed: Vec<SocketAddr>,
}

impl PathChange {
    /// Adds the new ones, and sees whether the others can go. Of other kinds of devices it changes nothing.
    pub async fn begin(
        reactor: &ReactorHandle,
        object: &str,
        opened: &Opened,
        params: &DeviceParams,
    ) -> Result<PathChange, Refusal> {
        let mut change = PathChange { device: None, added: Vec::new(), removed: Vec::new() };
        let Handle::Nvmf(device) = &opened.handle else { return Ok(change) };
        let bad = |text: String| Refusal::invalid(object, format!("path '{text}' cannot be used"), "");
        let wanted = addresses(params).map_err(bad)?;
        let there: Vec<SocketAddr> = device.paths().into_iter().map(|path| path.address).collect();
        change.device = Some(device.clone());
        change.removed = there.iter().copied().filter(|address| !wanted.contains(address)).collect();
        for address in wanted.into_iter().filter(|address| !there.contains(address)) {
            let device = device.clone();
            let adding =
                on_reactor_async(reactor, move |reactor| async move { device.add_path(&reactor, address).await });
            let next = "every path has to lead to the same namespace";
            adding.await?.map_err(|error: ConnectError| Refusal::failed(object, error, next))?;
            change.added.push(address);
        }
        change.check(object)?;
        Ok(change)
    }

    /// What works is not given up for what does not.
    fn check(&self, object: &str) -> Result<(), Refusal> {
        let paths = self.device.iter().flat_map(|device| device.paths());
        let (going, staying): (Vec<_>, Vec<_>) = paths.partition(|path| self.removed.contains(&path.address));
        let Some(only) = going.iter().find(|path| path.is_usable()) else { return Ok(()) };
        if staying.iter().any(PathStatus::is_usable) {
            return Ok(());
        }
        let why = |path: &PathStatus| {
            let state = path.ana.map(|state| state.name().to_string()).or(path.trouble.clone());
            format!("{} ({})", path.address, state.unwrap_or_else(|| "connecting".to_string()))
        };
        let staying = staying.iter().map(why).collect::<Vec<_>>().join(", ");
        let cause = format!("path {} is in use, and none that would be left works: {staying}", only.address);
        Err(Refusal::conflict(object, cause, "change the paths when another one of them works"))
    }

    /// Takes the others away.
    pub fn finish(mut self) {
        let Some(device) = self.device.take() else { return };
        for address in &self.removed {
            device.remove_path(*address);
        }
    }
}

impl Node {
    /// Has the namespace that a remote device's paths show now be that device, since the former one was replaced on purpose. Not
    /// while anything has read the former one.
    pub fn device_accept_namespace(&mut self, name: &str) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        let object = format!("device '{name}'");
        let slot = self.slot(name)?;
        let DeviceParams::Nvmf { nqn, nsid, .. } = &slot.def.params else {
            let cause = format!("it is a '{}' device and not a remote namespace", slot.def.kind());
            return Err(Refusal::invalid(object, cause, ""));
        };
        let opened = slot.live.as_ref().map_err(|reason| {
            let next = format!("'remuda device open {name}' takes whatever is there");
            Refusal::failed(object.clone(), format!("it is not open: {}", why_closed(name, reason)), next)
        })?;
        let Handle::Nvmf(remote) = &opened.handle else { unreachable!("its kind is that of remote namespaces") };
        let next = format!("see 'remuda device show {name}'; a device of another name can have any namespace");
        let found = remote.replacement().map_err(|why| Refusal::conflict(&object, why.to_string(), next))?;
        if let (true, Some(user)) = (remote.was_connected(), self.users_of_device(name).first()) {
            let cause = format!("{user} has worked with the former namespace since the node started");
            return Err(Refusal::conflict(object, cause, "restart the node, and accept the namespace then"));
        }
        let size = found.blocks.saturating_mul(u64::from(found.block_size));
        let volumes = self.state.volumes.iter().filter(|(_, volume)| volume.device == name);
        let ends = volumes.map(|(volume, record)| (record.offset.saturating_add(record.size), volume));
        if let Some((end, volume)) = ends.max().filter(|(end, _)| *end > size) {
            let cause =
                format!("volume '{volume}' on it ends at {}, past the new size {}", ByteSize(end), ByteSize(size));
            return Err(Refusal::conflict(object, cause, format!("shrink or delete volume '{volume}' first")));
        }
        let mut known = remote.known();
        (known.ids, known.info.blocks) = (found.ids, found.blocks);
        let (remote, record) = (remote.clone(), RemoteRecord::new(nqn, *nsid, &known));
        let mut state = self.state.clone();
        state.remotes.insert(name.to_string(), record);
        self.remember(state)?;
        remote.replace(&found);
        tracing::info!(device = name, %found, "namespace accepted in place of the former one");
        self.device_show(name)
    }
}

impl Drop for PathChange {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        for address in &self.added {
            device.remove_path(*address);
        }
    }
}
