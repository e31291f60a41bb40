//! Stripes: how they fill, when they are written, and what they say.

use super::*;
use bdev::Op;

#[test]
fn a_full_stripe_is_one_write_whose_header_says_what_is_in_it() {
    let rig = Rig::new(GEOMETRY);
    let places = rig.put(Stream::User, 1000..1255).unwrap();
    // Runs of 16 have pages of their own; what is before and behind them is beside the header.
    let beside = places[..8].iter().chain(&places[248..]);
    assert!(beside.map(|at| at.0).eq(1..16) && places[8..248].iter().map(|at| at.0).eq(16..256));
    assert_eq!(rig.disk.writes(), [(64, 320)]);
    let head = rig.head(BandAt(0)).unwrap();
    assert_eq!((head.shard, head.band, head.position, head.stream), (3, 0, 0, 0));
    assert_eq!((head.count, head.blocks), (255, 256));
    assert_eq!((head.generation, head.sequence), ((7 << 32) + 1, (7 << 32) + 1));
    let header = rig.disk.block(64);
    let beside = (1000..1008).chain(1248..1255);
    assert!(head.entries(&header).eq(beside.chain(1008..1248).map(entry)));
    for (block, at) in (1000..).zip(&places) {
        assert_eq!(rig.disk.block(rig.bands.device_block(*at)), bytes(block));
    }
    let stats = rig.bands.stats();
    assert_eq!((stats.data_blocks, stats.stripes, stats.padding_blocks), ([255, 0], 1, 0));
    assert_eq!(stats.bytes(), 1 << 20);
}

#[test]
fn a_stripe_that_is_not_full_is_padded_with_zeroes_to_a_write_unit() {
    let reactor = reactor();
    let mut memory: Vec<_> = (0..8).filter_map(|_| reactor.pool().try_alloc(1 << 20)).collect();
    memory.iter_mut().for_each(|buf| buf.as_mut_slice().fill(9));
    drop(memory);
    let rig = Rig::on(Disk::new(reactor), GEOMETRY, OWNER, &[]);
    assert_eq!(rig.put(Stream::User, 0..3).unwrap(), [1, 2, 3].map(BandAt));
    assert_eq!(rig.put(Stream::User, 3..18).unwrap()[0], BandAt(17));
    assert_eq!(rig.put(Stream::User, 18..34).unwrap()[0], BandAt(33));
    assert_eq!(rig.disk.writes(), [(64, 80), (80, 96), (96, 128)]);
    assert!((4..16).all(|padding| rig.disk.block(64 + padding) == vec![0; BLOCK_BYTES]));
    assert_eq!(rig.head(BandAt(0)).map(|head| (head.count, head.blocks)), Some((3, 16)));
    assert_eq!(rig.bands.stats().padding_blocks, 12 + 15);
}

#[test]
fn runs_of_64_kib_have_pages_of_their_own_and_what_is_beside_them_fills_the_others() {
    let rig = Rig::new(GEOMETRY);
    let bands = rig.bands.clone();
    // Runs of 16 blocks behind one another, a block between two of them, then a run that no free page is left for.
    let runs: Vec<u32> = (0..14).flat_map(|run| (run * 32..run * 32 + 16).chain([run * 32 + 20])).collect();
    let appended: Vec<u32> = runs.into_iter().chain([1000]).chain(1600..1632).collect();
    let places = rig.run(async move {
        let mut writer = bands.writer(Stream::User);
        append(&mut writer, appended).await.unwrap();
        writer.finish().await.map(|places| places.iter().map(Option::unwrap).collect::<Vec<_>>())
    });
    let places = places.unwrap();
    for (run, places) in places[..14 * 17].chunks(17).enumerate() {
        let page = (run as u32 + 1) * 16;
        assert_eq!(places[..16], (page..page + 16).map(BandAt).collect::<Vec<_>>());
        assert_eq!(places[16], BandAt(run as u32 + 1), "beside the header");
    }
    assert_eq!(places[14 * 17], BandAt(15));
    let rest = &places[14 * 17 + 1..];
    assert_eq!(rest[..16], (240..256).map(BandAt).collect::<Vec<_>>(), "the last page");
    let closed_up: Vec<_> = std::iter::once(272).chain(257..272).map(BandAt).collect();
    assert_eq!(rest[16..], closed_up, "what was behind the end is before it");
    assert_eq!(rig.disk.writes(), [(64, 320), (320, 352)]);
}

