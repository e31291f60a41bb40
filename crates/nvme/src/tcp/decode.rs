//! From a byte stream to PDUs.
//!
//! A [`Decoder`] is fed with whatever pieces the socket delivers. It keeps at most one header; payload is handed out as slices
//! of the piece it came in, so it is copied once, straight to its destination, or not at all:
//! * a PDU that lies wholly in the piece comes as one [`Item::Whole`];
//! * any other comes as [`Item::Begin`], any number of [`Item::Data`], [`Item::End`].
//!
//! A caller that knows where the payload goes may read it there from the socket and pass that memory as the next piece
//! ([`Decoder::payload_remaining`] says how much is wanted).
//!
//! What it does not know: commands and tags. Those checks are made with [`super::r2t`] and by the host's table of commands.

use zerocopy::FromBytes;

use super::check::{Phase, Shape, check};
use super::fault::{Fault, field};
use super::pdu::{COMMON_LEN, CommonHeader, DIGEST_LEN, HEADER_LEN_MAX, Header, PduType};
use super::{ReceiveParams, Side};
use base::crc::{Crc32c, crc32c};

/// One step of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // Lives on the stack between the decoder and a match.
pub enum Item<'a> {
    /// A PDU with all its data, which is empty for most types.
    Whole {
        /// The header.
        header: Header,
        /// The data.
        data: &'a [u8],
        /// Whether the data digest matches; true if there is none. A mismatch is not fatal: the command fails with
        /// Transient Transport Error (TCP Transport 1.0, section 3.5).
        digest_ok: bool,
    },
    /// A PDU whose data follows.
    Begin {
        /// The header.
        header: Header,
        /// Bytes of data to come, at least one.
        data_len: u32,
    },
    /// Data of the PDU that began.
    Data {
        /// Offset in the PDU's data.
        offset: u32,
        /// The bytes, at least one.
        bytes: &'a [u8],
    },
    /// The PDU that began is complete.
    End {
        /// As in [`Item::Whole`].
        digest_ok: bool,
    },
}

#[derive(Clone, Debug)]
enum State {
    /// Collecting a header; bytes of it may be in `head`.
    Header,
    /// Skipping what is between the header and the data.
    Padding { shape: Shape, left: usize },
    /// Handing out data.
    Payload { shape: Shape, done: u32, crc: Option<Crc32c> },
    /// Collecting the data digest.
    Digest { computed: u32, bytes: [u8; DIGEST_LEN], have: usize },
    /// A fault was reported.
    Failed(Fault),
}

/// Decodes one direction of one connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    side: Side,
    phase: Phase,
    params: ReceiveParams,
    state: State,
    head: [u8; HEADER_LEN_MAX],
    /// Bytes in `head` of a header that is being collected.
    head_len: usize,
    /// Bytes in `head` of the last header that mattered, for a termination.
    kept_len: usize,
}

impl Decoder {
    /// A decoder for a fresh connection: `side` is this end.
    pub fn new(side: Side) -> Self {
        Decoder {
            side,
            phase: Phase::AwaitIc,
            params: ReceiveParams {
                header_digest: false,
                data_digest: false,
                alignment: 4,
                capsule_data_max: 0,
                data_max: 0,
            },
            state: State::Header,
            head: [0; HEADER_LEN_MAX],
            head_len: 0,
            kept_len: 0,
        }
    }

    /// Says what was agreed on, after ICReq or ICResp was handed out. Until then nothing more is decoded.
    pub fn establish(&mut self, params: ReceiveParams) {
        assert_eq!(self.phase, Phase::Negotiating, "parameters are agreed on once, after the exchange");
        assert!(params.alignment >= 4 && params.alignment <= 128 && params.alignment.is_multiple_of(4));
        self.params = params;
        self.phase = Phase::Ready;
    }

    /// Where the connection stands.
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// Changes the limit on in-capsule data: it becomes known with the Connect command which queue this is.
    pub fn set_capsule_data_max(&mut self, bytes: u32) {
        self.params.capsule_data_max = bytes;
    }

    /// Bytes of payload that are still to come of the PDU that began; zero between PDUs.
    pub const fn payload_remaining(&self) -> u32 {
        match &self.state {
            State::Payload { shape, done, .. } => shape.data_len - *done,
            State::Padding { shape, .. } => shape.data_len,
            _ => 0,
        }
    }

