//! What the superblocks say when a parity device is opened. A pure decision, so that it can be tested without devices.
//!
//! A superblock is *in force* when all members that it calls in use have it, and only then is anything acknowledged that
//! relies on it. Any two sets of all members but one have a member in common, since there are three at least. So whoever
//! opens the device sees one that was in force last, and members cannot be used without each other.
//!
//! It is found so: a member that a superblock calls in use, and that never had it, proves that it was never in force.
//! Members get ever later generations, and each superblock says which one ruled when it was made; so all members that the
//! one in force calls in use are seen to have had it. One that never was in force, of a time before it, and yet of a later
//! generation, is refuted by any member that both call in use. One that never was, of a time after it, may rule when nobody
//! refutes it: nothing has been acknowledged since.

use super::format::{MemberRecord, MemberState, Superblock};
use super::rows::Rows;
use std::cmp::{Ordering, Reverse};

/// Why members do not make a parity device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disagreement {
    /// No member is here.
    Nothing,
    /// A member belongs to another device.
    Foreign(usize),
    /// What is given as the first is the second.
    Swapped(usize, usize),
    /// Members of another geometry, though they carry the same identity.
    Differs(usize),
    /// The two were used without each other: as parts of copies of the device.
    Apart(usize, usize),
    /// The device has so many members.
    Count(usize),
    /// These members lack data; one can be done without.
    Lost(Vec<usize>),
}

impl Disagreement {
    /// The member that does not fit.
    pub(super) fn index(&self) -> Option<usize> {
        match self {
            Disagreement::Foreign(index)
            | Disagreement::Swapped(index, _)
            | Disagreement::Differs(index)
            | Disagreement::Apart(index, _) => Some(*index),
            _ => None,
        }
    }
}

/// How a device is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// The one that rules, with the new states.
    pub(super) superblock: Superblock,
    /// Members that hold something else, and count as absent: the others suffice.
    pub(super) unfit: Vec<Disagreement>,
    /// The member that was put back from a copy: it is filled anew, as a blank one is.
    pub(super) put_back: Option<usize>,
}

/// The states of the members, decided from the superblocks that are present (`None`: absent, or nothing that can be read).
/// `blank` says which are there and hold nothing: they are rebuilt. Returns the superblock that rules with the new states,
/// and the last generation that any has.
///
/// The newest superblock that may have been in force rules. A member that it calls in sync has its part of every
/// acknowledged write: a write is acknowledged only after the member that missed it was called failed, durably, on all
/// others. Superblocks that were never in force are passed over, however new: they may be of an attempt to open the device
/// with fewer members than those that went on without it.
pub(super) fn decide(found: &[Option<Superblock>], blank: &[bool]) -> Result<Decided, Disagreement> {
    let array_id = prevailing(found).ok_or(Disagreement::Nothing)?;
    let (mut found, mut unfit) = (found.to_vec(), Vec::new());
    for (index, own) in found.iter_mut().enumerate() {
        unfit.extend(match own {
            Some(own) if own.array_id != array_id => Some(Disagreement::Foreign(index)),
            Some(own) if own.member_index != index => Some(Disagreement::Swapped(index, own.member_index)),
            _ => None,
        });
        if unfit.last().is_some_and(|unfit| unfit.index() == Some(index)) {
            *own = None;
        }
    }
    let first_unfit = |unfit: &[Disagreement]| unfit.first().cloned().unwrap_or(Disagreement::Nothing);
    let newest = found.iter().flatten().max_by_key(|own| own.generation).cloned();
    let newest = newest.ok_or_else(|| first_unfit(&unfit))?;
    if newest.members.len() != found.len() {
        return Err(Disagreement::Count(newest.members.len()));
    }
    // Members of different generations may have different numbers of rows: the device has grown.
    let shape = |own: &Superblock| (Rows { rows: 0, ..own.geometry }, own.block_size, own.members.len());
    for (index, own) in found.iter_mut().enumerate() {
        if own.take_if(|own| shape(own) != shape(&newest)).is_some() {
            unfit.push(Disagreement::Differs(index));
        }
    }
    for (index, other) in used_apart(&found) {
        found[index] = None;
        unfit.push(Disagreement::Apart(index, other));
    }
    let found = &found[..];
    let (mut decided, put_back) = ruling(found).ok_or(Disagreement::Nothing)?;
    // What is written next must look newer than all that was ever attempted.
    decided.generation = newest.generation;
    for (index, record) in decided.members.iter_mut().enumerate() {
        if !is_who(found, index, record) {
            (record.state, record.rebuilt_rows) = (MemberState::Failed, 0);
        }
    }
    let lacking = |decided: &Superblock| -> Vec<usize> {
        (0..found.len()).filter(|index| decided.members[*index].state != MemberState::InSync).collect()
    };
    let lost = lacking(&decided);
    if lost.len() > 1 {
        return Err(unfit.into_iter().next().unwrap_or(Disagreement::Lost(lost)));
    }
    // All others have everything: what this one has, or had, is computed from them.
    let put_back = put_back.filter(|index| lost == [*index]);
    if let [index] = lost[..]
        && (blank[index] || put_back.is_some())
    {
        decided.members[index].state = MemberState::Rebuilding;
    }
    Ok(Decided { superblock: decided, unfit, put_back })
}

