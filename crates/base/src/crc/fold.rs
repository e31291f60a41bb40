//! CRC32C by folding, in registers of 128 and 256 bits.
//!
//! Folding is multiplication without carries: the remainder of `a * x^n` stands for what is `n` bits further on, so registers are added
//! to accumulators that are multiplied by `x^n` for each step of `n` bits, and the last 128 bits of them go through the processor's
//! own instruction for this checksum (V. Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ", 2009).
//!
//! The library folds in registers of 512 bits, or of 128. Processors with the wide multiplication and without the wide registers (VPCLMULQDQ
//! without AVX-512) take about 0.6 of its time in registers of 256. And who copies bytes anyway can have their checksum on the way.

use std::arch::x86_64::*;

/// Bytes are a multiple of this, and at least as many.
pub const STEP: usize = 256;
/// Accumulators: as many multiplications as are under way at once.
const SUMS: usize = 8;

/// `x^n` modulo the polynomial, as a factor of 64 bits: reflected, as the checksum is.
const fn power(n: u32) -> i64 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let (mut power, mut step) = (1u32 << 31, 0);
    while step < n {
        power = (power >> 1) ^ if power & 1 != 0 { POLYNOMIAL } else { 0 };
        step += 1;
    }
    ((power as u64) << 32) as i64
}

/// What 128 bits are multiplied by to be so many bytes further on: their first half, which is 64 bits ahead, and their second. One bit
/// less, since the product of reflected factors is a bit off.
pub const fn factors(bytes: usize) -> [i64; 2] {
    let bits = bytes as u32 * 8;
    [power(bits + 64 - 1), power(bits - 1)]
}

/// A register of lanes of 128 bits, each of which is folded by itself. Its methods are inlined into functions that have its instructions.
///
/// # Safety
/// Of every method: the processor has the instructions of [`can_fold_128`] or [`can_fold_256`].
pub trait Register: Copy {
    /// Its size.
    const BYTES: usize;

    /// # Safety
    /// See the trait; so many bytes may be read there.
    unsafe fn load(source: *const u8) -> Self;

    /// The same factors in every lane.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn everywhere(factors: [i64; 2]) -> Self;

    /// What comes before it goes in as the state of the checksum.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn begin(self, state: u32) -> Self;

    /// # Safety
    /// See the trait.
    unsafe fn fold(self, factors: Self, next: Self) -> Self;

    /// The state of the checksum at its end.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn end(self) -> u32;
}

/// Whether the processor can fold in registers of 128 bits.
#[inline]
pub fn can_fold_128() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2")
}

/// Whether it can in registers of 256.
#[inline]
pub fn can_fold_256() -> bool {
    can_fold_128() && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq")
}

impl Register for __m128i {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm_loadu_si128(source.cast()) }
    }

    #[inline(always)]
    unsafe fn everywhere([low, high]: [i64; 2]) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm_set_epi64x(high, low) }
    }

    #[inline(always)]
    unsafe fn begin(self, state: u32) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm_xor_si128(self, _mm_cvtsi32_si128(state as i32)) }
    }

    #[inline(always)]
    unsafe fn fold(self, factors: Self, next: Self) -> Self {
        // SAFETY: by the caller.
        unsafe {
            let (low, high) =
                (_mm_clmulepi64_si128::<0x00>(self, factors), _mm_clmulepi64_si128::<0x11>(self, factors));
            _mm_xor_si128(_mm_xor_si128(low, high), next)
        }
    }

    #[inline(always)]
    unsafe fn end(self) -> u32 {
        // SAFETY: by the caller; the upper half is there.
        unsafe {
            let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(self) as u64);
            _mm_crc32_u64(state, _mm_extract_epi64::<1>(self) as u64) as u32
        }
    }
}

