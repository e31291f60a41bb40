//! Pools over devices that keep more than one version of their blocks: what rots in one of them is read from another, and
//! written anew.

use crate::common::{mem, one, open, options, reactor, read, shaped, write};
use bdev::{BlockDevice, Io, Lba, MirrorDevice, MirrorOptions, ParityDevice, ParityOptions, Status};
use engine::{CheckOptions, CreateOptions, LogDevice, Pool, PoolDevices, ScrubStatus, ShardStatus};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Blocks that are written, each filled with its number and one more.
const BLOCKS: u8 = 24;

/// A pool's devices, and those below them.
#[derive(Clone)]
struct Stack {
    reactor: Rc<Reactor>,
    below: Vec<Arc<dyn BlockDevice>>,
    mirror: Option<Arc<MirrorDevice>>,
    devices: PoolDevices,
}

impl Stack {
    fn new(reactor: &Rc<Reactor>, below: Vec<Arc<dyn BlockDevice>>, capacity: Arc<dyn BlockDevice>) -> Stack {
        let block_size = capacity.info().block_size;
        let devices = PoolDevices { log: LogDevice::Block(mem("log", block_size, 8 << 20)), capacity };
        Stack { reactor: reactor.clone(), below, mirror: None, devices }
    }

    async fn mirror(reactor: &Rc<Reactor>, block_size: u32) -> Stack {
        let legs: Vec<_> = (0..2).map(|leg| mem(&format!("leg {leg}"), block_size, 96 << 20)).collect();
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        let found = legs.iter().cloned().map(Some).collect();
        let mirror = Arc::new(MirrorDevice::open(reactor, "both", found, &options).await.unwrap());
        Stack { mirror: Some(mirror.clone()), ..Stack::new(reactor, legs, mirror) }
    }

    async fn parity(reactor: &Rc<Reactor>) -> Stack {
        let members: Vec<_> = (0..4).map(|member| mem(&format!("member {member}"), 4096, 40 << 20)).collect();
        let options = ParityOptions { create: true, chunk_bytes: 16 << 10, ..ParityOptions::default() };
        let found = members.iter().cloned().map(Some).collect();
        let parity = ParityDevice::open(reactor, "all", found, &options).await.unwrap();
        Stack::new(reactor, members, Arc::new(parity))
    }

