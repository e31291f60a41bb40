//! [`ClockDriver`]: a driver that has nothing but a clock and memory. Time passes only while its reactor waits, and then to
//! the deadline at once; nothing fails and nothing is reordered. For measuring models: what a run takes is what its devices
//! and timers say, whatever the code between them costs.
//!
//! Files and sockets are not supported.

use base::{Errno, Rng};
use reactor::driver::{ExportedSocket, FileId, FileOp, PmemId, PmemInfo, RemoteWake, SocketId, Token};
use reactor::{Driver, Event, FileInfo, FileOptions, Slice};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
pub struct ClockDriver {
    now_ns: Cell<u64>,
    idle: Cell<bool>,
    rng: RefCell<Rng>,
    memory: RefCell<Vec<Vec<u8>>>,
}

/// One thread, which wakes itself.
struct NoWake;

impl RemoteWake for NoWake {
    fn wake(&self) {}
}

impl ClockDriver {
    /// A driver at time 0; `seed` fixes its random numbers.
    pub fn new(seed: u64) -> Rc<ClockDriver> {
        Rc::new(ClockDriver {
            now_ns: Cell::new(0),
            idle: Cell::new(false),
            rng: RefCell::new(Rng::new(seed)),
            memory: RefCell::default(),
        })
    }

    /// Whether the reactor has waited without a deadline: then nothing will ever happen again by itself.
    pub fn is_idle(&self) -> bool {
        self.idle.get()
    }
}

impl Driver for ClockDriver {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn random_u64(&self) -> u64 {
        self.rng.borrow_mut().next_u64()
    }

    fn poll(&self, _events: &mut Vec<Event>) {
        self.idle.set(false);
    }

    fn wait(&self, deadline_ns: Option<u64>, _events: &mut Vec<Event>) {
        self.idle.set(deadline_ns.is_none());
        self.now_ns.set(deadline_ns.unwrap_or(0).max(self.now_ns.get()));
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn waker(&self) -> Arc<dyn RemoteWake> {
        Arc::new(NoWake)
    }

    fn file_open(&self, _: &str, _: &FileOptions) -> Result<(FileId, FileInfo), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn file_info(&self, _: FileId) -> Result<FileInfo, Errno> {
        Err(Errno::EBADF)
    }

    fn file_resize(&self, _: FileId, _: u64) -> Result<(), Errno> {
        Err(Errno::EBADF)
    }

    fn file_submit(&self, _: FileId, _: FileOp, _: Token) {
        panic!("no file can be open");
    }

    fn file_close(&self, _: FileId) {}

    fn net_listen(&self, _: SocketAddr, _: bool) -> Result<(SocketId, SocketAddr), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_accept(&self, _: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        Err(Errno::EBADF)
    }

    fn net_connect(&self, _: SocketAddr) -> Result<SocketId, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn net_connect_result(&self, _: SocketId) -> Result<(), Errno> {
        Err(Errno::EBADF)
    }

    fn net_recv(&self, _: SocketId, _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }

    fn net_recv_vectored(&self, _: SocketId, _: &mut [&mut [u8]]) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }

    fn net_send(&self, _: SocketId, _: &[Slice]) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }

    fn net_export(&self, _: SocketId) -> Result<ExportedSocket, Errno> {
        Err(Errno::EBADF)
    }

    fn net_import(&self, _: ExportedSocket) -> Result<SocketId, Errno> {
        Err(Errno::EBADF)
    }

    fn net_close(&self, _: SocketId) {}

    fn pmem_open(&self, path: Option<&str>, bytes: u64) -> Result<(PmemId, PmemInfo), Errno> {
        if path.is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut memory = self.memory.borrow_mut();
        memory.push(vec![0; bytes as usize]);
        Ok((PmemId(memory.len() as u32 - 1), PmemInfo { bytes, durable: false }))
    }

    fn pmem_read(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        let memory = self.memory.borrow();
        let bytes = memory.get(pmem.0 as usize).ok_or(Errno::EBADF)?;
        let source = bytes.get(offset as usize..).and_then(|rest| rest.get(..target.len()));
        target.copy_from_slice(source.ok_or(Errno::EINVAL)?);
        Ok(())
    }

    fn pmem_store(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(), Errno> {
        let mut memory = self.memory.borrow_mut();
        let bytes = memory.get_mut(pmem.0 as usize).ok_or(Errno::EBADF)?;
        let target = bytes.get_mut(offset as usize..).and_then(|rest| rest.get_mut(..source.len()));
        target.ok_or(Errno::EINVAL)?.copy_from_slice(source);
        Ok(())
    }

    fn pmem_fence(&self, _: PmemId) {}

    fn pmem_close(&self, pmem: PmemId) {
        if let Some(bytes) = self.memory.borrow_mut().get_mut(pmem.0 as usize) {
            *bytes = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{PollPolicy, Reactor, ReactorConfig};

    #[test]
    fn time_passes_only_by_waiting_and_not_beyond_the_next_deadline() {
        let driver = ClockDriver::new(1);
        let config = ReactorConfig { policy: PollPolicy::Sleep, ..ReactorConfig::default() };
        let reactor = Reactor::new(0, driver.clone(), config);
        let seen = Rc::new(RefCell::new(Vec::new()));
        for deadline in [3_000_000u64, 5_000, 700] {
            let (inner, seen) = (reactor.clone(), seen.clone());
            reactor.spawn(async move {
                inner.sleep_until(deadline).await;
                seen.borrow_mut().push(inner.now_ns());
            });
        }
        while !driver.is_idle() {
            if reactor.turn() == 0 {
                reactor.sleep_turn();
            }
        }
        assert_eq!(*seen.borrow(), [700, 5_000, 3_000_000]);
        reactor.close();
    }

    #[test]
    fn memory_is_read_as_it_was_stored_and_ranges_are_checked() {
        let driver = ClockDriver::new(1);
        let (pmem, info) = driver.pmem_open(None, 100).unwrap();
        assert_eq!((info.bytes, info.durable), (100, false));
        driver.pmem_store(pmem, 90, &[7; 10]).unwrap();
        let mut bytes = [0; 3];
        driver.pmem_read(pmem, 89, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 7, 7]);
        assert_eq!(driver.pmem_store(pmem, 91, &[7; 10]), Err(Errno::EINVAL));
        let mut crcs = [0; 2];
        driver.pmem_store_checked(pmem, 0, &[1, 2, 3, 4], &mut crcs).unwrap();
        assert_eq!(crcs, [base::crc32c(&[1, 2]), base::crc32c(&[3, 4])]);
        assert_eq!(driver.pmem_store_checked(pmem, 97, &[7; 4], &mut crcs), Err(Errno::EINVAL));
        assert_eq!(driver.pmem_read(pmem, 98, &mut bytes), Err(Errno::EINVAL));
    }
}
