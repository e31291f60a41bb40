//! Reservation Report (Base 2.0, section 7.4).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::Table;
use crate::spec::reservation::{CNTLID_OF_DYNAMIC, RCSTS_HOLDER, ReportEntry, ReportHeader};

/// The report of a table, as many bytes of it as `out` takes; the rest of `out` is zero. Controllers come and go with their
/// hosts, so there is one entry for each host, whatever controllers it has now.
pub(in crate::target) fn report(table: &Table, out: &mut [u8]) {
    out.fill(0);
    let mut header = ReportHeader::new_zeroed();
    header.generation = U32::new(table.generation());
    header.rtype = table.reservation().map_or(0, |held| held.kind as u8);
    header.registered = U16::new(table.registrants().len() as u16);
    header.ptpls = u8::from(table.is_persistent());
    let mut rest = put(out, header.as_bytes());
    for one in table.registrants() {
        let mut entry = ReportEntry::new_zeroed();
        entry.cntlid = U16::new(CNTLID_OF_DYNAMIC);
        entry.rcsts = if table.is_holder(one.host) { RCSTS_HOLDER } else { 0 };
        entry.key = U64::new(one.key);
        entry.host_id = one.host.0;
        // Whole entries only.
        if rest.len() < size_of::<ReportEntry>() {
            return;
        }
        rest = put(rest, entry.as_bytes());
    }
}

fn put<'a>(out: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let len = bytes.len().min(out.len());
    let (head, rest) = out.split_at_mut(len);
    head.copy_from_slice(&bytes[..len]);
    rest
}
