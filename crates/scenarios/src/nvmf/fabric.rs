//! A target and its hosts on the simulated network: how their processes start, and what they know of each other.

use super::tamper::{Tamper, Tampering};
use crate::crashes::SECOND_NS;
use base::Rng;
use bdev::{BlockDevice, Channel, FileDevice, FileDeviceOptions, MemDevice};
use nvme::initiator::{HostIdentity, NvmfDevice, Options, Replay};
use nvme::spec::Nqn;
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TargetHome, TcpTarget};
use reactor::Reactor;
use sim::{Failure, NodeId, World};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

pub(super) const NQN: &str = "nqn.2026-11.io.remuda:simulated";
pub(super) const PORT: u16 = 4420;

/// What a namespace stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// Memory, which is gone with its process.
    Memory { blocks_max: u64 },
    /// A disk of the target's node.
    Disk { direct: bool },
}

/// A namespace: its identifier is its place in the list, from 1.
#[derive(Clone, Debug)]
pub(super) struct Backing {
    pub(super) media: Media,
    pub(super) block_bytes: u32,
    pub(super) blocks: u64,
    pub(super) tampering: Tampering,
}

impl Backing {
    pub(super) fn path(nsid: usize) -> String {
        format!("/ns{nsid}")
    }

    fn open(&self, reactor: &Rc<Reactor>, nsid: usize) -> Result<Arc<dyn BlockDevice>, String> {
        let path = Backing::path(nsid);
        let device: Arc<dyn BlockDevice> = match self.media {
            Media::Memory { blocks_max } => {
                let device = MemDevice::new(&path, self.block_bytes, self.blocks, blocks_max);
                Arc::new(device.map_err(|error| error.to_string())?)
            }
            Media::Disk { direct } => {
                let options =
                    FileDeviceOptions { block_size: self.block_bytes, direct, ..FileDeviceOptions::new(&path) };
                Arc::new(FileDevice::open(reactor, &path, options).map_err(|error| error.to_string())?)
            }
        };
        Ok(Arc::new(Tamper::new(device, self.tampering)))
    }
}

/// The target's node, and what it serves. Its process may come and go.
pub(super) struct Server {
    pub(super) node: NodeId,
    pub(super) reactors: usize,
    pub(super) config: Config,
    pub(super) backings: Vec<Backing>,
    /// The device of namespace 1, where another target exports it too.
    pub(super) given: Option<Arc<dyn BlockDevice>>,
    /// How it is about to die at its next crash point.
    pub(super) doom: Option<sim::Crash>,
    /// The running process: its target and devices.
    pub(super) running: Option<Running>,
}

#[derive(Clone)]
pub(super) struct Running {
    pub(super) target: TcpTarget,
    pub(super) devices: Vec<Arc<dyn BlockDevice>>,
}

impl Running {
    /// The target's part on its home reactor, for code that runs there.
    pub(super) fn home(&self, reactor: &Rc<Reactor>) -> TargetHome {
        self.target.at_home(reactor)
    }

    /// Identifies namespace `nsid` wherever it is exported.
    pub(super) fn uuid(nsid: usize) -> Uuid {
        Uuid::from_u128(0x5151_0000 + nsid as u128)
    }
}

impl Server {
    /// Starts the process; it opens its devices and listens.
    pub(super) fn start(&mut self, world: &mut World) -> Result<(), Failure> {
        world.boot(self.node, self.reactors, World::reactor_config());
        let home = world.reactor(self.node, 0);
        let opened = self.backings.iter().enumerate().map(|(index, backing)| match &self.given {
            Some(device) if index == 0 => Ok(Arc::new(Tamper::new(device.clone(), backing.tampering)) as Arc<_>),
            _ => backing.open(&home, index + 1),
        });
        let devices = opened.collect::<Result<Vec<_>, _>>().map_err(Failure::new)?;
        let handles: Vec<_> = (0..self.reactors).map(|index| world.reactor(self.node, index).handle()).collect();
        let target = TcpTarget::new(&handles, self.config.clone());
        let running = Running { target, devices };
        self.running = Some(running.clone());
        let (node, sim) = (self.node, world.handle());
        world.spawn(node, 0, |reactor| async move {
            let home = running.home(&reactor);
            let made = home.add_subsystem(SubsystemConfig::new(nqn())).and_then(|()| {
                for (index, device) in running.devices.iter().enumerate() {
                    let nsid = index + 1;
                    home.add_namespace(NQN, Some(nsid as u32), device.clone(), Running::uuid(nsid))?;
                }
                home.listen(World::address(node, PORT))
            });
            if let Err(error) = made {
                sim.violation(format!("the target does not start: {error}"));
            }
        });
        Ok(())
    }
}

