//! A regular file or an operating-system block device.
//!
//! Reads and writes go to the driver as they are when their buffers suit it, and through pool buffers when a direct file
//! wants better alignment. Short transfers are continued. What the driver cannot do (compare, copy, verify) is made of
//! reads and writes; compare-and-write is atomic against other writes through this device, on any reactor, by a range
//! lock that every write shares and compare-and-write holds alone.
//!
//! After a flush that failed all flushes fail (see [`flush_line`](crate::flush_line)), until the device is opened anew and the
//! layer above has rewritten what it cannot prove.
//!
//! `atomic_write_blocks` is 1 where blocks are no larger than the disk's sectors, and 0 otherwise: then power loss may
//! leave a part of a block. Use the disk's own sector size where layers above rely on whole blocks.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::flush_line::FlushLine;
use crate::io::{Done, Flags, Io, Op, OpSet, Status};
use crate::range_lock::RangeLock;
use crate::steps::{self, Medium};
use base::Errno;
use reactor::{
    BUF_BYTES_MAX, Completion, File, FileInfo, FileOptions, FileZones, IoFuture, Reactor, ReactorHandle, SgList,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How to open a file device.
#[derive(Clone, Debug)]
pub struct FileDeviceOptions {
    /// Path of the file or block device.
    pub path: String,
    /// Create a missing (or fill an empty) regular file to this many bytes.
    pub create_bytes: Option<u64>,
    /// Bytes per block, 512 or 4096.
    pub block_size: u32,
    /// Bypass the page cache where the file system allows it.
    pub direct: bool,
    /// Refuse to open what another process serves.
    pub lock: bool,
    /// Refuse writes.
    pub read_only: bool,
}

impl FileDeviceOptions {
    /// An existing file at `path`: 4 KiB blocks, direct, locked, writable.
    pub fn new(path: &str) -> FileDeviceOptions {
        FileDeviceOptions {
            path: path.to_string(),
            create_bytes: None,
            block_size: 4096,
            direct: true,
            lock: true,
            read_only: false,
        }
    }
}

/// See the module.
pub struct FileDevice {
    shared: Arc<Shared>,
    /// The reactor that keeps the locked file open, and the number under which it does.
    keeper: (ReactorHandle, u64),
}

struct Shared {
    name: String,
    options: FileDeviceOptions,
    facts: FileInfo,
    blocks: AtomicU64,
    locks: RangeLock,
    flushes: Arc<FlushLine>,
}

const READS: OpSet = OpSet::of(&[Op::Read, Op::Flush, Op::Compare, Op::Verify]);
const WRITES: OpSet = OpSet::of(&[Op::Write, Op::WriteZeroes, Op::CompareAndWrite, Op::Copy]);

impl FileDevice {
    /// What a regular file of so many bytes is, as far as that can be known before it is opened: its file system may allow
    /// more.
    pub fn plan(block_size: u32, bytes: u64) -> DeviceInfo {
        let facts = FileInfo {
            bytes,
            align: 1,
            atomic_bytes: 512,
            direct: false,
            is_block_device: false,
            synchronous: false,
            can_discard: false,
            rotates: false,
            zones: None,
            write_streams: 0,
        };
        describe(&facts, READS.union(WRITES), block_size, bytes / u64::from(block_size.max(1)))
    }

    /// Opens the file on the calling reactor, which keeps it (and its lock) until the device is dropped. Blocks: control
    /// path only.
    pub fn open(reactor: &Rc<Reactor>, name: &str, options: FileDeviceOptions) -> Result<FileDevice, DeviceError> {
        let refuse = |reason: String| Err(DeviceError::Config { device: name.to_string(), reason });
        if !matches!(options.block_size, 512 | 4096) {
            return refuse(format!("block size {} is neither 512 nor 4096", options.block_size));
        }
        if options.create_bytes.is_some_and(|bytes| bytes < u64::from(options.block_size)) {
            return refuse(format!("a size of {} bytes: expected a block at least", options.create_bytes.unwrap_or(0)));
        }
        let mut options = options;
        let mut file = open_file(reactor, name, &options, options.lock, options.create_bytes)?;
        if file.info().direct && options.block_size < file.info().align {
            // Smaller blocks than the disk's would need read-modify-write; the page cache does that well.
            tracing::info!(
                device = name,
                align = file.info().align,
                "blocks smaller than a sector: using the page cache"
            );
            options.direct = false;
            drop(file);
            file = open_file(reactor, name, &options, options.lock, None)?;
        }
        let facts = *file.info();
        let blocks = facts.bytes / options.block_size as u64;
        if blocks == 0 {
            return refuse(match facts.bytes {
                0 if facts.is_block_device => {
                    format!("'{}' is a block device without a medium; look at the system's log", options.path)
                }
                0 => format!("'{}' is empty; give a size to create it with", options.path),
                bytes => format!("'{}' has {bytes} bytes, which is less than a block", options.path),
            });
        }
        let locks = RangeLock::new((1 << 20) / options.block_size as u64);
        let shared = Shared {
            name: name.to_string(),
            options,
            facts,
            blocks: AtomicU64::new(blocks),
            locks,
            flushes: Arc::default(),
        };
        let keeper = (reactor.handle(), reactor.keep(Rc::new(file)));
        Ok(FileDevice { shared: Arc::new(shared), keeper })
    }

    /// What its zones are like, where it is a block device that has some: then [`ZonedDriveDevice`](crate::ZonedDriveDevice) is over it.
    pub fn zones(&self) -> Option<FileZones> {
        self.shared.facts.zones
    }

    /// Whether it bypasses the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.shared.facts.direct
    }

    fn resize_now(&self, reactor: &Rc<Reactor>, blocks: u64) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let refuse = |reason: String| Err(DeviceError::Config { device: shared.name.clone(), reason });
        if shared.facts.is_block_device {
            return refuse("a block device is resized below; refresh it afterwards".to_string());
        }
        let Some(bytes) = blocks.checked_mul(shared.options.block_size as u64).filter(|bytes| *bytes > 0) else {
            return refuse(format!("{blocks} blocks are no possible size"));
        };
        let file = open_file(reactor, &shared.name, &shared.options, false, None)?;
        file.resize(bytes).map_err(|errno| os_error(&shared.name, "resize", &shared.options.path, errno))?;
        shared.blocks.store(blocks, Ordering::Relaxed);
        Ok(())
    }

    fn refresh_now(&self, reactor: &Rc<Reactor>) -> Result<DeviceInfo, DeviceError> {
        let file = open_file(reactor, &self.shared.name, &self.shared.options, false, None)?;
        let blocks = file.info().bytes / self.shared.options.block_size as u64;
        self.shared.blocks.store(blocks, Ordering::Relaxed);
        Ok(self.shared.info())
    }
}

