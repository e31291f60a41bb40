//! Submission queue entries: the 64 bytes of every command (Base 2.0, Common Command Format), and typed views of the ones we speak.
//!
//! A view is a small value taken from the entry (`IdentifyCommand::of(&sqe)`); it reads fields and judges nothing.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::opcode::{AdminOpcode, NvmOpcode};
use super::sgl::SglDescriptor;

/// A command as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// Opcode.
    pub opcode: u8,
    /// Fused operation in bits 1:0, PRP or SGL in bits 7:6 (Base 2.0, Command Dword 0).
    pub flags: u8,
    /// Command identifier, unique in its queue while the command is outstanding.
    pub cid: U16,
    /// Namespace. (Byte 4 is the command type of Fabrics commands: see [`super::fabrics`].)
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// Metadata pointer.
    pub mptr: U64,
    /// Data pointer: on fabrics always one SGL descriptor.
    pub sgl: SglDescriptor,
    /// Command dword 10.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

/// Bytes of a submission queue entry.
pub const SQE_LEN: usize = 64;

const _: () = {
    assert!(size_of::<Sqe>() == SQE_LEN);
    assert!(core::mem::offset_of!(Sqe, nsid) == 4);
    assert!(core::mem::offset_of!(Sqe, mptr) == 16);
    assert!(core::mem::offset_of!(Sqe, sgl) == 24);
    assert!(core::mem::offset_of!(Sqe, cdw10) == 40);
    assert!(core::mem::offset_of!(Sqe, cdw15) == 60);
};

/// PSDT 01b: SGL for data, and the metadata pointer is a plain address. The only value allowed on fabrics
/// (Base 2.0, Command Dword 0).
pub const FLAG_SGL: u8 = 0x40;

/// Whether a command is half of a fused pair (Base 2.0, Command Dword 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fused {
    /// A command on its own.
    Normal,
    /// First of two.
    First,
    /// Second of two.
    Second,
    /// The reserved value 11b.
    Reserved,
}

impl Sqe {
    /// A command with every other field zero and the flags that fabrics require.
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Self {
        Sqe {
            opcode,
            flags: FLAG_SGL,
            cid: U16::new(cid),
            nsid: U32::new(nsid),
            sgl: SglDescriptor::transport(0),
            ..Sqe::default()
        }
    }

    /// An admin command.
    pub fn admin(opcode: AdminOpcode, cid: u16) -> Self {
        Sqe::new(opcode as u8, cid, 0)
    }

    /// An I/O command of the NVM command set.
    pub fn nvm(opcode: NvmOpcode, cid: u16, nsid: u32) -> Self {
        Sqe::new(opcode as u8, cid, nsid)
    }

    /// Fused bits.
    pub const fn fused(&self) -> Fused {
        match self.flags & 3 {
            0 => Fused::Normal,
            1 => Fused::First,
            2 => Fused::Second,
            _ => Fused::Reserved,
        }
    }

    /// PRP or SGL for data transfer, bits 7:6.
    pub const fn psdt(&self) -> u8 {
        self.flags >> 6
    }

    /// The same command with these fused bits.
    #[must_use]
    pub const fn with_fused(mut self, fused: Fused) -> Self {
        self.flags = self.flags & !3
            | match fused {
                Fused::Normal => 0,
                Fused::First => 1,
                Fused::Second => 2,
                Fused::Reserved => 3,
            };
        self
    }

    /// The same command with this data pointer.
    #[must_use]
    pub const fn with_sgl(mut self, sgl: SglDescriptor) -> Self {
        self.sgl = sgl;
        self
    }

    /// CDW10 and CDW11 as one number: the starting LBA of block commands.
    pub const fn cdw10_11(&self) -> u64 {
        self.cdw10.get() as u64 | (self.cdw11.get() as u64) << 32
    }

    /// Sets CDW10 and CDW11 from one number.
    pub const fn set_cdw10_11(&mut self, value: u64) {
        self.cdw10 = U32::new(value as u32);
        self.cdw11 = U32::new((value >> 32) as u32);
    }
}

