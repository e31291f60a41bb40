//! From a block operation to NVMe commands: which command covers the next blocks of a request, and what it looks like.

use bdev::{Flags, Io, Op};
use zerocopy::IntoBytes;

use crate::host::command;
use crate::spec::Sqe;
use crate::spec::copy::CopyRange;
use crate::spec::opcode::NvmOpcode;
use crate::spec::sqe::{BlockCommand, DsmRange, Fused};
use crate::spec::zns::SendAction;
use reactor::buf::sg_len;

use super::command::Direction;

/// Most blocks that one command can name.
pub(super) const COMMAND_BLOCKS_MAX: u32 = 1 << 16;

/// What commands of a lane are about, and how large they may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Namespace.
    pub(super) nsid: u32,
    /// Bytes per block, as a power of two.
    pub(super) block_shift: u32,
    /// Blocks that one command may transfer (MDTS).
    pub(super) transfer_blocks_max: u32,
    /// Blocks that one Write Zeroes may cover.
    pub(super) zeroes_blocks_max: u32,
    /// Blocks that one Verify may cover.
    pub(super) verify_blocks_max: u32,
    /// Blocks that one Write Uncorrectable may cover.
    pub(super) uncorrectable_blocks_max: u32,
    /// Blocks that one Copy may copy.
    pub(super) copy_blocks_max: u32,
    /// Blocks that one deallocated range may have.
    pub(super) unmap_blocks_max: u32,
    /// Data that a command capsule may carry.
    pub(super) capsule_data_max: u32,
    /// Command retry delays of the controller, in 100 ms.
    pub(super) crdt: [u16; 3],
    /// The controller reports access states, so a refusal for one is news of it.
    pub(super) ana: bool,
}

/// One command of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) sqe: Sqe,
    pub(super) direction: Direction,
    /// Offset of its data in the request's buffers.
    pub(super) data_offset: u32,
    /// Bytes of its data there.
    pub(super) data_len: u32,
    /// Blocks that it covers; `u32::MAX` when the request has none.
    pub(super) blocks: u32,
    /// Data that is not in the request's buffers: the range of a deallocation or of a copy.
    pub(super) range: Option<Range>,
}

/// Blocks that a command names in its data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Range {
    /// They are deallocated.
    Deallocate(DsmRange),
    /// They are copied.
    Copy(CopyRange),
}

impl Range {
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Range::Deallocate(range) => range.as_bytes(),
            Range::Copy(range) => range.as_bytes(),
        }
    }
}

impl Target {
    /// The command that continues `io` after `issued` blocks. Compare-and-write goes through [`Target::fused`] instead.
    #[inline]
    pub(super) fn step(&self, io: &Io, issued: u32) -> Step {
        match io.op {
            Op::Read => self.transfer(io, NvmOpcode::Read, issued),
            Op::Write => self.transfer(io, NvmOpcode::Write, issued),
            Op::Compare => self.transfer(io, NvmOpcode::Compare, issued),
            Op::WriteZeroes => self.cover(io, NvmOpcode::WriteZeroes, issued, self.zeroes_blocks_max),
            Op::Verify => self.cover(io, NvmOpcode::Verify, issued, self.verify_blocks_max),
            Op::WriteUncorrectable => {
                self.cover(io, NvmOpcode::WriteUncorrectable, issued, self.uncorrectable_blocks_max)
            }
            Op::Unmap => self.unmap(io, issued),
            Op::Copy => self.copy(io, issued),
            Op::ZoneAppend => self.transfer(io, NvmOpcode::ZoneAppend, issued),
            Op::ZoneReport => self.report(io),
            op => match zone_action(op) {
                Some(action) => {
                    self.whole(command::manage_zone(self.nsid, action, io.lba.0, io.flags.has(Flags::ALL_ZONES)))
                }
                None => self.whole(command::flush(self.nsid)),
            },
        }
    }

    /// Whether `io` takes more commands after `issued` blocks.
    #[inline]
    pub(super) fn is_issued(io: &Io, issued: u32) -> bool {
        issued >= io.nblocks.max(1)
    }

