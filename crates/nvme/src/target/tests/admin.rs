//! Admin commands of a connected controller: identify, features, logs, events, abort.

use super::*;
use crate::spec::sqe::CrossControllerResetCommand;
use zerocopy::FromBytes;

// ---- Identify

#[test]
fn a_linux_host_finds_what_it_insists_on_in_identify_controller() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let (_, page) = bench.admin(controller, command::identify(Cns::Controller, 0, 0)).expect("identified");
    let info = ControllerInfo::parse(&page, Capabilities::new(128, 7500)).expect("usable");
    assert_eq!(info.cntlid, bench.target.controller(controller).expect("alive").cntlid());
    assert_eq!(info.transfer_len_max, 1 << 20);
    assert_eq!(info.capsule_data_max, ADMIN_CAPSULE_DATA_MAX);
    assert_eq!((info.keep_alive_granularity_ms, info.commands_max), (100, 1024));
    assert!(info.compare && info.write_zeroes && info.deallocate && info.compare_and_write && info.volatile_cache);
    assert_eq!(info.events, event::NAMESPACE_ATTRIBUTE | event::ANA_CHANGE);
    assert!(!info.is_discovery);
    assert_eq!(page[1792..1796], 516u32.to_le_bytes(), "IOCCSZ");
    assert_eq!(page[1796..1800], 1u32.to_le_bytes(), "IORCSZ");
    assert_eq!(page[768..768 + 28], *b"nqn.2026-01.org.example:disk");
}

#[test]
fn identify_lists_and_describes_namespaces() {
    let mut bench = Bench::new();
    for nsid in [7, 3] {
        let small = Namespace { eui64: [nsid as u8; 8], ..Namespace::new(9, 64, uuid()) };
        bench.target.add_namespace(bench.subsystem, Some(nsid), small).expect("new");
    }
    let controller = bench.ready();
    let mut list = |after, cns| {
        let (_, page) = bench.admin(controller, command::identify(cns, after, 0)).expect("identified");
        host::info::active_namespaces(&page).collect::<Vec<_>>()
    };
    assert_eq!(list(0, Cns::ActiveNamespaces), [1, 3, 7]);
    assert_eq!(list(3, Cns::ActiveNamespaces), [7]);
    assert_eq!(list(0, Cns::CommandSetActiveNamespaces), [1, 3, 7]);
    let (_, page) = bench.admin(controller, command::identify(Cns::Namespace, 3, 0)).expect("identified");
    let info = NamespaceInfo::parse(3, &page).expect("active");
    assert_eq!((info.block_shift, info.block_count), (9, 64));
    let (_, page) = bench.admin(controller, command::identify(Cns::NamespaceDescriptors, 7, 0)).expect("identified");
    let kinds: Vec<u8> = identify::descriptors(&page).map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [identify::NIDT_EUI64, identify::NIDT_NGUID, identify::NIDT_UUID, identify::NIDT_CSI]);
}

#[test]
fn inactive_namespaces_are_all_zero_and_impossible_ones_an_error() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    for cns in [Cns::Namespace, Cns::CommandSetNamespace, Cns::IndependentNamespace] {
        let (_, page) = bench.admin(controller, command::identify(cns, 2, 0)).expect("valid identifier");
        assert!(page.iter().all(|byte| *byte == 0));
        for nsid in [0, 1025, 0xffff_ffff] {
            let refused = bench.admin(controller, command::identify(cns, nsid, 0));
            assert_eq!(refused, Err(Status::INVALID_NAMESPACE), "{cns:?} {nsid}");
        }
    }
    let refused = bench.admin(controller, command::identify(Cns::NamespaceDescriptors, 2, 0));
    assert_eq!(refused, Err(Status::INVALID_NAMESPACE));
    let refused = bench.admin(controller, command::identify(Cns::ActiveNamespaces, 0xffff_fffe, 0));
    assert_eq!(refused, Err(Status::INVALID_NAMESPACE));
}

#[test]
fn atomic_and_optimal_sizes_come_back_as_they_were_given() {
    let mut bench = Bench::new();
    let namespace = Namespace {
        atomic_write_blocks: 16,
        atomic_boundary_blocks: 32,
        optimal_write_blocks: 8,
        read_only: true,
        ..Namespace::new(12, 100, uuid())
    };
    let nsid = bench.target.add_namespace(bench.subsystem, None, namespace).expect("new");
    let controller = bench.ready();
    let (_, page) = bench.admin(controller, command::identify(Cns::Namespace, nsid, 0)).expect("identified");
    let info = NamespaceInfo::parse(nsid, &page).expect("active");
    assert_eq!((info.atomic_write_blocks, info.atomic_boundary_blocks, info.optimal_write_blocks), (16, 32, 8));
    assert!(info.read_only);
}

