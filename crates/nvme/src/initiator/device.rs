//! A remote namespace as a block device.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Op, OpSet, Status, ZonedInfo};
use reactor::{IoFuture, Reactor};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::host::InfoError;
use crate::spec::copy::CopyRange;
use crate::spec::sqe::DsmRange;

use super::controller::{Controller, ControllerInfo, NamespaceIds, NamespaceInfo};
use super::error::{CommandError, ConnectError, NoReplacement, Seen};
use super::multipath::{Group, NvmfChannel, PATHS_MAX, PathStatus};
use super::options::{Options, OptionsError};
use super::plan::{COMMAND_BLOCKS_MAX, Target};
use super::shared::{Phase, Shared, Trouble};
use super::supervisor::{Prepared, Ready, Supervisor, prepare};

/// Largest single operation, bytes; larger ones than the controller takes are split here.
const IO_BYTES_MAX: u32 = 4 << 20;
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
pub(super) struct Owner {
    pub(super) group: Arc<Group>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.group.request_close();
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

impl Known {
    pub(super) fn seen(&self) -> Seen {
        let zone_blocks = self.info.zoned.map_or(0, |zoned| zoned.zone_blocks);
        Seen { ids: self.ids, block_size: self.info.block_size, blocks: self.info.blocks, zone_blocks }
    }
}

impl NvmfDevice {
    /// The device of a namespace none of whose targets can be reached now. It connects when it can, for as long as it takes, with
    /// pauses that grow to [`Options::reconnect_max_ns`]; until then operations end as gone. The paths are the options' address
    /// and `more`.
    pub fn open_later(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        more: &[SocketAddr],
        nsid: u32,
        known: Known,
    ) -> Result<NvmfDevice, ConnectError> {
        options.check()?;
        let group = Arc::new(Group::new(name, options, nsid, known));
        for address in std::iter::once(&options.address).chain(more) {
            if let Some(path) = group.add(*address) {
                reactor.spawn(Supervisor::new(reactor, path).run_later());
            }
        }
        Ok(NvmfDevice { owner: Arc::new(Owner { group }) })
    }

    /// Connects to a controller and opens namespace `nsid`, or its first one. The association lives on this reactor.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: Option<u32>,
    ) -> Result<NvmfDevice, ConnectError> {
        NvmfDevice::open_known(reactor, name, options, nsid, None).await
    }

    async fn open_known(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: Option<u32>,
        known: Option<Known>,
    ) -> Result<NvmfDevice, ConnectError> {
        let controller = Controller::connect(reactor, options).await?;
        let limit_ns = options.connect_timeout_ns.max(options.admin_timeout_ns);
        let opening = NvmfDevice::open_on(reactor, name, options, nsid, known, controller);
        let timeout_ms = limit_ns / 1_000_000;
        let timeout = Err(ConnectError::Timeout { address: options.address, timeout_ms });
        reactor.timeout(limit_ns, opening).await.unwrap_or(timeout)
    }

    /// As [`open`](Self::open) with several paths: the options' address and `more`. One of them has to work; others that do not
    /// are tried as long as the device is open.
    ///
    /// What is `known` from before decides what the namespace is; a path that leads to another one is one that does not work.
    /// Where nothing is, all paths are waited for, and one that leads to another namespace than the first is an error.
    pub async fn open_paths(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        more: &[SocketAddr],
        nsid: Option<u32>,
        known: Option<Known>,
    ) -> Result<NvmfDevice, ConnectError> {
        let addresses: Vec<SocketAddr> = std::iter::once(&options.address).chain(more).copied().collect();
        let mut opened = Err(ConnectError::Options(OptionsError::Paths(addresses.len())));
        if addresses.len() > PATHS_MAX {
            return opened;
        }
        for address in &addresses {
            let first = Options { address: *address, ..options.clone() };
            let one = NvmfDevice::open_known(reactor, name, &first, nsid, known).await;
            match (one, &opened) {
                (Ok(device), _) => {
                    opened = Ok(device);
                    break;
                }
                // The first one's error is told, if none works.
                (Err(error), Err(ConnectError::Options(_))) => opened = Err(error),
                (Err(_), _) => {}
            }
        }
        let device = opened?;
        // There is one to the first that worked.
        let others: Vec<SocketAddr> =
            addresses.iter().copied().filter(|address| device.start_path(reactor, *address).is_some()).collect();
        device.group().arrange(&addresses);
        if known.is_none() {
            // One after the other: each has been tried since it was started.
            for address in others {
                device.judge_path(reactor, address).await?;
            }
        }
        Ok(device)
    }

