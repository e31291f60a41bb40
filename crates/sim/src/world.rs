//! [`World`]: machines, their reactors and virtual time, all on one thread and all decided by one seed.
//!
//! A step lets what is due happen, gives one runnable reactor a turn, and moves time; when nothing is runnable, time jumps
//! to the next event or timer. When there is none either, the world is idle, and whoever still waits is stuck.

use crate::disk::{Disk, DiskOptions};
use crate::driver::{SimDriver, SimWake};
use crate::faults::{DiskFaults, Mutation, NetFaults, ScheduleFaults};
use crate::image::{Boundary, Image};
use crate::state::{Crash, CrashPoint, DriverState, Node, NodeId, State};
use base::Rng;
use reactor::{MeshBuilder, PollPolicy, PoolConfig, Reactor, ReactorConfig};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};

/// Steps that one wait may take: a bound on livelock.
const STEPS_MAX: u64 = 5_000_000;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What went wrong, readable.
    pub reason: String,
}

impl Failure {
    /// A failure for this reason.
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Failure {}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A reactor had a turn, or time moved.
    Moved,
    /// A node went down at its crash point.
    Crashed(NodeId),
    /// Nothing can happen any more.
    Idle,
}

struct Running {
    node: NodeId,
    driver: usize,
    reactor: Rc<Reactor>,
}

/// A part of a world that tasks may hold: the clock, chance, the trace and who is alive.
#[derive(Clone)]
pub struct Handle(Rc<RefCell<State>>);

impl Handle {
    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    /// Whether the node's process runs. After a crash point the rest of the turn still executes, without any effect; a
    /// task must not tell an oracle that something is durable unless its process is alive.
    pub fn alive(&self, node: NodeId) -> bool {
        self.0.borrow().drivers.iter().any(|driver| driver.node == node && driver.alive)
    }

    /// Of each zone with a pointer of the drive at `path`, whether it is empty.
    pub fn empty_zones(&self, node: NodeId, path: &str) -> Vec<bool> {
        let state = self.0.borrow();
        state.disks[state.nodes[node.0].disks[path]].0.empty_zones()
    }

    /// The drive at `path` cannot write a zone any more, of those with a pointer, or not even read it.
    pub fn retire_zone(&self, node: NodeId, path: &str, zone: u64, offline: bool) {
        let mut state = self.0.borrow_mut();
        let disk = state.nodes[node.0].disks[path];
        state.event("zone {} of disk {} is retired", [zone, disk as u64, 0, 0]);
        state.disks[disk].0.retire_zone(zone, offline);
    }

    /// Bytes that the node's process, if it runs, has written to a disk: those that have reached it, by writes that did not fail.
    pub fn written(&self, node: NodeId, path: &str) -> u64 {
        let state = self.0.borrow();
        let Some(disk) = state.nodes[node.0].disks.get(path) else { return 0 };
        let drivers = state.drivers.iter().enumerate();
        let drivers = drivers.filter(|(_, driver)| driver.node == node && driver.alive);
        drivers.filter_map(|(number, _)| state.disks[*disk].0.written.get(&number)).sum()
    }

    /// Flushes of a disk that have failed since the world began.
    pub fn failed_flushes(&self, node: NodeId, path: &str) -> u64 {
        let state = self.0.borrow();
        state.disks[state.nodes[node.0].disks[path]].0.failed_flushes
    }

    /// An independent generator.
    pub fn rng(&self) -> Rng {
        self.0.borrow_mut().rng.fork()
    }

    /// Adds a line to the trace.
    pub fn note(&self, text: impl Into<String>) {
        let state = &mut *self.0.borrow_mut();
        let now_ns = state.now_ns;
        state.trace.note(now_ns, text.into());
    }

    /// Adds an event to the trace, cheaper than a note.
    pub fn event(&self, template: &'static str, args: [u64; 4]) {
        self.0.borrow_mut().event(template, args);
    }

    /// Records that something is wrong; the run fails.
    pub fn violation(&self, text: impl Into<String>) {
        self.0.borrow_mut().violation(text.into());
    }

