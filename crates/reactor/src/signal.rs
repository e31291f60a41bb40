//! A signal from another process: a descriptor that becomes readable each time it is written to, such as an eventfd.
//!
//! It is watched like a socket. What it counts is not read: each write is an event of its own.

use crate::driver::{ExportedSocket, SocketId};
use crate::reactor::Reactor;
use base::Errno;
use std::future::poll_fn;
use std::rc::Rc;

/// See the module. The descriptor is closed with it.
pub struct Signal {
    reactor: Rc<Reactor>,
    socket: SocketId,
}

impl Signal {
    /// Watches a descriptor that the caller gives up.
    pub fn import(reactor: &Rc<Reactor>, descriptor: ExportedSocket) -> Result<Signal, Errno> {
        let socket = reactor.driver().net_import(descriptor)?;
        reactor.watch_socket(socket);
        Ok(Signal { reactor: reactor.clone(), socket })
    }

    /// Waits until it was given since the last time; the first time at once. An error when it cannot be given any more: the
    /// other end is gone, or what it counts has overflowed.
    pub async fn given(&self) -> Result<(), Errno> {
        poll_fn(|cx| self.reactor.poll_ready(self.socket, true, cx)).await?;
        // It stays readable from then on: waiting for more would never give way.
        if self.reactor.has_ended(self.socket) {
            return Err(Errno::EPIPE);
        }
        self.reactor.found_nothing(self.socket);
        Ok(())
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.reactor.forget_socket(self.socket);
        self.reactor.driver().net_close(self.socket);
    }
}
