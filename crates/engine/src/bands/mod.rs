//! Bands: the capacity of a shaped shard, written front to back in stripes and never overwritten while in use.
//!
//! ```text
//! writer -> open stripe of its stream -> (full, or its last writer is done) one contiguous write -> places
//!
//! Free -> Open -> Closed -> Pending -> (a checkpoint begun after that is durable) Unmapping -> Free
//!                 Closed, having refused a write -> Pending -> Retired
//! ```
//! What holds: no block of a band is written twice between its opening and the durable checkpoint that no longer leads to it.
//! A place is told only when its whole stripe has been written. A band is not given up while anything in it is valid, held,
//! or under way. User streams leave a reserve of bands to those that make room.
//!
//! A band refuses writes when it refuses a stripe that another band then takes: while the device refuses everything, no band
//! is blamed.
//!
//! Over zones ([`bdev::RowZones`]) a band is a zone: [reset](care) before it is opened, finished when it takes no more before it is
//! full, and gone on with after an opening only where its zone says what the table does.
//!
//! What is not here: what blocks mean, which map leads to them, and when room is made.

mod care;
mod ledger;
mod medium;
pub mod policy;
mod review;
mod stripe;
#[cfg(test)]
mod tests;
mod unflushed;
mod walk;
mod writer;

pub(crate) use crate::format::band::BandEntry;
pub(crate) use crate::format::stripe::Entry;
use crate::format::superblock::BandRun;
pub(crate) use ledger::{BandDefect, Room, Token};
pub(crate) use policy::RESERVE_BANDS;
pub(crate) use review::Unspoken;
pub(crate) use walk::{Cursor, Lead, Surveyed};
pub(crate) use writer::Writer;

use crate::units::BLOCK_BYTES;
use bdev::{Channel, DeviceInfo, Status};
use ledger::Ledger;
use medium::BandMedium;
use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use unflushed::Unflushed;
use writer::Desks;

/// Number of streams.
pub(crate) const STREAMS: usize = 2;
/// Fewest bands of a shard: the reserve, an open one for each stream, and one to be filled.
pub(crate) const BANDS_MIN: u32 = RESERVE_BANDS + STREAMS as u32 + 1;
/// Most blocks of a stripe, its header included: 1 MiB, in one buffer.
const STRIPE_BLOCKS_MAX: u32 = 256;

/// Most blocks of a stripe that is made of units of so many blocks.
pub(crate) fn stripe_blocks_max(unit_blocks: u32) -> u32 {
    STRIPE_BLOCKS_MAX / unit_blocks * unit_blocks
}

/// A block of a shard's bands: `band * band_blocks + offset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BandAt(pub(crate) u32);

/// Blocks that are expected to live equally long; each stream has a band of its own to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Stream {
    /// What comes from the log.
    User,
    /// What was still valid when its band was collected. (Earlier builds told apart two kinds of those, 1 and 2.)
    Moved,
}

impl Stream {
    /// Every stream, in the order of their numbers.
    pub(crate) const ALL: [Stream; STREAMS] = [Stream::User, Stream::Moved];

    /// Whether it has blocks that are new to the bands.
    pub(crate) fn is_user(self) -> bool {
        self == Stream::User
    }
}

/// Where a shard's bands are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BandGeometry {
    /// First block of 4 KiB of the first band on the device; the others follow, but for those that were added later.
    pub(crate) first_block: u64,
    /// Number of bands, those included.
    pub(crate) bands: u32,
    /// Blocks of each.
    pub(crate) band_blocks: u32,
    /// Blocks that are written at least, and what each stripe begins at a multiple of.
    pub(crate) unit_blocks: u32,
}

impl BandGeometry {
    /// Why no bands can have this shape.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        if self.bands < BANDS_MIN {
            Some("too few bands")
        } else if self.unit_blocks == 0 || self.unit_blocks > STRIPE_BLOCKS_MAX {
            Some("there is no write unit, or one larger than a stripe")
        } else if self.band_blocks < 2 || !self.band_blocks.is_multiple_of(self.unit_blocks) {
            Some("a band is not made of write units")
        } else {
            let blocks = self.bands as u64 * self.band_blocks as u64;
            (blocks >= u32::MAX as u64).then_some("larger than its places can address")
        }
    }

    /// Most blocks of a stripe.
    fn stripe_blocks(&self) -> u32 {
        stripe_blocks_max(self.unit_blocks).min(self.band_blocks)
    }

    /// Most data blocks of a band.
    pub(crate) fn band_data_blocks(&self) -> u32 {
        self.band_blocks - self.band_blocks.div_ceil(self.stripe_blocks())
    }

    fn band_of(&self, at: BandAt) -> u32 {
        at.0 / self.band_blocks
    }

    fn at(&self, band: u32, position: u32) -> BandAt {
        BandAt(band * self.band_blocks + position)
    }
}

/// Bands that were added: where on the device is their first block?
#[derive(Clone, Copy, Debug)]
struct Added {
    /// The place of that block.
    at: BandAt,
    block: u64,
}

