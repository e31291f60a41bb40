//! Fair sharing of a reactor between the hosts whose commands meet on it.
//!
//! A host that is alone has all of it. Where commands of several hosts have come of late, each has a part of every turn: so
//! much is taken from its connections, however much has arrived, and the rest stays with the connection and in its
//! socket until the next turn. And only so many of its commands are in devices that take their time, because what stands in a
//! device's queue is before everything that comes later. So a host with one command under way waits for a part of a turn and
//! not for a thousand commands of its neighbour.
//!
//! Hosts are told apart by their identifiers, so more connections do not make a larger part.

use crate::target::reservation::HostId;
use reactor::Reactor;
use reactor::sync::Notify;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};

/// Hosts that have sent something within so long of each other meet, and for so long after that.
const RECENT_NS: u64 = 100_000_000;
/// What a host may have done in one turn beside others. A command is a unit, and so are 4 KiB of data: 10 to 20 us together.
const UNITS_PER_TURN: u32 = 8;
/// Connections of a host that take part in one turn, beside others: each costs a receive and a send.
const CONNECTIONS_PER_TURN: u32 = 2;
/// Bytes of data to units.
pub(super) const UNIT_SHIFT: u32 = 12;
/// Commands of a host in devices, beside others: enough for the dies of a drive or the arms of many disks.
const FLYING_MAX: u32 = 32;
/// Bytes received at once from a connection of a host that is beside others.
pub(super) const RECEIVE_BYTES: usize = 16 << 10;
/// Bytes of one payload received at once straight into its buffer.
pub(super) const DIRECT_BYTES: usize = (UNITS_PER_TURN as usize) << UNIT_SHIFT;

/// The shares of a reactor.
#[derive(Default)]
pub(super) struct Shares {
    hosts: RefCell<BTreeMap<HostId, Weak<HostShare>>>,
    /// Who sent something last, and when.
    last: Cell<Option<(HostId, u64)>>,
    shared_until_ns: Cell<u64>,
}

impl Shares {
    /// The share of a host, for another of its connections.
    pub(super) fn of(&self, host: HostId) -> Rc<HostShare> {
        let mut hosts = self.hosts.borrow_mut();
        if let Some(share) = hosts.get(&host).and_then(Weak::upgrade) {
            return share;
        }
        hosts.retain(|_, share| share.strong_count() > 0);
        let share = Rc::new(HostShare::new(host));
        hosts.insert(host, Rc::downgrade(&share));
        share
    }

    /// A host has sent something.
    #[inline]
    pub(super) fn heard(&self, share: &HostShare, now_ns: u64) {
        if let Some((other, at_ns)) = self.last.replace(Some((share.host, now_ns)))
            && other != share.host
            && now_ns.saturating_sub(at_ns) < RECENT_NS
        {
            self.shared_until_ns.set(now_ns + RECENT_NS);
        }
    }

    /// Whether hosts meet here.
    #[inline]
    pub(super) fn are_needed(&self, now_ns: u64) -> bool {
        now_ns < self.shared_until_ns.get()
    }
}

/// What one host has of a reactor.
pub(super) struct HostShare {
    host: HostId,
    /// The last turn in which a connection of it took part, how many did, and how many in the turn before.
    turn: Cell<u64>,
    taking_part: Cell<u32>,
    took_part: Cell<u32>,
    /// Connections that wait to take part, in the order in which they are let in, and the turns in which they last asked.
    line: RefCell<VecDeque<(u64, u64)>>,
    /// The last turn in which something was sent to the host, and how much.
    sent: Cell<(u64, usize)>,
    /// Commands that devices have.
    flying: Cell<u32>,
    /// None of them has ended for a while: holding the rest back gains nothing, and may not be because of one device.
    stuck: Cell<bool>,
    landed: Notify,
}

impl HostShare {
    fn new(host: HostId) -> HostShare {
        HostShare {
            host,
            turn: Cell::default(),
            taking_part: Cell::default(),
            took_part: Cell::default(),
            line: RefCell::default(),
            sent: Cell::default(),
            flying: Cell::default(),
            stuck: Cell::default(),
            landed: Notify::default(),
        }
    }

    /// A connection of the host wants to take part in a turn: the units it may have done, none when others of the host are
    /// before it and it is to ask again in the next turn. Connections share in what the host has.
    pub(super) fn take_part(&self, connection: u64, turn: u64) -> Option<u32> {
        if self.turn.get() != turn {
            let before = if self.turn.get() + 1 == turn { self.taking_part.get() } else { 0 };
            self.turn.set(turn);
            self.took_part.set(before);
            self.taking_part.set(0);
            // Who did not ask again wants nothing any more, and nobody waits for it.
            self.line.borrow_mut().retain(|(_, asked)| asked + 1 >= turn);
        }
        let mut line = self.line.borrow_mut();
        let place = line.iter().position(|(other, _)| *other == connection);
        let left = CONNECTIONS_PER_TURN - self.taking_part.get();
        if place.unwrap_or(line.len()) >= left as usize {
            match place {
                Some(place) => line[place].1 = turn,
                None => line.push_back((connection, turn)),
            }
            return None;
        }
        place.map(|place| line.remove(place));
        self.taking_part.set(self.taking_part.get() + 1);
        Some(UNITS_PER_TURN / self.taking_part.get().max(self.took_part.get()))
    }

