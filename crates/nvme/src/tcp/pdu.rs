//! PDU layouts (TCP Transport 1.0, section 3.6) and their encoding.
//!
//! Encoding writes a header, its digest and the padding up to the data; data and data digest are the caller's, who gathers
//! them from where they are.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fault::{Fault, field};
use super::{MAXH2CDATA_MIN, PDA_MAX, SendParams};
use crate::spec::{Cqe, Sqe};
use base::crc32c;

/// PDU types (TCP Transport 1.0, figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PduType {
    /// Initialize connection request.
    IcReq = 0x00,
    /// Initialize connection response.
    IcResp = 0x01,
    /// Host's termination.
    H2cTermReq = 0x02,
    /// Controller's termination.
    C2hTermReq = 0x03,
    /// Command capsule.
    CapsuleCmd = 0x04,
    /// Response capsule.
    CapsuleResp = 0x05,
    /// Data to the controller.
    H2cData = 0x06,
    /// Data to the host.
    C2hData = 0x07,
    /// Ready to transfer.
    R2t = 0x09,
}

impl PduType {
    /// Every type.
    pub const ALL: [PduType; 9] = [
        PduType::IcReq,
        PduType::IcResp,
        PduType::H2cTermReq,
        PduType::C2hTermReq,
        PduType::CapsuleCmd,
        PduType::CapsuleResp,
        PduType::H2cData,
        PduType::C2hData,
        PduType::R2t,
    ];

    /// The type with this value.
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0x00 => PduType::IcReq,
            0x01 => PduType::IcResp,
            0x02 => PduType::H2cTermReq,
            0x03 => PduType::C2hTermReq,
            0x04 => PduType::CapsuleCmd,
            0x05 => PduType::CapsuleResp,
            0x06 => PduType::H2cData,
            0x07 => PduType::C2hData,
            0x09 => PduType::R2t,
            _ => return None,
        })
    }

    /// Header length, the only one that each type has.
    pub const fn hlen(self) -> u8 {
        match self {
            PduType::IcReq | PduType::IcResp => 128,
            PduType::CapsuleCmd => 72,
            _ => 24,
        }
    }
}

/// Flag: a header digest follows the header.
pub const FLAG_HDGST: u8 = 1 << 0;
/// Flag: a data digest follows the data.
pub const FLAG_DDGST: u8 = 1 << 1;
/// Flag: last data PDU of its transfer.
pub const FLAG_LAST: u8 = 1 << 2;
/// Flag of C2HData: the command succeeded, no response capsule follows.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// Bytes of a digest.
pub const DIGEST_LEN: usize = 4;
/// Bytes of the common header.
pub const COMMON_LEN: usize = 8;
/// Longest header with its digest.
pub const HEADER_LEN_MAX: usize = 128 + DIGEST_LEN;
/// Room for any header that carries data, with digest and padding: PDO is at most 128.
pub const HEADER_SPACE: usize = 128;
/// Longest termination PDU: header and 128 bytes of the offending one (TCP Transport 1.0, section 3.5).
pub const TERM_LEN_MAX: usize = 152;

