//! Images of pools of earlier programs: they open, every byte of their volumes is what it was, and a check finds nothing.
//! `examples/golden.rs` has made them.

use crate::common::below::Below;
use crate::common::disk::{Disk, Image};
use crate::common::golden::*;
use crate::common::images::{Golden, golden};
use crate::common::stream::Bytes;
use crate::common::*;
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Status};
use engine::log::{LogGeometry, Medium, Record, scan};
use engine::{CheckOptions, CheckReport, Finding, ImportOptions, LogDevice, Meta, Pool, PoolDevices, Superblock};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
/// Sectors read at a time.
const STEP: usize = 128;
const PER_BLOCK: usize = 4096 / SECTOR;
/// Damaged images of each kind; one in two is repaired before it is opened.
const ROUNDS: u64 = 80;
/// Generation 1, which has neither summaries of mapped segments nor moves, generation 2, which has no snapshots, generation 3,
/// which was the first with images of shaped pools and of a flash cache, generation 4, whose shaped pools have a shadow, and
/// generation 5, where every device of several notes its openings, with a mirror.
const NAMES: [&str; 20] = [
    "mapped", "block", "mapped-2", "block-2", "mapped-3", "block-3", "shaped-3", "parity-3", "zones-3", "warm-3",
    "shaped-4", "parity-4", "zones-4", "mapped-5", "block-5", "shaped-5", "parity-5", "zones-5", "warm-5", "mirror-5",
];

impl Golden {
    /// What a check finds beyond the blocks that are lost.
    fn surprises(&self, report: &CheckReport) -> Vec<Finding> {
        let lost: Vec<_> = self.volumes.iter().flat_map(|volume| &volume.lost).map(|first| first / PER_BLOCK).collect();
        let is_lost = |finding: &&Finding| {
            lost.iter().any(|block| {
                let text = format!(
                    "1 blocks of 4 KiB are lost: reading them is an error until they are written: {block}-{block}"
                );
                finding.meaning == text
            })
        };
        assert_eq!(report.findings.iter().filter(is_lost).count(), lost.len(), "{:?}", report.findings);
        report.findings.iter().filter(|finding| !is_lost(finding)).cloned().collect()
    }
}

async fn check(reactor: Rc<Reactor>, devices: PoolDevices) -> CheckReport {
    Pool::check(&reactor, &devices.capacity, Some(&devices.log), ALL).await.unwrap()
}

/// How a volume is compared with its manifest.
enum How<'a> {
    /// All of it.
    Whole,
    /// Where there is something, and here and there elsewhere; it may also be as it was before.
    Sampled(&'a Content),
}

/// Reads a volume; which reads failed.
async fn compare(
    reactor: &Rc<Reactor>,
    pool: &Pool,
    content: &Content,
    how: How<'_>,
    what: &str,
) -> Vec<(usize, Status)> {
    let volume = pool.volume(&content.name).unwrap_or_else(|| panic!("{what}: volume {} is missing", content.name));
    let volume = volume as Arc<dyn bdev::BlockDevice>;
    let channel = volume.open_channel(reactor).unwrap();
    let per = (1 << content.block_shift) / SECTOR;
    let mut failed = Vec::new();
    // What is lost has reads of its own.
    let with_lost = |first: usize| content.lost.iter().any(|lost| (first..first + STEP).contains(lost));
    let firsts = (0..content.sectors.len())
        .step_by(STEP)
        .flat_map(|first| (first..first + STEP).step_by(if with_lost(first) { PER_BLOCK } else { STEP }));
    for first in firsts.filter(|first| *first < content.sectors.len()) {
        let step = if with_lost(first / STEP * STEP) { PER_BLOCK } else { STEP };
        let count = step.min(content.sectors.len() - first);
        let blank = content.sectors[first..first + count].iter().all(|word| *word == 0);
        let has_lost = with_lost(first / STEP * STEP);
        if matches!(how, How::Sampled(_)) && blank && !has_lost && !(first / STEP).is_multiple_of(64) {
            continue;
        }
        let mut bufs = SgList::new();
        bufs.push(reactor.pool().alloc(count * SECTOR).await);
        let done = channel.submit(Io::read(Lba((first / per) as u64), (count / per) as u32, bufs)).await;
        if !done.status.is_ok() {
            failed.push((first, done.status));
            continue;
        }
        let found = done.io.bufs[0].as_slice();
        let right = found == content.bytes(first, count)
            || matches!(how, How::Sampled(before) if found == before.bytes(first, count));
        assert!(right, "{what}: volume {} differs in sectors {first} to {}", content.name, first + count);
    }
    failed
}

