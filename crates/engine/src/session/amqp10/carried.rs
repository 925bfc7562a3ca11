//! Messages that were published elsewhere: what arrives on links between nodes.
//!
//! Owns the reading of what such a message carries, before the ordinary way to its queues: a loop ends here, names
//! given elsewhere are kept, a 0-9-1 message becomes one again. Whole messages come in from `publish.rs`; they go on as
//! if a client had sent them, or are answered at once. It must never route by itself. Rules: docs/reference/links.md;
//! copies and delays that a message asked for were made where it was published.

use std::rc::Rc;

use weft_wire::amqp10::peek::PropertiesPeek;
use weft_wire::amqp10::sections::Head;
use weft_wire::amqp10::{DecodeError, condition};

use super::facts::{Extras, properties_of, traits_of};
use super::familiar::Familiar;
use super::incoming::Delivery;
use super::link::{Goal, Inlet, Link};
use super::publish::{Arrival, Finished, RouteMemory, Way, check_user, nowhere};
use super::settle::Verdict;
use super::{Fault, Place, Session};
use crate::barrier::Id;
use crate::broker::Broker;
use crate::conn::Io;
use crate::memory::Charge;
use crate::message::{Body, Kind, Message, Name, Traits};
use crate::relay::{Carried, NODES_MAX, Passed};

impl Inlet {
    /// Do its messages come from another node's queues?
    #[inline]
    pub(super) fn carries(&self) -> bool {
        self.common.own.is_some() || self.common.relay.is_some()
    }

    fn carried_way(
        &mut self,
        broker: &Broker,
        principal: u32,
        carried: &Carried<'_>,
        properties: &PropertiesPeek<'_>,
    ) -> Way {
        if let Goal::Queue { queue } = &self.goal {
            let queue = Rc::clone(queue);
            let names = match carried.routing_key {
                Some(key) => (carried.exchange.unwrap_or_default().as_bytes(), key.as_bytes()),
                None => (&b""[..], &*queue),
            };
            return self.queue_way(broker, &queue, names);
        }
        let key = carried.routing_key.or(properties.subject).unwrap_or_default();
        self.way(broker, principal, key.as_bytes(), properties.to.map(str::as_bytes))
    }

    /// Straight to a queue, under the names of its last message if they are the same.
    fn queue_way(&mut self, broker: &Broker, queue: &[u8], names: (&[u8], &[u8])) -> Way {
        let known = self.memory.generation == broker.generation;
        if known && self.memory.names.as_ref().is_some_and(|own| (&*own.0, &*own.1) == names) {
            return Way::Known;
        }
        let (target, exchange) = (broker.find_queue(self.vhost, queue), broker.find_exchange(self.vhost, b""));
        let Some(target) = target else { return nowhere(condition::NOT_FOUND, "the queue is gone") };
        let names = (Name::from(names.0), Name::from(names.1));
        self.memory = RouteMemory::straight(broker.generation, exchange, names, target);
        Way::Known
    }
}

impl Session {
    #[allow(clippy::too_many_arguments)] // the same as `take_message`
    pub(super) fn take_carried(
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
        let carried = match head.message_annotations {
            Some(span) => Carried::read(span.of(head_bytes)).map_err(undecodable)?,
            None => Carried::default(),
        };
        let properties = match head.properties {
            Some(span) => properties_of(span.of(head_bytes)).map_err(undecodable)?,
            None => PropertiesPeek::default(),
        };
        let mut traits = traits_of(io, broker, head_bytes, &head, &properties).map_err(undecodable)?;
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else {
            return Ok(());
        };
        traits.relayed = inlet.common.relay.is_some();
        let charge = match &inlet.backlog {
            Some((_, account)) => charge.again_on(account),
            None => charge,
        };
        if let Some(verdict) = inlet.stop_loop(broker, &carried) {
            self.answer_delivery(io, place, delivery, verdict);
            return Ok(());
        }
        let inner = carried.unwrap_amqp091(&body);
        let user = inner.as_ref().map_or(properties.user_id, |(own, _)| own.user_id);
        if let Some(user) = user.filter(|_| inlet.common.own.is_none()) {
            check_user(io, broker, place.1, user)?;
        }
        let way = inlet.carried_way(broker, io.principal, &carried, &properties);
        let names = inlet.memory.names_or(broker, &way);
        let mut message = match inner {
            Some((own, content)) => {
                let untyped = own.message_type.is_none();
                let traits = Traits { priority: own.priority.unwrap_or(0), untyped, ..traits };
                let head = carried.head_amqp091(&own, &mut inlet.buffers);
                Message::with_own_head(Kind::Amqp091, names, traits, head, content, charge)
            }
            None => {
                let head_range = 0..head.body_start as usize;
                Message::new(Kind::Amqp10(Box::new(head)), names, traits, head_range, body, charge)
            }
        };
        message.deaths = carried.deaths();
        let id = inlet.fabric_id(broker, &message, carried.passed);
        if carried.asked {
            self.answer_asked(io, broker, (place, delivery), &way, (&message, id));
            return Ok(());
        }
        let is_plain = head.properties.is_none() && user.is_none() && matches!(way, Way::Known);
        inlet.keep_familiar(head_bytes, &carried, &message, id.filter(|_| is_plain));
        let subject = carried.routing_key.or(properties.subject);
        let (subject, to) = (subject.unwrap_or_default().as_bytes(), properties.to.map(str::as_bytes));
        self.send_carried(io, broker, (place, delivery), way, (message, id), (subject, to));
        Ok(())
    }

