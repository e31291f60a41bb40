//! Who appends, and waits for what was appended.

use super::stripe::{OpenStripe, PAGE_BLOCKS, Part};
use super::{BandAt, Bands, STREAMS, Stream};
use crate::format::stripe::Entry;
use bdev::Status;
use reactor::Buf;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Most stripes under way: enough to keep a device busy with writes of 1 MiB.
pub(super) const UNDER_WAY_MAX: u32 = 4;
/// The place of a block that was left out.
const NOWHERE: u32 = u32::MAX;
/// The place of a block whose stripe is not written yet. No geometry has a block of this or the number above.
const UNKNOWN: u32 = u32::MAX - 1;

/// What a writer waits for.
#[derive(Default)]
struct Slot {
    places: Vec<u32>,
    /// Parts of stripes that are not written yet.
    outstanding: u32,
    failure: Option<Status>,
    waker: Option<Waker>,
    /// Nobody wants to know any more.
    orphan: bool,
}

/// The stripes that are being gathered, and who gathers them.
#[derive(Default)]
pub(super) struct Desks {
    open: [Option<OpenStripe>; STREAMS],
    /// Writers that may still append, by stream.
    writers: [u32; STREAMS],
    pub(super) under_way: u32,
    /// Memory of one stripe that is kept back, so that the bands can go on when the pool is used up.
    spare: Option<Buf>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    spare_parts: Vec<Vec<Part>>,
    spare_places: Vec<Vec<u32>>,
}

impl Desks {
    fn take_slot(&mut self) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let places = self.spare_places.pop().unwrap_or_default();
        self.slots[slot as usize] = Slot { places, ..Slot::default() };
        slot
    }

    fn give_slot(&mut self, slot: u32) -> Slot {
        self.free.push(slot);
        std::mem::take(&mut self.slots[slot as usize])
    }

    /// A part of a writer's blocks has become two.
    pub(super) fn split(&mut self, writer: u32) {
        self.slots[writer as usize].outstanding += 1;
    }

    fn give_places(&mut self, mut places: Vec<u32>) {
        places.clear();
        self.spare_places.push(places);
    }
}

impl Bands {
    /// Somebody who is about to append blocks that are new to the bands. While a stream has any writer that may still append,
    /// its open stripe waits to be filled: who has one must not wait for anything that another one holds until it finishes.
    pub(crate) fn writer(self: &Rc<Self>, stream: Stream) -> Writer {
        self.new_writer(stream, None)
    }

    pub(super) fn new_writer(self: &Rc<Self>, stream: Stream, born: Option<u64>) -> Writer {
        let desks = &mut *self.desks.borrow_mut();
        desks.writers[stream as usize] += 1;
        Writer { bands: self.clone(), stream, born, slot: Some(desks.take_slot()), may_append: true }
    }

    /// Keeps memory for one stripe back.
    pub(super) fn keep_spare(&self) {
        let desks = &mut *self.desks.borrow_mut();
        if desks.spare.is_none() {
            desks.spare = self.medium.reactor.pool().try_alloc(self.medium.stripe_bytes);
        }
    }

    /// Sees to it that the stream has an open stripe.
    async fn open_stripe(self: &Rc<Self>, stream: Stream) -> Result<(), Status> {
        while self.desks.borrow().open[stream as usize].is_none() {
            let limit = self.ledger.borrow_mut().prepare(stream).ok_or(Status::NoSpace)?;
            if self.desks.borrow().under_way >= UNDER_WAY_MAX {
                self.changed.notified().await;
                continue;
            }
            let (pool, bytes) = (self.medium.reactor.pool(), self.medium.stripe_bytes);
            let Some(buf) = pool.try_alloc(bytes).or_else(|| self.desks.borrow_mut().spare.take()) else {
                self.free_memory().await?;
                continue;
            };
            let desks = &mut *self.desks.borrow_mut();
            let parts = desks.spare_parts.pop().unwrap_or_default();
            desks.open[stream as usize] = Some(OpenStripe::new(buf, parts, limit));
        }
        Ok(())
    }

