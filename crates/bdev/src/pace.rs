//! How fast a rebuild or a resync goes, and how fast it may.

use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const SECOND_NS: u64 = 1_000_000_000;
/// Between two steps where no rate is set: leaves most of the devices to their users.
pub(crate) const PAUSE_NS: u64 = 1_000_000;
/// What was kept from its rate makes up for so much time of it, and no more: it would take the devices from their users.
const CATCH_UP_MAX_NS: u64 = SECOND_NS / 10;
/// What ends meanwhile, or gets another rate, is noticed within it, however low the rate.
const NOTICED_NS: u64 = SECOND_NS / 10;
/// Of how long the speed is told: what was slow or fast long ago says nothing of now.
const MEASURED_NS: u64 = 10 * SECOND_NS;

/// Bytes per second that may be copied; 0: a pause after each step instead. Can be changed while copying goes on.
#[derive(Debug, Default)]
pub(crate) struct Rate(AtomicU64);

impl Rate {
    pub fn new(bytes_per_s: u64) -> Rate {
        Rate(AtomicU64::new(bytes_per_s))
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub fn set(&self, bytes_per_s: u64) {
        self.0.store(bytes_per_s, Relaxed);
    }
}

/// Of what is being copied, step by step.
pub(crate) struct Pace {
    /// Where no rate is set.
    pause_ns: u64,
    begun_ns: u64,
    bytes: u64,
    /// Where a rate is set: when the next step may begin.
    due_ns: u64,
}

impl Pace {
    /// From now on; `pause_ns` between two steps where no rate is set.
    pub fn new(now_ns: u64, pause_ns: u64) -> Pace {
        Pace { pause_ns, begun_ns: now_ns, bytes: 0, due_ns: now_ns }
    }

    /// When the next step may begin, now that so many bytes have been written.
    fn next_ns(&self, now_ns: u64, bytes: u64, rate: u64) -> u64 {
        match (bytes as u128 * SECOND_NS as u128).checked_div(rate as u128) {
            None => now_ns.saturating_add(self.pause_ns),
            Some(step_ns) => {
                let from = self.due_ns.max(now_ns.saturating_sub(CATCH_UP_MAX_NS));
                from.saturating_add(u64::try_from(step_ns).unwrap_or(u64::MAX))
            }
        }
    }

    /// Waits until the step after so many bytes may begin, by the rate as it is by then, or until all ends.
    pub async fn keep(&mut self, reactor: &Rc<Reactor>, bytes: u64, rate: &Rate, is_ending: impl Fn() -> bool) {
        let done_ns = reactor.clock_ns();
        self.bytes += bytes;
        let next_ns = loop {
            let (now_ns, next_ns) = (reactor.clock_ns(), self.next_ns(done_ns, bytes, rate.get()));
            if now_ns >= next_ns || is_ending() {
                break next_ns;
            }
            reactor.sleep_ns((next_ns - now_ns).min(NOTICED_NS)).await;
        };
        if next_ns <= done_ns {
            // Devices in memory answer at once: without a pause nobody else would have a turn.
            reactor.yield_now().await;
        }
        self.due_ns = next_ns;
    }

    /// Bytes per second of late.
    pub fn bytes_per_s(&mut self, now_ns: u64) -> u64 {
        let elapsed = now_ns.saturating_sub(self.begun_ns).max(1);
        let per_s = self.bytes as u128 * SECOND_NS as u128 / elapsed as u128;
        if elapsed > MEASURED_NS {
            (self.begun_ns, self.bytes) = (self.begun_ns + elapsed / 2, self.bytes / 2);
        }
        u64::try_from(per_s).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_caught_up_with_for_a_moment_only() {
        let (step, rate, late_ns) = (256 << 10, 1 << 20, 100 * SECOND_NS);
        let mut pace = Pace::new(0, PAUSE_NS);
        let mut next = |now_ns, rate| {
            pace.due_ns = pace.next_ns(now_ns, step, rate);
            pace.due_ns - now_ns.min(pace.due_ns)
        };
        assert_eq!(next(0, rate), SECOND_NS / 4);
        assert_eq!(next(late_ns, rate), SECOND_NS / 4 - CATCH_UP_MAX_NS);
        assert_eq!(next(late_ns, rate), SECOND_NS / 2 - CATCH_UP_MAX_NS);
        assert_eq!(next(late_ns, u64::MAX), SECOND_NS / 2 - CATCH_UP_MAX_NS);
        assert_eq!(next(late_ns, 0), PAUSE_NS);
    }
}
