//! Mirroring: every block on every leg (RAID 1), and no guessing after a crash.
//!
//! What holds, always:
//! - A write is acknowledged when every leg that counts as in sync has it. A leg that missed a write is called failed,
//!   durably on the others, before that write is acknowledged: so a leg that comes back can never be taken for current.
//! - Before a write touches a region, the region's dirty bit is durable on all legs in use. After a crash legs may differ
//!   in dirty regions; until those have been copied, a read first makes the blocks that it wants equal and durable on all
//!   legs in sync. So a value that was read stays until the next write, whichever leg fails meanwhile. While a leg is
//!   missing bits are only set, which makes them the list of what it lacks.
//! - Writes to overlapping blocks reach all legs in the same order.
//! - Two legs that were used without each other are refused, and an old leg alone too, unless the operator decides. A leg put back
//!   from a copy of before the last opening is filled anew.
//! - A leg that was absent or failed is taken in while the mirror is used ([`join`](MirrorDevice::join)): with no write under
//!   way, so that every region it may lack is marked before the first write reaches it, and every region copied to it
//!   since counts.
//!
//! A bit is cleared lazily: nothing under way in the region, all legs in sync, and flushed.
//!
//! A leg that cannot flush is called failed. Where it is the last one in sync, the flush fails for all users of the mirror, no bit is
//! cleared, and the leg is called failed as soon as another one is in sync. A mirror that is opened anew does not know of it: a leg that
//! then reads well counts.

mod bitmap;
pub(crate) mod format;
mod grow;
mod io;
mod join;
mod meta;
mod regions;
mod upkeep;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::flush_line::FlushLine;
use crate::io::{Op, OpSet};
use crate::openings::Openings;
use crate::pace::Rate;
use crate::part_name::part_name;
use crate::range_lock::RangeLock;
use crate::signs;
use crate::slots::{self, Found, Slots, UNIT_BYTES};
use bitmap::Loaded;
use format::{BitmapPage, KIND, LegRecord, PAGE_REGIONS, PAGES_MAX, Superblock};
pub use format::{LEGS_MAX, LegState};
use io::{Inner, MirrorChannel};
use meta::Disagreement;
use reactor::{IoFuture, Reactor};
use regions::{DIRTY, NEEDS_SYNC, Regions};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, OnceLock};

/// How a mirror is opened.
#[derive(Clone, Debug, Default)]
pub struct MirrorOptions {
    /// Make a new mirror of legs whose first blocks are all zero.
    pub create: bool,
    /// With `create`: make one even where something else is.
    pub force: bool,
    /// With `create`: the legs hold the same data (all zeroes, usually), so nothing needs to be copied.
    pub assume_clean: bool,
    /// Go on with the legs that are here although an absent one may have newer writes.
    pub start_degraded: bool,
    /// After a split brain: the leg whose data survive.
    pub prefer: Option<usize>,
    /// Bytes per second that a resync copies at most; 0: a short pause after each region instead.
    pub resync_rate: u64,
    /// Bytes per dirty bit; 0 chooses (1 MiB, more on very large legs).
    pub region_bytes: u64,
    /// What legs are called that are absent; by number otherwise.
    pub leg_names: Vec<String>,
    /// Most regions that it grows to without making them larger; 0: as many as its bitmap has room for.
    pub regions_max: usize,
    /// For tests of what watches over mirrors.
    pub defect: Option<MirrorDefect>,
}

/// A rule of mirrors that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MirrorDefect {
    /// What it grows by counts as equal on all legs.
    GrowUnmarked,
    /// It grows without its superblocks saying so.
    GrowUnrecorded,
    /// A region counts as equal on all legs without having been copied.
    SkipCopies,
}

/// How a leg is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegStatus {
    /// The child's name; `None` when absent.
    pub name: Option<String>,
    /// Its state.
    pub state: LegState,
    /// Reads that failed on it, or that a pool above it found wrong.
    pub read_errors: u64,
    /// Operations repaired by writing back what another leg had.
    pub repairs: u64,
}

/// How a mirror is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorStatus {
    /// All legs, in order.
    pub legs: Vec<LegStatus>,
    /// Fewer legs than there should be have every write.
    pub degraded: bool,
    /// Regions whose dirty bit is set.
    pub dirty_regions: u64,
    /// Regions that remain to be copied.
    pub resync_left_regions: u64,
    /// Regions in all.
    pub regions: u64,
    /// Bytes of each.
    pub region_bytes: u64,
    /// Bytes per second that are being copied, of late.
    pub resync_bytes_per_s: u64,
}

