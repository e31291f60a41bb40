//! What commands do, for a host that keeps the rules.

use crate::rig::*;
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, ErrorDevice, ErrorRule, Fault, Io, MemDevice, Op, OpSet,
    StatsDevice,
};
use nvme::host::command;
use nvme::spec::feature::Feature;
use nvme::spec::identify::Cns;
use nvme::spec::log::LogPage;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::property::Configuration;
use nvme::spec::sqe::{BlockCommand, DsmRange, Fused};
use nvme::spec::{Sqe, Status};
use nvme::tcp::{Header, TransportOptions};
use nvme::tcp_target::Config;
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use zerocopy::IntoBytes;

fn plain(opcode: NvmOpcode, slba: u64, blocks: u32) -> Sqe {
    command::blocks(opcode, 1, &BlockCommand::plain(slba, blocks))
}

#[test]
fn every_size_is_written_and_read_back_in_capsules_and_through_r2ts_on_one_and_two_reactors() {
    for reactors in [1, 2] {
        let rig = Rig::new(reactors, Config::default());
        let mut host = rig.host(2);
        for queue in &mut host.io {
            let mut len = 512;
            while len <= 1 << 20 {
                for odd in [0, 512] {
                    let data = pattern(len as u64, (len + odd).min(1 << 20));
                    assert_eq!(queue.write(3, &data), Status::SUCCESS);
                    assert_eq!(queue.read(3, (data.len() / 512) as u32), data, "{len}");
                }
                len *= 2;
            }
            // In-capsule data of every size, and an R2T even for small data when the host asks for it.
            for blocks in 1..=16 {
                for in_capsule in [false, true] {
                    let data = pattern(blocks as u64, blocks * 512);
                    let sqe = block_command(NvmOpcode::Write, 40, &data, in_capsule);
                    assert_eq!(queue.status(sqe, &data), Status::SUCCESS);
                    assert_eq!(queue.read(40, blocks as u32), data);
                }
            }
        }
    }
}

#[test]
fn what_lies_beside_a_write_stays() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    queue.write(0, &pattern(1, 64 << 10));
    queue.write(10, &pattern(2, 16 << 10));
    let all = queue.read(0, 128);
    assert_eq!(all[..5120], pattern(1, 64 << 10)[..5120]);
    assert_eq!(all[5120..5120 + (16 << 10)], pattern(2, 16 << 10));
    assert_eq!(all[5120 + (16 << 10)..], pattern(1, 64 << 10)[5120 + (16 << 10)..]);
}

