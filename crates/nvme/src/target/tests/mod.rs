//! A target as a host meets it: commands in, completions and events out. Here: Connect, properties, keep alive.

mod admin;
mod ana;
mod format;
mod mask;
mod tls;
mod zones;

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
        let mut target = Target::new(config, 1);
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
        self.target.connect(self.now_ns, &sqe, data.as_bytes(), VIA, None).map_err(|refused| refused.cqe)
    }

    fn connect(&mut self, subsystem: &Nqn, kato_ms: u32) -> ControllerHandle {
        self.connect_host("host", 7, subsystem, kato_ms)
    }

    /// A controller of the host with this name and this byte all over its identifier.
    fn connect_host(&mut self, host: &str, id: u8, subsystem: &Nqn, kato_ms: u32) -> ControllerHandle {
        let data = command::connect_data([id; 16], &nqn(host), subsystem, None);
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
fn a_host_without_a_name_goes_by_its_identifier() {
    let mut bench = Bench::new();
    let nameless =
        ConnectData { hostnqn: [0; 256], ..command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None) };
    let connected = bench.connect_as(command::connect(0, 32, 0), &nameless).expect("accepted");
    let host = bench.target.controller(connected.controller).expect("alive").host_nqn().to_string();
    assert_eq!(host, "nqn.2014-08.org.nvmexpress:uuid:07070707-0707-0707-0707-070707070707");
}

#[test]
fn a_host_without_a_name_is_held_to_the_list_of_hosts_by_its_identifier() {
    let mut bench = Bench::new();
    bench.target.set_allow_any_host(bench.subsystem, false).expect("exists");
    let nameless =
        ConnectData { hostnqn: [0; 256], ..command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None) };
    let refused = bench.connect_as(command::connect(0, 32, 0), &nameless).expect_err("not listed");
    assert_eq!(refused.status().kind(), Status::CONNECT_INVALID_HOST);
    let name = Nqn::from_uuid(uuid::Uuid::from_bytes([7; 16]));
    bench.target.allow_host(bench.subsystem, name).expect("exists");
    assert!(bench.connect_as(command::connect(0, 32, 0), &nameless).is_ok());
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
    assert_eq!(parameter(admin(), &ConnectData { hostnqn: [b'x'; 256], ..good }), (512, true));
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
fn a_refusal_says_why_and_whom() {
    let mut bench = Bench::new();
    bench.target.set_allow_any_host(bench.subsystem, false).expect("exists");
    bench.target.allow_host(bench.subsystem, nqn("host")).expect("exists");
    let mut why = |host: &str, subsystem: &str, qid: u16, controller: Option<u16>| {
        let data = command::connect_data([7; 16], &nqn(host), &nqn(subsystem), controller);
        let connected = bench.target.connect(0, &command::connect(qid, 32, 0), data.as_bytes(), VIA, None);
        let refused = connected.expect_err("refused");
        assert_eq!((refused.host, refused.subsystem), (Some(nqn(host)), Some(nqn(subsystem))));
        refused.why
    };
    assert_eq!(why("host", "none", 0, None), WhyRefused::UnknownSubsystem);
    assert_eq!(why("stranger", "disk", 0, None), WhyRefused::NotAllowed);
    assert_eq!(why("host", "disk", 1, Some(77)), WhyRefused::Parameter("controller identifier"));
}

#[test]
fn a_connect_without_its_data_or_of_another_format_is_refused() {
    let mut bench = Bench::new();
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let sqe = command::connect(0, 32, 0);
    let cut = bench.target.connect(0, &sqe, &data.as_bytes()[..1023], VIA, None).expect_err("refused");
    assert_eq!(cut.cqe.status().kind(), Status::DATA_SGL_LENGTH_INVALID);
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
    assert!(
        bench.events().contains(&TargetEvent::CloseController { controller, why: WhyClosed::Revoked }),
        "not listed: loses its controller"
    );
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("disk"), None);
    let refused = bench.connect_as(command::connect(0, 32, 0), &data).expect_err("not listed");
    assert_eq!(refused.status().kind(), Status::CONNECT_INVALID_HOST);
    bench.target.allow_host(bench.subsystem, nqn("host")).expect("exists");
    let controller = bench.connect(&nqn("disk"), 0);
    bench.target.disallow_host(bench.subsystem, &nqn("host")).expect("exists");
    assert!(bench.events().contains(&TargetEvent::CloseController { controller, why: WhyClosed::Revoked }));
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
    assert!(bench.csts(controller).ready(), "until its commands have ended");
    assert_eq!(bench.property_set(controller, property::CC, Configuration::ENABLE.0), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(bench.events(), [TargetEvent::CloseQueue { controller, qid: 1 }, TargetEvent::Reset { controller }]);
    bench.target.reset_complete(controller);
    assert_eq!(bench.csts(controller).0, 0);
    assert_eq!(bench.admin(controller, command::keep_alive()), Err(Status::COMMAND_SEQUENCE_ERROR));
    bench.enable(controller);
    assert!(bench.admin(controller, command::keep_alive()).is_ok());
}

#[test]
fn properties_have_their_own_sizes_and_only_cc_is_writable() {
    let mut bench = Bench::new();
    let controller = bench.connect(&nqn("disk"), 0);
    let cap = Capabilities(bench.property_get(controller, property::CAP, true).expect("readable"));
    assert_eq!((cap.queue_entries_max(), cap.page_size_min()), (1024, 4096));
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
fn properties_are_for_the_admin_queue_and_unknown_types_are_refused() {
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
    assert_eq!(bench.events(), [TargetEvent::CloseController { controller, why: WhyClosed::Silent }]);
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
