//! One TLS 1.3 connection over memory: records in, bytes out, and the other way round. No sockets, no waiting.
//!
//! Invariants: a handshake ends with the pre-shared key that was chosen or offered, or fails; what waits to be sent is bounded, and
//! so is what a peer may send before its handshake is over.

use openssl::error::ErrorStack;
use openssl::ssl::{
    ClientHelloResponse, Error, ErrorCode, Ssl, SslContext, SslMethod, SslMode, SslOptions, SslSessionCacheMode,
    SslStream, SslVerifyMode, SslVersion,
};
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::offer::offers;
use super::openssl::{handshake_index, hear_hello, offered_keys, use_keys};
use super::{Identity, Keyring, NoKey, TlsFailure, TlsKey};
use crate::auth::Hash;

/// Bytes that a peer may send before its handshake is over: several identities and key shares fit.
const HANDSHAKE_BYTES_MAX: usize = 16 << 10;
/// Records that wait to be sent, at most: a batch of plaintext, and what the protocol says by itself.
const OUTBOX_BYTES_MAX: usize = 128 << 10;
/// Bytes of records beyond four times what they carry, at most: a record takes 22 bytes beside its data, and the least that hosts
/// and targets say is 24. Else a peer could keep a reactor busy with records that carry nothing.
const BARREN_BYTES_MAX: usize = 64 << 10;
/// Identities of one hello that are looked at.
const OFFERS_MAX: usize = 8;
/// Key exchanges that are carried out: a few of the cheap ones are a fraction of a millisecond.
const GROUPS: &str = "X25519:P-256:P-384";
/// OpenSSL's reason for a key that is not the one which its name promises.
const BINDER_DOES_NOT_VERIFY: i32 = 253;
/// The first byte of a record: a message of the handshake, or an alert.
const RECORD_HANDSHAKE: u8 = 22;
const RECORD_ALERT: u8 = 21;

/// What a handshake knows about keys; OpenSSL's callbacks see it too.
#[derive(Default)]
pub(super) struct Handshake {
    /// Where a server finds keys, and when that is.
    ring: Option<(Keyring, u64)>,
    /// The client's key, or the one that the server has chosen.
    key: OnceLock<TlsKey>,
    /// Its name, as a client sends it.
    name: Vec<u8>,
    /// The first message of a server's client, until a key was chosen.
    hello: Mutex<Vec<u8>>,
    /// Why the server has chosen none.
    failure: OnceLock<TlsFailure>,
}

impl Handshake {
    pub(super) fn key(&self) -> Option<&TlsKey> {
        self.key.get()
    }

    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    /// A client's first message has arrived.
    pub(super) fn hear(&self, hello: &[u8]) {
        if self.ring.is_some() && !self.has_chosen() {
            *self.hello.lock().unwrap_or_else(PoisonError::into_inner) = hello.to_vec();
        }
    }

    fn has_chosen(&self) -> bool {
        self.key.get().is_some() || self.failure.get().is_some()
    }

