//! Small facts about this process and machine, read from `/proc`, and what of Linux the standard library lacks.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The user this process runs as.
pub fn user_id() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |found| found.uid())
}

/// Whether that is root.
pub fn is_root() -> bool {
    user_id() == 0
}

/// Cores this process may run on; empty when unknown.
pub fn allowed_cores() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    parse_core_list(list.unwrap_or(""))
}

/// The allowed cores as the kernel writes them, such as `0-3,6`.
pub fn show_cores() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or("unknown").trim().to_string()
}

fn parse_core_list(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// User and system CPU time of this process so far, nanoseconds.
pub fn process_cpu_ns() -> u64 {
    // SAFETY: an all-zero rusage is a valid value, and getrusage fills a local.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// The clock that reactors use, nanoseconds.
pub fn monotonic_ns() -> u64 {
    // SAFETY: an all-zero timespec is a valid value, and clock_gettime fills a local.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Jiffies stolen by the hypervisor and jiffies in all, machine-wide.
pub fn steal_and_total() -> (u64, u64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or("");
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is counted in user already.
    (fields.get(7).copied().unwrap_or(0), fields.iter().take(8).sum())
}

/// What this process may use of a resource now, `u64::MAX` without a limit.
pub fn soft_limit(resource: libc::__rlimit_resource_t) -> u64 {
    limits(resource).rlim_cur
}

/// How far it may raise that, `u64::MAX` without a limit.
pub fn hard_limit(resource: libc::__rlimit_resource_t) -> u64 {
    limits(resource).rlim_max
}

/// Raises what this process may use of a resource as far as it may, and gives what it may use then.
pub fn raise_limit(resource: libc::__rlimit_resource_t) -> u64 {
    let limits = limits(resource);
    let raised = libc::rlimit { rlim_cur: limits.rlim_max, ..limits };
    // SAFETY: a plain system call on a local.
    if limits.rlim_cur < limits.rlim_max && unsafe { libc::setrlimit(resource, &raised) } != 0 {
        return limits.rlim_cur;
    }
    limits.rlim_max
}

fn limits(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    // No limit is the largest number there is.
    const NONE: libc::rlimit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let mut limits = NONE;
    // SAFETY: fills a local.
    let failed = unsafe { libc::getrlimit(resource, &mut limits) } != 0;
    if failed { NONE } else { limits }
}

/// Whether the kernel believes that the machine's clock follows another one; `None` when it does not say.
pub fn clock_is_synchronised() -> Option<bool> {
    // SAFETY: an all-zero timex asks for nothing to be changed, and adjtimex fills a local.
    let state = unsafe {
        let mut time: libc::timex = std::mem::zeroed();
        libc::adjtimex(&mut time)
    };
    (state >= 0).then_some(state != libc::TIME_ERROR)
}

/// Whether this user may make files in a directory.
pub fn may_write(directory: &Path) -> bool {
    let Ok(path) = CString::new(directory.as_os_str().as_bytes()) else { return false };
    // SAFETY: a string with its zero byte.
    unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
}

/// A file system as seen from a directory in it.
pub struct Space {
    /// Bytes that this user may still take.
    pub free: u64,
    /// Its kind, where that matters.
    pub kind: Option<&'static str>,
}

const TMPFS: i64 = 0x0102_1994;

/// Room and kind of the file system that a directory is in.
pub fn space(directory: &Path) -> io::Result<Space> {
    const KINDS: [(i64, &str); 6] = [
        (TMPFS, "tmpfs"),
        (0x8584_58f6, "ramfs"),
        (0x9123_683e, "btrfs"),
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0x794c_7630, "overlayfs"),
    ];
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statfs is a valid value, the path has its zero byte, and statfs fills a local.
    let found = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        if libc::statfs(path.as_ptr(), &mut found) != 0 {
            return Err(io::Error::last_os_error());
        }
        found
    };
    let kind = KINDS.iter().find(|(magic, _)| *magic == found.f_type as i64).map(|(_, name)| *name);
    Ok(Space { free: found.f_bavail as u64 * found.f_bsize as u64, kind })
}

/// Gives a file the space for its first `bytes` bytes, and that length if it is shorter. What it holds stays as it is.
/// On a file system that cannot do that, nothing happens; nor where there is too little room, which is an error.
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let (found, system) = (file.metadata()?, file_system(file)?);
    let held = found.blocks() * 512;
    let has_all = found.len() >= bytes && held >= found.len();
    // In memory the space of a file is counted exactly, and to ask for what is there already takes a quarter of a microsecond for
    // each page: that is most of what a restart with a large log takes.
    if has_all && system.f_type == TMPFS {
        return Ok(());
    }
    // Asking would take what there is, and keep it.
    let lacks = bytes.saturating_sub(held);
    if found.is_file() && lacks > system.f_bfree * system.f_bsize as u64 {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let bytes = libc::off_t::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: the descriptor is open as long as `file` is.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => continue,
            Some(libc::EOPNOTSUPP) => return Ok(()),
            // XFS wants room for all of it, what is there already included.
            Some(libc::ENOSPC) if has_all => return Ok(()),
            _ => return Err(error),
        }
    }
}

fn file_system(file: &File) -> io::Result<libc::statfs> {
    // SAFETY: an all-zero statfs is a valid value, the descriptor is open as long as `file` is, and fstatfs fills a local.
    unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &mut found) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(found)
    }
}

/// Takes a file out of the page cache as far as nobody has it mapped; what is not on media yet is written first.
pub fn drop_cached(path: &std::path::Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    // SAFETY: the descriptor is open as long as `file` is.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Memory of a process that no file is behind, bytes; 0 when unknown.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse().ok());
    kib.map_or(0, |kib: u64| kib * 1024)
}

/// Time that the threads of a process have had on cores so far, nanoseconds; 0 when unknown.
pub fn cpu_ns_of(pid: u32) -> u64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    times.filter_map(|times| times.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn reserving_fills_holes_and_keeps_contents() {
        for file in [tempfile::tempfile().unwrap(), tempfile::tempfile_in("/dev/shm").unwrap()] {
            file.set_len(1 << 20).unwrap();
            file.write_all_at(b"kept", 4096).unwrap();
            for _ in 0..2 {
                reserve(&file, 1 << 20).unwrap();
            }
            let mut found = [0; 4];
            file.read_exact_at(&mut found, 4096).unwrap();
            assert_eq!(&found, b"kept");
            assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
        }
    }

    #[test]
    fn what_has_no_room_takes_none() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(1 << 50).unwrap();
        assert_eq!(reserve(&file, 1 << 50).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(file.metadata().unwrap().blocks(), 0);
    }

    #[test]
    fn core_lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_core_list(" 0-2,5\n"), [0, 1, 2, 5]);
        assert!(!allowed_cores().is_empty());
    }
}
