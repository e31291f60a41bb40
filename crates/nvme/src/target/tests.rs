//! A target as a host meets it: commands in, completions and events out.

use std::net::{Ipv4Addr, SocketAddr};

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use super::*;
use crate::host::{self, ControllerInfo, NamespaceInfo, command};
use crate::spec::event::EventResult;
use crate::spec::fabrics::{ConnectData, InvalidParameter};
use crate::spec::feature::{Feature, event};
use crate::spec::identify::{self, Cns};
use crate::spec::log::{ErrorEntry, LogPage, SmartLog};
use crate::spec::opcode::AdminOpcode;
use crate::spec::property::{self, Capabilities, Configuration, ControllerStatus};
use crate::spec::sqe::GetLogPageCommand;
use crate::tcp::ADMIN_CAPSULE_DATA_MAX;

const VIA: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4420);
const MS: u64 = 1_000_000;

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.org.example:{name}")).expect("valid")
}

fn uuid() -> uuid::Uuid {
    uuid::Uuid::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788)
}

/// A target with one subsystem and one namespace of 1000 blocks of 4 KiB.
struct Bench {
    target: Target,
    subsystem: SubsystemId,
    now_ns: u64,
}

impl Bench {
    fn new() -> Self {
        Bench::with(TargetConfig::default())
    }

    fn with(config: TargetConfig) -> Self {
        let mut target = Target::new(config);
        let subsystem = target.add_subsystem(SubsystemConfig::new(nqn("disk"))).expect("new");
        target.add_namespace(subsystem, Some(1), Namespace::new(12, 1000, uuid())).expect("new");
        let mut bench = Bench { target, subsystem, now_ns: 1_000 * MS };
        bench.events();
        bench
    }

    fn events(&mut self) -> Vec<TargetEvent> {
        std::iter::from_fn(|| self.target.poll_event()).collect()
    }

    fn connect_as(&mut self, sqe: Sqe, data: &ConnectData) -> Result<Connected, Cqe> {
        self.target.connect(self.now_ns, &sqe, data.as_bytes(), VIA)
    }

    fn connect(&mut self, subsystem: &Nqn, kato_ms: u32) -> ControllerHandle {
        let data = command::connect_data([7; 16], &nqn("host"), subsystem, None);
        self.connect_as(command::connect(0, 32, kato_ms), &data).expect("allowed").controller
    }

    fn enable(&mut self, controller: ControllerHandle) {
        self.property_set(controller, property::CC, Configuration::ENABLE.0).expect("valid");
    }

    /// A controller that is ready for commands.
    fn ready(&mut self) -> ControllerHandle {
        let controller = self.connect(&nqn("disk"), 0);
        self.enable(controller);
        controller
    }

    fn ready_discovery(&mut self) -> ControllerHandle {
        let controller = self.connect(&Nqn::discovery(), 0);
        self.enable(controller);
        controller
    }

    fn io_queue(&mut self, controller: ControllerHandle, qid: u16) -> Result<Connected, Cqe> {
        let found = self.target.controller(controller).expect("alive");
        let subsystem = self.target.subsystem(found.subsystem()).expect("alive").nqn().clone();
        let data = command::connect_data([7; 16], &nqn("host"), &subsystem, Some(found.cntlid()));
        self.connect_as(command::connect(qid, 128, 0), &data)
    }

    fn property_set(&mut self, controller: ControllerHandle, offset: u32, value: u32) -> Result<(), Status> {
        let sqe = crate::spec::fabrics::PropertyCommand::set(1, offset, value).to_sqe();
        let (cqe, close) = self.target.fabrics(self.now_ns, controller, 0, &sqe);
        assert!(!close);
        if cqe.status().is_success() { Ok(()) } else { Err(cqe.status()) }
    }

    fn property_get(&mut self, controller: ControllerHandle, offset: u32, wide: bool) -> Result<u64, Status> {
        let sqe = crate::spec::fabrics::PropertyCommand::get(1, offset, wide).to_sqe();
        let (cqe, _) = self.target.fabrics(self.now_ns, controller, 0, &sqe);
        if cqe.status().is_success() { Ok(cqe.result.get()) } else { Err(cqe.status()) }
    }

    fn csts(&mut self, controller: ControllerHandle) -> ControllerStatus {
        ControllerStatus(self.property_get(controller, property::CSTS, false).expect("readable") as u32)
    }

