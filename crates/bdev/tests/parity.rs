//! What a parity device promises when members fail, vanish, return and are replaced.

use crate::common::array::*;
use crate::common::*;
use MemberState::{Failed, InSync, Rebuilding};
use bdev::{
    BlockDevice, ChecksumOptions, Delays, DeviceError, DeviceSpec, ErrorDevice, ErrorRule, Extent, Io, Lba, MemDevice,
    MemberState, MirrorOptions, Op, ParityDevice, ParityOptions, Status, When::Nth,
};
use reactor::SgList;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

#[test]
fn every_number_of_members_stores_and_computes_what_any_one_of_them_has() {
    let reactor = reactor();
    for count in [3, 4, 5, 6, 9, 16] {
        let inner = reactor.clone();
        reactor.block_on(async move {
            let (devices, members) = faulty(count);
            let parity = open(&inner, &members, create()).await;
            let info = parity.info();
            assert_eq!(info.rows.unwrap().blocks as usize, 2 * (count - 1));
            assert!(info.max_io_blocks.is_multiple_of(info.rows.unwrap().blocks));
            fill(&inner, &parity, 20, 1).await;
            check(&inner, &parity, 20, 1).await;
            for bad in &devices {
                bad.set_rules(&[fails(&[Op::Read], Status::Gone)]).unwrap();
                check(&inner, &parity, 20, 1).await;
                bad.set_rules(&[]).unwrap();
            }
            assert_eq!(states(&parity), vec![InSync; count]);
            // Several rows at once, as stripes of bands are written.
            let rows = info.rows.unwrap();
            let blocks = (info.max_io_blocks / rows.blocks).min(6) * rows.blocks;
            assert_eq!(write(&inner, &parity, rows.start + rows.blocks as u64, blocks, 2).await, Status::Ok);
            devices[1].set_rules(&[fails(&[Op::Read], Status::ReadError)]).unwrap();
            let lba = rows.start + rows.blocks as u64;
            assert_eq!(read(&inner, &parity, lba, blocks).await, expected(lba, blocks, 2));
        });
    }
}

#[test]
fn only_whole_rows_are_written_behind_the_head() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (_, members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        let rows = parity.info().rows.unwrap();
        assert_eq!((rows.start, rows.blocks), (16, 6));
        for (lba, nblocks) in [(15, 2), (16, 1), (16, 5), (17, 6), (16, 7), (15, 7)] {
            assert_eq!(write(&inner, &parity, lba, nblocks, 1).await, Status::Invalid, "{nblocks} at {lba}");
        }
        assert_eq!(write(&inner, &parity, 3, 13, 1).await, Status::Ok);
        assert_eq!(write(&inner, &parity, 22, 12, 1).await, Status::Ok);
        let channel = parity.open_channel(&inner).unwrap();
        assert_eq!(channel.submit(Io::new(Op::Unmap, Lba(16), 6)).await.status, Status::Ok);
        assert_eq!(channel.submit(Io::new(Op::Unmap, Lba(16), 5)).await.status, Status::Invalid);
        assert_eq!(channel.submit(Io::new(Op::Unmap, Lba(0), 6)).await.status, Status::Invalid);
        let end = parity.info().blocks;
        assert_eq!(write(&inner, &parity, end - 6, 12, 1).await, Status::OutOfRange);
    });
}

#[test]
fn a_flush_of_the_device_itself_that_fails_on_two_members_is_told_to_each_user_once() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        let users = [(); 2].map(|()| parity.open_channel(&inner).unwrap());
        fill(&inner, &parity, 12, 1).await;
        for bad in &devices[1..3] {
            bad.set_rules(&[ErrorRule { when: Nth(1), ..fails(&[Op::Flush], Status::WriteError) }]).unwrap();
        }
        assert!(parity.settle(&inner).await.is_err());
        for user in &users {
            assert_eq!(user.submit(Io::flush()).await.status, Status::WriteError, "what was written may be lost");
            assert_eq!(user.submit(Io::flush()).await.status, Status::Ok);
        }
        assert_eq!(states(&parity), vec![InSync; 4], "without two of them there would be nothing");
        check(&inner, &parity, 12, 1).await;
    });
}

