//! What both ends make of the exchange of ICReq and ICResp (TCP Transport 1.0, section 3.1).

use super::fault::{Fault, field};
use super::{ADMIN_CAPSULE_DATA_MAX, IcReq, IcResp, MAXH2CDATA_MIN, ReceiveParams, SendParams, alignment_of};

/// What this end offers or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportOptions {
    /// Header digests: a target allows them, a host asks for them.
    pub header_digest: bool,
    /// Data digests: a target allows them, a host asks for them.
    pub data_digest: bool,
    /// CPDA or HPDA that this end announces.
    pub pda: u8,
    /// Target: MAXH2CDATA that it announces. Host: most data in one C2HData, `u32::MAX` for no limit.
    pub data_max: u32,
    /// Host: R2Ts per command that it takes at once.
    pub r2t_max: u64,
}

impl TransportOptions {
    /// A target's options: digests for those who ask.
    pub const fn target() -> Self {
        TransportOptions { header_digest: true, data_digest: true, pda: 0, data_max: 1 << 20, r2t_max: 1 }
    }

    /// A host's options: no digests, one R2T at once.
    pub const fn host() -> Self {
        TransportOptions { header_digest: false, data_digest: false, pda: 0, data_max: u32::MAX, r2t_max: 1 }
    }

    /// The request that a host sends.
    pub const fn request(&self) -> IcReq {
        IcReq {
            hpda: self.pda,
            header_digest: self.header_digest,
            data_digest: self.data_digest,
            r2t_max: self.r2t_max,
        }
    }
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// For the encoder.
    pub send: SendParams,
    /// For the decoder.
    pub receive: ReceiveParams,
    /// R2Ts per command that the host takes at once.
    pub r2t_max: u64,
    /// Most data in one H2CData.
    pub maxh2cdata: u32,
}

/// The target's side: its answer to `request`, and what holds from then on.
pub fn accept(options: &TransportOptions, request: &IcReq) -> (IcResp, Negotiated) {
    assert!(options.data_max >= MAXH2CDATA_MIN && options.data_max.is_multiple_of(4));
    let header_digest = options.header_digest && request.header_digest;
    let data_digest = options.data_digest && request.data_digest;
    let response = IcResp { cpda: options.pda, header_digest, data_digest, maxh2cdata: options.data_max };
    let negotiated = Negotiated {
        send: SendParams { header_digest, data_digest, alignment: alignment_of(request.hpda) },
        receive: ReceiveParams {
            header_digest,
            data_digest,
            alignment: alignment_of(options.pda),
            capsule_data_max: ADMIN_CAPSULE_DATA_MAX,
            data_max: options.data_max,
        },
        r2t_max: request.r2t_max,
        maxh2cdata: options.data_max,
    };
    (response, negotiated)
}

/// The host's side: what holds after the target answered with `response`.
///
/// # Errors
/// A digest that the host did not ask for.
pub fn conclude(options: &TransportOptions, response: &IcResp) -> Result<Negotiated, Fault> {
    let unasked = (response.header_digest && !options.header_digest) || (response.data_digest && !options.data_digest);
    if unasked {
        return Err(Fault::HeaderField { offset: field::DGST });
    }
    let (header_digest, data_digest) = (response.header_digest, response.data_digest);
    Ok(Negotiated {
        send: SendParams { header_digest, data_digest, alignment: alignment_of(response.cpda) },
        receive: ReceiveParams {
            header_digest,
            data_digest,
            alignment: alignment_of(options.pda),
            capsule_data_max: 0,
            data_max: options.data_max,
        },
        r2t_max: options.r2t_max,
        maxh2cdata: response.maxh2cdata,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_on_only_if_asked_for_and_allowed_and_both_ends_agree() {
        for bits in 0..16u8 {
            let bit = |index: u8| bits >> index & 1 != 0;
            let target =
                TransportOptions { header_digest: bit(0), data_digest: bit(1), pda: 3, ..TransportOptions::target() };
            let host =
                TransportOptions { header_digest: bit(2), data_digest: bit(3), pda: 7, ..TransportOptions::host() };
            let (response, at_target) = accept(&target, &host.request());
            let at_host = conclude(&host, &response).expect("only what was asked for");
            assert_eq!(response.header_digest, bit(0) && bit(2));
            assert_eq!(response.data_digest, bit(1) && bit(3));
            assert_eq!(at_target.send.alignment, at_host.receive.alignment);
            assert_eq!(at_host.send.alignment, at_target.receive.alignment);
            assert_eq!(at_target.send.header_digest, at_host.receive.header_digest);
            assert_eq!(at_host.send.data_digest, at_target.receive.data_digest);
        }
    }

    #[test]
    fn a_digest_that_was_not_asked_for_is_a_fault() {
        let response = IcResp { cpda: 0, header_digest: false, data_digest: true, maxh2cdata: 4096 };
        assert_eq!(conclude(&TransportOptions::host(), &response), Err(Fault::HeaderField { offset: field::DGST }));
    }
}
