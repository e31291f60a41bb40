//! Turns definitions into open devices, and small operations on whole devices.

use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::view::DeviceView;
use crate::config::{DeviceDef, DeviceParams};
use base::ByteSize;
use bdev::{BlockDevice, DeviceError, Flags, Io, Lba, MemDevice, Op};
use reactor::ReactorHandle;
use std::sync::Arc;

/// Opens the device that `def` describes on top of `children`.
pub async fn build_device(
    def: &DeviceDef,
    children: Vec<Arc<dyn BlockDevice>>,
    reactor: &ReactorHandle,
) -> Result<Arc<dyn BlockDevice>, Refusal> {
    let object = format!("device '{}'", def.name);
    let _ = (children, reactor);
    match &def.params {
        DeviceParams::Mem { size, size_max, block_size } => {
            let blocks = |bytes: u64| bytes / *block_size as u64;
            let device = MemDevice::new(&def.name, *block_size, blocks(*size), blocks(*size_max));
            Ok(Arc::new(device.map_err(|error| refused(object, error))?))
        }
        _ => Err(Refusal::failed(object, format!("kind '{}' is not in this build", def.kind()), "")),
    }
}

/// A device error as a refusal.
pub fn refused(object: String, error: DeviceError) -> Refusal {
    match error {
        DeviceError::Os { action, object: path, errno, hint, .. } => {
            let next = hint.trim_start_matches([';', ',', ':', ' ']).to_string();
            Refusal::failed(object, format!("cannot {action} {path}: {errno}"), next)
        }
        DeviceError::Config { reason, .. } => Refusal::invalid(object, reason, ""),
    }
}

/// Makes everything acknowledged by `device` durable.
pub async fn flush(reactor: &ReactorHandle, device: Arc<dyn BlockDevice>) -> Result<(), Refusal> {
    let object = format!("device '{}'", device.name());
    let refused_object = object.clone();
    on_reactor_async(reactor, move |reactor| async move {
        let channel = device.open_channel(&reactor).map_err(|error| refused(refused_object.clone(), error))?;
        let done = channel.submit(Io::flush()).await;
        done.status.check().map_err(|status| Refusal::failed(refused_object, format!("flush failed: {status}"), ""))
    })
    .await?
    .map_err(|refusal: Refusal| Refusal { object, ..refusal })
}

/// Deallocates a range of a device that reads it as zeroes afterwards; other devices are left as they are.
pub async fn deallocate(
    reactor: &ReactorHandle,
    device: Arc<dyn BlockDevice>,
    start: u64,
    len: u64,
) -> Result<(), Refusal> {
    let info = device.info();
    if !info.unmap_reads_zero || !info.ops.contains(Op::Unmap) {
        return Ok(());
    }
    let object = format!("device '{}'", device.name());
    on_reactor_async(reactor, move |reactor| async move {
        let channel = device.open_channel(&reactor).map_err(|error| refused(object.clone(), error))?;
        let (mut lba, end) = (start / info.block_size as u64, (start + len) / info.block_size as u64);
        while lba < end {
            let nblocks = (end - lba).min(info.max_io_blocks.max(1) as u64) as u32;
            let io = Io { flags: Flags::NONE, ..Io::new(Op::Unmap, Lba(lba), nblocks) };
            let done = channel.submit(io).await;
            done.status.check().map_err(|status| {
                let range = format!("{} at {}", ByteSize(len), ByteSize(start));
                Refusal::failed(object.clone(), format!("cannot deallocate {range}: {status}"), "")
            })?;
            lba += nblocks as u64;
        }
        Ok(())
    })
    .await?
}

/// The fields of a view that an open device knows.
pub fn fill_view(view: &mut DeviceView, device: &dyn BlockDevice) {
    let info = device.info();
    view.size = info.bytes();
    view.block_size = info.block_size;
}