    fn blocks(&self, io: &Io, slba: u64, count: u32) -> BlockCommand {
        let has_fua = !matches!(io.op, Op::Compare | Op::WriteUncorrectable);
        BlockCommand { fua: io.flags.has(Flags::FUA) && has_fua, ..BlockCommand::plain(slba, count) }
    }

    #[inline]
    fn transfer(&self, io: &Io, opcode: NvmOpcode, issued: u32) -> Step {
        let count = (io.nblocks - issued).min(self.transfer_blocks_max);
        let sqe = command::blocks(opcode, self.nsid, &self.blocks(io, io.lba.0 + u64::from(issued), count));
        self.with_data(sqe, opcode == NvmOpcode::Read, issued << self.block_shift, count)
    }

    #[inline]
    fn with_data(&self, sqe: Sqe, is_read: bool, data_offset: u32, blocks: u32) -> Step {
        let data_len = blocks << self.block_shift;
        let direction = match is_read {
            true => Direction::ToHost,
            false if data_len <= self.capsule_data_max => Direction::InCapsule,
            false => Direction::ToController,
        };
        let sqe = match direction {
            Direction::InCapsule => command::with_capsule_data(sqe, data_len),
            _ => command::with_transport_data(sqe, data_len),
        };
        Step { sqe, direction, data_offset, data_len, blocks, range: None }
    }

    fn cover(&self, io: &Io, opcode: NvmOpcode, issued: u32, blocks_max: u32) -> Step {
        let count = (io.nblocks - issued).min(blocks_max);
        let sqe = command::blocks(opcode, self.nsid, &self.blocks(io, io.lba.0 + u64::from(issued), count));
        Step { sqe, direction: Direction::None, data_offset: 0, data_len: 0, blocks: count, range: None }
    }

    fn unmap(&self, io: &Io, issued: u32) -> Step {
        let count = (io.nblocks - issued).min(self.unmap_blocks_max);
        let range =
            DsmRange { attributes: 0.into(), block_count: count.into(), slba: (io.lba.0 + u64::from(issued)).into() };
        self.ranged(command::deallocate(self.nsid, 1), Range::Deallocate(range), count)
    }

    /// Source and destination do not overlap: their commands may be done in any order.
    fn copy(&self, io: &Io, issued: u32) -> Step {
        let count = (io.nblocks - issued).min(self.copy_blocks_max);
        let range = CopyRange::new(io.arg + u64::from(issued), count);
        let sqe = command::copy(self.nsid, io.lba.0 + u64::from(issued), io.flags.has(Flags::FUA));
        self.ranged(sqe, Range::Copy(range), count)
    }

    fn ranged(&self, sqe: Sqe, range: Range, blocks: u32) -> Step {
        let sqe = command::with_capsule_data(sqe, range.as_bytes().len() as u32);
        Step { sqe, direction: Direction::InCapsule, data_offset: 0, data_len: 0, blocks, range: Some(range) }
    }

    /// A command that is all of its request.
    fn whole(&self, sqe: Sqe) -> Step {
        Step { sqe, direction: Direction::None, data_offset: 0, data_len: 0, blocks: u32::MAX, range: None }
    }

    /// The buffers are those of the report as it comes.
    fn report(&self, io: &Io) -> Step {
        let data_len = sg_len(&io.bufs) as u32;
        let sqe = command::with_transport_data(command::report_zones(self.nsid, io.lba.0, data_len), data_len);
        Step { direction: Direction::ToHost, data_len, ..self.whole(sqe) }
    }

    /// The fused pair of a compare-and-write: the first half of the buffers is compared, the second written.
    pub(super) fn fused(&self, io: &Io) -> [Step; 2] {
        let half = |opcode, fused, index: u32| {
            let fua = opcode == NvmOpcode::Write && io.flags.has(Flags::FUA);
            let blocks = BlockCommand { fua, ..BlockCommand::plain(io.lba.0, io.nblocks) };
            let sqe = command::blocks(opcode, self.nsid, &blocks).with_fused(fused);
            self.with_data(sqe, false, (index * io.nblocks) << self.block_shift, io.nblocks)
        };
        [half(NvmOpcode::Compare, Fused::First, 0), half(NvmOpcode::Write, Fused::Second, 1)]
    }
}

