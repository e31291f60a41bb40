//! Zoned namespaces, for a host that keeps the rules and one that does not.

use crate::rig::*;
use crate::run;
use bdev::{BlockDevice, MemDevice, ZoneState, ZonedDevice, ZonedOptions};
use nvme::host::command;
use nvme::spec::event::EventResult;
use nvme::spec::feature::{Feature, event};
use nvme::spec::identify::{CSI_NVM, Cns, IdentifyController, NIDT_CSI, descriptors};
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::property::Configuration;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::zns::*;
use nvme::spec::{Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U32;

const ZONE: u64 = 64;
const CAPACITY: u64 = 48;
const ZONES: u64 = 20;

/// A target with one zoned namespace of blocks of 512 bytes, two of whose zones are out of order.
fn rig() -> Rig {
    zoned(&run::reactor()).0
}

/// The same, and its device.
fn zoned(reactor: &Rc<Reactor>) -> (Rig, Arc<ZonedDevice>) {
    let inner = reactor.clone();
    let device = reactor.block_on(async move {
        // Two superblocks, two pages, and the zones.
        let blocks = 4 * 8 + ZONES * CAPACITY;
        let memory = Arc::new(MemDevice::new("mem", 512, blocks, 0).expect("memory"));
        let options = ZonedOptions {
            create: true,
            zone_bytes: ZONE * 512,
            capacity_bytes: CAPACITY * 512,
            open_zones_max: 3,
            active_zones_max: 4,
            ..ZonedOptions::default()
        };
        let device = ZonedDevice::open(&inner, "zoned", memory, &options).await.expect("zones");
        device.retire(&inner, 8, ZoneState::ReadOnly, Duration::from_secs(5)).await.expect("retired");
        device.retire(&inner, 9, ZoneState::Offline, Duration::from_secs(5)).await.expect("retired");
        device
    });
    assert_eq!(device.info().blocks, ZONES * ZONE);
    let rig = Rig::empty(1, Config::default());
    let device = Arc::new(device);
    rig.add(NQN, device.clone());
    (rig, device)
}

/// Takes a zone out of use, which no host has asked for.
fn retire(reactor: &Rc<Reactor>, device: &Arc<ZonedDevice>, zone: u64, state: ZoneState) {
    let (inner, device) = (reactor.clone(), device.clone());
    reactor.block_on(async move { device.retire(&inner, zone, state, Duration::from_secs(5)).await }).expect("retired");
}

fn changed_zones(admin: &mut Wire, retain: bool) -> (u16, Vec<u64>) {
    let sqe = Sqe { nsid: U32::new(1), ..command::get_log_page(LogPage::ChangedZones, 0, 4096, retain) };
    let (_, log) = admin.ok(sqe);
    let list = ChangedZoneList::read_from_bytes(&log[..]).expect("a page");
    (list.count.get(), list.zones.iter().map(|start| start.get()).take_while(|start| *start > 0).collect())
}

/// A host that asked for all command sets, and one queue of it.
fn host(rig: &Rig, cc: Configuration) -> (Wire, Wire) {
    let mut admin = Wire::open(rig.address, TransportOptions::host());
    admin.host_id = HOST_ID;
    let cntlid = admin.connect(NQN, HOST, 0, None, 32, 0).dw0() as u16;
    admin.ok(command::set_configuration(cc));
    let mut queue = Wire::open(rig.address, TransportOptions::host());
    queue.host_id = HOST_ID;
    assert!(queue.connect(NQN, HOST, 1, Some(cntlid), 32, 0).status().is_success());
    (admin, queue)
}

fn send(zone: u64, action: SendAction, select_all: bool) -> Sqe {
    let mut sqe = Sqe::nvm(NvmOpcode::ZoneManagementSend, 0, 1);
    ZoneSendCommand { slba: zone * ZONE, action: action as u8, select_all }.store(&mut sqe);
    sqe
}

fn receive(slba: u64, len: u64, filter: u8, partial: bool) -> Sqe {
    let sqe = Sqe::nvm(NvmOpcode::ZoneManagementReceive, 0, 1);
    let mut sqe = command::with_transport_data(sqe, len as u32);
    ZoneReceiveCommand { slba, len, action: RECEIVE_REPORT, filter, partial }.store(&mut sqe);
    sqe
}

fn report(queue: &mut Wire, slba: u64, room: u64, filter: u8, partial: bool) -> (u64, Vec<ZoneDescriptor>) {
    let (_, data) = queue.ok(receive(slba, 64 + room * 64, filter, partial));
    let (header, rest) = ReportHeader::read_from_prefix(&data).expect("a header");
    let all = rest.chunks_exact(64).map(|bytes| ZoneDescriptor::read_from_bytes(bytes).expect("64 bytes"));
    (header.zone_count.get(), all.filter(|zone| zone.kind != 0).collect())
}

fn state(queue: &mut Wire, zone: u64) -> (u8, u64) {
    let (_, zones) = report(queue, zone * ZONE, 1, 0, true);
    (zones[0].state >> 4, zones[0].write_pointer.get().wrapping_sub(zone * ZONE))
}

fn append(queue: &mut Wire, zslba: u64, data: &[u8]) -> (Status, u32) {
    let (status, result, _) = queue.run(block_command(NvmOpcode::ZoneAppend, zslba, data, true), data);
    (status, result)
}

#[test]
fn a_zoned_namespace_describes_itself_to_hosts_that_asked_for_all_command_sets() {
    let rig = rig();
    let (mut admin, _queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let (_, list) = admin.ok(command::identify(Cns::NamespaceDescriptors, 1, 0));
    assert!(descriptors(&list).any(|(kind, id)| kind == NIDT_CSI && id == [CSI_ZNS]));
    let (_, id) = admin.ok(command::identify(Cns::CommandSetNamespace, 1, CSI_ZNS));
    let id = IdentifyZonedNamespace::read_from_bytes(&id[..]).expect("a page");
    assert_eq!((id.zoc.get(), id.ozcs.get(), id.mar.get(), id.mor.get()), (0, OZCS_READ_ACROSS, 3, 2));
    assert_eq!((id.lbafe[0].zsze.get(), id.lbafe[0].zdes), (ZONE, 0));
    let (_, controller) = admin.ok(command::identify(Cns::CommandSetController, 0, CSI_ZNS));
    assert_eq!(controller[0], 0, "appends are as long as transfers may be");
    for (csi, first) in [(CSI_NVM, 0), (CSI_ZNS, 1)] {
        let (_, list) = admin.ok(command::identify(Cns::CommandSetActiveNamespaces, 0, csi));
        assert_eq!(list[..4], u32::to_le_bytes(first), "{csi}");
    }
    let mut sets = command::identify(Cns::CommandSets, 0, 0);
    sets.cdw10 = U32::new(sets.cdw10.get() | 0xffff << 16);
    assert_eq!(admin.ok(sets).1[0], 1 << CSI_NVM | 1 << CSI_ZNS);
    let (_, namespace) = admin.ok(command::identify(Cns::Namespace, 1, 0));
    assert_eq!(namespace[..8], (ZONES * ZONE).to_le_bytes());
    let mut effects = command::get_log_page(LogPage::CommandEffects, 0, 4096, false);
    for (csi, is_supported) in [(CSI_NVM, 0), (CSI_ZNS, 1)] {
        effects.cdw14 = U32::new(u32::from(csi) << 24);
        let (_, log) = admin.ok(effects);
        for opcode in [NvmOpcode::ZoneAppend, NvmOpcode::ZoneManagementSend, NvmOpcode::ZoneManagementReceive] {
            assert_eq!(log[1024 + opcode as usize * 4] & 1, is_supported, "{opcode:?}");
        }
    }
    let unknown = command::identify(Cns::CommandSetNamespace, 1, 1);
    assert_eq!(admin.status(unknown, &[]).kind(), Status::INVALID_FIELD);
}

#[test]
fn a_host_of_the_nvm_command_set_alone_sees_no_zoned_namespace() {
    let rig = rig();
    let (mut admin, _queue) = host(&rig, Configuration::ENABLE);
    assert_eq!(admin.ok(command::identify(Cns::ActiveNamespaces, 0, 0)).1[..4], [0; 4]);
    assert_eq!(admin.ok(command::identify(Cns::Namespace, 1, 0)).1[..8], [0; 8]);
    let descriptors = command::identify(Cns::NamespaceDescriptors, 1, 0);
    assert_eq!(admin.status(descriptors, &[]).kind(), Status::INVALID_NAMESPACE);
    let zoned = command::identify(Cns::CommandSetNamespace, 1, CSI_ZNS);
    assert_eq!(admin.status(zoned, &[]).kind(), Status::INVALID_FIELD);
}

#[test]
fn zones_are_written_appended_to_reported_and_changed() {
    let rig = rig();
    let (_admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let data = pattern(1, 4 * 512);
    assert_eq!(queue.write(0, &data), Status::SUCCESS);
    assert_eq!(append(&mut queue, 0, &data), (Status::SUCCESS, 4));
    assert_eq!(append(&mut queue, ZONE, &data), (Status::SUCCESS, ZONE as u32));
    assert_eq!(queue.read(4, 4), data);
    assert_eq!(state(&mut queue, 0), (ZoneState::ImplicitlyOpen as u8, 8));
    assert_eq!(queue.status(send(0, SendAction::Close, false), &[]), Status::SUCCESS);
    assert_eq!(queue.status(send(2, SendAction::Open, false), &[]), Status::SUCCESS);
    assert_eq!(queue.status(send(3, SendAction::Finish, false), &[]), Status::SUCCESS);
    let (full, invalid) = (ZoneState::Full as u8, u64::MAX.wrapping_sub(3 * ZONE));
    assert_eq!(state(&mut queue, 3), (full, invalid), "the pointer of a full zone means nothing");
    // All, and by state: empty, implicitly and explicitly open, closed, full, read only, offline.
    for (filter, count) in [(0, 20), (1, 14), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)] {
        let (found, zones) = report(&mut queue, 0, 20, filter, false);
        assert_eq!((found, zones.len() as u64), (count, count), "filter {filter}");
    }
    assert_eq!(report(&mut queue, 0, 3, 0, false).0, 20, "all that match");
    assert_eq!(report(&mut queue, 0, 3, 0, true).0, 3, "those that are told");
    let (count, zones) = report(&mut queue, 18 * ZONE + 5, 20, 0, false);
    assert_eq!((count, zones[0].start.get(), zones[0].capacity.get()), (2, 18 * ZONE, CAPACITY));
    assert_eq!(queue.status(send(0, SendAction::Reset, true), &[]), Status::SUCCESS);
    assert_eq!(report(&mut queue, 0, 20, 1, false).0, 18);
    assert_eq!(queue.read(0, 8), vec![0; 8 * 512]);
    assert_eq!(queue.status(send(8, SendAction::Offline, false), &[]), Status::SUCCESS);
    assert_eq!(report(&mut queue, 0, 20, 7, false).0, 2);
}

#[test]
fn every_refusal_has_its_status() {
    let rig = rig();
    let (_admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let block = pattern(2, 512);
    assert_eq!(queue.write(1, &block), Status::ZONE_INVALID_WRITE.dnr());
    assert_eq!(queue.write(0, &pattern(3, (CAPACITY as usize + 1) * 512)), Status::ZONE_BOUNDARY.dnr());
    assert_eq!(queue.write(0, &pattern(3, CAPACITY as usize * 512)), Status::SUCCESS);
    assert_eq!(queue.write(0, &block), Status::ZONE_FULL.dnr());
    assert_eq!(append(&mut queue, 0, &block).0, Status::ZONE_FULL.dnr());
    assert_eq!(append(&mut queue, 1, &block).0, Status::INVALID_FIELD.dnr());
    assert_eq!(append(&mut queue, ZONES * ZONE, &block).0, Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(queue.write(8 * ZONE, &block), Status::ZONE_READ_ONLY.dnr());
    assert_eq!(queue.write(9 * ZONE, &block), Status::ZONE_OFFLINE.dnr());
    let read =
        command::with_transport_data(command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(9 * ZONE, 1)), 512);
    assert_eq!(queue.status(read, &[]), Status::ZONE_OFFLINE.dnr());
    for action in [SendAction::Open, SendAction::Close, SendAction::Finish, SendAction::Reset] {
        assert_eq!(queue.status(send(8, action, false), &[]), Status::ZONE_INVALID_TRANSITION.dnr(), "{action:?}");
    }
    for zone in 1..4 {
        assert_eq!(queue.status(send(zone, SendAction::Open, false), &[]), Status::SUCCESS);
    }
    assert_eq!(queue.status(send(4, SendAction::Open, false), &[]), Status::ZONE_TOO_MANY_OPEN.dnr());
    for zone in 1..3 {
        assert_eq!(queue.status(send(zone, SendAction::Close, false), &[]), Status::SUCCESS);
    }
    assert_eq!(queue.status(send(4, SendAction::Open, false), &[]), Status::SUCCESS);
    assert_eq!(queue.write(5 * ZONE, &block), Status::ZONE_TOO_MANY_ACTIVE.dnr());
    for sqe in [
        send(0, SendAction::SetExtension, false),
        Sqe { cdw13: U32::new(0x77), ..send(0, SendAction::Open, false) },
        Sqe { cdw10: U32::new(1), ..send(0, SendAction::Open, false) },
        Sqe { cdw13: U32::new(1), ..receive(0, 4096, 0, false) },
        receive(0, 4096, 8, false),
        receive(0, 60, 0, false),
    ] {
        assert_eq!(queue.status(sqe, &[]), Status::INVALID_FIELD.dnr(), "{:?}", sqe.cdw13);
    }
    assert_eq!(queue.status(send(ZONES, SendAction::Open, false), &[]), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(queue.status(receive(ZONES * ZONE, 4096, 0, false), &[]), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(report(&mut queue, 0, 0, 0, false), (20, vec![]), "a header alone is a report");
}

#[test]
fn hosts_are_told_of_zones_that_change_by_themselves_and_read_which() {
    let reactor = run::reactor();
    let (rig, device) = zoned(&reactor);
    let (mut admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let (_, id) = admin.ok(command::identify(Cns::Controller, 0, 0));
    let (id, _) = IdentifyController::ref_from_prefix(&id).expect("a page");
    assert!(id.oaes.get() & event::ZONE_DESCRIPTOR_CHANGE != 0);
    admin.ok(command::set_feature(Feature::AsyncEventConfiguration, event::ZONE_DESCRIPTOR_CHANGE));
    assert_eq!(changed_zones(&mut admin, false), (0, vec![]), "what was so when it was added is no change");
    assert_eq!(queue.status(send(2, SendAction::Finish, false), &[]), Status::SUCCESS);
    for (cid, zone, state) in [(700, 4, ZoneState::ReadOnly), (701, 4, ZoneState::Offline)] {
        admin.submit(&command::with_cid(command::async_event_request(), cid), &[]);
        retire(&reactor, &device, zone, state);
        let cqe = admin.response();
        assert_eq!((cqe.cid.get(), EventResult::from_dw0(cqe.dw0())), (cid, EventResult::ZONES_CHANGED));
        assert_eq!(cqe.result.get() >> 32, 1, "of which namespace");
        assert_eq!(changed_zones(&mut admin, true), (1, vec![zone * ZONE]));
        assert_eq!(changed_zones(&mut admin, false), (1, vec![zone * ZONE]));
        assert_eq!(changed_zones(&mut admin, false), (0, vec![]), "it was read");
    }
    let page = command::get_log_page(LogPage::ChangedZones, 0, 4096, false);
    assert_eq!(admin.status(Sqe { nsid: U32::new(2), ..page }, &[]).kind(), Status::INVALID_NAMESPACE);
    let (mut plain, _queue) = host(&rig, Configuration::ENABLE);
    assert_eq!(plain.status(Sqe { nsid: U32::new(1), ..page }, &[]).kind(), Status::INVALID_NAMESPACE);
}

#[test]
fn other_namespaces_have_no_zones() {
    let rig = Rig::new(1, Config::default());
    let (mut admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let block = pattern(2, 512);
    assert_eq!(append(&mut queue, 0, &block).0, Status::INVALID_OPCODE.dnr());
    assert_eq!(queue.status(send(0, SendAction::Reset, false), &[]), Status::INVALID_OPCODE.dnr());
    assert_eq!(queue.status(receive(0, 4096, 0, false), &[]), Status::INVALID_OPCODE.dnr());
    let page = command::get_log_page(LogPage::ChangedZones, 0, 4096, false);
    assert_eq!(admin.status(Sqe { nsid: U32::new(1), ..page }, &[]).kind(), Status::INVALID_LOG_PAGE);
}

#[test]
fn descriptor_extensions_are_set_reported_and_gone_with_a_reset() {
    const EXTENSION: usize = 128;
    let reactor = run::reactor();
    let inner = reactor.clone();
    let device = reactor.block_on(async move {
        // Two superblocks, two pages, an extension for each zone, and the zones.
        let blocks = 4 * 8 + ZONES * (8 + CAPACITY);
        let memory = Arc::new(MemDevice::new("mem", 512, blocks, 0).expect("memory"));
        let (zone_bytes, capacity_bytes) = (ZONE * 512, CAPACITY * 512);
        let extension_bytes = EXTENSION as u32;
        let options =
            ZonedOptions { create: true, zone_bytes, capacity_bytes, extension_bytes, ..ZonedOptions::default() };
        ZonedDevice::open(&inner, "zoned", memory, &options).await.expect("zones")
    });
    assert_eq!(device.info().blocks, ZONES * ZONE);
    let rig = Rig::empty(2, Config::default());
    rig.add(NQN, Arc::new(device));
    let (mut admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let (_, page) = admin.ok(command::identify(Cns::CommandSetNamespace, 1, CSI_ZNS));
    let id = IdentifyZonedNamespace::read_from_bytes(&page[..]).expect("a page");
    assert_eq!(id.lbafe[0].zdes, 2, "in units of 64 bytes");

    let data = pattern(9, EXTENSION);
    let set = |zone, len| command::with_capsule_data(send(zone, SendAction::SetExtension, false), len);
    assert_eq!(queue.status(set(2, 128), &data), Status::SUCCESS);
    assert_eq!(state(&mut queue, 2), (0x4, 0), "closed, with nothing written");
    let by_transport = command::with_transport_data(send(3, SendAction::SetExtension, false), 128);
    assert_eq!(queue.status(by_transport, &data), Status::SUCCESS);
    assert_eq!(append(&mut queue, 3 * ZONE, &[1; 512]).0, Status::SUCCESS);

    let extended = |slba, zones: u64| {
        let len = 64 + zones * (64 + EXTENSION as u64);
        let mut sqe = receive(slba, len, 0, true);
        ZoneReceiveCommand { action: RECEIVE_EXTENDED_REPORT, ..ZoneReceiveCommand::of(&sqe) }.store(&mut sqe);
        sqe
    };
    let (_, told) = queue.ok(extended(ZONE, 3));
    for (nth, each) in told[64..].chunks_exact(64 + EXTENSION).enumerate() {
        let zone = ZoneDescriptor::read_from_bytes(&each[..64]).expect("64 bytes");
        let has = nth > 0;
        assert_eq!(zone.start.get(), (1 + nth as u64) * ZONE);
        assert_eq!(zone.attributes, if has { ZONE_ATTRIBUTE_EXTENSION } else { 0 });
        assert_eq!(each[64..], if has { data.clone() } else { vec![0; EXTENSION] }, "zone {}", 1 + nth);
    }
    assert_eq!(report(&mut queue, 2 * ZONE, 1, 0, true).1[0].attributes, ZONE_ATTRIBUTE_EXTENSION);
    // Room for a descriptor and half of its extension is room for none.
    let (_, told) = queue.ok(Sqe { cdw12: U32::new((64 + 64 + 64) / 4 - 1), ..extended(2 * ZONE, 1) });
    assert_eq!(told[..8], [0; 8]);

    for (sqe, data, status) in [
        (set(2, 128), &data[..], Status::ZONE_INVALID_TRANSITION),
        (set(3, 128), &data[..], Status::ZONE_INVALID_TRANSITION),
        (set(4, 64), &data[..64], Status::DATA_SGL_LENGTH_INVALID),
        (set(ZONES, 128), &data[..], Status::LBA_OUT_OF_RANGE),
    ] {
        assert_eq!(queue.status(sqe, data).kind(), status);
    }
    let all = command::with_capsule_data(send(4, SendAction::SetExtension, true), 128);
    assert_eq!(queue.status(all, &data), Status::INVALID_FIELD.dnr());
    let mut within = set(4, 128);
    within.set_cdw10_11(4 * ZONE + 1);
    assert_eq!(queue.status(within, &data), Status::INVALID_FIELD.dnr());
    assert_eq!(state(&mut queue, 4), (0x1, 0), "nothing of that has changed it");

    assert_eq!(queue.status(send(2, SendAction::Reset, false), &[]), Status::SUCCESS);
    let (_, told) = queue.ok(extended(2 * ZONE, 1));
    let zone = ZoneDescriptor::read_from_bytes(&told[64..128]).expect("64 bytes");
    assert_eq!((zone.state >> 4, zone.attributes), (0x1, 0));
    assert_eq!(told[128..], [0; EXTENSION]);
}

#[test]
fn a_namespace_without_descriptor_extensions_takes_and_reports_none() {
    let rig = rig();
    let (mut admin, mut queue) = host(&rig, Configuration::ENABLE_ALL_SETS);
    let (_, page) = admin.ok(command::identify(Cns::CommandSetNamespace, 1, CSI_ZNS));
    assert_eq!(IdentifyZonedNamespace::read_from_bytes(&page[..]).expect("a page").lbafe[0].zdes, 0);
    let set = command::with_capsule_data(send(2, SendAction::SetExtension, false), 64);
    assert_eq!(queue.status(set, &[1; 64]), Status::INVALID_FIELD.dnr());
    let mut extended = receive(0, 4096, 0, true);
    ZoneReceiveCommand { action: RECEIVE_EXTENDED_REPORT, ..ZoneReceiveCommand::of(&extended) }.store(&mut extended);
    assert_eq!(queue.status(extended, &[]), Status::INVALID_FIELD.dnr());
}
