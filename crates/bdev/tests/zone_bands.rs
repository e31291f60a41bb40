//! What a zone-bands device promises to a pool: order, limits, and zones that fail alone.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, ErrorDevice, ErrorRule, Fault, Io, Lba, Op, Status, When, Zone, ZoneBandsDefect,
    ZoneBandsDevice, ZoneBandsOptions, ZoneState, ZonedDevice, ZonedOptions,
};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Blocks from one zone to the next.
const SIZE: u64 = 16;
/// Blocks of a zone.
const ZONE: u64 = 12;
/// Zones of the zoned device, that of the label included.
const ZONES: u64 = 8;
/// Blocks in front of the zones.
const HEAD: u64 = 62;

/// The media, which stay when devices are opened anew.
struct Media {
    head: Arc<dyn BlockDevice>,
    below: Arc<dyn BlockDevice>,
    errors: Arc<ErrorDevice>,
    active_max: u32,
}

struct Opened {
    zoned: Arc<ZonedDevice>,
    device: Arc<ZoneBandsDevice>,
    channel: Rc<dyn Channel>,
}

impl Media {
    fn new(active_max: u32) -> Media {
        let errors = Arc::new(ErrorDevice::new("errors", mem("below", 4 + ZONES * ZONE), &[], 1).unwrap());
        Media { head: mem("head", 64), below: errors.clone(), errors, active_max }
    }

    async fn zoned(&self, reactor: &Rc<Reactor>) -> Arc<ZonedDevice> {
        let options = ZonedOptions {
            create: true,
            zone_bytes: SIZE * 4096,
            capacity_bytes: ZONE * 4096,
            active_zones_max: self.active_max,
            ..ZonedOptions::default()
        };
        Arc::new(ZonedDevice::open(reactor, "zoned", self.below.clone(), &options).await.unwrap())
    }

    async fn try_open(&self, reactor: &Rc<Reactor>, options: &ZoneBandsOptions) -> Result<Opened, String> {
        let zoned = self.zoned(reactor).await;
        let opened = ZoneBandsDevice::open(reactor, "bands", self.head.clone(), zoned.clone(), options).await;
        let device = Arc::new(opened.map_err(|error| error.to_string())?);
        let channel = device.open_channel(reactor).unwrap();
        Ok(Opened { zoned, device, channel })
    }

    async fn open(&self, reactor: &Rc<Reactor>) -> Opened {
        self.try_open(reactor, &CREATE).await.unwrap()
    }
}

const CREATE: ZoneBandsOptions = ZoneBandsOptions { create: true, force: false, defect: None };

fn data(fill: u8, blocks: u64) -> SgList {
    SgList::from_iter([Buf::from_vec(vec![fill; blocks as usize * 4096])])
}

/// First block of a zone.
fn start(zone: u64) -> u64 {
    HEAD + zone * ZONE
}

fn write_of(lba: u64, blocks: u64, fill: u8) -> Io {
    Io::write(Lba(lba), blocks as u32, data(fill, blocks))
}

impl Opened {
    async fn status(&self, io: Io) -> Status {
        self.channel.submit(io).await.status
    }

    /// Beside others.
    fn submit(&self, reactor: &Rc<Reactor>, io: Io) -> impl Future<Output = Status> + use<> {
        let channel = self.channel.clone();
        reactor.spawn_join(async move { channel.submit(io).await.status })
    }

    async fn write(&self, lba: u64, blocks: u64, fill: u8) -> Status {
        self.status(write_of(lba, blocks, fill)).await
    }

    async fn reset(&self, zone: u64) -> Status {
        self.status(Io::new(Op::Unmap, Lba(start(zone)), ZONE as u32)).await
    }

    async fn finish(&self, zone: u64) -> Status {
        self.status(Io::new(Op::ZoneFinish, Lba(start(zone)), 0)).await
    }

    async fn read(&self, lba: u64, blocks: u64) -> Result<Vec<u8>, Status> {
        let done = self.channel.submit(Io::read(Lba(lba), blocks as u32, data(0xEE, blocks))).await;
        done.status.check()?;
        let mut bytes = vec![0; blocks as usize * 4096];
        reactor::buf::sg_copy_to(&done.io.bufs, &mut bytes);
        Ok(bytes.chunks(4096).map(|block| block[0]).collect())
    }

    async fn zone(&self, zone: u64) -> Zone {
        let bufs = SgList::from_iter([Buf::from_vec(vec![0; bdev::ZONE_RECORD_BYTES])]);
        let done = self.channel.submit(Io { bufs, ..Io::new(Op::ZoneReport, Lba(start(zone)), 1) }).await;
        assert_eq!(done.status, Status::Ok);
        Zone::load_report(&done.io.bufs).unwrap()[0]
    }
}

