//! A read cache on flash in front of a slow device, which writes no more to flash per day than it was told.
//!
//! What holds, always:
//! - A read returns what the slow device would. Flash has copies only: it can rot, lie, die, or be an old image of itself, and
//!   costs nothing but hits. Every block that is read from it is checked against the checksum that it was let in with; and
//!   what of it counts after a crash is known from the slow device alone ([`trust`]).
//! - The bytes written to flash in any 24 hours are at most 1.05 times the budget, whatever is read and written, and however
//!   often the device is opened ([`budget`]). All writes count.
//! - Flash is written in whole segments, one after the other, never in place ([`ring`]).
//! - Blocks seen once are not let in, so that a scan neither evicts what is used nor costs budget ([`sketch`]).
//! - Nobody waits for flash for long: what it does not answer in time the slow device is asked for ([`patience`]). Writes wait for
//!   the slow device alone.
//!
//! What is not covered: a slow device that fails a flush and keeps what it covered readable until the power goes. The process that
//! saw it caches nothing of that any more; one that is started after it died cannot know, and what it caches then outlives
//! what the power cut takes back.
//!
//! The cached unit is the device's block, so the index is 14 bytes per block and the sketch 3: 4.4 GB per TB of flash with
//! blocks of 4 KiB. Writes are not cached, they only end what was: a log in front (a pool's) is there for writes.
//!
//! One lock holds what is known of cached blocks, for moments and never across a wait. It is taken once per operation, by
//! reactors that stand before a disk and a drive; the wait for these is a thousand times longer.

mod budget;
mod durable;
pub(crate) mod format;
mod grow;
mod index;
mod io;
mod load;
mod patience;
mod pump;
mod ring;
mod sketch;
mod trust;
pub mod workload;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::flush_line::FlushLine;
use crate::front::check_child;
use crate::io::{Op, OpSet, Status};
use crate::range_lock::RangeLock;
use crate::slots::{HEADER_BYTES, ID_AT, Kind, UNIT_BYTES};
use base::Errno;
pub use budget::DAY_NS;
use budget::{BINS, Budget};
use format::{Anchor, Geometry, Label};
use io::FlashCacheChannel;
use load::{Search, Side};
use patience::{OPEN_PATIENCE_NS, Patience};
use reactor::{IoFuture, Reactor};
pub use ring::FlashCacheCounts;
use ring::{Ring, Shape};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire};
use std::sync::{Arc, Mutex};
use trust::Trust;

/// Bytes of a segment unless told otherwise.
pub const SEGMENT_BYTES_DEFAULT: u64 = 1 << 20;
/// Why flash cannot be used that says nothing.
const SILENT: &str =
    "its flash device does not answer; look at the drive, or go on without it (cache_missing = \"pass-through\")";
/// Failures of flash in a row after which it is not used any more.
const FAILURES_MAX: u32 = 16;

/// How a flash cache is opened.
#[derive(Clone, Debug)]
pub struct FlashCacheOptions {
    /// Make a new one where both devices begin with zeroes, and take in a blank flash device in place of a former one.
    pub create: bool,
    /// With `create`: whatever is there. The cache begins empty; what the slow device has stays, if it had a cache before.
    pub force: bool,
    /// Most bytes written to flash per day.
    pub write_budget: u64,
    /// Bytes that may be written to flash in its life, for a forecast.
    pub endurance: Option<u64>,
    /// Go on without the flash device if it is absent or cannot be used; what it has is void then.
    pub without_cache: bool,
    /// Blocks that are read are let in. Without it flash is read alone: for who only looks.
    pub admits: bool,
    /// Bytes of a segment, fixed when it is made.
    pub segment_bytes: u64,
    /// Bytes per mark, fixed when it is made; 0 chooses (1 MiB, more on very large devices).
    pub region_bytes: u64,
    /// What is cached is brought back behind the opening, not in it, and that begins so many nanoseconds after it: whoever opens the
    /// device may have more to open. It takes a read for each segment, and half of a core at most; until it is done the slow device is
    /// read.
    pub loads_after_ns: Option<u64>,
    /// Of one that is made: its id, by which what is half made is known again; chosen at random unless given.
    pub id: Option<[u8; 16]>,
    /// A defect for tests of checkers.
    pub defect: Option<FlashCacheDefect>,
}

