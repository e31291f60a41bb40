//! Arbitrary bytes as a guest's memory: rings, chains of descriptors and notes of requests under way. Nothing panics, and nothing
//! outside the shared part of the mapping is written.
#![no_main]

use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use vhost_door::chain::{self, Chain};
use vhost_door::inflight::Inflight;
use vhost_door::memory::{Memory, Place, Region};
use vhost_door::split::{Layout, SplitRing};
use vm_memory::{FileOffset, MmapRegion};

const GUEST: u64 = 0x1000;
const BYTES: usize = 0x4000;
/// What lies before and behind the shared part.
const FENCE: usize = 0x1000;
const FENCE_BYTE: u8 = 0xa5;
/// Where else they lie, each access is refused.
const NOTES_ALIGN: u64 = 8;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((header, rest)) = input.split_at_checked(16) else { return };
    let file = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"));
    file.write_all_at(&[FENCE_BYTE; BYTES + 2 * FENCE], 0).expect("memory");
    file.write_all_at(&[0; BYTES], FENCE as u64).expect("memory");
    let whole = FileOffset::new(file.try_clone().expect("a descriptor"), 0);
    let map = MmapRegion::from_file(whole, BYTES + 2 * FENCE).expect("memory");
    let place = Place { guest: GUEST, user: 0, bytes: BYTES as u64 };
    let shared = Memory::new(vec![Region::new(map, FENCE, place).expect("it fits")]).expect("one region");
    shared.write(GUEST, &rest[..rest.len().min(BYTES)]).expect("it fits");
    let number = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let layout = Layout { entries: number(0) as u16, table: number(2), available: number(4), used: number(6) };
    play(&shared, layout, number(8) as u16, header[10], number(12) / NOTES_ALIGN * NOTES_ALIGN);
    for at in [0, FENCE + BYTES] {
        let mut fence = [0; FENCE];
        file.read_exact_at(&mut fence, at as u64).expect("memory");
        assert_eq!(fence, [FENCE_BYTE; FENCE], "something was written beside the guest's memory");
    }
});

fn play(memory: &Memory, layout: Layout, next: u16, flags: u8, notes: u64) {
    let mut inflight = Inflight::new(std::sync::Arc::new(memory.clone()), notes, layout.entries.min(1024));
    let Ok(mut ring) = SplitRing::new(memory, layout, flags & 1 != 0, next) else { return };
    if let Some(inflight) = inflight.as_mut().filter(|inflight| inflight.check()) {
        let Ok(left) = inflight.recover(ring.next_used(), layout.entries) else { return };
        assert!(left.len() <= usize::from(layout.entries) && left.iter().all(|head| *head < layout.entries));
    }
    let mut chain = Chain::default();
    let mut buffer = [0; 512];
    for _ in 0..64 {
        let Ok(1..) = ring.waiting(memory) else { break };
        let Ok(head) = ring.take(memory) else { break };
        assert!(head < layout.entries);
        if let Some(inflight) = &mut inflight {
            inflight.taken(head).expect("its place was checked");
        }
        if chain.walk(memory, layout.table, layout.entries, head, flags & 2 != 0).is_err() {
            break;
        }
        let readable = chain::bytes(&chain.readable).min(buffer.len() as u64) as usize;
        let _ = chain::gather(memory, &chain.readable, 0, &mut buffer[..readable]);
        let writable = chain::bytes(&chain.writable).min(buffer.len() as u64) as usize;
        let _ = chain::scatter(memory, &chain.writable, 0, &buffer[..writable]);
        ring.put(memory, head, writable as u32).expect("the ring was checked");
        if let Some(inflight) = &mut inflight {
            inflight.put(head).expect("its place was checked");
        }
        let _ = ring.publish(memory);
        if let Some(inflight) = &mut inflight {
            inflight.published([head].into_iter(), ring.next_used()).expect("its place was checked");
        }
    }
    let _ = ring.arm(memory);
    let _ = ring.disarm(memory);
}
