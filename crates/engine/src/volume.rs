//! A volume of a pool, as a block device.
//!
//! An operation is cut at extents; each part goes to the shard that owns its slice, on this reactor or by a message. All
//! acknowledged writes are durable, so a flush has nothing to do.

use crate::pool::{PoolShared, ShardTable};
use crate::shard::{Outcome, Shard, Target};
use crate::together::Together;
use crate::units::{ATOMIC_BLOCKS, BLOCK_BYTES, EXTENT_BLOCKS, SLICE_EXTENTS};
use bdev::steps::{self, Medium};
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Op, OpSet, Status};
use reactor::buf::{sg_append, sg_split_off};
use reactor::{IoFuture, Reactor, SgList};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use uuid::Uuid;

const BLOCK_SHIFT: u32 = BLOCK_BYTES.trailing_zeros();
const EXTENT_BYTES: u64 = EXTENT_BLOCKS as u64 * BLOCK_BYTES as u64;
/// What can be done with a snapshot.
const READS: OpSet = OpSet::of(&[Op::Read, Op::Flush, Op::Compare, Op::Verify]);
/// Bytes of the largest operation.
const IO_BYTES_MAX: u32 = 1 << 20;

/// See the module.
pub struct PoolVolume {
    pool: Arc<PoolShared>,
    identity: VolumeIdentity,
    shown: Shown,
}

/// What of a volume changes: everybody who uses it looks here.
#[derive(Clone)]
pub(crate) struct Shown(Arc<ShownNow>);

struct ShownNow {
    /// Its uppermost layer.
    layer: AtomicU32,
    /// Size in blocks of 4 KiB.
    blocks: AtomicU64,
}

impl Shown {
    fn new(layer: u32, blocks: u64) -> Shown {
        Shown(Arc::new(ShownNow { layer: AtomicU32::new(layer), blocks: AtomicU64::new(blocks) }))
    }

    /// The uppermost layer.
    #[inline]
    pub(crate) fn layer(&self) -> u32 {
        // Whoever knows of something that was done in a new layer sees that layer here.
        self.0.layer.load(Acquire)
    }

    /// Another layer is the uppermost.
    pub(crate) fn lay(&self, layer: u32) {
        self.0.layer.store(layer, Release);
    }

    /// Size in blocks of 4 KiB.
    #[inline]
    pub(crate) fn blocks(&self) -> u64 {
        self.0.blocks.load(Relaxed)
    }

    pub(crate) fn resize(&self, blocks: u64) {
        self.0.blocks.store(blocks, Relaxed);
    }

    /// No more than that is there from now on.
    pub(crate) fn shrink_to(&self, blocks: u64) {
        self.0.blocks.fetch_min(blocks, Relaxed);
    }
}

/// What never changes of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeIdentity {
    /// Its name.
    pub name: String,
    /// Its name to hosts.
    pub uuid: Uuid,
    /// Block size that hosts see, as log2: 9 or 12.
    pub block_shift: u16,
    /// It is a snapshot, which can be read.
    pub is_snapshot: bool,
    /// The first layer of its family.
    pub(crate) origin: u32,
}

impl PoolVolume {
    pub(crate) fn new(pool: Arc<PoolShared>, identity: VolumeIdentity, layer: u32, blocks: u64) -> PoolVolume {
        PoolVolume { pool, identity, shown: Shown::new(layer, blocks) }
    }

    /// What never changes of it.
    pub fn identity(&self) -> &VolumeIdentity {
        &self.identity
    }

    /// The number of its uppermost layer in the pool, by which audits and scrubs name it. A snapshot changes it.
    pub fn layer(&self) -> u32 {
        self.shown.layer()
    }

    /// How many of its extents of 4 MiB are of a shard of the pool, written or not.
    pub fn extents_of_shard(&self, shard: u16) -> u64 {
        let extents = self.shown.blocks().div_ceil(EXTENT_BLOCKS as u64);
        extents_of_shard(self.pool.shards(), self.identity.origin, extents, shard)
    }

    pub(crate) fn shown(&self) -> &Shown {
        &self.shown
    }

    /// Says of blocks of 4 KiB that what they held is lost.
    pub(crate) async fn lose(&self, reactor: &Rc<Reactor>, first: u64, blocks: u64) -> Status {
        let (start, bytes) = (first << BLOCK_SHIFT, blocks << BLOCK_SHIFT);
        self.pool.lose(reactor, &self.shown, self.identity.origin, start..start + bytes).await
    }
}

