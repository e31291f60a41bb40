//! Format NVM: who may erase what (Base 2.0, section 5.14).
//!
//! There is one LBA format, so a format changes nothing but that what was written before cannot be read any more. That is done
//! by replacing the key of an encrypted namespace, whatever secure erase the host asks for: a controller may take it for a user
//! data erase where all data is encrypted, and after any format it must not return what was there. Namespaces that are not
//! encrypted refuse, as do those that a host may not write to.

use super::identify::sees_any;
use super::reservation::{AccessKind, HostId};
use super::{Controller, ControllerHandle, ControllerState, Namespace, SubsystemId, Target};
use crate::spec::erase::{FormatCommand, SecureErase};
use crate::spec::{NSID_ALL, Status};

impl Target {
    /// Whether a controller's host may format a namespace so, as things are now. Returns the subsystem.
    ///
    /// # Errors
    /// The status to complete the command with; nothing changes.
    pub fn check_format(
        &self,
        handle: ControllerHandle,
        nsid: u32,
        command: &FormatCommand,
    ) -> Result<SubsystemId, Status> {
        let controller = self.controllers.get(&handle).ok_or(Status::ABORTED_SQ_DELETION)?;
        if matches!(controller.state(), ControllerState::Disabled | ControllerState::Resetting) {
            // It was reset while the command waited.
            return Err(Status::ABORTED_SQ_DELETION);
        }
        let id = controller.subsystem();
        let subsystem = &self.subsystems[&id];
        if controller.is_discovery() || !sees_any(controller, subsystem, |found| found.crypto_erase) {
            return Err(Status::INVALID_OPCODE);
        }
        // FNA says that there is no format of all namespaces at once: some may be another host's.
        if nsid == NSID_ALL || command.reserved != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let erase = SecureErase::from_u8(command.erase).ok_or(Status::INVALID_FIELD)?;
        let namespace = self.writable(controller, nsid)?;
        if command.lba_format != 0 || command.protection != 0 {
            return Err(Status::INVALID_FORMAT);
        }
        match erase {
            _ if namespace.crypto_erase => Ok(id),
            SecureErase::Crypto => Err(Status::INVALID_FIELD),
            SecureErase::None | SecureErase::UserData => Err(Status::INVALID_FORMAT),
        }
    }

    /// A namespace that a controller's host sees, reaches and may write to.
    fn writable(&self, controller: &Controller, nsid: u32) -> Result<&Namespace, Status> {
        let id = controller.subsystem();
        let subsystem = &self.subsystems[&id];
        let namespace = controller.namespace(subsystem, nsid).ok_or(Status::INVALID_NAMESPACE)?;
        if let Some(refusal) = subsystem.ana_state(namespace, controller.via()).refusal() {
            return Err(refusal);
        }
        if namespace.read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        let host = HostId(*controller.host_id());
        match self.access(id, nsid) {
            Some(access) if !access.allows(host, AccessKind::Write) => Err(Status::RESERVATION_CONFLICT),
            _ => Ok(namespace),
        }
    }
}