#[test]
fn a_member_that_misses_a_write_is_failed_before_the_write_is_acknowledged_and_never_read_again() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for bad in 0..4 {
            for op in [Op::Write, Op::Flush] {
                let (devices, members) = faulty(4);
                let parity = open(&inner, &members, create()).await;
                fill(&inner, &parity, 12, 1).await;
                devices[bad].set_rules(&[fails(&[op], Status::WriteError)]).unwrap();
                let channel = parity.open_channel(&inner).unwrap();
                assert_eq!(channel.submit(Io::flush()).await.status, Status::Ok);
                fill(&inner, &parity, 12, 2).await;
                assert_eq!(states(&parity)[bad], Failed, "member {bad}, {op:?}");
                check(&inner, &parity, 12, 2).await;
                // Everything comes back: the old member is known to be behind, and not read.
                drop((channel, parity));
                devices[bad].set_rules(&[]).unwrap();
                let parity = open(&inner, &members, ParityOptions::default()).await;
                assert_eq!(states(&parity)[bad], Failed);
                assert!(parity.status().degraded);
                check(&inner, &parity, 12, 2).await;
                // And together with one of the others it is not enough.
                drop(parity);
                let mut fewer = members.clone();
                fewer[(bad + 1) % 4] = None;
                let why = refusal(&inner, &fewer, ParityOptions::default()).await;
                assert!(why.contains("lack data") && why.contains(&format!("'d{bad}'")), "{why}");
            }
        }
    });
}

#[test]
fn two_members_are_never_given_up_and_what_needs_both_is_an_error() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 12, 1).await;
        devices[0].set_rules(&[fails(&[Op::Write], Status::WriteError)]).unwrap();
        devices[2].set_rules(&[fails(&[Op::Write], Status::WriteError)]).unwrap();
        assert_eq!(write(&inner, &parity, 16, 6, 2).await, Status::WriteError);
        assert_eq!(write(&inner, &parity, 3, 1, 2).await, Status::WriteError);
        assert_eq!(states(&parity), [InSync; 4]);
        devices[2].set_rules(&[]).unwrap();
        // What is read of the head after a write that failed does not change any more.
        let seen = read(&inner, &parity, 3, 1).await.unwrap();
        assert_eq!(write(&inner, &parity, 16, 6, 3).await, Status::Ok);
        assert_eq!(states(&parity), [Failed, InSync, InSync, InSync]);
        for other in 1..4 {
            let rules = |other: usize, rules: &[ErrorRule]| devices[other].set_rules(rules).unwrap();
            rules(other, &[fails(&[Op::Read], Status::ReadError)]);
            assert_eq!(read(&inner, &parity, 3, 1).await.unwrap(), seen);
            let all: Vec<_> = [22, 24, 26].map(|lba| lba).to_vec();
            let mut errors = 0;
            for lba in all {
                match read(&inner, &parity, lba, 2).await {
                    Ok(found) => assert_eq!(Ok(found), expected(lba, 2, 1)),
                    Err(Status::ReadError | Status::Gone) => errors += 1,
                    Err(status) => panic!("{status}"),
                }
            }
            assert!(errors > 0, "what two members are needed for was read without them");
            rules(other, &[]);
        }
        // A write that a second member refuses ends with its error, and the member stays.
        devices[3].set_rules(&[fails(&[Op::Write], Status::WriteError)]).unwrap();
        assert_eq!(write(&inner, &parity, 16, 6, 4).await, Status::WriteError);
        assert_eq!(states(&parity), [Failed, InSync, InSync, InSync]);
        // The members' states are on all that are left, and nothing of a third one is needed to see it.
        drop(parity);
        devices[3].set_rules(&[]).unwrap();
        let parity = open(&inner, &members, ParityOptions::default()).await;
        assert_eq!(states(&parity), [Failed, InSync, InSync, InSync]);
    });
}

#[test]
fn blocks_that_cannot_be_read_or_are_rotten_are_computed_and_rewritten() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 12, 1).await;
        for status in [Status::ReadError, Status::Corrupt] {
            // Twice: what can be read when it is tried again is not computed.
            let body = ErrorRule { lba: Lba(2 + 16), blocks: 24, when: Nth(1), ..fails(&[Op::Read], status) };
            for bad in &devices {
                bad.set_rules(&[body]).unwrap();
                check(&inner, &parity, 12, 1).await;
            }
            assert_eq!(parity.status().reconstructed_reads, if status == Status::ReadError { 0 } else { 4 });
            for bad in &devices {
                bad.set_rules(&[body, body]).unwrap();
                check(&inner, &parity, 12, 1).await;
                bad.set_rules(&[]).unwrap();
            }
        }
        let members = parity.members();
        assert!(members.iter().all(|member| member.read_errors == 4 && member.repairs == 2), "{members:?}");
        assert!(parity.status().reconstructed_reads == 8 && !parity.status().degraded);
        // Two members that have lost blocks of the same row, in other places.
        let at = |lba: u64| ErrorRule { lba: Lba(2 + 16 + lba), blocks: 1, ..fails(&[Op::Read], Status::ReadError) };
        devices[0].set_rules(&[at(0), at(3), at(4)]).unwrap();
        devices[1].set_rules(&[at(1), at(2), at(5)]).unwrap();
        check(&inner, &parity, 12, 1).await;
        devices[0].set_rules(&[]).unwrap();
        // A member that can neither be read nor written there has no use.
        let never = [fails(&[Op::Read], Status::ReadError), fails(&[Op::Write], Status::WriteError)];
        devices[1].set_rules(&never).unwrap();
        check(&inner, &parity, 12, 1).await;
        assert_eq!(states(&parity), [InSync, Failed, InSync, InSync]);
    });
}

