//! What superblocks say when a mirror is opened. Pure decisions are functions of superblocks, so that
//! they can be tested without devices.

use super::LegSet;
use super::format::{LegRecord, LegState, Superblock};

/// Why legs do not make a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Disagreement {
    /// Two legs went on without each other; each has writes that the other lacks.
    SplitBrain(usize, usize),
    /// Legs are absent that may have newer writes than all that are here.
    MayBeStale(LegSet),
    /// A leg belongs to another mirror, or elsewhere in this one.
    WrongLeg(usize),
    /// A leg holds nothing that tells what it is.
    Unreadable(usize),
    /// No leg in sync is here.
    NothingInSync,
    /// The leg whose data were to survive is not here, or is no complete one by its own superblock.
    NoSuchData(usize),
}

/// The state of each leg when a mirror is opened, decided from the superblocks that are present (`None`: the leg is
/// absent, or new and blank). Returns the newest superblock with the new states.
///
/// The newest superblock rules. A leg that it calls in sync has every acknowledged write, whatever the leg's own
/// generation: a write is acknowledged only after every leg that missed it was called failed, durably, on the others. Unless it was
/// put back from a copy: since each opening writes two generations, that leg is two behind, and filled anew. A leg that took part in
/// openings that the newest superblock does not know was used apart, as one was that calls the leg of that superblock failed.
pub(super) fn decide(
    found: &[Option<Superblock>],
    blank: &[bool],
    start_degraded: bool,
    prefer: Option<usize>,
) -> Result<Superblock, Disagreement> {
    let candidates = found.iter().enumerate().filter_map(|(index, found)| found.as_ref().map(|found| (index, found)));
    let in_sync_itself = |(index, superblock): &(usize, &Superblock)| {
        superblock.legs.get(*index).is_some_and(|leg| leg.state == LegState::InSync)
    };
    let preferred = |index: usize| prefer == Some(index);
    if let Some(prefer) = prefer
        && !candidates.clone().filter(in_sync_itself).any(|(index, _)| index == prefer)
    {
        return Err(Disagreement::NoSuchData(prefer));
    }
    let newest = candidates
        .clone()
        .filter(in_sync_itself)
        .max_by_key(|(index, superblock)| (preferred(*index), superblock.generation));
    let Some((ruler, newest)) = newest else { return Err(Disagreement::NothingInSync) };
    let mut decided = newest.clone();
    decided.leg_index = ruler;
    decided.generation = candidates.clone().map(|(_, found)| found.generation).max().unwrap_or(0);
    for (index, leg) in decided.legs.iter_mut().enumerate() {
        match found.get(index).and_then(Option::as_ref) {
            Some(own) => {
                if !is_leg(own, index, newest) {
                    return Err(Disagreement::WrongLeg(index));
                }
                let went_on_alone = own.legs[index].state == LegState::InSync
                    && (lost_sight(own, newest, index, ruler) || went_apart(own, newest));
                if index != ruler && went_on_alone && prefer.is_none() {
                    return Err(Disagreement::SplitBrain(ruler, index));
                }
                // No leg in sync misses two generations, unless two crashes in a row were each in the midst of writing one.
                let is_copy = own.generation.abs_diff(newest.generation) > 1 || is_elsewhere(own, newest);
                leg.state = match leg.state {
                    LegState::InSync if index != ruler && (is_copy || went_on_alone) => LegState::RecoveringFull,
                    _ => returning(leg, own, newest, went_on_alone),
                };
            }
            None => {
                if leg.state == LegState::InSync && !start_degraded {
                    let is_needed = |leg: &usize| {
                        newest.legs[*leg].state == LegState::InSync && found.get(*leg).is_none_or(Option::is_none)
                    };
                    return Err(Disagreement::MayBeStale((0..newest.legs.len()).filter(is_needed).collect()));
                }
                leg.failed_generation = match leg.state {
                    LegState::InSync => decided.generation + 1,
                    // Still as it was when it failed, for all that is known; bits have only been set since.
                    LegState::Failed => leg.failed_generation,
                    // Zero matches no leg: one that was being caught up comes back in full.
                    LegState::RecoveringDirty | LegState::RecoveringFull => 0,
                };
                leg.state = if blank[index] { LegState::RecoveringFull } else { LegState::Failed };
            }
        }
    }
    Ok(decided)
}

