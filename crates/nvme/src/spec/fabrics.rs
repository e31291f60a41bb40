//! Fabrics commands (Base 2.0, section 6): Connect, Disconnect, Property Get and Set, and what Connect carries.

use std::fmt;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::nqn::NQN_FIELD_LEN;
use super::opcode::{FABRICS, FabricsType};
use super::sgl::SglDescriptor;
use super::sqe::FLAG_SGL;
use super::{Cqe, Sqe, Status};

/// The type of a Fabrics command, byte 4; `None` if `sqe` is none or its type is unknown.
pub fn fabrics_type(sqe: &Sqe) -> Option<FabricsType> {
    if sqe.opcode != FABRICS {
        return None;
    }
    FabricsType::from_u8(sqe.nsid.get() as u8)
}

/// Connect (Base 2.0, figure 380).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectCommand {
    /// 7Fh.
    pub opcode: u8,
    /// Reserved here, but hosts set PSDT.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// 01h.
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 19],
    /// Where the Connect data is.
    pub sgl: SglDescriptor,
    /// Record format: 0.
    pub recfmt: U16,
    /// Queue: 0 is the admin queue.
    pub qid: U16,
    /// Entries of the submission queue, less one.
    pub sqsize: U16,
    /// Attributes: priority in 1:0, bit 2 disables flow control.
    pub cattr: u8,
    /// Reserved.
    pub reserved47: u8,
    /// Keep alive timeout in milliseconds, admin queue only; 0 is none.
    pub kato: U32,
    /// Reserved.
    pub reserved52: [u8; 12],
}

const _: () = {
    assert!(size_of::<ConnectCommand>() == 64);
    assert!(core::mem::offset_of!(ConnectCommand, sgl) == 24);
    assert!(core::mem::offset_of!(ConnectCommand, qid) == 42);
    assert!(core::mem::offset_of!(ConnectCommand, sqsize) == 44);
    assert!(core::mem::offset_of!(ConnectCommand, kato) == 48);
};

/// CATTR bit 2: no submission queue flow control.
pub const CATTR_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

impl ConnectCommand {
    /// The view of a command.
    pub fn of(sqe: &Sqe) -> &Self {
        transmute_ref!(sqe)
    }

    /// A Connect whose data travels in the capsule.
    pub fn new(cid: u16, qid: u16, queue_entries: u16, kato_ms: u32) -> Self {
        assert!(queue_entries >= 2, "a submission queue has at least two entries");
        ConnectCommand {
            opcode: FABRICS,
            flags: FLAG_SGL,
            cid: U16::new(cid),
            fctype: FabricsType::Connect as u8,
            reserved5: [0; 19],
            sgl: SglDescriptor::in_capsule(0, size_of::<ConnectData>() as u32),
            recfmt: U16::new(0),
            qid: U16::new(qid),
            sqsize: U16::new(queue_entries - 1),
            cattr: 0,
            reserved47: 0,
            kato: U32::new(if qid == 0 { kato_ms } else { 0 }),
            reserved52: [0; 12],
        }
    }

    /// As a submission queue entry.
    pub fn to_sqe(self) -> Sqe {
        transmute!(self)
    }
}

/// The data of Connect, 1024 bytes (Base 2.0, figure 381).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier.
    pub hostid: [u8; 16],
    /// Controller: FFFFh asks for any (dynamic model).
    pub cntlid: U16,
    /// Reserved.
    pub reserved18: [u8; 238],
    /// Subsystem.
    pub subnqn: [u8; NQN_FIELD_LEN],
    /// Host.
    pub hostnqn: [u8; NQN_FIELD_LEN],
    /// Reserved.
    pub reserved768: [u8; 256],
}

const _: () = {
    assert!(size_of::<ConnectData>() == 1024);
    assert!(core::mem::offset_of!(ConnectData, cntlid) == 16);
    assert!(core::mem::offset_of!(ConnectData, subnqn) == 256);
    assert!(core::mem::offset_of!(ConnectData, hostnqn) == 512);
};

/// Any controller (dynamic controller model).
pub const CNTLID_DYNAMIC: u16 = 0xffff;
/// Highest controller identifier that a controller may have: FFF0h to FFFFh are reserved (Base 2.0, section 3.1).
pub const CNTLID_MAX: u16 = 0xffef;

/// Which field of Connect was refused: result of CONNECT_INVALID_PARAMETERS (Base 2.0, section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidParameter {
    /// Byte offset of the field.
    pub offset: u16,
    /// Whether the offset is into the data (IATTR bit 0) rather than into the command.
    pub in_data: bool,
}

impl InvalidParameter {
    /// Connect Invalid Parameters with IPO and IATTR.
    pub const fn to_cqe(self, cid: u16) -> Cqe {
        let mut cqe = Cqe::new(cid, Status::CONNECT_INVALID_PARAMETERS.dnr());
        cqe.result = U64::new(self.offset as u64 | (self.in_data as u64) << 16);
        cqe
    }

