//! Attaching links: the question to Python, and what its answer makes.
//!
//! Owns the way from an attach to a link that works. The peer's attach is kept as it came while Python decides; the
//! answer becomes an inlet with credit, an outlet that has joined its queue, or a refusal that says why. It must
//! never decide who may do what. Rules: AMQP 1.0 sections 2.6.3 and 2.6.4: a refused link is attached without its
//! terminus and detached at once, with the error.

use std::rc::Rc;

use weft_wire::amqp10::{
    Attach, AttachTarget, Coordinator, DistributionMode, MapBuf, Performative, Role, SenderSettleMode, Source, Symbol,
    Symbols, Target, TerminusExpiryPolicy, Value, condition, encode, outcome_name, txn_capability,
};

use super::channel::NO_HANDLE;
use super::familiar::Written;
use super::link::{Common, Goal, Inlet, Link, Outlet};
use super::publish::RouteMemory;
use super::reading::reading;
use super::resume::Resuming;
use super::settle::Decision;
use super::{Fault, Session, condition_of, terminus};
use crate::broker::{Broker, VhostId};
use crate::change::LinkPlan;
use crate::conn::{Io, Wait};
use crate::event::Event;
use crate::filter::Filter;
use crate::message::Name;
use crate::origin::FabricIds;
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, Target as ConsumerTarget};
use crate::queue::doubts::Peer;
use crate::relay;
use crate::relay::HeadBuffers;
use crate::session::Answer;

/// The attach that waits for Python.
pub(super) struct Pending {
    number: u16,
    /// The frame's body: the answer repeats much of it.
    body: Box<[u8]>,
}

/// Links on all sessions of a connection together, as a multiple of what one session may have.
const LINKS_FACTOR: usize = 16;
/// Longest name of a link.
const NAME_BYTES_MAX: usize = 1_024;

