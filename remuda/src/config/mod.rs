//! The configuration file: read with places kept, so that every problem is reported with file, line and column, all at
//! once and before anything is started.

pub mod ana;
pub mod change;
mod check;
pub mod device;
mod device_plan;
pub mod diagnostic;
pub mod forgetful;
pub mod host_key;
pub mod limit;
mod listeners;
pub mod namespace;
mod places;
pub mod pool;
mod pool_fit;
mod pool_plan;
pub mod reference;
pub mod section;
mod subsystem;
pub mod value;
pub mod vhost;
pub mod written;

pub use ana::{AnaEntry, parse_controller_ids};
pub use check::{check_file, check_key_file, read_key};
pub use device::{DeviceDef, DeviceEntry, DeviceParams};
pub use device_plan::spec_of;
pub use diagnostic::{BadConfig, Problems, Source, nearest};
pub use namespace::{NAMESPACE, check_uuid};
pub use places::{default_socket, default_state_dir};
pub use pool::{LogDef, POOL_VOLUME_BYTES_MAX, PlacementDef, PoolDef, PoolEntry};
pub use pool_fit::{VOLATILE_LOG, check_memory_log};
pub use section::{UNITS_HINT, show_duration_ns};
pub use subsystem::{SUBSYSTEM, SubsystemEntry, check_ascii, check_nqn};
pub use vhost::{VHOST, VhostEntry};

use base::ByteSize;
use limit::LimitEntry;
use section::{Form, Key, Section, key};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use value::{Data, Located, Span, Table, Value};

/// Largest configuration file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// The port that IANA gave to NVMe over Fabrics.
pub const NVMF_PORT: u16 = 4420;
/// Where metrics are served unless told otherwise.
pub const METRICS_DEFAULT: &str = "127.0.0.1:9420";

/// Keys of `[node]`.
pub const NODE: &[Key] = &[
    key(
        "state_dir",
        Form::Text,
        "$XDG_STATE_HOME/remuda",
        "Where the node keeps what it must remember. Without that variable ~/.local/state/remuda, of root /var/lib/remuda.",
    ),
    key(
        "rpc_socket",
        Form::Text,
        "$XDG_RUNTIME_DIR/remuda.sock",
        "The socket that the command line talks to. Without that variable /tmp/remuda-UID.sock.",
    ),
    key(
        "reactors",
        Form::Special("integer, or list of cores such as [0, 2]"),
        "1",
        "How many reactors, or on which cores.",
    ),
    key("poll_policy", Form::Choice(&["adaptive", "busy", "sleep"]), "adaptive", "What an idle reactor does."),
    key("spin_max", Form::Duration, "50us", "Longest spin of the adaptive policy."),
    key("buffer_memory", Form::Size, "64MiB", "I/O buffers of each reactor, at most."),
    key("log_level", Form::Choice(&["error", "warn", "info", "debug", "trace"]), "info", "What is logged."),
    key("log_format", Form::Choice(&["text", "json"]), "text", "How it is logged."),
    key(
        "metrics_listen",
        Form::Text,
        METRICS_DEFAULT,
        "Address of the console, /metrics, /healthz and /livez, or \"off\".",
    ),
    key("console", Form::Flag, "true", "Serve the console for browsers, which can look and change nothing."),
    key(
        "console_names",
        Form::TextList,
        "[]",
        "Names by which browsers may call the console, besides addresses, localhost and the machine's own.",
    ),
    key("drain_timeout", Form::Duration, "10s", "How long a stopping node waits for I/O under way."),
];

