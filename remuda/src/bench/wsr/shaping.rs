//! Write shaping as a policy: what a log before bands would do to a drive, without data, metadata or recovery. A reference
//! for the real pool, not the pool.
//!
//! Writes go to a log on the cache device and end there. When most chunks of it are full, compactors take the valid blocks of
//! the oldest ones and append them to the open band; a chunk is free when all of it has moved. When few bands are free, movers
//! empty the one that is worth it most (see [`Places`]) into a band of their own, and compaction waits when hardly any are.

use super::disk::{Disk, DiskError};
use super::host::HostCore;
use super::places::{Extent, NONE, Places};
use super::stack::Target;
use bdev::Op;
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const BLOCK: u64 = 4096;
/// Blocks that one compactor or mover has in hand.
const BATCH: u32 = 256;
const COMPACTORS: u32 = 8;
const MOVERS: u32 = 4;
const COLLECT_AT_FREE: usize = 5;
const COMPACT_ABOVE_FREE: usize = 2;
/// Compaction begins when so many percent of the chunks are full.
const COMPACT_AT_PERCENT: usize = 80;
/// A drive's pages, by which a victim is read.
const PAGE_BLOCKS: u32 = 16;

/// Sizes in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub blocks: u32,
    pub bands: u32,
    pub band_blocks: u32,
    pub chunks: u32,
    pub chunk_blocks: u32,
    /// Bands are zones, so many bytes from one to the next.
    pub zone_bytes: Option<u64>,
    pub cost_benefit: bool,
}

/// A place from which blocks are moved, batch by batch.
#[derive(Default)]
struct Source {
    /// Chunk or band, next place, end of it.
    current: Option<(u32, u32, u32)>,
    /// Batches under way, by chunk or band.
    under_way: Vec<(u32, u32)>,
}

/// See the module.
pub struct Shaping {
    shape: Shape,
    places: RefCell<Places>,
    compaction: RefCell<Source>,
    collection: RefCell<Source>,
    compactors: Cell<u32>,
    movers: Cell<u32>,
    /// Log space or a band has become free, or an append has ended.
    progress: Notify,
    disk: Rc<Disk>,
    fast: Rc<Disk>,
    host: HostCore,
    reactor: Rc<Reactor>,
    log_bytes: Cell<u64>,
    failure: RefCell<Option<DiskError>>,
}

impl Shaping {
    pub fn new(shape: Shape, disk: Rc<Disk>, fast: Rc<Disk>, host: HostCore, reactor: &Rc<Reactor>) -> Rc<Shaping> {
        let places = Places::new(shape.blocks, shape.bands, shape.band_blocks, shape.chunks, shape.chunk_blocks);
        Rc::new(Shaping {
            shape,
            places: RefCell::new(places),
            compaction: RefCell::default(),
            collection: RefCell::default(),
            compactors: Cell::new(0),
            movers: Cell::new(0),
            progress: Notify::default(),
            disk,
            fast,
            host,
            reactor: reactor.clone(),
            log_bytes: Cell::new(0),
            failure: RefCell::new(None),
        })
    }

    async fn write(self: &Rc<Self>, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let blocks = (offset / BLOCK) as u32..((offset + bytes) / BLOCK) as u32;
        let mut taken = Vec::with_capacity(blocks.len());
        for block in blocks {
            let place = loop {
                let place = self.places.borrow_mut().take_log();
                self.work_if_needed();
                match place {
                    Some(place) => break place,
                    None => self.progress.notified().await,
                }
                self.failure.borrow().clone().map_or(Ok(()), Err)?;
            };
            taken.push((block, place));
        }
        self.log_bytes.set(self.log_bytes.get() + bytes);
        self.fast.perform(Op::Write, 0, bytes).await?;
        let mut places = self.places.borrow_mut();
        taken.into_iter().for_each(|(block, place)| places.enter(block, place));
        Ok(())
    }

