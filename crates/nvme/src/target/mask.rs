//! Which hosts see which namespaces of a subsystem they may connect to.
//!
//! A namespace without a mask is seen by every host of its subsystem. For a host that a mask leaves out the namespace does
//! not exist: no list, log or command knows it. What such a host had registered stays in the namespace's reservations,
//! where the others can preempt it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::controller::Controller;
use super::model::{HOSTS_MAX, ModelError, Namespace, Subsystem};
use super::{SubsystemId, Target};
use crate::spec::Nqn;

/// The hosts that see a namespace.
pub type Mask = Arc<BTreeSet<Nqn>>;

/// Whether a mask, if there is one, shows its namespace to a host.
pub fn shows(mask: Option<&Mask>, host: &Nqn) -> bool {
    mask.is_none_or(|hosts| hosts.contains(host))
}

impl Subsystem {
    /// The hosts that see a namespace; `None` is every host.
    pub fn mask(&self, nsid: u32) -> Option<&Mask> {
        self.masks.get(&nsid)
    }

    /// A namespace, if it exists for this host.
    pub fn namespace_of(&self, host: &Nqn, nsid: u32) -> Option<&Namespace> {
        self.namespace(nsid).filter(|_| shows(self.mask(nsid), host))
    }

    /// The ids of the namespaces that exist for this host, increasing.
    pub fn namespaces_of<'a>(&'a self, host: &'a Nqn) -> impl Iterator<Item = u32> + 'a {
        self.active_above(0).filter(|nsid| shows(self.mask(*nsid), host))
    }
}

impl Controller {
    /// A namespace of its subsystem, if it exists for its host.
    pub(super) fn namespace<'s>(&self, subsystem: &'s Subsystem, nsid: u32) -> Option<&'s Namespace> {
        // A host that knows the NVM command set alone must not take a zoned namespace for one of that.
        let is_known = |namespace: &&Namespace| namespace.zoned.is_none() || self.has_all_command_sets();
        subsystem.namespace_of(self.host_nqn(), nsid).filter(is_known)
    }
}

impl Target {
    /// Shows a namespace to these hosts alone, or to all. Hosts for which it comes or goes are told.
    pub fn set_mask(&mut self, id: SubsystemId, nsid: u32, mask: Option<Mask>) -> Result<(), ModelError> {
        check(mask.as_ref())?;
        let subsystem = self.nvm_subsystem_mut(id)?;
        subsystem.namespace(nsid).ok_or(ModelError::NoSuchNamespace(nsid))?;
        let before = subsystem.masks.remove(&nsid);
        subsystem.masks.extend(mask.clone().map(|mask| (nsid, mask)));
        if before == mask {
            return Ok(());
        }
        for controller in self.controllers.values_mut().filter(|one| one.subsystem() == id) {
            if !shows(mask.as_ref(), controller.host_nqn()) {
                controller.notices.forget(nsid);
            }
        }
        self.tell_of_namespace(id, nsid, |host| shows(before.as_ref(), host) != shows(mask.as_ref(), host));
        Ok(())
    }
}

pub(super) fn check(mask: Option<&Mask>) -> Result<(), ModelError> {
    if mask.is_some_and(|hosts| hosts.len() > HOSTS_MAX) { Err(ModelError::HostsFull) } else { Ok(()) }
}
