//! A guest that writes anything into its queue. It shares the daemon with others, and nothing of it reaches them.

use base::Rng;
use vhost_door::chain::{Descriptor, INDIRECT, NEXT, WRITE};
use vhost_door::memory::Memory;
use zerocopy::IntoBytes;

/// Writes nonsense into the queue of 32 entries at the beginning of `memory`: now and then a chain that makes sense.
pub(super) fn scribble(rng: &mut Rng, memory: &Memory, bytes: u64) {
    let place = |rng: &mut Rng| match rng.below(4) {
        0 => u64::MAX - rng.below(1 << 16),
        1 => bytes - rng.below(64),
        _ => rng.below(bytes),
    };
    for index in 0..rng.between(1, 6) {
        let flags = match rng.below(8) {
            0 => rng.next_u64() as u16,
            1 => INDIRECT,
            2 | 3 => WRITE,
            4 => WRITE | NEXT,
            _ => NEXT,
        };
        let len = match rng.below(4) {
            0 => rng.next_u64() as u32,
            1 => 16,
            _ => rng.below(8192) as u32,
        };
        let one = Descriptor { address: place(rng), len, flags, next: rng.below(40) as u16 };
        put(memory, (index + rng.below(26)) * 16, one.as_bytes());
    }
    if rng.one_in(2) {
        let at = rng.below(bytes - 8);
        put(memory, at, &rng.next_u64().to_le_bytes()[..rng.between(1, 8) as usize]);
    }
    let index = memory.load_u16(0x1002).expect("its own memory");
    put(memory, 0x1004 + u64::from(index % 32) * 2, &(rng.below(34) as u16).to_le_bytes());
    let step = if rng.one_in(30) { rng.next_u64() as u16 } else { 1 };
    memory.store_u16(0x1002, index.wrapping_add(step)).expect("its own memory");
}

fn put(memory: &Memory, at: u64, bytes: &[u8]) {
    memory.write(at, bytes).expect("its own memory");
}
