//! libblkio on a door.

use crate::blkio_client::{Client, use_everything};
use crate::common::{Host, memory_device, until};

#[test]
fn libblkio_uses_a_door_for_all_that_it_can_do() {
    let host = Host::new(memory_device(16));
    use_everything(&host.socket(), 16 << 20);
    until("the door to be free", || host.status().peer.is_none());
    let totals = host.status().totals;
    assert_eq!((totals.stopped, totals.flushes, totals.discards), (0, 1, 3));
    // The next program meets the same disk.
    let mut client = Client::start(&host.socket(), 1);
    assert_eq!(client.read(0, 49152, 16384), (0, vec![7; 16384]));
}

#[test]
fn libblkio_is_told_that_a_disk_is_read_only() {
    let host = Host::with(memory_device(1), true);
    let mut blkio = blkio::Blkio::new("virtio-blk-vhost-user").unwrap();
    blkio.set_str("path", host.socket().to_str().unwrap()).unwrap();
    blkio.connect().unwrap();
    assert!(blkio.start().is_err(), "it wants to be told that the disk is only read");
    blkio.set_bool("read-only", true).unwrap_err();
}
