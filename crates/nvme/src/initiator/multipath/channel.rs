//! One reactor's way to a namespace: the lanes of all its paths, and the choice between them.

use bdev::{Channel, Done, Io, Op, Status};
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::{Group, Unflushed};
use crate::initiator::compound;
use crate::initiator::device::Owner;
use crate::initiator::driver::start_lane;
use crate::initiator::lane::{Lane, LanePolicy, Returned, Ticket};
use crate::initiator::options::Replay;
use crate::initiator::request::{History, Why};
use crate::initiator::shared::{Phase, Shared};
use crate::initiator::status::{is_absent, retry_pause_ns};
use crate::initiator::zones::report_zones;
use crate::spec::ana::AnaState;

/// How often an operation that waits for a path looks around when nothing happens, ns.
const TICK_NS: u64 = 500_000_000;
/// Most data of one operation: what fits a request's offsets.
const DATA_BYTES_MAX: u64 = 1 << 30;

/// See the module.
pub(in crate::initiator) struct NvmfChannel {
    /// Keeps the device.
    _owner: Arc<Owner>,
    way: Rc<Way>,
}

/// The lanes of one path.
struct PathLanes {
    shared: Arc<Shared>,
    lanes: Vec<Rc<Lane>>,
    next: Cell<usize>,
}

impl PathLanes {
    /// A lane that can be used, and how the namespace can be reached through it.
    #[inline]
    fn find(&self) -> Option<(Rc<Lane>, AnaState)> {
        let (count, first) = (self.lanes.len(), self.next.get());
        for index in (first..count).chain(0..first) {
            let lane = &self.lanes[index];
            if let Some(state) = lane.state().filter(|state| state.refusal().is_none()) {
                self.next.set((index + 1) % count);
                return Some((lane.clone(), state));
            }
        }
        None
    }
}

impl Drop for PathLanes {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.retire());
    }
}

/// An operation that some lane has given back, until it has ended.
struct Stray {
    tag: u64,
    number: u64,
    is_aborted: bool,
}

/// What a channel does, kept alive by the operations under way.
pub(in crate::initiator) struct Way {
    reactor: Rc<Reactor>,
    group: Arc<Group>,
    paths: RefCell<Vec<PathLanes>>,
    /// The generation of the group that `paths` is.
    generation: Cell<u64>,
    /// Where the last operation went.
    current: Cell<usize>,
    /// Rung when a lane may have become of use.
    bell: Rc<Notify>,
    strays: RefCell<Vec<Stray>>,
    /// Counts strays.
    strayed: Cell<u64>,
    /// Lanes of paths that were taken out, which may still have requests.
    leaving: RefCell<Vec<(Arc<Shared>, Weak<Lane>)>>,
}

impl NvmfChannel {
    pub(in crate::initiator) fn new(reactor: &Rc<Reactor>, owner: Arc<Owner>) -> NvmfChannel {
        let way = Way {
            reactor: reactor.clone(),
            group: owner.group.clone(),
            paths: RefCell::default(),
            generation: Cell::new(0),
            current: Cell::new(reactor.index()),
            bell: Rc::default(),
            strays: RefCell::default(),
            strayed: Cell::new(0),
            leaving: RefCell::default(),
        };
        way.follow_group();
        NvmfChannel { _owner: owner, way: Rc::new(way) }
    }
}

impl Channel for NvmfChannel {
    #[inline]
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let way = &self.way;
        if let Err(status) = way.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::ZoneReport {
            let zone_blocks = way.group.namespace.info().zoned.map_or(0, |zoned| zoned.zone_blocks);
            return IoFuture::steps(&way.reactor, report_zones(way.clone(), io, zone_blocks));
        }
        if compound::takes_several(&io) {
            let block_size = way.group.namespace.info().block_size;
            return IoFuture::steps(&way.reactor, compound::carry_out(way.clone(), io, block_size));
        }
        if way.flushes_several(&io) {
            return IoFuture::steps(&way.reactor, flush_all(way.clone(), io));
        }
        // When nobody waits any more the reactor does, so that it does not stop before the operation has ended.
        match way.start(io) {
            Ok(ticket) => IoFuture::steps(&way.reactor, finish(way.clone(), ticket)),
            Err(io) => IoFuture::steps(&way.reactor, go_on(way.clone(), Returned::unsent(io))),
        }
    }

    fn abort(&self, tag: u64) {
        self.way.abort(tag);
    }
}

