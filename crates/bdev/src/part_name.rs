//! What messages call the parts of a device.

use crate::device::BlockDevice;
use std::sync::Arc;

/// By the name of the device in its place, by one of `names` where that is absent, or else by number.
pub(crate) fn part_name(what: &str, index: usize, device: Option<&Arc<dyn BlockDevice>>, names: &[String]) -> String {
    match device.map(|device| device.name()).or_else(|| names.get(index).map(String::as_str)) {
        Some(name) => format!("{what} '{name}'"),
        None => format!("{what} {index}"),
    }
}
