//! Turns definitions into open devices, and small operations on whole devices.

use super::connect_hint::connect_hint;
use super::paths::{addresses, path_views};
use super::reactors::on_reactor_async;
use super::redundant::parity_view;
use super::refusal::{Refusal, RefusalKind};
use super::remote::RemoteRecord;
use super::view::{DeviceView, FlashCacheView, LegView, MirrorView, ZonedView};
use crate::config::host_key::{read_dhchap_key, read_tls_key};
use crate::config::{DeviceDef, DeviceParams, check_file, spec_of};
use base::{ByteSize, Errno};
use bdev::{
    BlockDevice, Built, Delay, Delays, DeviceError, DeviceSpec, EncryptOptions, ErrorRule, Fault, Flags,
    FlashCacheOptions, Io, Lba, LegState, Limits, MirrorOptions, MirrorStatus, Op, OpSet, OpenFor, ParityOptions,
    StatsDevice, Status, When,
};
use nvme::auth::HostKeys;
use nvme::initiator::{ConnectError, HostIdentity, NvmfDevice, Options, Replay};
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
    /// The file that the device was when it was last open.
    pub file: Option<KnownFile>,
    /// What is missing is made: files, and the metadata of filters on blank devices.
    pub make: bool,
    /// What for: where it is to look, nothing is written.
    pub purpose: OpenFor,
    /// A mirror goes on without legs that are absent, although they may have newer writes.
    pub start_degraded: bool,
    /// The leg of a mirror whose data survive where legs were used without each other.
    pub prefer: Option<usize>,
    /// The id of a flash cache that is made.
    pub cache_id: Option<[u8; 16]>,
}

impl Opener {
    /// Opens what there is, without knowledge from earlier runs and without force.
    pub fn new(reactor: ReactorHandle, host_id: Uuid) -> Opener {
        Opener {
            reactor,
            host_id,
            known: None,
            file: None,
            make: true,
            purpose: OpenFor::Use,
            start_degraded: false,
            prefer: None,
            cache_id: None,
        }
    }

    /// Whether a device can be opened without the child at this place. To be looked at, a flash cache can be without its flash whatever
    /// is to happen in use.
    pub fn may_lack(&self, def: &DeviceDef, place: usize) -> bool {
        let is_cache = matches!(def.params, DeviceParams::FlashCache { .. });
        def.may_lack(place) || (self.purpose == OpenFor::Inspect && is_cache && place == 1)
    }

    /// For devices that belong to no node.
    pub fn without_node(reactor: &ReactorHandle) -> Opener {
        // Any name will do where a target allows every host.
        Opener::new(reactor.clone(), Uuid::new_v4())
    }
}

/// What is remembered of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownFile {
    /// Its path.
    pub path: String,
    /// How long it was, bytes; `None` where it was open under an older version.
    pub bytes: Option<u64>,
}

/// An open device, and what its kind needs beyond being a block device.
#[derive(Clone)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its counters, where its kind talks to the outside.
    pub stats: Option<Arc<StatsDevice>>,
    /// The device by kind.
    pub handle: Handle,
}

impl Opened {
    /// What to remember of it, if it is a remote namespace that was seen.
    pub fn remote(&self, def: &DeviceDef) -> Option<RemoteRecord> {
        match (&self.handle, &def.params) {
            (Handle::Nvmf(remote), DeviceParams::Nvmf { nqn, nsid, .. }) if remote.was_connected() => {
                Some(RemoteRecord::new(nqn, *nsid, &remote.known()))
            }
            _ => None,
        }
    }

    /// Whether it is a remote namespace that has not been reached yet.
    pub fn is_awaited(&self) -> bool {
        matches!(&self.handle, Handle::Nvmf(remote) if !remote.was_connected())
    }
}

/// A device by kind, for what only that kind can do.
#[derive(Clone)]
pub enum Handle {
    /// One of this machine.
    Local(Built),
    /// A remote namespace.
    Nvmf(Arc<NvmfDevice>),
}

fn object(name: &str) -> String {
    format!("device '{name}'")
}

