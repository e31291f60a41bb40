//! What a device of each kind is made of, and how it is read from TOML, RPC parameters or `key=value` words.

use super::diagnostic::{Problems, nearest};
use super::section::{Form, Key, Section, key};
use super::value::{Located, Span, Table};
use serde::{Deserialize, Serialize};

/// Least bandwidth of a device that is limited.
pub(super) const BANDWIDTH_MIN: u64 = 4096;
/// A bandwidth below that.
pub(super) const TOO_NARROW: &str = "it must be at least 4 KiB: with less, not a block goes through in a second";

/// How long a remote target may be away unless told otherwise.
pub const LOSS_TIMEOUT_NS: u64 = 600_000_000_000;
const BLOCK_SIZE: Form = Form::Size;

/// Kinds by name, each with a line about it and its keys.
pub const KINDS: &[(&str, &str, &[Key])] = &[
    ("mem", "Memory: fast, and empty after a restart.", MEM),
    ("null", "Accepts writes and forgets them; reads return zeroes. No pool can stand on it.", NULL),
    (
        "file",
        "A regular file or a block device. One with zones is a zoned device: see [devices.md](devices.md#drives-with-zones).",
        FILE,
    ),
    ("stripe", "Spreads blocks over several devices.", STRIPE),
    ("mirror", "Keeps the same blocks on several devices.", MIRROR),
    (
        "parity",
        "Keeps what any one of several devices has: a shaped pool stands on it. See [devices.md](devices.md).",
        PARITY,
    ),
    ("delay", "Adds latency to a device.", DELAY),
    ("error", "Makes chosen operations of a device fail.", ERROR),
    ("checksum", "Detects rot and misdirected writes with a CRC32C per block.", CHECKSUM),
    ("encrypt", "Encrypts with AES-256-XTS.", ENCRYPT),
    ("rate-limit", "Bounds operations and bytes per second.", RATE_LIMIT),
    ("zoned", "Makes zones of a device that has none: each is written from its start on and reset as a whole.", ZONED),
    (
        "zone-bands",
        "Puts a small device that is written in place in front of a zoned one: a shaped pool stands on it. See [pools.md](pools.md#a-shaped-pool-on-zoned-drives).",
        ZONE_BANDS,
    ),
    (
        "flash-cache",
        "Caches reads of a slow device on flash, which is written no more than a budget allows.",
        FLASH_CACHE,
    ),
    (
        "nvmf",
        "A namespace of an NVMe/TCP target. A node starts while the target is down, and takes it in, with all that stands on it, when it is there.",
        NVMF,
    ),
];

const COMMON: &[Key] = &[
    key("name", Form::Text, "required", "Its name: letters, digits, '.', '_' and '-'."),
    key("kind", Form::Choice(&KIND_NAMES), "required", "What it is."),
];

const KIND_NAMES: [&str; KINDS.len()] = {
    let mut names = [""; KINDS.len()];
    let mut index = 0;
    while index < KINDS.len() {
        names[index] = KINDS[index].0;
        index += 1;
    }
    names
};