    /// Makes a pool of which the capacity device alone has what was written, and opens it.
    async fn filled(&self, is_shaped: bool) -> (Arc<Pool>, Arc<dyn BlockDevice>) {
        // A unit of writes is made of whole rows.
        let unit_blocks = Some(if self.devices.capacity.info().rows.is_some() { 12 } else { 4 });
        let options = if is_shaped { CreateOptions { unit_blocks, ..shaped(1) } } else { options(1) };
        Pool::create(&self.reactor, &self.devices, &options, 0, true).await.unwrap();
        let pool = open(self.reactor.clone(), self.devices.clone()).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&self.reactor, "v", 4096, 12, 0).await.unwrap();
        for block in 0..BLOCKS {
            assert_eq!(write(&self.reactor, &volume, block as u64 * 7, block + 1).await, Status::Ok);
        }
        drop(volume);
        self.reopen(pool).await
    }

    async fn reopen(&self, pool: Arc<Pool>) -> (Arc<Pool>, Arc<dyn BlockDevice>) {
        pool.settle(&self.reactor).await.unwrap();
        pool.close(&self.reactor).await;
        let pool = open(self.reactor.clone(), self.devices.clone()).await.unwrap();
        let volume = pool.volume("v").unwrap();
        (pool, volume)
    }

    /// The blocks of a device below that are filled with `value`.
    async fn places(&self, below: usize, value: u8) -> Vec<Io> {
        let (device, mut found) = (&self.below[below], Vec::new());
        let channel = device.open_channel(&self.reactor).unwrap();
        let info = device.info();
        for lba in 0..info.blocks {
            let buf = self.reactor.pool().alloc(info.block_size as usize).await;
            let done = channel.submit(Io::read(Lba(lba), 1, one(buf))).await;
            if done.io.bufs[0].as_slice().iter().all(|byte| *byte == value) {
                found.push(done.io);
            }
        }
        found
    }

    /// Changes each block of a device below that is filled with `value`; how many there were.
    async fn rot(&self, below: usize, value: u8) -> usize {
        let channel = self.below[below].open_channel(&self.reactor).unwrap();
        let places = self.places(below, value).await;
        let found = places.len();
        for mut io in places {
            io.bufs[0].as_mut_slice()[9] ^= 0x20;
            assert_eq!(channel.submit(Io::write(io.lba, 1, io.bufs)).await.status, Status::Ok);
        }
        found
    }

    /// Flips a bit of each header of a stripe on a device below; how many there were.
    async fn rot_headers(&self, below: usize) -> u64 {
        let device = &self.below[below];
        let channel = device.open_channel(&self.reactor).unwrap();
        let mut found = 0;
        for lba in 0..device.info().blocks {
            let buf = self.reactor.pool().alloc(device.info().block_size as usize).await;
            let mut io = channel.submit(Io::read(Lba(lba), 1, one(buf))).await.io;
            if io.bufs[0].as_slice().starts_with(b"RMST") {
                io.bufs[0].as_mut_slice()[100] ^= 0x20;
                assert_eq!(channel.submit(Io::write(Lba(lba), 1, io.bufs)).await.status, Status::Ok);
                found += 1;
            }
        }
        found
    }

    /// Flips a bit of each block on a leg of a mirror that has metadata of the pool; how many there were.
    async fn rot_metadata(&self, leg: usize) -> usize {
        let (leg, capacity) = (&self.below[leg], &self.devices.capacity);
        let channel = capacity.open_channel(&self.reactor).unwrap();
        let superblock = engine::read_superblocks(&self.reactor, channel, capacity.info()).await.unwrap();
        let before = leg.info().blocks - capacity.info().blocks;
        let data = match superblock.bands.bands {
            0 => superblock.regions[0].data_start(),
            _ => superblock.bands.start,
        };
        let (channel, mut found) = (leg.open_channel(&self.reactor).unwrap(), 0);
        for lba in before..before + data {
            let buf = self.reactor.pool().alloc(leg.info().block_size as usize).await;
            let mut io = channel.submit(Io::read(Lba(lba), 1, one(buf))).await.io;
            if io.bufs[0].as_slice().iter().any(|byte| *byte != 0) {
                io.bufs[0].as_mut_slice()[9] ^= 0x20;
                assert_eq!(channel.submit(Io::write(Lba(lba), 1, io.bufs)).await.status, Status::Ok);
                found += 1;
            }
        }
        found
    }

    /// Every block reads as it was written, however often: legs take turns.
    async fn expect_all(&self, volume: &Arc<dyn BlockDevice>) {
        for block in 0..BLOCKS {
            // There are only so many blocks healed at a time.
            self.reactor.yield_now().await;
            for _ in 0..4 {
                assert_eq!(read(&self.reactor, volume, block as u64 * 7).await, Ok(block + 1), "block {block}");
            }
        }
    }

    async fn status(&self, pool: &Pool) -> ShardStatus {
        pool.status(&self.reactor).await.shards.remove(0)
    }

    async fn expect_healed(&self, pool: &Pool, blocks: u64) {
        for _ in 0..10_000 {
            if self.status(pool).await.healed_blocks == blocks {
                return;
            }
            self.reactor.sleep_ns(100_000).await;
        }
        panic!("{blocks} blocks should have been healed: {:?}", self.status(pool).await);
    }

    async fn scrub(&self, pool: &Pool) -> ScrubStatus {
        pool.scrub(&self.reactor, u64::MAX).await;
        loop {
            let scrub = self.status(pool).await.scrub;
            if !scrub.running {
                return scrub;
            }
            self.reactor.sleep_ns(100_000).await;
        }
    }

    /// Nothing is wrong any more, in no version.
    async fn expect_whole(&self, pool: Arc<Pool>) {
        let (pool, volume) = self.reopen(pool).await;
        let scrub = self.scrub(&pool).await;
        assert_eq!((scrub.healed_blocks, scrub.corrupt_blocks, scrub.good_blocks), (0, 0, BLOCKS as u64));
        self.expect_all(&volume).await;
        drop(volume);
        pool.close(&self.reactor).await;
        let check = CheckOptions { payloads: true, data: true, repair: false };
        let report = Pool::check(&self.reactor, &self.devices.capacity, Some(&self.devices.log), check).await.unwrap();
        assert!(report.findings.is_empty(), "{report:?}");
    }
}

