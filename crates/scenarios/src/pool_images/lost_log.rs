//! The same image without its log, which is given up for a new device. What was read with the log is found or an error: nothing
//! older, and nothing else. Giving it up may be cut off, and is repeated then.

use super::Photograph;
use super::recovery::{Findings, read};
use crate::crashes::{SECOND_NS, any_crash, live};
use crate::given_up::GivenUp;
use crate::ground::Ground;
use crate::hot_pool::{Plan, add_log};
use crate::sides::Sides;
use base::Rng;
use engine::{Pool, PoolDevices};
use reactor::Reactor;
use sim::{Failure, NodeId, World};
use std::cell::RefCell;
use std::rc::Rc;

/// Attempts that are cut off.
const CUT_OFF_MAX: u64 = 3;
/// Virtual time of each.
const LIFE_NS: u64 = 60 * SECOND_NS;

/// Without the log of an image that was recovered with it as `with_log` says.
pub(super) fn judge(plan: Plan, ground: Ground, photograph: &Photograph, with_log: &Findings) -> Result<(), Failure> {
    let mut rng = Rng::new(photograph.image.hash());
    let mut world = World::new(rng.next_u64());
    let node = world.add_node();
    world.add_image(node, &photograph.image);
    let plan = Plan { log_number: plan.log_number + 1, ..plan };
    add_log(&mut world, &mut rng, plan, node);
    let stage = Stage { plan, ground, node };
    if !stage.give_up(&mut world, &mut rng)? {
        return Ok(());
    }
    let first = stage.look(&mut world)?;
    lost_or_the_same(with_log, &first, &photograph.sides)?;
    down(&mut world, node, &mut rng);
    let second = stage.look(&mut world)?;
    match (&first.cells, &first.sides) == (&second.cells, &second.sides) {
        true => Ok(()),
        false => Err(Failure::new(format!("two openings without the log differ: {first:?}, then {second:?}"))),
    }
}

fn down(world: &mut World, node: NodeId, rng: &mut Rng) {
    if world.is_running(node) {
        world.crash(node, any_crash(rng));
    }
}

#[derive(Clone, Copy)]
struct Stage {
    plan: Plan,
    ground: Ground,
    node: NodeId,
}

impl Stage {
    /// Gives up the log. False: there is no room to say what is lost, which is no crash point.
    fn give_up(self, world: &mut World, rng: &mut Rng) -> Result<bool, Failure> {
        let (mut larger_mib, mut cut_off) = (0, 0);
        loop {
            let crash = any_crash(rng);
            let cuts_off = cut_off < CUT_OFF_MAX && rng.one_in(2);
            if cuts_off {
                world.crash_after_writes(self.node, rng.between(1, 30), crash);
                cut_off += 1;
            }
            let slot: Rc<RefCell<Option<GivenUp>>> = Rc::default();
            let (ended, grows) = (slot.clone(), std::mem::take(&mut larger_mib));
            live(world, self.node, 1, "the log to be given up", LIFE_NS, |reactor| async move {
                let outcome = self.forget(reactor, grows).await;
                ended.replace(Some(outcome));
            })?;
            let is_whole = world.handle().alive(self.node);
            world.cancel_crash(self.node);
            down(world, self.node, rng);
            match slot.take().filter(|_| is_whole) {
                Some(GivenUp::Done) => return Ok(true),
                // Other grounds do not become larger by themselves.
                Some(GivenUp::TooSmall(mib)) if matches!(self.ground, Ground::Disk) && grows == 0 => larger_mib = mib,
                Some(GivenUp::TooSmall(_)) => return Ok(false),
                Some(GivenUp::Failed(error)) => {
                    return Err(Failure::new(format!("the log cannot be given up: {error}")));
                }
                None => {}
            }
        }
    }

    async fn devices(self, reactor: &Rc<Reactor>) -> Result<PoolDevices, String> {
        self.ground.devices(&self.plan, reactor, false, None).await
    }

    async fn forget(self, reactor: Rc<Reactor>, larger_mib: u64) -> GivenUp {
        let devices = match self.devices(&reactor).await {
            Ok(devices) => devices,
            Err(error) => return GivenUp::Failed(error),
        };
        if larger_mib > 0 {
            let info = devices.capacity.info();
            let bytes = info.bytes() + (larger_mib << 20);
            if let Err(error) = devices.capacity.resize(&reactor, bytes / info.block_size as u64).await {
                return GivenUp::Failed(error.to_string());
            }
        }
        let ended = Pool::forget_log(&reactor, &devices, false, &Default::default()).await;
        ended.map_or_else(|error| GivenUp::refused(error.to_string()), |_| GivenUp::Done)
    }

    /// Opens the pool and reads everything.
    fn look(self, world: &mut World) -> Result<Findings, Failure> {
        let slot: Rc<RefCell<Option<Result<Findings, String>>>> = Rc::default();
        let found = slot.clone();
        live(world, self.node, 1, "the pool without its log to be read", LIFE_NS, |reactor| async move {
            let opened = match self.devices(&reactor).await {
                Ok(devices) => self.plan.open(&reactor, devices).await,
                Err(error) => Err(error),
            };
            let outcome = match opened {
                Ok(pool) => {
                    reactor.keep(Rc::new(pool.clone()));
                    read(self.plan, &reactor, &pool).await
                }
                Err(error) => Err(format!("the pool does not open without its log: {error}")),
            };
            found.replace(Some(outcome));
        })?;
        let found = slot.take().ok_or_else(|| Failure::new("the process ended by itself"))?;
        found.map_err(Failure::new)
    }
}

fn lost_or_the_same(with_log: &Findings, without: &Findings, sides: &Sides) -> Result<(), Failure> {
    let is_right = |(with, without): (&Result<u64, String>, &Result<u64, String>)| without.is_err() || with == without;
    if let Some(cell) = with_log.cells.iter().zip(&without.cells).position(|pair| !is_right(pair)) {
        let (with, without) = (&with_log.cells[cell], &without.cells[cell]);
        return Err(Failure::new(format!("cell {cell} is {with:?} with the log, and {without:?} when it is lost")));
    }
    // Of a change that a crash has cut off, members of a device may have more or less: what may be found is for the oracle to say.
    let judged = sides.judge_left(&without.sides, true);
    judged.map_err(|text| Failure::new(format!("without the log: {text}")))
}
