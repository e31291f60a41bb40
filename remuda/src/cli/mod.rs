//! The command line.

mod bundle;
mod cache;
mod config_commands;
mod device_text;
mod discover;
mod docs;
pub mod exit;
mod flatten;
mod help;
mod hosts;
mod keys;
mod limit;
mod objects;
pub mod out_file;
pub mod output;
mod poll;
mod pool_care;
mod pool_top;
mod pool_written;
mod pools;
mod referrals;
pub mod remote;
mod reservations;
mod sim;
mod snapshots;
mod status;
mod streams;
mod top;
mod vhost;
mod volumes;
mod watch;

use crate::bench;
use crate::config;
use crate::demo;
use crate::doctor;
use crate::node::view::LogLevelView;
use crate::rpc::client::Client;
use clap::builder::PossibleValuesParser;
use clap::{ArgGroup, FromArgMatches, Parser, Subcommand};
use exit::{EXIT_CODES, Exit, Failure};
pub use objects::{connect_line, key_values};
use std::path::{Path, PathBuf};

/// User-mode storage: devices, volumes and NVMe/TCP in one program.
#[derive(Parser)]
#[command(name = "remuda", version, after_help = EXIT_CODES, disable_help_subcommand = false)]
struct Cli {
    /// The node's RPC socket; 'serve' and 'dev' listen there [default: $REMUDA_SOCKET, else $XDG_RUNTIME_DIR/remuda.sock, else /tmp/remuda-UID.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run a node in the foreground
    #[command(after_help = "\
Logs go to standard error. Who changed what by command or RPC is recorded in audit.log in the state directory: state_dir of [node] in
the file, shown by 'remuda status'. SIGTERM or SIGHUP drains, flushes and ends the node.

Example:
  remuda config example > node.toml
  remuda serve --config node.toml

More: remuda docs running, remuda docs config")]
    Serve {
        /// Configuration file; see 'remuda docs config'
        #[arg(long, value_name = "FILE")]
        config: String,
        /// Stop when standard input ends
        #[arg(long, hide = true)]
        stop_with_stdin: bool,
    },
    /// Run a node on files in a directory, and print what to type next
    Dev(demo::dev::DevArgs),
    /// Show it working: write over NVMe/TCP, kill the node, start it again, verify
    #[command(after_help = "Example:\n  remuda demo --from ~/photos --size-limit 1GiB")]
    Demo(demo::DemoArgs),
    /// Show how the node is; exits with 1 when hosts do not get what they should
    Status,
    /// Stop the node: drain, flush, end
    Stop,
    /// Devices: what stores blocks
    #[command(subcommand)]
    Device(objects::DeviceCommand),
    /// Pools: a log on fast media in front of what stores blocks
    #[command(subcommand)]
    Pool(pools::PoolCommand),
    /// Volumes: parts of devices or pools that can be exported
    #[command(subcommand)]
    Volume(volumes::VolumeCommand),
    /// Snapshots of volumes in pools
    #[command(subcommand)]
    Snapshot(snapshots::SnapshotCommand),
    /// Subsystems: what NVMe/TCP hosts connect to
    #[command(subcommand)]
    Subsystem(objects::SubsystemCommand),
    /// How much hosts may do, and how much may be done to volumes
    #[command(subcommand)]
    Limit(limit::LimitCommand),
    /// Doors for virtual machines on this machine: vhost-user-blk sockets
    #[command(subcommand)]
    Vhost(vhost::VhostCommand),
    /// Hosts: who may connect
    #[command(subcommand)]
    Host(objects::HostCommand),
    /// List what an NVMe/TCP target, ours or another's, has for a host
    #[command(after_help = "\
Examples:
  remuda discover 192.0.2.1
  remuda discover 192.0.2.1:4420 --namespaces
  remuda discover 192.0.2.1:4420 --namespaces --host-nqn \"$(cat /etc/nvme/hostnqn)\" --dhchap-key host.key")]
    Discover(discover::DiscoverArgs),
    /// Other discovery services that hosts are told of
    #[command(subcommand)]
    Referral(referrals::ReferralCommand),
    /// Reservations of hosts, and the end of those whose hosts are gone
    #[command(subcommand)]
    Reservation(reservations::ReservationCommand),
    /// Keys with which hosts and nodes authenticate each other
    #[command(subcommand)]
    Key(keys::KeyCommand),
    /// The configuration file: check, example, reference
    #[command(subcommand)]
    Config(config_commands::ConfigCommand),
    /// Find what is in a node's way on this machine, and what to do about it
    #[command(after_help = "Example:\n  remuda doctor --config node.toml")]
    Doctor(doctor::DoctorArgs),
    /// Show what a running node logs, or change it
    LogLevel {
        /// The new level [default: show the present one]
        #[arg(value_parser = ["error", "warn", "info", "debug", "trace"])]
        level: Option<String>,
    },
    /// Counters and latencies of a running node
    Stats,
    /// Watch a node work: reactors, volumes, devices, hosts
    Top {
        #[command(flatten)]
        watch: watch::Watch,
    },
    /// For somebody who is to help: what a node and its machine say of themselves
    #[command(subcommand)]
    Debug(DebugCommand),
    /// Call an RPC method: remuda rpc METHOD '{"name": "v0"}'
    #[command(group(ArgGroup::new("which").required(true).args(["method", "reference"])))]
    Rpc {
        /// Method; 'rpc.discover' lists them
        method: Option<String>,
        /// Parameters, a JSON object
        #[arg(default_value = "{}")]
        params: String,
        /// Print every method and parameter, as Markdown
        #[arg(long)]
        reference: bool,
    },
    /// Load a device or an NVMe/TCP target and measure it; writing loads destroy what is there
    #[command(subcommand, after_help = bench::WHAT_IS_DESTROYED)]
    Bench(bench::BenchCommand),
    /// The simulator: scenarios under faults, reproduced by seed
    #[command(subcommand)]
    Sim(sim::SimCommand),
    /// Print a page on running a node, or list them
    Docs {
        /// The page
        #[arg(value_parser = PossibleValuesParser::new(docs::names()))]
        topic: Option<String>,
    },
    /// Print shell completions
    #[command(after_help = "Example:\n  remuda completions bash > ~/.local/share/bash-completion/completions/remuda")]
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages, one for each command
    #[command(after_help = "Example:\n  remuda man /usr/local/share/man/man1")]
    Man {
        /// Directory that they go to
        dir: PathBuf,
    },
    /// Print the version
    Version,
}

