//! Our host on a target that others wrote, step by step: each step ends `ok`, `refused` (the target does not offer it, and says so) or
//! `FAIL`, and the process fails if any does.
//!
//! ```text
//! cargo run -p remuda-nvme --example peer_steps -- ADDRESS NQN                       what a namespace is asked to do; it is overwritten
//! cargo run -p remuda-nvme --example peer_steps -- ADDRESS NQN COMMAND [ARG ...]     writes, while COMMAND ends and starts the target
//! ```

use base::Rng;
use bdev::{BlockDevice, Channel, Io, Lba, Op, Status, conformance};
use nvme::initiator::{CommandError, Controller, HostIdentity, NvmfDevice, Options, discover};
use nvme::spec::Nqn;
use nvme::spec::log::LogPage;
use nvme::spec::reservation::{Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{Reactor, SgList};
use std::cell::{Cell, RefCell};
use std::process::{Child, Command};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Blocks that are written while the target is away, one after the other by each writer.
const KEPT_BLOCKS: u64 = 4096;
const WRITERS: u64 = 8;
/// Bytes that are on their way at once, as far as buffers go.
const DATA_BYTES_MAX: u64 = 8 << 20;
const SECOND_NS: u64 = 1_000_000_000;

/// How a step ended well.
enum End {
    Ok(String),
    Refused(String),
}

type Outcome = Result<End, Box<dyn std::error::Error>>;

fn ok(what: impl std::fmt::Display) -> Outcome {
    Ok(End::Ok(what.to_string()))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, nqn, command @ ..] = args.as_slice() else {
        eprintln!("usage: peer_steps ADDRESS NQN [COMMAND ARG ...]");
        std::process::exit(2);
    };
    let address = address.parse().expect("an address such as 127.0.0.1:4420");
    let subsystem = Nqn::new(nqn).expect("a valid NQN");
    let host = |id: u128| {
        let identity = HostIdentity::from_uuid(Uuid::from_u128(0x5265_6d75_6461_4e00_8000_0000_0000_0000 + id));
        Options::new(address, subsystem.clone(), identity)
    };
    let (one, other) = (host(1), host(2));
    let command = command.to_vec();
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).expect("a reactor");
    let failed = runtime.handles()[0].call_async(move |reactor| async move {
        let steps = Steps { reactor, one, other, failed: Cell::new(false) };
        match command.is_empty() {
            true => steps.all().await,
            false => steps.report("restart", steps.restart(&command).await),
        }
        steps.failed.get()
    });
    std::process::exit(if failed == Some(false) { 0 } else { 1 });
}

struct Steps {
    reactor: Rc<Reactor>,
    one: Options,
    other: Options,
    failed: Cell<bool>,
}

impl Steps {
    fn report(&self, name: &str, outcome: Outcome) {
        match outcome {
            Ok(End::Ok(what)) => println!("STEP {name}: ok ({what})"),
            Ok(End::Refused(what)) => println!("STEP {name}: refused ({what})"),
            Err(error) => {
                self.failed.set(true);
                println!("STEP {name}: FAIL ({error})");
            }
        }
    }

    async fn all(&self) {
        self.report("discover", self.discover().await);
        self.report("connect", self.connect().await);
        self.report("ana-log", self.ana_log().await);
        let digests = Options { header_digest: true, data_digest: true, ..self.one.clone() };
        let queues = Options { queues_per_channel: 4, queue_entries: 32, ..self.one.clone() };
        for (name, options) in [("data", &self.one), ("data-digests", &digests), ("data-queues", &queues)] {
            self.report(name, self.data(options).await);
        }
        for op in [Op::Flush, Op::WriteZeroes, Op::Unmap, Op::Compare, Op::CompareAndWrite, Op::Verify, Op::Copy] {
            self.report(op.name(), self.operation(op).await);
        }
        self.report("past-the-end", self.past_the_end().await);
        for (name, options) in [("conformance", &self.one), ("conformance-digests", &digests)] {
            self.report(name, self.conformance(options).await);
        }
        self.report("reservations", self.reservations().await);
        self.report("disconnect", self.disconnect().await);
    }

    async fn open(&self, options: &Options) -> Result<Arc<NvmfDevice>, Box<dyn std::error::Error>> {
        Ok(Arc::new(NvmfDevice::open(&self.reactor, "peer", options, None).await?))
    }

