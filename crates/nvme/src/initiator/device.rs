//! A remote namespace as a block device.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op, OpSet, Status, ZonedInfo};
use reactor::{IoFuture, Reactor};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::warn;

use crate::host::InfoError;
use crate::spec::copy::CopyRange;
use crate::spec::sqe::DsmRange;

use super::compound;
use super::connect::{connect_queue, open_link};
use super::controller::{Controller, ControllerInfo, NamespaceIds, NamespaceInfo};
use super::error::{CommandError, ConnectError};
use super::fence::Fence;
use super::lane::{Lane, LanePolicy, RemoteLane};
use super::link::Broken;
use super::options::{Options, Replay};
use super::plan::{COMMAND_BLOCKS_MAX, Target};
use super::shared::{Association, Phase, Release, Shared};
use super::supervisor::{Prepared, Ready, Supervisor, either, prepare};
use super::zones::report_zones;

/// Largest single operation, bytes; larger ones than the controller takes are split here.
const IO_BYTES_MAX: u32 = 4 << 20;
/// Most data of one operation: what fits a request's offsets.
const DATA_BYTES_MAX: u64 = 1 << 30;
/// How often a lane looks for commands that take too long, ns.
const TICK_NS: u64 = 500_000_000;
/// How often a lane that is to go looks whether its last request has ended, ns.
const DRAIN_TICK_NS: u64 = 1_000_000;
/// What zoned namespaces do besides.
const ZONE_OPS: OpSet = OpSet::of(&[
    Op::ZoneReset,
    Op::ZoneOpen,
    Op::ZoneClose,
    Op::ZoneFinish,
    Op::ZoneOffline,
    Op::ZoneAppend,
    Op::ZoneReport,
]);

/// What zoned namespaces are not asked to do, though their controller can: their blocks are written in order.
const NOT_OF_ZONES: [Op; 4] = [Op::Unmap, Op::CompareAndWrite, Op::Copy, Op::WriteUncorrectable];

/// A namespace of a remote controller.
pub struct NvmfDevice {
    owner: Arc<Owner>,
}

/// Closes the device when its last handle and channel are gone.
struct Owner {
    shared: Arc<Shared>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.request_close();
    }
}

/// Counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmfStats {
    /// Associations that were built again after a loss.
    pub reconnects: u64,
}

/// What is known of a namespace, to come up before its target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// As it was when it was last seen; its size may have changed since.
    pub info: DeviceInfo,
    /// What tells it from others.
    pub ids: NamespaceIds,
}

impl NvmfDevice {
    /// The device of a namespace whose target cannot be reached now. It connects when it can, for as long as it takes, with
    /// pauses that grow to [`Options::reconnect_max_ns`]; until then operations end as gone.
    pub fn open_later(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: u32,
        known: Known,
    ) -> Result<NvmfDevice, ConnectError> {
        options.check()?;
        let shared = Arc::new(Shared::new(name, options.clone(), nsid, known));
        shared.set_down(reactor.now_ns());
        let supervisor = Supervisor { reactor: reactor.clone(), shared: shared.clone(), number: 0 };
        reactor.spawn(supervisor.run_later());
        Ok(NvmfDevice { owner: Arc::new(Owner { shared }) })
    }

