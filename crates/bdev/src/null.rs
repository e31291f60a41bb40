//! A device without a medium: every operation succeeds at once. Reads leave the caller's buffers as they are (or zero
//! them, when asked to) and lend zeroes; what is written is gone. For measuring what everything else costs.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op, OpSet, Status};
use reactor::{IoFuture, Reactor, Region};
use std::rc::Rc;

/// See the module.
pub struct NullDevice {
    name: String,
    info: DeviceInfo,
    zero_reads: bool,
    zeroes: Region,
}

const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Unmap, Op::Flush, Op::Verify]);

impl NullDevice {
    /// A device of `blocks` blocks; with `zero_reads`, reads fill the caller's buffers with zeroes.
    pub fn new(name: &str, block_size: u32, blocks: u64, zero_reads: bool) -> Result<NullDevice, DeviceError> {
        let refuse = |reason: &str| DeviceError::Config { device: name.to_string(), reason: reason.to_string() };
        if !block_size.is_power_of_two() || !(512..=65_536).contains(&block_size) || blocks == 0 {
            return Err(refuse(
                "expected a block size that is a power of two from 512 to 65536, and at least one block",
            ));
        }
        let basic = DeviceInfo::basic(block_size, blocks);
        let info = DeviceInfo { ops: OPS, loans: true, unmap_reads_zero: true, ..basic };
        let lent_bytes_max = info.max_io_blocks as usize * block_size as usize;
        let zeroes = Region::anonymous(lent_bytes_max).ok_or_else(|| refuse("no memory for a page of zeroes"))?;
        Ok(NullDevice { name: name.to_string(), info, zero_reads, zeroes })
    }
}

impl BlockDevice for NullDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "null"
    }

    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn open_channel(&self, _reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(NullChannel { info: self.info, zero_reads: self.zero_reads, zeroes: self.zeroes.clone() }))
    }
}

struct NullChannel {
    info: DeviceInfo,
    zero_reads: bool,
    zeroes: Region,
}

impl Channel for NullChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if io.op == Op::Read {
            if io.bufs.is_empty() {
                io.bufs.push(self.zeroes.loan(0, io.nblocks as usize * self.info.block_size as usize));
            } else if self.zero_reads {
                reactor::buf::sg_zero(&mut io.bufs);
            }
        }
        IoFuture::ready(io.done(Status::Ok))
    }
}
