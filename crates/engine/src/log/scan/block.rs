//! The segments of a block log: by their summary where there is one, else group by group.
//!
//! Groups are written several at a time, so in the last segment a group may be whole behind one that is not. What tells
//! that from rot is a later group, or a note in a checkpoint, that knew the missing one to be durable.
//!
//! A block that cannot be read is an error only where something acknowledged may be in it that is wanted; see
//! `docs/decisions/engine.md`, "What cannot be read in a log".

use super::{LogError, READS_MAX, Scan, read_many};
use crate::format::record::{self, Header, NoRecord, Record, UNIT};
use crate::format::segment::{Footer, Group, Segment};
use crate::log::block::{GROUP_BLOCKS_MAX, GROUP_HEADER_BLOCKS_MAX};
use crate::log::{Medium, summary};
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::{Flags, Io, Lba, Status};
use reactor::Buf;

/// Blocks of one read.
const PIECE_BLOCKS: usize = 16;

/// Blocks of a segment in memory, as many as a group has.
#[derive(Default)]
struct Window {
    /// Of the blocks; 0 is the usual one.
    version: u8,
    first: u64,
    bytes: Vec<u8>,
    /// Blocks that cannot be read, from the start of the segment.
    unreadable: Vec<(u64, Status)>,
}

impl Window {
    fn of_version(version: u8) -> Window {
        Window { version, ..Window::default() }
    }

    fn shows(&self, block: u64, blocks: u64) -> bool {
        let end = self.first + (self.bytes.len() / BLOCK_BYTES) as u64;
        (self.first..=end).contains(&block) && block + blocks <= end
    }

    /// Blocks that it shows, or why they cannot be read.
    fn blocks(&self, block: u64, blocks: u64) -> Result<&[u8], Status> {
        let inside = |bad: &&(u64, Status)| (block..block + blocks).contains(&bad.0);
        match self.unreadable.iter().find(inside) {
            Some((_, status)) => Err(*status),
            None => {
                let from = block.checked_sub(self.first).ok_or(Status::Invalid)? as usize * BLOCK_BYTES;
                self.bytes.get(from..from + blocks as usize * BLOCK_BYTES).ok_or(Status::Invalid)
            }
        }
    }
}

/// What stands at a block of a segment.
enum Seen {
    /// The start of a group of the segment.
    Group(Group),
    /// What was one, but its checksum is wrong: a write that was torn, or rot.
    Broken,
    /// Something else.
    Nothing,
    Unreadable(Status),
}

/// What a search for a later group has found.
#[derive(Default)]
struct Search {
    /// Its block and the number of its first record.
    found: Option<(u64, u64)>,
    /// A block that could not be read on the way.
    unreadable: Option<(u64, Status)>,
}

