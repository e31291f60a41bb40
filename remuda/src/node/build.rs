//! Turns definitions into open devices, and small operations on whole devices.

use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use super::remote::RemoteRecord;
use super::view::DeviceView;
use crate::config::{DeviceDef, DeviceParams};
use base::{ByteSize, Errno};
use bdev::{
    BlockDevice, ChecksumDevice, ChecksumOptions, Delay, DelayDevice, Delays, DeviceError, EncryptDevice,
    EncryptOptions, ErrorDevice, ErrorRule, Fault, FileDevice, FileDeviceOptions, Flags, Io, Lba, Limits, MemDevice,
    MirrorDevice, MirrorOptions, NullDevice, Op, OpSet, RateLimitDevice, StatsDevice, Status, StripeDevice, When,
};
use nvme::initiator::{HostIdentity, NvmfDevice, Options, Replay};
use nvme::spec::Nqn;
use reactor::{Reactor, ReactorHandle};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Where and as whom devices are opened.
#[derive(Clone)]
pub struct Opener {
    /// Control work runs there.
    pub reactor: ReactorHandle,
    /// What this node calls itself towards NVMe/TCP targets.
    pub host_id: Uuid,
    /// What is known of the remote namespace that the device is, should its target be down.
    pub known: Option<RemoteRecord>,
    /// What is missing is made: files, and the metadata of filters on blank devices; legs of a mirror are brought up to date.
    pub make: bool,
}

impl Opener {
    /// For devices that belong to no node.
    pub fn without_node(reactor: &ReactorHandle) -> Opener {
        // Any name will do where a target allows every host.
        Opener { reactor: reactor.clone(), host_id: Uuid::new_v4(), known: None, make: true }
    }
}

/// An open device, and what its kind needs beyond being a block device.
#[derive(Clone)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its counters, where its kind talks to the outside.
    pub stats: Option<Arc<StatsDevice>>,
    /// What has to be done before it is closed.
    pub closing: Closing,
}

impl Opened {
    /// What to remember of it, if it is a remote namespace that was seen.
    pub fn remote(&self, def: &DeviceDef) -> Option<RemoteRecord> {
        match (&self.closing, &def.params) {
            (Closing::Nvmf(remote), DeviceParams::Nvmf { nqn, nsid, .. }) if remote.was_connected() => {
                Some(RemoteRecord::new(nqn, *nsid, &remote.known()))
            }
            _ => None,
        }
    }

    /// Whether it is a remote namespace that has not been reached yet.
    pub fn is_awaited(&self) -> bool {
        matches!(&self.closing, Closing::Nvmf(remote) if !remote.was_connected())
    }
}

/// How a device is closed in order.
#[derive(Clone)]
pub enum Closing {
    /// With a flush.
    Flush,
    /// With metadata that says that all legs are equal.
    Mirror(Arc<MirrorDevice>),
    /// With settled checksum pages.
    Checksum(Arc<ChecksumDevice>),
    /// With a flush, then by telling the target.
    Nvmf(Arc<NvmfDevice>),
}

fn object(name: &str) -> String {
    format!("device '{name}'")
}