/// The first eight bytes of every PDU (TCP Transport 1.0, figure 19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// Type.
    pub kind: u8,
    /// Flags.
    pub flags: u8,
    /// Header length, without digest.
    pub hlen: u8,
    /// Offset of the data.
    pub pdo: u8,
    /// Length of the PDU, digests included.
    pub plen: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IcPdu {
    common: CommonHeader,
    pfv: U16,
    pda: u8,
    dgst: u8,
    limit: U32,
    reserved16: [u8; 112],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TermPdu {
    common: CommonHeader,
    fes: U16,
    fei: U32,
    reserved14: [u8; 10],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CapsuleCmdPdu {
    common: CommonHeader,
    sqe: Sqe,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CapsuleRespPdu {
    common: CommonHeader,
    cqe: Cqe,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TransferPdu {
    common: CommonHeader,
    cccid: U16,
    ttag: U16,
    offset: U32,
    length: U32,
    reserved20: [u8; 4],
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<CommonHeader>() == COMMON_LEN && offset_of!(CommonHeader, plen) == 4);
    assert!(size_of::<IcPdu>() == 128 && offset_of!(IcPdu, pda) == 10 && offset_of!(IcPdu, limit) == 12);
    assert!(size_of::<TermPdu>() == 24 && offset_of!(TermPdu, fei) == 10);
    assert!(size_of::<CapsuleCmdPdu>() == 72 && size_of::<CapsuleRespPdu>() == 24);
    assert!(size_of::<TransferPdu>() == 24 && offset_of!(TransferPdu, length) == 16);
};

/// Initialize connection request (TCP Transport 1.0, figure 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// HPDA: the host wants data in C2HData aligned to `(hpda + 1) * 4` bytes.
    pub hpda: u8,
    /// The host asks for header digests.
    pub header_digest: bool,
    /// The host asks for data digests.
    pub data_digest: bool,
    /// R2Ts per command that the host takes at once, counted from one.
    pub r2t_max: u64,
}

/// Initialize connection response (TCP Transport 1.0, figure 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResp {
    /// CPDA: the controller wants data in CapsuleCmd and H2CData aligned to `(cpda + 1) * 4` bytes.
    pub cpda: u8,
    /// Header digests are on.
    pub header_digest: bool,
    /// Data digests are on.
    pub data_digest: bool,
    /// MAXH2CDATA: most data in one H2CData; at least 4096 and a multiple of 4.
    pub maxh2cdata: u32,
}

/// H2CData and C2HData (TCP Transport 1.0, figures 26 and 27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Command that the data belongs to.
    pub cccid: u16,
    /// H2CData: which R2T is answered. Reserved in C2HData.
    pub ttag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes in this PDU.
    pub len: u32,
    /// Last PDU of the transfer.
    pub last: bool,
    /// C2HData: the command succeeded and no response capsule follows.
    pub success: bool,
}

/// Ready to transfer (TCP Transport 1.0, figure 28).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct R2t {
    /// Command.
    pub cccid: u16,
    /// Tag that H2CData returns.
    pub ttag: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes asked for.
    pub len: u32,
}

/// Terminate connection request, either way (TCP Transport 1.0, figures 22 and 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// Fatal error status.
    pub fes: u16,
    /// Fatal error information.
    pub fei: u32,
}

/// A decoded PDU header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Commands are the common case and are used in place.
pub enum Header {
    /// Initialize connection request.
    IcReq(IcReq),
    /// Initialize connection response.
    IcResp(IcResp),
    /// Termination by the peer; nothing may be answered.
    TermReq(TermReq),
    /// Command.
    CapsuleCmd(Sqe),
    /// Response.
    CapsuleResp(Cqe),
    /// Data to the controller.
    H2cData(DataHeader),
    /// Data to the host.
    C2hData(DataHeader),
    /// Ready to transfer.
    R2t(R2t),
}

impl Header {
    /// Decodes the header of a PDU whose common header has passed [`super::check`]. `bytes` holds `hlen` bytes at least.
    ///
    /// Errors: fields of ICReq and ICResp that may not have their value.
    #[inline]
    pub fn decode(kind: PduType, bytes: &[u8]) -> Result<Self, Fault> {
        assert!(bytes.len() >= usize::from(kind.hlen()), "the caller waits for the whole header");
        Ok(match kind {
            PduType::IcReq => Header::IcReq(decode_ic_req(view(bytes))?),
            PduType::IcResp => Header::IcResp(decode_ic_resp(view(bytes))?),
            PduType::H2cTermReq | PduType::C2hTermReq => {
                let pdu: &TermPdu = view(bytes);
                Header::TermReq(TermReq { fes: pdu.fes.get(), fei: pdu.fei.get() })
            }
            PduType::CapsuleCmd => Header::CapsuleCmd(view::<CapsuleCmdPdu>(bytes).sqe),
            PduType::CapsuleResp => Header::CapsuleResp(view::<CapsuleRespPdu>(bytes).cqe),
            PduType::H2cData => Header::H2cData(decode_data(view(bytes))),
            PduType::C2hData => Header::C2hData(decode_data(view(bytes))),
            PduType::R2t => {
                let pdu: &TransferPdu = view(bytes);
                Header::R2t(R2t {
                    cccid: pdu.cccid.get(),
                    ttag: pdu.ttag.get(),
                    offset: pdu.offset.get(),
                    len: pdu.length.get(),
                })
            }
        })
    }
}

fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> &T {
    let (pdu, _) = T::ref_from_prefix(bytes).expect("unaligned, and the length was asserted");
    pdu
}

fn decode_ic_req(pdu: &IcPdu) -> Result<IcReq, Fault> {
    if pdu.pfv.get() != 0 {
        return Err(Fault::UnsupportedParameter { offset: field::PFV });
    }
    if pdu.pda > PDA_MAX {
        return Err(Fault::HeaderField { offset: field::PDA });
    }
    Ok(IcReq {
        hpda: pdu.pda,
        header_digest: pdu.dgst & 1 != 0,
        data_digest: pdu.dgst & 2 != 0,
        r2t_max: u64::from(pdu.limit.get()) + 1,
    })
}

fn decode_ic_resp(pdu: &IcPdu) -> Result<IcResp, Fault> {
    if pdu.pfv.get() != 0 {
        return Err(Fault::UnsupportedParameter { offset: field::PFV });
    }
    if pdu.pda > PDA_MAX {
        return Err(Fault::HeaderField { offset: field::PDA });
    }
    let maxh2cdata = pdu.limit.get();
    if maxh2cdata < MAXH2CDATA_MIN || !maxh2cdata.is_multiple_of(4) {
        return Err(Fault::HeaderField { offset: field::MAXH2CDATA });
    }
    Ok(IcResp { cpda: pdu.pda, header_digest: pdu.dgst & 1 != 0, data_digest: pdu.dgst & 2 != 0, maxh2cdata })
}

fn decode_data(pdu: &TransferPdu) -> DataHeader {
    DataHeader {
        cccid: pdu.cccid.get(),
        ttag: pdu.ttag.get(),
        offset: pdu.offset.get(),
        len: pdu.length.get(),
        last: pdu.common.flags & FLAG_LAST != 0,
        success: pdu.common.flags & FLAG_SUCCESS != 0,
    }
}

/// Encodes headers for one connection.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    params: SendParams,
}

impl Encoder {
    /// An encoder with what was agreed on.
    pub fn new(params: SendParams) -> Self {
        assert!(params.alignment >= 4 && params.alignment <= 128 && params.alignment.is_multiple_of(4));
        Encoder { params }
    }

    /// What was agreed on.
    pub const fn params(&self) -> &SendParams {
        &self.params
    }

    /// Whether the caller appends the data digest ([`base::crc32c`]) after the data.
    pub const fn data_digest(&self) -> bool {
        self.params.data_digest
    }

    /// Writes a command capsule's header; `data_len` bytes of in-capsule data follow. Returns the bytes written.
    pub fn capsule_cmd(&self, out: &mut [u8], sqe: &Sqe, data_len: u32) -> usize {
        let common = self.common(PduType::CapsuleCmd, 0, data_len);
        self.finish(out, CapsuleCmdPdu { common, sqe: *sqe })
    }

    /// Writes a response capsule. Returns the bytes written.
    pub fn capsule_resp(&self, out: &mut [u8], cqe: &Cqe) -> usize {
        let common = self.common(PduType::CapsuleResp, 0, 0);
        self.finish(out, CapsuleRespPdu { common, cqe: *cqe })
    }

    /// Writes the header of H2CData; `header.len` bytes of data follow. Returns the bytes written.
    pub fn h2c_data(&self, out: &mut [u8], header: &DataHeader) -> usize {
        self.data(out, PduType::H2cData, header)
    }

    /// Writes the header of C2HData; `header.len` bytes of data follow. Returns the bytes written.
    pub fn c2h_data(&self, out: &mut [u8], header: &DataHeader) -> usize {
        self.data(out, PduType::C2hData, header)
    }