/// All volumes of an open pool are what they were.
async fn compare_all(reactor: &Rc<Reactor>, pool: &Pool, golden: &[Content], what: &str) {
    assert_eq!(pool.volumes().len(), golden.len(), "{what}");
    for content in golden {
        let failed = compare(reactor, pool, content, How::Whole, what).await;
        let failed: Vec<usize> = failed.into_iter().map(|(first, _)| first).collect();
        assert_eq!(failed, content.lost, "{what}");
    }
}

#[test]
fn every_byte_of_a_golden_image_is_what_it_was_and_a_check_finds_nothing() {
    for name in NAMES {
        let (golden, reactor) = (golden(name), reactor());
        let (devices, stack) = golden.devices(&reactor);
        assert!(stack.cached_blocks().is_none_or(|blocks| blocks > 50), "{name}: {:?}", stack.cached_blocks());
        let report = reactor.block_on(check(reactor.clone(), devices));
        assert_eq!(golden.surprises(&report), [], "{name}");
        let counts = report.counts;
        assert!(counts.records > 30 && counts.map_pages > 3 && counts.dirty_slices > 1, "{name}: {counts:?}");
        let (devices, _) = golden.devices(&reactor);
        let inner = reactor.clone();
        reactor.block_on(async move {
            // What was found, then what has been destaged and checkpointed, then what is found again.
            for life in 0..2 {
                let pool = open(inner.clone(), devices.clone()).await.unwrap();
                for settled in [false, true] {
                    let what = format!("{name}, life {life}, settled {settled}");
                    compare_all(&inner, &pool, &golden.volumes, &what).await;
                    pool.settle(&inner).await.unwrap();
                }
                pool.close(&inner).await;
                let report = check(inner.clone(), devices.clone()).await;
                assert_eq!(golden.surprises(&report), [], "{name}");
            }
        });
    }
}

/// What a volume holds from now on in so many blocks of 4 KiB, and that it does.
async fn fill(reactor: &Rc<Reactor>, pool: &Pool, content: &mut Content, first: usize, blocks: usize, word: u32) {
    let volume: Arc<dyn BlockDevice> = pool.volume(&content.name).unwrap();
    let channel = volume.open_channel(reactor).unwrap();
    let per = (1 << content.block_shift) / SECTOR;
    let sectors = first * PER_BLOCK..(first + blocks) * PER_BLOCK;
    content.sectors[sectors.clone()].fill(word);
    content.lost.retain(|lost| !sectors.contains(lost));
    for at in sectors.step_by(STEP) {
        let count = STEP.min((first + blocks) * PER_BLOCK - at);
        let mut buf = reactor.pool().alloc(count * SECTOR).await;
        buf.as_mut_slice().copy_from_slice(&content.bytes(at, count));
        let written = channel.submit(Io::write(Lba((at / per) as u64), (count / per) as u32, one(buf))).await;
        assert_eq!(written.status, Status::Ok, "volume {}", content.name);
    }
}

/// These volumes are what they should be, where there is something in them, and here and there elsewhere.
async fn compare_these(reactor: &Rc<Reactor>, pool: &Pool, contents: &[&Content], what: &str) {
    for content in contents {
        let failed = compare(reactor, pool, content, How::Sampled(content), what).await;
        let failed: Vec<usize> = failed.into_iter().map(|(first, _)| first).collect();
        assert_eq!(failed, content.lost, "{what}, volume {}", content.name);
    }
}

/// Reads everything that there is once.
async fn scrub(reactor: &Rc<Reactor>, pool: &Pool, what: &str) {
    pool.scrub(reactor, 1 << 40).await;
    loop {
        let scrubs: Vec<_> = pool.status(reactor).await.shards.into_iter().map(|shard| shard.scrub).collect();
        let corrupt: u64 = scrubs.iter().map(|scrub| scrub.corrupt_blocks).sum();
        assert_eq!(corrupt, 0, "{what}: {scrubs:?}");
        if scrubs.iter().all(|scrub| !scrub.running && scrub.completed > 0) {
            return;
        }
        reactor.sleep_ns(1_000_000).await;
    }
}

