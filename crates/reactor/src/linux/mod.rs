//! The real world: io_uring for files, readiness and sleeping; plain non-blocking system calls for socket data.
//!
//! One ring per reactor. Submissions gather during a turn and go to the kernel once per turn; while the reactor spins, the
//! ring's flags tell in user space whether entering the kernel is worth it. Socket readiness comes from multishot polls on
//! the same ring, so one wait covers files, sockets, timers and wake-ups.

mod bus;
mod files;
mod pmem;
mod ring;
mod runtime;
mod sockets;
mod zones;

pub use pmem::keeps_stores;
pub use runtime::{Runtime, RuntimeConfig, RuntimeError};

use crate::buf::{Buf, SgList};
use crate::driver::{
    Driver, Event, ExportedSocket, FileId, FileInfo, FileOp, FileOptions, PmemId, PmemInfo, RemoteWake, Slice,
    SocketId, Token,
};
use base::{Errno, Rng};
use files::Files;
use pmem::Pmem;
use ring::{Ring, UserData};
use sockets::Sockets;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

/// The last system call's error number.
fn last_errno() -> Errno {
    Errno::from_io(&std::io::Error::last_os_error())
}

/// A system call's result: negative values become the thread's error number.
fn check(result: i64) -> Result<i64, Errno> {
    if result < 0 { Err(last_errno()) } else { Ok(result) }
}

struct EventFd(OwnedFd);

impl EventFd {
    fn new() -> Result<EventFd, Errno> {
        // SAFETY: plain system call; the descriptor is checked before it is owned.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }.into())?;
        // SAFETY: a fresh descriptor that nobody else owns.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }
}

impl RemoteWake for EventFd {
    fn wake(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes from a live local. The counter cannot overflow in practice, and a failed write of a
        // non-zero counter leaves it readable, which is all that a wake-up needs.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// The Linux driver of one reactor; create it on the reactor's thread.
pub struct LinuxDriver {
    ring: RefCell<Ring>,
    files: RefCell<Files>,
    sockets: RefCell<Sockets>,
    pmem: RefCell<Pmem>,
    wake: Arc<EventFd>,
    rng: RefCell<Rng>,
}

impl LinuxDriver {
    /// A driver for the calling thread. `ENOSYS` or `EPERM` means that the kernel or a sandbox refuses io_uring.
    pub fn new() -> Result<LinuxDriver, Errno> {
        let wake = Arc::new(EventFd::new()?);
        let mut ring = Ring::new()?;
        ring.poll_multishot(wake.0.as_raw_fd(), UserData::WAKE);
        let mut seed = [0u8; 8];
        // SAFETY: fills eight local bytes.
        check(unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) } as i64)?;
        Ok(LinuxDriver {
            ring: RefCell::new(ring),
            files: RefCell::new(Files::new(wake.clone())),
            sockets: RefCell::default(),
            pmem: RefCell::default(),
            wake,
            rng: RefCell::new(Rng::new(u64::from_le_bytes(seed))),
        })
    }

