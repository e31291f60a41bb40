//! The device below, in blocks of 4 KiB: the one place that knows its block size.

use super::{MetaError, Object};
use crate::units::BLOCK_BYTES;
use crate::versions::first_right;
use bdev::{Channel, DeviceInfo, Done, Flags, Io, Lba, Op, Status};
use reactor::{BUF_BYTES_MAX, Begun, Buf, IoFuture, Reactor, SgList};
use std::cell::Cell;
use std::rc::Rc;

/// Most bytes of one transfer of many blocks.
const TRANSFER_BYTES_MAX: usize = BUF_BYTES_MAX / 4;

/// A read that has been begun, or what it gave at once.
pub(crate) type PartRead = Result<Done, Begun<dyn Channel, Done>>;

/// Bytes that were written; of what failed, none.
#[derive(Default)]
pub(crate) struct Written {
    /// Pages, which a flush makes durable.
    pages: Cell<u64>,
    /// What is durable at once: roots, journals, and what is made durable once more.
    durable: Cell<u64>,
}

impl Written {
    /// Those of pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.get()
    }

    /// All others.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.get()
    }
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Media {
    pub(crate) reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    /// Device blocks in one of 4 KiB, as log2.
    shift: u32,
    /// Blocks of 4 KiB in the largest transfer.
    transfer_blocks: usize,
    /// Size in blocks of 4 KiB.
    pub(crate) blocks: u64,
    /// Completed writes need a flush to be durable.
    cached: bool,
    /// The device lends its memory to reads.
    loans: bool,
    /// Versions of its blocks that a read can ask for.
    pub(crate) versions: u8,
    written: Rc<Written>,
}

impl Media {
    pub(crate) fn new(reactor: &Rc<Reactor>, channel: Rc<dyn Channel>, info: &DeviceInfo) -> Result<Media, MetaError> {
        if !matches!(info.block_size, 512 | 4096) {
            return Err(MetaError::BlockSize(info.block_size));
        }
        let shift = (BLOCK_BYTES as u32 / info.block_size).ilog2();
        let transfer_blocks = (info.max_io_blocks as usize >> shift).clamp(1, TRANSFER_BYTES_MAX / BLOCK_BYTES);
        let (reactor, blocks) = (reactor.clone(), info.blocks >> shift);
        let DeviceInfo { volatile_cache: cached, loans, versions, .. } = *info;
        let written = Rc::default();
        Ok(Media { reactor, channel, shift, transfer_blocks, blocks, cached, loans, versions, written })
    }

    /// Whether completed writes may be lost.
    pub(crate) fn is_cached(&self) -> bool {
        self.cached
    }

    /// What it and its clones have written.
    pub(crate) fn written(&self) -> &Written {
        &self.written
    }

    /// Blocks that one read can fill a buffer with.
    pub(crate) fn blocks_per_read(&self) -> usize {
        self.transfer_blocks
    }

    /// A buffer of so many blocks.
    pub(crate) async fn buffer(&self, blocks: usize) -> Buf {
        self.reactor.pool().alloc(blocks * BLOCK_BYTES).await
    }

    /// Reads count as upkeep: where a host waits, it has read data as well, or [a part](Self::begin_part).
    async fn transfer(&self, io: Io) -> Result<Buf, Status> {
        let flags = if io.op == Op::Read { io.flags | Flags::LAZY } else { io.flags };
        let mut done = self.channel.submit(Io { flags, ..io }).await;
        done.status.check()?;
        // What was given comes back: only a read that takes loans may be answered with other buffers.
        done.io.bufs.pop().ok_or(Status::Invalid)
    }

    fn lba(&self, block: u64) -> Lba {
        Lba(block << self.shift)
    }

    fn device_blocks(&self, bytes: usize) -> u32 {
        ((bytes / BLOCK_BYTES) << self.shift) as u32
    }

    /// Fills a buffer of whole blocks.
    pub(crate) async fn read(&self, block: u64, buf: Buf) -> Result<Buf, Status> {
        self.read_version(block, 0, buf).await
    }

    /// As [`read`](Self::read), of one version of the blocks; 0 is the usual one.
    pub(crate) async fn read_version(&self, block: u64, version: u8, buf: Buf) -> Result<Buf, Status> {
        let (nblocks, mut bufs) = (self.device_blocks(buf.len()), SgList::new());
        bufs.push(buf);
        self.transfer(Io::read_version(self.lba(block), nblocks, version, bufs)).await
    }

