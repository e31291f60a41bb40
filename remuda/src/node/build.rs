//! Turns definitions into open devices, and small operations on whole devices.

use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::view::DeviceView;
use crate::config::{DeviceDef, DeviceParams};
use base::ByteSize;
use bdev::{
    BlockDevice, Delay, DelayDevice, Delays, DeviceError, ErrorDevice, ErrorRule, Fault, FileDevice, FileDeviceOptions,
    Flags, Io, Lba, MemDevice, MirrorDevice, MirrorOptions, NullDevice, Op, OpSet, Status, StripeDevice, When,
};
use reactor::ReactorHandle;
use std::sync::Arc;

/// An open device, and what its kind needs beyond being a block device.
#[derive(Clone)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Has metadata to settle before a shutdown, and may have regions to copy.
    pub mirror: Option<Arc<MirrorDevice>>,
}

/// Opens the device that `def` describes on top of `children`; a mirror may lack some.
pub async fn open_device(
    def: &DeviceDef,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
    reactor: &ReactorHandle,
) -> Result<Opened, Refusal> {
    if let DeviceParams::Mirror { .. } = def.params {
        return open_mirror(def.name.clone(), children, reactor).await;
    }
    let children: Option<Vec<_>> = children.into_iter().collect();
    let children = children.ok_or_else(|| Refusal::failed(object(&def.name), "a device below it is not open", ""))?;
    Ok(Opened { device: build_device(def, children, reactor).await?, mirror: None })
}

fn object(name: &str) -> String {
    format!("device '{name}'")
}

/// Opens the device that `def` describes on top of `children`.
pub async fn build_device(
    def: &DeviceDef,
    children: Vec<Arc<dyn BlockDevice>>,
    reactor: &ReactorHandle,
) -> Result<Arc<dyn BlockDevice>, Refusal> {
    let name = def.name.as_str();
    let refuse = |error| refused(object(name), error);
    let below = || children.first().cloned().expect("the configuration was checked: a filter has a device below it");
    Ok(match &def.params {
        DeviceParams::Mem { size, size_max, block_size } => {
            let blocks = |bytes: u64| bytes / *block_size as u64;
            Arc::new(MemDevice::new(name, *block_size, blocks(*size), blocks(*size_max)).map_err(refuse)?)
        }
        DeviceParams::Null { size, block_size } => {
            Arc::new(NullDevice::new(name, *block_size, size / *block_size as u64, true).map_err(refuse)?)
        }
        DeviceParams::File { path, size, block_size, direct } => {
            open_file(name.to_string(), path.clone(), *size, *block_size, *direct, reactor).await?
        }
        DeviceParams::Stripe { chunk, .. } => {
            let block_size = children.iter().map(|child| child.info().block_size).max().unwrap_or(512);
            let chunk_blocks = (chunk / block_size as u64).max(1) as u32;
            Arc::new(StripeDevice::new(name, children, chunk_blocks).map_err(refuse)?)
        }
        DeviceParams::Mirror { .. } => {
            open_mirror(name.to_string(), children.into_iter().map(Some).collect(), reactor).await?.device
        }
        DeviceParams::Delay { read_ns, write_ns, flush_ns, jitter_ns, .. } => {
            let delay = |fixed_ns| Delay { fixed_ns, jitter_ns: *jitter_ns };
            let delays = Delays { read: delay(*read_ns), write: delay(*write_ns), flush: delay(*flush_ns) };
            Arc::new(DelayDevice::new(name, below(), delays, 1))
        }
        DeviceParams::Error { seed, .. } => {
            Arc::new(ErrorDevice::new(name, below(), &error_rules(&def.params), *seed).map_err(refuse)?)
        }
        DeviceParams::Checksum { .. }
        | DeviceParams::Encrypt { .. }
        | DeviceParams::RateLimit { .. }
        | DeviceParams::Nvmf { .. } => {
            let cause = format!("kind '{}' is not in this build", def.kind());
            return Err(Refusal::failed(object(name), cause, "use another kind"));
        }
    })
}

async fn open_file(
    name: String,
    path: String,
    size: Option<u64>,
    block_size: Option<u32>,
    direct: bool,
    reactor: &ReactorHandle,
) -> Result<Arc<dyn BlockDevice>, Refusal> {
    let block_size = block_size.unwrap_or(4096);
    let options = FileDeviceOptions { create_bytes: size, block_size, direct, ..FileDeviceOptions::new(&path) };
    let refuse_name = name.clone();
    let opened = on_reactor_async(reactor, move |reactor| async move {
        let device = FileDevice::open(&reactor, &name, options)?;
        let wanted = size.map_or(0, |size| size / block_size as u64);
        if wanted > device.info().blocks {
            device.resize(&reactor, wanted).await?;
        }
        Ok(device)
    });
    let device: Result<FileDevice, DeviceError> = opened.await?;
    Ok(Arc::new(device.map_err(|error| refused(object(&refuse_name), error))?))
}

