//! The device below, in blocks of 4 KiB.

use crate::units::BLOCK_BYTES;
use base::Errno;
use bdev::{Channel, DeviceInfo, Io, Lba, Op, Status, Zone, ZoneState};
use reactor::buf::{sg_append, sg_len, sg_split_off};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;

/// A page of flash: 64 KiB. Dies take hardly longer for it than for a block, and the headers of all stripes are on a few dies.
const LEAD_BLOCKS: u32 = 16;

/// See the module.
pub(super) struct BandMedium {
    pub(super) reactor: Rc<Reactor>,
    pub(super) channel: Rc<dyn Channel>,
    /// Device blocks in one of 4 KiB, as log2.
    shift: u32,
    /// Blocks of 4 KiB in the largest operation.
    io_blocks: u64,
    /// Write streams of the device; 0 is none.
    streams: u16,
    /// Blocks that are read with the first of a stripe where more of it will be needed: as much of flash as is read at once anyway.
    pub(super) lead_blocks: u32,
    can_unmap: bool,
    /// Bands are zones.
    has_zones: bool,
    /// What different streams write at the same time, the device has together: flash, and it knows nothing of streams.
    pub(super) mixes_streams: bool,
    /// Completed writes need a flush to be durable.
    pub(super) is_cached: bool,
    /// That a read can ask for; see [`DeviceInfo::versions`].
    pub(super) versions: u8,
    pub(super) stripe_bytes: usize,
}

impl BandMedium {
    pub(super) fn new(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: &DeviceInfo,
        stripe_blocks: u32,
    ) -> BandMedium {
        assert!(matches!(info.block_size, 512 | 4096), "blocks of bands are made of device blocks");
        let shift = (BLOCK_BYTES as u32 / info.block_size).ilog2();
        let has_zones = info.rows.is_some_and(|rows| rows.zones.is_some());
        BandMedium {
            reactor: reactor.clone(),
            channel,
            shift,
            io_blocks: (info.max_io_blocks as u64 >> shift).max(1),
            streams: info.streams,
            lead_blocks: if info.loans { 1 } else { LEAD_BLOCKS },
            can_unmap: info.ops.contains(Op::Unmap),
            has_zones,
            mixes_streams: !has_zones && info.streams == 0 && !info.loans,
            is_cached: info.volatile_cache,
            versions: info.versions,
            stripe_bytes: stripe_blocks as usize * BLOCK_BYTES,
        }
    }

    pub(super) fn can_unmap(&self) -> bool {
        self.can_unmap
    }

    pub(super) fn has_zones(&self) -> bool {
        self.has_zones
    }

    fn io(&self, op: Op, block: u64, blocks: u64) -> Io {
        Io::new(op, Lba(block << self.shift), (blocks << self.shift) as u32)
    }

    /// A block's bytes.
    pub(super) async fn read_block(&self, block: u64) -> Result<Buf, Status> {
        self.read_version(block, 0).await
    }

    /// A block's bytes in one version; 0 is the usual one.
    pub(super) async fn read_version(&self, block: u64, version: u8) -> Result<Buf, Status> {
        let buf = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
        self.read_into(block, version, buf).await
    }

    /// A block's bytes, and behind them those of the blocks that follow, `most` in all, where there is memory for these and they
    /// can be read.
    pub(super) async fn read_lead(&self, block: u64, most: u32) -> Result<Buf, Status> {
        let blocks = (most as u64).min(self.io_blocks) as usize;
        if blocks > 1
            && let Some(buf) = self.reactor.pool().try_alloc(blocks * BLOCK_BYTES)
        {
            match self.read_into(block, 0, buf).await {
                Err(Status::ReadError | Status::Corrupt) => {}
                ended => return ended,
            }
        }
        self.read_block(block).await
    }

    async fn read_into(&self, block: u64, version: u8, buf: Buf) -> Result<Buf, Status> {
        let bytes = buf.len();
        let (mut bufs, blocks) = (SgList::new(), (bytes / BLOCK_BYTES) as u64);
        bufs.push(buf);
        let mut done = self.channel.submit(Io { bufs, arg: version as u64, ..self.io(Op::Read, block, blocks) }).await;
        done.status.check()?;
        match done.io.bufs.pop() {
            Some(buf) if buf.len() == bytes => Ok(buf),
            _ => Err(Status::Invalid),
        }
    }

