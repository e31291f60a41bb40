//! Destage to disks that seek: in virtual time, to models of disks.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, ErrorDevice, ErrorRule, Extent, Fault, Io, Lba, LinearDevice,
    ModelDiskDevice, Op, StatsDevice, Status, StripeDevice,
};
use engine::{LogDevice, Pool, PoolDevices};
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const SECOND: u64 = 1_000_000_000;
const EXTENTS: u64 = 20;
const DISK_BYTES: u64 = 48 << 20;

/// What a disk was asked for: operations and first blocks.
type Asked = Arc<Mutex<Vec<(Op, u64)>>>;

/// Notes what a disk is asked for.
struct Noted {
    child: Arc<dyn BlockDevice>,
    asked: Asked,
}

impl BlockDevice for Noted {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "noted"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(NotedChannel(self.child.open_channel(reactor)?, self.asked.clone())))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba, u64::MAX))
    }
}

struct NotedChannel(Rc<dyn Channel>, Asked);

impl Channel for NotedChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        self.1.lock().unwrap().push((io.op, io.lba.0));
        self.0.submit(io)
    }
}

#[derive(Clone)]
struct Shelf {
    reactor: Rc<Reactor>,
    pool: Arc<Pool>,
    volume: Arc<dyn BlockDevice>,
    asked: Vec<Asked>,
    failing: Arc<ErrorDevice>,
    /// Extents whose first block is on each disk.
    homes: [Vec<u64>; 2],
    /// Where data begins on each disk.
    data_start: [u64; 2],
}

impl Shelf {
    /// A pool with a log in memory over two disks, whose volume has a block in each extent that is on disk alone.
    async fn open(reactor: &Rc<Reactor>, stripe_blocks: Option<u32>) -> Shelf {
        let asked: Vec<Asked> = vec![Arc::default(), Arc::default()];
        let mut failing = None;
        let mut disk = |number: usize| -> Arc<dyn BlockDevice> {
            let model: Arc<dyn BlockDevice> = Arc::new(ModelDiskDevice::new("disk", DISK_BYTES, true).unwrap());
            let child = Arc::new(ErrorDevice::new("failing", model, &[], 1).unwrap());
            failing = failing.take().or(Some(child.clone()));
            Arc::new(Noted { child: Arc::new(StatsDevice::new(child)), asked: asked[number].clone() })
        };
        let disks = vec![disk(0), disk(1)];
        let blocks = DISK_BYTES / 4096;
        let in_a_row = (0..2).map(|child| Extent { child, start: 0, blocks }).collect();
        let capacity: Arc<dyn BlockDevice> = match stripe_blocks {
            Some(chunk) => Arc::new(StripeDevice::new("stripe", disks, chunk).unwrap()),
            None => Arc::new(LinearDevice::new("row", disks, in_a_row).unwrap()),
        };
        let devices = PoolDevices { log: LogDevice::Block(mem("log", 4096, 8 << 20)), capacity };
        let (pool, volume) = pool_with_volume(reactor, devices.clone(), 1, EXTENTS * 1024, 12).await;
        for extent in 0..EXTENTS {
            assert_eq!(write(reactor, &volume, extent * 1024, 1).await, Status::Ok);
        }
        pool.settle(reactor).await.unwrap();
        drop(volume);
        pool.close(reactor).await;
        let pool = open(reactor.clone(), devices).await.unwrap();
        let volume = pool.volume("v").unwrap();
        let (failing, homes) = (failing.unwrap(), Default::default());
        let mut shelf = Shelf { reactor: reactor.clone(), pool, volume, asked, failing, homes, data_start: [0; 2] };
        shelf.find_homes().await;
        shelf
    }

    /// Blocks that a disk was asked for since, metadata left out.
    fn asked_since(&self, disk: usize, op: Op) -> Vec<u64> {
        let mut asked = self.asked[disk].lock().unwrap();
        let of_data = asked.drain(..).filter(|(other, lba)| *other == op && *lba >= self.data_start[disk]);
        of_data.map(|(_, lba)| lba).collect()
    }

