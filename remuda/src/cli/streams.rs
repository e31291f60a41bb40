//! `remuda snapshot diff`, `export`, `import` and `verify`.

use super::exit::{Exit, Failure};
use super::out_file::{Existing, OutFile, Readers, cannot_write};
use super::{Context, output, understood};
use crate::node::view::{ChangeView, ChangesView, ImportView};
use crate::rpc::client::{CallError, Client};
use base::ByteSize;
use engine::{BLOCK_BYTES, StreamError, StreamTotals, StreamVerifier};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 256 << 10;

/// Shows what differs, piece by piece: it may be much.
pub fn diff(context: &Context, name: &str, since: Option<&str>) -> Result<(), Failure> {
    let mut client = Client::connect(&context.socket())?;
    // As JSON it is one text; for people each range is shown as it comes.
    let (mut all, mut from) = (Vec::<ChangeView>::new(), Some(0));
    let (mut ranges, mut bytes) = (0u64, 0u64);
    while let Some(offset) = from {
        let params = without_nulls(json!({ "snapshot": name, "since": since, "offset": offset }));
        let found = client.call("snapshot.diff", params)?;
        let found: ChangesView = understood(found)?;
        if offset == 0 && !context.json {
            output::print_line(&format!("{:>22} {:>18}  NOW", "OFFSET", "BYTES"));
        }
        from = found.next;
        if context.json {
            all.extend(found.changes);
            continue;
        }
        for change in found.changes {
            (ranges, bytes) = (ranges + 1, bytes + change.length);
            let (offset, length) = (output::count(change.offset), output::count(change.length));
            output::print_line(&format!("{offset:>22} {length:>18}  {}", change.kind));
        }
    }
    if context.json {
        output::print_json(&json!(all));
        return Ok(());
    }
    output::print_line(&format!("{} in {} ranges", ByteSize(bytes), output::count(ranges)));
    Ok(())
}

fn without_nulls(mut params: Value) -> Value {
    if let Value::Object(params) = &mut params {
        params.retain(|_, value| !value.is_null());
    }
    params
}

/// What a stream is read from, in words.
fn source_name(path: Option<&Path>) -> String {
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => path.display().to_string(),
        None => "standard input".to_string(),
    }
}

fn not_read(path: Option<&Path>, error: &io::Error) -> Failure {
    let next = match path.filter(|path| *path != Path::new("-")) {
        Some(_) => "check the path and its permissions, or name another file",
        None => "check the program in front of the pipe, and send it again",
    };
    Failure::new(Exit::Failed, format!("{}: cannot be read: {error}; {next}", source_name(path)))
}

/// Why a snapshot was not written, or what was written is none.
fn not_exported(name: &str, error: &StreamError) -> Failure {
    let next = match error {
        StreamError::Source(_) => "see the node's log; 'remuda pool scrub' lists blocks that cannot be read",
        _ => "see whether the node runs, and its log, and export it again",
    };
    Failure::new(Exit::Failed, format!("export of '{name}': {error}; {next}"))
}

fn carried(totals: &StreamTotals) -> String {
    let block = BLOCK_BYTES as u64;
    let lost = match totals.lost_blocks {
        0 => String::new(),
        blocks => format!("; {} of the volume are lost, and are marked so", ByteSize(blocks * block)),
    };
    format!("{} of data in a stream of {}{lost}", ByteSize(totals.data_blocks * block), ByteSize(totals.stream_bytes))
}

