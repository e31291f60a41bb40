//! What a flash cache keeps on its two devices. See `docs/formats/flash-cache.md`.

use super::budget::BINS;
use super::index::{BLOCKS_MAX, SLOTS_MAX};
use super::ring::{NO_BLOCK, Shape};
use crate::slots::{HEADER_BYTES, Kind, Slots, Stamp, UNIT_BYTES};
use base::crc32c;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// At the start of flash: whose it is.
pub(crate) const LABEL: Kind = Kind { magic: *b"RMDFCLB\x01", version: 1, copies: 2 };
/// At the start of the slow device: everything that has to be true.
pub(crate) const ANCHOR: Kind = Kind { magic: *b"RMDFCAN\x01", version: 1, copies: 2 };
/// After it: a mark per region, each page twice.
pub(super) const MARKS: Kind = Kind { magic: *b"RMDFCMK\x01", version: 1, copies: 2 };
/// After these: which slots held something when the cache was closed.
pub(super) const IMAGE: Kind = Kind { magic: *b"RMDFCIM\x01", version: 1, copies: 1 };
const SEGMENT_MAGIC: [u8; 8] = *b"RMDFCSG\x01";
const SEGMENT_VERSION: u32 = 1;
/// Features without which flash may not be used by a build that does not know them. None so far.
const LABEL_FEATURES_KNOWN: u32 = 0;
/// Feature of an anchor: there is room for more marks than the data need now.
const FEATURE_ROOM: u32 = 1;
/// Likewise of the slow device.
const FEATURES_KNOWN: u32 = FEATURE_ROOM;

