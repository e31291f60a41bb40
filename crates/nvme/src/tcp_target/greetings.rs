//! Handshakes with peers that have proven nothing: what they take of a reactor is bounded, and shared out by address.
//!
//! A hello costs whoever sends it nothing, and this side an exchange of keys. So one piece of a handshake is carried out at a time, and
//! after it the reactor has three times as long for everybody else: handshakes have a quarter of it at most. What has not had its turn
//! stays in its socket. Addresses take turns, and so do the connections of one address: whoever opens a thousand connections makes
//! those wait, and another host for one of them. Handshakes that have begun go on before others of their address begin: what they
//! have cost would be lost if they came too late.

use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::rc::Rc;

/// For so many times as long as a piece took there is no other.
const REST: u64 = 3;
/// What a piece counts for at most: longer ones have lost their core.
const PIECE_MAX_NS: u64 = 5_000_000;
/// Whoever has one address of IPv6 has as many as differ in the rest: bits that tell peers apart.
const PREFIX_V6: u32 = 64;

/// Whose connections share a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Origin(u128);

impl Origin {
    fn of(address: IpAddr) -> Origin {
        match address.to_canonical() {
            IpAddr::V4(address) => Origin(address.to_bits().into()),
            IpAddr::V6(address) => Origin(address.to_bits() >> (128 - PREFIX_V6) << (128 - PREFIX_V6)),
        }
    }
}

/// Who waits, by origin. As many at most as there are connections.
struct Line<T> {
    waiting: BTreeMap<Origin, VecDeque<T>>,
    last: Option<Origin>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line { waiting: BTreeMap::new(), last: None }
    }
}

impl<T> Line<T> {
    fn push(&mut self, origin: Origin, has_begun: bool, one: T) {
        let line = self.waiting.entry(origin).or_default();
        if has_begun { line.push_front(one) } else { line.push_back(one) }
    }

    /// Who is next: the one that has waited longest at the origin after that of the last one.
    fn pop(&mut self) -> Option<T> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.waiting.range((after, Bound::Unbounded)).next().or_else(|| self.waiting.iter().next());
        let origin = *next?.0;
        self.last = Some(origin);
        self.take(origin, |line| line.pop_front())
    }

    /// Does something to the line of an origin, which is forgotten with the last that waits there.
    fn take<R>(&mut self, origin: Origin, take: impl FnOnce(&mut VecDeque<T>) -> Option<R>) -> Option<R> {
        let line = self.waiting.get_mut(&origin)?;
        let taken = take(line);
        if line.is_empty() {
            self.waiting.remove(&origin);
        }
        taken
    }
}

/// Somebody in the line.
#[derive(Default)]
struct Ticket {
    is_called: Cell<bool>,
    called: Notify,
}

/// The handshakes of a reactor.
#[derive(Default)]
pub(super) struct Greetings {
    line: RefCell<Line<Rc<Ticket>>>,
    is_taken: Cell<bool>,
    next_ns: Cell<u64>,
}

/// A place in the line, and then the turn; both end with it.
pub(super) struct Greeting {
    greetings: Rc<Greetings>,
    reactor: Rc<Reactor>,
    origin: Origin,
    ticket: Rc<Ticket>,
    began_ns: Option<u64>,
}

impl Greetings {
    /// Waits until a piece of a handshake with this address, which has begun with another one or begins with it, may be carried
    /// out.
    pub(super) async fn turn(self: Rc<Self>, reactor: Rc<Reactor>, address: IpAddr, has_begun: bool) -> Greeting {
        let (origin, ticket) = (Origin::of(address), Rc::new(Ticket::default()));
        self.line.borrow_mut().push(origin, has_begun, ticket.clone());
        let mut turn = Greeting { greetings: self, reactor, origin, ticket, began_ns: None };
        turn.greetings.call();
        turn.ticket.called.wait_until(|| turn.ticket.is_called.get()).await;
        turn.reactor.sleep_until(turn.greetings.next_ns.get()).await;
        turn.began_ns = Some(turn.reactor.clock_ns());
        turn
    }

