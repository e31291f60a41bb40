//! `engine-meta`: the metadata store of the engine on a disk that fails, in a process that is killed and loses power.
//!
//! Safety: what opens is a checkpoint that was acknowledged last, or one begun after it, whole; it reads the same twice; the
//! journal has every slice whose addition was acknowledged and that was not retired. Values never change on their way
//! through the cache. Liveness: when the faults end, everything opens, and a checkpoint succeeds.
//!
//! In half of the runs nothing changes while a checkpoint is made, and its state is known exactly. In the others each value
//! is one that was held between the beginning and the end of the checkpoint.

use crate::Run;
use crate::blocks::{Crew, is};
use crate::crashes::any_crash;
use crate::raw_file::RawFile;
use bdev::{BlockDevice, Channel, DeviceInfo, Done, FileDevice, FileDeviceOptions, Flags, Io, Lba, Op, Status};
use engine::{
    BLOCKS_LOST, Descriptor, DirtyJournal, HOLE, INHERIT, LOST, LogKind, LogTail, Meta, MetaError, Opening, Region,
    Role, Shape, Superblock, read_superblocks, write_superblock,
};
use reactor::{IoFuture, Reactor};
use sim::{Crash, DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const PATH: &str = "/capacity";
const SECOND_NS: u64 = 1_000_000_000;
/// Entries of a page that are used, spread over it.
const SLOTS: u32 = 5;

fn entry_index(slot: u32) -> u32 {
    slot * 255
}

/// An extent, as far as the store is asked to keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Known {
    volume: u32,
    vextent: u32,
    lost: bool,
    values: [u32; SLOTS as usize],
}

const FREE: Known = Known { volume: 0, vextent: 0, lost: false, values: [INHERIT; SLOTS as usize] };

/// What a checkpoint may hold: its state when it began, and what was changed until it ended.
#[derive(Clone)]
struct Picture {
    begun: Vec<Known>,
    later: BTreeMap<u32, Vec<Known>>,
}

impl Picture {
    fn exactly(state: Vec<Known>) -> Picture {
        Picture { begun: state, later: BTreeMap::new() }
    }

    fn allows(&self, extent: u32, found: &Known) -> bool {
        let states =
            || std::iter::once(&self.begun[extent as usize]).chain(self.later.get(&extent).into_iter().flatten());
        let names = |known: &Known| (known.volume, known.vextent, known.lost);
        states().any(|state| names(state) == names(found))
            && (0..SLOTS as usize).all(|slot| states().any(|state| state.values[slot] == found.values[slot]))
    }
}

#[derive(Default)]
struct Oracle {
    now: Vec<Known>,
    /// By the lsn of their tails: the one acknowledged last, and those begun since.
    pictures: BTreeMap<u64, Picture>,
    /// The checkpoint under way.
    running: Option<u64>,
    /// What is visible is durable.
    power_cut: bool,
    next_lsn: u64,
    epoch: u32,
    added: BTreeSet<(u32, u32)>,
    begun: BTreeSet<(u32, u32)>,
}

impl Oracle {
    fn change(&mut self, extent: u32, known: Known) {
        self.now[extent as usize] = known;
        if let Some(picture) = self.running.and_then(|lsn| self.pictures.get_mut(&lsn)) {
            picture.later.entry(extent).or_default().push(known);
        }
    }

    fn begin(&mut self) -> u64 {
        self.next_lsn += 1;
        self.pictures.insert(self.next_lsn, Picture::exactly(self.now.clone()));
        self.running = Some(self.next_lsn);
        self.next_lsn
    }

    fn end(&mut self, lsn: u64, acknowledged: bool) {
        self.running = None;
        if acknowledged {
            self.pictures.retain(|other, _| *other >= lsn);
        }
    }
}