#[test]
fn other_command_sets_structures_and_short_buffers_are_refused() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    for cns in [Cns::CommandSetNamespace, Cns::CommandSetController, Cns::CommandSetActiveNamespaces] {
        assert_eq!(bench.admin(controller, command::identify(cns, 1, 2)), Err(Status::INVALID_FIELD));
    }
    let (_, page) = bench.admin(controller, command::identify(Cns::CommandSets, 0, 0)).expect("identified");
    assert_eq!(page[..9], [5, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut unknown = command::identify(Cns::Controller, 0, 0);
    unknown.cdw10 = U32::new(0xff);
    assert_eq!(bench.admin(controller, unknown), Err(Status::INVALID_FIELD));
    let short = command::with_transport_data(command::identify(Cns::Controller, 0, 0), 4095);
    assert_eq!(bench.admin(controller, short), Err(Status::DATA_SGL_LENGTH_INVALID));
}

// ---- Features

#[test]
fn queues_are_granted_up_to_the_limit_and_only_before_they_exist() {
    let mut bench = Bench::with(TargetConfig { io_queues_max: 4, ..TargetConfig::default() });
    let controller = bench.ready();
    assert_eq!(bench.admin(controller, command::set_queue_count(2)).map(|done| done.0), Ok(0x0001_0001));
    assert_eq!(bench.admin(controller, command::set_queue_count(64)).map(|done| done.0), Ok(0x0003_0003));
    let forbidden = command::set_feature(Feature::NumberOfQueues, 0xffff);
    assert_eq!(bench.admin(controller, forbidden), Err(Status::INVALID_FIELD));
    bench.io_queue(controller, 4).expect("granted");
    assert_eq!(bench.admin(controller, command::set_queue_count(1)), Err(Status::COMMAND_SEQUENCE_ERROR));
    let get = command::get_feature(Feature::NumberOfQueues, 0);
    assert_eq!(bench.admin(controller, get).map(|done| done.0), Ok(0x0003_0003));
}

#[test]
fn the_host_identifier_is_the_one_of_connect_and_cannot_be_set() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let get = |wide| command::with_transport_data(command::get_feature(Feature::HostIdentifier, wide), 16);
    assert_eq!(bench.admin(controller, get(1)).map(|done| done.1), Ok(vec![7; 16]));
    assert_eq!(bench.admin(controller, get(0)), Err(Status::HOST_ID_INCONSISTENT));
    let set = command::set_feature(Feature::HostIdentifier, 1);
    assert_eq!(bench.admin(controller, set), Err(Status::COMMAND_SEQUENCE_ERROR));
}

#[test]
fn the_write_cache_can_be_turned_off_and_comes_back_with_a_reset() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.admin(controller, command::set_feature(Feature::VolatileWriteCache, 0)).expect("present");
    bench.admin(controller, command::set_feature(Feature::VolatileWriteCache, 0)).expect("no change");
    assert_eq!(bench.events(), [TargetEvent::WriteCache { controller, enabled: false }]);
    bench.property_set(controller, property::CC, 0).expect("reset");
    let reset = TargetEvent::Reset { controller };
    assert_eq!(bench.events(), [TargetEvent::WriteCache { controller, enabled: true }, reset]);
}

#[test]
fn a_reset_brings_back_the_defaults_and_forgets_events() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.admin(controller, command::set_queue_count(1)).expect("granted");
    let enable = command::set_feature(Feature::AsyncEventConfiguration, event::NAMESPACE_ATTRIBUTE);
    bench.admin(controller, enable).expect("supported");
    bench.request_event(controller, 1);
    bench.property_set(controller, property::CC, 0).expect("reset");
    let gone = bench.completions();
    assert_eq!(gone.len(), 1, "the request is answered, so that the admin queue has its place back");
    assert_eq!((gone[0].cid.get(), gone[0].status()), (1, Status::ABORTED_SQ_DELETION));
    bench.target.reset_complete(controller);
    bench.enable(controller);
    for (feature, default) in [(Feature::NumberOfQueues, 0x007f_007f), (Feature::AsyncEventConfiguration, 0)] {
        assert_eq!(bench.admin(controller, command::get_feature(feature, 0)).map(|done| done.0), Ok(default));
    }
    bench.target.resize_namespace(bench.subsystem, 1, 2000, false).expect("exists");
    bench.admin(controller, enable).expect("supported");
    assert_eq!(bench.completions(), [], "the request from before the reset is gone");
    for cid in 0..AER_MAX as u16 {
        assert_eq!(bench.request_event(controller, cid), AdminOutcome::Pending);
    }
}

