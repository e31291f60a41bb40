//! Keys and derivations against the values of independent implementations: libnvme's and the Linux kernel's own tests.

use super::*;
use crate::auth::Hash;
use crate::spec::Nqn;
use std::sync::Arc;

/// A key that libnvme's tests use.
const SHORT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const SHORT_RETAINED: &str = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const LONG: &str = "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

fn psk(text: &str) -> Arc<Psk> {
    Arc::new(Psk::parse(text).expect("valid"))
}

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2014-08.org.example:{name}")).expect("valid")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn keys_of_libnvme_are_read_and_written_as_they_were() {
    for text in [SHORT, SHORT_RETAINED, LONG] {
        assert_eq!(*psk(text).to_text(), text);
        assert_eq!(*psk(&format!("  {text}\n")).to_text(), text);
    }
    assert_eq!(
        (psk(SHORT).hash(), psk(SHORT_RETAINED).hash(), psk(LONG).hash()),
        (Hash::Sha256, Hash::Sha256, Hash::Sha384)
    );
    assert_ne!(psk(SHORT), psk(SHORT_RETAINED));
    assert_eq!(format!("{:?}", psk(SHORT)), "Psk(..)");
}

#[test]
fn what_is_no_key_is_refused_with_the_reason() {
    let cases = [
        ("", PskError::Form),
        ("NVMeTLSkey-2:01:AAAA:", PskError::Form),
        ("NVMeTLSkey-1:01:AAAA", PskError::Form),
        ("NVMeTLSkey-1:03:AAAA:", PskError::Hash),
        ("NVMeTLSkey-1:01:A=A=:", PskError::Base64),
        ("NVMeTLSkey-1:01::", PskError::Length),
        ("DHHC-1:00:AAAA:", PskError::OtherKind),
    ];
    for (text, error) in cases {
        assert_eq!(Psk::parse(text).err(), Some(error), "{text}");
    }
    assert_eq!(Psk::parse(&SHORT.replace(":01:", ":02:")).err(), Some(PskError::Length));
    assert_eq!(Psk::parse(&LONG.replace(":02:", ":01:")).err(), Some(PskError::Length));
    assert_eq!(Psk::parse(&SHORT.replace("VRL", "VRM")).err(), Some(PskError::Checksum));
    for end in 0..SHORT.len() {
        assert!(Psk::parse(&SHORT[..end]).is_err(), "{end}");
    }
}

#[test]
fn generated_keys_have_the_length_of_their_hash_and_are_read_again() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let made = Psk::generate(hash, &mut |bytes| bytes.fill(0x5a));
        let read = Psk::parse(&made.to_text()).expect("valid");
        assert_eq!((&read, read.hash()), (&made, hash));
    }
}

/// The names of libnvme's tests are too short for an NQN: the digest is looked at where names are bytes.
#[test]
fn retained_keys_and_digests_are_those_of_libnvme() {
    let digest = |text: &str, form: Form| {
        let psk = psk(text);
        let key = crate::tls::psk::tests_key(&psk);
        let retained = form.derive(psk.hash(), key, "HostNQN", "nqn.psk-test-host").expect("short");
        let tied: &[&[u8]] = &[b"nqn.psk-test-host", b" ", b"nqn.psk-test-subsys", b" ", b"NVMe-over-Fabrics"];
        let digest = psk.hash().hmac(&retained, tied);
        <base64ct::Base64 as base64ct::Encoding>::encode_string(digest.as_slice())
    };
    assert_eq!(digest(SHORT, Form::Standard), "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=");
    assert_eq!(digest(LONG, Form::Standard), "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a");
    assert_eq!(digest(SHORT, Form::Early), "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=");
    assert_eq!(digest(LONG, Form::Early), "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz");
}

