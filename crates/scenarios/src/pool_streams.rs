//! `pool-streams`: snapshots that are exported as streams and imported, whole and as what differs from an older one, while their
//! volume is written to, over devices some of whose operations take long, crashed at any step. Some streams are cut off or damaged on
//! their way.
//!
//! A stream outlives the processes, as a file elsewhere does. A snapshot that an import has made is what the stream says, whole;
//! an import that has failed leaves nothing behind, and one that a crash has ended leaves a volume that can be deleted, or rolled back to the
//! snapshot that it had.

use crate::Run;
use crate::layers::{self, Layers, Part, Work};
use crate::ledger::{Hands, Ledger};
use base::Rng;
use bdev::Status;
use engine::{ImportOptions, StreamError, StreamSink, StreamSource};
use reactor::Reactor;
use sim::{Failure, Handle};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const LAYERS: Layers = Layers { most: 60, hot_one_in: 2 };
const PARTS: [Part; 2] = [(3, 1, 1), (5, 7, 1)];
/// The volume that is written to; those that are imported have the numbers behind it.
const SOURCE: u64 = 0;
/// Imported volumes at the same time.
const COPIES_MAX: usize = 3;
/// Snapshots of the source at the same time.
const SNAPSHOTS_MAX: usize = 4;
/// Streams that are kept.
const STREAMS_MAX: usize = 6;
/// Most bytes of a stream that come together.
const PIECE_BYTES: u64 = 20_000;

/// A snapshot, by its number, as a stream.
struct Stream {
    of: u64,
    since: Option<u64>,
    bytes: Vec<u8>,
}

/// What was begun with a volume when the process went down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Import(u64),
    Delete,
}

/// An imported volume.
struct Copy {
    /// Its snapshots.
    has: Vec<u64>,
    /// The one that it goes on from.
    base: u64,
    /// It has been written to since.
    is_changed: bool,
    doing: Doing,
}

#[derive(Default)]
struct Known {
    streams: Vec<Rc<Stream>>,
    copies: BTreeMap<u64, Copy>,
    /// The numbers given last.
    snapshots: u64,
    volumes: u64,
}

/// What outlives the processes.
#[derive(Clone)]
struct Stage {
    sim: Handle,
    /// What the volumes hold.
    ledger: Rc<RefCell<Ledger>>,
    /// What the snapshots hold, each under its number.
    frozen: Rc<RefCell<Ledger>>,
    known: Rc<RefCell<Known>>,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let lives = layers::set_up(world, rng, LAYERS, &PARTS)?;
    let (sim, ledger) = (lives.sim.clone(), lives.ledger.clone());
    let stage = Stage { sim, ledger, frozen: Rc::default(), known: Rc::default() };
    layers::play(world, rng, &lives, stage)
}

impl Work for Stage {
    /// After a crash: what was begun with a volume was done as a whole, or the volume can be put right.
    async fn find(&self, hands: &Hands) {
        let numbers: Vec<u64> = self.known.borrow().copies.keys().copied().collect();
        for number in numbers {
            let (doing, has, base) = {
                let known = self.known.borrow();
                let copy = &known.copies[&number];
                (copy.doing, copy.has.clone(), copy.base)
            };
            let is_there = hands.pool.volume(&format!("v{number}")).is_some();
            let is_made = |snapshot: u64| hands.pool.volume(&format!("v{number}@s{snapshot}")).is_some();
            if !is_there {
                let may_be = doing == Doing::Delete || matches!(doing, Doing::Import(_)) && has.is_empty();
                hands.expect(may_be, || format!("volume v{number} is missing"));
                self.forget(hands, number);
                continue;
            }
            let missing = has.iter().find(|snapshot| !is_made(**snapshot));
            hands.expect(missing.is_none(), || format!("snapshot v{number}@s{missing:?} is missing"));
            match doing {
                Doing::Nothing => {}
                Doing::Delete => self.with(number, |copy| copy.doing = Doing::Nothing),
                Doing::Import(snapshot) if is_made(snapshot) => self.imported(hands, number, snapshot),
                Doing::Import(_) if has.is_empty() => self.delete(hands, number).await,
                Doing::Import(_) => self.roll_back(hands, number, base).await,
            }
            if !hands.is_alive() {
                return;
            }
        }
    }

