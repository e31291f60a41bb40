//! Block traces as they come out of other programs, one access after the other: nothing of a file is kept, so they may be of any
//! size. What cannot be understood is an error that names file and line (or byte), not something passed over.

mod binary;
mod blkparse;
mod iolog;

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Longest line.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Longest read or write, and longest trim.
const ACCESS_BYTES_MAX: u64 = 1 << 30;
const TRIM_BYTES_MAX: u64 = 1 << 44;
const OFFSET_MAX: u64 = 1 << 60;
/// A sector of Linux' block layer.
const SECTOR: u64 = 512;

/// What a trace is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Told from its beginning
    Auto,
    /// blktrace: what blkparse prints, or binary (one file, merged by blkparse -d)
    Blktrace,
    /// fio iolog, version 2 or 3
    Iolog,
}

/// Which events of a blktrace are accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Event {
    /// Queued
    #[value(name = "Q")]
    Queued,
    /// Issued to the driver
    #[value(name = "D")]
    Issued,
    /// Completed
    #[value(name = "C")]
    Completed,
}

impl Event {
    fn letter(self) -> &'static str {
        match self {
            Event::Queued => "Q",
            Event::Issued => "D",
            Event::Completed => "C",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Trim,
}

/// One access: bytes of an address space, of which a trace of several files has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub kind: Kind,
    pub space: u16,
    pub offset: u64,
    pub bytes: u64,
}

/// Why a trace cannot be read on.
#[derive(Debug, Error)]
#[error("{}: {place}{cause}", .file.display())]
pub struct TraceError {
    pub file: PathBuf,
    /// "line 7: ", or nothing where it is about the file.
    pub place: String,
    pub cause: String,
}

/// When accesses were. Those of several processors may come a little out of order: time never goes back here.
#[derive(Default)]
struct Times {
    /// The first that was told.
    first_ns: Option<u64>,
    now_ns: u64,
}

impl Times {
    fn at(&mut self, ns: u64) {
        self.now_ns = self.now_ns.max(ns);
        self.first_ns.get_or_insert(ns);
    }

    fn later(&mut self, ns: u64) {
        self.first_ns.get_or_insert(0);
        self.now_ns = self.now_ns.saturating_add(ns);
    }
}

/// What was wrong with a line or a record.
type Cause = String;

enum Body {
    Iolog(iolog::Iolog),
    Blkparse(blkparse::Blkparse),
    Binary(binary::Binary),
}

/// A trace, from its beginning to its end.
pub struct Trace {
    path: PathBuf,
    input: BufReader<File>,
    body: Body,
    line: u64,
    text: Vec<u8>,
}

/// What a trace is called: `-` is standard input.
pub fn name(path: &Path) -> PathBuf {
    if is_stdin(path) { PathBuf::from("standard input") } else { path.to_path_buf() }
}

/// Whether a trace can be read again from its beginning.
pub fn can_repeat(path: &Path) -> bool {
    let path = if is_stdin(path) { Path::new(STDIN) } else { path };
    std::fs::metadata(path).is_ok_and(|found| found.is_file())
}

const STDIN: &str = "/dev/stdin";

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn open_file(path: &Path) -> Result<File, Cause> {
    let cannot = |error: std::io::Error| format!("cannot open it: {error}");
    if !is_stdin(path) {
        return File::open(path).map_err(cannot);
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err("it is a terminal: pipe a trace into it, as in 'blkparse -i sda | remuda pool simulate --trace -', or name a file".to_string());
    }
    // A file has a beginning to which nobody has to go back; a pipe cannot be opened again everywhere.
    if can_repeat(path) {
        return File::open(STDIN).map_err(cannot);
    }
    stdin.as_fd().try_clone_to_owned().map(File::from).map_err(cannot)
}

impl Trace {
    /// Opens a trace; `event` is [`Event::Queued`] unless given.
    pub fn open(path: &Path, format: Format, event: Option<Event>, device: Option<&str>) -> Result<Trace, TraceError> {
        let failed = |cause: String| TraceError { file: name(path), place: String::new(), cause };
        let file = open_file(path).map_err(failed)?;
        let mut input = BufReader::with_capacity(1 << 20, file);
        let first = input.fill_buf().map_err(|error| failed(format!("cannot read it: {error}")))?;
        if first.is_empty() {
            return Err(failed("it is empty: record while the load runs".to_string()));
        }
        let is_iolog = first.starts_with(b"fio version ");
        let body = match format {
            Format::Iolog if !is_iolog => {
                let cause =
                    "it is no fio iolog: the first line should be 'fio version 2 iolog' or 'fio version 3 iolog'";
                return Err(failed(cause.to_string()));
            }
            Format::Auto | Format::Iolog if is_iolog && device.is_some() => {
                return Err(failed("--device is for what blktrace records: a fio iolog has no devices".to_string()));
            }
            Format::Auto | Format::Iolog if is_iolog && event.is_some() => {
                return Err(failed(
                    "--event is for what blktrace records: a fio iolog has each access once".to_string(),
                ));
            }
            Format::Auto | Format::Iolog if is_iolog => Body::Iolog(iolog::Iolog::default()),
            _ if binary::is_binary(first) => Body::Binary(binary::Binary::new(event.unwrap_or(Event::Queued), device)),
            Format::Auto if !blkparse::is_like(first) => {
                let cause = "its format is not known: expected a fio iolog (version 2 or 3), what blkparse prints, or a binary \
                             blktrace; --format says which one it should be";
                return Err(failed(cause.to_string()));
            }
            _ => Body::Blkparse(blkparse::Blkparse::new(event.unwrap_or(Event::Queued), device)),
        };
        Ok(Trace { path: name(path), input, body, line: 0, text: Vec::new() })
    }

