//! What is durable: the zone table on the device below, made, read, and written by flushes and changes of state.

use super::format::{self, Condition, Entry, Superblock};
use super::states::PageState;
use super::{Geometry, Inner};
use crate::io::{Io, Status};
use crate::slots::{Found, Kind, Slots, Stamp, Unit};

/// The units of one page of the table, as slots.
struct PageSlots<'a, 'b> {
    slots: &'a Slots<'b>,
    page: usize,
}

impl PageSlots<'_, '_> {
    /// Writes both copies, durably, from copy `first` on. Where it fails: the copy that may be torn.
    async fn write(&self, first: u64, unit: &Unit) -> Result<(), (u64, Status)> {
        for step in 0..format::PAGE.copies {
            let copy = (first + step) % format::PAGE.copies;
            let written = self.slots.write_unit(Geometry::page_unit(self.page, copy), unit).await;
            written.map_err(|status| (copy, status))?;
        }
        Ok(())
    }

    /// The newest copy, and whether both are equal.
    async fn read(&self, id: &[u8; 16], geometry: &Geometry) -> Option<(Stamp, Vec<Entry>, PageState, bool)> {
        let mut newest: Option<(Stamp, Vec<Entry>, u64)> = None;
        let mut equal = 0;
        for copy in 0..format::PAGE.copies {
            let Ok(unit) = self.slots.read_unit(Geometry::page_unit(self.page, copy)).await else { continue };
            let crate::slots::Content::Record(stamp, body) = format::PAGE.open(&unit) else { continue };
            let Some(entries) = format::decode_page(stamp, body, id, self.page, geometry) else { continue };
            match &newest {
                Some((other, ..)) if other.generation == stamp.generation => equal += 1,
                Some((other, ..)) if other.generation > stamp.generation => {}
                _ => (newest, equal) = (Some((stamp, entries, copy)), 1),
            }
        }
        let (stamp, entries, copy) = newest?;
        let state =
            PageState { generation: stamp.generation, first: (copy + 1) % format::PAGE.copies, in_doubt: false };
        Some((stamp, entries, state, equal == format::PAGE.copies))
    }
}

/// Makes an empty table, and the superblock last.
pub(super) async fn create(slots: &Slots<'_>, made: &Superblock) -> Result<(), Status> {
    // Nothing may find what was there before, half overwritten.
    slots.write(0, &[0; crate::slots::UNIT_BYTES]).await?;
    for page in 0..made.geometry.pages() {
        let entries = vec![Entry::EMPTY; made.geometry.zones_of_page(page)];
        let unit = format::encode_page(made.stamp, page, &entries);
        PageSlots { slots, page }.write(0, &unit).await.map_err(|(_, status)| status)?;
    }
    slots.channel.submit(Io::flush()).await.status.check()?;
    slots.write(0, &made.encode()).await
}

/// Makes the copies of the superblock equal again. It is found without that.
pub(super) async fn repair_superblock<T>(slots: &Slots<'_>, name: &str, found: &Found<T>, kept: &Superblock) {
    if found.damaged > 0
        && let Err(status) = slots.write(found.first, &kept.encode()).await
    {
        tracing::warn!(device = name, %status, "a copy of its superblock cannot be rewritten");
    }
}

/// Reads the table. Zones of a page without any whole copy are offline: nobody knows what of them is written.
pub(super) async fn load(
    slots: &Slots<'_>,
    name: &str,
    id: &[u8; 16],
    geometry: &Geometry,
) -> Result<(Vec<Entry>, Vec<PageState>), Status> {
    let (mut all, mut pages) = (Vec::with_capacity(geometry.zones as usize), Vec::new());
    for page in 0..geometry.pages() {
        let of_page = PageSlots { slots, page };
        let count = geometry.zones_of_page(page);
        let Some((stamp, entries, state, is_whole)) = of_page.read(id, geometry).await else {
            tracing::error!(
                device = name,
                page,
                zones = count,
                "a page of its zone table is lost; its zones are offline"
            );
            all.extend(std::iter::repeat_n(Entry { condition: Condition::Offline, ..Entry::EMPTY }, count));
            pages.push(PageState { generation: 0, first: 0, in_doubt: false });
            continue;
        };
        if !is_whole {
            // The other copy may be the last word of a crash; what is relied on from now on is in both.
            let unit = format::encode_page(stamp, page, &entries);
            of_page.write(state.first, &unit).await.map_err(|(_, status)| status)?;
        }
        all.extend(entries);
        pages.push(state);
    }
    Ok((all, pages))
}

impl Inner {
    /// Makes durable what is acknowledged, of one zone or of all: the blocks, then the pointers.
    pub(super) async fn flush(&self, only: Option<usize>) -> Result<(), Status> {
        let snapshot = self.with(|states| states.snapshot(only));
        self.child().submit(Io::flush()).await.status.check()?;
        for page in self.with(|states| states.made_durable(&snapshot)) {
            self.store_page(page).await?;
        }
        Ok(())
    }

    /// Writes a page of the table unless it says already what it has to.
    pub(super) async fn store_page(&self, page: usize) -> Result<(), Status> {
        let _turn = self.shared.page_turns.lock(page as u64, 1, true).await;
        let (changed, mut state) = self.with(|states| (states.changed_page(page), states.pages[page]));
        let Some(entries) = changed else { return Ok(()) };
        state.generation += 1;
        let stamp = Stamp { id: self.shared.id, generation: state.generation };
        let unit = format::encode_page(stamp, page, &entries);
        let (block_size, kind): (u32, Kind) = (self.shared.base.block_size, format::PAGE);
        let slots = Slots { reactor: &self.reactor, channel: self.child(), block_size, kind };
        let written = PageSlots { slots: &slots, page }.write(state.first, &unit).await;
        state.in_doubt = written.is_err();
        if let Err((copy, _)) = written {
            state.first = copy;
        }
        self.with(|states| {
            states.pages[page] = state;
            if written.is_ok() {
                states.stored_page(page, &entries);
            }
        });
        written.map_err(|(_, status)| status)
    }
}