/// See the module.
pub struct MirrorDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// As it was opened.
    opened: DeviceInfo,
    /// As it has grown since.
    blocks: AtomicU64,
    legs: Vec<Leg>,
    data_start: u64,
    regions: Regions,
    ranges: RangeLock,
    flushes: Arc<FlushLine>,
    /// Held across metadata writes; one range, so a fair asynchronous mutex.
    meta_turn: RangeLock,
    /// The metadata as it is on the legs; locked for copies only.
    meta: Mutex<Meta>,
    /// A leg's state has changed and is not yet on all legs in use: until it is, nothing that relies on it is
    /// acknowledged. Set with the metadata turn held, read by all channels.
    unrecorded: AtomicBool,
    last_clean_ns: AtomicU64,
    cleaning: AtomicBool,
    resync_turn: RangeLock,
    resync_rate: Rate,
    /// Of what is being copied.
    resync_bytes_per_s: AtomicU64,
    join_turn: RangeLock,
    grow_turn: RangeLock,
    /// The device is no more: what goes on in the background ends.
    is_gone: AtomicBool,
    regions_max: usize,
    leg_names: Vec<String>,
    defect: Option<MirrorDefect>,
}

struct Leg {
    /// Set when the mirror is opened, or when an absent leg arrives.
    device: OnceLock<Arc<dyn BlockDevice>>,
    /// Times that it was taken in while the mirror was used; what a resync copied before is not for the leg as it is now.
    joins: AtomicU32,
    /// The superblock slot to write first; only its first value may differ from zero. Written with the metadata turn held.
    slot_first: AtomicU64,
    /// The last generation that it is known to have. Written with the metadata turn held.
    generation: AtomicU64,
    state: AtomicU8,
    /// A flush has failed on it since it was taken in: it may lose what reads well.
    is_unflushed: AtomicBool,
    read_errors: AtomicU64,
    repairs: AtomicU64,
}

struct Meta {
    superblock: Superblock,
    pages: Vec<BitmapPage>,
}

const REGION_BYTES_DEFAULT: u64 = 1 << 20;
/// Between two rounds of clearing bits; md uses five seconds too.
const CLEAN_INTERVAL_NS: u64 = 5_000_000_000;
/// What a resync copies at a time, holding the range.
const COPY_BYTES: usize = 256 << 10;
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Flush]);
const STEPPED: OpSet = OpSet::of(&[Op::Compare, Op::CompareAndWrite, Op::Copy, Op::Verify]);

/// Indices of legs.
type LegSet = SmallVec<[usize; LEGS_MAX]>;

impl Shared {
    /// Of the legs that are here.
    fn devices(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.legs.iter().filter_map(|leg| leg.device.get().cloned()).collect()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks(), ..self.opened }
    }

    fn blocks(&self) -> u64 {
        self.blocks.load(Acquire)
    }

    fn block_bytes(&self) -> usize {
        self.opened.block_size as usize
    }

    fn leg_state(&self, leg: usize) -> LegState {
        LegState::of_code(self.legs[leg].state.load(Acquire)).expect("only states are stored")
    }

    /// As messages call it.
    fn leg_name(&self, leg: usize) -> String {
        part_name("leg", leg, self.legs[leg].device.get(), &self.leg_names)
    }

    fn legs_where(&self, wanted: impl Fn(LegState) -> bool) -> LegSet {
        (0..self.legs.len()).filter(|leg| wanted(self.leg_state(*leg))).collect()
    }

    /// Legs that are written.
    fn active(&self) -> LegSet {
        self.legs_where(|state| state != LegState::Failed)
    }

    fn in_sync(&self) -> LegSet {
        self.legs_where(|state| state == LegState::InSync)
    }

    /// Legs in use that may lose what they have.
    fn unflushed(&self) -> LegSet {
        let mut legs = self.active();
        legs.retain(|leg| self.legs[*leg].is_unflushed.load(Acquire));
        legs
    }

    fn all_in_sync(&self) -> bool {
        self.in_sync().len() == self.legs.len()
    }

    fn regions_with(&self, bit: u32) -> u64 {
        self.regions.iter().filter(|word| word.load(Acquire) & bit != 0).count() as u64
    }

    /// Regions that remain to be copied.
    fn regions_left(&self) -> u64 {
        self.regions_with(NEEDS_SYNC)
    }

    /// Whether two legs in sync may hold different data there, or come to it after a crash.
    fn may_differ(&self, lba: u64, nblocks: u64) -> bool {
        let marked = |region: usize| self.regions[region].load(Acquire) & NEEDS_SYNC != 0;
        self.regions.of(lba, nblocks).any(marked) && (self.in_sync().len() > 1 || self.unrecorded.load(Acquire))
    }
}

