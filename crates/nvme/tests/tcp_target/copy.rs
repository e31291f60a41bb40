//! The Copy command, over devices that copy by themselves and over one that does not.

use crate::rig::*;
use bdev::{DeviceError, MemDevice, NullDevice};
use nvme::host::command;
use nvme::spec::copy::{CopyCommand, CopyRange};
use nvme::spec::identify::Cns;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::{Sqe, Status};
use nvme::tcp_target::Config;
use std::sync::Arc;
use zerocopy::IntoBytes;

fn copy(command: CopyCommand, ranges: &[CopyRange]) -> (Sqe, Vec<u8>) {
    let data = ranges.as_bytes().to_vec();
    let mut sqe = command::with_capsule_data(Sqe::nvm(NvmOpcode::Copy, 0, 1), data.len() as u32);
    command.store(&mut sqe);
    (sqe, data)
}

fn run_copy(queue: &mut Wire, sdlba: u64, ranges: &[(u64, u32)]) -> (Status, u32) {
    let ranges: Vec<CopyRange> = ranges.iter().map(|(slba, count)| CopyRange::new(*slba, *count)).collect();
    let (sqe, data) = copy(CopyCommand::plain(sdlba, ranges.len() as u32), &ranges);
    let (status, result, _) = queue.run(sqe, &data);
    (status, result)
}

#[test]
fn ranges_are_gathered_in_order_at_the_destination() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let (_, controller) = host.admin.ok(command::identify(Cns::Controller, 0, 0));
    assert_eq!((controller[521] & 1, controller[534] & 1), (1, 1), "ONCS says Copy, CDFS says format 0");
    let (_, id) = host.admin.ok(command::identify(Cns::Namespace, 1, 0));
    let (range_max, ranges_max) = (u16::from_le_bytes([id[74], id[75]]), id[80]);
    assert_eq!((range_max > 0, ranges_max), (true, 127));
    let queue = &mut host.io[0];
    let source = pattern(5, 600 * 512);
    queue.write(0, &source);
    assert_eq!(run_copy(queue, 4000, &[(300, 300), (0, 7), (7, 1)]), (Status::SUCCESS, 0));
    assert_eq!(queue.read(4000, 300), source[300 * 512..]);
    assert_eq!(queue.read(4300, 8), source[..8 * 512]);
    assert_eq!(queue.read(4308, 1), vec![0; 512]);
    // Onto its own source, as if that had been read before.
    assert_eq!(run_copy(queue, 3, &[(0, 500)]), (Status::SUCCESS, 0));
    assert_eq!(queue.read(3, 500), source[..500 * 512]);
}

#[test]
fn limits_and_ranges_are_checked_before_anything_is_copied() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let (_, id) = host.admin.ok(command::identify(Cns::Namespace, 1, 0));
    let range_max = u32::from(u16::from_le_bytes([id[74], id[75]]));
    let queue = &mut host.io[0];
    queue.write(0, &pattern(5, 8 * 512));
    let (size, outside) = (Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr(), Status::LBA_OUT_OF_RANGE.dnr());
    assert_eq!(run_copy(queue, 100, &[(0, 8), (0, range_max + 1)]).0, size);
    assert_eq!(run_copy(queue, 100, &[(0, 1); 129]).0, size);
    assert_eq!(run_copy(queue, 100, &[(0, 8), (BLOCKS - 1, 2)]).0, outside);
    assert_eq!(run_copy(queue, BLOCKS - 8, &[(0, 8), (0, 1)]).0, outside);
    assert_eq!(run_copy(queue, BLOCKS, &[(0, 1)]).0, outside);
    assert_eq!(queue.read(100, 8), vec![0; 8 * 512], "nothing was copied");
    let range = [CopyRange::new(0, 1)];
    for wrong in [
        CopyCommand { format: 1, ..CopyCommand::plain(100, 1) },
        CopyCommand { directive_type: 1, ..CopyCommand::plain(100, 1) },
        CopyCommand { prinfo: (8, 0), ..CopyCommand::plain(100, 1) },
    ] {
        let (sqe, data) = copy(wrong, &range);
        assert_eq!(queue.status(sqe, &data), Status::INVALID_FIELD.dnr(), "{wrong:?}");
    }
    let (sqe, data) = copy(CopyCommand::plain(100, 2), &range);
    assert_eq!(queue.status(sqe, &data), Status::DATA_SGL_LENGTH_INVALID.dnr());
    assert_eq!(run_copy(queue, 100, &[(0, 8); 128]), (Status::SUCCESS, 0), "as many as there may be");
}

#[test]
fn a_device_that_does_not_copy_is_read_and_written() -> Result<(), DeviceError> {
    let rig = Rig::empty(1, Config::default());
    rig.add(NQN, Arc::new(NullDevice::new("null", 512, 4096, true)?));
    assert_eq!(run_copy(&mut rig.host(1).io[0], 100, &[(0, 2000)]).0, Status::SUCCESS);
    // The error device stands for one that refuses: the answer names the range.
    let rules = [bdev::ErrorRule {
        lba: bdev::Lba(50),
        blocks: 1,
        ..bdev::ErrorRule::always(&[bdev::Op::Copy, bdev::Op::Read], bdev::Fault::Fail(bdev::Status::WriteError))
    }];
    let memory = Arc::new(MemDevice::new("mem", 512, 4096, 0)?);
    let failing = Rig::empty(1, Config::default());
    failing.add(NQN, Arc::new(bdev::ErrorDevice::new("error", memory, &rules, 1)?));
    let answer = run_copy(&mut failing.host(1).io[0], 0, &[(100, 1), (200, 1), (48, 8)]);
    // The destination of the third range is 2.
    assert_eq!(answer, (Status::SUCCESS, 0), "a rule looks at destinations");
    let answer = run_copy(&mut failing.host(1).io[0], 48, &[(100, 1), (200, 1), (300, 8)]);
    assert_eq!(answer, (Status::WRITE_FAULT.dnr(), 2));
    Ok(())
}
