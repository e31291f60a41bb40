//! The index of a shaped pool, built anew on a new log device: from its shadow, which knows whose extents are and the checksums
//! of their blocks, and from the stripes of the bands, which say what they have.
//!
//! ```text
//! 1 the headers of all stripes: where bands end, and when each stripe was written
//! 2 a root with these bands, every block of the shadow lost     3 the stripes once more: a block that has the checksum is found
//! 4 a checkpoint of what was found     5 one of the shadow, with the same tail
//! ```
//! Of a slice that is not in the dirty journal the newest version of each block is in a stripe that was flushed, and nothing has
//! been written over it. There may be others with the same checksum: where a block was before it was collected, and
//! where it was being moved when the pool stopped, of which a part may be missing. Of several, the latest counts that reads
//! right: the others are in bands that were free, or about to be.
//!
//! The tails of both are far beyond what the old log can hold: nothing that it has left on a device is taken for records. Apart from
//! that of the shadow's root nothing changes on the capacity device.

use crate::bands::{BandAt, BandEntry, Bands, Cursor, Entry, Surveyed};
use crate::error::PoolError;
use crate::forget::{BlockRange, ForgetProgress, Showing, Unfound};
use crate::format::band::BandState;
use crate::format::superblock::Superblock;
use crate::meta::media::Media;
use crate::meta::{
    BLOCKS_INHERIT, BLOCKS_LOST, Catalog, Descriptor, INHERIT, LOST, MAP_PAGE, Meta, MetaError, Page, open_bands,
    stored_crc,
};
use crate::pool::FIRST;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogTail};
use base::crc32c;
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Extents whose map pages, of the index as well as of the shadow, are in memory at once: 128 GiB of blocks, 400 MiB of pages. For
/// each further window the stripes are read again.
const WINDOW_EXTENTS: u32 = 1 << 15;
/// Bytes of these pages.
pub(crate) const CACHE_BYTES: usize = WINDOW_EXTENTS as usize * (2 * BLOCK_BYTES + 1024);
/// Bands that are read at once.
const BANDS_AT_ONCE: usize = 8;

/// Where everything is.
pub(crate) struct Places<'a> {
    pub(crate) reactor: &'a Rc<Reactor>,
    /// Of the new log device.
    pub(crate) superblock: &'a Superblock,
    pub(crate) catalog: &'a Catalog,
    pub(crate) log: (Rc<dyn Channel>, DeviceInfo),
    pub(crate) capacity: (Rc<dyn Channel>, DeviceInfo),
    pub(crate) progress: &'a Arc<ForgetProgress>,
}