#[derive(Subcommand)]
enum DebugCommand {
    /// Write it all to one archive; no data, no keys
    #[command(after_help = "\
Of a node that does not run, the archive has the configuration, the audit log, what the node remembers, the headers of its pools
and what the doctor finds; and it says what could not be had.

Examples:
  remuda debug bundle
  remuda debug bundle --config /etc/remuda/node.toml /tmp/for-support.tar.gz      no node is running")]
    Bundle {
        /// The archive [default: remuda-debug-TIME.tar.gz]
        file: Option<PathBuf>,
        /// The node's configuration file [default: the one that the running node names]
        #[arg(long, value_name = "FILE")]
        config: Option<String>,
    },
}

/// Writes a page for each command, as `man` finds them: `remuda-pool-create.1`.
fn man(context: &Context, dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(help::command(), dir)).map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot write man pages to '{}': {error}", dir.display()))
    })?;
    if context.json {
        output::print_json(&serde_json::json!({ "dir": dir }));
    } else {
        output::print_line(&format!("man pages are in {}; try: man -l {}/remuda.1", dir.display(), dir.display()));
    }
    Ok(())
}

fn log_level_text(log: LogLevelView) -> String {
    match log.level == log.configured {
        true => format!("log level is {}", log.level),
        false => format!("log level is {}; the configuration file says {}", log.level, log.configured),
    }
}

const GUIDE: &str = "\
Remuda: user-mode storage in one program.

Try it now, nothing to set up:
  remuda demo                          write, kill, restart, verify; about a minute
  remuda dev                           a node to play with, and what to type next

Run a node:
  remuda config example > node.toml    a file to start from
  remuda config check node.toml        what is wrong with it
  remuda doctor --config node.toml     what this machine lacks for it
  remuda serve --config node.toml      run it

Talk to it:
  remuda status
  remuda device create d0 --kind mem size=1GiB
  remuda volume create v0 --device d0 --size 512MiB
  remuda pool create hot --log fast0 --capacity big0
  remuda volume create v1 --pool hot --size 10GiB
  remuda subsystem create nqn.2026-11.io.remuda:disks --allow-any-host
  remuda subsystem add-namespace nqn.2026-11.io.remuda:disks v0

'remuda help' lists all commands, 'remuda help COMMAND' explains one, 'remuda docs' has pages on running a node.";

/// Reads the command line, does what it says, and gives the exit code.
pub fn main() -> i32 {
    let read = help::command().try_get_matches();
    let read =
        read.and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut help::command())));
    let cli = match read {
        Ok(cli) => cli,
        Err(error) => not_understood(&error),
    };
    let Some(command) = cli.command else {
        output::print_line(GUIDE);
        return 0;
    };
    let context = Context { socket: cli.socket, json: cli.json };
    match run(&context, command) {
        Ok(()) => 0,
        Err(failure) => failure.report(context.json),
    }
}

/// Ends the process with what the parser has to say: help, or what is wrong with the command line.
fn not_understood(error: &clap::Error) -> ! {
    // The parser has given up, so that it cannot be asked.
    let as_json = std::env::args_os().skip(1).take_while(|word| word != "--").any(|word| word == "--json");
    if as_json && error.use_stderr() {
        let text = error.render().to_string();
        let message = text.split("\n\nUsage:").next().unwrap_or(&text).trim().trim_start_matches("error: ");
        output::print_json(&Failure::new(Exit::Usage, message).json);
    }
    error.exit()
}

/// What every command knows.
pub struct Context {
    socket: Option<PathBuf>,
    /// `--json` was given.
    pub json: bool,
}