impl Register for __m256i {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(source: *const u8) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm256_loadu_si256(source.cast()) }
    }

    #[inline(always)]
    unsafe fn everywhere([low, high]: [i64; 2]) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm256_set_epi64x(high, low, high, low) }
    }

    #[inline(always)]
    unsafe fn begin(self, state: u32) -> Self {
        // SAFETY: by the caller.
        unsafe { _mm256_xor_si256(self, _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32))) }
    }

    #[inline(always)]
    unsafe fn fold(self, factors: Self, next: Self) -> Self {
        // SAFETY: by the caller.
        unsafe {
            let low = _mm256_clmulepi64_epi128::<0x00>(self, factors);
            let high = _mm256_clmulepi64_epi128::<0x11>(self, factors);
            _mm256_xor_si256(_mm256_xor_si256(low, high), next)
        }
    }

    #[inline(always)]
    unsafe fn end(self) -> u32 {
        // SAFETY: by the caller.
        unsafe {
            let (first, last) = (_mm256_extracti128_si256::<0>(self), _mm256_extracti128_si256::<1>(self));
            first.fold(__m128i::everywhere(const { factors(16) }), last).end()
        }
    }
}

/// The state of the checksum after so many more bytes. Every register of them is loaded once, and shown to `each` with its offset.
///
/// # Safety
/// See [`Register`], and the caller's function has these instructions; `bytes`, a positive multiple of [`STEP`], may be read from
/// `source` on.
#[inline(always)]
pub unsafe fn fold<R: Register>(state: u32, source: *const u8, bytes: usize, mut each: impl FnMut(usize, R)) -> u32 {
    const { assert!(STEP.is_multiple_of(SUMS * R::BYTES)) };
    // SAFETY: by the caller, of every register before `bytes`.
    unsafe {
        let mut next = |at: usize| {
            let register = R::load(source.add(at));
            each(at, register);
            register
        };
        let mut sums = [next(0); SUMS];
        sums[0] = sums[0].begin(state);
        for (step, sum) in sums.iter_mut().enumerate().skip(1) {
            *sum = next(step * R::BYTES);
        }
        let by_step = R::everywhere(const { factors(SUMS * R::BYTES) });
        let mut at = SUMS * R::BYTES;
        while at < bytes {
            for (step, sum) in sums.iter_mut().enumerate() {
                *sum = sum.fold(by_step, next(at + step * R::BYTES));
            }
            at += SUMS * R::BYTES;
        }
        let by_register = R::everywhere(const { factors(R::BYTES) });
        let mut sum = sums[0];
        for next in &sums[1..] {
            sum = sum.fold(by_register, *next);
        }
        sum.end()
    }
}

/// The state after as many of the bytes as are folded faster here than by the library, and the others; `None` when none are.
#[inline]
pub(super) fn fold_some(state: u32, bytes: &[u8]) -> Option<(u32, &[u8])> {
    if bytes.len() < STEP || is_x86_feature_detected!("avx512vl") || !can_fold_256() {
        return None;
    }
    let (folded, rest) = bytes.split_at(bytes.len() / STEP * STEP);
    // SAFETY: it has the instructions; there is at least a step.
    Some((unsafe { update_256(state, folded) }, rest))
}

/// # Safety
/// [`can_fold_256`]; the bytes are a positive multiple of [`STEP`].
#[target_feature(enable = "avx2,vpclmulqdq,pclmulqdq,sse4.2")]
unsafe fn update_256(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: by the caller.
    unsafe { fold(state, bytes.as_ptr(), bytes.len(), |_, _: __m256i| ()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;
    use crate::crc::library_update;

    /// # Safety
    /// [`can_fold_128`]; the bytes are a positive multiple of [`STEP`].
    #[target_feature(enable = "pclmulqdq,sse4.2")]
    unsafe fn update_128(state: u32, bytes: &[u8]) -> u32 {
        // SAFETY: by the caller.
        unsafe { fold(state, bytes.as_ptr(), bytes.len(), |_, _: __m128i| ()) }
    }

    #[test]
    fn every_state_goes_on_as_in_the_library_whether_the_processor_has_wider_registers_or_not() {
        let mut rng = Rng::new(1);
        let mut bytes = vec![0u8; 9 * STEP + 64];
        bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        for steps in 1..=9 {
            for from in [0, 1, 16, 31, 63] {
                let (bytes, state) = (&bytes[from..from + steps * STEP], rng.next_u64() as u32);
                let expected = library_update(state, bytes);
                if can_fold_128() {
                    // SAFETY: it can.
                    assert_eq!(unsafe { update_128(state, bytes) }, expected, "128 bits, {steps} steps from {from}");
                }
                if can_fold_256() {
                    // SAFETY: it can.
                    assert_eq!(unsafe { update_256(state, bytes) }, expected, "256 bits, {steps} steps from {from}");
                }
            }
        }
    }
}
