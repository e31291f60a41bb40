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

/// The one place in which a power is computed.
#[derive(Default)]
struct Bench {
    is_taken: Cell<bool>,
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

/// Computes a power.
pub(crate) async fn compute(reactor: &Rc<Reactor>, mut power: Exponentiation) -> Zeroizing<Vec<u8>> {
    let bench: Rc<Bench> = reactor.kept_or(0, Bench::default);
    bench.freed.wait_until(|| !bench.is_taken.get()).await;
    bench.is_taken.set(true);
    let _taken = Taken(bench);
    while power.turn() {
        reactor.yield_now().await;
    }
    power.finish()
}