impl MirrorDevice {
    /// What a new mirror of these legs would be; otherwise why there cannot be one.
    pub fn plan(legs: &[DeviceInfo], options: &MirrorOptions) -> Result<DeviceInfo, String> {
        refuse_legs(legs, legs.len())?;
        let Plan { data_start, data_blocks, .. } = plan(legs, options)?;
        Ok(combine(legs, legs.len(), data_start, data_blocks))
    }

    /// Opens (or with [`MirrorOptions::create`] makes) the mirror of `legs`; `None` stands for an absent one. When
    /// [`status`](Self::status) says that regions remain to be copied, [`resync`](Self::resync) copies them; the mirror
    /// can be used meanwhile.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        legs: Vec<Option<Arc<dyn BlockDevice>>>,
        options: &MirrorOptions,
    ) -> Result<MirrorDevice, DeviceError> {
        let config = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let refuse = |reason: String| Err(config(reason));
        let mut legs = legs;
        let infos_of = |legs: &[Option<Arc<dyn BlockDevice>>]| -> Vec<DeviceInfo> {
            legs.iter().flatten().map(|leg| leg.info()).collect()
        };
        if !legs.is_empty() && legs.iter().all(Option::is_none) {
            let names: Vec<String> =
                (0..legs.len()).map(|leg| part_name("leg", leg, None, &options.leg_names)).collect();
            return refuse(format!("none of its legs is here: {}; bring one of them back at least", names.join(", ")));
        }
        refuse_legs(&infos_of(&legs), legs.len()).map_err(config)?;
        let mut channels = Vec::new();
        for leg in &legs {
            channels.push(leg.as_ref().map(|leg| leg.open_channel(reactor)).transpose()?);
        }
        let mut seen = Vec::new();
        for (channel, leg) in channels.iter().zip(&legs) {
            seen.push(match (channel, leg) {
                (Some(channel), Some(leg)) => look(reactor, name, &**channel, leg, options).await?,
                _ => Seen::absent(),
            });
        }
        let found: Vec<Option<Superblock>> = seen.iter().map(|seen| seen.superblock.clone()).collect();
        let fresh = options.create && (options.force || found.iter().all(Option::is_none));
        let mut superblock = if fresh {
            if legs.iter().any(Option::is_none) {
                return refuse("a new mirror needs all its legs".to_string());
            }
            refuse_used(name, &legs, &seen, options)?;
            new_superblock(reactor, &infos_of(&legs), options).map_err(config)?
        } else {
            if let Some(superblock) = found.iter().flatten().find(|superblock| superblock.legs.len() != legs.len()) {
                return refuse(format!("it has {} legs, {} are given", superblock.legs.len(), legs.len()));
            }
            decide(name, &legs, &mut seen, options)?
        };
        leave_out(name, &mut legs, &mut channels, &seen);
        let found: Vec<Option<Superblock>> = seen.iter().map(|seen| seen.superblock.clone()).collect();
        superblock.openings.begin(superblock.generation + 1, reactor.driver().random_u64());
        let Loaded { pages, damaged } = if fresh {
            let pages = vec![BitmapPage::filled(!options.assume_clean); superblock.pages as usize];
            Loaded { pages, damaged: Vec::new() }
        } else {
            bitmap::load(&slots_in_sync(reactor, &channels, &found, &superblock), &superblock).await
        };
        let present = infos_of(&legs);
        let shared = assemble(name, legs, &present, superblock, pages, options);
        let device = MirrorDevice { shared: Arc::new(shared) };
        for (leg, seen) in device.shared.legs.iter().zip(&seen) {
            leg.slot_first.store(seen.slot_first, Release);
            leg.generation.store(seen.generation(), Release);
        }
        damaged.iter().for_each(|page| device.shared.tell_damaged(page));
        device.begin(reactor, channels, fresh).await?;
        device.count_repaired_slots(&seen);
        damaged.iter().for_each(|page| _ = device.shared.legs[page.leg].repairs.fetch_add(1, Relaxed));
        Ok(device)
    }

    /// Makes the decisions of `open` durable: a new generation on all active legs, and the bitmap where it is new. And one more,
    /// before anything is written: so a leg that is put back from a copy made before is known from one that a crash has left behind.
    async fn begin(
        &self,
        reactor: &Rc<Reactor>,
        channels: Vec<Option<Rc<dyn Channel>>>,
        fresh: bool,
    ) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let inner = Inner::new(shared.clone(), reactor.clone(), channels);
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "write its metadata", status };
        if fresh {
            // An older mirror's superblock must not outlive this one's first.
            for (leg, slot) in shared.active().into_iter().flat_map(|leg| [(leg, 0), (leg, 1)]) {
                inner.slots(leg).write_unit(slot, &[0; UNIT_BYTES]).await.map_err(failed)?;
            }
        }
        let pages = shared.meta.lock().expect("nothing panics while holding the metadata").pages.len();
        for page in 0..pages {
            inner.write_page(page).await.map_err(failed)?;
        }
        for _ in 0..2 {
            inner.write_superblocks().await.map_err(failed)?;
        }
        Ok(())
    }

    /// Slots that could not be used when a leg was found have been rewritten on every leg in use.
    fn count_repaired_slots(&self, seen: &[Seen]) {
        for (index, (leg, seen)) in self.shared.legs.iter().zip(seen).enumerate() {
            if seen.superblock.is_some() && seen.damaged > 0 && self.shared.leg_state(index) != LegState::Failed {
                leg.repairs.fetch_add(seen.damaged, Relaxed);
                let (mirror, leg, slots) = (&self.shared.name, self.shared.leg_name(index), seen.damaged);
                tracing::info!(mirror, slots, "rewrote superblock slots of {leg}");
            }
        }
    }

    /// How its legs are doing, in order.
    pub fn legs(&self) -> Vec<LegStatus> {
        let shared = &self.shared;
        let legs = shared.legs.iter().enumerate().map(|(index, leg)| LegStatus {
            name: leg.device.get().map(|device| device.name().to_string()),
            state: shared.leg_state(index),
            read_errors: leg.read_errors.load(Relaxed),
            repairs: leg.repairs.load(Relaxed),
        });
        legs.collect()
    }

    /// Whether the states of its legs are durable: after a crash they are what they are now.
    pub fn is_recorded(&self) -> bool {
        !self.shared.unrecorded.load(Acquire)
    }

    /// How it is doing; looks at every region.
    pub fn status(&self) -> MirrorStatus {
        let shared = &self.shared;
        MirrorStatus {
            legs: self.legs(),
            degraded: !shared.all_in_sync(),
            dirty_regions: shared.regions_with(DIRTY),
            resync_left_regions: shared.regions_left(),
            regions: shared.regions.len() as u64,
            region_bytes: shared.regions.blocks() * u64::from(shared.opened.block_size),
            resync_bytes_per_s: shared.resync_bytes_per_s.load(Relaxed),
        }
    }

    /// Copies to the other legs what they may lack, while the mirror is in use, and ends with all of them in sync, but for those
    /// that failed meanwhile.
    /// Without a rate, `pause_ns` between two copies leaves room for others. Watch [`status`](Self::status) for progress; a reactor that
    /// stops ends it early, and a later call goes on.
    pub async fn resync(&self, reactor: &Rc<Reactor>, pause_ns: u64) -> Result<(), DeviceError> {
        let inner = self.inner(reactor)?;
        let outcome = inner.resync(pause_ns).await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "resync", status })
    }

    /// Bytes per second that a resync copies at most, also one that goes on; 0: a short pause after each region instead.
    pub fn set_resync_rate(&self, bytes_per_s: u64) {
        self.shared.resync_rate.set(bytes_per_s);
    }

    /// Starts [`resync`](Self::resync) if anything is to be copied, as a task of this reactor.
    pub fn resync_in_background(self: &Arc<Self>, reactor: &Rc<Reactor>) {
        let status = self.status();
        let regions = status.resync_left_regions;
        // A leg that lacks nothing still has to be called in sync.
        let is_recovering = |leg: &LegStatus| !matches!(leg.state, LegState::InSync | LegState::Failed);
        if regions == 0 && !status.legs.iter().any(is_recovering) {
            return;
        }
        match self.inner(reactor) {
            Ok(inner) => inner.resync_in_background(),
            Err(error) => tracing::error!(%error, "a mirror cannot be resynchronised"),
        }
    }

    /// Flushes all legs and clears the dirty bits of regions at rest, as before a shutdown.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let inner = self.inner(reactor)?;
        let outcome = inner.clean().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let open = |leg: &Leg| leg.device.get().map(|device| device.open_channel(reactor)).transpose();
        let channels = self.shared.legs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Inner::new(self.shared.clone(), reactor.clone(), channels))
    }
}

