//! One association: an admin queue, what the controller behind it says of itself, and the admin commands of a host.
//!
//! A [`Controller`] does not reconnect: when its admin queue is lost, it is over. [`super::NvmfDevice`] builds the next one.

use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use tracing::debug;
use zerocopy::FromBytes;
use zerocopy::byteorder::little_endian::U32;

use crate::host::{self, DiscoveredSubsystem, InfoError, command, info};
use crate::spec::ana::{AnaGroupDescriptor, AnaHeader, AnaState};
use crate::spec::discovery::{DiscoveryEntry, DiscoveryHeader};
use crate::spec::event::EventResult;
use crate::spec::fabrics::PropertyCommand;
use crate::spec::feature::{Feature, QueueCounts, event};
use crate::spec::identify::{
    CMIC_ANA, CSI_NVM, CTRATT_TRAFFIC_KEEP_ALIVE, Cns, IdentifyController, IdentifyNamespace, IdentifyNvmController,
    NIDT_CSI, NIDT_EUI64, NIDT_NGUID, NIDT_UUID, NSFEAT_ATOMIC, descriptors,
};
use crate::spec::log::LogPage;
use crate::spec::property::{self, CSS_ALL, Capabilities, Configuration, ControllerStatus, Version};
use crate::spec::sqe::CrossControllerResetCommand;
use crate::spec::zns::CSI_ZNS;
use crate::spec::{Cqe, IDENTIFY_LEN, NSID_ALL, Nqn, Sqe, Status};

use super::command::Direction;
use super::connect::{connect_queue, open_link};
use super::error::{CommandError, ConnectError};
use super::lane::Lane;
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
/// Least and most bytes of a log of access states that are read at once: its header and one group at least.
const ANA_PIECE_MIN: usize = 64;
const ANA_PIECE_MAX: usize = 16 << 10;
/// Most bytes of it that are read: more than 65,535 groups without their namespaces take.
const ANA_LOG_MAX: usize = 4 << 20;
/// Times that it is begun again when it changes while it is read.
const ANA_RESTARTS_MAX: u32 = 8;
/// Most discovery log entries that are read.
const DISCOVERY_ENTRIES_MAX: u64 = 4096;
/// Times that a discovery log which changes while it is read is begun again.
const DISCOVERY_RESTARTS_MAX: u32 = 8;

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Controller identifier.
    pub id: u16,
    /// Specification version.
    pub version: Version,
    /// Capabilities property.
    pub capabilities: Capabilities,
    /// Identify Controller, as far as any host needs it.
    pub identity: host::ControllerInfo,
    /// Writes of up to so many blocks are atomic across power loss, unless the namespace says otherwise.
    pub atomic_write_blocks: u32,
    /// Compare-and-write of up to so many blocks, unless the namespace says otherwise.
    pub compare_and_write_blocks: u32,
    /// Any traffic keeps the association alive.
    pub traffic_keep_alive: bool,
    /// Keep alive timeout in force, milliseconds: what was asked for, in the controller's granularity.
    pub keep_alive_ms: u32,
    /// Command quiesce time, milliseconds; 0 is not reported.
    pub command_quiesce_ms: u16,
    /// Command retry delays, 100 ms.
    pub crdt: [u16; 3],
    /// It reports asymmetric namespace access.
    pub has_ana: bool,
    /// Longest time for which it reports a change of access state, seconds (ANATT); 0 is not told.
    pub ana_transition_s: u8,
    /// Groups that its log of access states can have (NANAGRPID).
    pub(super) ana_groups: u32,
    /// Bytes of one Write Zeroes, in units of the page size as a power of two; 0 is no limit.
    pub(super) zeroes_size_limit: u8,
    /// As `zeroes_size_limit` for Verify.
    pub(super) verify_size_limit: u8,
    /// As `zeroes_size_limit` for Write Uncorrectable.
    pub(super) uncorrectable_size_limit: u8,
    /// Blocks of one deallocated range; 0 is no limit.
    pub(super) unmap_blocks_max: u32,
    /// Which instance of this controller identifier this is; 0 when cross-controller reset is unknown to it.
    pub(super) uniquifier: u8,
    /// Random number of this instance.
    pub(super) instance: u64,
}

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Identify Namespace, as far as any host needs it.
    pub identity: host::NamespaceInfo,
    /// Writes of up to so many blocks are atomic across power loss; `None` says "as the controller".
    pub atomic_write_blocks: Option<u32>,
    /// Compare-and-write of up to so many blocks; `None` says "as the controller".
    pub compare_and_write_blocks: Option<u32>,
    /// Its zones, if it has any.
    pub zoned: Option<host::ZonedNamespaceInfo>,
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
    id: u16,
    /// Known once it is set up.
    info: Option<ControllerInfo>,
}