/// The state of leg `index`, absent or failed so far, when it is taken into a mirror in use whose superblock is `current`.
/// `own` is what was found on the leg; `blank` says that it holds nothing at all. With `overwrite` whatever it holds may go.
pub(super) fn arriving(
    current: &Superblock,
    own: Option<&Superblock>,
    blank: bool,
    index: usize,
    overwrite: bool,
) -> Result<LegState, Disagreement> {
    let belongs = |own: &&Superblock| is_leg(own, index, current);
    match own {
        None if blank || overwrite => Ok(LegState::RecoveringFull),
        None => Err(Disagreement::Unreadable(index)),
        Some(own) if !belongs(&own) && overwrite => Ok(LegState::RecoveringFull),
        Some(own) if !belongs(&own) => Err(Disagreement::WrongLeg(index)),
        Some(own) => {
            let in_use = (0..current.legs.len()).filter(|leg| current.legs[*leg].state == LegState::InSync);
            let went_on_alone = own.legs[index].state == LegState::InSync;
            let lost_sight = |leg: usize| lost_sight(own, current, index, leg) || went_apart(own, current);
            let without = in_use.into_iter().find(|leg| went_on_alone && lost_sight(*leg));
            match without {
                Some(leg) if !overwrite => Err(Disagreement::SplitBrain(leg, index)),
                without => Ok(returning(&current.legs[index], own, current, without.is_some())),
            }
        }
    }
}

/// Whether a superblock is that of leg `index` of a mirror. One of before the mirror has grown, or of when it grew, has another size.
fn is_leg(own: &Superblock, index: usize, mirror: &Superblock) -> bool {
    own.mirror_id == mirror.mirror_id && own.leg_index == index && own.is_laid_out_like(mirror)
}

/// Whether leg `index`, by its `own` superblock, went on without the ruling leg.
fn lost_sight(own: &Superblock, newest: &Superblock, index: usize, ruler: usize) -> bool {
    // A third leg that both call in sync, and that was not filled anew, has what this leg acknowledged: nothing could be
    // without calling that one failed. The ruler came back after this leg had failed, and this leg never heard of it. That third
    // leg may have failed since, later than anything this leg knows.
    let is_common = |leg: usize| {
        let (mine, theirs) = (&own.legs[leg], &newest.legs[leg]);
        let failed_since = theirs.state == LegState::Failed && theirs.failed_generation > own.generation;
        mine.state == LegState::InSync && (theirs.state == LegState::InSync || failed_since) && mine.id == theirs.id
    };
    if (0..own.legs.len()).any(|leg| leg != index && is_common(leg)) {
        return false;
    }
    match own.legs[ruler].state {
        LegState::InSync => false,
        LegState::Failed => true,
        // The ruler was being caught up, with this leg there to the end or until the ruler called it failed, later than
        // anything this leg knows. A ruler that was started alone instead called it failed earlier.
        LegState::RecoveringDirty | LegState::RecoveringFull => {
            let record = &newest.legs[index];
            let same_leg = record.id == own.legs[index].id;
            let called_failed_before =
                same_leg && record.state != LegState::InSync && record.failed_generation <= own.generation;
            called_failed_before || own.legs[ruler].id != newest.legs[ruler].id
        }
    }
}

/// Whether a leg, by its `own` superblock, took part in an opening that the ruling one does not know: of copies of the legs, each was
/// used. So it may have acknowledged writes.
fn went_apart(own: &Superblock, newest: &Superblock) -> bool {
    own.openings.differ_at(&newest.openings, own.openings.settled(own.generation))
}

/// Whether a leg has a generation of an opening that the ruling superblock does not know: what it has missed is in no bitmap.
fn is_elsewhere(own: &Superblock, newest: &Superblock) -> bool {
    own.openings.differ_at(&newest.openings, own.generation)
}

