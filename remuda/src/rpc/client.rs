//! The client end: blocking, one request at a time.

use super::LINE_BYTES_MAX;
use crate::node::{Refusal, RefusalKind};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for an answer; deallocating a large volume takes a while.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Answers may be longer than requests: listings grow with the node.
const ANSWER_BYTES_MAX: u64 = 64 * LINE_BYTES_MAX as u64;

/// Bytes of a stream that are sent or taken at a time.
const STREAM_BYTES: usize = 256 << 10;

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
    /// What a stream comes from or goes to on this side failed.
    Stream(io::Error),
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
        self.stream.get_mut().write_all(request.as_bytes()).map_err(|error| self.unreachable(error))?;
        self.answer()
    }

    /// Calls a method that writes a stream, and gives it to `take` piece by piece until the node ends it, or `take` fails. The
    /// connection is used up by it.
    pub fn call_out(
        &mut self,
        method: &str,
        params: Value,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Value, CallError> {
        let answer = self.call(method, params)?;
        self.wait_for_ever()?;
        let mut piece = vec![0; STREAM_BYTES];
        loop {
            let bytes = self.stream.read(&mut piece).map_err(|error| self.unreachable(error))?;
            if bytes == 0 {
                return Ok(answer);
            }
            take(&piece[..bytes]).map_err(CallError::Stream)?;
        }
    }

    /// Calls a method that reads a stream, sends it all of `source`, and gives the answer with which that ends. The connection
    /// is used up by it.
    pub fn call_in(&mut self, method: &str, params: Value, source: &mut dyn Read) -> Result<Value, CallError> {
        self.call(method, params)?;
        self.wait_for_ever()?;
        let mut piece = vec![0; STREAM_BYTES];
        loop {
            let bytes = source.read(&mut piece).map_err(CallError::Stream)?;
            // A node that takes no more has said why.
            if bytes == 0 || self.stream.get_mut().write_all(&piece[..bytes]).is_err() {
                break;
            }
        }
        let _ = self.stream.get_ref().shutdown(Shutdown::Write);
        self.answer()
    }

    /// A stream takes as long as those at its ends do.
    fn wait_for_ever(&self) -> Result<(), CallError> {
        self.stream.get_ref().set_read_timeout(None).map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, error: io::Error) -> CallError {
        CallError::Unreachable { socket: self.socket.clone(), error }
    }

    fn answer(&mut self) -> Result<Value, CallError> {
        let line = self.read_line().map_err(|error| self.unreachable(error))?;
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

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.by_ref().take(ANSWER_BYTES_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the node hung up"));
        }
        Ok(line)
    }
}