    /// What `read` gives of the first right version of the blocks from `block` on, but for the usual one, which was not right.
    /// `None`: all are wrong.
    ///
    /// # Errors
    /// [`Status::ReadError`]: some version could not be had now, and may be right.
    pub(crate) async fn other_version<T>(
        &self,
        block: u64,
        read: impl AsyncFnMut(u8) -> Result<Option<T>, Status>,
    ) -> Result<Option<T>, Status> {
        let Some((right, version)) = first_right(1..self.versions, read).await? else { return Ok(None) };
        tracing::warn!(block, version, "metadata is damaged in the usual version of the device, and right in this one");
        Ok(Some(right))
    }

    /// As [`other_version`](Self::other_version), of so many blocks as they are.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn read_other(
        &self,
        block: u64,
        blocks: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Buf>, Status> {
        let read = async |version| {
            let buf = self.read_version(block, version, self.buffer(blocks).await).await?;
            Ok(is_right(buf.as_slice()).then_some(buf))
        };
        self.other_version(block, read).await
    }

    /// A block, in a buffer of the device where it lends them.
    pub(crate) async fn read_block(&self, block: u64) -> Result<Buf, Status> {
        if !self.loans {
            return self.read(block, self.buffer(1).await).await;
        }
        let buf = self.transfer(Io::read_loan(self.lba(block), self.device_blocks(BLOCK_BYTES))).await?;
        if buf.len() == BLOCK_BYTES { Ok(buf) } else { self.read(block, self.buffer(1).await).await }
    }

    /// Whether the medium itself gives a block: a cache on the way would answer for a device that does not.
    pub(crate) async fn answers(&self, block: u64) -> bool {
        let bufs = [self.buffer(1).await].into_iter().collect();
        let read = Io::read(self.lba(block), self.device_blocks(BLOCK_BYTES), bufs);
        self.transfer(Io { flags: Flags::FUA, ..read }).await.is_ok()
    }

    /// Begins to read a part of a block: offset and length are multiples of 512. What comes has the device's granularity; the
    /// second value is where the part begins in it. `None` when there is no memory for it now.
    #[inline]
    pub(crate) fn begin_part(&self, block: u64, at: usize, bytes: usize) -> Option<(PartRead, usize)> {
        let unit = BLOCK_BYTES >> self.shift;
        let (first, end) = (at / unit, (at + bytes).div_ceil(unit));
        let (lba, count) = (Lba((block << self.shift) + first as u64), (end - first) as u32);
        let io = if self.loans {
            Io::read_loan(lba, count)
        } else {
            let mut bufs = SgList::new();
            bufs.push(self.reactor.pool().try_alloc((end - first) * unit)?);
            Io::read(lba, count, bufs)
        };
        Some((IoFuture::begin(&self.channel, |channel| channel.submit(io)), at - first * unit))
    }

    /// Writes a buffer of whole blocks; it is durable after the next [`flush`](Self::flush).
    pub(crate) async fn write(&self, block: u64, buf: Buf) -> Result<(), Status> {
        let bytes = buf.len() as u64;
        self.write_with(block, buf, Flags::NONE).await?;
        self.written.pages.set(self.written.pages.get() + bytes);
        Ok(())
    }

    async fn write_with(&self, block: u64, buf: Buf, flags: Flags) -> Result<(), Status> {
        let (nblocks, mut bufs) = (self.device_blocks(buf.len()), SgList::new());
        bufs.push(buf);
        self.transfer(Io { flags, ..Io::write(self.lba(block), nblocks, bufs) }).await.map(drop)
    }

    /// Makes completed writes durable.
    pub(crate) async fn flush(&self) -> Result<(), Status> {
        if !self.cached {
            return Ok(());
        }
        self.channel.submit(Io::flush()).await.status.check()
    }

    /// Writes `bytes`, the last block filled with zeroes, durably.
    pub(crate) async fn write_durably(&self, block: u64, bytes: &[u8]) -> Result<(), Status> {
        self.write_bytes_with(block, bytes, if self.cached { Flags::FUA } else { Flags::NONE }).await
    }

    /// The same; they are durable after the next [`flush`](Self::flush).
    pub(crate) async fn write_bytes(&self, block: u64, bytes: &[u8]) -> Result<(), Status> {
        self.write_bytes_with(block, bytes, Flags::NONE).await
    }

    async fn write_bytes_with(&self, block: u64, bytes: &[u8], flags: Flags) -> Result<(), Status> {
        let mut at = block;
        for part in bytes.chunks(self.transfer_blocks * BLOCK_BYTES) {
            let blocks = part.len().div_ceil(BLOCK_BYTES);
            let mut buf = self.buffer(blocks).await;
            buf.as_mut_slice()[..part.len()].copy_from_slice(part);
            buf.as_mut_slice()[part.len()..].fill(0);
            self.write_part(at, buf, flags).await?;
            at += blocks as u64;
        }
        Ok(())
    }

