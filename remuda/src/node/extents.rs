//! Places volumes on a device: contiguous, aligned, never overlapping.

/// Volumes start at multiples of this, so that no host sees a misaligned disk.
pub const ALIGN: u64 = 1 << 20;

/// Bytes `start .. start + len` of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Extent {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether both have a byte in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// Free ranges of a device of `device_len` bytes, in order, starts aligned.
pub fn free_extents(used: &[Extent], device_len: u64) -> Vec<Extent> {
    let mut used = used.to_vec();
    used.sort();
    let mut free = Vec::new();
    let mut at = 0u64;
    let mut add = |from: u64, to: u64| {
        let start = from.next_multiple_of(ALIGN);
        if start < to {
            free.push(Extent { start, len: to - start });
        }
    };
    for extent in &used {
        add(at, extent.start.min(device_len));
        at = at.max(extent.end());
    }
    add(at, device_len);
    free
}

/// Where `len` bytes fit: the smallest free range that holds them, the first of equals.
pub fn place(used: &[Extent], device_len: u64, len: u64) -> Option<Extent> {
    let free = free_extents(used, device_len);
    let best = free.iter().filter(|extent| extent.len >= len).min_by_key(|extent| extent.len)?;
    Some(Extent { start: best.start, len })
}

/// The largest free range.
pub fn largest_free(used: &[Extent], device_len: u64) -> Option<Extent> {
    // `max_by_key` takes the last of equals; the first is friendlier.
    free_extents(used, device_len).into_iter().rev().max_by_key(|extent| extent.len)
}

/// How long `extent` could become without moving, given the other extents.
pub fn room_at(extent: &Extent, others: &[Extent], device_len: u64) -> u64 {
    let next = others.iter().filter(|other| other.start >= extent.end()).map(|other| other.start).min();
    next.unwrap_or(device_len).min(device_len).saturating_sub(extent.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn extent(start: u64, len: u64) -> Extent {
        Extent { start: start * MIB, len: len * MIB }
    }

    #[test]
    fn takes_the_tightest_gap_and_never_overlaps() {
        let used = [extent(0, 4), extent(6, 2), extent(20, 1)];
        assert_eq!(place(&used, 64 * MIB, 2 * MIB), Some(extent(4, 2)));
        assert_eq!(place(&used, 64 * MIB, 5 * MIB), Some(extent(8, 5)));
        assert_eq!(place(&used, 64 * MIB, 44 * MIB), None);
        assert_eq!(largest_free(&used, 64 * MIB), Some(extent(21, 43)));
    }

    #[test]
    fn starts_are_aligned_after_odd_lengths() {
        let used = [Extent { start: 0, len: 4096 }];
        assert_eq!(place(&used, 8 * MIB, 4096).unwrap().start, MIB);
    }

    #[test]
    fn growth_stops_at_the_next_volume_or_the_end() {
        let others = [extent(8, 1)];
        assert_eq!(room_at(&extent(4, 2), &others, 64 * MIB), 4 * MIB);
        assert_eq!(room_at(&extent(9, 1), &others, 64 * MIB), 55 * MIB);
    }

    #[test]
    fn random_requests_never_overlap() {
        let mut rng = base::Rng::new(3);
        let mut used: Vec<Extent> = Vec::new();
        for _ in 0..500 {
            if !used.is_empty() && rng.one_in(3) {
                used.swap_remove(rng.below(used.len() as u64) as usize);
            } else if let Some(new) = place(&used, 1000 * MIB, rng.between(1, 60 * MIB / 4096) * 4096) {
                assert!(new.end() <= 1000 * MIB && new.start.is_multiple_of(ALIGN));
                assert!(used.iter().all(|other| !other.overlaps(&new)));
                used.push(new);
            }
        }
    }
}
