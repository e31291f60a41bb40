//! What the first eight bytes of a PDU must be (TCP Transport 1.0, sections 3.3 and 3.6): type, flags, header length, data
//! offset and length, in the state of the connection. Lengths are bounded here, before anything is kept.

use super::fault::{Fault, field};
use super::pdu::{CommonHeader, DIGEST_LEN, FLAG_DDGST, FLAG_HDGST, PduType, TERM_LEN_MAX};
use super::{ReceiveParams, Side};

/// Where a connection stands, as far as it matters for what may be received.
///
/// ```text
/// AwaitIc --ICReq/ICResp--> Negotiating --agreed--> Ready --TermReq--> Terminated
///    \________________________TermReq_____________________________________/
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Nothing but ICReq (target) or ICResp (host) may come.
    AwaitIc,
    /// It came; until this end has decided on the parameters nothing more is read.
    Negotiating,
    /// Commands, responses and data.
    Ready,
    /// The peer terminated: whatever follows is ignored.
    Terminated,
}

/// The parts of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Type.
    pub kind: PduType,
    /// Bytes of header, without digest.
    pub hlen: usize,
    /// Whether a header digest follows.
    pub header_digest: bool,
    /// Offset of the data; the end of the header (and digest) if there is none.
    pub data_start: usize,
    /// Bytes of data.
    pub data_len: u32,
    /// Whether a data digest follows.
    pub data_digest: bool,
}

impl Shape {
    /// Bytes of header and header digest.
    pub const fn head_len(&self) -> usize {
        self.hlen + if self.header_digest { DIGEST_LEN } else { 0 }
    }

    /// Bytes of the whole PDU.
    pub const fn pdu_len(&self) -> usize {
        self.data_start + self.data_len as usize + if self.data_digest { DIGEST_LEN } else { 0 }
    }
}

/// Whether this end receives PDUs of this type at all.
pub const fn is_for(side: Side, kind: PduType) -> bool {
    match kind {
        PduType::IcReq | PduType::H2cTermReq | PduType::CapsuleCmd | PduType::H2cData => {
            matches!(side, Side::Target)
        }
        _ => matches!(side, Side::Host),
    }
}

/// Checks a common header.
#[inline]
pub fn check(side: Side, phase: Phase, params: &ReceiveParams, common: &CommonHeader) -> Result<Shape, Fault> {
    let kind = PduType::from_u8(common.kind)
        .filter(|kind| is_for(side, *kind))
        .ok_or(Fault::HeaderField { offset: field::TYPE })?;
    match kind {
        PduType::H2cTermReq | PduType::C2hTermReq => return check_termination(kind, common),
        PduType::IcReq | PduType::IcResp if phase != Phase::AwaitIc => return Err(Fault::Sequence),
        PduType::IcReq | PduType::IcResp => {}
        _ if phase != Phase::Ready => return Err(Fault::Sequence),
        _ => {}
    }
    if common.hlen != kind.hlen() {
        return Err(Fault::HeaderField { offset: field::HLEN });
    }
    let is_ic = matches!(kind, PduType::IcReq | PduType::IcResp);
    let header_digest = params.header_digest && !is_ic;
    if !is_ic && (common.flags & FLAG_HDGST != 0) != header_digest {
        return Err(Fault::HeaderField { offset: field::FLAGS });
    }
    let hlen = usize::from(common.hlen);
    let head_len = hlen + if header_digest { DIGEST_LEN } else { 0 };
    let no_data = Shape { kind, hlen, header_digest, data_start: head_len, data_len: 0, data_digest: false };
    let plen = common.plen.get() as usize;
    let bad_plen = Err(Fault::HeaderField { offset: field::PLEN });
    match kind {
        PduType::H2cData | PduType::C2hData => {}
        PduType::CapsuleCmd if plen != head_len => {}
        _ if plen == head_len => return Ok(no_data),
        _ => return bad_plen,
    }

    if (common.flags & FLAG_DDGST != 0) != params.data_digest {
        return Err(Fault::HeaderField { offset: field::FLAGS });
    }
    let data_start = usize::from(common.pdo);
    if data_start < head_len || !data_start.is_multiple_of(params.alignment as usize) {
        return Err(Fault::HeaderField { offset: field::PDO });
    }
    let tail = if params.data_digest { DIGEST_LEN } else { 0 };
    let data_len = match plen.checked_sub(data_start + tail) {
        None | Some(0) => return bad_plen,
        Some(len) => len as u32,
    };
    match kind {
        PduType::CapsuleCmd if data_len > params.capsule_data_max => bad_plen,
        PduType::H2cData if data_len > params.data_max => Err(Fault::LimitExceeded),
        PduType::C2hData if data_len > params.data_max => Err(Fault::DataOutOfRange),
        _ => Ok(Shape { data_start, data_len, data_digest: params.data_digest, ..no_data }),
    }
}

