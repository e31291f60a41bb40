//! One queue of a connection: how many commands it holds, what completions say about it, fused pairs.

use super::io::{IoCommand, IoOp};
use crate::spec::sqe::Fused;
use crate::spec::{Cqe, Sqe, Status};
use crate::tcp::Fault;

/// Checks the flags of a command that is not a Fabrics command (Base 2.0, Common Command Format; section 3.3.2.1: fabrics use SGLs).
pub fn check_flags(sqe: &Sqe, fused_allowed: bool) -> Result<(), Status> {
    let fused_ok = match sqe.fused() {
        Fused::Normal => true,
        Fused::First | Fused::Second => fused_allowed,
        Fused::Reserved => false,
    };
    if sqe.psdt() != 1 || !fused_ok {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(())
}

/// Bookkeeping of a submission queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    qid: u16,
    entries: u16,
    flow_control: bool,
    head: u16,
    outstanding: u16,
}

impl Queue {
    /// A queue as Connect made it. The Connect command itself counts as its first.
    pub fn new(qid: u16, entries: u16, flow_control: bool) -> Self {
        assert!(entries >= 2);
        Queue { qid, entries, flow_control, head: 1 % entries, outstanding: 0 }
    }

    /// Its number.
    pub const fn qid(&self) -> u16 {
        self.qid
    }

    /// Commands that were taken and not yet completed.
    pub const fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Takes a command. More of them than the queue has entries is a breach for which the transport has no better word than
    /// sequence error.
    pub fn submit(&mut self) -> Result<(), Fault> {
        if self.outstanding == self.entries {
            return Err(Fault::Sequence);
        }
        self.outstanding += 1;
        self.head = if self.head + 1 == self.entries { 0 } else { self.head + 1 };
        Ok(())
    }

    /// Completes a command: stamps the queue head.
    pub fn complete(&mut self, cqe: &mut Cqe) {
        assert!(self.outstanding > 0, "a completion answers a command");
        self.outstanding -= 1;
        cqe.sqhd.set(if self.flow_control { self.head } else { 0xffff });
    }
}

/// What to do with a command, seen in the order of its queue (Base 2.0, section 3.4.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sequence {
    /// Run it on its own.
    Single(IoCommand),
    /// It is the first of a pair: wait for the second.
    Wait,
    /// Run the two as one: compare, and write if equal.
    CompareAndWrite {
        /// The compare.
        compare: IoCommand,
        /// The write.
        write: IoCommand,
    },
    /// Complete it with this status.
    Refuse(Status),
    /// Complete both halves with this status.
    RefuseBoth {
        /// Command identifier of the first.
        first: u16,
        /// The status.
        status: Status,
    },
}

/// The half of a fused pair that waits for the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct FusedSlot {
    first: Option<IoCommand>,
}

impl FusedSlot {
    /// Whether a first half waits.
    pub const fn is_waiting(&self) -> bool {
        self.first.is_some()
    }

    /// The first half that waits.
    pub fn waiting_cid(&self) -> Option<u16> {
        self.first.map(|first| first.cid)
    }

    /// Decides about the next command of the queue. The second value is a command that waited in vain: complete it with
    /// Aborted: Missing Fused Command.
    pub fn next(&mut self, command: IoCommand) -> (Sequence, Option<u16>) {
        let first = self.first.take();
        match (command.fused, first) {
            (Fused::Second, None) => (Sequence::Refuse(Status::ABORTED_MISSING_FUSED.dnr()), None),
            (Fused::Second, Some(first)) => (pair(first, command), None),
            (_, first) => {
                let missed = first.map(|first| first.cid);
                (self.not_second(command), missed)
            }
        }
    }

    /// A command of the queue was refused before it came this far, or is none of a pair: whoever waited waits in vain.
    pub fn interrupt(&mut self) -> Option<u16> {
        self.first.take().map(|first| first.cid)
    }

    fn not_second(&mut self, command: IoCommand) -> Sequence {
        match (command.fused, command.op) {
            (Fused::First, IoOp::Compare) => {
                self.first = Some(command);
                Sequence::Wait
            }
            (Fused::First, _) => Sequence::Refuse(Status::INVALID_FIELD.dnr()),
            _ => Sequence::Single(command),
        }
    }
}

