//! Scenarios: what runs in the simulated world, with the faults it meets and the oracle that judges it. Each is known by
//! name and reproduced by its seed.
//!
//! ```
//! use remuda_scenarios as scenarios;
//! let outcome = scenarios::run("reactor-mesh", 7, &scenarios::Options::default()).unwrap();
//! assert!(outcome.is_ok());
//! assert_eq!(outcome.hash, scenarios::run("reactor-mesh", 7, &scenarios::Options::default()).unwrap().hash);
//! ```
#![forbid(unsafe_code)]

mod bays;
mod blocks;
mod branches;
mod conformance;
mod crashed;
mod crashes;
mod engine_log;
mod engine_meta;
mod file_crash;
mod flash_cache;
mod forgetful;
mod given_up;
mod ground;
mod hot_pool;
mod hot_pool_changes;
mod hot_pool_damage;
mod hot_pool_forget;
mod hot_pool_full;
mod hot_pool_rot;
mod hot_pool_stall;
mod layers;
mod ledger;
mod lives;
mod log_refusals;
mod lossy;
mod metadata_rot;
mod mirror_crash;
mod net_streams;
mod nvmf;
mod panics;
mod pmem_log;
mod pool_clones;
mod pool_images;
mod pool_snapshots;
mod pool_streams;
mod pool_versions;
mod raw_file;
mod reactor_mesh;
mod redundant;
mod redundant_pool;
mod rotting;
mod shown;
mod sides;
mod stack_faults;
mod vhost;
mod warm_pool;
mod zoned;
mod zoned_pool;

use base::Rng;
use sim::{Failure, Mutation, World};
use std::fmt;

/// Lines of the trace that a failure carries by default.
pub const TAIL_LINES_DEFAULT: usize = 60;

