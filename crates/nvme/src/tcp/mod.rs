//! The TCP transport (TCP Transport 1.0): PDUs, their decoding from a byte stream, and the rules whose breach ends a connection.
//!
//! * [`pdu`]: the layouts, and encoding.
//! * [`check`]: what may be said about a PDU from its first eight bytes and the state of the connection.
//! * [`decode`]: [`Decoder`], fed with any pieces of the stream; it holds one header at most, payloads are never copied.
//! * [`negotiate`]: what ICReq and ICResp agree on.
//! * `output`: what a connection has still to send.
//! * [`fault`]: what went wrong, as the Terminate Connection Request says it.
//! * [`r2t`]: the target's table of outstanding R2Ts; its counterpart is the host's table of commands.
#![forbid(unsafe_code)]

pub mod check;
pub mod decode;
pub mod fault;
pub mod negotiate;
pub(crate) mod output;
pub mod pdu;
pub mod r2t;

pub use decode::{Decoder, Item};
pub use fault::Fault;
pub use negotiate::{Negotiated, TransportOptions};
pub use pdu::{DataHeader, Encoder, Header, IcReq, IcResp, PduType, R2t};
pub use r2t::R2tTable;

/// Which end of a connection receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The controller: receives ICReq, H2CTermReq, CapsuleCmd and H2CData.
    Target,
    /// The host: receives ICResp, C2HTermReq, CapsuleResp, C2HData and R2T.
    Host,
}

/// Data that admin and Fabrics capsules may carry, whatever IOCCSZ says (TCP Transport 1.0, section 3.3.1).
pub const ADMIN_CAPSULE_DATA_MAX: u32 = 8192;

/// Smallest MAXH2CDATA (TCP Transport 1.0, figure 21).
pub const MAXH2CDATA_MIN: u32 = 4096;

/// Time for a peer that was sent a termination to take notice before its connection is closed, ns.
pub(crate) const LINGER_NS: u64 = 1_000_000_000;
/// Most bytes that are taken from it meanwhile.
pub(crate) const LINGER_BYTES_MAX: usize = 16 << 20;

/// What both ends agreed on, as the receiver needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveParams {
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Bytes to which data is aligned in PDUs that come in: what we announced as CPDA or HPDA.
    pub alignment: u32,
    /// Most data in a command capsule. Target only.
    pub capsule_data_max: u32,
    /// Most data in one H2CData (the announced MAXH2CDATA) or one C2HData.
    pub data_max: u32,
}

/// What both ends agreed on, as the sender needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendParams {
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// Bytes to which data is aligned in PDUs that go out: what the peer announced.
    pub alignment: u32,
}

/// Bytes of alignment for a CPDA or HPDA value (zero-based dwords).
pub const fn alignment_of(pda: u8) -> u32 {
    (pda as u32 + 1) * 4
}

/// Highest CPDA or HPDA (TCP Transport 1.0, figures 20 and 21).
pub const PDA_MAX: u8 = 31;