const MEM: &[Key] = &[
    key("size", Form::Size, "required", "Its size."),
    key("size_max", Form::Size, "size", "How far it can be resized; address space, not memory, is set aside."),
    key("block_size", BLOCK_SIZE, "4096", "Bytes per block: a power of two from 512 to 64 KiB."),
];
const NULL: &[Key] = &[
    key("size", Form::Size, "required", "Its size."),
    key("block_size", BLOCK_SIZE, "4096", "Bytes per block: a power of two from 512 to 64 KiB."),
];
const FILE: &[Key] = &[
    key("path", Form::Text, "required", "The file or block device."),
    key(
        "size",
        Form::Size,
        "the file's size",
        "Creates a missing file of this size, once; a larger size grows one that the node has had before.",
    ),
    key(
        "block_size",
        BLOCK_SIZE,
        "4096",
        "Bytes per block: 512 or 4096. Of a drive with zones, what it writes at once.",
    ),
    key("direct", Form::Flag, "true", "Bypass the page cache where the file system allows it."),
];
const STRIPE: &[Key] = &[
    key("devices", Form::TextList, "required", "The devices, at least two, of equal block size."),
    key("chunk", Form::Size, "128KiB", "Bytes on one device before the next one's turn."),
];
const MIRROR: &[Key] = &[
    key("devices", Form::TextList, "required", "The devices, two to eight, of equal block size."),
    key(
        "start_degraded",
        Form::Flag,
        "false",
        "Open it although a device is absent that may have newer writes. Without this it waits for that device, or for a command; see [devices.md](devices.md).",
    ),
    key(
        "resync_rate",
        Form::Size,
        "a short pause after each region",
        "Bytes per second that are copied at most to a leg that lacks some.",
    ),
];
const PARITY: &[Key] = &[
    key("devices", Form::TextList, "required", "The devices, 3 to 16, of equal block size, in a fixed order."),
    key(
        "chunk",
        Form::Size,
        "64KiB",
        "Bytes of a row on each device: a multiple of 4 KiB; a row has 1 MiB of data at most. Fixed when it is made.",
    ),
    key(
        "head",
        Form::Size,
        "1/384 of it, from 16MiB on",
        "Bytes that are the same on all devices, for what a pool writes in small pieces. Fixed when it is made.",
    ),
    key("rebuild_rate", Form::Size, "a short pause after each step", "Bytes per second that a rebuild writes at most."),
];
const DELAY: &[Key] = &[
    key("device", Form::Text, "required", "The device below."),
    key("read", Form::Duration, "0us", "Added to each read."),
    key("write", Form::Duration, "0us", "Added to each write and other change."),
    key("flush", Form::Duration, "0us", "Added to each flush."),
    key("jitter", Form::Duration, "0us", "A random further delay of up to so much."),
];
const ERROR: &[Key] = &[
    key("device", Form::Text, "required", "The device below."),
    key("op", Form::Choice(&["any", "read", "write", "flush", "unmap"]), "any", "Which operations can fail."),
    key("rate", Form::Fraction, "0", "The fraction of them that fails."),
    key(
        "nth",
        Form::Count(1, u64::MAX),
        "none",
        "Only the n-th of them fails, counted from the start or the last change.",
    ),
    key(
        "fault",
        Form::Choice(&["fail", "fail-after", "lose", "flip-bit"]),
        "fail",
        "What happens: not done and reported, done and reported as failed, a write acknowledged and not done, one bit flipped.",
    ),
    key("first_block", Form::Count(0, u64::MAX), "0", "Only operations that touch blocks from here on fail ..."),
    key("blocks", Form::Count(1, u64::MAX), "to the end", "... for so many blocks."),
    key("seed", Form::Count(0, u64::MAX), "1", "Seed of the random choice."),
];
const CHECKSUM: &[Key] = &[key("device", Form::Text, "required", "The device below.")];
const ENCRYPT: &[Key] = &[
    key("device", Form::Text, "required", "The device below."),
    key(
        "key_file",
        Form::Text,
        "required",
        "A file with at least 32 random bytes, or 64 hexadecimal digits, readable by the owner alone.",
    ),
];
const RATE_LIMIT: &[Key] = &[
    key("device", Form::Text, "required", "The device below."),
    key("iops", Form::Count(1, u64::MAX), "no limit", "Most operations per second."),
    key("bandwidth", Form::Size, "no limit", "Most bytes per second, 4 KiB or more."),
];
const ZONED: &[Key] = &[
    key("device", Form::Text, "required", "The device below."),
    key("zone_size", Form::Size, "256MiB", "Bytes from one zone to the next: a power of two. Fixed when it is made."),
    key("capacity", Form::Size, "zone_size", "Bytes of a zone that can be written. Fixed when it is made."),
    key("max_open", Form::Count(1, u32::MAX as u64), "no limit", "Most zones open at once."),
    key("max_active", Form::Count(1, u32::MAX as u64), "no limit", "Most zones open or closed at once."),
    key(
        "extension",
        Form::Size,
        "0",
        "Bytes that hosts may keep in each zone's descriptor: a multiple of 64, up to 4032. Fixed when it is made.",
    ),
];
const ZONE_BANDS: &[Key] = &[
    key(
        "head",
        Form::Text,
        "the zones' drive",
        "The device that is written in place, best of 16 MiB and 1/384 of the zones' size, or more. Left out, it is the drive's conventional zones.",
    ),
    key("zones", Form::Text, "required", "The zoned device. All of its zones are used."),
];
const FLASH_CACHE: &[Key] = &[
    key("device", Form::Text, "required", "The slow device: a disk, or a stripe of several."),
    key("flash", Form::Text, "required", "The flash device; all of it is used. It has copies only, and may be lost."),
    key(
        "write_budget",
        Form::Size,
        "required",
        "Most bytes written to flash in a day: what the drive endures in all, by the days that it has to last.",
    ),
    key("endurance", Form::Size, "none", "Bytes that may be written to the drive in its life, for the forecast."),
    key(
        "cache_missing",
        Form::Choice(&["refuse", "pass-through"]),
        "refuse",
        "What to do when the flash device is absent or cannot be used: refuse to open, or go on without it; what it has is void then.",
    ),
];
const NVMF: &[Key] = &[
    key("address", Form::Text, "required", "Address and port of the target, such as \"10.0.0.7:4420\"."),
    key(
        "paths",
        Form::TextList,
        "none",
        "More addresses of the same namespace, at this target or others; without 'address' the first one is that.",
    ),
    key("nqn", Form::Text, "required", "The subsystem's name."),
    key("nsid", Form::Count(1, 0xFFFF_FFFE), "1", "The namespace."),
    key("host_nqn", Form::Text, "this node's", "The name given to the target."),
    key("tls_key", Form::Text, "none", "File with the key with which this node connects by TLS."),
    key("dhchap_key", Form::Text, "none", "File with the key that this node proves to have (DH-HMAC-CHAP)."),
    key("dhchap_ctrl_key", Form::Text, "none", "File with the key that the target has to prove to have."),
    key("queues", Form::Count(1, 64), "one per reactor", "I/O queues."),
    key("queue_depth", Form::Count(2, 1024), "128", "Commands per queue."),
    key("header_digest", Form::Flag, "false", "Checksums of PDU headers."),
    key("data_digest", Form::Flag, "false", "Checksums of PDU data."),
    key(
        "exclusive",
        Form::Flag,
        "false",
        "No other host writes to it: what was lost with its connections is sent again over new ones at once.",
    ),
    key(
        "loss_timeout",
        Form::Duration,
        "10m",
        "How long operations wait for a target that is away; later ones fail at once, until it is back.",
    ),
];