/// Why it came to nothing.
pub(crate) enum Failed {
    /// A structure could not be made or opened.
    Meta(MetaError),
    /// A device failed.
    Io(&'static str, Status),
    /// It was to end before its end.
    Stopped,
}

impl Failed {
    pub(crate) fn of_pool(self, pool: &str) -> PoolError {
        match self {
            Failed::Meta(error) => error.into(),
            Failed::Io(action, status) => PoolError::Io { pool: pool.to_string(), action, status },
            Failed::Stopped => PoolError::Stopped { pool: pool.to_string() },
        }
    }
}

impl From<MetaError> for Failed {
    fn from(error: MetaError) -> Failed {
        Failed::Meta(error)
    }
}

/// A stripe of the bands: where its header is, and its sequence.
type Known = (BandAt, u64);

/// An index that has been begun.
pub(crate) struct Rebuild {
    media: Media,
    shadow: Rc<Meta>,
    meta: Rc<Meta>,
    bands: Rc<Bands>,
    /// In the order of their places.
    stripes: Vec<Known>,
    /// Which data blocks of a stripe read right, a bit each, of those stripes that had to be looked at; by the places of their
    /// headers.
    right: BTreeMap<BandAt, [u64; 4]>,
    /// Blocks of the window that the shadow names, and of which no stripe has been found yet.
    missing: u64,
    progress: Arc<ForgetProgress>,
}

/// Extents of both.
fn covered(shadow: &Meta, extents: u32) -> u32 {
    shadow.extents().min(extents)
}

/// How many bands are read for a shard, each as often as it is.
pub(crate) fn band_reads(superblock: &Superblock, shard: u16, shadow: &Meta) -> u64 {
    let windows = covered(shadow, superblock.shard_extents(shard)).div_ceil(WINDOW_EXTENTS);
    superblock.shard_bands() as u64 * (1 + windows as u64)
}

impl Rebuild {
    /// Builds the index of a shard, which has what the shadow says of the extents that are not to be lost, and notes what of them
    /// no stripe has, which is lost. It is to be [finished](Self::finish).
    pub(crate) async fn new(
        places: &Places<'_>,
        shard: u16,
        shadow: Rc<Meta>,
        keeps: impl Fn(&Meta, u32) -> bool,
        showing: &Showing<'_>,
        unfound: &mut Unfound,
    ) -> Result<Rebuild, Failed> {
        let Places { reactor, superblock, catalog, log, capacity, progress } = places;
        let media = Media::new(reactor, capacity.0.clone(), &capacity.1)?;
        let nothing_known = open_bands(reactor, capacity.clone(), superblock, shard, &[]);
        let (table, stripes) = survey(&nothing_known, progress).await?;
        Meta::format_with(reactor, log.0.clone(), log.1, superblock, shard, FIRST, table).await?;
        let (channel, bands) = (log.0.clone(), Some(capacity.clone()));
        let (meta, _) = Meta::open_over(reactor, channel, log.1, superblock, shard, CACHE_BYTES, &[], bands).await?;
        let bands = meta.bands().expect("the pool is shaped").clone();
        // Until the pool is this one's, nothing changes on the capacity device.
        bands.rest().await;
        bands.recount_begun();
        let (right, progress) = (BTreeMap::new(), Arc::clone(progress));
        let mut rebuild = Rebuild { media, shadow, meta, bands, stripes, right, missing: 0, progress };
        let covered = covered(&rebuild.shadow, rebuild.meta.extents());
        for first in (0..covered).step_by(WINDOW_EXTENTS as usize) {
            let window = first..covered.min(first + WINDOW_EXTENTS);
            let kept: Vec<u32> = window.clone().filter(|extent| keeps(&rebuild.shadow, *extent)).collect();
            rebuild.take_shadow(&kept).await?;
            rebuild.find(window).await?;
            rebuild.note_unfound(&kept, catalog, showing, unfound).await?;
        }
        rebuild.bands.recount_ended();
        Ok(rebuild)
    }

    /// The index, as it has been built so far.
    pub(crate) fn meta(&self) -> &Rc<Meta> {
        &self.meta
    }

    /// Makes it durable, with a log that begins there.
    pub(crate) async fn finish(self, tail: LogTail) -> Result<(), Failed> {
        for store in [&self.meta, &self.shadow] {
            store.checkpoint(tail).await.map_err(|status| Failed::Io("write a checkpoint", status))?;
        }
        Ok(())
    }

    /// Between parts of the work: others have their turn, and may want it to end.
    async fn go_on(&self) -> Result<(), Failed> {
        give_way(self.bands.reactor()).await;
        self.progress.go_on()
    }

    /// These extents have their owners; their blocks are as the shadow says, and lost where they have bytes.
    async fn take_shadow(&mut self, extents: &[u32]) -> Result<(), Failed> {
        for extent in extents.iter().copied() {
            self.go_on().await?;
            let known = self.shadow.descriptor(extent);
            self.meta
                .set_descriptor(extent, Descriptor { flags: known.flags & (BLOCKS_LOST | BLOCKS_INHERIT), ..known });
            if known.flags & MAP_PAGE == 0 {
                continue;
            }
            let page = self.page(&self.meta, extent).await?;
            match self.shadow_of(extent).await? {
                Some(shadow) => (0..EXTENT_BLOCKS).for_each(|index| match shadow.get(index) {
                    value if value < INHERIT => {
                        self.missing += 1;
                        page.set(index, LOST);
                    }
                    value => page.set(index, value),
                }),
                None => {
                    self.missing += EXTENT_BLOCKS as u64;
                    page.fill(0..EXTENT_BLOCKS, LOST);
                }
            }
        }
        Ok(())
    }

    /// What the shadow says of an extent; `None`: it is damaged there.
    async fn shadow_of(&self, extent: u32) -> Result<Option<Page>, Failed> {
        match self.shadow.load(extent).await {
            Ok(page) => Ok(Some(page)),
            Err(Status::Corrupt | Status::ReadError) => Ok(None),
            Err(status) => Err(Failed::Io("read the shadow of the index", status)),
        }
    }

