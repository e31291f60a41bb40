//! Devices from configuration: a plain description of each kind, and one function that makes them.
//!
//! Descriptions name no children: whoever holds the configuration resolves names, builds children first and hands them
//! over, in order.

use crate::checksum::{ChecksumDevice, ChecksumOptions};
use crate::delay::{DelayDevice, Delays};
use crate::device::{BlockDevice, DeviceError, DeviceInfo};
use crate::encrypt::{EncryptDevice, EncryptOptions, UserKey};
use crate::error::{ErrorDevice, ErrorRule};
use crate::file::{FileDevice, FileDeviceOptions};
use crate::flash_cache::{FlashCacheDevice, FlashCacheOptions};
use crate::inspect::{OpenFor, inspected};
use crate::linear::{Extent, LinearDevice};
use crate::mem::MemDevice;
use crate::mirror::{MirrorDevice, MirrorOptions};
use crate::null::NullDevice;
use crate::parity::{ParityDevice, ParityOptions};
use crate::rate_limit::{Limits, RateLimitDevice};
use crate::remote::RemoteDevice;
use crate::stripe::StripeDevice;
use crate::zone_bands::{ZoneBandsDevice, ZoneBandsOptions};
use crate::zoned::{ZonedDevice, ZonedOptions};
use crate::zoned_drive::ZonedDriveDevice;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// What to make.
#[derive(Clone, Debug)]
pub enum DeviceSpec {
    /// Memory: `bytes` now, room to grow to `bytes_max` (0: none).
    Mem {
        /// Bytes per block.
        block_size: u32,
        /// Size.
        bytes: u64,
        /// Largest size.
        bytes_max: u64,
    },
    /// Nothing.
    Null {
        /// Bytes per block.
        block_size: u32,
        /// Size.
        bytes: u64,
        /// Fill reads with zeroes.
        zero_reads: bool,
    },
    /// A regular file or block device; with zones, where that has some.
    File(FileDeviceOptions),
    /// Chunks over all children in turn.
    Stripe {
        /// Bytes per chunk.
        chunk_bytes: u64,
    },
    /// The same on all children; an absent one is `None`.
    Mirror(MirrorOptions),
    /// Rows of data and parity over all children; an absent one is `None`.
    Parity(ParityOptions),
    /// Extents of the children.
    Linear(Vec<Extent>),
    /// Checksums of one child.
    Checksum(ChecksumOptions),
    /// One child, encrypted.
    Encrypt {
        /// Opens the volume.
        key: UserKey,
        /// How.
        options: EncryptOptions,
    },
    /// One child, no faster than this.
    RateLimit(Limits),
    /// One child, slowed down.
    Delay {
        /// By how much.
        delays: Delays,
        /// Of the jitter.
        seed: u64,
    },
    /// One child, with faults.
    Error {
        /// Which.
        rules: Vec<ErrorRule>,
        /// Of the random ones.
        seed: u64,
    },
    /// One child, in zones.
    Zoned(ZonedOptions),
    /// Rows of the zones of the second child behind the first one, which is written in place; of the only child, behind its
    /// conventional zones.
    ZoneBands(ZoneBandsOptions),
    /// A slow child behind a cache on the other one, which may be absent.
    FlashCache(FlashCacheOptions),
    /// One child, served by the reactor that builds it.
    RemoteCore,
}

