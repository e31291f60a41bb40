//! Fields of what devices keep on those below them forged, with all checksums right: opening, using, repairing and growing such a
//! device may fail in any way but a panic, and never takes for ever.

use crate::common::below::{Below, Stack};
use crate::common::clock_reactor;
use crate::common::disk::{Disk, Image};
use crate::common::forge::{UNIT, field_of, forge_field, magic_of, record_at, seal_record, setting};
use base::Rng;
use bdev::{
    BlockDevice, Built, Channel, ChecksumOptions, DeviceError, DeviceInfo, DeviceSpec, EncryptOptions, Io, Lba, Op,
    Status, UserKey, build,
};
use reactor::{Reactor, SgList};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// More than anything here takes, in virtual time.
const END_MAX_NS: u64 = 1_000_000_000_000_000;
/// Disks are no larger.
const DISK_BLOCKS_MAX: u64 = 4096;
/// Blocks that are read at a time, at the start and at the end of a device.
const PIECE_BLOCKS: u64 = 32;
/// Blocks that are written in place.
const WRITTEN_BLOCKS: u64 = 40;
/// A cache lets in what it has seen some times.
const READS: usize = 3;
/// Rows that are written of each zone, or at the start.
const ROWS: u64 = 3;

/// More of them: `REMUDA_FORGED_ROUNDS=100000 cargo test -p remuda-bdev forged`.
fn rounds() -> u64 {
    setting("REMUDA_FORGED_ROUNDS", 40)
}

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Over(Below),
    Checksum,
    Encrypt,
}

impl Kind {
    /// Its disks: their names and blocks.
    fn disks(self) -> &'static [(&'static str, u64)] {
        match self {
            Kind::Over(below) => below.disks(),
            Kind::Checksum | Kind::Encrypt => &[("disk", DISK_BLOCKS_MAX)],
        }
    }

    async fn build(
        self,
        reactor: &Rc<Reactor>,
        disks: &[Option<Arc<Disk>>],
        create: bool,
    ) -> Result<Stack, DeviceError> {
        let spec = match self {
            Kind::Over(below) => return below.build(reactor, disks, create).await,
            Kind::Checksum => DeviceSpec::Checksum(ChecksumOptions { create, ..ChecksumOptions::default() }),
            Kind::Encrypt => {
                let options = EncryptOptions { create, ..EncryptOptions::default() };
                DeviceSpec::Encrypt { key: UserKey::from_bytes(&[7; 32]).unwrap(), options }
            }
        };
        let children = disks.iter().map(|disk| disk.clone().map(|disk| disk as Arc<dyn BlockDevice>)).collect();
        let built = build(reactor, "device", &spec, children).await?;
        Ok(Stack { device: built.device(), built: vec![built] })
    }
}

