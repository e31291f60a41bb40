//! Stripes that a band refuses.

use super::*;
use bdev::Op;

/// The blocks of a band of [`SMALL`] on the device.
fn of_band(band: u64) -> std::ops::Range<u64> {
    8 + band * 16..8 + (band + 1) * 16
}

#[test]
fn a_stripe_that_is_refused_goes_to_another_band_and_the_first_is_never_opened_again() {
    let rig = Rig::new(SMALL);
    let kept = rig.put(Stream::User, 0..3).unwrap();
    rig.disk.fail(Op::Write, of_band(0), Status::WriteError);
    let moved = rig.put(Stream::User, 3..10).unwrap();
    assert_eq!(moved, (17..24).map(BandAt).collect::<Vec<_>>());
    assert_eq!(rig.head(BandAt(16)).map(|head| (head.band, head.position, head.count)), Some((1, 0, 7)));
    let stats = rig.bands.stats();
    assert_eq!((stats.write_errors, stats.failed_bands, stats.stripes), (1, 1, 2));
    // It comes before all others, and what is in it is found.
    let mut cursor = rig.bands.victim().unwrap();
    assert_eq!(cursor.band(), 0);
    let (cursor, found) = rig.run(async move {
        let stripe = cursor.next_stripe().await.unwrap().unwrap();
        let found: Vec<_> = stripe.entries().map(|(at, _)| at).collect();
        assert!(cursor.next_stripe().await.unwrap().is_none());
        (cursor, found)
    });
    assert_eq!(found, kept);
    kept.iter().for_each(|at| rig.bands.dead(*at));
    assert!(rig.bands.drained(cursor));
    let table = rig.checkpoint();
    assert_eq!((table[0].state, table[1].state), (BandState::Retired, BandState::Open));
    assert_eq!((rig.bands.room().retired, rig.bands.room().pending), (1, 0));
    let again = Rig::on(rig.disk.fork(), SMALL, OWNER, &table);
    assert_eq!((again.bands.room().retired, again.bands.stats().failed_bands), (1, 1));
}

#[test]
fn a_refused_stripe_leaves_no_gap_at_the_end_of_its_band() {
    let rig = Rig::new(SMALL);
    rig.put(Stream::User, 0..3).unwrap();
    rig.disk.fail(Op::Write, of_band(0), Status::WriteError);
    rig.put(Stream::User, 3..10).unwrap();
    let mut cursor = rig.bands.walk(0);
    let passed_over = rig.run(async move {
        while cursor.next_stripe().await.unwrap().is_some() {}
        cursor.passed_over()
    });
    assert_eq!(passed_over, 0);
    assert_eq!(rig.checkpoint()[0].written, 8);
}

#[test]
fn a_failing_band_is_one_in_the_table_too() {
    let rig = Rig::new(SMALL);
    rig.put(Stream::User, 0..3).unwrap();
    rig.disk.fail(Op::Write, of_band(0), Status::WriteError);
    rig.put(Stream::User, 3..10).unwrap();
    let table = rig.checkpoint();
    assert_eq!((table[0].state, table[0].valid), (BandState::Failing, 3));
    let again = Rig::on(rig.disk.fork(), SMALL, OWNER, &table);
    assert_eq!(again.bands.victim().unwrap().band(), 0);
}

#[test]
fn while_every_band_refuses_a_stripe_none_is_blamed_and_none_is_lost() {
    let rig = Rig::new(SMALL);
    rig.put(Stream::User, 0..3).unwrap();
    let before = rig.bands.room();
    rig.disk.fail(Op::Write, 0..1 << 20, Status::WriteError);
    for round in 1..=20 {
        assert_eq!(rig.put(Stream::User, 3..10), Err(Status::WriteError));
        assert_eq!(rig.bands.stats().write_errors, 4 * round);
    }
    let room = rig.bands.room();
    assert_eq!((room.free, room.closed, room.open), (before.free, 1, 0));
    assert_eq!((room.held_blocks, rig.bands.stats().failed_bands), (0, 0));
    rig.disk.heal();
    assert_eq!(rig.put(Stream::User, 3..10).unwrap().len(), 7);
}

#[test]
fn an_error_of_the_device_is_told_at_once() {
    let rig = Rig::new(SMALL);
    rig.disk.fail(Op::Write, 0..1 << 20, Status::Gone);
    assert_eq!(rig.put(Stream::User, 0..3), Err(Status::Gone));
    let stats = rig.bands.stats();
    assert_eq!((stats.write_errors, stats.failed_bands, rig.bands.room().free), (1, 0, SMALL.bands));
    rig.disk.heal();
    assert_eq!(rig.put(Stream::User, 0..3).unwrap().len(), 3);
}

#[test]
fn stripes_that_were_under_way_to_a_failing_band_keep_their_places_or_find_others() {
    let rig = Rig::new(GEOMETRY);
    // Of four stripes to the band, the second fails.
    rig.disk.fail(Op::Write, 64 + 300..64 + 301, Status::WriteError);
    rig.disk.delays.replace(Some(base::Rng::new(3)));
    let bands = rig.bands.clone();
    let places = rig.run(async move {
        let mut writer = bands.writer(Stream::User);
        append(&mut writer, 0..255 * 4).await.unwrap();
        settle(&bands, writer.finish().await.unwrap())
    });
    for (block, at) in (0..).zip(&places) {
        assert_eq!(rig.disk.block(rig.bands.device_block(*at)), bytes(block));
    }
    assert_eq!(places[0].0 / 1024, 0);
    assert_eq!(places[255].0 / 1024, 1, "the refused one is in another band");
    assert_eq!((rig.bands.valid(0) + rig.bands.valid(1), rig.bands.stats().failed_bands), (255 * 4, 1));
}

#[test]
fn a_failed_stripe_fails_all_of_its_writers_and_no_others() {
    let rig = Rig::new(GEOMETRY);
    rig.disk.fail(Op::Write, 0..1 << 20, Status::WriteError);
    let (bands, disk) = (rig.bands.clone(), rig.disk.clone());
    rig.run(async move {
        let mut writers = [0; 3].map(|_| bands.writer(Stream::User));
        append(&mut writers[0], 0..200).await.unwrap();
        append(&mut writers[1], 200..300).await.unwrap();
        disk.heal();
        append(&mut writers[2], 300..310).await.unwrap();
        let [one, two, three] = writers;
        let three = bands.medium.reactor.spawn_join(three.finish());
        assert_eq!(one.finish().await.err(), Some(Status::WriteError));
        assert_eq!(two.finish().await.err(), Some(Status::WriteError));
        assert_eq!(three.await.unwrap().len(), 10);
        assert_eq!(bands.room().held_blocks, 0);
    });
}
