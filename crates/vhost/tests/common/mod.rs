//! A virtual machine without one: memory in a file, virtqueues in it, and rust-vmm's front end to talk to a door.
#![allow(dead_code, reason = "an example uses it too, and the rest of it")]

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, MemDevice, Op};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{IoFuture, Reactor};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_door::chain::{INDIRECT, NEXT, WRITE};
use vhost_door::spec::feature;
use vhost_door::{Door, DoorOptions};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub const MEMORY_BYTES: u64 = 32 << 20;
/// Where the front end has the memory, as far as it tells.
pub const USER_BASE: u64 = 0x7f00_0000_0000;
pub const ENTRIES: u16 = 128;
const QUEUE_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
/// Tables of descriptors, one for each chain.
const TABLES: u64 = 0x8000;
const BUFFERS: u64 = 0x10_0000;
const BUFFER_BYTES: u64 = 0x2_0000;
/// Where in its buffer the data of a request are: at a page, as with the page cache of a guest.
pub const DATA: u64 = 0x1000;
/// Descriptors set aside for a chain: header, data, status.
const CHAIN: u16 = 4;
/// Chains that may be under way on a queue.
pub const CHAINS_MAX: u64 = (ENTRIES / CHAIN) as u64;
const PATIENCE: Duration = Duration::from_secs(20);

/// A node with one door.
pub struct Host {
    pub dir: tempfile::TempDir,
    pub runtime: Runtime,
    pub door: Option<Door>,
}

pub fn runtime(reactors: usize) -> Runtime {
    let config = RuntimeConfig { cores: vec![None; reactors], drain_max_ns: 100_000_000, ..RuntimeConfig::default() };
    Runtime::start(&config).unwrap()
}

pub fn memory_device(mib: u64) -> Arc<dyn BlockDevice> {
    Arc::new(MemDevice::new("m", 512, mib << 11, mib << 12).unwrap())
}

pub fn open(runtime: &Runtime, socket: &Path, device: Arc<dyn BlockDevice>, read_only: bool) -> Door {
    let options = DoorOptions {
        name: "test".into(),
        socket: socket.to_path_buf(),
        device,
        reactors: runtime.handles().to_vec(),
        first_reactor: 0,
        queues: 4,
        read_only,
        serial: "serial-number".into(),
    };
    Door::open(options).unwrap()
}

impl Host {
    pub fn new(device: Arc<dyn BlockDevice>) -> Host {
        Host::with(device, false)
    }

    pub fn with(device: Arc<dyn BlockDevice>, read_only: bool) -> Host {
        let dir = tempfile::tempdir().unwrap();
        let runtime = runtime(2);
        let door = Some(open(&runtime, &dir.path().join("s"), device, read_only));
        Host { dir, runtime, door }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn status(&self) -> vhost_door::DoorStatus {
        self.door.as_ref().unwrap().status()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            door.close();
        }
    }
}

/// Its writes never end.
pub struct Stuck {
    pub child: Arc<dyn BlockDevice>,
    /// How many have come.
    pub writes: Arc<AtomicUsize>,
}

struct StuckChannel {
    child: Rc<dyn Channel>,
    writes: Arc<AtomicUsize>,
}

impl BlockDevice for Stuck {
    fn name(&self) -> &str {
        "stuck"
    }

    fn kind(&self) -> &'static str {
        "stuck"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(StuckChannel { child: self.child.open_channel(reactor)?, writes: self.writes.clone() }))
    }
}

impl Channel for StuckChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op != Op::Write {
            return self.child.submit(io);
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        IoFuture::new(std::future::pending())
    }
}

/// Waits for something that another thread does.
pub fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::yield_now();
    }
}

/// Memory of a guest.
pub struct Ram {
    pub file: File,
    pub map: GuestMemoryMmap,
}

impl Ram {
    pub fn new() -> Ram {
        let file = File::from(rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(MEMORY_BYTES).unwrap();
        let ranges = [(GuestAddress(0), MEMORY_BYTES as usize, Some(FileOffset::new(file.try_clone().unwrap(), 0)))];
        Ram { map: GuestMemoryMmap::from_ranges_with_files(ranges).unwrap(), file }
    }

    pub fn info(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES,
            userspace_addr: USER_BASE,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        }
    }
}

/// A queue as the guest's driver has it.
pub struct Ring {
    pub base: u64,
    pub available: u16,
    pub used_seen: u16,
    next_chain: u16,
    indirect: bool,
    pub kick: EventFd,
    pub call: EventFd,
    pub error: EventFd,
}

/// A request that has ended.
pub struct Ended {
    pub head: u16,
    pub written: u32,
    pub status: u8,
    pub data: Vec<u8>,
}

/// The guest and its connection.
pub struct Guest {
    pub ram: Ram,
    pub front: Frontend,
    pub rings: Vec<Ring>,
    pub features: u64,
}

