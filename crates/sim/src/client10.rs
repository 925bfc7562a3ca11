//! A 1.0 client without a socket.
//!
//! Owns one connection of a simulated node as its peer sees it, with one session. Performatives and messages go in and
//! are written as frames; what the node sends comes back as performatives with their payload. It must never check what
//! it is told to say: tests lie on purpose. Rules: AMQP 1.0 sections 2.4 (opening), 2.6 (links), 5.3 (SASL).

use weft_engine::conn::ConnId;
use weft_wire::amqp10::frame::{self, FrameKind, Protocol};
use weft_wire::amqp10::{
    Attach, AttachTarget, Begin, Composite, DeliveryState, Disposition, Flow, Open, Performative, Role, SaslInit,
    SenderSettleMode, Source, Symbol, Target, Transfer, encode, encode_sasl, sections,
};

use crate::node::Node;

/// One thing the node said.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// A protocol header.
    Header([u8; 8]),
    /// A frame that is not empty: its kind, channel and body.
    Frame(FrameKind, u16, Vec<u8>),
}

impl Said {
    /// The performative and its payload, if this is an AMQP frame.
    pub fn performative(&self) -> Option<(Performative<'_>, &[u8])> {
        match self {
            Self::Frame(FrameKind::Amqp, _, body) => {
                Some(Performative::decode(body).expect("the node writes well-formed performatives"))
            }
            _ => None,
        }
    }
}

/// One connection with one session, on channel 0.
pub struct Client10 {
    pub conn: ConnId,
    unread: Vec<u8>,
    next_delivery_id: u32,
}

impl Client10 {
    /// A connection that is open.
    pub fn connect(node: &mut Node) -> Self {
        let conn = node.open().expect("the node takes one more connection");
        let mut client = Self { conn, unread: Vec::new(), next_delivery_id: 0 };
        node.feed(conn, &opening());
        let said = client.read(node);
        assert!(matches!(said.last().and_then(Said::performative), Some((Performative::Begin(_), _))), "{said:?}");
        client
    }

    /// Says something on the session; what the node says then comes back.
    pub fn call<'a>(&mut self, node: &mut Node, performative: &impl Composite<'a>) -> Vec<Said> {
        let mut bytes = Vec::new();
        encode(&mut bytes, 0, performative);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    /// A link by which this client sends.
    pub fn attach_sender(&mut self, node: &mut Node, name: &str, handle: u32, address: Option<&str>) -> Vec<Said> {
        let target = Some(AttachTarget::Target(Target { address, ..Target::default() }));
        let source = Some(Source::default());
        let initial_delivery_count = Some(0);
        let role = Role::Sender;
        self.call(node, &Attach { name, handle, role, source, target, initial_delivery_count, ..Attach::default() })
    }

    /// A link by which this client receives; `settled` asks for deliveries that need no settlement.
    pub fn attach_receiver(
        &mut self,
        node: &mut Node,
        name: &str,
        handle: u32,
        address: &str,
        settled: bool,
    ) -> Vec<Said> {
        let source = Some(Source { address: Some(address), ..Source::default() });
        let target = Some(AttachTarget::Target(Target::default()));
        let snd_settle_mode = if settled { SenderSettleMode::Settled } else { SenderSettleMode::Mixed };
        let role = Role::Receiver;
        self.call(node, &Attach { name, handle, role, snd_settle_mode, source, target, ..Attach::default() })
    }

    /// Gives a link credit, as counted from `delivery_count`.
    pub fn credit(&mut self, node: &mut Node, handle: u32, delivery_count: u32, credit: u32, drain: bool) -> Vec<Said> {
        let flow = Flow {
            next_incoming_id: Some(0),
            incoming_window: u32::MAX >> 1,
            next_outgoing_id: self.next_delivery_id,
            outgoing_window: u32::MAX >> 1,
            handle: Some(handle),
            delivery_count: Some(delivery_count),
            link_credit: Some(credit),
            drain,
            ..Flow::default()
        };
        self.call(node, &flow)
    }

    /// Sends a message of one data section.
    pub fn send(&mut self, node: &mut Node, handle: u32, settled: bool, body: &[u8]) -> Vec<Said> {
        let id = self.next_delivery_id;
        self.next_delivery_id = id.wrapping_add(1);
        let tag = id.to_be_bytes();
        let transfer = Transfer {
            handle,
            delivery_id: Some(id),
            delivery_tag: Some(&tag),
            message_format: Some(0),
            settled: Some(settled),
            ..Transfer::default()
        };
        let mut bytes = Vec::new();
        let mark = frame::begin_frame(&mut bytes, FrameKind::Amqp, 0);
        transfer.encode(&mut bytes);
        sections::put_data(&mut bytes, body);
        frame::end_frame(&mut bytes, mark);
        node.feed(self.conn, &bytes);
        self.read(node)
    }

    /// Settles deliveries that this client received.
    pub fn settle(&mut self, node: &mut Node, first: u32, last: u32, state: Option<DeliveryState<'_>>) -> Vec<Said> {
        let (role, last, settled) = (Role::Receiver, Some(last), true);
        self.call(node, &Disposition { role, first, last, settled, state, batchable: false })
    }

    /// What the node said since the last time.
    pub fn read(&mut self, node: &mut Node) -> Vec<Said> {
        self.unread.extend(node.take_output(self.conn));
        let (said, used) = parse(&self.unread);
        self.unread.drain(..used);
        said
    }
}

/// Everything a client says until its first session, in one piece.
pub fn opening() -> Vec<u8> {
    let mut bytes = Protocol::Sasl.header().to_vec();
    encode_sasl(&mut bytes, &SaslInit { mechanism: Symbol("ANONYMOUS"), initial_response: None, hostname: None });
    bytes.extend_from_slice(&Protocol::Amqp.header());
    encode(&mut bytes, 0, &Open { container_id: "sim", ..Open::default() });
    let window = u32::MAX >> 1;
    encode(&mut bytes, 0, &Begin { incoming_window: window, outgoing_window: window, ..Begin::default() });
    bytes
}

/// Reads headers and frames from what a node sent; also how many bytes they took. Empty frames are left out.
pub fn parse(bytes: &[u8]) -> (Vec<Said>, usize) {
    let (mut said, mut at) = (Vec::new(), 0);
    loop {
        let rest = &bytes[at..];
        if let Some(header) = rest.first_chunk::<8>().filter(|header| header.starts_with(b"AMQP")) {
            said.push(Said::Header(*header));
            at += 8;
            continue;
        }
        let Some(frame) = frame::split(rest, u32::MAX).expect("the node writes well-formed frames") else {
            return (said, at);
        };
        if !frame.body.is_empty() {
            said.push(Said::Frame(frame.kind, frame.channel, frame.body.to_vec()));
        }
        at += frame.size;
    }
}