impl Default for FlashCacheOptions {
    fn default() -> Self {
        FlashCacheOptions {
            create: false,
            force: false,
            write_budget: u64::MAX,
            endurance: None,
            without_cache: false,
            admits: true,
            segment_bytes: SEGMENT_BYTES_DEFAULT,
            region_bytes: 0,
            loads_after_ns: None,
            id: None,
            defect: None,
        }
    }
}

/// What a flash cache may be told to do wrong, for tests of checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashCacheDefect {
    /// Marks are not written.
    SkipMarks,
    /// Blocks read from flash are not checked.
    SkipVerify,
    /// An opening fills the bucket.
    FullBucket,
    /// Flash is waited for, however long that takes.
    WaitForEver,
    /// A new size is not made durable.
    GrowUnrecorded,
    /// Of regions that have been written to since an opening, it brings back what they were.
    RestoreWritten,
}

/// Whether flash is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is.
    On,
    /// Not yet: what it has is being found.
    Loading,
    /// It was absent, or could not be used, when the device was opened.
    Absent,
    /// It has failed since.
    Failed,
    /// It does not answer, or late again and again; it is used again when it does.
    Hanging,
}

impl Mode {
    /// Its name in status output.
    pub fn name(self) -> &'static str {
        match self {
            Mode::On => "on",
            Mode::Loading => "loading",
            Mode::Absent => "absent",
            Mode::Failed => "failed",
            Mode::Hanging => "hanging",
        }
    }
}

/// How a flash cache is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashCacheStatus {
    /// Whether flash is used.
    pub mode: Mode,
    /// Since it was opened.
    pub counts: FlashCacheCounts,
    /// Blocks in the cache.
    pub cached_blocks: u64,
    /// Blocks that it can hold.
    pub capacity_blocks: u64,
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes written to flash in its life.
    pub written_total: u64,
    /// Bytes written to flash in the last 24 hours in which it was open, to a quarter of an hour.
    pub written_day: u64,
    /// Most bytes per day.
    pub write_budget: u64,
    /// Bytes that may be written in its life.
    pub endurance: Option<u64>,
    /// Bytes of memory for index, sketch and marks.
    pub memory_bytes: u64,
}

impl FlashCacheStatus {
    /// The part of the blocks read that came from the cache.
    pub fn hit_ratio(&self) -> Option<f64> {
        let reads = self.counts.hits + self.counts.misses;
        (reads > 0).then(|| self.counts.hits as f64 / reads as f64)
    }

    /// Days until the endurance is used up, at the rate of the last day; `None` without endurance or writes, and while all that
    /// was ever written is of the last day: it may be of an hour.
    pub fn days_left(&self) -> Option<f64> {
        let left = self.endurance?.saturating_sub(self.written_total);
        (self.written_day > 0 && self.written_total > self.written_day).then(|| left as f64 / self.written_day as f64)
    }
}

/// See the module.
pub struct FlashCacheDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    /// What it is like, but for its size.
    info: DeviceInfo,
    /// Its size.
    blocks: AtomicU64,
    slow: Arc<dyn BlockDevice>,
    flash: Option<Arc<dyn BlockDevice>>,
    /// As it was opened: the data may have grown since.
    geometry: Geometry,
    cache_id: [u8; 16],
    flash_id: [u8; 16],
    /// Flash's first block of the ring.
    ring_start: u64,
    state: Mutex<State>,
    /// One writer of the anchor, and of each page of marks, at a time.
    anchor_turn: RangeLock,
    page_turns: RangeLock,
    flushes: Arc<FlushLine>,
    admits: bool,
    skips_marks: bool,
    skips_verify: bool,
    waits_for_ever: bool,
    grows_unrecorded: bool,
    restores_written: bool,
}

struct State {
    ring: Ring,
    trust: Trust,
    mode: Mode,
    patience: Patience,
    /// The anchor says, or may say, that the image of the last close is true: nothing may change before it says otherwise.
    is_clean: bool,
    is_pumping: bool,
    anchor: Anchor,
    /// The copy of the anchor to write first, and the generation of the last attempt.
    anchor_first: u64,
    anchor_attempts: u64,
    errors_in_row: u32,
    /// Bytes that may be written to flash in its life.
    endurance: Option<u64>,
}

impl Shared {
    #[inline]
    fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks.load(Acquire), ..self.info }
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock().expect("nothing panics while holding the state"))
    }
}

