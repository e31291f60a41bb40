//! Stores past the caches that make checksums on their way: each line is loaded once, stored, and folded into the CRC32C of its
//! part, so that the checksum takes place while the stores drain, and sources that no cache has are fetched once.
//!
//! Folding is multiplication without carries: the remainder of `a * x^n` stands for what is `n` bits further on, so lines are added
//! to accumulators that are multiplied by `x^512` and more for each step, and the last 128 bits of them go through the processor's
//! own instruction for this checksum (V. Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ", 2009).
//!
//! Where the processor has no such wide registers, parts are stored and then checked.

use crate::stores::Stores;
use base::crc32c;

/// Parts are a multiple of this, and begin at a line, or they are stored and then checked.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 256;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// How this processor stores and checks.
#[derive(Clone, Copy, Default)]
pub(crate) struct CheckedStores {
    stores: Stores,
    folds: Folds,
}

/// Whether lines are folded in registers of 512 bits.
#[derive(Clone, Copy)]
struct Folds(bool);

impl Default for Folds {
    fn default() -> Folds {
        #[cfg(target_arch = "x86_64")]
        {
            let registers = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512dq");
            let products = is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("pclmulqdq");
            Folds(registers && products && is_x86_feature_detected!("sse4.2"))
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            Folds(false)
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
        if self.folds.0 && part > 0 && part.is_multiple_of(STEP) && (target as usize).is_multiple_of(LINE) {
            // SAFETY: the processor has the instructions; the rest by the caller and the conditions above.
            return unsafe { fold_512(source.as_ptr(), target, part, crcs) };
        }
        for (step, crc) in crcs.iter_mut().enumerate() {
            let bytes = &source[step * part..(step + 1) * part];
            // SAFETY: a part of what the caller vouches for.
            unsafe { self.stores.copy(bytes, target.add(step * part), durable) };
            *crc = crc32c(bytes);
        }
    }
}

/// `x^n` modulo the polynomial, as a factor of 64 bits: reflected, as the checksum is.
#[cfg(target_arch = "x86_64")]
const fn power(n: u32) -> i64 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let (mut power, mut step) = (1u32 << 31, 0);
    while step < n {
        power = (power >> 1) ^ if power & 1 != 0 { POLYNOMIAL } else { 0 };
        step += 1;
    }
    ((power as u64) << 32) as i64
}

/// What 128 bits are multiplied by to be `bits` further on: their first half, which is 64 bits ahead, and their second. One less, since the
/// product of reflected factors is a bit off.
#[cfg(target_arch = "x86_64")]
const fn factors(bits: u32) -> [i64; 2] {
    [power(bits + 64 - 1), power(bits - 1)]
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{LINE, STEP, factors};
    use std::arch::x86_64::*;

    const BY_16: [i64; 2] = factors(16 * 8);
    const BY_64: [i64; 2] = factors(64 * 8);
    const BY_128: [i64; 2] = factors(128 * 8);
    const BY_256: [i64; 2] = factors(256 * 8);
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

    fn every_way() -> [CheckedStores; 2] {
        [CheckedStores::default(), CheckedStores { folds: Folds(false), ..CheckedStores::default() }]
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
        for bit in 0..4096 * 8 {
            source[bit / 8] ^= 1 << (bit % 8);
            let mut crc = [0];
            // SAFETY: there is room for a line more than the source has.
            unsafe { CheckedStores::default().copy(&source, target.as_mut_ptr().add(to), false, &mut crc) };
            assert_eq!(crc, [crc32c(&source)], "bit {bit}");
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
