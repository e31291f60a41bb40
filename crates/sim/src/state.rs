//! The shared state of a world: nodes, drivers, the event queue, chance and the trace. One `RefCell` holds it; simulated
//! drivers and the world borrow it for the length of one call and never call out while they do.

use crate::disk::Disk;
use crate::faults::{Mutation, NetFaults, ScheduleFaults};
use crate::files::InFlight;
use crate::net::Net;
use crate::pmem::Pmem;
use crate::trace::Trace;
use base::Rng;
use reactor::Event;
use reactor::driver::{FileId, SocketId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A machine of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// Something that happens later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Action {
    /// A part of a file operation takes effect.
    FileApply(u64),
    /// A file operation's completion reaches its reactor.
    FileComplete(u64),
    /// The first segment on its way from this endpoint arrives.
    NetArrive(usize),
    /// A connection request arrives.
    NetSyn(usize),
    /// Tell a socket that it may be ready.
    NetReady { endpoint: usize, readable: bool, writable: bool },
    /// A paused reactor may run again; also a reason to look around.
    Nothing,
}

/// How a node goes down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process dies: its memory is gone, what it gave to the kernel is not.
    Kill,
    /// The machine loses power.
    PowerCut,
}

/// A crash to happen at a write boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrashPoint {
    pub(crate) writes_left: u64,
    pub(crate) crash: Crash,
}

pub(crate) struct Node {
    pub(crate) disks: BTreeMap<String, usize>,
    pub(crate) pmems: BTreeMap<String, usize>,
    /// Counts power-ons, so that connections of an earlier boot are recognised.
    pub(crate) boot: u32,
    pub(crate) powered: bool,
    pub(crate) crash_point: Option<CrashPoint>,
    /// Set at the crash point; the world carries it out after the current turn.
    pub(crate) crash_now: Option<Crash>,
}

/// One simulated driver: the end of the world that one reactor holds.
pub(crate) struct DriverState {
    pub(crate) node: NodeId,
    pub(crate) reactor: usize,
    pub(crate) alive: bool,
    pub(crate) events: Vec<Event>,
    pub(crate) files: BTreeMap<FileId, OpenFile>,
    pub(crate) pmems: BTreeMap<u32, usize>,
    pub(crate) sockets: BTreeMap<SocketId, usize>,
    pub(crate) in_flight: usize,
    pub(crate) paused_until_ns: u64,
    /// It has things that are only polled, and has not slept since.
    pub(crate) awake: bool,
    pub(crate) wake: std::sync::Arc<crate::driver::SimWake>,
}

pub(crate) struct OpenFile {
    pub(crate) disk: usize,
    pub(crate) write: bool,
    pub(crate) direct: bool,
    pub(crate) lock: bool,
}

/// Everything that happens in a world, apart from the reactors themselves.
pub struct State {
    pub(crate) rng: Rng,
    pub(crate) now_ns: u64,
    pub(crate) trace: Trace,
    queue: BinaryHeap<Reverse<(u64, u64, u64, Action)>>,
    queued: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) drivers: Vec<DriverState>,
    pub(crate) disks: Vec<(Disk, crate::faults::DiskFaults)>,
    pub(crate) pmems: Vec<Pmem>,
    pub(crate) ops: BTreeMap<u64, InFlight>,
    pub(crate) stuck: BTreeSet<u64>,
    pub(crate) next_id: u64,
    pub(crate) net: Net,
    pub(crate) net_faults: NetFaults,
    pub(crate) schedule: ScheduleFaults,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) faults_on: bool,
    pub(crate) violations: Vec<String>,
    /// Who looks at the media of which node at its write boundaries.
    pub(crate) watcher: Option<(NodeId, Watcher)>,
}

