//! What stays in the log of a pool under load: arithmetic alone, so that predictions of a pool that does not exist yet
//! decide as the pool will. Of single blocks, [`Heat`](super::heat::Heat) knows.

use super::pace::{IN_BANDS, IN_PLACE, Marks, ON_DISKS};

/// Blocks for which an extent is destaged without what is young of it, unless told otherwise.
pub const OLD_BLOCKS_MIN: u32 = 32;
/// Parts of the log in which what is dirty is young or old.
pub const AGES: usize = 2;

/// The log moves on by one part in so many from one checkpoint to the next.
pub const CHECKPOINT_PART: u64 = 16;

/// Where what leaves the log goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// To its place.
    InPlace,
    /// To its place on a disk that seeks.
    OnDisks,
    /// To a band of a shaped pool.
    Bands,
}

/// So much of a log of `blocks` is kept at least: what is older is destaged.
pub fn kept(placement: Placement, blocks: u64) -> u64 {
    let Marks { start, .. } = match placement {
        Placement::InPlace => IN_PLACE,
        Placement::OnDisks => ON_DISKS,
        Placement::Bands => IN_BANDS,
    };
    blocks * start / 256
}

/// Least old blocks for which an extent is destaged without the others; `most` of them where bands cost little.
///
/// Each time that it is destaged its map page is read and written. What stays for that in the log saves all the more, the more
/// has to be moved for a block that goes to the bands: so from victims on that are half full (`valid` of `whole` blocks), fewer are enough.
pub fn old_blocks_min(most: u32, whole: u32, valid: u32) -> u32 {
    let gain = whole.saturating_sub(valid) as u64;
    let least = 2 * most as u64 * gain / (whole as u64).max(1);
    (least as u32).clamp(1, most.max(1))
}

/// Whether what is old of an extent is destaged without what is young of it: `due` blocks go to the bands, `reinserted` ones to the
/// head of the log, and `least` are worth a turn of their own.
pub fn takes_old_alone(due: u32, reinserted: u32, least: u32) -> bool {
    due >= least || due == 0 && reinserted > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuller_victims_are_the_fewer_old_blocks_are_enough() {
        let of = |valid| old_blocks_min(32, 1000, valid);
        assert_eq!([0, 400, 500, 750, 875, 990, 1000, 1001].map(of), [32, 32, 32, 16, 8, 1, 1, 1]);
        assert_eq!(old_blocks_min(1, 0, 0), 1);
    }

    #[test]
    fn old_blocks_go_alone_where_they_are_many_or_all_stay_in_the_log() {
        let of = |due, reinserted| takes_old_alone(due, reinserted, 8);
        assert_eq!([of(8, 0), of(7, 0), of(7, 9), of(0, 1), of(0, 0)], [true, false, false, true, false]);
    }
}
