//! What the superblocks say when a parity device is opened. A pure decision, so that it can be tested without devices.
//!
//! Any two sets of all members but one have a member in common, since there are three at least. So whoever opens the device
//! sees a superblock of every state that anything was acknowledged under, and members cannot be used without each other.

use super::format::{MemberState, Superblock};

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
    /// These members lack data; one can be done without.
    Lost(Vec<usize>),
}

/// The states of the members, decided from the superblocks that are present (`None`: absent, or nothing that can be read).
/// `blank` says which are there and hold nothing: they are rebuilt. Returns the newest superblock with the new states.
///
/// The newest superblock rules. A member that it calls in sync has its part of every acknowledged write, whatever its own
/// generation: a write is acknowledged only after the member that missed it was called failed, durably, on all others.
pub(super) fn decide(found: &[Option<Superblock>], blank: &[bool]) -> Result<Superblock, Disagreement> {
    let array_id = prevailing(found).ok_or(Disagreement::Nothing)?;
    let own = |index: usize| found[index].as_ref();
    for index in 0..found.len() {
        match own(index) {
            Some(own) if own.array_id != array_id => return Err(Disagreement::Foreign(index)),
            Some(own) if own.member_index != index => return Err(Disagreement::Swapped(index, own.member_index)),
            _ => {}
        }
    }
    let newest = found.iter().flatten().max_by_key(|own| own.generation).ok_or(Disagreement::Nothing)?;
    let shape = |own: &Superblock| (own.geometry, own.block_size, own.members.len());
    let differs = |index: &usize| own(*index).is_some_and(|own| shape(own) != shape(newest));
    if let Some(index) = (0..found.len()).find(differs) {
        return Err(Disagreement::Differs(index));
    }
    let mut decided = newest.clone();
    for (index, record) in decided.members.iter_mut().enumerate() {
        let is_same = own(index).is_some_and(|own| own.members[index].id == record.id);
        if !is_same {
            (record.state, record.rebuilt_rows) = (MemberState::Failed, 0);
        }
    }
    retire_old_copy(found, &mut decided);
    let lacking = |decided: &Superblock| -> Vec<usize> {
        (0..found.len()).filter(|index| decided.members[*index].state != MemberState::InSync).collect()
    };
    let lost = lacking(&decided);
    if lost.len() > 1 {
        return Err(Disagreement::Lost(lost));
    }
    if let [index] = lost[..]
        && blank[index]
    {
        decided.members[index].state = MemberState::Rebuilding;
    }
    Ok(decided)
}

/// The identity that most members carry; of two that are as frequent, that of the first.
fn prevailing(found: &[Option<Superblock>]) -> Option<[u8; 16]> {
    let count = |id: [u8; 16]| found.iter().flatten().filter(|own| own.array_id == id).count();
    let ids = found.iter().flatten().map(|own| own.array_id);
    ids.rev().max_by_key(|id| count(*id))
}

/// A member whose superblock is more than one generation behind, alone, was put back from a copy: while a member refuses a
/// generation it is called failed in the next one, and of two that refuse none is.
fn retire_old_copy(found: &[Option<Superblock>], decided: &mut Superblock) {
    let in_sync = |index: &usize| decided.members[*index].state == MemberState::InSync;
    let is_behind =
        |index: &usize| found[*index].as_ref().is_some_and(|own| own.generation.saturating_add(1) < decided.generation);
    if (0..found.len()).all(|index| in_sync(&index)) {
        let behind: Vec<usize> = (0..found.len()).filter(is_behind).collect();
        if let [index] = behind[..] {
            decided.members[index].state = MemberState::Failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::MemberRecord;
    use super::super::rows::Rows;
    use super::*;
    use MemberState::{Failed, InSync, Rebuilding};

    fn superblock(index: usize, generation: u64, states: [MemberState; 3]) -> Option<Superblock> {
        let member = |(n, state)| MemberRecord { id: [n as u8; 16], state, rebuilt_rows: 0 };
        Some(Superblock {
            array_id: [1; 16],
            generation,
            features: 0,
            block_size: 4096,
            member_index: index,
            clean: false,
            geometry: Rows { members: 3, chunk: 4, data_start: 2, head: 8, rows: 10 },
            members: states.into_iter().enumerate().map(member).collect(),
        })
    }

    fn all(generations: [u64; 3], states: [MemberState; 3]) -> Vec<Option<Superblock>> {
        (0..3).map(|index| superblock(index, generations[index], states)).collect()
    }

    fn states(found: &[Option<Superblock>]) -> Result<Vec<MemberState>, Disagreement> {
        let decided = decide(found, &[false; 3])?;
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
        let decided = decide(&found, &[false, true, false]).unwrap();
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
        assert_eq!(states(&all([9, 5, 9], [InSync; 3])), Ok(vec![InSync, Failed, InSync]));
        // Two that could not be written, and so could not be called failed, have all that was acknowledged.
        assert_eq!(states(&all([9, 5, 5], [InSync; 3])), Ok(vec![InSync; 3]));
    }

    #[test]
    fn foreign_and_swapped_members_are_named() {
        let mut found = all([5; 3], [InSync; 3]);
        found.swap(0, 2);
        assert_eq!(states(&found), Err(Disagreement::Swapped(0, 2)));
        let mut found = all([5; 3], [InSync; 3]);
        found[0].as_mut().unwrap().array_id = [7; 16];
        assert_eq!(states(&found), Err(Disagreement::Foreign(0)));
        let mut found = all([5; 3], [InSync; 3]);
        found[1].as_mut().unwrap().geometry.chunk = 8;
        assert_eq!(states(&found), Err(Disagreement::Differs(1)));
    }
}
