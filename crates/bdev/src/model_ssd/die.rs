//! One die: what it is busy with, and until when.
//!
//! Reserved segments `[start, end)`, in order, which do not overlap. Programs, erases and the collector's reads queue at the end.
//! A read of the host goes before everything that has not begun: on an idle die it starts at once, a host program that runs is
//! suspended for it, a program of the collector or an erase is waited out; what is queued behind is pushed only as far as
//! needed. Reads go one after the other.

use std::collections::VecDeque;

/// What a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A program of what the host wrote; it can be suspended.
    Host,
    /// A program, or a read, of the collector.
    Collect,
    /// An erase.
    Erase,
    /// A read of the host.
    Read,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub start: u64,
    pub end: u64,
    pub kind: Kind,
    /// Names a program of the host; otherwise 0.
    pub id: u64,
}

/// See the module. Times given must not run backwards.
#[derive(Default)]
pub(super) struct Die {
    queue: VecDeque<Segment>,
    /// When the last read of the host ends.
    reads_end: u64,
    /// Time that was reserved so far, suspensions included.
    busy_ns: u64,
}

impl Die {
    fn forget_ended(&mut self, now: u64) {
        while self.queue.front().is_some_and(|segment| segment.end <= now) {
            self.queue.pop_front();
        }
    }

    /// Appends a segment that may begin at `ready`; when it ends, as things stand.
    pub(super) fn append(&mut self, now: u64, ready: u64, duration: u64, kind: Kind, id: u64) -> u64 {
        self.forget_ended(now);
        // A read that goes into a suspended program is inside its segment.
        let free = self.queue.back().map_or(0, |last| last.end);
        let start = ready.max(now).max(free);
        self.busy_ns += duration;
        self.queue.push_back(Segment { start, end: start + duration, kind, id });
        start + duration
    }

    /// Reserves a read of the host; when it ends. Calls `moved(id, old end, new end)` for every host program that it delays.
    pub(super) fn read(
        &mut self,
        now: u64,
        duration: u64,
        suspend_ns: u64,
        mut moved: impl FnMut(u64, u64, u64),
    ) -> u64 {
        self.forget_ended(now);
        self.busy_ns += duration;
        let mut start = now.max(self.reads_end);
        let mut index = 0;
        while let Some(segment) = self.queue.get_mut(index) {
            if segment.end <= start {
                index += 1;
                continue;
            }
            if segment.start >= start {
                break;
            }
            if segment.kind != Kind::Host {
                start = segment.end;
                index += 1;
                continue;
            }
            start += suspend_ns;
            let end = start + duration;
            let old = segment.end;
            segment.end += duration + 2 * suspend_ns;
            self.busy_ns += 2 * suspend_ns;
            moved(segment.id, old, segment.end);
            self.push_from(index + 1, &mut moved);
            self.reads_end = end;
            return end;
        }
        let end = start + duration;
        self.queue.insert(index, Segment { start, end, kind: Kind::Read, id: 0 });
        self.push_from(index + 1, &mut moved);
        self.reads_end = end;
        end
    }

    /// Moves segments behind the one before them, up to the first that is far enough already.
    fn push_from(&mut self, first: usize, moved: &mut impl FnMut(u64, u64, u64)) {
        for index in first..self.queue.len() {
            let free = self.queue[index - 1].end;
            let segment = &mut self.queue[index];
            if segment.start >= free {
                return;
            }
            let old = segment.end;
            segment.end += free - segment.start;
            segment.start = free;
            if segment.kind == Kind::Host {
                moved(segment.id, old, segment.end);
            }
        }
    }

    /// Time that was reserved so far, in all.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// When the host program `id` ends, as things stand; none when it is over.
    pub(super) fn end_of(&self, id: u64) -> Option<u64> {
        self.queue.iter().find(|segment| segment.kind == Kind::Host && segment.id == id).map(|segment| segment.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPEND: u64 = 40;

    fn read(die: &mut Die, now: u64, duration: u64) -> (u64, Vec<(u64, u64, u64)>) {
        let mut moves = Vec::new();
        let end = die.read(now, duration, SUSPEND, |id, old, new| moves.push((id, old, new)));
        (end, moves)
    }

    #[test]
    fn programs_queue_one_behind_the_other_and_wait_until_they_are_ready() {
        let mut die = Die::default();
        assert_eq!(die.append(0, 0, 100, Kind::Host, 1), 100);
        assert_eq!(die.append(10, 10, 100, Kind::Collect, 0), 200);
        assert_eq!(die.append(20, 500, 100, Kind::Host, 2), 600);
        assert_eq!(die.append(900, 0, 100, Kind::Host, 3), 1000);
    }

    #[test]
    fn a_read_of_an_idle_die_starts_at_once_and_programs_wait_for_it() {
        let mut die = Die::default();
        assert_eq!(read(&mut die, 50, 30), (80, vec![]));
        assert_eq!(die.append(60, 60, 100, Kind::Host, 1), 180);
    }

    #[test]
    fn a_read_suspends_a_host_program_which_pays_for_it() {
        let mut die = Die::default();
        die.append(0, 0, 1000, Kind::Host, 1);
        die.append(0, 0, 1000, Kind::Host, 2);
        let (end, moves) = read(&mut die, 100, 30);
        assert_eq!(end, 100 + SUSPEND + 30);
        assert_eq!(moves, [(1, 1000, 1000 + 30 + 2 * SUSPEND), (2, 2000, 2000 + 30 + 2 * SUSPEND)]);
        assert_eq!((die.end_of(1), die.end_of(2), die.end_of(3)), (Some(1110), Some(2110), None));
        assert_eq!(die.busy_ns(), 2000 + 30 + 2 * SUSPEND);
    }

    #[test]
    fn a_read_waits_out_a_program_of_the_collector_and_an_erase() {
        for kind in [Kind::Collect, Kind::Erase] {
            let mut die = Die::default();
            die.append(0, 0, 1000, kind, 0);
            die.append(0, 0, 1000, Kind::Host, 2);
            let (end, moves) = read(&mut die, 100, 30);
            assert_eq!(end, 1030, "{kind:?}");
            assert_eq!(moves, [(2, 2000, 2030)], "what has not begun waits for the read");
        }
    }

    #[test]
    fn queued_segments_are_pushed_only_as_far_as_needed() {
        let mut die = Die::default();
        die.append(0, 100, 50, Kind::Host, 1);
        die.append(0, 1000, 50, Kind::Host, 2);
        let (end, moves) = read(&mut die, 90, 30);
        assert_eq!((end, moves), (120, vec![(1, 150, 170)]), "the second has room before it");
    }

    #[test]
    fn reads_go_one_after_the_other_inside_a_suspended_program_too() {
        let mut die = Die::default();
        assert_eq!(read(&mut die, 0, 30).0, 30);
        assert_eq!(read(&mut die, 10, 30).0, 60);
        let mut die = Die::default();
        die.append(0, 0, 1000, Kind::Host, 1);
        assert_eq!(read(&mut die, 100, 30).0, 170);
        assert_eq!(read(&mut die, 110, 30).0, 170 + SUSPEND + 30);
    }
}