/// Opens the device that `def` describes on top of `children`; a mirror or a parity device may lack some.
pub async fn open_device(
    def: &DeviceDef,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
    opener: &Opener,
) -> Result<Opened, Refusal> {
    let name = def.name.as_str();
    if let DeviceParams::Nvmf { .. } = def.params {
        let remote = open_nvmf(name, &def.params, opener).await?;
        let (device, handle): (Arc<dyn BlockDevice>, _) = (remote.clone(), Handle::Nvmf(remote));
        return Ok(match opener.purpose {
            OpenFor::Use => counted(device, handle),
            OpenFor::Inspect => Opened { device: bdev::inspected(device), stats: None, handle },
        });
    }
    if children.iter().enumerate().any(|(place, child)| child.is_none() && !opener.may_lack(def, place)) {
        return Err(Refusal::failed(object(name), "a device below it is not open", ""));
    }
    if let DeviceParams::File { path, size, .. } = &def.params {
        check_known_file(path, *size, opener).map_err(|(cause, next)| Refusal::failed(object(name), cause, next))?;
    }
    let (specs, device_name) = (specs_of(def, opener)?, name.to_string());
    let size = def.size().filter(|_| opener.make);
    let purpose = opener.purpose;
    let patience_ns = if opener.make { LOCK_PATIENCE_NS } else { 0 };
    let built = on_reactor_async(&opener.reactor, move |reactor| async move {
        let mut built =
            build_patiently(purpose, &reactor, &device_name, &specs[0], children.clone(), patience_ns).await;
        for spec in &specs[1..] {
            if matches!(built, Err(DeviceError::Config { .. })) {
                let other = build_patiently(purpose, &reactor, &device_name, spec, children.clone(), patience_ns).await;
                built = other.or(built);
            }
        }
        let built = built?;
        if let Built::File(file) = &built {
            let wanted = size.map_or(0, |size| size / file.info().block_size as u64);
            if wanted > file.info().blocks {
                file.resize(&reactor, wanted).await?;
            }
        }
        Ok(built)
    });
    let built: Built = built.await?.map_err(|error| refused(object(name), error))?;
    let (device, handle) = (built.device(), Handle::Local(built.clone()));
    Ok(match built {
        Built::File(_) | Built::ZonedDrive(_) => counted(device, handle),
        _ => Opened { device, stats: None, handle },
    })
}

/// Whether a file is what it was, before it is opened and, where a size is wanted, made or made longer: zeroes in the place of what
/// has been cut off would be served as if its data had never been.
fn check_known_file(path: &str, size: Option<u64>, opener: &Opener) -> Result<(), (String, String)> {
    let Some(size) = size.filter(|_| opener.make) else { return Ok(()) };
    let known = opener.file.as_ref().filter(|known| known.path == path);
    let found = match std::fs::metadata(path) {
        Ok(found) if found.is_file() => found.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && known.is_some() => {
            let next = format!(
                "mount what holds it, or bring it back; where nothing of it is needed: truncate -s SIZE {path}"
            );
            return Err((format!("its file {path} is gone"), next));
        }
        Ok(_) => return check_file(path, Some(size)),
        // Who opens it says so.
        Err(_) => return Ok(()),
    };
    match known.map(|known| known.bytes) {
        Some(Some(before)) if found < before => {
            let (has, had) = (ByteSize(found), ByteSize(before));
            let next = format!("bring back what it had; where nothing of that is needed: truncate -s {before} {path}");
            Err((format!("its file {path} has {has} and had {had}: what was behind is missing"), next))
        }
        None if 0 < found && found < size => {
            let (has, wanted) = (ByteSize(found), ByteSize(size));
            let next = format!("name another file; where it is meant: truncate -s {size} {path}");
            Err((
                format!("its file {path} is there and has {has}, and {wanted} are wanted: it may be something else"),
                next,
            ))
        }
        _ => Ok(()),
    }
}

/// Counts what goes through a device that talks to the outside.
fn counted(device: Arc<dyn BlockDevice>, handle: Handle) -> Opened {
    let stats = Arc::new(StatsDevice::new(device));
    Opened { device: stats.clone(), stats: Some(stats), handle }
}

