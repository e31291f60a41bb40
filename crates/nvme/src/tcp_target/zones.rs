//! Commands on zones: reports, and appends that tell where they went.

use super::connection::Connection;
use super::execute::status_for_host;
use super::local::Namespace;
use crate::spec::zns::{ReportFilter, ReportHeader, ZONE_ATTRIBUTE_EXTENSION, ZONE_TYPE_SEQUENTIAL, ZoneDescriptor};
use crate::spec::{Cqe, Status};
use crate::target::io::IoCommand;
use bdev::{Io, Lba, Op, ZONE_RECORD_BYTES, Zone, ZoneState};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::U64;

/// Zones that are asked for at once.
const ZONES_AT_ONCE: u64 = 1024;

/// What a report is to tell.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    /// Of which zones.
    pub(super) filter: ReportFilter,
    /// How many it tells of, and not how many there are.
    pub(super) partial: bool,
    /// Their descriptor extensions too.
    pub(super) extended: bool,
}

impl Connection {
    /// Report Zones, and Extended Report Zones.
    pub(super) fn report_zones(self: &Rc<Self>, command: &IoCommand, namespace: Rc<Namespace>, wanted: Wanted) {
        let (this, command) = (self.clone(), *command);
        self.reactor.spawn(async move {
            let len = command.data_len as usize;
            // A host that asks for much and reads nothing waits for itself; it is not under way before.
            if this.take_share(command.cid, len).await.is_none() {
                return this.answer_status(command.cid, Status::ABORT_REQUESTED);
            }
            let report = match this.admit_again(&command) {
                Ok(()) => {
                    let flight = this.take_off();
                    let report = report(&this.reactor, &namespace, command.slba, len, wanted).await;
                    this.land(flight);
                    report
                }
                Err(status) => Err(status),
            };
            this.release_share(len);
            match report {
                Ok(data) => {
                    let cqe = Cqe::new(command.cid, Status::SUCCESS);
                    this.answer_data(cqe, SgList::from_iter([Buf::from_vec(data)]));
                }
                Err(status) => this.answer_status(command.cid, status),
            }
        });
    }
}

/// The data of a report of `len` bytes, a header at least.
async fn report(
    reactor: &Reactor,
    namespace: &Namespace,
    slba: u64,
    len: usize,
    Wanted { filter, partial, extended }: Wanted,
) -> Result<Vec<u8>, Status> {
    let zoned = namespace.model.zoned.expect("only zoned namespaces take the command");
    let (header_len, descriptor_len) = (size_of::<ReportHeader>(), size_of::<ZoneDescriptor>());
    let extension_len = if extended { zoned.extension_bytes as usize } else { 0 };
    let each = descriptor_len + extension_len;
    let mut data = vec![0; len];
    let room = (len - header_len) / each;
    let (mut zone, zones) = (slba / zoned.zone_blocks, namespace.model.block_count / zoned.zone_blocks);
    let (mut matching, mut stored) = (0u64, 0);
    while zone < zones && !(partial && stored == room) {
        let count = ZONES_AT_ONCE.min(zones - zone);
        let records = Buf::from_vec(vec![0; count as usize * ZONE_RECORD_BYTES]);
        let at = Lba(zone * zoned.zone_blocks);
        let io = Io { bufs: SgList::from_iter([records]), ..Io::new(Op::ZoneReport, at, count as u32) };
        let done = namespace.channel.submit(io).await;
        let found = done.status.check().and_then(|()| Zone::load_report(&done.io.bufs));
        let found = found.map_err(|status| status_for_host(status, Op::ZoneReport))?;
        for zone in found.iter().filter(|zone| filter.lists(zone.state as u8)) {
            matching += 1;
            if stored < room {
                let start = header_len + stored * each;
                let (told, extension) = data[start..start + each].split_at_mut(descriptor_len);
                let mut zone = *zone;
                if extended && zone.has_extension {
                    zone.has_extension = store_extension(namespace, &zone, extension).await?;
                }
                told.copy_from_slice(descriptor(&zone).as_bytes());
                stored += 1;
            }
        }
        zone += count;
        reactor.yield_now().await;
    }
    let zone_count = U64::new(if partial { stored as u64 } else { matching });
    data[..header_len].copy_from_slice(ReportHeader { zone_count, ..ReportHeader::default() }.as_bytes());
    Ok(data)
}

/// Puts the descriptor extension of a zone into a report. False, and zeroes: it cannot be read.
async fn store_extension(namespace: &Namespace, zone: &Zone, out: &mut [u8]) -> Result<bool, Status> {
    let bufs = SgList::from_iter([Buf::from_vec(vec![0; out.len()])]);
    let io = Io { bufs, ..Io::new(Op::ZoneReadExtension, Lba(zone.start), 0) };
    let done = namespace.channel.submit(io).await;
    if done.status == bdev::Status::ReadError {
        // One is no reason to hide all zones.
        return Ok(false);
    }
    done.status.check().map_err(|status| status_for_host(status, Op::ZoneReadExtension))?;
    bdev::steps::sg_read_at(&done.io.bufs, 0, out);
    Ok(true)
}

fn descriptor(zone: &Zone) -> ZoneDescriptor {
    // Where the pointer means nothing hosts are told so.
    let is_valid = zone.state.is_active() || zone.state == ZoneState::Empty;
    ZoneDescriptor {
        kind: ZONE_TYPE_SEQUENTIAL,
        state: (zone.state as u8) << 4,
        attributes: if zone.has_extension { ZONE_ATTRIBUTE_EXTENSION } else { 0 },
        capacity: U64::new(zone.capacity),
        start: U64::new(zone.start),
        write_pointer: U64::new(if is_valid { zone.write_pointer } else { u64::MAX }),
        ..ZoneDescriptor::default()
    }
}