    async fn read(self: &Rc<Self>, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let blocks = (offset / BLOCK) as u32..((offset + bytes) / BLOCK) as u32;
        let found: Vec<u32> = {
            let places = self.places.borrow();
            blocks.map(|block| places.place(block)).filter(|place| *place != NONE).collect()
        };
        let runs: Vec<(u32, u32)> = found.chunk_by(|a, b| a + 1 == *b).map(|run| (run[0], run.len() as u32)).collect();
        if let [(first, count)] = runs[..] {
            return self.read_run(first, count).await;
        }
        let parts: Vec<_> = runs
            .into_iter()
            .map(|(first, count)| {
                let this = self.clone();
                self.reactor.spawn_join(async move { this.read_run(first, count).await })
            })
            .collect();
        for part in parts {
            part.await?;
        }
        Ok(())
    }

    async fn read_run(&self, first: u32, count: u32) -> Result<(), DiskError> {
        let bytes = u64::from(count) * BLOCK;
        if self.places.borrow().is_log(first) {
            return self.fast.perform(Op::Read, 0, bytes).await;
        }
        self.disk.perform(Op::Read, self.offset(first), bytes).await
    }

    /// The drive's offset of a place in a band.
    fn offset(&self, place: u32) -> u64 {
        let (band, at) = (place / self.shape.band_blocks, place % self.shape.band_blocks);
        let size = self.shape.zone_bytes.unwrap_or(u64::from(self.shape.band_blocks) * BLOCK);
        u64::from(band) * size + u64::from(at) * BLOCK
    }

    /// Starts compactors and movers as far as there is work for them.
    fn work_if_needed(self: &Rc<Self>) {
        while self.compactors.get() < COMPACTORS && self.may_compact() {
            let Some((chunk, blocks)) = self.next_of_log() else { break };
            self.compactors.set(self.compactors.get() + 1);
            let this = self.clone();
            self.reactor.spawn(async move {
                this.note(this.compact(chunk, blocks).await);
                this.compactors.set(this.compactors.get() - 1);
                this.progress.notify_all();
                this.work_if_needed();
            });
        }
        while self.movers.get() < MOVERS {
            let Some((band, blocks)) = self.next_of_victim() else { break };
            self.movers.set(self.movers.get() + 1);
            let this = self.clone();
            self.reactor.spawn(async move {
                this.note(this.collect(band, blocks).await);
                this.movers.set(this.movers.get() - 1);
                this.progress.notify_all();
                this.work_if_needed();
            });
        }
    }

    fn note(&self, outcome: Result<(), DiskError>) {
        if let Err(error) = outcome {
            self.failure.borrow_mut().get_or_insert(error);
        }
    }

    fn may_compact(&self) -> bool {
        let places = self.places.borrow();
        let begun = self.compaction.borrow().current.is_some();
        let full = places.full_chunks.len() * 100 >= places.chunks as usize * COMPACT_AT_PERCENT;
        // What is under way fills bands too; where they are small it would take those that movers need.
        let taken = self.compactors.get() * BATCH / self.shape.band_blocks;
        (begun || full) && places.free_band_count() > COMPACT_ABOVE_FREE + taken as usize
    }

    /// The next valid blocks of the oldest full chunk.
    fn next_of_log(&self) -> Option<(u32, Vec<u32>)> {
        let (mut source, mut places) = (self.compaction.borrow_mut(), self.places.borrow_mut());
        if source.current.is_none() {
            let chunk = places.full_chunks.pop_front()?;
            let first = places.chunk_first(chunk);
            source.current = Some((chunk, first, first + places.chunk_blocks));
        }
        source.next(&places)
    }

    fn next_of_victim(&self) -> Option<(u32, Vec<u32>)> {
        let (mut source, mut places) = (self.collection.borrow_mut(), self.places.borrow_mut());
        if source.current.is_none() {
            if places.free_band_count() > COLLECT_AT_FREE {
                return None;
            }
            let band = places.choose_victim(self.shape.cost_benefit)?;
            let first = band * places.band_blocks;
            source.current = Some((band, first, first + places.band_blocks));
        }
        source.next(&places)
    }

    async fn compact(self: &Rc<Self>, chunk: u32, places: Vec<u32>) -> Result<(), DiskError> {
        if !places.is_empty() {
            self.fast.perform(Op::Read, 0, places.len() as u64 * BLOCK).await?;
            self.append(0, &places).await?;
        }
        if self.compaction.borrow_mut().ended(chunk) {
            self.places.borrow_mut().free_chunk(chunk);
        }
        Ok(())
    }