impl Controller {
    /// Connects an admin queue, enables the controller and asks what it is.
    pub async fn connect(reactor: &Rc<Reactor>, options: &Options) -> Result<Controller, ConnectError> {
        options.check()?;
        let lane = Lane::of_raw_commands(reactor, 0, options.admin_timeout_ns);
        lane.attach(open_link(reactor, options, ADMIN_ENTRIES).await?, 0);
        let id = connect_queue(reactor, &lane, options, 0, ADMIN_ENTRIES, 0).await;
        let mut controller =
            Controller { reactor: reactor.clone(), options: options.clone(), lane, id: id?, info: None };
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
        let capabilities = self.property(property::CAP, true).await.map_err(self.failed("read its capabilities"))?;
        let capabilities = Capabilities(capabilities);
        let version = self.property(property::VS, false).await.map_err(self.failed("read its version"))?;
        let version = Version(version as u32);
        self.enable(capabilities).await?;
        let page = self.identify(Cns::Controller, 0).await.map_err(self.failed("identify it"))?;
        let mut info = ControllerInfo::parse(&page, self.id, version, capabilities, self.options.keep_alive_ms)
            .map_err(|error| self.failed("use it")(CommandError::Unusable(error)))?;
        if !info.identity.is_discovery && version >= Version::V2_0 {
            match self.identify(Cns::CommandSetController, 0).await {
                Ok(page) => info.adopt_limits(&page),
                Err(CommandError::Status(_)) => {} // Optional: no limits are known then.
                Err(error) => return Err(self.failed("identify its limits")(error)),
            }
        }
        self.info = Some(info);
        debug!(controller = self.id, subsystem = %self.options.subsystem, "connected");
        Ok(())
    }

    /// Names this controller and what was tried, for an error.
    pub(super) fn failed(&self, action: &'static str) -> impl FnOnce(CommandError) -> ConnectError + use<> {
        let (controller, subsystem) = (self.id, self.options.subsystem.clone());
        move |error| ConnectError::Command { controller, subsystem, action, error }
    }

    async fn enable(&self, capabilities: Capabilities) -> Result<(), ConnectError> {
        let timeout_ms = ready_timeout_ms(capabilities);
        self.configure(configuration_of(capabilities)).await.map_err(self.failed("enable it"))?;
        let is_decided = |status: ControllerStatus| status.ready() || status.fatal();
        match self.wait_status(timeout_ms, is_decided).await.map_err(self.failed("wait until it is ready"))? {
            Some(status) if !status.fatal() => Ok(()),
            _ => Err(ConnectError::NotReady {
                controller: self.id,
                subsystem: self.options.subsystem.clone(),
                timeout_ms,
            }),
        }
    }

    /// What the controller says of itself.
    pub fn info(&self) -> &ControllerInfo {
        self.info.as_ref().expect("a controller is handed out after it was set up")
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
        // Not of the pool: operations that wait for what this page tells may have all of it.
        let buf = Buf::from_vec(vec![0; len]);
        let (_, bufs) = self.submit(sqe, Direction::ToHost, SgList::from_iter([buf])).await?;
        Ok(bufs[0].as_slice().to_vec())
    }