/// What a guest wants of a door.
pub struct Wish {
    pub queues: usize,
    pub without: u64,
    pub indirect: bool,
    pub area: Option<(VhostUserInflight, File)>,
}

impl Default for Wish {
    fn default() -> Self {
        Wish { queues: 1, without: 0, indirect: false, area: None }
    }
}

impl Guest {
    pub fn connect(socket: &Path, wish: Wish) -> Guest {
        Guest::connect_at(socket, wish, 0)
    }

    /// With queues whose next entry has this number.
    pub fn connect_at(socket: &Path, wish: Wish, index: u16) -> Guest {
        let ram = Ram::new();
        for queue in 0..wish.queues as u64 {
            for at in [AVAILABLE, USED] {
                ram.map.write_obj(index, GuestAddress(queue * QUEUE_BYTES + at + 2)).unwrap();
            }
        }
        let rings = (0..wish.queues).map(|queue| Ring {
            base: queue as u64 * QUEUE_BYTES,
            available: index,
            used_seen: index,
            next_chain: 0,
            indirect: wish.indirect,
            kick: EventFd::new(EFD_NONBLOCK).unwrap(),
            call: EventFd::new(EFD_NONBLOCK).unwrap(),
            error: EventFd::new(EFD_NONBLOCK).unwrap(),
        });
        Guest::go_on(socket, ram, rings.collect(), wish)
    }

    /// Connects with memory and queues that have a past.
    pub fn go_on(socket: &Path, ram: Ram, rings: Vec<Ring>, wish: Wish) -> Guest {
        let mut front = Frontend::connect(socket, 8).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap() & !wish.without;
        front.set_features(features).unwrap();
        if features & feature::PROTOCOL_FEATURES != 0 {
            let wanted = VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::REPLY_ACK
                | VhostUserProtocolFeatures::BACKEND_REQ
                | VhostUserProtocolFeatures::CONFIG
                | VhostUserProtocolFeatures::INFLIGHT_SHMFD
                | VhostUserProtocolFeatures::RESET_DEVICE
                | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
            // (`load` meets others, which offer less)
            let offered = front.get_protocol_features().unwrap() & wanted;
            front.set_protocol_features(offered).unwrap();
            front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if let Some((area, file)) = &wish.area {
            front.set_inflight_fd(area, file.as_raw_fd()).unwrap();
        }
        front.set_mem_table(&[ram.info()]).unwrap();
        let mut guest = Guest { ram, front, rings, features };
        (0..guest.rings.len()).for_each(|index| guest.start(index));
        guest
    }

    pub fn start(&mut self, index: usize) {
        let Ring { base, used_seen, kick, call, error, .. } = &self.rings[index];
        let config = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: USER_BASE + base,
            used_ring_addr: USER_BASE + base + USED,
            avail_ring_addr: USER_BASE + base + AVAILABLE,
            log_addr: None,
        };
        self.front.set_vring_num(index, ENTRIES).unwrap();
        self.front.set_vring_base(index, *used_seen).unwrap();
        self.front.set_vring_addr(index, &config).unwrap();
        self.front.set_vring_call(index, call).unwrap();
        self.front.set_vring_err(index, error).unwrap();
        self.front.set_vring_kick(index, kick).unwrap();
        if self.features & feature::PROTOCOL_FEATURES != 0 {
            self.front.set_vring_enable(index, true).unwrap();
        }
    }

    pub fn new_area(&mut self, queues: u16) -> (VhostUserInflight, File) {
        self.new_area_of(queues, ENTRIES)
    }

    pub fn new_area_of(&mut self, queues: u16, entries: u16) -> (VhostUserInflight, File) {
        let asked = VhostUserInflight::new(0, 0, queues, entries);
        self.front.get_inflight_fd(&asked).unwrap()
    }