    /// Records a violation unless `holds`.
    pub fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violation(text());
        }
    }

    /// The mutation under test, if any.
    pub fn mutation(&self) -> Option<Mutation> {
        self.0.borrow().mutation
    }

    /// The trace hash so far.
    pub fn hash(&self) -> u64 {
        self.0.borrow().trace.hash()
    }

    /// The last lines of the trace.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        self.0.borrow().trace.tail(lines)
    }
}

/// A simulated world; see the module.
pub struct World {
    state: Rc<RefCell<State>>,
    running: Vec<Running>,
    /// Reactors of processes that ended.
    dead: Vec<Weak<Reactor>>,
    /// Scratch of `choose`.
    runnable: Vec<usize>,
    steps: u64,
    begun_ns: u64,
}

impl World {
    /// An empty world whose whole course is fixed by `seed`.
    pub fn new(seed: u64) -> World {
        let state = State::new(seed);
        let begun_ns = state.now_ns;
        World {
            state: Rc::new(RefCell::new(state)),
            running: Vec::new(),
            dead: Vec::new(),
            runnable: Vec::new(),
            steps: 0,
            begun_ns,
        }
    }

    /// What tasks and oracles may hold.
    pub fn handle(&self) -> Handle {
        Handle(self.state.clone())
    }

    // --- setting up -------------------------------------------------------------------------------------------------

    /// The liberties of the schedule.
    pub fn set_schedule(&mut self, schedule: ScheduleFaults) {
        self.state.borrow_mut().schedule = schedule;
    }

    /// The faults of the network.
    pub fn set_net_faults(&mut self, faults: NetFaults) {
        self.state.borrow_mut().net_faults = faults;
    }

    /// Breaks the simulated hardware on purpose.
    pub fn set_mutation(&mut self, mutation: Option<Mutation>) {
        self.state.borrow_mut().mutation = mutation;
    }

    /// Another machine, powered on, running nothing yet.
    pub fn add_node(&mut self) -> NodeId {
        let state = &mut *self.state.borrow_mut();
        state.nodes.push(Node {
            disks: BTreeMap::new(),
            pmems: BTreeMap::new(),
            boot: 0,
            powered: true,
            crash_point: None,
            crash_now: None,
        });
        NodeId(state.nodes.len() - 1)
    }

    /// A disk or file of `node` under `path`.
    pub fn add_disk(&mut self, node: NodeId, path: &str, options: DiskOptions, faults: DiskFaults) {
        self.state.borrow_mut().add_disk(node, path, options, faults);
    }

    /// Replaces the faults of a disk.
    pub fn set_disk_faults(&mut self, node: NodeId, path: &str, faults: DiskFaults) {
        let disk = self.disk_index(node, path);
        self.state.borrow_mut().disks[disk].1 = faults;
    }

    /// Makes a disk refuse writes, or accept them again.
    pub fn set_read_only(&mut self, node: NodeId, path: &str, read_only: bool) {
        let disk = self.disk_index(node, path);
        self.state.borrow_mut().disks[disk].0.read_only = read_only;
    }

    /// Limits what can be allocated on a disk, until the faults end; see [`DiskOptions::space_bytes`].
    pub fn set_space(&mut self, node: NodeId, path: &str, bytes: u64) {
        let disk = self.disk_index(node, path);
        self.state.borrow_mut().disks[disk].0.options.space_bytes = Some(bytes);
    }

    /// Looks at a disk from outside.
    pub fn with_disk<T>(&self, node: NodeId, path: &str, look: impl FnOnce(&Disk) -> T) -> T {
        look(&self.state.borrow().disks[self.disk_index(node, path)].0)
    }

    fn disk_index(&self, node: NodeId, path: &str) -> usize {
        let state = self.state.borrow();
        let disk = state.nodes[node.0].disks.get(path);
        *disk.unwrap_or_else(|| panic!("node {} has no disk {path}", node.0))
    }

    /// A reactor configuration for simulated nodes: little memory, no spinning.
    pub fn reactor_config() -> ReactorConfig {
        let pool = PoolConfig { bytes_max: 16 << 20 };
        ReactorConfig { policy: PollPolicy::Sleep, pool, ..ReactorConfig::default() }
    }

