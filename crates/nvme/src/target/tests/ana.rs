//! Asymmetric namespace access as hosts at two ports meet it.

use super::*;
use crate::spec::ana::{AnaState, GROUPS_ONLY};
use crate::spec::identify::{IdentifyController, IdentifyNamespace};
use zerocopy::FromBytes;

const NEAR: SocketAddr = VIA;
const FAR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4421);

/// Group, state and namespaces of each descriptor.
type Log = Vec<(u32, AnaState, Vec<u32>)>;

impl Bench {
    /// A controller at a port, with notices of changes switched on.
    fn at(&mut self, port: SocketAddr, host: &str) -> ControllerHandle {
        let data = command::connect_data([7; 16], &nqn(host), &nqn("disk"), None);
        let connect = command::connect(0, 32, 0);
        let connected = self.target.connect(self.now_ns, &connect, data.as_bytes(), port, None).expect("allowed");
        self.enable(connected.controller);
        let events = event::ANA_CHANGE | event::NAMESPACE_ATTRIBUTE;
        self.admin(connected.controller, command::set_feature(Feature::AsyncEventConfiguration, events)).expect("set");
        connected.controller
    }

    fn ana_log(&mut self, controller: ControllerHandle, lsp: u8) -> (u64, Log) {
        let mut sqe = command::get_log_page(LogPage::Ana, 0, 4096, false);
        let view = GetLogPageCommand { lsp, ..GetLogPageCommand::of(&sqe) };
        view.store(&mut sqe);
        let (_, page) = self.admin(controller, sqe).expect("read");
        let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().expect("four"));
        let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight"));
        let (count, mut at) = (u16::from_le_bytes([page[8], page[9]]), 16);
        let groups = (0..count).map(|_| {
            let (group, nsids) = (word(at), word(at + 4) as usize);
            assert_eq!(long(at + 8), long(0), "one change count");
            let state = AnaState::from_u8(page[at + 16]).expect("a state");
            let nsids = (0..nsids).map(|index| word(at + 32 + index * 4)).collect::<Vec<_>>();
            at += 32 + nsids.len() * 4;
            (group, state, nsids)
        });
        let groups = groups.collect();
        assert!(page[at..].iter().all(|byte| *byte == 0));
        (long(0), groups)
    }

    fn set_far(&mut self, group: u32, state: AnaState) {
        let states = AnaStates { ports: BTreeMap::from([(FAR, state)]), ..AnaStates::default() };
        self.target.set_ana(self.subsystem, group, states).expect("a group");
    }

    fn add_in_group(&mut self, nsid: u32, ana_group: u32) {
        let namespace = Namespace { ana_group, ..Namespace::new(12, 500, uuid::Uuid::from_u128(u128::from(nsid))) };
        self.target.add_namespace(self.subsystem, Some(nsid), namespace).expect("new");
    }
}

#[test]
fn identify_says_what_multipath_hosts_insist_on() {
    let mut bench = Bench::new();
    bench.add_in_group(2, 9);
    let controller = bench.at(NEAR, "host");
    let (_, page) = bench.admin(controller, command::identify(Cns::Controller, 0, 0)).expect("identified");
    let id = IdentifyController::ref_from_bytes(&page).expect("a page");
    assert_eq!((id.cmic, id.anacap), (0b1011, 0b0101_1111));
    assert!(id.anatt > 0 && id.oaes.get() & event::ANA_CHANGE != 0);
    let (max, count) = (id.anagrpmax.get(), id.nanagrpid.get());
    assert!(max >= count && count > 0);
    // Linux reads the whole log in one command.
    assert!(16 + count * 32 + id.mnan.get() * 4 <= 8192);
    for (nsid, group) in [(1, 1), (2, 9)] {
        let (_, page) = bench.admin(controller, command::identify(Cns::Namespace, nsid, 0)).expect("identified");
        let id = IdentifyNamespace::ref_from_bytes(&page).expect("a page");
        assert_eq!((id.anagrpid.get(), id.nmic), (group, 1));
    }
}

#[test]
fn the_log_tells_each_port_its_own_states_of_the_groups_that_a_host_sees() {
    let mut bench = Bench::new();
    bench.add_in_group(2, 9);
    bench.add_in_group(3, 1);
    bench.add_in_group(4, 5);
    let mask = std::sync::Arc::new(BTreeSet::from([nqn("other")]));
    bench.target.set_mask(bench.subsystem, 4, Some(mask)).expect("there");
    let (near, far) = (bench.at(NEAR, "host"), bench.at(FAR, "host"));
    bench.set_far(9, AnaState::Inaccessible);
    let (count, log) = bench.ana_log(near, 0);
    use AnaState::*;
    assert_eq!(log, [(1, Optimized, vec![1, 3]), (9, Optimized, vec![2])]);
    assert_eq!(bench.ana_log(far, 0), (count, vec![(1, Optimized, vec![1, 3]), (9, Inaccessible, vec![2])]));
    let groups = vec![(1, Optimized, vec![]), (9, Inaccessible, vec![])];
    assert_eq!(bench.ana_log(far, GROUPS_ONLY), (count, groups));
    // A part of it, as some hosts read logs.
    let part = command::get_log_page(LogPage::Ana, 16, 4, false);
    assert_eq!(bench.admin(far, part).expect("read").1, 1u32.to_le_bytes());
    let behind = command::get_log_page(LogPage::Ana, 4096, 4, false);
    assert_eq!(bench.admin(far, behind), Err(Status::INVALID_FIELD));
    for state in AnaState::ALL {
        let everywhere = AnaStates { everywhere: state, ports: BTreeMap::new() };
        bench.target.set_ana(bench.subsystem, 9, everywhere).expect("a group");
        let (later, log) = bench.ana_log(near, 0);
        assert_eq!((log[1].1, log[0].1), (state, Optimized));
        assert!(later > count);
    }
}

