//! A model of a hard disk: memory behind one arm.
//!
//! An operation takes the arm for `seek + turn + transfer`. What begins where the last one ended, or less than
//! [`SKIP_BYTES`] behind, is reached by the platter's turning alone. Of what waits, the oldest [`QUEUE`] are served in the order of
//! their places, upwards and around (as drives and elevators do); nobody is preferred. Not modelled: a write cache, zones of different
//! speed, the track that a turn begins on. Flushes take nothing.
//!
//! Numbers of a 7,200 rpm drive: 8.5 ms for the average seek (a third of the stroke), half a turn of 4.17 ms, 250 MB/s; seeks grow
//! with the root of the distance (Ruemmler and Wilkes, An Introduction to Disk Drive Modeling, 1994).

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op};
use crate::mem::MemDevice;
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const SEEK_MIN_NS: u64 = 700_000;
/// Of the whole stroke, beyond the least.
const STROKE_NS: f64 = 13_500_000.0;
const HALF_TURN_NS: u64 = 4_170_000;
const BYTES_PER_SECOND: u64 = 250_000_000;
/// Two tracks.
const SKIP_BYTES: u64 = 2 << 20;
/// Operations that a drive sorts: the depth of native command queuing.
const QUEUE: usize = 32;

/// See the module.
pub struct ModelDiskDevice {
    memory: Arc<dyn BlockDevice>,
    arm: Arc<Mutex<Arm>>,
    seeks: bool,
}

/// Locked for moments, by reactors that wait for milliseconds.
struct Arm {
    bytes: u64,
    /// Where it is, a byte.
    at: u64,
    free_ns: u64,
    /// What waits, by age: numbers and first bytes.
    waiting: Vec<(u64, u64)>,
    next: u64,
}

impl ModelDiskDevice {
    /// A disk of `bytes` bytes, in blocks of 4 KiB. Without `seeks` it does not say that it is one.
    pub fn new(name: &str, bytes: u64, seeks: bool) -> Result<ModelDiskDevice, DeviceError> {
        let memory = Arc::new(MemDevice::new(name, 4096, bytes / 4096, 0)?);
        let arm = Arm { bytes, at: 0, free_ns: 0, waiting: Vec::new(), next: 0 };
        Ok(ModelDiskDevice { memory, arm: Arc::new(Mutex::new(arm)), seeks })
    }
}

impl Arm {
    /// The number of what is served next.
    fn chosen(&self) -> Option<u64> {
        let sorted = &self.waiting[..self.waiting.len().min(QUEUE)];
        let place = |(id, at): &(u64, u64)| ((*at < self.at, *at, *id), *id);
        sorted.iter().map(place).min().map(|(_, id)| id)
    }

    /// What an operation takes from here.
    fn service_ns(&self, start: u64, bytes: u64) -> u64 {
        let transfer = |bytes: u64| (bytes as u128 * 1_000_000_000 / BYTES_PER_SECOND as u128) as u64;
        match start.checked_sub(self.at) {
            Some(skip) if skip < SKIP_BYTES => transfer(skip + bytes),
            _ => {
                let distance = start.abs_diff(self.at) as f64 / self.bytes as f64;
                SEEK_MIN_NS + (STROKE_NS * distance.sqrt()) as u64 + HALF_TURN_NS + transfer(bytes)
            }
        }
    }

    /// Takes the arm for a waiting operation if it is its turn: when that ends. Otherwise when to ask again.
    fn serve(&mut self, id: u64, bytes: u64, now_ns: u64) -> Result<u64, u64> {
        if now_ns < self.free_ns || self.chosen() != Some(id) {
            return Err(self.free_ns);
        }
        let index = self.waiting.iter().position(|(other, _)| *other == id).expect("what is chosen waits");
        let (_, start) = self.waiting.remove(index);
        self.free_ns = now_ns + self.service_ns(start, bytes);
        self.at = start + bytes;
        Ok(self.free_ns)
    }
}

impl BlockDevice for ModelDiskDevice {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn kind(&self) -> &'static str {
        "model-disk"
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { loans: false, ..self.memory.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let (memory, arm, reactor) = (self.memory.open_channel(reactor)?, self.arm.clone(), reactor.clone());
        Ok(Rc::new(DiskChannel { memory, arm, reactor }))
    }

    fn seeks(&self) -> bool {
        self.seeks
    }
}

struct DiskChannel {
    memory: Rc<dyn Channel>,
    arm: Arc<Mutex<Arm>>,
    reactor: Rc<Reactor>,
}

impl Channel for DiskChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op == Op::Flush {
            return self.memory.submit(io);
        }
        let (start, bytes) = (io.lba.0 * 4096, io.nblocks as u64 * 4096);
        let (memory, arm, reactor) = (self.memory.clone(), self.arm.clone(), self.reactor.clone());
        let id = {
            let mut arm = arm.lock().expect("nothing panics while holding the arm");
            let id = arm.next;
            arm.next += 1;
            arm.waiting.push((id, start));
            id
        };
        IoFuture::steps(&self.reactor, async move {
            // In the turn in which they come, none has been served: all of them are sorted.
            reactor.yield_now().await;
            let end_ns = loop {
                let now_ns = reactor.clock_ns();
                let served = arm.lock().expect("nothing panics while holding the arm").serve(id, bytes, now_ns);
                match served {
                    Ok(end_ns) => break end_ns,
                    Err(free_ns) if free_ns > now_ns => reactor.sleep_until(free_ns).await,
                    Err(_) => reactor.yield_now().await,
                }
            };
            reactor.sleep_until(end_ns).await;
            memory.submit(io).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_is_near_and_the_nearest_above_comes_first() {
        let mut arm =
            Arm { bytes: 1 << 40, at: 0, free_ns: 0, waiting: vec![(0, 9 << 30), (1, 5 << 30), (2, 7 << 30)], next: 3 };
        assert_eq!(arm.service_ns(0, 1 << 20), 4_194_304, "250 MB/s");
        assert_eq!(arm.service_ns((1 << 40) / 3, 0) / 100_000, 126, "seek and half a turn");
        assert_eq!(arm.serve(0, 4096, 0), Err(0));
        let end = arm.serve(1, 4096, 0).expect("the nearest");
        assert_eq!(arm.serve(2, 4096, 0), Err(end));
        arm.waiting.push((3, 1 << 30));
        assert!(arm.serve(3, 4096, end).is_err(), "it is behind");
        assert!(arm.serve(2, 4096, end).is_ok());
    }
}