/// A device as defined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceDef {
    /// Unique name.
    pub name: String,
    /// Kind and parameters.
    #[serde(flatten)]
    pub params: DeviceParams,
}

/// The parameters of each kind. Sizes are bytes, durations nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each field is a key of the tables above, described there")]
pub enum DeviceParams {
    Mem {
        size: u64,
        size_max: u64,
        block_size: u32,
    },
    Null {
        size: u64,
        block_size: u32,
    },
    File {
        path: String,
        size: Option<u64>,
        block_size: Option<u32>,
        direct: bool,
    },
    Stripe {
        devices: Vec<String>,
        chunk: u64,
    },
    Mirror {
        devices: Vec<String>,
        #[serde(default)]
        start_degraded: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resync_rate: Option<u64>,
    },
    Parity {
        devices: Vec<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        chunk: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        head: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rebuild_rate: Option<u64>,
    },
    Delay {
        device: String,
        read_ns: u64,
        write_ns: u64,
        flush_ns: u64,
        jitter_ns: u64,
    },
    Error {
        device: String,
        op: String,
        rate: f64,
        fault: String,
        nth: Option<u64>,
        first_block: u64,
        blocks: Option<u64>,
        seed: u64,
    },
    Checksum {
        device: String,
    },
    Encrypt {
        device: String,
        key_file: String,
        /// While a change of key is under way: what opened it until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous_key_file: Option<String>,
    },
    RateLimit {
        device: String,
        iops: Option<u64>,
        bandwidth: Option<u64>,
    },
    Zoned {
        device: String,
        zone_size: u64,
        /// 0 is all of a zone.
        capacity: u64,
        max_open: Option<u32>,
        max_active: Option<u32>,
        #[serde(default)]
        extension: u32,
    },
    ZoneBands {
        /// The head, where it is another device, and the zoned device.
        devices: Vec<String>,
    },
    FlashCache {
        /// The slow device, and flash.
        devices: Vec<String>,
        write_budget: u64,
        endurance: Option<u64>,
        pass_through: bool,
    },
    Nvmf {
        address: String,
        /// More addresses of the same namespace.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        paths: Vec<String>,
        nqn: String,
        nsid: u32,
        host_nqn: Option<String>,
        /// File with the key for TLS.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tls_key: Option<String>,
        /// File with the key that this host proves to have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dhchap_key: Option<String>,
        /// File with the key that the target has to prove to have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dhchap_ctrl_key: Option<String>,
        queues: Option<u16>,
        queue_depth: u16,
        header_digest: bool,
        data_digest: bool,
        exclusive: bool,
        loss_timeout_ns: u64,
    },
}

