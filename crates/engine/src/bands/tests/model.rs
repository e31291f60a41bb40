//! Bands under random writers, drains, checkpoints, crashes and failing writes, against a map that knows better.

use super::*;
use base::Rng;
use bdev::{Io, Lba, Op};
use reactor::SgList;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const SHAPE: BandGeometry = BandGeometry { first_block: 8, bands: 20, band_blocks: 16, unit_blocks: 4 };
/// Blocks that exist: less than half of what the bands hold.
const BLOCKS: u64 = 100;

type Map = BTreeMap<u32, (BandAt, u32)>;

/// What the model knows; the guard of the disk looks into it at each write.
#[derive(Default)]
struct Known {
    map: Map,
    /// What a crash leads back to: the map and the table of the last durable checkpoint.
    durable: (Map, Vec<BandEntry>),
    /// The map of a checkpoint under way.
    next: Map,
    /// The next version of a block's content.
    version: u32,
    /// Blocks of the device written since the last checkpoint began, and since it was durable.
    written: [BTreeSet<u64>; 2],
}

impl Known {
    /// Nobody may write where a map leads.
    fn guard(&mut self, op: Op, blocks: Range<u64>) {
        if op == Op::Read {
            return;
        }
        for map in [&self.map, &self.durable.0, &self.next] {
            for (block, (at, _)) in map {
                let place = SHAPE.first_block + at.0 as u64;
                assert!(!blocks.contains(&place), "{op:?} of {blocks:?} over block {block} at {at:?}");
            }
        }
        self.written.iter_mut().for_each(|written| written.extend(blocks.clone()));
    }
}

struct World {
    rig: Rig,
    known: Rc<RefCell<Known>>,
    rng: Rng,
    epoch: u32,
    defect: Option<BandDefect>,
}

fn tag(block: u32, version: u32) -> u32 {
    block + version * 1000
}

fn tagged(block: u32, version: u32) -> Entry {
    Entry { block, crc: entry(tag(block, version)).crc }
}

impl World {
    fn new(seed: u64, defect: Option<BandDefect>) -> World {
        let mut rng = Rng::new(seed);
        let disk = Disk::new(reactor());
        if rng.one_in(2) {
            disk.can_unmap();
        }
        let mut world = World { rig: Rig::on(disk, SHAPE, OWNER, &[]), known: Rc::default(), rng, epoch: 7, defect };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        let known = self.known.clone();
        let guard = move |op, blocks| known.borrow_mut().guard(op, blocks);
        self.rig.disk.hook.replace(Some(Box::new(guard)));
        if self.rng.one_in(4) {
            self.rig.disk.delays.replace(None);
        } else {
            self.rig.disk.delays.replace(Some(self.rng.fork()));
        }
        self.defect.into_iter().for_each(|defect| self.rig.bands.break_rule(defect));
    }

    /// Several writers at once, beside one that drains if there is need for it.
    fn round(&mut self) {
        let mut free: Vec<u32> = (0..BLOCKS as u32).collect();
        let mut tasks = Vec::new();
        for _ in 0..self.rng.between(1, 3) {
            let mut blocks = Vec::new();
            for _ in 0..self.rng.between(1, 25).min(free.len() as u64) {
                blocks.push(free.swap_remove(self.rng.below(free.len() as u64) as usize));
            }
            let (bands, known, pauses) = (self.rig.bands.clone(), self.known.clone(), self.rng.fork());
            tasks.push(self.rig.reactor.spawn_join(write(bands, known, blocks, pauses)));
        }
        if self.rng.one_in(2) || !self.rig.bands.may_append(Stream::User) {
            tasks.push(self.rig.reactor.spawn_join(drain(self.rig.bands.clone(), self.known.clone())));
        }
        if self.rng.one_in(3) {
            self.checkpoint();
        }
        for task in tasks {
            self.rig.run(task);
        }
        if self.rng.one_in(4) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let block = self.rng.below(BLOCKS) as u32;
        let former = self.known.borrow_mut().map.remove(&block);
        former.into_iter().for_each(|(at, _)| self.rig.bands.dead(at));
    }

