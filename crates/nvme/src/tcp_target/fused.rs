//! Fused compare-and-write on a connection: two commands, each with data of its own, carried out as one.
//!
//! [`FusedSlot`](crate::target::queue::FusedSlot) pairs the commands as they arrive; here their data comes together, in any
//! order, and the pair goes to the device as one operation.

use super::connection::Connection;
use super::execute::status_for_host;
use super::local::Namespace;
use crate::spec::Status;
use crate::target::io::IoCommand;
use crate::target::queue::Sequence;
use bdev::{Flags, Io, Lba, Op};
use reactor::buf::sg_append;
use reactor::{Buf, SgList};
use std::rc::Rc;

/// A pair whose commands or data are not all here yet.
pub(super) struct FusedPair {
    compare: IoCommand,
    compare_data: Option<Buf>,
    write: Option<IoCommand>,
    write_data: Option<Buf>,
}

impl FusedPair {
    fn has(&self, cid: u16) -> bool {
        self.compare.cid == cid || self.write.is_some_and(|write| write.cid == cid)
    }
}

impl Connection {
    /// Whether the next command must be a second half.
    #[inline]
    pub(super) fn fused_waiting(&self) -> bool {
        self.fused_slot.borrow().is_waiting()
    }

    /// Notes a command's place among fused pairs when it arrives, before its data; false when it has been answered.
    pub(super) fn fused_arrival(self: &Rc<Self>, command: &IoCommand) -> Result<bool, Status> {
        let (sequence, missed) = self.fused_slot.borrow_mut().next(*command);
        if let Some(cid) = missed {
            self.forget_pair(cid);
            self.answer_status(cid, Status::ABORTED_MISSING_FUSED.dnr());
        }
        match sequence {
            Sequence::Single(_) => Ok(true),
            Sequence::Wait => {
                let pair = FusedPair { compare: *command, compare_data: None, write: None, write_data: None };
                self.fused.borrow_mut().push(pair);
                Ok(true)
            }
            Sequence::CompareAndWrite { compare, write } => {
                let mut pairs = self.fused.borrow_mut();
                // The pair is gone when the first half's data was damaged: both halves fail.
                let pair = pairs.iter_mut().find(|pair| pair.compare.cid == compare.cid);
                pair.ok_or(Status::ABORTED_FAILED_FUSED)?.write = Some(write);
                Ok(true)
            }
            Sequence::Refuse(status) => Err(status),
            Sequence::RefuseBoth { first, status } => {
                self.forget_pair(first);
                self.answer_status(first, status);
                Err(status)
            }
        }
    }

    fn forget_pair(&self, cid: u16) -> Option<FusedPair> {
        let mut pairs = self.fused.borrow_mut();
        let index = pairs.iter().position(|pair| pair.has(cid))?;
        Some(pairs.remove(index))
    }

    /// The data of a half is complete.
    pub(super) fn fused_data(self: &Rc<Self>, cid: u16, namespace: Rc<Namespace>, buf: Buf) {
        let mut pairs = self.fused.borrow_mut();
        // A half without a pair was answered when its pair broke.
        let Some(index) = pairs.iter().position(|pair| pair.has(cid)) else { return };
        let pair = &mut pairs[index];
        if pair.compare.cid == cid {
            pair.compare_data = Some(buf);
        } else {
            pair.write_data = Some(buf);
        }
        if pair.compare_data.is_some() && pair.write_data.is_some() {
            let pair = pairs.remove(index);
            drop(pairs);
            self.compare_and_write(namespace, pair);
        }
    }

    /// The data of command `cid` was damaged. When it is half of a pair both halves are answered, and this returns true.
    pub(super) fn fused_failed(self: &Rc<Self>, cid: u16) -> bool {
        let Some(pair) = self.forget_pair(cid) else { return false };
        for command in [Some(pair.compare), pair.write].into_iter().flatten() {
            let damaged = command.cid == cid;
            let status = if damaged { Status::TRANSIENT_TRANSPORT_ERROR } else { Status::ABORTED_FAILED_FUSED };
            self.answer_status(command.cid, status);
        }
        true
    }

    fn compare_and_write(self: &Rc<Self>, namespace: Rc<Namespace>, pair: FusedPair) {
        let FusedPair { compare, compare_data, write: Some(write), write_data } = pair else {
            unreachable!("data of a second half comes after the half itself");
        };
        let mut bufs: SgList = compare_data.into_iter().collect();
        sg_append(&mut bufs, write_data.into_iter().collect());
        let flags = if write.fua || self.write_through.get() { Flags::FUA } else { Flags::NONE };
        let io = Io { bufs, flags, ..Io::new(Op::CompareAndWrite, Lba(write.slba), write.block_count) };
        let this = self.clone();
        self.reactor.spawn_eager(async move {
            let done = namespace.channel.submit(io).await;
            let failed = Status::ABORTED_FAILED_FUSED.dnr();
            let (first, second) = match done.status {
                bdev::Status::Ok => (Status::SUCCESS, Status::SUCCESS),
                other => (status_for_host(other, Op::Compare), failed),
            };
            this.answer_status(compare.cid, first);
            this.answer_status(write.cid, second);
        });
    }
}
