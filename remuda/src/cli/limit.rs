//! `remuda limit`.

use super::exit::Failure;
use super::{Context, output};
use crate::config::limit::Rates;
use crate::node::view::LimitView;
use base::ByteSize;
use clap::{ArgGroup, Subcommand};
use serde_json::{Value, json};

#[derive(Subcommand)]
pub enum LimitCommand {
    /// Limit how much a host may do, or how much may be done to a volume
    #[command(group(ArgGroup::new("rates").required(true).multiple(true).args(["iops", "bandwidth"])), after_help = "\
The limit of a host is over all of its connections and subsystems, that of a volume over all who use it. What is not given is
not limited. It takes effect at once and is remembered.

Examples:
  remuda limit set --host nqn.2014-08.org.nvmexpress:uuid:... --iops 5000 --bandwidth 100MiB
  remuda limit set --volume v0 --bandwidth 50MiB")]
    Set {
        #[command(flatten)]
        of: LimitOf,
        /// Operations each second
        #[arg(long)]
        iops: Option<u64>,
        /// Bytes each second, such as 100MiB
        #[arg(long)]
        bandwidth: Option<String>,
    },
    /// Take a limit away
    Remove {
        #[command(flatten)]
        of: LimitOf,
    },
    /// List limits
    List,
}

/// A host or a volume.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct LimitOf {
    /// The host's NQN
    #[arg(long, value_name = "NQN")]
    host: Option<String>,
    /// The volume
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
}

impl LimitOf {
    fn params(self) -> Value {
        match (self.host, self.volume) {
            (Some(host), _) => json!({ "host": host }),
            (None, volume) => json!({ "volume": volume }),
        }
    }
}

fn rates(limit: &LimitView) -> [String; 2] {
    let iops = limit.iops.map_or("-".to_string(), output::count);
    let bandwidth = limit.bandwidth.map_or("-".to_string(), |bandwidth| format!("{}/s", ByteSize(bandwidth)));
    [iops, bandwidth]
}

fn name(limit: &LimitView) -> [String; 2] {
    match (&limit.host, &limit.volume) {
        (Some(host), _) => ["host".to_string(), host.clone()],
        (None, volume) => ["volume".to_string(), volume.clone().unwrap_or_default()],
    }
}

pub fn limit(context: &Context, command: LimitCommand) -> Result<(), Failure> {
    match command {
        LimitCommand::Set { of, iops, bandwidth } => {
            let mut params = of.params();
            if let Some(iops) = iops {
                params["iops"] = json!(iops);
            }
            if let Some(bandwidth) = bandwidth {
                params["bandwidth"] = json!(bandwidth);
            }
            context.call_and_show("limit.set", params, |limit: LimitView| {
                let ([what, name], [iops, bandwidth]) = (name(&limit), rates(&limit));
                let text = format!("{what} '{name}': operations a second {iops}, bandwidth {bandwidth}");
                let warning = Rates { iops: limit.iops, bandwidth: limit.bandwidth }.warning();
                warning.into_iter().fold(text, |text, warning| format!("{text}\nwarning: {warning}"))
            })
        }
        LimitCommand::Remove { of } => context.call_and_show("limit.remove", of.params(), |limit: LimitView| {
            let [what, name] = name(&limit);
            format!("limit removed: {what} '{name}'")
        }),
        LimitCommand::List => context.call_and_show("limit.list", json!({}), |limits: Vec<LimitView>| {
            let rows = limits.iter().map(|limit| {
                let origin = format!("{:?}{}", limit.origin, if limit.differs_from_file { ", changed" } else { "" });
                let ([what, name], [iops, bandwidth]) = (name(limit), rates(limit));
                vec![what, name, iops, bandwidth, origin.to_lowercase()]
            });
            output::table(&["OF", "NAME", ">IOPS", ">BANDWIDTH", "ORIGIN"], rows.collect())
        }),
    }
}