    /// A message that begins as the last one of its link did.
    pub(super) fn take_familiar(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Delivery,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else {
            return Ok(());
        };
        match inlet.familiar_message(io, broker, payload) {
            Some((message, id)) => {
                let finished = inlet.finish_plain(message);
                self.pass_barrier(io, broker, (place, delivery), finished, Some(id));
                Ok(())
            }
            None => self.take_whole(io, broker, place, delivery, payload),
        }
    }

    /// Whether this node has had a message, which another one only asks about.
    fn answer_asked(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        (place, delivery): (Place, Delivery),
        way: &Way,
        (message, id): (&Message, Option<Id>),
    ) {
        self.ask_end(io, broker, place, &delivery, message);
        let id = id.filter(|_| matches!(way, Way::Known));
        let had = id.and_then(|id| broker.fabric_knows(message, id));
        io.direct &= !had.is_some_and(|published| published.stored);
        if let Some(receipt) = had.and_then(|published| published.receipt) {
            // As long as its consumer has not taken it, nobody has it for good.
            return self.await_end(broker, place, delivery, (receipt, true));
        }
        let verdict = if had.is_some() { Verdict::Accepted } else { Verdict::Released };
        self.answer_delivery(io, place, delivery, verdict);
    }

    /// On to its queues, unless this node has had the message already, by another way or before a crash.
    #[inline]
    fn pass_barrier(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        (place, delivery): (Place, Delivery),
        finished: Finished,
        id: Option<Id>,
    ) {
        self.ask_end(io, broker, place, &delivery, &finished.message);
        let Some(published) = id.and_then(|id| broker.fabric_barrier(&finished.message, id)) else {
            return self.hand_on(io, broker, place, delivery, finished);
        };
        io.direct &= !published.stored;
        match published.receipt {
            Some(receipt) => self.await_end(broker, place, delivery, (receipt, false)),
            None => self.answer_delivery(io, place, delivery, Verdict::Accepted),
        }
    }

    /// Where its way leads.
    fn send_carried(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        (place, delivery): (Place, Delivery),
        way: Way,
        (message, id): (Message, Option<Id>),
        (subject, to): (&[u8], Option<&[u8]>),
    ) {
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else { return };
        match way {
            Way::Known => {
                let finished = inlet.finish(message, Extras::default());
                self.pass_barrier(io, broker, (place, delivery), finished, id);
            }
            Way::Nowhere(verdict) => self.refuse_message(io, broker, place, delivery, verdict),
            Way::Unknown => {
                let (subject, to, extras) = (subject.into(), to.map(Box::from), Extras::default());
                let arrival = Arrival { place, delivery, message, subject, to, extras };
                self.ask_address(io, broker, Box::new(arrival));
            }
        }
    }
}

impl Inlet {
    /// The next message may be like this one: if so, much of it need not be read. What is never alike is not kept.
    fn keep_familiar(&mut self, head: &[u8], carried: &Carried<'_>, message: &Message, id: Option<Id>) {
        let again = std::mem::replace(&mut self.head_len, head.len()) == head.len();
        let is_plain = matches!(message.kind, Kind::Amqp091) && message.deaths.is_none();
        let id = id.filter(|_| again && is_plain);
        self.familiar = id.and_then(|id| Familiar::of(head, carried, message, id));
    }

    /// What the node's own barrier knows a message by.
    fn fabric_id(&mut self, broker: &Broker, message: &Message, passed: Passed<'_>) -> Option<Id> {
        let id = passed.id.filter(|_| self.common.relay.is_some())?;
        let goal = &mut self.ids;
        goal.begin(id);
        goal.part(broker.vhosts.get(self.vhost).map_or(&[][..], |vhost| &vhost.name));
        match &self.goal {
            Goal::Queue { queue } => [b"q", &**queue].iter().for_each(|part| goal.part(part)),
            _ => [b"x", &*message.exchange, &*message.routing_key].iter().for_each(|part| goal.part(part)),
        }
        if self.common.circles {
            // It may come again, but not by the same way.
            passed.trace.visit(|name| {
                goal.part(name);
                true
            });
        }
        Some(goal.finish())
    }

    /// The answer to a message that goes no further: it was here before, or has gone astray.
    fn stop_loop(&mut self, broker: &mut Broker, carried: &Carried<'_>) -> Option<Verdict> {
        self.common.relay.as_ref()?;
        let trace = carried.passed.trace;
        if !self.common.circles && trace.contains(broker.node.as_bytes()) {
            self.looped += 1;
            broker.totals.looped += 1;
            return Some(Verdict::Accepted);
        }
        let text = "the message has passed too many nodes";
        (trace.len() >= NODES_MAX).then(|| Verdict::rejected(condition::RESOURCE_LIMIT_EXCEEDED, text))
    }
}
