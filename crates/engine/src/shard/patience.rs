//! Damage to what a shard needs to go on: map pages, blocks that deltas lie over, and places to write to. Without them an
//! extent cannot be destaged, and a log that cannot be emptied stops the whole pool; so in the end they are given up, and
//! what a page or a block alone knew is lost.
//!
//! What was read and is not what its parent says is damaged. What cannot be read is not given up for a long time: cables and
//! paths come back. Only when the device has refused it again and again, and answers reads of other places, it is the medium.
//! What lies beside it is likely to have gone with it: two refusals are enough there for a while.

use super::data::one;
use super::index::Place;
use super::{BLOCK, Defect, Shard, Target, add};
use crate::meta;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogAt, extent_of};
use bdev::Status;
use reactor::SgList;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What cannot be read is tried for at least so long...
pub(crate) const PATIENCE_NS: u64 = 30_000_000_000;
/// ... and so often.
pub(crate) const TRIES_MIN: u32 = 16;
/// A place that refuses writes is given up earlier: nothing is lost by it.
const WRITE_PATIENCE_NS: u64 = 1_000_000_000;
/// See [`WRITE_PATIENCE_NS`].
const WRITE_TRIES_MIN: u32 = 4;
/// Most things that patience is counted for at a time; it is endless for further ones.
const COUNTED_MAX: usize = 256;
/// Most regions of which something has been given up that are remembered.
const REGIONS_MAX: usize = 256;
/// Log units of a region: as many bytes as an extent has.
const REGION_UNITS: u32 = EXTENT_BLOCKS * (BLOCK_BYTES as u64 / LogAt::UNIT) as u32;

/// Something that a device does not give back, or take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Refused {
    /// The map page of an extent.
    Page(u32),
    /// A block of the shard, in place.
    Block(u32),
    /// A block in the log.
    Log(LogAt),
    /// The place of an extent, for writes.
    Place(u32),
    /// Both places of an extent's map page, for writes.
    Map(u32),
}

/// What came of a block that upkeep [cannot do without](Shard::read_needed).
pub(super) enum Needed {
    Bytes(SgList),
    /// It is lost; `before`: as was known already.
    Lost {
        before: bool,
    },
}

/// What is likely to be one damage: an extent, or as much of the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Region {
    Extent(u32),
    Log(u32),
}

impl Refused {
    fn region(self) -> Option<Region> {
        match self {
            Refused::Block(block) => Some(Region::Extent(extent_of(block))),
            Refused::Log(at) => Some(Region::Log(at.0 / REGION_UNITS)),
            Refused::Page(_) | Refused::Place(_) | Refused::Map(_) => None,
        }
    }
}

/// Failures in a row, none longer than [`PATIENCE_NS`] after the one before.
struct Failures {
    first_ns: u64,
    last_ns: u64,
    tries: u32,
}

/// What fails. A success ends the count, and so does a long time without a failure: it may be about something else then.
#[derive(Default)]
pub(super) struct Patience {
    counted: RefCell<BTreeMap<Refused, Failures>>,
    /// When something in these regions was given up last.
    given_up: RefCell<BTreeMap<Region, u64>>,
    /// How often something was given up.
    gave_ups: Cell<u64>,
}

impl Patience {
    /// How often something was given up so far.
    pub(super) fn gave_ups(&self) -> u64 {
        self.gave_ups.get()
    }

    /// It could be read, or written.
    #[inline]
    pub(super) fn answered(&self, what: Refused) {
        let mut counted = self.counted.borrow_mut();
        if !counted.is_empty() {
            counted.remove(&what);
        }
    }

    /// Every map page could be written.
    pub(super) fn maps_written(&self) {
        self.counted.borrow_mut().retain(|what, _| !matches!(what, Refused::Map(_)));
    }

    /// Whether something beside it was given up a short time ago. Then it need not wait as long: a run of damaged blocks
    /// would take the patience for one of them times their number.
    fn is_short(&self, what: Refused, now_ns: u64) -> bool {
        let given_up = self.given_up.borrow();
        let last = what.region().and_then(|region| given_up.get(&region));
        last.is_some_and(|last_ns| now_ns.saturating_sub(*last_ns) <= PATIENCE_NS)
    }

    /// It is given up.
    fn gave_up(&self, what: Refused, now_ns: u64) {
        self.gave_ups.set(self.gave_ups.get() + 1);
        let Some(region) = what.region() else { return };
        let mut given_up = self.given_up.borrow_mut();
        if given_up.len() == REGIONS_MAX && !given_up.contains_key(&region) {
            given_up.retain(|_, last_ns| now_ns.saturating_sub(*last_ns) <= PATIENCE_NS);
            if given_up.len() == REGIONS_MAX {
                return;
            }
        }
        given_up.insert(region, now_ns);
        self.counted.borrow_mut().remove(&what);
    }

