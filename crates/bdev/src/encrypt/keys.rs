//! A volume's key while it is open: expanded once for each channel, so that no two reactors touch the same memory for it,
//! and replaced in all of them by a cryptographic erase. What was replaced is wiped when the last operation that uses it
//! has ended.

use super::xts::{KEY_BYTES, Xts};
use std::sync::{Arc, Mutex, MutexGuard};
use zeroize::Zeroizing;

/// The key of one channel.
pub(super) struct KeySlot(Mutex<Arc<Xts>>);

impl KeySlot {
    /// The key in force. Waits for nobody but a replacement.
    #[inline]
    pub(super) fn cipher(&self) -> Arc<Xts> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Xts>> {
        self.0.lock().expect("nothing panics while holding a key")
    }
}

/// The key of a volume, and the channels that have it.
pub(super) struct Keys(Mutex<State>);

struct State {
    volume_key: Zeroizing<[u8; KEY_BYTES]>,
    slots: Vec<Arc<KeySlot>>,
}

impl Keys {
    pub(super) fn new(volume_key: Zeroizing<[u8; KEY_BYTES]>) -> Keys {
        Keys(Mutex::new(State { volume_key, slots: Vec::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nothing panics while holding the keys")
    }

    /// A slot for a new channel.
    pub(super) fn open(&self) -> Arc<KeySlot> {
        let mut state = self.lock();
        let slot = Arc::new(KeySlot(Mutex::new(Arc::new(Xts::new(&state.volume_key)))));
        state.slots.push(slot.clone());
        slot
    }

    /// A channel is gone.
    pub(super) fn close(&self, slot: &Arc<KeySlot>) {
        self.lock().slots.retain(|other| !Arc::ptr_eq(other, slot));
    }

    /// Gives all channels another key.
    pub(super) fn replace(&self, volume_key: Zeroizing<[u8; KEY_BYTES]>) {
        let mut state = self.lock();
        state.volume_key = volume_key;
        for slot in &state.slots {
            *slot.lock() = Arc::new(Xts::new(&state.volume_key));
        }
    }
}