/// Flushes what was written by way of any path.
///
/// A flush is about the commands that its own controller has completed (Base 2.0, section 7.1). The controllers of one subsystem
/// have one cache of a namespace, but targets that export one device each may have caches of their own. A path that was written to
/// and is not of use now is flushed with the first flush after it is again; until then what is in the cache of its target is where
/// the writes of a single path are whose target is not there.
async fn flush_all(way: Rc<Way>, io: Io) -> Done {
    let mut sent = Vec::new();
    for (unflushed, lane) in way.unflushed() {
        unflushed.begin();
        match lane.submit(Io { flags: io.flags, tag: io.tag, ..Io::flush() }, History::default()) {
            Ok(ticket) => sent.push((unflushed, ticket)),
            Err(_) => unflushed.end(false),
        }
    }
    let (mut served, mut first_error) = (0, None);
    for (unflushed, ticket) in sent {
        // What was given back has a path that is of no use any more.
        let ended = ticket.await.ok().map(|done| done.status);
        unflushed.end(ended == Some(Status::Ok));
        served += usize::from(ended.is_some());
        first_error = first_error.or(ended.filter(|status| !status.is_ok()));
    }
    match first_error {
        Some(status) => io.done(status),
        None if served > 0 => io.done(Status::Ok),
        None => go_on(way, Returned::unsent(io)).await,
    }
}

/// Waits for an operation, and sees to it if its path fails. Apart from what follows a failure, which is rare and large.
async fn finish(way: Rc<Way>, ticket: Ticket) -> Done {
    match ticket.await {
        Ok(done) => done,
        Err(returned) => Box::pin(go_on(way, returned)).await,
    }
}

/// Brings an operation to its end that some lane has given back.
async fn go_on(way: Rc<Way>, mut returned: Returned) -> Done {
    let stray = OnList::new(&way, returned.io.tag);
    let (mut refusals, mut refused_since_ns) = (0u8, None);
    loop {
        let Returned { io, why, history, from } = returned;
        // Otherwise a connection that is lost may still carry it out.
        let may_end = history.losses == 0 || !io.op.modifies();
        let mut avoided = None;
        match why {
            Why::Refused { status, crdt } => {
                if is_absent(status) && way.is_gone() {
                    return io.done(Status::Gone);
                }
                // An access state that refuses although its log does not say so would be tried for ever.
                let since_ns = *refused_since_ns.get_or_insert(way.reactor.now_ns());
                let waited_ns = way.reactor.now_ns().saturating_sub(since_ns);
                if way.group.options.fail_fast_ns.is_some_and(|limit_ns| waited_ns >= limit_ns) {
                    return io.done(if status.is_ana_refusal() { Status::Inaccessible } else { Status::Gone });
                }
                refusals = refusals.saturating_add(1);
                avoided = way.leave(from);
                if way.usable_beside(avoided.as_ref()) < usize::from(refusals) {
                    stray.pause(retry_pause_ns(status, refusals, crdt)).await;
                }
            }
            // What was refused before was another attempt.
            Why::Lost => (refusals, refused_since_ns) = (0, None),
        }
        returned = match stray.send(io, history, avoided.as_ref(), may_end).await {
            Ok(ticket) => match ticket.await {
                Ok(done) => return done,
                Err(returned) => returned,
            },
            Err(done) => return done,
        };
    }
}

/// Keeps a stray on the channel's list, so that an abort finds it wherever it is.
struct OnList<'a> {
    way: &'a Rc<Way>,
    number: u64,
}