#[test]
fn identify_flush_write_zeroes_verify_deallocate_and_compare_do_what_they_say() {
    let rig = Rig::new(2, Config::default());
    let mut host = rig.host(1);
    let (_, id) = host.admin.ok(command::identify(Cns::Namespace, 1, 0));
    assert_eq!(id[..8], BLOCKS.to_le_bytes());
    let (_, list) = host.admin.ok(command::identify(Cns::ActiveNamespaces, 0, 0));
    assert_eq!(list[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let queue = &mut host.io[0];
    let data = pattern(5, 32 << 10);
    queue.write(0, &data);
    queue.ok(command::flush(1));
    queue.ok(command::flush(u32::MAX));
    queue.ok(plain(NvmOpcode::Verify, 0, 64));
    for in_capsule in [true, false] {
        let compare = |data: &[u8]| block_command(NvmOpcode::Compare, 8, data, in_capsule);
        let mut part = data[4096..8192].to_vec();
        assert_eq!(queue.status(compare(&part), &part), Status::SUCCESS);
        part[4095] ^= 1;
        assert_eq!(queue.status(compare(&part), &part), Status::COMPARE_FAILURE.dnr());
    }
    queue.ok(plain(NvmOpcode::WriteZeroes, 1, 2));
    let mut zeroes =
        command::blocks(NvmOpcode::WriteZeroes, 1, &BlockCommand { deallocate: true, ..BlockCommand::plain(5, 1) });
    queue.ok(zeroes);
    zeroes.cdw12 = (zeroes.cdw12.get() | 1 << 30).into();
    queue.ok(zeroes);
    let ranges = [(8u64, 4u32), (20, 0), (30, 1)].map(|(slba, count)| DsmRange {
        attributes: 0.into(),
        block_count: count.into(),
        slba: slba.into(),
    });
    let dsm = command::with_capsule_data(command::deallocate(1, 3), 48);
    assert_eq!(queue.status(dsm, ranges.as_bytes()), Status::SUCCESS);
    let dsm = command::with_transport_data(command::deallocate(1, 3), 48);
    assert_eq!(queue.status(dsm, ranges.as_bytes()), Status::SUCCESS);
    let mut expected = data;
    for (from, count) in [(1, 2), (5, 1), (8, 4), (30, 1)] {
        expected[from * 512..(from + count) * 512].fill(0);
    }
    assert_eq!(queue.read(0, 64), expected);
}

#[test]
fn what_is_deallocated_is_cut_where_devices_give_space_back() {
    let rig = Rig::empty(1, Config::default());
    let mem = Arc::new(MemDevice::new("mem", 4096, 8192, 8192).expect("memory"));
    let device = Arc::new(StatsDevice::new(mem));
    rig.add(NQN, device.clone());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    // From 1 to 13 MiB: 3, 4, 4 and 1, so that two whole pieces of 4 MiB are among them.
    let range = DsmRange { attributes: 0.into(), block_count: 3072.into(), slba: 256.into() };
    let dsm = command::with_capsule_data(command::deallocate(1, 1), 16);
    assert_eq!(queue.status(dsm, range.as_bytes()), Status::SUCCESS);
    let counts = device.stats().of(Op::Unmap);
    assert_eq!((counts.ops, counts.blocks), (4, 3072));
    queue.ok(plain(NvmOpcode::WriteZeroes, 1024, 2048));
    let counts = device.stats().of(Op::WriteZeroes);
    assert_eq!((counts.ops, counts.blocks), (2, 2048));
}

#[test]
fn commands_outside_of_the_namespace_or_unknown_are_refused_and_the_queue_goes_on() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let out = command::with_transport_data(plain(NvmOpcode::Read, BLOCKS, 1), 512);
    assert_eq!(queue.status(out, &[]), Status::LBA_OUT_OF_RANGE.dnr());
    let short = command::with_transport_data(plain(NvmOpcode::Read, 0, 2), 512);
    assert_eq!(queue.status(short, &[]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let in_capsule = command::with_capsule_data(plain(NvmOpcode::Read, 0, 1), 512);
    assert_eq!(queue.status(in_capsule, &[0; 512]), Status::SGL_TYPE_INVALID.dnr());
    let other = Sqe { nsid: 9.into(), ..command::with_transport_data(plain(NvmOpcode::Read, 0, 1), 512) };
    assert_eq!(queue.status(other, &[]), Status::INVALID_NAMESPACE.dnr());
    let unknown = Sqe { opcode: 0x55, ..plain(NvmOpcode::Flush, 0, 1) };
    assert_eq!(queue.status(unknown, &[]), Status::INVALID_OPCODE.dnr());
    let (_, log) = host.admin.ok(command::get_log_page(LogPage::Error, 0, 64, false));
    assert_eq!(log[0], 5, "five errors were recorded");
    assert_eq!(host.io[0].read(0, 1), [0; 512]);
}

fn fused(slba: u64, old: &[u8], new: &[u8], in_capsule: bool) -> (Sqe, Sqe) {
    let compare = block_command(NvmOpcode::Compare, slba, old, in_capsule).with_fused(Fused::First);
    let write = block_command(NvmOpcode::Write, slba, new, in_capsule).with_fused(Fused::Second);
    (command::with_cid(compare, 101), command::with_cid(write, 102))
}

fn run_fused(queue: &mut Wire, slba: u64, old: &[u8], new: &[u8], in_capsule: bool) -> (Status, Status) {
    let (compare, write) = fused(slba, old, new, in_capsule);
    queue.submit(&compare, if in_capsule { old } else { &[] });
    queue.submit(&write, if in_capsule { new } else { &[] });
    let mut answers = Vec::new();
    while answers.len() < 2 {
        match queue.recv().expect("alive").header {
            Header::R2t(r2t) => {
                let data = if r2t.cccid == 101 { old } else { new };
                let bytes = queue.h2c(&r2t, 0, data, true);
                queue.send(&bytes);
            }
            Header::CapsuleResp(cqe) => answers.push((cqe.cid.get(), cqe.status())),
            other => panic!("{other:?}"),
        }
    }
    answers.sort_by_key(|answer| answer.0);
    assert_eq!((answers[0].0, answers[1].0), (101, 102));
    (answers[0].1, answers[1].1)
}

#[test]
fn a_fused_pair_writes_when_equal_and_fails_as_a_whole_when_not() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    for (index, in_capsule) in [true, false].into_iter().enumerate() {
        let slba = index as u64 * 8;
        let (zero, new) = (vec![0; 1024], pattern(6, 1024));
        assert_eq!(run_fused(queue, slba, &zero, &new, in_capsule), (Status::SUCCESS, Status::SUCCESS));
        assert_eq!(queue.read(slba, 2), new);
        let failed = (Status::COMPARE_FAILURE.dnr(), Status::ABORTED_FAILED_FUSED.dnr());
        assert_eq!(run_fused(queue, slba, &zero, &zero, in_capsule), failed);
        assert_eq!(queue.read(slba, 2), new);
    }
}

/// Sends commands at once and returns their statuses by identifier.
fn answers_to(queue: &mut Wire, commands: &[(Sqe, &[u8])]) -> Vec<(u16, Status)> {
    let bytes: Vec<u8> = commands.iter().flat_map(|(sqe, data)| queue.capsule(sqe, data)).collect();
    queue.send(&bytes);
    let mut answers: Vec<(u16, Status)> =
        commands.iter().map(|_| queue.response()).map(|cqe| (cqe.cid.get(), cqe.status())).collect();
    answers.sort_by_key(|answer| answer.0);
    answers
}

#[test]
fn whatever_breaks_a_fused_pair_both_halves_are_answered_once() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let (old, new) = (vec![0; 512], pattern(1, 512));
    let (compare, write) = fused(0, &old, &new, true);
    let flush = command::with_cid(command::flush(1), 103);
    let missing = Status::ABORTED_MISSING_FUSED.dnr();
    let failed = Status::ABORTED_FAILED_FUSED.dnr();
    let outside = Sqe { cdw11: 1.into(), ..write };
    let unknown = command::with_cid(Sqe::new(0x99, 0, 1), 103);
    let flush_all = command::with_cid(command::flush(u32::MAX), 103);
    let elsewhere = Sqe { cdw10: 1.into(), ..write };
    let bad_sgl = Sqe { sgl: Default::default(), ..compare };
    let conflict = Status::COMMAND_ID_CONFLICT.dnr();
    let empty: &[u8] = &[];
    type Case<'a> = (Vec<(Sqe, &'a [u8])>, Vec<(u16, Status)>);
    let cases: Vec<Case> = vec![
        (vec![(compare, &old), (flush, empty)], vec![(101, missing), (103, Status::SUCCESS)]),
        (vec![(compare, &old), (flush_all, empty)], vec![(101, missing), (103, Status::SUCCESS)]),
        (vec![(compare, &old), (unknown, empty)], vec![(101, missing), (103, Status::INVALID_OPCODE.dnr())]),
        (vec![(compare, &old), (outside, &new)], vec![(101, failed), (102, Status::LBA_OUT_OF_RANGE.dnr())]),
        (
            vec![(compare, &old), (elsewhere, &new)],
            vec![(101, Status::INVALID_FIELD.dnr()), (102, Status::INVALID_FIELD.dnr())],
        ),
        (vec![(write, &new)], vec![(102, missing)]),
        (vec![(bad_sgl, &old), (write, &new)], vec![(101, Status::DATA_SGL_LENGTH_INVALID.dnr()), (102, missing)]),
        (vec![(compare, &old), (command::with_cid(write, 101), &new)], vec![(101, failed), (101, conflict)]),
    ];
    for (commands, expected) in cases {
        let answers = answers_to(queue, &commands);
        assert_eq!(answers, expected);
        assert_eq!(queue.read(0, 1), old, "nothing was written");
    }
    assert_eq!(run_fused(queue, 0, &old, &new, true), (Status::SUCCESS, Status::SUCCESS));
}

