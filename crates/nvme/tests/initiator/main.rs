//! The host against a scripted target: corners of the protocol, hostile controllers, lost connections.

mod fake;
mod paths;
mod reactors;

use bdev::{BlockDevice, Channel, Done, Flags, Io, Lba, Op, Status};
use fake::{Action, BLOCK, BLOCKS, Config, Fake, raw};
use nvme::initiator::{ConnectError, Controller, HostIdentity, NvmfDevice, Options, Replay};
use nvme::spec::identify::Cns;
use nvme::spec::opcode::{AdminOpcode, NvmOpcode};
use nvme::spec::sqe::IdentifyCommand;
use nvme::spec::{Cqe, Nqn, Status as Nvme, property};
use nvme::tcp::{DataHeader, Fault, R2t};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{Reactor, ReactorConfig, SgList};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uuid::Uuid;

const MS: u64 = 1_000_000;

fn options(fake: &Fake) -> Options {
    let subsystem = Nqn::new("nqn.2024-01.org.example:test").unwrap();
    Options {
        keep_alive_ms: 200,
        quiesce_ns: 100 * MS,
        reconnect_first_ns: 5 * MS,
        reconnect_max_ns: 50 * MS,
        admin_timeout_ns: 2000 * MS,
        ..Options::new(fake.address, subsystem, HostIdentity::from_uuid(Uuid::from_u128(1)))
    }
}

fn run<T: Send + 'static, F: Future<Output = T> + 'static>(make: impl FnOnce(Rc<Reactor>) -> F + Send + 'static) -> T {
    let config = RuntimeConfig { reactor: ReactorConfig::default(), ..RuntimeConfig::default() };
    let runtime = Runtime::start(&config).unwrap();
    runtime.handles()[0].call_async(make).expect("the reactor answers")
}

/// A device on a channel, and what tests do with them.
struct Host {
    reactor: Rc<Reactor>,
    device: NvmfDevice,
    channel: Rc<dyn Channel>,
}

impl Host {
    async fn open(reactor: Rc<Reactor>, options: &Options) -> Host {
        let device = NvmfDevice::open(&reactor, "remote", options, None).await.unwrap();
        let channel = device.open_channel(&reactor).unwrap();
        Host { reactor, device, channel }
    }

    fn bufs(&self, bytes: usize, fill: impl Fn(usize) -> u8) -> SgList {
        // Two buffers, the first of an odd size, so that everything crosses a seam.
        let cut = (bytes / 3) & !1;
        let mut bufs = SgList::new();
        for (start, len) in [(0, cut), (cut, bytes - cut)] {
            if len > 0 {
                let mut buf = self.reactor.pool().try_alloc(len).unwrap();
                buf.as_mut_slice().iter_mut().enumerate().for_each(|(index, byte)| *byte = fill(start + index));
                bufs.push(buf);
            }
        }
        bufs
    }

    fn write_io(&self, lba: u64, blocks: u32, seed: u8) -> Io {
        Io::write(Lba(lba), blocks, self.bufs(blocks as usize * BLOCK, |index| (index as u8).wrapping_mul(seed)))
    }

    async fn write(&self, lba: u64, blocks: u32, seed: u8) -> Status {
        self.channel.submit(self.write_io(lba, blocks, seed)).await.status
    }

    async fn read(&self, lba: u64, blocks: u32) -> (Status, Vec<u8>) {
        let bufs = self.bufs(blocks as usize * BLOCK, |_| 0xa5);
        let done = self.channel.submit(Io::read(Lba(lba), blocks, bufs)).await;
        (done.status, done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect())
    }

    /// Starts an operation whose end can be asked for.
    fn start(&self, io: Io) -> Rc<RefCell<Option<Done>>> {
        let slot = Rc::new(RefCell::new(None));
        let (channel, result) = (self.channel.clone(), slot.clone());
        self.reactor.spawn(async move {
            let done = channel.submit(io).await;
            *result.borrow_mut() = Some(done);
        });
        slot
    }

    async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let began = self.reactor.clock_ns();
        while !condition() {
            assert!(self.reactor.clock_ns() - began < 60_000 * MS, "{what} did not happen");
            self.reactor.sleep_ns(MS).await;
        }
    }

    async fn close(self) {
        drop(self.channel);
        self.device.close().await;
    }
}

fn pattern(blocks: u32, seed: u8) -> Vec<u8> {
    (0..blocks as usize * BLOCK).map(|index| (index as u8).wrapping_mul(seed)).collect()
}

