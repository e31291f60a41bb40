//! One association: an admin queue, what the controller behind it says of itself, and the admin commands of a host.
//!
//! A [`Controller`] does not reconnect: when its admin queue is lost, it is over. [`super::NvmfDevice`] builds the next one.

use reactor::{Reactor, SgList};
use std::rc::Rc;
use tracing::debug;
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U32;

use crate::spec::discovery::{DiscoveryEntry, DiscoveryHeader};
use crate::spec::event::EventResult;
use crate::spec::fabrics::PropertyCommand;
use crate::spec::feature::{Feature, QueueCounts, event};
use crate::spec::identify::{
    CTRATT_TRAFFIC_KEEP_ALIVE, Cns, FUSES_COMPARE_AND_WRITE, IdentifyController, IdentifyNamespace,
    IdentifyNvmController, NIDT_EUI64, NIDT_NGUID, NIDT_UUID, ONCS_COMPARE, ONCS_DSM, ONCS_VERIFY, ONCS_WRITE_ZEROES,
    VWC_PRESENT, descriptors, load_ascii,
};
use crate::spec::log::LogPage;
use crate::spec::opcode::AdminOpcode;
use crate::spec::property::{self, Capabilities, Configuration, ControllerStatus, Version};
use crate::spec::sqe::{AbortCommand, GetLogPageCommand, IdentifyCommand, SQE_LEN};
use crate::spec::{Cqe, IDENTIFY_LEN, Nqn, Sqe, Status};
use crate::tcp::ADMIN_CAPSULE_DATA_MAX;

use super::command::Direction;
use super::connect::{connect_queue, open_link};
use super::error::{CommandError, ConnectError};
use super::lane::{Lane, LanePolicy};
use super::link::Broken;
use super::options::Options;
use super::request::Raw;

/// Entries of the admin queue: the host's few commands, its event requests and aborts.
const ADMIN_ENTRIES: u16 = 32;
/// Event requests kept with the controller, at most.
const EVENT_REQUESTS_MAX: u16 = 4;
/// Pause between two looks at CSTS, ns.
const STATUS_POLL_NS: u64 = 2_000_000;
/// Discovery log entries read at once.
const DISCOVERY_ENTRIES_AT_ONCE: u64 = 3;
/// Most discovery log entries that are read.
const DISCOVERY_ENTRIES_MAX: u64 = 4096;
/// Times that a discovery log which changes while it is read is begun again.
const DISCOVERY_RESTARTS_MAX: u32 = 8;
/// Opcode of Cross-Controller Reset (Base 2.3, section 5.4.3).
const CROSS_CONTROLLER_RESET: u8 = 0x38;

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Controller identifier.
    pub id: u16,
    /// Model number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// Firmware revision.
    pub firmware: String,
    /// Specification version.
    pub version: Version,
    /// Capabilities property.
    pub capabilities: Capabilities,
    /// Most data of one command (MDTS), bytes; `u32::MAX` is no limit.
    pub transfer_bytes_max: u32,
    /// Data that an I/O capsule carries (IOCCSZ), bytes.
    pub capsule_data_max: u32,
    /// Optional commands (ONCS).
    pub oncs: u16,
    /// Fused compare-and-write.
    pub compare_and_write: bool,
    /// A volatile write cache is present.
    pub volatile_cache: bool,
    /// Write atomicity across power loss, blocks.
    pub atomic_write_blocks: u32,
    /// Any traffic keeps the association alive.
    pub traffic_keep_alive: bool,
    /// Keep alive timeout in force, milliseconds: what was asked for, in the controller's granularity.
    pub keep_alive_ms: u32,
    /// Command quiesce time, milliseconds; 0 is not reported.
    pub command_quiesce_ms: u16,
    /// Command retry delays, 100 ms.
    pub crdt: [u16; 3],
    /// Event requests that it takes.
    pub event_requests: u16,
    /// Optional events (OAES).
    pub oaes: u32,
    /// Blocks of one Write Zeroes, in units of the page size as a power of two; 0 is no limit.
    pub(super) zeroes_size_limit: u8,
    /// As `zeroes_size_limit` for Verify.
    pub(super) verify_size_limit: u8,
    /// Blocks of one deallocated range; 0 is no limit.
    pub(super) unmap_blocks_max: u32,
    /// Which instance of this controller identifier this is; 0 when cross-controller reset is unknown to it.
    pub(super) uniquifier: u8,
    /// Random number of this instance.
    pub(super) instance: u64,
}

