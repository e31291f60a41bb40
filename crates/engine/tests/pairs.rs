//! Checking two devices that do not belong together as they are: neither is written to, and one finding says what to do next.

use crate::common::disk::Disk;
use crate::common::tank::*;
use crate::common::*;
use bdev::BlockDevice;
use engine::{CheckOptions, CheckReport, Finding, ForgottenLog, Holds, Pool, PoolError, PoolVolume, Severity};
use std::sync::Arc;

const REPAIR: CheckOptions = CheckOptions { payloads: true, data: true, repair: true };

async fn used_once_more(old: &Tank, block: u64) -> Tank {
    let new = old.fork();
    let pool = new.open().await.unwrap();
    new.write(&pool.volume("v").unwrap(), block, 9).await;
    pool.close(&new.reactor).await;
    new
}

async fn forget_log(tank: &Tank, force: bool) -> Result<ForgottenLog, PoolError> {
    Pool::forget_log(&tank.reactor, &tank.devices(), force, &Default::default()).await
}

/// Its first two blocks say something else now.
fn wipe(device: &Disk, byte: u8) {
    (0..2).for_each(|copy| device.poke(copy, &[byte; 4096]));
}

/// What a check with repairs says, which changes nothing on either device.
async fn untouched(tank: &Tank) -> CheckReport {
    let before = (tank.log.image(), tank.capacity.image());
    let report = tank.check(REPAIR).await;
    assert!((tank.log.image(), tank.capacity.image()) == before, "{report:?}");
    assert_eq!(report.worst(), Some(Severity::Error), "{report:?}");
    report
}

fn of_superblocks(report: &CheckReport) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.place == "blocks 0 and 1").collect()
}

#[test]
fn a_damaged_superblock_is_not_repaired_before_the_pair_is_known_to_be_one() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        let other = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let new = used_once_more(&old, 0).await;
            let foreign = Tank { log: other.log.fork(), ..new.fork() };
            let swapped = Tank { log: new.capacity.fork(), capacity: new.log.fork(), ..new.clone() };
            let twice = Tank { log: other.capacity.fork(), ..new.fork() };
            for pair in new.with_older(&old).into_iter().chain([foreign, swapped, twice]) {
                for damaged in [&pair.log, &pair.capacity] {
                    damaged.flip(1, 99);
                }
                let report = untouched(&pair).await;
                let copies: Vec<&Finding> =
                    report.findings.iter().filter(|finding| finding.place == "block 1").collect();
                assert!(copies.len() == 2 && copies.iter().all(|copy| copy.advice.contains("belong together")));
            }
            // Of a pair they are repaired, and with the log away those of the other device.
            let right = new.fork();
            right.log.flip(1, 99);
            right.capacity.flip(0, 99);
            let report = right.check(CheckOptions { data: false, ..REPAIR }).await;
            assert!(report.is_sound() && report.findings.iter().all(|finding| finding.repaired), "{report:?}");
        });
    }
}

#[test]
fn a_device_of_later_software_keeps_the_other_one_from_being_repaired() {
    let reactor = reactor();
    let tank = Tank::filled(&reactor);
    reactor.block_on(async move {
        let channel = tank.log.open_channel(&tank.reactor).unwrap();
        let mut superblock = engine::read_superblocks(&tank.reactor, channel, tank.log.info()).await.unwrap();
        superblock.generation += 1;
        let mut block = [0; 4096];
        superblock.encode(&mut block);
        // The major version, and the checksum with it.
        block[12] = 9;
        block[8..12].fill(0);
        let crc = base::crc32c(&block);
        block[8..12].copy_from_slice(&crc.to_le_bytes());
        tank.log.poke(0, &block);
        tank.capacity.flip(1, 99);
        let report = untouched(&tank).await;
        assert!(report.findings.iter().any(|finding| finding.advice.contains("nothing was changed")), "{report:?}");
    });
}

#[test]
fn superblocks_of_a_capacity_device_come_back_to_the_newest_copy_alone() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        let other = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let new = used_once_more(&old, 0).await;
            let stale = Tank { capacity: old.capacity.fork(), ..new.fork() };
            wipe(&stale.capacity, 0xAA);
            let report = untouched(&stale).await;
            let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
            assert!(finding.object == "superblock of the capacity device", "{finding}");
            assert!(
                finding.meaning.contains("has seen 2 openings") || finding.meaning.contains("have seen 2 openings")
            );
            assert!(finding.meaning.contains("the log device 3"), "{finding}");
            assert!(finding.advice.contains("bring the newest copy back"), "{finding}");
            assert!(stale.open().await.is_err());
            // What the log device knows is older than what the capacity device has seen.
            let behind = Tank { log: old.log.fork(), ..new.fork() };
            wipe(&behind.capacity, 0xAA);
            let report = untouched(&behind).await;
            let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
            assert!(finding.advice.contains("bring the newer log device back"), "{finding}");
            // Another pool's device, and none at all.
            let blank = Disk::new("blank", new.capacity.info().blocks);
            for capacity in [other.capacity.fork(), blank] {
                let wrong = Tank { capacity, ..new.fork() };
                wipe(&wrong.capacity, 0);
                let report = untouched(&wrong).await;
                let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
                assert!(finding.meaning.contains("not the device that the log belongs to"), "{finding}");
            }
            // The right one, whichever way its last opening ended.
            for byte in [0, 0xAA] {
                let right = new.fork();
                wipe(&right.capacity, byte);
                is_restored(&right, 0).await;
            }
            let crashed = new.fork();
            let pool = crashed.open().await.unwrap();
            crashed.write(&pool.volume("v").unwrap(), 1, 9).await;
            // As it is in the midst of being used, with slices that the journal had before.
            let image = crashed.fork();
            pool.close(&crashed.reactor).await;
            wipe(&image.capacity, 0);
            is_restored(&image, 1).await;
            // Nothing has been written since it was opened; and by nobody since it was made.
            let idle = new.fork();
            let pool = idle.open().await.unwrap();
            let image = idle.fork();
            pool.close(&idle.reactor).await;
            wipe(&image.capacity, 0);
            is_restored(&image, 0).await;
        });
    }
}

