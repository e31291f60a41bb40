//! Striping: consecutive chunks go to consecutive children (RAID 0).
//!
//! Block `b` is block `b / (n * chunk) * chunk + b % chunk` of child `b / chunk % n`. An operation inside one chunk is
//! passed on as it is; a larger one is split at chunk borders and its parts run side by side. A contiguous range is
//! contiguous on every child, so operations without data need one part per child. A failed part fails the whole; which
//! of the other parts took effect is then unknown, as with any failed write.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op, OpSet};
use crate::parts::Parts;
use crate::split;
use crate::steps::{self, Medium};
use base::ByteSize;
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most children of a stripe.
pub const STRIPE_CHILDREN_MAX: usize = 64;

/// See the module.
pub struct StripeDevice {
    name: String,
    children: Vec<Arc<dyn BlockDevice>>,
    geometry: Geometry,
    base: DeviceInfo,
    blocks: Arc<AtomicU64>,
}

#[derive(Clone, Copy)]
struct Geometry {
    width: u64,
    chunk: u64,
}

impl Geometry {
    fn place(&self, lba: u64) -> (usize, u64) {
        let (chunk, within) = (lba / self.chunk, lba % self.chunk);
        ((chunk % self.width) as usize, chunk / self.width * self.chunk + within)
    }

    /// The range of `child` that belongs to `lba .. end`.
    fn share(&self, child: u64, lba: u64, end: u64) -> (u64, u64) {
        (self.blocks_before(child, lba), self.blocks_before(child, end))
    }

    /// How many blocks of `child` lie before block `lba` of the stripe.
    fn blocks_before(&self, child: u64, lba: u64) -> u64 {
        let (row, within) = (lba / (self.chunk * self.width), lba % (self.chunk * self.width));
        row * self.chunk + within.saturating_sub(child * self.chunk).min(self.chunk)
    }
}

const SPLITTABLE: OpSet = OpSet::BLOCKS.without(Op::Copy).union(OpSet::of(&[Op::WriteUncorrectable]));

impl StripeDevice {
    /// Stripes over `children` in chunks of `chunk_blocks`.
    pub fn new(
        name: &str,
        children: Vec<Arc<dyn BlockDevice>>,
        chunk_blocks: u32,
    ) -> Result<StripeDevice, DeviceError> {
        let infos: Vec<DeviceInfo> = children.iter().map(|child| child.info()).collect();
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let base = StripeDevice::plan(&infos, chunk_blocks).map_err(refused)?;
        let geometry = Geometry { width: children.len() as u64, chunk: chunk_blocks as u64 };
        let blocks = Arc::new(AtomicU64::new(base.blocks));
        Ok(StripeDevice { name: name.to_string(), children, geometry, base, blocks })
    }

    /// What stripes over these are; otherwise why there cannot be any.
    pub fn plan(children: &[DeviceInfo], chunk_blocks: u32) -> Result<DeviceInfo, String> {
        if children.is_empty() || children.len() > STRIPE_CHILDREN_MAX || chunk_blocks == 0 {
            return Err(format!(
                "{} children and chunks of {chunk_blocks} blocks: expected 1 to {STRIPE_CHILDREN_MAX} children and at least one block",
                children.len()
            ));
        }
        if children.iter().any(|info| info.block_size != children[0].block_size || info.zoned.is_some()) {
            return Err("children differ in block size, or are zoned".to_string());
        }
        let planned = combine(children, chunk_blocks);
        if planned.blocks == 0 {
            return Err("the smallest child has no room for one chunk".to_string());
        }
        Ok(planned)
    }
}

fn combine(infos: &[DeviceInfo], chunk: u32) -> DeviceInfo {
    let ops = infos.iter().fold(SPLITTABLE, |ops, info| ops.intersection(info.ops)).with_copy();
    // A child's boundary stays one of the stripe's only when chunks are made of whole units.
    let boundary = infos.iter().map(|info| info.atomic_boundary_blocks).filter(|blocks| *blocks > 0).min();
    let aligned =
        infos.iter().all(|info| info.atomic_boundary_blocks == 0 || chunk.is_multiple_of(info.atomic_boundary_blocks));
    let boundary = boundary.unwrap_or(chunk).min(chunk);
    let least = |value: fn(&DeviceInfo) -> u32| infos.iter().map(value).min().unwrap_or(1);
    let unit = |blocks: u32| if aligned { blocks.min(boundary) } else { blocks.min(1) };
    DeviceInfo {
        ops,
        optimal_io_blocks: chunk,
        max_io_blocks: least(|info| info.max_io_blocks),
        atomic_write_blocks: unit(least(|info| info.atomic_write_blocks)),
        compare_and_write_blocks: unit(least(|info| info.compare_and_write_blocks)),
        atomic_boundary_blocks: if aligned { boundary } else { chunk },
        volatile_cache: infos.iter().any(|info| info.volatile_cache),
        unmap_reads_zero: infos.iter().all(|info| info.unmap_reads_zero),
        loans: infos.iter().all(|info| info.loans),
        streams: infos.iter().map(|info| info.streams).min().unwrap_or(0),
        versions: infos.iter().map(|info| info.versions).min().unwrap_or(1),
        ..DeviceInfo::basic(infos[0].block_size, total_blocks(infos.iter().map(|info| info.blocks), chunk))
    }
}

