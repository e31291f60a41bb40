//! Counts, what becomes of bands, which is drained, and the table.

use super::*;
use crate::bands::ledger::Ledger;
use bdev::Op;

#[test]
fn a_band_is_free_only_after_a_checkpoint_that_began_when_nothing_was_in_it() {
    let rig = Rig::new(SMALL);
    let places = rig.fill(Stream::User, 2);
    let before = rig.bands.checkpoint_begun();
    places[..15].iter().for_each(|at| rig.bands.dead(*at));
    assert_eq!((rig.bands.room().pending, rig.bands.room().free), (1, 14));
    assert_eq!(rig.bands.table(before)[0].state, BandState::Closed);
    rig.bands.checkpointed(before);
    assert_eq!((rig.bands.room().pending, rig.bands.room().free), (1, 14), "it had begun before");
    let after = rig.bands.checkpoint_begun();
    assert_eq!(
        rig.bands.table(after)[0],
        BandEntry { stream: 0, stamp: 7, generation: (7 << 32) + 1, ..BandEntry::default() }
    );
    assert_eq!(rig.bands.room().free, 14);
    rig.bands.checkpointed(after);
    assert_eq!((rig.bands.room().pending, rig.bands.room().free), (0, 15));
}

#[test]
fn an_open_band_is_not_given_up_and_a_closed_one_not_while_anything_in_it_is_held() {
    let rig = Rig::new(SMALL);
    let bands = rig.bands.clone();
    let (places, first) = rig.run(async move {
        let mut writer = bands.writer(Stream::User);
        append(&mut writer, 0..3).await.unwrap();
        let places = writer.finish().await.unwrap();
        let first = places.get(0).unwrap();
        (places, first)
    });
    rig.bands.live(first);
    let reader = rig.bands.hold(first);
    rig.bands.dead(first);
    assert_eq!(rig.bands.room().open, 1, "the stream goes on in it");
    let others = rig.put(Stream::User, 100..115).unwrap();
    others.iter().filter(|at| at.0 < 16).for_each(|at| rig.bands.dead(*at));
    assert_eq!((rig.bands.room().closed, rig.bands.room().pending), (2, 0));
    drop(places);
    assert_eq!((rig.bands.room().pending, rig.bands.room().held_blocks), (0, 1));
    drop(reader);
    assert_eq!((rig.bands.room().pending, rig.bands.room().held_blocks), (1, 0));
}

#[test]
fn a_band_that_is_opened_again_has_a_new_generation() {
    let rig = Rig::new(SMALL);
    let mut generations = Vec::new();
    for _ in 0..40 {
        let places = rig.fill(Stream::User, 1);
        if places[0] == BandAt(1) {
            generations.push(rig.head(BandAt(0)).unwrap().generation);
        }
        places.iter().for_each(|at| rig.bands.dead(*at));
        rig.checkpoint();
    }
    assert!(generations.len() > 1 && generations.windows(2).all(|pair| pair[0] < pair[1]), "{generations:?}");
}

#[test]
fn freed_bands_are_unmapped_before_they_are_used_again() {
    let disk = Disk::new(reactor());
    disk.can_unmap();
    disk.change_info(|info| info.max_io_blocks = 10);
    let rig = Rig::on(disk, SMALL, OWNER, &[]);
    let places = rig.fill(Stream::User, 3);
    places.iter().for_each(|at| rig.bands.dead(*at));
    rig.disk.is_stalled.set(true);
    rig.checkpoint();
    let room = rig.bands.room();
    assert_eq!((room.pending, room.unmapping, room.free), (0, 3, 13));
    rig.disk.fail(Op::Unmap, 8 + 16..8 + 32, Status::Unsupported);
    rig.disk.is_stalled.set(false);
    rig.turns(10);
    let room = rig.bands.room();
    assert_eq!((room.unmapping, room.free, rig.bands.stats().unmapped), (0, 16, 2));
    assert_eq!(rig.disk.block(8 + 1), vec![0; BLOCK_BYTES]);
    assert_eq!(rig.disk.block(8 + 17), bytes(15), "the device did not want to know");
    assert_eq!(rig.disk.log.borrow().iter().filter(|(op, ..)| *op == Op::Unmap).count(), 5);
}

#[test]
fn counts_are_hints_until_the_owner_says_otherwise() {
    let rig = Rig::new(SMALL);
    let places = rig.fill(Stream::User, 2);
    let table = rig.checkpoint();
    let disk = rig.disk.fork();
    let bands = Bands::new(&rig.reactor, disk.clone(), &disk.info.get(), SMALL, &[], OWNER, &table);
    assert_eq!((bands.room().is_exact, bands.room().valid_blocks), (false, 30));
    bands.recount_begun();
    assert_eq!((bands.room().valid_blocks, bands.room().pending), (0, 0));
    bands.dead(places[0]);
    places[20..].iter().for_each(|at| bands.live(*at));
    assert_eq!(bands.room().pending, 0, "nothing is known yet");
    bands.recount_ended();
    assert_eq!((bands.valid(0), bands.valid(1), bands.room().pending), (0, 10, 1));
}

