//! AMQP 1.0, this node's side of one connection, whichever side dialled it.
//!
//! Owns the connection's state, its sessions (called channels here) and their links. Frames come in whole;
//! performatives go out to the connection's output; questions go to Python as events and park the connection until
//! they are answered. It must never touch another connection. Rules: AMQP 1.0 parts 2 to 5, RabbitMQ 4's conventions
//! (docs/reference/amqp-1.0.md).

mod attach;
mod awaited;
mod carried;
mod channel;
mod facts;
mod familiar;
mod flow;
mod head;
mod incoming;
mod initiate;
mod link;
mod opening;
mod outgoing;
mod own;
mod pace;
mod publish;
mod reading;
mod resume;
mod settle;
mod terminus;
mod transaction;
mod unsettled;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use weft_wire::amqp10::frame::{self, Frame, FrameKind};
use weft_wire::amqp10::{Close, DecodeError, Error, Performative, Symbol, condition, encode, transfer};

use super::{Answer, Described, opening_deadline};
use crate::broker::{Broker, VhostId};
use crate::conn::Io;
use attach::Pending;
use channel::Channel;
pub use initiate::Dial;
use initiate::Dialling;
use link::Link;
use opening::Opening;
use own::Own;
use pace::Paced;
use publish::Arrival;
use resume::Suspended;
use transaction::Transactions;

/// A peer silent for this many of our idle time-outs is cut (part 2, section 2.4.5).
const SILENT_INTERVALS: u64 = 2;

/// Largest frame of a peer that is not in yet: room for a long token, not for a flood of strangers.
const OPENING_FRAME_BYTES_MAX: u32 = 16 << 10;
/// Longest text of an error.
const ERROR_TEXT_BYTES_MAX: usize = 256;

/// A channel and a handle on it: where a link is.
type Place = (u16, u32);
/// What names a link on a connection: whether the peer sends, and the name it chose.
type LinkName = (bool, Rc<str>);

/// No channel has this number: the table of channels ends before it.
const NO_CHANNEL: u16 = u16::MAX;

/// What an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Connection,
    Session,
    Link(u32),
}

/// A peer's mistake, or a refusal, with the protocol's own condition.
#[derive(Debug)]
struct Fault {
    scope: Scope,
    condition: Symbol<'static>,
    text: String,
}

impl Fault {
    fn connection(condition: Symbol<'static>, text: impl Into<String>) -> Self {
        Self { scope: Scope::Connection, condition, text: text.into() }
    }
    fn session(condition: Symbol<'static>, text: impl Into<String>) -> Self {
        Self { scope: Scope::Session, condition, text: text.into() }
    }
    fn link(handle: u32, condition: Symbol<'static>, text: impl Into<String>) -> Self {
        Self { scope: Scope::Link(handle), condition, text: text.into() }
    }
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Self::connection(error.condition(), error.to_string())
    }
}

enum State {
    Opening(Opening),
    Running,
    /// We sent close; only the peer's close counts.
    Closing,
}

/// One 1.0 connection.
pub struct Session {
    state: State,
    /// Largest frame that we take, and that the peer takes.
    frame_bytes_max: u32,
    peer_frame_bytes_max: u32,
    /// Highest channel number of the connection.
    channel_max: u16,
    /// Our idle time-out, and the peer's; 0 for none.
    idle_ms: u32,
    peer_idle_ms: u32,
    vhost: VhostId,
    channels: Vec<Option<Box<Channel>>>,
    /// The peer's number of each channel, and ours plus one; 0 for none. They differ where both sides begin sessions.
    theirs: Vec<u16>,
    /// What this node dialled the peer with, if it did.
    dial: Option<Box<Dial>>,
    /// The session that we began.
    own_channel: Option<u16>,
    /// Where the links are that we attached, by Python's number.
    own: BTreeMap<u64, Own>,
    /// Links that wait a moment because messages were refused on them, and until when.
    resting: Vec<Place>,
    rested_ns: u64,
    /// Where the attached links are, by name.
    names: BTreeMap<LinkName, Place>,
    suspended: BTreeMap<LinkName, Suspended>,
    /// The attach that Python is asked about.
    pending: Option<Pending>,
    /// The message whose address Python is asked about.
    waiting: Option<Box<Arrival>>,
    transactions: Transactions,
    /// Channels with dispositions, credit or windows to tell at the end of the batch.
    owing: Vec<u16>,
    /// Links in the middle of a large message.
    unfinished: VecDeque<Place>,
    /// Links whose receiver wants its credit used up.
    draining: Vec<Place>,
    links_made: u32,
    tags_made: u32,
    /// Memory is short: no credit for senders.
    blocked: bool,
    /// The peer is a node of ours: nobody there waits for our answers.
    patient: bool,
    /// Channels whose answers wait a moment for something to leave with, and until when.
    late: Vec<u16>,
    late_ns: u64,
    paced: Paced,
}