const BODY_BYTES: usize = UNIT_BYTES - HEADER_BYTES;
/// Marks of a page.
pub(super) const PAGE_MARKS: u64 = (BODY_BYTES as u64 - 8) / 8;
/// Slots of a page of the image.
pub(super) const PAGE_SLOTS: u64 = (BODY_BYTES as u64 - 8) / 8 * 64;
/// Regions at most: 64 MiB of memory for what is known of them...
pub(super) const REGIONS_MAX: u64 = 1 << 22;
/// ... of which a new cache chooses to have so many.
const REGIONS_CHOSEN_MAX: u64 = 1 << 20;
/// A new cache has room for the marks of so many times its data.
const ROOM_TIMES: u64 = 4;
const REGION_BYTES_MIN: u64 = 1 << 20;
const SEGMENTS_MIN: u64 = 8;
const ENTRY_BYTES: usize = 12;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawLabel {
    cache_id: [u8; 16],
    features: U32,
    block_size: U32,
    segment_blocks: U64,
    header_blocks: U64,
    segments: U64,
    first_block: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawAnchor {
    flash_id: [u8; 16],
    features: U32,
    block_size: U32,
    data_start: U64,
    data_blocks: U64,
    region_blocks: U64,
    image_pages: U64,
    segments: U64,
    session: U64,
    reserved_to: U64,
    void_to: U64,
    next_seq: U64,
    /// 1 after a clean close, else 0.
    clean: U32,
    /// With [`FEATURE_ROOM`]: pages of marks that there is room for. Else 0: those that the data need.
    mark_pages: U32,
    written_total: U64,
    bins: [U64; BINS],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawSegment {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of the header, entries included, with this field zero.
    crc: U32,
    flash_id: [u8; 16],
    seq: U64,
    written_total: U64,
    entries: U32,
    reserved: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawEntry {
    lba: U64,
    crc: U32,
}

const _: () = assert!(size_of::<RawLabel>() == 56 && size_of::<RawSegment>() == 56);
const _: () = assert!(size_of::<RawAnchor>() == 112 + BINS * 8 && size_of::<RawAnchor>() <= BODY_BYTES);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES && PAGE_MARKS == 506);

/// Whose a flash device is, and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) flash_id: [u8; 16],
    /// Of the slow device's anchor.
    pub(super) cache_id: [u8; 16],
    pub(super) shape: Shape,
    /// The ring's first block.
    pub(super) first_block: u64,
}

impl Shape {
    /// How a flash device of `blocks` blocks is divided; `None` when it is too small or too large.
    pub(super) fn plan(block_size: u32, blocks: u64, segment_bytes: u64) -> Option<(Shape, u64)> {
        let segment_blocks = segment_bytes / block_size as u64;
        let header =
            |slots: u64| (size_of::<RawSegment>() as u64 + slots * ENTRY_BYTES as u64).div_ceil(block_size as u64);
        let header_blocks = (1..segment_blocks).find(|blocks| header(segment_blocks - blocks) <= *blocks)?;
        let first_block = (2 * Slots::unit_blocks(block_size)).next_multiple_of(segment_blocks);
        let segments = blocks.saturating_sub(first_block) / segment_blocks;
        let shape = Shape { block_size, segment_blocks, header_blocks, segments };
        shape.is_sane().then_some((shape, first_block))
    }

    fn is_sane(&self) -> bool {
        let slots = self.slots_per_segment_checked().and_then(|slots| slots.checked_mul(self.segments));
        let is_block = self.block_size.is_power_of_two() && (512..=65_536).contains(&self.block_size);
        let header = self.header_blocks.checked_mul(self.block_size as u64);
        let needed = self
            .slots_per_segment_checked()
            .and_then(|slots| slots.checked_mul(ENTRY_BYTES as u64)?.checked_add(size_of::<RawSegment>() as u64));
        is_block
            && self.segments >= SEGMENTS_MIN
            && slots.is_some_and(|slots| slots <= SLOTS_MAX)
            && self.segment_blocks <= 1 << 24
            && header.zip(needed).is_some_and(|(header, needed)| needed <= header)
    }

    fn slots_per_segment_checked(&self) -> Option<u64> {
        self.segment_blocks.checked_sub(self.header_blocks).filter(|slots| *slots > 0)
    }
}

impl Label {
    pub(super) fn body(&self) -> Vec<u8> {
        let Shape { block_size, segment_blocks, header_blocks, segments } = self.shape;
        let raw = RawLabel {
            cache_id: self.cache_id,
            features: LABEL_FEATURES_KNOWN.into(),
            block_size: block_size.into(),
            segment_blocks: segment_blocks.into(),
            header_blocks: header_blocks.into(),
            segments: segments.into(),
            first_block: self.first_block.into(),
        };
        raw.as_bytes().to_vec()
    }

    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Label> {
        let (raw, _) = RawLabel::read_from_prefix(body).ok()?;
        let shape = Shape {
            block_size: raw.block_size.get(),
            segment_blocks: raw.segment_blocks.get(),
            header_blocks: raw.header_blocks.get(),
            segments: raw.segments.get(),
        };
        let first_block = raw.first_block.get();
        let end = shape.segments.checked_mul(shape.segment_blocks).and_then(|blocks| blocks.checked_add(first_block));
        let is_sane = raw.features.get() & !LABEL_FEATURES_KNOWN == 0
            && shape.is_sane()
            && first_block >= LABEL.copies * Slots::unit_blocks(shape.block_size)
            && end.is_some();
        is_sane.then_some(Label { flash_id: stamp.id, cache_id: raw.cache_id, shape, first_block })
    }

    /// Bytes that writing the label takes.
    pub(super) fn bytes(&self) -> u64 {
        LABEL.copies * Slots::unit_blocks(self.shape.block_size) * self.shape.block_size as u64
    }

    /// The first block after the ring.
    pub(super) fn end(&self) -> u64 {
        self.first_block + self.shape.segments * self.shape.segment_blocks
    }
}

/// Where things are on the slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) block_size: u32,
    pub(super) data_start: u64,
    pub(super) data_blocks: u64,
    pub(super) region_blocks: u64,
    /// Pages of marks that there is room for.
    pub(super) mark_pages: u64,
    pub(super) image_pages: u64,
}

