//! The versions of what a device keeps are the same as long as nothing rots.

use super::{Outcome, Subject, bytes_of, ensure};
use crate::io::{Flags, Io, Lba, Op, Status};

/// Each version is what was written, whatever is written beside it; one that there is not is refused.
pub(super) async fn reads_every_version(t: &Subject) -> Outcome {
    if !t.can(&[Op::Read]) {
        return Ok(());
    }
    for (lba, version) in t.places(1).into_iter().zip([t.info.versions as u64, u64::MAX, 256, 1 << 32]) {
        let bufs = t.buffers(t.block_size()).await;
        t.expect(Io { arg: version, ..Io::read(Lba(lba), 1, bufs) }, Status::Invalid).await?;
    }
    if t.info.versions == 1 || !t.stores() {
        return Ok(());
    }
    for (round, nblocks) in (0..).zip(t.sizes().into_iter().chain([t.largest()])) {
        for lba in t.places(nblocks as u64) {
            t.write(lba, nblocks, 30 + round).await?;
            for version in 0..t.info.versions {
                expect_version(t, lba, nblocks, version, 30 + round).await?;
            }
        }
    }
    Ok(())
}

/// A version reads as the usual read does, or there is none of these blocks.
async fn expect_version(t: &Subject, lba: u64, nblocks: u32, version: u8, written: u64) -> Outcome {
    let mut bufs = t.buffers(nblocks as usize * t.block_size()).await;
    bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0xA5));
    let done = t.submit(Io { tag: 9, ..Io::read_version(Lba(lba), nblocks, version, bufs) }).await;
    if done.status == Status::Gone && version > 0 {
        return Ok(());
    }
    let what = || format!("version {version} of {nblocks} blocks at {lba}");
    ensure(done.status.is_ok(), || format!("{}: {}", what(), done.status))?;
    let same = (done.io.lba.0, done.io.nblocks, done.io.arg, done.io.tag) == (lba, nblocks, version as u64, 9);
    ensure(same, || format!("{} came back changed: {:?}", what(), done.io))?;
    ensure(bytes_of(&done.io.bufs) == t.pattern(lba, nblocks, written), || format!("{} differs", what()))?;
    if t.info.loans && nblocks <= t.info.max_io_blocks {
        let lent = Io { flags: Flags::LOAN, ..Io::read_version(Lba(lba), nblocks, version, Default::default()) };
        let lent = t.expect(lent, Status::Ok).await?;
        ensure(bytes_of(&lent.io.bufs) == t.pattern(lba, nblocks, written), || format!("{}, lent, differs", what()))?;
    }
    Ok(())
}