/// Keys of `[nvmf]`.
pub const NVMF: &[Key] = &[
    key("listen", Form::TextList, "[] (no target)", "Addresses of the NVMe/TCP target."),
    key(
        "listen_tls",
        Form::TextList,
        "[]",
        "Addresses where every connection is encrypted (TLS 1.3, with the host's key).",
    ),
    key(
        "insecure",
        Form::Flag,
        "false",
        "Allow addresses other than loopback although nothing is encrypted and hosts without a key are not authenticated.",
    ),
    key("referrals", Form::TextList, "[]", "Addresses of other discovery services that hosts are told of."),
    key("digests", Form::Flag, "true", "Grant header and data digests to hosts that ask for them."),
    key("max_connections", Form::Count(1, 65_536), "1024", "Most TCP connections."),
    key("io_queues", Form::Count(1, 256), "64", "Most I/O queues of one controller."),
    key("queue_size", Form::Count(2, 1024), "1024", "Most entries of one queue."),
    key("in_capsule_size", Form::Size, "8KiB", "Write data carried inside a command."),
    key("max_io_size", Form::Size, "1MiB", "Largest single transfer."),
    key(
        "stall_timeout",
        Form::Duration,
        "30s",
        "How long a host may refuse to take data, or to send data that it was asked for, before it loses its connection.",
    ),
    key(
        "stall_bytes_min",
        Form::Size,
        "64KiB",
        "What a host must take in each stall_timeout while more waits for it than its socket holds.",
    ),
];

/// The target looks for stalled hosts once a second.
const STALL_TIMEOUT_MIN_NS: u64 = 1_000_000_000;
/// More than that no network is asked to move.
const STALL_BYTES_MOST: u64 = 1 << 30;

/// Keys of `[[volume]]`.
pub const VOLUME: &[Key] = &[
    key("name", Form::Text, "required", "Its name."),
    key("device", Form::Text, "this or pool", "The device it lies on."),
    key("size", Form::Size, "the whole device", "Its size; the place is chosen by the node unless 'offset' is given."),
    key("offset", Form::Size, "chosen by the node", "Where it starts on the device."),
    key(
        "pool",
        Form::Text,
        "this or device",
        "The pool it is in. It is made when it is missing; later sizes are given to it by command.",
    ),
    key("block_size", Form::Size, "4096", "In a pool: bytes per block, 512 or 4096, when it is made."),
];

/// What an idle reactor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Spin up to so many nanoseconds, then sleep.
    Adaptive(u64),
    /// Never sleep.
    Busy,
    /// Sleep at once.
    Sleep,
}

/// `[node]`.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Absolute.
    pub state_dir: PathBuf,
    /// Absolute.
    pub rpc_socket: PathBuf,
    /// One entry per reactor: its core, or `None` to leave the choice to the kernel.
    pub reactors: Vec<Option<usize>>,
    /// When idle.
    pub policy: Policy,
    /// Per reactor, bytes.
    pub buffer_memory: u64,
    /// A `tracing` level.
    pub log_level: String,
    /// Log as JSON lines.
    pub log_json: bool,
    /// `None` is off.
    pub metrics: Option<SocketAddr>,
    /// The address was written down, so failing to use it is an error.
    pub metrics_explicit: bool,
    /// The console is served beside the metrics.
    pub console: bool,
    /// Names under which it answers.
    pub console_names: Vec<String>,
    /// Nanoseconds.
    pub drain_timeout_ns: u64,
}

/// `[nvmf]`.
#[derive(Clone, Debug)]
pub struct NvmfConfig {
    /// Addresses; none means no target.
    pub listen: Vec<SocketAddr>,
    /// Addresses where every connection is encrypted.
    pub listen_tls: Vec<SocketAddr>,
    /// Other discovery services.
    pub referrals: Vec<SocketAddr>,
    /// Header and data digests granted.
    pub digests: bool,
    /// TCP connections at most.
    pub max_connections: u32,
    /// I/O queues of a controller at most.
    pub io_queues: u16,
    /// Entries of a queue at most.
    pub queue_size: u16,
    /// Bytes.
    pub in_capsule_size: u32,
    /// Bytes.
    pub max_io_size: u32,
    /// Nanoseconds.
    pub stall_timeout_ns: u64,
    /// Bytes.
    pub stall_bytes_min: usize,
}

/// `[[volume]]`.
#[derive(Clone, Debug)]
pub struct VolumeEntry {
    /// Name.
    pub name: Located<String>,
    /// Device.
    pub device: Located<String>,
    /// Bytes; `None` with no offset is the whole device.
    pub size: Option<Located<u64>>,
    /// Bytes.
    pub offset: Option<Located<u64>>,
}

