//! I/O commands of the NVM command set: from 64 bytes to something that a device can run, or a refusal.
//!
//! This runs for every command on the reactor of its queue: no allocation, no look-up but the namespace's.

use zerocopy::FromBytes;

use super::model::{COPY_RANGES_MAX, Namespace, Zoned};
use super::queue::check_flags;
use super::reservation::AccessKind;
use crate::spec::copy::{CopyCommand, CopyRange};
use crate::spec::opcode::NvmOpcode;
use crate::spec::reservation::{ReportCommand, ReservationCommand};
use crate::spec::sqe::{BlockCommand, DsmCommand, DsmRange, Fused};
use crate::spec::zns::{
    RECEIVE_EXTENDED_REPORT, RECEIVE_REPORT, ReportFilter, ReportHeader, SendAction, ZoneReceiveCommand,
    ZoneSendCommand,
};
use crate::spec::{NSID_ALL, Sqe, Status};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Data to the host.
    Read,
    /// Data from the host.
    Write,
    /// Compare with data from the host.
    Compare,
    /// Read without transfer.
    Verify,
    /// Zeroes; `deallocate` allows to free the blocks.
    WriteZeroes {
        /// Blocks may be deallocated.
        deallocate: bool,
    },
    /// Make blocks unreadable until they are written again.
    WriteUncorrectable,
    /// Make everything durable that was completed.
    Flush,
    /// Deallocate ranges: they are in the data, see [`dsm_ranges`].
    Deallocate {
        /// Ranges in the data.
        range_count: u16,
    },
    /// Dataset Management without Deallocate: hints that are not used. Its data must be taken nevertheless.
    Hint {
        /// Ranges in the data.
        range_count: u16,
    },
    /// Change the namespace's reservations; the keys are in the data.
    Reserve(ReservationCommand),
    /// Copy ranges: they are in the data, see [`copy_ranges`]. The first block is the destination's.
    Copy {
        /// Ranges in the data.
        range_count: u16,
    },
    /// Change the state of the zone at the first block, or of all zones.
    ZoneSend {
        /// To what.
        action: SendAction,
        /// All zones that it is about.
        all: bool,
    },
    /// Tell of zones, from that of the first block on.
    ZoneReport {
        /// Of which.
        filter: ReportFilter,
        /// Count what is told, not what there is.
        partial: bool,
        /// With their descriptor extensions.
        extended: bool,
    },
    /// Set the descriptor extension of the zone at the first block; it is in the data.
    ZoneExtend,
    /// Append to the zone at the first block.
    ZoneAppend,
    /// Tell of the namespace's reservations.
    ReservationReport {
        /// With host identifiers of 128 bits.
        extended: bool,
    },
}

impl IoOp {
    /// Whether data comes from the host.
    pub const fn takes_data(self) -> bool {
        let with_keys = matches!(self, IoOp::Reserve(_));
        let ranges = matches!(self, IoOp::Deallocate { .. } | IoOp::Hint { .. } | IoOp::Copy { .. });
        with_keys || ranges || matches!(self, IoOp::Write | IoOp::Compare | IoOp::ZoneAppend | IoOp::ZoneExtend)
    }

    /// Whether data goes to the host.
    pub const fn gives_data(self) -> bool {
        matches!(self, IoOp::Read | IoOp::ReservationReport { .. } | IoOp::ZoneReport { .. })
    }

    /// As what a reservation judges it; `None` for commands that are always let through to be judged elsewhere.
    #[inline]
    pub const fn access(self) -> Option<AccessKind> {
        match self {
            IoOp::Read | IoOp::Compare | IoOp::Verify | IoOp::ZoneReport { .. } => Some(AccessKind::Read),
            IoOp::Write | IoOp::WriteZeroes { .. } | IoOp::Flush | IoOp::Deallocate { .. } | IoOp::Hint { .. } => {
                Some(AccessKind::Write)
            }
            // Who may write may read, with every type of reservation.
            IoOp::Copy { .. }
            | IoOp::ZoneSend { .. }
            | IoOp::ZoneAppend
            | IoOp::ZoneExtend
            | IoOp::WriteUncorrectable => Some(AccessKind::Write),
            IoOp::Reserve(_) | IoOp::ReservationReport { .. } => None,
        }
    }
}

