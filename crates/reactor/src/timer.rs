//! A hierarchical timing wheel: insert and cancel in constant time, next deadline from bitmaps.
//!
//! Nine levels of 64 slots; a tick is 1,024 ns, so level 0 spans 65 us and the whole wheel every 64-bit time. Timers fire
//! at the first advance at or after their deadline, never before.

use std::task::Waker;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 9;
const TICK_SHIFT: u32 = 10;
const NIL: u32 = u32::MAX;

/// A timer of a wheel; stale keys are harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimerKey {
    index: u32,
    generation: u32,
}

struct Entry {
    deadline_ns: u64,
    waker: Option<Waker>,
    generation: u32,
    prev: u32,
    next: u32,
    /// `level * SLOTS + slot`, or NIL when not linked.
    home: u32,
}

/// The wheel. Time is an argument; it must not run backwards (an earlier time is treated as the last one).
pub struct TimerWheel {
    entries: Vec<Entry>,
    free: Vec<u32>,
    heads: [u32; SLOTS * LEVELS],
    tails: [u32; SLOTS * LEVELS],
    occupied: [u64; LEVELS],
    now_tick: u64,
    armed: usize,
}

impl TimerWheel {
    /// An empty wheel at `now_ns`.
    pub fn new(now_ns: u64) -> Self {
        TimerWheel {
            entries: Vec::new(),
            free: Vec::new(),
            heads: [NIL; SLOTS * LEVELS],
            tails: [NIL; SLOTS * LEVELS],
            occupied: [0; LEVELS],
            now_tick: now_ns >> TICK_SHIFT,
            armed: 0,
        }
    }

