//! Where a node keeps and offers things unless it is told.

use std::path::PathBuf;

/// Where state goes when nothing is configured.
pub fn default_state_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir).join("remuda");
    }
    match std::env::var_os("HOME") {
        Some(home) if !crate::sys::is_root() => PathBuf::from(home).join(".local/state/remuda"),
        _ => PathBuf::from("/var/lib/remuda"),
    }
}

/// Where the RPC socket is when nothing is configured.
pub fn default_socket() -> PathBuf {
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir).join("remuda.sock");
    }
    PathBuf::from(format!("/tmp/remuda-{}.sock", crate::sys::user_id()))
}
