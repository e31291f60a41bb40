//! Shaped pools under the Linux driver: a volume is a device like any other while its blocks move from band to band.

mod common;

use base::Rng;
use bdev::conformance::{self, Options};
use bdev::{BlockDevice, Status};
use common::*;
use engine::{CheckOptions, Pool, PoolDevices};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

async fn make(
    reactor: &Rc<Reactor>,
    devices: &PoolDevices,
    shards: u16,
    blocks: u64,
) -> (Arc<Pool>, Arc<dyn BlockDevice>) {
    Pool::create(reactor, devices, &shaped(shards), 0, true).await.unwrap();
    let pool = open(reactor.clone(), devices.clone()).await.unwrap();
    let volume = pool.create_volume(reactor, "v", blocks, 12, 0).await.unwrap();
    (pool, volume)
}

async fn assert_sound(reactor: &Rc<Reactor>, devices: &PoolDevices) {
    let options = CheckOptions { payloads: true, data: true, repair: false };
    let report = Pool::check(reactor, &devices.capacity, Some(&devices.log), options).await.unwrap();
    assert!(report.findings.is_empty(), "{report:?}");
}

#[test]
fn volumes_conform_on_block_and_mapped_logs() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    for (case, devices) in [devices(512), devices(4096), mapped_devices(&directory)].into_iter().enumerate() {
        let reactor = reactor();
        let (there, devices) = (reactor.clone(), devices.clone());
        block_on(&reactor, async move {
            let (pool, volume) = make(&there, &devices, 2, 5000).await;
            let mut options = Options::new(5 + case as u64);
            options.resize_to = Some(volume.info().blocks + 1024);
            conformance::run(&there, &volume, options).await.unwrap();
            pool.close(&there).await;
            assert_sound(&there, &devices).await;
        });
    }
}

#[test]
fn what_is_overwritten_many_times_over_is_collected_and_stays_right() {
    let reactor = reactor();
    let there = reactor.clone();
    block_on(&reactor, async move {
        let devices = devices(4096);
        // Three quarters of what volumes get, so that bands have to be collected.
        let blocks = 12 * 1024;
        let (mut pool, mut volume) = make(&there, &devices, 1, blocks).await;
        let (mut rng, mut expected) = (Rng::new(7), vec![0u8; blocks as usize]);
        for round in 1..=5u8 {
            for step in 0..10_000u64 {
                let lba = if round == 1 { step } else { rng.below(blocks) };
                let value = round.wrapping_mul(50).wrapping_add(step as u8) | 1;
                assert_eq!(write(&there, &volume, lba, value).await, Status::Ok, "round {round}, block {lba}");
                expected[lba as usize] = value;
            }
            for _ in 0..500 {
                let lba = rng.below(blocks);
                assert_eq!(read(&there, &volume, lba).await, Ok(expected[lba as usize]), "round {round}, block {lba}");
            }
            if round % 2 == 0 {
                pool.settle(&there).await.unwrap();
            }
            assert_eq!(pool.audit(&there).await.unwrap().problems, Vec::<String>::new());
            pool.close(&there).await;
            assert_sound(&there, &devices).await;
            pool = open(there.clone(), devices.clone()).await.unwrap();
            volume = pool.volume("v").unwrap();
        }
        for lba in 0..blocks {
            assert_eq!(read(&there, &volume, lba).await, Ok(expected[lba as usize]), "block {lba}");
        }
        let status = pool.status(&there).await;
        pool.delete_volume(&there, "v").await.unwrap();
        pool.close(&there).await;
        assert_sound(&there, &devices).await;
        drop(status);
    });
}
