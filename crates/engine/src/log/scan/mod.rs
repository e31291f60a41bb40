//! Reading the log from a checkpoint's tail to its end.
//!
//! Where the segments begin is read first: a segment holds the records from its first one up to the first one of the
//! next segment, whatever else lies in it. A segment is only opened when everything before it is durable, so a record
//! missing in front of a later segment was lost by the medium; in the last segment, records that were never acknowledged
//! may be missing or torn at the end, and only there. What a checkpoint or the closing of the log has noted ([`Known`]) says
//! the same as a later segment: what is before was durable.

mod block;
mod mapped;

use super::{LogGeometry, Medium, Placed};
use crate::format::record::{Header, Record};
use crate::format::segment::Segment;
use crate::units::{BLOCK_BYTES, LogTail};
use bdev::{Io, Op, Status};
use reactor::{Buf, IoFuture};
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use thiserror::Error;

/// Most reads under way.
const READS_MAX: usize = 32;
/// Segments of a mapped log whose summaries are fetched ahead.
const FETCH_AHEAD: usize = 64;
/// A read that fails is tried so often in all.
const READ_TRIES: u32 = 4;
/// Most gaps told apart; further ones are joined to the last.
const LOST_MAX: usize = 1024;

/// A segment that holds records after the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSegment {
    /// Its sequence.
    pub sequence: u64,
    /// Number of its first record.
    pub first_lsn: u64,
}

/// Records that were durable and cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLsns {
    /// Number of the first.
    pub first: u64,
    /// Number after the last.
    pub end: u64,
}

impl std::fmt::Display for LostLsns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let last = self.end.saturating_sub(1);
        match last > self.first {
            true => write!(f, "records {} to {last}", self.first),
            false => write!(f, "record {}", self.first),
        }
    }
}

/// The end of a log, from where it goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The next record.
    pub next: LogTail,
    /// The newest epoch of any segment; 0 without one. The log goes on with a larger one.
    pub epoch: u32,
    /// Segments in use, in order.
    pub segments: Vec<HeadSegment>,
    /// Records that the medium has lost, in order: what they said must be treated as unknown.
    pub lost: Vec<LostLsns>,
    /// Places whose header cannot be read; not used until the pool is opened again.
    pub unreadable: Vec<u32>,
}

impl Head {
    /// The head of a log without records, as it is when a pool is created.
    pub fn empty() -> Head {
        let next = LogTail { segment: 1, lsn: 1 };
        Head { next, epoch: 0, segments: Vec::new(), lost: Vec::new(), unreadable: Vec::new() }
    }
}

/// Why a log could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LogError {
    /// The superblock describes a log that cannot be.
    #[error("log of shard {shard}: {cause}; the superblock is not from this program, or was changed")]
    Geometry {
        /// The shard.
        shard: u16,
        /// What cannot be.
        cause: &'static str,
    },
    /// A checksum is right and the content cannot be: not damage, but a writer with another idea of the format.
    #[error(
        "log of shard {shard}, segment {segment}, byte {offset}: {cause}; open the pool with the version that wrote it"
    )]
    Impossible {
        /// The shard.
        shard: u16,
        /// Sequence of the segment.
        segment: u64,
        /// Byte in the segment.
        offset: u64,
        /// What cannot be.
        cause: &'static str,
    },
    /// What is there cannot be read, so where the log ends is unknown.
    #[error(
        "log of shard {shard}, segment {segment}, byte {offset}: cannot read: {status}; acknowledged writes may be there: \
         check the log device and open again, or, if that does not help, give up the log with 'pool forget-log'"
    )]
    Io {
        /// The shard.
        shard: u16,
        /// Sequence of the segment (of one that may be there, when its header cannot be read).
        segment: u64,
        /// Byte in the segment.
        offset: u64,
        /// How the read ended.
        status: Status,
    },
}

/// Who looks at records before they are visited, so that what a visit touches is on its way meanwhile. It may look at some that are
/// not visited then, and not at all of those that are.
pub(crate) trait Ahead {
    /// The record is some records away.
    fn far(&self, _record: &Record) {}

