//! The life of a path's associations: keep alive, events, loss, fence, reconnection, close.
//!
//! ```text
//!  up: keep alive, events, aborts --lost--> down: lanes let go --> fence --> back-off, connect, same namespace? --> up
//!   \--close--> lanes let go --> shutdown --> closed                 \--loss timeout--> closed
//! ```
//! One task for each path, on the reactor that opened the device.

use bdev::{DeviceInfo, ZonedInfo};
use reactor::Reactor;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use tracing::{debug, info, warn};

use crate::host::InfoError;
use crate::spec::Status as Nvme;
use crate::spec::ana::AnaState;
use crate::spec::event::EventResult;
use crate::spec::feature::event;

use super::controller::{Controller, ControllerInfo, NamespaceIds, NamespaceInfo};
use super::device::{device_info, target_of};
use super::error::{CommandError, ConnectError, Seen};
use super::fence::hold_ns;
use super::link::Broken;
use super::options::Options;
use super::shared::{Association, Phase, Shared, Trouble};
use super::zones::zone_capacity;

/// How often a supervisor looks around when nothing happens, ns: a reactor that wants to stop is noticed within it.
const TICK_NS: u64 = 500_000_000;
/// An association that did not last so long was of no use: the next ones are not built at once, ns.
const STEADY_NS: u64 = 10_000_000_000;
/// Pause before another look at access states that could not be read, ns.
const LOOK_PAUSE_NS: u64 = 100_000_000;
/// Longest wait for requests under way when a device is closed, ns.
const DRAIN_MAX_NS: u64 = 2_000_000_000;

/// Waits for the first of two.
pub(super) async fn either(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    std::future::poll_fn(|cx| {
        if first.as_mut().poll(cx).is_ready() || second.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        Poll::Pending
    })
    .await;
}

/// See the module.
pub(super) struct Supervisor {
    pub(super) reactor: Rc<Reactor>,
    pub(super) shared: Arc<Shared>,
    /// The association in force, or the last one.
    pub(super) number: u64,
    /// When it began, reactor time in ns.
    up_ns: u64,
    /// Associations in a row that were of no use.
    short_lives: u32,
    /// Access states are being read.
    is_looking: Rc<Cell<bool>>,
    /// Reading them has failed, which is logged once.
    look_failed: Rc<Cell<bool>>,
}

/// A controller and what the association needs of it.
pub(super) struct Ready {
    pub(super) controller: Rc<Controller>,
    pub(super) namespace: NamespaceInfo,
    pub(super) queues: u16,
    /// How it says that the namespace can be reached.
    pub(super) ana: AnaState,
}

impl Supervisor {
    pub(super) fn new(reactor: &Rc<Reactor>, shared: Arc<Shared>) -> Supervisor {
        let (is_looking, look_failed) = Default::default();
        Supervisor { reactor: reactor.clone(), shared, number: 0, up_ns: 0, short_lives: 0, is_looking, look_failed }
    }

    /// Looks for a first controller until there is one, then goes on as [`run`](Self::run).
    pub(super) async fn run_later(mut self) {
        match self.reconnect(None).await {
            Ok(ready) => {
                self.publish(&ready);
                self.run(ready).await;
            }
            Err(_) => self.shared.set_closed(),
        }
    }

    /// Runs until the device is closed or given up, beginning with an association that was [published](Self::publish).
    pub(super) async fn run(mut self, mut ready: Ready) {
        loop {
            let controller = ready.controller.clone();
            let reason = self.watch(&controller).await;
            if self.is_closing() {
                self.drain(&controller).await;
            }
            self.shared.set_down(self.reactor.now_ns());
            self.lanes_gone().await;
            self.shared.namespace.end_association(self.number);
            if self.is_closing() {
                return self.close(&controller).await;
            }
            self.shared.set_trouble(Trouble::Lost(reason));
            warn!(device = self.shared.name(), path = %self.shared.options.address, %reason, "association lost");
            let is_fenced = self.fence(&controller).await;
            self.pause_after_short_life().await;
            let old = controller.info().clone();
            match self.reconnect(self.shared.options.loss_timeout_ns).await {
                Ok(next) => {
                    if !is_fenced {
                        self.fence_through(&next.controller, &old).await;
                    }
                    ready = next;
                    self.publish(&ready);
                    self.shared.reconnects.fetch_add(1, Ordering::Relaxed);
                    self.shared.namespace.reconnects.fetch_add(1, Ordering::Relaxed);
                    let controller = ready.controller.info().id;
                    info!(device = self.shared.name(), path = %self.shared.options.address, controller, "association built again");
                }
                Err(error) => {
                    if let Some(error) = error {
                        warn!(device = self.shared.name(), path = %self.shared.options.address, %error, "given up");
                    }
                    return self.shared.set_closed();
                }
            }
        }
    }