/// Writes a snapshot to a file or to standard output, and verifies the stream as it passes by.
pub fn export(
    context: &Context,
    name: &str,
    since: Option<&str>,
    path: Option<&Path>,
    force: bool,
) -> Result<(), Failure> {
    let mut client = Client::connect(&context.socket())?;
    let params = without_nulls(json!({ "snapshot": name, "since": since }));
    let path = path.unwrap_or(Path::new("-"));
    let existing = if force { Existing::Replace } else { Existing::KeepUnlessForced };
    let mut target = OutFile::open(path, existing, Readers::Umask)?;
    let mut verifier = StreamVerifier::default();
    // Why the stream went no further, where that is known better here than to the client.
    let mut broken = None;
    let ended = client.call_out("snapshot.export", params, |bytes| {
        target.write_all(bytes).inspect_err(|error| broken = Some(cannot_write(path, error)))?;
        verifier.push(bytes).map_err(|error| {
            broken = Some(not_exported(name, &error));
            io::Error::from(io::ErrorKind::InvalidData)
        })
    });
    if let Some(failure) = broken {
        return Err(failure);
    }
    ended?;
    let totals = verifier.finish();
    let totals = totals.map_err(|error| not_exported(name, &error))?;
    let is_stdout = target.is_stdout();
    target.finish()?;
    let line = format!("exported '{name}': {}", carried(&totals));
    match (is_stdout, context.json) {
        (false, true) => {
            output::print_json(&json!({ "snapshot": name, "file": path, "stream_bytes": totals.stream_bytes }))
        }
        (false, false) => output::print_line(&line),
        (true, _) => eprintln!("{line}"),
    }
    Ok(())
}

fn source(path: Option<&Path>) -> Result<Box<dyn Read>, Failure> {
    match path.filter(|path| *path != Path::new("-")) {
        Some(path) => {
            let file = File::open(path).map_err(|error| not_read(Some(path), &error))?;
            Ok(Box::new(file))
        }
        None if io::stdin().is_terminal() => {
            Err(Failure::new(Exit::Usage, "send a stream to standard input ('< FILE', or a pipe), or name a file"))
        }
        None => Ok(Box::new(io::stdin())),
    }
}

/// Reads a stream from a file or from standard input into a volume.
pub fn import(
    context: &Context,
    target: &str,
    pool: Option<&str>,
    roll_back: bool,
    path: Option<&Path>,
) -> Result<(), Failure> {
    let mut source = source(path)?;
    let params = without_nulls(json!({ "target": target, "pool": pool, "roll_back": roll_back }));
    let made = Client::connect(&context.socket())?.call_in("snapshot.import", params, &mut *source);
    let made = made.map_err(|error| match error {
        CallError::Stream(error) => not_read(path, &error),
        error => error.into(),
    })?;
    if context.json {
        output::print_json(&made);
        return Ok(());
    }
    let made: ImportView = understood(made)?;
    let block = BLOCK_BYTES as u64;
    let totals = StreamTotals {
        stream_bytes: made.stream_bytes,
        data_blocks: made.data_bytes / block,
        hole_blocks: made.hole_bytes / block,
        lost_blocks: made.lost_bytes / block,
    };
    output::print_line(&format!("imported '{}' into pool '{}': {}", made.snapshot, made.pool, carried(&totals)));
    Ok(())
}

/// Says whether a stream is whole and undamaged. Needs no node.
pub fn verify(context: &Context, path: Option<&Path>) -> Result<(), Failure> {
    let mut source = source(path)?;
    let mut verifier = StreamVerifier::default();
    let mut piece = vec![0; PIECE_BYTES];
    let damaged = |error: &dyn std::fmt::Display| {
        let next = "it is no good: take another copy of it, or export the snapshot again";
        Failure::new(Exit::Damaged, format!("{}: {error}; {next}", source_name(path)))
    };
    loop {
        let read = source.read(&mut piece);
        let bytes = read.map_err(|error| not_read(path, &error))?;
        if bytes == 0 {
            break;
        }
        verifier.push(&piece[..bytes]).map_err(|error| damaged(&error))?;
    }
    let totals = verifier.finish().map_err(|error| damaged(&error))?;
    let Some(about) = verifier.about() else { return Err(damaged(&"the stream is empty")) };
    if context.json {
        let since = Some(&about.since).filter(|since| !since.is_empty());
        output::print_json(&json!({
            "snapshot": about.name, "since": since, "size": about.bytes, "created_s": about.created_s,
            "stream_bytes": totals.stream_bytes, "data_bytes": totals.data_blocks * BLOCK_BYTES as u64,
        }));
        return Ok(());
    }
    let since = match about.since.as_str() {
        "" => "all that it has".to_string(),
        since => format!("what differs from '{since}'"),
    };
    output::print_line(&format!("whole: '{}' ({}), {since}: {}", about.name, ByteSize(about.bytes), carried(&totals)));
    Ok(())
}