    /// The client's first message, which is not kept any longer.
    fn take_hello(&self) -> Vec<u8> {
        std::mem::take(&mut *self.hello.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Chooses the first key of a hello that is known here. Nothing is refused yet: without a key OpenSSL finds nothing with
    /// which it could go on, and says so to the client in the usual way.
    fn choose(&self, body: Option<&[u8]>) {
        let Some((ring, now_ns)) = &self.ring else { return };
        // A client that is asked for another key share says the same again.
        if self.has_chosen() {
            return;
        }
        let (mut failure, mut seen) = (None, Vec::new());
        let hello = self.take_hello();
        for offer in body.into_iter().flat_map(|body| offers(&hello, body)).take(OFFERS_MAX) {
            if seen.contains(&offer.identity) {
                continue;
            }
            seen.push(offer.identity);
            match ring.find(offer.identity, *now_ns) {
                Ok(mut keys) => {
                    // OpenSSL looks at the proof of the one that is chosen: where none is proved, it refuses the preferred one.
                    let chosen = if keys.len() > 1 { offer.proved(&keys).unwrap_or(0) } else { 0 };
                    return drop(self.key.set(keys.swap_remove(chosen)));
                }
                Err(NoKey::Form(_)) if failure.is_some() => {}
                Err(error) => failure = Some(TlsFailure::NoKey(error)),
            }
        }
        let _ = self.failure.set(failure.unwrap_or(TlsFailure::NoIdentity));
    }
}

/// The transport of OpenSSL: what has arrived, and what is to be sent.
#[derive(Default)]
struct Pipe {
    inbox: Vec<u8>,
    /// Bytes of the inbox that were taken.
    taken: usize,
    outbox: Vec<u8>,
    /// Bytes of the outbox that were sent.
    sent: usize,
    /// Bytes taken before the handshake was over.
    handshake_bytes: usize,
    is_established: bool,
    too_long: bool,
}

impl Read for Pipe {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let waiting = &self.inbox[self.taken..];
        if waiting.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = waiting.len().min(target.len());
        if !self.is_established {
            self.handshake_bytes += len;
            self.too_long = self.handshake_bytes > HANDSHAKE_BYTES_MAX;
            if self.too_long {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        target[..len].copy_from_slice(&waiting[..len]);
        self.taken += len;
        Ok(len)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.outbox.len() - self.sent + bytes.len() > OUTBOX_BYTES_MAX {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // What was sent goes, also when a peer never takes all of it.
        self.outbox.drain(..std::mem::take(&mut self.sent));
        self.outbox.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a read has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// So many bytes.
    Bytes(usize),
    /// More records are needed.
    Nothing,
    /// The peer has ended the stream.
    End,
}

/// See the module.
pub(super) struct Session {
    stream: SslStream<Pipe>,
    handshake: Arc<Handshake>,
    is_server: bool,
    has_heard: bool,
    has_ended: bool,
    /// Bytes of records received beyond four times what was taken out of them.
    barren: usize,
    failure: Option<TlsFailure>,
}

impl Session {
    /// The side that has the keys of many.
    pub(super) fn server(ring: Keyring, now_ns: u64) -> Result<Session, TlsFailure> {
        let handshake = Handshake { ring: Some((ring, now_ns)), ..Handshake::default() };
        context().and_then(|context| Session::new(&context, handshake, None)).map_err(told)
    }

    /// The side that has one key.
    pub(super) fn client(key: TlsKey) -> Result<Session, TlsFailure> {
        let (name, hash) = (key.identity.to_string().into_bytes(), key.identity.hash);
        let handshake = Handshake { key: OnceLock::from(key), name, ..Handshake::default() };
        context().and_then(|context| Session::new(&context, handshake, Some(hash))).map_err(told)
    }

    /// A client's session, with the hash of its key, or a server's.
    fn new(context: &SslContext, handshake: Handshake, client: Option<Hash>) -> Result<Session, ErrorStack> {
        let handshake = Arc::new(handshake);
        let mut ssl = Ssl::new(context)?;
        ssl.set_ex_data(handshake_index()?, handshake.clone());
        match client {
            None => {
                hear_hello(&ssl, true);
                ssl.set_accept_state();
            }
            Some(hash) => {
                ssl.set_ciphersuites(suite(hash))?;
                // A certificate in place of the key is none that this host trusts.
                ssl.set_verify(SslVerifyMode::PEER);
                ssl.set_connect_state();
            }
        }
        let stream = SslStream::new(ssl, Pipe::default())?;
        Ok(Session {
            stream,
            handshake,
            is_server: client.is_none(),
            has_heard: false,
            has_ended: false,
            barren: 0,
            failure: None,
        })
    }

    /// Whether the handshake is over.
    pub(super) fn is_established(&self) -> bool {
        self.stream.get_ref().is_established
    }

    /// The key that both sides agreed on, once the handshake is over.
    pub(super) fn key(&self) -> Option<&TlsKey> {
        if self.is_established() { self.handshake.key() } else { None }
    }

    /// Why there is no TLS with this peer.
    pub(super) fn failure(&self) -> Option<&TlsFailure> {
        self.failure.as_ref()
    }

    /// Whether a read has something to say without further records.
    pub(super) fn has_more(&self) -> bool {
        let pipe = self.stream.get_ref();
        pipe.taken < pipe.inbox.len() || self.stream.ssl().pending() > 0 || self.failure.is_some() || self.has_ended
    }

    /// Lets `receive` append records that have arrived. The former ones were all taken.
    pub(super) fn fill<E>(
        &mut self,
        room: usize,
        receive: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let pipe = self.stream.get_mut();
        assert_eq!(pipe.taken, pipe.inbox.len(), "records are taken before more are received");
        pipe.taken = 0;
        pipe.inbox.resize(room, 0);
        let received = receive(&mut pipe.inbox);
        pipe.inbox.truncate(*received.as_ref().unwrap_or(&0));
        self.barren += pipe.inbox.len();
        if let Some(first) = pipe.inbox.first()
            && !std::mem::replace(&mut self.has_heard, true)
        {
            // A host without TLS is told nothing in a language that it does not speak.
            let is_tls = *first == RECORD_HANDSHAKE || !self.is_server && *first == RECORD_ALERT;
            if !is_tls {
                pipe.inbox.clear();
                self.failure = Some(TlsFailure::NotTls);
            }
        }
        received
    }

    /// The peer sends no more records.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
        // Whoever says nothing to a server is looking whether somebody listens.
        if !self.is_established() && self.failure.is_none() && (self.has_heard || !self.is_server) {
            self.failure = Some(TlsFailure::Closed);
        }
    }

    /// Records that wait to be sent.
    pub(super) fn outbox(&self) -> &[u8] {
        let pipe = self.stream.get_ref();
        &pipe.outbox[pipe.sent..]
    }

    /// So many bytes of them were sent.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.stream.get_mut().sent += bytes;
    }

    /// Goes on with the handshake. True when it is over.
    pub(super) fn shake_hands(&mut self) -> Result<bool, TlsFailure> {
        let done = self.stream.do_handshake();
        match self.look(done)? {
            Some(()) => self.establish().map(|()| true),
            None => Ok(false),
        }
    }

    /// Takes bytes that the peer has sent; goes on with the handshake before that.
    pub(super) fn take(&mut self, target: &mut [u8]) -> Result<Taken, TlsFailure> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.has_ended {
            return Ok(Taken::End);
        }
        if !self.is_established() && !self.shake_hands()? {
            return Ok(Taken::Nothing);
        }
        match self.stream.ssl_read(target) {
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => {
                self.has_ended = true;
                Ok(Taken::End)
            }
            read => match self.look(read)? {
                Some(bytes) => {
                    self.barren = self.barren.saturating_sub(4 * bytes);
                    Ok(Taken::Bytes(bytes))
                }
                None if self.barren > BARREN_BYTES_MAX => {
                    Err(self.fail(TlsFailure::Protocol("the peer sends records without data".into())))
                }
                None => Ok(Taken::Nothing),
            },
        }
    }

    /// Makes records of some bytes, which wait to be sent.
    pub(super) fn put(&mut self, mut bytes: &[u8]) -> Result<(), TlsFailure> {
        assert!(self.is_established(), "nothing is said before the handshake is over");
        while !bytes.is_empty() {
            let written = self.stream.ssl_write(bytes);
            let written = self.look(written)?;
            let written = written.ok_or_else(|| self.fail(TlsFailure::Protocol("a record was not made".into())))?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Tells the peer that nothing more will be sent, with the records that wait.
    pub(super) fn say_goodbye(&mut self) {
        if self.is_established() && self.failure.is_none() {
            let _ = self.stream.shutdown();
        }
    }

    /// The handshake is over: it must have used a key, which a peer with a certificate could have done without.
    fn establish(&mut self) -> Result<(), TlsFailure> {
        if !self.stream.ssl().session_reused() || self.handshake.key().is_none() {
            return Err(self.fail(TlsFailure::Protocol("the peer has not used the pre-shared key".into())));
        }
        hear_hello(self.stream.ssl(), false);
        self.stream.get_mut().is_established = true;
        self.barren = 0;
        Ok(())
    }

    /// `None` when more records are needed.
    fn look<T>(&mut self, result: Result<T, Error>) -> Result<Option<T>, TlsFailure> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(None),
            Err(error) => {
                let failure = self.reason(&error);
                Err(self.fail(failure))
            }
        }
    }

    fn fail(&mut self, failure: TlsFailure) -> TlsFailure {
        self.failure.get_or_insert(failure).clone()
    }

    fn reason(&self, error: &Error) -> TlsFailure {
        if self.stream.get_ref().too_long {
            return TlsFailure::TooLong;
        }
        if let Some(failure) = self.handshake.failure.get() {
            return failure.clone();
        }
        let Some(stack) = error.ssl_error() else { return TlsFailure::Protocol(error.to_string()) };
        let is_wrong = stack.errors().iter().any(|error| error.reason_code() == BINDER_DOES_NOT_VERIFY);
        match self.handshake.key() {
            Some(TlsKey { identity: Identity { host, subsystem, .. }, .. }) if is_wrong => {
                TlsFailure::WrongKey { host: host.clone(), subsystem: subsystem.clone() }
            }
            _ => told(stack.clone()),
        }
    }
}

/// What OpenSSL says, in its words.
fn told(stack: ErrorStack) -> TlsFailure {
    let reason = stack.errors().first().and_then(|error| error.reason());
    TlsFailure::Protocol(reason.map_or_else(|| "OpenSSL gives no reason".into(), str::to_owned))
}

/// The cipher suite with this hash.
fn suite(hash: Hash) -> &'static str {
    match hash {
        Hash::Sha384 => "TLS_AES_256_GCM_SHA384",
        _ => "TLS_AES_128_GCM_SHA256",
    }
}

/// What all connections share: TLS 1.3, keys and no certificates, no tickets.
fn context() -> Result<SslContext, ErrorStack> {
    static CONTEXT: OnceLock<SslContext> = OnceLock::new();
    if let Some(context) = CONTEXT.get() {
        return Ok(context.clone());
    }
    let index = handshake_index()?;
    let mut builder = SslContext::builder(SslMethod::tls())?;
    builder.set_min_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_max_proto_version(Some(SslVersion::TLS1_3))?;
    builder.set_ciphersuites("TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384")?;
    builder.set_groups_list(GROUPS)?;
    builder.set_num_tickets(0)?;
    builder.set_options(SslOptions::NO_TICKET);
    builder.set_session_cache_mode(SslSessionCacheMode::OFF);
    builder.set_mode(SslMode::RELEASE_BUFFERS | SslMode::ACCEPT_MOVING_WRITE_BUFFER);
    use_keys(&mut builder);
    // Before OpenSSL has decided on a suite: it must be the key's.
    builder.set_client_hello_callback(move |ssl, _| {
        if let Some(handshake) = ssl.ex_data(index).cloned() {
            handshake.choose(offered_keys(ssl));
            if let Some(key) = handshake.key() {
                ssl.set_ciphersuites(suite(key.identity.hash))?;
            }
        }
        Ok(ClientHelloResponse::SUCCESS)
    });
    Ok(CONTEXT.get_or_init(|| builder.build()).clone())
}

#[cfg(test)]
mod tests {
    use super::super::{Form, HostPsks, Psk};
    use super::*;
    use crate::spec::Nqn;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.io.remuda:{name}")).expect("valid")
    }

