//! A target that stops while commands are under way.

use crate::rig::*;
use bdev::{Delay, DelayDevice, Delays, MemDevice};
use nvme::host::command;
use nvme::spec::Status;
use nvme::spec::opcode::NvmOpcode;
use nvme::spec::sqe::BlockCommand;
use nvme::tcp::Header;
use nvme::tcp_target::Config;
use std::sync::Arc;

#[test]
fn what_devices_have_is_answered_before_its_connection_ends() {
    let rig = Rig::empty(1, Config::default());
    let memory = Arc::new(MemDevice::new("mem", 512, BLOCKS, BLOCKS).expect("memory"));
    let for_ever = Delays { write: Delay { fixed_ns: u64::MAX / 2, jitter_ns: 0 }, ..Delays::default() };
    let device = Arc::new(DelayDevice::new("slow", memory, for_ever, 1));
    rig.add(NQN, device.clone());
    let mut host = rig.host(1);
    let queue = &mut host.io[0];
    let data = pattern(1, 4096);
    for cid in [500, 501] {
        let write = command::with_cid(block_command(NvmOpcode::Write, u64::from(cid) * 8, &data, true), cid);
        queue.submit(&write, &data);
    }
    // What is answered here came after them, so they are in the device.
    let beyond = command::blocks(NvmOpcode::Verify, 1, &BlockCommand::plain(BLOCKS, 1));
    assert_eq!(queue.status(beyond, &[]), Status::LBA_OUT_OF_RANGE.dnr());
    rig.with(|home| home.close());
    host.admin.expect_end();
    device.set(Delays::default());
    let queue = &mut host.io[0];
    let mut answered = Vec::new();
    while let Some(pdu) = queue.recv() {
        let Header::CapsuleResp(cqe) = pdu.header else { panic!("an answer") };
        assert_eq!(cqe.status(), Status::SUCCESS);
        answered.push(cqe.cid.get());
    }
    answered.sort_unstable();
    assert_eq!(answered, [500, 501]);
    rig.wait_until("no connection is left", |home| home.connections() == 0);
}
