//! The discovery log page (Base 2.0, section 5.16.1.23).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nqn::NQN_FIELD_LEN;

/// Transport type TCP.
pub const TRTYPE_TCP: u8 = 3;
/// Address family IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// Address family IPv6.
pub const ADRFAM_IPV6: u8 = 2;
/// An entry that refers to another discovery service.
pub const SUBTYPE_REFERRAL: u8 = 1;
/// An entry for an NVM subsystem.
pub const SUBTYPE_NVM: u8 = 2;
/// An entry for the discovery subsystem that is being read.
pub const SUBTYPE_CURRENT: u8 = 3;
/// TREQ: secure channel not required (10b).
pub const TREQ_NOT_REQUIRED: u8 = 2;
/// TREQ: the bits that say whether a secure channel is required.
pub const TREQ_SECURE_CHANNEL: u8 = 3;
/// TREQ: secure channel required (01b).
pub const TREQ_REQUIRED: u8 = 1;
/// TCP security type: TLS 1.3 (TCP Transport 1.1, figure 4).
pub const SECTYPE_TLS_1_3: u8 = 2;
/// TREQ bit 2: SQ flow control may be disabled.
pub const TREQ_DISABLE_SQ_FLOW_CONTROL: u8 = 1 << 2;

/// Header of the log, 1024 bytes, entries follow (Base 2.0, figures 264 and 265).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Changes with the log.
    pub generation: U64,
    /// Entries that follow.
    pub record_count: U64,
    /// Format: 0.
    pub record_format: U16,
    /// Reserved.
    pub reserved18: [u8; 1006],
}

/// One entry, 1024 bytes (Base 2.0, figures 264 and 265).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport type.
    pub trtype: u8,
    /// Address family.
    pub adrfam: u8,
    /// Subsystem type.
    pub subtype: u8,
    /// Transport requirements.
    pub treq: u8,
    /// Port.
    pub portid: U16,
    /// Controller: FFFFh is dynamic.
    pub cntlid: U16,
    /// Largest admin submission queue.
    pub asqsz: U16,
    /// Entry flags.
    pub eflags: U16,
    /// Reserved.
    pub reserved12: [u8; 20],
    /// Service: the TCP port in decimal, padded with spaces.
    pub trsvcid: [u8; 32],
    /// Reserved.
    pub reserved64: [u8; 192],
    /// Subsystem.
    pub subnqn: [u8; NQN_FIELD_LEN],
    /// Address, padded with spaces.
    pub traddr: [u8; 256],
    /// Transport specific: byte 0 is the TCP security type.
    pub tsas: [u8; 256],
}

const _: () = {
    assert!(size_of::<DiscoveryHeader>() == 1024);
    assert!(size_of::<DiscoveryEntry>() == 1024);
    assert!(core::mem::offset_of!(DiscoveryEntry, trsvcid) == 32);
    assert!(core::mem::offset_of!(DiscoveryEntry, subnqn) == 256);
    assert!(core::mem::offset_of!(DiscoveryEntry, traddr) == 512);
    assert!(core::mem::offset_of!(DiscoveryEntry, tsas) == 768);
};
