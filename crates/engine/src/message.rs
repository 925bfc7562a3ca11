//! The letter: one message, however many queues and deliveries hold it.
//!
//! Owns a message's bytes and the few facts routing and queues need. Sessions build it from frames, queues share it by
//! reference count, sessions write it out again; a changed head (annotations, x-death) makes a new message around the
//! same body. It must never decode a body. Rules: AMQP 1.0 part 3.2 (bare message untouched), AMQP 0-9-1 section 4.2.6.

use std::ops::{Deref, Range};
use std::rc::Rc;
use std::sync::Arc;

use weft_journal::Room;
use weft_wire::amqp10::sections::Head as Head10;

use crate::broker::Death;
use crate::memory::{Charge, Ledger};

/// A name that many things share: an exchange, a routing key, a consumer tag.
pub type Name = Rc<[u8]>;

/// Size of the pieces a large body is kept in: no message is ever reallocated while it grows.
pub const PIECE_BYTES: usize = 64 << 10;

/// How the head of a message is written.
#[derive(Debug)]
pub enum Kind {
    /// Head: 0-9-1 property flags and values. Body: the content.
    Amqp091,
    /// Head: the 1.0 sections before the body. Body: body sections and footer, as sent.
    Amqp10(Box<Head10>),
}

/// Facts read once from the head at arrival.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits {
    pub durable: bool,
    pub priority: u8,
    /// Time to live in milliseconds, from the message itself.
    pub ttl_ms: Option<u64>,
    /// 1.0: deliveries that failed before this node.
    pub delivery_count: u32,
    /// The connection it came in by (raw id), for no-local.
    pub publisher: u64,
    /// Routed by its CC header as well.
    pub copied: bool,
    /// It came over a relay link, so that its identity and its trace are true; a client may write anything there.
    pub relayed: bool,
    /// It was seen at arrival that it has no type (`fields::type_of`); if not, that is still to be found out.
    pub untyped: bool,
    /// When this node took it, in microseconds since 1970.
    pub arrived_us: u64,
    /// No other message of this node, before or after any restart, has this number.
    pub serial: u64,
}

/// One message.
#[derive(Debug)]
pub struct Message {
    pub kind: Kind,
    pub exchange: Name,
    pub routing_key: Name,
    pub traits: Traits,
    /// Where it died before, newest first.
    pub deaths: Option<Rc<[Death]>>,
    body: Body,
    /// Where the head lies in the first piece, unless it was replaced.
    head: Range<u32>,
    own_head: Option<Box<[u8]>>,
    charge: Charge,
}

/// The bytes of a body, shared by every message made from the same letter.
#[derive(Clone, Debug)]
pub struct Body {
    first: Buffer,
    range: Range<u32>,
    rest: Option<Rc<[Box<[u8]>]>>,
}

/// Bytes that are shared and no longer change.
#[derive(Clone, Debug)]
pub enum Buffer {
    /// A message's own.
    Own(Rc<[u8]>),
    /// What was read in pieces, or from disk at once with other messages.
    Read(Arc<Room>),
}

impl Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Read(bytes) => bytes,
        }
    }
}

impl Body {
    /// A body that lies in one buffer, beside other bytes perhaps.
    pub fn new(first: Rc<[u8]>, range: Range<usize>) -> Self {
        Self::within(Buffer::Own(first), range)
    }

    /// The same for any buffer.
    pub fn within(first: Buffer, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= first.len());
        Self { first, range: range.start as u32..range.end as u32, rest: None }
    }

    /// No body at all.
    pub fn empty() -> Self {
        Self::new(Rc::from([]), 0..0)
    }

    /// The body's bytes, piece after piece.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let rest = self.rest.iter().flat_map(|pieces| pieces.iter().map(|piece| &piece[..]));
        std::iter::once(self.first()).chain(rest)
    }

    /// One piece, by its place in `parts`.
    pub fn part(&self, index: usize) -> Option<&[u8]> {
        match index.checked_sub(1) {
            None => Some(self.first()),
            Some(index) => self.rest.as_ref()?.get(index).map(|piece| &piece[..]),
        }
    }

    /// The same bytes without the first few, which lie in the first piece.
    pub fn without_front(&self, count: usize) -> Self {
        debug_assert!(count <= self.first().len());
        Self { range: self.range.start + count as u32..self.range.end, ..self.clone() }
    }

    /// The first piece, which is all of it unless the message came in many frames.
    #[inline]
    pub fn first(&self) -> &[u8] {
        &self.first[self.range.start as usize..self.range.end as usize]
    }

    /// True when `first` is the whole body.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.rest.is_none()
    }

    /// Length of the whole body.
    #[inline]
    pub fn len(&self) -> usize {
        let rest = self.rest.as_ref().map_or(0, |pieces| pieces.iter().map(|piece| piece.len()).sum());
        (self.range.end - self.range.start) as usize + rest
    }

    /// Has it so many bytes, all in one piece?
    #[inline]
    fn is_single_of(&self, bytes: u32) -> bool {
        self.range.end.wrapping_sub(self.range.start) == bytes && self.rest.is_none()
    }

    /// True when there is not a byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole body in one buffer: for filters, conversions and Python, never for passing it on.
    pub fn gather(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len());
        self.parts().for_each(|part| all.extend_from_slice(part));
        all
    }
}