#[test]
fn a_member_put_back_from_a_copy_is_not_believed_and_is_filled_anew() {
    for (stale, was_clean) in [(0, true), (0, false), (2, true), (2, false)] {
        let reactor = reactor();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let devices = [0, 1, 2].map(|n| mem(&format!("m{n}"), 200));
            let members: Members = devices.iter().cloned().map(Some).collect();
            let device = open(&inner, &members, create()).await;
            assert_eq!(write(&inner, &device, 3, 1, 1).await, Status::Ok);
            if was_clean {
                device.settle(&inner).await.unwrap();
            }
            drop(device);
            let copy = copy_of(&inner, &devices[stale]).await;
            let device = open(&inner, &members, ParityOptions::default()).await;
            assert_eq!(states(&device), [MemberState::InSync; 3], "a usual opening");
            assert_eq!(write(&inner, &device, 3, 1, 2).await, Status::Ok);
            drop(device);
            put_back(&inner, &devices[stale], &copy).await;
            let device = open(&inner, &members, ParityOptions::default()).await;
            assert_eq!(states(&device)[stale], MemberState::Rebuilding, "member {stale}");
            let older = device.members()[stale].older.expect("it says why");
            assert!(older.generation + 1 < older.newest, "{older:?}");
            for _ in 0..4 {
                assert_eq!(read(&inner, &device, 3, 1).await, expected(3, 1, 2));
            }
            // The same copy once more, in the midst of being filled anew.
            assert_eq!(write(&inner, &device, 3, 1, 3).await, Status::Ok);
            drop(device);
            put_back(&inner, &devices[stale], &copy).await;
            let device = open(&inner, &members, ParityOptions::default()).await;
            assert_ne!(states(&device)[stale], MemberState::InSync);
            assert_eq!(read(&inner, &device, 3, 1).await, expected(3, 1, 3));
            if states(&device)[stale] == MemberState::Failed {
                assert!(device.members()[stale].older.is_some());
                device.join(&inner, stale, None, false).await.unwrap();
            }
            device.rebuild(&inner).await.unwrap();
            assert_eq!(states(&device), [MemberState::InSync; 3]);
            assert_eq!(device.members()[stale].older, None);
            drop(device);
            let mut without = members.clone();
            without[(stale + 1) % 3] = None;
            let device = open(&inner, &without, ParityOptions::default()).await;
            assert_eq!(read(&inner, &device, 3, 1).await, expected(3, 1, 3), "computed from it");
        });
    }
}

#[test]
fn a_member_is_replaced_while_the_device_is_used_and_then_another_one() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (_, mut members) = faulty(4);
        let parity = Arc::new(open(&inner, &members, create()).await);
        fill(&inner, &parity, 20, 1).await;
        drop(parity);
        for (round, lost) in [(2, 1), (3, 3), (4, 0)] {
            members[lost] = None;
            let parity = Arc::new(open(&inner, &members, ParityOptions::default()).await);
            assert_eq!(states(&parity)[lost], Failed);
            check(&inner, &parity, 20, round - 1).await;
            fill(&inner, &parity, 10, round).await;
            let fresh = mem(&format!("new{lost}"), 300);
            parity.join(&inner, lost, Some(fresh.clone()), false).await.unwrap();
            assert_eq!(states(&parity)[lost], Rebuilding);
            assert!(parity.join(&inner, (lost + 1) % 4, Some(mem("other", 300)), true).await.is_err());
            let info = parity.info().rows.unwrap();
            // Before, beside and behind the watermark.
            let (work, worker, ended) = (parity.clone(), inner.clone(), Rc::new(Cell::new(false)));
            let is_done = ended.clone();
            inner.spawn(async move {
                for row in 10..20 {
                    let lba = info.start + row * info.blocks as u64;
                    assert_eq!(write(&worker, &*work, lba, info.blocks, round).await, Status::Ok);
                }
                ended.set(true);
            });
            parity.rebuild(&inner).await.unwrap();
            while !is_done.get() {
                inner.sleep_ns(1_000).await;
            }
            assert_eq!(states(&parity), [InSync; 4]);
            assert!(!parity.status().degraded && parity.status().rebuild.is_none());
            check(&inner, &parity, 20, round).await;
            members[lost] = Some(fresh);
        }
    });
}

