//! What a pool is made of, and how it is read from `[pool.NAME]` or from RPC parameters.

use super::device::{DeviceDef, DeviceParams, check_name, read_flash_cache};
use super::diagnostic::Problems;
use super::section::{Form, Key, Section, key};
use super::value::{Data, Located, Span, Table};
use engine::layout::{OVERPROVISION_MAX, OVERPROVISION_MIN};
use engine::{CreateOptions, Shape};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes that the sizes of bands are multiples of.
const BLOCK: u64 = engine::BLOCK_BYTES as u64;

/// Largest volume in a pool: an extent has a 32-bit number.
pub const POOL_VOLUME_BYTES_MAX: u64 = u32::MAX as u64 * engine::EXTENT_BLOCKS as u64 * BLOCK;

/// Most shards of a pool; what the devices have room for is found out when it is made.
const SHARDS_MAX: u64 = engine::SHARDS_MAX as u64;

const SHARDS: Key = key(
    "shards",
    Form::Count(1, SHARDS_MAX),
    "by size",
    "Parts that work on their own, each on a reactor; fixed when the pool is made.",
);
const SHAPE: Key = key(
    "shape",
    Form::Choice(&["hot", "shaped"]),
    "hot",
    "How blocks are placed: hot overwrites them in place, shaped writes the capacity device in long runs alone (QLC).",
);
const OVERPROVISION: Key = key(
    "overprovision",
    Form::Count(OVERPROVISION_MIN as u64, OVERPROVISION_MAX as u64),
    "15",
    "Shaped: percent of the capacity that volumes do not get; the more, the less garbage collection writes.",
);
const WRITE_UNIT: Key = key(
    "write_unit",
    Form::Size,
    "64KiB",
    "Shaped: the capacity device is written in multiples of this, a power of two up to 1 MiB, over parity a multiple of its rows; best \
     the drive's indirection unit.",
);
const BAND: Key = key(
    "band",
    Form::Size,
    "by size",
    "Shaped: bytes that are written and collected as one, a power of two from 4 MiB to 1 GiB, over parity a multiple of the write unit.",
);
const GROW_TO: Key = key(
    "grow_to",
    Form::Size,
    "twice the capacity, where that takes an eighth of the log at most",
    "Shaped: the log device keeps room for the index of a capacity device of this size, for `pool grow`.",
);
const VOLUMES_MAX: Key = key(
    "volumes_max",
    Form::Count(1, engine::VOLUMES_MAX as u64),
    "16 for each GiB of capacity, 4096 at least (on 1 GiB or more) and 65536 at most",
    "Volumes and snapshots, together, that there is room for; fixed when the pool is made.",
);
const MAP_CACHE: Key =
    key("map_cache", Form::Size, "16 MiB per TiB of capacity", "Memory for pages of the map, over all shards.");
pub const REINSERTION: Key = key(
    "reinsertion",
    Form::Count(0, engine::REINSERTION_PERCENT_MAX as u64),
    "50, while writers wait for the capacity device",
    "Shaped: bytes, of each hundred that are written, that may go to the log once more, to keep what is written often off the capacity \
     device.",
);
const CAPACITY: Key = key("capacity", Form::Text, "required", "The device that blocks end up on, 256 MiB or more.");

/// Keys of `[pool.NAME]`.
pub const POOL: &[Key] = &[
    key(
        "log",
        Form::Special("device name, or {pmem, size, volatile}"),
        "required",
        "The fast device that writes go to first, 64 MiB or more.",
    ),
    CAPACITY,
    SHARDS,
    VOLUMES_MAX,
    MAP_CACHE,
    SHAPE,
    REINSERTION,
    OVERPROVISION,
    WRITE_UNIT,
    BAND,
    GROW_TO,
];

/// Keys of a log in persistent memory.
pub const POOL_PMEM: &[Key] = &[
    key("pmem", Form::Text, "required", "A DAX device or file."),
    key("size", Form::Size, "required", "Bytes of it to use; a file that is missing is made so large."),
    key("volatile", Form::Flag, "false", "Take memory that loses its contents with the power: for tests."),
];