pub(super) fn nqn() -> Nqn {
    Nqn::new(NQN).expect("a valid name")
}

/// How hosts behave, by chance; `quiesce_ns` is how long the target's devices may take.
pub(super) fn host_options(rng: &mut Rng, server: NodeId, index: usize, quiesce_ns: u64) -> Options {
    let identity = HostIdentity::from_uuid(Uuid::from_u128(1 + index as u128));
    let digest = rng.below(4);
    Options {
        header_digest: digest & 1 != 0,
        data_digest: digest & 2 != 0,
        queue_entries: if rng.one_in(3) { rng.between(3, 6) as u16 } else { 33 },
        queues_per_channel: rng.between(1, 2) as u16,
        queues_max: rng.between(1, 4) as u16,
        r2ts_max: rng.between(1, 4) as u16,
        keep_alive_ms: 100 * rng.between(2, 20) as u32,
        connect_timeout_ns: rng.between(1, 3) * SECOND_NS,
        command_timeout_ns: rng.between(1, 8) * SECOND_NS,
        admin_timeout_ns: rng.between(1, 3) * SECOND_NS,
        reconnect_first_ns: rng.between(1, 100) * 1_000_000,
        reconnect_max_ns: rng.between(1, 10) * SECOND_NS / 10,
        loss_timeout_ns: None,
        replay: Replay::AfterFence,
        quiesce_ns,
        // Far more than any run needs: an operation never fails for want of patience.
        retries_max: u8::MAX,
        replays_max: u8::MAX,
        ..Options::new(World::address(server, PORT), nqn(), identity)
    }
}

/// A namespace in use by a host: the device and a channel on each of its reactors.
pub(super) struct Mounted {
    pub(super) device: Arc<NvmfDevice>,
    pub(super) channels: Vec<Rc<dyn Channel>>,
}

/// Where a host leaves what it has mounted, by namespace.
pub(super) type Mounts = Rc<RefCell<Vec<Option<Rc<Mounted>>>>>;

/// A host's node.
pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) reactors: usize,
    pub(super) options: Options,
    pub(super) mounts: Mounts,
}

impl Host {
    pub(super) fn boot(&self, world: &mut World, namespaces: usize) -> Vec<Rc<Reactor>> {
        world.boot(self.node, self.reactors, World::reactor_config());
        *self.mounts.borrow_mut() = (0..namespaces).map(|_| None).collect();
        (0..self.reactors).map(|index| world.reactor(self.node, index)).collect()
    }

    /// Opens namespace `nsid`, for as long as it takes; runs on the host's first reactor.
    pub(super) async fn mount(
        options: Options,
        reactors: Vec<Rc<Reactor>>,
        mounts: Mounts,
        nsid: usize,
    ) -> Rc<Mounted> {
        let name = format!("remote{nsid}");
        let device = loop {
            match NvmfDevice::open(&reactors[0], &name, &options, Some(nsid as u32)).await {
                Ok(device) => break Arc::new(device),
                // The target is not there yet, or not to be reached.
                Err(_) => reactors[0].sleep_ns(options.reconnect_first_ns).await,
            }
        };
        let channels = reactors.iter().map(|reactor| device.open_channel(reactor).expect("channels open at any time"));
        let mounted = Rc::new(Mounted { channels: channels.collect(), device });
        mounts.borrow_mut()[nsid - 1] = Some(mounted.clone());
        mounted
    }
}