/// Whose bands they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BandOwner {
    /// The shard.
    pub(crate) shard: u16,
    /// As the log's: what makes the checksums of this shard's headers differ from those of every other.
    pub(crate) salt: u32,
    /// Of this opening: above that of every other. Sequences begin above it, shifted by 32.
    pub(crate) epoch: u32,
}

/// Counters since the bands were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BandStats {
    /// Data blocks written, by stream.
    pub(crate) data_blocks: [u64; STREAMS],
    /// Stripes written.
    pub(crate) stripes: u64,
    /// Blocks of padding among them.
    pub(crate) padding_blocks: u64,
    /// Blocks of stripes that were written again after a flush that failed.
    pub(crate) rewritten_blocks: u64,
    /// Bands that were chosen to be drained.
    pub(crate) victims: u64,
    /// Headers that could not be read, or were not what they should be.
    pub(crate) bad_headers: u64,
    /// Writes that failed.
    pub(crate) write_errors: u64,
    /// Bands that have refused a write and are not used again.
    pub(crate) failed_bands: u64,
    /// Bands unmapped.
    pub(crate) unmapped: u64,
}

impl BandStats {
    /// Bytes written: data, headers and padding, and what was written again.
    pub(crate) fn bytes(&self) -> u64 {
        let data: u64 = self.data_blocks.iter().sum();
        (data + self.stripes + self.padding_blocks + self.rewritten_blocks) * BLOCK_BYTES as u64
    }
}

/// A shard's bands. See the module.
pub(crate) struct Bands {
    medium: BandMedium,
    /// As they were opened: how many bands there are now, the ledger knows.
    geometry: BandGeometry,
    /// By their places.
    added: RefCell<Vec<Added>>,
    /// The place of the first of them.
    added_from: Cell<u32>,
    owner: BandOwner,
    ledger: RefCell<Ledger>,
    desks: RefCell<Desks>,
    /// Memory, or a turn to write, may have become free.
    changed: Notify,
    stats: Cell<BandStats>,
    unflushed: RefCell<Unflushed>,
    /// Bands are being unmapped, or their zones finished.
    caring: Cell<bool>,
    /// Over zones, until the root that was found is durable: none is reset.
    waits_for_root: Cell<bool>,
    /// How the last reset of a zone ended, when that failed.
    reset_error: Cell<Option<Status>>,
    /// See [`rest`](Self::rest).
    resting: Cell<bool>,
}

impl Bands {
    /// The bands as a checkpoint's table says; bands that it does not have are free. `added` are the last of them, which lie elsewhere. The counts of valid blocks are hints until
    /// [`recount_ended`](Self::recount_ended), unless all are free. Panics when the geometry is impossible: it was checked when it was read.
    pub(crate) fn new(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: &DeviceInfo,
        geometry: BandGeometry,
        added: &[BandRun],
        owner: BandOwner,
        table: &[BandEntry],
    ) -> Rc<Bands> {
        assert_eq!(geometry.fault(), None);
        let medium = BandMedium::new(reactor, channel, info, geometry.stripe_blocks());
        let bands = Bands {
            geometry,
            added: RefCell::default(),
            added_from: Cell::new(u32::MAX),
            owner,
            ledger: RefCell::new(Ledger::new(geometry, owner.epoch, table, medium.has_zones())),
            medium,
            desks: RefCell::default(),
            changed: Notify::default(),
            stats: Cell::default(),
            unflushed: RefCell::default(),
            caring: Cell::new(false),
            waits_for_root: Cell::new(info.rows.is_some_and(|rows| rows.zones.is_some())),
            reset_error: Cell::new(None),
            resting: Cell::new(false),
        };
        let mut bands_so_far = geometry.bands - added.iter().map(|run| run.bands).sum::<u32>();
        for run in added {
            bands.note_added(bands_so_far, run.start);
            bands_so_far += run.bands;
        }
        bands.keep_spare();
        Rc::new(bands)
    }

    /// The bands from this number on begin at that block of the device.
    fn note_added(&self, first: u32, block: u64) {
        let at = self.geometry.at(first, 0);
        self.added_from.set(self.added_from.get().min(at.0));
        self.added.borrow_mut().push(Added { at, block });
    }

    /// More bands, all free: the device has grown.
    pub(crate) fn add(&self, run: BandRun) {
        let is_broken = self.ledger.borrow().is_broken(BandDefect::OverlapAdded);
        let start = if is_broken { self.geometry.first_block } else { run.start };
        self.note_added(self.ledger.borrow().room().bands, start);
        self.ledger.borrow_mut().add(run.bands);
        self.changed.notify_all();
    }

    /// The block of the device, in units of 4 KiB.
    pub(crate) fn device_block(&self, at: BandAt) -> u64 {
        if at.0 < self.added_from.get() {
            return self.geometry.first_block + at.0 as u64;
        }
        let added = self.added.borrow();
        match added.iter().rev().find(|added| added.at <= at) {
            Some(of_block) => of_block.block + (at.0 - of_block.at.0) as u64,
            // Read from media, and in no band.
            None => u64::MAX / BLOCK_BYTES as u64,
        }
    }

