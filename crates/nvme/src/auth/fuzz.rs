//! Fuzz entry point of authentication: a host with the wrong key, whose messages arrive damaged, twice, or out of order.

use std::sync::Arc;

use super::{
    ControllerSide, DhGroup, Hash, HostKeys, HostSide, HostStep, KeyPair, Names, Outcome, Policy, Secret, Taken,
};
use crate::fuzz::Program;
use crate::spec::Nqn;

/// What stands for the power that a group's prime would give: what it is makes no difference to the states.
const POWER: [u8; 256] = [9; 256];

/// Runs a program of messages against both sides: nothing panics, and nobody is believed who has not the key.
pub fn fuzz_authentication(input: &[u8]) {
    if let Ok(text) = core::str::from_utf8(input)
        && let Ok(secret) = Secret::parse(text)
    {
        assert_eq!(Secret::parse(&secret.to_text()), Ok(secret), "what is read can be written");
    }
    let mut program = Program(input);
    let secret = |seed: u8| Arc::new(Secret::generate(Some(Hash::Sha256), &mut |bytes| bytes.fill(seed)));
    let (host, subsystem) = (Nqn::discovery(), Nqn::discovery());
    let names = Names { host: &host, subsystem: &subsystem };
    let groups = vec![if program.u8() < 32 { DhGroup::Ffdhe2048 } else { DhGroup::Null }];
    let pair = KeyPair { host: secret(1), controller: (program.u8() < 128).then(|| secret(2)) };
    let policy = Policy { groups, ..Policy::new(pair) };
    let keys = HostKeys { controller: (program.u8() < 128).then(|| secret(3)), ..HostKeys::new(secret(4)) };
    let (mut side, mut now_ns) = (ControllerSide::default(), 1);
    let (mut peer, mut message) = HostSide::begin(keys.clone(), 7);
    let mut waits = true;
    while !program.is_empty() {
        let mut byte = program.u8();
        let mut random = |bytes: &mut [u8]| {
            bytes.iter_mut().for_each(|out| {
                byte = byte.wrapping_mul(29).wrapping_add(17);
                *out = byte;
            });
        };
        match program.u8() % 8 {
            0..4 => {
                for _ in 0..program.u8() % 3 {
                    let at = usize::from(program.u16());
                    let len = message.len().max(1);
                    if let Some(damaged) = message.get_mut(at % len) {
                        *damaged ^= program.u8();
                    }
                }
                message.truncate(usize::from(program.u16()).max(64));
                let outcome = match side.take(now_ns, &message, Some(&policy), &names, &mut random) {
                    Some(Taken::Compute(_)) => side.computed(now_ns, &POWER, Some(&policy), &names),
                    Some(Taken::Done(outcome)) => Some(outcome),
                    None => panic!("powers are there at once"),
                };
                assert_ne!(outcome, Some(Outcome::Authenticated), "it has not the key");
            }
            4..7 => {
                let Some(given) = side.give(now_ns, usize::from(program.u16())) else { continue };
                assert_ne!(given.outcome, Outcome::Authenticated, "it has not the key");
                let mut answer = given.message;
                if program.u8() < 64 {
                    let at = usize::from(program.u16()) % answer.len();
                    answer[at] ^= program.u8();
                }
                if !waits {
                    (peer, message) = HostSide::begin(keys.clone(), 7);
                    waits = true;
                    continue;
                }
                let mut step = peer.take(&answer, &names, &mut random);
                while let Ok(HostStep::Compute(_)) = step {
                    step = peer.computed(&POWER, &names, &mut random);
                }
                waits = match step {
                    Ok(HostStep::Send(next)) => {
                        message = next;
                        true
                    }
                    Ok(HostStep::Last(_)) => panic!("the controller has not the key that the host wants"),
                    Ok(HostStep::Done) => false,
                    Ok(HostStep::Compute(_)) => unreachable!("computed above"),
                    Err(refused) => {
                        message = refused.message.unwrap_or(message);
                        false
                    }
                };
            }
            _ => now_ns += u64::from(program.u16()) * 1_000_000_000,
        }
    }
}
