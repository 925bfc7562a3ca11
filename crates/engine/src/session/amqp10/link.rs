//! Links: where the messages of a session come from and go to.
//!
//! Owns the state of both kinds of link, inlets (the peer sends) and outlets (the peer receives), and how they go:
//! detached, closed, stolen or cancelled. A link that goes gives back what it held, or leaves it behind to be
//! resumed. It must never move a message. Rules: AMQP 1.0 section 2.6; a link is named by its name and direction,
//! within one connection.

use std::rc::Rc;

use weft_wire::amqp10::{Detach, Error, MapBuf, Symbol, Value, condition, encode};

use super::familiar::{Familiar, Written};
use super::head::Stamp;
use super::incoming::Partial;
use super::outgoing::Sending;
use super::pace::Pace;
use super::publish::RouteMemory;
use super::resume::{Resuming, Returned};
use super::settle::{Decision, lose_held};
use super::{Fault, Place, Session, error_of};
use crate::broker::{Broker, VhostId};
use crate::change::Refusal;
use crate::conn::Io;
use crate::event::Event;
use crate::memory::Account;
use crate::message::Name;
use crate::origin::FabricIds;
use crate::queue::consumers::ConsumerId;
use crate::queue::doubts::Peer;
use crate::relay::HeadBuffers;

/// One place in a session's table of links.
pub(super) enum Link {
    /// The peer sends.
    In(Box<Inlet>),
    /// The peer receives.
    Out(Box<Outlet>),
    /// We detached it: only the peer's detach counts.
    Closing,
}

/// What both kinds have.
pub(super) struct Common {
    pub name: Rc<str>,
    /// What is left behind by a detach without close lives on when its session ends.
    pub outlives_session: bool,
    /// Virtual host and queue to report when the link goes.
    pub watch: Option<(String, String)>,
    /// What its peer grants and decides is told as well.
    pub reports: bool,
    /// Python's number of it, if we attached it.
    pub own: Option<u64>,
    /// The name of the peer's node, if this is a relay link; empty if the peer is none of ours.
    pub relay: Option<Rc<str>>,
    /// A message may come back to a node it has passed.
    pub circles: bool,
    /// Messages that crossed it.
    pub messages: u64,
    /// How fast they may.
    pub pace: Option<Box<Pace>>,
}

impl Common {
    pub(super) fn new(name: Rc<str>) -> Self {
        Self {
            name,
            outlives_session: false,
            watch: None,
            reports: false,
            own: None,
            relay: None,
            circles: false,
            messages: 0,
            pace: None,
        }
    }

    /// A message crosses it. Must the next one wait?
    #[inline]
    pub(super) fn count(&mut self, bytes: usize, now_ns: u64) -> bool {
        self.messages += 1;
        self.pace.as_mut().is_some_and(|pace| {
            pace.take(bytes, true, now_ns);
            pace.is_spent(now_ns)
        })
    }

    /// What messages get that leave by this link.
    #[inline]
    pub(super) fn stamp<'a>(&self, broker: &'a Broker) -> Option<Stamp<'a>> {
        let peer = self.relay.as_ref()?;
        Some(Stamp { node: &broker.node, verbatim: !peer.is_empty() })
    }
}

/// A link on which the peer sends.
pub(super) struct Inlet {
    pub common: Common,
    pub goal: Goal,
    /// Where exchange and queue are looked up.
    pub vhost: VhostId,
    /// Most messages that the peer may have on the way.
    pub window: u32,
    /// What becomes of messages that no queue takes, if that was said; else what RabbitMQ answers.
    pub refusal: Option<Refusal>,
    /// Most messages of this link that may wait here for their consumers, and those that do.
    pub backlog: Option<(u32, Rc<Account>)>,
    /// Messages that had passed this node before, and went no further.
    pub looped: u64,
    /// Messages refused a moment ago, for which no credit is given yet: the peer may send the same ones again.
    pub refused: u32,
    /// Messages that the peer may still send.
    pub credit: u32,
    pub delivery_count: u32,
    /// We settle only after the peer has (receiver settle mode second).
    pub second: bool,
    /// Deliveries that we answered and the peer has not settled.
    pub posted: u32,
    /// Deliveries that wait for their consumers.
    pub awaited: u32,
    pub partial: Option<Box<Partial>>,
    pub memory: RouteMemory,
    pub buffers: HeadBuffers,
    /// What the node's barrier knows its messages by.
    pub ids: FabricIds,
    /// How long the head of its last message was, and that message, if the next may be like it.
    pub head_len: usize,
    pub familiar: Option<Box<Familiar>>,
    /// What is known of the peer's deliveries from before a suspension.
    pub resuming: Resuming,
}

