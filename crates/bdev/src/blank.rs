//! Whether a device is as new: nothing but zeroes where other formats keep what they are known by.

use crate::device::{Channel, DeviceInfo};
use crate::io::{Io, Lba, Status};
use crate::steps;
use reactor::{Reactor, SgList};
use std::rc::Rc;

/// At the start and at the end of a device, what has to be zero for it to be blank. Others begin late: Btrfs at 64 KiB,
/// labels of ZFS at 8 KiB.
pub(crate) const EDGE_BYTES: u64 = 128 << 10;

/// Whether the start and the end of a device are zero, as far as other formats keep what they are known by there.
pub(crate) async fn is_blank(reactor: &Rc<Reactor>, channel: &dyn Channel, info: &DeviceInfo) -> Result<bool, Status> {
    let edge = (EDGE_BYTES / info.block_size as u64).min(info.blocks);
    let step = info.max_io_blocks.max(1) as u64;
    for start in [0, info.blocks - edge] {
        let mut at = start;
        while at < start + edge {
            let count = step.min(start + edge - at);
            let buf = steps::alloc(reactor, count as usize * info.block_size as usize).await?;
            let done = channel.submit(Io::read(Lba(at), count as u32, SgList::from_iter([buf]))).await;
            done.status.check()?;
            if done.io.bufs.iter().any(|buf| buf.as_slice().iter().any(|byte| *byte != 0)) {
                return Ok(false);
            }
            at += count;
        }
    }
    Ok(true)
}
