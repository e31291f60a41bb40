//! Opens an image in a world of its own, reads everything, and does so once more after another crash.

use super::{Photograph, lost_log};
use crate::crashes::any_crash;
use crate::ground::Ground;
use crate::hot_pool::{Plan, view};
use crate::sides::{self, Found, read_cells_left};
use base::Rng;
use bdev::BlockDevice;
use engine::{ExtentOwner, Pool};
use reactor::Reactor;
use sim::{Failure, Image, Step, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

/// Virtual time of one recovery.
const RECOVERY_NS: u64 = 20_000_000_000;
/// Steps of all of them: a bound on livelock.
const STEPS_MAX: u64 = 1_000_000;
/// Lives of a node after its crash, until two have come to their end.
const LIVES_MAX: u64 = 4;
/// Lines of its trace that the failure of a recovery carries.
const TAIL_LINES: usize = 40;

/// Of so many images one loses its log.
const LOG_LOST_ONE_IN: u64 = 16;

/// Everything that a recovery found.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Findings {
    pub(super) cells: Vec<Result<u64, String>>,
    pub(super) sides: BTreeMap<String, Found>,
    /// The extents of the volumes; those on their way to be freed do not count.
    extents: Vec<ExtentOwner>,
}

impl Findings {
    /// Whether a later life may find this: the same, but that extents which trims have emptied may have been given back by then. (What
    /// such an extent reads as is in the cells.)
    fn leads_to(&self, later: &Findings) -> bool {
        let is_held = |extent: &ExtentOwner| self.extents.binary_search(extent).is_ok();
        (&self.cells, &self.sides) == (&later.cells, &later.sides) && later.extents.iter().all(is_held)
    }
}

/// Examines photographs, each distinct image once.
pub(super) struct Laboratory {
    plan: Plan,
    ground: Ground,
    rng: Rng,
    known: BTreeMap<u64, Rc<Findings>>,
}

impl Laboratory {
    pub(super) fn new(plan: Plan, ground: Ground, rng: Rng) -> Laboratory {
        Laboratory { plan, ground, rng, known: BTreeMap::new() }
    }

    /// Distinct images that have passed.
    pub(super) fn points(&self) -> u64 {
        self.known.len() as u64
    }

    /// A hash of what was found.
    pub(super) fn examine(&mut self, photograph: &Photograph) -> Result<u64, Failure> {
        let hash = photograph.image.hash();
        let findings = match self.known.get(&hash) {
            Some(findings) => findings.clone(),
            None => Rc::new(recover_twice(self.plan, self.ground, photograph, &mut self.rng)?),
        };
        let plan = self.plan;
        let window_cells = plan.window_blocks << (12 - plan.block_shift);
        // What one record carries: blocks of one extent, or bytes of one block.
        let unit = move |cell: usize| match plan.block_shift {
            12 => cell as u64 / (window_cells / 2),
            _ => cell as u64 >> (12 - plan.block_shift),
        };
        let judged = photograph.cells.judge(&findings.cells, unit);
        judged
            .and_then(|()| photograph.sides.judge(&findings.sides))
            .map_err(|text| Failure::new(format!("after a crash (image {hash:016x}): {text}")))?;
        self.known.insert(hash, findings.clone());
        let mut hasher = DefaultHasher::new();
        findings.hash(&mut hasher);
        Ok(hasher.finish())
    }
}

fn recover_twice(plan: Plan, ground: Ground, photograph: &Photograph, rng: &mut Rng) -> Result<Findings, Failure> {
    let (mut world, image) = (World::new(rng.next_u64()), &photograph.image);
    let found = lives(&mut world, plan, ground, image, rng);
    let found = found.map_err(|failure| {
        let tail = world.handle().tail(TAIL_LINES).join("\n    ");
        Failure::new(format!("recovering image {:016x}: {failure}\n    {tail}", image.hash()))
    })?;
    if image.hash().is_multiple_of(LOG_LOST_ONE_IN) {
        let judged = lost_log::judge(plan, ground, photograph, &found);
        judged.map_err(|failure| Failure::new(format!("image {:016x}: {failure}", image.hash())))?;
    }
    Ok(found)
}

