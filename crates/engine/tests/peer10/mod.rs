//! A 1.0 client without a socket, for the tests.
//!
//! Owns one connection of a simulated node as its peer sees it. Performatives go in and are written as frames; what
//! the node sends comes back frame by frame, and messages put together. It must never check what it is told to say:
//! tests lie on purpose. Rules: AMQP 1.0 parts 2 and 5.
#![allow(dead_code)] // each test file uses its own part of it

use weft_engine::conn::ConnId;
use weft_journal::SimDisk;
use weft_sim::Node;
use weft_wire::amqp10::frame::{self, FrameKind, Protocol, begin_frame, end_frame};
use weft_wire::amqp10::sections::{self, put_data};
use weft_wire::amqp10::*;

/// Largest frame that the node may send to these clients, unless they say another.
pub const FRAME_MAX: u32 = 131_072;

/// One frame that the node sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    pub channel: u16,
    pub body: Vec<u8>,
}

impl Said {
    pub fn performative(&self) -> Performative<'_> {
        Performative::decode(&self.body).expect("the node writes well-formed frames").0
    }

    pub fn payload(&self) -> &[u8] {
        Performative::decode(&self.body).expect("the node writes well-formed frames").1
    }

    /// What kind of frame it is, in a word.
    pub fn name(&self) -> &'static str {
        match self.performative() {
            Performative::Open(_) => "open",
            Performative::Begin(_) => "begin",
            Performative::Attach(_) => "attach",
            Performative::Flow(_) => "flow",
            Performative::Transfer(_) => "transfer",
            Performative::Disposition(_) => "disposition",
            Performative::Detach(_) => "detach",
            Performative::End(_) => "end",
            Performative::Close(_) => "close",
        }
    }
}

/// A delivery, put together from its transfers.
#[derive(Clone, Debug, PartialEq)]
pub struct Got {
    pub handle: u32,
    pub id: u32,
    pub tag: Vec<u8>,
    pub settled: bool,
    pub bytes: Vec<u8>,
    pub frames: usize,
}

impl Got {
    /// The content of its only data section.
    pub fn data(&self) -> &[u8] {
        match sections::scan(&self.bytes).expect("a whole message").kind {
            sections::BodyKind::Data(span) => span.of(&self.bytes),
            sections::BodyKind::Absent => &[],
            other => panic!("no data but {other:?}"),
        }
    }

    pub fn header(&self) -> Header {
        let span = sections::scan(&self.bytes).expect("a whole message").head.header.expect("a header");
        Header::decode(span.of(&self.bytes)).expect("a header")
    }

    pub fn annotation(&self, key: &str) -> Option<Value<'_>> {
        let span = sections::scan(&self.bytes).expect("a whole message").head.message_annotations?;
        sections::decode_map(span.of(&self.bytes)).expect("a map").get(key)
    }

    /// Everything from the properties on.
    pub fn bare(&self) -> &[u8] {
        let start = sections::scan(&self.bytes).expect("a whole message").head.bare_start;
        &self.bytes[start as usize..]
    }
}

/// One connection.
pub struct Peer {
    pub conn: ConnId,
    unread: Vec<u8>,
    next_delivery: u32,
}

impl Peer {
    /// A connection that is open, with a session on channel 0.
    pub fn connect(node: &mut Node) -> Self {
        Self::connect_with(node, &Open { container_id: "peer", max_frame_size: FRAME_MAX, ..Open::default() })
    }

    pub fn connect_with(node: &mut Node, open: &Open<'_>) -> Self {
        let conn = node.open().expect("the node takes one more connection");
        let mut peer = Self { conn, unread: Vec::new(), next_delivery: 0 };
        let mut bytes = sasl_opening();
        encode(&mut bytes, 0, open);
        node.feed(conn, &bytes);
        let head = peer.take_raw(node, 8);
        assert_eq!(head, Protocol::Sasl.header());
        let kinds: Vec<_> = peer.read_sasl(node);
        assert_eq!(kinds, ["Mechanisms", "Outcome"]);
        assert_eq!(peer.take_raw(node, 8), Protocol::Amqp.header());
        assert_eq!(names(&peer.read(node)), ["open"]);
        peer.begin(node, 0);
        peer
    }

    /// The next bytes, which are no frame.
    pub fn take_raw(&mut self, node: &mut Node, count: usize) -> Vec<u8> {
        self.unread.extend(node.take_output(self.conn));
        self.unread.drain(..count).collect()
    }