/// What was found at the start of a leg.
struct Seen {
    superblock: Option<Superblock>,
    /// Nothing but zeroes.
    blank: bool,
    slot_first: u64,
    /// Slots that hold no valid superblock.
    damaged: u64,
    /// Why it cannot be a leg as it is; it counts as absent then.
    unfit: Option<Unfit>,
}

struct Unfit {
    why: String,
    /// It has too few blocks, or others; what it holds does not matter.
    lacks_room: bool,
}

impl Seen {
    fn absent() -> Seen {
        Seen { superblock: None, blank: false, slot_first: 0, damaged: 0, unfit: None }
    }

    /// Of its superblock; 0 without one.
    fn generation(&self) -> u64 {
        self.superblock.as_ref().map_or(0, |own| own.generation)
    }

    fn unfit(why: String, lacks_room: bool) -> Seen {
        Seen { unfit: Some(Unfit { why, lacks_room }), ..Seen::absent() }
    }
}

/// Reads the superblock slots of a leg. One valid slot suffices; a leg without any that can be read, or that holds something else, is as
/// good as absent.
async fn look(
    reactor: &Rc<Reactor>,
    name: &str,
    channel: &dyn Channel,
    leg: &Arc<dyn BlockDevice>,
    options: &MirrorOptions,
) -> Result<Seen, DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Config { device: name.to_string(), reason });
    let info = leg.info();
    let block_size = info.block_size;
    if info.blocks < 4 * Slots::unit_blocks(block_size) {
        return Ok(Seen::unfit(format!("leg '{}' is too small for a mirror", leg.name()), true));
    }
    let found = Slots { reactor, channel, block_size, kind: KIND }.read(Superblock::decode).await;
    if let Some(status) = found.unreadable {
        tracing::warn!(mirror = name, %status, "a superblock slot of leg '{}' cannot be read", leg.name());
    }
    let overwrites = options.create && options.force;
    if let Some(version) = found.newer_version.filter(|_| !overwrites) {
        return refuse(slots::refuse_newer(&format!("superblock of leg '{}'", leg.name()), version));
    }
    let foreign = found.newest.is_none() && !found.blank && found.unreadable.is_none();
    if foreign && !overwrites {
        let holds = signs::in_place_of(signs::MIRROR_LEG, reactor, channel, &info).await;
        return Ok(Seen::unfit(format!("leg '{}' holds {holds}", leg.name()), false));
    }
    let needed = |own: &Superblock| (own.block_size, own.data_start + own.data_blocks);
    let room = found.newest.as_ref().filter(|_| !overwrites).map(needed);
    if let Some(why) = room.and_then(|(block_size, blocks)| lacks_room(&**leg, block_size, blocks)) {
        return Ok(Seen::unfit(why, true));
    }
    let Found { newest, blank, first, damaged, .. } = found;
    Ok(Seen { superblock: newest, blank, slot_first: first, damaged, unfit: None })
}

