//! What hosts have moved, and limits of how much they may: by name, over all reactors, queues and subsystems together.
//!
//! A host pays for each command when it is taken. When that puts it in debt, nothing more is taken from this connection until
//! the debt is paid: what else it sends waits in its socket, where TCP holds it back. So a command is never held up in a
//! queue of ours, and reservations, keep alives and admin commands are not limited.
//!
//! Each reactor counts in a place of its own, with plain stores; who looks adds up.

use super::connection::{Connection, End, PAUSED_FOR_GOOD};
use crate::spec::Nqn;
use crate::target::io::IoOp;
use bdev::{HOLD_LOOK_NS, Limits, RateLimiter};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

/// Commands that a host has had carried out, and what they moved, since it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Commands that read.
    pub reads: u64,
    /// Bytes to the host.
    pub read_bytes: u64,
    /// Commands that write.
    pub writes: u64,
    /// Bytes from the host.
    pub written_bytes: u64,
    /// All other I/O commands.
    pub others: u64,
}

/// A host's name, traffic and limits.
#[derive(Clone, Debug)]
pub struct HostTraffic {
    /// Its NQN.
    pub host: String,
    /// What it has done.
    pub traffic: Traffic,
    /// What it may do.
    pub limits: Limits,
}

/// A line of the cache for each reactor, so that none waits for another's.
#[derive(Default)]
#[repr(align(64))]
struct Counters([AtomicU64; 5]);

/// A host, wherever it is connected.
pub(super) struct HostMeter {
    limiter: RateLimiter,
    reactors: Box<[Counters]>,
}

impl HostMeter {
    fn new(reactors: usize) -> HostMeter {
        HostMeter { limiter: RateLimiter::default(), reactors: (0..reactors).map(|_| Counters::default()).collect() }
    }

    fn traffic(&self) -> Traffic {
        let sum = |at: usize| self.reactors.iter().map(|counters| counters.0[at].load(Relaxed)).sum();
        Traffic { reads: sum(0), read_bytes: sum(1), writes: sum(2), written_bytes: sum(3), others: sum(4) }
    }

    /// Counts a command on a reactor; how long its connection is to pause after it, ns.
    #[inline]
    fn take(&self, reactor: usize, op: IoOp, bytes: u64, now_ns: u64) -> u64 {
        let counters = &self.reactors[reactor].0;
        // The reactor is the only writer of its line.
        let add = |at: usize, amount: u64| counters[at].store(counters[at].load(Relaxed) + amount, Relaxed);
        let moved = match op {
            IoOp::Read => {
                add(0, 1);
                add(1, bytes);
                bytes
            }
            IoOp::Write | IoOp::ZoneAppend => {
                add(2, 1);
                add(3, bytes);
                bytes
            }
            IoOp::Compare | IoOp::Verify => {
                add(4, 1);
                bytes
            }
            // A flush makes earlier writes durable; holding the host back for it gains nothing.
            IoOp::Flush => {
                add(4, 1);
                return 0;
            }
            _ => {
                add(4, 1);
                0
            }
        };
        self.limiter.pay(moved, now_ns)
    }
}

/// The hosts that are connected, and those that have limits. The lock is taken when a queue is connected, and by
/// administration.
#[derive(Default)]
pub(super) struct Meters(Mutex<BTreeMap<Nqn, Arc<HostMeter>>>);

impl Meters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Nqn, Arc<HostMeter>>> {
        self.0.lock().expect("nothing panics while holding this lock")
    }

    /// The meter of a host that connects.
    pub(super) fn of(&self, host: &Nqn, reactors: usize) -> Arc<HostMeter> {
        let mut meters = self.lock();
        if let Some(meter) = meters.get(host) {
            return meter.clone();
        }
        meters.retain(|_, meter| is_wanted(meter));
        meters.entry(host.clone()).or_insert_with(|| Arc::new(HostMeter::new(reactors))).clone()
    }

    /// Gives a host other limits, from its next command on.
    pub(super) fn set(&self, host: &Nqn, limits: Limits, reactors: usize) {
        let mut meters = self.lock();
        let meter = meters.entry(host.clone()).or_insert_with(|| Arc::new(HostMeter::new(reactors)));
        if meter.limiter.limits() != limits {
            meter.limiter.set(limits);
        }
    }

    /// Whether a limit holds a host back now.
    pub(super) fn is_throttled(&self, host: &Nqn, now_ns: u64) -> bool {
        self.lock().get(host).is_some_and(|meter| meter.limiter.is_used_up(now_ns))
    }

    pub(super) fn all(&self) -> Vec<HostTraffic> {
        let mut meters = self.lock();
        meters.retain(|_, meter| is_wanted(meter));
        let view = |(host, meter): (&Nqn, &Arc<HostMeter>)| HostTraffic {
            host: host.to_string(),
            traffic: meter.traffic(),
            limits: meter.limiter.limits(),
        };
        meters.iter().map(view).collect()
    }
}