/// The identity that most members carry; of two that are as frequent, that of the first.
fn prevailing(found: &[Option<Superblock>]) -> Option<[u8; 16]> {
    let count = |id: [u8; 16]| found.iter().flatten().filter(|own| own.array_id == id).count();
    let ids = found.iter().flatten().map(|own| own.array_id);
    ids.rev().max_by_key(|id| count(*id))
}

/// The last generation that was in force for certain, as a superblock knows it.
fn in_force(own: &Superblock) -> u64 {
    match own.openings.at(own.generation) == own.base.opening {
        true => own.base.generation,
        false => own.openings.settled(own.base.generation),
    }
}

/// Whether two members were used without each other, as parts of copies of the device: they know different openings of the last generation
/// that both know to have been in force.
pub(super) fn went_apart(one: &Superblock, other: &Superblock) -> bool {
    one.openings.differ_at(&other.openings, in_force(one).min(in_force(other)))
}

/// The members that were used apart from most, each with one of those. Of parts that are as large, the one with the newest member stays.
fn used_apart(found: &[Option<Superblock>]) -> Vec<(usize, usize)> {
    let apart_from = |one: &Superblock| -> Vec<usize> {
        let is_apart = |index: &usize| found[*index].as_ref().is_some_and(|own| went_apart(own, one));
        (0..found.len()).filter(is_apart).collect()
    };
    let parts = found.iter().enumerate().filter_map(|(index, own)| Some((index, own.as_ref()?)));
    let parts = parts.map(|(index, own)| (apart_from(own), Reverse(own.generation), index));
    // One whose history is not known is apart from none.
    let parts = parts.filter(|(apart, ..)| !apart.is_empty());
    let Some((apart, _, stays)) = parts.min_by_key(|(apart, generation, _)| (apart.len(), *generation)) else {
        return Vec::new();
    };
    apart.into_iter().map(|index| (index, stays)).collect()
}

/// The superblock that rules: the newest one that is not refuted. Nothing older than what any was made on; and where what
/// they were made on has been overwritten everywhere, by attempts alone, the newest of these: nothing has been acknowledged
/// since. Its base is what superblocks that are made now stand on. And the member that was put back from a copy, if one was.
fn ruling(found: &[Option<Superblock>]) -> Option<(Superblock, Option<usize>)> {
    let own = || found.iter().flatten();
    let base = own().map(|own| own.base.generation).max()?;
    let stands_on = |candidate: &Superblock| own().any(|own| own.base.is(&candidate.as_base()));
    let is_late = |candidate: &Superblock| match candidate.generation.cmp(&base) {
        Ordering::Less => false,
        Ordering::Equal => stands_on(candidate),
        Ordering::Greater => true,
    };
    let mut candidates: Vec<&Superblock> = own().filter(|own| is_late(own)).collect();
    candidates.sort_by_key(|candidate| Reverse(candidate.generation));
    let newest_attempt = || {
        let newest = candidates.iter().find(|own| own.base.generation == base);
        newest.map(|own| (without_put_back(found, own), None))
    };
    // Not that attempt is what the next superblocks stand on: nobody but one may ever have had it.
    let unrefuted = |candidate: &&Superblock| {
        let (ruling, put_back) = unless_refuted(found, candidate)?;
        Some((Superblock { base: candidate.as_base(), ..ruling }, put_back))
    };
    candidates.iter().find_map(unrefuted).or_else(newest_attempt)
}

