//! What a mirror promises when legs fail, vanish, return and differ.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, ErrorDevice, ErrorRule, Fault, Flags, Io, Lba, LegState,
    LinearDevice, MirrorDevice, MirrorOptions, Op, Status, StripeDevice, When,
};
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

fn create() -> MirrorOptions {
    MirrorOptions { create: true, assume_clean: true, region_bytes: 64 << 10, ..MirrorOptions::default() }
}

async fn open(reactor: &Rc<Reactor>, legs: &[Option<Arc<dyn BlockDevice>>], options: MirrorOptions) -> MirrorDevice {
    MirrorDevice::open(reactor, "mirror", legs.to_vec(), &options).await.unwrap()
}

pub(crate) async fn write(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64, fill: u8) -> Status {
    let mut buf = reactor.pool().alloc(4096).await;
    buf.as_mut_slice().fill(fill);
    let channel = device.open_channel(reactor).unwrap();
    let mut bufs = SgList::new();
    bufs.push(buf);
    channel.submit(Io::write(Lba(lba), 1, bufs)).await.status
}

async fn read(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64) -> Result<u8, Status> {
    let channel = device.open_channel(reactor).unwrap();
    let done = channel.submit(Io::read_loan(Lba(lba), 1)).await;
    done.status.check()?;
    let bytes = done.io.bufs[0].as_slice();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixed block");
    Ok(bytes[0])
}

/// Reads often enough to have asked every leg.
pub(crate) async fn read_stable(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64) -> u8 {
    let channel = device.open_channel(reactor).unwrap();
    let mut seen = Vec::new();
    for _ in 0..8 {
        let done = channel.submit(Io::read_loan(Lba(lba), 1)).await;
        assert_eq!(done.status, Status::Ok);
        seen.push(done.io.bufs[0].as_slice()[0]);
    }
    assert!(seen.iter().all(|byte| *byte == seen[0]), "block {lba} reads as {seen:?}");
    seen[0]
}

fn faulty(name: &str) -> (Arc<ErrorDevice>, Option<Arc<dyn BlockDevice>>) {
    let device = Arc::new(ErrorDevice::new(name, mem(name, 600), &[], 1).unwrap());
    (device.clone(), Some(device))
}

fn flush_fails_once() -> ErrorRule {
    ErrorRule { when: When::Nth(1), ..ErrorRule::always(&[Op::Flush], Fault::Fail(Status::WriteError)) }
}

fn states(mirror: &MirrorDevice) -> Vec<LegState> {
    mirror.legs().iter().map(|leg| leg.state).collect()
}

#[test]
fn mirror_conforms() {
    let reactor = reactor();
    for legs in [1, 2, 3] {
        let legs: Vec<_> = (0..legs).map(|i| Some(mem(&format!("m{i}"), 500))).collect();
        let inner = reactor.clone();
        let device = reactor.block_on(async move { Arc::new(open(&inner, &legs, create()).await) });
        conforms(&reactor, device.clone(), |_| {});
        assert!(!device.status().degraded && device.status().resync_left_regions == 0);
    }
}

#[test]
fn mirrors_of_512_byte_blocks_and_files_and_stripes_over_mirrors_conform() {
    let (reactor, dir) = (reactor(), disk_dir());
    let legs: Vec<_> = (0..2).map(|i| Some(mem_of(&format!("m{i}"), 512, 3000))).collect();
    let inner = reactor.clone();
    conforms(&reactor, reactor.block_on(async move { Arc::new(open(&inner, &legs, create()).await) }), |_| {});
    let mut mirrors: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for pair in 0..2 {
        let legs: Vec<_> = (0..2).map(|i| Some(file(&reactor, &dir, &format!("f{pair}{i}"), 4 << 20))).collect();
        let inner = reactor.clone();
        mirrors.push(reactor.block_on(async move { Arc::new(open(&inner, &legs, create()).await) }));
    }
    conforms(&reactor, mirrors[0].clone(), |options| options.random_ops = 200);
    let stripe = Arc::new(StripeDevice::new("stripe", mirrors, 4).unwrap());
    conforms(&reactor, stripe, |options| options.random_ops = 200);
}