#[test]
fn data_survives_every_way_of_moving_it() {
    let variants = [
        Config::default(),
        Config { success: false, ..Config::default() },
        Config { piece: 1000, success: false, cpda: 7, ..Config::default() },
        Config { piece: 20_000, reverse: true, mdts: 4, ..Config::default() },
        Config { r2t_bytes: 4096, r2ts: 4, maxh2cdata: 4096, ..Config::default() },
        Config { capsule_data: 0, r2t_bytes: 65_536, maxh2cdata: 4096, mdts: 2, cpda: 31, ..Config::default() },
        Config { mdts: 0, piece: 1 << 20, r2t_bytes: 1 << 20, maxh2cdata: 1 << 20, ..Config::default() },
    ];
    for config in variants {
        for digests in [false, true] {
            let config = config.clone();
            let fake = Fake::start(config.clone());
            let options =
                Options { header_digest: digests, data_digest: digests, queues_per_channel: 2, ..options(&fake) };
            run(move |reactor| async move {
                let host = Host::open(reactor, &options).await;
                for (lba, blocks) in [(0, 1), (8, 8), (100, 9), (200, 31), (300, 128), (1000, 600), (2000, 2048)] {
                    let seed = blocks as u8 | 1;
                    assert_eq!(host.write(lba, blocks, seed).await, Status::Ok, "{config:?}");
                    let (status, data) = host.read(lba, blocks).await;
                    assert_eq!(status, Status::Ok, "{config:?}");
                    assert!(data == pattern(blocks, seed), "{blocks} blocks with {config:?}, digests {digests}");
                    assert!(fake.block(lba + u64::from(blocks) - 1) == data[data.len() - BLOCK..]);
                }
                assert!(fake.terminations().is_empty());
                host.close().await;
            });
        }
    }
}

#[test]
fn a_device_is_connected_when_it_has_been_opened() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
        assert!(device.is_connected() && device.was_connected(), "nothing else had a turn yet");
        device.close().await;
    });
}

#[test]
fn a_namespace_without_identifiers_is_one_whose_controller_does_not_know_the_question() {
    for (status, opens) in [(Nvme::INVALID_FIELD.dnr(), true), (Nvme::NAMESPACE_NOT_READY, false)] {
        let fake = Fake::start(Config::default());
        fake.set_script(move |seen| {
            let asks = seen.is_admin(AdminOpcode::Identify)
                && IdentifyCommand::of(&seen.sqe).cns == Cns::NamespaceDescriptors as u8;
            if asks { Action::Fail(status) } else { Action::Serve }
        });
        let options = options(&fake);
        run(move |reactor| async move {
            let opened = NvmfDevice::open(&reactor, "remote", &options, None).await;
            assert_eq!(opened.is_ok(), opens, "{status}");
            if let Ok(device) = opened {
                device.close().await;
            }
        });
    }
}

#[test]
fn more_operations_than_the_queue_holds_wait_their_turn() {
    let fake = Fake::start(Config { queue_entries: 4, ..Config::default() });
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let ios: Vec<_> = (0..200).map(|index| host.start(host.write_io(index * 20, 16, index as u8))).collect();
        host.until("the end of all writes", || ios.iter().all(|io| io.borrow().is_some())).await;
        for (index, io) in ios.iter().enumerate() {
            assert_eq!(io.borrow().as_ref().unwrap().status, Status::Ok);
            assert!(fake.block(index as u64 * 20) == pattern(1, index as u8));
        }
        host.close().await;
    });
}

