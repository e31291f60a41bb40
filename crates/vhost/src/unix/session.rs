//! One front end: what it has told so far, and the queues that run because of it.
//!
//! ```text
//! queue: told nothing --size, place, kick, enable--> running --base asked for, disabled, connection lost--> stopped
//! ```
//! Before an answer that says a queue is stopped, every request that it took has been answered in guest memory. The same
//! holds for the end of a connection, so a front end that comes back meets nothing of the past.

use super::door::Shared;
use super::mapping::{self, EventBell};
use super::socket::{self, Message};
use crate::inflight::{self, Inflight};
use crate::memory::{Memory, Place, REGIONS_MAX};
use crate::message::{
    CONFIG_BYTES_MAX, ConfigHeader, Header, InflightArea, MemoryRegion, MemoryTable, NO_DESCRIPTOR, QUEUE_MASK,
    SingleRegion, VringAddress, VringState, code, protocol,
};
use crate::queue::{Bell, Parts, Queue};
use crate::spec::feature;
use crate::split::{self, ENTRIES_MAX, Layout, RingError};
use crate::stats::Counters;
use reactor::{Reactor, ReactorHandle, Signal};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What is sent back.
enum Answer {
    /// Nothing, or an acknowledgement if one is asked for.
    Done,
    /// These bytes, and a descriptor.
    Bytes(Vec<u8>, Option<OwnedFd>),
}

#[derive(Default)]
struct Vring {
    entries: u16,
    address: Option<VringAddress>,
    next_available: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    enabled: bool,
    running: Option<Running>,
}

/// A queue on a reactor.
struct Running {
    reactor: ReactorHandle,
    kept: u64,
    counters: Arc<Counters>,
}

/// See the module.
pub(super) struct Session {
    shared: Arc<Shared>,
    stream: UnixStream,
    features: u64,
    protocol: u64,
    memory: Arc<Memory>,
    area: Option<(Arc<Memory>, InflightArea)>,
    vrings: Vec<Vring>,
}

fn body<T: FromBytes + Immutable + KnownLayout + Copy>(message: &Message) -> Result<T, String> {
    let found = T::read_from_prefix(&message.body).map(|(found, _)| found);
    found.map_err(|_| format!("message {} has {} bytes only", message.header.request, message.body.len()))
}

fn number(message: &Message) -> Result<u64, String> {
    body::<u64>(message)
}

impl Session {
    /// A front end that has just connected.
    pub(super) fn new(shared: Arc<Shared>, stream: UnixStream) -> Session {
        let vrings = (0..shared.disk.queues()).map(|_| Vring::default()).collect();
        Session { shared, stream, features: 0, protocol: 0, memory: Arc::default(), area: None, vrings }
    }

    /// Serves it until it goes; then all its queues have stopped.
    pub(super) fn run(mut self) -> Result<(), String> {
        let served = self.serve();
        self.stop_all();
        *self.shared.lock_backend() = None;
        served
    }

    fn serve(&mut self) -> Result<(), String> {
        while let Some(mut message) = socket::receive(&self.stream)? {
            let header = message.header;
            tracing::trace!(door = %self.shared.name, request = header.request, "vhost-user message");
            let request = header.request;
            match self.handle(&mut message) {
                Ok(Answer::Bytes(bytes, file)) => {
                    socket::send(&self.stream, Header::answer(request, bytes.len()), &bytes, file.as_ref())?;
                }
                Ok(Answer::Done) => self.acknowledge(header, 0)?,
                // Only who waits for an answer can learn that it was refused: otherwise the connection ends.
                Err(reason) if header.needs_answer() && self.protocol & protocol::REPLY_ACK != 0 => {
                    tracing::warn!(door = %self.shared.name, "front end refused: {reason}");
                    self.acknowledge(header, 1)?;
                }
                Err(reason) => return Err(reason),
            }
        }
        Ok(())
    }

    fn acknowledge(&self, header: Header, result: u64) -> Result<(), String> {
        if !header.needs_answer() || self.protocol & protocol::REPLY_ACK == 0 {
            return Ok(());
        }
        socket::send(&self.stream, Header::answer(header.request, 8), &result.to_ne_bytes(), None)
    }