/// Why a leg cannot hold so many blocks of this size, metadata included.
fn lacks_room(leg: &dyn BlockDevice, block_size: u32, blocks: u64) -> Option<String> {
    let (info, name) = (leg.info(), leg.name());
    let suffices = info.block_size == block_size && info.blocks >= blocks;
    let (has, size) = (info.blocks, info.block_size);
    (!suffices).then(|| format!("leg '{name}' has {has} blocks of {size} bytes, {blocks} of {block_size} are needed"))
}

/// A new mirror is made of blank legs, unless it is forced.
fn refuse_used(
    name: &str,
    legs: &[Option<Arc<dyn BlockDevice>>],
    seen: &[Seen],
    options: &MirrorOptions,
) -> Result<(), DeviceError> {
    let device = name.to_string();
    for (leg, seen) in legs.iter().flatten().zip(seen) {
        let reason = match &seen.unfit {
            Some(Unfit { why, lacks_room: true }) => {
                return Err(DeviceError::TooSmall { device, reason: why.clone() });
            }
            Some(Unfit { why, .. }) => {
                let kib = KIND.copies * UNIT_BYTES as u64 / 1024;
                format!("{why}; wipe its first {kib} KiB, or create the mirror with force")
            }
            None if !seen.blank && !options.force => {
                format!("leg '{}' cannot be read; replace it, or create the mirror with force", leg.name())
            }
            None => continue,
        };
        return Err(DeviceError::Config { device, reason });
    }
    Ok(())
}

