//! Operating-system error numbers as a plain value, so that simulated and real drivers fail alike.

use std::fmt;

/// A positive Linux error number. Comparable and copyable, unlike `std::io::Error`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        #[allow(missing_docs, reason = "the text beside each constant is its documentation")]
        impl Errno { $(pub const $name: Errno = Errno($value);)* }
        impl Errno {
            /// The symbolic name (`EIO`), when it is one this project meets.
            pub fn name(self) -> Option<&'static str> {
                match self.0 { $($value => Some(stringify!($name)),)* _ => None }
            }
            /// What the number means, in words.
            pub fn text(self) -> Option<&'static str> {
                match self.0 { $($value => Some($text),)* _ => None }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "would block";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "already exists";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    EROFS = 30, "read-only file system";
    EPIPE = 32, "broken pipe";
    ENOSYS = 38, "not implemented by this kernel";
    ETIME = 62, "timer expired";
    EOVERFLOW = 75, "value too large, or too many active zones";
    EOPNOTSUPP = 95, "operation not supported";
    EADDRINUSE = 98, "address already in use";
    EADDRNOTAVAIL = 99, "address not available";
    ENETUNREACH = 101, "network unreachable";
    ECONNABORTED = 103, "connection aborted";
    ECONNRESET = 104, "connection reset by peer";
    ENOTCONN = 107, "not connected";
    ETOOMANYREFS = 109, "too many references, or too many open zones";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTUNREACH = 113, "no route to host";
    EINPROGRESS = 115, "in progress";
    ECANCELED = 125, "cancelled";
}

impl Errno {
    /// The error number inside a `std::io::Error`, or `EIO` when it carries none.
    pub fn from_io(error: &std::io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(5))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.text(), self.name()) {
            (Some(text), Some(name)) => write!(f, "{text} ({name})"),
            _ => write!(f, "{}", std::io::Error::from_raw_os_error(self.0)),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}