    /// It failed once more; whether that is enough.
    fn refused(&self, what: Refused, now_ns: u64) -> bool {
        let mut counted = self.counted.borrow_mut();
        let is_over = |failures: &Failures| now_ns.saturating_sub(failures.last_ns) > PATIENCE_NS;
        if counted.len() == COUNTED_MAX && !counted.contains_key(&what) {
            counted.retain(|_, failures| !is_over(failures));
            if counted.len() == COUNTED_MAX {
                return false;
            }
        }
        let fresh = || Failures { first_ns: now_ns, last_ns: now_ns, tries: 0 };
        let failures = counted.entry(what).or_insert_with(fresh);
        if is_over(failures) {
            *failures = fresh();
        }
        failures.last_ns = now_ns;
        failures.tries += 1;
        let (tries_min, patience_ns) = match what {
            Refused::Place(_) | Refused::Map(_) => (WRITE_TRIES_MIN, WRITE_PATIENCE_NS),
            _ => (TRIES_MIN, PATIENCE_NS),
        };
        let enough = failures.tries >= tries_min && now_ns - failures.first_ns >= patience_ns;
        if enough {
            counted.remove(&what);
        }
        enough
    }
}

impl Shard {
    /// A device has refused something; whether it is given up now.
    pub(super) fn is_given_up(&self, what: Refused) -> bool {
        self.patience.refused(what, self.reactor.now_ns())
    }

    /// Whether a read that has failed is to be tried once more at once, since it will be given up then: see
    /// [`Patience::is_short`].
    pub(super) fn is_tried_again(&self, what: Refused) -> bool {
        self.patience.is_short(what, self.reactor.now_ns())
    }

    /// A device has not given something back (twice, when [`is_tried_again`](Self::is_tried_again)); whether it is given up
    /// now. Not while the device answers no reads of other places either.
    pub(super) async fn is_lost(&self, what: Refused) -> bool {
        let is_enough = self.is_tried_again(what) || self.is_given_up(what);
        // Asked again before the patience begins anew: a device that fails now and then is not one that is away.
        let lost = is_enough && (self.answers_beside(what).await || self.answers_beside(what).await);
        if lost {
            self.patience.gave_up(what, self.reactor.now_ns());
        }
        lost
    }

    /// Whether the device that has refused something answers reads of other places.
    async fn answers_beside(&self, what: Refused) -> bool {
        match what {
            Refused::Log(_) => self.log.is_readable().await,
            Refused::Block(_) if self.meta.bands().is_some() => self.is_capacity_readable().await,
            _ => self.meta.is_readable().await,
        }
    }

    /// Whether the capacity device answers reads at all, at its superblocks.
    async fn is_capacity_readable(&self) -> bool {
        for block in 0..2 {
            let Ok(buf) = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await else { return false };
            // Of the medium: a cache on the way would answer for a device that does not.
            let read = |lba, blocks| bdev::Io { flags: bdev::Flags::FUA, ..bdev::Io::read(lba, blocks, one(buf)) };
            let io = self.capacity_io(block, 1, read);
            if self.capacity.submit(io).await.status.is_ok() {
                return true;
            }
        }
        false
    }

    /// Reads a block that upkeep cannot do without, into a buffer of its own.
    pub(super) async fn read_needed(self: &Rc<Self>, target: Target, block: u32) -> Result<Needed, Status> {
        let what = Refused::Block(block);
        let mut read = self.read_blocks(target, one(bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?)).await;
        // Once more, in case it was the way and not the medium.
        if read.status == Status::Corrupt || read.status == Status::ReadError && self.is_tried_again(what) {
            read = self.read_blocks(target, read.bufs).await;
        }
        match read.status {
            Status::Ok => {
                self.patience.answered(what);
                Ok(Needed::Bytes(read.bufs))
            }
            Status::Corrupt => Ok(Needed::Lost { before: false }),
            Status::ReadError if self.is_known_lost(&target).await => Ok(Needed::Lost { before: true }),
            Status::ReadError if self.is_lost(what).await => Ok(Needed::Lost { before: false }),
            status => Err(status),
        }
    }

    /// Whether a block is known to be lost in the layer that shows it, deltas over it or not: no patience brings it back.
    async fn is_known_lost(self: &Rc<Self>, target: &Target) -> bool {
        let own = std::iter::once(target.volume);
        for layer in own.chain(self.lineage.through(target.volume, target.range().start)) {
            let Some(extent) = self.index.extent(layer, target.vextent) else { continue };
            // Held while it is looked at. One that cannot be read is what patience is for.
            let Ok(_page) = self.meta.load_to_read(extent).await else { return false };
            match self.index.below_deltas(extent * EXTENT_BLOCKS + target.offset / BLOCK) {
                Place::Inherit => {}
                place => return place == Place::Lost,
            }
        }
        false
    }