/// One reactor's part.
struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    slow: Rc<dyn Channel>,
    flash: Option<Rc<dyn Channel>>,
}

impl FlashCacheDevice {
    /// Opens (or with [`FlashCacheOptions::create`] makes) the cache on `flash` before `slow`.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        slow: Arc<dyn BlockDevice>,
        flash: Option<Arc<dyn BlockDevice>>,
        options: &FlashCacheOptions,
    ) -> Result<FlashCacheDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let failed = |action| move |status| DeviceError::Io { device: name.to_string(), action, status };
        let base = slow.info();
        check_child(&base, "a flash cache").map_err(refused)?;
        let below = Side::of(reactor, slow.open_channel(reactor)?, &base);
        if base.volatile_cache {
            // What an earlier process wrote may be in the drive's cache alone; what is read of it is to be durable.
            let flushed = below.channel.submit(crate::io::Io::flush()).await.status;
            flushed.check().map_err(failed("flush the slow device"))?;
        }
        let mut found = below.read_anchor().await;
        // What is on the slow device is not thrown away with the cache: its anchor is kept wherever there is one.
        let keeps = found.newest.is_some();
        let anchor = found.take(options.create, options.force && !keeps, "flash cache's anchor").map_err(refused)?;
        let looked =
            reactor.timeout(OPEN_PATIENCE_NS, open_flash(reactor, &base, flash, anchor.as_ref(), options)).await;
        let flash = match looked.unwrap_or_else(|| Err(SILENT.to_string())) {
            Ok(flash) => Some(flash),
            Err(reason) if options.without_cache && anchor.is_some() => {
                tracing::warn!(
                    device = name,
                    reason,
                    "going on without the flash cache: everything is read from the slow device"
                );
                None
            }
            Err(reason) => return Err(refused(reason)),
        };
        let mut anchor = match (anchor, &flash) {
            (Some(anchor), _) => anchor,
            (None, None) => return Err(refused("a new flash cache needs its flash device".to_string())),
            (None, Some(flash)) => {
                let plan =
                    Geometry::plan(base.block_size, base.blocks, flash.label.shape.slots(), options.region_bytes);
                let plan =
                    plan.ok_or_else(|| refused("the slow device is too small for the cache's metadata".to_string()))?;
                let anchor = new_anchor(options.id.unwrap_or_else(|| random_id(reactor)), plan, &flash.label);
                below.create(&anchor).await.map_err(failed("make its metadata"))?;
                anchor
            }
        };
        if anchor.geometry.block_size != base.block_size
            || anchor.geometry.data_start + anchor.geometry.data_blocks > base.blocks
        {
            return Err(refused("the slow device is smaller than it was, or has another block size".to_string()));
        }
        let marks = below.read_marks(name, &anchor).await;
        let is_known = flash.as_ref().is_some_and(|flash| flash.is_known);
        if !is_known {
            // Another flash device, or none: what the former one has will have missed writes.
            anchor.void_to = anchor.reserved_to.max(anchor.void_to).max(anchor.next_seq);
            if let Some(flash) = &flash {
                (anchor.flash_id, anchor.segments) = (flash.label.flash_id, flash.label.shape.segments);
            }
            anchor.clean = false;
        }
        let shape = flash.as_ref().map_or(Shape::none(base.block_size), |flash| flash.label.shape);
        let former = anchor;
        let mut state = load::new_state(reactor, shape, &anchor, marks, options);
        state.mode = match &flash {
            None => Mode::Absent,
            Some(flash) if flash.is_known => Mode::Loading,
            Some(_) => Mode::On,
        };
        if anchor.clean {
            // Nothing later was written before it was closed: should it be there, nobody may believe it, after a crash either. And
            // what did not count then does not now.
            anchor.void_to = anchor.void_to.max(anchor.reserved_to.saturating_sub(anchor.segments));
            anchor.reserved_to = anchor.reserved_to.min(anchor.next_seq.saturating_sub(1));
            (state.trust.reserved_to, state.trust.void_to) = (anchor.reserved_to, anchor.void_to);
        }
        if is_known {
            state.trust.begin_search(load::known_to(&former));
        }
        if let Some(flash) = flash.as_ref().filter(|flash| !flash.is_known) {
            // Its label; counted before it is written.
            state.ring.charge(flash.label.bytes(), reactor.now_ns());
            (anchor.written_total, anchor.bins) = (state.ring.written_total, state.ring.window.bins());
        }
        (anchor.clean, anchor.session) = (false, anchor.session + 1);
        anchor.stamp.generation += 1;
        // Before anything is passed on, and before a new flash device has a label.
        below.write_anchor(found.first, &anchor).await.map_err(failed("write its anchor"))?;
        (state.anchor, state.anchor_attempts) = (anchor, anchor.stamp.generation);
        if let Some(flash) = flash.as_ref().filter(|flash| !flash.is_known) {
            let label = Label { cache_id: anchor.stamp.id, ..flash.label };
            let labelled = reactor.timeout(OPEN_PATIENCE_NS, flash.side.write_label(&label)).await;
            match labelled.unwrap_or(Err(Status::Os(Errno::ETIMEDOUT))) {
                Ok(()) => {}
                Err(status) if options.without_cache => {
                    tracing::warn!(device = name, %status, "going on without the flash cache: its flash device takes no label");
                    state.mode = Mode::Absent;
                }
                Err(status) => return Err(failed("label its flash device")(status)),
            }
        }
        if options.defect == Some(FlashCacheDefect::FullBucket) {
            state.ring.budget = Budget::new(options.write_budget, reactor.now_ns().saturating_sub(DAY_NS));
        }
        let label = flash.as_ref().map(|flash| flash.label);
        let searched = flash.as_ref().filter(|flash| flash.is_known).map(|flash| flash.side.channel.clone());
        let shared = Arc::new(Shared {
            name: name.to_string(),
            info: describe(&base, &anchor.geometry),
            blocks: anchor.geometry.data_blocks.into(),
            geometry: anchor.geometry,
            cache_id: anchor.stamp.id,
            flash_id: anchor.flash_id,
            ring_start: label.map_or(0, |label| label.first_block),
            state: Mutex::new(state),
            anchor_turn: RangeLock::new(1),
            page_turns: RangeLock::new(1),
            flushes: Arc::default(),
            admits: options.admits,
            skips_marks: options.defect == Some(FlashCacheDefect::SkipMarks),
            skips_verify: options.defect == Some(FlashCacheDefect::SkipVerify),
            waits_for_ever: options.defect == Some(FlashCacheDefect::WaitForEver),
            grows_unrecorded: options.defect == Some(FlashCacheDefect::GrowUnrecorded),
            restores_written: options.defect == Some(FlashCacheDefect::RestoreWritten),
            flash: flash.map(|flash| flash.device),
            slow,
        });
        if let (Some(flash), Some(label)) = (searched, label) {
            let (shared, reactor, slow) = (Arc::downgrade(&shared), reactor.clone(), below.channel);
            let after_ns = options.loads_after_ns;
            let search = Search { shared, reactor: reactor.clone(), slow, flash, label, former, after_ns };
            match after_ns {
                Some(_) => reactor.spawn(search.run()),
                None => search.run().await,
            }
        }
        Ok(FlashCacheDevice { shared })
    }

    /// How it is doing at `now_ns` of a reactor's clock.
    pub fn status(&self, now_ns: u64) -> FlashCacheStatus {
        let shared = &self.shared;
        shared.with(|state| FlashCacheStatus {
            mode: if state.mode == Mode::On && state.patience.is_hanging(now_ns) { Mode::Hanging } else { state.mode },
            counts: state.ring.counts,
            cached_blocks: state.ring.index.len(),
            capacity_blocks: if shared.flash.is_some() { state.ring.index.slots() } else { 0 },
            block_size: shared.info.block_size,
            written_total: state.ring.written_total,
            written_day: state.ring.window.sum(now_ns),
            write_budget: state.ring.budget.per_day(),
            endurance: state.endurance,
            memory_bytes: state.ring.memory_bytes() + state.trust.memory_bytes(),
        })
    }

    /// Changes the budget; refused where it is too small to write a segment at a time.
    pub fn set_write_budget(&self, per_day: u64) -> Result<(), DeviceError> {
        self.shared.with(|state| {
            check_budget(per_day, state.ring.shape.segment_bytes())
                .map_err(|reason| DeviceError::Config { device: self.shared.name.clone(), reason })?;
            state.ring.budget.set_per_day(per_day);
            Ok(())
        })
    }

    /// Changes what the forecast reckons with.
    pub fn set_endurance(&self, bytes: Option<u64>) {
        self.shared.with(|state| state.endurance = bytes);
    }

    /// Writes what is still in memory and notes what is cached, as before a shutdown.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let outcome = self.inner(reactor)?.settle().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let slow = self.shared.slow.open_channel(reactor)?;
        let flash = self.shared.flash.as_ref().map(|flash| flash.open_channel(reactor)).transpose()?;
        Ok(Rc::new(Inner { shared: self.shared.clone(), reactor: reactor.clone(), slow, flash }))
    }
}