    /// Connects to a controller and opens namespace `nsid`, or its first one. The association lives on this reactor.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: Option<u32>,
    ) -> Result<NvmfDevice, ConnectError> {
        let controller = Controller::connect(reactor, options).await?;
        let limit_ns = options.connect_timeout_ns.max(options.admin_timeout_ns);
        let opened = reactor.timeout(limit_ns, NvmfDevice::open_on(reactor, name, options, nsid, controller)).await;
        let timeout_ms = limit_ns / 1_000_000;
        opened.unwrap_or(Err(ConnectError::Timeout { address: options.address, timeout_ms }))
    }

    async fn open_on(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: Option<u32>,
        controller: Controller,
    ) -> Result<NvmfDevice, ConnectError> {
        let available = controller.active_namespaces(0).await.map_err(controller.failed("list its namespaces"))?;
        // One page names the first 1024; a namespace beyond them is found by asking for it.
        let wanted = nsid.or(available.first().copied()).unwrap_or(0);
        let missing =
            ConnectError::NoNamespace { subsystem: options.subsystem.clone(), nsid: nsid.unwrap_or(0), available };
        if wanted == 0 {
            return Err(missing);
        }
        let prepared = match prepare(reactor, &controller, options, wanted).await {
            Err(ConnectError::Command { error: CommandError::Unusable(InfoError::Inactive(_)), .. }) => {
                return Err(missing);
            }
            prepared => prepared?,
        };
        let Prepared { namespace, zone_capacity, ids, queues } = prepared;
        let info = device_info(controller.info(), &namespace, zone_capacity);
        let shared = Arc::new(Shared::new(name, options.clone(), wanted, Known { info, ids }));
        let mut supervisor = Supervisor { reactor: reactor.clone(), shared: shared.clone(), number: 0 };
        let ready = Ready { controller: Rc::new(controller), namespace, queues };
        // Before anybody has the device: to one that was never connected, operations are not taken.
        supervisor.publish(&ready);
        reactor.spawn(supervisor.run(ready));
        Ok(NvmfDevice { owner: Arc::new(Owner { shared }) })
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }

    /// The namespace's identifier.
    pub fn nsid(&self) -> u32 {
        self.owner.shared.nsid
    }

    /// Whether there is an association now.
    pub fn is_connected(&self) -> bool {
        matches!(self.owner.shared.phase(), Phase::Up(_))
    }

    /// Whether there has ever been one.
    pub fn was_connected(&self) -> bool {
        self.owner.shared.was_up()
    }

    /// What [`open_later`](Self::open_later) wants to know.
    pub fn known(&self) -> Known {
        Known { info: self.owner.shared.info(), ids: self.owner.shared.ids }
    }

    /// Counters.
    pub fn stats(&self) -> NvmfStats {
        NvmfStats { reconnects: self.owner.shared.reconnects.load(Ordering::Relaxed) }
    }

    /// Ends the association in order. Operations under way end first if they can, otherwise as gone; so do later ones.
    pub async fn close(&self) {
        let shared = &self.owner.shared;
        shared.request_close();
        let mut seen = 0;
        while !matches!(shared.phase(), Phase::Closed(_)) {
            shared.changed(&mut seen).await;
        }
    }
}

impl BlockDevice for NvmfDevice {
    fn name(&self) -> &str {
        &self.owner.shared.name
    }

    fn kind(&self) -> &'static str {
        "nvmf"
    }

    fn info(&self) -> DeviceInfo {
        self.owner.shared.info()
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        let shared = self.owner.shared.clone();
        IoFuture::new(async move {
            let request = shared.request_refresh();
            let mut seen = 0;
            let looking = async {
                while !shared.is_refreshed(request) {
                    shared.changed(&mut seen).await;
                }
            };
            match reactor.timeout(shared.options.admin_timeout_ns, looking).await {
                Some(()) => Ok(shared.info()),
                None => {
                    let device = shared.name.clone();
                    Err(DeviceError::Io { device, action: "look at its size", status: Status::Gone })
                }
            }
        })
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let shared = &self.owner.shared;
        let options = &shared.options;
        let policy = LanePolicy {
            retries_max: options.retries_max,
            replays_max: options.replays_max,
            exclusive: options.replay == Replay::Exclusive,
            command_timeout_ns: options.command_timeout_ns,
        };
        let lanes: Vec<Rc<Lane>> = (0..options.queues_per_channel)
            .map(|_| {
                let lane = Lane::new(reactor, shared.number_lane(), policy);
                let kept = reactor.keep(lane.clone());
                let name = RemoteLane { reactor: reactor.index(), kept };
                let driver = LaneDriver { reactor: reactor.clone(), shared: shared.clone(), lane: lane.clone(), name };
                reactor.spawn(driver.run());
                lane
            })
            .collect();
        Ok(Rc::new(NvmfChannel { owner: self.owner.clone(), lanes, next: Cell::new(0) }))
    }
}

/// One reactor's way to the namespace.
struct NvmfChannel {
    owner: Arc<Owner>,
    lanes: Vec<Rc<Lane>>,
    next: Cell<usize>,
}

