//! The dirty bits when a mirror is opened: of each page, what the legs in sync have of it.

use super::format::{BitmapPage, Superblock};
use super::{LEGS_MAX, Shared};
use crate::slots::Slots;
use smallvec::SmallVec;

/// A page that a leg has not as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DamagedPage {
    pub(super) leg: usize,
    pub(super) index: usize,
    /// Another leg has the page.
    pub(super) is_made_up_for: bool,
}

/// The bitmap as the legs have it.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) pages: Vec<BitmapPage>,
    pub(super) damaged: Vec<DamagedPage>,
}

/// Reads the bitmap of an existing mirror from its legs in sync: what any of them calls dirty is dirty. Each has the bits of all
/// writes, so a page that is damaged on one is made up for by another's. Where no leg has it, all that it covers is dirty, as copying
/// too little is never safe; but what is copied may have rotted, so copying too much is not either.
pub(super) async fn load(legs: &[Option<Slots<'_>>], superblock: &Superblock) -> Loaded {
    let mut loaded = Loaded::default();
    for index in 0..superblock.pages as usize {
        let mut found: SmallVec<[(usize, Option<BitmapPage>); LEGS_MAX]> = SmallVec::new();
        for (leg, slots) in legs.iter().enumerate() {
            if let Some(slots) = slots {
                let bytes = slots.read_unit(2 + index as u64).await;
                found.push((leg, bytes.ok().and_then(|bytes| BitmapPage::decode(&bytes, superblock.mirror_id, index))));
            }
        }
        let is_made_up_for = found.iter().any(|(_, page)| page.is_some());
        let mut united = BitmapPage::filled(!is_made_up_for);
        for (leg, page) in found {
            match page {
                Some(page) => united.unite(&page),
                None => loaded.damaged.push(DamagedPage { leg, index, is_made_up_for }),
            }
        }
        loaded.pages.push(united);
    }
    loaded
}

impl Shared {
    /// Says that a leg does not give back a page, and what comes of that.
    pub(super) fn tell_damaged(&self, page: &DamagedPage) {
        let consequence = match page.is_made_up_for {
            true => "another leg has it, and it is rewritten",
            false => "no leg in sync has it, so all that it covers is copied from one leg to the others",
        };
        let (mirror, leg, page) = (&self.name, self.leg_name(page.leg), page.index);
        tracing::warn!(mirror, page, "a page of the dirty-region bitmap of {leg} is damaged: {consequence}");
    }
}
