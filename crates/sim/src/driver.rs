//! [`SimDriver`]: the simulated world as one reactor sees it.
//!
//! Once its process is dead every call is without effect, so the destructors that run while a killed reactor is dropped,
//! and the rest of a turn after a crash point, change nothing.

use crate::faults::Mutation;
use crate::pmem::Pmem;
use crate::state::State;
use base::Errno;
use reactor::driver::{ExportedSocket, FileId, FileOp, PmemId, PmemInfo, RemoteWake, SocketId, Token};
use reactor::{Driver, Event, FileInfo, FileOptions, Slice};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Remembers that somebody asked for the reactor.
#[derive(Default)]
pub(crate) struct SimWake(AtomicBool);

impl SimWake {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl RemoteWake for SimWake {
    fn wake(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One reactor's driver in a simulated world; made by [`World::boot`](crate::World::boot).
pub struct SimDriver {
    pub(crate) state: Rc<RefCell<State>>,
    pub(crate) index: usize,
}

impl SimDriver {
    fn collect(&self, events: &mut Vec<Event>) {
        let state = &mut *self.state.borrow_mut();
        if !state.alive(self.index) {
            return;
        }
        let (spurious, held) = (state.schedule.spurious_ready, state.schedule.held_events);
        if state.chance(spurious) {
            state.net_spurious(self.index);
        }
        let count = state.drivers[self.index].events.len();
        if count == 0 {
            return;
        }
        let take = if count > 1 && state.chance(held) { 1 + state.rng.below(count as u64 - 1) as usize } else { count };
        for _ in 0..take {
            let left = state.drivers[self.index].events.len() as u64;
            let pick = state.rng.below(left) as usize;
            let event = state.drivers[self.index].events.swap_remove(pick);
            if matches!(event, Event::File { .. }) {
                state.drivers[self.index].in_flight -= 1;
            }
            events.push(event);
        }
        state.event("driver {} takes {} of {} events", [self.index as u64, take as u64, count as u64, 0]);
    }

    fn gather(&self, slices: &[Slice], space: usize) -> Vec<u8> {
        let mut data = Vec::new();
        for slice in slices {
            if data.len() >= space {
                break;
            }
            // SAFETY: the contract of `net_send`: the caller keeps the slices valid during the call.
            unsafe { slice.copy_to(&mut data) };
        }
        data.truncate(space);
        data
    }
}

impl Driver for SimDriver {
    fn now_ns(&self) -> u64 {
        let state = &mut *self.state.borrow_mut();
        let early = state.mutated(Mutation::EarlyTimer) && state.rng.one_in(16);
        state.now_ns + if early { 5_000_000 } else { 0 }
    }

    fn random_u64(&self) -> u64 {
        self.state.borrow_mut().rng.next_u64()
    }

    fn shuffles(&self) -> bool {
        true
    }

    fn choose(&self, ready: usize) -> usize {
        self.state.borrow_mut().rng.below(ready as u64) as usize
    }

    fn poll(&self, events: &mut Vec<Event>) {
        self.collect(events);
    }

    fn wait(&self, _deadline_ns: Option<u64>, events: &mut Vec<Event>) {
        // A wait may end early for no reason; virtual time passes between turns.
        self.collect(events);
    }

    fn in_flight(&self) -> usize {
        self.state.borrow().drivers[self.index].in_flight
    }

    fn waker(&self) -> Arc<dyn RemoteWake> {
        self.state.borrow().drivers[self.index].wake.clone()
    }

    fn file_open(&self, path: &str, options: &FileOptions) -> Result<(FileId, FileInfo), Errno> {
        self.state.borrow_mut().file_open(self.index, path, options)
    }

    fn file_info(&self, file: FileId) -> Result<FileInfo, Errno> {
        self.state.borrow().file_info(self.index, file)
    }

    fn file_resize(&self, file: FileId, bytes: u64) -> Result<(), Errno> {
        self.state.borrow_mut().file_resize(self.index, file, bytes)
    }

    fn file_submit(&self, file: FileId, op: FileOp, token: Token) {
        self.state.borrow_mut().file_submit(self.index, file, op, token);
    }

    fn file_close(&self, file: FileId) {
        self.state.borrow_mut().file_close(self.index, file);
    }

    fn net_listen(&self, address: SocketAddr, shared_port: bool) -> Result<(SocketId, SocketAddr), Errno> {
        self.state.borrow_mut().net_listen(self.index, address, shared_port)
    }

    fn net_accept(&self, listener: SocketId) -> Result<(SocketId, SocketAddr), Errno> {
        self.state.borrow_mut().net_accept(self.index, listener)
    }

    fn net_connect(&self, address: SocketAddr) -> Result<SocketId, Errno> {
        self.state.borrow_mut().net_connect(self.index, address)
    }

    fn net_connect_result(&self, socket: SocketId) -> Result<(), Errno> {
        self.state.borrow_mut().net_connect_result(self.index, socket)
    }

    fn net_recv(&self, socket: SocketId, target: &mut [u8]) -> Result<usize, Errno> {
        self.state.borrow_mut().net_recv(self.index, socket, &mut [target])
    }

    fn net_recv_vectored(&self, socket: SocketId, targets: &mut [&mut [u8]]) -> Result<usize, Errno> {
        self.state.borrow_mut().net_recv(self.index, socket, targets)
    }

    fn net_send(&self, socket: SocketId, slices: &[Slice]) -> Result<usize, Errno> {
        let state = &mut *self.state.borrow_mut();
        let (connection, space) = state.net_send_space(self.index, socket)?;
        let data = self.gather(slices, space);
        state.net_send(connection, &data);
        Ok(data.len())
    }

    fn net_export(&self, socket: SocketId) -> Result<ExportedSocket, Errno> {
        self.state.borrow_mut().net_export(self.index, socket).map(|raw| ExportedSocket { raw })
    }

    fn net_import(&self, socket: ExportedSocket) -> Result<SocketId, Errno> {
        self.state.borrow_mut().net_import(self.index, socket.raw)
    }

    fn net_close(&self, socket: SocketId) {
        self.state.borrow_mut().net_close(self.index, socket);
    }

    // Shared-memory segments that survive a kill and not a reboot will want a call of their own; a mapping without a path
    // is private here and gone with its process.
    fn pmem_open(&self, path: Option<&str>, bytes: u64) -> Result<(PmemId, PmemInfo), Errno> {
        let state = &mut *self.state.borrow_mut();
        if !state.alive(self.index) {
            return Err(Errno::EIO);
        }
        let node = state.drivers[self.index].node;
        let known = path.and_then(|path| state.nodes[node.0].pmems.get(path).copied());
        let pmem = match known {
            Some(pmem) => pmem,
            None => {
                if bytes == 0 {
                    return Err(Errno::ENOENT);
                }
                state.pmems.push(Pmem::new(bytes, path.is_some()));
                let pmem = state.pmems.len() - 1;
                if let Some(path) = path {
                    state.nodes[node.0].pmems.insert(path.to_string(), pmem);
                }
                pmem
            }
        };
        let id = PmemId(state.fresh_id() as u32);
        state.drivers[self.index].pmems.insert(id.0, pmem);
        let info = PmemInfo { bytes: state.pmems[pmem].bytes(), durable: state.pmems[pmem].durable };
        Ok((id, info))
    }

    fn pmem_read(&self, pmem: PmemId, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        let state = &*self.state.borrow();
        let pmem = self.mapped(state, pmem)?;
        if state.pmems[pmem].read(offset, target) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn pmem_store(&self, pmem: PmemId, offset: u64, source: &[u8]) -> Result<(), Errno> {
        let state = &mut *self.state.borrow_mut();
        let pmem = self.mapped(state, pmem)?;
        if !state.pmems[pmem].store(self.index, offset, source) {
            return Err(Errno::EINVAL);
        }
        state.event("driver {} stores {} bytes at {}", [self.index as u64, source.len() as u64, offset, 0]);
        let node = state.drivers[self.index].node;
        state.count_write(node);
        Ok(())
    }

    fn pmem_fence(&self, pmem: PmemId) {
        let state = &mut *self.state.borrow_mut();
        let Ok(pmem) = self.mapped(state, pmem) else { return };
        if !state.mutated(Mutation::SkipFence) {
            state.pmems[pmem].fence(self.index);
        }
        state.event("driver {} fences", [self.index as u64, 0, 0, 0]);
        let node = state.drivers[self.index].node;
        state.count_write(node);
    }

    fn pmem_close(&self, pmem: PmemId) {
        self.state.borrow_mut().drivers[self.index].pmems.remove(&pmem.0);
    }
}

impl SimDriver {
    fn mapped(&self, state: &State, pmem: PmemId) -> Result<usize, Errno> {
        if !state.alive(self.index) {
            return Err(Errno::EIO);
        }
        state.drivers[self.index].pmems.get(&pmem.0).copied().ok_or(Errno::EBADF)
    }
}
