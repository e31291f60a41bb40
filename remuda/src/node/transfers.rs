//! Snapshots on their way out of the node and into it, as streams. They run on a reactor; the node goes on with other
//! requests meanwhile, and holds what a stream uses: it is neither deleted nor changed until the stream has ended.

use super::Node;
use super::refusal::Refusal;
use super::stream_refusal::import_refused;
use super::view::{ChangeView, ChangesView, ExportView, ImportView};
use crate::clock::seconds_now;
use crate::config::device::check_name;
use bdev::BlockDevice;
use engine::{BLOCK_BYTES, ChangeKind, CheckName, ImportOptions, Imported, ShardStatus, StreamSink, StreamSource};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Streams at the same time: each takes one of the RPC socket's connections.
const STREAMS_MAX: usize = crate::rpc::CLIENTS_MAX / 4;
/// How often the end of those that are stopped is looked for.
const STOP_LOOK: Duration = Duration::from_millis(5);

/// The other end of a stream, from the node's view.
pub enum Transfer {
    /// The node writes.
    Out(mpsc::Sender<Vec<u8>>),
    /// The node reads, and says how it ended.
    In(mpsc::Receiver<Vec<u8>>, oneshot::Sender<Result<ImportView, Refusal>>),
}

/// An import that has ended: what it has made is the node's from here on.
pub struct Landing {
    pool: String,
    volume: String,
    outcome: Result<Imported, Refusal>,
    ended: oneshot::Sender<Result<ImportView, Refusal>>,
    hold: Arc<Hold>,
}

/// What a stream uses, for as long as it runs.
struct Hold {
    is_import: bool,
    pool: String,
    names: Vec<String>,
}

impl Hold {
    /// An import also holds the snapshots of its volume: it goes on from one, and back to that if it fails.
    fn holds(&self, name: &str) -> bool {
        let is_its = |held: &String| name.strip_prefix(held.as_str()).is_some_and(|rest| rest.starts_with('@'));
        self.names.iter().any(|held| held == name || self.is_import && is_its(held))
    }
}

/// The streams that are under way.
pub(super) struct Transfers {
    under_way: Vec<Weak<Hold>>,
    stop: watch::Sender<bool>,
    landed: mpsc::UnboundedSender<Landing>,
    landings: Option<mpsc::UnboundedReceiver<Landing>>,
}

impl Default for Transfers {
    fn default() -> Transfers {
        let (landed, landings) = mpsc::unbounded_channel();
        Transfers { under_way: Vec::new(), stop: watch::Sender::new(false), landed, landings: Some(landings) }
    }
}

impl Transfers {
    fn hold(&mut self, is_import: bool, pool: &str, names: Vec<String>) -> Result<Arc<Hold>, Refusal> {
        self.under_way.retain(|other| other.strong_count() > 0);
        if self.under_way.len() >= STREAMS_MAX {
            let cause = format!("{STREAMS_MAX} are under way already");
            return Err(Refusal::conflict("stream", cause, "try again when one of them has ended"));
        }
        let hold = Arc::new(Hold { is_import, pool: pool.to_string(), names });
        self.under_way.push(Arc::downgrade(&hold));
        Ok(hold)
    }

    fn held(&self) -> impl Iterator<Item = Arc<Hold>> + '_ {
        self.under_way.iter().filter_map(Weak::upgrade)
    }

    /// Ends all of them, and waits until what an import has begun is undone.
    pub(super) async fn stop(&self) {
        self.stop.send_replace(true);
        while self.under_way.iter().any(|hold| hold.strong_count() > 0) {
            tokio::time::sleep(STOP_LOOK).await;
        }
    }
}

struct Sink {
    bytes: mpsc::Sender<Vec<u8>>,
    stop: watch::Receiver<bool>,
}

impl StreamSink for Sink {
    async fn put(&mut self, bytes: Vec<u8>) -> bool {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => false,
            sent = self.bytes.send(bytes) => sent.is_ok(),
        }
    }
}