    /// The map page of an extent that is going to be changed; a new one when the old one is damaged.
    pub(super) async fn page_to_change(self: &Rc<Self>, extent: u32) -> Result<meta::Page, Status> {
        match self.meta.load(extent).await {
            Ok(page) => {
                self.patience.answered(Refused::Page(extent));
                Ok(page)
            }
            Err(Status::ReadError) if !self.is_lost(Refused::Page(extent)).await => Err(Status::ReadError),
            Err(Status::Corrupt | Status::ReadError) => {
                // A checkpoint that is being made would free what the log has of it, and the new page needs.
                self.settled.wait_until(|| !self.is_checkpointing()).await;
                Ok(self.replace_page(extent))
            }
            Err(status) => Err(status),
        }
    }

    /// A checkpoint has failed because the map page of an extent cannot be read again: a new one takes its place when it is
    /// damaged, or after a long time.
    pub(super) async fn give_up_page(self: &Rc<Self>, extent: u32, cause: Status) {
        let is_damaged = match cause {
            Status::Corrupt => true,
            Status::ReadError => self.is_lost(Refused::Page(extent)).await,
            _ => false,
        };
        if is_damaged && !self.meta.descriptor(extent).is_free() {
            self.replace_page(extent);
        }
    }

    /// A new page for an extent whose page is damaged: it says what the log knows, and that everything else is lost.
    pub(super) fn replace_page(&self, extent: u32) -> meta::Page {
        if let Some(page) = self.meta.page(extent) {
            return page;
        }
        let page = self.meta.renew_page(extent);
        if self.is_broken(Defect::HolesForLost) {
            page.fill(0..EXTENT_BLOCKS, meta::HOLE);
        }
        let lost = self.index.recall(&page, self.meta.durable_tail());
        let owner = self.meta.descriptor(extent);
        let first = owner.vextent as u64 * EXTENT_BLOCKS as u64;
        let ways = match self.meta.bands() {
            Some(_) => {
                "giving the pool another log before that finds what was at rest ('remuda docs pools', 'A damaged index')"
            }
            None => "'pool scrub' lists them",
        };
        tracing::error!(
            "pool '{}': the map page of extent {extent} of shard {} is damaged: {lost} blocks of {} from block {first} \
             to {} (of 4 KiB) are lost, all that the log does not have; writing them mends them, {ways}",
            self.pool_name,
            self.number,
            self.names.of(owner.volume),
            first + EXTENT_BLOCKS as u64 - 1
        );
        add(&self.counters.lost_blocks, lost as u64);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_given_up_after_a_long_time_and_many_tries_and_never_when_it_answers_between() {
        let patience = Patience::default();
        let what = Refused::Page(7);
        assert!((0..1_000).all(|_| !patience.refused(what, 5)), "many tries in no time");
        assert!(patience.refused(what, 5 + PATIENCE_NS));
        assert!(
            (0..TRIES_MIN - 1).all(|try_| !patience.refused(what, try_ as u64 * PATIENCE_NS)),
            "few in a long time"
        );
        patience.answered(what);
        assert!(!patience.refused(what, 100 * PATIENCE_NS));
        assert!((0..1_000).all(|_| !patience.refused(what, 200 * PATIENCE_NS)), "what failed long ago does not count");
    }

    #[test]
    fn what_is_beside_something_that_was_given_up_is_not_waited_for_as_long() {
        let patience = Patience::default();
        let (block, beside, elsewhere) = (Refused::Block(5), Refused::Block(6), Refused::Block(EXTENT_BLOCKS));
        assert!(!patience.is_short(beside, 7), "nothing has been given up");
        patience.gave_up(block, 7);
        assert!(patience.is_short(beside, 7 + PATIENCE_NS) && patience.is_short(block, 7));
        assert!(!patience.is_short(beside, 8 + PATIENCE_NS), "long ago");
        assert!(!patience.is_short(elsewhere, 7) && !patience.is_short(Refused::Page(0), 7));
        assert!(!patience.is_short(Refused::Log(LogAt(0)), 7));
        patience.gave_up(Refused::Log(LogAt(REGION_UNITS)), 7);
        assert!(patience.is_short(Refused::Log(LogAt(2 * REGION_UNITS - 1)), 7));
        assert!(!patience.is_short(Refused::Log(LogAt(REGION_UNITS - 1)), 7));
        (0..2 * REGIONS_MAX as u32).for_each(|extent| patience.gave_up(Refused::Block(extent * EXTENT_BLOCKS), 9));
        assert_eq!(patience.given_up.borrow().len(), REGIONS_MAX);
    }

    #[test]
    fn patience_is_counted_for_so_many_things_and_endless_for_more() {
        let patience = Patience::default();
        assert!((0..COUNTED_MAX as u32).all(|extent| !patience.refused(Refused::Page(extent), 0)));
        assert!((0..100).all(|_| !patience.refused(Refused::Page(9_999), PATIENCE_NS)));
        assert!(!patience.refused(Refused::Page(9_999), 2 * PATIENCE_NS));
        assert_eq!(patience.counted.borrow().len(), 1, "what failed long ago makes room");
    }
}