/// Compare and Write over the same blocks is the only pair there is (NVM Command Set 1.0, section 2.1.2).
fn pair(compare: IoCommand, write: IoCommand) -> Sequence {
    let same_blocks = (compare.nsid, compare.slba, compare.block_count) == (write.nsid, write.slba, write.block_count);
    if write.op != IoOp::Write || !same_blocks {
        return Sequence::RefuseBoth { first: compare.cid, status: Status::INVALID_FIELD.dnr() };
    }
    if write.cid == compare.cid {
        return Sequence::RefuseBoth { first: compare.cid, status: Status::COMMAND_ID_CONFLICT.dnr() };
    }
    Sequence::CompareAndWrite { compare, write }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(cid: u16, op: IoOp, fused: Fused) -> IoCommand {
        IoCommand { cid, op, nsid: 1, slba: 8, block_count: 2, fua: false, data_len: 1024, fused }
    }

    #[test]
    fn the_head_wraps_at_the_queue_size_and_is_hidden_without_flow_control() {
        let mut queue = Queue::new(1, 3, true);
        let mut heads = Vec::new();
        for cid in 0..5 {
            queue.submit().expect("room");
            let mut cqe = Cqe::success(cid, 0);
            queue.complete(&mut cqe);
            heads.push(cqe.sqhd.get());
        }
        assert_eq!(heads, [2, 0, 1, 2, 0]);
        let mut queue = Queue::new(1, 3, false);
        queue.submit().expect("room");
        let mut cqe = Cqe::success(1, 0);
        queue.complete(&mut cqe);
        assert_eq!(cqe.sqhd.get(), 0xffff);
    }

    #[test]
    fn a_host_that_overruns_its_queue_is_cut_off() {
        let mut queue = Queue::new(1, 4, true);
        for _ in 0..4 {
            queue.submit().expect("Linux keeps as many commands outstanding as the queue has entries");
        }
        assert_eq!(queue.submit(), Err(Fault::Sequence));
        queue.complete(&mut Cqe::success(0, 0));
        assert!(queue.submit().is_ok());
    }

    #[test]
    fn a_compare_and_its_write_run_as_one() {
        let mut slot = FusedSlot::default();
        let (compare, write) = (command(1, IoOp::Compare, Fused::First), command(2, IoOp::Write, Fused::Second));
        assert_eq!(slot.next(compare), (Sequence::Wait, None));
        assert_eq!(slot.next(write), (Sequence::CompareAndWrite { compare, write }, None));
        assert!(!slot.is_waiting());
    }

    #[test]
    fn a_half_without_its_other_half_is_aborted() {
        let mut slot = FusedSlot::default();
        let missing = Sequence::Refuse(Status::ABORTED_MISSING_FUSED.dnr());
        assert_eq!(slot.next(command(1, IoOp::Write, Fused::Second)), (missing, None));
        slot.next(command(2, IoOp::Compare, Fused::First));
        let read = command(3, IoOp::Read, Fused::Normal);
        assert_eq!(slot.next(read), (Sequence::Single(read), Some(2)));
        slot.next(command(4, IoOp::Compare, Fused::First));
        assert_eq!(slot.next(command(5, IoOp::Compare, Fused::First)), (Sequence::Wait, Some(4)));
        assert_eq!(slot.interrupt(), Some(5));
    }

    #[test]
    fn pairs_that_do_not_fit_are_refused_together() {
        for write in [
            command(2, IoOp::Read, Fused::Second),
            IoCommand { slba: 9, ..command(2, IoOp::Write, Fused::Second) },
            IoCommand { block_count: 1, ..command(2, IoOp::Write, Fused::Second) },
            IoCommand { nsid: 2, ..command(2, IoOp::Write, Fused::Second) },
        ] {
            let mut slot = FusedSlot::default();
            slot.next(command(1, IoOp::Compare, Fused::First));
            let refused = Sequence::RefuseBoth { first: 1, status: Status::INVALID_FIELD.dnr() };
            assert_eq!(slot.next(write), (refused, None));
        }
        let mut slot = FusedSlot::default();
        let refused = Sequence::Refuse(Status::INVALID_FIELD.dnr());
        assert_eq!(slot.next(command(1, IoOp::Write, Fused::First)), (refused, None));
    }
}
