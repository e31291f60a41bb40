//! Stripes whose headers are damaged, which scrubs look for. What is in use behind such a header can be read, as map pages lead there.
//! But who collects its band does not find it, and neither does who builds the index of a lost log device anew: for that it is lost.
//!
//! ```text
//! headers of all bands -> (what none speaks for) map pages, which a scrub goes through anyway -> (in use, and still not spoken for)
//! written anew
//! ```
//! It is written to the log, as what is [mended](super::mend), so that it goes to another stripe; what is left behind a damaged header
//! then is in nobody's use. That a header speaks for what is damaged itself helps nobody: such blocks stay, and count as corrupt.

use super::mend::Settled;
use super::scrub::ScrubStatus;
use super::{Defect, Shard, add};
use crate::bands::{BandAt, Bands, Unspoken};
use crate::meta::Descriptor;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use bdev::Status;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Most damaged headers that are listed.
pub const BAD_HEADERS_MAX: usize = 256;
/// Most places that a scrub asks the map pages about. Of further ones, the next scrub does.
const UNSPOKEN_MAX: usize = 1 << 16;

/// A stripe, or stripes that follow one another, whose header is damaged while blocks are in use there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BadHeader {
    /// The band of the shard.
    pub band: u32,
    /// The block of the band that the header is in.
    pub first: u32,
    /// Blocks of the stripe, as far as is known.
    pub blocks: u32,
    /// Blocks that were found in use there.
    pub in_use: u32,
    /// Of those, the ones that have been written anew.
    pub rewritten: u32,
    /// Another version of the device has the header.
    pub in_one_version: bool,
}

/// What a scrub knows of headers.
#[derive(Default)]
pub(super) struct Headers(RefCell<State>);

#[derive(Default)]
struct State {
    bands_done: u32,
    good: u64,
    /// In the order of their places.
    unspoken: Vec<Part>,
    bad: Vec<BadHeader>,
    /// Damaged headers, and blocks written anew.
    total: (u64, u64),
}

struct Part {
    what: Unspoken,
    /// It was looked at again when something in use was found there.
    is_certain: bool,
    /// Something in use has been found there; the place in the list, if it has one.
    told: Option<Option<usize>>,
}

impl From<Unspoken> for Part {
    fn from(what: Unspoken) -> Part {
        Part { what, is_certain: false, told: None }
    }
}

impl State {
    fn part_of(&self, at: BandAt) -> Option<usize> {
        let behind = self.unspoken.partition_point(|part| part.what.places.start <= at);
        let last = behind.checked_sub(1)?;
        self.unspoken[last].what.places.contains(&at).then_some(last)
    }
}

impl Headers {
    /// The next scrub begins with the first band.
    pub(super) fn reset(&self) {
        self.0.take();
    }

    /// Takes up what was found of them when the pool was in use last. A scrub that goes on reads all of them again, since what none
    /// of them speaks for is known in memory alone.
    pub(super) fn adopt(&self, noted: &ScrubStatus) {
        let total = (noted.damaged_headers, noted.rewritten_blocks);
        let good = if noted.extents_done == noted.extents_total { noted.good_headers } else { 0 };
        *self.0.borrow_mut() = State { good, bad: noted.bad_headers.clone(), total, ..State::default() };
    }

    /// Headers that were good, those that were not, and blocks written anew.
    pub(super) fn counts(&self) -> (u64, u64, u64) {
        let state = self.0.borrow();
        (state.good, state.total.0, state.total.1)
    }

    /// The list.
    pub(super) fn bad(&self) -> Vec<BadHeader> {
        self.0.borrow().bad.clone()
    }
}

impl Shard {
    /// Reads the headers of all bands, from that on where it was stopped; `pause` is told of bytes that were read.
    pub(super) async fn review_headers(
        self: &Rc<Self>,
        headers: &Headers,
        is_over: impl Fn() -> bool,
        pause: impl AsyncFn(u64),
    ) {
        let Some(bands) = self.meta.bands().filter(|_| !self.is_broken(Defect::SkipHeaders)) else { return };
        let header_bytes =
            BLOCK_BYTES as u64 * if self.has_versions() { 1 + self.capacity_info.versions as u64 } else { 1 };
        loop {
            let band = headers.0.borrow().bands_done;
            if band >= bands.bands_and_free().0 || is_over() {
                return;
            }
            let (mut good, mut unspoken) = (0, Vec::new());
            if let Some(mut review) = bands.review(band) {
                loop {
                    match review.next(&is_over, &mut unspoken).await {
                        Ok(true) => good += 1,
                        Ok(false) => break,
                        Err(status) => {
                            let (pool, shard) = (&self.pool_name, self.number);
                            tracing::warn!(
                                "pool '{pool}': the headers of band {band} of shard {shard} cannot be read: {status}"
                            );
                            break;
                        }
                    }
                    pause(header_bytes).await;
                }
            }
            if is_over() {
                return;
            }
            let state = &mut *headers.0.borrow_mut();
            let room = UNSPOKEN_MAX.saturating_sub(state.unspoken.len());
            state.unspoken.extend(unspoken.into_iter().take(room).map(Part::from));
            (state.good, state.bands_done) = (state.good + good, band + 1);
        }
    }

