//! Flushes that fail, after which what they covered may be lost.

use super::*;
use bdev::Op;

fn rig() -> Rig {
    let disk = Disk::new(reactor());
    disk.change_info(|info| info.volatile_cache = true);
    Rig::on(disk, SMALL, OWNER, &[])
}

fn flush(rig: &Rig) -> Result<(), Status> {
    let bands = rig.bands.clone();
    rig.run(async move { bands.flush().await })
}

#[test]
fn what_was_written_before_a_failed_flush_is_written_again_before_the_next() {
    let rig = rig();
    rig.put(Stream::User, 0..3).unwrap();
    assert_eq!(flush(&rig), Ok(()));
    let covered = rig.put(Stream::User, 3..6).unwrap();
    let moved = rig.put(Stream::Moved, 6..8).unwrap();
    let before = rig.disk.writes();
    rig.disk.fail(Op::Flush, 0..u64::MAX, Status::WriteError);
    assert_eq!(flush(&rig), Err(Status::WriteError));
    assert_eq!(rig.disk.writes(), before, "while flushes fail, nothing is");
    rig.disk.heal();
    assert_eq!(flush(&rig), Ok(()));
    let mut again = rig.disk.writes().split_off(before.len());
    again.sort_unstable();
    let stripe = |at: BandAt| (rig.bands.device_block(at) - 1, rig.bands.device_block(at) + 7);
    assert_eq!(again, [stripe(covered[0]), stripe(moved[0])]);
    assert_eq!(flush(&rig), Ok(()));
    assert_eq!(rig.disk.writes().len(), before.len() + 2, "once");
}

#[test]
fn what_the_root_of_a_checkpoint_that_has_begun_may_lead_to_is_written_again() {
    let rig = rig();
    let moved = rig.fill(Stream::User, 1);
    rig.disk.fail(Op::Flush, 0..u64::MAX, Status::WriteError);
    assert_eq!(flush(&rig), Err(Status::WriteError));
    rig.disk.heal();
    let before = rig.disk.writes().len();
    let token = rig.bands.checkpoint_begun();
    // The pages of the checkpoint have the places that they move from.
    moved.iter().for_each(|at| rig.bands.dead(*at));
    assert_eq!(rig.bands.room().pending, 1);
    assert_eq!(flush(&rig), Ok(()));
    assert_eq!(rig.disk.writes().len(), before + 1, "its stripe");
    rig.bands.checkpointed(token);
    assert_eq!(rig.bands.room().pending, 1, "until the next one");
}