#[test]
fn a_leg_that_misses_a_write_is_failed_before_the_write_is_acknowledged_and_never_read_again() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (bad, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b];
        let mirror = open(&inner, &legs, create()).await;
        assert_eq!(write(&inner, &mirror, 7, 1).await, Status::Ok);
        bad.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &mirror, 7, 2).await, Status::Ok);
        assert_eq!(read_stable(&inner, &mirror, 7).await, 2);
        let status = mirror.status();
        assert!(status.degraded && status.legs[1].state == LegState::Failed, "{status:?}");
        // The power fails, everything comes back: the leg is known to be behind, and is caught up from the bitmap.
        drop(mirror);
        bad.set_rules(&[]).unwrap();
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        assert_eq!(mirror.status().legs[1].state, LegState::RecoveringDirty);
        assert!(mirror.status().resync_left_regions < mirror.status().regions);
        assert_eq!(read_stable(&inner, &mirror, 7).await, 2);
        mirror.resync(&inner, 0).await.unwrap();
        assert!(!mirror.status().degraded && mirror.status().dirty_regions == 0, "{:?}", mirror.status());
        assert_eq!(read_stable(&inner, &mirror, 7).await, 2);
    });
}

#[test]
fn a_block_never_reads_as_two_things_after_a_crash_in_the_middle_of_a_write() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((dying, a), (lossy, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b];
        let mirror = open(&inner, &legs, create()).await;
        assert_eq!(write(&inner, &mirror, 300, 1).await, Status::Ok);
        mirror.settle(&inner).await.unwrap();
        assert_eq!(mirror.status().dirty_regions, 0);
        // One leg has the write, the other lost it with the power; nobody was told that it was done.
        let data = mirror.info();
        let start = 600 - data.blocks;
        lossy.set_rules(&[ErrorRule { lba: Lba(start), ..ErrorRule::always(&[Op::Write], Fault::Lose) }]).unwrap();
        assert_eq!(write(&inner, &mirror, 300, 2).await, Status::Ok);
        drop(mirror);
        lossy.set_rules(&[]).unwrap();
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        let status = mirror.status();
        assert!(!status.degraded && status.resync_left_regions == 1, "{status:?}");
        let before = read_stable(&inner, &mirror, 300).await;
        assert_eq!(mirror.status().resync_left_regions, 1, "{status:?}");
        // Nor when the leg that was read cannot be read any more before the other has been resynchronised.
        dying.set_rules(&[ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError))]).unwrap();
        assert_eq!(read_stable(&inner, &mirror, 300).await, before);
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!(read_stable(&inner, &mirror, 300).await, before);
    });
}

#[test]
fn unreadable_and_rotten_blocks_are_read_elsewhere_and_rewritten() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((bad, a), (_, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a, b], create()).await;
        assert_eq!(write(&inner, &mirror, 5, 9).await, Status::Ok);
        let rule = ErrorRule { when: When::Nth(1), ..ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError)) };
        bad.set_rules(&[rule]).unwrap();
        for _ in 0..4 {
            assert_eq!(read(&inner, &mirror, 5).await, Ok(9));
        }
        let leg = &mirror.status().legs[0];
        assert_eq!((leg.state, leg.read_errors, leg.repairs), (LegState::InSync, 1, 1));
        // Verify asks every leg.
        bad.set_rules(&[rule]).unwrap();
        let channel = mirror.open_channel(&inner).unwrap();
        assert_eq!(channel.submit(Io::new(Op::Verify, Lba(0), 10)).await.status, Status::Ok);
        assert_eq!(mirror.status().legs[0].repairs, 2);
    });
}

#[test]
fn legs_used_without_each_other_are_refused_until_one_is_preferred() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a.clone(), b.clone()], create()).await;
        assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
        drop(mirror);
        let stale = MirrorDevice::open(&inner, "m", vec![a.clone(), None], &MirrorOptions::default()).await;
        assert!(stale.err().unwrap().to_string().contains("start_degraded"));
        let degraded = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        let mirror = open(&inner, &[a.clone(), None], degraded.clone()).await;
        assert_eq!(write(&inner, &mirror, 5, 2).await, Status::Ok);
        drop(mirror);
        // Known to be the newer one: no need to ask again.
        drop(open(&inner, &[a.clone(), None], MirrorOptions::default()).await);
        let mirror = open(&inner, &[None, b.clone()], degraded).await;
        assert_eq!(write(&inner, &mirror, 5, 3).await, Status::Ok);
        drop(mirror);
        let both = vec![a.clone(), b.clone()];
        let split = MirrorDevice::open(&inner, "m", both, &MirrorOptions::default()).await;
        assert!(split.err().unwrap().to_string().contains("prefer"));
        let mirror = open(&inner, &[a, b], MirrorOptions { prefer: Some(1), ..MirrorOptions::default() }).await;
        assert_eq!(mirror.status().legs[0].state, LegState::RecoveringFull);
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!(read_stable(&inner, &mirror, 5).await, 3);
        assert!(!mirror.status().degraded);
    });
}

