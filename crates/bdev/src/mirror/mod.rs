//! Mirroring: every block on every leg (RAID 1), and no guessing after a crash.
//!
//! What holds, always:
//! - A write is acknowledged when every leg that counts as in sync has it. A leg that missed a write is called failed,
//!   durably on the others, before that write is acknowledged: so a leg that comes back can never be taken for current.
//! - Before a write touches a region, the region's dirty bit is durable on all legs in use. After a crash, dirty regions
//!   are read from one leg only until they have been copied to the others, so a block never reads as two things. While a
//!   leg is missing bits are only set, which makes them the list of what it lacks.
//! - Writes to overlapping blocks reach all legs in the same order.
//! - Two legs that were used without each other are refused, and an old leg alone too, unless the operator decides.
//!
//! A bit is cleared lazily: nothing under way in the region, all legs in sync, and flushed.

mod format;
mod meta;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Lba, Op, OpSet, Status};
use crate::parts::Parts;
use crate::range_lock::RangeLock;
use crate::split;
use crate::steps::{self, Medium};
use format::{BitmapPage, LegRecord, PAGE_REGIONS, PAGES_MAX, Superblock};
pub use format::{LEGS_MAX, LegState};
use meta::{Disagreement, Found};
use reactor::{IoFuture, Reactor, SgList};
use smallvec::SmallVec;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

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
    /// Bytes per dirty bit; 0 chooses (1 MiB, more on very large legs).
    pub region_bytes: u64,
}

/// How a leg is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegStatus {
    /// The child's name; `None` when absent.
    pub name: Option<String>,
    /// Its state.
    pub state: LegState,
    /// Reads that failed on it.
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
}

/// See the module.
pub struct MirrorDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    info: DeviceInfo,
    legs: Vec<Leg>,
    data_start: u64,
    region_blocks: u64,
    /// Per region: [`DIRTY`], [`NEEDS_SYNC`], and how many writes are under way. Atomic because all reactors write to
    /// all regions; one addition per write, no lock.
    regions: Box<[AtomicU32]>,
    /// The leg that is read where legs may differ.
    authority: AtomicU8,
    ranges: RangeLock,
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
}

struct Leg {
    device: Option<Arc<dyn BlockDevice>>,
    state: AtomicU8,
    read_errors: AtomicU64,
    repairs: AtomicU64,
}

struct Meta {
    superblock: Superblock,
    pages: Vec<BitmapPage>,
}

const DIRTY: u32 = 1 << 31;
const NEEDS_SYNC: u32 = 1 << 30;
const REGION_BYTES_DEFAULT: u64 = 1 << 20;
/// Between two rounds of clearing bits; md uses five seconds too.
const CLEAN_INTERVAL_NS: u64 = 5_000_000_000;
/// What a resync copies at a time, holding the range.
const COPY_BYTES: usize = 256 << 10;
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Flush]);
const STEPPED: OpSet = OpSet::of(&[Op::Compare, Op::CompareAndWrite, Op::Copy, Op::Verify]);

enum CopyError {
    Source(Status),
    Target,
}

/// Indices of legs.
type LegSet = SmallVec<[usize; LEGS_MAX]>;