    async fn page(&self, meta: &Rc<Meta>, extent: u32) -> Result<Page, Failed> {
        meta.load(extent).await.map_err(|status| Failed::Io("read a map page", status))
    }

    // --- what stripes have ------------------------------------------------------------------------------------------

    /// Looks for the blocks of a window of extents.
    async fn find(&mut self, window: Range<u32>) -> Result<(), Failed> {
        let all = self.bands.room().bands;
        for first in (0..all).step_by(BANDS_AT_ONCE) {
            let bands = first..all.min(first + BANDS_AT_ONCE as u32);
            let walk = |bands: &Rc<Bands>, band| bands.walk(band);
            let told = tell(&self.bands, &self.progress, bands, walk, |_, entries| entries).await?;
            for stripe in told.into_iter().flatten() {
                self.go_on().await?;
                for (at, entry) in stripe {
                    if window.contains(&(entry.block / EXTENT_BLOCKS)) && self.may_want(entry.block) {
                        self.look(at, entry).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether both know of bytes in the extent of a block.
    fn may_want(&self, block: u32) -> bool {
        let extent = block / EXTENT_BLOCKS;
        let has_page = |meta: &Meta| !meta.descriptor(extent).is_free() && meta.has_page(extent);
        has_page(&self.meta) && has_page(&self.shadow)
    }

    /// At what a stripe says that it has.
    async fn look(&mut self, at: BandAt, entry: Entry) -> Result<(), Failed> {
        let (extent, index) = (entry.block / EXTENT_BLOCKS, entry.block % EXTENT_BLOCKS);
        match self.shadow_of(extent).await? {
            Some(shadow) if shadow.get(index) == entry.crc => self.take(extent, index, entry.crc, at).await,
            _ => Ok(()),
        }
    }

    /// What of the extents of a window, all of whose stripes have been looked at, has not been found.
    async fn note_unfound(
        &mut self,
        extents: &[u32],
        catalog: &Catalog,
        showing: &Showing<'_>,
        unfound: &mut Unfound,
    ) -> Result<(), Failed> {
        if std::mem::take(&mut self.missing) == 0 {
            return Ok(());
        }
        for extent in extents.iter().copied() {
            self.go_on().await?;
            let Descriptor { volume, vextent, .. } = self.meta.descriptor(extent);
            // What is being deleted, and nobody shows, is no loss.
            let entry = catalog.get(volume).filter(|entry| catalog.counts(entry));
            let Some(entry) = entry.filter(|_| self.shadow.descriptor(extent).flags & MAP_PAGE != 0) else { continue };
            let (page, shadow) = (self.page(&self.meta, extent).await?, self.shadow_of(extent).await?);
            let named = |index| shadow.as_ref().is_none_or(|shadow| shadow.get(index) < INHERIT);
            for index in (0..EXTENT_BLOCKS).filter(|index| page.get(*index) == LOST && named(*index)) {
                let first = vextent as u64 * EXTENT_BLOCKS as u64 + index as u64;
                unfound.note(entry, BlockRange { first, blocks: 1 });
                let noted = showing.note(volume, vextent, index..index + 1, unfound.shown_by()).await;
                noted.map_err(|status| Failed::Io("read the shadow of the index", status))?;
            }
        }
        Ok(())
    }

    /// A stripe says that it has a block as it was last.
    async fn take(&mut self, extent: u32, index: u32, crc: u32, at: BandAt) -> Result<(), Failed> {
        let page = self.page(&self.meta, extent).await?;
        if page.get(index) == LOST {
            self.missing -= 1;
            page.place(index, crc, at);
            return Ok(());
        }
        let former = page.band_at(index);
        let (earlier, later) = if self.sequence(former) < self.sequence(at) { (former, at) } else { (at, former) };
        let counts = if self.is_right(later).await? { later } else { earlier };
        if counts != former {
            page.place(index, crc, counts);
        }
        Ok(())
    }

    /// The stripe that has a data block.
    fn stripe_of(&self, at: BandAt) -> Option<Known> {
        let behind = self.stripes.partition_point(|(header, _)| *header < at);
        self.stripes[..behind].last().copied()
    }

    fn sequence(&self, at: BandAt) -> Option<u64> {
        self.stripe_of(at).map(|(_, sequence)| sequence)
    }

    /// Whether a block is what the header of its stripe says.
    async fn is_right(&mut self, at: BandAt) -> Result<bool, Failed> {
        let Some((header, sequence)) = self.stripe_of(at) else { return Ok(false) };
        let right = match self.right.get(&header) {
            Some(right) => *right,
            None => {
                let right = self.verify(header, sequence).await?;
                self.right.insert(header, right);
                right
            }
        };
        let index = (at.0 - header.0 - 1) as usize;
        Ok(right.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 == 1))
    }

    async fn verify(&self, header: BandAt, sequence: u64) -> Result<[u64; 4], Failed> {
        let mut right = [0; 4];
        let Some(stripe) = self.bands.stripe_at(header, sequence).await.map_err(of_bands)? else { return Ok(right) };
        let crcs: Vec<u32> = stripe.entries().map(|(_, entry)| entry.crc).collect();
        let bytes = match self.media.read_bytes(self.bands.device_block(header) + 1, crcs.len()).await {
            Ok(bytes) => bytes,
            Err(Status::ReadError | Status::Corrupt) => return Ok(right),
            Err(status) => return Err(of_bands(status)),
        };
        for (index, (block, crc)) in bytes.chunks_exact(BLOCK_BYTES).zip(crcs).enumerate() {
            right[index / 64] |= ((stored_crc(crc32c(block)) == crc) as u64) << (index % 64);
        }
        Ok(right)
    }
}

fn of_bands(status: Status) -> Failed {
    Failed::Io("read the bands", status)
}

/// Long work shares a reactor with hosts.
async fn give_way(reactor: &Reactor) {
    if reactor.is_turn_long() {
        reactor.yield_now().await;
    }
}

/// Reads the stripes of some bands, all bands at once; what `of` makes of each, by bands.
async fn tell<T: 'static>(
    bands: &Rc<Bands>,
    progress: &Arc<ForgetProgress>,
    range: Range<u32>,
    walk: fn(&Rc<Bands>, u32) -> Cursor,
    of: fn(Surveyed, Vec<(BandAt, Entry)>) -> T,
) -> Result<Vec<Vec<T>>, Failed> {
    let read = |band| {
        let (mut cursor, reactor, progress) = (walk(bands, band), bands.reactor().clone(), progress.clone());
        bands.reactor().spawn_join(async move {
            let mut told = Vec::new();
            while let Some(stripe) = cursor.next_unless(|| progress.go_on().is_err()).await.map_err(of_bands)? {
                told.push(of(stripe.surveyed(), stripe.entries().collect()));
                give_way(&reactor).await;
            }
            progress.go_on()?;
            progress.band_read();
            Ok(told)
        })
    };
    let reads: Vec<_> = range.map(read).collect();
    let (mut all, mut failed) = (Vec::new(), None);
    // All of them end before the first failure is told: until then they use the device.
    for read in reads {
        match read.await {
            Ok(told) => all.push(told),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(all), Err)
}

/// What the bands are by their own account, and all of their stripes.
async fn survey(bands: &Rc<Bands>, progress: &Arc<ForgetProgress>) -> Result<(Vec<BandEntry>, Vec<Known>), Failed> {
    let (mut table, mut stripes, all) = (Vec::new(), Vec::new(), bands.room().bands);
    for first in (0..all).step_by(BANDS_AT_ONCE) {
        let range = first..all.min(first + BANDS_AT_ONCE as u32);
        let walk = |bands: &Rc<Bands>, band| bands.survey(band);
        for of_band in tell(bands, progress, range, walk, |surveyed, _| surveyed).await? {
            stripes.extend(of_band.iter().map(|stripe| (stripe.header, stripe.sequence)));
            table.push(band_of(&of_band));
        }
    }
    Ok((table, stripes))
}

/// A band that has these stripes.
fn band_of(stripes: &[Surveyed]) -> BandEntry {
    let Some(last) = stripes.last() else { return BandEntry::default() };
    let weighed: u128 = stripes.iter().map(|stripe| stripe.stamp as u128 * stripe.blocks as u128).sum();
    let blocks: u128 = stripes.iter().map(|stripe| stripe.blocks as u128).sum();
    let stamp = (weighed / blocks.max(1)) as u64;
    let Surveyed { stream, generation, end: written, .. } = *last;
    BandEntry { state: BandState::Closed, stream, written, valid: 0, generation, stamp }
}
