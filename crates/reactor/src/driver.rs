//! The driver: everything a reactor asks of the world. The one boundary between shipped code and simulation.
//!
//! One driver belongs to one reactor and lives on its thread. Files complete asynchronously and own their buffers until
//! then; sockets never block and report readiness; the clock, randomness and task order come from here too. Nothing a
//! driver does calls back into the reactor: completions and readiness are collected by [`Driver::poll`].

use crate::buf::{Buf, SgList};
use crate::zones::{FileZones, ZoneAction};
use base::Errno;
use std::net::SocketAddr;
use std::sync::Arc;

/// Identifies one submitted operation among those under way on a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// An open file of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// A socket of a driver, listening or connected. Never reused within a driver's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub u64);

/// Wakes a sleeping driver from any thread.
pub trait RemoteWake: Send + Sync {
    /// Ends the current or the next [`Driver::wait`] early.
    fn wake(&self);
}

/// How to open a file or block device.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Open for writing as well.
    pub write: bool,
    /// Create a missing regular file of this many bytes (sparse).
    pub create_bytes: Option<u64>,
    /// Bypass the page cache when the file system allows it.
    pub direct: bool,
    /// Take an exclusive advisory lock, so that two nodes never serve one device.
    pub lock: bool,
}

/// What an open file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Size in bytes.
    pub bytes: u64,
    /// Smallest offset, length and address unit of direct I/O; 1 when the page cache is in between.
    pub align: u32,
    /// Aligned writes of so many bytes survive power loss whole, without being asked for: the logical sector of the
    /// medium. What a kernel promises beyond (`stx_atomic_write_unit_max`) holds only for writes marked `RWF_ATOMIC`.
    pub atomic_bytes: u32,
    /// Opened past the page cache.
    pub direct: bool,
    /// A block device, not a regular file.
    pub is_block_device: bool,
    /// Operations complete inside the submitting turn (the kernel would only punt them to a worker thread).
    pub synchronous: bool,
    /// Ranges can be deallocated.
    pub can_discard: bool,
    /// A disk that turns: how long an operation takes depends on where the one before it was.
    pub rotates: bool,
    /// A block device that is written zone by zone.
    pub zones: Option<FileZones>,
    /// Write streams of the device, 0 where it has none: what is written with different ones is kept apart (FDP placement handles).
    pub write_streams: u8,
}

/// An operation on an open file.
#[derive(Debug)]
pub enum FileOp {
    /// Read at a byte offset into the buffers (all exclusive).
    Read {
        /// First byte.
        offset: u64,
        /// Where the data goes; the total length is the read's length.
        bufs: SgList,
    },
    /// Write the buffers at a byte offset; with `durable` the data is on media when it completes (RWF_DSYNC).
    Write {
        /// First byte.
        offset: u64,
        /// The data.
        bufs: SgList,
        /// Forced unit access.
        durable: bool,
        /// The write stream, up to [`FileInfo::write_streams`]; 0 is none.
        stream: u8,
    },
    /// Make everything acknowledged before durable (fdatasync).
    Flush,
    /// Deallocate a range; reads return zeroes afterwards for regular files, and for block devices that promise so.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Zero a range, deallocating where possible.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Describe zones of a zoned block device: a [`FileZone`](crate::FileZone) record each, as many as the buffer holds.
    ReportZones {
        /// First byte of the first zone.
        offset: u64,
        /// Where the records go.
        bufs: SgList,
    },
    /// Change the state of zones of a zoned block device. `ETOOMANYREFS`: too many would be open; `EOVERFLOW`: too many active.
    ManageZones {
        /// The change.
        action: ZoneAction,
        /// First byte of the first zone.
        offset: u64,
        /// Bytes of all of them.
        bytes: u64,
    },
}

/// What [`Driver::poll`] found.
#[derive(Debug)]
pub enum Event {
    /// A file operation ended: bytes transferred (0 for the others), and its buffers back.
    File {
        /// The operation.
        token: Token,
        /// Bytes transferred, or why not.
        result: Result<usize, Errno>,
        /// The operation's buffers.
        bufs: SgList,
    },
    /// A socket may have become readable (a listener: has a connection) or writable. Edge-triggered: reported when the
    /// state changes; the user goes on until `EAGAIN`.
    Socket {
        /// Which socket.
        socket: SocketId,
        /// Data, a connection, end of stream or an error is waiting.
        readable: bool,
        /// Send space, the end of a connect, or an error is waiting.
        writable: bool,
        /// The peer has ended its stream, or the connection is broken: no later event tells of that again, so receiving is
        /// worth trying from now on, whatever came before.
        ended: bool,
    },
}