/// A `[[volume]]` in a pool.
#[derive(Clone, Debug)]
pub struct PoolVolumeEntry {
    /// Name.
    pub name: Located<String>,
    /// Pool.
    pub pool: Located<String>,
    /// Bytes when it is made.
    pub size: u64,
    /// Bytes per block when it is made.
    pub block_size: u32,
}

/// A configuration in which everything checkable without starting has been checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file.
    pub source: Source,
    /// `[node]`.
    pub node: NodeConfig,
    /// `[nvmf]`.
    pub nvmf: NvmfConfig,
    /// `[[device]]`.
    pub devices: Vec<DeviceEntry>,
    /// `[pool.NAME]`.
    pub pools: Vec<PoolEntry>,
    /// `[[volume]]` on devices.
    pub volumes: Vec<VolumeEntry>,
    /// `[[volume]]` in pools.
    pub pool_volumes: Vec<PoolVolumeEntry>,
    /// `[[subsystem]]`.
    pub subsystems: Vec<SubsystemEntry>,
    /// `[[vhost]]`.
    pub vhosts: Vec<VhostEntry>,
    /// `[[limit]]`.
    pub limits: Vec<LimitEntry>,
    /// Names of devices, pools and volumes whose sections are wrong: references to them are not wrong as well.
    broken: Vec<String>,
}

impl Config {
    /// Reads and checks a file: what is wrong is a reason not to start.
    pub fn load(path: &str) -> Result<Config, BadConfig> {
        Config::parse(path, read_text(path)?)
    }

    /// As [`load`](Self::load), and looks for what a node starts with and can hardly be meant: pools that would stay
    /// closed, listeners that are in each other's way.
    pub fn load_and_look(path: &str) -> Result<Config, BadConfig> {
        Config::parse_and_look(path, read_text(path)?)
    }

    /// Reads and checks a text; `path` is for messages and for relative paths inside it.
    pub fn parse(path: &str, text: String) -> Result<Config, BadConfig> {
        Config::parse_checked(path, text, check::check)
    }

    fn parse_and_look(path: &str, text: String) -> Result<Config, BadConfig> {
        let startable = |config: &Config, problems: &mut Problems| {
            check::check(config, problems);
            listeners::look(config, problems);
        };
        let checked = Config::parse_checked(path, text.clone(), |config, problems| {
            check::check(config, problems);
            listeners::look(config, problems);
            pool_fit::check_sizes(config, problems);
            pool_plan::check_plans(config, problems);
            forgetful::check(config, problems);
            pool_fit::check_logs(config, problems);
        });
        checked.map_err(|bad| {
            let would_start = Config::parse_checked(path, text, startable).is_ok();
            BadConfig { would_start, ..bad }
        })
    }

    fn parse_checked(path: &str, text: String, check: fn(&Config, &mut Problems)) -> Result<Config, BadConfig> {
        let mut problems = Problems::default();
        let source = Source { path: path.to_string(), text };
        match parse_text(&source, &mut problems) {
            Some(config) => {
                check(&config, &mut problems);
                if problems.list.is_empty() {
                    return Ok(config);
                }
            }
            None => assert!(!problems.list.is_empty(), "a configuration is refused for a reason"),
        }
        problems.list.sort_by_key(|problem| problem.span.as_ref().map_or(usize::MAX, |span| span.start));
        Err(BadConfig { source, problems: problems.list, would_start: false })
    }
}