#[test]
fn it_grows_with_its_members_while_all_are_in_sync() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let disk = |n: usize| Arc::new(MemDevice::new(&format!("m{n}"), 4096, 200, 1000).unwrap());
        let disks: Vec<_> = (0..4).map(disk).collect();
        let mut members: Members = disks.iter().map(|disk| Some(disk.clone() as Arc<dyn BlockDevice>)).collect();
        let parity = open(&inner, &members, create()).await;
        let (before, row) = (parity.info().blocks, parity.info().rows.unwrap().blocks as u64);
        fill(&inner, &parity, 20, 1).await;
        for (blocks, cause) in [(before - 1, "does not shrink"), (0, "does not shrink"), (u64::MAX, "more than")] {
            let refused = parity.resize(&inner, blocks).await.unwrap_err().to_string();
            assert!(refused.contains(cause), "{refused}");
        }
        // Members that cannot grow so far: nothing changes.
        assert!(parity.resize(&inner, before * 100).await.is_err());
        assert_eq!(parity.info().blocks, before);
        // Of a part of a row nothing is used.
        parity.resize(&inner, before + 10 * row + row / 2).await.unwrap();
        assert_eq!(parity.info().blocks, before + 10 * row);
        check(&inner, &parity, 20, 1).await;
        let last = before + 9 * row;
        assert_eq!(write(&inner, &parity, last, row as u32, 7).await, Status::Ok);
        assert_eq!(write(&inner, &parity, last + row, row as u32, 7).await, Status::OutOfRange);
        // The members themselves have grown: as a disk does.
        for disk in &disks[1..] {
            disk.resize(&inner, 600).await.unwrap();
        }
        parity.refresh(&inner).await.unwrap();
        let between = parity.info().blocks;
        disks[0].resize(&inner, 600).await.unwrap();
        parity.refresh(&inner).await.unwrap();
        let grown = parity.info().blocks;
        assert!(between >= before + 10 * row && grown > between + 50 * row, "{before} {between} {grown}");
        let last = grown - row;
        assert_eq!(write(&inner, &parity, last, row as u32, 8).await, Status::Ok);
        drop(parity);
        members[2] = None;
        let parity = open(&inner, &members, ParityOptions::default()).await;
        assert_eq!(parity.info().blocks, grown);
        assert_eq!(read(&inner, &parity, last, row as u32).await, expected(last, row as u32, 8));
        check(&inner, &parity, 20, 1).await;
        let refused = parity.resize(&inner, grown + row).await.unwrap_err();
        assert!(matches!(refused, DeviceError::State { .. }), "{refused:?}");
        let refused = refused.to_string();
        assert!(refused.contains("member 2 has failed: replace it"), "{refused}");
        parity.refresh(&inner).await.unwrap();
        // A replacement has to have room for what it has become.
        assert!(parity.join(&inner, 2, Some(mem("small", 300)), false).await.is_err());
        parity.join(&inner, 2, Some(mem("new", 700)), false).await.unwrap();
        let refused = parity.resize(&inner, grown + row).await.unwrap_err().to_string();
        assert!(refused.contains("member 'new' is being rebuilt"), "{refused}");
        parity.rebuild(&inner).await.unwrap();
        check(&inner, &parity, 20, 1).await;
        assert_eq!(read(&inner, &parity, last, row as u32).await, expected(last, row as u32, 8));
    });
}

#[test]
fn a_rebuild_goes_on_where_it_was_recorded() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(4);
        let noting = ParityOptions { rebuild_note_bytes: 1, ..ParityOptions::default() };
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 80, 1).await;
        drop(parity);
        let mut without = members.clone();
        without[2] = None;
        let parity = open(&inner, &without, noting.clone()).await;
        let fresh = Arc::new(ErrorDevice::new("fresh", mem("fresh", 200), &[], 1).unwrap());
        parity.join(&inner, 2, Some(fresh.clone()), false).await.unwrap();
        // A read error of another member ends it half way, since that member stops answering at all.
        let rule = ErrorRule { lba: Lba(2 + 16 + 100), ..fails(&[Op::Read], Status::Gone) };
        devices[0].set_rules(&[rule]).unwrap();
        assert!(parity.rebuild(&inner).await.is_err());
        devices[0].set_rules(&[]).unwrap();
        let half = parity.status().rebuild.unwrap();
        assert!(half.done_bytes > 0 && half.done_bytes < half.bytes, "{half:?}");
        drop(parity);
        without[2] = Some(fresh.clone());
        let parity = open(&inner, &without, noting).await;
        assert_eq!(parity.status().rebuild.unwrap().done_bytes, half.done_bytes);
        check(&inner, &parity, 80, 1).await;
        parity.rebuild(&inner).await.unwrap();
        devices[0].set_rules(&[fails(&[Op::Read], Status::Gone)]).unwrap();
        check(&inner, &parity, 80, 1).await;
        // The one that was replaced is not taken for what it was.
        drop(parity);
        devices[0].set_rules(&[]).unwrap();
        let parity = open(&inner, &members, ParityOptions::default()).await;
        assert_eq!(states(&parity), [InSync, InSync, Failed, InSync]);
        check(&inner, &parity, 80, 1).await;
    });
}

