//! From a message to its queues: what the head says, where the link leads, what the sender is told.
//!
//! Owns the facts a node reads from a message's head and the memory of where a link's messages went last. Messages
//! come in from `incoming.rs`; they go to the broker, into a transaction, or wait for Python to say where an address
//! leads. It must never route by itself. Rules: AMQP 1.0 section 3.2; RabbitMQ's outcomes for publishers and its x-cc
//! annotation; the anonymous terminus extension.

use std::rc::Rc;

use weft_wire::amqp10::peek::PropertiesPeek;
use weft_wire::amqp10::sections::Head;
use weft_wire::amqp10::{DecodeError, condition};

use super::facts::{Extras, extras_of, properties_of, traits_of};
use super::incoming::Delivery;
use super::link::{Goal, Inlet, Link};
use super::settle::{Posted, Told, Verdict};
use super::{Fault, Place, Session, condition_of};
use crate::broker::{Broker, Post, Published, Route};
use crate::conn::{Io, Wait};
use crate::event::Event;
use crate::memory::Charge;
use crate::message::{Body, Kind, Message, Name};
use crate::queue::QueueId;
use crate::routing::ExchangeId;
use crate::routing::matches::Trail;

/// Addresses of direct reply-to consumers begin so; no queue stands behind them.
const REPLY_PREFIX: &[u8] = b"amq.rabbitmq.reply-to.";

/// Where the last message of a link went: most links lead to one place.
#[derive(Default)]
pub(super) struct RouteMemory {
    pub generation: u64,
    /// The subject or address that it was found by; empty for links to one place.
    key: Box<[u8]>,
    exchange: Option<ExchangeId>,
    pub names: Option<(Name, Name)>,
    /// The way, where it depends on nothing but exchange and key, from the second message on.
    route: Option<Rc<Trail>>,
    routed: bool,
    delayed: bool,
}

impl RouteMemory {
    /// A way that leads straight to one queue, whatever an exchange would say.
    pub(super) fn straight(
        generation: u64,
        exchange: Option<ExchangeId>,
        names: (Name, Name),
        target: QueueId,
    ) -> Self {
        let route = Some(Trail::straight(exchange.unwrap_or(ExchangeId::from_raw(0)), target));
        Self { generation, exchange, names: Some(names), route, ..Self::default() }
    }

    /// Exchange and key of a message whose way is known.
    #[inline]
    pub(super) fn names_or(&self, broker: &Broker, way: &Way) -> (Name, Name) {
        match (way, &self.names) {
            (Way::Known, Some(names)) => names.clone(),
            _ => (broker.no_name(), broker.no_name()),
        }
    }
}

/// A message with everything known that routing needs.
pub(super) struct Finished {
    pub message: Rc<Message>,
    pub exchange: ExchangeId,
    route: Option<Rc<Trail>>,
    more_keys: Vec<Box<[u8]>>,
    delay_ms: u64,
}

impl Finished {
    pub(super) fn is_reply(&self) -> bool {
        is_reply(&self.message)
    }

    /// The same by names, which are still right after a restart.
    pub(super) fn promised(self, broker: &Broker) -> Post {
        let exchange = broker.exchanges.get(self.exchange).map_or_else(|| broker.no_name(), |found| found.name.clone());
        Post { exchange, message: self.message, more_keys: self.more_keys, delay_ms: self.delay_ms }
    }

    /// Why one of its further keys is not for this principal.
    #[inline]
    fn refused_copy(&self, broker: &Broker, principal: u32) -> Option<Verdict> {
        let text = self.more_keys.iter().find_map(|key| broker.refused_topic(principal, self.exchange, key))?;
        Some(Verdict::rejected(condition::UNAUTHORIZED_ACCESS, &text))
    }
}

/// A message on its way to its exchange.
pub(super) struct Arrival {
    pub place: Place,
    pub delivery: Delivery,
    pub message: Message,
    /// What its way is found by: the subject, or the address in `to`.
    pub subject: Box<[u8]>,
    pub to: Option<Box<[u8]>>,
    pub extras: Extras,
}

/// Where a message goes.
pub(super) enum Way {
    Known,
    /// Nobody has been asked yet about this address.
    Unknown,
    Nowhere(Verdict),
}