    /// Reads a property of 4 or 8 bytes.
    pub async fn property(&self, offset: u32, wide: bool) -> Result<u64, CommandError> {
        let cqe = self.plain(PropertyCommand::get(0, offset, wide).to_sqe()).await?;
        Ok(if wide { cqe.result.get() } else { u64::from(cqe.dw0()) })
    }

    async fn configure(&self, configuration: Configuration) -> Result<(), CommandError> {
        self.plain(command::set_configuration(configuration)).await.map(|_| ())
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
        self.read_page(command::identify(cns, nsid, CSI_NVM), IDENTIFY_LEN).await
    }

    /// The active namespaces above `after`, up to a page of them.
    pub async fn active_namespaces(&self, after: u32) -> Result<Vec<u32>, CommandError> {
        let page = self.identify(Cns::ActiveNamespaces, after).await?;
        Ok(info::active_namespaces(&page).collect())
    }

    /// What namespace `nsid` is.
    pub async fn namespace(&self, nsid: u32) -> Result<NamespaceInfo, CommandError> {
        let page = self.identify(Cns::Namespace, nsid).await?;
        let mut namespace = NamespaceInfo::parse(nsid, &page).map_err(CommandError::Unusable)?;
        match self.command_set(nsid).await? {
            CSI_NVM => {}
            CSI_ZNS => {
                let sqe = command::identify(Cns::CommandSetNamespace, nsid, CSI_ZNS);
                let page = self.read_page(sqe, IDENTIFY_LEN).await?;
                let zoned = host::ZonedNamespaceInfo::parse(&page, &namespace.identity);
                namespace.zoned = Some(zoned.map_err(CommandError::Unusable)?);
            }
            other => return Err(CommandError::Unusable(InfoError::Unusable { field: "CSI", value: u64::from(other) })),
        }
        Ok(namespace)
    }

    /// The command set of a namespace.
    async fn command_set(&self, nsid: u32) -> Result<u8, CommandError> {
        if !self.info().capabilities.supports_css(CSS_ALL) {
            return Ok(CSI_NVM);
        }
        match self.identify(Cns::NamespaceDescriptors, nsid).await {
            Ok(page) => {
                let told = descriptors(&page).find(|(kind, id)| *kind == NIDT_CSI && id.len() == 1);
                Ok(told.map_or(CSI_NVM, |(_, id)| id[0]))
            }
            // Optional before version 1.3.
            Err(CommandError::Status(status)) if status.kind() == Status::INVALID_FIELD => Ok(CSI_NVM),
            Err(error) => Err(error),
        }
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
        self.plain(command::set_feature(feature, value)).await.map(|cqe| cqe.dw0())
    }

    /// Asks for `count` I/O queues; returns how many the controller grants.
    pub async fn request_queues(&self, count: u16) -> Result<u16, CommandError> {
        let granted = self.plain(command::set_queue_count(count)).await?.dw0();
        let granted = QueueCounts::from_wire(granted).map_or(1, |counts| counts.submission.min(counts.completion));
        Ok(granted.min(u32::from(count)) as u16)
    }

    /// Turns on the events that a host acts on, as far as the controller has them.
    pub async fn configure_events(&self) -> Result<(), CommandError> {
        let wanted = match self.options.subsystem.is_discovery() {
            true => event::DISCOVERY_CHANGE,
            false => event::NAMESPACE_ATTRIBUTE | event::ANA_CHANGE,
        };
        match self.info().identity.events & wanted {
            0 => Ok(()),
            events => self.set_feature(Feature::AsyncEventConfiguration, events).await.map(|_| ()),
        }
    }

    /// Waits for an event.
    pub async fn next_event(&self) -> Result<EventResult, CommandError> {
        let raw = Raw { sqe: command::async_event_request(), direction: Direction::None, unlimited: true };
        let cqe = self.lane.command(raw, SgList::new()).await.0.map_err(CommandError::Lost)?;
        match cqe.status() {
            status if status.is_success() => Ok(EventResult::from_dw0(cqe.dw0())),
            status => Err(CommandError::Status(status)),
        }
    }

