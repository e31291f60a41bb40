//! Fused compare-and-write on a connection: two commands, each with data of its own, carried out as one.
//!
//! [`FusedSlot`](crate::target::queue::FusedSlot) pairs the commands as they arrive; here their data comes together, in any
//! order, and the pair goes to the device as one operation. Whatever happens to one half, both are answered exactly once:
//! a half is answered early only by taking its pair out of the list, and a half without a pair is never answered here.

use super::connection::Connection;
use super::execute::status_for_host;
use super::local::Namespace;
use crate::spec::sqe::Fused;
use crate::spec::{Sqe, Status};
use crate::target::io::IoCommand;
use crate::target::queue::Sequence;
use bdev::{Flags, Io, Lba, Op};
use reactor::buf::sg_append;
use reactor::{Buf, SgList};
use std::rc::Rc;

/// The data of a half, and how much of it counts against the connection.
struct Half {
    buf: Buf,
    share: usize,
}

/// A pair whose commands or data are not all here yet.
pub(super) struct FusedPair {
    compare: IoCommand,
    compare_data: Option<Half>,
    write: Option<IoCommand>,
    write_data: Option<Half>,
}

impl FusedPair {
    fn has(&self, cid: u16) -> bool {
        self.compare.cid == cid || self.write.is_some_and(|write| write.cid == cid)
    }

    fn share(&self) -> usize {
        [&self.compare_data, &self.write_data].into_iter().flatten().map(|half| half.share).sum()
    }
}

impl Connection {
    /// Whether the next command must be a second half.
    #[inline]
    pub(super) fn fused_waiting(&self) -> bool {
        self.fused_slot.borrow().is_waiting()
    }

    /// Notes a command's place among fused pairs when it arrives, before its data.
    ///
    /// # Errors
    /// The status to answer this command with; the other half has been answered.
    pub(super) fn fused_arrival(self: &Rc<Self>, command: &IoCommand) -> Result<(), Status> {
        let (sequence, missed) = self.fused_slot.borrow_mut().next(*command);
        if let Some(cid) = missed {
            self.end_half(cid, Status::ABORTED_MISSING_FUSED.dnr());
        }
        match sequence {
            Sequence::Single(_) => Ok(()),
            Sequence::Wait => {
                if self.is_in_pair(command.cid) {
                    self.fused_slot.borrow_mut().interrupt();
                    return Err(Status::COMMAND_ID_CONFLICT.dnr());
                }
                let pair = FusedPair { compare: *command, compare_data: None, write: None, write_data: None };
                self.fused.borrow_mut().push(pair);
                Ok(())
            }
            Sequence::CompareAndWrite { compare, write } => {
                let mut pairs = self.fused.borrow_mut();
                // The pair is gone when the first half's data was damaged: both halves fail.
                let pair = pairs.iter_mut().find(|pair| pair.compare.cid == compare.cid);
                pair.ok_or(Status::ABORTED_FAILED_FUSED.dnr())?.write = Some(write);
                Ok(())
            }
            Sequence::Refuse(status) => Err(status),
            Sequence::RefuseBoth { first, status } => {
                self.end_half(first, status);
                Err(status)
            }
        }
    }

    /// A command was refused on arrival with nothing known about it but its entry: a first half that waits for the next
    /// command waits in vain.
    #[cold]
    pub(super) fn fused_interrupted(self: &Rc<Self>, sqe: &Sqe) {
        let Some(first) = self.fused_slot.borrow_mut().interrupt() else { return };
        let is_second = sqe.fused() == Fused::Second;
        let status = if is_second { Status::ABORTED_FAILED_FUSED } else { Status::ABORTED_MISSING_FUSED };
        self.end_half(first, status.dnr());
    }

    /// Answers a first half whose pair will not be, unless it has been answered.
    fn end_half(self: &Rc<Self>, first: u16, status: Status) {
        if self.forget_pair(first).is_some() {
            self.answer_status(first, status);
        }
    }

