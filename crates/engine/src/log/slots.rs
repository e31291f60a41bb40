//! Who waits for an append. A slot is taken with the record and given back when its outcome was taken; waiting allocates
//! nothing once the table has grown to the number of appends under way.

use super::{Appended, Log};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

enum Slot {
    Free,
    Waiting(Option<Waker>),
    Done(Appended),
    /// Nobody waits any more; the append goes on.
    Orphan,
}

#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn take(&mut self) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::Free);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Slot::Waiting(None);
        index
    }

    fn give(&mut self, index: u32) -> Slot {
        self.free.push(index);
        std::mem::replace(&mut self.slots[index as usize], Slot::Free)
    }

    /// Notes the outcome; whom to wake.
    pub(super) fn finish(&mut self, index: u32, appended: Appended) -> Option<Waker> {
        match std::mem::replace(&mut self.slots[index as usize], Slot::Done(appended)) {
            Slot::Waiting(waker) => waker,
            Slot::Orphan => {
                self.give(index);
                None
            }
            Slot::Free | Slot::Done(_) => panic!("an append ended twice"),
        }
    }

    fn poll(&mut self, index: u32, cx: &mut Context<'_>) -> Poll<Appended> {
        if let Slot::Waiting(waker) = &mut self.slots[index as usize] {
            match waker {
                Some(old) => old.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match self.give(index) {
            Slot::Done(appended) => Poll::Ready(appended),
            _ => unreachable!("a slot that is waited for is waiting or done"),
        }
    }

    fn abandon(&mut self, index: u32) {
        match self.slots[index as usize] {
            Slot::Waiting(_) => self.slots[index as usize] = Slot::Orphan,
            _ => drop(self.give(index)),
        }
    }
}

pub(super) struct Wait {
    log: Rc<Log>,
    slot: Option<u32>,
}

impl Wait {
    pub(super) fn new(log: Rc<Log>, slot: u32) -> Wait {
        Wait { log, slot: Some(slot) }
    }
}

impl Future for Wait {
    type Output = Appended;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Appended> {
        let slot = self.slot.expect("polled after completion");
        let outcome = self.log.slots.borrow_mut().poll(slot, cx);
        if outcome.is_ready() {
            self.slot = None;
        }
        outcome
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.log.slots.borrow_mut().abandon(slot);
        }
    }
}
