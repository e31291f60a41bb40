//! Mirrors that grow.

use crate::common::*;
use crate::mirror::{read_stable as read, write};
use bdev::{
    BlockDevice, ErrorDevice, ErrorRule, Fault, Io, Lba, LegState, MemDevice, MirrorDevice, MirrorOptions, Op, Status,
};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

type Legs = Vec<Option<Arc<dyn BlockDevice>>>;

async fn open(reactor: &Rc<Reactor>, legs: &Legs, create: bool) -> Arc<MirrorDevice> {
    open_with(reactor, legs, create, 0).await
}

async fn open_with(reactor: &Rc<Reactor>, legs: &Legs, create: bool, regions_max: usize) -> Arc<MirrorDevice> {
    let options =
        MirrorOptions { create, assume_clean: true, region_bytes: 4096, regions_max, ..MirrorOptions::default() };
    Arc::new(MirrorDevice::open(reactor, "mirror", legs.clone(), &options).await.unwrap())
}

async fn at_rest(reactor: &Rc<Reactor>, mirror: &MirrorDevice) {
    while mirror.status().resync_left_regions > 0 {
        reactor.sleep_ns(1_000_000).await;
    }
    mirror.settle(reactor).await.unwrap();
    assert_eq!(mirror.status().dirty_regions, 0);
}

#[test]
fn legs_that_have_become_larger_are_used_and_made_equal_where_they_differ() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (a, b) = (mem("a", 100), mem("b", 200));
        for lba in 0..200 {
            assert_eq!(write(&inner, &*b, lba, 99).await, Status::Ok);
        }
        for lba in 0..10 {
            assert_eq!(write(&inner, &*b, lba, 0).await, Status::Ok);
        }
        let legs: Legs = vec![Some(a.clone()), Some(b)];
        let mirror = open(&inner, &legs, true).await;
        let before = mirror.info().blocks;
        assert_eq!(write(&inner, &*mirror, before - 1, 1).await, Status::Ok);
        assert_eq!(mirror.refresh(&inner).await.unwrap().blocks, before, "the smaller leg has not grown");
        let channel = mirror.open_channel(&inner).unwrap();
        a.resize(&inner, 150).await.unwrap();
        let grown = mirror.refresh(&inner).await.unwrap().blocks;
        assert_eq!(grown, before + 50);
        // It is under way by now.
        let left = mirror.status().resync_left_regions;
        assert!((40..=50).contains(&left), "{left} regions to copy");
        // A channel of before sees what is new; a block that was read stays what it was.
        assert_eq!(channel.submit(Io::read_loan(Lba(grown - 1), 1)).await.status, Status::Ok);
        for lba in [before, before + 7, grown - 1] {
            assert_eq!(read(&inner, &*mirror, lba).await, 0, "as the first leg in sync has it");
        }
        assert_eq!(write(&inner, &*mirror, before + 7, 2).await, Status::Ok);
        at_rest(&inner, &mirror).await;
        drop(mirror);
        let mirror = open(&inner, &legs, false).await;
        assert_eq!((mirror.info().blocks, mirror.status().dirty_regions), (grown, 0));
        for (lba, fill) in [(before - 1, 1), (before, 0), (before + 7, 2), (grown - 1, 0)] {
            assert_eq!(read(&inner, &*mirror, lba).await, fill);
        }
    });
}

