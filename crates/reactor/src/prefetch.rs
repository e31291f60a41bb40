//! Asking for memory before it is needed, so that several misses take the time of one.

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
