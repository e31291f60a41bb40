//! `remuda bench device --kind pool`: a pool of its own, on memory or on given files, so that the whole path of a block is
//! measured: volume, shard, log, index, destaging.

use crate::cli::exit::{Exit, Failure};
use crate::cli::key_values;
use crate::config::diagnostic::Problems;
use crate::config::pool::{REINSERTION, read_upkeep, refuse_keys_of_shaped};
use crate::config::section::{Form, Key, Section, key};
use crate::config::value;
use crate::config::{DeviceDef, DeviceParams};
use crate::node::reactors::{Reactors, on_reactor_async};
use crate::node::{Opened, Opener, Refusal, close_device, open_device, pool_refused, prepare_memory};
use bdev::BlockDevice;
use engine::{CreateOptions, LogDevice, OpenOptions, Pool, PoolDevices, Shape};
use std::path::Path;
use std::sync::Arc;

/// Keys of the kind.
pub const KEYS: &[Key] = &[
    key("shape", Form::Choice(&["hot", "shaped"]), "hot", "How blocks are placed on the capacity."),
    key("size", Form::Size, "three quarters of the capacity", "The volume that is loaded."),
    key("log", Form::Text, "memory", "A file or drive for the log, written in blocks."),
    key("log_pmem", Form::Text, "memory", "A DAX device or file for the log, stored into."),
    key("log_size", Form::Size, "256MiB", "Bytes of log."),
    key("capacity", Form::Text, "memory", "A file or drive that blocks end up on."),
    key("capacity_size", Form::Size, "1GiB", "Bytes of it."),
    key("shards", Form::Count(1, 64), "by size", "Parts that work on their own, dealt out to the jobs' reactors."),
    key("map_cache", Form::Size, "16 MiB per TiB", "Memory for pages of the map."),
    key("reinsertion", REINSERTION.form, "50, under pressure", "Shaped: reinserted bytes for each hundred written."),
    key("force", Form::Flag, "false", "Take files and drives that hold something; it is lost."),
];

/// What the pool shall be like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpec {
    shaped: bool,
    size: Option<u64>,
    log: Option<String>,
    log_pmem: Option<String>,
    log_size: u64,
    capacity: Option<String>,
    capacity_size: u64,
    shards: Option<u16>,
    map_cache: Option<u64>,
    reinsertion: Option<u32>,
    force: bool,
}

impl PoolSpec {
    /// Reads the words of a command line.
    pub fn from_words(words: &[String]) -> Result<PoolSpec, Failure> {
        let (params, mut problems) = (key_values(words)?, Problems::default());
        let table = value::from_json(&params);
        let mut section = Section::new("kind 'pool'", None, &table, &[KEYS], true, &mut problems);
        section.check_unknown(|_| None);
        let text = |section: &mut Section<'_>, name| section.text(name).map(|text| text.value);
        let size = |section: &mut Section<'_>, name| section.size(name).map(|size| size.value);
        let upkeep = read_upkeep(&mut section);
        let spec = PoolSpec {
            shaped: section.choice("shape").is_some_and(|shape| shape.value == Shape::Shaped.name()),
            size: size(&mut section, "size"),
            log: text(&mut section, "log"),
            log_pmem: text(&mut section, "log_pmem"),
            log_size: size(&mut section, "log_size").unwrap_or(256 << 20),
            capacity: text(&mut section, "capacity"),
            capacity_size: size(&mut section, "capacity_size").unwrap_or(1 << 30),
            shards: section.count("shards").map(|shards| shards.value as u16),
            map_cache: upkeep.map_cache,
            reinsertion: upkeep.reinsertion.map(u32::from),
            force: section.flag("force").is_some_and(|flag| flag.value),
        };
        if !spec.shaped {
            refuse_keys_of_shaped(&mut section, &["reinsertion"]);
        }
        if spec.log.is_some() && spec.log_pmem.is_some() {
            section.wrong(None, "log", "give 'log' or 'log_pmem', not both", None);
        }
        match problems.list.is_empty() {
            true => Ok(spec),
            false => Err(Failure::new(Exit::Usage, problems.one_line())),
        }
    }

    /// Log and capacity of these sizes.
    pub fn of_sizes(log_size: u64, capacity_size: u64, shards: u16) -> PoolSpec {
        PoolSpec { log_size, capacity_size, shards: Some(shards), ..PoolSpec::default() }
    }
}

