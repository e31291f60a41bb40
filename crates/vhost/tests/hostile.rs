//! Guests that write anything into their queues: requests fail, queues stop, the door and its reactors go on.

use crate::common::{ENTRIES, Guest, Host, MEMORY_BYTES, Wish, memory_device, until};
use proptest::prelude::*;
use vhost_door::chain::{Chain, ChainError, DESCRIPTORS_MAX, INDIRECT, NEXT, WRITE};
use vhost_door::memory::Memory;
use vhost_door::spec::{request, status};

type Descriptor = (u64, u32, u16, u16);

/// A door at which one chain of these descriptors was made available.
fn stops(descriptors: &[Descriptor]) {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    for (index, descriptor) in descriptors.iter().enumerate() {
        guest.descriptor(0, index as u16, *descriptor);
    }
    guest.offer(0, 0);
    guest.kick(0);
    until("the queue to stop", || host.status().totals.stopped == 1);
    until("the guest to be told", || guest.rings[0].error.read().is_ok());
    assert_eq!(guest.used(0), 0);
    drop(guest);
    let mut next = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(next.ask(0, request::FLUSH, 0, &[], 0).status, status::OK, "the next guest is served");
}

const HEADER: u64 = 0x10_0000;

#[test]
fn chains_that_make_no_sense_stop_the_queue() {
    let header = (HEADER, 16, NEXT, 1);
    let status = (HEADER + 64, 1, WRITE, 0);
    stops(&[(HEADER, 16, NEXT, 0)]);
    stops(&[header, (HEADER, 16, NEXT, 0)]);
    stops(&[header, (HEADER, 16, NEXT, ENTRIES)]);
    stops(&[(HEADER, 16, 0, 0)]);
    stops(&[(HEADER, 15, NEXT, 1), status]);
    stops(&[(HEADER, 16, NEXT | WRITE, 1), (HEADER, 16, 0, 0)]);
    stops(&[header, (HEADER, u32::MAX, NEXT | WRITE, 2), (HEADER, u32::MAX, WRITE, 0)]);
    stops(&[(MEMORY_BYTES, 16, NEXT, 1), status]);
    stops(&[(u64::MAX - 3, 16, NEXT, 1), status]);
    stops(&[header, (MEMORY_BYTES, 1, WRITE, 0)]);
    stops(&[(0, 32, INDIRECT, 0)]);
    stops(&[(HEADER, 15, INDIRECT, 0)]);
    stops(&[(HEADER, 0, INDIRECT, 0)]);
    stops(&[(MEMORY_BYTES - 16, 32, INDIRECT, 0)]);
    stops(&[(u64::MAX - 15, 16, INDIRECT, 0)]);
    stops(&[(HEADER, 16, INDIRECT | NEXT, 1), status]);
    stops(&[(HEADER, 1 << 20, INDIRECT, 0)]);
}

#[test]
fn data_outside_the_shared_memory_fails_its_request_alone() {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    for (kind, flags) in [(request::IN, WRITE), (request::OUT, 0)] {
        for address in [MEMORY_BYTES, MEMORY_BYTES - 256, u64::MAX - 100] {
            let head = guest.prepare(0, kind, 0, &[1; 512], 0);
            guest.descriptor(0, head + 1, (address, 512, flags | NEXT, head + 2));
            guest.offer(0, head);
            guest.kick(0);
            assert_eq!(guest.next(0).status, status::IOERR, "request {kind} at {address:#x}");
        }
    }
    assert_eq!(guest.ask(0, request::IN, 0, &[], 512).data, [0; 512]);
}

#[test]
fn a_descriptor_that_is_made_available_twice_and_an_index_too_far_stop_the_queue() {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 2, ..Wish::default() });
    guest.set_u16(0x4002, ENTRIES + 1);
    guest.kick(0);
    until("the first queue to stop", || host.status().totals.stopped == 1);
    let head = guest.prepare(1, request::FLUSH, 0, &[], 0);
    guest.offer(1, head);
    guest.offer(1, head);
    guest.kick(1);
    until("the second one to stop", || host.status().totals.stopped == 2);
    until("what was taken before to end", || guest.used(1) == 1);
}