    async fn discover(&self) -> Outcome {
        let options = Options { subsystem: Nqn::discovery(), ..self.one.clone() };
        let found = discover(&self.reactor, &options).await?;
        match found.iter().any(|entry| entry.nqn == self.one.subsystem) {
            true => ok(format!("{} entries", found.len())),
            false => Err(format!("the subsystem is not among {} entries", found.len()).into()),
        }
    }

    async fn connect(&self) -> Outcome {
        let controller = Controller::connect(&self.reactor, &self.one).await?;
        let what =
            format!("{} {}", controller.info().identity.model.trim(), controller.info().identity.firmware.trim());
        for nsid in controller.active_namespaces(0).await? {
            controller.namespace(nsid).await?;
            controller.namespace_ids(nsid).await?;
        }
        controller.shutdown().await?;
        ok(what)
    }

    async fn ana_log(&self) -> Outcome {
        let controller = Controller::connect(&self.reactor, &self.one).await?;
        let page = controller.log_page(LogPage::Ana, 4096, 0).await;
        controller.shutdown().await?;
        match page {
            Ok(page) => ok(format!("{} groups", u16::from_le_bytes([page[8], page[9]]))),
            Err(CommandError::Status(status)) => Ok(End::Refused(status.to_string())),
            Err(error) => Err(error.into()),
        }
    }

    /// Random data of many sizes, written and read back, many at a time.
    async fn data(&self, options: &Options) -> Outcome {
        let device = self.open(options).await?;
        let (info, channel) = (device.info(), device.open_channel(&self.reactor)?);
        let mut bytes_in_all = 0;
        for bytes in [info.block_size as usize, 8 << 10, 36 << 10, 128 << 10, 1 << 20] {
            let blocks = bytes as u64 / info.block_size as u64;
            let places = (info.blocks / blocks).min(64).min(DATA_BYTES_MAX / bytes as u64);
            let mut running = Vec::new();
            for place in 0..places {
                let (reactor, channel) = (self.reactor.clone(), channel.clone());
                running.push(self.reactor.spawn_join(async move {
                    round_trip(&reactor, &*channel, Lba(place * blocks), blocks as u32, bytes, place).await
                }));
            }
            for one in running {
                one.await?;
            }
            bytes_in_all += bytes as u64 * places;
        }
        drop(channel);
        device.close().await;
        ok(format!("{} MiB", bytes_in_all >> 20))
    }

    async fn operation(&self, op: Op) -> Outcome {
        let device = self.open(&self.one).await?;
        let (info, channel) = (device.info(), device.open_channel(&self.reactor)?);
        if !info.ops.contains(op) {
            device.close().await;
            return Ok(End::Refused("not offered".to_string()));
        }
        let block = |seed: u64| filled(&self.reactor, info.block_size as usize, seed);
        let write = async || channel.submit(Io::write(Lba(64), 1, block(1))).await.status.check();
        let done = async |io: Io| channel.submit(io).await.status;
        let with = |op, bufs| Io { bufs, ..Io::new(op, Lba(64), 1) };
        let is_right = match op {
            Op::Flush => done(Io::flush()).await.is_ok(),
            Op::Verify => write().await.is_ok() && done(Io::new(op, Lba(64), 1)).await.is_ok(),
            Op::WriteZeroes | Op::Unmap => {
                write().await?;
                let is_done = done(Io::new(op, Lba(64), 1)).await.is_ok();
                let read = channel.submit(Io::read(Lba(64), 1, block(9))).await;
                let is_zero = read.io.bufs[0].as_slice().iter().all(|byte| *byte == 0);
                is_done && read.status.is_ok() && (is_zero || op == Op::Unmap && !info.unmap_reads_zero)
            }
            Op::Compare => {
                write().await?;
                done(with(op, block(1))).await.is_ok() && done(with(op, block(2))).await == Status::Miscompare
            }
            Op::CompareAndWrite => {
                write().await?;
                let swap = |from, to| with(op, block(from).into_iter().chain(block(to)).collect());
                done(swap(2, 3)).await == Status::Miscompare
                    && done(swap(1, 4)).await.is_ok()
                    && done(swap(4, 1)).await.is_ok()
            }
            _ => return self.copy(&device, &channel).await,
        };
        drop(channel);
        device.close().await;
        if is_right { ok("as it should be") } else { Err("another answer than the right one".into()) }
    }

