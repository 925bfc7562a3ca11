//! Credit and windows: who may send how much.
//!
//! Owns flow in both directions. The peer's flows wake outlets, ask for drains or for an echo; ours hand out credit
//! to senders and renew the session's window, at the end of a batch. While memory is short, windows are shut and no
//! credit is given. It must never let more through than was granted. Rules: AMQP 1.0 sections 2.5.6 and 2.6.7.

use weft_wire::amqp10::{Flow, MapBuf, Value, condition, encode};

use super::channel::Channel;
use super::link::{Link, Outlet, unattached};
use super::{Fault, Place, Session};
use crate::broker::Broker;
use crate::conn::Io;
use crate::event::Event;

/// The property of a flow that names the transaction which acquires messages (part 4, section 4.4.3).
pub(super) const TRANSACTION: &str = "txn-id";

/// The link part of a flow.
#[derive(Default)]
struct LinkFlow {
    handle: u32,
    delivery_count: u32,
    credit: u32,
    available: Option<u32>,
    drain: bool,
    /// What later messages of an outlet are acquired in.
    transaction: Option<u64>,
}

impl Session {
    pub(super) fn on_flow(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        flow: &Flow<'_>,
    ) -> Result<(), Fault> {
        let Some(channel) = self.live(number)? else { return Ok(()) };
        // What the peer has not seen yet when it wrote this is already on its way.
        let on_its_way = channel.next_outgoing_id.wrapping_sub(flow.next_incoming_id.unwrap_or(0));
        let opened = channel.remote_window == 0;
        channel.remote_window = match on_its_way > i32::MAX as u32 {
            true => return Err(Fault::session(condition::INVALID_FIELD, "next-incoming-id was never reached")),
            false => flow.incoming_window.saturating_sub(on_its_way),
        };
        let opened = opened && channel.remote_window > 0;
        let Some(theirs) = flow.handle else {
            if flow.echo {
                self.write_flow(io, broker, number, None);
            }
            self.after_flow(io, broker, number, opened);
            return Ok(());
        };
        let (mut drain, handle) = (false, channel.ours(theirs));
        let transaction = match channel.link(handle) {
            Some(Link::Out(_)) => self.acquires_in((number, handle), flow)?,
            _ => None,
        };
        let Some(channel) = self.channel(number) else { return Ok(()) };
        match channel.link(handle) {
            Some(Link::Out(outlet)) => {
                outlet.transaction = transaction;
                let unseen = outlet.delivery_count.wrapping_sub(flow.delivery_count.unwrap_or(0));
                let unseen = if unseen > i32::MAX as u32 { 0 } else { unseen };
                outlet.credit = flow.link_credit.unwrap_or(0).saturating_sub(unseen);
                outlet.drain = flow.drain;
                drain = flow.drain;
                if outlet.common.reports {
                    report(io, broker, outlet);
                }
                self.go_on(io, broker, (number, handle));
            }
            Some(Link::In(inlet)) => {
                let skipped = flow.delivery_count.map_or(0, |count| count.wrapping_sub(inlet.delivery_count));
                if skipped <= inlet.credit {
                    inlet.credit -= skipped;
                    inlet.delivery_count = inlet.delivery_count.wrapping_add(skipped);
                }
                if inlet.credit <= inlet.window / 2 {
                    channel.thirst(handle);
                    self.owe(number);
                }
            }
            Some(Link::Closing) => {}
            None => return Err(unattached(theirs)),
        }
        if drain {
            self.start_drain(io, broker, (number, handle));
        } else if flow.echo {
            self.write_link_flow(io, broker, (number, handle), false);
        }
        self.after_flow(io, broker, number, opened);
        Ok(())
    }

    /// The window may have opened: links that waited for it go on.
    fn after_flow(&mut self, io: &mut Io, broker: &mut Broker, number: u16, opened: bool) {
        if !opened {
            return;
        }
        let handles = self.channel(number).map_or(0, |channel| channel.links.len());
        for handle in 0..handles as u32 {
            self.go_on(io, broker, (number, handle));
        }
        self.flushed(io, broker);
    }

