//! The TCP target over real sockets: reactors of this process, and hosts that are scripted PDU by PDU.

mod ana;
mod authentication;
mod changes;
mod closing;
mod commands;
mod copy;
mod erase;
mod hostile;
mod limits;
mod masking;
mod reservations;
mod rig;
#[path = "../../../bdev/tests/common/run.rs"]
mod run;
mod transport;
mod uncorrectable;
mod zones;