/// A scenario.
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// What it does and checks, in a line.
    pub about: &'static str,
    run: fn(&mut Run) -> Result<(), Failure>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "reactor-mesh",
        about: "messages, calls, timers and cancelled operations between reactors under random schedules; \
                nothing lost, early, out of order or reused",
        run: reactor_mesh::run,
    },
    Scenario {
        name: "file-device-crash",
        about: "random writes, flushes, forced writes and discards on a file with kills and power cuts at write \
                boundaries; acknowledged data is read back, flushed data survives",
        run: file_crash::run,
    },
    Scenario {
        name: "devices-conformance",
        about: "the conformance suite on random stacks of devices, under a schedule and hardware that take every liberty",
        run: conformance::run,
    },
    Scenario {
        name: "zoned-drive-conformance",
        about: "the conformance suite for zoned devices, on a drive that has zones and takes its time",
        run: conformance::run_zones,
    },
    Scenario {
        name: "mirror-crash",
        about: "a mirror over failing files under kills and power cuts; acknowledged data is on every leg that counts, \
                no block reads as two things",
        run: mirror_crash::run,
    },
    Scenario {
        name: "stack-faults",
        about: "a mirror over checksums over disks that rot, misdirect and lose writes silently; no read returns wrong data",
        run: stack_faults::run,
    },
    Scenario {
        name: "zoned",
        about: "zones over a failing file that are written, appended to, reset and finished under kills and power cuts; what \
                was flushed is before the pointers, nothing old is behind them, and every write is there whole or not at all",
        run: zoned::run,
    },
    Scenario {
        name: "zoned-drive",
        about: "the same on a drive that has the zones itself; a write that failed or was cut may be there in part, and what comes \
                next is right behind it",
        run: zoned::run_drive,
    },
    Scenario {
        name: "flash-cache",
        about: "a cache on flash that rots, lies, hangs, dies, goes away and comes back as it was long ago, before a disk that fails, \
                under kills and power cuts; no read is stale, and flash's failures are nobody's errors",
        run: flash_cache::run,
    },
    Scenario {
        name: "flash-budget",
        about: "a flash cache over days, with bursts, silence and restarts; in no 24 hours is more written to flash than the \
                budget allows, and nearly all of it where there is demand",
        run: flash_cache::run_budget,
    },
    Scenario {
        name: "net-streams",
        about: "TCP between nodes under resets, stalls, partitions, kills and power cuts; every byte received is the next \
                one sent, and connections work again when the faults end",
        run: net_streams::run,
    },
    Scenario {
        name: "pmem-log",
        about: "a log in persistent memory, crashed at store and fence boundaries with any subset of unfenced lines; \
                acknowledged records survive whole",
        run: pmem_log::run,
    },
    Scenario {
        name: "hot-pool",
        about: "a hot pool whose log is always nearly full, mapped or on a disk, under kills, power cuts and failing disks; \
                every acknowledged write is durable",
        run: hot_pool::run,
    },
    Scenario {
        name: "shaped-pool",
        about: "the same with a shaped pool, whose blocks go from band to band all the time",
        run: hot_pool::run_shaped,
    },
    Scenario {
        name: "hot-pool-changes",
        about: "a hot pool whose volumes come, change their size and go and which grows, is scrubbed, checked and repaired \
                at crash points; a crash leaves nothing to find, and changes are done as a whole",
        run: hot_pool_changes::run,
    },
    Scenario {
        name: "shaped-pool-changes",
        about: "the same with a shaped pool, which grows by bands",
        run: hot_pool_changes::run_shaped,
    },
    Scenario {
        name: "hot-pool-damage",
        about: "a hot pool whose map pages are damaged: reads of what they alone knew are errors until it is written, \
                nothing is stale, and the pool goes on",
        run: hot_pool_damage::run,
    },
    Scenario {
        name: "shaped-pool-damage",
        about: "the same of a shaped pool, whose bands are collected meanwhile",
        run: hot_pool_damage::run_shaped,
    },
    Scenario {
        name: "hot-pool-full",
        about: "thin volumes on a capacity device that is full behind a log that is; writes to new places fail as they \
                should, everything else goes on, and what is given back can be used again",
        run: hot_pool_full::run,
    },
    Scenario {
        name: "shaped-pool-full",
        about: "the same with a shaped pool, whose extents are all written whole, again and again",
        run: hot_pool_full::run_shaped,
    },
    Scenario {
        name: "parity-pool-full",
        about: "the same with a shaped pool over parity, whose bands are of few units",
        run: hot_pool_full::run_parity,
    },
    Scenario {
        name: "zoned-pool-full",
        about: "the same with a shaped pool on zones, whose collector must find an empty one in time",
        run: hot_pool_full::run_zoned,
    },
    Scenario {
        name: "warm-pool-full",
        about: "the same with a warm pool, whose flash is away now and then",
        run: hot_pool_full::run_warm,
    },
    Scenario {
        name: "hot-pool-stall",
        about: "a hot or shaped pool whose capacity device takes no flush any more from some moment on; nobody waits for ever, \
                and what was acknowledged is there on a device that works again",
        run: hot_pool_stall::run,
    },
    Scenario {
        name: "hot-pool-forget",
        about: "a hot pool that loses its log device and gives it up, crashed at any step; what may have been newer is an \
                error, nothing stale comes back, and nothing else is lost",
        run: hot_pool_forget::run,
    },
    Scenario {
        name: "shaped-pool-forget",
        about: "the same with a shaped pool, whose index goes with its log device and is built anew",
        run: hot_pool_forget::run_shaped,
    },
    Scenario {
        name: "hot-pool-rot",
        about: "a hot pool on disks that rot, become unreadable and fail while it is used, its log as well; errors, and \
                never wrong bytes, until a block is written again",
        run: hot_pool_rot::run,
    },
    Scenario {
        name: "shaped-pool-rot",
        about: "the same with a shaped pool, whose stripes rot as a whole",
        run: hot_pool_rot::run_shaped,
    },
    Scenario {
        name: "hot-pool-rot-small",
        about: "the same with a log of few segments, most of which failing writes put out of use: writes may fail then, and \
                none waits for ever",
        run: hot_pool_rot::run_small,
    },
    Scenario {
        name: "hot-pool-images",
        about: "what a crash would leave of a hot pool at its write boundaries, opened and read twice; every \
                acknowledged write is there, nothing is torn, both recoveries agree",
        run: pool_images::run,
    },
    Scenario {
        name: "shaped-pool-images",
        about: "the same with a shaped pool, whose blocks go from band to band all the time",
        run: pool_images::run_shaped,
    },
    Scenario {
        name: "parity-pool-images",
        about: "the same with a shaped pool over members with parity; one of them may be away afterwards",
        run: pool_images::run_parity,
    },
    Scenario {
        name: "mirror-pool-images",
        about: "the same with a pool of either shape over a mirror; one of its legs may be away afterwards",
        run: pool_images::run_mirror,
    },
    Scenario { name: "zoned-pool-images", about: "the same with a shaped pool on zones", run: pool_images::run_zoned },
    Scenario {
        name: "warm-pool-images",
        about: "the same with a warm pool; its flash may be away afterwards",
        run: pool_images::run_warm,
    },
    Scenario {
        name: "parity-pool",
        about: "a shaped pool over members with parity, one of which dies or fails at any moment, in a rebuild and in recovery \
                too, and is replaced, under kills and power cuts; nobody notices, and every acknowledged write is durable",
        run: redundant_pool::run_parity,
    },
    Scenario {
        name: "mirror-pool",
        about: "the same with a pool of either shape over a mirror, one leg of which may rot instead",
        run: redundant_pool::run_mirror,
    },
    Scenario {
        name: "warm-pool",
        about: "a hot pool over a flash cache over slow disks; flash rots, lies, hangs, is away and comes back as it was before, \
                under snapshots, clones, kills and power cuts; nothing stale is read, and clones share what is cached",
        run: warm_pool::run,
    },
    Scenario {
        name: "zoned-pool",
        about: "a shaped pool over zones, some of which become read-only or go offline, within their limits, under kills, power cuts \
                and failing disks; every write is where its zone goes on, and every acknowledged one is durable",
        run: zoned_pool::run,
    },
    Scenario {
        name: "zoned-drive-pool",
        about: "the same over a drive that has the zones itself",
        run: zoned_pool::run_drive,
    },
    Scenario {
        name: "log-refusals",
        about: "a pool whose log device refuses writes for a while, some or all; nothing acknowledged is lost, and when it takes \
                writes again so does the pool, with all of its log",
        run: log_refusals::run,
    },
    Scenario {
        name: "pool-clones",
        about: "clones that are written to in part and in parallel while they are flattened and while their originals go, over slow \
                devices, under kills and power cuts; nothing but writing changes what they read as",
        run: pool_clones::run,
    },
    Scenario {
        name: "pool-snapshots",
        about: "pools of either shape whose volumes have snapshots, are cloned, rolled back and deleted while they are used, \
                crashed at any step; a snapshot is what its volumes were at one moment, and stays that",
        run: pool_snapshots::run,
    },
    Scenario {
        name: "pool-streams",
        about: "snapshots that are exported and imported, whole and as what differs, while their volume is written to, cut off or \
                damaged on their way, under kills and power cuts; a snapshot that was imported is whole, and what failed leaves nothing",
        run: pool_streams::run,
    },
    Scenario {
        name: "pool-versions",
        about: "pools of either shape over a mirror or parity whose disks rot in single blocks while they are used; no read fails \
                or is wrong, and a scrub leaves nothing rotten",
        run: pool_versions::run,
    },
    Scenario {
        name: "pool-metadata-rot",
        about: "pools of either shape whose metadata rots under them; a scrub has all of it written anew, also when it is cut off by \
                crashes, and a shaped one has everything without its log device",
        run: metadata_rot::run,
    },
    Scenario {
        name: "engine-meta",
        about: "the engine's metadata under kills, power cuts and failing writes; what opens is the last checkpoint or the \
                one that was under way, and every acknowledged journal entry",
        run: engine_meta::run,
    },
    Scenario {
        name: "engine-log",
        about: "the engine's log on persistent memory and disks under kills, power cuts and write errors; what was durable \
                comes back whole and in order, nothing else does, and the log goes on",
        run: engine_log::run,
    },
    Scenario {
        name: "nvmf",
        about: "NVMe/TCP hosts and a target over a network that stalls, resets, partitions and flips bits, on slow devices \
                that are resized and come and go; reads return what was written last, pairs happen once or not at all",
        run: nvmf::run_live,
    },
    Scenario {
        name: "nvmf-restart",
        about: "NVMe/TCP hosts and a target whose processes and machines die and come back; flushed data survives, and no \
                write of an earlier connection lands on a later one",
        run: nvmf::run_restart,
    },
    Scenario {
        name: "nvmf-paths",
        about: "NVMe/TCP hosts with a path to each of two targets of one device, whose access states change and whose paths are \
                cut; no write of a lost path lands on a later one, and nothing is sent where it is not wanted",
        run: nvmf::run_paths,
    },
    Scenario {
        name: "nvmf-fencing",
        about: "two NVMe/TCP hosts that take a namespace from each other by reservations, under load; after a preemption \
                with abort no write of the other one lands",
        run: nvmf::run_fencing,
    },
    Scenario {
        name: "vhost-queues",
        about: "virtqueues of guests that outlive the daemon, on a failing disk, under kills, stops and power cuts, beside a \
                guest that writes anything; every request ends once, and flushed data survives",
        run: vhost::run,
    },
];