#[test]
fn features_obey_save_select_and_namespace_rules() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let mut save = command::set_feature(Feature::Arbitration, 1);
    save.cdw10 = U32::new(save.cdw10.get() | 1 << 31);
    assert_eq!(bench.admin(controller, save), Err(Status::FEATURE_NOT_SAVEABLE));
    let mut of_namespace = command::set_feature(Feature::Arbitration, 1);
    of_namespace.nsid = U32::new(1);
    assert_eq!(bench.admin(controller, of_namespace), Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC));
    let mut recovery = command::set_feature(Feature::ErrorRecovery, 5);
    recovery.nsid = U32::new(1);
    assert!(bench.admin(controller, recovery).is_ok());
    recovery.nsid = U32::new(2);
    assert_eq!(bench.admin(controller, recovery), Err(Status::INVALID_NAMESPACE));
    let select = |select: u32| {
        let mut get = command::get_feature(Feature::ErrorRecovery, 0);
        get.cdw10 = U32::new(get.cdw10.get() | select << 8);
        get
    };
    let answers: Vec<_> = (0..5).map(|value| bench.admin(controller, select(value)).map(|done| done.0)).collect();
    assert_eq!(answers, [Ok(5), Ok(0), Ok(0), Ok(0b110), Err(Status::INVALID_FIELD)]);
}

#[test]
fn every_feature_identifier_is_answered_and_only_the_supported_ones_with_success() {
    let mut bench = Bench::new();
    let (io, discovery) = (bench.ready(), bench.ready_discovery());
    for fid in 0..=255u32 {
        let mut get = command::with_transport_data(command::get_feature(Feature::Arbitration, 1), 512);
        get.cdw10 = U32::new(fid);
        // Features of reservations are of namespaces; the others do not look.
        get.nsid = U32::new(1);
        if fid == u32::from(Feature::TemperatureThreshold as u8) {
            get.cdw11 = U32::new(0);
        }
        let supported = |is_discovery| {
            Feature::from_u8(fid as u8).is_some_and(|found| feature::is_supported(found, is_discovery, true))
        };
        assert_eq!(bench.admin(io, get).is_ok(), supported(false), "{fid:02x}");
        assert_eq!(bench.admin(discovery, get).is_ok(), supported(true), "{fid:02x}");
    }
}

#[test]
fn temperature_thresholds_exist_for_the_composite_temperature_only() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let get = |parameter| command::get_feature(Feature::TemperatureThreshold, parameter);
    let set = |parameter| command::set_feature(Feature::TemperatureThreshold, parameter);
    bench.admin(controller, set(1 << 20 | 300)).expect("under");
    bench.admin(controller, set(0xf << 16 | 350)).expect("over, all sensors");
    assert_eq!(bench.admin(controller, get(0)).map(|done| done.0), Ok(350));
    assert_eq!(bench.admin(controller, get(1 << 20)).map(|done| done.0), Ok(300));
    assert_eq!(bench.admin(controller, get(1 << 16)), Err(Status::INVALID_FIELD));
    assert_eq!(bench.admin(controller, set(2 << 20)), Err(Status::INVALID_FIELD));
}

// ---- Log pages

fn smart_of(page: &[u8]) -> SmartLog {
    use zerocopy::FromBytes;
    SmartLog::read_from_bytes(page).expect("512 bytes")
}

#[test]
fn the_smart_log_says_what_it_was_told() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let health = Health { bytes_read: 512_001, reads: 5, temperature_kelvin: 310, ..Health::default() };
    bench.target.set_health(bench.subsystem, health).expect("exists");
    let mut sqe = command::get_log_page(LogPage::Smart, 0, 512, false);
    for nsid in [0, 0xffff_ffff] {
        sqe.nsid = U32::new(nsid);
        let (_, page) = bench.admin(controller, sqe).expect("whole controller");
        let log = smart_of(&page);
        assert_eq!((log.data_units_read.get(), log.host_read_commands.get(), log.temperature.get()), (2, 5, 310));
    }
    sqe.nsid = U32::new(1);
    assert_eq!(bench.admin(controller, sqe), Err(Status::INVALID_FIELD), "none per namespace");
}

