//! The zoned device: what survives, what is refused, what failing media do to it.

use crate::common::*;
use bdev::{
    BlockDevice, ChangedZones, Channel, Delay, DelayDevice, Delays, DeviceError, ErrorDevice, ErrorRule, Fault, Flags,
    Io, Lba, Op, StatsDevice, Status, When, Zone, ZoneState, ZonedDevice, ZonedOptions,
};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const ZONE: u64 = 16;
const CAPACITY: u64 = 12;

fn options() -> ZonedOptions {
    let (zone_bytes, capacity_bytes) = (ZONE * 4096, CAPACITY * 4096);
    ZonedOptions { create: true, zone_bytes, capacity_bytes, ..ZonedOptions::default() }
}

async fn open(
    reactor: &Rc<Reactor>,
    child: &Arc<dyn BlockDevice>,
    options: ZonedOptions,
) -> Result<Zoned, DeviceError> {
    let device = ZonedDevice::open(reactor, "zoned", child.clone(), &options).await?;
    let channel = device.open_channel(reactor)?;
    Ok(Zoned { device, channel })
}

struct Zoned {
    device: ZonedDevice,
    channel: Rc<dyn Channel>,
}

fn data(fill: u8, blocks: usize) -> SgList {
    SgList::from_iter([Buf::from_vec(vec![fill; blocks * 4096])])
}

impl Zoned {
    async fn status(&self, io: Io) -> Status {
        self.channel.submit(io).await.status
    }

    async fn write(&self, lba: u64, blocks: usize, fill: u8, flags: Flags) -> Status {
        self.status(Io { flags, ..Io::write(Lba(lba), blocks as u32, data(fill, blocks)) }).await
    }

    async fn manage(&self, op: Op, zone: u64) -> Status {
        self.status(Io::new(op, Lba(zone * ZONE), 0)).await
    }

    async fn first_bytes(&self, lba: u64, blocks: usize) -> Result<Vec<u8>, Status> {
        let done = self.channel.submit(Io::read(Lba(lba), blocks as u32, data(0xEE, blocks))).await;
        done.status.check()?;
        Ok(done.io.bufs[0].as_slice().chunks(4096).map(|block| block[0]).collect())
    }

    fn zone(&self, zone: usize) -> (ZoneState, u64) {
        let Zone { start, write_pointer, state, .. } = self.device.zones()[zone];
        (state, write_pointer - start)
    }
}

fn run(test: impl AsyncFnOnce(Rc<Reactor>) + 'static) {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move { test(inner).await });
}

#[test]
fn what_was_flushed_is_before_the_pointer_after_the_process_has_died() {
    run(async |reactor| {
        let child = mem("m", 400);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.write(0, 3, 1, Flags::NONE).await, Status::Ok);
        assert_eq!(zoned.write(ZONE, 2, 2, Flags::NONE).await, Status::Ok);
        assert_eq!(zoned.status(Io::flush()).await, Status::Ok);
        assert_eq!(zoned.write(3, 4, 3, Flags::NONE).await, Status::Ok);
        assert_eq!(zoned.write(ZONE + 2, 1, 4, Flags::FUA).await, Status::Ok);
        assert_eq!(zoned.manage(Op::ZoneOpen, 2).await, Status::Ok);
        assert_eq!(zoned.manage(Op::ZoneFinish, 3).await, Status::Ok);
        drop(zoned);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.zone(0), (ZoneState::Closed, 3), "not flushed again");
        assert_eq!(zoned.first_bytes(0, 6).await, Ok(vec![1, 1, 1, 0, 0, 0]), "the lost ones are zeroes");
        assert_eq!(zoned.zone(1), (ZoneState::Closed, 3));
        assert_eq!(zoned.first_bytes(ZONE, 4).await, Ok(vec![2, 2, 4, 0]));
        assert_eq!(zoned.zone(2), (ZoneState::Empty, 0));
        assert_eq!(zoned.zone(3).0, ZoneState::Full);
    });
}

