//! `nvmf-paths`: hosts with a path to each of two targets that export one device. Paths are cut and are slow, devices hold writes
//! up, and the targets change the access states that they report.
//!
//! Safety: a read returns what was written last, whichever path either took; a write that was lost with one path never lands
//! after a later one that took the other. Liveness: when the faults end, everything ends and every path works again. Then
//! nothing is sent any more where the access state does not allow it, or where another path is better.

use super::fabric::{Backing, Host, Media, Mounts, PORT, Server};
use super::setup::Parts;
use super::*;
use crate::Run;
use crate::blocks::is;
use bdev::{BlockDevice, MemDevice};
use nvme::initiator::{NvmfDevice, Options, PathStatus};
use nvme::spec::ana::AnaState;
use nvme::target::AnaStates;
use nvme::tcp_target::Config;
use sim::{NetFaults, ScheduleFaults};
use std::net::SocketAddr;
use std::sync::Arc;

/// How long a host may take to know of a change when nothing fails.
const NEWS_NS: u64 = 5 * SECOND_NS;
/// Longest time for which a reactor is not run.
const PAUSE_MAX_NS: u64 = 2 * SECOND_NS;
/// How often the choice of paths is looked at where connections do not last, until one look counts.
const LOOKS_MAX: u64 = 32;
/// The access states that are given at random.
const STATES: [AnaState; 4] = [AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible, AnaState::Change];

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let sim = world.handle();
    // Writes that are late by much more than a lost path is waited for, to few blocks that are soon written again.
    let is_late = rng.one_in(2);
    let mut servers = servers(world, rng, is_late)?;
    let mut hosts = setup::hosts(world, rng, &servers[0], 2);
    let host_count = hosts.len() as u64;
    // Each write that is late costs the time of a fence.
    let operations = if is_late { 30..=60 } else { 20..=80 };
    let work = setup::work(world, rng, &servers[0], host_count, Parts { chains: true, copies: !is_late }, operations);
    let is_alone = host_count == 1 || !work.judge.mix.shared && work.registers.count == 0;
    setup::choose_replay(world, rng, &mut hosts, is_alone);
    for host in &mut hosts {
        if is_late {
            host.options.keep_alive_ms = 100 * rng.between(2, 4) as u32;
        }
        host.options.ana = !is(&sim, Mutation::IgnoreAccessStates);
    }
    world.set_schedule(ScheduleFaults::swarm(rng));
    // Over the slowest networks hosts with the keep alives of late writes never get anywhere.
    let is_bad = !is_late && rng.one_in(2);
    world.set_net_faults(if is_bad { NetFaults::swarm(rng) } else { NetFaults::default() });
    for server in &mut servers {
        server.start(world)?;
    }
    let addresses = servers.iter().map(|server| World::address(server.node, PORT)).collect::<Vec<_>>();
    let crew = Crew::default();
    for (index, host) in hosts.iter().enumerate() {
        start_host(world, host, (index as u64, host_count), &addresses, &work, &crew);
    }
    if is_late {
        cut_and_go_on(world, rng, &servers, &hosts)?;
    }
    disturb(world, rng, &servers, &hosts)?;
    world.heal();
    // Changes of state that a reactor which was paused has yet to make come in any order, and before this one.
    world.run_for(PAUSE_MAX_NS)?;
    for server in &servers {
        set_state(world, server, AnaState::Optimized);
    }
    come_to_rest(world, &crew, &work.judge)?;
    prove(world, &work, &hosts)?;
    let are_back = world.run_until("every path to work again", PATIENCE_NS, |_| {
        hosts.iter().all(|host| paths(host).iter().all(|path| path.ana == Some(AnaState::Optimized)))
    });
    are_back.map_err(|failure| Failure::new(format!("{failure}: {:?}", looks(&hosts))))?;
    // A slow network puts hosts with short keep alives out for ever; what is looked at takes associations that last.
    world.set_net_faults(NetFaults::default());
    for (place, state) in [(0, AnaState::Inaccessible), (1, AnaState::Inaccessible), (0, AnaState::NonOptimized)] {
        prove_choice(world, &servers, &hosts, &work, place, state)?;
    }
    close_all(world, &mut servers, &hosts)
}

