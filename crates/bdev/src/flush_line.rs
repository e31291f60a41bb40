//! Whether a flush of a device can be trusted, on all reactors that use it.
//!
//! After a failed flush, Linux may call the pages that it covered clean, so they read well and are never written, and drives
//! may have dropped them: a later flush that succeeds vouches for nothing that was written before. One that was under way
//! beside it doesn't either: the kernel tells one of them of the error, and reactors hear of the ends of their own flushes
//! only, in any order. So nobody is told of a success before it is known how all flushes have ended that were under way, and
//! then with the number of those that have failed: who wrote something when that was smaller has to write it again.

use crate::io::Status;
use reactor::{IoFuture, Reactor};
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Wait before it is looked again whether the others have ended, at first.
const LOOK_NS: u64 = 20_000;
/// Later it is so much of what has been waited for: whoever waits for a device that takes its time is not busy with that.
const LOOK_PART: u64 = 8;
/// And at most this long.
const LOOK_MAX_NS: u64 = 5_000_000;

#[derive(Default)]
struct State {
    begun: u64,
    /// Numbers of those under way.
    under_way: SmallVec<[u64; 8]>,
    failures: u64,
}

/// See the module.
#[derive(Default)]
pub struct FlushLine(Mutex<State>);

/// A flush under way; it leaves the line when it has ended, or its reactor does.
struct Place {
    line: Arc<FlushLine>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.line.state().under_way.retain(|other| *other != self.number);
    }
}

impl FlushLine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> Place {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.push(number);
        Place { line: self.clone(), number }
    }

    /// A flush has ended: the number of the last one that can have been under way beside it.
    fn end(&self, place: Place, succeeded: bool) -> u64 {
        let begun = {
            let mut state = self.state();
            // Before it leaves: who finds it gone must find that it failed.
            state.failures += !succeeded as u64;
            state.begun
        };
        drop(place);
        begun
    }

    /// Whether all flushes up to a number have ended.
    fn have_ended(&self, last: u64) -> bool {
        self.state().under_way.iter().all(|other| *other > last)
    }

    /// Flushes that have failed so far.
    pub fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Runs a flush. When it succeeds: how many have failed, itself and those that were under way beside it included. What
    /// was written since that number was reached is durable. Its failure counts even when nobody waits for it any more.
    pub async fn run(
        self: &Arc<Self>,
        reactor: &Rc<Reactor>,
        flush: impl Future<Output = Result<(), Status>> + 'static,
    ) -> Result<u64, Status> {
        let (line, place) = (self.clone(), self.begin());
        let runs = IoFuture::steps(reactor, async move {
            let ended = flush.await;
            let last = line.end(place, ended.is_ok());
            ended.map(|()| last)
        });
        let last = runs.await?;
        let since_ns = reactor.now_ns();
        while !self.have_ended(last) {
            let waited_ns = reactor.now_ns() - since_ns;
            reactor.sleep_ns((waited_ns / LOOK_PART).clamp(LOOK_NS, LOOK_MAX_NS)).await;
        }
        Ok(self.failures())
    }
}

/// What the user of a channel knows of the failed flushes of its device.
pub struct FlushEar {
    line: Arc<FlushLine>,
    heard: Cell<u64>,
}

impl FlushEar {
    /// Of a user who has written nothing yet.
    pub fn new(line: &Arc<FlushLine>) -> FlushEar {
        FlushEar { line: line.clone(), heard: Cell::new(line.failures()) }
    }

    /// Runs a flush for the user. It fails also when another one has failed since the user flushed last: what the user
    /// wrote may be lost, whoever asked for that one.
    pub async fn flush(
        &self,
        reactor: &Rc<Reactor>,
        flush: impl Future<Output = Result<(), Status>> + 'static,
    ) -> Result<(), Status> {
        // Another one of this user's beside it hears of the same.
        let before = self.heard.get();
        let ended = self.line.run(reactor, flush).await;
        let known = *ended.as_ref().unwrap_or(&self.line.failures());
        self.heard.set(self.heard.get().max(known));
        ended?;
        if before == known { Ok(()) } else { Err(Status::WriteError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::ReactorConfig;
    use reactor::linux::LinuxDriver;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_success_counts_when_all_flushes_beside_it_have_ended_and_knows_of_those_that_failed() {
        let line = Arc::new(FlushLine::default());
        let (first, second) = (line.begin(), line.begin());
        let last = line.end(second, true);
        assert!(!line.have_ended(last), "the first has not");
        let third = line.begin();
        assert_eq!(line.end(first, false), 3);
        assert!(line.have_ended(last), "the third began later");
        assert_eq!(line.failures(), 1);
        line.end(third, true);
        assert_eq!(line.failures(), 1, "for ever");
    }

    #[test]
    fn two_flushes_of_a_user_at_once_both_hear_of_what_failed_and_the_next_one_does_not() {
        let driver = LinuxDriver::new().expect("io_uring is available");
        let reactor = Reactor::new(0, Rc::new(driver), ReactorConfig::default());
        let ear = Rc::new(FlushEar::new(&Arc::default()));
        let flush = |ends: Result<(), Status>, turns: usize| {
            let (ear, reactor) = (ear.clone(), reactor.clone());
            async move {
                let waits = reactor.clone();
                let runs = async move {
                    for _ in 0..turns {
                        waits.yield_now().await;
                    }
                    ends
                };
                ear.flush(&reactor, runs).await
            }
        };
        let [failed, beside] =
            [(Err(Status::WriteError), 3), (Ok(()), 1)].map(|(ends, turns)| reactor.spawn_join(flush(ends, turns)));
        assert_eq!(reactor.block_on(failed), Err(Status::WriteError));
        assert_eq!(reactor.block_on(beside), Err(Status::WriteError), "it vouches for nothing");
        assert_eq!(reactor.block_on(flush(Ok(()), 0)), Ok(()));
    }

    #[test]
    fn a_flush_fails_for_those_beside_it_although_nobody_waits_for_it_any_more() {
        let driver = LinuxDriver::new().expect("io_uring is available");
        let reactor = Reactor::new(0, Rc::new(driver), ReactorConfig::default());
        let line = Arc::new(FlushLine::default());
        let gate = Rc::new(Cell::new(false));
        let waits = {
            let (gate, reactor) = (gate.clone(), reactor.clone());
            async move {
                while !gate.get() {
                    reactor.yield_now().await;
                }
                Err(Status::WriteError)
            }
        };
        let mut cx = Context::from_waker(Waker::noop());
        let mut abandoned = Box::pin(line.run(&reactor, waits));
        assert!(abandoned.as_mut().poll(&mut cx).is_pending());
        drop(abandoned);
        let beside = {
            let (line, reactor) = (line.clone(), reactor.clone());
            async move { line.run(&reactor, async { Ok(()) }).await }
        };
        let mut beside = reactor.spawn_join(beside);
        for _ in 0..10 {
            reactor.turn();
        }
        assert!(!beside.is_finished(), "the other one is under way");
        gate.set(true);
        while !beside.is_finished() {
            reactor.turn();
        }
        assert_eq!(Pin::new(&mut beside).poll(&mut cx), Poll::Ready(Ok(1)));
    }
}