impl Shared {
    fn leg_state(&self, leg: usize) -> LegState {
        LegState::of_code(self.legs[leg].state.load(Acquire)).expect("only states are stored")
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

    fn all_in_sync(&self) -> bool {
        self.in_sync().len() == self.legs.len()
    }

    fn regions_of(&self, lba: u64, nblocks: u64) -> std::ops::RangeInclusive<usize> {
        let last = (lba + nblocks.max(1) - 1) / self.region_blocks;
        (lba / self.region_blocks) as usize..=last as usize
    }

    fn needs_sync(&self, lba: u64, nblocks: u64) -> bool {
        self.regions_of(lba, nblocks).any(|region| self.regions[region].load(Acquire) & NEEDS_SYNC != 0)
    }
}

impl MirrorDevice {
    /// Opens (or with [`MirrorOptions::create`] makes) the mirror of `legs`; `None` stands for an absent one. When
    /// [`status`](Self::status) says that regions remain to be copied, [`resync`](Self::resync) copies them; the mirror
    /// can be used meanwhile.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        legs: Vec<Option<Arc<dyn BlockDevice>>>,
        options: &MirrorOptions,
    ) -> Result<MirrorDevice, DeviceError> {
        let refuse = |reason: String| Err(DeviceError::Config { device: name.to_string(), reason });
        let present: Vec<DeviceInfo> = legs.iter().flatten().map(|leg| leg.info()).collect();
        if legs.len() > LEGS_MAX || present.is_empty() {
            return refuse(format!("{} of {} legs here: expected 1 to {LEGS_MAX}", present.len(), legs.len()));
        }
        if present.iter().any(|info| info.block_size != present[0].block_size || info.zoned.is_some()) {
            return refuse("legs differ in block size, or are zoned".to_string());
        }
        let mut channels = Vec::new();
        for leg in &legs {
            channels.push(leg.as_ref().map(|leg| leg.open_channel(reactor)).transpose()?);
        }
        let (mut found, mut blank) = (Vec::new(), Vec::new());
        for (channel, leg) in channels.iter().zip(&legs) {
            let state = match (channel, leg) {
                (Some(channel), Some(leg)) => find(reactor, name, channel, leg).await?,
                _ => None,
            };
            blank.push(matches!(state, Some(Found::Blank)));
            found.push(match state {
                Some(Found::Superblock(superblock)) => Some(*superblock),
                Some(Found::Foreign) if !(options.create && options.force) => {
                    return refuse(format!(
                        "leg {} holds other data; wipe its first {} KiB, or create the mirror with force",
                        found.len(),
                        2 * format::UNIT_BYTES / 1024
                    ));
                }
                _ => None,
            });
        }
        let fresh = options.create && (options.force || found.iter().all(Option::is_none));
        let superblock = if fresh {
            if legs.iter().any(Option::is_none) {
                return refuse("a new mirror needs all its legs".to_string());
            }
            plan(reactor, name, &present, options)?
        } else {
            meta::decide(&found, &blank, options.start_degraded, options.prefer)
                .map_err(|why| DeviceError::Config { device: name.to_string(), reason: explain(&why) })?
        };
        if present.iter().any(|info| {
            superblock.block_size != info.block_size || info.blocks < superblock.data_start + superblock.data_blocks
        }) {
            return refuse("a leg is smaller than the mirror, or has another block size".to_string());
        }
        let pages = if fresh {
            vec![BitmapPage::filled(!options.assume_clean); superblock.pages as usize]
        } else {
            load_pages(reactor, &channels, &found, &superblock).await
        };
        let device = MirrorDevice { shared: Arc::new(assemble(name, legs, &present, superblock, pages)) };
        device.begin(reactor, channels, fresh).await?;
        Ok(device)
    }

    /// Makes the decisions of `open` durable: a new generation on all active legs, and the bitmap where it is new.
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
                inner.write_unit(leg, slot, &[0; format::UNIT_BYTES]).await.check().map_err(failed)?;
            }
        }
        let pages = shared.meta.lock().expect("nothing panics while holding the metadata").pages.len();
        for page in 0..pages {
            inner.write_page(page).await.map_err(failed)?;
        }
        inner.write_superblocks().await.map_err(failed)
    }

    /// How it is doing.
    pub fn status(&self) -> MirrorStatus {
        let shared = &self.shared;
        let legs = shared.legs.iter().enumerate().map(|(index, leg)| LegStatus {
            name: leg.device.as_ref().map(|device| device.name().to_string()),
            state: shared.leg_state(index),
            read_errors: leg.read_errors.load(Relaxed),
            repairs: leg.repairs.load(Relaxed),
        });
        let count = |bit: u32| shared.regions.iter().filter(|word| word.load(Relaxed) & bit != 0).count() as u64;
        MirrorStatus {
            legs: legs.collect(),
            degraded: !shared.all_in_sync(),
            dirty_regions: count(DIRTY),
            resync_left_regions: count(NEEDS_SYNC),
            regions: shared.regions.len() as u64,
        }
    }

    /// Copies to the other legs what they may lack, while the mirror is in use, and ends with all of them in sync.
    /// `pause_ns` between two copies leaves room for others. Watch [`status`](Self::status) for progress; a reactor that
    /// stops ends it early, and a later call goes on.
    pub async fn resync(&self, reactor: &Rc<Reactor>, pause_ns: u64) -> Result<(), DeviceError> {
        let inner = self.inner(reactor)?;
        let outcome = inner.resync(pause_ns).await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "resync", status })
    }

    /// Flushes all legs and clears the dirty bits of regions at rest, as before a shutdown.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let inner = self.inner(reactor)?;
        let outcome = inner.clean().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let open = |leg: &Leg| leg.device.as_ref().map(|device| device.open_channel(reactor)).transpose();
        let channels = self.shared.legs.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Inner::new(self.shared.clone(), reactor.clone(), channels))
    }
}

async fn find(
    reactor: &Rc<Reactor>,
    name: &str,
    channel: &Rc<dyn Channel>,
    leg: &Arc<dyn BlockDevice>,
) -> Result<Option<Found>, DeviceError> {
    let failed = |status| DeviceError::Io { device: name.to_string(), action: "read the superblock of a leg", status };
    if leg.info().blocks < 4 * meta::unit_blocks(leg.info().block_size) {
        let reason = format!("leg '{}' is too small for a mirror", leg.name());
        return Err(DeviceError::Config { device: name.to_string(), reason });
    }
    meta::find(reactor, &**channel, leg.info().block_size).await.map(Some).map_err(failed)
}