    fn checkpoint(&mut self) {
        let bands = self.rig.bands.clone();
        let token = bands.checkpoint_begun();
        {
            let known = &mut *self.known.borrow_mut();
            known.next = known.map.clone();
            known.written[0].clear();
        }
        self.rig.turns(self.rng.below(10) as usize);
        let table = bands.table(token);
        self.rig.turns(self.rng.below(4) as usize);
        if self.rng.one_in(4) {
            // It fails; what it would have led to may still be what a crash leads back to, or not.
            self.known.borrow_mut().next.clear();
            return;
        }
        {
            let known = &mut *self.known.borrow_mut();
            known.durable = (std::mem::take(&mut known.next), table);
            known.written[1] = known.written[0].clone();
        }
        bands.checkpointed(token);
    }

    /// Some of what was written since the last checkpoint is gone, and all that was only known.
    fn crash(&mut self) {
        let disk = self.rig.disk.fork();
        {
            let known = &mut *self.known.borrow_mut();
            known.map = known.durable.0.clone();
            known.next.clear();
            for block in &known.written[1] {
                match self.rng.below(3) {
                    0 => disk.poke(*block, vec![0; BLOCK_BYTES]),
                    1 => disk.flip(*block, self.rng.below(4096 * 8) as usize),
                    _ => {}
                }
            }
        }
        self.epoch += 1;
        let owner = BandOwner { epoch: self.epoch, ..OWNER };
        let table = self.known.borrow().durable.1.clone();
        let bands = Bands::new(&disk.reactor, disk.clone(), &disk.info.get(), SHAPE, &[], owner, &table);
        self.rig = Rig { reactor: disk.reactor.clone(), disk, bands };
        self.prepare();
        if self.rng.one_in(2) {
            // Draining need not wait for the recount.
            self.rig.run(drain(self.rig.bands.clone(), self.known.clone()));
        }
        self.rig.bands.recount_begun();
        let map = self.known.borrow().map.clone();
        map.values().for_each(|(at, _)| self.rig.bands.live(*at));
        self.rig.bands.recount_ended();
    }

    /// What maps lead to is there, and counted.
    fn check(&self) {
        let known = self.known.borrow();
        let mut valid = vec![0; SHAPE.bands as usize];
        let mut places = BTreeSet::new();
        for (block, (at, version)) in &known.map {
            assert!(places.insert(at.0), "two blocks at {at:?}");
            assert!(self.rig.bands.is_place(*at), "block {block} is at {at:?}");
            let found = self.rig.disk.block(self.rig.bands.device_block(*at));
            assert!(found == bytes(tag(*block, *version)), "block {block} is not at {at:?}");
            valid[(at.0 / SHAPE.band_blocks) as usize] += 1;
        }
        let counted: Vec<u32> = (0..SHAPE.bands).map(|band| self.rig.bands.valid(band)).collect();
        assert_eq!(counted, valid);
        let room = self.rig.bands.room();
        assert_eq!(room.valid_blocks, known.map.len() as u64);
        assert_eq!(room.held_blocks, 0, "nobody is under way");
        let all = room.free + room.open + room.closed + room.pending + room.unmapping + room.retired;
        assert_eq!((room.bands, all), (SHAPE.bands, SHAPE.bands));
    }

    /// Draining and checkpoints always make room again.
    fn make_room(&mut self) {
        for _ in 0..100 {
            if self.rig.bands.may_append(Stream::User) {
                return;
            }
            self.rig.run(drain(self.rig.bands.clone(), self.known.clone()));
            self.checkpoint();
            self.rig.turns(60);
        }
        panic!("no room can be made: {:?}", self.rig.bands.room());
    }
}

/// Appends new versions of blocks, and enters them in the map.
async fn write(bands: Rc<Bands>, known: Rc<RefCell<Known>>, blocks: Vec<u32>, mut pauses: Rng) {
    let mut writer = bands.writer(Stream::User);
    let mut appended = Vec::new();
    for run in blocks.chunks(7) {
        known.borrow_mut().version += 1;
        let version = known.borrow().version;
        let entries: Vec<_> = run.iter().map(|block| tagged(*block, version)).collect();
        let fill = |index: usize, target: &mut [u8]| {
            content(tag(run[index], version), target);
            true
        };
        if writer.append(&entries, fill).await.is_err() {
            break;
        }
        appended.extend(run.iter().map(|block| (*block, version)));
        for _ in 0..pauses.below(3) {
            bands.medium.reactor.yield_now().await;
        }
        if pauses.one_in(40) {
            return;
        }
    }
    let Ok(places) = writer.finish().await else { return };
    for _ in 0..pauses.below(4) {
        bands.medium.reactor.yield_now().await;
    }
    for ((block, version), at) in appended.into_iter().zip(places.iter()) {
        let at = at.expect("nothing was left out");
        bands.live(at);
        let former = known.borrow_mut().map.insert(block, (at, version));
        former.into_iter().for_each(|(at, _)| bands.dead(at));
    }
}