#[test]
fn failed_commands_are_in_the_error_log() {
    use zerocopy::FromBytes;
    let mut bench = Bench::new();
    let controller = bench.ready();
    let mut odd = Sqe::new(0xff, 77, 1);
    assert_eq!(bench.admin(controller, odd), Err(Status::INVALID_OPCODE));
    odd.opcode = 1;
    bench.target.record_error(controller, 3, &odd, &Cqe::new(77, Status::WRITE_FAULT));
    let (_, page) = bench.admin(controller, command::get_log_page(LogPage::Error, 0, 128, false)).expect("read");
    let entries = <[ErrorEntry]>::ref_from_bytes(&page).expect("two entries");
    assert_eq!((entries[0].sqid.get(), Status::from_wire(entries[0].status.get())), (3, Status::WRITE_FAULT));
    assert_eq!((entries[1].error_count.get(), entries[1].cid.get()), (1, 77));
}

#[test]
fn log_pages_are_read_in_parts_like_the_whole() {
    let mut bench = Bench::new();
    bench.target.add_port(1, "0.0.0.0:4420".parse().expect("address"), false);
    let (io, discovery) = (bench.ready(), bench.ready_discovery());
    for page in LogPage::ALL {
        for controller in [io, discovery] {
            let Ok((_, whole)) = bench.admin(controller, command::get_log_page(page, 0, 4096, true)) else {
                continue;
            };
            let len = match page {
                // What there is behind the log's own length is refused.
                LogPage::Ana => 16 + 32 + 4,
                LogPage::ReservationNotification => 64,
                _ => 256,
            };
            for offset in (0..len).step_by(28) {
                let part = command::get_log_page(page, offset, 44, true);
                let (_, part) = bench.admin(controller, part).expect("within");
                assert_eq!(part, whole[offset as usize..offset as usize + 44], "{page:?} at {offset}");
            }
        }
    }
}

#[test]
fn log_page_requests_that_make_no_sense_are_refused() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let get = |offset| command::get_log_page(LogPage::Smart, offset, 512, false);
    assert!(bench.admin(controller, get(512)).is_ok(), "at the end: zeroes");
    assert_eq!(bench.admin(controller, get(516)), Err(Status::INVALID_FIELD));
    assert_eq!(bench.admin(controller, get(2)), Err(Status::INVALID_FIELD));
    assert_eq!(bench.admin(controller, get(u64::MAX - 3)), Err(Status::INVALID_FIELD));
    let mut long = get(0);
    GetLogPageCommand { len: 1 << 34, ..GetLogPageCommand::of(&long) }.store(&mut long);
    assert_eq!(bench.admin(controller, long), Err(Status::DATA_SGL_LENGTH_INVALID));
    for lid in [0x06u32, 0x70, 0x81, 0xff] {
        let mut unknown = get(0);
        unknown.cdw10 = U32::new(unknown.cdw10.get() & !0xff | lid);
        assert_eq!(bench.admin(controller, unknown), Err(Status::INVALID_LOG_PAGE), "{lid:02x}");
    }
}

#[test]
fn the_list_of_supported_pages_is_true() {
    let mut bench = Bench::new();
    for controller in [bench.ready(), bench.ready_discovery()] {
        let get = command::get_log_page(LogPage::Supported, 0, 1024, true);
        let (_, supported) = bench.admin(controller, get).expect("supported");
        for lid in 0..256usize {
            let mut sqe = command::get_log_page(LogPage::Supported, 0, 4, true);
            sqe.cdw10 = U32::new(sqe.cdw10.get() & !0xff | lid as u32);
            // A page of a namespace says that it needs one.
            let is_known = bench.admin(controller, sqe).map(drop) != Err(Status::INVALID_LOG_PAGE);
            assert_eq!(is_known, supported[lid * 4] == 1, "{lid:02x}");
        }
    }
}

// ---- Asynchronous events and namespaces

