//! One channel: what it has open, and which method goes where.
//!
//! Owns the state of a channel and the dispatch of its methods. Method frames come in decoded once; each is handed to
//! the file that implements its class. It must never hold a reference to a queue, only its id. Rule: AMQP 0-9-1 section
//! 1.5 (channel class); a channel that was closed by us ignores everything but close and close-ok.

use weft_wire::amqp091::frame::Frame;
use weft_wire::amqp091::{Method, publish_fast, reply};

use super::ack::Unacked;
use super::confirm::Confirms;
use super::consume::Tap;
use super::publish::{Incoming, RouteMemory};
use super::transaction::Transaction;
use super::{Fault, Session, Step, Stepped, decode};
use crate::broker::{Broker, Outcome, Ticket};
use crate::conn::Io;
use crate::message::Name;

/// One channel.
#[derive(Default)]
pub(super) struct Channel {
    /// We sent channel.close and wait for close-ok.
    pub closing: bool,
    pub taps: Vec<Option<Tap>>,
    pub unacked: Unacked,
    /// Prefetch that the next consumers get.
    pub prefetch: u16,
    /// Limit over all consumers of the channel; 0 for none.
    pub limit: u16,
    /// Deliveries to consumers, not yet settled.
    pub inflight: u32,
    /// The client asked us to stop delivering.
    pub stopped: bool,
    pub confirms: Option<Confirms>,
    pub transaction: Option<Transaction>,
    pub incoming: Option<Incoming>,
    pub memory: RouteMemory,
    pub last_queue: Option<Name>,
    /// Tag and address of the consumer of `amq.rabbitmq.reply-to`.
    pub reply: Option<(Name, Name)>,
    tags_made: u32,
    /// Its place among the channels of its user.
    _ticket: Option<Ticket>,
}

impl Channel {
    /// Consumers leave, what they held goes back.
    pub fn end(&mut self, broker: &mut Broker) {
        for tap in std::mem::take(&mut self.taps).into_iter().flatten() {
            tap.id.and_then(|id| broker.leave(id));
        }
        if let Some((_, address)) = self.reply.take() {
            broker.close_reply(&address);
        }
        self.settle_runs(broker, u64::MAX, Outcome::Returned { failed: true });
        let held = self.unacked.take_all();
        broker.give_back(held.map(|held| (held.queue, held.entry)), true);
    }

    /// A consumer tag of our own making, unique in the channel.
    pub fn make_tag(&mut self, number: u16) -> Name {
        self.tags_made += 1;
        Name::from(format!("amq.ctag-{number}.{}", self.tags_made).into_bytes())
    }

    /// Wakes the consumers that a limit had put to sleep.
    pub fn wake_all(&mut self, broker: &mut Broker) {
        for tap in self.taps.iter_mut().flatten() {
            tap.starved = false;
            tap.id.into_iter().for_each(|id| broker.wake(id));
        }
    }
}

impl Session {
    pub(super) fn on_channel_method(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        frame: &Frame<'_>,
        rest: &[u8],
    ) -> Stepped {
        let number = frame.channel;
        match self.channel(number) {
            Some(channel) if !channel.closing => {
                if channel.incoming.is_some() {
                    let text = format!("expected content on channel {number}, got a method");
                    return Err(Fault::connection(reply::UNEXPECTED_FRAME, text));
                }
                if let Some(publish) = publish_fast(frame.payload) {
                    return self.on_publish(io, broker, number, publish, rest);
                }
                self.dispatch(io, broker, number, decode(frame.payload)?)
            }
            Some(_) => self.on_closing_channel(io, broker, frame),
            None => self.open_channel(io, broker, number, decode(frame.payload)?),
        }
    }

    fn open_channel(&mut self, io: &mut Io, broker: &mut Broker, number: u16, method: Method<'_>) -> Stepped {
        match method {
            Method::ChannelOpen if number <= self.channels_max => {
                let ticket = broker.take_channel(io.principal);
                let _ticket = ticket.map_err(|text| Fault::connection(reply::NOT_ALLOWED, text))?;
                let index = usize::from(number);
                if self.channels.len() <= index {
                    self.channels.resize_with(index + 1, || None);
                }
                self.channels[index] = Some(Box::new(Channel { _ticket, ..Channel::default() }));
                broker.tell_session(io.id, number, true);
                Method::ChannelOpenOk.encode_frame(number, &mut io.output);
                Ok(Step::Done(0))
            }
            Method::ChannelOpen => {
                let text = format!("channel {number} is above the negotiated channel_max {}", self.channels_max);
                Err(Fault::connection(reply::NOT_ALLOWED, text))
            }
            // The last words of a channel that both sides closed at once.
            Method::ChannelCloseOk => Ok(Step::Done(0)),
            _ => Err(Fault::connection(reply::CHANNEL_ERROR, format!("expected 'channel.open' on channel {number}"))),
        }
    }

