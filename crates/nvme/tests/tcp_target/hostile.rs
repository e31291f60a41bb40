//! Hosts that are slow, greedy, many or gone: they lose their connections, and no other host notices.

use crate::rig::*;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, MemDevice};
use nvme::host::command;
use nvme::spec::Status;
use nvme::spec::identify::{Cns, IdentifyController};
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::property::Configuration;
use nvme::spec::sqe::{BlockCommand, CrossControllerResetCommand, Fused};
use nvme::tcp::{Header, TransportOptions};
use nvme::tcp_target::Config;
use reactor::{IoFuture, Reactor};
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

#[test]
fn a_connection_that_does_not_become_a_queue_in_time_is_closed() {
    let rig = Rig::new(2, impatient());
    let mut host = rig.host(1);
    let start = Instant::now();
    let mut silent = Wire::socket(rig.address);
    let mut half = Wire::socket(rig.address);
    half.write_all(&[0, 0, 128, 0]).expect("sent");
    let mut negotiated = Wire::open(rig.address, TransportOptions::host());
    // One that tries Connect again and again in vain.
    let mut trying = Wire::open(rig.address, TransportOptions::host());
    trying.connect("nqn.2026-11.io.remuda:nobody", HOST, 0, None, 32, 0);
    for stream in [&mut silent, &mut half, &mut negotiated.stream, &mut trying.stream] {
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert!(start.elapsed() >= Duration::from_millis(250) && start.elapsed() < Duration::from_secs(15));
    assert_eq!(host.io[0].read(0, 1), [0; 512]);
}

#[test]
fn connections_above_the_limit_are_closed_and_the_others_go_on() {
    let rig = Rig::new(2, Config { connections_max: 8, ..Config::default() });
    let mut host = rig.host(1);
    let kept: Vec<_> = (0..6).map(|_| Wire::open(rig.address, TransportOptions::host())).collect();
    for _ in 0..200 {
        let mut stream = Wire::socket(rig.address);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "closed at once");
    }
    for round in 0..10 {
        host.io[0].write(0, &pattern(round, 4096));
        assert_eq!(host.io[0].read(0, 8), pattern(round, 4096));
    }
    drop(kept);
    rig.wait_until("places are free again", |home| home.connections() == 2);
    let mut again = rig.host(1);
    assert_eq!(again.io[0].read(0, 1), pattern(9, 4096)[..512]);
}

/// Sends commands without ever reading, until the target stops taking them or closes.
fn flood(wire: &mut Wire, capsule: &[u8], bytes_max: usize) -> usize {
    wire.stream.set_write_timeout(Some(Duration::from_millis(300))).expect("settable");
    let batch = capsule.repeat(64);
    let mut sent = 0;
    while sent < bytes_max {
        match wire.stream.write(&batch) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn a_host_that_does_not_read_is_stopped_then_cut_and_no_other_notices() {
    let rig = Rig::new(1, impatient());
    let mut good = rig.host(1);
    let read =
        command::with_transport_data(command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 2048)), 1 << 20);
    let small = command::flush(1);
    let log = command::get_log_page(LogPage::Smart, 0, 1 << 20, false);
    for (sqe, is_admin) in [(read, false), (small, false), (log, true)] {
        let mut bad = rig.host(1);
        let wire = if is_admin { &mut bad.admin } else { &mut bad.io[0] };
        let capsule = wire.capsule(&sqe, &[]);
        // Each command is answered with at least 24 bytes; the sockets take some megabytes.
        let sent = flood(wire, &capsule, 256 << 20);
        assert!(sent < 160 << 20, "the target took {sent} bytes of commands");
        let start = Instant::now();
        for round in 0..20 {
            good.io[0].write(0, &pattern(round, 4096));
            assert_eq!(good.io[0].read(0, 8), pattern(round, 4096));
        }
        assert!(start.elapsed() < Duration::from_secs(2));
        rig.wait_until("the slow reader is cut", move |home| home.connections() <= 3);
    }
    rig.wait_until("all are gone", |home| home.connections() == 2);
}

#[test]
fn hosts_that_do_not_send_what_they_were_asked_for_lose_their_connections() {
    let rig = Rig::new(1, impatient());
    let mut good = rig.host(1);
    let mut bad = rig.host(8);
    // Far more than the pool has.
    for queue in &mut bad.io {
        for cid in 0..16 {
            let sqe = block_command(NvmOpcode::Write, 0, &vec![0; 1 << 20], false);
            queue.submit(&command::with_cid(sqe, cid), &[]);
        }
        queue.r2t();
    }
    // Half of the pool is left for others, R2Ts included.
    let start = Instant::now();
    for round in 0..5 {
        let data = pattern(round, 256 << 10);
        assert_eq!(good.io[0].write(0, &data), Status::SUCCESS);
        assert_eq!(good.io[0].read(0, 512), data);
    }
    assert!(start.elapsed() < Duration::from_millis(900), "{:?}", start.elapsed());
    bad.io.iter_mut().for_each(Wire::expect_end);
    bad.admin.ok(command::get_status());
    rig.wait_until("their queues are gone", |home| home.connections() == 3);
}