#[inline]
fn describe(facts: &FileInfo, ops: OpSet, block_size: u32, blocks: u64) -> DeviceInfo {
    DeviceInfo {
        ops,
        atomic_write_blocks: u32::from(block_size <= facts.atomic_bytes),
        optimal_io_blocks: (facts.align / block_size).max(1),
        compare_and_write_blocks: BUF_BYTES_MAX as u32 / block_size,
        volatile_cache: true,
        unmap_reads_zero: !facts.is_block_device,
        loans: true,
        streams: facts.write_streams.into(),
        ..DeviceInfo::basic(block_size, blocks)
    }
}

pub(crate) fn open_file(
    reactor: &Rc<Reactor>,
    name: &str,
    options: &FileDeviceOptions,
    lock: bool,
    create_bytes: Option<u64>,
) -> Result<File, DeviceError> {
    let file_options = FileOptions { write: !options.read_only, create_bytes, direct: options.direct, lock };
    File::open(reactor, &options.path, &file_options).map_err(|errno| os_error(name, "open", &options.path, errno))
}

fn os_error(device: &str, action: &'static str, path: &str, errno: Errno) -> DeviceError {
    let hint = match errno {
        Errno::ENOENT => "; check the path, or give a size to create a regular file",
        Errno::EACCES => "; make it readable and writable for this user",
        Errno::EBUSY | Errno::EAGAIN => {
            "; it is open and locked: by another process, or by another device here that is the same file by another name"
        }
        Errno::ENOSPC => "; free space on its file system",
        _ => "",
    };
    DeviceError::Os { device: device.to_string(), action, object: format!("'{path}'"), errno, hint }
}

impl Shared {
    fn info(&self) -> DeviceInfo {
        let mut ops = READS;
        if !self.options.read_only {
            ops = ops.union(WRITES);
            if self.facts.can_discard {
                ops = ops.union(OpSet::of(&[Op::Unmap]));
            }
        }
        describe(&self.facts, ops, self.options.block_size, self.blocks.load(Ordering::Relaxed))
    }

    /// Whether writes that overlap in time could leave a block that is a part of each: where blocks are larger than what
    /// the medium writes at once, they take turns.
    fn mixes_writes(&self) -> bool {
        self.options.block_size > self.facts.atomic_bytes
    }

