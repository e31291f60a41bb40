//! What every block device must do, as checks that run on any of them, under any driver.
//!
//! The checks destroy the device's contents. They look at the blocks near its start, middle and end, so a large device
//! takes no longer than a small one. All randomness comes from the seed. Zoned devices have checks of their own.

use crate::device::{BlockDevice, Channel, DeviceInfo, ZonedInfo};
use crate::io::{Done, Flags, Io, Lba, Op, OpSet, Status};
use crate::parts::Parts;
use base::Rng;
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, Reactor, SgList};
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

/// What to expect of the device, beyond what it says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Fixes all random choices.
    pub seed: u64,
    /// It keeps what is written (a null device does not).
    pub stores_data: bool,
    /// A size, in blocks, to which it can be resized and back.
    pub resize_to: Option<u64>,
    /// Operations of the randomised check.
    pub random_ops: usize,
}

impl Options {
    /// A device that stores data and keeps its size.
    pub fn new(seed: u64) -> Options {
        Options { seed, stores_data: true, resize_to: None, random_ops: 600 }
    }
}

/// A check that the device did not pass.
#[derive(Debug)]
pub struct Failure {
    /// Name of the check.
    pub check: &'static str,
    /// What was expected and what happened.
    pub detail: String,
    /// The seed that shows it again.
    pub seed: u64,
    /// The device.
    pub device: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { check, detail, seed, device } = self;
        write!(f, "device '{device}' fails '{check}' (seed {seed}): {detail}")
    }
}

impl std::error::Error for Failure {}

type Outcome = Result<(), String>;
type Check = for<'a> fn(&'a Subject) -> Pin<Box<dyn Future<Output = Outcome> + 'a>>;

macro_rules! checks {
    ($visibility:vis $($name:ident),* $(,)?) => {
        /// All checks, in the order in which they run.
        $visibility const CHECKS: &[(&str, Check)] = &[$((stringify!($name), |subject| Box::pin($name(subject)))),*];
    };
}

mod uncorrectable;
mod versions;
mod zoned;

use uncorrectable::marks_blocks_unreadable;
use versions::reads_every_version;

checks![
    describes_itself,
    refuses_bad_requests,
    returns_request_and_buffers,
    reads_what_was_written,
    reads_every_version,
    takes_buffers_of_any_split,
    moves_the_largest_operation,
    lends_buffers,
    flushes_and_forces,
    zeroes_and_unmaps,
    compares,
    compares_and_writes,
    compare_and_write_is_atomic,
    copies,
    verifies,
    marks_blocks_unreadable,
    writes_atomically,
    settles_overlapping_writes,
    survives_dropped_futures,
    ignores_aborts_of_nothing,
    channels_see_each_other,
    matches_a_model,
    resizes,
];

/// The names of all checks.
pub fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|(name, _)| *name)
}

/// Runs all checks; stops at the first that fails.
pub async fn run(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>, options: Options) -> Result<(), Failure> {
    let checks = if device.info().zoned.is_some() { zoned::CHECKS } else { CHECKS };
    for (check, action) in checks {
        let failure = |detail| Failure { check, detail, seed: options.seed, device: device.name().to_string() };
        let channel = device.open_channel(reactor).map_err(|error| failure(error.to_string()))?;
        let subject = Subject {
            reactor: reactor.clone(),
            device: device.clone(),
            channel,
            info: device.info(),
            options,
            rng: RefCell::new(Rng::new(options.seed)),
        };
        action(&subject).await.map_err(failure)?;
    }
    Ok(())
}

struct Subject {
    reactor: Rc<Reactor>,
    device: Arc<dyn BlockDevice>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    options: Options,
    rng: RefCell<Rng>,
}

impl Subject {
    fn block_size(&self) -> usize {
        self.info.block_size as usize
    }

    fn can(&self, ops: &[Op]) -> bool {
        ops.iter().all(|op| self.info.ops.contains(*op))
    }

    fn stores(&self) -> bool {
        self.options.stores_data && self.can(&[Op::Read, Op::Write])
    }

    fn random(&self, low: u64, high: u64) -> u64 {
        self.rng.borrow_mut().between(low, high)
    }

    /// Places worth looking at for an operation of `nblocks`: both ends, the middle, and somewhere.
    fn places(&self, nblocks: u64) -> Vec<u64> {
        let last = self.info.blocks.saturating_sub(nblocks);
        let mut places = vec![0, last / 2, last, self.random(0, last)];
        places.sort_unstable();
        places.dedup();
        places
    }

    fn sizes(&self) -> Vec<u32> {
        let max = self.largest();
        let mut sizes = vec![1, 2, 3, 7, 16, 33];
        sizes.retain(|size| *size <= max);
        sizes
    }

    fn largest(&self) -> u32 {
        self.info.max_io_blocks.min(self.info.blocks.min(4 << 20) as u32).min((4 << 20) / self.info.block_size)
    }