#[derive(Clone)]
struct Setup {
    sim: Handle,
    node: NodeId,
    geometry: Rc<Superblock>,
    block_size: u32,
    cache_bytes: usize,
    /// Nothing changes while a checkpoint is made.
    exact: bool,
    /// On the plainest device, where a flush may succeed after one that failed.
    raw: bool,
    /// Operations may fail.
    lenient: bool,
    /// The disk damages pages in silence; it must be noticed.
    rotten: bool,
    oracle: Rc<RefCell<Oracle>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let node = world.add_node();
    let geometry = Rc::new(geometry(rng.between(1, 150) as u32, rng.below(100) as u32, rng.between(2, 6) as u32));
    let unit = if rng.one_in(2) { 512 } else { 4096 };
    let disk = DiskOptions {
        bytes: Window::blocks_below(&geometry) * 4096,
        unit,
        block_device: rng.one_in(3),
        volatile_cache: !rng.one_in(4),
        ..DiskOptions::default()
    };
    world.add_disk(node, PATH, disk, DiskFaults::default());
    let extents = geometry.shard_extents(0) as usize;
    let rotten = rng.one_in(4);
    let lenient = rotten || rng.one_in(2);
    let setup = Setup {
        sim: world.handle(),
        node,
        geometry,
        block_size: unit,
        cache_bytes: rng.between(1, 20) as usize * 4200,
        exact: rng.one_in(2),
        raw: rng.one_in(2),
        lenient,
        rotten,
        oracle: Rc::new(RefCell::new(Oracle { now: vec![FREE; extents], ..Oracle::default() })),
    };
    let crew = setup.life(world, 0, |setup, reactor, _| async move { setup.create(reactor).await })?;
    world.run_until("the pool to be made", 60 * SECOND_NS, |_| crew.is_done())?;
    setup.down(world, Crash::Kill);
    if rotten {
        // Table pages and map pages: of a root or a journal, damage to one copy cannot always be told from a torn write.
        let damage_from = setup.geometry.shards_end() * 4096;
        world.set_disk_faults(node, PATH, DiskFaults { damage_from, ..DiskFaults::swarm_silent(rng) });
    } else if lenient {
        let faults = DiskFaults { latent_error: 0, stuck: 0, ..DiskFaults::swarm_loud(rng) };
        world.set_disk_faults(node, PATH, faults);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        let crash = any_crash(rng);
        if rng.one_in(2) {
            world.crash_after_writes(node, rng.between(1, 150), crash);
        }
        setup.life(world, rng.between(1_000_000, 100_000_000), |setup, reactor, crew| async move {
            setup.work(reactor, crew).await;
        })?;
        setup.down(world, crash);
    }
    world.heal();
    if rotten {
        return Ok(());
    }
    let crew = setup.life(world, 0, |setup, reactor, _| async move {
        let healed = Setup { lenient: false, ..setup };
        let Some((meta, journal)) = healed.open(&reactor).await else { return };
        healed.checkpoint(&meta).await;
        let added = journal.add(1_000, 0).await;
        healed.sim.expect(added.is_ok(), || format!("without faults an addition to the journal fails: {added:?}"));
        healed.check_same(&reactor, &meta, &journal).await;
    })?;
    world.run_until("the store to work again", 60 * SECOND_NS, |_| crew.is_done())
}

/// A shard with up to two regions and small areas, so that they fill.
fn geometry(first: u32, second: u32, journal_blocks: u32) -> Superblock {
    let mut superblock = Superblock {
        read_only_features: 0,
        compatible_features: 0,
        pool: uuid::Uuid::from_u128(1),
        device: uuid::Uuid::from_u128(2),
        other: uuid::Uuid::from_u128(3),
        generation: 0,
        epoch: 0,
        opening: Opening::default(),
        role: Role::Capacity,
        shape: Shape::Hot,
        shards: 1,
        log_blocks: 1 << 20,
        capacity_blocks: 1 << 20,
        segment_blocks: 256,
        segments: 64,
        segments_start: 16,
        log_kind: LogKind::Block,
        catalog_start: 2,
        catalog_blocks: 1,
        shards_start: 4,
        root_blocks: 1,
        journal_blocks,
        layered: false,
        shadowed: false,
        created_s: 0,
        name: "tank".to_string(),
        bands: engine::BandLayout::default(),
        regions: Vec::new(),
    };
    let region = Region {
        shape: Shape::Hot,
        start: superblock.shards_end(),
        first_extent: 0,
        extents: first,
        shard: 0,
        bands: 0,
    };
    superblock.regions.push(region);
    if second > 0 {
        superblock.regions.push(Region {
            shape: Shape::Hot,
            start: region.end(),
            first_extent: first,
            extents: second,
            shard: 0,
            bands: 0,
        });
    }
    superblock
}