async fn open_mirror(
    name: String,
    legs: Vec<Option<Arc<dyn BlockDevice>>>,
    reactor: &ReactorHandle,
) -> Result<Opened, Refusal> {
    // A pause between regions leaves most of the devices to their users.
    const RESYNC_PAUSE_NS: u64 = 1_000_000;
    let refuse_name = name.clone();
    let options = MirrorOptions { create: true, start_degraded: true, ..MirrorOptions::default() };
    let opened = on_reactor_async(reactor, move |reactor| async move {
        let mirror = Arc::new(MirrorDevice::open(&reactor, &name, legs, &options).await?);
        let left = mirror.status().resync_left_regions;
        if left > 0 {
            tracing::info!(device = %name, regions = left, "mirror: copying regions that differ");
            let (copied, copier) = (mirror.clone(), reactor.clone());
            reactor.spawn(async move {
                match copied.resync(&copier, RESYNC_PAUSE_NS).await {
                    Ok(()) => tracing::info!(device = %name, "mirror: all legs are equal"),
                    Err(error) => tracing::error!("{error}"),
                }
            });
        }
        Ok(mirror)
    });
    let mirror: Result<Arc<MirrorDevice>, DeviceError> = opened.await?;
    let mirror = mirror.map_err(|error| refused(object(&refuse_name), error))?;
    Ok(Opened { device: mirror.clone(), mirror: Some(mirror) })
}

/// Which operations fail, and how.
fn error_rules(params: &DeviceParams) -> Vec<ErrorRule> {
    let DeviceParams::Error { op, fault, rate, nth, first_block, blocks, .. } = params else { return Vec::new() };
    let when = match (nth, *rate) {
        (Some(nth), _) => When::Nth(*nth),
        (None, rate) if rate >= 1.0 => When::Always,
        (None, rate) if rate > 0.0 => When::OneIn((1.0 / rate).round() as u64),
        _ => return Vec::new(),
    };
    let reads: &[Op] = &[Op::Read, Op::Compare, Op::Verify];
    let writes: &[Op] = &[Op::Write, Op::WriteZeroes, Op::CompareAndWrite, Op::Copy];
    let groups: &[(&str, &[Op], Status)] = &[
        ("read", reads, Status::ReadError),
        ("write", writes, Status::WriteError),
        ("flush", &[Op::Flush], Status::WriteError),
        ("unmap", &[Op::Unmap], Status::WriteError),
    ];
    let chosen = groups.iter().filter(|(name, _, _)| op == "any" || op == name);
    let rules = chosen.map(|(_, ops, status)| ErrorRule {
        ops: OpSet::of(ops),
        lba: Lba(*first_block),
        blocks: blocks.unwrap_or(u64::MAX),
        when,
        fault: match fault.as_str() {
            "fail-after" => Fault::FailAfter(*status),
            "lose" => Fault::Lose,
            "flip-bit" => Fault::FlipBit,
            _ => Fault::Fail(*status),
        },
    });
    rules.collect()
}

/// Changes a device's size, on a reactor.
pub async fn resize(reactor: &ReactorHandle, device: Arc<dyn BlockDevice>, blocks: u64) -> Result<(), Refusal> {
    let object = format!("{} '{}'", if device.kind() == "volume" { "volume" } else { "device" }, device.name());
    let resized = on_reactor_async(reactor, move |reactor| async move { device.resize(&reactor, blocks).await });
    resized.await?.map_err(|error| refused(object, error))
}

/// Makes a mirror's legs and metadata clean, as before a shutdown.
pub async fn settle(reactor: &ReactorHandle, mirror: Arc<MirrorDevice>) -> Result<(), Refusal> {
    let object = object(mirror.name());
    let settled = on_reactor_async(reactor, move |reactor| async move { mirror.settle(&reactor).await });
    settled.await?.map_err(|error| refused(object, error))
}

/// A device error as a refusal.
pub fn refused(object: String, error: DeviceError) -> Refusal {
    match error {
        DeviceError::Os { action, object: path, errno, hint, .. } => {
            let next = hint.trim_start_matches([';', ',', ':', ' ']).to_string();
            Refusal::failed(object, format!("cannot {action} {path}: {errno}"), next)
        }
        DeviceError::Io { action, status, .. } => Refusal::failed(object, format!("cannot {action}: {status}"), ""),
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
pub fn fill_view(view: &mut DeviceView, opened: &Opened) {
    if let Some(mirror) = &opened.mirror {
        let status = mirror.status();
        if status.resync_left_regions > 0 {
            let done = 100 - status.resync_left_regions * 100 / status.regions.max(1);
            view.state = format!("open, copying ({done} %)");
        } else if status.degraded {
            view.state = "open, degraded".to_string();
        }
    }
    let info = opened.device.info();
    view.size = info.bytes();
    view.block_size = info.block_size;
}
