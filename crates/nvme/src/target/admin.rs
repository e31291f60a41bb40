//! Admin commands (Base 2.0, section 5).

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::controller::{Controller, ControllerState};
use super::discovery::View;
use super::identify::{ABORTS_MAX, events_supported, identify};
use super::instance::Instance;
use super::log::Window;
use super::model::{Subsystem, TargetConfig};
use super::reservation::Table;
use super::timestamp::TIMESTAMP_LEN;
use super::{ControllerHandle, SubsystemId, Target, TargetEvent, ana, feature, log};
use crate::spec::ana::GROUPS_ONLY;
use crate::spec::erase::FormatCommand;
use crate::spec::event::EventResult;
use crate::spec::feature::Feature;
use crate::spec::identify::CSI_NVM;
use crate::spec::log::LogPage;
use crate::spec::opcode::{AdminOpcode, FABRICS};
use crate::spec::reservation::NOTICE_MASK;
use crate::spec::sqe::{AbortCommand, CrossControllerResetCommand, FeatureCommand, FeatureSelect, GetLogPageCommand};
use crate::spec::status::StatusType;
use crate::spec::zns::CSI_ZNS;
use crate::spec::{Cqe, IDENTIFY_LEN, NSID_ALL, Sqe, Status};
use crate::target::queue;

/// What became of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// It is done: send `data_len` bytes of `data_out`, then the completion.
    Complete {
        /// The completion.
        cqe: Cqe,
        /// Bytes of data for the host; zero unless the command succeeded.
        data_len: usize,
    },
    /// An asynchronous event request that waits: its completion will come as [`TargetEvent::Complete`].
    Pending,
    /// Find command `cid` on I/O queue `sqid` and abort it if that is still possible, then send what [`Target::abort_done`]
    /// returns.
    Abort {
        /// The queue; it is connected.
        sqid: u16,
        /// The command to abort.
        cid: u16,
    },
    /// Set the persistence of a namespace's reservations, of all with FFFFFFFFh, as [`Target::plan_reservation`] has it, then
    /// complete the command.
    SetPersistence {
        /// The namespace.
        nsid: u32,
        /// The value.
        on: bool,
    },
    /// Format the namespace that the command names: when no change of its reservations is under way, as
    /// [`Target::check_format`] has it then. Complete the command when that is durable.
    Format,
    /// Wait until no command of a controller that had this identifier and has ended, or was reset, is carried out any more;
    /// then send what [`cross_reset_done`] returns.
    Quiesce {
        /// The subsystem.
        subsystem: SubsystemId,
        /// The controller identifier within it.
        cntlid: u16,
    },
}

/// The completion of a Cross-Controller Reset command `cid` that [`AdminOutcome::Quiesce`] asked the caller to carry out.
/// When the commands did not end in time the host may try again: this target keeps no log of resets that end later.
pub fn cross_reset_done(cid: u16, quiet: bool) -> Cqe {
    match quiet {
        true => Cqe::success(cid, CrossControllerResetCommand::DONE),
        false => Cqe::new(cid, Status::COMMAND_INTERRUPTED),
    }
}

/// What a handler leaves: dword 0 and bytes of data, or something else than a completion.
enum Done {
    Result(u32, usize),
    Pending,
    Abort { sqid: u16, cid: u16 },
    CrossReset(CrossControllerResetCommand),
    SetPersistence { nsid: u32, on: bool },
    Format,
}

const DONE: Result<Done, Status> = Ok(Done::Result(0, 0));

