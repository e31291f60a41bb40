//! What a target keeps on each reactor: its connections, the shared receive buffer, channels to namespaces.

use super::connection::{Connection, End, HELD_BYTES_MAX};
use super::greetings::Greetings;
use super::receive::Receiver;
use super::share::Shares;
use super::sparing::Sparing;
use super::{Config, Export, Shared};
use crate::target::reservation::Access;
use crate::target::{self, AnaStates, Mask, SubsystemId, WhyRefused};
use crate::tls::stream::Stream;
use crate::tls::{Keyring, TlsFailure};
use bdev::{BlockDevice, Channel, Op, OpSet};
use reactor::{BUF_BYTES_MAX, Buf, Reactor, TcpStream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one receive may bring; one such buffer per reactor.
const RECEIVE_BYTES: usize = 256 << 10;

/// A namespace as an I/O queue uses it.
pub(super) struct Namespace {
    pub(super) nsid: u32,
    pub(super) model: target::Namespace,
    pub(super) channel: Rc<dyn Channel>,
    pub(super) ops: OpSet,
    /// Larger operations are made in pieces.
    pub(super) max_io_blocks: u32,
    /// Largest compare-and-write.
    pub(super) compare_and_write_blocks: u32,
    /// The device lends its memory for reads, and has so far ended every operation inside `submit`: then writes may give it
    /// views of the receive buffer. A device that takes its time would hold one receive buffer per write.
    pub(super) at_once: Cell<bool>,
    /// Unmapped blocks read as zero, so Write Zeroes may deallocate.
    pub(super) unmap_zeroes: bool,
    /// What its reservation allows, as of the generation at which it was looked up.
    pub(super) access: Option<Arc<Access>>,
    /// The hosts that see it, as of then.
    pub(super) mask: Option<Mask>,
    /// At which ports it is reached, as of then; `None` is at all.
    pub(super) ana: Option<Arc<AnaStates>>,
    /// Keeps the device alive while commands are under way.
    device: Arc<dyn BlockDevice>,
}

impl Namespace {
    /// Whether the device does this itself and in one piece.
    #[inline]
    pub(super) fn does(&self, op: Op, block_count: u32) -> bool {
        block_count <= self.max_io_blocks && self.ops.contains(op)
    }
}

/// A namespace and the generation at which it was looked up; none when its channel could not be opened.
type Found = (u64, Option<Rc<Namespace>>);

/// A connection that was accepted.
pub(super) struct Arrival {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    /// The listener's address.
    pub(super) via: SocketAddr,
    /// The keys, where the listener wants TLS.
    pub(super) keyring: Option<Keyring>,
}

/// See the module.
pub(super) struct Local {
    pub(super) reactor: Rc<Reactor>,
    pub(super) config: Arc<Config>,
    pub(super) shared: Arc<Shared>,
    receive_buf: RefCell<Option<Buf>>,
    namespaces: RefCell<BTreeMap<(SubsystemId, u32), Found>>,
    /// Those that are served; their tasks hold them, so that a reactor that is closed leaves nothing behind.
    connections: RefCell<BTreeMap<u64, Weak<Connection>>>,
    /// Connections that have ended with commands in devices.
    leaving: RefCell<Vec<Weak<Connection>>>,
    held_max: Cell<usize>,
    /// What hosts have of this reactor.
    pub(super) shares: Shares,
    /// Handshakes with peers that have proven nothing.
    pub(super) greetings: Rc<Greetings>,
    /// Connections that have answers to flush at the end of this turn.
    pub(super) answering: Cell<usize>,
    /// Reports of connections without TLS, or with too much of it.
    tls_failures: Sparing,
    /// The task that looks for hosts which do not send the data they were asked for runs.
    pub(super) watching_transfers: Cell<bool>,
}

impl Local {
    /// The target's part on this reactor, made when first asked for.
    pub(super) fn of(reactor: &Rc<Reactor>, shared: &Arc<Shared>) -> Rc<Local> {
        reactor.kept_or(shared.instance, || Local {
            reactor: reactor.clone(),
            config: shared.config.clone(),
            shared: shared.clone(),
            receive_buf: RefCell::default(),
            namespaces: RefCell::default(),
            connections: RefCell::default(),
            leaving: RefCell::default(),
            held_max: Cell::new(HELD_BYTES_MAX),
            shares: Shares::default(),
            greetings: Rc::default(),
            answering: Cell::new(0),
            tls_failures: Sparing::default(),
            watching_transfers: Cell::new(false),
        })
    }

    /// Changes whenever any namespace does.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Serves a connection until it ends.
    pub(super) fn serve(self: &Rc<Self>, stream: TcpStream, arrival: Arrival) {
        let Arrival { id, peer, via, keyring } = arrival;
        let stream = match keyring {
            None => Stream::Plain(stream),
            Some(keyring) => match Stream::accept(stream, keyring, self.reactor.now_ns()) {
                Ok(stream) => stream,
                Err(failure) => {
                    self.report(peer, via, &failure);
                    return self.shared.connection_ended(self.reactor.index());
                }
            },
        };
        let connection = Connection::new(&self.reactor, self, stream, id, (peer, via));
        self.connections.borrow_mut().insert(id, Rc::downgrade(&connection));
        self.share_out();
        connection.watch_handshake();
        let this = self.clone();
        self.reactor.spawn(async move {
            let end = Receiver::new(connection.clone(), peer.ip()).run().await;
            tracing::debug!(connection = id, %peer, ?end, "connection ended");
            this.report_end(&connection, peer, end);
            connection.finish(end).await;
            this.connections.borrow_mut().remove(&id);
            if !connection.flights.is_empty() {
                let mut leaving = this.leaving.borrow_mut();
                leaving.retain(|one| one.strong_count() > 0);
                leaving.push(Rc::downgrade(&connection));
            }
            this.share_out();
        });
    }

    /// Tells the log of a connection on which the two sides did not mean the same by TLS.
    fn report_end(&self, connection: &Connection, peer: SocketAddr, end: End) {
        if let Some(failure) = connection.stream.tls_failure() {
            self.report(peer, connection.via, &failure);
        } else if connection.stream.is_shaking_hands() && end == End::Stalled {
            self.report(peer, connection.via, &TlsFailure::Late);
        } else if end == End::HelloOfTls {
            self.report(peer, connection.via, &TlsFailure::NotWanted);
        }
    }

    /// Whoever tries keys does not fill the log with it.
    fn report(&self, peer: SocketAddr, via: SocketAddr, failure: &TlsFailure) {
        self.shared.refusals.count(WhyRefused::Tls);
        if !self.tls_failures.admit(self.reactor.now_ns()) {
            return tracing::debug!(%peer, %via, reason = %failure, "no TLS with a host; the connection is closed");
        }
        let others = self.tls_failures.others();
        tracing::warn!(%peer, %via, reason = %failure, others, "no TLS with a host; the connection is closed");
    }

    /// The connections that are served.
    pub(super) fn connections(&self) -> Vec<Rc<Connection>> {
        self.connections.borrow().values().filter_map(Weak::upgrade).collect()
    }

    /// Connections that are not served any more, and whose commands devices have not all ended.
    pub(super) fn leaving(&self) -> Vec<Rc<Connection>> {
        self.leaving.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// The connection of this number, while it is served.
    pub(super) fn connection(&self, id: u64) -> Option<Rc<Connection>> {
        self.connections.borrow().get(&id)?.upgrade()
    }

    /// Ends all connections, with answers to what devices have under way. Those that come later are served.
    pub(super) fn close(&self) {
        self.namespaces.borrow_mut().clear();
        for connection in self.connections() {
            connection.drain();
        }
    }

    /// A connection was drained: channels that were opened for it can be closed. Others open theirs again if they need them.
    pub(super) fn let_go(&self, connection: &Connection) {
        connection.cached.take();
        self.namespaces.borrow_mut().clear();
    }

    /// Lets go of a namespace that was removed: its device may be closed.
    pub(super) fn forget(&self, subsystem: SubsystemId, nsid: u32) {
        self.namespaces.borrow_mut().remove(&(subsystem, nsid));
        for connection in self.connections() {
            if connection.owner.get().is_some_and(|owner| owner.subsystem == subsystem) {
                connection.cached.take();
            }
        }
    }

    /// Buffer bytes that one connection may hold: together they leave half of the pool to others, so that hosts which keep
    /// what they were given do not stop the rest.
    #[inline]
    pub(super) fn held_max(&self) -> usize {
        self.held_max.get()
    }

    fn share_out(&self) {
        let connections = self.connections.borrow().len().max(1);
        let share = self.reactor.pool().bytes_max() / 2 / connections;
        self.held_max.set(share.clamp(BUF_BYTES_MAX, HELD_BYTES_MAX));
    }

    /// The receive buffer, exclusive: a new one while writes still hold views of the last.
    #[inline]
    pub(super) fn take_receive_buf(&self) -> Buf {
        if let Some(mut buf) = self.receive_buf.borrow_mut().take()
            && buf.try_unshare()
        {
            return buf;
        }
        let fresh = self.reactor.pool().try_alloc(RECEIVE_BYTES);
        // Without pool memory a smaller one from the heap: connections must go on so that memory comes back.
        fresh.unwrap_or_else(|| Buf::from_vec(vec![0; RECEIVE_BYTES / 4]))
    }

    #[inline]
    pub(super) fn give_receive_buf(&self, buf: Buf) {
        *self.receive_buf.borrow_mut() = Some(buf);
    }

    /// Asks all devices to end an operation early.
    pub(super) fn abort(&self, tag: u64) {
        for (_, namespace) in self.namespaces.borrow().values() {
            if let Some(namespace) = namespace {
                namespace.channel.abort(tag);
            }
        }
    }

    /// A namespace with a channel on this reactor; `None` when it does not exist or cannot be opened.
    pub(super) fn namespace(&self, subsystem: SubsystemId, nsid: u32) -> Option<Rc<Namespace>> {
        let generation = self.generation();
        let key = (subsystem, nsid);
        let kept = self.namespaces.borrow().get(&key).cloned();
        if let Some((kept_generation, namespace)) = &kept
            && *kept_generation == generation
        {
            return namespace.clone();
        }
        let Some(export) = self.shared.exported(subsystem, nsid) else {
            self.namespaces.borrow_mut().remove(&key);
            return None;
        };
        let old = kept.and_then(|(_, namespace)| namespace).filter(|old| Arc::ptr_eq(&old.device, &export.device));
        let namespace = self.open(nsid, export, old.as_deref());
        self.namespaces.borrow_mut().insert(key, (generation, namespace.clone()));
        namespace
    }

    fn open(&self, nsid: u32, export: Export, old: Option<&Namespace>) -> Option<Rc<Namespace>> {
        let Export { device, model, access, mask, ana } = export;
        let info = device.info();
        let channel = match old {
            Some(old) => old.channel.clone(),
            None => match device.open_channel(&self.reactor) {
                Ok(channel) => channel,
                Err(error) => {
                    tracing::error!(nsid, %error, "cannot open a channel for a namespace");
                    return None;
                }
            },
        };
        Some(Rc::new(Namespace {
            nsid,
            model,
            channel,
            ops: info.ops,
            max_io_blocks: info.max_io_blocks,
            compare_and_write_blocks: info.compare_and_write_blocks,
            at_once: Cell::new(old.map_or(info.loans, |old| old.at_once.get())),
            unmap_zeroes: info.unmap_reads_zero && info.ops.contains(Op::Unmap),
            access,
            mask,
            ana,
            device,
        }))
    }
}
