//! Consumers of a channel: consume, cancel, get, qos.
//!
//! Owns the taps of a channel (its consumers as the client knows them) and their prefetch. It joins and leaves queues
//! through the broker, and writes basic.get's answer itself. It must never deliver to a consumer: `deliver.rs` does,
//! when the queue's turn comes. Rules: AMQP 0-9-1 section 1.8, RabbitMQ's consumer priorities, exclusive consumers and
//! direct reply-to.

use std::rc::Rc;

use weft_wire::amqp091::table::Table;
use weft_wire::amqp091::{Method, reply};

use super::ack::{GONE_TAP, Held, NO_TAP};
use super::content::write_content;
use super::deliver::reply_address;
use super::{Fault, Session, Step, Stepped, show};
use crate::broker::{Broker, Outcome};
use crate::conn::{Io, Wait};
use crate::event::{Access, Resource};
use crate::filter::Filter;
use crate::message::Name;
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, ConsumerId, Target};

/// The pseudo queue of direct reply-to.
pub(super) const REPLY_QUEUE: &[u8] = b"amq.rabbitmq.reply-to";

/// A consumer as its channel knows it.
#[derive(Debug)]
pub(super) struct Tap {
    /// None for the direct reply-to consumer, which no queue stands behind.
    pub id: Option<ConsumerId>,
    pub tag: Name,
    pub no_ack: bool,
    /// Most unsettled deliveries; 0 for any number.
    pub prefetch: u16,
    pub inflight: u32,
    /// Sleeps because of its prefetch.
    pub starved: bool,
}

impl Session {
    pub(super) fn on_consume(&mut self, io: &mut Io, broker: &mut Broker, number: u16, method: Method<'_>) -> Stepped {
        let Method::BasicConsume { queue, consumer_tag, no_local, no_ack, exclusive, no_wait, arguments } = method
        else {
            return Ok(Step::Done(0));
        };
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        if !consumer_tag.is_empty() && channel.taps.iter().flatten().any(|tap| *tap.tag == *consumer_tag) {
            let text = format!("attempt to reuse consumer tag '{}'", show(consumer_tag));
            return Err(Fault::connection(reply::NOT_ALLOWED, text));
        }
        let most = broker.limits.consumers_max;
        if channel.taps.iter().flatten().count() >= most {
            let text = format!("reached maximum ({most}) of consumers per channel");
            return Err(Fault::connection(reply::NOT_ALLOWED, text));
        }
        if queue == REPLY_QUEUE {
            return self.consume_replies(io, broker, number, (consumer_tag, no_ack, no_wait));
        }
        let name = self.queue_name(number, queue)?;
        let id = self.usable_queue(io, broker, &name)?;
        if !self.permitted(io, broker, Access::Read, Resource::Queue, &name)? {
            return Ok(Step::Retry);
        }
        self.check_exclusive(broker, id, exclusive, &name)?;
        let priority = consumer_priority(arguments)?;
        let reading = self.reading(broker, number, (id, &name), no_ack, arguments)?;
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        let tag = if consumer_tag.is_empty() { channel.make_tag(number) } else { Name::from(consumer_tag) };
        let slot = free_slot(&mut channel.taps);
        let mut consumer = Consumer::new(id, io.id.raw(), Target::Amqp091 { channel: number, slot });
        consumer.exclusive = exclusive;
        consumer.priority = priority;
        consumer.filter = no_local.then(|| Box::new(Filter::no_local(io.id.raw())));
        if let Some(reading) = reading {
            (consumer.reader, consumer.filter) = (Some(reading.reader), reading.filter);
        }
        let prefetch = channel.prefetch;
        let id = broker.join(consumer);
        let tap = Tap { id, tag: Rc::clone(&tag), no_ack, prefetch, inflight: 0, starved: false };
        channel.taps[slot as usize] = Some(tap);
        if !no_wait {
            Method::BasicConsumeOk { consumer_tag: &tag }.encode_frame(number, &mut io.output);
        }
        Ok(Step::Done(0))
    }