#[test]
fn a_leg_put_back_from_a_copy_is_not_believed_and_is_filled_anew() {
    for (stale, stops) in [(0, false), (1, false), (0, true)] {
        let reactor = reactor();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let devices = [mem("a", 600), mem("b", 600)];
            let legs = devices.clone().map(Some);
            let mirror = open(&inner, &legs, create()).await;
            assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
            mirror.settle(&inner).await.unwrap();
            drop(mirror);
            let copy = copy_of(&inner, &devices[stale]).await;
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            assert!(!mirror.status().degraded, "a usual opening");
            assert_eq!(write(&inner, &mirror, 5, 2).await, Status::Ok);
            if stops {
                mirror.settle(&inner).await.unwrap();
            }
            drop(mirror);
            put_back(&inner, &devices[stale], &copy).await;
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            assert_eq!(mirror.status().legs[stale].state, LegState::RecoveringFull, "leg {stale}");
            assert_eq!(read_stable(&inner, &mirror, 5).await, 2);
            mirror.resync(&inner, 0).await.unwrap();
            assert!(!mirror.status().degraded);
            drop(mirror);
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            assert!(!mirror.status().degraded);
            assert_eq!(read_stable(&inner, &mirror, 5).await, 2);
        });
    }
}

#[test]
fn a_replaced_leg_is_filled_while_the_mirror_is_written() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a.clone(), b], create()).await;
        for lba in 0..500 {
            assert_eq!(write(&inner, &mirror, lba, lba as u8).await, Status::Ok);
        }
        drop(mirror);
        let degraded = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        let new = Some(mem("new", 600));
        let mirror = Arc::new(open(&inner, &[a, new.clone()], degraded).await);
        let (copier, reactor) = (mirror.clone(), inner.clone());
        let resync = inner.spawn_join(async move { copier.resync(&reactor, 1000).await.unwrap() });
        for lba in (0..500).step_by(3) {
            assert_eq!(write(&inner, &*mirror, lba, 200).await, Status::Ok);
        }
        resync.await;
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        drop(mirror);
        let alone = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        let mirror = open(&inner, &[None, new], alone).await;
        for lba in 0..500u64 {
            let expected = if lba.is_multiple_of(3) { 200 } else { lba as u8 };
            assert_eq!(read(&inner, &mirror, lba).await, Ok(expected), "block {lba}");
        }
    });
}

#[test]
fn a_write_that_fails_everywhere_fails_and_fails_no_leg() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((bad_a, a), (bad_b, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a, b], create()).await;
        assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
        for bad in [&bad_a, &bad_b] {
            bad.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::NoSpace))]).unwrap();
        }
        assert_eq!(write(&inner, &mirror, 5, 2).await, Status::NoSpace);
        bad_a.set_rules(&[]).unwrap();
        bad_b.set_rules(&[]).unwrap();
        assert!(!mirror.status().degraded);
        assert_eq!(read_stable(&inner, &mirror, 5).await, 1);
        let channel = mirror.open_channel(&inner).unwrap();
        assert_eq!(channel.submit(Io { flags: Flags::NONE, ..Io::flush() }).await.status, Status::Ok);
    });
}

#[test]
fn a_disk_with_other_data_is_not_taken_for_a_leg() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        assert_eq!(write(&inner, &**b.as_ref().unwrap(), 0, 77).await, Status::Ok);
        let refused = MirrorDevice::open(&inner, "m", vec![a.clone(), b.clone()], &create()).await;
        assert!(refused.err().unwrap().to_string().contains("other data"));
        open(&inner, &[a, b], MirrorOptions { force: true, ..create() }).await;
    });
}

#[test]
fn one_superblock_slot_suffices_and_the_other_is_repaired() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for slot in [0, 1] {
            let ((bad, a), (_, b)) = (faulty("a"), faulty("b"));
            let legs = [a, b];
            let mirror = open(&inner, &legs, create()).await;
            assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
            drop(mirror);
            let unreadable = ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError));
            bad.set_rules(&[ErrorRule { lba: Lba(slot), blocks: 1, ..unreadable }]).unwrap();
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            let status = mirror.status();
            assert!(!status.degraded && status.legs[0].repairs == 1 && status.legs[1].repairs == 0, "{status:?}");
            drop(mirror);
            // The slot that was rewritten is as good as the other one.
            bad.set_rules(&[ErrorRule { lba: Lba(1 - slot), blocks: 1, ..unreadable }]).unwrap();
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            assert!(!mirror.status().degraded);
            assert_eq!(read_stable(&inner, &mirror, 5).await, 1);
        }
    });
}