/// Somebody is connected, or it has limits.
fn is_wanted(meter: &Arc<HostMeter>) -> bool {
    let Limits { iops, bytes_per_second, .. } = meter.limiter.limits();
    Arc::strong_count(meter) > 1 || iops > 0 || bytes_per_second > 0
}

impl Connection {
    /// A command is carried out: its host's meter counts it, and this connection pauses if that is too much.
    #[inline]
    pub(super) fn meter(&self, op: IoOp, bytes: u64) {
        let Some(meter) = self.host_meter.get() else { return };
        let now_ns = self.reactor.now_ns();
        self.pause(meter.take(self.reactor.index(), op, bytes, now_ns), now_ns);
    }

    /// So many bytes more are moved by a command that is counted already.
    pub(super) fn meter_bytes(&self, bytes: u64) {
        let Some(meter) = self.host_meter.get() else { return };
        let now_ns = self.reactor.now_ns();
        self.pause(meter.limiter.pay_bytes(bytes, now_ns), now_ns);
    }

    #[inline]
    fn pause(&self, pause_ns: u64, now_ns: u64) {
        if pause_ns > 0 {
            self.paused_until_ns.set(self.paused_until_ns.get().max(now_ns.saturating_add(pause_ns)));
        }
    }

    /// Whether nothing is to be taken from this connection now.
    #[inline]
    pub(super) fn is_paused(&self) -> bool {
        self.paused_until_ns.get() > self.reactor.now_ns()
    }

    /// Waits until something may be taken, or the connection has ended, or the host has other limits. That the host has gone is
    /// noticed at once, though what it sent before is not looked at: its queue's number is free again then.
    pub(super) async fn pause_over(&self) {
        let changes = || self.host_meter.get().map(|meter| meter.limiter.changes());
        let before = changes();
        while self.is_paused() && !self.is_ended() {
            if self.paused_until_ns.get() == PAUSED_FOR_GOOD {
                return self.settled.wait_until(|| self.is_ended()).await;
            }
            if changes() != before {
                return self.paused_until_ns.set(0);
            }
            let left_ns = self.paused_until_ns.get() - self.reactor.now_ns();
            let gone = self.or_ended(self.stream.ended());
            let gone = self.reactor.timeout(left_ns.min(HOLD_LOOK_NS), gone).await.flatten();
            // A queue that is being drained ends when its answers are sent.
            if gone.is_some() && self.paused_until_ns.get() != PAUSED_FOR_GOOD {
                self.end(End::Closed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_all_reactors_are_added_up_and_forgotten_with_the_host() {
        let meters = Meters::default();
        let host = Nqn::new("nqn.2026-11.org.example:h").expect("valid");
        let meter = meters.of(&host, 2);
        assert!(Arc::ptr_eq(&meter, &meters.of(&host, 2)));
        for reactor in [0, 1, 1] {
            assert_eq!(meter.take(reactor, IoOp::Read, 512, 0), 0, "no limits");
        }
        meter.take(0, IoOp::Write, 4096, 0);
        let limits = Limits { bytes_per_second: 1 << 20, ..Limits::default() };
        let limited = HostMeter::new(1);
        limited.limiter.set(limits);
        assert_eq!((limited.take(0, IoOp::Verify, 1 << 20, 7), limited.take(0, IoOp::Flush, 0, 7)), (0, 0));
        assert_eq!(limited.take(0, IoOp::Read, 512, 7), 1_000_000_000, "what was verified was read as well");
        meter.take(1, IoOp::Flush, 0, 0);
        let all = meters.all();
        let traffic = Traffic { reads: 3, read_bytes: 1536, writes: 1, written_bytes: 4096, others: 1 };
        assert_eq!((all.len(), all[0].traffic), (1, traffic));
        drop(meter);
        assert!(meters.all().is_empty());
    }

    #[test]
    fn a_host_in_debt_pauses_and_limits_outlive_its_connections() {
        let meters = Meters::default();
        let host = Nqn::new("nqn.2026-11.org.example:h").expect("valid");
        meters.set(&host, Limits { iops: 1000, bytes_per_second: 0, burst_ns: 0 }, 1);
        assert_eq!(meters.all()[0].limits.iops, 1000);
        let meter = meters.of(&host, 1);
        assert_eq!(meter.take(0, IoOp::Read, 512, 0), 0);
        assert_eq!((meters.is_throttled(&host, 999_999), meters.is_throttled(&host, 1_000_000)), (true, false));
        assert_eq!(meter.take(0, IoOp::Read, 512, 0), 1_000_000);
        assert_eq!(meter.take(0, IoOp::Flush, 0, 0), 0, "never waits");
        meters.set(&host, Limits { iops: 0, bytes_per_second: 1 << 20, burst_ns: 0 }, 1);
        assert_eq!(meter.take(0, IoOp::Write, 1 << 20, 0), 0);
        assert_eq!(meter.take(0, IoOp::Write, 1, 0), 1_000_000_000);
        meters.set(&host, Limits::default(), 1);
        assert_eq!(meter.take(0, IoOp::Write, 1 << 20, 0), 0);
    }
}
