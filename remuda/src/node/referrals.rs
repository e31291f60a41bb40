//! Referrals: other discovery services that this node's own one tells hosts of.

use super::refusal::Refusal;
use super::view::ReferralView;
use super::{Node, Origin};
use crate::config::parse_address;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Referrals at most.
pub const REFERRALS_MAX: usize = 64;

impl Node {
    /// Those of the configuration, and those given at run time.
    fn referrals(&self) -> BTreeSet<SocketAddr> {
        self.config.nvmf.referrals.iter().chain(&self.state.referrals).copied().collect()
    }

    /// Tells the target.
    pub(super) async fn announce_referrals(&self) -> Result<(), Refusal> {
        self.exporter.refer(self.referrals().into_iter().collect()).await
    }

    /// All referrals.
    pub fn referral_list(&self) -> Vec<ReferralView> {
        let view = |address: SocketAddr| {
            let is_configured = self.config.nvmf.referrals.contains(&address);
            let origin = if is_configured { Origin::Config } else { Origin::Runtime };
            ReferralView { address: address.to_string(), origin }
        };
        self.referrals().into_iter().map(view).collect()
    }

    /// Tells hosts of another discovery service.
    pub async fn referral_add(&mut self, address: &str) -> Result<Vec<ReferralView>, Refusal> {
        self.check_running()?;
        let object = format!("referral '{address}'");
        let address = parse_address(address).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
        let known = self.referrals();
        if known.contains(&address) {
            return Err(Refusal::conflict(object, "it is there already", ""));
        }
        if known.len() >= REFERRALS_MAX {
            return Err(Refusal::conflict(object, format!("there are {REFERRALS_MAX} already"), "remove some first"));
        }
        let mut state = self.state.clone();
        state.referrals.insert(address);
        self.remember(state)?;
        self.announce_referrals().await?;
        Ok(self.referral_list())
    }

    /// Tells hosts of it no longer.
    pub async fn referral_remove(&mut self, address: &str) -> Result<Vec<ReferralView>, Refusal> {
        self.check_running()?;
        let object = format!("referral '{address}'");
        let parsed = parse_address(address).map_err(|reason| Refusal::invalid(&object, reason, ""))?;
        if self.config.nvmf.referrals.contains(&parsed) {
            return Err(self.belongs_to_config(object));
        }
        let mut state = self.state.clone();
        if !state.referrals.remove(&parsed) {
            let known: Vec<String> = state.referrals.iter().map(SocketAddr::to_string).collect();
            return Err(Refusal::not_found("referral", address, known.iter().map(String::as_str)));
        }
        self.remember(state)?;
        self.announce_referrals().await?;
        Ok(self.referral_list())
    }
}