fn read_text(path: &str) -> Result<String, BadConfig> {
    let unreadable = |error: std::io::Error| BadConfig::unreadable(path, &error);
    let size = std::fs::metadata(path).map_err(unreadable)?.len();
    if size > FILE_BYTES_MAX {
        return Err(unreadable(std::io::Error::other(format!("{size} bytes is too large for a configuration"))));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

impl Config {
    /// What is allowed and hardly meant.
    pub fn warnings(&self) -> Vec<String> {
        let keys_for_nothing =
            |subsystem: &&SubsystemEntry| subsystem.allow_any_host && !subsystem.host_keys.is_empty();
        let warning = |subsystem: &SubsystemEntry| {
            let line = subsystem.nqn.span.as_ref().map_or(0, |span| self.source.position(span.start).0);
            format!(
                "{}:{line}: subsystem '{}' has keys of hosts and lets in every host: {ANY_HOST_WITH_KEYS}",
                self.source.path, subsystem.nqn.value
            )
        };
        let limits = self.limits.iter().filter_map(|limit| {
            let line = limit.of.span.as_ref().map_or(0, |span| self.source.position(span.start).0);
            let warning = limit.rates.warning()?;
            Some(format!("{}:{line}: limit of {}: {warning}", self.source.path, limit.of.value))
        });
        let keys = self.subsystems.iter().filter(keys_for_nothing).map(warning);
        keys.chain(limits).chain(self.warnings_of_pools()).collect()
    }
}

/// Why keys are no use where every host may connect, and what to do.
pub const ANY_HOST_WITH_KEYS: &str = "whoever states another name is let in without a key, so the keys protect nothing; \
                                      list the hosts in 'hosts' instead of 'allow_any_host'";

/// Relative paths in the file are relative to the file.
fn resolve(source: &Source, path: &str) -> PathBuf {
    let base = std::path::absolute(&source.path).ok();
    let base = base.as_deref().and_then(Path::parent).unwrap_or(Path::new("/"));
    base.join(path)
}

const SECTIONS: [&str; 8] = ["node", "nvmf", "device", "pool", "volume", "subsystem", "vhost", "limit"];

fn parse_text(source: &Source, problems: &mut Problems) -> Option<Config> {
    let (table, errors) = toml::de::DeTable::parse_recoverable(&source.text);
    for error in &errors {
        problems.add(error.span(), "", error.message().trim(), None);
    }
    if !errors.is_empty() {
        return None;
    }
    let table = value::from_toml(table.get_ref());
    for (name, value) in &table {
        if !SECTIONS.contains(&name.value.as_str()) {
            unknown_section(name, value, problems);
        }
    }
    let node = read_node(single(&table, "node", problems), source, problems);
    let nvmf = read_nvmf(single(&table, "nvmf", problems), problems);
    let mut broken = Vec::new();
    let mut devices = Vec::new();
    for (table, span) in many(&table, "device", problems) {
        match device::read_device(table, span, false, problems) {
            Some(entry) => devices.push(resolve_paths(source, entry)),
            None => broken.extend(name_in(table)),
        }
    }
    let mut pools = Vec::new();
    for (name, table) in named(&table, "pool", problems) {
        match pool::read_pool(name, table, problems) {
            Some(entry) => pools.push(resolve_log(source, entry)),
            None => broken.push(name.value.clone()),
        }
    }
    let (mut volumes, mut pool_volumes) = (Vec::new(), Vec::new());
    for (table, span) in many(&table, "volume", problems) {
        match read_volume(table, span, problems) {
            Some(VolumeSection::OnDevice(entry)) => volumes.push(entry),
            Some(VolumeSection::InPool(entry)) => pool_volumes.push(entry),
            None => broken.extend(name_in(table)),
        }
    }
    let mut subsystems = Vec::new();
    for (table, span) in many(&table, "subsystem", problems) {
        let mut entry = subsystem::read_subsystem(table, span, problems);
        entry.iter_mut().for_each(|entry| host_key::resolve_host_keys(source, &mut entry.host_keys));
        subsystems.extend(entry);
    }
    let mut vhosts = Vec::new();
    for (table, span) in many(&table, "vhost", problems) {
        vhosts.extend(vhost::read_vhost(table, span, problems, |path| resolve(source, path)));
    }
    let limits = many(&table, "limit", problems).into_iter();
    let limits = limits.filter_map(|(table, span)| limit::read_limit(table, span, problems)).collect();
    Some(Config {
        source: source.clone(),
        node,
        nvmf,
        devices,
        pools,
        volumes,
        pool_volumes,
        subsystems,
        vhosts,
        limits,
        broken,
    })
}

fn name_in(table: &Table) -> Option<String> {
    table.iter().find_map(|(key, value)| match &value.data {
        Data::Text(name) if key.value == "name" => Some(name.clone()),
        _ => None,
    })
}

fn resolve_paths(source: &Source, mut entry: DeviceEntry) -> DeviceEntry {
    match &mut entry.def.params {
        DeviceParams::File { path, .. } | DeviceParams::Encrypt { key_file: path, .. } => {
            *path = resolve(source, path).to_string_lossy().into_owned();
        }
        DeviceParams::Nvmf { tls_key, dhchap_key, dhchap_ctrl_key, .. } => {
            for path in tls_key.iter_mut().chain(dhchap_key).chain(dhchap_ctrl_key) {
                *path = resolve(source, path).to_string_lossy().into_owned();
            }
        }
        _ => {}
    }
    entry
}

fn resolve_log(source: &Source, mut entry: PoolEntry) -> PoolEntry {
    if let LogDef::Pmem { path, .. } = &mut entry.def.log {
        *path = resolve(source, path).to_string_lossy().into_owned();
    }
    entry
}

fn unknown_section(name: &Located<String>, value: &Value, problems: &mut Problems) {
    let is_key = match &value.data {
        Data::Table(_) => false,
        Data::List(items) => !items.iter().any(|item| matches!(item.data, Data::Table(_))),
        _ => true,
    };
    let owner = [
        ("[node]", NODE),
        ("[nvmf]", NVMF),
        ("[[volume]]", VOLUME),
        ("[[subsystem]]", SUBSYSTEM),
        ("[[vhost]]", VHOST),
        ("[[limit]]", limit::LIMIT),
    ];
    let owner = owner.into_iter().find(|(_, keys)| keys.iter().any(|key| key.name == name.value));
    let help = match (owner, nearest(&name.value, SECTIONS)) {
        (Some((section, _)), _) if is_key => format!("'{}' belongs below {section}", name.value),
        (_, Some(near)) => format!("did you mean '{near}'?"),
        _ => "the sections are [node], [nvmf], [[device]], [pool.NAME], [[volume]], [[subsystem]], [[vhost]] and [[limit]]"
            .to_string(),
    };
    let what = if is_key { "key" } else { "section" };
    problems.add(name.span.clone(), &name.value, format!("unknown {what} '{}'", name.value), Some(help));
}

static EMPTY: Table = Table::new();

fn single<'a>(table: &'a Table, name: &str, problems: &mut Problems) -> (&'a Table, Option<Span>) {
    match table.iter().find(|(key, _)| key.value == name) {
        None => (&EMPTY, None),
        Some((key, Value { data: Data::Table(section), .. })) => (section, key.span.clone()),
        Some((key, _)) => {
            problems.add(key.span.clone(), name, format!("'{name}' is a section"), Some(format!("write [{name}]")));
            (&EMPTY, None)
        }
    }
}

fn many<'a>(table: &'a Table, name: &str, problems: &mut Problems) -> Vec<(&'a Table, Option<Span>)> {
    let Some((key, value)) = table.iter().find(|(key, _)| key.value == name) else { return Vec::new() };
    let help = Some(format!("write [[{name}]] once for each {name}"));
    let Data::List(items) = &value.data else {
        problems.add(key.span.clone(), name, format!("'{name}' is a list of sections"), help);
        return Vec::new();
    };
    let mut sections = Vec::new();
    for item in items {
        match &item.data {
            Data::Table(section) => sections.push((section, item.span.clone())),
            _ => problems.add(item.span.clone(), name, format!("'{name}' is a list of sections"), help.clone()),
        }
    }
    sections
}

