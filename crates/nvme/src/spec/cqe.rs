//! Completion queue entries: the 16 bytes of every answer (Base 2.0, section 3.3.3.2).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// An answer as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Command specific result: dwords 0 and 1.
    pub result: U64,
    /// Submission queue head pointer.
    pub sqhd: U16,
    /// Submission queue; reserved on fabrics.
    pub sqid: U16,
    /// Which command this answers.
    pub cid: U16,
    /// Status field, phase tag zero.
    pub status: U16,
}

/// Bytes of a completion queue entry.
pub const CQE_LEN: usize = 16;

const _: () = {
    assert!(size_of::<Cqe>() == CQE_LEN);
    assert!(core::mem::offset_of!(Cqe, sqhd) == 8);
    assert!(core::mem::offset_of!(Cqe, cid) == 12);
    assert!(core::mem::offset_of!(Cqe, status) == 14);
};

impl Cqe {
    /// An answer without result. The queue stamps `sqhd` when it sends.
    pub const fn new(cid: u16, status: Status) -> Self {
        Cqe {
            result: U64::new(0),
            sqhd: U16::new(0),
            sqid: U16::new(0),
            cid: U16::new(cid),
            status: U16::new(status.to_wire()),
        }
    }

    /// A successful answer with a result in dword 0.
    pub const fn success(cid: u16, dw0: u32) -> Self {
        Cqe { result: U64::new(dw0 as u64), ..Cqe::new(cid, Status::SUCCESS) }
    }

    /// The status.
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Dword 0 of the result.
    pub const fn dw0(&self) -> u32 {
        self.result.get() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_laid_out_as_the_specification_says() {
        let mut cqe = Cqe::success(0x0201, 0x0403_0605);
        cqe.status = U16::new(Status::INVALID_OPCODE.dnr().to_wire());
        cqe.sqhd = U16::new(0x0807);
        assert_eq!(cqe.as_bytes(), [5, 6, 3, 4, 0, 0, 0, 0, 7, 8, 0, 0, 1, 2, 0x02, 0x80]);
    }
}
