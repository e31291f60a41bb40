//! What changes while hosts are connected: namespaces, who is allowed, features; and discovery.

use crate::rig::*;
use bdev::{BlockDevice, MemDevice};
use nvme::host::command;
use nvme::spec::event::EventResult;
use nvme::spec::feature::{Feature, event};
use nvme::spec::identify::Cns;
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::property::Configuration;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{Sqe, Status};
use nvme::target::SubsystemConfig;
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn expect_event(admin: &mut Wire, cid: u16, nsid: u32) {
    let cqe = admin.response();
    assert_eq!(cqe.cid.get(), cid);
    assert_eq!(EventResult::from_dw0(cqe.dw0()), EventResult::NAMESPACE_CHANGED);
    let (_, log) = admin.ok(command::get_log_page(LogPage::ChangedNamespaces, 0, 4096, false));
    assert_eq!(log[..4], nsid.to_le_bytes());
    assert_eq!(log[4..8], [0; 4]);
}

/// A device that says how large it is when asked.
struct Elastic(MemDevice, AtomicU64);

impl BlockDevice for Elastic {
    fn name(&self) -> &str {
        "elastic"
    }
    fn kind(&self) -> &'static str {
        "elastic"
    }
    fn info(&self) -> bdev::DeviceInfo {
        bdev::DeviceInfo { blocks: self.1.load(Ordering::Relaxed), ..self.0.info() }
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn bdev::Channel>, bdev::DeviceError> {
        self.0.open_channel(reactor)
    }
}

#[test]
fn hosts_hear_of_namespaces_that_come_grow_shrink_and_go() {
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        // Another host first, so that the admin queue is not always on the home reactor.
        let _first = rig.host(0);
        let mut host = rig.host(2);
        host.admin.ok(command::set_feature(Feature::AsyncEventConfiguration, event::NAMESPACE_ATTRIBUTE));
        let read = |nsid: u32, slba: u64| {
            let sqe = command::blocks(NvmOpcode::Read, nsid, &BlockCommand::plain(slba, 1));
            command::with_transport_data(sqe, 512)
        };
        let request = |host: &mut Host, cid: u16| {
            host.admin.submit(&command::with_cid(command::async_event_request(), cid), &[]);
        };
        request(&mut host, 700);
        assert_eq!(host.io[0].status(read(2, 0), &[]), Status::INVALID_NAMESPACE.dnr());
        let device = Arc::new(Elastic(MemDevice::new("mem", 512, 4096, 4096).expect("memory"), AtomicU64::new(1000)));
        let watched = Arc::downgrade(&device);
        assert_eq!(rig.add(NQN, device.clone()), 2);
        expect_event(&mut host.admin, 700, 2);
        for queue in &mut host.io {
            assert_eq!(queue.status(read(2, 999), &[]), Status::SUCCESS);
            assert_eq!(queue.status(read(2, 1000), &[]), Status::LBA_OUT_OF_RANGE.dnr());
        }
        for blocks in [2000u64, 500] {
            request(&mut host, 701);
            device.1.store(blocks, Ordering::Relaxed);
            rig.with(|home| home.refresh_sizes());
            expect_event(&mut host.admin, 701, 2);
            let (_, id) = host.admin.ok(command::identify(Cns::Namespace, 2, 0));
            assert_eq!(id[..8], blocks.to_le_bytes());
            for queue in &mut host.io {
                assert_eq!(queue.status(read(2, blocks - 1), &[]), Status::SUCCESS);
                assert_eq!(queue.status(read(2, blocks), &[]), Status::LBA_OUT_OF_RANGE.dnr());
            }
        }
        request(&mut host, 702);
        drop(device);
        rig.with(|home| home.remove_namespace(NQN, 2).expect("there"));
        expect_event(&mut host.admin, 702, 2);
        rig.wait_until("its device is let go of", move |_| watched.strong_count() == 0);
        for queue in &mut host.io {
            assert_eq!(queue.status(read(2, 0), &[]), Status::INVALID_NAMESPACE.dnr());
            assert_eq!(queue.status(read(1, 0), &[]), Status::SUCCESS);
        }
    }
}

#[test]
fn the_list_of_hosts_decides_at_connect_and_when_it_changes() {
    let rig = Rig::new(2, Config::default());
    rig.with(|home| {
        home.set_allow_any_host(NQN, false).expect("there");
        home.allow_host(NQN, HOST).expect("there");
    });
    let mut host = rig.host(1);
    let mut stranger = Wire::open(rig.address, TransportOptions::host());
    let cqe = stranger.connect(NQN, "nqn.2026-11.io.remuda:stranger", 0, None, 32, 0);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.dnr());
    assert_eq!(host.io[0].read(0, 1), [0; 512]);
    rig.with(|home| home.disallow_host(NQN, HOST).expect("there"));
    host.io[0].expect_end();
    host.admin.expect_end();
    rig.with(|home| home.set_allow_any_host(NQN, true).expect("there"));
    assert!(stranger.connect(NQN, "nqn.2026-11.io.remuda:stranger", 0, None, 32, 0).status().is_success());
    rig.with(|home| home.remove_subsystem(NQN).expect("there"));
    stranger.expect_end();
}