impl Target {
    /// Processes a command of a controller's admin queue that is not a Fabrics command.
    ///
    /// `data_in` is what the host sent with it. `data_out` is the memory for what it asks for, exactly as long as its SGL says;
    /// the caller has bounded that by `transfer_len_max`.
    pub fn admin(
        &mut self,
        now_ns: u64,
        handle: ControllerHandle,
        sqe: &Sqe,
        data_in: &[u8],
        data_out: &mut [u8],
    ) -> AdminOutcome {
        assert_ne!(sqe.opcode, FABRICS, "the caller brings Fabrics commands to `fabrics`");
        let cid = sqe.cid.get();
        let Some(controller) = self.controllers.get_mut(&handle) else {
            return AdminOutcome::Complete { cqe: Cqe::new(cid, Status::ABORTED_SQ_DELETION.dnr()), data_len: 0 };
        };
        controller.note_activity(now_ns);
        let discovery = View {
            subsystems: &self.subsystems,
            ports: &self.ports,
            referrals: &self.referrals,
            generation: self.generation,
            admin_entries_max: self.config.admin_entries_max,
        };
        let subsystem = &self.subsystems[&controller.subsystem()];
        let mut context = Context {
            now_ns,
            handle,
            controller,
            subsystem,
            tables: &self.tables,
            config: &self.config,
            discovery,
            events: &mut self.events,
        };
        match context.execute(sqe, data_in, data_out) {
            Ok(Done::Pending) => AdminOutcome::Pending,
            Ok(Done::Abort { sqid, cid }) => AdminOutcome::Abort { sqid, cid },
            Ok(Done::SetPersistence { nsid, on }) => AdminOutcome::SetPersistence { nsid, on },
            Ok(Done::Result(dw0, data_len)) => AdminOutcome::Complete { cqe: Cqe::success(cid, dw0), data_len },
            Ok(Done::CrossReset(command)) => match self.cross_reset(handle, command) {
                Ok((subsystem, cntlid)) => AdminOutcome::Quiesce { subsystem, cntlid },
                Err(status) => self.refuse(handle, sqe, status),
            },
            Ok(Done::Format) => match self.check_format(handle, sqe.nsid.get(), &FormatCommand::of(sqe)) {
                Ok(_) => AdminOutcome::Format,
                Err(status) => self.refuse(handle, sqe, status),
            },
            Err(status) => self.refuse(handle, sqe, status),
        }
    }

    fn refuse(&mut self, handle: ControllerHandle, sqe: &Sqe, status: Status) -> AdminOutcome {
        // What this path refuses another one may carry out.
        let is_path = status.sct() == StatusType::Path as u8;
        let cqe = Cqe::new(sqe.cid.get(), if is_path { status } else { status.dnr() });
        self.record_error(handle, 0, sqe, &cqe);
        AdminOutcome::Complete { cqe, data_len: 0 }
    }

    /// Ends the controller that a host names through another of its controllers. An instance that is not there any more has
    /// ended before; whether its commands have is the caller's to find out.
    fn cross_reset(
        &mut self,
        by: ControllerHandle,
        command: CrossControllerResetCommand,
    ) -> Result<(SubsystemId, u16), Status> {
        let CrossControllerResetCommand { cntlid, uniquifier, random } = command;
        let issuer = &self.controllers[&by];
        let subsystem = issuer.subsystem();
        let named = Instance { uniquifier, random };
        let is_named = |found: &Controller| {
            found.subsystem() == subsystem && found.cntlid() == cntlid && found.instance() == named
        };
        if let Some((handle, found)) = self.controllers.iter().find(|(_, found)| is_named(found)) {
            // Not itself, and nobody else's.
            if *handle == by || !found.is_of(issuer.host_nqn(), issuer.host_id()) {
                return Err(Status::INVALID_FIELD);
            }
            let handle = *handle;
            self.close_controller(handle, super::WhyClosed::CrossReset);
        }
        Ok((subsystem, cntlid))
    }

    /// The completion of an Abort command `abort_cid` that [`AdminOutcome::Abort`] asked the caller to carry out.
    pub fn abort_done(&mut self, handle: ControllerHandle, abort_cid: u16, aborted: bool) -> Cqe {
        if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.aborts_pending = controller.aborts_pending.saturating_sub(1);
        }
        Cqe::success(abort_cid, u32::from(!aborted))
    }

    /// An I/O command failed: for the error log, and its count in the SMART log.
    pub fn record_error(&mut self, handle: ControllerHandle, sqid: u16, sqe: &Sqe, cqe: &Cqe) {
        if let Some(controller) = self.controllers.get_mut(&handle) {
            controller.errors.record(sqid, sqe, cqe);
        }
    }
}

