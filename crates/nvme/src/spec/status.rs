//! Completion status: what a controller answers (Base 2.0, section 3.3.3.2).
//!
//! A [`Status`] is the 15-bit status field of a completion, kept at the position it has on the wire (bit 0 is the phase tag,
//! always zero on fabrics).

use core::fmt;

/// Status code type (Base 2.0, figure 94).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum StatusType {
    /// Generic to all commands.
    Generic = 0,
    /// Specific to the command, or to its command set.
    Command = 1,
    /// Media and data integrity.
    Media = 2,
    /// Path related.
    Path = 3,
    /// Vendor specific.
    Vendor = 7,
}

/// The status field of a completion queue entry, phase tag excluded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Status(u16);

const SC_SHIFT: u16 = 1;
const SCT_SHIFT: u16 = 9;
const CRD_SHIFT: u16 = 12;
const MORE: u16 = 1 << 14;
const DNR: u16 = 1 << 15;

impl Status {
    /// A status from its type (3 bits) and code.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Status((sc as u16) << SC_SHIFT | ((sct & 7) as u16) << SCT_SHIFT)
    }

    /// From the wire; the phase tag is dropped.
    pub const fn from_wire(raw: u16) -> Self {
        Status(raw & !1)
    }

    /// As it travels, phase tag zero.
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// Status code type, 0 to 7.
    pub const fn sct(self) -> u8 {
        ((self.0 >> SCT_SHIFT) & 7) as u8
    }

    /// Status code within its type.
    pub const fn sc(self) -> u8 {
        (self.0 >> SC_SHIFT) as u8
    }

    /// Command retry delay: which of the three CRDT times applies, zero for none.
    pub const fn crd(self) -> u8 {
        ((self.0 >> CRD_SHIFT) & 3) as u8
    }

    /// "More": the error log has further information.
    pub const fn more(self) -> bool {
        self.0 & MORE != 0
    }

    /// "Do not retry": the same command will fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & DNR != 0
    }

    /// The same status with Do Not Retry set.
    pub const fn dnr(self) -> Self {
        Status(self.0 | DNR)
    }

    /// The same status with More set: there is an entry in the error log.
    pub const fn with_more(self) -> Self {
        Status(self.0 | MORE)
    }

    /// Type and code only, so that statuses compare whatever their retry bits.
    pub const fn kind(self) -> Self {
        Status::new(self.sct(), self.sc())
    }

    /// Whether it was refused for the sake of an asymmetric namespace access state.
    pub const fn is_ana_refusal(self) -> bool {
        self.sct() == StatusType::Path as u8 && matches!(self.sc(), 0x01..=0x03)
    }

    /// Whether the command succeeded.
    pub const fn is_success(self) -> bool {
        self.sct() == 0 && self.sc() == 0
    }

    /// The specification's words for this status, if it is one that this crate knows.
    pub fn text(self) -> Option<&'static str> {
        TABLE.iter().find(|(status, _)| *status == self.kind()).map(|(_, text)| *text)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text)?,
            None => f.write_str("unknown status")?,
        }
        write!(f, " (sct {:x}h sc {:02x}h", self.sct(), self.sc())?;
        f.write_str(if self.do_not_retry() { ", do not retry)" } else { ")" })
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! statuses {
    ($($name:ident = ($sct:literal, $sc:literal, $text:literal);)*) => {
        impl Status {
            $(#[doc = concat!("Status type ", stringify!($sct), ", code ", stringify!($sc), ": ", $text, ".")]
            pub const $name: Status = Status::new($sct, $sc);)*
        }
        const TABLE: &[(Status, &str)] = &[$((Status::$name, $text)),*];
    };
}