/// Why a link cannot be.
pub(super) type Refusal = (Symbol<'static>, String);

pub(super) const OUTCOMES: [Symbol<'static>; 4] =
    [outcome_name::ACCEPTED, outcome_name::REJECTED, outcome_name::RELEASED, outcome_name::MODIFIED];
const TWO_PHASE: Symbol<'static> = Symbol("weft:two-phase");
const TRANSACTIONS: [Symbol<'static>; 4] = [
    txn_capability::LOCAL_TRANSACTIONS,
    txn_capability::MULTI_TXNS_PER_SSN,
    txn_capability::MULTI_SSNS_PER_TXN,
    TWO_PHASE,
];

impl Session {
    pub(super) fn on_attach(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        attach: &Attach<'_>,
        body: &[u8],
    ) -> Result<(), Fault> {
        let Some(channel) = self.live(number)? else { return Ok(()) };
        let handle = attach.handle;
        if handle > channel.handle_max {
            let text = format!("handle {handle} is above the negotiated handle-max {}", channel.handle_max);
            return Err(Fault::connection(condition::CONNECTION_FRAMING_ERROR, text));
        }
        if channel.ours(handle) != NO_HANDLE {
            return Err(Fault::session(condition::SESSION_HANDLE_IN_USE, format!("handle {handle} is in use")));
        }
        if self.names.len() >= LINKS_FACTOR * broker.limits.links_max as usize || attach.name.len() > NAME_BYTES_MAX {
            let refusal = (condition::RESOURCE_LIMIT_EXCEEDED, "too many links, or too long a name".to_owned());
            return self.refuse_at_once(io, number, attach, &refusal);
        }
        let peer_sends = attach.role == Role::Sender;
        if let Some(place) = self.names.get(&(peer_sends, Rc::from(attach.name))).copied() {
            if self.is_own(place) {
                return self.on_attach_answered(io, broker, number, place, attach);
            }
            self.steal_link(io, broker, place);
        }
        if self.is_dialled() && io.principal == 0 {
            let refusal = (condition::NOT_ALLOWED, "no links on this connection but mine".to_owned());
            return self.refuse_at_once(io, number, attach, &refusal);
        }
        let terminus = match (peer_sends, &attach.target) {
            (true, Some(AttachTarget::Coordinator(_))) => {
                let attach = self.claim(number, attach)?;
                self.attach_coordinator(io, broker, number, &attach);
                return Ok(());
            }
            (true, Some(AttachTarget::Target(target))) => terminus::of_target(target),
            (true, None) => {
                let refusal = (condition::INVALID_FIELD, "a sender needs a target".to_owned());
                return self.refuse_at_once(io, number, attach, &refusal);
            }
            // Without a source, a receiver asks for the one it had before.
            (false, _) => terminus::of_source(&attach.source.unwrap_or_default()),
        };
        let request = broker.next_request();
        broker.events.push(Event::AttachRequested {
            request,
            conn: io.id.raw(),
            principal: io.principal,
            link: attach.name.to_owned(),
            peer_sends,
            terminus: Box::new(terminus),
            relay: relay_of(attach).unwrap_or_default().to_owned(),
        });
        self.pending = Some(Pending { number, body: body.into() });
        io.parked = Some(Wait::Answer(request));
        Ok(())
    }

    /// Gives the peer's link a handle of ours; the same, if it is free. It is an answer's handle from then on.
    fn claim<'a>(&mut self, number: u16, attach: &Attach<'a>) -> Result<Attach<'a>, Fault> {
        let Some(channel) = self.channel(number) else { return Ok(*attach) };
        let Some(handle) = channel.free_handle(attach.handle) else {
            return Err(Fault::session(condition::RESOURCE_LIMIT_EXCEEDED, "no handle is free"));
        };
        channel.map_handle(attach.handle, handle);
        // Something has to be in its place until there is a link.
        channel.put(handle, Link::Closing);
        Ok(Attach { handle, ..*attach })
    }

    fn refuse_at_once(
        &mut self,
        io: &mut Io,
        number: u16,
        attach: &Attach<'_>,
        refusal: &Refusal,
    ) -> Result<(), Fault> {
        let attach = self.claim(number, attach)?;
        self.refuse_link(io, number, &attach, refusal);
        Ok(())
    }

    pub(super) fn answer_attach(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        let Some(Pending { number, body }) = self.pending.take() else { return };
        let Ok((Performative::Attach(attach), _)) = Performative::decode(&body) else { return };
        if self.channel(number).is_none_or(|channel| channel.ending) {
            return;
        }
        let attach = match self.claim(number, &attach) {
            Ok(attach) => attach,
            Err(fault) => return self.fail(io, broker, number, fault),
        };
        let made = match answer {
            Answer::Link(plan) if attach.role == Role::Sender => self.attach_inlet(io, broker, number, &attach, &plan),
            Answer::Link(plan) => self.attach_outlet(io, broker, number, &attach, &plan),
            Answer::Refuse { code, text } => Err((condition_of(code), text)),
            _ => Err((condition::INTERNAL_ERROR, "the node gave an answer that does not fit".to_owned())),
        };
        if let Err(refusal) = made {
            self.refuse_link(io, number, &attach, &refusal);
        }
    }

    fn refuse_link(&mut self, io: &mut Io, number: u16, attach: &Attach<'_>, refusal: &Refusal) {
        let (role, source, target) = match attach.role {
            Role::Sender => (Role::Receiver, attach.source, None),
            Role::Receiver => (Role::Sender, None, attach.target),
        };
        let initial_delivery_count = (role == Role::Sender).then_some(0);
        let (name, handle) = (attach.name, attach.handle);
        let mut answer = Attach { name, handle, role, source, target, initial_delivery_count, ..Attach::default() };
        if self.write_attach(io, number, &answer).is_err() {
            (answer.source, answer.target) = (None, None);
            encode(&mut io.output, number, &answer);
        }
        self.write_detach(io, (number, handle), true, refusal.0, &refusal.1);
    }

    /// Writes the answer to an attach, if the peer can take a frame of that size.
    pub(super) fn write_attach(&self, io: &mut Io, number: u16, answer: &Attach<'_>) -> Result<(), Refusal> {
        let before = io.output.len();
        encode(&mut io.output, number, answer);
        if io.output.len() - before <= self.peer_frame_bytes_max as usize {
            return Ok(());
        }
        io.output.truncate(before);
        Err((
            condition::FRAME_SIZE_TOO_SMALL,
            "the answer to this attach is larger than your max-frame-size".to_owned(),
        ))
    }

    fn attach_coordinator(&mut self, io: &mut Io, broker: &Broker, number: u16, attach: &Attach<'_>) {
        // Some clients hang up on a capability that the specification does not have: it is for those who ask.
        let asks = |asked: Coordinator<'_>| asked.capabilities.contains(TWO_PHASE);
        let asked = matches!(attach.target, Some(AttachTarget::Coordinator(asked)) if asks(asked));
        let known = if asked { &TRANSACTIONS[..] } else { &TRANSACTIONS[..TRANSACTIONS.len() - 1] };
        let target = AttachTarget::Coordinator(Coordinator { capabilities: Symbols::Slice(known) });
        let common = Common::new(attach.name.into());
        let answer = Attach { target: Some(target), ..answer_to(attach, broker) };
        encode(&mut io.output, number, &answer);
        self.put_inlet(io, broker, number, attach, common, Goal::Coordinator, Resuming::default());
    }

    /// The peer may send: to a queue, an exchange, or wherever each message says.
    fn attach_inlet(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        attach: &Attach<'_>,
        plan: &LinkPlan,
    ) -> Result<(), Refusal> {
        let relays = relay_of(attach).is_some();
        let goal = Self::goal(broker, self.vhost, plan, relays)?;
        let properties = relay_properties(broker, relays, circles_of(attach));
        let Some(AttachTarget::Target(asked)) = attach.target else {
            return Err((condition::INVALID_FIELD, "no target".to_owned()));
        };
        let capabilities = terminus::symbols(&plan.capabilities);
        let address = plan.address.as_deref();
        let target = Target { address, capabilities: Symbols::Slice(&capabilities), ..asked };
        let mut resuming = self.resume_inlet((true, attach.name.into()));
        let answer = Attach {
            target: Some(AttachTarget::Target(target)),
            properties: (!properties.is_empty()).then(|| properties.as_map()),
            ..answer_to(attach, broker)
        };
        self.write_attach_with(io, number, &answer, resuming.len(), |map, at| resuming.put_under(map, at))?;
        resuming.keep_known(attach);
        io.publishes = true;
        let common = self.common(broker, attach, plan, asked.expiry_policy);
        self.put_inlet(io, broker, number, attach, common, goal, resuming);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // the parts of one link, from two callers
    fn put_inlet(
        &mut self,
        io: &mut Io,
        broker: &Broker,
        number: u16,
        attach: &Attach<'_>,
        common: Common,
        goal: Goal,
        resuming: Resuming,
    ) {
        self.names.insert((true, Rc::clone(&common.name)), (number, attach.handle));
        let inlet = Inlet {
            // A node that relays has the message still, and may find another way for it.
            refusal: common.relay.is_some().then(Default::default),
            common,
            goal,
            vhost: self.vhost,
            window: broker.limits.link_credit,
            backlog: None,
            looped: 0,
            refused: 0,
            credit: 0,
            delivery_count: attach.initial_delivery_count.unwrap_or(0),
            second: attach.rcv_settle_mode == weft_wire::amqp10::ReceiverSettleMode::Second,
            posted: 0,
            awaited: 0,
            partial: None,
            memory: RouteMemory::default(),
            buffers: HeadBuffers::default(),
            ids: FabricIds::default(),
            head_len: 0,
            familiar: None,
            resuming,
        };
        if let Some(channel) = self.channel(number) {
            channel.put(attach.handle, Link::In(Box::new(inlet)));
        }
        self.grant(io, broker, (number, attach.handle));
    }

    /// Where the messages of an inlet go; those that were published elsewhere may keep their names.
    pub(super) fn goal(broker: &Broker, vhost: VhostId, plan: &LinkPlan, keeps: bool) -> Result<Goal, Refusal> {
        let not_found = |kind: &str, name: &str| (condition::NOT_FOUND, format!("no {kind} '{name}'"));
        if plan.anonymous {
            return Ok(Goal::Anonymous);
        }
        if let Some(queue) = &plan.queue {
            broker.find_queue(vhost, queue.as_bytes()).ok_or_else(|| not_found("queue", queue))?;
            let queue = Name::from(queue.as_bytes());
            return Ok(match keeps {
                true => Goal::Queue { queue },
                false => Goal::Fixed { exchange: broker.no_name(), routing_key: queue },
            });
        }
        let name = plan.exchange.as_deref().unwrap_or_default();
        let id = broker.find_exchange(vhost, name.as_bytes()).ok_or_else(|| not_found("exchange", name))?;
        let found = broker.exchanges.get(id).ok_or_else(|| not_found("exchange", name))?;
        if found.internal {
            return Err((condition::UNAUTHORIZED_ACCESS, format!("exchange '{name}' is internal")));
        }
        let exchange = Rc::clone(&found.name);
        Ok(match &plan.routing_key {
            Some(key) => Goal::Fixed { exchange, routing_key: Name::from(key.as_bytes()) },
            None => Goal::Subject { exchange },
        })
    }

    /// The peer receives from a queue.
    fn attach_outlet(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        attach: &Attach<'_>,
        plan: &LinkPlan,
    ) -> Result<(), Refusal> {
        let asked = attach.source.unwrap_or_default();
        let queue = usable_queue(io, broker, self.vhost, plan.queue.as_deref().unwrap_or_default())?;
        let mut consumer = consumer_of(io, broker, queue, number, attach, plan)?;
        if let Some((reader, marked)) = reading(broker, queue, attach)? {
            (consumer.reader, consumer.filter) = (Some(reader), Filter::and_marked(consumer.filter, marked));
        }
        let properties = relay_properties(broker, relay_of(attach).is_some(), circles_of(attach));
        let name: Rc<str> = attach.name.into();
        let (filter, capabilities) =
            (terminus::applied(asked.filter, &plan.filters), terminus::symbols(&plan.capabilities));
        let outcomes = outcomes_of(&asked);
        let source = Source {
            address: plan.address.as_deref(),
            distribution_mode: asked
                .distribution_mode
                .map(|_| if plan.browse { DistributionMode::Copy } else { DistributionMode::Move }),
            filter: (!filter.is_empty()).then(|| filter.as_map()),
            outcomes: Symbols::Slice(&outcomes),
            capabilities: Symbols::Slice(&capabilities),
            ..asked
        };
        let answer = Attach {
            source: Some(source),
            initial_delivery_count: Some(0),
            max_message_size: None,
            properties: (!properties.is_empty()).then(|| properties.as_map()),
            ..answer_to(attach, broker)
        };
        let returned = self.resume_outlet(io, broker, number, attach, &answer)?;
        self.links_made = self.links_made.wrapping_add(1);
        let peer = askable(attach).filter(|_| attach.snd_settle_mode != SenderSettleMode::Settled);
        consumer.peer = peer;
        let renew_ns = peer.map_or(0, |peer| broker.note_drain(queue, peer));
        let outlet = Outlet {
            common: self.common(broker, attach, plan, asked.expiry_policy),
            number: self.links_made,
            consumer: broker.join(consumer),
            credit: 0,
            delivery_count: 0,
            drain: false,
            settled: attach.snd_settle_mode == SenderSettleMode::Settled,
            message_bytes_max: attach.max_message_size.filter(|bytes| *bytes > 0).unwrap_or(u64::MAX),
            starved: false,
            paused: false,
            paced: false,
            sending: None,
            returned,
            transaction: None,
            default_outcome: asked.default_outcome.map_or(Decision::RELEASED, Decision::of),
            peer,
            renew_ns,
            written: Written::default(),
        };
        self.names.insert((false, name), (number, attach.handle));
        if let Some(channel) = self.channel(number) {
            channel.put(attach.handle, Link::Out(Box::new(outlet)));
        }
        Ok(())
    }

    fn common(&self, broker: &Broker, attach: &Attach<'_>, plan: &LinkPlan, expiry: TerminusExpiryPolicy) -> Common {
        let outlives_session = matches!(expiry, TerminusExpiryPolicy::ConnectionClose | TerminusExpiryPolicy::Never);
        let vhost = broker.vhosts.get(self.vhost).map(|vhost| String::from_utf8_lossy(&vhost.name).into_owned());
        let watch = plan.watch.then(|| (vhost.unwrap_or_default(), plan.queue.clone().unwrap_or_default()));
        let (relay, circles) = (relay_of(attach).map(Rc::from), circles_of(attach));
        let reports = plan.report;
        Common { outlives_session, watch, reports, relay, circles, ..Common::new(attach.name.into()) }
    }
}

/// The outcomes that a receiver may decide: those that it asks for and that there are.
fn outcomes_of(asked: &Source<'_>) -> Vec<Symbol<'static>> {
    let outcomes: Vec<_> = OUTCOMES.into_iter().filter(|outcome| asked.outcomes.contains(*outcome)).collect();
    if outcomes.is_empty() { OUTCOMES.to_vec() } else { outcomes }
}

/// The name of the peer's node, if it asks for a relay link or agrees to one.
pub(super) fn relay_of<'a>(attach: &Attach<'a>) -> Option<&'a str> {
    let name = attach.properties?.get(relay::RELAY_PROPERTY)?.as_str()?;
    (!name.is_empty() && name.len() <= NAME_BYTES_MAX).then_some(name)
}

