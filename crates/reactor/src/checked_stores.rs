//! Stores past the caches that make checksums on their way: each line is loaded once, stored, and folded into the CRC32C of its
//! part, so that the checksum takes place while the stores drain, and sources that no cache has are fetched once.
//!
//! How that is folded is told by [`base::crc::fold`]. In registers of 512 bits, of 256 or of 128, as the processor has them; where it has
//! none that can be multiplied, parts are stored and then checked.

use crate::stores::Stores;
use base::crc32c;

/// Parts are a multiple of this, and begin at a line, or they are stored and then checked.
#[cfg(target_arch = "x86_64")]
const STEP: usize = base::crc::fold::STEP;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// How this processor stores and checks.
#[derive(Clone, Copy, Default)]
pub(crate) struct CheckedStores {
    stores: Stores,
    folds: Folds,
}

/// The widest registers in which lines are folded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folds {
    #[cfg(target_arch = "x86_64")]
    By512,
    #[cfg(target_arch = "x86_64")]
    By256,
    #[cfg(target_arch = "x86_64")]
    By128,
    /// Nothing is.
    Not,
}

impl Default for Folds {
    fn default() -> Folds {
        Folds::every().next().unwrap_or(Folds::Not)
    }
}

impl Folds {
    /// What the processor can do, the best first.
    fn every() -> impl Iterator<Item = Folds> {
        #[cfg(target_arch = "x86_64")]
        {
            use base::crc::fold::{can_fold_128, can_fold_256};
            let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
            let all = [
                (Folds::By512, wide && can_fold_256()),
                (Folds::By256, can_fold_256()),
                (Folds::By128, can_fold_128()),
                (Folds::Not, true),
            ];
            all.into_iter().filter_map(|(folds, can)| can.then_some(folds))
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            [Folds::Not].into_iter()
        }
    }
}

impl CheckedStores {
    /// Copies as [`Stores::copy`] does, and puts the CRC32C of each of `crcs.len()` equal parts of `source` into `crcs`. Panics when there
    /// are no such parts.
    ///
    /// # Safety
    /// `source.len()` bytes from `target` on may be written, and do not overlap `source`.
    #[inline]
    pub(crate) unsafe fn copy(self, source: &[u8], target: *mut u8, durable: bool, crcs: &mut [u32]) {
        if crcs.is_empty() {
            assert!(source.is_empty(), "bytes without a checksum");
            return;
        }
        let part = source.len() / crcs.len();
        assert_eq!(part * crcs.len(), source.len(), "checksums are of equal parts");
        #[cfg(target_arch = "x86_64")]
        if part > 0 && part.is_multiple_of(STEP) && (target as usize).is_multiple_of(LINE) {
            // SAFETY: the processor has the instructions; the rest by the caller and the conditions above.
            unsafe {
                match self.folds {
                    Folds::By512 => return fold_512(source.as_ptr(), target, part, crcs),
                    Folds::By256 => return fold_256(source.as_ptr(), target, part, crcs),
                    Folds::By128 => return fold_128(source.as_ptr(), target, part, crcs),
                    Folds::Not => {}
                }
            }
        }
        for (step, crc) in crcs.iter_mut().enumerate() {
            let bytes = &source[step * part..(step + 1) * part];
            // SAFETY: a part of what the caller vouches for.
            unsafe { self.stores.copy(bytes, target.add(step * part), durable) };
            *crc = crc32c(bytes);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{LINE, STEP};
    use base::crc::fold::factors;
    use std::arch::x86_64::*;

    const BY_16: [i64; 2] = factors(16);
    const BY_64: [i64; 2] = factors(64);
    const BY_128: [i64; 2] = factors(128);
    const BY_256: [i64; 2] = factors(256);
    /// Parts that are stored side by side: so many streams the processor fetches ahead at once, each up to the end of its page.
    const STREAMS: usize = 4;

    /// # Safety
    /// The instructions are there; `crcs.len()` parts of `part` bytes, a positive multiple of [`STEP`], may be read from `source` and
    /// written to `target`, which is aligned to a line, and do not overlap.
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(super) unsafe fn fold_512(source: *const u8, target: *mut u8, part: usize, crcs: &mut [u32]) {
        let (groups, rest) = crcs.as_chunks_mut::<STREAMS>();
        let mut at = 0;
        for group in groups {
            // SAFETY: by the caller.
            *group = unsafe { side_by_side(source.add(at), target.add(at), part) };
            at += STREAMS * part;
        }
        for crc in rest {
            // SAFETY: by the caller.
            *crc = unsafe { one(source.add(at), target.add(at), part) };
            at += part;
        }
    }

    /// # Safety
    /// As [`fold_512`], for one part.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn one(source: *const u8, target: *mut u8, part: usize) -> u32 {
        let by_256 = everywhere(BY_256);
        // SAFETY: by the caller, of every step before `part`.
        let line = |at: usize| unsafe { store_line(source.add(at), target.add(at)) };
        let mut sums = [begin(line(0)), line(LINE), line(2 * LINE), line(3 * LINE)];
        let mut at = STEP;
        while at < part {
            for (step, sum) in sums.iter_mut().enumerate() {
                *sum = fold(*sum, by_256, line(at + step * LINE));
            }
            at += STEP;
        }
        let by_64 = everywhere(BY_64);
        let [first, second, third, last] = sums;
        end(fold(fold(fold(first, by_64, second), by_64, third), by_64, last))
    }

    /// # Safety
    /// As [`fold_512`], for [`STREAMS`] parts.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn side_by_side(source: *const u8, target: *mut u8, part: usize) -> [u32; STREAMS] {
        let by_128 = everywhere(BY_128);
        let line = |stream: usize, at: usize| {
            let at = stream * part + at;
            // SAFETY: by the caller, of every step before `part`.
            unsafe { store_line(source.add(at), target.add(at)) }
        };
        let mut sums = [[_mm512_setzero_si512(); 2]; STREAMS];
        for (stream, sums) in sums.iter_mut().enumerate() {
            *sums = [begin(line(stream, 0)), line(stream, LINE)];
        }
        let mut at = 2 * LINE;
        while at < part {
            for (stream, [even, odd]) in sums.iter_mut().enumerate() {
                *even = fold(*even, by_128, line(stream, at));
                *odd = fold(*odd, by_128, line(stream, at + LINE));
            }
            at += 2 * LINE;
        }
        let by_64 = everywhere(BY_64);
        let mut crcs = [0; STREAMS];
        for (crc, [even, odd]) in crcs.iter_mut().zip(sums) {
            *crc = end(fold(even, by_64, odd));
        }
        crcs
    }