/// A device by kind, for what only that kind can do (resync, erase, change limits).
#[derive(Clone)]
#[allow(missing_docs, reason = "each variant is the device that it is named after")]
pub enum Built {
    Mem(Arc<MemDevice>),
    Null(Arc<NullDevice>),
    File(Arc<FileDevice>),
    ZonedDrive(Arc<ZonedDriveDevice>),
    Stripe(Arc<StripeDevice>),
    Mirror(Arc<MirrorDevice>),
    Parity(Arc<ParityDevice>),
    Linear(Arc<LinearDevice>),
    Checksum(Arc<ChecksumDevice>),
    Encrypt(Arc<EncryptDevice>),
    RateLimit(Arc<RateLimitDevice>),
    Delay(Arc<DelayDevice>),
    Error(Arc<ErrorDevice>),
    Zoned(Arc<ZonedDevice>),
    ZoneBands(Arc<ZoneBandsDevice>),
    FlashCache(Arc<FlashCacheDevice>),
    RemoteCore(Arc<RemoteDevice>),
    /// One at the bottom of others, of any kind, that is only looked at.
    Inspected(Arc<dyn BlockDevice>),
}

impl Built {
    /// The device.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        match self {
            Built::Mem(device) => device.clone(),
            Built::Null(device) => device.clone(),
            Built::File(device) => device.clone(),
            Built::ZonedDrive(device) => device.clone(),
            Built::Stripe(device) => device.clone(),
            Built::Mirror(device) => device.clone(),
            Built::Parity(device) => device.clone(),
            Built::Linear(device) => device.clone(),
            Built::Checksum(device) => device.clone(),
            Built::Encrypt(device) => device.clone(),
            Built::RateLimit(device) => device.clone(),
            Built::Delay(device) => device.clone(),
            Built::Error(device) => device.clone(),
            Built::Zoned(device) => device.clone(),
            Built::ZoneBands(device) => device.clone(),
            Built::FlashCache(device) => device.clone(),
            Built::RemoteCore(device) => device.clone(),
            Built::Inspected(device) => device.clone(),
        }
    }

    /// Leaves nothing to repair at the next start: clears a mirror's dirty bits, calls the heads of a parity device equal, completes
    /// checksum pages, makes the pointers of zones durable, notes what a flash cache has. Call it on each device from the top down when the node
    /// stops.
    pub async fn settle(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        match self {
            Built::Mirror(device) => device.settle(reactor).await,
            Built::Parity(device) => device.close(reactor).await,
            Built::Checksum(device) => device.settle(reactor).await,
            Built::Zoned(device) => device.settle(reactor).await,
            Built::FlashCache(device) => device.settle(reactor).await,
            _ => Ok(()),
        }
    }
}

/// Makes a device. A mirror whose legs differ starts to copy what is missing, and a parity device goes on with a rebuild, on
/// this reactor.
pub async fn build(
    reactor: &Rc<Reactor>,
    name: &str,
    spec: &DeviceSpec,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
) -> Result<Built, DeviceError> {
    let built = open(reactor, name, spec, children).await?;
    match &built {
        Built::Mirror(mirror) => mirror.resync_in_background(reactor),
        Built::Parity(parity) => {
            parity.rebuild_in_background(reactor);
            parity.compare_in_background(reactor);
        }
        _ => {}
    }
    Ok(built)
}

/// The same for a purpose. Of a device that is opened to be looked at all children have to be opened so too.
pub async fn build_for(
    purpose: OpenFor,
    reactor: &Rc<Reactor>,
    name: &str,
    spec: &DeviceSpec,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
) -> Result<Built, DeviceError> {
    if purpose == OpenFor::Use {
        return build(reactor, name, spec, children).await;
    }
    let is_lowest = children.is_empty();
    let built = open(reactor, name, &spec.for_inspection(), children).await?;
    Ok(if is_lowest { Built::Inspected(inspected(built.device())) } else { built })
}