    async fn work(self, hands: Hands, mut rng: Rng) {
        for _ in 0..rng.between(3, 16) {
            if !hands.is_alive() {
                return;
            }
            match rng.below(12) {
                0 | 1 => self.clone().change(hands.clone(), SOURCE, rng.fork()).await,
                2 | 3 => self.shoot(&hands, &mut rng).await,
                4 | 5 => self.export(&hands, &mut rng).await,
                6..10 => self.import(&hands, &mut rng).await,
                10 => self.change_copy(&hands, &mut rng).await,
                _ => self.take_away(&hands, &mut rng).await,
            }
        }
    }

    /// All imported volumes go, and the source has what it had.
    async fn finish(self, hands: Hands) {
        let numbers: Vec<u64> = self.known.borrow().copies.keys().copied().collect();
        for number in numbers {
            self.delete(&hands, number).await;
        }
        let reaped = hands.pool.reap(&hands.reactor).await;
        hands.expect(reaped.is_ok(), || format!("what was deleted does not go: {reaped:?}"));
        let settled = hands.pool.settle(&hands.reactor).await;
        hands.expect(settled.is_ok(), || format!("settling failed: {settled:?}"));
        hands.read_all().await;
        hands.audit().await;
        hands.pool.close(&hands.reactor).await;
    }
}

impl Stage {
    fn with(&self, number: u64, change: impl FnOnce(&mut Copy)) {
        if let Some(copy) = self.known.borrow_mut().copies.get_mut(&number) {
            change(copy);
        }
    }

    /// The volume is gone.
    fn forget(&self, hands: &Hands, number: u64) {
        if hands.is_alive() {
            self.known.borrow_mut().copies.remove(&number);
            self.ledger.borrow_mut().remove(number);
        }
    }

    /// The volume is what the snapshot is.
    fn is_as(&self, hands: &Hands, number: u64, snapshot: u64) {
        if hands.is_alive() {
            self.ledger.borrow_mut().copy_of(&self.frozen.borrow(), snapshot, number);
            self.with(number, |copy| (copy.base, copy.is_changed, copy.doing) = (snapshot, false, Doing::Nothing));
        }
    }

    fn imported(&self, hands: &Hands, number: u64, snapshot: u64) {
        if hands.is_alive() {
            self.with(number, |copy| copy.has.push(snapshot));
        }
        self.is_as(hands, number, snapshot);
    }

    async fn roll_back(&self, hands: &Hands, number: u64, snapshot: u64) {
        // Until it is known, nobody reads it.
        self.ledger.borrow_mut().remove(number);
        self.with(number, |copy| copy.doing = Doing::Import(0));
        let rolled = hands.pool.roll_back(&hands.reactor, &format!("v{number}@s{snapshot}")).await;
        hands.expect(rolled.is_ok(), || format!("v{number} cannot be rolled back to s{snapshot}: {rolled:?}"));
        self.is_as(hands, number, snapshot);
    }

    async fn delete(&self, hands: &Hands, number: u64) {
        self.with(number, |copy| copy.doing = Doing::Delete);
        let deleted = hands.pool.delete_volume_and_snapshots(&hands.reactor, &format!("v{number}")).await;
        hands.expect(deleted.is_ok(), || format!("v{number} cannot be deleted: {deleted:?}"));
        self.forget(hands, number);
    }

    /// Writes and trims in a volume.
    async fn change(self, hands: Hands, volume: u64, mut rng: Rng) {
        let spots = self.ledger.borrow().within(volume, 0..u64::MAX);
        for _ in 0..rng.between(1, 12) {
            if !hands.is_alive() {
                return;
            }
            let spot = spots[rng.below(spots.len() as u64) as usize];
            let status = match rng.one_in(4) {
                true => hands.trim(volume, spot.first, spot.blocks).await,
                false => hands.write(spot).await,
            };
            hands.expect(status == Status::Ok, || format!("changing {spot:?} failed with '{status}'"));
        }
    }

    fn any_copy(&self, rng: &mut Rng) -> Option<u64> {
        let known = self.known.borrow();
        known.copies.keys().nth(rng.below(known.copies.len().max(1) as u64) as usize).copied()
    }

    async fn change_copy(&self, hands: &Hands, rng: &mut Rng) {
        let Some(number) = self.any_copy(rng) else { return };
        self.with(number, |copy| copy.is_changed = true);
        self.clone().change(hands.clone(), number, rng.fork()).await;
    }

