//! What the checksum filter finds, and what a crash must not make of good blocks.

use crate::common::*;
use bdev::{
    BlockDevice, ChecksumDevice, ChecksumOptions, ErrorDevice, ErrorRule, Fault, Flags, Io, Lba, MirrorDevice,
    MirrorOptions, Op, Status, StripeDevice, When,
};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

fn create() -> ChecksumOptions {
    ChecksumOptions { create: true, ..ChecksumOptions::default() }
}

async fn open(reactor: &Rc<Reactor>, child: Arc<dyn BlockDevice>) -> ChecksumDevice {
    ChecksumDevice::open(reactor, "checksum", child, &create()).await.unwrap()
}

async fn write(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64, fill: u8) -> Status {
    let mut buf = reactor.pool().alloc(4096).await;
    buf.as_mut_slice().fill(fill);
    let mut bufs = SgList::new();
    bufs.push(buf);
    device.open_channel(reactor).unwrap().submit(Io::write(Lba(lba), 1, bufs)).await.status
}

async fn flush(reactor: &Rc<Reactor>, device: &dyn BlockDevice) {
    assert_eq!(device.open_channel(reactor).unwrap().submit(Io::flush()).await.status, Status::Ok);
}

async fn read(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64) -> Result<u8, Status> {
    let done = device.open_channel(reactor).unwrap().submit(Io::read_loan(Lba(lba), 1)).await;
    done.status.check()?;
    let bytes = done.io.bufs[0].as_slice();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixed block");
    Ok(bytes[0])
}

fn faulty(blocks: u64) -> Arc<ErrorDevice> {
    Arc::new(ErrorDevice::new("faulty", mem("m", blocks), &[], 1).unwrap())
}

fn data_start(device: &ChecksumDevice, child: &dyn BlockDevice) -> u64 {
    child.info().blocks - device.info().blocks
}

#[test]
fn checksum_conforms() {
    let reactor = reactor();
    for block_size in [512, 4096, 16_384] {
        let inner = reactor.clone();
        let device = reactor.block_on(async move { Arc::new(open(&inner, mem_of("m", block_size, 2000)).await) });
        conforms(&reactor, device.clone(), |_| {});
        assert_eq!(device.corrupt_blocks(), 0);
    }
}

#[test]
fn checksums_in_a_tiny_cache_conform() {
    let reactor = reactor();
    let inner = reactor.clone();
    let options = ChecksumOptions { cache_pages_max: 16, ..create() };
    let child = mem_of("m", 512, 4000);
    let device =
        reactor.block_on(async move { ChecksumDevice::open(&inner, "checksum", child, &options).await.unwrap() });
    conforms(&reactor, Arc::new(device), |_| {});
}

#[test]
fn checksum_over_stripe_over_files_and_mirror_over_checksums_conform() {
    let (reactor, dir) = (reactor(), disk_dir());
    let children: Vec<_> = (0..3).map(|i| file(&reactor, &dir, &format!("f{i}"), 4 << 20)).collect();
    let stripe = Arc::new(StripeDevice::new("stripe", children, 4).unwrap());
    let inner = reactor.clone();
    let device = reactor.block_on(async move { open(&inner, stripe).await });
    conforms(&reactor, Arc::new(device), |options| options.random_ops = 200);
    let inner = reactor.clone();
    let mirror = reactor.block_on(async move {
        let mut legs: Vec<Option<Arc<dyn BlockDevice>>> = Vec::new();
        for name in ["a", "b"] {
            legs.push(Some(Arc::new(open(&inner, mem(name, 700)).await)));
        }
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        MirrorDevice::open(&inner, "mirror", legs, &options).await.unwrap()
    });
    conforms(&reactor, Arc::new(mirror), |_| {});
}

