//! Namespaces that some hosts do not see.

use super::*;
use crate::spec::reservation::{
    AcquireAction, Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType,
};
use crate::target::reservation::Request;

fn only(hosts: &[&str]) -> Option<Mask> {
    Some(std::sync::Arc::new(hosts.iter().map(|host| nqn(host)).collect()))
}

/// A subsystem with namespace 1 for every host and namespace 2 for host "one" alone, and the controllers of two hosts.
fn bench() -> (Bench, ControllerHandle, ControllerHandle) {
    let mut bench = Bench::new();
    let namespace = Namespace::new(12, 500, uuid::Uuid::from_u128(2));
    bench.target.add_masked_namespace(bench.subsystem, Some(2), namespace, only(&["one"])).expect("new");
    let mut ready = |host, id| {
        let controller = bench.connect_host(host, id, &nqn("disk"), 0);
        bench.enable(controller);
        let events = command::set_feature(Feature::AsyncEventConfiguration, event::NAMESPACE_ATTRIBUTE);
        bench.admin(controller, events).expect("set");
        controller
    };
    let (one, two) = (ready("one", 1), ready("two", 2));
    bench.events();
    (bench, one, two)
}

impl Bench {
    fn listed(&mut self, controller: ControllerHandle) -> Vec<u32> {
        let (_, page) = self.admin(controller, command::identify(Cns::ActiveNamespaces, 0, 0)).expect("identified");
        host::info::active_namespaces(&page).collect()
    }

    fn changed(&mut self, controller: ControllerHandle) -> Vec<u32> {
        let log = command::get_log_page(LogPage::ChangedNamespaces, 0, 4096, false);
        let (_, page) = self.admin(controller, log).expect("read");
        let nsids = page.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four")));
        nsids.take_while(|nsid| *nsid != 0).collect()
    }

    fn told(&mut self) -> Vec<ControllerHandle> {
        let told = |event| match event {
            TargetEvent::Complete { controller, cqe } => {
                assert_eq!(cqe.dw0(), EventResult::NAMESPACE_CHANGED.to_dw0());
                Some(controller)
            }
            _ => None,
        };
        self.events().into_iter().filter_map(told).collect()
    }
}

#[test]
fn a_masked_namespace_does_not_exist_for_a_host() {
    let (mut bench, one, two) = bench();
    assert_eq!((bench.listed(one), bench.listed(two)), (vec![1, 2], vec![1]));
    let page = |bench: &mut Bench, controller, cns| bench.admin(controller, command::identify(cns, 2, 0));
    for cns in [Cns::Namespace, Cns::IndependentNamespace] {
        assert!(page(&mut bench, one, cns).expect("seen").1.iter().any(|byte| *byte != 0));
        assert!(page(&mut bench, two, cns).expect("inactive").1.iter().all(|byte| *byte == 0));
    }
    assert!(page(&mut bench, one, Cns::NamespaceDescriptors).is_ok());
    assert_eq!(page(&mut bench, two, Cns::NamespaceDescriptors), Err(Status::INVALID_NAMESPACE));
    for feature in [Feature::ReservationMask, Feature::ReservationPersistence] {
        let of_two = |sqe: Sqe| Sqe { nsid: U32::new(2), ..sqe };
        assert!(bench.admin(one, of_two(command::get_feature(feature, 0))).is_ok());
        let refused = bench.admin(two, of_two(command::get_feature(feature, 0)));
        assert_eq!(refused, Err(Status::INVALID_NAMESPACE));
        let refused = bench.admin(two, of_two(command::set_feature(feature, 0)));
        assert_eq!(refused, Err(Status::INVALID_NAMESPACE));
    }
}

#[test]
fn a_change_is_told_to_the_hosts_that_it_concerns_and_to_no_others() {
    let (mut bench, one, two) = bench();
    for controller in [one, two] {
        (1..=4).for_each(|cid| assert_eq!(bench.request_event(controller, cid), AdminOutcome::Pending));
    }
    let subsystem = bench.subsystem;
    bench.target.set_mask(subsystem, 2, only(&["two", "three"])).expect("there");
    assert_eq!(bench.told(), [one, two]);
    assert_eq!((bench.changed(one), bench.changed(two)), (vec![2], vec![2]));
    assert_eq!((bench.listed(one), bench.listed(two)), (vec![1], vec![1, 2]));
    bench.target.set_mask(subsystem, 2, only(&["two", "three"])).expect("there");
    assert_eq!(bench.events(), [], "nothing has changed");
    bench.target.set_mask(subsystem, 2, None).expect("there");
    assert_eq!(bench.told(), [one]);
    assert_eq!((bench.changed(one), bench.changed(two)), (vec![2], vec![]));
    bench.target.set_mask(subsystem, 2, only(&[])).expect("there");
    assert_eq!(bench.told(), [one, two], "nobody sees it");
    assert_eq!((bench.changed(one), bench.changed(two)), (vec![2], vec![2]));
    bench.target.resize_namespace(subsystem, 2, 700, false).expect("there");
    bench.target.remove_namespace(subsystem, 2).expect("there");
    assert_eq!(bench.told(), [], "a change of what nobody sees is nobody's business");
    assert_eq!((bench.changed(one), bench.changed(two)), (vec![], vec![]));
    assert_eq!(bench.target.set_mask(subsystem, 2, None), Err(ModelError::NoSuchNamespace(2)));
    bench.target.add_namespace(subsystem, Some(2), Namespace::new(12, 500, uuid())).expect("free");
    assert_eq!((bench.listed(one), bench.listed(two)), (vec![1, 2], vec![1, 2]), "the mask went with the namespace");
}

#[test]
fn a_host_has_nothing_to_do_with_reservations_of_what_it_does_not_see() {
    let (mut bench, one, two) = bench();
    let subsystem = bench.subsystem;
    let register = |key| {
        let (action, persistence) = (RegisterAction::Register, PersistenceChange::Keep);
        Request::Command(ReservationCommand::Register { action, ignore_key: false, persistence }, Keys::new(0, key))
    };
    let plan = |bench: &mut Bench, controller, request: &Request| {
        let planned = bench.target.plan_reservation(controller, 2, request)?;
        bench.target.commit_reservation(planned).map(drop)
    };
    assert_eq!(plan(&mut bench, two, &register(0xb)), Err(Status::INVALID_NAMESPACE.dnr()));
    let mut out = [0; 256];
    let refused = bench.target.report_reservations(two, 2, true, &mut out);
    assert_eq!(refused, Err(Status::INVALID_NAMESPACE.dnr()));
    // Registered while it was seen, and preempted when it is not any more: no word of it.
    bench.target.set_mask(subsystem, 2, None).expect("there");
    assert_eq!(plan(&mut bench, one, &register(0xa)), Ok(()));
    assert_eq!(plan(&mut bench, two, &register(0xb)), Ok(()));
    bench.target.set_mask(subsystem, 2, only(&["one"])).expect("there");
    assert_eq!(bench.changed(two), [2]);
    bench.events();
    let (action, kind) = (AcquireAction::Preempt, ReservationType::WriteExclusive);
    let preempt = Request::Command(ReservationCommand::Acquire { action, kind }, Keys::new(0xa, 0xb));
    assert_eq!(bench.request_event(two, 9), AdminOutcome::Pending);
    assert_eq!(plan(&mut bench, one, &preempt), Ok(()));
    assert!(bench.completions().is_empty());
    assert_eq!(bench.target.reservations(subsystem, 2).registrants().len(), 1);
}
