//! Snapshots and clones of volumes in pools. A snapshot is a volume of its pool, named `volume@snapshot`, that can be read;
//! the pool's catalog knows it, and the node remembers nothing.

use super::Node;
use super::pools::pool_refused;
use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use super::view::{KinView, SnapshotView, VolumeView};
use crate::clock::seconds_now;
use crate::config::device::check_name;
use engine::{Pool, PoolError, PoolVolume, SnapshotInfo};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// A snapshot's volume, and its own part of the name.
pub(super) fn parts(name: &str) -> Result<(&str, &str), Refusal> {
    let wrong = |cause: String| Err(Refusal::invalid(format!("snapshot '{name}'"), cause, "name it 'volume@snapshot'"));
    match name.split_once('@') {
        Some((volume, snapshot)) => match check_name(snapshot) {
            Ok(()) => Ok((volume, snapshot)),
            Err(reason) => wrong(reason),
        },
        None => wrong("there is no '@' in it".to_string()),
    }
}

impl Node {
    /// Makes snapshots, all of them at one moment: names such as `v0@monday`, of volumes of one pool.
    pub async fn snapshot_create(&mut self, names: &[String]) -> Result<Vec<SnapshotView>, Refusal> {
        self.check_running()?;
        let pool = self.pool_of_all(names)?;
        let mut wanted = Vec::new();
        for name in names {
            let (volume, snapshot) = parts(name)?;
            if self.pool_volumes.contains_key(name) {
                let next = "choose another name, or delete it first";
                return Err(Refusal::conflict(format!("snapshot '{name}'"), "it exists already", next));
            }
            self.check_not_imported(volume)?;
            wanted.push((volume.to_string(), snapshot.to_string()));
        }
        let made = self.in_pool(&pool, "", move |pool, reactor| async move {
            let wanted: Vec<(&str, &str)> =
                wanted.iter().map(|(volume, name)| (volume.as_str(), name.as_str())).collect();
            pool.snapshot(&reactor, &wanted, seconds_now()).await
        });
        for snapshot in made.await? {
            self.adopt_volume(&pool, snapshot);
        }
        tracing::info!(snapshots = names.join(" "), pool, "snapshots made");
        let wanted = names.to_vec();
        let look = move |pool: Arc<Pool>, reactor| async move { pool.snapshot_infos(&reactor, wanted).await };
        let mut made = self.in_pool(&pool, "", look).await?;
        made.sort_by(|one, other| parts_of(one).cmp(&parts_of(other)));
        Ok(made.into_iter().map(|snapshot| snapshot_view(&pool, snapshot, Vec::new())).collect())
    }

    /// The snapshots of a volume, or of all.
    pub async fn snapshot_list(&self, volume: Option<&str>) -> Result<Vec<SnapshotView>, Refusal> {
        let pools: Vec<String> = match volume {
            Some(volume) => vec![self.pool_of_volume(volume)?],
            None => self.open_pool_names().map(str::to_string).collect(),
        };
        let exported = self.exported();
        let mut all = Vec::new();
        for pool in pools {
            let wanted = volume.map(str::to_string);
            let look = |pool: Arc<Pool>, reactor: Rc<Reactor>| async move {
                match wanted {
                    Some(volume) => pool.tree_with(&reactor, &volume).await,
                    None => Ok(pool.tree(&reactor).await?.0),
                }
            };
            let tree = self.in_pool(&pool, "", look).await?;
            for snapshot in tree.into_iter().flat_map(|volume| volume.snapshots) {
                let exports = match exported.contains(snapshot.name.as_str()) {
                    true => self.exports_of(&snapshot.name),
                    false => Vec::new(),
                };
                all.push(snapshot_view(&pool, snapshot, exports));
            }
        }
        Ok(all)
    }