/// Runs with a stack that `make` makes.
fn with<M: Future<Output = Stack> + 'static, F: Future<Output = ()> + 'static>(
    make: impl FnOnce(Rc<Reactor>) -> M + 'static,
    run: impl FnOnce(Stack) -> F + 'static,
) {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move { run(make(there).await).await });
}

#[test]
fn what_rots_on_one_leg_of_a_mirror_is_read_from_the_other_and_written_anew() {
    for (block_size, is_shaped) in [(512, false), (4096, false), (4096, true)] {
        with(
            move |reactor| async move { Stack::mirror(&reactor, block_size).await },
            move |stack| async move {
                let (pool, volume) = stack.filled(is_shaped).await;
                for value in 1..=BLOCKS {
                    assert!(stack.rot(value as usize % 2, value).await > 0);
                }
                stack.expect_all(&volume).await;
                drop(volume);
                stack.expect_healed(&pool, BLOCKS as u64).await;
                let status = stack.status(&pool).await;
                assert_eq!((status.corrupt_blocks, status.lost_blocks), (0, 0));
                stack.expect_whole(pool).await;
            },
        );
    }
}

#[test]
fn a_scrub_heals_what_nobody_reads() {
    for is_shaped in [false, true] {
        with(
            |reactor| async move { Stack::mirror(&reactor, 4096).await },
            move |stack| async move {
                let (pool, volume) = stack.filled(is_shaped).await;
                drop(volume);
                stack.rot(0, 3).await;
                stack.rot(1, 4).await;
                let scrub = stack.scrub(&pool).await;
                assert_eq!((scrub.healed_blocks, scrub.corrupt_blocks, scrub.bad.len()), (2, 0, 0));
                stack.expect_healed(&pool, 2).await;
                // Whose they were is known: which drive is to be replaced.
                let legs = stack.mirror.as_ref().unwrap().status().legs;
                assert_eq!(legs.iter().map(|leg| (leg.read_errors, leg.repairs)).collect::<Vec<_>>(), [(1, 1); 2]);
                stack.expect_whole(pool).await;
            },
        );
    }
}

#[test]
fn metadata_that_rots_on_one_leg_of_a_mirror_is_written_anew_on_all() {
    for is_shaped in [false, true] {
        with(
            |reactor| async move { Stack::mirror(&reactor, 4096).await },
            move |stack| async move {
                let (pool, volume) = stack.filled(is_shaped).await;
                pool.settle(&stack.reactor).await.unwrap();
                drop(volume);
                assert!(stack.rot_metadata(0).await > 8);
                let scrub = stack.scrub(&pool).await;
                assert!(scrub.damaged_metadata >= 8, "{scrub:?}");
                assert_eq!(scrub.repaired_metadata, scrub.damaged_metadata, "{scrub:?}");
                let rots: Vec<engine::Rot> = scrub.bad_metadata.iter().map(|bad| bad.rot).collect();
                assert!(rots.iter().all(|rot| *rot == engine::Rot::OneVersion), "{scrub:?}");
                let again = stack.scrub(&pool).await;
                assert_eq!((again.damaged_metadata, again.healed_blocks), (0, 0), "{again:?}");
                // What was right all the time is so no more: the pool lives of what was written anew.
                stack.rot_metadata(1).await;
                pool.close(&stack.reactor).await;
                let pool = open(stack.reactor.clone(), stack.devices.clone()).await.unwrap();
                let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
                stack.expect_all(&volume).await;
                drop(volume);
                stack.scrub(&pool).await;
                stack.expect_whole(pool).await;
            },
        );
    }
}

