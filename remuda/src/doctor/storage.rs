//! Directories and devices that a configuration names.

use super::Finding;
use super::view::{Process, View};
use crate::config::{Config, DeviceDef, DeviceParams, LogDef, PoolDef, check_file, check_memory_log};
use crate::node::{StateView, exposed};
use crate::sys;
use base::ByteSize;
use std::fs::OpenOptions;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Free space that a state directory should have.
const STATE_FREE_MIN: u64 = 64 << 20;
/// Longest path of a UNIX socket, without its zero byte.
const SOCKET_PATH_MAX: usize = 107;
/// How long a remote target may take to accept.
const REMOTE_PATIENCE: Duration = Duration::from_secs(2);

/// What was made at run time, and the files that there were, while no node runs: one that does tells of them itself.
pub(super) fn check_state(view: &View, config: &Config) -> Vec<Finding> {
    let state = match StateView::look(&config.node.state_dir) {
        Ok(state) => state,
        Err(error) => return vec![Finding::problem("state", error.to_string(), "no node starts with it")],
    };
    let (there, gone): (Vec<_>, Vec<_>) = state.files.iter().partition(|(_, path)| Path::new(path).exists());
    let is_there = |def: &&DeviceDef| there.iter().any(|(name, _)| **name == def.name);
    let mut findings = objects(view, &mut state.devices.iter().filter(is_there), &mut state.pools.iter(), false);
    findings.extend(gone.into_iter().map(|(name, path)| {
        let next = "mount what holds it, or bring it back before the node is started";
        Finding::problem(format!("device {name}"), format!("its file {path} is gone"), next)
    }));
    findings
}

pub(super) fn check(view: &View, config: &Config, is_running: bool) -> Vec<Finding> {
    let mut findings = vec![state_dir(&config.node.state_dir), socket(&config.node.rpc_socket)];
    let open_to_others = exposed(&config.node.state_dir).into_iter();
    findings.extend(open_to_others.map(|(found, next)| Finding::note("state directory", found, next)));
    let mut devices = config.devices.iter().map(|entry| &entry.def);
    let mut pools = config.pools.iter().map(|entry| &entry.def);
    findings.extend(objects(view, &mut devices, &mut pools, is_running));
    findings
}

fn objects(
    view: &View,
    devices: &mut dyn Iterator<Item = &DeviceDef>,
    pools: &mut dyn Iterator<Item = &PoolDef>,
    is_running: bool,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for def in devices {
        let check = format!("device {}", def.name);
        match &def.params {
            DeviceParams::File { path, size, block_size, .. } => {
                findings.push(file(view, check, path, *size, block_size.unwrap_or(4096), is_running));
            }
            DeviceParams::Nvmf { address, paths, .. } => {
                findings.extend(std::iter::once(address).chain(paths).map(|path| remote(check.clone(), path)));
            }
            _ => {}
        }
    }
    for def in pools {
        if let LogDef::Pmem { path, size, volatile } = &def.log {
            let check = format!("pool {}", def.name);
            findings.push(match locked(view, path, is_running) {
                Some((found, next)) => Finding::problem(check, format!("its log {found}"), next),
                None => memory_log(check, path, *size, *volatile),
            });
        }
    }
    findings
}

/// The directory itself, or the nearest one above it that there is.
fn existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|above| above.is_dir());
    found.unwrap_or(Path::new("/")).to_path_buf()
}

fn state_dir(path: &Path) -> Finding {
    let (shown, there) = (path.display(), existing(path));
    if !sys::may_write(&there) {
        let found = format!("{} cannot be written by this user", there.display());
        return Finding::problem("state directory", found, "change its owner, or set state_dir in [node]");
    }
    match sys::space(&there) {
        Ok(space) if space.free < STATE_FREE_MIN => {
            let found = format!("{shown}: {} free on its file system", ByteSize(space.free));
            Finding::problem("state directory", found, "make room: a node that cannot write its state refuses changes")
        }
        Ok(_) => Finding::ok("state directory", shown.to_string()),
        Err(error) => Finding::note("state directory", format!("{shown}: {error}"), ""),
    }
}

