//! `[[vhost]]`: volumes for virtual machines on this machine.

use super::device::check_name;
use super::diagnostic::Problems;
use super::section::{Form, Key, Section, key};
use super::value::{Located, Span, Table};
use std::path::PathBuf;

/// Queues of a door unless told otherwise.
pub const QUEUES_DEFAULT: u16 = 16;
/// Queues of a door.
pub const QUEUES: Form = Form::Count(1, vhost_door::disk::QUEUES_MAX as u64);
/// Longest path of a socket: what the system takes, less what is appended while it is made.
const SOCKET_BYTES_MAX: usize = 96;

/// Keys of `[[vhost]]`.
pub const VHOST: &[Key] = &[
    key("name", Form::Text, "required", "Its name."),
    key("volume", Form::Text, "required", "The volume."),
    key("socket", Form::Text, "vhost-NAME.sock beside rpc_socket", "Where the virtual machine monitor connects."),
    key("queues", QUEUES, "16", "Most queues; the virtual machine monitor chooses how many it uses."),
    key("read_only", Form::Flag, "false", "Whether writes are refused."),
];

/// `[[vhost]]`.
#[derive(Clone, Debug)]
pub struct VhostEntry {
    /// Name.
    pub name: Located<String>,
    /// Volume.
    pub volume: Located<String>,
    /// Socket; `None` is the default place.
    pub socket: Option<Located<PathBuf>>,
    /// Queues at most.
    pub queues: u16,
    /// Writes are refused.
    pub read_only: bool,
}

/// Whether a path can be that of a socket.
pub fn check_socket(path: &std::path::Path) -> Result<(), String> {
    let len = path.as_os_str().len();
    if len > SOCKET_BYTES_MAX {
        return Err(format!("a path of {len} bytes is too long for a socket: {SOCKET_BYTES_MAX} are possible"));
    }
    match path.parent() {
        Some(parent) if !parent.is_dir() => Err(format!("{} is not a directory", parent.display())),
        _ => Ok(()),
    }
}

/// Reads one section; `resolve` makes its path absolute.
pub(super) fn read_vhost(
    table: &Table,
    span: Option<Span>,
    problems: &mut Problems,
    resolve: impl Fn(&str) -> PathBuf,
) -> Option<VhostEntry> {
    let mut section = Section::new("[[vhost]]", span, table, &[VHOST], false, problems);
    section.check_unknown(|_| None);
    let name = section.need_text("name");
    if let Some(name) = &name {
        section.title = format!("vhost '{}'", name.value);
        if let Err(reason) = check_name(&name.value) {
            section.wrong(name.span.clone(), "name", reason, None);
        }
    }
    let volume = section.need_text("volume");
    let socket = section.text("socket").map(|path| Located { value: resolve(&path.value), span: path.span });
    if let Some(path) = &socket
        && let Err(reason) = check_socket(&path.value)
    {
        section.wrong(path.span.clone(), "socket", reason, None);
    }
    let queues = section.count("queues").map_or(QUEUES_DEFAULT, |count| count.value as u16);
    let read_only = section.flag("read_only").is_some_and(|flag| flag.value);
    Some(VhostEntry { name: name?, volume: volume?, socket, queues, read_only })
}
