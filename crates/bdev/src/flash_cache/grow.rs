//! A cache grows with its slow device: more data, and the marks for them, for which there was room from the beginning.
//!
//! Nothing of what is new was ever cached, so that its regions begin without marks. The anchor that tells of them is durable before
//! anybody sees the new size; before that, an opening finds the former one and a slow device that is larger, as it may be.

use super::FlashCacheDevice;
use crate::device::{DeviceError, DeviceInfo};
use base::ByteSize;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::Ordering::AcqRel;

impl FlashCacheDevice {
    pub(super) async fn grow(&self, reactor: &Rc<Reactor>, blocks: u64) -> Result<(), DeviceError> {
        let (shared, now) = (&self.shared, self.shared.info().blocks);
        if blocks < now {
            return Err(self.refused(format!("it does not shrink: expected {now} blocks or more, not {blocks}")));
        }
        let most = shared.geometry.data_blocks_max();
        if blocks > most {
            let size = |blocks: u64| ByteSize(blocks * shared.info.block_size as u64);
            let (wanted, most) = (size(blocks), size(most));
            return Err(self.refused(format!(
                "it was made with room to grow to {most}, not to {wanted}; ask for less, or make a new cache on the larger device"
            )));
        }
        let needed = shared.geometry.data_start + blocks;
        // A drive may have grown by itself.
        if shared.slow.info().blocks < needed && shared.slow.refresh(reactor).await?.blocks < needed {
            shared.slow.resize(reactor, needed).await?;
        }
        self.adopt(reactor, blocks).await
    }

    /// What it is after a look at the slow device.
    pub(super) async fn grow_with_slow(&self, reactor: &Rc<Reactor>) -> Result<DeviceInfo, DeviceError> {
        let shared = &self.shared;
        let there = shared.slow.refresh(reactor).await?.blocks.saturating_sub(shared.geometry.data_start);
        let most = shared.geometry.data_blocks_max();
        if there > most {
            tracing::warn!(
                device = shared.name,
                there,
                most,
                "the slow device of a flash cache is larger than the cache has room for: the rest of it stays unused"
            );
        }
        self.adopt(reactor, there.min(most)).await?;
        Ok(shared.info())
    }

    /// Makes more data durable, and then shows them.
    async fn adopt(&self, reactor: &Rc<Reactor>, blocks: u64) -> Result<(), DeviceError> {
        let shared = &self.shared;
        if blocks <= shared.info().blocks {
            return Ok(());
        }
        let grown =
            shared.geometry.grown(blocks).ok_or_else(|| self.refused(format!("{blocks} blocks are too many")))?;
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "grow", status };
        let inner = self.inner(reactor)?;
        // The slow device's own new size first.
        inner.flush().await.map_err(failed)?;
        if !shared.grows_unrecorded {
            let noted = inner.write_anchor(|anchor| {
                // Another one may have been faster.
                anchor.geometry.data_blocks = anchor.geometry.data_blocks.max(blocks);
            });
            noted.await.map_err(failed)?;
        }
        shared.with(|state| state.trust.grow(grown.regions()));
        let before = shared.blocks.fetch_max(blocks, AcqRel);
        tracing::info!(device = shared.name, blocks, before, "the device has grown");
        Ok(())
    }

    fn refused(&self, reason: String) -> DeviceError {
        DeviceError::Config { device: self.shared.name.clone(), reason }
    }
}
