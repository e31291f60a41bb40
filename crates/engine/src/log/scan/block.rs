//! The segments of a block log: by their summary where there is one, else group by group.
//!
//! Groups are written several at a time, so in the last segment a group may be whole behind one that is not. What tells
//! that from rot is a later group that knew the missing one to be durable.

use super::{LogError, READS_MAX, Scan, read_many};
use crate::format::record::{self, Header, NoRecord, Record, UNIT};
use crate::format::segment::{Footer, Group, Segment};
use crate::log::block::{GROUP_BLOCKS_MAX, GROUP_HEADER_BLOCKS_MAX};
use crate::log::{Medium, summary};
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::{Flags, Io, Lba, Status};
use reactor::Buf;
use std::ops::RangeInclusive;

/// Blocks of one read.
const PIECE_BLOCKS: usize = 16;

/// Blocks of a segment in memory, as many as a group has.
#[derive(Default)]
struct Window {
    first: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn blocks(&self, block: u64, blocks: u64) -> Option<&[u8]> {
        let from = block.checked_sub(self.first)? as usize * BLOCK_BYTES;
        self.bytes.get(from..from + blocks as usize * BLOCK_BYTES)
    }
}

impl Scan<'_> {
    fn first_block(&self, segment: &Segment) -> u64 {
        self.geometry.place_of(segment.sequence) as u64 * self.geometry.segment_blocks as u64
    }

    /// The footers of these segments, where they have one.
    pub(super) async fn read_footers(&self, segments: &[Segment]) -> Vec<Option<Footer>> {
        let last = self.geometry.segment_blocks as u64 - 1;
        let blocks = segments.iter().map(|segment| (self.first_block(segment) + last, 1));
        let footers = read_many(self.medium, blocks).await;
        let footer = |(segment, read): (&Segment, Result<Buf, _>)| {
            let footer = Footer::decode(read.ok()?.as_slice(), self.salt)?;
            let key = (footer.sequence, footer.epoch, footer.first_lsn);
            let fits = (footer.blocks as u64) < last && footer.blocks <= summary::BLOCKS_MAX;
            (key == (segment.sequence, segment.epoch, segment.first_lsn) && fits).then_some(footer)
        };
        segments.iter().zip(footers).map(footer).collect()
    }

    pub(super) async fn block_segment(
        &mut self,
        segment: &Segment,
        end: Option<u64>,
        footer: Option<Footer>,
    ) -> Result<(), LogError> {
        if let Some(footer) = footer
            && let Some(headers) = self.read_summary(segment, &footer).await
        {
            return self.summary(segment, end, &footer, &headers);
        }
        self.groups(segment, end).await
    }

    // --- summary ----------------------------------------------------------------------------------------------------

    async fn read_summary(&self, segment: &Segment, footer: &Footer) -> Option<Vec<u8>> {
        let blocks = footer.blocks as usize;
        let first = self.first_block(segment) + self.geometry.segment_blocks as u64 - 1 - blocks as u64;
        let mut bytes = Vec::with_capacity(blocks * BLOCK_BYTES);
        self.read_run(first, blocks, &mut bytes).await.ok()?;
        (crc32c(&bytes) == footer.summary_checksum).then_some(bytes)
    }

    fn summary(&mut self, segment: &Segment, end: Option<u64>, footer: &Footer, bytes: &[u8]) -> Result<(), LogError> {
        let start = (self.geometry.segment_blocks as u64 - 1 - footer.blocks as u64) * BLOCK_BYTES as u64;
        let mut at = 0;
        for index in 0..footer.records as u64 {
            if end == Some(segment.first_lsn + index) {
                break;
            }
            let header = self.record_in(segment, start, bytes, at, segment.first_lsn + index)?;
            let payload_end = header.payload as u64 * UNIT as u64 + header.record.payload_bytes() as u64;
            if payload_end > start {
                return Err(self.impossible(segment, start + at as u64, "its payload is not inside the segment"));
            }
            at += header.bytes;
            self.found(segment, &header);
        }
        Ok(())
    }

    /// The record at byte `at` of bytes whose checksum was right, so it must be there.
    fn record_in(&self, segment: &Segment, start: u64, bytes: &[u8], at: usize, lsn: u64) -> Result<Header, LogError> {
        let fault = |cause| self.impossible(segment, start + at as u64, cause);
        match record::decode(bytes.get(at..).unwrap_or(&[]), self.salt) {
            Ok(header) if header.lsn != lsn || header.epoch != segment.epoch => {
                Err(fault("its number or epoch is not the next one"))
            }
            Ok(header) => Ok(header),
            Err(NoRecord::Impossible(cause)) => Err(fault(cause)),
            Err(NoRecord::Absent) => Err(fault("a record that was counted is missing")),
        }
    }

    // --- groups -----------------------------------------------------------------------------------------------------

    async fn groups(&mut self, segment: &Segment, end: Option<u64>) -> Result<(), LogError> {
        let mut window = Window::default();
        let (mut block, mut lsn) = (1, segment.first_lsn);
        while end != Some(lsn) {
            let group = self.group_at(&mut window, segment, block).await?.filter(|group| group.first_lsn == lsn);
            if let Some(group) = &group {
                let headers = self.records_of(&mut window, segment, block, group).await?;
                // Before a later segment everything was durable; what has rotted since, its readers find.
                let sound = end.is_some() || self.is_group_whole(&mut window, segment, block, group, &headers).await?;
                let after = block + group.blocks();
                if sound || self.search_group(&mut window, segment, after, lsn, end).await?.is_some() {
                    let inside = headers.iter().filter(|header| end.is_none_or(|end| header.lsn < end));
                    inside.for_each(|header| self.found(segment, header));
                    (block, lsn) = (after, (lsn + group.records as u64).min(end.unwrap_or(u64::MAX)));
                    continue;
                }
                return Ok(());
            }
            match self.search_group(&mut window, segment, block + 1, lsn, end).await? {
                Some(found) => (block, lsn) = found,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// As `headerless`: a group that knew the first one to be durable knew the header to be, which is in the same write.
    pub(super) async fn block_headerless(
        &self,
        mut segment: Segment,
        first_lsn: RangeInclusive<u64>,
    ) -> Result<Option<Segment>, LogError> {
        let (mut window, mut block) = (Window::default(), 1);
        if self.show(&mut window, &segment, block, 1).await.is_err() {
            return Ok(None);
        }
        match window.blocks(block, 1).and_then(Group::peek) {
            Some(first) if first_lsn.contains(&first.first_lsn) && first.epoch >= segment.epoch => {
                (segment.first_lsn, segment.epoch) = (first.first_lsn, first.epoch);
            }
            _ => return Ok(None),
        }
        while let Some(group) = self.group_at(&mut window, &segment, block).await? {
            if group.durable_lsn > segment.first_lsn {
                if self.writes {
                    self.write_header(&segment).await.map_err(|status| self.io(&segment, 0, status))?;
                }
                return Ok(Some(segment));
            }
            block += group.blocks();
        }
        Ok(None)
    }

    async fn write_header(&self, segment: &Segment) -> Result<(), Status> {
        let Medium::Block { reactor, channel, info, first_block } = self.medium else {
            return Err(Status::Unsupported);
        };
        let mut buf = reactor.pool().alloc(BLOCK_BYTES).await;
        buf.as_mut_slice().fill(0);
        buf.as_mut_slice()[..UNIT].copy_from_slice(&segment.encode());
        let per_block = BLOCK_BYTES as u64 / info.block_size as u64;
        let lba = Lba((first_block + self.first_block(segment)) * per_block);
        let flags = if info.volatile_cache { Flags::FUA } else { Flags::NONE };
        let write = Io { flags, ..Io::write(lba, per_block as u32, [buf].into_iter().collect()) };
        channel.submit(write).await.status.check()
    }

    /// Makes sure that the window shows `blocks` blocks from `block` on.
    async fn show(&self, window: &mut Window, segment: &Segment, block: u64, blocks: u64) -> Result<(), LogError> {
        if window.blocks(block, blocks).is_some() {
            return Ok(());
        }
        let count = GROUP_BLOCKS_MAX.min(self.geometry.segment_blocks as u64 - block);
        window.first = block;
        let read = self.read_run(self.first_block(segment) + block, count as usize, &mut window.bytes).await;
        read.map_err(|status| self.io(segment, block * BLOCK_BYTES as u64, status))
    }

    /// Reads blocks of the shard's log in parallel pieces.
    async fn read_run(&self, first: u64, blocks: usize, target: &mut Vec<u8>) -> Result<(), Status> {
        let Medium::Block { info, .. } = self.medium else { return Err(Status::Unsupported) };
        let device_max = info.max_io_blocks as usize * info.block_size as usize / BLOCK_BYTES;
        let piece = PIECE_BLOCKS.min(device_max).max(1);
        target.clear();
        for from in (0..blocks).step_by(piece * READS_MAX) {
            let to = blocks.min(from + piece * READS_MAX);
            let runs = (from..to).step_by(piece).map(|at| (first + at as u64, piece.min(to - at)));
            for read in read_many(self.medium, runs).await {
                target.extend_from_slice(read?.as_slice());
            }
        }
        Ok(())
    }

    /// The group of this segment that begins at `block`, whatever its number.
    async fn group_at(&self, window: &mut Window, segment: &Segment, block: u64) -> Result<Option<Group>, LogError> {
        let segment_blocks = self.geometry.segment_blocks as u64;
        if block >= segment_blocks {
            return Ok(None);
        }
        self.show(window, segment, block, 1).await?;
        let Some(group) = window.blocks(block, 1).and_then(Group::peek) else { return Ok(None) };
        let plausible = group.sequence == segment.sequence
            && group.epoch == segment.epoch
            && (1..=GROUP_HEADER_BLOCKS_MAX).contains(&(group.header_blocks as u64))
            && group.blocks() <= GROUP_BLOCKS_MAX
            && block + group.blocks() <= segment_blocks
            && group.records > 0
            && group.first_lsn < record::NUMBER_MAX;
        if !plausible {
            return Ok(None);
        }
        self.show(window, segment, block, group.header_blocks as u64).await?;
        let headers = window.blocks(block, group.header_blocks as u64);
        Ok(headers.filter(|headers| Group::verify(self.salt, headers)).map(|_| group))
    }

    async fn records_of(
        &self,
        window: &mut Window,
        segment: &Segment,
        block: u64,
        group: &Group,
    ) -> Result<Vec<Header>, LogError> {
        self.show(window, segment, block, group.header_blocks as u64).await?;
        let start = block * BLOCK_BYTES as u64;
        let bytes = window.blocks(block, group.header_blocks as u64).unwrap_or(&[]);
        let (mut at, mut headers) = (UNIT, Vec::with_capacity(group.records as usize));
        let mut payload = start + group.header_blocks as u64 * BLOCK_BYTES as u64;
        for index in 0..group.records as u64 {
            let header = self.record_in(segment, start, bytes, at, group.first_lsn + index)?;
            let here = start + at as u64;
            at += header.bytes;
            let payload_bytes = header.record.payload_bytes() as u64;
            let expected = match header.record {
                Record::Write { .. } => {
                    payload += payload_bytes;
                    payload - payload_bytes
                }
                _ => start + at as u64,
            };
            if payload_bytes > 0 && header.payload as u64 * UNIT as u64 != expected {
                return Err(self.impossible(segment, here, "its payload is not where its group has it"));
            }
            if !matches!(header.record, Record::Write { .. }) {
                at += (payload_bytes as usize).next_multiple_of(UNIT);
            }
            headers.push(header);
        }
        if payload != start + group.blocks() * BLOCK_BYTES as u64 || at > bytes.len() {
            return Err(self.impossible(segment, start, "the lengths of a group and of its records differ"));
        }
        Ok(headers)
    }

    /// Whether all payloads of a group match their checksums. (Deltas are covered by that of the header blocks.)
    async fn is_group_whole(
        &self,
        window: &mut Window,
        segment: &Segment,
        block: u64,
        group: &Group,
        headers: &[Header],
    ) -> Result<bool, LogError> {
        self.show(window, segment, block, group.blocks()).await?;
        let payload_blocks = group.payload_blocks as u64;
        let payload = window.blocks(block + group.header_blocks as u64, payload_blocks).unwrap_or(&[]);
        let crcs = headers.iter().flat_map(|header| match &header.record {
            Record::Write { crcs, .. } => &crcs[..],
            _ => &[],
        });
        Ok(payload.chunks_exact(BLOCK_BYTES).zip(crcs).all(|(block, crc)| crc32c(block) == *crc))
    }

    /// The next group from `block` on that has a record after `lsn`, if `lsn` itself was durable and is lost: when a later
    /// segment or a later group says so.
    async fn search_group(
        &self,
        window: &mut Window,
        segment: &Segment,
        block: u64,
        lsn: u64,
        end: Option<u64>,
    ) -> Result<Option<(u64, u64)>, LogError> {
        let (mut first, mut proven) = (None, end.is_some());
        for block in block..self.geometry.segment_blocks as u64 {
            let Some(group) = self.group_at(window, segment, block).await? else { continue };
            if group.first_lsn <= lsn || end.is_some_and(|end| group.first_lsn >= end) {
                continue;
            }
            first = first.or(Some((block, group.first_lsn)));
            proven |= group.durable_lsn > lsn;
            if proven {
                return Ok(first);
            }
        }
        Ok(None)
    }
}
