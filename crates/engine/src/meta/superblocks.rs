//! Reading and writing superblocks.

use super::damage::Damage;
use super::flaw::{Flaw, MetadataKind, Review, Verdict};
use super::media::Media;
use super::{MetaError, Object};
use crate::format::superblock::{Role, SUPERBLOCK_COPIES, Superblock, SuperblockError};
use crate::units::BLOCK_BYTES;
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::rc::Rc;

/// The newest valid superblock of a device, which must be as large as it says. Reads only.
pub async fn read_superblocks(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
) -> Result<Superblock, MetaError> {
    survey_superblocks(reactor, channel, info).await.map(|(superblock, _)| superblock)
}

/// The same, and why its copies that are not valid are not.
pub(crate) async fn survey_superblocks(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
) -> Result<(Superblock, Vec<Damage>), MetaError> {
    let media = Media::new(reactor, channel, &info)?;
    let Newest { superblock, damaged, .. } = newest(&media).await?;
    let needed = match superblock.role {
        Role::Log => superblock.log_blocks,
        Role::Capacity => superblock.capacity_blocks,
    };
    if media.blocks < needed {
        return Err(MetaError::DeviceTooSmall { blocks: media.blocks, needed });
    }
    Ok((superblock, damaged))
}

/// Writes the superblock as a new generation, over the older copy first: the newer one stays valid until it is durable.
/// Then over the other one too, so that damage to one copy loses nothing.
pub async fn write_superblock(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    superblock: &mut Superblock,
) -> Result<(), MetaError> {
    let media = Media::new(reactor, channel, &info)?;
    let failed = |block| move |status| MetaError::Io { action: "write", object: Object::Superblock, block, status };
    let found = newest(&media).await;
    if let Err(error @ MetaError::Io { .. }) = found {
        // Which copy is the newer one is not known.
        return Err(error);
    }
    let mut newer = 1;
    if let Some(Newest { superblock: found, copy, .. }) =
        found.ok().filter(|found| found.superblock.device == superblock.device)
    {
        superblock.generation = superblock.generation.max(found.generation);
        media.settle(copy, 1, 1, is_superblock).await.map_err(failed(copy))?;
        newer = copy;
    }
    superblock.generation += 1;
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    for target in [1 - newer, newer] {
        media.write_durably(target, &block).await.map_err(failed(target))?;
    }
    Ok(())
}

/// Reads both copies in every version of the device. What is wrong is due if it `renews`, and what is right is what is `expected`, but for
/// its generation: then that is to be [written](write_superblock). Nobody writes it meanwhile.
pub(crate) async fn review_superblocks(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    expected: &Superblock,
    renews: bool,
) -> Result<Review, MetaError> {
    let media = Media::new(reactor, channel, &info)?;
    let decode = |bytes: &[u8]| bytes.try_into().ok().and_then(|bytes| Superblock::decode(bytes).ok());
    let of_pool = |bytes: &[u8]| decode(bytes).filter(|found: &Superblock| found.device == expected.device);
    let (mut newest, mut review): (Option<Superblock>, _) = (None, Review::default());
    // All in one version may be as they were once.
    for (copy, version) in
        (0..SUPERBLOCK_COPIES).flat_map(|copy| (0..media.versions).map(move |version| (copy, version)))
    {
        let found = media.read_medium(version, copy, 1).await.ok().and_then(|bytes| of_pool(&bytes));
        review.read_bytes += BLOCK_BYTES as u64;
        if let Some(found) = found
            && newest.as_ref().is_none_or(|newest| found.generation > newest.generation)
        {
            newest = Some(found);
        }
    }
    let is_expected = newest
        .as_ref()
        .is_none_or(|newest| *newest == Superblock { generation: newest.generation, ..expected.clone() });
    let mut judged = Vec::new();
    for copy in 0..SUPERBLOCK_COPIES {
        let is_right = |bytes: &[u8]| newest.is_some() && of_pool(bytes) == newest;
        judged.push(media.judge(copy, 1, is_right).await);
    }
    for (copy, of_copy) in (0..).zip(&judged) {
        review.read_bytes += of_copy.read_bytes;
        review.good += (of_copy.verdict == Verdict::Right) as u64;
        let elsewhere = judged[1 - copy as usize].verdict.is_there();
        if let Some(rot) = of_copy.verdict.rot(elsewhere) {
            let (kind, is_due) = (MetadataKind::Superblock, renews && is_expected);
            review.flaws.push(Flaw { kind, number: copy, block: copy as u64, rot, is_due });
        }
    }
    Ok(review)
}