statuses! {
    SUCCESS = (0, 0x00, "success");
    INVALID_OPCODE = (0, 0x01, "invalid command opcode");
    INVALID_FIELD = (0, 0x02, "invalid field in command");
    COMMAND_ID_CONFLICT = (0, 0x03, "command id conflict");
    DATA_TRANSFER_ERROR = (0, 0x04, "data transfer error");
    ABORTED_POWER_LOSS = (0, 0x05, "command aborted: power loss");
    INTERNAL_ERROR = (0, 0x06, "internal error");
    ABORT_REQUESTED = (0, 0x07, "command abort requested");
    ABORTED_SQ_DELETION = (0, 0x08, "command aborted: submission queue deleted");
    ABORTED_FAILED_FUSED = (0, 0x09, "command aborted: the other fused command failed");
    ABORTED_MISSING_FUSED = (0, 0x0a, "command aborted: the other fused command is missing");
    INVALID_NAMESPACE = (0, 0x0b, "invalid namespace or format");
    COMMAND_SEQUENCE_ERROR = (0, 0x0c, "command sequence error");
    INVALID_SGL_SEGMENT = (0, 0x0d, "invalid SGL segment descriptor");
    INVALID_SGL_COUNT = (0, 0x0e, "invalid number of SGL descriptors");
    DATA_SGL_LENGTH_INVALID = (0, 0x0f, "data SGL length invalid");
    METADATA_SGL_LENGTH_INVALID = (0, 0x10, "metadata SGL length invalid");
    SGL_TYPE_INVALID = (0, 0x11, "SGL descriptor type invalid");
    INVALID_PRP_OFFSET = (0, 0x13, "PRP offset invalid");
    ATOMIC_WRITE_UNIT_EXCEEDED = (0, 0x14, "atomic write unit exceeded");
    OPERATION_DENIED = (0, 0x15, "operation denied");
    SGL_OFFSET_INVALID = (0, 0x16, "SGL offset invalid");
    HOST_ID_INCONSISTENT = (0, 0x18, "host identifier inconsistent format");
    KEEP_ALIVE_EXPIRED = (0, 0x19, "keep alive timer expired");
    KEEP_ALIVE_INVALID = (0, 0x1a, "keep alive timeout invalid");
    ABORTED_PREEMPT = (0, 0x1b, "command aborted: preempt and abort");
    SANITIZE_FAILED = (0, 0x1c, "sanitize failed");
    SANITIZE_IN_PROGRESS = (0, 0x1d, "sanitize in progress");
    SGL_GRANULARITY_INVALID = (0, 0x1e, "SGL data block granularity invalid");
    NAMESPACE_WRITE_PROTECTED = (0, 0x20, "namespace is write protected");
    COMMAND_INTERRUPTED = (0, 0x21, "command interrupted");
    TRANSIENT_TRANSPORT_ERROR = (0, 0x22, "transient transport error");
    COMMAND_PROHIBITED = (0, 0x23, "command prohibited by command and feature lockdown");
    MEDIA_NOT_READY = (0, 0x24, "admin command media not ready");
    HOST_ID_MISSING = (0, 0x27, "host identifier not initialized");
    LBA_OUT_OF_RANGE = (0, 0x80, "LBA out of range");
    CAPACITY_EXCEEDED = (0, 0x81, "capacity exceeded");
    NAMESPACE_NOT_READY = (0, 0x82, "namespace not ready");
    RESERVATION_CONFLICT = (0, 0x83, "reservation conflict");
    FORMAT_IN_PROGRESS = (0, 0x84, "format in progress");

    INVALID_QUEUE_ID = (1, 0x01, "invalid queue identifier");
    INVALID_QUEUE_SIZE = (1, 0x02, "invalid queue size");
    ABORT_LIMIT_EXCEEDED = (1, 0x03, "abort command limit exceeded");
    ASYNC_EVENT_LIMIT_EXCEEDED = (1, 0x05, "asynchronous event request limit exceeded");
    INVALID_FIRMWARE_SLOT = (1, 0x06, "invalid firmware slot");
    INVALID_FIRMWARE_IMAGE = (1, 0x07, "invalid firmware image");
    INVALID_LOG_PAGE = (1, 0x09, "invalid log page");
    INVALID_FORMAT = (1, 0x0a, "invalid format");
    FEATURE_NOT_SAVEABLE = (1, 0x0d, "feature identifier not saveable");
    FEATURE_NOT_CHANGEABLE = (1, 0x0e, "feature not changeable");
    FEATURE_NOT_NAMESPACE_SPECIFIC = (1, 0x0f, "feature not namespace specific");
    OVERLAPPING_RANGE = (1, 0x14, "overlapping range");
    INVALID_CONTROLLER_ID = (1, 0x1f, "invalid controller identifier");
    IOCS_NOT_SUPPORTED = (1, 0x29, "I/O command set not supported");
    IOCS_NOT_ENABLED = (1, 0x2a, "I/O command set not enabled");
    IOCS_COMBINATION_REJECTED = (1, 0x2b, "I/O command set combination rejected");
    INVALID_IOCS = (1, 0x2c, "invalid I/O command set");

    // Codes 80h up mean one thing to the NVM command set and another to fabrics; the fabrics words are in `connect_text`.
    CONFLICTING_ATTRIBUTES = (1, 0x80, "conflicting attributes");
    INVALID_PROTECTION_INFO = (1, 0x81, "invalid protection information");
    WRITE_TO_READ_ONLY = (1, 0x82, "attempted write to read only range");
    COMMAND_SIZE_LIMIT_EXCEEDED = (1, 0x83, "command size limit exceeded");

    // Of zoned namespaces (Zoned Namespace Command Set 1.1, figure 15).
    ZONE_BOUNDARY = (1, 0xb8, "zone boundary error");
    ZONE_FULL = (1, 0xb9, "zone is full");
    ZONE_READ_ONLY = (1, 0xba, "zone is read only");
    ZONE_OFFLINE = (1, 0xbb, "zone is offline");
    ZONE_INVALID_WRITE = (1, 0xbc, "zone invalid write");
    ZONE_TOO_MANY_ACTIVE = (1, 0xbd, "too many active zones");
    ZONE_TOO_MANY_OPEN = (1, 0xbe, "too many open zones");
    ZONE_INVALID_TRANSITION = (1, 0xbf, "invalid zone state transition");

    WRITE_FAULT = (2, 0x80, "write fault");
    UNRECOVERED_READ_ERROR = (2, 0x81, "unrecovered read error");
    GUARD_CHECK_ERROR = (2, 0x82, "end-to-end guard check error");
    COMPARE_FAILURE = (2, 0x85, "compare failure");
    ACCESS_DENIED = (2, 0x86, "access denied");
    DEALLOCATED_OR_UNWRITTEN = (2, 0x87, "deallocated or unwritten logical block");

    INTERNAL_PATH_ERROR = (3, 0x00, "internal path error");
    ANA_PERSISTENT_LOSS = (3, 0x01, "asymmetric access persistent loss");
    ANA_INACCESSIBLE = (3, 0x02, "asymmetric access inaccessible");
    ANA_TRANSITION = (3, 0x03, "asymmetric access transition");
    CONTROLLER_PATH_ERROR = (3, 0x60, "controller pathing error");
    HOST_PATH_ERROR = (3, 0x70, "host pathing error");
    HOST_ABORTED = (3, 0x71, "command aborted by host");
}