    /// A volume or a snapshot goes, or a volume is what it was before.
    async fn take_away(&self, hands: &Hands, rng: &mut Rng) {
        match (rng.below(3), self.any_copy(rng)) {
            (0, Some(number)) => self.delete(hands, number).await,
            (1, Some(number)) => {
                let has = self.known.borrow().copies[&number].has.clone();
                self.roll_back(hands, number, has[rng.below(has.len() as u64) as usize]).await;
                hands.read_all().await;
            }
            _ => {
                let all = self.snapshots(hands);
                let Some(snapshot) = all.get(rng.below(all.len().max(1) as u64) as usize) else { return };
                let deleted = hands.pool.delete_snapshot(&hands.reactor, &format!("v{SOURCE}@s{snapshot}")).await;
                hands.expect(deleted.is_ok(), || format!("s{snapshot} cannot be deleted: {deleted:?}"));
            }
        }
    }

    /// Those of the source, oldest first.
    fn snapshots(&self, hands: &Hands) -> Vec<u64> {
        let is_there = |number: &u64| hands.pool.volume(&format!("v{SOURCE}@s{number}")).is_some();
        (1..=self.known.borrow().snapshots).filter(is_there).collect()
    }

    async fn shoot(&self, hands: &Hands, rng: &mut Rng) {
        if self.snapshots(hands).len() >= SNAPSHOTS_MAX {
            return self.take_away(hands, rng).await;
        }
        let number = self.known.borrow().snapshots + 1;
        self.known.borrow_mut().snapshots = number;
        self.frozen.borrow_mut().copy_of(&self.ledger.borrow(), SOURCE, number);
        let (volume, snapshot) = (format!("v{SOURCE}"), format!("s{number}"));
        let made = hands.pool.snapshot(&hands.reactor, &[(&volume, &snapshot)], 0).await;
        hands.expect(made.is_ok(), || format!("a snapshot cannot be made: {:?}", made.err()));
    }

    /// Writes a snapshot as a stream, while its volume is written to.
    async fn export(&self, hands: &Hands, rng: &mut Rng) {
        let all = self.snapshots(hands);
        let Some(at) = (!all.is_empty()).then(|| rng.below(all.len() as u64) as usize) else { return };
        let (of, since) = (all[at], (at > 0 && !rng.one_in(3)).then(|| all[rng.below(at as u64) as usize]));
        // The whole of it can be had from an import of it as well.
        let has_it = |(number, copy): (&u64, &Copy)| copy.has.contains(&of).then_some(*number);
        let from = self.known.borrow().copies.iter().find_map(has_it);
        let from = from.filter(|_| since.is_none() && rng.one_in(2)).unwrap_or(SOURCE);
        let beside = hands.reactor.spawn_join(self.clone().change(hands.clone(), SOURCE, rng.fork()));
        let wants = rng.one_in(6).then(|| rng.between(0, 40_000) as usize);
        let mut sink = Sink { reactor: hands.reactor.clone(), rng: rng.fork(), bytes: Vec::new(), wants };
        let (name, below) = (format!("v{from}@s{of}"), since.map(|since| format!("v{from}@s{since}")));
        let ended = hands.pool.export_snapshot(&hands.reactor, &name, below.as_deref(), &mut sink).await;
        beside.await;
        match ended {
            Ok(totals) if hands.is_alive() => {
                let bytes = sink.bytes;
                hands.expect(totals.stream_bytes == bytes.len() as u64, || format!("{totals:?} of {}", bytes.len()));
                let streams = &mut self.known.borrow_mut().streams;
                if streams.len() == STREAMS_MAX {
                    streams.remove(rng.below(STREAMS_MAX as u64) as usize);
                }
                streams.push(Rc::new(Stream { of, since, bytes }));
            }
            Err(StreamError::NobodyTakes) if wants.is_some() => {}
            ended => hands.expect(false, || format!("{name} is not exported since {since:?}: {:?}", ended.err())),
        }
    }

    /// The volume that takes a stream, if there is one; a new one for one that is whole.
    fn target(&self, stream: &Stream) -> Option<u64> {
        let known = self.known.borrow();
        match stream.since {
            None => (known.copies.len() < COPIES_MAX).then_some(known.volumes + 1),
            Some(since) => {
                let takes = |copy: &Copy| copy.base == since && !copy.has.contains(&stream.of);
                known.copies.iter().find(|(_, copy)| takes(copy)).map(|(number, _)| *number)
            }
        }
    }