struct Context<'a> {
    now_ns: u64,
    handle: ControllerHandle,
    controller: &'a mut Controller,
    subsystem: &'a Subsystem,
    tables: &'a BTreeMap<(SubsystemId, u32), Table>,
    config: &'a TargetConfig,
    discovery: View<'a>,
    events: &'a mut std::collections::VecDeque<TargetEvent>,
}

impl Context<'_> {
    fn execute(&mut self, sqe: &Sqe, data_in: &[u8], data_out: &mut [u8]) -> Result<Done, Status> {
        queue::check_flags(sqe, false)?;
        if matches!(self.controller.state(), ControllerState::Disabled | ControllerState::Resetting) {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        match AdminOpcode::from_u8(sqe.opcode).ok_or(Status::INVALID_OPCODE)? {
            AdminOpcode::Identify => self.identify(sqe, data_out),
            AdminOpcode::GetLogPage => self.get_log_page(sqe, data_out),
            AdminOpcode::GetFeatures => self.get_features(sqe, data_out),
            AdminOpcode::SetFeatures => self.set_features(sqe, data_in),
            AdminOpcode::KeepAlive => DONE,
            AdminOpcode::AsyncEventRequest => Ok(self.async_event_request(sqe)?),
            AdminOpcode::CrossControllerReset if !self.controller.is_discovery() => {
                Ok(Done::CrossReset(CrossControllerResetCommand::of(sqe)))
            }
            AdminOpcode::FormatNvm => Ok(Done::Format),
            AdminOpcode::Abort if !self.controller.is_discovery() => self.abort(sqe),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    fn identify(&mut self, sqe: &Sqe, data_out: &mut [u8]) -> Result<Done, Status> {
        let (page, _) = data_out.split_first_chunk_mut::<IDENTIFY_LEN>().ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
        page.fill(0);
        identify(self.controller, self.subsystem, self.config, sqe, page)?;
        Ok(Done::Result(0, IDENTIFY_LEN))
    }

    fn get_log_page(&mut self, sqe: &Sqe, data_out: &mut [u8]) -> Result<Done, Status> {
        let command = GetLogPageCommand::of(sqe);
        let is_discovery = self.controller.is_discovery();
        let page = LogPage::from_u8(command.lid)
            .filter(|page| log::is_supported(*page, is_discovery))
            .ok_or(Status::INVALID_LOG_PAGE)?;
        log::check_nsid(page, sqe.nsid.get())?;
        let is_of_a_set = page == LogPage::CommandEffects && self.controller.has_all_command_sets();
        if is_of_a_set && ![CSI_NVM, CSI_ZNS].contains(&command.csi) {
            return Err(Status::INVALID_FIELD);
        }
        let groups_only = command.lsp & GROUPS_ONLY != 0;
        let page_len = match page {
            LogPage::Ana => ana::log_len(self.controller, self.subsystem, groups_only),
            LogPage::Discovery => self.discovery.len(self.controller),
            _ => log::page_len(page),
        };
        if command.offset_is_index || !command.offset.is_multiple_of(4) || command.offset > page_len {
            return Err(Status::INVALID_FIELD);
        }
        if command.len > data_out.len() as u64 {
            return Err(Status::DATA_SGL_LENGTH_INVALID);
        }
        let len = command.len as usize;
        let mut window = Window::new(&mut data_out[..len], command.offset);
        match page {
            LogPage::Ana => ana::store_log(self.controller, self.subsystem, groups_only, &mut window),
            LogPage::Discovery => self.discovery.store(self.controller, &mut window),
            LogPage::ChangedZones => {
                let nsid = sqe.nsid.get();
                let namespace = self.controller.namespace(self.subsystem, nsid).ok_or(Status::INVALID_NAMESPACE)?;
                namespace.zoned.ok_or(Status::INVALID_LOG_PAGE)?;
                window.put(0, self.controller.changed_zones.page(nsid).as_bytes());
            }
            _ => log::store(self.controller, self.subsystem, page, command.csi, &mut window),
        }
        if !command.retain_event {
            log::acknowledge(self.controller, page);
            if page == LogPage::ChangedZones
                && let Some(other) = self.controller.changed_zones.clear(sqe.nsid.get())
            {
                self.controller.tell_of_zones(self.handle, other, self.events);
            }
            // One page tells of one notice; the host is told that there are more.
            let is_whole = command.offset.saturating_add(command.len) >= page_len;
            if page == LogPage::ReservationNotification && is_whole && self.controller.notices.acknowledge() {
                self.controller.events.push(EventResult::RESERVATION_NOTIFICATION, self.handle, self.events);
            }
        }
        Ok(Done::Result(0, len))
    }

    fn supported_feature(&self, fid: u8) -> Result<Feature, Status> {
        let volatile_cache = self.subsystem.config().volatile_cache;
        Feature::from_u8(fid)
            .filter(|found| feature::is_supported(*found, self.controller.is_discovery(), volatile_cache))
            .ok_or(Status::INVALID_FIELD)
    }

    fn get_features(&mut self, sqe: &Sqe, data_out: &mut [u8]) -> Result<Done, Status> {
        let command = FeatureCommand::of(sqe);
        let found = self.supported_feature(command.fid)?;
        let features = match command.select {
            FeatureSelect::Reserved => return Err(Status::INVALID_FIELD),
            FeatureSelect::Capabilities => return Ok(Done::Result(feature::capabilities(found), 0)),
            FeatureSelect::Current => self.controller.features,
            // Nothing is saveable: a saved value is the default (Base 2.0, Feature Values).
            FeatureSelect::Default | FeatureSelect::Saved => feature::Features::new(self.config.io_queues_max),
        };
        match found {
            Feature::KeepAliveTimer => {
                let is_current = command.select == FeatureSelect::Current;
                Ok(Done::Result(if is_current { self.controller.kato_ms() } else { 0 }, 0))
            }
            Feature::HostIdentifier if command.value & 1 == 0 => Err(Status::HOST_ID_INCONSISTENT),
            Feature::HostIdentifier => {
                let out = data_out.first_chunk_mut::<16>().ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
                *out = *self.controller.host_id();
                Ok(Done::Result(0, out.len()))
            }
            Feature::Timestamp => {
                let out = data_out.first_chunk_mut::<TIMESTAMP_LEN>().ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
                *out = match command.select {
                    FeatureSelect::Current => self.controller.timestamp.get(self.now_ns),
                    _ => [0; TIMESTAMP_LEN],
                };
                Ok(Done::Result(0, out.len()))
            }
            Feature::HostBehaviorSupport => {
                let out = data_out
                    .first_chunk_mut::<{ feature::HOST_BEHAVIOR_LEN }>()
                    .ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
                out.fill(0);
                out[..4].copy_from_slice(&features.host_behavior);
                Ok(Done::Result(0, out.len()))
            }
            Feature::ReservationMask | Feature::ReservationPersistence => {
                let nsid = sqe.nsid.get();
                self.reached(nsid)?;
                let value = match (found, command.select) {
                    (Feature::ReservationMask, FeatureSelect::Current) => self.controller.notices.mask(nsid),
                    (_, FeatureSelect::Current) => {
                        let table = self.tables.get(&(self.controller.subsystem(), nsid));
                        u32::from(table.is_some_and(Table::is_persistent))
                    }
                    _ => 0,
                };
                Ok(Done::Result(value, 0))
            }
            found => Ok(Done::Result(features.get(found, command.value, self.subsystem)?, 0)),
        }
    }

    fn set_features(&mut self, sqe: &Sqe, data_in: &[u8]) -> Result<Done, Status> {
        let command = FeatureCommand::of(sqe);
        let found = self.supported_feature(command.fid)?;
        if command.save {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        self.check_feature_nsid(found, sqe.nsid.get())?;
        match found {
            // A Fabrics host states its identifier with Connect (Base 2.0, section 5.27.1.25).
            Feature::HostIdentifier => Err(Status::COMMAND_SEQUENCE_ERROR),
            Feature::KeepAliveTimer => {
                self.controller.set_kato_ms(command.value);
                DONE
            }
            Feature::Timestamp => {
                let data = data_in.first_chunk::<TIMESTAMP_LEN>().ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
                self.controller.timestamp.set(self.now_ns, data);
                DONE
            }
            Feature::HostBehaviorSupport => {
                let data =
                    data_in.first_chunk::<{ feature::HOST_BEHAVIOR_LEN }>().ok_or(Status::DATA_SGL_LENGTH_INVALID)?;
                if data[..4].iter().any(|value| *value > 1) {
                    return Err(Status::INVALID_FIELD);
                }
                self.controller.features.host_behavior.copy_from_slice(&data[..4]);
                DONE
            }
            Feature::ReservationMask => {
                if command.value & !NOTICE_MASK != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                self.controller.notices.set_mask(sqe.nsid.get(), command.value);
                DONE
            }
            Feature::ReservationPersistence => {
                Ok(Done::SetPersistence { nsid: sqe.nsid.get(), on: command.value & 1 != 0 })
            }
            found => {
                let events = events_supported(self.controller);
                let has_queues = self.controller.has_queues();
                let before = self.controller.features.write_cache;
                let dw0 = self.controller.features.set(found, command.value, events, has_queues, self.subsystem)?;
                let enabled = self.controller.features.write_cache;
                if enabled != before {
                    self.events.push_back(TargetEvent::WriteCache { controller: self.handle, enabled });
                }
                Ok(Done::Result(dw0, 0))
            }
        }
    }

    /// Whether a namespace exists for the host and can be reached at this port, as features of reservations need it.
    fn reached(&self, nsid: u32) -> Result<(), Status> {
        let found = self.subsystem.namespace_of(self.controller.host_nqn(), nsid);
        let state = self.subsystem.ana_state(found.ok_or(Status::INVALID_NAMESPACE)?, self.controller.via());
        state.refusal().map_or(Ok(()), Err)
    }

    fn check_feature_nsid(&self, found: Feature, nsid: u32) -> Result<(), Status> {
        match found {
            Feature::ReservationMask | Feature::ReservationPersistence if nsid == 0 => Err(Status::INVALID_NAMESPACE),
            _ if nsid == 0 || nsid == NSID_ALL => Ok(()),
            Feature::ErrorRecovery => {
                let found = self.subsystem.namespace_of(self.controller.host_nqn(), nsid);
                found.map(drop).ok_or(Status::INVALID_NAMESPACE)
            }
            Feature::ReservationMask | Feature::ReservationPersistence => self.reached(nsid),
            _ => Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC),
        }
    }

    fn async_event_request(&mut self, sqe: &Sqe) -> Result<Done, Status> {
        match self.controller.events.request(sqe.cid.get()) {
            None => Ok(Done::Pending),
            Some(cqe) if cqe.status().is_success() => Ok(Done::Result(cqe.dw0(), 0)),
            Some(cqe) => Err(cqe.status()),
        }
    }

    fn abort(&mut self, sqe: &Sqe) -> Result<Done, Status> {
        let AbortCommand { sqid, cid } = AbortCommand::of(sqe);
        if sqid == 0 {
            // Of all admin commands only event requests are ever outstanding when another one is processed.
            let aborted = self.controller.events.abort(cid);
            if let Some(cqe) = aborted {
                self.events.push_back(TargetEvent::Complete { controller: self.handle, cqe });
            }
            return Ok(Done::Result(u32::from(aborted.is_none()), 0));
        }
        if !self.controller.queues().any(|qid| qid == sqid) {
            return Ok(Done::Result(1, 0));
        }
        if self.controller.aborts_pending >= ABORTS_MAX {
            return Err(Status::ABORT_LIMIT_EXCEEDED);
        }
        self.controller.aborts_pending += 1;
        Ok(Done::Abort { sqid, cid })
    }
}