#[test]
fn a_namespace_change_is_told_once_and_listed_until_read() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let enable = command::set_feature(Feature::AsyncEventConfiguration, event::NAMESPACE_ATTRIBUTE);
    bench.admin(controller, enable).expect("supported");
    assert_eq!(bench.request_event(controller, 50), AdminOutcome::Pending);
    bench.target.add_namespace(bench.subsystem, Some(9), Namespace::new(9, 8, uuid())).expect("new");
    let events = bench.events();
    assert_eq!(events[0], TargetEvent::NamespaceChanged { subsystem: bench.subsystem, nsid: 9 }, "queues first");
    let TargetEvent::Complete { cqe, .. } = events[1] else { panic!("then the host") };
    assert_eq!((cqe.cid.get(), cqe.dw0()), (50, EventResult::NAMESPACE_CHANGED.to_dw0()));

    assert_eq!(bench.request_event(controller, 51), AdminOutcome::Pending);
    bench.target.resize_namespace(bench.subsystem, 1, 2000, false).expect("exists");
    bench.target.remove_namespace(bench.subsystem, 9).expect("exists");
    assert_eq!(bench.completions(), [], "masked until the list is read");

    let read = |retain| command::get_log_page(LogPage::ChangedNamespaces, 0, 4096, retain);
    for _ in 0..2 {
        let (_, page) = bench.admin(controller, read(true)).expect("supported");
        assert_eq!(host::info::active_namespaces(&page).collect::<Vec<_>>(), [1, 9], "retained");
    }
    bench.admin(controller, read(false)).expect("supported");
    let (_, page) = bench.admin(controller, read(false)).expect("supported");
    assert_eq!(host::info::active_namespaces(&page).count(), 0);
    bench.target.resize_namespace(bench.subsystem, 1, 3000, false).expect("exists");
    assert_eq!(bench.completions().len(), 1, "unmasked");
}

#[test]
fn events_that_the_host_did_not_enable_are_not_sent() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.request_event(controller, 1);
    bench.target.resize_namespace(bench.subsystem, 1, 2000, false).expect("exists");
    assert_eq!(bench.completions(), []);
    let configure = command::set_feature(Feature::AsyncEventConfiguration, u32::MAX);
    bench.admin(controller, configure).expect("unsupported bits are dropped");
    let get = command::get_feature(Feature::AsyncEventConfiguration, 0);
    let all = event::NAMESPACE_ATTRIBUTE | event::ANA_CHANGE | event::SMART_WARNINGS;
    assert_eq!(bench.admin(controller, get).map(|done| done.0), Ok(all));
}

#[test]
fn discovery_hosts_hear_of_changes_and_see_only_what_they_may() {
    let mut bench = Bench::new();
    bench.target.add_port(1, "0.0.0.0:4420".parse().expect("address"), false);
    bench.target.add_port(2, "[2001:db8::1]:4421".parse().expect("address"), false);
    let controller = bench.ready_discovery();
    let enable = command::set_feature(Feature::AsyncEventConfiguration, event::DISCOVERY_CHANGE);
    bench.admin(controller, enable).expect("supported");
    bench.request_event(controller, 1);
    let hidden = SubsystemConfig { allow_any_host: false, ..SubsystemConfig::new(nqn("hidden")) };
    let hidden = bench.target.add_subsystem(hidden).expect("new");
    let told = bench.completions();
    assert_eq!(told[0].dw0(), EventResult::DISCOVERY_CHANGED.to_dw0());

    let read = command::get_log_page(LogPage::Discovery, 0, 16 * 1024, false);
    let mut log = || {
        let (_, page) = bench.admin(controller, read).expect("supported");
        let (generation, count) = host::info::discovery_header(&page).expect("header");
        let entries: Vec<_> = host::info::discovery_entries(&page[1024..]).collect();
        assert_eq!(entries.len() as u64, count);
        (generation, entries)
    };
    let (before, entries) = log();
    let names: Vec<_> = entries.iter().map(|entry| (entry.nqn.as_str(), entry.address.as_str())).collect();
    let disk = nqn("disk");
    assert_eq!(
        names,
        [
            (crate::spec::nqn::DISCOVERY_NQN, "127.0.0.1"),
            (crate::spec::nqn::DISCOVERY_NQN, "2001:db8::1"),
            (disk.as_str(), "127.0.0.1"),
            (disk.as_str(), "2001:db8::1"),
        ]
    );
    assert_eq!((entries[2].service.as_str(), entries[2].is_nvm, entries[0].is_nvm), ("4420", true, false));
    bench.target.allow_host(hidden, nqn("host")).expect("exists");
    let (_, page) = bench.admin(controller, read).expect("supported");
    let (after, count) = host::info::discovery_header(&page).expect("header");
    assert!(after > before && count == 6);
}