/// Whether the first bytes of a device, down to zeroes, are what a cache of this id has written there: on its slow device or on
/// its flash, whole or half made.
pub fn is_of_cache(start: &[u8], id: [u8; 16]) -> bool {
    let first = start.chunks_exact(UNIT_BYTES).find(|unit| unit.iter().any(|byte| *byte != 0));
    let Some(unit) = first else { return false };
    let has = |kind: &Kind, at: usize| unit.starts_with(&kind.magic) && unit[at..at + 16] == id;
    has(&format::ANCHOR, ID_AT) || has(&format::MARKS, ID_AT) || has(&format::LABEL, HEADER_BYTES)
}

/// A flash device that can be used.
struct Flash<'a> {
    device: Arc<dyn BlockDevice>,
    side: Side<'a>,
    label: Label,
    /// It is the one that was used last, and not a new one.
    is_known: bool,
}

/// Looks whose flash it is; `Err` is why it cannot be used.
async fn open_flash<'a>(
    reactor: &'a Rc<Reactor>,
    base: &DeviceInfo,
    device: Option<Arc<dyn BlockDevice>>,
    anchor: Option<&Anchor>,
    options: &FlashCacheOptions,
) -> Result<Flash<'a>, String> {
    let device = device
        .ok_or("its flash device is absent; attach it, or go on without it (cache_missing = \"pass-through\")")?;
    let info = device.info();
    check_child(&info, "a flash cache")?;
    if info.block_size != base.block_size {
        let (flash, slow) = (info.block_size, base.block_size);
        return Err(format!("flash has blocks of {flash} bytes and the slow device of {slow}; make them equal"));
    }
    let channel = device.open_channel(reactor).map_err(|error| error.to_string())?;
    let side = Side::of(reactor, channel, &info);
    let mut found = side.read_label().await;
    let (create, force) = (options.create, options.force);
    let label = match found.newest.take() {
        Some(label)
            if anchor.is_some_and(|anchor| anchor.flash_id == label.flash_id && anchor.stamp.id == label.cache_id) =>
        {
            Some(label)
        }
        Some(label) if !(create && force) => {
            let is_former = anchor.is_some_and(|anchor| anchor.stamp.id == label.cache_id);
            let whose =
                if is_former { "was this cache's before another one took its place" } else { "is another cache's" };
            return Err(format!(
                "flash device '{}' {whose}; name the right one, or wipe it to begin with it anew",
                device.name()
            ));
        }
        other => {
            found.newest = other;
            let what = format!("label on flash device '{}'", device.name());
            found.take(create, force, &what)?;
            None
        }
    };
    let is_known = label.is_some();
    let label = match label {
        Some(label) if label.end() > side.blocks || label.shape.block_size != info.block_size => {
            return Err(format!("flash device '{}' is smaller than it was, or has another block size", device.name()));
        }
        // How many there are decides what of it counts.
        Some(label) if anchor.is_some_and(|anchor| anchor.segments != label.shape.segments) => {
            return Err(format!(
                "flash device '{}' has another number of segments than its cache knows; wipe it to begin with it anew",
                device.name()
            ));
        }
        Some(label) => label,
        None => {
            let what = format!("flash device '{}'", device.name());
            let (shape, first_block) = plan_ring(&what, info.block_size, info.blocks, options.segment_bytes)?;
            let cache_id = anchor.map_or([0; 16], |anchor| anchor.stamp.id);
            Label { flash_id: random_id(reactor), cache_id, shape, first_block }
        }
    };
    check_budget(options.write_budget, label.shape.segment_bytes())?;
    Ok(Flash { device, side, label, is_known })
}

