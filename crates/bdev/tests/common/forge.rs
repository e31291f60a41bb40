//! Fields of structures forged, as somebody would who wants them to be believed: another number in the place of one, and a checksum
//! that is right.

use base::Rng;

/// Bytes of a record of a device.
pub const UNIT: usize = 4096;

/// Records that devices keep on those below them, with their checksum at byte 12, as in `docs/formats/slots.md`.
const RECORDS: [&[u8; 8]; 12] = [
    b"RMDMIRR\x01",
    b"RMDPRTY\x01",
    b"RMDZBHD\x01",
    b"RMDZBZN\x01",
    b"RMDZONE\x01",
    b"RMDZTAB\x01",
    b"RMDZEXT\x01",
    b"RMDFCAN\x01",
    b"RMDFCMK\x01",
    b"RMDFCIM\x01",
    b"RMDFCLB\x01",
    // (The header of a segment, of one unit where segments are small.)
    b"RMDFCSG\x01",
];

/// Where a record of a device has its checksum, and how many bytes that is of; `None`: it is none.
pub fn record_at(bytes: &[u8]) -> Option<(usize, usize)> {
    match bytes.first_chunk::<8>()? {
        magic if RECORDS.contains(&magic) => Some((12, UNIT)),
        b"RMDMIRB\x01" => Some((8, UNIT)),
        b"RMDCSUM\x01" => Some((12, 64)),
        b"RMDCRYP\x01" => Some((12, 192)),
        magic if magic[..4] == *b"RCP\x01" => Some((4, UNIT)),
        _ => None,
    }
}

/// The magic number of a record.
pub fn magic_of(unit: &[u8]) -> &[u8] {
    &unit[..if unit[..4] == *b"RCP\x01" { 4 } else { 8 }]
}

/// Puts the checksum of a record right.
pub fn seal_record(unit: &mut [u8]) {
    if let Some((at, len)) = record_at(unit) {
        let crc = crc_of(&unit[..len], at);
        unit[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Of a structure, with the checksum itself as zero.
pub fn crc_of(bytes: &[u8], at: usize) -> u32 {
    base::crc::crc32c_slices([&bytes[..at], &[0; 4], &bytes[at + 4..]])
}

/// Little-endian.
pub fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |value, byte| value << 8 | *byte as u64)
}

/// Another number in one of the fields of a structure, more often in one of the first.
pub fn forge(bytes: &mut [u8], rng: &mut Rng) {
    let (at, size) = field_of(bytes.len(), rng);
    forge_field(&mut bytes[at..at + size], rng);
}

/// Where a field of a structure of so many bytes is, and how long.
pub fn field_of(len: usize, rng: &mut Rng) -> (usize, usize) {
    let size = [1usize, 2, 4, 4, 8][rng.below(5) as usize];
    let end = [64, 64, 128, 512, UNIT][rng.below(5) as usize].min(len);
    (rng.below((end / size) as u64) as usize * size, size)
}

/// Another number in the place of a field of so many bytes.
pub fn forge_field(field: &mut [u8], rng: &mut Rng) {
    let old = number(field, 0, field.len());
    let most = u64::MAX >> (64 - 8 * field.len());
    let new = match rng.below(10) {
        0 => 0,
        1 => 1,
        2 => most,
        3 => most / 2,
        4 => old.wrapping_add(1),
        5 => old.wrapping_sub(1),
        6 => old.wrapping_mul(2),
        7 => old ^ 1 << rng.below(8 * field.len() as u64),
        8 => rng.below(100),
        _ => rng.next_u64(),
    };
    field.copy_from_slice(&new.to_le_bytes()[..field.len()]);
}

/// A number of the environment, for longer runs.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
