//! `nvmf-fencing`: two hosts that take a namespace from each other by reservations, while the one that has it writes as fast as
//! it can, on devices that hold writes up and over a network that fails.
//!
//! Safety: when a preemption with abort has been acknowledged, no block changes any more but by the new holder's writes,
//! wherever the old one's were: in a device, in a connection that was lost, or sent again over a new one. Liveness: when the
//! faults end, a host can take the namespace, and the other one is told of a conflict.

use super::fabric::{Backing, Host, Media, Server, host_options};
use super::*;
use crate::Run;
use bdev::{Io, Lba, Status};
use nvme::initiator::{CommandError, NvmfDevice};
use nvme::spec::Status as Nvme;
use nvme::spec::reservation::{
    AcquireAction, Keys, PersistenceChange, RegisterAction, ReservationCommand, ReservationType,
};
use nvme::tcp_target::Config;
use reactor::SgList;
use sim::{Handle, NetFaults, ScheduleFaults};
use std::cell::Cell;

/// Between two attempts at what a broken connection made fail.
const AGAIN_NS: u64 = SECOND_NS / 20;

/// What both hosts know.
#[derive(Clone)]
struct Fight {
    sim: Handle,
    kind: ReservationType,
    blocks: u64,
    block_bytes: usize,
    /// Longest time for which a device holds a write up.
    hold_max_ns: u64,
}

/// How a host came by the reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seized {
    /// It was free, or its own, or nobody knows which attempt did it.
    Somehow,
    /// By a preemption with abort that was acknowledged.
    ByForce,
}

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let mut server = server(world, rng);
    let backing = &server.backings[0];
    let fight = Fight {
        sim: world.handle(),
        kind: ReservationType::ALL[rng.below(4) as usize],
        blocks: backing.blocks,
        block_bytes: backing.block_bytes as usize,
        hold_max_ns: backing.tampering.hold_max_ns,
    };
    let hosts = [host(world, rng, &server, 0), host(world, rng, &server, 1)];
    server.start(world)?;
    mount(world, &hosts)?;
    for round in 0..rng.between(2, 4) {
        world.handle().note(format!("round {round}"));
        let (holder, challenger) = (round as usize % 2, (round as usize + 1) % 2);
        let (old, new) = ((&hosts[holder], 0xa + holder as u64), (&hosts[challenger], 0xa + challenger as u64));
        play(world, rng, &server, &fight, old, new)?;
    }
    close(world, &mut server, &hosts)
}

fn server(world: &mut World, rng: &mut Rng) -> Server {
    let node = world.add_node();
    let blocks = rng.between(8, 32);
    let mut tampering = setup::tampering(world, rng, 6);
    tampering.hold = rng.between(2, 20);
    let backings = vec![Backing { media: Media::Memory { blocks_max: blocks }, block_bytes: 512, blocks, tampering }];
    let config = Config { stall_timeout_ns: rng.between(1, 10) * SECOND_NS, ..Config::default() };
    Server { node, reactors: rng.between(1, 3) as usize, config, backings, given: None, doom: None, running: None }
}

fn host(world: &mut World, rng: &mut Rng, server: &Server, index: usize) -> Host {
    let hold_max_ns = server.backings[0].tampering.hold_max_ns;
    let mut options = host_options(rng, server.node, index, hold_max_ns + 5 * SECOND_NS);
    // A preemption takes as long as the commands that it waits for.
    options.command_timeout_ns = hold_max_ns + rng.between(1, 10) * SECOND_NS;
    Host { node: world.add_node(), reactors: rng.between(1, 2) as usize, options, mounts: Rc::default() }
}

fn mount(world: &mut World, hosts: &[Host]) -> Result<(), Failure> {
    let crew = Crew::default();
    for host in hosts {
        let reactors = host.boot(world, 1);
        let (options, mounts) = (host.options.clone(), host.mounts.clone());
        let mounting = crew.member(async move { drop(Host::mount(options, reactors, mounts, 1).await) });
        world.spawn(host.node, 0, |_| mounting);
    }
    world.run_until("both hosts to connect", PATIENCE_NS, |_| crew.is_done())
}