#[test]
fn regions_become_larger_where_the_bitmap_has_no_room_for_more() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let leg = |name: &str| Some(Arc::new(MemDevice::new(name, 4096, 900, 40_000).unwrap()) as Arc<dyn BlockDevice>);
        let legs: Legs = vec![leg("a"), leg("b")];
        let mirror = open_with(&inner, &legs, true, 1000).await;
        for (lba, fill) in [(0, 1), (890, 2)] {
            assert_eq!(write(&inner, &*mirror, lba, fill).await, Status::Ok);
        }
        for (blocks, regions) in [(1000, 1000), (1001, 501), (1400, 700)] {
            let before = mirror.info().blocks;
            mirror.resize(&inner, blocks).await.unwrap();
            assert_eq!((mirror.info().blocks, mirror.status().regions), (blocks, regions));
            // It is under way by now.
            let left = mirror.status().resync_left_regions;
            let added = (blocks - before).div_ceil(blocks.div_ceil(regions));
            assert!(left <= added + 1 && left + 10 > added, "{left} regions to copy, {added} added");
            assert_eq!(write(&inner, &*mirror, blocks - 1, 3).await, Status::Ok);
            at_rest(&inner, &mirror).await;
        }
        drop(mirror);
        let mirror = open(&inner, &legs, false).await;
        assert_eq!((mirror.info().blocks, mirror.status().regions), (1400, 700));
        for (lba, fill) in [(0, 1), (890, 2), (999, 3), (1000, 3), (1399, 3), (1200, 0)] {
            assert_eq!(read(&inner, &*mirror, lba).await, fill);
        }
        // What is written now is called dirty where it is.
        assert_eq!(write(&inner, &*mirror, 1200, 4).await, Status::Ok);
        assert_eq!(mirror.status().dirty_regions, 1);
    });
}

#[test]
fn it_grows_with_all_legs_in_sync_alone_and_says_so() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let faulty = |name: &str| Arc::new(ErrorDevice::new(name, mem(name, 100), &[], 1).unwrap());
        let (a, b) = (faulty("a"), faulty("b"));
        let legs: Legs = vec![Some(a.clone()), Some(b.clone())];
        let mirror = open(&inner, &legs, true).await;
        let refused = async |blocks: u64| mirror.resize(&inner, blocks).await.unwrap_err().to_string();
        let text = refused(50).await;
        assert!(text.contains("it does not shrink"), "{text}");
        b.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &*mirror, 3, 1).await, Status::Ok);
        assert_eq!(mirror.status().legs[1].state, LegState::Failed);
        let text = refused(150).await;
        assert!(text.contains("leg 'b' has failed: replace it, and grow the mirror"), "{text}");
        let blocks = mirror.info().blocks;
        assert_eq!(mirror.refresh(&inner).await.unwrap().blocks, blocks);
        b.set_rules(&[]).unwrap();
        mirror.join(&inner, 1, None, false).await.unwrap();
        let text = refused(150).await;
        assert!(text.contains("is being caught up"), "{text}");
        mirror.resync(&inner, 0).await.unwrap();
        mirror.resize(&inner, 150).await.unwrap();
        assert_eq!(mirror.info().blocks, 150);
    });
}

#[test]
fn a_leg_that_fails_while_it_grows_is_out_and_comes_back() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let a = mem("a", 200);
        let b = Arc::new(ErrorDevice::new("b", mem("b", 200), &[], 1).unwrap());
        let legs: Legs = vec![Some(a), Some(b.clone())];
        let mirror = open(&inner, &legs, true).await;
        let before = mirror.info().blocks;
        assert_eq!(write(&inner, &*mirror, 3, 1).await, Status::Ok);
        b.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        mirror.resize(&inner, before + 100).await.unwrap_err();
        assert_eq!((mirror.info().blocks, mirror.status().legs[1].state), (before, LegState::Failed));
        assert_eq!(write(&inner, &*mirror, 4, 2).await, Status::Ok);
        drop(mirror);
        b.set_rules(&[]).unwrap();
        let mirror = open(&inner, &legs, false).await;
        mirror.resync(&inner, 0).await.unwrap();
        mirror.resize(&inner, before + 100).await.unwrap();
        for (lba, fill) in [(3, 1), (4, 2), (before + 99, 0)] {
            assert_eq!(read(&inner, &*mirror, lba).await, fill);
        }
    });
}

