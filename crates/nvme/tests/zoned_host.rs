//! The host on a zoned namespace of this crate's own target, over loopback: the conformance suite of zoned devices, and a
//! zone-bands device on top, whose target goes and comes back.

use bdev::{
    BlockDevice, Channel, Io, Lba, MemDevice, Op, Status, Zone, ZoneBandsDevice, ZoneBandsOptions, ZoneState,
    ZonedDevice, ZonedOptions, conformance,
};
use nvme::initiator::{HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TargetHome, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{Buf, Reactor, SgList};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

const NQN: &str = "nqn.2024-01.org.example:zones";
/// Blocks from one zone to the next, and of a zone.
const SIZE: u64 = 64;
const ZONE: u64 = 48;

struct Bench {
    runtime: Runtime,
    target: TcpTarget,
    address: SocketAddr,
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = self.target.call(|home: &TargetHome| {
            home.close();
            Ok(())
        });
    }
}

/// A target on reactor 0 with a zoned namespace.
fn start() -> Bench {
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None; 2], ..RuntimeConfig::default() }).unwrap();
    let zoned = runtime.handles()[0].call_async(|reactor| async move {
        let below = Arc::new(MemDevice::new("below", 4096, 4096, 4096).unwrap());
        let options = ZonedOptions {
            create: true,
            zone_bytes: SIZE * 4096,
            capacity_bytes: ZONE * 4096,
            active_zones_max: 6,
            open_zones_max: 4,
            ..ZonedOptions::default()
        };
        ZonedDevice::open(&reactor, "zoned", below, &options).await.map_err(|error| error.to_string())
    });
    let zoned: Arc<dyn BlockDevice> = Arc::new(zoned.expect("the reactor runs").unwrap());
    let target = TcpTarget::new(&runtime.handles()[..1], Config::default());
    let make = move |home: &TargetHome| {
        home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).unwrap()))?;
        home.add_namespace(NQN, None, zoned, Uuid::from_u128(7))?;
        home.listen("127.0.0.1:0".parse().unwrap())
    };
    let address = target.call(make).unwrap();
    Bench { runtime, target, address }
}

fn options(address: SocketAddr) -> Options {
    Options::new(address, Nqn::new(NQN).unwrap(), HostIdentity::from_uuid(Uuid::from_u128(1)))
}

fn data(fill: u8, blocks: u32) -> SgList {
    SgList::from_iter([Buf::from_vec(vec![fill; blocks as usize * 4096])])
}

async fn report(channel: &dyn Channel, zone: u64, zones: u32) -> Vec<Zone> {
    let bufs = SgList::from_iter([Buf::from_vec(vec![0; zones as usize * bdev::ZONE_RECORD_BYTES])]);
    let done = channel.submit(Io { bufs, ..Io::new(Op::ZoneReport, Lba(zone * SIZE), zones) }).await;
    assert_eq!(done.status, Status::Ok);
    Zone::load_report(&done.io.bufs).unwrap()
}

/// Runs on reactor 1.
fn on_host<F: Future<Output = ()> + 'static>(bench: &Bench, work: impl FnOnce(Rc<Reactor>) -> F + Send + 'static) {
    bench.runtime.handles()[1].call_async(move |reactor| async move { work(reactor).await }).expect("the work ends");
}

#[test]
fn a_remote_zoned_namespace_passes_the_conformance_suite_of_zoned_devices() {
    let bench = start();
    let options = options(bench.address);
    on_host(&bench, |reactor| async move {
        let device = Arc::new(NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap());
        let zoned = device.info().zoned.expect("it is zoned");
        assert_eq!((zoned.zone_blocks, zoned.zone_capacity_blocks), (SIZE, ZONE));
        assert_eq!((zoned.open_zones_max, zoned.active_zones_max), (4, 6));
        let as_block_device: Arc<dyn BlockDevice> = device.clone();
        conformance::run(&reactor, &as_block_device, conformance::Options::new(11)).await.unwrap();
        // More zones than one command reports.
        let channel = device.open_channel(&reactor).unwrap();
        let zones = (device.info().blocks / SIZE) as u32;
        let found = report(&*channel, 0, zones).await;
        assert!(found.iter().zip(0..).all(|(zone, index)| zone.start == index * SIZE && zone.capacity == ZONE));
        drop((channel, as_block_device));
        device.close().await;
    });
}

#[test]
fn appends_say_where_they_went_and_writes_elsewhere_than_at_the_pointer_are_refused() {
    let bench = start();
    let options = options(bench.address);
    on_host(&bench, |reactor| async move {
        let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
        let channel = device.open_channel(&reactor).unwrap();
        for (index, fill) in [3, 4].into_iter().enumerate() {
            let append = Io { bufs: data(fill, 8), ..Io::new(Op::ZoneAppend, Lba(SIZE), 8) };
            let done = channel.submit(append).await;
            assert_eq!((done.status, done.io.lba), (Status::Ok, Lba(SIZE + index as u64 * 8)));
        }
        let status = channel.submit(Io::write(Lba(SIZE), 8, data(9, 8))).await.status;
        assert_eq!(status, Status::ZoneInvalidWrite);
        let read = channel.submit(Io::read(Lba(SIZE + 8), 1, data(0, 1))).await;
        assert_eq!((read.status, read.io.bufs[0].as_slice()[0]), (Status::Ok, 4));
        assert_eq!(channel.submit(Io::new(Op::ZoneFinish, Lba(SIZE), 0)).await.status, Status::Ok);
        let zone = report(&*channel, 1, 1).await[0];
        assert_eq!((zone.state, zone.start, zone.capacity), (ZoneState::Full, SIZE, ZONE));
        assert_eq!(channel.submit(Io::new(Op::ZoneReset, Lba(SIZE), 0)).await.status, Status::Ok);
        let zone = report(&*channel, 1, 1).await[0];
        assert_eq!((zone.state, zone.write_pointer), (ZoneState::Empty, SIZE));
        drop(channel);
        device.close().await;
    });
}

#[test]
fn a_zone_bands_device_stands_on_a_remote_namespace() {
    let bench = start();
    let options = options(bench.address);
    on_host(&bench, |reactor| async move {
        let head: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("head", 4096, 256, 256).unwrap());
        for (create, fill) in [(true, 0u8), (false, 5)] {
            let remote = Arc::new(NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap());
            let how = ZoneBandsOptions { create, force: false, defect: None };
            let bands = ZoneBandsDevice::open(&reactor, "bands", head.clone(), remote.clone(), &how).await.unwrap();
            let rows = bands.info().rows.expect("rows");
            let zone = rows.zones.expect("in zones");
            assert_eq!(zone.blocks, ZONE);
            let channel = bands.open_channel(&reactor).unwrap();
            let first = rows.start + zone.blocks;
            let read = channel.submit(Io::read(Lba(first), 8, data(1, 8))).await;
            assert_eq!((read.status, read.io.bufs[0].as_slice()[0]), (Status::Ok, fill), "as it was left");
            if create {
                // The second waits for the first.
                let second = channel.submit(Io::write(Lba(first + 8), 8, data(6, 8)));
                assert_eq!(channel.submit(Io::write(Lba(first), 8, data(5, 8))).await.status, Status::Ok);
                assert_eq!(second.await.status, Status::Ok);
                assert_eq!(channel.submit(Io::flush()).await.status, Status::Ok);
            }
            drop((channel, bands));
            remote.close().await;
        }
    });
}
