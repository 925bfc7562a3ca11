//! The opening of a 0-9-1 connection: start, authentication, tune, open.
//!
//! Owns the handshake up to open-ok. The client's mechanism and response go to Python, and so does the virtual host;
//! the limits of both sides meet in tune. It must never judge a password. Rules: AMQP 0-9-1 sections 2.2.4 and 1.4.2,
//! RabbitMQ's capabilities.

use weft_wire::amqp091::frame::{FRAME_HEARTBEAT, FRAME_METHOD, Frame};
use weft_wire::amqp091::table::{Table, TableWriter, Value};
use weft_wire::amqp091::{Method, reply};

use super::{Abilities, Fault, Session, State, Step, Stepped, decode, utf8, without_code};
use crate::broker::Broker;
use crate::conn::{Io, Wait};
use crate::event::{Event, Fields, Wire};
use crate::session::Answer;
use crate::slab::Id;

/// Smallest frame size a client may ask for (section 4.2.3).
const FRAME_BYTES_MIN: u32 = 4_096;
/// What RabbitMQ's clients look for in the server's properties.
const CAPABILITIES: [&[u8]; 9] = [
    b"publisher_confirms",
    b"exchange_exchange_bindings",
    b"basic.nack",
    b"consumer_cancel_notify",
    b"connection.blocked",
    b"consumer_priorities",
    b"authentication_failure_close",
    b"per_consumer_qos",
    b"direct_reply_to",
];

/// How far the opening has come.
pub(super) enum Opening {
    /// We sent start, or secure: the client's response comes next.
    Start { step: u32, mechanism: String },
    /// Python judges the response.
    Judged { step: u32, mechanism: String },
    /// We sent tune: tune-ok comes next.
    Tune,
    /// Tuned: open comes next.
    Tuned,
    /// Python judges the virtual host.
    Vhost,
}

impl Session {
    /// The protocol header was ours: we say start.
    pub fn start(io: &mut Io, broker: &Broker) -> Self {
        let mut properties = Vec::new();
        TableWriter::write(&mut properties, |table| {
            table.str(b"product", b"weft");
            table.str(b"version", broker.version.as_bytes());
            table.str(b"cluster_name", broker.node.as_bytes());
            table.str(b"platform", b"Rust, Python");
            table.str(b"license", b"Apache-2.0");
            table.table(b"capabilities", |table| CAPABILITIES.iter().for_each(|name| table.bool(name, true)));
        });
        let mechanisms = broker.mechanisms.join(" ");
        let start = Method::ConnectionStart {
            version_major: 0,
            version_minor: 9,
            server_properties: Table::trusted(properties.get(4..).unwrap_or_default()),
            mechanisms: mechanisms.as_bytes(),
            locales: b"en_US",
        };
        start.encode_frame(0, &mut io.output);
        Self {
            state: State::Opening(Opening::Start { step: 0, mechanism: String::new() }),
            abilities: Abilities::default(),
            about: Fields::Empty,
            frame_max: broker.limits.frame_bytes_max,
            channels_max: broker.limits.channels_max,
            heartbeat_s: 0,
            vhost: Id::from_raw(0),
            user: broker.no_name(),
            channels: Vec::new(),
            pending: None,
            confirming: Vec::new(),
        }
    }

