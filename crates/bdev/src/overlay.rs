//! A device whose writes go nowhere: they are kept in memory, and read from there; the device below is read alone.
//!
//! Devices that note something when they are opened (a mirror, parity, a flash cache, a header that is damaged in one copy) can so be
//! looked at as they are: they come to the same decisions as for use, their metadata and what they make equal ends here, and the medium
//! stays as it was, byte by byte. That is done once, below them, and not in each of them.
//!
//! What holds, always: nothing but reads reaches the device below, flushes neither. Memory is taken for blocks that differ from those
//! below alone, and for [`KEPT_BYTES_MAX`] bytes at most; what goes beyond ends as [`Status::NoSpace`].
//!
//! Not for zoned devices, where a write is more than new content: they refuse writes (see [`inspect`](crate::inspect)).

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::io::{Done, Flags, Io, Lba, Op, OpSet, Status};
use crate::steps::{self, Medium};
use reactor::{IoFuture, Reactor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes that differ from the device below. Openings write some megabytes of metadata at most; beside these it is what a crash
/// has left different between the parts of a device, which is what was under way.
pub const KEPT_BYTES_MAX: u64 = 64 << 20;
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Flush, Op::Compare, Op::Copy, Op::Verify]);

/// See the module.
pub struct OverlayDevice {
    shared: Arc<Shared>,
}

struct Shared {
    child: Arc<dyn BlockDevice>,
    /// Blocks that differ from the child's. A lock, since all reactors see the same content; held to copy blocks, never across a wait.
    kept: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl Shared {
    fn with<R>(&self, act: impl FnOnce(&mut BTreeMap<u64, Box<[u8]>>) -> R) -> R {
        // A panic while it is held leaves whole blocks.
        act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn info(&self) -> DeviceInfo {
        let below = self.child.info();
        DeviceInfo { ops: OPS, volatile_cache: false, unmap_reads_zero: false, ..below }
    }
}

impl OverlayDevice {
    /// Over `child`, which has the same name and looks the same, but for operations that change blocks in other ways than writing
    /// them.
    ///
    /// # Panics
    /// Where the child is zoned.
    pub fn new(child: Arc<dyn BlockDevice>) -> OverlayDevice {
        assert!(child.info().zoned.is_none() && child.info().rows.is_none(), "writes to zones are more than content");
        OverlayDevice { shared: Arc::new(Shared { child, kept: Mutex::default() }) }
    }

    /// Bytes in which it differs from the device below.
    pub fn kept_bytes(&self) -> u64 {
        let blocks = self.shared.with(|kept| kept.len()) as u64;
        blocks * u64::from(self.shared.child.info().block_size)
    }
}

impl BlockDevice for OverlayDevice {
    fn name(&self) -> &str {
        self.shared.child.name()
    }

    fn kind(&self) -> &'static str {
        "overlay"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let child = self.shared.child.open_channel(reactor)?;
        let block_size = self.shared.child.info().block_size;
        let inner = Inner { shared: self.shared.clone(), reactor: reactor.clone(), child, block_size };
        Ok(Rc::new(OverlayChannel(Rc::new(inner))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.shared.child.clone()]
    }
}

struct OverlayChannel(Rc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    child: Rc<dyn Channel>,
    block_size: u32,
}

impl Channel for OverlayChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.info().check(&io) {
            return IoFuture::ready(io.done(status));
        }
        match io.op {
            // Nothing of what was written is meant to last.
            Op::Flush => return IoFuture::ready(io.done(Status::Ok)),
            Op::Read if !self.0.has_kept(&io) => return self.0.child.submit(io),
            _ => {}
        }
        let inner = self.0.clone();
        IoFuture::steps(&self.0.reactor, async move {
            let mut io = io;
            let status = match io.op {
                Op::Read | Op::Write => return inner.transfer(io).await,
                Op::WriteZeroes => steps::write_zeroes(&*inner, &io).await,
                Op::Compare => steps::compare(&*inner, &io).await,
                Op::Copy => steps::copy(&*inner, &io).await,
                _ => steps::verify(&*inner, &io).await,
            };
            io.flags = Flags(io.flags.0 & !Flags::LOAN.0);
            io.done(steps::status_of(status))
        })
    }

    fn abort(&self, tag: u64) {
        self.0.child.abort(tag);
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        match io.op {
            Op::Read => self.read(io).await,
            _ => {
                let status = steps::status_of(self.keep(&io).await);
                io.done(status)
            }
        }
    }
}

impl Inner {
    fn has_kept(&self, io: &Io) -> bool {
        self.shared.with(|kept| kept.range(range(io)).next().is_some())
    }

    /// A read, with what was written put over what is below.
    async fn read(&self, mut io: Io) -> Done {
        // Memory that is lent belongs to the device below.
        io.flags = Flags(io.flags.0 & !Flags::LOAN.0);
        if let Err(status) = steps::provide(&self.reactor, &mut io, self.block_size).await {
            return io.done(status);
        }
        if self.put_kept(&mut io) == u64::from(io.nblocks) {
            return io.done(Status::Ok);
        }
        let mut done = self.child.submit(io).await;
        if done.status.is_ok() {
            self.put_kept(&mut done.io);
        }
        done
    }

    /// Copies the blocks that were written into the buffers of a read; how many there are.
    fn put_kept(&self, io: &mut Io) -> u64 {
        let (first, block_size) = (io.lba.0, self.block_size as usize);
        self.shared.with(|kept| {
            let mut count = 0;
            for (lba, data) in kept.range(range(io)) {
                steps::sg_write_at(&mut io.bufs, (lba - first) as usize * block_size, data);
                count += 1;
            }
            count
        })
    }

    /// A write. Blocks that are below already, byte by byte, take no memory: what is written when devices are opened mostly is.
    async fn keep(&self, io: &Io) -> Result<(), Status> {
        let block_size = self.block_size as usize;
        let mut below = Io::new(Op::Read, Lba(io.lba.0), io.nblocks);
        steps::provide(&self.reactor, &mut below, self.block_size).await?;
        let below = self.child.submit(below).await;
        let mut block = vec![0; block_size];
        self.shared.with(|kept| {
            for nth in 0..io.nblocks as usize {
                let (lba, at) = (io.lba.0 + nth as u64, nth * block_size);
                steps::sg_read_at(&io.bufs, at, &mut block);
                if below.status.is_ok() && steps::sg_equal_at(&below.io.bufs, at, &block) {
                    kept.remove(&lba);
                    continue;
                }
                let is_full = (kept.len() as u64 + 1) * block_size as u64 > KEPT_BYTES_MAX;
                if is_full && !kept.contains_key(&lba) {
                    return Err(Status::NoSpace);
                }
                kept.insert(lba, block.as_slice().into());
            }
            Ok(())
        })
    }
}

fn range(io: &Io) -> Range<u64> {
    io.lba.0..io.end()
}
