//! Commands of a connection that devices are carrying out, so that one can wait for those of a moment while others start.
//!
//! They are counted in two eras, by turns: who waits begins a new era when the one before the last is over, and waits for
//! the last. Commands that a device completes inside `submit` are never counted: nothing comes in between.

use reactor::sync::Notify;
use std::cell::Cell;

/// See the module.
#[derive(Default)]
pub(super) struct Flights {
    era: Cell<u64>,
    /// By the parity of the era. Never more than two eras have any.
    counts: [Cell<u32>; 2],
    /// Somebody waits.
    waiting: Cell<u32>,
    landed: Notify,
}

/// One command in a device.
pub(super) struct Flight(usize);

impl Flights {
    fn slot(era: u64) -> usize {
        (era & 1) as usize
    }

    /// A device has taken a command and not ended it.
    #[inline]
    pub(super) fn take_off(&self) -> Flight {
        let slot = Flights::slot(self.era.get());
        self.counts[slot].set(self.counts[slot].get() + 1);
        Flight(slot)
    }

    /// It has ended.
    #[inline]
    pub(super) fn land(&self, flight: Flight) {
        let count = &self.counts[flight.0];
        count.set(count.get() - 1);
        if self.waiting.get() > 0 && count.get() == 0 {
            self.landed.notify_all();
        }
    }

    /// Whether devices have any command.
    pub(super) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| count.get() == 0)
    }

    /// Waits until everything that is under way now has ended, whatever has started since.
    pub(super) async fn all_landed(&self) {
        let era = self.era.get();
        let count = |era: u64| self.counts[Flights::slot(era)].get();
        self.waiting.set(self.waiting.get() + 1);
        // An era ends only when the one before it is over, so that its number says so of that.
        self.landed.wait_until(|| self.era.get() > era || count(era + 1) == 0).await;
        if self.era.get() == era {
            self.era.set(era + 1);
            self.landed.notify_all();
        }
        self.landed.wait_until(|| self.era.get() > era + 1 || count(era) == 0).await;
        self.waiting.set(self.waiting.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    type Waiting<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

    fn is_ready(waiting: &mut Waiting<'_>) -> bool {
        waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_waiter_waits_for_what_was_under_way_and_for_nothing_later() {
        let flights = Flights::default();
        let first = flights.take_off();
        let mut waiting: Waiting<'_> = Box::pin(flights.all_landed());
        assert!(!is_ready(&mut waiting));
        let later = flights.take_off();
        assert!(!is_ready(&mut waiting));
        flights.land(first);
        assert!(is_ready(&mut waiting));
        assert!(!flights.is_empty());
        flights.land(later);
        assert!(flights.is_empty());
    }

    #[test]
    fn waiters_end_in_turn_under_a_load_that_never_pauses() {
        let flights = Flights::default();
        let mut under_way = std::collections::VecDeque::from([flights.take_off()]);
        let mut waiters: Vec<(usize, Waiting<'_>)> = Vec::new();
        let (mut started, mut ended, mut done) = (1, 0, 0);
        for round in 0..400 {
            if round < 200 && round % 3 == 0 {
                waiters.push((started, Box::pin(flights.all_landed())));
            }
            // Whoever is looked at last finds that the era has been ended by another.
            waiters.reverse();
            waiters.retain_mut(|(needs, waiting)| {
                let ready = is_ready(waiting);
                assert!(!ready || ended >= *needs, "commands of the moment have ended");
                done += usize::from(ready);
                !ready
            });
            under_way.push_back(flights.take_off());
            started += 1;
            if under_way.len() > 4 {
                flights.land(under_way.pop_front().expect("there are five"));
                ended += 1;
            }
        }
        assert_eq!((waiters.len(), done), (0, 67));
    }
}