/// One host has the namespace and writes; the other one takes it.
fn play(
    world: &mut World,
    rng: &mut Rng,
    server: &Server,
    fight: &Fight,
    (old, old_key): (&Host, u64),
    (new, new_key): (&Host, u64),
) -> Result<(), Failure> {
    let mounted = |host: &Host| host.mounts.borrow()[0].clone().expect("mounted long ago");
    let settled = Crew::default();
    let (first, theirs) = (fight.clone(), mounted(old));
    world.spawn(old.node, 0, |reactor| {
        settled.member(async move {
            first.seize(&reactor, &theirs.device, old_key).await;
        })
    });
    world.run_until("the first host to have it", PATIENCE_NS, |_| settled.is_done())?;
    world.set_schedule(ScheduleFaults::swarm(rng));
    world.set_net_faults(if rng.one_in(2) { NetFaults::swarm(rng) } else { NetFaults::default() });
    let (writers, stop) = (Crew::default(), Rc::new(Cell::new(false)));
    for task in 0..rng.between(1, 6) as usize {
        let place = task % old.reactors;
        let (fight, channel, stop) = (fight.clone(), mounted(old).channels[place].clone(), stop.clone());
        world.spawn(old.node, place, |reactor| writers.member(fight.write(reactor, channel, stop)));
    }
    world.run_for(rng.below(2 * SECOND_NS))?;
    if rng.one_in(3) {
        // Its connections are lost with all that is under way on them.
        world.partition(server.node, old.node, rng.below(8 * SECOND_NS));
        world.run_for(rng.below(SECOND_NS))?;
    }
    let taken = Crew::default();
    let (next, ours) = (fight.clone(), mounted(new));
    let look_ns = rng.below(fight.hold_max_ns + 5 * SECOND_NS);
    world.spawn(new.node, 0, |reactor| {
        taken.member(async move {
            let seized = next.seize(&reactor, &ours.device, new_key).await;
            let before = next.read_all(&reactor, &ours.channels[0]).await;
            reactor.sleep_ns(look_ns).await;
            let after = next.read_all(&reactor, &ours.channels[0]).await;
            let changed = before.iter().zip(&after).position(|(before, after)| before != after);
            next.sim.expect(seized != Seized::ByForce || changed.is_none(), || {
                let block = changed.unwrap_or_default();
                format!("block {block} changed after the old holder's commands were said to be aborted")
            });
        })
    });
    // What is promised while the network fails is safety; that it ends is promised when it does not.
    world.run_for(rng.below(10 * SECOND_NS))?;
    world.heal();
    world.run_until("the other host to have it", PATIENCE_NS, |_| taken.is_done())?;
    stop.set(true);
    world.run_until("the writers to end", PATIENCE_NS, |_| writers.is_done())?;
    let refused = Crew::default();
    let (last, theirs) = (fight.clone(), mounted(old));
    world.spawn(old.node, 0, |reactor| {
        refused.member(async move {
            let status = last.write_once(&reactor, &theirs.channels[0], 0, 1).await;
            let text = || format!("a write of the host that lost the namespace ends as {status:?}");
            last.sim.expect(status == Status::ReservationConflict, text);
        })
    });
    world.run_until("the old holder to be told", PATIENCE_NS, |_| refused.is_done())
}

impl Fight {
    /// Takes the reservation, from the other host if need be, as often as it takes.
    async fn seize(&self, reactor: &Rc<Reactor>, device: &NvmfDevice, key: u64) -> Seized {
        let without_abort = is(&self.sim, Mutation::PreemptWithoutAbort);
        let action = if without_abort { AcquireAction::Preempt } else { AcquireAction::PreemptAndAbort };
        loop {
            match self.try_seize(reactor, device, key, action).await {
                Ok(seized) => return seized,
                Err(CommandError::Status(status)) => {
                    // Its own attempt before, whose answer was lost, may have done it.
                    let conflict = status.kind() == Nvme::RESERVATION_CONFLICT;
                    self.sim.expect(conflict, || format!("a reservation command ends with {status}"));
                }
                Err(_) => {}
            }
            reactor.sleep_ns(AGAIN_NS).await;
        }
    }

    async fn try_seize(
        &self,
        reactor: &Rc<Reactor>,
        device: &NvmfDevice,
        key: u64,
        action: AcquireAction,
    ) -> Result<Seized, CommandError> {
        let register = ReservationCommand::Register {
            action: RegisterAction::Replace,
            ignore_key: true,
            persistence: PersistenceChange::Keep,
        };
        device.reserve(reactor, register, Keys::new(0, key)).await?;
        let holder = device.reservations(reactor).await?.hosts.into_iter().find(|host| host.holder);
        match holder {
            None => device.acquire(reactor, self.kind, key).await.map(|()| Seized::Somehow),
            Some(holder) if holder.key == key => Ok(Seized::Somehow),
            Some(holder) => {
                let preempt = ReservationCommand::Acquire { action, kind: self.kind };
                device.reserve(reactor, preempt, Keys::new(key, holder.key)).await.map(|()| Seized::ByForce)
            }
        }
    }

    /// Writes until the namespace is lost, or nobody wants it any more.
    async fn write(self, reactor: Rc<Reactor>, channel: Rc<dyn Channel>, stop: Rc<Cell<bool>>) {
        let mut rng = self.sim.rng();
        while !stop.get() {
            let count = rng.between(1, 4);
            let start = rng.below(self.blocks - count + 1);
            let status = self.write_once(&reactor, &channel, start, count).await;
            if status == Status::ReservationConflict {
                return;
            }
            self.sim.expect(matches!(status, Status::Ok | Status::Aborted), || format!("a write ends as {status:?}"));
            reactor.sleep_ns(rng.below(SECOND_NS / 100)).await;
        }
    }

    async fn write_once(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, start: u64, count: u64) -> Status {
        let mut buf = reactor.pool().alloc(count as usize * self.block_bytes).await;
        let mut rng = self.sim.rng();
        buf.as_mut_slice().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
        channel.submit(Io::write(Lba(start), count as u32, SgList::from_iter([buf]))).await.status
    }

    /// Every block, as often as it takes to read it.
    async fn read_all(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>) -> Vec<Vec<u8>> {
        let mut blocks = Vec::new();
        for lba in 0..self.blocks {
            let buf = reactor.pool().alloc(self.block_bytes).await;
            let done = channel.submit(Io::read(Lba(lba), 1, SgList::from_iter([buf]))).await;
            self.sim.expect(done.status.is_ok(), || format!("a read of the holder ends as {:?}", done.status));
            blocks.push(done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect());
        }
        blocks
    }
}