/// What becomes of a leg that is here.
fn returning(record: &LegRecord, own: &Superblock, newest: &Superblock, went_on_alone: bool) -> LegState {
    let is_same = own.legs[own.leg_index].id == record.id && !went_on_alone && !is_elsewhere(own, newest);
    // Writes since the failure are in the bitmap, if this is the leg as it was when it failed, or later.
    let failed_at = own.generation.saturating_add(1);
    match record.state {
        LegState::InSync => LegState::InSync,
        LegState::Failed if is_same && failed_at == record.failed_generation => LegState::RecoveringDirty,
        LegState::RecoveringDirty if is_same && failed_at >= record.failed_generation => LegState::RecoveringDirty,
        _ => LegState::RecoveringFull,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openings::Openings;

    fn superblock(index: usize, generation: u64, states: &[LegState]) -> Option<Superblock> {
        let leg = |(n, state): (usize, &LegState)| {
            let failed_generation = if *state == LegState::Failed { generation } else { 0 };
            LegRecord { id: [n as u8; 16], state: *state, failed_generation }
        };
        Some(Superblock {
            mirror_id: [1; 16],
            generation,
            block_size: 4096,
            leg_index: index,
            data_start: 3,
            data_blocks: 100,
            region_blocks: 10,
            pages: 1,
            legs: states.iter().enumerate().map(leg).collect(),
            openings: Openings::default(),
        })
    }

    use LegState::{Failed, InSync, RecoveringDirty, RecoveringFull};

    fn states(result: Result<Superblock, Disagreement>) -> Vec<LegState> {
        result.unwrap().legs.iter().map(|leg| leg.state).collect()
    }

    #[test]
    fn a_crash_between_two_superblock_writes_leaves_both_legs_in_sync() {
        let found = [superblock(0, 6, &[InSync, InSync]), superblock(1, 5, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, InSync]);
    }

    #[test]
    fn a_leg_put_back_from_a_copy_is_filled_anew_wherever_it_stands() {
        for (generations, expected) in [
            ([4, 6], [RecoveringFull, InSync]),
            ([6, 4], [InSync, RecoveringFull]),
            ([9, 1], [InSync, RecoveringFull]),
            ([5, 6], [InSync, InSync]),
        ] {
            let found = [0, 1].map(|index| superblock(index, generations[index], &[InSync, InSync]));
            assert_eq!(states(decide(&found, &[false; 2], false, None)), expected, "{generations:?}");
        }
        let found = [superblock(0, 4, &[InSync, InSync]), superblock(1, 6, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, Some(0))), [InSync, RecoveringFull]);
    }

    #[test]
    fn a_leg_that_comes_back_is_recovered_from_the_bitmap_or_in_full() {
        let survivor = superblock(0, 6, &[InSync, Failed]);
        let found = [survivor.clone(), superblock(1, 5, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, RecoveringDirty]);
        let found = [survivor.clone(), superblock(1, 3, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, RecoveringFull]);
        // Absent when the mirror was opened once more: the bitmap still has all that it lacks.
        let again = decide(&[survivor, None], &[false; 2], false, None).unwrap();
        let found = [Some(Superblock { generation: 7, ..again }), superblock(1, 5, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, RecoveringDirty]);
    }

    #[test]
    fn an_old_leg_alone_is_not_served_without_being_told_to() {
        let found = [None, superblock(1, 5, &[InSync, InSync])];
        assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::MayBeStale([0].into_iter().collect())));
        assert_eq!(states(decide(&found, &[false; 2], true, None)), [Failed, InSync]);
        let found = [None, superblock(1, 5, &[Failed, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [Failed, InSync]);
    }

    #[test]
    fn legs_that_went_on_without_each_other_are_refused_until_one_is_preferred() {
        let found = [superblock(0, 9, &[InSync, Failed]), superblock(1, 6, &[Failed, InSync])];
        assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::SplitBrain(0, 1)));
        assert_eq!(states(decide(&found, &[false; 2], false, Some(1))), [RecoveringFull, InSync]);
        assert_eq!(states(decide(&found, &[false; 2], false, Some(0))), [InSync, RecoveringFull]);
    }

    #[test]
    fn a_leg_that_is_preferred_and_has_nothing_is_refused() {
        let apart = || [superblock(0, 9, &[InSync, Failed]), superblock(1, 6, &[Failed, InSync])];
        let mut three: Vec<_> = apart().into_iter().collect();
        three.push(None);
        assert_eq!(decide(&three, &[false; 3], false, Some(2)), Err(Disagreement::NoSuchData(2)));
        let found = [superblock(0, 9, &[InSync, Failed]), superblock(1, 9, &[InSync, RecoveringFull])];
        assert_eq!(decide(&found, &[false; 2], false, Some(1)), Err(Disagreement::NoSuchData(1)));
        assert_eq!(states(decide(&apart(), &[false; 2], false, Some(1))), [RecoveringFull, InSync]);
    }

    #[test]
    fn a_crash_while_the_end_of_a_resync_is_recorded_is_no_split_brain() {
        // Found by the scenario mirror-crash, seed 682.
        let found = [superblock(0, 7, &[InSync, InSync]), superblock(1, 6, &[RecoveringDirty, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, InSync]);
        // Seed 1055: the other leg failed to write that superblock and was called failed in the next one.
        let found = [superblock(0, 8, &[InSync, Failed]), superblock(1, 6, &[RecoveringDirty, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, RecoveringFull]);
        // Seed 2766: leg 2 was taken in just when leg 0 failed, whose superblock does not know it; leg 1 was there all along.
        let found = [
            superblock(0, 5, &[InSync, InSync, Failed]),
            superblock(1, 9, &[Failed, InSync, InSync]),
            superblock(2, 9, &[Failed, InSync, InSync]),
        ];
        assert_eq!(states(decide(&found, &[false; 3], false, None)), [RecoveringFull, InSync, InSync]);
        let found = [superblock(0, 5, &[InSync, Failed, Failed]), found[1].clone(), found[2].clone()];
        assert!(matches!(decide(&found, &[false; 3], false, None), Err(Disagreement::SplitBrain(_, 0))));
        // Seed 26826: leg 2 was caught up by leg 0 after leg 1 had failed, and then leg 0 failed as well.
        let mut ruler = superblock(2, 9, &[Failed, Failed, InSync]).unwrap();
        ruler.legs[1].failed_generation = 6;
        let found = [
            superblock(0, 8, &[InSync, Failed, InSync]),
            superblock(1, 5, &[InSync, InSync, Failed]),
            Some(ruler.clone()),
        ];
        assert_eq!(states(decide(&found, &[false; 3], false, None)), [RecoveringDirty, RecoveringDirty, InSync]);
        // Leg 0 had failed before anything that leg 1 knows: it went on with that one, apart.
        let found = [superblock(0, 9, &[InSync, InSync, Failed]), superblock(1, 9, &[InSync, InSync, Failed])];
        let apart = Superblock { generation: 12, ..ruler };
        let found = [found[0].clone(), found[1].clone(), Some(apart)];
        assert!(matches!(decide(&found, &[false; 3], false, None), Err(Disagreement::SplitBrain(2, _))));
        // The leg that was to be caught up never heard of it and was started alone instead, some time ago.
        let mut alone = superblock(0, 9, &[InSync, Failed]);
        alone.as_mut().unwrap().legs[1].failed_generation = 5;
        let found = [alone, superblock(1, 6, &[RecoveringDirty, InSync])];
        assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::SplitBrain(0, 1)));
    }

    #[test]
    fn a_leg_that_arrives_late_is_judged_as_one_that_was_there() {
        let mut current = superblock(0, 6, &[InSync, Failed]).unwrap();
        let short_away = superblock(1, 5, &[InSync, InSync]);
        let arrives = |current: &Superblock, own: &Option<Superblock>, overwrite| {
            arriving(current, own.as_ref(), false, 1, overwrite)
        };
        assert_eq!(arrives(&current, &short_away, false), Ok(RecoveringDirty));
        assert_eq!(arrives(&current, &superblock(1, 3, &[InSync, InSync]), false), Ok(RecoveringFull));
        assert_eq!(arriving(&current, None, true, 1, false), Ok(RecoveringFull));
        // It went on without the leg that is in use: its writes would be lost.
        let alone = superblock(1, 8, &[Failed, InSync]);
        assert_eq!(arrives(&current, &alone, false), Err(Disagreement::SplitBrain(0, 1)));
        assert_eq!(arrives(&current, &alone, true), Ok(RecoveringFull));
        assert_eq!(arrives(&current, &None, false), Err(Disagreement::Unreadable(1)));
        assert_eq!(arrives(&current, &superblock(0, 5, &[InSync, InSync]), false), Err(Disagreement::WrongLeg(1)));
        // Called failed by a mirror that had other writes in between.
        current.legs[1].failed_generation = 0;
        assert_eq!(arrives(&current, &short_away, false), Ok(RecoveringFull));
    }

    /// A leg of two, in sync with the other, after these openings: the first generation of each, and its number.
    fn opened(index: usize, generation: u64, openings: &[(u64, u64)]) -> Option<Superblock> {
        let mut own = superblock(index, generation, &[InSync, InSync]);
        openings.iter().for_each(|(first, id)| own.as_mut().unwrap().openings.begin(*first, *id));
        own
    }

    #[test]
    fn legs_of_copies_that_were_used_apart_are_refused_however_often_each_was() {
        for (first, second) in [(1, 1), (2, 2), (1, 2), (3, 1), (1, 9), (2, 3)] {
            let after = |openings: u64, number: u64| -> Vec<(u64, u64)> {
                (0..=openings).map(|n| (1 + 2 * n, if n == 0 { 7 } else { number + n })).collect()
            };
            let found = [opened(0, 2 + 2 * first, &after(first, 100)), opened(1, 2 + 2 * second, &after(second, 200))];
            let ruler = if first > second { 0 } else { 1 };
            assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::SplitBrain(ruler, 1 - ruler)));
            for prefer in [0, 1] {
                let mut expected = [RecoveringFull; 2];
                expected[prefer] = InSync;
                assert_eq!(states(decide(&found, &[false; 2], false, Some(prefer))), expected);
            }
            // While the mirror is in use without it, too.
            let current =
                Superblock { generation: 9 + found[0].as_ref().unwrap().generation, ..found[0].clone().unwrap() };
            let mut current = Superblock { legs: superblock(0, 9, &[InSync, Failed]).unwrap().legs, ..current };
            current.openings.begin(current.generation - 1, 5);
            assert_eq!(arriving(&current, found[1].as_ref(), false, 1, false), Err(Disagreement::SplitBrain(0, 1)));
            assert_eq!(arriving(&current, found[1].as_ref(), false, 1, true), Ok(RecoveringFull));
        }
    }

    #[test]
    fn a_leg_of_a_fork_that_acknowledged_nothing_is_filled_anew_and_never_from_a_bitmap() {
        // A crash after the first superblock of an opening that the other leg never heard of.
        for generation in [12, 13] {
            let found = [opened(0, 11, &[(1, 7), (11, 8)]), opened(1, generation, &[(1, 7), (11, 9)])];
            assert_eq!(states(decide(&found, &[false; 2], false, None)), [RecoveringFull, InSync]);
        }
        // It failed just one generation later than the one that it has, by the count.
        let mut other = opened(1, 12, &[(1, 7), (9, 9), (11, 10)]);
        let record = &mut other.as_mut().unwrap().legs[0];
        (record.state, record.failed_generation) = (Failed, 11);
        let same = [opened(0, 10, &[(1, 7), (9, 9)]), other.clone()];
        assert_eq!(states(decide(&same, &[false; 2], false, None)), [RecoveringDirty, InSync]);
        let apart = [opened(0, 10, &[(1, 7), (9, 8)]), other.clone()];
        assert_eq!(decide(&apart, &[false; 2], false, None), Err(Disagreement::SplitBrain(1, 0)));
        let openings = &mut other.as_mut().unwrap().openings;
        *openings = Openings::default();
        [(1, 7), (10, 9), (11, 10)].iter().for_each(|(first, id)| openings.begin(*first, *id));
        let void = [opened(0, 10, &[(1, 7), (10, 8)]), other];
        assert_eq!(states(decide(&void, &[false; 2], false, None)), [RecoveringFull, InSync]);
    }

    #[test]
    fn openings_that_are_not_known_tell_nothing() {
        // An older program opened it last, on one side or on both.
        let found = [opened(0, 11, &[]), opened(1, 12, &[(12, 9)])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, InSync]);
        let found = [opened(0, 12, &[(3, 7)]), opened(1, 12, &[])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, InSync]);
    }

    #[test]
    fn a_leg_put_back_from_a_copy_while_it_is_caught_up_is_caught_up_only_if_the_bitmap_goes_back_so_far() {
        let mut ruling = superblock(0, 15, &[InSync, RecoveringDirty]);
        ruling.as_mut().unwrap().legs[1].failed_generation = 11;
        for (generation, expected) in
            [(14, RecoveringDirty), (12, RecoveringDirty), (10, RecoveringDirty), (9, RecoveringFull)]
        {
            let found = [ruling.clone(), superblock(1, generation, &[InSync, InSync])];
            assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, expected], "{generation}");
        }
    }

    #[test]
    fn a_blank_leg_gets_everything_and_a_foreign_one_is_refused() {
        let found = [superblock(0, 6, &[InSync, InSync]), None];
        assert_eq!(
            decide(&found, &[false, true], false, None),
            Err(Disagreement::MayBeStale([1].into_iter().collect()))
        );
        let found = [superblock(0, 6, &[InSync, Failed]), None];
        assert_eq!(states(decide(&found, &[false, true], false, None)), [InSync, RecoveringFull]);
        let mut foreign = superblock(1, 6, &[InSync, InSync]);
        foreign.as_mut().unwrap().mirror_id = [7; 16];
        let found = [superblock(0, 8, &[InSync, InSync]), foreign];
        assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::WrongLeg(1)));
        assert_eq!(decide(&[None, None], &[false; 2], true, None), Err(Disagreement::NothingInSync));
    }

    #[test]
    fn a_crash_while_a_mirror_grows_leaves_legs_in_sync_that_differ_in_size() {
        for (grown, other) in [(7, 6), (6, 7)] {
            let mut larger = superblock(0, grown, &[InSync, InSync]).unwrap();
            (larger.data_blocks, larger.region_blocks, larger.pages) = (1000, 20, 2);
            let found = [Some(larger), superblock(1, other, &[InSync, InSync])];
            let decided = decide(&found, &[false; 2], false, None).unwrap();
            assert_eq!(decided.data_blocks, if grown > other { 1000 } else { 100 });
            assert_eq!(states(Ok(decided)), [InSync, InSync]);
        }
        // It failed in the midst of that.
        let mut larger = superblock(0, 8, &[InSync, Failed]).unwrap();
        larger.data_blocks = 1000;
        let found = [Some(larger), superblock(1, 6, &[InSync, InSync])];
        assert_eq!(states(decide(&found, &[false; 2], false, None)), [InSync, RecoveringFull]);
    }

    #[test]
    fn a_leg_whose_data_are_elsewhere_is_of_another_mirror() {
        let changes: [fn(&mut Superblock); 4] = [
            |own| own.data_start += 1,
            |own| own.block_size = 512,
            |own| own.leg_index = 0,
            |own| own.mirror_id[0] += 1,
        ];
        for change in changes {
            let mut other = superblock(1, 6, &[InSync, InSync]);
            change(other.as_mut().unwrap());
            let found = [superblock(0, 7, &[InSync, InSync]), other.clone()];
            assert_eq!(decide(&found, &[false; 2], false, None), Err(Disagreement::WrongLeg(1)));
            let current = superblock(0, 8, &[InSync, Failed]).unwrap();
            let arrives = |overwrite| arriving(&current, other.as_ref(), false, 1, overwrite);
            assert_eq!(arrives(false), Err(Disagreement::WrongLeg(1)));
            assert_eq!(arrives(true), Ok(RecoveringFull));
        }
    }
}
