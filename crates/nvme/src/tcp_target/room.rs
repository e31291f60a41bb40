//! Commands of a connection that wait until it may hold more buffer bytes: first come, first served, one woken at a time.
//!
//! A command waits for its share of the connection first, in line; with its share it waits for memory of the pool. Either
//! wait ends early when the host aborts the command or the connection ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::{Context, Waker};

struct Waiter {
    ticket: u64,
    cid: u16,
    given_up: bool,
    waker: Option<Waker>,
}

/// See the module. Both lists are in the order of their tickets.
#[derive(Default)]
pub(super) struct Room {
    line: RefCell<VecDeque<Waiter>>,
    at_pool: RefCell<VecDeque<Waiter>>,
    next: Cell<u64>,
}

impl Room {
    /// Whether somebody waits for a share: nobody overtakes.
    #[inline]
    pub(super) fn has_line(&self) -> bool {
        !self.line.borrow().is_empty()
    }

    /// Joins the end of the line.
    pub(super) fn enter(&self, cid: u16) -> Place<'_> {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.line.borrow_mut().push_back(Waiter { ticket, cid, given_up: false, waker: None });
        Place { room: self, ticket }
    }

    /// There may be room for the first in line.
    #[inline]
    pub(super) fn wake_first(&self) {
        if let Some(first) = self.line.borrow_mut().front_mut()
            && let Some(waker) = first.waker.take()
        {
            waker.wake();
        }
    }

    /// Nobody needs to wait any more.
    pub(super) fn wake_all(&self) {
        for list in [&self.line, &self.at_pool] {
            list.borrow_mut().iter_mut().filter_map(|waiter| waiter.waker.take()).for_each(Waker::wake);
        }
    }

    /// Command `cid` shall wait no longer; false when it does not wait.
    pub(super) fn give_up(&self, cid: u16) -> bool {
        for list in [&self.line, &self.at_pool] {
            if let Some(waiter) = list.borrow_mut().iter_mut().find(|waiter| waiter.cid == cid && !waiter.given_up) {
                waiter.given_up = true;
                waiter.waker.take().into_iter().for_each(Waker::wake);
                return true;
            }
        }
        false
    }
}

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is first in line, or waits for the pool.
    Now,
    /// Others are before it.
    Later,
    /// The host aborted it.
    GivenUp,
}

/// A place in the line, or at the pool. Dropping it leaves.
pub(super) struct Place<'a> {
    room: &'a Room,
    ticket: u64,
}

impl Place<'_> {
    /// How it stands; the task is woken when that may have changed.
    pub(super) fn turn(&self, cx: &mut Context<'_>) -> Turn {
        for (list, in_line) in [(&self.room.line, true), (&self.room.at_pool, false)] {
            let mut list = list.borrow_mut();
            let Ok(index) = list.binary_search_by_key(&self.ticket, |waiter| waiter.ticket) else { continue };
            let waiter = &mut list[index];
            waiter.waker = Some(cx.waker().clone());
            return match waiter.given_up {
                true => Turn::GivenUp,
                false if in_line && index > 0 => Turn::Later,
                false => Turn::Now,
            };
        }
        unreachable!("a place is in one of the lists until it is dropped")
    }

    /// Has its share: the next in line may look whether there is room for it.
    pub(super) fn pass(&self) {
        let mut line = self.room.line.borrow_mut();
        let index = line.binary_search_by_key(&self.ticket, |waiter| waiter.ticket).expect("it was in line");
        let waiter = line.remove(index).expect("it was found");
        drop(line);
        let mut at_pool = self.room.at_pool.borrow_mut();
        let index = at_pool.partition_point(|other| other.ticket < self.ticket);
        at_pool.insert(index, waiter);
        drop(at_pool);
        self.room.wake_first();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        for list in [&self.room.line, &self.room.at_pool] {
            let mut list = list.borrow_mut();
            if let Ok(index) = list.binary_search_by_key(&self.ticket, |waiter| waiter.ticket) {
                list.remove(index);
            }
        }
        self.room.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn room_wakes_one_waiter_at_a_time_in_order() {
        let room = Room::default();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let mut places: VecDeque<_> = (0..1000).map(|cid| room.enter(cid)).collect();
        for (index, place) in places.iter().enumerate() {
            assert_eq!(place.turn(&mut cx), if index == 0 { Turn::Now } else { Turn::Later });
        }
        while let Some(place) = places.pop_front() {
            assert_eq!(place.turn(&mut cx), Turn::Now);
            place.pass();
            assert_eq!(place.turn(&mut cx), Turn::Now, "at the pool");
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 999, "each but the first was woken once");
        assert!(!room.has_line());
    }

    #[test]
    fn an_aborted_command_leaves_and_lets_the_next_through() {
        let room = Room::default();
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let (first, second, third) = (room.enter(1), room.enter(2), room.enter(3));
        let turns = [&first, &second, &third].map(|place| place.turn(&mut cx));
        assert_eq!(turns, [Turn::Now, Turn::Later, Turn::Later]);
        first.pass();
        assert!(room.give_up(2) && room.give_up(1) && !room.give_up(2) && !room.give_up(9));
        assert_eq!((first.turn(&mut cx), second.turn(&mut cx)), (Turn::GivenUp, Turn::GivenUp));
        drop((first, second));
        assert_eq!(third.turn(&mut cx), Turn::Now);
        let before = count.0.load(Ordering::Relaxed);
        room.wake_all();
        assert_eq!(count.0.load(Ordering::Relaxed), before + 1);
    }
}