    /// The record is one of the next.
    fn near(&self, _record: &Record) {}
}

impl Ahead for () {}

/// Records from one that is far, and from one that is near, to the one that is visited: as many misses as a core has under way.
const FAR: usize = 16;
const NEAR: usize = 6;

/// What is known of a log from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The first record that is wanted.
    pub tail: LogTail,
    /// Every record before this one was durable, and a group of a block log begins there, or will; 0 when nobody has said so.
    pub durable_lsn: u64,
    /// When the log was closed: nothing of this epoch or an older one is there from `durable_lsn` on.
    pub closed_epoch: Option<u32>,
    /// Nobody has opened the log since it was closed.
    pub is_final: bool,
}

impl From<LogTail> for Known {
    fn from(tail: LogTail) -> Known {
        Known { tail, durable_lsn: 0, closed_epoch: None, is_final: false }
    }
}

impl Known {
    /// Every record before this one was durable.
    fn durable_lsn(&self) -> u64 {
        self.durable_lsn.max(self.tail.lsn)
    }

    /// Where the last segment ends, when it was closed.
    fn end_of(&self, segment: &Segment) -> Option<u64> {
        let closed = self.closed_epoch.is_some_and(|epoch| segment.epoch <= epoch);
        closed.then(|| self.durable_lsn())
    }
}

/// Reads the log from a checkpoint's tail to its end, and makes sure that what it has read is durable.
pub async fn scan(
    medium: &Medium,
    geometry: LogGeometry,
    known: impl Into<Known>,
    visit: &mut dyn FnMut(&Record, Placed),
) -> Result<Head, LogError> {
    read(medium, geometry, known.into(), true, &(), visit).await
}

/// As [`scan`] without any write: what is there may not be durable, so nothing can go on from the head.
pub(crate) async fn survey(
    medium: &Medium,
    geometry: LogGeometry,
    known: Known,
    visit: &mut dyn FnMut(&Record, Placed),
) -> Result<Head, LogError> {
    read(medium, geometry, known, false, &(), visit).await
}

/// The latest epoch of which the log has a segment; 0 when it has none.
pub(crate) async fn newest_epoch(medium: &Medium, geometry: &LogGeometry) -> Result<u32, LogError> {
    let headers = read_headers(medium, geometry).await?;
    Ok(headers.segments.iter().map(|segment| segment.epoch).max().unwrap_or(0))
}