/// Looks at the media; see [`World::watch_writes`](crate::World::watch_writes).
pub(crate) type Watcher = std::rc::Rc<dyn Fn(&crate::image::Boundary<'_>)>;

impl State {
    pub(crate) fn new(seed: u64) -> State {
        State {
            rng: Rng::new(seed),
            // Not zero, so that nobody takes an absolute time for a duration.
            now_ns: 1_000_000_000,
            trace: Trace::default(),
            queue: BinaryHeap::new(),
            queued: 0,
            nodes: Vec::new(),
            drivers: Vec::new(),
            disks: Vec::new(),
            pmems: Vec::new(),
            ops: BTreeMap::new(),
            stuck: BTreeSet::new(),
            next_id: 1,
            net: Net::default(),
            net_faults: NetFaults::default(),
            schedule: ScheduleFaults::default(),
            mutation: None,
            faults_on: true,
            violations: Vec::new(),
            watcher: None,
        }
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn event(&mut self, template: &'static str, args: [u64; 4]) {
        self.trace.event(self.now_ns, template, args);
    }

    /// Queues an action; actions of one instant happen in seeded order.
    pub(crate) fn at(&mut self, time_ns: u64, action: Action) {
        self.queued += 1;
        let order = self.rng.next_u64();
        self.queue.push(Reverse((time_ns.max(self.now_ns), order, self.queued, action)));
    }

    pub(crate) fn after(&mut self, delay_ns: u64, action: Action) {
        self.at(self.now_ns.saturating_add(delay_ns), action);
    }

    pub(crate) fn next_action_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((time_ns, ..))| *time_ns)
    }

    /// Takes the next action that is due.
    pub(crate) fn take_due(&mut self) -> Option<Action> {
        if self.next_action_ns()? > self.now_ns {
            return None;
        }
        self.queue.pop().map(|Reverse((.., action))| action)
    }

    pub(crate) fn perform(&mut self, action: Action) {
        match action {
            Action::FileApply(op) => self.file_apply(op),
            Action::FileComplete(op) => self.file_complete(op),
            Action::NetArrive(endpoint) => self.net_arrive(endpoint),
            Action::NetSyn(endpoint) => self.net_syn(endpoint),
            Action::NetReady { endpoint, readable, writable } => self.net_ready(endpoint, readable, writable),
            Action::Nothing => {}
        }
    }

    /// A fault with odds of one in `n`, while faults are on.
    pub(crate) fn chance(&mut self, n: u64) -> bool {
        self.faults_on && self.rng.one_in(n)
    }

    pub(crate) fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(crate) fn violation(&mut self, text: String) {
        self.trace.note(self.now_ns, format!("VIOLATION: {text}"));
        self.violations.push(text);
    }

    pub(crate) fn alive(&self, driver: usize) -> bool {
        self.drivers[driver].alive
    }

    /// Counts a write of `node` towards its crash point.
    pub(crate) fn count_write(&mut self, node: NodeId) {
        if let Some((_, watcher)) = self.watcher.as_ref().filter(|(watched, _)| *watched == node) {
            watcher.clone()(&crate::image::Boundary { state: self, node });
        }
        let state = &mut self.nodes[node.0];
        let Some(point) = &mut state.crash_point else { return };
        point.writes_left = point.writes_left.saturating_sub(1);
        if point.writes_left == 0 {
            state.crash_now = Some(point.crash);
            state.crash_point = None;
            self.stop_drivers(node);
        }
    }

    /// From this instant nothing that the node's processes do reaches the world.
    pub(crate) fn stop_drivers(&mut self, node: NodeId) {
        for driver in self.drivers.iter_mut().filter(|driver| driver.node == node) {
            driver.alive = false;
        }
    }

    /// Ends a node: its operations under way happen, in part or not at all, and its memory is gone.
    pub(crate) fn crash(&mut self, node: NodeId, crash: Crash) {
        self.event("node {} goes down, power cut {}", [node.0 as u64, (crash == Crash::PowerCut) as u64, 0, 0]);
        self.stop_drivers(node);
        self.nodes[node.0].crash_point = None;
        self.nodes[node.0].crash_now = None;
        let drivers: BTreeSet<usize> = (0..self.drivers.len()).filter(|d| self.drivers[*d].node == node).collect();
        self.files_crash(&drivers);
        self.net_crash(&drivers, node, crash);
        for driver in &drivers {
            let driver = &mut self.drivers[*driver];
            driver.events.clear();
            driver.files.clear();
            driver.pmems.clear();
            driver.sockets.clear();
            driver.in_flight = 0;
        }
        let disks: Vec<usize> = self.nodes[node.0].disks.values().copied().collect();
        let tear = self.mutated(Mutation::TearInsideUnit);
        for disk in disks {
            self.disks[disk].0.locked_by = None;
            if crash == Crash::PowerCut {
                let loss = crate::disk::CacheLoss::pick(&mut self.rng);
                self.event("disk {} loses its cache in manner {}", [disk as u64, loss as u64, 0, 0]);
                self.disks[disk].0.power_cut(loss, &mut self.rng, tear);
            }
        }
        if crash == Crash::PowerCut {
            let pmems: Vec<usize> = self.nodes[node.0].pmems.values().copied().collect();
            for pmem in pmems {
                self.pmems[pmem].power_cut(crate::disk::CacheLoss::Any, &mut self.rng);
            }
            self.nodes[node.0].powered = false;
        }
    }

    /// Ends every fault: from here on everything must make progress.
    pub(crate) fn heal(&mut self) {
        self.event("faults end", [0; 4]);
        self.faults_on = false;
        for op in std::mem::take(&mut self.stuck) {
            let delay = self.rng.between(1_000, 1_000_000);
            self.after(delay, Action::FileApply(op));
        }
        for (disk, _) in &mut self.disks {
            (disk.read_only, disk.options.space_bytes) = (false, None);
        }
        self.net.partitions.clear();
        for driver in &mut self.drivers {
            driver.paused_until_ns = 0;
        }
    }
}
