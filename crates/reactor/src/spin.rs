//! How long an idle reactor spins before it sleeps: learned from how long it has been idle lately.
//!
//! Spinning for less than the sleep that it avoids would cost is a gain, spinning for longer a loss. So the window is the one that would
//! have cost least over the idle times that were seen, which fade. What a sleep costs is for whoever runs the reactor to say: the
//! longest spin is worth it.
//! Two of them alternate when requests come at depth 1: a short one until the next request, and a long one until the device
//! has done it; then the window is just long enough for the first.
//!
//! What was seen while asleep is a guess: the other side may share the core, and work came because the reactor slept. When
//! spins do not pay off although they should, there are none for a while, longer and longer. Spins during which another thread
//! took the core are such: the kernel's worker that does our I/O, say.

use crate::reactor::PollPolicy;

/// What a sleep counts for at least: time of both cores, and of the requests that wait for this one to wake up. Idle times that
/// were slept through are seen longer than they are, by the time that waking up takes: with less, who sleeps never spins again.
const SLEEP_COST_NS: u64 = 20_000;
/// Idle times by powers of two: less than 1,024 ns, less than 2,048 ns ...; the last has those that no spin may catch.
const CLASSES: usize = 16;
const FIRST_CLASS_NS: u64 = 1024;
/// Everything seen counts half after so many idle times.
const FADE_EVERY: u32 = 64;
/// What an idle time counts for when it is new.
const FRESH: u32 = 16;
/// The window is found anew after so many idle times.
const LEARN_EVERY: u32 = 8;
/// Spins that have to be in vain, in a row, until there are none for a while.
const IN_VAIN_MAX: u32 = 16;
/// Idle times without a spin, first and at most.
const REST_FIRST: u32 = 64;
const REST_MAX: u32 = 4096;

/// See the module.
pub(crate) struct SpinWindow {
    policy: PollPolicy,
    window_ns: u64,
    seen: [u32; CLASSES],
    until_fade: u32,
    until_learned: u32,
    in_vain: u32,
    resting: u32,
    next_rest: u32,
}

/// The longest idle time of a class, ns.
fn end_ns(class: usize) -> u64 {
    FIRST_CLASS_NS << class
}

