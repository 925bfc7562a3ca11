//! Publishing on a channel: from basic.publish to the broker.
//!
//! Owns the gathering of content frames and the checks a publish must pass. Frames come in; a message goes to the
//! broker; returns and confirms go out. When method, header and body lie in one read, the whole message is taken at
//! once with a single copy. It must never route by itself. Rules: AMQP 0-9-1 sections 1.8.3.7 and 4.2.6, RabbitMQ's
//! CC/BCC, user-id and direct reply-to.

use std::rc::Rc;

use weft_wire::amqp091::frame::{self, FRAME_BODY, FRAME_HEADER, Frame};
use weft_wire::amqp091::properties::{Peek, has_type};
use weft_wire::amqp091::{Method, reply};

use super::consume::REPLY_QUEUE;
use super::content::{self, write_content};
use super::{Fault, PUBLISH_IDS, Session, Step, Stepped, show};
use crate::broker::{Broker, Published, Waiter};
use crate::conn::Io;
use crate::event::{Access, Resource};
use crate::memory::{MESSAGE_OVERHEAD_BYTES, Unfinished};
use crate::message::{Body, Gatherer, Kind, Message, Name, Traits};
use crate::routing::ExchangeId;
use crate::routing::matches::Trail;

/// The longest time to live, ten years, as queues have it and RabbitMQ.
const EXPIRATION_MS_MAX: u64 = 315_360_000_000;

/// Bytes of a content header frame's payload before the properties: class, weight, body size.
const HEADER_FIXED: usize = 12;

/// Where the last publish went: most channels publish to one place.
#[derive(Default)]
pub(super) struct RouteMemory {
    generation: u64,
    exchange: Option<ExchangeId>,
    names: Option<(Name, Name)>,
    /// The way, where it depends on nothing but exchange and key, from the second message on.
    route: Option<Rc<Trail>>,
    routed: bool,
    delayed: bool,
}

/// Content that is being gathered.
pub(super) struct Incoming {
    mandatory: bool,
    /// The properties, and how long the body is to be.
    head: Option<(Box<[u8]>, u64)>,
    /// The properties again, and the body behind them.
    bytes: Gatherer,
    charge: Unfinished,
}

impl Incoming {
    /// Bytes of the body that are yet to come.
    fn missing(&self) -> Option<u64> {
        let (head, body_size) = self.head.as_ref()?;
        Some((head.len() as u64 + body_size).saturating_sub(self.bytes.len() as u64))
    }
}

/// A message with everything known that routing needs.
pub(super) struct Finished {
    pub message: Rc<Message>,
    exchange: ExchangeId,
    route: Option<Rc<Trail>>,
    more_keys: Vec<Box<[u8]>>,
    delay_ms: u64,
    mandatory: bool,
}

type Publish<'a> = (&'a [u8], &'a [u8], bool, bool);

impl Session {
    pub(super) fn on_publish(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        publish: Publish<'_>,
        rest: &[u8],
    ) -> Stepped {
        let (exchange, routing_key, mandatory, immediate) = publish;
        if immediate {
            return Err(Fault::connection(reply::NOT_IMPLEMENTED, "immediate=true"));
        }
        if !self.remembered(broker, number, exchange, routing_key)
            && !self.resolve(io, broker, number, exchange, routing_key)?
        {
            return Ok(Step::Retry);
        }
        if let Some(used) = self.publish_whole(io, broker, number, mandatory, rest)? {
            return Ok(Step::Done(used));
        }
        if let Some(channel) = self.channel(number) {
            let (bytes, charge) = (Gatherer::default(), io.account.charge_part(0, broker.now_ns));
            broker.schedule_conn(io, charge.due_ns(broker.limits.unfinished_s));
            channel.incoming = Some(Incoming { mandatory, head: None, bytes, charge });
        }
        Ok(Step::Done(0))
    }

