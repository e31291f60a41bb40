//! The NVMe/TCP host against the NVMe/TCP target, each on machines of its own, over a network that fails.

mod copies;
mod fabric;
mod fencing;
mod live;
mod paths;
mod registers;
mod restart;
mod setup;
mod tamper;

pub(crate) use fencing::run as run_fencing;
pub(crate) use live::run as run_live;
pub(crate) use paths::run as run_paths;
pub(crate) use restart::run as run_restart;

use crate::blocks::{Crew, Judge, check_pool, is};
use crate::crashes::SECOND_NS;
use base::Rng;
use bdev::{BlockDevice, Channel};
use copies::Copies;
use fabric::{Host, Mounted, Server};
use reactor::Reactor;
use registers::Registers;
use sim::{Failure, Mutation, NodeId, World};
use std::rc::Rc;

/// Longest time for everything under way to end once the faults have.
const PATIENCE_NS: u64 = 300 * SECOND_NS;
/// Nothing of the past lands later than this after the faults have ended: longer than a connection is retransmitted, a lost
/// host is waited for and an operation is held up.
const AFTERMATH_NS: u64 = 60 * SECOND_NS;

/// What all hosts do to namespace 1: a random workload, chains of compare-and-writes behind it, and copies behind those.
#[derive(Clone)]
struct Work {
    judge: Judge,
    registers: Registers,
    copies: Copies,
    tasks: u64,
    /// Operations of each task.
    count: u64,
}

impl Work {
    /// Starts the tasks of host number `index` of `hosts`, on its reactors in turn.
    fn start(&self, crew: &Crew, host: (NodeId, u64, u64), reactors: &[Rc<Reactor>], mounted: &Rc<Mounted>) {
        let (node, index, hosts) = host;
        for task in 0..self.tasks {
            let place = task as usize % reactors.len();
            let (reactor, channel) = (reactors[place].clone(), mounted.channels[place].clone());
            let (number, all) = (index * self.tasks + task, hosts * self.tasks);
            let judge = self.judge.on(node);
            let member = crew.member(judge.work(reactor.clone(), channel.clone(), number, all, self.count));
            reactor.spawn(member);
            if task == 0 && self.registers.count > 0 {
                let work = self.registers.clone().work(reactor.clone(), channel, node, self.count / 2);
                reactor.spawn(crew.member(work));
            }
        }
        if self.copies.each > 0 {
            let (reactor, channel) = (&reactors[0], mounted.channels[0].clone());
            let ops = mounted.device.info().ops;
            let work = self.copies.clone().work(reactor.clone(), channel, ops, (node, index), self.count);
            reactor.spawn(crew.member(work));
        }
    }
}

/// Waits until all tasks have ended, without faults, and lets the past come to rest.
fn come_to_rest(world: &mut World, crew: &Crew, judge: &Judge) -> Result<(), Failure> {
    world.run_until("all operations to end", PATIENCE_NS, |_| crew.is_done())?;
    world.run_for(AFTERMATH_NS)?;
    judge.all_ended();
    Ok(())
}

/// Without faults every host reads and writes, and what it writes stays.
fn prove(world: &mut World, work: &Work, hosts: &[Host]) -> Result<(), Failure> {
    let crew = Crew::default();
    let errors_before = work.judge.errors.get();
    for (index, host) in hosts.iter().enumerate() {
        let mounted = host.mounts.borrow()[0].clone().expect("mounted long ago");
        let (judge, registers, node) = (work.judge.on(host.node), work.registers.clone(), host.node);
        let copies = work.copies.clone();
        let first = index == 0;
        world.spawn(host.node, 0, |reactor| {
            crew.member(async move {
                let channel = mounted.channels[0].clone();
                if first {
                    judge.clone().verify_all(reactor.clone(), channel.clone()).await;
                    rewrite(&judge, &reactor, &channel).await;
                }
                judge.prove_alive(&reactor, &channel).await;
                if registers.count > 0 {
                    registers.work(reactor.clone(), channel.clone(), node, 4).await;
                }
                if copies.each > 0 {
                    let ops = mounted.device.info().ops;
                    copies.work(reactor, channel, ops, (node, index as u64), 4).await;
                }
            })
        });
    }
    world.run_until("every host to work again", PATIENCE_NS, |_| crew.is_done())?;
    let holds = work.judge.errors.get() == errors_before;
    world.handle().expect(holds, || "operations still fail although all faults ended".into());
    // Whatever still lands now is seen.
    world.run_for(AFTERMATH_NS)?;
    let host = hosts.last().expect("at least one");
    let mounted = host.mounts.borrow()[0].clone().expect("mounted long ago");
    let judge = work.judge.on(host.node);
    world.spawn(host.node, 0, |reactor| crew.member(judge.verify_all(reactor, mounted.channels[0].clone())));
    world.run_until("the last look", PATIENCE_NS, |_| crew.is_done())
}

/// Writes every block once.
async fn rewrite(judge: &Judge, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>) {
    let mut rng = judge.sim.rng();
    for lba in 0..judge.blocks() {
        judge.write(reactor, channel, &mut rng, lba, 1).await;
    }
}

/// Closes every device, then the target: no task or operation is left of either, and no buffer of the hosts'. (A target
/// keeps the buffer that it receives into.)
fn close(world: &mut World, server: &mut Server, hosts: &[Host]) -> Result<(), Failure> {
    close_all(world, std::slice::from_mut(server), hosts)
}

/// As [`close`] with several targets.
fn close_all(world: &mut World, servers: &mut [Server], hosts: &[Host]) -> Result<(), Failure> {
    let crew = Crew::default();
    for host in hosts {
        let mounts: Vec<_> = host.mounts.take().into_iter().flatten().collect();
        world.spawn(host.node, 0, |_| {
            crew.member(async move {
                for mounted in mounts {
                    let device = mounted.device.clone();
                    drop(mounted);
                    device.close().await;
                }
            })
        });
    }
    world.run_until("the hosts to close", PATIENCE_NS, |_| crew.is_done())?;
    for server in servers.iter_mut() {
        let running = server.running.take().expect("the target runs");
        world.spawn(server.node, 0, |reactor| {
            crew.member(async move {
                let home = running.home(&reactor);
                home.close();
                reactor.sleep_ns(SECOND_NS).await;
                if home.connections() > 0 {
                    home.close();
                }
            })
        });
    }
    let targets = servers.iter().map(|server| (server.node, server.reactors));
    let nodes = hosts.iter().map(|host| (host.node, host.reactors)).chain(targets);
    let all: Vec<(NodeId, usize)> = nodes.collect();
    let places: Vec<(NodeId, usize)> =
        all.iter().flat_map(|(node, reactors)| (0..*reactors).map(|index| (*node, index))).collect();
    world.run_until("everything to come to rest", PATIENCE_NS, |world| {
        let at_rest = |(node, index): &(NodeId, usize)| {
            let reactor = world.reactor(*node, *index);
            reactor.live_tasks() == 0 && reactor.driver().in_flight() == 0
        };
        crew.is_done() && places.iter().all(at_rest)
    })?;
    for host in hosts {
        for index in 0..host.reactors {
            check_pool(&world.reactor(host.node, index), World::reactor_config().pool.bytes_max)?;
        }
    }
    Ok(())
}