/// Drains one band, if any can be.
async fn drain(bands: Rc<Bands>, known: Rc<RefCell<Known>>) {
    let Some(mut cursor) = bands.victim() else { return };
    let (mut writer, mut moved) = (bands.mover(cursor.band()), Vec::new());
    while let Some(stripe) = cursor.next_stripe().await.unwrap() {
        for (at, entry) in stripe.entries() {
            let leads_here = |known: &Known| known.map.get(&entry.block).is_some_and(|(place, _)| *place == at);
            if !leads_here(&known.borrow()) {
                continue;
            }
            let _held = bands.hold(at);
            let mut bufs = SgList::new();
            bufs.push(bands.medium.reactor.pool().alloc(BLOCK_BYTES).await);
            let done = bands.medium.channel.submit(Io::read(Lba(bands.device_block(at)), 1, bufs)).await;
            let found = done.io.bufs[0].as_slice();
            assert_eq!(crc32c(found), entry.crc, "what is moved is right");
            let fill = |_: usize, target: &mut [u8]| {
                target.copy_from_slice(found);
                true
            };
            if writer.append(&[entry], fill).await.is_err() {
                return;
            }
            moved.push((entry.block, at));
        }
    }
    let Ok(places) = writer.finish().await else { return };
    for ((block, from), at) in moved.into_iter().zip(places.iter().flatten()) {
        let known = &mut *known.borrow_mut();
        let Some(place) = known.map.get_mut(&block).filter(|place| place.0 == from) else { continue };
        place.0 = at;
        bands.live(at);
        bands.dead(from);
    }
    drop(places);
    bands.drained(cursor);
}

fn run(seed: u64, rounds: u32, defect: Option<BandDefect>) -> World {
    let mut world = World::new(seed, defect);
    for _ in 0..rounds {
        if world.rng.one_in(25) {
            let band = world.rng.below(SHAPE.bands as u64) * 16 + 8;
            let range = if world.rng.one_in(3) { 0..1 << 20 } else { band..band + 16 };
            world.rig.disk.fail(Op::Write, range, Status::WriteError);
            world.round();
            world.rig.disk.heal();
        } else if world.rng.one_in(15) {
            world.crash();
        } else {
            world.round();
        }
        world.rig.turns(60);
        world.check();
        if world.rig.bands.room().retired < 4 {
            world.make_room();
        }
    }
    world
}

#[test]
fn no_block_is_lost_or_overwritten_and_room_can_always_be_made() {
    let mut total = BandStats::default();
    for seed in 0..40 {
        let stats = run(seed, 120, None).rig.bands.stats();
        total.stripes += stats.stripes;
        total.victims += stats.victims;
        total.failed_bands += stats.failed_bands;
        total.bad_headers += stats.bad_headers;
        total.write_errors += stats.write_errors;
    }
    assert!(total.stripes > 1000 && total.victims > 100, "{total:?}");
    assert!(total.failed_bands > 0 && total.write_errors > 10, "{total:?}");
}

#[test]
fn a_run_is_the_same_when_it_is_repeated() {
    let log = |seed| run(seed, 60, None).rig.disk.log.borrow().clone();
    (0..3).for_each(|seed| assert_eq!(log(seed), log(seed)));
}

/// Whether some seed finds a defect.
fn is_found(defect: BandDefect) -> bool {
    let fails = |seed| std::panic::catch_unwind(|| drop(run(seed, 120, Some(defect)))).is_err();
    (0..20).any(fails)
}

#[test]
fn the_model_finds_bands_that_are_used_again_too_early() {
    assert!(is_found(BandDefect::FreeAtOnce) && is_found(BandDefect::ForgetHeld));
}

#[test]
fn the_model_finds_that_room_cannot_be_made_without_a_reserve() {
    assert!(is_found(BandDefect::NoReserve));
}
