//! What the stripes of victims say, before anybody looks whether it is live.
//!
//! A batch of the collector begins with it. It is read while the batch before appends and moves: headers are read one after the
//! other, since only the last one says where the next one is.

use super::Shard;
use super::collect::Live;
use super::gc::VICTIMS_MAX;
use crate::bands::{Bands, Cursor, Lead};
use bdev::Status;
use smallvec::SmallVec;
use std::rc::Rc;

/// Entries of a victim that are sorted at once, however few of them are live.
const ENTRIES_MAX: u64 = 16_384;

/// Leads that are kept of a victim: 2 MiB.
const LEADS_MAX: usize = 32;

/// How far somebody has got with a victim.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// There are more stripes.
    Later,
    /// There are none.
    Whole,
    /// Something could not be read, or has no place to go to.
    Failed(Status),
}

/// Stripes of a victim.
pub(super) struct Found {
    pub(super) cursor: Cursor,
    pub(super) end: End,
    /// What they have.
    pub(super) entries: Vec<Live>,
    /// What came with their headers of some of them, in the order of their places.
    pub(super) leads: Vec<Lead>,
}

/// What a batch begins with. Of the last one alone there may be [more](End::Later).
pub(super) type AllFound = SmallVec<[Found; VICTIMS_MAX]>;

impl Found {
    /// Nothing of it has been read yet, or all of that has been looked at.
    pub(super) fn new(cursor: Cursor) -> Found {
        Found { cursor, end: End::Later, entries: Vec::new(), leads: Vec::new() }
    }

    /// How many of the blocks are live if these are spread evenly over the band.
    fn live(&self, bands: &Bands) -> u64 {
        let valid = bands.valid(self.cursor.band()) as u64;
        (self.entries.len() as u64 * valid).div_ceil(bands.band_data_blocks() as u64)
    }

    /// Reads on, for about so many live blocks more.
    async fn read(&mut self, bands: &Bands, most: u64) {
        // As many stripes as have so many if these are spread evenly.
        let valid = bands.valid(self.cursor.band()).max(1) as u64;
        let wanted = (most * bands.band_data_blocks() as u64).div_ceil(valid).min(ENTRIES_MAX.max(most));
        let wanted = self.entries.len() as u64 + wanted;
        while (self.entries.len() as u64) < wanted {
            match self.cursor.next_stripe().await {
                Ok(Some(stripe)) => {
                    self.entries.extend(stripe.entries().map(|(at, entry)| Live { entry, at }));
                    self.leads.extend(stripe.into_lead().filter(|_| self.leads.len() < LEADS_MAX));
                }
                Ok(None) => return self.end = End::Whole,
                // What could be found goes on, and so does everything else.
                Err(status) => return self.end = End::Failed(status),
            }
        }
    }
}

impl Shard {
    /// Reads what stripes of victims say, until there are about so many live blocks: first those that go on `from` before.
    pub(super) async fn find(self: Rc<Self>, bands: Rc<Bands>, from: Option<Found>, most: u64) -> AllFound {
        let (mut all, mut live) = (AllFound::new(), 0);
        let mut from = from;
        while live < most && all.len() < VICTIMS_MAX {
            let Some(mut found) = from.take().or_else(|| self.next_victim(&bands).map(Found::new)) else { break };
            if matches!(found.end, End::Later) {
                found.read(&bands, most - live).await;
            }
            live += found.live(&bands);
            let has_more = matches!(found.end, End::Later);
            all.push(found);
            if has_more {
                break;
            }
        }
        all
    }
}
