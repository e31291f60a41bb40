//! What a device does not do itself, or not in one piece.
//!
//! Hosts are told once per controller what commands there are, whatever device is behind a namespace. So Verify, Compare and
//! Write Zeroes are made of reads and writes where a device lacks them, and operations above a device's limit are made of
//! smaller ones, with a turn for others between them: one command does not stop a reactor for longer than a piece takes.
//!
//! Not here: compare-and-write, which only the device can make atomic.

use super::local::Namespace;
use bdev::{Done, Io, Lba, Op, Status};
use reactor::buf::{sg_append, sg_split_off};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;

/// Bytes read or written at once for a command that the device lacks: at most one such buffer per command.
const SCRATCH_BYTES: usize = 64 << 10;

/// Carries out an operation piece by piece, as long as it may go on. Its buffers come back with it.
pub(super) async fn carry_out(
    reactor: &Rc<Reactor>,
    namespace: &Namespace,
    mut io: Io,
    may_go_on: impl Fn() -> Result<(), Status>,
) -> Done {
    let block_shift = namespace.model.block_shift;
    let is_native = namespace.ops.contains(io.op);
    if !is_native && !matches!(io.op, Op::Verify | Op::Compare | Op::WriteZeroes) {
        return io.done(Status::Unsupported);
    }
    let scratch_blocks = (SCRATCH_BYTES >> block_shift).max(1) as u32;
    let is_bare = is_native && matches!(io.op, Op::Unmap | Op::WriteZeroes);
    let step = if is_native { namespace.max_io_blocks } else { scratch_blocks.min(namespace.max_io_blocks) };
    let carries_data = !io.bufs.is_empty();
    let mut rest = std::mem::take(&mut io.bufs);
    let mut scratch = if is_native { SgList::new() } else { scratch(reactor, (step as usize) << block_shift) };
    let (mut at, mut status) = (0, Status::Ok);
    while at < io.nblocks && status.is_ok() {
        if let Err(refused) = may_go_on() {
            status = refused;
            break;
        }
        let (lba, left) = (Lba(io.lba.0 + u64::from(at)), io.nblocks - at);
        let count =
            if is_bare { bdev::steps::bare_blocks(1 << block_shift, lba.0, left.into()) } else { step.min(left) };
        let bytes = (count as usize) << block_shift;
        let tail = if carries_data { sg_split_off(&mut rest, bytes) } else { SgList::new() };
        let bufs = std::mem::replace(&mut rest, tail);
        if is_native {
            let piece = Io { flags: io.flags, tag: io.tag, bufs, ..Io::new(io.op, lba, count) };
            let done = namespace.channel.submit(piece).await;
            status = done.status;
            sg_append(&mut io.bufs, done.io.bufs);
        } else {
            let unused = sg_split_off(&mut scratch, bytes);
            let op = if io.op == Op::WriteZeroes { Op::Write } else { Op::Read };
            let piece = Io { flags: io.flags, tag: io.tag, bufs: scratch, ..Io::new(op, lba, count) };
            let done = namespace.channel.submit(piece).await;
            status = done.status;
            scratch = done.io.bufs;
            if status.is_ok() && io.op == Op::Compare && !equal(&bufs, &scratch) {
                status = Status::Miscompare;
            }
            sg_append(&mut scratch, unused);
            sg_append(&mut io.bufs, bufs);
        }
        at += count;
        reactor.yield_now().await;
    }
    sg_append(&mut io.bufs, rest);
    io.done(status)
}

/// Zeroes from the pool, or from the heap when it is dry: waiting for memory while holding some could be for ever.
fn scratch(reactor: &Rc<Reactor>, bytes: usize) -> SgList {
    let mut buf = reactor.pool().try_alloc(bytes).unwrap_or_else(|| Buf::from_vec(vec![0; bytes]));
    buf.as_mut_slice().fill(0);
    SgList::from_iter([buf])
}

fn equal(left: &[Buf], right: &[Buf]) -> bool {
    let bytes = |list: &[Buf]| reactor::buf::sg_len(list);
    let (mut left, mut right) = (left.iter(), right.iter());
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    debug_assert_eq!(bytes(left.as_slice()), bytes(right.as_slice()));
    loop {
        while a.is_empty() {
            match left.next() {
                Some(buf) => a = buf.as_slice(),
                None => return true,
            }
        }
        while b.is_empty() {
            match right.next() {
                Some(buf) => b = buf.as_slice(),
                None => return true,
            }
        }
        let len = a.len().min(b.len());
        if a[..len] != b[..len] {
            return false;
        }
        (a, b) = (&a[len..], &b[len..]);
    }
}