/// Read, Write, Compare, Write Zeroes and Verify share this layout (NVM Command Set 1.0, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// First logical block.
    pub slba: u64,
    /// Blocks, counted from one.
    pub block_count: u32,
    /// Force unit access.
    pub fua: bool,
    /// Limited retry.
    pub limited_retry: bool,
    /// Write Zeroes only: the blocks may be deallocated.
    pub deallocate: bool,
    /// Protection information field, PRINFO (4 bits).
    pub prinfo: u8,
    /// Directive type (4 bits).
    pub directive_type: u8,
    /// Directive specific value.
    pub directive_specific: u16,
}

impl BlockCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw12 = sqe.cdw12.get();
        BlockCommand {
            slba: sqe.cdw10_11(),
            block_count: (cdw12 & 0xffff) + 1,
            fua: cdw12 & 1 << 30 != 0,
            limited_retry: cdw12 & 1 << 31 != 0,
            deallocate: cdw12 & 1 << 25 != 0,
            prinfo: (cdw12 >> 26 & 0xf) as u8,
            directive_type: (cdw12 >> 20 & 0xf) as u8,
            directive_specific: (sqe.cdw13.get() >> 16) as u16,
        }
    }

    /// Writes the view. `block_count` must be 1 to 65536.
    pub fn store(&self, sqe: &mut Sqe) {
        assert!((1..=0x1_0000).contains(&self.block_count), "a command moves 1 to 65536 blocks");
        sqe.set_cdw10_11(self.slba);
        sqe.cdw12 = U32::new(
            (self.block_count - 1)
                | u32::from(self.directive_type & 0xf) << 20
                | u32::from(self.deallocate) << 25
                | u32::from(self.prinfo & 0xf) << 26
                | u32::from(self.fua) << 30
                | u32::from(self.limited_retry) << 31,
        );
        sqe.cdw13 = U32::new(sqe.cdw13.get() & 0xffff | u32::from(self.directive_specific) << 16);
    }

    /// A plain command over these blocks.
    pub const fn plain(slba: u64, block_count: u32) -> Self {
        BlockCommand {
            slba,
            block_count,
            fua: false,
            limited_retry: false,
            deallocate: false,
            prinfo: 0,
            directive_type: 0,
            directive_specific: 0,
        }
    }
}

/// Dataset Management (NVM Command Set 1.0, section 3.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsmCommand {
    /// Ranges in the data, counted from one.
    pub range_count: u32,
    /// Attribute Deallocate.
    pub deallocate: bool,
}

impl DsmCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        DsmCommand { range_count: (sqe.cdw10.get() & 0xff) + 1, deallocate: sqe.cdw11.get() & 1 << 2 != 0 }
    }

    /// Writes the view. `range_count` must be 1 to 256.
    pub fn store(&self, sqe: &mut Sqe) {
        assert!((1..=256).contains(&self.range_count), "Dataset Management has 1 to 256 ranges");
        sqe.cdw10 = U32::new(self.range_count - 1);
        sqe.cdw11 = U32::new(u32::from(self.deallocate) << 2);
    }
}

/// One range of Dataset Management, 16 bytes (NVM Command Set 1.0, figure 41).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes.
    pub attributes: U32,
    /// Blocks, counted from zero being none.
    pub block_count: U32,
    /// First logical block.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

/// Most ranges of one Dataset Management command.
pub const DSM_RANGES_MAX: usize = 256;

/// Identify (Base 2.0, section 5.17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyCommand {
    /// Which structure.
    pub cns: u8,
    /// Controller, where the structure is about one.
    pub cntid: u16,
    /// CNS specific identifier.
    pub cns_specific: u16,
    /// Command set.
    pub csi: u8,
}

impl IdentifyCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        IdentifyCommand {
            cns: sqe.cdw10.get() as u8,
            cntid: (sqe.cdw10.get() >> 16) as u16,
            cns_specific: sqe.cdw11.get() as u16,
            csi: (sqe.cdw11.get() >> 24) as u8,
        }
    }

    /// Writes the view.
    pub fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = U32::new(u32::from(self.cns) | u32::from(self.cntid) << 16);
        sqe.cdw11 = U32::new(u32::from(self.cns_specific) | u32::from(self.csi) << 24);
    }
}

