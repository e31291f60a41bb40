//! Persistent memory by mapping: DAX files with MAP_SYNC are durable after a fence, anything else is labelled volatile. Where the
//! system cannot give a page, whoever asks for it gets an error ([`bus`](super::bus)).

use super::bus::{NONE_MISSED, Watch, page_bytes};
use super::files::is_in_memory;
use super::{check, last_errno};
use crate::arena::Mapping;
use crate::buf::{Buf, Region};
use crate::checked_stores::CheckedStores;
use crate::driver::{PmemId, PmemInfo};
use crate::stores::{Stores, store_fence};
use base::Errno;
use std::cell::Cell;
use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

struct Mapped {
    name: String,
    start: NonNull<u8>,
    info: PmemInfo,
    /// See [`Watch::missed`].
    missed: &'static AtomicUsize,
    /// None of memory that no file is behind.
    watch: Option<Arc<Watched>>,
    /// What is not in memory is read from a disk.
    is_cache: bool,
    /// Accesses that failed.
    failures: Cell<u64>,
    /// Keeps it mapped, as its loans do.
    region: Region,
}

impl Mapped {
    /// Whether these bytes, which were touched just now, are in pages that were there.
    #[cold]
    fn look_for_missed(&self, offset: u64, len: usize) -> Result<(), Errno> {
        if !self.watch.as_ref().is_some_and(|watched| watched.watch.touches(offset, len)) {
            return Ok(());
        }
        self.failures.set(self.failures.get() + 1);
        if self.failures.get().is_power_of_two() {
            tracing::error!(
                "mapped memory '{}' has no page for bytes {offset} to {}: the file was cut short, its file system is full, or \
                 the medium is damaged ({} such accesses)",
                self.name,
                offset + len as u64,
                self.failures.get()
            );
        }
        Err(Errno::EIO)
    }
}

/// A file's mapping, unmapped when nobody watches it any more.
struct Watched {
    watch: Watch,
    _mapping: Mapping,
}

#[derive(Default)]
pub(super) struct Pmem {
    open: Vec<Option<Mapped>>,
    stores: Stores,
    checked_stores: CheckedStores,
}

impl Pmem {
    pub(super) fn open(&mut self, path: Option<&str>, bytes: u64) -> Result<(PmemId, PmemInfo), Errno> {
        let mapped = match path {
            Some(path) => map_file(path, bytes)?,
            None => {
                let mapping = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
                let (start, info) = (mapping.start(), PmemInfo { bytes, durable: false });
                // SAFETY: mapped until the Arc goes, and used by raw copies only.
                let region = unsafe { Region::from_raw(start, bytes as usize, Arc::new(mapping)) };
                Mapped {
                    name: "memory".to_string(),
                    start,
                    info,
                    missed: &NONE_MISSED,
                    watch: None,
                    is_cache: false,
                    failures: Cell::default(),
                    region,
                }
            }
        };
        let info = mapped.info;
        self.open.push(Some(mapped));
        Ok((PmemId(self.open.len() as u32 - 1), info))
    }

    fn range(&self, pmem: PmemId, offset: u64, len: usize) -> Result<(*mut u8, bool), Errno> {
        let mapped = self.open.get(pmem.0 as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)?;
        if offset > mapped.info.bytes || len as u64 > mapped.info.bytes - offset {
            return Err(Errno::EINVAL);
        }
        // SAFETY: inside the mapping.
        Ok((unsafe { mapped.start.as_ptr().add(offset as usize) }, mapped.info.durable))
    }

    pub(super) fn read(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        let (source, _) = self.range(pmem, offset, target.len())?;
        self.watched(pmem, offset, target.len(), || {
            // SAFETY: `source` is inside the mapping, which `target` cannot overlap.
            unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        })
    }

