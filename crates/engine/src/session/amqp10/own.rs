//! Links that this node attaches: pulled from a peer, or pushed to it.
//!
//! Owns their life: an order of Python's becomes an attach, the peer's attach makes an inlet with credit or an outlet
//! that joins its queue, and every end is reported with its reason. Messages then take the same way as on links that a
//! peer attached. It must never retry: a link that went is Python's to open again. Rules: AMQP 1.0 section 2.6;
//! docs/reference/links.md.

use std::rc::Rc;

use weft_wire::amqp10::{
    Attach, AttachTarget, Detach, Error, MapBuf, Role, SenderSettleMode, Source, Symbols, Target, TerminusDurability,
    TerminusExpiryPolicy, Value, condition, encode, outcome_name, writer,
};

use super::attach::{self, OUTCOMES};
use super::familiar::Written;
use super::link::{Common, Goal, Inlet, Link, Outlet};
use super::pace::Pace;
use super::publish::RouteMemory;
use super::settle::{Decision, Verdict};
use super::{Fault, Place, Session, State, terminus};
use crate::broker::{Broker, VhostId};
use crate::change::{Direction, FilterValue, LinkOrder, LinkPlan, Refusal};
use crate::conn::Io;
use crate::event::Event;
use crate::inspect::{Cell, Row};
use crate::memory::Account;
use crate::origin::FabricIds;
use crate::queue::consumers::{Consumer, Target as ConsumerTarget};
use crate::relay::{self, HeadBuffers};

/// How long a link rests on which messages were refused, since the same ones would come again at once.
const REST_NS: u64 = 250_000_000;

/// A link of ours.
pub(super) struct Own {
    pub place: Place,
    pub order: Rc<LinkOrder>,
    /// The peer's attach is there.
    pub answered: bool,
}

impl Session {
    /// Attaches a link; if it cannot be, that is reported as its end.
    pub fn open_link(&mut self, io: &mut Io, broker: &mut Broker, order: &LinkOrder) {
        if let Err((condition, text)) = self.try_open_link(io, broker, order) {
            let (conn, condition) = (io.id.raw(), condition.0.to_owned());
            broker.events.push(Event::LinkDetached { conn, link: order.link, condition, text, closed: true });
        }
    }

    fn try_open_link(&mut self, io: &mut Io, broker: &mut Broker, order: &LinkOrder) -> Result<(), attach::Refusal> {
        if !matches!(self.state, State::Running) {
            return Err((condition::ILLEGAL_STATE, "the connection is not open".to_owned()));
        }
        let peer_sends = order.direction == Direction::Pull;
        let name: Rc<str> = order.name.as_str().into();
        if self.own.contains_key(&order.link) || self.names.contains_key(&(peer_sends, Rc::clone(&name))) {
            return Err((condition::NOT_ALLOWED, format!("link '{name}' exists on this connection")));
        }
        let Some(vhost) = broker.find_vhost(order.vhost.as_bytes()) else {
            return Err((condition::NOT_FOUND, format!("no vhost '{}'", order.vhost)));
        };
        let relay = order.relay.then(|| Rc::from(""));
        let pace = order.bytes_per_s_max.map(|most| Pace::new(most, broker.now_ns));
        let common = Common::new(Rc::clone(&name));
        let common = Common { own: Some(order.link), relay, circles: order.circles, pace, ..common };
        let link = match order.direction {
            Direction::Pull => {
                io.publishes = true;
                let plan = LinkPlan {
                    queue: order.queue.clone(),
                    exchange: order.exchange.clone(),
                    routing_key: order.routing_key.clone(),
                    ..LinkPlan::default()
                };
                let goal = Self::goal(broker, vhost, &plan, true)?;
                Link::In(Box::new(inlet_of(common, goal, vhost, order, &io.account)))
            }
            Direction::Push => {
                let queue = order.queue.as_deref().unwrap_or_default();
                attach::usable_queue(io, broker, vhost, queue)?;
                self.links_made = self.links_made.wrapping_add(1);
                Link::Out(Box::new(outlet_of(common, self.links_made)))
            }
        };
        let full = || (condition::RESOURCE_LIMIT_EXCEEDED, "no channel or handle is free".to_owned());
        let number = self.channel_for_own(io, broker).ok_or_else(full)?;
        let handle = self.channel(number).and_then(|channel| channel.free_handle(0)).ok_or_else(full)?;
        self.write_own_attach(io, broker, (number, handle), order)?;
        if let Some(channel) = self.channel(number) {
            channel.put(handle, link);
        }
        self.names.insert((peer_sends, name), (number, handle));
        let own = Own { place: (number, handle), order: Rc::new(order.clone()), answered: false };
        self.own.insert(order.link, own);
        Ok(())
    }

