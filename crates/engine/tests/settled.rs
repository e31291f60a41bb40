//! Reads of blocks that are on the capacity device alone, with fewer map pages in memory than extents in use.

use crate::common::{mem, one, options, reactor, read, write};
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op, Status};
use engine::{LogDevice, OpenOptions, Pool, PoolDevices, ShardTuning};
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Extents in use; memory has room for the pages of four.
const EXTENTS: u64 = 12;

/// What is done to reads.
#[derive(Default)]
struct Wire {
    bytes: AtomicU64,
    /// Flip a bit in the first bytes of answers this long.
    spoils: AtomicU64,
    /// Hold reads back until told.
    holds: AtomicBool,
    held: Mutex<u64>,
}

/// A device whose reads are counted, spoilt and held back.
struct Wired {
    below: Arc<dyn BlockDevice>,
    wire: Arc<Wire>,
}

impl BlockDevice for Wired {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn kind(&self) -> &'static str {
        "wired"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { loans: false, ..self.below.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(Open {
            below: self.below.open_channel(reactor)?,
            wire: self.wire.clone(),
            reactor: reactor.clone(),
        }))
    }
}

struct Open {
    below: Rc<dyn Channel>,
    wire: Arc<Wire>,
    reactor: Rc<Reactor>,
}

impl Channel for Open {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op != Op::Read {
            return self.below.submit(io);
        }
        let bytes = io.bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
        self.wire.bytes.fetch_add(bytes, Relaxed);
        let held = self.wire.holds.load(Relaxed);
        let answer = self.below.submit(io);
        IoFuture::new(async move {
            let mut done = answer.await;
            if self.wire.spoils.load(Relaxed) == bytes {
                done.io.bufs[0].as_mut_slice().iter_mut().for_each(|byte| *byte ^= 4);
            }
            if held {
                *self.wire.held.lock().unwrap() += 1;
                while self.wire.holds.load(Relaxed) {
                    self.reactor.yield_now().await;
                }
            }
            done
        })
    }
}

struct Fixture {
    reactor: Rc<Reactor>,
    pool: Arc<Pool>,
    volume: Arc<dyn BlockDevice>,
    wire: Arc<Wire>,
}

impl Fixture {
    /// A pool whose first extents have two blocks each, the extent's number and that plus 100, all of them destaged.
    async fn new(reactor: Rc<Reactor>, block_size: u32) -> Fixture {
        let wire = Arc::new(Wire::default());
        let capacity = Arc::new(Wired { below: mem("capacity", block_size, 96 << 20), wire: wire.clone() });
        let devices = PoolDevices { log: LogDevice::Block(mem("log", block_size, 8 << 20)), capacity };
        Pool::create(&reactor, &devices, &options(1), 0, false).await.unwrap();
        // Pages in use stay, so few of them at a time.
        let tuning = ShardTuning { destage_depth: Some(2), map_cache_bytes_min: 0, ..ShardTuning::default() };
        let opening = OpenOptions { map_cache_bytes: Some(0), tuning: Some(tuning), ..OpenOptions::default() };
        let pool = Pool::open(&reactor, &devices, &opening).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.create_volume(&reactor, "v", EXTENTS * 1024, 12, 0).await.unwrap();
        for extent in 0..EXTENTS {
            assert_eq!(write(&reactor, &volume, extent * 1024 + 700, extent as u8).await, Status::Ok);
            assert_eq!(write(&reactor, &volume, extent * 1024 + 701, extent as u8 + 100).await, Status::Ok);
        }
        let fixture = Fixture { reactor, pool, volume, wire };
        fixture.push_out().await;
        fixture
    }

    /// Fills the log with other blocks, so that the first ones are read from where they were destaged to.
    async fn push_out(&self) {
        for round in 0..8u64 {
            for step in 0..512u64 {
                let block = (step % EXTENTS) * 1024 + 100 + step / EXTENTS;
                assert_eq!(write(&self.reactor, &self.volume, block, round as u8).await, Status::Ok);
            }
            self.pool.settle(&self.reactor).await.unwrap();
        }
    }

    async fn read(&self, block: u64) -> Result<u8, Status> {
        read(&self.reactor, &self.volume, block).await
    }

    /// Bytes that reading a block takes from the capacity device.
    async fn cost(&self, block: u64) -> u64 {
        let before = self.wire.bytes.load(Relaxed);
        self.read(block).await.unwrap();
        self.wire.bytes.load(Relaxed) - before
    }

    async fn corrupt_reads(&self) -> u64 {
        self.pool.status(&self.reactor).await.shards.iter().map(|shard| shard.corrupt_blocks).sum()
    }
}