    fn is_closing(&self) -> bool {
        self.shared.is_closing() || self.reactor.is_stopping()
    }

    /// Waits before the next association if the last ones came and went: the longer, the more of them did. A single loss costs
    /// no time.
    async fn pause_after_short_life(&mut self) {
        let lasted_ns = self.reactor.clock_ns().saturating_sub(self.up_ns);
        // One that ended over a change of access state was reset for it, however long that took.
        let is_short = lasted_ns < STEADY_NS || self.shared.last_ana() == AnaState::Change;
        self.short_lives = if is_short { self.short_lives + 1 } else { 0 };
        if let Some(doublings) = self.short_lives.checked_sub(2) {
            let options = &self.shared.options;
            let pause_ns = options.reconnect_first_ns.saturating_mul(1 << doublings.min(30));
            self.pause(pause_ns.min(options.reconnect_max_ns)).await;
        }
    }

    /// Waits between half and all of a time, so that hosts of one target do not come back all at once; less when the device closes.
    async fn pause(&self, pause_ns: u64) {
        let jittered_ns = pause_ns / 2 + self.reactor.driver().random_u64() % (pause_ns / 2 + 1);
        let until_ns = self.reactor.clock_ns() + jittered_ns;
        let mut seen = 0;
        while self.reactor.clock_ns() < until_ns && !self.is_closing() && !self.shared.take_hurry() {
            let slice_ns = until_ns.saturating_sub(self.reactor.clock_ns()).min(TICK_NS);
            self.reactor.timeout(slice_ns, self.shared.changed(&mut seen)).await;
        }
    }

    /// Lets lanes use a controller.
    pub(super) fn publish(&mut self, ready: &Ready) {
        let Ready { controller, namespace, queues, ana } = ready;
        self.number = self.shared.namespace.board.begin();
        let asked = self.shared.ana_wanted().unwrap_or(0);
        let now_ns = self.reactor.now_ns();
        self.up_ns = now_ns;
        self.shared.set_ana(*ana, asked, now_ns);
        for _ in 0..controller.info().event_requests() {
            self.reactor.spawn(follow_events(self.reactor.clone(), controller.clone(), self.shared.clone()));
        }
        let info = controller.info();
        let association = Association {
            number: self.number,
            controller: info.id,
            entries: entries_of(info, &self.shared),
            target: target_of(info, namespace),
            serial: info.identity.serial.clone(),
            volatile_cache: info.identity.volatile_cache,
        };
        self.shared.set_up(association, *queues, now_ns);
        self.shared.namespace.look_at_caches();
        self.shared.set_blocks(namespace.identity.block_count, now_ns);
    }

