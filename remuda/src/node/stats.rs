//! Counters for `stats`.

use super::Node;
use serde_json::{Value, json};

impl Node {
    /// Counters of reactors and the target.
    pub async fn stats(&self) -> Value {
        let reactors = self.reactors.meters().into_iter().enumerate().map(|(index, meter)| {
            let counters = meter.read();
            json!({
                "index": index,
                "turns": counters.turns,
                "busy_ns": counters.busy_ns,
                "spin_ns": counters.spin_ns,
                "sleep_ns": counters.sleep_ns,
                "sleeps": counters.sleeps,
            })
        });
        let export = self.exporter.counters().await;
        json!({
            "reactors": reactors.collect::<Vec<_>>(),
            "nvmf": {
                "connections": export.connections,
                "hosts": export.hosts,
            },
        })
    }
}
