//! What a pool's capacity device is made of, for scenarios that look at pools of every shape: its disks, and how a process opens
//! the devices on them. What happens to a single kind of them has a scenario of its own.

use crate::hot_pool::{self, Plan};
use crate::{parity_pool, warm_pool, zoned_pool};
use bdev::BlockDevice;
use engine::PoolDevices;
use reactor::Reactor;
use sim::{DiskFaults, DiskOptions, NodeId, World};
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ground {
    /// One disk.
    Disk,
    /// Several, one of which may be away.
    Parity(parity_pool::Array),
    /// A zoned one, and a small one beside it.
    Zones(zoned_pool::Drive),
    /// Slow ones, and flash that may be away.
    Warm(warm_pool::Shelf),
}

impl Ground {
    /// Adds its disks to a node, with hardware that does not fail.
    pub(crate) fn add_disks(
        &self,
        world: &mut World,
        plan: &Plan,
        node: NodeId,
        mut is_volatile: impl FnMut() -> bool,
    ) {
        let disks = match self {
            Ground::Disk => vec![(hot_pool::CAPACITY.to_string(), plan.capacity_bytes)],
            Ground::Parity(array) => array.disks(),
            Ground::Zones(drive) => drive.disks(),
            Ground::Warm(shelf) => shelf.disks(),
        };
        for (path, bytes) in disks {
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
            Ground::Parity(array) => {
                let parity = array.open(reactor, array.first_disks(plan, reactor, away)?, create).await?;
                parity.compare_in_background(reactor);
                parity
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
