//! What one guest may take: what is advertised is enforced, and what is more waits in its queue.

use crate::common::{Guest, Host, Stuck, Wish, memory_device, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use vhost_door::chain::{NEXT, WRITE};
use vhost_door::spec::{request, status};

const MIB: u32 = 1 << 20;
/// Where the data of large requests lies.
const DATA: u64 = 16 << 20;

/// Makes a request whose data is `segments` times the same piece of memory available, at descriptor `first`.
fn offer_large(guest: &mut Guest, kind: u32, first: u16, segments: u16, len: u32) {
    let header = 0x10_0000 + u64::from(first) * 64;
    guest.write(header, &[&kind.to_le_bytes()[..], &[0; 12]].concat());
    guest.write(header + 32, &[0xee]);
    guest.descriptor(0, first, (header, 16, NEXT, first + 1));
    let flags = if kind == request::IN { NEXT | WRITE } else { NEXT };
    for at in first + 1..=first + segments {
        guest.descriptor(0, at, (DATA, len, flags, at + 1));
    }
    guest.descriptor(0, first + 1 + segments, (header + 32, 1, WRITE, 0));
    guest.offer(0, first);
}

#[test]
fn a_request_as_large_as_advertised_is_carried_out_and_a_larger_one_is_not() {
    let host = Host::new(memory_device(200));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    for (round, (kind, len, wanted)) in [
        (request::OUT, MIB, status::OK),
        (request::IN, MIB, status::OK),
        (request::OUT, MIB + 512, status::IOERR),
        (request::IN, MIB + 512, status::IOERR),
    ]
    .into_iter()
    .enumerate()
    {
        offer_large(&mut guest, kind, 0, 126, len);
        guest.kick(0);
        until("it to end", || usize::from(guest.used(0)) == round + 1);
        assert_eq!(guest.read(0x10_0000 + 32, 1)[0], wanted, "request {kind} in pieces of {len}");
    }
}

#[test]
fn ranges_longer_than_advertised_fail() {
    let host = Host::new(memory_device(2048));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    let range = |sectors: u32| [&0u64.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    for kind in [request::DISCARD, request::WRITE_ZEROES] {
        assert_eq!(guest.ask(0, kind, 0, &range(1 << 21), 0).status, status::OK);
        assert_eq!(guest.ask(0, kind, 0, &range((1 << 21) + 1), 0).status, status::IOERR);
    }
}

#[test]
fn a_queue_whose_share_of_the_buffers_is_out_waits_and_others_go_on() {
    let writes = Arc::new(AtomicUsize::new(0));
    let mut host = Host::new(Arc::new(Stuck { child: memory_device(4), writes: writes.clone() }));
    // Two reactors: queues 0 and 2 are on the first, each has a quarter of its 64 MiB.
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 3, ..Wish::default() });
    (0..40).for_each(|at| offer_large(&mut guest, request::OUT, at * 3, 1, MIB));
    guest.kick(0);
    until("its share to be out", || writes.load(Ordering::SeqCst) == 16);
    for _ in 0..50 {
        assert_eq!(guest.ask(2, request::FLUSH, 0, &[], 0).status, status::OK);
    }
    assert_eq!((writes.load(Ordering::SeqCst), guest.used(0), host.status().totals.errors), (16, 0, 0));
    host.runtime.stop();
    drop(host.door.take());
}
