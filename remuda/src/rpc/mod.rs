//! JSON-RPC 2.0 over a UNIX socket, one JSON text per line in each direction. `rpc.discover` lists the methods. A few have a
//! stream of bytes behind their line.

pub mod audit;
pub mod client;
pub mod methods;
mod params;
pub mod reference;
pub mod server;
mod stream;

/// Longest line of either direction.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Requests in one batch at most.
pub const BATCH_MAX: usize = 256;
/// Clients connected at once at most.
pub const CLIENTS_MAX: usize = 64;

/// The text is not JSON.
pub const PARSE_ERROR: i64 = -32700;
/// The JSON is not a request.
pub const INVALID_REQUEST: i64 = -32600;
/// There is no such method.
pub const METHOD_NOT_FOUND: i64 = -32601;
