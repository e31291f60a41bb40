//! `nvmf`: several hosts, each with several queues, on one target that stays up, over a network that delays, stalls, resets,
//! partitions and flips bits. Its devices take their time, its second namespace changes its size and comes and goes.
//!
//! Safety: a read returns what was written last, whatever was sent again on which connection; a compare-and-write is one
//! operation and happens once or not at all; a copy takes what its source held, and what was made unreadable stays so until it is
//! written. Liveness: when the faults end, all operations end, every host works and knows
//! the sizes of its namespaces; everything can be closed and leaves nothing behind.

use super::fabric::{Backing, Host, Media, Running, Server};
use super::setup::{self, DiskOdds, Parts};
use super::*;
use crate::Run;
use crate::blocks::{Mix, TAG};
use bdev::BlockDevice;
use nvme::target::TargetConfig;
use nvme::tcp_target::Config;
use sim::{NetFaults, ScheduleFaults};

/// Blocks of the namespace that changes its size: those that always exist, and the most.
const ELASTIC_BLOCKS: std::ops::RangeInclusive<u64> = 16..=64;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let sim = world.handle();
    let mutated = |mutation| is(&sim, mutation);
    let mut server = server(world, rng);
    let mut hosts = setup::hosts(world, rng, &server, 3);
    let host_count = hosts.len() as u64;
    let flips = rng.one_in(3);
    for host in &mut hosts {
        if flips {
            // What crosses this network needs digests.
            let digests = !mutated(Mutation::SkipVerify);
            (host.options.header_digest, host.options.data_digest) = (digests, digests);
        }
    }
    let work = setup::work(world, rng, &server, host_count, Parts { chains: true, copies: true }, 10..=50);
    let elastic = elastic_judge(world, &server, &work);
    let is_alone = host_count == 1 || !work.judge.mix.shared;
    setup::choose_replay(world, rng, &mut hosts, is_alone && work.registers.count == 0);
    world.set_schedule(ScheduleFaults::swarm(rng));
    let bit_flip = if flips { rng.between(20, 400) } else { 0 };
    world.set_net_faults(NetFaults { bit_flip, ..NetFaults::swarm(rng) });
    server.start(world)?;
    let crew = Crew::default();
    for (index, host) in hosts.iter().enumerate() {
        start_host(world, host, (index as u64, host_count), &work, &elastic, &crew);
    }
    disturb(world, rng, &server, &hosts, &crew)?;
    world.heal();
    come_to_rest(world, &crew, &work.judge)?;
    elastic.all_ended();
    prove(world, &work, &hosts)?;
    settle_size(world, rng, &server, &hosts)?;
    close(world, &mut server, &hosts)
}

fn server(world: &mut World, rng: &mut Rng) -> Server {
    let node = world.add_node();
    let block_bytes = if rng.one_in(3) { 4096 } else { 512 };
    let blocks = rng.between(16, 64);
    let disk = rng.one_in(2);
    if disk {
        setup::add_disk(
            world,
            rng,
            node,
            (blocks, block_bytes),
            DiskOdds { synchronous: 4, slow: 2, short_transfer: 2 },
        );
    }
    let media = if disk { Media::Disk { direct: rng.one_in(2) } } else { Media::Memory { blocks_max: blocks } };
    let tampering = setup::tampering(world, rng, 6);
    let (smallest, most) = ELASTIC_BLOCKS.into_inner();
    let first = Backing { media, block_bytes, blocks, tampering };
    let elastic = Backing { media: Media::Memory { blocks_max: most }, block_bytes: 512, blocks: smallest, tampering };
    let model = TargetConfig {
        io_queues_max: if rng.one_in(3) { rng.between(1, 2) as u16 } else { 8 },
        queue_entries_max: if rng.one_in(3) { 4 } else { 64 },
        transfer_len_max: if rng.one_in(2) { 8192 } else { 1 << 20 },
        capsule_data_max: [0, 512, 4096, 8192][rng.below(4) as usize],
        ..TargetConfig::default()
    };
    let config = Config {
        model,
        c2h_success: rng.one_in(2),
        handshake_timeout_ns: rng.between(1, 5) * SECOND_NS,
        stall_timeout_ns: rng.between(1, 10) * SECOND_NS,
        ..Config::default()
    };
    let reactors = rng.between(1, 3) as usize;
    Server { node, reactors, config, backings: vec![first, elastic], given: None, doom: None, running: None }
}

/// The judge of what always exists of namespace 2.
fn elastic_judge(world: &World, server: &Server, work: &Work) -> Judge {
    let mix = Mix {
        cell_bytes: 512,
        block_bytes: 512,
        blocks_max: 4,
        errors_allowed: true,
        shared: true,
        ..work.judge.mix.clone()
    };
    let judge = Judge::new(world.handle(), server.node, mix, *ELASTIC_BLOCKS.start() * 512);
    judge.oracle.borrow_mut().allow_torn_reads();
    judge
}

