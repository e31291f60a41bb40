//! Zones that an operator takes out of use.

use super::build::{self, Handle};
use super::reactors::on_reactor_async;
use super::view::{DeviceView, ZonesView};
use super::{Node, Refusal};
use bdev::{Built, ZoneBandsStatus, ZoneState};
use std::time::Duration;

/// So long the writes to a zone may take to end that is taken out of use: nothing else is done for operators meanwhile.
const WRITERS_WAIT: Duration = Duration::from_secs(5);

impl Node {
    /// Makes a zone of a zoned device read-only or puts it offline, for good. Hosts that want to know are told.
    pub async fn device_retire_zone(&mut self, name: &str, zone: u64, state: ZoneState) -> Result<DeviceView, Refusal> {
        self.check_running()?;
        self.open_device(name)?;
        let slot = self.slot(name)?;
        let object = format!("device '{name}'");
        let Ok(Handle::Local(Built::Zoned(device))) = slot.live.as_ref().map(|opened| &opened.handle) else {
            let cause = format!("it is a '{}' device and has no zones of its own", slot.def.kind());
            return Err(Refusal::invalid(object, cause, ""));
        };
        let device = device.clone();
        let retire = move |reactor| async move { device.retire(&reactor, zone, state, WRITERS_WAIT).await };
        on_reactor_async(self.reactors.first(), retire).await?.map_err(|error| build::refused(object, error))?;
        tracing::warn!(device = name, zone, state = state.name(), "zone taken out of use");
        self.device_show(name)
    }
}

/// What a zone-bands device tells about its zones, and its state in a few words.
pub(super) fn zones_view(status: &ZoneBandsStatus) -> (ZonesView, String) {
    let ZoneBandsStatus { zones, empty, open, full, read_only, offline, open_max, zone_bytes, head_bytes, .. } =
        *status;
    let state = match (read_only, offline) {
        (0, 0) => "open".to_string(),
        (read_only, 0) => format!("open, {read_only} of {zones} zones read-only"),
        (0, offline) => format!("open, {offline} of {zones} zones offline"),
        (read_only, offline) => format!("open, {read_only} zones read-only and {offline} offline, of {zones}"),
    };
    (ZonesView { zones, empty, open, full, read_only, offline, open_max, zone_bytes, head_bytes }, state)
}
