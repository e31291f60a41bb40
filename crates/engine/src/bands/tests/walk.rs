//! Walking a band by the headers of its stripes.

use super::*;
use bdev::Op;

/// What a walk over a band finds: places with blocks, and units passed over.
fn walk(rig: &Rig, band: u32) -> (Vec<(u32, u32)>, u32) {
    rig.run(walk_of(rig.bands.clone(), band))
}

async fn walk_of(bands: Rc<Bands>, band: u32) -> (Vec<(u32, u32)>, u32) {
    let mut cursor = bands.walk(band);
    let mut found = Vec::new();
    while let Some(stripe) = cursor.next_stripe().await.unwrap() {
        assert_eq!(stripe.entries().count(), stripe.len());
        assert_eq!(stripe.entries().next().unwrap().0, stripe.first);
        for (at, entry) in stripe.entries() {
            assert_eq!(entry, super::entry(entry.block));
            found.push((at.0, entry.block));
        }
    }
    (found, cursor.passed_over())
}

/// A band of stripes of 3, 20, 15 and 255 blocks, padded.
fn rig() -> (Rig, Vec<(u32, u32)>) {
    let rig = Rig::new(GEOMETRY);
    let mut all = Vec::new();
    for blocks in [0..3, 3..23, 23..38, 38..293] {
        let places = rig.put(Stream::User, blocks.clone()).unwrap();
        all.extend(places.into_iter().map(|at| at.0).zip(blocks));
    }
    all.sort_unstable();
    (rig, all)
}

#[test]
fn a_walk_finds_every_block_with_its_place() {
    let (rig, all) = rig();
    assert_eq!(walk(&rig, 0), (all, 0));
    assert_eq!(walk(&rig, 1), (vec![], 0), "a free band has none");
}

#[test]
fn a_damaged_header_costs_its_own_stripe_alone() {
    let (rig, all) = rig();
    let in_second = |place: u32| (16..48).contains(&place);
    let rest: Vec<_> = all.iter().copied().filter(|(at, _)| !in_second(*at)).collect();
    rig.disk.flip(64 + 16, 1000);
    assert_eq!(walk(&rig, 0), (rest.clone(), 2));
    assert_eq!(rig.bands.stats().bad_headers, 1);
    rig.disk.flip(64 + 16, 1000);
    for status in [Status::ReadError, Status::Corrupt] {
        rig.disk.fail(Op::Read, 64 + 16..64 + 17, status);
        assert_eq!(walk(&rig, 0), (rest.clone(), 2));
        rig.disk.heal();
    }
    assert_eq!(walk(&rig, 0), (all, 0));
}

#[test]
fn a_device_that_is_gone_ends_the_walk() {
    let (rig, _) = rig();
    rig.disk.fail(Op::Read, 0..1 << 20, Status::Gone);
    let mut cursor = rig.bands.walk(0);
    assert_eq!(rig.run(async move { cursor.next_stripe().await.err() }), Some(Status::Gone));
}

#[test]
fn headers_of_another_use_place_owner_or_order_are_not_believed() {
    let (rig, all) = rig();
    let whole = rig.disk.block(64 + 16);
    let head = StripeHead::decode(OWNER.salt, &whole).unwrap();
    let rest = all.len() - 20;
    let wrong = [
        StripeHead { generation: head.generation - 1, ..head },
        StripeHead { generation: head.generation + 1, ..head },
        StripeHead { sequence: head.sequence - 1, ..head },
        StripeHead { band: 1, ..head },
        StripeHead { position: 0, ..head },
        StripeHead { shard: 4, ..head },
        StripeHead { blocks: 24, ..head },
        StripeHead { blocks: 1024, ..head },
    ];
    for wrong in wrong {
        let mut forged = whole.clone();
        wrong.seal(OWNER.salt, &mut forged);
        rig.disk.poke(64 + 16, forged);
        assert_eq!(walk(&rig, 0).0.len(), rest, "{wrong:?}");
    }
    let mut salted = whole.clone();
    head.seal(OWNER.salt + 1, &mut salted);
    rig.disk.poke(64 + 16, salted);
    assert_eq!(walk(&rig, 0).0.len(), rest);
    rig.disk.poke(64 + 16, whole);
    assert_eq!(walk(&rig, 0), (all, 0));
}

#[test]
fn what_a_guest_writes_is_not_taken_for_a_header_of_its_band() {
    let (rig, all) = rig();
    // The header of another stripe, as data, where a walk looks after damage.
    let copy = rig.disk.block(64 + 48);
    rig.disk.poke(64 + 32, copy);
    rig.disk.flip(64 + 16, 5);
    let found = walk(&rig, 0);
    assert_eq!((found.0.len(), found.1), (all.len() - 20, 2));
}

