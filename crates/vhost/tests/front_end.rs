//! A door as a guest and its front end meet it.

use crate::common::{EVENT_IDX, Guest, Host, Ram, Wish, memory_device, until};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vhost_door::spec::{feature, request, status};
use vhost_door::{Door, DoorError, DoorOptions};

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

fn every_request(wish: Wish) {
    let host = Host::new(memory_device(8));
    let mut guest = Guest::connect(&host.socket(), wish);
    let data = pattern(1, 64 << 10);
    assert_eq!(guest.ask(0, request::OUT, 8, &data, 0).status, status::OK);
    let read = guest.ask(0, request::IN, 8, &[], 64 << 10);
    assert_eq!((read.status, read.written), (status::OK, (64 << 10) + 1));
    assert!(read.data == data);
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    let id = guest.ask(0, request::GET_ID, 0, &[], 20);
    assert_eq!((id.status, &id.data[..]), (status::OK, &b"serial-number\0\0\0\0\0\0\0"[..]));
    assert_eq!(guest.ask(0, request::DISCARD, 0, &range(8, 8, 0), 0).status, status::OK);
    assert_eq!(guest.ask(0, request::WRITE_ZEROES, 0, &range(16, 8, 1), 0).status, status::OK);
    assert_eq!(guest.ask(0, request::WRITE_ZEROES, 0, &range(24, 8, 0), 0).status, status::OK);
    let read = guest.ask(0, request::IN, 8, &[], 64 << 10);
    assert!(read.data[..3 * 4096].iter().all(|byte| *byte == 0) && read.data[3 * 4096..] == data[3 * 4096..]);
    let end = 8 << 11;
    for (kind, sector, data, room, wanted) in [
        (77, 0, vec![0; 512], 512, status::UNSUPP),
        (request::IN, 0, vec![], 513, status::IOERR),
        (request::OUT, 0, vec![1; 511], 0, status::IOERR),
        (request::IN, end, vec![], 512, status::IOERR),
        (request::OUT, u64::MAX, vec![1; 512], 0, status::IOERR),
        (request::IN, u64::MAX / 512 + 1, vec![], 512, status::IOERR),
        (request::DISCARD, 0, range(end, 1, 0), 0, status::IOERR),
        (request::DISCARD, 0, range(0, 1, 1), 0, status::UNSUPP),
        (request::DISCARD, 0, vec![0; 15], 0, status::IOERR),
        (request::DISCARD, 0, vec![], 0, status::IOERR),
        (request::WRITE_ZEROES, 0, range(0, 1, 2), 0, status::UNSUPP),
    ] {
        let ended = guest.ask(0, kind, sector, &data, room);
        assert_eq!(ended.status, wanted, "request {kind} at {sector}");
    }
    let totals = host.status().totals;
    assert_eq!((totals.writes, totals.flushes, totals.errors, totals.stopped), (3, 1, 11, 0));
}

#[test]
fn every_request_is_carried_out_or_refused_with_a_status() {
    every_request(Wish::default());
}

#[test]
fn it_works_without_event_indices_and_with_tables_of_descriptors() {
    every_request(Wish { without: EVENT_IDX, indirect: true, ..Wish::default() });
}

#[test]
fn it_works_for_a_front_end_without_protocol_features() {
    every_request(Wish { without: feature::PROTOCOL_FEATURES, ..Wish::default() });
}

#[test]
fn queues_of_one_disk_work_beside_each_other() {
    let host = Host::new(memory_device(8));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 4, ..Wish::default() });
    for round in 0..40u64 {
        for queue in 0..4 {
            guest.submit(queue, request::OUT, round * 32 + queue as u64 * 8, &pattern(round as u8, 4096), 0);
        }
        (0..4).for_each(|queue| assert_eq!(guest.next(queue).status, status::OK));
        for queue in 0..4 {
            let other = (queue + 1) % 4;
            let read = guest.ask(queue, request::IN, round * 32 + other as u64 * 8, &[], 4096);
            assert!(read.data == pattern(round as u8, 4096), "round {round}, queue {queue}");
        }
    }
    assert_eq!(host.status().queues, 4);
}

