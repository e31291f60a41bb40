//! Every command of every host in every state that three hosts with two keys can get into, against the oracle; and what
//! single rules promise.

use std::collections::BTreeSet;

use zerocopy::FromBytes;

use super::oracle::{Ask, Told, Verdict, World};
use super::*;
use crate::spec::Status;
use crate::spec::reservation::*;

const HOSTS: [u8; 3] = [1, 2, 3];
const KEYS: [u64; 2] = [10, 20];

fn id(host: u8) -> HostId {
    HostId([host; 16])
}

/// Every command worth asking, well-formed ones with wrong keys included.
fn all_asks() -> Vec<Ask> {
    let mut asks = Vec::new();
    let keys = [0, KEYS[0], KEYS[1]];
    for current in keys {
        for other in keys {
            for action in 0..3 {
                for ignore in [false, true] {
                    asks.push(Ask::Register { action, ignore, current, new: other });
                }
                for kind in 1..=6 {
                    asks.push(Ask::Acquire { action, kind, current, named: other });
                }
            }
        }
        for action in 0..2 {
            asks.extend((1..=6).map(|kind| Ask::Release { action, kind, current }));
        }
    }
    asks
}

fn request(ask: Ask) -> Request {
    let kind_of = |kind| ReservationType::from_u8(kind).expect("a type");
    match ask {
        Ask::Register { action, ignore, current, new } => {
            let action = RegisterAction::ALL[usize::from(action)];
            let persistence = PersistenceChange::Keep;
            let command = ReservationCommand::Register { action, ignore_key: ignore, persistence };
            Request::Command(command, Keys::new(current, new))
        }
        Ask::Acquire { action, kind, current, named } => {
            let action = AcquireAction::ALL[usize::from(action)];
            let command = ReservationCommand::Acquire { action, kind: kind_of(kind) };
            Request::Command(command, Keys::new(current, named))
        }
        Ask::Release { action, kind, current } => {
            let action = ReleaseAction::ALL[usize::from(action)];
            let command = ReservationCommand::Release { action, kind: Some(kind_of(kind)) };
            Request::Command(command, Keys::new(current, 0))
        }
    }
}

/// The table as the oracle would write it down.
fn world_of(table: &Table) -> World {
    World {
        keys: table.registrants().iter().map(|one| (one.host.0[0], one.key)).collect(),
        kind: table.reservation().map_or(0, |held| held.kind as u8),
        owner: table.reservation().and_then(|held| held.holder).map(|holder| holder.0[0]),
    }
}

fn check_access(table: &Table, world: &World) {
    let access = Access::of(table);
    for host in HOSTS {
        for (kind, is_write) in [(AccessKind::Read, false), (AccessKind::Write, true)] {
            let allowed = access.as_ref().is_none_or(|access| access.allows(id(host), kind));
            assert_eq!(allowed, world.may(host, is_write), "host {host} {kind:?} in {world:?}");
        }
        assert_eq!(table.is_holder(id(host)), world.holders().contains(&host));
    }
}

