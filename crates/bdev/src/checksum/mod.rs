//! Checksums: a read returns what was written, or [`Status::Corrupt`].
//!
//! Every block has a CRC32C in a page kept apart from it, found by address. So rot, a write that went to the wrong
//! place, and a write that was lost are all found: the data there do not match what that address must hold. Pages
//! carry their own checksum, index and volume id, so the same holds for them.
//!
//! Crashes: an entry holds the current and the previous value. A write announces the new value in its page, durably,
//! before it touches the block, so at every moment the block on media matches one of the two; when a page is loaded,
//! the block itself decides which. The guarantee: *if the child writes single blocks atomically, no crash turns a block
//! into `Corrupt`, and a block reads as one of the versions written to it since the last flush, or the flushed one*.
//! A second write to a block that is not yet flushed flushes first: three possible versions would not fit.
//! What is not found: until a page is next written (or [`settle`](ChecksumDevice::settle)), a restart accepts the
//! version before the last one, so a device that lost an acknowledged and flushed write exactly then goes unnoticed.
//!
//! Blocks that were declared unreadable ([`Op::WriteUncorrectable`]) have an entry that their bytes do not match, in a way
//! that tells them from rot: the value on media with some bits the other way round.
//!
//! Blocks never written are zero: creating the filter zeroes the child.
//!
//! Cost: 0.2 % of the space at 4 KiB blocks, one page write (shared by the writes that wait for the same page) before
//! each write, sixteen bytes of memory per block of the pages in use, bounded by the cache size.

pub(crate) mod format;
mod pages;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::front::{Front, behind, check_child};
use crate::io::{Done, Flags, Io, Lba, Op, OpSet, Status};
use crate::range_lock::RangeLock;
use crate::split;
use crate::steps::{self, Medium};
use base::crc::{crc32c, crc32c_slices};
use format::Superblock;
use pages::{Cache, Entry, MARK, Page, SETTLED, UNCERTAIN, is_settled};
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, Reactor, SgList};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// How a checksum device is opened.
#[derive(Clone, Debug)]
pub struct ChecksumOptions {
    /// Make a new one where the child's first blocks are zero.
    pub create: bool,
    /// With `create`: make a new one whatever is there.
    pub force: bool,
    /// With `create`: the child reads as zeroes everywhere, so it need not be zeroed.
    pub assume_zero: bool,
    /// Most pages in memory; each covers 508 blocks of 4 KiB and takes about 8 KiB.
    pub cache_pages_max: usize,
}

impl Default for ChecksumOptions {
    fn default() -> Self {
        ChecksumOptions { create: false, force: false, assume_zero: false, cache_pages_max: 16_384 }
    }
}

/// See the module.
pub struct ChecksumDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    child: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    superblock: Superblock,
    entries_per_page: u64,
    zero_crc: u32,
    /// Writes hold their blocks alone; reads that found a mismatch look again holding them.
    ranges: RangeLock,
    /// One loader or writer of a page at a time.
    page_turns: RangeLock,
    cache: Cache,
    /// Flushes begun, and the last that succeeded; see `pages` for what they say about blocks.
    flushes_begun: AtomicU64,
    flushed: AtomicU64,
    corrupt_blocks: AtomicU64,
}

impl ChecksumDevice {
    /// What a new device on such a child would be; otherwise why there cannot be one.
    pub fn plan(child: &DeviceInfo) -> Result<DeviceInfo, String> {
        check_child(child, "a checksum")?;
        Ok(describe(child, &plan([0; 16], child)?))
    }