    /// Bytes that one of its connections may send now: what the turn has left for the host, and a little in any case.
    pub(super) fn send_max(&self, turn: u64) -> usize {
        let (last, bytes) = self.sent.get();
        let sent = if last == turn { bytes } else { 0 };
        DIRECT_BYTES.saturating_sub(sent).max(1 << UNIT_SHIFT)
    }

    /// So much has been sent to the host.
    pub(super) fn sent(&self, turn: u64, bytes: usize) {
        let (last, before) = self.sent.get();
        self.sent.set((turn, if last == turn { before + bytes } else { bytes }));
    }

    /// A device has taken a command.
    #[inline]
    pub(super) fn take_off(&self) {
        self.flying.set(self.flying.get() + 1);
    }

    /// It has ended.
    #[inline]
    pub(super) fn land(&self) {
        let flying = self.flying.get() - 1;
        self.flying.set(flying);
        self.stuck.set(false);
        if flying + 1 == FLYING_MAX {
            self.landed.notify_all();
        }
    }

    /// Whether devices have as many commands as they may of a host beside others.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.flying.get() >= FLYING_MAX && !self.stuck.get()
    }

    /// Waits until devices may have more, which is when some have ended, or none has for a while.
    pub(super) async fn has_room(&self, reactor: &Rc<Reactor>) {
        if reactor.timeout(RECENT_NS, self.landed.wait_until(|| !self.is_full())).await.is_none() {
            self.stuck.set(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn shares_are_needed_while_hosts_meet_and_not_for_one_alone() {
        let shares = Shares::default();
        let (one, other) = (shares.of(HostId([1; 16])), shares.of(HostId([2; 16])));
        for at in 0..10 {
            shares.heard(&one, at * MS);
        }
        assert!(!shares.are_needed(10 * MS), "it is alone");
        shares.heard(&other, 20 * MS);
        assert!(shares.are_needed(20 * MS) && shares.are_needed(119 * MS) && !shares.are_needed(120 * MS));
        shares.heard(&other, 150 * MS);
        shares.heard(&one, 300 * MS);
        assert!(!shares.are_needed(300 * MS), "they came long after each other");
    }

    #[test]
    fn connections_of_a_host_share_its_part() {
        let share = Shares::default().of(HostId([1; 16]));
        assert_eq!(share.take_part(7, 1), Some(8));
        assert_eq!((share.take_part(7, 2), share.take_part(8, 2)), (Some(8), Some(4)));
        assert_eq!((share.take_part(7, 3), share.take_part(8, 3)), (Some(4), Some(4)), "as many as in the turn before");
        assert_eq!(share.take_part(7, 9), Some(8), "turns without it count for nothing");
    }

    #[test]
    fn of_many_connections_each_has_its_turn_and_nobody_waits_for_one_that_wants_nothing() {
        let share = Shares::default().of(HostId([1; 16]));
        let mut had = [0; 7];
        for turn in 1..=70 {
            for connection in 0..7 {
                had[connection as usize] += share.take_part(connection, turn).is_some() as u32;
            }
        }
        // Who asks first in a turn is in line a little earlier.
        assert!(had.iter().all(|turns| (16..=24).contains(turns)), "{had:?}");
        assert!(share.line.borrow().len() >= 2);
        assert_eq!(share.take_part(9, 71), None, "others are before it");
        assert!(share.take_part(9, 72).is_some(), "they have not asked again");
    }

    #[test]
    fn what_is_sent_to_all_connections_of_a_host_counts_together() {
        let share = Shares::default().of(HostId([1; 16]));
        assert_eq!(share.send_max(1), DIRECT_BYTES);
        share.sent(1, DIRECT_BYTES - 5000);
        assert_eq!(share.send_max(1), 5000);
        share.sent(1, 5000);
        assert_eq!((share.send_max(1), share.send_max(2)), (4096, DIRECT_BYTES));
    }

    #[test]
    fn a_host_is_one_however_many_connections_it_has_and_forgotten_with_the_last() {
        let shares = Shares::default();
        let share = shares.of(HostId([1; 16]));
        assert!(Rc::ptr_eq(&share, &shares.of(HostId([1; 16]))));
        drop(share);
        drop(shares.of(HostId([2; 16])));
        let _third = shares.of(HostId([3; 16]));
        assert_eq!(shares.hosts.borrow().len(), 1);
    }

    #[test]
    fn there_is_room_when_some_have_landed_and_when_none_does() {
        let share = Shares::default().of(HostId::NONE);
        (0..FLYING_MAX + 1).for_each(|_| share.take_off());
        assert!(share.is_full());
        share.land();
        assert!(share.is_full());
        share.stuck.set(true);
        assert!(!share.is_full());
        share.land();
        assert!(!share.is_full() && !share.stuck.get());
        share.take_off();
        assert!(share.is_full(), "something has landed: it is not stuck");
    }
}
