//! A device made of extents of others, one after the other: a partition, a slice, a concatenation.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op, OpSet};
use crate::parts::Parts;
use crate::split;
use crate::steps::{self, Medium};
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

/// Most extents of one device.
pub const EXTENTS_MAX: usize = 65_536;

/// A range of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which child, from 0.
    pub child: usize,
    /// Its first block.
    pub start: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// See the module.
pub struct LinearDevice {
    name: String,
    children: Vec<Arc<dyn BlockDevice>>,
    map: Arc<Map>,
}

struct Map {
    info: DeviceInfo,
    extents: Vec<Extent>,
    /// The first block of each extent in this device.
    starts: Vec<u64>,
    used: Vec<bool>,
}

impl Map {
    fn place(&self, lba: u64) -> (usize, u64, u64) {
        let index = match self.starts.len() {
            1 => 0,
            _ => self.starts.partition_point(|start| *start <= lba) - 1,
        };
        let (extent, within) = (self.extents[index], lba - self.starts[index]);
        (extent.child, extent.start + within, extent.blocks - within)
    }
}

const OPS: OpSet = OpSet::BLOCKS.without(Op::Copy).union(OpSet::of(&[Op::WriteUncorrectable]));

impl LinearDevice {
    /// The concatenation of `extents`, which must lie inside their children and not overlap.
    pub fn new(
        name: &str,
        children: Vec<Arc<dyn BlockDevice>>,
        extents: Vec<Extent>,
    ) -> Result<LinearDevice, DeviceError> {
        let refuse = |reason: String| Err(DeviceError::Config { device: name.to_string(), reason });
        if extents.is_empty() || extents.len() > EXTENTS_MAX {
            return refuse(format!("{} extents: expected 1 to {EXTENTS_MAX}", extents.len()));
        }
        let infos: Vec<DeviceInfo> = children.iter().map(|child| child.info()).collect();
        if infos.iter().any(|info| info.block_size != infos[0].block_size || info.zoned.is_some()) {
            return refuse("children differ in block size, or are zoned".to_string());
        }
        for extent in &extents {
            let Some(info) = infos.get(extent.child) else {
                return refuse(format!("an extent names child {} of {}", extent.child, infos.len()));
            };
            if extent.blocks == 0 || extent.start > info.blocks || extent.blocks > info.blocks - extent.start {
                let Extent { start, blocks, .. } = extent;
                let child = children[extent.child].name();
                return refuse(format!(
                    "extent {start}+{blocks} is empty or past the {} blocks of '{child}'",
                    info.blocks
                ));
            }
        }
        let mut sorted = extents.clone();
        sorted.sort_by_key(|extent| (extent.child, extent.start));
        if sorted
            .windows(2)
            .any(|pair| pair[0].child == pair[1].child && pair[0].start + pair[0].blocks > pair[1].start)
        {
            return refuse("extents overlap".to_string());
        }
        let (mut total, mut starts) = (0u64, Vec::with_capacity(extents.len()));
        for extent in &extents {
            starts.push(total);
            total += extent.blocks;
        }
        let used = (0..children.len()).map(|child| extents.iter().any(|extent| extent.child == child)).collect();
        let info = combine(&infos, &extents, total);
        Ok(LinearDevice { name: name.to_string(), children, map: Arc::new(Map { info, extents, starts, used }) })
    }

    /// A window of one device.
    pub fn window(
        name: &str,
        child: Arc<dyn BlockDevice>,
        start: u64,
        blocks: u64,
    ) -> Result<LinearDevice, DeviceError> {
        LinearDevice::new(name, vec![child], vec![Extent { child: 0, start, blocks }])
    }
}

fn combine(infos: &[DeviceInfo], extents: &[Extent], total: u64) -> DeviceInfo {
    let ops = infos.iter().fold(OPS, |ops, info| ops.intersection(info.ops)).with_copy();
    let least = |value: fn(&DeviceInfo) -> u32| infos.iter().map(value).min().unwrap_or(1);
    // Atomic units must neither cross an extent's end nor be shifted against a child's boundary.
    let child_boundary = infos.iter().fold(0, |all, info| gcd(all, info.atomic_boundary_blocks as u64));
    let boundary = match (extents.len(), child_boundary) {
        (1, 0) => 0,
        _ => extents.iter().fold(child_boundary, |all, extent| gcd(gcd(all, extent.start), extent.blocks)),
    };
    let boundary = u32::try_from(boundary).unwrap_or(1 << 31);
    let unit = |blocks: u32| if boundary == 0 { blocks } else { blocks.min(boundary) };
    DeviceInfo {
        ops,
        optimal_io_blocks: least(|info| info.optimal_io_blocks),
        max_io_blocks: least(|info| info.max_io_blocks),
        atomic_write_blocks: unit(least(|info| info.atomic_write_blocks)),
        compare_and_write_blocks: unit(least(|info| info.compare_and_write_blocks)),
        atomic_boundary_blocks: boundary,
        volatile_cache: infos.iter().any(|info| info.volatile_cache),
        unmap_reads_zero: infos.iter().all(|info| info.unmap_reads_zero),
        loans: infos.iter().all(|info| info.loans),
        streams: infos.iter().map(|info| info.streams).min().unwrap_or(0),
        versions: infos.iter().map(|info| info.versions).min().unwrap_or(1),
        ..DeviceInfo::basic(infos[0].block_size, total)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl BlockDevice for LinearDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "linear"
    }

    fn info(&self) -> DeviceInfo {
        self.map.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let children = self.children.iter().map(|child| child.open_channel(reactor)).collect::<Result<Vec<_>, _>>()?;
        Ok(Rc::new(LinearChannel(Rc::new(Inner { children, map: self.map.clone(), reactor: reactor.clone() }))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.children.clone()
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some(self.map.place(lba))
    }
}

struct LinearChannel(Rc<Inner>);

struct Inner {
    children: Vec<Rc<dyn Channel>>,
    map: Arc<Map>,
    reactor: Rc<Reactor>,
}

impl Channel for LinearChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let inner = &self.0;
        if let Err(status) = inner.map.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        match io.op {
            Op::Flush => IoFuture::new(async move { inner.flush(io).await }),
            Op::Copy => {
                let inner = inner.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let status = steps::status_of(steps::copy(&*inner, &io).await);
                    io.done(status)
                })
            }
            _ => {
                let (child, at, run) = inner.map.place(io.lba.0);
                if io.nblocks as u64 <= run {
                    return split::pass(&*inner.children[child], at, io);
                }
                IoFuture::new(inner.transfer(io))
            }
        }
    }

    fn abort(&self, tag: u64) {
        self.0.children.iter().for_each(|child| child.abort(tag));
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.map.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        split::runs(&self.reactor, &self.children, self.map.info.block_size, io, |lba| self.map.place(lba)).await
    }
}

impl Inner {
    async fn flush(&self, io: Io) -> Done {
        let mut parts = Parts::default();
        for (child, _) in self.children.iter().zip(&self.map.used).filter(|(_, used)| **used) {
            parts.push(child.submit(split::part_of(&io, 0, 0, SgList::new())));
        }
        split::gather(io, parts).await
    }
}