impl Context {
    /// What `--socket` says, wherever this process goes.
    pub fn given_socket(&self) -> Option<PathBuf> {
        self.socket.as_ref().map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()))
    }

    /// The node's socket.
    pub fn socket(&self) -> PathBuf {
        let from_env = || std::env::var_os("REMUDA_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.socket.clone().or_else(from_env).unwrap_or_else(config::default_socket)
    }

    /// Calls the node.
    pub fn call(&self, method: &str, params: serde_json::Value) -> Result<serde_json::Value, Failure> {
        Ok(Client::connect(&self.socket())?.call(method, params)?)
    }

    /// Calls the node, and shows the result as JSON or as `show` puts it.
    pub fn call_and_show<T: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        params: serde_json::Value,
        show: impl FnOnce(T) -> String,
    ) -> Result<(), Failure> {
        let result = self.call(method, params)?;
        if self.json {
            output::print_json(&result);
            return Ok(());
        }
        output::print_line(&show(understood(result)?));
        Ok(())
    }

    /// Calls the node, shows the result, and fails without a word when it is not as `is_well` wants it.
    pub fn call_and_judge<T: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        params: serde_json::Value,
        show: impl FnOnce(&T) -> String,
        is_well: impl FnOnce(&T) -> bool,
    ) -> Result<(), Failure> {
        let result = self.call(method, params)?;
        let view = understood(result.clone())?;
        self.judge(&result, &view, show, is_well)
    }

    /// The same with a result that is there, and has been understood.
    pub fn judge<T>(
        &self,
        result: &serde_json::Value,
        view: &T,
        show: impl FnOnce(&T) -> String,
        is_well: impl FnOnce(&T) -> bool,
    ) -> Result<(), Failure> {
        if self.json {
            output::print_json(result);
        } else {
            output::print_line(&show(view));
        }
        if is_well(view) { Ok(()) } else { Err(Failure::quiet(Exit::Failed)) }
    }
}

/// What a node has answered; a node of another version may say something else.
fn understood<T: serde::de::DeserializeOwned>(answer: serde_json::Value) -> Result<T, Failure> {
    let other = |error| Failure::new(Exit::Failed, format!("the node is another version of this program: {error}"));
    serde_json::from_value(answer).map_err(other)
}

fn run(context: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve { config, stop_with_stdin } => {
            crate::serve::serve(&config, context.given_socket().as_deref(), stop_with_stdin, |_, _| {})
        }
        Command::Dev(args) => demo::dev::run(args, context.given_socket().as_deref()),
        Command::Demo(args) => demo::run(context, args),
        Command::Status => status::status(context),
        Command::Stop => status::stop(context),
        Command::Device(command) => objects::device(context, command),
        Command::Pool(command) => pools::pool(context, command),
        Command::Volume(command) => volumes::volume(context, command),
        Command::Snapshot(command) => snapshots::snapshot(context, command),
        Command::Subsystem(command) => objects::subsystem(context, command),
        Command::Key(command) => keys::key(context, command),
        Command::Limit(command) => limit::limit(context, command),
        Command::Vhost(command) => vhost::vhost(context, command),
        Command::Host(command) => objects::host(context, command),
        Command::Discover(args) => discover::run(context, &args),
        Command::Referral(command) => referrals::referral(context, command),
        Command::Reservation(command) => reservations::reservation(context, command),
        Command::Config(command) => config_commands::run(context, command),
        Command::Doctor(args) => doctor::run(context, &args),
        Command::LogLevel { level: None } => context.call_and_show("log.level", serde_json::json!({}), log_level_text),
        Command::LogLevel { level: Some(level) } => {
            let text = format!("log level is now {level}");
            context.call_and_show("log.set_level", serde_json::json!({ "level": level }), |_: serde_json::Value| text)
        }
        Command::Stats => status::stats(context),
        Command::Top { watch } => top::top(context, &watch),
        Command::Rpc { reference: true, .. } => {
            output::print_text(context, &crate::rpc::reference::markdown());
            Ok(())
        }
        Command::Rpc { method, params, .. } => {
            let method = method.unwrap_or_default();
            let wrong = |error| Failure::new(Exit::Usage, format!("the parameters are not JSON: {error}"));
            let params = serde_json::from_str(&params).map_err(wrong)?;
            output::print_json(&context.call(&method, params)?);
            Ok(())
        }
        Command::Bench(command) => bench::run(context, command),
        Command::Sim(command) => sim::run(context, command),
        Command::Docs { topic } => docs::docs(context, topic.as_deref()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut help::command(), "remuda", &mut script);
            output::print_text(context, &String::from_utf8_lossy(&script));
            Ok(())
        }
        Command::Debug(DebugCommand::Bundle { file, config }) => bundle::bundle(context, file, config),
        Command::Man { dir } => man(context, &dir),
        Command::Version => {
            let version = env!("CARGO_PKG_VERSION");
            if context.json {
                output::print_json(&serde_json::json!({ "version": version }));
            } else {
                output::print_line(&format!("remuda {version}"));
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        help::command().debug_assert();
    }
}
