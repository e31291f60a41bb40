//! Cryptographic erase: nothing of before can be read, whenever the power goes the volume has one key or the other, and what
//! fails has not happened.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, Delay, DelayDevice, Delays, DeviceError, DeviceInfo, Done, EncryptDevice, EncryptOptions,
    ErrorDevice, ErrorRule, Fault, Flags, Io, Lba, Op, Status, UserKey, When,
};
use reactor::{IoFuture, Reactor, SgList};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

const OPEN: EncryptOptions = EncryptOptions { create: false, force: false, pass_unmap: false };
const CREATE: EncryptOptions = EncryptOptions { create: true, ..OPEN };

fn key(byte: u8) -> UserKey {
    UserKey::from_bytes(&[byte; 32]).unwrap()
}

async fn open(reactor: &Rc<Reactor>, child: &Arc<dyn BlockDevice>, user: u8) -> Result<EncryptDevice, DeviceError> {
    EncryptDevice::open(reactor, "secret", child.clone(), &key(user), &OPEN).await
}

async fn write_bytes(reactor: &Rc<Reactor>, channel: &dyn Channel, lba: u64, bytes: &[u8]) -> Status {
    let mut buf = reactor.pool().alloc(bytes.len()).await;
    buf.as_mut_slice().copy_from_slice(bytes);
    let blocks = (bytes.len() / 4096) as u32;
    channel.submit(Io::write(Lba(lba), blocks, SgList::from_iter([buf]))).await.status
}

async fn read(channel: &dyn Channel, lba: u64) -> Result<Vec<u8>, Status> {
    let done = channel.submit(Io::read_loan(Lba(lba), 1)).await;
    done.status.check()?;
    Ok(done.io.bufs[0].as_slice().to_vec())
}

async fn erase(channel: &dyn Channel) -> Status {
    channel.submit(Io::new(Op::CryptoErase, Lba(0), 0)).await.status
}

/// Writes in order: block and bytes.
type Writes = Arc<Mutex<Option<Vec<(u64, Vec<u8>)>>>>;

/// A device that keeps what was written to it, in order, once told to.
struct Journal {
    child: Arc<dyn BlockDevice>,
    writes: Writes,
}

impl BlockDevice for Journal {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "journal"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(JournalChannel { child: self.child.open_channel(reactor)?, writes: self.writes.clone() }))
    }
}

struct JournalChannel {
    child: Rc<dyn Channel>,
    writes: Writes,
}

impl Channel for JournalChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if let (Op::Write, Some(writes)) = (io.op, &mut *self.writes.lock().unwrap()) {
            let bytes: Vec<u8> = io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
            writes.push((io.lba.0, bytes));
        }
        self.child.submit(io)
    }
}

#[test]
fn nothing_of_before_is_read_and_the_volume_goes_on_under_the_same_user_key() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let child = mem("m", 64);
        let device = EncryptDevice::open(&inner, "secret", child.clone(), &key(1), &CREATE).await.unwrap();
        assert!(device.info().ops.contains(Op::CryptoErase));
        let (one, two) = (device.open_channel(&inner).unwrap(), device.open_channel(&inner).unwrap());
        let secret = vec![0x41; 4096];
        for lba in [3, 4] {
            assert_eq!(write_bytes(&inner, &*one, lba, &secret).await, Status::Ok);
        }
        device.change_key(&inner, &key(1), &key(2)).await.unwrap();
        let raw = child.open_channel(&inner).unwrap();
        let headers = [read(&*raw, 0).await.unwrap(), read(&*raw, 1).await.unwrap()];
        assert_eq!(erase(&*one).await, Status::Ok);
        for copy in [0, 1] {
            assert_ne!(
                read(&*raw, copy).await.unwrap()[56..160],
                headers[copy as usize][56..160],
                "salt and wrapped key"
            );
        }
        for channel in [&one, &two] {
            assert_ne!(read(&**channel, 3).await.unwrap(), secret);
        }
        assert_eq!(write_bytes(&inner, &*two, 4, &secret).await, Status::Ok);
        assert_eq!(read(&*one, 4).await.unwrap(), secret);
        drop((one, two, device));
        assert!(open(&inner, &child, 1).await.is_err());
        let again = open(&inner, &child, 2).await.unwrap();
        let channel = again.open_channel(&inner).unwrap();
        assert_eq!(read(&*channel, 4).await.unwrap(), secret);
        assert_ne!(read(&*channel, 3).await.unwrap(), secret);
        assert_eq!(channel.submit(Io::new(Op::CryptoErase, Lba(0), 1)).await.status, Status::Invalid);
        again.erase(&inner).await.unwrap();
        assert_eq!(erase(&*channel).await, Status::Gone, "there is no key to be replaced");
    });
}