struct Source {
    bytes: mpsc::Receiver<Vec<u8>>,
    stop: watch::Receiver<bool>,
}

impl StreamSource for Source {
    async fn next(&mut self) -> Option<Vec<u8>> {
        tokio::select! {
            biased;
            _ = self.stop.wait_for(|stop| *stop) => None,
            bytes = self.bytes.recv() => bytes,
        }
    }
}

impl Node {
    /// Begins to write a snapshot as a stream: all of it or, with `since`, what differs from that one.
    pub async fn snapshot_export(
        &mut self,
        name: &str,
        since: Option<&str>,
        transfer: Option<Transfer>,
    ) -> Result<ExportView, Refusal> {
        self.check_running()?;
        let Some(Transfer::Out(bytes)) = transfer else { return Err(needs_connection("snapshot.export")) };
        let pool = self.pool_of_made_snapshot(name)?;
        if since.is_some() {
            // Whether it can be told what differs, before anything is sent.
            self.snapshot_diff(name, since, 0, 1).await?;
        }
        let open = self.open_pool_of(&pool)?;
        let size = self.pool_volumes.get(name).map_or(0, |slot| slot.volume.info().bytes());
        let names: Vec<String> = [Some(name), since].into_iter().flatten().map(str::to_string).collect();
        let hold = self.transfers.hold(false, &pool, names.clone())?;
        let mut sink = Sink { bytes, stop: self.transfers.stop.subscribe() };
        self.reactors.first().run(move |reactor| {
            let there = reactor.clone();
            reactor.spawn(async move {
                let since = hold.names.get(1).map(String::as_str);
                let ended = open.pool.export_snapshot(&there, &hold.names[0], since, &mut sink).await;
                match ended {
                    Ok(totals) => tracing::info!(snapshot = hold.names[0], bytes = totals.stream_bytes, "exported"),
                    Err(error) => tracing::warn!("export of '{}' has failed: {error}", hold.names[0]),
                }
            });
        });
        Ok(ExportView { snapshot: name.to_string(), since: names.get(1).cloned(), size })
    }

    /// Begins to read a stream into a volume, a new one of `pool` or one that has what the stream goes on from. The node hears
    /// of its end by [`landed`](Self::landed).
    pub fn snapshot_import(
        &mut self,
        name: &str,
        pool: Option<&str>,
        roll_back: bool,
        transfer: Option<Transfer>,
    ) -> Result<(), Refusal> {
        self.check_running()?;
        let Some(Transfer::In(bytes, ended)) = transfer else { return Err(needs_connection("snapshot.import")) };
        let (volume, snapshot) = match name.split_once('@') {
            Some(_) => super::snapshots::parts(name).map(|(volume, snapshot)| (volume, Some(snapshot.to_string())))?,
            None => (name, None),
        };
        let object = format!("volume '{volume}'");
        check_name(volume).map_err(|cause| {
            Refusal::invalid(object.clone(), cause, "give the volume that takes the stream another name")
        })?;
        let pool = match (self.pool_volumes.get(volume), pool) {
            (Some(slot), given) if given.is_none_or(|given| given == slot.pool) => slot.pool.clone(),
            (Some(slot), _) => {
                let next = "name that pool, or another volume";
                return Err(Refusal::conflict(object, format!("it exists already in pool '{}'", slot.pool), next));
            }
            (None, Some(given)) => given.to_string(),
            (None, None) => {
                let next = "name the pool in which it is to be made: --pool";
                return Err(Refusal::invalid(object, "there is none of this name", next));
            }
        };
        if self.pool_volumes.contains_key(volume) {
            self.check_unused(volume)?;
        } else if let Some(place) = self.place_of_volume(volume) {
            let next = "give the volume that takes the stream another name";
            return Err(Refusal::conflict(object, format!("it exists already {place}"), next));
        }
        self.check_not_imported(volume)?;
        let open = self.open_pool_of(&pool)?;
        let hold = self.transfers.hold(true, &pool, vec![volume.to_string()])?;
        if !self.pool_volumes.contains_key(volume) {
            let mut state = self.state.clone();
            state.importing.insert(volume.to_string(), pool.clone());
            self.remember(state)?;
        }
        let landed = self.transfers.landed.clone();
        let mut source = Source { bytes, stop: self.transfers.stop.subscribe() };
        self.reactors.first().run(move |reactor| {
            let there = reactor.clone();
            reactor.spawn(async move {
                let volume = hold.names[0].clone();
                let (snapshot, now_s) = (snapshot.as_deref(), seconds_now());
                let check_name = Some(check_name as CheckName);
                let options = ImportOptions { volume: Some(&volume), snapshot, roll_back, now_s, check_name };
                let outcome = open.pool.import_snapshot(&there, options, &mut source).await;
                let refuses = match &outcome {
                    Ok(_) => false,
                    Err(_) => open.pool.status(&there).await.shards.iter().any(is_refused),
                };
                let outcome = outcome.map_err(|error| import_refused(&pool, &volume, refuses, error));
                // A node that has gone needs to know nothing.
                let _ = landed.send(Landing { pool, volume, outcome, ended, hold });
            });
        });
        Ok(())
    }