impl NvmfChannel {
    #[inline]
    fn check(&self, io: &Io) -> Result<(), Status> {
        let info = self.owner.shared.info();
        info.check(io)?;
        if io.op == Op::Read && io.bufs.iter().any(reactor::Buf::is_shared) {
            return Err(Status::Invalid);
        }
        if io.op == Op::ZoneAppend && io.nblocks > info.max_io_blocks {
            return Err(Status::Invalid);
        }
        if !io.bufs.is_empty() && u64::from(io.nblocks) * u64::from(info.block_size) > DATA_BYTES_MAX {
            return Err(Status::Invalid);
        }
        Ok(())
    }

    #[inline]
    fn lane(&self) -> &Rc<Lane> {
        if let [lane] = self.lanes.as_slice() {
            return lane;
        }
        let index = self.next.get();
        self.next.set((index + 1) % self.lanes.len());
        &self.lanes[index]
    }
}

impl Channel for NvmfChannel {
    #[inline]
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let Err(status) = self.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        let lane = self.lane();
        if io.op == Op::ZoneReport {
            let zone_blocks = self.owner.shared.info().zoned.map_or(0, |zoned| zoned.zone_blocks);
            return IoFuture::steps(lane.reactor(), report_zones(lane.clone(), io, zone_blocks));
        }
        if compound::takes_several(&io) {
            let info = self.owner.shared.info();
            return IoFuture::steps(lane.reactor(), compound::carry_out(lane.clone(), io, info.block_size));
        }
        match lane.submit(io) {
            // When nobody waits any more the reactor does, so that it does not stop before the operation has ended.
            Ok(ticket) => IoFuture::steps(lane.reactor(), ticket),
            Err(done) => IoFuture::ready(done),
        }
    }

    fn abort(&self, tag: u64) {
        for lane in &self.lanes {
            let cids = lane.abort(tag);
            self.owner.shared.request_aborts(lane.queue(), &cids);
        }
    }
}

