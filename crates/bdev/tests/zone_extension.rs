//! Descriptor extensions of zones: set on empty ones, kept until a reset, whole or not there after a crash.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, ErrorDevice, ErrorRule, Fault, Io, Lba, Op, Status, Zone,
    ZoneState, ZonedDevice, ZonedOptions,
};
use reactor::{Buf, IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ZONE: u64 = 16;
const BYTES: usize = 128;

fn options() -> ZonedOptions {
    let extension_bytes = BYTES as u32;
    ZonedOptions { create: true, zone_bytes: ZONE * 4096, extension_bytes, ..ZonedOptions::default() }
}

async fn open(reactor: &Rc<Reactor>, child: &Arc<dyn BlockDevice>) -> Result<ZonedDevice, DeviceError> {
    ZonedDevice::open(reactor, "zoned", child.clone(), &options()).await
}

fn buffer(bytes: Vec<u8>) -> SgList {
    SgList::from_iter([Buf::from_vec(bytes)])
}

async fn set(channel: &dyn Channel, zone: u64, fill: u8) -> Status {
    let bufs = buffer(vec![fill; BYTES]);
    channel.submit(Io { bufs, ..Io::new(Op::ZoneSetExtension, Lba(zone * ZONE), 0) }).await.status
}

async fn get(channel: &dyn Channel, zone: u64) -> Result<u8, Status> {
    let bufs = buffer(vec![0xee; BYTES]);
    let done = channel.submit(Io { bufs, ..Io::new(Op::ZoneReadExtension, Lba(zone * ZONE), 0) }).await;
    done.status.check()?;
    let bytes = done.io.bufs[0].as_slice();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixed extension");
    Ok(bytes[0])
}

async fn manage(channel: &dyn Channel, op: Op, zone: u64) -> Status {
    channel.submit(Io::new(op, Lba(zone * ZONE), 0)).await.status
}

async fn write(channel: &dyn Channel, lba: u64, fill: u8) -> Status {
    channel.submit(Io::write(Lba(lba), 1, buffer(vec![fill; 4096]))).await.status
}

fn state(device: &ZonedDevice, zone: usize) -> (ZoneState, bool) {
    let Zone { state, has_extension, .. } = device.zones()[zone];
    (state, has_extension)
}

#[test]
fn zones_with_extensions_conform() {
    let reactor = reactor();
    let inner = reactor.clone();
    let device = reactor.block_on(async move { open(&inner, &mem("m", 400)).await.unwrap() });
    conforms(&reactor, Arc::new(device), |_| {});
}

#[test]
fn an_extension_is_set_on_an_empty_zone_and_stays_until_it_is_reset() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 400);
        let device = open(&inner, &child).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        assert_eq!(get(&*channel, 1).await, Ok(0), "there is none");
        for zone in 1..5 {
            assert_eq!(set(&*channel, zone, 7).await, Status::Ok);
            assert_eq!(state(&device, zone as usize), (ZoneState::Closed, true));
            assert_eq!(set(&*channel, zone, 8).await, Status::ZoneInvalidTransition, "it is not empty any more");
        }
        assert_eq!(write(&*channel, 2 * ZONE, 1).await, Status::Ok);
        assert_eq!(manage(&*channel, Op::ZoneFinish, 3).await, Status::Ok);
        assert_eq!(manage(&*channel, Op::ZoneReset, 4).await, Status::Ok);
        assert_eq!(set(&*channel, 4, 9).await, Status::Ok);
        assert_eq!(manage(&*channel, Op::ZoneReset, 4).await, Status::Ok);
        drop((channel, device));
        let device = open(&inner, &child).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        for (zone, expected) in [
            (0, (ZoneState::Empty, false)),
            (1, (ZoneState::Closed, true)),
            // (what was written and not flushed is lost with the process)
            (2, (ZoneState::Closed, true)),
            (3, (ZoneState::Full, true)),
            (4, (ZoneState::Empty, false)),
        ] {
            assert_eq!(state(&device, zone), expected, "zone {zone}");
            assert_eq!(get(&*channel, zone as u64).await, Ok(if expected.1 { 7 } else { 0 }));
        }
        device.retire(&inner, 3, ZoneState::ReadOnly, Duration::from_secs(5)).await.unwrap();
        assert_eq!((state(&device, 3), get(&*channel, 3).await), ((ZoneState::ReadOnly, true), Ok(7)));
        assert_eq!(set(&*channel, 3, 1).await, Status::ZoneReadOnly);
        device.retire(&inner, 3, ZoneState::Offline, Duration::from_secs(5)).await.unwrap();
        assert_eq!((state(&device, 3), get(&*channel, 3).await), ((ZoneState::Offline, false), Ok(0)));
        assert_eq!(set(&*channel, 3, 1).await, Status::ZoneOffline);
        for (lba, nblocks, bytes, status) in [
            (device.info().blocks, 0, BYTES, Status::OutOfRange),
            (u64::MAX, 0, BYTES, Status::OutOfRange),
            (1, 0, BYTES, Status::Invalid),
            (0, 1, BYTES, Status::Invalid),
            (0, 0, BYTES - 1, Status::Invalid),
            (0, 0, 0, Status::Invalid),
        ] {
            for op in [Op::ZoneSetExtension, Op::ZoneReadExtension] {
                let bufs = if bytes > 0 { buffer(vec![0; bytes]) } else { SgList::new() };
                assert_eq!(channel.submit(Io { bufs, ..Io::new(op, Lba(lba), nblocks) }).await.status, status);
            }
        }
    });
}