    fn check(&self, io: &Io) -> Result<(), Status> {
        if self.options.read_only && io.op.modifies() { Err(Status::ReadOnly) } else { self.info().check(io) }
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "file"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    fn seeks(&self) -> bool {
        self.shared.facts.rotates
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let file = Rc::new(open_file(reactor, &self.shared.name, &self.shared.options, false, None)?);
        let align = if file.info().direct { file.info().align as usize } else { 1 };
        Ok(Rc::new(FileChannel(Rc::new(Inner { shared: self.shared.clone(), reactor: reactor.clone(), file, align }))))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        IoFuture::ready(self.resize_now(reactor, blocks))
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        IoFuture::ready(self.refresh_now(reactor))
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let (reactor, kept) = (&self.keeper.0, self.keeper.1);
        reactor.run(move |reactor| reactor.release::<File>(kept));
    }
}

struct FileChannel(Rc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    file: Rc<File>,
    align: usize,
}

impl Channel for FileChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.0.shared.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let inner = &self.0;
        let io = match inner.at_once(io) {
            Ok(done) => return IoFuture::ready(done),
            Err(io) => io,
        };
        // Three futures rather than one: the block of a read is not made as large as that of a copy.
        match io.op {
            // A read that is dropped leaves nothing half done.
            Op::Read if !io.bufs.is_empty() => IoFuture::new(self.0.transfer(io)),
            Op::Write => {
                let inner = inner.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let alone = inner.shared.mixes_writes();
                    let _held = inner.shared.locks.lock(io.lba.0, io.nblocks as u64, alone).await;
                    inner.transfer(io).await
                })
            }
            _ => {
                let inner = inner.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let mut io = io;
                    let status = steps::status_of(inner.perform(&mut io).await);
                    io.done(status)
                })
            }
        }
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.options.block_size
    }

    /// A read or write of the file, without locks.
    async fn transfer(&self, mut io: Io) -> Done {
        let offset = io.lba.0 * self.shared.options.block_size as u64;
        let bufs = std::mem::take(&mut io.bufs);
        let (result, bufs) = if self.is_aligned(&bufs) {
            self.transfer_direct(&io, offset, bufs).await
        } else {
            self.transfer_bounced(&io, offset, bufs).await
        };
        io.bufs = bufs;
        let result = match result {
            Ok(()) if io.op != Op::Read && io.flags.has(Flags::FUA) && self.is_cached() => self.flush().await,
            result => result,
        };
        io.done(steps::status_of(result))
    }
}

impl Inner {
    fn is_aligned(&self, bufs: &SgList) -> bool {
        let mask = self.align - 1;
        self.is_cached() || bufs.iter().all(|buf| (buf.as_ptr() as usize | buf.len()) & mask == 0)
    }

    /// A read or write of a file that lives in memory, without a future; gives it back where it may have to wait.
    #[inline]
    fn at_once(&self, mut io: Io) -> Result<Done, Io> {
        if !self.file.info().synchronous || !self.is_cached() || io.flags.has(Flags::FUA) {
            return Err(io);
        }
        let bytes = io.nblocks as usize * self.shared.options.block_size as usize;
        let offset = io.lba.0 * u64::from(self.shared.options.block_size);
        let moved = match io.op {
            Op::Read => {
                if io.bufs.is_empty() {
                    let buf = if bytes <= BUF_BYTES_MAX { self.reactor.pool().try_alloc(bytes) } else { None };
                    let Some(buf) = buf else { return Err(io) };
                    io.bufs.push(buf);
                }
                self.file.read_now(offset, std::mem::take(&mut io.bufs))
            }
            Op::Write => {
                let Some(_held) =
                    self.shared.locks.try_lock(io.lba.0, u64::from(io.nblocks), self.shared.mixes_writes())
                else {
                    return Err(io);
                };
                self.file.write_now(offset, std::mem::take(&mut io.bufs))
            }
            _ => return Err(io),
        };
        match moved {
            Ok(Completion { result, bufs }) => {
                io.bufs = bufs;
                match result {
                    Ok(moved) if moved == bytes => Ok(io.done(Status::Ok)),
                    // (the rest of it, and errors, are the business of those who can go on)
                    _ => Err(io),
                }
            }
            Err(bufs) => {
                io.bufs = bufs;
                Err(io)
            }
        }
    }

    /// Whether writes go to the page cache. There the kernel tells a descriptor once that bytes were lost on their way to the
    /// disk: a durable write would take that word from the flush that it was for. So these are writes and flushes, and all
    /// flushes stand in one line.
    fn is_cached(&self) -> bool {
        self.align == 1
    }