#[test]
fn halves_that_fail_over_and_over_use_up_neither_the_queue_nor_the_r2ts() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let data = vec![0; 512];
    let mut conflicts = 0;
    for round in 0..100u16 {
        // The compare is asked for its data, broken by the flush, and never sends any.
        let (compare, _) = fused(0, &data, &data, false);
        let bytes = queue.capsule(&command::with_cid(compare, 1000 + round), &[]);
        queue.send(&bytes);
        let bytes = queue.capsule(&command::with_cid(command::flush(1), 1), &[]);
        queue.send(&bytes);
        let mut answers = 0;
        while answers < 2 {
            if let Header::CapsuleResp(cqe) = queue.recv().expect("alive").header {
                answers += 1;
                conflicts += u32::from(cqe.status() == Status::COMMAND_ID_CONFLICT.dnr());
            }
        }
    }
    assert_eq!(conflicts, 100 - 32, "as many R2Ts as the queue has entries");
    assert_eq!(queue.read(0, 1), data);
}

/// A device that only reads, writes and flushes, in small pieces, and takes its time.
struct Basic(MemDevice);

struct BasicChannel(Rc<dyn Channel>, Rc<Reactor>, DeviceInfo);

impl BlockDevice for Basic {
    fn name(&self) -> &str {
        "basic"
    }
    fn kind(&self) -> &'static str {
        "basic"
    }
    fn info(&self) -> DeviceInfo {
        let ops = OpSet::of(&[Op::Read, Op::Write, Op::Flush]);
        DeviceInfo { ops, max_io_blocks: 24, loans: true, ..self.0.info() }
    }
    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(BasicChannel(self.0.open_channel(reactor)?, reactor.clone(), self.info())))
    }
}

