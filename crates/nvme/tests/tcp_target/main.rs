//! The TCP target over real sockets: reactors of this process, and hosts that are scripted PDU by PDU.

mod authentication;
mod changes;
mod commands;
mod copy;
mod hostile;
mod reservations;
mod rig;
mod transport;
mod zones;