impl OnList<'_> {
    fn new(way: &Rc<Way>, tag: u64) -> OnList<'_> {
        let number = way.strayed.get() + 1;
        way.strayed.set(number);
        way.strays.borrow_mut().push(Stray { tag, number, is_aborted: false });
        OnList { way, number }
    }

    fn is_aborted(&self) -> bool {
        self.way.strays.borrow().iter().any(|stray| stray.number == self.number && stray.is_aborted)
    }

    /// Waits for so long, or until an abort.
    async fn pause(&self, pause_ns: u64) {
        let until_ns = self.way.reactor.now_ns().saturating_add(pause_ns);
        while !self.is_aborted() {
            let left_ns = until_ns.saturating_sub(self.way.reactor.now_ns());
            if left_ns == 0 {
                return;
            }
            self.way.reactor.timeout(left_ns, self.way.bell.notified()).await;
        }
    }

    /// Gives an operation to a lane, not to one of the `avoided` path where there is another, for as long as it takes until there
    /// is one. An operation that cannot wait any more has ended.
    async fn send(
        &self,
        mut io: Io,
        history: History,
        avoided: Option<&Arc<Shared>>,
        may_end: bool,
    ) -> Result<Ticket, Done> {
        let way = self.way;
        loop {
            if may_end && self.is_aborted() {
                return Err(io.done(Status::Aborted));
            }
            if let Some(lane) = way.choose(avoided) {
                match lane.submit(io, history) {
                    Ok(ticket) => return Ok(ticket),
                    // It was closed between the two.
                    Err(back) => io = back,
                }
            }
            let Some(pause_ns) = way.patience_ns() else { return Err(io.done(way.group.why_useless())) };
            way.reactor.timeout(pause_ns.min(TICK_NS), way.bell.notified()).await;
        }
    }
}

impl Drop for OnList<'_> {
    fn drop(&mut self) {
        self.way.strays.borrow_mut().retain(|stray| stray.number != self.number);
    }
}

impl Way {
    pub(in crate::initiator) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Carries out a block operation that has passed the device's checks.
    pub(in crate::initiator) async fn submit(self: &Rc<Self>, io: Io) -> Done {
        if self.flushes_several(&io) {
            return Box::pin(flush_all(self.clone(), io)).await;
        }
        match self.start(io) {
            Ok(ticket) => finish(self.clone(), ticket).await,
            Err(io) => Box::pin(go_on(self.clone(), Returned::unsent(io))).await,
        }
    }

    #[inline]
    fn check(&self, io: &Io) -> Result<(), Status> {
        let info = self.group.namespace.info();
        info.check(io)?;
        if io.op == Op::Read && io.bufs.iter().any(reactor::Buf::is_shared) {
            return Err(Status::Invalid);
        }
        if io.op == Op::ZoneAppend && io.nblocks > info.max_io_blocks {
            return Err(Status::Invalid);
        }
        if !io.bufs.is_empty() && u64::from(io.nblocks) * u64::from(info.block_size) > DATA_BYTES_MAX {
            return Err(Status::Invalid);
        }
        Ok(())
    }

    /// Whether an operation is a flush that may be for several paths.
    #[inline]
    fn flushes_several(&self, io: &Io) -> bool {
        io.op == Op::Flush && self.paths.borrow().len() > 1 && self.group.namespace.info().volatile_cache
    }

    /// The usable paths that have to be flushed: a lane of each.
    fn unflushed(&self) -> Vec<(Arc<Unflushed>, Rc<Lane>)> {
        if self.generation.get() != self.group.generation() {
            self.follow_group();
        }
        let paths = self.paths.borrow();
        let due = paths.iter().filter(|path| path.shared.unflushed.is_due());
        due.filter_map(|path| Some((path.shared.unflushed.clone(), path.find()?.0))).collect()
    }

    /// Gives an operation to a lane, if there is one.
    #[inline]
    fn start(&self, io: Io) -> Result<Ticket, Io> {
        match self.choose(None) {
            Some(lane) => lane.submit(io, History::default()),
            None => Err(io),
        }
    }

    /// How long an operation may wait for a path from now on, ns; `None` is not at all.
    fn patience_ns(&self) -> Option<u64> {
        let paths = self.group.paths();
        if self.group.namespace.is_closing() || paths.iter().all(|path| matches!(path.phase(), Phase::Closed)) {
            return None;
        }
        // Of a device that was never connected nobody knows when it will be.
        let limit_ns = if self.group.was_up() { self.group.options.fail_fast_ns } else { Some(0) };
        let (Some(limit_ns), Some(since_ns)) = (limit_ns, self.group.useless_since()) else { return Some(u64::MAX) };
        let left_ns = since_ns.saturating_add(limit_ns).saturating_sub(self.reactor.now_ns());
        (left_ns > 0).then_some(left_ns)
    }