    pub(super) fn on_opening_frame(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Stepped {
        if frame.kind == FRAME_HEARTBEAT {
            return Ok(Step::Done(0));
        }
        let method = match frame.kind {
            FRAME_METHOD if frame.channel == 0 => decode(frame.payload)?,
            _ => return Err(Fault::connection(reply::CHANNEL_ERROR, "channel used before the connection was opened")),
        };
        let State::Opening(opening) = &mut self.state else { return Ok(Step::Done(0)) };
        match (opening, method) {
            (
                Opening::Start { step: 0, .. },
                Method::ConnectionStartOk { client_properties, mechanism, response, .. },
            ) => {
                self.abilities = abilities(client_properties);
                self.about = Fields::Amqp091(client_properties.raw().into());
                let mechanism = utf8(mechanism)?.to_owned();
                self.judge(io, broker, mechanism, response, 0);
            }
            (Opening::Start { step, mechanism }, Method::ConnectionSecureOk { response }) => {
                let (step, mechanism) = (*step, std::mem::take(mechanism));
                self.judge(io, broker, mechanism, response, step);
            }
            (Opening::Tune, Method::ConnectionTuneOk { channel_max, frame_max, heartbeat }) => {
                self.tuned(broker, channel_max, frame_max, heartbeat)?;
            }
            (Opening::Tuned, Method::ConnectionOpen { virtual_host, .. }) => {
                let vhost = utf8(virtual_host)?.to_owned();
                let request = broker.next_request();
                let (conn, wire) = (io.id.raw(), Wire::Amqp091);
                let (container, properties) = (String::new(), std::mem::take(&mut self.about));
                broker.events.push(Event::OpenRequested { request, conn, wire, vhost, container, properties });
                self.state = State::Opening(Opening::Vhost);
                io.parked = Some(Wait::Answer(request));
            }
            (_, Method::ConnectionClose { .. }) => {
                Method::ConnectionCloseOk.encode_frame(0, &mut io.output);
                io.finish("closed by the peer while opening");
            }
            (_, method) => {
                let text = format!("unexpected {} while opening", method.name());
                return Err(Fault::connection(reply::COMMAND_INVALID, text));
            }
        }
        Ok(Step::Done(0))
    }

    /// Python is asked whether this peer may enter.
    fn judge(&mut self, io: &mut Io, broker: &mut Broker, mechanism: String, response: &[u8], step: u32) {
        let request = broker.next_request();
        broker.events.push(Event::AuthRequested {
            request,
            conn: io.id.raw(),
            wire: Wire::Amqp091,
            mechanism: mechanism.clone(),
            response: response.to_vec(),
            step,
        });
        self.state = State::Opening(Opening::Judged { step, mechanism });
        io.parked = Some(Wait::Answer(request));
    }

    /// The smaller of both sides' limits holds; a client may not raise ours.
    fn tuned(&mut self, broker: &Broker, channel_max: u16, frame_max: u32, heartbeat: u16) -> Result<(), Fault> {
        let limits = &broker.limits;
        if frame_max != 0 && frame_max < FRAME_BYTES_MIN || frame_max > limits.frame_bytes_max {
            let text = format!(
                "negotiated frame_max = {frame_max} is out of range {FRAME_BYTES_MIN}..{}",
                limits.frame_bytes_max
            );
            return Err(Fault::connection(reply::NOT_ALLOWED, text));
        }
        if channel_max > limits.channels_max {
            let text =
                format!("negotiated channel_max = {channel_max} is higher than the maximum {}", limits.channels_max);
            return Err(Fault::connection(reply::NOT_ALLOWED, text));
        }
        self.frame_max = if frame_max == 0 { limits.frame_bytes_max } else { frame_max };
        self.channels_max = if channel_max == 0 { limits.channels_max } else { channel_max };
        self.heartbeat_s = heartbeat;
        self.state = State::Opening(Opening::Tuned);
        Ok(())
    }

    pub(super) fn answer_opening(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        let State::Opening(opening) = &mut self.state else { return };
        match (opening, answer) {
            (Opening::Judged { .. }, Answer::Accept { .. }) => {
                self.state = State::Opening(Opening::Tune);
                let tune = Method::ConnectionTune {
                    channel_max: broker.limits.channels_max,
                    frame_max: broker.limits.frame_bytes_max,
                    heartbeat: broker.limits.heartbeat_s,
                };
                tune.encode_frame(0, &mut io.output);
            }
            (Opening::Judged { step, mechanism }, Answer::Challenge(data)) => {
                Method::ConnectionSecure { challenge: &data }.encode_frame(0, &mut io.output);
                let (step, mechanism) = (*step + 1, std::mem::take(mechanism));
                self.state = State::Opening(Opening::Start { step, mechanism });
            }
            (Opening::Judged { .. }, Answer::Refuse { code, text }) => {
                // Before RabbitMQ 3.2 a refused client was simply cut; only those that know better are told.
                match self.abilities.authentication_failure_close {
                    true => self.refuse(io, broker, code, &text, (0, 0)),
                    false => io.finish(text),
                }
            }
            (Opening::Vhost, Answer::Accept { principal, .. }) => {
                io.principal = principal;
                if let Some(principal) = broker.principal(principal) {
                    (self.vhost, self.user) = (principal.vhost, principal.user.clone());
                }
                self.state = State::Running;
                Method::ConnectionOpenOk.encode_frame(0, &mut io.output);
                if self.heartbeat_s > 0 {
                    broker.schedule_conn(io, broker.now_ns + u64::from(self.heartbeat_s) * 500_000_000);
                }
            }
            (_, Answer::Refuse { code, text }) => self.refuse(io, broker, code, &text, (10, 40)),
            _ => io.finish("the node gave an answer that does not fit"),
        }
    }

    fn refuse(&mut self, io: &mut Io, broker: &mut Broker, code: u16, text: &str, ids: (u16, u16)) {
        let text = format!("{} - {}", reply::text(code), without_code(text));
        self.close_connection(io, broker, code, &text, ids);
    }
}

fn abilities(properties: Table<'_>) -> Abilities {
    let capabilities = match properties.get(b"capabilities") {
        Some(Value::Table(table)) => table,
        _ => Table::EMPTY,
    };
    let can = |name: &[u8]| capabilities.get(name).and_then(|value| value.as_bool()).unwrap_or(false);
    Abilities {
        consumer_cancel_notify: can(b"consumer_cancel_notify"),
        connection_blocked: can(b"connection.blocked"),
        authentication_failure_close: can(b"authentication_failure_close"),
        channel_qos: properties.get(b"product").and_then(|value| value.as_bytes()) == Some(b"py-amqp"),
    }
}
