//! Cryptographic erase: another key in place of the volume's, so that nothing can be read any more that was written before.
//!
//! The copies of the header are overwritten one after the other, each durably, and the first whole one counts: after a crash
//! the volume opens with the old key (nothing is erased) or with the new one (everything is), and opening makes the other copy
//! equal. No write is under way while the key changes, so none that was acknowledged is lost to the wrong key. Reads go on:
//! those beside the change return what was there, or noise.

use super::format::WrappedKey;
use super::xts::KEY_BYTES;
use super::{EncryptDevice, Header, Shared, front, random_bytes};
use crate::device::{Channel, DeviceError};
use crate::io::Status;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use zeroize::Zeroizing;

/// So long writes may take to end before the key is replaced; others wait meanwhile.
const WRITES_WAIT_NS: u64 = 5_000_000_000;

impl EncryptDevice {
    /// Crypto-erase after which the volume goes on, empty, under the same user's key: what
    /// [`Op::CryptoErase`](crate::Op::CryptoErase) does.
    ///
    /// A child that does not overwrite in place may keep the old wrapped key until it collects it, as with
    /// [`erase`](EncryptDevice::erase).
    pub async fn renew(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let channel = self.shared.child.open_channel(reactor)?;
        let failed = |status| DeviceError::Io { device: self.shared.name.clone(), action: "replace its key", status };
        self.shared.renew_key(reactor, &*channel).await.map_err(failed)
    }
}

impl Shared {
    /// Fails when the volume was erased, or nobody knows which key its header has.
    #[inline]
    pub(super) fn in_service(&self) -> Result<(), Status> {
        let is_out = self.erased.load(Ordering::Acquire) || self.unsure.load(Ordering::Acquire);
        if is_out { Err(Status::Gone) } else { Ok(()) }
    }

    /// Replaces the volume's key. When that fails (with [`Status::Aborted`] because writes do not end) the old
    /// one stays in force; if even that cannot be made sure of, the device
    /// is out of service until it is opened again.
    pub(super) async fn renew_key(&self, reactor: &Rc<Reactor>, child: &dyn Channel) -> Result<(), Status> {
        let alone =
            async { (self.header_lock.lock(0, 1, true).await, self.locks.lock(0, self.info.blocks, true).await) };
        // A write that hangs below must not stop everybody who comes after it.
        let Some(_alone) = reactor.timeout(WRITES_WAIT_NS, alone).await else {
            tracing::warn!(device = self.name, "its key is not replaced: writes to it do not end");
            return Err(Status::Aborted);
        };
        self.in_service()?;
        let base = self.child.info();
        let front = front(reactor, child, &base);
        let old = front.read(Header::decode).await.newest.ok_or(Status::ReadError)?;
        let user_key = self.user_key.lock().expect("nothing panics while holding the key").clone();
        // Who has changed the header behind our back may have data under its key.
        let is_ours = old.key.as_ref().is_some_and(|key| key.unwrap(&user_key.0, &old.volume_id).is_some());
        if !is_ours || old.volume_id != self.header.volume_id {
            return Err(Status::WriteError);
        }
        let volume_key = Zeroizing::new(random_bytes::<KEY_BYTES>(reactor));
        let wrapped = WrappedKey::wrap(&user_key.0, &volume_key, random_bytes(reactor), &old.volume_id);
        let new = Header { key: Some(wrapped), ..old.clone() };
        if let Err(status) = front.write(&new.encode()).await {
            // The first copy may have the new key: then the next opening would find all data unreadable.
            if let Err(again) = front.write(&old.encode()).await {
                self.unsure.store(true, Ordering::Release);
                tracing::error!(device = self.name, status = %again,
                    "its key could neither be replaced nor restored; the device is out of service until it is opened again");
            }
            return Err(status);
        }
        self.keys.replace(volume_key);
        tracing::warn!(device = self.name, "its key was replaced: what was written before cannot be read any more");
        Ok(())
    }
}
