//! How the paths of a device are, for people and metrics.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use crate::initiator::error::{ConnectError, Seen};
use crate::initiator::shared::{Phase, Shared, Trouble};
use crate::spec::ana::AnaState;

/// One path of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its controller's identifier, while there is an association.
    pub controller: Option<u16>,
    /// I/O queues that are connected.
    pub queues: usize,
    /// How its controller says that the namespace can be reached, while there is an association.
    pub ana: Option<AnaState>,
    /// Why there is no association, or was none before, where that is known.
    pub trouble: Option<String>,
    /// What its controller shows instead of the device's namespace, where that is the trouble.
    pub other: Option<Seen>,
    /// Associations that were built again after a loss.
    pub reconnects: u64,
    /// Operations that were sent this way, repetitions included; half a second behind.
    pub ios: u64,
    /// Operations that had to be sent again since the connection they were on was lost.
    pub lost: u64,
    /// Operations that its controllers refused for the sake of the path.
    pub refused: u64,
}

impl PathStatus {
    /// Whether operations can be sent this way.
    pub fn is_usable(&self) -> bool {
        self.ana.is_some_and(|state| state.refusal().is_none())
    }

    pub(in crate::initiator) fn of(path: &Shared) -> PathStatus {
        let controller = match path.phase() {
            Phase::Up(association) => Some(association.controller),
            Phase::Down | Phase::Closed => None,
        };
        let trouble = path.trouble();
        PathStatus {
            address: path.options.address,
            controller,
            queues: path.queues(),
            ana: controller.map(|_| path.ana()),
            trouble: trouble.as_ref().map(|trouble| trouble.to_string()),
            other: match trouble {
                Some(Trouble::NotConnected(ConnectError::OtherNamespace { seen, .. })) => Some(seen.1),
                _ => None,
            },
            reconnects: path.reconnects.load(Ordering::Relaxed),
            ios: path.ios.load(Ordering::Relaxed),
            lost: path.lost.load(Ordering::Relaxed),
            refused: path.refused.load(Ordering::Relaxed),
        }
    }
}