macro_rules! on_reactor {
    (|$inner:ident| $body:block) => {{
        let reactor = reactor();
        let $inner = reactor.clone();
        reactor.block_on(async move { $body });
    }};
}

#[test]
fn the_head_is_written_in_place_and_zones_follow_it_without_gaps() {
    on_reactor!(|inner| {
        let media = Media::new(0);
        let bands = media.open(&inner).await;
        let info = bands.device.info();
        let rows = info.rows.unwrap();
        assert_eq!((info.blocks, rows.start, rows.blocks), (HEAD + (ZONES - 1) * ZONE, HEAD, 1));
        assert_eq!((rows.zones.unwrap().blocks, rows.zones.unwrap().open_max), (ZONE, 0));
        for fill in 1..4 {
            assert_eq!(bands.write(HEAD - 3, 3, fill).await, Status::Ok);
        }
        assert_eq!(bands.write(start(0), ZONE, 5).await, Status::Ok);
        assert_eq!(bands.write(start(1), 2, 6).await, Status::Ok);
        let expected = [vec![3; 2], vec![5; ZONE as usize], vec![6; 2], vec![0; 3]].concat();
        assert_eq!(bands.read(HEAD - 2, ZONE + 7).await, Ok(expected));
        assert_eq!(bands.zone(0).await.state, ZoneState::Full);
        assert_eq!(bands.zone(1).await.write_pointer, start(1) + 2);
        for io in [
            write_of(HEAD - 1, 2, 1),
            write_of(start(2) - 1, 2, 1),
            Io::new(Op::Unmap, Lba(start(0)), ZONE as u32 - 1),
            Io::new(Op::Unmap, Lba(start(0) + 1), ZONE as u32),
            Io::new(Op::Unmap, Lba(0), 1),
            Io::new(Op::ZoneFinish, Lba(start(0) + 1), 0),
            Io::new(Op::ZoneFinish, Lba(0), 0),
        ] {
            assert_eq!(bands.status(io).await, Status::Invalid);
        }
    });
}

#[test]
fn writes_wait_for_those_before_them_whatever_the_order_they_come_in() {
    on_reactor!(|inner| {
        let bands = Media::new(0).open(&inner).await;
        let order = [8, 2, 0, 6, 10, 4];
        let write = |at: u64| bands.submit(&inner, write_of(start(3) + at, 2, at as u8 + 1));
        for write in order.map(write) {
            assert_eq!(write.await, Status::Ok);
        }
        let expected = (0..ZONE).map(|at| (at / 2 * 2) as u8 + 1).collect();
        assert_eq!(bands.read(start(3), ZONE).await, Ok(expected));
        assert_eq!(bands.device.status().misplaced_writes, 0);
    });
}

#[test]
fn a_write_that_does_not_wait_is_refused_by_the_drive_and_counted() {
    on_reactor!(|inner| {
        let options = ZoneBandsOptions { defect: Some(ZoneBandsDefect::WriteAhead), ..CREATE };
        let bands = Media::new(0).try_open(&inner, &options).await.unwrap();
        let (late, early) = (write_of(start(0) + 1, 1, 1), write_of(start(0), 1, 1));
        let (late, early) = (bands.channel.submit(late), bands.channel.submit(early));
        assert_eq!((late.await.status, early.await.status), (Status::WriteError, Status::Ok));
        assert_eq!(bands.device.status().misplaced_writes, 1);
    });
}

#[test]
fn when_a_write_fails_those_behind_it_fail_until_the_zone_is_reset() {
    on_reactor!(|inner| {
        let media = Media::new(0);
        let bands = media.open(&inner).await;
        assert_eq!(bands.write(start(0), 2, 1).await, Status::Ok);
        let rule = ErrorRule { when: When::Nth(1), ..ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError)) };
        media.errors.set_rules(&[rule]).unwrap();
        let write = |nth: u64| bands.submit(&inner, write_of(start(0) + 2 + nth * 2, 2, 7));
        for write in [0, 1, 2].map(write) {
            assert_eq!(write.await, Status::WriteError);
        }
        media.errors.set_rules(&[]).unwrap();
        assert_eq!(bands.zone(0).await.write_pointer, start(0) + 2);
        assert_eq!(bands.write(start(0) + 2, 2, 9).await, Status::WriteError);
        assert_eq!(bands.read(start(0), 4).await, Ok(vec![1, 1, 0, 0]));
        assert_eq!(bands.reset(0).await, Status::Ok);
        assert_eq!(bands.write(start(0), 2, 9).await, Status::Ok);
        assert_eq!(bands.read(start(0), 4).await, Ok(vec![9, 9, 0, 0]));
        assert_eq!(bands.device.status().misplaced_writes, 0);
    });
}

