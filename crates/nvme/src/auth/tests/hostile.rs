//! Bytes that nobody sends who means well: no panic, and no authentication.

use super::*;
use proptest::prelude::*;

fn policy() -> Policy {
    // Small, so that many cases fit into little time.
    Policy {
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        ..Policy::new(KeyPair { host: secret(1), controller: None })
    }
}

/// A message that looks right at first sight.
fn message_like() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just((0, 0u8)),
        Just((0, 0xf0)),
        Just((0, 0xf1)),
        Just((1, 1)),
        Just((1, 2)),
        Just((1, 3)),
        Just((1, 4))
    ];
    let fields = prop_oneof![Just(0u8), Just(1), Just(2), Just(3), Just(32), Just(48), Just(64), any::<u8>()];
    (kind, proptest::collection::vec(fields, 0..200), 0..1400usize).prop_map(|((kind, id), fields, len)| {
        let mut message = vec![kind, id, 0, 0, 7, 0];
        message.extend(fields);
        message.resize(len.max(2), 1);
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_messages_authenticates_without_the_key(
        messages in proptest::collection::vec((message_like(), any::<bool>()), 1..8),
        seed in any::<u8>(),
    ) {
        let (policy, mut random) = (policy(), Bytes(seed));
        let mut side = ControllerSide::default();
        with_names(|names| {
            for (message, receives) in &messages {
                let taken = side.take(1, message, Some(&policy), names, &mut |out| random.fill(out));
                let outcome = match taken.expect("no power is under way") {
                    Taken::Done(outcome) => outcome,
                    // What the power is makes no difference to the state.
                    Taken::Compute(_) => side.computed(1, &[9; 256], Some(&policy), names).expect("it was asked for"),
                };
                assert_ne!(outcome, Outcome::Authenticated);
                if *receives && let Some(given) = side.give(1, 4096) {
                    assert_ne!(given.outcome, Outcome::Authenticated);
                }
            }
        });
    }

    #[test]
    fn no_message_makes_a_host_panic_or_believe(message in message_like(), second in message_like()) {
        let keys = HostKeys { controller: Some(secret(2)), ..HostKeys::new(secret(1)) };
        let (mut host, _) = HostSide::begin(keys, 7);
        with_names(|names| {
            let mut random = |out: &mut [u8]| out.fill(3);
            let mut step = host.take(&message, names, &mut random);
            for _ in 0..2 {
                if let Ok(HostStep::Compute(_)) = step {
                    step = host.computed(&[9; 256], names, &mut random);
                }
            }
            if let Ok(HostStep::Send(_)) = step {
                assert!(host.take(&second, names, &mut random).is_err());
            }
        });
    }

    #[test]
    fn any_text_is_a_secret_or_an_error(text in ".{0,120}", middle in "DHHC-1:0[0-5]:[A-Za-z0-9+/=]{0,100}:") {
        let _ = Secret::parse(&text);
        if let Ok(secret) = Secret::parse(&middle) {
            assert_eq!(secret.to_text().as_str(), middle);
        }
    }
}
