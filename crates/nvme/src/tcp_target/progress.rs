//! How fast a host must take what waits for it. Buffers are held until it has, so one that takes a byte now and then would
//! hold them for ever.

/// Watches a connection whose socket is full, in windows of time: each must see some progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    window_ns: u64,
    bytes_min: usize,
    ends_ns: u64,
    taken: usize,
}

impl Progress {
    /// From now on `bytes_min` bytes have to leave in every `window_ns`.
    pub(super) fn new(now_ns: u64, window_ns: u64, bytes_min: usize) -> Self {
        Progress { window_ns, bytes_min, ends_ns: now_ns.saturating_add(window_ns), taken: 0 }
    }

    /// The host took some bytes.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(bytes);
    }

    /// Time left in the window.
    pub(super) fn left_ns(&self, now_ns: u64) -> u64 {
        self.ends_ns.saturating_sub(now_ns)
    }

    /// Whether the window has ended without enough progress. With enough of it, the next window begins.
    pub(super) fn is_stalled(&mut self, now_ns: u64) -> bool {
        if now_ns < self.ends_ns {
            return false;
        }
        let is_stalled = self.taken < self.bytes_min;
        *self = Progress::new(now_ns, self.window_ns, self.bytes_min);
        is_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Takes `bytes` every second; how long it is borne with, up to an hour.
    fn seconds_until_stalled(bytes: usize) -> Option<u64> {
        let mut progress = Progress::new(0, 30 * SECOND, 64 << 10);
        (1..=3600).find(|second| {
            progress.took(bytes);
            progress.is_stalled(second * SECOND)
        })
    }

    #[test]
    fn a_trickle_is_cut_and_a_slow_stream_is_not() {
        assert_eq!(seconds_until_stalled(0), Some(30));
        assert_eq!(seconds_until_stalled(1), Some(30));
        assert_eq!(seconds_until_stalled(2000), Some(30));
        assert_eq!(seconds_until_stalled(2200), None);
        assert_eq!(seconds_until_stalled(1 << 20), None);
    }

    #[test]
    fn what_one_window_saw_does_not_count_for_the_next() {
        let mut progress = Progress::new(0, 10, 100);
        progress.took(1000);
        assert_eq!((progress.left_ns(4), progress.is_stalled(9)), (6, false));
        assert!(!progress.is_stalled(10));
        assert_eq!(progress.left_ns(10), 10);
        assert!(progress.is_stalled(25));
    }
}