#[test]
fn operations_other_than_reads_and_writes_reach_the_target() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(10, 4, 3).await, Status::Ok);
        for (op, blocks) in [(Op::WriteZeroes, 2), (Op::Unmap, 3), (Op::Verify, 4)] {
            assert_eq!(host.channel.submit(Io::new(op, Lba(20), blocks)).await.status, Status::Ok, "{op:?}");
        }
        assert_eq!(host.channel.submit(Io::flush()).await.status, Status::Ok);
        let fua = Io { flags: Flags::FUA, ..host.write_io(30, 1, 1) };
        assert_eq!(host.channel.submit(fua).await.status, Status::Ok);
        let compare = |seed| Io { op: Op::Compare, ..host.write_io(10, 4, seed) };
        assert_eq!(host.channel.submit(compare(3)).await.status, Status::Ok);
        assert_eq!(host.channel.submit(compare(4)).await.status, Status::Miscompare);
        let mut both = host.write_io(10, 1, 3);
        both.op = Op::CompareAndWrite;
        both.bufs.extend(host.bufs(BLOCK, |_| 9));
        assert_eq!(host.channel.submit(both).await.status, Status::Ok);
        assert_eq!(fake.block(10), [9; BLOCK]);
        let out_of_range = host.write(BLOCKS as u64 - 1, 2, 1).await;
        assert_eq!(out_of_range, Status::OutOfRange);
        let opcodes: Vec<u8> =
            fake.seen().iter().filter(|seen| seen.queue > 0 && seen.sqe.opcode != 0x7f).map(|s| s.sqe.opcode).collect();
        assert_eq!(opcodes, [1, 8, 9, 12, 0, 1, 5, 5, 5, 1]);
        let seen = fake.seen();
        let is_fua = |lba| seen.iter().any(|seen| seen.lba() == lba && seen.sqe.cdw12.get() & 1 << 30 != 0);
        assert!(is_fua(30) && !is_fua(10));
        // (a keep-alive may come at any time)
        let of_io = seen.iter().rev().filter(|seen| seen.queue > 0);
        let pair: Vec<u8> = of_io.take(2).map(|seen| seen.sqe.flags & 3).collect();
        assert_eq!(pair, [2, 1], "the halves follow each other");
        host.close().await;
    });
}

#[test]
fn a_damaged_digest_fails_the_read_alone_and_it_is_tried_again() {
    let damaged = Arc::new(AtomicUsize::new(0));
    let count = damaged.clone();
    let fake = Fake::start(Config::default());
    let options = Options { data_digest: true, retries_max: 3, ..options(&fake) };
    fake.set_script(move |seen| {
        let times = if seen.lba() == 5 { 2 } else { 100 };
        match seen.is_io(NvmOpcode::Read) && count.fetch_add(1, Ordering::SeqCst) < times {
            true => Action::Damage,
            false => Action::Serve,
        }
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(5, 3, 7).await, Status::Ok);
        let (status, data) = host.read(5, 3).await;
        assert_eq!(status, Status::Ok);
        assert!(data == pattern(3, 7));
        assert_eq!(host.read(6, 1).await.0, Status::ReadError, "a line that always damages");
        assert_eq!(damaged.load(Ordering::SeqCst), 3 + 4);
        assert_eq!(host.device.stats().reconnects, 0);
        host.close().await;
    });
}

#[test]
fn a_status_is_tried_again_only_if_it_allows_that() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    let tries = Arc::new(AtomicUsize::new(0));
    let count = tries.clone();
    fake.set_script(move |seen| {
        if !seen.is_io(NvmOpcode::Write) {
            return Action::Serve;
        }
        let attempt = count.fetch_add(1, Ordering::SeqCst);
        match seen.lba() {
            1 if attempt < 2 => Action::Fail(Nvme::NAMESPACE_NOT_READY),
            2 => Action::Fail(Nvme::NAMESPACE_NOT_READY.dnr()),
            3 => Action::Fail(Nvme::ANA_TRANSITION),
            4 => Action::Fail(Nvme::WRITE_FAULT),
            5 => Action::Fail(Nvme::RESERVATION_CONFLICT.dnr()),
            _ => Action::Serve,
        }
    });
    run(move |reactor| async move {
        let options = Options { retries_max: 3, ..options };
        let host = Host::open(reactor, &options).await;
        let cases = [
            (1, Status::Ok, 3),
            (2, Status::WriteError, 1),
            (3, Status::Gone, 4),
            (4, Status::WriteError, 1),
            (5, Status::ReservationConflict, 1),
        ];
        for (lba, status, attempts) in cases {
            tries.store(0, Ordering::SeqCst);
            assert_eq!(host.write(lba, 1, 1).await, status, "block {lba}");
            assert_eq!(tries.load(Ordering::SeqCst), attempts, "block {lba}");
        }
        host.close().await;
    });
}

