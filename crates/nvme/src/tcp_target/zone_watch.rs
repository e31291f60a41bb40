//! Zones that change by themselves: while there are hosts, the home reactor looks at the devices of zoned namespaces every
//! now and then and has the hosts told.

use super::home::Home;
use crate::target::SubsystemId;
use bdev::{BlockDevice, ChangedZones, ZoneChanges};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// How often it looks.
const LOOK_NS: u64 = 500_000_000;

/// See the module.
#[derive(Default)]
pub(super) struct ZoneWatch {
    namespaces: RefCell<BTreeMap<(SubsystemId, u32), Watched>>,
    is_looking: Cell<bool>,
}

/// Where a device notes its changes, and how many of them hosts have been told of.
type Watched = (Arc<ZoneChanges>, u64);

impl Home {
    /// Watches the zones of a namespace, if it has any: what changes from now on is told.
    pub(super) fn watch_zones(self: &Rc<Self>, id: SubsystemId, nsid: u32, device: &dyn BlockDevice) {
        let Some(changes) = device.zone_changes() else { return };
        let told = changes.noted();
        self.zones.namespaces.borrow_mut().insert((id, nsid), (changes, told));
        self.begin_to_look();
    }

    /// There is a host, or a namespace with zones.
    pub(super) fn begin_to_look(self: &Rc<Self>) {
        let is_wanted = |home: &Home| home.has_hosts() && !home.zones.namespaces.borrow().is_empty();
        if !is_wanted(self) || self.zones.is_looking.replace(true) {
            return;
        }
        // What changed while there was nobody is no news.
        self.zones.namespaces.borrow_mut().values_mut().for_each(|(changes, told)| *told = changes.noted());
        let this = self.clone();
        self.reactor.spawn(async move {
            while is_wanted(&this) {
                let _ = this.reactor.timeout(LOOK_NS, this.hosts_moved()).await;
                this.look_at_zones();
            }
            this.zones.is_looking.set(false);
        });
    }

    /// Has hosts told of the zones that have changed, and forgets namespaces that are gone.
    fn look_at_zones(self: &Rc<Self>) {
        let mut news = Vec::new();
        self.zones.namespaces.borrow_mut().retain(|(id, nsid), (changes, told)| {
            match changes.since(told) {
                ChangedZones::These(zones) if zones.is_empty() => {}
                changed => news.push((*id, *nsid, changed)),
            }
            self.shared.exported(*id, *nsid).is_some()
        });
        for (id, nsid, changed) in news {
            self.change(|target| target.zones_changed(id, nsid, &changed));
        }
    }
}
