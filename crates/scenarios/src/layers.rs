//! Work on volumes with snapshots over devices some of whose operations take long, crashed at any step: how the scenarios about what
//! is made of snapshots are set up and go.

use crate::crashes::{SECOND_NS, any_crash};
use crate::hot_pool::{EXTENT_BLOCKS, Plan};
use crate::ledger::{Hands, Spot};
use crate::lives::{Aim, Lives};
use base::Rng;
use sim::{Crash, Failure, ScheduleFaults, World};

const EXTENT_BYTES: u64 = 4 << 20;
/// The work on layers comes to its end in this time.
const AIM: Aim = Aim("the work on layers to end", 300 * SECOND_NS);
/// Extents of a volume that are used, in two slices.
const EXTENTS: [u64; 3] = [0, 1, 16];

/// What a scenario does in the lives of its processes.
pub(crate) trait Work: Clone + 'static {
    /// After an opening: puts right what the life before has left.
    async fn find(&self, hands: &Hands);
    /// A life that may be crashed.
    async fn work(self, hands: Hands, rng: Rng);
    /// The last life, over devices that do what they should: in the end everything holds, and the pool is closed.
    async fn finish(self, hands: Hands);
}

/// Layers of the pool's volumes at the same time, for every extent of which there is room; one pool in so many is a hot one.
#[derive(Clone, Copy)]
pub(crate) struct Layers {
    pub(crate) most: u32,
    pub(crate) hot_one_in: u64,
}

/// Of blocks of 4 KiB, where those of the volume are smaller: the first one, the first of the volume's blocks in it, and how many of these.
pub(crate) type Part = (u64, u64, u64);

/// A node with a pool that has one volume.
pub(crate) fn set_up(world: &mut World, rng: &mut Rng, layers: Layers, parts: &[Part]) -> Result<Lives, Failure> {
    let plan = Plan::pick(rng);
    let plan = Plan {
        capacity_bytes: (plan.shards as u64 * layers.most as u64 + 2) * EXTENT_BYTES,
        block_shift: if rng.one_in(4) { 12 } else { 9 },
        volumes: 1,
        volumes_max: layers.most,
        ..plan
    };
    let idle_ns = plan.idle_ns;
    let plan = if rng.one_in(layers.hot_one_in) { plan } else { plan.shaped(rng) };
    // Blocks move on at once, and there are few extents, so that each is soon used again.
    let plan = Plan { idle_ns, ..plan };
    let per = 1u64 << (12 - plan.block_shift);
    let mut places = vec![(0, per), (8 * per, 8 * per), (700 * per, per), ((EXTENT_BLOCKS - 1) * per, per)];
    if per > 1 {
        places.extend(parts.iter().map(|(block, at, blocks)| (block * per + at, *blocks)));
    }
    let spots = Spot::in_extents(EXTENTS.into_iter().map(|extent| (0, extent)), &places, per);
    let lives = Lives::new(world, rng, plan, spots, AIM)?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    Ok(lives)
}

/// Some lives that are crashed, one that is not, and a look at what is left.
pub(crate) fn play(world: &mut World, rng: &mut Rng, lives: &Lives, work: impl Work) -> Result<(), Failure> {
    for round in 0..rng.between(1, 4) {
        world.handle().note(format!("round {round}"));
        lives.plan.slow_down(world, rng, lives.node);
        let crash = any_crash(rng);
        if !rng.one_in(4) {
            world.crash_after_writes(lives.node, rng.between(1, 400), crash);
        }
        let (work, fork) = (work.clone(), rng.fork());
        lives.open(world, rng, |hands| async move {
            look(&work, &hands).await;
            work.work(hands, fork).await;
        })?;
        lives.end(world, crash);
    }
    world.heal();
    lives.open(world, rng, |hands| async move {
        look(&work, &hands).await;
        work.finish(hands).await;
    })?;
    world.crash(lives.node, Crash::Kill);
    let (plan, sim) = (lives.plan, lives.sim.clone());
    lives.live(world, 1, |reactor| async move { plan.check_closed(&reactor, &sim).await })
}

async fn look(work: &impl Work, hands: &Hands) {
    work.find(hands).await;
    hands.read_all().await;
    hands.audit().await;
}
