//! From requests to commands and back: which request goes out when, and what becomes of it when its commands have ended.
//!
//! A request goes out whole if there is room, in the order of acceptance, unless a fence holds it or its time has not come.

use bdev::{Lba, Op, Status};

use super::{Inner, Lane};
use crate::host::command;
use crate::initiator::command::Direction;
use crate::initiator::fence::Fence;
use crate::initiator::link::Link;
use crate::initiator::plan::{Step, Target};
use crate::initiator::request::{Outcome, Request, Requests, Why};
use crate::initiator::status::{block_status, is_of_path, is_retryable, retry_pause_ns};

impl Inner {
    pub(super) fn enqueue(&mut self, id: u32) {
        let request = self.requests.get_mut(id);
        if !std::mem::replace(&mut request.queued, true) {
            self.backlog.push_back(id);
        }
    }

    pub(super) fn dequeue(&mut self, id: u32) {
        let request = self.requests.get_mut(id);
        if std::mem::take(&mut request.queued) {
            self.backlog.retain(|other| *other != id);
            self.fenced.retain(|other| *other != id);
        }
    }

    /// Gives a block operation back that has no command under way.
    pub(super) fn give_back(&mut self, id: u32, why: Why) {
        self.dequeue(id);
        let history = self.requests.get(id).history();
        self.requests.finish(id, Outcome::Returned(why, history));
    }

    /// Whether block operations can be issued.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.link.is_some() && self.target.is_some()
    }

    /// Issues as much of the backlog as there is room for.
    pub(super) fn pump(&mut self, lane: &Lane) {
        let mut delayed = 0;
        while delayed < self.backlog.len() {
            let Some(&id) = self.backlog.get(delayed) else { return };
            if self.link.as_ref().is_none_or(|link| link.commands.room() == 0) {
                return;
            }
            if self.requests.get(id).not_before_ns > lane.reactor.now_ns() {
                delayed += 1;
                continue;
            }
            self.backlog.remove(delayed);
            self.requests.get_mut(id).queued = false;
            if !self.issue(id, lane) && !self.requests.get(id).queued {
                self.requests.get_mut(id).queued = true;
                self.backlog.insert(delayed, id);
                return;
            }
        }
    }

    /// Issues the commands of a request; false when some remain for later. A request that a fence holds is set aside.
    #[inline]
    pub(super) fn issue(&mut self, id: u32, lane: &Lane) -> bool {
        let Some(link) = &mut self.link else { return false };
        let request = self.requests.get(id);
        if request.raw.is_some() {
            return issue_raw(link, &mut self.requests, id, lane.reactor.now_ns());
        }
        let Some(target) = &self.target else { return false };
        if request.in_flight == 0 && request.io.op.modifies() {
            if lane.common.board.version() != self.fence_version {
                (self.fence_version, self.fence) = lane.common.board.read();
            }
            if self.fence.as_ref().is_some_and(|fence| is_held(fence, request, lane)) {
                self.requests.get_mut(id).queued = true;
                self.fenced.push(id);
                return false;
            }
        }
        let is_once = matches!(request.io.op, Op::CompareAndWrite | Op::ZoneAppend);
        if is_once && request.losses > 0 {
            // Rule 5: what it did, if anything, is final now.
            self.requests.finish(id, Outcome::Ended(Status::Aborted));
            return true;
        }
        if request.io.op == Op::CompareAndWrite {
            return issue_fused(link, &mut self.requests, target, id, lane.reactor.now_ns());
        }
        loop {
            let request = self.requests.get(id);
            if Target::is_issued(&request.io, request.issued) || !request.status.is_success() {
                return true;
            }
            if link.commands.room() == 0 {
                return false;
            }
            let step = target.step(&request.io, request.issued);
            link.issue(&mut self.requests, id, &step, lane.reactor.now_ns());
            let request = self.requests.get_mut(id);
            request.issued = request.issued.saturating_add(step.blocks);
        }
    }

    /// A command of request `id` has ended: so may the request.
    #[inline]
    pub(super) fn settle(&mut self, id: u32, lane: &Lane) {
        let request = self.requests.get_mut(id);
        if request.in_flight > 0 {
            return;
        }
        if request.raw.is_some() {
            let answer = request.answer;
            return self.requests.finish(id, Outcome::Answer(answer));
        }
        let status = request.status;
        if status.is_success() {
            if Target::is_issued(&request.io, request.issued) && !request.queued {
                if request.io.op == Op::ZoneAppend {
                    request.io.lba = Lba(request.answer.result.get());
                }
                self.requests.finish(id, Outcome::Ended(Status::Ok));
            }
            return;
        }
        let op = request.io.op;
        let is_of_state = status.is_ana_refusal() && self.target.is_some_and(|target| target.ana) && lane.policy.ana;
        if is_of_path(status, op) && (is_of_state || request.retries < lane.policy.retries_max) {
            request.retries += u8::from(!is_of_state);
            lane.count(|counts| counts.refused += 1);
            lane.note_refusal(status);
            let crdt = self.target.map_or([0; 3], |target| target.crdt);
            return self.give_back(id, Why::Refused { status, crdt });
        }
        if is_retryable(status, op) && request.retries < lane.policy.retries_max {
            let crdt = self.target.map_or([0; 3], |target| target.crdt);
            let pause_ns = retry_pause_ns(status, request.retries, crdt);
            request.retries += 1;
            request.issued = 0;
            request.status = crate::spec::Status::SUCCESS;
            request.not_before_ns = if pause_ns > 0 { lane.reactor.now_ns() + pause_ns } else { 0 };
            if pause_ns > 0 {
                lane.retry_later(request.not_before_ns);
            }
            return self.enqueue(id);
        }
        self.dequeue(id);
        self.requests.finish(id, Outcome::Ended(block_status(status, op)));
    }
}

fn is_held(fence: &Fence, request: &Request, lane: &Lane) -> bool {
    let is_same_again = !matches!(request.io.op, Op::CompareAndWrite | Op::ZoneAppend | Op::Copy);
    let is_replay = lane.policy.exclusive && request.losses > 0 && is_same_again;
    fence.holds(request.io.lba.0, request.io.end(), is_replay.then_some(request.owner))
}

fn issue_raw(link: &mut Link, requests: &mut Requests, id: u32, now_ns: u64) -> bool {
    if link.commands.room() == 0 {
        return false;
    }
    let request = requests.get(id);
    let raw = request.raw.as_ref().expect("the caller has looked");
    let data_len = reactor::buf::sg_len(&request.io.bufs) as u32;
    let sqe = match raw.direction {
        Direction::InCapsule => command::with_capsule_data(raw.sqe, data_len),
        _ => command::with_transport_data(raw.sqe, data_len),
    };
    let unlimited = raw.unlimited;
    let step = Step { sqe, direction: raw.direction, data_offset: 0, data_len, blocks: u32::MAX, range: None };
    let slot = link.issue(requests, id, &step, now_ns);
    link.commands.get_mut(slot).unlimited = unlimited;
    true
}

fn issue_fused(link: &mut Link, requests: &mut Requests, target: &Target, id: u32, now_ns: u64) -> bool {
    // The two halves must follow each other in the queue, so they are issued together or not yet.
    if link.commands.room() < 2 {
        return false;
    }
    for step in target.fused(&requests.get(id).io) {
        link.issue(requests, id, &step, now_ns);
    }
    requests.get_mut(id).issued = u32::MAX;
    true
}
