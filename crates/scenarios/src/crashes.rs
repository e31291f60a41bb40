//! Rounds of work, crash and verification on any device that one node opens: what the crash scenarios share.
//!
//! Safety: a read returns an allowed value at all times, and flushed or forced data survives. Liveness: when the faults
//! end, the device opens, and a write, a flush and a read succeed; everything ends and all buffers come back.

use crate::blocks::{Crew, Judge, check_pool};
use base::Rng;
use bdev::{BlockDevice, Channel};
use reactor::Reactor;
use sim::{Crash, Failure, NodeId, World};
use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;

type Opened = Result<Arc<dyn BlockDevice>, String>;
pub(crate) type Opening = Pin<Box<dyn Future<Output = Opened>>>;
pub(crate) type Working = Pin<Box<dyn Future<Output = ()>>>;
type Beside = Box<dyn Fn(Rc<Reactor>, Arc<dyn BlockDevice>) -> Working>;
/// An open device and its channel on each reactor.
pub(crate) type InUse = (Arc<dyn BlockDevice>, Vec<Rc<dyn Channel>>);

/// A device that outlives its node's processes, and how a process opens it.
pub(crate) struct Rig {
    pub(crate) judge: Judge,
    pub(crate) node: NodeId,
    /// Of each process; may change between rounds.
    pub(crate) reactors: Rc<Cell<usize>>,
    /// How long a process lives at most, and how many writes it makes at most when it is counted writes that end it.
    pub(crate) life: Life,
    pub(crate) open: Box<dyn Fn(Rc<Reactor>) -> Opening>,
    /// What else runs on reactor 0 while the device is in use; gets the opened device.
    pub(crate) beside: Beside,
    /// Ends what the device does by itself, on reactor 0, so that everything can come to rest.
    pub(crate) close: Beside,
}

/// See [`Rig::life`].
#[derive(Clone, Copy)]
pub(crate) struct Life {
    pub(crate) ns: u64,
    pub(crate) writes: u64,
}

/// Long enough for what begins at once.
pub(crate) const SHORT: Life = Life { ns: SECOND_NS / 20, writes: 100 };

pub(crate) fn nothing_beside(_: Rc<Reactor>, _: Arc<dyn BlockDevice>) -> Working {
    Box::pin(async {})
}

/// Kills or power cuts, as chance has it.
pub(crate) fn any_crash(rng: &mut Rng) -> Crash {
    if rng.one_in(2) { Crash::Kill } else { Crash::PowerCut }
}

/// One life of a process on `node`: `main` runs on reactor 0, to its end or that of the process.
pub(crate) fn live<F: Future<Output = ()> + 'static>(
    world: &mut World,
    node: NodeId,
    reactors: usize,
    what: &'static str,
    max_ns: u64,
    main: impl FnOnce(Rc<Reactor>) -> F,
) -> Result<(), Failure> {
    world.boot(node, reactors, World::reactor_config());
    let crew = Crew::default();
    world.spawn(node, 0, |reactor| crew.member(main(reactor)));
    world.run_until(what, max_ns, |_| crew.is_done())
}

/// Starts a process on `node` and opens the device in it; `None` when it does not open.
pub(crate) fn start(
    world: &mut World,
    node: NodeId,
    reactors: usize,
    opening: impl Fn(Rc<Reactor>) -> Opening,
    max_ns: u64,
) -> Result<Option<Opened>, Failure> {
    world.boot(node, reactors, World::reactor_config());
    let result: Rc<RefCell<Option<Opened>>> = Rc::default();
    let slot = result.clone();
    let opening = opening(world.reactor(node, 0));
    world.spawn(node, 0, |_| async move {
        let opened = opening.await;
        *slot.borrow_mut() = Some(opened);
    });
    let until = world.now_ns() + max_ns;
    while result.borrow().is_none() && world.now_ns() < until && world.is_running(node) {
        if world.run_for(100_000)? == sim::Step::Idle {
            break;
        }
    }
    Ok(result.take())
}

impl Rig {
    /// Boots the node and opens the device on each of its reactors.
    pub(crate) fn start(&self, world: &mut World) -> Result<Option<InUse>, Failure> {
        let reactors = self.reactors.get();
        let opened = start(world, self.node, reactors, &self.open, 20 * SECOND_NS)?;
        let lenient = self.judge.mix.errors_allowed;
        let device = match opened {
            Some(Ok(device)) if world.is_running(self.node) => device,
            // The node went down right after.
            Some(Ok(_)) => return Ok(None),
            Some(Err(error)) if lenient || !world.is_running(self.node) => {
                world.handle().note(format!("the device does not open: {error}"));
                return Ok(None);
            }
            // An operation is stuck, or the node went down meanwhile.
            None if lenient || !world.is_running(self.node) => return Ok(None),
            Some(Err(error)) => return Err(Failure::new(format!("the device does not open: {error}"))),
            None => return Err(Failure::new("the device does not open in time")),
        };
        // The first reactor keeps the device, as a node would.
        world.reactor(self.node, 0).keep(Rc::new(device.clone()));
        let reactors = (0..reactors).map(|index| world.reactor(self.node, index));
        let channels = reactors.map(|reactor| device.open_channel(&reactor)).collect::<Result<Vec<_>, _>>();
        let channels = channels.map_err(|error| Failure::new(format!("no channel opens: {error}")))?;
        Ok(Some((device, channels)))
    }