#[test]
fn discovery_lists_what_a_host_may_use_and_tells_of_changes() {
    let rig = Rig::new(2, Config::default());
    let mut wire = Wire::open(rig.address, TransportOptions::host());
    let cqe = wire.connect("nqn.2014-08.org.nvmexpress.discovery", HOST, 0, None, 32, 0);
    assert!(cqe.status().is_success());
    wire.ok(command::set_configuration(Configuration::ENABLE));
    let log = |wire: &mut Wire| wire.ok(command::get_log_page(LogPage::Discovery, 0, 4096, false)).1;
    let records = |log: &[u8]| u64::from_le_bytes(log[8..16].try_into().expect("eight"));
    let before = log(&mut wire);
    assert_eq!(records(&before), 2, "itself and the one subsystem");
    let text = String::from_utf8_lossy(&before).into_owned();
    assert!(text.contains(NQN) && text.contains(&rig.address.port().to_string()));
    wire.ok(command::set_feature(Feature::AsyncEventConfiguration, event::DISCOVERY_CHANGE));
    wire.submit(&command::with_cid(command::async_event_request(), 900), &[]);
    rig.with(|home| home.add_subsystem(SubsystemConfig::new(nqn("nqn.2026-11.io.remuda:more"))).expect("new"));
    let cqe = wire.response();
    assert_eq!(EventResult::from_dw0(cqe.dw0()), EventResult::DISCOVERY_CHANGED);
    assert_eq!(records(&log(&mut wire)), 3);
    let cqe = Wire::open(rig.address, TransportOptions::host()).connect(
        "nqn.2014-08.org.nvmexpress.discovery",
        HOST,
        1,
        Some(cqe.dw0() as u16),
        32,
        0,
    );
    assert!(!cqe.status().is_success(), "no I/O queues there");
}

/// Notes whether writes came with forced unit access.
struct Watching(MemDevice, Arc<AtomicU64>);

struct WatchingChannel(Rc<dyn bdev::Channel>, Arc<AtomicU64>);

impl BlockDevice for Watching {
    fn name(&self) -> &str {
        "watching"
    }
    fn kind(&self) -> &'static str {
        "watching"
    }
    fn info(&self) -> bdev::DeviceInfo {
        bdev::DeviceInfo { volatile_cache: true, ..self.0.info() }
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn bdev::Channel>, bdev::DeviceError> {
        Ok(Rc::new(WatchingChannel(self.0.open_channel(reactor)?, self.1.clone())))
    }
}

impl bdev::Channel for WatchingChannel {
    fn submit<'a>(&'a self, io: bdev::Io) -> reactor::IoFuture<'a, bdev::Done> {
        self.1.fetch_add(u64::from(io.flags.has(bdev::Flags::FUA)), Ordering::Relaxed);
        self.0.submit(io)
    }
}

#[test]
fn with_the_write_cache_off_writes_are_durable_on_queues_old_and_new() {
    let rig = Rig::empty(2, Config::default());
    let forced = Arc::new(AtomicU64::new(0));
    rig.add(NQN, Arc::new(Watching(MemDevice::new("mem", 512, 64, 64).expect("memory"), forced.clone())));
    let mut host = rig.host(1);
    host.io[0].write(0, &[1; 512]);
    assert_eq!(forced.load(Ordering::Relaxed), 0);
    host.admin.ok(command::set_feature(Feature::VolatileWriteCache, 0));
    let mut new = Wire::open(rig.address, TransportOptions::host());
    assert!(new.connect(NQN, HOST, 2, Some(host.cntlid), 32, 0).status().is_success());
    let mut zeroes =
        command::blocks(NvmOpcode::WriteZeroes, 1, &BlockCommand { deallocate: true, ..BlockCommand::plain(0, 1) });
    for (index, queue) in [&mut host.io[0], &mut new].into_iter().enumerate() {
        queue.write(0, &[1; 512]);
        queue.ok(zeroes);
        assert_eq!(forced.load(Ordering::Relaxed), 2 * index as u64 + 2, "queue {index}");
    }
    host.admin.ok(command::set_feature(Feature::VolatileWriteCache, 1));
    new.write(0, &[1; 512]);
    new.ok(zeroes);
    assert_eq!(forced.load(Ordering::Relaxed), 4);
    zeroes = Sqe { cdw12: (zeroes.cdw12.get() | 1 << 30).into(), ..zeroes };
    new.ok(zeroes);
    assert_eq!(forced.load(Ordering::Relaxed), 5);
}