    pub(super) fn is_in_pair(&self, cid: u16) -> bool {
        self.fused.borrow().iter().any(|pair| pair.has(cid))
    }

    fn forget_pair(&self, cid: u16) -> Option<FusedPair> {
        let mut pairs = self.fused.borrow_mut();
        let index = pairs.iter().position(|pair| pair.has(cid))?;
        let pair = pairs.remove(index);
        self.release_share(pair.share());
        Some(pair)
    }

    /// Ends all pairs: no more comes.
    pub(super) fn drop_pairs(self: &Rc<Self>) {
        for pair in self.fused.take() {
            self.release_share(pair.share());
            for command in [Some(pair.compare), pair.write].into_iter().flatten() {
                self.answer_status(command.cid, Status::ABORTED_SQ_DELETION);
            }
        }
    }

    /// The data of a half is complete. The share is given back with the pair.
    pub(super) fn fused_data(self: &Rc<Self>, cid: u16, namespace: Rc<Namespace>, buf: Buf, share: usize) {
        let mut pairs = self.fused.borrow_mut();
        let Some(index) = pairs.iter().position(|pair| pair.has(cid)) else {
            // A half without a pair was answered when its pair broke.
            return self.release_share(share);
        };
        let pair = &mut pairs[index];
        let place = if pair.compare.cid == cid { &mut pair.compare_data } else { &mut pair.write_data };
        if let Some(twice) = place.replace(Half { buf, share }) {
            self.release_share(twice.share);
        }
        if pair.compare_data.is_some() && pair.write_data.is_some() {
            let pair = pairs.remove(index);
            drop(pairs);
            self.compare_and_write(namespace, pair);
        }
    }

    /// One half of a pair failed before the device saw it: answers both, and returns true. False when `cid` is no half of a
    /// pair.
    pub(super) fn fused_failed(self: &Rc<Self>, cid: u16, status: Status) -> bool {
        let Some(pair) = self.forget_pair(cid) else { return false };
        for command in [Some(pair.compare), pair.write].into_iter().flatten() {
            let status = if command.cid == cid { status } else { Status::ABORTED_FAILED_FUSED.dnr() };
            self.answer_status(command.cid, status);
        }
        true
    }

    fn compare_and_write(self: &Rc<Self>, namespace: Rc<Namespace>, pair: FusedPair) {
        let share = pair.share();
        let FusedPair { compare, compare_data: Some(old), write: Some(write), write_data: Some(new) } = pair else {
            unreachable!("data of a second half comes after the half itself");
        };
        let answer = move |this: &Rc<Self>, first, second| {
            this.release_share(share);
            this.answer_status(compare.cid, first);
            this.answer_status(write.cid, second);
        };
        let failed = Status::ABORTED_FAILED_FUSED.dnr();
        if write.block_count > namespace.compare_and_write_blocks {
            return answer(self, Status::ATOMIC_WRITE_UNIT_EXCEEDED.dnr(), failed);
        }
        // Its halves may have waited for each other.
        if let Err(status) = self.admit_again(&write) {
            return answer(self, status, failed);
        }
        let mut bufs = SgList::from_iter([old.buf]);
        sg_append(&mut bufs, SgList::from_iter([new.buf]));
        let flags = if write.fua || self.write_through.get() { Flags::FUA } else { Flags::NONE };
        let tag = self.tag(compare.cid);
        let io = Io { bufs, flags, tag, ..Io::new(Op::CompareAndWrite, Lba(write.slba), write.block_count) };
        let (this, flight) = (self.clone(), self.take_off());
        self.reactor.spawn_eager(async move {
            let done = namespace.channel.submit(io).await;
            this.land(flight);
            match done.status {
                bdev::Status::Ok => answer(&this, Status::SUCCESS, Status::SUCCESS),
                other => answer(&this, status_for_host(other, Op::Compare), failed),
            }
        });
    }
}
