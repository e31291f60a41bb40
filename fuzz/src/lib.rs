//! The TCP target as it ships, on a driver whose sockets are queues in memory: nothing but the input decides what happens.

pub mod play;
pub mod world;