    /// The session for a link of ours: our own, else one of the peer's, else a new one.
    fn channel_for_own(&mut self, io: &mut Io, broker: &Broker) -> Option<u16> {
        let peers = || self.channels.iter().position(|slot| slot.as_ref().is_some_and(|channel| !channel.ending));
        match self.own_channel.or_else(|| peers().map(|number| number as u16)) {
            Some(number) => Some(number),
            None => self.begin_own(io, broker),
        }
    }

    fn write_own_attach(
        &self,
        io: &mut Io,
        broker: &Broker,
        place: Place,
        order: &LinkOrder,
    ) -> Result<(), attach::Refusal> {
        let (durable, expiry_policy) = match order.durable {
            true => (TerminusDurability::UnsettledState, TerminusExpiryPolicy::Never),
            false => (TerminusDurability::None, TerminusExpiryPolicy::SessionEnd),
        };
        let capabilities = terminus::symbols(&order.capabilities);
        let (filter, properties) = (filter_of(order), properties_of(broker, order));
        let here = order.queue.as_deref().or(order.exchange.as_deref());
        let there = Some(order.address.as_str());
        let capabilities = Symbols::Slice(&capabilities);
        let (source, target) = match order.direction {
            Direction::Pull => {
                let filter = (!filter.is_empty()).then(|| filter.as_map());
                let source =
                    Source { address: there, durable, expiry_policy, filter, capabilities, ..Source::default() };
                (source, Target { address: here, ..Target::default() })
            }
            Direction::Push => {
                let source = Source { address: here, outcomes: Symbols::Slice(&OUTCOMES), ..Source::default() };
                (source, Target { address: there, durable, expiry_policy, capabilities, ..Target::default() })
            }
        };
        let is_push = order.direction == Direction::Push;
        let attach = Attach {
            name: &order.name,
            handle: place.1,
            role: if is_push { Role::Sender } else { Role::Receiver },
            snd_settle_mode: SenderSettleMode::Unsettled,
            source: Some(source),
            target: Some(AttachTarget::Target(target)),
            initial_delivery_count: is_push.then_some(0),
            max_message_size: (!is_push).then_some(broker.limits.message_bytes_max),
            properties: (!properties.is_empty()).then(|| properties.as_map()),
            ..Attach::default()
        };
        self.write_attach(io, place.0, &attach)
    }