#[test]
fn a_block_without_a_page_in_memory_costs_its_own_bytes_and_the_devices_smallest_part_of_the_page() {
    for (block_size, part) in [(512, 512), (4096, 4096)] {
        let reactor = reactor();
        let at = reactor.clone();
        reactor.block_on(async move {
            let fixture = Fixture::new(at, block_size).await;
            let mut costs = Vec::new();
            for round in 0..2 {
                for extent in 0..EXTENTS {
                    assert_eq!(fixture.read(extent * 1024 + 700).await, Ok(extent as u8), "round {round}");
                    costs.push(fixture.cost(extent * 1024 + 701).await);
                }
            }
            let expected = 4096 + part;
            let cheap = costs.iter().filter(|cost| **cost == expected).count();
            // Some pages are in memory, and one that is missed again at once may be loaded.
            assert!(cheap >= costs.len() * 2 / 3, "{costs:?}");
            assert!(costs.iter().all(|cost| [4096, expected].contains(cost)), "{costs:?}");
        });
    }
}

#[test]
fn a_page_that_is_missed_again_and_again_stays_in_memory() {
    let reactor = reactor();
    let at = reactor.clone();
    reactor.block_on(async move {
        let fixture = Fixture::new(at, 512).await;
        for block in 700..702 {
            for _ in 0..4 {
                fixture.read(5 * 1024 + block).await.unwrap();
            }
        }
        assert_eq!(fixture.cost(5 * 1024 + 700).await, 4096);
    });
}

#[test]
fn a_spoilt_part_of_a_page_or_a_spoilt_block_is_read_again_and_the_answer_is_right() {
    let reactor = reactor();
    let at = reactor.clone();
    reactor.block_on(async move {
        let fixture = Fixture::new(at, 512).await;
        fixture.wire.spoils.store(512, Relaxed);
        for extent in 0..EXTENTS {
            assert_eq!(fixture.read(extent * 1024 + 700).await, Ok(extent as u8));
        }
        assert_eq!(fixture.corrupt_reads().await, 0);
        // Blocks and whole pages are as long as each other: neither can be had.
        fixture.wire.spoils.store(4096, Relaxed);
        for extent in 0..EXTENTS {
            assert_eq!(fixture.read(extent * 1024 + 700).await, Err(Status::Corrupt));
        }
        fixture.wire.spoils.store(0, Relaxed);
        for extent in 0..EXTENTS {
            assert_eq!(fixture.read(extent * 1024 + 701).await, Ok(extent as u8 + 100));
        }
    });
}

#[test]
fn holes_between_blocks_read_as_zeroes_whatever_the_device_has_there() {
    let reactor = reactor();
    let at = reactor.clone();
    reactor.block_on(async move {
        let fixture = Fixture::new(at, 512).await;
        let channel = fixture.volume.open_channel(&fixture.reactor).unwrap();
        for extent in 0..EXTENTS {
            let trim = Io::new(Op::Unmap, bdev::Lba(extent * 1024 + 701), 1);
            assert_eq!(channel.submit(trim).await.status, Status::Ok);
        }
        fixture.push_out().await;
        for extent in 0..EXTENTS {
            let buf = fixture.reactor.pool().alloc(3 * 4096).await;
            let done = channel.submit(Io::read(bdev::Lba(extent * 1024 + 699), 3, one(buf))).await;
            assert_eq!(done.status, Status::Ok);
            let blocks: Vec<_> = done.io.bufs[0].as_slice().chunks(4096).map(<[u8]>::to_vec).collect();
            assert_eq!(blocks, [vec![0; 4096], vec![extent as u8; 4096], vec![0; 4096]]);
        }
    });
}

#[test]
fn what_is_written_trimmed_or_destaged_while_a_read_is_under_way_is_what_it_gives() {
    let reactor = reactor();
    let at = reactor.clone();
    reactor.block_on(async move {
        let fixture = Rc::new(Fixture::new(at, 512).await);
        let channel = fixture.volume.open_channel(&fixture.reactor).unwrap();
        let answers = Rc::new(RefCell::new(Vec::new()));
        let ended = Rc::new(Notify::default());
        fixture.wire.holds.store(true, Relaxed);
        for extent in 0..EXTENTS {
            let (fixture, answers, ended) = (fixture.clone(), answers.clone(), ended.clone());
            fixture.reactor.clone().spawn(async move {
                let answer = fixture.read(extent * 1024 + 700).await;
                answers.borrow_mut().push((extent, answer));
                ended.notify_all();
            });
        }
        while *fixture.wire.held.lock().unwrap() < EXTENTS {
            fixture.reactor.yield_now().await;
        }
        for extent in 0..EXTENTS {
            let block = extent * 1024 + 700;
            if extent % 2 == 0 {
                assert_eq!(write(&fixture.reactor, &fixture.volume, block, 200 + extent as u8).await, Status::Ok);
            } else {
                assert_eq!(channel.submit(Io::new(Op::Unmap, bdev::Lba(block), 1)).await.status, Status::Ok);
            }
        }
        fixture.wire.holds.store(false, Relaxed);
        while answers.borrow().len() < EXTENTS as usize {
            ended.notified().await;
        }
        for (extent, answer) in answers.take() {
            assert_eq!(answer, Ok(if extent % 2 == 0 { 200 + extent as u8 } else { 0 }), "extent {extent}");
        }
    });
}
