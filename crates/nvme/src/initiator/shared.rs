//! What the reactors share of one path of a device: which association is in force, which queues are free, how the namespace can
//! be reached.
//!
//! The mutex is for the control path: it is taken when an association begins or ends, never per I/O. Every wait is a
//! registered waker, and every change wakes them all.

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use super::error::ConnectError;
use super::lane::RemoteLane;
use super::link::Broken;
use super::multipath::{Namespace, Unflushed};
use super::options::Options;
use super::plan::Target;
use crate::spec::ana::AnaState;

/// The association in force, as lanes need it.
#[derive(Clone, Debug)]
pub(super) struct Association {
    /// Counts associations of the device, over all its paths, from 1.
    pub(super) number: u64,
    /// Controller identifier.
    pub(super) controller: u16,
    /// Entries of each I/O queue.
    pub(super) entries: u16,
    /// What commands are about.
    pub(super) target: Target,
    /// Serial number of the controller's subsystem.
    pub(super) serial: String,
    /// The controller has a volatile write cache.
    pub(super) volatile_cache: bool,
}

/// Where a path stands.
///
/// ```text
/// Down <--lost--> Up          Down, Up --close, path removed, controller given up--> Closed
/// ```
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Lanes may connect.
    Up(Arc<Association>),
    /// No association now.
    Down,
    /// For good.
    Closed,
}

/// Why a path has no association.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The last one was lost.
    Lost(Broken),
    /// None could be built.
    NotConnected(ConnectError),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Lost(reason) => write!(f, "connection lost: {reason}"),
            Trouble::NotConnected(error) => error.fmt(f),
        }
    }
}

/// What happens to a queue when its lane lets it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    /// It was closed in order and may be connected again.
    Idle,
    /// It was lost or could not be connected, for this reason: the association is not what it was.
    Failed(Broken),
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
    /// Why a queue of the association failed, where one did.
    failed: Option<Broken>,
    /// There has been an association.
    was_up: bool,
    /// A queue of the association has been connected.
    had_queue: bool,
    /// The last association ended since no queue of it could be connected, and none has been since.
    is_barren: bool,
    /// Operations could be sent here when that was last looked at.
    is_useful: bool,
    /// Size of the namespace by what the controller said last; 0 when it had none.
    blocks: Option<u64>,
    /// What the controller says of the namespace, and since when, reactor time in ns.
    ana: (AnaState, u64),
    /// Looks at the controller's log that were asked for, and that were done.
    ana_asked: u64,
    ana_done: u64,
    /// Why there was no association the last time that one was tried, or why the last one ended.
    trouble: Option<Trouble>,
    /// Commands to abort: queue and identifier.
    aborts: Vec<(u16, u16)>,
    /// Lanes that have a queue, for those that have none.
    servers: Vec<RemoteLane>,
    closing: bool,
    /// An attempt to connect is wanted now, not after the pause.
    is_hurried: bool,
    /// Looks at the namespace's size that were asked for, and that were done.
    refreshes_asked: u64,
    refreshes_done: u64,
}