async fn is_restored(tank: &Tank, newest: u64) {
    let report = tank.check(CheckOptions { repair: false, ..REPAIR }).await;
    let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
    assert_eq!(finding.advice, "repair it", "{finding}");
    let report = tank.check(CheckOptions { data: false, ..REPAIR }).await;
    assert!(report.is_sound(), "{report:?}");
    let pool = tank.open().await.unwrap();
    let volume: Arc<PoolVolume> = pool.volume("v").unwrap();
    for block in SETTLED.into_iter().chain(LOGGED) {
        let expected = if block == 0 || block == newest { 9 } else { Tank::expected(block) };
        assert_eq!(tank.read(&volume, block).await, Ok(expected), "block {block}");
    }
    pool.close(&tank.reactor).await;
}

#[test]
fn two_copies_of_a_pool_that_were_used_apart_are_not_mixed() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            for openings in [1, 2] {
                let (mut one, mut other) = (tank.fork(), tank.fork());
                for opening in 0..openings {
                    one = used_once_more(&one, opening).await;
                    other = used_once_more(&other, 7 + opening).await;
                }
                for mixed in
                    [Tank { log: other.log.fork(), ..one.fork() }, Tank { log: one.log.fork(), ..other.fork() }]
                {
                    let report = untouched(&mixed).await;
                    let finding = report.findings.iter().find(|finding| finding.place == "both devices").unwrap();
                    assert!(finding.meaning.contains("went on apart"), "{finding}");
                    let refused = mixed.open().await.err().unwrap().to_string();
                    assert!(refused.contains("went on apart: both have seen"), "{refused}");
                    let kept = forget_log(&mixed, false).await.unwrap_err().to_string();
                    assert!(kept.contains("is not the log that was in use with"), "{kept}");
                }
                // The log of the one that went on longer is ahead, as a crash may leave it, and of another opening.
                let ahead = used_once_more(&other, 1).await;
                let mixed = Tank { log: ahead.log, ..one.fork() };
                let report = untouched(&mixed).await;
                assert!(of_superblocks(&report)[0].meaning.contains("older copy"), "{report:?}");
                let refused = mixed.open().await.err().unwrap().to_string();
                assert!(refused.contains("is an older copy of its capacity device"), "{refused}");
                one.open().await.unwrap().close(&one.reactor).await;
                other.open().await.unwrap().close(&other.reactor).await;
            }
        });
    }
}

#[test]
fn a_pool_whose_superblocks_are_all_gone_is_still_told_from_blank_devices() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let (log, capacity) = (&tank.log, &tank.capacity);
            [log, capacity].into_iter().for_each(|device| wipe(device, 0));
            let report = untouched(&tank).await;
            let findings = of_superblocks(&report);
            assert!(findings[0].meaning.contains("was the capacity device of a pool"), "{}", findings[0]);
            assert!(findings.iter().all(|finding| finding.advice.contains("from a backup")), "{report:?}");
            let swapped = Tank { log: capacity.fork(), capacity: log.fork(), ..tank.clone() };
            let report = untouched(&swapped).await;
            assert_eq!(of_superblocks(&report)[1].advice, "name the right device", "{report:?}");
            let channel = capacity.open_channel(&tank.reactor).unwrap();
            let holds = Holds::look(&tank.reactor, &channel, capacity.info()).await.unwrap();
            assert_eq!(holds.to_string(), "what was the capacity device of a pool, whose superblocks are gone");
            assert!(holds.in_use("d", "p").contains("'remuda pool check NAME --repair'"));
            // A new one is not made over it.
            let made =
                Pool::create(&tank.reactor, &tank.devices(), &options(1), 0, false).await.unwrap_err().to_string();
            assert!(made.contains("whose superblocks are gone"), "{made}");
        });
    }
}

