//! Operations that no single kind of command does: a copy onto itself, and blocks that are durably unreadable.

use bdev::steps::{self, Medium};
use bdev::{Done, Flags, Io, Op, Status};
use reactor::Reactor;
use std::rc::Rc;

use super::multipath::Way;

/// Whether `io` takes commands one after the other.
#[inline]
pub(super) fn takes_several(io: &Io) -> bool {
    match io.op {
        Op::Copy => overlaps(io),
        Op::WriteUncorrectable => io.flags.has(Flags::FUA),
        _ => false,
    }
}

/// Whether the source of a copy overlaps its destination: what Copy does then is not said (NVM Command Set 1.0, section
/// 3.2.2), and a second attempt would read what the first wrote.
fn overlaps(io: &Io) -> bool {
    io.lba.0.abs_diff(io.arg) < u64::from(io.nblocks)
}

/// Carries it out; it has been checked.
pub(super) async fn carry_out(way: Rc<Way>, io: Io, block_size: u32) -> Done {
    let medium = Blocks { way, block_size };
    let status = match io.op {
        Op::Copy => steps::copy(&medium, &io).await,
        _ => medium.mark_durably(&io).await,
    };
    io.done(status.err().unwrap_or(Status::Ok))
}

/// The namespace, by reads and writes.
struct Blocks {
    way: Rc<Way>,
    block_size: u32,
}

impl Blocks {
    /// Write Uncorrectable has no forced unit access: a flush follows.
    async fn mark_durably(&self, io: &Io) -> Result<(), Status> {
        let flags = Flags(io.flags.0 & !Flags::FUA.0);
        let mark = Io { flags, tag: io.tag, ..Io::new(io.op, io.lba, io.nblocks) };
        self.transfer(mark).await.status.check()?;
        self.transfer(Io { tag: io.tag, ..Io::flush() }).await.status.check()
    }
}

impl Medium for Blocks {
    fn reactor(&self) -> &Rc<Reactor> {
        self.way.reactor()
    }

    fn block_size(&self) -> u32 {
        self.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        self.way.submit(io).await
    }
}