/// A pool, open.
pub struct BenchPool {
    /// The pool.
    pub pool: Arc<Pool>,
    /// The volume to load.
    pub volume: Arc<dyn BlockDevice>,
    below: Vec<Opened>,
    _memory: Option<tempfile::TempDir>,
    _lock: Option<std::fs::File>,
}

impl BenchPool {
    /// Makes it; `capacity` stands in for the device that the spec names.
    pub async fn open(
        spec: &PoolSpec,
        capacity: Option<Arc<dyn BlockDevice>>,
        reactors: &Reactors,
    ) -> Result<BenchPool, Failure> {
        let opener = Opener::without_node(reactors.first());
        let mut below = Vec::new();
        let capacity = match capacity {
            Some(capacity) => capacity,
            None => {
                let opened =
                    open_device(&def("capacity", &spec.capacity, spec.capacity_size), Vec::new(), &opener).await?;
                below.push(opened.clone());
                opened.device
            }
        };
        let (mut memory, mut lock) = (None, None);
        let log = match (&spec.log, &spec.log_pmem) {
            (Some(_), _) => {
                let opened = open_device(&def("log", &spec.log, spec.log_size), Vec::new(), &opener).await?;
                below.push(opened.clone());
                LogDevice::Block(opened.device)
            }
            (None, path) => {
                let path = match path {
                    Some(path) => path.clone(),
                    None => memory.insert(memory_dir()?).path().join("log").to_string_lossy().into_owned(),
                };
                lock = Some(prepare_memory("bench", &path, spec.log_size, true)?);
                LogDevice::Mapped { path, bytes: spec.log_size, volatile_allowed: true }
            }
        };
        let devices = PoolDevices { log, capacity };
        let shape = if spec.shaped { Shape::Shaped } else { Shape::Hot };
        let create =
            CreateOptions { name: "bench".to_string(), shape, shards: spec.shards, ..CreateOptions::default() };
        let options = OpenOptions {
            reactors: (0..reactors.handles().len()).collect(),
            map_cache_bytes: spec.map_cache.map(|bytes| bytes as usize),
            reinsertion_percent: spec.reinsertion,
            tuning: None,
        };
        let (size, force) = (spec.size, spec.force);
        let opened = on_reactor_async(reactors.first(), move |reactor| async move {
            Pool::create(&reactor, &devices, &create, 0, force).await?;
            let pool = Pool::open(&reactor, &devices, &options).await?;
            let bytes = size.unwrap_or(devices.capacity.info().bytes() / 4 * 3);
            let blocks = (bytes / engine::BLOCK_BYTES as u64).max(1);
            let volume = pool.create_volume(&reactor, "bench", blocks, 12, 0).await?;
            Ok::<_, engine::PoolError>((pool, volume))
        });
        let (pool, volume) = opened.await?.map_err(|error| {
            let is_in_use = matches!(error, engine::PoolError::InUse { .. });
            let next = "give it other files, or force=true if what they hold may be lost";
            pool_refused("bench", error, if is_in_use { next } else { "" })
        })?;
        Ok(BenchPool { pool, volume, below, _memory: memory, _lock: lock })
    }

    /// Closes it and the devices below.
    pub async fn close(self, reactors: &Reactors) -> Result<(), Refusal> {
        let pool = self.pool.clone();
        on_reactor_async(reactors.first(), move |reactor| async move { pool.close(&reactor).await }).await?;
        let mut ended = Ok(());
        for opened in self.below.iter().rev() {
            ended = ended.and(close_device(reactors.first(), opened).await);
        }
        ended
    }
}

fn def(name: &str, path: &Option<String>, size: u64) -> DeviceDef {
    let params = match path {
        // A drive has a size of its own.
        Some(path) => {
            let size = std::fs::metadata(path).map_or(true, |found| found.is_file()).then_some(size);
            DeviceParams::File { path: path.clone(), size, block_size: None, direct: true }
        }
        None => DeviceParams::Mem { size: size / 4096 * 4096, size_max: size / 4096 * 4096, block_size: 4096 },
    };
    DeviceDef { name: name.to_string(), params }
}

/// A directory in memory, where there is one.
fn memory_dir() -> Result<tempfile::TempDir, Failure> {
    let shared = Path::new("/dev/shm");
    let dir = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
    let made = tempfile::Builder::new().prefix("remuda-bench-").tempdir_in(&dir);
    made.map_err(|error| Failure::new(Exit::Failed, format!("cannot make a directory in {}: {error}", dir.display())))
}
