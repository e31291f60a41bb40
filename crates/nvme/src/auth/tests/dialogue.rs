//! Whole authentications, and each way in which one fails.

use super::*;
use crate::auth::message::{ChallengeMessage, Negotiate, Offer, Reply};

const ROOM: usize = 4096;

/// How a dialogue ended, on each side.
#[derive(Debug, PartialEq)]
struct End {
    controller: Outcome,
    host: Result<(), (Failure, bool)>,
}

impl End {
    const GOOD: End = End { controller: Outcome::Authenticated, host: Ok(()) };
}

/// A controller's side with what it needs.
struct Controller {
    side: ControllerSide,
    policy: Option<Policy>,
    random: Bytes,
    now_ns: u64,
}

impl Controller {
    fn new(policy: Option<Policy>) -> Controller {
        Controller { side: ControllerSide::default(), policy, random: Bytes(1), now_ns: 1 }
    }

    fn take(&mut self, message: &[u8]) -> Outcome {
        with_names(|names| {
            let (policy, random) = (self.policy.as_ref(), &mut self.random);
            let taken = self.side.take(self.now_ns, message, policy, names, &mut |out| random.fill(out));
            match taken.expect("no power is under way") {
                Taken::Done(outcome) => outcome,
                Taken::Compute(power) => self
                    .side
                    .computed(self.now_ns, &power.run(), self.policy.as_ref(), names)
                    .expect("it was asked for"),
            }
        })
    }

    fn give(&mut self) -> (Vec<u8>, Outcome) {
        let given = self.side.give(self.now_ns, ROOM).expect("a message");
        (given.message, given.outcome)
    }

    /// The failure of which it tells the host next.
    fn failure(&mut self) -> Failure {
        match self.give() {
            (message, Outcome::Failed(failure)) => {
                assert_eq!(message::explanation(&message), failure, "the host is told why");
                failure
            }
            (_, outcome) => panic!("expected a failure, not {outcome:?}"),
        }
    }
}

fn policy(host: u8, controller: Option<u8>) -> Policy {
    Policy::new(KeyPair { host: secret(host), controller: controller.map(secret) })
}

fn keys(host: u8, controller: Option<u8>) -> HostKeys {
    HostKeys { controller: controller.map(secret), ..HostKeys::new(secret(host)) }
}

fn talk(controller: &mut Controller, keys: HostKeys, transaction: u16) -> End {
    let (mut host, first) = HostSide::begin(keys, transaction);
    let mut random = Bytes(99);
    let mut outcome = controller.take(&first);
    with_names(|names| {
        loop {
            if outcome != Outcome::Open {
                return End { controller: outcome, host: Err((Failure::Failed, true)) };
            }
            let (message, after) = controller.give();
            outcome = after;
            let mut step = host.take(&message, names, &mut |out| random.fill(out));
            while let Ok(HostStep::Compute(power)) = step {
                step = host.computed(&power.run(), names, &mut |out| random.fill(out));
            }
            match step {
                Ok(HostStep::Done) => return End { controller: outcome, host: Ok(()) },
                Ok(HostStep::Last(last)) => return End { controller: controller.take(&last), host: Ok(()) },
                Ok(HostStep::Send(reply)) => outcome = controller.take(&reply),
                Ok(HostStep::Compute(_)) => unreachable!("computed above"),
                Err(refused) => {
                    if let Some(message) = &refused.message {
                        outcome = controller.take(message);
                    }
                    return End { controller: outcome, host: Err((refused.failure, refused.by_controller)) };
                }
            }
        }
    })
}

#[test]
fn every_hash_and_group_works_in_one_direction_and_in_both() {
    for hash in Hash::ALL {
        for group in DhGroup::ALL {
            // The larger groups differ in nothing but their prime, which the vectors check.
            if group.public_len() > 384 && hash != Hash::Sha256 {
                continue;
            }
            for both in [None, Some(2)] {
                let mut controller =
                    Controller::new(Some(Policy { hashes: vec![hash], groups: vec![group], ..policy(1, Some(2)) }));
                assert_eq!(talk(&mut controller, keys(1, both), 7), End::GOOD, "{hash:?} {group:?} {both:?}");
                assert!(!controller.side.is_busy());
            }
        }
    }
}