#[test]
fn a_band_with_damage_is_drained_only_when_the_count_says_that_nothing_is_left() {
    let (rig, all) = rig();
    rig.fill(Stream::User, 1);
    rig.disk.flip(64 + 16, 1000);
    let drain = |rig: &Rig| {
        let bands = rig.bands.clone();
        rig.run(async move {
            let mut cursor = bands.victim().unwrap();
            assert_eq!(cursor.band(), 0);
            while let Some(stripe) = cursor.next_stripe().await.unwrap() {
                stripe.entries().for_each(|(at, _)| bands.dead(at));
            }
            bands.drained(cursor)
        })
    };
    assert!(!drain(&rig));
    let room = rig.bands.room();
    assert_eq!((rig.bands.valid(0), room.stuck, room.pending), (20, 1, 0));
    assert!(rig.bands.victim().is_none_or(|cursor| cursor.band() != 0), "walking it again finds no more");
    // Overwrites alone free it.
    all.iter().filter(|(at, _)| (16..48).contains(at)).for_each(|(at, _)| rig.bands.dead(BandAt(*at)));
    assert_eq!((rig.bands.room().pending, rig.bands.room().stuck), (1, 0));
}

#[test]
fn a_band_that_was_walked_whole_is_drained_although_counts_are_hints() {
    let (rig, _) = rig();
    rig.fill(Stream::User, 1);
    let table = rig.checkpoint();
    let disk = rig.disk.fork();
    let bands = Bands::new(&rig.reactor, disk.clone(), &disk.info.get(), GEOMETRY, &[], OWNER, &table);
    let drained = |damaged: bool| {
        let (bands, disk) = (bands.clone(), disk.clone());
        rig.run(async move {
            let mut cursor = bands.victim().unwrap();
            if damaged {
                disk.flip(64 + 16, 9);
            }
            while cursor.next_stripe().await.unwrap().is_some() {}
            bands.drained(cursor)
        })
    };
    assert!(drained(false) && bands.room().pending == 1 && bands.valid(0) == 0);
    let bands = Bands::new(&rig.reactor, disk.clone(), &disk.info.get(), GEOMETRY, &[], OWNER, &table);
    let (bands, disk) = (bands.clone(), disk.clone());
    rig.run(async move {
        let mut cursor = bands.victim().unwrap();
        disk.flip(64 + 16, 9);
        while cursor.next_stripe().await.unwrap().is_some() {}
        assert!(!bands.drained(cursor));
    });
}

/// Of each stripe of a victim: where it begins, and the blocks that came with its header.
fn leads(rig: &Rig) -> Vec<(u32, Vec<Vec<u8>>)> {
    let mut cursor = rig.bands.victim().expect("a band has dead blocks");
    rig.run(async move {
        let mut all = Vec::new();
        while let Some(stripe) = cursor.next_stripe().await.unwrap() {
            let at = stripe.first.0 - 1;
            let lead = stripe.into_lead().map_or(Vec::new(), |lead| {
                assert!(lead.at == BandAt(at) && lead.has(BandAt(at + 15)) && !lead.has(BandAt(at + 16)));
                lead.bytes.as_slice().chunks(BLOCK_BYTES).skip(1).map(<[u8]>::to_vec).collect()
            });
            all.push((at, lead));
        }
        all
    })
}

#[test]
fn what_is_behind_a_header_comes_with_it_where_it_can_be_read() {
    let (rig, _) = rig();
    rig.fill(Stream::User, 1);
    (1..4).for_each(|at| rig.bands.dead(BandAt(at)));
    let whole = leads(&rig);
    assert_eq!(whole.iter().map(|(at, _)| *at).collect::<Vec<_>>()[..4], [0, 16, 48, 64]);
    let first = |block: u32, count: u32| (block..block + count).map(bytes).collect::<Vec<_>>();
    // Behind the header of the last one is what is no part of a run of 16.
    let beside = [first(38, 10), first(288, 5)].concat();
    assert_eq!((&whole[1].1, &whole[2].1, &whole[3].1), (&first(3, 15), &first(23, 15), &beside));
    // A block in which the first one to ask finds an error keeps nobody from the header.
    rig.disk.fail(Op::Read, 64 + 20..64 + 21, Status::ReadError);
    let damaged = leads(&rig);
    assert_eq!((damaged.len(), &damaged[1], &damaged[2]), (whole.len(), &(16, vec![]), &whole[2]));
    // A device that lends its memory is asked for nothing that is not needed yet.
    rig.disk.heal();
    rig.disk.change_info(|info| info.loans = true);
    let table = rig.checkpoint();
    let lending = Rig::on(rig.disk.fork(), GEOMETRY, OWNER, &table);
    assert!(leads(&lending).iter().all(|(_, lead)| lead.is_empty()));
}