#[test]
fn whenever_the_power_goes_the_volume_has_the_old_key_or_the_new_one() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let writes = Arc::new(Mutex::new(None));
        let medium = mem("m", 64);
        let journal = Arc::new(Journal { child: medium.clone(), writes: writes.clone() });
        let device = EncryptDevice::open(&inner, "secret", journal, &key(1), &CREATE).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        let secret = vec![0x41; 4096];
        assert_eq!(write_bytes(&inner, &*channel, 3, &secret).await, Status::Ok);
        let raw = medium.open_channel(&inner).unwrap();
        let mut before = Vec::new();
        for lba in 0..64 {
            before.push(read(&*raw, lba).await.unwrap());
        }
        *writes.lock().unwrap() = Some(Vec::new());
        assert_eq!(erase(&*channel).await, Status::Ok);
        let made = writes.lock().unwrap().take().unwrap();
        assert_eq!(made.iter().map(|(lba, _)| *lba).collect::<Vec<_>>(), [0, 1], "one copy after the other");
        let mut seen = [0, 0];
        for whole in 0..=made.len() {
            // Of the write under way: nothing, so many bytes from the front, or so many from the end.
            let torn = if whole < made.len() { 4096 / 32 } else { 1 };
            for (cut, from_front) in (0..torn).flat_map(|cut| [(cut * 32, true), (cut * 32, false)]) {
                let mut image = before.clone();
                for (lba, bytes) in &made[..whole] {
                    image[*lba as usize].copy_from_slice(bytes);
                }
                if let Some((lba, bytes)) = made.get(whole) {
                    let part = if from_front { 0..cut } else { 4096 - cut..4096 };
                    image[*lba as usize][part.clone()].copy_from_slice(&bytes[part]);
                }
                let survivor = mem("s", 64);
                let channel = survivor.open_channel(&inner).unwrap();
                for (lba, bytes) in image.iter().enumerate() {
                    assert_eq!(write_bytes(&inner, &*channel, lba as u64, bytes).await, Status::Ok);
                }
                let opened = open(&inner, &survivor, 1).await;
                let opened = opened.unwrap_or_else(|error| panic!("{whole} whole, {cut} of the next: {error}"));
                let is_old = read(&*opened.open_channel(&inner).unwrap(), 3).await.unwrap() == secret;
                assert!(!is_old || whole == 0, "with a whole copy of the new key nothing is read any more");
                seen[usize::from(is_old)] += 1;
                // Opening leaves one key, and no copy of the other.
                assert_eq!(read(&*channel, 0).await, read(&*channel, 1).await);
            }
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    });
}

#[test]
fn an_erase_that_fails_has_not_happened() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let secret = vec![0x41; 4096];
        for (op, nth) in [(Op::Write, 1), (Op::Flush, 1), (Op::Write, 2), (Op::Flush, 2)] {
            for fault in [Fault::Fail(Status::WriteError), Fault::FailAfter(Status::WriteError)] {
                let medium = mem("m", 64);
                let faulty = Arc::new(ErrorDevice::new("faulty", medium.clone(), &[], 1).unwrap());
                let device = EncryptDevice::open(&inner, "secret", faulty.clone(), &key(1), &CREATE).await.unwrap();
                let channel = device.open_channel(&inner).unwrap();
                assert_eq!(write_bytes(&inner, &*channel, 3, &secret).await, Status::Ok);
                faulty.set_rules(&[ErrorRule { when: When::Nth(nth), ..ErrorRule::always(&[op], fault) }]).unwrap();
                assert_eq!(erase(&*channel).await, Status::WriteError, "{op:?} {nth}");
                assert_eq!(read(&*channel, 3).await.unwrap(), secret);
                assert_eq!(write_bytes(&inner, &*channel, 4, &secret).await, Status::Ok);
                let again = open(&inner, &medium, 1).await.unwrap();
                let again = again.open_channel(&inner).unwrap();
                for lba in [3, 4] {
                    assert_eq!(read(&*again, lba).await.unwrap(), secret, "{op:?} {nth}");
                }
            }
        }
    });
}

