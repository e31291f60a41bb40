//! Flash that does not answer is not waited for.
//!
//! Whoever reads waits for flash as long as slow devices take ([`READ_PATIENCE_NS`]), and asks the slow device then; what fills the
//! cache gives up after [`WRITE_PATIENCE_NS`]. What was given up is *overdue* until flash answers, and keeps its buffers. While
//! anything is overdue nothing further is asked, so a drive that hangs costs each reader one wait at most, and memory for what
//! was under way. When all has been answered flash is used again, with all that it has: the marks of writes are on the slow
//! device, and those do not care for flash. A drive that is late again and again is left alone for a while, twice as long each
//! time.
//!
//! A segment that was given up may be written at any time later. It counts as content of its regions from before it was
//! written, its number is never used again, and whatever it lies over is found out by checksums.
//!
//! ```text
//!           given up                    overdue for TOLD_NS
//!   asked ------------> overdue (quiet) -------------------> hanging
//!     ^                    |                                   |
//!     |  all answered      |    all answered                   |
//!     +--------------------+-----------------------------------+
//!     ^                    | the fourth time without an answer in time between
//!     |     time passes    v
//!     +------------------ rests (hanging)
//! ```

use super::{Inner, State};
use crate::io::Status;
use reactor::IoFuture;
use std::rc::Rc;

/// How long a read waits for flash: a slow device under load takes about as long.
pub(super) const READ_PATIENCE_NS: u64 = 50_000_000;
/// How long writes to flash, and reads for them, are waited for: nobody waits for these.
pub(super) const WRITE_PATIENCE_NS: u64 = 1_000_000_000;
/// How long looking whose flash it is may take when a cache is opened, and reading some of its headers.
pub(super) const OPEN_PATIENCE_NS: u64 = 5_000_000_000;
/// What is overdue for so long is said to hang.
const TOLD_NS: u64 = 1_000_000_000;
/// Times in a row that flash was late, without an answer in time between, after which it is left alone for a while.
const LATE_MAX: u32 = 4;
/// The least and the most of such a while.
const REST_MIN_NS: u64 = 1_000_000_000;
const REST_MAX_NS: u64 = 300_000_000_000;

/// What is known of flash's answers. Logic only: time is an argument.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Operations that were given up and have not been answered.
    overdue: u32,
    /// When the first of them was given up.
    since_ns: u64,
    late_in_row: u32,
    rests_until_ns: u64,
    rest_ns: u64,
    is_told: bool,
}

/// What the last answer that was overdue means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// Others are overdue, or nobody was told of it.
    Quietly,
    /// All has been answered, of which somebody was told.
    Again,
    /// The same; and it is left alone for so long.
    Rests(u64),
}

impl Patience {
    /// Whether flash may be asked for anything.
    pub(super) fn may_ask(&self, now_ns: u64) -> bool {
        self.overdue == 0 && now_ns >= self.rests_until_ns
    }

    /// Whether somebody should know that it is not used.
    pub(super) fn is_hanging(&self, now_ns: u64) -> bool {
        now_ns < self.rests_until_ns || (self.overdue > 0 && now_ns >= self.since_ns + TOLD_NS)
    }

    /// An answer came in time.
    pub(super) fn on_time(&mut self) {
        (self.late_in_row, self.rest_ns) = (0, 0);
    }

    fn gave_up(&mut self, now_ns: u64) {
        if self.overdue == 0 {
            self.since_ns = now_ns;
            self.late_in_row = self.late_in_row.saturating_add(1);
        }
        self.overdue += 1;
    }

    /// Whether it is to be said now that it hangs.
    fn tells(&mut self) -> bool {
        !std::mem::replace(&mut self.is_told, true)
    }

    fn answered(&mut self, now_ns: u64) -> Answered {
        self.overdue -= 1;
        if self.overdue > 0 {
            return Answered::Quietly;
        }
        let was_told = std::mem::take(&mut self.is_told);
        if self.late_in_row < LATE_MAX {
            return if was_told { Answered::Again } else { Answered::Quietly };
        }
        self.rest_ns = (self.rest_ns * 2).clamp(REST_MIN_NS, REST_MAX_NS);
        self.rests_until_ns = now_ns + self.rest_ns;
        Answered::Rests(self.rest_ns)
    }
}

