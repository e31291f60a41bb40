//! Drives as models: memory behind service times, and behind how many operations a drive serves at a time.
//!
//! Each operation takes `base + bytes * parallel / bandwidth` on one of `parallel` servers, in the order of arrival. So
//! latency is flat up to that depth and grows with depth beyond it, and large operations reach the bandwidth. Not modelled:
//! a drive's write buffer, garbage collection, seeks that depend on distance. Queues are per channel: one reactor uses it.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, MemDevice, Op};
use reactor::{IoFuture, Reactor};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What one kind of operation takes.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// Before the first byte.
    pub base_ns: u64,
    /// Of all servers together.
    pub bytes_per_second: u64,
    /// Operations served at a time.
    pub parallel: u64,
}

/// A drive.
#[derive(Clone, Copy, Debug)]
pub struct DriveModel {
    /// What it stands for.
    pub name: &'static str,
    /// Reads.
    pub read: Service,
    /// Everything that changes blocks.
    pub write: Service,
}

/// An NVMe drive as in the seed's figure (P4510, 4 TB): 16 KiB reads take 125 us, writes 100 us; at depth 16 they take 200 and
/// 300 us, hence 10 and 5 at a time. Bandwidth: 3.0 and 2.9 GB/s, the drive's class.
pub const NVME: DriveModel = DriveModel {
    name: "NVMe",
    read: Service { base_ns: 70_400, bytes_per_second: 3_000_000_000, parallel: 10 },
    write: Service { base_ns: 71_800, bytes_per_second: 2_900_000_000, parallel: 5 },
};

/// A hard disk as in the same figure: 16 KiB reads take 10 ms, writes 4 ms; 50 and 20 ms at depth 16, hence about 3 at a time
/// by reordering. Bandwidth: 250 MB/s.
pub const HDD: DriveModel = DriveModel {
    name: "HDD",
    read: Service { base_ns: 9_803_000, bytes_per_second: 250_000_000, parallel: 3 },
    write: Service { base_ns: 3_803_000, bytes_per_second: 250_000_000, parallel: 3 },
};

impl Service {
    fn ns(&self, bytes: u64) -> u64 {
        self.base_ns + (bytes as u128 * self.parallel as u128 * 1_000_000_000 / self.bytes_per_second as u128) as u64
    }
}

impl DriveModel {
    /// Its parameters.
    pub fn to_json(self) -> Value {
        let service = |service: Service| {
            json!({
                "base_ns": service.base_ns, "bytes_per_second": service.bytes_per_second, "parallel": service.parallel,
            })
        };
        json!({ "name": self.name, "read": service(self.read), "write": service(self.write) })
    }
}

/// See the module.
pub struct ModelDevice {
    model: DriveModel,
    memory: Arc<dyn BlockDevice>,
}

impl ModelDevice {
    /// A drive of `bytes` bytes.
    pub fn new(model: DriveModel, bytes: u64) -> Result<ModelDevice, DeviceError> {
        let memory = Arc::new(MemDevice::new(model.name, 4096, bytes / 4096, 0)?);
        Ok(ModelDevice { model, memory })
    }
}

impl BlockDevice for ModelDevice {
    fn name(&self) -> &str {
        self.model.name
    }

    fn kind(&self) -> &'static str {
        "model"
    }

    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let servers = |service: Service| RefCell::new(vec![0; service.parallel as usize]);
        Ok(Rc::new(ModelChannel {
            reactor: reactor.clone(),
            memory: self.memory.open_channel(reactor)?,
            block_size: self.memory.info().block_size,
            read: (self.model.read, servers(self.model.read)),
            write: (self.model.write, servers(self.model.write)),
        }))
    }
}

struct ModelChannel {
    reactor: Rc<Reactor>,
    memory: Rc<dyn Channel>,
    block_size: u32,
    /// When each server is free.
    read: (Service, RefCell<Vec<u64>>),
    write: (Service, RefCell<Vec<u64>>),
}

impl Channel for ModelChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (service, servers) = match io.op {
            Op::Flush => return self.memory.submit(io),
            op if op.modifies() => &self.write,
            _ => &self.read,
        };
        let bytes = if matches!(io.op, Op::Read | Op::Write) { io.nblocks as u64 * self.block_size as u64 } else { 0 };
        let mut servers = servers.borrow_mut();
        let server = servers.iter_mut().min().expect("a drive serves at least one at a time");
        let end = self.reactor.clock_ns().max(*server) + service.ns(bytes);
        *server = end;
        let (reactor, memory) = (self.reactor.clone(), self.memory.clone());
        IoFuture::steps(&self.reactor, async move {
            reactor.sleep_until(end).await;
            memory.submit(io).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_take_what_the_figure_says_for_16_kib() {
        for (service, us) in [(NVME.read, 125), (NVME.write, 100), (HDD.read, 10_000), (HDD.write, 4_000)] {
            assert_eq!((service.ns(16_384) + 500) / 1000, us, "{service:?}");
        }
    }
}