    /// Pool buffers of `bytes` in all.
    async fn buffers(&self, mut bytes: usize) -> SgList {
        let mut list = SgList::new();
        while bytes > 0 {
            let len = bytes.min(BUF_BYTES_MAX);
            list.push(self.reactor.pool().alloc(len).await);
            bytes -= len;
        }
        list
    }

    async fn pattern_buffers(&self, lba: u64, nblocks: u32, version: u64) -> SgList {
        let mut list = self.buffers(nblocks as usize * self.block_size()).await;
        reactor::buf::sg_copy_from(&mut list, &self.pattern(lba, nblocks, version));
        list
    }

    /// What version `version` of these blocks looks like; version 0 is zeroes.
    fn pattern(&self, lba: u64, nblocks: u32, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; nblocks as usize * self.block_size()];
        if version > 0 {
            for (index, block) in bytes.chunks_exact_mut(self.block_size()).enumerate() {
                Rng::new((lba + index as u64) ^ version << 40 ^ self.options.seed).fill(block);
            }
        }
        bytes
    }

    async fn submit(&self, io: Io) -> Done {
        self.channel.submit(io).await
    }

    async fn expect(&self, io: Io, status: Status) -> Result<Done, String> {
        let what = format!("{} of {} blocks at {}", io.op.name(), io.nblocks, io.lba.0);
        let done = self.submit(io).await;
        if done.status == status {
            Ok(done)
        } else {
            Err(format!("{what}: expected '{status}', got '{}'", done.status))
        }
    }

    async fn write(&self, lba: u64, nblocks: u32, version: u64) -> Outcome {
        let bufs = self.pattern_buffers(lba, nblocks, version).await;
        self.expect(Io::write(Lba(lba), nblocks, bufs), Status::Ok).await.map(|_| ())
    }

    async fn read(&self, lba: u64, nblocks: u32) -> Result<Vec<u8>, String> {
        let mut bufs = self.buffers(nblocks as usize * self.block_size()).await;
        bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0xA5));
        let done = self.expect(Io::read(Lba(lba), nblocks, bufs), Status::Ok).await?;
        Ok(bytes_of(&done.io.bufs))
    }

    async fn expect_version(&self, lba: u64, nblocks: u32, version: u64, when: &str) -> Outcome {
        if !self.stores() {
            return Ok(());
        }
        let (found, expected) = (self.read(lba, nblocks).await?, self.pattern(lba, nblocks, version));
        match first_difference(&found, &expected) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{when}: block {} of {lba}+{nblocks} is not version {version} (byte {} is {:#04x}, expected {:#04x})",
                lba + (at / self.block_size()) as u64,
                at % self.block_size(),
                found[at],
                expected[at]
            )),
        }
    }

    /// Waits until operations that nobody waits for any more have ended.
    async fn settle(&self, tasks_before: usize) -> Outcome {
        for _ in 0..20_000 {
            if self.reactor.live_tasks() <= tasks_before && self.reactor.driver().in_flight() == 0 {
                return Ok(());
            }
            self.reactor.sleep_ns(100_000).await;
        }
        Err("abandoned operations did not end within two seconds".to_string())
    }
}

fn bytes_of(bufs: &[Buf]) -> Vec<u8> {
    let mut bytes = vec![0; reactor::buf::sg_len(bufs)];
    reactor::buf::sg_copy_to(bufs, &mut bytes);
    bytes
}

fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a.len() != b.len() { Some(a.len().min(b.len())) } else { a.iter().zip(b).position(|(x, y)| x != y) }
}

fn ensure(condition: bool, otherwise: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(otherwise()) }
}

async fn describes_itself(t: &Subject) -> Outcome {
    let info = &t.info;
    ensure(info.block_size.is_power_of_two() && (512..=65_536).contains(&info.block_size), || {
        format!("block size {}", info.block_size)
    })?;
    ensure(info.blocks > 0 && info.max_io_blocks > 0 && info.optimal_io_blocks > 0, || format!("{info:?}"))?;
    ensure(info.versions > 0, || "not even the usual version of its blocks".to_string())?;
    let boundary = info.atomic_boundary_blocks;
    ensure(boundary == 0 || info.atomic_write_blocks <= boundary, || "atomic unit over its boundary".to_string())?;
    ensure(!t.device.name().is_empty() && !t.device.kind().is_empty(), || "no name or kind".to_string())?;
    let refreshed = t.device.refresh(&t.reactor).await.map_err(|error| error.to_string())?;
    ensure(refreshed == *info, || format!("refresh changed {info:?} to {refreshed:?}"))
}

