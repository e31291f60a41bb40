//! What keeps a lane connected, as long as its path has an association and somebody wants it.

use reactor::Reactor;
use reactor::sync::Notify;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::warn;

use super::connect::{connect_queue, open_link};
use super::error::{CommandError, ConnectError};
use super::lane::{Common, Lane, LanePolicy, RemoteLane};
use super::link::Broken;
use super::shared::{Association, Phase, Release, Shared};
use super::supervisor::either;

/// How often a lane looks for commands that take too long, ns.
const TICK_NS: u64 = 500_000_000;
/// How often a lane that is to go looks whether its last request has ended, ns.
const DRAIN_TICK_NS: u64 = 1_000_000;

/// A lane of a path, with a task that keeps it connected.
pub(super) fn start_lane(
    reactor: &Rc<Reactor>,
    shared: &Arc<Shared>,
    policy: LanePolicy,
    bell: &Rc<Notify>,
) -> Rc<Lane> {
    let namespace = &shared.namespace;
    let common = Common { board: namespace.board.clone(), unflushed: shared.unflushed.clone(), ready: bell.clone() };
    let lane = Lane::new(reactor, namespace.number_lane(), policy, common);
    let name = RemoteLane { reactor: reactor.index(), kept: reactor.keep(lane.clone()) };
    let driver = LaneDriver { reactor: reactor.clone(), shared: shared.clone(), lane: lane.clone(), name };
    reactor.spawn(driver.run());
    lane
}

/// Keeps one lane connected as long as there is an association, and its channel.
struct LaneDriver {
    reactor: Rc<Reactor>,
    shared: Arc<Shared>,
    lane: Rc<Lane>,
    name: RemoteLane,
}

impl Drop for LaneDriver {
    fn drop(&mut self) {
        self.reactor.release::<Lane>(self.name.kept);
    }
}

impl LaneDriver {
    async fn run(self) {
        let mut seen = 0;
        let mut failed = 0;
        loop {
            // Looked at before a queue is taken, or the lane would connect the one that it has just given back.
            if self.lane.is_retired() && self.lane.requests_active() == 0 {
                return self.close();
            }
            match self.shared.phase() {
                Phase::Closed => return self.close(),
                Phase::Up(association) if association.number != failed => {
                    if let Some(queue) = self.shared.take_queue(association.number) {
                        self.lane.set_remote(None);
                        if let Release::Failed(_) = self.serve(&association, queue).await {
                            failed = association.number;
                        }
                        continue;
                    }
                    self.lane.set_remote(self.shared.find_server(self.lane.number(), self.reactor.group_size()));
                }
                Phase::Down | Phase::Up(_) => self.lane.set_remote(None),
            }
            if self.shared.is_closing() {
                self.lane.refuse();
            }
            self.tell();
            let waiting = either(self.shared.changed(&mut seen), self.lane.bell());
            self.reactor.timeout(TICK_NS, waiting).await;
        }
    }

    fn close(&self) {
        self.lane.close();
        self.tell();
    }

    /// Tells the path what the lane has seen, and the lane how the path is.
    fn tell(&self) {
        let counts = self.lane.take_counts();
        let shared = &self.shared;
        for (total, count) in
            [(&shared.ios, counts.ios), (&shared.lost, counts.lost), (&shared.refused, counts.refused)]
        {
            total.fetch_add(count, Ordering::Relaxed);
        }
        if counts.is_ana_stale {
            shared.request_ana(self.reactor.now_ns());
        }
        if counts.is_absent {
            shared.request_refresh();
        }
        self.lane.set_ana(shared.ana());
    }

    /// Connects queue `queue` and keeps it until it is lost or not wanted; then gives it back.
    async fn serve(&self, association: &Arc<Association>, queue: u16) -> Release {
        let release = match self.connect(association, queue).await {
            Ok(()) => self.watch(association, queue).await,
            Err(error) => {
                let path = self.shared.options.address;
                warn!(device = self.shared.name(), %path, queue, %error, "queue not connected");
                Release::Failed(Broken::Closed)
            }
        };
        self.lane.disconnect(Broken::Local);
        self.tell();
        self.shared.release_queue(queue, self.name, release, self.reactor.now_ns());
        release
    }

    async fn connect(&self, association: &Arc<Association>, queue: u16) -> Result<(), ConnectError> {
        let options = &self.shared.options;
        let link = open_link(&self.reactor, options, association.entries).await?;
        self.lane.set_queue(queue);
        self.lane.attach(link, association.number);
        connect_queue(&self.reactor, &self.lane, options, queue, association.entries, association.controller).await?;
        self.lane.set_ana(self.shared.ana());
        self.lane.set_target(association.target);
        match self.lane.is_connected() {
            true => Ok(()),
            false => Err(ConnectError::Connect {
                address: options.address,
                subsystem: options.subsystem.clone(),
                queue,
                error: CommandError::Lost(self.lane.broken().unwrap_or(Broken::Closed)),
                invalid: None,
            }),
        }
    }

    async fn watch(&self, association: &Arc<Association>, queue: u16) -> Release {
        let mut seen = 0;
        self.shared.add_server(self.name, self.reactor.now_ns());
        loop {
            if !self.lane.is_connected() {
                return Release::Failed(self.lane.broken().unwrap_or(Broken::Closed));
            }
            match self.shared.phase() {
                Phase::Up(current) if current.number == association.number => {}
                _ => return Release::Idle,
            }
            let is_closing = self.shared.is_closing();
            if is_closing {
                self.lane.refuse();
            }
            if (is_closing || self.lane.is_retired()) && self.lane.requests_active() == 0 {
                return Release::Idle;
            }
            self.lane.look_at_fence();
            self.tell();
            let overdue = self.lane.overdue();
            self.shared.request_aborts(queue, &overdue.abort);
            if overdue.hopeless {
                self.lane.disconnect(Broken::Timeout);
                continue;
            }
            let waiting = either(self.shared.changed(&mut seen), self.lane.bell());
            let tick_ns = match is_closing || self.lane.is_retired() {
                true => DRAIN_TICK_NS,
                false => TICK_NS.min(self.shared.options.command_timeout_ns / 4 + 1),
            };
            self.reactor.timeout(tick_ns, waiting).await;
        }
    }
}
