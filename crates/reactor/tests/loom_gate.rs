//! Every interleaving of a sender and a sleeper on the sleep gate, in the memory model of the language: no message is
//! published without being seen or waking the sleeper. A lost wake-up shows as loom's deadlock report.

mod gate_atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}

#[path = "../src/gate.rs"]
mod gate;

use gate::SleepGate;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// A ring as the gate sees it: something published with release and looked for with acquire; and the driver's wake-ups.
struct World {
    gate: SleepGate,
    published: AtomicUsize,
    wake_ups: AtomicUsize,
}

impl World {
    /// Tells at once who is seen asleep, and others when the turn ends, unless `trusts` says to leave that out.
    fn send(&self, trusts: bool) {
        self.published.fetch_add(1, Ordering::Release);
        let is_told = self.gate.seems_asleep();
        if is_told {
            self.tell();
        }
        if !is_told && !trusts {
            self.tell();
        }
    }

    fn tell(&self) {
        if self.gate.notify() {
            self.wake_ups.fetch_add(1, Ordering::Release);
        }
    }

    fn sees(&self, count: usize) -> bool {
        self.published.load(Ordering::Acquire) >= count
    }

    /// Goes to sleep unless all messages are there; true when it would block in the driver. `look_again` is the step that
    /// must not be left out.
    fn blocks(&self, count: usize, look_again: bool) -> bool {
        if self.sees(count) {
            return false;
        }
        self.gate.prepare_sleep();
        if look_again && self.sees(count) {
            self.gate.awake();
            return false;
        }
        true
    }
}

/// A sleeper that blocked although everything had been published must have a wake-up coming.
fn explore(senders: usize, look_again: bool, trusts: bool) {
    let mut model = loom::model::Builder::new();
    // Three threads have too many interleavings to try all; three forced switches find every known mistake.
    model.preemption_bound = (senders > 1).then_some(3);
    model.check(move || {
        let world =
            Arc::new(World { gate: SleepGate::new(), published: AtomicUsize::new(0), wake_ups: AtomicUsize::new(0) });
        let handles: Vec<_> = (0..senders)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || world.send(trusts))
            })
            .collect();
        let blocked = world.blocks(senders, look_again);
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        assert!(!blocked || world.wake_ups.load(Ordering::Acquire) > 0, "lost wake-up");
    });
}

#[test]
fn one_sender_never_leaves_the_sleeper_asleep() {
    explore(1, true, false);
}

#[test]
fn two_senders_never_leave_the_sleeper_asleep() {
    explore(2, true, false);
}

/// A mutation that this check must catch: nobody is told who was not seen asleep.
#[test]
#[should_panic(expected = "lost wake-up")]
fn trusting_that_the_sleeper_is_seen_asleep_loses_a_wake_up() {
    explore(1, true, true);
}

/// Another one: blocking without a last look.
#[test]
#[should_panic(expected = "lost wake-up")]
fn sleeping_without_a_last_look_loses_a_wake_up() {
    explore(1, false, false);
}
