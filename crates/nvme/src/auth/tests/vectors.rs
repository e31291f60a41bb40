//! Values computed with Python (hmac, hashlib, zlib, pow), from nothing but the formulas of the specification:
//!
//! ```text
//! tied = hmac(hash, key, nqn + b"NVMe-over-Fabrics")
//! c = hmac(hash, hashlib.new(hash, shared).digest(), c)
//! hmac(hash, key, c + s.to_bytes(4, "little") + t.to_bytes(2, "little") + b"\0" + label + a + b"\0" + b)
//! ```
//! The secrets: bytes 1, 2, 3, ... and `zlib.crc32` of them, little-endian, in base64.

use super::super::response::Challenge;
use super::*;

const SECRETS: [&str; 4] = [
    "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
    "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
    "DHHC-1:03:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn answers_are_those_that_the_formulas_give() {
    // Hash, with exchange or without, the host's answer with the key tied to its name, the controller's with a plain key.
    let cases = [
        (
            Hash::Sha256,
            false,
            "0b3054898a82b03e90917563fcbdeb03cfc60112c3a6ca94cf4ee7bcfa497c3f",
            "81a503d22cf75858af9109827f3980b0ad653030317744e980221e2bf3ea7793",
        ),
        (
            Hash::Sha256,
            true,
            "c62b35c2b2948e05bd81ad382c78f899232d8e71ba4830670cd2fb477c23291e",
            "197654e864321918e63d413c9e44ab4b787d7be096bdb7338ae0f01da865d8d7",
        ),
        (
            Hash::Sha384,
            false,
            "ffd50c27c46f0f403236e6f5148895628f8bf0e346cda5760f246954524556cb73e98e129aad9e0e8ef7dfe3046fb801",
            "6d01a37e2060af25a10299d744131e9235ded3de13ec5d40349b3553502a09807b38929a1b6ca5a3bdd9c102c9895860",
        ),
        (
            Hash::Sha384,
            true,
            "2638ce2604a32d39ce703cd75a719a722e1756addb9fbf86cfe7234577d00deaa6b8ab2eb1d4cc2bcc67212415334449",
            "77bdf1ed6d8faa40e71be1edfd15115dcefea474653ceb9ba2d61b65fda9d45f056a84943f1e5da3afeffe137d6d2a86",
        ),
        (
            Hash::Sha512,
            false,
            "e92e6f5eb3a8735509f9b509bda70babc8f8895fac29fbd288d1b3194a3cb81abea4982a1a4c2489c693b6996fe1e394\
             b1ec66a6cd690e1dbca45de8a067dba2",
            "ffc9f3c4b05b35d50fe5ac261ee15ee735f200e0e562b1198ab53199a7743798650ba18173078dd8c3ab8f60ad39b473\
             6c438ddb3517a0ac4b97fbf2fcfa2e91",
        ),
        (
            Hash::Sha512,
            true,
            "e046f40fdbe0488491759e28a590df61f94556fecca49a9cffaa0802b2ecaf74e2f46ed0b3940bc03d4bc0151dcd2e7e\
             09238e6c4160e9292818610ca94c6ea4",
            "4566f15d94f70b10364f357a4d1122298e799e06713327f3d989234573a2bb5930fd0cd8826783add9fa45a9b29a7f34\
             2e2b884bb84c67c1636ca5511358f85d",
        ),
    ];
    let group = DhGroup::Ffdhe2048;
    let theirs = group.public(&[0x5a; 32]).run();
    let shared = group.shared(&[0xa5; 32], &theirs).expect("a proper value").run();
    for (hash, exchange, host_answer, controller_answer) in cases {
        let value: Vec<u8> = (0..hash.digest_len()).map(|index| (index * 7 + 3) as u8).collect();
        let shared = exchange.then_some(shared.as_slice());
        let asked = Challenge { hash, value: &value, sequence: 0x0102_0304, transaction: 0x0506, shared };
        let tied = Secret::parse(SECRETS[hash as usize]).expect("a secret");
        let plain = Secret::parse(SECRETS[0]).expect("a secret");
        with_names(|names| {
            assert_eq!(hex(asked.host_answer(&tied, names).as_slice()), host_answer, "{hash:?} {exchange}");
            assert_eq!(
                hex(asked.controller_answer(&plain, names).as_slice()),
                controller_answer,
                "{hash:?} {exchange}"
            );
        });
    }
}

