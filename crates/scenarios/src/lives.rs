//! The lives of a process that uses a pool whose volumes a [`Ledger`] knows, one after the other on one node: what the scenarios that
//! know exactly what must succeed have in common.

use crate::crashes::live;
use crate::ground::Ground;
use crate::hot_pool::{EXTENT_BLOCKS, Plan, defect_of};
use crate::ledger::{Hands, Ledger, Spot};
use base::Rng;
use engine::Pool;
use reactor::Reactor;
use sim::{Crash, Failure, Handle, NodeId, World};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What outlives the processes.
#[derive(Clone)]
pub(crate) struct Lives {
    pub(crate) plan: Plan,
    ground: Ground,
    /// What of it is not there, where the pool does without it.
    away: Option<u64>,
    pub(crate) sim: Handle,
    pub(crate) node: NodeId,
    pub(crate) ledger: Rc<RefCell<Ledger>>,
    aim: Aim,
}

/// What each life comes to, and in which virtual time at most.
#[derive(Clone, Copy)]
pub(crate) struct Aim(pub(crate) &'static str, pub(crate) u64);

impl Lives {
    /// A node with a new pool on a disk, all of whose `spots` are zero.
    pub(crate) fn new(
        world: &mut World,
        rng: &mut Rng,
        plan: Plan,
        spots: impl Iterator<Item = Spot>,
        aim: Aim,
    ) -> Result<Lives, Failure> {
        Lives::on(Ground::Disk, world, rng, plan, spots, aim)
    }

    /// The same on other devices.
    pub(crate) fn on(
        ground: Ground,
        world: &mut World,
        rng: &mut Rng,
        plan: Plan,
        spots: impl Iterator<Item = Spot>,
        aim: Aim,
    ) -> Result<Lives, Failure> {
        let sim = world.handle();
        sim.note(format!("{ground:?} {plan:?}"));
        let node = world.add_node();
        ground.create(world, rng, plan, node)?;
        let plan = Plan { defect: defect_of(sim.mutation()), ..plan };
        Ok(Lives { plan, ground, away: None, sim, node, ledger: Rc::new(RefCell::new(Ledger::new(spots))), aim })
    }

    /// One life of the process.
    pub(crate) fn live<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        reactors: usize,
        main: impl FnOnce(Rc<Reactor>) -> F,
    ) -> Result<(), Failure> {
        let Aim(what, max_ns) = self.aim;
        live(world, self.node, reactors, what, max_ns, main)
    }

    /// One life that opens the pool, on some reactors.
    pub(crate) fn open<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        rng: &mut Rng,
        main: impl FnOnce(Hands) -> F + 'static,
    ) -> Result<(), Failure> {
        let plan = Plan { reactors: rng.between(1, 3) as usize, ..self.plan };
        let lives = Lives { away: self.ground.away_for_a_life(rng), ..self.clone() };
        self.live(world, plan.reactors, move |reactor| async move {
            if let Some(hands) = lives.open_in(&plan, reactor).await {
                main(hands).await;
            }
        })
    }

    /// Opens the pool's devices and the pool, which stays open as long as the process lives.
    pub(crate) async fn open_and_keep(&self, plan: &Plan, reactor: &Rc<Reactor>) -> Result<Arc<Pool>, String> {
        let devices = self.ground.devices(plan, reactor, false, self.away).await?;
        let pool = plan.open(reactor, devices).await?;
        reactor.keep(Rc::new(pool.clone()));
        Ok(pool)
    }

    /// Opens the pool in a process. `None`: that has gone down meanwhile.
    pub(crate) async fn open_in(&self, plan: &Plan, reactor: Rc<Reactor>) -> Option<Hands> {
        match self.open_and_keep(plan, &reactor).await {
            Ok(pool) => Some(self.hands(pool, reactor)),
            Err(error) => {
                self.expect(false, || format!("the pool does not open: {error}"));
                None
            }
        }
    }

    pub(crate) fn hands(&self, pool: Arc<Pool>, reactor: Rc<Reactor>) -> Hands {
        let (ledger, sim) = (self.ledger.clone(), self.sim.clone());
        Hands { ledger, sim, node: self.node, pool, reactor, block_shift: self.plan.block_shift }
    }

    /// The end of the life, if that has not come already.
    pub(crate) fn end(&self, world: &mut World, crash: Crash) {
        if world.is_running(self.node) {
            world.crash(self.node, crash);
        }
    }

    /// What a process that is going down sees proves nothing.
    pub(crate) fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.sim.expect(holds || !self.sim.alive(self.node), text);
    }

    /// The extent that a spot is in, by its volume and number.
    pub(crate) fn extent_of(&self, spot: Spot) -> (u64, u64) {
        (spot.volume, (spot.first >> (12 - self.plan.block_shift)) / EXTENT_BLOCKS)
    }
}
