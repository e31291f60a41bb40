//! What a target keeps on each reactor: its connections, the shared receive buffer, channels to namespaces.

use super::connection::Connection;
use super::receive::Receiver;
use super::{Config, Shared};
use crate::target::{self, SubsystemId};
use bdev::{BlockDevice, Channel, Op};
use reactor::{Buf, Reactor, TcpStream};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that one receive may bring; one such buffer per reactor.
const RECEIVE_BYTES: usize = 256 << 10;

/// A namespace as an I/O queue uses it.
pub(super) struct Namespace {
    pub(super) model: target::Namespace,
    pub(super) channel: Rc<dyn Channel>,
    /// The device lends its memory for reads and takes the data of writes at once.
    pub(super) loans: bool,
    pub(super) unmaps: bool,
    /// Unmapped blocks read as zero, so Write Zeroes may deallocate.
    pub(super) unmap_zeroes: bool,
    /// Keeps the device alive while commands are under way.
    _device: Arc<dyn BlockDevice>,
}

/// See the module.
pub(super) struct Local {
    pub(super) reactor: Rc<Reactor>,
    pub(super) config: Arc<Config>,
    pub(super) shared: Arc<Shared>,
    receive_buf: RefCell<Option<Buf>>,
    namespaces: RefCell<BTreeMap<(SubsystemId, u32), (u64, Rc<Namespace>)>>,
    pub(super) connections: RefCell<BTreeMap<u64, Rc<Connection>>>,
    closing: Cell<bool>,
}

impl Local {
    /// The target's part on this reactor, made when first asked for.
    pub(super) fn of(reactor: &Rc<Reactor>, shared: &Arc<Shared>) -> Rc<Local> {
        reactor.extension(shared.instance, || Local {
            reactor: reactor.clone(),
            config: shared.config.clone(),
            shared: shared.clone(),
            receive_buf: RefCell::default(),
            namespaces: RefCell::default(),
            connections: RefCell::default(),
            closing: Cell::new(false),
        })
    }

    /// Changes whenever any namespace does.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Serves a connection until it ends.
    pub(super) fn serve(self: &Rc<Self>, stream: TcpStream, id: u64, peer: SocketAddr, via: SocketAddr) {
        if self.closing.get() {
            return;
        }
        let connection = Connection::new(&self.reactor, self, stream, id, via);
        self.connections.borrow_mut().insert(id, connection.clone());
        connection.watch_handshake();
        let this = self.clone();
        self.reactor.spawn(async move {
            let end = Receiver::new(connection.clone()).run().await;
            tracing::debug!(connection = id, %peer, ?end, "connection ended");
            connection.finish(end);
            this.connections.borrow_mut().remove(&id);
        });
    }

    /// Ends all connections and takes no more.
    pub(super) fn close(&self) {
        self.closing.set(true);
        let connections: Vec<_> = self.connections.borrow().values().cloned().collect();
        for connection in connections {
            connection.end(super::connection::End::TornDown);
        }
        self.namespaces.borrow_mut().clear();
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
        fresh.unwrap_or_else(|| Buf::from_vec(vec![0; RECEIVE_BYTES / 4]))
    }

    #[inline]
    pub(super) fn give_receive_buf(&self, buf: Buf) {
        *self.receive_buf.borrow_mut() = Some(buf);
    }

    /// A namespace with a channel on this reactor; `None` when it does not exist or cannot be opened.
    pub(super) fn namespace(&self, subsystem: SubsystemId, nsid: u32) -> Option<Rc<Namespace>> {
        let generation = self.generation();
        if let Some((cached_generation, namespace)) = self.namespaces.borrow().get(&(subsystem, nsid))
            && *cached_generation == generation
        {
            return Some(namespace.clone());
        }
        let found = self.shared.exported(subsystem, nsid);
        let Some((device, model)) = found else {
            self.namespaces.borrow_mut().remove(&(subsystem, nsid));
            return None;
        };
        let kept = self.namespaces.borrow().get(&(subsystem, nsid)).map(|(_, old)| old.clone());
        let channel = match kept {
            Some(old) if Arc::ptr_eq(&old._device, &device) => old.channel.clone(),
            _ => match device.open_channel(&self.reactor) {
                Ok(channel) => channel,
                Err(error) => {
                    tracing::error!(nsid, %error, "cannot open a channel for a namespace");
                    return None;
                }
            },
        };
        let info = device.info();
        let namespace = Rc::new(Namespace {
            model,
            channel,
            loans: info.loans,
            unmaps: info.ops.contains(Op::Unmap),
            unmap_zeroes: info.unmap_reads_zero && info.ops.contains(Op::Unmap),
            _device: device,
        });
        self.namespaces.borrow_mut().insert((subsystem, nsid), (generation, namespace.clone()));
        Some(namespace)
    }
}
