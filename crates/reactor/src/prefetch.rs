//! Asking for memory before it is needed, so that several misses take the time of one.

/// Bytes of a line of the caches.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Bytes that are wanted somewhat later: into the second cache, since blocks of them would take the place of what is in use in the
/// first.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: a hint, which never faults; SSE is part of the x86-64 baseline.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// The line that `item` begins in is wanted soon.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults; SSE is part of the x86-64 baseline.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(item).cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}