#[test]
fn rot_lost_and_misdirected_writes_are_found() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = faulty(1000);
        let device = open(&inner, child.clone()).await;
        let start = data_start(&device, &*child);
        for lba in 0..100 {
            assert_eq!(write(&inner, &device, lba, lba as u8 + 1).await, Status::Ok);
        }
        let only =
            |lba: u64, op, fault| ErrorRule { lba: Lba(start + lba), blocks: 1, ..ErrorRule::always(&[op], fault) };
        // Rot, as the child reads it.
        child.set_rules(&[only(3, Op::Read, Fault::FlipBit)]).unwrap();
        assert_eq!(read(&inner, &device, 3).await, Err(Status::Corrupt));
        child.set_rules(&[]).unwrap();
        assert_eq!(read(&inner, &device, 3).await, Ok(4));
        // A write that the child forgot.
        child.set_rules(&[only(5, Op::Write, Fault::Lose)]).unwrap();
        assert_eq!(write(&inner, &device, 5, 200).await, Status::Ok);
        assert_eq!(read(&inner, &device, 5).await, Err(Status::Corrupt));
        // A write that went four blocks too far: both places are wrong.
        child.set_rules(&[only(10, Op::Write, Fault::Misdirect(4))]).unwrap();
        assert_eq!(write(&inner, &device, 10, 201).await, Status::Ok);
        assert_eq!(read(&inner, &device, 10).await, Err(Status::Corrupt));
        assert_eq!(read(&inner, &device, 14).await, Err(Status::Corrupt));
        // Verify finds it too, and writing again heals.
        let channel = device.open_channel(&inner).unwrap();
        assert_eq!(channel.submit(Io::new(Op::Verify, Lba(0), 100)).await.status, Status::Corrupt);
        child.set_rules(&[]).unwrap();
        for lba in [5, 10, 14] {
            assert_eq!(write(&inner, &device, lba, 7).await, Status::Ok);
        }
        assert_eq!(channel.submit(Io::new(Op::Verify, Lba(0), 100)).await.status, Status::Ok);
    });
}

#[test]
fn a_crash_between_announcement_and_data_leaves_the_old_block_readable() {
    let (reactor, dir) = (reactor(), tempfile::tempdir_in("/dev/shm").unwrap());
    let file = file(&reactor, &dir, "f", 4 << 20);
    let inner = reactor.clone();
    reactor.block_on(async move {
        // A file has a volatile cache: what was not flushed may be lost.
        let child = Arc::new(ErrorDevice::new("faulty", file, &[], 1).unwrap());
        let device = open(&inner, child.clone()).await;
        let start = data_start(&device, &*child);
        assert_eq!(write(&inner, &device, 5, 1).await, Status::Ok);
        flush(&inner, &device).await;
        // The power fails after the page was written: the data never arrive.
        child.set_rules(&[ErrorRule { lba: Lba(start), ..ErrorRule::always(&[Op::Write], Fault::Lose) }]).unwrap();
        assert_eq!(write(&inner, &device, 5, 2).await, Status::Ok);
        assert_eq!(write(&inner, &device, 6, 2).await, Status::Ok);
        drop(device);
        child.set_rules(&[]).unwrap();
        let device = open(&inner, child.clone()).await;
        assert_eq!(read(&inner, &device, 5).await, Ok(1));
        assert_eq!(read(&inner, &device, 6).await, Ok(0));
        // Going on from there works, and a clean end leaves nothing to guess.
        assert_eq!(write(&inner, &device, 5, 3).await, Status::Ok);
        device.settle(&inner).await.unwrap();
        drop(device);
        let device = open(&inner, child).await;
        assert_eq!(read(&inner, &device, 5).await, Ok(3));
    });
}

