//! The head of a parity device: the same on all members in what is read of it, whichever of them is lost.

use crate::common::array::*;
use crate::common::*;
use bdev::{BlockDevice, ErrorDevice, ErrorRule, Fault, Io, Lba, Op, ParityDevice, ParityOptions, Status};
use std::sync::Arc;

#[test]
fn the_heads_are_equal_after_any_crash_whichever_member_is_lost_then() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for loser in 0..3 {
            let (devices, members) = faulty(3);
            let parity = open(&inner, &members, create()).await;
            fill(&inner, &parity, 4, 1).await;
            parity.settle(&inner).await.unwrap();
            // Nobody was told that this was done, and one member lost it with the power.
            devices[loser]
                .set_rules(&[ErrorRule { lba: Lba(2), ..ErrorRule::always(&[Op::Write], Fault::Lose) }])
                .unwrap();
            assert_eq!(write(&inner, &parity, 7, 1, 2).await, Status::Ok);
            drop(parity);
            devices[loser].set_rules(&[]).unwrap();
            let parity = open(&inner, &members, ParityOptions::default()).await;
            let seen = read(&inner, &parity, 7, 1).await.unwrap();
            for bad in &devices {
                bad.set_rules(&[fails(&[Op::Read], Status::Gone)]).unwrap();
                assert_eq!(read(&inner, &parity, 7, 1).await.unwrap(), seen);
                bad.set_rules(&[]).unwrap();
            }
        }
    });
}

#[test]
fn nobody_waits_for_all_of_the_head_after_a_crash_and_what_is_read_is_equal() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        // Four parts of 64 blocks.
        let large = ParityOptions { head_bytes: 1 << 20, ..create() };
        let left = |parity: &ParityDevice| parity.status().head_uncompared_bytes >> 18;
        for (loser, with) in [(0, "reads"), (1, "writes"), (2, "time"), (0, "versions"), (1, "verification")] {
            let device = |n| Arc::new(ErrorDevice::new(&format!("d{n}"), mem(&format!("m{n}"), 500), &[], 1).unwrap());
            let devices: Vec<_> = (0..3).map(device).collect();
            let members: Members = devices.iter().map(|device| Some(device.clone() as Arc<dyn BlockDevice>)).collect();
            let parity = open(&inner, &members, large.clone()).await;
            for lba in 0..256 {
                assert_eq!(write(&inner, &parity, lba, 1, 1).await, Status::Ok);
            }
            assert_eq!(left(&parity), 0, "what is written is equal");
            parity.settle(&inner).await.unwrap();
            devices[loser]
                .set_rules(&[ErrorRule { lba: Lba(2), ..ErrorRule::always(&[Op::Write], Fault::Lose) }])
                .unwrap();
            let lost = [7, 100, 101, 255];
            for lba in lost {
                assert_eq!(write(&inner, &parity, lba, 1, 2).await, Status::Ok);
            }
            drop(parity);
            devices[loser].set_rules(&[]).unwrap();
            let parity = Arc::new(open(&inner, &members, ParityOptions::default()).await);
            assert_eq!(left(&parity), 4);
            let begin = with == "time";
            if begin {
                parity.compare_in_background(&inner);
                while left(&parity) > 0 {
                    inner.sleep_ns(1_000_000).await;
                }
            }
            for (lba, parts) in [(7, 3), (100, 2), (101, 2), (255, 1)] {
                match with {
                    "writes" => assert_eq!(write(&inner, &*parity, lba - 2, 1, 1).await, Status::Ok),
                    "versions" => drop(read_version(&parity, &inner, lba, 1).await.unwrap()),
                    "verification" => {
                        let channel = parity.open_channel(&inner).unwrap();
                        assert_eq!(channel.submit(Io::new(Op::Verify, Lba(lba), 1)).await.status, Status::Ok);
                    }
                    _ => {}
                }
                let seen = read(&inner, &*parity, lba, 1).await.unwrap();
                assert_eq!(left(&parity), if begin { 0 } else { parts }, "{with} of {lba}");
                for bad in &devices {
                    bad.set_rules(&[fails(&[Op::Read], Status::Gone)]).unwrap();
                    assert_eq!(read(&inner, &*parity, lba, 1).await.unwrap(), seen, "{with} of {lba}");
                    bad.set_rules(&[]).unwrap();
                }
            }
            // Over the border of two parts, one of which nobody has looked at.
            assert!(read(&inner, &*parity, 190, 4).await.is_ok());
            assert_eq!(left(&parity), 0);
            parity.close(&inner).await.unwrap();
            drop(parity);
            assert_eq!(left(&open(&inner, &members, ParityOptions::default()).await), 0, "it was closed");
        }
    });
}

#[test]
fn a_large_head_that_is_not_compared_yet_does_not_hold_up_the_end() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let members: Members = (0..3).map(|n| Some(mem(&format!("m{n}"), 80 << 8))).collect();
        let large = ParityOptions { head_bytes: 70 << 20, ..create() };
        let parity = open(&inner, &members, large).await;
        assert_eq!(write(&inner, &parity, 9000, 1, 1).await, Status::Ok);
        parity.close(&inner).await.unwrap();
        assert_eq!(parity.status().head_uncompared_bytes, (70 << 20) - (256 << 10), "more than is worth the wait");
        drop(parity);
        // So it is not called equal. What is compared in the background until the end is not compared once more.
        let parity = Arc::new(open(&inner, &members, ParityOptions::default()).await);
        assert_eq!(parity.status().head_uncompared_bytes, 70 << 20);
        parity.compare_in_background(&inner);
        while parity.status().head_uncompared_bytes > 30 << 20 {
            inner.sleep_ns(1_000_000).await;
        }
        parity.close(&inner).await.unwrap();
        assert_eq!(parity.status().head_uncompared_bytes, 0);
        drop(parity);
        let parity = open(&inner, &members, ParityOptions::default()).await;
        assert_eq!(parity.status().head_uncompared_bytes, 0);
        assert_eq!(read(&inner, &parity, 9000, 1).await, expected(9000, 1, 1));
    });
}