    fn consume_replies(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        (tag, no_ack, no_wait): (&[u8], bool, bool),
    ) -> Stepped {
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        if !no_ack {
            let text = "reply consumer cannot acknowledge";
            return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
        }
        if channel.reply.is_some() {
            return Err(Fault::channel(reply::PRECONDITION_FAILED, "reply consumer already set"));
        }
        let tag = if tag.is_empty() { channel.make_tag(number) } else { Name::from(tag) };
        let slot = free_slot(&mut channel.taps);
        let tap = Tap { id: None, tag: Rc::clone(&tag), no_ack, prefetch: 0, inflight: 0, starved: false };
        channel.taps[slot as usize] = Some(tap);
        let address = reply_address(io, number, broker.reply_secret(io.id.raw(), number));
        broker.open_reply(&address);
        channel.reply = Some((Rc::clone(&tag), address));
        if !no_wait {
            Method::BasicConsumeOk { consumer_tag: &tag }.encode_frame(number, &mut io.output);
        }
        Ok(Step::Done(0))
    }

    pub(super) fn on_cancel(&mut self, io: &mut Io, broker: &mut Broker, number: u16, tag: &[u8], no_wait: bool) {
        let Some(channel) = self.channel(number) else { return };
        let slot = channel.taps.iter().position(|tap| tap.as_ref().is_some_and(|tap| *tap.tag == *tag));
        if let Some(tap) = slot.and_then(|slot| channel.taps[slot].take()) {
            // What it holds stays unsettled: the channel may still ack it.
            tap.id.and_then(|id| broker.leave(id));
            if let (None, Some((_, address))) = (tap.id, channel.reply.take_if(|reply| reply.0 == tap.tag)) {
                broker.close_reply(&address);
            }
            if let Some(slot) = slot {
                forget_tap(channel, slot as u32);
            }
        }
        if !no_wait {
            Method::BasicCancelOk { consumer_tag: tag }.encode_frame(number, &mut io.output);
        }
    }

    pub(super) fn on_get(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        queue: &[u8],
        no_ack: bool,
    ) -> Stepped {
        let name = self.queue_name(number, queue)?;
        let id = self.usable_queue(io, broker, &name)?;
        if !self.permitted(io, broker, Access::Read, Resource::Queue, &name)? {
            return Ok(Step::Retry);
        }
        self.refuse_stream(broker, id, &name, "basic.get")?;
        if broker.is_coming(id) {
            io.parked = Some(Wait::Disk(id));
            return Ok(Step::Retry);
        }
        let frame_max = self.frame_max;
        let Some(channel) = self.channel(number) else { return Ok(Step::Done(0)) };
        let Some(entry) = broker.get(id) else {
            Method::BasicGetEmpty.encode_frame(number, &mut io.output);
            return Ok(Step::Done(0));
        };
        let message = Rc::clone(&entry.message);
        let (redelivered, failures) = (entry.redelivered, entry.failures);
        let delivery_tag = match no_ack {
            true => {
                broker.settle(id, entry, Outcome::Accepted);
                channel.unacked.skip()
            }
            false => channel.unacked.hold(Held { queue: id, entry, tap: NO_TAP, marked: false }),
        };
        let left = broker.queues.get(id).map_or(0, |queue| queue.len() as u32);
        let method = Method::BasicGetOk {
            delivery_tag,
            redelivered,
            exchange: &message.exchange,
            routing_key: &message.routing_key,
            message_count: left,
        };
        method.encode_frame(number, &mut io.output);
        write_content(&mut io.output, number, frame_max, &message, counted(broker, id, failures));
        Ok(Step::Done(0))
    }