/// A termination is malformed or it is not: no answer is possible, so the field does not matter.
#[cold]
fn check_termination(kind: PduType, common: &CommonHeader) -> Result<Shape, Fault> {
    let hlen = usize::from(kind.hlen());
    let plen = common.plen.get() as usize;
    if usize::from(common.hlen) != hlen || plen < hlen || plen > TERM_LEN_MAX {
        return Err(Fault::MalformedTermination);
    }
    let data_len = (plen - hlen) as u32;
    Ok(Shape { kind, hlen, header_digest: false, data_start: hlen, data_len, data_digest: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::byteorder::little_endian::U32;

    const PARAMS: ReceiveParams = ReceiveParams {
        header_digest: false,
        data_digest: false,
        alignment: 4,
        capsule_data_max: 8192,
        data_max: 4096,
    };

    fn common(kind: PduType, flags: u8, pdo: u8, plen: u32) -> CommonHeader {
        CommonHeader { kind: kind as u8, flags, hlen: kind.hlen(), pdo, plen: U32::new(plen) }
    }

    fn ready(common: &CommonHeader) -> Result<Shape, Fault> {
        check(Side::Target, Phase::Ready, &PARAMS, common)
    }

    /// Every type in every phase, for both ends: the whole table of TCP Transport 1.0, section 3.5.
    #[test]
    fn a_pdu_is_accepted_only_by_its_receiver_and_in_its_phase() {
        for side in [Side::Target, Side::Host] {
            for phase in [Phase::AwaitIc, Phase::Negotiating, Phase::Ready] {
                for value in 0..=255u8 {
                    let kind = PduType::from_u8(value).filter(|kind| is_for(side, *kind));
                    let Some(kind) = kind else {
                        let unknown = CommonHeader { kind: value, ..common(PduType::R2t, 0, 0, 24) };
                        assert_eq!(check(side, phase, &PARAMS, &unknown), Err(Fault::HeaderField { offset: 0 }));
                        continue;
                    };
                    let has_data = matches!(kind, PduType::H2cData | PduType::C2hData);
                    let plen = u32::from(kind.hlen()) + if has_data { 8 } else { 0 };
                    let result = check(side, phase, &PARAMS, &common(kind, 0, kind.hlen(), plen));
                    let allowed = match kind {
                        PduType::H2cTermReq | PduType::C2hTermReq => true,
                        PduType::IcReq | PduType::IcResp => phase == Phase::AwaitIc,
                        _ => phase == Phase::Ready,
                    };
                    if allowed {
                        assert_eq!(result.map(|shape| shape.kind), Ok(kind));
                    } else {
                        assert_eq!(result, Err(Fault::Sequence), "{side:?} {phase:?} {kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_wrong_header_length_is_named() {
        for hlen in (0..=255u8).filter(|hlen| *hlen != 72) {
            let header = CommonHeader { hlen, ..common(PduType::CapsuleCmd, 0, 0, 72) };
            assert_eq!(ready(&header), Err(Fault::HeaderField { offset: field::HLEN }));
        }
    }

    #[test]
    fn digest_flags_must_be_what_was_agreed() {
        assert_eq!(ready(&common(PduType::CapsuleCmd, FLAG_HDGST, 0, 76)), Err(Fault::HeaderField { offset: 1 }));
        assert_eq!(ready(&common(PduType::H2cData, FLAG_DDGST, 24, 36)), Err(Fault::HeaderField { offset: 1 }));
        let params = ReceiveParams { header_digest: true, data_digest: true, ..PARAMS };
        let check = |header| check(Side::Target, Phase::Ready, &params, &header);
        assert_eq!(check(common(PduType::CapsuleCmd, 0, 0, 72)), Err(Fault::HeaderField { offset: 1 }));
        assert_eq!(check(common(PduType::CapsuleCmd, FLAG_HDGST, 76, 92)), Err(Fault::HeaderField { offset: 1 }));
        let shape = check(common(PduType::CapsuleCmd, FLAG_HDGST | FLAG_DDGST, 76, 96)).expect("as agreed");
        assert_eq!((shape.data_start, shape.data_len, shape.pdu_len()), (76, 16, 96));
        assert!(check(common(PduType::CapsuleCmd, FLAG_HDGST, 0, 76)).is_ok(), "no data, no data digest");
    }

    #[test]
    fn data_offsets_must_clear_the_header_and_be_aligned() {
        let params = ReceiveParams { alignment: 64, ..PARAMS };
        for pdo in 0..=255u8 {
            let result = check(Side::Target, Phase::Ready, &params, &common(PduType::H2cData, 0, pdo, 300));
            match pdo {
                64 | 128 | 192 => {
                    assert_eq!(result.map(|shape| shape.data_len), Ok(300 - u32::from(pdo)))
                }
                _ => assert_eq!(result, Err(Fault::HeaderField { offset: field::PDO }), "{pdo}"),
            }
        }
    }

    #[test]
    fn data_may_not_start_within_the_header_digest() {
        let params = ReceiveParams { header_digest: true, ..PARAMS };
        let check =
            |pdo| check(Side::Target, Phase::Ready, &params, &common(PduType::CapsuleCmd, FLAG_HDGST, pdo, 200));
        assert_eq!(check(72), Err(Fault::HeaderField { offset: field::PDO }));
        assert!(check(76).is_ok());
    }

    #[test]
    fn lengths_are_bounded_before_anything_is_kept() {
        let bad_plen = Err(Fault::HeaderField { offset: field::PLEN });
        assert!(ready(&common(PduType::CapsuleCmd, 0, 72, 72 + 8192)).is_ok());
        assert_eq!(ready(&common(PduType::CapsuleCmd, 0, 72, 72 + 8193)), bad_plen);
        assert_eq!(ready(&common(PduType::CapsuleCmd, 0, 72, u32::MAX)), bad_plen);
        assert_eq!(ready(&common(PduType::CapsuleCmd, 0, 72, 71)), bad_plen);
        assert_eq!(ready(&common(PduType::CapsuleCmd, 0, 72, 0)), bad_plen);
        assert_eq!(ready(&common(PduType::CapsuleCmd, 0, 80, 80)), bad_plen, "an offset but no data");
        assert!(ready(&common(PduType::H2cData, 0, 24, 24 + 4096)).is_ok());
        assert_eq!(ready(&common(PduType::H2cData, 0, 24, 24 + 4097)), Err(Fault::LimitExceeded));
        assert_eq!(ready(&common(PduType::H2cData, 0, 24, 24)), bad_plen);
        let host = |header| check(Side::Host, Phase::Ready, &PARAMS, &header);
        assert_eq!(host(common(PduType::CapsuleResp, 0, 0, 25)), bad_plen);
        assert_eq!(host(common(PduType::R2t, 0, 0, 23)), bad_plen);
        assert_eq!(host(common(PduType::C2hData, 0, 24, 24 + 4097)), Err(Fault::DataOutOfRange));
    }

    #[test]
    fn a_termination_of_up_to_152_bytes_is_taken_and_any_other_is_not_answered() {
        assert_eq!(ready(&common(PduType::H2cTermReq, 0, 0, 152)).map(|shape| shape.data_len), Ok(128));
        for plen in [0, 23, 153, u32::MAX] {
            let fault = ready(&common(PduType::H2cTermReq, 0, 0, plen)).expect_err("malformed");
            assert_eq!(fault.fes(), None);
        }
    }
}
