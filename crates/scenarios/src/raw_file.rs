//! The plainest block device over a file of the driver: one operation each, no splitting, no repair. Scenarios that test
//! the driver's contract use it, so that a failure is not a filter's.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Op, OpSet, Status};
use reactor::{Errno, File, FileOptions, IoFuture, Reactor};
use std::rc::Rc;

pub(crate) struct RawFile {
    path: String,
    info: DeviceInfo,
    options: FileOptions,
}

impl RawFile {
    pub(crate) fn new(path: &str, block_size: u32, blocks: u64, direct: bool) -> RawFile {
        let ops = OpSet::of(&[Op::Read, Op::Write, Op::WriteZeroes, Op::Unmap, Op::Flush]);
        RawFile {
            path: path.to_string(),
            info: DeviceInfo {
                ops,
                volatile_cache: true,
                unmap_reads_zero: true,
                ..DeviceInfo::basic(block_size, blocks)
            },
            options: FileOptions { write: true, direct, lock: true, ..FileOptions::default() },
        }
    }
}

impl BlockDevice for RawFile {
    fn name(&self) -> &str {
        &self.path
    }

    fn kind(&self) -> &'static str {
        "raw-file"
    }

    fn info(&self) -> DeviceInfo {
        self.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let refuse = |errno| DeviceError::Os {
            device: self.path.clone(),
            action: "open",
            object: self.path.clone(),
            errno,
            hint: "",
        };
        let file = File::open(reactor, &self.path, &self.options).map_err(refuse)?;
        Ok(Rc::new(RawChannel { file, info: self.info }))
    }
}

struct RawChannel {
    file: File,
    info: DeviceInfo,
}

impl Channel for RawChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let at = io.lba.0 * self.info.block_size as u64;
        let bytes = io.nblocks as u64 * self.info.block_size as u64;
        let bufs = std::mem::take(&mut io.bufs);
        let under_way = match io.op {
            Op::Read => self.file.read(at, bufs),
            Op::Write => self.file.write(at, bufs, io.flags.has(Flags::FUA)),
            Op::Flush => self.file.flush(),
            Op::Unmap => self.file.discard(at, bytes),
            _ => self.file.write_zeroes(at, bytes),
        };
        IoFuture::new(async move {
            let completion = under_way.await;
            io.bufs = completion.bufs;
            let moves_data = matches!(io.op, Op::Read | Op::Write);
            let status = match completion.result {
                Ok(moved) if moves_data && moved as u64 != bytes => Status::of_errno(Errno::EIO, io.op),
                Ok(_) => Status::Ok,
                Err(errno) => Status::of_errno(errno, io.op),
            };
            io.done(status)
        })
    }
}
