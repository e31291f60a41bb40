//! TLS between this crate's host and target, and an independent client: the conformance suite, wrong keys, the wrong kind of
//! listener, peers that are slow, hostile or silent.

use nvme::spec::Nqn;
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TargetError, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};

const NQN: &str = "nqn.2024-01.org.example:vault";

fn runtime(reactors: usize) -> Runtime {
    Runtime::start(&RuntimeConfig { cores: vec![None; reactors], ..RuntimeConfig::default() }).unwrap()
}

#[test]
fn a_build_without_tls_says_so() {
    let runtime = runtime(1);
    let target = TcpTarget::new(runtime.handles(), Config::default());
    let listening = target.call(|home| {
        home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).unwrap()))?;
        home.listen_tls("127.0.0.1:0".parse().unwrap())
    });
    assert_eq!(listening.is_ok(), nvme::tls::IS_BUILT);
    if let Err(error) = listening {
        let said = error.to_string();
        assert!(matches!(error, TargetError::Tls { .. }) && said.contains("--features tls"), "{said}");
    }
    target
        .call(|home| {
            home.close();
            Ok(())
        })
        .unwrap();
}

#[cfg(feature = "tls")]
mod built {
    use super::*;
    use bdev::{BlockDevice, Io, Lba, MemDevice, conformance};
    use nvme::auth::Hash;
    use nvme::initiator::{CommandError, ConnectError, HostIdentity, NvmfDevice, Options, Replay, discover};
    use nvme::spec::Status;
    use nvme::tls::{Form, Psk, TlsFailure, TlsKey};
    use reactor::SgList;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::process::{Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};
    use uuid::Uuid;

    const SECOND_NS: u64 = 1_000_000_000;

    struct Bench {
        runtime: Runtime,
        target: TcpTarget,
        encrypted: SocketAddr,
        plain: SocketAddr,
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            let ended = self.target.call(|home| {
                home.close();
                Ok(())
            });
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }

    fn psk(seed: u8) -> Arc<Psk> {
        let hash = if seed.is_multiple_of(2) { Hash::Sha384 } else { Hash::Sha256 };
        Arc::new(Psk::generate(hash, &mut |bytes| bytes.fill(seed)))
    }

    fn identity(number: u128) -> HostIdentity {
        HostIdentity::from_uuid(Uuid::from_u128(number))
    }