/// What happens, the bytes for a command's identifier, and the fault that the host names.
type Breach = (&'static str, fn(u16) -> Vec<u8>, Option<Fault>);

/// What a hostile controller sends instead of an answer to the first read of block 7, given the command's identifier, and
/// the termination that it gets.
fn breaches() -> Vec<Breach> {
    fn c2h(cid: u16, offset: u32, len: u32, success: bool) -> Vec<u8> {
        let header = DataHeader { cccid: cid, ttag: 0, offset, len, last: success, success };
        raw(|encoder, out| encoder.c2h_data(out, &header), &vec![0xbb; len as usize])
    }
    fn response(cid: u16) -> Vec<u8> {
        raw(|encoder, out| encoder.capsule_resp(out, &Cqe::success(cid, 0)), &[])
    }
    fn r2t(cid: u16, offset: u32, len: u32) -> Vec<u8> {
        raw(|encoder, out| encoder.r2t(out, &R2t { cccid: cid, ttag: 1, offset, len }), &[])
    }
    fn patched(mut bytes: Vec<u8>, at: usize, value: u8) -> Vec<u8> {
        bytes[at] = value;
        bytes
    }
    let field = |offset| Some(Fault::HeaderField { offset });
    vec![
        ("an answer to nobody", |cid| response(cid ^ 0x1000), field(20)),
        ("an answer beyond the queue", |_| response(0xffff), field(20)),
        ("two answers", |cid| [response(cid), response(cid)].concat(), field(20)),
        ("data for nobody", |cid| c2h(cid ^ 0x1000, 0, 512, true), field(8)),
        ("data beyond the read", |cid| c2h(cid, 512, 512, false), Some(Fault::DataOutOfRange)),
        ("data at the end of the address space", |cid| c2h(cid, u32::MAX - 4, 512, false), Some(Fault::DataOutOfRange)),
        ("more data than the read", |cid| c2h(cid, 0, 516, true), Some(Fault::DataOutOfRange)),
        ("large data beyond the read", |cid| c2h(cid, 0, 1 << 20, true), Some(Fault::DataOutOfRange)),
        (
            "the same data twice",
            |cid| [c2h(cid, 0, 256, false), c2h(cid, 0, 256, false)].concat(),
            Some(Fault::Sequence),
        ),
        ("success without all data", |cid| c2h(cid, 256, 256, true), Some(Fault::Sequence)),
        ("a length that is not the PDU's", |cid| patched(c2h(cid, 0, 512, true), 17, 1), field(16)),
        ("an R2T for a read", |cid| r2t(cid, 0, 512), field(8)),
        ("an R2T of nothing", |cid| r2t(cid, 0, 0), field(16)),
        ("a host's PDU", |cid| patched(response(cid), 0, 4), field(0)),
        ("an unknown PDU", |cid| patched(response(cid), 0, 0x0a), field(0)),
        (
            "a second ICResp",
            |_| {
                nvme::tcp::IcResp { cpda: 0, header_digest: false, data_digest: false, maxh2cdata: 4096 }
                    .encode()
                    .to_vec()
            },
            Some(Fault::Sequence),
        ),
        ("a wrong header length", |cid| patched(response(cid), 2, 23), field(2)),
        ("a wrong PDU length", |cid| patched(response(cid), 4, 25), field(4)),
        ("a digest that was not agreed on", |cid| patched(response(cid), 1, 1), field(1)),
        (
            "its own termination",
            |_| {
                nvme::tcp::pdu::encode_term(nvme::tcp::Side::Target, Fault::Sequence, &[0; 72])
                    .map(|(pdu, len)| pdu[..len].to_vec())
                    .unwrap()
            },
            None,
        ),
        ("a termination that is none", |_| vec![3, 0, 24, 0, 255, 0, 0, 0], None),
    ]
}

#[test]
fn a_breach_ends_the_connection_and_nothing_else() {
    for (what, bytes, fault) in breaches() {
        let fake = Fake::start(Config::default());
        let options = options(&fake);
        let mut first = true;
        fake.set_script(move |seen| {
            if seen.is_io(NvmOpcode::Read) && seen.lba() == 7 && std::mem::take(&mut first) {
                return Action::Send(bytes(seen.sqe.cid.get()));
            }
            Action::Serve
        });
        run(move |reactor| async move {
            let host = Host::open(reactor, &options).await;
            assert_eq!(host.write(7, 1, 3).await, Status::Ok, "{what}");
            // A neighbour's read stays whole, and this one is answered over the next connection.
            let neighbour = host.start(Io::read(Lba(7), 1, host.bufs(BLOCK, |_| 0x11)));
            let (status, data) = host.read(7, 1).await;
            assert_eq!(status, Status::Ok, "{what}");
            assert!(data == pattern(1, 3), "{what}");
            host.until("the neighbour's end", || neighbour.borrow().is_some()).await;
            assert_eq!(host.device.stats().reconnects, 1, "{what}");
            if let Some(fault) = fault {
                let expected = (fault.fes().unwrap(), fault.fei());
                host.until(what, || fake.terminations() == [expected]).await;
            } else {
                assert!(fake.terminations().is_empty(), "{what}");
            }
            host.close().await;
        });
    }
}

#[test]
fn r2ts_beyond_the_write_or_the_limit_end_the_connection() {
    type Case = (&'static str, &'static [(u32, u32)], Fault);
    let cases: [Case; 3] = [
        ("beyond the data", &[(0, 16_384 + 4)], Fault::DataOutOfRange),
        ("the same bytes twice", &[(0, 8192), (4096, 8192)], Fault::Sequence),
        ("too many", &[(0, 512), (512, 512), (1024, 512)], Fault::LimitExceeded),
    ];
    for (what, r2ts, fault) in cases {
        let fake = Fake::start(Config::default());
        let options = Options { r2ts_max: 2, ..options(&fake) };
        let mut first = true;
        fake.set_script(move |seen| {
            if seen.is_io(NvmOpcode::Write) && std::mem::take(&mut first) {
                let cid = seen.sqe.cid.get();
                let pdu = |(offset, len)| {
                    raw(|encoder, out| encoder.r2t(out, &R2t { cccid: cid, ttag: 1, offset, len }), &[])
                };
                return Action::Send(r2ts.iter().copied().flat_map(pdu).collect());
            }
            Action::Serve
        });
        run(move |reactor| async move {
            let host = Host::open(reactor, &options).await;
            assert_eq!(host.write(7, 32, 3).await, Status::Ok, "{what}");
            assert!(fake.block(38) == pattern(32, 3)[31 * BLOCK..], "{what}");
            let expected = (fault.fes().unwrap(), fault.fei());
            host.until(what, || fake.terminations().contains(&expected)).await;
            host.close().await;
        });
    }
}

#[test]
fn garbage_never_does_more_than_end_the_connection() {
    for seed in 0..40 {
        let fake = Fake::start(Config::default());
        let options = options(&fake);
        let mut rng = base::Rng::new(seed);
        let mut left = 6;
        fake.set_script(move |seen| {
            if seen.queue == 0 || seen.sqe.opcode == 0x7f || left == 0 || !rng.one_in(3) {
                return Action::Serve;
            }
            left -= 1;
            let cid = seen.sqe.cid.get();
            let mut bytes = match rng.below(3) {
                0 => raw(|encoder, out| encoder.capsule_resp(out, &Cqe::success(cid, 0)), &[]),
                1 => {
                    let header = DataHeader { cccid: cid, ttag: 0, offset: 0, len: 512, last: true, success: true };
                    raw(|encoder, out| encoder.c2h_data(out, &header), &[0xcc; 512])
                }
                _ => raw(|encoder, out| encoder.r2t(out, &R2t { cccid: cid, ttag: 9, offset: 0, len: 512 }), &[]),
            };
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len().min(24) as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(1 + rng.below(bytes.len() as u64) as usize);
            // A truncated PDU followed by silence is a target that hangs; closing shows the end of the stream instead.
            bytes.extend_from_slice(&[0xff; 300]);
            Action::Send(bytes)
        });
        run(move |reactor| async move {
            let options = Options { command_timeout_ns: 300 * MS, replays_max: 50, ..options };
            let host = Host::open(reactor, &options).await;
            let ios: Vec<_> =
                (0..40).map(|index| host.start(Io::read(Lba(index), 3, host.bufs(3 * BLOCK, |_| 1)))).collect();
            host.until("the end of all reads", || ios.iter().all(|io| io.borrow().is_some())).await;
            let (status, data) = host.read(50, 9).await;
            assert_eq!((status, data), (Status::Ok, vec![0; 9 * BLOCK]), "seed {seed}");
            host.close().await;
        });
    }
}

// --- lost connections ---------------------------------------------------------------------------------------------------

#[test]
fn reads_are_sent_again_at_once() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    let mut first = true;
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Read) && std::mem::take(&mut first) {
        true => Action::CloseAll,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let began = Instant::now();
        assert_eq!(host.read(0, 8).await.0, Status::Ok);
        assert!(began.elapsed() < Duration::from_millis(400), "reads do not wait for the fence");
        host.close().await;
    });
}