#[test]
fn a_leg_whose_superblocks_cannot_be_read_is_as_good_as_absent() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((bad, a), (_, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b];
        let mirror = open(&inner, &legs, create()).await;
        assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
        drop(mirror);
        bad.set_rules(&[ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError))]).unwrap();
        let refused = MirrorDevice::open(&inner, "m", legs.to_vec(), &MirrorOptions::default()).await;
        assert!(refused.err().unwrap().to_string().contains("start_degraded"));
        let again = MirrorDevice::open(&inner, "m", legs.to_vec(), &create()).await;
        assert!(again.is_err(), "a mirror is there");
        let degraded = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        let mirror = open(&inner, &legs, degraded).await;
        assert_eq!(mirror.status().legs[0].state, LegState::Failed);
        assert_eq!(read_stable(&inner, &mirror, 5).await, 1);
    });
}

#[test]
fn a_mirror_is_opened_with_as_many_legs_as_it_has() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let legs: Vec<_> = (0..3).map(|leg| faulty(&format!("leg{leg}")).1).collect();
        drop(open(&inner, &legs, create()).await);
        let degraded = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        let refused = MirrorDevice::open(&inner, "m", legs[..2].to_vec(), &degraded).await;
        assert!(refused.err().unwrap().to_string().contains("3 legs"));
    });
}

/// A device that can do little: no loans, small operations, nothing but reads, writes and flushes.
struct Weak(Arc<dyn BlockDevice>);

impl BlockDevice for Weak {
    fn name(&self) -> &str {
        "weak"
    }

    fn kind(&self) -> &'static str {
        "weak"
    }

    fn info(&self) -> DeviceInfo {
        let blocks = self.0.info().blocks;
        DeviceInfo {
            max_io_blocks: 3,
            volatile_cache: true,
            atomic_write_blocks: 256,
            ..DeviceInfo::basic(4096, blocks)
        }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(WeakChannel { child: self.0.open_channel(reactor)?, info: self.info() }))
    }
}

struct WeakChannel {
    child: Rc<dyn Channel>,
    info: DeviceInfo,
}

impl Channel for WeakChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let moves_data = io.op != Op::Flush;
        let durable = !io.op.modifies() || io.flags.has(Flags::FUA);
        assert!(!moves_data || (io.nblocks <= 3 && durable), "{io:?} is more than was promised");
        self.child.submit(io)
    }
}

const DEGRADED: MirrorOptions = MirrorOptions {
    create: false,
    force: false,
    assume_clean: false,
    start_degraded: true,
    prefer: None,
    resync_rate: 0,
    region_bytes: 0,
    leg_names: Vec::new(),
    regions_max: 0,
    defect: None,
};

#[test]
fn a_leg_that_arrives_late_keeps_what_the_mirror_promised_without_it() {
    let reactor = reactor();
    let inner = reactor.clone();
    let device = reactor.block_on(async move {
        let (a, weak) = (Some(mem("a", 500)), Some(Arc::new(Weak(mem("b", 500))) as Arc<dyn BlockDevice>));
        // Made with a strong leg in its place, of which it is a copy.
        drop(open(&inner, &[a.clone(), Some(mem("c", 500))], create()).await);
        let mirror = Arc::new(open(&inner, &[a, None], DEGRADED).await);
        // A channel that was opened without the leg uses it all the same.
        let before = mirror.open_channel(&inner).unwrap();
        assert_eq!(mirror.join(&inner, 1, weak, false).await.unwrap(), LegState::RecoveringFull);
        mirror.resync(&inner, 0).await.unwrap();
        assert!(!mirror.status().degraded, "{:?}", mirror.status());
        for _ in 0..2 {
            assert_eq!(before.submit(Io::read_loan(Lba(7), 9)).await.status, Status::Ok);
        }
        mirror
    });
    conforms(&reactor, device.clone(), |_| {});
    assert!(!device.status().degraded);
}

#[test]
fn a_leg_that_was_away_for_a_short_time_is_caught_up_while_the_mirror_is_written() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a.clone(), b.clone()], create()).await;
        for lba in 0..500 {
            assert_eq!(write(&inner, &mirror, lba, lba as u8).await, Status::Ok);
        }
        mirror.settle(&inner).await.unwrap();
        drop(mirror);
        let mirror = Arc::new(open(&inner, &[a, None], DEGRADED).await);
        assert_eq!(write(&inner, &*mirror, 100, 1).await, Status::Ok);
        assert_eq!(mirror.join(&inner, 1, b.clone(), false).await.unwrap(), LegState::RecoveringDirty);
        let left = mirror.status().resync_left_regions;
        assert!((1..=3).contains(&left), "{left} regions of one write");
        let (copier, reactor) = (mirror.clone(), inner.clone());
        let resync = inner.spawn_join(async move { copier.resync(&reactor, 1000).await.unwrap() });
        for lba in (0..500).step_by(7) {
            assert_eq!(write(&inner, &*mirror, lba, 200).await, Status::Ok);
        }
        resync.await;
        assert!(!mirror.status().degraded && mirror.status().legs[1].name.as_deref() == Some("b"));
        drop(mirror);
        let alone = open(&inner, &[None, b], DEGRADED).await;
        for lba in 0..500u64 {
            let expected = if lba.is_multiple_of(7) {
                200
            } else if lba == 100 {
                1
            } else {
                lba as u8
            };
            assert_eq!(read(&inner, &alone, lba).await, Ok(expected), "block {lba}");
        }
    });
}