#[test]
fn a_header_that_rots_on_one_leg_is_read_from_the_other_and_a_scrub_writes_anew_what_it_speaks_for() {
    with(
        |reactor| async move { Stack::mirror(&reactor, 4096).await },
        |stack| async move {
            let (pool, volume) = stack.filled(true).await;
            drop(volume);
            pool.close(&stack.reactor).await;
            let headers = stack.rot_headers(0).await;
            assert!(headers > 0);
            let options = CheckOptions { data: true, ..CheckOptions::default() };
            let report = Pool::check(&stack.reactor, &stack.devices.capacity, Some(&stack.devices.log), options).await;
            let report = report.unwrap();
            assert_eq!((report.counts.damaged_headers, report.counts.stripes), (headers, headers));
            let is_told = |finding: &engine::Finding| finding.meaning.contains("right in another");
            assert!(report.findings.iter().all(is_told), "{report:?}");
            // The index is built anew by the other leg's.
            let log = LogDevice::Block(mem("new log", 4096, 8 << 20));
            let devices = PoolDevices { log, capacity: stack.devices.capacity.clone() };
            let done = Pool::forget_log(&stack.reactor, &devices, false, &Default::default()).await.unwrap();
            assert_eq!((done.slices, done.unfound), (0, Some(Vec::new())));
            let stack = Stack { devices: devices.clone(), ..stack };
            let pool = open(stack.reactor.clone(), devices).await.unwrap();
            let scrub = stack.scrub(&pool).await;
            assert_eq!((scrub.damaged_headers, scrub.rewritten_blocks), (headers, BLOCKS as u64));
            assert!(scrub.bad_headers.iter().all(|header| header.in_one_version && header.in_use == header.rewritten));
            assert_eq!((scrub.healed_blocks, scrub.corrupt_blocks), (0, 0));
            stack.expect_whole(pool).await;
        },
    );
}

#[test]
fn what_rots_on_a_member_is_computed_from_the_others_and_written_anew() {
    with(
        |reactor| async move { Stack::parity(&reactor).await },
        |stack| async move {
            let (pool, volume) = stack.filled(true).await;
            let mut rotten = Vec::new();
            for value in 1..=BLOCKS {
                let mut places = Vec::new();
                for member in 0..4 {
                    places.extend(stack.places(member, value).await.iter().map(|io| (member, io.lba.0 % 4)));
                }
                // A sum may look like a block. And no two blocks may rot that are computed from each other.
                if let [(member, line)] = places[..]
                    && rotten.iter().all(|other| *other != line)
                {
                    rotten.push(line);
                    stack.rot(member, value).await;
                }
            }
            assert_eq!(rotten.len(), 4);
            stack.expect_all(&volume).await;
            drop(volume);
            stack.expect_healed(&pool, 4).await;
            // The sums of the old places are wrong: what is still there is written anew as well.
            let scrub = stack.scrub(&pool).await;
            assert_eq!((scrub.corrupt_blocks, scrub.lost_blocks), (0, 0));
            stack.expect_whole(pool).await;
        },
    );
}

#[test]
fn what_a_snapshot_shows_is_healed_where_it_is() {
    for is_shaped in [false, true] {
        with(
            |reactor| async move { Stack::mirror(&reactor, 4096).await },
            move |stack| async move {
                let (pool, volume) = stack.filled(is_shaped).await;
                drop(volume);
                pool.snapshot(&stack.reactor, &[("v", "s")], 7).await.unwrap();
                let (pool, volume) = stack.reopen(pool).await;
                // The volume has something else there.
                assert_eq!(write(&stack.reactor, &volume, 7, 99).await, Status::Ok);
                for value in 1..=BLOCKS {
                    stack.rot(value as usize % 2, value).await;
                }
                let snapshot: Arc<dyn BlockDevice> = pool.volume("v@s").unwrap();
                stack.expect_all(&snapshot).await;
                assert_eq!(read(&stack.reactor, &volume, 7).await, Ok(99));
                assert_eq!(read(&stack.reactor, &volume, 14).await, Ok(3));
                drop((volume, snapshot));
                stack.expect_healed(&pool, BLOCKS as u64).await;
                let (pool, volume) = stack.reopen(pool).await;
                assert_eq!(stack.scrub(&pool).await.healed_blocks, 0);
                let snapshot: Arc<dyn BlockDevice> = pool.volume("v@s").unwrap();
                stack.expect_all(&snapshot).await;
                assert_eq!(read(&stack.reactor, &volume, 7).await, Ok(99));
                drop((volume, snapshot));
                pool.close(&stack.reactor).await;
            },
        );
    }
}

