//! What becomes of groups: delivered in order, or taken back when a write failed.

use super::block::InFlight;
use super::{Appended, Log, Placed};
use crate::format::record::Record;
use bdev::Status;
use reactor::buf::sg_len;
use reactor::{Buf, SgList};
use std::rc::Rc;

impl Log {
    /// The write of group `number` ended.
    pub(super) fn group_done(self: &Rc<Self>, number: u64, status: Status, bufs: SgList) {
        {
            let state = &mut *self.state.borrow_mut();
            let index = (number - state.block.first_group) as usize;
            let group = &mut state.block.in_flight[index];
            group.outcome = Some(status);
            let list = give_back(group, bufs);
            state.block.recycle(index, list, self.medium.reactor());
            if !status.is_ok() {
                state.open.as_mut().expect("groups under way belong to the current segment").failed = true;
            }
        }
        while let Some(group) = self.take_delivered() {
            self.deliver(group);
        }
        self.take_back();
        self.arm();
        self.changed.notify_all();
    }

    /// The oldest group, when it is durable.
    fn take_delivered(&self) -> Option<InFlight> {
        let state = &mut *self.state.borrow_mut();
        let group = state.block.in_flight.pop_front_if(|group| group.outcome == Some(Status::Ok))?;
        state.block.first_group += 1;
        self.count_success(state);
        state.stats.groups += 1;
        state.stats.medium_bytes += group.medium_bytes;
        state.stats.appended_records += group.entries.len() as u64;
        let payloads = group.entries.iter().map(|entry| entry.record.payload_bytes() as u64);
        state.stats.user_bytes += payloads.sum::<u64>();
        Some(group)
    }

    fn deliver(&self, group: InFlight) {
        let InFlight { first_lsn, sequence, place, mut entries, .. } = group;
        let placed = |index: usize, at_byte: u64| Placed {
            lsn: first_lsn + index as u64,
            segment: sequence,
            at: self.geometry.at(place, at_byte),
        };
        for (index, entry) in entries.iter().enumerate() {
            self.sink.placed(&entry.record, placed(index, entry.at_byte));
        }
        for (index, entry) in entries.drain(..).enumerate() {
            let result = Ok(placed(index, entry.at_byte));
            self.finish(entry.slot, Appended { result, payload: entry.payload });
        }
        self.state.borrow_mut().block.spare_entries.push(entries);
    }

    /// When a write of the segment failed and none is under way any more: leaves the segment, and puts the records that
    /// were not delivered back where they came from, in order.
    fn take_back(self: &Rc<Self>) {
        let mut without_payload = Vec::new();
        let status = {
            let state = &mut *self.state.borrow_mut();
            let Some(Some(status)) = state.block.in_flight.front().map(|group| group.outcome) else { return };
            if state.block.in_flight.iter().any(|group| group.outcome.is_none()) {
                return;
            }
            state.next_lsn = state.block.in_flight[0].first_lsn;
            state.block.first_group += state.block.in_flight.len() as u64;
            let groups = state.block.in_flight.drain(..).rev();
            for entry in groups.flat_map(|group| group.entries.into_iter().rev()) {
                if sg_len(&entry.payload) == entry.record.payload_bytes() {
                    state.queued_bytes += entry.bytes_max();
                    state.queues[entry.class as usize].push_front(entry);
                } else {
                    without_payload.push(entry);
                }
            }
            status
        };
        let pause_ns = self.leave_failed(status);
        if pause_ns > 0 {
            self.pause(pause_ns);
        }
        // A device that keeps the buffers of a failed write leaves nothing to try again with.
        for entry in without_payload {
            self.finish(entry.slot, Appended { result: Err(status), payload: entry.payload });
        }
    }
}

/// Hands the buffers of a write back to the records that they came from. Returns the empty list, to be used again.
fn give_back(group: &mut InFlight, mut bufs: SgList) -> SgList {
    let mut all = bufs.drain(..);
    let mut rest: Option<Buf> = None;
    // Devices may split and join buffers, so only their bytes and order count.
    let mut next = |bytes_max: usize| {
        let mut buf = rest.take().or_else(|| all.next())?;
        if buf.len() > bytes_max {
            rest = Some(buf.split_off(bytes_max));
        }
        Some(buf)
    };
    let mut header_bytes = group.header_bytes;
    while header_bytes > 0 {
        let Some(buf) = next(header_bytes) else { break };
        header_bytes -= buf.len();
    }
    for entry in group.entries.iter_mut().filter(|entry| matches!(entry.record, Record::Write { .. })) {
        let mut missing = entry.record.payload_bytes();
        while missing > 0 {
            let Some(buf) = next(missing) else { break };
            missing -= buf.len();
            entry.payload.push(buf);
        }
    }
    drop(all);
    bufs
}
