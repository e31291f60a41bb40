//! [`ModelSsdDevice`]: another device with the times of a modelled drive.
//!
//! The device below keeps the data and decides what is right (a zoned one also what zones do); an operation that it has done
//! ends when the model says so. The model is behind one mutex, held for as long as one step of it takes and never across an
//! await, because its dies serve all reactors; reactors must share a clock.

use super::ssd::{Ssd, SsdCounters};
use super::{Request, SsdModel, Work};
use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op};
use reactor::{IoFuture, Reactor};
use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// See the module.
pub struct ModelSsdDevice {
    name: String,
    child: Arc<dyn BlockDevice>,
    model: Arc<Mutex<Ssd>>,
    streams: u16,
}

impl ModelSsdDevice {
    /// A drive whose data `child` keeps. The drive exports as much as the child has, in zones if the child has zones: then the
    /// capacity of these must be the model's superblocks.
    pub fn new(name: &str, child: Arc<dyn BlockDevice>, model: SsdModel) -> Result<ModelSsdDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let info = child.info();
        let holds = match info.zoned {
            Some(zoned) => info.blocks.div_ceil(zoned.zone_blocks) * zoned.zone_capacity_blocks,
            None => info.blocks,
        } * u64::from(info.block_size);
        if info.zoned.is_some() != model.zoned {
            return Err(refused("the child has zones and the model none, or the other way round".to_string()));
        }
        let zone_bytes = info.zoned.map(|zoned| zoned.zone_capacity_blocks * u64::from(info.block_size));
        if zone_bytes.is_some_and(|bytes| bytes != model.superblock_bytes) {
            return Err(refused(format!("zones hold other than {} bytes, a superblock", model.superblock_bytes)));
        }
        if holds > model.exported_bytes {
            return Err(refused(format!("the child has {holds} bytes, the model only {}", model.exported_bytes)));
        }
        let streams = model.streams;
        let model = Arc::new(Mutex::new(Ssd::new(model).map_err(refused)?));
        Ok(ModelSsdDevice { name: name.to_string(), child, model, streams })
    }

    /// What the drive has done.
    pub fn counters(&self) -> SsdCounters {
        lock(&self.model).counters()
    }
}

fn lock(model: &Mutex<Ssd>) -> std::sync::MutexGuard<'_, Ssd> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BlockDevice for ModelSsdDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "model-ssd"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { streams: self.streams, ..self.child.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let (model, info) = (self.model.clone(), self.child.info());
        let child = self.child.open_channel(reactor)?;
        Ok(Rc::new(ModelSsdChannel(Rc::new(Inner { child, info, reactor: reactor.clone(), model }))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }
}

struct ModelSsdChannel(Rc<Inner>);

struct Inner {
    child: Rc<dyn Channel>,
    info: DeviceInfo,
    reactor: Rc<Reactor>,
    model: Arc<Mutex<Ssd>>,
}

/// An operation under way; gives back what it holds of the model where it is dropped before its end.
struct Running {
    model: Arc<Mutex<Ssd>>,
    work: Work,
}

impl Running {
    async fn run(mut self, reactor: &Rc<Reactor>) {
        loop {
            // A step at a time: the guard must not be held while it sleeps.
            let wait = lock(&self.model).step(&mut self.work, reactor.now_ns());
            match wait {
                Some(until) => reactor.sleep_until(until).await,
                None => return,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.model).abandon(&mut self.work);
    }
}

impl Inner {
    /// What an operation, as it was done, costs the drive, one after the other.
    fn requests(&self, io: &Io) -> SmallVec<[Request; 2]> {
        let block = u64::from(self.info.block_size);
        let (offset, bytes) = (self.place(io.lba.0), u64::from(io.nblocks) * block);
        let read = Request::Read { offset, bytes };
        let write = match self.info.zoned {
            Some(zoned) => Request::Append { zone: zoned.zone_of(io.lba.0), bytes },
            None => Request::Write { offset, bytes, stream: io.stream },
        };
        let trim = Request::Trim { offset, bytes };
        let mut requests = SmallVec::new();
        match io.op {
            Op::Read | Op::Compare | Op::Verify => requests.push(read),
            Op::Write | Op::ZoneAppend => requests.push(write),
            Op::WriteZeroes if self.info.zoned.is_some() => requests.push(write),
            Op::WriteZeroes | Op::Unmap | Op::WriteUncorrectable => requests.push(trim),
            Op::CompareAndWrite => requests.extend([read, write]),
            Op::Copy => {
                requests.extend([Request::Read { offset: self.place(io.arg), bytes }, write]);
            }
            Op::ZoneReset => self.zones(io).for_each(|zone| requests.push(Request::Reset { zone })),
            Op::ZoneFinish => self.zones(io).for_each(|zone| requests.push(Request::Finish { zone })),
            // What has been acknowledged survives a loss of power, so a flush has nothing to do.
            Op::Flush | Op::ZoneOpen | Op::ZoneClose | Op::ZoneOffline | Op::ZoneReport | Op::CryptoErase => {}
            Op::ZoneSetExtension | Op::ZoneReadExtension => {}
        }
        requests
    }

    /// The model's offset of a block: its zones have no gaps between them.
    fn place(&self, lba: u64) -> u64 {
        let blocks = match self.info.zoned {
            Some(zoned) => zoned.zone_of(lba) * zoned.zone_capacity_blocks + lba % zoned.zone_blocks,
            None => lba,
        };
        blocks * u64::from(self.info.block_size)
    }

    fn zones(&self, io: &Io) -> std::ops::Range<u64> {
        let zoned = self.info.zoned.expect("zones are managed where there are zones");
        if io.flags.has(crate::io::Flags::ALL_ZONES) {
            return 0..self.info.blocks.div_ceil(zoned.zone_blocks);
        }
        let zone = zoned.zone_of(io.lba.0);
        zone..zone + 1
    }
}

impl Channel for ModelSsdChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        // The child has it now, so what was submitted in order is done in order.
        let begun = IoFuture::begin(&self.0.child, |child| child.submit(io));
        let inner = self.0.clone();
        IoFuture::steps(&self.0.reactor, async move {
            let done = match begun {
                Ok(done) => done,
                Err(begun) => begun.await,
            };
            if done.status.is_ok() {
                for request in inner.requests(&done.io) {
                    let work = lock(&inner.model).begin(request);
                    Running { model: inner.model.clone(), work }.run(&inner.reactor).await;
                }
            }
            done
        })
    }

    fn abort(&self, tag: u64) {
        self.0.child.abort(tag);
    }
}
