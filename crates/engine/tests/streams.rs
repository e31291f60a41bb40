//! Snapshots as streams, out of one pool and into another.

use crate::common::forge::forge_field;
use crate::common::stream::{Bytes, Collect};
use crate::common::*;
use base::Rng;
use bdev::{BlockDevice, Io, Lba, Op, Status};
use engine::{
    CreateOptions, ImportOptions, Imported, LogDevice, Pool, PoolDevices, StreamError, StreamTotals, StreamVerifier,
};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

async fn tank(reactor: &Rc<Reactor>, is_shaped: bool) -> Arc<Pool> {
    let devices = match is_shaped {
        false => devices(4096),
        true => PoolDevices {
            log: LogDevice::Block(mem("log", 4096, 16 << 20)),
            capacity: mem("capacity", 4096, 192 << 20),
        },
    };
    let options = if is_shaped { shaped(2) } else { options(2) };
    let options = CreateOptions { volumes_max: Some(40), ..options };
    Pool::create(reactor, &devices, &options, 0, true).await.unwrap();
    open(reactor.clone(), devices).await.unwrap()
}

/// Two pools of different shapes, and their reactor.
fn with_pools<F: Future<Output = ()> + 'static>(
    test: impl Fn(Rc<Reactor>, Arc<Pool>, Arc<Pool>) -> F + Copy + 'static,
) {
    for is_shaped in [false, true] {
        let reactor = reactor();
        let there = reactor.clone();
        reactor.block_on(async move {
            let (from, to) = (tank(&there, is_shaped).await, tank(&there, !is_shaped).await);
            test(there, from, to).await;
        });
    }
}

fn device(pool: &Pool, name: &str) -> Arc<dyn BlockDevice> {
    pool.volume(name).unwrap_or_else(|| panic!("there is no volume '{name}'"))
}

async fn put(reactor: &Rc<Reactor>, pool: &Pool, name: &str, lba: u64, value: u8) {
    assert_eq!(write(reactor, &device(pool, name), lba, value).await, Status::Ok);
}

async fn submit(reactor: &Rc<Reactor>, pool: &Pool, name: &str, op: Op, lba: u64, blocks: u32) -> Status {
    let channel = device(pool, name).open_channel(reactor).unwrap();
    channel.submit(Io::new(op, Lba(lba), blocks)).await.status
}

async fn export(reactor: &Rc<Reactor>, pool: &Pool, name: &str, since: Option<&str>) -> (Vec<u8>, StreamTotals) {
    let mut sink = Collect(Vec::new());
    let totals = pool.export_snapshot(reactor, name, since, &mut sink).await.unwrap();
    assert_eq!(totals.stream_bytes, sink.0.len() as u64);
    assert_eq!(verified(&sink.0, 1000).unwrap(), totals);
    (sink.0, totals)
}

fn verified(bytes: &[u8], piece: usize) -> Result<StreamTotals, StreamError> {
    let mut verifier = StreamVerifier::default();
    bytes.chunks(piece).try_for_each(|piece| verifier.push(piece))?;
    verifier.finish()
}

async fn import(
    reactor: &Rc<Reactor>,
    pool: &Pool,
    options: ImportOptions<'_>,
    all: &[u8],
    piece: usize,
) -> Result<Imported, StreamError> {
    pool.import_snapshot(reactor, options, &mut Bytes { all: all.to_vec(), at: 0, piece }).await
}

async fn expect_equal(
    reactor: &Rc<Reactor>,
    one: (&Pool, &str),
    other: (&Pool, &str),
    lbas: impl Iterator<Item = u64>,
) {
    let (left, right) = (device(one.0, one.1), device(other.0, other.1));
    assert_eq!(left.info().blocks, right.info().blocks);
    for lba in lbas {
        let values = (read(reactor, &left, lba).await, read(reactor, &right, lba).await);
        assert_eq!(values.0, values.1, "block {lba} of {} and {}", one.1, other.1);
    }
}

