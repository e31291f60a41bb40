//! The catalog on the capacity device, in two copies.
//!
//! One checksum covers a whole copy, and a copy that is being written does not count while the other one does. So of a copy that
//! is known to hold what the other one does, the blocks that change are written and no others: torn in between, it is as invalid as
//! one that is torn while all of it is written. A snapshot in a pool that has thousands writes three blocks of each copy.
//!
//! What is never written is never healed. So when as many bytes have been written in parts as a copy has, the next time all of it is.
//!
//! The image, as media have it, is kept in memory: 256 bytes for each volume or snapshot. Its checksum follows from the former one and
//! what has changed, and nothing that takes long is done in one turn of the reactor.

use super::catalog::{Catalog, Edit, load_copy};
use super::damage::Damage;
use super::flaw::{Flaw, MetadataKind, Review, Verdict};
use super::media::Media;
use super::{MetaError, Object};
use crate::format::catalog::{
    CATALOG_ENTRY_BYTES as ENTRY, CATALOG_HEADER_BYTES as HEADER, CatalogImage, VolumeEntry, catalog_bytes_used,
    catalog_entries_max, encode_entry, encode_header,
};
use crate::format::superblock::Superblock;
use crate::units::BLOCK_BYTES;
use base::crc::{Crc32c, crc32c, crc32c_combined};
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use uuid::Uuid;

/// A copy of so many blocks is written whole: that is one transfer, and so would be each of its parts.
const WHOLE_BLOCKS: usize = 8;
/// Unchanged blocks between changed ones up to which both are written in one transfer.
const GAP_BLOCKS: usize = 8;
/// Bytes that are moved or summed up between two looks at the clock.
const STEP_BYTES: usize = 256 << 10;
/// Entries that are changed between two.
const STEP: usize = 32;
/// Changes after which it may be faster to sum up all entries.
const LARGE: usize = 64;

/// See the module.
pub struct CatalogStore {
    media: Media,
    pool: Uuid,
    /// First blocks of the copies.
    copies: [u64; 2],
    /// Blocks of a copy.
    blocks: u32,
    /// Header and entries, those being the ones that were stored last.
    image: Vec<u8>,
    /// Of the entries alone.
    crc: u32,
    next_id: u32,
    generation: u64,
    /// The copy that holds.
    copy: u8,
    /// That copy is known to be durable.
    is_settled: bool,
    /// Both copies are known to be as the image is.
    is_twin: bool,
    /// What was stored last is there, as far as is known.
    is_stored: bool,
    /// Bytes of each copy written in parts since all of it was.
    in_parts: u64,
}

/// The newer valid copy, its number, and what is wrong with the other one.
pub(super) async fn newest(
    media: &Media,
    superblock: &Superblock,
) -> Result<(CatalogImage, u8, Option<Damage>), MetaError> {
    let mut best: Option<(CatalogImage, u8)> = None;
    let mut error = None;
    for copy in 0..2 {
        match load_copy(media, superblock, copy).await {
            Ok(found) if best.as_ref().is_none_or(|(best, _)| found.generation > best.generation) => {
                best = Some((found, copy));
            }
            Ok(_) => {}
            Err(found) => error = Some(found),
        }
    }
    let Some((image, copy)) = best else { return Err(error.expect("a copy is valid or has an error")) };
    let damage = error.map(|error| Damage::of(Object::Catalog, superblock.catalog_copy(1 - copy), &error));
    Ok((image, copy, damage))
}