/// The geometry and identity of a new mirror.
fn plan(
    reactor: &Rc<Reactor>,
    name: &str,
    legs: &[DeviceInfo],
    options: &MirrorOptions,
) -> Result<Superblock, DeviceError> {
    let block_size = legs[0].block_size as u64;
    let leg_blocks = legs.iter().map(|info| info.blocks).min().expect("at least one leg");
    let unit = meta::unit_blocks(legs[0].block_size);
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
        let reason = format!("{leg_blocks} blocks leave no room beside {data_start} blocks of metadata");
        return Err(DeviceError::Config { device: name.to_string(), reason });
    }
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
        data_blocks: leg_blocks - data_start,
        region_blocks,
        pages: pages as u32,
        legs: legs.iter().map(leg).collect(),
    })
}

fn explain(why: &Disagreement) -> String {
    match why {
        Disagreement::SplitBrain(a, b) => format!(
            "legs {a} and {b} were used without each other and differ; choose whose data survive with prefer = {a} or \
             prefer = {b} (the other leg is overwritten)"
        ),
        Disagreement::MayBeStale(leg) => format!(
            "leg {leg} is absent or wiped and may have newer writes than the others; bring it back, or set \
             start_degraded = true to go on without it"
        ),
        Disagreement::WrongLeg(leg) => {
            format!("leg {leg} belongs to another mirror or another place; check the order of the legs")
        }
        Disagreement::NothingInSync => {
            "none of these legs holds a complete mirror; set create = true to make a new one".to_string()
        }
    }
}

/// The bitmap of an existing mirror: what any leg in sync calls dirty is dirty.
async fn load_pages(
    reactor: &Rc<Reactor>,
    channels: &[Option<Rc<dyn Channel>>],
    found: &[Option<Superblock>],
    superblock: &Superblock,
) -> Vec<BitmapPage> {
    let mut pages = vec![BitmapPage::filled(false); superblock.pages as usize];
    for (leg, channel) in channels.iter().enumerate() {
        let (Some(channel), Some(_)) = (channel, &found[leg]) else { continue };
        if superblock.legs[leg].state != LegState::InSync {
            continue;
        }
        for (index, page) in pages.iter_mut().enumerate() {
            let other = meta::read_page(reactor, &**channel, superblock, index).await;
            page.bits.iter_mut().zip(other.bits).for_each(|(mine, theirs)| *mine |= theirs);
        }
    }
    pages
}

fn assemble(
    name: &str,
    legs: Vec<Option<Arc<dyn BlockDevice>>>,
    infos: &[DeviceInfo],
    mut superblock: Superblock,
    mut pages: Vec<BitmapPage>,
) -> Shared {
    let regions = superblock.data_blocks.div_ceil(superblock.region_blocks) as usize;
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
    let words = (0..regions).map(|region| AtomicU32::new(word(region))).collect();
    let authority = superblock.legs.iter().position(|leg| leg.state == LegState::InSync).unwrap_or(0) as u8;
    // A leg that is new here gets an identity of its own.
    for (index, leg) in superblock.legs.iter_mut().enumerate() {
        if leg.state == LegState::RecoveringFull {
            leg.id[..8].copy_from_slice(&(superblock.generation + 1).to_le_bytes());
            leg.id[8..].copy_from_slice(&(index as u64).to_le_bytes());
        }
    }
    let leg = |(device, record): (Option<Arc<dyn BlockDevice>>, &LegRecord)| Leg {
        device,
        state: AtomicU8::new(record.state.code()),
        read_errors: AtomicU64::new(0),
        repairs: AtomicU64::new(0),
    };
    Shared {
        name: name.to_string(),
        info: combine(infos, &superblock),
        legs: legs.into_iter().zip(&superblock.legs).map(leg).collect(),
        data_start: superblock.data_start,
        region_blocks: superblock.region_blocks,
        regions: words,
        authority: AtomicU8::new(authority),
        ranges: RangeLock::new((1 << 20) / superblock.block_size as u64),
        meta_turn: RangeLock::new(1),
        meta: Mutex::new(Meta { superblock, pages }),
        unrecorded: AtomicBool::new(false),
        last_clean_ns: AtomicU64::new(0),
        cleaning: AtomicBool::new(false),
        resync_turn: RangeLock::new(1),
    }
}