impl Channel for BasicChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        assert!(io.nblocks <= self.2.max_io_blocks && self.2.ops.contains(io.op));
        let (channel, reactor) = (self.0.clone(), self.1.clone());
        IoFuture::steps(&self.1, async move {
            reactor.sleep_ns(1000).await;
            channel.submit(io).await
        })
    }
}

#[test]
fn a_device_that_only_reads_and_writes_small_pieces_serves_every_command() {
    let rig = Rig::empty(1, Config::default());
    rig.add(NQN, Arc::new(Basic(MemDevice::new("mem", 512, 2048, 2048).expect("memory"))));
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let data = pattern(8, 1 << 20);
    assert_eq!(queue.write(0, &data), Status::SUCCESS);
    assert_eq!(queue.read(0, 2048), data);
    queue.ok(plain(NvmOpcode::Verify, 1, 2047));
    let compare = |data: &[u8]| block_command(NvmOpcode::Compare, 100, data, false);
    let mut part = data[51200..51200 + 300 * 512].to_vec();
    assert_eq!(queue.status(compare(&part), &part), Status::SUCCESS);
    *part.last_mut().expect("bytes") ^= 1;
    assert_eq!(queue.status(compare(&part), &part), Status::COMPARE_FAILURE.dnr());
    queue.ok(plain(NvmOpcode::WriteZeroes, 7, 1000));
    let mut expected = data;
    expected[7 * 512..1007 * 512].fill(0);
    assert_eq!(queue.read(0, 2048), expected);
    let dsm = command::with_capsule_data(command::deallocate(1, 1), 16);
    assert_eq!(queue.status(dsm, &[0; 16]), Status::SUCCESS, "advice that is not taken");
    // Only the device could make it atomic.
    let refused = (Status::INVALID_OPCODE.dnr(), Status::ABORTED_FAILED_FUSED.dnr());
    assert_eq!(run_fused(queue, 0, &[0; 512], &[0; 512], true), refused);
    // Many writes at once: each has its data, whatever became of the receive buffer.
    for round in 0..20u64 {
        let blocks: Vec<Vec<u8>> = (0..30).map(|index| pattern(round * 100 + index, 4096)).collect();
        let commands: Vec<(Sqe, &[u8])> = blocks
            .iter()
            .enumerate()
            .map(|(index, data)| {
                let sqe = block_command(NvmOpcode::Write, index as u64 * 8, data, true);
                (command::with_cid(sqe, index as u16), &data[..])
            })
            .collect();
        assert!(answers_to(queue, &commands).iter().all(|(_, status)| status.is_success()));
        assert_eq!(queue.read(0, 240), blocks.concat());
    }
}