/// Sections that carry their name in the heading: `[name.KEY]`.
fn named<'a>(table: &'a Table, name: &str, problems: &mut Problems) -> Vec<(&'a Located<String>, &'a Table)> {
    let Some((key, value)) = table.iter().find(|(key, _)| key.value == name) else { return Vec::new() };
    let help = Some(format!("write [{name}.NAME] once for each {name}"));
    let Data::Table(items) = &value.data else {
        problems.add(key.span.clone(), name, format!("'{name}' holds named sections"), help);
        return Vec::new();
    };
    let mut sections = Vec::new();
    for (inner, item) in items {
        match &item.data {
            Data::Table(section) => sections.push((inner, section)),
            _ => {
                let message = format!("'{}' is not in a named section", inner.value);
                problems.add(inner.span.clone(), &inner.value, message, help.clone());
            }
        }
    }
    sections
}

fn read_node((table, span): (&Table, Option<Span>), source: &Source, problems: &mut Problems) -> NodeConfig {
    let mut section = Section::new("[node]", span, table, &[NODE], false, problems);
    section.check_unknown(|_| None);
    let state_dir = section.text("state_dir").map_or_else(default_state_dir, |dir| resolve(source, &dir.value));
    let rpc_socket = section.text("rpc_socket").map_or_else(default_socket, |path| resolve(source, &path.value));
    let reactors = read_reactors(&mut section);
    let spin_max = section.duration_ns("spin_max").map_or(reactor::SPIN_MAX_NS_DEFAULT, |spin| spin.value);
    let policy = match section.choice("poll_policy").map(|policy| policy.value) {
        Some("busy") => Policy::Busy,
        Some("sleep") => Policy::Sleep,
        _ => Policy::Adaptive(spin_max),
    };
    let memory = section.size("buffer_memory");
    if let Some(memory) = &memory
        && !(4 << 20..=1 << 40).contains(&memory.value)
    {
        section.wrong(memory.span.clone(), "buffer_memory", "it must be at least 4 MiB and at most 1 TiB", None);
    }
    let metrics = section.text("metrics_listen");
    let metrics_explicit = metrics.is_some();
    let metrics = match metrics {
        None => Some(METRICS_DEFAULT.parse().expect("the default is an address")),
        Some(off) if off.value == "off" => None,
        Some(text) => match text.value.parse() {
            Ok(address) => Some(address),
            Err(_) => {
                let message = format!("'{}' is not an address and port, nor \"off\"", text.value);
                section.wrong(text.span, "metrics_listen", message, Some(format!("for example \"{METRICS_DEFAULT}\"")));
                None
            }
        },
    };
    let console_names = section.texts("console_names").unwrap_or_default();
    for name in &console_names {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.value.is_empty() || !name.value.bytes().all(plain) {
            let message = format!("'{}' is not a name of a machine", name.value);
            let help = "names alone, without http:// and port".to_string();
            section.wrong(name.span.clone(), "console_names", message, Some(help));
        }
    }
    NodeConfig {
        state_dir,
        rpc_socket,
        reactors,
        policy,
        buffer_memory: memory.map_or(64 << 20, |memory| memory.value),
        log_level: section.choice("log_level").map_or("info", |level| level.value).to_string(),
        log_json: section.choice("log_format").is_some_and(|format| format.value == "json"),
        metrics,
        metrics_explicit,
        console: section.flag("console").is_none_or(|console| console.value),
        console_names: console_names.into_iter().map(|name| name.value).collect(),
        drain_timeout_ns: section.duration_ns("drain_timeout").map_or(10_000_000_000, |timeout| timeout.value),
    }
}

