//! The reference of the configuration file and an example, both from the tables that the reader uses.

use super::ana::ANA;
use super::device::{KINDS, keys_of};
use super::host_key::HOST_KEY;
use super::limit::LIMIT;
use super::pool::{POOL, POOL_PMEM};
use super::section::Key;
use super::{NAMESPACE, NODE, NVMF, SUBSYSTEM, VHOST, VOLUME};
use std::fmt::Write as _;

/// Markdown text about every section and key.
pub fn markdown() -> String {
    let mut out = String::from(
        "# The configuration file\n\nTOML. Sizes take units (`4KiB`, `10GiB`, `1TB`), durations too (`50us`, `10s`). Relative \
         paths are relative to the file. Check a file with `remuda config check FILE`.\n",
    );
    section(&mut out, "## `[node]`", "The node itself.", NODE);
    section(&mut out, "## `[nvmf]`", "The NVMe/TCP target.", NVMF);
    let _ = writeln!(out, "\n## `[[device]]`\n\nOnce per device: `name`, `kind`, and the keys of its kind.");
    for (kind, doc, keys) in KINDS {
        section(&mut out, &format!("### kind = \"{kind}\""), doc, keys);
    }
    let about = "A pool: writes go to a log on fast media and from there to a capacity device; volumes in it are thin. It is \
                 made when both devices are blank. See [pools.md](pools.md).";
    section(&mut out, "## `[pool.NAME]`", about, POOL);
    section(&mut out, "### `log` in persistent memory", "", POOL_PMEM);
    let about = "A volume is a contiguous part of a device, or all of it, or a thin volume in a pool.";
    section(&mut out, "## `[[volume]]`", about, VOLUME);
    section(&mut out, "## `[[subsystem]]`", "What NVMe/TCP hosts connect to.", SUBSYSTEM);
    section(&mut out, "### `host_keys`", "Each entry, see [security.md](security.md):", HOST_KEY);
    section(&mut out, "### `namespaces`", "Each entry:", NAMESPACE);
    section(&mut out, "### `ana`", "Each entry; what is not listed is optimized:", ANA);
    let about = "What a virtual machine on this machine has as a disk, over vhost-user-blk. See [vhost.md](vhost.md).";
    section(&mut out, "## `[[vhost]]`", about, VHOST);
    let about = "How much a host may do, or how much may be done to a volume. See [watching.md](watching.md).";
    section(&mut out, "## `[[limit]]`", about, LIMIT);
    out
}

fn section(out: &mut String, title: &str, doc: &str, keys: &[Key]) {
    let _ = writeln!(out, "\n{title}\n\n{doc}\n\n| key | value | default | meaning |\n|---|---|---|---|");
    for key in keys {
        let _ = writeln!(out, "| `{}` | {} | {} | {} |", key.name, key.form.describe(), key.default, key.doc);
    }
}

/// The keys of one kind of device, for a terminal.
pub fn kind_text(kind: &str) -> Option<String> {
    let (_, doc, _) = KINDS.iter().find(|(name, _, _)| *name == kind)?;
    let mut out = format!("{kind}: {doc}\n");
    for key in keys_of(kind)? {
        let _ = writeln!(
            out,
            "  {:<14} {}\n  {:<14}   {}; default: {}",
            key.name,
            key.doc,
            "",
            key.form.describe(),
            key.default
        );
    }
    Some(out)
}

/// A file to start from.
pub const EXAMPLE: &str = r#"# A Remuda node. Check with: remuda config check FILE; run with: remuda serve --config FILE

[node]
state_dir = "state"
rpc_socket = "remuda.sock"
reactors = 1
poll_policy = "adaptive"
metrics_listen = "127.0.0.1:9420"

[nvmf]
listen = ["127.0.0.1:4420"]

[[device]]
name = "disk0"
kind = "file"
path = "disk0.img"
size = "1GiB"

[[device]]
name = "disk1"
kind = "file"
path = "disk1.img"
size = "1GiB"

[[device]]
name = "pair"
kind = "stripe"
devices = ["disk0", "disk1"]
chunk = "64KiB"

[[volume]]
name = "scratch"
device = "pair"
size = "512MiB"

[[subsystem]]
nqn = "nqn.2026-11.io.remuda:example"
allow_any_host = true
namespaces = ["scratch"]
"#;