/// What the superblocks of the legs say together. A leg that has no room for the mirror as it is by now counts as absent.
fn decide(
    name: &str,
    legs: &[Option<Arc<dyn BlockDevice>>],
    seen: &mut [Seen],
    options: &MirrorOptions,
) -> Result<Superblock, DeviceError> {
    loop {
        let found: Vec<Option<Superblock>> = seen.iter().map(|seen| seen.superblock.clone()).collect();
        let blank: Vec<bool> = seen.iter().map(|seen| seen.blank).collect();
        let decided = meta::decide(&found, &blank, options.start_degraded, options.prefer)
            .map_err(|why| closed(name, &why, legs, &options.leg_names, seen))?;
        let needed = decided.data_start + decided.data_blocks;
        let too_small = |(leg, seen): (&Option<Arc<dyn BlockDevice>>, &Seen)| {
            let leg = leg.as_ref().filter(|_| seen.unfit.is_none())?;
            lacks_room(&**leg, decided.block_size, needed)
        };
        let found = legs.iter().zip(&*seen).map(too_small).enumerate();
        let Some((index, why)) = found.filter_map(|(index, why)| Some((index, why?))).next() else {
            return Ok(decided);
        };
        seen[index] = Seen::unfit(why, true);
    }
}

/// Why a mirror stays closed. A leg that is there, and not what belongs there, is named with what it holds.
fn closed(
    name: &str,
    why: &Disagreement,
    legs: &[Option<Arc<dyn BlockDevice>>],
    names: &[String],
    seen: &[Seen],
) -> DeviceError {
    let device = name.to_string();
    let unfit = |leg: usize| seen[leg].unfit.as_ref();
    if let Disagreement::MayBeStale(legs) = why
        && let Some(Unfit { why, lacks_room }) = legs.iter().find_map(|leg| unfit(*leg))
    {
        let reason =
            format!("{why}, and what belongs there may have newer writes than the other legs; {}", without(name));
        return match lacks_room {
            true => DeviceError::TooSmall { device, reason },
            false => DeviceError::Config { device, reason },
        };
    }
    let others = (0..seen.len()).filter_map(|leg| Some(unfit(leg)?.why.clone()));
    let reasons: Vec<String> = std::iter::once(explain(name, why, legs, names, false)).chain(others).collect();
    DeviceError::Config { device, reason: reasons.join("; ") }
}

/// Takes out legs that hold something else, or are too small: they count as absent, and are not written to.
fn leave_out(
    name: &str,
    legs: &mut [Option<Arc<dyn BlockDevice>>],
    channels: &mut [Option<Rc<dyn Channel>>],
    seen: &[Seen],
) {
    for (index, unfit) in seen.iter().enumerate().filter_map(|(index, seen)| Some((index, seen.unfit.as_ref()?))) {
        tracing::warn!(mirror = name, "{}; the mirror goes on without it", unfit.why);
        (legs[index], channels[index]) = (None, None);
    }
}

/// Whether these, the ones of `count` that are present, can be the legs of a mirror at all.
fn refuse_legs(present: &[DeviceInfo], count: usize) -> Result<(), String> {
    if count > LEGS_MAX || present.is_empty() {
        return Err(format!("{} of {count} legs here: expected 1 to {LEGS_MAX}", present.len()));
    }
    if present.iter().any(|info| info.block_size != present[0].block_size || info.zoned.is_some()) {
        return Err("legs differ in block size, or are zoned".to_string());
    }
    Ok(())
}

/// Where things are on the legs of a new mirror, in blocks.
struct Plan {
    data_start: u64,
    data_blocks: u64,
    region_blocks: u64,
    /// Of the bitmap.
    pages: u32,
}

fn plan(legs: &[DeviceInfo], options: &MirrorOptions) -> Result<Plan, String> {
    let block_size = legs[0].block_size as u64;
    let leg_blocks = legs.iter().map(|info| info.blocks).min().expect("at least one leg");
    let unit = Slots::unit_blocks(legs[0].block_size);
    let wanted = if options.region_bytes == 0 { REGION_BYTES_DEFAULT } else { options.region_bytes };
    let mut region_blocks = (wanted / block_size).max(1);
    while leg_blocks.div_ceil(region_blocks) > (PAGES_MAX * PAGE_REGIONS) as u64 {
        region_blocks *= 2;
    }
    let pages = leg_blocks.div_ceil(region_blocks).div_ceil(PAGE_REGIONS as u64);
    // Data start on a megabyte where that wastes nothing to speak of.
    let align = if leg_blocks * block_size >= 64 << 20 { (1 << 20) / block_size } else { unit };
    let data_start = ((2 + pages) * unit).next_multiple_of(align.max(1));
    if data_start >= leg_blocks {
        return Err(format!("{leg_blocks} blocks leave no room beside {data_start} blocks of metadata"));
    }
    Ok(Plan { data_start, data_blocks: leg_blocks - data_start, region_blocks, pages: pages as u32 })
}

