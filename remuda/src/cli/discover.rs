//! `remuda discover`: what a target's discovery service tells a host, and the namespaces of what it names.
//!
//! Asks any NVMe/TCP target, ours or another's, and needs no node. Referrals are shown and not followed.

use super::exit::{Exit, Failure};
use super::remote::{HostArgs, TargetAddress};
use super::{Context, output};
use crate::config::NVMF_PORT;
use crate::config::host_key::{read_dhchap_key, read_tls_key};
use crate::node::Refusal;
use crate::node::reactors::{END_MAX_NS, Reactors};
use base::ByteSize;
use clap::Args;
use nvme::auth::HostKeys;
use nvme::host::DiscoveredSubsystem;
use nvme::initiator::{ConnectError, HostIdentity, ListedNamespace, Options, discover, list_namespaces};
use nvme::spec::Nqn;
use reactor::ReactorConfig;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use uuid::Uuid;

/// Where discovery services listen by convention (NVMe/TCP's port registered for discovery).
const DISCOVERY_PORT: u16 = 8009;

/// See the module.
#[derive(Args)]
pub struct DiscoverArgs {
    /// The discovery service: its address or name [default port: 8009, or else 4420]
    #[arg(value_name = "ADDR[:PORT]")]
    address: TargetAddress,
    /// Connect to each subsystem, and list its namespaces; ends with 1 where that fails
    #[arg(long)]
    namespaces: bool,
    /// Ask by TLS: the port takes nothing else
    #[arg(long, requires = "tls_key")]
    tls: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// An entry of the discovery log, and what was found behind it.
struct Entry {
    said: DiscoveredSubsystem,
    /// Its namespaces, or why they cannot be seen; `None` where nobody looked.
    namespaces: Option<Result<Vec<ListedNamespace>, String>>,
}

/// Carries the command out.
pub fn run(context: &Context, args: &DiscoverArgs) -> Result<(), Failure> {
    args.host.check()?;
    let options = options(args, args.address.ip()?)?;
    let reactors = Reactors::start_with(vec![None], ReactorConfig::default(), END_MAX_NS);
    let reactors = reactors.map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let (service, said) = ask(&reactors, args, &options)?;
    let mut entries = Vec::new();
    for said in said {
        let namespaces = (args.namespaces && said.is_nvm).then(|| look(&reactors, &options, service.ip(), &said));
        entries.push(Entry { said, namespaces });
    }
    if context.json {
        let entries: Vec<Value> = entries.iter().map(|entry| entry.to_json(service.ip())).collect();
        let host_nqn = options.host.nqn.as_str();
        output::print_json(&json!({ "service": service.to_string(), "host_nqn": host_nqn, "entries": entries }));
    } else {
        output::print_line(&text(service, &options.host.nqn, &entries));
    }
    // Everything has been said by now; whoever goes by the exit code is told as well.
    match entries.iter().any(|entry| matches!(entry.namespaces, Some(Err(_)))) {
        true => Err(Failure::quiet(Exit::Failed)),
        false => Ok(()),
    }
}

/// As whom everything is asked; address and subsystem are filled in later.
fn options(args: &DiscoverArgs, ip: IpAddr) -> Result<Options, Failure> {
    let unread = |(cause, next): (String, String)| Failure::from(Refusal::failed("this host", cause, next));
    let read = |file: &Option<String>| file.as_deref().map(read_dhchap_key).transpose().map_err(unread);
    let (key, controller) = (read(&args.host.dhchap_key)?, read(&args.host.dhchap_ctrl_key)?);
    let mut host = HostIdentity::from_uuid(Uuid::new_v4());
    if let Some(text) = &args.host.host_nqn {
        host.nqn = Nqn::new(text).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    }
    Ok(Options {
        keys: key.map(|key| HostKeys { controller, ..HostKeys::new(key) }),
        tls: args.host.tls_key.as_deref().map(read_tls_key).transpose().map_err(unread)?,
        ..Options::new(SocketAddr::new(ip, DISCOVERY_PORT), Nqn::discovery(), host)
    })
}

/// Reads the discovery log where it is, at the port that was named or else at those where it can be expected.
fn ask(
    reactors: &Reactors,
    args: &DiscoverArgs,
    options: &Options,
) -> Result<(SocketAddr, Vec<DiscoveredSubsystem>), Failure> {
    let ports = args.address.port.map_or(vec![DISCOVERY_PORT, NVMF_PORT], |port| vec![port]);
    let mut failures: Vec<String> = Vec::new();
    for port in ports {
        let mut options = Options { address: SocketAddr::new(options.address.ip(), port), ..options.clone() };
        if !args.tls {
            options.tls = None;
        }
        // Discovery services seldom have keys of their own to prove.
        options.keys = options.keys.map(|keys| HostKeys { controller: None, ..keys });
        let address = options.address;
        let asked = reactors.first().call_async(move |reactor| async move { discover(&reactor, &options).await });
        match asked.ok_or_else(|| Failure::new(Exit::Failed, "the reactor has ended"))? {
            Ok(said) => return Ok((address, said)),
            Err(error) => failures.push(error.to_string()),
        }
    }
    let next = match (args.address.port, args.tls) {
        (None, _) => "name the port of a target that runs there: remuda discover ADDR:PORT",
        (Some(_), false) => "check address and port; a port that takes TLS alone needs --tls --tls-key FILE",
        (Some(_), true) => "check address, port and key; without --tls it is asked without encryption",
    };
    let object = format!("discovery service of {}", options.address.ip());
    Err(Refusal::failed(object, failures.join("; "), next).into())
}

/// The namespaces of a subsystem that the service named.
fn look(
    reactors: &Reactors,
    options: &Options,
    asked: IpAddr,
    said: &DiscoveredSubsystem,
) -> Result<Vec<ListedNamespace>, String> {
    let address = address(asked, said).ok_or("its address is of another kind than this host can reach")?;
    if said.needs_tls && options.tls.is_none() {
        return Err("it takes TLS alone: give this host's key with --tls-key FILE".to_string());
    }
    let tls = options.tls.clone().filter(|_| said.needs_tls);
    let options = Options { address, subsystem: said.nqn.clone(), tls, ..options.clone() };
    let listed = reactors.first().call_async(move |reactor| async move { list_namespaces(&reactor, &options).await });
    let hint = |error: ConnectError| match &error {
        ConnectError::Authentication { .. } => format!("{error}; give this host's key with --dhchap-key FILE"),
        _ => error.to_string(),
    };
    listed.ok_or("the reactor has ended")?.map_err(hint)
}

/// Where a subsystem is; a target that says "everywhere" means where it was asked.
fn address(asked: IpAddr, said: &DiscoveredSubsystem) -> Option<SocketAddr> {
    let ip: IpAddr = said.address.parse().ok()?;
    Some(SocketAddr::new(if ip.is_unspecified() { asked } else { ip }, said.service.parse().ok()?))
}

impl Entry {
    fn kind(&self) -> &'static str {
        match self.said {
            DiscoveredSubsystem { is_nvm: true, .. } => "nvm",
            DiscoveredSubsystem { is_referral: true, .. } => "referral",
            _ => "discovery",
        }
    }

