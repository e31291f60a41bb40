//! A daemon that is gone with requests under way: the next one carries them out, each once.

use crate::common::{Guest, Host, Stuck, Wish, memory_device, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vhost::VhostBackend;
use vhost_door::spec::{request, status};

#[test]
fn requests_that_a_killed_daemon_had_taken_are_carried_out_once_by_the_next() {
    let disk = memory_device(4);
    let writes = Arc::new(AtomicUsize::new(0));
    let mut host = Host::new(Arc::new(Stuck { child: disk.clone(), writes: writes.clone() }));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 0, ..Wish::default() });
    let area = guest.new_area(1);
    drop(guest);
    let wish = || Wish { area: Some((area.0, area.1.try_clone().unwrap())), ..Wish::default() };
    let mut guest = Guest::connect(&host.socket(), wish());
    assert_eq!(guest.ask(0, request::IN, 0, &[], 512).status, status::OK);
    // Two writes that never end, around a flush that does.
    let first = guest.submit(0, request::OUT, 1, &[1; 512], 0);
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    let second = guest.submit(0, request::OUT, 2, &[2; 512], 0);
    until("both writes to be taken", || writes.load(Ordering::SeqCst) == 2);
    // The daemon ends as if it were killed: its reactors go, and nothing is answered.
    host.runtime.stop();
    drop(host.door.take());
    assert_eq!(guest.used(0), 2);
    // The guest has gone on meanwhile.
    let third = guest.prepare(0, request::OUT, 3, &[3; 512], 0);
    guest.offer(0, third);
    let Guest { ram, rings, .. } = guest;
    let next = Host::new(disk);
    let mut guest = Guest::go_on(&next.socket(), ram, rings, wish());
    let ended: Vec<u16> =
        (0..3).map(|_| guest.next(0)).inspect(|one| assert_eq!(one.status, status::OK)).map(|one| one.head).collect();
    assert_eq!(ended, [first, second, third], "in the order in which they were taken");
    for sector in 1..=3u8 {
        assert_eq!(guest.ask(0, request::IN, sector.into(), &[], 512).data, [sector; 512]);
    }
    assert_eq!(guest.used(0), 8);
    let totals = next.status().totals;
    assert_eq!((totals.resubmitted, totals.writes, totals.stopped), (2, 3, 0));
    assert!(guest.was_called(0), "a call that the first one owed");
    drop(guest);
}

#[test]
fn a_daemon_that_dies_between_the_used_index_and_its_note_does_nothing_twice() {
    let host = Host::new(memory_device(4));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 0, ..Wish::default() });
    let area = guest.new_area(1);
    drop(guest);
    let wish = || Wish { area: Some((area.0, area.1.try_clone().unwrap())), ..Wish::default() };
    let mut guest = Guest::connect(&host.socket(), wish());
    let head = guest.submit(0, request::OUT, 1, &[1; 512], 0);
    guest.next(0);
    let Guest { ram, rings, front, .. } = guest;
    drop(front);
    until("the door to be free", || host.status().peer.is_none());
    // As it lies in the area when the daemon died right after the used index was visible: still noted as under way, the
    // index of the last note one behind.
    use std::os::unix::fs::FileExt;
    area.1.write_all_at(&[1], 16 + u64::from(head) * 16).unwrap();
    area.1.write_all_at(&0u16.to_ne_bytes(), 14).unwrap();
    let mut guest = Guest::go_on(&host.socket(), ram, rings, wish());
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    assert_eq!((guest.used(0), host.status().totals.resubmitted), (2, 0));
}

#[test]
fn an_area_that_makes_no_sense_is_refused_or_followed_within_its_bounds() {
    let host = Host::new(memory_device(4));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 0, ..Wish::default() });
    let area = guest.new_area(1);
    drop(guest);
    use std::os::unix::fs::FileExt;
    // Version 1 of a queue with as many entries, everything else at its worst.
    let mut bytes = vec![0xff; area.0.mmap_size as usize];
    bytes[8..12].copy_from_slice(&[1, 0, crate::common::ENTRIES as u8, 0]);
    area.1.write_all_at(&bytes, 0).unwrap();
    let wish = Wish { area: Some((area.0, area.1.try_clone().unwrap())), ..Wish::default() };
    // All its entries are said to be under way, and their chains are empty: the queue stops.
    let guest = Guest::connect(&host.socket(), wish);
    until("the queue to stop", || host.status().totals.stopped == 1);
    drop(guest);
    let mut next = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(next.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
}

#[test]
fn an_area_larger_than_the_ring_starts_it_unless_it_notes_what_the_ring_cannot_hold() {
    use std::os::unix::fs::FileExt;
    let host = Host::new(memory_device(4));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 0, ..Wish::default() });
    let area = guest.new_area_of(1, 2 * crate::common::ENTRIES);
    drop(guest);
    let wish = || Wish { area: Some((area.0, area.1.try_clone().unwrap())), ..Wish::default() };
    let mut guest = Guest::connect(&host.socket(), wish());
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    guest.front.get_vring_base(0).unwrap();
    area.1.write_all_at(&[1], 16 + u64::from(crate::common::ENTRIES) * 16).unwrap();
    assert!(guest.front.set_vring_kick(0, &guest.rings[0].kick).is_err(), "the queue is refused");
    drop(guest);
    let mut next = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(next.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
}
