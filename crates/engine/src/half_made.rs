//! What was left half made or half wiped, for whoever has noted that it was making or destroying a pool: is it ours, and may it be
//! wiped.

use crate::error::PoolError;
use crate::format::superblock::{SUPERBLOCK_COPIES, names_pool};
use crate::log_device::LogDevice;
use crate::meta;
use crate::pool::{UNUSED_BYTES, read_start};
use crate::units::BLOCK_BYTES;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// The first bytes of a device, as far as formats begin there.
pub async fn read_device_start(reactor: &Rc<Reactor>, device: &Arc<dyn BlockDevice>) -> Result<Vec<u8>, PoolError> {
    let channel = device.open_channel(reactor)?;
    let name = device.name();
    let failed = |status| PoolError::Device(DeviceError::Io { device: name.to_string(), action: "read it", status });
    read_start(reactor, &channel, &device.info()).await.map_err(failed)
}

/// Makes the start of a device zeroes, so that it counts as unused, if that is `ours`; whether it holds somebody else's.
pub async fn take_back(
    reactor: &Rc<Reactor>,
    device: &Arc<dyn BlockDevice>,
    ours: impl Fn(&[u8]) -> bool,
) -> Result<bool, PoolError> {
    let start = read_device_start(reactor, device).await?;
    wipe_if(reactor, device.open_channel(reactor)?, device.info(), &start, ours).await
}

/// The same of a log of the pool of this name, which is ours if it [is of](is_of_pool) the pool of this UUID.
pub async fn take_back_log(reactor: &Rc<Reactor>, log: &LogDevice, name: &str, pool: Uuid) -> Result<bool, PoolError> {
    let opened = log.even_volatile().open(reactor, name)?;
    let failed = |status| PoolError::Io { pool: name.to_string(), action: "read its log", status };
    let start = read_start(reactor, &opened.channel, &opened.info).await.map_err(failed)?;
    wipe_if(reactor, opened.channel.clone(), opened.info, &start, |start| is_of_pool(start, pool)).await
}

/// The pool of which this is the log, if that has this name.
pub async fn pool_of_log(reactor: &Rc<Reactor>, log: &LogDevice, name: &str) -> Option<Uuid> {
    let opened = log.even_volatile().open(reactor, name).ok()?;
    let found = meta::read_superblocks(reactor, opened.channel.clone(), opened.info).await.ok()?;
    (found.name == name).then_some(found.pool)
}

async fn wipe_if(
    reactor: &Rc<Reactor>,
    channel: Rc<dyn Channel>,
    info: DeviceInfo,
    start: &[u8],
    ours: impl Fn(&[u8]) -> bool,
) -> Result<bool, PoolError> {
    if ours(start) {
        meta::wipe_start(reactor, channel, info, UNUSED_BYTES).await?;
        return Ok(false);
    }
    Ok(start.iter().any(|byte| *byte != 0))
}

/// Whether these bytes, down to zeroes, are what making the pool of this UUID has written there, whole or half made. What comes
/// behind superblocks that are not yet written, or wiped already, does not say whose it is: so this is asked for devices that are known to
/// have been blank, or this pool's.
pub fn is_of_pool(start: &[u8], pool: Uuid) -> bool {
    let first = start.chunks_exact(BLOCK_BYTES).enumerate().find(|(_, block)| block.iter().any(|byte| *byte != 0));
    match first {
        None => false,
        Some((block, bytes)) if block < SUPERBLOCK_COPIES as usize => names_pool(bytes, pool),
        Some((_, bytes)) => bytes.starts_with(b"RMDA"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_half_made_is_told_from_what_others_have() {
        let (ours, other) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let mut start = vec![0; UNUSED_BYTES];
        assert!(!is_of_pool(&start, ours), "nothing is nobody's");
        start[2 * BLOCK_BYTES..][..8].copy_from_slice(b"RMDACAT1");
        assert!(is_of_pool(&start, ours), "a catalog before there is a superblock");
        start[BLOCK_BYTES..][..8].copy_from_slice(b"RMDAPOOL");
        start[BLOCK_BYTES + 40..][..16].copy_from_slice(ours.as_bytes());
        assert!(is_of_pool(&start, ours) && !is_of_pool(&start, other));
        start[0x438] = 0x53;
        assert!(!is_of_pool(&start, ours), "a file system in front of it");
    }
}