impl Geometry {
    /// For a slow device of `blocks` blocks, which may become several times as large, with a flash device of `slots` slots before
    /// it, which may be replaced by one of twice its size. `region_bytes` of 0 chooses. `None` where it is too small or too
    /// large.
    pub(super) fn plan(block_size: u32, blocks: u64, slots: u64, region_bytes: u64) -> Option<Geometry> {
        let size = block_size as u64;
        let chosen = match region_bytes {
            0 => (blocks.checked_mul(size)? / REGIONS_CHOSEN_MAX).next_power_of_two().max(REGION_BYTES_MIN),
            bytes => bytes,
        };
        let region_blocks = chosen / size;
        if region_blocks == 0 || blocks.div_ceil(region_blocks) > REGIONS_MAX {
            return None;
        }
        let image_pages = (slots * 2).div_ceil(PAGE_SLOTS);
        let most_regions = (blocks.div_ceil(region_blocks) * ROOM_TIMES).min(REGIONS_MAX);
        let mark_pages = most_regions.div_ceil(PAGE_MARKS);
        let units = ANCHOR.copies + MARKS.copies * mark_pages + image_pages;
        // Large blocks below stay aligned, where there is room for that.
        let align = if blocks * size >= 64 << 20 { (1 << 20) / size } else { 1 };
        let data_start = (units * Slots::unit_blocks(block_size)).next_multiple_of(align);
        let data_blocks = blocks.checked_sub(data_start)?;
        let geometry = Geometry { block_size, data_start, data_blocks, region_blocks, mark_pages, image_pages };
        geometry.is_sane().then_some(geometry)
    }

    /// The same of more data; `None` where there is no room for their marks.
    pub(super) fn grown(&self, data_blocks: u64) -> Option<Geometry> {
        let grown = Geometry { data_blocks, ..*self };
        grown.is_sane().then_some(grown)
    }

    /// The most data blocks that there is room for the marks of.
    pub(super) fn data_blocks_max(&self) -> u64 {
        let regions = (self.mark_pages * PAGE_MARKS).min(REGIONS_MAX - 1);
        regions.saturating_mul(self.region_blocks).min(BLOCKS_MAX)
    }

    fn is_sane(&self) -> bool {
        let regions = self.data_blocks.checked_div(self.region_blocks);
        let is_small = regions.is_some_and(|regions| regions < REGIONS_MAX) && self.image_pages < 1 << 32;
        (1..=BLOCKS_MAX).contains(&self.data_blocks)
            && is_small
            && (512..=65_536).contains(&self.block_size)
            && self.block_size.is_power_of_two()
            && self.data_start.checked_add(self.data_blocks).is_some()
            && self.mark_pages <= REGIONS_MAX.div_ceil(PAGE_MARKS)
            && self.mark_pages_used() <= self.mark_pages
            && self.data_start >= self.units() * Slots::unit_blocks(self.block_size)
    }

    pub(super) fn regions(&self) -> u64 {
        self.data_blocks.div_ceil(self.region_blocks)
    }

    /// Pages with marks of regions that there are.
    pub(super) fn mark_pages_used(&self) -> u64 {
        self.regions().div_ceil(PAGE_MARKS)
    }

    /// The unit of a copy of a page of marks.
    pub(super) fn mark_unit(page: u64, copy: u64) -> u64 {
        ANCHOR.copies + page * MARKS.copies + copy
    }

    /// The unit of a page of the image.
    pub(super) fn image_unit(&self, page: u64) -> u64 {
        Geometry::mark_unit(self.mark_pages, 0) + page
    }

    fn units(&self) -> u64 {
        self.image_unit(self.image_pages)
    }
}

/// The state of the cache, on the slow device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) stamp: Stamp,
    pub(super) flash_id: [u8; 16],
    pub(super) geometry: Geometry,
    /// Segments of the flash device.
    pub(super) segments: u64,
    /// One more with every opening.
    pub(super) session: u64,
    pub(super) reserved_to: u64,
    pub(super) void_to: u64,
    /// With `clean`: the number after the last segment that was written.
    pub(super) next_seq: u64,
    pub(super) clean: bool,
    pub(super) written_total: u64,
    pub(super) bins: [u64; BINS],
}

