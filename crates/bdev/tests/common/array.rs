//! Parity devices on members that fail when they are told to, and blocks that tell where and when they were written.

use bdev::{BlockDevice, ErrorDevice, ErrorRule, Fault, Io, Lba, MemberState, Op, ParityDevice, ParityOptions, Status};
use reactor::{Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

use super::mem;

pub type Members = Vec<Option<Arc<dyn BlockDevice>>>;

pub fn create() -> ParityOptions {
    ParityOptions { create: true, chunk_bytes: 8 << 10, head_bytes: 64 << 10, ..ParityOptions::default() }
}

pub async fn open(reactor: &Rc<Reactor>, members: &Members, options: ParityOptions) -> ParityDevice {
    ParityDevice::open(reactor, "parity", members.clone(), &options).await.unwrap()
}

pub async fn refusal(reactor: &Rc<Reactor>, members: &Members, options: ParityOptions) -> String {
    match ParityDevice::open(reactor, "parity", members.clone(), &options).await {
        Ok(_) => panic!("it opened"),
        Err(error) => error.to_string(),
    }
}

pub fn faulty(count: usize) -> (Vec<Arc<ErrorDevice>>, Members) {
    let device = |n| Arc::new(ErrorDevice::new(&format!("d{n}"), mem(&format!("m{n}"), 200), &[], 1).unwrap());
    let devices: Vec<_> = (0..count).map(device).collect();
    let members = devices.iter().map(|device| Some(device.clone() as Arc<dyn BlockDevice>)).collect();
    (devices, members)
}

pub fn fails(ops: &[Op], status: Status) -> ErrorRule {
    ErrorRule::always(ops, Fault::Fail(status))
}

/// A byte that tells the block and the time of its writing.
pub fn byte(lba: u64, round: u8) -> u8 {
    (lba as u8).wrapping_mul(31) ^ round.wrapping_mul(85)
}

pub async fn write(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64, nblocks: u32, round: u8) -> Status {
    let channel = device.open_channel(reactor).unwrap();
    let mut bufs = SgList::new();
    for block in lba..lba + nblocks as u64 {
        let mut buf = reactor.pool().alloc(4096).await;
        buf.as_mut_slice().fill(byte(block, round));
        bufs.push(buf);
    }
    let done = channel.submit(Io::write(Lba(lba), nblocks, bufs)).await;
    assert!(done.io.bufs.iter().all(|buf| !buf.is_shared()), "buffers come back exclusive");
    done.status
}

pub async fn read(reactor: &Rc<Reactor>, device: &dyn BlockDevice, lba: u64, nblocks: u32) -> Result<Vec<u8>, Status> {
    let channel = device.open_channel(reactor).unwrap();
    let mut bufs = SgList::new();
    bufs.push(reactor.pool().alloc(nblocks as usize * 4096).await);
    let done = channel.submit(Io::read(Lba(lba), nblocks, bufs)).await;
    done.status.check()?;
    let mut bytes = vec![0; nblocks as usize * 4096];
    reactor::buf::sg_copy_to(&done.io.bufs, &mut bytes);
    let block = |bytes: &[u8]| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixed block");
        bytes[0]
    };
    Ok(bytes.chunks(4096).map(block).collect())
}

pub fn expected(lba: u64, nblocks: u32, round: u8) -> Result<Vec<u8>, Status> {
    Ok((lba..lba + nblocks as u64).map(|block| byte(block, round)).collect())
}

/// Writes the head and the first rows.
pub async fn fill(reactor: &Rc<Reactor>, device: &ParityDevice, rows: u64, round: u8) {
    let info = device.info().rows.unwrap();
    for lba in 0..info.start {
        assert_eq!(write(reactor, device, lba, 1, round).await, Status::Ok);
    }
    for row in 0..rows {
        let lba = info.start + row * info.blocks as u64;
        assert_eq!(write(reactor, device, lba, info.blocks, round).await, Status::Ok, "row {row}");
    }
}

/// Reads all that [`fill`] wrote, in pieces of several sizes.
pub async fn check(reactor: &Rc<Reactor>, device: &ParityDevice, rows: u64, round: u8) {
    let info = device.info().rows.unwrap();
    let end = info.start + rows * info.blocks as u64;
    for step in [1, 3, 7, 16] {
        let mut lba = 0;
        while lba < end {
            let count = (end - lba).min(step) as u32;
            assert_eq!(read(reactor, device, lba, count).await, expected(lba, count, round), "{count} from {lba}");
            lba += count as u64;
        }
    }
}

pub fn states(device: &ParityDevice) -> Vec<MemberState> {
    device.members().iter().map(|member| member.state).collect()
}

pub async fn read_version(device: &ParityDevice, reactor: &Rc<Reactor>, lba: u64, version: u8) -> Result<u8, Status> {
    let channel = device.open_channel(reactor).unwrap();
    let bufs = SgList::from_iter([reactor.pool().alloc(4096).await]);
    let done = channel.submit(Io::read_version(Lba(lba), 1, version, bufs)).await;
    assert_eq!((done.io.lba.0, done.io.arg), (lba, version as u64));
    done.status.check().map(|()| done.io.bufs[0].as_slice()[0])
}