fn class_of(idle_ns: u64) -> usize {
    ((idle_ns / FIRST_CLASS_NS + 1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

impl SpinWindow {
    pub(crate) fn new(policy: PollPolicy) -> Self {
        SpinWindow {
            policy,
            window_ns: 0,
            seen: [0; CLASSES],
            until_fade: FADE_EVERY,
            until_learned: LEARN_EVERY,
            in_vain: 0,
            resting: 0,
            next_rest: REST_FIRST,
        }
    }

    /// How long to spin now.
    #[inline]
    pub(crate) fn current_ns(&self) -> u64 {
        match self.policy {
            PollPolicy::Busy => u64::MAX,
            PollPolicy::Adaptive { .. } if self.resting > 0 => 0,
            PollPolicy::Adaptive { .. } => self.window_ns,
            PollPolicy::Sleep => 0,
        }
    }

    /// Work has come while spinning, after so long.
    #[inline]
    pub(crate) fn caught(&mut self, idle_ns: u64) {
        if let PollPolicy::Adaptive { spin_max_ns } = self.policy {
            (self.in_vain, self.next_rest) = (0, REST_FIRST);
            self.observe(idle_ns, spin_max_ns);
        }
    }

    /// Work has come after so long without any, to a reactor that had given up spinning, or had been put off its core while it
    /// spun.
    pub(crate) fn slept(&mut self, idle_ns: u64) {
        let PollPolicy::Adaptive { spin_max_ns } = self.policy else { return };
        if self.resting > 0 {
            self.resting -= 1;
        } else if self.window_ns > 0 {
            self.in_vain += 1;
            if self.in_vain >= IN_VAIN_MAX {
                (self.in_vain, self.resting) = (0, self.next_rest);
                self.next_rest = (self.next_rest * 2).min(REST_MAX);
            }
        }
        self.observe(idle_ns, spin_max_ns);
    }

    fn observe(&mut self, idle_ns: u64, spin_max_ns: u64) {
        self.until_fade -= 1;
        if self.until_fade == 0 {
            self.until_fade = FADE_EVERY;
            self.seen.iter_mut().for_each(|count| *count /= 2);
        }
        let class = if idle_ns < spin_max_ns { class_of(idle_ns) } else { CLASSES - 1 };
        self.seen[class] += FRESH;
        self.until_learned -= 1;
        if self.until_learned == 0 {
            self.until_learned = LEARN_EVERY;
            self.window_ns = best(&self.seen, spin_max_ns);
        }
    }
}

/// The window that would have cost least: idle times within it cost themselves, others it and a sleep.
fn best(seen: &[u32; CLASSES], spin_max_ns: u64) -> u64 {
    let sleep_ns = SLEEP_COST_NS.max(spin_max_ns);
    let count: u64 = seen.iter().map(|count| u64::from(*count)).sum();
    let (mut window_ns, mut least) = (0, count * sleep_ns);
    let (mut within, mut spent_ns) = (0, 0);
    for (class, seen) in seen.iter().enumerate().take(CLASSES - 1) {
        let end = end_ns(class);
        within += u64::from(*seen);
        // (three quarters of its end is the middle of a class)
        spent_ns += u64::from(*seen) * (end - end / 4);
        if end - end / 2 >= spin_max_ns {
            break;
        }
        let window = end.min(spin_max_ns);
        let cost = spent_ns + (count - within) * (window + sleep_ns);
        if cost < least {
            (window_ns, least) = (window, cost);
        }
    }
    window_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_NS: u64 = 50_000;

    fn adaptive() -> SpinWindow {
        SpinWindow::new(PollPolicy::Adaptive { spin_max_ns: MAX_NS })
    }

    /// Idle times as they are; how many of them a spin caught, and how long was spun.
    fn live(window: &mut SpinWindow, times: impl IntoIterator<Item = u64>) -> (u32, u64) {
        let (mut caught, mut spun) = (0, 0);
        for idle_ns in times {
            match idle_ns < window.current_ns() {
                true => {
                    (caught, spun) = (caught + 1, spun + idle_ns);
                    window.caught(idle_ns);
                }
                false => {
                    spun += window.current_ns();
                    window.slept(idle_ns);
                }
            }
        }
        (caught, spun)
    }

    #[test]
    fn short_idle_times_are_spun_through_and_long_ones_slept_through() {
        for (idle_ns, caught) in [(500, true), (3_000, true), (12_000, true), (40_000, true), (60_000, false)] {
            let mut window = adaptive();
            live(&mut window, [idle_ns; 100]);
            let (count, spun) = live(&mut window, [idle_ns; 100]);
            assert_eq!((count == 100, count == 0), (caught, !caught), "{idle_ns} ns");
            assert!(caught || spun == 0, "{spun} ns spun in vain");
        }
    }

    #[test]
    fn who_sleeps_begins_to_spin_although_waking_up_takes_a_while() {
        for (idle_ns, wake_up_ns) in [(3_000, 10_000), (8_000, 15_000), (30_000, 10_000)] {
            let mut window = adaptive();
            let mut caught = 0;
            for _ in 0..400 {
                match idle_ns < window.current_ns() {
                    true => {
                        caught += 1;
                        window.caught(idle_ns);
                    }
                    false => window.slept(idle_ns + wake_up_ns),
                }
            }
            assert!(caught > 300, "{idle_ns} ns and {wake_up_ns} ns to wake up: {caught} of 400 caught");
        }
    }

    #[test]
    fn a_short_and_a_long_idle_time_in_turn_are_told_apart() {
        let mut window = adaptive();
        live(&mut window, [2_000, 70_000].repeat(100));
        let (caught, spun) = live(&mut window, [2_000, 70_000].repeat(100));
        assert!(caught == 100 && spun < 100 * 7_000, "{caught} caught, {spun} ns spun");
    }

    #[test]
    fn a_reactor_that_goes_quiet_stops_spinning_and_one_that_wakes_up_begins() {
        let mut window = adaptive();
        live(&mut window, [3_000; 1000]);
        live(&mut window, [1_000_000; 100]);
        assert_eq!(window.current_ns(), 0);
        live(&mut window, [3_000; 200]);
        assert!(window.current_ns() >= 4_000);
    }

    #[test]
    fn where_work_comes_only_because_the_reactor_sleeps_it_hardly_spins() {
        let mut window = adaptive();
        let (mut spun, mut times) = (0, 0);
        while times < 20_000 {
            // The other side has the same core: 4 us after this one has gone to sleep there is work.
            let spin = window.current_ns();
            window.slept(spin + 4_000);
            (spun, times) = (spun + spin, times + 1);
        }
        assert!(spun < times * 500, "{} ns of each", spun / times);
    }

    /// A device whose worker needs this core: what is caught was caught because the worker had taken it, 12 us in all.
    #[test]
    fn where_the_device_needs_the_core_it_hardly_spins() {
        let mut window = adaptive();
        let mut spins = 0;
        for _ in 0..20_000 {
            spins += u64::from(window.current_ns() > 0);
            window.slept(12_000);
        }
        assert!(spins < 1_000, "{spins} spins in 20,000 requests");
    }

    #[test]
    fn the_other_policies_learn_nothing() {
        for (policy, spins) in [(PollPolicy::Busy, u64::MAX), (PollPolicy::Sleep, 0)] {
            let mut window = SpinWindow::new(policy);
            live(&mut window, [3_000; 100]);
            assert_eq!(window.current_ns(), spins);
        }
    }
}
