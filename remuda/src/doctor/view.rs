//! What the checks see of the system: its `/proc`, `/sys` and files, which a test puts elsewhere.

use std::path::{Path, PathBuf};

/// A root directory with `proc` and `sys` in it.
pub(super) struct View {
    root: PathBuf,
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

    /// The group of this process and those around it, from the inside out, as paths below `/sys/fs/cgroup`.
    pub(super) fn groups(&self) -> Vec<String> {
        let text = self.read("/proc/self/cgroup").unwrap_or_default();
        let own = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        Path::new(own).ancestors().map(|group| format!("/sys/fs/cgroup{}", group.display())).collect()
    }
}
