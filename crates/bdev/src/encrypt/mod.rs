//! Encryption at rest: AES-256-XTS, one key per volume, the block's address as the tweak.
//!
//! The volume's key is random and lives in the header, wrapped by the user's key: so the user's key can be changed
//! without rewriting data, a wrong one is refused at once, and overwriting the header makes the data unreadable for good:
//! with nothing in its place ([`erase`](EncryptDevice::erase)), or with another key, under which the volume goes on empty
//! ([`Op::CryptoErase`]). Keys are wiped from memory when dropped and never printed.
//!
//! What it does not do: authenticate. Whoever can write to the child can change blocks to noise or put old ones back; put
//! a checksum filter below to notice accidents. Unmapped blocks read as noise, and show on the child which they are.

pub(crate) mod format;
mod keys;
mod renew;
mod xts;

use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo};
use crate::front::{Front, behind, check_child};
use crate::io::{Done, Io, Op, OpSet, Status};
use crate::range_lock::RangeLock;
use crate::split;
use crate::steps::{self, Medium};
use format::{COPIES, Header, UNIT_BYTES, WrappedKey};
use keys::{KeySlot, Keys};
use reactor::{BUF_BYTES_MAX, Buf, IoFuture, Reactor, SgList};
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use xts::KEY_BYTES;
use zeroize::Zeroizing;

/// The key with which a user opens a volume. Wiped when dropped, never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct UserKey(Zeroizing<Vec<u8>>);

/// Bytes that a user's key must have at least: the strength of the cipher.
pub const USER_KEY_BYTES_MIN: usize = 32;

impl UserKey {
    /// A key of at least 32 bytes with full entropy (not a passphrase).
    pub fn from_bytes(bytes: &[u8]) -> Option<UserKey> {
        (bytes.len() >= USER_KEY_BYTES_MIN).then(|| UserKey(Zeroizing::new(bytes.to_vec())))
    }

    /// The content of a key file: 64 or more hexadecimal digits, or at least 32 raw bytes.
    pub fn from_file_content(content: &[u8]) -> Option<UserKey> {
        let text = content.trim_ascii();
        if text.len() >= 2 * USER_KEY_BYTES_MIN
            && text.len().is_multiple_of(2)
            && text.iter().all(u8::is_ascii_hexdigit)
        {
            let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
            let bytes = text.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1]));
            return Some(UserKey(Zeroizing::new(bytes.collect())));
        }
        UserKey::from_bytes(content)
    }
}

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserKey(..)")
    }
}

/// How an encrypted device is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncryptOptions {
    /// Make a new one where the child's first blocks are zero.
    pub create: bool,
    /// With `create`: make a new one whatever is there.
    pub force: bool,
    /// Pass unmaps on; the child then shows which blocks are unused.
    pub pass_unmap: bool,
}

/// See the module.
pub struct EncryptDevice {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    child: Arc<dyn BlockDevice>,
    info: DeviceInfo,
    header: Header,
    keys: Keys,
    /// What wraps the volume's key.
    user_key: Mutex<UserKey>,
    /// Compare-and-write holds its blocks alone, writes share them; a change of the volume's key holds all of them alone.
    locks: RangeLock,
    /// Held alone by whoever rewrites the header.
    header_lock: RangeLock,
    erased: AtomicBool,
    /// A change of the key failed, and which one the header has is not known.
    unsure: AtomicBool,
}

impl EncryptDevice {
    /// What a new device on such a child would be; otherwise why there cannot be one.
    pub fn plan(child: &DeviceInfo, options: &EncryptOptions) -> Result<DeviceInfo, String> {
        let start = data_start(child)?;
        Ok(describe(child, start, child.blocks - start, options))
    }