/// As [`scan`], or [`survey`] without `writes`; `ahead` is told of records before they are visited.
pub(crate) async fn read(
    medium: &Medium,
    geometry: LogGeometry,
    known: Known,
    writes: bool,
    ahead: &dyn Ahead,
    visit: &mut dyn FnMut(&Record, Placed),
) -> Result<Head, LogError> {
    if let Some(cause) = geometry.fault() {
        return Err(LogError::Geometry { shard: geometry.shard, cause });
    }
    let tail = known.tail;
    let headers = read_headers(medium, &geometry).await?;
    let mut segments = in_use(&geometry, &headers.segments, tail)?;
    let mut scan = Scan {
        medium,
        geometry,
        salt: geometry.salt(),
        known,
        writes,
        next_lsn: tail.lsn,
        lost: Vec::new(),
        headers: Vec::new(),
        ahead,
        visit,
    };
    segments.iter().take(FETCH_AHEAD).for_each(|segment| scan.fetch_summary(segment));
    let mut footers = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        if let Some(later) = segments.get(index + FETCH_AHEAD) {
            scan.fetch_summary(later);
        }
        if !medium.is_mapped() && index % READS_MAX == 0 {
            footers = scan.read_footers(&segments[index..segments.len().min(index + READS_MAX)]).await;
        }
        scan.lose_until(segment.first_lsn);
        let next = segments.get(index + 1).map(|next| next.first_lsn);
        let end = next.or_else(|| known.end_of(segment));
        if end.is_some_and(|end| end <= scan.next_lsn) {
            continue;
        }
        match medium {
            Medium::Mapped { reactor, .. } => {
                scan.mapped_segment(segment, end)?;
                // Nothing in there waits, and the reactor may have other pools and their hosts.
                reactor.yield_now().await;
            }
            Medium::Block { .. } => scan.block_segment(segment, end, footers[index % READS_MAX]).await?,
        }
        scan.lose_until(end.unwrap_or(0));
    }
    while !known.is_final || scan.next_lsn < known.durable_lsn() {
        let sequence = segments.last().map_or(tail.segment, |last| last.sequence + 1);
        headers.check_end(&geometry, sequence)?;
        let Some(segment) = scan.next_headerless(&headers, sequence, segments.last()).await? else { break };
        tracing::warn!(
            shard = geometry.shard,
            segment = segment.sequence,
            "the header of a log segment was damaged; it is mended"
        );
        // As in front of every later segment: what is missing there was durable.
        scan.lose_until(segment.first_lsn);
        let end = known.end_of(&segment);
        match medium {
            Medium::Mapped { .. } => scan.mapped_segment(&segment, end)?,
            Medium::Block { .. } => scan.block_segment(&segment, end, None).await?,
        }
        segments.push(segment);
    }
    scan.lose_until(known.durable_lsn());
    let newest = headers.segments.iter().chain(&segments).map(|segment| segment.sequence).max();
    let epoch = headers.segments.iter().chain(&segments).map(|segment| segment.epoch).max();
    scan.persist(segments.last()).await?;
    Ok(Head {
        next: LogTail { segment: newest.map_or(0, |newest| newest + 1).max(tail.segment), lsn: scan.next_lsn },
        epoch: epoch.unwrap_or(0),
        segments: segments.iter().map(|s| HeadSegment { sequence: s.sequence, first_lsn: s.first_lsn }).collect(),
        lost: scan.lost,
        unreadable: headers.unreadable.iter().map(|(place, _)| *place).collect(),
    })
}

/// What the places of a log hold.
struct Headers {
    segments: Vec<Segment>,
    unreadable: Vec<(u32, Status)>,
}

impl Headers {
    fn note(&mut self, geometry: &LogGeometry, place: u32, read: Result<&[u8], Status>) -> Result<(), LogError> {
        let found = match read {
            Ok(bytes) => Segment::decode(bytes),
            Err(status) => {
                self.unreadable.push((place, status));
                return Ok(());
            }
        };
        let segment = match found {
            None => return Ok(()),
            Some(Ok(segment)) => segment,
            Some(Err(cause)) => {
                return Err(LogError::Impossible { shard: geometry.shard, segment: place as u64, offset: 0, cause });
            }
        };
        // Headers of another pool are what was on the device before.
        let ours = segment.is_of(geometry.pool, geometry.shard);
        if ours && geometry.place_of(segment.sequence) == place {
            self.segments.push(segment);
        }
        Ok(())
    }

    /// Whether there is a header of a segment of this log, whichever, where this one would be.
    fn has(&self, geometry: &LogGeometry, segment: u64) -> bool {
        let place = geometry.place_of(segment);
        self.segments.iter().any(|found| geometry.place_of(found.sequence) == place)
    }

    /// The log cannot be said to end before `segment` when its header cannot be read.
    fn check_end(&self, geometry: &LogGeometry, segment: u64) -> Result<(), LogError> {
        let after = self.unreadable.iter().find(|(place, _)| *place == geometry.place_of(segment));
        match after {
            Some((_, status)) => Err(LogError::Io { shard: geometry.shard, segment, offset: 0, status: *status }),
            None => Ok(()),
        }
    }
}