    /// The receiver wants its credit used up: when the queue had its turn, the rest of it is given back.
    fn start_drain(&mut self, io: &Io, broker: &mut Broker, place: Place) {
        let outlet = match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(Link::Out(outlet)) => outlet,
            _ => return,
        };
        // The queue gets its turn even if it has nothing: the drain is answered after it.
        let queue = outlet.consumer.and_then(|id| broker.consumers.get(id)).map(|consumer| consumer.queue);
        queue.into_iter().for_each(|queue| broker.touch(queue));
        if !self.draining.contains(&place) {
            self.draining.push(place);
        }
        broker.draining.push(io.id);
    }

    /// The queues had their turn: drains with nothing left to send are answered.
    pub fn pumped(&mut self, io: &mut Io, broker: &mut Broker) {
        for place in std::mem::take(&mut self.draining) {
            match self.is_drained(io, broker, place) {
                None => {}
                Some(false) => self.draining.push(place),
                Some(true) => {
                    if let Some(Link::Out(outlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) {
                        outlet.delivery_count = outlet.delivery_count.wrapping_add(outlet.credit);
                        outlet.credit = 0;
                    }
                    self.write_link_flow(io, broker, place, true);
                }
            }
        }
        if !self.draining.is_empty() {
            broker.draining.push(io.id);
        }
    }

    /// Is there nothing more to send on a draining link? None if it does not drain any more.
    fn is_drained(&mut self, io: &Io, broker: &Broker, place: Place) -> Option<bool> {
        let channel = self.channel(place.0)?;
        let window = channel.remote_window;
        let Some(Link::Out(outlet)) = channel.link(place.1) else { return None };
        if !outlet.drain {
            return None;
        }
        let Some(consumer_id) = outlet.consumer.filter(|_| outlet.credit > 0) else { return Some(true) };
        // Before its next attach a link with an incomplete map says nothing but what it has to say of old deliveries.
        if let Some(returned) = &outlet.returned {
            return Some(returned.is_told() && outlet.sending.is_none());
        }
        if outlet.is_busy() || window == 0 || io.stalled.contains(&consumer_id) {
            return Some(false);
        }
        let Some(consumer) = broker.consumers.get(consumer_id) else { return Some(true) };
        let Some(queue) = broker.queues.get(consumer.queue) else { return Some(true) };
        if let Some(reader) = &consumer.reader {
            return Some(!queue.dirty && reader.is_at_end(&broker.queues));
        }
        // A queue that is still on the list had not had its whole turn; what is on disk is still to come.
        let unread = consumer.searches() && queue.cold.is_some() && !consumer.has_searched(queue.next_position());
        Some(!(queue.dirty || queue.hides() || queue.is_cold() || unread))
    }

    /// Hands out credit to a sender.
    pub(super) fn grant(&mut self, io: &mut Io, broker: &Broker, place: Place) {
        let blocked = self.blocked;
        if let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            if !blocked {
                io.sated |= inlet.backlog.is_some();
                let most = broker.limits.end_to_end_max;
                let wants = inlet.wants_credit(most, broker.now_ns);
                // Never less than it has: messages may be on their way already.
                inlet.credit = inlet.credit.max(if wants { inlet.credit_max(most, broker.now_ns) } else { 0 });
                self.keep_pace(place, broker.now_ns);
                if !wants {
                    return;
                }
            }
            self.write_link_flow(io, broker, place, false);
        }
    }

    /// Links that waited for their messages to be consumed give credit again. Does any still wait?
    pub fn refill(&mut self, io: &mut Io, broker: &mut Broker) {
        let places: Vec<Place> = self.own.values().map(|own| own.place).collect();
        for place in places {
            if let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1))
                && let Some((_, account)) = &inlet.backlog
            {
                io.sated |= account.messages() > 0 || inlet.credit < inlet.window;
                if inlet.wants_credit(broker.limits.end_to_end_max, broker.now_ns) {
                    self.grant(io, broker, place);
                }
            }
        }
        self.paced.schedule(io, broker);
    }

    /// Answers, credit and windows, each channel's in as few frames as can be.
    pub fn send_owed(&mut self, io: &mut Io, broker: &Broker) {
        self.send_late(io);
        self.send_due(io, broker);
    }

    /// The same, but for answers that may wait.
    #[inline]
    pub(super) fn send_due(&mut self, io: &mut Io, broker: &Broker) {
        while let Some(number) = self.owing.pop() {
            let window_low = broker.limits.session_window / 2;
            let Some(channel) = self.channel(number) else { continue };
            channel.owing = false;
            if !channel.late {
                channel.send_run(number, io);
            }
            if self.blocked {
                continue;
            }
            let Some(channel) = self.channel(number) else { continue };
            for handle in std::mem::take(&mut channel.thirsty) {
                self.grant(io, broker, (number, handle));
            }
            if self.channel(number).is_some_and(|channel| channel.incoming_window <= window_low) {
                self.write_flow(io, broker, number, None);
            }
        }
    }

    /// Memory ran short: windows are shut, so that nothing but settlements comes in. Or it is there again.
    pub fn blocked(&mut self, io: &mut Io, broker: &mut Broker, blocked: bool) {
        self.blocked = blocked;
        if !matches!(self.state, super::State::Running) {
            return;
        }
        for number in 0..self.channels.len() as u16 {
            let is_inlet = |link: &Option<Link>| matches!(link, Some(Link::In(_)));
            let Some(channel) = self.channel(number).filter(|channel| !channel.ending) else { continue };
            let inlets = channel.links.iter().enumerate().filter(|(_, link)| is_inlet(link));
            let inlets: Vec<u32> = inlets.map(|(handle, _)| handle as u32).collect();
            match blocked {
                true if !inlets.is_empty() => self.write_flow(io, broker, number, None),
                true => {}
                false => inlets.into_iter().for_each(|handle| self.grant(io, broker, (number, handle))),
            }
        }
        self.paced.schedule(io, broker);
    }

    fn write_link_flow(&mut self, io: &mut Io, broker: &Broker, place: Place, drain: bool) {
        let flow = match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(Link::In(inlet)) => {
                LinkFlow { delivery_count: inlet.delivery_count, credit: inlet.credit, ..LinkFlow::default() }
            }
            Some(Link::Out(outlet)) => {
                let consumer = outlet.consumer.and_then(|id| broker.consumers.get(id));
                let queue = consumer.and_then(|consumer| broker.queues.get(consumer.queue));
                let available = queue.map_or(0, |queue| queue.len() as u32);
                LinkFlow {
                    delivery_count: outlet.delivery_count,
                    credit: outlet.credit,
                    available: Some(available),
                    transaction: outlet.transaction,
                    ..LinkFlow::default()
                }
            }
            _ => return,
        };
        self.write_flow(io, broker, place.0, Some(LinkFlow { handle: place.1, drain, ..flow }));
    }

    /// Writes a flow; each one renews the window, unless memory is short.
    fn write_flow(&mut self, io: &mut Io, broker: &Broker, number: u16, link: Option<LinkFlow>) {
        let (blocked, window) = (self.blocked, broker.limits.session_window);
        let Some(channel) = self.channel(number) else { return };
        let mut properties = MapBuf::new();
        if let Some(id) = link.as_ref().and_then(|link| link.transaction) {
            properties.put(Value::Symbol(TRANSACTION), Value::Binary(&id.to_be_bytes()));
        }
        let flow = Flow {
            next_incoming_id: Some(channel.next_incoming_id),
            incoming_window: if blocked { 0 } else { renew(channel, window) },
            next_outgoing_id: channel.next_outgoing_id,
            outgoing_window: window,
            handle: link.as_ref().map(|link| link.handle),
            delivery_count: link.as_ref().map(|link| link.delivery_count),
            link_credit: link.as_ref().map(|link| link.credit),
            available: link.as_ref().and_then(|link| link.available),
            drain: link.as_ref().is_some_and(|link| link.drain),
            echo: false,
            properties: (!properties.is_empty()).then(|| properties.as_map()),
        };
        encode(&mut io.output, number, &flow);
    }
}

/// Tells whoever watches a link what it may be sent.
fn report(io: &Io, broker: &mut Broker, outlet: &Outlet) {
    let Some((vhost, queue)) = outlet.common.watch.clone() else { return };
    let (conn, link) = (io.id.raw(), outlet.common.name.to_string());
    broker.events.push(Event::LinkFlow { conn, vhost, queue, link, credit: outlet.credit, drain: outlet.drain });
}

fn renew(channel: &mut Channel, window: u32) -> u32 {
    channel.incoming_window = window;
    window
}