impl PoolShared {
    /// Makes whole blocks of a volume unreadable until they are written again: bytes `range`.
    async fn lose(self: &Arc<Self>, reactor: &Rc<Reactor>, shown: &Shown, origin: u32, range: Range<u64>) -> Status {
        let mut start = range.start;
        while start < range.end {
            let target = first_part(shown, start, range.end - start);
            let number = self.shard_of(origin, target.vextent / SLICE_EXTENTS);
            match self.on_shard(reactor, number, move |shard| async move { shard.spoil(target).await }).await {
                Some(Status::Ok) => start += target.bytes as u64,
                ended => return ended.unwrap_or(Status::Gone),
            }
        }
        Status::Ok
    }
}

/// Of the first `extents` of volumes of an origin: how many are of a shard, of so many `shards`. Slices go round the shards.
fn extents_of_shard(shards: u64, origin: u32, extents: u64, shard: u16) -> u64 {
    let slice_extents = SLICE_EXTENTS as u64;
    let (whole, rest) = (extents / slice_extents, extents % slice_extents);
    let first = (shard as u64 + shards - origin as u64 % shards) % shards;
    let slices = (whole + shards - 1 - first) / shards;
    slices * slice_extents + if whole % shards == first { rest } else { 0 }
}

/// The part of a range that lies in its first extent.
fn first_part(shown: &Shown, start: u64, bytes: u64) -> Target {
    let (vextent, offset) = (start / EXTENT_BYTES, start % EXTENT_BYTES);
    let bytes = bytes.min(EXTENT_BYTES - offset);
    Target { volume: shown.layer(), vextent: vextent as u32, offset: offset as u32, bytes: bytes as u32 }
}

fn info_of(block_shift: u16, blocks: u64, is_snapshot: bool) -> DeviceInfo {
    // Blocks of the volume in one of the engine's.
    let per_block = 1u32 << (BLOCK_SHIFT - block_shift as u32);
    // Less than a block is a record of its own, so what hosts see as smaller blocks are atomic within one of ours only.
    let (atomic, boundary) = if per_block == 1 { (ATOMIC_BLOCKS, EXTENT_BLOCKS) } else { (per_block, per_block) };
    // Less than a block of ours cannot be lost by itself.
    let writes = if per_block == 1 { OpSet::BLOCKS.union(OpSet::of(&[Op::WriteUncorrectable])) } else { OpSet::BLOCKS };
    DeviceInfo {
        ops: if is_snapshot { READS } else { writes },
        optimal_io_blocks: per_block,
        max_io_blocks: IO_BYTES_MAX >> block_shift,
        atomic_write_blocks: atomic,
        atomic_boundary_blocks: boundary,
        compare_and_write_blocks: atomic,
        volatile_cache: false,
        unmap_reads_zero: true,
        loans: false,
        ..DeviceInfo::basic(1 << block_shift, blocks << (BLOCK_SHIFT - block_shift as u32))
    }
}

impl BlockDevice for PoolVolume {
    fn name(&self) -> &str {
        &self.identity.name
    }

    fn kind(&self) -> &'static str {
        "pool-volume"
    }

    fn info(&self) -> DeviceInfo {
        info_of(self.identity.block_shift, self.shown.blocks(), self.identity.is_snapshot)
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(VolumeChannel {
            reactor: reactor.clone(),
            pool: self.pool.clone(),
            shards: self.pool.table(reactor),
            origin: self.identity.origin,
            block_shift: self.identity.block_shift,
            is_snapshot: self.identity.is_snapshot,
            shown: self.shown.clone(),
        }))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        let shift = BLOCK_SHIFT - self.identity.block_shift as u32;
        IoFuture::new(async move {
            let refuse = |reason: String| DeviceError::Config { device: self.identity.name.clone(), reason };
            if self.identity.is_snapshot {
                return Err(refuse("a snapshot cannot be resized: it is what the volume was".to_string()));
            }
            if blocks == 0 || blocks & ((1 << shift) - 1) != 0 {
                return Err(refuse(format!(
                    "{blocks} blocks: a volume is a whole number of 4 KiB blocks, at least one"
                )));
            }
            let (old, new) = (self.shown.blocks(), blocks >> shift);
            // Nobody reaches what is being cut off, nor what is not there yet.
            self.shown.shrink_to(new);
            let resized = self.pool.resize_volume(reactor, self.shown.clone(), new).await;
            self.shown.resize(if resized.is_ok() { new } else { old });
            resized.map_err(|error| refuse(error.to_string()))
        })
    }
}