    fn psk(hash: Hash, seed: u8) -> Arc<Psk> {
        Arc::new(Psk::generate(hash, &mut |bytes| bytes.fill(seed)))
    }

    /// Both sides after their handshake: a client with this key, and a server that has those.
    fn meet(key: TlsKey, keys: &[Arc<Psk>]) -> Result<(Session, Session), TlsFailure> {
        greet(Session::client(key).expect("a session"), keys)
    }

    fn greet(mut client: Session, keys: &[Arc<Psk>]) -> Result<(Session, Session), TlsFailure> {
        let ring = Keyring::default();
        let psks = HostPsks { keys: keys.to_vec(), former_until_ns: None };
        assert!(ring.set(&nqn("disk"), &nqn("host"), Some(psks)));
        let mut server = Session::server(ring, 0).expect("a session");
        for _ in 0..4 {
            let _ = client.shake_hands().expect("the server has not refused it");
            carry(&mut client, &mut server);
            assert_eq!(server.take(&mut [0; 1])?, Taken::Nothing);
            carry(&mut server, &mut client);
        }
        assert!(client.is_established() && server.is_established());
        assert_eq!(server.handshake.take_hello().capacity(), 0, "nothing is kept of a hello");
        Ok((client, server))
    }

    fn pair() -> (Session, Session) {
        let psk = psk(Hash::Sha256, 7);
        let key = TlsKey::new(&psk, Form::Standard, &nqn("host"), &nqn("disk"));
        meet(key, &[psk]).expect("the keys are the same")
    }