    /// Snapshots and clones of a volume in an open pool; of a snapshot, its clones.
    pub(super) async fn kin_of(&self, pool: &str, name: &str) -> Result<KinView, Refusal> {
        let wanted = name.to_string();
        let look = |pool: Arc<Pool>, reactor: Rc<Reactor>| async move { pool.tree_with(&reactor, &wanted).await };
        let tree = self.in_pool(pool, "", look).await?;
        let mut kin = KinView::default();
        for volume in tree {
            let of = volume.clone_of.as_deref().unwrap_or_default();
            if of == name || of.split_once('@').is_some_and(|(of, _)| of == name) {
                kin.clones.push(volume.name.clone());
            }
            if volume.name == name {
                kin.snapshots = volume.snapshots.into_iter().map(|snapshot| snapshot.name).collect();
                kin.clone_of = volume.clone_of;
            }
        }
        Ok(kin)
    }

    /// Deletes snapshots of one pool, all of them at once. What they have goes to what shows it, in the background.
    pub async fn snapshot_delete(&mut self, names: &[String]) -> Result<(), Refusal> {
        self.check_running()?;
        let pool = self.pool_of_all(names)?;
        for name in names {
            self.check_made(name)?;
            self.check_unused(name)?;
        }
        let mut slots = Vec::new();
        for name in names {
            self.volumes.remove(name);
            slots.extend(self.pool_volumes.remove(name));
        }
        let old = names.to_vec();
        let delete = move |pool: Arc<Pool>, reactor| async move {
            let old: Vec<&str> = old.iter().map(String::as_str).collect();
            pool.delete_snapshots(&reactor, &old).await
        };
        let deleted = self.in_pool(&pool, "try again; see 'remuda pool status'", delete).await;
        if deleted.is_err() {
            slots.into_iter().for_each(|slot| self.adopt_volume(&pool, slot.volume));
        }
        deleted?;
        tracing::info!(snapshots = names.join(" "), pool, "snapshots deleted");
        Ok(())
    }

    /// Makes volumes of one pool what a snapshot of each is, all of them or none. Unless `in_use`, nobody may be able to use them
    /// meanwhile.
    pub async fn snapshot_roll_back(&mut self, names: &[String], in_use: bool) -> Result<Vec<VolumeView>, Refusal> {
        self.check_running()?;
        let pool = self.pool_of_all(names)?;
        let mut volumes = Vec::new();
        for name in names {
            let (volume, _) = parts(name)?;
            self.check_made(name)?;
            self.check_not_streamed(volume)?;
            let exports = self.exports_of(volume);
            if let Some(first) = exports.first().filter(|_| !in_use) {
                let cause = format!("hosts may use it as {}", exports.join(", "));
                let next = format!("{}; if none of them has it mounted or open, --in-use", Node::end_export(first));
                return Err(Refusal::conflict(format!("volume '{volume}'"), cause, next));
            }
            volumes.push(volume);
        }
        let old = names.to_vec();
        let roll_back = move |pool: Arc<Pool>, reactor| async move {
            let old: Vec<&str> = old.iter().map(String::as_str).collect();
            pool.roll_back_all(&reactor, &old).await
        };
        self.in_pool(&pool, "", roll_back).await?;
        self.remember_shown()?;
        for volume in &volumes {
            self.announce_volume(volume).await?;
        }
        tracing::info!(snapshots = names.join(" "), pool, "volumes rolled back");
        volumes.into_iter().map(|volume| self.volume_show(volume)).collect()
    }

    /// Makes a volume that begins as a snapshot is.
    pub async fn volume_clone(&mut self, snapshot: &str, name: &str) -> Result<VolumeView, Refusal> {
        self.check_running()?;
        if let Some(place) = self.place_of_volume(name) {
            let cause = format!("it exists already {place}");
            return Err(Refusal::conflict(
                format!("volume '{name}'"),
                cause,
                "choose another name, or delete it first",
            ));
        }
        let pool = self.pool_of_made_snapshot(snapshot)?;
        let (source, new) = (snapshot.to_string(), name.to_string());
        let cloned = self.in_pool(&pool, "", move |pool, reactor| async move {
            pool.clone_volume(&reactor, &source, &new, seconds_now()).await
        });
        let volume = cloned.await?;
        self.adopt_volume(&pool, volume);
        tracing::info!(volume = name, snapshot, pool, "volume cloned");
        self.volume_show(name)
    }