/// Makes the devices larger, and the pool with them. A shaped pool does not grow where the log device has no room for more of its index,
/// and over zones and a mirror there are as many as there were.
async fn grow(reactor: &Rc<Reactor>, pool: &Pool, devices: &PoolDevices, disks: &[Arc<Disk>], below: Below) {
    if matches!(below, Below::Zones | Below::Mirror) {
        return;
    }
    let before = devices.capacity.info().blocks;
    for disk in disks {
        disk.enlarge(disk.info().blocks * 2);
    }
    let after = devices.capacity.refresh(reactor).await.unwrap().blocks;
    let grown = pool.grow(reactor).await;
    assert!(after > before && (grown.is_ok() || below.is_shaped()), "{below:?}: {before}, {after}, {grown:?}");
}

#[test]
fn a_golden_image_is_used_like_any_other_pool_from_then_on() {
    for name in NAMES {
        let (golden, reactor) = (golden(name), reactor());
        let disks: Vec<_> = golden.disks.iter().map(|disk| disk.fork()).collect();
        let (devices, stack) = golden.devices_of(&reactor, disks.iter().cloned().map(Some).collect()).unwrap();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let pool = open(inner.clone(), devices.clone()).await.unwrap();
            let mut volumes = golden.volumes.clone();
            let blocks = volumes[0].blocks as usize;
            // Over what was there, and where nothing was.
            fill(&inner, &pool, &mut volumes[0], 0, 40, 0x1122_3344).await;
            fill(&inner, &pool, &mut volumes[0], blocks - 30, 30, 0x5566_7788).await;
            compare_these(&inner, &pool, &volumes.iter().collect::<Vec<_>>(), &format!("{name}, written")).await;
            let of = volumes[0].name.clone();
            pool.snapshot(&inner, &[(&of, "then")], 0).await.unwrap();
            let mut then = volumes[0].clone();
            then.name = format!("{of}@then");
            pool.clone_volume(&inner, &then.name, "copy", 0).await.unwrap();
            let mut copy = Content { name: "copy".into(), ..then.clone() };
            fill(&inner, &pool, &mut volumes[0], 20, 40, 0x99AA_BBCC).await;
            fill(&inner, &pool, &mut copy, 60, 10, 0xDDEE_FF00).await;
            let all: Vec<&Content> = volumes.iter().chain([&then, &copy]).collect();
            compare_these(&inner, &pool, &all, &format!("{name}, cloned")).await;
            grow(&inner, &pool, &devices, &disks, Below::of(name)).await;
            scrub(&inner, &pool, name).await;
            pool.flatten(&inner, "copy").await.unwrap();
            let ended = pool.flattened(&inner, "copy").await.unwrap();
            assert_eq!(ended.state, engine::FlattenState::Done, "{name}: {ended:?}");
            pool.delete_snapshot(&inner, &then.name).await.unwrap();
            pool.reap(&inner).await.unwrap();
            let contents: Vec<Content> = volumes.iter().chain([&copy]).cloned().collect();
            compare_these(&inner, &pool, &contents.iter().collect::<Vec<_>>(), &format!("{name}, flattened")).await;
            pool.settle(&inner).await.unwrap();
            assert_eq!(pool.audit(&inner).await.unwrap().problems, Vec::<String>::new(), "{name}");
            assert_eq!(pool.audit_places(&inner).await, Vec::<String>::new(), "{name}");
            pool.close(&inner).await;
            stack.settle(&inner).await;
            let used = Golden { volumes: contents, ..golden.fork() };
            assert_eq!(used.surprises(&check(inner.clone(), devices.clone()).await), [], "{name}");
            let pool = open(inner.clone(), devices).await.unwrap();
            compare_all(&inner, &pool, &used.volumes, &format!("{name}, opened again")).await;
            pool.close(&inner).await;
        });
    }
}