fn disks_of(kind: Kind, images: &[Image]) -> Vec<Option<Arc<Disk>>> {
    let disk = |((name, blocks), image): (&(&'static str, u64), &Image)| {
        Some(Disk::with(name, DISK_BLOCKS_MAX.min(*blocks), image.clone()))
    };
    kind.disks().iter().zip(images).map(disk).collect()
}

/// A device of each kind that was used, and closed or not.
fn used(kind: Kind, is_closed: bool) -> Vec<Image> {
    let reactor = clock_reactor();
    let disks = disks_of(kind, &vec![Image::new(); kind.disks().len()]);
    let (inner, under) = (reactor.clone(), disks.clone());
    reactor.block_on(async move {
        let stack = kind.build(&inner, &under, true).await.unwrap();
        use_device(&inner, &stack.device).await.unwrap();
        assert!(stack.cached_blocks().is_none_or(|blocks| blocks > 0), "nothing is cached");
        if is_closed {
            stack.settle(&inner).await;
        }
    });
    disks.iter().flatten().map(|disk| disk.image()).collect()
}

/// Data are full of a byte that tells where they begin.
fn byte_of(lba: u64) -> u8 {
    lba as u8 | 1
}

async fn submit(
    reactor: &Rc<Reactor>,
    channel: &Rc<dyn Channel>,
    op: Op,
    lba: u64,
    blocks: u64,
) -> Result<SgList, Status> {
    let (io_blocks, mut bufs) = (blocks as u32, SgList::new());
    for _ in 0..blocks {
        let mut buf = reactor.pool().alloc(UNIT).await;
        buf.as_mut_slice().fill(byte_of(lba));
        bufs.push(buf);
    }
    let io = match op {
        Op::Write => Io::write(Lba(lba), io_blocks, bufs),
        Op::Read => Io::read(Lba(lba), io_blocks, bufs),
        Op::Unmap => Io::new(Op::Unmap, Lba(lba), io_blocks),
        op => Io::new(op, Lba(lba), 0),
    };
    let done = channel.submit(io).await;
    done.status.check().map(|()| done.io.bufs)
}

/// What is written of a device: first blocks and numbers of blocks.
fn writes_of(info: &DeviceInfo) -> Vec<(u64, u64)> {
    let in_place = info.rows.map_or(info.blocks, |rows| rows.start);
    let edges = (0..WRITTEN_BLOCKS.min(in_place)).chain(in_place.saturating_sub(2)..in_place);
    let mut writes: Vec<(u64, u64)> = edges.map(|lba| (lba, 1)).collect();
    if let Some(rows) = info.rows {
        let step = rows.zones.map_or(ROWS * rows.blocks as u64, |zones| zones.blocks);
        let starts = [0, 1, 2].map(|zone| rows.start + zone * step).into_iter().filter(|start| *start < info.blocks);
        for start in starts.chain([info.blocks.saturating_sub(step)]) {
            writes.extend((0..ROWS).map(|row| (start + row * rows.blocks as u64, rows.blocks as u64)));
        }
    }
    writes
}

/// Blocks that can be read and do not hold what was written.
async fn wrong_blocks(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) -> Vec<u64> {
    let channel = device.open_channel(reactor).unwrap();
    let mut wrong = Vec::new();
    for (lba, blocks) in writes_of(&device.info()) {
        let read = submit(reactor, &channel, Op::Read, lba, blocks).await;
        let is_right = |bufs: SgList| bufs.iter().all(|buf| buf.as_slice().iter().all(|byte| *byte == byte_of(lba)));
        wrong.extend(read.is_ok_and(|bufs| !is_right(bufs)).then_some(lba));
    }
    wrong
}

/// Reads and writes of a device, whatever it is. `Err`: the last that failed.
async fn use_device(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) -> Result<(), Status> {
    let (channel, info) = (device.open_channel(reactor).unwrap(), device.info());
    let mut outcome = Ok(());
    let mut note = |ended: Result<SgList, Status>| outcome = ended.map(drop).and(outcome);
    for (lba, blocks) in writes_of(&info) {
        note(submit(reactor, &channel, Op::Write, lba, blocks).await);
    }
    note(submit(reactor, &channel, Op::Flush, 0, 0).await);
    for _ in 0..READS {
        for start in (0..4).map(|piece| piece * PIECE_BLOCKS).chain([info.blocks.saturating_sub(PIECE_BLOCKS)]) {
            let blocks = PIECE_BLOCKS.min(info.blocks.saturating_sub(start));
            note(submit(reactor, &channel, Op::Read, start, blocks).await);
            // (A cache writes meanwhile, and may write more.)
            reactor.sleep_ns(1_000_000).await;
        }
    }
    outcome
}

/// A zone that is finished, and one that is begun anew.
async fn manage_zones(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) {
    let (channel, info) = (device.open_channel(reactor).unwrap(), device.info());
    if let Some((rows, zones)) = info.rows.and_then(|rows| Some((rows, rows.zones?))) {
        let _ = submit(reactor, &channel, Op::ZoneFinish, rows.start, 0).await;
        let _ = submit(reactor, &channel, Op::Unmap, rows.start, zones.blocks).await;
        let _ = submit(reactor, &channel, Op::Unmap, rows.start + zones.blocks, zones.blocks).await;
        let _ = submit(reactor, &channel, Op::Write, rows.start, rows.blocks as u64).await;
    }
}

/// What makes a device whole again, until it has ended.
async fn repair(reactor: &Rc<Reactor>, stack: &Stack, absent: Option<(usize, Arc<Disk>)>) -> Result<(), DeviceError> {
    match stack.built.last() {
        Some(Built::Mirror(mirror)) => {
            if let Some((leg, disk)) = absent {
                mirror.join(reactor, leg, Some(disk), false).await?;
            }
            mirror.resync(reactor, 0).await
        }
        Some(Built::Parity(parity)) => {
            if let Some((member, disk)) = absent {
                parity.join(reactor, member, Some(disk), false).await?;
            }
            parity.rebuild(reactor).await
        }
        _ => Ok(()),
    }
}

/// Uses up a device, however it is; nothing is expected of what it says. True: it opened.
async fn use_up(reactor: Rc<Reactor>, kind: Kind, images: Vec<Image>) -> bool {
    let disks = disks_of(kind, &images);
    let opened = kind.build(&reactor, &disks, false).await;
    let is_open = opened.is_ok();
    if let Ok(stack) = opened {
        let _ = use_device(&reactor, &stack.device).await;
        let _ = repair(&reactor, &stack, None).await;
        manage_zones(&reactor, &stack.device).await;
        for disk in disks.iter().flatten() {
            disk.enlarge(disk.info().blocks * 2);
        }
        let _ = stack.device.refresh(&reactor).await;
        let _ = use_device(&reactor, &stack.device).await;
        for built in stack.built.iter().rev() {
            let _ = built.settle(&reactor).await;
        }
        drop(stack);
        let _ = kind.build(&reactor, &disks, false).await;
    }
    // Without one of them, which comes back later, as it was and blank.
    if matches!(kind, Kind::Over(Below::Mirror | Below::Parity)) {
        for blank in [false, true] {
            let mut disks = disks_of(kind, &images);
            let away = disks[0].take().unwrap();
            let Ok(stack) = kind.build(&reactor, &disks, false).await else { continue };
            let _ = use_device(&reactor, &stack.device).await;
            let comes = if blank { Disk::new("new", away.info().blocks) } else { away };
            let _ = repair(&reactor, &stack, Some((0, comes))).await;
        }
    }
    is_open
}

/// The same in the place of one field of a record, and of others of its kind that say the same there.
fn forge_records(images: &mut [Image], records: &[(usize, u64)], rng: &mut Rng) -> String {
    let bytes = |images: &[Image], (device, block): (usize, u64)| images[device][&block].clone();
    // (Kinds with few records are as likely as the others.)
    let magic = |images: &[Image], record: (usize, u64)| magic_of(&bytes(images, record)).to_vec();
    let magics: BTreeSet<Vec<u8>> = records.iter().map(|record| magic(images, *record)).collect();
    let chosen = magics.iter().nth(rng.below(magics.len() as u64) as usize).unwrap();
    let of_kind: Vec<_> = records.iter().filter(|record| magic(images, **record) == *chosen).collect();
    let first = *of_kind[rng.below(of_kind.len() as u64) as usize];
    let (at, size) = field_of(UNIT, rng);
    let (alone, seed, old) = (rng.one_in(3), rng.next_u64(), bytes(images, first)[at..at + size].to_vec());
    for record in records {
        let found = bytes(images, *record);
        let says_the_same = found.starts_with(&chosen[..chosen.len().min(5)]) && found[at..at + size] == old[..];
        if *record == first || (!alone && says_the_same) {
            let unit = Arc::make_mut(images[record.0].get_mut(&record.1).unwrap());
            forge_field(&mut unit[at..at + size], &mut Rng::new(seed));
            seal_record(unit);
        }
    }
    format!(" {:?} disk {} block {} byte {at} alone {alone}", String::from_utf8_lossy(chosen), first.0, first.1)
}

/// Disks and blocks of all records.
fn records_of(images: &[Image]) -> Vec<(usize, u64)> {
    let blocks = images.iter().enumerate().flat_map(|(disk, image)| image.iter().map(move |block| (disk, block)));
    let records = blocks.filter(|(_, (_, bytes))| record_at(bytes).is_some());
    records.map(|(disk, (block, _))| (disk, *block)).collect()
}

/// Every kind of record that there is must be among these.
fn never_panics(kind: Kind, expected: &[&str]) {
    let pristine = [false, true].map(|is_closed| used(kind, is_closed));
    let records = [records_of(&pristine[0]), records_of(&pristine[1])];
    let magic = |(device, block): &(usize, u64)| {
        String::from_utf8_lossy(magic_of(&pristine[1][*device][block])).trim_end_matches('\x01').to_string()
    };
    assert_eq!(
        records[1].iter().map(magic).collect::<BTreeSet<_>>(),
        expected.iter().map(|magic| magic.to_string()).collect()
    );
    let (mut opened, mut failed) = (0, Vec::new());
    let first = setting("REMUDA_FORGED_FIRST", 0);
    for round in first..first + rounds() {
        let mut rng = Rng::new(round);
        let which = round as usize % 2;
        let (mut images, mut what) = (pristine[which].clone(), String::new());
        for _ in 0..rng.between(1, 2) {
            what += &forge_records(&mut images, &records[which], &mut rng);
        }
        let used = catch_unwind(AssertUnwindSafe(|| {
            let reactor = clock_reactor();
            let inner = reactor.clone();
            reactor.block_on(async move { inner.timeout(END_MAX_NS, use_up(inner.clone(), kind, images)).await })
        }));
        match used {
            Ok(Some(is_open)) => opened += u64::from(is_open),
            Ok(None) => failed.push(format!("round {round} does not end:{what}")),
            Err(_) => failed.push(format!("round {round}:{what}")),
        }
    }
    assert!(failed.is_empty(), "{} panics or hang: {failed:#?}", failed.len());
    // With checksums that are wrong hardly any would.
    assert!(opened * 6 > rounds(), "only {opened} of {} open", rounds());
}

#[test]
fn a_forged_mirror_never_panics() {
    never_panics(Kind::Over(Below::Mirror), &["RMDMIRB", "RMDMIRR"]);
}

#[test]
fn a_forged_parity_device_never_panics() {
    never_panics(Kind::Over(Below::Parity), &["RMDPRTY"]);
}

#[test]
fn forged_zones_behind_a_head_never_panic() {
    never_panics(Kind::Over(Below::Zones), &["RMDZBHD", "RMDZBZN", "RMDZONE", "RMDZTAB"]);
}

#[test]
fn a_forged_flash_cache_never_panics() {
    never_panics(Kind::Over(Below::Cache), &["RMDFCAN", "RMDFCIM", "RMDFCLB", "RMDFCMK", "RMDFCSG"]);
}

#[test]
fn forged_checksums_never_panic() {
    never_panics(Kind::Checksum, &["RCP", "RMDCSUM"]);
}

#[test]
fn a_forged_encrypted_volume_never_panics() {
    never_panics(Kind::Encrypt, &["RMDCRYP"]);
}

/// A device of a kind, with this in place of a field of every record of one magic number.
fn with_field(kind: Kind, magic: &[u8; 7], at: usize, bytes: &[u8]) -> Vec<Image> {
    let mut images = used(kind, true);
    let units = images.iter_mut().flat_map(|image| image.values_mut()).filter(|unit| unit[..7] == magic[..]);
    let mut forged = 0;
    for unit in units.map(Arc::make_mut) {
        unit[at..at + bytes.len()].copy_from_slice(bytes);
        seal_record(unit);
        forged += 1;
    }
    assert!(forged > 1, "there are two copies of each");
    images
}

/// What can be done without is forged alone; all else is as it was.
async fn use_beside(reactor: Rc<Reactor>, below: Below, images: Vec<Image>) -> Option<Vec<u64>> {
    let stack = below.build(&reactor, &disks_of(Kind::Over(below), &images), false).await.ok()?;
    let before = wrong_blocks(&reactor, &stack.device).await;
    let _ = repair(&reactor, &stack, None).await;
    Some([before, wrong_blocks(&reactor, &stack.device).await].concat())
}

#[test]
fn no_block_is_wrong_however_one_leg_one_member_or_flash_is_forged() {
    let mut opened = 0;
    for (below, forgeable) in [(Below::Mirror, 0..2), (Below::Parity, 0..3), (Below::Cache, 1..2)] {
        let pristine = used(Kind::Over(below), true);
        let records = records_of(&pristine);
        for round in 0..8 * rounds() {
            let (mut rng, mut images) = (Rng::new(round), pristine.clone());
            let disk = forgeable.start + rng.below(forgeable.len() as u64) as usize;
            let of_disk: Vec<_> = records.iter().copied().filter(|record| record.0 == disk).collect();
            let what = forge_records(&mut images, &of_disk, &mut rng);
            let reactor = clock_reactor();
            let inner = reactor.clone();
            let wrong = reactor.block_on(async move { use_beside(inner, below, images).await });
            assert!(wrong.iter().flatten().next().is_none(), "{below:?}, round {round}:{what}: {wrong:?}");
            opened += u64::from(wrong.is_some());
        }
    }
    assert!(opened > 8 * rounds(), "only {opened} open");
}

#[test]
fn a_generation_at_the_end_of_counting_is_damage_in_every_record() {
    let records: [(Below, &[u8; 7]); 7] = [
        (Below::Mirror, b"RMDMIRR"),
        (Below::Parity, b"RMDPRTY"),
        (Below::Zones, b"RMDZBZN"),
        (Below::Zones, b"RMDZONE"),
        (Below::Zones, b"RMDZTAB"),
        (Below::Cache, b"RMDFCAN"),
        (Below::Cache, b"RMDFCMK"),
    ];
    for (below, magic) in records {
        let images = with_field(Kind::Over(below), magic, 32, &u64::MAX.to_le_bytes());
        let reactor = clock_reactor();
        let inner = reactor.clone();
        let is_open = reactor.block_on(async move { use_up(inner, Kind::Over(below), images).await });
        // What the table of zones and the marks of a cache say can be done without.
        assert_eq!(is_open, [b"RMDZTAB", b"RMDFCMK"].contains(&magic), "{}", String::from_utf8_lossy(magic));
    }
}

#[test]
fn flash_with_another_number_of_segments_than_its_cache_knows_is_not_used() {
    for segments in [8u64, 38, 1 << 20] {
        let images = with_field(Kind::Over(Below::Cache), b"RMDFCAN", 96, &segments.to_le_bytes());
        let disks = disks_of(Kind::Over(Below::Cache), &images);
        let reactor = clock_reactor();
        let inner = reactor.clone();
        reactor.block_on(async move {
            // (It goes on without a cache that cannot be used.)
            let stack = Below::Cache.build(&inner, &disks, false).await.unwrap();
            assert_eq!(stack.cached_blocks(), Some(0), "{segments} segments");
            assert_eq!(use_device(&inner, &stack.device).await, Ok(()));
        });
    }
}