    #[inline]
    fn remembered(&mut self, broker: &Broker, number: u16, exchange: &[u8], routing_key: &[u8]) -> bool {
        let Some(channel) = self.channel(number) else { return false };
        let memory = &channel.memory;
        memory.generation == broker.generation
            && memory.names.as_ref().is_some_and(|names| *names.0 == *exchange && *names.1 == *routing_key)
    }

    /// Finds the exchange and asks for permission; false while Python is being asked.
    fn resolve(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        exchange: &[u8],
        routing_key: &[u8],
    ) -> Result<bool, Fault> {
        let Some(id) = broker.find_exchange(self.vhost, exchange) else {
            let vhost = self.vhost_name(broker);
            let text = format!("no exchange '{}' in vhost '{vhost}'", show(exchange));
            return Err(Fault::channel(reply::NOT_FOUND, text));
        };
        if !self.permitted(io, broker, Access::Write, Resource::Exchange, exchange)? {
            return Ok(false);
        }
        let Some(found) = broker.exchanges.get(id) else { return Ok(true) };
        if found.internal {
            let vhost = self.vhost_name(broker);
            let text = format!("cannot publish to internal exchange '{}' in vhost '{vhost}'", show(exchange));
            return Err(Fault::channel(reply::ACCESS_REFUSED, text));
        }
        let names = (Rc::clone(&found.name), Name::from(routing_key));
        let delayed = found.delayed;
        if let Some(text) = broker.refused_topic(io.principal, id, routing_key) {
            return Err(Fault::channel(reply::ACCESS_REFUSED, text));
        }
        if let Some(channel) = self.channel(number) {
            let generation = broker.generation;
            channel.memory =
                RouteMemory { generation, exchange: Some(id), names: Some(names), delayed, ..RouteMemory::default() };
        }
        io.publishes = true;
        Ok(true)
    }

    /// The whole content lies behind the method: header, and a body in at most one frame.
    #[inline]
    fn publish_whole(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        mandatory: bool,
        rest: &[u8],
    ) -> Result<Option<usize>, Fault> {
        let frame_max = self.frame_max as usize;
        let Ok(Some(head)) = frame::split(rest, frame_max) else { return Ok(None) };
        if head.kind != FRAME_HEADER || head.channel != number {
            return Ok(None);
        }
        let header = content_header(&head)?;
        if header.body_size > broker.limits.message_bytes_max {
            // Refused where the header is read by itself.
            return Ok(None);
        }
        let Ok(body_len) = usize::try_from(header.body_size) else { return Ok(None) };
        let mut used = head.size;
        if body_len > 0 {
            let Ok(Some(body)) = frame::split(&rest[head.size..], frame_max) else { return Ok(None) };
            if body.kind != FRAME_BODY || body.channel != number || body.payload.len() != body_len {
                return Ok(None);
            }
            used += body.size;
            broker.spend(2);
        }
        // One copy for properties and body; the eight bytes of framing between them are copied along and never looked
        // at.
        let start = frame::HEADER_LEN + HEADER_FIXED;
        let body_at = head.size + frame::HEADER_LEN - start;
        let end = if body_len > 0 { body_at + body_len } else { header.properties.len() };
        let first: Rc<[u8]> = Rc::from(&rest[start..start + end]);
        let body = if body_len > 0 { Body::new(first, body_at..end) } else { Body::new(first, end..end) };
        let placed = (0..header.properties.len(), body);
        let done = self.finish(io, broker, number, mandatory, header.properties, header.peek, placed);
        done.map(|()| Some(used)).map_err(Fault::of_publish)
    }

