//! The kernel's requests for handshakes: the generic netlink family `handshake` (Documentation/netlink/specs/handshake.yaml).

use super::handshake::{Done, Failure};
use super::keys::Serial;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Who answers netlink's questions about itself, and the question (linux/genetlink.h).
const CONTROL: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
/// The family, its group for the daemon of TLS, its commands and their attributes.
const FAMILY: &str = "handshake";
const GROUP: &str = "tlshd";
const CLASS_TLSHD: u32 = 1;
const ACCEPT: u8 = 2;
const ACCEPT_SOCKET: u16 = 1;
const ACCEPT_CLASS: u16 = 2;
const ACCEPT_TYPE: u16 = 3;
const ACCEPT_TIMEOUT_MS: u16 = 4;
const ACCEPT_AUTH: u16 = 5;
const ACCEPT_PEER_IDENTITY: u16 = 6;
const DONE: u8 = 3;
const DONE_STATUS: u16 = 1;
const DONE_SOCKET: u16 = 2;
const DONE_REMOTE_AUTH: u16 = 3;
const TYPE_CLIENT_HELLO: u32 = 1;
const TYPE_SERVER_HELLO: u32 = 2;
const AUTH_PSK: u32 = 2;
/// Kinds of messages and flags (linux/netlink.h).
const ERROR: u16 = 2;
const REQUEST_AND_ACK: u16 = 1 | 4;
/// The kind of an attribute, without the flags above it; bytes of its header.
const ATTRIBUTE_KIND: u16 = 0x3fff;
const ATTRIBUTE_LEN: usize = 4;
/// Bytes of netlink's header and of the generic one behind it.
const HEADER_LEN: usize = 16;
const GENERIC_LEN: usize = 4;
/// Longest message that is taken, in bytes.
const MESSAGE_MAX: usize = 8192;
/// How long a handshake may take when the kernel does not say.
const TIMEOUT_MS_DEFAULT: u32 = 10_000;

/// A handshake that the kernel wants.
pub struct Request {
    /// Its connection.
    pub socket: OwnedFd,
    /// With which keys; none for a server, which finds them by what it is offered.
    pub keys: Vec<Serial>,
    /// Whether it is the client's side.
    pub is_client: bool,
    /// For how long somebody waits for it.
    pub timeout_ms: u32,
}

/// A way to ask the kernel.
pub struct Service {
    socket: OwnedFd,
    family: u16,
}

/// Learns that there is something to accept. While there is one, the kernel finds somebody who carries handshakes out.
pub struct Listener {
    socket: OwnedFd,
}

impl Service {
    /// Finds the kernel's service.
    pub fn open() -> Result<Service, String> {
        Ok(Service::find()?.0)
    }

    /// The service, and the number of the group that is told of requests.
    fn find() -> Result<(Service, u32), String> {
        let mut service = Service { socket: socket()?, family: CONTROL };
        let name = [FAMILY.as_bytes(), b"\0"].concat();
        let family = service.ask(GET_FAMILY, &[(FAMILY_NAME, &name)]);
        let family = family.map_err(|error| format!("the kernel has no {FAMILY}: {error}"))?;
        let id = find(&family, FAMILY_ID).and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        let group = attributes(find(&family, GROUPS).unwrap_or_default())
            .find(|(_, group)| {
                find(group, GROUP_NAME).is_some_and(|name| name.strip_suffix(b"\0") == Some(GROUP.as_bytes()))
            })
            .and_then(|(_, group)| number(find(group, GROUP_ID)?));
        service.family = id.ok_or("the family of handshakes has no number")?;
        Ok((service, group.ok_or("the family of handshakes has no group for TLS")?))
    }

    /// The next handshake that the kernel wants.
    pub fn accept(&self) -> Result<Option<Request>, String> {
        let class = CLASS_TLSHD.to_ne_bytes();
        let body = match self.ask(ACCEPT, &[(ACCEPT_CLASS, &class)]) {
            Ok(body) => body,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(None),
            Err(error) => return Err(format!("cannot accept: {error}")),
        };
        let value = |kind| find(&body, kind).and_then(number);
        let fd = value(ACCEPT_SOCKET).ok_or("a request without a socket")?;
        // SAFETY: the kernel has made this descriptor for us with this very answer.
        let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let is_client = match (value(ACCEPT_TYPE), value(ACCEPT_AUTH)) {
            (Some(TYPE_CLIENT_HELLO), Some(AUTH_PSK)) => true,
            (Some(TYPE_SERVER_HELLO), Some(AUTH_PSK)) => false,
            other => return Err(format!("a request of another kind: {other:?}")),
        };
        let named =
            attributes(&body).filter(|(kind, _)| *kind == ACCEPT_PEER_IDENTITY).filter_map(|(_, key)| number(key));
        let keys = named.filter(|key| *key != 0).map(|key| Serial(key as i32)).collect();
        let timeout_ms = value(ACCEPT_TIMEOUT_MS).unwrap_or(TIMEOUT_MS_DEFAULT);
        Ok(Some(Request { socket, keys, is_client, timeout_ms }))
    }

