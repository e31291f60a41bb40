//! Doors, by front ends that are not ours.

#[allow(dead_code, reason = "the tests of the built program use the rest")]
mod blkio_client;
mod common;
mod front_end;
mod hostile;
mod libblkio;
mod limits;
mod restart;