impl Session {
    /// Takes frames until something is missing: bytes, a decision, or budget.
    pub fn receive(&mut self, io: &mut Io, data: &[u8], broker: &mut Broker) -> usize {
        let (mut at, before) = (0, io.output.len());
        if let Some(arrival) = self.waiting.take() {
            self.find_way(io, broker, arrival);
        }
        while io.parked.is_none() && !io.finished && broker.may_read() {
            let rest = &data[at..];
            if self.wants_header() {
                match rest.first_chunk() {
                    Some(header) => self.on_header(io, header),
                    None => break,
                }
                at += frame::PROTOCOL_HEADER_BYTES;
                continue;
            }
            let bytes_max = match self.state {
                State::Opening(_) => self.frame_bytes_max.min(OPENING_FRAME_BYTES_MAX),
                _ => self.frame_bytes_max,
            };
            let frame = match frame::split(rest, bytes_max) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => {
                    self.close_connection(io, broker, condition::CONNECTION_FRAMING_ERROR, &error.to_string());
                    // Where the next frame begins is lost, so the peer's own close would not be seen.
                    io.finish(error.to_string());
                    break;
                }
            };
            if !io.may_answer(io.output.len() - before, broker.limits.output_bytes_max) {
                break;
            }
            broker.spend(1);
            at += frame.size;
            if let Err(fault) = self.on_frame(io, broker, &frame) {
                self.fail(io, broker, self.ours(frame.channel), fault);
            }
        }
        self.end_batch(io, broker);
        io.answer_bytes += io.output.len() - before;
        at
    }

    #[inline]
    fn on_frame(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Result<(), Fault> {
        if !matches!(self.state, State::Running) {
            return self.on_other_frame(io, broker, frame);
        }
        if frame.kind != FrameKind::Amqp {
            return Err(Fault::connection(condition::CONNECTION_FRAMING_ERROR, "SASL frame on an open connection"));
        }
        if frame.body.is_empty() {
            return Ok(());
        }
        let number = self.ours(frame.channel);
        if let Some((transfer, payload)) = transfer::decode_fast(frame.body)
            && number != NO_CHANNEL
        {
            return self.on_transfer(io, broker, number, &transfer, payload);
        }
        let (performative, payload) = Performative::decode(frame.body)?;
        match performative {
            Performative::Begin(begin) => self.on_begin(io, broker, frame.channel, &begin),
            Performative::Close(close) => {
                self.on_close(io, broker, &close);
                Ok(())
            }
            Performative::Open(_) => Err(Fault::connection(condition::ILLEGAL_STATE, "second open")),
            _ if number == NO_CHANNEL => Err(no_session(frame.channel)),
            Performative::Transfer(transfer) => self.on_transfer(io, broker, number, &transfer, payload),
            Performative::Disposition(disposition) => self.on_disposition(io, broker, number, &disposition),
            Performative::Flow(flow) => self.on_flow(io, broker, number, &flow),
            Performative::Attach(attach) => self.on_attach(io, broker, number, &attach, frame.body),
            Performative::Detach(detach) => self.on_detach(io, broker, number, &detach),
            Performative::End(end) => self.on_end(io, broker, number, &end),
        }
    }

    /// Frames of the opening, and what still comes after we sent close.
    fn on_other_frame(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Result<(), Fault> {
        if let State::Opening(_) = self.state {
            return self.on_opening_frame(io, broker, frame);
        }
        if let Ok((Performative::Close(_), _)) = Performative::decode(frame.body) {
            io.finish("closed");
        }
        Ok(())
    }

    fn on_close(&mut self, io: &mut Io, broker: &mut Broker, close: &Close<'_>) {
        self.send_owed(io, broker);
        self.drop_channels(io, broker, false);
        encode(&mut io.output, 0, &Close::default());
        io.finish(match &close.error {
            Some(error) => format!("closed by the peer: {} {}", error.condition, error.description.unwrap_or("")),
            None => "closed by the peer".to_owned(),
        });
    }

    /// Our number of the channel that the peer calls so.
    #[inline]
    fn ours(&self, theirs: u16) -> u16 {
        self.theirs.get(usize::from(theirs)).map_or(NO_CHANNEL, |ours| ours.wrapping_sub(1))
    }

    /// The channel of this number, if there is a session on it.
    #[inline]
    fn channel(&mut self, number: u16) -> Option<&mut Channel> {
        self.channels.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// The channel's session, unless we ended it already and only wait for the peer's end.
    fn live(&mut self, number: u16) -> Result<Option<&mut Channel>, Fault> {
        match self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut) {
            Some(channel) if channel.ending => Ok(None),
            Some(channel) => Ok(Some(channel)),
            None => Err(no_session(number)),
        }
    }

    /// Has to be looked at again at the end of the batch.
    #[inline]
    fn owe(&mut self, number: u16) {
        let channel = self.channels.get_mut(usize::from(number)).and_then(Option::as_deref_mut);
        if channel.is_some_and(|channel| !std::mem::replace(&mut channel.owing, true)) {
            self.owing.push(number);
        }
    }

    /// Answers a fault with the detach, end or close that the specification asks for.
    fn fail(&mut self, io: &mut Io, broker: &mut Broker, number: u16, fault: Fault) {
        match fault.scope {
            Scope::Connection => self.close_connection(io, broker, fault.condition, &fault.text),
            Scope::Session => self.end_channel(io, broker, number, fault.condition, &fault.text),
            Scope::Link(handle) => self.detach_link(io, broker, (number, handle), fault.condition, &fault.text),
        }
    }

    fn close_connection(&mut self, io: &mut Io, broker: &mut Broker, condition: Symbol<'_>, text: &str) {
        match &self.state {
            State::Opening(Opening::Dialled(Dialling::Open)) => {}
            State::Opening(opening) if !opening.is_open_phase() => return io.finish(text),
            State::Opening(_) => self.write_open(io, broker),
            State::Running => {}
            State::Closing => return io.finish(text),
        }
        self.send_owed(io, broker);
        self.drop_channels(io, broker, false);
        self.state = State::Closing;
        io.parked = None;
        io.cause.get_or_insert_with(|| text.to_owned());
        encode(&mut io.output, 0, &Close { error: Some(error_of(condition, text)) });
        // A peer that does not answer is cut by the next tick after this.
        io.opened_ns = broker.now_ns;
        broker.schedule_conn(io, broker.now_ns + u64::from(broker.limits.unauthenticated_s) * 1_000_000_000);
    }

    /// Every consumer leaves, every unsettled delivery goes back, every open transaction is forgotten.
    fn drop_channels(&mut self, io: &mut Io, broker: &mut Broker, failed: bool) {
        for number in 0..self.channels.len() {
            self.drop_channel(io, broker, number as u16, failed);
        }
        self.forget_suspended(broker, |_| true);
        self.roll_back_all(io, broker, |_| true);
        (self.pending, self.waiting) = (None, None);
        self.owing.clear();
        io.stalled.clear();
    }

    /// Writes an empty frame when nothing else was sent, cuts a peer that is silent. When to look again.
    pub fn tick(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        if !matches!(self.state, State::Running) {
            return opening_deadline(io, broker);
        }
        let waits = [self.end_rest(io, broker), self.end_wait(io, broker), self.end_pace(io, broker)];
        let unfinished_ns = self.end_unfinished(io, broker);
        let mut next_ns = waits.into_iter().flatten().chain(unfinished_ns).min();
        if self.idle_ms > 0 {
            let silent_ns = SILENT_INTERVALS * u64::from(self.idle_ms) * 1_000_000;
            if broker.now_ns >= io.received_ns + silent_ns && !io.paused {
                let text = "no frame from the peer for too long";
                self.close_connection(io, broker, condition::RESOURCE_LIMIT_EXCEEDED, text);
                // It will not answer: whoever waits for the end of this connection need not wait for that.
                io.finish(text);
                return None;
            }
            let due_ns = broker.now_ns.max(io.received_ns + silent_ns);
            next_ns = Some(next_ns.map_or(due_ns, |next_ns| next_ns.min(due_ns)));
        }
        if self.peer_idle_ms > 0 {
            let beat_ns = u64::from(self.peer_idle_ms) * 500_000;
            if broker.now_ns >= io.sent_ns + beat_ns && io.output.is_empty() {
                frame::heartbeat(&mut io.output);
            }
            let due_ns = (io.sent_ns + beat_ns).max(broker.now_ns + beat_ns / 2);
            next_ns = Some(next_ns.map_or(due_ns, |next_ns| next_ns.min(due_ns)));
        }
        next_ns
    }

    /// Ends the connection with the condition that a 0-9-1 reply code stands for.
    pub fn close(&mut self, io: &mut Io, broker: &mut Broker, code: u16, text: &str) {
        match self.state {
            State::Running => self.close_connection(io, broker, condition_of(code), text),
            _ => io.finish(text),
        }
    }

    pub fn lost(&mut self, io: &mut Io, broker: &mut Broker) {
        self.drop_channels(io, broker, true);
        let open = std::mem::take(&mut self.channels).into_iter().enumerate().filter(|(_, channel)| channel.is_some());
        open.for_each(|(number, _)| broker.tell_session(io.id, number as u16, false));
    }

    pub fn describe(&self) -> Described {
        let links = self.channels.iter().flatten().flat_map(|channel| channel.links.iter().flatten());
        let consumers = links.filter_map(|link| match link {
            Link::Out(outlet) => outlet.consumer,
            _ => None,
        });
        let channels = self.channels.iter().flatten().count();
        Described { protocol: "AMQP 1.0", channels, consumers: consumers.collect() }
    }

    /// Every session, for `inspect`.
    pub fn parts(&self) -> Vec<super::Part> {
        let open = self.channels.iter().enumerate().filter_map(|(number, channel)| Some((number, channel.as_ref()?)));
        open.map(|(number, channel)| super::Part {
            number: number as u16,
            links: channel.links.iter().flatten().count(),
            unsettled: channel.unsettled.len(),
            prefetch: 0,
            published: None,
            transactional: false,
        })
        .collect()
    }

    /// Name of a receiving link, whether it must settle, and its credit.
    pub fn tap(&self, session: u16, handle: u32) -> Option<(String, bool, u16)> {
        match self.channels.get(usize::from(session))?.as_ref()?.links.get(handle as usize)?.as_ref()? {
            Link::Out(outlet) => {
                Some((outlet.common.name.to_string(), !outlet.settled, outlet.credit.min(u16::MAX.into()) as u16))
            }
            _ => None,
        }
    }

    pub fn answer(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        io.parked = None;
        match self.state {
            State::Opening(_) => self.answer_opening(io, broker, answer),
            State::Running => self.answer_attach(io, broker, answer),
            State::Closing => {}
        }
    }
}

fn no_session(number: u16) -> Fault {
    Fault::connection(condition::NOT_ALLOWED, format!("no session on channel {number}"))
}

/// An error whose text fits the smallest frame there may be.
fn error_of<'a>(condition: Symbol<'a>, text: &'a str) -> Error<'a> {
    let cut = (0..=text.len().min(ERROR_TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    Error { condition, description: text.get(..cut.unwrap_or(0)), info: None }
}

/// The condition that Python's reply code stands for.
fn condition_of(code: u16) -> Symbol<'static> {
    match code {
        320 => condition::CONNECTION_FORCED,
        403 => condition::UNAUTHORIZED_ACCESS,
        404 => condition::NOT_FOUND,
        405 => condition::RESOURCE_LOCKED,
        406 => condition::PRECONDITION_FAILED,
        501 => condition::CONNECTION_FRAMING_ERROR,
        506 => condition::RESOURCE_LIMIT_EXCEEDED,
        530 => condition::NOT_ALLOWED,
        540 => condition::NOT_IMPLEMENTED,
        _ => condition::INTERNAL_ERROR,
    }
}