/// Get Log Page (Base 2.0, section 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPageCommand {
    /// Log page identifier.
    pub lid: u8,
    /// Log specific parameter (7 bits).
    pub lsp: u8,
    /// Retain asynchronous event: reading does not unmask.
    pub retain_event: bool,
    /// Bytes wanted: (NUMD + 1) dwords, up to 16 GiB.
    pub len: u64,
    /// Byte offset (or index) where the answer starts.
    pub offset: u64,
    /// The offset is an index of entries.
    pub offset_is_index: bool,
    /// Command set.
    pub csi: u8,
}

impl GetLogPageCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let (cdw10, cdw11, cdw14) = (sqe.cdw10.get(), sqe.cdw11.get(), sqe.cdw14.get());
        let dwords = (cdw10 >> 16) as u64 | ((cdw11 & 0xffff) as u64) << 16;
        GetLogPageCommand {
            lid: cdw10 as u8,
            lsp: (cdw10 >> 8 & 0x7f) as u8,
            retain_event: cdw10 & 1 << 15 != 0,
            len: (dwords + 1) * 4,
            offset: sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32,
            offset_is_index: cdw14 & 1 << 23 != 0,
            csi: (cdw14 >> 24) as u8,
        }
    }

    /// Writes the view. `len` must be a positive multiple of 4.
    pub fn store(&self, sqe: &mut Sqe) {
        assert!(self.len >= 4 && self.len.is_multiple_of(4), "log pages are read in dwords");
        let dwords = self.len / 4 - 1;
        sqe.cdw10 = U32::new(
            u32::from(self.lid)
                | u32::from(self.lsp & 0x7f) << 8
                | u32::from(self.retain_event) << 15
                | (dwords as u32 & 0xffff) << 16,
        );
        sqe.cdw11 = U32::new((dwords >> 16) as u32 & 0xffff);
        sqe.cdw12 = U32::new(self.offset as u32);
        sqe.cdw13 = U32::new((self.offset >> 32) as u32);
        sqe.cdw14 = U32::new(u32::from(self.offset_is_index) << 23 | u32::from(self.csi) << 24);
    }
}

/// Which value of a feature Get Features asks for (Base 2.0, figure 192).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureSelect {
    /// In force now.
    Current,
    /// After a reset without saved value.
    Default,
    /// Saved.
    Saved,
    /// What may be done with the feature.
    Capabilities,
    /// Values 4 to 7.
    Reserved,
}

/// Get Features and Set Features (Base 2.0, sections 5.15 and 5.27).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureCommand {
    /// Feature identifier.
    pub fid: u8,
    /// Get: which value.
    pub select: FeatureSelect,
    /// Set: keep over power cycles.
    pub save: bool,
    /// CDW11: the value, or a parameter.
    pub value: u32,
}

impl FeatureCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        FeatureCommand {
            fid: cdw10 as u8,
            select: match cdw10 >> 8 & 7 {
                0 => FeatureSelect::Current,
                1 => FeatureSelect::Default,
                2 => FeatureSelect::Saved,
                3 => FeatureSelect::Capabilities,
                _ => FeatureSelect::Reserved,
            },
            save: cdw10 >> 31 != 0,
            value: sqe.cdw11.get(),
        }
    }
}

/// Abort (Base 2.0, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortCommand {
    /// Queue of the command to abort.
    pub sqid: u16,
    /// Its command identifier.
    pub cid: u16,
}

impl AbortCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        AbortCommand { sqid: sqe.cdw10.get() as u16, cid: (sqe.cdw10.get() >> 16) as u16 }
    }

    /// Writes the view.
    pub fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = U32::new(u32::from(self.sqid) | u32::from(self.cid) << 16);
    }
}

/// Cross-Controller Reset (Base 2.3, section 5.4.3): which instance of which controller to reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossControllerResetCommand {
    /// Controller identifier.
    pub cntlid: u16,
    /// Its uniquifier, as Identify Controller gave it (CIU).
    pub uniquifier: u8,
    /// Its random number, as Identify Controller gave it (CIRN).
    pub random: u64,
}