/// The geometry and identity of a new mirror.
fn new_superblock(reactor: &Rc<Reactor>, legs: &[DeviceInfo], options: &MirrorOptions) -> Result<Superblock, String> {
    let Plan { data_start, data_blocks, region_blocks, pages } = plan(legs, options)?;
    let id = || {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
        id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
        id
    };
    let leg = |_| LegRecord { id: id(), state: LegState::InSync, failed_generation: 0 };
    Ok(Superblock {
        mirror_id: id(),
        generation: 0,
        block_size: legs[0].block_size,
        leg_index: 0,
        data_start,
        data_blocks,
        region_blocks,
        pages,
        legs: legs.iter().map(leg).collect(),
        openings: Openings::default(),
    })
}

/// The ways out when a leg is absent that may be needed.
fn without(mirror: &str) -> String {
    format!(
        "bring back what is missing; or 'remuda device open {mirror} --degraded', or start_degraded = true in the configuration, to go on \
         without it"
    )
}

/// `legs` are the devices, in order, as far as they are here; those of a mirror in use, where one is to be taken in.
fn explain(
    mirror: &str,
    why: &Disagreement,
    legs: &[Option<Arc<dyn BlockDevice>>],
    names: &[String],
    in_use: bool,
) -> String {
    let name = |leg: &usize| part_name("leg", *leg, legs.get(*leg).and_then(Option::as_ref), names);
    match why {
        Disagreement::SplitBrain(a, b) if in_use => format!(
            "{} and {} were used without each other and differ; rejoin it with --overwrite to give up what it holds",
            name(b),
            name(a)
        ),
        Disagreement::SplitBrain(a, b) => format!(
            "{} and {} were used without each other and differ; choose whose data survive: 'remuda device open {mirror} --prefer' and the \
             name of that leg (the other one is overwritten)",
            name(a),
            name(b)
        ),
        Disagreement::MayBeStale(absent) => {
            let (which, are) = (absent.iter().map(name).collect::<Vec<_>>(), if absent.len() > 1 { "are" } else { "is" });
            let (which, ways) = (which.join(" and "), without(mirror));
            format!("{which} {are} absent or wiped and may have newer writes than the others; {ways}")
        }
        Disagreement::WrongLeg(leg) => {
            format!("{} belongs to another mirror or another place; check the order of the legs", name(leg))
        }
        Disagreement::Unreadable(leg) => {
            format!("{} has no superblock that can be read; replace it, or overwrite it", name(leg))
        }
        Disagreement::NoSuchData(leg) => format!(
            "{} cannot be the one whose data survive: it is absent, or is not known to have all data; name another one, or bring it back",
            name(leg)
        ),
        Disagreement::NothingInSync => {
            "none of these legs holds a complete mirror; name the right ones, or open it in a node, which makes one of blank legs".to_string()
        }
    }
}

/// The metadata of the legs in sync that are here.
fn slots_in_sync<'a>(
    reactor: &'a Rc<Reactor>,
    channels: &'a [Option<Rc<dyn Channel>>],
    found: &[Option<Superblock>],
    superblock: &Superblock,
) -> Vec<Option<Slots<'a>>> {
    let of = |(leg, channel): (usize, &'a Option<Rc<dyn Channel>>)| {
        let is_in_sync = superblock.legs[leg].state == LegState::InSync && found[leg].is_some();
        let channel = channel.as_ref().filter(|_| is_in_sync)?;
        Some(Slots { reactor, channel: &**channel, block_size: superblock.block_size, kind: KIND })
    };
    channels.iter().enumerate().map(of).collect()
}