impl Session {
    /// A whole message: its head is read, its way found.
    #[allow(clippy::too_many_arguments)] // the hot path: a struct would be built and taken apart for every message
    #[inline]
    pub(super) fn take_message(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Delivery,
        head_bytes: &[u8],
        head: Head,
        body: Body,
        charge: Charge,
    ) -> Result<(), Fault> {
        let undecodable = |error: DecodeError| Fault::link(place.1, error.condition(), error.to_string());
        let Some(Link::In(inlet)) =
            self.channels.get_mut(usize::from(place.0)).and_then(|channel| channel.as_mut()?.link(place.1))
        else {
            return Ok(());
        };
        if let Goal::Coordinator = inlet.goal {
            let body = body.gather();
            return self.on_control(io, broker, place, &delivery, &body);
        }
        if inlet.carries() {
            return self.take_carried(io, broker, place, delivery, head_bytes, head, body, charge);
        }
        let properties = match head.properties {
            Some(span) => properties_of(span.of(head_bytes)).map_err(undecodable)?,
            None => PropertiesPeek::default(),
        };
        let traits = traits_of(io, broker, head_bytes, &head, &properties).map_err(undecodable)?;
        if let Some(user) = properties.user_id {
            check_user(io, broker, place.1, user)?;
        }
        let extras = match head.message_annotations {
            Some(span) => extras_of(span.of(head_bytes), broker.wall_ns).map_err(undecodable)?,
            None => Extras::default(),
        };
        let subject = properties.subject.unwrap_or_default().as_bytes();
        let to = properties.to.map(str::as_bytes);
        let head_range = 0..head.body_start as usize;
        let way = inlet.way(broker, io.principal, subject, to);
        let names = inlet.memory.names_or(broker, &way);
        let message = Message::new(Kind::Amqp10(Box::new(head)), names, traits, head_range, body, charge);
        match way {
            Way::Known => {
                let finished = inlet.finish(message, extras);
                match finished.refused_copy(broker, io.principal) {
                    Some(verdict) => self.refuse_message(io, broker, place, delivery, verdict),
                    None => self.hand_on(io, broker, place, delivery, finished),
                }
            }
            Way::Nowhere(verdict) => self.refuse_message(io, broker, place, delivery, verdict),
            Way::Unknown => {
                let (subject, to) = (subject.into(), to.map(Box::from));
                let arrival = Arrival { place, delivery, message, subject, to, extras };
                self.ask_address(io, broker, Box::new(arrival));
            }
        }
        Ok(())
    }

    /// Python is asked where an address leads; nothing is read until it has said so.
    pub(super) fn ask_address(&mut self, io: &mut Io, broker: &mut Broker, arrival: Box<Arrival>) {
        let request = broker.next_request();
        let (conn, principal) = (io.id.raw(), io.principal);
        let address = String::from_utf8_lossy(arrival.to.as_deref().unwrap_or_default()).into_owned();
        broker.events.push(Event::AddressRequested { request, conn, principal, address });
        io.parked = Some(Wait::Grant(principal));
        self.waiting = Some(arrival);
    }

    /// A message that waited for its address tries again.
    pub(super) fn find_way(&mut self, io: &mut Io, broker: &mut Broker, arrival: Box<Arrival>) {
        let place = arrival.place;
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else { return };
        match inlet.way(broker, io.principal, &arrival.subject, arrival.to.as_deref()) {
            Way::Known => {
                let Arrival { delivery, mut message, extras, .. } = *arrival;
                if let Some(names) = &inlet.memory.names {
                    (message.exchange, message.routing_key) = names.clone();
                }
                let finished = inlet.finish(message, extras);
                match finished.refused_copy(broker, io.principal) {
                    Some(verdict) => self.refuse_message(io, broker, place, delivery, verdict),
                    None => self.hand_on(io, broker, place, delivery, finished),
                }
            }
            Way::Nowhere(verdict) => self.refuse_message(io, broker, place, arrival.delivery, verdict),
            Way::Unknown => self.ask_address(io, broker, arrival),
        }
    }

    /// A message whose address leads nowhere. A sender that waits for no answer is told by the end of its link
    /// (the anonymous terminus extension, section 2.2.2).
    pub(super) fn refuse_message(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Delivery,
        verdict: Verdict,
    ) {
        broker.totals.unroutable += 1;
        if let (true, Verdict::Rejected { condition, text }) = (delivery.settled, &verdict)
            && self.is_anonymous(place)
        {
            return self.detach_by(io, broker, place, &delivery.tag, (*condition, text));
        }
        let verdict = self.turn_down(io, broker, place, verdict);
        self.answer_delivery(io, place, delivery, verdict);
    }

    /// Do the messages of this link name their own addresses?
    fn is_anonymous(&mut self, place: Place) -> bool {
        let link = self.channel(place.0).and_then(|channel| channel.link(place.1));
        matches!(link, Some(Link::In(inlet)) if matches!(inlet.goal, Goal::Anonymous))
    }