    /// Keeps the association alive until it is lost, or not wanted any more.
    async fn watch(&self, controller: &Rc<Controller>) -> Broken {
        let interval_ns = u64::from(controller.info().keep_alive_ms.min(self.shared.options.keep_alive_ms)) * 500_000;
        let mut due_ns = self.reactor.clock_ns() + interval_ns;
        let mut seen = 0;
        loop {
            if !controller.lane().is_connected() {
                return controller.lane().broken().unwrap_or(Broken::Local);
            }
            if let Some(reason) = self.shared.failure() {
                return reason;
            }
            if self.is_closing() {
                return Broken::Local;
            }
            self.send_aborts(controller);
            if let Some(request) = self.shared.refresh_wanted() {
                look_at_size(&self.reactor, controller, &self.shared).await;
                self.shared.refreshed(request);
                continue;
            }
            if let Some(request) = self.shared.ana_wanted() {
                self.look_at_ana(controller, request);
            }
            if self.is_change_overdue(controller) {
                return Broken::Timeout;
            }
            let overdue = controller.lane().overdue();
            if overdue.hopeless || !overdue.abort.is_empty() {
                controller.lane().disconnect(Broken::Timeout);
                continue;
            }
            let now_ns = self.reactor.clock_ns();
            if now_ns >= due_ns {
                due_ns = now_ns + interval_ns;
                // Also where any traffic would do: it costs one command, and skipping it leaves no margin for a late one.
                self.send_keep_alive(controller);
                if asks_again(controller, self.shared.last_ana()) {
                    self.look_at_ana(controller, 0);
                }
            }
            let pause_ns = due_ns.saturating_sub(now_ns).min(TICK_NS);
            let waiting = either(self.shared.changed(&mut seen), controller.lane().disconnected());
            self.reactor.timeout(pause_ns, waiting).await;
        }
    }

    /// Brings up to date how the namespace can be reached; the answer to looks up to number `request`. One at a time, beside the
    /// keep alives, which must not wait for it.
    fn look_at_ana(&self, controller: &Rc<Controller>, request: u64) {
        if self.is_looking.replace(true) {
            return;
        }
        let (controller, shared, reactor) = (controller.clone(), self.shared.clone(), self.reactor.clone());
        let (is_looking, look_failed) = (self.is_looking.clone(), self.look_failed.clone());
        self.reactor.spawn(async move {
            let reading = controller.ana_state(shared.namespace.nsid);
            match reactor.timeout(shared.options.admin_timeout_ns, reading).await {
                Some(Ok(found)) => {
                    look_failed.set(false);
                    if found != shared.last_ana() {
                        let (state, path) = (found.name(), shared.options.address);
                        info!(device = shared.name(), %path, state, "access state");
                    }
                    shared.set_ana(found, request, reactor.now_ns());
                }
                // The look stays asked for: until its log is read the controller tells of no further change.
                failed => {
                    if !look_failed.replace(true) && controller.lane().is_connected() {
                        let error = failed.and_then(Result::err).unwrap_or(CommandError::Lost(Broken::Timeout));
                        let path = shared.options.address;
                        warn!(device = shared.name(), %path, %error, "access states cannot be read; asking until they can");
                    }
                    reactor.sleep_ns(LOOK_PAUSE_NS).await;
                }
            }
            is_looking.set(false);
            shared.touch();
        });
    }

    /// Whether a change of state takes longer than the controller allows itself, twice over: the controller is reset then (as
    /// Linux does), for what it says may have been lost. Each association has that time anew.
    fn is_change_overdue(&self, controller: &Controller) -> bool {
        let limit_ns = 2 * u64::from(controller.info().ana_transition_s) * 1_000_000_000;
        let is_changing = self.shared.last_ana() == AnaState::Change;
        let since_ns = self.shared.ana_since_ns().max(self.up_ns);
        is_changing && limit_ns > 0 && self.reactor.now_ns().saturating_sub(since_ns) >= limit_ns
    }

    /// Sends a keep alive; when it is not answered within the keep alive time the connection is as good as lost.
    fn send_keep_alive(&self, controller: &Rc<Controller>) {
        let (controller, reactor) = (controller.clone(), self.reactor.clone());
        let limit_ns = u64::from(self.shared.options.keep_alive_ms) * 1_000_000;
        self.reactor.spawn(async move {
            match reactor.timeout(limit_ns, controller.keep_alive()).await {
                Some(Ok(()) | Err(CommandError::Lost(_))) => {}
                Some(Err(_)) => controller.lane().disconnect(Broken::Closed),
                None => controller.lane().disconnect(Broken::Timeout),
            }
        });
    }

    /// Gives requests under way a while to end.
    async fn drain(&self, controller: &Rc<Controller>) {
        self.shared.request_close();
        let draining = async {
            let mut seen = 0;
            while self.shared.attached() > 0 {
                self.send_aborts(controller);
                self.shared.changed(&mut seen).await;
            }
        };
        self.reactor.timeout(DRAIN_MAX_NS, draining).await;
    }