fn socket(path: &Path) -> Finding {
    let shown = path.display();
    if path.as_os_str().len() > SOCKET_PATH_MAX {
        let found = format!("{shown} is longer than {SOCKET_PATH_MAX} bytes");
        return Finding::problem("RPC socket", found, "set a shorter rpc_socket in [node]");
    }
    match path.parent() {
        Some(parent) if !parent.is_dir() => {
            let next = format!("mkdir -p {}", parent.display());
            Finding::problem("RPC socket", format!("{} is not a directory", parent.display()), next)
        }
        Some(parent) if !sys::may_write(parent) => {
            let next = "change the directory's owner, or set rpc_socket in [node]";
            Finding::problem("RPC socket", format!("{} cannot be written by this user", parent.display()), next)
        }
        _ => Finding::ok("RPC socket", shown.to_string()),
    }
}

fn file(view: &View, check: String, path: &str, size: Option<u64>, block_size: u32, is_running: bool) -> Finding {
    if let Err((found, next)) = check_file(path, size) {
        return Finding::problem(check, found, next);
    }
    if let Some((found, next)) = locked(view, path, is_running) {
        return Finding::problem(check, found, next);
    }
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => disk(view, check, path, block_size, is_running),
        found => in_file_system(check, path, size, found.map_or(0, |found| found.blocks() * 512)),
    }
}

/// Who keeps a node from opening a file or disk, unless that is the node itself; and what to do. The kernel's list is asked:
/// a lock of ours, however short, could be in the way of a node that starts.
fn locked(view: &View, path: &str, is_running: bool) -> Option<(String, String)> {
    if is_running {
        return None;
    }
    let target = std::fs::canonicalize(path).ok()?;
    let found = std::fs::metadata(&target).ok()?;
    let pid = view.lock_holder(found.dev(), found.ino(), &target)?;
    let named = |process: &Process| {
        let command = view.command_of(process).map_or(String::new(), |command| format!(": {command}"));
        format!("{process}{command}")
    };
    let next = "if that is a node, stop it (remuda stop) or give this one files of its own";
    if let Some(holder) = view.process(pid) {
        return Some((format!("{path} is locked by {}", named(&holder)), next.to_string()));
    }
    // Who took the lock has ended, and somebody that it has started keeps it.
    if let Some(user) = view.process_with(|open| open == target) {
        return Some((format!("{path} is locked, and open in {}", named(&user)), next.to_string()));
    }
    let next = format!("look as root: lsof {path}; stop it there, or name another file");
    Some((format!("{path} is locked by another program, perhaps a node of another user"), next))
}

fn disk(view: &View, check: String, path: &str, block_size: u32, is_running: bool) -> Finding {
    // Exclusive is what file systems, RAID and partitions in use are to each other; a node that runs has its lock, not this.
    let exclusive = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(path);
    if let Err(error) = exclusive
        && error.raw_os_error() == Some(libc::EBUSY)
        && !is_running
    {
        let next = format!("what has it: lsblk {path}; unmount it there, or name another disk");
        return Finding::problem(
            check,
            format!("{path} is in use: a file system, RAID or volume manager has it"),
            next,
        );
    }
    let name = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let name = name.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let queue = format!("/sys/class/block/{name}/queue");
    let number = |key: &str| view.number(&format!("{queue}/{key}"));
    if let Some(sector) = number("logical_block_size").filter(|sector| *sector > u64::from(block_size)) {
        let found = format!("{path} has sectors of {sector} bytes, and block_size is {block_size}");
        return Finding::problem(check, found, format!("block_size = {sector}"));
    }
    let zoned = view.read(&format!("{queue}/zoned")).is_some_and(|model| model == "host-managed");
    let unit = number("zone_write_granularity").filter(|unit| zoned && *unit != u64::from(block_size));
    if let Some(unit) = unit {
        let found = format!("{path} is written zone by zone, in units of {unit} bytes, and block_size is {block_size}");
        return Finding::problem(check, found, format!("block_size = {unit}"));
    }
    let streams = number("max_write_streams").filter(|streams| *streams > 0);
    let streams = streams.map_or(String::new(), |streams| format!(", {streams} write streams"));
    let zones = if zoned { ", written zone by zone" } else { "" };
    let kind = if number("rotational") == Some(1) { "a spinning disk" } else { "a solid-state drive" };
    let cache = view.read(&format!("{queue}/write_cache")).unwrap_or_default();
    let cache = if cache == "write back" { "with a volatile write cache" } else { "without a volatile write cache" };
    Finding::ok(check, format!("{path}: {kind} {cache}{zones}{streams}"))
}