/// A valid I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoCommand {
    /// Command identifier.
    pub cid: u16,
    /// What to do.
    pub op: IoOp,
    /// Namespace; FFFFFFFFh for a flush of all.
    pub nsid: u32,
    /// First block; zero where there is none.
    pub slba: u64,
    /// Blocks; zero where there are none.
    pub block_count: u32,
    /// Durable (or, for reads, from the medium) when it completes.
    pub fua: bool,
    /// Bytes that the command moves.
    pub data_len: u32,
    /// Whether it is half of a pair.
    pub fused: Fused,
}

/// Decodes and checks a command, without its data.
///
/// `namespace` looks up what the queue knows about a namespace; `transfer_len_max` is MDTS in bytes.
///
/// # Errors
/// The status to complete it with (NVM Command Set 1.0, section 3.2, and Base 2.0, section 3.3.3.2).
pub fn decode<'n>(
    sqe: &Sqe,
    namespace: impl FnOnce(u32) -> Option<&'n Namespace>,
    transfer_len_max: u32,
) -> Result<IoCommand, Status> {
    let opcode = NvmOpcode::from_u8(sqe.opcode).ok_or(Status::INVALID_OPCODE.dnr())?;
    check_flags(sqe, true)?;
    let nsid = sqe.nsid.get();
    let command = IoCommand {
        cid: sqe.cid.get(),
        op: IoOp::Flush,
        nsid,
        slba: 0,
        block_count: 0,
        fua: false,
        data_len: 0,
        fused: sqe.fused(),
    };
    if opcode == NvmOpcode::Flush && nsid == NSID_ALL {
        return Ok(command);
    }
    let namespace = match nsid {
        0 | NSID_ALL => None,
        nsid => namespace(nsid),
    }
    .ok_or(Status::INVALID_NAMESPACE.dnr())?;
    let block = BlockCommand::of(sqe);
    match opcode {
        NvmOpcode::Flush => Ok(command),
        NvmOpcode::Read => with_blocks(command, IoOp::Read, &block, sqe, namespace, transfer_len_max),
        NvmOpcode::Compare => with_blocks(command, IoOp::Compare, &block, sqe, namespace, transfer_len_max),
        NvmOpcode::Verify => with_blocks(command, IoOp::Verify, &block, sqe, namespace, transfer_len_max),
        NvmOpcode::Write => {
            check_write(&block, namespace)?;
            with_blocks(command, IoOp::Write, &block, sqe, namespace, transfer_len_max)
        }
        NvmOpcode::WriteZeroes => {
            check_write(&block, namespace)?;
            let deallocate = block.deallocate && namespace.deallocate;
            with_blocks(command, IoOp::WriteZeroes { deallocate }, &block, sqe, namespace, transfer_len_max)
        }
        NvmOpcode::DatasetManagement => dataset_management(command, sqe, namespace),
        NvmOpcode::ReservationRegister | NvmOpcode::ReservationAcquire | NvmOpcode::ReservationRelease => {
            let reserve = ReservationCommand::of(sqe).ok_or(Status::INVALID_FIELD.dnr())?;
            with_bytes(command, IoOp::Reserve(reserve), u64::from(reserve.data_len()), sqe, transfer_len_max)
        }
        NvmOpcode::ReservationReport => {
            let ReportCommand { len, extended } = ReportCommand::of(sqe);
            with_bytes(command, IoOp::ReservationReport { extended }, len, sqe, transfer_len_max)
        }
        NvmOpcode::Copy => copy(command, sqe, namespace),
        NvmOpcode::ZoneManagementSend => zone_send(command, sqe, namespace, transfer_len_max),
        NvmOpcode::ZoneManagementReceive => zone_receive(command, sqe, namespace, transfer_len_max),
        NvmOpcode::ZoneAppend => {
            let zoned = zones_of(namespace)?;
            check_write(&block, namespace)?;
            if !block.slba.is_multiple_of(zoned.zone_blocks) {
                return Err(Status::INVALID_FIELD.dnr());
            }
            with_blocks(command, IoOp::ZoneAppend, &block, sqe, namespace, transfer_len_max)
        }
        NvmOpcode::WriteUncorrectable => {
            if !namespace.write_uncorrectable {
                return Err(Status::INVALID_OPCODE.dnr());
            }
            check_write(&block, namespace)?;
            with_blocks(command, IoOp::WriteUncorrectable, &block, sqe, namespace, transfer_len_max)
        }
        NvmOpcode::Fabrics => Err(Status::INVALID_OPCODE.dnr()),
    }
}