impl DeviceParams {
    /// Names of the devices it stands on.
    pub fn children(&self) -> &[String] {
        match self {
            DeviceParams::Stripe { devices, .. }
            | DeviceParams::Mirror { devices, .. }
            | DeviceParams::Parity { devices, .. }
            | DeviceParams::ZoneBands { devices }
            | DeviceParams::FlashCache { devices, .. } => devices,
            DeviceParams::Delay { device, .. }
            | DeviceParams::Error { device, .. }
            | DeviceParams::Checksum { device }
            | DeviceParams::Encrypt { device, .. }
            | DeviceParams::Zoned { device, .. }
            | DeviceParams::RateLimit { device, .. } => std::slice::from_ref(device),
            _ => &[],
        }
    }
}

impl DeviceDef {
    /// The kind's name.
    pub fn kind(&self) -> &'static str {
        match &self.params {
            DeviceParams::Mem { .. } => "mem",
            DeviceParams::Null { .. } => "null",
            DeviceParams::File { .. } => "file",
            DeviceParams::Stripe { .. } => "stripe",
            DeviceParams::Mirror { .. } => "mirror",
            DeviceParams::Parity { .. } => "parity",
            DeviceParams::Delay { .. } => "delay",
            DeviceParams::Error { .. } => "error",
            DeviceParams::Checksum { .. } => "checksum",
            DeviceParams::Encrypt { .. } => "encrypt",
            DeviceParams::RateLimit { .. } => "rate-limit",
            DeviceParams::Zoned { .. } => "zoned",
            DeviceParams::ZoneBands { .. } => "zone-bands",
            DeviceParams::FlashCache { .. } => "flash-cache",
            DeviceParams::Nvmf { .. } => "nvmf",
        }
    }

    /// Whether it can do without the child at a place: a mirror without a leg, a parity device without a member, and a flash cache that was told so without its
    /// flash.
    pub fn may_lack(&self, child: usize) -> bool {
        match &self.params {
            DeviceParams::Mirror { .. } | DeviceParams::Parity { .. } => true,
            DeviceParams::FlashCache { pass_through, .. } => *pass_through && child == 1,
            _ => false,
        }
    }

    /// Names of the devices it stands on.
    pub fn children(&self) -> &[String] {
        self.params.children()
    }

    /// The path of the file that it needs.
    pub fn resource_path(&self) -> Option<&str> {
        match &self.params {
            DeviceParams::File { path, .. } | DeviceParams::Encrypt { key_file: path, .. } => Some(path),
            _ => None,
        }
    }

    /// The size in the definition, when the kind has one.
    pub fn size(&self) -> Option<u64> {
        match &self.params {
            DeviceParams::Mem { size, .. } | DeviceParams::Null { size, .. } => Some(*size),
            DeviceParams::File { size, .. } => *size,
            _ => None,
        }
    }

    /// Replaces the key file in the definition of an encrypted device.
    pub fn set_key_file(&mut self, file: &str, previous: Option<&str>) {
        if let DeviceParams::Encrypt { key_file, previous_key_file, .. } = &mut self.params {
            (*key_file, *previous_key_file) = (file.to_string(), previous.map(str::to_string));
        }
    }

    /// Replaces the size in the definition.
    pub fn set_size(&mut self, bytes: u64) {
        match &mut self.params {
            DeviceParams::Mem { size, size_max, .. } => {
                *size = bytes;
                *size_max = bytes.max(*size_max);
            }
            DeviceParams::Null { size, .. } => *size = bytes,
            DeviceParams::File { size, .. } => *size = Some(bytes),
            _ => {}
        }
    }
}

/// A device of the configuration file, with the places its definition refers to.
#[derive(Clone, Debug)]
pub struct DeviceEntry {
    /// The definition.
    pub def: DeviceDef,
    /// Where its name stands.
    pub name_span: Option<Span>,
    /// Its children and where they are named.
    pub children: Vec<Located<String>>,
    /// Where its path, key file or address stands.
    pub resource_span: Option<Span>,
}

