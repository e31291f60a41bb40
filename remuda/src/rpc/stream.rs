//! Methods with a stream: the request and its answer are lines like any other, and what follows on the connection are bytes.
//! One that writes a stream ends the connection with it. One that reads a stream takes it until the client shuts its end, and then
//! says in a second line, of the same id, how that ended.

use super::audit::Peer;
use super::methods::{Method, Streams, find};
use super::server::{Request, result_line, stopping, submit};
use crate::node::Transfer;
use serde_json::Value;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Pieces on their way between the connection and the node.
const PIECES: usize = 4;
/// Most bytes of a piece that is read.
const PIECE_BYTES: usize = 256 << 10;

/// The method of a request that has a stream.
pub(super) fn method_of(request: &Value) -> Option<&'static Method> {
    let id = request.get("id")?;
    let is_request = request.get("jsonrpc")?.as_str() == Some("2.0") && (id.is_string() || id.is_number());
    let name = request.get("method").filter(|_| is_request)?.as_str()?;
    find(name).filter(|method| method.streams != Streams::None)
}

/// Serves such a request; the connection is used up by it.
pub(super) async fn serve(
    request: &Value,
    method: &'static Method,
    peer: Peer,
    requests: &mpsc::Sender<Request>,
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> io::Result<()> {
    let (id, params) = (request["id"].clone(), request.get("params").cloned());
    let (sender, mut receiver) = mpsc::channel(PIECES);
    if method.streams == Streams::Out {
        let begun = submit(method, params, peer, Some(Transfer::Out(sender)), requests).await;
        write.write_all(result_line(&id, &begun).as_bytes()).await?;
        while let Some(bytes) = receiver.recv().await {
            write.write_all(&bytes).await?;
        }
        return write.shutdown().await;
    }
    let (ended, mut end) = oneshot::channel();
    let begun = submit(method, params, peer, Some(Transfer::In(receiver, ended)), requests).await;
    write.write_all(result_line(&id, &begun).as_bytes()).await?;
    if begun.is_err() {
        return Ok(());
    }
    let mut sender = Some(sender);
    let outcome = loop {
        let mut piece = vec![0; PIECE_BYTES];
        tokio::select! {
            outcome = &mut end => break outcome,
            got = read.read(&mut piece), if sender.is_some() => match got {
                Ok(bytes) if bytes > 0 => {
                    piece.truncate(bytes);
                    let sent = match &sender {
                        Some(sender) => sender.send(piece).await.is_ok(),
                        None => false,
                    };
                    // Who does not read on says why.
                    if !sent {
                        sender = None;
                    }
                }
                // The end of the stream, or of the client: what is missing then is noticed by whoever reads it.
                Ok(_) | Err(_) => sender = None,
            },
        }
    };
    let outcome = outcome.map_err(|_| stopping()).and_then(|outcome| outcome);
    let outcome = outcome.map(|view| serde_json::to_value(view).expect("plain fields serialise"));
    write.write_all(result_line(&id, &outcome).as_bytes()).await?;
    write.shutdown().await
}