#[test]
fn a_golden_image_on_several_disks_has_every_byte_without_one_that_can_be_done_without() {
    // The members of the parity device and the legs of the mirror, one by one, and the flash of the cache.
    let of = |name: &'static str, disks: std::ops::Range<usize>| disks.map(move |disk| (name, disk));
    let parity = ["parity-3", "parity-4", "parity-5"].into_iter().flat_map(|name| of(name, 0..3));
    let flash = ["warm-3", "warm-5"].map(|name| (name, 1));
    for (name, absent) in parity.chain(of("mirror-5", 0..2)).chain(flash) {
        let (golden, reactor) = (golden(name), reactor());
        let disks = golden.disks.iter().enumerate().map(|(index, disk)| (index != absent).then(|| disk.fork()));
        let (devices, _) = golden.devices_of(&reactor, disks.collect()).unwrap();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let pool = open(inner.clone(), devices).await.unwrap();
            compare_all(&inner, &pool, &golden.volumes, &format!("{name} without disk {absent}")).await;
            pool.close(&inner).await;
        });
    }
}

/// Changes bytes of both copies of the superblock on a device, under a checksum that is right.
async fn forge(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, at: usize, bytes: &[u8]) {
    let channel = device.open_channel(reactor).unwrap();
    for copy in 0..2 {
        let buf = one(reactor.pool().alloc(4096).await);
        let mut done = channel.submit(Io::read(Lba(copy), 1, buf)).await;
        done.status.check().unwrap();
        forge_block(done.io.bufs[0].as_mut_slice(), at, bytes);
        channel.submit(Io::write(Lba(copy), 1, done.io.bufs)).await.status.check().unwrap();
    }
    channel.submit(Io::flush()).await.status.check().unwrap();
}