/// Whether the device at a place is the one that a superblock means.
fn is_who(found: &[Option<Superblock>], index: usize, record: &MemberRecord) -> bool {
    found[index].as_ref().is_some_and(|own| own.members[index].id == record.id)
}

/// Whether a member has had a superblock: it carries it, or one that was made on it.
fn has_had(own: &Superblock, candidate: &Superblock) -> bool {
    let candidate = candidate.as_base();
    own.as_base().is(&candidate) || own.base.is(&candidate)
}

/// A superblock that may have been in force; `None` when members that it calls in use prove that it never was.
///
/// One member that is more than one generation behind, alone, proves nothing: it was put back from a copy, and does not count.
/// While a member refuses a generation it is called failed in the next one, and of two that refuse none is.
fn unless_refuted(found: &[Option<Superblock>], candidate: &Superblock) -> Option<(Superblock, Option<usize>)> {
    let mut candidate = candidate.clone();
    let contradicts = |index: &usize| {
        let record = &candidate.members[*index];
        let is_in_use = record.state != MemberState::Failed && is_who(found, *index, record);
        is_in_use && found[*index].as_ref().is_some_and(|own| !has_had(own, &candidate))
    };
    let against: Vec<usize> = (0..found.len()).filter(contradicts).collect();
    let is_whole = candidate
        .members
        .iter()
        .enumerate()
        .all(|(index, record)| record.state == MemberState::InSync && is_who(found, index, record));
    match against[..] {
        [] => Some((candidate, None)),
        [index] if is_whole && behind(found, index, &candidate) > 1 => {
            candidate.members[index].state = MemberState::Failed;
            Some((candidate, Some(index)))
        }
        _ => None,
    }
}

/// How many generations a member is behind a superblock.
fn behind(found: &[Option<Superblock>], index: usize, candidate: &Superblock) -> u64 {
    found[index].as_ref().map_or(0, |own| candidate.generation.saturating_sub(own.generation))
}

/// An attempt that rules, in which members count as failed that are older than what it was made on and never had it: they were put
/// back from copies, several, or one while another is away or has failed. And those that had a generation of another opening in its place.
fn without_put_back(found: &[Option<Superblock>], attempt: &Superblock) -> Superblock {
    let mut ruling = attempt.clone();
    let base = attempt.base;
    let knows = |own: &Superblock| own.base.is(&base) || own.as_base().is(&base);
    // Whoever attempts anything after a generation that was in force knows it, and takes a later one.
    let (certain, differs_at) =
        (in_force(attempt), |own: &Superblock, at| own.openings.differ_at(&attempt.openings, at));
    let is_elsewhere = |own: &Superblock| {
        let had_another = [own.generation, own.base.generation].contains(&base.generation);
        (had_another && differs_at(own, base.generation)) || (own.generation >= certain && differs_at(own, certain))
    };
    for (index, record) in ruling.members.iter_mut().enumerate() {
        let is_before = |own: &Superblock| own.generation < base.generation && behind(found, index, attempt) > 1;
        let never_had_it = |own: &Superblock| !knows(own) && (is_before(own) || is_elsewhere(own));
        if is_who(found, index, record) && found[index].as_ref().is_some_and(never_had_it) {
            record.state = MemberState::Failed;
        }
    }
    ruling
}

#[cfg(test)]
mod tests {
    use super::super::format::Base;
    use super::*;
    use crate::openings::Openings;
    use MemberState::{Failed, InSync, Rebuilding};
    use std::cell::Cell;
    use std::rc::Rc;