#[test]
fn a_lost_queue_costs_a_controller_reset_and_no_waiting() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    let mut first = true;
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Write) && std::mem::take(&mut first) {
        true => Action::Close,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(3, 1, 3).await, Status::Ok);
        let seen = fake.seen();
        let attempts: Vec<usize> = (0..seen.len()).filter(|index| seen[*index].is_io(NvmOpcode::Write)).collect();
        let disabled = seen.iter().position(|seen| seen.property_set(property::CC).is_some_and(|cc| cc & 1 == 0));
        assert_eq!(attempts.len(), 2);
        assert!(disabled.is_some_and(|at| attempts[0] < at && at < attempts[1]), "reset between the two attempts");
        assert!(seen[attempts[1]].at - seen[attempts[0]].at < Duration::from_millis(400));
        host.close().await;
    });
}

/// The fence of the tests' options: two keep-alive times and the quiesce time.
const HOLD: Duration = Duration::from_millis(2 * 200 + 100);

#[test]
fn a_stale_write_never_lands_on_a_newer_one() {
    for replay in [Replay::AfterFence, Replay::Exclusive] {
        let fake = Fake::start(Config::default());
        let options = Options { replay, ..options(&fake) };
        let mut first = true;
        fake.set_script(move |seen| match seen.is_io(NvmOpcode::Write) && std::mem::take(&mut first) {
            true => Action::Ghost,
            false => Action::Serve,
        });
        let ghost = fake.clone();
        // The old association does the write at the last moment at which it may.
        let late = std::thread::spawn(move || {
            ghost.wait("the first write", |fake| !fake.writes_of(3).is_empty());
            let sent = ghost.writes_of(3)[0].at;
            std::thread::sleep((sent + HOLD * 9 / 10).saturating_duration_since(Instant::now()));
            assert_eq!(ghost.land_ghosts(), 1);
        });
        let target = fake.clone();
        run(move |reactor| async move {
            let host = Host::open(reactor, &options).await;
            let first = host.start(host.write_io(3, 1, 3));
            host.until("the loss", || host.device.stats().reconnects == 1).await;
            // What does not touch the blocks is not held up, nor are reads.
            let began = Instant::now();
            assert_eq!(host.write(4, 1, 5).await, Status::Ok);
            assert_eq!(host.read(3, 1).await.0, Status::Ok);
            assert!(began.elapsed() < HOLD / 2);
            if replay == Replay::Exclusive {
                host.until("the replay", || first.borrow().is_some()).await;
                assert!(began.elapsed() < HOLD / 2, "nobody else writes: the replay need not wait");
            }
            let newer = host.start(host.write_io(3, 1, 7));
            host.until("the newer write", || newer.borrow().is_some() && first.borrow().is_some()).await;
            assert_eq!(first.borrow().as_ref().unwrap().status, Status::Ok);
            assert_eq!(newer.borrow().as_ref().unwrap().status, Status::Ok);
            let writes = fake.writes_of(3);
            assert_eq!(writes.len(), 3, "once lost, once again, and the newer one");
            assert!(writes[2].at - writes[0].at >= HOLD, "{replay:?}");
            if replay == Replay::AfterFence {
                assert!(writes[1].at - writes[0].at >= HOLD);
            }
            host.close().await;
        });
        late.join().unwrap();
        if replay == Replay::Exclusive {
            assert!(target.block(3) == pattern(1, 7));
        }
        assert!(target.block(4) == pattern(1, 5));
    }
}

