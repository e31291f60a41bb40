//! An in-place write-back cache before a drive: the policy of Open CAS as a model, idealised (no lock contention, any line
//! anywhere).
//!
//! Lines of 4 KiB, fully associative. Writes go to the cache and leave dirty lines; misses of reads are inserted as clean ones.
//! The least recently used clean line is evicted. When few lines are clean or free, batches of the oldest dirty ones are
//! cleaned: sorted by address, neighbours merged. A request that changes the state of lines writes one block of metadata.

use super::disk::{Disk, DiskError};
use super::host::HostCore;
use super::stack::Target;
use bdev::Op;
use reactor::sync::Notify;
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::rc::Rc;

const LINE: u64 = 4096;
const BATCH_LINES: usize = 32;
const BATCHES_MAX: u32 = 8;
const NONE: u32 = u32::MAX;

/// Fixed keys: the same run every time.
type Lines = HashMap<u64, u32, BuildHasherDefault<DefaultHasher>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Clean,
    Dirty,
    /// Dirty, and on its way to the drive.
    Cleaning,
}

#[derive(Clone, Copy)]
struct Slot {
    line: u64,
    state: State,
    prev: u32,
    next: u32,
}

/// Slots from the most to the least recently used one.
struct List {
    head: u32,
    tail: u32,
    len: usize,
}

const EMPTY: List = List { head: NONE, tail: NONE, len: 0 };

impl List {
    fn push(&mut self, slots: &mut [Slot], index: u32) {
        (slots[index as usize].prev, slots[index as usize].next) = (NONE, self.head);
        match self.head {
            NONE => self.tail = index,
            head => slots[head as usize].prev = index,
        }
        self.head = index;
        self.len += 1;
    }

    fn remove(&mut self, slots: &mut [Slot], index: u32) {
        let Slot { prev, next, .. } = slots[index as usize];
        match prev {
            NONE => self.head = next,
            prev => slots[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => slots[next as usize].prev = prev,
        }
        self.len -= 1;
    }
}

struct Cache {
    lines: Lines,
    slots: Vec<Slot>,
    free: Vec<u32>,
    clean: List,
    dirty: List,
    cleaners: u32,
}

impl Cache {
    fn new(slots: usize) -> Cache {
        let slot = Slot { line: 0, state: State::Free, prev: NONE, next: NONE };
        Cache {
            lines: Lines::default(),
            slots: vec![slot; slots],
            free: (0..slots as u32).rev().collect(),
            clean: EMPTY,
            dirty: EMPTY,
            cleaners: 0,
        }
    }

    fn available(&self) -> usize {
        self.free.len() + self.clean.len
    }

    /// Takes the slot out of the list that it is in.
    fn detach(&mut self, index: u32) {
        match self.slots[index as usize].state {
            State::Clean => self.clean.remove(&mut self.slots, index),
            State::Dirty => self.dirty.remove(&mut self.slots, index),
            State::Free | State::Cleaning => {}
        }
    }

    fn attach(&mut self, index: u32, state: State) {
        self.slots[index as usize].state = state;
        match state {
            State::Clean => self.clean.push(&mut self.slots, index),
            State::Dirty => self.dirty.push(&mut self.slots, index),
            State::Free => self.free.push(index),
            State::Cleaning => {}
        }
    }

    /// Gives a line its state, and a slot if it has none; whether anything changed. None when there is no slot for it.
    fn put(&mut self, line: u64, state: State) -> Option<bool> {
        if let Some(index) = self.lines.get(&line).copied() {
            let old = self.slots[index as usize].state;
            // What is read stays what it is.
            let new = if state == State::Clean { old } else { state };
            self.detach(index);
            self.attach(index, new);
            return Some(old != new);
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.clean.len > 0 => {
                let index = self.clean.tail;
                self.detach(index);
                self.lines.remove(&self.slots[index as usize].line);
                index
            }
            None => return None,
        };
        self.slots[index as usize].line = line;
        self.lines.insert(line, index);
        self.attach(index, state);
        Some(true)
    }

    /// The oldest dirty lines, sorted.
    fn take_batch(&mut self) -> Vec<u64> {
        let mut batch = Vec::with_capacity(BATCH_LINES);
        while batch.len() < BATCH_LINES && self.dirty.len > 0 {
            let index = self.dirty.tail;
            self.detach(index);
            self.attach(index, State::Cleaning);
            batch.push(self.slots[index as usize].line);
        }
        batch.sort_unstable();
        batch
    }

    /// What was not written again meanwhile is clean.
    fn cleaned(&mut self, batch: &[u64]) {
        for line in batch {
            let Some(index) = self.lines.get(line).copied() else { continue };
            if self.slots[index as usize].state == State::Cleaning {
                self.attach(index, State::Clean);
            }
        }
    }
}

/// See the module.
pub struct Ocf {
    cache: RefCell<Cache>,
    /// Cleaning begins below so many lines that are clean or free.
    low: usize,
    disk: Rc<Disk>,
    fast: Rc<Disk>,
    host: HostCore,
    reactor: Rc<Reactor>,
    cleaned: Notify,
    log_bytes: Cell<u64>,
    failure: RefCell<Option<DiskError>>,
}

impl Ocf {
    pub fn new(
        lines: usize,
        low: usize,
        disk: Rc<Disk>,
        fast: Rc<Disk>,
        host: HostCore,
        reactor: &Rc<Reactor>,
    ) -> Rc<Ocf> {
        Rc::new(Ocf {
            cache: RefCell::new(Cache::new(lines)),
            low,
            disk,
            fast,
            host,
            reactor: reactor.clone(),
            cleaned: Notify::default(),
            log_bytes: Cell::new(0),
            failure: RefCell::new(None),
        })
    }

