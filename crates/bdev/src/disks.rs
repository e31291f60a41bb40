//! The disks below a device: on which of them a block lies, and whether it is read. For whoever would rather wait than move
//! the arm of a disk that others wait for.
//!
//! What is found once holds while the devices are open: a device may grow, but its children and the way in which it uses
//! them stay. A device that does not say [where](BlockDevice::place) its blocks lie, such as a mirror, is one disk here, which
//! is read when anything below it is.

use crate::device::BlockDevice;
use std::sync::Arc;

/// Reads of a disk that somebody waits for ([`Flags::LAZY`](crate::Flags::LAZY) ones are not), in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Reads that have come.
    pub begun: u64,
    /// Of those, reads that have ended.
    pub ended: u64,
}

/// Counts reads; any thread may ask.
pub trait ReadGauge: Send + Sync {
    /// All until now.
    fn reads(&self) -> Reads;
}

/// See the module.
pub struct Disks {
    root: Node,
    /// Per disk what counts its reads.
    gauges: Vec<Vec<Arc<dyn ReadGauge>>>,
}

enum Node {
    Disk(usize),
    Above(Arc<dyn BlockDevice>, Vec<Node>),
}

impl Disks {
    /// The disks below `device`.
    pub fn below(device: &Arc<dyn BlockDevice>) -> Disks {
        let mut gauges = Vec::new();
        let root = Node::find(device, None, &mut gauges);
        Disks { root, gauges }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.gauges.len()
    }

    /// The disk that has a block, and how many blocks from there on it has at least, in its order.
    pub fn place(&self, lba: u64) -> (usize, u64) {
        let (mut node, mut at, mut run) = (&self.root, lba, u64::MAX);
        loop {
            match node {
                Node::Disk(disk) => return (*disk, run),
                Node::Above(device, below) => {
                    let (child, block, blocks) =
                        device.place(at).expect("a device that says where blocks lie goes on so");
                    (node, at, run) = (&below[child], block, run.min(blocks));
                }
            }
        }
    }

    /// Reads of a disk; of one that nobody counts there are none.
    pub fn reads(&self, disk: usize) -> Reads {
        self.gauges[disk].iter().map(|gauge| gauge.reads()).fold(Reads::default(), |sum, reads| Reads {
            begun: sum.begun + reads.begun,
            ended: sum.ended + reads.ended,
        })
    }
}

impl Node {
    /// `above`: what counts all reads of this device alone, if it does not do so itself.
    fn find(
        device: &Arc<dyn BlockDevice>,
        above: Option<Arc<dyn ReadGauge>>,
        gauges: &mut Vec<Vec<Arc<dyn ReadGauge>>>,
    ) -> Node {
        let gauge = device.read_gauge().or(above);
        if device.place(0).is_some() {
            let children = device.children();
            let gauge = gauge.filter(|_| children.len() == 1);
            let placed = children.iter().take(device.placed_on());
            let below = placed.map(|child| Node::find(child, gauge.clone(), gauges)).collect();
            return Node::Above(device.clone(), below);
        }
        let mut of_disk: Vec<_> = gauge.into_iter().collect();
        if of_disk.is_empty() {
            count(device, &mut of_disk);
        }
        gauges.push(of_disk);
        Node::Disk(gauges.len() - 1)
    }
}

/// What counts the reads of all that a device stands on.
fn count(device: &Arc<dyn BlockDevice>, gauges: &mut Vec<Arc<dyn ReadGauge>>) {
    match device.read_gauge() {
        Some(gauge) => gauges.push(gauge),
        None => device.children().iter().for_each(|child| count(child, gauges)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        DelayDevice, Delays, Extent, FlashCacheDevice, FlashCacheOptions, LinearDevice, MemDevice, StatsDevice,
        StripeDevice,
    };
    use reactor::{Reactor, ReactorConfig};
    use std::rc::Rc;

    fn mem(blocks: u64) -> Arc<dyn BlockDevice> {
        Arc::new(StatsDevice::new(Arc::new(MemDevice::new("mem", 4096, blocks, blocks).expect("memory"))))
    }

    #[test]
    fn blocks_are_found_through_linears_stripes_and_filters() {
        let stripe = StripeDevice::new("stripe", vec![mem(64), mem(64)], 4).expect("a stripe");
        let slow: Arc<dyn BlockDevice> = Arc::new(DelayDevice::new("slow", Arc::new(stripe), Delays::default(), 1));
        let extents = vec![Extent { child: 1, start: 2, blocks: 10 }, Extent { child: 0, start: 0, blocks: 32 }];
        let linear: Arc<dyn BlockDevice> =
            Arc::new(LinearDevice::new("linear", vec![slow, mem(16)], extents).expect("a linear"));
        let disks = Disks::below(&linear);
        assert_eq!(disks.count(), 3);
        assert_eq!([0, 3, 9].map(|lba| disks.place(lba)), [(2, 10), (2, 7), (2, 1)]);
        assert_eq!([10, 13, 14, 18, 22].map(|lba| disks.place(lba)), [(0, 4), (0, 1), (1, 4), (0, 4), (1, 4)]);
    }

    #[test]
    fn the_flash_of_a_cache_is_none_of_the_disks() {
        let driver = reactor::linux::LinuxDriver::new().expect("io_uring is available");
        let reactor = Reactor::new(0, Rc::new(driver), ReactorConfig::default());
        let inner = reactor.clone();
        let cache = reactor.block_on(async move {
            let options = FlashCacheOptions { create: true, segment_bytes: 64 << 10, ..FlashCacheOptions::default() };
            let slow = StripeDevice::new("stripe", vec![mem(1024), mem(1024)], 4).expect("a stripe");
            FlashCacheDevice::open(&inner, "cache", Arc::new(slow), Some(mem(600)), &options).await.expect("a cache")
        });
        let counted: Arc<dyn BlockDevice> = Arc::new(StatsDevice::new(Arc::new(cache)));
        assert_eq!(Disks::below(&counted).count(), 2);
    }
}