/// `allocated` is what the file has of its space already.
fn in_file_system(check: String, path: &str, size: Option<u64>, allocated: u64) -> Finding {
    let directory = existing(Path::new(path).parent().unwrap_or(Path::new("/")));
    let space = match sys::space(&directory) {
        Ok(space) => space,
        Err(error) => return Finding::note(check, format!("{path}: {error}"), ""),
    };
    let length = std::fs::metadata(path).map_or(0, |found| found.len());
    let missing = size.unwrap_or(length).max(length).saturating_sub(allocated);
    if space.free < missing {
        let found =
            format!("{path} may take {} more, and its file system has {}", ByteSize(missing), ByteSize(space.free));
        return Finding::note(check, found, "writes fail when that is used up: make room, or a smaller device");
    }
    match space.kind {
        Some(kind @ ("tmpfs" | "ramfs")) => Finding::note(
            check,
            format!("{path} is on {kind}: gone with the power"),
            "a file on a disk, for what is to stay",
        ),
        Some("btrfs") => {
            let next = format!("before it is made: chattr +C {}", directory.display());
            Finding::note(check, format!("{path} is on btrfs, which writes every block to a new place"), next)
        }
        Some(kind @ ("nfs" | "cifs")) => {
            Finding::note(check, format!("{path} is on {kind}: locks and flushes are as good as its server's"), "")
        }
        Some("overlayfs") => {
            Finding::note(check, format!("{path} is in a container's layer: gone with it"), "a mounted volume")
        }
        _ => Finding::ok(check, format!("{path}, {} free beside it", ByteSize(space.free >> 20 << 20))),
    }
}

fn remote(check: String, address: &str) -> Finding {
    let address = match address.to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => address,
        _ => return Finding::problem(check, format!("{address} is not known here"), "check the name and the resolver"),
    };
    match TcpStream::connect_timeout(&address, REMOTE_PATIENCE) {
        Ok(_) => Finding::ok(check, format!("{address} accepts connections")),
        Err(error) => {
            let next =
                "is the target up, and does a firewall let port and address through? A node that runs keeps trying";
            Finding::problem(check, format!("{address}: {error}"), next)
        }
    }
}