#[test]
fn a_snapshot_and_what_differs_from_it_arrive_in_another_pool() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 30_000, 12, 0).await.unwrap();
        let lbas = [0, 1, 2, 3, 700, 1023, 1024, 2048, 20_000, 29_999];
        for lba in lbas {
            put(&reactor, &from, "v", lba, 1).await;
        }
        assert_eq!(submit(&reactor, &from, "v", Op::WriteUncorrectable, 3, 1).await, Status::Ok);
        from.snapshot(&reactor, &[("v", "one")], 77).await.unwrap();
        let (whole, totals) = export(&reactor, &from, "v@one", None).await;
        assert_eq!((totals.data_blocks, totals.hole_blocks, totals.lost_blocks), (9, 0, 1));
        put(&reactor, &from, "v", 1, 2).await;
        put(&reactor, &from, "v", 20_000, 0).await;
        assert_eq!(submit(&reactor, &from, "v", Op::Unmap, 700, 500).await, Status::Ok);
        from.volume("v").unwrap().resize(&reactor, 31_000).await.unwrap();
        from.snapshot(&reactor, &[("v", "two")], 78).await.unwrap();
        let (part, totals) = export(&reactor, &from, "v@two", Some("v@one")).await;
        assert_eq!((totals.data_blocks, totals.lost_blocks), (1, 0));

        let to_w = ImportOptions { volume: Some("w"), now_s: 99, ..ImportOptions::default() };
        let early = import(&reactor, &to, to_w, &part, 1000).await.err().unwrap().to_string();
        assert!(early.contains("has no volume 'w'"), "{early}");
        let made = import(&reactor, &to, to_w, &whole, 1000).await.unwrap();
        assert_eq!((made.snapshot.name(), made.totals.stream_bytes), ("w@one", whole.len() as u64));
        let around = |lba: &u64| lba.saturating_sub(1)..(lba + 2).min(30_000);
        expect_equal(&reactor, (&from, "v@one"), (&to, "w@one"), lbas.iter().flat_map(around)).await;
        assert_eq!(read(&reactor, &device(&to, "w@one"), 3).await, Err(Status::ReadError));
        let again = import(&reactor, &to, to_w, &whole, 1000).await.err().unwrap().to_string();
        assert!(again.contains("already has a snapshot 'w@one'"), "{again}");

        let made = import(&reactor, &to, to_w, &part, 7).await.unwrap();
        assert_eq!(made.snapshot.name(), "w@two");
        expect_equal(&reactor, (&from, "v@two"), (&to, "w@two"), lbas.iter().flat_map(around)).await;
        expect_equal(&reactor, (&from, "v@one"), (&to, "w@one"), lbas.iter().flat_map(around)).await;
        let (tree, _) = to.tree(&reactor).await.unwrap();
        let of_w = &tree.iter().find(|volume| volume.name == "w").unwrap().snapshots;
        let (of_v, _) = from.tree(&reactor).await.unwrap();
        for (copy, original) in of_w.iter().zip(&of_v[0].snapshots) {
            assert_eq!((copy.content, copy.created_s), (original.uuid, original.created_s));
            assert_ne!(copy.uuid, original.uuid);
        }
    });
}

#[test]
fn what_differs_goes_into_a_clone_of_the_copy_as_well() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 3000, 12, 0).await.unwrap();
        put(&reactor, &from, "v", 5, 1).await;
        from.snapshot(&reactor, &[("v", "one")], 0).await.unwrap();
        put(&reactor, &from, "v", 6, 2).await;
        from.snapshot(&reactor, &[("v", "two")], 0).await.unwrap();
        let whole = export(&reactor, &from, "v@one", None).await.0;
        let part = export(&reactor, &from, "v@two", Some("v@one")).await.0;
        import(&reactor, &to, ImportOptions::default(), &whole, 4096).await.unwrap();
        put(&reactor, &to, "v", 7, 9).await;
        to.clone_volume(&reactor, "v@one", "c", 0).await.unwrap();
        let into_clone = ImportOptions { volume: Some("c"), ..ImportOptions::default() };
        // What fails leaves the clone as it was, and the volume alone.
        assert!(import(&reactor, &to, into_clone, &part[..part.len() - 1], 4096).await.is_err());
        assert_eq!(read(&reactor, &device(&to, "c"), 6).await, Ok(0));
        assert_eq!(import(&reactor, &to, into_clone, &part, 4096).await.unwrap().snapshot.name(), "c@two");
        assert_eq!(read(&reactor, &device(&to, "c@two"), 6).await, Ok(2));
        assert_eq!(read(&reactor, &device(&to, "v"), 7).await, Ok(9));
    });
}