#[test]
fn a_reset_holds_although_nothing_was_flushed_after_it() {
    run(async |reactor| {
        let child = mem("m", 400);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.write(0, 5, 1, Flags::FUA).await, Status::Ok);
        assert_eq!(zoned.manage(Op::ZoneReset, 0).await, Status::Ok);
        assert_eq!(zoned.write(0, 2, 7, Flags::NONE).await, Status::Ok);
        drop(zoned);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.zone(0), (ZoneState::Empty, 0));
        assert_eq!(zoned.first_bytes(0, 5).await, Ok(vec![0; 5]));
    });
}

#[test]
fn settling_keeps_what_nobody_flushed() {
    run(async |reactor| {
        let child = mem("m", 400);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.write(0, 5, 1, Flags::NONE).await, Status::Ok);
        zoned.device.settle(&reactor).await.unwrap();
        drop(zoned);
        assert_eq!(open(&reactor, &child, options()).await.unwrap().zone(0), (ZoneState::Closed, 5));
    });
}

#[test]
fn a_write_that_fails_takes_those_behind_it_along_and_the_pointer_back() {
    run(async |reactor| {
        let delay = Delay { fixed_ns: 200_000, jitter_ns: 300_000 };
        let slow = Arc::new(DelayDevice::new("slow", mem("m", 400), Delays { write: delay, ..Delays::default() }, 4));
        let child = Arc::new(ErrorDevice::new("error", slow, &[], 1).unwrap());
        let zoned = open(&reactor, &(child.clone() as Arc<dyn BlockDevice>), options()).await.unwrap();
        assert_eq!(zoned.write(0, 1, 1, Flags::NONE).await, Status::Ok);
        let third =
            ErrorRule { when: When::Nth(3), ..ErrorRule::always(&[Op::Write], Fault::FailAfter(Status::WriteError)) };
        child.set_rules(&[third]).unwrap();
        let started: Vec<_> = (1..7).map(|at| zoned.channel.submit(Io::write(Lba(at), 1, data(at as u8, 1)))).collect();
        let mut ended = Vec::new();
        for future in started {
            ended.push(future.await.status);
        }
        let (ok, failed) = (Status::Ok, Status::WriteError);
        assert_eq!(ended, [ok, ok, failed, failed, failed, failed]);
        assert_eq!(zoned.zone(0), (ZoneState::ImplicitlyOpen, 3));
        assert_eq!(zoned.write(3, 1, 9, Flags::NONE).await, Status::Ok, "the zone goes on");
        assert_eq!(zoned.first_bytes(0, 6).await, Ok(vec![1, 1, 2, 9, 0, 0]));
    });
}