    /// Writes an R2T. Returns the bytes written.
    pub fn r2t(&self, out: &mut [u8], r2t: &R2t) -> usize {
        let common = self.common(PduType::R2t, 0, 0);
        let pdu = TransferPdu {
            common,
            cccid: U16::new(r2t.cccid),
            ttag: U16::new(r2t.ttag),
            offset: U32::new(r2t.offset),
            length: U32::new(r2t.len),
            reserved20: [0; 4],
        };
        self.finish(out, pdu)
    }

    fn data(&self, out: &mut [u8], kind: PduType, header: &DataHeader) -> usize {
        assert!(header.len > 0, "a data PDU carries data");
        let mut flags = if header.last { FLAG_LAST } else { 0 };
        if header.success {
            assert!(header.last && kind == PduType::C2hData, "success ends a transfer to the host");
            flags |= FLAG_SUCCESS;
        }
        let common = self.common(kind, flags, header.len);
        let pdu = TransferPdu {
            common,
            cccid: U16::new(header.cccid),
            ttag: U16::new(header.ttag),
            offset: U32::new(header.offset),
            length: U32::new(header.len),
            reserved20: [0; 4],
        };
        self.finish(out, pdu)
    }

    fn common(&self, kind: PduType, flags: u8, data_len: u32) -> CommonHeader {
        let digest_len = if self.params.header_digest { DIGEST_LEN as u32 } else { 0 };
        let head_len = u32::from(kind.hlen()) + digest_len;
        let mut flags = flags | if self.params.header_digest { FLAG_HDGST } else { 0 };
        let (mut pdo, mut plen) = (0, head_len);
        if data_len > 0 {
            pdo = head_len.next_multiple_of(self.params.alignment);
            plen = pdo.checked_add(data_len).expect("the caller splits data by the peer's limits");
            if self.params.data_digest {
                flags |= FLAG_DDGST;
                plen = plen.checked_add(DIGEST_LEN as u32).expect("the caller splits data by the peer's limits");
            }
        }
        CommonHeader { kind: kind as u8, flags, hlen: kind.hlen(), pdo: pdo as u8, plen: U32::new(plen) }
    }

    fn finish<T: IntoBytes + Immutable>(&self, out: &mut [u8], pdu: T) -> usize {
        let hlen = size_of::<T>();
        out[..hlen].copy_from_slice(pdu.as_bytes());
        let mut len = hlen;
        if self.params.header_digest {
            let digest = crc32c(&out[..hlen]);
            out[hlen..hlen + DIGEST_LEN].copy_from_slice(&digest.to_le_bytes());
            len += DIGEST_LEN;
        }
        let pdo = usize::from(out[3]);
        if pdo > len {
            out[len..pdo].fill(0);
            len = pdo;
        }
        len
    }
}

impl IcReq {
    /// The PDU.
    pub fn encode(&self) -> [u8; 128] {
        assert!(self.hpda <= PDA_MAX && (1..=1 << 32).contains(&self.r2t_max));
        encode_ic(PduType::IcReq, self.hpda, self.header_digest, self.data_digest, (self.r2t_max - 1) as u32)
    }
}

impl IcResp {
    /// The PDU.
    pub fn encode(&self) -> [u8; 128] {
        assert!(self.cpda <= PDA_MAX && self.maxh2cdata >= MAXH2CDATA_MIN && self.maxh2cdata.is_multiple_of(4));
        encode_ic(PduType::IcResp, self.cpda, self.header_digest, self.data_digest, self.maxh2cdata)
    }
}

fn encode_ic(kind: PduType, pda: u8, header_digest: bool, data_digest: bool, limit: u32) -> [u8; 128] {
    zerocopy::transmute!(IcPdu {
        common: CommonHeader { kind: kind as u8, flags: 0, hlen: 128, pdo: 0, plen: U32::new(128) },
        pfv: U16::new(0),
        pda,
        dgst: u8::from(header_digest) | u8::from(data_digest) << 1,
        limit: U32::new(limit),
        reserved16: [0; 112],
    })
}

