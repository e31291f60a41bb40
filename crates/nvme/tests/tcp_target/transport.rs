//! Digests, alignment, and the terminations that the specification names for each breach.

use crate::rig::*;
use nvme::host::command;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{Sqe, Status};
use nvme::tcp::fault::field;
use nvme::tcp::pdu::{FLAG_DDGST, FLAG_HDGST, FLAG_LAST};
use nvme::tcp::{DataHeader, Header, R2t, TransportOptions};
use nvme::tcp_target::Config;
use std::io::{Read, Write};

const HEADER_FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const OUT_OF_RANGE: u16 = 4;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

fn options(header_digest: bool, data_digest: bool) -> TransportOptions {
    TransportOptions { header_digest, data_digest, ..TransportOptions::host() }
}

#[test]
fn all_combinations_of_digests_and_alignments_carry_data_both_ways() {
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        for (header, data) in [(false, false), (true, false), (false, true), (true, true)] {
            for pda in [0, 1, 31] {
                let mut host = rig.host_with(1, TransportOptions { pda, ..options(header, data) });
                let queue = &mut host.io[0];
                assert_eq!((queue.agreed.send.header_digest, queue.agreed.send.data_digest), (header, data));
                for len in [512, 8192, 100 << 10] {
                    let bytes = pattern(len as u64 + u64::from(pda), len);
                    assert_eq!(queue.write(7, &bytes), Status::SUCCESS);
                    assert_eq!(queue.read(7, (len / 512) as u32), bytes);
                }
            }
        }
    }
}

#[test]
fn digests_that_are_not_allowed_are_not_granted() {
    let rig = Rig::new(1, Config { allow_digests: false, ..Config::default() });
    let mut host = rig.host_with(1, options(true, true));
    assert!(!host.io[0].agreed.send.header_digest && !host.io[0].agreed.send.data_digest);
    assert_eq!(host.io[0].read(0, 1), [0; 512]);
}

#[test]
fn damaged_data_fails_its_command_only() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host_with(1, options(true, true));
    let queue = &mut host.io[0];
    let data = pattern(1, 4096);
    let sqe = command::with_cid(block_command(NvmOpcode::Write, 0, &data, true), 77);
    let mut capsule = queue.capsule(&sqe, &data);
    *capsule.last_mut().expect("a digest") ^= 1;
    queue.send(&capsule);
    let cqe = queue.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (77, Status::TRANSIENT_TRANSPORT_ERROR));
    // The second of three pieces.
    let sqe = command::with_cid(block_command(NvmOpcode::Write, 0, &data, false), 78);
    queue.submit(&sqe, &[]);
    let r2t = queue.r2t();
    for (index, piece) in [(0, &data[..1024]), (1024, &data[1024..2048]), (2048, &data[2048..])] {
        let mut bytes = queue.h2c(&r2t, index, piece, index == 2048);
        if index == 1024 {
            let at = bytes.len() - 100;
            bytes[at] ^= 0x80;
        }
        queue.send(&bytes);
    }
    let cqe = queue.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (78, Status::TRANSIENT_TRANSPORT_ERROR));
    assert_eq!(queue.read(0, 8), [0; 4096], "nothing was written");
    assert_eq!(queue.write(0, &data), Status::SUCCESS);
    assert_eq!(queue.read(0, 8), data);
}

#[test]
fn a_damaged_header_ends_the_connection_with_the_digest_that_came() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host_with(2, options(true, true));
    let queue = &mut host.io[0];
    let mut capsule = queue.capsule(&command::flush(1), &[]);
    capsule[10] ^= 1;
    let received = u32::from_le_bytes(capsule[72..76].try_into().expect("four"));
    queue.send(&capsule);
    let offender = queue.expect_termination(HEADER_DIGEST, received);
    assert_eq!(offender[..72], capsule[..72]);
    assert_eq!(host.io[1].read(0, 1), [0; 512], "the other queue goes on");
}

fn common(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: u32, total: usize) -> Vec<u8> {
    let mut bytes = vec![0; total];
    bytes[..4].copy_from_slice(&[kind, flags, hlen, pdo]);
    bytes[4..8].copy_from_slice(&plen.to_le_bytes());
    bytes
}

