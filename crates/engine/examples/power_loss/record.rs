//! A recording of `dm-log-writes`, as the kernel's `Documentation/admin-guide/device-mapper/log-writes.rst` and
//! `drivers/md/dm-log-writes.c` have it: a superblock, then entries, each a sector of its own followed by its data.
//!
//! A flush, a FUA write and a mark stand where they completed. Any other write stands directly before the first flush that
//! began after it had completed.

use std::fs::File;
use std::io::{BufReader, Read};

const MAGIC: u64 = 0x6a_7366_7773_6872;
const VERSION: u64 = 1;
const HEAD_BYTES: usize = 32;

/// What is known of a write.
#[derive(Clone, Copy, Debug)]
pub struct Flags(u64);

impl Flags {
    pub fn flush(self) -> bool {
        self.0 & 1 != 0
    }

    pub fn fua(self) -> bool {
        self.0 & 2 != 0
    }

    fn discard(self) -> bool {
        self.0 & 4 != 0
    }

    fn mark(self) -> bool {
        self.0 & 8 != 0
    }
}

/// One bio.
pub struct Entry {
    pub flags: Flags,
    /// First byte on the device.
    pub at: u64,
    /// Bytes written; none for a discard or a flush.
    pub data: Vec<u8>,
    /// Bytes discarded.
    pub discarded: u64,
    /// What somebody noted here.
    pub mark: Option<String>,
}

/// Reads one entry after the other.
pub struct Recording {
    input: BufReader<File>,
    sector: usize,
    left: u64,
}

impl Recording {
    pub fn open(path: &str) -> Result<Recording, String> {
        let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let mut head = [0; 512];
        input.read_exact(&mut head).map_err(|error| format!("{path}: {error}"))?;
        let word = |index: usize| u64::from_le_bytes(head[index * 8..index * 8 + 8].try_into().expect("eight bytes"));
        let (left, sector) = (word(2), word(3) as u32 as usize);
        if (word(0), word(1)) != (MAGIC, VERSION) || !matches!(sector, 512 | 4096) {
            return Err(format!("{path} is no recording of dm-log-writes, version {VERSION}"));
        }
        let mut rest = vec![0; sector - head.len()];
        input.read_exact(&mut rest).map_err(|error| format!("{path}: {error}"))?;
        Ok(Recording { input, sector, left })
    }

    /// Entries that are left, as the superblock counts them.
    pub fn left(&self) -> u64 {
        self.left
    }

    pub fn next(&mut self) -> Result<Option<Entry>, String> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let head = self.bytes(self.sector)?;
        let word = |index: usize| u64::from_le_bytes(head[index * 8..index * 8 + 8].try_into().expect("eight bytes"));
        let (sector, sectors, flags) = (word(0), word(1), Flags(word(2)));
        let (at, bytes) = (sector * self.sector as u64, sectors * self.sector as u64);
        let mark_bytes = (word(3) as usize).min(self.sector - HEAD_BYTES);
        if bytes > 1 << 30 || flags.0 >> 5 != 0 {
            return Err(format!("an entry of {bytes} bytes with flags {:#x}", flags.0));
        }
        let mut entry = Entry { flags, at, data: Vec::new(), discarded: 0, mark: None };
        match (flags.mark(), flags.discard()) {
            // (it is in the sector of the entry itself)
            (true, _) => entry.mark = Some(String::from_utf8_lossy(&head[HEAD_BYTES..][..mark_bytes]).into_owned()),
            (false, true) => entry.discarded = bytes,
            (false, false) => entry.data = self.bytes(bytes as usize)?,
        }
        Ok(Some(entry))
    }

    fn bytes(&mut self, len: usize) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len];
        self.input.read_exact(&mut bytes).map_err(|error| format!("the recording ends early: {error}"))?;
        Ok(bytes)
    }
}