/// Keys of `kind`, without `name` and `kind`.
pub fn keys_of(kind: &str) -> Option<&'static [Key]> {
    KINDS.iter().find(|(name, _, _)| *name == kind).map(|(_, _, keys)| *keys)
}

/// Reads one device; `None` when something is wrong, all of which has been noted.
pub fn read_device(table: &Table, span: Option<Span>, words: bool, problems: &mut Problems) -> Option<DeviceEntry> {
    let name = table.iter().find_map(|(key, value)| match &value.data {
        super::value::Data::Text(text) if key.value == "name" => Some(text.as_str()),
        _ => None,
    });
    let title = name.map_or("[[device]]".to_string(), |name| format!("device '{name}'"));
    let before = problems.list.len();
    let mut head = Section::new(title.clone(), span.clone(), table, &[COMMON], words, problems);
    let name = head.need_text("name");
    if let Some(name) = &name
        && let Err(reason) = check_name(&name.value)
    {
        head.wrong(name.span.clone(), "name", reason, None);
    }
    if !head.has("kind") {
        head.missing("kind");
    }
    let kind = head.choice("kind")?.value;
    let keys = keys_of(kind).expect("every kind has its keys");
    let mut section = Section::new(title, span, table, &[COMMON, keys], words, problems);
    section.check_unknown(|unknown| other_kinds(unknown, keys, kind));
    let entry = read_params(&mut section, kind, name?);
    if problems.list.len() > before { None } else { entry }
}

/// A key that other kinds have and this one has nothing similar to.
fn other_kinds(unknown: &str, keys: &[Key], kind: &str) -> Option<String> {
    if nearest(unknown, keys.iter().map(|key| key.name)).is_some() {
        return None;
    }
    let owners: Vec<_> = KINDS.iter().filter(|(_, _, keys)| keys.iter().any(|key| key.name == unknown)).collect();
    let owners: Vec<_> = owners.iter().map(|(name, _, _)| *name).collect();
    (!owners.is_empty()).then(|| format!("a '{kind}' device has no such key (kinds that do: {})", owners.join(", ")))
}