    /// SASL frames up to one that is none.
    pub fn read_sasl(&mut self, node: &mut Node) -> Vec<String> {
        self.unread.extend(node.take_output(self.conn));
        let mut kinds = Vec::new();
        while let Ok(Some(frame)) = frame::split(&self.unread, FRAME_MAX) {
            if frame.kind != FrameKind::Sasl {
                break;
            }
            kinds.push(format!("{:?}", SaslFrame::decode(frame.body).expect("a SASL frame")));
            let size = frame.size;
            self.unread.drain(..size);
        }
        kinds
    }

    /// What the node said since the last time, without empty frames.
    pub fn read(&mut self, node: &mut Node) -> Vec<Said> {
        self.unread.extend(node.take_output(self.conn));
        let (said, used) = parse(&self.unread);
        self.unread.drain(..used);
        said
    }

    /// Says something; what the node says then comes back.
    pub fn call<'a>(&mut self, node: &mut Node, channel: u16, performative: &impl Composite<'a>) -> Vec<Said> {
        let mut bytes = Vec::new();
        encode(&mut bytes, channel, performative);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    pub fn begin(&mut self, node: &mut Node, channel: u16) {
        let begin = Begin { next_outgoing_id: 0, incoming_window: 10_000, outgoing_window: 10_000, ..Begin::default() };
        assert_eq!(names(&self.call(node, channel, &begin)), ["begin"]);
    }

    /// A link on which the peer sends.
    pub fn sender(&mut self, node: &mut Node, handle: u32, address: Option<&str>) -> Vec<Said> {
        let name = format!("sender-{handle}");
        let target = Some(AttachTarget::Target(Target { address, ..Target::default() }));
        let source = Some(Source::default());
        let attach = Attach {
            name: &name,
            handle,
            role: Role::Sender,
            source,
            target,
            initial_delivery_count: Some(0),
            ..Attach::default()
        };
        self.call(node, 0, &attach)
    }

    /// A link on which the peer receives, with credit.
    pub fn receiver(&mut self, node: &mut Node, handle: u32, address: &str, credit: u32) -> Vec<Said> {
        let source = Source { address: Some(address), ..Source::default() };
        self.receiver_with(node, handle, source, SenderSettleMode::Mixed, credit)
    }

    pub fn receiver_with(
        &mut self,
        node: &mut Node,
        handle: u32,
        source: Source<'_>,
        mode: SenderSettleMode,
        credit: u32,
    ) -> Vec<Said> {
        let name = format!("receiver-{handle}");
        let attach = Attach {
            name: &name,
            handle,
            role: Role::Receiver,
            snd_settle_mode: mode,
            source: Some(source),
            target: Some(AttachTarget::Target(Target::default())),
            ..Attach::default()
        };
        let mut said = self.call(node, 0, &attach);
        if credit > 0 {
            said.extend(self.credit(node, handle, 0, credit, false));
        }
        said
    }

    /// Credit for a link; `count` is how many deliveries the peer has seen.
    pub fn credit(&mut self, node: &mut Node, handle: u32, count: u32, credit: u32, drain: bool) -> Vec<Said> {
        let flow = Flow {
            next_incoming_id: None,
            incoming_window: 1_000_000,
            outgoing_window: 10_000,
            handle: Some(handle),
            delivery_count: Some(count),
            link_credit: Some(credit),
            drain,
            ..Flow::default()
        };
        self.call(node, 0, &flow)
    }

    /// Sends a whole message in one frame.
    pub fn send(&mut self, node: &mut Node, handle: u32, message: &[u8], settled: bool) -> Vec<Said> {
        let bytes = self.transfer(handle, message, settled);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    /// The frame of a whole message.
    pub fn transfer(&mut self, handle: u32, message: &[u8], settled: bool) -> Vec<u8> {
        self.transfer_in(handle, message, settled, None)
    }

    pub fn transfer_in(
        &mut self,
        handle: u32,
        message: &[u8],
        settled: bool,
        state: Option<DeliveryState<'_>>,
    ) -> Vec<u8> {
        let id = self.next_delivery;
        self.next_delivery += 1;
        let tag = id.to_be_bytes();
        let (delivery_id, delivery_tag) = (Some(id), Some(&tag[..]));
        let transfer =
            Transfer { handle, delivery_id, delivery_tag, settled: Some(settled), state, ..Transfer::default() };
        frame_of(&transfer, message)
    }

    /// The frame of a message whose outcome nobody waits for.
    pub fn batchable(&mut self, handle: u32, message: &[u8]) -> Vec<u8> {
        let id = self.next_delivery;
        self.next_delivery += 1;
        let (delivery_id, delivery_tag) = (Some(id), Some(&b"t"[..]));
        frame_of(&Transfer { handle, delivery_id, delivery_tag, batchable: true, ..Transfer::default() }, message)
    }

    /// Answers deliveries of the node.
    pub fn settle(&mut self, node: &mut Node, first: u32, last: u32, outcome: Outcome<'_>) -> Vec<Said> {
        let state = Some(DeliveryState::Outcome(outcome));
        let disposition =
            Disposition { role: Role::Receiver, first, last: Some(last), settled: true, state, batchable: false };
        self.call(node, 0, &disposition)
    }
}

/// A frame with a payload on channel 0.
pub fn frame_of(transfer: &Transfer<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mark = begin_frame(&mut bytes, FrameKind::Amqp, 0);
    transfer.encode(&mut bytes);
    bytes.extend_from_slice(payload);
    end_frame(&mut bytes, mark);
    bytes
}

/// Everything a client says before its open.
pub fn sasl_opening() -> Vec<u8> {
    let mut bytes = Protocol::Sasl.header().to_vec();
    let init = SaslInit { mechanism: Symbol("PLAIN"), initial_response: Some(b"\0guest\0guest"), hostname: None };
    encode_sasl(&mut bytes, &init);
    bytes.extend_from_slice(&Protocol::Amqp.header());
    bytes
}

/// Whole frames of what a node sent, and how many bytes they took.
pub fn parse(bytes: &[u8]) -> (Vec<Said>, usize) {
    let (mut said, mut at) = (Vec::new(), 0);
    while let Some(frame) = frame::split(&bytes[at..], FRAME_MAX).expect("the node writes well-formed frames") {
        at += frame.size;
        if !frame.body.is_empty() {
            said.push(Said { channel: frame.channel, body: frame.body.to_vec() });
        }
    }
    (said, at)
}

pub fn names(said: &[Said]) -> Vec<&'static str> {
    said.iter().map(Said::name).collect()
}