    async fn open_on(
        reactor: &Rc<Reactor>,
        name: &str,
        options: &Options,
        nsid: Option<u32>,
        known: Option<Known>,
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
        let prepared = match prepare(reactor, &controller, options, wanted, None).await {
            Err(ConnectError::Command { error: CommandError::Unusable(InfoError::Inactive(_)), .. }) => {
                return Err(missing);
            }
            prepared => prepared?,
        };
        let Prepared { namespace, zone_capacity, ids, queues, ana } = prepared;
        let info = device_info(controller.info(), &namespace, zone_capacity);
        let found = Known { info, ids };
        if let Some(known) = known.filter(|known| !known.seen().is_resized(&found.seen())) {
            return Err(ConnectError::OtherNamespace {
                address: options.address,
                subsystem: options.subsystem.clone(),
                nsid: wanted,
                seen: Box::new((known.seen(), found.seen())),
            });
        }
        let group = Arc::new(Group::new(name, options, wanted, found));
        let path = group.add(options.address).expect("it is the first one");
        let mut supervisor = Supervisor::new(reactor, path);
        let ready = Ready { controller: Rc::new(controller), namespace, queues, ana };
        // Before anybody has the device: to one that was never connected, operations are not taken.
        supervisor.publish(&ready);
        reactor.spawn(supervisor.run(ready));
        Ok(NvmfDevice { owner: Arc::new(Owner { group }) })
    }

    // --- paths ------------------------------------------------------------------------------------------------------

    /// Adds a path and connects it, on a reactor that should be the one that opened the device. An error is of a path that leads
    /// to another namespace: it is not added. One that cannot be reached is, and is tried as long as the device is open.
    pub async fn add_path(&self, reactor: &Rc<Reactor>, address: SocketAddr) -> Result<(), ConnectError> {
        let count = self.group().paths().len() + 1;
        let started = self.start_path(reactor, address);
        started.ok_or(ConnectError::Options(OptionsError::Paths(count)))?;
        let judged = self.judge_path(reactor, address).await;
        if judged.is_err() {
            self.remove_path(address);
        }
        judged
    }

    /// Takes a path out: what is under way on it has two seconds to end, and goes to another path then. False for one that there
    /// is not, and for the last one.
    pub fn remove_path(&self, address: SocketAddr) -> bool {
        self.group().remove(address).is_some()
    }