    fn call(&self) {
        if !self.is_taken.get()
            && let Some(ticket) = self.line.borrow_mut().pop()
        {
            self.is_taken.set(true);
            ticket.is_called.set(true);
            ticket.called.notify_all();
        }
    }
}

impl Drop for Greeting {
    fn drop(&mut self) {
        if !self.ticket.is_called.get() {
            let is_this = |other: &Rc<Ticket>| Rc::ptr_eq(other, &self.ticket);
            self.greetings
                .line
                .borrow_mut()
                .take(self.origin, |line| line.iter().position(is_this).and_then(|at| line.remove(at)));
            return;
        }
        if let Some(began_ns) = self.began_ns {
            let now_ns = self.reactor.clock_ns();
            let piece_ns = now_ns.saturating_sub(began_ns).min(PIECE_MAX_NS);
            self.greetings.next_ns.set(now_ns + piece_ns * REST);
        }
        self.greetings.is_taken.set(false);
        self.greetings.call();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::linux::{Runtime, RuntimeConfig};
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::{Duration, Instant};

    fn v4(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    #[test]
    fn addresses_take_turns_however_many_connections_each_has() {
        let mut line = Line::default();
        (0..100).for_each(|number| line.push(Origin::of(v4(1)), false, (1, number)));
        assert_eq!(line.pop(), Some((1, 0)));
        line.push(Origin::of(v4(2)), false, (2, 0));
        line.push(Origin::of(v4(3)), false, (3, 0));
        line.push(Origin::of(v4(2)), false, (2, 1));
        // It goes on with what has cost something.
        line.push(Origin::of(v4(2)), true, (2, 2));
        let order: Vec<_> = std::iter::from_fn(|| line.pop()).take(7).collect();
        assert_eq!(order, [(2, 2), (3, 0), (1, 1), (2, 0), (1, 2), (2, 1), (1, 3)]);
        assert_eq!((line.waiting.len(), std::iter::from_fn(|| line.pop()).count()), (1, 96));
        assert!(line.waiting.is_empty(), "an address is forgotten");
    }

    #[test]
    fn a_network_of_ipv6_and_an_address_of_ipv4_in_either_form_are_one_origin() {
        let v6 = |net: u16, host: u16| IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, net, host, 0, 0, 1));
        assert_eq!(Origin::of(v6(1, 2)), Origin::of(v6(1, 3)));
        assert_ne!(Origin::of(v6(1, 2)), Origin::of(v6(2, 2)));
        assert_eq!(Origin::of(Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped().into()), Origin::of(v4(1)));
        assert_ne!(Origin::of(v4(1)), Origin::of(v4(2)));
    }

    #[test]
    fn handshakes_have_a_quarter_of_the_reactor_and_one_that_gives_up_keeps_nobody() {
        const PIECE: Duration = Duration::from_millis(2);
        let runtime = Runtime::start(&RuntimeConfig::default()).expect("a reactor");
        let done = runtime.handles()[0].call_async(|reactor| async move {
            let greetings = Rc::new(Greetings::default());
            let first = greetings.clone().turn(reactor.clone(), v4(9), false).await;
            // One waits in the line and one has been called when they give up.
            let waits = greetings.clone().turn(reactor.clone(), v4(1), false);
            assert!(reactor.timeout(1_000_000, waits).await.is_none());
            assert!(greetings.line.borrow().waiting.is_empty());
            drop(first);
            greetings.next_ns.set(u64::MAX);
            let is_called = greetings.clone().turn(reactor.clone(), v4(1), false);
            assert!(reactor.timeout(1_000_000, is_called).await.is_none());
            greetings.next_ns.set(0);

            let began = Instant::now();
            let pieces = (1..=10u8).map(|number| {
                let (greetings, inner) = (greetings.clone(), reactor.clone());
                reactor.spawn_join(async move {
                    let _turn = greetings.turn(inner, v4(number), false).await;
                    let until = Instant::now() + PIECE;
                    while Instant::now() < until {}
                })
            });
            for piece in pieces.collect::<Vec<_>>() {
                piece.await;
            }
            began.elapsed()
        });
        let took = done.expect("the reactor answers");
        assert!(took >= PIECE * (9 * (REST as u32 + 1) + 1), "{took:?}");
    }
}
