//! Zones of a remote namespace: reports, in the form of the block layer.

use bdev::{Done, Io, Lba, Op, Status, Zone, steps};
use reactor::buf::sg_len;
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;

use crate::host::{command, info};
use crate::spec::zns::{ReportHeader, ZoneDescriptor};

use super::command::Direction;
use super::connect::{connect_queue, open_link};
use super::controller::Controller;
use super::error::{CommandError, ConnectError};
use super::lane::Lane;
use super::link::Broken;
use super::multipath::Way;
use super::options::Options;
use super::request::Raw;

/// Zones that are asked for at once: less data than any controller transfers.
const ZONES_AT_ONCE: u64 = 62;
/// Entries of the queue that is connected for one command.
const ENTRIES: u16 = 2;

/// Bytes of a report of so many zones.
fn report_len(zones: u64) -> usize {
    size_of::<ReportHeader>() + zones as usize * size_of::<ZoneDescriptor>()
}

/// Carries out [`Op::ZoneReport`], which has been checked.
pub(super) async fn report_zones(way: Rc<Way>, mut io: Io, zone_blocks: u64) -> Done {
    let (first, count) = (io.lba.0 / zone_blocks, u64::from(io.nblocks));
    let mut found: Vec<Zone> = Vec::with_capacity(count as usize);
    while (found.len() as u64) < count {
        let wanted = (count - found.len() as u64).min(ZONES_AT_ONCE);
        let start = (first + found.len() as u64) * zone_blocks;
        let buf = match steps::alloc(way.reactor(), report_len(wanted)).await {
            Ok(buf) => buf,
            Err(status) => return io.done(status),
        };
        let part =
            Io { bufs: SgList::from_iter([buf]), tag: io.tag, ..Io::new(Op::ZoneReport, Lba(start), wanted as u32) };
        let done = way.submit(part).await;
        if !done.status.is_ok() {
            return io.done(done.status);
        }
        match info::zones(&gathered(&done.io.bufs), start, wanted, zone_blocks) {
            Ok(zones) if zones.len() as u64 == wanted => found.extend(zones),
            _ => return io.done(Status::ReadError),
        }
    }
    Zone::store_report(found, &mut io.bufs);
    io.done(Status::Ok)
}

fn gathered(bufs: &[Buf]) -> Vec<u8> {
    let mut bytes = vec![0; sg_len(bufs)];
    reactor::buf::sg_copy_to(bufs, &mut bytes);
    bytes
}

/// Blocks that can be written of a zone. Only a report tells, and that is an I/O command: it is asked for over a connection of its
/// own, before there is a queue for others.
pub(super) async fn zone_capacity(
    reactor: &Rc<Reactor>,
    options: &Options,
    nsid: u32,
    zone_blocks: u64,
) -> Result<u64, ConnectError> {
    let controller = Controller::connect(reactor, options).await?;
    controller.request_queues(1).await.map_err(controller.failed("get an I/O queue"))?;
    let lane = Lane::of_raw_commands(reactor, 1, options.admin_timeout_ns);
    lane.attach(open_link(reactor, options, ENTRIES).await?, 0);
    connect_queue(reactor, &lane, options, 1, ENTRIES, controller.info().id).await?;
    let buf = Buf::from_vec(vec![0; report_len(ZONES_AT_ONCE)]);
    let sqe = command::report_zones(nsid, 0, buf.len() as u32);
    let raw = Raw { sqe, direction: Direction::ToHost, unlimited: false };
    let (answer, bufs) = lane.command(raw, SgList::from_iter([buf])).await;
    lane.disconnect(Broken::Local);
    let failed = |error| controller.failed("ask for its zones")(error);
    let cqe = answer.map_err(|broken| failed(CommandError::Lost(broken)))?;
    if !cqe.status().is_success() {
        return Err(failed(CommandError::Status(cqe.status())));
    }
    let zones = info::zones(&gathered(&bufs), 0, ZONES_AT_ONCE, zone_blocks);
    let zones = zones.map_err(|error| failed(CommandError::Unusable(error)))?;
    // The association ends with its connection, obeyed or not.
    let _ = reactor.timeout(options.admin_timeout_ns, controller.shutdown()).await;
    // Those that are out of use may have none.
    Ok(zones.iter().map(|zone| zone.capacity).max().filter(|capacity| *capacity > 0).unwrap_or(zone_blocks))
}
