//! Blocks that were declared unreadable.

use super::{Outcome, Subject};
use crate::io::{Flags, Io, Lba, Op, Status};

/// They fail every way of reading until they are written again; their neighbours do not.
pub(super) async fn marks_blocks_unreadable(t: &Subject) -> Outcome {
    if !t.can(&[Op::WriteUncorrectable]) || !t.stores() {
        return Ok(());
    }
    let end = t.info.blocks;
    t.expect(Io::new(Op::WriteUncorrectable, Lba(end), 1), Status::OutOfRange).await?;
    t.expect(Io::new(Op::WriteUncorrectable, Lba(0), 0), Status::Invalid).await?;
    for nblocks in t.sizes().into_iter().filter(|nblocks| u64::from(*nblocks) + 2 <= end) {
        for lba in t.places(u64::from(nblocks) + 2) {
            check(t, lba, nblocks).await?;
        }
    }
    Ok(())
}

/// Marks `nblocks` blocks behind block `lba`, with one more behind them.
async fn check(t: &Subject, lba: u64, nblocks: u32) -> Outcome {
    let (whole, first, last) = (nblocks + 2, lba + 1, lba + u64::from(nblocks));
    t.write(lba, whole, 21).await?;
    let mark = Io { flags: Flags::FUA, ..Io::new(Op::WriteUncorrectable, Lba(first), nblocks) };
    t.expect(mark, Status::Ok).await?;
    for at in [first, last] {
        let bufs = t.buffers(t.block_size()).await;
        t.expect(Io::read(Lba(at), 1, bufs), Status::ReadError).await?;
        if t.info.loans {
            t.expect(Io::read_loan(Lba(at), 1), Status::ReadError).await?;
        }
        for op in [Op::Compare, Op::CompareAndWrite].into_iter().filter(|op| t.can(&[*op])) {
            let bytes = t.block_size() * if op == Op::Compare { 1 } else { 2 };
            let bufs = t.buffers(bytes).await;
            t.expect(Io { bufs, ..Io::new(op, Lba(at), 1) }, Status::ReadError).await?;
        }
        if t.can(&[Op::Verify]) {
            t.expect(Io::new(Op::Verify, Lba(at), 1), Status::ReadError).await?;
        }
        if t.can(&[Op::Copy]) {
            t.expect(Io { arg: at, ..Io::new(Op::Copy, Lba(lba), 1) }, Status::ReadError).await?;
        }
    }
    t.expect(Io::flush(), Status::Ok).await?;
    let bufs = t.buffers(whole as usize * t.block_size()).await;
    t.expect(Io::read(Lba(lba), whole, bufs), Status::ReadError).await?;
    t.expect_version(lba, 1, 21, "before what was marked").await?;
    t.expect_version(last + 1, 1, 21, "behind what was marked").await?;
    // Twice is as once, and what was marked is written like anything else.
    t.expect(Io::new(Op::WriteUncorrectable, Lba(first), nblocks), Status::Ok).await?;
    t.write(first, 1, 22).await?;
    t.expect_version(first, 1, 22, "written again").await?;
    if nblocks > 1 {
        let bufs = t.buffers(t.block_size()).await;
        t.expect(Io::read(Lba(last), 1, bufs), Status::ReadError).await?;
        if t.can(&[Op::WriteZeroes]) {
            t.expect(Io::new(Op::WriteZeroes, Lba(first), nblocks), Status::Ok).await?;
            t.expect_version(first, nblocks, 0, "zeroed").await?;
        }
    }
    t.write(lba, whole, 23).await?;
    t.expect_version(lba, whole, 23, "all written again").await
}