    fn tls(&self) -> &'static str {
        if self.said.needs_tls { "required" } else { "not required" }
    }

    fn place(&self, asked: IpAddr) -> String {
        let said = || format!("{}:{}", self.said.address, self.said.service);
        address(asked, &self.said).map_or_else(said, |address| address.to_string())
    }

    fn to_json(&self, asked: IpAddr) -> Value {
        let mut entry = json!({
            "nqn": self.said.nqn.as_str(), "kind": self.kind(), "address": self.place(asked), "port_id": self.said.port_id,
            "transport": "tcp", "tls": self.tls(),
        });
        match &self.namespaces {
            None => {}
            Some(Ok(listed)) => entry["namespaces"] = listed.iter().map(namespace_json).collect(),
            Some(Err(reason)) => entry["error"] = json!(reason),
        }
        entry
    }
}

fn namespace_json(one: &ListedNamespace) -> Value {
    let mut namespace =
        json!({ "nsid": one.nsid, "uuid": uuid(one), "nguid": nguid(one), "ana": one.ana.map(|ana| ana.name()) });
    match &one.info {
        Ok(info) => {
            namespace["size"] = json!(bytes(info));
            namespace["block_size"] = json!(1u64 << info.identity.block_shift);
            namespace["zoned"] = json!(info.zoned.is_some());
        }
        Err(error) => namespace["error"] = json!(error.to_string()),
    }
    namespace
}

fn bytes(info: &nvme::initiator::NamespaceInfo) -> u64 {
    info.identity.block_count.saturating_mul(1 << info.identity.block_shift)
}

fn uuid(one: &ListedNamespace) -> Option<String> {
    one.ids.uuid.map(|uuid| Uuid::from_bytes(uuid).to_string())
}

fn nguid(one: &ListedNamespace) -> Option<String> {
    one.ids.nguid.map(|nguid| Uuid::from_bytes(nguid).simple().to_string())
}

fn text(service: SocketAddr, host: &Nqn, entries: &[Entry]) -> String {
    let asked = service.ip();
    let row = |entry: &Entry| {
        vec![entry.said.nqn.to_string(), entry.place(asked), entry.kind().to_string(), entry.tls().to_string()]
    };
    let mut text = output::table(&["NQN", "ADDRESS", "KIND", "TLS"], entries.iter().map(row).collect());
    if !entries.iter().any(|entry| entry.said.is_nvm) {
        text += &format!(
            "\n\n{service} names no subsystem to host {host}: one that may connect to some is named with --host-nqn"
        );
    }
    for entry in entries {
        let Some(found) = &entry.namespaces else { continue };
        text += &format!("\n\n{} at {}", entry.said.nqn, entry.place(asked));
        match found {
            Err(reason) => text += &format!(": {reason}"),
            Ok(listed) if listed.is_empty() => text += " shows no namespace to this host",
            Ok(listed) => {
                let headings = [">NSID", ">SIZE", ">BLOCK", "UUID", "NGUID", "ACCESS"];
                text += "\n";
                text += &output::table(&headings, listed.iter().map(namespace_row).collect());
            }
        }
    }
    text
}

fn namespace_row(one: &ListedNamespace) -> Vec<String> {
    let dash = || "-".to_string();
    let (size, block, trouble) = match &one.info {
        Ok(info) => (ByteSize(bytes(info)).to_string(), (1u64 << info.identity.block_shift).to_string(), String::new()),
        Err(error) => (dash(), dash(), format!(" ({error})")),
    };
    let access = one.ana.map_or("-", |ana| ana.name());
    let (uuid, nguid) = (uuid(one).unwrap_or_else(dash), nguid(one).unwrap_or_else(dash));
    vec![one.nsid.to_string(), size, block, uuid, nguid, format!("{access}{trouble}")]
}