#[test]
fn the_controllers_own_quiesce_time_is_kept() {
    let fake = Fake::start(Config { cqt_ms: 400, ..Config::default() });
    let options = options(&fake);
    let mut first = true;
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Write) && std::mem::take(&mut first) {
        true => Action::Ghost,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(3, 1, 3).await, Status::Ok);
        let writes = fake.writes_of(3);
        assert!(writes[1].at - writes[0].at >= Duration::from_millis(800));
        host.close().await;
    });
}

#[test]
fn a_controller_that_resets_others_ends_the_wait() {
    let fake = Fake::start(Config { instance: Some((3, 0x1234_5678_9abc_def0)), ..Config::default() });
    let options = Options { keep_alive_ms: 20_000, ..options(&fake) };
    let mut first = true;
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Write) && std::mem::take(&mut first) {
        true => Action::Ghost,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(3, 1, 3).await, Status::Ok);
        let seen = fake.seen();
        let reset =
            seen.iter().find(|seen| seen.is_admin(AdminOpcode::CrossControllerReset)).expect("a reset was asked for");
        let dwords = (reset.sqe.cdw10.get(), reset.sqe.cdw12.get(), reset.sqe.cdw13.get());
        assert_eq!(dwords, (1 | 3 << 16, 0x9abc_def0, 0x1234_5678));
        let writes = fake.writes_of(3);
        assert!(writes[1].at - writes[0].at < Duration::from_secs(10));
        host.close().await;
    });
}