    /// What one side has to say reaches the other.
    fn carry(from: &mut Session, to: &mut Session) {
        let records = from.outbox().to_vec();
        from.sent(records.len());
        if !records.is_empty() {
            let filled = to.fill(records.len(), |room| {
                room.copy_from_slice(&records);
                Ok::<_, ()>(records.len())
            });
            assert_eq!(filled, Ok(records.len()));
        }
    }

    #[test]
    fn a_peer_that_sends_records_with_hardly_any_data_is_cut_off_and_one_that_sends_small_ones_is_not() {
        let mut target = [0; 64];
        let (mut client, mut server) = pair();
        for _ in 0..20_000 {
            client.put(&[1; 24]).expect("it is said");
            carry(&mut client, &mut server);
            assert_eq!(server.take(&mut target), Ok(Taken::Bytes(24)));
            assert_eq!(server.take(&mut target), Ok(Taken::Nothing));
        }
        let cut = (0..20_000).find_map(|_| {
            client.put(&[1]).expect("it is said");
            carry(&mut client, &mut server);
            assert_eq!(server.take(&mut target), Ok(Taken::Bytes(1)));
            server.take(&mut target).err()
        });
        assert!(matches!(cut, Some(TlsFailure::Protocol(_))), "{cut:?}");
    }