impl Anchor {
    pub(super) fn body(&self) -> Vec<u8> {
        let Geometry { block_size, data_start, data_blocks, region_blocks, mark_pages, image_pages } = self.geometry;
        let has_room = mark_pages > self.geometry.mark_pages_used();
        let raw = RawAnchor {
            flash_id: self.flash_id,
            features: if has_room { FEATURE_ROOM } else { 0 }.into(),
            block_size: block_size.into(),
            data_start: data_start.into(),
            data_blocks: data_blocks.into(),
            region_blocks: region_blocks.into(),
            image_pages: image_pages.into(),
            segments: self.segments.into(),
            session: self.session.into(),
            reserved_to: self.reserved_to.into(),
            void_to: self.void_to.into(),
            next_seq: self.next_seq.into(),
            clean: u32::from(self.clean).into(),
            mark_pages: if has_room { mark_pages as u32 } else { 0 }.into(),
            written_total: self.written_total.into(),
            bins: self.bins.map(U64::new),
        };
        raw.as_bytes().to_vec()
    }

    pub(super) fn decode(stamp: Stamp, body: &[u8]) -> Option<Anchor> {
        let (raw, _) = RawAnchor::read_from_prefix(body).ok()?;
        let geometry = Geometry {
            block_size: raw.block_size.get(),
            data_start: raw.data_start.get(),
            data_blocks: raw.data_blocks.get(),
            region_blocks: raw.region_blocks.get(),
            mark_pages: raw.mark_pages.get() as u64,
            image_pages: raw.image_pages.get(),
        };
        let geometry = match raw.features.get() & FEATURE_ROOM {
            0 if geometry.region_blocks > 0 => Geometry { mark_pages: geometry.mark_pages_used(), ..geometry },
            _ => geometry,
        };
        let seqs = [raw.reserved_to.get(), raw.void_to.get(), raw.next_seq.get(), raw.session.get()];
        // Numbers that no device lives to see leave room to count on.
        let is_sane = raw.features.get() & !FEATURES_KNOWN == 0
            && geometry.is_sane()
            && raw.clean.get() <= 1
            && raw.next_seq.get() > 0
            && seqs.iter().all(|seq| *seq < 1 << 62)
            && (SEGMENTS_MIN..=SLOTS_MAX).contains(&raw.segments.get());
        is_sane.then(|| Anchor {
            stamp,
            flash_id: raw.flash_id,
            geometry,
            segments: raw.segments.get(),
            session: raw.session.get(),
            reserved_to: raw.reserved_to.get(),
            void_to: raw.void_to.get(),
            next_seq: raw.next_seq.get(),
            clean: raw.clean.get() == 1,
            written_total: raw.written_total.get(),
            bins: raw.bins.map(U64::get),
        })
    }
}

/// The body of a page of numbers: of marks, or of words of the image.
pub(super) fn page_body(index: u64, words: &[u64]) -> Vec<u8> {
    let words = words.iter().flat_map(|word| word.to_le_bytes());
    index.to_le_bytes().into_iter().chain(words).collect()
}

/// Its first `count` numbers, if it is page `index`.
pub(super) fn decode_page(body: &[u8], index: u64, count: usize) -> Option<Vec<u64>> {
    let mut words =
        body.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight bytes")));
    if words.next()? != index {
        return None;
    }
    let words: Vec<u64> = words.take(count).collect();
    (words.len() == count).then_some(words)
}

/// The header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) seq: u64,
    pub(super) written_total: u64,
    /// Address and checksum per slot, as far as slots are used.
    pub(super) entries: Vec<(u64, u32)>,
}

impl Header {
    /// Fills the header blocks of a segment; `bytes` are all of them.
    pub(super) fn encode(&self, flash_id: [u8; 16], bytes: &mut [u8]) {
        bytes.fill(0);
        let mut raw = RawSegment {
            magic: SEGMENT_MAGIC,
            version: SEGMENT_VERSION.into(),
            crc: U32::ZERO,
            flash_id,
            seq: self.seq.into(),
            written_total: self.written_total.into(),
            entries: (self.entries.len() as u32).into(),
            reserved: U32::ZERO,
        };
        let (head, rest) = bytes.split_at_mut(size_of::<RawSegment>());
        for (target, (lba, crc)) in rest.chunks_exact_mut(ENTRY_BYTES).zip(&self.entries) {
            let entry = RawEntry { lba: (*lba).into(), crc: (*crc).into() };
            target.copy_from_slice(entry.as_bytes());
        }
        head.copy_from_slice(raw.as_bytes());
        raw.crc = crc32c(bytes).into();
        bytes[..size_of::<RawSegment>()].copy_from_slice(raw.as_bytes());
    }