#[test]
fn every_command_in_every_state_does_what_the_rules_say() {
    let asks = all_asks();
    let mut seen = BTreeSet::from([World::default()]);
    let mut open = vec![Table::default()];
    let mut steps = 0u64;
    while let Some(table) = open.pop() {
        let world = world_of(&table);
        check_access(&table, &world);
        for host in HOSTS {
            for ask in &asks {
                steps += 1;
                let (verdict, next, told, counts) = world.after(host, *ask);
                let mut changed = table.clone();
                let outcome = changed.apply(id(host), &request(*ask), false);
                let context = format!("host {host}: {ask:?} in {world:?}");
                assert_eq!(world_of(&changed), next, "{context}");
                let generation = table.generation().wrapping_add(u32::from(counts));
                assert_eq!(changed.generation(), generation, "{context}");
                match outcome {
                    Ok(change) => {
                        assert_eq!(verdict, Verdict::Done, "{context}");
                        let notices: Told = change.notices.iter().map(|one| (one.0.0[0], one.1 as u8)).collect();
                        assert_eq!((notices.len(), &notices), (change.notices.len(), &told), "{context}");
                        let aborts = matches!(ask, Ask::Acquire { action: 2, .. });
                        let lost = told.iter().filter(|one| one.1 == 1 && aborts).map(|one| one.0);
                        let aborted: BTreeSet<u8> = change.aborted.iter().map(|one| one.0[0]).collect();
                        assert_eq!(aborted, lost.collect(), "{context}");
                    }
                    Err(status) if verdict == Verdict::Conflict => {
                        assert_eq!(status, Status::RESERVATION_CONFLICT.dnr())
                    }
                    Err(status) => assert_eq!((verdict, status), (Verdict::Invalid, Status::INVALID_FIELD.dnr())),
                }
                if seen.insert(next) {
                    open.push(changed);
                }
            }
        }
    }
    // 27 registrations of three hosts; each with every reservation that its registrants can hold: 4 types of each
    // registrant, 2 of all.
    let expected = 1 + 3 * 2 * (1 + 4 + 2) + 3 * 4 * (1 + 2 * 4 + 2) + 8 * (1 + 3 * 4 + 2);
    assert_eq!(seen.len(), expected, "every state that there is was reached, in {steps} steps");
}

#[test]
fn a_host_without_identifier_does_not_register() {
    let mut table = Table::default();
    let ask = Ask::Register { action: 0, ignore: true, current: 0, new: 5 };
    assert_eq!(table.apply(HostId::NONE, &request(ask), true), Err(Status::HOST_ID_MISSING.dnr()));
    assert_eq!(table, Table::default());
}

#[test]
fn registrations_are_bounded() {
    let mut table = Table::default();
    let register = request(Ask::Register { action: 0, ignore: false, current: 0, new: 5 });
    for number in 1..=REGISTRANTS_MAX as u128 {
        table.apply(HostId(number.to_le_bytes()), &register, false).expect("room");
    }
    assert_eq!(table.apply(HostId([0xff; 16]), &register, false), Err(Status::INTERNAL_ERROR.dnr()));
    assert!(table.apply(HostId(1u128.to_le_bytes()), &register, false).is_ok(), "it is registered already");
}

