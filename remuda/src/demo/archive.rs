//! A directory tree as one stream of bytes, and back: what the demo stores on a volume.
//!
//! Each file is a record: `REMUDAF1`, length of the path, length of the contents (both little-endian u64), CRC32C of the
//! contents, four zero bytes, the path, the contents. A record with an empty path ends the stream. Symbolic links, devices
//! and unreadable files are left out.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"REMUDAF1";
const HEADER: usize = 32;
/// Longest path in an archive.
const PATH_BYTES_MAX: u64 = 4096;

/// Regular files below `root`, in a fixed order, up to `bytes_max` in all. Directories are read as they are reached.
pub struct Tree {
    root: PathBuf,
    pending: Vec<PathBuf>,
    bytes_left: u64,
}

impl Tree {
    /// The files below `root`.
    pub fn new(root: &Path, bytes_max: u64) -> Tree {
        Tree { root: root.to_path_buf(), pending: vec![root.to_path_buf()], bytes_left: bytes_max }
    }

    /// The next file that still fits: its name within the tree and its contents.
    fn next_file(&mut self) -> Option<(String, Vec<u8>)> {
        while let Some(path) = self.pending.pop() {
            let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
            if found.is_dir() {
                let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
                let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
                entries.sort();
                self.pending.extend(entries.into_iter().rev());
                continue;
            }
            let name = path.strip_prefix(&self.root).ok().and_then(Path::to_str).unwrap_or("").to_string();
            let cost = found.len() + name.len() as u64 + HEADER as u64;
            if !found.is_file() || name.is_empty() || name.len() as u64 > PATH_BYTES_MAX || cost > self.bytes_left {
                continue;
            }
            let mut contents = Vec::new();
            let whole = File::open(&path).and_then(|file| file.take(found.len()).read_to_end(&mut contents));
            if whole.is_ok() {
                self.bytes_left -= cost.min(self.bytes_left);
                return Some((name, contents));
            }
        }
        None
    }
}

/// Packs a tree into a stream, read in pieces of any size.
pub struct Packer {
    tree: Tree,
    buffer: Vec<u8>,
    taken: usize,
    ended: bool,
    /// Files packed so far.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
}

impl Packer {
    /// A stream of `tree`.
    pub fn new(tree: Tree) -> Packer {
        Packer { tree, buffer: Vec::new(), taken: 0, ended: false, files: 0, bytes: 0 }
    }

    /// Fills `target`, with zeroes behind the end; false when nothing was left to put there.
    pub fn fill(&mut self, target: &mut [u8]) -> bool {
        let mut at = 0;
        while at < target.len() {
            if self.taken == self.buffer.len() && !self.next_record() {
                break;
            }
            let take = (self.buffer.len() - self.taken).min(target.len() - at);
            target[at..at + take].copy_from_slice(&self.buffer[self.taken..self.taken + take]);
            self.taken += take;
            at += take;
        }
        target[at..].fill(0);
        at > 0
    }

    fn next_record(&mut self) -> bool {
        if self.ended {
            return false;
        }
        self.buffer.clear();
        self.taken = 0;
        match self.tree.next_file() {
            Some((name, contents)) => {
                self.files += 1;
                self.bytes += contents.len() as u64;
                append_record(&mut self.buffer, &name, &contents);
            }
            None => {
                self.ended = true;
                append_record(&mut self.buffer, "", &[]);
            }
        }
        true
    }
}

fn append_record(out: &mut Vec<u8>, name: &str, contents: &[u8]) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&(name.len() as u64).to_le_bytes());
    out.extend_from_slice(&(contents.len() as u64).to_le_bytes());
    out.extend_from_slice(&base::crc32c(contents).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(contents);
}

/// Reads a stream back in pieces of any size, and checks every file in it.
#[derive(Default)]
pub struct Unpacker {
    buffer: Vec<u8>,
    /// Whole files that were found and are right.
    pub files: u64,
    /// Bytes of their contents.
    pub bytes: u64,
    /// The end of the stream was reached.
    pub ended: bool,
}

impl Unpacker {
    /// Takes the next piece; what is wrong in it, if anything.
    pub fn take(&mut self, piece: &[u8]) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        self.buffer.extend_from_slice(piece);
        let mut at = 0;
        while let Some(used) = self.record(at)? {
            at += used;
            if self.ended {
                break;
            }
        }
        self.buffer.drain(..at);
        Ok(())
    }

    /// One record at `at`, if it is there as a whole; its length.
    fn record(&mut self, at: usize) -> Result<Option<usize>, String> {
        let bytes = &self.buffer[at..];
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let number = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let (name_len, len) = (number(8), number(16));
        if &bytes[..8] != MAGIC || name_len > PATH_BYTES_MAX || bytes[28..32] != [0; 4] {
            return Err(format!("after {} files: this is no archive record", self.files));
        }
        let Some(total) = len.checked_add(name_len).and_then(|sum| usize::try_from(sum + HEADER as u64).ok()) else {
            return Err(format!("after {} files: a record of impossible length", self.files));
        };
        if bytes.len() < total {
            return Ok(None);
        }
        let (name, contents) = bytes[HEADER..total].split_at(name_len as usize);
        let crc = u32::from_le_bytes(bytes[24..28].try_into().expect("four bytes"));
        if base::crc32c(contents) != crc {
            return Err(format!("'{}' has other contents than were written", String::from_utf8_lossy(name)));
        }
        if name.is_empty() {
            self.ended = true;
        } else {
            self.files += 1;
            self.bytes += len;
        }
        Ok(Some(total))
    }
}

/// Whether there is anything to pack.
pub fn check_root(root: &Path) -> io::Result<()> {
    std::fs::read_dir(root).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/one"), vec![1; 10_000]).unwrap();
        std::fs::write(dir.path().join("a/b/two"), b"two").unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        std::os::unix::fs::symlink("one", dir.path().join("a/link")).unwrap();
        dir
    }

    #[test]
    fn a_tree_comes_back_whole_whatever_the_pieces() {
        let dir = tree();
        for piece in [1usize, 7, 4096, 1 << 20] {
            let mut packer = Packer::new(Tree::new(dir.path(), u64::MAX));
            let mut unpacker = Unpacker::default();
            let mut bytes = vec![0; piece];
            while packer.fill(&mut bytes) {
                unpacker.take(&bytes).unwrap();
            }
            assert_eq!((packer.files, unpacker.files, unpacker.bytes, unpacker.ended), (3, 3, 10_003, true));
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let dir = tree();
        let mut packer = Packer::new(Tree::new(dir.path(), u64::MAX));
        let mut bytes = vec![0; 16 << 10];
        packer.fill(&mut bytes);
        for at in (0..10_000).step_by(997) {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let mut unpacker = Unpacker::default();
            let outcome = unpacker.take(&bad);
            // A changed name is still a whole file; everything else is noticed.
            assert!(outcome.is_err() || unpacker.files == 3, "byte {at}");
        }
    }

    #[test]
    fn the_limit_is_kept() {
        let dir = tree();
        let mut packer = Packer::new(Tree::new(dir.path(), 1000));
        let mut bytes = vec![0; 4096];
        while packer.fill(&mut bytes) {}
        assert_eq!((packer.files, packer.bytes), (2, 3));
    }
}