fn combine(infos: &[DeviceInfo], superblock: &Superblock) -> DeviceInfo {
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
    let shifted = boundary > 0 && !superblock.data_start.is_multiple_of(boundary as u64);
    DeviceInfo {
        ops,
        optimal_io_blocks: least(|info| info.optimal_io_blocks),
        max_io_blocks: least(|info| info.max_io_blocks),
        atomic_write_blocks: if shifted { 1 } else { least(|info| info.atomic_write_blocks) },
        atomic_boundary_blocks: if shifted { 0 } else { boundary },
        compare_and_write_blocks: (least(|info| info.max_io_blocks) / 2).max(1),
        volatile_cache: infos.iter().any(|info| info.volatile_cache),
        unmap_reads_zero,
        loans: infos.iter().all(|info| info.loans),
        ..DeviceInfo::basic(superblock.block_size, superblock.data_blocks)
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
        self.shared.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(MirrorChannel(self.inner(reactor)?)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        self.shared.legs.iter().filter_map(|leg| leg.device.clone()).collect()
    }
}

struct MirrorChannel(Rc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    channels: Vec<Option<Rc<dyn Channel>>>,
    /// Reads under way on each leg through this channel.
    reading: Vec<Cell<u32>>,
    next_leg: Cell<usize>,
}

impl Channel for MirrorChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::Read {
            return self.0.start_read(io);
        }
        let inner = self.0.clone();
        match io.op {
            Op::Write | Op::WriteZeroes | Op::Unmap => IoFuture::steps(&self.0.reactor, async move {
                let _alone = inner.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
                inner.change(io).await
            }),
            _ => IoFuture::steps(&self.0.reactor, async move {
                let mut io = io;
                let status = steps::status_of(inner.perform(&mut io).await);
                io.done(status)
            }),
        }
    }

    fn abort(&self, tag: u64) {
        self.0.channels.iter().flatten().for_each(|channel| channel.abort(tag));
    }
}

/// Counts a read under way on a leg.
struct Busy<'a>(&'a Cell<u32>);

impl Busy<'_> {
    fn new(count: &Cell<u32>) -> Busy<'_> {
        count.set(count.get() + 1);
        Busy(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.info.block_size
    }

    /// A read, or a write whose range is held. Reads do not repair: that would wait for a range that may be held here.
    async fn transfer(&self, io: Io) -> Done {
        if io.op == Op::Read { self.read(io, false).await } else { self.change(io).await }
    }
}

impl Inner {
    fn new(shared: Arc<Shared>, reactor: Rc<Reactor>, channels: Vec<Option<Rc<dyn Channel>>>) -> Rc<Inner> {
        let reading = channels.iter().map(|_| Cell::new(0)).collect();
        Rc::new(Inner { shared, reactor, channels, reading, next_leg: Cell::new(0) })
    }

