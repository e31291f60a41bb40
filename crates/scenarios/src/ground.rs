//! What a pool's capacity device is made of, for scenarios that look at pools of every shape: its disks, and how a process opens
//! the devices on them. What happens to a single kind of them has a scenario of its own.

use crate::hot_pool::{self, Plan};
use crate::redundant::Array;
use crate::{warm_pool, zoned_pool};
use base::Rng;
use bdev::BlockDevice;
use engine::PoolDevices;
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, Failure, NodeId, World};
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground {
    /// One disk.
    Disk,
    /// Several, one of which may be away.
    Array(Array),
    /// A zoned one, and a small one beside it.
    Zones(zoned_pool::Drive),
    /// Slow ones, and flash that may be away.
    Warm(warm_pool::Shelf),
}

impl Ground {
    /// Makes its disks, the pool and its volumes, on hardware that does not fail yet.
    pub(crate) fn create(&self, world: &mut World, rng: &mut Rng, plan: Plan, node: NodeId) -> Result<(), Failure> {
        let ground = *self;
        if let Ground::Disk = ground {
            return hot_pool::create(world, rng, plan, node);
        }
        hot_pool::add_log(world, rng, plan, node);
        ground.add_disks(world, &plan, node, || !rng.one_in(4));
        hot_pool::make(world, node, plan, move |reactor| {
            Box::pin(async move { ground.devices(&plan, &reactor, true, None).await })
        })
    }

    /// Of each disk the path and the bytes.
    pub(crate) fn disks(&self, plan: &Plan) -> Vec<(String, u64)> {
        match self {
            Ground::Disk => vec![(hot_pool::CAPACITY.to_string(), plan.capacity_bytes)],
            Ground::Array(array) => array.disks(),
            Ground::Zones(drive) => drive.disks(),
            Ground::Warm(shelf) => shelf.disks(),
        }
    }

    /// What is not there for a life, of what may come back with what it had.
    pub(crate) fn away_for_a_life(&self, rng: &mut Rng) -> Option<u64> {
        match self {
            Ground::Warm(shelf) => shelf.away_for_a_life(rng),
            _ => None,
        }
    }

    /// Adds its disks to a node, with hardware that does not fail.
    pub(crate) fn add_disks(
        &self,
        world: &mut World,
        plan: &Plan,
        node: NodeId,
        mut is_volatile: impl FnMut() -> bool,
    ) {
        for (path, bytes) in self.disks(plan) {
            let volatile_cache = is_volatile();
            let zones = if let Ground::Zones(drive) = self { drive.zones_of(&path, plan.block_size) } else { None };
            let (unit, block_device) = (plan.block_size, zones.is_some());
            let options = DiskOptions { bytes, unit, volatile_cache, zones, block_device, ..DiskOptions::default() };
            world.add_disk(node, &path, options, DiskFaults::default());
        }
    }

    /// Opens the devices of the pool. `away` chooses the one that is not there, where the pool does without it.
    pub(crate) async fn devices(
        &self,
        plan: &Plan,
        reactor: &Rc<Reactor>,
        create: bool,
        away: Option<u64>,
    ) -> Result<PoolDevices, String> {
        let capacity: Arc<dyn BlockDevice> = match self {
            Ground::Disk => return plan.devices(reactor),
            Ground::Array(array) => {
                let disks = array.first_disks(plan, reactor, away)?;
                array.open(reactor, disks, create).await?.device()
            }
            Ground::Zones(drive) => drive.behind(drive.open(plan, reactor, create).await?.1),
            Ground::Warm(shelf) => {
                let flash = if away.is_none() { Some(plan.file(reactor, warm_pool::FLASH)?) } else { None };
                shelf.open(plan, reactor, flash).await?
            }
        };
        Ok(PoolDevices { log: plan.log_device(reactor)?, capacity })
    }
}