    /// Opens (or creates) the encrypted volume on `child`.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        child: Arc<dyn BlockDevice>,
        key: &UserKey,
        options: &EncryptOptions,
    ) -> Result<EncryptDevice, DeviceError> {
        let refused = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let refuse = |reason: &str| Err(refused(reason.to_string()));
        let base = child.info();
        let start = data_start(&base).map_err(refused)?;
        let channel = child.open_channel(reactor)?;
        let front = front(reactor, &*channel, &base);
        let mut found = front.read(Header::decode).await;
        let header = match found.take(options.create, options.force, "encryption header").map_err(refused)? {
            Some(header) => header,
            None => {
                let header = fresh(reactor, &base, start, key);
                let failed = |status| DeviceError::Io { device: name.to_string(), action: "write its header", status };
                front.write(&header.encode()).await.map_err(failed)?;
                found.damaged = 0;
                header
            }
        };
        if header.block_size != base.block_size || header.data_start + header.data_blocks > base.blocks {
            return refuse("the child is smaller than its header says, or has another block size");
        }
        let Some(wrapped) = &header.key else {
            return refuse("the volume was erased; its data cannot be read any more");
        };
        let Some(volume_key) = wrapped.unwrap(&key.0, &header.volume_id) else {
            return refuse("the key does not open this volume; give the one it was created with, or changed to");
        };
        // A copy that differs may be wrapped by a key that was changed, and must not outlive it.
        if !front.repair(name, &found, &header.encode()).await && found.others > 0 {
            // One day it may be the only one that can be read, and what is written from now on would be noise under its key.
            return refuse("a copy of its header has another key, and cannot be overwritten; see to the device below");
        }
        let info = describe(&base, header.data_start, header.data_blocks, options);
        let shared = Shared {
            name: name.to_string(),
            child,
            info,
            header,
            keys: Keys::new(volume_key),
            user_key: Mutex::new(key.clone()),
            locks: RangeLock::new((1 << 20) / base.block_size as u64),
            header_lock: RangeLock::new(1),
            erased: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
        };
        Ok(EncryptDevice { shared: Arc::new(shared) })
    }

    /// Wraps the volume's key with another user's key. The old one opens it no longer.
    pub async fn change_key(&self, reactor: &Rc<Reactor>, old: &UserKey, new: &UserKey) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let refuse =
            |reason: &str| Err(DeviceError::Config { device: shared.name.clone(), reason: reason.to_string() });
        let channel = shared.child.open_channel(reactor)?;
        let base = shared.child.info();
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "change its key", status };
        let _alone = shared.header_lock.lock(0, 1, true).await;
        let front = front(reactor, &*channel, &base);
        let Some(mut header) = front.read(Header::decode).await.newest else { return refuse("its header is gone") };
        let Some(volume_key) = header.key.as_ref().and_then(|key| key.unwrap(&old.0, &header.volume_id)) else {
            return refuse("the old key does not open this volume");
        };
        header.key = Some(WrappedKey::wrap(&new.0, &volume_key, random_bytes(reactor), &header.volume_id));
        front.write(&header.encode()).await.map_err(failed)?;
        *shared.user_key.lock().expect("nothing panics while holding the key") = new.clone();
        Ok(())
    }

    /// Whether it was erased while it was in use.
    pub fn is_erased(&self) -> bool {
        self.shared.erased.load(Ordering::Acquire)
    }

    /// Crypto-erase: destroys the wrapped key, for good. Operations end as [`Status::Gone`] from now on.
    ///
    /// Every copy of the header is overwritten, with noise first and then with a mark, each flushed. A child that does
    /// not overwrite in place (an SSD, a copy-on-write file system) may keep old bytes until it collects them; the user's
    /// key must be destroyed too where that matters.
    pub async fn erase(&self, reactor: &Rc<Reactor>) -> Result<(), DeviceError> {
        let shared = &self.shared;
        shared.erased.store(true, Ordering::Release);
        let channel = shared.child.open_channel(reactor)?;
        let base = shared.child.info();
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "erase its key", status };
        let _alone = shared.header_lock.lock(0, 1, true).await;
        let noise = random_bytes::<UNIT_BYTES>(reactor);
        let front = front(reactor, &*channel, &base);
        front.write(&noise).await.map_err(failed)?;
        let mark = Header { key: None, ..shared.header.clone() };
        front.write(&mark.encode()).await.map_err(failed)
    }
}

/// Where data begin on a child that can be encrypted.
fn data_start(base: &DeviceInfo) -> Result<u64, String> {
    check_child(base, "encryption")?;
    let start = COPIES * unit_blocks(base);
    if base.blocks <= start { Err("the child is too small".to_string()) } else { Ok(start) }
}

