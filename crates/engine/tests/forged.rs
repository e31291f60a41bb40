//! Fields of every structure forged, with all checksums right: opening, checking and using such a pool may fail in any way but a panic,
//! and never takes for ever.

use crate::common::disk::Disk;
use crate::common::seals::{BLOCK, Sealed, forge_field};
use crate::common::tank::*;
use crate::common::*;
use base::Rng;
use bdev::BlockDevice;
use engine::CheckOptions;
use std::panic::{AssertUnwindSafe, catch_unwind};

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };

/// A scrub of so little is over by then on any machine.
const SCRUB_MAX_NS: u64 = 60_000_000_000;

/// More of them: `REMUDA_FORGED_ROUNDS=100000 cargo test -p remuda-engine forged`.
fn rounds() -> u64 {
    std::env::var("REMUDA_FORGED_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn first() -> u64 {
    std::env::var("REMUDA_FORGED_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Log and capacity device of a pool with a snapshot and a clone, and something in the log.
fn layered(is_shaped: bool) -> (Sealed, u64, u64) {
    let reactor = reactor();
    let tank = Tank::filled_as(&reactor, is_shaped);
    let at = tank.clone();
    reactor.block_on(async move {
        let pool = at.open().await.unwrap();
        pool.snapshot(&at.reactor, &[("v", "s")], 0).await.unwrap();
        let clone = pool.clone_volume(&at.reactor, "v@s", "c", 0).await.unwrap();
        at.write(&clone, 1, 3).await;
        pool.settle(&at.reactor).await.unwrap();
        at.write(&clone, 9, 4).await;
        at.write(&pool.volume("v").unwrap(), 3, 5).await;
        drop(clone);
        // (Not closed: the records after the checkpoint are replayed.)
        at.reactor.keep(std::rc::Rc::new(pool));
    });
    let blocks = |disk: &Disk| disk.info().blocks;
    (Sealed::new(vec![tank.log.image(), tank.capacity.image()]), blocks(&tank.log), blocks(&tank.capacity))
}

/// Another number in one of the fields, more often in one of the first.
fn forge(bytes: &mut [u8], rng: &mut Rng) {
    let size = [1usize, 2, 4, 4, 8][rng.below(5) as usize];
    let end = [64, 64, 128, 512, BLOCK][rng.below(5) as usize];
    let at = rng.below((end / size) as u64) as usize * size;
    forge_field(&mut bytes[at..at + size], rng);
}

/// Uses a pool, however it is; nothing is expected of what it says. True: it opened.
fn use_up(sealed: &Sealed, log_blocks: u64, capacity_blocks: u64, repairs: bool) -> bool {
    let reactor = reactor();
    let tank = Tank {
        reactor: reactor.clone(),
        log: Disk::with("log", log_blocks, sealed.devices[0].clone()),
        capacity: Disk::with("capacity", capacity_blocks, sealed.devices[1].clone()),
    };
    reactor.block_on(async move {
        let log = engine::LogDevice::Block(tank.log.clone());
        let capacity: std::sync::Arc<dyn BlockDevice> = tank.capacity.clone();
        let options = CheckOptions { repair: repairs, ..ALL };
        let _ = engine::Pool::check(&tank.reactor, &capacity, Some(&log), options).await;
        let Ok(pool) = tank.open().await else { return false };
        for volume in pool.volumes() {
            for block in SETTLED.iter().chain(&LOGGED).chain(&[9, 3, 40_000]) {
                let _ = tank.try_read(&volume, *block).await;
            }
            if !volume.name().contains('@') {
                for block in [2, 1025, 32 * 1024] {
                    let _ = tank.try_write(&volume, block, 7).await;
                }
            }
        }
        let _ = pool.settle(&tank.reactor).await;
        pool.scrub(&tank.reactor, 1 << 40).await;
        let begun_ns = tank.reactor.now_ns();
        while pool.status(&tank.reactor).await.shards.iter().any(|shard| shard.scrub.running) {
            assert!(tank.reactor.now_ns() - begun_ns < SCRUB_MAX_NS, "a scrub does not end");
            tank.reactor.sleep_ns(100_000).await;
        }
        let _ = pool.delete_volume_and_snapshots(&tank.reactor, "c").await;
        let _ = pool.delete_snapshot(&tank.reactor, "v@s").await;
        let _ = pool.reap(&tank.reactor).await;
        pool.close(&tank.reactor).await;
        true
    })
}

fn never_panics(is_shaped: bool) {
    let (pristine, log_blocks, capacity_blocks) = layered(is_shaped);
    assert!(use_up(&pristine, log_blocks, capacity_blocks, false));
    let is_structure = |bytes: &[u8]| bytes.chunks(4).any(|word| word != &bytes[..4]);
    let structures: Vec<(usize, u64)> = pristine
        .devices
        .iter()
        .enumerate()
        .flat_map(|(device, image)| {
            image.iter().filter(|(_, bytes)| is_structure(bytes)).map(move |(block, _)| (device, *block))
        })
        .collect();
    let (mut opened, mut failed) = (0, Vec::new());
    for round in first()..first() + rounds() {
        let mut rng = Rng::new(round);
        let mut sealed = pristine.clone();
        let mut what = String::new();
        for _ in 0..rng.between(1, 3) {
            let (device, block) = structures[rng.below(structures.len() as u64) as usize];
            let seed = rng.next_u64();
            let magic = String::from_utf8_lossy(&sealed.bytes(device, block as usize * BLOCK, 8)).into_owned();
            what += &format!(" device {device} block {block} ({magic:?})");
            sealed.forge(device, block, |bytes| forge(bytes, &mut Rng::new(seed)));
        }
        let used = catch_unwind(AssertUnwindSafe(|| use_up(&sealed, log_blocks, capacity_blocks, round % 2 == 0)));
        match used {
            Ok(is_open) => opened += u64::from(is_open),
            Err(_) => failed.push(format!("round {round}:{what}")),
        }
    }
    assert!(failed.is_empty(), "{} panics: {failed:#?}", failed.len());
    // With checksums that are wrong hardly any would.
    assert!(opened * 2 > rounds(), "only {opened} of {} open", rounds());
}

#[test]
fn a_forged_hot_pool_never_panics() {
    never_panics(false);
}

#[test]
fn a_forged_shaped_pool_never_panics() {
    never_panics(true);
}

#[test]
fn every_structure_can_be_forged() {
    let magics = |is_shaped| layered(is_shaped).0.magics().into_iter().collect::<Vec<String>>();
    assert_eq!(magics(false), ["RMDACAT1", "RMDADIRT", "RMDAPOOL", "RMDAROOT", "RMDASEGM", "RMGR", "RMRC"]);
    assert_eq!(magics(true), ["RMDACAT1", "RMDADIRT", "RMDAPOOL", "RMDAROOT", "RMDASEGM", "RMGR", "RMRC", "RMST"]);
}
