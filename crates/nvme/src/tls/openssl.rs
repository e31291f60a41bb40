//! What OpenSSL has and its Rust bindings lack: pre-shared keys of TLS 1.3 as sessions, which alone allow SHA-384 and identities
//! of any length. All `unsafe` of this crate is in this file.
//!
//! Invariants: the callbacks find their [`Handshake`] in the connection's own data, which outlives them; they hand out sessions
//! that they own; they do not panic.

#![allow(unsafe_code)]

use foreign_types::ForeignTypeRef;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef};
use openssl_sys::{EVP_MD, SSL, SSL_CIPHER, SSL_CTX, SSL_SESSION, SSL_SESSION_free, SSL_client_hello_get0_ext};
use reactor::Slice;
use std::ffi::{c_int, c_uchar, c_void};
use std::ptr;
use std::sync::{Arc, OnceLock};

use super::TlsKey;
use super::session::Handshake;
use crate::auth::Hash;

/// The extension with the identities that a client offers (RFC 8446, section 4.2.11).
const EXTENSION_PRE_SHARED_KEY: u32 = 41;
const TLS_1_3: c_int = 0x0304;

const CONTENT_HANDSHAKE: c_int = 22;
const CLIENT_HELLO: u8 = 1;

type Message = unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, usize, *mut SSL, *mut c_void);
type FindSession = unsafe extern "C" fn(*mut SSL, *const c_uchar, usize, *mut *mut SSL_SESSION) -> c_int;
type UseSession =
    unsafe extern "C" fn(*mut SSL, *const EVP_MD, *mut *const c_uchar, *mut usize, *mut *mut SSL_SESSION) -> c_int;

unsafe extern "C" {
    fn SSL_set_msg_callback(ssl: *mut SSL, callback: Option<Message>);
    fn SSL_CTX_set_psk_find_session_callback(context: *mut SSL_CTX, callback: Option<FindSession>);
    fn SSL_CTX_set_psk_use_session_callback(context: *mut SSL_CTX, callback: Option<UseSession>);
    fn SSL_SESSION_new() -> *mut SSL_SESSION;
    fn SSL_SESSION_set1_master_key(session: *mut SSL_SESSION, key: *const c_uchar, len: usize) -> c_int;
    fn SSL_SESSION_set_cipher(session: *mut SSL_SESSION, cipher: *const SSL_CIPHER) -> c_int;
    fn SSL_SESSION_set_protocol_version(session: *mut SSL_SESSION, version: c_int) -> c_int;
    fn SSL_CIPHER_find(ssl: *mut SSL, id: *const c_uchar) -> *const SSL_CIPHER;
}

/// Where a connection of OpenSSL keeps its handshake.
pub(super) fn handshake_index() -> Result<Index<Ssl, Arc<Handshake>>, ErrorStack> {
    static INDEX: OnceLock<Index<Ssl, Arc<Handshake>>> = OnceLock::new();
    if let Some(index) = INDEX.get() {
        return Ok(*index);
    }
    let made = Ssl::new_ex_index()?;
    Ok(*INDEX.get_or_init(|| made))
}

/// Lets connections of this context find the keys that clients offer, and offer their own.
pub(super) fn use_keys(context: &mut SslContextBuilder) {
    // SAFETY: the context is valid, and the callbacks have the types that it calls them with.
    unsafe {
        SSL_CTX_set_psk_find_session_callback(context.as_ptr(), Some(find_session));
        SSL_CTX_set_psk_use_session_callback(context.as_ptr(), Some(use_session));
    }
}

/// The body of the pre-shared-key extension of a client's hello; only while its callback runs.
pub(super) fn offered_keys(ssl: &SslRef) -> Option<&[u8]> {
    let (mut start, mut len) = (ptr::null(), 0);
    // SAFETY: the connection is valid; what is returned belongs to the hello, which lives as long as the callback.
    unsafe {
        let found = SSL_client_hello_get0_ext(ssl.as_ptr(), EXTENSION_PRE_SHARED_KEY, &mut start, &mut len);
        (found == 1 && !start.is_null()).then(|| std::slice::from_raw_parts(start, len))
    }
}

/// Whether the handshake of this connection is told of the client's first message.
pub(super) fn hear_hello(ssl: &SslRef, is_wanted: bool) {
    // SAFETY: the connection is valid, and the callback has the type that it calls it with.
    unsafe { SSL_set_msg_callback(ssl.as_ptr(), is_wanted.then_some(hear_message)) }
}