fn check_write(block: &BlockCommand, namespace: &Namespace) -> Result<(), Status> {
    if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    if block.directive_type != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(())
}

fn check_range(slba: u64, block_count: u32, namespace: &Namespace) -> Result<(), Status> {
    match slba.checked_add(u64::from(block_count)) {
        Some(end) if end <= namespace.block_count => Ok(()),
        _ => Err(Status::LBA_OUT_OF_RANGE.dnr()),
    }
}

/// A command that moves bytes which are no blocks.
fn with_bytes(command: IoCommand, op: IoOp, bytes: u64, sqe: &Sqe, transfer_len_max: u32) -> Result<IoCommand, Status> {
    if bytes > u64::from(transfer_len_max) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if u64::from(sqe.sgl.length.get()) < bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    Ok(IoCommand { op, data_len: bytes as u32, ..command })
}

fn with_blocks(
    command: IoCommand,
    op: IoOp,
    block: &BlockCommand,
    sqe: &Sqe,
    namespace: &Namespace,
    transfer_len_max: u32,
) -> Result<IoCommand, Status> {
    let mut data_len = 0;
    if op.takes_data() || op.gives_data() {
        let bytes = u64::from(block.block_count) << namespace.block_shift;
        if bytes > u64::from(transfer_len_max) {
            return Err(Status::INVALID_FIELD.dnr());
        }
        if u64::from(sqe.sgl.length.get()) < bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        data_len = bytes as u32;
    }
    check_range(block.slba, block.block_count, namespace)?;
    Ok(IoCommand { op, slba: block.slba, block_count: block.block_count, fua: block.fua, data_len, ..command })
}