async fn refuses_bad_requests(t: &Subject) -> Outcome {
    let (blocks, block_size) = (t.info.blocks, t.block_size());
    for (lba, nblocks) in [(blocks, 1), (blocks - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (blocks + 1, 1)] {
        for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Unmap, Op::Compare, Op::Verify] {
            let data = matches!(op, Op::Read | Op::Write | Op::Compare);
            let bufs = if data { t.buffers(nblocks as usize * block_size).await } else { SgList::new() };
            let status = if t.can(&[op]) { Status::OutOfRange } else { Status::Unsupported };
            let done = t.expect(Io { bufs, ..Io::new(op, Lba(lba), nblocks) }, status).await?;
            let kept = reactor::buf::sg_len(&done.io.bufs);
            ensure(!data || kept == nblocks as usize * block_size, || "a refusal lost buffers".to_string())?;
        }
    }
    for (nblocks, bytes) in [(0, 0), (1, 0), (1, block_size - 1), (1, block_size + 1), (2, block_size)] {
        for op in [Op::Read, Op::Write, Op::Compare] {
            let status = if t.can(&[op]) { Status::Invalid } else { Status::Unsupported };
            let bufs = t.buffers(bytes).await;
            t.expect(Io { bufs, ..Io::new(op, Lba(0), nblocks) }, status).await?;
        }
    }
    if t.can(&[Op::Copy]) {
        t.expect(Io { arg: blocks, ..Io::new(Op::Copy, Lba(0), 1) }, Status::OutOfRange).await?;
        t.expect(Io { arg: u64::MAX, ..Io::new(Op::Copy, Lba(0), 1) }, Status::OutOfRange).await?;
    }
    for op in Op::ALL.into_iter().filter(|op| !t.can(&[*op])) {
        t.expect(Io::new(op, Lba(0), 1), Status::Unsupported).await?;
    }
    Ok(())
}

async fn returns_request_and_buffers(t: &Subject) -> Outcome {
    for op in [Op::Write, Op::Read] {
        for nblocks in t.sizes() {
            for lba in t.places(nblocks as u64) {
                let bufs = t.pattern_buffers(lba, nblocks, 1).await;
                let addresses: Vec<_> = bufs.iter().map(|buf| (buf.as_ptr() as usize, buf.len())).collect();
                let io = Io { tag: 0xFEED_0000 + lba, bufs, ..Io::new(op, Lba(lba), nblocks) };
                let done = t.expect(io, Status::Ok).await?;
                let io = &done.io;
                let same = (io.op, io.lba.0, io.nblocks, io.tag, io.flags)
                    == (op, lba, nblocks, 0xFEED_0000 + lba, Flags::NONE);
                ensure(same, || format!("the request came back changed: {io:?}"))?;
                let back: Vec<_> = io.bufs.iter().map(|buf| (buf.as_ptr() as usize, buf.len())).collect();
                ensure(back == addresses, || format!("buffers {addresses:x?} came back as {back:x?}"))?;
                ensure(op == Op::Write || !io.bufs.iter().any(Buf::is_shared), || "read buffers are shared".into())?;
            }
        }
    }
    Ok(())
}

async fn reads_what_was_written(t: &Subject) -> Outcome {
    for (round, nblocks) in t.sizes().into_iter().enumerate() {
        for lba in t.places(nblocks as u64) {
            let version = 2 + round as u64;
            t.write(lba, nblocks, version).await?;
            t.expect_version(lba, nblocks, version, "after a write").await?;
            t.expect_version(lba + nblocks as u64 / 2, 1, version, "one block of it").await?;
        }
    }
    Ok(())
}

/// Cuts a list at random bytes, so that its parts have odd lengths and addresses.
fn cut(t: &Subject, list: SgList, pieces: u64) -> SgList {
    let mut out = SgList::new();
    for mut buf in list {
        for _ in 1..pieces {
            if buf.len() > 1 {
                let tail = buf.split_off(t.random(1, buf.len() as u64 - 1) as usize);
                out.push(std::mem::replace(&mut buf, tail));
            }
        }
        out.push(buf);
    }
    out
}

async fn takes_buffers_of_any_split(t: &Subject) -> Outcome {
    for round in 0..24u64 {
        let nblocks = t.random(1, t.largest().min(40) as u64) as u32;
        let lba = t.places(nblocks as u64)[round as usize % 2];
        let pieces = t.random(1, 9);
        let bufs = cut(t, t.pattern_buffers(lba, nblocks, 20 + round).await, pieces);
        t.expect(Io::write(Lba(lba), nblocks, bufs), Status::Ok).await?;
        t.expect_version(lba, nblocks, 20 + round, "after a write from cut buffers").await?;
        let bufs = cut(t, t.buffers(nblocks as usize * t.block_size()).await, pieces);
        let done = t.expect(Io::read(Lba(lba), nblocks, bufs), Status::Ok).await?;
        let right = bytes_of(&done.io.bufs) == t.pattern(lba, nblocks, 20 + round);
        ensure(right || !t.stores(), || format!("a read of {lba}+{nblocks} into cut buffers gave other bytes"))?;
    }
    Ok(())
}