/// Parameters of `pool.create`.
pub const POOL_CREATE: &[Key] = &[
    key("name", Form::Text, "required", "The pool's name."),
    key("log", Form::Text, "this or log_pmem", "The device that writes go to first, 64 MiB or more."),
    key("log_pmem", Form::Text, "this or log", "A DAX device or file for the log."),
    key("log_size", Form::Size, "required with log_pmem", "Bytes of it to use."),
    key("volatile", Form::Flag, "false", "Take memory that loses its contents with the power: for tests."),
    CAPACITY,
    SHARDS,
    VOLUMES_MAX,
    MAP_CACHE,
    SHAPE,
    REINSERTION,
    OVERPROVISION,
    WRITE_UNIT,
    BAND,
    GROW_TO,
    key(
        "cache",
        Form::Text,
        "none",
        "Warm: the flash device on which reads of the capacity device are cached; it is made 'NAME-cache'.",
    ),
    key("write_budget", Form::Size, "required with cache", "Most bytes written to that flash device in a day."),
    key("endurance", Form::Size, "none", "Bytes that may be written to it in its life, for the forecast."),
    key(
        "cache_missing",
        Form::Choice(&["pass-through", "refuse"]),
        "pass-through",
        "What to do when that flash device is absent; nothing is lost without it.",
    ),
    key("force", Form::Flag, "false", "Take devices that hold something; it is lost."),
];

/// Where a pool's log is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogDef {
    /// On a device of this name.
    Device(String),
    /// In persistent memory.
    Pmem {
        /// A DAX device or file.
        path: String,
        /// Bytes of it to use.
        size: u64,
        /// Memory that loses its contents with the power will do.
        volatile: bool,
    },
}

/// What a pool is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolDef {
    /// Its name.
    pub name: String,
    /// Where its log is.
    pub log: LogDef,
    /// The device that blocks end up on.
    pub capacity: String,
    /// Its shards when it is made; later its superblock knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u16>,
    /// Volumes and snapshots that it has room for when it is made; later its superblock knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_max: Option<u32>,
    /// Bytes of memory for pages of the map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map_cache: Option<u64>,
    /// Of a shaped pool: bytes that may be reinserted into the log for each hundred that are written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reinsertion: Option<u16>,
    /// How blocks are placed, when it is made; later its superblock knows.
    #[serde(default, skip_serializing_if = "PlacementDef::is_hot")]
    pub placement: PlacementDef,
}

/// How a pool that is made places blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementDef {
    /// In place.
    #[default]
    Hot,
    /// In bands.
    Shaped {
        /// Percent of the bands that volumes do not get.
        overprovision: Option<u8>,
        /// Bytes of which writes are multiples.
        write_unit: Option<u64>,
        /// Bytes of a band.
        band: Option<u64>,
        /// Bytes up to which the capacity device may grow without a larger log device.
        #[serde(default)]
        grow_to: Option<u64>,
    },
}

impl PlacementDef {
    /// Blocks are placed where they belong.
    pub fn is_hot(&self) -> bool {
        *self == PlacementDef::Hot
    }

    /// The shape that it asks for.
    pub fn shape(&self) -> Shape {
        if self.is_hot() { Shape::Hot } else { Shape::Shaped }
    }
}

impl PoolDef {
    /// Name of the device that its log is on, where it is on one.
    pub fn log_device(&self) -> Option<&str> {
        match &self.log {
            LogDef::Device(name) => Some(name),
            LogDef::Pmem { .. } => None,
        }
    }

    /// How it is made, if it has to be.
    pub fn create_options(&self, pool: Option<Uuid>) -> CreateOptions {
        let (name, shards, volumes_max) = (self.name.clone(), self.shards, self.volumes_max);
        let options = CreateOptions { name, shards, volumes_max, pool, ..CreateOptions::default() };
        match self.placement {
            PlacementDef::Hot => options,
            PlacementDef::Shaped { overprovision, write_unit, band, grow_to } => {
                let blocks = |bytes: u64| (bytes / BLOCK).min(u32::MAX as u64) as u32;
                CreateOptions {
                    shape: Shape::Shaped,
                    overprovision,
                    unit_blocks: write_unit.map(blocks),
                    band_blocks: band.map(blocks),
                    grow_to_blocks: grow_to.map(|bytes| bytes / BLOCK),
                    ..options
                }
            }
        }
    }

    /// Names of the devices it stands on.
    pub fn devices(&self) -> Vec<&str> {
        self.log_device().into_iter().chain([self.capacity.as_str()]).collect()
    }
}