    /// Tells the kernel how a handshake ended.
    pub fn done(&self, request: &Request, outcome: &Result<Done, Failure>) -> Result<(), String> {
        let socket = request.socket.as_raw_fd().to_ne_bytes();
        let (status, key) = match outcome {
            Ok(done) => (0, Some(done.key.0.to_ne_bytes())),
            Err(failure) => (failure.errno, None),
        };
        let status = status.to_ne_bytes();
        let mut attributes: Vec<(u16, &[u8])> = vec![(DONE_STATUS, &status), (DONE_SOCKET, &socket)];
        attributes.extend(key.as_ref().map(|key| (DONE_REMOTE_AUTH, &key[..])));
        self.ask(DONE, &attributes).map(drop).map_err(|error| format!("the kernel does not want to know: {error}"))
    }

    /// Sends a command; the attributes of the answer, none when it is a mere confirmation.
    fn ask(&self, command: u8, attributes: &[(u16, &[u8])]) -> io::Result<Vec<u8>> {
        let mut message = vec![0; HEADER_LEN];
        message.extend_from_slice(&[command, 1, 0, 0]);
        for (kind, value) in attributes {
            message.extend_from_slice(&((ATTRIBUTE_LEN + value.len()) as u16).to_ne_bytes());
            message.extend_from_slice(&kind.to_ne_bytes());
            message.extend_from_slice(value);
            message.resize(message.len().next_multiple_of(4), 0);
        }
        let len = message.len() as u32;
        message[..4].copy_from_slice(&len.to_ne_bytes());
        message[4..6].copy_from_slice(&self.family.to_ne_bytes());
        message[6..8].copy_from_slice(&REQUEST_AND_ACK.to_ne_bytes());
        // SAFETY: the socket is ours; the message has the bytes that are named, and is copied.
        if unsafe { libc::send(self.socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // The answer, if there is one, comes before the confirmation.
        let mut answer = Vec::new();
        loop {
            let received = receive(&self.socket)?;
            let mut left = &received[..];
            while let Some((message, rest)) = first_message(left) {
                left = rest;
                match u16::from_ne_bytes([message[4], message[5]]) {
                    ERROR => {
                        let errno = message.get(HEADER_LEN..HEADER_LEN + 4).and_then(number).unwrap_or_default() as i32;
                        return if errno == 0 { Ok(answer) } else { Err(io::Error::from_raw_os_error(-errno)) };
                    }
                    _ => answer = message.get(HEADER_LEN + GENERIC_LEN..).unwrap_or_default().to_vec(),
                }
            }
        }
    }
}

impl Listener {
    /// Joins those that are told of requests.
    pub fn join() -> Result<Listener, String> {
        let (_, group) = Service::find()?;
        let socket = socket()?;
        let (level, option) = (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP);
        // SAFETY: the option is a number of four bytes, which is read during the call.
        let joined = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const group).cast(), 4) };
        if joined < 0 { Err(format!("cannot listen: {}", io::Error::last_os_error())) } else { Ok(Listener { socket }) }
    }

    /// Waits until there is something to accept.
    pub fn wait(&self) -> Result<(), String> {
        match receive(&self.socket) {
            // (more was said than the socket could hold)
            Err(error) if error.raw_os_error() != Some(libc::ENOBUFS) => Err(format!("cannot listen: {error}")),
            _ => Ok(()),
        }
    }
}

fn socket() -> Result<OwnedFd, String> {
    // SAFETY: a system call with numbers alone.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, libc::NETLINK_GENERIC) };
    if socket < 0 {
        return Err(format!("no netlink: {}", io::Error::last_os_error()));
    }
    // SAFETY: it was just made, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: zeroes are a valid address: the kernel chooses the number, and there are no groups.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as u16;
    let len = size_of::<libc::sockaddr_nl>() as u32;
    // SAFETY: the address has the length that is named, and is copied. Without one, nothing is told to groups.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } < 0 {
        return Err(format!("no address for netlink: {}", io::Error::last_os_error()));
    }
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; MESSAGE_MAX];
    // SAFETY: the socket is open, and the buffer has the length that is named.
    let len = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if len < 0 {
        return Err(io::Error::last_os_error());
    }
    buffer.truncate(len as usize);
    Ok(buffer)
}

/// The first of some messages, and what follows it.
fn first_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = number(bytes.get(..4)?)? as usize;
    let message = bytes.get(..len).filter(|message| message.len() >= HEADER_LEN)?;
    Some((message, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// Attributes: their kinds and values, up to where they are damaged.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = bytes.split_first_chunk::<ATTRIBUTE_LEN>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = bytes.get(ATTRIBUTE_LEN..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([header[2], header[3]]) & ATTRIBUTE_KIND, value))
    })
}

fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_ne_bytes)
}
