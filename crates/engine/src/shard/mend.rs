//! Mending: of a block that the capacity device gives back wrongly, or not at all, its other versions are tried (the legs of a
//! mirror, what parity computes), and right bytes are written anew, to the log as everything else.
//!
//! A reader only takes what it needs and asks for the mending, which looks at the block again while writers wait: when it was
//! only overwritten meanwhile, nothing is wrong. Destage takes the new copy to its place, on all legs, or to another one. The
//! layers of snapshots are mended in the same way: what they have stays what it is.

use super::data::{copy_into, copy_out, one};
use super::index::Place;
use super::log_map::IN_PLACE;
use super::read::run_length;
use super::{BLOCK, Defect, Shard, Target, add};
use crate::bands::BandAt;
use crate::checksums::block_crcs;
use crate::log::{Class, Record};
use crate::meta;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use crate::versions::first_right;
use base::crc32c;
use bdev::{Io, Status};
use reactor::{Buf, SgList};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Blocks that are mended in the background at the same time. Of more, the next read or scrub asks again.
const MENDS_MAX: usize = 16;
/// Log bytes of a mended block at most: a group of a header and the block, with what may be padded before it.
const MEND_BYTES_MAX: u64 = 4 * BLOCK as u64;

/// Versions of a block, by number.
pub(super) type Versions = SmallVec<[u8; 8]>;

/// A block of a volume's extent: volume, extent, index.
type Spot = (u32, u32, u32);

/// Blocks that are being mended in the background.
#[derive(Default)]
pub(super) struct Mender {
    under_way: RefCell<SmallVec<[Spot; MENDS_MAX]>>,
}

/// What was found of a block in all its versions.
struct Compared {
    /// Its block of the capacity device.
    place: u64,
    good: Option<Buf>,
    bad: Versions,
}

/// What the capacity device has to have of a block.
pub(super) struct Settled {
    /// Its checksum, as its map page says it.
    stored: u32,
    pub(super) at: BandAt,
    /// There are deltas over it.
    is_covered: bool,
}

/// Blocks that some version of the capacity device does not give back as it should.
#[derive(Default)]
pub(crate) struct Rotten {
    /// Indices in the extent, in order.
    pub(crate) blocks: Vec<u32>,
    /// What was read to find them.
    pub(crate) read_bytes: u64,
}

impl Shard {
    /// Whether there is anything else to try than the usual read.
    #[inline]
    pub(super) fn has_versions(&self) -> bool {
        self.capacity_info.versions > 1 && !self.is_broken(Defect::OneVersion)
    }

    /// Whether other versions may say better: the device has lost the blocks, or given back something else.
    pub(super) fn may_rescue(&self, status: Status) -> bool {
        self.has_versions() && matches!(status, Status::Corrupt | Status::ReadError)
    }

    /// Reads a block of the capacity device, of 4 KiB, in one version.
    async fn read_version(&self, block: u64, version: u8) -> Result<Buf, Status> {
        let buf = bdev::steps::alloc(&self.reactor, BLOCK_BYTES).await?;
        let io = self.capacity_io(block, 1, |lba, blocks| Io::read_version(lba, blocks, version, one(buf)));
        let mut done = self.capacity.submit(io).await;
        done.status.check()?;
        done.io.bufs.pop().ok_or(Status::Invalid)
    }

    /// A block of the capacity device in the first version that is what its map page says, the usual one included: a mirror
    /// answers that from any leg. `None`: it is wrong in all of them.
    ///
    /// # Errors
    /// [`Status::ReadError`]: some version could not be had now, and may be right.
    pub(super) async fn rescue(&self, block: u64, stored: u32) -> Result<Option<Buf>, Status> {
        let read = async |version| {
            let buf = self.read_version(block, version).await?;
            Ok(self.is_right(&buf, stored).then_some(buf))
        };
        let Some((buf, _)) = first_right(0..self.capacity_info.versions, read).await? else { return Ok(None) };
        add(&self.counters.rescued_blocks, 1);
        Ok(Some(buf))
    }