/// Opens a device, or makes it.
async fn open(
    reactor: &Rc<Reactor>,
    name: &str,
    spec: &DeviceSpec,
    children: Vec<Option<Arc<dyn BlockDevice>>>,
) -> Result<Built, DeviceError> {
    let child = || one(name, &children);
    let present: Vec<_> = children.iter().flatten().map(|child| (child.name(), child.info())).collect();
    let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
    refuse_rows(spec, &present).map_err(refused)?;
    Ok(match spec {
        DeviceSpec::Mem { block_size, bytes, bytes_max } => {
            let (now, max) = (blocks_of(*bytes, *block_size), blocks_of(*bytes_max, *block_size));
            Built::Mem(Arc::new(MemDevice::new(name, *block_size, now, max)?))
        }
        DeviceSpec::Null { block_size, bytes, zero_reads } => {
            Built::Null(Arc::new(NullDevice::new(name, *block_size, blocks_of(*bytes, *block_size), *zero_reads)?))
        }
        DeviceSpec::File(options) => {
            let file = Arc::new(FileDevice::open(reactor, name, options.clone())?);
            match file.zones() {
                None => Built::File(file),
                Some(_) => Built::ZonedDrive(Arc::new(ZonedDriveDevice::open(reactor, name, file, options).await?)),
            }
        }
        DeviceSpec::Stripe { chunk_bytes } => {
            let all = all(name, &children)?;
            let chunk = chunk_blocks(*chunk_bytes, present.first().map(|(_, info)| info)).map_err(refused)?;
            Built::Stripe(Arc::new(StripeDevice::new(name, all, chunk)?))
        }
        DeviceSpec::Mirror(options) => {
            Built::Mirror(Arc::new(MirrorDevice::open(reactor, name, children, options).await?))
        }
        DeviceSpec::Parity(options) => {
            Built::Parity(Arc::new(ParityDevice::open(reactor, name, children, options).await?))
        }
        DeviceSpec::Linear(extents) => {
            Built::Linear(Arc::new(LinearDevice::new(name, all(name, &children)?, extents.clone())?))
        }
        DeviceSpec::Checksum(options) => {
            Built::Checksum(Arc::new(ChecksumDevice::open(reactor, name, child()?, options).await?))
        }
        DeviceSpec::Encrypt { key, options } => {
            Built::Encrypt(Arc::new(EncryptDevice::open(reactor, name, child()?, key, options).await?))
        }
        DeviceSpec::RateLimit(limits) => Built::RateLimit(Arc::new(RateLimitDevice::new(name, child()?, *limits))),
        DeviceSpec::Delay { delays, seed } => Built::Delay(Arc::new(DelayDevice::new(name, child()?, *delays, *seed))),
        DeviceSpec::Error { rules, seed } => Built::Error(Arc::new(ErrorDevice::new(name, child()?, rules, *seed)?)),
        DeviceSpec::Zoned(options) => {
            Built::Zoned(Arc::new(ZonedDevice::open(reactor, name, child()?, options).await?))
        }
        DeviceSpec::ZoneBands(options) => {
            let (head, zoned) = match &all(name, &children)?[..] {
                [head, zoned] => (Some(head.clone()), zoned.clone()),
                [zoned] => (zoned.conventional(), zoned.clone()),
                _ => {
                    return Err(refused("it stands on a head that is written in place and a zoned device".to_string()));
                }
            };
            let without = || {
                format!(
                    "'{}' has no conventional zones; give a device that is written in place as 'head'",
                    zoned.name()
                )
            };
            let head = head.ok_or_else(without).map_err(refused)?;
            let device = ZoneBandsDevice::open(reactor, name, head, zoned, options).await?;
            Built::ZoneBands(Arc::new(device))
        }
        DeviceSpec::FlashCache(options) => {
            let [Some(slow), flash] = &children[..] else {
                let reason = "it stands on a slow device, which must be there, and a flash device".to_string();
                return Err(DeviceError::Config { device: name.to_string(), reason });
            };
            let cache = FlashCacheDevice::open(reactor, name, slow.clone(), flash.clone(), options).await?;
            Built::FlashCache(Arc::new(cache))
        }
        DeviceSpec::RemoteCore => Built::RemoteCore(Arc::new(RemoteDevice::new(reactor, child()?)?)),
    })
}