    /// Opens (or creates) the checksums of `child`.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        child: Arc<dyn BlockDevice>,
        options: &ChecksumOptions,
    ) -> Result<ChecksumDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let failed = |action| move |status| DeviceError::Io { device: name.to_string(), action, status };
        let base = child.info();
        check_child(&base, "a checksum").map_err(refused)?;
        if base.atomic_write_blocks == 0 {
            tracing::warn!(
                device = name,
                "a power cut may tear a block, which reads as corrupt then: use blocks of the disk's sector size below"
            );
        }
        if base.blocks < format::SUPERBLOCKS {
            return Err(refused("the child is too small".to_string()));
        }
        let channel = child.open_channel(reactor)?;
        let front = front(reactor, &*channel, &base);
        let mut found = front.read(Superblock::decode).await;
        let superblock = match found.take(options.create, options.force, "checksums").map_err(refused)? {
            Some(superblock) => {
                front.repair(name, &found, &superblock.bytes()).await;
                superblock
            }
            None => {
                let mut id = [0; 16];
                id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
                id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
                let plan = plan(id, &base).map_err(refused)?;
                create(front, &base, &plan, options.assume_zero).await.map_err(failed("create checksums"))?;
                plan
            }
        };
        if superblock.block_size != base.block_size || superblock.data_start + superblock.data_blocks > base.blocks {
            let reason = "the child is smaller than its checksums say, or has another block size";
            return Err(refused(reason.to_string()));
        }
        let zeroes = vec![0; base.block_size as usize];
        let shared = Shared {
            name: name.to_string(),
            info: describe(&base, &superblock),
            superblock,
            entries_per_page: format::entries_per_page(base.block_size),
            zero_crc: crc32c(&zeroes),
            ranges: RangeLock::new((1 << 20) / base.block_size as u64),
            page_turns: RangeLock::new(1),
            cache: Cache::new(options.cache_pages_max),
            flushes_begun: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            corrupt_blocks: AtomicU64::new(0),
            child,
        };
        Ok(ChecksumDevice { shared: Arc::new(shared) })
    }

    /// Times that a block did not match its checksum.
    pub fn corrupt_blocks(&self) -> u64 {
        self.shared.corrupt_blocks.load(Relaxed)
    }

    /// Flushes, and forgets the previous values of all blocks that are in memory, as before a shutdown.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let inner = self.inner(reactor)?;
        let outcome = inner.settle().await;
        outcome.map_err(|status| DeviceError::Io { device: self.shared.name.clone(), action: "settle", status })
    }

    fn inner(&self, reactor: &Rc<Reactor>) -> Result<Rc<Inner>, DeviceError> {
        let child = self.shared.child.open_channel(reactor)?;
        Ok(Rc::new(Inner { shared: self.shared.clone(), reactor: reactor.clone(), child }))
    }
}

fn plan(id: [u8; 16], base: &DeviceInfo) -> Result<Superblock, String> {
    Superblock::plan(id, base.block_size, base.blocks).ok_or_else(|| "the child is too small".to_string())
}

fn describe(base: &DeviceInfo, superblock: &Superblock) -> DeviceInfo {
    let unmap = if base.unmap_reads_zero { base.ops.intersection(OpSet::of(&[Op::Unmap])) } else { OpSet::default() };
    let info = behind(base, superblock.data_start, superblock.data_blocks);
    let ops = info.ops.union(unmap).union(OpSet::of(&[Op::WriteUncorrectable]));
    DeviceInfo { ops, unmap_reads_zero: true, loans: true, ..info }
}

fn front<'a>(reactor: &'a Rc<Reactor>, channel: &'a dyn Channel, base: &DeviceInfo) -> Front<'a> {
    Front { reactor, channel, block_size: base.block_size, copy_blocks: 1, copies: format::SUPERBLOCKS }
}

/// Zeroes everything, writes the pages of a zero device, and the superblocks last.
async fn create(front: Front<'_>, base: &DeviceInfo, plan: &Superblock, assume_zero: bool) -> Result<(), Status> {
    let Front { reactor, channel, .. } = front;
    let block_size = base.block_size as usize;
    let write = async |lba: u64, nblocks: u32, bufs: SgList| {
        channel.submit(Io { flags: Flags::FUA, ..Io::write(Lba(lba), nblocks, bufs) }).await.status.check()
    };
    front.write(&[]).await?;
    if !assume_zero {
        zero_data(reactor, channel, base, plan).await?;
    }
    let step = (BUF_BYTES_MAX / block_size).min(base.max_io_blocks as usize) as u64;
    let mut page = 0;
    while page < plan.pages {
        let count = step.min(plan.pages - page);
        let mut buf = steps::alloc(reactor, count as usize * block_size).await?;
        buf.as_mut_slice().fill(0);
        for (nth, block) in buf.as_mut_slice().chunks_exact_mut(block_size).enumerate() {
            format::encode_page(plan.volume_id, page + nth as u64, std::iter::empty(), block);
        }
        write(format::SUPERBLOCKS + page, count as u32, [buf].into_iter().collect()).await?;
        page += count;
    }
    channel.submit(Io::flush()).await.status.check()?;
    front.write(&plan.bytes()).await
}

