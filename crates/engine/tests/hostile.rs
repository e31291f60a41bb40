//! Flipped bits in every structure that opening and checking read: a clean error or the right bytes, never a panic.

use crate::common::tank::*;
use crate::common::*;
use base::Rng;
use engine::{CheckOptions, Pool};
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
/// The blocks that were written last, in each shard.
const LAST: [u64; 2] = [6, 16 * 1024];
/// Flips tried in each block: enough for every field to be met, few enough for the suite.
const FLIPS: u64 = 24;

/// Opens the pool if it can be opened, and reads: what comes back is right.
///
/// The last group of a log is not vouched for by a later one: rot in it looks like a write that a crash has torn, so with
/// `last_torn` the blocks of each shard's last group may be as they were before.
async fn judge(tank: &Tank, last_torn: bool, what: &str) {
    let Ok(pool) = tank.open().await else { return };
    let volume = pool.volume("v");
    let Some(volume) = volume else { panic!("{what}: the volume is gone without a word") };
    for block in SETTLED.iter().chain(&LOGGED).chain(&[7, 2 * 1024]) {
        let read = tank.read(&volume, *block).await;
        let before = LAST.contains(block) && last_torn && read == Ok(SETTLED.contains(block) as u8);
        assert!(read.is_err() || before || read == Ok(Tank::expected(*block)), "{what}: block {block} reads {read:?}");
    }
    drop(volume);
    close(tank, pool).await;
}

async fn close(tank: &Tank, pool: Arc<Pool>) {
    pool.close(&tank.reactor).await;
}

#[test]
fn a_flipped_bit_anywhere_is_an_error_or_nothing() {
    let reactor = reactor();
    let filled = Tank::filled(&reactor);
    reactor.block_on(async move {
        let mut rng = Rng::new(7);
        let (log, capacity) = (filled.log.image(), filled.capacity.image());
        let blocks = log.keys().map(|block| (true, *block)).chain(capacity.keys().map(|block| (false, *block)));
        for (on_log, block) in blocks {
            for flip in 0..FLIPS {
                // Headers are at the start of blocks: half of the flips go there.
                let bit = rng.below(if flip % 2 == 0 { 128 * 8 } else { 4096 * 8 }) as usize;
                let tank = filled.fork();
                if on_log {
                    tank.log.flip(block, bit)
                } else {
                    tank.capacity.flip(block, bit)
                }
                let what = format!("{} block {block} bit {bit}", if on_log { "log" } else { "capacity" });
                if flip % 4 == 0 {
                    tank.check(ALL).await;
                    let repaired = tank.fork();
                    let report = repaired.check(CheckOptions { repair: true, ..ALL }).await;
                    if report.is_sound() {
                        let opened = repaired.open().await.unwrap_or_else(|error| panic!("{what}, repaired: {error}"));
                        close(&repaired, opened).await;
                    }
                    judge(&repaired, on_log, &format!("{what}, repaired")).await;
                }
                judge(&tank, on_log, &what).await;
            }
        }
    });
}

#[test]
fn blocks_of_noise_and_blocks_exchanged_never_panic() {
    let reactor = reactor();
    let filled = Tank::filled(&reactor);
    reactor.block_on(async move {
        let mut rng = Rng::new(8);
        let (log, capacity) = (filled.log.image(), filled.capacity.image());
        let (log, capacity): (Vec<_>, Vec<_>) = (log.into_iter().collect(), capacity.into_iter().collect());
        for round in 0..200 {
            let tank = filled.fork();
            for _ in 0..rng.between(1, 4) {
                let (disk, image) = if rng.one_in(2) { (&tank.log, &log) } else { (&tank.capacity, &capacity) };
                let (block, _) = image[rng.below(image.len() as u64) as usize];
                let mut bytes = image[rng.below(image.len() as u64) as usize].1.to_vec();
                if rng.one_in(2) {
                    rng.fill(&mut bytes);
                }
                disk.poke(block, &bytes);
            }
            tank.check(CheckOptions { repair: round % 2 == 0, ..ALL }).await;
            if let Ok(pool) = tank.open().await {
                close(&tank, pool).await;
            }
        }
    });
}