fn read_params(section: &mut Section<'_>, kind: &str, name: Located<String>) -> Option<DeviceEntry> {
    let mut children = Vec::new();
    let mut resource_span = None;
    let params = match kind {
        "mem" => {
            let (size, block_size) = (need_size(section, "size")?, block_size(section)?);
            let size_max = section.size("size_max").map_or(size.value, |max| max.value).max(size.value);
            check_multiple(section, &size, block_size.unwrap_or(4096));
            DeviceParams::Mem { size: size.value, size_max, block_size: block_size.unwrap_or(4096) }
        }
        "null" => {
            let (size, block_size) = (need_size(section, "size")?, block_size(section)?);
            check_multiple(section, &size, block_size.unwrap_or(4096));
            DeviceParams::Null { size: size.value, block_size: block_size.unwrap_or(4096) }
        }
        "file" => {
            let path = section.need_text("path")?;
            resource_span = path.span.clone();
            let (size, block_size) = (section.size("size"), block_size(section)?);
            if let Some(other) = block_size.filter(|size| !matches!(size, 512 | 4096)) {
                let span = section.raw("block_size").and_then(|value| value.span.clone());
                section.wrong(span, "block_size", format!("a file has blocks of 512 or 4096 bytes, not {other}"), None);
            }
            if let Some(size) = &size {
                check_multiple(section, size, block_size.unwrap_or(4096));
            }
            let direct = section.flag("direct").is_none_or(|flag| flag.value);
            DeviceParams::File { path: path.value, size: size.map(|size| size.value), block_size, direct }
        }
        "stripe" => {
            children = need_children(section, 2, bdev::STRIPE_CHILDREN_MAX)?;
            let chunk = section.size("chunk");
            let chunk_bytes = chunk.as_ref().map_or(128 << 10, |chunk| chunk.value);
            if !chunk_bytes.is_power_of_two() || !(4096..=16 << 20).contains(&chunk_bytes) {
                let span = chunk.and_then(|chunk| chunk.span);
                section.wrong(span, "chunk", "it must be a power of two from 4 KiB to 16 MiB", None);
            }
            DeviceParams::Stripe { devices: names(&children), chunk: chunk_bytes }
        }
        "mirror" => {
            children = need_children(section, 2, bdev::LEGS_MAX)?;
            let start_degraded = section.flag("start_degraded").is_some_and(|flag| flag.value);
            let resync_rate = section.size("resync_rate").map(|rate| rate.value);
            DeviceParams::Mirror { devices: names(&children), start_degraded, resync_rate }
        }
        "parity" => read_parity(section, &mut children)?,
        "delay" => DeviceParams::Delay {
            device: need_child(section, &mut children)?,
            read_ns: duration(section, "read"),
            write_ns: duration(section, "write"),
            flush_ns: duration(section, "flush"),
            jitter_ns: duration(section, "jitter"),
        },
        "error" => DeviceParams::Error {
            device: need_child(section, &mut children)?,
            op: section.choice("op").map_or("any", |op| op.value).to_string(),
            rate: section.fraction("rate").map_or(0.0, |rate| rate.value),
            fault: section.choice("fault").map_or("fail", |fault| fault.value).to_string(),
            nth: section.count("nth").map(|nth| nth.value),
            first_block: section.count("first_block").map_or(0, |block| block.value),
            blocks: section.count("blocks").map(|blocks| blocks.value),
            seed: section.count("seed").map_or(1, |seed| seed.value),
        },
        "checksum" => DeviceParams::Checksum { device: need_child(section, &mut children)? },
        "encrypt" => {
            let device = need_child(section, &mut children)?;
            let key_file = section.need_text("key_file")?;
            resource_span = key_file.span.clone();
            DeviceParams::Encrypt { device, key_file: key_file.value, previous_key_file: None }
        }
        "rate-limit" => {
            let device = need_child(section, &mut children)?;
            let iops = section.count("iops").map(|iops| iops.value);
            let bandwidth = section.size("bandwidth");
            if iops.is_none() && bandwidth.is_none() {
                section.wrong(None, "iops", "a rate limit needs 'iops' or 'bandwidth'", None);
            }
            if let Some(bandwidth) = bandwidth.as_ref().filter(|bandwidth| bandwidth.value < BANDWIDTH_MIN) {
                section.wrong(bandwidth.span.clone(), "bandwidth", TOO_NARROW, None);
            }
            let bandwidth = bandwidth.map(|bandwidth| bandwidth.value);
            DeviceParams::RateLimit { device, iops, bandwidth }
        }
        "zoned" => {
            let device = need_child(section, &mut children)?;
            let (zone_size, capacity) = (section.size("zone_size"), section.size("capacity"));
            let zone_bytes = zone_size.as_ref().map_or(bdev::ZonedOptions::default().zone_bytes, |size| size.value);
            if !zone_bytes.is_power_of_two() {
                section.wrong(zone_size.and_then(|size| size.span), "zone_size", "it must be a power of two", None);
            }
            let capacity_bytes = capacity.as_ref().map_or(0, |capacity| capacity.value);
            if capacity.is_some() && !(1..=zone_bytes).contains(&capacity_bytes) {
                let message = format!("it must be within a zone's {zone_bytes} bytes");
                section.wrong(capacity.and_then(|capacity| capacity.span), "capacity", message, None);
            }
            let (open, active) = (section.count("max_open"), section.count("max_active"));
            if let (Some(open), Some(active)) = (&open, &active)
                && open.value > active.value
            {
                section.wrong(open.span.clone(), "max_open", "more than 'max_active', and open zones are active", None);
            }
            let limit = |count: Option<Located<u64>>| count.map(|count| count.value as u32);
            let (max_open, max_active) = (limit(open), limit(active));
            let extension = section.size("extension");
            let extension_bytes = extension.as_ref().map_or(0, |extension| extension.value);
            let extension_max = bdev::ZONE_EXTENSION_BYTES_MAX;
            if !extension_bytes.is_multiple_of(64) || extension_bytes > u64::from(extension_max) {
                let message = format!("it must be a multiple of 64, up to {extension_max}");
                section.wrong(extension.and_then(|extension| extension.span), "extension", message, None);
            }
            DeviceParams::Zoned {
                device,
                zone_size: zone_bytes,
                capacity: capacity_bytes,
                max_open,
                max_active,
                extension: extension_bytes as u32,
            }
        }
        "zone-bands" => {
            let (head, zones) = (section.text("head"), section.need_text("zones")?);
            if head.as_ref().is_some_and(|head| head.value == zones.value) {
                let message = "it is the head as well; name another one, or leave out the head to use the drive's conventional zones";
                section.wrong(zones.span.clone(), "zones", message, None);
            }
            children = head.into_iter().chain([zones]).collect();
            DeviceParams::ZoneBands { devices: names(&children) }
        }
        "flash-cache" => {
            let slow = need_child(section, &mut children)?;
            let flash = section.need_text("flash")?;
            if flash.value == slow {
                section.wrong(flash.span.clone(), "flash", "it is the slow device as well; name another one", None);
            }
            let devices = vec![slow, flash.value.clone()];
            children.push(flash);
            read_flash_cache(section, devices, false)?
        }
        "nvmf" => {
            let mut paths = section.texts("paths").unwrap_or_default();
            let address = match section.has("address") || paths.is_empty() {
                true => section.need_text("address"),
                false => Some(paths.remove(0)),
            };
            let nqn = section.need_text("nqn");
            let (address, nqn) = (address?, nqn?);
            resource_span = address.span.clone();
            if let Err(reason) = super::check_nqn(&nqn.value) {
                section.wrong(nqn.span.clone(), "nqn", reason, None);
            }
            let address_text = match super::parse_address(&address.value) {
                Ok(address) => address.to_string(),
                Err(reason) => {
                    section.wrong(address.span.clone(), "address", reason, None);
                    address.value
                }
            };
            let paths = read_paths(section, &address_text, paths);
            let host_nqn = section.text("host_nqn");
            if let Some(host) = &host_nqn
                && let Err(reason) = super::check_nqn(&host.value)
            {
                section.wrong(host.span.clone(), "host_nqn", reason, None);
            }
            let tls_key = section.text("tls_key");
            if let Some(file) = &tls_key {
                super::host_key::need_tls(&mut *section, file.span.clone(), "tls_key");
            }
            let (dhchap_key, ctrl_key) = (section.text("dhchap_key"), section.text("dhchap_ctrl_key"));
            if let (None, Some(ctrl_key)) = (&dhchap_key, &ctrl_key) {
                let message = "a target proves itself to a host that authenticates itself";
                section.wrong(ctrl_key.span.clone(), "dhchap_ctrl_key", message, Some("add 'dhchap_key'".into()));
            }
            DeviceParams::Nvmf {
                address: address_text,
                paths,
                nqn: nqn.value,
                nsid: section.count("nsid").map_or(1, |nsid| nsid.value as u32),
                host_nqn: host_nqn.map(|host| host.value),
                tls_key: tls_key.map(|file| file.value),
                dhchap_key: dhchap_key.map(|file| file.value),
                dhchap_ctrl_key: ctrl_key.map(|file| file.value),
                queues: section.count("queues").map(|queues| queues.value as u16),
                queue_depth: section.count("queue_depth").map_or(128, |depth| depth.value as u16),
                header_digest: section.flag("header_digest").is_some_and(|flag| flag.value),
                data_digest: section.flag("data_digest").is_some_and(|flag| flag.value),
                exclusive: section.flag("exclusive").is_some_and(|flag| flag.value),
                loss_timeout_ns: section
                    .duration_ns("loss_timeout")
                    .map_or(LOSS_TIMEOUT_NS, |limit| limit.value.max(1)),
            }
        }
        other => unreachable!("kind '{other}' is in the table but not here"),
    };
    let def = DeviceDef { name: name.value, params };
    Some(DeviceEntry { def, name_span: name.span, children, resource_span })
}