/// Two targets on machines of their own with one device, which holds the writes of each up.
fn servers(world: &mut World, rng: &mut Rng, is_late: bool) -> Result<Vec<Server>, Failure> {
    let blocks = if is_late { rng.between(5, 6) } else { rng.between(12, 48) };
    let device = MemDevice::new("shared", 512, blocks, blocks).map_err(|error| Failure::new(error.to_string()))?;
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let mut tampering = setup::tampering(world, rng, 6);
    if rng.one_in(2) {
        tampering.hold = rng.between(2, 20);
    }
    if is_late {
        // What is sent again, and what follows it, is mostly done before the one that is late.
        tampering.hold = rng.between(4, 10);
        tampering.hold_max_ns = rng.between(3, 6) * SECOND_NS;
    }
    let stall_timeout_ns = rng.between(1, 10) * SECOND_NS;
    let server = |seed| Server {
        node: world.add_node(),
        reactors: rng.between(1, 2) as usize,
        config: Config { stall_timeout_ns, ..Config::default() },
        backings: vec![Backing {
            media: Media::Memory { blocks_max: blocks },
            block_bytes: 512,
            blocks,
            tampering: super::tamper::Tampering { seed: tampering.seed ^ seed, ..tampering },
        }],
        given: Some(device.clone()),
        doom: None,
        running: None,
    };
    Ok((0..2).map(server).collect())
}

fn start_host(
    world: &mut World,
    host: &Host,
    (index, hosts): (u64, u64),
    addresses: &[SocketAddr],
    work: &Work,
    crew: &Crew,
) {
    let reactors = host.boot(world, 1);
    // Each host begins with another path.
    let mut addresses = addresses.to_vec();
    let first = index as usize % addresses.len();
    addresses.rotate_left(first);
    let options = Options { address: addresses[0], ..host.options.clone() };
    let (mounts, work, inner, node) = (host.mounts.clone(), work.clone(), crew.clone(), host.node);
    let life = async move {
        let mounted = mount(options, addresses[1..].to_vec(), reactors.clone(), mounts).await;
        work.start(&inner, (node, index, hosts), &reactors, &mounted);
    };
    world.spawn(host.node, 0, |_| crew.member(life));
}

/// Opens namespace 1 over all its paths, for as long as it takes.
async fn mount(options: Options, more: Vec<SocketAddr>, reactors: Vec<Rc<Reactor>>, mounts: Mounts) -> Rc<Mounted> {
    let device = loop {
        match NvmfDevice::open_paths(&reactors[0], "remote", &options, &more, Some(1), None).await {
            Ok(device) => break Arc::new(device),
            Err(_) => reactors[0].sleep_ns(options.reconnect_first_ns).await,
        }
    };
    let channels = reactors.iter().map(|reactor| device.open_channel(reactor).expect("channels open at any time"));
    let mounted = Rc::new(Mounted { channels: channels.collect(), device });
    mounts.borrow_mut()[0] = Some(mounted.clone());
    mounted
}

fn paths(host: &Host) -> Vec<PathStatus> {
    host.mounts.borrow()[0].as_ref().map_or(Vec::new(), |mounted| mounted.device.paths())
}

/// Cuts one path after the other, for longer than its hosts keep it: what is on its way to the device there comes late.
fn cut_and_go_on(world: &mut World, rng: &mut Rng, servers: &[Server], hosts: &[Host]) -> Result<(), Failure> {
    for round in 0..rng.between(2, 6) as usize {
        world.run_for(rng.below(SECOND_NS / 2))?;
        let server = &servers[round % 2];
        let duration_ns = rng.between(500, 3_000) * 1_000_000;
        hosts.iter().for_each(|host| world.partition(server.node, host.node, duration_ns));
        world.run_for(rng.between(1, 2) * SECOND_NS)?;
    }
    Ok(())
}

