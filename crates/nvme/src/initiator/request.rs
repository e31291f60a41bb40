//! Requests: what was asked of a lane, from acceptance to completion, over as many commands, attempts and connections as
//! it takes.
//!
//! ```text
//! Free --insert--> Waited --finish--> Finished --take--> Free
//!                    \--abandon--> Orphan --finish--> Free        (buffers stay until the finish)
//! ```

use bdev::{Io, Status};
use std::task::{Context, Poll, Waker};

use crate::spec::{self, Cqe, Sqe};

use super::command::Direction;
use super::fence::Owner;

/// A command that the caller has built: admin and Fabrics commands.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    /// The command; its identifier and data pointer are filled in.
    pub(super) sqe: Sqe,
    /// Which way its data goes; all of the request's buffers take part.
    pub(super) direction: Direction,
    /// It may take for ever (Asynchronous Event Request).
    pub(super) unlimited: bool,
}

/// What became of a block operation on other lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    /// Connections that were lost with it under way.
    pub(super) losses: u8,
    /// Attempts that ended in a status worth another try.
    pub(super) retries: u8,
    /// Its name in the fence, once it has one.
    pub(super) owner: Option<Owner>,
}

/// Why a lane gives back a block operation that it has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The connection has gone, whether or not it was sent.
    Lost,
    /// The controller refused it for the sake of the path.
    Refused {
        /// As what.
        status: spec::Status,
        /// The controller's retry delays, 100 ms.
        crdt: [u16; 3],
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The controller answered a raw command, whatever it said.
    Answer(Cqe),
    /// A block operation ended, or a raw command was lost with its connection.
    Ended(Status),
    /// A block operation is for another lane.
    Returned(Why, History),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Free,
    Waited,
    Orphan,
    Finished,
}

/// One request.
pub(super) struct Request {
    pub(super) io: Io,
    pub(super) raw: Option<Box<Raw>>,
    /// Blocks issued so far of this attempt; `u32::MAX` once a command without blocks was issued.
    pub(super) issued: u32,
    /// Commands under way.
    pub(super) in_flight: u32,
    /// The first error of this attempt, or success.
    pub(super) status: spec::Status,
    /// Result of the last answer.
    pub(super) answer: Cqe,
    /// Attempts that ended in a status worth another try.
    pub(super) retries: u8,
    /// Connections that were lost with this request under way.
    pub(super) losses: u8,
    /// Its name in the fence.
    pub(super) owner: Owner,
    /// Stands in a queue of the lane.
    pub(super) queued: bool,
    /// Not to be issued before this time.
    pub(super) not_before_ns: u64,
    /// Order of acceptance.
    pub(super) sequence: u64,
    life: Life,
    outcome: Outcome,
    waker: Option<Waker>,
}

impl Request {
    /// A connection that is lost may still carry it out: it has not ended before its replay has.
    pub(super) fn is_unsettled(&self) -> bool {
        self.losses > 0 && self.io.op.modifies()
    }

    pub(super) fn history(&self) -> History {
        History { losses: self.losses, retries: self.retries, owner: Some(self.owner) }
    }
}

/// The requests of a lane. Its size is what callers have had under way at most.
#[derive(Default)]
pub(super) struct Requests {
    slots: Vec<Request>,
    free: Vec<u32>,
    sequence: u64,
}

impl Requests {
    #[inline]
    pub(super) fn insert(&mut self, io: Io, raw: Option<Box<Raw>>) -> u32 {
        self.sequence += 1;
        let id = self.free.pop().unwrap_or_else(|| self.grow());
        let request = &mut self.slots[id as usize];
        assert_eq!(request.life, Life::Free);
        request.io = io;
        request.raw = raw;
        request.issued = 0;
        request.in_flight = 0;
        request.status = spec::Status::SUCCESS;
        request.retries = 0;
        request.losses = 0;
        request.queued = false;
        request.not_before_ns = 0;
        request.sequence = self.sequence;
        request.life = Life::Waited;
        id
    }

    fn grow(&mut self) -> u32 {
        self.slots.push(Request {
            io: Io::flush(),
            raw: None,
            issued: 0,
            in_flight: 0,
            status: spec::Status::SUCCESS,
            answer: Cqe::default(),
            retries: 0,
            losses: 0,
            owner: (0, 0),
            queued: false,
            not_before_ns: 0,
            sequence: 0,
            life: Life::Free,
            outcome: Outcome::Ended(Status::Ok),
            waker: None,
        });
        (self.slots.len() - 1) as u32
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Request {
        &self.slots[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Request {
        &mut self.slots[id as usize]
    }

    /// Ends a request: its waiter is woken, or without one its buffers are released now.
    #[inline]
    pub(super) fn finish(&mut self, id: u32, outcome: Outcome) {
        let request = &mut self.slots[id as usize];
        assert_eq!(request.in_flight, 0, "a request ends after its commands");
        request.outcome = outcome;
        match request.life {
            Life::Waited => {
                request.life = Life::Finished;
                if let Some(waker) = request.waker.take() {
                    waker.wake();
                }
            }
            Life::Orphan => drop(self.release(id)),
            Life::Free | Life::Finished => panic!("a request ended twice"),
        }
    }

    /// The outcome and the operation back, once it has ended.
    #[inline]
    pub(super) fn poll(&mut self, id: u32, cx: &mut Context<'_>) -> Poll<(Io, Outcome)> {
        let request = &mut self.slots[id as usize];
        if request.life == Life::Finished {
            let outcome = request.outcome;
            return Poll::Ready((self.release(id), outcome));
        }
        match &mut request.waker {
            Some(old) => old.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// The waiter has gone.
    pub(super) fn abandon(&mut self, id: u32) {
        let request = &mut self.slots[id as usize];
        request.waker = None;
        match request.life {
            Life::Waited => request.life = Life::Orphan,
            Life::Finished => drop(self.release(id)),
            Life::Free | Life::Orphan => panic!("a request has one waiter"),
        }
    }

    fn release(&mut self, id: u32) -> Io {
        let request = &mut self.slots[id as usize];
        request.life = Life::Free;
        request.raw = None;
        self.free.push(id);
        std::mem::replace(&mut request.io, Io::flush())
    }

    /// Ends what was given back and not taken yet, if it carries `tag` and `may_end`.
    pub(super) fn end_returned(&mut self, tag: u64, may_end: impl Fn(&Request) -> bool) {
        let is_returned = |request: &Request| {
            request.life == Life::Finished && matches!(request.outcome, Outcome::Returned(..)) && request.io.tag == tag
        };
        for request in self.slots.iter_mut().filter(|request| is_returned(request) && may_end(request)) {
            request.outcome = Outcome::Ended(Status::Aborted);
        }
    }

    /// Requests that have not ended.
    pub(super) fn active(&self) -> impl Iterator<Item = u32> + '_ {
        let is_active = |id: &u32| matches!(self.slots[*id as usize].life, Life::Waited | Life::Orphan);
        (0..self.slots.len() as u32).filter(is_active)
    }
}
