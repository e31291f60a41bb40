//! Images of pools of earlier programs: they open, every byte of their volumes is what it was, and a check finds nothing.
//! `examples/golden.rs` has made them.

mod common;

use base::Rng;
use bdev::{Io, Lba, Status};
use common::disk::Disk;
use common::golden::*;
use common::*;
use engine::log::{LogGeometry, Medium, Record, scan};
use engine::{CheckOptions, CheckReport, Finding, LogDevice, Meta, Pool, PoolDevices, Superblock};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

const ALL: CheckOptions = CheckOptions { payloads: true, data: true, repair: false };
/// Sectors read at a time.
const STEP: usize = 128;
const PER_BLOCK: usize = 4096 / SECTOR;
/// Damaged images of each kind.
const ROUNDS: u64 = 80;
/// Generation 1, which has neither summaries of mapped segments nor moves, generation 2, which has no snapshots, and generation
/// 3.
const NAMES: [&str; 6] = ["mapped", "block", "mapped-2", "block-2", "mapped-3", "block-3"];

struct Golden {
    capacity: Arc<Disk>,
    log: Arc<Disk>,
    log_blocks: u64,
    is_mapped: bool,
    volumes: Vec<Content>,
    scratch: tempfile::TempDir,
}

fn golden(name: &str) -> Golden {
    let file = |suffix: &str| {
        let path = format!("{}/tests/golden/{name}.{suffix}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let (capacity_blocks, capacity) = decode_image(&file("capacity"));
    let (log_blocks, log) = decode_image(&file("log"));
    Golden {
        capacity: Disk::with("capacity", capacity_blocks, capacity),
        log: Disk::with("log", log_blocks, log),
        log_blocks,
        is_mapped: name.starts_with("mapped"),
        volumes: decode_manifest(std::str::from_utf8(&file("manifest")).unwrap()),
        scratch: tempfile::tempdir().unwrap(),
    }
}

impl Golden {
    /// A copy of its devices, to be used up.
    fn devices(&self) -> PoolDevices {
        let capacity = self.capacity.fork();
        if !self.is_mapped {
            return PoolDevices { log: LogDevice::Block(self.log.fork()), capacity };
        }
        let path = self.scratch.path().join("log").to_str().unwrap().to_string();
        std::fs::write(&path, bytes_of(self.log_blocks, &self.log.image())).unwrap();
        PoolDevices { log: LogDevice::Mapped { path, bytes: self.log_blocks * 4096, volatile_allowed: true }, capacity }
    }

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

    fn fork(&self) -> Golden {
        Golden {
            capacity: self.capacity.fork(),
            log: self.log.fork(),
            volumes: self.volumes.clone(),
            scratch: tempfile::tempdir().unwrap(),
            ..*self
        }
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
        if matches!(how, How::Sampled(_)) && blank && !(first / STEP).is_multiple_of(64) {
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

#[test]
fn every_byte_of_a_golden_image_is_what_it_was_and_a_check_finds_nothing() {
    for name in NAMES {
        let (golden, reactor) = (golden(name), reactor());
        let report = block_on(&reactor, check(reactor.clone(), golden.devices()));
        assert_eq!(golden.surprises(&report), [], "{name}");
        assert!(report.counts.records > 50 && report.counts.map_pages > 3 && report.counts.dirty_slices > 1);
        let devices = golden.devices();
        let inner = reactor.clone();
        block_on(&reactor, async move {
            // What was found, then what has been destaged and checkpointed, then what is found again.
            for life in 0..2 {
                let pool = open(inner.clone(), devices.clone()).await.unwrap();
                assert_eq!(pool.volumes().len(), golden.volumes.len());
                for settled in [false, true] {
                    for content in &golden.volumes {
                        let what = format!("{name}, life {life}, settled {settled}");
                        let failed = compare(&inner, &pool, content, How::Whole, &what).await;
                        let failed: Vec<usize> = failed.into_iter().map(|(first, _)| first).collect();
                        assert_eq!(failed, content.lost, "{what}");
                    }
                    pool.settle(&inner).await.unwrap();
                }
                pool.close(&inner).await;
                let report = check(inner.clone(), devices.clone()).await;
                assert_eq!(golden.surprises(&report), [], "{name}");
            }
        });
    }
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
            let golden = golden(&format!("{name}-{generation}"));
            let log = golden.log.image();
            let summaries = log.values().filter(|bytes| bytes[..4] == summary[..]).count();
            assert!(summaries >= 2, "{name}-{generation}: {summaries} summaries");
            all.extend(block_on(&reactor, records(reactor.clone(), golden.devices())));
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
        let blocks: Vec<_> = golden.log.image().into_keys().map(|block| (true, block)).collect();
        let metadata = golden.capacity.image().into_iter().filter(|(_, bytes)| bytes[..4] != bytes[4..8]);
        let blocks: Vec<_> = blocks.into_iter().chain(metadata.map(|(block, _)| (false, block))).collect();
        for round in 0..ROUNDS {
            let damaged = golden.fork();
            let mut what = format!("{name}, round {round}:");
            let on_log = rng.one_in(2);
            let of_device: Vec<u64> =
                blocks.iter().filter(|(log, _)| *log == on_log).map(|(_, block)| *block).collect();
            // In a log only one: rot in two groups may be the last two.
            for _ in 0..if on_log { 1 } else { rng.between(1, 3) } {
                let block = of_device[rng.below(of_device.len() as u64) as usize];
                let reach = if rng.one_in(2) { 128 } else { 4096 };
                let bit = rng.below(reach * 8) as usize;
                if on_log {
                    damaged.log.flip(block, bit)
                } else {
                    damaged.capacity.flip(block, bit)
                }
                what += &format!(" {} block {block} bit {bit}", if on_log { "log" } else { "capacity" });
            }
            let inner = reactor.clone();
            block_on(&reactor, async move {
                drop(check(inner.clone(), damaged.devices()).await);
                let Ok(pool) = open(inner.clone(), damaged.devices()).await else { return };
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