struct VolumeChannel {
    reactor: Rc<Reactor>,
    pool: Arc<PoolShared>,
    shards: Rc<ShardTable>,
    origin: u32,
    block_shift: u16,
    is_snapshot: bool,
    shown: Shown,
}

impl Channel for VolumeChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let info = info_of(self.block_shift, self.shown.blocks(), self.is_snapshot);
        if self.is_snapshot && io.op.modifies() {
            return IoFuture::ready(io.done(Status::ReadOnly));
        }
        if let Err(status) = info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        match io.op {
            Op::Flush => IoFuture::ready(io.done(Status::Ok)),
            Op::Read | Op::Write => self.transfer_now(io),
            Op::WriteZeroes | Op::Unmap => IoFuture::new(self.trim(io)),
            Op::WriteUncorrectable => IoFuture::new(self.spoil(io)),
            _ => IoFuture::new(self.composed(io)),
        }
    }
}

impl VolumeChannel {
    fn bytes(&self, io: &Io) -> (u64, u64) {
        (io.lba.0 << self.block_shift, (io.nblocks as u64) << self.block_shift)
    }

    fn shard_of(&self, target: &Target) -> u16 {
        self.pool.shard_of(self.origin, target.vextent / SLICE_EXTENTS)
    }

    /// A read or write; of one extent of a shard that lives here without a step of its own.
    #[inline]
    fn transfer_now(&self, mut io: Io) -> IoFuture<'_, Done> {
        let (start, bytes) = self.bytes(&io);
        let target = first_part(&self.shown, start, bytes);
        if target.bytes as u64 != bytes {
            return IoFuture::new(self.transfer_parts(io));
        }
        let bufs = std::mem::take(&mut io.bufs);
        let finish = |mut io: Io, outcome: Outcome| {
            io.bufs = outcome.bufs;
            io.done(outcome.status)
        };
        match self.part(io.op, target, bufs).try_ready() {
            Ok(outcome) => IoFuture::ready(finish(io, outcome)),
            Err(future) => IoFuture::new(async move {
                let (mut outcome, mut layer) = (future.await, target.volume);
                // The former layer may have been deleted while it was read.
                while io.op == Op::Read && self.shown.layer() != layer {
                    let target = first_part(&self.shown, start, bytes);
                    layer = target.volume;
                    outcome = self.part(Op::Read, target, outcome.bufs).await;
                }
                finish(io, outcome)
            }),
        }
    }

    /// A read or write inside one extent, wherever its shard lives.
    fn part(&self, op: Op, target: Target, bufs: SgList) -> IoFuture<'static, Outcome> {
        let run = move |shard: &Rc<Shard>, bufs| match op {
            Op::Read => shard.read(target, bufs),
            _ => shard.write(target, bufs),
        };
        let number = self.shard_of(&target);
        match self.shards.get(number) {
            Some(shard) => run(&shard, bufs),
            None => {
                // Not the pool itself: all cores would count who holds it.
                let (home, table) = (self.pool.home_of(number), self.pool.instance());
                let serve = move |there: &Rc<Reactor>| match ShardTable::on(there, table).get(number) {
                    Some(shard) => run(&shard, bufs),
                    None => IoFuture::ready(Outcome { status: Status::Gone, bufs }),
                };
                if home == self.reactor.index() {
                    return serve(&self.reactor);
                }
                let call = self.reactor.begin_io_on(home, serve);
                IoFuture::new(async move {
                    let outcome = match call {
                        Some(call) => call.await,
                        None => None,
                    };
                    match outcome {
                        Some(outcome) => outcome,
                        // With that core, everything here stops too.
                        None => std::future::pending().await,
                    }
                })
            }
        }
    }

    async fn transfer_parts(&self, mut io: Io) -> Done {
        loop {
            let layer = self.shown.layer();
            let status = self.transfer_parts_once(&mut io).await;
            // The former layer may have been deleted while it was read.
            if io.op != Op::Read || self.shown.layer() == layer {
                return io.done(status);
            }
        }
    }

    async fn transfer_parts_once(&self, io: &mut Io) -> Status {
        let (mut start, mut bytes) = self.bytes(io);
        let mut rest = std::mem::take(&mut io.bufs);
        let mut parts = Together::new();
        while bytes > 0 {
            let target = first_part(&self.shown, start, bytes);
            let tail = sg_split_off(&mut rest, target.bytes as usize);
            let part = std::mem::replace(&mut rest, tail);
            parts.push(self.part(io.op, target, part));
            (start, bytes) = (start + target.bytes as u64, bytes - target.bytes as u64);
        }
        let mut status = Status::Ok;
        while let Some(outcome) = parts.first().await {
            sg_append(&mut io.bufs, outcome.bufs);
            status = if status.is_ok() { outcome.status } else { status };
        }
        status
    }

    async fn spoil(&self, io: Io) -> Done {
        let (start, bytes) = self.bytes(&io);
        let status = self.pool.lose(&self.reactor, &self.shown, self.origin, start..start + bytes).await;
        io.done(status)
    }

    async fn trim(&self, io: Io) -> Done {
        let (mut start, mut bytes) = self.bytes(&io);
        let mut status = Status::Ok;
        while bytes > 0 && status.is_ok() {
            let target = first_part(&self.shown, start, bytes);
            let whole = bytes / EXTENT_BYTES;
            let done = if target.offset == 0 && whole > 1 {
                // Many whole extents: the shards know which of them exist.
                status = self.pool.trim_range(&self.reactor, target.volume, target.vextent, whole as u32).await;
                whole * EXTENT_BYTES
            } else {
                let (number, trim) =
                    (self.shard_of(&target), move |shard: Rc<Shard>| async move { shard.trim(target).await });
                status = self.pool.on_shard(&self.reactor, number, trim).await.unwrap_or(Status::Gone);
                target.bytes as u64
            };
            (start, bytes) = (start + done, bytes - done);
        }
        io.done(status)
    }

    /// Operations made of reads and writes.
    async fn composed(&self, mut io: Io) -> Done {
        let ended = match io.op {
            Op::Compare => steps::compare(self, &io).await,
            Op::Verify => steps::verify(self, &io).await,
            Op::Copy => steps::copy(self, &io).await,
            Op::CompareAndWrite => self.compare_and_write(&mut io).await,
            _ => Err(Status::Unsupported),
        };
        io.done(ended.err().unwrap_or(Status::Ok))
    }

    async fn compare_and_write(&self, io: &mut Io) -> Result<(), Status> {
        let (start, bytes) = self.bytes(io);
        let target = first_part(&self.shown, start, bytes);
        debug_assert_eq!(target.bytes as u64, bytes, "inside an atomic boundary, so inside an extent");
        let mut expected = std::mem::take(&mut io.bufs);
        let new = sg_split_off(&mut expected, bytes as usize);
        let number = self.shard_of(&target);
        let (home, table) = (self.pool.home_of(number), self.pool.instance());
        let serve = move |there: Rc<Reactor>| async move {
            let outcome = match ShardTable::on(&there, table).get(number) {
                Some(shard) => shard.compare_and_write(target, &expected, new).await,
                None => Outcome { status: Status::Gone, bufs: new },
            };
            (outcome, expected)
        };
        let (outcome, expected) = self.reactor.call_on(home, serve).await;
        io.bufs = expected;
        sg_append(&mut io.bufs, outcome.bufs);
        outcome.status.check()
    }
}

impl Medium for VolumeChannel {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        1 << self.block_shift
    }

    async fn transfer(&self, io: Io) -> Done {
        let io = Io { flags: Flags(io.flags.0 & !Flags::LOAN.0), ..io };
        self.transfer_now(io).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_counted_by_the_shards_that_their_slices_go_to() {
        for (shards, origin, extents) in [
            (1, 5, 100),
            (2, 0, 0),
            (2, 1, 15),
            (2, 1, 17),
            (3, 7, 48),
            (3, 8, 33),
            (4, 2, 1000),
            (4, 3, 64),
            (5, 1, 1),
        ] {
            let of_slices = |shard: u16| {
                let is_of = |extent: &u64| (origin + extent / SLICE_EXTENTS as u64) % shards == shard as u64;
                (0..extents).filter(is_of).count() as u64
            };
            for shard in 0..shards as u16 {
                let counted = extents_of_shard(shards, origin as u32, extents, shard);
                assert_eq!(counted, of_slices(shard), "shard {shard} of {shards}, origin {origin}, {extents} extents");
            }
        }
    }
}