    /// Writes anew what of a run of an extent is in use where no header speaks for it.
    pub(super) async fn rewrite_unspoken(self: &Rc<Self>, headers: &Headers, owner: Descriptor, run: Range<u32>) {
        let Some(bands) = self.meta.bands().filter(|_| !headers.0.borrow().unspoken.is_empty()) else { return };
        for (index, at) in self.places_of(owner, run).await {
            let Some(places) = self.is_unspoken(bands, headers, at).await else { continue };
            let is_there = |at, _: &_| places.contains(&at);
            match self.write_anew(owner.volume, owner.vextent, index, is_there).await {
                Ok(Some(_)) => headers.note_rewritten(at),
                Ok(None) => {}
                Err(status) => {
                    let block = owner.vextent as u64 * EXTENT_BLOCKS as u64 + index as u64;
                    let (pool, whose) = (&self.pool_name, self.names.of(owner.volume));
                    tracing::warn!("pool '{pool}': block {block} of {whose} cannot be written anew: {status}");
                }
            }
        }
    }

    /// Where the bands have the blocks of a run, by their indices in the extent.
    async fn places_of(
        self: &Rc<Self>,
        Descriptor { volume, vextent, .. }: Descriptor,
        run: Range<u32>,
    ) -> Vec<(u32, BandAt)> {
        let Some(extent) = self.index.extent(volume, vextent) else { return Vec::new() };
        let Ok(page) = self.meta.load_to_read(extent).await else { return Vec::new() };
        if self.index.extent(volume, vextent) != Some(extent) {
            return Vec::new();
        }
        let settled = |index| self.settled(&page, extent * EXTENT_BLOCKS + index).map(|Settled { at, .. }| (index, at));
        run.filter_map(settled).collect()
    }

    /// The places around one in use that no header speaks for, if that is so: a stripe that was being written has one by now.
    async fn is_unspoken(&self, bands: &Rc<Bands>, headers: &Headers, at: BandAt) -> Option<Range<BandAt>> {
        let part = headers.0.borrow().part_of(at)?;
        let is_certain = headers.0.borrow().unspoken[part].is_certain;
        if !is_certain {
            let what = headers.0.borrow().unspoken[part].what.clone();
            let again = look_again(bands, &what).await.unwrap_or_default();
            let certain = again.into_iter().map(|what| Part { is_certain: true, ..Part::from(what) });
            headers.0.borrow_mut().unspoken.splice(part..part + 1, certain);
        }
        let state = &mut *headers.0.borrow_mut();
        let part = state.part_of(at)?;
        let Part { what, told, .. } = &mut state.unspoken[part];
        let (places, blocks) = (what.places.clone(), what.places.end.0 - what.places.start.0);
        let listed = match *told {
            Some(listed) => listed,
            None => {
                let (band, first, in_one_version) = (what.band, bands.position(places.start), what.is_found);
                // One that was taken up is listed already.
                let is_it = |bad: &BadHeader| (bad.band, bad.first, bad.blocks) == (band, first, blocks);
                let known = state.bad.iter().position(is_it);
                let listed = known.or((state.bad.len() < BAD_HEADERS_MAX).then_some(state.bad.len()));
                *told = Some(listed);
                if known.is_none() {
                    state.total.0 += 1;
                    let header = BadHeader { band, first, blocks, in_use: 0, rewritten: 0, in_one_version };
                    state.bad.extend(listed.map(|_| header));
                    self.note_bad_header(bands.device_block(places.start), header);
                }
                listed
            }
        };
        listed.into_iter().for_each(|listed| state.bad[listed].in_use += 1);
        Some(places)
    }

    fn note_bad_header(&self, block: u64, BadHeader { band, first, blocks, in_one_version, .. }: BadHeader) {
        add(&self.counters.damaged_headers, 1);
        let what = if in_one_version { "damaged in one version" } else { "damaged" };
        tracing::warn!(
            "pool '{}': the header of a stripe is {what}: block {block} of device '{}' (of 4 KiB), band {band} of shard {}, block {first}; \
             what is in use of the {blocks} blocks there is written anew",
            self.pool_name,
            self.capacity_device.name(),
            self.number
        );
    }
}

impl Headers {
    fn note_rewritten(&self, at: BandAt) {
        let state = &mut *self.0.borrow_mut();
        state.total.1 += 1;
        let listed = state.part_of(at).and_then(|part| state.unspoken[part].told.flatten());
        listed.into_iter().for_each(|listed| state.bad[listed].rewritten += 1);
    }
}

/// What is still not spoken for.
async fn look_again(bands: &Rc<Bands>, what: &Unspoken) -> Result<Vec<Unspoken>, Status> {
    let mut unspoken = Vec::new();
    let Some(mut review) = bands.review_again(what) else { return Ok(unspoken) };
    while review.next(|| false, &mut unspoken).await? {}
    Ok(unspoken)
}