#[test]
fn a_leg_that_failed_is_taken_in_again_and_one_in_use_is_not() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (dying, b)) = (faulty("a"), faulty("b"));
        let mirror = Arc::new(open(&inner, &[a, b], create()).await);
        dying.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &*mirror, 5, 1).await, Status::Ok);
        assert_eq!(mirror.status().legs[1].state, LegState::Failed);
        let refused = mirror.join(&inner, 1, None, false).await.unwrap_err().to_string();
        assert!(refused.contains("take in a leg"), "{refused}");
        assert_eq!(mirror.status().legs[1].state, LegState::Failed);
        assert_eq!(write(&inner, &*mirror, 6, 2).await, Status::Ok);
        dying.set_rules(&[]).unwrap();
        mirror.join(&inner, 1, None, false).await.unwrap();
        mirror.resync_in_background(&inner);
        while mirror.status().degraded {
            inner.sleep_ns(100_000).await;
        }
        assert_eq!((read_stable(&inner, &*mirror, 5).await, read_stable(&inner, &*mirror, 6).await), (1, 2));
        for (leg, reason) in [(1, "in use"), (7, "no leg 7")] {
            assert!(mirror.join(&inner, leg, None, false).await.unwrap_err().to_string().contains(reason));
        }
    });
}

#[test]
fn a_flush_that_fails_on_the_last_leg_is_told_to_users_and_that_leg_is_failed_when_another_has_all() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((last, a), (bad, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b];
        let mirror = open(&inner, &legs, create()).await;
        let users = [(); 2].map(|()| mirror.open_channel(&inner).unwrap());
        bad.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &mirror, 7, 1).await, Status::Ok);
        bad.set_rules(&[]).unwrap();
        assert_eq!(mirror.join(&inner, 1, None, false).await.unwrap(), LegState::RecoveringDirty);
        last.set_rules(&[flush_fails_once()]).unwrap();
        mirror.resync(&inner, 0).await.unwrap();
        for user in &users {
            assert_eq!(user.submit(Io::flush()).await.status, Status::WriteError, "what was written may be lost");
            assert_eq!(user.submit(Io::flush()).await.status, Status::Ok);
        }
        assert_eq!(
            states(&mirror),
            [LegState::Failed, LegState::InSync],
            "the one that may lose it is not trusted any more"
        );
        assert_eq!(read_stable(&inner, &mirror, 7).await, 1);
        assert_eq!(write(&inner, &mirror, 7, 2).await, Status::Ok);
        drop((users, mirror));
        let alone = MirrorDevice::open(&inner, "mirror", vec![legs[0].clone(), None], &MirrorOptions::default()).await;
        assert!(alone.is_err(), "it knows that there is a newer one");
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        assert_eq!(states(&mirror), [LegState::RecoveringDirty, LegState::InSync]);
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!((states(&mirror), mirror.status().dirty_regions), (vec![LegState::InSync; 2], 0));
        assert_eq!(read_stable(&inner, &mirror, 7).await, 2);
    });
}

#[test]
fn a_leg_that_is_caught_up_and_cannot_flush_any_more_than_the_last_one_is_failed() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((last, a), (bad, b)) = (faulty("a"), faulty("b"));
        let mirror = open(&inner, &[a, b], create()).await;
        bad.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &mirror, 7, 1).await, Status::Ok);
        bad.set_rules(&[]).unwrap();
        assert_eq!(mirror.join(&inner, 1, None, false).await.unwrap(), LegState::RecoveringDirty);
        [&last, &bad].iter().for_each(|leg| leg.set_rules(&[flush_fails_once()]).unwrap());
        let channel = mirror.open_channel(&inner).unwrap();
        assert_eq!(channel.submit(Io::flush()).await.status, Status::WriteError);
        assert_eq!(states(&mirror), [LegState::InSync, LegState::Failed], "what it has been given may be lost");
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!(states(&mirror), [LegState::InSync, LegState::Failed]);
        mirror.join(&inner, 1, None, false).await.unwrap();
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!(states(&mirror), [LegState::Failed, LegState::InSync]);
        assert_eq!(read_stable(&inner, &mirror, 7).await, 1);
    });
}