#[test]
fn a_gap_that_nobody_fills_ends_the_write_behind_it() {
    on_reactor!(|inner| {
        let bands = Media::new(0).open(&inner).await;
        let late = bands.submit(&inner, write_of(start(0) + 1, 1, 1));
        inner.sleep_ns(1_000_000).await;
        assert_eq!(bands.finish(0).await, Status::Ok);
        assert_eq!(late.await, Status::WriteError);
        assert_eq!(bands.zone(0).await.state, ZoneState::Full);
        assert_eq!(bands.write(start(0), 1, 1).await, Status::WriteError);
        assert_eq!(bands.reset(0).await, Status::Ok);
        assert_eq!(bands.write(start(0), 1, 1).await, Status::Ok);
    });
}

#[test]
fn a_zone_is_written_again_when_it_has_been_reset_and_an_empty_one_is_left_alone() {
    on_reactor!(|inner| {
        let media = Media::new(0);
        let bands = media.open(&inner).await;
        assert_eq!(bands.write(start(2), ZONE, 1).await, Status::Ok);
        assert_eq!(bands.write(start(2), 1, 2).await, Status::WriteError);
        assert_eq!(bands.device.status().misplaced_writes, 1);
        assert_eq!(bands.reset(2).await, Status::Ok);
        assert_eq!(bands.read(start(2), 2).await, Ok(vec![0, 0]));
        assert_eq!(bands.write(start(2), 1, 3).await, Status::Ok);
        assert_eq!(bands.read(start(2), 2).await, Ok(vec![3, 0]));
        assert_eq!(bands.status(Io::flush()).await, Status::Ok);
        media.errors.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(bands.reset(3).await, Status::Ok, "an empty zone needs nothing");
        assert_eq!(bands.reset(2).await, Status::WriteError);
    });
}

#[test]
fn no_more_zones_are_written_than_may_be_and_one_that_is_given_up_makes_room() {
    on_reactor!(|inner| {
        let bands = Media::new(2).open(&inner).await;
        assert_eq!(bands.write(start(0), 1, 1).await, Status::Ok);
        assert_eq!(bands.write(start(1), 1, 1).await, Status::Ok);
        let third = bands.submit(&inner, write_of(start(2), 1, 1));
        let fourth = bands.submit(&inner, write_of(start(3), 1, 1));
        inner.sleep_ns(1_000_000).await;
        assert_eq!((bands.device.status().open, bands.device.status().empty), (2, ZONES - 3));
        assert_eq!(bands.finish(0).await, Status::Ok);
        assert_eq!(bands.reset(1).await, Status::Ok);
        assert_eq!((third.await, fourth.await), (Status::Ok, Status::Ok));
        let status = bands.device.status();
        assert_eq!((status.open, status.full, status.open_max, status.misplaced_writes), (2, 1, 2, 0));
    });
}

#[test]
fn zones_that_go_away_end_their_own_writes_and_reads_alone() {
    on_reactor!(|inner| {
        let media = Media::new(0);
        let bands = media.open(&inner).await;
        for zone in 0..2 {
            assert_eq!(bands.write(start(zone), 4, 1).await, Status::Ok);
        }
        // Zone 0 of the device is zone 1 of the drive, whose first one has the label.
        let wait = Duration::from_secs(1);
        bands.zoned.retire(&inner, 1, ZoneState::ReadOnly, wait).await.unwrap();
        bands.zoned.retire(&inner, 2, ZoneState::Offline, wait).await.unwrap();
        for zone in 0..2 {
            assert_eq!(bands.write(start(zone) + 4, 1, 1).await, Status::WriteError);
            assert_eq!(bands.reset(zone).await, Status::WriteError);
            assert_eq!(bands.finish(zone).await, Status::Ok);
        }
        assert_eq!(bands.read(start(0), 4).await, Ok(vec![1; 4]));
        assert_eq!(bands.read(start(1), 4).await, Err(Status::ReadError));
        assert_eq!(bands.read(start(0) + 8, 8).await, Err(Status::ReadError));
        // Of one that goes while nobody writes to it, a flush learns.
        bands.zoned.retire(&inner, 4, ZoneState::Offline, wait).await.unwrap();
        assert_eq!(bands.status(Io::flush()).await, Status::Ok);
        let status = bands.device.status();
        assert_eq!((status.read_only, status.offline, status.misplaced_writes), (1, 2, 0));
        // Without the zone of the label it goes on by that of the head.
        bands.zoned.retire(&inner, 0, ZoneState::Offline, wait).await.unwrap();
        drop(bands);
        let bands = media.open(&inner).await;
        assert_eq!(bands.read(start(0), 4).await, Ok(vec![1; 4]));
    });
}

