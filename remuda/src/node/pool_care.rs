//! What is done to an open pool: growing it, and scrubbing it.

use super::Node;
use super::build::refused;
use super::pool_view::PoolView;
use super::pools::{object, pool_refused};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::scrub_view::ScrubView;
use crate::config::LogDef;
use base::ByteSize;
use engine::{PlanError, PoolError};

impl Node {
    /// Takes into use by what a pool's capacity device has become larger.
    pub async fn pool_grow(&mut self, name: &str) -> Result<PoolView, Refusal> {
        self.check_running()?;
        let open = self.open_pool_of(name)?;
        let slot = self.pool_slot(name)?;
        let def = &slot.def;
        let capacity = def.capacity.clone();
        // The index of a shaped pool grows on the log device.
        let names = if slot.is_hot() { vec![capacity.as_str()] } else { def.devices() };
        let kind = self.open_device(&capacity)?.kind();
        let mut devices = Vec::new();
        for name in names {
            devices.push((format!("device '{name}'"), self.open_device(name)?));
        }
        let grown = on_reactor_async(self.reactors.first(), move |reactor| async move {
            for (below, device) in devices {
                device.refresh(&reactor).await.map_err(|error| refused(below, error))?;
            }
            Ok(open.pool.grow(&reactor).await)
        });
        let enlarge = |what: &str, device: &str| {
            format!(
                "make the {what} larger first: remuda device resize {device} SIZE for a file, otherwise where it comes from"
            )
        };
        let next = match kind {
            "zone-bands" => format!("a device of kind {kind} keeps its size: make a new pool on a larger one"),
            "parity" | "mirror" => {
                let parts = if kind == "mirror" { "legs" } else { "members" };
                format!(
                    "make the device larger first: remuda device resize {capacity} SIZE where its {parts} are files, otherwise all of \
                     them where they come from; none may be failed, being caught up or rebuilt"
                )
            }
            _ => enlarge("device", &capacity),
        };
        let of_log = match &def.log {
            LogDef::Device(log) => enlarge("log", log),
            LogDef::Pmem { path, .. } => format!("'{path}' cannot be enlarged: make a new pool with a larger log"),
        };
        let grown: Result<_, Refusal> = grown.await?;
        let bytes = grown?.map_err(|error| {
            let next = match &error {
                PoolError::Plan { error: PlanError::IndexFull { .. }, .. } => &of_log,
                PoolError::Plan { error: PlanError::GrownUp(_), .. } => {
                    "'snapshot export' and 'snapshot import' take volumes to a larger one"
                }
                _ => next.as_str(),
            };
            pool_refused(name, error, next)
        })?;
        tracing::info!(pool = name, bytes, "pool has grown");
        self.pool_show(name).await
    }

    /// Whether a device may get another size as far as the pool that stands on it is concerned.
    pub(super) fn check_pool_resize(&self, device: &str, size: u64, below: &str) -> Result<(), Refusal> {
        let Some(pool) = self.pool_on(device) else { return Ok(()) };
        let slot = self.pool_slot(pool)?;
        slot.check_free()?;
        let def = &slot.def;
        let is_log = matches!(&def.log, LogDef::Device(log) if log == device);
        if is_log && slot.is_hot() {
            let next = format!(
                "another one can take its place after 'pool settle {pool}', without a loss: 'remuda docs pools', at 'Another log \
                 device', says how"
            );
            return Err(Refusal::conflict(
                below,
                format!("it is the log of pool '{pool}', which keeps its size"),
                next,
            ));
        }
        let now = self.open_device(device)?.info().bytes();
        if size < now {
            let cause = format!("pool '{pool}' stands on it, and a pool does not shrink below {}", ByteSize(now));
            return Err(Refusal::conflict(below, cause, "move its volumes to another pool"));
        }
        Ok(())
    }

    /// Begins to read every block of every volume of a pool in the background, or goes on where that was stopped; of a scrub
    /// that runs it changes the pace.
    pub async fn pool_scrub(&mut self, name: &str, bytes_per_second: u64) -> Result<ScrubView, Refusal> {
        self.check_running()?;
        let open = self.open_pool_of(name)?;
        if bytes_per_second == 0 {
            let next = "use --stop to stop it";
            return Err(Refusal::invalid(object(name), "a scrub at a rate of nothing would not end", next));
        }
        let pool = open.pool.clone();
        on_reactor_async(self.reactors.first(), move |reactor| async move {
            pool.scrub(&reactor, bytes_per_second).await;
        })
        .await?;
        tracing::info!(pool = name, bytes_per_second, "scrub begun");
        self.follow_scrub(name, Some(bytes_per_second)).await;
        self.pool_scrub_status(name).await
    }

    /// Stops a scrub.
    pub async fn pool_scrub_stop(&mut self, name: &str) -> Result<ScrubView, Refusal> {
        let open = self.open_pool_of(name)?;
        // One that has ended just now has ended.
        self.note_scrubs().await;
        let pool = open.pool.clone();
        on_reactor_async(self.reactors.first(), move |reactor| async move {
            pool.cancel_scrub(&reactor).await;
        })
        .await?;
        self.follow_scrub(name, None).await;
        self.pool_scrub_status(name).await
    }

    /// How far the scrub of a pool is, and what it has found.
    pub async fn pool_scrub_status(&self, name: &str) -> Result<ScrubView, Refusal> {
        let open = self.open_pool_of(name)?;
        let status = self.status_of(&open).await;
        let status = status.ok_or_else(|| Refusal::failed(object(name), "it does not answer", "restart the node"))?;
        let view = ScrubView::of(&status, &open.pool);
        Ok(ScrubView { ended_s: self.scrub_ended_s(name, &open, view.state), ..view })
    }
}
