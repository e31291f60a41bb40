//! Copies of the legs of a mirror, or of the members of a parity device, that were used apart are never taken for one device; and crashes at
//! any write of an opening never look like that.

use crate::common::*;
use bdev::{
    BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Lba, LegState, MemberState, MirrorDevice, MirrorOptions,
    ParityDevice, ParityOptions, Status,
};
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const BLOCKS: u64 = 100;

type Parts = Vec<Option<Arc<dyn BlockDevice>>>;

/// The device of either kind, as far as these tests use one.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Mirror,
    Parity,
}

struct Opened {
    device: Arc<dyn BlockDevice>,
    in_sync: Vec<bool>,
    refilled: Vec<bool>,
}

impl Kind {
    async fn open(self, reactor: &Rc<Reactor>, parts: Parts, options: MirrorOptions) -> Result<Opened, String> {
        match self {
            Kind::Mirror => {
                let mirror =
                    MirrorDevice::open(reactor, "m", parts, &options).await.map_err(|error| error.to_string())?;
                let states: Vec<LegState> = mirror.legs().iter().map(|leg| leg.state).collect();
                let is = |wanted: LegState| states.iter().map(|state| *state == wanted).collect();
                let (in_sync, refilled) = (is(LegState::InSync), is(LegState::RecoveringFull));
                Ok(Opened { device: Arc::new(mirror), in_sync, refilled })
            }
            Kind::Parity => {
                let options = ParityOptions { create: options.create, ..array::create() };
                let parity =
                    ParityDevice::open(reactor, "p", parts, &options).await.map_err(|error| error.to_string())?;
                let is = |wanted| parity.members().iter().map(|member| member.state == wanted).collect();
                let (in_sync, refilled) = (is(MemberState::InSync), is(MemberState::Rebuilding));
                Ok(Opened { device: Arc::new(parity), in_sync, refilled })
            }
        }
    }

    /// Opens it, writes a block, and leaves it as an ordinary stop does.
    async fn live(self, reactor: &Rc<Reactor>, parts: &Parts, fill: u8) {
        let options = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
        match self {
            Kind::Mirror => {
                let mirror = MirrorDevice::open(reactor, "m", parts.clone(), &options).await.unwrap();
                write(reactor, &mirror, fill).await;
                mirror.settle(reactor).await.unwrap();
            }
            Kind::Parity => {
                let parity = ParityDevice::open(reactor, "p", parts.clone(), &ParityOptions::default()).await.unwrap();
                write(reactor, &parity, fill).await;
                parity.settle(reactor).await.unwrap();
            }
        }
    }
}

async fn write(reactor: &Rc<Reactor>, device: &dyn BlockDevice, fill: u8) {
    let mut buf = reactor.pool().alloc(4096).await;
    buf.as_mut_slice().fill(fill);
    let channel = device.open_channel(reactor).unwrap();
    assert_eq!(channel.submit(Io::write(Lba(3), 1, SgList::from_iter([buf]))).await.status, Status::Ok);
}

