//! Devices of each kind, by what any caller sees of them.

mod checksum;
mod common;
mod conformance;
mod crypto_erase;
mod filters;
mod flash_cache;
mod forged;
mod inspect;
mod mem;
mod mirror;
mod mirror_grow;
mod parity;
mod parity_head;
mod spec;
mod used_apart;
mod zone_bands;
mod zone_extension;
mod zoned;