async fn zero_data(
    reactor: &Rc<Reactor>,
    channel: &dyn Channel,
    base: &DeviceInfo,
    plan: &Superblock,
) -> Result<(), Status> {
    let op = match base.ops {
        ops if base.unmap_reads_zero && ops.contains(Op::Unmap) => Op::Unmap,
        ops if ops.contains(Op::WriteZeroes) => Op::WriteZeroes,
        _ => Op::Write,
    };
    let step = if op == Op::Write { (BUF_BYTES_MAX as u32 / base.block_size) as u64 } else { 1 << 18 };
    let (mut at, end) = (plan.data_start, plan.data_start + plan.data_blocks);
    while at < end {
        let count = step.min(end - at) as u32;
        let mut io = Io::new(op, Lba(at), count);
        if op == Op::Write {
            let mut buf = steps::alloc(reactor, count as usize * base.block_size as usize).await?;
            buf.as_mut_slice().fill(0);
            io.bufs.push(buf);
        }
        channel.submit(io).await.status.check()?;
        at += count as u64;
    }
    Ok(())
}

impl BlockDevice for ChecksumDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "checksum"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(ChecksumChannel(self.inner(reactor)?)))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.shared.child.clone()]
    }
}

struct ChecksumChannel(Rc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    child: Rc<dyn Channel>,
}

impl Channel for ChecksumChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::Read {
            return self.0.start_read(io);
        }
        let inner = self.0.clone();
        match io.op {
            Op::Write => IoFuture::steps(&self.0.reactor, async move {
                let _alone = inner.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
                inner.change(io).await
            }),
            _ => IoFuture::steps(&self.0.reactor, async move {
                let mut io = io;
                let status = steps::status_of(inner.perform(&mut io).await);
                io.done(status)
            }),
        }
    }

    fn abort(&self, tag: u64) {
        self.0.child.abort(tag);
    }
}

/// Reads and writes that take the locks they need.
struct Free<'a>(&'a Inner);
/// Reads and writes inside a range that is held alone.
struct Held<'a>(&'a Inner);

impl Medium for Free<'_> {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.0.reactor
    }

    fn block_size(&self) -> u32 {
        self.0.shared.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        if io.op == Op::Read {
            return self.0.read(io, false).await;
        }
        let _alone = self.0.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
        self.0.change(io).await
    }
}

impl Medium for Held<'_> {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.0.reactor
    }

    fn block_size(&self) -> u32 {
        self.0.shared.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        if io.op == Op::Read { self.0.read(io, true).await } else { self.0.change(io).await }
    }
}

type PageList = SmallVec<[Arc<Page>; 2]>;