    fn send_aborts(&self, controller: &Rc<Controller>) {
        for (queue, cid) in self.shared.take_aborts() {
            let controller = controller.clone();
            // Whatever the answer, the command's own completion or its time limit decides.
            self.reactor.spawn(async move {
                let _ = controller.abort(queue, cid).await;
            });
        }
    }

    /// Waits until no lane holds a connection of the association that is ending.
    async fn lanes_gone(&self) {
        let mut seen = 0;
        while self.shared.attached() > 0 {
            self.shared.changed(&mut seen).await;
        }
    }

    /// Makes sure that no command of the lost association will be done any more: now, if its admin queue still works,
    /// otherwise some time after now.
    async fn fence(&self, controller: &Rc<Controller>) -> bool {
        let number = self.number;
        let limit_ns = self.shared.options.admin_timeout_ns;
        let disabled = self.reactor.timeout(limit_ns, controller.disable()).await;
        controller.disconnect();
        if matches!(disabled, Some(Ok(true))) {
            self.shared.namespace.lift_fence(number);
            return true;
        }
        let info = controller.info();
        let quiesce_ns = self.shared.options.quiesce_ns;
        let hold_ns = hold_ns(info.keep_alive_ms, info.traffic_keep_alive, info.command_quiesce_ms, quiesce_ns);
        let (reactor, shared) = (self.reactor.clone(), self.shared.clone());
        self.reactor.spawn(async move {
            // In slices, so that a reactor that stops or a device that closes does not wait for it.
            let until_ns = reactor.clock_ns().saturating_add(hold_ns);
            while reactor.clock_ns() < until_ns {
                if reactor.is_stopping() || shared.namespace.is_closing() {
                    return;
                }
                reactor.sleep_until(until_ns.min(reactor.clock_ns() + TICK_NS)).await;
            }
            shared.namespace.lift_fence(number);
        });
        false
    }

    /// Fences the lost association through the new one, if its controller knows how.
    async fn fence_through(&self, next: &Controller, old: &ControllerInfo) {
        if old.uniquifier == 0 || next.info().uniquifier == 0 {
            return;
        }
        let resetting = next.reset_other(old);
        if self.reactor.timeout(self.shared.options.admin_timeout_ns, resetting).await == Some(Ok(true)) {
            self.shared.namespace.lift_fence(self.number);
        }
    }

    /// Builds the next association. An error without a reason is a close.
    async fn reconnect(&self, limit_ns: Option<u64>) -> Result<Ready, Option<ConnectError>> {
        let options = self.shared.options.clone();
        let began_ns = self.reactor.clock_ns();
        let mut pause_ns = options.reconnect_first_ns;
        // The first attempt is made at once: most losses are of one connection, not of the target.
        loop {
            if self.is_closing() {
                return Err(None);
            }
            let error = match self.attempt().await {
                Ok(next) => return Ok(next),
                Err(error) => error,
            };
            // Refusals too: a target that restarts may listen before it has all its subsystems.
            if limit_ns.is_some_and(|limit| self.reactor.clock_ns() - began_ns >= limit) {
                return Err(Some(error));
            }
            let is_other = matches!(error, ConnectError::OtherNamespace { .. });
            let was_other =
                matches!(self.shared.trouble(), Some(Trouble::NotConnected(ConnectError::OtherNamespace { .. })));
            if is_other && !was_other {
                warn!(device = self.shared.name(), path = %self.shared.options.address, %error, "path not used");
            }
            debug!(device = self.shared.name(), path = %self.shared.options.address, %error, "not connected");
            self.shared.set_trouble(Trouble::NotConnected(error));
            self.pause(pause_ns).await;
            pause_ns = (pause_ns * 2).min(options.reconnect_max_ns);
        }
    }

    async fn attempt(&self) -> Result<Ready, ConnectError> {
        let options = self.shared.options.clone();
        let controller = Controller::connect(&self.reactor, &options).await?;
        // Nothing else looks at this connection yet: a silent one would be waited for without end.
        let limit_ns = options.connect_timeout_ns.max(options.admin_timeout_ns);
        let reactor = self.reactor.clone();
        let timeout_ms = limit_ns / 1_000_000;
        let adopted = reactor.timeout(limit_ns, self.adopt(controller, &options)).await;
        adopted.unwrap_or(Err(ConnectError::Timeout { address: options.address, timeout_ms }))
    }

