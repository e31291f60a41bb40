//! Devices made from descriptions.

mod common;

use bdev::{
    BlockDevice, Built, ChecksumOptions, DeviceSpec, EncryptOptions, Extent, Limits, MirrorOptions, UserKey, build,
};
use common::*;
use std::sync::Arc;

#[test]
fn a_stack_is_built_bottom_up_and_settles() {
    let reactor = reactor();
    let inner = reactor.clone();
    let top = reactor.block_on(async move {
        let mem = DeviceSpec::Mem { block_size: 4096, bytes: 4 << 20, bytes_max: 0 };
        let mut legs: Vec<Option<Arc<dyn BlockDevice>>> = Vec::new();
        for name in ["a", "b"] {
            let leg = build(&inner, name, &mem, vec![]).await.unwrap().device();
            let spec = DeviceSpec::Checksum(ChecksumOptions { create: true, ..ChecksumOptions::default() });
            legs.push(Some(build(&inner, name, &spec, vec![Some(leg)]).await.unwrap().device()));
        }
        let mirror = DeviceSpec::Mirror(MirrorOptions { create: true, ..MirrorOptions::default() });
        let mirror = build(&inner, "mirror", &mirror, legs).await.unwrap();
        let Built::Mirror(device) = &mirror else { panic!("a mirror") };
        while device.status().resync_left_regions > 0 {
            inner.sleep_ns(1_000_000).await;
        }
        let key = UserKey::from_file_content(&[b'a'; 64]).unwrap();
        let options = EncryptOptions { create: true, ..EncryptOptions::default() };
        let mut device = mirror.device();
        let window = vec![Extent { child: 0, start: 1, blocks: 800 }];
        for spec in [
            DeviceSpec::Linear(window),
            DeviceSpec::Encrypt { key, options },
            DeviceSpec::RateLimit(Limits::default()),
            DeviceSpec::Delay { delays: Default::default(), seed: 1 },
            DeviceSpec::Error { rules: vec![], seed: 1 },
            DeviceSpec::RemoteCore,
        ] {
            device = build(&inner, "layer", &spec, vec![Some(device)]).await.unwrap().device();
        }
        mirror.settle(&inner).await.unwrap();
        device
    });
    conforms(&reactor, top, |options| options.random_ops = 200);
}

#[test]
fn wrong_descriptions_say_what_is_wrong() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let refused =
            async |spec: DeviceSpec, children| build(&inner, "d", &spec, children).await.err().unwrap().to_string();
        assert!(refused(DeviceSpec::RemoteCore, vec![]).await.contains("expected 1"));
        assert!(
            refused(DeviceSpec::Stripe { chunk_bytes: 1000 }, vec![Some(mem("m", 10))]).await.contains("whole blocks")
        );
        assert!(refused(DeviceSpec::Stripe { chunk_bytes: 4096 }, vec![None]).await.contains("absent"));
        let missing = DeviceSpec::File(bdev::FileDeviceOptions::new("/nonexistent/file"));
        assert!(refused(missing, vec![]).await.contains("check the path"));
    });
}
