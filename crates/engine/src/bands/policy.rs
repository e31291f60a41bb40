//! What decides which band is drained, and when: arithmetic alone, so that predictions of a pool that
//! does not exist yet decide as the pool will.
//!
//! A band of which the share `u` is valid is worth `(1 - u) * sqrt(idle) / (1 + u)`: what is gained, for how long it is likely to
//! last, for reading what is valid and writing it again. `idle` counts from when the band was closed, not from when its blocks were
//! new: what was collected before would seem ever older and be moved while it is nearly full. Against the age of the blocks,
//! without a root, it writes 20 to 28 % less to the capacity device at 4 KiB uniform and Zipf 0.8 to 1.0, 18 % less at 1.2 (a fifth of
//! the bands spare); the root is worth 0 to 7 % of that. Clocks are in blocks that user streams have written.

use super::STREAMS;
use crate::format::stripe::STRIPE_DATA_MAX;

/// Bands that user streams leave to those that make room: one for each stream to go on, one to be drained into, and one for
/// what errors cost.
pub const RESERVE_BANDS: u32 = STREAMS as u32 + 2;
/// Blocks for which the collector has bands ready beyond the reserve: 16 MiB.
const LEAD_BLOCKS: u32 = 4096;
/// Keeps the worths of bands apart when they are whole numbers.
const WORTH_SCALE: u128 = 1024;

/// Free bands of a shard below which its collector works: what destage fills while a checkpoint gives back what has been emptied.
/// Each further one is a band less among which what is not needed is spread, and makes everything that is collected fuller.
pub fn free_bands_low(bands: u32, band_blocks: u32) -> u32 {
    RESERVE_BANDS + LEAD_BLOCKS.div_ceil(band_blocks).min(bands / 32).max(2)
}

/// What draining a band of `whole` blocks is worth, of which `valid` are needed and that was closed `idle` blocks ago; `None` when
/// nothing is gained by it. `critical`: room is needed at once, whatever it costs later.
pub fn worth(whole: u32, valid: u32, unit_blocks: u32, idle: u64, critical: bool) -> Option<u128> {
    let valid = valid.min(whole);
    // What it takes elsewhere, with headers, and padding at the end.
    let moved = valid + valid.div_ceil(STRIPE_DATA_MAX as u32) + unit_blocks;
    if moved >= whole {
        return None;
    }
    let gain = (whole - valid) as u128;
    let weighed = || (gain * idle.isqrt() as u128 * WORTH_SCALE) / (whole + valid) as u128;
    Some(if critical { gain } else { weighed() })
}

/// Blocks in use of so many bands that leave one worth draining wherever they are: with as many more, a full pool in which blocks are
/// written again would come to an end. Units that are large against a band cost much of it.
pub fn collectable_blocks(bands: u64, band_blocks: u32, unit_blocks: u32) -> u64 {
    let beside_headers = band_blocks.saturating_sub(unit_blocks + 1) as u64;
    let each = beside_headers * STRIPE_DATA_MAX as u64 / (STRIPE_DATA_MAX as u64 + 1);
    // Beside what is kept free, a band of each stream is open.
    bands.saturating_sub(RESERVE_BANDS as u64 + STREAMS as u64) * each
}

/// Whether room is so short that the emptiest band is the best.
pub fn is_critical(free_bands: usize) -> bool {
    free_bands <= STREAMS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_idle_for_longer_is_worth_more_and_room_that_is_short_asks_for_the_emptier() {
        let (old, empty) = ((600, 10_000), (400, 100));
        let of = |(valid, idle): (u32, u64), critical| worth(1024, valid, 16, idle, critical).unwrap();
        assert!(of(old, false) > of(empty, false));
        assert!(of(old, true) < of(empty, true));
    }

    #[test]
    fn nothing_is_gained_by_a_band_that_fills_as_much_elsewhere() {
        assert_eq!(worth(1024, 1010, 16, 1 << 40, false), None);
        assert!(worth(1024, 900, 16, 1, false).is_some());
    }

    #[test]
    fn what_is_collectable_leaves_a_band_that_is_worth_it() {
        for (band_blocks, unit_blocks) in
            [(2, 1), (4, 2), (8, 4), (16, 8), (1024, 16), (1024, 512), (5120, 2560), (262_144, 16)]
        {
            let each =
                collectable_blocks(u64::from(RESERVE_BANDS) + STREAMS as u64 + 1, band_blocks, unit_blocks) as u32;
            assert!(
                worth(band_blocks, each, unit_blocks, 1, true).is_some(),
                "{band_blocks} in units of {unit_blocks}"
            );
            // Little more would be too much.
            let most = each + 2 + each / 1000;
            assert!(
                worth(band_blocks, most, unit_blocks, 1, true).is_none(),
                "{band_blocks} in units of {unit_blocks}"
            );
        }
    }
}