async fn moves_the_largest_operation(t: &Subject) -> Outcome {
    let nblocks = t.largest();
    for lba in t.places(nblocks as u64) {
        t.write(lba, nblocks, 50).await?;
        t.expect_version(lba, nblocks, 50, "after the largest write").await?;
    }
    Ok(())
}

async fn lends_buffers(t: &Subject) -> Outcome {
    if !t.info.loans {
        t.expect(Io::read_loan(Lba(0), 1), Status::Invalid).await?;
        return Ok(());
    }
    for nblocks in t.sizes().into_iter().chain([t.largest()]) {
        for lba in t.places(nblocks as u64) {
            t.write(lba, nblocks, 60).await?;
            let done = t.expect(Io::read_loan(Lba(lba), nblocks), Status::Ok).await?;
            let bytes = bytes_of(&done.io.bufs);
            ensure(bytes.len() == nblocks as usize * t.block_size(), || format!("{} bytes lent", bytes.len()))?;
            ensure(!t.stores() || bytes == t.pattern(lba, nblocks, 60), || format!("lent bytes of {lba} are wrong"))?;
        }
    }
    Ok(())
}

async fn flushes_and_forces(t: &Subject) -> Outcome {
    t.expect(Io::flush(), Status::Ok).await?;
    for lba in t.places(1) {
        let bufs = t.pattern_buffers(lba, 1, 70).await;
        t.expect(Io { flags: Flags::FUA, ..Io::write(Lba(lba), 1, bufs) }, Status::Ok).await?;
        t.expect_version(lba, 1, 70, "after a forced write").await?;
    }
    let flushes: Vec<Io> = (0..4).map(|_| Io::flush()).collect();
    all_ok(t, flushes).await?;
    for op in [Op::WriteZeroes, Op::Unmap] {
        if t.can(&[op]) {
            t.expect(Io { flags: Flags::FUA, ..Io::new(op, Lba(0), 1) }, Status::Ok).await?;
        }
    }
    Ok(())
}

async fn all_ok(t: &Subject, ios: Vec<Io>) -> Result<Vec<Done>, String> {
    let mut parts = Parts::default();
    ios.into_iter().for_each(|io| parts.push(t.channel.submit(io)));
    let done: Vec<Done> = parts.join().await.collect();
    match done.iter().find(|done| !done.status.is_ok()) {
        None => Ok(done),
        Some(bad) => {
            Err(format!("{} at {} among {} at once: {}", bad.io.op.name(), bad.io.lba.0, done.len(), bad.status))
        }
    }
}

async fn zeroes_and_unmaps(t: &Subject) -> Outcome {
    for op in [Op::WriteZeroes, Op::Unmap] {
        if !t.can(&[op]) {
            continue;
        }
        for nblocks in t.sizes().into_iter().chain([t.info.blocks.min(3000) as u32]) {
            let fits = nblocks as u64 + 2 <= t.info.blocks;
            for lba in t.places(nblocks as u64) {
                let (before, after) = (lba.saturating_sub(1), (lba + nblocks as u64).min(t.info.blocks - 1));
                t.write(before, 1, 80).await?;
                t.write(after, 1, 80).await?;
                if lba != before {
                    t.write(lba, 1, 81).await?;
                }
                t.expect(Io::new(op, Lba(lba), nblocks), Status::Ok).await?;
                if op == Op::WriteZeroes || t.info.unmap_reads_zero {
                    let probe = nblocks.min(t.largest());
                    t.expect_version(lba, probe, 0, op.name()).await?;
                    t.expect_version(lba + (nblocks - probe) as u64, probe, 0, op.name()).await?;
                }
                if fits && before < lba {
                    t.expect_version(before, 1, 80, "the block before a cleared range").await?;
                }
                if fits && after >= lba + nblocks as u64 {
                    t.expect_version(after, 1, 80, "the block after a cleared range").await?;
                }
                t.write(lba, 1, 82).await?;
                t.expect_version(lba, 1, 82, "written again after it was cleared").await?;
            }
        }
    }
    Ok(())
}

async fn compares(t: &Subject) -> Outcome {
    if !t.can(&[Op::Compare]) || !t.stores() {
        return Ok(());
    }
    for nblocks in t.sizes() {
        for lba in t.places(nblocks as u64) {
            t.write(lba, nblocks, 90).await?;
            let same = cut(t, t.pattern_buffers(lba, nblocks, 90).await, 3);
            t.expect(Io { bufs: same, ..Io::new(Op::Compare, Lba(lba), nblocks) }, Status::Ok).await?;
            let mut other = t.pattern_buffers(lba, nblocks, 90).await;
            let last = other.len() - 1;
            let bytes = other[last].as_mut_slice();
            *bytes.last_mut().expect("a block has bytes") ^= 1;
            t.expect(Io { bufs: other, ..Io::new(Op::Compare, Lba(lba), nblocks) }, Status::Miscompare).await?;
        }
    }
    Ok(())
}