#[test]
fn a_lost_compare_and_write_is_not_sent_again() {
    let fake = Fake::start(Config::default());
    let options = Options { replay: Replay::Exclusive, ..options(&fake) };
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Compare) {
        true => Action::CloseAll,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let began = Instant::now();
        let mut both = host.write_io(10, 1, 0);
        both.op = Op::CompareAndWrite;
        both.bufs.extend(host.bufs(BLOCK, |_| 9));
        assert_eq!(host.channel.submit(both).await.status, Status::Aborted);
        assert!(began.elapsed() >= HOLD, "the answer is final, so it comes after the fence");
        assert_eq!(fake.seen().iter().filter(|seen| seen.is_io(NvmOpcode::Compare)).count(), 1);
        host.close().await;
    });
}

#[test]
fn a_target_that_comes_back_is_used_again() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(3, 20, 3).await, Status::Ok);
        fake.stop();
        host.until("the loss", || !host.device.is_connected()).await;
        let waiting: Vec<_> =
            (0..20).map(|index| host.start(Io::read(Lba(3 + index), 1, host.bufs(BLOCK, |_| 1)))).collect();
        host.reactor.sleep_ns(100 * MS).await;
        assert!(waiting.iter().all(|io| io.borrow().is_none()));
        fake.restart();
        host.until("the end of all reads", || waiting.iter().all(|io| io.borrow().is_some())).await;
        for (index, io) in waiting.iter().enumerate() {
            let done = io.borrow_mut().take().unwrap();
            assert_eq!(done.status, Status::Ok);
            let data: Vec<u8> = done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
            assert!(data == pattern(20, 3)[index * BLOCK..(index + 1) * BLOCK]);
        }
        host.close().await;
    });
}

#[test]
fn another_namespace_in_its_place_is_not_used() {
    let fake = Fake::start(Config::default());
    let options = Options { loss_timeout_ns: Some(300 * MS), ..options(&fake) };
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        fake.configure(|config| config.uuid = [8; 16]);
        fake.close_all();
        let before = fake.seen().len();
        assert_eq!(host.write(0, 1, 1).await, Status::Gone);
        assert!(!fake.seen()[before..].iter().any(|seen| seen.is_io(NvmOpcode::Write)));
        assert_eq!(host.read(0, 1).await.0, Status::Gone, "given up");
        host.close().await;
    });
}

#[test]
fn waiting_operations_fail_fast_and_the_device_recovers() {
    let fake = Fake::start(Config::default());
    let options = Options { fail_fast_ns: Some(50 * MS), ..options(&fake) };
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.read(0, 1).await.0, Status::Ok);
        fake.stop();
        host.until("the loss", || !host.device.is_connected()).await;
        let began = Instant::now();
        assert_eq!(host.read(0, 1).await.0, Status::Gone);
        assert!(began.elapsed() < Duration::from_secs(5));
        fake.restart();
        host.until("the return", || host.device.is_connected()).await;
        assert_eq!(host.read(0, 1).await.0, Status::Ok);
        host.close().await;
    });
}

#[test]
fn a_controller_that_does_not_answer_keep_alives_is_left() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    let mut answered = 2;
    fake.set_script(move |seen| {
        if seen.is_admin(AdminOpcode::KeepAlive) && answered > 0 {
            answered -= 1;
            return Action::Serve;
        }
        match seen.is_admin(AdminOpcode::KeepAlive) && seen.controller == 1 {
            true => Action::Ignore,
            false => Action::Serve,
        }
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        host.until("the next association", || host.device.stats().reconnects == 1).await;
        assert_eq!(host.write(0, 1, 1).await, Status::Ok);
        let keep_alives = fake.seen().iter().filter(|seen| seen.is_admin(AdminOpcode::KeepAlive)).count();
        assert!(keep_alives >= 3);
        host.close().await;
    });
}

