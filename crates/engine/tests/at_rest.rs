//! A pool at rest over a capacity device that refuses writes: what is to be written first is noted in the dirty journal there.

use crate::common::tank::Tank;
use crate::common::*;
use bdev::{BlockDevice, ErrorDevice, ErrorRule, Fault, Op, Status};
use engine::{LogDevice, OpenOptions, Pool, PoolDevices};
use std::sync::Arc;

#[test]
fn writes_that_cannot_be_journaled_fail_and_the_pool_says_so_until_the_device_takes_them() {
    for make in [Tank::new, Tank::shaped] {
        let reactor = reactor();
        let tank = make(&reactor, 24);
        reactor.block_on(async move {
            let capacity = Arc::new(ErrorDevice::new("capacity", tank.capacity.clone(), &[], 1).unwrap());
            let devices = PoolDevices { log: LogDevice::Block(tank.log.clone()), capacity: capacity.clone() };
            let pool = Pool::open(&tank.reactor, &devices, &OpenOptions::default()).await.unwrap();
            let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
            let trouble = async || {
                let shards = pool.status(&tank.reactor).await.shards;
                shards.into_iter().find_map(|shard| shard.trouble)
            };
            pool.settle(&tank.reactor).await.unwrap();
            assert_eq!(trouble().await, None);
            capacity.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
            assert_eq!(write(&tank.reactor, &volume, 1, 1).await, Status::WriteError);
            assert_eq!(trouble().await, Some(Status::WriteError.to_string()));
            capacity.set_rules(&[]).unwrap();
            assert_eq!(write(&tank.reactor, &volume, 1, 2).await, Status::Ok);
            pool.settle(&tank.reactor).await.unwrap();
            assert_eq!((trouble().await, read(&tank.reactor, &volume, 1).await), (None, Ok(2)));
            pool.close(&tank.reactor).await;
        });
    }
}