#[test]
fn a_full_queue_is_emptied_and_indices_wrap() {
    let host = Host::new(memory_device(8));
    let mut guest = Guest::connect_at(&host.socket(), Wish::default(), 65_500);
    for _ in 0..10 {
        let heads: Vec<u16> = (0..16).map(|at| guest.prepare(0, request::IN, at, &[], 512)).collect();
        heads.iter().for_each(|head| guest.offer(0, *head));
        guest.kick(0);
        (0..16).for_each(|_| assert_eq!(guest.next(0).status, status::OK));
    }
}

#[test]
fn guests_are_called_only_where_they_want_it() {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    // (a call that an earlier daemon may have owed)
    assert!(guest.was_called(0));
    guest.want_call_at(0, 2);
    guest.ask(0, request::FLUSH, 0, &[], 0);
    guest.ask(0, request::FLUSH, 0, &[], 0);
    let before = host.status().totals.calls;
    guest.ask(0, request::FLUSH, 0, &[], 0);
    until("the call for entry 2", || guest.was_called(0));
    assert_eq!((before, host.status().totals.calls), (0, 1));
}

#[test]
fn a_read_only_disk_says_so_and_refuses_what_changes_it() {
    let host = Host::with(memory_device(1), true);
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    assert!(guest.features & feature::RO != 0 && guest.features & (feature::DISCARD | feature::WRITE_ZEROES) == 0);
    assert_eq!(guest.ask(0, request::OUT, 0, &[1; 512], 0).status, status::IOERR);
    assert_eq!(guest.ask(0, request::DISCARD, 0, &range(0, 1, 0), 0).status, status::IOERR);
    assert_eq!(guest.ask(0, request::IN, 0, &[], 512).data, [0; 512]);
}

#[test]
fn guests_always_flush_since_nothing_in_the_configuration_space_can_be_set() {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(guest.features & (feature::CONFIG_WCE | feature::FLUSH), feature::FLUSH);
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
    let config = guest.config();
    assert_eq!(config[32], 1);
    guest.front.set_config(0, flags, &config).unwrap();
    assert!(guest.front.set_config(32, flags, &[0]).is_err());
    assert!(guest.front.set_config(0, flags, &[9]).is_err());
    assert_eq!(guest.config(), config);
}

#[test]
fn a_front_end_is_told_of_a_new_size() {
    let device = memory_device(1);
    let host = Host::new(device.clone());
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    let (mut here, there) = std::os::unix::net::UnixStream::pair().unwrap();
    guest.front.set_backend_request_fd(&there).unwrap();
    host.runtime.handles()[0].call_async(move |reactor| async move { device.resize(&reactor, 4096).await.unwrap() });
    host.door.as_ref().unwrap().device_changed();
    let mut message = [0; 12];
    here.read_exact(&mut message).unwrap();
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(guest.config()[..8], 4096u64.to_le_bytes());
    assert_eq!(guest.ask(0, request::OUT, 4095, &[1; 512], 0).status, status::OK);
}

#[test]
fn memory_that_is_shared_anew_while_requests_are_under_way_is_used_from_then_on() {
    let host = Host::new(memory_device(8));
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    for round in 0..50u8 {
        for at in 0..8 {
            let head = guest.prepare(0, request::OUT, at * 8, &pattern(round, 4096), 0);
            guest.offer(0, head);
        }
        guest.kick(0);
        guest.front.set_mem_table(&[guest.ram.info()]).unwrap();
        (0..8).for_each(|_| assert_eq!(guest.next(0).status, status::OK));
    }
    let other = Ram::new();
    let more = vhost::VhostUserMemoryRegionInfo { guest_phys_addr: 1 << 32, userspace_addr: 1 << 40, ..other.info() };
    guest.front.add_mem_region(&more).unwrap();
    assert!(guest.front.add_mem_region(&more).is_err(), "the same place twice");
    guest.front.remove_mem_region(&more).unwrap();
    assert!(guest.front.remove_mem_region(&more).is_err());
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
}

