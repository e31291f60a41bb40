//! The server end: reads lines, checks that they are requests, and hands them to the node one at a time.
//!
//! Nothing that a client sends ends the server: what is no request gets an error answer, and a line over the limit ends
//! its connection only.

use super::audit::Peer;
use super::methods::{Method, find};
use super::stream;
use super::{BATCH_MAX, CLIENTS_MAX, INVALID_REQUEST, LINE_BYTES_MAX, METHOD_NOT_FOUND, PARSE_ERROR};
use crate::node::{Refusal, RefusalKind, Transfer};
use serde_json::{Value, json};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// A request on its way to the node.
pub struct Request {
    /// What to do.
    pub method: &'static Method,
    /// With what.
    pub params: Option<Value>,
    /// Who asks.
    pub peer: Peer,
    /// The stream that goes with it.
    pub transfer: Option<Transfer>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Value, Refusal>>,
}

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers there.
    #[error("socket {0}: another node listens there; stop it, or give this one another rpc_socket")]
    InUse(PathBuf),
    /// Something else is there, and is not taken away.
    #[error("socket {0}: something that is no socket is there; name another place, or move it away")]
    Taken(PathBuf),
    /// The operating system said no.
    #[error("socket {path}: {error}; check that its directory exists and can be written")]
    Os {
        /// The socket.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// A listening socket, removed when dropped.
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Listens on `path`, replacing a socket that nobody listens on any more. Only the owner can connect: the socket is
    /// made under another name and renamed when its mode is right.
    pub fn bind(path: &Path) -> Result<Socket, SocketError> {
        let os = |error| SocketError::Os { path: path.to_path_buf(), error };
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(SocketError::Taken(path.to_path_buf()));
        }
        if path.exists() && std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(SocketError::InUse(path.to_path_buf()));
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        let temporary = PathBuf::from(temporary);
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary).map_err(os)?;
        let ready = std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| std::fs::rename(&temporary, path));
        if let Err(error) = ready {
            let _ = std::fs::remove_file(&temporary);
            return Err(os(error));
        }
        Ok(Socket { listener, path: path.to_path_buf() })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves clients for as long as it is polled.
    pub async fn serve(&self, requests: mpsc::Sender<Request>) {
        let clients = Arc::new(tokio::sync::Semaphore::new(CLIENTS_MAX));
        loop {
            let Ok(permit) = clients.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let requests = requests.clone();
                    tokio::spawn(async move {
                        if let Err(error) = serve_client(stream, requests).await {
                            tracing::debug!("rpc client: {error}");
                        }
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::warn!("rpc socket: {error}");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
}

async fn serve_client(stream: UnixStream, requests: mpsc::Sender<Request>) -> io::Result<()> {
    let credentials = stream.peer_cred()?;
    let peer = Peer { uid: credentials.uid(), pid: credentials.pid() };
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    while read_line(&mut read, &mut line).await? {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let over = line.len() > LINE_BYTES_MAX;
        let answer = if over {
            let message = format!("a request is one line of at most {LINE_BYTES_MAX} bytes");
            Some(error(Value::Null, INVALID_REQUEST, &message, Value::Null))
        } else {
            let request = serde_json::from_slice::<Value>(&line);
            if let Ok(request) = &request
                && let Some(method) = stream::method_of(request)
            {
                return stream::serve(request, method, peer, &requests, &mut read, &mut write).await;
            }
            answer_to(request, peer, &requests).await
        };
        if let Some(answer) = answer {
            let mut text = answer.to_string();
            text.push('\n');
            write.write_all(text.as_bytes()).await?;
        }
        if over {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads up to a newline or just past the limit, whichever comes first; false at the end of the stream.
async fn read_line(read: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    loop {
        let available = read.fill_buf().await?;
        if available.is_empty() {
            return Ok(!line.is_empty());
        }
        let room = LINE_BYTES_MAX + 1 - line.len();
        let newline = available.iter().position(|byte| *byte == b'\n');
        let take = newline.map_or(available.len(), |at| at + 1).min(room);
        let content = if newline == Some(take - 1) { take - 1 } else { take };
        line.extend_from_slice(&available[..content]);
        read.consume(take);
        if content < take || line.len() > LINE_BYTES_MAX {
            return Ok(true);
        }
    }
}

async fn answer_to(request: serde_json::Result<Value>, peer: Peer, requests: &mpsc::Sender<Request>) -> Option<Value> {
    match request {
        Err(problem) => Some(error(Value::Null, PARSE_ERROR, &format!("this is not JSON: {problem}"), Value::Null)),
        Ok(Value::Array(batch)) if batch.is_empty() || batch.len() > BATCH_MAX => {
            let message = format!("a batch has 1 to {BATCH_MAX} requests, this one has {}", batch.len());
            Some(error(Value::Null, INVALID_REQUEST, &message, Value::Null))
        }
        Ok(Value::Array(batch)) => {
            let mut answers = Vec::new();
            for request in batch {
                answers.extend(answer_one(request, peer, requests).await);
            }
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
        Ok(request) => answer_one(request, peer, requests).await,
    }
}

/// The answer to one request; `None` to a notification.
async fn answer_one(request: Value, peer: Peer, requests: &mpsc::Sender<Request>) -> Option<Value> {
    let Value::Object(mut request) = request else {
        return Some(error(Value::Null, INVALID_REQUEST, "a request is a JSON object", Value::Null));
    };
    let notification = !request.contains_key("id");
    let id = request.remove("id").unwrap_or(Value::Null);
    if !matches!(id, Value::Null | Value::String(_) | Value::Number(_)) {
        return Some(error(Value::Null, INVALID_REQUEST, "id is neither a string nor a number", Value::Null));
    }
    let refuse = |code, message: &str| Some(error(id.clone(), code, message, Value::Null));
    if request.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return refuse(INVALID_REQUEST, "\"jsonrpc\" is not \"2.0\"");
    }
    let Some(Value::String(name)) = request.get("method") else {
        return refuse(INVALID_REQUEST, "\"method\" is not a string");
    };
    let outcome = match find(name) {
        Some(method) => submit(method, request.get("params").cloned(), peer, None, requests).await,
        None if notification => return None,
        None => {
            let shown: String = name.chars().take(80).collect();
            let near = crate::config::nearest(&shown, super::methods::METHODS.iter().map(|method| method.name));
            let next = near.map_or("rpc.discover lists them".to_string(), |near| format!("did you mean '{near}'?"));
            return refuse(METHOD_NOT_FOUND, &format!("there is no method '{shown}'; {next}"));
        }
    };
    if notification {
        return None;
    }
    Some(result(id, &outcome))
}

fn result(id: Value, outcome: &Result<Value, Refusal>) -> Value {
    match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(refusal) => {
            let data = serde_json::to_value(refusal).expect("four strings serialise");
            error(id, refusal.kind.rpc_code(), &refusal.to_string(), data)
        }
    }
}

/// The line of an answer.
pub(super) fn result_line(id: &Value, outcome: &Result<Value, Refusal>) -> String {
    format!("{}\n", result(id.clone(), outcome))
}

/// What is said when the node does not answer.
pub(super) fn stopping() -> Refusal {
    Refusal::new(RefusalKind::Stopping, "node", "it is stopping", "start it again first")
}

/// Hands a request to the node and waits for its answer.
pub(super) async fn submit(
    method: &'static Method,
    params: Option<Value>,
    peer: Peer,
    transfer: Option<Transfer>,
    requests: &mpsc::Sender<Request>,
) -> Result<Value, Refusal> {
    let (reply, answer) = oneshot::channel();
    requests.send(Request { method, params, peer, transfer, reply }).await.map_err(|_| stopping())?;
    answer.await.map_err(|_| stopping())?
}

fn error(id: Value, code: i64, message: &str, data: Value) -> Value {
    let mut error = json!({ "code": code, "message": message });
    if !data.is_null() {
        error["data"] = data;
    }
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `input` to a server whose node answers every request with its method's name, and collects what comes back.
    fn exchange(input: &[u8]) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (requests, mut queue) = mpsc::channel::<Request>(8);
            tokio::spawn(async move {
                while let Some(request) = queue.recv().await {
                    let _ = request.reply.send(Ok(Value::String(request.method.name.to_string())));
                }
            });
            let (mine, theirs) = UnixStream::pair().unwrap();
            let server = tokio::spawn(serve_client(theirs, requests));
            let (read, mut write) = mine.into_split();
            let input = input.to_vec();
            tokio::spawn(async move {
                // The server may hang up in the middle of this.
                let _ = write.write_all(&input).await;
            });
            let mut lines = BufReader::new(read).lines();
            let mut answers = Vec::new();
            while let Ok(Some(line)) = lines.next_line().await {
                answers.push(serde_json::from_str(&line).unwrap());
            }
            let _ = server.await.unwrap();
            answers
        })
    }

    fn codes(input: &[u8]) -> Vec<i64> {
        exchange(input).iter().map(|answer| answer["error"]["code"].as_i64().unwrap_or(0)).collect()
    }

    #[test]
    fn a_request_gets_its_answer_and_a_notification_none() {
        let answers = exchange(
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"node.status\"}\n\n{\"jsonrpc\":\"2.0\",\"method\":\"node.status\"}\n",
        );
        assert_eq!(answers, [json!({"jsonrpc": "2.0", "id": 7, "result": "node.status"})]);
    }

    #[test]
    fn what_is_no_request_gets_the_code_of_the_specification() {
        assert_eq!(codes(b"{nonsense\n"), [PARSE_ERROR]);
        assert_eq!(codes(b"\xff\xfe\x00\n"), [PARSE_ERROR]);
        assert_eq!(codes(b"42\n[]\n\"x\"\nnull\n"), [INVALID_REQUEST; 4]);
        assert_eq!(codes(b"{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"stats\"}\n"), [INVALID_REQUEST]);
        assert_eq!(codes(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":5}\n"), [INVALID_REQUEST]);
        assert_eq!(codes(b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"stats\"}\n"), [INVALID_REQUEST]);
        assert_eq!(codes(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"node.statsu\"}\n"), [METHOD_NOT_FOUND]);
    }

    #[test]
    fn bad_lines_do_not_stop_good_ones() {
        let input = b"{{{\n{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"stats\"}";
        let answers = exchange(input);
        assert_eq!((answers.len(), answers[1]["result"].as_str()), (2, Some("stats")));
    }

    #[test]
    fn a_batch_is_answered_together() {
        let input =
            b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"},3,{\"jsonrpc\":\"2.0\",\"method\":\"stats\"}]\n";
        let answers = exchange(input);
        assert_eq!(answers[0].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn an_endless_line_is_cut_off() {
        let mut input = vec![b'['; LINE_BYTES_MAX + 100];
        assert_eq!(codes(&input), [INVALID_REQUEST]);
        input.truncate(LINE_BYTES_MAX);
        input.push(b'\n');
        assert_eq!(codes(&input), [PARSE_ERROR], "a deep nest is refused, not followed");
    }

    #[test]
    fn random_bytes_never_break_it() {
        let mut rng = base::Rng::new(11);
        let good = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}\n";
        for _ in 0..200 {
            let mut bytes = good.to_vec();
            for _ in 0..rng.between(1, 4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.push(b'\n');
            bytes.extend_from_slice(good);
            let answers = exchange(&bytes);
            assert_eq!(answers.last().map(|answer| answer["result"].clone()), Some(json!("stats")));
        }
    }
}
