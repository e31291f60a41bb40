//! A pool that may be anything, used in all ways until nothing of it is left.

use super::one;
use bdev::{BlockDevice, Io, Lba, Status};
use engine::{CheckOptions, OpenOptions, Pool, PoolDevices, PoolVolume, ShardTuning};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
/// Bytes that are read and written at a time.
const PIECE_BYTES: u64 = 4096;

async fn submit(reactor: &Rc<Reactor>, volume: &Arc<PoolVolume>, block: u64, writes: Option<u8>) -> Result<(), Status> {
    let size = volume.info().block_size as u64;
    let (lba, blocks) = (Lba(block * (PIECE_BYTES / size)), (PIECE_BYTES / size) as u32);
    let channel = volume.open_channel(reactor).unwrap();
    let mut buf = reactor.pool().alloc(PIECE_BYTES as usize).await;
    let io = match writes {
        Some(byte) => {
            buf.as_mut_slice().fill(byte);
            Io::write(lba, blocks, one(buf))
        }
        None => Io::read(lba, blocks, one(buf)),
    };
    channel.submit(io).await.status.check()
}

/// What is done with a pool first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    Check,
    Repair,
    /// Its log device is given up, for that or for another one.
    ForgetLog,
}

/// Checks it, opens it, reads these blocks of 4 KiB of all volumes, writes beside some of them, scrubs it, deletes from it, and closes
/// it; nothing is expected of what it says. True: it opened.
pub async fn use_up(reactor: &Rc<Reactor>, devices: &PoolDevices, blocks: &[u64], first: First) -> bool {
    if first == First::ForgetLog {
        // (What is lost is noted where there is room, on a device that may have become larger.)
        let _ = devices.capacity.refresh(reactor).await;
        let _ = Pool::foresee_forget_log(reactor, devices, true).await;
        let _ = Pool::forget_log(reactor, devices, true, &Default::default()).await;
    }
    let options = CheckOptions { repair: first == First::Repair, ..ALL };
    let _ = Pool::check(reactor, &devices.capacity, Some(&devices.log), options).await;
    let tuning = ShardTuning { idle_ns: u64::MAX / 4, ..ShardTuning::default() };
    let options = OpenOptions { tuning: Some(tuning), ..OpenOptions::default() };
    let Ok(pool) = Pool::open(reactor, devices, &options).await else { return false };
    let names: Vec<String> = pool.volumes().iter().map(|volume| volume.name().to_string()).collect();
    let (snapshots, live): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.contains('@'));
    for volume in pool.volumes() {
        for block in blocks {
            let _ = submit(reactor, &volume, *block, None).await;
        }
        for block in blocks.iter().step_by(3).filter(|_| !volume.name().contains('@')) {
            let _ = submit(reactor, &volume, *block + 1, Some(7)).await;
        }
    }
    let _ = pool.settle(reactor).await;
    pool.scrub(reactor, 1 << 40).await;
    while pool.status(reactor).await.shards.iter().any(|shard| shard.scrub.running) {
        reactor.sleep_ns(100_000).await;
    }
    if let Some(last) = live.last() {
        let _ = pool.delete_volume_and_snapshots(reactor, last).await;
    }
    for snapshot in snapshots {
        let _ = pool.delete_snapshot(reactor, snapshot).await;
    }
    let _ = pool.reap(reactor).await;
    pool.close(reactor).await;
    true
}