    /// Reads it back, on the host's side.
    pub const fn of(cqe: &Cqe) -> Self {
        InvalidParameter { offset: cqe.dw0() as u16, in_data: cqe.dw0() & 1 << 16 != 0 }
    }
}

impl fmt::Display for InvalidParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = match (self.in_data, self.offset) {
            (true, 0..16) => "host identifier",
            (true, 16..18) => "controller identifier",
            (true, 256..512) => "subsystem NQN, there is no such subsystem",
            (true, 512..768) => "host NQN",
            (false, 40..42) => "record format",
            (false, 42..44) => "queue identifier",
            (false, 44..46) => "submission queue size",
            (false, 46) => "connect attributes",
            (false, 48..52) => "keep alive timeout",
            (in_data, offset) => {
                let place = if in_data { "data" } else { "command" };
                return write!(f, "Connect Invalid Parameters: byte {offset} of the {place}");
            }
        };
        write!(f, "Connect Invalid Parameters: {field}")
    }
}

/// Property Get and Property Set (Base 2.0, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PropertyCommand {
    /// 7Fh.
    pub opcode: u8,
    /// Reserved here, but hosts set PSDT.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// 00h or 04h.
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 35],
    /// Size in bits 2:0: 0 is 4 bytes, 1 is 8 bytes.
    pub attrib: u8,
    /// Reserved.
    pub reserved41: [u8; 3],
    /// Offset of the property.
    pub offset: U32,
    /// Set: the value.
    pub value: U64,
    /// Reserved.
    pub reserved56: [u8; 8],
}

const _: () = {
    assert!(size_of::<PropertyCommand>() == 64);
    assert!(core::mem::offset_of!(PropertyCommand, attrib) == 40);
    assert!(core::mem::offset_of!(PropertyCommand, offset) == 44);
    assert!(core::mem::offset_of!(PropertyCommand, value) == 48);
};

impl PropertyCommand {
    /// The view of a command.
    pub fn of(sqe: &Sqe) -> &Self {
        transmute_ref!(sqe)
    }

    fn new(cid: u16, fctype: FabricsType, offset: u32, wide: bool, value: u64) -> Self {
        PropertyCommand {
            opcode: FABRICS,
            flags: FLAG_SGL,
            cid: U16::new(cid),
            fctype: fctype as u8,
            reserved5: [0; 35],
            attrib: wide as u8,
            reserved41: [0; 3],
            offset: U32::new(offset),
            value: U64::new(value),
            reserved56: [0; 8],
        }
    }

    /// Reads a property.
    pub fn get(cid: u16, offset: u32, wide: bool) -> Self {
        Self::new(cid, FabricsType::PropertyGet, offset, wide, 0)
    }

    /// Writes a 4-byte property.
    pub fn set(cid: u16, offset: u32, value: u32) -> Self {
        Self::new(cid, FabricsType::PropertySet, offset, false, u64::from(value))
    }

    /// As a submission queue entry.
    pub fn to_sqe(self) -> Sqe {
        transmute!(self)
    }

    /// Bytes of the property, if the size is one that exists.
    pub const fn size(&self) -> Option<usize> {
        match self.attrib & 7 {
            0 => Some(4),
            1 => Some(8),
            _ => None,
        }
    }
}

/// Connect's answer: an authentication transaction is required (Base 2.0, section 6.3, AUTHREQ).
pub const CONNECT_AUTHENTICATION_REQUIRED: u32 = 1 << 17;
/// Connect's answer: an authentication transaction is required, and a secure channel made from it.
pub const CONNECT_SECURE_CHANNEL_REQUIRED: u32 = 1 << 18;

/// Authentication Send and Receive (Base 2.0, sections 6.2 and 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AuthenticationCommand {
    /// 7Fh.
    pub opcode: u8,
    /// Reserved here, but hosts set PSDT.
    pub flags: u8,
    /// Command identifier.
    pub cid: U16,
    /// 05h or 06h.
    pub fctype: u8,
    /// Reserved.
    pub reserved5: [u8; 19],
    /// Where the message is, or goes.
    pub sgl: SglDescriptor,
    /// Reserved.
    pub reserved40: u8,
    /// Security protocol specific, byte 0: 01h.
    pub spsp0: u8,
    /// Security protocol specific, byte 1: 01h.
    pub spsp1: u8,
    /// Security protocol: E9h, the one that NVM Express has for itself.
    pub secp: u8,
    /// Bytes of the message, or room for it.
    pub len: U32,
    /// Reserved.
    pub reserved48: [u8; 16],
}