/// The addresses of a remote namespace besides `first`.
pub(super) fn read_paths(section: &mut Section<'_>, first: &str, given: Vec<Located<String>>) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for path in given {
        match super::parse_address(&path.value) {
            Ok(address) if address.to_string() == first || paths.contains(&address.to_string()) => {
                section.wrong(path.span, "paths", format!("{address} is named twice"), None);
            }
            Ok(address) => paths.push(address.to_string()),
            Err(reason) => section.wrong(path.span, "paths", reason, None),
        }
    }
    if paths.len() >= nvme::initiator::PATHS_MAX {
        let most = nvme::initiator::PATHS_MAX;
        section.wrong(None, "paths", format!("a device has {most} paths at most, found {}", paths.len() + 1), None);
    }
    paths
}

fn read_parity(section: &mut Section<'_>, children: &mut Vec<Located<String>>) -> Option<DeviceParams> {
    *children = need_children(section, bdev::PARITY_MEMBERS_MIN, bdev::PARITY_MEMBERS_MAX)?;
    let (chunk, head) = (section.size("chunk"), section.size("head"));
    let row = |chunk: u64| chunk.saturating_mul(children.len().saturating_sub(1) as u64);
    if let Some(chunk) = &chunk
        && (chunk.value == 0 || !chunk.value.is_multiple_of(4096) || row(chunk.value) > 1 << 20)
    {
        let message = "it must be a multiple of 4 KiB, with 1 MiB at most in the chunks of a row but one";
        section.wrong(chunk.span.clone(), "chunk", message, None);
    }
    if let Some(head) = head.as_ref().filter(|head| head.value < 256 << 10) {
        section.wrong(head.span.clone(), "head", "a pool needs 256 KiB at least", None);
    }
    Some(DeviceParams::Parity {
        devices: names(children),
        chunk: chunk.map(|chunk| chunk.value),
        head: head.map(|head| head.value),
        rebuild_rate: section.size("rebuild_rate").map(|rate| rate.value),
    })
}

