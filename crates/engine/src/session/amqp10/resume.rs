//! Links that were detached without being closed, and come back.
//!
//! Owns what a suspended link left behind: deliveries the peer had not settled, answers of ours that it had not
//! settled, and a message of which only the beginning had come. A second attach under the same name takes them up
//! again; the end of the session or of the connection forgets them. It must never send a message as a new one that
//! the peer still knows. Rules: AMQP 1.0 sections 2.6.13 and 3.4.1; link state does not survive the connection.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use weft_wire::amqp10::{Attach, DeliveryState, Field, Map, MapBuf, Reader, Received, Transfer, Value, encode};

use super::attach::Refusal;
use super::incoming::Partial;
use super::link::{Goal, Link, Outlet};
use super::outgoing::sending_on;
use super::settle::{Decision, Verdict, lose_held, settle_held};
use super::unsettled::Held;
use super::{LinkName, Place, Session};
use crate::broker::{Broker, Outcome};
use crate::conn::Io;

/// What a suspended link left behind.
pub(super) struct Suspended {
    channel: u16,
    outlives_session: bool,
    /// Deliveries that we sent.
    held: Vec<Held>,
    /// Answers that we gave, by delivery tag.
    answered: Vec<(Box<[u8]>, Verdict)>,
    /// A delivery whose last frame had not come.
    partial: Option<Box<Partial>>,
}

impl Suspended {
    pub(super) fn dies_with(&self, channel: u16) -> bool {
        self.channel == channel && !self.outlives_session
    }

    /// Forgets a delivery whose rest does not come; when it will be, if there is one. The peer finds it missing in our
    /// map when the link comes back, and sends it anew.
    pub(super) fn give_up_partial(&mut self, now_ns: u64, unfinished_s: u16) -> Option<u64> {
        self.partial = self.partial.take().filter(|partial| partial.due_ns(unfinished_s) > now_ns);
        self.partial.as_ref().map(|partial| partial.due_ns(unfinished_s))
    }
}

/// What an outlet that came back still has to say before it sends anything new.
pub(super) struct Returned {
    lines: VecDeque<Line>,
    /// Deliveries of which the peer may know without having said so.
    unlisted: Vec<Held>,
    /// One side had more to say of unsettled deliveries than fits an attach: nothing new until the next one.
    incomplete: bool,
}

/// A delivery that both sides know, as the peer's map has it.
enum Line {
    /// The peer has decided, and that is done: its state is repeated, settled.
    Decided { tag: u32, state: Box<[u8]> },
    /// It has not decided: the delivery goes on where its bytes end, from the beginning if it does not say.
    Undecided { held: Held, has: Option<Received> },
}

impl Returned {
    /// Is everything said about deliveries that the peer has listed?
    pub(super) fn is_told(&self) -> bool {
        self.lines.is_empty()
    }

    /// Is there nothing left to say, so that new deliveries may come?
    pub(super) fn is_over(&self) -> bool {
        self.is_told() && !self.incomplete
    }

    /// The deliveries that are still nobody else's.
    pub(super) fn into_held(self) -> impl Iterator<Item = Held> {
        let lines = self.lines.into_iter().filter_map(|line| match line {
            Line::Undecided { held, .. } => Some(held),
            Line::Decided { .. } => None,
        });
        lines.chain(self.unlisted)
    }
}

/// What an inlet had of a peer's deliveries before it was suspended.
#[derive(Default)]
pub(super) struct Resuming {
    /// Answers, by delivery tag.
    pub answered: Vec<(Box<[u8]>, Verdict)>,
    pub partial: Option<Box<Partial>>,
}

impl Resuming {
    pub(super) fn len(&self) -> usize {
        self.answered.len() + usize::from(self.partial.is_some())
    }

    /// Adds one line to a map of unsettled deliveries.
    pub(super) fn put_under(&self, map: &mut MapBuf, at: usize) {
        match (self.answered.get(at), &self.partial) {
            (Some((tag, verdict)), _) => verdict.put_under(map, tag),
            (None, Some(partial)) => {
                map.put_with(Value::Binary(&partial.tag), |out| DeliveryState::Received(partial.received()).put(out));
            }
            (None, None) => {}
        }
    }

    /// The peer has aborted a delivery.
    pub(super) fn forget(&mut self, tag: &[u8]) {
        self.answered.retain(|(known, _)| **known != *tag);
        self.partial = self.partial.take().filter(|partial| *partial.tag != *tag);
    }