#[test]
fn a_rebuild_keeps_to_its_rate_and_says_how_fast_it_is() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (_, mut members) = faulty(3);
        let slow = ParityOptions { rebuild_rate: 4 << 20, ..ParityOptions::default() };
        drop(open(&inner, &members, create()).await);
        members[1] = None;
        let parity = Arc::new(open(&inner, &members, slow).await);
        parity.join(&inner, 1, Some(mem("fresh", 200)), false).await.unwrap();
        let bytes = parity.status().rebuild.unwrap().bytes;
        let begun = inner.clock_ns();
        parity.rebuild_in_background(&inner);
        let mut rates = Vec::new();
        while let Some(rebuild) = parity.status().rebuild {
            rates.push(rebuild.bytes_per_s);
            inner.sleep_ns(5_000_000).await;
        }
        let seconds = (inner.clock_ns() - begun) as f64 / 1e9;
        assert!(bytes as f64 / seconds < 4.4e6, "{bytes} bytes in {seconds} s");
        assert!(rates.iter().any(|rate| (1 << 20..=5 << 20).contains(rate)), "{rates:?}");
        assert_eq!(states(&parity), [InSync; 3]);
    });
}

#[test]
fn a_rebuild_below_its_rate_leaves_turns_to_others() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        // Members that answer at once, and a rate that is never reached: nothing makes it wait.
        let mut members: Vec<_> = (0..3).map(|index| Some(mem(&format!("member {index}"), 8192))).collect();
        let fast = ParityOptions { rebuild_rate: 1 << 50, ..ParityOptions::default() };
        drop(open(&inner, &members, create()).await);
        members[1] = None;
        let parity = Arc::new(open(&inner, &members, fast).await);
        parity.join(&inner, 1, Some(mem("fresh", 8192)), false).await.unwrap();
        let steps = parity.status().rebuild.unwrap().bytes / (256 << 10);
        assert!(steps > 50, "{steps}");
        parity.rebuild_in_background(&inner);
        let mut turns = 0;
        while parity.status().rebuild.is_some() {
            inner.yield_now().await;
            turns += 1;
        }
        assert!(turns >= steps / 2, "{turns} turns in {steps} steps");
        assert_eq!(states(&parity), [InSync; 3]);
    });
}

#[test]
fn a_rebuild_loses_nothing_to_what_passes_and_goes_on_by_itself() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, mut members) = faulty(3);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 40, 1).await;
        drop(parity);
        members[1] = None;
        let parity = open(&inner, &members, ParityOptions::default()).await;
        parity.join(&inner, 1, Some(mem("fresh", 200)), false).await.unwrap();
        let late = |status| ErrorRule { lba: Lba(2 + 16 + 20), ..fails(&[Op::Read], status) };
        for status in [Status::Os(base::Errno::ENOMEM), Status::Aborted, Status::Invalid] {
            devices[0].set_rules(&[late(status)]).unwrap();
            assert!(parity.rebuild(&inner).await.is_err());
            assert_eq!(parity.status().rebuild.unwrap().halted, Some(status));
        }
        // Nor to what can be read after all.
        devices[0].set_rules(&[ErrorRule { when: Nth(1), ..late(Status::ReadError) }]).unwrap();
        devices[2].set_rules(&[ErrorRule { when: Nth(1), ..late(Status::Gone) }]).unwrap();
        parity.rebuild_in_background(&inner);
        while parity.status().rebuild.is_some() {
            inner.sleep_ns(10_000_000).await;
        }
        assert_eq!((parity.status().lost_blocks, states(&parity)), (0, vec![InSync; 3]));
        check(&inner, &parity, 40, 1).await;
    });
}