#[test]
fn persistence_changes_with_a_registration_and_only_where_it_can_be_kept() {
    let register = |persistence, current, new| {
        let command = ReservationCommand::Register { action: RegisterAction::Register, ignore_key: false, persistence };
        Request::Command(command, Keys::new(current, new))
    };
    let mut table = Table::default();
    let on = register(PersistenceChange::On, 0, 5);
    assert_eq!(table.apply(id(1), &on, false), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(table, Table::default());
    table.apply(id(1), &on, true).expect("kept");
    assert!(table.is_persistent());
    assert!(table.apply(id(2), &register(PersistenceChange::Off, 0, 0), true).is_err());
    assert!(table.is_persistent(), "a refused command changes nothing");
    table.apply(id(2), &register(PersistenceChange::Keep, 0, 6), true).expect("registered");
    assert!(table.is_persistent());
    table.apply(id(3), &register(PersistenceChange::Off, 0, 7), true).expect("registered");
    assert!(!table.is_persistent());
    assert!(table.apply(id(9), &Request::Persistence(true), false).is_err());
    table.apply(id(9), &Request::Persistence(true), true).expect("kept");
    assert!(table.is_persistent());
}

#[test]
fn a_table_is_restored_as_it_was_and_nonsense_is_not() {
    let registrants = vec![Registrant { host: id(1), key: 5 }, Registrant { host: id(2), key: 6 }];
    let of = |kind, holder| Some(Reservation { kind, holder });
    let held = of(ReservationType::WriteExclusive, Some(id(2)));
    let table = Table::restore(7, held, registrants.clone()).expect("sound");
    assert!(table.is_persistent() && table.is_holder(id(2)) && table.generation() == 7);
    let all = of(ReservationType::WriteExclusiveAllRegistrants, None);
    assert!(Table::restore(0, all, registrants.clone()).is_some());
    assert!(Table::restore(0, None, Vec::new()).is_some());
    let twice = vec![registrants[0], registrants[0]];
    let keyless = vec![Registrant { host: id(1), key: 0 }];
    let nobody = vec![Registrant { host: HostId::NONE, key: 1 }];
    for (held, registrants) in [
        (of(ReservationType::WriteExclusive, None), registrants.clone()),
        (of(ReservationType::WriteExclusive, Some(id(3))), registrants.clone()),
        (of(ReservationType::WriteExclusiveAllRegistrants, Some(id(1))), registrants),
        (all, Vec::new()),
        (None, twice),
        (None, keyless),
        (None, nobody),
    ] {
        assert_eq!(Table::restore(0, held, registrants), None);
    }
}

#[test]
fn a_report_has_as_many_whole_entries_as_fit_and_counts_all() {
    let mut table = Table::default();
    for (host, key) in [(1, 5), (2, 6)] {
        table
            .apply(id(host), &request(Ask::Register { action: 0, ignore: false, current: 0, new: key }), true)
            .expect("new");
    }
    table.apply(id(2), &request(Ask::Acquire { action: 0, kind: 3, current: 6, named: 0 }), true).expect("free");
    let mut out = [0xee; 300];
    super::report::report(&table, &mut out);
    let (header, rest) = ReportHeader::read_from_prefix(&out).expect("a header");
    assert_eq!((header.generation.get(), header.rtype, header.registered.get(), header.ptpls), (2, 3, 2, 0));
    let (entries, rest) = <[ReportEntry]>::ref_from_prefix_with_elems(rest, 2).expect("two entries");
    let seen: Vec<_> = entries.iter().map(|one| (one.host_id[0], one.key.get(), one.rcsts, one.cntlid.get())).collect();
    assert_eq!(seen, [(1, 5, 0, 0xffff), (2, 6, 1, 0xffff)]);
    assert!(rest.iter().all(|byte| *byte == 0));
    let mut short = [0xee; 150];
    super::report::report(&table, &mut short);
    assert_eq!(short[..128], out[..128]);
    assert!(short[128..].iter().all(|byte| *byte == 0), "half an entry is none");
    let mut tiny = [0xee; 8];
    super::report::report(&table, &mut tiny);
    assert_eq!(tiny, out[..8]);
}

#[test]
fn an_administrator_ends_one_registration_or_all_and_hosts_are_told_as_by_other_hosts() {
    use ReservationNotice::{RegistrationPreempted, ReservationPreempted, ReservationReleased};
    let registrants = vec![Registrant { host: id(1), key: 5 }, Registrant { host: id(2), key: 6 }];
    for kind in ReservationType::ALL {
        let held = Some(Reservation { kind, holder: (!kind.is_all_registrants()).then_some(id(1)) });
        let table = Table::restore(7, held, registrants.clone()).expect("sound");
        let mut cleared = table.clone();
        let told = cleared.clear_all().notices;
        assert_eq!(told, [(id(1), ReservationPreempted), (id(2), ReservationPreempted)]);
        assert_eq!((cleared.reservation(), cleared.registrants().len(), cleared.generation()), (None, 0, 8));
        assert!(cleared.is_persistent(), "what is kept is that there is none");

        let mut evicted = table.clone();
        let mut expected = vec![(id(1), RegistrationPreempted)];
        let ends = !kind.is_all_registrants();
        if ends && !kind.is_of_holder_alone() {
            expected.push((id(2), ReservationReleased));
        }
        assert_eq!(evicted.evict(id(1)).expect("registered").notices, expected, "{kind:?}");
        assert_eq!((evicted.reservation().is_none(), evicted.registrants()), (ends, &registrants[1..]));
        assert_eq!((evicted.evict(id(1)), evicted.generation()), (None, 8), "it is gone");
    }
}

#[test]
fn names_go_with_registrations() {
    let name = crate::spec::Nqn::new("nqn.2026-11.org.example:h").expect("valid");
    let mut table = Table::restore(7, None, vec![Registrant { host: id(1), key: 5 }]).expect("sound");
    table.note_name(id(1), &name);
    table.note_name(id(2), &name);
    assert_eq!((table.name(id(1)), table.name(id(2))), (Some(&name), None));
    table.evict(id(1)).expect("registered");
    assert_eq!(table.name(id(1)), None);
}