/// Statuses of Fabrics commands (Base 2.0, section 3.3.3.2): they share their numbers with statuses of the NVM command set.
impl Status {
    /// Connect: incompatible record format (80h).
    pub const CONNECT_INCOMPATIBLE_FORMAT: Status = Status::new(1, 0x80);
    /// Connect: controller busy (81h).
    pub const CONNECT_CONTROLLER_BUSY: Status = Status::new(1, 0x81);
    /// Connect: invalid parameters; the result names the field (82h).
    pub const CONNECT_INVALID_PARAMETERS: Status = Status::new(1, 0x82);
    /// Connect: restart discovery (83h).
    pub const CONNECT_RESTART_DISCOVERY: Status = Status::new(1, 0x83);
    /// Connect: this host may not (84h).
    pub const CONNECT_INVALID_HOST: Status = Status::new(1, 0x84);
    /// Disconnect: invalid queue type (85h).
    pub const INVALID_QUEUE_TYPE: Status = Status::new(1, 0x85);
    /// Get Log Page on a discovery controller: the log changed while it was read (90h).
    pub const DISCOVER_RESTART: Status = Status::new(1, 0x90);
    /// Authentication is required first (91h).
    pub const AUTHENTICATION_REQUIRED: Status = Status::new(1, 0x91);

    /// The words for a Fabrics command's answer.
    pub fn fabrics_text(self) -> Option<&'static str> {
        if self.sct() != StatusType::Command as u8 {
            return self.text();
        }
        Some(match self.sc() {
            0x80 => "incompatible connect record format",
            0x81 => "controller busy",
            0x82 => "invalid connect parameters",
            0x83 => "restart discovery",
            0x84 => "host is not allowed",
            0x85 => "invalid queue type",
            0x90 => "discovery log changed, read it again",
            0x91 => "authentication required",
            _ => return self.text(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_sit_where_the_specification_puts_them() {
        // DNR, More, CRD 2, SCT 1, SC 82h: 1.1.10.001.10000010 then the phase tag.
        let status = Status::from_wire(0b1110_0011_0000_0101);
        assert!(status.do_not_retry() && status.more());
        assert_eq!((status.crd(), status.sct(), status.sc()), (2, 1, 0x82));
        assert_eq!(status.to_wire() & 1, 0, "the phase tag is not ours");
    }

    #[test]
    fn every_type_and_code_round_trips() {
        for sct in 0..8 {
            for sc in 0..=255 {
                let status = Status::from_wire(Status::new(sct, sc).dnr().to_wire());
                assert_eq!((status.sct(), status.sc(), status.do_not_retry()), (sct, sc, true));
                assert_eq!(status.is_success(), sct == 0 && sc == 0);
            }
        }
    }

    #[test]
    fn the_table_has_no_duplicate_and_every_text_is_shown() {
        for (index, (status, text)) in TABLE.iter().enumerate() {
            assert!(TABLE[index + 1..].iter().all(|(other, _)| other != status), "{text} twice");
            assert!(status.dnr().to_string().starts_with(text));
        }
        assert_eq!(Status::new(7, 0x33).to_string(), "unknown status (sct 7h sc 33h)");
    }

    #[test]
    fn fabrics_words_win_over_the_nvm_words_for_shared_codes() {
        assert_eq!(Status::CONNECT_INVALID_HOST.fabrics_text(), Some("host is not allowed"));
        assert_eq!(Status::INVALID_FIELD.fabrics_text(), Some("invalid field in command"));
    }
}
