//! Messages of the vhost-user protocol, as far as a block device has them: headers and bodies, numbers in the byte order
//! of the machine (both ends are on it).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Largest body that is taken: a memory table and a configuration space are far smaller.
pub const BODY_BYTES_MAX: usize = 4096;
/// Most descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 8;
/// Largest configuration space that may be asked for.
pub const CONFIG_BYTES_MAX: usize = 256;

/// The only version there is.
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Requests of the front end.
#[allow(missing_docs, reason = "named as in the protocol")]
pub mod code {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    /// To the front end: the configuration space has changed.
    pub const BACKEND_CONFIG_CHANGE: u32 = 2;
}

/// Protocol features.
pub mod protocol {
    /// Several queues.
    pub const MQ: u64 = 1 << 0;
    /// Any message may ask for an answer.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// Messages to the front end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space.
    pub const CONFIG: u64 = 1 << 9;
    /// Messages to the front end may carry descriptors; it wants this beside `BACKEND_REQ`.
    pub const BACKEND_SEND_FD: u64 = 1 << 10;
    /// Requests under way outlive the daemon.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// Reset without a new connection.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Memory comes and goes region by region.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;

    /// What this end does.
    pub const OFFERED: u64 =
        MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | RESET_DEVICE | CONFIGURE_MEM_SLOTS;
}

/// The beginning of every message.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// One of [`code`].
    pub request: u32,
    flags: u32,
    /// Bytes of the body.
    pub bytes: u32,
}

impl Header {
    /// A message that asks for no answer.
    pub fn new(request: u32, bytes: usize) -> Header {
        Header { request, flags: VERSION, bytes: bytes as u32 }
    }

    /// The answer to a request.
    pub fn answer(request: u32, bytes: usize) -> Header {
        Header { request, flags: VERSION | REPLY, bytes: bytes as u32 }
    }

    /// Whether the version is ours and it is a request.
    pub fn is_request(&self) -> bool {
        self.flags & VERSION_MASK == VERSION && self.flags & REPLY == 0
    }

    /// Whether an answer is asked for to what has none otherwise.
    pub fn needs_answer(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }
}

/// A queue and a number.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VringState {
    /// Queue.
    pub index: u32,
    /// The number.
    pub number: u32,
}

/// Where a queue lies, in addresses of the front end.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VringAddress {
    /// Queue.
    pub index: u32,
    /// Bit 0: writes to the used ring are to be logged, which is not offered.
    pub flags: u32,
    /// Descriptor table.
    pub table: u64,
    /// Used ring.
    pub used: u64,
    /// Available ring.
    pub available: u64,
    /// Unused.
    pub log: u64,
}

/// A region of memory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryRegion {
    /// Guest address.
    pub guest: u64,
    /// Length.
    pub bytes: u64,
    /// The front end's address.
    pub user: u64,
    /// Where in the file it begins.
    pub offset: u64,
}

/// The beginning of a memory table.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemoryTable {
    /// Regions that follow.
    pub regions: u32,
    padding: u32,
}

/// One region that comes or goes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SingleRegion {
    padding: u64,
    /// The region.
    pub region: MemoryRegion,
}

/// The beginning of a message about the configuration space; the bytes follow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConfigHeader {
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub bytes: u32,
    flags: u32,
}

/// The memory in which requests under way are noted.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InflightArea {
    /// Its length.
    pub bytes: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Queues.
    pub queues: u16,
    /// Entries of each queue.
    pub entries: u16,
    padding: u32,
}

impl InflightArea {
    /// An area from the beginning of a file.
    pub fn new(bytes: u64, queues: u16, entries: u16) -> InflightArea {
        InflightArea { bytes, offset: 0, queues, entries, padding: 0 }
    }
}

/// In the body of messages that bring an eventfd: no eventfd comes with it.
pub const NO_DESCRIPTOR: u64 = 1 << 8;
/// The queue, in such a body.
pub const QUEUE_MASK: u64 = 0xff;