    /// Imports a stream, which may be cut off or damaged on its way, while the source is written to.
    async fn import(&self, hands: &Hands, rng: &mut Rng) {
        let fitting = |stream: &Rc<Stream>| self.target(stream).map(|number| (stream.clone(), number));
        let fitting: Vec<(Rc<Stream>, u64)> = self.known.borrow().streams.iter().filter_map(fitting).collect();
        let Some((stream, number)) = fitting.get(rng.below(fitting.len().max(1) as u64) as usize) else {
            return self.export(hands, rng).await;
        };
        let (of, number) = (stream.of, *number);
        let is_changed = self.known.borrow().copies.get(&number).is_some_and(|copy| copy.is_changed);
        // What was zero and is so again may count as changed or not.
        let is_as = |since| self.ledger.borrow().is_as(number, &self.frozen.borrow(), since);
        let differs = stream.since.is_some_and(|since| !is_as(since));
        let roll_back = rng.one_in(2);
        let mut bytes = stream.bytes.clone();
        let is_right = !rng.one_in(3);
        if !is_right && rng.one_in(2) {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
        } else if !is_right {
            bytes[rng.below(stream.bytes.len() as u64) as usize] ^= 1 << rng.below(8);
        }
        let entry = Copy { has: Vec::new(), base: 0, is_changed: false, doing: Doing::Nothing };
        {
            let known = &mut *self.known.borrow_mut();
            known.volumes = known.volumes.max(number);
            known.copies.entry(number).or_insert(entry).doing = Doing::Import(of);
        }
        let beside = hands.reactor.spawn_join(self.clone().change(hands.clone(), SOURCE, rng.fork()));
        let mut source = Source { reactor: hands.reactor.clone(), rng: rng.fork(), bytes, at: 0 };
        let volume = format!("v{number}");
        let options = ImportOptions { volume: Some(&volume), roll_back, ..ImportOptions::default() };
        let ended = hands.pool.import_snapshot(&hands.reactor, options, &mut source).await;
        beside.await;
        if !hands.is_alive() {
            return;
        }
        self.sim.note(format!("s{of} since {:?} into {volume}: {:?}", stream.since, ended.as_ref().err()));
        let is_refused = matches!(ended, Err(StreamError::Changed { .. }));
        match (ended, stream.since) {
            (Ok(_), _) => {
                hands.expect(is_right, || format!("{volume} took a stream that was damaged"));
                hands.expect(!differs || roll_back, || format!("{volume} gave up what was written"));
                self.imported(hands, number, of);
            }
            (Err(error), None) => {
                hands.expect(!is_right, || format!("s{of} is not imported: {error}"));
                let is_left = hands.pool.volume(&volume).is_some();
                hands.expect(!is_left, || format!("{volume} is left of an import that failed: {error}"));
                self.forget(hands, number);
            }
            (Err(error), Some(since)) => {
                let may_be = !is_right || is_refused && is_changed && !roll_back;
                hands.expect(may_be, || format!("s{of} is not imported since s{since}: {error}"));
                let is_made = hands.pool.volume(&format!("{volume}@s{of}")).is_some();
                hands.expect(!is_made, || format!("{volume} has s{of} although its import failed: {error}"));
                self.with(number, |copy| copy.doing = Doing::Nothing);
                if is_changed && !is_refused {
                    // As it was, or as the snapshot is: by what was wrong.
                    self.roll_back(hands, number, since).await;
                }
            }
        }
        hands.read_all().await;
    }
}

/// Takes a stream, at a pace of its own, as a whole or up to so many bytes.
struct Sink {
    reactor: Rc<Reactor>,
    rng: Rng,
    bytes: Vec<u8>,
    wants: Option<usize>,
}

impl StreamSink for Sink {
    async fn put(&mut self, bytes: Vec<u8>) -> bool {
        if self.rng.one_in(4) {
            self.reactor.sleep_ns(self.rng.below(2_000_000)).await;
        }
        self.bytes.extend(bytes);
        self.wants.is_none_or(|wants| self.bytes.len() <= wants)
    }
}

/// Gives a stream, at a pace of its own.
struct Source {
    reactor: Rc<Reactor>,
    rng: Rng,
    bytes: Vec<u8>,
    at: usize,
}

impl StreamSource for Source {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.rng.one_in(4) {
            self.reactor.sleep_ns(self.rng.below(2_000_000)).await;
        }
        let most = if self.rng.one_in(4) { 100 } else { PIECE_BYTES };
        let end = self.bytes.len().min(self.at + self.rng.between(1, most) as usize);
        let from = std::mem::replace(&mut self.at, end);
        (from < end).then(|| self.bytes[from..end].to_vec())
    }
}
