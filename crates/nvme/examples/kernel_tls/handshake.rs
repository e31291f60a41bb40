//! A handshake of TLS 1.3 with a pre-shared key (RFC 8446), by OpenSSL, on a socket of the kernel.

use super::keys::{Key, Serial};
use super::ktls;
use super::netlink::Request;
use nvme::auth::Hash;
use openssl::error::ErrorStack;
use openssl::ssl::{HandshakeError, Ssl, SslContext, SslMethod, SslOptions, SslVerifyMode, SslVersion};
use openssl_sys::{EVP_MD, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, SSL_SESSION_free};
use std::cell::RefCell;
use std::ffi::{c_int, c_uchar};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{Duration, Instant};

const TLS_1_3: c_int = 0x0304;
/// Names of secrets in the lines of OpenSSL's key log.
const CLIENT_SECRET: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

type FindSession = unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;
type UseSession =
    unsafe extern "C" fn(*mut SSL, *const EVP_MD, *mut *const c_uchar, *mut usize, *mut *mut SSL_SESSION) -> c_int;

unsafe extern "C" {
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, id: *const c_uchar) -> *const SSL_CIPHER;
}

thread_local! {
    /// The key and the secrets of the handshake of this thread.
    static KNOWN: RefCell<Known> = const { RefCell::new(Known { key: None, missing: None, secrets: Vec::new() }) };
}

struct Known {
    key: Option<Key>,
    /// Why a server has found none.
    missing: Option<String>,
    /// Lines of the key log.
    secrets: Vec<String>,
}

/// A handshake that went well.
pub struct Done {
    /// The key on which both sides agreed.
    pub key: Serial,
    about: String,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.about)
    }
}

/// One that did not.
pub struct Failure {
    /// What the kernel is told.
    pub errno: i32,
    cause: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

fn failed(errno: i32) -> impl Fn(String) -> Failure {
    move |cause| Failure { errno, cause }
}

/// Carries a handshake out and gives the connection's keys to its socket.
pub fn carry_out(request: &Request) -> Result<Done, Failure> {
    if request.is_client {
        let serial = request.keys.first().ok_or_else(|| failed(libc::ENOKEY)("a client without a key".into()))?;
        let key = Key::read(*serial).map_err(failed(libc::ENOKEY))?;
        KNOWN.with_borrow_mut(|known| known.key = Some(key));
    }
    let deadline = Instant::now() + Duration::from_millis(request.timeout_ms.into());
    let socket = Socket { fd: request.socket.as_fd(), deadline };
    let ssl = connection(request.is_client).map_err(|stack| failed(libc::EIO)(stack.to_string()))?;
    let stream = if request.is_client { ssl.connect(socket) } else { ssl.accept(socket) };
    let stream = stream.map_err(|error| {
        let cause = match &error {
            HandshakeError::Failure(stream) | HandshakeError::WouldBlock(stream) => stream.error().to_string(),
            HandshakeError::SetupFailure(stack) => stack.to_string(),
        };
        let missing = KNOWN.with_borrow_mut(|known| known.missing.take());
        failed(libc::EACCES)(missing.unwrap_or(cause))
    })?;
    let cipher = stream.ssl().current_cipher().map_or("no cipher", |cipher| cipher.name());
    KNOWN.with_borrow(|known| {
        let key = known.key.as_ref().filter(|_| stream.ssl().session_reused());
        let key = key.ok_or_else(|| failed(libc::EACCES)("it was not by the key".into()))?;
        let secret = |label| known.secret(label).ok_or_else(|| failed(libc::EIO)(format!("no {label}")));
        let (client, server) = (secret(CLIENT_SECRET)?, secret(SERVER_SECRET)?);
        let (sending, receiving) = if request.is_client { (client, server) } else { (server, client) };
        let installed = ktls::install(request.socket.as_fd(), hash_of(key), &sending, &receiving);
        installed.map_err(|error| failed(libc::EIO)(format!("the kernel takes no keys: {error}")))?;
        let side = if request.is_client { "client" } else { "server" };
        Ok(Done { key: key.serial, about: format!("{side}, {cipher}, {}", key.identity) })
    })
}

impl Known {
    fn secret(&self, label: &str) -> Option<Vec<u8>> {
        let line = self.secrets.iter().find(|line| line.split(' ').next() == Some(label))?;
        let hex = line.rsplit(' ').next()?;
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok()).collect()
    }
}