#[test]
fn a_stripe_that_ends_early_has_its_blocks_behind_one_another() {
    for (blocks, parts) in [(16..32, 1), (16..40, 2), (0..255, 9), (3..80, 4)] {
        let rig = Rig::new(GEOMETRY);
        let bands = rig.bands.clone();
        let (count, entries) = (blocks.len() as u32, blocks.clone());
        let (first, second) = rig.run(async move {
            let (mut one, mut other) = (bands.writer(Stream::User), bands.writer(Stream::User));
            // Two writers that take turns, so that what is moved has parts of both.
            for step in 0..parts {
                let part = |offset| {
                    let all = count / (2 * parts);
                    let from = blocks.start + (2 * step + offset) * all;
                    from..if 2 * step + offset + 1 == 2 * parts { blocks.end } else { from + all }
                };
                append(&mut one, part(0)).await.unwrap();
                append(&mut other, part(1)).await.unwrap();
            }
            one.end();
            let second = other.finish().await.unwrap();
            (one.finish().await.unwrap(), second)
        });
        let mut places: Vec<u32> = first.iter().chain(second.iter()).map(|place| place.unwrap().0).collect();
        let header = rig.disk.block(64);
        let head = rig.head(BandAt(0)).unwrap();
        for (at, found) in (1..).zip(head.entries(&header)) {
            assert_eq!(found, entry(found.block));
            assert_eq!(rig.disk.block(64 + at), bytes(found.block), "block {at} is what its entry says");
        }
        let mut named: Vec<u32> = head.entries(&header).map(|entry| entry.block).collect();
        named.sort_unstable();
        assert_eq!(named, entries.collect::<Vec<_>>());
        places.sort_unstable();
        assert_eq!(places, (1..=count).collect::<Vec<_>>());
    }
}

#[test]
fn an_open_stripe_waits_for_all_writers_of_its_stream_and_for_no_others() {
    let rig = Rig::new(GEOMETRY);
    let bands = rig.bands.clone();
    let (mut first, mut second) = (bands.writer(Stream::User), bands.writer(Stream::User));
    let other = bands.writer(Stream::Moved);
    let first = rig.reactor.spawn_join(async move {
        append(&mut first, 0..10).await.unwrap();
        first.finish().await.map(|places| places.iter().flatten().collect::<Vec<_>>())
    });
    rig.turns(5);
    assert!(!first.is_finished() && rig.disk.writes().is_empty());
    let places = rig.run(async move {
        append(&mut second, 10..14).await.unwrap();
        second.finish().await.map(|places| places.iter().flatten().collect::<Vec<_>>())
    });
    assert_eq!(places.unwrap(), (11..15).map(BandAt).collect::<Vec<_>>());
    assert_eq!(rig.run(first).unwrap(), (1..11).map(BandAt).collect::<Vec<_>>());
    assert_eq!(rig.disk.writes(), [(64, 80)]);
    drop(other);
    assert_eq!(rig.disk.writes().len(), 1, "nothing to write");
}

#[test]
fn a_writer_that_is_dropped_lets_the_others_go_on_and_holds_nothing() {
    let rig = Rig::new(GEOMETRY);
    let (bands, disk) = (rig.bands.clone(), rig.disk.clone());
    rig.run(async move {
        let (mut one, mut two) = (bands.writer(Stream::User), bands.writer(Stream::User));
        append(&mut one, 0..300).await.unwrap();
        append(&mut two, 300..301).await.unwrap();
        assert_eq!(disk.writes(), [(64, 320)], "a full stripe does not wait");
        drop(one);
        let places = two.finish().await.unwrap();
        assert_eq!(places.iter().collect::<Vec<_>>(), [Some(BandAt(256 + 14))]);
    });
    assert_eq!(rig.bands.room().held_blocks, 0);
    // A drop while the stripe is on its way.
    rig.disk.is_stalled.set(true);
    let bands = rig.bands.clone();
    let waits = rig.reactor.spawn_join(async move {
        let mut writer = bands.writer(Stream::User);
        append(&mut writer, 0..5).await.unwrap();
        drop(writer);
    });
    rig.turns(3);
    assert!(waits.is_finished());
    rig.disk.is_stalled.set(false);
    rig.turns(3);
    assert_eq!((rig.bands.room().held_blocks, rig.disk.writes().len()), (0, 3));
}