    /// Prefers another path than that of lane `number` from now on; returns that, if it is there.
    fn leave(&self, number: u32) -> Option<Arc<Shared>> {
        let paths = self.paths.borrow();
        let has_it = |path: &PathLanes| path.lanes.iter().any(|lane| lane.number() == number);
        let place = paths.iter().position(has_it)?;
        if place == self.current.get() % paths.len() {
            self.current.set(place + 1);
        }
        Some(paths[place].shared.clone())
    }

    /// How many other paths there are.
    fn usable_beside(&self, avoided: Option<&Arc<Shared>>) -> usize {
        let is_other = |path: &&PathLanes| avoided.is_none_or(|avoided| !Arc::ptr_eq(avoided, &path.shared));
        self.paths.borrow().iter().filter(is_other).filter(|path| path.find().is_some()).count()
    }

    /// Whether no path has the namespace, as far as is known.
    fn is_gone(&self) -> bool {
        self.group.namespace.info().blocks == 0 || self.paths.borrow().len() == 1
    }

    /// The lane for the next operation: of the `avoided` path only where there is no other.
    #[inline]
    fn choose(&self, avoided: Option<&Arc<Shared>>) -> Option<Rc<Lane>> {
        if self.generation.get() != self.group.generation() {
            self.follow_group();
        }
        let paths = self.paths.borrow();
        let first = self.current.get();
        let mut best: Option<(u8, usize, Rc<Lane>)> = None;
        for step in 0..paths.len() {
            let place = (first + step) % paths.len();
            let Some((lane, state)) = paths[place].find() else { continue };
            let is_avoided = avoided.is_some_and(|avoided| Arc::ptr_eq(avoided, &paths[place].shared));
            let rank = u8::from(is_avoided) * 2 + u8::from(state != AnaState::Optimized);
            if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                best = Some((rank, place, lane));
            }
            if rank == 0 {
                break;
            }
        }
        let (_, place, lane) = best?;
        self.current.set(place);
        Some(lane)
    }

    /// Has lanes on every path of the device, and on no other.
    fn follow_group(&self) {
        self.generation.set(self.group.generation());
        let wanted = self.group.paths();
        let mut paths = self.paths.borrow_mut();
        let mut leaving = self.leaving.borrow_mut();
        leaving.retain(|(_, lane)| lane.strong_count() > 0);
        paths.retain(|path| {
            let is_wanted = wanted.iter().any(|shared| Arc::ptr_eq(shared, &path.shared));
            if !is_wanted {
                leaving.extend(path.lanes.iter().map(|lane| (path.shared.clone(), Rc::downgrade(lane))));
            }
            is_wanted
        });
        for shared in wanted {
            if !paths.iter().any(|path| Arc::ptr_eq(&shared, &path.shared)) {
                paths.push(self.connect(shared));
            }
        }
    }

    fn connect(&self, shared: Arc<Shared>) -> PathLanes {
        let options = &shared.options;
        let policy = LanePolicy {
            retries_max: options.retries_max,
            replays_max: options.replays_max,
            exclusive: options.replay == Replay::Exclusive,
            ana: options.ana,
            command_timeout_ns: options.command_timeout_ns,
        };
        let lanes = (0..options.queues_per_channel).map(|_| start_lane(&self.reactor, &shared, policy, &self.bell));
        PathLanes { lanes: lanes.collect(), shared, next: Cell::new(0) }
    }

    fn abort(&self, tag: u64) {
        let abort_on = |path: &Shared, lane: &Lane| {
            let cids = lane.abort(tag);
            path.request_aborts(lane.queue(), &cids);
        };
        for path in self.paths.borrow().iter() {
            path.lanes.iter().for_each(|lane| abort_on(&path.shared, lane));
        }
        for (path, lane) in self.leaving.borrow().iter() {
            if let Some(lane) = lane.upgrade() {
                abort_on(path, &lane);
            }
        }
        self.strays.borrow_mut().iter_mut().filter(|stray| stray.tag == tag).for_each(|stray| stray.is_aborted = true);
        self.bell.notify_all();
    }
}
