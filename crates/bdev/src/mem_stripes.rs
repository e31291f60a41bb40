//! Who may change which part of a memory device, and what readers need to know of it.
//!
//! A device is dealt out to 64 stripes in turn. Writers hold the mutexes of theirs, and each counts its version up before and
//! after: a reader that finds the same even versions before and after its copy has seen no write in between (a seqlock).

use smallvec::SmallVec;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

const STRIPES: usize = 64;
/// Bytes of the device in one stripe before the next takes over: a large operation touches few of them.
const STRIPE_BYTES: usize = 256 << 10;
/// Copies that a reader makes in vain before it locks like a writer.
const TRIES: u32 = 3;

#[repr(align(64))]
#[derive(Default)]
struct Stripe {
    mutex: Mutex<()>,
    /// Odd while it is written.
    version: AtomicU64,
}

/// The stripes of a device.
pub(crate) struct Stripes([Stripe; STRIPES]);

impl Default for Stripes {
    fn default() -> Self {
        Stripes(std::array::from_fn(|_| Stripe::default()))
    }
}

/// A stripe that nobody else changes while this lives.
pub(crate) struct Held<'a> {
    version: &'a AtomicU64,
    _guard: MutexGuard<'a, ()>,
}

impl<'a> Held<'a> {
    fn new(stripe: &'a Stripe) -> Self {
        // The mutex protects no data of its own, so a panic elsewhere leaves nothing half done in it.
        let guard = stripe.mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let version = &stripe.version;
        version.store(version.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Before the first byte that is changed.
        fence(Ordering::Release);
        Held { version, _guard: guard }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.version.store(self.version.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

impl Stripes {
    /// Locks what byte ranges (offset, length) touch, in ascending order.
    pub(crate) fn lock(&self, ranges: &[(usize, usize)]) -> SmallVec<[Held<'_>; 2]> {
        let touched = ranges.iter().fold(0, |all, &(at, bytes)| all | mask(at, bytes));
        self.hold(touched)
    }

    fn hold(&self, touched: u64) -> SmallVec<[Held<'_>; 2]> {
        indices(touched).map(|index| Held::new(&self.0[index])).collect()
    }

    /// Has `copy` read a byte range, again if it was written meanwhile.
    #[inline]
    pub(crate) fn read(&self, at: usize, bytes: usize, mut copy: impl FnMut()) {
        let (first, last) = (at / STRIPE_BYTES, (at + bytes - 1) / STRIPE_BYTES);
        if first == last {
            return self.read_touched(1 << (first % STRIPES), copy);
        }
        self.read_touched(mask(at, bytes), &mut copy);
    }

    #[inline]
    fn read_touched(&self, touched: u64, mut copy: impl FnMut()) {
        for _ in 0..TRIES {
            // Versions only grow, so the sum is the same only when each is.
            let sum = |order: Ordering| {
                indices(touched).fold((0u64, 0u64), |(sum, odd), index| {
                    let version = self.0[index].version.load(order);
                    (sum.wrapping_add(version), odd | version & 1)
                })
            };
            let before = sum(Ordering::Acquire);
            if before.1 != 0 {
                std::hint::spin_loop();
                continue;
            }
            copy();
            // After the last byte that was read.
            fence(Ordering::Acquire);
            if sum(Ordering::Relaxed) == before {
                return;
            }
        }
        let _held = self.hold(touched);
        copy();
    }
}

/// A bit for each stripe that a byte range touches.
fn mask(at: usize, bytes: usize) -> u64 {
    let (first, last) = (at / STRIPE_BYTES, (at + bytes - 1) / STRIPE_BYTES);
    if last - first >= STRIPES {
        return u64::MAX;
    }
    (first..=last).fold(0, |mask, stripe| mask | 1 << (stripe % STRIPES))
}

fn indices(mut touched: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = touched.trailing_zeros() as usize;
        // Clears the lowest bit; of zero nothing is left to clear.
        touched &= touched.wrapping_sub(1);
        (index < STRIPES).then_some(index)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_touch_their_stripes_and_wrap_around() {
        assert_eq!(indices(mask(0, 1)).collect::<Vec<_>>(), [0]);
        assert_eq!(indices(mask(STRIPE_BYTES - 1, 2)).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(indices(mask(63 * STRIPE_BYTES, STRIPE_BYTES + 1)).collect::<Vec<_>>(), [0, 63]);
        assert_eq!(indices(mask(5, STRIPES * STRIPE_BYTES)).count(), STRIPES);
    }

    #[test]
    fn a_read_that_a_write_overtakes_is_made_again() {
        let stripes = Stripes::default();
        let mut copies = 0;
        stripes.read(0, 512, || {
            copies += 1;
            if copies == 1 {
                drop(stripes.lock(&[(100, 1)]));
            }
        });
        assert_eq!(copies, 2);
        stripes.read(0, 512, || {
            copies += 1;
            drop(stripes.lock(&[(STRIPE_BYTES, 1)]));
        });
        assert_eq!(copies, 3, "a write elsewhere is none of its business");
    }

    #[test]
    fn a_reader_among_many_writes_ends_with_the_lock() {
        let stripes = Stripes::default();
        let mut copies = 0;
        stripes.read(0, 512, || {
            copies += 1;
            if copies <= TRIES {
                drop(stripes.lock(&[(0, 1)]));
            } else {
                assert!(stripes.0[0].mutex.try_lock().is_err());
            }
        });
        assert_eq!(copies, TRIES + 1);
    }
}
