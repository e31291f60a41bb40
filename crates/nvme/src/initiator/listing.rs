//! The namespaces of a subsystem, as a host that looks and goes sees them.

use reactor::Reactor;
use std::rc::Rc;

use crate::spec::Status;
use crate::spec::ana::AnaState;

use super::controller::{Controller, NamespaceIds, NamespaceInfo};
use super::error::{CommandError, ConnectError};
use super::link::Broken;
use super::options::Options;

/// Most namespaces that are listed of one subsystem.
pub const NAMESPACES_MAX: usize = 4096;

/// A namespace that a controller shows.
#[derive(Clone, Debug)]
pub struct ListedNamespace {
    /// Its identifier.
    pub nsid: u32,
    /// What it is, or why this host could not use it.
    pub info: Result<NamespaceInfo, CommandError>,
    /// Its lasting identifiers.
    pub ids: NamespaceIds,
    /// How it can be reached through this controller; `None` where the controller does not tell.
    pub ana: Option<AnaState>,
}

/// Connects to the subsystem that `options` name and lists its namespaces, the first [`NAMESPACES_MAX`] of them.
pub async fn list_namespaces(reactor: &Rc<Reactor>, options: &Options) -> Result<Vec<ListedNamespace>, ConnectError> {
    let controller = Controller::connect(reactor, options).await?;
    let listed = reactor.timeout(options.admin_timeout_ns, list(&controller)).await;
    let listed = listed.unwrap_or(Err(CommandError::Lost(Broken::Timeout)));
    let listed = listed.map_err(controller.failed("list its namespaces"))?;
    // The controller goes with its connection whether or not it was shut down.
    let _ = reactor.timeout(options.admin_timeout_ns, controller.shutdown()).await;
    Ok(listed)
}

async fn list(controller: &Controller) -> Result<Vec<ListedNamespace>, CommandError> {
    let mut listed: Vec<ListedNamespace> = Vec::new();
    loop {
        let page = controller.active_namespaces(listed.last().map_or(0, |last| last.nsid)).await?;
        if page.is_empty() {
            return Ok(listed);
        }
        for nsid in page {
            if listed.len() == NAMESPACES_MAX {
                return Ok(listed);
            }
            listed.push(look(controller, nsid).await?);
        }
    }
}

/// A namespace of a kind that this host does not know is no reason to see nothing of the others.
async fn look(controller: &Controller, nsid: u32) -> Result<ListedNamespace, CommandError> {
    let info = match controller.namespace(nsid).await {
        Err(CommandError::Lost(broken)) => return Err(CommandError::Lost(broken)),
        looked => looked,
    };
    let ids = match controller.namespace_ids(nsid).await {
        // Optional before version 1.3.
        Err(CommandError::Status(status)) if status.kind() == Status::INVALID_FIELD => NamespaceIds::default(),
        ids => ids?,
    };
    let ana = if controller.info().has_ana { Some(controller.ana_state(nsid).await?) } else { None };
    Ok(ListedNamespace { nsid, info, ids, ana })
}
