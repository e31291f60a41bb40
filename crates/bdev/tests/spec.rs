//! Devices made from descriptions.

use crate::common::*;
use bdev::{
    BlockDevice, Built, ChecksumOptions, DeviceInfo, DeviceSpec, EncryptOptions, Extent, Limits, MirrorOptions,
    ParityOptions, UserKey, ZoneBandsOptions, ZonedOptions, build, plan,
};
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

#[test]
fn what_is_planned_is_what_is_made() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move {
        let create = true;
        let key = UserKey::from_file_content(&[b'a'; 64]).unwrap();
        let encrypt = DeviceSpec::Encrypt { key, options: EncryptOptions { create, ..EncryptOptions::default() } };
        let mirror = DeviceSpec::Mirror(MirrorOptions { create, ..MirrorOptions::default() });
        let parity = |chunk_bytes: u64, head_bytes: u64| {
            DeviceSpec::Parity(ParityOptions { create, chunk_bytes, head_bytes, ..ParityOptions::default() })
        };
        let zoned = |zone_bytes: u64, capacity_bytes: u64| {
            let limited = ZonedOptions { open_zones_max: 3, active_zones_max: 5, ..ZonedOptions::default() };
            DeviceSpec::Zoned(ZonedOptions { create, zone_bytes, capacity_bytes, ..limited })
        };
        let bands = DeviceSpec::ZoneBands(ZoneBandsOptions { create, ..ZoneBandsOptions::default() });
        let checksum = DeviceSpec::Checksum(ChecksumOptions { create, ..ChecksumOptions::default() });
        // Which devices below, by number, each stands on.
        let cases: Vec<(DeviceSpec, Vec<usize>)> = vec![
            (parity(0, 0), vec![0, 1, 2]),
            (parity(8192, 300_000), vec![0, 1, 2, 3]),
            (parity(512 << 10, 0), vec![0, 1, 2]),
            (parity(6000, 0), vec![0, 1, 2]),
            (parity(0, 100 << 20), vec![0, 1, 2]),
            (parity(0, 0), vec![0, 1, 4]),
            (parity(0, 0), vec![0, 1, 5]),
            (zoned(1 << 20, 0), vec![0]),
            (zoned(1 << 20, 300 << 10), vec![3]),
            (zoned(64 << 20, 0), vec![0]),
            (bands.clone(), vec![1, 5]),
            (bands.clone(), vec![5, 1]),
            (bands, vec![4, 5]),
            (mirror.clone(), vec![0, 1]),
            (mirror, vec![0, 4]),
            (DeviceSpec::Stripe { chunk_bytes: 65536 }, vec![0, 3, 1]),
            (DeviceSpec::Stripe { chunk_bytes: 6000 }, vec![0, 1]),
            (checksum, vec![0]),
            (encrypt, vec![2]),
            (DeviceSpec::RateLimit(Limits::default()), vec![0]),
        ];
        let mem = |block_size: u32, bytes: u64| DeviceSpec::Mem { block_size, bytes, bytes_max: 0 };
        for (spec, on) in cases {
            let below = [mem(4096, 16 << 20), mem(4096, 18 << 20), mem(4096, 80 << 20), mem(4096, 6 << 20)];
            let below = below.into_iter().chain([mem(512, 16 << 20), mem(4096, 16 << 20)]);
            let mut devices = Vec::new();
            for (index, spec) in below.enumerate() {
                let made = build(&inner, &format!("d{index}"), &spec, vec![]).await.unwrap().device();
                assert_eq!(plan(&spec, &[]), Some(Ok(made.info())));
                devices.push(made);
            }
            devices[5] = build(&inner, "z", &zoned(1 << 20, 0), vec![Some(devices[5].clone())]).await.unwrap().device();
            let named: Vec<(&str, DeviceInfo)> =
                on.iter().map(|at| (devices[*at].name(), devices[*at].info())).collect();
            let planned = plan(&spec, &named).expect("it can be planned");
            let made = build(&inner, "d", &spec, on.iter().map(|at| Some(devices[*at].clone())).collect()).await;
            match (made, planned) {
                (Ok(made), Ok(planned)) => assert_eq!(planned, made.device().info(), "{spec:?} on {on:?}"),
                // What it cannot be made of is told by who makes it, in the same words.
                (Err(error), Err(reason)) => assert!(error.to_string().contains(&reason), "{error} {reason}"),
                (made, planned) => panic!("{spec:?} on {on:?}: {:?} {planned:?}", made.err()),
            }
        }
    });
}