    fn handle(&mut self, message: &mut Message) -> Result<Answer, String> {
        let answer = |value: u64| Ok(Answer::Bytes(value.to_ne_bytes().to_vec(), None));
        match message.header.request {
            code::GET_FEATURES => return answer(self.shared.disk.features()),
            code::GET_PROTOCOL_FEATURES => return answer(protocol::OFFERED),
            code::GET_QUEUE_NUM => return answer(u64::from(self.shared.disk.queues())),
            code::GET_MAX_MEM_SLOTS => return answer(REGIONS_MAX as u64),
            code::SET_OWNER => {}
            code::SET_FEATURES => self.set_features(number(message)?)?,
            code::SET_PROTOCOL_FEATURES => self.protocol = number(message)? & protocol::OFFERED,
            code::RESET_OWNER | code::RESET_DEVICE => self.reset(),
            code::SET_MEM_TABLE => self.set_memory_table(message)?,
            code::ADD_MEM_REG => self.add_region(message)?,
            code::REM_MEM_REG => self.remove_region(message)?,
            code::SET_VRING_NUM => self.set_entries(body(message)?)?,
            code::SET_VRING_ADDR => self.set_address(body(message)?)?,
            code::SET_VRING_BASE => self.set_base(body(message)?)?,
            code::GET_VRING_BASE => return self.base(body(message)?),
            code::SET_VRING_KICK => self.set_kick(message)?,
            code::SET_VRING_CALL => self.set_call(message)?,
            code::SET_VRING_ERR => self.set_error(message)?,
            code::SET_VRING_ENABLE => self.enable(body(message)?)?,
            code::SET_BACKEND_REQ_FD => self.set_backend(message)?,
            code::GET_CONFIG => return self.config(message),
            code::SET_CONFIG => self.set_config(message)?,
            code::GET_INFLIGHT_FD => return self.new_area(body(message)?),
            code::SET_INFLIGHT_FD => self.set_area(message)?,
            other => return Err(format!("message {other} is not known")),
        }
        Ok(Answer::Done)
    }

    fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !self.shared.disk.features();
        if unknown != 0 {
            return Err(format!("features {unknown:#x} were not offered"));
        }
        self.features = features;
        Ok(())
    }

    fn reset(&mut self) {
        self.stop_all();
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
    }

    // --- memory -----------------------------------------------------------------------------------------------------

    fn set_memory_table(&mut self, message: &mut Message) -> Result<(), String> {
        let table: MemoryTable = body(message)?;
        let count = table.regions as usize;
        let entries = message.body[size_of::<MemoryTable>()..].chunks_exact(size_of::<MemoryRegion>()).take(count);
        if entries.len() < count || message.descriptors.len() != count {
            let (told, files) = (entries.len(), message.descriptors.len());
            return Err(format!("a memory table of {count} regions came with {told} and {files} descriptors"));
        }
        let mut regions = Vec::new();
        for (entry, file) in entries.zip(message.descriptors.drain(..)) {
            let told = MemoryRegion::read_from_bytes(entry).map_err(|_| "a memory region is cut short".to_string())?;
            regions.push(mapping::region(&told, file)?);
        }
        let memory = Memory::new(regions).ok_or("memory regions overlap")?;
        self.share(memory)
    }

    fn add_region(&mut self, message: &mut Message) -> Result<(), String> {
        let told: SingleRegion = body(message)?;
        let file = message.descriptors.pop().ok_or("a memory region came without a descriptor")?;
        let region = mapping::region(&told.region, file)?;
        let memory = self.memory.with(region).ok_or("memory regions overlap, or are too many")?;
        self.share(memory)
    }

    fn remove_region(&mut self, message: &Message) -> Result<(), String> {
        let SingleRegion { region: MemoryRegion { guest, bytes, user, .. }, .. } = body(message)?;
        let memory = self.memory.without(Place { guest, user, bytes }).ok_or("there is no such memory region")?;
        self.share(memory)
    }

    /// Running queues go on in the new memory; requests under way end in what they began with.
    fn share(&mut self, memory: Memory) -> Result<(), String> {
        self.memory = Arc::new(memory);
        for index in 0..self.vrings.len() {
            let Some(running) = &self.vrings[index].running else { continue };
            let (kept, reactor) = (running.kept, running.reactor.clone());
            match self.layout(index) {
                Ok(layout) => {
                    let memory = self.memory.clone();
                    reactor.call(move |reactor| {
                        if let Some(queue) = reactor.kept::<Queue>(kept) {
                            queue.set_memory(memory, layout);
                        }
                    });
                }
                Err(reason) => {
                    tracing::warn!(door = %self.shared.name, queue = index, "stopped: {reason}");
                    self.stop(index);
                }
            }
        }
        (0..self.vrings.len()).try_for_each(|index| self.start_if_ready(index))
    }

    // --- queues -----------------------------------------------------------------------------------------------------

    fn vring(&mut self, index: u64) -> Result<&mut Vring, String> {
        let count = self.vrings.len();
        let vring = usize::try_from(index).ok().and_then(|index| self.vrings.get_mut(index));
        vring.ok_or_else(|| format!("there is no queue {index}: the door has {count}"))
    }

    fn set_entries(&mut self, state: VringState) -> Result<(), String> {
        let entries = u16::try_from(state.number).ok().filter(|entries| entries.is_power_of_two());
        let entries = entries.filter(|entries| *entries <= ENTRIES_MAX);
        let entries = entries.ok_or_else(|| format!("a queue cannot have {} entries", state.number))?;
        let vring = self.vring(state.index.into())?;
        if vring.running.is_some() {
            return Err("the size of a running queue cannot change".into());
        }
        vring.entries = entries;
        Ok(())
    }

    fn set_address(&mut self, address: VringAddress) -> Result<(), String> {
        let index = address.index as usize;
        self.vring(index as u64)?.address = Some(address);
        if self.vrings[index].running.is_some() {
            // (sent again when the front end begins to log writes, which is not offered, with the same addresses)
            self.stop(index);
        }
        self.start_if_ready(index)
    }

    fn set_base(&mut self, state: VringState) -> Result<(), String> {
        let vring = self.vring(state.index.into())?;
        if vring.running.is_none() {
            vring.next_available = state.number as u16;
        }
        Ok(())
    }

    /// Stops a queue and tells how far it got.
    fn base(&mut self, state: VringState) -> Result<Answer, String> {
        self.vring(state.index.into())?;
        let index = state.index as usize;
        self.stop(index);
        let vring = &mut self.vrings[index];
        vring.kick = None;
        let state = VringState { index: state.index, number: vring.next_available.into() };
        Ok(Answer::Bytes(state.as_bytes().to_vec(), None))
    }

    /// The queue that a message with an eventfd is about, and the eventfd.
    fn event(&mut self, message: &mut Message) -> Result<(usize, Option<OwnedFd>), String> {
        let told = number(message)?;
        let index = told & QUEUE_MASK;
        self.vring(index)?;
        let descriptor = message.descriptors.pop().filter(|_| told & NO_DESCRIPTOR == 0);
        if descriptor.as_ref().is_some_and(|descriptor| !mapping::is_event(descriptor)) {
            return Err(format!("queue {index} was given a descriptor that is no eventfd"));
        }
        Ok((index as usize, descriptor))
    }

    fn set_kick(&mut self, message: &mut Message) -> Result<(), String> {
        let (index, kick) = self.event(message)?;
        self.stop(index);
        self.vrings[index].kick = Some(kick.ok_or("queues without a kick descriptor are not served")?);
        self.start_if_ready(index)
    }

    fn set_call(&mut self, message: &mut Message) -> Result<(), String> {
        let (index, call) = self.event(message)?;
        let bell = bell_of(&call)?;
        self.vrings[index].call = call;
        self.on_queue(index, move |queue| queue.set_call(bell));
        Ok(())
    }

    fn set_error(&mut self, message: &mut Message) -> Result<(), String> {
        let (index, error) = self.event(message)?;
        let bell = bell_of(&error)?;
        self.vrings[index].error = error;
        self.on_queue(index, move |queue| queue.set_error(bell));
        Ok(())
    }

    fn on_queue(&self, index: usize, action: impl FnOnce(&Rc<Queue>) + Send + 'static) {
        let Some(running) = &self.vrings[index].running else { return };
        let kept = running.kept;
        running.reactor.call(move |reactor| {
            if let Some(queue) = reactor.kept::<Queue>(kept) {
                action(&queue);
            }
        });
    }

    fn enable(&mut self, state: VringState) -> Result<(), String> {
        let enabled = state.number == 1;
        self.vring(state.index.into())?.enabled = enabled;
        match enabled {
            true => self.start_if_ready(state.index as usize)?,
            false => self.stop(state.index as usize),
        }
        Ok(())
    }

    fn layout(&self, index: usize) -> Result<Layout, String> {
        let Vring { entries, address, .. } = &self.vrings[index];
        let VringAddress { table, used, available, .. } = address.ok_or("it has no address")?;
        let entries = *entries;
        let translate = |user, bytes| {
            self.memory.translate(user, bytes).map_err(|_| format!("{user:#x}+{bytes} is not in the shared memory"))
        };
        Ok(Layout {
            entries,
            table: translate(table, split::table_bytes(entries))?,
            available: translate(available, split::available_bytes(entries))?,
            used: translate(used, split::used_bytes(entries))?,
        })
    }

    /// Starts a queue when everything about it is known.
    fn start_if_ready(&mut self, index: usize) -> Result<(), String> {
        let negotiated = self.features & feature::PROTOCOL_FEATURES != 0;
        let vring = &self.vrings[index];
        let told = vring.entries > 0 && vring.address.is_some() && vring.kick.is_some();
        if vring.running.is_some() || !told || (negotiated && !vring.enabled) {
            return Ok(());
        }
        self.start(index).map_err(|reason| format!("queue {index} cannot start: {reason}"))
    }

    fn start(&mut self, index: usize) -> Result<(), String> {
        let layout = self.layout(index)?;
        let inflight = match &self.area {
            Some((memory, area)) if index < usize::from(area.queues) => {
                let at = index as u64 * inflight::queue_bytes(area.entries);
                let part = Inflight::new(memory.clone(), at, area.entries).filter(Inflight::check);
                let part = part.filter(|_| layout.entries <= area.entries);
                Some(part.ok_or("what is noted of its requests under way does not fit it")?)
            }
            _ => None,
        };
        let vring = &self.vrings[index];
        let copy = |descriptor: &OwnedFd| descriptor.try_clone().map_err(|error| format!("no descriptor: {error}"));
        let kick = copy(vring.kick.as_ref().ok_or("it has no kick descriptor")?)?;
        let (call, error) = (bell_of(&vring.call)?, bell_of(&vring.error)?);
        let reactor = self.shared.reactor_of(index).clone();
        let counters = self.shared.counters();
        let (disk, memory, features) = (self.shared.disk.clone(), self.memory.clone(), self.features);
        let (next_available, name) = (vring.next_available, format!("{}/{index}", self.shared.name));
        let (counted, closing) = (counters.clone(), self.shared.closing.clone());
        let started = reactor.call(move |reactor| {
            let channel = disk.device().open_channel(reactor).map_err(|error| error.to_string())?;
            let parts = Parts {
                name,
                disk,
                channel,
                memory,
                layout,
                features,
                next_available,
                inflight,
                call,
                error,
                counters: counted,
                closing,
                defect: None,
            };
            let kick = reactor::driver::ExportedSocket { raw: kick.into_raw_fd() as u64 };
            let signal = Signal::import(reactor, kick).map_err(|error| format!("cannot watch its kicks: {error}"))?;
            let queue = Queue::serve(reactor, parts).map_err(|error| error.to_string())?;
            reactor.spawn(watch(reactor.clone(), queue.clone(), signal));
            Ok::<u64, String>(reactor.keep::<Queue>(queue))
        });
        match started {
            Some(Ok(kept)) => {
                self.vrings[index].running = Some(Running { reactor, kept, counters });
                self.shared.queue_started();
                Ok(())
            }
            failed => {
                self.shared.counted(&counters);
                Err(failed.and_then(Result::err).unwrap_or_else(|| "the reactor has ended".to_string()))
            }
        }
    }

    /// Stops a queue and notes how far it got.
    fn stop(&mut self, index: usize) {
        let Some(Running { reactor, kept, counters }) = self.vrings[index].running.take() else { return };
        let stopped = reactor.call_async(move |reactor: Rc<Reactor>| async move {
            let queue = reactor.kept::<Queue>(kept)?;
            let next = queue.end().await;
            reactor.release::<Queue>(kept);
            Some(next)
        });
        if let Some(next) = stopped.flatten() {
            self.vrings[index].next_available = next;
        }
        self.shared.counted(&counters);
        self.shared.queue_stopped();
    }

    fn stop_all(&mut self) {
        (0..self.vrings.len()).for_each(|index| self.stop(index));
    }

    // --- the rest ---------------------------------------------------------------------------------------------------

    fn set_backend(&mut self, message: &mut Message) -> Result<(), String> {
        let descriptor = message.descriptors.pop().ok_or("a back channel came without a descriptor")?;
        *self.shared.lock_backend() = Some(UnixStream::from(descriptor));
        Ok(())
    }

    fn config(&self, message: &Message) -> Result<Answer, String> {
        let asked: ConfigHeader = body(message)?;
        let (offset, bytes) = (asked.offset as usize, asked.bytes as usize);
        if offset > CONFIG_BYTES_MAX || bytes > CONFIG_BYTES_MAX {
            return Err(format!("bytes {offset}+{bytes} of a configuration space were asked for"));
        }
        let mut answer = asked.as_bytes().to_vec();
        answer.extend(self.shared.disk.config_bytes(offset, bytes));
        Ok(Answer::Bytes(answer, None))
    }

    fn set_config(&self, message: &Message) -> Result<(), String> {
        let told: ConfigHeader = body(message)?;
        let bytes = &message.body[size_of::<ConfigHeader>()..];
        let bytes = bytes.get(..told.bytes as usize).ok_or("a change of the configuration space is cut short")?;
        let offset = told.offset as usize;
        // Nothing in it can be set; front ends write back all that they have read.
        if offset > CONFIG_BYTES_MAX || !self.shared.disk.config_is(offset, bytes) {
            return Err("nothing can be set in the configuration space".into());
        }
        Ok(())
    }

    fn new_area(&mut self, asked: InflightArea) -> Result<Answer, String> {
        let InflightArea { queues, entries, .. } = asked;
        if queues == 0 || queues > self.shared.disk.queues() || entries == 0 || entries > ENTRIES_MAX {
            return Err(format!("requests under way of {queues} queues of {entries} entries cannot be noted"));
        }
        let bytes = u64::from(queues) * inflight::queue_bytes(entries);
        let (memory, file) = mapping::new_area(bytes)?;
        let area = InflightArea::new(bytes, queues, entries);
        self.area = Some((Arc::new(memory), area));
        Ok(Answer::Bytes(area.as_bytes().to_vec(), Some(file.into())))
    }

    fn set_area(&mut self, message: &mut Message) -> Result<(), String> {
        let area: InflightArea = body(message)?;
        let file = message.descriptors.pop().ok_or("memory for requests under way came without a descriptor")?;
        let needed = u64::from(area.queues) * inflight::queue_bytes(area.entries);
        if area.entries > ENTRIES_MAX || area.bytes < needed {
            return Err(format!("{} bytes do not hold the requests under way of its queues", area.bytes));
        }
        if self.vrings.iter().any(|vring| vring.running.is_some()) {
            return Err("memory for requests under way came while a queue runs".into());
        }
        self.area = Some((Arc::new(mapping::area(area.bytes, area.offset, file)?), area));
        Ok(())
    }
}

fn bell_of(descriptor: &Option<OwnedFd>) -> Result<Option<Box<dyn Bell>>, String> {
    let Some(descriptor) = descriptor else { return Ok(None) };
    let copy = descriptor.try_clone().map_err(|error| format!("no descriptor: {error}"))?;
    let bell = EventBell::new(copy).ok_or("a descriptor is no eventfd")?;
    Ok(Some(Box::new(bell)))
}

/// Passes kicks on until the queue stops, one a turn.
async fn watch(reactor: Rc<Reactor>, queue: Rc<Queue>, signal: Signal) {
    loop {
        let mut given = pin!(signal.given());
        let mut changed = pin!(queue.changed().notified());
        let kicked = std::future::poll_fn(|cx| {
            if queue.is_stopped() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(given) = given.as_mut().poll(cx) {
                return Poll::Ready(Some(given));
            }
            // (woken by what it waits for, it looks at the queue again)
            let _ = changed.as_mut().poll(cx);
            Poll::Pending
        });
        match kicked.await {
            None => return,
            Some(Ok(())) => queue.kicked(),
            Some(Err(error)) => return queue.fail(RingError::Kick(error)),
        }
        reactor.yield_now().await;
    }
}