/// Where the messages of an inlet go.
pub(super) enum Goal {
    Fixed {
        exchange: Name,
        routing_key: Name,
    },
    /// Straight into a queue, under the exchange and key that each message was published with elsewhere.
    Queue {
        queue: Name,
    },
    /// The subject of each message is its routing key.
    Subject {
        exchange: Name,
    },
    /// Each message names its address in `to`.
    Anonymous,
    /// The transaction coordinator.
    Coordinator,
}

/// A link on which the peer receives.
pub(super) struct Outlet {
    pub common: Common,
    /// Tells this link from another that had its handle before.
    pub number: u32,
    pub consumer: Option<ConsumerId>,
    pub credit: u32,
    pub delivery_count: u32,
    pub drain: bool,
    /// Deliveries are sent settled.
    pub settled: bool,
    /// Largest message that the peer takes.
    pub message_bytes_max: u64,
    /// Sleeps because it has no credit or window, or is in the middle of something.
    pub starved: bool,
    /// The peer gave a message back a moment ago, and would get the same one again.
    pub paused: bool,
    /// It has sent as much as it may for now.
    pub paced: bool,
    /// The message that is being sent.
    pub sending: Option<Box<Sending>>,
    /// What it has to say about deliveries from before a suspension.
    pub returned: Option<Box<Returned>>,
    /// The transaction that acquires what it sends.
    pub transaction: Option<u64>,
    /// What a settlement without a state means.
    pub default_outcome: Decision,
    /// The node that receives, if it can be asked what it has.
    pub peer: Option<Peer>,
    /// When the disk is to be told again that this node drains the queue, by the wall's clock.
    pub renew_ns: u64,
    /// What was written last, if it goes to another node.
    pub written: Written,
}

impl Inlet {
    /// The credit that the peer may have now, where so many deliveries may wait for their consumers.
    pub(super) fn credit_max(&self, end_to_end_max: u32, now_ns: u64) -> u32 {
        let window = self.window.saturating_sub(self.posted + self.refused);
        let window = window.min(end_to_end_max.saturating_sub(self.awaited));
        let window = window.min(self.common.pace.as_ref().map_or(u32::MAX, |pace| pace.messages(now_ns)));
        match &self.backlog {
            Some((most, account)) => window.min(most.saturating_sub(account.messages())),
            None => window,
        }
    }

    /// Is a flow worth its bytes? Where consumers set the pace, a quarter of the window at a time.
    pub(super) fn wants_credit(&self, end_to_end_max: u32, now_ns: u64) -> bool {
        let free = self.backlog.is_none() && self.awaited == 0 && self.common.pace.is_none();
        let most = self.backlog.as_ref().map_or(self.window, |(most, _)| self.window.min(*most));
        let least = if self.common.pace.is_some() { 1 } else { (most / 4).max(1) };
        free || self.credit_max(end_to_end_max, now_ns) >= self.credit + least
    }
}

impl Outlet {
    /// Is it in the middle of something, or has it sent as much as it may for now?
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.paced || self.sending.is_some() || self.returned.is_some()
    }

    /// Something it waited for is there: if that was all, its consumer may take messages again.
    pub(super) fn wake(&mut self, broker: &mut Broker) {
        if self.credit > 0 && !self.paused && !self.is_busy() && std::mem::take(&mut self.starved) {
            self.consumer.into_iter().for_each(|id| broker.wake(id));
        }
    }
}

impl Link {
    pub(super) fn common(&self) -> Option<(&Common, bool)> {
        match self {
            Self::In(inlet) => Some((&inlet.common, true)),
            Self::Out(outlet) => Some((&outlet.common, false)),
            Self::Closing => None,
        }
    }
}

impl Session {
    pub(super) fn on_detach(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        detach: &Detach<'_>,
    ) -> Result<(), Fault> {
        let Some(channel) = self.live(number)? else { return Ok(()) };
        let handle = channel.ours(detach.handle);
        let own = match channel.link(handle).map(|link| link.common()) {
            Some(Some((common, _))) => common.own.is_some(),
            Some(None) => {
                channel.links[handle as usize] = None;
                channel.theirs[detach.handle as usize] = 0;
                self.names.retain(|_, place| *place != (number, handle));
                return Ok(());
            }
            None => return Err(unattached(detach.handle)),
        };
        channel.theirs[detach.handle as usize] = 0;
        self.send_owed(io, broker);
        self.report_detached(io, broker, (number, handle), detach.error.as_ref(), detach.closed);
        match detach.closed || own {
            true => self.drop_link(io, broker, (number, handle), false, true),
            false => self.suspend_link(io, broker, (number, handle)),
        }
        if let Some(channel) = self.channel(number) {
            channel.links[handle as usize] = None;
        }
        encode(&mut io.output, number, &Detach { handle, closed: detach.closed, error: None });
        Ok(())
    }