#[test]
fn who_reads_a_stream_that_fails_learns_why() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 3000, 12, 0).await.unwrap();
        from.snapshot(&reactor, &[("v", "one")], 0).await.unwrap();
        from.snapshot(&reactor, &[("v", "two")], 0).await.unwrap();
        let mut sink = Collect(Vec::new());
        let refused = from.export_snapshot(&reactor, "v@one", Some("v@two"), &mut sink).await.unwrap_err();
        assert!(refused.to_string().contains("'v@two' is not below 'v@one'"), "{refused}");
        let options = ImportOptions { volume: Some("w"), ..ImportOptions::default() };
        for error in
            [verified(&sink.0, 9).unwrap_err(), import(&reactor, &to, options, &sink.0, 9).await.err().unwrap()]
        {
            let text = error.to_string();
            assert!(text.contains("is not below") || text.contains("has no volume 'w'"), "{text}");
        }
        // Nor is anything overlooked that follows a whole one.
        let mut twice = export(&reactor, &from, "v@one", None).await.0;
        twice.extend(twice.clone());
        assert!(verified(&twice, 4096).is_err());
        let ended = import(&reactor, &to, options, &twice, 4096).await.err().unwrap().to_string();
        assert!(ended.contains("goes on behind its end"), "{ended}");
        assert!(to.volume("w").is_none());
    });
}

#[test]
fn a_volume_that_has_changed_is_rolled_back_only_when_told_to() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 80_000, 9, 0).await.unwrap();
        let channel = from.volume("v").unwrap().open_channel(&reactor).unwrap();
        let sectors = |lba: u64, value: u8| {
            let bufs = [reactor::Buf::from_vec(vec![value; 512])].into_iter().collect();
            Io::write(Lba(lba), 1, bufs)
        };
        assert_eq!(channel.submit(sectors(9, 1)).await.status, Status::Ok);
        from.snapshot(&reactor, &[("v", "one")], 0).await.unwrap();
        assert_eq!(channel.submit(sectors(10, 2)).await.status, Status::Ok);
        from.snapshot(&reactor, &[("v", "two")], 0).await.unwrap();
        let whole = export(&reactor, &from, "v@one", None).await.0;
        let part = export(&reactor, &from, "v@two", Some("v@one")).await.0;
        import(&reactor, &to, ImportOptions::default(), &whole, 4096).await.unwrap();
        let copy = to.volume("v").unwrap().open_channel(&reactor).unwrap();
        assert_eq!(copy.submit(sectors(500, 9)).await.status, Status::Ok);
        let refused = import(&reactor, &to, ImportOptions::default(), &part, 4096).await.err().unwrap().to_string();
        assert!(refused.contains("has changed since 'v@one'"), "{refused}");
        let told = ImportOptions { roll_back: true, snapshot: Some("second"), ..ImportOptions::default() };
        import(&reactor, &to, told, &part, 4096).await.unwrap();
        let source = from.volume("v@two").unwrap().open_channel(&reactor).unwrap();
        let copy = to.volume("v@second").unwrap().open_channel(&reactor).unwrap();
        for lba in [8, 9, 10, 11, 500] {
            let read = |channel: Rc<dyn bdev::Channel>| {
                let bufs = [reactor::Buf::from_vec(vec![7; 512])].into_iter().collect();
                async move { channel.submit(Io::read(Lba(lba), 1, bufs)).await.io.bufs[0].as_slice().to_vec() }
            };
            assert_eq!(read(source.clone()).await, read(copy.clone()).await, "sector {lba}");
        }
    });
}

