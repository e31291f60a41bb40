//! Memory that keeps what is not zero: loads here write zeroes, and what a pool adds to them (headers, its index) is little.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op, OpSet, Status};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const BLOCK: usize = 4096;
static ZEROES: [u8; BLOCK] = [0; BLOCK];
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Unmap, Op::Flush]);

/// By their numbers.
type Blocks = Arc<Mutex<Vec<Option<Box<[u8]>>>>>;

/// See the module.
pub struct SparseDevice {
    info: DeviceInfo,
    blocks: Blocks,
    /// Time that its operations took, of the real clock; of a device that is timed.
    spent_ns: Option<Arc<AtomicU64>>,
}

impl SparseDevice {
    pub fn new(bytes: u64) -> SparseDevice {
        let basic = DeviceInfo::basic(BLOCK as u32, bytes / BLOCK as u64);
        let blocks = Arc::new(Mutex::new(vec![None; bytes as usize / BLOCK]));
        SparseDevice { info: DeviceInfo { ops: OPS, unmap_reads_zero: true, ..basic }, blocks, spent_ns: None }
    }

    /// A device that adds up in `spent_ns` how long its operations take: what a drive would do by itself, while the host does
    /// something else.
    pub fn timed(bytes: u64, spent_ns: &Arc<AtomicU64>) -> SparseDevice {
        SparseDevice { spent_ns: Some(spent_ns.clone()), ..SparseDevice::new(bytes) }
    }
}

impl BlockDevice for SparseDevice {
    fn name(&self) -> &str {
        "data"
    }

    fn kind(&self) -> &'static str {
        "sparse"
    }

    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn open_channel(&self, _reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let (blocks, spent_ns) = (self.blocks.clone(), self.spent_ns.clone());
        Ok(Rc::new(SparseChannel { info: self.info, blocks, spent_ns }))
    }
}

struct SparseChannel {
    info: DeviceInfo,
    blocks: Blocks,
    spent_ns: Option<Arc<AtomicU64>>,
}

impl SparseChannel {
    fn perform(&self, io: &mut Io) {
        let Some(spent_ns) = &self.spent_ns else { return self.perform_now(io) };
        let begun = Instant::now();
        self.perform_now(io);
        spent_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn perform_now(&self, io: &mut Io) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = io.lba.0 as usize;
        match io.op {
            Op::Read => {
                for part in io.bufs.iter_mut().flat_map(|buf| buf.as_mut_slice().chunks_mut(BLOCK)) {
                    match &blocks[at] {
                        Some(kept) => part.copy_from_slice(kept),
                        None => part.fill(0),
                    }
                    at += 1;
                }
            }
            Op::Write => {
                for part in io.bufs.iter().flat_map(|buf| buf.as_slice().chunks(BLOCK)) {
                    blocks[at] = (part != ZEROES).then(|| part.into());
                    at += 1;
                }
            }
            Op::WriteZeroes | Op::Unmap => {
                blocks[at..at + io.nblocks as usize].fill(None);
            }
            _ => {}
        }
    }
}

impl Channel for SparseChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let whole = io.bufs.iter().all(|buf| buf.len().is_multiple_of(BLOCK));
        let status = match self.info.check(&io) {
            Err(status) => status,
            Ok(()) if !whole => Status::Invalid,
            Ok(()) => {
                self.perform(&mut io);
                Status::Ok
            }
        };
        IoFuture::ready(io.done(status))
    }
}