    async fn find_homes(&mut self) {
        let mut data_start = [u64::MAX; 2];
        for extent in 0..EXTENTS {
            (0..2).for_each(|disk| drop(self.asked_since(disk, Op::Read)));
            assert_eq!(read(&self.reactor, &self.volume, extent * 1024).await, Ok(1));
            // A map page, which lies before all data, and the block.
            let last = [0, 1].map(|disk| self.asked_since(disk, Op::Read).into_iter().max().unwrap_or(0));
            let home = (last[1] > last[0]) as usize;
            self.homes[home].push(extent);
            data_start[home] = data_start[home].min(last[home]);
        }
        self.data_start = data_start.map(|start| if start == u64::MAX { 0 } else { start });
    }

    /// Reads a block after the other of these extents until it is told to stop; the latencies.
    fn read_on(&self, extents: Vec<u64>, stop: Rc<Cell<bool>>) -> Rc<RefCell<Vec<u64>>> {
        let (shelf, latencies) = (self.clone(), Rc::new(RefCell::new(Vec::new())));
        let told = latencies.clone();
        self.reactor.spawn(async move {
            for extent in extents.iter().cycle() {
                if stop.get() {
                    return;
                }
                let began_ns = shelf.reactor.now_ns();
                assert_eq!(read(&shelf.reactor, &shelf.volume, extent * 1024).await, Ok(1));
                told.borrow_mut().push(shelf.reactor.now_ns() - began_ns);
            }
        });
        latencies
    }

    async fn dirty_blocks(&self) -> u64 {
        self.pool.status(&self.reactor).await.shards[0].dirty_bytes / 4096
    }

    /// Writes blocks of extents in an order that is none.
    async fn write_to(&self, extents: &[u64], blocks: u64) {
        for step in 0..blocks {
            for index in 0..extents.len() {
                let extent = extents[(index * 7 + 3) % extents.len()];
                let block = extent * 1024 + 100 + (step * 37) % 800;
                assert_eq!(write(&self.reactor, &self.volume, block, 2).await, Status::Ok);
            }
        }
    }
}

fn is_ascending(lbas: &[u64]) -> bool {
    lbas.windows(2).all(|pair| pair[0] <= pair[1])
}

#[test]
fn a_disk_that_is_read_is_left_alone_and_the_other_one_is_emptied_upwards() {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let shelf = Shelf::open(&there, None).await;
        let [first, second] = shelf.homes.clone();
        assert!(first.len() > 4 && second.len() > 4, "{first:?} {second:?}");
        let stop = Rc::new(Cell::new(false));
        let latencies = shelf.read_on(first[..2].to_vec(), stop.clone());
        (0..2).for_each(|disk| drop(shelf.asked_since(disk, Op::Write)));
        // The last of the first disk may lie on both.
        let (first, second) = (&first[..first.len() - 1], &second[..]);
        shelf.write_to(first, 6).await;
        shelf.write_to(second, 6).await;
        there.sleep_ns(4 * SECOND).await;
        let (of_first, of_second) = (shelf.asked_since(0, Op::Write), shelf.asked_since(1, Op::Write));
        assert_eq!(of_first, [0; 0], "the disk is read");
        assert_eq!(of_second.len(), 6 * second.len());
        let extents: Vec<u64> = of_second.iter().map(|lba| lba / 1024).collect();
        // Four extents at a time have a write each under way.
        assert!(extents.windows(8).all(|part| part[0] <= part[7]), "{of_second:?}");
        assert_eq!(shelf.dirty_blocks().await, 6 * first.len() as u64);
        let status = shelf.pool.status(&there).await;
        assert_eq!((status.shards[0].disks, status.shards[0].read_disks), (2, 1));
        let most = *latencies.borrow().iter().max().unwrap();
        assert!(most < 30_000_000, "a read takes {most} ns beside nothing");
        stop.set(true);
        there.sleep_ns(4 * SECOND).await;
        assert_eq!(shelf.dirty_blocks().await, 0);
        for extent in first {
            assert_eq!(read(&there, &shelf.volume, extent * 1024 + 100).await, Ok(2));
        }
        shelf.pool.close(&there).await;
    });
}