/// The property by which this node asks for a relay link, or agrees to one.
pub(super) fn relay_properties(broker: &Broker, relays: bool, circles: bool) -> MapBuf {
    let mut map = MapBuf::new();
    if relays {
        map.put(Value::Symbol(relay::RELAY_PROPERTY), Value::String(&broker.node));
    }
    if relays && circles {
        map.put(Value::Symbol(relay::CIRCLES_PROPERTY), Value::Bool(true));
        map.put(Value::Symbol(relay::ASK_PROPERTY), Value::Bool(true));
    }
    map
}

/// Does the peer let messages of a relay link come back?
fn circles_of(attach: &Attach<'_>) -> bool {
    flag_of(attach, relay::CIRCLES_PROPERTY)
}

/// The peer's node, if it can be asked what it has: on links that share a queue with others.
pub(super) fn askable(attach: &Attach<'_>) -> Option<Peer> {
    let node = relay_of(attach)?;
    (circles_of(attach) && flag_of(attach, relay::ASK_PROPERTY)).then(|| Peer::of(node))
}

fn flag_of(attach: &Attach<'_>, property: &str) -> bool {
    let value = attach.properties.and_then(|map| map.get(property));
    value.and_then(|value| value.as_bool()).unwrap_or(false)
}

/// What may be relayed to a peer: nothing that passed it, or nothing that passed any node but this one.
pub(super) fn relayed(filter: Option<Box<Filter>>, peer: &str, first_hand: bool) -> Option<Box<Filter>> {
    if first_hand { Filter::first_hand(filter) } else { Filter::not_through(filter, peer) }
}

