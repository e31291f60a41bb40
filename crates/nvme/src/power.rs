//! Powers for authentication, computed on a reactor without being in anybody's way.
//!
//! One at a time on each reactor, a piece in each turn: however many queues authenticate, a turn grows by some ten
//! microseconds, and those who have much to compute wait for each other.

use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::Cell;
use std::rc::Rc;
use zeroize::Zeroizing;

use crate::auth::Exponentiation;

/// So many may wait for peers that have not proven anything.
const WAITING_MAX: u32 = 64;

/// The one place in which a power is computed.
#[derive(Default)]
struct Bench {
    is_taken: Cell<bool>,
    waiting: Cell<u32>,
    freed: Notify,
}

/// The place, for as long as it is held.
struct Taken(Rc<Bench>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
        self.0.freed.notify_all();
    }
}

/// A place in the line.
struct Waiting<'a>(&'a Bench);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

/// Whether so many powers wait that those of peers which have not proven anything should come again later.
pub(crate) fn is_busy(reactor: &Rc<Reactor>) -> bool {
    reactor.kept_or(0, Bench::default).waiting.get() >= WAITING_MAX
}

/// Computes a power for as long as somebody wants it; `None` when nobody does any more.
pub(crate) async fn compute(
    reactor: &Rc<Reactor>,
    mut power: Exponentiation,
    is_wanted: impl Fn() -> bool,
) -> Option<Zeroizing<Vec<u8>>> {
    let bench: Rc<Bench> = reactor.kept_or(0, Bench::default);
    bench.waiting.set(bench.waiting.get() + 1);
    let waiting = Waiting(&bench);
    bench.freed.wait_until(|| !bench.is_taken.get()).await;
    drop(waiting);
    if !is_wanted() {
        bench.freed.notify_all();
        return None;
    }
    bench.is_taken.set(true);
    let _taken = Taken(bench);
    while power.turn() {
        reactor.yield_now().await;
        if !is_wanted() {
            return None;
        }
    }
    Some(power.finish())
}
