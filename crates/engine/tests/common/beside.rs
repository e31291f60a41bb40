//! How long a pool's own work takes, in virtual time, beside a user who writes or none.

use super::*;
use bdev::{BlockDevice, Delay, DelayDevice, Delays, Status};
use engine::{LogDevice, Pool, PoolDevices};
use reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Of `work`, in ns, in a pool on slow devices whose volume `v` has been written to and has a snapshot `s`, after `prepare`.
pub fn time_beside<P: Future<Output = ()> + 'static, W: Future<Output = ()> + 'static>(
    has_user: bool,
    prepare: impl FnOnce(Rc<Reactor>, Arc<Pool>) -> P + 'static,
    work: impl FnOnce(Rc<Reactor>, Arc<Pool>) -> W + 'static,
) -> u64 {
    let reactor = clock_reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let delay = Delay { fixed_ns: 50_000, ..Delay::default() };
        let delays = Delays { read: delay, write: delay, ..Delays::default() };
        let slow = |name: &str, bytes: u64| -> Arc<dyn BlockDevice> {
            Arc::new(DelayDevice::new(name, mem("below", 4096, bytes), delays, 1))
        };
        let devices =
            PoolDevices { log: LogDevice::Block(slow("log", 32 << 20)), capacity: slow("capacity", 256 << 20) };
        Pool::create(&there, &devices, &options(1), 0, true).await.unwrap();
        let pool = open(there.clone(), devices.clone()).await.unwrap();
        for (name, extents) in [("v", 4), ("user", 1)] {
            pool.create_volume(&there, name, extents * 1024, 12, 0).await.unwrap();
        }
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        for lba in 0..400 {
            assert_eq!(write(&there, &volume, lba * 10, 1).await, Status::Ok);
        }
        pool.snapshot(&there, &[("v", "s")], 0).await.unwrap();
        prepare(there.clone(), pool.clone()).await;
        let ends = Rc::new(Cell::new(false));
        let (user, ended, at): (Arc<dyn BlockDevice>, _, _) =
            (pool.volume("user").unwrap(), ends.clone(), there.clone());
        let user = there.spawn_join(async move {
            while has_user && !ended.get() {
                assert_eq!(write(&at, &user, 7, 3).await, Status::Ok);
                at.sleep_ns(100_000).await;
            }
        });
        let begun = there.clock_ns();
        work(there.clone(), pool.clone()).await;
        let took = there.clock_ns() - begun;
        ends.set(true);
        user.await;
        pool.close(&there).await;
        took
    })
}
