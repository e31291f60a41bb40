//! Pages of mapped files that the system cannot give: the file was cut short, its file system is full, the medium is damaged.
//!
//! Whoever touches such a page gets SIGBUS, which would end the process with everything that it serves. Here the handler puts
//! an empty page of memory into the place of the missing one and notes that; so the access ends, and whoever made it asks
//! afterwards whether it [touched](Watch::touches) a missing page, and fails. The next access [tries the file](Watch::mend) again.
//!
//! The handler runs on any thread at any place, so it takes no lock and no memory: places are reserved for a fixed number of
//! mappings, and a fixed number of pages each. With more pages missing the whole mapping counts as missing.

use super::last_errno;
use base::Errno;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};

/// Mappings that can be watched at once; others are not.
const WATCHES_MAX: usize = 256;
/// Pages of a mapping that can be missing one by one.
const PAGES_MAX: usize = 60;

/// A mapping as the handler sees it. `end` is zero while nobody uses the place.
struct Place {
    start: AtomicUsize,
    end: AtomicUsize,
    /// Pages that were missed, of which `pages` has the first ones.
    missed: AtomicUsize,
    /// Their addresses; zero where the handler has yet to write.
    pages: [AtomicUsize; PAGES_MAX],
}

static PLACES: [Place; WATCHES_MAX] = [const {
    Place {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        missed: AtomicUsize::new(0),
        pages: [const { AtomicUsize::new(0) }; PAGES_MAX],
    }
}; WATCHES_MAX];

/// Of what is not watched.
pub(super) static NONE_MISSED: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
static FORMER: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
static INSTALLED: Once = Once::new();

/// Watches a mapping of a file until it is dropped, which must be before that is unmapped.
pub(super) struct Watch {
    place: Option<&'static Place>,
    start: usize,
    bytes: usize,
    flags: i32,
    file: OwnedFd,
}

impl Watch {
    /// Watches `bytes` from `start` on, which `file` was mapped at as a whole with these flags.
    pub(super) fn new(start: *mut u8, bytes: usize, flags: i32, file: OwnedFd) -> Watch {
        INSTALLED.call_once(install);
        let start = start as usize;
        let is_taken = |place: &&Place| place.start.compare_exchange(0, start, AcqRel, Relaxed).is_ok();
        let place = PLACES.iter().find(is_taken);
        if let Some(place) = place {
            place.missed.store(0, Relaxed);
            place.pages.iter().for_each(|page| page.store(0, Relaxed));
            place.end.store(start + bytes, Release);
        }
        Watch { place, start, bytes, flags, file }
    }

    /// What is mapped.
    pub(super) fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// How many pages were missing when somebody touched them; mostly zero, which is all that an access has to look at.
    pub(super) fn missed(&self) -> &'static AtomicUsize {
        self.place.map_or(&NONE_MISSED, |place| &place.missed)
    }

    /// Whether any of these bytes is in a page that was missing when it was touched.
    pub(super) fn touches(&self, offset: u64, len: usize) -> bool {
        let Some(place) = self.place else { return false };
        let missed = place.missed.load(Acquire);
        missed > PAGES_MAX || place.pages[..missed].iter().any(|page| self.overlaps(page.load(Acquire), offset, len))
    }

    fn overlaps(&self, page: usize, offset: u64, len: usize) -> bool {
        let from = self.start + offset as usize;
        page < from + len && from < page + page_bytes()
    }

    /// Maps the file's pages again where some of these bytes were missing. What is missing still is so at the next touch.
    pub(super) fn mend(&self, offset: u64, len: usize) -> Result<(), Errno> {
        let Some(place) = self.place.filter(|_| self.touches(offset, len)) else { return Ok(()) };
        let missed = place.missed.load(Acquire);
        let all = missed > PAGES_MAX;
        if all {
            self.map(self.start, self.bytes)?;
        } else {
            for page in &place.pages[..missed] {
                self.map(page.load(Acquire), page_bytes())?;
            }
        }
        // The owner alone maps, and it touches nothing meanwhile; what a reader of a loan misses in between is missed again later.
        place.pages.iter().for_each(|page| page.store(0, Relaxed));
        place.missed.store(0, Release);
        Ok(())
    }

    fn map(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        let end = (at + bytes).min(self.start + self.bytes);
        if at < self.start || end <= at {
            return Ok(());
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, self.flags | libc::MAP_FIXED);
        let (offset, fd) = ((at - self.start) as libc::off_t, self.file.as_raw_fd());
        // SAFETY: inside the watched mapping, by the same file's same bytes, as they were before a page was missing.
        let mapped = unsafe { libc::mmap(at as *mut libc::c_void, end - at, protection, flags, fd, offset) };
        if mapped == libc::MAP_FAILED { Err(last_errno()) } else { Ok(()) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.end.store(0, Release);
            place.start.store(0, Release);
        }
    }
}

/// Of the system, once a file has been watched.
pub(super) fn page_bytes() -> usize {
    PAGE_BYTES.load(Relaxed)
}

fn install() {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page).unwrap_or(4096), Relaxed);
    // SAFETY: an all-zero sigaction is a valid value; the handler has the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = missing as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        let former = Box::leak(Box::new(std::mem::zeroed::<libc::sigaction>()));
        libc::sigaction(libc::SIGBUS, std::ptr::null(), former);
        FORMER.store(former, Release);
        libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
    }
}

extern "C" fn missing(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes valid information, of which SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let is_here = |place: &&Place| place.start.load(Acquire) <= address && address < place.end.load(Acquire);
    let Some(place) = PLACES.iter().find(is_here) else { return not_ours(signal, info, context) };
    let page_bytes = page_bytes();
    let page = address & !(page_bytes - 1);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: one page inside a mapping whose owner asks whether pages were missing; errno is what it was before.
    unsafe {
        let errno = *libc::__errno_location();
        let mapped = libc::mmap(page as *mut libc::c_void, page_bytes, protection, flags, -1, 0);
        *libc::__errno_location() = errno;
        if mapped == libc::MAP_FAILED {
            return not_ours(signal, info, context);
        }
    }
    // The page before the count: whoever sees the count sees the page, but for another thread's that is just being written.
    let at = place.missed.fetch_add(1, AcqRel);
    if let Some(free) = place.pages.get(at) {
        free.store(page, Release);
    }
}

/// What happened before this handler was there: mostly the end of the process.
fn not_ours(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: set once before the handler was installed, and never freed.
    let former = unsafe { FORMER.load(Acquire).as_ref() };
    let handler = former.map_or(libc::SIG_DFL, |former| former.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // SAFETY: the access is made again, and ends the process as if nobody had watched.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, &default, std::ptr::null_mut());
        }
        return;
    }
    // SAFETY: a handler that was installed with SA_SIGINFO takes these; one without ignores the last two.
    unsafe {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = std::mem::transmute(handler);
        handler(signal, info, context);
    }
}
