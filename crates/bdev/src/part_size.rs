//! How large the parts of a device are that grows with them.

use crate::device::{BlockDevice, DeviceError};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// Makes parts larger that have fewer than `needed` blocks; one of them may have grown by itself.
pub(crate) async fn enlarge(
    reactor: &Rc<Reactor>,
    parts: &[Arc<dyn BlockDevice>],
    needed: u64,
) -> Result<(), DeviceError> {
    for part in parts {
        if part.info().blocks < needed && part.refresh(reactor).await?.blocks < needed {
            part.resize(reactor, needed).await?;
        }
    }
    Ok(())
}

/// The blocks that every part has, by what it has become.
pub(crate) async fn least(reactor: &Rc<Reactor>, parts: &[Arc<dyn BlockDevice>]) -> Result<u64, DeviceError> {
    let mut least = u64::MAX;
    for part in parts {
        least = least.min(part.refresh(reactor).await?.blocks);
    }
    Ok(least)
}

/// The refusal to grow `device` to what a part, a `what`, has no room for.
pub(crate) fn refuse_small(
    device: &str,
    what: &str,
    parts: &[Arc<dyn BlockDevice>],
    needed: u64,
) -> Result<(), DeviceError> {
    let Some(small) = parts.iter().find(|part| part.info().blocks < needed) else { return Ok(()) };
    let reason = format!("{what} '{}' is too small for that: try again", small.name());
    Err(DeviceError::Config { device: device.to_string(), reason })
}