#[test]
fn a_stuck_command_is_aborted_and_then_the_controller_reset() {
    let fake = Fake::start(Config::default());
    let options = Options { command_timeout_ns: 100 * MS, ..options(&fake) };
    let mut first = true;
    fake.set_script(move |seen| match seen.is_io(NvmOpcode::Read) && std::mem::take(&mut first) {
        true => Action::Ignore,
        false => Action::Serve,
    });
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.read(0, 1).await.0, Status::Ok);
        let seen = fake.seen();
        let position = |what: &dyn Fn(&fake::Seen) -> bool| seen.iter().position(what).expect("it was sent");
        let read = &seen[position(&|seen| seen.is_io(NvmOpcode::Read))];
        let abort = position(&|seen| seen.is_admin(AdminOpcode::Abort));
        assert_eq!(seen[abort].sqe.cdw10.get(), u32::from(read.queue) | u32::from(read.sqe.cid.get()) << 16);
        let reset = position(&|seen| seen.property_set(property::CC).is_some_and(|cc| cc & 1 == 0));
        assert!(abort < reset);
        host.close().await;
    });
}

// --- the rest of a controller's life ------------------------------------------------------------------------------------

#[test]
fn a_resized_namespace_is_noticed() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.device.info().blocks, BLOCKS as u64);
        for blocks in [100, 3000] {
            host.reactor.sleep_ns(50 * MS).await;
            fake.resize(blocks);
            host.until("the new size", || host.device.info().blocks == blocks).await;
        }
        host.close().await;
    });
}

#[test]
fn closing_shuts_the_controller_down() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    let target = fake.clone();
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        assert_eq!(host.write(0, 1, 1).await, Status::Ok);
        let channel = host.channel.clone();
        host.close().await;
        assert_eq!(channel.submit(Io::flush()).await.status, Status::Gone);
    });
    assert_eq!(target.shutdowns(), 1);
}

#[test]
fn an_abandoned_operation_still_ends_and_gives_its_buffers_back() {
    let fake = Fake::start_with(Config::default(), |seen| match seen.is_io(NvmOpcode::Read) {
        true => Action::Park,
        false => Action::Serve,
    });
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        let dropped = host.channel.submit(Io::read(Lba(0), 1, host.bufs(BLOCK, |_| 1)));
        drop(dropped);
        let write = host.channel.submit(host.write_io(5, 16, 3));
        drop(write);
        host.until("the write", || fake.block(5) == pattern(1, 3)).await;
        fake.answer_parked();
        assert_eq!(host.write(6, 1, 3).await, Status::Ok);
        host.close().await;
    });
}

#[test]
fn an_abort_ends_what_was_not_sent() {
    let fake = Fake::start(Config::default());
    let options = options(&fake);
    run(move |reactor| async move {
        let host = Host::open(reactor, &options).await;
        fake.stop();
        host.until("the loss", || !host.device.is_connected()).await;
        let io = host.start(Io { tag: 77, ..host.write_io(0, 1, 1) });
        let other = host.start(Io { tag: 78, ..host.write_io(1, 1, 1) });
        host.reactor.sleep_ns(5 * MS).await;
        host.channel.abort(77);
        host.until("the aborted write", || io.borrow().is_some()).await;
        assert_eq!(io.borrow().as_ref().unwrap().status, Status::Aborted);
        assert!(other.borrow().is_none());
        host.close().await;
    });
}

#[test]
fn failures_to_connect_say_what_and_why() {
    let fake = Fake::start_with(Config::default(), |seen| match seen.sqe.opcode {
        0x7f if seen.queue == 0 && seen.sqe.nsid.get() as u8 == 1 => Action::Fail(Nvme::CONNECT_INVALID_HOST.dnr()),
        _ => Action::Serve,
    });
    let refused = options(&fake);
    let closed = Options { address: "127.0.0.1:1".parse().unwrap(), ..refused.clone() };
    let wrong = Options { keep_alive_ms: 0, ..refused.clone() };
    let text = |options: Options| {
        run(move |reactor| async move { Controller::connect(&reactor, &options).await.err().map(|e| e.to_string()) })
            .expect("refused")
    };
    let text_of_refusal = text(refused);
    assert!(text_of_refusal.contains("host is not allowed"), "{text_of_refusal}");
    assert!(text_of_refusal.contains("nqn.2024-01.org.example:test"), "{text_of_refusal}");
    assert!(text(closed).contains("connection refused"));
    assert!(text(wrong).contains("keep_alive_ms is 0"));
    let error = run(move |reactor| async move {
        let fake = Fake::start(Config::default());
        NvmfDevice::open(&reactor, "remote", &options(&fake), Some(9)).await.map(|_| ()).err()
    });
    // The scripted target has the same answer for every namespace: only the message's shape is of interest here.
    if let Some(ConnectError::NoNamespace { available, .. }) = error {
        assert_eq!(available, [1]);
    }
}