#[test]
fn a_flush_that_fails_moves_no_pointer_on_the_medium() {
    run(async |reactor| {
        let memory = mem("m", 400);
        let child = Arc::new(ErrorDevice::new("error", memory.clone(), &[], 1).unwrap());
        let zoned = open(&reactor, &(child.clone() as Arc<dyn BlockDevice>), options()).await.unwrap();
        assert_eq!(zoned.write(0, 2, 1, Flags::NONE).await, Status::Ok);
        child.set_rules(&[ErrorRule::always(&[Op::Flush], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(zoned.status(Io::flush()).await, Status::WriteError);
        assert_eq!(zoned.manage(Op::ZoneFinish, 0).await, Status::WriteError);
        assert_eq!(zoned.zone(0), (ZoneState::ImplicitlyOpen, 2));
        assert_eq!(zoned.write(2, 1, 1, Flags::FUA).await, Status::WriteError);
        drop(zoned);
        assert_eq!(open(&reactor, &memory, options()).await.unwrap().zone(0), (ZoneState::Empty, 0));
    });
}

#[test]
fn a_reset_whose_table_cannot_be_written_has_not_happened() {
    run(async |reactor| {
        let child = Arc::new(ErrorDevice::new("error", mem("m", 400), &[], 1).unwrap());
        let zoned = open(&reactor, &(child.clone() as Arc<dyn BlockDevice>), options()).await.unwrap();
        assert_eq!(zoned.write(0, 2, 1, Flags::FUA).await, Status::Ok);
        let table = ErrorRule { blocks: 4, ..ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError)) };
        child.set_rules(&[table]).unwrap();
        assert_eq!(zoned.manage(Op::ZoneReset, 0).await, Status::WriteError);
        assert_eq!(zoned.zone(0), (ZoneState::ImplicitlyOpen, 2));
        child.set_rules(&[]).unwrap();
        assert_eq!(zoned.manage(Op::ZoneReset, 0).await, Status::Ok);
        assert_eq!(zoned.zone(0), (ZoneState::Empty, 0));
    });
}

#[test]
fn what_is_flushed_after_a_failed_reset_is_not_taken_back_by_it() {
    run(async |reactor| {
        let memory = mem("m", 400);
        let child = Arc::new(ErrorDevice::new("error", memory.clone(), &[], 1).unwrap());
        let zoned = open(&reactor, &(child.clone() as Arc<dyn BlockDevice>), options()).await.unwrap();
        assert_eq!(zoned.write(0, 2, 1, Flags::FUA).await, Status::Ok);
        // The first copy of the table has the reset.
        let second =
            ErrorRule { when: When::Nth(2), ..ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError)) };
        child.set_rules(&[second]).unwrap();
        assert_eq!(zoned.manage(Op::ZoneReset, 0).await, Status::WriteError);
        assert_eq!(zoned.status(Io::flush()).await, Status::Ok);
        drop(zoned);
        assert_eq!(open(&reactor, &memory, options()).await.unwrap().zone(0), (ZoneState::Closed, 2));
    });
}

#[test]
fn retired_zones_stay_so_and_can_be_read_while_they_are_not_offline() {
    run(async |reactor| {
        let child = mem("m", 400);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.write(0, 2, 1, Flags::NONE).await, Status::Ok);
        zoned.device.retire(&reactor, 0, ZoneState::ReadOnly, Duration::from_secs(5)).await.unwrap();
        zoned.device.retire(&reactor, 1, ZoneState::Offline, Duration::from_secs(5)).await.unwrap();
        drop(zoned);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!((zoned.zone(0), zoned.zone(1).0), ((ZoneState::ReadOnly, 2), ZoneState::Offline));
        assert_eq!(zoned.first_bytes(0, 3).await, Ok(vec![1, 1, 0]));
        assert_eq!(zoned.first_bytes(ZONE, 1).await, Err(Status::ZoneOffline));
        assert_eq!(zoned.write(2, 1, 1, Flags::NONE).await, Status::ZoneReadOnly);
        assert_eq!(zoned.write(ZONE, 1, 1, Flags::NONE).await, Status::ZoneOffline);
        for op in [Op::ZoneReset, Op::ZoneOpen, Op::ZoneClose, Op::ZoneFinish] {
            assert_eq!(zoned.manage(op, 0).await, Status::ZoneInvalidTransition, "{op:?}");
        }
        assert_eq!(zoned.manage(Op::ZoneOffline, 0).await, Status::Ok);
        assert_eq!(zoned.first_bytes(0, 1).await, Err(Status::ZoneOffline));
        assert!(
            zoned.device.retire(&reactor, 1, ZoneState::ReadOnly, Duration::from_secs(5)).await.is_err(),
            "nothing comes back"
        );
    });
}

#[test]
fn a_zone_whose_writes_do_not_end_is_not_retired_and_goes_on() {
    run(async |reactor| {
        let slow = Delay { fixed_ns: 300_000_000, jitter_ns: 0 };
        let child = Arc::new(DelayDevice::new("slow", mem("m", 400), Delays::default(), 1));
        let zoned = Rc::new(open(&reactor, &(child.clone() as Arc<dyn BlockDevice>), options()).await.unwrap());
        child.set(Delays { write: slow, ..Delays::default() });
        let writer = zoned.clone();
        let written = reactor.spawn_join(async move { writer.write(0, 2, 1, Flags::NONE).await });
        reactor.yield_now().await;
        let refused = zoned.device.retire(&reactor, 0, ZoneState::ReadOnly, Duration::from_millis(20)).await;
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("zone 0 has been written to for 20ms"), "{error}");
        assert_eq!(written.await, Status::Ok);
        child.set(Delays::default());
        assert_eq!(zoned.write(2, 1, 1, Flags::NONE).await, Status::Ok);
        zoned.device.retire(&reactor, 0, ZoneState::ReadOnly, Duration::from_secs(5)).await.unwrap();
    });
}