async fn compare_and_write(t: &Subject, lba: u64, nblocks: u32, old: u64, new: u64, status: Status) -> Outcome {
    let mut bufs = t.pattern_buffers(lba, nblocks, old).await;
    bufs.extend(t.pattern_buffers(lba, nblocks, new).await);
    let done = t.expect(Io { bufs, ..Io::new(Op::CompareAndWrite, Lba(lba), nblocks) }, status).await?;
    let expected = [t.pattern(lba, nblocks, old), t.pattern(lba, nblocks, new)].concat();
    ensure(bytes_of(&done.io.bufs) == expected, || "compare-and-write changed its buffers".to_string())
}

async fn compares_and_writes(t: &Subject) -> Outcome {
    if !t.can(&[Op::CompareAndWrite]) || !t.stores() {
        return Ok(());
    }
    let boundary = t.info.atomic_boundary_blocks as u64;
    for nblocks in t.sizes().into_iter().filter(|n| *n <= t.info.compare_and_write_blocks && *n * 2 <= t.largest()) {
        for lba in t.places(nblocks as u64) {
            if boundary > 0 && lba / boundary != (lba + nblocks as u64 - 1) / boundary {
                continue;
            }
            t.write(lba, nblocks, 100).await?;
            compare_and_write(t, lba, nblocks, 100, 101, Status::Ok).await?;
            t.expect_version(lba, nblocks, 101, "after a compare-and-write").await?;
            compare_and_write(t, lba, nblocks, 100, 102, Status::Miscompare).await?;
            t.expect_version(lba, nblocks, 101, "after a refused compare-and-write").await?;
        }
    }
    Ok(())
}

/// Several tasks add to one counter by compare-and-write; none of the additions may be lost.
async fn compare_and_write_is_atomic(t: &Subject) -> Outcome {
    const TASKS: u64 = 4;
    const ROUNDS: u64 = 8;
    if !t.can(&[Op::CompareAndWrite]) || !t.stores() {
        return Ok(());
    }
    let lba = t.places(1)[0];
    t.write(lba, 1, 0).await?;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (channel, reactor, bytes) = (t.channel.clone(), t.reactor.clone(), t.block_size());
            t.reactor.spawn_join(async move {
                for _ in 0..ROUNDS {
                    count_up(&*channel, &reactor, lba, bytes).await?;
                }
                Ok::<(), String>(())
            })
        })
        .collect();
    for task in tasks {
        task.await?;
    }
    let bytes = t.read(lba, 1).await?;
    let count = u64::from_le_bytes(bytes[..8].try_into().expect("a block has 8 bytes"));
    ensure(count == TASKS * ROUNDS, || format!("{count} additions of {} are left", TASKS * ROUNDS))
}

/// Adds one to the counter at the start of block `lba` by compare-and-write, trying again while others are faster.
pub async fn count_up(
    channel: &dyn Channel,
    reactor: &Rc<Reactor>,
    lba: u64,
    block_bytes: usize,
) -> Result<(), String> {
    for _ in 0..100_000 {
        let buf = reactor.pool().alloc(block_bytes).await;
        let mut done = channel.submit(Io::read(Lba(lba), 1, [buf].into_iter().collect())).await;
        if !done.status.is_ok() {
            return Err(format!("read of the counter: {}", done.status));
        }
        let mut new = reactor.pool().alloc(block_bytes).await;
        new.as_mut_slice().fill(0);
        let old = u64::from_le_bytes(done.io.bufs[0].as_slice()[..8].try_into().expect("a block has 8 bytes"));
        new.as_mut_slice()[..8].copy_from_slice(&(old + 1).to_le_bytes());
        done.io.bufs.push(new);
        let swap = Io { bufs: done.io.bufs, ..Io::new(Op::CompareAndWrite, Lba(lba), 1) };
        match channel.submit(swap).await.status {
            Status::Ok => return Ok(()),
            Status::Miscompare => reactor.yield_now().await,
            other => return Err(format!("compare-and-write of the counter: {other}")),
        }
    }
    Err("a compare-and-write never won".to_string())
}

async fn copies(t: &Subject) -> Outcome {
    if !t.can(&[Op::Copy]) || t.info.blocks < 64 {
        return Ok(());
    }
    for (source, target, nblocks) in [(0, 40, 5), (40, 0, 1), (10, 12, 20), (12, 10, 20), (7, 7, 3)] {
        let base = t.places(64)[t.random(0, 1) as usize];
        t.write(base + source, nblocks, 110).await?;
        let expected = t.pattern(base + source, nblocks, 110);
        t.expect(Io { arg: base + source, ..Io::new(Op::Copy, Lba(base + target), nblocks) }, Status::Ok).await?;
        let found = t.read(base + target, nblocks).await?;
        ensure(!t.stores() || found == expected, || format!("a copy from {source} to {target} of {nblocks} differs"))?;
    }
    Ok(())
}

