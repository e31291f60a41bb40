//! Authentication messages (Base 2.0, sections 8.13.4 and 8.13.5): layouts, and bytes to values and back.
//!
//! Each message begins with type, identifier, two reserved bytes and the transaction identifier. Readers take messages that are
//! longer than they have to be, since senders fill their buffers up with zeroes.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::group::DhGroup;
use super::hash::Hash;

/// AUTH_TYPE of messages that all protocols share.
pub const TYPE_COMMON: u8 = 0x00;
/// AUTH_TYPE of DH-HMAC-CHAP.
pub const TYPE_DHCHAP: u8 = 0x01;
/// AUTH_ID of AUTH_Negotiate, among common messages.
pub const ID_NEGOTIATE: u8 = 0x00;
/// AUTH_ID of DH-HMAC-CHAP_Challenge.
pub const ID_CHALLENGE: u8 = 0x01;
/// AUTH_ID of DH-HMAC-CHAP_Reply.
pub const ID_REPLY: u8 = 0x02;
/// AUTH_ID of DH-HMAC-CHAP_Success1.
pub const ID_SUCCESS1: u8 = 0x03;
/// AUTH_ID of DH-HMAC-CHAP_Success2.
pub const ID_SUCCESS2: u8 = 0x04;
/// AUTH_ID of AUTH_Failure2, among common messages.
pub const ID_FAILURE2: u8 = 0xf0;
/// AUTH_ID of AUTH_Failure1, among common messages.
pub const ID_FAILURE1: u8 = 0xf1;

/// AuthID of DH-HMAC-CHAP in a protocol descriptor.
const PROTOCOL_DHCHAP: u8 = 0x01;
/// Where the list of groups begins in a descriptor's lists.
const GROUPS_AT: usize = 30;

/// Longest message that is ever sent: a reply with the largest public value.
pub const MESSAGE_LEN_MAX: usize = size_of::<ReplyHeader>() + 2 * Hash::LEN_MAX + DhGroup::LEN_MAX;

/// Why an authentication failed: the explanation in AUTH_Failure1 and 2 (Base 2.0, section 8.13.4.2). The reason code proper
/// has one value only, "authentication failure".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Failure {
    /// The answer to the challenge is wrong.
    #[error("the key does not match")]
    Failed = 0x01,
    /// No protocol in common, no key for this host, or no key of the controller where the host wants a proof of it.
    #[error(
        "no authentication protocol in common, or no key: the host's, or the controller's where the host wants it proven"
    )]
    NotUsable = 0x02,
    /// Secure channel concatenation is asked for.
    #[error("secure channel concatenation is not supported")]
    SecureChannelMismatch = 0x03,
    /// No hash in common.
    #[error("no hash in common")]
    HashNotUsable = 0x04,
    /// No group in common.
    #[error("no Diffie-Hellman group in common")]
    GroupNotUsable = 0x05,
    /// A message whose content is wrong.
    #[error("a message with a wrong content")]
    IncorrectPayload = 0x06,
    /// A message out of order, or unknown.
    #[error("a message out of order")]
    IncorrectMessage = 0x07,
}

/// The only reason code.
const REASON_FAILURE: u8 = 0x01;

impl Failure {
    const ALL: [Failure; 7] = [
        Failure::Failed,
        Failure::NotUsable,
        Failure::SecureChannelMismatch,
        Failure::HashNotUsable,
        Failure::GroupNotUsable,
        Failure::IncorrectPayload,
        Failure::IncorrectMessage,
    ];

    fn from_u8(value: u8) -> Failure {
        Failure::ALL.into_iter().find(|failure| *failure as u8 == value).unwrap_or(Failure::Failed)
    }
}

/// What every message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Header {
    /// AUTH_TYPE.
    pub kind: u8,
    /// AUTH_ID.
    pub id: u8,
    reserved2: U16,
    /// T_ID.
    pub transaction: U16,
}

