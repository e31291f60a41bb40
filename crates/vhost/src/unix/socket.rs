//! Messages over a Unix socket, with the descriptors that come along. Calls wait: they are made by the door's own thread.

use crate::message::{BODY_BYTES_MAX, DESCRIPTORS_MAX, Header};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use zerocopy::{FromZeros, IntoBytes};

/// One message.
pub(super) struct Message {
    pub header: Header,
    pub body: Vec<u8>,
    pub descriptors: Vec<OwnedFd>,
}

/// The next message; `None` at the end of the stream.
pub(super) fn receive(stream: &UnixStream) -> Result<Option<Message>, String> {
    let mut header = Header::new_zeroed();
    let mut descriptors = Vec::new();
    match fill(stream, header.as_mut_bytes(), &mut descriptors)? {
        0 => return Ok(None),
        got if got < size_of::<Header>() => return Err("the connection ended inside a message".into()),
        _ => {}
    }
    if !header.is_request() {
        return Err("what came is no vhost-user message of version 1".into());
    }
    let bytes = header.bytes as usize;
    if bytes > BODY_BYTES_MAX {
        return Err(format!("message {} has {bytes} bytes, more than {BODY_BYTES_MAX}", header.request));
    }
    let mut body = vec![0; bytes];
    if fill(stream, &mut body, &mut descriptors)? < bytes {
        return Err("the connection ended inside a message".into());
    }
    Ok(Some(Message { header, body, descriptors }))
}

/// Receives until `target` is full or the stream ends. More descriptors than a message may have are an error, and closed.
fn fill(stream: &UnixStream, target: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<usize, String> {
    let mut got = 0;
    while got < target.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut target[got..])];
        let received = match rustix::net::recvmsg(stream, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            Err(Errno::CONNRESET) => return Ok(0),
            Err(error) => return Err(format!("cannot receive: {error}")),
            Ok(received) => received,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
            return Err(format!("a message came with more than {DESCRIPTORS_MAX} descriptors"));
        }
        if received.bytes == 0 {
            break;
        }
        got += received.bytes;
    }
    Ok(got)
}

/// Sends a message whole, with a descriptor.
pub(super) fn send(stream: &UnixStream, header: Header, body: &[u8], file: Option<&OwnedFd>) -> Result<(), String> {
    send_with(stream, header, body, file, SendFlags::NOSIGNAL)
}

/// Sends a message if it fits into the socket now.
pub(super) fn send_now(stream: &UnixStream, header: Header) -> Result<(), String> {
    send_with(stream, header, &[], None, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send_with(
    stream: &UnixStream,
    header: Header,
    body: &[u8],
    file: Option<&OwnedFd>,
    flags: SendFlags,
) -> Result<(), String> {
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    let mut sent = 0;
    while sent < bytes.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let rights: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
        // (descriptors go with the first byte)
        if sent == 0 && !rights.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&rights));
        }
        match rustix::net::sendmsg(stream, &[IoSlice::new(&bytes[sent..])], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(format!("cannot answer: {error}")),
            Ok(done) => sent += done,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends each part with so many descriptors.
    fn send_parts(stream: &UnixStream, parts: &[(&[u8], usize)]) {
        for (bytes, count) in parts {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let rights = vec![stream.as_fd(); *count];
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(&rights)));
            rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
        }
    }

    #[test]
    fn a_message_with_more_descriptors_than_it_may_have_is_refused() {
        let header = Header::new(1, 2);
        let header = header.as_bytes();
        for (parts, taken) in [
            (&[(header, 8), (&[0, 0], 0)][..], Some(8)),
            (&[(header, 9)], None),
            (&[(header, 40)], None),
            (&[(header, 8), (&[0], 1)], None),
            (&[(header, 2), (&[0], 5), (&[0], 2)], None),
        ] {
            let (here, there) = UnixStream::pair().unwrap();
            send_parts(&there, parts);
            let received = receive(&here).ok().flatten().map(|message| message.descriptors.len());
            assert_eq!(received, taken, "{parts:?}");
        }
    }
}