#[test]
fn a_blank_log_beside_its_capacity_device_is_one_finding_with_one_next_step() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let tank = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let blank = Tank { log: Disk::new("blank", 5000), ..tank.fork() };
            let report = untouched(&blank).await;
            let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
            assert!(finding.meaning.contains("zeroes") && finding.meaning.contains("it has no segment"), "{finding}");
            assert!(finding.advice.contains("name the device that has the log"), "{finding}");
            assert!(finding.advice.contains("'pool forget-log' gives it up"), "{finding}");
            // Its start alone is zeroes.
            let wiped = tank.fork();
            wipe(&wiped.log, 0);
            let report = wiped.check(CheckOptions::default()).await;
            let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
            assert_eq!((finding.severity, finding.advice.as_str()), (Severity::Error, "repair it"), "{finding}");
            let report = wiped.check(CheckOptions { data: false, ..REPAIR }).await;
            assert!(report.is_sound(), "{report:?}");
            wiped.open().await.unwrap().close(&wiped.reactor).await;
        });
    }
}

#[test]
fn what_may_not_be_given_up_is_said_of_an_older_copy_of_either_device() {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let new = used_once_more(&old, 0).await;
            let [log, capacity] = new.with_older(&old);
            let refused = forget_log(&log, false).await.unwrap_err().to_string();
            assert!(refused.contains("'log' is an older copy of its log: it has seen 2 openings"), "{refused}");
            assert!(
                refused.contains("bring the newer one back, or, if that is lost, give it up with --force"),
                "{refused}"
            );
            forget_log(&log, true).await.unwrap();
            let pool = log.open().await.unwrap();
            let read = log.read(&pool.volume("v").unwrap(), 0).await;
            assert_eq!(read, Err(bdev::Status::ReadError), "newer than both devices");
            pool.close(&log.reactor).await;
            let before = capacity.capacity.image();
            for force in [false, true] {
                let refused = forget_log(&capacity, force).await.unwrap_err().to_string();
                assert!(refused.contains("'capacity' is an older copy of its capacity device"), "{refused}");
            }
            assert!(capacity.capacity.image() == before);
        });
    }
}

#[test]
fn a_capacity_device_that_has_not_seen_an_opening_in_which_nothing_was_written_is_an_older_copy() {
    let reactor = reactor();
    let old = Tank::shaped_filled(&reactor);
    reactor.block_on(async move {
        let tank = old.fork();
        let pool = tank.open().await.unwrap();
        let volume = pool.volume("v").unwrap();
        for block in 0..200 {
            tank.write(&volume, block, 5).await;
        }
        // Killed, and opened again: what the log has goes to the capacity device, and the log begins behind it.
        let killed = tank.fork();
        let new = killed.fork();
        let pool = new.open().await.unwrap();
        pool.settle(&new.reactor).await.unwrap();
        pool.close(&new.reactor).await;
        let [_, older_capacity] = new.with_older(&killed);
        let report = untouched(&older_capacity).await;
        assert!(of_superblocks(&report)[0].meaning.contains("older copy"), "{report:?}");
        let refused = older_capacity.open().await.err().expect("it is older").to_string();
        assert!(refused.contains("'capacity' is an older copy of its capacity device"), "{refused}");
    });
}

#[test]
fn a_copy_of_the_same_opening_is_an_older_one_when_a_checkpoint_has_left_it_behind() {
    for (is_shaped, rests) in [(false, true), (false, false), (true, true), (true, false)] {
        let reactor = reactor();
        let old = Tank::filled_as(&reactor, is_shaped);
        reactor.block_on(async move {
            let tank = old.fork();
            let pool = tank.open().await.unwrap();
            let volume = pool.volume("v").unwrap();
            // So often that the log comes round.
            let used = async |byte| {
                for block in 0..if rests { 1200 } else { 12_000 } {
                    tank.write(&volume, block % 300, byte).await;
                    if rests && block % 100 == 99 {
                        pool.settle(&tank.reactor).await.unwrap();
                    }
                }
            };
            used(5).await;
            let before = tank.fork();
            used(6).await;
            let now = tank.fork();
            let [older_log, older_capacity] = now.with_older(&before);
            // A copy of the capacity device lacks blocks of a shaped pool, and shows none that are old.
            let behind = if is_shaped { vec![older_log] } else { vec![older_log, older_capacity] };
            for (behind, what) in behind.iter().zip(["log", "capacity"]) {
                let report = untouched(behind).await;
                let [finding] = of_superblocks(&report)[..] else { panic!("{report:?}") };
                assert!(
                    finding.object == format!("{what} device") && finding.meaning.contains("later in opening"),
                    "{finding}"
                );
                let refused = behind.open().await.err().expect("it is older").to_string();
                assert!(refused.contains("is an older copy of its"), "{refused}");
                if what == "capacity" {
                    let forgotten = forget_log(behind, true).await.expect_err("nothing would be known of what is old");
                    assert!(forgotten.to_string().contains("is an older copy of its capacity device"), "{forgotten}");
                }
            }
            // As it was, both open; so does what a crash leaves.
            for whole in [before, now] {
                let pool = whole.open().await.unwrap();
                pool.close(&whole.reactor).await;
            }
            pool.close(&tank.reactor).await;
        });
    }
}
