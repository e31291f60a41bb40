//! Thousands of snapshots, and of volumes: what is done for one of them does not grow with their number. Counted in bytes of the catalog that are
//! written, and not in time.

use crate::common::*;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op, Status};
use engine::{
    Catalog, CatalogStore, CheckOptions, CreateOptions, Edit, LogDevice, Pool, PoolDevices, PoolError, Superblock,
    VolumeEntry, VolumeState,
};
use reactor::{IoFuture, Reactor};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use uuid::Uuid;

const SNAPSHOTS: u64 = 3_000;
const BLOCK: u64 = 4096;

/// A device that counts the bytes that are written to a part of it.
#[derive(Clone)]
struct Counting(Arc<Counted>);

struct Counted {
    below: Arc<dyn BlockDevice>,
    blocks: Mutex<Range<u64>>,
    bytes: AtomicU64,
    /// Writes there that succeed before one fails.
    good: AtomicU64,
}

impl Counting {
    fn new(below: Arc<dyn BlockDevice>) -> Counting {
        let (bytes, good) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Counting(Arc::new(Counted { below, blocks: Mutex::new(0..0), bytes, good }))
    }

    fn count_in(&self, superblock: &Superblock) {
        *self.0.blocks.lock().unwrap() = superblock.catalog_copy(0)..superblock.catalog_copy(2);
    }

    /// Bytes written there since it was asked last.
    fn take(&self) -> u64 {
        self.0.bytes.swap(0, Relaxed)
    }
}

impl BlockDevice for Counting {
    fn name(&self) -> &str {
        self.0.below.name()
    }

    fn kind(&self) -> &'static str {
        "counting"
    }

    fn info(&self) -> DeviceInfo {
        self.0.below.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(CountingChannel(self.clone(), self.0.below.open_channel(reactor)?)))
    }
}

struct CountingChannel(Counting, Rc<dyn Channel>);

impl Channel for CountingChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let counted = &self.0.0;
        if io.op == Op::Write && counted.blocks.lock().unwrap().contains(&io.lba.0) {
            counted.bytes.fetch_add(io.nblocks as u64 * BLOCK, Relaxed);
            let left = counted.good.load(Relaxed);
            if left == 0 {
                counted.good.store(u64::MAX, Relaxed);
                return IoFuture::ready(io.done(Status::WriteError));
            }
            counted.good.store(if left == u64::MAX { left } else { left - 1 }, Relaxed);
        }
        self.1.submit(io)
    }
}

fn options(volumes_max: u32) -> CreateOptions {
    CreateOptions {
        name: "pool".into(),
        shards: Some(2),
        segment_blocks: Some(96),
        volumes_max: Some(volumes_max),
        ..CreateOptions::default()
    }
}

struct Tank {
    reactor: Rc<Reactor>,
    devices: PoolDevices,
    counting: Counting,
    pool: Arc<Pool>,
}

impl Tank {
    async fn new(reactor: &Rc<Reactor>, volumes_max: u32) -> Tank {
        let counting = Counting::new(mem("capacity", 4096, 1 << 30));
        let log = LogDevice::Block(mem("log", 4096, 64 << 20));
        let devices = PoolDevices { log, capacity: Arc::new(counting.clone()) };
        let options = CreateOptions { tiny: true, ..options(volumes_max) };
        Pool::create(reactor, &devices, &options, 0, true).await.unwrap();
        let channel = counting.open_channel(reactor).unwrap();
        counting.count_in(&engine::read_superblocks(reactor, channel, counting.info()).await.unwrap());
        let pool = open(reactor.clone(), devices.clone()).await.unwrap();
        counting.take();
        Tank { reactor: reactor.clone(), devices, counting, pool }
    }