    /// Starts a process of `reactors` reactors on `node`, powering it on if needed.
    pub fn boot(&mut self, node: NodeId, reactors: usize, config: ReactorConfig) {
        assert!(self.running.iter().all(|running| running.node != node), "node {} is running", node.0);
        let mesh = MeshBuilder::new(reactors);
        let first = self.running.len();
        for index in 0..reactors {
            let driver = {
                let state = &mut *self.state.borrow_mut();
                state.nodes[node.0].powered = true;
                state.drivers.push(DriverState {
                    node,
                    reactor: index,
                    alive: true,
                    events: Vec::new(),
                    files: BTreeMap::new(),
                    pmems: BTreeMap::new(),
                    sockets: BTreeMap::new(),
                    in_flight: 0,
                    paused_until_ns: 0,
                    awake: false,
                    wake: Default::default(),
                });
                state.drivers.len() - 1
            };
            let sim = Rc::new(SimDriver { state: self.state.clone(), index: driver });
            self.running.push(Running { node, driver, reactor: Reactor::new(index, sim, config.clone()) });
        }
        let handles: Vec<_> = self.running[first..].iter().map(|running| running.reactor.handle()).collect();
        for running in &self.running[first..] {
            running.reactor.join_mesh(&mesh, handles.clone());
        }
        self.state.borrow_mut().event("node {} boots with {} reactors", [node.0 as u64, reactors as u64, 0, 0]);
    }

    /// A reactor of a running node.
    pub fn reactor(&self, node: NodeId, index: usize) -> Rc<Reactor> {
        let mut reactors = self.running.iter().filter(|running| running.node == node);
        let found = reactors.nth(index);
        found.unwrap_or_else(|| panic!("node {} has no running reactor {index}", node.0)).reactor.clone()
    }