#[test]
fn one_sweep_goes_over_all_that_is_old() {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let shelf = Shelf::open(&there, None).await;
        let second = shelf.homes[1].clone();
        drop(shelf.asked_since(1, Op::Write));
        shelf.write_to(&second, 1).await;
        there.sleep_ns(3 * SECOND).await;
        let of_second = shelf.asked_since(1, Op::Write);
        assert_eq!(of_second.len(), second.len());
        assert!(is_ascending(&of_second), "{of_second:?}");
        shelf.pool.close(&there).await;
    });
}

#[test]
fn disks_that_are_read_for_ever_are_emptied_as_fast_as_the_log_fills() {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        for stripe_blocks in [None, Some(16)] {
            let shelf = Shelf::open(&there, stripe_blocks).await;
            let stop = Rc::new(Cell::new(false));
            let latencies = shelf.read_on((0..EXTENTS).collect(), stop.clone());
            let extents: Vec<u64> = (0..EXTENTS).collect();
            let mut slowest_ns = 0;
            // Six times what the log holds.
            for round in 0..12_000u64 {
                let block = extents[(round * 7 % EXTENTS) as usize] * 1024 + 1 + round * 613 % 1000;
                let began_ns = there.now_ns();
                assert_eq!(write(&there, &shelf.volume, block, 3).await, Status::Ok);
                slowest_ns = slowest_ns.max(there.now_ns() - began_ns);
            }
            assert!(slowest_ns < 2 * SECOND, "{stripe_blocks:?}: a write waited {slowest_ns} ns");
            let reads = latencies.borrow().len();
            assert!(reads > 100, "{reads} reads");
            stop.set(true);
            there.sleep_ns(20 * SECOND).await;
            assert_eq!(shelf.dirty_blocks().await, 0);
            shelf.pool.close(&there).await;
        }
    });
}

#[test]
fn a_disk_that_fails_does_not_keep_the_other_one_from_being_emptied() {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let shelf = Shelf::open(&there, None).await;
        let [first, second] = shelf.homes.clone();
        let first = &first[..first.len() - 1];
        shelf.write_to(first, 2).await;
        shelf.write_to(&second, 8).await;
        // Its metadata can be written: without checkpoints nothing is destaged at all.
        let fails = ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError));
        shelf.failing.set_rules(&[ErrorRule { lba: Lba(shelf.data_start[0]), ..fails }]).unwrap();
        let trouble = async || shelf.pool.status(&there).await.shards[0].trouble.clone();
        for _ in 0..100 {
            if trouble().await.is_some() {
                break;
            }
            there.sleep_ns(SECOND / 20).await;
        }
        // A place is given up no sooner than a second after its first failure.
        there.sleep_ns(SECOND / 5 * 4).await;
        assert_eq!(shelf.dirty_blocks().await, 2 * first.len() as u64);
        assert!(trouble().await.is_some());
        shelf.failing.set_rules(&[]).unwrap();
        there.sleep_ns(5 * SECOND).await;
        assert_eq!((shelf.dirty_blocks().await, trouble().await), (0, None));
        shelf.pool.close(&there).await;
    });
}

#[test]
fn a_stripe_gives_each_disk_what_it_may_have() {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let shelf = Shelf::open(&there, Some(16)).await;
        // Of each extent, the first block is on the same disk.
        let read_disk = shelf.homes[0].is_empty() as usize;
        assert_eq!(shelf.homes[read_disk].len() as u64, EXTENTS);
        let stop = Rc::new(Cell::new(false));
        shelf.read_on((0..EXTENTS).collect(), stop.clone());
        (0..2).for_each(|disk| drop(shelf.asked_since(disk, Op::Write)));
        for extent in 0..EXTENTS {
            for block in [4, 20] {
                assert_eq!(write(&there, &shelf.volume, extent * 1024 + block, 2).await, Status::Ok);
            }
        }
        there.sleep_ns(5 * SECOND).await;
        assert_eq!(shelf.dirty_blocks().await, EXTENTS, "half of it");
        assert_eq!(shelf.asked_since(read_disk, Op::Write), [0; 0]);
        stop.set(true);
        there.sleep_ns(5 * SECOND).await;
        assert_eq!(shelf.dirty_blocks().await, 0);
        shelf.pool.close(&there).await;
    });
}