    /// Waits until there may be memory for a stripe.
    async fn free_memory(self: &Rc<Self>) -> Result<(), Status> {
        // What others have gathered goes now, so that its memory comes back.
        Stream::ALL.into_iter().for_each(|stream| self.send_open(stream));
        if self.desks.borrow().spare.is_some() {
            return Ok(());
        }
        if self.desks.borrow().under_way > 0 {
            self.changed.notified().await;
            return Ok(());
        }
        let buf = bdev::steps::alloc(&self.medium.reactor, self.medium.stripe_bytes).await?;
        let desks = &mut *self.desks.borrow_mut();
        desks.spare = desks.spare.take().or(Some(buf));
        Ok(())
    }

    /// Writes the open stripe of a stream as it is.
    fn send_open(self: &Rc<Self>, stream: Stream) {
        let open = self.desks.borrow_mut().open[stream as usize].take();
        match open {
            Some(stripe) if !stripe.is_empty() => self.send(stream, stripe),
            Some(stripe) => {
                let (buf, parts) = stripe.into_memory();
                let desks = &mut *self.desks.borrow_mut();
                desks.spare_parts.push(parts);
                desks.spare = desks.spare.take().or(Some(buf));
            }
            None => {}
        }
    }

    /// A stripe has come to its end: its writers learn where its blocks are.
    pub(super) fn stripe_ended(self: &Rc<Self>, mut parts: Vec<Part>, written: Result<(u32, u32), Status>) {
        self.keep_spare();
        let desks = &mut *self.desks.borrow_mut();
        desks.under_way -= 1;
        let mut held = 0;
        for part in parts.drain(..) {
            let slot = &mut desks.slots[part.writer as usize];
            slot.outstanding -= 1;
            match written {
                Ok((band, position)) if !slot.orphan => {
                    let first = self.geometry.at(band, position + part.at).0;
                    let places = &mut slot.places[part.first as usize..][..part.count as usize];
                    (first..).zip(places).for_each(|(at, place)| *place = at);
                    held += part.count;
                }
                Ok(_) => {}
                Err(status) => slot.failure = slot.failure.or(Some(status)),
            }
            if slot.outstanding == 0 {
                slot.waker.take().into_iter().for_each(Waker::wake);
                if slot.orphan {
                    let slot = desks.give_slot(part.writer);
                    desks.give_places(slot.places);
                }
            }
        }
        desks.spare_parts.push(parts);
        if let Ok((band, _)) = written {
            self.ledger.borrow_mut().written(band, held);
        }
        self.care_for_zones();
        self.changed.notify_all();
    }

    /// Places are in the maps, or will never be.
    fn release_places(&self, places: &[u32]) {
        let known = places.iter().filter(|place| **place < UNKNOWN).map(|place| self.geometry.band_of(BandAt(*place)));
        let ledger = &mut *self.ledger.borrow_mut();
        known.for_each(|band| ledger.release(band));
    }
}

/// Whether the first of these begin a whole run of blocks that follow one another, as users write and read them.
fn fills_page(entries: &[Entry]) -> bool {
    let first = entries[0].block;
    let follow = |(block, entry): (u32, &Entry)| entry.block == block;
    first.is_multiple_of(PAGE_BLOCKS)
        && entries.get(..PAGE_BLOCKS as usize).is_some_and(|page| (first..).zip(page).all(follow))
}

/// Appends blocks to a stream. Dropped before it has finished, what it has appended is written or not, and nobody learns where.
pub(crate) struct Writer {
    bands: Rc<Bands>,
    stream: Stream,
    /// When the blocks were written first, by the clock of the bands; `None`: now.
    born: Option<u64>,
    /// `None` once its places have been taken.
    slot: Option<u32>,
    may_append: bool,
}