    /// Tells the controller that this host is alive.
    pub async fn keep_alive(&self) -> Result<(), CommandError> {
        self.plain(command::keep_alive()).await.map(|_| ())
    }

    /// Asks for the end of a command; true when the controller says that it was aborted.
    pub async fn abort(&self, qid: u16, cid: u16) -> Result<bool, CommandError> {
        self.plain(command::abort(qid, cid)).await.map(|cqe| cqe.dw0() & 1 == 0)
    }

    /// Reads `len` bytes of a log page at `offset`; `len` is at most 1 MiB and within the controller's transfer limit.
    pub async fn log_page(&self, page: LogPage, len: usize, offset: u64) -> Result<Vec<u8>, CommandError> {
        self.read_page(command::get_log_page(page, offset, len as u32, false), len).await
    }

    /// The namespaces that have changed since the last look; `None` when there are too many to name. Re-arms the event.
    pub async fn changed_namespaces(&self) -> Result<Option<Vec<u32>>, CommandError> {
        let page = self.log_page(LogPage::ChangedNamespaces, 4096, 0).await?;
        let (list, _) = <[U32; 1024]>::ref_from_prefix(&page).expect("a page of 4096 unaligned bytes");
        if list[0].get() == NSID_ALL {
            return Ok(None);
        }
        Ok(Some(list.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0).collect()))
    }

    /// How namespace `nsid` can be reached through this controller: optimised, where it does not report asymmetric access.
    /// Reading it lets the controller tell of the next change.
    pub async fn ana_state(&self, nsid: u32) -> Result<AnaState, CommandError> {
        if !self.info().has_ana || !self.options.ana {
            return Ok(AnaState::Optimized);
        }
        let page = self.identify(Cns::Namespace, nsid).await?;
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&page).expect("a page of 4096 unaligned bytes");
        let group = identify.anagrpid.get();
        let fitting = (self.info().identity.transfer_len_max as usize).clamp(ANA_PIECE_MIN, ANA_PIECE_MAX);
        let groups_len = self.info().ana_groups as usize * size_of::<AnaGroupDescriptor>();
        let piece = (size_of::<AnaHeader>() + groups_len).clamp(ANA_PIECE_MIN, fitting);
        for _ in 0..ANA_RESTARTS_MAX {
            if let Some(state) = self.ana_state_once(group, piece, fitting).await? {
                return Ok(state);
            }
        }
        Err(CommandError::Unusable(InfoError::Unusable { field: "the access states' change count", value: 0 }))
    }

    /// `None` when the log has changed while it was read in several pieces.
    async fn ana_state_once(&self, group: u32, piece: usize, fitting: usize) -> Result<Option<AnaState>, CommandError> {
        let mut log = self.read_page(command::ana_log(0, piece as u32), piece).await?;
        let changes = info::ana_changes(&log).map_err(CommandError::Unusable)?;
        loop {
            if let Some(state) = info::ana_state(&log, group).map_err(CommandError::Unusable)? {
                if log.len() == piece {
                    return Ok(Some(state));
                }
                let header = self.read_page(command::ana_log(0, ANA_PIECE_MIN as u32), ANA_PIECE_MIN).await?;
                let is_same = info::ana_changes(&header).map_err(CommandError::Unusable)? == changes;
                return Ok(is_same.then_some(state));
            }
            if log.len() >= ANA_LOG_MAX {
                let field = "the length of the access states' log";
                return Err(CommandError::Unusable(InfoError::Unusable { field, value: log.len() as u64 }));
            }
            log.extend(self.read_page(command::ana_log(log.len() as u64, fitting as u32), fitting).await?);
        }
    }

    /// Reads the whole discovery log, again when it changes meanwhile. Entries that are no NVMe/TCP are left out.
    pub async fn discovery_log(&self) -> Result<Vec<DiscoveredSubsystem>, CommandError> {
        for _ in 0..DISCOVERY_RESTARTS_MAX {
            if let Some(entries) = self.discovery_log_once().await? {
                return Ok(entries);
            }
        }
        Err(CommandError::Status(Status::DISCOVER_RESTART))
    }

    async fn discovery_log_once(&self) -> Result<Option<Vec<DiscoveredSubsystem>>, CommandError> {
        const HEADER_LEN: usize = size_of::<DiscoveryHeader>();
        const ENTRY_LEN: usize = size_of::<DiscoveryEntry>();
        let before = self.log_page(LogPage::Discovery, HEADER_LEN, 0).await?;
        let (_, count) = info::discovery_header(&before).map_err(CommandError::Unusable)?;
        let (mut entries, mut read) = (Vec::new(), 0);
        while read < count.min(DISCOVERY_ENTRIES_MAX) {
            let take = (count - read).min(DISCOVERY_ENTRIES_AT_ONCE);
            let offset = (HEADER_LEN + read as usize * ENTRY_LEN) as u64;
            let page = self.log_page(LogPage::Discovery, take as usize * ENTRY_LEN, offset).await?;
            entries.extend(info::discovery_entries(&page));
            read += take;
        }
        let after = self.log_page(LogPage::Discovery, HEADER_LEN, 0).await?;
        Ok((info::discovery_header(&before) == info::discovery_header(&after)).then_some(entries))
    }

    // --- the end ----------------------------------------------------------------------------------------------------

    /// Resets the controller: none of its outstanding commands will be done any more. False when it did not obey in time.
    pub async fn disable(&self) -> Result<bool, CommandError> {
        let capabilities = self.info().capabilities;
        self.configure(Configuration(configuration_of(capabilities).0 & !1)).await?;
        let timeout_ms = ready_timeout_ms(capabilities);
        Ok(self.wait_status(timeout_ms, |status| !status.ready()).await?.is_some())
    }

    /// Shuts the controller down in order. False when it did not say "complete" in time.
    pub async fn shutdown(&self) -> Result<bool, CommandError> {
        let capabilities = self.info().capabilities;
        self.configure(configuration_of(capabilities).with_shutdown(1)).await?;
        let timeout_ms = ready_timeout_ms(capabilities);
        Ok(self.wait_status(timeout_ms, |status| status.shst() == 2).await?.is_some())
    }

    /// Has this controller reset another one of the subsystem, or an earlier instance of its own identifier. True when the
    /// controller says that it is done.
    pub(super) async fn reset_other(&self, other: &ControllerInfo) -> Result<bool, CommandError> {
        let (cntlid, uniquifier, random) = (other.id, other.uniquifier, other.instance);
        let sqe = command::cross_controller_reset(CrossControllerResetCommand { cntlid, uniquifier, random });
        self.plain(sqe).await.map(|cqe| cqe.dw0() & CrossControllerResetCommand::DONE != 0)
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
    fn parse(
        page: &[u8],
        id: u16,
        version: Version,
        capabilities: Capabilities,
        keep_alive_ms: u32,
    ) -> Result<Self, InfoError> {
        let identity = host::ControllerInfo::parse(page, capabilities)?;
        let (identify, _) = IdentifyController::ref_from_prefix(page).expect("the parser has checked the length");
        Ok(ControllerInfo {
            id,
            version,
            capabilities,
            atomic_write_blocks: u32::from(identify.awupf.get()) + 1,
            compare_and_write_blocks: u32::from(identify.acwu.get()) + 1,
            traffic_keep_alive: identify.ctratt.get() & CTRATT_TRAFFIC_KEEP_ALIVE != 0,
            keep_alive_ms: match identity.keep_alive_granularity_ms {
                0 => keep_alive_ms,
                unit => keep_alive_ms.div_ceil(unit).saturating_mul(unit),
            },
            command_quiesce_ms: identify.cqt.get(),
            uniquifier: identify.ciu,
            instance: identify.cirn.get(),
            has_ana: identify.cmic & CMIC_ANA != 0,
            ana_transition_s: identify.anatt,
            ana_groups: identify.nanagrpid.get(),
            crdt: identify.crdt.map(|delay| delay.get()),
            zeroes_size_limit: 0,
            uncorrectable_size_limit: 0,
            verify_size_limit: 0,
            unmap_blocks_max: 0,
            identity,
        })
    }

    fn adopt_limits(&mut self, page: &[u8]) {
        let (identify, _) = IdentifyNvmController::ref_from_prefix(page).expect("a page of 4096 unaligned bytes");
        self.verify_size_limit = identify.vsl;
        self.zeroes_size_limit = identify.wzsl;
        self.uncorrectable_size_limit = identify.wusl;
        self.unmap_blocks_max = identify.dmrsl.get();
    }

    /// Event requests that this host keeps with the controller.
    pub(super) fn event_requests(&self) -> u16 {
        self.identity.event_requests_max.min(EVENT_REQUESTS_MAX)
    }

    /// The block operations that a namespace of this controller performs.
    pub fn operations(&self) -> bdev::OpSet {
        use bdev::{Op, OpSet};
        let identity = &self.identity;
        let optional = [
            (identity.compare, Op::Compare),
            (identity.deallocate, Op::Unmap),
            (identity.write_zeroes, Op::WriteZeroes),
            (identity.verify, Op::Verify),
            (identity.copy, Op::Copy),
            (identity.write_uncorrectable, Op::WriteUncorrectable),
            (identity.compare && identity.compare_and_write, Op::CompareAndWrite),
        ];
        let supported = optional.iter().filter(|(supported, _)| *supported);
        supported.fold(OpSet::of(&[Op::Read, Op::Write, Op::Flush]), |ops, (_, op)| ops.union(OpSet::of(&[*op])))
    }
}

