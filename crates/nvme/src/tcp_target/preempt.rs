//! Ending the commands of preempted hosts on one reactor (Base 2.0, section 8.19.7, Preempt and Abort).
//!
//! When this begins, no command that the reservation forbids gets into a device any more: what arrives and what has waited
//! is judged by the new state. So it is enough to wait for what devices have, which they are asked to cut short; what waits
//! for its host's data is answered when that comes, and never carried out.

use super::connection::{Connection, Pending};
use super::local::Local;
use crate::spec::Status;
use crate::target::SubsystemId;
use crate::target::reservation::HostId;
use std::rc::Rc;

impl Local {
    /// Ends all commands of some hosts on a namespace, those of connections that have ended included. Commands on other
    /// namespaces are not cut short, though those under way are waited for.
    pub(super) async fn end_commands(&self, subsystem: SubsystemId, nsid: u32, hosts: &[HostId]) {
        let mut theirs = self.connections();
        theirs.extend(self.leaving());
        theirs.retain(|connection| {
            let owner = connection.owner.get();
            owner.is_some_and(|owner| owner.subsystem == subsystem && hosts.contains(&owner.host))
        });
        for connection in &theirs {
            connection.abort_all(nsid);
        }
        for connection in theirs {
            connection.flights.all_landed().await;
        }
    }
}

impl Connection {
    fn abort_all(self: &Rc<Self>, nsid: u32) {
        let is_theirs = |pending: &&mut Pending| pending.io.as_ref().is_some_and(|(command, _)| command.nsid == nsid);
        for pending in self.pending.borrow_mut().values_mut().filter(is_theirs) {
            pending.aborted = Some(Status::ABORTED_PREEMPT);
        }
        if self.flights.is_empty() {
            return;
        }
        // Also where the host does not see the namespace any more.
        let owner = self.owner.get().expect("the caller has looked");
        let Some(namespace) = self.local.namespace(owner.subsystem, nsid) else { return };
        for cid in self.outstanding_cids() {
            namespace.channel.abort(self.tag(cid));
        }
    }
}