    async fn copy(&self, device: &NvmfDevice, channel: &Rc<dyn Channel>) -> Outcome {
        let bytes = device.info().block_size as usize;
        let source = filled(&self.reactor, bytes, 5);
        let expected = source[0].as_slice().to_vec();
        channel.submit(Io::write(Lba(64), 1, source)).await.status.check()?;
        channel.submit(Io { arg: 64, ..Io::new(Op::Copy, Lba(80), 1) }).await.status.check()?;
        let read = channel.submit(Io::read(Lba(80), 1, filled(&self.reactor, bytes, 6))).await;
        read.status.check()?;
        device.close().await;
        if read.io.bufs[0].as_slice() == expected { ok("copied") } else { Err("the copy differs".into()) }
    }

    async fn past_the_end(&self) -> Outcome {
        let device = self.open(&self.one).await?;
        let (info, channel) = (device.info(), device.open_channel(&self.reactor)?);
        let bufs = filled(&self.reactor, info.block_size as usize, 1);
        let status = channel.submit(Io::read(Lba(info.blocks), 1, bufs)).await.status;
        drop(channel);
        device.close().await;
        if status.is_ok() { Err("it was read".into()) } else { ok(status) }
    }

    async fn conformance(&self, options: &Options) -> Outcome {
        let device = self.open(options).await?;
        let as_block_device: Arc<dyn BlockDevice> = device.clone();
        let outcome = conformance::run(&self.reactor, &as_block_device, conformance::Options::new(11)).await;
        drop(as_block_device);
        device.close().await;
        outcome?;
        ok("all checks of the suite for block devices")
    }

    async fn reservations(&self) -> Outcome {
        let (a, b) = (self.open(&self.one).await?, self.open(&self.other).await?);
        let reactor = &self.reactor;
        let write = async |device: &NvmfDevice| -> Result<Status, Box<dyn std::error::Error>> {
            let channel = device.open_channel(reactor)?;
            let bufs = filled(reactor, device.info().block_size as usize, 1);
            Ok(channel.submit(Io::write(Lba(0), 1, bufs)).await.status)
        };
        let register =
            |action| ReservationCommand::Register { action, ignore_key: false, persistence: PersistenceChange::Keep };
        let kind = ReservationType::WriteExclusive;
        match a.reserve(reactor, register(RegisterAction::Register), Keys::new(0, 0xa)).await {
            Err(CommandError::Status(status)) => return Ok(End::Refused(status.to_string())),
            other => other?,
        }
        b.reserve(reactor, register(RegisterAction::Register), Keys::new(0, 0xb)).await?;
        a.acquire(reactor, kind, 0xa).await?;
        expect(
            "while the first host holds it",
            (write(&a).await?, write(&b).await?),
            (Status::Ok, Status::ReservationConflict),
        )?;
        let report = b.reservations(reactor).await?;
        let mut hosts: Vec<_> = report.hosts.iter().map(|host| (host.key, host.holder)).collect();
        hosts.sort_unstable();
        expect("report", (report.kind, hosts), (Some(kind), vec![(0xa, true), (0xb, false)]))?;
        b.preempt(reactor, kind, 0xb, 0xa).await?;
        expect(
            "after the preemption",
            (write(&a).await?, write(&b).await?),
            (Status::ReservationConflict, Status::Ok),
        )?;
        b.release(reactor, kind, 0xb).await?;
        expect("after the release", (write(&a).await?, write(&b).await?), (Status::Ok, Status::Ok))?;
        b.reserve(reactor, register(RegisterAction::Unregister), Keys::new(0xb, 0)).await?;
        a.close().await;
        b.close().await;
        ok("register, acquire, conflict, report, preempt, release")
    }

    async fn disconnect(&self) -> Outcome {
        let device = self.open(&self.one).await?;
        device.close().await;
        if device.is_connected() { Err("it is still connected".into()) } else { ok("in order") }
    }