use base::ByteSize as ByteCount;

/// How a flash device, called `what`, is divided, and where its ring begins; `Err` is why it cannot be used.
fn plan_ring(what: &str, block_size: u32, blocks: u64, segment_bytes: u64) -> Result<(Shape, u64), String> {
    Shape::plan(block_size, blocks, segment_bytes).ok_or_else(|| {
        let least = ByteCount(8 * segment_bytes);
        format!("{what} is too small or too large: it takes at least nine segments ({least} and a bit), of {segment_bytes} bytes")
    })
}

fn check_budget(per_day: u64, segment_bytes: u64) -> Result<(), String> {
    let least = Budget::per_day_min(segment_bytes);
    if per_day < least {
        return Err(format!(
            "a write budget of {per_day} bytes per day; with segments of {segment_bytes} it takes {least}"
        ));
    }
    Ok(())
}

fn random_id(reactor: &Rc<Reactor>) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id
}

fn new_anchor(id: [u8; 16], geometry: Geometry, label: &Label) -> Anchor {
    Anchor {
        stamp: crate::slots::Stamp { id, generation: 1 },
        flash_id: label.flash_id,
        geometry,
        segments: label.shape.segments,
        session: 1,
        reserved_to: 0,
        void_to: 0,
        next_seq: 1,
        clean: false,
        written_total: 0,
        bins: [0; BINS],
    }
}

