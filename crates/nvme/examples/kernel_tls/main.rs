//! Does for a Linux kernel what it leaves to user space when it speaks NVMe/TCP over TLS: puts keys into its keyring, and
//! carries out the handshakes that it asks for. For the guests of `tests/interop`; on a machine of your own use tlshd of ktls-utils.
//!
//! * `kernel_tls serve`: handshakes, as a client for the kernel's host and as a server for its target, until it is killed
//! * `kernel_tls insert FORM HOST SUBSYSTEM KEY`: derives the key of a connection from a configured one (`NVMeTLSkey-1:...`) and
//!   puts it into the kernel's keyring `.nvme`; prints its serial number. FORM: `1`; `0`: an identity without digest;
//!   `1-early`, `0-early`: as nvme-cli derived keys up to libnvme 1.14
//! * `kernel_tls forget`: empties that keyring
//!
//! Only keys come from the crate: handshakes are carried out by OpenSSL directly, so that nothing of our side of the connection
//! is on the other side too.

mod handshake;
mod keys;
mod ktls;
mod netlink;

use std::process::ExitCode;

const USAGE: &str = "usage: kernel_tls serve | insert 1|0|1-early|0-early HOST SUBSYSTEM KEY | forget";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["serve"] => serve(),
        ["insert", form, host, subsystem, key] => {
            keys::insert(form, host, subsystem, key).map(|serial| println!("{}", serial.0))
        }
        ["forget"] => keys::forget(),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("kernel_tls: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Each handshake has a thread: a peer that says nothing must not keep the others waiting.
fn serve() -> Result<(), String> {
    keys::possess()?;
    let (service, listener) = (netlink::Service::open()?, netlink::Listener::join()?);
    println!("kernel_tls: ready");
    loop {
        listener.wait()?;
        while let Some(request) = service.accept()? {
            std::thread::spawn(move || {
                let outcome = handshake::carry_out(&request);
                match &outcome {
                    Ok(done) => println!("kernel_tls: {done}"),
                    Err(failure) => println!("kernel_tls: failed: {failure}"),
                }
                let told = netlink::Service::open().and_then(|service| service.done(&request, &outcome));
                if let Err(what) = told {
                    println!("kernel_tls: {what}");
                }
            });
        }
    }
}