/// All scenarios.
pub fn list() -> &'static [Scenario] {
    SCENARIOS
}

/// How to run a scenario.
#[derive(Clone, Debug)]
pub struct Options {
    /// Breaks something on purpose; for tests of the checkers.
    pub mutation: Option<Mutation>,
    /// Lines of the trace that a failure carries.
    pub tail_lines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { mutation: None, tail_lines: TAIL_LINES_DEFAULT }
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The scenario.
    pub scenario: &'static str,
    /// Its seed.
    pub seed: u64,
    /// The hash of the whole trace: equal for equal seeds.
    pub hash: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Virtual time that passed.
    pub virtual_ns: u64,
    /// Crash points checked: distinct images, each recovered twice with the same result.
    pub points: u64,
    /// Whether everything held.
    pub verdict: Verdict,
}

/// Whether everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did.
    Ok,
    /// It did not.
    Failed {
        /// What went wrong.
        reason: String,
        /// The last events before, oldest first.
        trace_tail: Vec<String>,
    },
}

impl Outcome {
    /// Whether everything held.
    pub fn is_ok(&self) -> bool {
        self.verdict == Verdict::Ok
    }

    /// Why it failed.
    pub fn reason(&self) -> Option<&str> {
        match &self.verdict {
            Verdict::Ok => None,
            Verdict::Failed { reason, .. } => Some(reason),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { scenario, seed, hash, steps, .. } = self;
        let ms = self.virtual_ns as f64 / 1e6;
        match &self.verdict {
            Verdict::Ok => {
                write!(f, "{scenario} seed {seed}: ok, hash {hash:016x}, {steps} steps, {ms:.1} ms of virtual time")
            }
            Verdict::Failed { reason, trace_tail } => {
                trace_tail.iter().try_for_each(|line| writeln!(f, "{line}"))?;
                write!(f, "{scenario} seed {seed}: FAILED after {steps} steps, {ms:.1} ms, hash {hash:016x}: {reason}")
            }
        }
    }
}

/// What a scenario works with.
pub(crate) struct Run {
    pub(crate) world: World,
    /// The scenario's own chance, apart from the world's.
    pub(crate) rng: Rng,
    /// See [`Outcome::points`].
    pub(crate) points: u64,
}

/// Runs a scenario; `None` when there is none of this name.
pub fn run(name: &str, seed: u64, options: &Options) -> Option<Outcome> {
    let scenario = list().iter().find(|scenario| scenario.name == name)?;
    let mut run = Run { world: World::new(seed), rng: Rng::new(!seed), points: 0 };
    run.world.set_mutation(options.mutation);
    let result = panics::caught(|| (scenario.run)(&mut run));
    let panicked = result.is_err();
    let verdict = match result.unwrap_or_else(|text| Err(Failure::new(text))) {
        Ok(()) => run.world.check().and_then(|()| nothing_left_behind(&run.world)).err(),
        Err(failure) => Some(failure),
    };
    let handle = run.world.handle();
    let outcome = Outcome {
        scenario: scenario.name,
        seed,
        hash: handle.hash(),
        steps: run.world.steps(),
        virtual_ns: run.world.elapsed_ns(),
        points: run.points,
        verdict: match verdict {
            None => Verdict::Ok,
            Some(failure) => Verdict::Failed { reason: failure.reason, trace_tail: handle.tail(options.tail_lines) },
        },
    };
    if panicked {
        // Tasks were interrupted at an arbitrary point; their destructors may panic again.
        std::mem::forget(run);
    }
    Some(outcome)
}

/// Processes that ended are gone, with all that they held.
fn nothing_left_behind(world: &World) -> Result<(), Failure> {
    match world.left_behind() {
        0 => Ok(()),
        held => {
            Err(Failure::new(format!("{held} reactors of processes that ended are still held, with all their memory")))
        }
    }
}