    fn is_right(&self, buf: &Buf, stored: u32) -> bool {
        meta::stored_crc(crc32c(buf.as_slice())) == stored || self.is_broken(Defect::TrustVersion)
    }

    /// Puts right what was read of settled blocks, which are neighbours from `block` of the capacity device on and from
    /// `first` of the shard on. `status` is how reading them has ended, and what is returned when one of them is wrong in every
    /// version. The caller holds their band.
    pub(super) async fn rescue_run(
        self: &Rc<Self>,
        target: &Target,
        first: u32,
        block: u64,
        places: &[Place],
        status: Status,
        bufs: &mut SgList,
    ) -> Status {
        let crcs = block_crcs(bufs);
        for (step, (place, crc)) in (0..).zip(places.iter().zip(crcs)) {
            let Place::Settled(stored, _) = place else { continue };
            if meta::stored_crc(crc) == *stored {
                continue;
            }
            let right = match self.rescue(block + step as u64, *stored).await {
                Ok(Some(right)) => right,
                Ok(None) => return status,
                Err(status) => return status,
            };
            copy_into(bufs, step as usize * BLOCK_BYTES, right.as_slice());
            self.mend_later(target.volume, target.vextent, (first + step) % EXTENT_BLOCKS);
        }
        Status::Ok
    }

    /// Whether other versions of the log may say better.
    pub(super) fn may_rescue_logged(&self, status: Status) -> bool {
        let is_damaged = matches!(status, Status::Corrupt | Status::ReadError);
        is_damaged && self.log.versions() > 1 && !self.is_broken(Defect::OneVersion)
    }

    /// As [`rescue_run`](Self::rescue_run), of blocks in the log. Destage takes them from there in the same way, so that they
    /// are not written anew here.
    pub(super) async fn rescue_logged(&self, places: &[Place], status: Status, bufs: &mut SgList) -> Status {
        let crcs = block_crcs(bufs);
        for (step, (place, crc)) in places.iter().zip(crcs).enumerate() {
            let Place::Log(place) = place else { continue };
            if place.crc == crc {
                continue;
            }
            let right = match self.log.read_right(place.at, BLOCK_BYTES, place.crc).await {
                Ok(Some(right)) => right,
                Ok(None) => return status,
                Err(status) => return status,
            };
            let mut whole = [0; BLOCK_BYTES];
            copy_out(&right, 0, &mut whole);
            copy_into(bufs, step * BLOCK_BYTES, &whole);
        }
        Status::Ok
    }

    /// Begins to mend a block in the background, unless enough of that is under way.
    pub(super) fn mend_later(self: &Rc<Self>, volume: u32, vextent: u32, index: u32) {
        let spot = (volume, vextent, index);
        let mut under_way = self.mender.under_way.borrow_mut();
        if !self.writes || self.is_stopping() || under_way.len() == MENDS_MAX || under_way.contains(&spot) {
            return;
        }
        under_way.push(spot);
        drop(under_way);
        let shard = self.clone();
        self.reactor.spawn(async move {
            // What fails here is tried again by the next read.
            let _ = shard.mend(volume, vextent, index).await;
            shard.mender.under_way.borrow_mut().retain(|other| *other != spot);
        });
    }

    /// Looks at a block in all versions, and writes it anew when some of them are wrong and one is right.
    pub(super) async fn mend(self: &Rc<Self>, volume: u32, vextent: u32, index: u32) -> Result<(), Status> {
        let is_rotten = |_, bad: &Versions| !bad.is_empty();
        if let Some((place, bad)) = self.write_anew(volume, vextent, index, is_rotten).await? {
            self.note_healed(volume, vextent as u64 * EXTENT_BLOCKS as u64 + index as u64, place, &bad);
        }
        Ok(())
    }