    fn channel(&self, leg: usize) -> &dyn Channel {
        &**self.channels[leg].as_ref().expect("an absent leg is called failed and not used")
    }

    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        let _alone = match io.op {
            Op::CompareAndWrite | Op::Copy => Some(self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await),
            _ => None,
        };
        match io.op {
            Op::Flush => self.flush().await,
            Op::Compare => steps::compare(self, io).await,
            Op::CompareAndWrite => steps::compare_and_write(self, io).await,
            Op::Copy => steps::copy(self, io).await,
            Op::Verify => self.verify(io).await,
            _ => Err(Status::Unsupported),
        }
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    /// Reads leave nothing half done, so they may be dropped anywhere; and most end at the first leg.
    fn start_read(&self, io: Io) -> IoFuture<'_, Done> {
        let (lba, lent) = (io.lba.0, io.bufs.is_empty());
        let Some(leg) = self.choose(lba, io.nblocks as u64, &LegSet::new()) else {
            return IoFuture::ready(io.done(Status::Gone));
        };
        match split::pass(self.channel(leg), lba + self.shared.data_start, io).try_ready() {
            Ok(done) if done.status.is_ok() => IoFuture::ready(done),
            Ok(done) => IoFuture::new(self.read_elsewhere(done, leg, lent)),
            Err(future) => {
                let busy = Busy::new(&self.reading[leg]);
                IoFuture::new(async move {
                    let done = future.await;
                    drop(busy);
                    if done.status.is_ok() { done } else { self.read_elsewhere(done, leg, lent).await }
                })
            }
        }
    }

    async fn read_elsewhere(&self, failed: Done, leg: usize, lent: bool) -> Done {
        let mut tried = LegSet::new();
        tried.push(leg);
        let io = self.note_read_error(failed.io, failed.status, leg, lent);
        self.read_on(io, true, tried, Some(failed.status)).await
    }

    fn note_read_error(&self, mut io: Io, status: Status, leg: usize, lent: bool) -> Io {
        if lent {
            io.bufs.clear();
        }
        self.shared.legs[leg].read_errors.fetch_add(1, Relaxed);
        tracing::warn!(mirror = self.shared.name, leg, lba = io.lba.0, %status, "read failed on a leg");
        io
    }

    async fn read(&self, io: Io, repair: bool) -> Done {
        self.read_on(io, repair, LegSet::new(), None).await
    }

    async fn read_on(&self, mut io: Io, repair: bool, mut tried: LegSet, mut first_failure: Option<Status>) -> Done {
        let (lba, lent) = (io.lba, io.bufs.is_empty());
        while let Some(leg) = self.choose(lba.0, io.nblocks as u64, &tried) {
            tried.push(leg);
            let busy = Busy::new(&self.reading[leg]);
            let done = split::pass(self.channel(leg), lba.0 + self.shared.data_start, io).await;
            drop(busy);
            io = done.io;
            if done.status.is_ok() {
                if repair && tried.len() > 1 {
                    self.repair_after_read(&io, &tried).await;
                }
                return io.done(Status::Ok);
            }
            io = self.note_read_error(io, done.status, leg, lent);
            first_failure.get_or_insert(done.status);
        }
        io.done(first_failure.unwrap_or(Status::Gone))
    }

    /// The leg in sync with the fewest reads under way; where legs may differ, only the authority.
    fn choose(&self, lba: u64, nblocks: u64, tried: &LegSet) -> Option<usize> {
        let shared = &self.shared;
        let in_sync = |leg: usize| shared.leg_state(leg) == LegState::InSync;
        if shared.needs_sync(lba, nblocks) {
            // Should it be unreadable there, the others still have every acknowledged write.
            let authority = shared.authority.load(Acquire) as usize;
            if in_sync(authority) && !tried.contains(&authority) {
                return Some(authority);
            }
        }
        let count = shared.legs.len();
        let start = self.next_leg.replace((self.next_leg.get() + 1) % count);
        let legs = (0..count).map(|step| (start + step) % count).filter(|leg| in_sync(*leg) && !tried.contains(leg));
        legs.min_by_key(|leg| self.reading[*leg].get())
    }

    /// Writes what one leg has to the legs that could not read it.
    async fn repair_after_read(&self, io: &Io, tried: &LegSet) {
        if let Some((good, bad)) = tried.split_last() {
            for leg in bad {
                let _ = self.repair(io.lba.0, io.nblocks as u64, *good, *leg).await;
            }
        }
    }

    /// A leg that can neither be read nor written is called failed.
    async fn repair(&self, lba: u64, nblocks: u64, good: usize, bad: usize) -> Result<(), Status> {
        let copied = {
            let _alone = self.shared.ranges.lock(lba, nblocks, true).await;
            // While this waited, a write may have gone past the good leg, which is stale then.
            if self.shared.leg_state(good) != LegState::InSync {
                return Err(Status::ReadError);
            }
            self.copy_range(lba, nblocks, good, bad).await
        };
        match copied {
            Ok(()) => {
                self.shared.legs[bad].repairs.fetch_add(1, Relaxed);
                tracing::info!(
                    mirror = self.shared.name,
                    leg = bad,
                    lba,
                    nblocks,
                    "rewrote blocks that could not be read"
                );
                Ok(())
            }
            Err(CopyError::Source(status)) => Err(status),
            Err(CopyError::Target) => Box::pin(self.fail_legs(&[bad])).await,
        }
    }

    /// Copies blocks from one leg to another; the caller holds the range.
    async fn copy_range(&self, lba: u64, nblocks: u64, source: usize, target: usize) -> Result<(), CopyError> {
        let (block_size, mut at) = (self.shared.info.block_size as usize, lba);
        while at < lba + nblocks {
            let count = (lba + nblocks - at).min((COPY_BYTES / block_size).max(1) as u64) as u32;
            let mut bufs = SgList::new();
            bufs.push(steps::alloc(&self.reactor, count as usize * block_size).await.map_err(CopyError::Source)?);
            let place = Lba(at + self.shared.data_start);
            let done = self.channel(source).submit(Io::read(place, count, bufs)).await;
            done.status.check().map_err(CopyError::Source)?;
            let done = self.channel(target).submit(Io::write(place, count, done.io.bufs)).await;
            done.status.check().map_err(|_| CopyError::Target)?;
            at += count as u64;
        }
        Ok(())
    }

    /// Reads the blocks on every leg, repairing those that cannot.
    async fn verify(&self, io: &Io) -> Result<(), Status> {
        if self.shared.needs_sync(io.lba.0, io.nblocks as u64) {
            return steps::verify(self, io).await;
        }
        let step = (COPY_BYTES as u64 / self.shared.info.block_size as u64).max(1);
        let mut at = io.lba.0;
        while at < io.end() {
            let count = step.min(io.end() - at);
            self.verify_piece(at, count).await?;
            at += count;
        }
        Ok(())
    }

    async fn verify_piece(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        let (mut good, mut bad, mut status) = (None, LegSet::new(), Status::Gone);
        for leg in self.shared.in_sync() {
            let mut bufs = SgList::new();
            let bytes = nblocks as usize * self.shared.info.block_size as usize;
            bufs.push(steps::alloc(&self.reactor, bytes).await?);
            let read = Io::read(Lba(lba + self.shared.data_start), nblocks as u32, bufs);
            match self.channel(leg).submit(read).await.status {
                Status::Ok => good = Some(leg),
                other => {
                    self.shared.legs[leg].read_errors.fetch_add(1, Relaxed);
                    status = other;
                    bad.push(leg);
                }
            }
        }
        let Some(good) = good else { return Err(status) };
        for leg in bad {
            self.repair(lba, nblocks, good, leg).await?;
        }
        Ok(())
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// A write, write-zeroes or unmap on all active legs; the caller holds the range.
    async fn change(&self, mut io: Io) -> Done {
        let regions = self.shared.regions_of(io.lba.0, io.nblocks as u64);
        let mut clean = false;
        for region in regions.clone() {
            clean |= self.shared.regions[region].fetch_add(1, AcqRel) & DIRTY == 0;
        }
        // Boxed, like every rare path below: metadata buffers would make the future of each write too large to recycle.
        let marked = if clean { Box::pin(self.mark_dirty(regions.clone())).await } else { Ok(()) };
        let status = match marked {
            Ok(()) => self.write_legs(&mut io).await,
            Err(status) => status,
        };
        for region in regions {
            self.shared.regions[region].fetch_sub(1, AcqRel);
        }
        self.clean_if_due();
        io.done(status)
    }

    async fn write_legs(&self, io: &mut Io) -> Status {
        let legs = self.shared.active();
        let mut parts = Parts::default();
        let mut original = std::mem::take(&mut io.bufs);
        for (nth, leg) in legs.iter().enumerate() {
            let last = nth + 1 == legs.len();
            let bufs = if last {
                std::mem::take(&mut original)
            } else {
                original.iter_mut().map(|buf| buf.duplicate()).collect()
            };
            let (op, flags, stream, nblocks, tag) = (io.op, io.flags, io.stream, io.nblocks, io.tag);
            let lba = Lba(io.lba.0 + self.shared.data_start);
            parts.push(self.channel(*leg).submit(Io { op, flags, stream, nblocks, lba, arg: 0, tag, bufs }));
        }
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for (leg, done) in legs.iter().zip(parts.join().await) {
            io.bufs = done.io.bufs;
            if !done.status.is_ok() {
                tracing::warn!(mirror = self.shared.name, leg, lba = io.lba.0, status = %done.status, "write failed on a leg");
                failed.push(*leg);
                status = done.status;
            }
        }
        io.bufs.iter_mut().for_each(|buf| {
            buf.try_unshare();
        });
        if failed.is_empty() {
            return steps::status_of(self.record().await);
        }
        let survivors = legs.iter().any(|leg| !failed.contains(leg) && self.shared.leg_state(*leg) == LegState::InSync);
        if !survivors {
            // Nobody who counts has it: the write failed, and the legs may differ where it went.
            self.distrust(io.lba.0, io.nblocks as u64);
            return status;
        }
        match Box::pin(self.fail_legs(&failed)).await {
            Ok(()) => Status::Ok,
            Err(status) => status,
        }
    }

    fn distrust(&self, lba: u64, nblocks: u64) {
        for region in self.shared.regions_of(lba, nblocks) {
            self.shared.regions[region].fetch_or(NEEDS_SYNC, AcqRel);
        }
    }

    async fn flush(&self) -> Result<(), Status> {
        let legs = self.shared.active();
        let mut parts = Parts::default();
        legs.iter().for_each(|leg| parts.push(self.channel(*leg).submit(Io::flush())));
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for (leg, done) in legs.iter().zip(parts.join().await) {
            if !done.status.is_ok() {
                failed.push(*leg);
                status = done.status;
            }
        }
        if failed.is_empty() {
            return self.record().await;
        }
        // A leg that cannot flush may lose what was acknowledged.
        let in_sync = self.shared.in_sync();
        if in_sync.iter().all(|leg| failed.contains(leg)) {
            Err(status)
        } else {
            Box::pin(self.fail_legs(&failed)).await
        }
    }

    // --- metadata ---------------------------------------------------------------------------------------------------

    /// Makes the dirty bits of `regions` durable on all active legs.
    async fn mark_dirty(&self, regions: std::ops::RangeInclusive<usize>) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        let is_clean = |region: &usize| shared.regions[*region].load(Acquire) & DIRTY == 0;
        let (first, last) = (regions.start() / PAGE_REGIONS, regions.end() / PAGE_REGIONS);
        for page in first..=last {
            let inside = |region: &usize| region / PAGE_REGIONS == page;
            if !regions.clone().any(|region| inside(&region) && is_clean(&region)) {
                continue;
            }
            {
                let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
                regions.clone().filter(inside).for_each(|region| meta.pages[page].set(region % PAGE_REGIONS, true));
            }
            self.write_page(page).await?;
        }
        for region in regions {
            shared.regions[region].fetch_or(DIRTY, AcqRel);
        }
        Ok(())
    }

    /// Writes a bitmap page to all active legs, failing those that refuse. The caller has the turn.
    async fn write_page(&self, page: usize) -> Result<(), Status> {
        let shared = &self.shared;
        let bytes = {
            let meta = shared.meta.lock().expect("nothing panics while holding the metadata");
            meta.pages[page].encode(meta.superblock.mirror_id, page)
        };
        let (mut failed, mut status) = (LegSet::new(), Status::Ok);
        for leg in shared.active() {
            let outcome = self.write_unit(leg, 2 + page as u64, &bytes).await;
            if !outcome.is_ok() {
                failed.push(leg);
                status = outcome;
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        if shared.in_sync().iter().all(|leg| failed.contains(leg)) {
            return Err(status);
        }
        self.fail_with_turn(&failed).await
    }

    async fn write_unit(&self, leg: usize, unit: u64, bytes: &[u8; format::UNIT_BYTES]) -> Status {
        meta::write_unit(&self.reactor, self.channel(leg), self.shared.info.block_size, unit, bytes).await
    }

    /// Makes the states of the legs durable where they are not: what was just done on fewer legs counts only then.
    async fn record(&self) -> Result<(), Status> {
        if !self.shared.unrecorded.load(Acquire) {
            return Ok(());
        }
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        if self.shared.unrecorded.load(Acquire) { self.write_superblocks().await } else { Ok(()) }
    }

    /// Calls legs failed, durably on all others. Ok only when a leg in sync has recorded it.
    async fn fail_legs(&self, legs: &[usize]) -> Result<(), Status> {
        let _turn = self.shared.meta_turn.lock(0, 1, true).await;
        self.fail_with_turn(legs).await
    }

    async fn fail_with_turn(&self, legs: &[usize]) -> Result<(), Status> {
        let shared = &self.shared;
        if shared.in_sync().iter().all(|leg| legs.contains(leg)) {
            // The last one in sync is never called failed: there would be nothing left to come back to.
            return Err(Status::WriteError);
        }
        for leg in legs {
            self.set_state(*leg, LegState::Failed);
        }
        self.write_superblocks().await
    }

    fn set_state(&self, leg: usize, state: LegState) {
        let shared = &self.shared;
        let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
        let generation = meta.superblock.generation;
        let record = &mut meta.superblock.legs[leg];
        if record.state == state {
            return;
        }
        if state == LegState::Failed {
            record.failed_generation = if record.state == LegState::RecoveringFull { 0 } else { generation + 1 };
        }
        tracing::warn!(mirror = shared.name, leg, from = ?record.state, to = ?state, "leg changes state");
        record.state = state;
        shared.unrecorded.store(true, Release);
        shared.legs[leg].state.store(state.code(), Release);
        drop(meta);
        if state == LegState::Failed
            && shared.authority.load(Acquire) as usize == leg
            && let Some(next) = shared.in_sync().first()
        {
            shared.authority.store(*next as u8, Release);
        }
    }

    /// Writes the superblock of a new generation to all active legs; those that refuse are called failed in the next.
    /// The caller has the turn.
    async fn write_superblocks(&self) -> Result<(), Status> {
        let shared = &self.shared;
        loop {
            let superblock = {
                let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
                meta.superblock.generation += 1;
                meta.superblock.clone()
            };
            let (mut failed, mut status) = (LegSet::new(), Status::Ok);
            for leg in shared.active() {
                let outcome = self.write_unit(leg, superblock.generation % 2, &superblock.encode(leg)).await;
                if !outcome.is_ok() {
                    failed.push(leg);
                    status = outcome;
                }
            }
            if failed.is_empty() {
                shared.unrecorded.store(false, Release);
                return Ok(());
            }
            if shared.in_sync().iter().all(|leg| failed.contains(leg)) {
                return Err(status);
            }
            failed.iter().for_each(|leg| self.set_state(*leg, LegState::Failed));
        }
    }

    fn clean_if_due(&self) {
        let (now, last) = (self.reactor.now_ns(), self.shared.last_clean_ns.load(Relaxed));
        if last == 0 {
            self.shared.last_clean_ns.store(now, Relaxed);
        } else if now.saturating_sub(last) >= CLEAN_INTERVAL_NS && !self.shared.cleaning.swap(true, AcqRel) {
            let again = Inner::new(self.shared.clone(), self.reactor.clone(), self.channels.clone());
            self.reactor.spawn(async move {
                let _ = again.clean().await;
                again.shared.last_clean_ns.store(again.reactor.clock_ns(), Relaxed);
                again.shared.cleaning.store(false, Release);
            });
        }
    }

    /// Clears the bits of regions at rest, once their data are durable everywhere.
    async fn clean(&self) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        if !shared.all_in_sync() {
            return Ok(());
        }
        // Taken out of memory first: a write that starts now waits for the turn, then sets the bit again.
        let at_rest = |region: &usize| shared.regions[*region].compare_exchange(DIRTY, 0, AcqRel, Relaxed).is_ok();
        let cleaned: Vec<usize> = (0..shared.regions.len()).filter(at_rest).collect();
        if cleaned.is_empty() {
            return Ok(());
        }
        let outcome = self.clear_bits(&cleaned).await;
        if outcome.is_err() || !shared.all_in_sync() {
            self.restore_bits(&cleaned).await?;
        }
        outcome
    }

    /// Sets bits again, on the legs first: some may have been cleared there, and a region that counts as dirty in memory
    /// is not marked by the next write.
    async fn restore_bits(&self, regions: &[usize]) -> Result<(), Status> {
        let pages = self.set_bits(regions, true);
        for page in pages {
            self.write_page(page).await?;
        }
        regions.iter().for_each(|region| {
            self.shared.regions[*region].fetch_or(DIRTY, AcqRel);
        });
        Ok(())
    }

    /// Changes bits of the metadata in memory; the pages concerned.
    fn set_bits(&self, regions: &[usize], value: bool) -> Vec<usize> {
        let mut meta = self.shared.meta.lock().expect("nothing panics while holding the metadata");
        regions.iter().for_each(|region| meta.pages[region / PAGE_REGIONS].set(region % PAGE_REGIONS, value));
        let mut pages: Vec<usize> = regions.iter().map(|region| region / PAGE_REGIONS).collect();
        pages.dedup();
        pages
    }

    async fn clear_bits(&self, cleaned: &[usize]) -> Result<(), Status> {
        for leg in self.shared.active() {
            let status = self.channel(leg).submit(Io::flush()).await.status;
            if !status.is_ok() {
                self.fail_with_turn(&[leg]).await?;
                return Ok(());
            }
        }
        for page in self.set_bits(cleaned, false) {
            self.write_page(page).await?;
        }
        Ok(())
    }

    // --- resync -----------------------------------------------------------------------------------------------------

    async fn resync(&self, pause_ns: u64) -> Result<(), Status> {
        let shared = &self.shared;
        let _turn = shared.resync_turn.lock(0, 1, true).await;
        for region in 0..shared.regions.len() {
            if shared.regions[region].load(Acquire) & NEEDS_SYNC != 0 {
                self.resync_region(region).await?;
                if self.reactor.is_stopping() {
                    return Ok(());
                }
                if pause_ns > 0 {
                    self.reactor.sleep_ns(pause_ns).await;
                }
            }
        }
        self.promote().await?;
        self.clean().await
    }

    async fn resync_region(&self, region: usize) -> Result<(), Status> {
        let shared = &self.shared;
        let start = region as u64 * shared.region_blocks;
        let end = (start + shared.region_blocks).min(shared.info.blocks);
        // The whole region at once: clearing the mark must not cross a write that failed and set it again.
        let _alone = shared.ranges.lock(start, end - start, true).await;
        let source = shared.authority.load(Acquire) as usize;
        for target in shared.active().into_iter().filter(|leg| *leg != source) {
            match self.copy_range(start, end - start, source, target).await {
                Ok(()) => {}
                Err(CopyError::Source(status)) => return Err(status),
                Err(CopyError::Target) => self.fail_legs(&[target]).await?,
            }
        }
        shared.regions[region].fetch_and(!NEEDS_SYNC, AcqRel);
        Ok(())
    }

    /// Legs that have been given everything become legs in sync.
    async fn promote(&self) -> Result<(), Status> {
        let shared = &self.shared;
        let recovering =
            shared.legs_where(|state| matches!(state, LegState::RecoveringDirty | LegState::RecoveringFull));
        if recovering.is_empty() {
            return Ok(());
        }
        self.flush().await?;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        for leg in recovering {
            if shared.leg_state(leg) != LegState::Failed {
                self.set_state(leg, LegState::InSync);
            }
        }
        self.write_superblocks().await
    }
}