    /// Detaches a link because of a fault or a decision; it waits for the peer's detach.
    pub(super) fn detach_link(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        condition: Symbol<'_>,
        text: &str,
    ) {
        self.send_owed(io, broker);
        self.report_detached(io, broker, place, Some(&error_of(condition, text)), true);
        self.drop_link(io, broker, place, false, true);
        self.write_detach(io, place, true, condition, text);
    }

    /// Detaches a link because of one of its deliveries, and says of which.
    pub(super) fn detach_by(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        tag: &[u8],
        (condition, text): (Symbol<'_>, &str),
    ) {
        self.send_owed(io, broker);
        let mut info = MapBuf::new();
        info.put(Value::Symbol("delivery-tag"), Value::Binary(tag));
        let error = Error { info: Some(info.as_map()), ..error_of(condition, text) };
        self.report_detached(io, broker, place, Some(&error), true);
        self.drop_link(io, broker, place, false, true);
        self.write_detach_error(io, place, true, error);
    }

    pub(super) fn write_detach(&mut self, io: &mut Io, place: Place, closed: bool, condition: Symbol<'_>, text: &str) {
        self.write_detach_error(io, place, closed, error_of(condition, text));
    }

    fn write_detach_error(&mut self, io: &mut Io, place: Place, closed: bool, error: Error<'_>) {
        if let Some(channel) = self.channel(place.0) {
            channel.put(place.1, Link::Closing);
            encode(&mut io.output, place.0, &Detach { handle: place.1, closed, error: Some(error) });
        }
    }

    /// Another attach has the same name: the link goes there, and what it held with it.
    pub(super) fn steal_link(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        self.send_owed(io, broker);
        self.suspend_link(io, broker, place);
        self.write_detach(io, place, false, condition::LINK_STOLEN, "attached again under the same name");
    }

    /// A link goes for good: its consumer leaves, what it held goes back to its place.
    pub(super) fn drop_link(&mut self, io: &mut Io, broker: &mut Broker, place: Place, failed: bool, closed: bool) {
        let Some(link) = self.take_link(io, broker, place, closed) else { return };
        let Some(channel) = self.channel(place.0) else { return };
        match link {
            Link::Out(outlet) => {
                for (id, held) in channel.unsettled.take_link(outlet.number) {
                    lose_held(broker, held, failed);
                    self.transactions.let_go(place.0, id);
                }
                for held in outlet.returned.into_iter().flat_map(|returned| returned.into_held()) {
                    lose_held(broker, held, failed);
                }
            }
            Link::In(inlet) => {
                channel.posted.retain(|_, posted| posted.handle != place.1);
                self.abandon_awaited(broker, place.0, Some(place.1));
                if let Goal::Coordinator = inlet.goal {
                    self.roll_back_all(io, broker, |transaction| transaction.control == place);
                }
            }
            Link::Closing => {}
        }
    }

    /// Takes a link out of its place, its queue and the table of names, and reports that it went.
    pub(super) fn take_link(&mut self, io: &Io, broker: &mut Broker, place: Place, closed: bool) -> Option<Link> {
        let link = self.channel(place.0)?.links.get_mut(place.1 as usize)?.take()?;
        if let Some((common, peer_sends)) = link.common() {
            self.names.remove(&(peer_sends, Rc::clone(&common.name)));
            if let Some((vhost, queue)) = common.watch.clone() {
                let (conn, link) = (io.id.raw(), common.name.to_string());
                broker.events.push(Event::LinkClosed { conn, vhost, queue, link, closed });
            }
        }
        if let Link::Out(outlet) = &link {
            outlet.consumer.and_then(|id| broker.leave(id));
        }
        Some(link)
    }

    /// The queue of a consumer was deleted; the consumer has left the broker's tables already.
    pub fn cancelled(&mut self, io: &mut Io, broker: &mut Broker, number: u16, handle: u32) {
        if let Some(Link::Out(_)) = self.channel(number).and_then(|channel| channel.link(handle)) {
            self.detach_link(io, broker, (number, handle), condition::RESOURCE_DELETED, "the queue was deleted");
        }
    }
}

pub(super) fn unattached(handle: u32) -> Fault {
    Fault::session(condition::SESSION_UNATTACHED_HANDLE, format!("handle {handle} is not attached"))
}