    pub(super) fn on_content_header(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Stepped {
        let body_max = broker.limits.message_bytes_max;
        let Some(channel) = self.channel(frame.channel) else { return Err(no_channel(frame.channel)) };
        if channel.closing {
            return Ok(Step::Done(0));
        }
        let header = content_header(frame)?;
        let Some(incoming) = channel.incoming.as_mut().filter(|incoming| incoming.head.is_none()) else {
            return Err(unexpected(frame));
        };
        if header.body_size > body_max {
            channel.incoming = None;
            let text = format!("message size {} is larger than configured max size {body_max}", header.body_size);
            return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
        }
        let expected = header.properties.len() + header.body_size as usize;
        incoming.bytes.push(header.properties, expected);
        incoming.head = Some((header.properties.into(), header.body_size));
        self.complete(io, broker, frame.channel)
    }

    pub(super) fn on_content_body(&mut self, io: &mut Io, broker: &mut Broker, frame: &Frame<'_>) -> Stepped {
        let Some(channel) = self.channel(frame.channel) else { return Err(no_channel(frame.channel)) };
        if channel.closing {
            return Ok(Step::Done(0));
        }
        let Some(incoming) = channel.incoming.as_mut() else { return Err(unexpected(frame)) };
        let Some(missing) = incoming.missing() else { return Err(unexpected(frame)) };
        if frame.payload.len() as u64 > missing {
            let body_size = incoming.head.as_ref().map_or(0, |head| head.1);
            let text = format!("more content than the announced {body_size} bytes on channel {}", frame.channel);
            return Err(Fault::connection(reply::FRAME_ERROR, text));
        }
        incoming.bytes.push(frame.payload, incoming.bytes.len() + missing as usize);
        incoming.charge.grow(incoming.bytes.len() as u64, broker.now_ns);
        if incoming.charge.is_too_much() {
            channel.incoming = None;
            let text = "unfinished messages take too much memory, try again later";
            return Err(Fault::channel(reply::CONTENT_TOO_LARGE, text));
        }
        self.complete(io, broker, frame.channel)
    }

    /// Gives up messages whose rest does not come. When to look again.
    pub(super) fn end_unfinished(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        let (now_ns, limit_s) = (broker.now_ns, broker.limits.unfinished_s);
        let is_unread = io.paused || io.waits();
        let mut next_ns = None;
        for number in 0..self.channels.len() as u16 {
            let Some(incoming) = self.channel(number).and_then(|channel| channel.incoming.as_mut()) else { continue };
            if is_unread {
                incoming.charge.excuse(now_ns);
            }
            let due_ns = incoming.charge.due_ns(limit_s);
            if due_ns > now_ns {
                next_ns = Some(next_ns.map_or(due_ns, |next_ns: u64| next_ns.min(due_ns)));
                continue;
            }
            let text = format!("PRECONDITION_FAILED - the rest of a message did not come within {limit_s} s");
            self.send_confirms(io);
            self.close_channel(io, broker, number, reply::PRECONDITION_FAILED, &text, PUBLISH_IDS);
        }
        next_ns
    }

    /// All bytes there? Then the message is made.
    fn complete(&mut self, io: &mut Io, broker: &mut Broker, number: u16) -> Stepped {
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        let whole = |incoming: &mut Incoming| incoming.missing() == Some(0);
        let Some(incoming) = channel.incoming.take_if(whole) else { return Ok(Step::Done(0)) };
        let Some((head, _)) = incoming.head else { return Ok(Step::Done(0)) };
        let peek = weft_wire::amqp091::properties::peek(&head).map_err(|error| syntax(&error.to_string()))?;
        let placed = (0..head.len(), incoming.bytes.finish(head.len()));
        let done = self.finish(io, broker, number, incoming.mandatory, &head, peek, placed);
        done.map(|()| Step::Done(0)).map_err(Fault::of_publish)
    }

    /// Checks the properties, makes the message and hands it on.
    #[allow(clippy::too_many_arguments)] // the hot path: a struct would be built and taken apart for every message
    #[inline]
    fn finish(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        mandatory: bool,
        head: &[u8],
        peek: Peek<'_>,
        placed: (std::ops::Range<usize>, Body),
    ) -> Result<(), Fault> {
        if let Some(user) = peek.user_id {
            self.check_user(io, broker, user)?;
        }
        let ttl_ms = peek.expiration.map(expiration_ms).transpose()?;
        let extras = match peek.headers {
            Some(headers) => content::extras(headers)?,
            None => content::Extras::default(),
        };
        let Some(channel) = self.channel(number) else { return Ok(()) };
        let (Some(exchange), Some(names)) = (channel.memory.exchange, channel.memory.names.clone()) else {
            return Ok(());
        };
        if let Some(text) = extras.more_keys.iter().find_map(|key| broker.refused_topic(io.principal, exchange, key)) {
            return Err(Fault::channel(reply::ACCESS_REFUSED, text));
        }
        let (arrived_us, serial) = broker.stamp();
        let traits = Traits {
            durable: peek.delivery_mode == 2,
            priority: peek.priority,
            ttl_ms,
            delivery_count: 0,
            publisher: io.id.raw(),
            copied: !extras.more_keys.is_empty(),
            relayed: false,
            untyped: !has_type(head),
            arrived_us,
            serial,
        };
        let charge = io.account.charge((placed.0.len() + placed.1.len()) as u64);
        let mut message = Message::new(Kind::Amqp091, names, traits, placed.0, placed.1, charge);
        if extras.has_bcc || peek.reply_to == Some(REPLY_QUEUE) {
            let address = channel.reply.as_ref().map(|reply| &*reply.1);
            if peek.reply_to == Some(REPLY_QUEUE) && address.is_none() {
                let text = "fast reply consumer does not exist";
                return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
            }
            let reply_to = address.filter(|_| peek.reply_to == Some(REPLY_QUEUE));
            message = message.with_head(Kind::Amqp091, content::rewritten(head, reply_to));
        }
        let plain = extras.more_keys.is_empty() && extras.delay_ms == 0;
        let finished = Finished {
            message: Rc::new(message),
            exchange,
            route: if plain { channel.memory.route.clone() } else { None },
            more_keys: extras.more_keys,
            delay_ms: if channel.memory.delayed { extras.delay_ms } else { 0 },
            mandatory,
        };
        self.hand_on(io, broker, number, finished)
    }

    /// Into the open transaction, or straight to the queues.
    #[inline]
    fn hand_on(&mut self, io: &mut Io, broker: &mut Broker, number: u16, finished: Finished) -> Result<(), Fault> {
        io.messages_in += 1;
        let bytes_max = broker.limits.transaction_bytes_max;
        if let Some(transaction) = self.channel(number).and_then(|channel| channel.transaction.as_mut()) {
            transaction.bytes += finished.message.body_len() as u64 + MESSAGE_OVERHEAD_BYTES;
            if transaction.bytes > bytes_max {
                let text = format!("transaction holds more than {bytes_max} bytes");
                return Err(Fault::channel(reply::RESOURCE_ERROR, text));
            }
            transaction.published.push(finished);
            return Ok(());
        }
        self.route(io, broker, number, finished);
        Ok(())
    }

    /// Routes a message; tells the publisher what became of it.
    #[inline]
    pub(super) fn route(&mut self, io: &mut Io, broker: &mut Broker, number: u16, finished: Finished) {
        let message = &finished.message;
        self.ask_end(io, broker, number, message);
        let published = match &finished.route {
            Some(route) => broker.deliver_along(route, message),
            None if finished.delay_ms > 0 => {
                broker.delay(finished.exchange, message, &finished.more_keys, finished.delay_ms)
            }
            None => self.route_and_remember(broker, number, &finished),
        };
        io.direct &= !published.stored;
        if published.queues == 0 && finished.mandatory {
            self.give_back(io, number, message);
        }
        if let Some(receipt) = published.receipt {
            return self.hold_confirm(io, broker, number, receipt);
        }
        let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) else { return };
        if published.rejected {
            io.promise(number, |out| confirms.nack(number, out));
        } else if confirms.ack() {
            self.confirming.push(number);
        }
    }