#[test]
fn blocks_that_are_left_out_take_no_room_and_have_no_place() {
    let rig = Rig::new(GEOMETRY);
    let bands = rig.bands.clone();
    let places = rig.run(async move {
        let mut writer = bands.writer(Stream::User);
        let entries: Vec<_> = (0..6).map(entry).collect();
        let fill = |index: usize, target: &mut [u8]| {
            content(index as u32, target);
            !index.is_multiple_of(3)
        };
        writer.append(&entries, fill).await.unwrap();
        let mut none = bands.writer(Stream::Moved);
        none.append(&entries, |_, _| false).await.unwrap();
        assert_eq!(none.finish().await.unwrap().iter().flatten().count(), 0);
        writer.finish().await.unwrap().iter().collect::<Vec<_>>()
    });
    assert_eq!(places, [None, Some(1), Some(2), None, Some(3), Some(4)].map(|at| at.map(BandAt)));
    let head = rig.head(BandAt(0)).unwrap();
    assert!(head.entries(&rig.disk.block(64)).eq([1, 2, 4, 5].map(entry)));
    assert_eq!(rig.disk.writes().len(), 1, "a stripe without blocks is not written");
}

#[test]
fn what_does_not_fit_in_a_band_goes_to_the_next_and_each_stream_has_its_own() {
    let rig = Rig::new(SMALL);
    let user = rig.put(Stream::User, 0..40).unwrap();
    assert_eq!(user[14..16], [BandAt(15), BandAt(17)], "behind the header of the next band");
    let old = rig.put(Stream::Moved, 100..101).unwrap();
    assert_eq!(old, [BandAt(3 * 16 + 1)]);
    assert_eq!(rig.put(Stream::User, 40..41).unwrap()[0], BandAt(4 * 16 + 1), "its band was full");
    let heads: Vec<_> = [0, 16, 32, 48, 64].map(|at| rig.head(BandAt(at)).unwrap()).into();
    assert!(heads.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    assert!(heads.iter().all(|head| head.generation <= head.sequence));
    assert_eq!(heads[3].stream, Stream::Moved as u8);
    assert_eq!((rig.bands.room().open, rig.bands.room().closed), (2, 3));
}

#[test]
fn several_stripes_are_under_way_and_a_writer_waits_when_there_is_no_turn_for_more() {
    let rig = Rig::new(GEOMETRY);
    rig.disk.is_stalled.set(true);
    let bands = rig.bands.clone();
    let done = rig.reactor.spawn_join(async move {
        let mut writer = bands.writer(Stream::User);
        append(&mut writer, 0..255 * 7).await.unwrap();
        settle(&bands, writer.finish().await.unwrap())
    });
    rig.turns(5);
    assert_eq!(rig.disk.writes().len(), writer::UNDER_WAY_MAX as usize);
    rig.disk.is_stalled.set(false);
    let places = rig.run(done);
    assert_eq!(places.len(), 255 * 7);
    assert!(places.iter().all(|at| at.0 % 256 != 0), "no block is where a header is");
    assert_eq!(rig.bands.stats().stripes, 7);
}

#[test]
fn stripes_go_on_with_one_buffer_when_the_pool_is_used_up() {
    let rig = Rig::new(GEOMETRY);
    let pool = rig.reactor.pool();
    let hoard: Vec<_> = std::iter::from_fn(|| pool.try_alloc(1 << 20)).collect();
    assert!(!hoard.is_empty());
    rig.disk.delays.replace(Some(base::Rng::new(1)));
    let bands = rig.bands.clone();
    rig.run(async move {
        let mut held = bands.writer(Stream::User);
        append(&mut held, 0..7).await.unwrap();
        // The other stream gets the only buffer, though this one still gathers.
        let mut writer = bands.writer(Stream::Moved);
        append(&mut writer, 10..600).await.unwrap();
        assert_eq!(writer.finish().await.unwrap().len(), 590);
        append(&mut held, 7..8).await.unwrap();
        let places: Vec<_> = held.finish().await.unwrap().iter().flatten().collect();
        assert_eq!((places.len(), places[6], places[7]), (8, BandAt(7), BandAt(17)));
    });
    drop(hoard);
}

#[test]
fn stripes_larger_than_the_device_writes_at_once_go_in_pieces() {
    for block_size in [512, 4096] {
        let disk = Disk::new(reactor());
        disk.change_info(|info| (info.block_size, info.max_io_blocks) = (block_size, (96 << 10) / block_size));
        let rig = Rig::on(disk, GEOMETRY, OWNER, &[]);
        let places = rig.put(Stream::User, 0..100).unwrap();
        assert_eq!(rig.disk.writes(), [(64, 88), (88, 112), (112, 136), (136, 160), (160, 176)]);
        for (block, at) in (0..).zip(places) {
            assert_eq!(rig.disk.block(rig.bands.device_block(at)), bytes(block));
        }
    }
}

#[test]
fn what_has_been_written_is_flushed_where_that_is_needed() {
    for (volatile_cache, flushes) in [(false, 0), (true, 1)] {
        let disk = Disk::new(reactor());
        disk.change_info(|info| info.volatile_cache = volatile_cache);
        let rig = Rig::on(disk, GEOMETRY, OWNER, &[]);
        let bands = rig.bands.clone();
        rig.run(async move { bands.flush().await.unwrap() });
        assert_eq!(rig.disk.log.borrow().iter().filter(|(op, ..)| *op == Op::Flush).count(), flushes);
    }
}

#[test]
fn a_device_with_write_streams_is_told_which_blocks_belong_together() {
    for (streams, expected) in [(0, [0, 0]), (1, [1, 1]), (2, [1, 2]), (8, [1, 2])] {
        let disk = Disk::new(reactor());
        disk.change_info(|info| info.streams = streams);
        let rig = Rig::on(disk, GEOMETRY, OWNER, &[]);
        Stream::ALL.into_iter().for_each(|stream| drop(rig.put(stream, 0..1).unwrap()));
        let writes: Vec<_> = rig.disk.log.borrow().iter().filter(|(op, ..)| *op == Op::Write).map(|io| io.2).collect();
        assert_eq!(writes, expected, "of {streams} streams");
    }
}

#[test]
fn user_streams_leave_a_reserve_to_those_that_make_room() {
    let rig = Rig::new(SMALL);
    let mut bands = 0;
    while rig.bands.may_append(Stream::User) {
        assert_eq!(rig.put(Stream::User, 0..15).unwrap().len(), 15);
        bands += 1;
    }
    assert_eq!((bands, rig.bands.room().free), (SMALL.bands - RESERVE_BANDS, RESERVE_BANDS));
    assert_eq!(rig.put(Stream::User, 0..1), Err(Status::NoSpace));
    assert!(rig.bands.may_append(Stream::Moved));
    for _ in 0..RESERVE_BANDS {
        assert_eq!(rig.put(Stream::Moved, 0..15).unwrap().len(), 15);
    }
    assert!(!rig.bands.may_append(Stream::Moved));
    assert_eq!(rig.put(Stream::Moved, 0..1), Err(Status::NoSpace));
}

#[test]
fn what_was_appended_before_there_was_no_room_is_written() {
    let rig = Rig::new(SMALL);
    let blocks = 15 * (SMALL.bands - RESERVE_BANDS);
    let bands = rig.bands.clone();
    rig.run(async move {
        let mut writer = bands.writer(Stream::User);
        assert_eq!(append(&mut writer, 0..blocks + 1).await, Err(Status::NoSpace));
        assert_eq!(writer.finish().await.unwrap().len(), blocks as usize);
    });
}