impl CrossControllerResetCommand {
    /// Bit 0 of dword 0 of the answer: the reset is done.
    pub const DONE: u32 = 1;

    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        CrossControllerResetCommand {
            cntlid: sqe.cdw10.get() as u16,
            uniquifier: (sqe.cdw10.get() >> 16) as u8,
            random: sqe.cdw12.get() as u64 | (sqe.cdw13.get() as u64) << 32,
        }
    }

    /// Writes the view.
    pub fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = U32::new(u32::from(self.cntlid) | u32::from(self.uniquifier) << 16);
        sqe.cdw12 = U32::new(self.random as u32);
        sqe.cdw13 = U32::new((self.random >> 32) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_on_the_wire_are_zero_based() {
        let mut sqe = Sqe::nvm(NvmOpcode::Read, 7, 1);
        BlockCommand::plain(9, 1).store(&mut sqe);
        assert_eq!(sqe.cdw12.get(), 0);
        DsmCommand { range_count: 256, deallocate: true }.store(&mut sqe);
        assert_eq!((sqe.cdw10.get(), sqe.cdw11.get()), (255, 4));
    }

    #[test]
    fn a_log_page_of_16_gib_does_not_overflow() {
        let sqe = Sqe { cdw10: U32::new(0xffff_0000), cdw11: U32::new(0xffff), ..Sqe::default() };
        assert_eq!(GetLogPageCommand::of(&sqe).len, 1 << 34);
    }

    proptest! {
        #[test]
        fn block_commands_round_trip(slba: u64, count in 1u32..=0x1_0000, bits: u16, specific: u16) {
            let view = BlockCommand {
                slba, block_count: count, fua: bits & 1 != 0, limited_retry: bits & 2 != 0, deallocate: bits & 4 != 0,
                prinfo: (bits >> 4 & 0xf) as u8, directive_type: (bits >> 8 & 0xf) as u8, directive_specific: specific,
            };
            let mut sqe = Sqe::nvm(NvmOpcode::Write, 1, 1);
            view.store(&mut sqe);
            prop_assert_eq!(BlockCommand::of(&sqe), view);
        }

        #[test]
        fn log_page_commands_round_trip(lid: u8, lsp in 0u8..128, retain_event: bool, dwords in 1u64..=1 << 32, offset: u64, csi: u8) {
            let view = GetLogPageCommand {
                lid, lsp, retain_event, len: dwords * 4, offset, offset_is_index: lsp & 1 != 0, csi,
            };
            let mut sqe = Sqe::default();
            view.store(&mut sqe);
            prop_assert_eq!(GetLogPageCommand::of(&sqe), view);
        }

        #[test]
        fn identify_abort_and_reset_round_trip(cns: u8, cntid: u16, cns_specific: u16, csi: u8, random: u64) {
            let mut sqe = Sqe::default();
            let identify = IdentifyCommand { cns, cntid, cns_specific, csi };
            identify.store(&mut sqe);
            prop_assert_eq!(IdentifyCommand::of(&sqe), identify);
            let abort = AbortCommand { sqid: cntid, cid: cns_specific };
            abort.store(&mut sqe);
            prop_assert_eq!(AbortCommand::of(&sqe), abort);
            let reset = CrossControllerResetCommand { cntlid: cntid, uniquifier: csi, random };
            reset.store(&mut sqe);
            prop_assert_eq!(CrossControllerResetCommand::of(&sqe), reset);
        }

        #[test]
        fn views_of_arbitrary_bytes_never_panic(bytes: [u8; 64]) {
            let sqe: Sqe = zerocopy::transmute!(bytes);
            let _ = (BlockCommand::of(&sqe), DsmCommand::of(&sqe), IdentifyCommand::of(&sqe), GetLogPageCommand::of(&sqe),
                FeatureCommand::of(&sqe), AbortCommand::of(&sqe), CrossControllerResetCommand::of(&sqe), sqe.fused(), sqe.psdt());
        }
    }
}