    /// Writers go on while the target is killed and started: each write is acknowledged in the end, and is there.
    async fn restart(&self, command: &[String]) -> Outcome {
        let device = self.open(&self.one).await?;
        let (info, channel) = (device.info(), device.open_channel(&self.reactor)?);
        let kept = Rc::new(Kept::new(&self.reactor, info.block_size as usize));
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| self.reactor.spawn_join(kept.clone().write(channel.clone(), writer))).collect();
        self.reactor.sleep_ns(SECOND_NS).await;
        let mut child = Command::new(&command[0]).args(&command[1..]).spawn()?;
        let status = self.ended(&mut child).await?;
        self.reactor.sleep_ns(2 * SECOND_NS).await;
        kept.ends.set(true);
        for writer in writers {
            writer.await?;
        }
        if !status {
            return Err("the command failed".into());
        }
        let generations = kept.generations.borrow().clone();
        for (block, generation) in generations.iter().enumerate().filter(|(_, generation)| **generation > 0) {
            let read = channel.submit(Io::read(Lba(block as u64), 1, filled(&self.reactor, kept.block, 0))).await;
            read.status.check()?;
            let expected = filled(&self.reactor, kept.block, kept.seed(block as u64, *generation));
            if read.io.bufs[0].as_slice() != expected[0].as_slice() {
                return Err(format!("block {block} is not what was acknowledged").into());
            }
        }
        let reconnects = device.stats().reconnects;
        drop(channel);
        device.close().await;
        match reconnects {
            0 => Err("the connection was never lost".into()),
            count => ok(format!("{} writes, {count} reconnects", generations.iter().sum::<u64>())),
        }
    }

    async fn ended(&self, child: &mut Child) -> Result<bool, std::io::Error> {
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status.success());
            }
            self.reactor.sleep_ns(SECOND_NS / 20).await;
        }
    }
}

/// What was acknowledged: how often each block was written.
struct Kept {
    reactor: Rc<Reactor>,
    block: usize,
    generations: RefCell<Vec<u64>>,
    ends: Cell<bool>,
}

impl Kept {
    fn new(reactor: &Rc<Reactor>, block: usize) -> Kept {
        let generations = RefCell::new(vec![0; KEPT_BLOCKS as usize]);
        Kept { reactor: reactor.clone(), block, generations, ends: Cell::new(false) }
    }

    fn seed(&self, block: u64, generation: u64) -> u64 {
        block << 32 | generation
    }

    /// Writes the blocks of one writer, one after the other, until the end.
    async fn write(self: Rc<Self>, channel: Rc<dyn Channel>, writer: u64) -> Result<(), Status> {
        for at in (writer..).step_by(WRITERS as usize) {
            if self.ends.get() {
                break;
            }
            let block = at % KEPT_BLOCKS;
            let generation = self.generations.borrow()[block as usize] + 1;
            let bufs = filled(&self.reactor, self.block, self.seed(block, generation));
            channel.submit(Io::write(Lba(block), 1, bufs)).await.status.check()?;
            self.generations.borrow_mut()[block as usize] = generation;
        }
        Ok(())
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?}, expected {expected:?}")) }
}

fn filled(reactor: &Rc<Reactor>, bytes: usize, seed: u64) -> SgList {
    let mut buf = reactor.pool().try_alloc(bytes).expect("buffers");
    Rng::new(seed).fill(buf.as_mut_slice());
    SgList::from_iter([buf])
}

async fn round_trip(
    reactor: &Rc<Reactor>,
    channel: &dyn Channel,
    lba: Lba,
    blocks: u32,
    bytes: usize,
    seed: u64,
) -> Result<(), String> {
    let failed = |what: &str, status: Status| format!("{what} of {bytes} bytes at block {}: {status}", lba.0);
    let alloc = async || SgList::from_iter([reactor.pool().alloc(bytes).await]);
    let mut bufs = alloc().await;
    Rng::new(seed + 1).fill(bufs[0].as_mut_slice());
    let written = channel.submit(Io::write(lba, blocks, bufs)).await;
    written.status.check().map_err(|status| failed("write", status))?;
    let read = channel.submit(Io::read(lba, blocks, alloc().await)).await;
    read.status.check().map_err(|status| failed("read", status))?;
    match written.io.bufs[0].as_slice() == read.io.bufs[0].as_slice() {
        true => Ok(()),
        false => Err(format!("{bytes} bytes at block {} came back different", lba.0)),
    }
}
