//! A node that runs already.

use super::Finding;
use crate::node::view::StatusView;
use crate::rpc::client::{CallError, Client};
use serde_json::json;
use std::io::ErrorKind;
use std::path::Path;

/// Whether a node answers, and what it says of itself.
pub(super) fn check(socket: &Path) -> (bool, Vec<Finding>) {
    let shown = socket.display();
    let asked = Client::connect(socket).and_then(|mut client| client.call("node.status", json!({})));
    let status = match asked {
        Ok(value) => serde_json::from_value::<StatusView>(value).map_err(|error| error.to_string()),
        Err(CallError::Unreachable { error, .. }) => {
            return match error.kind() {
                ErrorKind::NotFound => (false, vec![Finding::ok("node", format!("none runs at {shown}"))]),
                ErrorKind::ConnectionRefused => {
                    (false, vec![Finding::ok("node", format!("none runs at {shown}; one has left its socket there"))])
                }
                ErrorKind::PermissionDenied => {
                    let next = "run this as the user of the node, or as root";
                    (true, vec![Finding::problem("node", format!("{shown} belongs to somebody else"), next)])
                }
                _ => {
                    let next = "see the node's log";
                    (true, vec![Finding::problem("node", format!("no answer at {shown}: {error}"), next)])
                }
            };
        }
        Err(CallError::Refused(refusal)) => Err(refusal.to_string()),
        Err(CallError::Garbled(what)) => Err(what),
        Err(CallError::Stream(error)) => Err(error.to_string()),
    };
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let next = "use the program that the node was started with, or restart the node";
            return (
                true,
                vec![Finding::problem("node", format!("the answer at {shown} makes no sense: {error}"), next)],
            );
        }
    };
    let mut findings = vec![Finding::ok("node", format!("one runs at {shown}, pid {}", status.pid))];
    if status.version != env!("CARGO_PKG_VERSION") {
        let found = format!("it is version {}, this program is {}", status.version, env!("CARGO_PKG_VERSION"));
        findings.push(Finding::note("node", found, "restart it to bring it up to date"));
    }
    let warnings = status.warnings.iter().map(|warning| Finding::problem("node", warning.clone(), ""));
    findings.extend(warnings);
    (true, findings)
}