    /// Is the link in this place one of ours, or was it?
    pub(super) fn is_own(&mut self, place: Place) -> bool {
        match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(link) => link.common().is_none_or(|(common, _)| common.own.is_some()),
            None => false,
        }
    }

    /// The peer's attach for a link of ours.
    pub(super) fn on_attach_answered(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        place: Place,
        attach: &Attach<'_>,
    ) -> Result<(), Fault> {
        let common = self.channel(place.0).and_then(|channel| channel.link(place.1)?.common());
        let link = common.and_then(|(common, _)| common.own);
        let own = link.and_then(|link| self.own.get_mut(&link));
        if number != place.0 || own.as_ref().is_some_and(|own| own.answered) {
            let text = format!("link '{}' is attached already", attach.name);
            return Err(Fault::session(condition::SESSION_ERRANT_LINK, text));
        }
        let order = own.map(|own| {
            own.answered = true;
            Rc::clone(&own.order)
        });
        if let Some(channel) = self.channel(place.0) {
            channel.map_handle(attach.handle, place.1);
        }
        // Without an order we have detached it meanwhile. A peer that refuses leaves its end out and detaches then.
        let Some(order) = order else { return Ok(()) };
        let node = attach::relay_of(attach).filter(|_| order.relay).unwrap_or_default();
        self.set_relay(place, &order, node);
        let address = match (order.direction, attach.source, attach.target) {
            (Direction::Pull, Some(source), _) => {
                self.pull_attached(io, broker, place, attach, &source);
                source.address
            }
            (Direction::Push, _, Some(AttachTarget::Target(target))) => {
                if let Err((condition, text)) = self.push_attached(io, broker, place, attach, (&order, node)) {
                    self.detach_link(io, broker, place, condition, &text);
                    return Ok(());
                }
                target.address
            }
            _ => return Ok(()),
        };
        let address = address.unwrap_or(&order.address).to_owned();
        let (conn, link, node) = (io.id.raw(), order.link, node.to_owned());
        broker.events.push(Event::LinkAttached { conn, link, address, node });
        Ok(())
    }

    /// The peer agreed to relay under this name, or did not.
    fn set_relay(&mut self, place: Place, order: &LinkOrder, node: &str) {
        let link = self.channel(place.0).and_then(|channel| channel.link(place.1));
        let common = match link {
            Some(Link::In(inlet)) => &mut inlet.common,
            Some(Link::Out(outlet)) => &mut outlet.common,
            _ => return,
        };
        common.relay = order.relay.then(|| Rc::from(node));
    }

    fn pull_attached(&mut self, io: &mut Io, broker: &Broker, place: Place, attach: &Attach<'_>, source: &Source<'_>) {
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else { return };
        inlet.delivery_count = attach.initial_delivery_count.unwrap_or(0);
        let knows_modified =
            source.outcomes.iter().next().is_none() || source.outcomes.contains(outcome_name::MODIFIED);
        if inlet.refusal == Some(Refusal::Modify) && !knows_modified {
            inlet.refusal = Some(Refusal::Release);
        }
        self.grant(io, broker, place);
    }

    fn push_attached(
        &mut self,
        io: &Io,
        broker: &mut Broker,
        place: Place,
        attach: &Attach<'_>,
        (order, node): (&LinkOrder, &str),
    ) -> Result<(), attach::Refusal> {
        let name = order.queue.as_deref().unwrap_or_default();
        let vhost = broker.find_vhost(order.vhost.as_bytes());
        let gone = || (condition::NOT_FOUND, format!("no queue '{name}'"));
        let queue = attach::usable_queue(io, broker, vhost.ok_or_else(gone)?, name)?;
        let target = ConsumerTarget::Amqp10 { session: place.0, handle: place.1 };
        let mut consumer = Consumer::new(queue, io.id.raw(), target);
        (consumer.priority, consumer.discards) = (order.priority, order.discard);
        if !node.is_empty() && !order.circles {
            consumer.filter = attach::relayed(None, node, order.first_hand);
        }
        let peer = attach::askable(attach).filter(|_| order.circles);
        consumer.peer = peer;
        let renew_ns = peer.map_or(0, |peer| broker.note_drain(queue, peer));
        let consumer = broker.join(consumer);
        if let Some(Link::Out(outlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            (outlet.peer, outlet.renew_ns) = (peer, renew_ns);
            outlet.message_bytes_max = attach.max_message_size.filter(|bytes| *bytes > 0).unwrap_or(u64::MAX);
            outlet.consumer = consumer;
        }
        Ok(())
    }

    /// Detaches a link by Python's order.
    pub fn close_link(&mut self, io: &mut Io, broker: &mut Broker, link: u64, closed: bool) {
        let Some(own) = self.own.get(&link) else { return };
        let (place, answered, order) = (own.place, own.answered, Rc::clone(&own.order));
        self.send_owed(io, broker);
        self.report_detached(io, broker, place, None, closed);
        self.drop_link(io, broker, place, false, closed);
        let Some(channel) = self.channel(place.0) else { return };
        channel.put(place.1, Link::Closing);
        encode(&mut io.output, place.0, &Detach { handle: place.1, closed, error: None });
        if !answered {
            // The peer's attach is still to come, and must not be taken for a link of its own.
            let peer_sends = order.direction == Direction::Pull;
            self.names.insert((peer_sends, order.name.as_str().into()), place);
        }
    }

    /// Tells Python that a link of ours is over; other links are nobody's business.
    pub(super) fn report_detached(
        &mut self,
        io: &Io,
        broker: &mut Broker,
        place: Place,
        error: Option<&Error<'_>>,
        closed: bool,
    ) {
        let common = self.channel(place.0).and_then(|channel| channel.link(place.1)?.common());
        let Some(link) = common.and_then(|(common, _)| common.own) else { return };
        self.own.remove(&link);
        let condition = error.map_or("", |error| error.condition.0).to_owned();
        let text = error.and_then(|error| error.description).unwrap_or_default().to_owned();
        broker.events.push(Event::LinkDetached { conn: io.id.raw(), link, condition, text, closed });
    }

    /// A session is over, and our links on it.
    pub(super) fn report_detached_all(&mut self, io: &Io, broker: &mut Broker, number: u16, error: Option<&Error<'_>>) {
        let ended = Error { condition: condition::SESSION_ERRANT_LINK, description: Some("session ended"), info: None };
        let places: Vec<Place> = self.own.values().map(|own| own.place).filter(|place| place.0 == number).collect();
        for place in places {
            self.report_detached(io, broker, place, Some(error.unwrap_or(&ended)), false);
        }
    }

    /// A row for each link between nodes.
    pub fn describe_links(&self, conn: u64, rows: &mut Vec<Row>) {
        let links = self.channels.iter().flatten().flat_map(|channel| channel.links.iter().flatten());
        for link in links {
            let Some((common, peer_sends)) = link.common() else { continue };
            let own = common.own.and_then(|link| self.own.get(&link));
            if own.is_none() && common.relay.is_none() {
                continue;
            }
            let (credit, waiting, looped) = match link {
                Link::In(inlet) => {
                    let waiting = inlet.backlog.as_ref().map(|(_, account)| account.messages());
                    (inlet.credit, waiting, inlet.looped)
                }
                Link::Out(outlet) => (outlet.credit, None, 0),
                Link::Closing => continue,
            };
            rows.push(vec![
                ("conn", Cell::Number(conn)),
                ("link", common.own.map_or(Cell::Absent, Cell::Number)),
                ("name", Cell::Text(common.name.to_string())),
                ("incoming", Cell::Flag(peer_sends)),
                ("address", own.map_or(Cell::Absent, |own| Cell::Text(own.order.address.clone()))),
                ("attached", Cell::Flag(own.is_none_or(|own| own.answered))),
                ("relay", common.relay.as_ref().map_or(Cell::Absent, |node| Cell::Text(node.to_string()))),
                ("credit", Cell::Number(credit.into())),
                ("messages", Cell::Number(common.messages)),
                ("waiting", waiting.map_or(Cell::Absent, |waiting| Cell::Number(waiting.into()))),
                ("looped", Cell::Number(looped)),
            ]);
        }
    }

    /// What the sender of a message that was not taken is told; where the same message may come again, it rests.
    pub(super) fn turn_down(&mut self, io: &mut Io, broker: &mut Broker, place: Place, verdict: Verdict) -> Verdict {
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else {
            return verdict;
        };
        let verdict = match inlet.refusal {
            None => return verdict,
            Some(Refusal::Accept) => return Verdict::Accepted,
            Some(Refusal::Reject) => return refused(verdict),
            Some(Refusal::Modify) => Verdict::Failed,
            Some(Refusal::Release) => Verdict::Released,
        };
        inlet.refused += 1;
        self.rest(io, broker, place);
        verdict
    }

    /// The peer gave back what a link of ours had pushed to it: it would only come back again.
    pub(super) fn pause_own(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        if let Some(Link::Out(outlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1))
            && outlet.common.own.is_some()
        {
            outlet.paused = true;
            self.rest(io, broker, place);
        }
    }

    pub(super) fn rest(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        if self.resting.is_empty() {
            self.rested_ns = broker.now_ns + REST_NS;
            broker.schedule_conn(io, self.rested_ns);
        }
        if !self.resting.contains(&place) {
            self.resting.push(place);
        }
    }

    /// Links that rested go on, when it is time; when to look again.
    pub(super) fn end_rest(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        if self.resting.is_empty() {
            return None;
        }
        if broker.now_ns < self.rested_ns {
            return Some(self.rested_ns);
        }
        for place in std::mem::take(&mut self.resting) {
            let Some(channel) = self.channel(place.0) else { continue };
            match channel.link(place.1) {
                Some(Link::In(inlet)) => {
                    inlet.refused = 0;
                    channel.thirst(place.1);
                    self.owe(place.0);
                }
                Some(Link::Out(outlet)) => {
                    outlet.paused = false;
                    outlet.wake(broker);
                }
                _ => {}
            }
        }
        self.send_owed(io, broker);
        None
    }
}

