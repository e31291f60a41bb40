//! HTTP connections within bounds: whoever reaches the listener can take places for a while, and the process's descriptors
//! and memory never.

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Sleep, sleep};

/// What clients may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Connections at a time. Further ones wait in the listener's backlog.
    pub connections: usize,
    /// Time for a request's head to arrive, from the start of the connection or the end of the answer before.
    pub head: Duration,
    /// Time for a client to take an answer.
    pub answer: Duration,
}

/// What a node grants.
pub const LIMITS: Limits = Limits { connections: 64, head: Duration::from_secs(10), answer: Duration::from_secs(30) };

/// Serves for as long as it is polled.
pub async fn serve(mut listener: TcpListener, router: Router, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        // Without descriptors left this waits and tries again.
        let (stream, _) = Listener::accept(&mut listener).await;
        let stream = TokioIo::new(Bounded { stream, limit: limits.answer, due: None });
        let service = TowerToHyperService::new(router.clone());
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(limits.head);
        let connection = http.serve_connection(stream, service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("an HTTP connection ended: {error}");
            }
            drop(place);
        });
    }
}

/// A stream whose peer takes what is written to it within `limit`, or gets no more.
struct Bounded {
    stream: TcpStream,
    limit: Duration,
    /// Runs from when the peer first made us wait until all is written.
    due: Option<Pin<Box<Sleep>>>,
}

impl Bounded {
    fn bound(&mut self, cx: &mut Context<'_>, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let due = self.due.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(due.as_mut().poll(cx));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the client does not take the answer")))
    }
}

impl AsyncRead for Bounded {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bound(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.bound(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        // Asked for once nothing is left to write.
        self.due = None;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream as Client};

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(3_600);
    /// More than sockets hold.
    const HUGE: usize = 128 << 20;

    /// A listener whose clients wait until it is served.
    fn listen() -> (std::net::TcpListener, SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// Serves with one place, for as long as the process.
    fn start(listener: std::net::TcpListener, head: Duration, answer: Duration) {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                listener.set_nonblocking(true).expect("a socket");
                let listener = TcpListener::from_std(listener).expect("a socket");
                let router =
                    Router::new().route("/", get(|| async { "ok" })).route("/huge", get(|| async { vec![0; HUGE] }));
                serve(listener, router, Limits { connections: 1, head, answer }).await;
            });
        });
    }

    fn ask(server: SocketAddr, path: &str) -> Client {
        let mut client = Client::connect(server).expect("the backlog has room");
        write!(client, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it is connected");
        client
    }

    fn answer(mut client: Client) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A connection that is reset ends as well.
        let _ = client.read_to_end(&mut bytes);
        bytes
    }

    #[test]
    fn connections_beyond_the_limit_wait_and_those_that_ask_nothing_are_closed() {
        let (listener, server) = listen();
        let silent = Client::connect(server).expect("the backlog has room");
        let mut halting = Client::connect(server).expect("the backlog has room");
        halting.write_all(b"GET / HTTP/1.1\r\nHost:").expect("it is connected");
        let asking = ask(server, "/");
        start(listener, SHORT, LONG);
        let answered = answer(asking);
        assert!(answered.starts_with(b"HTTP/1.1 200") && answered.ends_with(b"ok"));
        for (mut idle, what) in [(silent, "silent"), (halting, "halting")] {
            idle.set_nonblocking(true).expect("a socket");
            let read = idle.read(&mut [0; 512]);
            let open = read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
            assert!(!open, "the {what} one had the place, which was given to the next");
        }
    }

    #[test]
    fn a_client_that_does_not_take_its_answer_loses_it() {
        let (listener, server) = listen();
        start(listener, LONG, SHORT);
        let stalled = ask(server, "/huge");
        assert!(answer(ask(server, "/")).ends_with(b"ok"), "the place was given to the next");
        assert!(answer(stalled).len() < HUGE);
    }

    #[test]
    fn an_answer_that_is_taken_comes_whole_and_the_connection_lasts() {
        let (listener, server) = listen();
        start(listener, LONG, LONG);
        let mut client = Client::connect(server).expect("the backlog has room");
        let mut got = [0; 512];
        for _ in 0..2 {
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it lasts");
            let mut length = 0;
            while !got[..length].ends_with(b"ok") {
                let read = client.read(&mut got[length..]).expect("it lasts");
                assert_ne!(read, 0, "it was closed");
                length += read;
            }
        }
        drop(client);
        assert!(answer(ask(server, "/huge")).len() > HUGE);
    }
}