    fn admin(&mut self, controller: ControllerHandle, sqe: Sqe) -> Result<(u32, Vec<u8>), Status> {
        let mut out = vec![0xee; sqe.sgl.length.get() as usize];
        match self.target.admin(self.now_ns, controller, &sqe, &[], &mut out) {
            AdminOutcome::Complete { cqe, data_len } if cqe.status().is_success() => {
                assert_eq!(cqe.cid, sqe.cid);
                out.truncate(data_len);
                Ok((cqe.dw0(), out))
            }
            AdminOutcome::Complete { cqe, data_len } => {
                assert_eq!(data_len, 0, "a failed command brings no data");
                Err(cqe.status().kind())
            }
            outcome => panic!("unexpected {outcome:?}"),
        }
    }

    fn request_event(&mut self, controller: ControllerHandle, cid: u16) -> AdminOutcome {
        let sqe = command::with_cid(command::async_event_request(), cid);
        self.target.admin(self.now_ns, controller, &sqe, &[], &mut [])
    }

    fn completions(&mut self) -> Vec<Cqe> {
        let completion = |event| match event {
            TargetEvent::Complete { cqe, .. } => Some(cqe),
            _ => None,
        };
        self.events().into_iter().filter_map(completion).collect()
    }
}

// ---- Connect

#[test]
fn an_admin_connect_makes_a_controller_with_its_own_identifier() {
    let mut bench = Bench::new();
    let first = bench.connect(&nqn("disk"), 0);
    let second = bench.connect(&nqn("disk"), 0);
    let cntlid = |handle| bench.target.controller(handle).expect("alive").cntlid();
    assert_ne!(cntlid(first), cntlid(second));
    assert_eq!(bench.target.controller(first).expect("alive").state(), ControllerState::Disabled);
}

#[test]
fn identifiers_are_not_reused_at_once() {
    let mut bench = Bench::new();
    let first = bench.connect(&nqn("disk"), 0);
    let cntlid = bench.target.controller(first).expect("alive").cntlid();
    bench.target.queue_closed(first, 0);
    let second = bench.connect(&nqn("disk"), 0);
    assert_ne!(bench.target.controller(second).expect("alive").cntlid(), cntlid);
}

#[test]
fn a_refused_connect_names_the_field() {
    let mut bench = Bench::new();
    let good = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let mut parameter = |sqe: Sqe, data: &ConnectData| {
        let cqe = bench.connect_as(sqe, data).expect_err("refused");
        assert_eq!(cqe.status().kind(), Status::CONNECT_INVALID_PARAMETERS);
        let InvalidParameter { offset, in_data } = InvalidParameter::of(&cqe);
        (offset, in_data)
    };
    let admin = || command::connect(0, 32, 0);
    let other = ConnectData { subnqn: nqn("other").to_field(), ..good };
    assert_eq!(parameter(admin(), &other), (256, true));
    assert_eq!(parameter(admin(), &ConnectData { subnqn: [b'x'; 256], ..good }), (256, true));
    assert_eq!(parameter(admin(), &ConnectData { hostnqn: [0; 256], ..good }), (512, true));
    for cntlid in [0, 1, 0xfffe] {
        let fixed = ConnectData { cntlid: U16::new(cntlid), ..good };
        assert_eq!(parameter(admin(), &fixed), (16, true), "the static model is refused");
    }
    assert_eq!(parameter(command::connect(0, 129, 0), &good), (44, false));
    let mut one_entry = admin();
    one_entry.cdw11 = U32::new(0);
    assert_eq!(parameter(one_entry, &good), (44, false));
}