/// What [`build`] makes of blank children like these, named; otherwise why it makes nothing. `None` where only who opens the
/// device can tell.
pub fn plan(spec: &DeviceSpec, children: &[(&str, DeviceInfo)]) -> Option<Result<DeviceInfo, String>> {
    if let Err(reason) = refuse_rows(spec, children) {
        return Some(Err(reason));
    }
    let infos: Vec<DeviceInfo> = children.iter().map(|(_, info)| *info).collect();
    Some(match (spec, children) {
        (DeviceSpec::Mem { block_size, bytes, .. }, _) => {
            Ok(MemDevice::plan(*block_size, blocks_of(*bytes, *block_size)))
        }
        (DeviceSpec::File(options), _) => Ok(FileDevice::plan(options.block_size, options.create_bytes?)),
        (DeviceSpec::Stripe { chunk_bytes }, _) => {
            chunk_blocks(*chunk_bytes, infos.first()).and_then(|chunk| StripeDevice::plan(&infos, chunk))
        }
        (DeviceSpec::Mirror(options), _) => MirrorDevice::plan(&infos, options),
        (DeviceSpec::Parity(options), _) => ParityDevice::plan(children, options),
        (DeviceSpec::Checksum(_), [(_, child)]) => ChecksumDevice::plan(child),
        (DeviceSpec::Encrypt { options, .. }, [(_, child)]) => EncryptDevice::plan(child, options),
        (DeviceSpec::Zoned(options), [(_, child)]) => ZonedDevice::plan(child, options),
        (DeviceSpec::ZoneBands(_), [head, zoned]) => ZoneBandsDevice::plan(*head, *zoned),
        (spec, [(_, child)]) if passes_on(spec) => Ok(*child),
        _ => return None,
    })
}

/// Whether it does with every operation what the device below does with it.
fn passes_on(spec: &DeviceSpec) -> bool {
    matches!(
        spec,
        DeviceSpec::RateLimit(_) | DeviceSpec::Delay { .. } | DeviceSpec::Error { .. } | DeviceSpec::RemoteCore
    )
}

/// Over a device that takes whole rows only what passes every operation on as it is can stand, apart from who plans with rows.
fn refuse_rows(spec: &DeviceSpec, children: &[(&str, DeviceInfo)]) -> Result<(), String> {
    match children.iter().find(|(_, info)| info.rows.is_some()) {
        Some((child, _)) if !passes_on(spec) => {
            Err(format!("'{child}' is written in whole rows alone; put a shaped pool on it"))
        }
        _ => Ok(()),
    }
}

fn blocks_of(bytes: u64, block_size: u32) -> u64 {
    bytes / block_size.max(1) as u64
}

/// Blocks of a stripe's chunk.
fn chunk_blocks(chunk_bytes: u64, child: Option<&DeviceInfo>) -> Result<u32, String> {
    let block_size = child.map_or(1, |info| info.block_size as u64);
    if !chunk_bytes.is_multiple_of(block_size) || chunk_bytes / block_size > u32::MAX as u64 {
        return Err(format!("chunks of {chunk_bytes} bytes are not whole blocks of {block_size}"));
    }
    Ok((chunk_bytes / block_size) as u32)
}

fn all(name: &str, children: &[Option<Arc<dyn BlockDevice>>]) -> Result<Vec<Arc<dyn BlockDevice>>, DeviceError> {
    let reason = "a child is absent; only a mirror or a parity device can do without".to_string();
    let missing = || DeviceError::Config { device: name.to_string(), reason: reason.clone() };
    children.iter().map(|child| child.clone().ok_or_else(missing)).collect()
}

fn one(name: &str, children: &[Option<Arc<dyn BlockDevice>>]) -> Result<Arc<dyn BlockDevice>, DeviceError> {
    let mut children = all(name, children)?;
    if children.len() == 1 {
        return Ok(children.remove(0));
    }
    let reason = format!("it stands on {} children, expected 1", children.len());
    Err(DeviceError::Config { device: name.to_string(), reason })
}