#[test]
fn a_change_is_told_at_the_ports_where_it_happens_until_the_log_is_read() {
    let mut bench = Bench::new();
    let (near, far) = (bench.at(NEAR, "host"), bench.at(FAR, "host"));
    bench.events();
    for controller in [near, far] {
        (1..=3).for_each(|cid| assert_eq!(bench.request_event(controller, cid), AdminOutcome::Pending));
    }
    let told = |bench: &mut Bench| {
        let told = |event| match event {
            TargetEvent::Complete { controller, cqe } => {
                assert_eq!(cqe.dw0(), EventResult::ANA_CHANGED.to_dw0());
                Some(controller)
            }
            _ => None,
        };
        bench.events().into_iter().filter_map(told).collect::<Vec<_>>()
    };
    bench.set_far(1, AnaState::Inaccessible);
    assert!(bench.target.events.contains(&TargetEvent::NamespaceChanged { subsystem: bench.subsystem, nsid: 1 }));
    assert_eq!(told(&mut bench), [far]);
    bench.set_far(1, AnaState::Change);
    assert_eq!(told(&mut bench), [], "masked until the log is read");
    bench.ana_log(far, 0);
    bench.set_far(1, AnaState::Change);
    assert_eq!(bench.events(), [], "the same as before");
    bench.set_far(1, AnaState::Optimized);
    assert_eq!(told(&mut bench), [far]);
    bench.set_far(7, AnaState::Inaccessible);
    assert_eq!(told(&mut bench), [], "there is nothing in that group");
    for group in [0, ANA_GROUPS_MAX + 1] {
        let refused = bench.target.set_ana(bench.subsystem, group, AnaStates::default());
        assert_eq!(refused, Err(ModelError::BadAnaGroup(group)));
    }
}

#[test]
fn features_and_usage_of_a_namespace_that_is_not_reached_are_not_to_be_had() {
    let mut bench = Bench::new();
    let (near, far) = (bench.at(NEAR, "host"), bench.at(FAR, "host"));
    let uses = |bench: &mut Bench, controller| {
        let (_, page) = bench.admin(controller, command::identify(Cns::Namespace, 1, 0)).expect("identified");
        let id = IdentifyNamespace::ref_from_bytes(&page).expect("a page");
        assert_eq!(id.nsze.get(), 1000);
        (id.nuse.get(), id.nvmcap.get())
    };
    let of_one = |sqe: Sqe| Sqe { nsid: U32::new(1), ..sqe };
    let get = of_one(command::get_feature(Feature::ReservationPersistence, 0));
    let states = [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
    ];
    for (state, status) in states {
        bench.set_far(1, state);
        assert_eq!(uses(&mut bench, near), (1000, 1000 * 4096));
        assert_eq!(uses(&mut bench, far), (0, 0));
        assert!(bench.admin(near, get).is_ok());
        let AdminOutcome::Complete { cqe, .. } = bench.target.admin(bench.now_ns, far, &get, &[], &mut []) else {
            panic!("answered")
        };
        assert_eq!(cqe.status(), status, "and another path may be tried");
    }
    bench.set_far(1, AnaState::NonOptimized);
    assert!(bench.admin(far, get).is_ok() && uses(&mut bench, far).0 > 0);
}

#[test]
fn controllers_have_identifiers_of_their_nodes_range() {
    let mut target = Target::new(TargetConfig::default(), 1);
    let config = SubsystemConfig { controller_ids: (100, 102), ..SubsystemConfig::new(nqn("shared")) };
    target.add_subsystem(config).expect("new");
    let data = command::connect_data([7; 16], &nqn("host"), &nqn("shared"), None);
    let connect = |target: &mut Target| {
        let connected = target.connect(0, &command::connect(0, 32, 0), data.as_bytes(), VIA, None);
        connected.map(|connected| (connected.controller, connected.cqe.dw0() as u16))
    };
    let first = connect(&mut target).expect("free");
    assert_eq!(first.1, 100);
    assert_eq!([(); 2].map(|()| connect(&mut target).expect("free").1), [101, 102]);
    assert_eq!(connect(&mut target).expect_err("none left").cqe.status().kind(), Status::CONNECT_CONTROLLER_BUSY);
    target.queue_closed(first.0, 0);
    assert_eq!(connect(&mut target).expect("free again").1, 100);
    for controller_ids in [(0, 5), (6, 5), (1, 0xfff0)] {
        let config = SubsystemConfig { controller_ids, ..SubsystemConfig::new(nqn("odd")) };
        assert!(matches!(target.add_subsystem(config), Err(ModelError::BadControllerIds { .. })));
    }
}
