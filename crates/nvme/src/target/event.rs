//! Asynchronous event requests of one controller (Base 2.0, section 5.2).
//!
//! An event that was reported is masked until the host reads the log page that belongs to it; what happens meanwhile is in
//! that page. An event that happens while no request is outstanding waits, once. When nobody can read that page any more,
//! since the namespace that it is of is gone, the event is withdrawn, or the host would hear of no other of its kind.

use super::{ControllerHandle, TargetEvent};
use crate::spec::event::EventResult;
use crate::spec::{Cqe, Status};
use std::collections::VecDeque;
use zerocopy::byteorder::little_endian::U64;

/// Requests that a controller keeps (AERL is one less).
pub const AER_MAX: usize = 4;

/// Kinds of events that exist here: bound on what waits.
const KINDS: usize = 5;

#[derive(Debug, Default)]
pub(super) struct Events {
    requests: VecDeque<u16>,
    /// With what dword 1 says.
    waiting: Vec<(EventResult, u32)>,
    /// With what dword 1 said.
    masked: Vec<(EventResult, u32)>,
}

impl Events {
    /// A request for an event: answered at once if one waits, else kept.
    pub(super) fn request(&mut self, cid: u16) -> Option<Cqe> {
        if !self.waiting.is_empty() {
            let (event, parameter) = self.waiting.remove(0);
            return Some(self.report(cid, event, parameter));
        }
        if self.requests.len() >= AER_MAX {
            return Some(Cqe::new(cid, Status::ASYNC_EVENT_LIMIT_EXCEEDED.dnr()));
        }
        self.requests.push_back(cid);
        None
    }

    /// An event that the host has enabled.
    pub(super) fn push(&mut self, event: EventResult, controller: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        self.push_about(event, 0, controller, out);
    }

    /// An event whose dword 1 says what it is about. Another of its kind waits until the host has read the log page.
    pub(super) fn push_about(
        &mut self,
        event: EventResult,
        parameter: u32,
        controller: ControllerHandle,
        out: &mut VecDeque<TargetEvent>,
    ) {
        if self.masked.iter().chain(&self.waiting).any(|(other, _)| *other == event) {
            return;
        }
        match self.requests.pop_front() {
            Some(cid) => {
                let cqe = self.report(cid, event, parameter);
                out.push_back(TargetEvent::Complete { controller, cqe });
            }
            None => self.waiting.push((event, parameter)),
        }
        assert!(self.waiting.len() <= KINDS && self.masked.len() <= KINDS);
    }

    /// The host read a log page without asking to retain its event.
    pub(super) fn clear(&mut self, log_page: u8) {
        self.masked.retain(|(event, _)| event.log_page != log_page);
        self.waiting.retain(|(event, _)| event.log_page != log_page);
    }

    /// What this event was about is gone, and its log page with it: it waits no more, or masks others of its kind no more.
    pub(super) fn withdraw(&mut self, event: EventResult, parameter: u32) {
        self.masked.retain(|masked| *masked != (event, parameter));
        self.waiting.retain(|waiting| *waiting != (event, parameter));
    }

    /// Aborts the request with this command identifier.
    pub(super) fn abort(&mut self, cid: u16) -> Option<Cqe> {
        let at = self.requests.iter().position(|request| *request == cid)?;
        self.requests.remove(at);
        Some(Cqe::new(cid, Status::ABORT_REQUESTED))
    }

    /// Forgets everything: the controller was reset. Requests are completed, since the admin queue lives on and counts them.
    pub(super) fn reset(&mut self, controller: ControllerHandle, out: &mut VecDeque<TargetEvent>) {
        for cid in core::mem::take(self).requests {
            out.push_back(TargetEvent::Complete { controller, cqe: Cqe::new(cid, Status::ABORTED_SQ_DELETION) });
        }
    }

    fn report(&mut self, cid: u16, event: EventResult, parameter: u32) -> Cqe {
        self.masked.push((event, parameter));
        Cqe {
            result: U64::new(u64::from(event.to_dw0()) | u64::from(parameter) << 32),
            ..Cqe::new(cid, Status::SUCCESS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENT: EventResult = EventResult::NAMESPACE_CHANGED;

    fn push(events: &mut Events) -> Option<TargetEvent> {
        let mut out = VecDeque::new();
        events.push(EVENT, ControllerHandle(1), &mut out);
        out.pop_front()
    }

    #[test]
    fn an_event_answers_the_oldest_request_and_is_masked_until_its_log_is_read() {
        let mut events = Events::default();
        assert_eq!(events.request(1), None);
        assert_eq!(events.request(2), None);
        let Some(TargetEvent::Complete { cqe, .. }) = push(&mut events) else { panic!("answered") };
        assert_eq!((cqe.cid.get(), cqe.dw0()), (1, EVENT.to_dw0()));
        assert_eq!(push(&mut events), None, "masked");
        events.clear(0x70);
        assert_eq!(push(&mut events), None, "another log");
        events.clear(EVENT.log_page);
        assert!(push(&mut events).is_some());
    }

    #[test]
    fn an_event_is_withdrawn_with_what_it_is_about() {
        let zones = EventResult::ZONES_CHANGED;
        for is_requested in [true, false] {
            let (mut events, mut out) = (Events::default(), VecDeque::new());
            if is_requested {
                assert_eq!(events.request(1), None);
            }
            events.push_about(zones, 5, ControllerHandle(1), &mut out);
            assert_eq!(out.drain(..).count(), usize::from(is_requested));
            events.withdraw(zones, 4);
            events.push_about(zones, 6, ControllerHandle(1), &mut out);
            events.withdraw(zones, 5);
            assert_eq!(events.request(2), None, "the other one came while the first was masked or waited");
            events.push_about(zones, 6, ControllerHandle(1), &mut out);
            let Some(TargetEvent::Complete { cqe, .. }) = out.pop_front() else { panic!("answered") };
            assert_eq!((cqe.cid.get(), cqe.result.get() >> 32), (2, 6));
        }
    }

    #[test]
    fn an_event_without_request_waits_once() {
        let mut events = Events::default();
        assert_eq!(push(&mut events), None);
        assert_eq!(push(&mut events), None);
        assert_eq!(events.request(7).map(|cqe| cqe.dw0()), Some(EVENT.to_dw0()));
        assert_eq!(events.request(8), None);
    }

    #[test]
    fn requests_beyond_the_limit_are_refused_and_aborted_ones_make_room() {
        let mut events = Events::default();
        for cid in 0..AER_MAX as u16 {
            assert_eq!(events.request(cid), None);
        }
        let refused = events.request(99).expect("answered");
        assert_eq!(refused.status().kind(), Status::ASYNC_EVENT_LIMIT_EXCEEDED);
        assert_eq!(events.abort(99), None);
        assert_eq!(events.abort(2).map(|cqe| cqe.status()), Some(Status::ABORT_REQUESTED));
        assert_eq!(events.request(99), None);
    }
}