#[test]
fn taking_in_a_member_can_be_repeated_when_it_failed_half_way() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, mut members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 8, 1).await;
        drop(parity);
        members[1] = None;
        let parity = open(&inner, &members, ParityOptions::default()).await;
        let fresh = Arc::new(ErrorDevice::new("fresh", mem("fresh", 200), &[], 1).unwrap());
        for bad in [&devices[3], &fresh] {
            bad.set_rules(&[fails(&[Op::Write], Status::WriteError)]).unwrap();
            assert!(parity.join(&inner, 1, Some(fresh.clone()), true).await.is_err());
            assert_eq!(states(&parity), [InSync, Failed, InSync, InSync]);
            assert_eq!((parity.members()[1].name.clone(), Arc::strong_count(&fresh)), (None, 1));
            bad.set_rules(&[]).unwrap();
        }
        parity.join(&inner, 1, Some(fresh), true).await.unwrap();
        parity.rebuild(&inner).await.unwrap();
        check(&inner, &parity, 8, 1).await;
    });
}

#[test]
fn a_read_that_a_member_gives_up_by_itself_is_answered_by_the_others() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(3);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 8, 1).await;
        for bad in &devices {
            bad.set_rules(&[fails(&[Op::Read], Status::Aborted)]).unwrap();
            check(&inner, &parity, 8, 1).await;
            bad.set_rules(&[]).unwrap();
        }
        assert_eq!(states(&parity), [InSync; 3]);
    });
}

#[test]
fn a_rebuild_ends_with_the_device() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for closes in [false, true] {
            let (_, mut members) = faulty(3);
            drop(open(&inner, &members, create()).await);
            members[1] = None;
            let slow = ParityOptions { rebuild_rate: 1 << 20, ..ParityOptions::default() };
            let parity = open(&inner, &members, slow).await;
            let fresh = Arc::new(ErrorDevice::new("fresh", mem("fresh", 200), &[], 1).unwrap());
            parity.join(&inner, 1, Some(fresh.clone()), false).await.unwrap();
            parity.rebuild_in_background(&inner);
            inner.sleep_ns(1_000_000).await;
            if closes {
                parity.close(&inner).await.unwrap();
                assert!(parity.status().rebuild.is_some());
            }
            drop(parity);
            inner.sleep_ns(300_000_000).await;
            assert_eq!(Arc::strong_count(&fresh), 1, "somebody still has the member");
        }
    });
}

#[test]
fn a_block_that_two_members_lack_is_counted_as_lost_and_the_rest_is_rebuilt() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, mut members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 20, 1).await;
        drop(parity);
        members[2] = None;
        let parity = open(&inner, &members, ParityOptions::default()).await;
        parity.join(&inner, 2, Some(mem("fresh", 200)), false).await.unwrap();
        let rule = ErrorRule { lba: Lba(2 + 16 + 10), blocks: 1, ..fails(&[Op::Read], Status::ReadError) };
        devices[0].set_rules(&[rule]).unwrap();
        parity.rebuild(&inner).await.unwrap();
        devices[0].set_rules(&[]).unwrap();
        assert_eq!((parity.status().lost_blocks, states(&parity)), (1, vec![InSync; 4]));
        // What is computed from noise is not written over what may be read again.
        devices[0].set_rules(&[rule]).unwrap();
        for row in 0..20 {
            let row_blocks = parity.info().rows.unwrap().blocks;
            let channel = parity.open_channel(&inner).unwrap();
            let bufs = SgList::from_iter([inner.pool().alloc(row_blocks as usize * 4096).await]);
            let lba = Lba(16 + row * row_blocks as u64);
            assert_eq!(channel.submit(Io::read(lba, row_blocks, bufs)).await.status, Status::Ok);
        }
        devices[0].set_rules(&[]).unwrap();
        assert_eq!(parity.members()[0].repairs, 0);
        let info = parity.info().rows.unwrap();
        let mut wrong = 0;
        for lba in 0..info.start + 20 * info.blocks as u64 {
            let channel = parity.open_channel(&inner).unwrap();
            let bufs = SgList::from_iter([inner.pool().alloc(4096).await]);
            let done = channel.submit(Io::read(Lba(lba), 1, bufs)).await;
            assert_eq!(done.status, Status::Ok);
            wrong += done.io.bufs[0].as_slice().iter().any(|found| *found != byte(lba, 1)) as u32;
        }
        assert!(wrong <= 1, "{wrong} blocks are wrong");
    });
}