    #[test]
    fn an_identity_without_digest_means_the_key_that_its_client_has() {
        for hash in [Hash::Sha256, Hash::Sha384] {
            let keys = [1, 2, 3].map(|seed| psk(hash, seed));
            let unnamed =
                |psk: &Psk, form| TlsKey::version_0(psk, form, &nqn("host"), &nqn("disk")).expect("short names");
            for (psk, form) in keys.iter().flat_map(|psk| Form::ALL.map(|form| (psk, form))) {
                let met = meet(unnamed(psk, form), &keys);
                let (mut client, mut server) = met.unwrap_or_else(|failure| panic!("{form:?}: {failure}"));
                client.put(b"said").expect("it is said");
                carry(&mut client, &mut server);
                let mut heard = [0; 4];
                assert_eq!((server.take(&mut heard), &heard), (Ok(Taken::Bytes(4)), b"said"));
            }
            let stranger = meet(unnamed(&psk(hash, 4), Form::Standard), &keys);
            assert!(matches!(stranger.err(), Some(TlsFailure::WrongKey { .. })));
        }
    }

    /// Makes records as one side does, cut as the test wants them (RFC 8446, section 5.2): SHA-256 and AES-128-GCM.
    struct Scribe {
        secret: Vec<u8>,
        /// Records under this secret.
        written: u64,
    }

    impl Scribe {
        fn expand(&self, label: &str, len: usize) -> Vec<u8> {
            let label = format!("tls13 {label}");
            let info = [&[0, len as u8, label.len() as u8][..], label.as_bytes(), &[0, 1]].concat();
            Hash::Sha256.hmac(&self.secret, &[&info]).as_slice()[..len].to_vec()
        }

        fn record(&mut self, content: u8, bytes: &[u8]) -> Vec<u8> {
            let mut nonce = self.expand("iv", 12);
            nonce[4..].iter_mut().zip(self.written.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
            self.written += 1;
            let (inner, mut tag) = ([bytes, &[content]].concat(), [0; 16]);
            let header = [&[23, 3, 3][..], &((inner.len() + tag.len()) as u16).to_be_bytes()].concat();
            let (cipher, key) = (openssl::symm::Cipher::aes_128_gcm(), self.expand("key", 16));
            let sealed = openssl::symm::encrypt_aead(cipher, &key, Some(&nonce), &header, &inner, &mut tag);
            [header, sealed.expect("it is encrypted"), tag.to_vec()].concat()
        }

        /// A message of the handshake, in records of so many bytes.
        fn message(&mut self, message: &[u8], piece: usize) -> Vec<Vec<u8>> {
            message.chunks(piece).map(|piece| self.record(RECORD_HANDSHAKE, piece)).collect()
        }
    }