fn assemble(
    name: &str,
    legs: Vec<Option<Arc<dyn BlockDevice>>>,
    infos: &[DeviceInfo],
    mut superblock: Superblock,
    mut pages: Vec<BitmapPage>,
    options: &MirrorOptions,
) -> Shared {
    let full = superblock.legs.iter().any(|leg| leg.state == LegState::RecoveringFull);
    let several = superblock.legs.iter().filter(|leg| leg.state != LegState::Failed).count() > 1;
    if full {
        pages.iter_mut().for_each(|page| *page = BitmapPage::filled(true));
    }
    let word = |region: usize| match pages[region / PAGE_REGIONS].get(region % PAGE_REGIONS) {
        true if several => DIRTY | NEEDS_SYNC,
        true => DIRTY,
        false => 0,
    };
    let regions = Regions::new(superblock.region_blocks, superblock.data_blocks);
    (0..regions.len())
        .filter(|region| word(*region) != 0)
        .for_each(|region| regions[region].store(word(region), Release));
    // A leg that is new here gets an identity of its own.
    for (index, leg) in superblock.legs.iter_mut().enumerate() {
        if leg.state == LegState::RecoveringFull {
            leg.id = LegRecord::new_id(superblock.generation, index);
        }
    }
    let leg = |(device, record): (Option<Arc<dyn BlockDevice>>, &LegRecord)| Leg {
        device: device.map_or_else(OnceLock::new, OnceLock::from),
        joins: AtomicU32::new(0),
        slot_first: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        state: AtomicU8::new(record.state.code()),
        is_unflushed: AtomicBool::new(false),
        read_errors: AtomicU64::new(0),
        repairs: AtomicU64::new(0),
    };
    Shared {
        name: name.to_string(),
        opened: combine(infos, superblock.legs.len(), superblock.data_start, superblock.data_blocks),
        blocks: AtomicU64::new(superblock.data_blocks),
        legs: legs.into_iter().zip(&superblock.legs).map(leg).collect(),
        data_start: superblock.data_start,
        regions,
        ranges: RangeLock::new((1 << 20) / superblock.block_size as u64),
        flushes: Arc::default(),
        meta_turn: RangeLock::new(1),
        meta: Mutex::new(Meta { superblock, pages }),
        unrecorded: AtomicBool::new(false),
        last_clean_ns: AtomicU64::new(0),
        cleaning: AtomicBool::new(false),
        resync_turn: RangeLock::new(1),
        resync_rate: Rate::new(options.resync_rate),
        resync_bytes_per_s: AtomicU64::new(0),
        join_turn: RangeLock::new(1),
        grow_turn: RangeLock::new(1),
        is_gone: AtomicBool::new(false),
        regions_max: if options.regions_max == 0 { usize::MAX } else { options.regions_max },
        leg_names: options.leg_names.clone(),
        defect: options.defect,
    }
}

fn combine(infos: &[DeviceInfo], legs: usize, data_start: u64, data_blocks: u64) -> DeviceInfo {
    let common = infos.iter().fold(OpSet::of(&Op::ALL), |ops, info| ops.intersection(info.ops));
    let mut ops = common.intersection(OPS);
    if common.contains(Op::Read) && common.contains(Op::Write) {
        ops = ops.union(STEPPED);
    }
    // After an unmap the legs must read alike.
    let unmap_reads_zero = infos.iter().all(|info| info.unmap_reads_zero);
    if unmap_reads_zero && common.contains(Op::Unmap) {
        ops = ops.union(OpSet::of(&[Op::Unmap]));
    }
    let least = |value: fn(&DeviceInfo) -> u32| infos.iter().map(value).min().unwrap_or(1);
    let boundary = infos.iter().map(|info| info.atomic_boundary_blocks).filter(|blocks| *blocks > 0).min().unwrap_or(0);
    let basic = DeviceInfo {
        atomic_write_blocks: least(|info| info.atomic_write_blocks),
        atomic_boundary_blocks: boundary,
        ..DeviceInfo::basic(infos[0].block_size, data_blocks)
    };
    let (atomic_write_blocks, atomic_boundary_blocks) = basic.atomic_from(data_start);
    DeviceInfo {
        ops,
        optimal_io_blocks: least(|info| info.optimal_io_blocks),
        max_io_blocks: least(|info| info.max_io_blocks),
        atomic_write_blocks,
        atomic_boundary_blocks,
        compare_and_write_blocks: (least(|info| info.max_io_blocks) / 2).max(1),
        volatile_cache: infos.iter().any(|info| info.volatile_cache),
        unmap_reads_zero,
        loans: infos.iter().all(|info| info.loans),
        versions: versions_of(legs),
        ..basic
    }
}

/// The usual read, and what each leg has.
fn versions_of(legs: usize) -> u8 {
    if legs > 1 { 1 + legs as u8 } else { 1 }
}

impl Drop for MirrorDevice {
    fn drop(&mut self) {
        self.shared.is_gone.store(true, Release);
    }
}

impl BlockDevice for MirrorDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(MirrorChannel(self.inner(reactor)?)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.shared.devices()
    }

    fn note_wrong(&self, _lba: u64, version: u8) -> Option<String> {
        self.shared.note_wrong(version)
    }

    /// Grows it, and its legs where they are too small for that.
    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::new(self.grow(reactor, blocks))
    }

    /// Takes into use by what all legs have become larger, when all are in sync.
    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::new(self.grow_with_legs(reactor))
    }
}
