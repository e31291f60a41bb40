//! What to do when a target does not let this host in: which name, which key, which command.

use nvme::initiator::{AuthenticationError, CommandError, ConnectError};
use nvme::spec::Status;
use nvme::tls::TlsFailure;

/// The next step after `host` could not connect to the subsystem `nqn`.
pub fn connect_hint(error: &ConnectError, host: &str, nqn: &str) -> String {
    let allow = format!("on a Remuda target: remuda host allow {nqn} {host}");
    match error {
        ConnectError::Authentication { error: AuthenticationError::NoKey, .. } => {
            format!(
                "the key is the one that the target has for host {host}, in a file; {allow} --dhchap-key FILE sets it"
            )
        }
        ConnectError::Authentication { error: AuthenticationError::Refused(_), .. } => {
            format!(
                "both sides need the same key for host {host}; {allow} --dhchap-key FILE, with the file that dhchap_key names"
            )
        }
        ConnectError::Authentication { error: AuthenticationError::Distrusted(_), .. } => {
            format!(
                "both sides need the same key of the target towards host {host}; {allow} --dhchap-key FILE --dhchap-ctrl-key \
                 FILE, with the files that dhchap_key and dhchap_ctrl_key name"
            )
        }
        ConnectError::Connect { error: CommandError::Status(status), .. }
            if status.kind() == Status::CONNECT_INVALID_HOST =>
        {
            format!("allow host {host} there, and connect by TLS if it has a key for that; {allow}")
        }
        ConnectError::Tls { failure: TlsFailure::Protocol(_) | TlsFailure::Closed, .. } => {
            format!(
                "both sides need the same key for host {host}; {allow} --tls-key FILE, with the file that tls_key names"
            )
        }
        _ => "check address, nqn and that the target allows this host".to_string(),
    }
}
