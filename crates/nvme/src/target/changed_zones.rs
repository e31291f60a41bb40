//! Zones that have changed by themselves and that one controller's host has not read of: the Changed Zone List (ZNS 1.1,
//! section 5.2), one for each namespace.

use std::collections::{BTreeMap, BTreeSet};

use bdev::ChangedZones;
use zerocopy::FromZeros;
use zerocopy::byteorder::little_endian::{U16, U64};

use crate::spec::zns::{CHANGED_ZONES_MANY, CHANGED_ZONES_MAX, ChangedZoneList};

/// See the module. Bounded by the namespaces of a subsystem and the zones of a list.
#[derive(Debug, Default)]
pub(super) struct ZoneLists(BTreeMap<u32, List>);

#[derive(Debug)]
enum List {
    These(BTreeSet<u64>),
    Many,
}

impl ZoneLists {
    /// Zones of a namespace have changed.
    pub(super) fn add(&mut self, nsid: u32, changed: &ChangedZones) {
        let list = self.0.entry(nsid).or_insert_with(|| List::These(BTreeSet::new()));
        match (&mut *list, changed) {
            (List::These(zones), ChangedZones::These(more)) => {
                zones.extend(more);
                if zones.len() > CHANGED_ZONES_MAX {
                    *list = List::Many;
                }
            }
            _ => *list = List::Many,
        }
    }

    /// The log page of a namespace.
    pub(super) fn page(&self, nsid: u32) -> ChangedZoneList {
        let mut page = ChangedZoneList::new_zeroed();
        match self.0.get(&nsid) {
            None => {}
            Some(List::Many) => page.count = U16::new(CHANGED_ZONES_MANY),
            Some(List::These(zones)) => {
                page.count = U16::new(zones.len() as u16);
                page.zones.iter_mut().zip(zones).for_each(|(slot, start)| *slot = U64::new(*start));
            }
        }
        page
    }

    /// The host has read the page of a namespace, or the namespace is gone. Another one that has something to be read.
    pub(super) fn clear(&mut self, nsid: u32) -> Option<u32> {
        self.0.remove(&nsid);
        self.0.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lists_each_zone_once_in_order_and_more_than_fit_as_many() {
        let mut lists = ZoneLists::default();
        lists.add(3, &ChangedZones::These(vec![20, 10]));
        lists.add(3, &ChangedZones::These(vec![10, 30]));
        lists.add(5, &ChangedZones::These((0..CHANGED_ZONES_MAX as u64).collect()));
        let page = lists.page(3);
        assert_eq!((page.count.get(), page.zones[..4].to_vec()), (3, [10, 20, 30, 0].map(U64::new).to_vec()));
        assert_eq!(lists.page(5).count.get(), 511);
        lists.add(5, &ChangedZones::These(vec![1000]));
        assert_eq!((lists.page(5).count.get(), lists.page(5).zones[0].get()), (CHANGED_ZONES_MANY, 0));
        assert_eq!(lists.clear(3), Some(5));
        assert_eq!(lists.page(3).count.get(), 0);
        assert_eq!(lists.clear(5), None);
        lists.add(5, &ChangedZones::Many);
        assert_eq!(lists.page(5).count.get(), CHANGED_ZONES_MANY);
    }
}
