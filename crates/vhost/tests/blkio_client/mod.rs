//! A program that uses a door through libblkio (the `blkio` crate, which is that library): no guest, and a front end that
//! nobody here wrote. The tests of the program `remuda` have this module too.

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const REGION_BYTES: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// A started libblkio with memory for data.
pub struct Client {
    pub blkio: Blkio,
    pub queues: Vec<Blkioq>,
    region: MemoryRegion,
    /// The file that the memory is in: what libblkio sees by address is read and written here.
    memory: File,
}

impl Client {
    /// Connects, with so many queues.
    pub fn start(socket: &Path, queues: i32) -> Client {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", socket.to_str().unwrap()).unwrap();
        blkio.connect().unwrap();
        blkio.set_i32("num-queues", queues).unwrap();
        let started = blkio.start().unwrap();
        let region = blkio.alloc_mem_region(REGION_BYTES).unwrap();
        blkio.map_mem_region(&region).unwrap();
        let memory = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", region.fd)).unwrap();
        Client { blkio, queues: started.queues, region, memory }
    }

    fn buffer(&self, at: usize) -> *mut u8 {
        (self.region.addr + at) as *mut u8
    }

    pub fn fill(&self, at: usize, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at as u64).unwrap();
    }

    pub fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_exact_at(&mut bytes, at as u64).unwrap();
        bytes
    }

    /// Begins a read into the memory at `at`, or a write from there.
    pub fn begin(&mut self, queue: usize, write: bool, start: u64, at: usize, len: usize) {
        let buffer = self.buffer(at);
        match write {
            true => self.queues[queue].write(start, buffer, len, at, ReqFlags::empty()),
            false => self.queues[queue].read(start, buffer, len, at, ReqFlags::empty()),
        }
    }

    /// Hands what was begun on a queue to the other side, and waits for nothing.
    pub fn submit(&mut self, queue: usize) {
        assert_eq!(self.queues[queue].do_io(&mut [], 0, None, None).unwrap(), 0);
    }

    /// Waits for `count` requests of a queue; what each was begun with, and how it ended (0, or a negative error number).
    pub fn wait(&mut self, queue: usize, count: usize) -> Vec<(usize, i32)> {
        let mut ended = Vec::new();
        while ended.len() < count {
            let mut slots: [MaybeUninit<Completion>; 16] = std::array::from_fn(|_| MaybeUninit::uninit());
            let (want, mut left) = (slots.len().min(count - ended.len()), PATIENCE);
            let got = self.queues[queue].do_io(&mut slots[..want], 1, Some(&mut left), None).unwrap();
            for slot in &slots[..got] {
                // SAFETY: `do_io` has filled as many as it returns.
                let one = unsafe { slot.assume_init_ref() };
                ended.push((one.user_data, one.ret));
            }
        }
        ended
    }

    /// Writes bytes, or reads into the beginning of the memory; how it ended.
    pub fn write(&mut self, queue: usize, start: u64, bytes: &[u8]) -> i32 {
        self.fill(0, bytes);
        self.begin(queue, true, start, 0, bytes.len());
        self.wait(queue, 1)[0].1
    }

    pub fn read(&mut self, queue: usize, start: u64, len: usize) -> (i32, Vec<u8>) {
        self.begin(queue, false, start, 0, len);
        let ret = self.wait(queue, 1)[0].1;
        (ret, self.bytes(0, len))
    }

    pub fn flush(&mut self, queue: usize) -> i32 {
        self.queues[queue].flush(0, ReqFlags::empty());
        self.wait(queue, 1)[0].1
    }

    pub fn discard(&mut self, queue: usize, start: u64, len: u64) -> i32 {
        self.queues[queue].discard(start, len, 0, ReqFlags::empty());
        self.wait(queue, 1)[0].1
    }

    pub fn write_zeroes(&mut self, queue: usize, start: u64, len: u64, flags: ReqFlags) -> i32 {
        self.queues[queue].write_zeroes(start, len, 0, flags);
        self.wait(queue, 1)[0].1
    }
}

/// All that libblkio does with a disk of `bytes` bytes that reads as zeroes and has two queues at least: what was written on
/// one queue is read on another, deep queues end every request once, what is discarded or zeroed reads as zeroes.
pub fn use_everything(socket: &Path, bytes: u64) {
    let mut client = Client::start(socket, 2);
    assert_eq!(client.blkio.get_u64("capacity").unwrap(), bytes);
    let block = client.blkio.get_i32("request-alignment").unwrap() as usize;
    assert!(client.blkio.get_bool("flush-needed").unwrap());
    assert!(client.blkio.get_u64("max-discard-len").unwrap() > 0);
    assert!(client.blkio.get_u64("max-write-zeroes-len").unwrap() > 0);

    assert_eq!(client.write(0, 0, &vec![7; 65536]), 0);
    assert_eq!(client.flush(0), 0);
    assert_eq!(client.read(1, 0, 65536), (0, vec![7; 65536]), "what one queue wrote, another reads");
    assert_eq!(client.discard(1, 0, 16384), 0);
    assert_eq!(client.write_zeroes(0, 16384, 16384, ReqFlags::empty()), 0);
    assert_eq!(client.write_zeroes(1, 32768, 16384, ReqFlags::NO_UNMAP), 0);
    assert_eq!(client.read(0, 0, 49152), (0, vec![0; 49152]));
    assert_eq!(client.read(1, 49152, 16384), (0, vec![7; 16384]));
    assert!(client.read(0, bytes, block).0 < 0, "a read past the end is an error");
    assert!(client.write(1, bytes - block as u64, &vec![1; 2 * block]) < 0, "and so is a write across it");

    // Sixty-four on each of two queues at a time, each with bytes of its own.
    for round in 0..4u8 {
        for write in [true, false] {
            for slot in 0..128 {
                let (at, value) = (slot * 8192, slot as u8 ^ (round << 4));
                client.fill(at, &vec![if write { value } else { 0xff }; 8192]);
                client.begin(slot % 2, write, (1 << 20) + at as u64, at, 8192);
            }
            for queue in 0..2 {
                let mut ended = client.wait(queue, 64);
                ended.sort_unstable();
                let expected: Vec<_> = (0..64).map(|slot| ((2 * slot + queue) * 8192, 0)).collect();
                assert_eq!(ended, expected, "each once, and without an error");
            }
        }
        for slot in 0..128 {
            assert_eq!(client.bytes(slot * 8192, 8192), vec![slot as u8 ^ (round << 4); 8192], "slot {slot}");
        }
    }
}