#[test]
fn a_host_that_vanishes_is_forgotten_when_its_keep_alive_expires() {
    let rig = Rig::new(2, Config::default());
    let mut wire = Wire::open(rig.address, TransportOptions::host());
    let cqe = wire.connect(NQN, HOST, 0, None, 32, 600);
    wire.ok(command::set_configuration(Configuration::ENABLE));
    let mut io = Wire::open(rig.address, TransportOptions::host());
    assert!(io.connect(NQN, HOST, 1, Some(cqe.dw0() as u16), 32, 0).status().is_success());
    let mut other = rig.host(1);
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(250));
        wire.ok(command::keep_alive());
    }
    assert_eq!(io.read(0, 1), [0; 512], "kept alive for longer than its timeout");
    let start = Instant::now();
    assert!(wire.recv().is_none());
    io.expect_end();
    assert!(start.elapsed() >= Duration::from_millis(350), "{:?}", start.elapsed());
    assert_eq!(other.io[0].read(0, 1), [0; 512]);
    rig.wait_until("one controller is left", |home| home.hosts().len() == 1);
}

/// A device whose operations take a while; it counts those under way.
struct Slow(MemDevice, Arc<AtomicUsize>);

struct SlowChannel(Rc<dyn Channel>, Rc<Reactor>, Arc<AtomicUsize>);

impl Slow {
    fn new() -> (Slow, Arc<AtomicUsize>) {
        let under_way = Arc::new(AtomicUsize::new(0));
        (Slow(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"), under_way.clone()), under_way)
    }
}

impl BlockDevice for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn kind(&self) -> &'static str {
        "slow"
    }
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(SlowChannel(self.0.open_channel(reactor)?, reactor.clone(), self.1.clone())))
    }
}

impl Channel for SlowChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let (channel, reactor, under_way) = (self.0.clone(), self.1.clone(), self.2.clone());
        under_way.fetch_add(1, Ordering::SeqCst);
        IoFuture::steps(&self.1, async move {
            reactor.sleep_ns(100_000_000).await;
            let done = channel.submit(io).await;
            under_way.fetch_sub(1, Ordering::SeqCst);
            done
        })
    }
}

