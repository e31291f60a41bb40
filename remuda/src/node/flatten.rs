//! Flattening volumes of pools: what a clone shows of other volumes becomes its own, in the background of its pool. The node
//! remembers nothing of it.

use super::Node;
use super::refusal::Refusal;
use engine::{FlattenState, FlattenStatus};
use serde::{Deserialize, Serialize};

/// Whether a volume is being flattened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlattenWord {
    /// It was not since its pool was opened.
    #[default]
    None,
    /// It is under way.
    Running,
    /// It was stopped before its end; what was copied stays.
    Stopped,
    /// It has failed, see `trouble`; what was copied stays.
    Failed,
    /// The volume depends on no other one.
    Done,
}

/// How far the flattening of a volume is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlattenView {
    /// The volume.
    pub volume: String,
    /// How it is, in a word.
    pub state: FlattenWord,
    /// Extents of 4 MiB passed.
    pub extents_done: u64,
    /// Extents to pass.
    pub extents_total: u64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Blocks of 4 KiB that could not be read where they come from.
    pub lost_blocks: u64,
    /// Why it fails, or has failed.
    pub trouble: Option<String>,
}

impl FlattenView {
    pub(super) fn of(volume: &str, status: Option<FlattenStatus>) -> FlattenView {
        let Some(status) = status else {
            return FlattenView { volume: volume.to_string(), ..FlattenView::default() };
        };
        FlattenView {
            volume: volume.to_string(),
            state: match status.state {
                FlattenState::Running => FlattenWord::Running,
                FlattenState::Stopped => FlattenWord::Stopped,
                FlattenState::Failed => FlattenWord::Failed,
                FlattenState::Done => FlattenWord::Done,
            },
            extents_done: status.extents_done,
            extents_total: status.extents_total,
            copied_bytes: status.copied_bytes,
            lost_blocks: status.lost_blocks,
            trouble: status.trouble,
        }
    }

    /// The part that is done, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.extents_done as f64 / self.extents_total.max(1) as f64
    }
}

impl Node {
    /// Begins to make a volume in a pool independent of what it was cloned from.
    pub async fn volume_flatten(&mut self, name: &str) -> Result<FlattenView, Refusal> {
        self.check_running()?;
        if self.volume_flatten_status(name).await?.state == FlattenWord::Running {
            let next = format!("see 'remuda volume flatten {name} --status'");
            return Err(Refusal::conflict(format!("volume '{name}'"), "it is being flattened already", next));
        }
        let (pool, volume) = (self.pool_of_volume(name)?, name.to_string());
        let status =
            self.in_pool(&pool, "", move |pool, reactor| async move { pool.flatten(&reactor, &volume).await }).await?;
        tracing::info!(volume = name, pool, "flattening begun");
        Ok(FlattenView::of(name, Some(status)))
    }

    /// Has it stop, soon; the next one goes on from there.
    pub async fn volume_flatten_stop(&mut self, name: &str) -> Result<FlattenView, Refusal> {
        let (pool, volume) = (self.pool_of_volume(name)?, name.to_string());
        let stop = move |pool: std::sync::Arc<engine::Pool>, reactor| async move {
            pool.stop_flatten(&reactor, &volume).await
        };
        let status = self.in_pool(&pool, "", stop).await?;
        Ok(FlattenView::of(name, Some(status)))
    }

    /// How far it is.
    pub async fn volume_flatten_status(&self, name: &str) -> Result<FlattenView, Refusal> {
        let (pool, volume) = (self.pool_of_volume(name)?, name.to_string());
        let ask = move |pool: std::sync::Arc<engine::Pool>, reactor| async move {
            pool.flatten_status(&reactor, &volume).await
        };
        Ok(FlattenView::of(name, self.in_pool(&pool, "", ask).await?))
    }
}
