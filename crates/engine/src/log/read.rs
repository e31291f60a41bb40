//! Reading payloads back.

use super::{Log, Medium};
use crate::checksums::list_crc;
use crate::units::{BLOCK_BYTES, LogAt};
use crate::versions::first_right;
use bdev::{Io, Lba, Op, Status};
use reactor::buf::{sg_append, sg_len, sg_split_off};
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, SgList};

/// Places that are tried to tell whether a device answers at all.
const READABLE_PLACES: u32 = 8;

impl Log {
    /// Reads from byte `offset` of the payload at `at` on, when that needs no waiting: false on a block log, and when the
    /// memory cannot be read. The bytes are what is there: callers verify that the place is still theirs, and checksums.
    #[inline]
    pub fn try_read(&self, at: LogAt, offset: usize, target: &mut [u8]) -> bool {
        let Medium::Mapped { reactor, pmem, first_byte } = &self.medium else { return false };
        reactor.driver().pmem_read(*pmem, first_byte + at.bytes() + offset as u64, target).is_ok()
    }

    /// A payload is read soon: one that is mapped is fetched ahead.
    #[inline]
    pub fn expect(&self, at: LogAt, bytes: usize) {
        if let Medium::Mapped { reactor, pmem, first_byte } = &self.medium {
            reactor.driver().pmem_expect(*pmem, first_byte + at.bytes(), bytes);
        }
    }

    /// As [`try_read`](Self::try_read) from the first byte on, without a copy. The bytes stay as they are while the log keeps
    /// the place.
    #[inline]
    pub fn try_loan(&self, at: LogAt, bytes: usize) -> Option<Buf> {
        let Medium::Mapped { reactor, pmem, first_byte } = &self.medium else { return None };
        reactor.driver().pmem_loan(*pmem, first_byte + at.bytes(), bytes).ok()
    }

    /// Whether the device answers reads at all: what it refuses then is the fault of its place.
    pub async fn is_readable(&self) -> bool {
        // Where a segment begins there is a header, or nothing yet. One place may be damaged as well, not all.
        let segment = (self.geometry.segment_blocks as u64 * BLOCK_BYTES as u64 / LogAt::UNIT) as u32;
        for place in 0..self.geometry.segments.min(READABLE_PLACES) {
            if self.read(LogAt(place * segment), 0, BLOCK_BYTES).await.is_ok() {
                return true;
            }
        }
        false
    }

    /// As [`try_read`](Self::try_read) on any medium, into buffers of the pool or, where the device lends them, of the
    /// device.
    pub fn read(&self, at: LogAt, offset: usize, bytes: usize) -> IoFuture<'_, Result<SgList, Status>> {
        if !self.medium.is_mapped() {
            return IoFuture::new(self.medium.read_bytes(at.bytes() + offset as u64, bytes, 0));
        }
        IoFuture::new(async move {
            let (mut list, mut done) = (SgList::new(), 0);
            while done < bytes {
                let mut buf = self.medium.reactor().pool().alloc((bytes - done).min(BUF_BYTES_MAX)).await;
                if !self.try_read(at, offset + done, buf.as_mut_slice()) {
                    return Err(Status::ReadError);
                }
                done += buf.len();
                list.push(buf);
            }
            Ok(list)
        })
    }

    /// Versions of what it holds that can be asked for.
    pub(crate) fn versions(&self) -> u8 {
        self.medium.versions()
    }

    /// The payload at `at` in the first version that has this checksum. `None`: it is wrong in all of them.
    ///
    /// # Errors
    /// [`Status::ReadError`]: some version could not be had now, and may be right.
    pub(crate) async fn read_right(&self, at: LogAt, bytes: usize, crc: u32) -> Result<Option<SgList>, Status> {
        let read = async |version| {
            let list = self.medium.read_bytes(at.bytes(), bytes, version).await?;
            Ok((list_crc(&list) == crc).then_some(list))
        };
        Ok(first_right(0..self.versions(), read).await?.map(|(list, _)| list))
    }
}

impl Medium {
    /// Versions of its blocks that a read can ask for.
    pub(super) fn versions(&self) -> u8 {
        if let Medium::Block { info, .. } = self { info.versions } else { 1 }
    }

    /// Reads any bytes of a shard's block log, in one version.
    async fn read_bytes(&self, start: u64, bytes: usize, version: u8) -> Result<SgList, Status> {
        let Medium::Block { info, first_block, .. } = self else { return Err(Status::Unsupported) };
        let block_size = info.block_size as u64;
        let start = first_block * BLOCK_BYTES as u64 + start;
        let (first, end) = (start / block_size, (start + bytes as u64).div_ceil(block_size));
        let (mut list, mut lba) = (SgList::new(), first);
        while lba < end {
            let blocks = (end - lba).min(info.max_io_blocks as u64).min(BUF_BYTES_MAX as u64 / block_size);
            sg_append(&mut list, self.read_device(lba, blocks as u32, version).await?);
            lba += blocks;
        }
        let mut wanted = sg_split_off(&mut list, (start - first * block_size) as usize);
        drop(sg_split_off(&mut wanted, bytes));
        Ok(wanted)
    }

    async fn read_device(&self, lba: u64, blocks: u32, version: u8) -> Result<SgList, Status> {
        let Medium::Block { reactor, channel, info, .. } = self else { return Err(Status::Unsupported) };
        let bytes = blocks as usize * info.block_size as usize;
        let io = if info.loans {
            Io::read_loan(Lba(lba), blocks)
        } else {
            Io::read(Lba(lba), blocks, [reactor.pool().alloc(bytes).await].into_iter().collect())
        };
        let done = channel.submit(Io { arg: version as u64, ..io }).await;
        done.status.check()?;
        if sg_len(&done.io.bufs) == bytes {
            Ok(done.io.bufs)
        } else {
            Err(Status::of_errno(reactor::Errno::EIO, Op::Read))
        }
    }

    /// Reads whole 4 KiB blocks of a shard's block log, in one version, into one buffer of its own.
    pub(super) async fn read_blocks(&self, block: u64, blocks: usize, version: u8) -> Result<Buf, Status> {
        let Medium::Block { reactor, channel, info, first_block } = self else { return Err(Status::Unsupported) };
        let buf = reactor.pool().alloc(blocks * BLOCK_BYTES).await;
        let per_block = BLOCK_BYTES as u64 / info.block_size as u64;
        let lba = Lba((first_block + block) * per_block);
        let nblocks = (blocks as u64 * per_block) as u32;
        let io = Io::read_version(lba, nblocks, version, [buf].into_iter().collect());
        let mut done = channel.submit(io).await;
        done.status.check()?;
        match done.io.bufs.pop() {
            Some(buf) if done.io.bufs.is_empty() && buf.len() == blocks * BLOCK_BYTES => Ok(buf),
            _ => Err(Status::ReadError),
        }
    }
}