    pub(super) fn on_qos(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        size: u32,
        count: u16,
        global: bool,
    ) -> Result<(), Fault> {
        if size != 0 {
            return Err(Fault::connection(reply::NOT_IMPLEMENTED, "prefetch_size!=0 (a prefetch window in bytes)"));
        }
        let whole = global || self.abilities.channel_qos;
        if let Some(channel) = self.channel(number) {
            match whole {
                true => channel.limit = count,
                false => channel.prefetch = count,
            }
            channel.wake_all(broker);
        }
        Method::BasicQosOk.encode_frame(number, &mut io.output);
        Ok(())
    }

    /// May this consumer join those that are there?
    fn check_exclusive(&self, broker: &Broker, id: QueueId, exclusive: bool, name: &[u8]) -> Result<(), Fault> {
        let Some(queue) = broker.queues.get(id) else { return Ok(()) };
        let held = queue.ring.members().any(|member| broker.consumers.get(member).is_some_and(|other| other.exclusive));
        if held || exclusive && (!queue.ring.is_empty() || queue.settings.single_active) {
            let text = format!("queue '{}' in vhost '{}' in exclusive use", show(name), self.vhost_name(broker));
            return Err(Fault::channel(reply::ACCESS_REFUSED, text));
        }
        Ok(())
    }

    /// The virtual host's name, for texts.
    pub(super) fn vhost_name(&self, broker: &Broker) -> String {
        broker.vhosts.get(self.vhost).map_or(String::new(), |vhost| show(&vhost.name).into_owned())
    }

    /// The queue a method means: an empty name is the one declared last on the channel.
    pub(super) fn queue_name(&mut self, number: u16, name: &[u8]) -> Result<Name, Fault> {
        if !name.is_empty() {
            return Ok(Name::from(name));
        }
        let last = self.channel(number).and_then(|channel| channel.last_queue.clone());
        last.ok_or_else(|| Fault::channel(reply::NOT_FOUND, "no previously declared queue"))
    }

    /// The queue of that name, unless it belongs to another connection.
    pub(super) fn usable_queue(&self, io: &Io, broker: &Broker, name: &[u8]) -> Result<QueueId, Fault> {
        let vhost = self.vhost_name(broker);
        let Some(id) = broker.find_queue(self.vhost, name) else {
            return Err(Fault::channel(reply::NOT_FOUND, format!("no queue '{}' in vhost '{vhost}'", show(name))));
        };
        let owner = broker.queues.get(id).and_then(|queue| queue.settings.owner);
        if owner.is_some_and(|owner| owner != io.id.raw()) {
            let text = format!("cannot obtain exclusive access to locked queue '{}' in vhost '{vhost}'", show(name));
            return Err(Fault::channel(reply::RESOURCE_LOCKED, text));
        }
        Ok(id)
    }
}

/// Held deliveries of a cancelled consumer count for nobody's prefetch but the channel's; its slot may be another's
/// soon.
pub(super) fn forget_tap(channel: &mut super::channel::Channel, slot: u32) {
    for held in channel.unacked.iter_mut().filter(|held| held.tap == slot) {
        held.tap = GONE_TAP;
    }
    for run in channel.unacked.runs.iter_mut().filter(|run| run.tap == slot) {
        run.tap = GONE_TAP;
    }
}

fn consumer_priority(arguments: Table<'_>) -> Result<i32, Fault> {
    let Some(value) = arguments.get(b"x-priority") else { return Ok(0) };
    let wrong = || Fault::channel(reply::PRECONDITION_FAILED, "invalid arg 'x-priority': an integer is wanted");
    value.as_i64().map(|number| number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32).ok_or_else(wrong)
}

fn free_slot(taps: &mut Vec<Option<Tap>>) -> u32 {
    match taps.iter().position(Option::is_none) {
        Some(slot) => slot as u32,
        None => {
            taps.push(None);
            (taps.len() - 1) as u32
        }
    }
}

/// The failed deliveries to tell the consumer, where the queue counts them.
pub(super) fn counted(broker: &Broker, queue: QueueId, failures: u32) -> Option<u32> {
    let limited = broker.queues.get(queue)?.settings.delivery_limit.is_some();
    (limited && failures > 0).then_some(failures)
}