fn describe(base: &DeviceInfo, start: u64, blocks: u64, options: &EncryptOptions) -> DeviceInfo {
    let info = behind(base, start, blocks);
    let passed: &[Op] =
        if options.pass_unmap { &[Op::Unmap, Op::WriteUncorrectable] } else { &[Op::WriteUncorrectable] };
    let ops = base.ops.intersection(OpSet::of(passed)).union(info.ops);
    let ops = ops.union(OpSet::of(&[Op::CryptoErase]));
    DeviceInfo { ops, loans: true, streams: base.streams, versions: base.versions, ..info }
}

fn unit_blocks(base: &DeviceInfo) -> u64 {
    (UNIT_BYTES as u64).div_ceil(base.block_size as u64)
}

fn random_bytes<const N: usize>(reactor: &Rc<Reactor>) -> [u8; N] {
    let mut bytes = [0; N];
    reactor.driver().fill_secret(&mut bytes);
    bytes
}

fn fresh(reactor: &Rc<Reactor>, base: &DeviceInfo, start: u64, key: &UserKey) -> Header {
    let volume_key = Zeroizing::new(random_bytes::<KEY_BYTES>(reactor));
    let volume_id = random_bytes(reactor);
    let wrapped = WrappedKey::wrap(&key.0, &volume_key, random_bytes(reactor), &volume_id);
    let (block_size, data_blocks) = (base.block_size, base.blocks - start);
    Header { volume_id, block_size, data_start: start, data_blocks, key: Some(wrapped) }
}

fn front<'a>(reactor: &'a Rc<Reactor>, channel: &'a dyn Channel, base: &DeviceInfo) -> Front<'a> {
    Front { reactor, channel, block_size: base.block_size, copy_blocks: unit_blocks(base), copies: COPIES }
}

impl BlockDevice for EncryptDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn kind(&self) -> &'static str {
        "encrypt"
    }

    fn info(&self) -> DeviceInfo {
        self.shared.info
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let child = self.shared.child.open_channel(reactor)?;
        let (shared, key) = (self.shared.clone(), self.shared.keys.open());
        Ok(Rc::new(EncryptChannel(Rc::new(Inner { shared, reactor: reactor.clone(), child, key }))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.shared.child.clone()]
    }

    fn place(&self, lba: u64) -> Option<(usize, u64, u64)> {
        Some((0, lba + self.shared.header.data_start, u64::MAX))
    }
}

struct EncryptChannel(Rc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    reactor: Rc<Reactor>,
    child: Rc<dyn Channel>,
    key: Arc<KeySlot>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.keys.close(&self.key);
    }
}

impl Channel for EncryptChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        let shared = &self.0.shared;
        if let Err(status) = shared.info.check(&io) {
            return IoFuture::ready(io.done(status));
        }
        if let Err(status) = shared.in_service() {
            return IoFuture::ready(io.done(status));
        }
        let inner = &self.0;
        match io.op {
            Op::Flush => self.0.child.submit(io),
            Op::Unmap | Op::Verify | Op::WriteUncorrectable if shared.child.info().ops.contains(io.op) => {
                self.0.pass(io)
            }
            // A read that is dropped leaves nothing half done.
            Op::Read => IoFuture::new(inner.read(io)),
            Op::Write => {
                let inner = inner.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let _shared = inner.shared.locks.lock(io.lba.0, io.nblocks as u64, false).await;
                    // It may have waited for a change of the key that failed.
                    match inner.shared.in_service() {
                        Ok(()) => inner.write(io).await,
                        Err(status) => io.done(status),
                    }
                })
            }
            _ => {
                let inner = inner.clone();
                IoFuture::steps(&self.0.reactor, async move {
                    let mut io = io;
                    let status = steps::status_of(inner.perform(&mut io).await);
                    io.done(status)
                })
            }
        }
    }

    fn abort(&self, tag: u64) {
        self.0.child.abort(tag);
    }
}

impl Medium for Inner {
    fn reactor(&self) -> &Rc<Reactor> {
        &self.reactor
    }