    /// Reads the file itself, where there is one that can be read: a page that is touched once costs less there than to be mapped.
    pub(super) fn read_once(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        self.range(pmem, offset, target.len())?;
        let mapped = self.open.get(pmem.0 as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)?;
        if mapped.missed.load(Relaxed) == 0
            && let Some(watched) = &mapped.watch
        {
            let (start, len) = (target.as_mut_ptr(), target.len());
            // SAFETY: the target is exclusive, live and `len` bytes long.
            let read = unsafe { libc::syscall(libc::SYS_pread64, watched.watch.file(), start, len, offset) };
            if read == len as i64 {
                return Ok(());
            }
        }
        self.read(pmem, offset, target)
    }

    /// Touches these bytes; an error when the system could not give them.
    #[inline]
    fn watched(&self, pmem: PmemId, offset: u64, len: usize, touch: impl FnOnce()) -> Result<(), Errno> {
        let mapped = self.open.get(pmem.0 as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)?;
        if mapped.missed.load(Relaxed) != 0
            && let Some(watched) = &mapped.watch
        {
            watched.watch.mend(offset, len)?;
        }
        touch();
        if mapped.missed.load(Relaxed) == 0 { Ok(()) } else { mapped.look_for_missed(offset, len) }
    }

    pub(super) fn expect(&self, pmem: PmemId, offset: u64, len: usize) {
        if let Ok((start, _)) = self.range(pmem, offset, len) {
            // SAFETY: inside the mapping; nothing of it is looked at.
            crate::prefetch_bytes(unsafe { std::slice::from_raw_parts(start, len) });
        }
    }

    pub(super) fn fetch(&self, pmem: PmemId, offset: u64, bytes: u64) {
        if !self.open.get(pmem.0 as usize).and_then(Option::as_ref).is_some_and(|mapped| mapped.is_cache) {
            return;
        }
        // What is mapped begins at a page.
        let first = offset - offset % page_bytes() as u64;
        let len = (offset - first).saturating_add(bytes) as usize;
        if let Ok((start, _)) = self.range(pmem, first, len) {
            // SAFETY: advice about a range of the mapping changes nothing of it. A refusal is one of a hint.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_WILLNEED) };
        }
    }

    pub(super) fn loan(&self, pmem: PmemId, offset: u64, len: usize) -> Result<Buf, Errno> {
        self.range(pmem, offset, len)?;
        u32::try_from(len).map_err(|_| Errno::EINVAL)?;
        let mapped = self.open[pmem.0 as usize].as_ref().expect("its range is there");
        Ok(mapped.region.loan(offset as usize, len))
    }