#[test]
fn device_failures_become_the_statuses_that_hosts_know() {
    let rig = Rig::empty(1, Config::default());
    let mem = Arc::new(MemDevice::new("mem", 512, 64, 64).expect("memory"));
    let device = Arc::new(ErrorDevice::new("error", mem, &[], 1).expect("valid"));
    rig.add(NQN, device.clone());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let cases = [
        (bdev::Status::WriteError, Status::WRITE_FAULT.dnr()),
        (bdev::Status::NoSpace, Status::CAPACITY_EXCEEDED.dnr()),
        (bdev::Status::ReadOnly, Status::NAMESPACE_WRITE_PROTECTED.dnr()),
        (bdev::Status::Aborted, Status::ABORT_REQUESTED),
        (bdev::Status::Gone, Status::NAMESPACE_NOT_READY),
        (bdev::Status::Os(base::Errno::ENOMEM), Status::WRITE_FAULT.dnr()),
    ];
    for (fails, status) in cases {
        device.set_rules(&[ErrorRule::always(&[Op::Write], Fault::Fail(fails))]).expect("valid");
        assert_eq!(queue.write(0, &[1; 512]), status);
    }
    for (fails, status) in [
        (bdev::Status::ReadError, Status::UNRECOVERED_READ_ERROR.dnr()),
        (bdev::Status::Corrupt, Status::GUARD_CHECK_ERROR.dnr()),
    ] {
        device.set_rules(&[ErrorRule::always(&[Op::Read], Fault::Fail(fails))]).expect("valid");
        let read = command::with_transport_data(plain(NvmOpcode::Read, 0, 1), 512);
        assert_eq!(queue.status(read, &[]), status);
    }
    device.set_rules(&[ErrorRule::always(&[Op::Flush], Fault::Fail(bdev::Status::WriteError))]).expect("valid");
    assert_eq!(queue.status(command::flush(1), &[]), Status::WRITE_FAULT.dnr());
    assert_eq!(queue.status(command::flush(u32::MAX), &[]), Status::WRITE_FAULT.dnr());
    device.set_rules(&[]).expect("valid");
    assert_eq!(queue.read(0, 1), [0; 512]);
}

#[test]
fn several_r2ts_are_answered_in_any_order_and_in_odd_pieces() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    const LEN: usize = 96 << 10;
    let mut r2ts = Vec::new();
    for cid in 0..8u16 {
        let sqe = block_command(NvmOpcode::Write, u64::from(cid) * 192, &[0; LEN], false);
        queue.submit(&command::with_cid(sqe, cid), &[]);
        r2ts.push(queue.r2t());
    }
    r2ts.reverse();
    // Interleaved, in pieces of different lengths, some of a single dword.
    let mut sent = vec![0usize; r2ts.len()];
    let pieces = [4, 4092, 20, 60_000, 1000, 7 * 4096, 12];
    let mut turn = 0;
    while sent.iter().any(|sent| *sent < LEN) {
        let index = turn % r2ts.len();
        let len = pieces[turn % pieces.len()].min(LEN - sent[index]);
        turn += 1;
        if len == 0 {
            continue;
        }
        let data = pattern(u64::from(r2ts[index].cccid), LEN);
        let (from, to) = (sent[index], sent[index] + len);
        let bytes = queue.h2c(&r2ts[index], from as u32, &data[from..to], to == LEN);
        // The stream itself is cut at odd places, too.
        let cut = bytes.len() * (turn % 5) / 5;
        queue.send(&bytes[..cut]);
        queue.send(&bytes[cut..]);
        sent[index] = to;
    }
    for _ in 0..8 {
        assert!(queue.response().status().is_success());
    }
    for cid in 0..8u64 {
        assert_eq!(queue.read(cid * 192, 192), pattern(cid, LEN));
    }
}

#[test]
fn a_command_identifier_that_waits_for_data_is_not_taken_twice() {
    let rig = Rig::new(1, Config::default());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let data = pattern(3, 16 << 10);
    let sqe = command::with_cid(block_command(NvmOpcode::Write, 0, &data, false), 5);
    queue.submit(&sqe, &[]);
    let r2t = queue.r2t();
    queue.submit(&sqe, &[]);
    let cqe = queue.response();
    assert_eq!((cqe.cid.get(), cqe.status()), (5, Status::COMMAND_ID_CONFLICT.dnr()));
    let bytes = queue.h2c(&r2t, 0, &data, true);
    queue.send(&bytes);
    assert!(queue.response().status().is_success());
    assert_eq!(queue.read(0, 32), data);
}