#[test]
fn referrals_are_listed_behind_the_rest_and_their_changes_told() {
    let mut bench = Bench::new();
    bench.target.add_port(1, "0.0.0.0:4420".parse().expect("address"), false);
    let controller = bench.ready_discovery();
    let enable = command::set_feature(Feature::AsyncEventConfiguration, event::DISCOVERY_CHANGE);
    bench.admin(controller, enable).expect("supported");
    bench.request_event(controller, 1);
    let referrals: BTreeSet<SocketAddr> =
        ["192.0.2.1:8009", "[2001:db8::2]:8009"].map(|text| text.parse().expect("address")).into();
    bench.target.set_referrals(referrals.clone());
    assert_eq!(bench.completions()[0].dw0(), EventResult::DISCOVERY_CHANGED.to_dw0());
    let read = command::get_log_page(LogPage::Discovery, 0, 16 * 1024, false);
    let (_, page) = bench.admin(controller, read).expect("supported");
    let (generation, count) = host::info::discovery_header(&page).expect("header");
    assert_eq!(count, 4);
    let entry = |index: usize| {
        let bytes = &page[1024 * (index + 1)..][..1024];
        crate::spec::discovery::DiscoveryEntry::read_from_bytes(bytes).expect("an entry")
    };
    assert_eq!([0, 1, 2, 3].map(|index| entry(index).subtype), [3, 2, 1, 1]);
    assert_eq!([0, 1, 2, 3].map(|index| entry(index).adrfam), [1, 1, 1, 2]);
    let services: Vec<_> = host::info::discovery_entries(&page[1024 * 3..][..2048]).collect();
    assert!(services.iter().all(|service| service.nqn.is_discovery() && !service.is_nvm && service.service == "8009"));
    assert_eq!((services[0].address.as_str(), services[1].address.as_str()), ("192.0.2.1", "2001:db8::2"));
    bench.request_event(controller, 2);
    bench.target.set_referrals(referrals);
    assert_eq!(bench.completions().len(), 0, "nothing has changed");
    bench.target.set_referrals(BTreeSet::new());
    assert_eq!(bench.completions().len(), 1);
    let (_, page) = bench.admin(controller, read).expect("supported");
    assert!(host::info::discovery_header(&page).expect("header") > (generation, 0));
}

#[test]
fn a_discovery_controller_takes_only_what_discovery_needs() {
    let mut bench = Bench::new();
    let controller = bench.ready_discovery();
    let (_, page) = bench.admin(controller, command::identify(Cns::Controller, 0, 0)).expect("identified");
    let info = ControllerInfo::parse(&page, Capabilities::new(128, 7500)).expect("usable");
    assert!(info.is_discovery && info.nsid_max == 0);
    assert_eq!(bench.admin(controller, command::identify(Cns::ActiveNamespaces, 0, 0)), Err(Status::INVALID_FIELD));
    assert_eq!(bench.admin(controller, command::abort(0, 1)), Err(Status::INVALID_OPCODE));
    let refused = bench.io_queue(controller, 1).expect_err("no I/O queues");
    assert_eq!(InvalidParameter::of(&refused), InvalidParameter { offset: 42, in_data: false });
}

// ---- Abort

#[test]
fn an_event_request_can_be_aborted_and_the_result_tells() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.request_event(controller, 60);
    assert_eq!(bench.admin(controller, command::abort(0, 61)).map(|done| done.0), Ok(1), "not found");
    assert_eq!(bench.admin(controller, command::abort(0, 60)).map(|done| done.0), Ok(0));
    let completed = bench.completions();
    assert_eq!((completed[0].cid.get(), completed[0].status().kind()), (60, Status::ABORT_REQUESTED));
}

#[test]
fn aborts_of_io_commands_are_handed_out_up_to_the_limit() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    assert_eq!(bench.admin(controller, command::abort(1, 5)).map(|done| done.0), Ok(1), "no such queue");
    bench.io_queue(controller, 1).expect("ready");
    let abort = command::with_cid(command::abort(1, 5), 9);
    let submit = |bench: &mut Bench| bench.target.admin(0, controller, &abort, &[], &mut []);
    for _ in 0..crate::target::identify::ABORTS_MAX {
        assert_eq!(submit(&mut bench), AdminOutcome::Abort { sqid: 1, cid: 5 });
    }
    assert!(matches!(submit(&mut bench), AdminOutcome::Complete { cqe, .. }
        if cqe.status().kind() == Status::ABORT_LIMIT_EXCEEDED));
    assert_eq!(bench.target.abort_done(controller, 9, true), Cqe::success(9, 0));
    assert_eq!(bench.target.abort_done(controller, 9, false), Cqe::success(9, 1));
    assert_eq!(submit(&mut bench), AdminOutcome::Abort { sqid: 1, cid: 5 });
}

// ---- Cross-controller reset