#[test]
fn what_parity_cannot_give_back_is_counted_as_failed() {
    with(
        |reactor| async move { Stack::parity(&reactor).await },
        |stack| async move {
            let (pool, volume) = stack.filled(true).await;
            let mut at = Vec::new();
            for member in 0..4 {
                at.extend(stack.places(member, 8).await.iter().map(|io| io.lba));
            }
            // All members of its row, in other bits.
            for (nth, member) in stack.below.iter().enumerate() {
                let channel = member.open_channel(&stack.reactor).unwrap();
                for lba in &at {
                    let buf = stack.reactor.pool().alloc(4096).await;
                    let mut bufs = channel.submit(Io::read(*lba, 1, one(buf))).await.io.bufs;
                    bufs[0].as_mut_slice()[nth] ^= 1;
                    assert_eq!(channel.submit(Io::write(*lba, 1, bufs)).await.status, Status::Ok);
                }
            }
            for _ in 0..3 {
                assert_eq!(read(&stack.reactor, &volume, 7 * 7).await, Err(Status::Corrupt));
            }
            assert_eq!(stack.status(&pool).await.corrupt_blocks, 3);
            drop(volume);
            pool.close(&stack.reactor).await;
        },
    );
}

#[test]
fn what_rots_in_every_version_is_an_error_and_stays_one() {
    with(
        |reactor| async move { Stack::mirror(&reactor, 4096).await },
        |stack| async move {
            let (pool, volume) = stack.filled(false).await;
            for leg in 0..2 {
                assert_eq!(stack.rot(leg, 8).await, 1);
            }
            for _ in 0..3 {
                assert_eq!(read(&stack.reactor, &volume, 7 * 7).await, Err(Status::Corrupt));
            }
            assert_eq!(read(&stack.reactor, &volume, 8 * 7).await, Ok(9));
            let scrub = stack.scrub(&pool).await;
            assert_eq!((scrub.healed_blocks, scrub.corrupt_blocks), (0, 1));
            drop(volume);
            pool.close(&stack.reactor).await;
        },
    );
}

/// Nothing of what lies behind the mirror's own metadata is right on this leg any more.
async fn spoil(reactor: &Rc<Reactor>, leg: &Arc<dyn BlockDevice>, mirror: &Arc<dyn BlockDevice>) {
    let (channel, start) = (leg.open_channel(reactor).unwrap(), leg.info().blocks - mirror.info().blocks);
    for lba in start..leg.info().blocks {
        let buf = reactor.pool().alloc(leg.info().block_size as usize).await;
        let mut done = channel.submit(Io::read(Lba(lba), 1, one(buf))).await;
        if done.io.bufs[0].as_slice().iter().any(|byte| *byte != 0) {
            done.io.bufs[0].as_mut_slice()[11] ^= 0x10;
            assert_eq!(channel.submit(Io::write(Lba(lba), 1, done.io.bufs)).await.status, Status::Ok);
        }
    }
}

#[test]
fn a_pool_opens_and_replays_its_log_with_either_leg_alone_right() {
    for (leg, is_shaped) in [(0, false), (1, false), (0, true), (1, true)] {
        with(
            |reactor| async move {
                let log = Stack::mirror(&reactor, 4096).await;
                let capacity = Stack::mirror(&reactor, 4096).await;
                let below = log.below.into_iter().chain(capacity.below).collect();
                let devices =
                    PoolDevices { log: LogDevice::Block(log.devices.capacity), capacity: capacity.devices.capacity };
                Stack { reactor, below, mirror: None, devices }
            },
            move |stack| async move {
                let (pool, volume) = stack.filled(is_shaped).await;
                // In the log alone.
                for block in 0..BLOCKS / 2 {
                    let lba = block as u64 * 7;
                    assert_eq!(write(&stack.reactor, &volume, lba, block + 101).await, Status::Ok);
                }
                drop(volume);
                pool.close(&stack.reactor).await;
                let LogDevice::Block(log) = &stack.devices.log else { panic!("a block log") };
                spoil(&stack.reactor, &stack.below[leg], log).await;
                spoil(&stack.reactor, &stack.below[2 + leg], &stack.devices.capacity).await;
                let pool = open(stack.reactor.clone(), stack.devices.clone()).await.unwrap();
                let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
                for block in 0..BLOCKS {
                    let value = if block < BLOCKS / 2 { block + 101 } else { block + 1 };
                    for _ in 0..2 {
                        assert_eq!(read(&stack.reactor, &volume, block as u64 * 7).await, Ok(value), "block {block}");
                    }
                }
                pool.settle(&stack.reactor).await.unwrap();
                let status = stack.status(&pool).await;
                assert_eq!((status.corrupt_blocks, status.lost_blocks), (0, 0));
                drop(volume);
                pool.close(&stack.reactor).await;
            },
        );
    }
}