    /// What [`landed`](Self::landed) is to be told; taken once.
    pub fn landings(&mut self) -> Option<mpsc::UnboundedReceiver<Landing>> {
        self.transfers.landings.take()
    }

    /// An import has ended.
    pub async fn landed(&mut self, landing: Landing) {
        let Landing { pool, volume, outcome, ended, hold } = landing;
        // Until here nobody else could make, change or take away what it has made.
        drop(hold);
        let outcome = match outcome {
            Ok(Imported { volume: target, snapshot, totals }) => {
                let name = snapshot.identity().name.clone();
                tracing::info!(snapshot = name, pool, bytes = totals.stream_bytes, "imported");
                if !self.pool_volumes.contains_key(&volume) {
                    self.adopt_volume(&pool, target);
                }
                self.adopt_volume(&pool, snapshot);
                let block = BLOCK_BYTES as u64;
                Ok(ImportView {
                    snapshot: name,
                    pool,
                    data_bytes: totals.data_blocks * block,
                    hole_bytes: totals.hole_blocks * block,
                    lost_bytes: totals.lost_blocks * block,
                    stream_bytes: totals.stream_bytes,
                })
            }
            Err(refusal) => {
                tracing::warn!("an import into volume '{volume}' has failed: {refusal}");
                Err(refusal)
            }
        };
        self.was_imported(&volume);
        let _ = ended.send(outcome);
    }

    /// It is over with the import that was to make a volume.
    fn was_imported(&mut self, volume: &str) {
        let mut state = self.state.clone();
        if state.importing.remove(volume).is_some()
            && let Err(refusal) = self.remember(state)
        {
            // The volume has its snapshot, so it stays all the same.
            tracing::error!("{refusal}");
        }
    }

    /// Deletes what imports into a pool had made when the node ended. One that has its snapshot had come to its end.
    pub(super) async fn drop_half_imports(&mut self, pool: &str) {
        let of_pool = self.state.importing.iter().filter(|(_, of)| *of == pool);
        let names: Vec<String> = of_pool.map(|(volume, _)| volume.clone()).collect();
        for name in names {
            let volume = name.clone();
            let dropped = self.in_pool(pool, "delete it", move |pool, reactor| async move {
                let tree = pool.tree_with(&reactor, &volume).await?;
                let is_half = tree.iter().any(|found| found.name == volume && found.snapshots.is_empty());
                if is_half {
                    pool.delete_volume(&reactor, &volume).await?;
                }
                Ok(is_half)
            });
            match dropped.await {
                Ok(true) => tracing::warn!(
                    "volume '{name}' was being imported when the node ended: it is deleted; import it again"
                ),
                Ok(false) => {}
                Err(refusal) => {
                    self.warn(format!(
                        "volume '{name}' was being imported when the node ended, is not whole, and cannot be deleted: {refusal}"
                    ));
                    continue;
                }
            }
            self.was_imported(&name);
        }
    }