    pub fn config(&mut self) -> Vec<u8> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let (_, bytes) = self.front.get_config(0, 60, flags, &[0; 60]).unwrap();
        bytes
    }

    pub fn write(&self, address: u64, bytes: &[u8]) {
        self.ram.map.write_slice(bytes, GuestAddress(address)).unwrap();
    }

    pub fn read(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.map.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    pub fn u16_at(&self, address: u64) -> u16 {
        self.ram.map.load(GuestAddress(address), std::sync::atomic::Ordering::SeqCst).unwrap()
    }

    pub fn set_u16(&self, address: u64, value: u16) {
        self.ram.map.store(value, GuestAddress(address), std::sync::atomic::Ordering::SeqCst).unwrap();
    }

    /// Writes descriptor `index` of the table at `table`.
    pub fn descriptor(&self, table: u64, index: u16, (address, len, flags, next): (u64, u32, u16, u16)) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(table + u64::from(index) * 16, &bytes);
    }

    /// Makes a chain available, without a kick.
    pub fn offer(&mut self, queue: usize, head: u16) {
        let (base, slot) = (self.rings[queue].base, self.rings[queue].available % ENTRIES);
        self.set_u16(base + AVAILABLE + 4 + u64::from(slot) * 2, head);
        self.rings[queue].available = self.rings[queue].available.wrapping_add(1);
        self.set_u16(base + AVAILABLE + 2, self.rings[queue].available);
    }

    pub fn kick(&self, queue: usize) {
        self.rings[queue].kick.write(1).unwrap();
    }

    pub fn buffer(&self, queue: usize, head: u16) -> u64 {
        BUFFERS + (queue as u64 * u64::from(ENTRIES / CHAIN) + u64::from(head / CHAIN)) * BUFFER_BYTES
    }

    /// Puts a request together: `data` from the guest, `room` bytes for the device; its first descriptor.
    pub fn prepare(&mut self, queue: usize, kind: u32, sector: u64, data: &[u8], room: u32) -> u16 {
        let ring = &mut self.rings[queue];
        let head = ring.next_chain;
        ring.next_chain = (head + CHAIN) % ENTRIES;
        let (base, indirect) = (ring.base, ring.indirect);
        let buffer = self.buffer(queue, head);
        let mut header = kind.to_le_bytes().to_vec();
        header.extend(0u32.to_le_bytes());
        header.extend(sector.to_le_bytes());
        self.write(buffer, &header);
        self.write(buffer + DATA, data);
        self.write(buffer + 32, &[0xee]);
        let mut chain = vec![(buffer, 16, 0)];
        if !data.is_empty() {
            chain.push((buffer + DATA, data.len() as u32, 0));
        }
        if room > 0 {
            chain.push((buffer + DATA, room, WRITE));
        }
        chain.push((buffer + 32, 1, WRITE));
        let (table, first) = match indirect {
            true => (base + TABLES + u64::from(head) * 16, 0),
            false => (base, head),
        };
        for (at, (address, len, flags)) in chain.iter().enumerate() {
            let next = if at + 1 < chain.len() { NEXT } else { 0 };
            self.descriptor(table, first + at as u16, (*address, *len, flags | next, first + at as u16 + 1));
        }
        if indirect {
            self.descriptor(base, head, (table, chain.len() as u32 * 16, INDIRECT, 0));
        }
        head
    }

    /// A request on its way.
    pub fn submit(&mut self, queue: usize, kind: u32, sector: u64, data: &[u8], room: u32) -> u16 {
        let head = self.prepare(queue, kind, sector, data, room);
        self.offer(queue, head);
        self.kick(queue);
        head
    }

    pub fn used(&self, queue: usize) -> u16 {
        self.u16_at(self.rings[queue].base + USED + 2)
    }

    /// The next request that has ended.
    pub fn next(&mut self, queue: usize) -> Ended {
        let seen = self.rings[queue].used_seen;
        until("a used entry", || self.used(queue) != seen);
        let at = self.rings[queue].base + USED + 4 + u64::from(seen % ENTRIES) * 8;
        let entry = self.read(at, 8);
        self.rings[queue].used_seen = seen.wrapping_add(1);
        let head = u32::from_le_bytes(entry[..4].try_into().unwrap()) as u16;
        let written = u32::from_le_bytes(entry[4..].try_into().unwrap());
        let buffer = self.buffer(queue, head);
        let data = self.read(buffer + DATA, written.saturating_sub(1) as usize);
        Ended { head, written, status: self.read(buffer + 32, 1)[0], data }
    }

    pub fn ask(&mut self, queue: usize, kind: u32, sector: u64, data: &[u8], room: u32) -> Ended {
        self.submit(queue, kind, sector, data, room);
        self.next(queue)
    }

    /// Whether the device asked for a kick with an entry that became available after `before`.
    pub fn wants_kick(&self, queue: usize, before: u16) -> bool {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        let Ring { base, available, .. } = &self.rings[queue];
        let event = self.u16_at(base + USED + 4 + u64::from(ENTRIES) * 8);
        available.wrapping_sub(event).wrapping_sub(1) < available.wrapping_sub(before)
    }

    /// The status of a request that has ended, of which there is one; its chain is the next to be used.
    pub fn next_status(&mut self, queue: usize) -> u8 {
        let seen = self.rings[queue].used_seen;
        let entry = self.read(self.rings[queue].base + USED + 4 + u64::from(seen % ENTRIES) * 8, 4);
        self.rings[queue].used_seen = seen.wrapping_add(1);
        let head = u32::from_le_bytes(entry.try_into().unwrap()) as u16;
        self.rings[queue].next_chain = head;
        self.read(self.buffer(queue, head) + 32, 1)[0]
    }

    /// `used_event` of a queue: be called when that entry is used.
    pub fn want_call_at(&self, queue: usize, index: u16) {
        self.set_u16(self.rings[queue].base + AVAILABLE + 4 + u64::from(ENTRIES) * 2, index);
    }

    pub fn was_called(&self, queue: usize) -> bool {
        self.rings[queue].call.read().is_ok()
    }
}

/// What a guest may do without.
pub const EVENT_IDX: u64 = feature::EVENT_IDX;
