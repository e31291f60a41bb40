//! Commands of an initiator. Each is complete but for its command identifier, which the queue assigns, and, for commands with
//! data, the data pointer ([`with_capsule_data`] or [`with_transport_data`]).

use zerocopy::byteorder::little_endian::{U16, U32};

use crate::spec::ana::GROUPS_ONLY;
use crate::spec::copy::CopyCommand;
use crate::spec::fabrics::{CNTLID_DYNAMIC, ConnectCommand, ConnectData, PropertyCommand};
use crate::spec::feature::{Feature, QueueCounts};
use crate::spec::identify::Cns;
use crate::spec::log::LogPage;
use crate::spec::opcode::{AdminOpcode, NvmOpcode};
use crate::spec::property;
use crate::spec::sgl::SglDescriptor;
use crate::spec::sqe::{
    AbortCommand, BlockCommand, CrossControllerResetCommand, DsmCommand, GetLogPageCommand, IdentifyCommand,
};
use crate::spec::zns::{RECEIVE_REPORT, SendAction, ZoneReceiveCommand, ZoneSendCommand};
use crate::spec::{IDENTIFY_LEN, Nqn, Sqe};

/// Connect for a queue of `entries` entries; the data of [`connect_data`] travels in the capsule.
pub fn connect(qid: u16, entries: u16, kato_ms: u32) -> Sqe {
    ConnectCommand::new(0, qid, entries, kato_ms).to_sqe()
}

/// The data of Connect. `cntlid` is `None` for the admin queue, whose answer brings it.
pub fn connect_data(host_id: [u8; 16], host: &Nqn, subsystem: &Nqn, cntlid: Option<u16>) -> ConnectData {
    ConnectData {
        hostid: host_id,
        cntlid: U16::new(cntlid.unwrap_or(CNTLID_DYNAMIC)),
        reserved18: [0; 238],
        subnqn: subsystem.to_field(),
        hostnqn: host.to_field(),
        reserved768: [0; 256],
    }
}

/// Disconnect of an I/O queue.
pub fn disconnect() -> Sqe {
    crate::spec::fabrics::disconnect(0)
}

/// Reads CAP; the answer's result has it.
pub fn get_capabilities() -> Sqe {
    PropertyCommand::get(0, property::CAP, true).to_sqe()
}

/// Reads CSTS.
pub fn get_status() -> Sqe {
    PropertyCommand::get(0, property::CSTS, false).to_sqe()
}

/// Writes CC.
pub fn set_configuration(cc: property::Configuration) -> Sqe {
    PropertyCommand::set(0, property::CC, cc.0).to_sqe()
}

/// Identify; 4096 bytes come back.
pub fn identify(cns: Cns, nsid: u32, csi: u8) -> Sqe {
    let mut sqe = with_transport_data(Sqe::new(AdminOpcode::Identify as u8, 0, nsid), IDENTIFY_LEN as u32);
    IdentifyCommand { cns: cns as u8, cntid: if cns == Cns::CommandSets { 0xffff } else { 0 }, cns_specific: 0, csi }
        .store(&mut sqe);
    sqe
}

/// Get Log Page: `len` bytes (a positive multiple of 4) from `offset`.
pub fn get_log_page(page: LogPage, offset: u64, len: u32, retain_event: bool) -> Sqe {
    let mut sqe = with_transport_data(Sqe::admin(AdminOpcode::GetLogPage, 0), len);
    GetLogPageCommand {
        lid: page as u8,
        lsp: 0,
        retain_event,
        len: u64::from(len),
        offset,
        offset_is_index: false,
        csi: 0,
    }
    .store(&mut sqe);
    sqe
}

/// Get Log Page for asymmetric namespace access: groups without their namespaces, `len` bytes from `offset`.
pub fn ana_log(offset: u64, len: u32) -> Sqe {
    let mut sqe = with_transport_data(Sqe::admin(AdminOpcode::GetLogPage, 0), len);
    GetLogPageCommand {
        lid: LogPage::Ana as u8,
        lsp: GROUPS_ONLY,
        retain_event: false,
        len: u64::from(len),
        offset,
        offset_is_index: false,
        csi: 0,
    }
    .store(&mut sqe);
    sqe
}

/// Set Features for a feature whose value is a dword.
pub fn set_feature(feature: Feature, value: u32) -> Sqe {
    let mut sqe = Sqe::admin(AdminOpcode::SetFeatures, 0);
    sqe.cdw10 = U32::new(feature as u32);
    sqe.cdw11 = U32::new(value);
    sqe
}

