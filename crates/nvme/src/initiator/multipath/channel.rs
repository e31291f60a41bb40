//! One reactor's way to a namespace: the lanes of all its paths, and the choice between them.

use bdev::{Channel, Done, Io, Op, Status};
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::Group;
use crate::initiator::compound;
use crate::initiator::device::Owner;
use crate::initiator::driver::start_lane;
use crate::initiator::lane::{Lane, LanePolicy, Returned, Ticket};
use crate::initiator::options::Replay;
use crate::initiator::request::{History, Why};
use crate::initiator::shared::{Phase, Shared};
use crate::initiator::status::retry_pause_ns;
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

/// An operation that is on no lane.
struct Waiting {
    tag: u64,
    number: u64,
    /// It can be said to have ended: no lost connection may still carry it out.
    may_end: bool,
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
    waiting: RefCell<Vec<Waiting>>,
    /// Counts operations that have waited.
    waited: Cell<u64>,
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
            waiting: RefCell::default(),
            waited: Cell::new(0),
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

/// Waits for an operation, and sees to it if its path fails. Apart from what follows a failure, which is rare and large.
async fn finish(way: Rc<Way>, ticket: Ticket) -> Done {
    match ticket.await {
        Ok(done) => done,
        Err(returned) => Box::pin(go_on(way, returned)).await,
    }
}

/// Brings an operation to its end that some lane has given back.
async fn go_on(way: Rc<Way>, mut returned: Returned) -> Done {
    let (mut refusals, mut refused_since_ns) = (0u8, None);
    loop {
        let Returned { io, why, history, from } = returned;
        if let Why::Refused(status) = why {
            // An access state that refuses although its log does not say so would be tried for ever.
            let since_ns = *refused_since_ns.get_or_insert(way.reactor.now_ns());
            let waited_ns = way.reactor.now_ns().saturating_sub(since_ns);
            if way.group.options.fail_fast_ns.is_some_and(|limit_ns| waited_ns >= limit_ns) {
                return io.done(Status::Gone);
            }
            refusals = refusals.saturating_add(1);
            if way.leave(from) < usize::from(refusals) {
                way.reactor.sleep_ns(retry_pause_ns(status, refusals, [0; 3])).await;
            }
        }
        returned = match way.send(io, history).await {
            Ok(ticket) => match ticket.await {
                Ok(done) => return done,
                Err(returned) => returned,
            },
            Err(done) => return done,
        };
    }
}

impl Way {
    pub(in crate::initiator) fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    /// Carries out a block operation that has passed the device's checks.
    pub(in crate::initiator) async fn submit(self: &Rc<Self>, io: Io) -> Done {
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

    /// Gives an operation to a lane, if there is one.
    #[inline]
    fn start(&self, io: Io) -> Result<Ticket, Io> {
        match self.choose() {
            Some(lane) => lane.submit(io, History::default()),
            None => Err(io),
        }
    }

    /// As [`start`](Self::start) for as long as it takes until there is one. An operation that cannot wait any more has ended.
    async fn send(self: &Rc<Self>, mut io: Io, history: History) -> Result<Ticket, Done> {
        let may_end = history.losses == 0 || !io.op.modifies();
        let number = self.waited.get() + 1;
        self.waited.set(number);
        self.waiting.borrow_mut().push(Waiting { tag: io.tag, number, may_end });
        let ended = loop {
            let is_aborted = !self.waiting.borrow().iter().any(|waiting| waiting.number == number);
            if is_aborted {
                break Status::Aborted;
            }
            if let Some(lane) = self.choose() {
                match lane.submit(io, history) {
                    Ok(ticket) => {
                        self.waiting.borrow_mut().retain(|waiting| waiting.number != number);
                        return Ok(ticket);
                    }
                    // It was closed between the two.
                    Err(back) => io = back,
                }
            }
            let Some(pause_ns) = self.patience_ns() else { break Status::Gone };
            self.reactor.timeout(pause_ns.min(TICK_NS), self.bell.notified()).await;
        };
        self.waiting.borrow_mut().retain(|waiting| waiting.number != number);
        Err(io.done(ended))
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

    /// Prefers another path than that of lane `number` from now on; returns how many there are now.
    fn leave(&self, number: u32) -> usize {
        let paths = self.paths.borrow();
        let has_it = |path: &PathLanes| path.lanes.iter().any(|lane| lane.number() == number);
        let current = self.current.get() % paths.len().max(1);
        if paths.get(current).is_some_and(has_it) {
            self.current.set(current + 1);
        }
        paths.iter().filter(|path| !has_it(path) && path.find().is_some()).count()
    }

    /// The lane for the next operation.
    #[inline]
    fn choose(&self) -> Option<Rc<Lane>> {
        if self.generation.get() != self.group.generation() {
            self.follow_group();
        }
        let paths = self.paths.borrow();
        let first = self.current.get();
        let mut best: Option<(usize, Rc<Lane>)> = None;
        for step in 0..paths.len() {
            let place = (first + step) % paths.len();
            match paths[place].find() {
                Some((lane, AnaState::Optimized)) => {
                    best = Some((place, lane));
                    break;
                }
                Some((lane, _)) if best.is_none() => best = Some((place, lane)),
                _ => {}
            }
        }
        let (place, lane) = best?;
        self.current.set(place);
        Some(lane)
    }

    /// Has lanes on every path of the device, and on no other.
    fn follow_group(&self) {
        self.generation.set(self.group.generation());
        let wanted = self.group.paths();
        let mut paths = self.paths.borrow_mut();
        paths.retain(|path| wanted.iter().any(|shared| Arc::ptr_eq(shared, &path.shared)));
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
        for path in self.paths.borrow().iter() {
            for lane in &path.lanes {
                let cids = lane.abort(tag);
                path.shared.request_aborts(lane.queue(), &cids);
            }
        }
        self.waiting.borrow_mut().retain(|waiting| waiting.tag != tag || !waiting.may_end);
        self.bell.notify_all();
    }
}
