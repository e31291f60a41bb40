//! A log device that refuses writes for a while: writes fail meanwhile, it is said why, and then all is as it was.

use crate::common::tank::Tank;
use crate::common::*;
use bdev::{BlockDevice, ErrorDevice, ErrorRule, Fault, Op, Status};
use engine::{LogDevice, OpenOptions, Pool, PoolDevices, ShardStatus};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

const MS: u64 = 1_000_000;

struct Rig {
    reactor: Rc<Reactor>,
    log: Arc<ErrorDevice>,
    pool: Arc<Pool>,
    volume: Arc<dyn BlockDevice>,
}

impl Rig {
    async fn new(tank: &Tank) -> Rig {
        let log = Arc::new(ErrorDevice::new("log", tank.log.clone(), &[], 1).unwrap());
        let devices = PoolDevices { log: LogDevice::Block(log.clone()), capacity: tank.capacity.clone() };
        let pool = Pool::open(&tank.reactor, &devices, &OpenOptions::default()).await.unwrap();
        let volume = pool.volume("v").unwrap();
        Rig { reactor: tank.reactor.clone(), log, pool, volume }
    }

    fn refuse(&self, rules: &[ErrorRule]) {
        self.log.set_rules(rules).unwrap();
    }

    async fn shards(&self) -> Vec<ShardStatus> {
        self.pool.status(&self.reactor).await.shards
    }

    /// Of all shards: log bytes that may be written in all, segments left alone, and whether all writes fail in one.
    async fn log(&self) -> (u64, u32, bool) {
        let shards = self.shards().await;
        let bytes = shards.iter().map(|shard| shard.log_bytes).sum();
        let resting = shards.iter().map(|shard| shard.resting_segments).sum();
        (bytes, resting, shards.iter().any(|shard| shard.log_trouble.is_some()))
    }

    async fn write(&self, lba: u64, value: u8) -> Status {
        write(&self.reactor, &self.volume, lba, value).await
    }
}

fn both<F: Future<Output = ()> + 'static>(test: impl Fn(Tank) -> F) {
    for make in [Tank::new, Tank::shaped] {
        let reactor = reactor();
        let tank = make(&reactor, 24);
        reactor.block_on(test(tank));
    }
}

#[test]
fn when_the_log_device_takes_writes_again_so_does_the_pool() {
    both(|tank| async move {
        let rig = Rig::new(&tank).await;
        assert_eq!(rig.write(1, 1).await, Status::Ok);
        let whole = rig.log().await;
        assert_eq!((whole.1, whole.2), (0, false));
        rig.refuse(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::NoSpace))]);
        for _ in 0..3 {
            assert_eq!(rig.write(2, 2).await, Status::NoSpace);
        }
        let (bytes, resting, is_refused) = rig.log().await;
        assert!(bytes < whole.0 && resting > 0 && is_refused);
        let shards = rig.shards().await;
        let told = shards.iter().find_map(|shard| shard.log_trouble.clone()).unwrap();
        assert_eq!(told, Status::NoSpace.to_string());
        assert_eq!(read(&rig.reactor, &rig.volume, 1).await, Ok(1));
        rig.refuse(&[]);
        // One is tried every second.
        let mut waited_ms = 0;
        while rig.write(2, 3).await != Status::Ok {
            rig.reactor.sleep_ns(20 * MS).await;
            waited_ms += 20;
            assert!(waited_ms < 30_000, "it takes writes, and is not asked");
        }
        assert_eq!(rig.log().await, whole);
        rig.pool.settle(&rig.reactor).await.unwrap();
        rig.pool.close(&rig.reactor).await;
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        assert_eq!((tank.read(&volume, 1).await, tank.read(&volume, 2).await), (Ok(1), Ok(3)));
        pool.close(&tank.reactor).await;
    });
}

#[test]
fn a_pool_finds_out_by_itself_that_its_log_device_takes_writes_again() {
    both(|tank| async move {
        let rig = Rig::new(&tank).await;
        assert_eq!(rig.write(1, 1).await, Status::Ok);
        let (whole, free) = (rig.log().await, free_extents(&rig).await);
        rig.refuse(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::NoSpace))]);
        while rig.write(2, 2).await != Status::NoSpace {}
        rig.reactor.sleep_ns(10_000 * MS).await;
        assert!(rig.log().await.2, "it is still refused");
        rig.refuse(&[]);
        rig.reactor.sleep_ns(3_000 * MS).await;
        assert_eq!((rig.log().await, free_extents(&rig).await), (whole, free));
        assert_eq!(rig.write(2, 3).await, Status::Ok);
        rig.pool.close(&rig.reactor).await;
    });
}

async fn free_extents(rig: &Rig) -> u64 {
    rig.shards().await.iter().map(|shard| u64::from(shard.free_extents)).sum()
}

#[test]
fn writes_wait_for_a_log_device_that_refuses_some() {
    both(|tank| async move {
        let rig = Rig::new(&tank).await;
        rig.refuse(&[ErrorRule {
            when: bdev::When::OneIn(2),
            ..ErrorRule::always(&[Op::Write], Fault::FailAfter(Status::WriteError))
        }]);
        let mut values = Vec::new();
        for lba in 0..12 {
            values.push((lba, rig.write(lba, lba as u8 + 1).await));
        }
        rig.refuse(&[]);
        let taken = values.iter().filter(|(_, status)| status.is_ok()).count();
        assert!(taken >= 6, "{values:?}");
        for (lba, _) in values.iter().filter(|(_, status)| status.is_ok()) {
            assert_eq!(read(&rig.reactor, &rig.volume, *lba).await, Ok(*lba as u8 + 1));
        }
        rig.pool.close(&rig.reactor).await;
    });
}