fn read_reactors(section: &mut Section<'_>) -> Vec<Option<usize>> {
    const REACTORS_MAX: usize = 256;
    let Some(value) = section.raw("reactors") else { return vec![None] };
    match &value.data {
        Data::Integer(count) if (1..=REACTORS_MAX as i64).contains(count) => vec![None; *count as usize],
        Data::List(items) if !items.is_empty() && items.len() <= REACTORS_MAX => {
            let mut cores = Vec::new();
            for item in items {
                match item.data {
                    Data::Integer(core) if core < 0 => {
                        section.wrong(item.span.clone(), "reactors", "a core is a number from 0", None)
                    }
                    Data::Integer(core) if cores.contains(&Some(core as usize)) => {
                        section.wrong(item.span.clone(), "reactors", format!("core {core} is named twice"), None);
                    }
                    Data::Integer(core) => cores.push(Some(core as usize)),
                    _ => section.wrong(item.span.clone(), "reactors", "a core is a number from 0", None),
                }
            }
            for core in cores.iter().flatten() {
                if !crate::sys::allowed_cores().contains(core) {
                    let help = format!("cores this process may use: {}", crate::sys::show_cores());
                    section.wrong(value.span.clone(), "reactors", format!("core {core} is not available"), Some(help));
                }
            }
            cores
        }
        _ => {
            let message = format!("expected a number from 1 to {REACTORS_MAX}, or a list of cores such as [0, 2]");
            section.wrong(value.span.clone(), "reactors", message, None);
            vec![None]
        }
    }
}

