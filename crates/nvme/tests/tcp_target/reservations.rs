//! Reservations between two hosts of one target.

use crate::rig::*;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, MemDevice, Op};
use nvme::host::command;
use nvme::spec::event::EventResult;
use nvme::spec::feature::Feature;
use nvme::spec::identify::{Cns, IdentifyController, IdentifyNamespace, ONCS_RESERVATIONS};
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::reservation::*;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{NSID_ALL, Sqe, Status};
use nvme::target::reservation::{HostId, Table};
use nvme::tcp::{Header, TransportOptions};
use nvme::tcp_target::{Config, NewNamespace, ReservationStore, ReservedNamespace, Saved};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zerocopy::{FromBytes, IntoBytes};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();

/// Hosts A and B with keys 0xa and 0xb.
const A: [u8; 16] = [0xa; 16];
const B: [u8; 16] = [0xb; 16];

impl Rig {
    fn known_as(&self, id: [u8; 16]) -> Host {
        self.host_known_as(2, TransportOptions::host(), id)
    }
}

impl Wire {
    fn reserve(&mut self, command: ReservationCommand, current: u64, other: u64) -> Status {
        let keys = Keys::new(current, other);
        let data = &keys.as_bytes()[..command.data_len() as usize];
        self.status(command::with_capsule_data(command.to_sqe(1), data.len() as u32), data)
    }

    fn register(&mut self, key: u64) -> Status {
        self.reserve(register(PersistenceChange::Keep), 0, key)
    }

    fn acquire(&mut self, kind: ReservationType, key: u64) -> Status {
        self.reserve(ReservationCommand::Acquire { action: AcquireAction::Acquire, kind }, key, 0)
    }

    fn release(&mut self, kind: ReservationType, key: u64) -> Status {
        self.reserve(ReservationCommand::Release { action: ReleaseAction::Release, kind: Some(kind) }, key, 0)
    }

    /// The report: generation, type, persistence, and (host, key, holds it) of each registrant.
    fn report(&mut self) -> (u32, u8, u8, Vec<(u8, u64, bool)>) {
        let (_, page) = self.ok(ReportCommand { len: 1024, extended: true }.to_sqe(1));
        assert_eq!(page.len(), 1024);
        let (header, rest) = ReportHeader::read_from_prefix(&page).expect("a header");
        let count = usize::from(header.registered.get());
        let (entries, _) = <[ReportEntry]>::ref_from_prefix_with_elems(rest, count).expect("they fit");
        let entries = entries.iter().map(|one| (one.host_id[0], one.key.get(), one.rcsts == RCSTS_HOLDER));
        (header.generation.get(), header.rtype, header.ptpls, entries.collect())
    }
}

fn register(persistence: PersistenceChange) -> ReservationCommand {
    ReservationCommand::Register { action: RegisterAction::Register, ignore_key: false, persistence }
}

fn preempt(action: AcquireAction) -> ReservationCommand {
    ReservationCommand::Acquire { action, kind: ReservationType::WriteExclusive }
}

/// One command of each kind, with its data: those that only read first, and then those that write.
fn commands() -> [Vec<(Sqe, Vec<u8>)>; 2] {
    let plain = |opcode| command::blocks(opcode, 1, &BlockCommand::plain(0, 1));
    let zeroes = vec![0; 512];
    let deallocate = command::with_capsule_data(command::deallocate(1, 1), 16);
    let reads = vec![
        (command::with_transport_data(plain(NvmOpcode::Read), 512), Vec::new()),
        (block_command(NvmOpcode::Compare, 0, &zeroes, true), zeroes.clone()),
        (plain(NvmOpcode::Verify), Vec::new()),
    ];
    let writes = vec![
        (block_command(NvmOpcode::Write, 0, &zeroes, true), zeroes.clone()),
        (block_command(NvmOpcode::Write, 0, &zeroes, false), zeroes),
        (plain(NvmOpcode::WriteZeroes), Vec::new()),
        (deallocate, vec![0; 16]),
        (command::flush(1), Vec::new()),
        (command::flush(NSID_ALL), Vec::new()),
    ];
    [reads, writes]
}