    /// Takes a controller that was connected for the next association, if it has our namespace.
    async fn adopt(&self, controller: Controller, options: &Options) -> Result<Ready, ConnectError> {
        let ours = &self.shared.namespace;
        let known = ours.info();
        let prepared = prepare(&self.reactor, &controller, options, ours.nsid, known.zoned).await?;
        let Prepared { namespace, zone_capacity, ids, queues, ana } = prepared;
        let found = Seen {
            ids,
            block_size: 1 << namespace.identity.block_shift,
            blocks: namespace.identity.block_count,
            zone_blocks: namespace.zoned.as_ref().map_or(0, |zoned| zoned.zone_blocks),
        };
        if !self.is_same(&found) && ours.seen().is_resized(&found) {
            // It may be the others that do not know yet.
            self.have_others_look().await;
        }
        // Not this namespace (yet): its data would be somebody else's. The subsystem may still be coming up.
        if !self.is_same(&found) {
            let expected = ours.seen();
            return Err(ConnectError::OtherNamespace {
                address: options.address,
                subsystem: options.subsystem.clone(),
                nsid: ours.nsid,
                seen: Box::new((expected, found)),
            });
        }
        let blocks = found.blocks;
        if device_info(controller.info(), &namespace, zone_capacity) != (DeviceInfo { blocks, ..known }) {
            warn!(device = self.shared.name(), path = %options.address,
                "its target offers other operations or limits than it did: open it again to use them");
        }
        Ok(Ready { controller: Rc::new(controller), namespace, queues, ana })
    }

    /// Whether what a controller has is this device's namespace. Its size may have changed while nobody looked; otherwise it is that
    /// of the device, or of a path that is connected.
    fn is_same(&self, found: &Seen) -> bool {
        let (expected, others) = (self.shared.namespace.seen(), self.others());
        // Without identifiers one namespace of this size is like another.
        let is_told_apart = expected.ids != NamespaceIds::default() || others.is_empty();
        let sizes = others.iter().filter_map(|path| path.blocks());
        let mut sizes = sizes.filter(|(blocks, is_up)| *is_up && *blocks > 0).map(|(blocks, _)| blocks).peekable();
        let is_of_size =
            found.blocks == expected.blocks || sizes.peek().is_none() || sizes.any(|it| it == found.blocks);
        expected.is_resized(found) && is_told_apart && is_of_size
    }

    /// The device's other paths.
    fn others(&self) -> Vec<Arc<Shared>> {
        let mut others = self.shared.namespace.members();
        // One that was taken out goes on for a while.
        others.retain(|path| !Arc::ptr_eq(path, &self.shared) && !path.is_closing());
        others
    }

    /// Waits until the other paths that are connected have looked at the namespace's size, for a while.
    async fn have_others_look(&self) {
        let is_up = |path: &Shared| matches!(path.phase(), Phase::Up(_));
        let others: Vec<_> = self.others().into_iter().filter(|path| is_up(path)).collect();
        let requests: Vec<u64> = others.iter().map(|path| path.request_refresh()).collect();
        let looking = async {
            for (path, request) in others.iter().zip(requests) {
                let mut seen = 0;
                while !path.is_refreshed(request) && is_up(path) {
                    path.changed(&mut seen).await;
                }
            }
        };
        // This path's controller is not kept alive yet.
        self.reactor.timeout(self.shared.options.admin_timeout_ns / 2, looking).await;
    }

    async fn close(&self, controller: &Rc<Controller>) {
        let limit_ns = self.shared.options.admin_timeout_ns;
        if !self.shared.namespace.is_closing() && self.shared.namespace.board.suspects(self.number) {
            // The device goes on without this path, and waits for what it has left behind.
            self.fence(controller).await;
        } else {
            // A controller that cannot be shut down any more loses its association now and times out.
            let _ = self.reactor.timeout(limit_ns, controller.shutdown()).await;
        }
        controller.disconnect();
        self.shared.set_closed();
    }
}

