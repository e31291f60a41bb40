//! A pool of either shape with what it is made of, for tests of snapshots and clones.

use super::*;
use bdev::{BlockDevice, Io, Lba, Op, Status};
use engine::{CheckOptions, LogDevice, Pool, PoolDevices, PoolVolume};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };

/// A pool with what it is made of, to be opened again and again.
pub struct Tank {
    pub reactor: Rc<Reactor>,
    pub devices: PoolDevices,
    pub pool: Arc<Pool>,
}

impl Tank {
    pub async fn new(reactor: &Rc<Reactor>, is_shaped: bool) -> Tank {
        let devices = match is_shaped {
            false => PoolDevices {
                log: LogDevice::Block(mem("log", 4096, 8 << 20)),
                capacity: mem("capacity", 4096, 256 << 20),
            },
            true => PoolDevices {
                log: LogDevice::Block(mem("log", 4096, 16 << 20)),
                capacity: mem("capacity", 4096, 384 << 20),
            },
        };
        let options = if is_shaped { shaped(2) } else { options(2) };
        let options = engine::CreateOptions { volumes_max: Some(40), ..options };
        Pool::create(reactor, &devices, &options, 0, true).await.unwrap();
        let pool = open(reactor.clone(), devices.clone()).await.unwrap();
        Tank { reactor: reactor.clone(), devices, pool }
    }

    pub fn volume(&self, name: &str) -> Arc<dyn BlockDevice> {
        self.pool.volume(name).unwrap_or_else(|| panic!("there is no volume '{name}'"))
    }

    pub async fn write(&self, name: &str, lba: u64, value: u8) {
        assert_eq!(write(&self.reactor, &self.volume(name), lba, value).await, Status::Ok);
    }

    pub async fn read(&self, name: &str, lba: u64) -> u8 {
        read(&self.reactor, &self.volume(name), lba).await.unwrap()
    }

    pub async fn trim(&self, name: &str, lba: u64, blocks: u32) {
        let channel = self.volume(name).open_channel(&self.reactor).unwrap();
        assert_eq!(channel.submit(Io::new(Op::Unmap, Lba(lba), blocks)).await.status, Status::Ok);
    }

    pub async fn snapshot(&self, volume: &str, snapshot: &str) -> Arc<PoolVolume> {
        self.pool.snapshot(&self.reactor, &[(volume, snapshot)], 7).await.unwrap().remove(0)
    }

    pub async fn expect(&self, name: &str, blocks: &[(u64, u8)]) {
        for (lba, value) in blocks {
            assert_eq!(self.read(name, *lba).await, *value, "block {lba} of {name}");
        }
    }

    pub fn free(status: &engine::PoolStatus) -> u32 {
        status.shards.iter().map(|shard| shard.free_extents).sum()
    }

    pub async fn free_extents(&self) -> u32 {
        Tank::free(&self.pool.status(&self.reactor).await)
    }

    pub async fn audit(&self) {
        let audit = self.pool.audit(&self.reactor).await.unwrap();
        assert_eq!(audit.problems, Vec::<String>::new());
    }

    /// Closes it, checks it, and opens it again.
    pub async fn reopen(&mut self, settles: bool) {
        self.audit().await;
        if settles {
            self.pool.settle(&self.reactor).await.unwrap();
        }
        self.pool.close(&self.reactor).await;
        let report = Pool::check(&self.reactor, &self.devices.capacity, Some(&self.devices.log), ALL).await.unwrap();
        // What is being deleted in the background.
        let found: Vec<_> =
            report.findings.iter().filter(|finding| finding.severity > engine::Severity::Note).collect();
        assert!(found.is_empty(), "{found:?}");
        self.pool = open(self.reactor.clone(), self.devices.clone()).await.unwrap();
    }
}

/// In both shapes, with and without destage in between.
pub fn everywhere<F: Future<Output = ()> + 'static>(test: impl Fn(Tank, bool) -> F + Copy + 'static) {
    for (is_shaped, settles) in [(false, false), (false, true), (true, false), (true, true)] {
        let reactor = reactor();
        let there = reactor.clone();
        reactor.block_on(async move {
            let tank = Tank::new(&there, is_shaped).await;
            test(tank, settles).await;
        });
    }
}