/// A message that nobody took, as a dead letter.
fn refused(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Rejected { .. } => verdict,
        _ => Verdict::rejected(condition::NOT_FOUND, "no queue takes this message"),
    }
}

fn inlet_of(common: Common, goal: Goal, vhost: VhostId, order: &LinkOrder, account: &Rc<Account>) -> Inlet {
    Inlet {
        common,
        goal,
        vhost,
        window: order.credit.max(1),
        refusal: Some(order.refusal),
        backlog: order.backlog_max.map(|most| (most.max(1), account.part())),
        looped: 0,
        refused: 0,
        credit: 0,
        delivery_count: 0,
        second: false,
        posted: 0,
        awaited: 0,
        partial: None,
        memory: RouteMemory::default(),
        buffers: HeadBuffers::default(),
        ids: FabricIds::default(),
        head_len: 0,
        familiar: None,
        resuming: Default::default(),
    }
}

fn outlet_of(common: Common, number: u32) -> Outlet {
    Outlet {
        common,
        number,
        consumer: None,
        credit: 0,
        delivery_count: 0,
        drain: false,
        settled: false,
        message_bytes_max: u64::MAX,
        starved: false,
        paused: false,
        paced: false,
        sending: None,
        returned: None,
        transaction: None,
        default_outcome: Decision::RELEASED,
        peer: None,
        renew_ns: 0,
        written: Written::default(),
    }
}

/// The filters of the peer's source, each described by its symbol.
fn filter_of(order: &LinkOrder) -> MapBuf {
    let mut map = MapBuf::new();
    for (symbol, value) in &order.filters {
        map.put_with(Value::Symbol(symbol), |out| {
            out.push(0);
            writer::put_symbol(out, symbol);
            match value {
                FilterValue::Text(text) => writer::put_value(out, &Value::String(text)),
                FilterValue::Number(number) => writer::put_value(out, &Value::Long(*number)),
            }
        });
    }
    map
}

fn properties_of(broker: &Broker, order: &LinkOrder) -> MapBuf {
    let mut map = attach::relay_properties(broker, order.relay, order.circles);
    if order.relay && order.first_hand && order.direction == Direction::Pull {
        map.put(Value::Symbol(relay::FIRST_HAND_PROPERTY), Value::Bool(true));
    }
    if order.priority != 0 && order.direction == Direction::Pull {
        map.put(Value::Symbol("rabbitmq:priority"), Value::Int(order.priority));
    }
    map
}