#[test]
fn every_malformed_pdu_ends_its_connection_with_the_status_and_field_that_are_at_fault() {
    let rig = Rig::new(2, Config::default());
    let plain = |bytes: Vec<u8>, fes: u16, fei: u32| (bytes, fes, fei);
    let cases = vec![
        plain(common(0x55, 0, 24, 0, 24, 24), HEADER_FIELD, field::TYPE),
        plain(common(1, 0, 128, 0, 128, 128), HEADER_FIELD, field::TYPE),
        plain(common(5, 0, 24, 0, 24, 24), HEADER_FIELD, field::TYPE),
        plain(common(7, 0, 24, 24, 32, 32), HEADER_FIELD, field::TYPE),
        plain(common(9, 0, 24, 0, 24, 24), HEADER_FIELD, field::TYPE),
        plain(common(0, 0, 128, 0, 128, 128), SEQUENCE, 0),
        plain(common(4, FLAG_HDGST, 72, 0, 76, 76), HEADER_FIELD, field::FLAGS),
        plain(common(4, FLAG_DDGST, 72, 72, 80, 80), HEADER_FIELD, field::FLAGS),
        plain(common(4, 0, 71, 0, 72, 72), HEADER_FIELD, field::HLEN),
        plain(common(4, 0, 72, 71, 80, 80), HEADER_FIELD, field::PDO),
        plain(common(4, 0, 72, 73, 80, 80), HEADER_FIELD, field::PDO),
        plain(common(4, 0, 72, 72, 71, 72), HEADER_FIELD, field::PLEN),
        plain(common(4, 0, 72, 72, 72 + 8193, 72), HEADER_FIELD, field::PLEN),
        plain(common(4, 0, 72, 72, u32::MAX, 72), HEADER_FIELD, field::PLEN),
        plain(common(6, 0, 24, 24, 24, 24), HEADER_FIELD, field::PLEN),
        plain(common(6, FLAG_LAST, 24, 24, 25 + (1 << 20), 24), LIMIT, 0),
        plain(common(6, FLAG_LAST, 24, 24, 32, 32), HEADER_FIELD, field::LENGTH),
    ];
    for queue_kind in 0..2 {
        for (bytes, fes, fei) in &cases {
            let mut host = rig.host(1);
            let wire = if queue_kind == 0 { &mut host.admin } else { &mut host.io[0] };
            wire.send(bytes);
            let offender = wire.expect_termination(*fes, *fei);
            assert_eq!(offender[..8], bytes[..8]);
            if queue_kind == 1 {
                host.admin.ok(command::keep_alive());
            }
        }
    }
    rig.wait_until("every connection has ended", |home| home.connections() == 0);
}

#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    let rig = Rig::new(1, Config::default());
    let data = [0u8; 4096];
    type Change = fn(&mut DataHeader, &R2t);
    let cases: [(Change, u16, u32); 7] = [
        (|header, _| header.ttag ^= 1, HEADER_FIELD, field::TTAG),
        (|header, _| header.ttag = 0x7fff, HEADER_FIELD, field::TTAG),
        (|header, _| header.cccid ^= 1, HEADER_FIELD, field::CCCID),
        (|header, _| header.offset = 4, OUT_OF_RANGE, 0),
        (|header, r2t| header.offset = r2t.len, OUT_OF_RANGE, 0),
        (|header, _| header.last = false, HEADER_FIELD, field::FLAGS),
        (
            |header, _| {
                header.offset = u32::MAX;
                header.last = false;
            },
            OUT_OF_RANGE,
            0,
        ),
    ];
    for (change, fes, fei) in cases {
        let mut host = rig.host(1);
        let queue = &mut host.io[0];
        queue.submit(&command::with_cid(block_command(NvmOpcode::Write, 0, &data, false), 4), &[]);
        let r2t = queue.r2t();
        let mut header = DataHeader { cccid: 4, ttag: r2t.ttag, offset: 0, len: 4096, last: true, success: false };
        change(&mut header, &r2t);
        let bytes = queue.encode(|encoder, out| encoder.h2c_data(out, &header), &data);
        queue.send(&bytes);
        queue.expect_termination(fes, fei);
    }
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    // More than was asked for, and an early end.
    for (len, last, fes, fei) in [(8192, true, OUT_OF_RANGE, 0), (2048, true, HEADER_FIELD, field::FLAGS)] {
        let mut other = rig.host(1);
        let queue = &mut other.io[0];
        queue.submit(&block_command(NvmOpcode::Write, 0, &data, false), &[]);
        let r2t = queue.r2t();
        let bytes = queue.h2c(&r2t, 0, &vec![0; len], last);
        queue.send(&bytes);
        queue.expect_termination(fes, fei);
    }
    assert_eq!(queue.read(0, 1), [0; 512], "another host goes on");
}

#[test]
fn a_request_that_opens_a_connection_must_be_right() {
    let rig = Rig::new(1, Config::default());
    let request = TransportOptions::host().request().encode();
    let damage = |at: usize, value: u8| {
        let mut bytes = request;
        bytes[at] = value;
        bytes
    };
    for (bytes, fes, fei) in [
        (damage(8, 1), UNSUPPORTED, field::PFV),
        (damage(10, 32), HEADER_FIELD, field::PDA),
        (damage(2, 127), HEADER_FIELD, field::HLEN),
        (damage(4, 127), HEADER_FIELD, field::PLEN),
        (damage(0, 4), SEQUENCE, 0),
        (damage(0, 0xee), HEADER_FIELD, field::TYPE),
    ] {
        let mut stream = Wire::socket(rig.address);
        stream.write_all(&bytes).expect("sent");
        let mut answer = Vec::new();
        stream.shutdown(std::net::Shutdown::Write).expect("possible");
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() >= 24 && answer[0] == 3, "{answer:?}");
        assert_eq!(u16::from_le_bytes([answer[8], answer[9]]), fes);
        assert_eq!(u32::from_le_bytes(answer[10..14].try_into().expect("four")), fei);
        assert_eq!(answer[24..32], bytes[..8]);
    }
}