/// Sends writes in capsules, writes whose data never comes, halves of pairs, and reads; waits until devices have the first.
fn crowd(host: &mut Host, under_way: &AtomicUsize) {
    let data = pattern(1, 4096);
    for queue in &mut host.io {
        for cid in 0..30u16 {
            let slba = u64::from(cid) * 8;
            let mut sqe = block_command(NvmOpcode::Write, slba, &data, cid % 5 != 1);
            if cid % 5 == 3 {
                sqe = block_command(NvmOpcode::Compare, slba, &data, false);
                sqe = sqe.with_fused(Fused::First);
            }
            queue.submit(&command::with_cid(sqe, cid), if matches!(cid % 5, 1 | 3) { &[] } else { &data });
        }
    }
    while under_way.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_reset_is_complete_when_no_command_of_the_controller_is_carried_out_any_more() {
    let rig = Rig::empty(2, Config::default());
    let (device, under_way) = Slow::new();
    rig.add(NQN, Arc::new(device));
    for _ in 0..3 {
        let mut host = rig.host(2);
        crowd(&mut host, &under_way);
        host.admin.ok(command::set_configuration(Configuration(0)));
        host.wait_disabled();
        assert_eq!(under_way.load(Ordering::SeqCst), 0);
        host.io.iter_mut().for_each(Wire::expect_end);
        host.admin.ok(command::set_configuration(Configuration::ENABLE));
    }
}

#[test]
fn a_host_has_its_lost_controller_reset_by_the_next() {
    let rig = Rig::empty(2, Config::default());
    let (device, under_way) = Slow::new();
    rig.add(NQN, Arc::new(device));
    for is_noticed in [false, true] {
        let mut lost = rig.host(2);
        let page = lost.admin.ok(command::identify(Cns::Controller, 0, 0)).1;
        let (id, _) = IdentifyController::ref_from_prefix(&page).expect("a page");
        let named = CrossControllerResetCommand { cntlid: lost.cntlid, uniquifier: id.ciu, random: id.cirn.get() };
        let mut next = rig.host(1);
        crowd(&mut lost, &under_way);
        if is_noticed {
            // The target learns of the end before it is asked, but its devices are still at work.
            lost.admin.expect_end();
            let cntlid = named.cntlid;
            rig.wait_until("the controller is gone", move |home| home.hosts().iter().all(|host| host.cntlid != cntlid));
        }
        assert_eq!(next.admin.ok(command::cross_controller_reset(named)).0, CrossControllerResetCommand::DONE);
        assert_eq!(under_way.load(Ordering::SeqCst), 0, "nothing of it will be done any more");
        lost.io.iter_mut().for_each(Wire::expect_end);
        lost.admin.expect_end();
        assert_eq!(next.admin.ok(command::cross_controller_reset(named)).0, CrossControllerResetCommand::DONE);
        assert_eq!(next.io[0].read(0, 1).len(), 512);
    }
}

#[test]
fn commands_under_way_outlive_their_connection_reset_or_target() {
    let rig = Rig::empty(2, Config::default());
    rig.add(NQN, Arc::new(Slow::new().0));
    let submit_all = |host: &mut Host| {
        for queue in &mut host.io {
            for cid in 0..30u16 {
                let data = pattern(1, 4096);
                let write = block_command(NvmOpcode::Write, u64::from(cid) * 8, &data, true);
                let read = command::with_transport_data(
                    command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 2048)),
                    1 << 20,
                );
                let (sqe, data) = if cid % 2 == 0 { (write, &data[..]) } else { (read, &[][..]) };
                queue.submit(&command::with_cid(sqe, cid), data);
            }
        }
    };
    // The sockets go away.
    let mut host = rig.host(2);
    submit_all(&mut host);
    drop(host);
    // The controller is reset.
    let mut host = rig.host(2);
    submit_all(&mut host);
    host.admin.ok(command::set_configuration(Configuration(0)));
    host.io.iter_mut().for_each(Wire::expect_end);
    // A command is aborted; its own answer comes nevertheless.
    let mut host = rig.host(1);
    host.io[0].submit(&command::with_cid(block_command(NvmOpcode::Write, 0, &[7; 512], true), 3), &[7; 512]);
    host.admin.ok(command::abort(1, 3));
    assert_eq!(host.io[0].response().cid.get(), 3);
    // The target closes and listens again.
    submit_all(&mut host);
    let address = rig.with(|home| {
        home.close();
        home.listen("127.0.0.1:0".parse().expect("an address")).expect("listens")
    });
    host.io.iter_mut().for_each(Wire::expect_end);
    host.admin.expect_end();
    let mut admin = Wire::open(address, TransportOptions::host());
    assert!(admin.connect(NQN, HOST, 0, None, 32, 0).status().is_success());
    drop(admin);
    rig.wait_until("nothing is left", |home| home.connections() == 0 && home.hosts().is_empty());
}

#[test]
fn the_end_of_a_stream_is_noticed_when_it_comes_together_with_its_last_bytes() {
    let rig = Rig::new(1, Config::default());
    for _ in 0..5 {
        let mut host = rig.host(1);
        let target = rig.target.clone();
        // While the reactor is held up, both arrive and are told of at once.
        let held_up = std::thread::spawn(move || {
            target.call(|_| {
                std::thread::sleep(Duration::from_millis(60));
                Ok(())
            })
        });
        std::thread::sleep(Duration::from_millis(20));
        host.admin.submit(&command::keep_alive(), &[]);
        host.io[0].submit(&command::flush(1), &[]);
        drop(host);
        held_up.join().expect("no panic").expect("the target runs");
        rig.wait_until("the host is gone", |home| home.hosts().is_empty() && home.connections() == 0);
    }
}

#[test]
fn an_identifier_in_use_is_refused_and_the_command_that_has_it_goes_on() {
    let rig = Rig::empty(2, Config::default());
    let (device, under_way) = Slow::new();
    rig.add(NQN, Arc::new(device));
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let data = pattern(5, 4096);
    let write = command::with_cid(block_command(NvmOpcode::Write, 0, &data, true), 9);
    for _ in 0..3 {
        queue.submit(&write, &data);
        while under_way.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // In the device: written again, or anything else.
        queue.submit(&write, &pattern(6, 4096));
        queue.submit(&command::with_cid(command::flush(1), 9), &[]);
        for _ in 0..2 {
            let cqe = queue.response();
            assert_eq!((cqe.cid.get(), cqe.status()), (9, Status::COMMAND_ID_CONFLICT.dnr()));
        }
        let cqe = queue.response();
        assert_eq!((cqe.cid.get(), cqe.status()), (9, Status::SUCCESS));
    }
    assert_eq!(queue.read(0, 8), data);
    // An event request waits for long.
    for status in [None, Some(Status::COMMAND_ID_CONFLICT.dnr())] {
        host.admin.submit(&command::with_cid(command::async_event_request(), 77), &[]);
        if let Some(status) = status {
            assert_eq!(host.admin.response().status(), status);
        }
    }
    assert_eq!(host.admin.ok(command::abort(0, 77)).0, 0, "aborted");
}