async fn verifies(t: &Subject) -> Outcome {
    if t.can(&[Op::Verify]) {
        for nblocks in t.sizes().into_iter().chain([t.info.blocks.min(2000) as u32]) {
            for lba in t.places(nblocks as u64) {
                t.expect(Io::new(Op::Verify, Lba(lba), nblocks), Status::Ok).await?;
            }
        }
    }
    Ok(())
}

async fn writes_atomically(t: &Subject) -> Outcome {
    let unit = t.info.atomic_write_blocks.min(t.largest());
    let boundary = t.info.atomic_boundary_blocks;
    if unit > 0 {
        let bufs = t.pattern_buffers(0, unit, 120).await;
        t.expect(Io { flags: Flags::ATOMIC, ..Io::write(Lba(0), unit, bufs) }, Status::Ok).await?;
        t.expect_version(0, unit, 120, "after an atomic write").await?;
    }
    let too_large = t.info.atomic_write_blocks.saturating_add(1);
    if too_large <= t.largest() {
        let bufs = t.pattern_buffers(0, too_large, 121).await;
        t.expect(Io { flags: Flags::ATOMIC, ..Io::write(Lba(0), too_large, bufs) }, Status::Invalid).await?;
    }
    if boundary > 1 && t.info.atomic_write_blocks > 1 && t.info.blocks > boundary as u64 {
        let bufs = t.pattern_buffers(boundary as u64 - 1, 2, 122).await;
        let io = Io { flags: Flags::ATOMIC, ..Io::write(Lba(boundary as u64 - 1), 2, bufs) };
        t.expect(io, Status::Invalid).await?;
    }
    Ok(())
}

/// Writes to the same blocks at the same time: afterwards each block holds one of them, and goes on holding it.
/// NVMe's atomic write unit in normal operation is at least one logical block (AWUN, NVM Command Set 2.1.4): each block is
/// one of the writes, whole. Across a power cut only `atomic_write_blocks` counts.
async fn settles_overlapping_writes(t: &Subject) -> Outcome {
    let span = t.largest().min(8) as u64;
    for round in 0..12u64 {
        let base = t.places(span)[round as usize % 2];
        t.write(base, span as u32, 130).await?;
        let mut ios = Vec::new();
        let mut covered = vec![vec![130]; span as usize];
        for version in 131..137 {
            let from = t.random(0, span - 1);
            let nblocks = t.random(1, span - from) as u32;
            ios.push(Io::write(Lba(base + from), nblocks, t.pattern_buffers(base + from, nblocks, version).await));
            covered[from as usize..(from as usize + nblocks as usize)].iter_mut().for_each(|list| list.push(version));
            if version % 2 == 0 {
                let bufs = t.buffers(span as usize * t.block_size()).await;
                ios.push(Io::read(Lba(base), span as u32, bufs));
            }
        }
        all_ok(t, ios).await?;
        if !t.stores() {
            continue;
        }
        let first = t.read(base, span as u32).await?;
        for (index, block) in first.chunks_exact(t.block_size()).enumerate() {
            let lba = base + index as u64;
            let candidates = if covered[index].len() > 1 { &covered[index][1..] } else { &covered[index][..] };
            ensure(candidates.iter().any(|version| block == t.pattern(lba, 1, *version)), || {
                format!("block {lba} holds none of the versions {candidates:?} after overlapping writes")
            })?;
        }
        for _ in 0..6 {
            let again = t.read(base, span as u32).await?;
            ensure(again == first, || format!("blocks at {base} changed between two reads without a write"))?;
        }
    }
    Ok(())
}

/// Polls a future `polls` times, letting the reactor turn in between.
async fn poll_some(reactor: &Rc<Reactor>, future: &mut IoFuture<'_, Done>, polls: u64) -> bool {
    for _ in 0..polls {
        let ready = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_ready())).await;
        if ready {
            return true;
        }
        reactor.yield_now().await;
    }
    false
}