/// From the kernel's test of its own derivation, which starts from a key that an authentication made.
#[test]
fn keys_of_connections_are_those_of_the_linux_kernel() {
    let unhex = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
    };
    let cases = [
        (
            Hash::Sha256,
            "1733c59fa7f48fcf37f5f26fc4ff0268ad4f78e030f4f3b0bfd1d47e7bb1447a",
            "01 OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            Hash::Sha384,
            "f14b2dd3234c459694d3bc63f8968bd6b37c2c6de849e22e118749001ce4bbe8640b9e3a748cb11ce4b1d71d359cce39",
            "02 cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ];
    for (hash, retained, context, expected) in cases {
        let retained = unhex(retained);
        let tied: &[&[u8]] = &[b"hostnqn", b" ", b"subsysnqn", b" ", b"NVMe-over-Fabrics"];
        let digest = <base64ct::Base64 as base64ct::Encoding>::encode_string(hash.hmac(&retained, tied).as_slice());
        assert_eq!(format!("{:02} {digest}", hash as u8), context);
        let secret = Form::Standard.derive(hash, &retained, "nvme-tls-psk", context).expect("short");
        assert_eq!(hex(&secret), expected);
    }
}

#[test]
fn identities_are_read_as_they_are_written() {
    let (host, subsystem) = (nqn("host"), nqn("subsystem"));
    for text in [SHORT, SHORT_RETAINED, LONG] {
        let psk = psk(text);
        let keys = [
            TlsKey::new(&psk, Form::Standard, &host, &subsystem),
            TlsKey::new(&psk, Form::Early, &host, &subsystem),
            TlsKey::version_0(&psk, Form::Standard, &host, &subsystem).expect("short names"),
        ];
        for key in keys {
            assert_eq!(Identity::parse(key.identity.to_string().as_bytes()), Some(key.identity.clone()));
            assert_eq!(key.secret().len(), psk.hash().digest_len());
        }
    }
    let long = Nqn::new(&format!("nqn.2014-08.org.example:{}", "x".repeat(199))).expect("valid");
    assert!(TlsKey::version_0(&psk(SHORT), Form::Standard, &long, &long).is_none());
    let identity = TlsKey::new(&psk(LONG), Form::Standard, &long, &long).identity;
    assert_eq!(Identity::parse(identity.to_string().as_bytes()), Some(identity));
}

#[test]
fn other_bytes_are_no_identity() {
    let good = "NVMe0R01 nqn.2014-08.org.example:a nqn.2014-08.org.example:b";
    assert!(Identity::parse(good.as_bytes()).is_some());
    for end in 0..good.len() - "2014-08.org.example:b".len() {
        assert_eq!(Identity::parse(&good.as_bytes()[..end]), None, "{end}");
    }
    for bad in
        [good.replace("0R01", "0R03"), good.replace("0R01", "1R01"), format!("{good} x"), good.replace(' ', "  ")]
    {
        assert_eq!(Identity::parse(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(Identity::parse(&[0xff; 40]), None);
    assert_eq!(Identity::parse(&vec![b' '; 100_000]), None);
}

#[test]
fn a_keyring_finds_what_a_host_may_offer_and_says_why_not() {
    let (host, subsystem) = (nqn("host"), nqn("subsystem"));
    let (first, second) = (psk(SHORT), psk(LONG));
    let ring = Keyring::default();
    let psks = HostPsks { keys: vec![first.clone(), second.clone()], former_until_ns: Some(100) };
    assert!(ring.set(&subsystem, &host, Some(psks)));
    let offer = |ring: &Keyring, key: &TlsKey, now_ns| ring.find(key.identity.to_string().as_bytes(), now_ns);
    let same = |found: Result<Vec<TlsKey>, NoKey>, keys: &[&TlsKey]| {
        let found = found.expect("found");
        found.len() == keys.len() && found.iter().zip(keys).all(|(found, key)| found.secret() == key.secret())
    };
    for to in [&subsystem, &Nqn::discovery()] {
        for form in Form::ALL {
            let (new, old) = (TlsKey::new(&first, form, &host, to), TlsKey::new(&second, form, &host, to));
            assert!(same(offer(&ring, &new, 100), &[&new]) && same(offer(&ring, &old, 99), &[&old]));
            assert!(matches!(offer(&ring, &old, 100), Err(NoKey::Other { .. })), "its time is over");
        }
        let [plain, early] = Form::ALL.map(|form| TlsKey::version_0(&first, form, &host, to).expect("short names"));
        assert!(same(offer(&ring, &plain, 0), &[&plain, &early]), "which one, the identity does not say");
    }
    for (who, to) in [(&subsystem, &subsystem), (&host, &host)] {
        let key = TlsKey::new(&first, Form::Standard, who, to);
        assert!(matches!(offer(&ring, &key, 0), Err(NoKey::Unknown { .. })), "{who} {to}");
    }
    let other = Psk::generate(Hash::Sha256, &mut |bytes| bytes.fill(1));
    let other = TlsKey::new(&other, Form::Standard, &host, &subsystem);
    assert!(matches!(offer(&ring, &other, 0), Err(NoKey::Other { .. })));
    let said = ring.find(b"Client_identity\n", 0).expect_err("no identity of NVMe").to_string();
    assert!(said.contains("\"Client_identity\\n\""), "{said}");

    let key = TlsKey::new(&first, Form::Standard, &host, &subsystem);
    assert!(ring.has(&subsystem, &host) && !ring.has(&host, &host));
    for forget in [true, false] {
        assert!(ring.set(&subsystem, &host, Some(HostPsks { keys: vec![first.clone()], former_until_ns: None })));
        assert!(offer(&ring, &key, u64::MAX).is_ok());
        if forget {
            ring.forget(&subsystem);
        } else {
            assert!(ring.set(&subsystem, &host, None));
        }
        assert!(matches!(offer(&ring, &key, 0), Err(NoKey::Unknown { .. })));
    }
}
