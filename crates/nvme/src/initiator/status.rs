//! What a controller's answer means to the block layer, and whether the same command is worth another try.

use bdev::{Op, Status};

use crate::spec::Status as Nvme;
use crate::spec::status::StatusType;

/// Pause before the first retry that has a reason to wait; doubled with each further one.
const RETRY_FIRST_NS: u64 = 10_000_000;
/// Longest such pause.
const RETRY_MAX_NS: u64 = 1_000_000_000;

/// The block layer's word for a status of an I/O command.
pub(super) fn block_status(status: Nvme, op: Op) -> Status {
    let failed = if op.modifies() { Status::WriteError } else { Status::ReadError };
    match status.kind() {
        Nvme::SUCCESS => Status::Ok,
        Nvme::INVALID_OPCODE => Status::Unsupported,
        Nvme::INVALID_FIELD | Nvme::DATA_SGL_LENGTH_INVALID | Nvme::COMMAND_SIZE_LIMIT_EXCEEDED => Status::Invalid,
        Nvme::LBA_OUT_OF_RANGE => Status::OutOfRange,
        Nvme::CAPACITY_EXCEEDED => Status::NoSpace,
        Nvme::NAMESPACE_WRITE_PROTECTED | Nvme::WRITE_TO_READ_ONLY => Status::ReadOnly,
        Nvme::RESERVATION_CONFLICT => Status::ReservationConflict,
        Nvme::COMPARE_FAILURE => Status::Miscompare,
        Nvme::WRITE_FAULT => Status::WriteError,
        Nvme::UNRECOVERED_READ_ERROR | Nvme::DEALLOCATED_OR_UNWRITTEN => Status::ReadError,
        Nvme::INVALID_NAMESPACE | Nvme::ANA_PERSISTENT_LOSS => Status::Gone,
        Nvme::ANA_INACCESSIBLE => Status::Inaccessible,
        Nvme::ABORT_REQUESTED
        | Nvme::ABORTED_SQ_DELETION
        | Nvme::ABORTED_PREEMPT
        | Nvme::ABORTED_FAILED_FUSED
        | Nvme::ABORTED_MISSING_FUSED
        | Nvme::ABORTED_POWER_LOSS => Status::Aborted,
        _ if status.sct() == StatusType::Path as u8 => Status::Gone,
        // 82h to 84h: the three checks of end-to-end protection information.
        _ if status.sct() == StatusType::Media as u8 && (0x82..=0x84).contains(&status.sc()) => Status::Corrupt,
        _ if status.sct() == StatusType::Command as u8 => zone_status(status.sc()).unwrap_or(failed),
        _ => failed,
    }
}

/// Statuses of zoned namespaces (Zoned Namespace Command Set 1.1).
fn zone_status(sc: u8) -> Option<Status> {
    Some(match sc {
        0xb8 => Status::ZoneBoundary,
        0xb9 => Status::ZoneFull,
        0xba => Status::ZoneReadOnly,
        0xbb => Status::ZoneOffline,
        0xbc => Status::ZoneInvalidWrite,
        0xbd => Status::ZoneTooManyActive,
        0xbe => Status::ZoneTooManyOpen,
        0xbf => Status::ZoneInvalidTransition,
        _ => return None,
    })
}

/// Whether the same command may fare better on another path, or on this one later. What is refused for the sake of an
/// asymmetric access state was not begun (Base 2.0, section 8.1.3), so that goes for every operation; as for a namespace that
/// this controller does not have, where "do not retry" is about this controller.
pub(super) fn is_of_path(status: Nvme, op: Op) -> bool {
    if is_absent(status) {
        return true;
    }
    match status.sct() == StatusType::Path as u8 && !status.do_not_retry() {
        true => status.is_ana_refusal() || is_retryable(status, op),
        false => false,
    }
}

/// Whether the controller says that it does not have the namespace (any more).
pub(super) fn is_absent(status: Nvme) -> bool {
    status.kind() == Nvme::INVALID_NAMESPACE
}

