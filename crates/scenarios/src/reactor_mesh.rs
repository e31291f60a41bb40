//! `reactor-mesh`: reactors of one process talk to each other, wait, give up waiting, and do file I/O whose waiters go
//! away, while the schedule takes every liberty.
//!
//! Safety: calls return their own answer, posts arrive in order and once, no timer is early, no buffer is reused while an
//! operation owns it, data of completed operations is right. Liveness: everything ends, and all buffers come back.

use crate::Run;
use crate::blocks::{Crew, check_pool, is};
use base::Rng;
use reactor::sync::Notify;
use reactor::{File, FileOptions, Reactor, ReactorConfig, SgList};
use sim::oracle::{fill_cell, read_cell};
use sim::{DiskFaults, DiskOptions, Failure, Handle, Mutation, NodeId, ScheduleFaults, World};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const PATH: &str = "/scratch";
const REGION_BYTES: u64 = 64 << 10;
const POOL_BYTES: usize = 4 << 20;

/// What all tasks share. Atomics and a lock because call_on sends closures; there is one thread.
struct Shared {
    /// Next expected post for each (from, to).
    expected: Mutex<Vec<u64>>,
    sent: Mutex<Vec<u64>>,
    wrong: Mutex<Vec<String>>,
    posts_under_way: AtomicU64,
}

impl Shared {
    fn object(&self, text: String) {
        self.wrong.lock().expect("one thread").push(text);
    }
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let reactors = rng.between(2, 4) as usize;
    let node = world.add_node();
    let tasks = rng.between(1, 4) * reactors as u64;
    let faults = DiskFaults { slow: if rng.one_in(2) { 20 } else { 0 }, ..DiskFaults::default() };
    let options = DiskOptions { bytes: tasks * REGION_BYTES, synchronous: rng.one_in(4), ..DiskOptions::default() };
    world.add_disk(node, PATH, options, faults);
    world.set_schedule(ScheduleFaults::swarm(rng));
    let config = ReactorConfig {
        task_budget: rng.between(1, 64) as usize,
        message_budget: rng.between(1, 64) as usize,
        pool: reactor::PoolConfig { bytes_max: POOL_BYTES },
        ..World::reactor_config()
    };
    world.boot(node, reactors, config);
    let shared = Arc::new(Shared {
        expected: Mutex::new(vec![0; reactors * reactors]),
        sent: Mutex::new(vec![0; reactors * reactors]),
        wrong: Mutex::default(),
        posts_under_way: AtomicU64::new(0),
    });
    let crew = Crew::default();
    for task in 0..tasks {
        let worker = |reactor: Rc<Reactor>| Worker {
            sim: world.handle(),
            rng: world.handle().rng(),
            shared: shared.clone(),
            file: File::open(&reactor, PATH, &FileOptions { write: true, ..FileOptions::default() }),
            reactor,
            base: task * REGION_BYTES,
            reactors,
            version: task << 32,
            notify: Rc::default(),
        };
        let count = rng.between(5, 40);
        world.spawn(node, task as usize % reactors, |reactor| crew.member(worker(reactor).work(count)));
    }
    let no_objection = |shared: &Shared| shared.wrong.lock().expect("one thread").first().cloned();
    let calm = |world: &World| {
        let idle = |index| {
            let reactor = world.reactor(node, index);
            reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0 && !reactor.has_work()
        };
        crew.is_done() && shared.posts_under_way.load(Relaxed) == 0 && (0..reactors).all(idle)
    };
    let ended = world.run_until("all tasks and operations to end", 100_000_000_000, |world| {
        no_objection(&shared).is_some() || calm(world)
    });
    if let Some(text) = no_objection(&shared) {
        return Err(Failure::new(text));
    }
    ended?;
    (0..reactors).try_for_each(|index| check_pool(&world.reactor(node, index), POOL_BYTES))?;
    check_counts(&shared, node)
}

fn check_counts(shared: &Shared, _node: NodeId) -> Result<(), Failure> {
    let (sent, expected) = (shared.sent.lock().expect("one thread"), shared.expected.lock().expect("one thread"));
    if *sent == *expected { Ok(()) } else { Err(Failure::new(format!("posts sent {sent:?}, arrived {expected:?}"))) }
}

struct Worker {
    sim: Handle,
    rng: Rng,
    shared: Arc<Shared>,
    file: Result<File, reactor::Errno>,
    reactor: Rc<Reactor>,
    /// First byte of this worker's own part of the file.
    base: u64,
    reactors: usize,
    version: u64,
    notify: Rc<Notify>,
}

impl Worker {
    async fn work(mut self, count: u64) {
        for _ in 0..count {
            match self.rng.below(10) {
                0 => self.sleep().await,
                1 => self.call().await,
                2 => self.call_and_give_up().await,
                3 => self.post_many(),
                4 => self.reactor.yield_now().await,
                5 => self.wait_for_children().await,
                6 => self.send_a_buffer().await,
                7 => self.read_and_give_up().await,
                _ => self.write_and_read().await,
            }
        }
    }

    fn other(&mut self) -> usize {
        self.rng.below(self.reactors as u64) as usize
    }

    async fn sleep(&mut self) {
        let scale = self.rng.below(27);
        let duration = self.rng.below(1 << scale);
        let due = self.sim.now_ns() + duration;
        self.reactor.sleep_ns(duration).await;
        let now = self.sim.now_ns();
        self.sim.expect(now >= due, || format!("a timer of {duration} ns fired {} ns early", due - now));
    }