/// Faults and changes while the hosts work.
fn disturb(world: &mut World, rng: &mut Rng, servers: &[Server], hosts: &[Host]) -> Result<(), Failure> {
    for _ in 0..rng.below(8) {
        world.run_for(rng.below(SECOND_NS))?;
        let host = &hosts[rng.below(hosts.len() as u64) as usize];
        let server = &servers[rng.below(2) as usize];
        match rng.below(8) {
            0..3 => world.partition(server.node, host.node, rng.below(8 * SECOND_NS)),
            3 => world.pause(server.node, rng.below(server.reactors as u64) as usize, rng.below(PAUSE_MAX_NS)),
            4 => world.pause(host.node, rng.below(host.reactors as u64) as usize, rng.below(PAUSE_MAX_NS)),
            5 => come_and_go(world, rng, host, server),
            _ => set_state(world, server, STATES[rng.below(4) as usize]),
        }
    }
    world.run_for(rng.below(3 * SECOND_NS)).map(|_| ())
}

/// Takes a path away from a host for a while, unless it is the last one.
fn come_and_go(world: &World, rng: &mut Rng, host: &Host, server: &Server) {
    let address = World::address(server.node, PORT);
    let pause_ns = rng.below(2 * SECOND_NS);
    let mounted = host.mounts.borrow()[0].clone();
    let Some(mounted) = mounted else { return };
    world.spawn(host.node, 0, |reactor| async move {
        if mounted.device.remove_path(address) {
            reactor.sleep_ns(pause_ns).await;
            // One that cannot be reached now is added nonetheless.
            let _ = mounted.device.add_path(&reactor, address).await;
        }
    });
}

fn set_state(world: &World, server: &Server, state: AnaState) {
    let running = server.running.clone().expect("the target runs");
    let sim = world.handle();
    world.spawn(server.node, 0, |reactor| async move {
        let states = AnaStates { everywhere: state, ..AnaStates::default() };
        let set = running.home(&reactor).set_ana(fabric::NQN, 1, states);
        sim.expect(set.is_ok(), || format!("an access state is not taken: {set:?}"));
    });
}

/// One target reports a state in which nothing should be sent to it: nothing is, once that is known.
fn prove_choice(
    world: &mut World,
    servers: &[Server],
    hosts: &[Host],
    work: &Work,
    place: usize,
    state: AnaState,
) -> Result<(), Failure> {
    let states = [AnaState::Optimized, state];
    for (index, server) in servers.iter().enumerate() {
        set_state(world, server, states[usize::from(index == place)]);
    }
    world.run_for(NEWS_NS)?;
    let avoided = World::address(servers[place].node, PORT);
    for look in 1..=LOOKS_MAX {
        let before = looks(hosts);
        let crew = Crew::default();
        for host in hosts {
            let mounted = host.mounts.borrow()[0].clone().expect("mounted long ago");
            for (place, channel) in mounted.channels.iter().enumerate() {
                let (judge, channel) = (work.judge.on(host.node), channel.clone());
                world.spawn(host.node, place, |reactor| crew.member(judge.verify_all(reactor, channel)));
            }
        }
        world.run_until("reads over the better path", PATIENCE_NS, |_| crew.is_done())?;
        // Counters are half a second behind.
        world.run_for(2 * SECOND_NS)?;
        let after = looks(hosts);
        let all = || before.iter().zip(&after);
        // A host that is too slow for its target is put out: for a while there was no better path.
        let is_steady = |path: &PathStatus| path.controller.is_some() && path.trouble.is_none();
        if !all().all(|(before, after)| is_steady(before) && is_steady(after) && before.reconnects == after.reconnects)
        {
            world.run_for(NEWS_NS)?;
            continue;
        }
        let strays = |(before, after): &(&PathStatus, &PathStatus)| {
            after.address == avoided && (before.ios, before.refused) != (after.ios, after.refused)
        };
        let stray = all().find(strays);
        world.handle().expect(stray.is_none(), || {
            format!("operations are sent to a target that reports {}: {stray:?}", state.name())
        });
        world.handle().note(format!("the choice beside {} is right at look {look}", state.name()));
        return Ok(());
    }
    let looks = looks(hosts);
    Err(Failure::new(format!(
        "no path lasted for one of {LOOKS_MAX} looks, so the choice of paths was not checked: {looks:?}"
    )))
}

/// Every path of every host.
fn looks(hosts: &[Host]) -> Vec<PathStatus> {
    hosts.iter().flat_map(paths).collect()
}