impl Scan<'_> {
    fn first_block(&self, segment: &Segment) -> u64 {
        self.geometry.place_of(segment.sequence) as u64 * self.geometry.segment_blocks as u64
    }

    /// The footers of these segments, where they have one.
    pub(super) async fn read_footers(&self, segments: &[Segment]) -> Vec<Option<Footer>> {
        let last = self.geometry.segment_blocks as u64 - 1;
        let blocks = segments.iter().map(|segment| (self.first_block(segment) + last, 1));
        let footers = read_many(self.medium, 0, blocks).await;
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
        self.read_run(0, first, blocks, &mut bytes).await.ok()?;
        (crc32c(&bytes) == footer.summary_checksum).then_some(bytes)
    }

    fn summary(&mut self, segment: &Segment, end: Option<u64>, footer: &Footer, bytes: &[u8]) -> Result<(), LogError> {
        let start = (self.geometry.segment_blocks as u64 - 1 - footer.blocks as u64) * BLOCK_BYTES as u64;
        let (mut at, mut headers) = (0, std::mem::take(&mut self.headers));
        headers.clear();
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
            headers.push(header);
        }
        self.found_all(segment, &headers);
        self.headers = headers;
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
            let seen = self.next_group(&mut window, segment, block, lsn).await;
            if let Seen::Group(group) = &seen
                && group.first_lsn == lsn
            {
                if !self.group(&mut window, segment, end, block, group).await? {
                    return Ok(());
                }
                let next = lsn + group.records as u64;
                (block, lsn) = (block + group.blocks(), next.min(end.unwrap_or(u64::MAX)));
                continue;
            }
            let search = self.search_group(&mut window, segment, block + 1, lsn, end).await;
            match search.found {
                Some((_, first_lsn)) if first_lsn <= self.known.tail.lsn.max(lsn) => {}
                Some(_) => self.may_be_missing(segment, block, &seen, &search)?,
                None => {
                    self.may_end(segment, end, block, lsn, &seen, &search)?;
                    return Ok(());
                }
            }
            (block, lsn) = search.found.expect("the end was left by");
        }
        Ok(())
    }

    /// Takes the records of the next group; false when it is one that was not durable, and the log ends.
    async fn group(
        &mut self,
        window: &mut Window,
        segment: &Segment,
        end: Option<u64>,
        block: u64,
        group: &Group,
    ) -> Result<bool, LogError> {
        let headers = self.records_of(window, segment, block, group)?;
        let lsn = group.first_lsn;
        // What was durable was whole; what has rotted since, its readers find.
        let was_durable = end.is_some() || lsn < self.known.durable_lsn();
        if !was_durable {
            let whole = self.is_group_whole(window, segment, block, group, &headers).await;
            let elsewhere = match whole {
                Ok(true) => Ok(true),
                _ => self.is_group_whole_elsewhere(segment, block, group, &headers).await,
            };
            if elsewhere != Ok(true) {
                let search = self.search_group(window, segment, block + group.blocks(), lsn, end).await;
                if search.found.is_none() {
                    // Torn, as far as can be seen: a block behind it might prove otherwise.
                    let seen = whole.and(elsewhere).map_or_else(Seen::Unreadable, |_| Seen::Broken);
                    self.may_be_missing(segment, block, &seen, &search)?;
                    return Ok(false);
                }
            }
        }
        self.found_all(segment, &headers[..headers.partition_point(|header| end.is_none_or(|end| header.lsn < end))]);
        Ok(true)
    }

    /// Records that are wanted are not found: they are lost, unless they may be in what cannot be read.
    fn may_be_missing(&self, segment: &Segment, block: u64, seen: &Seen, search: &Search) -> Result<(), LogError> {
        let unreadable = match seen {
            Seen::Unreadable(status) => Some((block, *status)),
            _ => search.unreadable,
        };
        unreadable.map_or(Ok(()), |(block, status)| Err(self.io(segment, block * BLOCK_BYTES as u64, status)))
    }

    /// No group is found from `block` on, where record `lsn` would have to be. Whether that may be taken for the end.
    fn may_end(
        &self,
        segment: &Segment,
        end: Option<u64>,
        block: u64,
        lsn: u64,
        seen: &Seen,
        search: &Search,
    ) -> Result<(), LogError> {
        let is_excused = match seen {
            _ if end.is_some() => false,
            // The last group before a checkpoint that had everything: what comes after it would be behind it, and found.
            Seen::Unreadable(_) if lsn < self.known.tail.lsn => {
                self.known.durable_lsn == self.known.tail.lsn && search.unreadable.is_none()
            }
            // Where the next group would begin stands something else: it was not written, whatever is behind.
            Seen::Nothing => lsn >= self.known.durable_lsn(),
            _ => false,
        };
        if !is_excused {
            return self.may_be_missing(segment, block, seen, search);
        }
        if let Some((block, status)) = search.unreadable {
            let (shard, segment) = (self.geometry.shard, segment.sequence);
            tracing::warn!(shard, segment, block, %status, "a block of the log behind its end cannot be read");
        }
        Ok(())
    }

    /// For each of these segments, of which no header is found, whether the first block behind it looks like a group of it.
    pub(super) async fn block_begins(&self, sequences: &[u64]) -> Vec<bool> {
        let place = |sequence: &u64| self.geometry.place_of(*sequence) as u64 * self.geometry.segment_blocks as u64;
        let reads = read_many(self.medium, 0, sequences.iter().map(|sequence| (place(sequence) + 1, 1))).await;
        let begins = |(sequence, read): (&u64, Result<Buf, Status>)| {
            read.is_ok_and(|bytes| Group::peek(bytes.as_slice()).is_some_and(|group| group.sequence == *sequence))
        };
        sequences.iter().zip(reads).map(begins).collect()
    }

    /// As `headerless`: a group that knew the first one to be durable knew the header to be, which is in the same write.
    pub(super) async fn block_headerless(
        &self,
        mut segment: Segment,
        first_min: u64,
    ) -> Result<Option<Segment>, LogError> {
        let (mut window, mut block) = (Window::default(), 1);
        self.show(&mut window, &segment, block, 1).await;
        match window.blocks(block, 1).ok().and_then(Group::peek) {
            Some(first) if first.first_lsn >= first_min && first.epoch >= segment.epoch => {
                (segment.first_lsn, segment.epoch) = (first.first_lsn, first.epoch);
            }
            _ => return Ok(None),
        }
        while let Seen::Group(group) = self.group_at(&mut window, &segment, block).await {
            if group.durable_lsn.max(self.known.durable_lsn) > segment.first_lsn {
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

    /// Makes sure that the window shows `blocks` blocks from `block` on, as far as they can be read.
    async fn show(&self, window: &mut Window, segment: &Segment, block: u64, blocks: u64) {
        if window.shows(block, blocks) {
            return;
        }
        let count = GROUP_BLOCKS_MAX.min(self.geometry.segment_blocks as u64 - block);
        let first = self.first_block(segment);
        window.first = block;
        window.unreadable.clear();
        if self.read_run(window.version, first + block, count as usize, &mut window.bytes).await.is_ok() {
            return;
        }
        // One by one, to see which.
        window.bytes.clear();
        for from in (block..block + count).step_by(READS_MAX) {
            let to = (block + count).min(from + READS_MAX as u64);
            let reads = read_many(self.medium, window.version, (from..to).map(|block| (first + block, 1))).await;
            for (block, read) in (from..to).zip(reads) {
                match read {
                    Ok(bytes) => window.bytes.extend_from_slice(bytes.as_slice()),
                    Err(status) => {
                        window.bytes.resize(window.bytes.len() + BLOCK_BYTES, 0);
                        window.unreadable.push((block, status));
                    }
                }
            }
        }
    }

    /// Reads blocks of the shard's log in parallel pieces.
    async fn read_run(&self, version: u8, first: u64, blocks: usize, target: &mut Vec<u8>) -> Result<(), Status> {
        let Medium::Block { info, .. } = self.medium else { return Err(Status::Unsupported) };
        let device_max = info.max_io_blocks as usize * info.block_size as usize / BLOCK_BYTES;
        let piece = PIECE_BLOCKS.min(device_max).max(1);
        target.clear();
        for from in (0..blocks).step_by(piece * READS_MAX) {
            let to = blocks.min(from + piece * READS_MAX);
            let runs = (from..to).step_by(piece).map(|at| (first + at as u64, piece.min(to - at)));
            for read in read_many(self.medium, version, runs).await {
                target.extend_from_slice(read?.as_slice());
            }
        }
        Ok(())
    }

    /// As [`group_at`](Self::group_at), in any version in which it is the group that begins with record `lsn`; the window
    /// shows that one then.
    async fn next_group(&self, window: &mut Window, segment: &Segment, block: u64, lsn: u64) -> Seen {
        let is_next = |seen: &Seen| matches!(seen, Seen::Group(group) if group.first_lsn == lsn);
        let seen = self.group_at(window, segment, block).await;
        if is_next(&seen) {
            return seen;
        }
        let mut unreadable = None;
        for version in (0..self.medium.versions()).filter(|version| *version != window.version) {
            let mut other = Window::of_version(version);
            let again = self.group_at(&mut other, segment, block).await;
            if is_next(&again) {
                *window = other;
                return again;
            }
            if let Seen::Unreadable(status) = again
                && !status.is_gone()
            {
                unreadable = Some(status);
            }
        }
        match (seen, unreadable) {
            // What is damaged here may be whole where it cannot be read now.
            (Seen::Broken, Some(status)) => Seen::Unreadable(status),
            (seen, _) => seen,
        }
    }

    /// What is at `block`: a group of this segment, whatever its number, or not.
    async fn group_at(&self, window: &mut Window, segment: &Segment, block: u64) -> Seen {
        let segment_blocks = self.geometry.segment_blocks as u64;
        if block >= segment_blocks {
            return Seen::Nothing;
        }
        self.show(window, segment, block, 1).await;
        let group = match window.blocks(block, 1) {
            Ok(bytes) => Group::peek(bytes),
            Err(status) => return Seen::Unreadable(status),
        };
        let Some(group) = group.filter(|group| (group.sequence, group.epoch) == (segment.sequence, segment.epoch))
        else {
            return Seen::Nothing;
        };
        let plausible = (1..=GROUP_HEADER_BLOCKS_MAX).contains(&(group.header_blocks as u64))
            && group.blocks() <= GROUP_BLOCKS_MAX
            && block + group.blocks() <= segment_blocks
            && group.records > 0
            && group.first_lsn < record::READ_NUMBER_MAX;
        if !plausible {
            return Seen::Broken;
        }
        self.show(window, segment, block, group.header_blocks as u64).await;
        match window.blocks(block, group.header_blocks as u64) {
            Ok(headers) if Group::verify(self.salt, headers) => Seen::Group(group),
            Ok(_) => Seen::Broken,
            Err(status) => Seen::Unreadable(status),
        }
    }

    /// The records of a group that has been shown.
    fn records_of(
        &self,
        window: &Window,
        segment: &Segment,
        block: u64,
        group: &Group,
    ) -> Result<Vec<Header>, LogError> {
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
    ) -> Result<bool, Status> {
        self.show(window, segment, block, group.blocks()).await;
        let payload = window.blocks(block + group.header_blocks as u64, group.payload_blocks as u64)?;
        let crcs = headers.iter().flat_map(|header| match &header.record {
            Record::Write { crcs, .. } => &crcs[..],
            _ => &[],
        });
        Ok(payload.chunks_exact(BLOCK_BYTES).zip(crcs).all(|(block, crc)| crc32c(block) == *crc))
    }

    /// Whether each payload block of a group matches its checksum in some version, where there are several.
    ///
    /// # Errors
    /// One does in none, and some version of it cannot be read.
    async fn is_group_whole_elsewhere(
        &self,
        segment: &Segment,
        block: u64,
        group: &Group,
        headers: &[Header],
    ) -> Result<bool, Status> {
        if self.medium.versions() == 1 {
            return Ok(false);
        }
        let crcs = headers.iter().flat_map(|header| match &header.record {
            Record::Write { crcs, .. } => &crcs[..],
            _ => &[],
        });
        let crcs: Vec<u32> = crcs.copied().collect();
        let start = block + group.header_blocks as u64;
        let mut right = vec![Ok(false); crcs.len()];
        for version in 0..self.medium.versions() {
            let mut other = Window::of_version(version);
            self.show(&mut other, segment, start, group.payload_blocks as u64).await;
            for (nth, (is_right, crc)) in right.iter_mut().zip(&crcs).enumerate() {
                match other.blocks(start + nth as u64, 1) {
                    Ok(bytes) if crc32c(bytes) == *crc => *is_right = Ok(true),
                    Err(status) if !status.is_gone() && *is_right == Ok(false) => *is_right = Err(status),
                    _ => {}
                }
            }
        }
        right.into_iter().try_fold(true, |all, is_right| Ok(all && is_right?))
    }

    /// The next group from `block` on that has a record after `lsn`, if `lsn` itself was durable and is lost: when a later
    /// segment, a later group or a note says so.
    async fn search_group(
        &self,
        window: &mut Window,
        segment: &Segment,
        block: u64,
        lsn: u64,
        end: Option<u64>,
    ) -> Search {
        let mut search = Search::default();
        let (mut first, mut proven) = (None, end.is_some() || lsn < self.known.durable_lsn());
        for block in block..self.geometry.segment_blocks as u64 {
            let group = match self.group_at(window, segment, block).await {
                Seen::Group(group) => group,
                Seen::Unreadable(status) => {
                    search.unreadable = search.unreadable.or(Some((block, status)));
                    continue;
                }
                Seen::Broken | Seen::Nothing => continue,
            };
            if group.first_lsn <= lsn || end.is_some_and(|end| group.first_lsn >= end) {
                continue;
            }
            first = first.or(Some((block, group.first_lsn)));
            proven |= group.durable_lsn > lsn;
            if proven {
                search.found = first;
                break;
            }
        }
        search
    }
}