    /// Goes on after short transfers until everything is moved.
    async fn transfer_direct(&self, io: &Io, offset: u64, bufs: SgList) -> (Result<(), Status>, SgList) {
        let (mut moved, mut rest, mut at) = (SgList::new(), bufs, offset);
        let result = loop {
            let wanted = reactor::buf::sg_len(&rest);
            let completion = match io.op {
                Op::Read => self.file.read(at, rest).await,
                _ => {
                    let durable = io.flags.has(Flags::FUA) && !self.is_cached();
                    // Streams are advice: one that there is not is none.
                    let stream = u8::try_from(io.stream).unwrap_or(0);
                    let stream = if stream <= self.file.info().write_streams { stream } else { 0 };
                    self.file.write_stream(stream, at, rest, durable).await
                }
            };
            rest = completion.bufs;
            match completion.result {
                Ok(bytes) if bytes == wanted => break Ok(()),
                Ok(bytes) => {
                    let whole = bytes - bytes % self.align;
                    if whole == 0 {
                        break Err(if io.op == Op::Read { Status::ReadError } else { Status::NoSpace });
                    }
                    let tail = reactor::buf::sg_split_off(&mut rest, whole);
                    reactor::buf::sg_append(&mut moved, std::mem::replace(&mut rest, tail));
                    at += whole as u64;
                }
                Err(Errno::EINTR) => {}
                Err(errno) => break Err(Status::of_errno(errno, io.op)),
            }
        };
        if moved.is_empty() {
            return (result, rest);
        }
        reactor::buf::sg_append(&mut moved, rest);
        (result, moved)
    }

    async fn transfer_bounced(&self, io: &Io, offset: u64, mut bufs: SgList) -> (Result<(), Status>, SgList) {
        let (total, mut at) = (reactor::buf::sg_len(&bufs), 0);
        while at < total {
            let len = (total - at).min(BUF_BYTES_MAX);
            let mut bounce = match steps::alloc(&self.reactor, len).await {
                Ok(buf) => buf,
                Err(status) => return (Err(status), bufs),
            };
            if io.op != Op::Read {
                steps::sg_read_at(&bufs, at, bounce.as_mut_slice());
            }
            let mut list = SgList::new();
            list.push(bounce);
            let (result, list) = self.transfer_direct(io, offset + at as u64, list).await;
            if result.is_err() {
                return (result, bufs);
            }
            if io.op == Op::Read {
                steps::sg_write_at(&mut bufs, at, list[0].as_slice());
            }
            at += len;
        }
        (Ok(()), bufs)
    }

    /// Everything but plain reads and writes.
    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        let exclusive = io.op == Op::CompareAndWrite || self.shared.mixes_writes();
        let held = io.op.modifies().then(|| self.shared.locks.lock(io.lba.0, io.nblocks as u64, exclusive));
        let _held = match held {
            Some(held) => Some(held.await),
            None => None,
        };
        match io.op {
            Op::Read => self.read_lent(io).await,
            Op::Flush => self.flush().await,
            Op::Unmap | Op::WriteZeroes => self.clear(io).await,
            Op::Compare => steps::compare(self, io).await,
            Op::CompareAndWrite => steps::compare_and_write(self, io).await,
            Op::Copy => steps::copy(self, io).await,
            Op::Verify => steps::verify(self, io).await,
            _ => Err(Status::Unsupported),
        }
    }

    async fn read_lent(&self, io: &mut Io) -> Result<(), Status> {
        steps::provide(&self.reactor, io, self.shared.options.block_size).await?;
        let read = Io::read(io.lba, io.nblocks, std::mem::take(&mut io.bufs));
        let done = self.transfer(read).await;
        done.status.check()?;
        io.bufs = done.io.bufs;
        Ok(())
    }

    async fn flush(&self) -> Result<(), Status> {
        let file = self.file.clone();
        let flush =
            async move { file.flush().await.result.map(drop).map_err(|errno| Status::of_errno(errno, Op::Write)) };
        let failures = self.shared.flushes.run(&self.reactor, flush).await?;
        // What was written when and is still to be written, nobody knows: a failure is final.
        if failures == 0 { Ok(()) } else { Err(Status::WriteError) }
    }

    async fn clear(&self, io: &Io) -> Result<(), Status> {
        let block_size = self.shared.options.block_size as u64;
        let (offset, bytes) = (io.lba.0 * block_size, io.nblocks as u64 * block_size);
        let future = match io.op {
            Op::Unmap => self.file.discard(offset, bytes),
            _ => self.file.write_zeroes(offset, bytes),
        };
        match future.await.result {
            Ok(_) if io.flags.has(Flags::FUA) => self.flush().await,
            Ok(_) => Ok(()),
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) if io.op == Op::WriteZeroes => steps::write_zeroes(self, io).await,
            Err(errno) => Err(Status::of_errno(errno, io.op)),
        }
    }
}
