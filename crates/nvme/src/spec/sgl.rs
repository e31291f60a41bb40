//! Scatter-gather list descriptors (Base 2.0, section 4.1.2) as NVMe/TCP allows them (TCP Transport 1.0, section 3.3.2).
//!
//! TCP knows two: *data block, offset subtype* names bytes inside the command capsule, and *transport data block, transport A*
//! says that the transport moves them (R2T and H2CData to the controller, C2HData to the host). No lists: one per command.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// One descriptor, 16 bytes (Base 2.0, section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SglDescriptor {
    /// Address, or the offset into the capsule; reserved for transport descriptors.
    pub address: U64,
    /// Bytes described.
    pub length: U32,
    /// Reserved.
    pub reserved: [u8; 3],
    /// Type in the high nibble, subtype in the low one (Base 2.0, section 4.1.2).
    pub kind: u8,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

/// Type 0, subtype 1: bytes in the capsule at an offset.
pub const KIND_IN_CAPSULE: u8 = 0x01;
/// Type 5, subtype Ah: bytes that the transport moves.
pub const KIND_TRANSPORT: u8 = 0x5a;

impl SglDescriptor {
    /// Data that travels inside the command capsule.
    pub const fn in_capsule(offset: u64, length: u32) -> Self {
        SglDescriptor { address: U64::new(offset), length: U32::new(length), reserved: [0; 3], kind: KIND_IN_CAPSULE }
    }

    /// Data that the transport moves; a length of zero is how hosts say "no data".
    pub const fn transport(length: u32) -> Self {
        SglDescriptor { address: U64::new(0), length: U32::new(length), reserved: [0; 3], kind: KIND_TRANSPORT }
    }

    /// Where the data of a command is, checked against what came with the capsule.
    ///
    /// `capsule_data_len` is the number of data bytes in the capsule, `transfer_len_max` the controller's limit (MDTS in bytes,
    /// `u32::MAX` for none). The refusals are those of Base 2.0, sections 3.3.3.2 and 4.1.2:
    /// * a type or subtype that TCP does not define: SGL Descriptor Type Invalid,
    /// * an offset beyond the capsule's data: SGL Offset Invalid,
    /// * a length beyond the capsule's data: Data SGL Length Invalid,
    /// * a length above the limit: Invalid Field (Base 2.0, figure 275, MDTS).
    pub fn locate(&self, capsule_data_len: u32, transfer_len_max: u32) -> Result<DataLocation, Status> {
        let len = self.length.get();
        match self.kind {
            KIND_TRANSPORT if len > transfer_len_max => Err(Status::INVALID_FIELD.dnr()),
            KIND_TRANSPORT => Ok(DataLocation::Transport { len }),
            KIND_IN_CAPSULE => {
                let offset = self.address.get();
                if offset > u64::from(capsule_data_len) {
                    return Err(Status::SGL_OFFSET_INVALID.dnr());
                }
                let offset = offset as u32;
                if len > capsule_data_len - offset {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
                }
                if len > transfer_len_max {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                Ok(DataLocation::InCapsule { offset, len })
            }
            _ => Err(Status::SGL_TYPE_INVALID.dnr()),
        }
    }
}

/// Where the bytes of a command are, or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// In the capsule, at this offset of its data.
    InCapsule {
        /// Offset into the capsule's data.
        offset: u32,
        /// Bytes.
        len: u32,
    },
    /// Moved by R2T and H2CData, or by C2HData.
    Transport {
        /// Bytes; zero for a command without data.
        len: u32,
    },
}

impl DataLocation {
    /// Bytes that the descriptor covers.
    pub const fn len(self) -> u32 {
        match self {
            DataLocation::InCapsule { len, .. } | DataLocation::Transport { len } => len,
        }
    }

    /// Whether it covers none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_capsule_data_must_lie_within_the_capsule() {
        let locate = |offset, len| SglDescriptor::in_capsule(offset, len).locate(4096, u32::MAX);
        assert_eq!(locate(0, 4096), Ok(DataLocation::InCapsule { offset: 0, len: 4096 }));
        assert_eq!(locate(4096, 0), Ok(DataLocation::InCapsule { offset: 4096, len: 0 }));
        assert_eq!(locate(1, 4096), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
        assert_eq!(locate(0, u32::MAX), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()));
        assert_eq!(locate(4097, 0), Err(Status::SGL_OFFSET_INVALID.dnr()));
        assert_eq!(locate(u64::MAX, u32::MAX), Err(Status::SGL_OFFSET_INVALID.dnr()));
    }

    #[test]
    fn transport_data_is_bounded_by_the_transfer_limit() {
        let locate = |len| SglDescriptor::transport(len).locate(0, 1 << 20);
        assert_eq!(locate(1 << 20), Ok(DataLocation::Transport { len: 1 << 20 }));
        assert_eq!(locate((1 << 20) + 1), Err(Status::INVALID_FIELD.dnr()));
        assert!(locate(0).is_ok_and(DataLocation::is_empty));
    }

    #[test]
    fn every_other_type_and_subtype_is_refused() {
        for kind in 0..=255u8 {
            let found = SglDescriptor { kind, ..SglDescriptor::transport(0) }.locate(0, u32::MAX);
            match kind {
                KIND_IN_CAPSULE | KIND_TRANSPORT => assert!(found.is_ok()),
                _ => assert_eq!(found, Err(Status::SGL_TYPE_INVALID.dnr()), "{kind:02x}"),
            }
        }
    }
}
