//! Write Uncorrectable: what is declared unreadable is so for every host and every command until it is written again.

use crate::rig::*;
use crate::run;
use bdev::{BlockDevice, ChecksumDevice, ChecksumOptions, MemDevice, NullDevice, StripeDevice};
use nvme::host::command;
use nvme::spec::copy::{CopyCommand, CopyRange};
use nvme::spec::identify::Cns;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::spec::{NSID_ALL, Sqe, Status};
use nvme::tcp::TransportOptions;
use nvme::tcp_target::Config;
use std::sync::Arc;
use zerocopy::IntoBytes;

const UNREADABLE: Status = Status::UNRECOVERED_READ_ERROR.dnr();

fn memory() -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"))
}

fn checksummed() -> Arc<dyn BlockDevice> {
    let reactor = run::reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let options = ChecksumOptions { create: true, ..ChecksumOptions::default() };
        Arc::new(ChecksumDevice::open(&inner, "sum", memory(), &options).await.expect("opens"))
    })
}

fn over(opcode: NvmOpcode, slba: u64, count: u32) -> Sqe {
    command::blocks(opcode, 1, &BlockCommand::plain(slba, count))
}

fn read(slba: u64, count: u32) -> Sqe {
    command::with_transport_data(over(NvmOpcode::Read, slba, count), count * 512)
}

#[test]
fn blocks_are_unreadable_until_they_are_written_again() {
    let striped = || StripeDevice::new("stripe", vec![memory(), memory()], 3).expect("a stripe");
    let devices: [Arc<dyn BlockDevice>; 3] = [memory(), checksummed(), Arc::new(striped())];
    for device in devices {
        let rig = Rig::empty(2, Config::default());
        rig.add(NQN, device);
        let mut host = rig.host(2);
        let mut other = rig.host_known_as(1, TransportOptions::host(), [5; 16]);
        let (_, controller) = host.admin.ok(command::identify(Cns::Controller, 0, 0));
        assert_eq!(controller[520] & 2, 2, "ONCS");
        let (_, limits) = host.admin.ok(command::identify(Cns::CommandSetController, 0, 0));
        assert_eq!(limits[2], 0, "WUSL: no limit");
        let data = pattern(4, 32 * 512);
        assert_eq!(host.io[0].write(100, &data), Status::SUCCESS);
        assert_eq!(host.io[0].status(over(NvmOpcode::WriteUncorrectable, 104, 10), &[]), Status::SUCCESS);
        for queue in host.io.iter_mut().chain(&mut other.io) {
            for (slba, count, status) in
                [(100, 4, Status::SUCCESS), (104, 1, UNREADABLE), (113, 5, UNREADABLE), (114, 18, Status::SUCCESS)]
            {
                assert_eq!(queue.run(read(slba, count), &[]).0, status, "{slba}+{count}");
                assert_eq!(queue.status(over(NvmOpcode::Verify, slba, count), &[]), status);
            }
            let block = &data[..512];
            assert_eq!(queue.status(block_command(NvmOpcode::Compare, 105, block, true), block), UNREADABLE);
            let ranges = [CopyRange::new(100, 2), CopyRange::new(110, 1)];
            let mut copy = command::with_capsule_data(Sqe::nvm(NvmOpcode::Copy, 0, 1), 64);
            CopyCommand::plain(1000, 2).store(&mut copy);
            let (status, done, _) = queue.run(copy, ranges.as_bytes());
            assert_eq!((status, done), (UNREADABLE, 1), "the second range was not copied");
        }
        assert_eq!(other.io[0].write(104, &data[..512]), Status::SUCCESS);
        assert_eq!(host.io[1].read(104, 1), data[..512]);
        assert_eq!(host.io[1].run(read(105, 1), &[]).0, UNREADABLE);
        assert_eq!(host.io[1].status(over(NvmOpcode::WriteZeroes, 105, 9), &[]), Status::SUCCESS);
        assert_eq!(host.io[0].read(105, 9), [0; 9 * 512]);
        // As many as a command names, more than a device takes at once.
        assert_eq!(host.io[0].status(over(NvmOpcode::WriteUncorrectable, 0, 12_000), &[]), Status::SUCCESS);
        assert_eq!(host.io[1].run(read(11_999, 1), &[]).0, UNREADABLE);
    }
}

#[test]
fn what_cannot_be_declared_unreadable_is_refused() {
    let rig = Rig::empty(1, Config::default());
    rig.add(NQN, Arc::new(NullDevice::new("null", 512, BLOCKS, true).expect("a device")));
    let mut host = rig.host(1);
    let (_, controller) = host.admin.ok(command::identify(Cns::Controller, 0, 0));
    assert_eq!(controller[520] & 2, 0, "ONCS");
    let refused = Status::INVALID_OPCODE.dnr();
    assert_eq!(host.io[0].status(over(NvmOpcode::WriteUncorrectable, 0, 1), &[]), refused);
    rig.add(NQN, memory());
    let on = |nsid: u32, slba| Sqe { nsid: nsid.into(), ..over(NvmOpcode::WriteUncorrectable, slba, 1) };
    for (sqe, status) in [
        (on(2, 0), Status::SUCCESS),
        (on(2, BLOCKS - 1), Status::SUCCESS),
        (on(2, BLOCKS), Status::LBA_OUT_OF_RANGE.dnr()),
        (on(2, u64::MAX), Status::LBA_OUT_OF_RANGE.dnr()),
        (on(3, 0), Status::INVALID_NAMESPACE.dnr()),
        (on(0, 0), Status::INVALID_NAMESPACE.dnr()),
        (on(NSID_ALL, 0), Status::INVALID_NAMESPACE.dnr()),
        (on(1, 0), refused),
    ] {
        assert_eq!(host.io[0].status(sqe, &[]), status);
    }
}
