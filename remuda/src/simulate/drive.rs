//! A modelled drive of which only what it programs counts, not when.

use bdev::SsdModel;
use bdev::model_ssd::{Request, Ssd};

/// Superblocks that a drive is given at least, and pages of one.
const SUPERBLOCKS: u64 = 256;
/// Write streams that a pool uses: what comes from the log, and what its collector moves.
pub const STREAMS: u16 = 2;

/// What a drive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DriveKind {
    /// Flash that is written anywhere, and knows nothing of streams
    Conventional,
    /// Flash that keeps write streams apart (NVMe FDP)
    Streams,
    /// Zones that are written in order alone (ZNS, shingled disks)
    Zoned,
    /// Disks: only what they are given counts
    Disk,
}

impl DriveKind {
    pub fn name(self) -> &'static str {
        match self {
            DriveKind::Conventional => "conventional",
            DriveKind::Streams => "streams",
            DriveKind::Zoned => "zoned",
            DriveKind::Disk => "disk",
        }
    }
}

/// What a drive is made of.
#[derive(Clone, Copy, Debug)]
pub struct DriveShape {
    pub kind: DriveKind,
    pub bytes: u64,
    /// Bytes that a pool writes in one go: a zone is so large, and so is what a drive with streams erases at once, where it has enough
    /// of those.
    pub band_bytes: u64,
    pub spare_percent: u64,
    pub unit_bytes: u64,
}

pub struct Drive {
    ssd: Ssd,
    now_ns: u64,
    unit_bytes: u64,
}

impl Drive {
    /// A drive of about so many bytes.
    ///
    /// # Errors
    /// Why there can be no such drive.
    pub fn new(DriveShape { kind, bytes, band_bytes, spare_percent, unit_bytes }: DriveShape) -> Result<Drive, String> {
        let model = SsdModel::qlc(bytes.next_multiple_of(unit_bytes), spare_percent);
        let page = model.page_bytes;
        let usual = (model.raw_bytes / SUPERBLOCKS / page * page).max(page);
        let ssd = Ssd::new(match kind {
            DriveKind::Conventional => SsdModel { superblock_bytes: usual, unit_bytes, ..model },
            DriveKind::Streams => {
                let of =
                    |superblock_bytes| SsdModel { superblock_bytes, unit_bytes, streams: STREAMS, ..model.clone() };
                Some(of(band_bytes)).filter(|model| model.check().is_ok()).unwrap_or_else(|| of(usual))
            }
            DriveKind::Zoned => SsdModel::qlc_zoned(bytes / band_bytes, band_bytes),
            DriveKind::Disk => return Err("nothing is programmed on disks".to_string()),
        })?;
        Ok(Drive { ssd, now_ns: 0, unit_bytes })
    }

    /// Writes in place.
    pub fn write(&mut self, offset: u64, bytes: u64) {
        self.perform(Request::Write { offset, bytes, stream: 0 });
    }

    /// Writes the next bytes of a band that begins at `start`, `offset` bytes behind that, as one of a pool's streams.
    pub fn write_band(&mut self, start: u64, offset: u64, bytes: u64, stream: u16) {
        let model = self.ssd.model();
        let request = match model.zoned {
            true => Request::Append { zone: start / model.superblock_bytes, bytes },
            // Stream 0 is for what has none.
            false => Request::Write {
                offset: start + offset,
                bytes,
                stream: if model.streams == 0 { 0 } else { 1 + stream },
            },
        };
        self.perform(request);
    }

    /// A band is not needed any more.
    pub fn free_band(&mut self, start: u64, bytes: u64) {
        let model = self.ssd.model();
        let request = match model.zoned {
            true => Request::Reset { zone: start / model.superblock_bytes },
            false => Request::Trim { offset: start, bytes },
        };
        self.perform(request);
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

    /// Bytes of its flash.
    pub fn raw_bytes(&self) -> u64 {
        self.ssd.model().raw_bytes
    }

    /// Bytes that it exports.
    pub fn capacity_bytes(&self) -> u64 {
        self.ssd.model().exported_bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    const BAND: u64 = 4 << 20;

    fn drive(kind: DriveKind) -> Drive {
        let shape = DriveShape { kind, bytes: 128 * BAND, band_bytes: BAND, spare_percent: 10, unit_bytes: 64 << 10 };
        Drive::new(shape).unwrap()
    }

    /// Bands of two streams are written beside each other, and those of the first are freed: what a byte costs.
    fn programmed(kind: DriveKind) -> f64 {
        let (mut drive, piece) = (drive(kind), 64 << 10);
        let mut bands: Vec<u64> = (0..126).collect();
        for _ in 0..12 {
            for pair in bands.chunks(2) {
                for offset in (0..BAND).step_by(piece as usize) {
                    for (stream, band) in pair.iter().enumerate() {
                        drive.write_band(band * BAND, offset, piece, stream as u16);
                    }
                }
            }
            bands = bands.into_iter().step_by(2).collect::<Vec<_>>();
            bands.iter().for_each(|band| drive.free_band(band * BAND, BAND));
            // The second stream's stay; the first one's are written anew, in pairs of their own.
            bands.truncate(bands.len() / 2 * 2);
            if bands.len() < 4 {
                break;
            }
        }
        let (given, programmed) = drive.bytes();
        programmed as f64 / given as f64
    }

    #[test]
    fn zones_and_streams_program_what_they_are_given() {
        assert!(programmed(DriveKind::Zoned) < 1.001);
        let (streams, mixed) = (programmed(DriveKind::Streams), programmed(DriveKind::Conventional));
        assert!(streams <= mixed + 0.001 && streams < 1.05, "{streams} against {mixed}");
    }

    #[test]
    fn a_zone_is_written_again_after_it_was_freed() {
        let mut drive = drive(DriveKind::Zoned);
        for _ in 0..3 {
            (0..BAND).step_by(64 << 10).for_each(|offset| drive.write_band(5 * BAND, offset, 64 << 10, 0));
            drive.free_band(5 * BAND, BAND);
        }
        assert_eq!(drive.bytes(), (3 * BAND, 3 * BAND));
    }
}