fn dataset_management(command: IoCommand, sqe: &Sqe, namespace: &Namespace) -> Result<IoCommand, Status> {
    let dsm = DsmCommand::of(sqe);
    let data_len = dsm.range_count * size_of::<DsmRange>() as u32;
    if sqe.sgl.length.get() < data_len {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    let range_count = dsm.range_count as u16;
    if !dsm.deallocate {
        return Ok(IoCommand { op: IoOp::Hint { range_count }, data_len, ..command });
    }
    if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    Ok(IoCommand { op: IoOp::Deallocate { range_count }, data_len, ..command })
}

fn copy(command: IoCommand, sqe: &Sqe, namespace: &Namespace) -> Result<IoCommand, Status> {
    let CopyCommand { sdlba, range_count, format, directive_type, prinfo, fua } = CopyCommand::of(sqe);
    if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    if format != 0 || directive_type != 0 || prinfo != (0, 0) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    if range_count > u32::from(COPY_RANGES_MAX) {
        return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
    }
    let data_len = range_count * size_of::<CopyRange>() as u32;
    if sqe.sgl.length.get() < data_len {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    check_range(sdlba, 1, namespace)?;
    let op = IoOp::Copy { range_count: range_count as u16 };
    Ok(IoCommand { op, slba: sdlba, fua, data_len, ..command })
}

/// The ranges of a Copy to block `sdlba`, checked: all of them before any is copied. `data` holds at least `range_count`.
///
/// # Errors
/// Command Size Limit Exceeded, LBA Out of Range (NVM Command Set 1.0, section 3.2.2).
pub fn copy_ranges(
    data: &[u8],
    range_count: u16,
    sdlba: u64,
    namespace: &Namespace,
) -> Result<Vec<(u64, u32)>, Status> {
    let (ranges, _) = <[CopyRange]>::ref_from_prefix_with_elems(data, usize::from(range_count))
        .map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
    let mut total = 0;
    for range in ranges {
        if range.block_count() > u32::from(namespace.copy_range_blocks_max) {
            return Err(Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr());
        }
        check_range(range.slba.get(), range.block_count(), namespace)?;
        total += range.block_count();
    }
    check_range(sdlba, total, namespace)?;
    Ok(ranges.iter().map(|range| (range.slba.get(), range.block_count())).collect())
}

fn zones_of(namespace: &Namespace) -> Result<Zoned, Status> {
    namespace.zoned.ok_or(Status::INVALID_OPCODE.dnr())
}

fn zone_send(command: IoCommand, sqe: &Sqe, namespace: &Namespace, transfer_len_max: u32) -> Result<IoCommand, Status> {
    let zoned = zones_of(namespace)?;
    let ZoneSendCommand { slba, action, select_all: all } = ZoneSendCommand::of(sqe);
    if namespace.read_only {
        return Err(Status::NAMESPACE_WRITE_PROTECTED.dnr());
    }
    // One extension is not for all zones, and where there are none, none can be set.
    let extends = |action: &SendAction| *action == SendAction::SetExtension;
    let is_offered = |action: &SendAction| !extends(action) || (zoned.extension_bytes > 0 && !all);
    let action = SendAction::from_u8(action).filter(is_offered).ok_or(Status::INVALID_FIELD.dnr())?;
    let op = IoOp::ZoneSend { action, all };
    if all {
        return Ok(IoCommand { op, ..command });
    }
    check_range(slba, 1, namespace)?;
    if !slba.is_multiple_of(zoned.zone_blocks) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let command = IoCommand { op, slba, ..command };
    match extends(&action) {
        true => with_bytes(command, IoOp::ZoneExtend, u64::from(zoned.extension_bytes), sqe, transfer_len_max),
        false => Ok(command),
    }
}

fn zone_receive(
    command: IoCommand,
    sqe: &Sqe,
    namespace: &Namespace,
    transfer_len_max: u32,
) -> Result<IoCommand, Status> {
    let zoned = zones_of(namespace)?;
    let ZoneReceiveCommand { slba, len, action, filter, partial } = ZoneReceiveCommand::of(sqe);
    let filter = ReportFilter::from_u8(filter).ok_or(Status::INVALID_FIELD.dnr())?;
    let extended = action == RECEIVE_EXTENDED_REPORT && zoned.extension_bytes > 0;
    if (action != RECEIVE_REPORT && !extended) || len < size_of::<ReportHeader>() as u64 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    check_range(slba, 1, namespace)?;
    let command = IoCommand { slba, ..command };
    with_bytes(command, IoOp::ZoneReport { filter, partial, extended }, len, sqe, transfer_len_max)
}

/// The ranges of a Deallocate, checked: all of them before any is acted upon. `data` holds at least `range_count` of them.
///
/// # Errors
/// LBA Out of Range (NVM Command Set 1.0, section 3.2.3).
pub fn dsm_ranges<'d>(
    data: &'d [u8],
    range_count: u16,
    namespace: &Namespace,
) -> Result<impl Iterator<Item = (u64, u32)> + 'd, Status> {
    let (ranges, _) = <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(range_count))
        .map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
    for range in ranges {
        check_range(range.slba.get(), range.block_count.get(), namespace)?;
    }
    let is_some = |range: &&DsmRange| range.block_count.get() > 0;
    Ok(ranges.iter().filter(is_some).map(|range| (range.slba.get(), range.block_count.get())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::sgl::SglDescriptor;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;
    use zerocopy::byteorder::little_endian::{U32, U64};

    const MDTS: u32 = 1 << 20;

    fn namespace() -> Namespace {
        Namespace::new(12, 1000, uuid::Uuid::nil())
    }

    fn try_decode(sqe: &Sqe, namespace: &Namespace) -> Result<IoCommand, Status> {
        decode(sqe, |nsid| (nsid == 1).then_some(namespace), MDTS)
    }

    fn block(opcode: NvmOpcode, slba: u64, count: u32, sgl_len: u32) -> Sqe {
        let mut sqe = Sqe::nvm(opcode, 7, 1).with_sgl(SglDescriptor::transport(sgl_len));
        BlockCommand::plain(slba, count).store(&mut sqe);
        sqe
    }

    #[test]
    fn a_read_is_decoded_with_its_length_in_bytes() {
        let mut sqe = block(NvmOpcode::Read, 10, 4, 16384);
        sqe.cdw12 = U32::new(sqe.cdw12.get() | 1 << 30);
        let command = try_decode(&sqe, &namespace()).expect("valid");
        assert_eq!((command.op, command.slba, command.block_count), (IoOp::Read, 10, 4));
        assert_eq!((command.data_len, command.fua, command.cid), (16384, true, 7));
    }

    #[test]
    fn blocks_beyond_the_end_are_refused_even_when_the_sum_overflows() {
        for (slba, count) in [(1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (0, 65536)] {
            for opcode in [NvmOpcode::WriteZeroes, NvmOpcode::Verify] {
                let refused = try_decode(&block(opcode, slba, count, 0), &namespace());
                assert_eq!(refused, Err(Status::LBA_OUT_OF_RANGE.dnr()), "{slba}+{count}");
            }
        }
        assert!(try_decode(&block(NvmOpcode::Read, 999, 1, 4096), &namespace()).is_ok());
    }

    #[test]
    fn a_transfer_must_fit_mdts_and_its_sgl() {
        let refused = |sqe| try_decode(&sqe, &namespace()).expect_err("refused");
        assert_eq!(refused(block(NvmOpcode::Read, 0, 257, u32::MAX)), Status::INVALID_FIELD.dnr());
        assert_eq!(refused(block(NvmOpcode::Write, 0, 2, 8191)), Status::DATA_SGL_LENGTH_INVALID.dnr());
        assert!(try_decode(&block(NvmOpcode::Write, 0, 256, 1 << 20), &namespace()).is_ok());
        assert!(try_decode(&block(NvmOpcode::WriteZeroes, 0, 1000, 0), &namespace()).is_ok(), "moves nothing");
    }

    #[test]
    fn namespaces_that_do_not_exist_are_refused_and_flush_takes_all() {
        for nsid in [0, 2, NSID_ALL] {
            let sqe = Sqe { nsid: U32::new(nsid), ..block(NvmOpcode::Read, 0, 1, 4096) };
            assert_eq!(try_decode(&sqe, &namespace()), Err(Status::INVALID_NAMESPACE.dnr()));
        }
        let flush = |nsid| try_decode(&Sqe::nvm(NvmOpcode::Flush, 1, nsid), &namespace()).map(|command| command.nsid);
        assert_eq!(flush(NSID_ALL), Ok(NSID_ALL));
        assert_eq!(flush(1), Ok(1));
        assert_eq!(flush(0), Err(Status::INVALID_NAMESPACE.dnr()));
    }

    #[test]
    fn a_read_only_namespace_takes_no_write_of_any_kind() {
        let read_only = Namespace { read_only: true, ..namespace() };
        let mut dsm = Sqe::nvm(NvmOpcode::DatasetManagement, 1, 1).with_sgl(SglDescriptor::transport(16));
        DsmCommand { range_count: 1, deallocate: true }.store(&mut dsm);
        for sqe in [block(NvmOpcode::Write, 0, 1, 4096), block(NvmOpcode::WriteZeroes, 0, 1, 0), dsm] {
            assert_eq!(try_decode(&sqe, &read_only), Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()));
        }
        assert!(try_decode(&block(NvmOpcode::Compare, 0, 1, 4096), &read_only).is_ok());
    }

    #[test]
    fn prps_and_reserved_fused_bits_are_refused() {
        for flags in [0x00, 0x80, 0xc0, 0x43] {
            let sqe = Sqe { flags, ..block(NvmOpcode::Read, 0, 1, 4096) };
            assert_eq!(try_decode(&sqe, &namespace()), Err(Status::INVALID_FIELD.dnr()), "{flags:02x}");
        }
    }

    #[test]
    fn blocks_are_declared_unreadable_where_that_can_be() {
        let sqe = block(NvmOpcode::WriteUncorrectable, 10, 4, 0);
        assert_eq!(try_decode(&sqe, &namespace()), Err(Status::INVALID_OPCODE.dnr()));
        let able = Namespace { write_uncorrectable: true, ..namespace() };
        let command = try_decode(&sqe, &able).expect("valid");
        assert_eq!((command.op, command.slba, command.block_count), (IoOp::WriteUncorrectable, 10, 4));
        assert_eq!((command.data_len, command.op.access()), (0, Some(AccessKind::Write)));
        let refused = |sqe: &Sqe, namespace: &Namespace| try_decode(sqe, namespace).expect_err("refused");
        let beyond = block(NvmOpcode::WriteUncorrectable, 999, 2, 0);
        assert_eq!(refused(&beyond, &able), Status::LBA_OUT_OF_RANGE.dnr());
        let read_only = Namespace { read_only: true, ..able };
        assert_eq!(refused(&sqe, &read_only), Status::NAMESPACE_WRITE_PROTECTED.dnr());
        let directive = Sqe { cdw12: U32::new(sqe.cdw12.get() | 1 << 20), ..sqe };
        assert_eq!(refused(&directive, &able), Status::INVALID_FIELD.dnr());
    }

    #[test]
    fn every_opcode_is_run_or_refused_as_an_opcode() {
        let offered = [
            NvmOpcode::Flush,
            NvmOpcode::Write,
            NvmOpcode::Read,
            NvmOpcode::Compare,
            NvmOpcode::WriteZeroes,
            NvmOpcode::DatasetManagement,
            NvmOpcode::Verify,
            NvmOpcode::ReservationRegister,
            NvmOpcode::ReservationReport,
            NvmOpcode::ReservationAcquire,
            NvmOpcode::ReservationRelease,
            NvmOpcode::Copy,
        ];
        for opcode in 0..=255u8 {
            // CDW10 is a block, and a reservation of type 1 to be acquired.
            let sqe = Sqe { opcode, ..block(NvmOpcode::Read, 0x100, 1, 1 << 20) };
            let result = try_decode(&sqe, &namespace());
            if offered.iter().any(|offered| *offered as u8 == opcode) {
                assert!(result.is_ok(), "{opcode:02x}");
            } else {
                assert_eq!(result, Err(Status::INVALID_OPCODE.dnr()), "{opcode:02x}");
            }
        }
    }

    #[test]
    fn deallocate_ranges_are_all_checked_before_the_first_is_used() {
        let range =
            |slba, count| DsmRange { attributes: U32::new(0), block_count: U32::new(count), slba: U64::new(slba) };
        let good = [range(0, 10), range(5, 0), range(990, 10)];
        let ranges = dsm_ranges(good.as_bytes(), 3, &namespace()).map(Iterator::collect::<Vec<_>>);
        assert_eq!(ranges, Ok(vec![(0, 10), (990, 10)]));
        let bad = [range(0, 10), range(991, 10)];
        assert_eq!(dsm_ranges(bad.as_bytes(), 2, &namespace()).err(), Some(Status::LBA_OUT_OF_RANGE.dnr()));
        assert_eq!(dsm_ranges(bad.as_bytes(), 3, &namespace()).err(), Some(Status::DATA_SGL_LENGTH_INVALID.dnr()));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_lies_within_the_namespace(mut bytes: [u8; 64], opcode in 0u8..0x20, blocks in 1u64..10_000) {
            bytes[0] = opcode;
            bytes[1] = bytes[1] & 3 | 0x40;
            bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
            bytes[43..48].fill(0);
            let sqe: Sqe = zerocopy::transmute!(bytes);
            let namespace = Namespace::new(9, blocks, uuid::Uuid::nil());
            if let Ok(command) = try_decode(&sqe, &namespace) {
                prop_assert!(command.slba + u64::from(command.block_count) <= blocks);
                prop_assert!(command.data_len <= MDTS.max(4096) && command.data_len <= sqe.sgl.length.get());
            }
        }
    }
}