#[test]
fn a_connect_without_its_data_or_of_another_format_is_refused() {
    let mut bench = Bench::new();
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let sqe = command::connect(0, 32, 0);
    let cut = bench.target.connect(0, &sqe, &data.as_bytes()[..1023], VIA).expect_err("refused");
    assert_eq!(cut.status().kind(), Status::DATA_SGL_LENGTH_INVALID);
    let mut odd = sqe;
    odd.cdw10 = U32::new(odd.cdw10.get() | 1);
    let refused = bench.connect_as(odd, &data).expect_err("refused");
    assert_eq!(refused.status().kind(), Status::CONNECT_INCOMPATIBLE_FORMAT);
    let first = bench.connect_as(command::keep_alive(), &data).expect_err("not a connect");
    assert_eq!(first.status().kind(), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn only_listed_hosts_connect_once_the_subsystem_is_closed() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    bench.target.set_allow_any_host(bench.subsystem, false).expect("exists");
    assert!(bench.events().contains(&TargetEvent::CloseController { controller }), "not listed: loses its controller");
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let refused = bench.connect_as(command::connect(0, 32, 0), &data).expect_err("not listed");
    assert_eq!(refused.status().kind(), Status::CONNECT_INVALID_HOST);
    bench.target.allow_host(bench.subsystem, nqn("host")).expect("exists");
    let controller = bench.connect(&nqn("disk"), 0);
    bench.target.disallow_host(bench.subsystem, &nqn("host")).expect("exists");
    assert!(bench.events().contains(&TargetEvent::CloseController { controller }));
}

#[test]
fn controllers_beyond_the_limit_are_told_to_come_back() {
    let mut bench = Bench::with(TargetConfig { controllers_max: 1, ..TargetConfig::default() });
    bench.connect(&nqn("disk"), 0);
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let refused = bench.connect_as(command::connect(0, 32, 0), &data).expect_err("full");
    assert_eq!(refused.status(), Status::CONNECT_CONTROLLER_BUSY, "without Do Not Retry");
}

#[test]
fn io_queues_belong_to_their_controllers_host() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let cntlid = bench.target.controller(controller).expect("alive").cntlid();
    let good = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), Some(cntlid));
    let mut refused = |data: &ConnectData| {
        InvalidParameter::of(&bench.connect_as(command::connect(1, 128, 0), data).expect_err("refused")).offset
    };
    assert_eq!(refused(&ConnectData { hostid: [8; 16], ..good }), 0);
    assert_eq!(refused(&ConnectData { hostnqn: nqn("thief").to_field(), ..good }), 512);
    assert_eq!(refused(&ConnectData { cntlid: U16::new(cntlid + 1), ..good }), 16);
    let connected = bench.connect_as(command::connect(1, 128, 0), &good).expect("its own host");
    assert_eq!((connected.controller, connected.qid, connected.entries), (controller, 1, 128));
}

#[test]
fn io_queues_need_a_ready_controller_and_a_free_granted_number() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    let status = |result: Result<Connected, Cqe>| result.expect_err("refused").status().kind();
    assert_eq!(status(bench.io_queue(controller, 1)), Status::COMMAND_SEQUENCE_ERROR, "not enabled");
    bench.enable(controller);
    bench.admin(controller, command::set_queue_count(2)).expect("granted");
    assert!(bench.io_queue(controller, 1).is_ok());
    assert_eq!(status(bench.io_queue(controller, 1)), Status::COMMAND_SEQUENCE_ERROR, "in use");
    assert_eq!(status(bench.io_queue(controller, 3)), Status::CONNECT_INVALID_PARAMETERS, "not granted");
    bench.target.queue_closed(controller, 1);
    assert!(bench.io_queue(controller, 1).is_ok(), "free again");
}

#[test]
fn flow_control_that_the_host_disables_is_granted_with_the_head_ffff() {
    let mut bench = Bench::new();
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let mut sqe = command::connect(0, 32, 0);
    sqe.cdw11 = U32::new(sqe.cdw11.get() | 4 << 16);
    let connected = bench.connect_as(sqe, &data).expect("allowed");
    assert!(!connected.flow_control);
    assert_eq!(connected.cqe.sqhd.get(), 0xffff);
}

// ---- Properties and state

#[test]
fn a_controller_follows_cc_from_disabled_to_shut_down_and_back() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    assert_eq!(bench.csts(controller).0, 0);
    bench.enable(controller);
    assert!(bench.csts(controller).ready());
    bench.io_queue(controller, 1).expect("ready");
    bench.property_set(controller, property::CC, Configuration::ENABLE.with_shutdown(1).0).expect("valid");
    assert_eq!(bench.csts(controller).shst(), 1);
    assert_eq!(bench.events(), [TargetEvent::Shutdown { controller }]);
    bench.target.shutdown_complete(controller);
    assert_eq!(bench.csts(controller).shst(), 2);
    bench.property_set(controller, property::CC, 0x0046_0000).expect("valid");
    assert_eq!(bench.csts(controller).0, 0);
    assert_eq!(bench.events(), [TargetEvent::CloseQueue { controller, qid: 1 }]);
    assert_eq!(bench.admin(controller, command::keep_alive()), Err(Status::COMMAND_SEQUENCE_ERROR));
    bench.enable(controller);
    assert!(bench.admin(controller, command::keep_alive()).is_ok());
}