fn start_host(world: &mut World, host: &Host, place: (u64, u64), work: &Work, elastic: &Judge, crew: &Crew) {
    let reactors = setup::start_host(world, host, place, 2, work, crew);
    let (options, mounts, elastic, count) =
        (host.options.clone(), host.mounts.clone(), elastic.on(host.node), work.count / 2);
    let life = async move {
        let mounted = Host::mount(options, reactors.clone(), mounts, 2).await;
        elastic.work(reactors[0].clone(), mounted.channels[0].clone(), place.0, place.1, count).await;
    };
    world.spawn(host.node, 0, |_| crew.member(life));
}

/// Faults and changes while the hosts work.
fn disturb(world: &mut World, rng: &mut Rng, server: &Server, hosts: &[Host], crew: &Crew) -> Result<(), Failure> {
    for _ in 0..rng.below(6) {
        world.run_for(rng.below(SECOND_NS))?;
        let host = &hosts[rng.below(hosts.len() as u64) as usize];
        match rng.below(8) {
            0..2 => world.partition(server.node, host.node, rng.below(8 * SECOND_NS)),
            2 => world.pause(server.node, rng.below(server.reactors as u64) as usize, rng.below(2 * SECOND_NS)),
            3 => world.pause(host.node, rng.below(host.reactors as u64) as usize, rng.below(4 * SECOND_NS)),
            4 => change(world, server, crew, Change::Resize(random_size(rng))),
            5 => change(world, server, crew, Change::Away(rng.below(3 * SECOND_NS))),
            6 => change(world, server, crew, Change::LockOut(host.options.host.nqn.to_string(), rng.below(SECOND_NS))),
            _ => abort(world, rng, host),
        }
    }
    world.run_for(rng.below(3 * SECOND_NS)).map(|_| ())
}

fn random_size(rng: &mut Rng) -> u64 {
    rng.between(*ELASTIC_BLOCKS.start(), *ELASTIC_BLOCKS.end())
}

/// Asks for the end of what a host has under way on namespace 2, where operations may fail.
fn abort(world: &World, rng: &mut Rng, host: &Host) {
    let place = rng.below(host.reactors as u64) as usize;
    let mounted = host.mounts.borrow().get(1).cloned().flatten();
    if let Some(mounted) = mounted {
        world.spawn(host.node, place, |_| async move { mounted.channels[place].abort(TAG) });
    }
}

/// What the target's administrator does.
enum Change {
    /// Namespace 2 gets another size.
    Resize(u64),
    /// Namespace 2 is taken away for so long.
    Away(u64),
    /// A host is disconnected and locked out for so long.
    LockOut(String, u64),
}

fn change(world: &World, server: &Server, crew: &Crew, change: Change) {
    let running = server.running.clone().expect("the target runs");
    let sim = world.handle();
    let stale = is(&sim, Mutation::StaleSize);
    world.spawn(server.node, 0, |reactor| {
        crew.member(async move {
            let home = running.home(&reactor);
            let device = running.devices[1].clone();
            let result = match change {
                Change::Resize(blocks) => {
                    let resized = device.resize(&reactor, blocks).await;
                    sim.expect(resized.is_ok(), || format!("namespace 2 does not take {blocks} blocks"));
                    if !stale {
                        home.refresh_sizes();
                    }
                    Ok(())
                }
                // Somebody else may be at it: then this one leaves it alone.
                Change::Away(pause_ns) => match home.remove_namespace(fabric::NQN, 2) {
                    Ok(()) => {
                        reactor.sleep_ns(pause_ns).await;
                        home.add_namespace(fabric::NQN, Some(2), device, Running::uuid(2)).map(|_| ())
                    }
                    Err(_) => Ok(()),
                },
                Change::LockOut(host, pause_ns) => {
                    let locked = home
                        .set_allow_any_host(fabric::NQN, false)
                        .and_then(|()| home.disallow_host(fabric::NQN, &host));
                    reactor.sleep_ns(pause_ns).await;
                    locked.and_then(|()| home.set_allow_any_host(fabric::NQN, true))
                }
            };
            sim.expect(result.is_ok(), || format!("a change of the target fails: {result:?}"));
        })
    });
}

/// A last change of size comes to be known by every host.
fn settle_size(world: &mut World, rng: &mut Rng, server: &Server, hosts: &[Host]) -> Result<(), Failure> {
    let crew = Crew::default();
    let blocks = random_size(rng);
    change(world, server, &crew, Change::Resize(blocks));
    world.run_until("the last change of size", SECOND_NS, |_| crew.is_done())?;
    world.run_until("every host to know the new size", 20 * SECOND_NS, |_| {
        let knows = |host: &Host| {
            let mounted = host.mounts.borrow()[1].clone();
            mounted.is_some_and(|mounted| mounted.device.info().blocks == blocks)
        };
        hosts.iter().all(knows)
    })
}