/// Whether every queue of a host may do all of a group's commands, or none of them.
fn may(host: &mut Host, group: &[(Sqe, Vec<u8>)]) -> bool {
    let statuses = host.io.iter_mut().flat_map(|queue| group.iter().map(|(sqe, data)| queue.status(*sqe, data)));
    let answers: Vec<Status> = statuses.collect();
    assert!(answers.iter().all(|status| *status == answers[0]), "{answers:?}");
    assert!(answers[0] == CONFLICT || answers[0].is_success());
    answers[0].is_success()
}

#[test]
fn a_reservation_of_every_type_holds_on_all_queues_of_all_reactors_until_it_is_released() {
    let groups = commands();
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
        assert_eq!(a.io[0].register(0xa), Status::SUCCESS);
        for kind in ReservationType::ALL {
            assert_eq!(a.io[0].acquire(kind, 0xa), Status::SUCCESS);
            let reads = !kind.is_exclusive_access();
            assert_eq!((may(&mut a, &groups[0]), may(&mut a, &groups[1])), (true, true), "{kind:?}: the holder");
            assert_eq!((may(&mut b, &groups[0]), may(&mut b, &groups[1])), (reads, false), "{kind:?}: anybody");
            assert_eq!(b.io[1].register(0xb), Status::SUCCESS);
            let shared = !kind.is_of_holder_alone();
            let registrant = (may(&mut b, &groups[0]), may(&mut b, &groups[1]));
            assert_eq!(registrant, (reads || shared, shared), "{kind:?}: a registrant");
            let entries = vec![(0xa, 0xa, true), (0xb, 0xb, kind.is_all_registrants())];
            let (_, rtype, _, seen) = b.io[0].report();
            assert_eq!((rtype, seen), (kind as u8, entries));
            assert_eq!(a.io[1].release(kind, 0xa), Status::SUCCESS);
            assert_eq!((may(&mut b, &groups[0]), may(&mut b, &groups[1])), (true, true), "{kind:?}: released");
            let unregister = ReservationCommand::Register {
                action: RegisterAction::Unregister,
                ignore_key: false,
                persistence: PersistenceChange::Keep,
            };
            assert_eq!(b.io[0].reserve(unregister, 0xb, 0), Status::SUCCESS);
        }
    }
}

#[test]
fn a_conflict_breaks_both_halves_of_a_pair() {
    let rig = Rig::new(1, Config::default());
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    a.io[0].register(0xa);
    assert_eq!(a.io[0].acquire(ReservationType::WriteExclusive, 0xa), Status::SUCCESS);
    use nvme::spec::sqe::Fused;
    let (old, new) = ([0; 512], [1; 512]);
    let compare = block_command(NvmOpcode::Compare, 0, &old, true).with_fused(Fused::First);
    let write = block_command(NvmOpcode::Write, 0, &new, true).with_fused(Fused::Second);
    let queue = &mut b.io[0];
    queue.submit(&command::with_cid(compare, 1), &old);
    queue.submit(&command::with_cid(write, 2), &new);
    let mut answers = [queue.response(), queue.response()].map(|cqe| (cqe.cid.get(), cqe.status()));
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers, [(1, Status::ABORTED_FAILED_FUSED.dnr()), (2, CONFLICT)]);
    assert_eq!(a.io[0].read(0, 1), [0; 512]);
}

