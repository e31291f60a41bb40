//! Zones that change by themselves, as hosts hear of it.

use super::*;
use bdev::ChangedZones;

/// A subsystem whose namespaces 2 and 3 are zoned, and a controller of "host" that is told of their zones.
fn bench() -> (Bench, ControllerHandle) {
    let mut bench = Bench::new();
    for nsid in [2, 3] {
        let zoned = Zoned { zone_blocks: 100, open_zones_max: 0, active_zones_max: 0, extension_bytes: 0 };
        let namespace =
            Namespace { zoned: Some(zoned), ..Namespace::new(12, 1000, uuid::Uuid::from_u128(u128::from(nsid))) };
        bench.target.add_namespace(bench.subsystem, Some(nsid), namespace).expect("new");
    }
    let controller = bench.connect(&nqn("disk"), 0);
    bench.property_set(controller, property::CC, Configuration::ENABLE_ALL_SETS.0).expect("valid");
    let events = command::set_feature(Feature::AsyncEventConfiguration, event::ZONE_DESCRIPTOR_CHANGE);
    bench.admin(controller, events).expect("set");
    bench.events();
    (bench, controller)
}

impl Bench {
    fn change_zones(&mut self, nsid: u32) {
        self.target.zones_changed(self.subsystem, nsid, &ChangedZones::These(vec![100]));
    }

    /// The namespaces that events about zones named, which requests under way were answered with.
    fn told_of_zones(&mut self) -> Vec<u64> {
        let of = |cqe: Cqe| {
            assert_eq!(EventResult::from_dw0(cqe.dw0()), EventResult::ZONES_CHANGED);
            cqe.result.get() >> 32
        };
        self.completions().into_iter().map(of).collect()
    }
}

#[test]
fn an_event_about_zones_masks_others_no_longer_than_its_namespace_exists() {
    for hide in [false, true] {
        let (mut bench, controller) = bench();
        for cid in 0..2 {
            assert_eq!(bench.request_event(controller, cid), AdminOutcome::Pending);
        }
        bench.change_zones(2);
        assert_eq!(bench.told_of_zones(), [2]);
        bench.change_zones(3);
        assert_eq!(bench.told_of_zones(), [0; 0], "masked until the host has read of namespace 2");
        match hide {
            true => {
                let nobody = Some(std::sync::Arc::default());
                bench.target.set_mask(bench.subsystem, 2, nobody).expect("exists");
            }
            false => bench.target.remove_namespace(bench.subsystem, 2).expect("exists"),
        }
        assert_eq!(bench.told_of_zones(), [3], "which it cannot read of any more, hidden: {hide}");
    }
}

#[test]
fn an_event_about_zones_stays_masked_while_its_namespace_merely_changes() {
    let (mut bench, controller) = bench();
    for cid in 0..2 {
        assert_eq!(bench.request_event(controller, cid), AdminOutcome::Pending);
    }
    bench.change_zones(2);
    bench.target.resize_namespace(bench.subsystem, 2, 1100, false).expect("larger");
    bench.change_zones(2);
    assert_eq!(bench.told_of_zones(), [2]);
    let log = command::get_log_page(LogPage::ChangedZones, 0, 4096, false);
    let (_, page) = bench.admin(controller, Sqe { nsid: U32::new(2), ..log }).expect("read");
    assert_eq!(page[..2], [1, 0], "what changed before is still listed");
    bench.change_zones(2);
    assert_eq!(bench.told_of_zones(), [2]);
}

#[test]
fn an_event_about_zones_that_waits_goes_with_its_namespace() {
    let (mut bench, controller) = bench();
    bench.change_zones(2);
    bench.target.remove_namespace(bench.subsystem, 2).expect("exists");
    assert_eq!(bench.request_event(controller, 1), AdminOutcome::Pending);
    bench.change_zones(3);
    assert_eq!(bench.told_of_zones(), [3]);
}
