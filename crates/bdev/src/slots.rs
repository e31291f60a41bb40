//! Small records that must be found again whatever happens: the superblocks of devices. Several copies, of which the
//! newest valid one counts.
//!
//! Copy `n` is *unit* `n` of the device: 4,096 bytes, or one block where blocks are larger. Every copy begins with the same
//! header (magic, format version, checksum of the whole unit, id, generation; see `docs/formats/slots.md`), so that it can
//! be judged before its content is understood, even when a later release wrote it.
//!
//! What holds: a generation is *in force* when all copies have it, and only then may anything rely on it. So the newest
//! copy that can be read is right although another one cannot: that one holds at most one generation more, which was
//! never in force. The copy that is behind is overwritten first: a torn write never takes back what was once found.

use crate::device::Channel;
use crate::io::{Flags, Io, Lba, Status};
use crate::steps;
use base::crc32c;
use reactor::{Buf, Reactor, SgList};
use smallvec::SmallVec;
use std::rc::Rc;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a copy; where blocks are larger, the rest of the block is zero.
pub const UNIT_BYTES: usize = 4096;
/// Bytes of the header; the body of a record follows.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();
/// Where the checksum (CRC32C, 4 bytes) is in a copy.
pub(crate) const CHECKSUM_AT: usize = std::mem::offset_of!(RawHeader, crc);
/// Where the id is in a copy.
pub(crate) const ID_AT: usize = std::mem::offset_of!(RawHeader, id);
/// Latest generation: far more than are ever written, and far from where counting ends.
const GENERATION_MAX: u64 = 1 << 62;
/// Bytes that are written at a time where many units are.
const RUN_BYTES: usize = 256 << 10;
/// The bytes of one copy.
pub type Unit = [u8; UNIT_BYTES];

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the unit with this field zero.
    crc: U32,
    id: [u8; 16],
    generation: U64,
}

const _: () = assert!(size_of::<RawHeader>() == 40 && CHECKSUM_AT == 12);

/// A kind of record: what marks it, and the format that this code writes.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// First bytes of every copy.
    pub magic: [u8; 8],
    /// Format version written, and the newest one understood.
    pub version: u32,
    /// Number of copies.
    pub copies: u64,
}

/// What every record carries, whatever its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Of the device that the record describes; random.
    pub id: [u8; 16],
    /// One more with every change.
    pub generation: u64,
}

/// What a copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A whole record: its stamp and the bytes after the header.
    Record(Stamp, &'a [u8]),
    /// A whole record of a later format version.
    Newer(u32),
    /// Zeroes.
    Blank,
    /// Anything else, or a damaged record.
    Other,
}

impl Kind {
    /// The copy that holds `body`, which is padded with zeroes.
    pub fn seal(&self, stamp: Stamp, body: &[u8]) -> Unit {
        let Stamp { id, generation } = stamp;
        let (magic, version) = (self.magic, self.version.into());
        let mut header = RawHeader { magic, version, crc: U32::ZERO, id, generation: generation.into() };
        let mut unit = [0; UNIT_BYTES];
        unit[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
        unit[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        header.crc = crc32c(&unit).into();
        unit[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        unit
    }

    /// What a copy holds.
    pub fn open<'a>(&self, unit: &'a Unit) -> Content<'a> {
        let (mut header, body) = RawHeader::read_from_prefix(unit).expect("a unit is longer than its header");
        if unit.iter().all(|byte| *byte == 0) {
            return Content::Blank;
        }
        let (crc, version) = (std::mem::replace(&mut header.crc, U32::ZERO), header.version.get());
        let found = base::crc::crc32c_slices([header.as_bytes(), body]);
        if header.magic != self.magic || found != crc.get() || version == 0 {
            return Content::Other;
        }
        if version > self.version {
            return Content::Newer(version);
        }
        let generation = header.generation.get();
        if generation > GENERATION_MAX {
            return Content::Other;
        }
        Content::Record(Stamp { id: header.id, generation }, body)
    }
}

/// What the copies of a device hold together.
#[derive(Debug)]
pub struct Found<T> {
    /// The newest valid record.
    pub newest: Option<T>,
    /// The copy to overwrite first.
    pub first: u64,
    /// Copies that hold no valid record.
    pub damaged: u64,
    /// All copies are zeroes.
    pub blank: bool,
    /// A copy of this later format version is there.
    pub newer_version: Option<u32>,
    /// How the last copy that could not be read failed.
    pub unreadable: Option<Status>,
    /// Valid copies of something else than the newest record, where copies have no generations.
    pub others: u64,
}

impl<T> Found<T> {
    /// The record to go on with; `None` when a new one is to be made. Otherwise why neither may be done; `what` is the
    /// noun for the record.
    pub fn choose(mut self, create: bool, force: bool, what: &str) -> Result<Option<T>, String> {
        self.take(create, force, what)
    }