#[test]
fn controllers_say_what_there_is_and_refuse_what_there_is_not() {
    let rig = Rig::new(1, Config::default());
    let mut a = rig.known_as(A);
    let (_, page) = a.admin.ok(command::identify(Cns::Controller, 0, 0));
    let (id, _) = IdentifyController::ref_from_prefix(&page).expect("a page");
    assert_ne!(id.oncs.get() & ONCS_RESERVATIONS, 0);
    let (_, page) = a.admin.ok(command::identify(Cns::Namespace, 1, 0));
    let (id, _) = IdentifyNamespace::ref_from_prefix(&page).expect("a page");
    assert_eq!(id.rescap, RESCAP_TYPES | RESCAP_IGNORE_KEY, "nothing keeps them here");
    let queue = &mut a.io[0];
    let on = register(PersistenceChange::On);
    assert_eq!(queue.reserve(on, 0, 0xa), Status::INVALID_FIELD.dnr());
    let short = command::with_capsule_data(on.to_sqe(1), 8);
    assert_eq!(queue.status(short, &[0; 8]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let reserved = Sqe { cdw10: 7.into(), ..command::with_capsule_data(on.to_sqe(1), 16) };
    assert_eq!(queue.status(reserved, &[0; 16]), Status::INVALID_FIELD.dnr());
    let elsewhere = command::with_capsule_data(register(PersistenceChange::Keep).to_sqe(2), 16);
    assert_eq!(queue.status(elsewhere, &[0; 16]), Status::INVALID_NAMESPACE.dnr());
    let report = |extended| ReportCommand { len: 1024, extended }.to_sqe(1);
    assert_eq!(queue.status(report(false), &[]), Status::HOST_ID_INCONSISTENT.dnr());
    let inconsistent = command::with_transport_data(report(true), 1020);
    assert_eq!(queue.status(inconsistent, &[]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    assert_eq!(queue.report(), (0, 0, 0, Vec::new()));
    let mut nobody = rig.known_as([0; 16]);
    assert_eq!(nobody.io[0].register(5), Status::HOST_ID_MISSING.dnr());
    assert_eq!(nobody.io[0].report(), (0, 0, 0, Vec::new()));
}

#[test]
fn registrations_are_of_the_host_and_outlive_its_controllers() {
    let rig = Rig::new(2, Config::default());
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    a.io[0].register(0xa);
    a.io[0].acquire(ReservationType::ExclusiveAccess, 0xa);
    let mut again = rig.known_as(A);
    assert_eq!(again.io[0].read(0, 1).len(), 512);
    a.io.iter_mut().chain([&mut a.admin]).for_each(Wire::expect_end);
    again.io.iter_mut().chain([&mut again.admin]).for_each(Wire::expect_end);
    rig.wait_until("its controllers are gone", |home| home.hosts().len() == 1);
    let groups = commands();
    assert!(!may(&mut b, &groups[0]) && !may(&mut b, &groups[1]));
    assert_eq!(b.io[0].report(), (1, 2, 0, vec![(0xa, 0xa, true)]));
    let mut back = rig.known_as(A);
    assert!(may(&mut back, &groups[1]));
    assert_eq!(back.io[0].acquire(ReservationType::ExclusiveAccess, 0xa), Status::SUCCESS, "it holds it already");
}

fn notice(admin: &mut Wire) -> (u64, u8, u8, u32) {
    let (_, page) = admin.ok(command::get_log_page(LogPage::ReservationNotification, 0, 64, false));
    let log = NoticeLog::read_from_bytes(&page).expect("a page");
    (log.count.get(), log.kind, log.available, log.nsid.get())
}

#[test]
fn hosts_are_told_what_others_did_to_them_unless_they_mask_it() {
    let rig = Rig::new(2, Config::default());
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    let mut second = rig.known_as(B);
    let request = |host: &mut Host, cid| {
        host.admin.submit(&command::with_cid(command::async_event_request(), cid), &[]);
    };
    let expect_event = |host: &mut Host, cid| {
        let cqe = host.admin.response();
        assert_eq!(cqe.cid.get(), cid);
        assert_eq!(EventResult::from_dw0(cqe.dw0()), EventResult::RESERVATION_NOTIFICATION);
    };
    request(&mut b, 700);
    request(&mut second, 700);
    assert_eq!((a.io[0].register(0xa), b.io[0].register(0xb)), (Status::SUCCESS, Status::SUCCESS));
    let kind = ReservationType::WriteExclusiveRegistrantsOnly;
    for _ in 0..2 {
        assert_eq!(a.io[0].acquire(kind, 0xa), Status::SUCCESS);
        assert_eq!(a.io[0].release(kind, 0xa), Status::SUCCESS);
    }
    let clear = ReservationCommand::Release { action: ReleaseAction::Clear, kind: None };
    assert_eq!(a.io[1].reserve(clear, 0xa, 0), Status::SUCCESS);
    // Each controller of the host has notices of its own; two more wait behind the first.
    expect_event(&mut b, 700);
    expect_event(&mut second, 700);
    assert_eq!(notice(&mut b.admin), (1, ReservationNotice::ReservationReleased as u8, 2, 1));
    request(&mut b, 701);
    expect_event(&mut b, 701);
    assert_eq!(notice(&mut b.admin), (2, ReservationNotice::ReservationReleased as u8, 1, 1));
    assert_eq!(notice(&mut b.admin), (3, ReservationNotice::ReservationPreempted as u8, 0, 1));
    assert_eq!(notice(&mut b.admin), (0, 0, 0, 0));
    assert_eq!(notice(&mut second.admin), (1, ReservationNotice::ReservationReleased as u8, 2, 1));
    assert_eq!(notice(&mut a.admin), (0, 0, 0, 0), "who did it knows");
    // Registration Preempted is masked for one controller alone.
    let masked = ReservationNotice::RegistrationPreempted.mask();
    let set = Sqe { nsid: 1.into(), ..command::set_feature(Feature::ReservationMask, masked) };
    b.admin.ok(set);
    let get = Sqe { nsid: 1.into(), ..command::get_feature(Feature::ReservationMask, 0) };
    assert_eq!((b.admin.ok(get).0, second.admin.ok(get).0), (masked, 0));
    let odd = Sqe { nsid: 1.into(), ..command::set_feature(Feature::ReservationMask, 1) };
    assert_eq!(b.admin.status(odd, &[]), Status::INVALID_FIELD.dnr());
    let nowhere = Sqe { nsid: 9.into(), ..set };
    assert_eq!(b.admin.status(nowhere, &[]), Status::INVALID_NAMESPACE.dnr());
    assert_eq!((a.io[0].register(0xa), b.io[0].register(0xb)), (Status::SUCCESS, Status::SUCCESS));
    assert_eq!(a.io[0].reserve(preempt(AcquireAction::Preempt), 0xa, 0xb), Status::SUCCESS);
    while notice(&mut second.admin).1 != ReservationNotice::RegistrationPreempted as u8 {}
    assert_eq!(notice(&mut b.admin), (0, 0, 0, 0));
}

/// A device whose writes wait until they are let go.
struct Gated {
    memory: MemDevice,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    open: AtomicBool,
    waiting: AtomicUsize,
    aborts: AtomicUsize,
}

struct GatedChannel {
    memory: Rc<dyn Channel>,
    reactor: Rc<Reactor>,
    gate: Arc<Gate>,
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn kind(&self) -> &'static str {
        "gated"
    }
    fn info(&self) -> DeviceInfo {
        self.memory.info()
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let memory = self.memory.open_channel(reactor)?;
        Ok(Rc::new(GatedChannel { memory, reactor: reactor.clone(), gate: self.gate.clone() }))
    }
}

impl Channel for GatedChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op != Op::Write {
            return self.memory.submit(io);
        }
        let (memory, reactor, gate) = (self.memory.clone(), self.reactor.clone(), self.gate.clone());
        gate.waiting.fetch_add(1, Ordering::SeqCst);
        IoFuture::steps(&self.reactor, async move {
            while !gate.open.load(Ordering::SeqCst) {
                reactor.sleep_ns(100_000).await;
            }
            let done = memory.submit(io).await;
            gate.waiting.fetch_sub(1, Ordering::SeqCst);
            done
        })
    }

    fn abort(&self, _tag: u64) {
        self.gate.aborts.fetch_add(1, Ordering::SeqCst);
    }
}

fn wait(what: impl Fn() -> bool) {
    while !what() {
        std::thread::yield_now();
    }
}

#[test]
fn preempt_and_abort_is_acknowledged_when_nothing_of_the_preempted_host_is_carried_out() {
    for (reactors, is_gone) in [(1, false), (2, false), (2, true)] {
        let rig = Rig::empty(reactors, Config::default());
        let gate = Arc::new(Gate::default());
        let memory = MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory");
        rig.add(NQN, Arc::new(Gated { memory, gate: gate.clone() }));
        let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
        assert_eq!((a.io[0].register(0xa), b.io[0].register(0xb)), (Status::SUCCESS, Status::SUCCESS));
        assert_eq!(b.io[0].acquire(ReservationType::WriteExclusive, 0xb), Status::SUCCESS);
        let data = pattern(1, 512);
        for (index, queue) in b.io.iter_mut().enumerate() {
            // One write that a device has, and one whose data its host has not sent.
            let sqe = block_command(NvmOpcode::Write, index as u64, &data, true);
            queue.submit(&command::with_cid(sqe, 500), &data);
            let sqe = block_command(NvmOpcode::Write, 8 + index as u64, &data, false);
            queue.submit(&command::with_cid(sqe, 501), &[]);
        }
        let asked: Vec<_> = b.io.iter_mut().map(Wire::r2t).collect();
        wait(|| gate.waiting.load(Ordering::SeqCst) == 2);
        if is_gone {
            b.io.iter_mut().chain([&mut b.admin]).for_each(Wire::expect_end);
            rig.wait_until("its controller is gone", |home| home.hosts().len() == 1);
        }
        let preempt = preempt(AcquireAction::PreemptAndAbort);
        let sqe = command::with_capsule_data(preempt.to_sqe(1), 16);
        let queue = &mut a.io[0];
        queue.submit(&command::with_cid(sqe, 900), Keys::new(0xa, 0xb).as_bytes());
        // It is in force soon; an answer to it would be taken for one to the report.
        while queue.report().3 != [(0xa, 0xa, true)] {}
        for _ in 0..50 {
            queue.report();
        }
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 2);
        if !is_gone {
            wait(|| gate.aborts.load(Ordering::SeqCst) > 0);
        }
        gate.open.store(true, Ordering::SeqCst);
        let cqe = queue.response();
        assert_eq!((cqe.cid.get(), cqe.status()), (900, Status::SUCCESS));
        assert_eq!(gate.waiting.load(Ordering::SeqCst), 0, "devices had ended its writes before");
        let seen = queue.read(0, 16);
        if !is_gone {
            for (queue, r2t) in b.io.iter_mut().zip(&asked) {
                assert_eq!(queue.response().cid.get(), 500, "the device took no notice of the abort");
                let bytes = queue.h2c(r2t, 0, &data, true);
                queue.send(&bytes);
                let cqe = queue.response();
                assert_eq!((cqe.cid.get(), cqe.status()), (501, Status::ABORTED_PREEMPT));
                assert_eq!(queue.write(0, &data), CONFLICT);
            }
        }
        assert_eq!(queue.read(0, 16), seen, "nothing of it lands after the acknowledgement");
        assert_eq!(seen[8 * 512..], [0; 8 * 512]);
    }
}