    async fn reopen(&mut self) {
        self.pool.close(&self.reactor).await;
        let all = CheckOptions { payloads: true, data: true, repair: false };
        let report = Pool::check(&self.reactor, &self.devices.capacity, Some(&self.devices.log), all).await.unwrap();
        let found: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > engine::Severity::Note).collect();
        assert!(found.is_empty(), "{found:?}");
        self.pool = open(self.reactor.clone(), self.devices.clone()).await.unwrap();
    }

    async fn write(&self, name: &str, lba: u64, value: u8) {
        let volume: Arc<dyn BlockDevice> = self.pool.volume(name).unwrap();
        assert_eq!(write(&self.reactor, &volume, lba, value).await, Status::Ok);
    }

    async fn read(&self, name: &str, lba: u64) -> u8 {
        let volume: Arc<dyn BlockDevice> = self.pool.volume(name).unwrap();
        read(&self.reactor, &volume, lba).await.unwrap()
    }

    /// Snapshots of a volume; bytes of the catalog written for each.
    async fn make(&self, volume: &str, numbers: Range<u64>) -> u64 {
        let count = numbers.end - numbers.start;
        self.counting.take();
        for number in numbers {
            self.pool.snapshot(&self.reactor, &[(volume, &format!("s{number:05}"))], number).await.unwrap();
        }
        self.counting.take() / count
    }

    async fn snapshots(&self) -> Vec<String> {
        let (tree, _) = self.pool.tree(&self.reactor).await.unwrap();
        tree.into_iter().flat_map(|volume| volume.snapshots).map(|snapshot| snapshot.name).collect()
    }
}

#[test]
fn a_snapshot_costs_the_same_whether_there_are_few_or_thousands() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let mut tank = Tank::new(&there, 4_096).await;
        tank.pool.create_volume(&there, "v", 4096, 12, 0).await.unwrap();
        tank.write("v", 0, 1).await;
        let few = tank.make("v", 0..500).await;
        tank.make("v", 500..SNAPSHOTS - 500).await;
        let many = tank.make("v", SNAPSHOTS - 500..SNAPSHOTS).await;
        // Two blocks or three of each copy, and now and then all of it: as much again. What is in a few blocks is written whole.
        assert!(few <= 2 * 12 * BLOCK && many <= 2 * 2 * 4 * BLOCK, "{few} and {many} bytes of the catalog each");
        for _ in 0..2 {
            let names = tank.snapshots().await;
            assert!(names.len() == SNAPSHOTS as usize && names.is_sorted());
            assert_eq!(tank.pool.volume_counts(), (1, SNAPSHOTS as usize));
            let info = tank.pool.snapshot_infos(&there, vec!["v@s00000".into(), "v@none".into()]).await.unwrap();
            assert_eq!((info.len(), info[0].created_s, info[0].users), (1, 0, 1));
            assert_eq!((tank.read("v", 0).await, tank.read("v@s02999", 0).await), (1, 1));
            tank.reopen().await;
        }
        tank.pool.close(&there).await;
    });
}

#[test]
fn a_volume_costs_the_same_whether_there_are_few_or_thousands() {
    const VOLUMES: u64 = 3_000;
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let mut tank = Tank::new(&there, 4_096).await;
        let name = |number: u64| format!("v{number:04}");
        let mut costs = [0; 2];
        for (numbers, cost) in [(0..500, true), (500..VOLUMES - 500, false), (VOLUMES - 500..VOLUMES, true)] {
            let count = numbers.end - numbers.start;
            for number in numbers {
                tank.pool.create_volume(&there, &name(number), 4096, 12, 0).await.unwrap();
            }
            let bytes = tank.counting.take() / count;
            if cost {
                costs = [costs[1], bytes];
            }
        }
        let [few, many] = costs;
        assert!(few <= 2 * 12 * BLOCK && many <= 2 * 2 * 4 * BLOCK, "{few} and {many} bytes of the catalog each");
        // Some are written to, one of them is made larger.
        let written: Vec<u64> = (0..VOLUMES).step_by(97).collect();
        for number in &written {
            tank.write(&name(*number), number % 4096, (number % 250) as u8 + 1).await;
        }
        tank.pool.volume("v2999").unwrap().resize(&there, 8192).await.unwrap();
        for _ in 0..2 {
            assert_eq!(tank.pool.volume_counts(), (VOLUMES as usize, 0));
            assert_eq!(tank.pool.volume("v2999").unwrap().info().blocks, 8192);
            for number in &written {
                assert_eq!(tank.read(&name(*number), number % 4096).await, (number % 250) as u8 + 1);
            }
            tank.reopen().await;
        }
        // One goes as it came, with all others there; then most do.
        tank.counting.take();
        tank.pool.delete_volume(&there, &name(1500)).await.unwrap();
        let one = tank.counting.take();
        assert!(one <= 2 * 2 * (VOLUMES * 256), "{one} bytes of the catalog for one that goes");
        for number in (0..VOLUMES).filter(|number| number % 97 != 0 && *number != 1500) {
            tank.pool.delete_volume(&there, &name(number)).await.unwrap();
        }
        for _ in 0..2 {
            assert_eq!(tank.pool.volume_counts(), (written.len(), 0));
            assert_eq!(tank.read(&name(97), 97).await, 98);
            let audit = tank.pool.audit(&there).await.unwrap();
            assert_eq!(audit.problems, Vec::<String>::new());
            tank.reopen().await;
        }
        tank.pool.close(&there).await;
    });
}

