//! Zones of a zoned block device, as drivers tell them: host-managed zones of NVMe (ZNS) and of disks (ZBC, ZAC).

/// Bytes of the record of a zone.
pub const FILE_ZONE_BYTES: usize = 64;
/// Bytes of the sectors that records count in.
const SECTOR: u64 = 512;

/// What the zones of a block device are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileZones {
    /// Bytes from one zone to the next, a power of two.
    pub bytes: u64,
    /// Bytes of a zone that can be written.
    pub capacity_bytes: u64,
    /// What is written at once, and pointers are multiples of.
    pub write_bytes: u32,
    /// Zones at the device's start that are written anywhere (conventional).
    pub conventional: u64,
    /// Most zones open at once; 0 is no limit.
    pub open_max: u32,
    /// Most zones active at once; 0 is no limit.
    pub active_max: u32,
}

/// A change of a zone's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAction {
    /// To empty.
    Reset,
    /// To explicitly open.
    Open,
    /// To closed.
    Close,
    /// To full.
    Finish,
}

/// What may be done with a zone. The values are those of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileZoneCondition {
    /// It has no write pointer: it is written anywhere.
    Conventional = 0,
    /// Nothing is written.
    Empty = 1,
    /// A write opened it.
    ImplicitlyOpen = 2,
    /// It was opened on request.
    ExplicitlyOpen = 3,
    /// Active, and not open.
    Closed = 4,
    /// It can only be read.
    ReadOnly = 13,
    /// It takes no more.
    Full = 14,
    /// It is out of use.
    Offline = 15,
}

/// One zone of a zoned block device. Its record is that of Linux (`struct blk_zone` in `linux/blkzoned.h`), whose sectors have 512
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileZone {
    /// Its first byte.
    pub start: u64,
    /// Bytes to the next zone.
    pub bytes: u64,
    /// Bytes of it that can be written.
    pub capacity: u64,
    /// The byte that is written next. Means nothing in zones that are conventional, full, read-only or offline.
    pub write_pointer: u64,
    /// What may be done with it.
    pub condition: FileZoneCondition,
}

impl FileZone {
    /// Its record.
    pub fn record(&self) -> [u8; FILE_ZONE_BYTES] {
        let mut record = [0; FILE_ZONE_BYTES];
        let mut put = |at: usize, bytes: u64| record[at..at + 8].copy_from_slice(&(bytes / SECTOR).to_le_bytes());
        put(0, self.start);
        put(8, self.bytes);
        put(16, self.write_pointer);
        put(32, self.capacity);
        record[24] = if self.condition == FileZoneCondition::Conventional { 1 } else { 2 };
        record[25] = self.condition as u8;
        record
    }

    /// The zone of a record; none where it is not one. A record without a capacity is of a zone that can be written to its end.
    pub fn from_record(record: &[u8; FILE_ZONE_BYTES]) -> Option<FileZone> {
        use FileZoneCondition::*;
        let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
        let bytes = |at: usize| word(at).checked_mul(SECTOR);
        let all = [Conventional, Empty, ImplicitlyOpen, ExplicitlyOpen, Closed, ReadOnly, Full, Offline];
        let condition = all.into_iter().find(|condition| *condition as u8 == record[25])?;
        // A pointer that means nothing may be anything.
        let (start, len, write_pointer) = (bytes(0)?, bytes(8)?, bytes(16).unwrap_or(u64::MAX));
        let capacity = if word(32) == 0 { len } else { bytes(32)? };
        Some(FileZone { start, bytes: len, capacity, write_pointer, condition })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_gives_the_zone_back_and_an_unknown_condition_is_none() {
        let zone = FileZone {
            start: 1 << 40,
            bytes: 1 << 28,
            capacity: 100 << 20,
            write_pointer: (1 << 40) + 4096,
            condition: FileZoneCondition::Closed,
        };
        assert_eq!(FileZone::from_record(&zone.record()), Some(zone));
        let mut record = zone.record();
        record[32..40].fill(0);
        assert_eq!(FileZone::from_record(&record).unwrap().capacity, 1 << 28, "as kernels without capacities tell it");
        record[25] = 7;
        assert_eq!(FileZone::from_record(&record), None);
        record[25] = 1;
        record[8..16].fill(0xff);
        assert_eq!(FileZone::from_record(&record), None, "longer than any device");
    }
}