    /// # Safety
    /// A line may be read at `source`, and written at `target`, where one begins.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn store_line(source: *const u8, target: *mut u8) -> __m512i {
        // SAFETY: by the caller.
        unsafe {
            let bytes = _mm512_loadu_si512(source.cast());
            _mm512_stream_si512(target.cast(), bytes);
            bytes
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn everywhere(factors: [i64; 2]) -> __m512i {
        let [low, high] = factors;
        _mm512_set_epi64(high, low, high, low, high, low, high, low)
    }

    /// The first line of a part: the register of the checksum begins with ones.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn begin(line: __m512i) -> __m512i {
        _mm512_xor_si512(line, _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)))
    }

    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(sum: __m512i, factors: __m512i, next: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
        const XOR_OF_THREE: i32 = 0x96;
        _mm512_ternarylogic_epi64::<XOR_OF_THREE>(low, high, next)
    }

    /// The checksum of a part from the sum of its lines.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,pclmulqdq,sse4.2")]
    fn end(sum: __m512i) -> u32 {
        let by_16 = _mm_set_epi64x(BY_16[1], BY_16[0]);
        let fold = |sum: __m128i, next: __m128i| {
            let (low, high) = (_mm_clmulepi64_si128::<0x00>(sum, by_16), _mm_clmulepi64_si128::<0x11>(sum, by_16));
            _mm_xor_si128(_mm_xor_si128(low, high), next)
        };
        let [first, second] = [_mm512_extracti64x2_epi64::<0>(sum), _mm512_extracti64x2_epi64::<1>(sum)];
        let [third, last] = [_mm512_extracti64x2_epi64::<2>(sum), _mm512_extracti64x2_epi64::<3>(sum)];
        let sum = fold(fold(fold(first, second), third), last);
        let crc = _mm_crc32_u64(0, _mm_extract_epi64::<0>(sum) as u64);
        !(_mm_crc32_u64(crc, _mm_extract_epi64::<1>(sum) as u64) as u32)
    }
}

/// Registers that take two or four stores for a line.
#[cfg(target_arch = "x86_64")]
mod narrow {
    use base::crc::fold::{Register, fold};
    use std::arch::x86_64::*;

