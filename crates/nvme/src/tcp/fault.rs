//! Fatal transport errors: what is wrong with a PDU, in the words of a Terminate Connection Request
//! (TCP Transport 1.0, section 3.5 and figures 22 and 23).

/// A breach of the transport's rules. The connection ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A header field has a value that it may not have.
    #[error("invalid PDU header field at byte {offset}")]
    HeaderField {
        /// Byte offset of the field in the PDU.
        offset: u32,
    },
    /// A PDU that may not come in this state.
    #[error("PDU sequence error")]
    Sequence,
    /// The header digest does not match.
    #[error("header digest error (received {received:08x}h)")]
    HeaderDigest {
        /// The digest that the PDU carried.
        received: u32,
    },
    /// Data outside of what was asked for.
    #[error("data transfer out of range")]
    DataOutOfRange,
    /// Said by a controller: more data in one PDU than MAXH2CDATA. Said by a host: more R2Ts than MAXR2T.
    #[error("data transfer or R2T limit exceeded")]
    LimitExceeded,
    /// A parameter that this end does not support.
    #[error("unsupported parameter at byte {offset}")]
    UnsupportedParameter {
        /// Byte offset of the field in the PDU.
        offset: u32,
    },
    /// The peer's own termination is malformed: the connection ends without an answer, since an answer to a termination
    /// is not allowed (TCP Transport 1.0, section 3.5).
    #[error("malformed termination")]
    MalformedTermination,
}

impl Fault {
    /// Fatal error status, or `None` if nothing may be sent.
    pub const fn fes(self) -> Option<u16> {
        Some(match self {
            Fault::HeaderField { .. } => 0x01,
            Fault::Sequence => 0x02,
            Fault::HeaderDigest { .. } => 0x03,
            Fault::DataOutOfRange => 0x04,
            Fault::LimitExceeded => 0x05,
            Fault::UnsupportedParameter { .. } => 0x06,
            Fault::MalformedTermination => return None,
        })
    }

    /// Fatal error information.
    pub const fn fei(self) -> u32 {
        match self {
            Fault::HeaderField { offset } | Fault::UnsupportedParameter { offset } => offset,
            Fault::HeaderDigest { received } => received,
            _ => 0,
        }
    }

    /// Reads a peer's FES and FEI; `None` for a reserved FES.
    pub const fn from_wire(fes: u16, fei: u32) -> Option<Self> {
        Some(match fes {
            0x01 => Fault::HeaderField { offset: fei },
            0x02 => Fault::Sequence,
            0x03 => Fault::HeaderDigest { received: fei },
            0x04 => Fault::DataOutOfRange,
            0x05 => Fault::LimitExceeded,
            0x06 => Fault::UnsupportedParameter { offset: fei },
            _ => return None,
        })
    }
}

/// Byte offsets of the fields that faults name.
pub mod field {
    /// PDU type.
    pub const TYPE: u32 = 0;
    /// Flags.
    pub const FLAGS: u32 = 1;
    /// Header length.
    pub const HLEN: u32 = 2;
    /// Data offset.
    pub const PDO: u32 = 3;
    /// PDU length.
    pub const PLEN: u32 = 4;
    /// PFV of ICReq and ICResp.
    pub const PFV: u32 = 8;
    /// HPDA of ICReq, CPDA of ICResp.
    pub const PDA: u32 = 10;
    /// DGST of ICReq and ICResp.
    pub const DGST: u32 = 11;
    /// MAXH2CDATA of ICResp.
    pub const MAXH2CDATA: u32 = 12;
    /// CCCID of data PDUs and R2T.
    pub const CCCID: u32 = 8;
    /// TTAG of H2CData and R2T.
    pub const TTAG: u32 = 10;
    /// DATAL of data PDUs, R2TL of R2T.
    pub const LENGTH: u32 = 16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_round_trips_through_its_wire_form() {
        for fault in [
            Fault::HeaderField { offset: field::PLEN },
            Fault::Sequence,
            Fault::HeaderDigest { received: 0xdead_beef },
            Fault::DataOutOfRange,
            Fault::LimitExceeded,
            Fault::UnsupportedParameter { offset: field::PFV },
        ] {
            let fes = fault.fes().expect("these are sent");
            assert_eq!(Fault::from_wire(fes, fault.fei()), Some(fault));
        }
        assert_eq!(Fault::MalformedTermination.fes(), None);
        assert_eq!(Fault::from_wire(0, 0), None);
        assert_eq!(Fault::from_wire(7, 0), None);
    }
}
