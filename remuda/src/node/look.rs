//! One look at the whole node, for who watches it all the time: each reactor and shard is visited once.

use super::Node;
use super::pool_view::PoolView;
use super::reservations;
use super::stats::Counted;
use super::view::{DeviceView, StatusView, SubsystemView, VolumeView};
use std::time::{Duration, Instant};

/// What there is, and how it is doing.
pub struct Look {
    /// When.
    pub at: Instant,
    /// How long it took, without the wait for the node's turn.
    pub took: Duration,
    /// The node as a whole.
    pub status: StatusView,
    /// Devices.
    pub devices: Vec<DeviceView>,
    /// Pools.
    pub pools: Vec<PoolView>,
    /// Volumes.
    pub volumes: Vec<VolumeView>,
    /// Subsystems, with their reservations.
    pub subsystems: Vec<SubsystemView>,
    /// What counts operations; the counters are read by whoever looks.
    pub counted: Vec<Counted>,
}

impl Node {
    /// Looks.
    pub async fn look(&self) -> Look {
        let began = Instant::now();
        let pools = self.pool_list().await;
        let mut subsystems = self.subsystem_list();
        let nqns = subsystems.iter().map(|subsystem| subsystem.nqn.clone()).collect();
        let reserved = self.exporter.reservations_of(nqns).await;
        for (subsystem, tables) in subsystems.iter_mut().zip(&reserved) {
            subsystem.reservations = tables.iter().map(|(nsid, table)| reservations::view(*nsid, table)).collect();
        }
        let at = Instant::now();
        let status = self.status_with(&pools).await;
        let (devices, volumes, counted) = (self.device_list(), self.volume_list(&pools), self.counted());
        Look { at, took: began.elapsed(), status, devices, pools, volumes, subsystems, counted }
    }
}
