//! What is made durable on the slow device: the anchor, the marks, and the image of a clean close.

use super::format::{ANCHOR, Anchor, Geometry, IMAGE, MARKS, PAGE_MARKS, PAGE_SLOTS, page_body};
use super::ring::Found;
use super::{Inner, Mode, State};
use crate::io::{Io, Status};
use crate::slots::{Kind, Slots, Stamp};

/// Between two looks whether everything has been written, and how often it is looked.
const SETTLE_LOOK_NS: u64 = 1_000_000;
const SETTLE_LOOKS_MAX: u64 = 2_000;

impl Inner {
    fn slots(&self, kind: Kind) -> Slots<'_> {
        let block_size = self.shared.info.block_size;
        Slots { reactor: &self.reactor, channel: &*self.slow, block_size, kind }
    }

    /// Writes the anchor with changes; nothing may rely on them before.
    pub(super) async fn write_anchor(&self, change: impl FnOnce(&mut Anchor)) -> Result<(), Status> {
        let _turn = self.shared.anchor_turn.lock(0, 1, true).await;
        self.write_anchor_in_turn(change).await
    }

    async fn write_anchor_in_turn(&self, change: impl FnOnce(&mut Anchor)) -> Result<(), Status> {
        let (next, first) = self.shared.with(|state| {
            let mut next =
                Anchor { written_total: state.ring.written_total, bins: state.ring.window.bins(), ..state.anchor };
            change(&mut next);
            // A number of its own, also after one that may be on a single copy.
            state.anchor_attempts += 1;
            next.stamp.generation = state.anchor_attempts;
            (next, state.anchor_first)
        });
        let (slots, unit) = (self.slots(ANCHOR), ANCHOR.seal(next.stamp, &next.body()));
        for copy in (0..ANCHOR.copies).map(|step| (first + step) % ANCHOR.copies) {
            if let Err(status) = slots.write_unit(copy, &unit).await {
                self.shared.with(|state| state.anchor_first = copy);
                return Err(status);
            }
        }
        self.shared.with(|state| {
            state.anchor = next;
            state.is_clean = next.clean;
            state.trust.reserved_to = next.reserved_to;
            state.trust.void_to = next.void_to;
        });
        Ok(())
    }

    /// Before anything changes after a clean close: the image is no longer true.
    pub(super) async fn reopen(&self) -> Result<(), Status> {
        let _turn = self.shared.anchor_turn.lock(0, 1, true).await;
        if !self.shared.with(|state| state.is_clean) {
            return Ok(());
        }
        self.write_anchor_in_turn(|anchor| (anchor.clean, anchor.session) = (false, anchor.session + 1)).await
    }

    /// Makes the marks of regions durable that [`want_marks`](super::trust::Trust::want_marks) has noted.
    pub(super) async fn write_marks(&self, regions: &[u64]) -> Result<(), Status> {
        let mut done = None;
        for page in regions.iter().map(|region| region / PAGE_MARKS) {
            if done != Some(page) {
                self.write_mark_page(page).await?;
                done = Some(page);
            }
        }
        Ok(())
    }

    async fn write_mark_page(&self, page: u64) -> Result<(), Status> {
        let _turn = self.shared.page_turns.lock(page, 1, true).await;
        let (marks, new, session) = self.shared.with(|state| {
            let (marks, new) = state.trust.marks_to_write(page * PAGE_MARKS, PAGE_MARKS);
            (marks, new, state.anchor.session)
        });
        if new.is_empty() {
            // Another write has made them durable while this one waited.
            return Ok(());
        }
        if !self.shared.skips_marks {
            let stamp = Stamp { id: self.shared.cache_id, generation: session };
            let (slots, unit) = (self.slots(MARKS), MARKS.seal(stamp, &page_body(page, &marks)));
            for copy in 0..MARKS.copies {
                slots.write_unit(Geometry::mark_unit(page, copy), &unit).await?;
            }
        }
        self.shared.with(|state| state.trust.marked(&new));
        Ok(())
    }

    /// Flushes the slow device, and notes what that makes of the cached blocks.
    pub(super) async fn flush(&self) -> Result<(), Status> {
        let line = &self.shared.flushes;
        let (writes, failures) = (self.shared.with(|state| state.trust.writes()), line.failures());
        let slow = self.slow.clone();
        let outcome = line.run(&self.reactor, async move { slow.submit(Io::flush()).await.status.check() }).await;
        self.shared.with(|state| match outcome {
            Ok(now) if now == failures => state.trust.flushed(writes),
            _ => state.trust.flush_failed(),
        });
        outcome.map(drop)
    }

    /// Writes what is in memory and notes what is cached, so that the next opening finds everything.
    pub(super) async fn settle(self: &std::rc::Rc<Self>) -> Result<(), Status> {
        self.wait_for(|state| state.mode != Mode::Loading).await;
        let now_ns = self.reactor.clock_ns();
        if self.shared.with(|state| !state.uses_flash(now_ns) || state.is_clean) {
            return self.flush().await;
        }
        self.shared.with(|state| state.ring.seal());
        self.flush().await?;
        self.kick();
        self.wait_for(|state| !state.is_pumping).await;
        let _turn = self.shared.anchor_turn.lock(0, 1, true).await;
        // From here on nothing is let in, and a write waits for an anchor that is not clean.
        let (words, next_seq, session) = self.shared.with(|state| {
            state.is_clean = true;
            let ring = &state.ring;
            let mut words = vec![0u64; (ring.index.slots() as usize).div_ceil(64)];
            for slot in 0..ring.index.slots() as u32 {
                let is_cached = |lba| ring.find(lba) == Found::Flash(slot);
                let bit = ring.index.in_slot(slot).is_some_and(is_cached);
                words[slot as usize / 64] |= (bit as u64) << (slot % 64);
            }
            (words, ring.next_seq, state.anchor.session)
        });
        let closed = async {
            self.flush().await?;
            self.write_image(&words, session).await?;
            self.write_anchor_in_turn(|anchor| (anchor.clean, anchor.next_seq) = (true, next_seq)).await
        };
        let closed = closed.await;
        if closed.is_err() {
            // The anchor may say that it is closed all the same: so it is opened again before anything changes.
            self.write_anchor_in_turn(|anchor| (anchor.clean, anchor.session) = (false, anchor.session + 1)).await?;
            self.shared.with(|state| state.is_clean = false);
        }
        closed
    }

    /// Waits until that is so, but not for ever.
    async fn wait_for(&self, is_so: impl Fn(&State) -> bool) {
        for _ in 0..SETTLE_LOOKS_MAX {
            if self.shared.with(|state| is_so(state)) {
                break;
            }
            self.reactor.sleep_ns(SETTLE_LOOK_NS).await;
        }
    }

    async fn write_image(&self, words: &[u64], session: u64) -> Result<(), Status> {
        let (geometry, stamp) = (self.shared.geometry, Stamp { id: self.shared.cache_id, generation: session });
        let pages = (0..geometry.image_pages).zip(words.chunks(PAGE_SLOTS as usize / 64));
        let units = pages.map(|(page, words)| IMAGE.seal(stamp, &page_body(page, words)));
        let most = self.shared.slow.info().max_io_blocks;
        self.slots(IMAGE).write_run(geometry.image_unit(0), units, most).await?;
        self.slow.submit(Io::flush()).await.status.check()
    }
}