    /// How its paths are, in the order in which they were named.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.group().paths().iter().map(|path| PathStatus::of(path)).collect()
    }

    fn start_path(&self, reactor: &Rc<Reactor>, address: SocketAddr) -> Option<()> {
        let path = self.group().add(address)?;
        reactor.spawn(Supervisor::new(reactor, path).run_later());
        Some(())
    }

    /// Waits until a new path has been tried once; an error when it leads to another namespace.
    async fn judge_path(&self, reactor: &Rc<Reactor>, address: SocketAddr) -> Result<(), ConnectError> {
        let paths = self.group().paths();
        let Some(path) = paths.iter().find(|path| path.options.address == address) else { return Ok(()) };
        let options = &path.options;
        let mut seen = 0;
        let judging = async {
            while !path.was_up() && path.trouble().is_none() {
                path.changed(&mut seen).await;
            }
        };
        // Whatever takes longer is not another namespace yet.
        let _ = reactor.timeout(options.connect_timeout_ns + options.admin_timeout_ns, judging).await;
        match path.trouble() {
            Some(Trouble::NotConnected(error @ ConnectError::OtherNamespace { .. })) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.owner.group
    }

    /// The namespace's identifier.
    pub fn nsid(&self) -> u32 {
        self.group().namespace.nsid
    }

    /// Whether there is an association now.
    pub fn is_connected(&self) -> bool {
        self.group().paths().iter().any(|path| matches!(path.phase(), Phase::Up(_)))
    }

    /// Whether there has ever been one.
    pub fn was_connected(&self) -> bool {
        self.group().was_up()
    }

    /// What [`open_later`](Self::open_later) wants to know.
    pub fn known(&self) -> Known {
        let namespace = &self.group().namespace;
        Known { info: namespace.info(), ids: namespace.ids() }
    }

    /// What its paths show instead of its namespace, for [`replace`](Self::replace); an error says why nothing can take its place.
    pub fn replacement(&self) -> Result<Seen, NoReplacement> {
        let paths = self.paths();
        if let Some(path) = paths.iter().find(|path| path.controller.is_some()) {
            return Err(NoReplacement::InUse(path.address));
        }
        let mut found = paths.iter().filter_map(|path| Some((path.address, path.other?)));
        let (address, seen) = found.next().ok_or(NoReplacement::NotSeen)?;
        if let Some((other, differs)) = found.find(|(_, other)| *other != seen) {
            return Err(NoReplacement::Differ(Box::new([(address, seen), (other, differs)])));
        }
        let ours = self.group().namespace.seen();
        if (ours.block_size, ours.zone_blocks) != (seen.block_size, seen.zone_blocks) {
            return Err(NoReplacement::Shape(Box::new((ours, address, seen))));
        }
        Ok(seen)
    }

    /// Has the namespace that its paths show be the device's from now on: the former one was replaced. The caller sees to it that
    /// nobody relies on what was read from the former one.
    pub fn replace(&self, found: &Seen) {
        self.group().namespace.replace(found);
        self.group().paths().iter().for_each(|path| path.hurry());
    }

    /// Counters.
    pub fn stats(&self) -> NvmfStats {
        NvmfStats { reconnects: self.group().namespace.reconnects.load(Ordering::Relaxed) }
    }

    /// Ends all associations in order. Operations under way end first if they can, otherwise as gone; so do later ones.
    pub async fn close(&self) {
        self.group().request_close();
        // Those that were removed a moment ago as well.
        for path in self.group().namespace.members() {
            let mut seen = 0;
            while !matches!(path.phase(), Phase::Closed) {
                path.changed(&mut seen).await;
            }
        }
    }
}

impl BlockDevice for NvmfDevice {
    fn name(&self) -> &str {
        &self.group().namespace.name
    }

    fn kind(&self) -> &'static str {
        "nvmf"
    }

    fn info(&self) -> DeviceInfo {
        self.group().namespace.info()
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        let group = self.group().clone();
        IoFuture::new(async move {
            let paths = group.paths();
            let is_up = |path: &&Arc<Shared>| matches!(path.phase(), Phase::Up(_));
            // Each path has a size of its own; where none is connected now, the first one may be soon.
            let mut looked_at: Vec<&Arc<Shared>> = paths.iter().filter(is_up).collect();
            if looked_at.is_empty() {
                looked_at.push(&paths[0]);
            }
            let requests: Vec<u64> = looked_at.iter().map(|path| path.request_refresh()).collect();
            let is_only = looked_at.len() == 1;
            let looking = async {
                for (path, request) in looked_at.iter().zip(requests) {
                    let mut seen = 0;
                    while !path.is_refreshed(request) && (is_only || is_up(path)) {
                        path.changed(&mut seen).await;
                    }
                }
            };
            match reactor.timeout(group.options.admin_timeout_ns, looking).await {
                Some(()) => Ok(group.namespace.info()),
                None => {
                    let device = group.namespace.name.clone();
                    Err(DeviceError::Io { device, action: "look at its size", status: Status::Gone })
                }
            }
        })
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(NvmfChannel::new(reactor, self.owner.clone())))
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
        ana: controller.has_ana,
    }
}
