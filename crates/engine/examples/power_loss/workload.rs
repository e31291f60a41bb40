//! The writers, and reading everything back: plain files and block devices, past the page cache.

use super::Failure;
use super::history::{self, BLOCK, History, WRITERS};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

// As on x86-64 and arm64 Linux; the library that has the names is for the crates that talk to the system.
const O_DSYNC: i32 = 0o10000;
const O_DIRECT: i32 = 0o40000;

fn open(path: &str, flags: i32) -> Result<File, Failure> {
    let file = File::options().read(true).write(true).custom_flags(O_DIRECT | flags).open(path);
    file.map_err(|error| Failure::io(path, error))
}

/// Memory that begins at a block's boundary, as direct I/O wants it.
struct Aligned {
    bytes: Vec<u8>,
    skipped: usize,
}

impl Aligned {
    fn new(blocks: u64) -> Aligned {
        let bytes = vec![0; (blocks as usize + 1) * BLOCK];
        let skipped = bytes.as_ptr().align_offset(BLOCK);
        Aligned { bytes, skipped }
    }

    fn first(&mut self, blocks: u64) -> &mut [u8] {
        &mut self.bytes[self.skipped..self.skipped + blocks as usize * BLOCK]
    }
}

fn read(file: &File, path: &str, blocks: std::ops::Range<u64>) -> Result<Aligned, Failure> {
    let length = blocks.end - blocks.start;
    let mut target = Aligned::new(length);
    let read = file.read_exact_at(target.first(length), blocks.start * BLOCK as u64);
    read.map_err(|error| Failure::io(path, error))?;
    Ok(target)
}

fn noted(notes: &File, path: &str, seed: u64, writer: usize) -> Result<u32, Failure> {
    let mut note = read(notes, path, writer as u64..writer as u64 + 1)?;
    history::read_note(note.first(1), seed, writer).map_err(|what| Failure::Other(format!("{path}: {what}")))
}

/// Where the writers note how far they are.
enum Notes<'a> {
    /// A block of this device for each writer, durable before the writer goes on.
    Device(File, &'a str),
    /// Marks in the recording of this device, one after the other, beside the writers.
    Recorder(&'a str),
}

impl Notes<'_> {
    fn open(place: &str) -> Result<Notes<'_>, Failure> {
        match place.strip_prefix("recorder:") {
            Some(name) => Ok(Notes::Recorder(name)),
            None => Ok(Notes::Device(open(place, O_DSYNC)?, place)),
        }
    }
}

fn mark(recorder: &str, steps: &[AtomicU32]) -> Result<(), Failure> {
    let steps: Vec<u32> = steps.iter().map(|step| step.load(Acquire)).collect();
    let command = ["message", recorder, "0", "mark", &history::show_mark(&steps)];
    let status = Command::new("dmsetup").args(command).status().map_err(|error| Failure::io("dmsetup", error))?;
    status.success().then_some(()).ok_or_else(|| Failure::Other(format!("dmsetup cannot mark {recorder}: {status}")))
}

/// One writer's work, from where it is noted to be.
fn write_steps(
    data: &File,
    device: &str,
    notes: &Notes,
    seed: u64,
    job: (usize, u64),
    done: &AtomicU32,
) -> Result<(), Failure> {
    let (writer, steps) = job;
    let (mut buffer, mut note) = (Aligned::new(64), Aligned::new(1));
    let mut at = match notes {
        Notes::Device(slots, place) => noted(slots, place, seed, writer)?,
        Notes::Recorder(_) => 0,
    };
    let last = if steps == 0 { u32::MAX } else { at + steps as u32 };
    while at < last {
        at += 1;
        let blocks = history::step(seed, writer, at);
        let bytes = buffer.first(blocks.end - blocks.start);
        for (block, bytes) in blocks.clone().zip(bytes.chunks_exact_mut(BLOCK)) {
            history::fill(bytes, seed, block, at);
        }
        data.write_all_at(bytes, blocks.start * BLOCK as u64).map_err(|error| Failure::io(device, error))?;
        done.store(at, Release);
        if let Notes::Device(slots, place) = notes {
            history::fill_note(note.first(1), seed, writer, at);
            let written = slots.write_all_at(note.first(1), (writer * BLOCK) as u64);
            written.map_err(|error| Failure::io(place, error))?;
        }
    }
    Ok(())
}

pub fn write(device: &str, notes: &str, seed: u64, steps: u64) -> Result<(), Failure> {
    let (data, notes) = (open(device, 0)?, Notes::open(notes)?);
    let done: [AtomicU32; WRITERS] = Default::default();
    let (data, notes, done) = (&data, &notes, &done);
    std::thread::scope(|scope| {
        let write = |writer: usize| move || write_steps(data, device, notes, seed, (writer, steps), &done[writer]);
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(write(writer))).collect();
        if let Notes::Recorder(recorder) = notes {
            while !writers.iter().all(|writer| writer.is_finished()) {
                mark(recorder, done)?;
            }
            mark(recorder, done)?;
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("writers do not panic"))
    })?;
    println!("{} steps written", done.iter().map(|step| step.load(Acquire) as u64).sum::<u64>());
    Ok(())
}

pub fn verify(device: &str, notes: &str, seed: u64) -> Result<(), Failure> {
    let (data, slots) = (open(device, 0)?, open(notes, 0)?);
    let mut total = 0;
    for writer in 0..WRITERS {
        let mut history = History::new(seed, writer);
        history.advance(noted(&slots, notes, seed, writer)?);
        let blocks = history::blocks_of(writer);
        let mut found = read(&data, device, blocks.clone())?;
        history.check(found.first(blocks.end - blocks.start)).map_err(Failure::Lost)?;
        total += history.noted() as u64;
    }
    match total {
        0 => Err(Failure::Other("nothing is noted: nothing was verified".to_string())),
        _ => {
            println!("{total} steps verified");
            Ok(())
        }
    }
}