/// What a host remembers of a controller, to have it reset by another.
fn numbers_of(bench: &mut Bench, controller: ControllerHandle) -> CrossControllerResetCommand {
    let page = bench.admin(controller, command::identify(Cns::Controller, 0, 0)).expect("ready").1;
    let (id, _) = identify::IdentifyController::ref_from_prefix(&page).expect("a page");
    assert!(id.ciu != 0 && id.ccrl != 0 && id.cqt.get() != 0);
    CrossControllerResetCommand { cntlid: id.cntlid.get(), uniquifier: id.ciu, random: id.cirn.get() }
}

fn cross_reset(bench: &mut Bench, by: ControllerHandle, reset: CrossControllerResetCommand) -> AdminOutcome {
    bench.target.admin(bench.now_ns, by, &command::cross_controller_reset(reset), &[], &mut [])
}

fn is_refused(outcome: AdminOutcome) -> bool {
    matches!(outcome, AdminOutcome::Complete { cqe, .. } if cqe.status() == Status::INVALID_FIELD.dnr())
}

#[test]
fn a_controller_ends_another_of_its_host_and_answers_when_nothing_of_it_is_under_way() {
    let mut bench = Bench::new();
    let (lost, next) = (bench.ready(), bench.ready());
    bench.io_queue(lost, 1).expect("ready");
    let named = numbers_of(&mut bench, lost);
    let quiesce = AdminOutcome::Quiesce { subsystem: bench.subsystem, cntlid: named.cntlid };
    assert_eq!(cross_reset(&mut bench, next, named), quiesce);
    assert_eq!(bench.events(), [TargetEvent::CloseController { controller: lost, why: WhyClosed::CrossReset }]);
    assert!(bench.target.controller(lost).is_none() && bench.target.controller(next).is_some());
    assert_eq!(cross_reset(&mut bench, next, named), quiesce, "it has ended, its commands perhaps not");
    assert_eq!(bench.events(), []);
    assert_eq!(cross_reset_done(7, true), Cqe::success(7, 1));
    assert!(!cross_reset_done(7, false).status().do_not_retry());
}

#[test]
fn only_the_instance_that_was_named_is_reset() {
    let mut bench = Bench::new();
    let (other, next) = (bench.ready(), bench.ready());
    let named = numbers_of(&mut bench, other);
    for wrong in [
        CrossControllerResetCommand { cntlid: 0x7fff, ..named },
        CrossControllerResetCommand { uniquifier: named.uniquifier.wrapping_sub(1), ..named },
        CrossControllerResetCommand { random: !named.random, ..named },
    ] {
        let quiesce = AdminOutcome::Quiesce { subsystem: bench.subsystem, cntlid: wrong.cntlid };
        assert_eq!(cross_reset(&mut bench, next, wrong), quiesce);
        assert!(bench.target.controller(other).is_some(), "another instance than {wrong:?}");
    }
    // A reset ends the instance that a host knew.
    bench.property_set(other, property::CC, 0).expect("valid");
    bench.target.reset_complete(other);
    bench.enable(other);
    cross_reset(&mut bench, next, named);
    assert!(bench.target.controller(other).is_some());
    assert_ne!(numbers_of(&mut bench, other), named);
}

#[test]
fn neither_itself_nor_a_controller_of_another_host_or_subsystem_is_reset() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let itself = numbers_of(&mut bench, controller);
    assert!(is_refused(cross_reset(&mut bench, controller, itself)));
    for (host_id, name) in [([7; 16], "thief"), ([8; 16], "host")] {
        let data = command::connect_data(host_id, &nqn(name), &nqn("disk"), None);
        let other = bench.connect_as(command::connect(0, 32, 0), &data).expect("allowed").controller;
        bench.enable(other);
        assert!(is_refused(cross_reset(&mut bench, other, itself)));
    }
    bench.target.add_subsystem(SubsystemConfig::new(nqn("elsewhere"))).expect("new");
    let elsewhere = bench.connect(&nqn("elsewhere"), 0);
    bench.enable(elsewhere);
    cross_reset(&mut bench, elsewhere, itself);
    assert!(bench.target.controller(controller).is_some());
}

// ---- Every state and opcode