#[test]
fn thousands_of_snapshots_go_with_their_volume_in_a_few_changes_of_the_catalog() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let mut tank = Tank::new(&there, 4_096).await;
        tank.pool.create_volume(&there, "v", 4096, 12, 0).await.unwrap();
        tank.pool.create_volume(&there, "w", 4096, 12, 0).await.unwrap();
        tank.write("w", 3, 9).await;
        for number in 0..SNAPSHOTS / 500 {
            tank.write("v", number, 1).await;
            tank.make("v", number * 500..(number + 1) * 500).await;
        }
        tank.pool.clone_volume(&there, "v@s00600", "c", 0).await.unwrap();
        tank.pool.delete_volume_and_snapshots(&there, "v").await.unwrap();
        // All are marked in one change, which is the whole catalog; then they go from its end, 256 at a time.
        let (bytes, all) = (tank.counting.take(), SNAPSHOTS * 256);
        assert!(bytes < 2 * 3 * all, "{bytes} bytes of the catalog, of {all}");
        for _ in 0..2 {
            assert_eq!((tank.read("w", 3).await, tank.read("c", 0).await, tank.read("c", 1).await), (9, 1, 1));
            assert_eq!(tank.read("c", 2).await, 0);
            assert!(tank.snapshots().await.is_empty() && tank.pool.volume("v").is_none());
            let audit = tank.pool.audit(&there).await.unwrap();
            assert_eq!(audit.problems, Vec::<String>::new());
            tank.pool.reap(&there).await.unwrap();
            assert_eq!(tank.pool.tree(&there).await.unwrap().1, 0, "the clone has what it shows");
            tank.reopen().await;
        }
        tank.pool.delete_volume(&there, "c").await.unwrap();
        tank.pool.close(&there).await;
    });
}

#[test]
fn snapshots_that_are_deleted_one_by_one_go_together_below_what_stays() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let mut tank = Tank::new(&there, 4_096).await;
        tank.pool.create_volume(&there, "v", 4096, 12, 0).await.unwrap();
        tank.write("v", 0, 1).await;
        tank.make("v", 0..1_000).await;
        tank.write("v", 0, 2).await;
        tank.make("v", 1_000..2_000).await;
        for number in (0..2_000).filter(|number| number % 500 != 7) {
            tank.pool.delete_snapshot(&there, &format!("v@s{number:05}")).await.unwrap();
        }
        tank.pool.reap(&there).await.unwrap();
        for _ in 0..2 {
            assert_eq!(tank.snapshots().await, ["v@s00007", "v@s00507", "v@s01007", "v@s01507"]);
            for (name, value) in [("v@s00007", 1), ("v@s00507", 1), ("v@s01007", 2), ("v@s01507", 2), ("v", 2)] {
                assert_eq!(tank.read(name, 0).await, value, "{name}");
            }
            assert_eq!(tank.pool.tree(&there).await.unwrap().1, 0);
            tank.reopen().await;
        }
        tank.pool.close(&there).await;
    });
}