#[test]
fn a_queue_may_authenticate_again_with_the_next_sequence_number() {
    let mut controller = Controller::new(Some(Policy { groups: vec![DhGroup::Null], ..policy(1, None) }));
    let mut sequences = Vec::new();
    for transaction in 1..=3 {
        assert_eq!(talk(&mut controller, keys(1, None), transaction), End::GOOD);
        let (_, first) = HostSide::begin(keys(1, None), transaction);
        controller.take(&first);
        let (message, _) = controller.give();
        sequences.push(ChallengeMessage::parse(&message).expect("a challenge").sequence);
    }
    assert!(sequences.is_sorted_by(|one, next| next.wrapping_sub(*one) == 2), "{sequences:?}");
}

#[test]
fn a_wrong_key_fails_on_the_controllers_word() {
    let mut controller = Controller::new(Some(policy(1, None)));
    let end = talk(&mut controller, keys(2, None), 7);
    assert_eq!(end, End { controller: Outcome::Failed(Failure::Failed), host: Err((Failure::Failed, true)) });
}

#[test]
fn a_controller_with_the_wrong_key_fails_on_the_hosts_word() {
    let mut controller = Controller::new(Some(policy(1, Some(3))));
    let end = talk(&mut controller, keys(1, Some(2)), 7);
    assert_eq!(end, End { controller: Outcome::Failed(Failure::Failed), host: Err((Failure::Failed, false)) });
}

#[test]
fn a_host_that_wants_a_proof_for_which_there_is_no_key_fails() {
    let mut controller = Controller::new(Some(policy(1, None)));
    let end = talk(&mut controller, keys(1, Some(2)), 7);
    assert_eq!(end, End { controller: Outcome::Failed(Failure::NotUsable), host: Err((Failure::NotUsable, true)) });
}

#[test]
fn both_pairs_are_good_while_keys_change_and_each_answers_with_its_own() {
    let pairs = [1, 11].map(|seed| KeyPair { host: secret(seed), controller: Some(secret(seed + 1)) });
    let mut controller = Controller::new(Some(Policy { pairs: pairs.to_vec(), ..policy(1, None) }));
    assert_eq!(talk(&mut controller, keys(1, Some(2)), 1), End::GOOD);
    assert_eq!(talk(&mut controller, keys(11, Some(12)), 2), End::GOOD);
    assert_eq!(talk(&mut controller, keys(11, Some(2)), 3).host, Err((Failure::Failed, false)));
    assert_eq!(talk(&mut controller, keys(21, None), 4).host, Err((Failure::Failed, true)));
}

#[test]
fn a_key_that_is_taken_away_in_the_middle_does_not_count() {
    let mut controller = Controller::new(Some(Policy { groups: vec![DhGroup::Null], ..policy(1, None) }));
    let (mut host, first) = HostSide::begin(keys(1, None), 7);
    controller.take(&first);
    let (challenge, _) = controller.give();
    let reply = with_names(|names| host.take(&challenge, names, &mut |out| out.fill(1)));
    let Ok(HostStep::Send(reply)) = reply else { panic!("expected a reply") };
    controller.policy = Some(policy(5, None));
    controller.take(&reply);
    assert_eq!(controller.failure(), Failure::Failed);
}