/// Numbers that look random, the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn a_guest_that_writes_anything_anywhere_breaks_its_own_queues_and_nothing_else() {
    let host = Host::new(memory_device(1));
    let mut numbers = Numbers(0x5eed_0001);
    for round in 0..60 {
        let mut guest = Guest::connect(&host.socket(), Wish { indirect: round % 2 == 1, ..Wish::default() });
        for _ in 0..20 {
            let kind = [0, 1, 4, 8, 11, 13, 99][numbers.next() as usize % 7];
            let (data, room) = (vec![round as u8; numbers.next() as usize % 2000], numbers.next() as u32 % 2000);
            let head = guest.prepare(0, kind, numbers.next() >> (numbers.next() % 64), &data, room);
            // Some fields of some descriptors, in the queue's table or in one beside it.
            for _ in 0..numbers.next() % 4 {
                let table = [0, 0x8000 + u64::from(head) * 16][numbers.next() as usize % 2];
                let at = table + numbers.next() % 1024;
                let value = numbers.next() >> (numbers.next() % 64);
                guest.write(at, &value.to_le_bytes()[..1 + numbers.next() as usize % 8]);
            }
            guest.offer(0, if numbers.next().is_multiple_of(16) { numbers.next() as u16 } else { head });
            guest.kick(0);
        }
        let taken = || guest.used(0) == guest.rings[0].available;
        let stopped = |guest: &Guest| guest.rings[0].error.read().is_ok();
        until("all requests to end, or the queue to stop", || taken() || stopped(&guest));
    }
    let mut next = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(next.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    assert!(host.status().totals.stopped > 0 && host.status().totals.reads > 0);
}

/// What a chain is, said as plainly as possible; `None` when it makes no sense.
fn oracle(table: &[Descriptor]) -> Option<(u64, u64)> {
    let (mut at, mut seen, mut sums) = (0usize, 0, (0u64, 0u64));
    loop {
        let (_, len, flags, next) = *table.get(at)?;
        seen += 1;
        if seen > table.len() || flags & INDIRECT != 0 {
            return None;
        }
        match flags & WRITE != 0 {
            true => sums.1 += u64::from(len),
            false if sums.1 > 0 && len > 0 => return None,
            false => sums.0 += u64::from(len),
        }
        if sums.0 + sums.1 > u64::from(u32::MAX) {
            return None;
        }
        if flags & NEXT == 0 {
            return Some(sums);
        }
        at = next.into();
    }
}

fn written(table: &[Descriptor]) -> Memory {
    let memory = Memory::anonymous(0, 1 << 16).unwrap();
    for (index, (address, len, flags, next)) in table.iter().enumerate() {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        memory.write(index as u64 * 16, &bytes).unwrap();
    }
    memory
}

fn descriptors() -> impl Strategy<Value = Vec<Descriptor>> {
    let len = prop_oneof![8 => 0..5000u32, 1 => Just(u32::MAX), 1 => Just(1 << 31)];
    let flags = prop_oneof![8 => 0..4u16, 1 => any::<u16>()];
    let one = (any::<u64>(), len, flags, 0..20u16);
    // Mostly in order, so that long chains come up.
    let link = |mut table: Vec<Descriptor>| {
        for (at, descriptor) in table.iter_mut().enumerate() {
            if descriptor.3 < 16 {
                descriptor.3 = at as u16 + 1;
            }
        }
        table
    };
    proptest::collection::vec(one, 16).prop_map(link)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

    #[test]
    fn walking_a_table_finds_what_the_oracle_says(table in descriptors()) {
        let memory = written(&table);
        let mut chain = Chain::default();
        let walked = chain.walk(&memory, 0, 16, 0, false);
        let bytes = (vhost_door::chain::bytes(&chain.readable), vhost_door::chain::bytes(&chain.writable));
        prop_assert_eq!(walked.ok().map(|()| bytes), oracle(&table), "{:?}", walked);
    }

    #[test]
    fn any_bytes_as_descriptors_end_in_a_chain_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 1024), head: u16) {
        let memory = Memory::anonymous(0, 4096).unwrap();
        memory.write(0, &bytes).unwrap();
        let mut chain = Chain::default();
        if let Err(error) = chain.walk(&memory, 0, 64, head, true) {
            prop_assert!(!error.to_string().is_empty());
        } else {
            prop_assert!(chain.readable.len() + chain.writable.len() <= usize::from(DESCRIPTORS_MAX));
        }
    }
}

#[test]
fn a_loop_of_any_length_is_found() {
    for len in 1..16u16 {
        let table: Vec<Descriptor> = (0..16).map(|at| (0, 1, NEXT, (at + 1) % len)).collect();
        let walked = Chain::default().walk(&written(&table), 0, 16, 0, true);
        assert_eq!(walked, Err(ChainError::Loop));
    }
}