/// Opens the device that `def` describes on top of `children`; a mirror may lack some.
pub async fn open_device(
    def: &DeviceDef,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
    opener: &Opener,
) -> Result<Opened, Refusal> {
    let name = def.name.as_str();
    let refuse = |error| refused(object(name), error);
    let plain = |device: Arc<dyn BlockDevice>| Opened { device, stats: None, closing: Closing::Flush };
    if let DeviceParams::Mirror { .. } = def.params {
        return open_mirror(name.to_string(), children, opener).await;
    }
    let children: Option<Vec<_>> = children.into_iter().collect();
    let children = children.ok_or_else(|| Refusal::failed(object(name), "a device below it is not open", ""))?;
    let below = || children.first().cloned().expect("the configuration was checked: a filter has a device below it");
    Ok(match &def.params {
        DeviceParams::Mem { size, size_max, block_size } => {
            let blocks = |bytes: u64| bytes / *block_size as u64;
            let device = MemDevice::new(name, *block_size, blocks(*size), blocks(*size_max));
            plain(Arc::new(device.map_err(refuse)?))
        }
        DeviceParams::Null { size, block_size } => {
            let device = NullDevice::new(name, *block_size, size / *block_size as u64, true);
            plain(Arc::new(device.map_err(refuse)?))
        }
        DeviceParams::File { path, size, block_size, direct } => {
            counted(open_file(name, path, *size, *block_size, *direct, opener).await?, Closing::Flush)
        }
        DeviceParams::Stripe { chunk, .. } => {
            let block_size = children.iter().map(|child| child.info().block_size).max().unwrap_or(512);
            let chunk_blocks = (chunk / block_size as u64).max(1) as u32;
            plain(Arc::new(StripeDevice::new(name, children, chunk_blocks).map_err(refuse)?))
        }
        DeviceParams::Mirror { .. } => unreachable!("mirrors were opened above"),
        DeviceParams::Delay { read_ns, write_ns, flush_ns, jitter_ns, .. } => {
            let delay = |fixed_ns| Delay { fixed_ns, jitter_ns: *jitter_ns };
            let delays = Delays { read: delay(*read_ns), write: delay(*write_ns), flush: delay(*flush_ns) };
            plain(Arc::new(DelayDevice::new(name, below(), delays, 1)))
        }
        DeviceParams::Error { seed, .. } => {
            let device = ErrorDevice::new(name, below(), &error_rules(&def.params), *seed);
            plain(Arc::new(device.map_err(refuse)?))
        }
        DeviceParams::Checksum { .. } => {
            let device = open_checksum(name, below(), opener).await?;
            Opened { device: device.clone(), stats: None, closing: Closing::Checksum(device) }
        }
        DeviceParams::Encrypt { key_file, .. } => plain(open_encrypt(name, key_file, below(), opener).await?),
        DeviceParams::RateLimit { iops, bandwidth, .. } => {
            // A tenth of a second at the limit may be used at once after a pause.
            const BURST_NS: u64 = 100_000_000;
            let limits =
                Limits { iops: iops.unwrap_or(0), bytes_per_second: bandwidth.unwrap_or(0), burst_ns: BURST_NS };
            plain(Arc::new(RateLimitDevice::new(name, below(), limits)))
        }
        DeviceParams::Nvmf { .. } => {
            let device = open_nvmf(name, &def.params, opener).await?;
            counted(device.clone(), Closing::Nvmf(device))
        }
    })
}

/// Counts what goes through a device that talks to the outside.
fn counted(device: Arc<dyn BlockDevice>, closing: Closing) -> Opened {
    let stats = Arc::new(StatsDevice::new(device));
    Opened { device: stats.clone(), stats: Some(stats), closing }
}

async fn open_checksum(
    name: &str,
    below: Arc<dyn BlockDevice>,
    opener: &Opener,
) -> Result<Arc<ChecksumDevice>, Refusal> {
    let device_name = name.to_string();
    let options = ChecksumOptions { create: opener.make, ..ChecksumOptions::default() };
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        ChecksumDevice::open(&reactor, &device_name, below, &options).await
    });
    Ok(Arc::new(opened.await?.map_err(|error| refused(object(name), error))?))
}

async fn open_encrypt(
    name: &str,
    key_file: &str,
    below: Arc<dyn BlockDevice>,
    opener: &Opener,
) -> Result<Arc<EncryptDevice>, Refusal> {
    let key = crate::config::read_key(key_file);
    let key = key.map_err(|reason| Refusal::failed(object(name), reason, "put the right key file in place"))?;
    let device_name = name.to_string();
    let options = EncryptOptions { create: opener.make, ..EncryptOptions::default() };
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        EncryptDevice::open(&reactor, &device_name, below, &key, &options).await
    });
    Ok(Arc::new(opened.await?.map_err(|error| refused(object(name), error))?))
}