    /// A channel in confirm mode wants to know how its message ends, where consumers say so.
    #[inline]
    fn ask_end(&mut self, io: &Io, broker: &mut Broker, channel: u16, message: &Message) {
        if let Some(confirms) = self.channel(channel).and_then(|channel| channel.confirms.as_ref()) {
            broker.ask_end(message, Waiter { conn: io.id, channel, number: confirms.count() + 1 });
        }
    }

    fn route_and_remember(&mut self, broker: &mut Broker, number: u16, finished: &Finished) -> Published {
        let message = &finished.message;
        if message.exchange.is_empty() && message.routing_key.starts_with(REPLY_QUEUE) {
            return broker.reply(message);
        }
        let more_keys: Vec<&[u8]> = finished.more_keys.iter().map(|key| &**key).collect();
        let targets = broker.route_of(finished.exchange, message, &more_keys);
        broker.matches.count();
        let keyed = broker.exchanges.get(finished.exchange).is_some_and(|exchange| !exchange.reads_headers());
        let generation = broker.generation;
        if let Some(channel) = self.channel(number) {
            let memory = &mut channel.memory;
            let same = memory.generation == generation && memory.exchange == Some(finished.exchange);
            let same = same && memory.names.as_ref().is_some_and(|names| names.1 == message.routing_key);
            // An exchange bound to a headers exchange is rare enough to be routed anew every time.
            let plain = keyed && more_keys.is_empty() && !memory.delayed;
            let lasts = plain && same && !broker.has_headers_exchanges() && !broker.route_is_guarded();
            if lasts && std::mem::replace(&mut memory.routed, true) {
                memory.route = Some(broker.matches.remember(finished.exchange, &targets));
            }
        }
        let published = broker.deliver_to(finished.exchange, &targets, message);
        broker.recycle_route(targets);
        published
    }