    /// What it is written in, in words.
    pub fn format_name(&self) -> &'static str {
        match &self.body {
            Body::Iolog(iolog) => iolog.name(),
            Body::Blkparse(_) => "blkparse",
            Body::Binary(_) => "blktrace, binary",
        }
    }

    /// Whether accesses of such a trace have times, as far as that is known by now.
    pub fn has_times(&self) -> bool {
        self.times().first_ns.is_some()
    }

    /// When the last access was, from the first on; `None` where the trace does not say.
    pub fn time_ns(&self) -> Option<u64> {
        let times = self.times();
        Some(times.now_ns - times.first_ns?)
    }

    fn times(&self) -> &Times {
        match &self.body {
            Body::Iolog(iolog) => &iolog.times,
            Body::Blkparse(blkparse) => &blkparse.times,
            Body::Binary(binary) => &binary.times,
        }
    }

    /// The next access; none at the end.
    pub fn next(&mut self) -> Result<Option<Access>, TraceError> {
        if let Body::Binary(binary) = &mut self.body {
            let found = binary.next(&mut self.input);
            let place = format!("byte {}: ", binary.at);
            return found.map_err(|cause| TraceError { file: self.path.clone(), place, cause });
        }
        loop {
            let found = match self.next_line()? {
                true => self.access_of_line(),
                false => return self.end().map(|()| None),
            };
            match found.and_then(|access| access.map(check).transpose()) {
                Ok(Some(access)) => return Ok(Some(access)),
                Ok(None) => {}
                Err(cause) => return Err(self.error_here(cause)),
            }
        }
    }

    /// An error about the line that was read last.
    pub fn error_here(&self, cause: Cause) -> TraceError {
        TraceError { file: self.path.clone(), place: format!("line {}: ", self.line), cause }
    }

    fn access_of_line(&mut self) -> Result<Option<Access>, Cause> {
        let text = std::str::from_utf8(&self.text).map_err(|_| "it is no text".to_string())?.trim();
        match &mut self.body {
            Body::Iolog(iolog) => iolog.line(text),
            Body::Blkparse(blkparse) => blkparse.line(text),
            Body::Binary(_) => Ok(None),
        }
    }

    /// Reads a line; false at the end.
    fn next_line(&mut self) -> Result<bool, TraceError> {
        self.text.clear();
        self.line += 1;
        loop {
            let part = match self.input.fill_buf() {
                Ok(part) => part,
                Err(error) => return Err(self.error_here(format!("cannot read it: {error}"))),
            };
            if part.is_empty() {
                return Ok(!self.text.is_empty());
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(part.len(), |end| end + 1);
            self.text.extend_from_slice(&part[..end.unwrap_or(part.len())]);
            self.input.consume(taken);
            if self.text.len() > LINE_BYTES_MAX {
                return Err(self.error_here(format!("it is longer than {LINE_BYTES_MAX} bytes: this is no trace")));
            }
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    fn end(&self) -> Result<(), TraceError> {
        let ended = match &self.body {
            Body::Blkparse(blkparse) => blkparse.end(),
            Body::Iolog(_) | Body::Binary(_) => Ok(()),
        };
        ended.map_err(|cause| TraceError { file: self.path.clone(), place: String::new(), cause })
    }
}

/// Refuses what no device can have been asked for.
fn check(access: Access) -> Result<Access, Cause> {
    let most = if access.kind == Kind::Trim { TRIM_BYTES_MAX } else { ACCESS_BYTES_MAX };
    if access.bytes > most {
        return Err(format!("a length of {} bytes; at most {most} are possible", access.bytes));
    }
    if access.offset > OFFSET_MAX {
        return Err(format!("an offset of {} bytes; at most {OFFSET_MAX} are possible", access.offset));
    }
    Ok(access)
}

fn number(what: &str, text: Option<&str>) -> Result<u64, Cause> {
    let text = text.ok_or_else(|| format!("the {what} is missing"))?;
    text.parse().map_err(|_| format!("the {what} is '{text}': expected a number"))
}

/// Counts what was seen, so that a trace without the wanted events, or of several devices, is told from an empty one.
#[derive(Default)]
struct Seen {
    wanted: u64,
    others: [(&'static str, u64); 3],
    device: Option<String>,
}

impl Seen {
    fn other(&mut self, letter: &str) {
        const LETTERS: [&str; 3] = ["Q", "D", "C"];
        if let Some(index) = LETTERS.iter().position(|known| *known == letter) {
            self.others[index] = (LETTERS[index], self.others[index].1 + 1);
        }
    }

    /// Whether an event of a device counts.
    fn admits(&mut self, name: &str, asked: Option<&str>) -> Result<bool, Cause> {
        if let Some(asked) = asked {
            return Ok(asked == name);
        }
        match &self.device {
            Some(first) if first != name => Err(format!(
                "the trace has several devices ({first} and {name}), of which one may be part of the other: name one with --device"
            )),
            Some(_) => Ok(true),
            None => {
                self.device = Some(name.to_string());
                Ok(true)
            }
        }
    }

    fn end(&self, event: Event, device: Option<&str>) -> Result<(), Cause> {
        if self.wanted > 0 {
            return Ok(());
        }
        let of = device.map(|device| format!(" of device {device}")).unwrap_or_default();
        match self.others.iter().max_by_key(|(_, count)| count) {
            Some((letter, count)) if *count > 0 => Err(format!(
                "it has no '{}' events{of}, but {count} '{letter}' events: try --event {letter}",
                event.letter()
            )),
            _ => Err(format!("it has no '{}' events{of}", event.letter())),
        }
    }
}

#[cfg(test)]
mod tests;
