//! A reactor on the Linux driver for the calling thread, which turns it. Other crates' tests include this file by its path.

use reactor::linux::LinuxDriver;
use reactor::{Reactor, ReactorConfig};
use std::rc::Rc;

pub fn reactor() -> Rc<Reactor> {
    let driver = LinuxDriver::new().expect("io_uring is available");
    Reactor::new(0, Rc::new(driver), ReactorConfig::default())
}