#[test]
fn a_medium_that_takes_neither_key_ends_the_device_until_it_is_opened_again() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let (medium, secret) = (mem("m", 64), vec![0x41; 4096]);
        let faulty = Arc::new(ErrorDevice::new("faulty", medium.clone(), &[], 1).unwrap());
        let device = EncryptDevice::open(&inner, "secret", faulty.clone(), &key(1), &CREATE).await.unwrap();
        let channel = device.open_channel(&inner).unwrap();
        assert_eq!(write_bytes(&inner, &*channel, 3, &secret).await, Status::Ok);
        faulty.set_rules(&[ErrorRule::always(&[Op::Flush], Fault::Fail(Status::WriteError))]).unwrap();
        assert_eq!(erase(&*channel).await, Status::WriteError);
        faulty.set_rules(&[]).unwrap();
        assert_eq!(read(&*channel, 3).await, Err(Status::Gone));
        assert_eq!(write_bytes(&inner, &*channel, 3, &secret).await, Status::Gone);
        let again = open(&inner, &medium, 1).await.unwrap();
        assert_eq!(read(&*again.open_channel(&inner).unwrap(), 3).await.unwrap(), secret);
    });
}

#[test]
fn writes_beside_an_erase_are_under_one_key_whole() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let slow = Delay { fixed_ns: 50_000, jitter_ns: 200_000 };
        let delays = Delays { read: slow, write: slow, flush: slow };
        let child: Arc<dyn BlockDevice> = Arc::new(DelayDevice::new("slow", mem("m", 64), delays, 5));
        let device = EncryptDevice::open(&inner, "secret", child.clone(), &key(1), &CREATE).await.unwrap();
        let erased = Rc::new(Cell::new(false));
        let writers: Vec<_> = (0..16)
            .map(|lba| {
                let (channel, inner, erased) = (device.open_channel(&inner).unwrap(), inner.clone(), erased.clone());
                inner.clone().spawn_join(async move {
                    let (mut round, mut after) = (0u8, 0);
                    while after < 3 {
                        after += u32::from(erased.get());
                        let began_after = erased.get();
                        let bytes = vec![round; 4096];
                        assert_eq!(write_bytes(&inner, &*channel, lba, &bytes).await, Status::Ok);
                        if began_after || !erased.get() {
                            let found = read(&*channel, lba).await.unwrap();
                            // Erased in between, or just what was written.
                            let is_noise = found[0] != found[1] || found[1] != found[2] || found[2] != found[3];
                            assert!(found == bytes || (is_noise && !began_after), "block {lba}, round {round}");
                        }
                        round = round.wrapping_add(1);
                    }
                    vec![round.wrapping_sub(1); 4096]
                })
            })
            .collect();
        inner.sleep_ns(3_000_000).await;
        let channel = device.open_channel(&inner).unwrap();
        for _ in 0..5 {
            assert_eq!(erase(&*channel).await, Status::Ok);
        }
        erased.set(true);
        let mut last = Vec::new();
        for writer in writers {
            last.push(writer.await);
        }
        drop((channel, device));
        let again = open(&inner, &child, 1).await.unwrap();
        let channel = again.open_channel(&inner).unwrap();
        for (lba, bytes) in last.iter().enumerate() {
            assert_eq!(read(&*channel, lba as u64).await.unwrap(), *bytes);
        }
        let fua = Io { flags: Flags::FUA, ..Io::new(Op::CryptoErase, Lba(0), 0) };
        assert_eq!(channel.submit(fua).await.status, Status::Ok);
    });
}
