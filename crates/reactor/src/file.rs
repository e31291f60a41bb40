//! Files and block devices of the driver, as futures that own their buffers.

use crate::buf::SgList;
use crate::driver::{FileId, FileInfo, FileOp, FileOptions};
use crate::ops::{Completion, OpFuture};
use crate::reactor::Reactor;
use crate::zones::ZoneAction;
use base::Errno;
use std::rc::Rc;

/// An open file, closed when dropped (operations under way still complete).
pub struct File {
    reactor: Rc<Reactor>,
    id: FileId,
    info: FileInfo,
}

impl File {
    /// Opens `path`. Blocks: control path only.
    pub fn open(reactor: &Rc<Reactor>, path: &str, options: &FileOptions) -> Result<File, Errno> {
        let (id, info) = reactor.driver().file_open(path, options)?;
        Ok(File { reactor: reactor.clone(), id, info })
    }

    /// What the file was when it was opened.
    pub fn info(&self) -> &FileInfo {
        &self.info
    }

    /// What the file is now.
    pub fn refresh(&self) -> Result<FileInfo, Errno> {
        self.reactor.driver().file_info(self.id)
    }

    /// Sets a regular file's size. Blocks: control path only.
    pub fn resize(&self, bytes: u64) -> Result<(), Errno> {
        self.reactor.driver().file_resize(self.id, bytes)
    }

    fn submit(&self, op: FileOp) -> OpFuture {
        OpFuture::new(self.reactor.clone(), self.reactor.submit_file(self.id, op))
    }

    /// Reads into `bufs` from a byte offset.
    pub fn read(&self, offset: u64, bufs: SgList) -> OpFuture {
        self.submit(FileOp::Read { offset, bufs })
    }

    /// Writes `bufs` at a byte offset; `durable` forces the data to media before completion.
    pub fn write(&self, offset: u64, bufs: SgList, durable: bool) -> OpFuture {
        self.write_stream(0, offset, bufs, durable)
    }

    /// The same with a write stream of the device, up to [`FileInfo::write_streams`].
    pub fn write_stream(&self, stream: u8, offset: u64, bufs: SgList, durable: bool) -> OpFuture {
        self.submit(FileOp::Write { offset, bufs, durable, stream })
    }

    /// Reads at once where nothing has to be waited for ([`FileInfo::synchronous`]); otherwise gives the buffers back. As for a
    /// [`read`](Self::read), the transfer may be short.
    #[inline]
    pub fn read_now(&self, offset: u64, bufs: SgList) -> Result<Completion, SgList> {
        self.now(FileOp::Read { offset, bufs })
    }

    /// Writes at once, as [`read_now`](Self::read_now) reads.
    #[inline]
    pub fn write_now(&self, offset: u64, bufs: SgList) -> Result<Completion, SgList> {
        self.now(FileOp::Write { offset, bufs, durable: false, stream: 0 })
    }

    #[inline]
    fn now(&self, op: FileOp) -> Result<Completion, SgList> {
        match self.reactor.driver().file_now(self.id, op) {
            Ok((result, bufs)) => Ok(Completion { result, bufs }),
            Err(FileOp::Read { bufs, .. } | FileOp::Write { bufs, .. }) => Err(bufs),
            Err(_) => unreachable!("the operation comes back as it went"),
        }
    }

    /// Makes all completed writes durable.
    pub fn flush(&self) -> OpFuture {
        self.submit(FileOp::Flush)
    }

    /// Deallocates a byte range.
    pub fn discard(&self, offset: u64, bytes: u64) -> OpFuture {
        self.submit(FileOp::Discard { offset, bytes })
    }

    /// Zeroes a byte range.
    pub fn write_zeroes(&self, offset: u64, bytes: u64) -> OpFuture {
        self.submit(FileOp::WriteZeroes { offset, bytes })
    }

    /// Describes zones from the one at a byte offset on, a [`FileZone`](crate::FileZone) record each: as many as `bufs` holds.
    pub fn report_zones(&self, offset: u64, bufs: SgList) -> OpFuture {
        self.submit(FileOp::ReportZones { offset, bufs })
    }

    /// Changes the state of the zones in a byte range.
    pub fn manage_zones(&self, action: ZoneAction, offset: u64, bytes: u64) -> OpFuture {
        self.submit(FileOp::ManageZones { action, offset, bytes })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.reactor.driver().file_close(self.id);
    }
}