    /// basic.return: nobody wanted it.
    fn give_back(&mut self, io: &mut Io, number: u16, message: &Message) {
        let method = Method::BasicReturn {
            reply_code: reply::NO_ROUTE,
            reply_text: b"NO_ROUTE",
            exchange: &message.exchange,
            routing_key: &message.routing_key,
        };
        method.encode_frame(number, &mut io.output);
        write_content(&mut io.output, number, self.frame_max, message, None);
    }

    /// A message may name its user only truthfully, unless the user may speak for others.
    fn check_user(&self, io: &Io, broker: &Broker, user: &[u8]) -> Result<(), Fault> {
        let own = broker.principal(io.principal);
        if own.is_some_and(|own| *own.user == *user || own.impersonate) {
            return Ok(());
        }
        let text =
            format!("user_id property set to '{}' but authenticated user was '{}'", show(user), show(&self.user));
        Err(Fault::channel(reply::PRECONDITION_FAILED, text))
    }
}

fn content_header<'a>(frame: &Frame<'a>) -> Result<frame::ContentHeader<'a>, Fault> {
    let header = frame::content_header(frame.payload).map_err(|error| syntax(&error.to_string()))?;
    match header.class_id {
        60 => Ok(header),
        class => Err(Fault::connection(reply::UNEXPECTED_FRAME, format!("content of class {class}"))),
    }
}

fn expiration_ms(text: &[u8]) -> Result<u64, Fault> {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    value
        .filter(|ms| *ms <= EXPIRATION_MS_MAX)
        .ok_or_else(|| Fault::channel(reply::PRECONDITION_FAILED, format!("invalid expiration '{}'", show(text))))
}

fn syntax(text: &str) -> Fault {
    Fault::connection(reply::SYNTAX_ERROR, text)
}
fn no_channel(number: u16) -> Fault {
    Fault::connection(reply::CHANNEL_ERROR, format!("expected 'channel.open' on channel {number}"))
}
fn unexpected(frame: &Frame<'_>) -> Fault {
    let text = format!("unexpected content frame of type {} on channel {}", frame.kind, frame.channel);
    Fault::connection(reply::UNEXPECTED_FRAME, text)
}