    /// A target on all reactors but the last, which is the host's. Host 1 has these keys, the others none.
    fn start(reactors: usize, keys: Vec<Arc<Psk>>, config: Config) -> Bench {
        let runtime = runtime(reactors);
        let target = TcpTarget::new(&runtime.handles()[..reactors - 1], config);
        let device = Arc::new(MemDevice::new("mem", 4096, 8192, 16_384).unwrap());
        let listening = target.call(move |home| {
            home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).unwrap()))?;
            home.add_namespace(NQN, None, device, Uuid::from_u128(7))?;
            home.set_host_psks(NQN, identity(1).nqn.as_str(), keys, 3600 * SECOND_NS)?;
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            Ok((home.listen_tls(any)?, home.listen(any)?))
        });
        let (encrypted, plain) = listening.unwrap();
        Bench { runtime, target, encrypted, plain }
    }

    fn options(address: SocketAddr, host: u128, key: Option<Arc<Psk>>) -> Options {
        Options { tls: key, replay: Replay::Exclusive, ..Options::new(address, Nqn::new(NQN).unwrap(), identity(host)) }
    }

    /// Connects and writes a block.
    fn try_out(bench: &Bench, options: Options) -> Result<(), ConnectError> {
        let handle = bench.runtime.handles().last().unwrap();
        let done = handle.call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await?;
            let channel = device.open_channel(&reactor).unwrap();
            let mut buf = reactor.pool().alloc(4096).await;
            buf.as_mut_slice().fill(7);
            let done = channel.submit(Io::write(Lba(1), 1, SgList::from_iter([buf]))).await;
            assert!(done.status.is_ok(), "{}", done.status);
            drop(channel);
            device.close().await;
            Ok(())
        });
        done.unwrap()
    }

    #[test]
    fn the_remote_device_passes_the_conformance_suite() {
        for (seed, digests, reactors) in [(1, false, 2), (2, true, 3)] {
            let bench = start(reactors, vec![psk(seed)], Config::default());
            let options = options(bench.encrypted, 1, Some(psk(seed)));
            let options = Options { header_digest: digests, data_digest: digests, ..options };
            let outcome = bench.runtime.handles()[reactors - 1].call_async(move |reactor| async move {
                let device = Arc::new(NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap());
                let as_block_device: Arc<dyn BlockDevice> = device.clone();
                let outcome = conformance::run(&reactor, &as_block_device, conformance::Options::new(11)).await;
                drop(as_block_device);
                device.close().await;
                outcome.map_err(|failure| failure.to_string())
            });
            assert_eq!(outcome, Some(Ok(())), "key {seed}");
        }
    }

    #[test]
    fn hosts_with_the_key_connect_and_others_learn_why_not() {
        let bench = start(2, vec![psk(1), psk(4)], Config::default());
        for good in [1, 4] {
            assert_eq!(try_out(&bench, options(bench.encrypted, 1, Some(psk(good)))), Ok(()), "{good}");
        }
        let failure = |outcome| match outcome {
            Err(ConnectError::Tls { failure, .. }) => failure,
            other => panic!("{other:?}"),
        };
        for (host, key) in [(1, 3), (1, 2), (2, 1)] {
            let said = failure(try_out(&bench, options(bench.encrypted, host, Some(psk(key)))));
            assert!(matches!(said, TlsFailure::Protocol(_)), "{said}");
        }
        // Each the wrong kind of listener.
        let outcome = try_out(&bench, options(bench.encrypted, 1, None));
        assert!(matches!(outcome, Err(ConnectError::Negotiation { .. })), "{outcome:?}");
        assert_eq!(failure(try_out(&bench, options(bench.plain, 1, Some(psk(1))))), TlsFailure::NotTls);
        // The host has a key: without it the name is nobody's.
        match try_out(&bench, options(bench.plain, 1, None)) {
            Err(ConnectError::Connect { error: CommandError::Status(status), .. }) => {
                assert_eq!(status.kind(), Status::CONNECT_INVALID_HOST.kind());
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(try_out(&bench, options(bench.plain, 2, None)), Ok(()), "a host without a key needs none there");
    }

    #[test]
    fn another_key_counts_from_the_next_connection_on_and_those_that_exist_stay() {
        let bench = start(2, vec![psk(1)], Config::default());
        let by_first = options(bench.encrypted, 1, Some(psk(1)));
        // The writes that may be done on the first connection, and those that were.
        let (allowed, written) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let until = |value: u64| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while written.load(Ordering::SeqCst) < value {
                assert!(Instant::now() < deadline, "the connection is as good as it was");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        std::thread::scope(|scope| {
            let (may, did, first) = (allowed.clone(), written.clone(), by_first.clone());
            let handle = bench.runtime.handles().last().unwrap();
            scope.spawn(move || {
                let done = handle.call_async(move |reactor| async move {
                    let device = NvmfDevice::open(&reactor, "remote", &first, None).await.unwrap();
                    let channel = device.open_channel(&reactor).unwrap();
                    let patience_ns = reactor.now_ns() + 60 * SECOND_NS;
                    for number in 1..=3 {
                        while may.load(Ordering::SeqCst) < number {
                            assert!(reactor.now_ns() < patience_ns, "nobody asks for the next write");
                            reactor.sleep_ns(1_000_000).await;
                        }
                        let buf = reactor.pool().alloc(4096).await;
                        let done = channel.submit(Io::write(Lba(1), 1, SgList::from_iter([buf]))).await;
                        assert!(done.status.is_ok(), "{}", done.status);
                        did.store(number, Ordering::SeqCst);
                    }
                    drop(channel);
                    device.close().await;
                });
                assert!(done.is_some());
            });
            until(1);
            for (number, key) in [(2, Some(psk(4))), (3, None)] {
                let keys = Vec::from_iter(key.clone());
                let set = bench.target.call(move |home| home.set_host_psks(NQN, identity(1).nqn.as_str(), keys, 0));
                set.unwrap();
                let outcome = try_out(&bench, by_first.clone());
                assert!(matches!(outcome, Err(ConnectError::Tls { .. })), "{outcome:?}");
                if key.is_some() {
                    assert_eq!(try_out(&bench, options(bench.encrypted, 1, key)), Ok(()));
                }
                allowed.store(number, Ordering::SeqCst);
                until(number);
            }
        });
    }

    #[test]
    fn who_has_a_key_cannot_take_another_hosts_name() {
        let bench = start(2, vec![psk(1)], Config::default());
        // The handshake is host 1's, and Connect says host 2.
        let outcome = with_client(&bench, |client| {
            client.send(&connect_of(&identity(2)));
            client.status_of_connect()
        });
        assert_eq!(outcome.kind(), Status::CONNECT_INVALID_HOST.kind());
        let outcome = with_client(&bench, |client| {
            client.send(&connect_of(&identity(1)));
            client.status_of_connect()
        });
        assert!(outcome.is_success(), "{outcome}");
    }

    #[test]
    fn discovery_takes_a_key_of_any_subsystem_and_tells_which_ports_are_encrypted() {
        let bench = start(2, vec![psk(2)], Config::default());
        let options = options(bench.encrypted, 1, Some(psk(2)));
        let found = bench.runtime.handles()[1]
            .call_async(move |reactor| async move { discover(&reactor, &options).await.unwrap() })
            .unwrap();
        let ours = |address: SocketAddr| {
            let here = |entry: &&nvme::host::DiscoveredSubsystem| {
                entry.nqn.as_str() == NQN && entry.service == address.port().to_string()
            };
            found.iter().find(here).map(|entry| entry.needs_tls)
        };
        assert_eq!((ours(bench.encrypted), ours(bench.plain)), (Some(true), Some(false)), "{found:?}");
    }

    /// A client of OpenSSL's own making, in the middle of an NVMe/TCP connection.
    struct Client {
        process: std::process::Child,
    }

    impl Client {
        fn start(address: SocketAddr, key: &TlsKey, seconds: u32) -> Client {
            let secret: String = key.secret().iter().map(|byte| format!("{byte:02x}")).collect();
            let (address, identity) = (address.to_string(), key.identity.to_string());
            let suite = if key.secret().len() == 48 { "TLS_AES_256_GCM_SHA384" } else { "TLS_AES_128_GCM_SHA256" };
            let mut command = Command::new("timeout");
            command.arg(seconds.to_string()).args(["openssl", "s_client", "-tls1_3", "-quiet", "-connect", &address]);
            command.args(["-psk", &secret, "-psk_identity", &identity, "-ciphersuites", suite]);
            let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            Client { process: pipes.spawn().expect("openssl and timeout are installed") }
        }

        fn send(&mut self, bytes: &[u8]) {
            let stdin = self.process.stdin.as_mut().unwrap();
            stdin.write_all(bytes).and_then(|()| stdin.flush()).unwrap();
        }

        fn receive<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
            let mut bytes = [0; LEN];
            self.process.stdout.as_mut().unwrap().read_exact(&mut bytes).ok().map(|()| bytes)
        }

        /// What it has said about its end.
        fn said(&mut self) -> String {
            let mut said = String::new();
            let _ = self.process.stderr.as_mut().unwrap().read_to_string(&mut said);
            said
        }

        /// The status in a response capsule.
        fn status_of_connect(&mut self) -> Status {
            let capsule: [u8; 24] = self.receive().expect("an answer");
            Status::from_wire(u16::from_le_bytes([capsule[22], capsule[23]]))
        }
    }

    impl Drop for Client {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    /// Lets OpenSSL's client connect as host 1 and exchange the first PDUs.
    fn with_client<T>(bench: &Bench, then: impl FnOnce(&mut Client) -> T) -> T {
        let key = TlsKey::new(&psk(1), Form::Standard, &identity(1).nqn, &Nqn::new(NQN).unwrap());
        let mut client = Client::start(bench.encrypted, &key, 20);
        client.send(&nvme::tcp::TransportOptions::host().request().encode());
        let response: [u8; 128] = client.receive().expect("an ICResp");
        assert_eq!(response[0], 1, "{response:?}");
        then(&mut client)
    }

    /// A Connect capsule for the admin queue.
    fn connect_of(host: &HostIdentity) -> Vec<u8> {
        use zerocopy::IntoBytes;
        let data = nvme::host::command::connect_data(*host.id.as_bytes(), &host.nqn, &Nqn::new(NQN).unwrap(), None);
        let (sqe, len) = (nvme::host::command::connect(0, 32, 0), data.as_bytes().len() as u32);
        let mut capsule = vec![4, 0, 72, 72, 0, 0, 0, 0];
        capsule[4..].copy_from_slice(&(72 + len).to_le_bytes());
        capsule.extend_from_slice(sqe.as_bytes());
        capsule.extend_from_slice(data.as_bytes());
        capsule
    }

    /// (It uses keys with SHA-256 alone.)
    #[test]
    fn openssl_s_client_connects_with_every_form_of_a_key() {
        let bench = start(2, vec![psk(1)], Config::default());
        let (host, subsystem) = (identity(1).nqn, Nqn::new(NQN).unwrap());
        let keys = [
            TlsKey::new(&psk(1), Form::Standard, &host, &subsystem),
            TlsKey::new(&psk(1), Form::Early, &host, &subsystem),
            TlsKey::version_0(&psk(1), Form::Standard, &host, &subsystem).unwrap(),
            TlsKey::new(&psk(1), Form::Standard, &host, &Nqn::discovery()),
        ];
        for key in keys {
            let mut client = Client::start(bench.encrypted, &key, 20);
            client.send(&nvme::tcp::TransportOptions::host().request().encode());
            let response: [u8; 128] = client.receive().unwrap_or_else(|| panic!("{key:?}: {}", client.said()));
            assert_eq!(response[0], 1, "{key:?}");
        }
        let strangers = [
            TlsKey::version_0(&psk(3), Form::Standard, &host, &subsystem).unwrap(),
            TlsKey::new(&psk(3), Form::Standard, &host, &subsystem),
            TlsKey::new(&psk(1), Form::Standard, &identity(9).nqn, &subsystem),
        ];
        for key in strangers {
            let mut client = Client::start(bench.encrypted, &key, 20);
            assert_eq!(client.receive::<1>(), None, "{key:?}");
            assert!(client.said().contains("alert"), "{key:?}");
        }
    }

    /// The first bytes that a host with TLS sends.
    fn hello() -> Vec<u8> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = runtime(1);
        let options = options(address, 1, Some(psk(1)));
        let capture = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; 4096];
            let len = stream.read(&mut bytes).unwrap();
            bytes.truncate(len);
            bytes
        });
        let outcome = runtime.handles()[0]
            .call_async(move |reactor| async move { NvmfDevice::open(&reactor, "none", &options, None).await.err() });
        assert!(matches!(outcome, Some(Some(ConnectError::Tls { .. }))), "{outcome:?}");
        capture.join().unwrap()
    }

    #[test]
    fn damaged_cut_and_long_hellos_end_their_connection_and_nothing_else() {
        let bench = start(2, vec![psk(1)], Config { handshake_timeout_ns: SECOND_NS / 4, ..Config::default() });
        let hello = hello();
        assert_eq!(hello[0], 22, "a handshake");
        let mut messages: Vec<Vec<u8>> = (0..hello.len()).step_by(7).map(|len| hello[..len].to_vec()).collect();
        for at in 0..hello.len() {
            let mut damaged = hello.clone();
            damaged[at] ^= 0x41;
            messages.push(damaged);
        }
        // Records that never end a message, and the same without a sense.
        let endless = [[22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff].to_vec(), vec![0; 0x4000 - 4]].concat();
        messages.push([endless.clone(), endless].concat());
        messages.push([22, 3, 3, 0xff, 0xff].repeat(8000));
        messages.push(hello.repeat(200));
        let streams: Vec<TcpStream> = messages
            .iter()
            .map(|message| {
                let mut stream = TcpStream::connect(bench.encrypted).unwrap();
                // The target may have closed before all is sent.
                let _ = stream.write_all(message);
                stream
            })
            .collect();
        for mut stream in streams {
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut rest = Vec::new();
            // A reset is an end as well; a time-out is none.
            if let Err(error) = stream.read_to_end(&mut rest) {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
            }
            assert!(rest.len() < 4096, "{} bytes for nothing", rest.len());
        }
        assert_eq!(try_out(&bench, options(bench.encrypted, 1, Some(psk(1)))), Ok(()));
        let began = Instant::now();
        while bench.target.call(|home| Ok(home.connections())).unwrap() > 0 {
            assert!(began.elapsed() < Duration::from_secs(10), "all are closed");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Passes bytes on in both directions, with a long pause now and then, and changes one bit of what the target says after
    /// `damage_at` bytes.
    fn proxy(to: SocketAddr, damage_at: u64) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let passed = Arc::new(AtomicU64::new(0));
        std::thread::spawn(move || {
            while let Ok((host, _)) = listener.accept() {
                let Ok(target) = TcpStream::connect(to) else { return };
                let pairs = [(host.try_clone().unwrap(), target.try_clone().unwrap(), false), (target, host, true)];
                for (mut from, mut to, from_target) in pairs {
                    let passed = passed.clone();
                    std::thread::spawn(move || {
                        let mut bytes = vec![0; 50_021];
                        for round in 0u32.. {
                            let Ok(len @ 1..) = from.read(&mut bytes) else { break };
                            let before = passed.fetch_add(if from_target { len as u64 } else { 0 }, Ordering::Relaxed);
                            if from_target && (before..before + len as u64).contains(&damage_at) {
                                bytes[(damage_at - before) as usize] ^= 1;
                            }
                            if round % 400 == 30 {
                                std::thread::sleep(Duration::from_millis(150));
                            }
                            if to.write_all(&bytes[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
                    });
                }
            }
        });
        address
    }

    const LARGE_BLOCKS: u32 = 256;

    /// Writes the whole namespace and reads it again, all at once, through a proxy.
    fn stress(bench: &Bench, options: Options) -> u64 {
        let handle = bench.runtime.handles().last().unwrap();
        let done = handle.call_async(move |reactor| async move {
            let device = NvmfDevice::open(&reactor, "remote", &options, None).await.unwrap();
            let channel = device.open_channel(&reactor).unwrap();
            for write in [true, false] {
                let mut running = Vec::new();
                for part in 0..8192 / LARGE_BLOCKS {
                    let mut buf = reactor.pool().alloc(LARGE_BLOCKS as usize * 4096).await;
                    let lba = Lba(u64::from(part * LARGE_BLOCKS));
                    if write {
                        buf.as_mut_slice().chunks_mut(8).enumerate().for_each(|(index, word)| {
                            word.copy_from_slice(&(u64::from(part) << 32 | index as u64).to_le_bytes());
                        });
                    }
                    let bufs = SgList::from_iter([buf]);
                    let io = if write { Io::write(lba, LARGE_BLOCKS, bufs) } else { Io::read(lba, LARGE_BLOCKS, bufs) };
                    running.push((part, channel.submit(io)));
                }
                for (part, running) in running {
                    let done = running.await;
                    assert!(done.status.is_ok(), "{part}: {}", done.status);
                    for (index, word) in done.io.bufs[0].as_slice().chunks(8).enumerate() {
                        assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), u64::from(part) << 32 | index as u64);
                    }
                }
            }
            drop(channel);
            let reconnects = device.stats().reconnects;
            device.close().await;
            reconnects
        });
        done.unwrap()
    }

    #[test]
    fn slow_networks_lose_and_repeat_nothing() {
        let bench = start(2, vec![psk(2)], Config::default());
        let address = proxy(bench.encrypted, u64::MAX);
        assert_eq!(stress(&bench, options(address, 1, Some(psk(2)))), 0);
    }

    #[test]
    fn a_changed_bit_ends_the_connection_and_is_never_data() {
        let bench = start(2, vec![psk(1)], Config::default());
        let address = proxy(bench.encrypted, 20 << 20);
        assert!(stress(&bench, options(address, 1, Some(psk(1)))) > 0, "the host connected again");
    }
}