/// Copies up to `len_max` bytes of `slices` to `target`, those behind the first `skip`. As with a send, the memory of the slices
/// is read during the call only.
pub(super) fn copy_slices(slices: &[Slice], mut skip: usize, len_max: usize, target: &mut Vec<u8>) {
    let end = target.len() + len_max;
    for slice in slices {
        let left = slice.advanced(skip.min(slice.len()));
        skip -= slice.len() - left.len();
        let part = left.shortened(left.len().min(end - target.len()));
        // SAFETY: what is handed to a send is valid during it, and this is a part of one.
        unsafe { part.copy_to(target) };
    }
}

/// The key as a session; null when there is no memory for it.
///
/// # Safety
/// `ssl` is a valid connection.
unsafe fn session_of(ssl: *mut SSL, key: &TlsKey) -> *mut SSL_SESSION {
    let suite: [u8; 2] = match key.identity.hash {
        Hash::Sha384 => [0x13, 0x02],
        _ => [0x13, 0x01],
    };
    let secret = key.secret();
    // SAFETY: `ssl` is valid by the caller; the session is ours until it is returned; `suite` has the two bytes that are read.
    unsafe {
        let cipher = SSL_CIPHER_find(ssl, suite.as_ptr());
        let session = SSL_SESSION_new();
        if session.is_null() {
            return session;
        }
        let made = !cipher.is_null()
            && SSL_SESSION_set1_master_key(session, secret.as_ptr(), secret.len()) == 1
            && SSL_SESSION_set_cipher(session, cipher) == 1
            && SSL_SESSION_set_protocol_version(session, TLS_1_3) == 1;
        if !made {
            SSL_SESSION_free(session);
            return ptr::null_mut();
        }
        session
    }
}

/// The handshake of a connection.
///
/// # Safety
/// `ssl` is a valid connection that outlives the answer's use.
unsafe fn handshake_of<'a>(ssl: *mut SSL) -> Option<&'a Arc<Handshake>> {
    // SAFETY: by the caller.
    unsafe { SslRef::from_ptr(ssl) }.ex_data(handshake_index().ok()?)
}

/// A message was received, or is sent.
unsafe extern "C" fn hear_message(
    is_sent: c_int,
    _: c_int,
    content: c_int,
    message: *const c_void,
    len: usize,
    ssl: *mut SSL,
    _: *mut c_void,
) {
    if is_sent != 0 || content != CONTENT_HANDSHAKE || len == 0 {
        return;
    }
    // SAFETY: OpenSSL calls with a valid connection and `len` bytes of message.
    let (message, handshake) = unsafe { (std::slice::from_raw_parts(message.cast::<u8>(), len), handshake_of(ssl)) };
    if let (CLIENT_HELLO, Some(handshake)) = (message[0], handshake) {
        handshake.hear(message);
    }
}

/// A client offers an identity: its key, if it is the one that was chosen.
unsafe extern "C" fn find_session(
    ssl: *mut SSL,
    identity: *const c_uchar,
    len: usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a valid connection, `len` bytes of identity and a place for the session.
    unsafe {
        *session = ptr::null_mut();
        let Some(key) = handshake_of(ssl).and_then(|handshake| handshake.key()) else { return 1 };
        if key.identity.to_string().as_bytes() == std::slice::from_raw_parts(identity, len) {
            *session = session_of(ssl, key);
            return c_int::from(!(*session).is_null());
        }
        1
    }
}

/// What a client offers.
unsafe extern "C" fn use_session(
    ssl: *mut SSL,
    _: *const EVP_MD,
    identity: *mut *const c_uchar,
    len: *mut usize,
    session: *mut *mut SSL_SESSION,
) -> c_int {
    // SAFETY: OpenSSL calls with a valid connection and places for what it gets. The identity belongs to the handshake, which
    // lives as long as the connection; it is copied before anything else happens to that.
    unsafe {
        (*identity, *len, *session) = (ptr::null(), 0, ptr::null_mut());
        let Some(handshake) = handshake_of(ssl) else { return 0 };
        let Some(key) = handshake.key() else { return 1 };
        let name = handshake.name();
        (*identity, *len) = (name.as_ptr(), name.len());
        *session = session_of(ssl, key);
        c_int::from(!(*session).is_null())
    }
}
