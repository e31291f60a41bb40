//! The kernel's keys (keyctl(2)): those of NVMe are in a keyring of its own, of a type of their own.

use nvme::spec::Nqn;
use nvme::tls::{Form, Psk, TlsKey};
use std::ffi::{CString, c_long};
use std::io;

/// The kernel's keyring for keys of NVMe.
const KEYRING: &str = ".nvme";
/// The type of such a key.
const TYPE: &str = "psk";
/// "This process's keyring", and the operations of keyctl that are used here (linux/keyctl.h).
const PROCESS_KEYRING: c_long = -2;
const DESCRIBE: c_long = 6;
const CLEAR: c_long = 7;
const LINK: c_long = 8;
const SEARCH: c_long = 10;
const READ: c_long = 11;
/// Longest description and longest key that are read, in bytes.
const TEXT_MAX: usize = 4096;

/// The kernel's number for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial(pub i32);

/// A key of a connection.
pub struct Key {
    /// The kernel's number for it.
    pub serial: Serial,
    /// Its name in a handshake.
    pub identity: String,
    /// Itself.
    pub secret: Vec<u8>,
}

impl Key {
    /// Reads a key.
    pub fn read(serial: Serial) -> Result<Key, String> {
        let failed = |error| format!("key {:08x}: {error}", serial.0);
        let description = into_buffer(DESCRIBE, serial).map_err(failed)?;
        // type;user;group;permissions;description
        let text = String::from_utf8_lossy(&description);
        let text = text.trim_end_matches('\0');
        let identity = text.splitn(5, ';').nth(4).ok_or_else(|| format!("key {:08x} is {text}", serial.0))?;
        Ok(Key { serial, identity: identity.to_owned(), secret: into_buffer(READ, serial).map_err(failed)? })
    }

    /// The key with this name.
    pub fn find(identity: &[u8]) -> Result<Key, String> {
        let name = String::from_utf8_lossy(identity).into_owned();
        let text = CString::new(identity).map_err(|_| format!("{name:?} is no name of a key"))?;
        let kind = CString::new(TYPE).expect("no zero");
        let (kind, text) = (kind.as_ptr() as c_long, text.as_ptr() as c_long);
        let found = keyctl(SEARCH, [keyring()?.0.into(), kind, text, 0]);
        let key = Key::read(Serial(found.map_err(|error| format!("no key {name:?}: {error}"))? as i32))?;
        // (the kernel is content with the beginning of a description)
        if key.identity == name { Ok(key) } else { Err(format!("no key {name:?}, only {:?}", key.identity)) }
    }
}

/// Derives a key and gives it to the kernel.
pub fn insert(form: &str, host: &str, subsystem: &str, key: &str) -> Result<Serial, String> {
    let psk = Psk::parse(key).map_err(|error| error.to_string())?;
    let nqn = |text: &str| Nqn::new(text).map_err(|error| format!("{text}: {error}"));
    let (host, subsystem) = (nqn(host)?, nqn(subsystem)?);
    let (version, form) = match form.strip_suffix("-early") {
        None => (form, Form::Standard),
        Some(version) => (version, Form::Early),
    };
    let key = match version {
        "1" => TlsKey::new(&psk, form, &host, &subsystem),
        "0" => TlsKey::version_0(&psk, form, &host, &subsystem).ok_or("the names are too long for version 0")?,
        _ => return Err(format!("there is no version {version}")),
    };
    let description = CString::new(key.identity.to_string()).expect("names have no zero");
    let (kind, secret) = (CString::new(TYPE).expect("no zero"), key.secret());
    // SAFETY: both texts end with a zero, and the key has as many bytes as are named; nothing is kept.
    let serial = unsafe {
        libc::syscall(
            libc::SYS_add_key,
            kind.as_ptr(),
            description.as_ptr(),
            secret.as_ptr(),
            secret.len(),
            c_long::from(keyring()?.0),
        )
    };
    if serial < 0 { Err(format!("add_key: {}", io::Error::last_os_error())) } else { Ok(Serial(serial as i32)) }
}

/// Takes all keys of NVMe from the kernel.
pub fn forget() -> Result<(), String> {
    keyctl(CLEAR, [keyring()?.0.into(), 0, 0, 0]).map(drop).map_err(|error| format!("cannot empty {KEYRING}: {error}"))
}

/// Lets this process read the keys: only what can be reached from a keyring of its own may be read.
pub fn possess() -> Result<(), String> {
    let linked = keyctl(LINK, [keyring()?.0.into(), PROCESS_KEYRING, 0, 0]);
    linked.map(drop).map_err(|error| format!("cannot link {KEYRING}: {error}"))
}

/// The kernel's keyring, which has no other way to be found.
fn keyring() -> Result<Serial, String> {
    let keys = std::fs::read_to_string("/proc/keys").map_err(|error| format!("/proc/keys: {error}"))?;
    let line = keys.lines().find(|line| line.contains(&format!(" keyring   {KEYRING}: ")));
    let serial = line.and_then(|line| u32::from_str_radix(line.split(' ').next()?, 16).ok());
    serial.map(|serial| Serial(serial as i32)).ok_or_else(|| format!("no keyring {KEYRING}: load nvme-keyring"))
}

/// An operation that fills a buffer with what it has to say of a key.
fn into_buffer(operation: c_long, serial: Serial) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; TEXT_MAX];
    let len = keyctl(operation, [serial.0.into(), buffer.as_mut_ptr() as c_long, TEXT_MAX as c_long, 0])?;
    buffer.truncate(len as usize);
    Ok(buffer)
}

fn keyctl(operation: c_long, [a, b, c, d]: [c_long; 4]) -> io::Result<c_long> {
    // SAFETY: the callers above hand in numbers, texts that end with a zero, and buffers with their length.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, operation, a, b, c, d) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}
