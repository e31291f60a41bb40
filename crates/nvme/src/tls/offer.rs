//! What a client offers in its first message: names of keys, and for each a proof that it has the key (RFC 8446, sections 4.2.11
//! and 4.2.11.2).
//!
//! OpenSSL checks the proof of the key that it is given. Here it tells which key is meant where one name fits several.

use super::TlsKey;
use super::derive::expand_label;

/// Bytes of a key's age behind its name, which means nothing for keys that were agreed on beforehand.
const AGE_LEN: usize = 4;

/// One of the keys that a client offers.
pub(super) struct Offer<'a> {
    /// Its name.
    pub identity: &'a [u8],
    /// The binder: a HMAC over what the client has said before the binders.
    binder: &'a [u8],
    said: &'a [u8],
}

impl Offer<'_> {
    /// Which of some keys with this name whoever made the offer has.
    pub fn proved(&self, keys: &[TlsKey]) -> Option<usize> {
        // (once: a hello may be long, and the keys many)
        let said = keys.first()?.identity.hash.digest(self.said);
        keys.iter().position(|key| {
            let hash = key.identity.hash;
            let early_secret = hash.hmac(&[], &[key.secret()]);
            let binder_key = expand_label(hash, early_secret.as_slice(), "ext binder", hash.digest(&[]).as_slice());
            let finished_key = expand_label(hash, binder_key.as_slice(), "finished", &[]);
            hash.hmac(finished_key.as_slice(), &[said.as_slice()]).matches(self.binder)
        })
    }
}

/// The offers of a client's first message, whose extension with them, the last one, has this body; up to where it is damaged.
/// Without the message, no offer is proved.
pub(super) fn offers<'a>(hello: &'a [u8], body: &'a [u8]) -> impl Iterator<Item = Offer<'a>> {
    let (names, binders) = list::<2>(body).unwrap_or_default();
    let said = hello.strip_suffix(binders).unwrap_or_default();
    let (mut names, mut binders) = (names, list::<2>(binders).unwrap_or_default().0);
    std::iter::from_fn(move || {
        let (identity, rest) = list::<2>(names)?;
        names = rest.get(AGE_LEN..)?;
        let (binder, rest) = list::<1>(binders).unwrap_or_default();
        binders = rest;
        Some(Offer { identity, binder, said })
    })
}

/// Bytes with their length in front of them, in so many bytes; and what follows.
fn list<const LEN: usize>(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<LEN>()?;
    rest.split_at_checked(len.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_read_up_to_where_they_are_damaged() {
        let names = [&[0, 2, b'a', b'b', 9, 9, 9, 9][..], &[0, 1, b'c', 0, 0, 0, 0]].concat();
        let binders = [3, 1, 2, 3, 1, 7];
        let body = [&[0, names.len() as u8][..], &names, &[0, binders.len() as u8], &binders].concat();
        let hello = [b"before".as_slice(), &body].concat();
        let read: Vec<_> = offers(&hello, &body).map(|offer| (offer.identity, offer.binder, offer.said)).collect();
        let said = &hello[..hello.len() - binders.len() - 2];
        assert_eq!(read, [(b"ab".as_slice(), [1, 2, 3].as_slice(), said), (b"c", &[7], said)]);
        for end in 0..body.len() {
            assert!(offers(&hello, &body[..end]).count() <= 2);
        }
        assert_eq!(offers(b"another", &body).map(|offer| offer.said.len()).sum::<usize>(), 0);
    }
}
