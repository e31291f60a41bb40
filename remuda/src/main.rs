//! Remuda in one binary: the node, and the command line that talks to it.

mod bench;
mod cli;
mod clock;
mod config;
mod console;
mod demo;
mod doctor;
mod http;
mod log;
mod node;
mod offline;
mod open_files;
mod rpc;
mod serve;
mod simulate;
mod sys;
mod under_way;

fn main() {
    std::process::exit(cli::main());
}