fn total_blocks(children: impl ExactSizeIterator<Item = u64>, chunk: u32) -> u64 {
    let width = children.len() as u64;
    children.min().unwrap_or(0) / chunk as u64 * chunk as u64 * width
}

impl BlockDevice for StripeDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "stripe"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks.load(Ordering::Relaxed), ..self.base }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let children = self.children.iter().map(|child| child.open_channel(reactor)).collect::<Result<Vec<_>, _>>()?;
        Ok(Rc::new(StripeChannel(Rc::new(Inner {
            children,
            geometry: self.geometry,
            base: self.base,
            blocks: self.blocks.clone(),
            reactor: reactor.clone(),
        }))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.children.clone()
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        let Geometry { width, chunk } = self.geometry;
        let (child, at) = self.geometry.place(lba);
        Some((child, at, if width == 1 { u64::MAX } else { chunk - lba % chunk }))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::new(async move {
            let row = self.geometry.chunk * self.geometry.width;
            if blocks == 0 || !blocks.is_multiple_of(row) {
                let size = |blocks: u64| ByteSize(blocks.saturating_mul(self.base.block_size as u64));
                let below = (blocks / row).max(1) * row;
                let reason = format!(
                    "a stripe has whole rows of {} (chunk times children), and {} is not: {} or {} would be",
                    size(row),
                    size(blocks),
                    size(below),
                    size(below.saturating_add(row))
                );
                return Err(DeviceError::Config { device: self.name.clone(), reason });
            }
            if blocks < self.blocks.load(Ordering::Relaxed) {
                self.blocks.store(blocks, Ordering::Relaxed);
            }
            for child in &self.children {
                child.resize(reactor, blocks / self.geometry.width).await?;
            }
            self.blocks.store(blocks, Ordering::Relaxed);
            Ok(())
        })
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::new(async move {
            let mut sizes = Vec::new();
            for child in &self.children {
                sizes.push(child.refresh(reactor).await?.blocks);
            }
            self.blocks.store(total_blocks(sizes.into_iter(), self.geometry.chunk as u32), Ordering::Relaxed);
            Ok(self.info())
        })
    }
}

struct StripeChannel(Rc<Inner>);

struct Inner {
    children: Vec<Rc<dyn Channel>>,
    geometry: Geometry,
    base: DeviceInfo,
    blocks: Arc<AtomicU64>,
    reactor: Rc<Reactor>,
}

impl Channel for StripeChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let inner = &self.0;
        let info = DeviceInfo { blocks: inner.blocks.load(Ordering::Relaxed), ..inner.base };
        if let Err(status) = info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let within = io.lba.0 % inner.geometry.chunk;
        if within + io.nblocks as u64 <= inner.geometry.chunk && !matches!(io.op, Op::Flush | Op::Copy) {
            let (child, at) = inner.geometry.place(io.lba.0);
            return split::pass(&*inner.children[child], at, io);
        }
        let inner = inner.clone();
        match io.op {
            Op::Copy => IoFuture::steps(&self.0.reactor, async move {
                let status = steps::status_of(steps::copy(&*inner, &io).await);
                io.done(status)
            }),
            // One step only: each child keeps its part going by itself when the parts are dropped.
            Op::Read | Op::Write | Op::Compare => IoFuture::new(async move { inner.split_data(io).await }),
            _ => IoFuture::new(async move { inner.split_range(io).await }),
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
        self.base.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        self.split_data(io).await
    }
}

impl Inner {
    async fn split_data(&self, io: Io) -> Done {
        split::runs(&self.reactor, &self.children, self.base.block_size, io, |lba| {
            let (child, at) = self.geometry.place(lba);
            (child, at, self.geometry.chunk - lba % self.geometry.chunk)
        })
        .await
    }

    async fn split_range(&self, io: Io) -> Done {
        let mut parts = Parts::default();
        for (index, child) in self.children.iter().enumerate() {
            if io.op == Op::Flush {
                parts.push(child.submit(split::part_of(&io, 0, 0, SgList::new())));
                continue;
            }
            let (start, end) = self.geometry.share(index as u64, io.lba.0, io.end());
            if start < end {
                parts.push(child.submit(split::part_of(&io, start, (end - start) as u32, SgList::new())));
            }
        }
        split::gather(io, parts).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_range_are_what_placing_each_block_gives() {
        let geometry = Geometry { width: 3, chunk: 4 };
        for lba in 0..40 {
            for end in lba..40 {
                for child in 0..3u64 {
                    let placed: Vec<u64> = (lba..end)
                        .map(|b| geometry.place(b))
                        .filter(|(c, _)| *c as u64 == child)
                        .map(|(_, at)| at)
                        .collect();
                    let (start, stop) = geometry.share(child, lba, end);
                    assert_eq!(placed, (start..stop).collect::<Vec<_>>(), "{lba}..{end} on {child}");
                }
            }
        }
    }
}
