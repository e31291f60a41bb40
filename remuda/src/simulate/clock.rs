//! When the accesses of a trace were: as it says itself, or spread evenly over a time that somebody else knows; and played again, one
//! pass after the other.

use super::trace::{Trace, TraceError};

/// What is known of a trace before it is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// It says when.
    Recorded,
    /// So many accesses, over so many nanoseconds.
    Spread { accesses: u64, duration_ns: u64 },
    /// Nobody knows.
    Unknown,
}

/// What a trace is found to be when it is read to its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Survey {
    pub accesses: u64,
    /// From the first to the last; 0 where it does not say.
    pub duration_ns: u64,
}

impl Survey {
    /// Reads a trace to its end.
    pub fn of(trace: &mut Trace) -> Result<Survey, TraceError> {
        let mut found = Survey::default();
        while trace.next()?.is_some() {
            found.accesses += 1;
            found.duration_ns = trace.time_ns().unwrap_or(0);
        }
        Ok(found)
    }
}

/// Of a clock without time: what one access is after the other, so that rules which wait for time do not wait.
const STEP_NS: u64 = 1_000_000_000;

/// See the module.
pub struct Clock {
    timing: Timing,
    /// When the pass began.
    base_ns: u64,
    now_ns: u64,
    accesses: u64,
}

impl Clock {
    pub fn new(timing: Timing) -> Clock {
        Clock { timing, base_ns: 0, now_ns: 0, accesses: 0 }
    }

    /// The trace begins, or begins again.
    pub fn begin_pass(&mut self) {
        // The first access follows the last one as others follow each other.
        let step = self.duration_ns().checked_div(self.accesses.saturating_sub(1)).unwrap_or(0);
        self.base_ns = self.now_ns + step;
        (self.now_ns, self.accesses) = (self.base_ns, 0);
    }

    /// The next access comes; `recorded_ns` is what the trace says, from its beginning on.
    pub fn tick(&mut self, recorded_ns: Option<u64>) {
        let since = match self.timing {
            Timing::Recorded => recorded_ns.unwrap_or(0),
            Timing::Spread { accesses, duration_ns } => {
                (u128::from(duration_ns) * u128::from(self.accesses) / u128::from(accesses.max(1))) as u64
            }
            Timing::Unknown => self.accesses.saturating_mul(STEP_NS),
        };
        self.accesses += 1;
        self.now_ns = self.now_ns.max(self.base_ns.saturating_add(since));
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    pub fn is_known(&self) -> bool {
        self.timing != Timing::Unknown
    }

    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// How long this pass has taken so far.
    pub fn duration_ns(&self) -> u64 {
        match self.timing {
            Timing::Spread { duration_ns, .. } => duration_ns,
            _ => self.now_ns - self.base_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(clock: &mut Clock, recorded: &[u64]) -> Vec<u64> {
        clock.begin_pass();
        let mut at = |ns: &u64| {
            clock.tick(Some(*ns));
            clock.now_ns()
        };
        recorded.iter().map(&mut at).collect()
    }

    #[test]
    fn a_trace_that_is_played_again_goes_on_in_time() {
        let mut clock = Clock::new(Timing::Recorded);
        assert_eq!(times(&mut clock, &[0, 10, 20]), [0, 10, 20]);
        assert_eq!(times(&mut clock, &[0, 10, 5]), [30, 40, 40], "and never back");
    }

    #[test]
    fn accesses_without_times_are_spread_evenly() {
        let mut clock = Clock::new(Timing::Spread { accesses: 4, duration_ns: 100 });
        assert_eq!(times(&mut clock, &[0; 4]), [0, 25, 50, 75]);
        assert_eq!(clock.duration_ns(), 100);
        assert!(times(&mut Clock::new(Timing::Unknown), &[0; 3]).is_sorted());
    }
}
