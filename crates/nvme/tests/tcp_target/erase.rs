//! Format NVM over the wire, on an encrypted device.

use crate::rig::*;
use crate::run;
use bdev::{BlockDevice, EncryptDevice, EncryptOptions, ErrorDevice, ErrorRule, Fault, MemDevice, Op};
use nvme::host::command;
use nvme::spec::erase::{FormatCommand, SecureErase};
use nvme::spec::opcode::{AdminOpcode, NvmOpcode};
use nvme::spec::reservation::*;
use nvme::spec::{Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// An encrypted device over a medium that can be made to fail.
fn encrypted() -> (Arc<EncryptDevice>, Arc<ErrorDevice>) {
    let reactor = run::reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let memory = Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"));
        let medium = Arc::new(ErrorDevice::new("medium", memory, &[], 1).expect("no rules"));
        let key = bdev::UserKey::from_bytes(&[7; 32]).expect("long enough");
        let options = EncryptOptions { create: true, ..EncryptOptions::default() };
        let device = EncryptDevice::open(&inner, "secret", medium.clone(), &key, &options).await.expect("opens");
        (Arc::new(device), medium)
    })
}

fn format(nsid: u32) -> Sqe {
    let mut sqe = Sqe::new(AdminOpcode::FormatNvm as u8, 0, nsid);
    FormatCommand::same(SecureErase::Crypto).store(&mut sqe);
    sqe
}

#[test]
fn after_a_format_no_host_reads_what_was_there_and_all_go_on_writing() {
    for reactors in [1, 2] {
        let rig = Rig::empty(reactors, Config::default());
        let (device, _) = encrypted();
        assert_eq!(rig.add(NQN, device.clone()), 1);
        let mut first = rig.host(2);
        let mut second = rig.host_known_as(2, TransportOptions::host(), [5; 16]);
        let data = pattern(3, 4096);
        assert_eq!(first.io[0].write(8, &data), Status::SUCCESS);
        for host in [&mut first, &mut second] {
            for queue in &mut host.io {
                assert_eq!(queue.read(8, 8), data);
            }
        }
        assert_eq!(first.admin.status(format(1), &[]), Status::SUCCESS);
        for host in [&mut first, &mut second] {
            for queue in &mut host.io {
                let found = queue.read(8, 8);
                let same = found.iter().zip(&data).filter(|(a, b)| a == b).count();
                assert!(same < 200, "{same} bytes of 4096 are as they were");
            }
        }
        for (nth, queue) in first.io.iter_mut().chain(&mut second.io).enumerate() {
            let fresh = pattern(40 + nth as u64, 4096);
            assert_eq!(queue.write(100 + 8 * nth as u64, &fresh), Status::SUCCESS);
        }
        for nth in 0..4 {
            assert_eq!(second.io[1].read(100 + 8 * nth, 8), pattern(40 + nth, 4096));
        }
    }
}

#[test]
fn a_format_that_fails_says_so_and_erases_nothing() {
    let rig = Rig::empty(1, Config::default());
    let (device, medium) = encrypted();
    rig.add(NQN, device);
    let mut host = rig.host(1);
    let data = pattern(3, 4096);
    assert_eq!(host.io[0].write(8, &data), Status::SUCCESS);
    let fails_once = ErrorRule {
        when: bdev::When::Nth(1),
        ..ErrorRule::always(&[Op::Write], Fault::Fail(bdev::Status::WriteError))
    };
    medium.set_rules(&[fails_once]).expect("one rule");
    assert_eq!(host.admin.status(format(1), &[]), Status::WRITE_FAULT.dnr());
    assert_eq!(host.io[0].read(8, 8), data);
    assert_eq!(host.admin.status(format(1), &[]), Status::SUCCESS);
    assert_ne!(host.io[0].read(8, 8), data);
}

#[test]
fn a_reservation_keeps_other_hosts_from_formatting() {
    let rig = Rig::empty(1, Config::default());
    let (device, _) = encrypted();
    rig.add(NQN, device);
    rig.add(NQN, Arc::new(MemDevice::new("plain", 512, BLOCKS, BLOCKS).expect("memory")) as Arc<dyn BlockDevice>);
    let mut holder = rig.host(1);
    let mut other = rig.host_known_as(1, TransportOptions::host(), [5; 16]);
    let data = pattern(3, 4096);
    assert_eq!(holder.io[0].write(8, &data), Status::SUCCESS);
    let mut reserve = |command: ReservationCommand, current, new| {
        let keys = Keys::new(current, new);
        let data = &keys.as_bytes()[..command.data_len() as usize];
        holder.io[0].status(command::with_capsule_data(command.to_sqe(1), data.len() as u32), data)
    };
    let action = RegisterAction::Register;
    let register = ReservationCommand::Register { action, ignore_key: false, persistence: PersistenceChange::Keep };
    assert_eq!(reserve(register, 0, 7), Status::SUCCESS);
    let kind = ReservationType::WriteExclusive;
    let acquire = ReservationCommand::Acquire { action: AcquireAction::Acquire, kind };
    assert_eq!(reserve(acquire, 7, 0), Status::SUCCESS);
    assert_eq!(other.admin.status(format(1), &[]), Status::RESERVATION_CONFLICT.dnr());
    assert_eq!(other.admin.status(format(2), &[]), Status::INVALID_FIELD.dnr(), "it is not encrypted");
    assert_eq!(other.admin.status(format(u32::MAX), &[]), Status::INVALID_FIELD.dnr());
    assert_eq!(holder.io[0].read(8, 8), data);
    assert_eq!(holder.admin.status(format(1), &[]), Status::SUCCESS);
    let verify = command::blocks(NvmOpcode::Verify, 1, &nvme::spec::sqe::BlockCommand::plain(0, 8));
    assert_eq!(holder.io[0].status(verify, &[]), Status::SUCCESS);
    assert_ne!(holder.io[0].read(8, 8), data);
}