    async fn write_part(&self, at: u64, buf: Buf, flags: Flags) -> Result<(), Status> {
        let bytes = buf.len() as u64;
        self.write_with(at, buf, flags).await?;
        self.written.durable.set(self.written.durable.get() + bytes);
        // A device in memory answers at once.
        if self.reactor.is_turn_long() {
            self.reactor.yield_now().await;
        }
        Ok(())
    }

    /// The bytes of `count` blocks.
    pub(crate) async fn read_bytes(&self, block: u64, count: usize) -> Result<Vec<u8>, Status> {
        self.read_bytes_of(0, block, count).await
    }

    /// As [`read_bytes`](Self::read_bytes), of one version of the blocks; 0 is the usual one.
    pub(crate) async fn read_bytes_of(&self, version: u8, block: u64, count: usize) -> Result<Vec<u8>, Status> {
        let mut bytes = Vec::with_capacity(count * BLOCK_BYTES);
        let mut at = 0;
        while at < count {
            let blocks = (count - at).min(self.transfer_blocks);
            let buf = self.read_version(block + at as u64, version, self.buffer(blocks).await).await?;
            bytes.extend_from_slice(buf.as_slice());
            at += blocks;
        }
        Ok(bytes)
    }

    /// As [`read_bytes`](Self::read_bytes), for opening: the error names the object.
    pub(crate) async fn read_object(&self, object: Object, block: u64, count: usize) -> Result<Vec<u8>, MetaError> {
        let failed = |status| MetaError::Io { action: "read", object, block, status };
        self.read_bytes(block, count).await.map_err(failed)
    }

    /// As [`read_object`](Self::read_object), in another version of the blocks where the usual one is not right and another is.
    pub(crate) async fn read_right_object(
        &self,
        object: Object,
        block: u64,
        count: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<u8>, MetaError> {
        let usual = self.read_object(object, block, count).await;
        if self.versions == 1 || usual.as_ref().is_ok_and(|bytes| is_right(bytes)) {
            return usual;
        }
        let read = async |version| {
            let bytes = self.read_bytes_of(version, block, count).await?;
            Ok(is_right(&bytes).then_some(bytes))
        };
        match self.other_version(block, read).await {
            Ok(Some(bytes)) => Ok(bytes),
            // The usual one is what the message is about.
            _ => usual,
        }
    }

    /// Makes durable what reads from these blocks. A process that was killed may have left them readable alone, even after a
    /// flush that failed: whoever overwrites the older copy must have written the newer one itself. Where the device has several
    /// versions, each part of so many blocks `is_right` in what is written, if any version of it is.
    pub(crate) async fn settle(
        &self,
        block: u64,
        count: usize,
        part_blocks: usize,
        is_right: impl Fn(&[u8]) -> bool,
    ) -> Result<(), Status> {
        if !self.cached {
            return Ok(());
        }
        if self.versions == 1 {
            // There is nothing to choose from: what is read goes back as it is.
            for at in (0..count).step_by(self.transfer_blocks) {
                let (first, blocks) = (block + at as u64, (count - at).min(self.transfer_blocks));
                let buf = self.read_version(first, 0, self.buffer(blocks).await).await?;
                self.write_part(first, buf, Flags::FUA).await?;
            }
            return Ok(());
        }
        let mut bytes = self.read_bytes(block, count).await?;
        let mut at = block;
        for part in bytes.chunks_mut(part_blocks.max(1) * BLOCK_BYTES) {
            let blocks = part.len() / BLOCK_BYTES;
            if !is_right(part) {
                // It would be written over what is right elsewhere.
                let read = async |version| {
                    let bytes = self.read_bytes_of(version, at, blocks).await?;
                    Ok(is_right(&bytes).then_some(bytes))
                };
                if let Some(right) = self.other_version(at, read).await? {
                    part.copy_from_slice(&right);
                }
            }
            at += blocks as u64;
        }
        self.write_durably(block, &bytes).await
    }

    /// As [`read_bytes_of`](Self::read_bytes_of), from the medium itself: no cache on the way answers.
    pub(super) async fn read_medium(&self, version: u8, block: u64, count: usize) -> Result<Vec<u8>, Status> {
        let mut bytes = Vec::with_capacity(count * BLOCK_BYTES);
        let mut at = 0;
        while at < count {
            let blocks = (count - at).min(self.transfer_blocks);
            let bufs = [self.buffer(blocks).await].into_iter().collect();
            let (lba, nblocks) = (self.lba(block + at as u64), self.device_blocks(blocks * BLOCK_BYTES));
            let read = Io::read_version(lba, nblocks, version, bufs);
            let buf = self.transfer(Io { flags: Flags::FUA, ..read }).await?;
            bytes.extend_from_slice(buf.as_slice());
            at += blocks;
        }
        Ok(bytes)
    }
}
