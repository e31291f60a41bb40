//! What is on a device, told by what other programs, and our own devices, keep near its start to be known by.

use crate::device::{Channel, DeviceInfo};
use crate::io::{Io, Lba};
use crate::steps;
use crate::{checksum, encrypt, flash_cache, mirror, parity, slots, zone_bands, zoned};
use reactor::{Reactor, SgList};
use std::rc::Rc;

/// Bytes from the start of a device in which everything here is known by; what begins latest is Btrfs, at 64 KiB.
pub const SIGN_BYTES: usize = 128 << 10;

/// What a leg of a mirror is called.
pub(crate) const MIRROR_LEG: &str = "a leg of a Remuda mirror";
/// What a member of a parity device is called.
pub(crate) const PARITY_MEMBER: &str = "a member of a Remuda parity device";

struct Sign {
    /// A byte offset from the start of the device.
    at: usize,
    bytes: &'static [u8],
    /// With its article.
    name: &'static str,
}

const fn sign(at: usize, bytes: &'static [u8], name: &'static str) -> Sign {
    Sign { at, bytes, name }
}

/// In the order in which they are looked for: what is inside a partition table's sector goes before the table. Offsets and
/// bytes are those of each format's description (for foreign ones, as in libblkid).
static FOREIGN: &[Sign] = &[
    sign(0x438, b"\x53\xEF", "an ext2, ext3 or ext4 file system"),
    sign(0, b"XFSB", "an XFS file system"),
    sign(0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    sign(0, b"LUKS\xBA\xBE", "a LUKS encrypted volume"),
    sign(0x1018, b"\xC6\x85\x73\xF6\x4E\x1A\x45\xCA", "a bcache device"),
    sign(0x400, b"\x10\x20\xF5\xF2", "an F2FS file system"),
    sign(0x1000, b"\xFC\x4E\x2B\xA9", "a member of a Linux RAID"),
    sign(0, b"\xFC\x4E\x2B\xA9", "a member of a Linux RAID"),
    sign(0xFF6, b"SWAPSPACE2", "Linux swap space"),
    sign(0x8001, b"CD001", "an ISO 9660 file system"),
    sign(3, b"NTFS    ", "an NTFS file system"),
    sign(3, b"EXFAT   ", "an exFAT file system"),
    sign(0x52, b"FAT32   ", "a FAT file system"),
    sign(0x36, b"FAT1", "a FAT file system"),
    // Any of the first four sectors.
    sign(0x000, b"LABELONE", "an LVM physical volume"),
    sign(0x200, b"LABELONE", "an LVM physical volume"),
    sign(0x400, b"LABELONE", "an LVM physical volume"),
    sign(0x600, b"LABELONE", "an LVM physical volume"),
    // Sectors of 512 and of 4,096 bytes.
    sign(0x200, b"EFI PART", "a GPT partition table"),
    sign(0x1000, b"EFI PART", "a GPT partition table"),
    sign(0x1FE, b"\x55\xAA", "an MBR partition table"),
];

/// Our own, in either of the first two units.
static OWN: &[Sign] = &[
    sign(0, &mirror::format::KIND.magic, MIRROR_LEG),
    sign(0, &parity::format::KIND.magic, PARITY_MEMBER),
    sign(0, &zone_bands::format::HEAD_LABEL.magic, "the head of a Remuda zone-bands device"),
    sign(0, &zone_bands::format::ZONE_LABEL.magic, "the zones of a Remuda zone-bands device"),
    sign(0, &flash_cache::format::LABEL.magic, "the flash of a Remuda flash cache"),
    sign(0, &flash_cache::format::ANCHOR.magic, "the device behind a Remuda flash cache"),
    sign(0, &zoned::format::SUPERBLOCK.magic, "the zones of a Remuda zoned device"),
    sign(0, &encrypt::format::MAGIC, "a Remuda encrypted device"),
    sign(0, &checksum::format::MAGIC, "a Remuda checksum device"),
];

/// What the first [`SIGN_BYTES`] of a device, or as many as there are, say of what is on it; with its article. `None`: nothing
/// that is known here.
pub fn what_is_on(start: &[u8]) -> Option<&'static str> {
    let is_at = |at: usize, bytes: &[u8]| start.get(at..at + bytes.len()) == Some(bytes);
    let own = OWN.iter().find(|sign| [0, slots::UNIT_BYTES].iter().any(|unit| is_at(unit + sign.at, sign.bytes)));
    own.or_else(|| FOREIGN.iter().find(|sign| is_at(sign.at, sign.bytes))).map(|sign| sign.name)
}

/// In words, what a device holds that is no valid `own`; as far as its start can be read.
pub(crate) async fn in_place_of(own: &str, reactor: &Rc<Reactor>, channel: &dyn Channel, info: &DeviceInfo) -> String {
    let end = (SIGN_BYTES as u64).div_ceil(info.block_size as u64).min(info.blocks);
    let (mut start, mut at) = (Vec::new(), 0);
    while at < end {
        let count = (end - at).min(info.max_io_blocks.max(1) as u64) as u32;
        let Ok(buf) = steps::alloc(reactor, count as usize * info.block_size as usize).await else { break };
        let done = channel.submit(Io::read(Lba(at), count, SgList::from_iter([buf]))).await;
        if !done.status.is_ok() {
            break;
        }
        done.io.bufs.iter().for_each(|buf| start.extend_from_slice(buf.as_slice()));
        at += count as u64;
    }
    match what_is_on(&start) {
        Some(found) if found == own => format!("what was {own}, damaged"),
        Some(found) => found.to_string(),
        None => "other data".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sign_is_known_at_its_place_and_nowhere_else() {
        for sign in OWN.iter().chain(FOREIGN) {
            let mut start = vec![0; SIGN_BYTES];
            assert!(sign.at + sign.bytes.len() <= SIGN_BYTES, "{}", sign.name);
            start[sign.at..sign.at + sign.bytes.len()].copy_from_slice(sign.bytes);
            assert_eq!(what_is_on(&start), Some(sign.name));
            start.rotate_right(16);
            assert_eq!(what_is_on(&start), None, "{} elsewhere", sign.name);
        }
    }

    #[test]
    fn a_second_copy_and_a_file_system_in_a_boot_sector_are_known_too() {
        let mut start = vec![0; SIGN_BYTES];
        start[slots::UNIT_BYTES..slots::UNIT_BYTES + 8].copy_from_slice(&mirror::format::KIND.magic);
        assert_eq!(what_is_on(&start), Some("a leg of a Remuda mirror"));
        let mut start = vec![0; 512];
        start[0x1FE..].copy_from_slice(b"\x55\xAA");
        assert_eq!(what_is_on(&start), Some("an MBR partition table"));
        start[3..11].copy_from_slice(b"NTFS    ");
        assert_eq!(what_is_on(&start), Some("an NTFS file system"));
        assert_eq!(what_is_on(&start[..300]), Some("an NTFS file system"));
        assert_eq!(what_is_on(&[]), None);
    }
}
