//! The reference of the RPC interface, from the table that requests are checked against.

use super::methods::METHODS;
use super::{BATCH_MAX, CLIENTS_MAX, INVALID_REQUEST, LINE_BYTES_MAX, METHOD_NOT_FOUND, PARSE_ERROR};
use crate::node::RefusalKind;
use std::fmt::Write as _;

/// What refusals of each kind are about.
const KINDS: &[(RefusalKind, &str)] = &[
    (RefusalKind::Invalid, "a parameter is missing, unknown or wrong"),
    (RefusalKind::Failed, "it was tried and did not succeed"),
    (RefusalKind::NotFound, "there is no such object"),
    (
        RefusalKind::Conflict,
        "how things are does not allow it: it exists, is in use, or is defined in the configuration file",
    ),
    (RefusalKind::NoSpace, "there is not enough room"),
    (RefusalKind::Stopping, "the node is stopping"),
];

/// Markdown text about the transport, the errors and every method.
pub fn markdown() -> String {
    let mut out = format!(
        "# The RPC interface\n\n\
         JSON-RPC 2.0 over a UNIX socket (`rpc_socket` in `[node]`), one JSON text per line in each direction: at most {LINE_BYTES_MAX} bytes \
         a line, {BATCH_MAX} requests a batch, {CLIENTS_MAX} clients at once. Only the node's own user can connect. `remuda rpc METHOD PARAMS` sends \
         a request, `rpc.discover` answers what stands here as JSON, and the command line uses nothing else.\n\n\
         ```console\n$ remuda rpc volume.show '{{\"name\": \"v0\"}}'\n\
         $ printf '%s\\n' '{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"stats\"}}' | socat - UNIX-CONNECT:$REMUDA_SOCKET\n```\n\n\
         ## Errors\n\n\
         An error has a message for people, and in `data` its parts: `kind`, `object`, `cause`, and what to do `next`.\n\n\
         | code | meaning |\n|---|---|\n\
         | {PARSE_ERROR} | the line is not JSON |\n\
         | {INVALID_REQUEST} | the JSON is not a request |\n\
         | {METHOD_NOT_FOUND} | there is no such method |\n"
    );
    for (kind, meaning) in KINDS {
        let _ = writeln!(out, "| {} | {meaning} |", kind.rpc_code());
    }
    let _ = writeln!(
        out,
        "\n## Methods\n\nWhat changes something is recorded in the audit log (see [running.md](running.md))."
    );
    for method in METHODS {
        let changes = if method.changes { "" } else { " Changes nothing." };
        let _ = writeln!(out, "\n### `{}`\n\n{}{changes}", method.name, method.doc);
        if !method.params.is_empty() {
            let _ = writeln!(out, "\n| parameter | value | default | meaning |\n|---|---|---|---|");
        }
        for param in method.params {
            let _ =
                writeln!(out, "| `{}` | {} | {} | {} |", param.name, param.form.describe(), param.default, param.doc);
        }
    }
    out
}