/// The device as the store sees it, with data areas that take no space on the disk below; and defects on demand.
struct Window {
    below: Rc<dyn Channel>,
    geometry: Rc<Superblock>,
    /// Device blocks in one of 4 KiB.
    factor: u64,
    sim: Handle,
    late_flush: Rc<Cell<bool>>,
}

impl Window {
    fn blocks_below(geometry: &Superblock) -> u64 {
        let metadata = |region: &Region| region.data_start() - region.start;
        geometry.shards_end() + geometry.regions.iter().map(metadata).sum::<u64>()
    }

    fn place(&self, block: u64) -> u64 {
        let mut skipped = 0;
        for region in &self.geometry.regions {
            if block < region.data_start() {
                return self.slot(region, block) - skipped;
            }
            self.sim.expect(block >= region.end(), || format!("block {block} holds data, not metadata"));
            skipped += region.end() - region.data_start();
        }
        self.sim.violation(format!("block {block} is in no region"));
        0
    }

    fn slot(&self, region: &Region, block: u64) -> u64 {
        let shared = is(&self.sim, Mutation::SharedSlots) && block >= region.map_slot(0, 0);
        if shared { block - (block - region.start) % 2 } else { block }
    }
}

impl Channel for Window {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Flush {
            if is(&self.sim, Mutation::LateFlush) {
                self.late_flush.set(true);
                return IoFuture::ready(io.done(Status::Ok));
            }
            return self.below.submit(io);
        }
        let (lba, factor) = (io.lba, self.factor);
        io.lba = Lba(self.place(lba.0 / factor) * factor + lba.0 % factor);
        let late = io.flags.has(Flags::FUA) && self.late_flush.take();
        let (done, below) = (self.below.submit(io), self.below.clone());
        IoFuture::new(async move {
            let mut done = done.await;
            done.io.lba = lba;
            if late {
                below.submit(Io::flush()).await;
            }
            done
        })
    }
}

