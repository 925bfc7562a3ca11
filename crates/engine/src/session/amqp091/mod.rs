//! AMQP 0-9-1, the server's side of one connection.
//!
//! Owns the connection's state and its channels. Frames come in whole; replies, deliveries and closes go out to the
//! connection's output; questions go to Python as events and park the connection until they are answered. It must never
//! touch another connection. Rules: AMQP 0-9-1 sections 1.4, 2.2.4 and 4.2, RabbitMQ's extensions
//! (docs/reference/amqp-0-9-1.md).

mod ack;
mod channel;
mod confirm;
mod consume;
mod content;
mod deliver;
mod opening;
mod publish;
mod read;
mod reading;
mod runs;
mod topology;
mod transaction;

use weft_wire::amqp091::frame::{self, FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT, FRAME_METHOD, Frame, FrameError};
use weft_wire::amqp091::{Method, MethodError, reply};

use super::{Answer, Described, opening_deadline};
use crate::broker::{Broker, VhostId};
use crate::conn::{Io, Wait};
use crate::event::{Access, Event, Fields, Resource};
use crate::message::Name;
use channel::Channel;
use opening::Opening;
use topology::Pending;

pub use content::write_content;

/// Silence of this many heartbeat intervals ends a connection (section 4.2.7).
const SILENT_INTERVALS: u64 = 2;

/// Class and method of basic.publish.
const PUBLISH_IDS: (u16, u16) = (60, 40);

/// What a frame led to.
enum Step {
    /// It is done with, and so are this many bytes behind it.
    Done(usize),
    /// It waits for a decision and will be read again.
    Retry,
}

/// A peer's mistake, or a refusal, with the protocol's own reply code.
#[derive(Debug)]
struct Fault {
    /// Closes the connection; otherwise the channel.
    hard: bool,
    code: u16,
    text: String,
    /// It is basic.publish that failed, whichever frame showed it.
    publishing: bool,
}

type Stepped = Result<Step, Fault>;

impl Fault {
    fn channel(code: u16, text: impl Into<String>) -> Self {
        Self { hard: false, code, text: text.into(), publishing: false }
    }
    fn connection(code: u16, text: impl Into<String>) -> Self {
        Self { hard: true, code, text: text.into(), publishing: false }
    }
    /// Refusals by Python: the code says whether the specification makes it a hard error.
    fn by_code(code: u16, text: String) -> Self {
        Self { hard: matches!(code, 320 | 402 | 501..=506 | 530 | 540 | 541), code, text, publishing: false }
    }
    fn of_publish(self) -> Self {
        Self { publishing: true, ..self }
    }
}

/// What the client said it can do.
#[derive(Default)]
struct Abilities {
    consumer_cancel_notify: bool,
    connection_blocked: bool,
    authentication_failure_close: bool,
    /// Reads `basic.qos` as the specification has it (`global` unset: the channel): py-amqp does so with every server
    /// that does not call itself RabbitMQ (decision 0004).
    channel_qos: bool,
}

enum State {
    Opening(Opening),
    Running,
    /// We sent close; only close-ok counts.
    Closing,
}

/// One 0-9-1 connection.
pub struct Session {
    state: State,
    abilities: Abilities,
    /// What the client says of itself, until the virtual host is opened.
    about: Fields,
    frame_max: u32,
    channels_max: u16,
    heartbeat_s: u16,
    vhost: VhostId,
    user: Name,
    channels: Vec<Option<Box<Channel>>>,
    pending: Option<Pending>,
    /// Channels with confirms to send at the end of the batch.
    confirming: Vec<u16>,
}