fn describe(base: &DeviceInfo, geometry: &Geometry) -> DeviceInfo {
    let (atomic_write_blocks, atomic_boundary_blocks) = base.atomic_from(geometry.data_start);
    DeviceInfo {
        blocks: geometry.data_blocks,
        ops: base.ops.intersection(OpSet::BLOCKS.union(OpSet::of(&[Op::WriteUncorrectable]))),
        compare_and_write_blocks: base.compare_and_write_blocks.min(atomic_write_blocks.max(1)),
        atomic_write_blocks,
        atomic_boundary_blocks,
        loans: false,
        zoned: None,
        ..*base
    }
}

impl Inner {
    fn shape(&self) -> Shape {
        self.shared.with(|state| state.ring.shape)
    }

    /// Flash did what it was asked.
    fn flash_works(&self) {
        self.shared.with(|state| {
            state.errors_in_row = 0;
            state.patience.on_time();
        });
    }

    /// Flash failed: counts it, and uses it no more where that was too often.
    fn flash_failed(self: &Rc<Self>, status: Status, action: &'static str, count: impl FnOnce(&mut FlashCacheCounts)) {
        let device = &self.shared.name;
        let ends = self.shared.with(|state| {
            count(&mut state.ring.counts);
            state.errors_in_row += 1;
            let ends = state.mode == Mode::On && (state.errors_in_row >= FAILURES_MAX || status.is_gone());
            if ends {
                state.mode = Mode::Failed;
                state.ring.clear();
            }
            ends
        });
        if !ends {
            tracing::warn!(device, %status, action, "flash of a cache failed; the slow device has everything");
            return;
        }
        tracing::error!(device, %status, "flash of a cache has failed for good: everything is read from the slow device");
        let inner = self.clone();
        self.reactor.spawn(async move {
            // Until this is durable, writes leave marks where flash may have content.
            let outcome = inner.write_anchor(|anchor| anchor.void_to = anchor.void_to.max(anchor.reserved_to)).await;
            if let Err(status) = outcome {
                tracing::warn!(device = inner.shared.name, %status, "the end of the cache could not be noted; writes go on leaving marks");
            }
        });
    }
}

impl Shape {
    /// Of a cache without flash.
    fn none(block_size: u32) -> Shape {
        Shape { block_size, segment_blocks: 2, header_blocks: 1, segments: 1 }
    }
}

impl BlockDevice for FlashCacheDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "flash-cache"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(FlashCacheChannel(self.inner(reactor)?)))
    }

    /// Grows it, and the slow device where that is too small.
    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::new(self.grow(reactor, blocks))
    }

    /// Takes into use by what the slow device has become larger.
    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::new(self.grow_with_slow(reactor))
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba + self.shared.geometry.data_start, u64::MAX))
    }

    /// The slow device alone.
    fn placed_on(&self) -> usize {
        1
    }

    /// In front of anything else it would be in vain.
    fn seeks(&self) -> bool {
        true
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        std::iter::once(self.shared.slow.clone()).chain(self.shared.flash.clone()).collect()
    }
}