/// One namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Blocks.
    pub blocks: u64,
    /// Bytes per block.
    pub block_size: u32,
    /// Bytes of metadata per block.
    pub metadata_bytes: u16,
    /// Best I/O size, blocks (0 unknown).
    pub optimal_io_blocks: u32,
    /// Writes of up to so many blocks are atomic across power loss; 0 says "as the controller".
    pub atomic_write_blocks: u32,
    /// Compare-and-write of up to so many blocks; 0 says "as the controller".
    pub compare_and_write_blocks: u32,
    /// Atomicity ends at multiples of so many blocks; 0 is no boundary.
    pub atomic_boundary_blocks: u32,
    /// Deallocated blocks read as zeroes.
    pub unmap_reads_zero: bool,
}

/// Identifiers of a namespace that stay the same wherever it is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
}

/// An association with one controller; lives on one reactor.
pub struct Controller {
    reactor: Rc<Reactor>,
    options: Options,
    lane: Rc<Lane>,
    info: ControllerInfo,
}

impl Controller {
    /// Connects an admin queue, enables the controller and asks what it is.
    pub async fn connect(reactor: &Rc<Reactor>, options: &Options) -> Result<Controller, ConnectError> {
        options.check()?;
        let policy = LanePolicy {
            retries_max: 0,
            replays_max: 0,
            exclusive: false,
            command_timeout_ns: options.admin_timeout_ns,
        };
        let lane = Lane::new(reactor, 0, policy);
        lane.attach(open_link(reactor, options, ADMIN_ENTRIES).await?, 0);
        let id = connect_queue(reactor, &lane, options, 0, ADMIN_ENTRIES, 0).await;
        let mut controller = Controller {
            reactor: reactor.clone(),
            options: options.clone(),
            lane,
            info: ControllerInfo { id: id?, ..ControllerInfo::unknown() },
        };
        // From here on a failure drops the controller, and with it the connection.
        let limit_ns = options.connect_timeout_ns.max(options.admin_timeout_ns);
        match reactor.timeout(limit_ns, controller.set_up()).await {
            Some(result) => result?,
            None => {
                let timeout_ms = limit_ns / 1_000_000;
                return Err(ConnectError::Timeout { address: options.address, timeout_ms });
            }
        }
        Ok(controller)
    }

    async fn set_up(&mut self) -> Result<(), ConnectError> {
        let failed = |this: &Self, action| {
            let (controller, subsystem) = (this.info.id, this.options.subsystem.clone());
            move |error| ConnectError::Command { controller, subsystem, action, error }
        };
        let capabilities = self.property(property::CAP, true).await.map_err(failed(self, "read its capabilities"))?;
        let version = self.property(property::VS, false).await.map_err(failed(self, "read its version"))?;
        self.info.capabilities = Capabilities(capabilities);
        self.info.version = Version(version as u32);
        self.enable().await?;
        let page = self.identify(Cns::Controller, 0).await.map_err(failed(self, "identify it"))?;
        self.adopt(&page)?;
        if !self.options.subsystem.is_discovery() && self.info.version >= Version::V2_0 {
            match self.identify(Cns::CommandSetController, 0).await {
                Ok(page) => self.adopt_nvm(&page),
                Err(CommandError::Status(_)) => {} // Optional: no limits are known then.
                Err(error) => return Err(failed(self, "identify its limits")(error)),
            }
        }
        debug!(controller = self.info.id, subsystem = %self.options.subsystem, "connected");
        Ok(())
    }