/// Whether these are the bytes of a superblock.
pub(crate) fn is_superblock(bytes: &[u8]) -> bool {
    bytes.try_into().is_ok_and(|bytes| Superblock::decode(bytes).is_ok())
}

/// What the copies of a superblock say.
struct Newest {
    /// The newest valid one.
    superblock: Superblock,
    /// Its block.
    copy: u64,
    /// What is wrong with others.
    damaged: Vec<Damage>,
}

/// The newest valid copy.
async fn newest(media: &Media) -> Result<Newest, MetaError> {
    let mut best: Option<(Superblock, u64)> = None;
    let mut refusals = Vec::new();
    let mut unread = None;
    let mut damaged = Vec::new();
    for copy in 0..SUPERBLOCK_COPIES.min(media.blocks) {
        let decode = |bytes: &[u8]| Superblock::decode(bytes.try_into().expect("one block was read"));
        let is_right = |bytes: &[u8]| decode(bytes).is_ok();
        let bytes = match media.read_right_object(Object::Superblock, copy, 1, is_right).await {
            Ok(bytes) => bytes,
            Err(MetaError::Io { status, .. }) => {
                unread = Some((copy, status));
                damaged.push(Damage::new(Object::Superblock, copy, status));
                continue;
            }
            Err(error) => return Err(error),
        };
        match decode(&bytes) {
            Ok(found) if best.as_ref().is_none_or(|(best, _)| found.generation > best.generation) => {
                best = Some((found, copy));
            }
            Ok(_) => {}
            Err(error) => {
                refusals.push(error);
                let reason = if let SuperblockError::Damaged(reason) = error { reason } else { "there is none" };
                damaged.push(Damage::new(Object::Superblock, copy, reason));
            }
        }
    }
    let later = |error: &&SuperblockError| {
        matches!(error, SuperblockError::NewerVersion(_) | SuperblockError::UnknownFeature(_))
    };
    // Later software has been at work: the other copy is not to be used, valid or not.
    if let Some(error) = refusals.iter().find(later) {
        return Err(MetaError::Superblock(*error));
    }
    match (best, unread) {
        (Some((superblock, copy)), _) => Ok(Newest { superblock, copy, damaged }),
        (None, Some((block, status))) => {
            Err(MetaError::Io { action: "read", object: Object::Superblock, block, status })
        }
        (None, None) => Err(MetaError::Superblock(worst(&refusals))),
    }
}

/// What to say of a device without a valid superblock.
fn worst(refusals: &[SuperblockError]) -> SuperblockError {
    let damaged = refusals.iter().find(|error| matches!(error, SuperblockError::Damaged(_)));
    let blank = refusals.iter().all(|error| *error == SuperblockError::NotAPool { blank: true });
    damaged.copied().unwrap_or(SuperblockError::NotAPool { blank: blank && !refusals.is_empty() })
}

/// Zeroes both superblocks, as when a pool is destroyed or its creation failed.
pub async fn wipe_superblocks(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
) -> Result<(), MetaError> {
    wipe_start(reactor, channel, info, BLOCK_BYTES * SUPERBLOCK_COPIES as usize).await
}

/// Zeroes the first `bytes` bytes of a device, the superblocks before the rest.
pub(crate) async fn wipe_start(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    bytes: usize,
) -> Result<(), MetaError> {
    let media = Media::new(reactor, channel, &info)?;
    let failed = |status: Status| MetaError::Io { action: "wipe", object: Object::Superblock, block: 0, status };
    let superblocks = BLOCK_BYTES * SUPERBLOCK_COPIES as usize;
    media.write_durably(0, &vec![0; superblocks]).await.map_err(failed)?;
    media.write_durably(SUPERBLOCK_COPIES, &vec![0; bytes - superblocks]).await.map_err(failed)
}