#[test]
fn a_queue_whose_memory_is_taken_away_stops_and_the_door_goes_on() {
    let host = Host::new(memory_device(1));
    let guest = Guest::connect(&host.socket(), Wish::default());
    guest
        .front
        .set_mem_table(&[vhost::VhostUserMemoryRegionInfo { userspace_addr: 1 << 30, ..guest.ram.info() }])
        .unwrap_err();
    until("the queue to stop", || host.status().queues == 0);
    drop(guest);
    let mut next = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(next.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
}

#[test]
fn a_queue_stops_and_starts_where_it_was_and_a_reset_ends_all() {
    let host = Host::new(memory_device(1));
    let mut guest = Guest::connect(&host.socket(), Wish { queues: 2, ..Wish::default() });
    for _ in 0..5 {
        guest.ask(0, request::FLUSH, 0, &[], 0);
    }
    assert_eq!(guest.front.get_vring_base(0).unwrap(), 5);
    let head = guest.submit(0, request::FLUSH, 0, &[], 0);
    assert_eq!(guest.ask(1, request::FLUSH, 0, &[], 0).status, status::OK);
    assert_eq!(guest.used(0), 5, "a stopped queue does nothing");
    guest.start(0);
    assert_eq!(guest.next(0).head, head);
    guest.front.reset_device().unwrap();
    assert_eq!(host.status().queues, 0);
}

#[test]
fn front_ends_take_turns_and_what_they_tell_wrongly_is_refused() {
    let host = Host::new(memory_device(1));
    for _ in 0..3 {
        let mut guest = Guest::connect(&host.socket(), Wish::default());
        assert_eq!(guest.ask(0, request::OUT, 0, &[1; 512], 0).status, status::OK);
        assert_eq!(host.status().peer, Some(std::process::id()));
    }
    let mut guest = Guest::connect(&host.socket(), Wish::default());
    assert_eq!(guest.front.get_protocol_features().unwrap().bits(), vhost_door::message::protocol::OFFERED);
    assert!(guest.front.set_vring_enable(9, true).is_err());
    assert!(guest.front.set_vring_num(0, 3).is_err());
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
}

#[test]
fn a_socket_in_use_is_a_conflict_and_one_left_behind_is_replaced() {
    let host = Host::new(memory_device(1));
    let mode = std::fs::metadata(host.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let options = |socket: std::path::PathBuf| DoorOptions {
        name: "second".into(),
        socket,
        device: memory_device(1),
        reactors: host.runtime.handles().to_vec(),
        first_reactor: 1,
        queues: 1,
        read_only: false,
        serial: String::new(),
    };
    assert!(matches!(Door::open(options(host.socket())), Err(DoorError::InUse(_))));
    let file = host.dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(matches!(Door::open(options(file.clone())), Err(DoorError::NoSocket(_))));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    let left = host.dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let door = Door::open(options(left.clone())).unwrap();
    let mut guest = Guest::connect(&left, Wish::default());
    assert_eq!(guest.ask(0, request::FLUSH, 0, &[], 0).status, status::OK);
    door.close();
    assert!(!left.exists());
    // What is no listener of streams, and what took the door's place.
    let datagrams = host.dir.path().join("datagrams");
    let _other = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
    assert!(matches!(Door::open(options(datagrams)), Err(DoorError::InUse(_))));
    let door = Door::open(options(left.clone())).unwrap();
    std::fs::remove_file(&left).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&left).unwrap();
    door.close();
    assert!(left.exists(), "it is another's");
}