    async fn enable(&self) -> Result<(), ConnectError> {
        let failed = |error| ConnectError::Command {
            controller: self.info.id,
            subsystem: self.options.subsystem.clone(),
            action: "enable it",
            error,
        };
        let timeout_ms = self.info.capabilities.ready_timeout_ms().max(500);
        self.set_property(property::CC, Configuration::ENABLE.0).await.map_err(failed)?;
        match self.wait_status(timeout_ms, |status| status.ready() || status.fatal()).await.map_err(failed)? {
            Some(status) if !status.fatal() => Ok(()),
            _ => Err(ConnectError::NotReady {
                controller: self.info.id,
                subsystem: self.options.subsystem.clone(),
                timeout_ms,
            }),
        }
    }

    fn adopt(&mut self, page: &[u8]) -> Result<(), ConnectError> {
        let unusable = |reason: String| ConnectError::Unusable {
            controller: self.info.id,
            subsystem: self.options.subsystem.clone(),
            reason,
        };
        let (identify, _) = IdentifyController::ref_from_prefix(page).expect("a page of 4096 unaligned bytes");
        let page_size = u64::from(self.info.capabilities.page_size_min());
        let transfer = if identify.mdts == 0 { u64::MAX } else { page_size << identify.mdts.min(32) };
        let is_io = !self.options.subsystem.is_discovery();
        if is_io && (identify.sqes & 0xf > 6 || identify.sqes >> 4 < 6) {
            return Err(unusable(format!("it does not take 64-byte commands (SQES {:#04x})", identify.sqes)));
        }
        if is_io && identify.ioccsz.get() < 4 {
            return Err(unusable(format!("its command capsules are too small (IOCCSZ {})", identify.ioccsz.get())));
        }
        if is_io && identify.icdoff.get() != 0 {
            return Err(unusable(format!("in-capsule data has an offset (ICDOFF {})", identify.icdoff.get())));
        }
        let granularity_ms = u32::from(identify.kas.get()) * 100;
        let info = &mut self.info;
        info.model = load_ascii(&identify.mn);
        info.serial = load_ascii(&identify.sn);
        info.firmware = load_ascii(&identify.fr);
        info.transfer_bytes_max = u32::try_from(transfer).unwrap_or(u32::MAX);
        info.capsule_data_max =
            identify.ioccsz.get().saturating_mul(16).saturating_sub(SQE_LEN as u32).min(info.transfer_bytes_max);
        info.oncs = identify.oncs.get();
        info.compare_and_write = identify.fuses.get() & FUSES_COMPARE_AND_WRITE != 0;
        info.volatile_cache = identify.vwc & VWC_PRESENT != 0;
        info.atomic_write_blocks = u32::from(identify.awupf.get()) + 1;
        info.traffic_keep_alive = identify.ctratt.get() & CTRATT_TRAFFIC_KEEP_ALIVE != 0;
        info.keep_alive_ms = match granularity_ms {
            0 => self.options.keep_alive_ms,
            unit => self.options.keep_alive_ms.div_ceil(unit).saturating_mul(unit),
        };
        // Bytes 387:386 and 143:135 are of versions 2.1 and 2.3; reserved, and zero, before.
        info.command_quiesce_ms = u16::from_le_bytes([identify.reserved352[34], identify.reserved352[35]]);
        info.uniquifier = identify.reserved134[1];
        info.instance = u64::from_le_bytes(std::array::from_fn(|index| identify.reserved134[2 + index]));
        info.crdt = identify.crdt.map(|delay| delay.get());
        info.event_requests = (u16::from(identify.aerl) + 1).min(EVENT_REQUESTS_MAX);
        info.oaes = identify.oaes.get();
        Ok(())
    }

    fn adopt_nvm(&mut self, page: &[u8]) {
        let (identify, _) = IdentifyNvmController::ref_from_prefix(page).expect("a page of 4096 unaligned bytes");
        self.info.verify_size_limit = identify.vsl;
        self.info.zeroes_size_limit = identify.wzsl;
        self.info.unmap_blocks_max = identify.dmrsl.get();
    }