#[test]
fn an_extension_takes_a_place_among_active_zones_and_one_that_fails_does_not() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let medium = Arc::new(ErrorDevice::new("faulty", mem("m", 400), &[], 1).unwrap());
        let options = ZonedOptions { active_zones_max: 2, ..options() };
        let device = ZonedDevice::open(&inner, "zoned", medium.clone(), &options).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        medium.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(set(&*channel, 0, 3).await, Status::WriteError);
        assert_eq!((state(&device, 0), get(&*channel, 0).await), ((ZoneState::Empty, false), Ok(0)));
        medium.set_rules(&[]).unwrap();
        for zone in [0, 1] {
            assert_eq!(set(&*channel, zone, 3).await, Status::Ok);
        }
        assert_eq!(set(&*channel, 2, 3).await, Status::ZoneTooManyActive);
        assert_eq!(write(&*channel, 2 * ZONE, 1).await, Status::ZoneTooManyActive);
        assert_eq!(manage(&*channel, Op::ZoneReset, 1).await, Status::Ok);
        assert_eq!(set(&*channel, 2, 3).await, Status::Ok);
    });
}

#[test]
fn devices_keep_the_length_of_their_extensions_and_those_without_are_as_before() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let refused = async |child: &Arc<dyn BlockDevice>, extension_bytes| {
            let options = ZonedOptions { extension_bytes, ..options() };
            let opened = ZonedDevice::open(&inner, "zoned", child.clone(), &options).await;
            opened.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let child = mem("m", 400);
        for bytes in [1, 63, 65, 64 * 64] {
            assert!(refused(&child, bytes).await.contains("multiple of 64"), "{bytes}");
        }
        assert_eq!(refused(&child, 64).await, "");
        assert!(refused(&child, 128).await.contains("made with descriptor extensions of 64 bytes"));
        assert!(refused(&child, 0).await.contains("made with descriptor extensions of 64 bytes"));
        let plain = mem("p", 400);
        assert_eq!(refused(&plain, 0).await, "");
        assert!(refused(&plain, 64).await.contains("made with descriptor extensions of 0 bytes"));
        let options = ZonedOptions { extension_bytes: 0, ..options() };
        let device = ZonedDevice::open(&inner, "zoned", plain, &options).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        assert_eq!(set(&*channel, 0, 1).await, Status::Unsupported);
    });
}

type Writes = Arc<Mutex<Vec<(u64, Vec<u8>)>>>;

/// A device that keeps what was written to it, in order.
struct Journal(Arc<dyn BlockDevice>, Writes);

impl BlockDevice for Journal {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn kind(&self) -> &'static str {
        "journal"
    }

    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(JournalChannel(self.0.open_channel(reactor)?, self.1.clone())))
    }
}

struct JournalChannel(Rc<dyn Channel>, Writes);

impl Channel for JournalChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Write {
            let bytes = io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
            self.1.lock().unwrap().push((io.lba.0, bytes));
        }
        self.0.submit(io)
    }
}

#[test]
fn whenever_the_power_goes_an_extension_is_whole_or_not_there() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let writes = Writes::default();
        let child: Arc<dyn BlockDevice> = Arc::new(Journal(mem("m", 400), writes.clone()));
        let device = open(&inner, &child).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        // After how many writes each step was acknowledged, and what the zone has then.
        let mut steps = vec![(writes.lock().unwrap().len(), 0)];
        for fill in [3, 0, 5, 0] {
            let status = match fill {
                0 => manage(&*channel, Op::ZoneReset, 2).await,
                fill => set(&*channel, 2, fill).await,
            };
            assert_eq!(status, Status::Ok);
            steps.push((writes.lock().unwrap().len(), fill));
        }
        let made = writes.lock().unwrap().clone();
        let mut torn_seen = 0;
        for whole in steps[0].0..=made.len() {
            for cut in (0..8).map(|eighth| eighth * 512) {
                let survivor = mem("s", 400);
                let raw = survivor.open_channel(&inner).unwrap();
                for (lba, bytes) in &made[..whole] {
                    assert_eq!(
                        raw.submit(Io::write(Lba(*lba), (bytes.len() / 4096) as u32, buffer(bytes.clone())))
                            .await
                            .status,
                        Status::Ok
                    );
                }
                if let (Some((lba, bytes)), true) = (made.get(whole), cut > 0) {
                    let done = raw.submit(Io::read(Lba(*lba), 1, buffer(vec![0; 4096]))).await;
                    let mut mixed = done.io.bufs[0].as_slice().to_vec();
                    mixed[..cut].copy_from_slice(&bytes[..cut]);
                    assert_eq!(raw.submit(Io::write(Lba(*lba), 1, buffer(mixed))).await.status, Status::Ok);
                    torn_seen += 1;
                }
                let last = steps.iter().rposition(|(writes, _)| *writes <= whole).unwrap();
                let (before, after) = (steps[last].1, steps.get(last + 1).map_or(steps[last].1, |step| step.1));
                let opened = open(&inner, &survivor).await.unwrap();
                let found = get(&*opened.open_channel(&inner).unwrap(), 2).await.unwrap();
                assert!(found == before || found == after, "{found} after {whole} writes and {cut} bytes");
                let expected = if found > 0 { (ZoneState::Closed, true) } else { (ZoneState::Empty, false) };
                assert_eq!(state(&opened, 2), expected);
            }
        }
        assert!(torn_seen > 50);
    });
}