    /// `None` when these are no header blocks of this flash, whole.
    pub(super) fn decode(flash_id: [u8; 16], slots: u64, bytes: &mut [u8]) -> Option<Header> {
        let mut raw = RawSegment::read_from_prefix(bytes).ok()?.0;
        let crc = std::mem::replace(&mut raw.crc, U32::ZERO);
        if raw.magic != SEGMENT_MAGIC || raw.version.get() != SEGMENT_VERSION || raw.flash_id != flash_id {
            return None;
        }
        bytes[..size_of::<RawSegment>()].copy_from_slice(raw.as_bytes());
        let count = raw.entries.get() as u64;
        if crc32c(bytes) != crc.get() || count > slots || raw.seq.get() >= 1 << 62 {
            return None;
        }
        let entries = bytes[size_of::<RawSegment>()..].chunks_exact(ENTRY_BYTES).take(count as usize).map(|bytes| {
            let entry = RawEntry::read_from_bytes(bytes).unwrap_or_else(|_| RawEntry::new_zeroed());
            (entry.lba.get(), entry.crc.get())
        });
        let entries: Vec<(u64, u32)> = entries.collect();
        let (seq, written_total) = (raw.seq.get(), raw.written_total.get());
        (entries.len() as u64 == count).then_some(Header { seq, written_total, entries })
    }

    /// The entries that are blocks of a device of `blocks`, with their slots in the segment.
    pub(super) fn blocks(&self, blocks: u64) -> impl Iterator<Item = (u64, u64, u32)> + '_ {
        let entries = self.entries.iter().enumerate();
        let real = entries.filter(move |(_, (lba, _))| *lba != NO_BLOCK && *lba < blocks);
        real.map(|(nth, (lba, crc))| (nth as u64, *lba, *crc))
    }
}

