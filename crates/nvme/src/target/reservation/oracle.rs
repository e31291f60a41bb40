//! A second opinion on reservations, for tests: the rules of Base 2.0, section 8.19, over sets and without state machine.
//! It shares no code with the table: kinds are numbers here, hosts and keys small ones.

use std::collections::{BTreeMap, BTreeSet};

/// Outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    Conflict,
    Invalid,
}

/// What hosts may know of a namespace's reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct World {
    /// Key of each registrant.
    pub(super) keys: BTreeMap<u8, u64>,
    /// Type of the reservation; zero for none.
    pub(super) kind: u8,
    /// Who holds it; of types 5 and 6 everybody, which is not written down here.
    pub(super) owner: Option<u8>,
}

/// Notices: (host, what), with the numbers of the log page.
pub(super) type Told = BTreeSet<(u8, u8)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// action 0 register, 1 unregister, 2 replace.
    Register { action: u8, ignore: bool, current: u64, new: u64 },
    /// action 0 acquire, 1 preempt, 2 preempt and abort.
    Acquire { action: u8, kind: u8, current: u64, named: u64 },
    /// action 0 release, 1 clear.
    Release { action: u8, kind: u8, current: u64 },
}

impl World {
    pub(super) fn holders(&self) -> BTreeSet<u8> {
        match self.kind {
            0 => BTreeSet::new(),
            5 | 6 => self.keys.keys().copied().collect(),
            _ => self.owner.into_iter().collect(),
        }
    }

    /// The table of command behavior: rows are types, columns who asks.
    pub(super) fn may(&self, host: u8, is_write: bool) -> bool {
        let holder = self.holders().contains(&host);
        let registrant = self.keys.contains_key(&host);
        match (self.kind, is_write) {
            (0, _) => true,
            (1, false) => true,
            (1, true) => holder,
            (2, _) => holder,
            (3 | 5, false) => true,
            (3 | 5, true) => registrant,
            (4 | 6, _) => registrant,
            other => panic!("no such type: {other:?}"),
        }
    }

    fn without(&self, gone: &BTreeSet<u8>) -> World {
        let mut next = self.clone();
        next.keys.retain(|host, _| !gone.contains(host));
        let still_held = match next.kind {
            5 | 6 => !next.keys.is_empty(),
            _ => next.owner.is_some_and(|owner| !gone.contains(&owner)),
        };
        if !still_held {
            (next.kind, next.owner) = (0, None);
        }
        next
    }

    fn held_by(mut self, host: u8, kind: u8) -> World {
        self.kind = kind;
        self.owner = (kind < 5).then_some(host);
        self
    }

    fn others(&self, host: u8, what: u8) -> Told {
        self.keys.keys().filter(|one| **one != host).map(|one| (*one, what)).collect()
    }

    /// What becomes of the world, who is told, and whether the generation counts it.
    pub(super) fn after(&self, host: u8, ask: Ask) -> (Verdict, World, Told, bool) {
        let refuse = |verdict| (verdict, self.clone(), Told::new(), false);
        let mine = self.keys.get(&host).copied();
        match ask {
            Ask::Register { action, ignore, current, new } => {
                if new == 0 && action != 1 {
                    return refuse(Verdict::Invalid);
                }
                let proven = mine.is_some() && (ignore || mine == Some(current));
                let fine = match action {
                    0 => mine.is_none() || mine == Some(new),
                    1 => proven,
                    _ => proven || (mine.is_none() && ignore),
                };
                if !fine {
                    return refuse(Verdict::Conflict);
                }
                if action == 1 {
                    let next = self.without(&BTreeSet::from([host]));
                    let ended = next.kind == 0 && [3, 4].contains(&self.kind);
                    let told = if ended { next.others(host, 2) } else { Told::new() };
                    return (Verdict::Done, next, told, true);
                }
                let mut next = self.clone();
                next.keys.insert(host, new);
                (Verdict::Done, next, Told::new(), true)
            }
            _ if mine != Some(ask.current()) => refuse(Verdict::Conflict),
            Ask::Acquire { action: 0, kind, .. } => {
                if self.kind == 0 {
                    return (Verdict::Done, self.clone().held_by(host, kind), Told::new(), false);
                }
                let same = self.kind == kind && self.holders().contains(&host);
                refuse(if same { Verdict::Done } else { Verdict::Conflict })
            }
            Ask::Acquire { kind, named, .. } => self.preempted(host, kind, named),
            Ask::Release { action: 0, kind, .. } => {
                if !self.holders().contains(&host) {
                    return refuse(Verdict::Done);
                }
                if kind != self.kind {
                    return refuse(Verdict::Invalid);
                }
                let told = if self.kind > 2 { self.others(host, 2) } else { Told::new() };
                (Verdict::Done, World { keys: self.keys.clone(), ..World::default() }, told, false)
            }
            Ask::Release { .. } => (Verdict::Done, World::default(), self.others(host, 3), true),
        }
    }

    fn preempted(&self, host: u8, kind: u8, named: u64) -> (Verdict, World, Told, bool) {
        let refuse = |verdict| (verdict, self.clone(), Told::new(), false);
        let with_key: BTreeSet<u8> =
            self.keys.iter().filter(|(_, key)| **key == named).map(|(host, _)| *host).collect();
        let gone: BTreeSet<u8>;
        let taken;
        match (self.kind, named) {
            (5 | 6, 0) => {
                gone = self.keys.keys().copied().filter(|one| *one != host).collect();
                taken = true;
            }
            (1..=4, 0) => return refuse(Verdict::Invalid),
            (1..=4, _) if self.owner.is_some_and(|owner| with_key.contains(&owner)) => {
                gone = with_key.iter().copied().filter(|one| *one != host).collect();
                taken = true;
            }
            _ if with_key.is_empty() => return refuse(Verdict::Conflict),
            _ => {
                gone = with_key;
                taken = false;
            }
        }
        let mut told: Told = gone.iter().filter(|one| **one != host).map(|one| (*one, 1)).collect();
        let mut next = self.without(&gone);
        if taken {
            next = next.held_by(host, kind);
            if self.kind != kind {
                told.extend(next.others(host, 2));
            }
        }
        (Verdict::Done, next, told, true)
    }
}

impl Ask {
    fn current(self) -> u64 {
        match self {
            Ask::Register { current, .. } | Ask::Acquire { current, .. } | Ask::Release { current, .. } => current,
        }
    }
}