#[test]
fn every_admin_opcode_is_answered_in_every_state() {
    let offered = [
        AdminOpcode::GetLogPage,
        AdminOpcode::Identify,
        AdminOpcode::Abort,
        AdminOpcode::SetFeatures,
        AdminOpcode::GetFeatures,
        AdminOpcode::AsyncEventRequest,
        AdminOpcode::KeepAlive,
        AdminOpcode::CrossControllerReset,
    ];
    for state in [
        ControllerState::Disabled,
        ControllerState::Ready,
        ControllerState::Resetting,
        ControllerState::ShuttingDown,
        ControllerState::ShutDown,
    ] {
        let mut bench = Bench::new();
        let controller = bench.connect(&nqn("disk"), 0);
        if state != ControllerState::Disabled {
            bench.enable(controller);
        }
        if matches!(state, ControllerState::ShuttingDown | ControllerState::ShutDown) {
            let cc = Configuration::ENABLE.with_shutdown(1);
            bench.property_set(controller, property::CC, cc.0).expect("valid");
        }
        if state == ControllerState::Resetting {
            bench.property_set(controller, property::CC, 0).expect("valid");
        }
        if state == ControllerState::ShutDown {
            bench.target.shutdown_complete(controller);
        }
        assert_eq!(bench.target.controller(controller).expect("alive").state(), state);
        for opcode in (0..=255u8).filter(|opcode| *opcode != crate::spec::opcode::FABRICS) {
            let sqe = Sqe::new(opcode, 1, 0);
            let outcome = bench.target.admin(bench.now_ns, controller, &sqe, &[], &mut [0; 4096]);
            let is_offered = offered.iter().any(|offered| *offered as u8 == opcode);
            match outcome {
                AdminOutcome::Complete { cqe, .. } => {
                    let status = cqe.status().kind();
                    match state {
                        ControllerState::Disabled | ControllerState::Resetting => {
                            assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR)
                        }
                        _ => assert_eq!(status == Status::INVALID_OPCODE, !is_offered, "{opcode:02x} {status}"),
                    }
                }
                AdminOutcome::Pending => assert_eq!(opcode, AdminOpcode::AsyncEventRequest as u8),
                AdminOutcome::Quiesce { .. } => assert_eq!(opcode, AdminOpcode::CrossControllerReset as u8),
                AdminOutcome::SetPersistence { nsid, .. } => assert!(nsid == 1 || nsid == crate::spec::NSID_ALL),
                AdminOutcome::Abort { .. } => panic!("queue 0 is handled here"),
                AdminOutcome::Format => panic!("no namespace can be formatted"),
            }
        }
    }
}

#[test]
fn removing_a_subsystem_ends_its_controllers_and_no_others() {
    let mut bench = Bench::new();
    let other = bench.target.add_subsystem(SubsystemConfig::new(nqn("other"))).expect("new");
    let (mine, others) = (bench.ready(), bench.connect(&nqn("other"), 0));
    assert_eq!(
        bench.target.add_subsystem(SubsystemConfig::new(nqn("other"))),
        Err(ModelError::SubsystemExists(nqn("other")))
    );
    bench.target.remove_subsystem(bench.subsystem).expect("exists");
    assert_eq!(bench.events(), [TargetEvent::CloseController { controller: mine, why: WhyClosed::Revoked }]);
    assert!(bench.target.controller(others).is_some());
    assert_eq!(bench.target.remove_subsystem(bench.subsystem), Err(ModelError::NoSuchSubsystem));
    assert_eq!(bench.target.remove_subsystem(DISCOVERY), Err(ModelError::NoSuchSubsystem));
    assert!(bench.target.subsystem(other).is_some());
}

#[test]
fn results_wider_than_a_dword_reach_the_host() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    let cap = bench.property_get(controller, property::CAP, true).expect("readable");
    assert!(cap > u64::from(u32::MAX) && U64::new(cap).get() == cap);
}

#[test]
fn a_host_tells_the_time_and_a_reset_forgets_it() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let get = command::with_transport_data(command::get_feature(Feature::Timestamp, 0), 8);
    let set = command::set_feature(Feature::Timestamp, 0);
    let told = 1_700_000_000_000u64.to_le_bytes();
    let refused = bench.target.admin(bench.now_ns, controller, &set, &told[..7], &mut []);
    assert!(matches!(refused, AdminOutcome::Complete { cqe, .. } if !cqe.status().is_success()));
    let taken = bench.target.admin(bench.now_ns, controller, &set, &told, &mut []);
    assert!(matches!(taken, AdminOutcome::Complete { cqe, .. } if cqe.status().is_success()));
    bench.now_ns += 250 * MS;
    let (_, data) = bench.admin(controller, get).expect("eight bytes");
    assert_eq!(
        (u64::from_le_bytes(data[..8].try_into().expect("eight")) & 0xffff_ffff_ffff, data[6]),
        (1_700_000_000_250, 2)
    );
    bench.property_set(controller, property::CC, 0).expect("valid");
    bench.target.reset_complete(controller);
    bench.enable(controller);
    bench.now_ns += 30 * MS;
    assert_eq!(bench.admin(controller, get).expect("eight bytes").1, 30u64.to_le_bytes());
}