/// What a definition asks for, with its files read; the second may be it where the first is refused, since a change of key
/// was under way.
fn specs_of(def: &DeviceDef, opener: &Opener) -> Result<Vec<DeviceSpec>, Refusal> {
    let spec = match (spec_of(&def.params, opener.make), &def.params) {
        (Some(DeviceSpec::Mirror(options)), _) => {
            let start_degraded = options.start_degraded || opener.start_degraded;
            let leg_names = def.children().to_vec();
            DeviceSpec::Mirror(MirrorOptions { start_degraded, prefer: opener.prefer, leg_names, ..options })
        }
        (Some(DeviceSpec::Parity(options)), _) => {
            DeviceSpec::Parity(ParityOptions { member_names: def.children().to_vec(), ..options })
        }
        (Some(DeviceSpec::FlashCache(options)), _) => {
            DeviceSpec::FlashCache(FlashCacheOptions { id: opener.cache_id, ..options })
        }
        (Some(spec), _) => spec,
        (None, DeviceParams::Delay { .. }) => DeviceSpec::Delay { delays: delays(&def.params), seed: 1 },
        (None, DeviceParams::Error { seed, .. }) => DeviceSpec::Error { rules: error_rules(&def.params), seed: *seed },
        (None, DeviceParams::RateLimit { .. }) => DeviceSpec::RateLimit(limits(&def.params)),
        (None, DeviceParams::Encrypt { key_file, previous_key_file, .. }) => {
            let options = EncryptOptions { create: opener.make, ..EncryptOptions::default() };
            let keys = std::iter::once(key_file).chain(previous_key_file).map(|path| crate::config::read_key(path));
            let (keys, unread): (Vec<_>, Vec<_>) = keys.partition(Result::is_ok);
            let specs: Vec<_> = keys.into_iter().flatten().map(|key| DeviceSpec::Encrypt { key, options }).collect();
            return match unread.into_iter().find_map(Result::err) {
                Some(reason) if specs.is_empty() => {
                    Err(Refusal::failed(object(&def.name), reason, "put the right key file in place"))
                }
                _ => Ok(specs),
            };
        }
        (None, _) => unreachable!("remote namespaces are opened by their own kind"),
    };
    Ok(vec![spec])
}