fn forge_block(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    block[8..12].fill(0);
    let crc = base::crc32c(block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn a_pool_from_the_fourth_generation_on_has_a_shadow_and_survives_without_its_log_device() {
    let reactor = reactor();
    let is_shaped = |name: &&&str| Below::of(name).is_shaped();
    for name in NAMES.iter().filter(is_shaped).filter(|name| !["parity-3", "zones-3"].contains(name)) {
        let golden = golden(name);
        let disks: Vec<_> = golden.disks.iter().map(|disk| disk.fork()).collect();
        let (mut devices, _stack) = golden.devices_of(&reactor, disks.iter().cloned().map(Some).collect()).unwrap();
        devices.log = LogDevice::Block(Disk::new("new-log", golden.log_blocks));
        let (there, new_log) = (reactor.clone(), golden.log_blocks);
        let ended = reactor.block_on(async move {
            let ended = Pool::forget_log(&there, &devices, false, &Default::default()).await;
            let Err(error) = &ended else { return ended };
            let text = error.to_string();
            let Some((_, more)) = text.split_once("capacity device 'capacity' ") else { return ended };
            // What helps, as it says.
            let mib: u64 = more.split_once(" MiB larger").unwrap().0.parse().unwrap();
            disks.iter().for_each(|disk| disk.enlarge(disk.info().blocks + (mib << 8)));
            devices.capacity.refresh(&there).await.unwrap();
            devices.log = LogDevice::Block(Disk::new("new-log", new_log));
            Pool::forget_log(&there, &devices, false, &Default::default()).await
        });
        match !name.ends_with("-3") {
            true => {
                let loss = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_eq!(loss.unfound, Some(Vec::new()), "{name}");
            }
            false => assert!(ended.unwrap_err().to_string().contains("has no shadow of its index"), "{name}"),
        }
    }
}

#[test]
fn a_pool_of_a_later_format_is_refused_and_nothing_is_written() {
    // The major version, an incompatible feature, and one that forbids writing.
    let forgeries: [(usize, &[u8], &str); 3] = [
        (12, &[2, 0], "has format 2, and this program reads 1"),
        (16 + 7, &[0x80], "features that this program does not know (bits 0x8000000000000000)"),
        (24, &[1], "features that this program can read but not write (bits 0x1)"),
    ];
    for (name, (at, bytes, expected)) in NAMES.into_iter().flat_map(|name| forgeries.map(|forgery| (name, forgery))) {
        for on_log in [false, true] {
            let (golden, reactor) = (golden(name), reactor());
            let disks: Vec<_> = golden.disks.iter().map(|disk| disk.fork()).collect();
            let (devices, stack) = golden.devices_of(&reactor, disks.iter().cloned().map(Some).collect()).unwrap();
            let (inner, all) = (reactor.clone(), devices.clone());
            reactor.block_on(async move {
                match &all.log {
                    LogDevice::Block(log) if on_log => forge(&inner, log, at, bytes).await,
                    LogDevice::Mapped { path, .. } if on_log => {
                        let mut content = std::fs::read(path).unwrap();
                        content.chunks_mut(4096).take(2).for_each(|block| forge_block(block, at, bytes));
                        std::fs::write(path, content).unwrap();
                    }
                    _ => forge(&inner, &all.capacity, at, bytes).await,
                }
                stack.settle(&inner).await;
            });
            let inner = reactor.clone();
            let images = || -> Vec<Image> {
                let log = match &devices.log {
                    LogDevice::Mapped { path, .. } => image_of(&std::fs::read(path).unwrap()),
                    LogDevice::Block(_) => log_image(&inner, &devices),
                };
                disks.iter().map(|disk| disk.image()).chain([log]).collect()
            };
            let before = images();
            let opened = reactor.block_on(open(reactor.clone(), devices.clone()));
            let error = opened.err().unwrap_or_else(|| panic!("{name} at {at}: it opened")).to_string();
            assert!(error.contains(expected), "{name} at {at}: {error}");
            for repair in [false, true].into_iter().filter(|_| expected.contains("but not write")) {
                let (there, all) = (reactor.clone(), devices.clone());
                let options = CheckOptions { repair, ..CheckOptions::default() };
                let check = async move { Pool::check(&there, &all.capacity, Some(&all.log), options).await.unwrap() };
                let findings = reactor.block_on(check).findings;
                let told = findings.iter().filter(|finding| finding.meaning.contains("cannot be opened by it")).count();
                assert_eq!(told, 1, "{name}, repair {repair}: {findings:?}");
            }
            assert!(before == images(), "{name} at {at}, log {on_log}: something was written");
        }
    }
}

/// All blocks of a block log.
fn log_image(reactor: &Rc<Reactor>, devices: &PoolDevices) -> Image {
    let LogDevice::Block(log) = &devices.log else { unreachable!("it is mapped") };
    let (channel, blocks) = (log.open_channel(reactor).unwrap(), log.info().blocks);
    let inner = reactor.clone();
    reactor.block_on(async move {
        let mut bytes = Vec::new();
        for block in 0..blocks {
            let done = channel.submit(Io::read(Lba(block), 1, one(inner.pool().alloc(4096).await))).await;
            done.status.check().unwrap();
            bytes.extend_from_slice(done.io.bufs[0].as_slice());
        }
        image_of(&bytes)
    })
}

/// Every record after the checkpoints of an image.
async fn records(reactor: Rc<Reactor>, devices: PoolDevices) -> Vec<Record> {
    let (channel, info) = (devices.capacity.open_channel(&reactor).unwrap(), devices.capacity.info());
    let superblock = engine::read_superblocks(&reactor, channel.clone(), info).await.unwrap();
    let mut records = Vec::new();
    for shard in 0..superblock.shards {
        let (_, tail) = Meta::open(&reactor, channel.clone(), info, &superblock, shard, 0).await.unwrap();
        let first_block = superblock.segment_start(shard, 0);
        let medium = match &devices.log {
            LogDevice::Block(device) => Medium::Block {
                reactor: reactor.clone(),
                channel: device.open_channel(&reactor).unwrap(),
                info: device.info(),
                first_block,
            },
            LogDevice::Mapped { path, bytes, .. } => {
                let (pmem, _) = reactor.driver().pmem_open(Some(path), *bytes).unwrap();
                Medium::Mapped { reactor: reactor.clone(), pmem, first_byte: first_block * 4096 }
            }
        };
        let Superblock { segments, segment_blocks, .. } = superblock;
        let geometry = LogGeometry { shard, pool: superblock.pool_prefix(), segments, segment_blocks };
        scan(&medium, geometry, tail, &mut |record, _| records.push(record.clone())).await.unwrap();
    }
    records
}

#[test]
fn every_kind_of_record_and_of_summary_is_in_golden_images_of_each_kind_of_log() {
    let reactor = reactor();
    for (name, summary) in [("mapped", b"RMSP"), ("block", b"RMSM")] {
        let mut all = Vec::new();
        for generation in [2, 3] {
            let golden = golden(NAMES.into_iter().find(|image| *image == format!("{name}-{generation}")).unwrap());
            let log = golden.log.image();
            let summaries = log.values().filter(|bytes| bytes[..4] == summary[..]).count();
            assert!(summaries >= 2, "{name}-{generation}: {summaries} summaries");
            all.extend(reactor.block_on(records(reactor.clone(), golden.devices(&reactor).0)));
        }
        for kind in Record::KINDS {
            assert!(all.iter().any(|record| record.kind() == kind), "{name}: no record of kind {kind}");
        }
    }
}

#[test]
fn flipped_bits_in_a_golden_image_are_errors_or_nothing() {
    for name in NAMES {
        let (golden, reactor, mut rng) = (golden(name), reactor(), Rng::new(9));
        let of_log: Vec<u64> = golden.log.image().into_keys().collect();
        let metadata = |disk: &Arc<Disk>| disk.image().into_iter().filter(|(_, bytes)| bytes[..4] != bytes[4..8]);
        let with_disk = |index: usize| metadata(&golden.disks[index]).map(move |(block, _)| (index, block));
        let of_disks: Vec<_> = (0..golden.disks.len()).flat_map(with_disk).collect();
        for round in 0..ROUNDS {
            let damaged = golden.fork();
            let mut what = format!("{name}, round {round}:");
            let on_log = rng.one_in(2);
            // In a log only one: rot in two groups may be the last two.
            for _ in 0..if on_log { 1 } else { rng.between(1, 3) } {
                let (disk, block) = if on_log {
                    (&damaged.log, of_log[rng.below(of_log.len() as u64) as usize])
                } else {
                    let (disk, block) = of_disks[rng.below(of_disks.len() as u64) as usize];
                    (&damaged.disks[disk], block)
                };
                let reach = if rng.one_in(2) { 128 } else { 4096 };
                let bit = rng.below(reach * 8) as usize;
                disk.flip(block, bit);
                what += &format!(" {} block {block} bit {bit}", disk.name());
            }
            let stacks = [0; 2].map(|_| damaged.devices_of(&reactor, damaged.fork_disks()));
            let [Ok((checked, _)), Ok((opened, _))] = stacks else { continue };
            // Each second one is opened after repairs.
            let repair = round % 2 == 1;
            let inner = reactor.clone();
            reactor.block_on(async move {
                let found = check(inner.clone(), checked).await;
                let is_sound = match repair {
                    true => {
                        let options = CheckOptions { repair, ..ALL };
                        let report = Pool::check(&inner, &opened.capacity, Some(&opened.log), options).await.unwrap();
                        report.is_sound()
                    }
                    false => false,
                };
                let opened = open(inner.clone(), opened).await;
                let Ok(pool) = opened else {
                    assert!(!is_sound, "{what} repaired, and does not open: {:?}; {found:?}", opened.err());
                    return;
                };
                for (volume, content) in damaged.volumes.iter().enumerate() {
                    // Rot in the last record of a log is taken for a write that a crash has torn, when nobody has noted that
                    // it was written: later generations have.
                    let mut before = content.clone();
                    for (_, first) in LAST.iter().filter(|(of, _)| on_log && !name.contains('-') && *of == volume) {
                        before.sectors[*first as usize..*first as usize + 8].fill(0);
                    }
                    compare(&inner, &pool, content, How::Sampled(&before), &what).await;
                }
                pool.close(&inner).await;
            });
        }
    }
}

#[test]
fn streams_of_an_earlier_program_are_what_its_snapshots_were() {
    let (golden, reactor) = (golden("block-5"), reactor());
    let file = |end: &str| std::fs::read(format!("{}/tests/golden/block-5.{end}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let (all, since) = (file("stream"), file("stream-since"));
    let (inner, devices) = (reactor.clone(), devices(4096));
    reactor.block_on(async move {
        Pool::create(&inner, &devices, &options(2), 0, true).await.unwrap();
        let pool = open(inner.clone(), devices).await.unwrap();
        // The second one is of what the volume holds in the end.
        for (snapshot, all, name) in [("then", all, "layered@then"), ("later", since, "layered")] {
            let options = ImportOptions { volume: Some("copy"), ..ImportOptions::default() };
            let mut source = Bytes { all, at: 0, piece: 1000 };
            pool.import_snapshot(&inner, options, &mut source).await.unwrap();
            let was = golden.volumes.iter().find(|content| content.name == name).unwrap();
            let copy = Content { name: format!("copy@{snapshot}"), ..was.clone() };
            let failed = compare(&inner, &pool, &copy, How::Whole, snapshot).await;
            assert_eq!(failed, [], "{snapshot}");
        }
        pool.close(&inner).await;
    });
}