impl Writer {
    /// Copies blocks into the open stripe, or further ones; it waits only while no memory for stripes is free. `fill` puts the
    /// block of entry `index` into the bytes; when it says false, the block is left out. `NoSpace` when there is no band for
    /// the stream; what was appended before that stays appended.
    pub(crate) async fn append(
        &mut self,
        entries: &[Entry],
        mut fill: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> Result<(), Status> {
        let mut at = 0;
        while at < entries.len() {
            let open = self.bands.desks.borrow_mut().open[self.stream as usize].take();
            let Some(mut stripe) = open else {
                self.bands.open_stripe(self.stream).await?;
                continue;
            };
            while at < entries.len() && !stripe.is_full() {
                let is_taken = fill(at, stripe.target(fills_page(&entries[at..])));
                self.note(&mut stripe, is_taken.then_some(entries[at]));
                at += 1;
            }
            if stripe.is_full() {
                self.bands.send(self.stream, stripe);
            } else {
                self.bands.desks.borrow_mut().open[self.stream as usize] = Some(stripe);
            }
        }
        Ok(())
    }

    /// Notes the next block of this writer: in the target of the stripe, or left out.
    fn note(&self, stripe: &mut OpenStripe, entry: Option<Entry>) {
        let number = self.slot.expect("it has not finished");
        let slot = &mut self.bands.desks.borrow_mut().slots[number as usize];
        let Some(entry) = entry else { return slot.places.push(NOWHERE) };
        let index = slot.places.len() as u32;
        slot.places.push(UNKNOWN);
        let ledger = &mut *self.bands.ledger.borrow_mut();
        slot.outstanding += stripe.take(entry, self.born.unwrap_or(ledger.clock()), number, index) as u32;
        if self.stream.is_user() {
            ledger.tick(1);
        }
    }

    /// It appends no more: the open stripe of its stream need not wait for it.
    pub(crate) fn end(&mut self) {
        if !std::mem::take(&mut self.may_append) {
            return;
        }
        let left = {
            let writers = &mut self.bands.desks.borrow_mut().writers[self.stream as usize];
            *writers -= 1;
            *writers
        };
        if left == 0 {
            self.bands.send_open(self.stream);
        }
    }

    /// It appends no more, and waits until everything it has appended is written. Not durable: that takes a flush.
    pub(crate) async fn finish(mut self) -> Result<Places, Status> {
        self.end();
        let number = self.slot.expect("it has not finished");
        poll_fn(|cx| {
            let slot = &mut self.bands.desks.borrow_mut().slots[number as usize];
            if slot.outstanding == 0 {
                return Poll::Ready(());
            }
            match &mut slot.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await;
        self.slot = None;
        let slot = self.bands.desks.borrow_mut().give_slot(number);
        let places = Places { bands: self.bands.clone(), places: slot.places };
        slot.failure.map_or(Ok(places), Err)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end();
        let Some(number) = self.slot else { return };
        let desks = &mut *self.bands.desks.borrow_mut();
        let slot = &mut desks.slots[number as usize];
        self.bands.release_places(&slot.places);
        if slot.outstanding > 0 {
            (slot.orphan, slot.waker) = (true, None);
        } else {
            let slot = desks.give_slot(number);
            desks.give_places(slot.places);
        }
    }
}

/// Where blocks have been written, in the order in which they were appended. Their bands are not used for anything else while
/// this lives: it is dropped when the maps lead to the blocks, and these are counted as [live](Bands::live).
pub(crate) struct Places {
    bands: Rc<Bands>,
    places: Vec<u32>,
}

impl Places {
    /// How many blocks were appended, those left out included.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Where a block is; `None` when it was left out.
    pub(crate) fn get(&self, index: usize) -> Option<BandAt> {
        (self.places[index] != NOWHERE).then_some(BandAt(self.places[index]))
    }

    /// The same of all.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<BandAt>> {
        (0..self.len()).map(|index| self.get(index))
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        self.bands.release_places(&self.places);
        self.bands.desks.borrow_mut().give_places(std::mem::take(&mut self.places));
    }
}
