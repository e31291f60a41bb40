//! Arbitrary messages of a front end, with too few or too many descriptors, against a door as it ships. The door goes on: the next
//! front end gets its answer.
#![no_main]

use bdev::MemDevice;
use reactor::linux::{Runtime, RuntimeConfig};
use rustix::fs::MemfdFlags;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use vhost_door::message::{Header, code};
use vhost_door::{Door, DoorOptions};
use zerocopy::IntoBytes;

struct Host {
    socket: PathBuf,
    memory: File,
    _runtime: Runtime,
    _door: Door,
}

fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| {
        let runtime = Runtime::start(&RuntimeConfig::default()).expect("a reactor");
        let socket = std::env::temp_dir().join(format!("remuda-fuzz-{}.sock", std::process::id()));
        let door = Door::open(DoorOptions {
            name: "fuzz".into(),
            socket: socket.clone(),
            device: Arc::new(MemDevice::new("m", 512, 2048, 2048).expect("a good size")),
            reactors: runtime.handles().to_vec(),
            first_reactor: 0,
            queues: 2,
            read_only: false,
            serial: "fuzz".into(),
        });
        let memory = File::from(rustix::fs::memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("memory"));
        memory.set_len(1 << 20).expect("memory");
        Host { socket, memory, _runtime: runtime, _door: door.expect("the socket can be made") }
    })
}

/// Each message: a code, descriptors, bytes of its body, flags; then the body.
fn send(stream: &UnixStream, memory: &File, mut input: &[u8]) {
    while let Some(([request, descriptors, bytes, lie], rest)) = input.split_first_chunk::<4>() {
        let body = &rest[..rest.len().min(usize::from(*bytes))];
        input = &rest[body.len()..];
        let told = if *lie == 0xff { u32::MAX as usize } else { body.len() + usize::from(*lie >= 0xf0) };
        let mut message = Header::new(u32::from(*request) % 48, told).as_bytes().to_vec();
        message.extend_from_slice(body);
        if *lie & 1 != 0 {
            // An answer is wanted.
            message[4] |= 1 << 3;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights = vec![memory.as_fd(); usize::from(*descriptors % 12)];
        if !rights.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&rights));
        }
        let sent = rustix::net::sendmsg(stream, &[IoSlice::new(&message)], &mut ancillary, SendFlags::NOSIGNAL);
        if sent.is_err() {
            return;
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let host = host();
    let mut stream = UnixStream::connect(&host.socket).expect("the door listens");
    send(&stream, &host.memory, input);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
    let mut next = UnixStream::connect(&host.socket).expect("the door listens");
    next.write_all(Header::new(code::GET_FEATURES, 0).as_bytes()).expect("it takes messages");
    let mut answer = [0; size_of::<Header>() + 8];
    next.read_exact(&mut answer).expect("it answers");
});