    /// Writes a block anew if some version of it is right and it `is_wanted`: by its place, and by the versions that are wrong. These, and
    /// which block of the capacity device (of 4 KiB) they are of, if it has been.
    pub(super) async fn write_anew(
        self: &Rc<Self>,
        volume: u32,
        vextent: u32,
        index: u32,
        is_wanted: impl Fn(BandAt, &Versions) -> bool,
    ) -> Result<Option<(u64, Versions)>, Status> {
        let target = Target { volume, vextent, offset: index * BLOCK, bytes: BLOCK };
        // Before it is held: room may be what a write to it, or its destage, makes.
        self.wait_for_room(MEND_BYTES_MAX).await?;
        if self.is_stopping() {
            return Ok(None);
        }
        let held = self.locks.lock(target.range()).await;
        self.log.barrier().await;
        let Some((block, settled)) = self.settled_block(&target).await? else { return Ok(None) };
        let Settled { stored, at, is_covered } = settled;
        let Compared { place, good, bad } = self.compare_versions(block, stored, at).await;
        if !is_wanted(at, &bad) {
            return Ok(None);
        }
        // The log may still have the block.
        let good = match (good, self.index.logged(block).filter(|place| place.at != IN_PLACE)) {
            (None, Some(place)) => match self.log.read(place.at, 0, BLOCK_BYTES).await {
                Ok(list) if crate::checksums::list_crc(&list) == place.crc => Some(list),
                _ => None,
            },
            (good, _) => good.map(one),
        };
        let Some(good) = good else { return Ok(None) };
        if is_covered {
            // What is written over it is in the log: together they are a whole block there.
            drop(held);
            self.merge(volume, vextent, index).await?;
        } else {
            self.note_slice(&target).await?;
            // Nobody writes to it meanwhile, and the extent stays where it is.
            self.log.append(Record::write(block, 1), good, Class::Internal).await.result?;
            self.house.wrote(self);
        }
        Ok(Some((place, bad)))
    }

    /// Counts and reports a block that was wrong in these versions, and has been put right. It is block `place` of the capacity device.
    pub(super) fn note_healed(&self, volume: u32, block: u64, place: u64, bad: &[u8]) {
        add(&self.counters.healed_blocks, 1);
        let lba = place * self.capacity_scale() as u64;
        let mut drives: Vec<_> = bad.iter().filter_map(|bad| self.capacity_device.note_wrong(lba, *bad)).collect();
        drives.dedup();
        let whose = if drives.is_empty() { String::new() } else { format!(" by {}", drives.join(" and ")) };
        tracing::warn!(
            "pool '{}': block {block} of {} (of 4 KiB) is damaged on device '{}'{whose}, in version {bad:?} of {}; another \
             version has the right bytes, which are written anew (shard {})",
            self.pool_name,
            self.names.of(volume),
            self.capacity_device.name(),
            self.capacity_info.versions,
            self.number
        );
    }

    /// The shard's block at the target, and what the capacity device has to have of it.
    async fn settled_block(self: &Rc<Self>, target: &Target) -> Result<Option<(u32, Settled)>, Status> {
        let Some(extent) = self.index.extent(target.volume, target.vextent) else { return Ok(None) };
        let block = extent * EXTENT_BLOCKS + target.offset / BLOCK;
        let page = self.meta.load_to_read(extent).await?;
        if self.index.extent(target.volume, target.vextent) != Some(extent) {
            return Ok(None);
        }
        Ok(self.settled(&page, block).map(|settled| (block, settled)))
    }

    /// What the capacity device has to have of a block, if anything. Reads may still be answered from the log.
    pub(super) fn settled(&self, page: &meta::Page, block: u32) -> Option<Settled> {
        let (place, is_covered) = match self.index.place(block) {
            Place::Deltas(_, base) => (*base, true),
            place => (place, false),
        };
        match place {
            Place::Settled(stored, at) => Some(Settled { stored, at, is_covered }),
            Place::Log(_) if !is_covered && !self.index.is_dirty(block) => {
                let index = block % EXTENT_BLOCKS;
                let stored = page.get(index);
                (stored < meta::INHERIT).then(|| Settled { stored, at: page.band_at(index), is_covered })
            }
            _ => None,
        }
    }