/// Whether a command that was answered so may be sent again. Answered means that the controller is done with it, so a
/// retry cannot be overtaken by the first attempt.
pub(super) fn is_retryable(status: Nvme, op: Op) -> bool {
    // A compare-and-write whose write half failed may have changed the blocks: a retry would miscompare against itself. An
    // append may have appended.
    if status.do_not_retry() || matches!(op, Op::CompareAndWrite | Op::ZoneAppend) {
        return false;
    }
    matches!(
        status.kind(),
        Nvme::COMMAND_INTERRUPTED
            | Nvme::TRANSIENT_TRANSPORT_ERROR
            | Nvme::DATA_TRANSFER_ERROR
            | Nvme::INTERNAL_ERROR
            | Nvme::ABORT_REQUESTED
            | Nvme::NAMESPACE_NOT_READY
            | Nvme::MEDIA_NOT_READY
            | Nvme::INTERNAL_PATH_ERROR
            | Nvme::CONTROLLER_PATH_ERROR
            | Nvme::HOST_PATH_ERROR
    )
}

/// How long to wait before the retry number `retry` (from zero). `crdt` are the controller's retry delays in 100 ms.
pub(super) fn retry_pause_ns(status: Nvme, retry: u8, crdt: [u16; 3]) -> u64 {
    let requested = usize::from(status.crd()).checked_sub(1).map_or(0, |index| crdt[index]);
    match status.kind() {
        _ if requested > 0 => u64::from(requested) * 100_000_000,
        Nvme::TRANSIENT_TRANSPORT_ERROR => 0,
        _ => (RETRY_FIRST_NS << retry.min(16)).min(RETRY_MAX_NS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn do_not_retry_is_obeyed() {
        assert!(is_retryable(Nvme::INTERNAL_PATH_ERROR, Op::Write));
        assert!(!is_retryable(Nvme::INTERNAL_PATH_ERROR.dnr(), Op::Write));
        assert!(!is_retryable(Nvme::INTERNAL_PATH_ERROR, Op::CompareAndWrite));
        assert!(!is_retryable(Nvme::LBA_OUT_OF_RANGE, Op::Read));
    }

    #[test]
    fn what_an_access_state_refuses_goes_elsewhere_whatever_it_is() {
        for status in [Nvme::ANA_INACCESSIBLE, Nvme::ANA_PERSISTENT_LOSS, Nvme::ANA_TRANSITION] {
            assert!(is_of_path(status, Op::CompareAndWrite) && is_of_path(status, Op::Read));
            assert!(!is_of_path(status.dnr(), Op::Read));
        }
        assert!(is_of_path(Nvme::INTERNAL_PATH_ERROR, Op::Write));
        assert!(is_of_path(Nvme::INVALID_NAMESPACE.dnr(), Op::ZoneAppend));
        assert!(!is_of_path(Nvme::INTERNAL_PATH_ERROR, Op::ZoneAppend) && !is_of_path(Nvme::INTERNAL_ERROR, Op::Read));
    }

    #[test]
    fn every_status_but_success_is_an_error() {
        for sct in 0..8 {
            for sc in 0..=255 {
                for op in Op::ALL {
                    let status = Nvme::new(sct, sc);
                    assert_eq!(block_status(status, op).is_ok(), status.is_success());
                    assert_eq!(block_status(status.dnr(), op), block_status(status, op));
                }
            }
        }
    }

    #[test]
    fn the_controllers_delay_wins() {
        let status = Nvme::from_wire(Nvme::NAMESPACE_NOT_READY.to_wire() | 2 << 12);
        assert_eq!(retry_pause_ns(status, 0, [1, 7, 3]), 700_000_000);
        assert_eq!(retry_pause_ns(Nvme::NAMESPACE_NOT_READY, 1, [1, 7, 3]), 20_000_000);
        assert_eq!(retry_pause_ns(Nvme::NAMESPACE_NOT_READY, 200, [1, 7, 3]), RETRY_MAX_NS);
    }
}