#[test]
fn retired_zones_are_told_through_whatever_stands_on_the_device() {
    run(async |reactor| {
        let zoned = Arc::new(open(&reactor, &mem("m", 400), options()).await.unwrap().device);
        let delayed = Arc::new(DelayDevice::new("delay", zoned.clone(), Delays::default(), 1));
        let counted = StatsDevice::new(Arc::new(StatsDevice::new(delayed)));
        let (changes, mut seen) = (counted.zone_changes().expect("it has zones"), 0);
        zoned.retire(&reactor, 3, ZoneState::ReadOnly, Duration::from_secs(5)).await.unwrap();
        assert!(zoned.retire(&reactor, 1 << 20, ZoneState::Offline, Duration::from_secs(5)).await.is_err());
        assert_eq!(changes.since(&mut seen), ChangedZones::These(vec![3 * ZONE]));
        assert!(mem("plain", 400).zone_changes().is_none());
    });
}

#[test]
fn one_damaged_copy_of_the_table_is_made_whole_and_two_put_the_zones_offline() {
    run(async |reactor| {
        let child = mem("m", 400);
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert_eq!(zoned.write(0, 2, 1, Flags::FUA).await, Status::Ok);
        drop(zoned);
        let below = child.open_channel(&reactor).unwrap();
        for copy in [2, 3] {
            assert!(below.submit(Io::write(Lba(copy), 1, data(0xAA, 1))).await.status.is_ok());
            assert_eq!(open(&reactor, &child, options()).await.unwrap().zone(0), (ZoneState::Closed, 2));
        }
        for copy in [2, 3] {
            assert!(below.submit(Io::write(Lba(copy), 1, data(0xAA, 1))).await.status.is_ok());
        }
        let zoned = open(&reactor, &child, options()).await.unwrap();
        assert!(zoned.device.zones().iter().all(|zone| zone.state == ZoneState::Offline));
    });
}

#[test]
fn wrong_geometries_say_what_is_wrong() {
    run(async |reactor| {
        let child = mem("m", 400);
        let refused = async |child: &Arc<dyn BlockDevice>, options| {
            open(&reactor, child, options).await.err().unwrap().to_string()
        };
        assert!(refused(&child, ZonedOptions { zone_bytes: 12_288, ..options() }).await.contains("power of two"));
        assert!(refused(&child, ZonedOptions { capacity_bytes: 100, ..options() }).await.contains("whole blocks"));
        assert!(refused(&child, ZonedOptions { capacity_bytes: 1 << 20, ..options() }).await.contains("at most"));
        assert!(
            refused(&child, ZonedOptions { zone_bytes: 1 << 30, capacity_bytes: 0, ..options() })
                .await
                .contains("too small")
        );
        let limits = ZonedOptions { open_zones_max: 3, active_zones_max: 2, ..options() };
        assert!(refused(&child, limits).await.contains("open zones are active"));
        assert!(refused(&child, ZonedOptions { create: false, ..options() }).await.contains("a node, which makes one"));
        drop(open(&reactor, &child, options()).await.unwrap());
        let other = ZonedOptions { zone_bytes: 32 * 4096, ..options() };
        assert!(refused(&child, other.clone()).await.contains("was made with zones of 65536 bytes"));
        let zoned = open(&reactor, &child, ZonedOptions { force: true, ..other }).await.unwrap();
        let top: Arc<dyn BlockDevice> = Arc::new(zoned.device);
        assert!(refused(&top, options()).await.contains("overwritten anywhere"), "no zones on zones");
    });
}