    /// Where `source` may be stored, and whether that is durable after a fence.
    fn target(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(*mut u8, bool), Errno> {
        let (target, durable) = self.range(pmem, offset, source.len())?;
        // (a loan of the same range)
        let is_apart = (source.as_ptr() as usize).abs_diff(target as usize) >= source.len();
        if is_apart { Ok((target, durable)) } else { Err(Errno::EINVAL) }
    }

    pub(super) fn store(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(), Errno> {
        let (target, durable) = self.target(pmem, offset, source)?;
        // SAFETY: `target` is inside the mapping, and `source` apart from it.
        self.watched(pmem, offset, source.len(), || unsafe { self.stores.copy(source, target, durable) })
    }

    pub(super) fn store_checked(
        &self,
        pmem: PmemId,
        offset: u64,
        source: &[u8],
        crcs: &mut [u32],
    ) -> Result<(), Errno> {
        let (target, durable) = self.target(pmem, offset, source)?;
        self.watched(pmem, offset, source.len(), || {
            // SAFETY: `target` is inside the mapping, and `source` apart from it.
            unsafe { self.checked_stores.copy(source, target, durable, crcs) };
        })
    }

    pub(super) fn fence(&self, _pmem: PmemId) {
        store_fence();
    }

    pub(super) fn close(&mut self, pmem: PmemId) {
        if let Some(entry) = self.open.get_mut(pmem.0 as usize) {
            *entry = None;
        }
    }
}

fn map(bytes: u64, flags: i32, fd: i32) -> Result<Mapping, Errno> {
    let len = usize::try_from(bytes).map_err(|_| Errno::ENOMEM)?;
    // SAFETY: a mapping at an address of the kernel's choice disturbs nothing.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(last_errno());
    }
    let start = NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?;
    // SAFETY: mapped just now, with this length.
    Ok(unsafe { Mapping::adopt(start, len) })
}

/// Whether memory at a path keeps what is stored there through a power loss, as [`Pmem::open`] would find it; of a file that
/// there is not, whether one that is made there would. Where that cannot be found out, such as of a device with pages larger
/// than what is mapped here, this is an error.
pub fn keeps_stores(path: &Path) -> Result<bool, Errno> {
    // Devices are mapped in pages of this size; past the end of a file nothing is touched.
    const PROBE_BYTES: u64 = 2 << 20;
    let open = |path: &Path, flags: i32| {
        let file = std::fs::File::options().read(true).write(true).custom_flags(flags).open(path);
        file.map_err(|error| error.raw_os_error().map_or(Errno::EINVAL, Errno))
    };
    let file = match open(path, 0) {
        // Without a name it goes as it came.
        Err(Errno::ENOENT) => open(path.parent().ok_or(Errno::ENOENT)?, libc::O_TMPFILE)?,
        found => found?,
    };
    let mapped = map(PROBE_BYTES, libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC, file.as_raw_fd());
    is_kept(mapped.map(|_| ()))
}

/// What the outcome of a mapping with MAP_SYNC says: EOPNOTSUPP alone is the kernel's word for memory that it cannot keep.
fn is_kept(mapped: Result<(), Errno>) -> Result<bool, Errno> {
    match mapped {
        Ok(()) => Ok(true),
        Err(Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

fn map_file(path: &str, bytes: u64) -> Result<Mapped, Errno> {
    let name = CString::new(path).map_err(|_| Errno::EINVAL)?;
    // SAFETY: a valid C string; the descriptor is checked before it is owned.
    let fd = check(unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }.into())?;
    // SAFETY: a fresh descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let kept = libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC;
    let (mapping, flags) = match map(bytes, kept, fd.as_raw_fd()) {
        Ok(mapping) => (mapping, kept),
        Err(_) => (map(bytes, libc::MAP_SHARED, fd.as_raw_fd())?, libc::MAP_SHARED),
    };
    let is_cache = flags != kept && !is_in_memory(fd.as_raw_fd()).unwrap_or(false);
    let (start, len) = (mapping.start(), bytes as usize);
    let watched = Arc::new(Watched { watch: Watch::new(start.as_ptr(), len, flags, fd), _mapping: mapping });
    // SAFETY: mapped until the Arc goes, and used by raw copies only.
    let region = unsafe { Region::from_raw(start, len, watched.clone()) };
    let info = PmemInfo { bytes, durable: flags == kept };
    let missed = watched.watch.missed();
    let (name, watch, failures) = (path.to_string(), Some(watched), Cell::default());
    Ok(Mapped { name, start, info, missed, watch, is_cache, failures, region })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_and_checked_is_in_its_range_or_refused() {
        const PART: usize = 4096;
        let mut pmem = Pmem::default();
        let (id, _) = pmem.open(None, 16 * PART as u64).unwrap();
        let source: Vec<u8> = (0..5 * PART).map(|index| (index * 31 % 251) as u8).collect();
        let expected: Vec<u32> = source.chunks(PART).map(base::crc32c).collect();
        // At a line, and beside one.
        for offset in [0, 64, 65] {
            let mut crcs = [0; 5];
            pmem.store_checked(id, offset, &source, &mut crcs).unwrap();
            pmem.fence(id);
            assert_eq!(crcs[..], expected[..], "{offset}");
            let mut stored = vec![0; source.len()];
            pmem.read(id, offset, &mut stored).unwrap();
            assert!(stored == source, "{offset}");
            stored.fill(0);
            pmem.read_once(id, offset, &mut stored).unwrap();
            assert!(stored == source, "{offset}");
        }
        let mut crcs = [0; 5];
        assert_eq!(pmem.store_checked(id, 11 * PART as u64 + 1, &source, &mut crcs), Err(Errno::EINVAL));
        assert_eq!(pmem.store_checked(id, u64::MAX, &source, &mut crcs), Err(Errno::EINVAL));
        let loan = pmem.loan(id, 0, 2 * PART).unwrap();
        let onto_itself = pmem.store_checked(id, PART as u64, loan.as_slice(), &mut crcs[..2]);
        assert_eq!(onto_itself, Err(Errno::EINVAL));
        assert_eq!(pmem.store_checked(id, 2 * PART as u64, loan.as_slice(), &mut crcs[..2]), Ok(()));
        drop(loan);
        pmem.close(id);
        assert_eq!(pmem.store_checked(id, 0, &source, &mut crcs), Err(Errno::EBADF));
    }

    #[test]
    fn a_page_that_is_not_there_is_an_error_and_comes_back_with_the_file() {
        const PAGE: u64 = 4096;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        // More pages than are counted one by one.
        let bytes = 200 * PAGE;
        let file = std::fs::File::create_new(&path).unwrap();
        file.set_len(bytes).unwrap();
        let mut pmem = Pmem::default();
        let (id, _) = pmem.open(path.to_str(), bytes).unwrap();
        let source = vec![7; bytes as usize];
        pmem.store(id, 0, &source).unwrap();
        let mut once = [0; 2];
        assert_eq!((pmem.read_once(id, 9 * PAGE - 1, &mut once), once), (Ok(()), [7; 2]));
        assert_eq!(pmem.read_once(id, bytes - 1, &mut once), Err(Errno::EINVAL));
        let loan = pmem.loan(id, 10 * PAGE, PAGE as usize).unwrap();
        file.set_len(4 * PAGE).unwrap();
        let (mut page, mut crcs) = ([0; PAGE as usize], [0; 1]);
        for _ in 0..2 {
            assert_eq!(pmem.read(id, 4 * PAGE, &mut page), Err(Errno::EIO));
            assert_eq!(pmem.read_once(id, 5 * PAGE, &mut page), Err(Errno::EIO));
            assert_eq!(pmem.store(id, 7 * PAGE - 1, &source[..2]), Err(Errno::EIO));
            assert_eq!(pmem.store_checked(id, 9 * PAGE, &source[..PAGE as usize], &mut crcs), Err(Errno::EIO));
            assert_eq!(pmem.read(id, 0, &mut vec![0; bytes as usize]), Err(Errno::EIO));
            assert_eq!((loan.as_slice()[0], pmem.read(id, 3 * PAGE, &mut page), page[5]), (0, Ok(()), 7));
        }
        file.set_len(bytes).unwrap();
        assert_eq!((pmem.read(id, 4 * PAGE, &mut page), page[5]), (Ok(()), 0));
        pmem.store(id, 4 * PAGE, &source[..PAGE as usize]).unwrap();
        assert_eq!((pmem.read(id, 4 * PAGE, &mut page), page[5]), (Ok(()), 7));
        assert_eq!(std::fs::read(&path).unwrap()[4 * PAGE as usize], 7);
        pmem.close(id);
        assert_eq!(loan.as_slice().len() as u64, PAGE);
    }

    #[test]
    fn only_the_kernels_word_makes_memory_volatile() {
        assert_eq!(is_kept(Ok(())), Ok(true));
        assert_eq!(is_kept(Err(Errno::EOPNOTSUPP)), Ok(false));
        // A device that is mapped in pages of 1 GiB.
        assert_eq!(is_kept(Err(Errno::EINVAL)), Err(Errno::EINVAL));
        assert_eq!(keeps_stores(Path::new("/proc/self/no such file/log")), Err(Errno::ENOENT));
    }
}