async fn survives_dropped_futures(t: &Subject) -> Outcome {
    let tasks = t.reactor.live_tasks();
    let span = t.largest().min(16) as u64;
    let base = t.places(span)[0];
    let ops = [Op::Write, Op::Read, Op::WriteZeroes, Op::Flush, Op::Compare, Op::CompareAndWrite, Op::Verify, Op::Copy];
    t.write(base, span as u32, 140).await?;
    // Copied from where nothing else writes: a source that changes meanwhile may be copied in parts.
    let source = base + span;
    let copies = source < t.info.blocks;
    if copies {
        t.write(source, 1, 0).await?;
    }
    let mut possible = vec![vec![140]; span as usize];
    let mut views: Vec<Buf> = Vec::new();
    for round in 0..80u64 {
        let op = ops[t.random(0, ops.len() as u64 - 1) as usize];
        if !t.can(&[op]) || (op == Op::Copy && !copies) {
            continue;
        }
        let from = t.random(0, span - 1);
        let nblocks = if op == Op::CompareAndWrite || op == Op::Copy { 1 } else { t.random(1, span - from) as u32 };
        let lba = base + from;
        let mut io = Io { arg: if op == Op::Copy { source } else { 0 }, ..Io::new(op, Lba(lba), nblocks) };
        match op {
            Op::Write => {
                io.bufs = t.pattern_buffers(lba, nblocks, 141 + round).await;
                views.extend(io.bufs.iter_mut().map(Buf::duplicate));
                possible[from as usize..from as usize + nblocks as usize].iter_mut().for_each(|p| p.push(141 + round));
            }
            Op::WriteZeroes | Op::Copy => {
                possible[from as usize..from as usize + nblocks as usize].iter_mut().for_each(|p| p.push(0));
            }
            Op::Read | Op::Compare => io.bufs = t.buffers(nblocks as usize * t.block_size()).await,
            Op::CompareAndWrite => {
                // Compares with what is never there: not a change.
                io.bufs = t.pattern_buffers(lba, 1, 1 << 20).await;
                io.bufs.extend(t.pattern_buffers(lba, 1, 1 << 20).await);
            }
            Op::Flush => (io.lba, io.nblocks) = (Lba(0), 0),
            _ => {}
        }
        let mut future = t.channel.submit(io);
        let polls = t.random(0, 4);
        poll_some(&t.reactor, &mut future, polls).await;
        drop(future);
    }
    t.settle(tasks).await?;
    // Operations of a remote device are under way in no task and no driver here: their buffers say when they have ended.
    for _ in 0..20_000 {
        if views.iter_mut().all(Buf::try_unshare) {
            break;
        }
        t.reactor.sleep_ns(100_000).await;
    }
    for view in &mut views {
        ensure(view.try_unshare(), || "a dropped write still holds its buffer after it has ended".to_string())?;
    }
    if t.stores() {
        let found = t.read(base, span as u32).await?;
        for (index, block) in found.chunks_exact(t.block_size()).enumerate() {
            let lba = base + index as u64;
            ensure(possible[index].iter().any(|version| block == t.pattern(lba, 1, *version)), || {
                format!("block {lba} holds something that was never written, after futures were dropped")
            })?;
        }
    }
    t.write(base, span as u32, 139).await?;
    t.expect_version(base, span as u32, 139, "after futures were dropped").await
}

async fn ignores_aborts_of_nothing(t: &Subject) -> Outcome {
    t.channel.abort(0xDEAD_BEEF);
    let bufs = t.pattern_buffers(0, 1, 150).await;
    let write = t.channel.submit(Io { tag: 7, ..Io::write(Lba(0), 1, bufs) });
    t.channel.abort(7);
    let status = write.await.status;
    ensure(matches!(status, Status::Ok | Status::Aborted), || format!("an aborted write ended with '{status}'"))?;
    t.write(0, 1, 151).await?;
    t.expect_version(0, 1, 151, "after an abort").await
}

async fn channels_see_each_other(t: &Subject) -> Outcome {
    let other = t.device.open_channel(&t.reactor).map_err(|error| error.to_string())?;
    for (version, lba) in (160..).zip(t.places(1)) {
        let bufs = t.pattern_buffers(lba, 1, version).await;
        let done = other.submit(Io::write(Lba(lba), 1, bufs)).await;
        ensure(done.status.is_ok(), || format!("write through a second channel: {}", done.status))?;
        drop(done);
        t.expect_version(lba, 1, version, "written through another channel").await?;
    }
    Ok(())
}

/// Random operations in batches of disjoint ranges, against a record of what each block must be.
async fn matches_a_model(t: &Subject) -> Outcome {
    if !t.stores() {
        return Ok(());
    }
    let span = t.info.blocks.min(192);
    let base = t.places(span)[t.random(0, 1) as usize % t.places(span).len()];
    let mut model: Vec<(u64, u64)> = vec![(0, 0); span as usize];
    clear(t, base, span).await?;
    let (mut done_ops, mut version) = (0, 1000);
    while done_ops < t.options.random_ops {
        let mut ios = Vec::new();
        let mut expected: Vec<Option<Vec<u8>>> = Vec::new();
        let (mut taken, batch) = (vec![false; span as usize], t.random(1, 12));
        for _ in 0..batch {
            let from = t.random(0, span - 1) as usize;
            let nblocks = t.random(1, (span as usize - from).min(t.largest() as usize).min(24) as u64) as usize;
            if taken[from..from + nblocks].iter().any(|taken| *taken) {
                continue;
            }
            taken[from..from + nblocks].iter_mut().for_each(|taken| *taken = true);
            version += 1;
            let (io, expect) = random_io(t, base, from, nblocks, version, &mut model).await;
            ios.push(io);
            expected.push(expect);
        }
        done_ops += ios.len();
        for (done, expect) in all_ok(t, ios).await?.into_iter().zip(expected) {
            if let Some(expect) = expect {
                let found = bytes_of(&done.io.bufs);
                if let Some(at) = first_difference(&found, &expect) {
                    let block = done.io.lba.0 + (at / t.block_size()) as u64;
                    return Err(format!("{} of block {block} found other bytes than the model", done.io.op.name()));
                }
            }
        }
        if t.random(0, 9) == 0 {
            t.expect(Io::flush(), Status::Ok).await?;
        }
    }
    for (index, (origin, version)) in model.iter().enumerate() {
        let (lba, origin) = (base + index as u64, *origin);
        let found = t.read(lba, 1).await?;
        ensure(found == t.pattern(origin, 1, *version), || format!("block {lba} differs from the model at the end"))?;
    }
    Ok(())
}