    /// The bytes of so many blocks, of a stripe at most.
    pub(super) async fn read(&self, first: u64, blocks: u32) -> Result<SgList, Status> {
        let (mut bufs, mut at) = (SgList::new(), 0);
        while at < blocks as u64 {
            let piece = (blocks as u64 - at).min(self.io_blocks);
            let mut part = SgList::new();
            part.push(bdev::steps::alloc(&self.reactor, piece as usize * BLOCK_BYTES).await?);
            let done = self.channel.submit(Io { bufs: part, ..self.io(Op::Read, first + at, piece) }).await;
            done.status.check()?;
            sg_append(&mut bufs, done.io.bufs);
            at += piece;
        }
        Ok(bufs)
    }

    /// Writes whole blocks, in as few operations as the device allows, and gives them back. A device without space (a sparse file on
    /// a full disk) is not what `NoSpace` means here, that no band is free: it is an error of the device.
    pub(super) async fn write(&self, mut block: u64, stream: usize, bufs: SgList) -> (Status, SgList) {
        let stream = if self.streams == 0 { 0 } else { 1 + (stream % self.streams as usize) as u16 };
        let (mut rest, mut written) = (bufs, SgList::new());
        loop {
            let blocks = (sg_len(&rest) / BLOCK_BYTES) as u64;
            let piece = blocks.min(self.io_blocks);
            let tail =
                if piece < blocks { sg_split_off(&mut rest, piece as usize * BLOCK_BYTES) } else { SgList::new() };
            let done = self.channel.submit(Io { bufs: rest, stream, ..self.io(Op::Write, block, piece) }).await;
            sg_append(&mut written, done.io.bufs);
            if tail.is_empty() || !done.status.is_ok() {
                sg_append(&mut written, tail);
                let is_full = done.status == Status::NoSpace;
                return (if is_full { Status::Os(Errno::ENOSPC) } else { done.status }, written);
            }
            (rest, block) = (tail, block + piece);
        }
    }

    pub(super) async fn flush(&self) -> Result<(), Status> {
        self.channel.submit(Io::flush()).await.status.check()
    }

    /// Tells the device that nobody needs these blocks.
    pub(super) async fn unmap(&self, first: u64, blocks: u64) -> Result<(), Status> {
        let mut at = 0;
        while at < blocks {
            // A zone is reset as a whole.
            let piece = if self.has_zones { blocks } else { (blocks - at).min(self.io_blocks) };
            self.channel.submit(self.io(Op::Unmap, first + at, piece)).await.status.check()?;
            at += piece;
        }
        Ok(())
    }

    /// Gives up what is not written of the zone that begins at a block.
    pub(super) async fn finish_zone(&self, first: u64) -> Result<(), Status> {
        self.channel.submit(self.io(Op::ZoneFinish, first, 0)).await.status.check()
    }

    /// The zone that begins at a block.
    pub(super) async fn zone(&self, first: u64) -> Result<BandZone, Status> {
        let buf = bdev::steps::alloc(&self.reactor, bdev::ZONE_RECORD_BYTES).await?;
        let io = Io { nblocks: 1, bufs: SgList::from_iter([buf]), ..self.io(Op::ZoneReport, first, 0) };
        let done = self.channel.submit(io).await;
        done.status.check()?;
        let zones = Zone::load_report(&done.io.bufs)?;
        let zone = zones.first().ok_or(Status::Corrupt)?;
        Ok(match zone.state {
            ZoneState::Empty => BandZone::Written(0),
            state if state.is_active() => {
                let written = zone.write_pointer.saturating_sub(zone.start);
                let blocks = (written >> self.shift) as u32;
                if u64::from(blocks) << self.shift == written {
                    BandZone::Written(blocks)
                } else {
                    BandZone::Torn(blocks)
                }
            }
            _ => BandZone::Done,
        })
    }
}

/// What a zone says of the band in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BandZone {
    /// It goes on behind so many blocks.
    Written(u32),
    /// Behind so many blocks there is a part of one, so it cannot go on.
    Torn(u32),
    /// It takes no more, and no place of those that may be open.
    Done,
    /// Nothing.
    Unknown,
}