fn read_nvmf((table, span): (&Table, Option<Span>), problems: &mut Problems) -> NvmfConfig {
    let mut section = Section::new("[nvmf]", span, table, &[NVMF], false, problems);
    section.check_unknown(|_| None);
    let insecure = section.flag("insecure").is_some_and(|flag| flag.value);
    let mut listen: Vec<SocketAddr> = Vec::new();
    for text in section.texts("listen").unwrap_or_default() {
        match parse_address(&text.value) {
            Err(reason) => section.wrong(text.span, "listen", reason, None),
            Ok(address) if listen.contains(&address) && address.port() != 0 => {
                section.wrong(text.span, "listen", format!("{address} is named twice"), None);
            }
            Ok(address) if !address.ip().is_loopback() && !insecure => {
                let help = "nothing is encrypted, and hosts without a key are not authenticated: listen on 127.0.0.1, or set \
                            insecure = true if everyone on the way to this address may read what is sent";
                let message = format!("{address} is not a loopback address");
                section.wrong(text.span, "listen", message, Some(help.to_string()));
            }
            Ok(address) => listen.push(address),
        }
    }
    let mut listen_tls: Vec<SocketAddr> = Vec::new();
    for text in section.texts("listen_tls").unwrap_or_default() {
        host_key::need_tls(&mut section, text.span.clone(), "listen_tls");
        match parse_address(&text.value) {
            Err(reason) => section.wrong(text.span, "listen_tls", reason, None),
            Ok(address) if listen.iter().chain(&listen_tls).any(|one| *one == address && address.port() != 0) => {
                section.wrong(text.span, "listen_tls", format!("{address} is named twice"), None);
            }
            Ok(address) => listen_tls.push(address),
        }
    }
    let mut referrals: Vec<SocketAddr> = Vec::new();
    for text in section.texts("referrals").unwrap_or_default() {
        match parse_address(&text.value) {
            Err(reason) => section.wrong(text.span, "referrals", reason, None),
            Ok(address) if referrals.contains(&address) => {
                section.wrong(text.span, "referrals", format!("{address} is named twice"), None);
            }
            Ok(_) if referrals.len() == crate::node::REFERRALS_MAX => {
                let message = format!("at most {} are told", crate::node::REFERRALS_MAX);
                section.wrong(text.span, "referrals", message, None);
            }
            Ok(address) => referrals.push(address),
        }
    }
    let in_capsule = section.size("in_capsule_size");
    if let Some(size) = &in_capsule
        && (size.value > 8 << 10 || !size.value.is_multiple_of(16))
    {
        section.wrong(size.span.clone(), "in_capsule_size", "it must be a multiple of 16, at most 8 KiB", None);
    }
    let max_io = section.size("max_io_size");
    if let Some(size) = &max_io
        && (!size.value.is_power_of_two() || !(8192..=16 << 20).contains(&size.value))
    {
        section.wrong(size.span.clone(), "max_io_size", "it must be a power of two from 8 KiB to 16 MiB", None);
    }
    let stall_timeout = section.duration_ns("stall_timeout");
    if let Some(timeout) = &stall_timeout
        && timeout.value < STALL_TIMEOUT_MIN_NS
    {
        section.wrong(timeout.span.clone(), "stall_timeout", "it must be at least a second", None);
    }
    let stall_bytes = section.size("stall_bytes_min");
    if let Some(bytes) = &stall_bytes
        && !(1..=STALL_BYTES_MOST).contains(&bytes.value)
    {
        section.wrong(bytes.span.clone(), "stall_bytes_min", "it must be from 1 byte to 1 GiB", None);
    }
    NvmfConfig {
        listen,
        listen_tls,
        referrals,
        digests: section.flag("digests").is_none_or(|flag| flag.value),
        max_connections: section.count("max_connections").map_or(1024, |count| count.value as u32),
        io_queues: section.count("io_queues").map_or(64, |count| count.value as u16),
        queue_size: section.count("queue_size").map_or(1024, |count| count.value as u16),
        in_capsule_size: in_capsule.map_or(8192, |size| size.value as u32),
        max_io_size: max_io.map_or(1 << 20, |size| size.value as u32),
        stall_timeout_ns: stall_timeout.map_or(30_000_000_000, |timeout| timeout.value),
        stall_bytes_min: stall_bytes.map_or(64 << 10, |bytes| bytes.value as usize),
    }
}

