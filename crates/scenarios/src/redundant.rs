//! Devices that do without one of their disks, by parity or as a mirror: what the scenarios ask of either. How they are made up,
//! and what is the same in both when they are used.

use crate::bays::path;
use crate::hot_pool::{EXTENT_BLOCKS, FRONT_BLOCKS, Plan, SHADOW_FRONT_BLOCKS, defect_of};
use base::Rng;
use bdev::{
    BlockDevice, DeviceError, DeviceInfo, LegState, MemberState, MirrorDefect, MirrorDevice, MirrorOptions,
    ParityDefect, ParityDevice, ParityOptions,
};
use reactor::Reactor;
use sim::Mutation;
use std::rc::Rc;
use std::sync::Arc;

/// Of a leg, what is not data: two superblocks, a page of bits, and what aligns the rest.
const LEG_HEAD_BYTES: u64 = 1 << 20;
/// What legs grow by at a time.
const LEG_STEP_BYTES: u64 = 64 << 10;

/// The disk in each bay, where one is found.
pub(crate) type Disks = Vec<Option<Arc<dyn BlockDevice>>>;

/// What a redundant device is like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Array {
    Parity(Members),
    Mirror(Legs),
}

/// Of a parity device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    members: usize,
    chunk_blocks: u64,
    rows: u64,
    /// Rows that it has in the end, when it has grown.
    rows_max: u64,
    note_bytes: u64,
    /// Blocks of its head.
    head_blocks: u64,
    defect: Option<ParityDefect>,
}

/// Of a mirror.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Legs {
    legs: usize,
    data_bytes: u64,
    steps_max: u64,
    region_bytes: u64,
    /// See [`MirrorOptions`].
    regions_max: usize,
    defect: Option<MirrorDefect>,
}

impl Array {
    /// Parity for a pool in place, and this as one that is shaped.
    pub(crate) fn parity(
        rng: &mut Rng,
        mutation: Option<Mutation>,
        in_place: impl FnOnce(&mut Rng) -> Plan,
    ) -> (Plan, Array) {
        let members = rng.between(3, 5) as usize;
        let chunk_blocks = 1 << rng.below(2);
        let row_blocks = (members as u64 - 1) * chunk_blocks;
        let unit_blocks = row_blocks as u32 * rng.between(1, 2) as u32;
        let band_blocks = (unit_blocks * rng.between(2, 4) as u32).max(6);
        let plan = in_place(rng).with_bands(rng, unit_blocks, band_blocks);
        let plan = Plan { defect: defect_of(mutation), ..plan };
        let rows = (plan.capacity_bytes / 4096 - FRONT_BLOCKS).div_ceil(row_blocks);
        let growth_bytes = growth(rng, &plan);
        // Of an extent, the bands that it takes with what is kept back.
        let rows_max = rows + (growth_bytes * 2 / 4096).div_ceil(row_blocks);
        let plan = plan.growing(growth_bytes);
        let defect = match mutation {
            Some(Mutation::SkipParity) => Some(ParityDefect::SkipParity),
            Some(Mutation::SkipRecord) => Some(ParityDefect::SkipRecord),
            Some(Mutation::ReadUnbuilt) => Some(ParityDefect::ReadUnbuilt),
            Some(Mutation::GrowUnrecorded) => Some(ParityDefect::GrowUnrecorded),
            _ => None,
        };
        let (note_bytes, head_blocks) = (rng.between(1, 40) << 16, FRONT_BLOCKS / 4);
        (plan, Array::Parity(Members { members, chunk_blocks, rows, rows_max, note_bytes, head_blocks, defect }))
    }