const _: () = {
    assert!(size_of::<AuthenticationCommand>() == 64);
    assert!(core::mem::offset_of!(AuthenticationCommand, secp) == 43);
    assert!(core::mem::offset_of!(AuthenticationCommand, len) == 44);
};

impl AuthenticationCommand {
    /// The view of a command.
    pub fn of(sqe: &Sqe) -> &Self {
        transmute_ref!(sqe)
    }

    /// Sends a message of `len` bytes that travels in the capsule.
    pub fn send(cid: u16, len: u32) -> Self {
        Self::new(cid, FabricsType::AuthenticationSend, SglDescriptor::in_capsule(0, len), len)
    }

    /// Receives a message of at most `len` bytes.
    pub fn receive(cid: u16, len: u32) -> Self {
        Self::new(cid, FabricsType::AuthenticationReceive, SglDescriptor::transport(len), len)
    }

    fn new(cid: u16, fctype: FabricsType, sgl: SglDescriptor, len: u32) -> Self {
        AuthenticationCommand {
            opcode: FABRICS,
            flags: FLAG_SGL,
            cid: U16::new(cid),
            fctype: fctype as u8,
            reserved5: [0; 19],
            sgl,
            reserved40: 0,
            spsp0: 1,
            spsp1: 1,
            secp: 0xe9,
            len: U32::new(len),
            reserved48: [0; 16],
        }
    }

    /// Whether it carries a message of this protocol.
    pub const fn is_dhchap(&self) -> bool {
        matches!((self.secp, self.spsp0, self.spsp1), (0xe9, 1, 1))
    }

    /// As a submission queue entry.
    pub fn to_sqe(self) -> Sqe {
        transmute!(self)
    }
}

/// Disconnect (Base 2.0, section 6): only the record format is of interest.
pub fn disconnect(cid: u16) -> Sqe {
    let mut sqe = Sqe::new(FABRICS, cid, 0);
    sqe.nsid = U32::new(FabricsType::Disconnect as u32);
    sqe
}

/// The record format of a Disconnect.
pub const fn disconnect_record_format(sqe: &Sqe) -> u16 {
    sqe.cdw10.get() as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connect_fields_sit_where_the_specification_puts_them() {
        let mut connect = ConnectCommand::new(0x1122, 0x3344, 128, 5000);
        connect.qid = U16::new(0);
        connect.kato = U32::new(5000);
        let sqe = connect.to_sqe();
        assert_eq!(sqe.opcode, 0x7f);
        assert_eq!(sqe.as_bytes()[4], 1);
        assert_eq!(sqe.as_bytes()[44..46], [127, 0]);
        assert_eq!(sqe.as_bytes()[48..52], 5000u32.to_le_bytes());
        assert_eq!(fabrics_type(&sqe), Some(FabricsType::Connect));
        assert_eq!(*ConnectCommand::of(&sqe), connect);
    }

    #[test]
    fn io_queues_carry_no_keep_alive_timeout() {
        assert_eq!(ConnectCommand::new(0, 1, 2, 5000).kato.get(), 0);
    }

    #[test]
    fn the_refused_field_travels_in_the_result() {
        let refused = InvalidParameter { offset: 256, in_data: true };
        let cqe = refused.to_cqe(9);
        assert_eq!(cqe.as_bytes()[..4], [0, 1, 1, 0]);
        assert_eq!(InvalidParameter::of(&cqe), refused);
        assert_eq!(cqe.status().kind(), Status::CONNECT_INVALID_PARAMETERS);
    }

    #[test]
    fn a_refused_field_is_named() {
        for (offset, in_data, field) in [
            (0, true, "host identifier"),
            (256, true, "subsystem NQN, there is no such subsystem"),
            (512, true, "host NQN"),
            (800, true, "byte 800 of the data"),
            (42, false, "queue identifier"),
            (44, false, "submission queue size"),
            (512, false, "byte 512 of the command"),
        ] {
            let shown = InvalidParameter { offset, in_data }.to_string();
            assert_eq!(shown, format!("Connect Invalid Parameters: {field}"));
        }
    }

    #[test]
    fn property_sizes_beyond_eight_bytes_do_not_exist() {
        for attrib in 0..=255u8 {
            let mut command = PropertyCommand::get(0, 0, false);
            command.attrib = attrib;
            assert_eq!(command.size(), [Some(4), Some(8), None, None, None, None, None, None][usize::from(attrib & 7)]);
        }
    }

    #[test]
    fn only_fabrics_commands_have_a_fabrics_type() {
        assert_eq!(fabrics_type(&disconnect(1)), Some(FabricsType::Disconnect));
        assert_eq!(fabrics_type(&Sqe::new(0x06, 1, 1)), None);
        assert_eq!(fabrics_type(&Sqe::new(FABRICS, 1, 0x77)), None);
    }
}