    /// What the controller says of itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    pub(super) fn lane(&self) -> &Rc<Lane> {
        &self.lane
    }

    // --- commands ---------------------------------------------------------------------------------------------------

    async fn submit(&self, sqe: Sqe, direction: Direction, bufs: SgList) -> Result<(Cqe, SgList), CommandError> {
        let (answer, bufs) = self.lane.command(Raw { sqe, direction, unlimited: false }, bufs).await;
        let cqe = answer.map_err(CommandError::Lost)?;
        match cqe.status() {
            status if status.is_success() => Ok((cqe, bufs)),
            status => Err(CommandError::Status(status)),
        }
    }

    async fn plain(&self, sqe: Sqe) -> Result<Cqe, CommandError> {
        self.submit(sqe, Direction::None, SgList::new()).await.map(|(cqe, _)| cqe)
    }

    async fn read_page(&self, sqe: Sqe, len: usize) -> Result<Vec<u8>, CommandError> {
        let mut buf = self.reactor.pool().try_alloc(len).ok_or(CommandError::NoMemory)?;
        buf.as_mut_slice().fill(0);
        let (_, bufs) = self.submit(sqe, Direction::ToHost, SgList::from_iter([buf])).await?;
        Ok(bufs[0].as_slice().to_vec())
    }

    /// Reads a property of 4 or 8 bytes.
    pub async fn property(&self, offset: u32, wide: bool) -> Result<u64, CommandError> {
        let cqe = self.plain(PropertyCommand::get(0, offset, wide).to_sqe()).await?;
        Ok(if wide { cqe.result.get() } else { u64::from(cqe.dw0()) })
    }

    /// Writes a property of 4 bytes.
    pub async fn set_property(&self, offset: u32, value: u32) -> Result<(), CommandError> {
        self.plain(PropertyCommand::set(0, offset, value).to_sqe()).await.map(|_| ())
    }

    async fn wait_status(
        &self,
        timeout_ms: u32,
        mut done: impl FnMut(ControllerStatus) -> bool,
    ) -> Result<Option<ControllerStatus>, CommandError> {
        let deadline_ns = self.reactor.clock_ns() + u64::from(timeout_ms) * 1_000_000;
        loop {
            let status = ControllerStatus(self.property(property::CSTS, false).await? as u32);
            if done(status) {
                return Ok(Some(status));
            }
            if self.reactor.clock_ns() >= deadline_ns {
                return Ok(None);
            }
            self.reactor.sleep_ns(STATUS_POLL_NS).await;
        }
    }

    /// Reads an Identify structure.
    pub async fn identify(&self, cns: Cns, nsid: u32) -> Result<Vec<u8>, CommandError> {
        let mut sqe = Sqe::admin(AdminOpcode::Identify, 0);
        sqe.nsid = U32::new(nsid);
        IdentifyCommand { cns: cns as u8, cntid: 0, cns_specific: 0, csi: 0 }.store(&mut sqe);
        self.read_page(sqe, IDENTIFY_LEN).await
    }

    /// The active namespaces above `after`, up to a page of them.
    pub async fn active_namespaces(&self, after: u32) -> Result<Vec<u32>, CommandError> {
        let page = self.identify(Cns::ActiveNamespaces, after).await?;
        let (list, _) = <[U32; 1024]>::ref_from_prefix(&page).expect("a page of 4096 unaligned bytes");
        Ok(list.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0).collect())
    }

    /// What namespace `nsid` is; an inactive one has no blocks.
    pub async fn namespace(&self, nsid: u32) -> Result<NamespaceInfo, CommandError> {
        let page = self.identify(Cns::Namespace, nsid).await?;
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&page).expect("a page of 4096 unaligned bytes");
        Ok(NamespaceInfo::of(nsid, identify))
    }

    /// The namespace's lasting identifiers.
    pub async fn namespace_ids(&self, nsid: u32) -> Result<NamespaceIds, CommandError> {
        let page = self.identify(Cns::NamespaceDescriptors, nsid).await?;
        let mut ids = NamespaceIds::default();
        for (kind, id) in descriptors(&page) {
            match kind {
                NIDT_UUID => ids.uuid = id.try_into().ok(),
                NIDT_NGUID => ids.nguid = id.try_into().ok(),
                NIDT_EUI64 => ids.eui64 = id.try_into().ok(),
                _ => {}
            }
        }
        Ok(ids)
    }

    /// Sets a feature; returns dword 0 of the answer.
    pub async fn set_feature(&self, feature: Feature, value: u32) -> Result<u32, CommandError> {
        let mut sqe = Sqe::admin(AdminOpcode::SetFeatures, 0);
        sqe.cdw10 = U32::new(feature as u32);
        sqe.cdw11 = U32::new(value);
        self.plain(sqe).await.map(|cqe| cqe.dw0())
    }

    /// Asks for `count` I/O queues; returns how many the controller grants.
    pub async fn request_queues(&self, count: u16) -> Result<u16, CommandError> {
        let wanted = QueueCounts { submission: u32::from(count), completion: u32::from(count) };
        let granted = self.set_feature(Feature::NumberOfQueues, wanted.to_wire()).await?;
        let granted = QueueCounts::from_wire(granted).map_or(1, |counts| counts.submission.min(counts.completion));
        Ok(granted.min(u32::from(count)) as u16)
    }

    /// Turns on the events that a host acts on, as far as the controller has them.
    pub async fn configure_events(&self) -> Result<(), CommandError> {
        let wanted = match self.options.subsystem.is_discovery() {
            true => event::DISCOVERY_CHANGE,
            false => event::NAMESPACE_ATTRIBUTE | event::ANA_CHANGE,
        };
        match self.info.oaes & wanted {
            0 => Ok(()),
            events => self.set_feature(Feature::AsyncEventConfiguration, events).await.map(|_| ()),
        }
    }

    /// Waits for an event.
    pub async fn next_event(&self) -> Result<EventResult, CommandError> {
        let sqe = Sqe::admin(AdminOpcode::AsyncEventRequest, 0);
        let raw = Raw { sqe, direction: Direction::None, unlimited: true };
        let cqe = self.lane.command(raw, SgList::new()).await.0.map_err(CommandError::Lost)?;
        match cqe.status() {
            status if status.is_success() => Ok(EventResult::from_dw0(cqe.dw0())),
            status => Err(CommandError::Status(status)),
        }
    }

    /// Tells the controller that this host is alive.
    pub async fn keep_alive(&self) -> Result<(), CommandError> {
        self.plain(Sqe::admin(AdminOpcode::KeepAlive, 0)).await.map(|_| ())
    }

    /// Asks for the end of a command; true when the controller says that it was aborted.
    pub async fn abort(&self, qid: u16, cid: u16) -> Result<bool, CommandError> {
        let mut sqe = Sqe::admin(AdminOpcode::Abort, 0);
        AbortCommand { sqid: qid, cid }.store(&mut sqe);
        self.plain(sqe).await.map(|cqe| cqe.dw0() & 1 == 0)
    }

    /// Reads `len` bytes of a log page at `offset`; `len` is at most 1 MiB and within the controller's transfer limit.
    pub async fn log_page(&self, page: LogPage, len: usize, offset: u64) -> Result<Vec<u8>, CommandError> {
        let mut sqe = Sqe::admin(AdminOpcode::GetLogPage, 0);
        sqe.nsid = U32::new(crate::spec::NSID_ALL);
        let command = GetLogPageCommand {
            lid: page as u8,
            lsp: 0,
            retain_event: false,
            len: len as u64,
            offset,
            offset_is_index: false,
            csi: 0,
        };
        command.store(&mut sqe);
        self.read_page(sqe, len).await
    }

    /// The namespaces that have changed since the last look; `None` when there are too many to name. Re-arms the event.
    pub async fn changed_namespaces(&self) -> Result<Option<Vec<u32>>, CommandError> {
        let page = self.log_page(LogPage::ChangedNamespaces, 4096, 0).await?;
        let (list, _) = <[U32; 1024]>::ref_from_prefix(&page).expect("a page of 4096 unaligned bytes");
        if list[0].get() == crate::spec::NSID_ALL {
            return Ok(None);
        }
        Ok(Some(list.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0).collect()))
    }

    /// Reads the whole discovery log, again when it changes meanwhile.
    pub async fn discovery_log(&self) -> Result<Vec<DiscoveryEntry>, CommandError> {
        for _ in 0..DISCOVERY_RESTARTS_MAX {
            if let Some(entries) = self.discovery_log_once().await? {
                return Ok(entries);
            }
        }
        Err(CommandError::Status(Status::DISCOVER_RESTART))
    }

    async fn discovery_log_once(&self) -> Result<Option<Vec<DiscoveryEntry>>, CommandError> {
        let generation = |page: &[u8]| {
            let (header, _) = DiscoveryHeader::ref_from_prefix(page).expect("a log header of 1024 unaligned bytes");
            (header.generation.get(), header.record_count.get())
        };
        let header_len = size_of::<DiscoveryHeader>();
        let before = generation(&self.log_page(LogPage::Discovery, header_len, 0).await?);
        let count = before.1.min(DISCOVERY_ENTRIES_MAX);
        let mut entries = Vec::new();
        while (entries.len() as u64) < count {
            let take = (count - entries.len() as u64).min(DISCOVERY_ENTRIES_AT_ONCE) as usize;
            let entry_len = size_of::<DiscoveryEntry>();
            let offset = (header_len + entries.len() * entry_len) as u64;
            let page = self.log_page(LogPage::Discovery, take * entry_len, offset).await?;
            for bytes in page.chunks_exact(entry_len) {
                entries.push(DiscoveryEntry::read_from_bytes(bytes).expect("an entry of 1024 unaligned bytes"));
            }
        }
        let after = generation(&self.log_page(LogPage::Discovery, header_len, 0).await?);
        Ok((before == after).then_some(entries))
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    /// Resets the controller: none of its outstanding commands will be done any more. False when it did not obey in time.
    pub async fn disable(&self) -> Result<bool, CommandError> {
        self.set_property(property::CC, Configuration::ENABLE.0 & !1).await?;
        let timeout_ms = self.info.capabilities.ready_timeout_ms().max(500);
        Ok(self.wait_status(timeout_ms, |status| !status.ready()).await?.is_some())
    }

    /// Shuts the controller down in order. False when it did not say "complete" in time.
    pub async fn shutdown(&self) -> Result<bool, CommandError> {
        self.set_property(property::CC, Configuration::ENABLE.with_shutdown(1).0).await?;
        let timeout_ms = self.info.capabilities.ready_timeout_ms().max(500);
        Ok(self.wait_status(timeout_ms, |status| status.shst() == 2).await?.is_some())
    }

    /// Has this controller reset another one of the subsystem, or an earlier instance of its own identifier. True when the
    /// controller says that it is done.
    pub(super) async fn reset_other(&self, other: &ControllerInfo) -> Result<bool, CommandError> {
        let mut sqe = Sqe::new(CROSS_CONTROLLER_RESET, 0, 0);
        sqe.cdw10 = U32::new(u32::from(other.id) | u32::from(other.uniquifier) << 16);
        sqe.cdw12 = U32::new(other.instance as u32);
        sqe.cdw13 = U32::new((other.instance >> 32) as u32);
        self.plain(sqe).await.map(|cqe| cqe.dw0() & 1 != 0)
    }

    /// Ends the connection at once.
    pub fn disconnect(&self) {
        self.lane.disconnect(Broken::Local);
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.disconnect();
    }
}

