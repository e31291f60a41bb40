//! A shard's log: segments, records, payloads, and whether records fit what the checkpoint says.

use super::report::{Finding, Severity};
use super::shard::ShardState;
use super::{Checker, RESTORE};
use crate::format::superblock::Superblock;
use crate::format::table::{Descriptor, UNUSABLE};
use crate::log::{self, Log, LogGeometry, Medium, Record};
use crate::shard::fits;
use crate::units::{BLOCK_BYTES, LogAt, SLICE_EXTENTS, extent_of};
use bdev::Status;
use std::collections::BTreeSet;

/// The payload of a record: where, how long, and its checksum.
struct Payload {
    lsn: u64,
    at: LogAt,
    bytes: u16,
    crc: u32,
}

impl Checker {
    /// The part of the log device that is a shard's.
    pub(super) fn log_medium(&self, superblock: &Superblock, shard: u16) -> Option<Medium> {
        let (_, log) = self.log.as_ref().filter(|_| self.log_is_ours)?;
        Some(log.medium(&self.reactor, superblock.segment_start(shard, 0)))
    }

    /// Follows the log from the tail to its end. Descriptors in `state` become what it says. The extents that it speaks of;
    /// `None` when not all of it could be read.
    pub(super) async fn shard_log(&mut self, superblock: &Superblock, state: &mut ShardState) -> Option<BTreeSet<u32>> {
        let medium = self.log_medium(superblock, state.number)?;
        let (shard, object) = (state.number, format!("log of shard {}", state.number));
        let geometry = LogGeometry::of(superblock, shard);
        let known = state.log;
        let mut follow = Follow { wants_payloads: self.options.payloads, ..Follow::new(state) };
        let scanned = log::survey(&medium, geometry, known, &mut |record, placed| follow.record(record, placed)).await;
        let Follow { records, misfit, covered, payloads, touched, ownerless, named, .. } = follow;
        state.named.extend(named);
        state.in_log.extend(covered);
        self.report.counts.records += records;
        let head = match scanned {
            Ok(head) => head,
            Err(error) => {
                let advice = "repair the log device, or give the log up with 'pool forget-log'";
                self.report.error(&object, "its segments", error.to_string(), advice);
                return None;
            }
        };
        self.report.counts.segments += head.segments.len() as u64;
        for lost in &head.lost {
            let meaning = format!("records {} to {} are lost, and the shard does not open", lost.first, lost.end - 1);
            self.report.error(&object, "its segments", meaning, "give up what is uncertain with 'pool forget-log'");
        }
        for place in &head.unreadable {
            let block = superblock.segment_start(shard, *place);
            let meaning = "the header of a segment that is not in use cannot be read".to_string();
            self.report.warning(
                &object,
                format!("block {block} of the log device"),
                meaning,
                "replace the log device soon",
            );
        }
        if head.epoch > superblock.epoch {
            let meaning = format!("it has epoch {}, the superblocks only {}", head.epoch, superblock.epoch);
            self.report.error(&object, "its segments", meaning, RESTORE);
        }
        if let Some(lsn) = misfit {
            let meaning = format!("record {lsn} speaks of blocks that there are not; the shard does not open");
            self.report.error(&object, "its records", meaning, RESTORE);
        }
        for extent in ownerless {
            let meaning = format!("it has blocks for extent {extent}, which belongs to no volume");
            let advice = "nothing: nobody reads them";
            self.report.add(Finding::new(Severity::Note, &object, "its records", meaning, advice));
        }
        self.payloads(&object, medium, geometry, head.clone(), payloads).await;
        (head.lost.is_empty() && misfit.is_none()).then_some(touched)
    }

    async fn payloads(
        &mut self,
        object: &str,
        medium: Medium,
        geometry: LogGeometry,
        head: log::Head,
        payloads: Vec<Payload>,
    ) {
        if payloads.is_empty() {
            return;
        }
        let (tail, epoch) = (head.next, head.epoch.saturating_add(1));
        let log = Log::new(medium, geometry, log::Head { epoch: 0, ..head }, tail, epoch, std::rc::Rc::new(Nobody));
        for Payload { lsn, at, bytes, crc } in payloads {
            let read = log.read(at, 0, bytes as usize).await;
            let cause = match read {
                Ok(list) if crate::checksums::list_crc(&list) == crc => {
                    self.report.counts.payload_blocks += (bytes as usize == BLOCK_BYTES) as u64;
                    continue;
                }
                Ok(_) => Status::Corrupt,
                Err(status) => status,
            };
            let meaning =
                format!("a payload of record {lsn} cannot be used ({cause}): if nothing newer was written, it is lost");
            self.report.error(
                object,
                format!("byte {} of its segments", at.bytes()),
                meaning,
                "check the data as well; replace the log device",
            );
        }
    }
}