    /// Bytes of payload that come next in the stream, of the PDU that began; zero while its padding is still to come.
    pub const fn payload_arriving(&self) -> u32 {
        match &self.state {
            State::Payload { shape, done, .. } => shape.data_len - *done,
            State::Padding { shape, left: 0 } => shape.data_len,
            _ => 0,
        }
    }

    /// Whether the stream may end here: no PDU is half received.
    pub const fn is_between_pdus(&self) -> bool {
        matches!(self.state, State::Header) && self.head_len == 0
    }

    /// The header for the termination that answers a fault: the offending one as far as it is known. Meaningful after an error
    /// of [`Decoder::next`], and after an H2CData, C2HData or R2T that the caller found at fault.
    pub fn offending_header(&self) -> &[u8] {
        &self.head[..self.kept_len.min(128)]
    }

    /// Takes the next step, consuming from `input`. `None`: more bytes are needed, or (`Phase::Negotiating`) a decision.
    ///
    /// An error is final: every later call returns it again.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, Fault> {
        let result = self.step(input);
        if let Err(fault) = result
            && !matches!(self.state, State::Failed(_))
        {
            if self.head_len > 0 {
                self.kept_len = self.head_len;
            }
            self.state = State::Failed(fault);
        }
        result
    }

    #[inline]
    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, Fault> {
        loop {
            match &mut self.state {
                State::Header => return self.header(input),
                State::Padding { shape, left } => {
                    let skipped = input.len().min(*left);
                    *input = &input[skipped..];
                    *left -= skipped;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let crc = shape.data_digest.then(Crc32c::new);
                    self.state = State::Payload { shape: *shape, done: 0, crc };
                }
                State::Payload { shape, done, crc } => {
                    if *done == shape.data_len {
                        let computed = crc.map(Crc32c::value);
                        match computed {
                            Some(computed) => self.state = State::Digest { computed, bytes: [0; DIGEST_LEN], have: 0 },
                            None => return Ok(Some(self.end(true))),
                        }
                        continue;
                    }
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let take = input.len().min((shape.data_len - *done) as usize);
                    let (bytes, rest) = input.split_at(take);
                    if let Some(crc) = crc {
                        crc.update(bytes);
                    }
                    let offset = *done;
                    *done += take as u32;
                    *input = rest;
                    return Ok(Some(Item::Data { offset, bytes }));
                }
                State::Digest { computed, bytes, have } => {
                    let take = input.len().min(DIGEST_LEN - *have);
                    bytes[*have..*have + take].copy_from_slice(&input[..take]);
                    *have += take;
                    *input = &input[take..];
                    if *have < DIGEST_LEN {
                        return Ok(None);
                    }
                    let digest_ok = u32::from_le_bytes(*bytes) == *computed;
                    return Ok(Some(self.end(digest_ok)));
                }
                State::Failed(fault) => return Err(*fault),
            }
        }
    }

    fn end(&mut self, digest_ok: bool) -> Item<'static> {
        self.state = State::Header;
        Item::End { digest_ok }
    }

    #[inline]
    fn header<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, Fault> {
        match self.phase {
            Phase::Negotiating => return Ok(None),
            Phase::Terminated => {
                *input = &[];
                return Ok(None);
            }
            _ => {}
        }
        if self.head_len == 0 && input.len() >= COMMON_LEN {
            return self.header_in_place(input);
        }
        self.header_buffered(input)
    }

    /// The usual case: the header is in the input. Inlined with all it calls, so that a command is copied once.
    #[inline]
    fn header_in_place<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, Fault> {
        let bytes: &'a [u8] = input;
        let (common, _) = CommonHeader::read_from_prefix(bytes).expect("the caller checked the length");
        let checked = check(self.side, self.phase, &self.params, &common);
        let needed = checked.map_or(COMMON_LEN, |shape| shape.head_len());
        if bytes.len() < needed {
            return self.header_buffered(input);
        }
        let decoded = checked.and_then(|shape| Ok((shape, decode_header(&shape, bytes)?)));
        let (shape, header) = match decoded {
            Ok(decoded) => decoded,
            Err(fault) => {
                self.keep(bytes, usize::from(common.hlen));
                return Err(fault);
            }
        };
        self.enter(shape.kind);
        if bytes.len() < shape.pdu_len() {
            self.keep(bytes, shape.hlen);
            *input = &bytes[shape.head_len()..];
            return Ok(Some(self.begin(shape, header)));
        }
        let data_end = shape.data_start + shape.data_len as usize;
        let data = &bytes[shape.data_start..data_end];
        let digest_ok = !shape.data_digest || crc32c(data).to_le_bytes() == bytes[data_end..data_end + DIGEST_LEN];
        if matches!(shape.kind, PduType::H2cData | PduType::C2hData | PduType::R2t) {
            self.keep(bytes, shape.hlen); // The caller may yet refuse its tag or range.
        }
        *input = &bytes[shape.pdu_len()..];
        Ok(Some(Item::Whole { header, data, digest_ok }))
    }

    /// The header comes in pieces: collect it.
    #[cold]
    fn header_buffered<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Item<'a>>, Fault> {
        self.fill(input, COMMON_LEN);
        if self.head_len < COMMON_LEN {
            return Ok(None);
        }
        let (common, _) = CommonHeader::read_from_prefix(&self.head[..]).expect("longer than a common header");
        let shape = check(self.side, self.phase, &self.params, &common)?;
        self.fill(input, shape.head_len());
        if self.head_len < shape.head_len() {
            return Ok(None);
        }
        let header = decode_header(&shape, &self.head[..self.head_len])?;
        self.enter(shape.kind);
        self.kept_len = shape.hlen;
        self.head_len = 0;
        if shape.data_len == 0 {
            return Ok(Some(Item::Whole { header, data: &[], digest_ok: true }));
        }
        Ok(Some(self.begin(shape, header)))
    }

    fn fill(&mut self, input: &mut &[u8], until: usize) {
        let take = input.len().min(until.saturating_sub(self.head_len));
        self.head[self.head_len..self.head_len + take].copy_from_slice(&input[..take]);
        self.head_len += take;
        *input = &input[take..];
    }

    fn keep(&mut self, bytes: &[u8], len: usize) {
        let len = len.max(COMMON_LEN).min(bytes.len()).min(HEADER_LEN_MAX);
        self.head[..len].copy_from_slice(&bytes[..len]);
        self.kept_len = len;
    }

    fn begin(&mut self, shape: Shape, header: Header) -> Item<'static> {
        let left = shape.data_start - shape.head_len();
        self.state = State::Padding { shape, left };
        Item::Begin { header, data_len: shape.data_len }
    }

    fn enter(&mut self, kind: PduType) {
        match kind {
            PduType::IcReq | PduType::IcResp => self.phase = Phase::Negotiating,
            PduType::H2cTermReq | PduType::C2hTermReq => self.phase = Phase::Terminated,
            _ => {}
        }
    }
}

