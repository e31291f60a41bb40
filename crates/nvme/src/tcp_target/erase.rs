//! Format NVM on the home reactor: judged, carried out by the namespace's device, answered when it is durable.
//!
//! While a namespace is formatted its reservations do not change, so a host that lost its right to write to it is not erasing it
//! any more when it learns that. Commands of queues go on beside it: the device orders them.

use super::execute::status_for_host;
use super::home::Home;
use super::local::Local;
use crate::spec::erase::FormatCommand;
use crate::spec::{Cqe, Sqe, Status};
use crate::target::ControllerHandle;
use bdev::{Io, Lba, Op};
use std::rc::Rc;

/// A command of a controller that is carried out here and not by a queue.
struct Carried {
    home: Rc<Home>,
    controller: ControllerHandle,
}

impl Carried {
    fn begin(home: &Rc<Home>, controller: ControllerHandle) -> Result<Carried, Status> {
        let known =
            home.with_target(|target| target.controller(controller).map(|found| (found.subsystem(), found.cntlid())));
        let (subsystem, cntlid) = known.ok_or(Status::ABORTED_SQ_DELETION)?;
        home.make_busy(controller, subsystem, cntlid);
        Ok(Carried { home: home.clone(), controller })
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.home.queue_quiet(self.controller);
    }
}

impl Home {
    /// Carries out a Format NVM that was let in.
    pub(super) async fn format(self: &Rc<Self>, controller: ControllerHandle, sqe: &Sqe) -> Cqe {
        let (this, its) = (self.clone(), *sqe);
        // To its end, whoever waits for it: until then the controller is not at rest.
        let work = self.reactor.spawn_join(async move {
            let _carried = Carried::begin(&this, controller)?;
            this.try_format(controller, &its).await
        });
        let status = work.await.err().unwrap_or(Status::SUCCESS);
        let cqe = Cqe::new(sqe.cid.get(), status);
        if !status.is_success() {
            self.record_error(controller, 0, sqe, &cqe);
        }
        cqe
    }

    async fn try_format(self: &Rc<Self>, controller: ControllerHandle, sqe: &Sqe) -> Result<(), Status> {
        let (nsid, command) = (sqe.nsid.get(), FormatCommand::of(sqe));
        let check = || self.with_target(|target| target.check_format(controller, nsid, &command));
        let _turn = self.reserving.turn((check()?, nsid)).await;
        let subsystem = check()?;
        let namespace = Local::of(&self.reactor, &self.shared).namespace(subsystem, nsid);
        let namespace = namespace.ok_or(Status::NAMESPACE_NOT_READY)?;
        let done = namespace.channel.submit(Io::new(Op::CryptoErase, Lba(0), 0)).await;
        match done.status {
            bdev::Status::Ok => Ok(()),
            // It could when the command came, and has been resized since.
            bdev::Status::Unsupported => Err(Status::INVALID_FORMAT.dnr()),
            failed => Err(status_for_host(failed, Op::CryptoErase)),
        }
    }
}