/// The block, which reads alike however often it is read.
async fn read(reactor: &Rc<Reactor>, device: &dyn BlockDevice) -> u8 {
    let channel = device.open_channel(reactor).unwrap();
    let mut found = None;
    for _ in 0..6 {
        let bufs = SgList::from_iter([reactor.pool().alloc(4096).await]);
        let done = channel.submit(Io::read(Lba(3), 1, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        let byte = done.io.bufs[0].as_slice()[0];
        assert_eq!(*found.get_or_insert(byte), byte);
    }
    found.unwrap()
}

fn blank(count: usize) -> Vec<Arc<dyn BlockDevice>> {
    (0..count).map(|n| mem(&format!("d{n}"), BLOCKS)).collect()
}

fn all(devices: &[Arc<dyn BlockDevice>]) -> Parts {
    devices.iter().cloned().map(Some).collect()
}

async fn made(kind: Kind, reactor: &Rc<Reactor>, count: usize) -> Vec<Arc<dyn BlockDevice>> {
    let devices = blank(count);
    let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
    drop(kind.open(reactor, all(&devices), options).await.unwrap());
    kind.live(reactor, &all(&devices), 1).await;
    devices
}

async fn copies(reactor: &Rc<Reactor>, devices: &[Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    let copies = blank(devices.len());
    for (from, to) in devices.iter().zip(&copies) {
        put_back(reactor, to, &copy_of(reactor, from).await).await;
    }
    copies
}

/// Copies of `devices` on two machines, each opened so often without the parts that it lacks.
async fn used_apart(
    kind: Kind,
    reactor: &Rc<Reactor>,
    devices: &[Arc<dyn BlockDevice>],
    uses: [u8; 2],
    lacks: [Option<usize>; 2],
) -> [Vec<Arc<dyn BlockDevice>>; 2] {
    let machines = [copies(reactor, devices).await, copies(reactor, devices).await];
    for (machine, own) in machines.iter().enumerate() {
        let mut parts = all(own);
        lacks[machine].into_iter().for_each(|lacking| parts[lacking] = None);
        for _ in 0..uses[machine] {
            kind.live(reactor, &parts, 10 * (1 + machine as u8)).await;
        }
    }
    machines
}

const USES: [[u8; 2]; 9] = [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3], [3, 1], [3, 2], [3, 3]];

#[test]
fn legs_of_copies_of_a_mirror_are_refused_together_until_one_is_preferred() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let devices = made(Kind::Mirror, &inner, 2).await;
        for uses in USES {
            // With both legs each, and with the one alone that is put together with the other one's.
            for lacks in [[None, None], [Some(1), Some(0)], [None, Some(0)], [Some(1), None]] {
                let [first, second] = used_apart(Kind::Mirror, &inner, &devices, uses, lacks).await;
                for prefer in [None, Some(0), Some(1)] {
                    let mixed = all(&copies(&inner, &[first[0].clone(), second[1].clone()]).await);
                    let options = MirrorOptions { prefer, start_degraded: true, ..MirrorOptions::default() };
                    let opened = Kind::Mirror.open(&inner, mixed, options).await;
                    let Some(prefer) = prefer else {
                        let why = opened.err().unwrap();
                        let names = ["'d0'", "'d1'", "without each other", "--prefer"];
                        assert!(names.iter().all(|name| why.contains(name)), "{uses:?} {lacks:?} {why}");
                        continue;
                    };
                    let opened = opened.unwrap();
                    assert_eq!((opened.in_sync[prefer], opened.refilled[1 - prefer]), (true, true));
                    assert_eq!(read(&inner, &*opened.device).await, 10 * (1 + prefer as u8));
                }
            }
        }
    });
}

#[test]
fn a_leg_of_a_copy_is_not_taken_into_a_mirror_in_use_unless_all_that_it_holds_may_go() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let devices = made(Kind::Mirror, &inner, 2).await;
        for uses in USES {
            let [first, second] = used_apart(Kind::Mirror, &inner, &devices, uses, [Some(1), None]).await;
            let parts = vec![Some(first[0].clone()), None];
            let mirror = MirrorDevice::open(&inner, "m", parts, &MirrorOptions::default()).await.unwrap();
            let refused = mirror.join(&inner, 1, Some(second[1].clone()), false).await.unwrap_err().to_string();
            assert!(["'d0'", "'d1'", "without each other"].iter().all(|word| refused.contains(word)), "{refused}");
            let state = mirror.join(&inner, 1, Some(second[1].clone()), true).await.unwrap();
            assert_eq!(state, LegState::RecoveringFull);
            mirror.resync(&inner, 0).await.unwrap();
            assert_eq!((read(&inner, &mirror).await, mirror.status().degraded), (10, false));
        }
    });
}