enum VolumeSection {
    OnDevice(VolumeEntry),
    InPool(PoolVolumeEntry),
}

fn read_volume(table: &Table, span: Option<Span>, problems: &mut Problems) -> Option<VolumeSection> {
    let mut section = Section::new("[[volume]]", span, table, &[VOLUME], false, problems);
    section.check_unknown(|_| None);
    let name = section.need_text("name");
    if let Some(name) = &name {
        section.title = format!("volume '{}'", name.value);
        if let Err(reason) = device::check_name(&name.value) {
            section.wrong(name.span.clone(), "name", reason, None);
        }
    }
    let (size, offset) = (section.size("size"), section.size("offset"));
    for (key, value) in [("size", &size), ("offset", &offset)] {
        if let Some(value) = value
            && !value.value.is_multiple_of(4096)
        {
            let message = format!("{} bytes is not a multiple of 4 KiB", value.value);
            section.wrong(value.span.clone(), key, message, Some(UNITS_HINT.to_string()));
        }
    }
    if let Some(size) = &size
        && size.value == 0
    {
        section.wrong(size.span.clone(), "size", "it cannot be zero", None);
    }
    if section.has("pool") {
        return read_pool_volume(&mut section, name, size).map(VolumeSection::InPool);
    }
    if let Some(value) = section.raw("block_size") {
        section.wrong(value.span.clone(), "block_size", "a volume on a device has the blocks of its device", None);
    }
    let device = section.need_text("device");
    if let (Some(offset), None) = (&offset, &size)
        && !section.has("size")
    {
        section.wrong(offset.span.clone(), "offset", "an offset needs a size", None);
    }
    Some(VolumeSection::OnDevice(VolumeEntry { name: name?, device: device?, size, offset }))
}

fn read_pool_volume(
    section: &mut Section<'_>,
    name: Option<Located<String>>,
    size: Option<Located<u64>>,
) -> Option<PoolVolumeEntry> {
    let pool = section.text("pool");
    for key in ["device", "offset"] {
        if let Some(value) = section.raw(key) {
            section.wrong(value.span.clone(), key, "a volume in a pool has none", Some(format!("remove '{key}'")));
        }
    }
    if !section.has("size") {
        section.missing("size");
    }
    if let Some(size) = &size
        && size.value > POOL_VOLUME_BYTES_MAX
    {
        let message = format!(
            "{} is more than the {} that a volume has at most",
            ByteSize(size.value),
            ByteSize(POOL_VOLUME_BYTES_MAX)
        );
        section.wrong(size.span.clone(), "size", message, None);
    }
    let block_size = section.size("block_size");
    if let Some(size) = &block_size
        && !matches!(size.value, 512 | 4096)
    {
        section.wrong(size.span.clone(), "block_size", "it is 512 or 4096", None);
    }
    let block_size = block_size.map_or(4096, |size| size.value as u32);
    Some(PoolVolumeEntry { name: name?, pool: pool?, size: size?.value, block_size })
}

/// An address with an optional port.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        return Ok(SocketAddr::new(ip, NVMF_PORT));
    }
    Err(format!(
        "'{text}' is not an IP address with an optional port, such as 127.0.0.1:{NVMF_PORT} or [::1]:{NVMF_PORT}"
    ))
}

#[cfg(test)]
mod tests;