#[test]
fn a_mirror_of_one_leg_tells_of_its_own_flush_that_failed() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (only, a) = faulty("a");
        let mirror = open(&inner, &[a], create()).await;
        let channel = mirror.open_channel(&inner).unwrap();
        assert_eq!(write(&inner, &mirror, 7, 1).await, Status::Ok);
        only.set_rules(&[flush_fails_once()]).unwrap();
        assert!(mirror.settle(&inner).await.is_err());
        assert_eq!(channel.submit(Io::flush()).await.status, Status::WriteError);
        assert_eq!(channel.submit(Io::flush()).await.status, Status::Ok);
        mirror.settle(&inner).await.unwrap();
        assert_eq!(mirror.status().dirty_regions, 1, "no bit is cleared any more");
    });
}

#[test]
fn what_a_late_leg_holds_is_overwritten_only_when_told_to() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        drop(open(&inner, &[a.clone(), b.clone()], create()).await);
        // Each leg goes on without the other.
        let alone = open(&inner, &[None, b.clone()], DEGRADED).await;
        assert_eq!(write(&inner, &alone, 5, 2).await, Status::Ok);
        drop(alone);
        let mirror = open(&inner, &[a, None], DEGRADED).await;
        assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
        let foreign = mem("foreign", 600);
        assert_eq!(write(&inner, &*foreign, 0, 9).await, Status::Ok);
        for (leg, reason) in [
            (b.clone().unwrap(), "without each other"),
            (foreign, "other data"),
            (mem("small", 100), "blocks"),
            (mem_of("other", 512, 6000), "of 512 bytes"),
        ] {
            let refused = mirror.join(&inner, 1, Some(leg), false).await.unwrap_err().to_string();
            assert!(refused.contains(reason), "{reason}: {refused}");
        }
        assert_eq!(mirror.join(&inner, 1, b, true).await.unwrap(), LegState::RecoveringFull);
        mirror.resync(&inner, 0).await.unwrap();
        assert_eq!(read_stable(&inner, &mirror, 5).await, 1);
    });
}

/// One block of a version, which reads as one byte; `None` where there is no such version now.
async fn read_version(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64, version: u8) -> Option<u8> {
    let channel = device.open_channel(reactor).unwrap();
    let bufs = SgList::from_iter([reactor.pool().alloc(4096).await]);
    let done = channel.submit(Io::read_version(Lba(lba), 1, version, bufs)).await;
    if done.status == Status::Gone {
        return None;
    }
    assert_eq!((done.status, done.io.arg), (Status::Ok, version as u64));
    Some(done.io.bufs[0].as_slice()[0])
}

#[test]
fn each_version_is_what_one_leg_in_sync_has_and_linear_and_stripe_pass_it_on() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (bad, b)) = (faulty("a"), faulty("b"));
        let legs = [a.clone(), b.clone()];
        let mirror = Arc::new(open(&inner, &legs, create()).await);
        assert_eq!((mirror.info().versions, write(&inner, &*mirror, 7, 1).await), (3, Status::Ok));
        // Rot on the second leg.
        let data_start = 600 - mirror.info().blocks;
        assert_eq!(write(&inner, &*b.unwrap(), data_start + 7, 9).await, Status::Ok);
        let window: Arc<dyn BlockDevice> = Arc::new(LinearDevice::window("w", mirror.clone(), 5, 64).unwrap());
        let stripe = StripeDevice::new("s", vec![window.clone(), mem("m", 64)], 8).unwrap();
        for (device, lba) in [(&*mirror as &dyn BlockDevice, 7), (&*window, 2)] {
            assert_eq!(device.info().versions, 3);
            for (version, byte) in [(1, 1), (2, 9)] {
                assert_eq!(read_version(&inner, device, lba, version).await, Some(byte), "version {version}");
            }
        }
        // Whoever finds that out is told whose it is, and that leg counts it.
        assert_eq!((window.note_wrong(2, 2), window.note_wrong(2, 0)), (Some("leg 'b'".to_string()), None));
        let counted = mirror.status().legs.iter().map(|leg| (leg.read_errors, leg.repairs)).collect::<Vec<_>>();
        assert_eq!(counted, [(0, 0), (1, 1)]);
        let channel = mirror.open_channel(&inner).unwrap();
        let verify = |lba| channel.submit(Io::new(Op::Verify, Lba(lba), 4));
        assert_eq!((verify(0).await.status, verify(5).await.status), (Status::Ok, Status::Corrupt));
        // One of its children has one version alone.
        assert_eq!(stripe.info().versions, 1);
        // A leg that is not in sync has no version.
        bad.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &*mirror, 9, 2).await, Status::Ok);
        assert_eq!(read_version(&inner, &*mirror, 9, 1).await, Some(2));
        assert_eq!(read_version(&inner, &*mirror, 9, 2).await, None);
    });
}