#[test]
fn a_failed_write_leaves_either_version_and_a_failed_announcement_the_old_one() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = faulty(1000);
        let device = open(&inner, child.clone()).await;
        let start = data_start(&device, &*child);
        assert_eq!(write(&inner, &device, 5, 1).await, Status::Ok);
        let fail = |lba, fault| ErrorRule {
            lba: Lba(lba),
            blocks: if lba == 0 { start } else { u64::MAX },
            when: When::Nth(1),
            ..ErrorRule::always(&[Op::Write], fault)
        };
        child.set_rules(&[fail(start, Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &device, 5, 2).await, Status::WriteError);
        assert_eq!(read(&inner, &device, 5).await, Ok(1));
        child.set_rules(&[fail(start, Fault::FailAfter(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &device, 5, 3).await, Status::WriteError);
        assert_eq!(read(&inner, &device, 5).await, Ok(3));
        child.set_rules(&[fail(0, Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(write(&inner, &device, 5, 4).await, Status::WriteError);
        assert_eq!(read(&inner, &device, 5).await, Ok(3));
        assert_eq!(write(&inner, &device, 5, 5).await, Status::Ok);
        assert_eq!(read(&inner, &device, 5).await, Ok(5));
        drop(device);
        assert_eq!(read(&inner, &open(&inner, child).await, 5).await, Ok(5));
    });
}

#[test]
fn a_rotten_checksum_page_makes_its_blocks_corrupt_until_they_are_written() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = faulty(2000);
        let device = open(&inner, child.clone()).await;
        for lba in [1, 600] {
            assert_eq!(write(&inner, &device, lba, 9).await, Status::Ok);
        }
        drop(device);
        let rule = ErrorRule { lba: Lba(2), blocks: 1, ..ErrorRule::always(&[Op::Read], Fault::FlipBit) };
        child.set_rules(&[rule]).unwrap();
        let device = open(&inner, child.clone()).await;
        assert_eq!(read(&inner, &device, 1).await, Err(Status::Corrupt));
        assert_eq!(read(&inner, &device, 0).await, Err(Status::Corrupt));
        assert_eq!(read(&inner, &device, 600).await, Ok(9));
        assert_eq!(write(&inner, &device, 1, 10).await, Status::Ok);
        assert_eq!(read(&inner, &device, 1).await, Ok(10));
        child.set_rules(&[]).unwrap();
        drop(device);
        let device = open(&inner, child).await;
        assert_eq!(read(&inner, &device, 1).await, Ok(10));
        assert_eq!(read(&inner, &device, 0).await, Err(Status::Corrupt));
    });
}

#[test]
fn a_mirror_over_checksums_heals_rot_on_one_leg() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let bad = faulty(700);
        let legs: Vec<Option<Arc<dyn BlockDevice>>> =
            vec![Some(Arc::new(open(&inner, bad.clone()).await)), Some(Arc::new(open(&inner, mem("b", 700)).await))];
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        let mirror = MirrorDevice::open(&inner, "mirror", legs, &options).await.unwrap();
        bad.set_rules(&[ErrorRule {
            lba: Lba(10),
            when: When::Nth(1),
            ..ErrorRule::always(&[Op::Write], Fault::FlipBit)
        }])
        .unwrap();
        assert_eq!(write(&inner, &mirror, 50, 3).await, Status::Ok);
        for _ in 0..4 {
            assert_eq!(read(&inner, &mirror, 50).await, Ok(3));
        }
        let status = mirror.status();
        assert!(status.legs[0].repairs == 1 && !status.degraded, "{status:?}");
    });
}

#[test]
fn forced_writes_and_reopening_keep_data() {
    let (reactor, dir) = (reactor(), disk_dir());
    let child = file(&reactor, &dir, "f", 8 << 20);
    let inner = reactor.clone();
    reactor.block_on(async move {
        let device = open(&inner, child.clone()).await;
        for lba in 0..150 {
            let mut buf = inner.pool().alloc(4096).await;
            buf.as_mut_slice().fill(lba as u8 | 1);
            let bufs = [buf].into_iter().collect();
            let channel = device.open_channel(&inner).unwrap();
            let io = Io { flags: Flags::FUA, ..Io::write(Lba(lba), 1, bufs) };
            assert_eq!(channel.submit(io).await.status, Status::Ok);
        }
        drop(device);
        let device = ChecksumDevice::open(&inner, "again", child, &ChecksumOptions::default()).await.unwrap();
        for lba in 0..150 {
            assert_eq!(read(&inner, &device, lba).await, Ok(lba as u8 | 1));
        }
    });
}

#[test]
fn what_was_checked_does_not_change_when_the_block_is_written_again() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let memory = mem("m", 600);
        let options = ChecksumOptions { create: true, ..ChecksumOptions::default() };
        let checksum = ChecksumDevice::open(&inner, "c", memory.clone(), &options).await.unwrap();
        for (device, keeps) in [(Arc::new(checksum) as Arc<dyn BlockDevice>, true), (memory, false)] {
            let channel = device.open_channel(&inner).unwrap();
            let write = async |fill: u8| {
                let mut buf = inner.pool().alloc(4096).await;
                buf.as_mut_slice().fill(fill);
                channel.submit(Io::write(Lba(500), 1, [buf].into_iter().collect())).await.status
            };
            assert_eq!(write(1).await, Status::Ok);
            let lent = channel.submit(Io::read_loan(Lba(500), 1)).await;
            assert_eq!(write(2).await, Status::Ok);
            assert_eq!(lent.io.bufs[0].as_slice()[4095] == 1, keeps, "memory itself lends what it has now");
        }
    });
}

