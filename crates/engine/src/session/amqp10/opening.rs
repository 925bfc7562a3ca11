//! The opening of a 1.0 connection: protocol headers, SASL, open.
//!
//! Owns everything up to the exchange of open. The mechanism and response go to Python, and so does the virtual host;
//! a peer without SASL is judged as ANONYMOUS before its open is read. It must never judge a password. Rules: AMQP
//! 1.0 sections 2.2, 2.4 and 5.3; RabbitMQ's `vhost:NAME` in open.hostname.

use std::collections::{BTreeMap, VecDeque};

use weft_wire::amqp10::frame::{Frame, FrameKind, MIN_MAX_FRAME_SIZE, Protocol};
use weft_wire::amqp10::{
    MapBuf, Open, Performative, SaslChallenge, SaslCode, SaslFrame, SaslMechanisms, SaslOutcome, Symbol, Symbols,
    Value, condition, encode, encode_sasl, writer,
};

use super::initiate::{Dialling, NODE_PROPERTY};
use super::pace::Paced;
use super::{Fault, Session, State, condition_of};
use crate::broker::Broker;
use crate::conn::{Io, Wait};
use crate::event::{Event, Fields, Wire};
use crate::session::Answer;
use crate::slab::Id;

/// Smallest idle time-out of a peer that we can promise to meet.
const PEER_IDLE_MS_MIN: u32 = 100;
/// What this node can do, in the words of other products.
const CAPABILITIES: [Symbol<'static>; 3] =
    [Symbol("ANONYMOUS-RELAY"), Symbol("DELAYED_DELIVERY"), Symbol("SHARED-SUBS")];

/// How far the opening has come.
pub(super) enum Opening {
    /// The peer's SASL frame comes next: init (step 0) or a response.
    Sasl { step: u32, mechanism: String },
    /// Python judges a SASL frame; without SASL, the bare connection.
    Judged { step: u32, mechanism: String, bare: bool },
    /// SASL is over: the header of AMQP itself comes next.
    Header,
    /// Open comes next.
    Open,
    /// Python judges the virtual host.
    Asked,
    /// We dialled, and the peer's part comes next.
    Dialled(Dialling),
}

impl Opening {
    /// Are the protocol headers exchanged, so that an error can be told with open and close?
    pub(super) fn is_open_phase(&self) -> bool {
        matches!(self, Self::Open | Self::Asked)
    }
}

impl Session {
    /// Answers a protocol header; None if it is none of 1.0.
    pub fn start(header: &[u8; 8], io: &mut Io, broker: &mut Broker) -> Option<Self> {
        let mut session = Self::new(broker);
        match Protocol::from_header(header)? {
            Protocol::Sasl => {
                io.output.extend_from_slice(&Protocol::Sasl.header());
                // EXTERNAL needs what only TLS brings; AMQPLAIN is written in tables of the other protocol.
                let fits = |name: &&String| *name != "AMQPLAIN" && (*name != "EXTERNAL" || io.tls);
                let offered: Vec<Symbol<'_>> = broker.mechanisms.iter().filter(fits).map(|name| Symbol(name)).collect();
                let mechanisms = SaslMechanisms { sasl_server_mechanisms: Symbols::Slice(&offered) };
                encode_sasl(&mut io.output, &mechanisms);
            }
            Protocol::Amqp => session.judge(io, broker, "ANONYMOUS".to_owned(), b"", 0, true),
            Protocol::Tls => return None,
        }
        Some(session)
    }

    pub(super) fn new(broker: &Broker) -> Self {
        let limits = &broker.limits;
        Self {
            state: State::Opening(Opening::Sasl { step: 0, mechanism: String::new() }),
            frame_bytes_max: limits.frame_bytes_max.max(MIN_MAX_FRAME_SIZE),
            peer_frame_bytes_max: MIN_MAX_FRAME_SIZE,
            channel_max: limits.channels_max.saturating_sub(1),
            idle_ms: u32::from(limits.heartbeat_s) * 1_000,
            peer_idle_ms: 0,
            vhost: Id::from_raw(0),
            channels: Vec::new(),
            theirs: Vec::new(),
            dial: None,
            own_channel: None,
            own: BTreeMap::new(),
            resting: Vec::new(),
            rested_ns: 0,
            names: BTreeMap::new(),
            suspended: BTreeMap::new(),
            pending: None,
            waiting: None,
            transactions: super::Transactions::default(),
            owing: Vec::new(),
            unfinished: VecDeque::new(),
            draining: Vec::new(),
            links_made: 0,
            tags_made: 0,
            blocked: false,
            patient: false,
            late: Vec::new(),
            late_ns: 0,
            paced: Paced::default(),
        }
    }

    /// Is a protocol header to come next, and no frame?
    pub(super) fn wants_header(&self) -> bool {
        let State::Opening(opening) = &self.state else { return false };
        matches!(opening, Opening::Header | Opening::Dialled(Dialling::SaslHeader | Dialling::Header))
    }

    /// The header that must follow SASL, or the answer to ours.
    pub(super) fn on_header(&mut self, io: &mut Io, header: &[u8; 8]) {
        if let State::Opening(Opening::Dialled(step)) = self.state {
            return self.on_dialled_header(io, step, header);
        }
        io.output.extend_from_slice(&Protocol::Amqp.header());
        match Protocol::from_header(header) {
            Some(Protocol::Amqp) => self.state = State::Opening(Opening::Open),
            _ => io.finish("no AMQP header after SASL"),
        }
    }

    pub(super) fn on_opening_frame(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        frame: &Frame<'_>,
    ) -> Result<(), Fault> {
        let State::Opening(opening) = &mut self.state else { return Ok(()) };
        match (opening, frame.kind) {
            (Opening::Dialled(step), _) => {
                let step = *step;
                return self.on_dialled_frame(io, broker, step, frame);
            }
            (Opening::Sasl { step, mechanism }, FrameKind::Sasl) => {
                let (step, mechanism) = (*step, std::mem::take(mechanism));
                match SaslFrame::decode(frame.body)? {
                    SaslFrame::Init(init) if step == 0 => {
                        let response = init.initial_response.unwrap_or_default();
                        self.judge(io, broker, init.mechanism.0.to_owned(), response, 0, false);
                    }
                    SaslFrame::Response(response) if step > 0 => {
                        self.judge(io, broker, mechanism, response.response, step, false);
                    }
                    _ => io.finish("unexpected SASL frame"),
                }
            }
            (Opening::Open, FrameKind::Amqp) if frame.body.is_empty() => {}
            (Opening::Open, FrameKind::Amqp) => match Performative::decode(frame.body)?.0 {
                Performative::Open(open) => return self.on_open(io, broker, &open),
                _ => return Err(Fault::connection(condition::ILLEGAL_STATE, "the first frame must be open")),
            },
            _ => io.finish("unexpected frame while opening"),
        }
        Ok(())
    }

    /// Python is asked whether this peer may enter.
    fn judge(&mut self, io: &mut Io, broker: &mut Broker, mechanism: String, response: &[u8], step: u32, bare: bool) {
        let request = broker.next_request();
        broker.events.push(Event::AuthRequested {
            request,
            conn: io.id.raw(),
            wire: Wire::Amqp10,
            mechanism: mechanism.clone(),
            response: response.to_vec(),
            step,
        });
        self.state = State::Opening(Opening::Judged { step, mechanism, bare });
        io.parked = Some(Wait::Answer(request));
    }

    /// Takes the peer's limits.
    pub(super) fn take_limits(&mut self, open: &Open<'_>) -> Result<(), Fault> {
        if open.max_frame_size < MIN_MAX_FRAME_SIZE {
            let text = format!("max-frame-size {} is below {MIN_MAX_FRAME_SIZE}", open.max_frame_size);
            return Err(Fault::connection(condition::FRAME_SIZE_TOO_SMALL, text));
        }
        let idle_ms = open.idle_time_out.unwrap_or(0);
        if (1..PEER_IDLE_MS_MIN).contains(&idle_ms) {
            let text = format!("idle-time-out {idle_ms} ms is too short; the least is {PEER_IDLE_MS_MIN} ms");
            return Err(Fault::connection(condition::NOT_ALLOWED, text));
        }
        self.peer_frame_bytes_max = open.max_frame_size.min(self.frame_bytes_max);
        self.channel_max = self.channel_max.min(open.channel_max);
        self.peer_idle_ms = idle_ms;
        self.patient = open.properties.is_some_and(|map| map.get(NODE_PROPERTY).is_some());
        Ok(())
    }

    /// Takes the peer's limits, then asks for its virtual host.
    fn on_open(&mut self, io: &mut Io, broker: &mut Broker, open: &Open<'_>) -> Result<(), Fault> {
        self.take_limits(open)?;
        let vhost = open.hostname.and_then(|name| name.strip_prefix("vhost:")).unwrap_or("").to_owned();
        let properties = open.properties.map_or(Fields::Empty, |map| {
            let mut bytes = Vec::new();
            writer::put_value(&mut bytes, &Value::Map(map));
            Fields::Amqp10(bytes.into_boxed_slice())
        });
        let request = broker.next_request();
        let (conn, wire, container) = (io.id.raw(), Wire::Amqp10, open.container_id.to_owned());
        broker.events.push(Event::OpenRequested { request, conn, wire, vhost, container, properties });
        self.state = State::Opening(Opening::Asked);
        io.parked = Some(Wait::Answer(request));
        Ok(())
    }

    pub(super) fn answer_opening(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        let State::Opening(opening) = &mut self.state else { return };
        match (opening, answer) {
            (Opening::Judged { bare: true, .. }, Answer::Accept { .. }) => {
                io.output.extend_from_slice(&Protocol::Amqp.header());
                self.state = State::Opening(Opening::Open);
            }
            (Opening::Judged { bare: true, .. }, Answer::Refuse { text, .. }) => {
                // The header of the layer that is missing tells the peer what to begin with.
                io.output.extend_from_slice(&Protocol::Sasl.header());
                io.finish(text);
            }
            (Opening::Judged { .. }, Answer::Accept { proof, .. }) => {
                let additional_data = Some(&*proof).filter(|proof| !proof.is_empty());
                encode_sasl(&mut io.output, &SaslOutcome { code: SaslCode::Ok, additional_data });
                self.state = State::Opening(Opening::Header);
            }
            (Opening::Judged { step, mechanism, .. }, Answer::Challenge(data)) => {
                encode_sasl(&mut io.output, &SaslChallenge { challenge: &data });
                let (step, mechanism) = (*step + 1, std::mem::take(mechanism));
                self.state = State::Opening(Opening::Sasl { step, mechanism });
            }
            (Opening::Judged { .. }, Answer::Refuse { text, .. }) => {
                encode_sasl(&mut io.output, &SaslOutcome { code: SaslCode::Auth, additional_data: None });
                io.finish(text);
            }
            (Opening::Asked, Answer::Accept { principal, .. }) => {
                io.principal = principal;
                self.vhost = broker.principal(principal).map_or(self.vhost, |principal| principal.vhost);
                self.write_open(io, broker);
                self.state = State::Running;
                if let Some(next_ns) = self.tick(io, broker) {
                    broker.schedule_conn(io, next_ns);
                }
            }
            (Opening::Asked, Answer::Refuse { code, text }) => {
                self.close_connection(io, broker, condition_of(code), &text);
            }
            _ => io.finish("the node gave an answer that does not fit"),
        }
    }

    pub(super) fn write_open(&mut self, io: &mut Io, broker: &Broker) {
        let mut properties = MapBuf::new();
        properties.put(Value::Symbol("product"), Value::String("weft"));
        properties.put(Value::Symbol("version"), Value::String(env!("CARGO_PKG_VERSION")));
        properties.put(Value::Symbol("platform"), Value::String("Rust, Python"));
        properties.put(Value::Symbol(NODE_PROPERTY), Value::String(&broker.node));
        let (container, hostname) = match &self.dial {
            Some(dial) => (dial.container.as_str(), Some(dial.hostname.as_str()).filter(|name| !name.is_empty())),
            None => ("", None),
        };
        let open = Open {
            container_id: if container.is_empty() { &broker.node } else { container },
            hostname,
            max_frame_size: self.frame_bytes_max,
            channel_max: self.channel_max,
            idle_time_out: (self.idle_ms > 0).then_some(self.idle_ms),
            offered_capabilities: Symbols::Slice(&CAPABILITIES),
            properties: Some(properties.as_map()),
            ..Open::default()
        };
        encode(&mut io.output, 0, &open);
    }
}
