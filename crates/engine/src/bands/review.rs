//! Whether the blocks of a band are found by the headers of its stripes, in every version that the device has of these.
//!
//! What no header speaks for may be a stripe whose header is damaged. It may as well be one that was never written (a crash came, or
//! the band has refused it), or is being written: then nothing in it is in use, which the maps know, and nobody here.

use super::{BandAt, Bands, Cursor, Surveyed};
use bdev::Status;
use std::ops::Range;
use std::rc::Rc;

/// Blocks of a band that no header speaks for, or not in every version of the device.
#[derive(Clone, Debug)]
pub(crate) struct Unspoken {
    /// Their places, headers included.
    pub(crate) places: Range<BandAt>,
    pub(crate) band: u32,
    /// Of the band: with another one it has been used again since.
    generation: u64,
    /// Another version of the device has the header: who walks the band finds them.
    pub(crate) is_found: bool,
}

/// See the module.
pub(crate) struct Review {
    cursor: Cursor,
    generation: u64,
    end: u32,
}

impl Bands {
    /// The headers of a band as far as it is written now; `None`: it is not in use.
    pub(crate) fn review(self: &Rc<Self>, band: u32) -> Option<Review> {
        let (generation, end) = self.ledger.borrow().in_use(band)?;
        Some(self.review_part(band, generation, 0..end))
    }

    /// Those of a part of a band again; `None`: it has been given up since.
    pub(crate) fn review_again(self: &Rc<Self>, part: &Unspoken) -> Option<Review> {
        let (generation, _) = self.ledger.borrow().in_use(part.band)?;
        let first = self.geometry.at(part.band, 0).0;
        let blocks = part.places.start.0 - first..part.places.end.0 - first;
        (generation == part.generation).then(|| self.review_part(part.band, generation, blocks))
    }

    fn review_part(self: &Rc<Self>, band: u32, generation: u64, blocks: Range<u32>) -> Review {
        let end = blocks.end;
        Review { cursor: self.walk_part(band, generation, blocks), generation, end }
    }

    /// The block of its band that is at a place.
    pub(crate) fn position(&self, at: BandAt) -> u32 {
        at.0 % self.geometry.band_blocks
    }
}

impl Review {
    /// Goes on to the end of the next stripe, and adds what is not spoken for up to there. False: there is none, or `is_over`.
    pub(crate) async fn next(
        &mut self,
        is_over: impl Fn() -> bool,
        unspoken: &mut Vec<Unspoken>,
    ) -> Result<bool, Status> {
        let from = self.cursor.at();
        let Some(stripe) = self.cursor.next_unless(is_over).await? else {
            unspoken.extend(self.unspoken(from..self.end, false));
            return Ok(false);
        };
        let Surveyed { blocks, end, .. } = stripe.surveyed();
        unspoken.extend(self.unspoken(from..end - blocks, false));
        if !self.cursor.bands().is_in_all_versions(&stripe).await {
            unspoken.extend(self.unspoken(end - blocks..end, true));
        }
        Ok(true)
    }

    fn unspoken(&self, blocks: Range<u32>, is_found: bool) -> Option<Unspoken> {
        let band = self.cursor.band();
        let at = |position| self.cursor.bands().geometry.at(band, position);
        let places = at(blocks.start)..at(blocks.end);
        (!blocks.is_empty()).then_some(Unspoken { places, band, generation: self.generation, is_found })
    }
}
