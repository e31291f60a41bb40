//! The Timestamp feature: a host tells a controller the time, which counts on from there (Base 2.0, section 5.27.1.9).

/// Bytes of the data structure.
pub(super) const TIMESTAMP_LEN: usize = 8;

/// The timestamp has 48 bits.
const MASK: u64 = (1 << 48) - 1;
/// Origin, bits 3:1 of byte 6: set by Set Features. Zero: counts from a reset.
const ORIGIN_SET: u8 = 1 << 1;

const NS_PER_MS: u64 = 1_000_000;

/// What a controller knows of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timestamp {
    /// Milliseconds since 1970, or since the reset, at `at_ns`.
    ms: u64,
    at_ns: u64,
    is_set: bool,
}

impl Timestamp {
    /// Zero at a reset.
    pub(super) fn new(now_ns: u64) -> Timestamp {
        Timestamp { ms: 0, at_ns: now_ns, is_set: false }
    }

    pub(super) fn set(&mut self, now_ns: u64, data: &[u8; TIMESTAMP_LEN]) {
        *self = Timestamp { ms: u64::from_le_bytes(*data) & MASK, at_ns: now_ns, is_set: true };
    }

    /// The data structure now. The clock behind it never stops while the controller lives.
    pub(super) fn get(&self, now_ns: u64) -> [u8; TIMESTAMP_LEN] {
        let elapsed_ms = now_ns.saturating_sub(self.at_ns) / NS_PER_MS;
        let mut data = (self.ms.wrapping_add(elapsed_ms) & MASK).to_le_bytes();
        data[6] = if self.is_set { ORIGIN_SET } else { 0 };
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_on_from_what_was_set_and_wraps_at_48_bits() {
        let mut timestamp = Timestamp::new(5 * NS_PER_MS);
        assert_eq!(timestamp.get(12 * NS_PER_MS), 7u64.to_le_bytes());
        timestamp.set(20 * NS_PER_MS, &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xee, 0xee]);
        assert_eq!(timestamp.get(21 * NS_PER_MS), [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ORIGIN_SET, 0]);
        assert_eq!(timestamp.get(25 * NS_PER_MS), [3, 0, 0, 0, 0, 0, ORIGIN_SET, 0]);
        assert_eq!(timestamp.get(0), timestamp.get(20 * NS_PER_MS), "a clock that is behind");
    }
}