/// See the module.
pub(super) struct Shared {
    /// What all paths share.
    pub(super) namespace: Arc<Namespace>,
    /// How to reach this path's controllers.
    pub(super) options: Options,
    /// Associations that were built again.
    pub(super) reconnects: AtomicU64,
    /// Operations that were given to this path's lanes; lanes tell them now and then.
    pub(super) ios: AtomicU64,
    /// Operations that this path gave back, since their connection was lost.
    pub(super) lost: AtomicU64,
    /// Operations that this path's controllers refused for the sake of the path.
    pub(super) refused: AtomicU64,
    /// Whether it has to be flushed.
    pub(super) unflushed: Arc<Unflushed>,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn new(namespace: Arc<Namespace>, options: Options) -> Shared {
        Shared {
            namespace,
            options,
            reconnects: AtomicU64::new(0),
            ios: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            unflushed: Arc::default(),
            state: Mutex::new(State {
                phase: Phase::Down,
                version: 0,
                wakers: Vec::new(),
                attached: 0,
                free_queues: Vec::new(),
                failed: None,
                was_up: false,
                had_queue: false,
                is_barren: false,
                is_useful: false,
                blocks: None,
                ana: (AnaState::Optimized, 0),
                ana_asked: 0,
                ana_done: 0,
                trouble: None,
                aborts: Vec::new(),
                servers: Vec::new(),
                closing: false,
                is_hurried: false,
                refreshes_asked: 0,
                refreshes_done: 0,
            }),
        }
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.namespace.name
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

    /// As [`change`](Self::change) where it may decide whether operations can be sent here. The device's clock for operations
    /// that wait runs from the last time that they could, so it is told of the end of that alone: nothing else sets it back.
    fn change_use<T>(&self, now_ns: u64, action: impl FnOnce(&mut State) -> T) -> T {
        self.change(|state| {
            let result = action(state);
            let is_up = matches!(state.phase, Phase::Up(_)) && !state.is_barren;
            let is_useful = is_up && self.ana_of(state).refusal().is_none();
            if std::mem::replace(&mut state.is_useful, is_useful) && !is_useful {
                self.namespace.note_useful(now_ns);
            }
            result
        })
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

    /// Wakes all who wait for a change: what is suspect has changed.
    pub(super) fn touch(&self) {
        self.change(|_| ());
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase.clone()
    }

    // --- for lanes --------------------------------------------------------------------------------------------------

    /// Takes a queue of association `number`, if that is in force and one is free.
    pub(super) fn take_queue(&self, number: u64) -> Option<u16> {
        let mut state = self.lock();
        match &state.phase {
            Phase::Up(association) if association.number == number && state.failed.is_none() && !state.closing => {}
            _ => return None,
        }
        let queue = state.free_queues.pop()?;
        state.attached += 1;
        Some(queue)
    }

    /// Announces a lane that has a queue.
    pub(super) fn add_server(&self, server: RemoteLane, now_ns: u64) {
        self.change_use(now_ns, |state| {
            (state.had_queue, state.is_barren) = (true, false);
            state.servers.push(server);
        });
    }

    /// A lane that can serve for lane `number` of a group of `reactors` reactors.
    pub(super) fn find_server(&self, number: u32, reactors: usize) -> Option<RemoteLane> {
        let state = self.lock();
        let reachable: Vec<_> = state.servers.iter().filter(|server| server.reactor < reactors).collect();
        reachable.get(number as usize % reachable.len().max(1)).copied().copied()
    }

    /// Queues that are connected.
    pub(super) fn queues(&self) -> usize {
        self.lock().servers.len()
    }

    /// Gives a queue back.
    pub(super) fn release_queue(&self, queue: u16, server: RemoteLane, release: Release, now_ns: u64) {
        self.change_use(now_ns, |state| {
            state.attached -= 1;
            state.servers.retain(|other| *other != server);
            match release {
                // To the far end: the controller may take a moment to notice that it was closed.
                Release::Idle => state.free_queues.insert(0, queue),
                Release::Failed(reason) => {
                    state.failed.get_or_insert(reason);
                    state.is_barren |= !state.had_queue;
                }
            }
        });
    }

    /// Asks for the abort of commands of a queue.
    pub(super) fn request_aborts(&self, queue: u16, cids: &[u16]) {
        if !cids.is_empty() {
            self.change(|state| state.aborts.extend(cids.iter().map(|cid| (queue, *cid))));
        }
    }

    // --- for the supervisor -----------------------------------------------------------------------------------------

    pub(super) fn set_up(&self, association: Association, queues: u16, now_ns: u64) {
        self.namespace.note_up(now_ns);
        self.change_use(now_ns, |state| {
            assert_eq!(state.attached, 0, "an association begins when nothing is left of the last one");
            state.free_queues = (1..=queues).rev().collect();
            state.failed = None;
            state.was_up = true;
            state.had_queue = false;
            state.trouble = None;
            state.aborts.clear();
            state.phase = Phase::Up(Arc::new(association));
        });
    }

    pub(super) fn set_down(&self, now_ns: u64) {
        self.change_use(now_ns, |state| state.phase = Phase::Down);
        self.namespace.settle_size();
    }

    /// Of a path that is down.
    pub(super) fn set_closed(&self) {
        self.change(|state| state.phase = Phase::Closed);
    }

    /// Notes why there is no association.
    pub(super) fn set_trouble(&self, trouble: Trouble) {
        self.change(|state| state.trouble = Some(trouble));
    }

    /// Why there was no association last.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        self.lock().trouble.clone()
    }

    /// Whether there has ever been an association.
    pub(super) fn was_up(&self) -> bool {
        self.lock().was_up
    }

    pub(super) fn attached(&self) -> usize {
        self.lock().attached
    }

    /// Why a queue of the association has failed.
    pub(super) fn failure(&self) -> Option<Broken> {
        self.lock().failed
    }

    pub(super) fn take_aborts(&self) -> Vec<(u16, u16)> {
        std::mem::take(&mut self.lock().aborts)
    }

    pub(super) fn request_close(&self) {
        self.change(|state| state.closing = true);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    /// Asks for an attempt to connect without a pause before it.
    pub(super) fn hurry(&self) {
        self.change(|state| state.is_hurried = true);
    }

    /// Whether that was asked for since the last time.
    pub(super) fn take_hurry(&self) -> bool {
        std::mem::take(&mut self.lock().is_hurried)
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

    /// What the controller says of the namespace's size; 0 when it has none.
    pub(super) fn set_blocks(&self, blocks: u64, now_ns: u64) {
        self.change(|state| state.blocks = Some(blocks));
        self.namespace.settle_size();
        self.change_use(now_ns, |_| ());
    }

    /// What it said last, and whether that is of now.
    pub(super) fn blocks(&self) -> Option<(u64, bool)> {
        let state = self.lock();
        state.blocks.map(|blocks| (blocks, matches!(state.phase, Phase::Up(_))))
    }

    // --- asymmetric namespace access --------------------------------------------------------------------------------

    /// How the namespace can be reached here: "change" while that is being asked, "inaccessible" where it is not and another path
    /// has it.
    pub(super) fn ana(&self) -> AnaState {
        self.ana_of(&self.lock())
    }

    fn ana_of(&self, state: &State) -> AnaState {
        match state.ana_asked > state.ana_done {
            _ if state.blocks == Some(0) && self.namespace.info().blocks > 0 => AnaState::Inaccessible,
            _ if !self.options.ana => AnaState::Optimized,
            true => AnaState::Change,
            false => state.ana.0,
        }
    }

    /// What the controller said last.
    pub(super) fn last_ana(&self) -> AnaState {
        self.lock().ana.0
    }

    /// Since when it has said so, reactor time in ns.
    pub(super) fn ana_since_ns(&self) -> u64 {
        self.lock().ana.1
    }

    /// Asks for a look at the controller's log. Until it is done nothing is sent on this path.
    pub(super) fn request_ana(&self, now_ns: u64) {
        self.change_use(now_ns, |state| state.ana_asked += 1);
    }

    /// Looks at the log that are open; to be passed to [`set_ana`](Self::set_ana) when one was done.
    pub(super) fn ana_wanted(&self) -> Option<u64> {
        let state = self.lock();
        (state.ana_asked > state.ana_done).then_some(state.ana_asked)
    }

    /// What the log says: the answer to looks up to number `request`.
    pub(super) fn set_ana(&self, found: AnaState, request: u64, now_ns: u64) {
        self.change_use(now_ns, |state| {
            state.ana_done = state.ana_done.max(request);
            if found != state.ana.0 {
                state.ana = (found, now_ns);
            }
        });
    }

    /// Whether operations can be sent on this path.
    pub(super) fn is_useful(&self) -> bool {
        self.lock().is_useful
    }
}