    fn down(&self, world: &mut World, crash: Crash) {
        if world.is_running(self.node) {
            world.crash(self.node, crash);
        }
        if (self.judge.unheard)() {
            self.judge.oracle.borrow_mut().flush_failed_unheard();
        }
        match crash {
            Crash::Kill => self.judge.oracle.borrow_mut().killed(),
            Crash::PowerCut => self.judge.oracle.borrow_mut().power_cut(),
        }
    }

    /// One life of the process and its end, then another one that reads everything.
    pub(crate) fn round(&self, world: &mut World, rng: &mut Rng) -> Result<(), Failure> {
        let crash = any_crash(rng);
        if rng.one_in(2) {
            // Counted from here on, so opening the device is crashed too.
            world.crash_after_writes(self.node, rng.between(1, self.life.writes), crash);
        }
        if let Some((device, channels)) = self.start(world)? {
            let tasks = rng.between(1, 4);
            for task in 0..tasks {
                let (judge, count) = (self.judge.clone(), rng.between(10, 60));
                let index = task as usize % self.reactors.get();
                let channel = channels[index].clone();
                world.spawn(self.node, index, |reactor| judge.work(reactor, channel, task, tasks, count));
            }
            world.spawn(self.node, 0, |reactor| (self.beside)(reactor, device));
            drop(channels);
            world.run_for(rng.between(100_000, self.life.ns))?;
        }
        self.down(world, crash);
        let errors_before = self.judge.errors.get();
        let Some((_, channels)) = self.start(world)? else {
            self.down(world, Crash::Kill);
            return Ok(());
        };
        let crew = Crew::default();
        let judge = self.judge.clone();
        world.spawn(self.node, 0, |reactor| crew.member(judge.verify_all(reactor, channels[0].clone())));
        drop(channels);
        // Stuck operations may keep the verification from ending; then the node is killed all the same.
        world.run_for(SECOND_NS / 2)?;
        let verified = crew.is_done() && self.judge.errors.get() == errors_before;
        self.down(world, Crash::Kill);
        if verified && crash == Crash::PowerCut {
            self.judge.oracle.borrow_mut().settle();
        }
        Ok(())
    }

    /// Ends the faults; everything must work.
    pub(crate) fn finish(&self, world: &mut World) -> Result<(), Failure> {
        world.heal();
        world.boot(self.node, self.reactors.get(), World::reactor_config());
        let crew = Crew::default();
        // Every write is waited for: what was damaged for good can be read again when it has been written.
        let judge = self.judge.with(|mix| mix.abandon = 0);
        let opening = (self.open)(world.reactor(self.node, 0));
        let beside = Rc::new(Cell::new(None));
        let device_slot = beside.clone();
        let proof = move |reactor: Rc<Reactor>| async move {
            let device = match opening.await {
                Ok(device) => device,
                Err(error) => return judge.sim.violation(format!("without faults the device does not open: {error}")),
            };
            reactor.keep(Rc::new(device.clone()));
            let channel = match device.open_channel(&reactor) {
                Ok(channel) => channel,
                Err(error) => return judge.sim.violation(format!("without faults no channel opens: {error}")),
            };
            let errors_before = judge.errors.get();
            judge.prove_alive(&reactor, &channel).await;
            let holds = judge.errors.get() == errors_before;
            judge.sim.expect(holds, || "the device still fails although all faults ended".into());
            judge.clone().verify_all(reactor, channel).await;
            device_slot.set(Some(device));
        };
        world.spawn(self.node, 0, |reactor| crew.member(proof(reactor)));
        world.run_until("the device to work again", 60 * SECOND_NS, |_| crew.is_done())?;
        let device = beside.take().expect("the proof leaves the device");
        let (beside, close) = (device.clone(), device);
        world.spawn(self.node, 0, |reactor| {
            let (beside, close) = ((self.beside)(reactor.clone(), beside), (self.close)(reactor, close));
            crew.member(async move {
                beside.await;
                close.await;
            })
        });
        world.run_until("everything to come to rest", 60 * SECOND_NS, |world| {
            let reactor = world.reactor(self.node, 0);
            crew.is_done() && reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0
        })?;
        check_pool(&world.reactor(self.node, 0), World::reactor_config().pool.bytes_max)
    }
}