    /// Into its transaction, or straight to the queues.
    #[inline]
    pub(super) fn hand_on(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Delivery,
        finished: Finished,
    ) {
        io.messages_in += 1;
        let verdict = match delivery.transaction {
            Some(id) => self.post_in(broker, id, finished),
            None => {
                self.ask_end(io, broker, place, &delivery, &finished.message);
                let published = match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
                    Some(Link::In(inlet)) => inlet.route(broker, &finished),
                    _ => return,
                };
                io.direct &= !published.stored;
                if let Some(receipt) = published.receipt {
                    // No promise of this node is about it.
                    io.promised += 1;
                    return self.await_end(broker, place, delivery, (receipt, false));
                }
                match verdict_of(published) {
                    Verdict::Accepted => Verdict::Accepted,
                    verdict => self.turn_down(io, broker, place, verdict),
                }
            }
        };
        self.answer_delivery(io, place, delivery, verdict);
    }

    /// Tells the sender what became of its message, unless it does not want to know.
    #[inline]
    pub(super) fn answer_delivery(&mut self, io: &mut Io, place: Place, delivery: Delivery, verdict: Verdict) {
        if delivery.settled {
            return;
        }
        let Some(channel) = self.channel(place.0) else { return };
        if delivery.second {
            if let Some(Link::In(inlet)) = channel.link(place.1) {
                inlet.posted += 1;
            }
            let posted = Posted { handle: place.1, tag: delivery.tag, verdict: verdict.clone() };
            channel.posted.insert(delivery.id, posted);
        }
        let told = Told::verdict(delivery.id, verdict, !delivery.second);
        let told = Told { patient: delivery.batchable, ..told };
        channel.report(io, place.0, told);
        self.owe(place.0);
    }
}

impl Inlet {
    /// Finds where a message goes; remembered until something changes.
    #[inline]
    pub(super) fn way(&mut self, broker: &Broker, principal: u32, subject: &[u8], to: Option<&[u8]>) -> Way {
        let key = match &self.goal {
            Goal::Fixed { .. } => b"",
            Goal::Subject { .. } => subject,
            Goal::Anonymous => match to {
                Some(to) => to,
                None => return nowhere(condition::PRECONDITION_FAILED, "a message to no address needs one in 'to'"),
            },
            Goal::Coordinator | Goal::Queue { .. } => {
                return nowhere(condition::NOT_ALLOWED, "this link takes no such message");
            }
        };
        if self.memory.generation == broker.generation && *self.memory.key == *key {
            return Way::Known;
        }
        self.find(broker, principal, key, subject)
    }

    fn find(&mut self, broker: &Broker, principal: u32, key: &[u8], subject: &[u8]) -> Way {
        let mut generation = broker.generation;
        let (exchange, routing_key) = match &self.goal {
            Goal::Fixed { exchange, routing_key } => (Rc::clone(exchange), Rc::clone(routing_key)),
            Goal::Subject { exchange } => (Rc::clone(exchange), Name::from(subject)),
            Goal::Anonymous | Goal::Coordinator | Goal::Queue { .. } => match broker.address(principal, key) {
                None => return Way::Unknown,
                Some(Route::Nowhere { code, text, .. }) => return nowhere(condition_of(*code), text),
                Some(Route::To { exchange, routing_key: Some(routing_key) }) => {
                    (Rc::clone(exchange), Rc::clone(routing_key))
                }
                Some(Route::To { exchange, routing_key: None }) => {
                    // The address alone does not say where: the next message may have another subject.
                    generation = 0;
                    (Rc::clone(exchange), Name::from(subject))
                }
            },
        };
        let found = broker.find_exchange(self.vhost, &exchange);
        let Some((id, found)) = found.and_then(|id| Some((id, broker.exchanges.get(id)?))) else {
            return nowhere(condition::NOT_FOUND, "the exchange is gone");
        };
        if found.internal {
            return nowhere(condition::UNAUTHORIZED_ACCESS, "the exchange is internal");
        }
        if let Some(text) = broker.refused_topic(principal, id, &routing_key) {
            return nowhere(condition::UNAUTHORIZED_ACCESS, &text);
        }
        let names = (Rc::clone(&found.name), routing_key);
        self.memory = RouteMemory {
            generation,
            key: key.into(),
            exchange: Some(id),
            names: Some(names),
            delayed: found.delayed,
            ..RouteMemory::default()
        };
        Way::Known
    }

