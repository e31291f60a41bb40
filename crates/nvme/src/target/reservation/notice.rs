//! Notices that wait for one controller's host: the Reservation Notification log (Base 2.0, section 5.16.1.22).

use std::collections::{BTreeMap, VecDeque};

use zerocopy::FromZeros;
use zerocopy::byteorder::little_endian::{U32, U64};

use crate::spec::NSID_ALL;
use crate::spec::reservation::{NoticeLog, ReservationNotice};

/// Notices that wait at most; a host that lets more come finds a gap in their numbers.
const NOTICES_MAX: usize = 256;

/// See the module. A controller's reset forgets it all.
#[derive(Debug, Default)]
pub(in crate::target) struct Notices {
    /// Number of the last notice.
    count: u64,
    waiting: VecDeque<(u64, ReservationNotice, u32)>,
    /// What the host does not want to hear of: for all namespaces, and of single ones since.
    mask_of_all: u32,
    masks: BTreeMap<u32, u32>,
}

impl Notices {
    /// Adds a notice about a namespace. False if the host does not want to hear of it.
    pub(in crate::target) fn add(&mut self, notice: ReservationNotice, nsid: u32) -> bool {
        if self.mask(nsid) & notice.mask() != 0 {
            return false;
        }
        self.count = self.count.checked_add(1).unwrap_or(1);
        if self.waiting.len() < NOTICES_MAX {
            self.waiting.push_back((self.count, notice, nsid));
        }
        true
    }

    /// The notices that are masked for a namespace.
    pub(in crate::target) fn mask(&self, nsid: u32) -> u32 {
        self.masks.get(&nsid).copied().unwrap_or(self.mask_of_all)
    }

    pub(in crate::target) fn set_mask(&mut self, nsid: u32, mask: u32) {
        if nsid == NSID_ALL {
            self.mask_of_all = mask;
            self.masks.clear();
        } else {
            self.masks.insert(nsid, mask);
        }
    }

    /// A namespace is gone: the next one of its number starts anew, and nothing is told of it.
    pub(in crate::target) fn forget(&mut self, nsid: u32) {
        self.masks.remove(&nsid);
        self.waiting.retain(|(_, _, of)| *of != nsid);
    }

    /// The oldest notice as a page; an empty one when there is none.
    pub(in crate::target) fn page(&self) -> NoticeLog {
        let mut page = NoticeLog::new_zeroed();
        if let Some((count, notice, nsid)) = self.waiting.front() {
            page.count = U64::new(*count);
            page.kind = *notice as u8;
            page.available = u8::try_from(self.waiting.len() - 1).unwrap_or(u8::MAX);
            page.nsid = U32::new(*nsid);
        }
        page
    }

    /// The host has read the oldest notice. True if there are more.
    pub(in crate::target) fn acknowledge(&mut self) -> bool {
        self.waiting.pop_front();
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ReservationNotice::*;

    #[test]
    fn pages_are_read_in_order_and_numbered_from_one() {
        let mut notices = Notices::default();
        assert_eq!(notices.page(), NoticeLog::new_zeroed());
        assert!(notices.add(ReservationReleased, 7) && notices.add(RegistrationPreempted, 8));
        let read = |notices: &Notices| {
            let page = notices.page();
            (page.count.get(), page.kind, page.available, page.nsid.get())
        };
        assert_eq!(read(&notices), (1, 2, 1, 7));
        assert!(notices.acknowledge());
        assert_eq!(read(&notices), (2, 1, 0, 8));
        assert!(!notices.acknowledge());
        assert_eq!(read(&notices), (0, 0, 0, 0));
    }

    #[test]
    fn notices_that_found_no_room_are_missing_from_the_numbers() {
        let mut notices = Notices::default();
        for _ in 0..NOTICES_MAX + 3 {
            notices.add(ReservationReleased, 1);
        }
        assert_eq!(notices.page().available, 255);
        while notices.acknowledge() {}
        notices.add(ReservationReleased, 1);
        assert_eq!(notices.page().count.get(), NOTICES_MAX as u64 + 4);
    }

    #[test]
    fn a_mask_is_for_one_namespace_or_for_all() {
        let mut notices = Notices::default();
        notices.set_mask(2, ReservationReleased.mask());
        assert!(!notices.add(ReservationReleased, 2) && notices.add(ReservationPreempted, 2));
        assert!(notices.add(ReservationReleased, 3));
        notices.set_mask(NSID_ALL, ReservationPreempted.mask());
        assert!(notices.add(ReservationReleased, 2) && !notices.add(ReservationPreempted, 3));
        notices.set_mask(3, 0);
        assert!(notices.add(ReservationPreempted, 3));
        notices.forget(3);
        assert!(!notices.add(ReservationPreempted, 3));
    }
}