impl State {
    /// Whether flash is used at this moment.
    pub(super) fn uses_flash(&self, now_ns: u64) -> bool {
        self.mode == super::Mode::On && self.patience.may_ask(now_ns)
    }
}

impl Inner {
    /// What flash answers within `patience_ns`, or `None`; then the operation goes on by itself, and flash is not asked until
    /// it has ended.
    pub(super) async fn ask<T: 'static>(
        self: &Rc<Self>,
        mut asked: IoFuture<'static, T>,
        patience_ns: u64,
        status_of: fn(&T) -> Status,
    ) -> Option<T> {
        let patience_ns = if self.shared.waits_for_ever { u64::MAX } else { patience_ns };
        if let Some(answer) = self.reactor.timeout(patience_ns, &mut asked).await {
            return Some(answer);
        }
        let now_ns = self.reactor.clock_ns();
        self.shared.with(|state| {
            state.ring.counts.late += 1;
            state.patience.gave_up(now_ns);
        });
        let inner = self.clone();
        self.reactor.spawn(async move {
            let answer = match inner.reactor.timeout(TOLD_NS, &mut asked).await {
                Some(answer) => answer,
                None => {
                    if inner.shared.with(|state| state.patience.tells()) {
                        let device = &inner.shared.name;
                        tracing::warn!(
                            device,
                            "flash of a cache does not answer: everything is read from the slow device until it does"
                        );
                    }
                    asked.await
                }
            };
            inner.answered(status_of(&answer));
        });
        None
    }

    /// What was overdue has been answered. How it ended is not held against flash: most drives that hang fail all that they
    /// were asked in the end, and are well again.
    fn answered(self: &Rc<Self>, status: Status) {
        let (device, now_ns) = (&self.shared.name, self.reactor.clock_ns());
        match self.shared.with(|state| state.patience.answered(now_ns)) {
            Answered::Quietly => {}
            Answered::Again => tracing::info!(device, "flash of a cache answers again"),
            Answered::Rests(rest_ns) => {
                let seconds = rest_ns / 1_000_000_000;
                tracing::warn!(
                    device,
                    seconds,
                    "flash of a cache is late again and again: it is left alone for a while"
                );
            }
        }
        if status.is_gone() {
            self.flash_failed(status, "answer", |counts| counts.read_errors += 1);
        }
        self.kick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_while_anything_is_overdue() {
        let mut patience = Patience::default();
        assert!(patience.may_ask(0));
        patience.gave_up(100);
        patience.gave_up(200);
        assert!(!patience.may_ask(200) && !patience.is_hanging(200) && patience.is_hanging(100 + TOLD_NS));
        assert!(patience.tells() && !patience.tells());
        assert_eq!(patience.answered(300), Answered::Quietly);
        assert!(!patience.may_ask(300));
        assert_eq!(patience.answered(400), Answered::Again);
        assert!(patience.may_ask(400) && !patience.is_hanging(400));
    }

    #[test]
    fn who_is_late_again_and_again_is_left_alone_longer_each_time_until_an_answer_comes_in_time() {
        let mut patience = Patience::default();
        let late = |patience: &mut Patience, now_ns| {
            patience.gave_up(now_ns);
            patience.answered(now_ns)
        };
        for nth in 1..LATE_MAX {
            assert_eq!(late(&mut patience, 0), Answered::Quietly, "{nth}");
        }
        assert_eq!(late(&mut patience, 0), Answered::Rests(REST_MIN_NS));
        assert!(!patience.may_ask(REST_MIN_NS - 1) && patience.is_hanging(0) && patience.may_ask(REST_MIN_NS));
        assert_eq!(late(&mut patience, REST_MIN_NS), Answered::Rests(2 * REST_MIN_NS));
        for _ in 0..20 {
            late(&mut patience, 0);
        }
        assert_eq!(late(&mut patience, 0), Answered::Rests(REST_MAX_NS));
        patience.on_time();
        assert_eq!(late(&mut patience, 0), Answered::Quietly);
    }
}