#[test]
fn properties_have_their_own_sizes_and_only_cc_is_writable() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    let cap = Capabilities(bench.property_get(controller, property::CAP, true).expect("readable"));
    assert_eq!((cap.queue_entries_max(), cap.page_size_min()), (128, 4096));
    assert_eq!(bench.property_get(controller, property::VS, false), Ok(0x0002_0000));
    let invalid = Err(Status::INVALID_FIELD.dnr());
    assert_eq!(bench.property_get(controller, property::CAP, false), invalid);
    assert_eq!(bench.property_get(controller, property::CC, true), invalid);
    assert_eq!(bench.property_get(controller, 0x1000, false), invalid);
    for offset in [property::CAP, property::VS, property::CSTS, property::NSSR, 0x24, u32::MAX] {
        assert_eq!(bench.property_set(controller, offset, 1), Err(Status::INVALID_FIELD.dnr()));
    }
}

#[test]
fn a_configuration_that_cannot_be_taken_leaves_the_controller_disabled() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    let enable = Configuration::ENABLE.0;
    for cc in [1, enable | 1 << 7, enable | 1 << 11, enable | 7 << 4, enable & !(0xf << 16), enable | 1 << 14] {
        assert_eq!(bench.property_set(controller, property::CC, cc), Err(Status::INVALID_FIELD.dnr()), "{cc:08x}");
        assert_eq!(bench.csts(controller).0, 0);
    }
    bench.property_set(controller, property::CC, enable | 6 << 4).expect("one or more I/O command sets");
}

#[test]
fn the_linux_discovery_host_may_leave_entry_sizes_zero() {
    let mut bench = Bench::new();
    let controller = bench.connect(&Nqn::discovery(), 0);
    bench.property_set(controller, property::CC, 1).expect("no I/O queues, no sizes");
    assert!(bench.csts(controller).ready());
}

#[test]
fn disconnect_closes_io_queues_only() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.io_queue(controller, 1).expect("ready");
    let (cqe, close) = bench.target.fabrics(0, controller, 0, &command::disconnect());
    assert_eq!((cqe.status().kind(), close), (Status::INVALID_QUEUE_TYPE, false));
    let (cqe, close) = bench.target.fabrics(0, controller, 1, &command::disconnect());
    assert!(cqe.status().is_success() && close);
    assert_eq!(bench.target.controller(controller).expect("alive").queues().count(), 0);
}

#[test]
fn properties_are_for_the_admin_queue_and_authentication_is_no_opcode() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    let property = command::get_status();
    let (cqe, _) = bench.target.fabrics(0, controller, 1, &property);
    assert_eq!(cqe.status().kind(), Status::INVALID_OPCODE);
    for fctype in [0x05, 0x06, 0x07, 0xc0] {
        let sqe = Sqe { nsid: U32::new(fctype), ..property };
        let (cqe, _) = bench.target.fabrics(0, controller, 0, &sqe);
        assert_eq!(cqe.status().kind(), Status::INVALID_OPCODE, "{fctype:02x}");
    }
    let (cqe, _) = bench.target.fabrics(0, controller, 0, &command::connect(0, 32, 0));
    assert_eq!(cqe.status().kind(), Status::COMMAND_SEQUENCE_ERROR, "connected already");
}

// ---- Keep alive

#[test]
fn a_silent_host_loses_its_controller_and_a_noisy_one_does_not() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 5_000);
    bench.enable(controller);
    let start = bench.now_ns;
    assert_eq!(bench.target.poll_timeout(), Some(start + 5_000 * MS));
    bench.now_ns = start + 4_000 * MS;
    bench.admin(controller, command::keep_alive()).expect("alive");
    bench.target.handle_timeout(start + 5_000 * MS);
    assert_eq!(bench.events(), []);
    bench.target.note_activity(start + 6_000 * MS, controller);
    assert_eq!(bench.target.poll_timeout(), Some(start + 11_000 * MS));
    bench.target.handle_timeout(start + 11_000 * MS);
    assert_eq!(bench.events(), [TargetEvent::CloseController { controller }]);
    assert!(bench.target.controller(controller).is_none());
    assert_eq!(bench.target.poll_timeout(), None);
    assert_eq!(bench.admin(controller, command::keep_alive()), Err(Status::ABORTED_SQ_DELETION));
}

#[test]
fn the_timeout_is_rounded_up_to_the_granularity_and_can_be_changed() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 1);
    bench.enable(controller);
    assert_eq!(bench.admin(controller, command::get_feature(Feature::KeepAliveTimer, 0)).map(|done| done.0), Ok(100));
    bench.admin(controller, command::set_feature(Feature::KeepAliveTimer, u32::MAX)).expect("long");
    assert_eq!(
        bench.admin(controller, command::get_feature(Feature::KeepAliveTimer, 0)).map(|done| done.0),
        Ok(u32::MAX)
    );
    bench.admin(controller, command::set_feature(Feature::KeepAliveTimer, 0)).expect("none");
    assert_eq!(bench.target.poll_timeout(), None);
}

