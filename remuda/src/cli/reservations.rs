//! `remuda reservation`: what hosts have reserved, and the end of what a host that is gone has left.

use super::exit::Failure;
use super::{Context, output};
use crate::node::view::{ReservationView, ReservedView};
use clap::Subcommand;
use serde_json::json;

/// See the module.
#[derive(Subcommand)]
pub enum ReservationCommand {
    /// List reservations and the hosts that have registered
    List {
        /// One subsystem only
        nqn: Option<String>,
    },
    /// End the reservation of a namespace and all registrations, or those of one host
    #[command(after_help = "\
For hosts that are gone for good: those that live are told, and have to register again before they may write. A host that is
evicted and lives is told too; nothing keeps it from registering again.

Examples:
  remuda reservation clear v0
  remuda reservation clear nqn.2026-11.io.remuda:disks/1 --host nqn.2014-08.org.nvmexpress:uuid:...")]
    Clear {
        /// The namespace as NQN/NSID, or the volume that it shows
        #[arg(value_name = "NAMESPACE|VOLUME")]
        namespace: String,
        /// End the registration of this host only: its NQN or host identifier
        #[arg(long, value_name = "HOST")]
        host: Option<String>,
    },
}

/// Carries a command out.
pub fn reservation(context: &Context, command: ReservationCommand) -> Result<(), Failure> {
    match command {
        ReservationCommand::List { nqn } => {
            let params = nqn.map_or(json!({}), |nqn| json!({ "nqn": nqn }));
            context.call_and_show("reservation.list", params, |reserved: Vec<ReservedView>| {
                if reserved.is_empty() {
                    return "no host has registered".to_string();
                }
                let shown = reserved.iter().map(|one| {
                    let namespace = format!("{}/{} (volume '{}')", one.nqn, one.reservation.nsid, one.volume);
                    show(&namespace, &one.reservation)
                });
                shown.collect::<Vec<_>>().join("\n\n")
            })
        }
        ReservationCommand::Clear { namespace, host } => {
            let mut params = json!({ "target": namespace });
            if let Some(host) = &host {
                params["host"] = json!(host);
            }
            context.call_and_show("reservation.clear", params, |left: ReservedView| {
                let name = format!("{}/{}", left.nqn, left.reservation.nsid);
                match (host, left.reservation.registrants.is_empty()) {
                    (None, true) => format!("{name} is not reserved, and no host is registered"),
                    (Some(host), true) => format!("ended the registration of {host}; {name} has no other"),
                    (Some(host), false) => {
                        format!("ended the registration of {host}\n{}", show(&name, &left.reservation))
                    }
                    (None, false) => format!("cleared; hosts have registered anew\n{}", show(&name, &left.reservation)),
                }
            })
        }
    }
}

/// What is reserved of a namespace.
pub fn show(namespace: &str, reservation: &ReservationView) -> String {
    let held = reservation.kind.as_deref().unwrap_or("registrations only");
    let lasts = if reservation.persistent { ", kept over restarts" } else { "" };
    let rows = reservation.registrants.iter().map(|one| {
        let holder = if one.holder { "holder" } else { "" };
        let name = one.host_nqn.clone().unwrap_or("-".to_string());
        vec![one.host_id.to_string(), name, one.key.clone(), holder.to_string()]
    });
    let hosts = output::table(&["HOST ID", "HOST", ">KEY", "RESERVATION"], rows.collect());
    format!("{namespace} is reserved: {held}{lasts}\n{hosts}")
}
