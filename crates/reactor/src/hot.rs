//! The hot socket: the one that a spinning reactor expects the next bytes from.
//!
//! ```text
//! Cold --polls in a row that found its readiness alone--> Hot --the driver has news for an idle reactor--> Trying
//! Trying --bytes--> Hot, and the driver is polled in the next turn         Trying --nothing--> Cold
//! ```
//! A request that comes alone makes its host wait for a poll that enters the kernel only to learn which socket it is. When it
//! can be one socket only, its reader is woken at once, and the driver is asked afterwards, while the host works on the
//! answer. Never twice in a row, so nothing else waits for longer than a turn.

use crate::driver::{Event, SocketId};
use std::cell::Cell;

/// Polls in a row that make a socket hot. Many, since a try in vain costs more than a good one gains: with requests from
/// several connections in turn there is none.
const STREAK: u32 = 16;

#[derive(Default)]
pub(crate) struct Hot {
    /// The socket that the last polls found.
    socket: Cell<Option<SocketId>>,
    /// How many of them, in a row, found nothing else.
    streak: Cell<u32>,
    /// This turn tries it instead of polling.
    trying: Cell<bool>,
}

impl Hot {
    /// What a poll found.
    #[inline]
    pub(crate) fn polled(&self, events: &[Event]) {
        self.trying.set(false);
        match events {
            [] => {}
            [Event::Socket { socket, readable: true, .. }] => {
                let before = if self.socket.get() == Some(*socket) { self.streak.get() } else { 0 };
                self.socket.set(Some(*socket));
                self.streak.set((before + 1).min(STREAK));
            }
            _ => self.streak.set(0),
        }
    }

    /// The socket to try instead of a poll, if the last turn was one.
    #[inline]
    pub(crate) fn candidate(&self) -> Option<SocketId> {
        if self.trying.get() || self.streak.get() < STREAK { None } else { self.socket.get() }
    }

    /// Its reader has been woken.
    pub(crate) fn tried(&self) {
        self.trying.set(true);
    }

    /// A receive from `socket` found nothing.
    #[inline]
    pub(crate) fn found_nothing(&self, socket: SocketId) {
        if self.trying.get() && self.socket.get() == Some(socket) {
            self.streak.set(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(socket: u64) -> Event {
        Event::Socket { socket: SocketId(socket), readable: true, writable: false, ended: false }
    }

    fn hot(socket: u64) -> Hot {
        let hot = Hot::default();
        (0..STREAK).for_each(|_| hot.polled(&[readable(socket)]));
        hot
    }

    #[test]
    fn only_a_socket_that_was_alone_for_long_is_tried() {
        let hot = Hot::default();
        assert_eq!(hot.candidate(), None);
        for round in 0..2 * STREAK {
            hot.polled(&[readable(u64::from(round % 2))]);
            assert_eq!(hot.candidate(), None, "two sockets in turn");
        }
        for _ in 1..STREAK {
            hot.polled(&[]);
            hot.polled(&[readable(7)]);
            assert_eq!(hot.candidate(), None);
        }
        hot.polled(&[readable(7)]);
        assert_eq!(hot.candidate(), Some(SocketId(7)));
        hot.polled(&[readable(7), readable(8)]);
        assert_eq!(hot.candidate(), None);
    }

    #[test]
    fn a_poll_comes_between_two_tries() {
        let hot = hot(1);
        hot.tried();
        assert_eq!(hot.candidate(), None);
        hot.polled(&[]);
        assert_eq!(hot.candidate(), Some(SocketId(1)));
    }

    #[test]
    fn a_try_in_vain_is_the_last_and_an_event_for_what_a_try_took_is_none() {
        let hot = hot(1);
        hot.found_nothing(SocketId(1));
        assert_eq!(hot.candidate(), Some(SocketId(1)));
        hot.tried();
        hot.found_nothing(SocketId(2));
        hot.polled(&[]);
        assert_eq!(hot.candidate(), Some(SocketId(1)));
        hot.tried();
        hot.found_nothing(SocketId(1));
        hot.polled(&[]);
        assert_eq!(hot.candidate(), None);
    }
}