#[test]
fn a_discovery_controller_without_keep_alive_does_not_stay_for_ever() {
    let mut bench = Bench::new();
    bench.connect(&Nqn::discovery(), 0);
    assert_eq!(bench.target.poll_timeout(), Some(bench.now_ns + 120_000 * MS));
}

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
    assert_eq!((info.keep_alive_granularity_ms, info.commands_max), (100, 128));
    assert!(info.compare && info.write_zeroes && info.deallocate && info.compare_and_write && info.volatile_cache);
    assert_eq!(info.events, event::NAMESPACE_ATTRIBUTE);
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
    assert_eq!(page[..9], [1, 0, 0, 0, 0, 0, 0, 0, 0]);
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
    assert_eq!(bench.events(), [TargetEvent::WriteCache { controller, enabled: true }]);
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
    bench.target.add_port(1, "0.0.0.0:4420".parse().expect("address"));
    let (io, discovery) = (bench.ready(), bench.ready_discovery());
    for page in LogPage::ALL {
        for controller in [io, discovery] {
            let Ok((_, whole)) = bench.admin(controller, command::get_log_page(page, 0, 4096, true)) else {
                continue;
            };
            for offset in (0..256).step_by(28) {
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
    for lid in [0x06u32, 0x0c, 0x70, 0x81, 0xff] {
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
            assert_eq!(bench.admin(controller, sqe).is_ok(), supported[lid * 4] == 1, "{lid:02x}");
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
    bench.target.resize_namespace(bench.subsystem, 1, 2000).expect("exists");
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
    bench.target.resize_namespace(bench.subsystem, 1, 3000).expect("exists");
    assert_eq!(bench.completions().len(), 1, "unmasked");
}

#[test]
fn events_that_the_host_did_not_enable_are_not_sent() {
    let mut bench = Bench::new();
    let controller = bench.ready();
    bench.request_event(controller, 1);
    bench.target.resize_namespace(bench.subsystem, 1, 2000).expect("exists");
    assert_eq!(bench.completions(), []);
    let configure = command::set_feature(Feature::AsyncEventConfiguration, u32::MAX);
    bench.admin(controller, configure).expect("unsupported bits are dropped");
    let get = command::get_feature(Feature::AsyncEventConfiguration, 0);
    assert_eq!(bench.admin(controller, get).map(|done| done.0), Ok(event::NAMESPACE_ATTRIBUTE | event::SMART_WARNINGS));
}

#[test]
fn discovery_hosts_hear_of_changes_and_see_only_what_they_may() {
    let mut bench = Bench::new();
    bench.target.add_port(1, "0.0.0.0:4420".parse().expect("address"));
    bench.target.add_port(2, "[2001:db8::1]:4421".parse().expect("address"));
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
    for _ in 0..super::identify::ABORTS_MAX {
        assert_eq!(submit(&mut bench), AdminOutcome::Abort { sqid: 1, cid: 5 });
    }
    assert!(matches!(submit(&mut bench), AdminOutcome::Complete { cqe, .. }
        if cqe.status().kind() == Status::ABORT_LIMIT_EXCEEDED));
    assert_eq!(bench.target.abort_done(controller, 9, true), Cqe::success(9, 0));
    assert_eq!(bench.target.abort_done(controller, 9, false), Cqe::success(9, 1));
    assert_eq!(submit(&mut bench), AdminOutcome::Abort { sqid: 1, cid: 5 });
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
    ];
    for state in
        [ControllerState::Disabled, ControllerState::Ready, ControllerState::ShuttingDown, ControllerState::ShutDown]
    {
        let mut bench = Bench::new();
        let controller = bench.connect(&nqn("disk"), 0);
        if state != ControllerState::Disabled {
            bench.enable(controller);
        }
        if matches!(state, ControllerState::ShuttingDown | ControllerState::ShutDown) {
            let cc = Configuration::ENABLE.with_shutdown(1);
            bench.property_set(controller, property::CC, cc.0).expect("valid");
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
                        ControllerState::Disabled => assert_eq!(status, Status::COMMAND_SEQUENCE_ERROR),
                        _ => assert_eq!(status == Status::INVALID_OPCODE, !is_offered, "{opcode:02x} {status}"),
                    }
                }
                AdminOutcome::Pending => assert_eq!(opcode, AdminOpcode::AsyncEventRequest as u8),
                AdminOutcome::Abort { .. } => panic!("queue 0 is handled here"),
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
    assert_eq!(bench.events(), [TargetEvent::CloseController { controller: mine }]);
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