async fn open_nvmf(name: &str, params: &DeviceParams, opener: &Opener) -> Result<Arc<NvmfDevice>, Refusal> {
    let DeviceParams::Nvmf {
        address: _,
        paths: _,
        nqn,
        nsid,
        host_nqn,
        tls_key,
        dhchap_key,
        dhchap_ctrl_key,
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
    let mut more = addresses(params).map_err(|text| bad("address", &text))?;
    let address = more.remove(0);
    let read = |file: &Option<String>| {
        let key = file.as_ref().map(|file| read_dhchap_key(file)).transpose();
        key.map_err(|(cause, next)| Refusal::failed(object(name), cause, next))
    };
    let (key, controller) = (read(dhchap_key)?, read(dhchap_ctrl_key)?);
    let keys = key.map(|key| HostKeys { controller, ..HostKeys::new(key) });
    let tls = tls_key.as_ref().map(|file| read_tls_key(file)).transpose();
    let tls = tls.map_err(|(cause, next)| Refusal::failed(object(name), cause, next))?;
    let defaults = Options::new(address, subsystem, host);
    let options = Options {
        keys,
        tls,
        header_digest: *header_digest,
        data_digest: *data_digest,
        queue_entries: queue_depth.saturating_add(1),
        queues_max: queues.unwrap_or(defaults.queues_max),
        // Operations fail then, and the device goes on looking for its target: nobody has to open it again.
        fail_fast_ns: Some(*loss_timeout_ns),
        loss_timeout_ns: None,
        replay: if *exclusive { Replay::Exclusive } else { Replay::AfterFence },
        ..defaults
    };
    options.check().map_err(|error| Refusal::invalid(object(name), error.to_string(), ""))?;
    let (device_name, nsid) = (name.to_string(), *nsid);
    let known = opener.known.as_ref().and_then(|record| record.known(nqn, nsid));
    let host = options.host.nqn.clone();
    let opened = on_reactor_async(&opener.reactor, move |reactor| async move {
        match (NvmfDevice::open_paths(&reactor, &device_name, &options, &more, Some(nsid), known).await, known) {
            (Err(error), Some(known)) => {
                tracing::warn!(device = %device_name, %error, "not connected yet; trying until it is");
                NvmfDevice::open_later(&reactor, &device_name, &options, &more, nsid, known)
            }
            (opened, _) => opened,
        }
    });
    let refused = |error: ConnectError| {
        let next = connect_hint(&error, host.as_str(), nqn);
        Refusal::failed(object(name), error, next)
    };
    Ok(Arc::new(opened.await?.map_err(refused)?))
}

/// How long a killed node's files may stay locked, and the pause between two attempts.
const LOCK_PATIENCE_NS: u64 = 3_000_000_000;
const LOCK_PAUSE_NS: u64 = 500_000;

/// Builds a device. A file may still be locked by a node that was killed a moment ago: the kernel ends a dead process's I/O
/// under way in the background and only then lets go of its files.
async fn build_patiently(
    purpose: OpenFor,
    reactor: &Rc<Reactor>,
    name: &str,
    spec: &DeviceSpec,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
    patience_ns: u64,
) -> Result<Built, DeviceError> {
    let deadline_ns = reactor.clock_ns() + patience_ns;
    loop {
        match bdev::build_for(purpose, reactor, name, spec, children.clone()).await {
            Err(DeviceError::Os { errno: Errno::EBUSY, .. }) if reactor.clock_ns() < deadline_ns => {
                reactor.sleep_ns(LOCK_PAUSE_NS).await;
            }
            outcome => return outcome,
        }
    }
}

/// Gives a device that is in use the parameters of its definition that can be changed meanwhile.
pub fn tune(opened: &Opened, params: &DeviceParams) -> Result<(), DeviceError> {
    match &opened.handle {
        Handle::Local(Built::Delay(device)) => device.set(delays(params)),
        Handle::Local(Built::RateLimit(device)) => device.set(limits(params)),
        Handle::Local(Built::Error(device)) => device.set_rules(&error_rules(params))?,
        Handle::Local(Built::Mirror(device)) => {
            if let DeviceParams::Mirror { resync_rate, .. } = params {
                device.set_resync_rate(resync_rate.unwrap_or(0));
            }
        }
        Handle::Local(Built::Parity(device)) => {
            if let DeviceParams::Parity { rebuild_rate, .. } = params {
                device.set_rebuild_rate(rebuild_rate.unwrap_or(0));
            }
        }
        Handle::Local(Built::FlashCache(device)) => {
            if let DeviceParams::FlashCache { write_budget, endurance, .. } = params {
                device.set_write_budget(*write_budget)?;
                device.set_endurance(*endurance);
            }
        }
        _ => {}
    }
    Ok(())
}

fn delays(params: &DeviceParams) -> Delays {
    let DeviceParams::Delay { read_ns, write_ns, flush_ns, jitter_ns, .. } = params else { return Delays::default() };
    let delay = |fixed_ns: &u64| Delay { fixed_ns: *fixed_ns, jitter_ns: *jitter_ns };
    Delays { read: delay(read_ns), write: delay(write_ns), flush: delay(flush_ns) }
}

fn limits(params: &DeviceParams) -> Limits {
    // A tenth of a second at the limit may be used at once after a pause.
    const BURST_NS: u64 = 100_000_000;
    let DeviceParams::RateLimit { iops, bandwidth, .. } = params else { return Limits::default() };
    Limits { iops: iops.unwrap_or(0), bytes_per_second: bandwidth.unwrap_or(0), burst_ns: BURST_NS }
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
    match opened.handle.clone() {
        Handle::Local(
            built @ (Built::Mirror(_) | Built::Parity(_) | Built::Checksum(_) | Built::Zoned(_) | Built::FlashCache(_)),
        ) => on_reactor_async(reactor, move |reactor| async move { built.settle(&reactor).await })
            .await?
            .map_err(|error| refused(object, error)),
        Handle::Local(_) => flush(reactor, opened.device.clone()).await,
        Handle::Nvmf(remote) => {
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
            let kind = match errno {
                Errno::EBUSY => RefusalKind::Conflict,
                Errno::ENOSPC => RefusalKind::NoSpace,
                _ => RefusalKind::Failed,
            };
            Refusal::new(kind, object, format!("cannot {action} {path}: {errno}"), next)
        }
        DeviceError::Io { action, status, .. } => {
            Refusal::new(RefusalKind::of(status), object, format!("cannot {action}: {status}"), "")
        }
        DeviceError::Config { reason, .. } => Refusal::invalid(object, reason, ""),
        DeviceError::TooSmall { reason, .. } => Refusal::new(RefusalKind::NoSpace, object, reason, ""),
        DeviceError::State { reason, .. } => Refusal::conflict(object, reason, ""),
    }
}

/// The same where the request has no value that could be wrong: how things are does not allow it.
pub fn refused_as_it_is(object: String, error: DeviceError) -> Refusal {
    as_it_is(refused(object, error))
}

/// See [`refused_as_it_is`].
pub fn as_it_is(refusal: Refusal) -> Refusal {
    match refusal.kind {
        RefusalKind::Invalid => Refusal { kind: RefusalKind::Conflict, ..refusal },
        _ => refusal,
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
pub fn fill_view(view: &mut DeviceView, opened: &Opened, legs: &[String]) {
    if let Handle::Local(Built::Mirror(mirror)) = &opened.handle {
        let status = mirror.status();
        view.mirror = Some(mirror_view(&status, legs));
        if status.resync_left_regions > 0 {
            let done = 100 - status.resync_left_regions * 100 / status.regions.max(1);
            view.state = format!("open, copying ({done} %)");
        } else if status.degraded {
            view.state = "open, degraded".to_string();
        }
    }
    if let Handle::Local(Built::Parity(parity)) = &opened.handle {
        let (parity, state) = parity_view(&view.name, &parity.status(), legs);
        (view.parity, view.state) = (Some(parity), state);
    }
    if let Handle::Local(Built::ZoneBands(bands)) = &opened.handle {
        let (zones, state) = super::zones::zones_view(&bands.status());
        (view.zones, view.state) = (Some(zones), state);
    }
    if let Some(cache) = flash_cache_view(opened) {
        if cache.mode != "on" {
            view.state = format!("open, flash {}", cache.mode);
        }
        view.flash_cache = Some(cache);
    }
    if let Handle::Nvmf(remote) = &opened.handle {
        view.paths = path_views(remote);
        let up = view.paths.iter().filter(|path| path.connected).count();
        view.open = up > 0;
        view.state = match (up, view.paths.len()) {
            (0, _) if remote.was_connected() => "open, not connected".to_string(),
            (0, _) => "connecting".to_string(),
            (up, all) if up < all => format!("open, {up} of {all} paths"),
            _ => view.state.clone(),
        };
    }
    if let Handle::Local(Built::Checksum(checksum)) = &opened.handle
        && checksum.corrupt_blocks() > 0
    {
        view.state = format!("open, {} corrupt blocks seen", checksum.corrupt_blocks());
    }
    if let Handle::Local(Built::Encrypt(device)) = &opened.handle
        && device.is_erased()
    {
        (view.open, view.state) = (false, "erased".to_string());
    }
    let info = opened.device.info();
    view.zoned = info.zoned.map(|zoned| ZonedView {
        zones: info.blocks / zoned.zone_blocks,
        zone_bytes: zoned.zone_blocks * u64::from(info.block_size),
        capacity_bytes: zoned.zone_capacity_blocks * u64::from(info.block_size),
        open_max: zoned.open_zones_max,
        active_max: zoned.active_zones_max,
    });
    view.size = info.bytes();
    view.block_size = info.block_size;
}

/// How a flash cache is doing; `None` of other devices.
pub fn flash_cache_view(opened: &Opened) -> Option<FlashCacheView> {
    let Handle::Local(Built::FlashCache(cache)) = &opened.handle else { return None };
    let status = cache.status(crate::sys::monotonic_ns());
    let (counts, bytes) = (status.counts, |blocks: u64| blocks * u64::from(status.block_size));
    let view = FlashCacheView {
        mode: status.mode.name().to_string(),
        hit_bytes: bytes(counts.hits),
        miss_bytes: bytes(counts.misses),
        cached_bytes: bytes(status.cached_blocks),
        capacity_bytes: bytes(status.capacity_blocks),
        written_day_bytes: status.written_day,
        write_budget_bytes: status.write_budget,
        written_total_bytes: status.written_total,
        endurance_bytes: status.endurance,
        days_left: status.days_left(),
        admitted_bytes: bytes(counts.admitted - counts.readmitted),
        readmitted_bytes: bytes(counts.readmitted),
        refused_bytes: bytes(counts.refused_budget),
        read_errors: counts.read_errors,
        write_errors: counts.write_errors,
        late: counts.late,
        memory_bytes: status.memory_bytes,
        full_in_seconds: None,
    };
    Some(FlashCacheView { full_in_seconds: view.filling(), ..view })
}

fn mirror_view(status: &MirrorStatus, names: &[String]) -> MirrorView {
    let legs = status.legs.iter().zip(names).map(|(leg, name)| LegView {
        device: name.clone(),
        state: match (leg.state, &leg.name) {
            (LegState::Failed, None) => "absent",
            (state, _) => state.words(),
        }
        .to_string(),
        read_errors: leg.read_errors,
        repairs: leg.repairs,
        why: None,
    });
    MirrorView {
        legs: legs.collect(),
        degraded: status.degraded,
        regions: status.regions,
        dirty_regions: status.dirty_regions,
        resync_left_regions: status.resync_left_regions,
        region_bytes: status.region_bytes,
        resync_bytes_per_s: status.resync_bytes_per_s,
    }
}