impl Session {
    /// Takes frames until something is missing: bytes, a decision, budget, or room for answers.
    pub fn receive(&mut self, io: &mut Io, data: &[u8], broker: &mut Broker) -> usize {
        let (mut at, before) = (0, io.output.len());
        while io.parked.is_none() && !io.finished && broker.may_read() {
            let rest = &data[at..];
            let frame = match frame::split(rest, self.frame_max as usize) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    self.framing_error(io, broker, error);
                    break;
                }
            };
            if !io.may_answer(io.output.len() - before, broker.limits.output_bytes_max) {
                break;
            }
            broker.spend(1);
            match self.on_frame(io, broker, &frame, &rest[frame.size..]) {
                Ok(Step::Done(more)) => at += frame.size + more,
                Ok(Step::Retry) => break,
                Err(fault) => {
                    at += frame.size;
                    self.fail(io, broker, &frame, fault);
                }
            }
        }
        self.send_confirms(io);
        io.answer_bytes += io.output.len() - before;
        at
    }

    fn on_frame(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>, rest: &[u8]) -> Stepped {
        if let State::Opening(_) = self.state {
            return self.on_opening_frame(io, broker, frame);
        }
        match frame.kind {
            FRAME_METHOD if frame.channel == 0 => self.on_connection_method(io, broker, frame),
            _ if matches!(self.state, State::Closing) => Ok(Step::Done(0)),
            FRAME_METHOD => self.on_channel_method(io, broker, frame, rest),
            FRAME_HEADER => self.on_content_header(io, broker, frame),
            FRAME_BODY => self.on_content_body(io, broker, frame),
            FRAME_HEARTBEAT if frame.channel == 0 => Ok(Step::Done(0)),
            kind => {
                let text = format!("unexpected frame of type {kind} on channel {}", frame.channel);
                Err(Fault::connection(reply::UNEXPECTED_FRAME, text))
            }
        }
    }

    fn on_connection_method(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Stepped {
        match decode(frame.payload)? {
            Method::ConnectionClose { reply_code, reply_text, .. } => {
                self.send_confirms(io);
                Method::ConnectionCloseOk.encode_frame(0, &mut io.output);
                io.finish(match reply_code {
                    0 | 200 => "closed by the peer".to_owned(),
                    code => format!("closed by the peer: {code} {}", String::from_utf8_lossy(reply_text)),
                });
                self.drop_channels(io, broker);
            }
            Method::ConnectionCloseOk => io.finish("closed"),
            _ if matches!(self.state, State::Closing) => {}
            // Nothing that lasts hangs on a password once it was checked; tokens, whose renewal would, are not spoken
            // here.
            Method::ConnectionUpdateSecret { .. } => {
                Method::ConnectionUpdateSecretOk.encode_frame(0, &mut io.output);
            }
            Method::ConnectionBlocked { .. } | Method::ConnectionUnblocked => {}
            method => {
                let text = format!("unexpected {} method on channel 0", method.name());
                return Err(Fault::connection(reply::CHANNEL_ERROR, text));
            }
        }
        Ok(Step::Done(0))
    }

    /// The channel a frame belongs to, if it is open and not closing.
    fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels.get_mut(usize::from(number))?.as_deref_mut()
    }

    fn framing_error(&mut self, io: &mut Io, broker: &mut Broker, error: FrameError) {
        self.send_confirms(io);
        let text = format!("{} - {error}", reply::text(reply::FRAME_ERROR));
        if let State::Running = self.state {
            self.close_connection(io, broker, reply::FRAME_ERROR, &text, (0, 0));
        }
        // Where the next frame begins is lost, so a close-ok would not be seen.
        io.finish(text);
    }

    /// Answers a fault with the close that the specification asks for.
    fn fail(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>, fault: Fault) {
        // What was published before the mistake was taken, and is confirmed.
        self.send_confirms(io);
        let publishing = self.channel(frame.channel).is_some_and(|channel| channel.incoming.is_some());
        let ids = match frame.kind {
            _ if publishing || fault.publishing => PUBLISH_IDS,
            FRAME_METHOD => ids_of(frame.payload),
            _ => (0, 0),
        };
        let text = format!("{} - {}", reply::text(fault.code), fault.text);
        if fault.hard || frame.channel == 0 {
            self.close_connection(io, broker, fault.code, &text, ids);
        } else {
            self.close_channel(io, broker, frame.channel, fault.code, &text, ids);
        }
    }

    fn close_connection(&mut self, io: &mut Io, broker: &mut Broker, code: u16, text: &str, ids: (u16, u16)) {
        self.drop_channels(io, broker);
        self.state = State::Closing;
        io.parked = None;
        io.cause.get_or_insert_with(|| text.to_owned());
        let method = Method::ConnectionClose {
            reply_code: code,
            reply_text: text.as_bytes(),
            class_id: ids.0,
            method_id: ids.1,
        };
        method.encode_frame(0, &mut io.output);
        // A peer that does not answer is cut by the next tick after this.
        io.opened_ns = broker.now_ns;
        broker.schedule_conn(io, broker.now_ns + u64::from(broker.limits.unauthenticated_s) * 1_000_000_000);
    }

    /// Every consumer leaves and every unsettled delivery goes back.
    fn drop_channels(&mut self, io: &mut Io, broker: &mut Broker) {
        (0..self.channels.len()).for_each(|number| self.abandon_confirms(io, broker, number as u16));
        for (number, channel) in std::mem::take(&mut self.channels).into_iter().enumerate() {
            let Some(mut channel) = channel else { continue };
            channel.end(broker);
            broker.tell_session(io.id, number as u16, false);
        }
        self.confirming.clear();
        io.stalled.clear();
    }

    /// Is this allowed? Asks Python the first time; the frame is then read again.
    fn permitted(
        &self,
        io: &mut Io,
        broker: &mut Broker,
        access: Access,
        kind: Resource,
        name: &[u8],
    ) -> Result<bool, Fault> {
        match broker.permit(io.principal, access, kind, name) {
            Some(crate::broker::Permit::Yes) => Ok(true),
            Some(crate::broker::Permit::No(text)) => Err(Fault::channel(reply::ACCESS_REFUSED, without_code(text))),
            None => {
                let name = utf8(name)?.to_owned();
                let request = broker.next_request();
                let (conn, principal) = (io.id.raw(), io.principal);
                broker.events.push(Event::AccessRequested { request, conn, principal, access, kind, name });
                io.parked = Some(Wait::Grant(principal));
                Ok(false)
            }
        }
    }

    /// Writes a heartbeat when nothing else was sent, cuts a peer that is silent. When to look again.
    pub fn tick(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        if !matches!(self.state, State::Running) {
            return opening_deadline(io, broker);
        }
        let unfinished_ns = self.end_unfinished(io, broker);
        if self.heartbeat_s == 0 {
            return unfinished_ns;
        }
        let interval_ns = u64::from(self.heartbeat_s) * 1_000_000_000;
        if broker.now_ns >= io.received_ns + SILENT_INTERVALS * interval_ns && !io.paused {
            io.finish(format!("no heartbeat from the peer for {} s", SILENT_INTERVALS * u64::from(self.heartbeat_s)));
            return None;
        }
        if broker.now_ns >= io.sent_ns + interval_ns / 2 {
            io.output.extend_from_slice(&frame::frame_header(FRAME_HEARTBEAT, 0, 0));
            io.output.push(frame::FRAME_END);
        }
        let beat_ns = broker.now_ns + interval_ns / 2;
        Some(unfinished_ns.map_or(beat_ns, |unfinished_ns| unfinished_ns.min(beat_ns)))
    }

    pub fn blocked(&mut self, io: &mut Io, blocked: bool) {
        if !self.abilities.connection_blocked || !matches!(self.state, State::Running) {
            return;
        }
        match blocked {
            true => Method::ConnectionBlocked { reason: b"memory" }.encode_frame(0, &mut io.output),
            false => Method::ConnectionUnblocked.encode_frame(0, &mut io.output),
        }
    }

    pub fn close(&mut self, io: &mut Io, broker: &mut Broker, code: u16, text: &str) {
        match self.state {
            State::Running => self.close_connection(io, broker, code, text, (0, 0)),
            _ => io.finish(text),
        }
    }

    pub fn lost(&mut self, io: &mut Io, broker: &mut Broker) {
        self.drop_channels(io, broker);
    }

    pub fn describe(&self) -> Described {
        let channels = self.channels.iter().flatten();
        let consumers = channels.clone().flat_map(|channel| channel.taps.iter().flatten()).filter_map(|tap| tap.id);
        Described { protocol: "AMQP 0-9-1", channels: channels.clone().count(), consumers: consumers.collect() }
    }

    /// Every channel, for `inspect`.
    pub fn parts(&self) -> Vec<super::Part> {
        let open = self.channels.iter().enumerate().filter_map(|(number, channel)| Some((number, channel.as_ref()?)));
        open.map(|(number, channel)| super::Part {
            number: number as u16,
            links: channel.taps.iter().flatten().count(),
            unsettled: channel.unacked.len(),
            prefetch: channel.prefetch.max(channel.limit),
            published: channel.confirms.as_ref().map(|confirms| confirms.count()),
            transactional: channel.transaction.is_some(),
        })
        .collect()
    }

    /// Tag of a consumer, whether it must acknowledge, and its prefetch.
    pub fn tap(&self, channel: u16, slot: u32) -> Option<(String, bool, u16)> {
        let tap = self.channels.get(usize::from(channel))?.as_ref()?.taps.get(slot as usize)?.as_ref()?;
        Some((show(&tap.tag).into_owned(), !tap.no_ack, tap.prefetch))
    }

    pub fn answer(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        io.parked = None;
        match self.state {
            State::Opening(_) => self.answer_opening(io, broker, answer),
            State::Running => self.answer_topology(io, broker, answer),
            State::Closing => {}
        }
    }
}

fn decode(payload: &[u8]) -> Result<Method<'_>, Fault> {
    Method::decode(payload).map_err(|error| match error {
        MethodError::Unknown { class_id, method_id } => {
            Fault::connection(reply::COMMAND_INVALID, format!("unknown method {class_id}.{method_id}"))
        }
        MethodError::Malformed { class_id, method_id } => {
            Fault::connection(reply::FRAME_ERROR, format!("malformed method {class_id}.{method_id}"))
        }
        MethodError::Short => Fault::connection(reply::FRAME_ERROR, "method frame too short"),
    })
}

/// Class and method id of a method frame, for the close that answers it.
fn ids_of(payload: &[u8]) -> (u16, u16) {
    match payload {
        [a, b, c, d, ..] => (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])),
        _ => (0, 0),
    }
}

/// Names go to Python as text.
fn utf8(name: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(name).map_err(|_| Fault::connection(reply::SYNTAX_ERROR, "a name is not UTF-8"))
}

/// Python's texts may begin with the code's name, which `fail` puts in front itself.
fn without_code(text: &str) -> String {
    match text.split_once(" - ") {
        Some((code, rest)) if code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') => rest.to_owned(),
        _ => text.to_owned(),
    }
}

/// A name in an error text.
fn show(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}
