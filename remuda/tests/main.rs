//! The built program, as those use it who have nothing else.

mod advice;
mod authentication;
mod bench;
#[path = "../../crates/vhost/tests/blkio_client/mod.rs"]
mod blkio_client;
mod cli;
mod common;
mod console;
mod devices;
mod discovery;
mod forget_log;
mod io;
mod libblkio;
mod limits;
mod masking;
mod parity;
mod pool_care;
mod pools;
mod refusals;
mod reservations;
mod simulate;
mod snapshots;
mod state;
mod tls;
mod tools;
mod vhost;
mod warm;
mod zone_bands;
