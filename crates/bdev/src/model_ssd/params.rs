//! What a modelled drive is made of.

/// Sizes in bytes, times in nanoseconds. The defaults are a QLC drive of 2021 (64 KiB indirection units, 3.2 GB/s of programs),
/// scaled down to 16 GiB; its times were fitted to the published rates of such a drive under sequential writes and under
/// 4 KiB and 64 KiB random writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdModel {
    /// What the host can address; a multiple of the indirection unit. With zones: of all zones.
    pub exported_bytes: u64,
    /// Flash that is there; what exceeds the exported bytes is the drive's spare space. Without zones only.
    pub raw_bytes: u64,
    /// Dies; page `p` of a superblock lies on die `p % dies`.
    pub dies: u32,
    /// What a die programs at once.
    pub page_bytes: u64,
    /// What is erased at once; the writable part of a zone.
    pub superblock_bytes: u64,
    /// Granularity of the map; at most a page. Programs of a part of a page take that part of its time.
    pub unit_bytes: u64,
    /// Superblocks are zones: no map, no collection, no spare space.
    pub zoned: bool,
    /// Write streams beside the default one, each with an open superblock of its own.
    pub streams: u16,
    /// Program of a page.
    pub program_ns: u64,
    /// Read of a page, before the first byte.
    pub read_ns: u64,
    /// More for each 4 KiB that is read.
    pub read_4k_ns: u64,
    /// Erase, on every die.
    pub erase_ns: u64,
    /// To suspend a program for a read, and again to resume it.
    pub suspend_ns: u64,
    /// Host programs that may be unfinished, in pages: the write buffer.
    pub buffer_pages: u32,
    /// From the place in the buffer to the acknowledgement, before the first byte.
    pub ack_ns: u64,
    /// Bytes that cross the link in a microsecond.
    pub link_bytes_per_us: u64,
    /// Collection begins when so few superblocks are free.
    pub free_low: u32,
}

/// Superblocks that are neither full nor free: the collector's, the two that are free when a victim is moved as a whole, and
/// one that the victim's valid half may need.
const WORKING_SUPERBLOCKS: u64 = 4;

impl SsdModel {
    /// A conventional QLC drive of `exported_bytes` with `spare_percent` more flash.
    pub fn qlc(exported_bytes: u64, spare_percent: u64) -> SsdModel {
        SsdModel {
            exported_bytes,
            raw_bytes: exported_bytes + exported_bytes * spare_percent / 100,
            dies: 64,
            page_bytes: 64 << 10,
            superblock_bytes: 64 << 20,
            unit_bytes: 64 << 10,
            zoned: false,
            streams: 0,
            program_ns: 1_310_000,
            read_ns: 90_000,
            read_4k_ns: 3_400,
            erase_ns: 100_000,
            suspend_ns: 40_000,
            buffer_pages: 128,
            ack_ns: 8_000,
            link_bytes_per_us: 6_000,
            free_low: 3,
        }
    }

    /// The same drive with zones of `superblock_bytes`.
    pub fn qlc_zoned(zones: u64, superblock_bytes: u64) -> SsdModel {
        let bytes = zones * superblock_bytes;
        SsdModel { superblock_bytes, zoned: true, ..SsdModel::qlc(bytes, 0) }
    }

    /// Superblocks of the flash.
    pub fn superblocks(&self) -> u64 {
        if self.zoned { self.exported_bytes / self.superblock_bytes } else { self.raw_bytes / self.superblock_bytes }
    }

    /// Why this cannot be a drive.
    pub fn check(&self) -> Result<(), String> {
        let powers = [("page", self.page_bytes), ("indirection unit", self.unit_bytes)];
        for (what, bytes) in powers {
            if !bytes.is_power_of_two() || bytes < 4096 {
                return Err(format!("a {what} of {bytes} bytes; expected a power of two from 4096 on"));
            }
        }
        if self.unit_bytes > self.page_bytes {
            return Err(format!("indirection units of {} bytes are larger than a page", self.unit_bytes));
        }
        if self.dies == 0 || self.superblock_bytes == 0 || !self.superblock_bytes.is_multiple_of(self.page_bytes) {
            return Err("it needs dies, and superblocks of whole pages".to_string());
        }
        if self.buffer_pages == 0 || self.link_bytes_per_us == 0 || self.program_ns == 0 {
            return Err("it needs a write buffer, a link, and time for a program".to_string());
        }
        let whole = if self.zoned { self.superblock_bytes } else { self.unit_bytes };
        if self.exported_bytes == 0 || !self.exported_bytes.is_multiple_of(whole) {
            return Err(format!("{} bytes are not a whole number of {whole}", self.exported_bytes));
        }
        if self.zoned {
            return Ok(());
        }
        if self.raw_bytes / self.unit_bytes >= u64::from(u32::MAX) {
            return Err(format!("{} bytes have too many indirection units; make these larger", self.raw_bytes));
        }
        let working = WORKING_SUPERBLOCKS + u64::from(self.free_low) + u64::from(self.streams);
        let needed = self.exported_bytes.div_ceil(self.superblock_bytes) + working;
        if self.superblocks() < needed {
            let has = self.superblocks();
            return Err(format!("{has} superblocks of flash, of which {needed} are needed; give it more spare flash"));
        }
        Ok(())
    }

    pub(super) fn buffer_bytes(&self) -> u64 {
        u64::from(self.buffer_pages) * self.page_bytes
    }

    /// Time of a program of `bytes` of a page.
    pub(super) fn program_time(&self, bytes: u64) -> u64 {
        self.program_ns * bytes / self.page_bytes
    }

    pub(super) fn read_time(&self, bytes: u64) -> u64 {
        self.read_ns + self.read_4k_ns * bytes.div_ceil(4096)
    }

    pub(super) fn link_time(&self, bytes: u64) -> u64 {
        bytes * 1000 / self.link_bytes_per_us
    }
}