    async fn call(&mut self) {
        let (to, question) = (self.other(), self.rng.next_u64());
        let pause = if self.rng.one_in(2) { self.rng.below(100_000) } else { 0 };
        let crossed = is(&self.sim, Mutation::CrossReplies) && self.rng.one_in(8);
        let call = self.reactor.call_on(to, move |there| async move {
            if pause > 0 {
                there.sleep_ns(pause).await;
            }
            (there.index(), question ^ 0xFF ^ crossed as u64)
        });
        let (answered_by, answer) = call.await;
        self.sim.expect((answered_by, answer) == (to, question ^ 0xFF), || {
            format!("reactor {to} was asked {question:x}, reactor {answered_by} answered {answer:x}")
        });
    }

    async fn call_and_give_up(&mut self) {
        let (to, patience) = (self.other(), self.rng.below(20_000));
        let pause = self.rng.below(100_000);
        let call = self.reactor.call_on(to, move |there| async move {
            let held = there.pool().alloc(4096).await;
            there.sleep_ns(pause).await;
            held.len()
        });
        let outcome = self.reactor.timeout(patience, call).await;
        self.sim.expect(outcome.is_none_or(|len| len == 4096), || format!("a call returned {outcome:?}"));
    }

    /// A burst, sometimes more than a ring holds.
    fn post_many(&mut self) {
        let (from, to) = (self.reactor.index(), self.other());
        let count = if self.rng.one_in(8) { 700 } else { self.rng.between(1, 10) };
        for _ in 0..count {
            let lane = from * self.reactors + to;
            let number = {
                let mut sent = self.shared.sent.lock().expect("one thread");
                sent[lane] += 1;
                sent[lane] - 1
            };
            let shared = self.shared.clone();
            self.shared.posts_under_way.fetch_add(1, Relaxed);
            self.reactor.post(to, move |there| {
                shared.posts_under_way.fetch_sub(1, Relaxed);
                let mut expected = shared.expected.lock().expect("one thread");
                let next = std::mem::replace(&mut expected[lane], number + 1);
                if next != number || there.index() != to {
                    shared.object(format!(
                        "post {number} from {from} to {to} ran on {} when {next} was next",
                        there.index()
                    ));
                }
            });
        }
    }

    async fn wait_for_children(&mut self) {
        let children: Vec<_> = (0..self.rng.between(1, 5))
            .map(|number| {
                let (reactor, notify, pause) = (self.reactor.clone(), self.notify.clone(), self.rng.below(50_000));
                self.reactor.spawn_join(async move {
                    reactor.sleep_ns(pause).await;
                    notify.notify_all();
                    number
                })
            })
            .collect();
        self.notify.wait_until(|| children.iter().any(|child| child.is_finished())).await;
        for (number, child) in children.into_iter().enumerate() {
            let result = child.await;
            self.sim.expect(result == number as u64, || format!("child {number} returned {result}"));
        }
    }

    async fn send_a_buffer(&mut self) {
        let to = self.other();
        let mut buf = self.reactor.pool().alloc(4096).await;
        let stamp = self.rng.next_u64() | 1;
        fill_cell(buf.as_mut_slice(), stamp, 0);
        let back = self.reactor.call_on(to, move |there| async move {
            there.yield_now().await;
            buf
        });
        let back = back.await;
        self.sim
            .expect(read_cell(back.as_slice(), 0) == Ok(stamp), || "a buffer changed on its way round the mesh".into());
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("the scratch file exists")
    }

    async fn buffers(&mut self, bytes: usize) -> SgList {
        let first = self.rng.between(1, bytes as u64 / 512) as usize * 512;
        let mut list = SgList::new();
        list.push(self.reactor.pool().alloc(first).await);
        if first < bytes {
            list.push(self.reactor.pool().alloc(bytes - first).await);
        }
        list
    }

    /// The operation goes on when its waiter has gone; its buffers must not be used again before it ends.
    async fn read_and_give_up(&mut self) {
        let bytes = self.rng.between(1, 16) * 512;
        let bufs = self.buffers(bytes as usize).await;
        let patience = self.rng.below(60_000);
        let read = self.file().read(self.base, bufs);
        drop(self.reactor.timeout(patience, read).await);
    }

    async fn write_and_read(&mut self) {
        let bytes = self.rng.between(1, 32) * 512;
        let at = self.base + self.rng.below((REGION_BYTES - bytes) / 512 + 1) * 512;
        self.version += 1;
        let version = self.version + 1;
        let mut bufs = self.buffers(bytes as usize).await;
        let mut cell = at / 512;
        for buf in &mut bufs {
            for piece in buf.as_mut_slice().chunks_mut(512) {
                fill_cell(piece, version, cell as usize);
                cell += 1;
            }
        }
        let written = self.file().write(at, bufs, false).await;
        self.sim.expect(written.result == Ok(bytes as usize), || format!("a write ended with {:?}", written.result));
        drop(written);
        let bufs = self.buffers(bytes as usize).await;
        let read = self.file().read(at, bufs).await;
        self.sim.expect(read.result == Ok(bytes as usize), || format!("a read ended with {:?}", read.result));
        let pieces = read.bufs.iter().flat_map(|buf| buf.as_slice().chunks(512));
        for (index, piece) in pieces.enumerate() {
            let value = read_cell(piece, at as usize / 512 + index);
            self.sim.expect(value == Ok(version), || format!("wrote version {version}, read {value:?}"));
        }
    }
}