#[test]
fn a_count_that_contradicts_itself_frees_nothing() {
    let rig = Rig::new(SMALL);
    let places = rig.put(Stream::User, 0..3).unwrap();
    (0..4).for_each(|_| rig.bands.dead(places[0]));
    rig.bands.live(places[1]);
    let others = rig.put(Stream::User, 100..115).unwrap();
    others.iter().for_each(|at| rig.bands.dead(*at));
    rig.bands.dead(places[1]);
    let room = rig.bands.room();
    assert_eq!((rig.bands.valid(0), room.valid_blocks, room.closed, room.pending), (0, 0, 1, 1));
    let cursor = rig.bands.victim().unwrap();
    assert_eq!(cursor.band(), 0);
    assert!(!rig.bands.drained(cursor), "nobody has walked it");
    rig.bands.recount_begun();
    rig.bands.recount_ended();
    assert_eq!(rig.bands.room().pending, 2);
}

#[test]
fn places_from_media_that_cannot_be_are_told_and_change_nothing() {
    let rig = Rig::new(SMALL);
    let places = rig.put(Stream::User, 0..3).unwrap();
    assert!(rig.bands.is_place(places[0]));
    for at in [8, 16, 16 * 16 - 1, 16 * 16, u32::MAX - 1, u32::MAX].map(BandAt) {
        assert!(!rig.bands.is_place(at), "{at:?}");
        rig.bands.live(at);
        rig.bands.dead(at);
        rig.bands.dead(at);
        drop(rig.bands.hold(at));
    }
    assert_eq!(rig.bands.room().valid_blocks, 3);
}

// --- victims --------------------------------------------------------------------------------------------------------

/// Bands of a user stream with so many live blocks, oldest first, then one that is open.
fn with_live(live: &[usize]) -> (Rig, Vec<BandAt>) {
    let rig = Rig::new(SMALL);
    let places = rig.fill(Stream::User, live.len() as u32);
    rig.put(Stream::User, 0..1).unwrap();
    for (band, live) in places.chunks(15).zip(live) {
        band[*live..].iter().for_each(|at| rig.bands.dead(*at));
    }
    (rig, places)
}

#[test]
fn the_victim_is_the_band_that_gives_most_for_least_and_idleness_counts() {
    let (rig, _) = with_live(&[2, 1, 12, 3]);
    // They were closed 46, 31, 16 and 1 blocks ago: (1 - u) * sqrt(idle) / (1 + u).
    let order: Vec<_> = std::iter::from_fn(|| rig.bands.victim()).collect();
    assert_eq!(order.iter().map(Cursor::band).collect::<Vec<_>>(), [0, 1, 3, 2][..order.len()]);
    assert_eq!(order.len(), 3, "moving twelve of sixteen gains nothing");
    assert_eq!(rig.bands.stats().victims, 3);
    drop(order);
    assert_eq!(rig.bands.victim().map(|cursor| cursor.band()), Some(0), "nobody drains it any more");
}

#[test]
fn when_room_is_critical_the_emptiest_band_is_the_victim() {
    let (rig, _) = with_live(&[3, 1, 12, 2]);
    while rig.bands.room().free > STREAMS as u32 {
        rig.put(Stream::Moved, 0..15).unwrap();
    }
    assert_eq!(rig.bands.victim().map(|cursor| cursor.band()), Some(1));
}

#[test]
fn a_band_stays_what_it_is_while_somebody_drains_it() {
    let (rig, places) = with_live(&[3, 15]);
    let cursor = rig.bands.victim().unwrap();
    places[..3].iter().for_each(|at| rig.bands.dead(*at));
    rig.checkpoint();
    assert_eq!((rig.bands.room().pending, rig.bands.room().closed), (0, 2));
    drop(cursor);
    assert_eq!((rig.bands.room().pending, rig.bands.room().closed), (1, 1));
}

#[test]
fn there_is_no_victim_among_open_full_and_pending_bands() {
    let (rig, _) = with_live(&[15, 0, 15]);
    assert_eq!((rig.bands.room().pending, rig.bands.room().open), (1, 1));
    assert!(rig.bands.victim().is_none());
}

#[test]
fn blocks_that_are_moved_keep_their_age_and_go_to_a_stream_of_their_own() {
    let rig = Rig::new(SMALL);
    let places = rig.fill(Stream::User, 1);
    places[2..].iter().for_each(|at| rig.bands.dead(*at));
    rig.put(Stream::User, 100..115).unwrap();
    let cursor = rig.bands.victim().unwrap();
    let writer = rig.bands.mover(cursor.band());
    let bands = rig.bands.clone();
    let moved = rig.run(async move {
        let mut writer = writer;
        append(&mut writer, 0..2).await.unwrap();
        settle(&bands, writer.finish().await.unwrap())
    });
    let head = rig.head(BandAt(moved[0].0 - 1)).unwrap();
    assert_eq!((head.stream, head.stamp), (Stream::Moved as u8, 7));
    places[..2].iter().for_each(|at| rig.bands.dead(*at));
    assert!(rig.bands.drained(cursor) && rig.bands.room().pending == 1);
}