    /// Whether there can be a block: it is inside a band that is in use. For places that were read from media.
    #[cfg(test)]
    pub(crate) fn is_place(&self, at: BandAt) -> bool {
        self.ledger.borrow().is_place(at)
    }

    pub(crate) fn reactor(&self) -> &Rc<Reactor> {
        &self.medium.reactor
    }

    /// A map leads to this block from now on.
    pub(crate) fn live(&self, at: BandAt) {
        self.ledger.borrow_mut().live(at);
    }

    /// A map that led to this block does not any more.
    pub(crate) fn dead(&self, at: BandAt) {
        self.ledger.borrow_mut().dead(at);
    }

    /// Keeps the band of a block from being used again for as long as the returned value lives: for reads under way.
    pub(crate) fn hold(self: &Rc<Self>, at: BandAt) -> Hold {
        Hold { bands: self.clone(), band: self.ledger.borrow_mut().hold(at) }
    }

    /// Blocks of a band, headers included.
    pub(crate) fn band_blocks(&self) -> u32 {
        self.geometry.band_blocks
    }

    /// Most data blocks of a band.
    pub(crate) fn band_data_blocks(&self) -> u32 {
        self.geometry.band_data_blocks()
    }

    /// Bands in all, and those that may be opened. As in [`room`](Self::room), which looks at each.
    pub(crate) fn bands_and_free(&self) -> (u32, u32) {
        self.ledger.borrow().bands_and_free()
    }

    /// How much there is, and how much of it is free.
    pub(crate) fn room(&self) -> Room {
        self.ledger.borrow().room()
    }

    /// Whether a stream may go on: user streams leave the reserve to those that make room.
    pub(crate) fn may_append(&self, stream: Stream) -> bool {
        self.ledger.borrow().may_append(stream)
    }

    /// How often a stream has found no band.
    pub(crate) fn turned_away(&self) -> u64 {
        self.ledger.borrow().turned_away()
    }

    /// Whether what different streams write at the same time, the device has together.
    pub(crate) fn mixes_streams(&self) -> bool {
        self.medium.mixes_streams
    }

    /// Bands that a stream has filled since the opening.
    pub(crate) fn filled(&self, stream: Stream) -> u64 {
        self.ledger.borrow().filled(stream)
    }

    /// Blocks, headers included, for which the open band of a stream has room.
    pub(crate) fn left(&self, stream: Stream) -> u32 {
        self.ledger.borrow().left(stream)
    }

    /// Blocks, headers included, for which user streams have room.
    pub(crate) fn user_room_blocks(&self) -> u32 {
        self.ledger.borrow().user_room_blocks()
    }

    /// A checkpoint begins: what it does not lead to any more has been drained before.
    pub(crate) fn checkpoint_begun(&self) -> Token {
        self.ledger.borrow_mut().checkpoint_begun()
    }

    /// Its root is durable: bands that were drained before it began may be used again.
    pub(crate) fn checkpointed(self: &Rc<Self>, token: Token) {
        self.ledger.borrow_mut().checkpointed(token, self.medium.can_unmap());
        self.care();
    }

    /// The table for the root of the checkpoint with this token. To be asked for when all of its map pages have been copied:
    /// it then covers every place in them.
    pub(crate) fn table(&self, token: Token) -> Vec<BandEntry> {
        self.ledger.borrow().table(token)
    }

    /// The counts of valid blocks begin at zero, and are hints: the owner tells the blocks that its maps lead to, as
    /// [`live`](Self::live). Until the counts are exact, only who has walked a whole band says that nothing is in it. While it
    /// counts, the owner tells what becomes [live](Self::live) or [dead](Self::dead) of those maps alone that it has counted
    /// already: of another one, a dead block would be taken from the count of somebody else's.
    pub(crate) fn recount_begun(&self) {
        self.ledger.borrow_mut().recount_begun();
    }

    /// The counts of valid blocks are what maps lead to: at the end of a recount, and after a clean close. From now on bands whose
    /// count falls to zero are pending by themselves.
    pub(crate) fn recount_ended(&self) {
        self.ledger.borrow_mut().recount_ended();
    }

    /// Blocks of a band that maps lead to.
    pub(crate) fn valid(&self, band: u32) -> u32 {
        self.ledger.borrow().valid(band)
    }

    /// What contradicts itself, in words: nothing, unless there is a defect. `named`: every block of a map page that has a place, with that,
    /// in the order of places.
    pub(crate) fn audit(&self, named: &[(BandAt, u32)]) -> Vec<String> {
        self.ledger.borrow().audit(named)
    }

    /// Counters.
    pub(crate) fn stats(&self) -> BandStats {
        BandStats { failed_bands: self.ledger.borrow().failed(), ..self.stats.get() }
    }

    /// Breaks a rule from now on, for tests of what watches over it.
    pub(crate) fn break_rule(&self, defect: BandDefect) {
        self.ledger.borrow_mut().break_rule(defect);
    }

    fn count(&self, change: impl FnOnce(&mut BandStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }
}

/// See [`Bands::hold`].
pub(crate) struct Hold {
    bands: Rc<Bands>,
    band: Option<u32>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.band.into_iter().for_each(|band| self.bands.ledger.borrow_mut().release(band));
    }
}