    fn block_size(&self) -> u32 {
        self.shared.info.block_size
    }

    async fn transfer(&self, io: Io) -> Done {
        if io.op == Op::Read { self.read(io).await } else { self.write(io).await }
    }
}

impl Inner {
    fn pass(&self, io: Io) -> IoFuture<'_, Done> {
        let at = io.lba.0 + self.shared.header.data_start;
        split::pass(&*self.child, at, io)
    }

    async fn perform(&self, io: &mut Io) -> Result<(), Status> {
        if io.op == Op::CryptoErase {
            return self.shared.renew_key(&self.reactor, &*self.child).await;
        }
        let exclusive = io.op == Op::CompareAndWrite;
        let _held = match io.op.modifies() {
            true => Some(self.shared.locks.lock(io.lba.0, io.nblocks as u64, exclusive).await),
            false => None,
        };
        self.shared.in_service()?;
        match io.op {
            Op::WriteZeroes => steps::write_zeroes(self, io).await,
            Op::Compare => steps::compare(self, io).await,
            Op::CompareAndWrite => steps::compare_and_write(self, io).await,
            Op::Copy => steps::copy(self, io).await,
            Op::Verify => steps::verify(self, io).await,
            _ => Err(Status::Unsupported),
        }
    }

    async fn read(&self, mut io: Io) -> Done {
        // A loan could not be decrypted in place.
        if let Err(status) = steps::provide(&self.reactor, &mut io, self.shared.info.block_size).await {
            return io.done(status);
        }
        let mut done = self.pass(io).await;
        if done.status.is_ok()
            && let Err(status) = self.decrypt(done.io.lba.0, &mut done.io.bufs).await
        {
            return done.io.done(status);
        }
        done
    }

    async fn decrypt(&self, lba: u64, bufs: &mut SgList) -> Result<(), Status> {
        let (block_size, cipher) = (self.shared.info.block_size as usize, self.key.cipher());
        if bufs.iter().all(|buf| buf.len().is_multiple_of(block_size)) {
            let mut sector = lba;
            for buf in bufs {
                for block in buf.as_mut_slice().chunks_exact_mut(block_size) {
                    cipher.decrypt(sector, block);
                    sector += 1;
                }
            }
            return Ok(());
        }
        // Blocks that lie across buffers go through one of the pool.
        let (total, mut at) = (reactor::buf::sg_len(bufs), 0);
        let mut whole = steps::alloc(&self.reactor, block_size).await?;
        while at < total {
            steps::sg_read_at(bufs, at, whole.as_mut_slice());
            cipher.decrypt(lba + (at / block_size) as u64, whole.as_mut_slice());
            steps::sg_write_at(bufs, at, whole.as_slice());
            at += block_size;
        }
        Ok(())
    }

    async fn write(&self, io: Io) -> Done {
        let encrypted = match self.encrypt(io.lba.0, &io.bufs).await {
            Ok(encrypted) => encrypted,
            Err(status) => return io.done(status),
        };
        let (flags, stream, tag) = (io.flags, io.stream, io.tag);
        let done = self.pass(Io { flags, stream, tag, ..Io::write(io.lba, io.nblocks, encrypted) }).await;
        io.done(done.status)
    }

    /// The caller's data may be shared, and stay as they are: the ciphertext goes to buffers of the pool.
    async fn encrypt(&self, lba: u64, bufs: &[Buf]) -> Result<SgList, Status> {
        let (block_size, cipher) = (self.shared.info.block_size as usize, self.key.cipher());
        let (total, mut at, mut out) = (reactor::buf::sg_len(bufs), 0, SgList::new());
        while at < total {
            let mut buf = steps::alloc(&self.reactor, (total - at).min(BUF_BYTES_MAX)).await?;
            steps::sg_read_at(bufs, at, buf.as_mut_slice());
            for (nth, block) in buf.as_mut_slice().chunks_exact_mut(block_size).enumerate() {
                cipher.encrypt(lba + (at / block_size + nth) as u64, block);
            }
            at += buf.len();
            out.push(buf);
        }
        Ok(out)
    }
}