#[test]
fn blocks_declared_unreadable_stay_so_and_are_no_rot() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = faulty(1000);
        let device = open(&inner, child.clone()).await;
        let start = data_start(&device, &*child);
        for lba in 0..20 {
            assert_eq!(write(&inner, &device, lba, lba as u8 + 1).await, Status::Ok);
        }
        let spoil = async |device: &ChecksumDevice, lba, nblocks| {
            let io = Io::new(Op::WriteUncorrectable, Lba(lba), nblocks);
            device.open_channel(&inner).unwrap().submit(io).await.status
        };
        assert_eq!(spoil(&device, 5, 10).await, Status::Ok);
        assert_eq!(read(&inner, &device, 5).await, Err(Status::ReadError));
        drop(device);
        let device = open(&inner, child.clone()).await;
        for lba in 0..20 {
            let expected = if (5..15).contains(&lba) { Err(Status::ReadError) } else { Ok(lba as u8 + 1) };
            assert_eq!(read(&inner, &device, lba).await, expected, "block {lba}");
        }
        // A write that a loss of power cuts off behind its announcement leaves the block as it was: unreadable, and no rot.
        let only =
            |lba: u64, op, fault| ErrorRule { lba: Lba(start + lba), blocks: 1, ..ErrorRule::always(&[op], fault) };
        let fails = |lba| only(lba, Op::Write, Fault::Fail(Status::WriteError));
        child.set_rules(&[fails(6), fails(7)]).unwrap();
        for lba in [6, 7] {
            assert_eq!(write(&inner, &device, lba, 200).await, Status::WriteError);
            assert_eq!(read(&inner, &device, lba).await, Err(Status::ReadError));
        }
        assert_eq!(device.corrupt_blocks(), 0);
        child.set_rules(&[]).unwrap();
        drop(device);
        let device = open(&inner, child.clone()).await;
        for lba in [6, 7] {
            assert_eq!(read(&inner, &device, lba).await, Err(Status::ReadError), "block {lba}");
        }
        assert_eq!(device.corrupt_blocks(), 0);
        assert_eq!(write(&inner, &device, 6, 201).await, Status::Ok);
        assert_eq!(read(&inner, &device, 6).await, Ok(201));
        // Rot beside it, and in it, is told.
        child.set_rules(&[only(4, Op::Read, Fault::FlipBit), only(8, Op::Read, Fault::FlipBit)]).unwrap();
        for lba in [4, 8] {
            assert_eq!(read(&inner, &device, lba).await, Err(Status::Corrupt), "block {lba}");
        }
        child.set_rules(&[]).unwrap();
        // What is written again as it was can be read again, after a reload too; so can zeroes where there was nothing.
        assert_eq!(spoil(&device, 10, 2).await, Status::Ok);
        assert_eq!(spoil(&device, 700, 1).await, Status::Ok);
        for (lba, fill) in [(10, 11), (11, 12), (700, 0)] {
            assert_eq!(write(&inner, &device, lba, fill).await, Status::Ok);
            assert_eq!(read(&inner, &device, lba).await, Ok(fill));
        }
        drop(device);
        let device = open(&inner, child.clone()).await;
        for (lba, fill) in [(10, 11), (11, 12), (700, 0)] {
            assert_eq!(read(&inner, &device, lba).await, Ok(fill), "block {lba}");
        }
        // A page that cannot be written: not done, and said so.
        child.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(spoil(&device, 0, 2).await, Status::WriteError);
        child.set_rules(&[]).unwrap();
        assert_eq!(write(&inner, &device, 0, 9).await, Status::Ok);
        assert_eq!(read(&inner, &device, 0).await, Ok(9));
    });
}
