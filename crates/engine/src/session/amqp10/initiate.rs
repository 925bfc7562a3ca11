//! The opening of a connection that this node dials: `opening.rs` seen from the other side.
//!
//! Owns the client's part of headers, SASL and open. What to say comes in with the dial; the peer's limits and its name
//! go out with `PeerOpened`, and what went wrong with the end of the connection, in words an operator can use. It must
//! never retry or choose: Python gave one mechanism and one response. Rules: AMQP 1.0 sections 2.4 and 5.3.

use weft_wire::amqp10::frame::{Frame, FrameKind, MIN_MAX_FRAME_SIZE, Protocol};
use weft_wire::amqp10::{
    Begin, Open, Performative, SaslCode, SaslFrame, SaslInit, SaslResponse, Symbol, Value, condition, encode,
    encode_sasl, writer,
};

use super::channel::Channel;
use super::opening::Opening;
use super::{Fault, Session, State};
use crate::broker::Broker;
use crate::conn::Io;
use crate::event::{Event, Fields};

/// The property of open by which weft nodes tell their name.
pub(super) const NODE_PROPERTY: &str = "node";

/// A connection to be opened.
#[derive(Clone, Debug, Default)]
pub struct Dial {
    pub container: String,
    pub hostname: String,
    /// The SASL mechanism; empty leaves SASL out.
    pub mechanism: String,
    pub response: Vec<u8>,
    /// Who the peer is here, for links that it attaches; 0 refuses them.
    pub principal: u32,
    pub idle_ms: u32,
    pub frame_bytes_max: u32,
    pub tls: bool,
}

/// What the peer has to say next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialling {
    SaslHeader,
    Mechanisms,
    Outcome,
    Header,
    Open,
}

impl Session {
    /// Says the first words to a peer.
    pub fn dial(dial: Dial, io: &mut Io, broker: &Broker) -> Self {
        let mut session = Self::new(broker);
        session.frame_bytes_max = dial.frame_bytes_max.clamp(MIN_MAX_FRAME_SIZE, session.frame_bytes_max);
        session.idle_ms = dial.idle_ms;
        io.principal = dial.principal;
        let bare = dial.mechanism.is_empty();
        session.dial = Some(Box::new(dial));
        match bare {
            true => session.say_open(io, broker),
            false => {
                io.output.extend_from_slice(&Protocol::Sasl.header());
                session.state = State::Opening(Opening::Dialled(Dialling::SaslHeader));
            }
        }
        session
    }

    /// Did this node dial the peer?
    pub(super) fn is_dialled(&self) -> bool {
        self.dial.is_some()
    }

    /// The header of AMQP itself and open, which need not wait for the peer's header.
    fn say_open(&mut self, io: &mut Io, broker: &Broker) {
        io.output.extend_from_slice(&Protocol::Amqp.header());
        self.write_open(io, broker);
        self.state = State::Opening(Opening::Dialled(Dialling::Header));
    }

    /// The peer's protocol header.
    pub(super) fn on_dialled_header(&mut self, io: &mut Io, step: Dialling, header: &[u8; 8]) {
        let next = match (step, Protocol::from_header(header)) {
            (Dialling::SaslHeader, Some(Protocol::Sasl)) => Dialling::Mechanisms,
            (Dialling::Header, Some(Protocol::Amqp)) => Dialling::Open,
            (Dialling::SaslHeader, Some(Protocol::Amqp)) => return io.finish("the peer takes no SASL"),
            (_, Some(Protocol::Sasl)) => return io.finish("the peer demands SASL"),
            _ if header.starts_with(b"AMQP") => {
                let [.., id, major, minor, revision] = header;
                return io.finish(format!("the peer speaks AMQP {id}-{major}-{minor}-{revision}, not AMQP 1.0"));
            }
            _ => return io.finish("the peer does not speak AMQP"),
        };
        self.state = State::Opening(Opening::Dialled(next));
    }