    async fn write_fast(&self, bytes: u64) -> Result<(), DiskError> {
        self.log_bytes.set(self.log_bytes.get() + bytes);
        self.fast.perform(Op::Write, 0, bytes).await
    }

    fn clean_if_low(self: &Rc<Self>) {
        let mut cache = self.cache.borrow_mut();
        while cache.available() < self.low && cache.cleaners < BATCHES_MAX && cache.dirty.len > 0 {
            cache.cleaners += 1;
            let this = self.clone();
            self.reactor.spawn(async move {
                if let Err(error) = this.clean().await {
                    this.failure.borrow_mut().get_or_insert(error);
                }
                this.cache.borrow_mut().cleaners -= 1;
                this.cleaned.notify_all();
                this.clean_if_low();
            });
        }
    }

    async fn clean(self: &Rc<Self>) -> Result<(), DiskError> {
        let batch = self.cache.borrow_mut().take_batch();
        self.fast.perform(Op::Read, 0, batch.len() as u64 * LINE).await?;
        let runs: Vec<_> = batch
            .chunk_by(|a, b| a + 1 == *b)
            .map(|run| {
                let (disk, from, bytes) = (self.disk.clone(), run[0] * LINE, run.len() as u64 * LINE);
                self.reactor.spawn_join(async move { disk.perform(Op::Write, from, bytes).await })
            })
            .collect();
        for run in runs {
            run.await?;
        }
        self.cache.borrow_mut().cleaned(&batch);
        self.write_fast(LINE).await
    }

    async fn write(self: &Rc<Self>, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let mut changed = false;
        for line in offset / LINE..(offset + bytes) / LINE {
            loop {
                let put = self.cache.borrow_mut().put(line, State::Dirty);
                self.clean_if_low();
                if let Some(of_line) = put {
                    changed |= of_line;
                    break;
                }
                self.cleaned.notified().await;
                self.failure.borrow().clone().map_or(Ok(()), Err)?;
            }
        }
        self.write_fast(bytes).await?;
        if changed {
            self.write_fast(LINE).await?;
        }
        Ok(())
    }

    async fn read(self: &Rc<Self>, offset: u64, bytes: u64) -> Result<(), DiskError> {
        let lines: Vec<u64> = (offset / LINE..(offset + bytes) / LINE).collect();
        let (hits, misses): (Vec<u64>, Vec<u64>) =
            lines.into_iter().partition(|line| self.cache.borrow().lines.contains_key(line));
        if !hits.is_empty() {
            for line in &hits {
                self.cache.borrow_mut().put(*line, State::Clean);
            }
            self.fast.perform(Op::Read, 0, hits.len() as u64 * LINE).await?;
        }
        for run in misses.chunk_by(|a, b| a + 1 == *b) {
            self.disk.perform(Op::Read, run[0] * LINE, run.len() as u64 * LINE).await?;
        }
        let inserted = misses
            .iter()
            .filter(|line| {
                let mut cache = self.cache.borrow_mut();
                !cache.lines.contains_key(line) && cache.put(**line, State::Clean).is_some()
            })
            .count() as u64;
        if inserted > 0 {
            self.write_fast(inserted * LINE).await?;
            self.write_fast(LINE).await?;
        }
        Ok(())
    }
}

impl Target for Rc<Ocf> {
    fn perform(&self, op: Op, offset: u64, bytes: u64) -> IoFuture<'_, Result<(), DiskError>> {
        let this = self.clone();
        IoFuture::new(async move {
            this.host.pass(&this.reactor, bytes).await;
            match op {
                Op::Read => this.read(offset, bytes).await,
                _ => this.write(offset, bytes).await,
            }
        })
    }

    fn fast_bytes(&self) -> u64 {
        self.log_bytes.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_clean_line_is_evicted_and_dirty_ones_stay() {
        let mut cache = Cache::new(3);
        assert_eq!(cache.put(1, State::Clean), Some(true));
        assert_eq!(cache.put(2, State::Clean), Some(true));
        assert_eq!(cache.put(3, State::Dirty), Some(true));
        assert_eq!(cache.put(1, State::Clean), Some(false), "it is used");
        assert_eq!(cache.put(4, State::Dirty), Some(true));
        assert!(!cache.lines.contains_key(&2) && cache.lines.contains_key(&1));
        assert_eq!(cache.put(5, State::Dirty), Some(true));
        assert_eq!(cache.put(6, State::Dirty), None, "all are dirty");
    }

    #[test]
    fn a_batch_is_the_oldest_dirty_lines_and_what_is_written_meanwhile_stays_dirty() {
        let mut cache = Cache::new(100);
        for line in (0..40).rev() {
            cache.put(line, State::Dirty);
        }
        let batch = cache.take_batch();
        assert_eq!(batch, (8..40).collect::<Vec<u64>>());
        assert_eq!(cache.put(9, State::Dirty), Some(true), "it is on its way, so it is dirty again");
        cache.cleaned(&batch);
        assert_eq!((cache.clean.len, cache.dirty.len), (31, 9));
    }
}