#[test]
fn commands_that_wait_for_data_room_or_their_other_half_are_aborted() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let Host { admin, io, .. } = &mut host;
    let queue = &mut io[0];
    // For data: answered when it has come, and not carried out.
    let data = pattern(2, 16 << 10);
    queue.submit(&command::with_cid(block_command(NvmOpcode::Write, 0, &data, false), 1), &[]);
    let r2t = queue.r2t();
    admin.ok(command::abort(1, 1));
    let bytes = queue.h2c(&r2t, 0, &data, true);
    queue.send(&bytes);
    let cqe = queue.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (1, Status::ABORT_REQUESTED));
    assert_eq!(queue.read(0, 1), [0; 512]);
    // For the other half.
    let compare = block_command(NvmOpcode::Compare, 0, &[0; 512], true).with_fused(Fused::First);
    queue.submit(&command::with_cid(compare, 2), &[0; 512]);
    let aborted = loop {
        // The abort may overtake the command, which is on another connection.
        if admin.ok(command::abort(1, 2)).0 == 0 {
            break queue.response();
        }
    };
    assert_eq!((aborted.cid.get(), aborted.status()), (2, Status::ABORT_REQUESTED));
    let write = block_command(NvmOpcode::Write, 0, &[7; 512], true).with_fused(Fused::Second);
    queue.submit(&command::with_cid(write, 3), &[7; 512]);
    assert_eq!(queue.response().status(), Status::ABORTED_FAILED_FUSED.dnr());
    // For room: what the connection may hold is held by writes whose data does not come.
    for cid in 10..30 {
        queue.submit(&command::with_cid(block_command(NvmOpcode::Write, 0, &vec![0; 1 << 20], false), cid), &[]);
    }
    let mut asked = vec![queue.r2t()];
    while admin.ok(command::abort(1, 29)).0 != 0 {}
    let aborted = loop {
        match queue.recv().expect("alive").header {
            Header::R2t(r2t) => asked.push(r2t),
            Header::CapsuleResp(cqe) => break cqe,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((aborted.cid.get(), aborted.status()), (29, Status::ABORT_REQUESTED));
    // The others go on, in the order in which they came.
    let data = pattern(4, 1 << 20);
    let mut ended = Vec::new();
    while ended.len() < 19 {
        if let Some(r2t) = (!asked.is_empty()).then(|| asked.remove(0)) {
            let bytes = queue.h2c(&r2t, 0, &data, true);
            queue.send(&bytes);
        }
        match queue.recv().expect("alive").header {
            Header::R2t(r2t) => asked.push(r2t),
            Header::CapsuleResp(cqe) => ended.push(cqe.cid.get()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended, (10..29).collect::<Vec<_>>());
}

#[test]
fn a_host_that_was_heard_while_the_process_stood_still_is_not_taken_for_silent() {
    let rig = Rig::new(2, Config::default());
    let mut admin = Wire::open(rig.address, TransportOptions::host());
    admin.connect(NQN, HOST, 0, None, 32, 600);
    admin.ok(command::set_configuration(Configuration::ENABLE));
    for _ in 0..3 {
        let (begun, begins) = std::sync::mpsc::channel();
        let target = rig.target.clone();
        let stopped = std::thread::spawn(move || {
            target.call(move |_| {
                begun.send(()).expect("the test waits");
                std::thread::sleep(Duration::from_millis(1200));
                Ok(())
            })
        });
        begins.recv().expect("stopped");
        let cid = admin.cid();
        admin.submit(&command::with_cid(command::keep_alive(), cid), &[]);
        stopped.join().expect("no panic").expect("the target runs");
        assert!(admin.response().status().is_success());
        assert!(admin.ok(command::get_status()).0 & 1 == 1);
    }
}

#[test]
fn a_host_that_reads_a_trickle_is_cut() {
    let rig = Rig::new(1, Config { stall_bytes_min: 8 << 20, ..impatient() });
    let mut bad = rig.host(1);
    let read =
        command::with_transport_data(command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 2048)), 1 << 20);
    let queue = &mut bad.io[0];
    for cid in 0..32 {
        queue.submit(&command::with_cid(read, cid), &[]);
    }
    // About 3 MiB in a second, of more than 20 that wait: the socket takes something all the time.
    let mut taken = 0;
    while rig.with(|home| home.connections()) > 1 {
        taken += queue.stream.read(&mut [0; 64 << 10]).expect("cut only when all that was sent is read");
        std::thread::sleep(Duration::from_millis(20));
        assert!(taken < 30 << 20, "borne with until almost all was read");
    }
}