    /// The message with its way, as the memory has it.
    #[inline]
    pub(super) fn finish(&self, mut message: Message, extras: Extras) -> Finished {
        let memory = &self.memory;
        message.traits.copied = !extras.more_keys.is_empty();
        let delay_ms = extras.delay_ms.max(if memory.delayed { extras.exchange_delay_ms } else { 0 });
        let plain = extras.more_keys.is_empty() && delay_ms == 0;
        Finished {
            message: Rc::new(message),
            exchange: memory.exchange.unwrap_or(ExchangeId::from_raw(0)),
            route: if plain { memory.route.clone() } else { None },
            more_keys: extras.more_keys,
            delay_ms,
        }
    }

    /// The same for a message that asks for nothing besides.
    #[inline]
    pub(super) fn finish_plain(&self, message: Rc<Message>) -> Finished {
        let memory = &self.memory;
        let exchange = memory.exchange.unwrap_or(ExchangeId::from_raw(0));
        Finished { message, exchange, route: memory.route.clone(), more_keys: Vec::new(), delay_ms: 0 }
    }

    #[inline]
    fn route(&mut self, broker: &mut Broker, finished: &Finished) -> Published {
        match &finished.route {
            Some(route) => broker.deliver_along(route, &finished.message),
            None => self.route_and_remember(broker, finished),
        }
    }

    fn route_and_remember(&mut self, broker: &mut Broker, finished: &Finished) -> Published {
        let keyed = broker.exchanges.get(finished.exchange).is_some_and(|exchange| !exchange.reads_headers());
        let memory = &mut self.memory;
        let plain = finished.delay_ms == 0 && finished.more_keys.is_empty() && !is_reply(&finished.message);
        // An exchange bound to a headers exchange is rare enough to be routed anew every time.
        if keyed && plain && memory.generation == broker.generation && !broker.has_headers_exchanges() {
            let targets = broker.route_of(finished.exchange, &finished.message, &[]);
            broker.matches.count();
            if !broker.route_is_guarded() && std::mem::replace(&mut memory.routed, true) {
                memory.route = Some(broker.matches.remember(finished.exchange, &targets));
            }
            let published = broker.deliver_to(finished.exchange, &targets, &finished.message);
            broker.recycle_route(targets);
            return published;
        }
        route(broker, finished)
    }
}

/// Routes a message by its exchange, as if nothing were remembered.
pub(super) fn route(broker: &mut Broker, finished: &Finished) -> Published {
    let message = &finished.message;
    if finished.delay_ms > 0 {
        return broker.delay(finished.exchange, message, &finished.more_keys, finished.delay_ms);
    }
    if is_reply(message) {
        return broker.reply(message);
    }
    let more_keys: Vec<&[u8]> = finished.more_keys.iter().map(|key| &**key).collect();
    broker.publish(finished.exchange, message, &more_keys)
}

/// The queues that a message of a transaction would reach now; none while it has to wait.
pub(super) fn targets(broker: &mut Broker, finished: &Finished) -> Vec<QueueId> {
    if finished.delay_ms > 0 || is_reply(&finished.message) {
        return Vec::new();
    }
    let more_keys: Vec<&[u8]> = finished.more_keys.iter().map(|key| &**key).collect();
    broker.route_of(finished.exchange, &finished.message, &more_keys)
}

fn is_reply(message: &Message) -> bool {
    message.exchange.is_empty() && message.routing_key.starts_with(REPLY_PREFIX)
}

pub(super) fn nowhere(condition: weft_wire::amqp10::Symbol<'static>, text: &str) -> Way {
    Way::Nowhere(Verdict::rejected(condition, text))
}

fn verdict_of(published: Published) -> Verdict {
    match published {
        Published { rejected: true, .. } => {
            Verdict::rejected(condition::RESOURCE_LIMIT_EXCEEDED, "a queue is full and takes no more messages")
        }
        Published { queues: 0, .. } => Verdict::Released,
        Published { .. } => Verdict::Accepted,
    }
}

/// A message may name its user only truthfully, unless the user may speak for others.
pub(super) fn check_user(io: &Io, broker: &Broker, handle: u32, user: &[u8]) -> Result<(), Fault> {
    let own = broker.principal(io.principal);
    if own.is_some_and(|own| *own.user == *user || own.impersonate) {
        return Ok(());
    }
    let text = format!("user-id '{}' is not the user of this connection", String::from_utf8_lossy(user));
    Err(Fault::link(handle, condition::UNAUTHORIZED_ACCESS, text))
}