/// A pool of the configuration file, with the places its definition refers to.
#[derive(Clone, Debug)]
pub struct PoolEntry {
    /// The definition.
    pub def: PoolDef,
    /// Where its name stands.
    pub name_span: Option<Span>,
    /// Where its log is named.
    pub log_span: Option<Span>,
    /// Where its capacity device is named.
    pub capacity_span: Option<Span>,
    /// Where the values stand from which it is planned.
    pub spans: [(&'static str, Option<Span>); PLANNED.len()],
}

impl PoolEntry {
    /// The devices that it stands on, with the keys that name them and where these stand.
    pub fn placed_devices(&self) -> Vec<(&'static str, &str, &Option<Span>)> {
        let log = self.def.log_device().map(|device| ("log", device, &self.log_span));
        log.into_iter().chain([("capacity", self.def.capacity.as_str(), &self.capacity_span)]).collect()
    }
}

/// Keys of what a pool is planned from, beside its devices.
const PLANNED: [&str; 6] = ["shards", "volumes_max", "overprovision", "write_unit", "band", "grow_to"];

/// Reads one `[pool.NAME]`; `None` when something is wrong, all of which has been noted.
pub fn read_pool(name: &Located<String>, table: &Table, problems: &mut Problems) -> Option<PoolEntry> {
    let before = problems.list.len();
    let title = format!("pool '{}'", name.value);
    let mut section = Section::new(title, name.span.clone(), table, &[POOL], false, problems);
    section.check_unknown(|unknown| match unknown {
        "pmem" | "volatile" | "size" => Some("write log = { pmem = PATH, size = SIZE }".to_string()),
        "name" => Some("a pool's name stands in its heading: [pool.NAME]".to_string()),
        _ => None,
    });
    if let Err(reason) = check_name(&name.value) {
        section.wrong(name.span.clone(), "name", reason, None);
    }
    let log = read_log(&mut section);
    let capacity = section.need_text("capacity");
    let Make { shards, volumes_max, upkeep: Upkeep { map_cache, reinsertion }, placement } = read_make(&mut section);
    let span_of = |section: &mut Section<'_>, key| section.raw(key).and_then(|value| value.span.clone());
    let spans = PLANNED.map(|key| (key, span_of(&mut section, key)));
    if problems.list.len() > before {
        return None;
    }
    let ((log, log_span), capacity) = (log?, capacity?);
    let (name, name_span, capacity_name) = (name.value.clone(), name.span.clone(), capacity.value);
    let def = PoolDef { name, log, capacity: capacity_name, shards, volumes_max, map_cache, reinsertion, placement };
    Some(PoolEntry { def, name_span, log_span, capacity_span: capacity.span, spans })
}

/// How a pool is made, and what of it can be changed later.
struct Make {
    shards: Option<u16>,
    volumes_max: Option<u32>,
    upkeep: Upkeep,
    placement: PlacementDef,
}

/// What can be said of a pool each time that it is opened.
pub struct Upkeep {
    /// Bytes of memory for pages of the map.
    pub map_cache: Option<u64>,
    /// Bytes that may be reinserted into the log for each hundred that are written.
    pub reinsertion: Option<u16>,
}

fn read_make(section: &mut Section<'_>) -> Make {
    let shards = section.count("shards").map(|shards| shards.value as u16);
    let volumes_max = section.count("volumes_max").map(|volumes| volumes.value as u32);
    Make { shards, volumes_max, upkeep: read_upkeep(section), placement: read_placement(section) }
}

/// Reads what can be changed of a pool.
pub fn read_upkeep(section: &mut Section<'_>) -> Upkeep {
    Upkeep {
        map_cache: section.size("map_cache").map(|size| size.value),
        reinsertion: section.count("reinsertion").map(|percent| percent.value as u16),
    }
}

/// Refuses keys that say nothing of a pool without bands.
pub fn refuse_keys_of_shaped(section: &mut Section<'_>, names: &[&str]) {
    for name in names.iter().filter(|name| section.has(name)).copied().collect::<Vec<_>>() {
        let help = "write shape = \"shaped\" for a pool with bands";
        let span = section.raw(name).and_then(|value| value.span.clone());
        section.wrong(span, name, format!("'{name}' is for shaped pools"), Some(help.to_string()));
    }
}

fn read_placement(section: &mut Section<'_>) -> PlacementDef {
    let shape = match section.text("shape") {
        Some(shape) if shape.value == "warm" => {
            let help = "a warm pool is a hot one whose 'capacity' is a device of kind 'flash-cache': leave 'shape' out"
                .to_string();
            section.wrong(shape.span, "shape", "'warm' is not a shape of its own here", Some(help));
            "hot"
        }
        _ => section.choice("shape").map_or("hot", |shape| shape.value),
    };
    let overprovision = section.count("overprovision").map(|percent| percent.value as u8);
    let write_unit = section.size("write_unit");
    let band = section.size("band");
    let grow_to = section.size("grow_to").map(|size| size.value);
    for (name, size) in [("write_unit", &write_unit), ("band", &band)] {
        if let Some(size) = size
            && (!size.value.is_multiple_of(BLOCK) || size.value == 0)
        {
            // Over rows it is a multiple of these, else a power of two: known when the pool is made.
            section.wrong(size.span.clone(), name, "expected a multiple of 4KiB", None);
        }
    }
    if shape == "shaped" {
        let (write_unit, band) = (write_unit.map(|size| size.value), band.map(|size| size.value));
        return PlacementDef::Shaped { overprovision, write_unit, band, grow_to };
    }
    refuse_keys_of_shaped(section, &["reinsertion", "overprovision", "write_unit", "band", "grow_to"]);
    PlacementDef::Hot
}

fn read_log(section: &mut Section<'_>) -> Option<(LogDef, Option<Span>)> {
    let Some(value) = section.raw("log") else {
        section.missing("log");
        return None;
    };
    match &value.data {
        Data::Text(name) => Some((LogDef::Device(name.clone()), value.span.clone())),
        Data::Table(table) => {
            let title = format!("the log of {}", section.title);
            let mut inner = Section::new(title, value.span.clone(), table, &[POOL_PMEM], false, section.problems);
            inner.check_unknown(|_| None);
            let path = inner.need_text("pmem");
            if !inner.has("size") {
                inner.missing("size");
            }
            let size = inner.size("size");
            let volatile = inner.flag("volatile").is_some_and(|flag| flag.value);
            let (path, size) = (path?, size?);
            Some((LogDef::Pmem { path: path.value, size: size.value, volatile }, path.span))
        }
        other => {
            let message = format!("expected a device name or {{pmem, size, volatile}}, found {}", other.type_name());
            section.wrong(value.span.clone(), "log", message, None);
            None
        }
    }
}

/// What `pool.create` is asked for.
pub struct PoolRequest {
    /// The pool; with a cache, on that.
    pub pool: PoolDef,
    /// The flash cache that is to be made for it.
    pub cache: Option<DeviceDef>,
    /// What the devices hold may be lost.
    pub force: bool,
}

/// Reads the parameters of `pool.create`.
pub fn read_pool_request(table: &Table, problems: &mut Problems) -> Option<PoolRequest> {
    let before = problems.list.len();
    let mut section = Section::new("method 'pool.create'", None, table, &[POOL_CREATE], true, problems);
    section.check_unknown(|_| None);
    let name = section.need_text("name");
    if let Some(name) = &name {
        section.title = format!("pool '{}'", name.value);
        if let Err(reason) = check_name(&name.value) {
            section.wrong(None, "name", reason, None);
        }
    }
    let (device, pmem) = (section.text("log"), section.text("log_pmem"));
    let (size, volatile) = (section.size("log_size"), section.flag("volatile").is_some_and(|flag| flag.value));
    let log = match (device, pmem) {
        (Some(device), None) => {
            if size.is_some() || volatile {
                section.wrong(None, "log", "'log_size' and 'volatile' are for a log in persistent memory", None);
            }
            Some(LogDef::Device(device.value))
        }
        (None, Some(path)) => {
            if size.is_none() && !section.has("log_size") {
                section.missing("log_size");
            }
            size.map(|size| LogDef::Pmem { path: path.value, size: size.value, volatile })
        }
        (None, None) => {
            section.missing("log");
            None
        }
        (Some(_), Some(_)) => {
            section.wrong(None, "log", "give 'log' or 'log_pmem', not both", None);
            None
        }
    };
    let capacity = section.need_text("capacity");
    let Make { shards, volumes_max, upkeep: Upkeep { map_cache, reinsertion }, placement } = read_make(&mut section);
    let force = section.flag("force").is_some_and(|flag| flag.value);
    let cache = read_cache(&mut section, capacity.as_ref(), placement.is_hot());
    if problems.list.len() > before {
        return None;
    }
    let (name, mut capacity) = (name?.value, capacity?.value);
    let cache = cache.map(|params| DeviceDef { name: format!("{name}-cache"), params });
    if let Some(cache) = &cache {
        capacity = cache.name.clone();
    }
    let pool = PoolDef { name, log: log?, capacity, shards, volumes_max, map_cache, reinsertion, placement };
    Some(PoolRequest { pool, cache, force })
}

/// The flash cache of a warm pool, on its capacity device.
fn read_cache(section: &mut Section<'_>, slow: Option<&Located<String>>, is_hot: bool) -> Option<DeviceParams> {
    let Some(flash) = section.text("cache") else {
        for key in ["write_budget", "endurance", "cache_missing"] {
            if section.has(key) {
                section.wrong(None, key, "it is of a cache; add 'cache'", None);
            }
        }
        return None;
    };
    if !is_hot {
        section.wrong(None, "cache", "a shaped pool has no cache; leave out 'shape'", None);
    }
    if slow.is_some_and(|slow| slow.value == flash.value) {
        section.wrong(flash.span.clone(), "cache", "it is the capacity device as well; name another one", None);
    }
    read_flash_cache(section, vec![slow?.value.clone(), flash.value], true)
}