async fn open_nvmf(name: &str, params: &DeviceParams, opener: &Opener) -> Result<Arc<NvmfDevice>, Refusal> {
    let DeviceParams::Nvmf {
        address,
        nqn,
        nsid,
        host_nqn,
        queues,
        queue_depth,
        header_digest,
        data_digest,
        exclusive,
        loss_timeout_ns,
    } = params
    else {
        unreachable!("the caller looked at the kind");
    };
    let bad = |what: &str, text: &str| Refusal::invalid(object(name), format!("{what} '{text}' cannot be used"), "");
    let mut host = HostIdentity::from_uuid(opener.host_id);
    if let Some(text) = host_nqn {
        host.nqn = Nqn::new(text).map_err(|_| bad("host_nqn", text))?;
    }
    let subsystem = Nqn::new(nqn).map_err(|_| bad("nqn", nqn))?;
    let address = address.parse().map_err(|_| bad("address", address))?;
    let defaults = Options::new(address, subsystem, host);
    let options = Options {
        header_digest: *header_digest,
        data_digest: *data_digest,
        queue_entries: queue_depth.saturating_add(1),
        queues_max: queues.unwrap_or(defaults.queues_max),
        loss_timeout_ns: Some(*loss_timeout_ns),
        replay: if *exclusive { Replay::Exclusive } else { Replay::AfterFence },
        ..defaults
    };
    options.check().map_err(|error| Refusal::invalid(object(name), error.to_string(), ""))?;
    let (device_name, nsid) = (name.to_string(), *nsid);
    let known = opener.known.as_ref().and_then(|record| record.known(nqn, nsid));
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        match (NvmfDevice::open(&reactor, &device_name, &options, Some(nsid)).await, known) {
            (Err(error), Some(known)) => {
                tracing::warn!(device = %device_name, %error, "not connected yet; trying until it is");
                NvmfDevice::open_later(&reactor, &device_name, &options, nsid, known)
            }
            (opened, _) => opened,
        }
    });
    let next = "check address, nqn and that the target allows this host";
    Ok(Arc::new(opened.await?.map_err(|error| Refusal::failed(object(name), error, next))?))
}

/// How long a killed node's files may stay locked, and the pause between two attempts.
const LOCK_PATIENCE_NS: u64 = 3_000_000_000;
const LOCK_PAUSE_NS: u64 = 5_000_000;

/// Opens a file, waiting for the lock of a node that was killed a moment ago: the kernel ends a dead process's I/O under way
/// in the background and only then lets go of its files.
async fn open_patiently(
    reactor: &Rc<Reactor>,
    name: &str,
    options: FileDeviceOptions,
    patience_ns: u64,
) -> Result<FileDevice, DeviceError> {
    let deadline_ns = reactor.clock_ns() + patience_ns;
    loop {
        match FileDevice::open(reactor, name, options.clone()) {
            Err(DeviceError::Os { errno: Errno::EBUSY, .. }) if reactor.clock_ns() < deadline_ns => {
                reactor.sleep_ns(LOCK_PAUSE_NS).await;
            }
            outcome => return outcome,
        }
    }
}

async fn open_file(
    name: &str,
    path: &str,
    size: Option<u64>,
    block_size: Option<u32>,
    direct: bool,
    opener: &Opener,
) -> Result<Arc<dyn BlockDevice>, Refusal> {
    let block_size = block_size.unwrap_or(4096);
    let size = size.filter(|_| opener.make);
    let patience_ns = if opener.make { LOCK_PATIENCE_NS } else { 0 };
    let options = FileDeviceOptions { create_bytes: size, block_size, direct, ..FileDeviceOptions::new(path) };
    let device_name = name.to_string();
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        let device = open_patiently(&reactor, &device_name, options, patience_ns).await?;
        let wanted = size.map_or(0, |size| size / block_size as u64);
        if wanted > device.info().blocks {
            device.resize(&reactor, wanted).await?;
        }
        Ok(device)
    });
    let device: Result<FileDevice, DeviceError> = opened.await?;
    Ok(Arc::new(device.map_err(|error| refused(object(name), error))?))
}

