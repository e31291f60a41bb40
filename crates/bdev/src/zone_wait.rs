//! Waiting for zones: what devices that keep states of zones behind one lock have in common.

use smallvec::SmallVec;
use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::{Poll, Waker};

/// States that others wait for. Nobody is woken before their lock is let go.
pub(crate) trait Wakes {
    /// Wakers in some list.
    type Woken: IntoIterator<Item = Waker>;
    /// Those to be woken, once.
    fn take_woken(&mut self) -> Self::Woken;
}

/// Looks at the states of zones, or changes them; then wakes who waited for that.
pub(crate) fn with<S: Wakes, R>(states: &Mutex<S>, act: impl FnOnce(&mut S) -> R) -> R {
    let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
    let result = act(&mut states);
    let woken = states.take_woken();
    drop(states);
    woken.into_iter().for_each(Waker::wake);
    result
}

/// Who waits for which zone.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<(usize, Waker)>,
    /// To be woken when the lock is let go.
    woken: SmallVec<[Waker; 4]>,
}

impl Waiters {
    pub(crate) fn wait(&mut self, zone: usize, waker: &Waker) {
        self.waiting.push((zone, waker.clone()));
    }

    pub(crate) fn wake(&mut self, zone: usize) {
        let mut index = 0;
        while index < self.waiting.len() {
            if self.waiting[index].0 == zone {
                self.woken.push(self.waiting.swap_remove(index).1);
            } else {
                index += 1;
            }
        }
    }

    pub(crate) fn take_woken(&mut self) -> SmallVec<[Waker; 4]> {
        std::mem::take(&mut self.woken)
    }
}

/// States of zones that somebody can have for himself.
pub(crate) trait Holds: Wakes {
    /// Takes the right to change a zone: nobody else does, and no write of it begins.
    fn poll_hold(&mut self, zone: usize, waker: &Waker) -> Poll<()>;
    /// Waits until no write of a zone is under way.
    fn poll_quiet(&mut self, zone: usize, waker: &Waker) -> Poll<()>;
    /// Gives the right back.
    fn release(&mut self, zone: usize);
}

/// Zones that nobody else changes, and that nobody writes; let go on drop.
pub(crate) struct Held<'a, S: Holds> {
    states: &'a Mutex<S>,
    pub(crate) zones: SmallVec<[usize; 4]>,
}

impl<S: Holds> Drop for Held<'_, S> {
    fn drop(&mut self) {
        with(self.states, |states| self.zones.iter().for_each(|zone| states.release(*zone)));
    }
}

impl<'a, S: Holds> Held<'a, S> {
    /// In ascending order, so that two who want the same zones do not wait for each other.
    pub(crate) async fn take(states: &'a Mutex<S>, zones: impl IntoIterator<Item = usize>) -> Held<'a, S> {
        let mut held = Held { states, zones: SmallVec::new() };
        for zone in zones {
            poll_fn(|cx| with(states, |states| states.poll_hold(zone, cx.waker()))).await;
            held.zones.push(zone);
            poll_fn(|cx| with(states, |states| states.poll_quiet(zone, cx.waker()))).await;
        }
        held
    }
}
