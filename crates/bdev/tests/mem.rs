//! A memory device between cores.

use crate::common::*;
use bdev::{Io, Lba, Status};
use reactor::SgList;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks that two cores race for; a copy of them takes long enough to be overtaken.
const BLOCKS: u32 = 16;

#[test]
fn a_read_beside_a_write_of_another_core_is_of_one_moment() {
    let device = mem("m", 64);
    let ended = Arc::new(AtomicBool::new(false));
    let (written, reading) = (device.clone(), ended.clone());
    let writer = std::thread::spawn(move || {
        let reactor = reactor();
        let channel = written.open_channel(&reactor).unwrap();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let mut value = 0u8;
            while !reading.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                let mut buf = inner.pool().alloc(BLOCKS as usize * 4096).await;
                buf.as_mut_slice().fill(value);
                let done = channel.submit(Io::write(Lba(8), BLOCKS, SgList::from_iter([buf]))).await;
                assert_eq!(done.status, Status::Ok);
            }
        });
    });
    let reactor = reactor();
    let channel = device.open_channel(&reactor).unwrap();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for _ in 0..20_000 {
            let buf = inner.pool().alloc(BLOCKS as usize * 4096).await;
            let done = channel.submit(Io::read(Lba(8), BLOCKS, SgList::from_iter([buf]))).await;
            assert_eq!(done.status, Status::Ok);
            let bytes = done.io.bufs[0].as_slice();
            let other = bytes.iter().find(|byte| **byte != bytes[0]);
            assert_eq!(other, None, "beside {} in one read", bytes[0]);
        }
        ended.store(true, Ordering::Relaxed);
    });
    writer.join().unwrap();
}
