//! A capacity device that gives back what was read in other memory than it was given, a block in each piece: as one over several
//! devices does, where some have an answer of their own.

use crate::common::*;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Lba, Op, Status};
use engine::{LogDevice, PoolDevices};
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// In pieces from when it is said so.
struct Pieces(Arc<dyn BlockDevice>, Arc<AtomicBool>);

impl BlockDevice for Pieces {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn kind(&self) -> &'static str {
        "pieces"
    }

    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(PiecesChannel(self.0.open_channel(reactor)?, reactor.clone(), self.1.clone())))
    }
}

struct PiecesChannel(Rc<dyn Channel>, Rc<Reactor>, Arc<AtomicBool>);

impl Channel for PiecesChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        IoFuture::new(async move {
            let mut done = self.0.submit(io).await;
            if done.io.op == Op::Read && self.2.load(Relaxed) {
                let mut pieces = SgList::new();
                for block in done.io.bufs.iter().flat_map(|buf| buf.as_slice().chunks(4096)) {
                    let mut piece = self.1.pool().alloc(block.len()).await;
                    piece.as_mut_slice().copy_from_slice(block);
                    pieces.push(piece);
                }
                done.io.bufs = pieces;
            }
            done
        })
    }
}

#[test]
fn parts_of_blocks_are_read_from_a_device_that_answers_in_pieces() {
    let reactor = reactor();
    let there = reactor.clone();
    reactor.block_on(async move {
        let (log, capacity) = (LogDevice::Block(mem("log", 4096, 8 << 20)), mem("capacity", 4096, 64 << 20));
        let in_pieces = Arc::new(AtomicBool::new(false));
        let devices = PoolDevices { log, capacity: Arc::new(Pieces(capacity, in_pieces.clone())) };
        let (pool, volume) = pool_with_volume(&there, devices.clone(), 1, 8192, 9).await;
        let channel = volume.open_channel(&there).unwrap();
        let content: Vec<u8> = (0..64 * 512).map(|at| (at / 512 + at) as u8).collect();
        let mut buf = there.pool().alloc(content.len()).await;
        buf.as_mut_slice().copy_from_slice(&content);
        assert_eq!(channel.submit(Io::write(Lba(0), 64, one(buf))).await.status, Status::Ok);
        pool.settle(&there).await.unwrap();
        drop(channel);
        pool.close(&there).await;
        // What is read now is on the capacity device alone.
        let pool = open(there.clone(), devices).await.unwrap();
        let volume: Arc<dyn BlockDevice> = pool.volume("v").unwrap();
        let channel = volume.open_channel(&there).unwrap();
        in_pieces.store(true, Relaxed);
        for (first, count) in [(3, 24), (0, 9), (7, 2), (15, 49), (8, 16), (5, 1)] {
            let buf = one(there.pool().alloc(count * 512).await);
            let done = channel.submit(Io::read(Lba(first as u64), count as u32, buf)).await;
            assert_eq!(done.status, Status::Ok, "{count} sectors from {first}");
            let found: Vec<u8> = done.io.bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
            assert!(found == content[first * 512..(first + count) * 512], "{count} sectors from {first}");
        }
        pool.close(&there).await;
    });
}