#[test]
fn growth_that_cannot_be_recorded_leaves_the_former_size_and_bits_that_count_in_it() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let faulty = |name: &str| Arc::new(ErrorDevice::new(name, mem(name, 200), &[], 1).unwrap());
        // Regions stay as they are, or become four blocks large.
        for (regions_max, goes_on) in [(0, true), (50, true), (0, false), (50, false)] {
            let devices = [faulty("a"), faulty("b")];
            let legs: Legs = devices.iter().map(|leg| Some(leg.clone() as Arc<dyn BlockDevice>)).collect();
            let mirror = open_with(&inner, &legs, true, regions_max).await;
            let before = mirror.info().blocks;
            for lba in 0..before {
                assert_eq!(write(&inner, &*mirror, lba, 1).await, Status::Ok);
            }
            mirror.settle(&inner).await.unwrap();
            // The first slot of each leg has the new size, the second one has not.
            let second_slot = ErrorRule {
                lba: Lba(1),
                blocks: 1,
                ..ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))
            };
            devices.iter().for_each(|leg| leg.set_rules(&[second_slot]).unwrap());
            mirror.resize(&inner, before + 100).await.unwrap_err();
            assert_eq!(mirror.info().blocks, before);
            devices.iter().for_each(|leg| leg.set_rules(&[]).unwrap());
            if goes_on {
                assert_eq!(write(&inner, &*mirror, 90, 2).await, Status::Ok);
                mirror.settle(&inner).await.unwrap();
            }
            drop(mirror);
            let mirror = open_with(&inner, &legs, false, regions_max).await;
            match goes_on {
                true => assert_eq!((mirror.info().blocks, mirror.status().dirty_regions), (before, 0)),
                false => assert!([before, before + 100].contains(&mirror.info().blocks)),
            }
            mirror.resync(&inner, 0).await.unwrap();
            if mirror.info().blocks == before {
                mirror.resize(&inner, before + 100).await.unwrap();
            }
            for lba in 0..before + 100 {
                let expected = match lba {
                    90 if goes_on => 2,
                    lba if lba < before => 1,
                    _ => 0,
                };
                assert_eq!(read(&inner, &*mirror, lba).await, expected, "block {lba}");
            }
        }
    });
}

#[test]
fn a_leg_that_is_too_small_by_now_counts_as_absent() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (a, b) = (mem("a", 100), mem("b", 100));
        let legs: Legs = vec![Some(a.clone()), Some(b)];
        let mirror = open(&inner, &legs, true).await;
        assert_eq!(write(&inner, &*mirror, 3, 1).await, Status::Ok);
        mirror.resize(&inner, 150).await.unwrap();
        at_rest(&inner, &mirror).await;
        drop(mirror);
        let options = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        for small in [mem("b", 100), mem("b", 120)] {
            let legs = vec![Some(a.clone()), Some(small)];
            let refused = MirrorDevice::open(&inner, "mirror", legs.clone(), &MirrorOptions::default()).await;
            let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(text.contains("leg 'b' is absent or wiped") && text.contains("--degraded"), "{text}");
            let mirror = MirrorDevice::open(&inner, "mirror", legs, &options).await.unwrap();
            assert_eq!((mirror.info().blocks, mirror.status().legs[1].state), (150, LegState::Failed));
            assert_eq!(read(&inner, &mirror, 3).await, 1);
            // It is known to have failed by now, so without being told to as well.
            drop(mirror);
            let legs = vec![Some(a.clone()), Some(mem("b", 100))];
            let mirror = MirrorDevice::open(&inner, "mirror", legs, &MirrorOptions::default()).await.unwrap();
            drop(mirror);
            let again: Legs = vec![Some(a.clone()), Some(mem("b", 160))];
            let mirror = MirrorDevice::open(&inner, "mirror", again, &MirrorOptions::default()).await.unwrap();
            mirror.resync(&inner, 0).await.unwrap();
            assert!(!mirror.status().degraded);
        }
    });
}
