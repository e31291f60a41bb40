//! Opening devices to look at them, without a trace: what a check of a pool does that may not repair.
//!
//! A device that is opened for use takes notes of that: mirrors and parity devices begin a generation and call failed what is absent,
//! a flash cache gives up what its flash has where that is absent, and headers of which a copy is damaged are rewritten. All of
//! it costs redundancy, or a cache, when somebody only wanted to look while a drive was out. So for [`OpenFor::Inspect`] the
//! devices at the bottom take writes into memory ([`overlay`](crate::overlay)), or refuse them; everything above them
//! decides and reads as it would in use, and what it wrote is gone with it. What only copies, repairs or fills something in the background is not
//! begun.
//!
//! Who opens the topmost device puts a [`ReadOnlyDevice`] over it, so that a write from there is refused and not lost.

use crate::device::{BlockDevice, Channel, DeviceInfo};
use crate::filter::{Filter, Policy};
use crate::io::{Done, Io, Op, Status};
use crate::overlay::OverlayDevice;
use crate::spec::DeviceSpec;
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// What a device is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenFor {
    /// Reading and writing.
    #[default]
    Use,
    /// Looking alone: nothing is written to any medium, nothing is made, and parts that can be done without may be absent.
    Inspect,
}

/// A device at the bottom of others that are only looked at: it takes no write.
pub fn inspected(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let info = device.info();
    match info.zoned.is_none() && info.rows.is_none() {
        true => Arc::new(OverlayDevice::new(device)),
        false => Arc::new(ReadOnlyDevice::new(device)),
    }
}

impl DeviceSpec {
    /// The same device, to be looked at. What is lacking is not made, and does not keep what is there from being opened: nothing
    /// is at stake.
    pub(crate) fn for_inspection(&self) -> DeviceSpec {
        let mut spec = self.clone();
        match &mut spec {
            DeviceSpec::File(options) => (options.create_bytes, options.read_only) = (None, true),
            DeviceSpec::Mirror(options) => (options.create, options.start_degraded) = (false, true),
            DeviceSpec::Parity(options) => options.create = false,
            DeviceSpec::Checksum(options) => options.create = false,
            DeviceSpec::Encrypt { options, .. } => options.create = false,
            DeviceSpec::Zoned(options) => options.create = false,
            DeviceSpec::ZoneBands(options) => options.create = false,
            DeviceSpec::FlashCache(options) => {
                (options.create, options.without_cache, options.admits) = (false, true, false);
            }
            DeviceSpec::Mem { .. }
            | DeviceSpec::Null { .. }
            | DeviceSpec::Stripe { .. }
            | DeviceSpec::Linear(_)
            | DeviceSpec::RateLimit(_)
            | DeviceSpec::Delay { .. }
            | DeviceSpec::Error { .. }
            | DeviceSpec::RemoteCore => {}
        }
        spec
    }
}

/// A device that can only be read: whatever changes it ends as [`Status::ReadOnly`].
pub type ReadOnlyDevice = Filter<ReadOnlyPolicy>;

impl ReadOnlyDevice {
    /// In front of `child`, by its name.
    pub fn new(child: Arc<dyn BlockDevice>) -> ReadOnlyDevice {
        Filter { name: child.name().to_string(), child, policy: Arc::new(ReadOnlyPolicy) }
    }
}

/// See [`ReadOnlyDevice`].
pub struct ReadOnlyPolicy;

impl Policy for ReadOnlyPolicy {
    const KIND: &'static str = "read-only";

    fn channel(self: &Arc<Self>, child: Rc<dyn Channel>, _: DeviceInfo, _: &Rc<Reactor>) -> Rc<dyn Channel> {
        Rc::new(ReadOnlyChannel(child))
    }
}

struct ReadOnlyChannel(Rc<dyn Channel>);

impl Channel for ReadOnlyChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        match io.op {
            op if op.modifies() => IoFuture::ready(io.done(Status::ReadOnly)),
            Op::Flush => IoFuture::ready(io.done(Status::Ok)),
            _ => self.0.submit(io),
        }
    }

    fn abort(&self, tag: u64) {
        self.0.abort(tag);
    }
}