/// An identity names the hash of its cipher suite: `NVMe1R02 ...`.
fn hash_of(key: &Key) -> Hash {
    if key.identity.get(6..8) == Some("02") { Hash::Sha384 } else { Hash::Sha256 }
}

fn connection(is_client: bool) -> Result<Ssl, ErrorStack> {
    let mut context = SslContext::builder(SslMethod::tls())?;
    context.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    context.set_num_tickets(0)?;
    context.set_options(SslOptions::NO_TICKET);
    context.set_keylog_callback(|_, line| KNOWN.with_borrow_mut(|known| known.secrets.push(line.to_owned())));
    // SAFETY: the context is valid, and the callbacks have the types that it calls them with.
    unsafe {
        SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session));
        SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session));
    }
    let mut ssl = Ssl::new(&context.build())?;
    if is_client {
        let hash = KNOWN.with_borrow(|known| known.key.as_ref().map(hash_of));
        ssl.set_ciphersuites(match hash {
            Some(Hash::Sha384) => "TLS_AES_256_GCM_SHA384",
            _ => "TLS_AES_128_GCM_SHA256",
        })?;
        // (there is nobody whose certificate is trusted)
        ssl.set_verify(SslVerifyMode::PEER);
    }
    Ok(ssl)
}

/// The key as a session; null when there is no memory for it.
///
/// # Safety
/// `ssl` is a valid connection.
unsafe fn session_of(ssl: *mut SSL, key: &Key) -> *mut SSL_SESSION {
    let suite: [u8; 2] = if hash_of(key) == Hash::Sha384 { [0x13, 0x02] } else { [0x13, 0x01] };
    // SAFETY: `ssl` is valid by the caller; the session is ours until it is returned; `suite` has the two bytes that are read.
    unsafe {
        let (cipher, session) = (SSL_CIPHER_find(ssl, suite.as_ptr()), SSL_SESSION_new());
        let made = !session.is_null()
            && !cipher.is_null()
            && SSL_SESSION_set1_master_key(session, key.secret.as_ptr(), key.secret.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, TLS_1_3) == 1;
        if made {
            return session;
        }
        SSL_SESSION_free(session);
        ptr::null_mut()
    }
}

/// A client offers an identity: its key, if the kernel has it.
unsafe extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    len: usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a valid connection, `len` bytes of identity and a place for the session.
    unsafe {
        *session = ptr::null_mut();
        match Key::find(std::slice::from_raw_parts(identity, len)) {
            Ok(key) => {
                *session = session_of(ssl, &key);
                KNOWN.with_borrow_mut(|known| known.key = Some(key));
            }
            Err(missing) => KNOWN.with_borrow_mut(|known| known.missing = Some(missing)),
        }
    }
    1
}

/// What a client offers.
unsafe extern "C" fn use_session(
    ssl: *mut SSL,
    _: *const EVP_MD,
    identity: *mut *const c_uchar,
    len: *mut usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    KNOWN.with_borrow(|known| {
        // SAFETY: OpenSSL calls with a valid connection and places for what it gets. It copies the identity before the key of this
        // thread can become another one.
        unsafe {
            (*identity, *len, *session) = (ptr::null(), 0, ptr::null_mut());
            let Some(key) = &known.key else { return 0 };
            (*identity, *len) = (key.identity.as_ptr(), key.identity.len());
            *session = session_of(ssl, key);
            c_int::from(!(*session).is_null())
        }
    })
}

/// The kernel's socket, until somebody has waited long enough. OpenSSL asks for no byte that is not part of its handshake.
struct Socket<'a> {
    fd: BorrowedFd<'a>,
    deadline: Instant,
}

impl Read for Socket<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: there is one entry, which is ours.
        if unsafe { libc::poll(&mut poll, 1, left.as_millis() as i32) } == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // SAFETY: the socket is open, and the target has the length that is named.
        result(unsafe { libc::recv(self.fd.as_raw_fd(), target.as_mut_ptr().cast(), target.len(), 0) })
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the socket is open, and there are as many bytes as are named.
        result(unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn result(done: isize) -> io::Result<usize> {
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as usize) }
}