struct Nobody;

impl log::Sink for Nobody {
    fn placed(&self, _: &Record, _: log::Placed) {}
    fn reclaimed(&self, _: u64) {}
}

/// What the records say, one after the other.
struct Follow<'a> {
    state: &'a mut ShardState,
    wants_payloads: bool,
    records: u64,
    misfit: Option<u64>,
    /// Slices with records.
    covered: BTreeSet<(u32, u32)>,
    payloads: Vec<Payload>,
    touched: BTreeSet<u32>,
    /// Extents with blocks in the log since they were freed.
    ownerless: BTreeSet<u32>,
    /// Extents of volumes of which the log says where they are.
    named: BTreeSet<(u32, u32)>,
}

impl<'a> Follow<'a> {
    fn new(state: &'a mut ShardState) -> Follow<'a> {
        Follow {
            state,
            wants_payloads: false,
            records: 0,
            misfit: None,
            covered: BTreeSet::new(),
            payloads: Vec::new(),
            touched: BTreeSet::new(),
            ownerless: BTreeSet::new(),
            named: BTreeSet::new(),
        }
    }

    fn record(&mut self, record: &Record, placed: log::Placed) {
        self.records += 1;
        if !fits(record, self.state.extents.len() as u32) {
            self.misfit = self.misfit.or(Some(placed.lsn));
            return;
        }
        let extent = match record {
            Record::Allocate { extent, .. } | Record::Free { extent, .. } => *extent,
            Record::Move { extent, .. } | Record::HandOver { extent, .. } => *extent,
            Record::Write { first, .. } | Record::InPlace { first, .. } => extent_of(*first),
            Record::Trim { first, .. } | Record::Lost { first, .. } => extent_of(*first),
            Record::Delta { block, .. } => extent_of(*block),
        };
        self.touched.insert(extent);
        let owner = self.state.extents[extent as usize];
        match record {
            Record::Allocate { volume, vextent, .. } | Record::Move { volume, vextent, .. } => {
                let same = owner.is_some_and(|owner| (owner.volume, owner.vextent) == (*volume, *vextent));
                let fresh = Descriptor { volume: *volume, vextent: *vextent, ..Descriptor::default() };
                if !same {
                    self.state.extents[extent as usize] = Some(fresh);
                }
                self.ownerless.remove(&extent);
                self.named.insert((*volume, *vextent));
                self.cover(*volume, *vextent);
                if let Record::Move { former, .. } = record {
                    self.touched.insert(*former);
                    self.ownerless.remove(former);
                    let unusable = Descriptor { flags: UNUSABLE, ..Descriptor::default() };
                    self.state.extents[*former as usize] = Some(unusable);
                }
            }
            Record::HandOver { volume, vextent, .. } => {
                if let Some(owner) = owner.filter(|owner| !owner.is_free()) {
                    let handed = Descriptor { volume: *volume, vextent: *vextent, ..owner };
                    self.state.extents[extent as usize] = Some(handed);
                    self.named.insert((*volume, *vextent));
                    self.cover(*volume, *vextent);
                }
            }
            Record::Free { .. } => {
                if let Some(owner) = owner.filter(|owner| !owner.is_free()) {
                    self.cover(owner.volume, owner.vextent);
                }
                self.state.extents[extent as usize] = Some(Descriptor::default());
                self.ownerless.remove(&extent);
            }
            _ => match owner {
                Some(owner) if owner.is_free() => _ = self.ownerless.insert(extent),
                Some(owner) => self.cover(owner.volume, owner.vextent),
                None => {}
            },
        }
        if self.wants_payloads {
            self.keep_payload(record, placed);
        }
    }

    fn cover(&mut self, volume: u32, vextent: u32) {
        self.covered.insert((volume, vextent / SLICE_EXTENTS));
    }

    fn keep_payload(&mut self, record: &Record, placed: log::Placed) {
        let (lsn, at) = (placed.lsn, placed.at);
        match record {
            Record::Write { crcs, .. } => {
                let units = (BLOCK_BYTES as u64 / LogAt::UNIT) as u32;
                let blocks = (0u32..).zip(crcs);
                self.payloads.extend(blocks.map(|(step, crc)| Payload {
                    lsn,
                    at: LogAt(at.0 + step * units),
                    bytes: BLOCK_BYTES as u16,
                    crc: *crc,
                }));
            }
            Record::Delta { bytes, crc, .. } => self.payloads.push(Payload { lsn, at, bytes: *bytes, crc: *crc }),
            _ => {}
        }
    }
}
