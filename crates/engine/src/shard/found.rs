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
    /// Reads the next stripes of a victim, as many as have so many live blocks if these are spread evenly.
    async fn read(cursor: Cursor, bands: &Bands, most: u64) -> Found {
        let valid = bands.valid(cursor.band()).max(1) as u64;
        let wanted = (most * bands.band_data_blocks() as u64).div_ceil(valid).min(ENTRIES_MAX.max(most));
        let mut found = Found { cursor, end: End::Later, entries: Vec::new(), leads: Vec::new() };
        while (found.entries.len() as u64) < wanted {
            match found.cursor.next_stripe().await {
                Ok(Some(stripe)) => {
                    found.entries.extend(stripe.entries().map(|(at, entry)| Live { entry, at }));
                    found.leads.extend(stripe.into_lead().filter(|_| found.leads.len() < LEADS_MAX));
                }
                Ok(None) => {
                    found.end = End::Whole;
                    break;
                }
                // What could be found goes on, and so does everything else.
                Err(status) => {
                    found.end = End::Failed(status);
                    break;
                }
            }
        }
        found
    }

    /// How many of the blocks are live if these are spread evenly over the band.
    fn live(&self, bands: &Bands) -> u64 {
        let valid = bands.valid(self.cursor.band()) as u64;
        (self.entries.len() as u64 * valid).div_ceil(bands.band_data_blocks() as u64)
    }
}

impl Shard {
    /// Reads what stripes of victims say, until there are about so many live blocks: first the rest of that which was begun.
    pub(super) async fn find(self: Rc<Self>, bands: Rc<Bands>, mut begun: Option<Cursor>, most: u64) -> AllFound {
        let (mut all, mut live) = (AllFound::new(), 0);
        while live < most && all.len() < VICTIMS_MAX {
            let Some(cursor) = begun.take().or_else(|| self.next_victim(&bands)) else { break };
            let found = Found::read(cursor, &bands, most - live).await;
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