    async fn collect(self: &Rc<Self>, band: u32, places: Vec<u32>) -> Result<(), DiskError> {
        let pages = places.chunk_by(|a, b| a / PAGE_BLOCKS == b / PAGE_BLOCKS);
        let reads: Vec<_> = pages
            .map(|page| {
                let (first, count) = (page[0], page[page.len() - 1] - page[0] + 1);
                let this = self.clone();
                self.reactor.spawn_join(async move { this.read_run(first, count).await })
            })
            .collect();
        for read in reads {
            read.await?;
        }
        self.append(1, &places).await?;
        if self.collection.borrow_mut().ended(band) {
            if self.shape.zone_bytes.is_some() {
                self.disk.reset(self.offset(band * self.shape.band_blocks)).await?;
            }
            self.places.borrow_mut().free_band(band);
        }
        Ok(())
    }

    /// Writes the blocks that are still in these places to a stream's band, where they are from then on unless they were written
    /// again meanwhile.
    async fn append(self: &Rc<Self>, stream: usize, from: &[u32]) -> Result<(), DiskError> {
        let mut left: Vec<(u32, u32)> = {
            let places = self.places.borrow();
            let owned = from.iter().map(|place| (*place, places.owner(*place)));
            owned.filter(|(_, block)| *block != NONE).collect()
        };
        while !left.is_empty() {
            let extent = self.places.borrow_mut().take_band(stream, left.len() as u32);
            let Some(extent) = extent else {
                self.progress.notified().await;
                continue;
            };
            self.write_extent(extent).await?;
            let rest = left.split_off(extent.count as usize);
            let mut places = self.places.borrow_mut();
            for (index, (old, block)) in left.into_iter().enumerate() {
                if places.place(block) == old {
                    places.enter(block, extent.first + index as u32);
                }
            }
            places.written(extent);
            left = rest;
        }
        Ok(())
    }

    async fn write_extent(&self, extent: Extent) -> Result<(), DiskError> {
        let bytes = u64::from(extent.count) * BLOCK;
        match self.shape.zone_bytes {
            None => self.disk.perform(Op::Write, self.offset(extent.first), bytes).await,
            Some(_) => {
                // At the pointer, which is where the extent begins: extents of a band are taken and submitted in order.
                let zone = extent.first / self.shape.band_blocks * self.shape.band_blocks;
                self.disk.perform(Op::ZoneAppend, self.offset(zone), bytes).await
            }
        }
    }
}

impl Source {
    /// The next batch of places that have an owner. At the end of the source there is a last batch, which may be empty.
    fn next(&mut self, places: &Places) -> Option<(u32, Vec<u32>)> {
        let (id, mut next, end) = self.current?;
        let mut batch = Vec::new();
        while next < end && (batch.len() as u32) < BATCH {
            if places.owner(next) != NONE {
                batch.push(next);
            }
            next += 1;
        }
        self.current = Some((id, next, end)).filter(|_| next < end);
        match self.under_way.iter_mut().find(|(of, _)| *of == id) {
            Some((_, count)) => *count += 1,
            None => self.under_way.push((id, 1)),
        }
        Some((id, batch))
    }

    /// A batch has ended; whether it was the last one of its source.
    fn ended(&mut self, id: u32) -> bool {
        let index = self.under_way.iter().position(|(of, _)| *of == id).expect("its batch was under way");
        self.under_way[index].1 -= 1;
        if self.under_way[index].1 > 0 || self.current.is_some_and(|(of, ..)| of == id) {
            return false;
        }
        self.under_way.swap_remove(index);
        true
    }
}

impl Target for Rc<Shaping> {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        let this = self.clone();
        IoFuture::new(async move {
            this.host.pass(&this.reactor, bytes).await;
            match op {
                Op::Read => this.read(offset, bytes).await,
                _ => this.write(offset, bytes).await,
            }
        })
    }

    fn fast_bytes(&self) -> u64 {
        self.log_bytes.get()
    }
}