#[test]
fn a_full_catalog_is_refused_with_its_limit_and_the_way_out() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let tank = Tank::new(&there, 20).await;
        tank.pool.create_volume(&there, "v", 4096, 12, 0).await.unwrap();
        let most = tank.pool.status(&there).await.volumes_max;
        // Whole blocks.
        assert!((20..36).contains(&most), "{most}");
        tank.make("v", 0..most - 1).await;
        let refused = [
            tank.pool.snapshot(&there, &[("v", "more")], 0).await.err(),
            tank.pool.create_volume(&there, "w", 1, 12, 0).await.err(),
            tank.pool.clone_volume(&there, "v@s00000", "c", 0).await.err(),
        ];
        for error in refused {
            let Some(PoolError::Refused { reason, .. }) = error else { panic!("{error:?}") };
            assert!(reason.contains(&format!("room for {most} volumes")) && reason.contains("delete some"), "{reason}");
        }
        tank.pool.delete_snapshot(&there, "v@s00003").await.unwrap();
        tank.pool.reap(&there).await.unwrap();
        tank.pool.create_volume(&there, "w", 1, 12, 0).await.unwrap();
        tank.pool.close(&there).await;
    });
}

fn layer(id: u32, state: VolumeState) -> VolumeEntry {
    let uuid = Uuid::from_u128(id as u128);
    VolumeEntry {
        id,
        state,
        block_shift: 12,
        blocks: 100,
        uuid,
        content: uuid,
        created_s: 0,
        name: format!("v@{id}"),
        parent: id - 1,
        overlap: 100,
        origin: 1,
    }
}

#[test]
fn what_is_written_in_parts_is_what_would_be_written_whole_and_an_error_leaves_the_former_one() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let tank = Tank::new(&there, 4_096).await;
        tank.pool.close(&there).await;
        let (reactor, info) = (there.clone(), tank.counting.info());
        let channel = tank.counting.open_channel(&there).unwrap();
        let superblock = engine::read_superblocks(&reactor, channel.clone(), info).await.unwrap();
        let load = || Catalog::load(&reactor, channel.clone(), info, &superblock);
        let mut store = CatalogStore::new(&reactor, channel.clone(), info, &superblock).unwrap();
        let mut catalog = Catalog::default();
        let mut rng = base::Rng::new(11);
        let mut edit = Edit::default();
        (1..=1_500).for_each(|id| edit.put(layer(id, VolumeState::Snapshot)));
        for round in 0..300 {
            tank.counting.0.good.store(if round % 5 == 4 { rng.below(7) } else { u64::MAX }, Relaxed);
            let (stored, failed) = match store.store(&edit).await {
                Ok(()) => {
                    catalog.apply(edit);
                    (true, false)
                }
                Err(_) => {
                    store.renew(&catalog);
                    (false, store.store(&Edit::default()).await.is_err())
                }
            };
            assert!(!failed, "one write fails");
            assert_eq!(load().await.unwrap(), catalog, "round {round}, stored: {stored}");
            edit = Edit::default();
            let next = catalog.next_id();
            match rng.below(4) {
                0 => {
                    // Some of them go, and what lies over them lies over what is below.
                    let ids: Vec<u32> = catalog.volumes().keys().copied().collect();
                    let gone: std::collections::BTreeSet<u32> =
                        (0..rng.below(30)).map(|_| ids[rng.below(ids.len() as u64) as usize]).collect();
                    for (id, entry) in catalog.volumes().iter().filter(|(id, _)| !gone.contains(id)) {
                        let mut parent = entry.parent;
                        while gone.contains(&parent) {
                            parent = catalog.get(parent).unwrap().parent;
                        }
                        if parent != entry.parent {
                            edit.put(VolumeEntry { parent, ..entry.clone() });
                        }
                        assert_eq!(*id, entry.id);
                    }
                    gone.iter().for_each(|id| edit.remove(*id));
                }
                1 => {
                    let from = rng.below(next as u64) as u32;
                    if let Some((_, entry)) = catalog.volumes().range(from..).next() {
                        edit.put(VolumeEntry { state: VolumeState::Deleting, ..entry.clone() });
                    }
                }
                _ => {
                    let last = catalog.volumes().keys().next_back().copied().unwrap_or(0);
                    edit.put(VolumeEntry { parent: last, ..layer(next, VolumeState::Snapshot) });
                }
            }
        }
    });
}