async fn read_headers(medium: &Medium, geometry: &LogGeometry) -> Result<Headers, LogError> {
    let mut headers = Headers { segments: Vec::new(), unreadable: Vec::new() };
    for place in 0..geometry.segments {
        medium.fetch(place as u64 * geometry.segment_bytes(), BLOCK_BYTES as u64);
    }
    for from in (0..geometry.segments).step_by(READS_MAX) {
        let places = from..geometry.segments.min(from + READS_MAX as u32);
        if let Medium::Mapped { reactor, pmem, first_byte } = medium {
            for place in places {
                let mut bytes = [0; 64];
                let at = first_byte + place as u64 * geometry.segment_bytes();
                let read = reactor.driver().pmem_read_once(*pmem, at, &mut bytes);
                headers.note(geometry, place, read.map(|()| &bytes[..]).map_err(|e| Status::of_errno(e, Op::Read)))?;
            }
            continue;
        }
        let blocks = places.clone().map(|place| (place as u64 * geometry.segment_blocks as u64, 1));
        for (place, mut read) in places.zip(read_many(medium, 0, blocks).await) {
            let is_header = |read: &Result<Buf, Status>| {
                read.as_ref().is_ok_and(|bytes| matches!(Segment::decode(bytes.as_slice()), Some(Ok(_))))
            };
            let mut version = 1;
            while version < medium.versions() && !is_header(&read) {
                let other = medium.read_blocks(place as u64 * geometry.segment_blocks as u64, 1, version).await;
                read = if is_header(&other) || read.is_err() && other.is_ok() { other } else { read };
                version += 1;
            }
            headers.note(geometry, place, read.as_ref().map(Buf::as_slice).map_err(|status| *status))?;
        }
    }
    Ok(headers)
}

/// Segments from the tail's on, in order.
fn in_use(geometry: &LogGeometry, all: &[Segment], tail: LogTail) -> Result<Vec<Segment>, LogError> {
    let mut segments: Vec<Segment> = all.iter().filter(|segment| segment.sequence >= tail.segment).copied().collect();
    segments.sort_by_key(|segment| segment.sequence);
    for pair in segments.windows(2) {
        if pair[1].first_lsn < pair[0].first_lsn || pair[1].epoch < pair[0].epoch {
            let cause = "its first record or its epoch is from before the segment in front of it";
            return Err(LogError::Impossible { shard: geometry.shard, segment: pair[1].sequence, offset: 0, cause });
        }
    }
    Ok(segments)
}

struct Scan<'a> {
    medium: &'a Medium,
    geometry: LogGeometry,
    salt: u32,
    known: Known,
    /// Whether what has to be mended or made durable is written.
    writes: bool,
    /// The record that comes next, when none is lost.
    next_lsn: u64,
    lost: Vec<LostLsns>,
    /// Of one summary, or one page of it; its memory is used again.
    headers: Vec<Header>,
    ahead: &'a dyn Ahead,
    visit: &'a mut dyn FnMut(&Record, Placed),
}