#[test]
fn a_stream_that_is_cut_or_damaged_leaves_everything_as_it_was() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 3000, 12, 0).await.unwrap();
        put(&reactor, &from, "v", 5, 1).await;
        from.snapshot(&reactor, &[("v", "one")], 0).await.unwrap();
        put(&reactor, &from, "v", 5, 2).await;
        put(&reactor, &from, "v", 2000, 2).await;
        assert_eq!(submit(&reactor, &from, "v", Op::Unmap, 6, 3).await, Status::Ok);
        from.snapshot(&reactor, &[("v", "two")], 0).await.unwrap();
        let whole = export(&reactor, &from, "v@one", None).await.0;
        let part = export(&reactor, &from, "v@two", Some("v@one")).await.0;
        let options = ImportOptions::default();
        let refuses = async |bytes: &[u8], name: &str| {
            let ended = import(&reactor, &to, options, bytes, 4096).await;
            assert!(verified(bytes, 100).is_err() && ended.is_err() && to.volume(name).is_none(), "{name}");
            to.reap(&reactor).await.unwrap();
        };
        for cut in (0..whole.len()).step_by(97) {
            refuses(&whole[..cut], "v").await;
        }
        for at in (0..whole.len()).step_by(89) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            refuses(&bytes, "v").await;
        }
        import(&reactor, &to, options, &whole, 4096).await.unwrap();
        for at in (0..part.len()).step_by(89) {
            let mut bytes = part.clone();
            bytes[at] ^= 4;
            refuses(&bytes, "v@two").await;
            refuses(&part[..at], "v@two").await;
        }
        assert_eq!(read(&reactor, &device(&to, "v"), 5).await, Ok(1));
        assert_eq!(read(&reactor, &device(&to, "v"), 2000).await, Ok(0));
        to.reap(&reactor).await.unwrap();
        import(&reactor, &to, options, &part, 4096).await.unwrap();
        assert_eq!(read(&reactor, &device(&to, "v"), 2000).await, Ok(2));
        assert_eq!(to.audit(&reactor).await.unwrap().problems, Vec::<String>::new());
    });
}

/// Another number in one field of a stream's header or of one of its records, with the checksum put right.
fn forged(stream: &[u8], rng: &mut Rng) -> Vec<u8> {
    const HEADER_BYTES: usize = 512;
    const RECORD_BYTES: usize = 40;
    let mut bytes = stream.to_vec();
    let mut parts = vec![(0, HEADER_BYTES, 8)];
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        parts.push((at, RECORD_BYTES, 4));
        at += RECORD_BYTES + u32::from_le_bytes(bytes[at + 32..at + 36].try_into().unwrap()) as usize;
    }
    for _ in 0..rng.between(1, 3) {
        let (start, len, sum) = parts[rng.below(parts.len() as u64) as usize];
        let part = &mut bytes[start..start + len];
        let size = [1, 4, 8][rng.below(3) as usize];
        let field = rng.below((len / size) as u64) as usize * size;
        forge_field(&mut part[field..field + size], rng);
        part[sum..sum + 4].fill(0);
        let crc = base::crc32c(part);
        part[sum..sum + 4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[test]
fn a_forged_stream_is_taken_or_refused_and_never_panics() {
    with_pools(|reactor, from, to| async move {
        from.create_volume(&reactor, "v", 3000, 12, 0).await.unwrap();
        for lba in [5, 6, 700, 2000, 2999] {
            put(&reactor, &from, "v", lba, lba as u8).await;
        }
        from.snapshot(&reactor, &[("v", "one")], 0).await.unwrap();
        assert_eq!(submit(&reactor, &from, "v", Op::Unmap, 6, 300).await, Status::Ok);
        put(&reactor, &from, "v", 1500, 9).await;
        from.snapshot(&reactor, &[("v", "two")], 0).await.unwrap();
        let whole = export(&reactor, &from, "v@one", None).await.0;
        let part = export(&reactor, &from, "v@two", Some("v@one")).await.0;
        let mut taken = 0;
        for round in 0..200 {
            let mut rng = Rng::new(round);
            let (stream, name) = if rng.one_in(2) { (&whole, "v") } else { (&part, "v@two") };
            if name == "v@two" {
                import(&reactor, &to, ImportOptions::default(), &whole, 4096).await.unwrap();
            }
            let bytes = forged(stream, &mut rng);
            let verdict = verified(&bytes, 1000);
            let ended = import(&reactor, &to, ImportOptions::default(), &bytes, 4096).await;
            assert!(verdict.is_ok() || ended.is_err(), "round {round}: {verdict:?}, and it is taken");
            taken += u64::from(ended.is_ok());
            for volume in to.volumes().iter().filter(|volume| !volume.name().contains('@')) {
                to.delete_volume_and_snapshots(&reactor, volume.name()).await.unwrap();
            }
            to.reap(&reactor).await.unwrap();
            assert_eq!(to.volumes().len(), 0, "round {round}");
        }
        assert!(taken > 0, "forged times and names are no reason to refuse a stream");
        assert_eq!(to.audit(&reactor).await.unwrap().problems, Vec::<String>::new());
    });
}