    /// Starts a task.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &self,
        node: NodeId,
        index: usize,
        make: impl FnOnce(Rc<Reactor>) -> F,
    ) {
        let reactor = self.reactor(node, index);
        reactor.spawn(make(reactor.clone()));
    }

    /// The node's address on the simulated network.
    pub fn address(node: NodeId, port: u16) -> SocketAddr {
        SocketAddr::new(crate::net::address_of(node), port)
    }

    /// The node's IP address on the simulated network.
    pub fn ip(node: NodeId) -> IpAddr {
        crate::net::address_of(node)
    }

    // --- images -----------------------------------------------------------------------------------------------------

    /// Calls `look` whenever a write, discard, flush, store or fence of the node's processes has taken effect. It may look
    /// at the media and at nothing else of this world.
    pub fn watch_writes(&mut self, node: NodeId, look: impl Fn(&Boundary<'_>) + 'static) {
        self.state.borrow_mut().watcher = Some((node, Rc::new(look)));
    }

    /// Gives `node` the media of an image.
    pub fn add_image(&mut self, node: NodeId, image: &Image) {
        self.state.borrow_mut().add_image(node, image);
    }

    // --- crashes and faults -----------------------------------------------------------------------------------------

    /// Crashes `node` after so many more writes, discards, flushes, stores or fences of its processes took effect.
    pub fn crash_after_writes(&mut self, node: NodeId, writes: u64, crash: Crash) {
        self.state.borrow_mut().nodes[node.0].crash_point = Some(CrashPoint { writes_left: writes.max(1), crash });
    }

    /// Takes back a crash that has not come yet.
    pub fn cancel_crash(&mut self, node: NodeId) {
        self.state.borrow_mut().nodes[node.0].crash_point = None;
    }

    /// Crashes `node` now.
    pub fn crash(&mut self, node: NodeId, crash: Crash) {
        self.state.borrow_mut().crash(node, crash);
        let (dead, alive) = std::mem::take(&mut self.running).into_iter().partition(|running| running.node == node);
        self.running = alive;
        let dead: Vec<Running> = dead;
        // Destructors call the driver, so the state must not be borrowed here.
        dead.iter().for_each(|running| running.reactor.close());
        if self.state.borrow().mutation == Some(Mutation::HoldDead) {
            dead.iter().for_each(|running| std::mem::forget(running.reactor.clone()));
        }
        self.dead.extend(dead.iter().map(|running| Rc::downgrade(&running.reactor)));
    }

    /// How many reactors of processes that ended are still held by something. Asked when whoever ran this world has let go of
    /// what it had of them, it tells of components that hold each other and would never be freed.
    pub fn left_behind(&self) -> usize {
        self.dead.iter().filter(|reactor| reactor.strong_count() > 0).count()
    }

    /// Whether the node runs a process.
    pub fn is_running(&self, node: NodeId) -> bool {
        self.running.iter().any(|running| running.node == node)
    }

    /// Cuts two nodes off from each other for `duration_ns`.
    pub fn partition(&mut self, a: NodeId, b: NodeId, duration_ns: u64) {
        let state = &mut *self.state.borrow_mut();
        let until = state.now_ns.saturating_add(duration_ns);
        state.partition(a, b, until);
    }

    /// Does not run one reactor of a node for `duration_ns`.
    pub fn pause(&mut self, node: NodeId, index: usize, duration_ns: u64) {
        let driver = self.running.iter().filter(|running| running.node == node).nth(index).map(|r| r.driver);
        if let Some(driver) = driver {
            pause(&mut self.state.borrow_mut(), driver, duration_ns);
        }
    }

    /// Ends every fault; what is damaged stays damaged, but nothing new goes wrong and everything must make progress.
    pub fn heal(&mut self) {
        self.state.borrow_mut().heal();
    }

    // --- running ----------------------------------------------------------------------------------------------------

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }

    /// Virtual time since the beginning.
    pub fn elapsed_ns(&self) -> u64 {
        self.now_ns() - self.begun_ns
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One step; see the module.
    pub fn step(&mut self) -> Step {
        self.steps += 1;
        if let Some(node) = self.happen() {
            return Step::Crashed(node);
        }
        let Some(chosen) = self.choose() else {
            return if self.skip_time() { Step::Moved } else { Step::Idle };
        };
        let (driver, reactor) = (self.running[chosen].driver, self.running[chosen].reactor.clone());
        let sleeps = {
            let state = &mut *self.state.borrow_mut();
            state.drivers[driver].wake.clear();
            state.rng.one_in(4)
        };
        let work = if sleeps { reactor.sleep_turn() } else { reactor.turn() };
        let mut guard = self.state.borrow_mut();
        let state = &mut *guard;
        // What is only polled is looked at until a sleep has asked to be woken.
        state.drivers[driver].awake = reactor.has_pollers() && (!sleeps || work > 0);
        state.event("driver {} turns, work {}", [driver as u64, work as u64, 0, 0]);
        state.now_ns += 100 + state.rng.below(900);
        let n = state.schedule.pause;
        if state.chance(n) {
            let duration = state.rng.between(10_000, 50_000_000);
            pause(state, driver, duration);
        }
        drop((guard, reactor));
        // The turn that reached a crash point is the node's last: what it left behind must not look alive.
        self.crash_if_wanted().map_or(Step::Moved, Step::Crashed)
    }

    /// Lets everything that is due happen; a node that reached its crash point goes down.
    fn happen(&mut self) -> Option<NodeId> {
        loop {
            if let Some(node) = self.crash_if_wanted() {
                return Some(node);
            }
            let state = &mut *self.state.borrow_mut();
            let action = state.take_due()?;
            state.perform(action);
        }
    }

    /// Ends the node that reached its crash point.
    fn crash_if_wanted(&mut self) -> Option<NodeId> {
        let (node, crash) = self.state.borrow().crash_wanted()?;
        self.crash(node, crash);
        Some(node)
    }

    fn is_runnable(&self, running: &Running, state: &State) -> bool {
        let driver = &state.drivers[running.driver];
        driver.paused_until_ns <= state.now_ns
            && (!driver.events.is_empty()
                || driver.wake.is_set()
                || driver.awake
                || running.reactor.has_work()
                || running.reactor.next_deadline_ns().is_some_and(|deadline| deadline <= state.now_ns))
    }

    /// Which reactor has the next turn.
    fn choose(&mut self) -> Option<usize> {
        let state = &mut *self.state.borrow_mut();
        let n = state.schedule.idle_turn;
        if !self.running.is_empty() && state.chance(n) {
            let any = state.rng.below(self.running.len() as u64) as usize;
            let paused = state.drivers[self.running[any].driver].paused_until_ns > state.now_ns;
            return (!paused).then_some(any);
        }
        let mut runnable = std::mem::take(&mut self.runnable);
        runnable.clear();
        runnable.extend((0..self.running.len()).filter(|index| self.is_runnable(&self.running[*index], state)));
        let chosen = runnable.get(state.rng.below(runnable.len() as u64) as usize).copied();
        self.runnable = runnable;
        chosen
    }

    /// Moves time to the next event or deadline; false when there is none.
    fn skip_time(&mut self) -> bool {
        let state = &mut *self.state.borrow_mut();
        let deadlines = self.running.iter().filter_map(|running| {
            let paused_until_ns = state.drivers[running.driver].paused_until_ns;
            running.reactor.next_deadline_ns().map(|deadline| deadline.max(paused_until_ns))
        });
        let next = deadlines.chain(state.next_action_ns()).min();
        match next {
            Some(next) => state.now_ns = state.now_ns.max(next),
            None => return false,
        }
        true
    }

    /// Steps until `done` says so. Fails when a checker objected, when nothing can happen any more, or when it takes
    /// longer than `max_ns` of virtual time.
    pub fn run_until(&mut self, what: &str, max_ns: u64, mut done: impl FnMut(&World) -> bool) -> Result<(), Failure> {
        let deadline = self.now_ns().saturating_add(max_ns);
        let steps_max = self.steps + STEPS_MAX;
        loop {
            self.check()?;
            if done(self) {
                return Ok(());
            }
            if self.now_ns() > deadline || self.steps > steps_max {
                return Err(self.stuck(what, &format!("it took more than {} ms of virtual time", max_ns / 1_000_000)));
            }
            if self.step() == Step::Idle && !done(self) {
                return Err(self.stuck(what, "nothing can happen any more"));
            }
        }
    }

    /// Steps for so much virtual time, or until nothing can happen any more, or until a node crashes at its crash point.
    pub fn run_for(&mut self, duration_ns: u64) -> Result<Step, Failure> {
        let until = self.now_ns().saturating_add(duration_ns);
        let steps_max = self.steps + STEPS_MAX;
        while self.now_ns() < until {
            let step = self.step();
            self.check()?;
            if step != Step::Moved {
                return Ok(step);
            }
            if self.steps > steps_max {
                return Err(self.stuck("time to pass", "a livelock"));
            }
        }
        Ok(Step::Moved)
    }

    /// The first objection of a checker so far.
    pub fn check(&self) -> Result<(), Failure> {
        match self.state.borrow().violations.first() {
            Some(text) => Err(Failure::new(text.clone())),
            None => Ok(()),
        }
    }

    fn stuck(&self, what: &str, why: &str) -> Failure {
        let state = self.state.borrow();
        let mut reason = format!("stuck waiting for {what}: {why}");
        for running in &self.running {
            let driver = &state.drivers[running.driver];
            reason += &format!(
                "\n  node {} reactor {}: {} tasks alive, {} file operations under way, has work: {}, next timer: {:?}",
                running.node.0,
                driver.reactor,
                running.reactor.live_tasks(),
                driver.in_flight,
                running.reactor.has_work(),
                running.reactor.next_deadline_ns(),
            );
        }
        reason += &format!(
            "\n  {} file operations ({} of them stuck), {} open connection ends, time {} ns",
            state.ops.len(),
            state.stuck.len(),
            state.net.open_connections(),
            state.now_ns
        );
        Failure::new(reason)
    }
}

fn pause(state: &mut State, driver: usize, duration_ns: u64) {
    let until = state.now_ns.saturating_add(duration_ns);
    state.event("driver {} pauses until {}", [driver as u64, until, 0, 0]);
    state.drivers[driver].paused_until_ns = until;
    state.at(until, crate::state::Action::Nothing);
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Tasks were interrupted at an arbitrary point; their destructors may panic again. Leak them.
            std::mem::take(&mut self.running).into_iter().for_each(std::mem::forget);
            return;
        }
        let nodes: Vec<NodeId> = self.running.iter().map(|running| running.node).collect();
        for node in nodes {
            if self.is_running(node) {
                self.crash(node, Crash::Kill);
            }
        }
    }
}

#[allow(dead_code, reason = "asserts at compile time that wakers may cross threads")]
fn assert_send() {
    fn is_send<T: Send + Sync>() {}
    is_send::<SimWake>();
}