    /// Arms a timer that wakes `waker` at or after `deadline_ns`.
    pub fn insert(&mut self, deadline_ns: u64, waker: Waker) -> TimerKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { deadline_ns: 0, waker: None, generation: 0, prev: NIL, next: NIL, home: NIL });
            (self.entries.len() - 1) as u32
        });
        let entry = &mut self.entries[index as usize];
        entry.deadline_ns = deadline_ns;
        entry.waker = Some(waker);
        let key = TimerKey { index, generation: entry.generation };
        self.link(index);
        self.armed += 1;
        key
    }

    /// Replaces the waker of an armed timer; false when it has fired or was cancelled.
    pub fn update_waker(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.live(key) {
            Some(entry) => {
                match &mut entry.waker {
                    Some(old) => old.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                true
            }
            None => false,
        }
    }

    /// Disarms a timer; nothing happens when it has already fired.
    pub fn cancel(&mut self, key: TimerKey) {
        if self.live(key).is_some() {
            self.unlink(key.index);
            self.release(key.index);
        }
    }

    /// Moves time on and takes out the wakers that are due, in order of their ticks.
    pub fn advance(&mut self, now_ns: u64, due: &mut Vec<Waker>) {
        let target = (now_ns >> TICK_SHIFT).max(self.now_tick);
        while self.armed > 0 {
            let Some((level, slot, tick)) = self.next_slot() else { break };
            if tick > target {
                break;
            }
            self.now_tick = tick.max(self.now_tick);
            let mut index = self.take_slot(level, slot);
            while index != NIL {
                let next = self.entries[index as usize].next;
                self.entries[index as usize].home = NIL;
                // A timer inside the current tick may be up to one tick early: it waits for the tick to end.
                if self.entries[index as usize].deadline_ns <= now_ns {
                    due.extend(self.entries[index as usize].waker.take());
                    self.release(index);
                } else {
                    self.link(index);
                }
                index = next;
            }
            if level == 0 && tick == target {
                break;
            }
        }
        self.now_tick = target;
    }

    /// A time at which [`advance`](Self::advance) should be called next: at most the earliest deadline for timers within
    /// 65 us, a slot's start (never later than the deadline) for those further off. `None` when nothing is armed.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let (level, slot, tick) = self.next_slot()?;
        if level > 0 {
            return Some(tick << TICK_SHIFT);
        }
        let mut earliest = u64::MAX;
        let mut index = self.heads[slot];
        while index != NIL {
            let entry = &self.entries[index as usize];
            earliest = earliest.min(entry.deadline_ns);
            index = entry.next;
        }
        Some(earliest)
    }

    /// How many timers are armed.
    pub fn armed(&self) -> usize {
        self.armed
    }

    fn live(&mut self, key: TimerKey) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(key.index as usize)?;
        (entry.generation == key.generation && entry.home != NIL).then_some(entry)
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.waker = None;
        entry.generation = entry.generation.wrapping_add(1);
        entry.home = NIL;
        self.free.push(index);
        self.armed -= 1;
    }

    fn link(&mut self, index: u32) {
        // Rounded up would fire late; rounded down, `advance` checks the exact deadline.
        let tick = (self.entries[index as usize].deadline_ns >> TICK_SHIFT).max(self.now_tick);
        let (level, slot) = self.place(tick);
        let home = level * SLOTS + slot;
        let tail = self.tails[home];
        let entry = &mut self.entries[index as usize];
        (entry.prev, entry.next, entry.home) = (tail, NIL, home as u32);
        if tail == NIL {
            self.heads[home] = index;
        } else {
            self.entries[tail as usize].next = index;
        }
        self.tails[home] = index;
        self.occupied[level] |= 1 << slot;
    }

    /// The level is that of the highest bit in which `tick` differs from now, so a slot never holds two laps.
    fn place(&self, tick: u64) -> (usize, usize) {
        let differing = tick ^ self.now_tick;
        let level = if differing == 0 { 0 } else { (63 - differing.leading_zeros()) / SLOT_BITS } as usize;
        (level, (tick >> (level as u32 * SLOT_BITS)) as usize % SLOTS)
    }

    fn unlink(&mut self, index: u32) {
        let Entry { prev, next, home, .. } = self.entries[index as usize];
        let home = home as usize;
        if prev == NIL {
            self.heads[home] = next
        } else {
            self.entries[prev as usize].next = next
        }
        if next == NIL {
            self.tails[home] = prev
        } else {
            self.entries[next as usize].prev = prev
        }
        if self.heads[home] == NIL {
            self.occupied[home / SLOTS] &= !(1 << (home % SLOTS));
        }
    }

    fn take_slot(&mut self, level: usize, slot: usize) -> u32 {
        let home = level * SLOTS + slot;
        self.tails[home] = NIL;
        self.occupied[level] &= !(1 << slot);
        std::mem::replace(&mut self.heads[home], NIL)
    }

    /// The first occupied slot in time order, and the first tick that it covers (not before now).
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        for level in 0..LEVELS {
            let shift = level as u32 * SLOT_BITS;
            let current = (self.now_tick >> shift) as usize % SLOTS;
            let ahead = self.occupied[level] & (u64::MAX << current);
            if ahead != 0 {
                let slot = ahead.trailing_zeros() as usize;
                let lap = self.now_tick >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
                return Some((level, slot, (lap + ((slot as u64) << shift)).max(self.now_tick)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Wake;

    struct Fired(AtomicU64);
    impl Wake for Fired {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Fires timers with random deadlines against a naive model: none early, none missed, cancelled ones never.
    #[test]
    fn fires_exactly_when_due() {
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let mut now = rng.below(1 << 50);
            let mut wheel = TimerWheel::new(now);
            let mut model: Vec<(u64, TimerKey, Arc<Fired>)> = Vec::new();
            for _ in 0..2000 {
                match rng.below(4) {
                    0 | 1 => {
                        let scale = rng.below(48);
                        let deadline = now + rng.below(1 << scale);
                        let fired = Arc::new(Fired(AtomicU64::new(0)));
                        let key = wheel.insert(deadline, fired.clone().into());
                        model.push((deadline, key, fired));
                    }
                    2 if !model.is_empty() => {
                        let (_, key, fired) = model.swap_remove(rng.below(model.len() as u64) as usize);
                        wheel.cancel(key);
                        assert_eq!(fired.0.load(Ordering::Relaxed), 0);
                    }
                    _ => {
                        let next = wheel.next_deadline_ns();
                        let earliest = model.iter().map(|m| m.0).min();
                        assert_eq!(next.is_some(), earliest.is_some());
                        if let (Some(next), Some(earliest)) = (next, earliest) {
                            assert!(next <= earliest.max(now), "sleeping past a deadline");
                        }
                        let scale = rng.below(46);
                        now += rng.below(1 << scale);
                        let mut due = Vec::new();
                        wheel.advance(now, &mut due);
                        due.into_iter().for_each(Waker::wake);
                        model.retain(|(deadline, _, fired)| {
                            assert_eq!(fired.0.load(Ordering::Relaxed) == 1, *deadline <= now);
                            *deadline > now
                        });
                        assert_eq!(wheel.armed(), model.len());
                    }
                }
            }
        }
    }
}
