//! `nvmf-restart`: the target's process is killed or its machine loses power in the middle of everything, and comes back on
//! the same disk; so do hosts.
//!
//! Safety: what was acknowledged is read back until a power cut, what was flushed or forced after it too, block by block;
//! nothing of an earlier connection lands on what was acknowledged later. Liveness: when the faults end, all operations of
//! hosts that live end, and every host works.

use super::fabric::{Backing, Host, Media, Server};
use super::setup::{self, DiskOdds, Parts};
use super::*;
use crate::Run;
use nvme::tcp_target::Config;
use sim::{Crash, NetFaults, ScheduleFaults, Step};

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let mut server = server(world, rng);
    let mut hosts = setup::hosts(world, rng, &server, 2);
    let host_count = hosts.len() as u64;
    // A block that is rolled back by a power cut goes through the same values again; its chain would not hold.
    let power_cuts = rng.one_in(2);
    let parts = Parts { chains: !power_cuts, copies: false };
    let work = setup::work(world, rng, &server, host_count, parts, 20..=100);
    // A host that dies leaves writes behind that its next life knows nothing of.
    let hosts_die = rng.one_in(2);
    let is_alone = host_count == 1 && !hosts_die && work.registers.count == 0;
    setup::choose_replay(world, rng, &mut hosts, is_alone);
    world.set_schedule(ScheduleFaults::swarm(rng));
    world.set_net_faults(if rng.one_in(2) { NetFaults::swarm(rng) } else { NetFaults::default() });
    server.start(world)?;
    let mut crews = Vec::new();
    for (index, host) in hosts.iter().enumerate() {
        crews.push(start_host(world, host, (index as u64, host_count), &work));
    }
    for round in 0..rng.between(1, 5) {
        world.handle().note(format!("round {round}"));
        let crash = if power_cuts && rng.one_in(2) { Crash::PowerCut } else { Crash::Kill };
        match rng.below(8) {
            0..3 => world.partition(server.node, hosts[0].node, rng.below(5 * SECOND_NS)),
            3..5 if hosts_die => {
                let index = rng.below(host_count) as usize;
                run_for(world, rng.below(SECOND_NS), &mut server, &work)?;
                world.crash(hosts[index].node, crash);
                hosts[index].mounts.take();
                run_for(world, rng.below(2 * SECOND_NS), &mut server, &work)?;
                crews[index] = start_host(world, &hosts[index], (index as u64, host_count), &work);
            }
            _ => {
                if rng.one_in(2) && world.is_running(server.node) {
                    world.crash_after_writes(server.node, rng.between(1, 60), crash);
                    server.doom = Some(crash);
                }
                run_for(world, rng.below(SECOND_NS), &mut server, &work)?;
                crash_server(world, &mut server, &work, crash);
                run_for(world, rng.below(3 * SECOND_NS), &mut server, &work)?;
                server.start(world)?;
            }
        }
        run_for(world, rng.below(SECOND_NS), &mut server, &work)?;
        if !world.is_running(server.node) {
            server.start(world)?;
        }
    }
    world.heal();
    let all_ended = |crews: &[Crew]| crews.iter().all(Crew::is_done);
    world.run_until("all operations to end", PATIENCE_NS, |_| all_ended(&crews))?;
    come_to_rest(world, &Crew::default(), &work.judge)?;
    prove(world, &work, &hosts)?;
    if power_cuts {
        power_cut_at_rest(world, &mut server, &hosts, &work)?;
    }
    close(world, &mut server, &hosts)
}

fn server(world: &mut World, rng: &mut Rng) -> Server {
    let node = world.add_node();
    let block_bytes = if rng.one_in(3) { 4096 } else { 512 };
    let blocks = rng.between(12, 48);
    setup::add_disk(world, rng, node, (blocks, block_bytes), DiskOdds { synchronous: 6, slow: 3, short_transfer: 3 });
    let tampering = setup::tampering(world, rng, 4);
    let media = Media::Disk { direct: rng.one_in(2) };
    let backings = vec![Backing { media, block_bytes, blocks, tampering }];
    let config = Config { c2h_success: rng.one_in(2), stall_timeout_ns: 5 * SECOND_NS, ..Config::default() };
    Server { node, reactors: rng.between(1, 3) as usize, config, backings, given: None, doom: None, running: None }
}

fn start_host(world: &mut World, host: &Host, place: (u64, u64), work: &Work) -> Crew {
    let crew = Crew::default();
    setup::start_host(world, host, place, 1, work, &crew);
    crew
}

/// Lets time pass, over the death of the target at its crash point.
fn run_for(world: &mut World, duration_ns: u64, server: &mut Server, work: &Work) -> Result<(), Failure> {
    let until_ns = world.now_ns() + duration_ns;
    while world.now_ns() < until_ns {
        match world.run_for(until_ns - world.now_ns())? {
            Step::Crashed(_) => server_died(server, work),
            Step::Moved => {}
            Step::Idle => return Ok(()),
        }
    }
    Ok(())
}

fn crash_server(world: &mut World, server: &mut Server, work: &Work, crash: Crash) {
    if world.is_running(server.node) {
        server.doom = Some(crash);
        world.crash(server.node, crash);
        server_died(server, work);
    }
}

fn server_died(server: &mut Server, work: &Work) {
    server.running = None;
    if server.doom.take() == Some(Crash::PowerCut) {
        work.judge.oracle.borrow_mut().lost_below();
    }
}

/// Everything is written and flushed, then the power fails: everything is there.
fn power_cut_at_rest(world: &mut World, server: &mut Server, hosts: &[Host], work: &Work) -> Result<(), Failure> {
    let crew = Crew::default();
    let host = &hosts[0];
    let mounted = host.mounts.borrow()[0].clone().expect("mounted long ago");
    let (judge, channel) = (work.judge.on(host.node), mounted.channels[0].clone());
    world.spawn(host.node, 0, |reactor| {
        crew.member(async move {
            rewrite(&judge, &reactor, &channel).await;
            judge.flush(&channel).await;
        })
    });
    world.run_until("the last flush", PATIENCE_NS, |_| crew.is_done())?;
    crash_server(world, server, work, Crash::PowerCut);
    server.start(world)?;
    let judge = work.judge.on(host.node);
    world.spawn(host.node, 0, |reactor| crew.member(judge.verify_all(reactor, mounted.channels[0].clone())));
    world.run_until("the last look after a power cut", PATIENCE_NS, |_| crew.is_done())
}