/// A mapping of persistent memory (or of memory standing in for it).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PmemId(pub u32);

/// What a persistent-memory mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmemInfo {
    /// Length in bytes.
    pub bytes: u64,
    /// Fenced stores survive power loss (DAX with MAP_SYNC). False for DRAM and for a file in the page cache.
    pub durable: bool,
}

/// The world as one reactor sees it.
pub trait Driver {
    /// Monotonic time in nanoseconds; the origin is arbitrary.
    fn now_ns(&self) -> u64;
    /// 64 random bits; not for secrets.
    fn random_u64(&self) -> u64;
    /// Fills `bytes` with randomness fit for keys. This default is for simulators only, where nothing is secret.
    fn fill_secret(&self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.random_u64().to_le_bytes()[..part.len()]);
        }
    }
    /// Which of `ready` runnable tasks goes next, if this driver wants a say (the simulator does); asked once.
    fn shuffles(&self) -> bool {
        false
    }
    /// Chooses among `ready` runnable tasks; called only when [`shuffles`](Self::shuffles).
    fn choose(&self, ready: usize) -> usize {
        let _ = ready;
        0
    }
    /// Submits what is queued and collects what has happened, without waiting.
    fn poll(&self, events: &mut Vec<Event>);
    /// Whether [`poll`](Self::poll) would find something, as far as a cheap look tells; false where only a poll can tell.
    fn has_news(&self) -> bool {
        false
    }
    /// As [`poll`](Self::poll), waiting for an event, a wake-up or the deadline.
    fn wait(&self, deadline_ns: Option<u64>, events: &mut Vec<Event>);
    /// Whether file operations are under way (a reactor that drains waits for them).
    fn in_flight(&self) -> usize;
    /// How often this thread was put off its core for another one, since it began.
    fn preemptions(&self) -> u64 {
        0
    }
    /// What other threads use to end a wait.
    fn waker(&self) -> Arc<dyn RemoteWake>;
    /// Announces long-lived buffer memory, which a driver may register with the kernel.
    fn register_memory(&self, start: *const u8, bytes: usize) {
        let _ = (start, bytes);
    }

    /// Opens a file or block device. Blocks: control path only.
    fn file_open(&self, path: &str, options: &FileOptions) -> Result<(FileId, FileInfo), Errno>;
    /// Current facts about an open file (its size may have changed).
    fn file_info(&self, file: FileId) -> Result<FileInfo, Errno>;
    /// Sets a regular file's size. Blocks: control path only.
    fn file_resize(&self, file: FileId, bytes: u64) -> Result<(), Errno>;
    /// Queues an operation; its [`Event::File`] always follows, never from inside this call.
    fn file_submit(&self, file: FileId, op: FileOp, token: Token);
    /// Does a read or write at once where nothing has to be waited for ([`FileInfo::synchronous`]): bytes transferred, and the
    /// buffers. Gives the operation back, untouched, where it must be submitted.
    fn file_now(&self, file: FileId, op: FileOp) -> Result<(Result<usize, Errno>, SgList), FileOp> {
        let _ = file;
        Err(op)
    }
    /// Closes a file; operations under way still complete.
    fn file_close(&self, file: FileId);

    /// Listens on a TCP address. With `shared_port` several drivers may listen on the same address and the connections
    /// are spread over them (SO_REUSEPORT).
    fn net_listen(&self, address: SocketAddr, shared_port: bool) -> Result<(SocketId, SocketAddr), Errno>;
    /// Takes a waiting connection, or `EAGAIN`.
    fn net_accept(&self, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno>;
    /// Begins a connection; the socket becomes writable when it is established or has failed.
    fn net_connect(&self, address: SocketAddr) -> Result<SocketId, Errno>;
    /// The outcome of a connection attempt, once the socket was writable.
    fn net_connect_result(&self, socket: SocketId) -> Result<(), Errno>;
    /// Receives bytes; `Ok(0)` is the end of the stream, `EAGAIN` means not now.
    fn net_recv(&self, socket: SocketId, target: &mut [u8]) -> Result<usize, Errno>;
    /// Receives into several buffers in order; as [`net_recv`](Self::net_recv).
    fn net_recv_vectored(&self, socket: SocketId, targets: &mut [&mut [u8]]) -> Result<usize, Errno>;
    /// Sends a prefix of the slices, gathered; `EAGAIN` means not now, and a later writable event follows.
    fn net_send(&self, socket: SocketId, slices: &[Slice]) -> Result<usize, Errno>;
    /// Gives a connected socket to another driver of the same world: `net_export` here, `net_import` there.
    fn net_export(&self, socket: SocketId) -> Result<ExportedSocket, Errno>;
    /// Adopts an exported socket.
    fn net_import(&self, socket: ExportedSocket) -> Result<SocketId, Errno>;
    /// Tells the peer that nothing more will be sent, while what it sends is still received. False where there is no such
    /// thing: then only closing tells it.
    fn net_end_sending(&self, socket: SocketId) -> bool {
        let _ = socket;
        false
    }
    /// Closes a socket at once; no event about it follows.
    fn net_close(&self, socket: SocketId);

    /// Maps persistent memory: a DAX file or device, or plain memory of `bytes` when `path` is `None` (volatile).
    fn pmem_open(&self, path: Option<&str>, bytes: u64) -> Result<(PmemId, PmemInfo), Errno>;
    /// Reads; sees every store made before, fenced or not.
    fn pmem_read(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno>;
    /// As [`pmem_read`](Self::pmem_read), of what is not read again soon, for which no page needs to be mapped.
    fn pmem_read_once(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        self.pmem_read(pmem, offset, target)
    }
    /// A range is about to be read: what is mapped may be fetched ahead. A hint, without any effect that can be observed.
    fn pmem_expect(&self, pmem: PmemId, offset: u64, bytes: usize) {
        let _ = (pmem, offset, bytes);
    }
    /// A range is going to be read, not at once: where it lies in a file that is not in memory, the system begins to fetch it. A hint, as
    /// [`pmem_expect`](Self::pmem_expect) is for what is in memory already.
    fn pmem_fetch(&self, pmem: PmemId, offset: u64, bytes: u64) {
        let _ = (pmem, offset, bytes);
    }
    /// A read-only view: what [`pmem_read`](Self::pmem_read) gives, without a copy where the memory is mapped. Whether stores to the
    /// range show in it is left open, so who lends a range does not store to it; the memory stays mapped while there is one.
    fn pmem_loan(&self, pmem: PmemId, offset: u64, bytes: usize) -> Result<Buf, Errno> {
        let mut copy = vec![0; bytes];
        self.pmem_read(pmem, offset, &mut copy)?;
        Ok(Buf::from_vec(copy))
    }
    /// Stores bytes, bypassing or writing back the cache; durable after the next fence.
    fn pmem_store(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(), Errno>;
    /// As [`pmem_store`](Self::pmem_store), and gives the CRC32C of each of `crcs.len()` equal parts of `source`.
    fn pmem_store_checked(&self, pmem: PmemId, offset: u64, source: &[u8], crcs: &mut [u32]) -> Result<(), Errno> {
        let part = source.len().checked_div(crcs.len()).unwrap_or(0);
        assert_eq!(part * crcs.len(), source.len(), "checksums are of equal parts");
        for (step, crc) in (0u64..).zip(crcs) {
            let at = step * part as u64;
            let bytes = &source[at as usize..][..part];
            self.pmem_store(pmem, offset + at, bytes)?;
            *crc = base::crc32c(bytes);
        }
        Ok(())
    }
    /// Orders and persists every store made before by this reactor.
    fn pmem_fence(&self, pmem: PmemId);
    /// Unmaps.
    fn pmem_close(&self, pmem: PmemId);
}

/// A connected socket on its way from one driver to another.
#[derive(Debug)]
pub struct ExportedSocket {
    /// A file descriptor, or the simulator's number for the socket.
    pub raw: u64,
}

/// One piece of a gathered send: an address range that the caller keeps valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Slice {
    start: *const u8,
    len: usize,
}

impl Slice {
    /// The bytes of a buffer. It is read by the driver during the call only; a loaned buffer may change meanwhile.
    pub fn of_buf(buf: &Buf) -> Slice {
        Slice { start: buf.as_ptr(), len: buf.len() }
    }

    /// Ordinary bytes.
    pub fn of(bytes: &[u8]) -> Slice {
        Slice { start: bytes.as_ptr(), len: bytes.len() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }

    /// The slice without its first `bytes`.
    pub fn advanced(&self, bytes: usize) -> Slice {
        assert!(bytes <= self.len);
        Slice { start: self.start.wrapping_add(bytes), len: self.len - bytes }
    }

    /// The first `bytes` of the slice.
    pub fn shortened(&self, bytes: usize) -> Slice {
        assert!(bytes <= self.len);
        Slice { start: self.start, len: bytes }
    }

    /// Copies the bytes to `target`, for drivers that keep what is sent.
    ///
    /// # Safety
    /// The memory that this slice was made from is still valid.
    pub unsafe fn copy_to(&self, target: &mut Vec<u8>) {
        // SAFETY: by the caller.
        target.extend_from_slice(unsafe { std::slice::from_raw_parts(self.start, self.len) });
    }
}
