//! Paths of remote namespaces: which there are, how they are, and their change while the device is in use.

use super::build::{Handle, Opened};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::view::PathView;
use crate::config::DeviceParams;
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

impl Drop for PathChange {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        for address in &self.added {
            device.remove_path(*address);
        }
    }
}