    fn on_closing_channel(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Stepped {
        match decode(frame.payload)? {
            Method::ChannelCloseOk => {
                self.channels[usize::from(frame.channel)] = None;
                broker.tell_session(io.id, frame.channel, false);
            }
            Method::ChannelClose { .. } => Method::ChannelCloseOk.encode_frame(frame.channel, &mut io.output),
            _ => {}
        }
        Ok(Step::Done(0))
    }

    fn dispatch(&mut self, io: &mut Io, broker: &mut Broker, number: u16, method: Method<'_>) -> Stepped {
        match method {
            Method::BasicAck { delivery_tag, multiple } => {
                return self.on_settle(broker, number, delivery_tag, multiple, Outcome::Accepted);
            }
            Method::BasicNack { delivery_tag, multiple, requeue } => {
                let outcome = if requeue { Outcome::Returned { failed: true } } else { Outcome::Rejected };
                return self.on_settle(broker, number, delivery_tag, multiple, outcome);
            }
            Method::BasicReject { delivery_tag, requeue } => {
                let outcome = if requeue { Outcome::Returned { failed: true } } else { Outcome::Rejected };
                return self.on_settle(broker, number, delivery_tag, false, outcome);
            }
            Method::BasicRecover { requeue: false } | Method::BasicRecoverAsync { requeue: false } => {
                return Err(Fault::connection(reply::NOT_IMPLEMENTED, "requeue=false"));
            }
            Method::BasicRecover { .. } => {
                self.on_recover(broker, number);
                Method::BasicRecoverOk.encode_frame(number, &mut io.output);
            }
            Method::BasicRecoverAsync { .. } => self.on_recover(broker, number),
            Method::BasicQos { prefetch_size, prefetch_count, global } => {
                self.on_qos(io, broker, number, prefetch_size, prefetch_count, global)?;
            }
            Method::BasicConsume { .. } => return self.on_consume(io, broker, number, method),
            Method::BasicCancel { consumer_tag, no_wait } => self.on_cancel(io, broker, number, consumer_tag, no_wait),
            Method::BasicGet { queue, no_ack } => return self.on_get(io, broker, number, queue, no_ack),
            Method::ChannelFlow { active } => self.on_flow(io, broker, number, active),
            Method::ChannelFlowOk { .. } | Method::BasicCancelOk { .. } => {}
            Method::ChannelClose { .. } => {
                self.send_confirms(io);
                self.abandon_confirms(io, broker, number);
                if let Some(mut channel) = self.channels[usize::from(number)].take() {
                    channel.end(broker);
                    broker.tell_session(io.id, number, false);
                }
                io.drop_promises(number);
                Method::ChannelCloseOk.encode_frame(number, &mut io.output);
            }
            Method::ChannelOpen => {
                return Err(Fault::connection(reply::CHANNEL_ERROR, "second 'channel.open' seen"));
            }
            Method::AccessRequest { .. } => Method::AccessRequestOk { ticket: 1 }.encode_frame(number, &mut io.output),
            Method::ConfirmSelect { no_wait } => self.on_confirm_select(io, number, no_wait)?,
            Method::TxSelect => self.on_tx_select(io, number)?,
            Method::TxCommit => self.on_tx_commit(io, broker, number)?,
            Method::TxRollback => self.on_tx_rollback(io, broker, number)?,
            method => return self.on_topology(io, broker, number, method),
        }
        Ok(Step::Done(0))
    }

    fn on_flow(&mut self, io: &mut Io, broker: &mut Broker, number: u16, active: bool) {
        if let Some(channel) = self.channel(number) {
            channel.stopped = !active;
            channel.wake_all(broker);
        }
        Method::ChannelFlowOk { active }.encode_frame(number, &mut io.output);
    }

    /// Closes a channel because of a fault: it is emptied, and waits for close-ok.
    pub(super) fn close_channel(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        code: u16,
        text: &str,
        ids: (u16, u16),
    ) {
        self.confirming.retain(|other| *other != number);
        self.abandon_confirms(io, broker, number);
        io.drop_promises(number);
        if let Some(channel) = self.channel(number) {
            channel.end(broker);
            *channel = Channel { closing: true, ..Channel::default() };
        }
        let method =
            Method::ChannelClose { reply_code: code, reply_text: text.as_bytes(), class_id: ids.0, method_id: ids.1 };
        method.encode_frame(number, &mut io.output);
    }
}