    fn collect(&self, events: &mut Vec<Event>) {
        let mut ring = self.ring.borrow_mut();
        let mut rearm_wake = false;
        while let Some((user_data, result, more)) = ring.next_completion() {
            match user_data.kind() {
                UserData::KIND_FILE => events.push(self.files.borrow_mut().completed(user_data.index(), result)),
                UserData::KIND_READ | UserData::KIND_WRITE => {
                    let mut sockets = self.sockets.borrow_mut();
                    if let Some(event) = sockets.polled(user_data, result, more) {
                        events.push(event);
                    }
                    if let Some((fd, data)) = sockets.rearm_after(user_data, more) {
                        ring.poll_multishot(fd, data);
                    }
                }
                UserData::KIND_WAKE => rearm_wake |= !more,
                _ => {}
            }
        }
        if rearm_wake {
            ring.poll_multishot(self.wake.0.as_raw_fd(), UserData::WAKE);
        }
        self.files.borrow_mut().take_answers(events);
    }
}

impl Driver for LinuxDriver {
    #[inline]
    fn now_ns(&self) -> u64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: fills a local; CLOCK_MONOTONIC always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn random_u64(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    fn fill_secret(&self, bytes: &mut [u8]) {
        // At most 256 bytes at a time: such requests are never cut short by a signal.
        for part in bytes.chunks_mut(256) {
            // SAFETY: writes to the slice only.
            let got = unsafe { libc::getrandom(part.as_mut_ptr().cast(), part.len(), 0) };
            assert_eq!(got, part.len() as isize, "the kernel always has randomness");
        }
    }

    fn poll(&self, events: &mut Vec<Event>) {
        self.files.borrow_mut().take_finished(events);
        self.ring.borrow_mut().enter_if_needed();
        self.collect(events);
    }

    #[inline]
    fn has_news(&self) -> bool {
        self.ring.borrow_mut().has_task_work()
    }

    fn wait(&self, deadline_ns: Option<u64>, events: &mut Vec<Event>) {
        self.files.borrow_mut().take_finished(events);
        if !events.is_empty() {
            return self.poll(events);
        }
        let pause_ns = deadline_ns.map(|deadline| deadline.saturating_sub(self.now_ns()));
        self.ring.borrow_mut().enter_and_wait(pause_ns);
        self.collect(events);
    }

    fn in_flight(&self) -> usize {
        self.files.borrow().in_flight()
    }

    fn preemptions(&self) -> u64 {
        // SAFETY: an all-zero rusage is a valid value, overwritten by the call.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: fills a local.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
        if result == 0 { usage.ru_nivcsw as u64 } else { 0 }
    }

    fn waker(&self) -> Arc<dyn RemoteWake> {
        self.wake.clone()
    }

    fn register_memory(&self, start: *const u8, bytes: usize) {
        self.ring.borrow_mut().register_memory(start, bytes);
    }

    fn file_open(&self, path: &str, options: &FileOptions) -> Result<(FileId, FileInfo), Errno> {
        self.files.borrow_mut().open(path, options)
    }

    fn file_info(&self, file: FileId) -> Result<FileInfo, Errno> {
        self.files.borrow_mut().info(file)
    }

    fn file_resize(&self, file: FileId, bytes: u64) -> Result<(), Errno> {
        self.files.borrow_mut().resize(file, bytes)
    }

    fn file_submit(&self, file: FileId, op: FileOp, token: Token) {
        self.files.borrow_mut().submit(&mut self.ring.borrow_mut(), file, op, token);
    }

    #[inline]
    fn file_now(&self, file: FileId, op: FileOp) -> Result<(Result<usize, Errno>, SgList), FileOp> {
        self.files.borrow().perform_now(file, op)
    }

    fn file_close(&self, file: FileId) {
        self.files.borrow_mut().close(file);
    }

    fn net_listen(&self, address: SocketAddr, shared_port: bool) -> Result<(SocketId, SocketAddr), Errno> {
        self.sockets.borrow_mut().listen(&mut self.ring.borrow_mut(), address, shared_port)
    }

    fn net_accept(&self, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        self.sockets.borrow_mut().accept(&mut self.ring.borrow_mut(), listener)
    }

    fn net_connect(&self, address: SocketAddr) -> Result<SocketId, Errno> {
        self.sockets.borrow_mut().connect(&mut self.ring.borrow_mut(), address)
    }

    fn net_connect_result(&self, socket: SocketId) -> Result<(), Errno> {
        self.sockets.borrow().connect_result(socket)
    }

    fn net_recv(&self, socket: SocketId, target: &mut [u8]) -> Result<usize, Errno> {
        self.sockets.borrow().recv(socket, target)
    }

    fn net_recv_vectored(&self, socket: SocketId, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        self.sockets.borrow().recv_vectored(socket, targets)
    }

    fn net_send(&self, socket: SocketId, slices: &[Slice]) -> Result<usize, Errno> {
        let result = self.sockets.borrow().send(socket, slices);
        if result == Err(Errno::EAGAIN) {
            self.sockets.borrow_mut().watch_writable(&mut self.ring.borrow_mut(), socket);
        }
        result
    }

    fn net_export(&self, socket: SocketId) -> Result<ExportedSocket, Errno> {
        self.sockets.borrow_mut().export(&mut self.ring.borrow_mut(), socket)
    }

    fn net_import(&self, socket: ExportedSocket) -> Result<SocketId, Errno> {
        self.sockets.borrow_mut().import(&mut self.ring.borrow_mut(), socket)
    }

    fn net_end_sending(&self, socket: SocketId) -> bool {
        self.sockets.borrow().end_sending(socket)
    }

    fn net_close(&self, socket: SocketId) {
        self.sockets.borrow_mut().close(&mut self.ring.borrow_mut(), socket);
    }

    fn pmem_open(&self, path: Option<&str>, bytes: u64) -> Result<(PmemId, PmemInfo), Errno> {
        self.pmem.borrow_mut().open(path, bytes)
    }

    fn pmem_read(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        self.pmem.borrow().read(pmem, offset, target)
    }

    fn pmem_read_once(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        self.pmem.borrow().read_once(pmem, offset, target)
    }

    fn pmem_expect(&self, pmem: PmemId, offset: u64, bytes: usize) {
        self.pmem.borrow().expect(pmem, offset, bytes);
    }

    fn pmem_fetch(&self, pmem: PmemId, offset: u64, bytes: u64) {
        self.pmem.borrow().fetch(pmem, offset, bytes);
    }

    fn pmem_loan(&self, pmem: PmemId, offset: u64, bytes: usize) -> Result<Buf, Errno> {
        self.pmem.borrow().loan(pmem, offset, bytes)
    }

    fn pmem_store(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(), Errno> {
        self.pmem.borrow().store(pmem, offset, source)
    }

    fn pmem_store_checked(&self, pmem: PmemId, offset: u64, source: &[u8], crcs: &mut [u32]) -> Result<(), Errno> {
        self.pmem.borrow().store_checked(pmem, offset, source, crcs)
    }

    fn pmem_fence(&self, pmem: PmemId) {
        self.pmem.borrow().fence(pmem);
    }

    fn pmem_close(&self, pmem: PmemId) {
        self.pmem.borrow_mut().close(pmem);
    }
}

impl Drop for LinuxDriver {
    /// The kernel may still be reading from or writing to the buffers of operations under way: they are waited for.
    fn drop(&mut self) {
        let mut events = Vec::new();
        while self.in_flight() > 0 {
            self.wait(None, &mut events);
            events.clear();
        }
    }
}