fn lives(world: &mut World, plan: Plan, ground: Ground, image: &Image, rng: &mut Rng) -> Result<Findings, Failure> {
    let node = world.add_node();
    world.add_image(node, image);
    // The crash may have taken a device with it, which may be back for the next life; never two.
    let lost = match ground {
        Ground::Array(_) | Ground::Warm(_) if rng.one_in(2) => Some(rng.next_u64()),
        _ => None,
    };
    let mut first: Option<Findings> = None;
    for life in 0..LIVES_MAX {
        let crash = any_crash(rng);
        if life + 2 < LIVES_MAX && rng.one_in(3) {
            world.crash_after_writes(node, rng.between(1, 30), crash);
        }
        world.boot(node, 1, World::reactor_config());
        let slot: Rc<RefCell<Option<Result<Findings, String>>>> = Rc::default();
        let (result, ended) = (slot.clone(), Rc::new(Cell::new(false)));
        let done = ended.clone();
        let goes_on = rng.one_in(6);
        let reactor = world.reactor(node, 0);
        let away = lost.filter(|_| !rng.one_in(3));
        reactor.spawn(inspect((plan, ground, away), reactor.clone(), result, done, goes_on));
        drop(reactor);
        let until = world.now_ns() + RECOVERY_NS;
        while !ended.get() && world.is_running(node) {
            if world.step() == Step::Idle && !ended.get() || world.now_ns() > until || world.steps() > STEPS_MAX {
                return Err(Failure::new("the pool does not open, or cannot be read, in time"));
            }
            world.check()?;
        }
        // A process that went down at its crash point may have seen anything on its way.
        let alive = world.handle().alive(node);
        world.cancel_crash(node);
        if world.is_running(node) {
            world.crash(node, crash);
        }
        let Some(findings) = slot.take().filter(|_| alive) else { continue };
        let findings = findings.map_err(Failure::new)?;
        match first {
            None => first = Some(findings),
            Some(first) if first.leads_to(&findings) => return Ok(first),
            Some(first) => {
                return Err(Failure::new(format!("two recoveries differ: {}", difference(&first, &findings))));
            }
        }
    }
    Err(Failure::new("no two recoveries came to their end"))
}

fn difference(one: &Findings, other: &Findings) -> String {
    let cells = one.cells.iter().zip(&other.cells).enumerate().find(|(_, (one, other))| one != other);
    match cells {
        Some((cell, (one, other))) => format!("cell {cell} is {one:?}, then {other:?}"),
        None if one.sides != other.sides => format!("{:?}, then {:?}", one.sides, other.sides),
        None => format!("{:?}, then {:?}", one.extents, other.extents),
    }
}

type Slot = Rc<RefCell<Option<Result<Findings, String>>>>;

/// Opens the pool and reads it; afterwards it may go on with its upkeep for a while.
async fn inspect(
    (plan, ground, away): (Plan, Ground, Option<u64>),
    reactor: Rc<Reactor>,
    slot: Slot,
    ended: Rc<Cell<bool>>,
    goes_on: bool,
) {
    let opened = match ground.devices(&plan, &reactor, false, away).await {
        Ok(devices) => plan.open(&reactor, devices).await,
        Err(error) => Err(error),
    };
    let found = match opened {
        Ok(pool) => {
            reactor.keep(Rc::new(pool.clone()));
            let found = read(plan, &reactor, &pool).await;
            if goes_on {
                let settled = pool.settle(&reactor).await;
                // Places that refuse writes take a while.
                let settled = if plan.refuses() { Ok(()) } else { settled };
                let settled = settled.map_err(|error| format!("settling failed: {error}"));
                found.and_then(|found| settled.map(|()| found))
            } else {
                found
            }
        }
        Err(error) => Err(format!("the pool does not open: {error}")),
    };
    slot.replace(Some(found));
    ended.set(true);
}

pub(super) async fn read(plan: Plan, reactor: &Rc<Reactor>, pool: &Arc<Pool>) -> Result<Findings, String> {
    let windows = view(&plan, pool)?;
    let per_window = plan.window_blocks << (12 - plan.block_shift);
    let (mut cells, cell_bytes) = (Vec::new(), 1 << plan.block_shift);
    for window in 0..plan.volumes * plan.windows {
        let first = window * per_window;
        cells.extend(read_cells_left(reactor, &*windows, first..first + per_window, cell_bytes).await);
    }
    let sides = sides::find_left(reactor, pool).await;
    let sizes = pool.volumes().into_iter().map(|volume| {
        let blocks = volume.info().bytes() / 4096;
        (volume.layer(), blocks.div_ceil(crate::hot_pool::EXTENT_BLOCKS))
    });
    let sizes: BTreeMap<u32, u64> = sizes.collect();
    let audit = pool.audit(reactor).await.map_err(|error| error.to_string())?;
    if let Some(problem) = audit.problems.first() {
        return Err(format!("the audit finds: {problem}"));
    }
    if let Some(problem) = pool.audit_places(reactor).await.first() {
        return Err(format!("the audit of places finds: {problem}"));
    }
    let held = |owner: &ExtentOwner| sizes.get(&owner.volume).is_some_and(|extents| (owner.vextent as u64) < *extents);
    let mut extents: Vec<ExtentOwner> = audit.extents.into_iter().filter(held).collect();
    // They may have moved, from one life to the next.
    extents.iter_mut().for_each(|owner| owner.extent = 0);
    extents.sort_unstable();
    if plan.is_layered() {
        // What deleted snapshots have changes its owner in the background.
        extents.clear();
    }
    Ok(Findings { cells, sides, extents })
}
