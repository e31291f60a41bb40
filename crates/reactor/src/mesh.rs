//! The mesh: one SPSC ring from every reactor to every other, and a door for threads that are no reactors.
//!
//! A [`Message`] is a small closure in place, such as a pointer to a [call](crate::call); a larger one is boxed. Rings are bounded:
//! when one is full the sender gets its message back and waits its turn. Receivers that may be asleep are told once for all that
//! was sent in a turn.

use crate::exec::ExecShared;
use crate::prefetch::Lines;
use crate::reactor::Reactor;
use crossbeam_queue::SegQueue;
use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

/// Messages that one ring holds.
pub const RING_CAPACITY: usize = 256;
/// With the function and the hint, half a line of the caches.
const INLINE_WORDS: usize = 2;

type Storage = [MaybeUninit<u64>; INLINE_WORDS];

/// A closure on its way to another reactor.
pub struct Message {
    storage: Storage,
    /// Called once with `Some(reactor)` to run the closure, or with `None` to drop it.
    run: unsafe fn(*mut Storage, Option<&Rc<Reactor>>),
    /// What the closure needs first.
    hint: Lines,
}

// SAFETY: `new` only takes closures that are Send.
unsafe impl Send for Message {}

impl Message {
    /// Wraps `action`, to be run on the receiving reactor's thread.
    pub fn new<F: FnOnce(&Rc<Reactor>) + Send + 'static>(action: F) -> Message {
        Message::with_hint(Lines::NONE, action)
    }

    /// As [`new`](Self::new); the receiver asks for some memory before it runs messages that have come together.
    pub(crate) fn with_hint<F: FnOnce(&Rc<Reactor>) + Send + 'static>(hint: Lines, action: F) -> Message {
        if size_of::<F>() <= size_of::<Storage>() && align_of::<F>() <= align_of::<u64>() {
            Message::inline(hint, action)
        } else {
            let boxed = Box::new(action);
            Message::inline(hint, move |reactor: &Rc<Reactor>| boxed(reactor))
        }
    }

    fn inline<F: FnOnce(&Rc<Reactor>) + Send + 'static>(hint: Lines, action: F) -> Message {
        /// # Safety
        /// `storage` holds a live `F`, which is gone afterwards.
        unsafe fn run<F: FnOnce(&Rc<Reactor>)>(storage: *mut Storage, reactor: Option<&Rc<Reactor>>) {
            // SAFETY: by the caller.
            let action = unsafe { storage.cast::<F>().read() };
            if let Some(reactor) = reactor {
                action(reactor);
            }
        }
        let mut storage: Storage = [MaybeUninit::uninit(); INLINE_WORDS];
        // SAFETY: size and alignment were checked by `with_hint`; a box always fits.
        unsafe { storage.as_mut_ptr().cast::<F>().write(action) };
        Message { storage, run: run::<F>, hint }
    }

    /// Asks for what it needs.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.hint.prefetch();
    }

    /// Runs the closure.
    pub(crate) fn run(self, reactor: &Rc<Reactor>) {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the closure is live; ManuallyDrop keeps it from being dropped a second time.
        unsafe { (this.run)(&raw mut this.storage, Some(reactor)) };
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: a message that is dropped was not run, so its closure is live.
        unsafe { (self.run)(&raw mut self.storage, None) };
    }
}

/// A reactor as seen from any thread.
#[derive(Clone)]
pub struct ReactorHandle {
    index: usize,
    exec: Arc<ExecShared>,
    door: Arc<SegQueue<Message>>,
}

impl ReactorHandle {
    pub(crate) fn new(index: usize, exec: Arc<ExecShared>, door: Arc<SegQueue<Message>>) -> Self {
        ReactorHandle { index, exec, door }
    }

    /// The reactor's number, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Runs `action` on the reactor's thread, soon. For control work; it takes the unbounded side door.
    pub fn run(&self, action: impl FnOnce(&Rc<Reactor>) + Send + 'static) {
        self.door.push(Message::new(action));
        self.exec.wake_if_asleep();
    }

