//! `net-streams`: TCP between nodes whose network and processes fail.
//!
//! Safety: every byte received is the next byte sent on that connection; nothing is duplicated, reordered or invented.
//! Liveness: when the faults end, a new connection carries a request and its answer; all tasks end; no socket leaks.

use crate::Run;
use crate::blocks::Crew;
use crate::crashes::any_crash;
use base::Rng;
use reactor::{Errno, Reactor, TcpListener, TcpStream};
use sim::{Failure, Handle, NetFaults, NodeId, ScheduleFaults, World};
use std::cell::Cell;
use std::rc::Rc;

const PORT: u16 = 7000;
const SECOND_NS: u64 = 1_000_000_000;
/// A side that hears nothing for so long gives up, as every protocol above must.
const SILENCE_MAX_NS: u64 = 10 * SECOND_NS;

pub(crate) fn run(run: &mut Run) -> Result<(), Failure> {
    let (world, rng) = (&mut run.world, &mut run.rng);
    let (server, client) = (world.add_node(), world.add_node());
    world.set_schedule(ScheduleFaults::swarm(rng));
    world.set_net_faults(NetFaults::swarm(rng));
    let reactors = rng.between(1, 2) as usize;
    serve(world, server, reactors);
    world.boot(client, 1, World::reactor_config());
    let crew = Crew::default();
    let answered: Rc<Cell<u64>> = Rc::default();
    for _ in 0..rng.between(1, 6) {
        let (sim, answered, count) = (world.handle(), answered.clone(), rng.between(1, 6));
        let task = |reactor| async move {
            for _ in 0..count {
                let asked = ask(&reactor, &sim, server).await;
                answered.set(answered.get() + asked.is_ok() as u64);
                reactor.sleep_ns(sim.rng().below(SECOND_NS)).await;
            }
        };
        world.spawn(client, 0, |reactor| crew.member(task(reactor)));
    }
    disturb(world, rng, server, client, reactors)?;
    world.heal();
    if !world.is_running(server) {
        serve(world, server, reactors);
    }
    world.run_until("all clients to end", 4_000 * SECOND_NS, |_| crew.is_done())?;
    let sim = world.handle();
    sim.note(format!("{} requests were answered", answered.get()));
    let last = |reactor| async move {
        let asked = ask(&reactor, &sim, server).await;
        sim.expect(asked.is_ok(), || format!("a request fails with {asked:?} although all faults ended"));
    };
    world.spawn(client, 0, |reactor| crew.member(last(reactor)));
    world.run_until("the last request", 100 * SECOND_NS, |_| crew.is_done())?;
    Ok(())
}

fn disturb(world: &mut World, rng: &mut Rng, server: NodeId, client: NodeId, reactors: usize) -> Result<(), Failure> {
    for _ in 0..rng.below(5) {
        world.run_for(rng.below(SECOND_NS))?;
        match rng.below(3) {
            0 => world.partition(server, client, rng.below(20 * SECOND_NS)),
            1 => {
                world.crash(server, any_crash(rng));
                world.run_for(rng.below(5 * SECOND_NS))?;
                serve(world, server, reactors);
            }
            _ => world.pause(server, 0, rng.below(SECOND_NS)),
        }
    }
    world.run_for(rng.below(SECOND_NS)).map(|_| ())
}

/// An echo server: connections are accepted on any reactor and served on any other.
fn serve(world: &mut World, node: NodeId, reactors: usize) {
    world.boot(node, reactors, World::reactor_config());
    for index in 0..reactors {
        let sim = world.handle();
        world.spawn(node, index, |reactor| async move {
            let listener = TcpListener::bind(&reactor, World::address(node, PORT), true).expect("the port is free");
            let mut rng = sim.rng();
            while let Ok((stream, _)) = listener.accept().await {
                let to = rng.below(reactors as u64) as usize;
                match stream.export() {
                    Ok(exported) => reactor.post(to, move |there| {
                        if let Ok(stream) = TcpStream::import(there, exported) {
                            let reactor = there.clone();
                            there.spawn(async move {
                                let _ = echo(&reactor, stream).await;
                            });
                        }
                    }),
                    Err(error) => sim.violation(format!("a connection cannot be exported: {error}")),
                }
            }
        });
    }
}

async fn echo(reactor: &Rc<Reactor>, stream: TcpStream) -> Result<(), Errno> {
    let mut buffer = vec![0; 3000];
    loop {
        let received = reactor.timeout(SILENCE_MAX_NS, stream.recv(&mut buffer)).await.ok_or(Errno::ETIMEDOUT)??;
        if received == 0 {
            return Ok(());
        }
        let sent = reactor.timeout(SILENCE_MAX_NS, stream.send_all(&buffer[..received])).await;
        sent.ok_or(Errno::ETIMEDOUT)??;
    }
}

/// Sends a pattern while receiving its echo; every echoed byte must be the next one of the pattern.
async fn ask(reactor: &Rc<Reactor>, sim: &Handle, server: NodeId) -> Result<(), Errno> {
    let mut rng = sim.rng();
    let address = World::address(server, PORT);
    let connecting = TcpStream::connect(reactor, address);
    let stream = Rc::new(reactor.timeout(60 * SECOND_NS, connecting).await.ok_or(Errno::ETIMEDOUT)??);
    let mut pattern = vec![0; rng.between(1, 60_000) as usize];
    rng.fill(&mut pattern);
    let pattern = Rc::new(pattern);
    let (sender, data) = (stream.clone(), pattern.clone());
    let alarmed = reactor.clone();
    let sending = reactor.spawn_join(async move {
        let sent = alarmed.timeout(SILENCE_MAX_NS, sender.send_all(&data)).await;
        sent.unwrap_or(Err(Errno::ETIMEDOUT))
    });
    let mut got = 0;
    let mut buffer = vec![0; rng.between(1, 5_000) as usize];
    while got < pattern.len() {
        let received = reactor.timeout(SILENCE_MAX_NS, stream.recv(&mut buffer)).await.ok_or(Errno::ETIMEDOUT)??;
        if received == 0 {
            return Err(Errno::ECONNRESET);
        }
        let expected = pattern.get(got..got + received);
        if expected != Some(&buffer[..received]) {
            sim.violation(format!("{received} echoed bytes from {got} on are not those that were sent"));
            return Err(Errno::EIO);
        }
        got += received;
    }
    sending.await
}