    /// As [`choose`](Self::choose), leaving the rest of what was found.
    pub(crate) fn take(&mut self, create: bool, force: bool, what: &str) -> Result<Option<T>, String> {
        if create && force {
            return Ok(None);
        }
        if let Some(version) = self.newer_version {
            return Err(refuse_newer(what, version));
        }
        match (self.newest.take(), self.unreadable) {
            (Some(newest), _) => Ok(Some(newest)),
            (None, Some(status)) => Err(format!("no copy of its {what} can be read ({status}); replace the medium")),
            (None, None) if !create => Err(format!(
                "the child has no {what}; name the right one, or open it in a node, which makes one on a blank child"
            )),
            (None, None) if !self.blank => Err("the child holds other data; wipe it, or create with force".to_string()),
            (None, None) => Ok(None),
        }
    }
}

/// What to say when a later release was here; `what` names the record.
pub fn refuse_newer(what: &str, version: u32) -> String {
    format!("a newer release wrote the {what} (format version {version}); use that release or a later one")
}

/// The copies on one device, through one channel.
#[derive(Clone, Copy)]
pub struct Slots<'a> {
    /// Where buffers come from.
    pub reactor: &'a Rc<Reactor>,
    /// To the device.
    pub channel: &'a dyn Channel,
    /// The device's.
    pub block_size: u32,
    /// What is looked for.
    pub kind: Kind,
}