/// What Zone Management Send does for an operation.
fn zone_action(op: Op) -> Option<SendAction> {
    Some(match op {
        Op::ZoneReset => SendAction::Reset,
        Op::ZoneOpen => SendAction::Open,
        Op::ZoneClose => SendAction::Close,
        Op::ZoneFinish => SendAction::Finish,
        Op::ZoneOffline => SendAction::Offline,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::copy::CopyCommand;
    use crate::spec::sgl::SglDescriptor;
    use bdev::Lba;

    const TARGET: Target = Target {
        nsid: 3,
        block_shift: 12,
        transfer_blocks_max: 32,
        zeroes_blocks_max: COMMAND_BLOCKS_MAX,
        verify_blocks_max: COMMAND_BLOCKS_MAX,
        uncorrectable_blocks_max: COMMAND_BLOCKS_MAX,
        copy_blocks_max: 256,
        unmap_blocks_max: 100_000,
        capsule_data_max: 8192,
        crdt: [0; 3],
        ana: false,
    };

    fn steps(io: &Io) -> Vec<Step> {
        let (mut steps, mut issued) = (Vec::new(), 0u32);
        while !Target::is_issued(io, issued) {
            let step = TARGET.step(io, issued);
            issued = issued.saturating_add(step.blocks);
            steps.push(step);
        }
        steps
    }

    #[test]
    fn large_transfers_are_split_by_mdts_without_gap_or_overlap() {
        let io = Io { nblocks: 70, ..Io::new(Op::Write, Lba(1000), 70) };
        let steps = steps(&io);
        let seen: Vec<_> = steps
            .iter()
            .map(|step| {
                let blocks = BlockCommand::of(&step.sqe);
                (blocks.slba, blocks.block_count, step.data_offset, step.data_len)
            })
            .collect();
        assert_eq!(seen, [(1000, 32, 0, 131_072), (1032, 32, 131_072, 131_072), (1064, 6, 262_144, 24_576)],);
        assert!(steps.iter().all(|step| step.direction == Direction::ToController));
    }

    #[test]
    fn small_writes_travel_in_the_capsule_and_reads_never_do() {
        let write = &steps(&Io::new(Op::Write, Lba(0), 2))[0];
        assert_eq!(write.direction, Direction::InCapsule);
        assert_eq!(write.sqe.sgl, SglDescriptor::in_capsule(0, 8192));
        assert_eq!(steps(&Io::new(Op::Read, Lba(0), 1))[0].direction, Direction::ToHost);
    }

    #[test]
    fn operations_without_data_cover_all_blocks() {
        let counts =
            [(Op::WriteZeroes, 4), (Op::Verify, 4), (Op::WriteUncorrectable, 4), (Op::Unmap, 2), (Op::Flush, 1)];
        for (op, pieces) in counts {
            let io = if op == Op::Flush { Io::flush() } else { Io::new(op, Lba(0), 200_000) };
            assert_eq!(steps(&io).len(), pieces, "{op:?}");
        }
    }

    #[test]
    fn a_copy_names_each_source_block_once_and_its_destination() {
        let io = Io { arg: 5000, flags: Flags::FUA, ..Io::new(Op::Copy, Lba(100), 600) };
        let seen: Vec<_> = steps(&io)
            .iter()
            .map(|step| {
                let (command, Some(Range::Copy(range))) = (CopyCommand::of(&step.sqe), step.range) else { panic!() };
                assert!(command.fua && command.range_count == 1 && step.direction == Direction::InCapsule);
                (command.sdlba, range.slba.get(), range.block_count())
            })
            .collect();
        assert_eq!(seen, [(100, 5000, 256), (356, 5256, 256), (612, 5512, 88)]);
    }

    #[test]
    fn a_fused_pair_covers_the_same_blocks_with_the_two_halves_of_the_data() {
        let [compare, write] = TARGET.fused(&Io::new(Op::CompareAndWrite, Lba(9), 4));
        assert_eq!((compare.sqe.fused(), write.sqe.fused()), (Fused::First, Fused::Second));
        assert_eq!((compare.data_offset, write.data_offset), (0, 16_384));
        assert_eq!(BlockCommand::of(&compare.sqe), BlockCommand::of(&write.sqe));
    }
}