#[test]
fn what_the_two_do_not_have_in_common_is_named() {
    let negotiate = |secure_channel, offer: Option<Offer>| Negotiate { transaction: 9, secure_channel, offer }.encode();
    let offer = |hashes: &[Hash], groups: &[DhGroup]| Some(Offer { hashes: hashes.to_vec(), groups: groups.to_vec() });
    let all = offer(&Hash::ALL, &DhGroup::ALL);
    let limited = Policy { hashes: vec![Hash::Sha384], groups: vec![DhGroup::Ffdhe2048], ..policy(1, None) };
    for (policy, message, expected) in [
        (None, negotiate(0, all.clone()), Failure::NotUsable),
        (Some(limited.clone()), negotiate(0, None), Failure::NotUsable),
        (Some(limited.clone()), negotiate(1, all.clone()), Failure::SecureChannelMismatch),
        (Some(limited.clone()), negotiate(0, offer(&[Hash::Sha256], &DhGroup::ALL)), Failure::HashNotUsable),
        (Some(limited.clone()), negotiate(0, offer(&Hash::ALL, &[DhGroup::Null])), Failure::GroupNotUsable),
        (Some(limited.clone()), negotiate(0, all.clone())[..40].to_vec(), Failure::IncorrectPayload),
        (Some(limited), vec![0; 3], Failure::IncorrectPayload),
    ] {
        let mut controller = Controller::new(policy);
        assert_eq!(controller.take(&message), Outcome::Open);
        assert_eq!(controller.failure(), expected);
    }
}

#[test]
fn the_controllers_preference_decides() {
    let mut controller = Controller::new(Some(Policy {
        hashes: vec![Hash::Sha256, Hash::Sha512],
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
        ..policy(1, None)
    }));
    controller.take(&HostSide::begin(keys(1, None), 1).1);
    let (message, _) = controller.give();
    let challenge = ChallengeMessage::parse(&message).expect("a challenge");
    assert_eq!((challenge.hash, challenge.group), (Hash::Sha256, DhGroup::Null));
}

/// A controller that waits for the reply to a challenge without exchange, and the right reply.
fn waiting_for_reply() -> (Controller, Vec<u8>) {
    let mut controller =
        Controller::new(Some(Policy { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Null], ..policy(1, Some(2)) }));
    let (mut host, first) = HostSide::begin(keys(1, Some(2)), 7);
    controller.take(&first);
    let (challenge, _) = controller.give();
    match with_names(|names| host.take(&challenge, names, &mut |out| out.fill(1))) {
        Ok(HostStep::Send(reply)) => (controller, reply),
        step => panic!("expected a reply, not {step:?}"),
    }
}

#[test]
fn replies_with_a_wrong_content_are_refused_as_such() {
    let damaged: [fn(&mut Vec<u8>); 7] = [
        |reply| reply[4] ^= 1,           // another transaction
        |reply| reply[6] = 48,           // another hash length
        |reply| reply[8] = 2,            // neither with a challenge nor without
        |reply| reply[10] = 1,           // a public value where there is none
        |reply| reply[12..16].fill(0),   // sequence number zero, and a challenge
        |reply| reply.truncate(16 + 63), // cut short
        |reply| reply.truncate(10),
    ];
    for (index, damage) in damaged.into_iter().enumerate() {
        let (mut controller, mut reply) = waiting_for_reply();
        damage(&mut reply);
        assert_eq!(controller.take(&reply), Outcome::Open, "{index}");
        assert_eq!(controller.failure(), Failure::IncorrectPayload, "{index}");
    }
    let (mut controller, mut reply) = waiting_for_reply();
    reply[20] ^= 1;
    controller.take(&reply);
    assert_eq!(controller.failure(), Failure::Failed, "the answer itself is wrong");
}

#[test]
fn a_challenge_that_is_sent_back_is_not_answered() {
    let mut controller = Controller::new(Some(Policy { groups: vec![DhGroup::Null], ..policy(1, Some(1)) }));
    controller.take(&HostSide::begin(keys(1, None), 7).1);
    let (message, _) = controller.give();
    let asked = ChallengeMessage::parse(&message).expect("a challenge");
    let (transaction, response) = (7, vec![0; asked.hash.digest_len()]);
    let reply = Reply { transaction, sequence: 1, response: &response, challenge: Some(asked.challenge), public: &[] };
    controller.take(&reply.encode());
    assert_eq!(controller.failure(), Failure::IncorrectPayload);
}

