//! Passing an operation on to one child, or in parts to several: what stripe and linear have in common.

use crate::device::Channel;
use crate::io::{Done, Flags, Io, Lba, Op, Status};
use crate::parts::Parts;
use crate::steps;
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;

/// The whole operation, at another address of one child.
#[inline]
pub(crate) fn pass(child: &dyn Channel, at: u64, mut io: Io) -> IoFuture<'_, Done> {
    let lba = std::mem::replace(&mut io.lba, Lba(at));
    match child.submit(io).try_ready() {
        Ok(mut done) => {
            done.io.lba = lba;
            IoFuture::ready(done)
        }
        Err(future) => IoFuture::new(async move {
            let mut done = future.await;
            done.io.lba = lba;
            done
        }),
    }
}

/// The operation in as many parts as its range has runs; `place` gives the child, its block, and how many blocks follow
/// on there.
pub(crate) async fn runs(
    reactor: &Rc<Reactor>,
    children: &[Rc<dyn Channel>],
    block_size: u32,
    mut io: Io,
    place: impl Fn(u64) -> (usize, u64, u64),
) -> Done {
    if io.op == Op::Read && io.bufs.is_empty() && !fits_two(&io, &place) {
        // More lent parts than a buffer list holds in place: one buffer of our own, split and joined again, is cheaper.
        if let Err(status) = steps::provide(reactor, &mut io, block_size).await {
            return io.done(status);
        }
    }
    let mut parts = Parts::default();
    let (mut lba, mut rest) = (io.lba.0, std::mem::take(&mut io.bufs));
    while lba < io.end() {
        let (child, at, run) = place(lba);
        let count = run.min(io.end() - lba);
        let bytes = count as usize * block_size as usize;
        let tail = if rest.is_empty() { SgList::new() } else { reactor::buf::sg_split_off(&mut rest, bytes) };
        let bufs = std::mem::replace(&mut rest, tail);
        parts.push(children[child].submit(part_of(&io, at, count as u32, bufs)));
        lba += count;
    }
    gather(io, parts).await
}

/// Whether the range has at most two runs.
fn fits_two(io: &Io, place: &impl Fn(u64) -> (usize, u64, u64)) -> bool {
    let second = io.lba.0 + place(io.lba.0).2;
    second >= io.end() || second + place(second).2 >= io.end()
}

/// One part of an operation. Atomic operations are never split, so a part is not one.
pub(crate) fn part_of(io: &Io, at: u64, nblocks: u32, bufs: SgList) -> Io {
    let flags = Flags(io.flags.0 & !Flags::ATOMIC.0);
    let arg = if io.op == Op::Read { io.arg } else { 0 };
    Io { op: io.op, flags, stream: io.stream, nblocks, lba: Lba(at), arg, tag: io.tag, bufs }
}

/// Puts the buffers together again; the first failure in block order is the status.
pub(crate) async fn gather(mut io: Io, parts: Parts<'_>) -> Done {
    let mut status = Status::Ok;
    for done in parts.join().await {
        reactor::buf::sg_append(&mut io.bufs, done.io.bufs);
        if status.is_ok() {
            status = done.status;
        }
    }
    // A mirror below leaves parts shared that nobody else looks at any more; joined again, they are exclusive.
    io.bufs.iter_mut().for_each(|buf| {
        buf.try_unshare();
    });
    io.done(status)
}