async fn open_mirror(
    name: String,
    legs: Vec<Option<Arc<dyn BlockDevice>>>,
    opener: &Opener,
) -> Result<Opened, Refusal> {
    // A pause between regions leaves most of the devices to their users.
    const RESYNC_PAUSE_NS: u64 = 1_000_000;
    let refuse_name = name.clone();
    let resync = opener.make;
    let options = MirrorOptions { create: opener.make, start_degraded: true, ..MirrorOptions::default() };
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        let mirror = Arc::new(MirrorDevice::open(&reactor, &name, legs, &options).await?);
        let left = mirror.status().resync_left_regions;
        if left > 0 && resync {
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
    Ok(Opened { device: mirror.clone(), stats: None, closing: Closing::Mirror(mirror) })
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
    let object = format!("{} '{}'", if device.kind().ends_with("volume") { "volume" } else { "device" }, device.name());
    let resized = on_reactor_async(reactor, move |reactor| async move { device.resize(&reactor, blocks).await });
    resized.await?.map_err(|error| refused(object, error))
}

/// Makes everything acknowledged durable and brings a device to rest, as before a shutdown.
pub async fn close(reactor: &ReactorHandle, opened: &Opened) -> Result<(), Refusal> {
    let object = object(opened.device.name());
    let refuse = |error| refused(object.clone(), error);
    match opened.closing.clone() {
        Closing::Flush => flush(reactor, opened.device.clone()).await,
        Closing::Mirror(mirror) => {
            on_reactor_async(reactor, move |reactor| async move { mirror.settle(&reactor).await })
                .await?
                .map_err(refuse)
        }
        Closing::Checksum(checksum) => {
            on_reactor_async(reactor, move |reactor| async move { checksum.settle(&reactor).await })
                .await?
                .map_err(refuse)
        }
        Closing::Nvmf(remote) => {
            let flushed = match remote.was_connected() {
                true => flush(reactor, opened.device.clone()).await,
                false => Ok(()), // Nothing was ever written to it.
            };
            on_reactor_async(reactor, move |_| async move { remote.close().await }).await?;
            flushed
        }
    }
}

/// A device error as a refusal.
pub fn refused(object: String, error: DeviceError) -> Refusal {
    match error {
        DeviceError::Os { action, object: path, errno, hint, .. } => {
            let next = hint.trim_start_matches([';', ',', ':', ' ']).to_string();
            let kind = if errno == Errno::EBUSY { RefusalKind::Conflict } else { RefusalKind::Failed };
            Refusal::new(kind, object, format!("cannot {action} {path}: {errno}"), next)
        }
        DeviceError::Io { action, status, .. } => Refusal::failed(object, format!("cannot {action}: {status}"), ""),
        DeviceError::Config { reason, .. } => Refusal::invalid(object, reason, ""),
    }
}

/// Makes everything acknowledged by `device` durable.
async fn flush(reactor: &ReactorHandle, device: Arc<dyn BlockDevice>) -> Result<(), Refusal> {
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
    if let Closing::Mirror(mirror) = &opened.closing {
        let status = mirror.status();
        if status.resync_left_regions > 0 {
            let done = 100 - status.resync_left_regions * 100 / status.regions.max(1);
            view.state = format!("open, copying ({done} %)");
        } else if status.degraded {
            view.state = "open, degraded".to_string();
        }
    }
    if let Closing::Nvmf(remote) = &opened.closing
        && !remote.is_connected()
    {
        view.state = if remote.was_connected() { "open, not connected" } else { "connecting" }.to_string();
    }
    if let Closing::Checksum(checksum) = &opened.closing
        && checksum.corrupt_blocks() > 0
    {
        view.state = format!("open, {} corrupt blocks seen", checksum.corrupt_blocks());
    }
    let info = opened.device.info();
    view.size = info.bytes();
    view.block_size = info.block_size;
}