/// The checksum of a cached block: of its bytes and its address, so that another block's bytes are not taken for it.
pub(super) fn block_crc(lba: u64, data: &[u8]) -> u32 {
    base::crc::crc32c_slices([data, &lba.to_le_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slots::{Content, Unit};

    fn shape() -> (Shape, u64) {
        Shape::plan(4096, 100_000, 1 << 20).unwrap()
    }

    fn anchor() -> Anchor {
        Anchor {
            stamp: Stamp { id: [7; 16], generation: 9 },
            flash_id: [8; 16],
            geometry: Geometry::plan(4096, 1 << 20, shape().0.slots(), 0).unwrap(),
            segments: 390,
            session: 4,
            reserved_to: 77,
            void_to: 3,
            next_seq: 75,
            clean: true,
            written_total: 1 << 40,
            bins: std::array::from_fn(|n| n as u64),
        }
    }

    fn each_flip(unit: &Unit, each: impl Fn(&Unit)) {
        for bit in 0..UNIT_BYTES * 8 {
            let mut damaged = *unit;
            damaged[bit / 8] ^= 1 << (bit % 8);
            each(&damaged);
        }
    }

    #[test]
    fn anchor_and_label_survive_the_round_trip_and_no_flipped_bit_does() {
        let unit = ANCHOR.seal(anchor().stamp, &anchor().body());
        let Content::Record(stamp, body) = ANCHOR.open(&unit) else { panic!("no anchor") };
        assert_eq!(Anchor::decode(stamp, body), Some(anchor()));
        each_flip(&unit, |damaged| assert_eq!(ANCHOR.open(damaged), Content::Other));
        // Grown to the last page of marks, it is as one that never had room for more.
        let geometry = anchor().geometry;
        let full = Anchor { geometry: geometry.grown(geometry.data_blocks_max()).unwrap(), ..anchor() };
        assert_eq!((anchor().body()[16], full.body()[16], full.body()[100]), (1, 0, 0));
        for anchor in [anchor(), full] {
            assert_eq!(Anchor::decode(anchor.stamp, &anchor.body()), Some(anchor));
        }
        let (shape, first_block) = shape();
        let label = Label { flash_id: [8; 16], cache_id: [7; 16], shape, first_block };
        let unit = LABEL.seal(Stamp { id: [8; 16], generation: 1 }, &label.body());
        let Content::Record(stamp, body) = LABEL.open(&unit) else { panic!("no label") };
        assert_eq!(Label::decode(stamp, body), Some(label));
        each_flip(&unit, |damaged| assert_eq!(LABEL.open(damaged), Content::Other));
        assert_eq!(Label::decode(stamp, &Label { first_block: 1, ..label }.body()), None, "a ring over the label");
    }

    #[test]
    fn bodies_that_cannot_be_are_refused_and_none_panics() {
        let (stamp, mut rng) = (anchor().stamp, base::Rng::new(1));
        for round in 0..200_000 {
            let (mut body, mut label) = (anchor().body(), vec![0; 56]);
            let at = rng.below(112) as usize;
            body[at] = rng.next_u64() as u8;
            rng.fill(&mut label);
            if round % 2 == 0 {
                rng.fill(&mut body[16..112]);
            }
            if let Some(found) = Anchor::decode(stamp, &body) {
                assert!(found.geometry.regions() <= REGIONS_MAX);
                assert!(found.geometry.data_start.checked_add(found.geometry.data_blocks).is_some());
            }
            let _ = Label::decode(stamp, &label).map(|label| label.end());
        }
        assert_eq!(Anchor::decode(stamp, &anchor().body()[..100]), None);
        let mut unknown = anchor().body();
        unknown[16] = 2;
        assert_eq!(Anchor::decode(stamp, &unknown), None, "an unknown feature");
    }

    #[test]
    fn a_segment_header_survives_the_round_trip_and_no_flipped_bit_does() {
        let (shape, _) = shape();
        assert_eq!((shape.header_blocks, shape.slots_per_segment()), (1, 255));
        let header = Header { seq: 391, written_total: 5, entries: (0..255).map(|n| (n * n, n as u32)).collect() };
        let mut bytes = vec![0xAA; 4096];
        header.encode([3; 16], &mut bytes);
        assert_eq!(Header::decode([3; 16], 255, &mut bytes.clone()), Some(header.clone()));
        assert_eq!(Header::decode([4; 16], 255, &mut bytes.clone()), None);
        assert_eq!(Header::decode([3; 16], 254, &mut bytes.clone()), None);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode([3; 16], 255, &mut damaged), None, "bit {bit}");
        }
        assert_eq!(Header::decode([3; 16], 255, &mut []), None);
        assert_eq!(header.blocks(100).count(), 10);
    }

    #[test]
    fn a_page_is_read_back_at_its_place_only() {
        let words: Vec<u64> = (0..PAGE_MARKS).map(|n| n * 3).collect();
        let unit = MARKS.seal(anchor().stamp, &page_body(5, &words));
        let Content::Record(_, body) = MARKS.open(&unit) else { panic!("no page") };
        assert_eq!(decode_page(body, 5, PAGE_MARKS as usize), Some(words));
        assert_eq!(decode_page(body, 4, 1), None);
        assert_eq!(decode_page(&body[..16], 5, 2), None);
    }

    #[test]
    fn geometries_fit_their_devices() {
        for block_size in [512, 4096, 65_536] {
            for blocks in (0..20_000).step_by(37) {
                for segment_bytes in [65_536, 1 << 20] {
                    if let Some((shape, first)) = Shape::plan(block_size, blocks, segment_bytes) {
                        assert!(first + shape.segments * shape.segment_blocks <= blocks);
                    }
                }
                let Some(geometry) = Geometry::plan(block_size, blocks, 1000, 0) else { continue };
                assert_eq!(geometry.data_start + geometry.data_blocks, blocks);
                let most = geometry.data_blocks_max();
                assert!(most >= blocks && geometry.grown(most).is_some() && geometry.grown(most + 1).is_none());
            }
        }
        assert!(Shape::plan(4096, 100, 1 << 20).is_none());
    }
}