impl Inner {
    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        match io.op {
            Op::Flush => self.flush().await,
            Op::WriteZeroes | Op::Unmap => self.clear(io).await,
            Op::Compare => steps::compare(&Free(self), io).await,
            Op::CompareAndWrite => {
                let _alone = self.shared.ranges.lock(io.lba.0, io.nblocks as u64, true).await;
                steps::compare_and_write(&Held(self), io).await
            }
            Op::Copy => steps::copy(&Free(self), io).await,
            Op::Verify => steps::verify(&Free(self), io).await,
            Op::WriteUncorrectable => self.spoil(io).await,
            _ => Err(Status::Unsupported),
        }
    }

    // --- checksums --------------------------------------------------------------------------------------------------

    fn place(&self, lba: u64) -> (u64, usize) {
        (lba / self.shared.entries_per_page, (lba % self.shared.entries_per_page) as usize)
    }

    /// Calls `each(block number from 0, checksum value)`; zeroes have the value 0.
    fn each_value(&self, bufs: &[Buf], mut each: impl FnMut(u64, u32)) {
        let block_size = self.shared.info.block_size as usize;
        let (mut index, mut from, mut block) = (0, 0, 0);
        while index < bufs.len() {
            let bytes = &bufs[index].as_slice()[from..];
            if bytes.len() >= block_size {
                each(block, crc32c(&bytes[..block_size]) ^ self.shared.zero_crc);
                from += block_size;
            } else {
                let (crc, next) = crc_across(bufs, index, from, block_size);
                if next.0 > bufs.len() {
                    return;
                }
                each(block, crc ^ self.shared.zero_crc);
                (index, from) = next;
            }
            block += 1;
            while index < bufs.len() && from == bufs[index].len() {
                (index, from) = (index + 1, 0);
            }
        }
    }

    /// Whether every block matches; also its previous value where the last write failed.
    fn matches(&self, io: &Io, pages: &[Arc<Page>], first_page: u64) -> bool {
        let mut all = true;
        self.each_value(&io.bufs, |block, value| {
            let (page, slot) = self.place(io.lba.0 + block);
            let page = &pages[(page - first_page) as usize];
            let entry = page.entry(slot);
            all &= entry.current == value || (page.stage(slot) == UNCERTAIN && entry.previous == value);
        });
        all
    }

    /// Whether every block that does not match was declared unreadable.
    fn are_marked(&self, io: &Io, pages: &[Arc<Page>], first_page: u64) -> bool {
        let mut all = true;
        self.each_value(&io.bufs, |block, value| {
            let (page, slot) = self.place(io.lba.0 + block);
            let page = &pages[(page - first_page) as usize];
            let Entry { current, previous } = page.entry(slot);
            let is_uncertain = page.stage(slot) == UNCERTAIN;
            let matches = current == value || (is_uncertain && previous == value);
            all &= matches || value == current ^ MARK || (is_uncertain && value == previous ^ MARK);
        });
        all
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    /// Reads leave nothing half done, so they may be dropped anywhere; and most need one page, which is in memory.
    fn start_read(&self, mut io: Io) -> IoFuture<'_, Done> {
        if io.bufs.is_empty() {
            // Not lent by the child: memory that others write may change once it was checked.
            return IoFuture::new(async move {
                match steps::provide(&self.reactor, &mut io, self.shared.info.block_size).await {
                    Ok(()) => self.start_read(io).await,
                    Err(status) => io.done(status),
                }
            });
        }
        let (first, last) = (self.place(io.lba.0).0, self.place(io.end() - 1).0);
        let page = if first == last { self.shared.cache.get(first) } else { None };
        let Some(page) = page else { return IoFuture::new(self.read(io, false)) };
        let future = split::pass(&*self.child, io.lba.0 + self.shared.superblock.data_start, io);
        match future.try_ready() {
            Ok(done) if !done.status.is_ok() || self.matches(&done.io, std::slice::from_ref(&page), first) => {
                IoFuture::ready(done)
            }
            Ok(done) => IoFuture::new(self.read(done.io, false)),
            Err(future) => IoFuture::new(async move {
                let done = future.await;
                if !done.status.is_ok() || self.matches(&done.io, std::slice::from_ref(&page), first) {
                    return done;
                }
                self.read(done.io, false).await
            }),
        }
    }

    async fn read(&self, io: Io, held: bool) -> Done {
        let lba = io.lba.0;
        let first_page = self.place(lba).0;
        let pages = match self.pages(lba, io.nblocks as u64).await {
            Ok(pages) => pages,
            Err(status) => return io.done(status),
        };
        let done = split::pass(&*self.child, lba + self.shared.superblock.data_start, io).await;
        if !done.status.is_ok() || self.matches(&done.io, &pages, first_page) {
            return done;
        }
        // Perhaps a write was under way: look again when none can be.
        let _still = match held {
            true => None,
            false => Some(self.shared.ranges.lock(lba, done.io.nblocks as u64, false).await),
        };
        let done = split::pass(&*self.child, lba + self.shared.superblock.data_start, done.io).await;
        if !done.status.is_ok() || self.matches(&done.io, &pages, first_page) {
            return done;
        }
        if self.are_marked(&done.io, &pages, first_page) {
            return done.io.done(Status::ReadError);
        }
        self.shared.corrupt_blocks.fetch_add(1, Relaxed);
        tracing::error!(device = self.shared.name, lba, nblocks = done.io.nblocks, "data do not match their checksum");
        done.io.done(Status::Corrupt)
    }

    // --- writing ----------------------------------------------------------------------------------------------------

    /// A write, write-zeroes or unmap; the caller holds the range alone.
    async fn change(&self, io: Io) -> Done {
        let pages = match self.announce(&io).await {
            Ok(pages) => pages,
            Err(status) => return io.done(status),
        };
        let (lba, nblocks) = (io.lba.0, io.nblocks as u64);
        let through = io.flags.has(Flags::FUA) || !self.shared.info.volatile_cache;
        let done = split::pass(&*self.child, lba + self.shared.superblock.data_start, io).await;
        let stage = match (done.status.is_ok(), through) {
            (true, true) => SETTLED,
            (true, false) => self.shared.flushes_begun.load(SeqCst) + 1,
            (false, _) => UNCERTAIN,
        };
        self.for_slots(lba, nblocks, &pages, |page, slot| page.set_stage(slot, stage));
        done
    }

    fn for_slots(&self, lba: u64, nblocks: u64, pages: &[Arc<Page>], mut each: impl FnMut(&Page, usize)) {
        let first_page = self.place(lba).0;
        for block in lba..lba + nblocks {
            let (page, slot) = self.place(block);
            each(&pages[(page - first_page) as usize], slot);
        }
    }

    /// Makes the new values durable next to those of what is on media now.
    async fn announce(&self, io: &Io) -> Result<PageList, Status> {
        let (lba, nblocks) = (io.lba.0, io.nblocks as u64);
        let pages = self.pages(lba, nblocks).await?;
        let flushed = self.shared.flushed.load(SeqCst);
        let (mut uncertain, mut unflushed) = (false, false);
        self.for_slots(lba, nblocks, &pages, |page, slot| {
            let stage = page.stage(slot);
            uncertain |= stage == UNCERTAIN;
            unflushed |= stage != UNCERTAIN && !is_settled(stage, flushed);
        });
        if unflushed || (uncertain && self.shared.info.volatile_cache) {
            self.flush().await?;
        }
        if uncertain {
            self.resolve(lba, nblocks, &pages).await?;
        }
        let first_page = self.place(lba).0;
        let mut changed: SmallVec<[bool; 8]> = smallvec::smallvec![false; pages.len()];
        let mut announce = |block: u64, value: u32| {
            let (page, slot) = self.place(lba + block);
            let index = (page - first_page) as usize;
            changed[index] |= pages[index].announce(slot, value);
        };
        if io.op == Op::Write {
            self.each_value(&io.bufs, announce);
        } else {
            (0..nblocks).for_each(|block| announce(block, 0));
        }
        for (page, changed) in pages.iter().zip(changed) {
            if changed {
                let version = page.changed();
                if let Err(status) = self.commit(page, version).await {
                    // Whether the page has the new values is unknown; the blocks have the old ones.
                    self.for_slots(lba, nblocks, &pages, |page, slot| page.set_stage(slot, UNCERTAIN));
                    return Err(status);
                }
            }
        }
        Ok(pages)
    }

    /// Finds out what blocks are whose last write failed.
    async fn resolve(&self, lba: u64, nblocks: u64, pages: &[Arc<Page>]) -> Result<(), Status> {
        let first_page = self.place(lba).0;
        for block in lba..lba + nblocks {
            let (page, slot) = self.place(block);
            let page = &pages[(page - first_page) as usize];
            if page.stage(slot) == UNCERTAIN {
                let value = self.value_on_media(block).await?;
                let entry = page.entry(slot);
                page.resolve(slot, entry.decided_by(value));
                page.set_stage(slot, SETTLED);
            }
        }
        Ok(())
    }

    async fn value_on_media(&self, lba: u64) -> Result<u32, Status> {
        let mut bufs = SgList::new();
        bufs.push(steps::alloc(&self.reactor, self.shared.info.block_size as usize).await?);
        let read = Io::read(Lba(lba + self.shared.superblock.data_start), 1, bufs);
        let done = self.child.submit(read).await;
        done.status.check()?;
        let mut found = 0;
        self.each_value(&done.io.bufs, |_, value| found = value);
        Ok(found)
    }

    /// Zeroes a range, a few pages at a time.
    async fn clear(&self, io: &Io) -> Result<(), Status> {
        let step = self.shared.entries_per_page * 2;
        let mut at = io.lba.0;
        while at < io.end() {
            let count = step.min(io.end() - at);
            let _alone = self.shared.ranges.lock(at, count, true).await;
            let part = Io { flags: io.flags, tag: io.tag, ..Io::new(io.op, Lba(at), count as u32) };
            self.clear_part(part).await?;
            at += count;
        }
        Ok(())
    }

    async fn clear_part(&self, io: Io) -> Result<(), Status> {
        let can = self.shared.child.info().ops.contains(io.op);
        if can {
            return self.change(io).await.status.check();
        }
        steps::write_zeroes(&Held(self), &io).await
    }

    /// Declares blocks unreadable, a few pages at a time.
    async fn spoil(&self, io: &Io) -> Result<(), Status> {
        let step = self.shared.entries_per_page * 2;
        let mut at = io.lba.0;
        while at < io.end() {
            let count = step.min(io.end() - at);
            let _alone = self.shared.ranges.lock(at, count, true).await;
            self.spoil_part(at, count).await?;
            at += count;
        }
        Ok(())
    }

    /// The caller holds the range alone.
    async fn spoil_part(&self, lba: u64, nblocks: u64) -> Result<(), Status> {
        let pages = self.pages(lba, nblocks).await?;
        if self.shared.info.volatile_cache {
            // The marks are made of what is on media, which must be the same after a loss of power.
            self.flush().await?;
        }
        let first_page = self.place(lba).0;
        // All values before any is changed: what fails has changed nothing.
        let mut values = Vec::with_capacity(nblocks as usize);
        for block in lba..lba + nblocks {
            values.push(match self.value_on_media(block).await {
                Ok(value) => Some(value),
                // It cannot be read anyhow. Whatever comes back one day is not what was written.
                Err(Status::ReadError | Status::Corrupt) => None,
                Err(status) => return Err(status),
            });
        }
        for (block, value) in (lba..).zip(values) {
            let (page, slot) = self.place(block);
            let page = &pages[(page - first_page) as usize];
            page.resolve(slot, value.unwrap_or_else(|| page.entry(slot).current) ^ MARK);
            page.set_stage(slot, SETTLED);
        }
        for page in &pages {
            let version = page.changed();
            self.commit(page, version).await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), Status> {
        let number = self.shared.flushes_begun.fetch_add(1, SeqCst) + 1;
        self.child.submit(Io::flush()).await.status.check()?;
        self.shared.flushed.fetch_max(number, SeqCst);
        Ok(())
    }

    // --- pages ------------------------------------------------------------------------------------------------------

    /// The pages of a block range.
    async fn pages(&self, lba: u64, nblocks: u64) -> Result<PageList, Status> {
        let (first, last) = (self.place(lba).0, self.place(lba + nblocks - 1).0);
        let mut pages = PageList::new();
        for index in first..=last {
            pages.push(match self.shared.cache.get(index) {
                Some(page) => page,
                None => self.load(index).await?,
            });
        }
        Ok(pages)
    }

    /// Makes `version` of a page durable; one write serves all who wait for it.
    async fn commit(&self, page: &Page, version: u64) -> Result<(), Status> {
        if page.is_durable(version) {
            return Ok(());
        }
        let _turn = self.shared.page_turns.lock(page.index, 1, true).await;
        if page.is_durable(version) {
            return Ok(());
        }
        let now = page.version();
        let mut buf = steps::alloc(&self.reactor, self.shared.info.block_size as usize).await?;
        page.snapshot(self.shared.superblock.volume_id, self.shared.flushed.load(SeqCst), buf.as_mut_slice());
        let mut bufs = SgList::new();
        bufs.push(buf);
        let write = Io { flags: Flags::FUA, ..Io::write(Lba(format::SUPERBLOCKS + page.index), 1, bufs) };
        self.child.submit(write).await.status.check()?;
        page.set_durable(now);
        Ok(())
    }

    async fn load(&self, index: u64) -> Result<Arc<Page>, Status> {
        let _turn = self.shared.page_turns.lock(index, 1, true).await;
        if let Some(page) = self.shared.cache.get(index) {
            return Ok(page);
        }
        let page = Arc::new(self.read_page(index).await?);
        let full = self.shared.cache.insert(page.clone(), self.shared.flushed.load(SeqCst));
        if full {
            // Pages stay while their blocks are not flushed.
            self.flush().await?;
        }
        Ok(page)
    }

    async fn read_page(&self, index: u64) -> Result<Page, Status> {
        let superblock = &self.shared.superblock;
        let mut bufs = SgList::new();
        bufs.push(steps::alloc(&self.reactor, self.shared.info.block_size as usize).await?);
        let mut done = self.child.submit(Io::read(Lba(format::SUPERBLOCKS + index), 1, bufs)).await;
        done.status.check()?;
        let start = index * self.shared.entries_per_page;
        let count = self.shared.entries_per_page.min(superblock.data_blocks - start);
        let bytes = done.io.bufs[0].as_mut_slice();
        let found = format::decode_page(superblock.volume_id, index, bytes)
            .map(|entries| entries.take(count as usize).collect());
        let Some(mut entries): Option<Vec<u64>> = found else {
            tracing::error!(
                device = self.shared.name,
                page = index,
                "a checksum page is damaged: its blocks count as corrupt"
            );
            return self.poison(index, start, count).await;
        };
        for (slot, bits) in entries.iter_mut().enumerate() {
            let entry = Entry::unpack(*bits);
            if entry.current != entry.previous {
                // A write was under way, or not long done, when the filter was last open.
                let value = self.value_on_media(start + slot as u64).await?;
                *bits = Entry::settled(entry.decided_by(value)).pack();
            }
        }
        Ok(Page::new(index, entries, false))
    }

    /// A page of values that its blocks do not have: they read as corrupt until they are written again.
    async fn poison(&self, index: u64, start: u64, count: u64) -> Result<Page, Status> {
        self.shared.corrupt_blocks.fetch_add(count, Relaxed);
        let mut entries = Vec::with_capacity(count as usize);
        for block in start..start + count {
            let value = self.value_on_media(block).await.unwrap_or(0);
            entries.push(Entry::settled(!value).pack());
        }
        Ok(Page::new(index, entries, true))
    }

    async fn settle(&self) -> Result<(), Status> {
        self.flush().await?;
        for page in self.shared.cache.all() {
            if page.is_pending() {
                let version = page.changed();
                self.commit(&page, version).await?;
            }
        }
        Ok(())
    }
}

/// The checksum of a block that starts at byte `from` of `bufs[index]` and goes on in the next ones; and where it ends.
fn crc_across(bufs: &[Buf], index: usize, from: usize, block_size: usize) -> (u32, (usize, usize)) {
    let mut slices: SmallVec<[&[u8]; 8]> = SmallVec::new();
    let (mut at, mut from, mut missing) = (index, from, block_size);
    while missing > 0 {
        let Some(buf) = bufs.get(at) else { return (0, (bufs.len() + 1, 0)) };
        let take = missing.min(buf.len() - from);
        slices.push(&buf.as_slice()[from..from + take]);
        missing -= take;
        (at, from) = if from + take == buf.len() { (at + 1, 0) } else { (at, from + take) };
    }
    (crc32c_slices(slices), (at, from))
}