    /// What differs between a snapshot or volume and an older snapshot of it, from a byte on.
    pub async fn snapshot_diff(
        &self,
        name: &str,
        since: Option<&str>,
        from: u64,
        most: usize,
    ) -> Result<ChangesView, Refusal> {
        let pool = self.pool_of_volume(name)?;
        if let Some(since) = since
            && self.pool_of_made_snapshot(since)? != pool
        {
            return Err(not_its_pool(name, since));
        }
        let block = BLOCK_BYTES as u64;
        let (of, since) = (name.to_string(), since.map(str::to_string));
        let found = self.in_pool(&pool, "", move |pool, reactor| async move {
            pool.changes(&reactor, &of, since.as_deref(), from / block, most).await
        });
        let found = found.await?;
        let view = |change: &engine::Change| ChangeView {
            offset: change.first * block,
            length: change.blocks * block,
            kind: match change.kind {
                ChangeKind::Data => "data",
                ChangeKind::Hole => "zero",
                ChangeKind::Lost => "lost",
            }
            .to_string(),
        };
        Ok(ChangesView { changes: found.changes.iter().map(view).collect(), next: found.next.map(|next| next * block) })
    }

    /// The pool that a volume of this name is being imported into.
    pub(super) fn importing(&self, volume: &str) -> Option<String> {
        let names = |hold: &Arc<Hold>| hold.is_import && hold.names.iter().any(|name| name == volume);
        self.transfers.held().find(names).map(|hold| hold.pool.clone())
    }

    /// Refuses what must not happen to a pool that a stream uses.
    pub(super) fn check_pool_not_streamed(&self, pool: &str) -> Result<(), Refusal> {
        let Some(hold) = self.transfers.held().find(|hold| hold.pool == pool) else { return Ok(()) };
        let cause =
            format!("'{}' of it is being {}", hold.names[0], if hold.is_import { "imported" } else { "exported" });
        Err(Refusal::conflict(format!("pool '{pool}'"), cause, "wait until that has ended, or end its client"))
    }

    /// Refuses what must not happen to a volume or snapshot that a stream uses.
    pub(super) fn check_not_streamed(&self, name: &str) -> Result<(), Refusal> {
        self.check_streams(name, |_| true)
    }

    /// Refuses what must not happen to a volume that is being imported.
    pub(super) fn check_not_imported(&self, name: &str) -> Result<(), Refusal> {
        self.check_streams(name, |hold| hold.is_import)
    }

    fn check_streams(&self, name: &str, counts: impl Fn(&Hold) -> bool) -> Result<(), Refusal> {
        let Some(hold) = self.transfers.held().find(|hold| counts(hold) && hold.holds(name)) else { return Ok(()) };
        let cause = if hold.is_import { "it is being imported" } else { "it is being exported" };
        Err(Refusal::conflict(format!("volume '{name}'"), cause, "wait until that has ended, or end its client"))
    }
}

fn needs_connection(method: &str) -> Refusal {
    let next = "call it by itself with an id, on a connection of its own: the stream follows on that";
    Refusal::invalid(
        format!("method '{method}'"),
        "it has a stream, which neither a batch nor a notification can",
        next,
    )
}

fn not_its_pool(name: &str, since: &str) -> Refusal {
    let cause = format!("'{since}' is in another pool");
    Refusal::invalid(format!("'{name}'"), cause, "name an older snapshot of the same volume")
}

/// Whether a device refuses what a shard writes.
fn is_refused(shard: &ShardStatus) -> bool {
    shard.log_trouble.is_some() || shard.trouble.is_some()
}