    async fn compare_versions(&self, block: u32, stored: u32, at: BandAt) -> Compared {
        let (place, _held) = match self.meta.bands() {
            Some(bands) => (bands.device_block(at), Some(bands.hold(at))),
            None => (self.meta.data_block(block), None),
        };
        let mut compared = Compared { place, good: None, bad: Versions::new() };
        for version in 0..self.capacity_info.versions {
            match self.read_version(place, version).await {
                Ok(buf) if self.is_right(&buf, stored) => compared.good = Some(buf),
                Ok(_) | Err(Status::Corrupt | Status::ReadError) => compared.bad.push(version),
                // There is no such version, or it cannot be had now.
                Err(_) => {}
            }
        }
        compared
    }

    /// Reads blocks of an extent of a volume in every version. What is found may have been overwritten while this looked.
    pub(crate) async fn rotten(self: &Rc<Self>, volume: u32, vextent: u32, run: Range<u32>) -> Rotten {
        let mut found = Rotten::default();
        let Some(extent) = self.index.extent(volume, vextent).filter(|_| self.has_versions()) else { return found };
        let Ok(page) = self.meta.load_to_read(extent).await else { return found };
        if self.index.extent(volume, vextent) != Some(extent) {
            return found;
        }
        let place = |index| match self.settled(&page, extent * EXTENT_BLOCKS + index) {
            Some(Settled { stored, at, .. }) => Place::Settled(stored, at),
            None => Place::Hole,
        };
        let places: Vec<Place> = run.clone().map(place).collect();
        let mut at = 0;
        while at < places.len() {
            let count = run_length(&places[at..]);
            if matches!(places[at], Place::Settled(..)) {
                let first = run.start + at as u32;
                self.rotten_of(extent * EXTENT_BLOCKS + first, &places[at..at + count], &mut found).await;
            }
            at += count;
        }
        found.blocks.sort_unstable();
        found.blocks.dedup();
        found
    }

    /// As [`rotten`](Self::rotten), of settled blocks that are neighbours.
    async fn rotten_of(&self, first: u32, places: &[Place], found: &mut Rotten) {
        let (block, _held) = match (self.meta.bands(), &places[0]) {
            (Some(bands), Place::Settled(_, at)) => (bands.device_block(*at), Some(bands.hold(*at))),
            _ => (self.meta.data_block(first), None),
        };
        for version in 0..self.capacity_info.versions {
            let Ok(buf) = bdev::steps::alloc(&self.reactor, places.len() * BLOCK_BYTES).await else { return };
            let read = |lba, blocks| Io::read_version(lba, blocks, version, one(buf));
            let done = self.capacity.submit(self.capacity_io(block, places.len() as u32, read)).await;
            let indices = (0..).map(|step| (first + step) % EXTENT_BLOCKS);
            match done.status {
                Status::Ok => {
                    let wrong = |(_, (place, crc)): &(u32, (&Place, &u32))| !matches!(place, Place::Settled(stored, _) if *stored == meta::stored_crc(**crc));
                    let crcs = block_crcs(&done.io.bufs);
                    found.read_bytes += (places.len() * BLOCK_BYTES) as u64;
                    found.blocks.extend(indices.zip(places.iter().zip(&crcs)).filter(wrong).map(|(index, _)| index));
                }
                // One of them, perhaps; or some of them have fewer versions.
                _ => {
                    for (step, (index, place)) in (0..).zip(indices.zip(places)) {
                        let Place::Settled(stored, _) = place else { continue };
                        let read = self.read_version(block + step, version).await;
                        let is_rotten = match read {
                            Ok(buf) => !self.is_right(&buf, *stored),
                            Err(status) => matches!(status, Status::Corrupt | Status::ReadError),
                        };
                        if is_rotten {
                            found.blocks.push(index);
                        }
                    }
                }
            }
        }
    }
}