impl Message {
    /// A message whose head and body lie in one buffer.
    pub fn new(
        kind: Kind,
        names: (Name, Name),
        traits: Traits,
        head: Range<usize>,
        body: Body,
        charge: Charge,
    ) -> Self {
        debug_assert!(head.end <= body.first.len());
        Self {
            kind,
            exchange: names.0,
            routing_key: names.1,
            traits,
            deaths: None,
            body,
            head: head.start as u32..head.end as u32,
            own_head: None,
            charge,
        }
    }

    /// What stands for a message of which only the place is of interest any more.
    pub fn hollow() -> Self {
        let (nothing, name) = (Body::empty(), Name::from(&[][..]));
        // On nobody's account: there is one of these.
        let charge = Ledger::new(0).account().charge(0);
        Self::new(Kind::Amqp091, (Rc::clone(&name), name), Traits::default(), 0..0, nothing, charge)
    }

    /// A message whose head lies apart from its body.
    pub fn with_own_head(
        kind: Kind,
        names: (Name, Name),
        traits: Traits,
        head: Box<[u8]>,
        body: Body,
        charge: Charge,
    ) -> Self {
        Self { own_head: Some(head), ..Self::new(kind, names, traits, 0..0, body, charge) }
    }

    /// The same letter in a new envelope: another head, the body not copied.
    pub fn with_head(&self, kind: Kind, head: Box<[u8]>) -> Self {
        Self {
            kind,
            exchange: Rc::clone(&self.exchange),
            routing_key: Rc::clone(&self.routing_key),
            traits: self.traits,
            deaths: self.deaths.clone(),
            body: self.body.clone(),
            head: 0..0,
            own_head: Some(head),
            charge: self.charge.again(),
        }
    }

    /// The same letter, head and all, under other names.
    pub fn relabel(&self, names: (Name, Name), traits: Traits, deaths: Option<Rc<[Death]>>) -> Self {
        let kind = match &self.kind {
            Kind::Amqp091 => Kind::Amqp091,
            Kind::Amqp10(head) => Kind::Amqp10(head.clone()),
        };
        Self {
            kind,
            exchange: names.0,
            routing_key: names.1,
            traits,
            deaths,
            body: self.body.clone(),
            head: self.head.clone(),
            own_head: self.own_head.clone(),
            charge: self.charge.again(),
        }
    }

    /// The raw head: 0-9-1 properties, or the 1.0 sections before the body.
    #[inline]
    pub fn head(&self) -> &[u8] {
        match &self.own_head {
            Some(head) => head,
            None => &self.body.first[self.head.start as usize..self.head.end as usize],
        }
    }

    /// The body.
    #[inline]
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// What queue limits count: the body's bytes.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.body.len()
    }

    /// Has the body so many bytes, all in one piece?
    #[inline]
    pub fn is_single_of(&self, bytes: u32) -> bool {
        self.body.is_single_of(bytes)
    }
}

/// A message under construction whose bytes arrive in many frames.
#[derive(Debug, Default)]
pub struct Gatherer {
    pieces: Vec<Box<[u8]>>,
    current: Vec<u8>,
    len: usize,
}