impl Setup {
    /// Boots the node, starts `main` on it, and runs for `duration_ns`.
    fn life<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        duration_ns: u64,
        main: impl FnOnce(Setup, Rc<Reactor>, Crew) -> F,
    ) -> Result<Crew, Failure> {
        world.boot(self.node, 1, World::reactor_config());
        let crew = Crew::default();
        world.spawn(self.node, 0, |reactor| crew.member(main(self.clone(), reactor, crew.clone())));
        world.run_for(duration_ns.max(1_000_000))?;
        Ok(crew)
    }

    fn down(&self, world: &mut World, crash: Crash) {
        if world.is_running(self.node) {
            world.crash(self.node, crash);
        }
        let oracle = &mut *self.oracle.borrow_mut();
        oracle.running = None;
        oracle.power_cut = crash == Crash::PowerCut;
    }

    fn device(&self, reactor: &Rc<Reactor>, raw: bool) -> Result<(Rc<dyn Channel>, DeviceInfo), String> {
        let factor = 4096 / self.block_size as u64;
        let device: Rc<dyn BlockDevice> = if raw {
            Rc::new(RawFile::new(PATH, self.block_size, Window::blocks_below(&self.geometry) * factor, true))
        } else {
            let options =
                FileDeviceOptions { block_size: self.block_size, lock: false, ..FileDeviceOptions::new(PATH) };
            Rc::new(FileDevice::open(reactor, PATH, options).map_err(|error| error.to_string())?)
        };
        let below = device.open_channel(reactor).map_err(|error| error.to_string())?;
        let info = DeviceInfo { blocks: self.geometry.capacity_blocks * factor, ..device.info() };
        reactor.keep(Rc::new(device));
        let window =
            Window { below, geometry: self.geometry.clone(), factor, sim: self.sim.clone(), late_flush: Rc::default() };
        Ok((Rc::new(window), info))
    }

    async fn create(&self, reactor: Rc<Reactor>) {
        let made: Result<(), MetaError> = async {
            let (channel, info) = self.device(&reactor, false).expect("a new disk opens");
            let mut superblock = (*self.geometry).clone();
            let tail = LogTail { segment: 1, lsn: 0 };
            Meta::format(&reactor, channel.clone(), info, &superblock, 0, tail).await?;
            DirtyJournal::format(&reactor, channel.clone(), info, &superblock, 0).await?;
            write_superblock(&reactor, channel, info, &mut superblock).await
        }
        .await;
        self.sim.expect(made.is_ok(), || format!("the pool cannot be made: {made:?}"));
        let oracle = &mut *self.oracle.borrow_mut();
        oracle.pictures.insert(0, Picture::exactly(oracle.now.clone()));
    }

    /// Opens everything and compares it with what may be there; `None` when a failing disk does not allow it.
    async fn open(&self, reactor: &Rc<Reactor>) -> Option<(Rc<Meta>, Rc<DirtyJournal>)> {
        let opened = self.try_open(reactor).await;
        match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.sim.expect(self.lenient, || format!("the store does not open: {error}"));
                self.sim.note(format!("the store does not open: {error}"));
                None
            }
        }
    }

    async fn try_open(&self, reactor: &Rc<Reactor>) -> Result<Option<(Rc<Meta>, Rc<DirtyJournal>)>, String> {
        let text = |error: MetaError| {
            let damaged = matches!(error, MetaError::Damaged { .. } | MetaError::Superblock(_));
            self.sim.expect(!damaged || self.rotten, || format!("a crash has damaged the store: {error}"));
            error.to_string()
        };
        let (channel, info) = self.device(reactor, self.raw)?;
        let mut superblock = read_superblocks(reactor, channel.clone(), info).await.map_err(text)?;
        let epoch = superblock.epoch;
        let known = self.oracle.borrow().epoch;
        self.sim.expect(epoch >= known, || format!("epoch {epoch} came after epoch {known}"));
        superblock.epoch += 1;
        write_superblock(reactor, channel.clone(), info, &mut superblock).await.map_err(text)?;
        if self.sim.alive(self.node) {
            self.oracle.borrow_mut().epoch = superblock.epoch;
        }
        let (meta, tail) =
            Meta::open(reactor, channel.clone(), info, &superblock, 0, self.cache_bytes).await.map_err(text)?;
        if is(&self.sim, Mutation::CopyTablesEarly) {
            meta.copy_tables_early();
        }
        let journal = DirtyJournal::open(reactor, channel, info, &superblock, 0).await.map_err(text)?;
        self.check_journal(&journal);
        if !self.check_state(&meta, tail).await {
            return Ok(None);
        }
        Ok(Some((meta, journal)))
    }

    /// Everything acknowledged is there, and nothing that was never asked for. What is there counts as acknowledged only
    /// when it is added again: it may be visible without being durable.
    fn check_journal(&self, journal: &DirtyJournal) {
        let found: BTreeSet<_> = journal.entries().into_iter().collect();
        let oracle = self.oracle.borrow();
        let missing: Vec<_> = oracle.added.difference(&found).collect();
        self.sim.expect(missing.is_empty(), || format!("the journal has lost {missing:?}"));
        let invented: Vec<_> = found.difference(&oracle.begun).collect();
        self.sim.expect(invented.is_empty(), || format!("the journal has {invented:?}, which nobody added"));
    }

    async fn read_state(&self, meta: &Rc<Meta>) -> Option<Vec<Known>> {
        let mut state = Vec::new();
        for extent in 0..meta.extents() {
            let page = match meta.load(extent).await {
                Ok(page) => page,
                Err(status) => {
                    self.sim.expect(status != Status::Corrupt || self.rotten, || {
                        format!("the page of extent {extent} is damaged")
                    });
                    self.sim.expect(self.lenient, || format!("extent {extent} does not load: {status}"));
                    return None;
                }
            };
            let descriptor = meta.descriptor(extent);
            state.push(Known {
                volume: descriptor.volume,
                vextent: descriptor.vextent,
                lost: descriptor.flags & BLOCKS_LOST != 0,
                values: std::array::from_fn(|slot| page.get(entry_index(slot as u32))),
            });
            let rest = match descriptor.flags & BLOCKS_LOST {
                _ if descriptor.is_free() => INHERIT,
                0 => HOLE,
                _ => LOST,
            };
            let strange = (0..1024).find(|index| index % 255 > 0 && page.get(*index) != rest);
            self.sim.expect(strange.is_none(), || format!("entry {strange:?} of extent {extent} was never set"));
        }
        Some(state)
    }

    async fn check_state(&self, meta: &Rc<Meta>, tail: LogTail) -> bool {
        let Some(state) = self.read_state(meta).await else { return false };
        if !self.sim.alive(self.node) {
            return false;
        }
        let oracle = &mut *self.oracle.borrow_mut();
        let Some(picture) = oracle.pictures.get(&tail.lsn) else {
            let known: Vec<_> = oracle.pictures.keys().collect();
            self.sim.violation(format!("checkpoint {} opens, possible are {known:?}", tail.lsn));
            return false;
        };
        for (extent, found) in (0..).zip(&state) {
            let allowed = picture.allows(extent, found);
            let begun = picture.begun[extent as usize];
            self.sim
                .expect(allowed, || format!("extent {extent} of checkpoint {} is {found:?}, was {begun:?}", tail.lsn));
        }
        // What was seen may be visible without being durable, unless the power was gone.
        let acknowledged = *oracle.pictures.keys().next().expect("one was just found");
        let power_cut = oracle.power_cut;
        oracle.pictures.retain(|lsn, _| *lsn == acknowledged && !power_cut);
        oracle.pictures.insert(tail.lsn, Picture::exactly(state.clone()));
        oracle.now = state;
        true
    }

    /// Opens once more beside, and finds the same.
    async fn check_same(&self, reactor: &Rc<Reactor>, meta: &Rc<Meta>, journal: &Rc<DirtyJournal>) {
        let (channel, info) = self.device(reactor, false).expect("nobody locks it twice");
        let superblock = read_superblocks(reactor, channel.clone(), info).await.expect("it was just read");
        let again = Meta::open(reactor, channel.clone(), info, &superblock, 0, self.cache_bytes).await;
        let (again, _) = again.expect("it was just opened");
        let (one, two) = (self.read_state(meta).await, self.read_state(&again).await);
        self.sim.expect(one.is_some() && one == two, || "opened twice, it is two things".into());
        let again = DirtyJournal::open(reactor, channel, info, &superblock, 0).await.expect("it was just opened");
        self.sim.expect(again.entries() == journal.entries(), || "the journal reads as two things".into());
    }

    // --- work -------------------------------------------------------------------------------------------------------

    async fn work(&self, reactor: Rc<Reactor>, crew: Crew) {
        let Some((meta, journal)) = self.open(&reactor).await else { return };
        for _ in 0..3 {
            let (setup, meta, journal) = (self.clone(), meta.clone(), journal.clone());
            let inner = reactor.clone();
            reactor.spawn(crew.member(async move {
                let mut rng = setup.sim.rng();
                for _ in 0..rng.between(10, 200) {
                    match rng.below(12) {
                        0 => setup.change_descriptor(&meta, &mut rng),
                        1 => setup.use_journal(&journal, &mut rng).await,
                        2 => inner.sleep_ns(rng.below(200_000)).await,
                        _ => setup.change_page(&inner, &meta, &mut rng).await,
                    }
                }
            }));
        }
        let mut rng = self.sim.rng();
        for _ in 0..rng.below(20) {
            reactor.sleep_ns(rng.below(2_000_000)).await;
            self.checkpoint(&meta).await;
        }
    }

    fn may_change(&self) -> bool {
        self.sim.alive(self.node) && !(self.exact && self.oracle.borrow().running.is_some())
    }

    fn change_descriptor(&self, meta: &Meta, rng: &mut base::Rng) {
        if !self.may_change() {
            return;
        }
        let extent = rng.below(meta.extents() as u64) as u32;
        let mut known = self.oracle.borrow().now[extent as usize];
        if rng.one_in(3) {
            known = FREE;
        } else {
            known.lost = rng.one_in(4);
            (known.volume, known.vextent) = (rng.between(1, 3) as u32, rng.below(5) as u32);
            known.values = [if known.lost { LOST } else { HOLE }; SLOTS as usize];
        }
        let old = self.oracle.borrow().now[extent as usize];
        let same = (old.volume, old.vextent, old.lost) == (known.volume, known.vextent, known.lost);
        if same && known.volume != 0 {
            known.values = old.values;
        }
        let flags = if known.lost { BLOCKS_LOST } else { 0 };
        let (volume, vextent) = (known.volume, known.vextent);
        meta.set_descriptor(extent, Descriptor { volume, vextent, flags, ..Descriptor::default() });
        self.oracle.borrow_mut().change(extent, known);
    }

    async fn change_page(&self, reactor: &Rc<Reactor>, meta: &Rc<Meta>, rng: &mut base::Rng) {
        let extent = rng.below(meta.extents() as u64) as u32;
        let page = match meta.load(extent).await {
            Ok(page) => page,
            Err(status) => {
                return self.sim.expect(self.lenient, || format!("extent {extent} does not load: {status}"));
            }
        };
        let mut known = self.oracle.borrow().now[extent as usize];
        if !self.sim.alive(self.node) {
            return;
        }
        let found: [u32; SLOTS as usize] = std::array::from_fn(|slot| page.get(entry_index(slot as u32)));
        self.sim.expect(found == known.values, || {
            format!("extent {extent} holds {found:x?} in memory, {:x?} were set", known.values)
        });
        if known.volume == 0 || !self.may_change() {
            return;
        }
        let slot = rng.below(SLOTS as u64) as usize;
        known.values[slot] = if rng.one_in(8) { HOLE } else { rng.next_u64() as u32 & 0x7FFF_FFFF };
        page.set(entry_index(slot as u32), known.values[slot]);
        self.oracle.borrow_mut().change(extent, known);
        if rng.one_in(4) {
            // In use for a while.
            reactor.sleep_ns(rng.below(100_000)).await;
            drop(page);
        }
    }

    async fn use_journal(&self, journal: &Rc<DirtyJournal>, rng: &mut base::Rng) {
        // Slices that are added again and again, and some that fill more than a block.
        let slices = if rng.one_in(2) { 4 } else { 1_000 };
        let slice = (rng.between(1, 2) as u32, rng.below(slices) as u32);
        match rng.below(6) {
            0 => {
                if self.sim.alive(self.node) {
                    self.oracle.borrow_mut().added.remove(&slice);
                }
                journal.retire(slice.0, slice.1);
            }
            1 => {
                let outcome = journal.compact().await;
                self.sim.expect(self.lenient || outcome.is_ok(), || format!("compaction fails: {outcome:?}"));
            }
            _ => {
                self.oracle.borrow_mut().begun.insert(slice);
                let outcome = journal.add(slice.0, slice.1).await;
                self.sim.expect(self.lenient || outcome.is_ok(), || format!("an addition fails: {outcome:?}"));
                if outcome.is_ok() && self.sim.alive(self.node) && journal.contains(slice.0, slice.1) {
                    self.oracle.borrow_mut().added.insert(slice);
                }
            }
        }
    }

    async fn checkpoint(&self, meta: &Rc<Meta>) {
        if !self.sim.alive(self.node) {
            return;
        }
        let lsn = self.oracle.borrow_mut().begin();
        let outcome = meta.checkpoint(LogTail { segment: 1, lsn }).await;
        if self.sim.alive(self.node) {
            self.sim.expect(self.lenient || outcome.is_ok(), || format!("a checkpoint fails: {outcome:?}"));
            self.oracle.borrow_mut().end(lsn, outcome.is_ok());
        }
    }
}