#[test]
fn admin_commands_take_and_give_bounded_data() {
    let rig = Rig::new(2, Config::default());
    let mut host = rig.host(0);
    let admin = &mut host.admin;
    // A log page as long as the transfer limit: zeroes behind its end.
    let (_, log) = admin.ok(command::get_log_page(LogPage::Smart, 0, 1 << 20, false));
    assert_eq!(log.len(), 1 << 20);
    assert!(log[512..].iter().all(|byte| *byte == 0));
    let huge = command::get_log_page(LogPage::Smart, 0, !3, false);
    assert_eq!(admin.status(huge, &[]), Status::INVALID_FIELD.dnr());
    let more_than_sgl = command::with_transport_data(command::get_log_page(LogPage::Smart, 0, 4096, false), 512);
    assert_eq!(admin.status(more_than_sgl, &[]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    let in_capsule = command::with_capsule_data(command::identify(Cns::Controller, 0, 0), 4096);
    assert_eq!(admin.status(in_capsule, &[0; 4096]), Status::SGL_TYPE_INVALID.dnr());
    let behavior = command::set_feature(Feature::HostBehaviorSupport, 0);
    assert_eq!(admin.status(command::with_transport_data(behavior, 512), &[0; 512]), Status::SUCCESS);
    assert_eq!(admin.status(command::with_capsule_data(behavior, 512), &[0; 512]), Status::SUCCESS);
    let much = command::with_transport_data(behavior, 1 << 20);
    assert_eq!(admin.status(much, &[]), Status::DATA_SGL_LENGTH_INVALID.dnr());
    // Firmware download: its data is never asked for.
    let firmware = command::with_transport_data(Sqe::new(0x11, 0, 0), 1 << 20);
    assert_eq!(admin.status(firmware, &[]), Status::INVALID_OPCODE.dnr());
    // Many large answers at once.
    for cid in 0..30 {
        let sqe = command::with_cid(command::get_log_page(LogPage::Smart, 0, 1 << 20, false), cid);
        admin.submit(&sqe, &[]);
    }
    for _ in 0..30 {
        let pdu = admin.recv().expect("alive");
        assert!(matches!(pdu.header, Header::C2hData(header) if header.success) && pdu.data.len() == 1 << 20);
    }
}

#[test]
fn two_controllers_see_one_namespace_and_end_apart() {
    let rig = Rig::new(2, Config::default());
    let (mut one, mut two) = (rig.host(1), rig.host(1));
    assert_ne!(one.cntlid, two.cntlid);
    one.io[0].write(0, &pattern(1, 4096));
    assert_eq!(two.io[0].read(0, 8), pattern(1, 4096));
    drop(one);
    rig.wait_until("one controller is left", |home| home.hosts().len() == 1);
    assert_eq!(two.io[0].read(0, 8), pattern(1, 4096));
}

#[test]
fn a_reset_ends_the_io_queues_answers_event_requests_and_the_controller_can_be_used_again() {
    let rig = Rig::new(2, Config::default());
    let mut host = rig.host(2);
    for round in 0..20 {
        for cid in 500..504 {
            host.admin.submit(&command::with_cid(command::async_event_request(), cid), &[]);
        }
        // A command under way: its data never comes.
        if let Some(queue) = host.io.first_mut() {
            queue.submit(&block_command(NvmOpcode::Write, 0, &[0; 16384], false), &[]);
            queue.r2t();
        }
        let cid = host.admin.cid();
        let disable = command::with_cid(command::set_configuration(Configuration(0)), cid);
        host.admin.submit(&disable, &[]);
        for _ in 0..5 {
            let cqe = host.admin.response();
            assert_eq!(cqe.status().is_success(), cqe.cid.get() == cid, "{round}");
        }
        host.io.iter_mut().for_each(Wire::expect_end);
        host.wait_disabled();
        host.admin.ok(command::set_configuration(Configuration::ENABLE));
        host.io.clear();
        let mut queue = Wire::open(rig.address, TransportOptions::host());
        assert!(queue.connect(NQN, HOST, 1, Some(host.cntlid), 32, 0).status().is_success());
        assert_eq!(queue.read(0, 1), [0; 512]);
        host.io.push(queue);
    }
}

#[test]
fn a_disconnected_queue_closes_and_its_number_is_free_again() {
    let rig = Rig::new(2, Config::default());
    let mut host = rig.host(2);
    let mut queue = host.io.remove(0);
    queue.ok(command::disconnect());
    queue.expect_end();
    let mut again = Wire::open(rig.address, TransportOptions::host());
    assert!(again.connect(NQN, HOST, 1, Some(host.cntlid), 32, 0).status().is_success());
    assert_eq!(again.read(0, 1), [0; 512]);
    assert_eq!(host.admin.status(command::disconnect(), &[]), Status::INVALID_QUEUE_TYPE.dnr());
    assert_eq!(host.io[0].read(0, 1), [0; 512]);
}

#[test]
fn a_shutdown_flushes_and_says_so() {
    let rig = Rig::new(2, Config::default());
    let mut host = rig.host(1);
    host.io[0].write(0, &pattern(1, 512));
    host.admin.ok(command::set_configuration(Configuration::ENABLE.with_shutdown(1)));
    loop {
        let (status, _) = host.admin.ok(command::get_status());
        if status >> 2 & 3 == 2 {
            break;
        }
    }
}
