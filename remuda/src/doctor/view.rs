//! What the checks see of the system: its `/proc`, `/sys` and files, which a test puts elsewhere.

use std::path::{Path, PathBuf};

/// A root directory with `proc` and `sys` in it.
pub(super) struct View {
    root: PathBuf,
}

/// A process of this machine.
pub(super) struct Process {
    pub(super) pid: u32,
    name: String,
}

/// A lock of a whole file that somebody has.
struct Lock {
    pid: u32,
    /// Major and minor number.
    device: (u32, u32),
    inode: u64,
}

/// A line of `/proc/locks`, such as `1: FLOCK  ADVISORY  WRITE 30895 fe:00:5564738 0 EOF`; one that waits has an arrow.
fn lock(line: &str) -> Option<Lock> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { return None };
    let mut parts = file.split(':');
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let device = (number()?, number()?);
    Some(Lock { pid: pid.parse().ok()?, device, inode: parts.next()?.parse().ok()? })
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{}' (pid {})", self.name, self.pid)
    }
}

impl View {
    pub(super) fn of_this_machine() -> View {
        View { root: PathBuf::from("/") }
    }

    #[cfg(test)]
    pub(super) fn below(root: &Path) -> View {
        View { root: root.to_path_buf() }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A file's text without surrounding blanks; `None` when there is no such file or it cannot be read.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_string())
    }

    /// A file that holds one number.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.parse().ok()
    }

    /// Names in a directory.
    pub(super) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// A process that has something open, as far as this user may see; `is_it` is asked about the targets of descriptors.
    pub(super) fn process_with(&self, is_it: impl Fn(&Path) -> bool) -> Option<Process> {
        let mut numbers = self.names("/proc").into_iter().filter_map(|name| name.parse::<u32>().ok());
        let pid = numbers.find(|pid| self.has_open(*pid, &is_it))?;
        let name = self.read(&format!("/proc/{pid}/comm")).unwrap_or_else(|| "a program".into());
        Some(Process { pid, name })
    }

    fn has_open(&self, pid: u32, is_it: impl Fn(&Path) -> bool) -> bool {
        let directory = format!("/proc/{pid}/fd");
        let target = |fd: &String| std::fs::read_link(self.path(&format!("{directory}/{fd}")));
        self.names(&directory).iter().any(|fd| target(fd).is_ok_and(|target| is_it(&target)))
    }

    /// A process by its number, if there is one.
    pub(super) fn process(&self, pid: u32) -> Option<Process> {
        Some(Process { pid, name: self.read(&format!("/proc/{pid}/comm"))? })
    }

    /// The process that has locked a file as a whole, told by the file's device, its number there and its path. Some file
    /// systems tell programs another device than the kernel's list has: there, it must have the file open as well.
    pub(super) fn lock_holder(&self, device: u64, inode: u64, path: &Path) -> Option<u32> {
        let device = (libc::major(device), libc::minor(device));
        let locks = self.read("/proc/locks")?;
        let mut held = locks.lines().filter_map(lock).filter(|held| held.inode == inode);
        let is_it = |held: &Lock| held.device == device || self.has_open(held.pid, |open| open == path);
        held.find(is_it).map(|held| held.pid)
    }

    /// Its command line.
    pub(super) fn command_of(&self, process: &Process) -> Option<String> {
        let words = self.read(&format!("/proc/{}/cmdline", process.pid))?;
        Some(words.split('\0').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" "))
    }

    /// The group of this process and those around it, from the inside out, as paths below `/sys/fs/cgroup`.
    pub(super) fn groups(&self) -> Vec<String> {
        let text = self.read("/proc/self/cgroup").unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        Path::new(own).ancestors().map(|group| format!("/sys/fs/cgroup{}", group.display())).collect()
    }
}