async fn clear(t: &Subject, base: u64, span: u64) -> Outcome {
    let mut at = 0;
    while at < span {
        let count = (span - at).min(t.largest() as u64);
        t.write(base + at, count as u32, 0).await?;
        at += count;
    }
    Ok(())
}

/// An operation on blocks that no other of the batch touches, its effect on the model, and what it must read.
async fn random_io(
    t: &Subject,
    base: u64,
    from: usize,
    nblocks: usize,
    version: u64,
    model: &mut [(u64, u64)],
) -> (Io, Option<Vec<u8>>) {
    let lba = base + from as u64;
    let range = from..from + nblocks;
    let kinds =
        [Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::WriteZeroes, Op::Unmap, Op::Compare, Op::Verify];
    let mut op = kinds[t.random(0, kinds.len() as u64 - 1) as usize];
    if !t.can(&[op]) || (op == Op::Unmap && !t.info.unmap_reads_zero) {
        op = Op::Write;
    }
    let io = Io::new(op, Lba(lba), nblocks as u32);
    let current: Vec<u8> =
        model[range.clone()].iter().flat_map(|(origin, version)| t.pattern(*origin, 1, *version)).collect();
    let pieces = t.random(1, 4);
    match op {
        Op::Write => {
            model[range].iter_mut().enumerate().for_each(|(index, block)| *block = (lba + index as u64, version));
            let bufs = cut(t, t.pattern_buffers(lba, nblocks as u32, version).await, pieces);
            let flags = if t.random(0, 7) == 0 { Flags::FUA } else { Flags::NONE };
            (Io { bufs, flags, ..io }, None)
        }
        Op::WriteZeroes | Op::Unmap => {
            model[range].iter_mut().for_each(|block| *block = (0, 0));
            (io, None)
        }
        Op::Read if t.info.loans && pieces == 1 => (Io::read_loan(Lba(lba), nblocks as u32), Some(current)),
        Op::Read => {
            let bufs = cut(t, t.buffers(nblocks * t.block_size()).await, pieces);
            (Io { bufs, ..io }, Some(current))
        }
        Op::Compare => {
            let mut bufs = t.buffers(nblocks * t.block_size()).await;
            reactor::buf::sg_copy_from(&mut bufs, &current);
            (Io { bufs: cut(t, bufs, pieces), ..io }, Some(current))
        }
        _ => (io, None),
    }
}

async fn resizes(t: &Subject) -> Outcome {
    let Some(target) = t.options.resize_to else { return Ok(()) };
    let old = t.info.blocks;
    let resize = async |blocks: u64| t.device.resize(&t.reactor, blocks).await.map_err(|error| error.to_string());
    let keep = old.min(target) - 1;
    t.write(keep, 1, 170).await?;
    resize(target).await?;
    ensure(t.device.info().blocks == target, || {
        format!("{} blocks after a resize to {target}", t.device.info().blocks)
    })?;
    t.expect_version(keep, 1, 170, "kept by a resize").await?;
    t.write(target - 1, 1, 171).await?;
    t.expect_version(target - 1, 1, 171, "the last block after a resize").await?;
    let bufs = t.buffers(t.block_size()).await;
    t.expect(Io::write(Lba(target), 1, bufs), Status::OutOfRange).await?;
    resize(old).await?;
    if target > old {
        let bufs = t.buffers(t.block_size()).await;
        t.expect(Io::read(Lba(old), 1, bufs), Status::OutOfRange).await?;
        t.expect_version(keep, 1, 170, "kept by a second resize").await?;
    }
    resize(0).await.err().map(|_| ()).ok_or_else(|| "a resize to nothing was accepted".to_string())?;
    let every = OpSet::of(&Op::ALL);
    ensure(t.device.info().ops.intersection(every) == t.info.ops, || "a resize changed the operations".to_string())
}
