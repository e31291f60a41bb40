//! Descriptors from a front end and what becomes of them: mapped memory, and eventfds to ring.

use crate::memory::{Memory, Place, Region};
use crate::message::MemoryRegion;
use crate::queue::Bell;
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use vm_memory::{FileOffset, MmapRegion};

/// File systems whose files are memory: of tmpfs and of memfds, and of huge pages.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;

/// The unit in which a file can be mapped: its pages, which huge ones are larger. An error when it is not memory: a reactor
/// that touches it would wait for whatever is behind it.
fn page_bytes(file: &File) -> Result<u64, String> {
    let found = rustix::fs::fstatfs(file).map_err(|error| error.to_string())?;
    match found.f_type as u64 & u64::from(u32::MAX) {
        TMPFS_MAGIC | HUGETLBFS_MAGIC => Ok((found.f_bsize as u64).max(1)),
        _ => Err("its file is no memory: memfd, tmpfs (/dev/shm) and hugetlbfs are".into()),
    }
}

/// Maps one region of a front end's memory. Ends of mappings are those of pages; where pages are huge, others cannot be
/// mapped, nor given back.
pub(super) fn region(told: &MemoryRegion, file: OwnedFd) -> Result<Region, String> {
    let MemoryRegion { guest, bytes, user, offset } = *told;
    let file = Arc::new(File::from(file));
    let len = file.metadata().map_err(|error| format!("cannot look at the memory at {guest:#x}: {error}"))?.len();
    let end = offset.checked_add(bytes).ok_or_else(|| format!("the memory at {guest:#x} wraps around"))?;
    if end > len {
        return Err(format!("the memory at {guest:#x} ends at byte {end} of a file of {len} bytes"));
    }
    let cannot = |error| format!("cannot map the memory at {guest:#x}: {error}");
    let page = page_bytes(&file).map_err(cannot)?;
    let start = offset - offset % page;
    let whole =
        (end - start).checked_next_multiple_of(page).filter(|whole| *whole <= len - start).unwrap_or(end - start);
    let map = map(&file, start, whole).map_err(cannot)?;
    let inside = offset - start;
    Region::new(map, inside as usize, Place { guest, user, bytes })
        .ok_or_else(|| format!("the memory at {guest:#x} is empty or wraps around"))
}

fn map(file: &Arc<File>, start: u64, bytes: u64) -> Result<MmapRegion, String> {
    let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
    MmapRegion::from_file(FileOffset::from_arc(file.clone(), start), bytes).map_err(|error| error.to_string())
}

/// New memory for requests under way, and its file for the front end to keep.
pub(super) fn new_area(bytes: u64) -> Result<(Memory, File), String> {
    let cannot = |error: &dyn std::fmt::Display| format!("cannot make memory for requests under way: {error}");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("remuda-inflight", flags).map_err(|error| cannot(&error))?);
    file.set_len(bytes).map_err(|error| cannot(&error))?;
    let seals = SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(|error| cannot(&error))?;
    let memory = area(bytes, 0, file.try_clone().map_err(|error| cannot(&error))?.into())?;
    Ok((memory, file))
}

/// The memory that a front end has kept.
pub(super) fn area(bytes: u64, offset: u64, file: OwnedFd) -> Result<Memory, String> {
    let region = region(&MemoryRegion { guest: 0, bytes, user: 0, offset }, file)?;
    Memory::new(vec![region]).ok_or_else(|| "the memory for requests under way cannot be used".to_string())
}

/// An eventfd that is written to.
pub(super) struct EventBell(File);

impl EventBell {
    /// `None` when the descriptor is no eventfd. Writing to it never waits from now on, however full its counter is: it
    /// is a reactor that does.
    pub(super) fn new(descriptor: OwnedFd) -> Option<EventBell> {
        let flags = is_event(&descriptor).then(|| rustix::fs::fcntl_getfl(&descriptor).ok()).flatten()?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK).ok()?;
        Some(EventBell(File::from(descriptor)))
    }
}

impl Bell for EventBell {
    fn ring(&self) {
        // A counter that is full is a call that nobody has taken yet.
        let _ = (&self.0).write(&1u64.to_ne_bytes());
    }
}

/// Whether a descriptor is an eventfd.
pub(super) fn is_event(descriptor: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|target| target.to_string_lossy().starts_with("anon_inode:[eventfd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_memfd_is_mapped_from_any_offset_and_a_file_of_a_disk_is_refused() {
        let (_, file) = new_area(3 * 4096).unwrap();
        file.set_len(4 * 4096).unwrap_err();
        let told = |bytes, offset| MemoryRegion { guest: 0, bytes, user: 0, offset };
        for (bytes, offset, fits) in [(100, 5000, true), (4096, 8192, true), (4097, 8192, false), (0, 0, false)] {
            let region = region(&told(bytes, offset), file.try_clone().unwrap().into());
            assert_eq!(region.is_ok(), fits, "{bytes}+{offset}");
        }
        let other = File::open("/proc/self/status").unwrap();
        let refused = region(&told(0, 0), other.into()).unwrap_err();
        assert!(refused.contains("no memory"), "{refused}");
    }
}
