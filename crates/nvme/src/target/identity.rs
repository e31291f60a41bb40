//! Host identifiers belong to the hosts that have proven who they are.
//!
//! Reservations know a host by its identifier, which it only states. So whoever authenticates itself owns the identifier that
//! it came with, for as long as it has a controller or a registration under it: another host that states it is refused, and
//! one that was let in with it on its word alone loses its controllers.
//!
//! Not here: hosts without keys among each other, whose names prove nothing either. Registrations that are kept over a loss of
//! power belong, after it, to the first who proves itself with their identifier.

use super::reservation::HostId;
use super::{ControllerHandle, Target};
use crate::spec::Nqn;

/// Identifiers with owners at most: as many controllers, and registrations of hosts that have left, as a node is sized for.
const OWNERS_MAX: usize = 16 << 10;

impl Target {
    /// Whether an identifier belongs to another host than the one that states it.
    pub(super) fn is_anothers(&self, id: HostId, host: &Nqn) -> bool {
        self.owners.get(&id).is_some_and(|owner| owner != host && self.is_in_use(id, owner))
    }

    fn is_in_use(&self, id: HostId, owner: &Nqn) -> bool {
        let has_controller = self.controllers.values().any(|one| *one.host_id() == id.0 && one.host_nqn() == owner);
        let registered = |table: &super::reservation::Table| table.registrants().iter().any(|one| one.host == id);
        has_controller || self.tables.values().any(registered)
    }

    /// The host of a controller has authenticated itself: it owns its identifier from now on. False if that is another's.
    pub(super) fn own_identifier(&mut self, handle: ControllerHandle) -> bool {
        let Some(controller) = self.controllers.get(&handle) else { return false };
        let (id, host) = (HostId(*controller.host_id()), controller.host_nqn().clone());
        if id == HostId::NONE {
            return true;
        }
        // Who came with it while its owner was away goes, whoever proves itself with it: the owner as well.
        let others = |one: &super::Controller| *one.host_id() == id.0 && *one.host_nqn() != host && !one.is_discovery();
        if self.owners.get(&id) == Some(&host) {
            self.close_controllers_where(super::WhyClosed::IdentifierOwned, others);
            return true;
        }
        if self.is_anothers(id, &host) {
            return false;
        }
        if self.owners.len() >= OWNERS_MAX {
            let owners = core::mem::take(&mut self.owners);
            self.owners = owners.into_iter().filter(|(id, owner)| self.is_in_use(*id, owner)).collect();
        }
        if self.owners.len() >= OWNERS_MAX {
            return false;
        }
        self.close_controllers_where(super::WhyClosed::IdentifierOwned, others);
        self.owners.insert(id, host);
        true
    }
}