/// Entries of each I/O queue: what was asked for, within what the controller has.
fn entries_of(info: &ControllerInfo, shared: &Shared) -> u16 {
    u32::from(shared.options.queue_entries).min(info.capabilities.queue_entries_max()).max(2) as u16
}

/// What a controller has for a device.
pub(super) struct Prepared {
    pub(super) namespace: NamespaceInfo,
    /// Blocks that can be written of a zone, if there are any.
    pub(super) zone_capacity: u64,
    pub(super) ids: NamespaceIds,
    /// I/O queues.
    pub(super) queues: u16,
    /// How it says that the namespace can be reached.
    pub(super) ana: AnaState,
}

/// Everything between an enabled controller and its first I/O queue.
pub(super) async fn prepare(
    reactor: &Rc<Reactor>,
    controller: &Controller,
    options: &Options,
    nsid: u32,
    known: Option<ZonedInfo>,
) -> Result<Prepared, ConnectError> {
    let queues = controller.request_queues(options.queues_max).await.map_err(controller.failed("get I/O queues"))?;
    controller.configure_events().await.map_err(controller.failed("turn on events"))?;
    let namespace = controller.namespace(nsid).await.map_err(controller.failed("identify its namespace"))?;
    let ids = match controller.namespace_ids(nsid).await {
        Ok(ids) => ids,
        // Optional before version 1.3. Any other failure says nothing of what the namespace has: taken for none, it would
        // never be recognised again.
        Err(CommandError::Status(status)) if status.kind() == Nvme::INVALID_FIELD => NamespaceIds::default(),
        Err(error) => return Err(controller.failed("identify its namespace's identifiers")(error)),
    };
    let ana = controller.ana_state(nsid).await.map_err(controller.failed("read its access states"))?;
    let zone_capacity = match &namespace.zoned {
        // Asking takes a read, which this path may refuse now.
        Some(zoned) if let Some(known) = known.filter(|known| known.zone_blocks == zoned.zone_blocks) => {
            known.zone_capacity_blocks
        }
        Some(zoned) => zone_capacity(reactor, options, nsid, zoned.zone_blocks).await?,
        None => 0,
    };
    Ok(Prepared { namespace, zone_capacity, ids, queues: queues.max(1), ana })
}

/// Whether the log is read from time to time: what is changing should not be missed, and some controllers do not tell.
fn asks_again(controller: &Controller, state: AnaState) -> bool {
    let info = controller.info();
    info.has_ana && (state == AnaState::Change || info.identity.events & event::ANA_CHANGE == 0)
}

/// Answers the controller's events with what they ask for, as long as the association lasts.
async fn follow_events(reactor: Rc<Reactor>, controller: Rc<Controller>, shared: Arc<Shared>) {
    while let Ok(event) = controller.next_event().await {
        if event == EventResult::ANA_CHANGED {
            // It is reading the log that lets the controller tell of the next change.
            shared.request_ana(reactor.now_ns());
        }
        if event == EventResult::NAMESPACE_CHANGED {
            let changed = controller.changed_namespaces().await;
            let concerns_us = match &changed {
                Ok(Some(nsids)) => nsids.contains(&shared.namespace.nsid),
                Ok(None) => true,
                Err(_) => continue,
            };
            if concerns_us {
                look_at_size(&reactor, &controller, &shared).await;
            }
        }
    }
}

/// Brings the path's size up to date; a namespace that has gone has none.
async fn look_at_size(reactor: &Reactor, controller: &Controller, shared: &Shared) {
    let blocks = match controller.namespace(shared.namespace.nsid).await {
        Ok(namespace) => namespace.identity.block_count,
        Err(CommandError::Unusable(InfoError::Inactive(_))) => 0,
        Err(_) => return,
    };
    if blocks == 0 && shared.blocks().is_none_or(|(blocks, _)| blocks > 0) {
        warn!(device = shared.name(), path = %shared.options.address, "its target does not have the namespace any more");
    }
    shared.set_blocks(blocks, reactor.now_ns());
}