impl Gatherer {
    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True before the first byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a frame's bytes; `expected` (what is known to come in all) keeps small messages in exact buffers.
    pub fn push(&mut self, mut bytes: &[u8], expected: usize) {
        while !bytes.is_empty() {
            if self.current.capacity() == 0 {
                let known = expected.saturating_sub(self.len);
                let want = if known == 0 && !self.pieces.is_empty() { PIECE_BYTES } else { known.max(bytes.len()) };
                self.current.reserve_exact(want.min(PIECE_BYTES));
            }
            let room = self.current.capacity() - self.current.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.current.extend_from_slice(now);
            self.len += now.len();
            bytes = later;
            if self.current.len() == self.current.capacity() {
                self.pieces.push(std::mem::take(&mut self.current).into_boxed_slice());
            }
        }
    }

    /// Up to `count` leading bytes in one buffer, for reading a head that frames may have cut anywhere.
    pub fn prefix(&self, count: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(count.min(self.len));
        for piece in self.pieces.iter().map(|piece| &piece[..]).chain(std::iter::once(&self.current[..])) {
            let want = count - out.len();
            out.extend_from_slice(&piece[..piece.len().min(want)]);
            if out.len() == count {
                break;
            }
        }
        out
    }

    /// Ends the gathering: the body, behind a head of so many bytes that lies in the same buffer. Nothing is copied,
    /// unless frames have cut the head.
    pub fn finish(mut self, head_len: usize) -> Body {
        if !self.current.is_empty() {
            self.pieces.push(std::mem::take(&mut self.current).into_boxed_slice());
        }
        let mut pieces = self.pieces.into_iter();
        let mut first = pieces.next().map(Vec::from).unwrap_or_default();
        while first.len() < head_len {
            let Some(piece) = pieces.next() else { break };
            first.extend_from_slice(&piece);
        }
        let end = first.len();
        let mut body = Body::within(Buffer::Read(Arc::new(first.into())), head_len.min(end)..end);
        body.rest = if pieces.len() == 0 { None } else { Some(pieces.collect()) };
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn frames_of_any_size_gather_to_the_same_body() {
        for (len, step) in [(0, 1), (1, 1), (70_000, 999), (200_000, 131_064), (PIECE_BYTES, PIECE_BYTES), (65_537, 1)]
        {
            let bytes = pattern(len);
            let mut gatherer = Gatherer::default();
            bytes.chunks(step).for_each(|chunk| gatherer.push(chunk, len));
            let body = gatherer.finish(0);
            assert_eq!(body.gather(), bytes);
            assert_eq!(body.len(), len);
            assert!(body.parts().all(|part| part.len() <= PIECE_BYTES));
        }
    }

    #[test]
    fn a_hundred_megabytes_lie_in_buffers_of_one_size_that_never_move() {
        let frame = pattern(131_064);
        let mut gatherer = Gatherer::default();
        let mut places = Vec::new();
        while gatherer.len() < 100 << 20 {
            gatherer.push(&frame, 0);
            let known = places.len();
            places.extend(gatherer.pieces[known..].iter().map(|piece| (piece.as_ptr(), piece.len())));
        }
        let body = gatherer.finish(0);
        assert!(body.len() >= 100 << 20);
        let now: Vec<(*const u8, usize)> = body.parts().map(|part| (part.as_ptr(), part.len())).collect();
        assert_eq!(now[..places.len()], places[..], "nothing was copied or grown");
        assert!(places.iter().all(|place| place.1 == PIECE_BYTES));
    }

    #[test]
    fn another_head_leaves_the_body_where_it_is() {
        let names: (Name, Name) = (Name::from(&b""[..]), Name::from(&b"q"[..]));
        let body = Body::new(Rc::from(pattern(1_000)), 0..1_000);
        let charge = Ledger::new(1 << 20).account().charge(1_000);
        let message = Message::new(Kind::Amqp091, names, Traits::default(), 0..0, body, charge);
        let annotated = message.with_head(Kind::Amqp091, Box::from(*b"a trace"));
        assert_eq!(annotated.head(), b"a trace");
        assert_eq!(annotated.body().first().as_ptr(), message.body().first().as_ptr(), "only the head is new");
    }

    #[test]
    fn a_head_cut_anywhere_lies_before_the_body() {
        let bytes = pattern(150_000);
        for head in [0, 1, 65_535, 65_536, 65_537, 149_999, 150_000] {
            let mut gatherer = Gatherer::default();
            bytes.chunks(1000).for_each(|chunk| gatherer.push(chunk, 0));
            assert_eq!(gatherer.prefix(head), bytes[..head]);
            let body = gatherer.finish(head);
            assert_eq!(body.first[..head], bytes[..head]);
            assert_eq!(body.gather(), bytes[head..]);
        }
    }
}
