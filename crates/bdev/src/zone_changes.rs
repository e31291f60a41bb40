//! Zones that have changed by themselves, and not because a host asked: for doors that tell their hosts of it.
//!
//! A device notes them, on any reactor; each door remembers how far it has read. Behind a mutex that is held for some
//! instructions: such changes are rare, and no operation of the data path comes here.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Changes that are kept. Who is further behind learns that there were many.
pub const ZONE_CHANGES_MAX: usize = 512;

/// See the module.
#[derive(Default)]
pub struct ZoneChanges(Mutex<Log>);

#[derive(Default)]
struct Log {
    /// Changes ever noted.
    noted: u64,
    /// First blocks of the zones of the last of them.
    kept: VecDeque<u64>,
}

/// What has changed since somebody looked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedZones {
    /// The zones that begin at these blocks, in the order of their changes.
    These(Vec<u64>),
    /// More than are kept.
    Many,
}

impl ZoneChanges {
    /// The zone that begins at this block has changed.
    pub fn note(&self, start: u64) {
        let mut log = self.lock();
        log.noted += 1;
        if log.kept.len() == ZONE_CHANGES_MAX {
            log.kept.pop_front();
        }
        log.kept.push_back(start);
    }

    /// How many changes there were so far: where who looks from now on begins.
    pub fn noted(&self) -> u64 {
        self.lock().noted
    }

    /// What has changed behind the first `seen` changes, which become all.
    pub fn since(&self, seen: &mut u64) -> ChangedZones {
        let log = self.lock();
        let news = log.noted - std::mem::replace(seen, log.noted);
        match usize::try_from(news) {
            Ok(news) if news <= log.kept.len() => {
                ChangedZones::These(log.kept.iter().skip(log.kept.len() - news).copied().collect())
            }
            _ => ChangedZones::Many,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reader_learns_of_each_change_once_and_of_too_many_as_such() {
        let changes = ZoneChanges::default();
        changes.note(7);
        let (mut early, mut late) = (0, changes.noted());
        changes.note(9);
        assert_eq!(changes.since(&mut early), ChangedZones::These(vec![7, 9]));
        assert_eq!(changes.since(&mut late), ChangedZones::These(vec![9]));
        assert_eq!(changes.since(&mut late), ChangedZones::These(vec![]));
        (0..ZONE_CHANGES_MAX as u64).for_each(|start| changes.note(start));
        let ChangedZones::These(all) = changes.since(&mut early) else { panic!("as many as are kept") };
        assert_eq!(all.len(), ZONE_CHANGES_MAX);
        changes.note(3);
        assert_eq!(changes.since(&mut late), ChangedZones::Many);
        assert_eq!(changes.since(&mut late), ChangedZones::These(vec![]));
    }
}