    /// Forgets what the peer, by its own map, has settled.
    pub(super) fn keep_known(&mut self, attach: &Attach<'_>) {
        if attach.incomplete_unsettled {
            return;
        }
        let known: Vec<&[u8]> =
            attach.unsettled.iter().flat_map(Map::iter).filter_map(|(tag, _)| tag.as_binary()).collect();
        self.answered.retain(|(tag, _)| known.contains(&&**tag));
        self.partial = self.partial.take().filter(|partial| known.contains(&&*partial.tag));
    }
}

impl Session {
    /// A link is detached but not closed: what it held waits for it.
    pub(super) fn suspend_link(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        let Some(link) = self.take_link(io, broker, place, false) else { return };
        let mut left = Suspended {
            channel: place.0,
            outlives_session: false,
            held: Vec::new(),
            answered: Vec::new(),
            partial: None,
        };
        let (common, peer_sends) = match link {
            Link::Out(outlet) => {
                left.held = self.held_by(broker, place, outlet.number);
                let Outlet { common, returned, .. } = *outlet;
                left.held.extend(returned.into_iter().flat_map(|returned| returned.into_held()));
                (common, false)
            }
            Link::In(inlet) => {
                left.answered = inlet.resuming.answered;
                left.partial = inlet.partial.or(inlet.resuming.partial).filter(|partial| partial.may_wait());
                let Some(channel) = self.channel(place.0) else { return };
                channel.posted.retain(|_, posted| {
                    let stays = posted.handle != place.1;
                    if !stays {
                        left.answered.push((std::mem::take(&mut posted.tag), posted.verdict.clone()));
                    }
                    stays
                });
                self.abandon_awaited(broker, place.0, Some(place.1));
                if let Goal::Coordinator = inlet.goal {
                    self.roll_back_all(io, broker, |transaction| transaction.control == place);
                }
                (inlet.common, true)
            }
            Link::Closing => return,
        };
        left.outlives_session = common.outlives_session;
        if left.held.is_empty() && left.answered.is_empty() && left.partial.is_none() {
            return;
        }
        match self.suspended.len() < broker.limits.links_max as usize {
            true => drop(self.suspended.insert((peer_sends, Rc::clone(&common.name)), left)),
            false => give_back(broker, left),
        }
    }

    /// Takes what an outlet holds; what an open transaction has acquired by it goes back to its queue.
    fn held_by(&mut self, broker: &mut Broker, place: Place, link: u32) -> Vec<Held> {
        let Some(channel) = self.channel(place.0) else { return Vec::new() };
        let mut kept = Vec::new();
        for (id, held) in channel.unsettled.take_link(link) {
            match self.transactions.let_go(place.0, id) {
                Some(_) => lose_held(broker, held, false),
                None => kept.push(held),
            }
        }
        kept
    }

    /// Forgets suspended links; what they held goes back to its place.
    pub(super) fn forget_suspended(&mut self, broker: &mut Broker, which: impl Fn(&Suspended) -> bool) {
        let gone: Vec<LinkName> =
            self.suspended.iter().filter(|(_, suspended)| which(suspended)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            if let Some(suspended) = self.suspended.remove(&name) {
                give_back(broker, suspended);
            }
        }
    }

    /// What was left of a peer's deliveries when its link was suspended.
    pub(super) fn resume_inlet(&mut self, name: LinkName) -> Resuming {
        let left = self.suspended.remove(&name);
        left.map_or_else(Resuming::default, |left| Resuming { answered: left.answered, partial: left.partial })
    }

    /// Answers the attach of a receiver, whose link may have left deliveries behind; what it has to say of them.
    pub(super) fn resume_outlet(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        attach: &Attach<'_>,
        answer: &Attach<'_>,
    ) -> Result<Option<Box<Returned>>, Refusal> {
        let left = self.suspended.remove(&(false, attach.name.into()));
        let held = left.map_or_else(Vec::new, |left| left.held);
        let list = |map: &mut MapBuf, at: usize| {
            map.put(Value::Binary(&held[at].tag.to_be_bytes()), Value::Null);
        };
        match self.write_attach_with(io, number, answer, held.len(), list) {
            Ok(complete) => Ok(sort(broker, held, attach, complete)),
            Err(refusal) => {
                held.into_iter().for_each(|held| lose_held(broker, held, false));
                Err(refusal)
            }
        }
    }

