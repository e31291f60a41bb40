//! Descriptor extensions: bytes of a host's own beside a zone, set while it is empty and kept until it is reset.
//!
//! The bytes are in a unit of the zone's own; that they count is in the zone table. They are written while the table says that
//! there are none, durably, and the table after them: so after a crash a zone has all of them, and is closed, or has none.

use super::Inner;
use super::format::{self, EXTENSION, PAGE_ZONES};
use super::states::States;
use crate::io::{Io, Status};
use crate::slots::{Content, Slots, Stamp};
use crate::steps;
use crate::zone::ZoneState;
use crate::zone_wait::Held;

impl Inner {
    /// Sets the extension of an empty zone, which is closed afterwards.
    pub(super) async fn set_extension(&self, io: &Io) -> Result<(), Status> {
        let zone = self.shared.geometry.zone_of(io.lba.0);
        let mut held = Held::take(&self.shared.states, [zone]).await;
        self.with(|states| states.close_empty(zone))?;
        let stored = self.store_extension(&mut held, zone, io).await;
        if stored.is_err() {
            // Nothing was written to it: it is what it was.
            self.with(|states| states.set_state(zone, ZoneState::Empty));
        }
        stored
    }

    async fn store_extension(&self, held: &mut Held<'_, States>, zone: usize, io: &Io) -> Result<(), Status> {
        let mut bytes = vec![0; reactor::buf::sg_len(&io.bufs)];
        steps::sg_read_at(&io.bufs, 0, &mut bytes);
        let page = zone / PAGE_ZONES;
        if self.with(|states| states.pages[page].in_doubt) {
            // What a crash would leave of the table may count on what is about to be overwritten.
            self.store_page(page).await?;
        }
        let unit = format::encode_extension(Stamp { id: self.shared.id, generation: 1 }, zone, &bytes);
        self.extension_slots().write_unit(self.shared.geometry.extension_unit(zone), &unit).await?;
        self.with(|states| states.prepare_extended(zone));
        self.store_prepared(held, &[zone]).await
    }

    /// Reads the extension of a zone into the buffers; zeroes where it has none.
    ///
    /// # Errors
    /// [`Status::ReadError`] where it has one that is damaged.
    pub(super) async fn read_extension(&self, io: &mut Io) -> Result<(), Status> {
        let (geometry, zone) = (&self.shared.geometry, self.shared.geometry.zone_of(io.lba.0));
        let mut bytes = vec![0; reactor::buf::sg_len(&io.bufs)];
        if self.with(|states| states.zone(zone)).has_extension {
            let unit = self.extension_slots().read_unit(geometry.extension_unit(zone)).await?;
            let found = match EXTENSION.open(&unit) {
                Content::Record(stamp, body) if stamp.id == self.shared.id => {
                    format::decode_extension(body, zone, bytes.len())
                }
                _ => None,
            };
            let Some(found) = found else {
                tracing::error!(device = self.shared.name, zone, "the descriptor extension of a zone is damaged");
                return Err(Status::ReadError);
            };
            bytes.copy_from_slice(found);
        }
        steps::sg_write_at(&mut io.bufs, 0, &bytes);
        Ok(())
    }

    fn extension_slots(&self) -> Slots<'_> {
        let block_size = self.shared.base.block_size;
        Slots { reactor: &self.reactor, channel: self.child(), block_size, kind: EXTENSION }
    }
}