#[inline]
fn decode_header(shape: &Shape, bytes: &[u8]) -> Result<Header, Fault> {
    if shape.header_digest {
        let (header, rest) = bytes.split_at(shape.hlen);
        let received = u32::from_le_bytes(rest[..DIGEST_LEN].try_into().expect("four bytes"));
        if crc32c(header) != received {
            return Err(Fault::HeaderDigest { received });
        }
    }
    let header = Header::decode(shape.kind, bytes)?;
    if let Header::H2cData(data) | Header::C2hData(data) = &header
        && data.len != shape.data_len
    {
        return Err(Fault::HeaderField { offset: field::LENGTH });
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Cqe, Sqe};
    use crate::tcp::pdu::{DataHeader, Encoder, HEADER_SPACE, IcReq, IcResp, R2t};
    use crate::tcp::{SendParams, pdu};
    use proptest::prelude::*;

    /// A PDU as a test expects to see it again.
    type Seen = (Header, Vec<u8>, bool);

    const ICREQ: IcReq = IcReq { hpda: 0, header_digest: true, data_digest: true, r2t_max: 1 };
    const ICRESP: IcResp = IcResp { cpda: 0, header_digest: true, data_digest: true, maxh2cdata: 1 << 20 };

    fn params(digests: (bool, bool), alignment: u32) -> ReceiveParams {
        let (header_digest, data_digest) = digests;
        ReceiveParams { header_digest, data_digest, alignment, capsule_data_max: 8192, data_max: 1 << 20 }
    }

    fn established(side: Side, digests: (bool, bool), alignment: u32) -> Decoder {
        let mut decoder = Decoder::new(side);
        let ic = if side == Side::Target { ICREQ.encode() } else { ICRESP.encode() };
        assert!(matches!(decoder.next(&mut &ic[..]), Ok(Some(Item::Whole { .. }))));
        decoder.establish(params(digests, alignment));
        decoder
    }

    fn encoder(digests: (bool, bool), alignment: u32) -> Encoder {
        Encoder::new(SendParams { header_digest: digests.0, data_digest: digests.1, alignment })
    }

    /// Feeds `stream` in pieces that end at `cuts`, and puts the PDUs together again.
    fn decode(decoder: &mut Decoder, stream: &[u8], cuts: &[usize]) -> Result<Vec<Seen>, Fault> {
        let mut seen: Vec<Seen> = Vec::new();
        let mut from = 0;
        for to in cuts.iter().copied().chain([stream.len()]) {
            let mut piece = &stream[from..to.max(from)];
            from = to.max(from);
            while let Some(item) = decoder.next(&mut piece)? {
                match item {
                    Item::Whole { header, data, digest_ok } => seen.push((header, data.to_vec(), digest_ok)),
                    Item::Begin { header, .. } => seen.push((header, Vec::new(), false)),
                    Item::Data { offset, bytes } => {
                        let (_, data, _) = seen.last_mut().expect("data follows its header");
                        assert_eq!(data.len(), offset as usize);
                        data.extend_from_slice(bytes);
                    }
                    Item::End { digest_ok } => seen.last_mut().expect("an end follows its header").2 = digest_ok,
                }
            }
            assert!(piece.is_empty(), "everything is consumed in {:?}", decoder.phase());
        }
        Ok(seen)
    }

    fn append(stream: &mut Vec<u8>, encoder: &Encoder, write: impl Fn(&mut [u8]) -> usize, data: &[u8]) {
        let mut head = [0; HEADER_SPACE];
        let len = write(&mut head);
        stream.extend_from_slice(&head[..len]);
        stream.extend_from_slice(data);
        if !data.is_empty() && encoder.data_digest() {
            stream.extend_from_slice(&crc32c(data).to_le_bytes());
        }
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index * 31 + 7) as u8).collect()
    }

    /// One of everything that a target receives, and how it should be seen.
    fn host_stream(digests: (bool, bool), alignment: u32) -> (Vec<u8>, Vec<Seen>) {
        let encoder = encoder(digests, alignment);
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (index, len) in [0usize, 1, 512, 4096, 8192].into_iter().enumerate() {
            let sqe = Sqe::new(1, index as u16, 1);
            let data = payload(len);
            append(&mut stream, &encoder, |out| encoder.capsule_cmd(out, &sqe, len as u32), &data);
            expected.push((Header::CapsuleCmd(sqe), data, true));
        }
        for len in [4usize, 1000, 70_000] {
            let header = DataHeader { cccid: 3, ttag: 9, offset: 16, len: len as u32, last: len == 4, success: false };
            let data = payload(len);
            append(&mut stream, &encoder, |out| encoder.h2c_data(out, &header), &data);
            expected.push((Header::H2cData(header), data, true));
        }
        (stream, expected)
    }

    /// One of everything that a host receives.
    fn target_stream(digests: (bool, bool), alignment: u32) -> (Vec<u8>, Vec<Seen>) {
        let encoder = encoder(digests, alignment);
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        let cqe = Cqe::success(4, 17);
        append(&mut stream, &encoder, |out| encoder.capsule_resp(out, &cqe), &[]);
        expected.push((Header::CapsuleResp(cqe), Vec::new(), true));
        let r2t = R2t { cccid: 1, ttag: 2, offset: 3, len: 4 };
        append(&mut stream, &encoder, |out| encoder.r2t(out, &r2t), &[]);
        expected.push((Header::R2t(r2t), Vec::new(), true));
        let header = DataHeader { cccid: 8, ttag: 0, offset: 0, len: 4096, last: true, success: true };
        let data = payload(4096);
        append(&mut stream, &encoder, |out| encoder.c2h_data(out, &header), &data);
        expected.push((Header::C2hData(header), data, true));
        (stream, expected)
    }

    const DIGESTS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

    #[test]
    fn what_one_side_encodes_the_other_decodes_however_the_stream_is_cut() {
        for digests in DIGESTS {
            for alignment in [4, 8, 64, 128] {
                for (side, (stream, expected)) in
                    [(Side::Target, host_stream(digests, alignment)), (Side::Host, target_stream(digests, alignment))]
                {
                    let fresh = || established(side, digests, alignment);
                    assert_eq!(decode(&mut fresh(), &stream, &[]).as_ref(), Ok(&expected), "in one piece");
                    for size in [1, 7, 24, 129, 4096] {
                        let cuts: Vec<usize> = (0..stream.len()).step_by(size).collect();
                        assert_eq!(decode(&mut fresh(), &stream, &cuts).as_ref(), Ok(&expected), "pieces of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_stream_that_stops_at_any_byte_gives_the_whole_pdus_before_it() {
        let (stream, expected) = target_stream((true, true), 16);
        for end in 0..stream.len() {
            let mut decoder = established(Side::Host, (true, true), 16);
            let seen = decode(&mut decoder, &stream[..end], &[]).expect("a prefix of a valid stream is valid");
            let complete = seen.iter().filter(|pdu| expected.contains(pdu)).count();
            let unfinished = usize::from(!decoder.is_between_pdus());
            assert!(seen.len() <= complete + unfinished, "at {end}");
        }
    }

    #[test]
    fn a_whole_pdu_is_not_copied() {
        let (stream, _) = host_stream((false, false), 4);
        let mut decoder = established(Side::Target, (false, false), 4);
        let mut input = &stream[..];
        let within = stream.as_ptr_range();
        while let Some(item) = decoder.next(&mut input).expect("valid") {
            let Item::Whole { data, .. } = item else { panic!("everything is in one piece") };
            assert!(data.is_empty() || within.contains(&data.as_ptr()));
        }
    }

    #[test]
    fn payload_remaining_counts_down_to_the_end_of_the_data() {
        let encoder = encoder((false, false), 4);
        let mut stream = Vec::new();
        append(&mut stream, &encoder, |out| encoder.capsule_cmd(out, &Sqe::new(1, 1, 1), 100), &payload(100));
        let mut decoder = established(Side::Target, (false, false), 4);
        let mut input = &stream[..72];
        assert!(matches!(decoder.next(&mut input), Ok(Some(Item::Begin { data_len: 100, .. }))));
        assert_eq!(decoder.payload_remaining(), 100);
        let mut input = &stream[72..132];
        assert!(matches!(decoder.next(&mut input), Ok(Some(Item::Data { offset: 0, .. }))));
        assert_eq!(decoder.payload_remaining(), 40);
        let mut input = &stream[132..];
        assert!(matches!(decoder.next(&mut input), Ok(Some(Item::Data { offset: 60, .. }))));
        assert!(matches!(decoder.next(&mut input), Ok(Some(Item::End { digest_ok: true }))));
        assert_eq!(decoder.payload_remaining(), 0);
        assert!(decoder.is_between_pdus());
    }

    #[test]
    fn a_flipped_bit_in_a_digested_header_is_fatal_and_in_the_data_is_not() {
        let encoder = encoder((true, true), 4);
        let mut stream = Vec::new();
        append(&mut stream, &encoder, |out| encoder.capsule_cmd(out, &Sqe::new(1, 1, 1), 64), &payload(64));
        for pieces in [vec![], (0..stream.len()).collect::<Vec<_>>()] {
            for byte in 8..76 {
                let mut damaged = stream.clone();
                damaged[byte] ^= 0x10;
                let mut decoder = established(Side::Target, (true, true), 4);
                let fault = decode(&mut decoder, &damaged, &pieces).expect_err("the header digest does not match");
                let received = u32::from_le_bytes(damaged[72..76].try_into().expect("four bytes"));
                assert_eq!(fault, Fault::HeaderDigest { received });
                assert_eq!(decoder.offending_header()[..72], damaged[..72]);
            }
            for byte in 76..stream.len() {
                let mut damaged = stream.clone();
                damaged[byte] ^= 0x10;
                let seen = decode(&mut established(Side::Target, (true, true), 4), &damaged, &pieces);
                assert!(!seen.expect("not fatal")[0].2);
            }
        }
    }

    #[test]
    fn nothing_is_read_between_the_ic_exchange_and_the_decision() {
        let mut decoder = Decoder::new(Side::Target);
        let mut stream = ICREQ.encode().to_vec();
        stream.extend_from_slice(&[4; 100]);
        let mut input = &stream[..];
        assert!(matches!(decoder.next(&mut input), Ok(Some(Item::Whole { header: Header::IcReq(_), .. }))));
        assert_eq!(decoder.next(&mut input), Ok(None));
        assert_eq!(input.len(), 100);
    }

    #[test]
    fn a_second_ic_request_is_a_sequence_error() {
        let mut decoder = established(Side::Target, (false, false), 4);
        assert_eq!(decoder.next(&mut &ICREQ.encode()[..]), Err(Fault::Sequence));
        assert_eq!(decoder.offending_header(), ICREQ.encode());
    }

    #[test]
    fn a_fault_is_final() {
        let mut decoder = Decoder::new(Side::Target);
        assert_eq!(decoder.next(&mut &[0xffu8; 8][..]), Err(Fault::HeaderField { offset: 0 }));
        assert_eq!(decoder.next(&mut &ICREQ.encode()[..]), Err(Fault::HeaderField { offset: 0 }));
    }

    #[test]
    fn a_length_field_that_disagrees_with_the_pdu_is_named() {
        let encoder = encoder((false, false), 4);
        let header = DataHeader { cccid: 1, ttag: 1, offset: 0, len: 64, last: true, success: false };
        let mut stream = Vec::new();
        append(&mut stream, &encoder, |out| encoder.h2c_data(out, &header), &payload(64));
        stream[16] = 63;
        for cuts in [vec![], vec![3]] {
            let mut decoder = established(Side::Target, (false, false), 4);
            assert_eq!(decode(&mut decoder, &stream, &cuts), Err(Fault::HeaderField { offset: field::LENGTH }));
            assert_eq!(decoder.offending_header(), &stream[..24]);
        }
    }

    #[test]
    fn a_data_header_is_kept_for_the_caller_that_finds_it_at_fault() {
        for cuts in [vec![], vec![1], vec![30]] {
            let (stream, _) = host_stream((false, false), 4);
            let start = stream.len() - (24 + 70_000);
            let mut decoder = established(Side::Target, (false, false), 4);
            decode(&mut decoder, &stream[start..], &cuts).expect("valid");
            assert_eq!(decoder.offending_header(), &stream[start..start + 24]);
        }
    }

    #[test]
    fn after_a_termination_everything_is_ignored() {
        let (term, len) = pdu::encode_term(Side::Host, Fault::Sequence, &[1; 40]).expect("sent");
        let mut decoder = established(Side::Target, (true, true), 4);
        let mut stream = term[..len].to_vec();
        stream.extend_from_slice(&[0xee; 1000]);
        let seen = decode(&mut decoder, &stream, &[]).expect("no answer to a termination");
        assert_eq!(seen.len(), 1);
        assert!(matches!(seen[0].0, Header::TermReq(term) if term.fes == 2));
        assert_eq!(seen[0].1, [1; 40]);
        assert_eq!(decoder.phase(), Phase::Terminated);
    }

    proptest! {
        #[test]
        fn random_cuts_do_not_matter(cuts in proptest::collection::vec(0usize..100_000, 0..20), digests in 0usize..4) {
            let (stream, expected) = host_stream(DIGESTS[digests], 32);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % stream.len()).collect();
            cuts.sort_unstable();
            prop_assert_eq!(decode(&mut established(Side::Target, DIGESTS[digests], 32), &stream, &cuts), Ok(expected));
        }

        #[test]
        fn cutting_does_not_change_what_a_hostile_stream_gives(
            bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..10, cut in 0usize..300, side: bool,
        ) {
            let side = if side { Side::Target } else { Side::Host };
            let mut stream = bytes;
            if stream.len() >= 8 {
                stream[0] = kind;
                stream[2] = PduType::from_u8(kind).map_or(0, PduType::hlen);
                stream[5..8].fill(0);
            }
            let whole = decode(&mut established(side, (false, false), 4), &stream, &[]);
            let cut = cut % (stream.len() + 1);
            let cut = decode(&mut established(side, (false, false), 4), &stream, &[cut]);
            prop_assert_eq!(whole, cut);
        }
    }
}