/// Get Features, the current value.
pub fn get_feature(feature: Feature, parameter: u32) -> Sqe {
    let mut sqe = Sqe::admin(AdminOpcode::GetFeatures, 0);
    sqe.cdw10 = U32::new(feature as u32);
    sqe.cdw11 = U32::new(parameter);
    sqe
}

/// Asks for `count` I/O queues; [`QueueCounts::from_wire`] of the answer says how many are granted.
pub fn set_queue_count(count: u16) -> Sqe {
    assert!((1..0xffff).contains(&count));
    let queues = QueueCounts { submission: u32::from(count), completion: u32::from(count) };
    set_feature(Feature::NumberOfQueues, queues.to_wire())
}

/// Keep Alive.
pub fn keep_alive() -> Sqe {
    Sqe::admin(AdminOpcode::KeepAlive, 0)
}

/// Asynchronous Event Request.
pub fn async_event_request() -> Sqe {
    Sqe::admin(AdminOpcode::AsyncEventRequest, 0)
}

/// Abort of a command of a queue.
pub fn abort(sqid: u16, cid: u16) -> Sqe {
    let mut sqe = Sqe::admin(AdminOpcode::Abort, 0);
    AbortCommand { sqid, cid }.store(&mut sqe);
    sqe
}

/// Cross-Controller Reset of what another controller said of itself.
pub fn cross_controller_reset(reset: CrossControllerResetCommand) -> Sqe {
    let mut sqe = Sqe::admin(AdminOpcode::CrossControllerReset, 0);
    reset.store(&mut sqe);
    sqe
}

/// A command over blocks: Read, Write, Compare, Write Zeroes, Write Uncorrectable, Verify.
pub fn blocks(opcode: NvmOpcode, nsid: u32, command: &BlockCommand) -> Sqe {
    let mut sqe = Sqe::nvm(opcode, 0, nsid);
    command.store(&mut sqe);
    sqe
}

/// Flush.
pub fn flush(nsid: u32) -> Sqe {
    Sqe::nvm(NvmOpcode::Flush, 0, nsid)
}

/// Dataset Management, Deallocate: `range_count` ranges of 16 bytes travel as data.
pub fn deallocate(nsid: u32, range_count: u32) -> Sqe {
    let mut sqe = Sqe::nvm(NvmOpcode::DatasetManagement, 0, nsid);
    DsmCommand { range_count, deallocate: true }.store(&mut sqe);
    sqe
}

/// Copy of one source range, 32 bytes that travel as data, to `sdlba` and the blocks behind it.
pub fn copy(nsid: u32, sdlba: u64, fua: bool) -> Sqe {
    let mut sqe = Sqe::nvm(NvmOpcode::Copy, 0, nsid);
    CopyCommand { fua, ..CopyCommand::plain(sdlba, 1) }.store(&mut sqe);
    sqe
}

/// Zone Management Send.
pub fn manage_zone(nsid: u32, action: SendAction, slba: u64, select_all: bool) -> Sqe {
    let mut sqe = Sqe::nvm(NvmOpcode::ZoneManagementSend, 0, nsid);
    ZoneSendCommand { slba, action: action as u8, select_all }.store(&mut sqe);
    sqe
}

/// Zone Management Receive, Report Zones: of as many zones from `slba` on as `len` bytes have room for.
pub fn report_zones(nsid: u32, slba: u64, len: u32) -> Sqe {
    let mut sqe = Sqe::nvm(NvmOpcode::ZoneManagementReceive, 0, nsid);
    ZoneReceiveCommand { slba, len: u64::from(len), action: RECEIVE_REPORT, filter: 0, partial: true }.store(&mut sqe);
    sqe
}

/// The command with `len` bytes of data in its capsule.
pub fn with_capsule_data(sqe: Sqe, len: u32) -> Sqe {
    sqe.with_sgl(SglDescriptor::in_capsule(0, len))
}

/// The command with `len` bytes that the transport moves.
pub fn with_transport_data(sqe: Sqe, len: u32) -> Sqe {
    sqe.with_sgl(SglDescriptor::transport(len))
}

/// The command with the identifier that its queue gave it.
pub fn with_cid(mut sqe: Sqe, cid: u16) -> Sqe {
    sqe.cid = U16::new(cid);
    sqe
}