    /// A mirror for a pool, which stays what it is.
    pub(crate) fn mirror(rng: &mut Rng, mutation: Option<Mutation>, plan: Plan) -> (Plan, Array) {
        let growth_bytes = growth(rng, &plan);
        let plan = Plan { defect: defect_of(mutation), ..plan.growing(growth_bytes) };
        let legs = Legs {
            legs: rng.between(2, 3) as usize,
            data_bytes: plan.capacity_bytes,
            steps_max: growth_bytes * 2 / LEG_STEP_BYTES,
            region_bytes: 4096 << rng.between(2, 8),
            regions_max: if rng.one_in(2) { rng.between(200, 2_000) as usize } else { 0 },
            defect: match mutation {
                Some(Mutation::SkipResync) => Some(MirrorDefect::SkipCopies),
                Some(Mutation::GrowUnrecorded) => Some(MirrorDefect::GrowUnrecorded),
                Some(Mutation::GrowUnmarked) => Some(MirrorDefect::GrowUnmarked),
                _ => None,
            },
        };
        (plan, Array::Mirror(legs))
    }

    /// The same with room for a shadow of the index.
    pub(crate) fn with_shadow(self) -> Array {
        match self {
            Array::Parity(members) => Array::Parity(Members { head_blocks: SHADOW_FRONT_BLOCKS, ..members }),
            mirror => mirror,
        }
    }

    /// Disks that it has at a time.
    pub(crate) fn bays(&self) -> usize {
        match self {
            Array::Parity(members) => members.members,
            Array::Mirror(legs) => legs.legs,
        }
    }

    /// A dead disk can be replaced while its device is used.
    pub(crate) fn swaps(&self) -> bool {
        matches!(self, Array::Parity(_))
    }

    /// Steps that it grows by in the end.
    pub(crate) fn steps_max(&self) -> u64 {
        match self {
            Array::Parity(members) => members.rows_max - members.rows,
            Array::Mirror(legs) => legs.steps_max,
        }
    }

    /// What it becomes larger by with a step.
    pub(crate) fn step_bytes(&self) -> u64 {
        match self {
            Array::Parity(members) => (members.members as u64 - 1) * members.chunk_blocks * 4096,
            Array::Mirror(_) => LEG_STEP_BYTES,
        }
    }

    /// What each disk needs when it has grown by so many.
    pub(crate) fn disk_bytes(&self, steps: u64) -> u64 {
        match self {
            Array::Parity(members) => {
                8192 + members.head_blocks * 4096 + (members.rows + steps) * members.chunk_blocks * 4096
            }
            Array::Mirror(legs) => LEG_HEAD_BYTES + legs.data_bytes + steps * LEG_STEP_BYTES,
        }
    }

    /// Of each disk, where what the device holds may begin.
    pub(crate) fn data_from(&self) -> u64 {
        match self {
            Array::Parity(_) => 8192,
            Array::Mirror(_) => LEG_HEAD_BYTES,
        }
    }

    /// The first disk of each bay, and its bytes.
    pub(crate) fn disks(&self) -> Vec<(String, u64)> {
        (0..self.bays()).map(|bay| (path(bay, 0), self.disk_bytes(0))).collect()
    }

    /// Opens these, but for one that is `away`.
    pub(crate) fn first_disks(&self, plan: &Plan, reactor: &Rc<Reactor>, away: Option<u64>) -> Result<Disks, String> {
        let is_away = |bay: usize| away.is_some_and(|away| away % self.bays() as u64 == bay as u64);
        let disk = |bay| if is_away(bay) { Ok(None) } else { plan.file(reactor, &path(bay, 0)).map(Some) };
        (0..self.bays()).map(disk).collect()
    }

    /// Opens it, or makes it of disks that are blank.
    pub(crate) async fn open(&self, reactor: &Rc<Reactor>, disks: Disks, create: bool) -> Result<Redundant, String> {
        let opened = match self {
            Array::Parity(members) => {
                let options = members.options(create);
                ParityDevice::open(reactor, "parity", disks, &options).await.map(Arc::new).map(Redundant::Parity)
            }
            Array::Mirror(legs) => {
                let options = legs.options(create);
                MirrorDevice::open(reactor, "mirror", disks, &options).await.map(Arc::new).map(Redundant::Mirror)
            }
        };
        let opened = opened.map_err(|error| error.to_string())?;
        // A mirror copies when it is told to: at its leisure it would not come to an end in a short life.
        if let Redundant::Parity(parity) = &opened {
            parity.compare_in_background(reactor);
        }
        Ok(opened)
    }
}