impl NamespaceInfo {
    fn parse(nsid: u32, page: &[u8]) -> Result<Self, InfoError> {
        let identity = host::NamespaceInfo::parse(nsid, page)?;
        let (identify, _) = IdentifyNamespace::ref_from_prefix(page).expect("the parser has checked the length");
        let has_atomics = identify.nsfeat & NSFEAT_ATOMIC != 0;
        let stated = |value: u16| (has_atomics && value > 0).then_some(u32::from(value) + 1);
        Ok(NamespaceInfo {
            nsid,
            identity,
            atomic_write_blocks: stated(identify.nawupf.get()),
            compare_and_write_blocks: stated(identify.nacwu.get()),
            zoned: None,
        })
    }
}

/// What this host writes to enable a controller: with all command sets that it has, so that zones are seen.
fn configuration_of(capabilities: Capabilities) -> Configuration {
    match capabilities.supports_css(CSS_ALL) {
        true => Configuration::ENABLE_ALL_SETS,
        false => Configuration::ENABLE,
    }
}

/// How long the controller may take to follow CC.EN; some say zero.
fn ready_timeout_ms(capabilities: Capabilities) -> u32 {
    capabilities.ready_timeout_ms().max(500)
}

/// Asks the discovery service at `options.address`, whatever subsystem the options name.
pub async fn discover(reactor: &Rc<Reactor>, options: &Options) -> Result<Vec<DiscoveredSubsystem>, ConnectError> {
    let options = Options { subsystem: Nqn::discovery(), ..options.clone() };
    let controller = Controller::connect(reactor, &options).await?;
    let reading = controller.discovery_log();
    let entries = reactor.timeout(options.admin_timeout_ns, reading).await;
    let entries = entries.unwrap_or(Err(CommandError::Lost(Broken::Timeout)));
    let entries = entries.map_err(controller.failed("read its log"))?;
    // The controller goes with its connection whether or not it was shut down.
    let _ = reactor.timeout(options.admin_timeout_ns, controller.shutdown()).await;
    Ok(entries)
}