#[test]
fn repairing_an_unreadable_block_does_not_spread_the_rot_of_its_neighbours() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((bad, a), (_, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b.clone()];
        let mirror = open(&inner, &legs, create()).await;
        for lba in 20..28 {
            assert_eq!(write(&inner, &mirror, lba, 1).await, Status::Ok);
        }
        let data_start = 600 - mirror.info().blocks;
        assert_eq!(write(&inner, &*b.unwrap(), data_start + 25, 9).await, Status::Ok);
        let unreadable = ErrorRule::always(&[Op::Read], Fault::Fail(Status::ReadError));
        bad.set_rules(&[ErrorRule { lba: Lba(data_start + 21), blocks: 1, ..unreadable }]).unwrap();
        let channel = mirror.open_channel(&inner).unwrap();
        for _ in 0..4 {
            let bufs = SgList::from_iter([inner.pool().alloc(8 * 4096).await]);
            assert_eq!(channel.submit(Io::read(Lba(20), 8, bufs)).await.status, Status::Ok);
        }
        assert!(mirror.status().legs[0].repairs > 0, "{:?}", mirror.status());
        assert_eq!(read_version(&inner, &mirror, 25, 1).await, Some(1));
    });
}

/// Writes bytes over what a device has there.
async fn overwrite(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, at: usize, bytes: &[u8]) {
    let mut blocks = copy_of(reactor, device).await;
    let (block, within) = (at / 4096, at % 4096);
    blocks[block][within..within + bytes.len()].copy_from_slice(bytes);
    put_back(reactor, device, &blocks).await;
}

#[test]
fn a_damaged_page_of_the_bitmap_costs_nothing_while_another_leg_has_it() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((_, a), (_, b)) = (faulty("a"), faulty("b"));
        let (legs, [a, b]) = ([a.clone(), b.clone()], [a.unwrap(), b.unwrap()]);
        let mirror = open(&inner, &legs, create()).await;
        assert_eq!(write(&inner, &mirror, 300, 1).await, Status::Ok);
        mirror.settle(&inner).await.unwrap();
        let (data_start, page) = (600 - mirror.info().blocks, 2 * 4096 + 100);
        drop(mirror);
        // Rot on one leg, which a copy would bring to the other.
        assert_eq!(write(&inner, &*a, data_start + 300, 9).await, Status::Ok);
        for (leg, device) in [&a, &b].into_iter().enumerate() {
            overwrite(&inner, device, page, &[0x55]).await;
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            let status = mirror.status();
            assert_eq!((status.dirty_regions, status.resync_left_regions), (0, 0), "{status:?}");
            assert_eq!((status.legs[leg].repairs, status.legs[1 - leg].repairs), (1, 0), "{status:?}");
            assert_eq!(read(&inner, &*b, data_start + 300).await, Ok(1));
        }
        // What one leg alone says is dirty is dirty.
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        assert_eq!(mirror.status().legs[0].repairs, 0, "it was rewritten");
        assert_eq!(write(&inner, &mirror, 100, 1).await, Status::Ok);
        drop(mirror);
        overwrite(&inner, &b, page, &[0x55]).await;
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        assert_eq!(mirror.status().resync_left_regions, 1, "{:?}", mirror.status());
        mirror.resync(&inner, 0).await.unwrap();
        mirror.settle(&inner).await.unwrap();
        drop(mirror);
        for device in [&a, &b] {
            overwrite(&inner, device, page, &[0x55]).await;
        }
        let mirror = open(&inner, &legs, MirrorOptions::default()).await;
        let status = mirror.status();
        assert!(status.resync_left_regions > 1 && status.resync_left_regions == status.dirty_regions, "{status:?}");
    });
}

