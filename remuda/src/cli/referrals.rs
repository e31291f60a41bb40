//! `remuda referral`: other discovery services that hosts are told of.

use super::exit::Failure;
use super::{Context, output};
use crate::node::view::ReferralView;
use clap::Subcommand;
use serde_json::json;

/// See the module.
#[derive(Subcommand)]
pub enum ReferralCommand {
    /// Tell hosts that ask for discovery of another discovery service
    #[command(after_help = "Example:\n  remuda referral add 192.0.2.2:8009")]
    Add {
        /// Its address
        address: String,
    },
    /// Tell hosts of it no longer
    Remove {
        /// Its address
        address: String,
    },
    /// List referrals
    List,
}

/// Carries a command out.
pub fn referral(context: &Context, command: ReferralCommand) -> Result<(), Failure> {
    let (method, params) = match command {
        ReferralCommand::Add { address } => ("referral.add", json!({ "address": address })),
        ReferralCommand::Remove { address } => ("referral.remove", json!({ "address": address })),
        ReferralCommand::List => ("referral.list", json!({})),
    };
    context.call_and_show(method, params, |referrals: Vec<ReferralView>| {
        let rows = referrals.into_iter().map(|one| vec![one.address, format!("{:?}", one.origin).to_lowercase()]);
        output::table(&["ADDRESS", "ORIGIN"], rows.collect())
    })
}