impl Drop for NvmfChannel {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.retire());
    }
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
                return self.lane.close(Status::Gone);
            }
            match self.shared.phase() {
                Phase::Closed(status) => return self.lane.close(status),
                Phase::Up(association) if association.number != failed => {
                    if let Some(queue) = self.shared.take_queue(association.number) {
                        self.lane.set_remote(None);
                        if self.serve(&association, queue).await == Release::Failed {
                            failed = association.number;
                        }
                        continue;
                    }
                    self.lane.set_remote(self.shared.find_server(self.lane.number(), self.reactor.group_size()));
                }
                Phase::Down { since_ns } => {
                    self.lane.set_remote(None);
                    self.fail_fast(since_ns);
                }
                Phase::Up(_) => self.lane.set_remote(None),
            }
            if self.shared.is_closing() {
                self.lane.refuse(Status::Gone);
            }
            let waiting = either(self.shared.changed(&mut seen), self.lane.bell());
            self.reactor.timeout(TICK_NS, waiting).await;
        }
    }

    fn fail_fast(&self, since_ns: u64) {
        // Of a device that was never connected nobody knows when it will be.
        let limit_ns = if self.shared.was_up() { self.shared.options.fail_fast_ns } else { Some(0) };
        if limit_ns.is_some_and(|limit| self.reactor.now_ns().saturating_sub(since_ns) >= limit) {
            self.lane.fail_waiting(Status::Gone);
        }
    }

    /// Connects queue `queue` and keeps it until it is lost or not wanted; then gives it back.
    async fn serve(&self, association: &Arc<Association>, queue: u16) -> Release {
        let release = match self.connect(association, queue).await {
            Ok(()) => self.watch(association, queue).await,
            Err(error) => {
                warn!(device = %self.shared.name, queue, %error, "queue not connected");
                Release::Failed
            }
        };
        self.lane.disconnect(Broken::Local);
        self.shared.release_queue(queue, self.name, release, self.lane.take_suspects());
        release
    }

    async fn connect(&self, association: &Arc<Association>, queue: u16) -> Result<(), ConnectError> {
        let options = &self.shared.options;
        let link = open_link(&self.reactor, options, association.entries).await?;
        self.lane.set_queue(queue);
        self.lane.attach(link, association.number);
        connect_queue(&self.reactor, &self.lane, options, queue, association.entries, association.controller).await?;
        self.lane.set_fence(self.shared.fence());
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
        let mut fence: Option<Arc<Fence>> = self.shared.fence();
        self.lane.set_fence(fence.clone());
        self.shared.add_server(self.name);
        loop {
            if !self.lane.is_connected() {
                return Release::Failed;
            }
            match self.shared.phase() {
                Phase::Up(current) if current.number == association.number => {}
                _ => return Release::Idle,
            }
            let is_closing = self.shared.is_closing();
            if is_closing {
                self.lane.refuse(Status::Gone);
            }
            if (is_closing || self.lane.is_retired()) && self.lane.requests_active() == 0 {
                return Release::Idle;
            }
            let now = self.shared.fence();
            if now != fence {
                fence = now;
                self.lane.set_fence(fence.clone());
            }
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

/// The device that a namespace is.
pub(super) fn device_info(controller: &ControllerInfo, namespace: &NamespaceInfo, zone_capacity: u64) -> DeviceInfo {
    let target = target_of(controller, namespace);
    let identity = &namespace.identity;
    let block_size = 1 << identity.block_shift;
    let atomic = namespace.atomic_write_blocks.unwrap_or(controller.atomic_write_blocks);
    let compare_and_write = namespace.compare_and_write_blocks.unwrap_or(controller.compare_and_write_blocks);
    // The ranges of deallocations and copies travel in the capsule; a controller that takes no data there is not asked.
    let mut ops = controller.operations();
    if target.capsule_data_max < size_of::<DsmRange>() as u32 {
        ops = ops.without(Op::Unmap);
    }
    if target.capsule_data_max < size_of::<CopyRange>() as u32 || identity.copy_blocks_max == 0 {
        ops = ops.without(Op::Copy);
    }
    let zoned = namespace.zoned.map(|zoned| ZonedInfo {
        zone_blocks: zoned.zone_blocks,
        zone_capacity_blocks: zone_capacity,
        open_zones_max: zoned.open_max,
        active_zones_max: zoned.active_max,
        extension_bytes: 0,
    });
    let max_io_blocks = (IO_BYTES_MAX / block_size).max(1);
    DeviceInfo {
        ops: if zoned.is_some() { NOT_OF_ZONES.into_iter().fold(ops, OpSet::without).union(ZONE_OPS) } else { ops },
        zoned,
        optimal_io_blocks: identity.optimal_write_blocks.max(1),
        // A write to a zone is one command, so that none of its pieces overtakes another.
        max_io_blocks: if zoned.is_some() { max_io_blocks.min(target.transfer_blocks_max) } else { max_io_blocks },
        atomic_write_blocks: atomic.min(target.transfer_blocks_max).max(1),
        atomic_boundary_blocks: identity.atomic_boundary_blocks,
        compare_and_write_blocks: compare_and_write.min(target.transfer_blocks_max).max(1),
        volatile_cache: controller.identity.volatile_cache,
        unmap_reads_zero: identity.deallocated_reads_zero,
        ..DeviceInfo::basic(block_size, identity.block_count)
    }
}

/// What commands to a namespace may look like.
pub(super) fn target_of(controller: &ControllerInfo, namespace: &NamespaceInfo) -> Target {
    let block_shift = u32::from(namespace.identity.block_shift);
    let blocks_of = |bytes: u64| (bytes >> block_shift).clamp(1, u64::from(COMMAND_BLOCKS_MAX)) as u32;
    let sized = |exponent: u8| match exponent {
        0 => COMMAND_BLOCKS_MAX,
        exponent => blocks_of(u64::from(controller.capabilities.page_size_min()) << exponent.min(32)),
    };
    let transfer = u64::from(controller.identity.transfer_len_max);
    Target {
        nsid: namespace.nsid,
        block_shift,
        transfer_blocks_max: blocks_of(transfer),
        zeroes_blocks_max: sized(controller.zeroes_size_limit),
        verify_blocks_max: sized(controller.verify_size_limit),
        uncorrectable_blocks_max: sized(controller.uncorrectable_size_limit),
        copy_blocks_max: namespace.identity.copy_blocks_max.clamp(1, COMMAND_BLOCKS_MAX),
        unmap_blocks_max: match controller.unmap_blocks_max {
            0 => u32::MAX - 1,
            limit => limit,
        },
        capsule_data_max: controller.identity.capsule_data_max.min(controller.identity.transfer_len_max),
        crdt: controller.crdt,
    }
}
