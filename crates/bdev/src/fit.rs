//! A device that does less than was promised in its name, made to keep the promise: what it cannot do is done by reads
//! and writes, in pieces that it can take. For a leg that comes late to a mirror, whose users know already what it does.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Flags, Io, Op};
use crate::split;
use crate::steps::{self, Medium};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

struct FittedDevice {
    child: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    /// Completed writes were promised to be durable.
    forces: bool,
}

/// `child`, or `child` with help where it does less than `promised`. Sizes and atomicity are the caller's to compare.
pub(crate) fn fit(child: Arc<dyn BlockDevice>, promised: &DeviceInfo) -> Arc<dyn BlockDevice> {
    let base = child.info();
    let forces = base.volatile_cache && !promised.volatile_cache;
    let info = DeviceInfo {
        ops: base.ops.union(promised.ops),
        max_io_blocks: base.max_io_blocks.max(promised.max_io_blocks),
        loans: base.loans || promised.loans,
        unmap_reads_zero: base.unmap_reads_zero || promised.unmap_reads_zero,
        volatile_cache: base.volatile_cache && promised.volatile_cache,
        ..base
    };
    if info == base { child } else { Arc::new(FittedDevice { child, info, forces }) }
}

impl BlockDevice for FittedDevice {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        self.child.kind()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.child.info().blocks, ..self.info }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let inner = Inner {
            reactor: reactor.clone(),
            base: self.child.info(),
            forces: self.forces,
            zeroes_unmapped: self.info.unmap_reads_zero,
            child: [self.child.open_channel(reactor)?],
        };
        Ok(Rc::new(FittedChannel(Rc::new(inner))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::new(async move {
            self.child.refresh(reactor).await?;
            Ok(self.info())
        })
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba, u64::MAX))
    }
}

struct FittedChannel(Rc<Inner>);

struct Inner {
    reactor: Rc<Reactor>,
    base: DeviceInfo,
    forces: bool,
    zeroes_unmapped: bool,
    child: [Rc<dyn Channel>; 1],
}

impl Channel for FittedChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let inner = &self.0;
        if inner.forces && io.op.modifies() {
            io.flags = io.flags | Flags::FUA;
        }
        if inner.can(&io) {
            return inner.child[0].submit(io);
        }
        let inner = inner.clone();
        IoFuture::steps(&self.0.reactor, async move { inner.help(io).await })
    }

    fn abort(&self, tag: u64) {
        self.0.child[0].abort(tag);
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
        let most = self.base.max_io_blocks as u64;
        split::runs(&self.reactor, &self.child, self.base.block_size, io, |lba| (0, lba, most)).await
    }
}

impl Inner {
    fn can(&self, io: &Io) -> bool {
        let moves_data = matches!(io.op, Op::Read | Op::Write);
        let lent = io.op == Op::Read && io.bufs.is_empty();
        let clears = io.op != Op::Unmap || self.base.unmap_reads_zero || !self.zeroes_unmapped;
        self.base.ops.contains(io.op)
            && clears
            && (!moves_data || io.nblocks <= self.base.max_io_blocks)
            && (!lent || self.base.loans)
    }

    async fn help(&self, mut io: Io) -> Done {
        if matches!(io.op, Op::WriteZeroes | Op::Unmap) {
            let status = steps::status_of(steps::write_zeroes(self, &io).await);
            return io.done(status);
        }
        match steps::provide(&self.reactor, &mut io, self.base.block_size).await {
            Ok(()) => self.transfer(io).await,
            Err(status) => io.done(status),
        }
    }
}