/// Deliveries in what the node said, each put together.
pub fn deliveries(said: &[Said]) -> Vec<Got> {
    let mut done: Vec<Got> = Vec::new();
    let mut open: Vec<Got> = Vec::new();
    for said in said {
        let Performative::Transfer(transfer) = said.performative() else { continue };
        let mut got = match open.iter().position(|got| got.handle == transfer.handle) {
            Some(at) => open.remove(at),
            None => Got {
                handle: transfer.handle,
                id: transfer.delivery_id.expect("an id"),
                tag: transfer.delivery_tag.expect("a tag").to_vec(),
                settled: transfer.settled.unwrap_or(false),
                bytes: Vec::new(),
                frames: 0,
            },
        };
        got.bytes.extend_from_slice(said.payload());
        got.frames += 1;
        if transfer.more { open.push(got) } else { done.push(got) }
    }
    done
}

pub fn bodies(said: &[Said]) -> Vec<String> {
    deliveries(said).iter().map(|got| String::from_utf8_lossy(got.data()).into_owned()).collect()
}

/// A message of one data section.
pub fn message(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_data(&mut bytes, body);
    bytes
}

/// Ranges of deliveries that the node answered, with their states in words.
pub fn answers(said: &[Said]) -> Vec<(u32, u32, bool, String)> {
    let answer = |said: &Said| match said.performative() {
        Performative::Disposition(answer) => {
            let state = match answer.state {
                Some(DeliveryState::Outcome(Outcome::Rejected(rejected))) => {
                    format!("rejected {}", rejected.error.map_or("", |error| error.condition.0))
                }
                Some(DeliveryState::Outcome(outcome)) => format!("{outcome:?}").to_lowercase(),
                Some(DeliveryState::Transactional(_)) => "provisional".to_owned(),
                other => format!("{other:?}"),
            };
            Some((answer.first, answer.last.unwrap_or(answer.first), answer.settled, state))
        }
        _ => None,
    };
    said.iter().filter_map(answer).collect()
}

/// The condition of the last detach, end or close.
#[track_caller]
pub fn condition(said: &[Said]) -> String {
    let error = match said.last().map(Said::performative) {
        Some(Performative::Detach(detach)) => detach.error,
        Some(Performative::End(end)) => end.error,
        Some(Performative::Close(close)) => close.error,
        other => panic!("expected an end, got {other:?}"),
    };
    error.map_or(String::new(), |error| error.condition.0.to_owned())
}

/// Runs so many disk jobs; false if there were fewer.
pub fn run(node: &mut Node, disk: &SimDisk, mut count: usize) -> bool {
    loop {
        let jobs = node.engine.poll_disk();
        if jobs.is_empty() {
            return false;
        }
        for mut job in jobs {
            if count == 0 {
                return true;
            }
            count -= 1;
            job.run(disk);
            node.engine.disk_done(job);
        }
        node.settle();
    }
}

/// A message that is to be kept.
pub fn durable(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x00\x53\x70\xc0\x02\x01\x41".to_vec();
    bytes.extend_from_slice(&message(body));
    bytes
}
