//! Paths of remote namespaces: which there are, how they are, and their change while the device is in use.

use super::build::{Handle, Opened};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::view::PathView;
use crate::config::DeviceParams;
use nvme::initiator::NvmfDevice;
use reactor::ReactorHandle;
use std::net::SocketAddr;

/// The paths of an open device, by what its definition says.
pub fn path_views(device: &NvmfDevice) -> Vec<PathView> {
    let view = |path: nvme::initiator::PathStatus| PathView {
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

/// Gives a remote namespace in use the paths of its definition, and takes others away. New ones first: operations go on over
/// them.
pub async fn change_paths(
    reactor: &ReactorHandle,
    object: &str,
    opened: &Opened,
    params: &DeviceParams,
) -> Result<(), Refusal> {
    let Handle::Nvmf(device) = &opened.handle else { return Ok(()) };
    let bad = |text: String| Refusal::invalid(object, format!("path '{text}' cannot be used"), "");
    let wanted = addresses(params).map_err(bad)?;
    let there: Vec<SocketAddr> = device.paths().into_iter().map(|path| path.address).collect();
    let added = wanted.clone();
    let (known, other) = (there.clone(), device.clone());
    let adding = on_reactor_async(reactor, move |reactor| async move {
        for address in added.into_iter().filter(|address| !known.contains(address)) {
            other.add_path(&reactor, address).await?;
        }
        Ok(())
    });
    let next = "every path has to lead to the same namespace";
    adding.await?.map_err(|error: nvme::initiator::ConnectError| Refusal::failed(object, error, next))?;
    for address in there.into_iter().filter(|address| !wanted.contains(address)) {
        device.remove_path(address);
    }
    Ok(())
}