    fn superblock(index: usize, generation: u64, states: [MemberState; 3]) -> Option<Superblock> {
        let member = |(n, state)| MemberRecord { id: [n as u8; 16], state, rebuilt_rows: 0 };
        Some(Superblock {
            array_id: [1; 16],
            generation,
            base: Base::default(),
            features: 0,
            block_size: 4096,
            member_index: index,
            clean: false,
            geometry: Rows { members: 3, chunk: 4, data_start: 2, head: 8, rows: 10 },
            members: states.into_iter().enumerate().map(member).collect(),
            openings: Openings::default(),
        })
    }

    fn all(generations: [u64; 3], states: [MemberState; 3]) -> Vec<Option<Superblock>> {
        (0..3).map(|index| superblock(index, generations[index], states)).collect()
    }

    fn states(found: &[Option<Superblock>]) -> Result<Vec<MemberState>, Disagreement> {
        let decided = decide(found, &[false; 3])?.superblock;
        Ok(decided.members.iter().map(|member| member.state).collect())
    }

    #[test]
    fn a_crash_between_two_superblock_writes_costs_nothing() {
        assert_eq!(states(&all([6, 5, 5], [InSync; 3])), Ok(vec![InSync; 3]));
        assert_eq!(states(&all([5, 6, 6], [InSync; 3])), Ok(vec![InSync; 3]));
    }

