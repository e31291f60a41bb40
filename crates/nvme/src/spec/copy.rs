//! Copy: the command and its source ranges (NVM Command Set 1.0, section 3.2.2).

use super::sqe::Sqe;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Copy (figures 33 to 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCommand {
    /// First block of the destination.
    pub sdlba: u64,
    /// Source ranges in the data, counted from one: 1 to 256.
    pub range_count: u32,
    /// Descriptor format.
    pub format: u8,
    /// Directive type (4 bits).
    pub directive_type: u8,
    /// Protection information fields of reads and writes, PRINFOR and PRINFOW.
    pub prinfo: (u8, u8),
    /// Force unit access.
    pub fua: bool,
}

impl CopyCommand {
    /// A plain copy of so many ranges to a block.
    pub const fn plain(sdlba: u64, range_count: u32) -> Self {
        CopyCommand { sdlba, range_count, format: 0, directive_type: 0, prinfo: (0, 0), fua: false }
    }

    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        CopyCommand {
            sdlba: sqe.cdw10_11(),
            range_count: (cdw12 & 0xff) + 1,
            format: (cdw12 >> 8 & 0xf) as u8,
            directive_type: (cdw12 >> 20 & 0xf) as u8,
            prinfo: ((cdw12 >> 12 & 0xf) as u8, (cdw12 >> 26 & 0xf) as u8),
            fua: cdw12 & 1 << 30 != 0,
        }
    }

    /// Writes the view. `range_count` must be 1 to 256.
    pub fn store(&self, sqe: &mut Sqe) {
        assert!((1..=256).contains(&self.range_count), "Copy has 1 to 256 ranges");
        sqe.set_cdw10_11(self.sdlba);
        sqe.cdw12 = U32::new(
            (self.range_count - 1)
                | u32::from(self.format & 0xf) << 8
                | u32::from(self.prinfo.0 & 0xf) << 12
                | u32::from(self.directive_type & 0xf) << 20
                | u32::from(self.prinfo.1 & 0xf) << 26
                | u32::from(self.fua) << 30,
        );
    }
}

/// A source range of descriptor format 0 (figure 36).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CopyRange {
    /// Zero.
    pub reserved0: U64,
    /// First block.
    pub slba: U64,
    /// Blocks, less one.
    pub nlb: U16,
    /// Zero, and fields of protection information.
    pub rest18: [u8; 14],
}

const _: () = assert!(size_of::<CopyRange>() == 32);

impl CopyRange {
    /// These blocks: 1 to 65536.
    pub fn new(slba: u64, block_count: u32) -> CopyRange {
        assert!((1..=0x1_0000).contains(&block_count), "a source range has 1 to 65536 blocks");
        CopyRange { slba: U64::new(slba), nlb: U16::new((block_count - 1) as u16), ..CopyRange::default() }
    }

    /// Its blocks.
    pub const fn block_count(&self) -> u32 {
        self.nlb.get() as u32 + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::opcode::NvmOpcode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_command_round_trips(sdlba: u64, range_count in 1u32..=256, format in 0u8..16, directive_type in 0u8..16,
            prinfo in (0u8..16, 0u8..16), fua: bool,
        ) {
            let command = CopyCommand { sdlba, range_count, format, directive_type, prinfo, fua };
            let mut sqe = Sqe::nvm(NvmOpcode::Copy, 1, 1);
            command.store(&mut sqe);
            prop_assert_eq!(CopyCommand::of(&sqe), command);
        }
    }
}
