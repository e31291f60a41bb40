//! A device in memory: zeroed at start, gone at exit. Reads can lend its memory.
//!
//! Every operation completes inside `submit`. Operations that change or compare blocks lock the stripes they touch
//! (see `mem_stripes`): without that a write of another core could fall between the two halves of a
//! compare-and-write. Reads lock nothing, and copy again what was written meanwhile: what they return was there at one
//! moment. Only a loan shows what comes later, to those who asked for one.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Io, Op, OpSet, Status};
use crate::mem_marks::Marks;
use crate::mem_stripes::Stripes;
use crate::mem_zeroes::Zeroes;
use reactor::{IoFuture, Reactor, Region, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the module.
pub struct MemDevice {
    name: String,
    block_size: u32,
    shared: Arc<Shared>,
}

struct Shared {
    region: Region,
    blocks: AtomicU64,
    stripes: Stripes,
    /// Blocks that cannot be read.
    marks: Marks,
    zeroes: Zeroes,
}

impl MemDevice {
    /// A device of `blocks` blocks that may later grow to `blocks_max`; memory is taken from the system as it is touched.
    pub fn new(name: &str, block_size: u32, blocks: u64, blocks_max: u64) -> Result<MemDevice, DeviceError> {
        let refuse = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        if !block_size.is_power_of_two() || !(512..=65_536).contains(&block_size) || blocks == 0 {
            return Err(refuse(format!(
                "block size {block_size} and {blocks} blocks: expected a power of two from 512 to 65536, and at least one block"
            )));
        }
        let bytes = blocks_max.max(blocks).checked_mul(block_size as u64).and_then(|bytes| usize::try_from(bytes).ok());
        let region = bytes.and_then(Region::anonymous);
        let region = region.ok_or_else(|| refuse("more memory than the system can address".to_string()))?;
        let marks = Marks::new(region.len() as u64 / u64::from(block_size));
        let (blocks, zeroes) = (AtomicU64::new(blocks), Zeroes::new(region.len()));
        let shared = Arc::new(Shared { region, blocks, stripes: Stripes::default(), marks, zeroes });
        Ok(MemDevice { name: name.to_string(), block_size, shared })
    }

    /// What a device of so many blocks is.
    pub fn plan(block_size: u32, blocks: u64) -> DeviceInfo {
        DeviceInfo {
            ops: OpSet::BLOCKS.union(OpSet::of(&[Op::WriteUncorrectable])),
            unmap_reads_zero: true,
            loans: true,
            atomic_write_blocks: (1 << 20) / block_size,
            compare_and_write_blocks: (1 << 20) / block_size,
            ..DeviceInfo::basic(block_size, blocks)
        }
    }
}

impl Shared {
    fn info(&self, block_size: u32) -> DeviceInfo {
        MemDevice::plan(block_size, self.blocks.load(Ordering::Relaxed))
    }
}

impl BlockDevice for MemDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "mem"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info(self.block_size)
    }

    fn open_channel(&self, _reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(MemChannel { shared: self.shared.clone(), block_size: self.block_size }))
    }

    fn resize<'a>(&'a self, _reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::ready(self.resize_now(blocks))
    }
}

impl MemDevice {
    fn resize_now(&self, blocks: u64) -> Result<(), DeviceError> {
        let blocks_max = (self.shared.region.len() / self.block_size as usize) as u64;
        if blocks == 0 || blocks > blocks_max {
            return Err(DeviceError::Config {
                device: self.name.clone(),
                reason: format!("{blocks} blocks asked for, 1 to {blocks_max} possible"),
            });
        }
        let old = self.shared.blocks.swap(blocks, Ordering::Relaxed);
        if blocks < old {
            let Shared { region, stripes, marks, zeroes, .. } = &*self.shared;
            let (at, bytes) =
                (blocks as usize * self.block_size as usize, (old - blocks) as usize * self.block_size as usize);
            let _held = stripes.lock(&[(at, bytes)]);
            marks.clear(blocks..old);
            zeroes.zero(region, at, bytes);
        }
        Ok(())
    }
}