    /// # Safety
    /// As [`fold_512`](super::fold_512), with these instructions.
    #[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(super) unsafe fn fold_256(source: *const u8, target: *mut u8, part: usize, crcs: &mut [u32]) {
        // SAFETY: by the caller.
        let store = |at: usize, bytes: __m256i| unsafe { _mm256_stream_si256(target.add(at).cast(), bytes) };
        // SAFETY: by the caller.
        unsafe { one_by_one(source, part, crcs, store) }
    }

    /// # Safety
    /// As [`fold_512`](super::fold_512), with these instructions.
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    pub(super) unsafe fn fold_128(source: *const u8, target: *mut u8, part: usize, crcs: &mut [u32]) {
        // SAFETY: by the caller.
        let store = |at: usize, bytes: __m128i| unsafe { _mm_stream_si128(target.add(at).cast(), bytes) };
        // SAFETY: by the caller.
        unsafe { one_by_one(source, part, crcs, store) }
    }

    /// Parts one after the other: side by side, stores of less than a line hold each other up.
    ///
    /// # Safety
    /// As of its callers.
    #[inline(always)]
    unsafe fn one_by_one<R: Register>(
        source: *const u8,
        part: usize,
        crcs: &mut [u32],
        mut store: impl FnMut(usize, R),
    ) {
        for (step, crc) in crcs.iter_mut().enumerate() {
            let first = step * part;
            // SAFETY: by the caller.
            *crc = !unsafe { fold(u32::MAX, source.add(first), part, |at, bytes| store(first + at, bytes)) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
use narrow::{fold_128, fold_256};
#[cfg(target_arch = "x86_64")]
use wide::fold_512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::store_fence;
    use base::Rng;

    const MARGIN: usize = 192;

    /// Copies `count` parts of `part` bytes from and to these distances from a line, and compares with what the library says.
    fn check(stores: CheckedStores, rng: &mut Rng, [from, to]: [usize; 2], part: usize, count: usize) {
        let bytes = part * count;
        let mut source = vec![0u8; bytes + 2 * MARGIN];
        source.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        let from = source.as_ptr().align_offset(64) + from;
        let mut target = vec![0xa5u8; bytes + 2 * MARGIN];
        let to = target.as_ptr().align_offset(64) + to;
        for durable in [false, true] {
            target.fill(0xa5);
            let mut crcs = vec![7; count];
            // SAFETY: the margin is larger than both distances.
            unsafe { stores.copy(&source[from..from + bytes], target.as_mut_ptr().add(to), durable, &mut crcs) };
            store_fence();
            assert!(target[to..to + bytes] == source[from..from + bytes], "{from} {to} {part} {count}");
            assert!(target[..to].iter().chain(&target[to + bytes..]).all(|byte| *byte == 0xa5), "{to} {part} {count}");
            let expected: Vec<u32> = (0..count).map(|at| crc32c(&source[from + at * part..][..part])).collect();
            assert_eq!(crcs, expected, "{from} {to} {part} {count}");
        }
    }

    /// As this processor can.
    fn every_way() -> impl Iterator<Item = CheckedStores> {
        Folds::every().map(|folds| CheckedStores { folds, ..CheckedStores::default() })
    }

    #[test]
    fn every_size_and_number_of_parts_is_copied_and_checked_as_the_library_does() {
        let mut rng = Rng::new(1);
        for stores in every_way() {
            for part in [1, 8, 63, 64, 128, 255, 256, 320, 512, 768, 1024, 3840, 4096, 8192] {
                for count in [1, 2, 3, 4, 5, 7, 8, 9, 16, 17] {
                    check(stores, &mut rng, [0, 0], part, count);
                }
            }
            check(stores, &mut rng, [16, 0], 4096, 64);
            check(stores, &mut rng, [0, 0], 0, 3);
            check(stores, &mut rng, [0, 0], 0, 0);
        }
    }

    #[test]
    fn every_alignment_of_source_and_target_gives_the_same() {
        let mut rng = Rng::new(2);
        for stores in every_way() {
            for from in 0..64 {
                for count in [1, 4] {
                    check(stores, &mut rng, [from, 0], 4096, count);
                    check(stores, &mut rng, [from, 64], 512, count + 1);
                    check(stores, &mut rng, [0, from], 512, count);
                }
            }
        }
    }

    #[test]
    fn every_bit_of_a_part_counts() {
        let mut rng = Rng::new(3);
        let mut source = vec![0u8; 4096];
        source.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        let mut target = vec![0u8; 4096 + 64];
        let to = target.as_ptr().align_offset(64);
        for stores in every_way() {
            for bit in 0..4096 * 8 {
                source[bit / 8] ^= 1 << (bit % 8);
                let mut crc = [0];
                // SAFETY: there is room for a line more than the source has.
                unsafe { stores.copy(&source, target.as_mut_ptr().add(to), false, &mut crc) };
                assert_eq!(crc, [crc32c(&source)], "bit {bit}");
            }
        }
    }

    #[test]
    fn the_published_vectors_hold() {
        let mut target = vec![0u8; 1024];
        let to = target.as_ptr().align_offset(64);
        for stores in every_way() {
            // 256 zeroes; then 32 zeroes and 32 ones, of RFC 3720.
            for (byte, len) in [(0, 256), (0, 32), (0xff, 32)] {
                let mut crc = [0];
                // SAFETY: the target has room for more.
                unsafe { stores.copy(&vec![byte; len], target.as_mut_ptr().add(to), false, &mut crc) };
                let expected = match (byte, len) {
                    (0, 32) => 0x8a91_36aa,
                    (0xff, 32) => 0x62a8_ab43,
                    _ => crc32c(&[0; 256]),
                };
                assert_eq!(crc, [expected]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "equal parts")]
    fn parts_of_different_lengths_are_refused() {
        let mut target = [0; 64];
        // SAFETY: refused before anything is stored, and there is room.
        unsafe { CheckedStores::default().copy(&[1; 33], target.as_mut_ptr(), false, &mut [0; 2]) };
    }
}
