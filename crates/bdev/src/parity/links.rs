//! One reactor's channels to the members. A member's place may be taken by another device while the parity device is used;
//! channels to the former one stay until this ends, for what is under way on them.

use super::Shared;
use crate::device::Channel;
use crate::flush_line::FlushEar;
use crate::io::{Done, Io, Status};
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

pub(super) struct Inner {
    pub(super) shared: Arc<Shared>,
    pub(super) reactor: Rc<Reactor>,
    links: Vec<OnceCell<Box<Link>>>,
    /// Times that operations were to be given up.
    pub(super) aborts: Cell<u64>,
    pub(super) ear: FlushEar,
}

struct Link {
    /// [`Member::joins`](super::Member::joins) when it was opened.
    joins: u32,
    channel: Rc<dyn Channel>,
    next: OnceCell<Box<Link>>,
}

/// Stands for the channel that could not be opened.
struct NoChannel;

impl Channel for NoChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        IoFuture::ready(io.done(Status::Gone))
    }
}

impl Inner {
    pub(super) fn new(shared: Arc<Shared>, reactor: Rc<Reactor>) -> Rc<Inner> {
        let links = shared.members.iter().map(|_| OnceCell::new()).collect();
        let ear = FlushEar::new(&shared.flushes);
        Rc::new(Inner { shared, reactor, links, aborts: Cell::new(0), ear })
    }

    /// The channel to the device that has a member's place now. Where none can be had the member is as good as broken, and
    /// the first write says so.
    pub(super) fn channel(&self, member: usize) -> &dyn Channel {
        let joins = self.shared.members[member].joins.load(Acquire);
        let mut cell = &self.links[member];
        while let Some(link) = cell.get() {
            if link.joins == joins {
                return &*link.channel;
            }
            cell = &link.next;
        }
        self.open(member, joins, cell)
    }

    #[cold]
    fn open<'a>(&self, member: usize, joins: u32, cell: &'a OnceCell<Box<Link>>) -> &'a dyn Channel {
        let opened = self.shared.members[member].device().map(|device| device.open_channel(&self.reactor));
        let channel = match opened {
            Some(Ok(channel)) => channel,
            Some(Err(error)) => {
                tracing::warn!(parity = self.shared.name, %error, "{} cannot be used", self.shared.member_name(member));
                Rc::new(NoChannel)
            }
            None => Rc::new(NoChannel),
        };
        &*cell.get_or_init(|| Box::new(Link { joins, channel, next: OnceCell::new() })).channel
    }

    /// For every channel that is open.
    pub(super) fn each_channel(&self, each: impl Fn(&dyn Channel)) {
        for cell in &self.links {
            let mut cell = cell;
            while let Some(link) = cell.get() {
                each(&*link.channel);
                cell = &link.next;
            }
        }
    }
}