impl Header {
    fn new(kind: u8, id: u8, transaction: u16) -> Header {
        Header { kind, id, reserved2: U16::ZERO, transaction: U16::new(transaction) }
    }

    /// Of a message; `None` if it is too short for any.
    pub fn of(message: &[u8]) -> Option<Header> {
        Header::read_from_prefix(message).ok().map(|(header, _)| header)
    }

    /// Whether it is the header of this kind of message.
    pub fn is(&self, kind: u8, id: u8) -> bool {
        (self.kind, self.id) == (kind, id)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NegotiateHeader {
    header: Header,
    /// SC_C: 0 is no secure channel.
    secure_channel: u8,
    /// NAPD.
    descriptors: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Descriptor {
    protocol: u8,
    reserved1: u8,
    hashes: u8,
    groups: u8,
    lists: [u8; 60],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChallengeHeader {
    header: Header,
    hash_len: u8,
    reserved7: u8,
    hash: u8,
    group: u8,
    public_len: U16,
    sequence: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyHeader {
    header: Header,
    hash_len: u8,
    reserved7: u8,
    has_challenge: u8,
    reserved9: u8,
    public_len: U16,
    sequence: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success1Header {
    header: Header,
    hash_len: u8,
    reserved7: u8,
    has_response: u8,
    reserved9: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success2 {
    header: Header,
    reserved6: [u8; 10],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FailureMessage {
    header: Header,
    reason: u8,
    explanation: u8,
}

const _: () = {
    assert!(size_of::<Header>() == 6);
    assert!(size_of::<NegotiateHeader>() == 8);
    assert!(size_of::<Descriptor>() == 64);
    assert!(size_of::<ChallengeHeader>() == 16);
    assert!(core::mem::offset_of!(ChallengeHeader, public_len) == 10);
    assert!(size_of::<ReplyHeader>() == 16);
    assert!(core::mem::offset_of!(ReplyHeader, sequence) == 12);
    assert!(size_of::<Success1Header>() == 16);
    assert!(size_of::<Success2>() == 16);
    assert!(size_of::<FailureMessage>() == 8);
};

/// AUTH_Negotiate: what a host can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Transaction.
    pub transaction: u16,
    /// SC_C.
    pub secure_channel: u8,
    /// What DH-HMAC-CHAP may be done with; `None` if the host does not offer it.
    pub offer: Option<Offer>,
}

/// Hashes and groups that a host offers; those that nobody here knows are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Hashes.
    pub hashes: Vec<Hash>,
    /// Groups.
    pub groups: Vec<DhGroup>,
}

impl Negotiate {
    /// Reads one.
    pub fn parse(message: &[u8]) -> Result<Negotiate, Failure> {
        let (negotiate, rest) = NegotiateHeader::ref_from_prefix(message).map_err(|_| Failure::IncorrectPayload)?;
        let count = usize::from(negotiate.descriptors);
        let (descriptors, _) =
            <[Descriptor]>::ref_from_prefix_with_elems(rest, count).map_err(|_| Failure::IncorrectPayload)?;
        let mut offer = None;
        for descriptor in descriptors.iter().filter(|descriptor| descriptor.protocol == PROTOCOL_DHCHAP).take(1) {
            let list = |from: usize, len: u8| {
                descriptor.lists[from..].get(..usize::from(len)).ok_or(Failure::IncorrectPayload)
            };
            if usize::from(descriptor.hashes) > GROUPS_AT {
                return Err(Failure::IncorrectPayload);
            }
            offer = Some(Offer {
                hashes: list(0, descriptor.hashes)?.iter().filter_map(|id| Hash::from_u8(*id)).collect(),
                groups: list(GROUPS_AT, descriptor.groups)?.iter().filter_map(|id| DhGroup::from_u8(*id)).collect(),
            });
        }
        let transaction = negotiate.header.transaction.get();
        Ok(Negotiate { transaction, secure_channel: negotiate.secure_channel, offer })
    }

    /// As bytes.
    ///
    /// # Panics
    /// If more is offered than there is.
    pub fn encode(&self) -> Vec<u8> {
        let offer = self.offer.as_slice();
        let header = NegotiateHeader {
            header: Header::new(TYPE_COMMON, ID_NEGOTIATE, self.transaction),
            secure_channel: self.secure_channel,
            descriptors: offer.len() as u8,
        };
        let mut message = header.as_bytes().to_vec();
        for Offer { hashes, groups } in offer {
            let mut lists = [0; 60];
            lists[..hashes.len()].iter_mut().zip(hashes).for_each(|(id, hash)| *id = *hash as u8);
            lists[GROUPS_AT..][..groups.len()].iter_mut().zip(groups).for_each(|(id, group)| *id = *group as u8);
            let (hashes, groups) = (hashes.len() as u8, groups.len() as u8);
            let descriptor = Descriptor { protocol: PROTOCOL_DHCHAP, reserved1: 0, hashes, groups, lists };
            message.extend_from_slice(descriptor.as_bytes());
        }
        message
    }
}

/// DH-HMAC-CHAP_Challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChallengeMessage<'a> {
    /// Transaction.
    pub transaction: u16,
    /// The hash that was chosen.
    pub hash: Hash,
    /// The group that was chosen.
    pub group: DhGroup,
    /// S1.
    pub sequence: u32,
    /// C1.
    pub challenge: &'a [u8],
    /// g^x mod p, empty without an exchange.
    pub public: &'a [u8],
}

impl<'a> ChallengeMessage<'a> {
    /// Reads one.
    pub fn parse(message: &'a [u8]) -> Result<Self, Failure> {
        let (fixed, rest) = ChallengeHeader::ref_from_prefix(message).map_err(|_| Failure::IncorrectPayload)?;
        let hash = Hash::from_u8(fixed.hash).ok_or(Failure::HashNotUsable)?;
        let group = DhGroup::from_u8(fixed.group).ok_or(Failure::GroupNotUsable)?;
        if usize::from(fixed.hash_len) != hash.digest_len() || usize::from(fixed.public_len.get()) != group.public_len()
        {
            return Err(Failure::IncorrectPayload);
        }
        let (challenge, rest) = rest.split_at_checked(hash.digest_len()).ok_or(Failure::IncorrectPayload)?;
        let public = rest.get(..group.public_len()).ok_or(Failure::IncorrectPayload)?;
        let (transaction, sequence) = (fixed.header.transaction.get(), fixed.sequence.get());
        Ok(ChallengeMessage { transaction, hash, group, sequence, challenge, public })
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let header = ChallengeHeader {
            header: Header::new(TYPE_DHCHAP, ID_CHALLENGE, self.transaction),
            hash_len: self.hash.digest_len() as u8,
            reserved7: 0,
            hash: self.hash as u8,
            group: self.group as u8,
            public_len: U16::new(self.public.len() as u16),
            sequence: U32::new(self.sequence),
        };
        [header.as_bytes(), self.challenge, self.public].concat()
    }
}

/// DH-HMAC-CHAP_Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Transaction.
    pub transaction: u16,
    /// S2; zero when the host does not authenticate the controller.
    pub sequence: u32,
    /// R1.
    pub response: &'a [u8],
    /// C2, if the host wants the controller to authenticate itself.
    pub challenge: Option<&'a [u8]>,
    /// g^y mod p, empty without an exchange.
    pub public: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Reads an answer to a challenge with this hash and this group.
    pub fn parse(message: &'a [u8], hash: Hash, group: DhGroup) -> Result<Self, Failure> {
        let (fixed, rest) = ReplyHeader::ref_from_prefix(message).map_err(|_| Failure::IncorrectPayload)?;
        if usize::from(fixed.hash_len) != hash.digest_len() || usize::from(fixed.public_len.get()) != group.public_len()
        {
            return Err(Failure::IncorrectPayload);
        }
        let (response, rest) = rest.split_at_checked(hash.digest_len()).ok_or(Failure::IncorrectPayload)?;
        let (challenge, rest) = rest.split_at_checked(hash.digest_len()).ok_or(Failure::IncorrectPayload)?;
        let public = rest.get(..group.public_len()).ok_or(Failure::IncorrectPayload)?;
        let challenge = match fixed.has_challenge {
            0 => None,
            1 => Some(challenge),
            _ => return Err(Failure::IncorrectPayload),
        };
        let (transaction, sequence) = (fixed.header.transaction.get(), fixed.sequence.get());
        Ok(Reply { transaction, sequence, response, challenge, public })
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let header = ReplyHeader {
            header: Header::new(TYPE_DHCHAP, ID_REPLY, self.transaction),
            hash_len: self.response.len() as u8,
            reserved7: 0,
            has_challenge: self.challenge.is_some() as u8,
            reserved9: 0,
            public_len: U16::new(self.public.len() as u16),
            sequence: U32::new(self.sequence),
        };
        // The field is there in any case.
        let none = vec![0; self.response.len()];
        [header.as_bytes(), self.response, self.challenge.unwrap_or(&none), self.public].concat()
    }
}

/// DH-HMAC-CHAP_Success1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Transaction.
    pub transaction: u16,
    /// R2, if the host asked for it.
    pub response: Option<&'a [u8]>,
}

impl<'a> Success1<'a> {
    /// Reads one that belongs to a challenge with this hash.
    pub fn parse(message: &'a [u8], hash: Hash) -> Result<Self, Failure> {
        let (fixed, rest) = Success1Header::ref_from_prefix(message).map_err(|_| Failure::IncorrectPayload)?;
        let response = match fixed.has_response {
            0 => None,
            1 if usize::from(fixed.hash_len) != hash.digest_len() => return Err(Failure::IncorrectPayload),
            1 => Some(rest.get(..hash.digest_len()).ok_or(Failure::IncorrectPayload)?),
            _ => return Err(Failure::IncorrectPayload),
        };
        Ok(Success1 { transaction: fixed.header.transaction.get(), response })
    }

    /// As bytes.
    pub fn encode(&self, hash: Hash) -> Vec<u8> {
        let header = Success1Header {
            header: Header::new(TYPE_DHCHAP, ID_SUCCESS1, self.transaction),
            hash_len: hash.digest_len() as u8,
            reserved7: 0,
            has_response: self.response.is_some() as u8,
            reserved9: [0; 7],
        };
        let none = vec![0; hash.digest_len()];
        [header.as_bytes(), self.response.unwrap_or(&none)].concat()
    }
}

/// DH-HMAC-CHAP_Success2 as bytes.
pub fn success2(transaction: u16) -> Vec<u8> {
    let header = Header::new(TYPE_DHCHAP, ID_SUCCESS2, transaction);
    Success2 { header, reserved6: [0; 10] }.as_bytes().to_vec()
}

/// AUTH_Failure1, a controller's, as bytes.
pub fn failure1(transaction: u16, failure: Failure) -> Vec<u8> {
    failure_message(ID_FAILURE1, transaction, failure)
}

/// AUTH_Failure2, a host's, as bytes.
pub fn failure2(transaction: u16, failure: Failure) -> Vec<u8> {
    failure_message(ID_FAILURE2, transaction, failure)
}

fn failure_message(id: u8, transaction: u16, failure: Failure) -> Vec<u8> {
    let header = Header::new(TYPE_COMMON, id, transaction);
    FailureMessage { header, reason: REASON_FAILURE, explanation: failure as u8 }.as_bytes().to_vec()
}

/// What a failure message explains; one that explains nothing that is known is a failure all the same.
pub fn explanation(message: &[u8]) -> Failure {
    FailureMessage::read_from_prefix(message)
        .map_or(Failure::Failed, |(message, _)| Failure::from_u8(message.explanation))
}
