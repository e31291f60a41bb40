//! Looking for right bytes among the versions that a device has of a block: the legs of a mirror, what parity computes.

use bdev::Status;
use std::ops::Range;

/// What `read` gives of the first version that is right, and its number. It gives `None`, or [`Status::Corrupt`], of one that
/// is wrong, and [`Status::Unsupported`] of one that there is not. `None`: all of them are wrong.
///
/// # Errors
/// [`Status::ReadError`]: none is right, and some version could not be had now, which may be.
pub(crate) async fn first_right<T>(
    versions: Range<u8>,
    mut read: impl AsyncFnMut(u8) -> Result<Option<T>, Status>,
) -> Result<Option<(T, u8)>, Status> {
    let mut none = Ok(None);
    for version in versions {
        match read(version).await {
            Ok(Some(right)) => return Ok(Some((right, version))),
            Ok(None) | Err(Status::Corrupt | Status::Unsupported) => {}
            Err(_) => none = Err(Status::ReadError),
        }
    }
    none
}