struct MemChannel {
    shared: Arc<Shared>,
    block_size: u32,
}

impl MemChannel {
    fn perform(&self, io: &mut Io) -> Status {
        if let Err(status) = self.shared.info(self.block_size).check(io) {
            return status;
        }
        let region = &self.shared.region;
        let at = io.lba.0 as usize * self.block_size as usize;
        let bytes = io.nblocks as usize * self.block_size as usize;
        let Shared { stripes, marks, zeroes, .. } = &*self.shared;
        let (range, source) = (io.lba.0..io.end(), io.arg..io.arg.saturating_add(u64::from(io.nblocks)));
        let _held = match io.op {
            Op::Read if marks.any(range.clone()) => return Status::ReadError,
            Op::Read => {
                if io.bufs.is_empty() {
                    if zeroes.any(at, bytes) {
                        let _held = stripes.lock(&[(at, bytes)]);
                        zeroes.settle(region, at, bytes);
                    }
                    io.bufs.push(region.loan(at, bytes));
                } else {
                    stripes.read(at, bytes, || {
                        for_each_piece(&mut io.bufs, at, |offset, buf| zeroes.read(region, offset, buf.as_mut_slice()));
                    });
                }
                return Status::Ok;
            }
            Op::Copy => stripes.lock(&[(at, bytes), (io.arg as usize * self.block_size as usize, bytes)]),
            op if op.modifies() || op == Op::Compare => stripes.lock(&[(at, bytes)]),
            Op::Verify if marks.any(range) => return Status::ReadError,
            _ => return Status::Ok,
        };
        let is_read = match io.op {
            Op::Compare | Op::CompareAndWrite => marks.any(range.clone()),
            Op::Copy => marks.any(source),
            _ => false,
        };
        if is_read {
            return Status::ReadError;
        }
        if matches!(io.op, Op::Compare | Op::CompareAndWrite) {
            zeroes.settle(region, at, bytes);
        }
        match io.op {
            Op::WriteUncorrectable => {
                marks.set(range);
                return Status::Ok;
            }
            Op::Write => {
                zeroes.before_write(region, at, bytes);
                for_each_piece(&mut io.bufs, at, |offset, buf| region.write(offset, buf.as_slice()));
            }
            Op::WriteZeroes | Op::Unmap => zeroes.zero(region, at, bytes),
            Op::Compare if !self.equal(&io.bufs, at) => return Status::Miscompare,
            Op::CompareAndWrite => {
                let mut new = reactor::buf::sg_split_off(&mut io.bufs, bytes);
                let equal = self.equal(&io.bufs, at);
                if equal {
                    for_each_piece(&mut new, at, |offset, buf| region.write(offset, buf.as_slice()));
                }
                reactor::buf::sg_append(&mut io.bufs, new);
                if !equal {
                    return Status::Miscompare;
                }
            }
            Op::Copy => {
                let from = io.arg as usize * self.block_size as usize;
                zeroes.settle(region, from, bytes);
                zeroes.before_write(region, at, bytes);
                region.write(at, region.loan(from, bytes).as_slice());
            }
            _ => {}
        }
        // What is readable again has its new content by then.
        if io.op.modifies() {
            marks.clear(range);
        }
        Status::Ok
    }

    fn equal(&self, bufs: &SgList, mut at: usize) -> bool {
        bufs.iter().all(|buf| {
            let same = self.shared.region.loan(at, buf.len()).as_slice() == buf.as_slice();
            at += buf.len();
            same
        })
    }
}

fn for_each_piece(bufs: &mut SgList, mut at: usize, mut action: impl FnMut(usize, &mut reactor::Buf)) {
    for buf in bufs {
        let len = buf.len();
        action(at, buf);
        at += len;
    }
}

impl Channel for MemChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let status = self.perform(&mut io);
        IoFuture::ready(io.done(status))
    }

    fn writes_at_once(&self) -> bool {
        true
    }
}