#[test]
fn foreign_swapped_missing_and_used_members_are_refused_by_name() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (_, members) = faulty(3);
        let parity = open(&inner, &members, create()).await;
        fill(&inner, &parity, 4, 1).await;
        drop(parity);
        let mut swapped = members.clone();
        swapped.swap(0, 1);
        let why = refusal(&inner, &swapped, create()).await;
        assert!(why.contains("'d1'") && why.contains("is member 1") && why.contains("order"), "{why}");
        let (_, others) = faulty(3);
        drop(open(&inner, &others, create()).await);
        let mut mixed = members.clone();
        mixed[2] = others[2].clone();
        mixed[1] = None;
        let why = refusal(&inner, &mixed, ParityOptions::default()).await;
        assert!(why.contains("'d2'") && why.contains("another parity device"), "{why}");
        // What is in a failed bay does not keep the others from being used, and stays as it is until it is told to go.
        let late = mem("late", 200);
        assert_eq!(write(&inner, &*late, 16, 1, 1).await, Status::Ok);
        let end = mem("end", 200);
        assert_eq!(write(&inner, &*end, 199, 1, 1).await, Status::Ok);
        for (wrong, why) in [
            (others[2].clone(), "another parity"),
            (Some(late), "other data"),
            (Some(end), "other data"),
            (Some(mem("small", 20)), "are needed"),
        ] {
            let mut mixed = members.clone();
            mixed[2] = wrong.clone();
            let parity = open(&inner, &mixed, ParityOptions::default()).await;
            assert_eq!((states(&parity), parity.members()[2].name.clone()), (vec![InSync, InSync, Failed], None));
            check(&inner, &parity, 4, 1).await;
            let refused = parity.join(&inner, 2, wrong, false).await.unwrap_err().to_string();
            assert!(refused.contains(why) && (refused.contains("--overwrite") || why == "are needed"), "{refused}");
        }
        let parity =
            open(&inner, &members[..2].iter().cloned().chain([None]).collect(), ParityOptions::default()).await;
        parity.join(&inner, 2, members[2].clone(), false).await.unwrap();
        parity.rebuild(&inner).await.unwrap();
        drop(parity);
        let mut fewer = members.clone();
        (fewer[0], fewer[2]) = (None, None);
        let why = refusal(&inner, &fewer, ParityOptions::default()).await;
        assert!(why.contains("member 0 (absent) and member 2 (absent) lack data"), "{why}");
        let more: Members = members.iter().cloned().chain([Some(mem("more", 200))]).collect();
        let why = refusal(&inner, &more, ParityOptions::default()).await;
        assert!(why.contains("it has 3 members, 4 are given"), "{why}");
        assert!(refusal(&inner, &members[..2].to_vec(), create()).await.contains("expected 3 to 16"));
        let blank: Members = (0..3).map(|n| Some(mem(&format!("b{n}"), 200))).collect();
        assert!(refusal(&inner, &blank, ParityOptions::default()).await.contains("a node, which makes one"));
        let large = ParityOptions { chunk_bytes: 1 << 20, ..create() };
        assert!(refusal(&inner, &blank, large).await.contains("512 KiB at most with 3 members"));
        // What is there is not given up for a new one, unless that is what was asked for.
        let mut dirty = blank.clone();
        dirty[1] = members[1].clone();
        assert!(refusal(&inner, &dirty, create()).await.contains("lack data"));
        let parity = open(&inner, &dirty, ParityOptions { force: true, ..create() }).await;
        assert_eq!(states(&parity), [InSync; 3]);
        // In use: only what holds nothing is taken in without being told to overwrite it.
        let mut degraded = members.clone();
        degraded[1] = None;
        let parity = open(&inner, &degraded, ParityOptions::default()).await;
        let joined = async |device: &Option<Arc<dyn BlockDevice>>, overwrite| {
            parity.join(&inner, 1, device.clone(), overwrite).await.map_err(|error: DeviceError| error.to_string())
        };
        assert!(joined(&others[1], false).await.unwrap_err().contains("another parity device"));
        assert!(joined(&Some(mem("tiny", 100)), true).await.unwrap_err().contains("are needed"));
        joined(&others[1], true).await.unwrap();
        parity.rebuild(&inner).await.unwrap();
        check(&inner, &parity, 4, 1).await;
    });
}

#[test]
fn a_member_that_was_cut_short_is_named() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let devices: Vec<_> = (0..3).map(|n| mem(&format!("m{n}"), 200)).collect();
        let mut members: Members = devices.iter().cloned().map(Some).collect();
        drop(open(&inner, &members, create()).await);
        let short = mem("m1", 100);
        put_back(&inner, &short, &copy_of(&inner, &devices[1]).await[..100]).await;
        members[1] = Some(short);
        let options = ParityOptions::default();
        let Err(refused) = ParityDevice::open(&inner, "p", members.clone(), &options).await else {
            panic!("it opened")
        };
        assert!(matches!(refused, DeviceError::TooSmall { .. }), "{refused:?}");
        assert!(refused.to_string().contains("member 'm1' has 100 blocks"), "{refused}");
        members[1] = None;
        assert_eq!(states(&open(&inner, &members, options).await), [InSync, Failed, InSync]);
    });
}

