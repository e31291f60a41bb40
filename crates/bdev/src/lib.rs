//! Block devices: the waist that everything storing blocks implements, the leaf devices, and the filters that stack on
//! them.
//!
//! Leaves: [`MemDevice`], [`NullDevice`], [`FileDevice`]. Filters: [`StripeDevice`], [`MirrorDevice`], [`ParityDevice`],
//! [`ChecksumDevice`], [`EncryptDevice`], [`LinearDevice`], [`RateLimitDevice`], [`RemoteDevice`], [`StatsDevice`], [`DelayDevice`],
//! [`FlashCacheDevice`], [`ErrorDevice`], [`ModelSsdDevice`] and [`ModelDiskDevice`], which have the times of a modelled drive and disk, and [`ZonedDevice`], which makes zones of a
//! device without any, as a block device of the system may have them ([`ZonedDriveDevice`]); [`ZoneBandsDevice`], which makes rows for shaped
//! pools of one that has them. Every one passes [`conformance`].
//!
//! What is not here: a lock held across an await, an allocation per operation in steady state, a panic on bytes that come
//! from a disk.
#![forbid(unsafe_code)]

mod blank;
mod checksum;
pub mod conformance;
mod delay;
pub mod device;
mod disks;
mod encrypt;
mod error;
mod file;
mod filter;
mod fit;
pub mod flash_cache;
mod flush_line;
mod front;
mod hold;
mod inspect;
pub mod io;
mod linear;
mod mem;
mod mem_marks;
mod mem_stripes;
mod mem_zeroes;
mod mirror;
mod model_disk;
pub mod model_ssd;
mod null;
mod openings;
mod overlay;
mod pace;
mod parity;
mod part_name;
mod part_size;
mod parts;
mod range_lock;
mod rate_limit;
mod remote;
mod signs;
pub mod slots;
mod spec;
mod split;
mod stats;
pub mod steps;
mod stripe;
mod zone;
mod zone_bands;
mod zone_changes;
mod zone_reads;
mod zone_wait;
mod zoned;
mod zoned_drive;

pub use checksum::{ChecksumDevice, ChecksumOptions};
pub use delay::{Delay, DelayDevice, DelayPolicy, Delays};
pub use device::{BlockDevice, Channel, DeviceError, DeviceInfo, RowInfo, RowZones, ZonedInfo};
pub use disks::{Disks, ReadGauge, Reads};
pub use encrypt::{EncryptDevice, EncryptOptions, USER_KEY_BYTES_MIN, UserKey};
pub use error::{ErrorDevice, ErrorPolicy, ErrorRule, Fault, RULES_MAX, When};
pub use file::{FileDevice, FileDeviceOptions};
pub use filter::{Filter, Policy};
pub use flash_cache::{FlashCacheCounts, FlashCacheDevice, FlashCacheOptions, FlashCacheStatus};
pub use flush_line::{FlushEar, FlushLine};
pub use hold::HOLD_LOOK_NS;
pub use inspect::{OpenFor, ReadOnlyDevice, ReadOnlyPolicy, inspected};
pub use io::{Done, Flags, Io, Lba, Op, OpSet, Status};
pub use linear::{EXTENTS_MAX, Extent, LinearDevice};
pub use mem::MemDevice;
pub use mirror::{LEGS_MAX, LegState, LegStatus, MirrorDefect, MirrorDevice, MirrorOptions, MirrorStatus};
pub use model_disk::ModelDiskDevice;
pub use model_ssd::{ModelSsdDevice, SsdModel};
pub use null::NullDevice;
pub use openings::are_known_to_differ;
pub use overlay::{KEPT_BYTES_MAX, OverlayDevice};
pub use parity::{
    MemberState, MemberStatus, OlderCopy, PARITY_MEMBERS_MAX, PARITY_MEMBERS_MIN, ParityDefect, ParityDevice,
    ParityOptions, ParityStatus, RebuildStatus,
};
pub use rate_limit::{Limits, RateLimitDevice, RateLimitPolicy, RateLimiter};
pub use remote::RemoteDevice;
pub use signs::{SIGN_BYTES, what_is_on};
pub use spec::{Built, DeviceSpec, build, build_for, plan};
pub use stats::{DeviceCounts, DeviceStats, LatencyClass, OpCounts, StatsDevice};
pub use stripe::{STRIPE_CHILDREN_MAX, StripeDevice};
pub use zone::{ZONE_RECORD_BYTES, Zone, ZoneState};
pub use zone_bands::{ZoneBandsDefect, ZoneBandsDevice, ZoneBandsOptions, ZoneBandsStatus};
pub use zone_changes::{ChangedZones, ZONE_CHANGES_MAX, ZoneChanges};
pub use zoned::{ZONE_EXTENSION_BYTES_MAX, ZONES_MAX, ZonedDevice, ZonedOptions};
pub use zoned_drive::ZonedDriveDevice;