impl Scan<'_> {
    fn impossible(&self, segment: &Segment, offset: u64, cause: &'static str) -> LogError {
        LogError::Impossible { shard: self.geometry.shard, segment: segment.sequence, offset, cause }
    }

    fn io(&self, segment: &Segment, offset: u64, status: Status) -> LogError {
        LogError::Io { shard: self.geometry.shard, segment: segment.sequence, offset, status }
    }

    /// The records before `lsn` that were not found are lost.
    fn lose_until(&mut self, lsn: u64) {
        if lsn <= self.next_lsn {
            return;
        }
        let gap = LostLsns { first: self.next_lsn, end: lsn };
        tracing::error!(shard = self.geometry.shard, first = gap.first, end = gap.end, "log records are lost");
        let full = self.lost.len() == LOST_MAX;
        match self.lost.last_mut() {
            Some(last) if last.end == gap.first || full => last.end = gap.end,
            _ => self.lost.push(gap),
        }
        self.next_lsn = lsn;
    }

    /// A record was found; those before the tail are passed over.
    fn found(&mut self, segment: &Segment, header: &Header) {
        if header.lsn < self.known.tail.lsn {
            return;
        }
        self.lose_until(header.lsn);
        let place = self.geometry.place_of(segment.sequence);
        let at = self.geometry.at(place, header.payload as u64 * crate::units::LogAt::UNIT);
        (self.visit)(&header.record, Placed { lsn: header.lsn, segment: segment.sequence, at });
        self.next_lsn = header.lsn + 1;
    }

    /// Records were found that follow one another.
    fn found_all(&mut self, segment: &Segment, headers: &[Header]) {
        headers.iter().take(FAR).for_each(|header| self.ahead.far(&header.record));
        headers.iter().take(NEAR).for_each(|header| self.ahead.near(&header.record));
        for (index, header) in headers.iter().enumerate() {
            if let Some(far) = headers.get(index + FAR) {
                self.ahead.far(&far.record);
            }
            if let Some(near) = headers.get(index + NEAR) {
                self.ahead.near(&near.record);
            }
            self.found(segment, header);
        }
    }

    /// The segment that follows the last one, when its header has rotted. It is the next in the sequence, or a later one:
    /// places that are in use, or out of use, are passed over.
    async fn next_headerless(
        &self,
        headers: &Headers,
        sequence: u64,
        last: Option<&Segment>,
    ) -> Result<Option<Segment>, LogError> {
        // The tail's own segment may begin before the tail, any other not before the end of the one in front of it.
        let first_min = if last.is_some() { self.next_lsn } else { 1 };
        if !headers.has(&self.geometry, sequence)
            && let Some(found) = self.headerless(sequence, first_min, last).await?
        {
            return Ok(Some(found));
        }
        let further = sequence + 1..sequence + self.geometry.segments as u64;
        let further: Vec<u64> = further.filter(|sequence| !headers.has(&self.geometry, *sequence)).collect();
        for part in further.chunks(READS_MAX) {
            let begins = match self.medium {
                Medium::Mapped { .. } => vec![true; part.len()],
                Medium::Block { .. } => self.block_begins(part).await,
            };
            for (sequence, _) in part.iter().zip(begins).filter(|(_, begins)| *begins) {
                if let Some(found) = self.headerless(*sequence, self.next_lsn, last).await? {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// A segment whose header has rotted, whose first record has a number from `first_min` on: only what was written after
    /// that header was durable proves so. The header is written again.
    async fn headerless(
        &self,
        sequence: u64,
        first_min: u64,
        last: Option<&Segment>,
    ) -> Result<Option<Segment>, LogError> {
        let LogGeometry { shard, pool, .. } = self.geometry;
        let epoch = last.map_or(0, |last| last.epoch);
        let segment = Segment { sequence, first_lsn: self.next_lsn, epoch, shard, pool };
        match self.medium {
            Medium::Mapped { .. } => self.mapped_headerless(segment, first_min),
            Medium::Block { .. } => self.block_headerless(segment, first_min).await,
        }
    }

    /// What was seen may not be durable yet: the process that wrote it may have died before it made it so.
    async fn persist(&self, last: Option<&Segment>) -> Result<(), LogError> {
        let Medium::Block { channel, info, .. } = self.medium else { return Ok(()) };
        let Some(last) = last.filter(|_| self.writes && info.volatile_cache) else { return Ok(()) };
        let mut status = Status::Ok;
        for _ in 0..READ_TRIES {
            status = channel.submit(Io::flush()).await.status;
            if status.is_ok() {
                return Ok(());
            }
        }
        Err(self.io(last, 0, status))
    }
}

/// Reads runs of blocks at the same time, at most [`READS_MAX`] of them, and tries again what failed.
async fn read_many(medium: &Medium, version: u8, runs: impl Iterator<Item = (u64, usize)>) -> Vec<Result<Buf, Status>> {
    let one = |(block, blocks): (u64, usize)| {
        IoFuture::new(async move {
            let mut tries = 1;
            loop {
                match medium.read_blocks(block, blocks, version).await {
                    Err(_) if tries < READ_TRIES => tries += 1,
                    outcome => return outcome,
                }
            }
        })
    };
    let mut reads: Vec<(Option<IoFuture<'_, _>>, Option<_>)> = runs.map(|run| (Some(one(run)), None)).collect();
    assert!(reads.len() <= READS_MAX);
    std::future::poll_fn(|cx| {
        for (read, outcome) in &mut reads {
            if let Some(future) = read
                && let Poll::Ready(value) = Pin::new(future).poll(cx)
            {
                (*read, *outcome) = (None, Some(value));
            }
        }
        if reads.iter().all(|(read, _)| read.is_none()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    reads.into_iter().filter_map(|(_, outcome)| outcome).collect()
}