    /// Writes the answer to an attach with as much of a map of unsettled deliveries as the peer's frames take. Is it
    /// all of it?
    pub(super) fn write_attach_with(
        &self,
        io: &mut Io,
        number: u16,
        answer: &Attach<'_>,
        count: usize,
        put: impl Fn(&mut MapBuf, usize),
    ) -> Result<bool, Refusal> {
        let mut shown = count;
        loop {
            let mut unsettled = MapBuf::new();
            (0..shown).for_each(|at| put(&mut unsettled, at));
            let (unsettled, incomplete_unsettled) = ((count > 0).then(|| unsettled.as_map()), shown < count);
            match self.write_attach(io, number, &Attach { unsettled, incomplete_unsettled, ..*answer }) {
                Ok(()) => return Ok(!incomplete_unsettled),
                Err(refusal) if shown == 0 => return Err(refusal),
                Err(_) => shown /= 2,
            }
        }
    }

    /// Says what an outlet that came back has to say, as far as credit, window and output allow.
    pub(super) fn send_returned(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        let output_max = broker.limits.output_bytes_max / 2;
        loop {
            let Some(Some(channel)) = self.channels.get_mut(usize::from(place.0)) else { return };
            let Some(Some(Link::Out(outlet))) = channel.links.get_mut(place.1 as usize) else { return };
            if outlet.returned.as_ref().is_none_or(|returned| returned.is_over()) {
                outlet.returned = None;
                return outlet.wake(broker);
            }
            if outlet.credit == 0 || channel.remote_window == 0 || outlet.sending.is_some() {
                return;
            }
            if io.output.len() >= output_max {
                return self.unfinished.push_back(place);
            }
            let Some(line) = outlet.returned.as_mut().and_then(|returned| returned.lines.pop_front()) else { return };
            outlet.credit -= 1;
            outlet.delivery_count = outlet.delivery_count.wrapping_add(1);
            let (id, number) = (channel.next_delivery_id, outlet.number);
            channel.next_delivery_id = id.wrapping_add(1);
            match line {
                Line::Decided { tag, state } => {
                    channel.remote_window -= 1;
                    channel.next_outgoing_id = channel.next_outgoing_id.wrapping_add(1);
                    write_decided(io, place, (id, tag), &state);
                }
                Line::Undecided { held, has } => {
                    outlet.sending = Some(Box::new(sending_on(&held, id, &outlet.common, broker, has)));
                    channel.unsettled.hold(id, Held { handle: place.1, link: number, ..held });
                    self.begin_large(io, broker, place);
                }
            }
        }
    }
}

/// Sorts the deliveries of a link that came back by what its peer says of them. Those that it has decided are settled
/// so; those that it does not know go back to their queue.
fn sort(broker: &mut Broker, held: Vec<Held>, attach: &Attach<'_>, complete: bool) -> Option<Box<Returned>> {
    let known = attach.unsettled.iter().flat_map(Map::iter);
    let known: BTreeMap<&[u8], Value<'_>> = known.filter_map(|(tag, state)| Some((tag.as_binary()?, state))).collect();
    let incomplete = !held.is_empty() && !complete || attach.incomplete_unsettled;
    let mut returned = Returned { lines: VecDeque::new(), unlisted: Vec::new(), incomplete };
    for held in held {
        let tag = held.tag.to_be_bytes();
        let Some(state) = known.get(&tag[..]) else {
            match attach.incomplete_unsettled {
                true => returned.unlisted.push(held),
                false => broker.settle(held.queue, held.entry, Outcome::Returned { failed: false }),
            }
            continue;
        };
        let line = match DeliveryState::from_value(*state) {
            Ok(state @ DeliveryState::Outcome(outcome)) => {
                let (tag, mut bytes) = (held.tag, Vec::new());
                state.put(&mut bytes);
                settle_held(broker, held, &Decision::of(outcome));
                Line::Decided { tag, state: bytes.into_boxed_slice() }
            }
            Ok(DeliveryState::Received(has)) => Line::Undecided { held, has: Some(has) },
            _ => Line::Undecided { held, has: None },
        };
        returned.lines.push_back(line);
    }
    (!returned.is_over()).then(|| Box::new(returned))
}

/// Tells the peer that a delivery ended as it decided.
fn write_decided(io: &mut Io, place: Place, (id, tag): (u32, u32), state: &[u8]) {
    let state = Reader::new(state).read().ok().and_then(|value| DeliveryState::from_value(value).ok());
    let transfer = Transfer {
        handle: place.1,
        delivery_id: Some(id),
        delivery_tag: Some(&tag.to_be_bytes()),
        message_format: Some(0),
        settled: Some(true),
        state,
        resume: true,
        ..Transfer::default()
    };
    encode(&mut io.output, place.0, &transfer);
}

fn give_back(broker: &mut Broker, suspended: Suspended) {
    for held in suspended.held {
        lose_held(broker, held, false);
    }
}