fn names(children: &[Located<String>]) -> Vec<String> {
    children.iter().map(|child| child.value.clone()).collect()
}

fn need_child(section: &mut Section<'_>, children: &mut Vec<Located<String>>) -> Option<String> {
    let child = section.need_text("device")?;
    children.push(child.clone());
    Some(child.value)
}

fn need_children(section: &mut Section<'_>, least: usize, most: usize) -> Option<Vec<Located<String>>> {
    if !section.has("devices") {
        section.missing("devices");
    }
    let children = section.texts("devices")?;
    if !(least..=most).contains(&children.len()) {
        let span = section.raw("devices").and_then(|value| value.span.clone());
        let message = format!("expected {least} to {most} devices, found {}", children.len());
        let help = (least > 2 && children.len() == 2).then(|| "a mirror does with two".to_string());
        section.wrong(span, "devices", message, help);
    }
    for (index, child) in children.iter().enumerate() {
        if children[..index].iter().any(|other| other.value == child.value) {
            section.wrong(child.span.clone(), "devices", format!("'{}' is named twice", child.value), None);
        }
    }
    Some(children)
}

/// A flash cache on these devices; `passes_through` without flash unless it is told what to do.
pub(super) fn read_flash_cache(
    section: &mut Section<'_>,
    devices: Vec<String>,
    passes_through: bool,
) -> Option<DeviceParams> {
    let write_budget = need_size(section, "write_budget")?.value;
    let endurance = section.size("endurance").map(|bytes| bytes.value);
    let choice = section.choice("cache_missing");
    let pass_through = choice.map_or(passes_through, |choice| choice.value == "pass-through");
    Some(DeviceParams::FlashCache { devices, write_budget, endurance, pass_through })
}

fn need_size(section: &mut Section<'_>, name: &str) -> Option<Located<u64>> {
    if !section.has(name) {
        section.missing(name);
    }
    let size = section.size(name)?;
    if size.value == 0 {
        section.wrong(size.span.clone(), name, "it cannot be zero", None);
    }
    Some(size)
}

fn duration(section: &mut Section<'_>, name: &str) -> u64 {
    section.duration_ns(name).map_or(0, |duration| duration.value)
}

/// `None` when the key is wrong; `Some(None)` when it is absent.
fn block_size(section: &mut Section<'_>) -> Option<Option<u32>> {
    if !section.has("block_size") {
        return Some(None);
    }
    let size = section.size("block_size")?;
    if size.value.is_power_of_two() && (512..=65_536).contains(&size.value) {
        return Some(Some(size.value as u32));
    }
    section.wrong(size.span, "block_size", "it must be a power of two from 512 to 65536", None);
    None
}

fn check_multiple(section: &mut Section<'_>, size: &Located<u64>, block_size: u32) {
    if !size.value.is_multiple_of(block_size as u64) {
        let down = size.value / block_size as u64 * block_size as u64;
        let help = match down {
            0 => super::UNITS_HINT.to_string(),
            _ => format!("use {down} or {}", down + block_size as u64),
        };
        let message = format!("{} bytes is not a multiple of the block size {block_size}", size.value);
        section.wrong(size.span.clone(), "size", message, Some(help));
    }
}

/// Names that appear in paths, metrics and command lines.
pub fn check_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) || name.starts_with('-') {
        return Err(format!(
            "'{name}' is not a valid name: use 1 to 64 letters, digits, '.', '_' or '-', not starting with '-'"
        ));
    }
    Ok(())
}