#[test]
fn a_leg_that_holds_something_else_counts_as_absent_and_is_never_written_over() {
    for (at, bytes, holds) in [
        (0x438, &b"\x53\xEF"[..], "an ext2, ext3 or ext4 file system"),
        (0, &[0x77; 64], "other data"),
        (100, &[0x77; 64], "what was a leg of a Remuda mirror, damaged"),
    ] {
        let reactor = reactor();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let (a, b) = (mem("a", 600), mem("b", 600));
            let legs = [Some(a), Some(b.clone())];
            let mirror = open(&inner, &legs, create()).await;
            assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
            drop(mirror);
            if holds != "what was a leg of a Remuda mirror, damaged" {
                overwrite(&inner, &b, 0, &[0; 4096]).await;
                overwrite(&inner, &b, 4096, &[0; 4096]).await;
            }
            overwrite(&inner, &b, at, bytes).await;
            overwrite(&inner, &b, 4096 + 100, &[1]).await;
            let before = copy_of(&inner, &b).await;
            for options in
                [MirrorOptions::default(), MirrorOptions { prefer: Some(0), ..MirrorOptions::default() }, create()]
            {
                let refused = MirrorDevice::open(&inner, "m", legs.to_vec(), &options).await.err().unwrap().to_string();
                let expected = [&format!("leg 'b' holds {holds}"), "--degraded"];
                assert!(expected.iter().all(|part| refused.contains(part)), "{refused}");
            }
            let mirror = open(&inner, &legs, DEGRADED).await;
            let leg = &mirror.status().legs[1];
            assert_eq!((leg.state, leg.name.as_deref()), (LegState::Failed, None));
            assert_eq!(write(&inner, &mirror, 5, 2).await, Status::Ok);
            mirror.settle(&inner).await.unwrap();
            drop(mirror);
            // The other one knows now that it failed, as of any that is absent.
            let mirror = open(&inner, &legs, MirrorOptions::default()).await;
            let refused = mirror.join(&inner, 1, Some(b.clone()), false).await.unwrap_err().to_string();
            assert!(refused.contains("leg 'b' holds") && refused.contains("--overwrite"), "{refused}");
            assert!(copy_of(&inner, &b).await == before, "it is not written to");
            mirror.join(&inner, 1, Some(b.clone()), true).await.unwrap();
            mirror.resync(&inner, 0).await.unwrap();
            assert_eq!((read_stable(&inner, &mirror, 5).await, mirror.status().degraded), (2, false));
        });
    }
}

#[test]
fn a_leg_that_was_cut_short_counts_as_absent() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let devices = [mem("a", 600), mem("b", 600)];
        let mirror = open(&inner, &devices.clone().map(Some), create()).await;
        assert_eq!(write(&inner, &mirror, 5, 1).await, Status::Ok);
        drop(mirror);
        for blocks in [300, 2] {
            let short = mem("b", blocks);
            put_back(&inner, &short, &copy_of(&inner, &devices[1]).await[..blocks as usize]).await;
            let legs = [Some(devices[0].clone()), Some(short)];
            let refused =
                MirrorDevice::open(&inner, "m", legs.to_vec(), &MirrorOptions::default()).await.err().unwrap();
            assert!(matches!(refused, DeviceError::TooSmall { .. }), "{refused:?}");
            let refused = refused.to_string();
            assert!(refused.contains("leg 'b'") && refused.contains("--degraded"), "{refused}");
            let copies = [Some(devices[0].clone()), legs[1].clone()];
            let whole = copy_of(&inner, &devices[0]).await;
            let mirror = open(&inner, &copies, DEGRADED).await;
            assert_eq!((read(&inner, &mirror, 5).await, mirror.legs()[1].name.clone()), (Ok(1), None));
            drop(mirror);
            put_back(&inner, &devices[0], &whole).await;
        }
    });
}

#[test]
fn what_was_read_after_a_write_failed_stays_whichever_leg_is_lost_then() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let ((last, a), (late, b)) = (faulty("a"), faulty("b"));
        let legs = [a, b];
        let mirror = open(&inner, &legs, create()).await;
        let fails = ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError));
        late.set_rules(&[fails]).unwrap();
        for lba in [7, 300] {
            assert_eq!(write(&inner, &mirror, lba, 2).await, Status::Ok);
        }
        drop(mirror);
        late.set_rules(&[]).unwrap();
        let mirror = Arc::new(open(&inner, &legs, MirrorOptions::default()).await);
        let data_start = 600 - mirror.info().blocks;
        assert_eq!(mirror.status().legs[1].state, LegState::RecoveringDirty);
        assert_eq!(mirror.status().resync_left_regions, 2);
        let (copier, reactor) = (mirror.clone(), inner.clone());
        let resync = inner.spawn_join(async move { copier.resync(&reactor, 50_000_000).await.unwrap() });
        while mirror.status().resync_left_regions == 2 {
            inner.yield_now().await;
        }
        // Its region has been copied. Now the leg that is caught up has the write, and the other one has not.
        let here = ErrorRule { lba: Lba(data_start + 7), blocks: 1, when: When::Nth(1), ..fails };
        last.set_rules(&[here]).unwrap();
        assert_eq!(write(&inner, &*mirror, 7, 3).await, Status::WriteError);
        assert_eq!(read(&inner, &*mirror, 7).await, Ok(2));
        resync.await;
        assert_eq!(mirror.status().legs[1].state, LegState::InSync);
        last.set_rules(&[fails]).unwrap();
        assert_eq!(write(&inner, &*mirror, 500, 9).await, Status::Ok);
        assert_eq!(mirror.status().legs[0].state, LegState::Failed);
        assert_eq!(read_stable(&inner, &*mirror, 7).await, 2);
    });
}
