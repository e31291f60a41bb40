//! How much hosts may do, and how much may be done to volumes: from the configuration and from commands, into force at once.
//!
//! A volume always has a rate limit in front of it, which lets everything through while there is no limit. Hosts are held back
//! by the target.

use super::refusal::Refusal;
use super::state::LimitRecord;
use super::view::LimitView;
use super::{Node, OBJECTS_MAX, Origin, RefusalKind};
use crate::config::check_nqn;
use crate::config::limit::{Limited, Rates};
use bdev::{BlockDevice, Limits, RateLimitDevice, StatsDevice};
use std::sync::{Arc, Weak};

/// A tenth of a second at the limit may be used at once after a pause.
const BURST_NS: u64 = 100_000_000;

fn limits(rates: Rates) -> Limits {
    let (iops, bytes_per_second) = (rates.iops.unwrap_or(0), rates.bandwidth.unwrap_or(0));
    Limits { iops, bytes_per_second, burst_ns: BURST_NS }
}

impl Node {
    fn configured_rates(&self, of: &Limited) -> Option<Rates> {
        self.config.limits.iter().find(|entry| entry.of.value == *of).map(|entry| entry.rates)
    }

    /// The limits of something: those of a command, unless the file has been told others since.
    fn rates(&self, of: &Limited) -> Rates {
        let configured = self.configured_rates(of);
        let record = self.state.limits.iter().find(|record| record.of == *of && record.configured == configured);
        record.map(|record| record.rates).or(configured).unwrap_or_default()
    }

    /// A volume with its limits and counters in front of it.
    pub(super) fn served(&mut self, name: &str, volume: Arc<dyn BlockDevice>) -> Arc<StatsDevice> {
        let rates = self.rates(&Limited::Volume(name.to_string()));
        let limiter = Arc::new(RateLimitDevice::new(name, volume, limits(rates)));
        self.limiters.insert(name.to_string(), Arc::downgrade(&limiter));
        Arc::new(StatsDevice::new(limiter))
    }

    /// Puts the limits of hosts into force.
    pub(super) async fn announce_limits(&mut self) -> Result<(), Refusal> {
        for of in self.limited() {
            self.apply_limit(&of).await?;
        }
        Ok(())
    }

    async fn apply_limit(&self, of: &Limited) -> Result<(), Refusal> {
        let limits = limits(self.rates(of));
        match of {
            Limited::Host(host) => self.exporter.limit(host, limits).await,
            Limited::Volume(name) => {
                if let Some(limiter) = self.limiters.get(name).and_then(Weak::upgrade) {
                    limiter.set(limits);
                }
                Ok(())
            }
        }
    }

    /// What the file or a command has ever said something about.
    fn limited(&self) -> Vec<Limited> {
        let configured = self.config.limits.iter().map(|entry| entry.of.value.clone());
        let mut all: Vec<_> = configured.chain(self.state.limits.iter().map(|record| record.of.clone())).collect();
        all.sort();
        all.dedup();
        all
    }

    /// All limits that there are.
    pub fn limit_list(&self) -> Vec<LimitView> {
        let views = self.limited().into_iter().map(|of| self.limit_view(&of));
        views.filter(|view| view.iops.is_some() || view.bandwidth.is_some()).collect()
    }

    fn limit_view(&self, of: &Limited) -> LimitView {
        let (Rates { iops, bandwidth }, configured) = (self.rates(of), self.configured_rates(of));
        let (host, volume) = match of {
            Limited::Host(host) => (Some(host.clone()), None),
            Limited::Volume(volume) => (None, Some(volume.clone())),
        };
        let origin = if configured.is_some() { Origin::Config } else { Origin::Runtime };
        let differs_from_file = configured.is_some_and(|configured| configured != self.rates(of));
        LimitView { host, volume, iops, bandwidth, origin, differs_from_file }
    }

    /// Limits something to these rates; none is no limit.
    pub async fn limit_set(&mut self, of: Limited, rates: Rates) -> Result<LimitView, Refusal> {
        self.check_running()?;
        match &of {
            Limited::Host(host) => check_nqn(host).map_err(|reason| Refusal::invalid(of.to_string(), reason, ""))?,
            Limited::Volume(name) if self.place_of_volume(name).is_none() => {
                let known = self.volumes.keys().map(String::as_str);
                return Err(Refusal::not_found("volume", name, known));
            }
            Limited::Volume(_) => {}
        }
        let configured = self.configured_rates(&of);
        let mut state = self.state.clone();
        state.limits.retain(|record| record.of != of);
        if configured.unwrap_or_default() != rates {
            state.limits.push(LimitRecord { of: of.clone(), rates, configured });
        }
        if state.limits.len() > OBJECTS_MAX {
            let cause = format!("there are {OBJECTS_MAX} limits already");
            return Err(Refusal::new(RefusalKind::Conflict, of.to_string(), cause, "remove some first"));
        }
        self.remember(state)?;
        self.apply_limit(&of).await?;
        tracing::info!(%of, iops = rates.iops, bandwidth = rates.bandwidth, "limit set");
        Ok(self.limit_view(&of))
    }

    /// Limits something no longer; it has to be limited.
    pub async fn limit_remove(&mut self, of: Limited) -> Result<LimitView, Refusal> {
        if self.rates(&of) == Rates::default() {
            if let Limited::Volume(name) = &of
                && self.place_of_volume(name).is_none()
            {
                return Err(Refusal::not_found("volume", name, self.volumes.keys().map(String::as_str)));
            }
            let (object, cause) = (format!("limit of {of}"), "there is none; nothing was changed");
            return Err(Refusal::new(RefusalKind::NotFound, object, cause, "see 'remuda limit list'"));
        }
        self.limit_set(of, Rates::default()).await
    }

    /// A volume is gone for good, and what a command limited it to.
    pub(super) fn forget_limit(&mut self, volume: &str) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        state.limits.retain(|record| record.of != Limited::Volume(volume.to_string()));
        self.limiters.remove(volume);
        if state == self.state { Ok(()) } else { self.remember(state) }
    }
}