    #[test]
    fn one_absent_member_is_done_without_and_two_are_not() {
        let mut found = all([5; 3], [InSync; 3]);
        found[1] = None;
        assert_eq!(states(&found), Ok(vec![InSync, Failed, InSync]));
        let decided = decide(&found, &[false, true, false]).unwrap().superblock;
        assert_eq!(decided.members[1].state, Rebuilding);
        found[2] = None;
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![1, 2])));
        assert_eq!(states(&[None, None, None]), Err(Disagreement::Nothing));
    }

    #[test]
    fn a_member_that_was_called_failed_stays_so_whoever_is_away() {
        let mut found = all([6; 3], [Failed, InSync, InSync]);
        found[0] = superblock(0, 5, [InSync; 3]);
        assert_eq!(states(&found), Ok(vec![Failed, InSync, InSync]));
        // The old one and one of the others: what the third has is needed.
        found[2] = None;
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![0, 2])));
    }

    #[test]
    fn a_rebuild_goes_on_with_the_device_that_it_began_on_alone() {
        let mut found = all([6; 3], [Rebuilding, InSync, InSync]);
        assert_eq!(states(&found), Ok(vec![Rebuilding, InSync, InSync]));
        found[0].as_mut().unwrap().members[0].id = [9; 16];
        found[0].as_mut().unwrap().generation = 5;
        assert_eq!(states(&found), Ok(vec![Failed, InSync, InSync]));
        found[0] = None;
        assert_eq!(states(&found), Ok(vec![Failed, InSync, InSync]));
    }

    #[test]
    fn a_device_whose_place_was_taken_and_a_restored_copy_are_not_members_in_sync() {
        let mut found = all([9; 3], [InSync; 3]);
        found.iter_mut().skip(1).for_each(|own| own.as_mut().unwrap().members[0].id = [9; 16]);
        found[0].as_mut().unwrap().generation = 3;
        assert_eq!(states(&found), Ok(vec![Failed, InSync, InSync]));
        assert_eq!(states(&all([9, 5, 9], [InSync; 3])), Ok(vec![InSync, Rebuilding, InSync]));
        assert_eq!(decide(&all([9, 5, 9], [InSync; 3]), &[false; 3]).unwrap().put_back, Some(1));
        // Two that could not be written, and so could not be called failed, have all that was acknowledged.
        assert_eq!(states(&all([9, 5, 5], [InSync; 3])), Ok(vec![InSync; 3]));
    }

    #[test]
    fn a_generation_that_was_never_in_force_does_not_rule_however_late() {
        let (without_2, without_0) = ([InSync, InSync, Failed], [Failed, InSync, InSync]);
        let mut found = all([6; 3], without_0);
        found[0] = superblock(0, 9, without_2);
        assert_eq!(states(&found), Ok(without_0.to_vec()));
        let decided = decide(&found, &[false; 3]).unwrap().superblock;
        assert_eq!((decided.generation, decided.base), (9, found[1].as_ref().unwrap().as_base()));
        // The same generation, by chance.
        found[0] = superblock(0, 6, without_2);
        assert_eq!(states(&found), Ok(without_0.to_vec()));
        // A later attempt of the others too, that one of them refused.
        found[0] = superblock(0, 9, without_2);
        found[1] = superblock(1, 10, without_0);
        found[1].as_mut().unwrap().base = found[2].as_ref().unwrap().as_base();
        assert_eq!(states(&found), Ok(without_0.to_vec()));
        // Who could tell is away.
        found[1] = None;
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![1, 2])));
        let mut found = all([6; 3], without_0);
        (found[0], found[2]) = (superblock(0, 9, without_2), None);
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![0, 2])));
    }

    #[test]
    fn one_that_was_put_back_from_a_copy_does_not_stand_in_for_one_that_is_away() {
        let mut found = all([9, 5, 9], [InSync; 3]);
        let before = superblock(0, 8, [InSync; 3]).unwrap().as_base();
        found.iter_mut().flatten().filter(|own| own.generation == 9).for_each(|own| own.base = before);
        found[1].as_mut().unwrap().base = superblock(0, 4, [InSync; 3]).unwrap().as_base();
        assert_eq!(states(&found), Ok(vec![InSync, Rebuilding, InSync]));
        found[2] = None;
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![1, 2])));
        // Nor do two.
        found[2] = found[1].clone();
        let own = found[2].as_mut().unwrap();
        own.member_index = 2;
        assert_eq!(states(&found), Err(Disagreement::Lost(vec![1, 2])));
    }

    fn shown(found: &[Option<Superblock>]) -> String {
        let show = |own: &Superblock| {
            let states: Vec<_> = own.members.iter().map(|record| record.state).collect();
            format!("generation {} on {:?}, {states:?}, {:?}", own.generation, own.base, own.openings)
        };
        found.iter().map(|own| own.as_ref().map_or("\n-".to_string(), |own| format!("\n{}", show(own)))).collect()
    }

    /// Members of a device, as they are over many lives.
    #[derive(Clone)]
    struct History {
        disks: Vec<Option<Superblock>>,
        /// The last life whose writes each member has.
        has: Vec<u64>,
        /// The last life that acknowledged any.
        last: u64,
        /// Of all copies of it.
        openings: Rc<Cell<u64>>,
    }

    impl History {
        fn new(count: usize) -> History {
            let mut disks = all([1; 3], [InSync; 3]);
            if count == 4 {
                disks.push(superblock(3, 1, [InSync; 3]));
                for own in disks.iter_mut().flatten() {
                    own.members.push(MemberRecord { id: [3; 16], state: InSync, rebuilt_rows: 0 });
                }
            }
            disks.iter_mut().flatten().for_each(|own| own.openings.begin(1, 1));
            History { disks, has: vec![0; count], last: 0, openings: Rc::new(Cell::new(1)) }
        }

        /// Opens the device without one; who is in sync has all that was acknowledged.
        fn open(&self, away: usize, may_fail: bool) -> Option<Superblock> {
            let count = self.disks.len();
            let seen: Vec<_> = (0..count).map(|n| self.disks[n].clone().filter(|_| n != away)).collect();
            let decided = decide(&seen, &vec![false; count]);
            assert!(decided.is_ok() || away < count || may_fail, "all are here: {decided:?} {}", shown(&seen));
            let decided = decided.ok()?;
            assert_eq!(decided.unfit, [], "{}", shown(&seen));
            let mut current = decided.superblock;
            for (n, record) in current.members.iter().enumerate().filter(|(_, record)| record.state == InSync) {
                assert_eq!(self.has[n], self.last, "member {n} is stale: {record:?} {}", shown(&seen));
            }
            self.openings.set(self.openings.get() + 1);
            current.openings.begin(current.generation + 1, self.openings.get());
            Some(current)
        }

        /// Opens it with all members, or all but one; a crash may come at the first superblock or later.
        fn live(&mut self, rng: &mut base::Rng, life: u64) {
            let count = self.disks.len();
            let away = if rng.one_in(3) { rng.below(count as u64) as usize } else { count };
            let Some(mut current) = self.open(away, false) else { return };
            if rng.one_in(4) {
                current.generation += 1;
                let in_use = (0..count).filter(|n| current.members[*n].state == InSync);
                for n in in_use.take(rng.below(count as u64) as usize) {
                    self.disks[n] = Some(Superblock { member_index: n, ..current.clone() });
                }
                return;
            }
            // Nothing is acknowledged before the second.
            let before = (self.has.clone(), self.last);
            self.write(&mut current, &vec![false; count], life);
            if rng.one_in(4) {
                (self.has, self.last) = before;
                return;
            }
            for _ in 0..rng.between(1, 3) {
                self.write(&mut current, &vec![false; count], life);
            }
        }

        /// Writes superblocks to those in use, some of whom refuse; whether one came into force.
        fn write(&mut self, current: &mut Superblock, refuses: &[bool], life: u64) -> bool {
            current.generation += 1;
            let count = self.disks.len();
            let in_use: Vec<usize> = (0..count).filter(|n| current.members[*n].state == InSync).collect();
            let (refused, taken): (Vec<usize>, Vec<usize>) = in_use.iter().copied().partition(|n| refuses[*n]);
            for n in taken {
                self.disks[n] = Some(Superblock { member_index: n, ..current.clone() });
            }
            if refused.is_empty() {
                current.base = current.as_base();
                self.last = life;
                in_use.iter().for_each(|n| self.has[*n] = life);
                return true;
            }
            if refused.len() == 1 && in_use.len() == count {
                current.members[refused[0]].state = Failed;
            }
            false
        }
    }

    /// Members that refuse superblocks or are away: whoever is in sync has all that was acknowledged.
    #[test]
    fn no_history_of_refusals_and_absences_makes_a_stale_member_current() {
        let mut rng = base::Rng::new(7);
        for _ in 0..20_000 {
            let count = 3 + rng.below(2) as usize;
            let mut history = History::new(count);
            for life in 1..12 {
                let away = rng.below(count as u64 + 2) as usize;
                let Some(mut current) = history.open(away, false) else { continue };
                let refuses: Vec<bool> = (0..count).map(|_| rng.one_in(3)).collect();
                for _ in 0..rng.between(1, 3) {
                    if history.write(&mut current, &refuses, life) {
                        break;
                    }
                }
            }
        }
    }

    /// The same while nobody refuses, and members are put back from copies of a life before: beside all others, beside one
    /// that has failed, or while another is away.
    #[test]
    fn no_member_that_was_put_back_from_a_copy_is_current() {
        let mut rng = base::Rng::new(8);
        for _ in 0..20_000 {
            let count = 3 + rng.below(2) as usize;
            let (mut history, mut copies) = (History::new(count), Vec::new());
            for life in 1..6 {
                copies.push((history.disks.clone(), history.has.clone()));
                let away = if rng.one_in(3) { rng.below(count as u64) as usize } else { count };
                let Some(mut current) = history.open(away, false) else { continue };
                // Each opening writes two.
                for _ in 0..rng.between(2, 4) {
                    assert!(history.write(&mut current, &vec![false; count], life));
                }
            }
            let (disks, has) = &copies[rng.below(5) as usize];
            for _ in 0..rng.between(1, 2) {
                let member = rng.below(count as u64) as usize;
                (history.disks[member], history.has[member]) = (disks[member].clone(), has[member]);
            }
            let away = rng.below(count as u64 + 1) as usize;
            // Where nobody is left who knows of later writes, nobody can tell.
            if (0..count).any(|n| n != away && history.has[n] == history.last) {
                history.open(away, true);
            }
        }
    }

    /// Copies of a device that are used apart, each for some lives that may end in a crash: members of several make one only where those
    /// that count are of one copy, and have all that it acknowledged.
    #[test]
    fn no_members_of_copies_that_were_used_apart_are_current_together() {
        let mut rng = base::Rng::new(9);
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..40_000 {
            let count = 3 + rng.below(2) as usize;
            let mut common = History::new(count);
            for _ in 0..rng.below(3) {
                common.live(&mut rng, 0);
            }
            let mut copies = [common.clone(), common];
            for (copy, life) in copies.iter_mut().zip([1, 2]) {
                (0..rng.between(1, 3)).for_each(|_| copy.live(&mut rng, life));
            }
            let of: Vec<usize> = (0..count).map(|_| rng.below(2) as usize).collect();
            let mixed: Vec<_> = (0..count).map(|n| copies[of[n]].disks[n].clone()).collect();
            let Ok(decided) = decide(&mixed, &vec![false; count]) else {
                refused += 1;
                continue;
            };
            let lives = decided.superblock.members.iter().enumerate().filter(|(_, record)| record.state == InSync);
            let lives: Vec<u64> = lives.map(|(n, _)| copies[of[n]].has[n]).collect();
            let last = lives.iter().copied().max().unwrap();
            assert!(lives.iter().all(|life| *life == last), "{of:?} {lives:?} {}", shown(&mixed));
            opened += 1;
        }
        assert!(opened > 1_000 && refused > 1_000, "{opened} {refused}");
    }

    #[test]
    fn a_crash_while_the_rows_become_more_leaves_them_as_they_were_or_as_they_become() {
        let rows =
            |found: &[Option<Superblock>]| decide(found, &[false; 3]).map(|decided| decided.superblock.geometry.rows);
        let mut found = all([5, 5, 5], [InSync; 3]);
        for index in 0..3 {
            let own = found[index].as_mut().unwrap();
            let base = own.as_base();
            (own.generation, own.base, own.geometry.rows) = (6, base, 20);
            // Nothing beyond the former rows has been acknowledged until all have it.
            let expected = if index < 2 { 10 } else { 20 };
            assert_eq!(rows(&found), Ok(expected), "written on {} members", index + 1);
        }
        // One refused it, and was called failed in the next, which has them too.
        let mut found = all([5, 7, 7], [Failed, InSync, InSync]);
        found[0] = superblock(0, 5, [InSync; 3]);
        let base = found[0].as_ref().unwrap().as_base();
        for own in found[1..].iter_mut().flatten() {
            (own.base, own.geometry.rows) = (base, 20);
        }
        assert_eq!(rows(&found), Ok(20));
        // The members that went on without the one that had it.
        let mut found = all([7, 7, 6], [InSync, InSync, Failed]);
        found[2] = superblock(2, 6, [InSync; 3]);
        found[2].as_mut().unwrap().geometry.rows = 20;
        assert_eq!(rows(&found), Ok(10));
    }

    #[test]
    fn foreign_and_swapped_members_are_named() {
        let mut found = all([5; 3], [InSync; 3]);
        found.swap(0, 2);
        assert_eq!(states(&found), Err(Disagreement::Swapped(0, 2)));
        // One alone is done without.
        type Change = fn(&mut Superblock);
        let changes: [(Change, Disagreement); 3] = [
            (|own| own.array_id = [7; 16], Disagreement::Foreign(1)),
            (|own| own.member_index = 2, Disagreement::Swapped(1, 2)),
            (|own| own.geometry.head = 7, Disagreement::Differs(1)),
        ];
        for (change, unfit) in changes {
            let mut found = all([5, 4, 5], [InSync; 3]);
            change(found[1].as_mut().unwrap());
            let decided = decide(&found, &[false; 3]).unwrap();
            assert_eq!(decided.unfit, std::slice::from_ref(&unfit));
            assert_eq!(states(&found), Ok(vec![InSync, Failed, InSync]));
            found[2] = None;
            let why = states(&found).unwrap_err();
            assert!(why == unfit || why == Disagreement::Foreign(0) || matches!(why, Disagreement::Lost(_)), "{why:?}");
        }
        let mut found = all([5; 3], [InSync; 3]);
        found.pop();
        assert_eq!(decide(&found, &[false; 2]), Err(Disagreement::Count(3)));
    }
}