/// Encodes the termination that answers `fault`, with as much of the offending header as is known. `from` is the end that
/// terminates. Returns the PDU and its length; `None` if the fault may not be answered.
pub fn encode_term(from: super::Side, fault: Fault, offending: &[u8]) -> Option<([u8; TERM_LEN_MAX], usize)> {
    let kind = match from {
        super::Side::Target => PduType::C2hTermReq,
        super::Side::Host => PduType::H2cTermReq,
    };
    let copied = offending.len().min(TERM_LEN_MAX - 24);
    let len = 24 + copied;
    let pdu = TermPdu {
        common: CommonHeader { kind: kind as u8, flags: 0, hlen: 24, pdo: 0, plen: U32::new(len as u32) },
        fes: U16::new(fault.fes()?),
        fei: U32::new(fault.fei()),
        reserved14: [0; 10],
    };
    let mut out = [0; TERM_LEN_MAX];
    out[..24].copy_from_slice(pdu.as_bytes());
    out[24..len].copy_from_slice(&offending[..copied]);
    Some((out, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::Side;

    fn encoder(header_digest: bool, data_digest: bool, alignment: u32) -> Encoder {
        Encoder::new(SendParams { header_digest, data_digest, alignment })
    }

    #[test]
    fn a_plain_response_is_24_bytes_without_padding() {
        let mut out = [0xaa; HEADER_SPACE];
        assert_eq!(encoder(false, true, 128).capsule_resp(&mut out, &Cqe::success(3, 0)), 24);
        assert_eq!(out[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
        assert_eq!(out[24], 0xaa, "nothing is written behind the header");
    }

    #[test]
    fn data_starts_at_the_peers_alignment_and_lengths_count_both_digests() {
        let header = DataHeader { cccid: 1, ttag: 0, offset: 0, len: 512, last: true, success: true };
        let mut out = [0xaa; HEADER_SPACE];
        assert_eq!(encoder(true, true, 64).c2h_data(&mut out, &header), 64);
        assert_eq!(out[..8], [7, 0b1111, 24, 64, 0x44, 2, 0, 0]);
        assert_eq!(out[24..28], crc32c(&out[..24]).to_le_bytes());
        assert!(out[28..64].iter().all(|byte| *byte == 0), "padding is zero");
    }

    #[test]
    fn a_termination_copies_no_more_than_128_bytes_of_the_offender() {
        let (pdu, len) = encode_term(Side::Target, Fault::HeaderField { offset: 2 }, &[7; 200]).expect("answered");
        assert_eq!(len, TERM_LEN_MAX);
        assert_eq!(pdu[..14], [3, 0, 24, 0, 152, 0, 0, 0, 1, 0, 2, 0, 0, 0]);
        assert!(encode_term(Side::Host, Fault::MalformedTermination, &[]).is_none());
    }

    #[test]
    fn ic_fields_outside_their_range_name_their_offset() {
        let valid = IcResp { cpda: 0, header_digest: true, data_digest: false, maxh2cdata: 4096 };
        let decode = |bytes: [u8; 128]| Header::decode(PduType::IcResp, &bytes);
        assert_eq!(decode(valid.encode()), Ok(Header::IcResp(valid)));
        let mut bytes = valid.encode();
        bytes[8] = 1;
        assert_eq!(decode(bytes), Err(Fault::UnsupportedParameter { offset: 8 }));
        let mut bytes = valid.encode();
        bytes[10] = 32;
        assert_eq!(decode(bytes), Err(Fault::HeaderField { offset: 10 }));
        for limit in [0u32, 4092, 4097, u32::MAX] {
            let mut bytes = valid.encode();
            bytes[12..16].copy_from_slice(&limit.to_le_bytes());
            assert_eq!(decode(bytes), Err(Fault::HeaderField { offset: 12 }), "{limit}");
        }
    }

    #[test]
    fn the_number_of_r2ts_is_zero_based_and_does_not_overflow() {
        let request = IcReq { hpda: 31, header_digest: false, data_digest: true, r2t_max: 1 << 32 };
        let bytes = request.encode();
        assert_eq!(bytes[12..16], [0xff; 4]);
        assert_eq!(Header::decode(PduType::IcReq, &bytes), Ok(Header::IcReq(request)));
    }
}