fn memory_log(check: String, path: &str, size: u64, volatile: bool) -> Finding {
    let there = Path::new(path);
    let missing = !there.exists();
    if missing && !there.parent().is_some_and(Path::is_dir) {
        let found = format!("its log {path} is in a directory that there is not");
        return Finding::problem(check, found, "mount the persistent memory: mount -o dax /dev/pmem0 DIRECTORY");
    }
    if missing
        && let Ok(space) = sys::space(&existing(there))
        && space.free < size
    {
        let found = format!("its log {path} needs {}, and there are {}", ByteSize(size), ByteSize(space.free));
        return Finding::problem(check, found, "a smaller log, or more room");
    }
    if let Err((found, next)) = check_memory_log(path, size, volatile) {
        return Finding::problem(check, found, next);
    }
    if volatile {
        let found = format!("its log {path} may be in volatile memory: acknowledged writes are lost with the power");
        return Finding::note(check, found, "for tests only; leave 'volatile' out for anything else");
    }
    Finding::ok(check, format!("its log is {path}"))
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn files_that_cannot_be_or_will_not_fit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let view = View::of_this_machine();
        let look = |name: &str, size| {
            let path = dir.path().join(name).to_string_lossy().into_owned();
            file(&view, "device d".into(), &path, size, 4096, false)
        };
        assert_ne!(look("x", Some(1 << 20)).level, Level::Problem);
        let found = look("x", Some(1 << 60));
        assert!(found.level == Level::Note && found.found.contains("1024 PiB more"), "{found:?}");
        assert!(look("no/x", Some(1 << 20)).next.contains("mkdir -p"));
        let held = std::fs::File::create(dir.path().join("held")).unwrap();
        held.lock().unwrap();
        let found = look("held", Some(1 << 20));
        assert!(
            found.level == Level::Problem && found.found.contains(&format!("(pid {})", std::process::id())),
            "{found:?}"
        );
        assert!(look("x", None).next.contains("size ="));
        drop(held);
        assert_ne!(look("held", Some(1 << 20)).level, Level::Problem);
    }

    #[test]
    fn who_has_a_lock_is_told_apart_from_who_has_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "").unwrap();
        let (found, target) = (std::fs::metadata(&path).unwrap(), std::fs::canonicalize(&path).unwrap());
        let path = path.to_string_lossy().into_owned();
        let root = tempfile::tempdir().unwrap();
        let process = |pid: &str| {
            let fds = root.path().join("proc").join(pid).join("fd");
            std::fs::create_dir_all(&fds).unwrap();
            std::fs::write(fds.parent().unwrap().join("comm"), format!("name{pid}\n")).unwrap();
            std::os::unix::fs::symlink(&target, fds.join("3")).unwrap();
        };
        let view = View::below(root.path());
        let locks = |text: &str| std::fs::write(root.path().join("proc/locks"), text).unwrap();
        process("11");
        process("12");
        let (major, minor, inode) = (libc::major(found.dev()), libc::minor(found.dev()), found.ino());
        let line = |pid: u32| format!("2: FLOCK  ADVISORY  WRITE {pid} {major:02x}:{minor:02x}:{inode} 0 EOF\n");
        let other = format!("1: FLOCK  ADVISORY  WRITE 11 {major:02x}:{minor:02x}:{} 0 EOF\nx\n", inode + 1);
        locks(&other);
        assert!(locked(&view, &path, false).is_none(), "it is open, and not locked");
        locks(&(other.clone() + &line(12)));
        let (told, _) = locked(&view, &path, false).unwrap();
        assert!(told.contains("is locked by 'name12' (pid 12)"), "{told}");
        assert!(locked(&view, &path, true).is_none(), "the node's own");
        locks(&line(13));
        let (told, _) = locked(&view, &path, false).unwrap();
        assert!(told.contains("is locked, and open in 'name1"), "{told}");
        locks(&line(12).replace(" FLOCK", " -> FLOCK"));
        assert!(locked(&view, &path, false).is_none(), "one that waits has it not");
        // A file system may number its parts apart from itself: then who has the file open has the lock.
        let foreign = line(12).replace(&format!(" {major:02x}:"), " fff:");
        locks(&foreign);
        assert!(locked(&view, &path, false).unwrap().0.contains("(pid 12)"));
        locks(&foreign.replace(" 12 ", " 13 "));
        assert!(locked(&view, &path, false).is_none(), "another file with that number");
    }

    #[test]
    fn a_pipe_is_no_log_and_nobody_waits_for_its_other_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let path = path.to_string_lossy();
        assert!(locked(&View::of_this_machine(), &path, false).is_none());
        assert!(memory_log("p".into(), &path, 1, false).found.contains("neither a file nor a DAX device"));
    }

    #[test]
    fn directories_are_judged_by_what_is_there_of_them() {
        let dir = tempfile::tempdir().unwrap();
        assert_ne!(state_dir(&dir.path().join("not/made/yet")).level, Level::Problem);
        assert!(socket(&dir.path().join("no/r.sock")).next.starts_with("mkdir -p"));
        assert_eq!(socket(&dir.path().join("r.sock")).level, Level::Ok);
        assert!(socket(&dir.path().join("x".repeat(200))).found.contains("107"));
    }

    #[test]
    fn a_log_without_its_mount_is_a_problem_and_volatile_memory_a_note() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        assert!(memory_log("p".into(), &path("no/log"), 1, false).next.contains("mount"));
        assert_eq!(memory_log("p".into(), &path("log"), 1 << 60, false).level, Level::Problem);
        assert_eq!(memory_log("p".into(), &path("log"), 1, true).level, Level::Note);
    }

    #[test]
    fn a_remote_target_that_is_down_is_a_problem() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(remote("d".into(), &free.to_string()).level, Level::Problem);
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(remote("d".into(), &taken.local_addr().unwrap().to_string()).level, Level::Ok);
    }
}
