//! Filters that look like their child and change only when, or how well, operations end: what delay, rate limit and
//! error have in common. Name and kind are the filter's own, everything else is the child's.

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;

/// What a filter does. Shared by all channels; can be changed while they are used.
pub trait Policy: Send + Sync + 'static {
    /// The device's kind.
    const KIND: &'static str;
    /// A channel that acts by it, on `reactor`, in front of the child's.
    fn channel(self: &Arc<Self>, child: Rc<dyn Channel>, info: DeviceInfo, reactor: &Rc<Reactor>) -> Rc<dyn Channel>;
}

/// A device in front of another one, with a policy.
pub struct Filter<P> {
    pub(crate) name: String,
    pub(crate) child: Arc<dyn BlockDevice>,
    pub(crate) policy: Arc<P>,
}

impl<P: Policy> BlockDevice for Filter<P> {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        P::KIND
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(self.policy.channel(self.child.open_channel(reactor)?, self.child.info(), reactor))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba, u64::MAX))
    }

    fn resize<'a>(&'a self, reactor: &'a Rc<Reactor>, blocks: u64) -> IoFuture<'a, Result<(), DeviceError>> {
        self.child.resize(reactor, blocks)
    }

    fn refresh<'a>(&'a self, reactor: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        self.child.refresh(reactor)
    }
}
