//! What stacks under test are made of: any block device behind plain asynchronous reads and writes of zeroes, and the model of
//! a cache device.

use super::host::Server;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Lba, Op};
use reactor::{IoFuture, Reactor, Region, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A way to a device for what does not care for data.
pub struct Disk {
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    zeroes: Region,
    reactor: Rc<Reactor>,
}

/// Where and why an operation failed.
pub type DiskError = String;

/// Most bytes of one operation.
const OPERATION_BYTES_MAX: u64 = 1 << 20;

impl Disk {
    pub fn open(device: &Arc<dyn BlockDevice>, reactor: &Rc<Reactor>) -> Result<Disk, DiskError> {
        let channel = device.open_channel(reactor).map_err(|error| error.to_string())?;
        let zeroes = Region::anonymous(OPERATION_BYTES_MAX as usize).ok_or("no memory for a buffer of zeroes")?;
        Ok(Disk { channel, info: device.info(), zeroes, reactor: reactor.clone() })
    }

    /// One operation; its range is cut at what the device takes at once.
    pub async fn perform(&self, op: Op, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let block = u64::from(self.info.block_size);
        let step = OPERATION_BYTES_MAX.min(u64::from(self.info.max_io_blocks) * block);
        let mut at = 0;
        while at < bytes {
            let part = step.min(bytes - at);
            // Appends name the zone, which begins where the range does.
            let from = if op == Op::ZoneAppend { offset } else { offset + at };
            self.once(op, from / block, part).await?;
            at += part;
        }
        Ok(())
    }

    /// Makes the zone that begins at `offset` empty.
    pub async fn reset(&self, offset: u64) -> Result<(), DiskError> {
        self.once(Op::ZoneReset, offset / u64::from(self.info.block_size), 0).await
    }

    async fn once(&self, op: Op, lba: u64, bytes: u64) -> Result<(), DiskError> {
        let blocks = (bytes / u64::from(self.info.block_size)) as u32;
        let mut io = Io::new(op, Lba(lba), blocks);
        match op {
            Op::Read if self.info.loans => io.flags = Flags::LOAN,
            Op::Read => io.bufs = self.buffers(bytes).await,
            Op::Write | Op::ZoneAppend => io.bufs = SgList::from_iter([self.zeroes.loan(0, bytes as usize)]),
            _ => {}
        }
        let done = self.channel.submit(io).await;
        done.status.check().map_err(|status| format!("{} of {bytes} bytes at block {lba}: {status}", op.name()))
    }

    async fn buffers(&self, bytes: u64) -> SgList {
        let part = reactor::BUF_BYTES_MAX as u64;
        let mut list = SgList::new();
        let mut left = bytes;
        while left > 0 {
            let buf = self.reactor.pool().alloc(part.min(left) as usize).await;
            left -= buf.len() as u64;
            list.push(buf);
        }
        list
    }
}

/// A cache drive as a model: one server, in the order of arrival, and a latency that does not occupy it.
#[derive(Clone, Copy, Debug)]
pub struct CacheModel {
    pub occupancy_ns_min: u64,
    pub write_bytes_per_us: u64,
    pub read_bytes_per_us: u64,
    pub latency_ns: u64,
}

/// An Optane P5800X, as its data sheet has it.
pub const CACHE: CacheModel =
    CacheModel { occupancy_ns_min: 670, write_bytes_per_us: 6_100, read_bytes_per_us: 7_200, latency_ns: 6_000 };

/// A device with the times of a cache drive; another one keeps the data. One reactor uses it.
pub struct CacheDevice {
    model: CacheModel,
    child: Arc<dyn BlockDevice>,
    /// Of all its channels.
    server: Arc<Server>,
    written_bytes: Arc<AtomicU64>,
}

impl CacheDevice {
    pub fn new(child: Arc<dyn BlockDevice>, model: CacheModel) -> CacheDevice {
        CacheDevice { model, child, server: Arc::default(), written_bytes: Arc::default() }
    }

    /// Bytes written to it so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }
}

impl BlockDevice for CacheDevice {
    fn name(&self) -> &str {
        "cache"
    }

    fn kind(&self) -> &'static str {
        "model"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(CacheChannel {
            model: self.model,
            child: self.child.open_channel(reactor)?,
            block_size: u64::from(self.child.info().block_size),
            reactor: reactor.clone(),
            server: self.server.clone(),
            written_bytes: self.written_bytes.clone(),
        }))
    }
}

struct CacheChannel {
    model: CacheModel,
    child: Rc<dyn Channel>,
    block_size: u64,
    reactor: Rc<Reactor>,
    server: Arc<Server>,
    written_bytes: Arc<AtomicU64>,
}

impl Channel for CacheChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let rate = if io.op.modifies() { self.model.write_bytes_per_us } else { self.model.read_bytes_per_us };
        let bytes = if io.op == Op::Flush { 0 } else { u64::from(io.nblocks) * self.block_size };
        if io.op == Op::Write {
            self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        let occupied = (bytes * 1000 / rate).max(self.model.occupancy_ns_min);
        let end = self.server.serve(self.reactor.now_ns(), occupied) + self.model.latency_ns;
        let begun = IoFuture::begin(&self.child, |child| child.submit(io));
        let reactor = self.reactor.clone();
        IoFuture::steps(&self.reactor, async move {
            let done = match begun {
                Ok(done) => done,
                Err(begun) => begun.await,
            };
            reactor.sleep_until(end).await;
            done
        })
    }
}