impl CatalogStore {
    /// Of a new pool: nothing is there.
    pub fn new(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<CatalogStore, MetaError> {
        let mut store = CatalogStore {
            media: Media::new(reactor, channel, &info)?,
            pool: superblock.pool,
            copies: [superblock.catalog_copy(0), superblock.catalog_copy(1)],
            blocks: superblock.catalog_blocks,
            image: Vec::new(),
            crc: 0,
            next_id: 1,
            generation: 0,
            copy: 1,
            is_settled: true,
            is_twin: false,
            is_stored: true,
            in_parts: 0,
        };
        store.renew(&Catalog::default());
        Ok(store)
    }

    /// Of a pool that there is: what it holds, and what is wrong with the copy that does not.
    pub(crate) async fn open(
        reactor: &Rc<Reactor>,
        channel: Rc<dyn Channel>,
        info: DeviceInfo,
        superblock: &Superblock,
    ) -> Result<(CatalogStore, Catalog, Option<Damage>), MetaError> {
        let mut store = CatalogStore::new(reactor, channel, info, superblock)?;
        let (image, copy, damage) = newest(&store.media, superblock).await?;
        (store.generation, store.copy, store.is_settled) = (image.generation, copy, false);
        let catalog = Catalog::of(image);
        store.renew(&catalog);
        Ok((store, catalog, damage))
    }

    /// Makes a catalog that was stored durable with these changes, as a new generation: first in the copy that does not hold, then in
    /// the other one too, so that damage to one copy loses nothing. After an error either the former or this one will be found, and
    /// before anything else is stored the catalog that goes on is to be [renewed](Self::renew).
    pub async fn store(&mut self, edit: &Edit) -> Result<(), MetaError> {
        let volumes = self.entries_with(edit);
        let room = catalog_entries_max(self.blocks as u64 * BLOCK_BYTES as u64);
        if volumes > room {
            return Err(MetaError::CatalogFull { volumes, room });
        }
        let failed = |block| move |status| MetaError::Io { action: "write", object: Object::Catalog, block, status };
        let holding = self.copies[self.copy as usize];
        if !self.is_settled {
            let blocks = self.image.len().div_ceil(BLOCK_BYTES);
            let is_right = |bytes: &[u8]| CatalogImage::decode(bytes, self.pool).is_ok();
            self.media.settle(holding, blocks, blocks, is_right).await.map_err(failed(holding))?;
            self.is_settled = true;
        }
        self.generation += 1;
        let changed = self.change(edit).await;
        let target = self.copies[1 - self.copy as usize];
        // Until all of it is there, nobody knows what it has.
        let was_twin = std::mem::take(&mut self.is_twin);
        self.is_stored = false;
        let runs = self.runs(changed, was_twin);
        self.write(target, &runs).await.map_err(failed(target))?;
        self.copy = 1 - self.copy;
        self.is_stored = true;
        match self.write(holding, &runs).await {
            Ok(()) => self.is_twin = true,
            Err(status) => {
                // This one holds all the same: the other copy has a former one, or none.
                tracing::warn!("the second copy of the catalog, at block {holding}, cannot be written: {status}");
            }
        }
        Ok(())
    }

    /// Reads both copies, in every version of the device. What is wrong is due if it `renews`: then the catalog is to be
    /// [written anew](Self::write_anew). Nobody stores it meanwhile.
    pub(crate) async fn review(&mut self, renews: bool) -> Review {
        if !self.is_stored {
            // What the media have is not known.
            return Review::default();
        }
        let blocks = self.image.len().div_ceil(BLOCK_BYTES);
        let (holding, newest, mut review, mut judged) = (self.copy, self.generation, Review::default(), Vec::new());
        let generation = |bytes: &[u8]| CatalogImage::decode(bytes, self.pool).ok().map(|image| image.generation);
        for copy in [holding, 1 - holding] {
            // A crash may have left an older one before this opening has stored any.
            let may_be_old = !self.is_twin && copy != holding;
            let is_right = |bytes: &[u8]| match generation(bytes) {
                Some(found) => found == newest || may_be_old,
                // Its end may be beyond what was read.
                None => may_be_old && catalog_bytes_used(bytes).is_some_and(|used| used > bytes.len() as u64),
            };
            judged.push(self.media.judge(self.copies[copy as usize], blocks, is_right).await);
        }
        let verdicts = [judged[0].verdict, judged[1].verdict];
        let is_newest = judged[1].bytes.as_ref().is_some_and(|bytes| generation(bytes) == Some(newest));
        for (copy, verdict, elsewhere) in
            [(holding, verdicts[0], is_newest), (1 - holding, verdicts[1], verdicts[0].is_there())]
        {
            review.good += (verdict == Verdict::Right) as u64;
            if let Some(rot) = verdict.rot(elsewhere) {
                let (kind, block) = (MetadataKind::Catalog, self.copies[copy as usize]);
                review.flaws.push(Flaw { kind, number: copy as u32, block, rot, is_due: renews });
            }
        }
        review.read_bytes = judged.iter().map(|judged| judged.read_bytes).sum();
        // The next one goes to the copy that does not hold first: that is to be the worse one, and not the only one that is new.
        if renews && verdicts[1] < verdicts[0] && (is_newest || verdicts[0] == Verdict::Wrong) {
            (self.copy, self.is_settled) = (1 - holding, false);
        }
        review
    }

    /// Stores what was stored last once more, all of it, as a new generation.
    pub(crate) async fn write_anew(&mut self) -> Result<(), MetaError> {
        self.is_twin = false;
        self.store(&Edit::default()).await
    }

    /// The image is that of this catalog, whatever was stored last; the next time all of it is written.
    pub fn renew(&mut self, catalog: &Catalog) {
        self.image = vec![0; HEADER];
        catalog.volumes().values().for_each(|volume| self.image.extend(encode_entry(volume)));
        (self.crc, self.next_id, self.is_twin) = (crc32c(&self.image[HEADER..]), catalog.next_id(), false);
    }

    /// How many volumes there are after these changes.
    fn entries_with(&self, edit: &Edit) -> u64 {
        let mut entries = self.entries() as u64;
        for (id, entry) in &edit.0 {
            match (self.rank(*id), entry) {
                (Ok(_), None) => entries -= 1,
                (Err(_), Some(_)) => entries += 1,
                _ => {}
            }
        }
        entries
    }

    fn entries(&self) -> usize {
        (self.image.len() - HEADER) / ENTRY
    }

    fn at(rank: usize) -> usize {
        HEADER + rank * ENTRY
    }

    fn id_at(&self, rank: usize) -> u32 {
        let at = Self::at(rank);
        u32::from_le_bytes(self.image[at..at + 4].try_into().expect("four bytes"))
    }

    /// Where the entry of a number is, or would be.
    fn rank(&self, id: u32) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.entries());
        while low < high {
            let middle = (low + high) / 2;
            match self.id_at(middle).cmp(&id) {
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// Makes changes in the image; the blocks that have changed.
    async fn change(&mut self, edit: &Edit) -> BTreeSet<usize> {
        let mut blocks: BTreeSet<usize> = [0].into();
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        // So many are summed up faster all together.
        let is_large = edit.len() > LARGE && edit.len() * 8 > self.entries();
        for (number, (id, entry)) in edit.0.iter().enumerate() {
            if number % STEP == STEP - 1 {
                self.give_way().await;
            }
            match (self.rank(*id), entry) {
                (Ok(rank), Some(entry)) => blocks.extend(self.replace(rank, entry, !is_large)),
                (Ok(rank), None) => removed.push(rank),
                (Err(rank), Some(entry)) => added.push((rank, entry)),
                (Err(_), None) => {}
            }
        }
        if is_large && removed.is_empty() {
            self.sum_up().await;
        }
        let before = self.image.len();
        let mut moved_from = (!removed.is_empty()).then(|| Self::at(removed[0]));
        self.take_out(&removed).await;
        for (_, entry) in added {
            let rank = self.rank(entry.id).expect_err("it was not there, and is there once");
            let (at, bytes) = (Self::at(rank), encode_entry(entry));
            if at == self.image.len() {
                self.crc = crc32c_combined(self.crc, crc32c(&bytes), ENTRY as u64);
                self.image.extend(bytes);
                blocks.extend(blocks_of(at..at + ENTRY));
            } else {
                // Numbers ascend, so only a catalog that is put together by hand comes here.
                self.image.splice(at..at, bytes);
                self.sum_up().await;
                moved_from = Some(moved_from.map_or(at, |from| from.min(at)));
            }
        }
        if let Some(from) = moved_from {
            blocks.extend(blocks_of(from..self.image.len().max(from + 1)));
        }
        debug_assert_eq!(self.crc, crc32c(&self.image[HEADER..]), "it follows from what has changed");
        // A block that is not in use any more may keep what it had.
        let used = self.image.len().max(HEADER).div_ceil(BLOCK_BYTES);
        if self.image.len() < before {
            blocks.retain(|block| *block < used);
        }
        let newest = edit.0.iter().filter(|(_, entry)| entry.is_some()).map(|(id, _)| id + 1).max();
        self.next_id = self.next_id.max(newest.unwrap_or(0));
        let header = encode_header(self.pool, self.generation, self.entries() as u32, self.next_id, |header| {
            crc32c_combined(crc32c(header), self.crc, (self.image.len() - HEADER) as u64)
        });
        self.image[..HEADER].copy_from_slice(&header);
        blocks
    }

    fn replace(&mut self, rank: usize, entry: &VolumeEntry, sums: bool) -> Range<usize> {
        let (at, bytes) = (Self::at(rank), encode_entry(entry));
        let behind = (self.image.len() - at - ENTRY) as u64;
        let former = &mut self.image[at..at + ENTRY];
        if sums {
            // Checksums of equally many bytes differ by what follows from the difference of the bytes alone.
            let difference = crc32c(former) ^ crc32c(&bytes);
            self.crc ^= crc32c_combined(difference, 0, behind);
        }
        former.copy_from_slice(&bytes);
        blocks_of(at..at + ENTRY)
    }

    /// Takes out entries, and moves the others up.
    async fn take_out(&mut self, ranks: &[usize]) {
        let Some(first) = ranks.first() else { return };
        let mut to = Self::at(*first);
        for (number, rank) in ranks.iter().enumerate() {
            let end = ranks.get(number + 1).map_or(self.image.len(), |next| Self::at(*next));
            let mut from = Self::at(rank + 1);
            while from < end {
                let bytes = STEP_BYTES.min(end - from);
                self.image.copy_within(from..from + bytes, to);
                (from, to) = (from + bytes, to + bytes);
                self.give_way().await;
            }
        }
        self.image.truncate(to);
        self.sum_up().await;
    }

    async fn sum_up(&mut self) {
        let (mut crc, mut at) = (Crc32c::new(), HEADER);
        while at < self.image.len() {
            let end = self.image.len().min(at + STEP_BYTES);
            crc.update(&self.image[at..end]);
            at = end;
            self.give_way().await;
        }
        self.crc = crc.value();
    }

    async fn give_way(&self) {
        if self.media.reactor.is_turn_long() {
            self.media.reactor.yield_now().await;
        }
    }

    /// What is to be written of each copy for these blocks to be there, as runs of blocks.
    fn runs(&mut self, changed: BTreeSet<usize>, was_twin: bool) -> Vec<Range<usize>> {
        let all = self.image.len().div_ceil(BLOCK_BYTES);
        let mut runs: Vec<Range<usize>> = Vec::new();
        for block in changed {
            match runs.last_mut() {
                Some(run) if block - run.end <= GAP_BLOCKS => run.end = block + 1,
                _ => runs.push(block..block + 1),
            }
        }
        self.in_parts += (runs.iter().map(Range::len).sum::<usize>() * BLOCK_BYTES) as u64;
        if was_twin && all > WHOLE_BLOCKS && self.in_parts < (all * BLOCK_BYTES) as u64 {
            return runs;
        }
        self.in_parts = 0;
        std::iter::once(0..all).collect()
    }

    async fn write(&self, copy: u64, runs: &[Range<usize>]) -> Result<(), Status> {
        if let [run] = runs {
            return self.media.write_durably(copy + run.start as u64, self.bytes_of(run)).await;
        }
        for run in runs {
            self.media.write_bytes(copy + run.start as u64, self.bytes_of(run)).await?;
        }
        self.media.flush().await
    }

    fn bytes_of(&self, run: &Range<usize>) -> &[u8] {
        &self.image[run.start * BLOCK_BYTES..self.image.len().min(run.end * BLOCK_BYTES)]
    }
}

/// The blocks of a copy that have these bytes.
fn blocks_of(bytes: Range<usize>) -> Range<usize> {
    bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES)
}