#[test]
fn a_write_whose_data_comes_after_the_reservation_is_judged_by_it() {
    let rig = Rig::new(1, Config::default());
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    let data = pattern(1, 512);
    let sqe = block_command(NvmOpcode::Write, 3, &data, false);
    b.io[0].submit(&command::with_cid(sqe, 500), &[]);
    let r2t = b.io[0].r2t();
    a.io[0].register(0xa);
    assert_eq!(a.io[0].acquire(ReservationType::WriteExclusive, 0xa), Status::SUCCESS);
    let bytes = b.io[0].h2c(&r2t, 0, &data, true);
    b.io[0].send(&bytes);
    match b.io[0].recv().expect("alive").header {
        Header::CapsuleResp(cqe) => assert_eq!((cqe.cid.get(), cqe.status()), (500, CONFLICT)),
        other => panic!("{other:?}"),
    }
    assert_eq!(a.io[0].read(3, 1), [0; 512]);
}

/// Keeps tables in memory, or refuses to.
#[derive(Debug, Default)]
struct Memory {
    kept: Mutex<Option<(ReservedNamespace, Option<Table>)>>,
    refuses: AtomicBool,
    forgets: AtomicBool,
}

impl ReservationStore for Memory {
    fn save(&self, of: ReservedNamespace, table: Option<Table>, saved: Saved) {
        if self.forgets.load(Ordering::SeqCst) {
            return;
        }
        let durable = !self.refuses.load(Ordering::SeqCst);
        if durable {
            *self.kept.lock().expect("sound") = Some((of, table));
        }
        std::thread::spawn(move || saved.done(durable));
    }
}