    /// Each record arrives alone; what is taken meanwhile.
    fn tell(session: &mut Session, records: Vec<Vec<u8>>) -> Vec<u8> {
        let mut heard = Vec::new();
        for record in records {
            let filled = session.fill(record.len(), |room| {
                room.copy_from_slice(&record);
                Ok::<_, ()>(record.len())
            });
            assert_eq!(filled, Ok(record.len()));
            let mut target = [0; 64];
            while let Taken::Bytes(bytes) = session.take(&mut target).expect("it is understood") {
                heard.extend_from_slice(&target[..bytes]);
            }
        }
        heard
    }

    #[test]
    fn messages_after_the_handshake_may_come_in_pieces() {
        let psk = psk(Hash::Sha256, 7);
        let key = TlsKey::new(&psk, Form::Standard, &nqn("host"), &nqn("disk"));
        let name = key.identity.to_string().into_bytes();
        let lines = Arc::new(std::sync::Mutex::new(String::new()));
        let log = lines.clone();
        let mut context = SslContext::builder(SslMethod::tls()).expect("a context");
        use_keys(&mut context);
        context.set_keylog_callback(move |_, line| *log.lock().unwrap() += &format!("{line}\n"));
        let handshake = Handshake { key: OnceLock::from(key), name, ..Handshake::default() };
        let client = Session::new(&context.build(), handshake, Some(Hash::Sha256)).expect("a session");
        let (mut client, mut server) = greet(client, &[psk]).expect("the keys are the same");
        let secret = |label: &str| {
            let lines = lines.lock().unwrap();
            let hex = lines.lines().find(|line| line.starts_with(label)).and_then(|line| line.rsplit(' ').next());
            let hex = hex.expect("the secret was logged");
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex")).collect()
        };

        // KeyUpdate with a request for the same (section 4.6.3), a byte in each record, and data under the next key.
        let mut scribe = Scribe { secret: secret("CLIENT_TRAFFIC_SECRET_0"), written: 0 };
        assert_eq!(tell(&mut server, scribe.message(&[24, 0, 0, 1, 1], 1)), b"");
        scribe = Scribe { secret: scribe.expand("traffic upd", 32), written: 0 };
        assert_eq!(tell(&mut server, vec![scribe.record(23, b"said")]), b"said");

        // The server answers with its own before what it says next.
        server.put(b"answered").expect("it is said");
        carry(&mut server, &mut client);
        let mut heard = [0; 8];
        assert_eq!((client.take(&mut heard), &heard), (Ok(Taken::Bytes(8)), b"answered"));

        // NewSessionTicket (section 4.6.1) in pieces of every length, with data behind each.
        let mut scribe = Scribe { secret: secret("SERVER_TRAFFIC_SECRET_0"), written: 0 };
        scribe = Scribe { secret: scribe.expand("traffic upd", 32), written: 1 };
        let (ticket, nonce) = ([9; 40], [0, 0, 0, 0, 0, 0, 0, 7, 1, 5]);
        let body = [&nonce[..], &[0, ticket.len() as u8], &ticket, &[0, 0]].concat();
        let message = [&[4, 0, 0, body.len() as u8][..], &body].concat();
        for piece in 1..message.len() {
            assert_eq!(tell(&mut client, scribe.message(&message, piece)), b"");
            assert_eq!(tell(&mut client, vec![scribe.record(23, &[piece as u8])]), [piece as u8]);
        }
    }

    #[test]
    fn what_was_sent_takes_no_memory_although_something_is_always_left() {
        let (mut client, _) = pair();
        client.put(&[1; 1000]).expect("it is said");
        for _ in 0..10_000 {
            client.sent(client.outbox().len() - 1);
            client.put(&[1; 1000]).expect("it is said");
        }
        assert!(client.stream.get_ref().outbox.capacity() < 64 << 10);
    }
}