    pub(super) fn on_dialled_frame(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        step: Dialling,
        frame: &Frame<'_>,
    ) -> Result<(), Fault> {
        match (step, frame.kind) {
            (Dialling::Mechanisms | Dialling::Outcome, FrameKind::Sasl) => {
                self.on_sasl(io, broker, step, SaslFrame::decode(frame.body)?);
            }
            (Dialling::Open, FrameKind::Amqp) if frame.body.is_empty() => {}
            (Dialling::Open, FrameKind::Amqp) => match Performative::decode(frame.body)?.0 {
                Performative::Open(open) => return self.on_peer_open(io, broker, &open),
                _ => return Err(Fault::connection(condition::ILLEGAL_STATE, "the first frame must be open")),
            },
            _ => io.finish("unexpected frame while opening"),
        }
        Ok(())
    }

    fn on_sasl(&mut self, io: &mut Io, broker: &Broker, step: Dialling, frame: SaslFrame<'_>) {
        let Some(dial) = &self.dial else { return };
        let mechanism = dial.mechanism.as_str();
        match (step, frame) {
            (Dialling::Mechanisms, SaslFrame::Mechanisms(offer)) => {
                let offered = offer.sasl_server_mechanisms;
                if !offered.contains(Symbol(mechanism)) {
                    let names: Vec<&str> = offered.iter().map(|symbol| symbol.0).collect();
                    return io.finish(format!("the peer offers SASL {}, not {mechanism}", names.join(", ")));
                }
                let hostname = Some(dial.hostname.as_str()).filter(|name| !name.is_empty());
                let response = Some(dial.response.as_slice());
                let init = SaslInit { mechanism: Symbol(mechanism), initial_response: response, hostname };
                encode_sasl(&mut io.output, &init);
                self.state = State::Opening(Opening::Dialled(Dialling::Outcome));
            }
            // Some servers ask once more for what EXTERNAL has said already.
            (Dialling::Outcome, SaslFrame::Challenge(_)) if mechanism == "EXTERNAL" => {
                encode_sasl(&mut io.output, &SaslResponse { response: &dial.response });
            }
            (Dialling::Outcome, SaslFrame::Outcome(outcome)) => match outcome.code {
                SaslCode::Ok => self.say_open(io, broker),
                SaslCode::Auth => io.finish(format!("the peer refused the user or password (SASL {mechanism})")),
                code => io.finish(format!("the peer's SASL failed ({code:?})")),
            },
            _ => io.finish("unexpected SASL frame"),
        }
    }

    /// The peer is in: its limits are taken, Python is told, and a session is begun for our links.
    fn on_peer_open(&mut self, io: &mut Io, broker: &mut Broker, open: &Open<'_>) -> Result<(), Fault> {
        self.take_limits(open)?;
        let node = open.properties.and_then(|map| map.get(NODE_PROPERTY)?.as_str().map(str::to_owned));
        let properties = open.properties.map_or(Fields::Empty, |map| {
            let mut bytes = Vec::new();
            writer::put_value(&mut bytes, &Value::Map(map));
            Fields::Amqp10(bytes.into_boxed_slice())
        });
        if let Some(dial) = &mut self.dial {
            dial.response = Vec::new();
        }
        if io.principal != 0 {
            self.vhost = broker.principal(io.principal).map_or(self.vhost, |principal| principal.vhost);
        }
        let (conn, container, node) = (io.id.raw(), open.container_id.to_owned(), node.unwrap_or_default());
        broker.events.push(Event::PeerOpened { conn, container, node, properties });
        self.state = State::Running;
        self.begin_own(io, broker);
        if let Some(next_ns) = self.tick(io, broker) {
            broker.schedule_conn(io, next_ns);
        }
        Ok(())
    }

    /// Begins a session of ours, for links of ours.
    pub(super) fn begin_own(&mut self, io: &mut Io, broker: &Broker) -> Option<u16> {
        let number = self.free_channel(0)?;
        let limits = &broker.limits;
        let channel = Channel::new(limits.session_window, limits.links_max.saturating_sub(1));
        self.put_channel(number, channel);
        let begin = Begin {
            next_outgoing_id: 0,
            incoming_window: limits.session_window,
            outgoing_window: limits.session_window,
            handle_max: limits.links_max.saturating_sub(1),
            ..Begin::default()
        };
        encode(&mut io.output, number, &begin);
        self.own_channel = Some(number);
        Some(number)
    }
}
