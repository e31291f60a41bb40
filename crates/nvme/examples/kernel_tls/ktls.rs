//! Records by the kernel (Documentation/networking/tls.rst): the keys of a connection whose handshake is over, handed to its socket.

use nvme::auth::Hash;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Options of sockets (linux/tcp.h, linux/socket.h, linux/tls.h).
const TCP_ULP: i32 = 31;
const SOL_TLS: i32 = 282;
const TLS_TX: i32 = 1;
const TLS_RX: i32 = 2;
const VERSION_1_3: u16 = 0x0304;
const AES_GCM_128: u16 = 51;
const AES_GCM_256: u16 = 52;
/// Bytes of the nonce of records, four of which the kernel calls salt.
const NONCE_LEN: usize = 12;
const SALT_LEN: usize = 4;

/// Gives a socket the secrets with which each side encrypts; no record of either has been sent.
pub fn install(socket: BorrowedFd<'_>, hash: Hash, sending: &[u8], receiving: &[u8]) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, TCP_ULP, b"tls")?;
    set(socket, SOL_TLS, TLS_TX, &crypto_info(hash, sending))?;
    set(socket, SOL_TLS, TLS_RX, &crypto_info(hash, receiving))
}

/// `struct tls12_crypto_info_aes_gcm_128`, or `_256`: version, cipher, nonce without salt, key, salt, sequence number.
fn crypto_info(hash: Hash, secret: &[u8]) -> Vec<u8> {
    let (cipher, key_len) = if hash == Hash::Sha384 { (AES_GCM_256, 32) } else { (AES_GCM_128, 16) };
    let nonce = expand(hash, secret, "iv", NONCE_LEN);
    let (salt, nonce) = nonce.split_at(SALT_LEN);
    let (version, cipher) = (VERSION_1_3.to_ne_bytes(), cipher.to_ne_bytes());
    [&version[..], &cipher, nonce, &expand(hash, secret, "key", key_len), salt, &[0; 8]].concat()
}

/// HKDF-Expand-Label without a context (RFC 8446, section 7.1), of no more than a digest.
fn expand(hash: Hash, secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let info = [&(len as u16).to_be_bytes()[..], &[label.len() as u8], label.as_bytes(), &[0, 1]].concat();
    hash.hmac(secret, &[&info]).as_slice()[..len].to_vec()
}

fn set(socket: BorrowedFd<'_>, level: i32, option: i32, value: &[u8]) -> io::Result<()> {
    // SAFETY: the socket is open, and the value has the length that is named; it is copied.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value.as_ptr().cast(), value.len() as u32) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