impl ControllerInfo {
    fn unknown() -> Self {
        ControllerInfo {
            id: 0,
            model: String::new(),
            serial: String::new(),
            firmware: String::new(),
            version: Version(0),
            capabilities: Capabilities(0),
            transfer_bytes_max: u32::MAX,
            capsule_data_max: ADMIN_CAPSULE_DATA_MAX,
            oncs: 0,
            compare_and_write: false,
            volatile_cache: false,
            atomic_write_blocks: 1,
            traffic_keep_alive: false,
            keep_alive_ms: 0,
            command_quiesce_ms: 0,
            crdt: [0; 3],
            event_requests: 1,
            oaes: 0,
            zeroes_size_limit: 0,
            verify_size_limit: 0,
            unmap_blocks_max: 0,
            uniquifier: 0,
            instance: 0,
        }
    }

    /// Whether an optional command of the NVM command set is supported.
    fn has(&self, bit: u16) -> bool {
        self.oncs & bit != 0
    }

    /// The block operations that a namespace of this controller performs.
    pub fn operations(&self) -> bdev::OpSet {
        use bdev::{Op, OpSet};
        let mut ops = OpSet::of(&[Op::Read, Op::Write, Op::Flush]);
        let optional = [
            (self.has(ONCS_COMPARE), Op::Compare),
            (self.has(ONCS_DSM), Op::Unmap),
            (self.has(ONCS_WRITE_ZEROES), Op::WriteZeroes),
            (self.has(ONCS_VERIFY), Op::Verify),
            (self.has(ONCS_COMPARE) && self.compare_and_write, Op::CompareAndWrite),
        ];
        for (_, op) in optional.iter().filter(|(supported, _)| *supported) {
            ops = ops.union(OpSet::of(&[*op]));
        }
        ops
    }
}