#[test]
fn a_member_of_a_copy_is_left_out_and_more_of_them_are_refused() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        for count in [3, 4] {
            let devices = made(Kind::Parity, &inner, count).await;
            for (uses, odd) in USES.into_iter().flat_map(|uses| (0..count).map(move |odd| (uses, odd))) {
                let other = (odd + 1) % count;
                for lacks in [[None, None], [Some(odd), None], [None, Some(other)]] {
                    let [first, second] = used_apart(Kind::Parity, &inner, &devices, uses, lacks).await;
                    let mut mixed = first.clone();
                    mixed[odd] = second[odd].clone();
                    let before = copy_of(&inner, &mixed[odd]).await;
                    let parts = all(&mixed);
                    let parity =
                        ParityDevice::open(&inner, "p", parts.clone(), &ParityOptions::default()).await.unwrap();
                    let expected: Vec<_> =
                        (0..count).map(|n| [MemberState::InSync, MemberState::Failed][(n == odd) as usize]).collect();
                    assert_eq!(array::states(&parity), expected, "{uses:?} {lacks:?}");
                    assert_eq!(read(&inner, &parity).await, 10);
                    assert!(copy_of(&inner, &mixed[odd]).await == before, "it is not written to");
                    if lacks[0].is_none() {
                        let refused =
                            parity.join(&inner, odd, parts[odd].clone(), false).await.unwrap_err().to_string();
                        assert!(
                            refused.contains("without the other members") && refused.contains("--overwrite"),
                            "{refused}"
                        );
                        parity.join(&inner, odd, parts[odd].clone(), true).await.unwrap();
                        parity.rebuild(&inner).await.unwrap();
                        assert_eq!(array::states(&parity), vec![MemberState::InSync; count]);
                    }
                }
                // Without one of the others there are two that are not of one copy.
                let [first, second] = used_apart(Kind::Parity, &inner, &devices, uses, [None, None]).await;
                let mut parts = all(&first);
                (parts[odd], parts[other]) = (Some(second[odd].clone()), None);
                let why = array::refusal(&inner, &parts, ParityOptions::default()).await;
                assert!(why.contains("without each other") && why.contains(&format!("'d{odd}'")), "{uses:?} {why}");
            }
        }
    });
}

/// Takes so many writes, and loses all that come later, as those are lost that a crash comes before.
struct Fuse {
    child: Arc<dyn BlockDevice>,
    left: Arc<AtomicU64>,
}

impl BlockDevice for Fuse {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "fuse"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(FuseChannel { child: self.child.open_channel(reactor)?, left: self.left.clone() }))
    }
}

struct FuseChannel {
    child: Rc<dyn Channel>,
    left: Arc<AtomicU64>,
}

impl Channel for FuseChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op.modifies() && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return IoFuture::ready(io.done(Status::Ok));
        }
        self.child.submit(io)
    }
}

/// Opens it until a crash after so many writes; how many of them there were.
async fn crashed(kind: Kind, reactor: &Rc<Reactor>, parts: &Parts, writes: u64) -> u64 {
    let left = Arc::new(AtomicU64::new(writes));
    let fused = |device: &Arc<dyn BlockDevice>| {
        Arc::new(Fuse { child: device.clone(), left: left.clone() }) as Arc<dyn BlockDevice>
    };
    let parts = parts.iter().map(|part| part.as_ref().map(fused)).collect();
    let options = MirrorOptions { start_degraded: true, ..MirrorOptions::default() };
    drop(kind.open(reactor, parts, options).await.unwrap());
    writes - left.load(Relaxed)
}

#[test]
fn a_crash_at_any_write_of_an_opening_never_looks_like_use_apart() {
    for (kind, count) in [(Kind::Mirror, 2), (Kind::Mirror, 3), (Kind::Parity, 3), (Kind::Parity, 4)] {
        let reactor = reactor();
        let inner = reactor.clone();
        reactor.block_on(async move {
            let devices = made(kind, &inner, count).await;
            let most = crashed(kind, &inner, &all(&copies(&inner, &devices).await), u64::MAX).await;
            for writes in 0..=most {
                let once = copies(&inner, &devices).await;
                crashed(kind, &inner, &all(&once), writes).await;
                let opened =
                    kind.open(&inner, all(&copies(&inner, &once).await), MirrorOptions::default()).await.unwrap();
                assert_eq!(opened.in_sync, vec![true; count], "{kind:?}, {writes} writes");
                assert_eq!(read(&inner, &*opened.device).await, 1);
                // Another part is away each time, while the others are used, and then it is back.
                for away in 0..count {
                    let then = copies(&inner, &once).await;
                    let mut parts = all(&then);
                    parts[away] = None;
                    kind.live(&inner, &parts, 7).await;
                    let opened = kind.open(&inner, all(&then), MirrorOptions::default()).await;
                    let opened =
                        opened.unwrap_or_else(|why| panic!("{kind:?}, {writes} writes, without {away}: {why}"));
                    assert_eq!(read(&inner, &*opened.device).await, 7);
                }
                // A second crash in the next opening.
                for writes in 0..=most {
                    let twice = copies(&inner, &once).await;
                    crashed(kind, &inner, &all(&twice), writes).await;
                    let opened = kind.open(&inner, all(&twice), MirrorOptions::default()).await;
                    let opened = opened.unwrap_or_else(|why| panic!("{kind:?}, {writes} writes twice: {why}"));
                    assert_eq!(read(&inner, &*opened.device).await, 1);
                }
            }
        });
    }
}