#[test]
fn powers_are_those_that_python_computes() {
    // SHA-256 of pow(2, x, p), where every byte of x is 5Ah.
    for (group, len, expected) in [
        (DhGroup::Ffdhe2048, 32, "fb2f1168d1ff5095a0f4c58084e1c065e60be39e8bf79d18c1167220332513c2"),
        (DhGroup::Ffdhe3072, 40, "844298a9417e7fad518514f6efa81ef5f89e94453d4c3750c927024732db831f"),
        (DhGroup::Ffdhe4096, 48, "36ccbc00547ceb2041775cd26452ec0daf018abefb968929a588331f4a0aad9f"),
        (DhGroup::Ffdhe6144, 56, "e1470014062a8beced36096b1beabba85c205ab1d07a1691a2867f51a358f4e6"),
        (DhGroup::Ffdhe8192, 64, "afcd40370739419fc130113f19e72783fe2f8c1689d802e891a5998e8be43d59"),
    ] {
        let power = group.public(&vec![0x5a; len]).run();
        assert_eq!(hex(Hash::Sha256.digest(&power).as_slice()), expected, "{group:?}");
    }
}

#[test]
fn secrets_are_read_and_written_as_other_tools_do() {
    for text in SECRETS {
        let secret = Secret::parse(&format!(" {text}\n")).expect("a secret");
        assert_eq!(secret.to_text().as_str(), text);
        assert_eq!(format!("{secret:?}"), "Secret(..)", "a key is never shown");
    }
    // The one that the documentation of nvme-cli shows.
    assert!(Secret::parse("DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:").is_ok());
}

#[test]
fn damaged_secrets_are_refused_with_a_reason() {
    let good = SECRETS[1];
    for (text, reason) in [
        ("", SecretError::Form),
        ("DHHC-2:01:AAAA:", SecretError::Form),
        (&good[..good.len() - 1], SecretError::Form),
        ("DHHC-1:01", SecretError::Form),
        ("DHHC-1:04:AAAA:", SecretError::Hash),
        ("DHHC-1:1:AAAA:", SecretError::Hash),
        ("DHHC-1:01:A*AA:", SecretError::Base64),
        ("DHHC-1:01:AAAA:", SecretError::Length),
        ("DHHC-1:01::", SecretError::Length),
        (&good.replace("AQID", "AQIE"), SecretError::Checksum),
    ] {
        assert_eq!(Secret::parse(text).err(), Some(reason), "{text}");
    }
}

#[test]
fn generated_secrets_are_as_long_as_their_hash() {
    for (hash, len) in [(None, 32), (Some(Hash::Sha256), 32), (Some(Hash::Sha384), 48), (Some(Hash::Sha512), 64)] {
        let secret = Secret::generate(hash, &mut |out| out.fill(7));
        assert_eq!(Secret::parse(&secret.to_text()), Ok(secret.clone()));
        let base64_len = (len + 4usize).div_ceil(3) * 4;
        assert_eq!(secret.to_text().len(), "DHHC-1:00::".len() + base64_len);
    }
}

#[test]
fn public_values_that_no_honest_side_has_are_refused() {
    let group = DhGroup::Ffdhe2048;
    let len = group.public_len();
    let prime: Vec<u8> =
        (0..len).map(|at| u8::from_str_radix(&primes::FFDHE2048[at * 2..][..2], 16).expect("hex")).collect();
    let mut one = vec![0; len];
    one[len - 1] = 1;
    let mut last = prime.clone();
    last[len - 1] -= 1;
    for bad in [vec![0; len], one, last, prime.clone(), vec![0xff; len], prime[1..].to_vec(), Vec::new()] {
        assert!(group.shared(&[1; 32], &bad).is_none(), "{}", hex(&bad));
    }
    let mut two = vec![0; len];
    two[len - 1] = 2;
    assert!(group.shared(&[1; 32], &two).is_some());
}