#[test]
fn messages_out_of_order_are_refused_as_such() {
    let (mut controller, reply) = waiting_for_reply();
    controller.take(&message::success2(7));
    assert_eq!(controller.failure(), Failure::IncorrectMessage);
    controller.take(&reply);
    assert_eq!(controller.failure(), Failure::IncorrectMessage, "after a failure all begins anew");
    assert_eq!(controller.failure(), Failure::IncorrectMessage, "there is nothing to receive");

    let (mut controller, reply) = waiting_for_reply();
    assert_eq!(controller.failure(), Failure::IncorrectMessage, "it is the host's turn");
    controller.take(&reply);
    assert_eq!(controller.failure(), Failure::IncorrectMessage);

    let (mut controller, reply) = waiting_for_reply();
    controller.take(&reply);
    assert_eq!(controller.give().1, Outcome::Open, "the host still has to say that it believes us");
    assert_eq!(controller.take(&message::success2(8)), Outcome::Open);
    assert_eq!(controller.failure(), Failure::IncorrectPayload);
}

#[test]
fn a_host_may_begin_anew_in_the_middle() {
    let (mut controller, _) = waiting_for_reply();
    assert_eq!(talk(&mut controller, keys(1, Some(2)), 8), End::GOOD);
}

#[test]
fn a_transaction_that_rested_too_long_is_over() {
    let (mut controller, reply) = waiting_for_reply();
    controller.now_ns += 61_000_000_000;
    controller.take(&reply);
    assert_eq!(controller.failure(), Failure::IncorrectMessage);
}

#[test]
fn a_message_for_which_there_is_no_room_stays() {
    let mut controller = Controller::new(Some(policy(1, None)));
    controller.take(&HostSide::begin(keys(1, None), 7).1);
    assert!(controller.side.give(1, 20).is_none());
    assert!(ChallengeMessage::parse(&controller.give().0).is_ok());
}

#[test]
fn a_host_takes_nothing_that_it_did_not_offer() {
    let limited = HostKeys { hashes: vec![Hash::Sha512], groups: vec![DhGroup::Null], ..keys(1, None) };
    let challenge = |hash: Hash, group: DhGroup, transaction| {
        let (value, public) = (vec![1; hash.digest_len()], vec![1; group.public_len()]);
        ChallengeMessage { transaction, hash, group, sequence: 1, challenge: &value, public: &public }.encode()
    };
    for (message, expected) in [
        (challenge(Hash::Sha256, DhGroup::Null, 7), Failure::HashNotUsable),
        (challenge(Hash::Sha512, DhGroup::Ffdhe2048, 7), Failure::GroupNotUsable),
        (challenge(Hash::Sha512, DhGroup::Null, 8), Failure::IncorrectPayload),
        (message::success2(7), Failure::IncorrectMessage),
        (Vec::new(), Failure::IncorrectPayload),
    ] {
        let (mut host, _) = HostSide::begin(limited.clone(), 7);
        let refused = with_names(|names| host.take(&message, names, &mut |out| out.fill(1)));
        let refused = refused.expect_err("refused");
        assert_eq!((refused.failure, refused.by_controller), (expected, false));
        assert_eq!(refused.message, Some(message::failure2(7, expected)));
    }
}

#[test]
fn a_host_that_wants_proof_takes_no_success_without() {
    let (mut controller, _) = waiting_for_reply();
    let (mut host, first) = HostSide::begin(keys(1, Some(2)), 7);
    controller.take(&first);
    let (challenge, _) = controller.give();
    with_names(|names| {
        host.take(&challenge, names, &mut |out| out.fill(1)).expect("a reply");
        let success = message::Success1 { transaction: 7, response: None }.encode(Hash::Sha256);
        let refused = host.take(&success, names, &mut |_| {}).expect_err("refused");
        assert_eq!((refused.failure, refused.by_controller), (Failure::Failed, false));
    });
}