/// What a pool may grow by.
fn growth(rng: &mut Rng, plan: &Plan) -> u64 {
    rng.below(3) * plan.shards as u64 * EXTENT_BLOCKS * 4096
}

impl Members {
    fn options(&self, create: bool) -> ParityOptions {
        ParityOptions {
            create,
            chunk_bytes: self.chunk_blocks * 4096,
            head_bytes: self.head_blocks * 4096,
            rebuild_note_bytes: self.note_bytes,
            defect: self.defect,
            ..ParityOptions::default()
        }
    }
}

impl Legs {
    fn options(&self, create: bool) -> MirrorOptions {
        MirrorOptions {
            create,
            assume_clean: create,
            // One disk is missing at a time, and only when all others are in sync.
            start_degraded: !create,
            region_bytes: self.region_bytes,
            regions_max: self.regions_max,
            defect: self.defect,
            ..MirrorOptions::default()
        }
    }
}

/// One that is open.
#[derive(Clone)]
pub(crate) enum Redundant {
    Parity(Arc<ParityDevice>),
    Mirror(Arc<MirrorDevice>),
}

impl Redundant {
    pub(crate) fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Redundant::Parity(parity) => parity.clone(),
            Redundant::Mirror(mirror) => mirror.clone(),
        }
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        self.device().info()
    }

    /// Every disk has everything, durably.
    pub(crate) fn is_whole(&self) -> bool {
        match self {
            Redundant::Parity(parity) => parity.members().iter().all(|member| member.state == MemberState::InSync),
            Redundant::Mirror(mirror) => {
                mirror.is_recorded() && mirror.legs().iter().all(|leg| leg.state == LegState::InSync)
            }
        }
    }

    /// A disk that does not count any more.
    pub(crate) fn failed(&self) -> Option<usize> {
        match self {
            Redundant::Parity(parity) => parity.members().iter().position(|member| member.state == MemberState::Failed),
            Redundant::Mirror(mirror) => mirror.legs().iter().position(|leg| leg.state == LegState::Failed),
        }
    }

    pub(crate) fn is_absent(&self, bay: usize) -> bool {
        match self {
            Redundant::Parity(parity) => parity.members()[bay].name.is_none(),
            Redundant::Mirror(mirror) => mirror.legs()[bay].name.is_none(),
        }
    }

    /// How its disks are, in words.
    pub(crate) fn states(&self) -> String {
        match self {
            Redundant::Parity(parity) => format!("{:?}", parity.members()),
            Redundant::Mirror(mirror) => format!("{:?}", mirror.legs()),
        }
    }

    /// Takes a disk in, or the one that is in the bay.
    pub(crate) async fn join(
        &self,
        reactor: &Rc<Reactor>,
        bay: usize,
        device: Option<Arc<dyn BlockDevice>>,
    ) -> Result<(), DeviceError> {
        match self {
            Redundant::Parity(parity) => parity.join(reactor, bay, device, false).await,
            Redundant::Mirror(mirror) => mirror.join(reactor, bay, device, false).await.map(drop),
        }
    }

    /// Gives disks what they lack.
    pub(crate) async fn rebuild(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        match self {
            Redundant::Parity(parity) => parity.rebuild(reactor).await,
            Redundant::Mirror(mirror) => mirror.resync(reactor, 1_000).await,
        }
    }

    /// Nothing is left that a crash would make equal.
    pub(crate) async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        match self {
            Redundant::Parity(parity) => parity.settle(reactor).await,
            Redundant::Mirror(mirror) => mirror.settle(reactor).await,
        }
    }
}