impl Slots<'_> {
    /// Blocks from one unit to the next on a device.
    pub fn unit_blocks(block_size: u32) -> u64 {
        (UNIT_BYTES as u64).div_ceil(block_size as u64)
    }

    /// Reads all copies. `decode` turns a body into a record, or refuses one that cannot be.
    pub async fn read<T>(&self, decode: impl Fn(Stamp, &[u8]) -> Option<T>) -> Found<T> {
        let mut found =
            Found { newest: None, first: 0, damaged: 0, blank: true, newer_version: None, unreadable: None, others: 0 };
        let (mut newest_generation, mut generations) = (0, SmallVec::<[Option<u64>; 4]>::new());
        for copy in 0..self.kind.copies {
            let unit = match self.read_unit(copy).await {
                Ok(unit) => unit,
                Err(status) => {
                    (found.unreadable, found.blank) = (Some(status), false);
                    found.damaged += 1;
                    generations.push(None);
                    continue;
                }
            };
            let content = self.kind.open(&unit);
            found.blank &= content == Content::Blank;
            let record = match content {
                Content::Record(stamp, body) => decode(stamp, body).map(|record| (stamp.generation, record)),
                Content::Newer(version) => {
                    found.newer_version = Some(version);
                    None
                }
                Content::Blank | Content::Other => None,
            };
            generations.push(record.as_ref().map(|(generation, _)| *generation));
            match record {
                Some((generation, record)) if found.newest.is_none() || generation > newest_generation => {
                    (newest_generation, found.newest) = (generation, Some(record));
                }
                Some(_) => {}
                None => found.damaged += 1,
            }
        }
        // Copies are written in turn, so those with the newest generation follow each other.
        let newest = |copy: u64| generations[copy as usize] == Some(newest_generation);
        let behind = |copy: &u64| !newest(*copy) && newest((copy + self.kind.copies - 1) % self.kind.copies);
        found.first = (0..self.kind.copies).find(behind).unwrap_or(0);
        found
    }

    /// Writes all copies, durably, from copy `first` on ([`Found::first`]). When it fails, the record is not in force.
    pub async fn write(&self, first: u64, unit: &Unit) -> Result<(), Status> {
        self.write_with(first, unit, &mut None).await
    }

    /// The same with a buffer of [`unit_buf`](Self::unit_buf), so that what fails is the device. It is there again afterwards.
    pub(crate) async fn write_with(&self, first: u64, unit: &Unit, buf: &mut Option<Buf>) -> Result<(), Status> {
        for step in 0..self.kind.copies {
            self.write_unit_with((first + step) % self.kind.copies, unit, buf).await?;
        }
        Ok(())
    }

    /// A buffer for a unit.
    pub(crate) async fn unit_buf(&self) -> Result<Buf, Status> {
        steps::alloc(self.reactor, Self::unit_blocks(self.block_size) as usize * self.block_size as usize).await
    }

    /// Writes one unit, durably.
    pub async fn write_unit(&self, index: u64, bytes: &Unit) -> Result<(), Status> {
        self.write_unit_with(index, bytes, &mut None).await
    }

    async fn write_unit_with(&self, index: u64, bytes: &Unit, spare: &mut Option<Buf>) -> Result<(), Status> {
        let blocks = Self::unit_blocks(self.block_size);
        let mut buf = match spare.take().filter(|buf| !buf.is_shared()) {
            Some(buf) => buf,
            None => self.unit_buf().await?,
        };
        buf.as_mut_slice()[..UNIT_BYTES].copy_from_slice(bytes);
        buf.as_mut_slice()[UNIT_BYTES..].fill(0);
        let bufs = SgList::from_iter([buf]);
        let write = Io { flags: Flags::FUA, ..Io::write(Lba(index * blocks), blocks as u32, bufs) };
        let mut done = self.channel.submit(write).await;
        *spare = done.io.bufs.pop();
        done.status.check()
    }

    /// Writes units one behind the other, from `first` on, in few large writes of at most `io_blocks` blocks. They are durable
    /// after a flush.
    pub(crate) async fn write_run(
        &self,
        first: u64,
        units: impl Iterator<Item = Unit>,
        io_blocks: u32,
    ) -> Result<(), Status> {
        let unit_blocks = Self::unit_blocks(self.block_size);
        let unit_bytes = unit_blocks as usize * self.block_size as usize;
        let at_once = (RUN_BYTES / unit_bytes).min((io_blocks as u64 / unit_blocks) as usize).max(1);
        let (mut units, mut at) = (units.peekable(), first);
        while units.peek().is_some() {
            let mut buf = steps::alloc(self.reactor, at_once * unit_bytes).await?;
            buf.as_mut_slice().fill(0);
            let mut count = 0;
            for (target, unit) in buf.as_mut_slice().chunks_exact_mut(unit_bytes).zip(units.by_ref().take(at_once)) {
                target[..UNIT_BYTES].copy_from_slice(&unit);
                count += 1;
            }
            let bufs = SgList::from_iter([buf.slice(0..count * unit_bytes)]);
            let write = Io::write(Lba(at * unit_blocks), (count as u64 * unit_blocks) as u32, bufs);
            self.channel.submit(write).await.status.check()?;
            at += count as u64;
        }
        Ok(())
    }

    /// Reads one unit.
    pub async fn read_unit(&self, index: u64) -> Result<Unit, Status> {
        let blocks = Self::unit_blocks(self.block_size);
        let buf = steps::alloc(self.reactor, blocks as usize * self.block_size as usize).await?;
        let done = self.channel.submit(Io::read(Lba(index * blocks), blocks as u32, SgList::from_iter([buf]))).await;
        done.status.check()?;
        let mut bytes = [0; UNIT_BYTES];
        steps::sg_read_at(&done.io.bufs, 0, &mut bytes);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { magic: *b"RMDTEST\x01", version: 2, copies: 2 };
    const STAMP: Stamp = Stamp { id: [7; 16], generation: 9 };

    #[test]
    fn a_record_survives_the_round_trip_and_no_flipped_bit_does() {
        let unit = KIND.seal(STAMP, b"content");
        let Content::Record(stamp, body) = KIND.open(&unit) else { panic!("no record") };
        assert_eq!((stamp, &body[..8]), (STAMP, &b"content\0"[..]));
        for bit in 0..UNIT_BYTES * 8 {
            let mut damaged = unit;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(KIND.open(&damaged), Content::Other, "bit {bit}");
        }
        assert_eq!(KIND.open(&[0; UNIT_BYTES]), Content::Blank);
    }

    #[test]
    fn a_later_version_is_told_from_damage() {
        let unit = Kind { version: 3, ..KIND }.seal(STAMP, b"other");
        assert_eq!(KIND.open(&unit), Content::Newer(3));
        assert!(matches!(KIND.open(&Kind { version: 1, ..KIND }.seal(STAMP, b"old")), Content::Record(..)));
        assert_eq!(KIND.open(&Kind { magic: *b"RMDELSE\x01", ..KIND }.seal(STAMP, b"")), Content::Other);
    }

    #[test]
    fn a_generation_that_nobody_reaches_is_damage() {
        let with = |generation| KIND.seal(Stamp { generation, ..STAMP }, b"content");
        assert!(matches!(KIND.open(&with(GENERATION_MAX)), Content::Record(..)));
        assert_eq!(KIND.open(&with(GENERATION_MAX + 1)), Content::Other);
    }

    #[test]
    fn what_was_found_decides_what_may_be_done() {
        let found = |newest, blank, newer_version, unreadable| Found {
            newest,
            first: 0,
            damaged: 0,
            blank,
            newer_version,
            unreadable,
            others: 0,
        };
        assert_eq!(found(Some(5), false, None, Some(Status::ReadError)).choose(true, false, "header"), Ok(Some(5)));
        assert_eq!(found(Some(5), false, None, None).choose(true, true, "header"), Ok(None));
        assert_eq!(found(None, true, None, None).choose(true, false, "header"), Ok(None));
        let refusals = [
            (found(Some(5), false, Some(3), None), "newer release"),
            (found(None, false, None, Some(Status::ReadError)), "can be read"),
            (found(None, false, None, None), "other data"),
        ];
        for (found, reason) in refusals {
            assert!(found.choose(true, false, "header").unwrap_err().contains(reason));
        }
        assert!(
            found(None, true, None, None)
                .choose(false, false, "header")
                .unwrap_err()
                .contains("a node, which makes one")
        );
    }
}
