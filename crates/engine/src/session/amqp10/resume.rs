//! Links that were detached without being closed, and come back.
//!
//! Owns what a suspended link left behind: deliveries the peer had not settled, and answers of ours that it had not
//! settled. A second attach under the same name takes them up again; the end of the session or of the connection
//! forgets them. It must never send a message twice by itself: what the peer cannot account for goes back to its
//! queue. Rules: AMQP 1.0 section 2.6.13; link state does not survive the connection.

use std::rc::Rc;

use weft_wire::amqp10::{DeliveryState, Field, Map, MapBuf, Transfer, Value, encode};

use super::link::{Goal, Link};
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
}

impl Suspended {
    pub(super) fn dies_with(&self, channel: u16) -> bool {
        self.channel == channel && !self.outlives_session
    }
}

/// The deliveries of a link that came back: its side of the bargain, and what became of each.
pub(super) struct Resumed<'a> {
    unsettled: MapBuf,
    /// Tags with the state that the peer had reached; without one the delivery is aborted and comes anew.
    lines: Vec<(u32, Option<DeliveryState<'a>>)>,
}

impl Resumed<'_> {
    pub(super) fn unsettled(&self) -> Option<Map<'_>> {
        (!self.unsettled.is_empty()).then(|| self.unsettled.as_map())
    }
}

impl Session {
    /// A link is detached but not closed: what it held waits for it.
    pub(super) fn suspend_link(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        let Some(link) = self.take_link(io, broker, place, false) else { return };
        let Some(channel) = self.channel(place.0) else { return };
        let (common, peer_sends, held, answered) = match link {
            Link::Out(outlet) => {
                let held = channel.unsettled.take_link(outlet.number).into_iter().map(|(_, held)| held).collect();
                (outlet.common, false, held, Vec::new())
            }
            Link::In(inlet) => {
                let mut answered = inlet.resuming;
                channel.posted.retain(|_, posted| {
                    let stays = posted.handle != place.1;
                    if !stays {
                        answered.push((std::mem::take(&mut posted.tag), posted.verdict.clone()));
                    }
                    stays
                });
                self.abandon_awaited(broker, place.0, Some(place.1));
                if let Goal::Coordinator = inlet.goal {
                    self.roll_back_all(broker, |transaction| transaction.control == place);
                }
                (inlet.common, true, Vec::new(), answered)
            }
            Link::Closing => return,
        };
        let suspended = Suspended { channel: place.0, outlives_session: common.outlives_session, held, answered };
        if suspended.held.is_empty() && suspended.answered.is_empty() {
            return;
        }
        match self.suspended.len() < broker.limits.links_max as usize {
            true => drop(self.suspended.insert((peer_sends, Rc::clone(&common.name)), suspended)),
            false => give_back(broker, suspended),
        }
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

    /// The answers that the peer of a link had not settled when it was suspended.
    pub(super) fn resume_inlet(&mut self, name: LinkName) -> Vec<(Box<[u8]>, Verdict)> {
        self.suspended.remove(&name).map_or_else(Vec::new, |suspended| suspended.answered)
    }

    /// Takes up the deliveries of a link, by what its peer says of them.
    pub(super) fn resume_outlet<'a>(
        &mut self,
        broker: &mut Broker,
        name: LinkName,
        known: Option<Map<'a>>,
    ) -> Resumed<'a> {
        let mut resumed = Resumed { unsettled: MapBuf::new(), lines: Vec::new() };
        for held in self.suspended.remove(&name).map_or_else(Vec::new, |suspended| suspended.held) {
            let tag = held.tag.to_be_bytes();
            resumed.unsettled.put(Value::Binary(&tag), Value::Null);
            let line = known.iter().flat_map(Map::iter).find(|(key, _)| key.as_binary() == Some(&tag));
            let state = line.and_then(|(_, value)| DeliveryState::from_value(value).ok());
            match state.and_then(|state| state.outcome()) {
                Some(outcome) => settle_held(broker, held, &Decision::of(outcome)),
                None => broker.settle(held.queue, held.entry, Outcome::Returned { failed: false }),
            }
            if line.is_some() {
                resumed.lines.push((u32::from_be_bytes(tag), state.filter(|state| state.outcome().is_some())));
            }
        }
        resumed
    }

    /// Tells the peer how each delivery that it knew of ended.
    pub(super) fn write_resumed(&mut self, io: &mut Io, place: Place, resumed: &Resumed<'_>) {
        let Some(channel) = self.channel(place.0) else { return };
        for (tag, state) in &resumed.lines {
            let Some(window) = channel.remote_window.checked_sub(1) else { return };
            channel.remote_window = window;
            let transfer = Transfer {
                handle: place.1,
                delivery_id: Some(channel.next_delivery_id),
                delivery_tag: Some(&tag.to_be_bytes()),
                message_format: Some(0),
                settled: Some(true),
                state: *state,
                resume: true,
                aborted: state.is_none(),
                ..Transfer::default()
            };
            encode(&mut io.output, place.0, &transfer);
            channel.next_delivery_id = channel.next_delivery_id.wrapping_add(1);
            channel.next_outgoing_id = channel.next_outgoing_id.wrapping_add(1);
        }
    }
}

fn give_back(broker: &mut Broker, suspended: Suspended) {
    for held in suspended.held {
        lose_held(broker, held, false);
    }
}