impl NamespaceInfo {
    fn of(nsid: u32, identify: &IdentifyNamespace) -> Self {
        use crate::spec::identify::{DLFEAT_ZERO, NSFEAT_ATOMIC, NSFEAT_OPTIMAL};
        // FLBAS bits 3:0, and 6:5 above them when there are more than 16 formats.
        let format = usize::from(identify.flbas & 0xf | (identify.flbas >> 5 & 3) << 4);
        let format = &identify.lbaf[format];
        let atomic = identify.nsfeat & NSFEAT_ATOMIC != 0;
        let optimal = identify.nsfeat & NSFEAT_OPTIMAL != 0;
        NamespaceInfo {
            nsid,
            blocks: identify.nsze.get(),
            block_size: if (9..=16).contains(&format.lbads) { 1 << format.lbads } else { 0 },
            metadata_bytes: format.ms.get(),
            optimal_io_blocks: if optimal { u32::from(identify.npwg.get()) + 1 } else { 0 },
            atomic_write_blocks: if atomic { u32::from(identify.nawupf.get()) + 1 } else { 0 },
            compare_and_write_blocks: if atomic { u32::from(identify.nacwu.get()) + 1 } else { 0 },
            atomic_boundary_blocks: if identify.nabspf.get() == 0 { 0 } else { u32::from(identify.nabspf.get()) + 1 },
            unmap_reads_zero: identify.dlfeat & 7 == DLFEAT_ZERO & 7,
        }
    }
}

/// Asks the discovery service at `options.address`, whatever subsystem the options name.
pub async fn discover(reactor: &Rc<Reactor>, options: &Options) -> Result<Vec<DiscoveryEntry>, ConnectError> {
    let options = Options { subsystem: Nqn::discovery(), ..options.clone() };
    let controller = Controller::connect(reactor, &options).await?;
    let reading = controller.discovery_log();
    let entries = reactor.timeout(options.admin_timeout_ns, reading).await;
    let entries = entries.unwrap_or(Err(CommandError::Lost(Broken::Timeout)));
    let entries = entries.map_err(|error| ConnectError::Command {
        controller: controller.info.id,
        subsystem: options.subsystem.clone(),
        action: "read its log",
        error,
    })?;
    // The controller goes with its connection whether or not it was shut down.
    let _ = reactor.timeout(options.admin_timeout_ns, controller.shutdown()).await;
    Ok(entries)
}
