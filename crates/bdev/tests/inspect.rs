//! Devices that are only looked at: they read as in use, and no medium below them is written.

use crate::common::*;
use bdev::flash_cache::Mode;
use bdev::{
    BlockDevice, Built, ChecksumOptions, DeviceSpec, EncryptOptions, FlashCacheOptions, Io, KEPT_BYTES_MAX, Lba,
    LegState, MemberState, MirrorOptions, Op, OpenFor, OverlayDevice, ParityOptions, ReadOnlyDevice, Status, UserKey,
    ZoneBandsOptions, ZonedOptions, build, build_for, inspected,
};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

type Device = Arc<dyn BlockDevice>;

fn run(test: impl AsyncFnOnce(Rc<Reactor>) + 'static) {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move { test(inner).await });
}

async fn write(reactor: &Rc<Reactor>, device: &Device, lba: u64, blocks: u64, fill: u8) -> Status {
    let channel = device.open_channel(reactor).unwrap();
    let bufs = SgList::from_iter([Buf::from_vec(vec![fill; blocks as usize * 4096])]);
    channel.submit(Io::write(Lba(lba), blocks as u32, bufs)).await.status
}

/// The first byte of each block; of several reads, since there may be several places to read from.
async fn read(reactor: &Rc<Reactor>, device: &Device, lba: u64, blocks: u64) -> Vec<u8> {
    let channel = device.open_channel(reactor).unwrap();
    let mut seen: Option<Vec<u8>> = None;
    for _ in 0..4 {
        let bufs = SgList::from_iter([Buf::from_vec(vec![0xee; blocks as usize * 4096])]);
        let done = channel.submit(Io::read(Lba(lba), blocks as u32, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        let found = done.io.bufs[0].as_slice().chunks(4096).map(|block| block[0]).collect();
        assert!(seen.is_none_or(|seen| seen == found), "block {lba}: reads differ");
        seen = Some(found);
    }
    seen.unwrap()
}

/// What is on media.
async fn copies(reactor: &Rc<Reactor>, media: &[Device]) -> Vec<Vec<Vec<u8>>> {
    let mut copies = Vec::new();
    for medium in media {
        copies.push(copy_of(reactor, medium).await);
    }
    copies
}

fn present(media: &[Device]) -> Vec<Option<Device>> {
    media.iter().cloned().map(Some).collect()
}

/// A device on media that are looked at, some of which may be away.
async fn look(reactor: &Rc<Reactor>, spec: &DeviceSpec, media: &[Device], away: Option<usize>) -> Built {
    let below = media.iter().enumerate().map(|(index, medium)| {
        let is_here = away != Some(index);
        is_here.then(|| inspected(medium.clone()))
    });
    build_for(OpenFor::Inspect, reactor, "device", spec, below.collect()).await.unwrap()
}

#[test]
fn an_overlay_conforms_and_its_child_sees_none_of_it() {
    let reactor = reactor();
    for block_size in [512, 4096] {
        let child = mem_of("child", block_size, 1000);
        let inner = (reactor.clone(), child.clone());
        let before = reactor.block_on(async move { copy_of(&inner.0, &inner.1).await });
        let overlay = Arc::new(OverlayDevice::new(child.clone()));
        conforms(&reactor, overlay.clone(), |_| {});
        assert!(overlay.kept_bytes() > 0);
        let inner = (reactor.clone(), child);
        let after = reactor.block_on(async move { copy_of(&inner.0, &inner.1).await });
        assert!(before == after);
    }
}

#[test]
fn an_overlay_takes_memory_for_what_differs_and_no_more_than_it_may() {
    run(async |reactor| {
        let child = mem("child", 3 * KEPT_BYTES_MAX / 4096);
        assert_eq!(write(&reactor, &child, 3, 2, 7).await, Status::Ok);
        let overlay = Arc::new(OverlayDevice::new(child.clone()));
        let device: Device = overlay.clone();
        assert_eq!(write(&reactor, &device, 0, 3, 0).await, Status::Ok);
        assert_eq!(write(&reactor, &device, 3, 2, 7).await, Status::Ok);
        assert_eq!(overlay.kept_bytes(), 0, "what is there is kept once");
        assert_eq!(write(&reactor, &device, 4, 2, 9).await, Status::Ok);
        assert_eq!(read(&reactor, &device, 2, 5).await, [0, 7, 9, 9, 0]);
        assert_eq!((read(&reactor, &child, 2, 5).await, overlay.kept_bytes()), (vec![0, 7, 7, 0, 0], 2 * 4096));
        assert_eq!(write(&reactor, &device, 4, 1, 7).await, Status::Ok);
        assert_eq!((read(&reactor, &device, 2, 4).await, overlay.kept_bytes()), (vec![0, 7, 7, 9], 4096));
        let (mut lba, mut full) = (16, Status::Ok);
        while full.is_ok() {
            full = write(&reactor, &device, lba, 256, 1).await;
            lba += 256;
        }
        assert_eq!((full, overlay.kept_bytes()), (Status::NoSpace, KEPT_BYTES_MAX));
        assert_eq!(write(&reactor, &device, 5, 1, 8).await, Status::Ok, "there is room for what is kept already");
        assert_eq!(read(&reactor, &device, 4, 3).await, [7, 8, 0]);
        let channel = device.open_channel(&reactor).unwrap();
        assert_eq!(channel.submit(Io::new(Op::Unmap, Lba(0), 1)).await.status, Status::Unsupported);
    });
}

#[test]
fn a_read_only_device_reads_and_refuses_whatever_changes_it() {
    run(async |reactor| {
        let child = mem("child", 100);
        assert_eq!(write(&reactor, &child, 3, 2, 7).await, Status::Ok);
        let device: Device = Arc::new(ReadOnlyDevice::new(child.clone()));
        assert_eq!((device.name(), device.kind()), ("child", "read-only"));
        assert_eq!(write(&reactor, &device, 3, 1, 8).await, Status::ReadOnly);
        let channel = device.open_channel(&reactor).unwrap();
        for op in [Op::Unmap, Op::WriteZeroes] {
            assert_eq!(channel.submit(Io::new(op, Lba(3), 1)).await.status, Status::ReadOnly, "{op:?}");
        }
        assert_eq!(channel.submit(Io::flush()).await.status, Status::Ok);
        assert_eq!(read(&reactor, &device, 2, 4).await, [0, 7, 7, 0]);
    });
}

#[test]
fn a_mirror_that_is_looked_at_after_a_crash_reads_one_thing_and_stays_as_it_is() {
    run(async |reactor| {
        let media = [mem("a", 600), mem("b", 600), mem("c", 600)];
        let options = MirrorOptions { create: true, region_bytes: 64 << 10, ..MirrorOptions::default() };
        let spec = DeviceSpec::Mirror(options);
        let Built::Mirror(mirror) = build(&reactor, "device", &spec, present(&media)).await.unwrap() else { panic!() };
        mirror.resync(&reactor, 0).await.unwrap();
        let device: Device = mirror;
        for lba in 0..8 {
            assert_eq!(write(&reactor, &device, lba * 40, 4, lba as u8 + 1).await, Status::Ok);
        }
        // A crash in the midst of a write: not all legs have it.
        let start = 600 - device.info().blocks;
        drop(device);
        assert_eq!(write(&reactor, &media[1], start + 40, 2, 99).await, Status::Ok);
        let before = copies(&reactor, &media).await;
        for away in [None, Some(0), Some(1)] {
            let Built::Mirror(mirror) = look(&reactor, &spec, &media, away).await else { panic!() };
            let expected = |leg| if away == Some(leg) { LegState::Failed } else { LegState::InSync };
            let states: Vec<_> = mirror.legs().iter().map(|leg| leg.state).collect();
            assert_eq!(states, [0, 1, 2].map(expected));
            let device: Device = mirror;
            for lba in (0..8).filter(|lba| *lba != 1) {
                assert_eq!(read(&reactor, &device, lba * 40, 4).await, [lba as u8 + 1; 4]);
            }
            let torn = read(&reactor, &device, 40, 4).await;
            assert!(torn == [2; 4] || torn == [99, 99, 2, 2], "{torn:?}");
            for version in 1..=2 {
                let bufs = SgList::from_iter([Buf::from_vec(vec![0; 4096])]);
                let channel = device.open_channel(&reactor).unwrap();
                let done = channel.submit(Io::read_version(Lba(40), 1, version, bufs)).await;
                assert_eq!((done.status, done.io.bufs[0].as_slice()[0]), (Status::Ok, torn[0]), "what was read stays");
            }
            drop(device);
            assert!(before == copies(&reactor, &media).await, "written without {away:?}");
        }
        let Built::Mirror(mirror) = build(&reactor, "device", &spec, present(&media)).await.unwrap() else { panic!() };
        assert!(mirror.legs().iter().all(|leg| leg.state == LegState::InSync));
        assert!(mirror.status().dirty_regions > 0, "what a crash left is still to be copied");
    });
}

#[test]
fn a_parity_device_that_is_looked_at_computes_what_is_away_and_keeps_its_members() {
    run(async |reactor| {
        for clean in [true, false] {
            let media: Vec<Device> = (0..4).map(|n| mem(&format!("m{n}"), 200)).collect();
            let options =
                ParityOptions { create: true, chunk_bytes: 8 << 10, head_bytes: 64 << 10, ..ParityOptions::default() };
            let spec = DeviceSpec::Parity(options);
            let built = build(&reactor, "device", &spec, present(&media)).await.unwrap();
            let device = built.device();
            let rows = device.info().rows.unwrap();
            let (start, row) = (rows.start, u64::from(rows.blocks));
            for lba in 0..start {
                assert_eq!(write(&reactor, &device, lba, 1, lba as u8).await, Status::Ok);
            }
            for nth in 0..10 {
                assert_eq!(write(&reactor, &device, start + nth * row, row, 100 + nth as u8).await, Status::Ok);
            }
            if clean {
                built.settle(&reactor).await.unwrap();
            }
            drop((built, device));
            let before = copies(&reactor, &media).await;
            for away in [None, Some(0), Some(1), Some(2), Some(3)] {
                let Built::Parity(parity) = look(&reactor, &spec, &media, away).await else { panic!() };
                let expected = |n| if away == Some(n) { MemberState::Failed } else { MemberState::InSync };
                let states: Vec<_> = parity.members().iter().map(|member| member.state).collect();
                assert_eq!(states, [0, 1, 2, 3].map(expected));
                let device: Device = parity.clone();
                for lba in 0..start {
                    assert_eq!(read(&reactor, &device, lba, 1).await, [lba as u8]);
                }
                for nth in 0..10 {
                    let found = read(&reactor, &device, start + nth * row, row).await;
                    assert_eq!(found, vec![100 + nth as u8; row as usize]);
                }
                drop(device);
                parity.close(&reactor).await.unwrap();
                drop(parity);
                assert!(before == copies(&reactor, &media).await, "written without {away:?}");
            }
            let Built::Parity(parity) = build(&reactor, "device", &spec, present(&media)).await.unwrap() else {
                panic!()
            };
            assert!(!parity.status().degraded);
        }
    });
}

#[test]
fn heads_that_differ_after_a_crash_are_compared_in_memory_alone() {
    run(async |reactor| {
        let media: Vec<Device> = (0..3).map(|n| mem(&format!("m{n}"), 400)).collect();
        let options = ParityOptions { create: true, head_bytes: 64 << 10, ..ParityOptions::default() };
        let spec = DeviceSpec::Parity(options);
        let device = build(&reactor, "device", &spec, present(&media)).await.unwrap().device();
        assert_eq!(write(&reactor, &device, 5, 1, 50).await, Status::Ok);
        let info = device.info();
        drop(device);
        // Where block 5 of the head is on a member.
        let at = copy_of(&reactor, &media[0]).await.iter().position(|block| block[0] == 50 && block[4095] == 50);
        assert!(info.rows.unwrap().start == 16 && at.is_some());
        assert_eq!(write(&reactor, &media[2], at.unwrap() as u64, 1, 51).await, Status::Ok);
        let before = copies(&reactor, &media).await;
        let device = look(&reactor, &spec, &media, None).await.device();
        let found = read(&reactor, &device, 4, 3).await;
        assert_eq!(found, [0, 50, 0]);
        drop(device);
        assert!(before == copies(&reactor, &media).await);
        // In use they are made equal.
        let device = build(&reactor, "device", &spec, present(&media)).await.unwrap().device();
        assert_eq!(read(&reactor, &device, 4, 3).await, [0, 50, 0]);
        assert_eq!(copy_of(&reactor, &media[2]).await[at.unwrap()][0], 50);
    });
}

#[test]
fn a_flash_cache_that_is_looked_at_reads_right_bytes_and_keeps_what_it_has() {
    run(async |reactor| {
        for clean in [true, false] {
            let media = [mem("slow", 2000), mem("flash", 600)];
            let options = FlashCacheOptions {
                create: true,
                write_budget: 1 << 60,
                segment_bytes: 64 << 10,
                ..FlashCacheOptions::default()
            };
            let spec = DeviceSpec::FlashCache(options);
            let built = build(&reactor, "device", &spec, present(&media)).await.unwrap();
            let device = built.device();
            reactor.sleep_ns(1_000_000).await;
            for lba in 0..200 {
                assert_eq!(write(&reactor, &device, lba, 1, lba as u8).await, Status::Ok);
            }
            for lba in 0..100 {
                assert_eq!(read(&reactor, &device, lba, 1).await, [lba as u8]);
                reactor.sleep_ns(20_000).await;
            }
            reactor.sleep_ns(5_000_000).await;
            if clean {
                built.settle(&reactor).await.unwrap();
            }
            drop((built, device));
            let before = copies(&reactor, &media).await;
            for away in [Some(1), None] {
                let Built::FlashCache(cache) = look(&reactor, &spec, &media, away).await else { panic!() };
                let device: Device = cache.clone();
                for lba in 0..200 {
                    assert_eq!(read(&reactor, &device, lba, 1).await, [lba as u8]);
                }
                drop(device);
                let status = cache.status(reactor.now_ns());
                let mode = if away.is_some() { Mode::Absent } else { Mode::On };
                assert_eq!((status.mode, status.counts.admitted), (mode, 0));
                assert_eq!(status.counts.hits > 0, away.is_none());
                drop(cache);
                reactor.sleep_ns(5_000_000).await;
                assert!(before == copies(&reactor, &media).await, "written without {away:?}");
            }
            let Built::FlashCache(cache) = build(&reactor, "device", &spec, present(&media)).await.unwrap() else {
                panic!()
            };
            assert!(cache.status(reactor.now_ns()).cached_blocks > 30);
        }
    });
}

#[test]
fn zones_headers_and_checksums_are_looked_at_without_being_repaired() {
    run(async |reactor| {
        let media = [mem("head", 64), mem("below", 200)];
        let zones = ZonedOptions { create: true, zone_bytes: 64 << 10, ..ZonedOptions::default() };
        let (zones, bands) = (
            DeviceSpec::Zoned(zones),
            DeviceSpec::ZoneBands(ZoneBandsOptions { create: true, ..ZoneBandsOptions::default() }),
        );
        let zoned = build(&reactor, "zoned", &zones, vec![Some(media[1].clone())]).await.unwrap();
        let below = vec![Some(media[0].clone()), Some(zoned.device())];
        let device = build(&reactor, "bands", &bands, below).await.unwrap().device();
        let rows = device.info().rows.unwrap();
        assert_eq!(write(&reactor, &device, 1, 2, 5).await, Status::Ok);
        assert_eq!(write(&reactor, &device, rows.start, u64::from(rows.blocks) * 3, 6).await, Status::Ok);
        zoned.settle(&reactor).await.unwrap();
        drop((zoned, device));
        // One copy of what the zones are is torn.
        assert_eq!(write(&reactor, &media[1], 0, 1, 0x55).await, Status::Ok);
        let before = copies(&reactor, &media).await;
        let below = vec![Some(inspected(media[1].clone()))];
        let zoned = build_for(OpenFor::Inspect, &reactor, "zoned", &zones, below).await.unwrap().device();
        let below = vec![Some(inspected(media[0].clone())), Some(zoned)];
        let device = build_for(OpenFor::Inspect, &reactor, "bands", &bands, below).await.unwrap().device();
        assert_eq!(read(&reactor, &device, 0, 4).await, [0, 5, 5, 0]);
        assert_eq!(read(&reactor, &device, rows.start, 3).await, [6; 3]);
        drop(device);
        assert!(before == copies(&reactor, &media).await);

        let (key, options) =
            (UserKey::from_bytes(&[1; 32]).unwrap(), EncryptOptions { create: true, ..EncryptOptions::default() });
        let checksum = ChecksumOptions { create: true, ..ChecksumOptions::default() };
        for spec in [DeviceSpec::Encrypt { key, options }, DeviceSpec::Checksum(checksum)] {
            let media = [mem("child", 300)];
            let built = build(&reactor, "device", &spec, present(&media)).await.unwrap();
            assert_eq!(write(&reactor, &built.device(), 7, 2, 5).await, Status::Ok);
            built.settle(&reactor).await.unwrap();
            drop(built);
            assert_eq!(write(&reactor, &media[0], 0, 1, 0x55).await, Status::Ok);
            let before = copies(&reactor, &media).await;
            let device = look(&reactor, &spec, &media, None).await.device();
            assert_eq!(read(&reactor, &device, 6, 4).await[1..3], [5; 2]);
            drop(device);
            assert!(before == copies(&reactor, &media).await);
        }
    });
}

#[test]
fn a_file_that_is_looked_at_is_opened_for_reading_alone() {
    run(async |reactor| {
        let dir = disk_dir();
        let options = file_options(&dir, "file", 1 << 20);
        drop(build(&reactor, "file", &DeviceSpec::File(options.clone()), Vec::new()).await.unwrap());
        // The reactor lets go of it in its next turn.
        reactor.sleep_ns(1_000_000).await;
        let device = build_for(OpenFor::Inspect, &reactor, "file", &DeviceSpec::File(options), Vec::new()).await;
        let device = device.unwrap().device();
        assert_eq!(device.kind(), "overlay");
        let file = device.children().remove(0);
        assert_eq!(write(&reactor, &file, 0, 1, 1).await, Status::ReadOnly);
        assert_eq!(write(&reactor, &device, 0, 1, 1).await, Status::Ok);
        assert_eq!((read(&reactor, &device, 0, 2).await, read(&reactor, &file, 0, 2).await), (vec![1, 0], vec![0; 2]));
        let missing = file_options(&dir, "nowhere", 1 << 20);
        assert!(build_for(OpenFor::Inspect, &reactor, "file", &DeviceSpec::File(missing), Vec::new()).await.is_err());
        assert!(!dir.path().join("nowhere").exists(), "nothing is made");
    });
}