/// What every answer repeats.
fn answer_to<'a>(attach: &Attach<'a>, broker: &Broker) -> Attach<'a> {
    Attach {
        name: attach.name,
        handle: attach.handle,
        role: if attach.role == Role::Sender { Role::Receiver } else { Role::Sender },
        snd_settle_mode: attach.snd_settle_mode,
        rcv_settle_mode: attach.rcv_settle_mode,
        source: attach.source,
        target: attach.target,
        max_message_size: Some(broker.limits.message_bytes_max),
        ..Attach::default()
    }
}

/// The consumer behind an outlet.
fn consumer_of(
    io: &Io,
    broker: &Broker,
    queue: QueueId,
    number: u16,
    attach: &Attach<'_>,
    plan: &LinkPlan,
) -> Result<Consumer, Refusal> {
    let target = ConsumerTarget::Amqp10 { session: number, handle: attach.handle };
    let mut consumer = Consumer::new(queue, io.id.raw(), target);
    let not_from = plan.no_local.then(|| io.id.raw());
    consumer.filter = Filter::compile(plan.selector.as_deref(), plan.subject_filter.as_deref(), not_from)
        .map_err(|error| (condition::INVALID_FIELD, format!("bad selector: {error}")))?;
    if let Some(peer) = relay_of(attach).filter(|_| !circles_of(attach)) {
        consumer.filter = relayed(consumer.filter, peer, flag_of(attach, relay::FIRST_HAND_PROPERTY));
    }
    (consumer.browse, consumer.discards) = (plan.browse, plan.discard);
    let priority = attach.properties.and_then(|map| map.get("rabbitmq:priority").or_else(|| map.get("x-priority")));
    consumer.priority = priority.and_then(|value| value.as_i64()).map_or(0, |p| p.clamp(-1 << 30, 1 << 30) as i32);
    consumer.exclusive = flag_of(attach, "x-exclusive");
    if consumer.exclusive && broker.queues.get(queue).is_some_and(|queue| !queue.ring.is_empty()) {
        return Err((condition::RESOURCE_LOCKED, "the queue has other consumers".to_owned()));
    }
    Ok(consumer)
}

/// The queue, unless it belongs to another connection or to an exclusive consumer.
pub(super) fn usable_queue(io: &Io, broker: &Broker, vhost: VhostId, name: &str) -> Result<QueueId, Refusal> {
    let found = broker.find_queue(vhost, name.as_bytes()).and_then(|id| Some((id, broker.queues.get(id)?)));
    let Some((id, queue)) = found else { return Err((condition::NOT_FOUND, format!("no queue '{name}'"))) };
    let exclusive = |member| broker.consumers.get(member).is_some_and(|other| other.exclusive);
    if queue.settings.owner.is_some_and(|owner| owner != io.id.raw()) || queue.ring.members().any(exclusive) {
        return Err((condition::RESOURCE_LOCKED, format!("queue '{name}' is in exclusive use")));
    }
    Ok(id)
}