#[test]
fn what_was_flushed_is_there_after_a_restart_and_zones_go_on_where_they_were() {
    on_reactor!(|inner| {
        let media = Media::new(0);
        let bands = media.open(&inner).await;
        assert_eq!(bands.write(7, 2, 3).await, Status::Ok);
        assert_eq!(bands.write(start(5), 3, 4).await, Status::Ok);
        assert_eq!(bands.status(Io::flush()).await, Status::Ok);
        assert_eq!(bands.write(start(5) + 3, 3, 5).await, Status::Ok);
        drop(bands);
        let bands = media.open(&inner).await;
        assert_eq!(bands.read(7, 2).await, Ok(vec![3, 3]));
        assert_eq!(bands.read(start(5), 4).await, Ok(vec![4, 4, 4, 0]));
        assert_eq!(bands.zone(5).await.write_pointer, start(5) + 3);
        assert_eq!(bands.write(start(5) + 3, 1, 6).await, Status::Ok);
        assert_eq!(bands.read(start(5), 4).await, Ok(vec![4, 4, 4, 6]));
    });
}

#[test]
fn parts_that_do_not_belong_together_are_refused_by_both_names() {
    on_reactor!(|inner| {
        let (one, other) = (Media::new(0), Media::new(0));
        drop((one.open(&inner).await, other.open(&inner).await));
        let mixed = |head: &Media, zones: &Media| {
            let (below, errors) = (zones.below.clone(), zones.errors.clone());
            Media { head: head.head.clone(), below, errors, active_max: 0 }
        };
        let refusal = async |media: &Media, options: &ZoneBandsOptions| match media.try_open(&inner, options).await {
            Ok(_) => panic!("it opened"),
            Err(error) => error,
        };
        let plain = ZoneBandsOptions::default();
        let fresh = Media::new(0);
        for (media, words) in [
            (mixed(&one, &other), ["'head' belongs to device", "'zoned' to"]),
            (mixed(&one, &fresh), ["'head' belongs to device", "'zoned' has no label of it"]),
            (mixed(&fresh, &one), ["'zoned' belongs to device", "'head' has no label of it"]),
        ] {
            let why = refusal(&media, &CREATE).await;
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
        let why = refusal(&fresh, &plain).await;
        assert!(why.contains("a node, which makes one"), "{why}");
        let used = fresh.head.open_channel(&inner).unwrap();
        assert_eq!(used.submit(write_of(20, 1, 1)).await.status, Status::Ok);
        let why = refusal(&fresh, &CREATE).await;
        assert!(why.contains("'head' holds other data"), "{why}");
        let forced = ZoneBandsOptions { force: true, ..CREATE };
        assert!(mixed(&one, &other).try_open(&inner, &forced).await.is_ok());
        assert!(mixed(&one, &other).try_open(&inner, &plain).await.is_ok());
        let why = refusal(&one, &plain).await;
        assert!(why.contains("belongs to device"), "{why}");
    });
}

#[test]
fn what_is_no_row_at_the_end_of_a_zone_is_given_up_with_its_last_row() {
    on_reactor!(|inner| {
        // Blocks of 512 bytes: rows of 8, and zones of 20.
        let (head, below) = (mem_of("head", 512, 64), mem_of("below", 512, 512));
        let options = ZonedOptions {
            create: true,
            zone_bytes: 32 * 512,
            capacity_bytes: 20 * 512,
            active_zones_max: 1,
            ..ZonedOptions::default()
        };
        let zoned = Arc::new(ZonedDevice::open(&inner, "zoned", below, &options).await.unwrap());
        let bands = ZoneBandsDevice::open(&inner, "bands", head, zoned.clone(), &CREATE).await.unwrap();
        let rows = bands.info().rows.unwrap();
        assert_eq!((rows.blocks, rows.zones.unwrap().blocks), (8, 16));
        let channel = bands.open_channel(&inner).unwrap();
        for zone in 0..3 {
            let bufs = SgList::from_iter([Buf::from_vec(vec![1; 16 * 512])]);
            assert_eq!(channel.submit(Io::write(Lba(rows.start + zone * 16), 16, bufs)).await.status, Status::Ok);
        }
        assert_eq!(zoned.zones()[1].state, ZoneState::Full);
        assert_eq!((bands.status().full, bands.status().open), (3, 0));
    });
}