    /// The snapshots of a volume that the node knows.
    pub(super) fn snapshots_of(&self, volume: &str) -> Vec<String> {
        let prefix = format!("{volume}@");
        let from = self.pool_volumes.range(prefix.clone()..).map(|(name, _)| name);
        from.take_while(|name| name.starts_with(&prefix)).cloned().collect()
    }

    fn pool_of_snapshot(&self, name: &str) -> Result<String, Refusal> {
        self.pool_of_volume(parts(name)?.0)
    }

    /// The one pool that the volumes of these snapshots are in.
    fn pool_of_all(&self, names: &[String]) -> Result<String, Refusal> {
        let Some(first) = names.first() else {
            return Err(Refusal::invalid("snapshot", "none is named", "name it 'volume@snapshot'"));
        };
        let pool = self.pool_of_snapshot(first)?;
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(Refusal::invalid(format!("snapshot '{name}'"), "it is named twice", "name it once"));
            }
            let other = self.pool_of_snapshot(name)?;
            if other != pool {
                let cause = format!("'{first}' is in pool '{pool}' and '{name}' in pool '{other}'");
                let next = "what is done to several at once is done in one pool: name those of one pool at a time";
                return Err(Refusal::invalid(format!("snapshot '{name}'"), cause, next));
            }
        }
        Ok(pool)
    }

    fn check_made(&self, name: &str) -> Result<(), Refusal> {
        if self.pool_volumes.contains_key(name) {
            return Ok(());
        }
        let known = self.pool_volumes.keys().map(String::as_str).filter(|known| known.contains('@'));
        Err(Refusal::not_found("snapshot", name, known))
    }

    pub(super) fn pool_of_made_snapshot(&self, name: &str) -> Result<String, Refusal> {
        let pool = self.pool_of_snapshot(name)?;
        self.check_made(name)?;
        Ok(pool)
    }

    pub(super) fn pool_of_volume(&self, volume: &str) -> Result<String, Refusal> {
        if let Some(slot) = self.pool_volumes.get(volume) {
            return Ok(slot.pool.clone());
        }
        let object = format!("volume '{volume}'");
        match self.place_of_volume(volume) {
            Some(place) => {
                let cause = format!("it is {place}");
                let next = "snapshots are made of volumes in pools that are open";
                // As of everything that takes an open pool; on a device there cannot be any.
                let kind = if self.record(volume).is_ok() { RefusalKind::Invalid } else { RefusalKind::Failed };
                Err(Refusal::new(kind, object, cause, next))
            }
            None => Err(Refusal::not_found("volume", volume, self.pool_volumes.keys().map(String::as_str))),
        }
    }

    pub(super) async fn in_pool<T, F>(
        &self,
        name: &str,
        next: &str,
        work: impl FnOnce(Arc<Pool>, Rc<Reactor>) -> F + Send + 'static,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PoolError>> + 'static,
    {
        let open = self.open_pool_of(name)?;
        let ended = on_reactor_async(self.reactors.first(), move |reactor| work(open.pool.clone(), reactor));
        ended.await?.map_err(|error| pool_refused(name, error, next))
    }
}

fn parts_of(snapshot: &SnapshotInfo) -> (&str, &str) {
    snapshot.name.split_once('@').unwrap_or((&snapshot.name, ""))
}

fn snapshot_view(pool: &str, snapshot: SnapshotInfo, exports: Vec<String>) -> SnapshotView {
    SnapshotView {
        pool: pool.to_string(),
        volume: parts_of(&snapshot).0.to_string(),
        size: snapshot.bytes,
        uuid: snapshot.uuid,
        created_s: snapshot.created_s,
        users: snapshot.users,
        exports,
        name: snapshot.name,
    }
}

/// Whether a volume of a pool is one.
pub(super) fn is_snapshot(volume: &PoolVolume) -> bool {
    volume.identity().is_snapshot
}