#[test]
fn the_hosts_own_termination_is_not_answered() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let (term, len) =
        nvme::tcp::pdu::encode_term(nvme::tcp::Side::Host, nvme::tcp::Fault::Sequence, &[7; 100]).expect("sent");
    queue.send(&term[..len]);
    assert!(queue.recv().is_none());
    let queue = &mut host.admin;
    queue.send(&common(2, 0, 24, 0, 4000, 24));
    assert!(queue.recv().is_none());
}

#[test]
fn streams_that_stop_at_any_byte_leave_nothing_behind() {
    let rig = Rig::new(2, Config::default());
    let mut good = rig.host(1);
    let write = block_command(NvmOpcode::Write, 0, &[1; 512], true);
    for digests in [false, true] {
        let mut host = rig.host(0);
        let mut stops = 0;
        let length = {
            let wire = Wire::open(rig.address, options(digests, digests));
            wire.capsule(&write, &[1; 512]).len()
        };
        // Every byte of the header, then in steps.
        for end in (0..80).chain((80..=length).step_by(29)) {
            let mut queue = Wire::open(rig.address, options(digests, digests));
            // The target may not yet have seen the end of the last connection: every queue has a number of its own.
            let cqe = queue.connect(NQN, HOST, stops + 1, Some(host.cntlid), 8, 0);
            assert!(cqe.status().is_success(), "{}", cqe.status());
            let bytes = queue.capsule(&write, &[1; 512]);
            queue.send(&bytes[..end]);
            stops += 1;
        }
        assert!(stops > 90);
        let request = TransportOptions::host().request().encode();
        for end in 0..128 {
            Wire::socket(rig.address).write_all(&request[..end]).expect("sent");
        }
        host.admin.ok(command::keep_alive());
    }
    assert_eq!(good.io[0].read(0, 1).len(), 512);
    rig.wait_until("only the living connections are left", |home| home.connections() == 2);
}

#[test]
fn commands_before_connect_and_a_second_connect_are_out_of_sequence() {
    let rig = Rig::new(1, Config::default());
    let mut wire = Wire::open(rig.address, TransportOptions::host());
    assert_eq!(wire.status(command::keep_alive(), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
    assert_eq!(wire.status(command::get_capabilities(), &[]), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let cqe = wire.connect("nqn.2026-11.io.remuda:nobody", HOST, 0, None, 32, 0);
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_PARAMETERS.dnr());
    let cqe = wire.connect(NQN, HOST, 0, None, 32, 0);
    assert!(cqe.status().is_success(), "another try is allowed");
    let cqe = wire.connect(NQN, HOST, 0, None, 32, 0);
    assert_eq!(cqe.status(), Status::COMMAND_SEQUENCE_ERROR.dnr());
    let read = command::with_transport_data(command::blocks(NvmOpcode::Read, 1, &BlockCommand::plain(0, 1)), 512);
    assert_eq!(wire.status(read, &[]), Status::COMMAND_SEQUENCE_ERROR.dnr(), "not enabled yet");
}

#[test]
fn more_commands_than_the_queue_holds_end_the_connection() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(2);
    let queue = &mut host.io[0];
    for cid in 0..33 {
        let sqe = command::with_cid(block_command(NvmOpcode::Write, 0, &[0; 16384], false), cid);
        let bytes = queue.capsule(&sqe, &[]);
        queue.try_send(&bytes);
    }
    let mut r2ts = 0;
    loop {
        match queue.recv().expect("a termination first").header {
            Header::R2t(_) => r2ts += 1,
            Header::TermReq(term) => break assert_eq!(term.fes, SEQUENCE),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(r2ts, 32);
    queue.expect_end();
    assert_eq!(host.io[1].read(0, 1), [0; 512]);
    // On the admin queue, too.
    for cid in 0..40 {
        let bytes = host.admin.capsule(&command::with_cid(Sqe::new(0x0c, 0, 0), cid), &[]);
        host.admin.try_send(&bytes);
        let bytes =
            host.admin.capsule(&command::with_cid(block_command(NvmOpcode::Write, 0, &[0; 512], false), 9), &[]);
        host.admin.try_send(&bytes);
    }
    let _ = host.admin.recv();
}