    /// Runs `action` there and waits for its result. Must not be called from a reactor's thread. `None` when the reactor
    /// is gone.
    pub fn call<T: Send + 'static>(&self, action: impl FnOnce(&Rc<Reactor>) -> T + Send + 'static) -> Option<T> {
        let (reply, result) = std::sync::mpsc::sync_channel(1);
        self.run(move |reactor| {
            let _ = reply.send(action(reactor));
        });
        result.recv().ok()
    }

    /// Runs a future there and waits for its result; as [`call`](Self::call).
    pub fn call_async<T, F, M>(&self, make: M) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        M: FnOnce(Rc<Reactor>) -> F + Send + 'static,
    {
        let (reply, result) = std::sync::mpsc::sync_channel(1);
        self.run(move |reactor| {
            let future = make(reactor.clone());
            reactor.spawn(async move {
                let _ = reply.send(future.await);
            });
        });
        result.recv().ok()
    }
}

/// What one reactor holds of the mesh.
#[derive(Default)]
pub(crate) struct MeshEnds {
    /// By the other reactor's index; `None` for itself.
    outgoing: Vec<Option<RefCell<rtrb::Producer<Message>>>>,
    incoming: Vec<Option<RefCell<rtrb::Consumer<Message>>>>,
    peers: Vec<ReactorHandle>,
    /// By the other reactor's index: something was sent to it, and it may have gone to sleep before.
    untold: Vec<Cell<bool>>,
    any_untold: Cell<bool>,
}

impl MeshEnds {
    pub(crate) fn peers(&self) -> &[ReactorHandle] {
        &self.peers
    }

    /// Sends to reactor `to`; gives the message back when the ring is full. It must be [told](Self::tell) afterwards.
    pub(crate) fn send(&self, to: usize, message: Message) -> Result<(), Message> {
        let ring = self.outgoing[to].as_ref().expect("a reactor does not send to itself through the mesh");
        ring.borrow_mut().push(message).map_err(|rtrb::PushError::Full(message)| message)?;
        let exec = &self.peers[to].exec;
        if exec.gate.seems_asleep() {
            exec.wake_if_asleep();
        } else {
            self.untold[to].set(true);
            self.any_untold.set(true);
        }
        Ok(())
    }

    /// Tells the reactors to which something was sent, should they be asleep.
    #[inline]
    pub(crate) fn tell(&self) {
        if self.any_untold.replace(false) {
            let untold = self.untold.iter().zip(&self.peers).filter(|(untold, _)| untold.replace(false));
            untold.for_each(|(_, peer)| peer.exec.wake_if_asleep());
        }
    }

    /// Takes up to `budget` messages, a fair share from each ring.
    pub(crate) fn receive(&self, budget: usize, mut each: impl FnMut(Message)) -> usize {
        let mut taken = 0;
        let share = (budget / self.incoming.len().max(1)).max(1);
        for ring in self.incoming.iter().flatten() {
            for _ in 0..share {
                let Ok(message) = ring.borrow_mut().pop() else { break };
                taken += 1;
                each(message);
            }
        }
        taken
    }

    pub(crate) fn has_incoming(&self) -> bool {
        self.incoming.iter().flatten().any(|ring| !ring.borrow().is_empty())
    }
}

/// Builds the rings for a group of reactors; each thread takes its ends once.
pub struct MeshBuilder {
    ends: Mutex<Vec<Option<MeshRings>>>,
}

type MeshRings = (Vec<Option<rtrb::Producer<Message>>>, Vec<Option<rtrb::Consumer<Message>>>);

impl MeshBuilder {
    /// Rings between `count` reactors.
    pub fn new(count: usize) -> Self {
        let empty = || (0..count).map(|_| None).collect();
        let mut ends: Vec<MeshRings> = (0..count).map(|_| (empty(), (0..count).map(|_| None).collect())).collect();
        for from in 0..count {
            for to in (0..count).filter(|to| *to != from) {
                let (producer, consumer) = rtrb::RingBuffer::new(RING_CAPACITY);
                ends[from].0[to] = Some(producer);
                ends[to].1[from] = Some(consumer);
            }
        }
        MeshBuilder { ends: Mutex::new(ends.into_iter().map(Some).collect()) }
    }

    pub(crate) fn take(&self, index: usize, peers: Vec<ReactorHandle>) -> MeshEnds {
        let mut ends = self.ends.lock().expect("nothing panics while holding the mesh");
        let (outgoing, incoming) = ends[index].take().expect("each reactor takes its ends once");
        MeshEnds {
            outgoing: outgoing.into_iter().map(|end| end.map(RefCell::new)).collect(),
            incoming: incoming.into_iter().map(|end| end.map(RefCell::new)).collect(),
            untold: peers.iter().map(|_| Cell::default()).collect(),
            any_untold: Cell::default(),
            peers,
        }
    }
}
