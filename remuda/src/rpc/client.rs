//! The client end: blocking, one request at a time.

use super::LINE_BYTES_MAX;
use crate::node::{Refusal, RefusalKind};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer; deallocating a large volume takes a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Answers may be longer than requests: listings grow with the node.
const ANSWER_BYTES_MAX: u64 = 64 * LINE_BYTES_MAX as u64;

/// Why there is no result.
#[derive(Debug)]
pub enum CallError {
    /// Nobody answers at the socket.
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The node said no.
    Refused(Refusal),
    /// The node answered something that is no answer.
    Garbled(String),
}

/// A connection to a node.
pub struct Client {
    stream: BufReader<UnixStream>,
    socket: PathBuf,
    next_id: u64,
}

impl Client {
    /// Connects to the node at `socket`.
    pub fn connect(socket: &Path) -> Result<Client, CallError> {
        let unreachable = |error| CallError::Unreachable { socket: socket.to_path_buf(), error };
        let stream = UnixStream::connect(socket).map_err(unreachable)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(unreachable)?;
        Ok(Client { stream: BufReader::new(stream), socket: socket.to_path_buf(), next_id: 1 })
    }

    /// Calls `method` and gives its result.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, CallError> {
        let id = self.next_id;
        self.next_id += 1;
        let mut request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string();
        request.push('\n');
        let line =
            self.exchange(&request).map_err(|error| CallError::Unreachable { socket: self.socket.clone(), error })?;
        let garbled = |what: String| CallError::Garbled(format!("{}: {what}", self.socket.display()));
        let mut answer: Value = serde_json::from_str(&line).map_err(|error| garbled(error.to_string()))?;
        if let Some(error) = answer.get("error") {
            return Err(match serde_json::from_value::<Refusal>(error["data"].clone()) {
                Ok(refusal) => CallError::Refused(refusal),
                Err(_) => {
                    let message = error["message"].as_str().unwrap_or("an error without a message");
                    CallError::Refused(Refusal::new(RefusalKind::Failed, "node", message, ""))
                }
            });
        }
        Ok(answer["result"].take())
    }

    fn exchange(&mut self, request: &str) -> io::Result<String> {
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the node hung up"));
        }
        Ok(line)
    }
}