#[test]
fn persistent_reservations_are_kept_before_they_are_acknowledged_and_come_back() {
    let store = Arc::new(Memory::default());
    let config = || Config { reservation_store: Some(store.clone()), ..Config::default() };
    let rig = Rig::new(2, config());
    let kept = || store.kept.lock().expect("sound").clone().and_then(|(_, table)| table);
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    let (_, page) = a.admin.ok(command::identify(Cns::Namespace, 1, 0));
    let (id, _) = IdentifyNamespace::ref_from_prefix(&page).expect("a page");
    assert_eq!(id.rescap, 0xff);
    assert_eq!(a.io[0].register(0xa), Status::SUCCESS);
    assert_eq!(kept(), None, "nobody asked for more");
    assert_eq!(b.io[0].reserve(register(PersistenceChange::On), 0, 0xb), Status::SUCCESS);
    assert_eq!(kept().map(|table| table.registrants().len()), Some(2));
    for stumbles in [&store.refuses, &store.forgets] {
        stumbles.store(true, Ordering::SeqCst);
        let before = a.io[0].report();
        assert_eq!(a.io[0].acquire(ReservationType::ExclusiveAccess, 0xa), Status::INTERNAL_ERROR);
        assert_eq!(a.io[0].report(), before, "what is not kept has not happened");
        assert!(may(&mut b, &commands()[1]));
        stumbles.store(false, Ordering::SeqCst);
    }
    assert_eq!(a.io[0].acquire(ReservationType::ExclusiveAccess, 0xa), Status::SUCCESS);
    let table = kept().expect("kept");
    assert!(table.is_holder(HostId(A)));
    assert_eq!(a.io[0].report().2, 1);
    drop((a, b, rig));

    let rig = Rig::empty(1, config());
    let again = table.clone();
    rig.with(move |home| {
        let device = Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"));
        let uuid = uuid::Uuid::from_u128(7);
        let new = NewNamespace { reservations: Some(again), ..NewNamespace::new(device, uuid) };
        home.show_namespace(NQN, new).expect("added");
    });
    let (mut a, mut b) = (rig.known_as(A), rig.known_as(B));
    assert!(!may(&mut b, &commands()[0]) && may(&mut a, &commands()[1]));
    assert_eq!(b.io[0].report(), (2, 2, 1, vec![(0xa, 0xa, true), (0xb, 0xb, false)]));
    assert_eq!(rig.with(|home| home.reservations(NQN).expect("there")), [(1, table)]);
    // The feature says the same, and ends it.
    for nsid in [1, NSID_ALL] {
        let get = Sqe { nsid: 1.into(), ..command::get_feature(Feature::ReservationPersistence, 0) };
        let set = |value| Sqe { nsid: nsid.into(), ..command::set_feature(Feature::ReservationPersistence, value) };
        assert_eq!(a.admin.ok(get).0, 1);
        a.admin.ok(set(0));
        assert_eq!((a.admin.ok(get).0, kept()), (0, None));
        a.admin.ok(set(1));
        assert!(kept().is_some_and(|table| table.is_holder(HostId(A))));
    }
}
