//! A modelled drive of which only what it programs counts, not when.

use bdev::SsdModel;
use bdev::model_ssd::{Request, Ssd};

/// Superblocks that a drive is given at least, and pages of one.
const SUPERBLOCKS: u64 = 256;

pub struct Drive {
    ssd: Ssd,
    now_ns: u64,
    unit_bytes: u64,
}

impl Drive {
    /// A drive of about so many bytes, with `spare_percent` more flash.
    ///
    /// # Errors
    /// Why there can be no such drive.
    pub fn new(bytes: u64, spare_percent: u64, unit_bytes: u64) -> Result<Drive, String> {
        let model = SsdModel::qlc(bytes.next_multiple_of(unit_bytes), spare_percent);
        let page = model.page_bytes;
        let superblock_bytes = (model.raw_bytes / SUPERBLOCKS / page * page).max(page);
        let ssd = Ssd::new(SsdModel { superblock_bytes, unit_bytes, ..model })?;
        Ok(Drive { ssd, now_ns: 0, unit_bytes })
    }

    pub fn write(&mut self, offset: u64, bytes: u64) {
        self.perform(Request::Write { offset, bytes, stream: 0 });
    }

    pub fn trim(&mut self, offset: u64, bytes: u64) {
        self.perform(Request::Trim { offset, bytes });
    }

    /// One operation at a time, each waited for.
    fn perform(&mut self, request: Request) {
        let mut work = self.ssd.begin(request);
        while let Some(until) = self.ssd.step(&mut work, self.now_ns) {
            self.now_ns = until;
        }
    }

    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Bytes that it was given, and bytes programmed.
    pub fn bytes(&self) -> (u64, u64) {
        let counters = self.ssd.counters();
        (counters.host_write_bytes, counters.nand_bytes)
    }
}
