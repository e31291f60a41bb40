//! Whether the files of devices are still what was opened: somebody may remove one, or cut it short, while it is in use.
//!
//! A thread of its own looks, now and then when the node is asked how it is: a file system that does not answer holds up nobody for
//! long.

use super::Node;
use crate::config::DeviceParams;
use base::ByteSize;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Looks are so far apart at least.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// So long a look is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// A file system that has not answered for so long is a problem of its own.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Default)]
pub(super) struct FileWatch(Arc<Mutex<Found>>);

#[derive(Default)]
struct Found {
    /// When the last look began.
    began: Option<Instant>,
    /// It has not ended.
    looking: bool,
    /// What the one before it found, by device.
    problems: Vec<(String, String)>,
}

/// A file as it was opened.
struct Opened {
    device: String,
    path: String,
    bytes: u64,
}

impl Node {
    /// What a look finds, or where none is called for or it takes its time, what the last one has found.
    pub(super) fn file_problems(&self) -> Vec<String> {
        const UNPOISONED: &str = "nothing panics while holding it";
        let mut found = self.files.0.lock().expect(UNPOISONED);
        let age = found.began.map(|began| began.elapsed());
        let silent = age.filter(|age| found.looking && *age > SILENT_MAX);
        if !found.looking && age.is_none_or(|age| age >= LOOK_EVERY) {
            (found.looking, found.began) = (true, Some(Instant::now()));
            drop(found);
            self.begin_look();
            found = self.files.0.lock().expect(UNPOISONED);
        }
        // Of a device that is not open any more nothing is said.
        let is_open = |device: &String| self.devices.get(device).is_some_and(|slot| slot.live.is_ok());
        let problems = found.problems.iter().filter(|(device, _)| is_open(device)).map(|(_, problem)| problem.clone());
        let silent = silent.map(|age| {
            format!("the file system of some device has not answered for {} s: see 'remuda doctor'", age.as_secs())
        });
        problems.chain(silent).collect()
    }

    fn begin_look(&self) {
        let (opened, there) = (self.opened_files(), self.files.0.clone());
        let (end, ended) = mpsc::channel();
        let look = move || {
            let problems = opened.iter().filter_map(|file| Some((file.device.clone(), look_at(file)?))).collect();
            if let Ok(mut found) = there.lock() {
                (found.looking, found.problems) = (false, problems);
            }
            // Whoever began it may not have waited so long.
            let _ = end.send(());
        };
        match std::thread::Builder::new().name("file-watch".into()).spawn(look) {
            Ok(_) => drop(ended.recv_timeout(PATIENCE)),
            Err(_) => self.files.0.lock().expect("nothing panics while holding it").looking = false,
        }
    }

    fn opened_files(&self) -> Vec<Opened> {
        let files = self.devices.values().filter_map(|slot| match (&slot.def.params, &slot.live) {
            (DeviceParams::File { path, .. }, Ok(opened)) => {
                let bytes = opened.device.info().bytes();
                Some(Opened { device: slot.def.name.clone(), path: path.clone(), bytes })
            }
            _ => None,
        });
        files.collect()
    }
}

fn look_at(file: &Opened) -> Option<String> {
    let Opened { device, path, bytes } = file;
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() && found.len() < *bytes => Some(format!(
            "device '{device}': its file {path} has {} by now and had {}: what was behind is lost",
            ByteSize(found.len()),
            ByteSize(*bytes)
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(format!(
            "device '{device}': its file {path} is gone: this node has it open and nobody can open it again; copy what is on the \
             device elsewhere before the node ends"
        )),
        _ => None,
    }
}