// --- the table ------------------------------------------------------------------------------------------------------

#[test]
fn streams_go_on_in_their_bands_when_they_are_opened_again() {
    let rig = Rig::new(GEOMETRY);
    rig.put(Stream::User, 0..20).unwrap();
    rig.put(Stream::Moved, 0..3).unwrap();
    let table = rig.checkpoint();
    assert_eq!(table.len(), 16);
    assert_eq!((table[0].state, table[0].written, table[0].valid), (BandState::Open, 32, 20));
    // What comes behind is not in the table: it is overwritten.
    rig.put(Stream::User, 20..40).unwrap();
    let again = Rig::on(rig.disk.fork(), GEOMETRY, BandOwner { epoch: 8, ..OWNER }, &table);
    assert_eq!(again.put(Stream::User, 50..51).unwrap(), [BandAt(33)]);
    assert_eq!(again.put(Stream::Moved, 50..51).unwrap(), [BandAt(1024 + 17)]);
    assert_eq!(
        again.head(BandAt(32)).map(|head| (head.sequence, head.generation)),
        Some(((8 << 32) + 1, (7 << 32) + 1))
    );
    assert_eq!(again.bands.room().valid_blocks, 25);
}

#[test]
fn what_is_in_a_table_is_what_the_ledger_makes_of_it() {
    let entry = |state, stream, written, valid| BandEntry { state, stream, written, valid, generation: 9, stamp: 5 };
    let mut table = vec![BandEntry::default(); 16];
    table[1] = entry(BandState::Open, 1, 8, 3);
    table[2] = entry(BandState::Closed, 0, 16, 2);
    table[3] = entry(BandState::Failing, 2, 16, 4);
    table[4] = entry(BandState::Retired, 2, 16, 0);
    let mut ledger = Ledger::new(SMALL, 7, &table, false);
    let token = ledger.checkpoint_begun();
    assert_eq!(ledger.table(token), table);
}

#[test]
fn tables_that_no_one_wrote_do_no_harm() {
    let mut rng = base::Rng::new(11);
    for _ in 0..300 {
        let mut table = Vec::new();
        for _ in 0..rng.below(20) {
            let mut bytes = [0; BAND_ENTRY_BYTES];
            rng.fill(&mut bytes);
            let state = [BandState::Free, BandState::Open, BandState::Closed, BandState::Failing, BandState::Retired];
            table.push(BandEntry {
                state: state[rng.below(5) as usize],
                stream: rng.below(5) as u8,
                written: rng.below(20) as u32,
                valid: rng.next_u64() as u32,
                generation: rng.next_u64() >> rng.below(64),
                stamp: rng.next_u64() >> rng.below(64),
            });
        }
        let rig = Rig::on(Disk::new(reactor()), SMALL, OWNER, &table);
        for stream in Stream::ALL {
            let _ = rig.put(stream, 0..rng.below(60) as u32);
        }
        while let Some(cursor) = rig.bands.victim() {
            let bands = rig.bands.clone();
            rig.run(async move {
                let mut cursor = cursor;
                while cursor.next_stripe().await.unwrap().is_some() {}
                let writer = bands.mover(cursor.band());
                drop(writer);
                bands.drained(cursor);
            });
        }
        rig.checkpoint();
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    assert_eq!((GEOMETRY.fault(), SMALL.fault()), (None, None));
    let faulty = [
        BandGeometry { bands: BANDS_MIN - 1, ..GEOMETRY },
        BandGeometry { unit_blocks: 0, ..GEOMETRY },
        BandGeometry { unit_blocks: 12, ..GEOMETRY },
        BandGeometry { unit_blocks: 512, ..GEOMETRY },
        BandGeometry { band_blocks: 1, unit_blocks: 1, ..GEOMETRY },
        BandGeometry { band_blocks: 1000, ..GEOMETRY },
        BandGeometry { band_blocks: 1024, unit_blocks: 48, ..GEOMETRY },
        BandGeometry { bands: 1 << 22, ..GEOMETRY },
    ];
    faulty.iter().for_each(|geometry| assert!(geometry.fault().is_some(), "{geometry:?}"));
    assert_eq!((GEOMETRY.band_data_blocks(), SMALL.band_data_blocks()), (1020, 15));
    // Rows of three chunks: five of them in a stripe.
    let rows = BandGeometry { band_blocks: 960, unit_blocks: 48, ..GEOMETRY };
    assert_eq!((rows.fault(), rows.band_data_blocks()), (None, 956));
}
