//! Reservations as a host makes them: commands of an I/O queue of a [`NvmfDevice`].
//!
//! They go out once: a command that is lost with its connection may have been carried out, and only the caller knows what
//! to make of that. (The report says what is.)

use bdev::BlockDevice;
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

use super::command::Direction;
use super::device::NvmfDevice;
use super::error::CommandError;
use super::lane::{Lane, RemoteLane};
use super::link::Broken;
use super::multipath::Group;
use super::request::Raw;
use super::shared::Shared;
use crate::spec::Sqe;
use crate::spec::reservation::{
    AcquireAction, Keys, RCSTS_HOLDER, ReleaseAction, ReportCommand, ReportEntry, ReportHeader, ReservationCommand,
    ReservationType,
};

/// Bytes of a report that are asked for: 255 registrants.
const REPORT_LEN: usize = 16 << 10;

/// Pause between two looks for a queue that is connected, ns.
const SEARCH_PAUSE_NS: u64 = 1_000_000;

/// A host that has registered with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedHost {
    /// Its host identifier.
    pub host_id: [u8; 16],
    /// Its key.
    pub key: u64,
    /// It holds the reservation.
    pub holder: bool,
}

/// What a controller says of a namespace's reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationReport {
    /// Counts changes of registrations.
    pub generation: u32,
    /// Type of the reservation, if there is one.
    pub kind: Option<ReservationType>,
    /// It lasts over a loss of power.
    pub persistent: bool,
    /// Hosts that have registered, as many as fit: more entries may name one host through several controllers.
    pub hosts: Vec<ReportedHost>,
}

impl ReservationReport {
    fn parse(page: &[u8]) -> Option<ReservationReport> {
        let (header, rest) = ReportHeader::read_from_prefix(page).ok()?;
        let count = usize::from(header.registered.get()).min(rest.len() / size_of::<ReportEntry>());
        let (entries, _) = <[ReportEntry]>::ref_from_prefix_with_elems(rest, count).ok()?;
        let hosts = entries.iter().map(|entry| ReportedHost {
            host_id: entry.host_id,
            key: entry.key.get(),
            holder: entry.rcsts & RCSTS_HOLDER != 0,
        });
        Some(ReservationReport {
            generation: header.generation.get(),
            kind: ReservationType::from_u8(header.rtype),
            persistent: header.ptpls != 0,
            hosts: hosts.collect(),
        })
    }
}

impl NvmfDevice {
    /// Carries out a Reservation Register, Acquire or Release. A refusal is [`CommandError::Status`], mostly Reservation
    /// Conflict; [`CommandError::Lost`] says nothing of what became of it.
    pub async fn reserve(
        &self,
        reactor: &Rc<Reactor>,
        command: ReservationCommand,
        keys: Keys,
    ) -> Result<(), CommandError> {
        let data = keys.as_bytes()[..command.data_len() as usize].to_vec();
        self.on_a_queue(reactor, command.to_sqe(self.nsid()), Direction::ToController, data).await.map(drop)
    }

    /// Takes the reservation, for a host that has registered `key`.
    pub async fn acquire(&self, reactor: &Rc<Reactor>, kind: ReservationType, key: u64) -> Result<(), CommandError> {
        let command = ReservationCommand::Acquire { action: AcquireAction::Acquire, kind };
        self.reserve(reactor, command, Keys::new(key, 0)).await
    }

    /// Takes registrations with key `named`, and the reservation if one of them holds it, from others. When this succeeds no
    /// command of theirs that the new reservation forbids is carried out any more.
    pub async fn preempt(
        &self,
        reactor: &Rc<Reactor>,
        kind: ReservationType,
        key: u64,
        named: u64,
    ) -> Result<(), CommandError> {
        let command = ReservationCommand::Acquire { action: AcquireAction::PreemptAndAbort, kind };
        self.reserve(reactor, command, Keys::new(key, named)).await
    }

    /// Gives the reservation back.
    pub async fn release(&self, reactor: &Rc<Reactor>, kind: ReservationType, key: u64) -> Result<(), CommandError> {
        let command = ReservationCommand::Release { action: ReleaseAction::Release, kind: Some(kind) };
        self.reserve(reactor, command, Keys::new(key, 0)).await
    }

    /// What is registered and reserved now.
    pub async fn reservations(&self, reactor: &Rc<Reactor>) -> Result<ReservationReport, CommandError> {
        let command = ReportCommand { len: REPORT_LEN as u64, extended: true };
        let page =
            self.on_a_queue(reactor, command.to_sqe(self.nsid()), Direction::ToHost, vec![0; REPORT_LEN]).await?;
        Ok(ReservationReport::parse(&page).expect("the page is longer than its header"))
    }

    /// Sends a command on a queue of the device that is connected, on whatever reactor; `data` goes with it or comes back.
    async fn on_a_queue(
        &self,
        reactor: &Rc<Reactor>,
        sqe: Sqe,
        direction: Direction,
        data: Vec<u8>,
    ) -> Result<Vec<u8>, CommandError> {
        // Somebody may have one already; if not, this is reason enough to connect one.
        let _channel = self.open_channel(reactor).map_err(|_| CommandError::Lost(Broken::Local))?;
        let group = self.group();
        let trying = async {
            loop {
                let Some((path, server)) = find_server(group, reactor) else {
                    reactor.sleep_ns(SEARCH_PAUSE_NS).await;
                    continue;
                };
                let answer = send_on(reactor, server, sqe, direction, data.clone()).await;
                match answer {
                    // Not begun: it goes to another path, or to this one when that is known to be better again.
                    Err(CommandError::Status(status)) if status.is_ana_refusal() && path.options.ana => {
                        path.request_ana(reactor.now_ns());
                    }
                    answer => return answer,
                }
            }
        };
        let tried = reactor.timeout(group.options.admin_timeout_ns, trying).await;
        tried.unwrap_or(Err(CommandError::Lost(Broken::Timeout)))
    }
}

/// Sends a command on a lane of some reactor, once.
async fn send_on(
    reactor: &Rc<Reactor>,
    server: RemoteLane,
    sqe: Sqe,
    direction: Direction,
    data: Vec<u8>,
) -> Result<Vec<u8>, CommandError> {
    let send = move |there: Rc<Reactor>| async move {
        let lane = there.kept::<Lane>(server.kept).ok_or(CommandError::Lost(Broken::Local))?;
        let raw = Raw { sqe, direction, unlimited: false };
        let (answer, bufs) = lane.command(raw, SgList::from_iter([Buf::from_vec(data)])).await;
        match answer.map_err(CommandError::Lost)?.status() {
            status if status.is_success() => Ok(bufs[0].as_slice().to_vec()),
            status => Err(CommandError::Status(status)),
        }
    };
    reactor.try_call_on(server.reactor, send).await.unwrap_or(Err(CommandError::Lost(Broken::Local)))
}

/// A lane with a queue, on the best path that has one.
fn find_server(group: &Group, reactor: &Reactor) -> Option<(Arc<Shared>, RemoteLane)> {
    let mut paths = group.paths();
    paths.retain(|path| path.ana().refusal().is_none());
    paths.sort_by_key(|path| path.ana());
    paths.into_iter().find_map(|path| {
        let server = path.find_server(0, reactor.group_size())?;
        Some((path, server))
    })
}