#[test]
fn layers_that_would_hide_rows_are_refused_and_others_pass_them_on() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (_, members) = faulty(3);
        let spec = DeviceSpec::Parity(create());
        let parity = bdev::build(&inner, "parity", &spec, members).await.unwrap().device();
        let child = || vec![Some(parity.clone())];
        let delay = DeviceSpec::Delay { delays: Delays::default(), seed: 1 };
        let above = bdev::build(&inner, "slow", &delay, child()).await.unwrap().device();
        assert_eq!(above.info().rows, parity.info().rows);
        let hiding = [
            DeviceSpec::Checksum(ChecksumOptions { create: true, ..ChecksumOptions::default() }),
            DeviceSpec::Mirror(MirrorOptions { create: true, ..MirrorOptions::default() }),
            DeviceSpec::Linear(vec![Extent { child: 0, start: 0, blocks: 8 }]),
        ];
        for spec in hiding {
            let Err(error) = bdev::build(&inner, "above", &spec, child()).await else { panic!("{spec:?}") };
            assert!(error.to_string().contains("put a shaped pool on it"), "{error}");
        }
    });
}

/// One block of a version, or how reading it ended.
#[test]
fn a_version_is_computed_from_the_others_and_a_verify_finds_what_disagrees() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (devices, members) = faulty(4);
        let parity = open(&inner, &members, create()).await;
        let info = parity.info();
        let (head, row) = (info.rows.unwrap().start, info.rows.unwrap().blocks);
        assert_eq!(info.versions, 4);
        assert_eq!(write(&inner, &parity, head, row, 1).await, Status::Ok);
        assert_eq!(write(&inner, &parity, 3, 1, 1).await, Status::Ok);
        let verify = async |lba, nblocks| {
            parity.open_channel(&inner).unwrap().submit(Io::new(Op::Verify, Lba(lba), nblocks)).await.status
        };
        assert_eq!((verify(head, row).await, verify(0, head as u32).await), (Status::Ok, Status::Ok));
        for lba in head..head + row as u64 {
            for version in [0, 1] {
                assert_eq!(read_version(&parity, &inner, lba, version).await, Ok(byte(lba, 1)), "{lba} {version}");
            }
            assert_eq!(read_version(&parity, &inner, lba, 2).await, Err(Status::Unsupported));
            assert_eq!(read_version(&parity, &inner, lba, 4).await, Err(Status::Invalid));
        }
        // What is wrong there is held against that member; what was computed, against nobody.
        let blamed =
            [(3, 0), (3, 2), (head + 1, 0), (head + 1, 1)].map(|(lba, version)| parity.note_wrong(lba, version));
        assert_eq!(blamed.map(|name| name.is_some()), [true, true, true, false]);
        assert_eq!(parity.members().iter().map(|member| member.read_errors).sum::<u64>(), 3);
        assert_eq!(parity.members()[2].repairs, 1);
        // The second block of the head and of the first row rot on the member that has them first.
        let at = (8192 / 4096) + head;
        for (member, lba) in [(0, 2 + 3), (0, at + 1)] {
            let channel = devices[member].open_channel(&inner).unwrap();
            let mut bufs = SgList::from_iter([inner.pool().alloc(4096).await]);
            bufs[0].as_mut_slice().fill(77);
            assert_eq!(channel.submit(Io::write(Lba(lba), 1, bufs)).await.status, Status::Ok);
        }
        assert_eq!(read_version(&parity, &inner, 3, 0).await, Ok(77));
        for version in 1..4 {
            assert_eq!(read_version(&parity, &inner, 3, version).await, Ok(byte(3, 1)), "version {version}");
        }
        assert_eq!(read_version(&parity, &inner, head + 1, 0).await, Ok(77));
        assert_eq!(read_version(&parity, &inner, head + 1, 1).await, Ok(byte(head + 1, 1)));
        assert_eq!((verify(head, row).await, verify(0, 8).await), (Status::Corrupt, Status::Corrupt));
        // Without a member nothing can be compared, and what it had is computed all the same.
        devices[0].set_rules(&[fails(&[Op::Read, Op::Write, Op::Flush], Status::Gone)]).unwrap();
        assert_eq!(write(&inner, &parity, head, row, 2).await, Status::Ok);
        assert_eq!(read_version(&parity, &inner, head + 1, 1).await, Ok(byte(head + 1, 2)));
        assert_eq!(read_version(&parity, &inner, head + row as u64 - 1, 1).await, Err(Status::Gone));
    });
}
