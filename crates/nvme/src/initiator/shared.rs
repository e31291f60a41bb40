//! What the reactors of one device share: which association is in force, which blocks are suspect, which queues are free.
//!
//! The mutex is for the control path: it is taken when an association begins or ends, never per I/O. Every wait is a
//! registered waker, and every change wakes them all.

use bdev::{DeviceInfo, Status};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use super::controller::NamespaceIds;
use super::device::Known;
use super::fence::{Fence, Suspect};
use super::lane::RemoteLane;
use super::options::Options;
use super::plan::Target;

/// The association in force, as lanes need it.
#[derive(Clone, Debug)]
pub(super) struct Association {
    /// Counts associations of this device, from 1.
    pub(super) number: u64,
    /// Controller identifier.
    pub(super) controller: u16,
    /// Entries of each I/O queue.
    pub(super) entries: u16,
    /// What commands are about.
    pub(super) target: Target,
}

/// Where the device stands.
///
/// ```text
/// Down <--lost--> Up          Down, Up --close, controller given up--> Closed
/// ```
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Lanes may connect.
    Up(Arc<Association>),
    /// No association since this time.
    Down {
        /// Reactor time, ns.
        since_ns: u64,
    },
    /// For good; requests end so.
    Closed(Status),
}

/// What happens to a queue when its lane lets it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// It was closed in order and may be connected again.
    Idle,
    /// It was lost or could not be connected: the association is not what it was.
    Failed,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Changes with everything below and above.
    version: u64,
    wakers: Vec<Waker>,
    /// Lanes that hold a queue of the association, or of the one that is ending.
    attached: usize,
    free_queues: Vec<u16>,
    failed: bool,
    /// There has been an association.
    was_up: bool,
    fence: Fence,
    /// Commands to abort: queue and identifier.
    aborts: Vec<(u16, u16)>,
    /// Lanes that have a queue, for those that have none.
    servers: Vec<RemoteLane>,
    closing: bool,
    /// Looks at the namespace's size that were asked for, and that were done.
    refreshes_asked: u64,
    refreshes_done: u64,
}

/// See the module.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) options: Options,
    pub(super) nsid: u32,
    info: DeviceInfo,
    /// What tells the namespace from others.
    pub(super) ids: NamespaceIds,
    blocks: AtomicU64,
    lanes: AtomicU32,
    /// Associations that were built again.
    pub(super) reconnects: AtomicU64,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn new(name: &str, options: Options, nsid: u32, known: Known) -> Shared {
        let Known { info, ids } = known;
        Shared {
            name: name.to_string(),
            options,
            nsid,
            info,
            ids,
            blocks: AtomicU64::new(info.blocks),
            lanes: AtomicU32::new(1),
            reconnects: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Down { since_ns: 0 },
                version: 0,
                wakers: Vec::new(),
                attached: 0,
                free_queues: Vec::new(),
                failed: false,
                was_up: false,
                fence: Fence::default(),
                aborts: Vec::new(),
                servers: Vec::new(),
                closing: false,
                refreshes_asked: 0,
                refreshes_done: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }

    fn change<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let result = action(&mut state);
        state.version += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        result
    }

    /// Waits until something has changed since `seen`, which is brought up to date.
    pub(super) async fn changed(&self, seen: &mut u64) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if state.version != *seen {
                *seen = state.version;
                return Poll::Ready(());
            }
            if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.wakers.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// What the device is now.
    #[inline]
    pub(super) fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks.load(Ordering::Relaxed), ..self.info }
    }

    pub(super) fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    /// A number for a lane.
    pub(super) fn number_lane(&self) -> u32 {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase.clone()
    }

    // --- for lanes --------------------------------------------------------------------------------------------------

    /// Takes a queue of association `number`, if that is in force and one is free.
    pub(super) fn take_queue(&self, number: u64) -> Option<u16> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Up(association) if association.number == number && !state.failed && !state.closing => {}
            _ => return None,
        }
        let queue = state.free_queues.pop()?;
        state.attached += 1;
        Some(queue)
    }

    /// Announces a lane that has a queue.
    pub(super) fn add_server(&self, server: RemoteLane) {
        self.change(|state| state.servers.push(server));
    }

    /// A lane that can serve for lane `number` of a group of `reactors` reactors.
    pub(super) fn find_server(&self, number: u32, reactors: usize) -> Option<RemoteLane> {
        let state = self.lock();
        let reachable: Vec<_> = state.servers.iter().filter(|server| server.reactor < reactors).collect();
        reachable.get(number as usize % reachable.len().max(1)).copied().copied()
    }

    /// Gives a queue back, with what commands of it may still do.
    pub(super) fn release_queue(&self, queue: u16, server: RemoteLane, release: Release, suspects: Vec<Suspect>) {
        self.change(|state| {
            state.attached -= 1;
            state.servers.retain(|other| *other != server);
            state.fence.add(suspects);
            match release {
                // To the far end: the controller may take a moment to notice that it was closed.
                Release::Idle => state.free_queues.insert(0, queue),
                Release::Failed => state.failed = true,
            }
        });
    }

    /// The suspect blocks.
    pub(super) fn fence(&self) -> Option<Arc<Fence>> {
        self.lock().fence.share()
    }

    /// Asks for the abort of commands of a queue.
    pub(super) fn request_aborts(&self, queue: u16, cids: &[u16]) {
        if !cids.is_empty() {
            self.change(|state| state.aborts.extend(cids.iter().map(|cid| (queue, *cid))));
        }
    }

    // --- for the supervisor -----------------------------------------------------------------------------------------

    pub(super) fn set_up(&self, association: Association, queues: u16) {
        self.change(|state| {
            assert_eq!(state.attached, 0, "an association begins when nothing is left of the last one");
            state.free_queues = (1..=queues).rev().collect();
            state.failed = false;
            state.was_up = true;
            state.aborts.clear();
            state.phase = Phase::Up(Arc::new(association));
        });
    }

    pub(super) fn set_down(&self, now_ns: u64) {
        self.change(|state| state.phase = Phase::Down { since_ns: now_ns });
    }

    pub(super) fn set_closed(&self, status: Status) {
        self.change(|state| state.phase = Phase::Closed(status));
    }

    /// Whether there has ever been an association.
    pub(super) fn was_up(&self) -> bool {
        self.lock().was_up
    }

    pub(super) fn attached(&self) -> usize {
        self.lock().attached
    }

    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    pub(super) fn take_aborts(&self) -> Vec<(u16, u16)> {
        std::mem::take(&mut self.lock().aborts)
    }

    pub(super) fn lift_fence(&self, association: u64) {
        self.change(|state| state.fence.lift(association));
    }

    pub(super) fn request_close(&self) {
        self.change(|state| state.closing = true);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Asks for a look at the namespace's size; returns the number of the request.
    pub(super) fn request_refresh(&self) -> u64 {
        self.change(|state| {
            state.refreshes_asked += 1;
            state.refreshes_asked
        })
    }

    /// Requests for a look that are open; to be passed to [`refreshed`](Self::refreshed) when it was done.
    pub(super) fn refresh_wanted(&self) -> Option<u64> {
        let state = self.lock();
        (state.refreshes_asked > state.refreshes_done).then_some(state.refreshes_asked)
    }

    /// Looks up to number `request` have been done.
    pub(super) fn refreshed(&self, request: u64) {
        self.change(|state| state.refreshes_done = request);
    }

    pub(super) fn is_refreshed(&self, request: u64) -> bool {
        self.lock().refreshes_done >= request
    }
}
