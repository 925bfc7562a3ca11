//! One AMQP 1.0 session, called channel here because `Session` is the engine's word for a connection's protocol.
//!
//! Owns transfer numbering, the windows of both directions and the table of links. Begin makes it, end or a fault
//! takes it apart: its consumers leave and what they held goes back. It must never hold a reference to a queue, only
//! ids. Rules: AMQP 1.0 section 2.5; numbers are compared by RFC 1982 arithmetic; both sides use the number that the
//! peer chose for its begin.

use std::collections::BTreeMap;

use weft_wire::amqp10::{Begin, End, Symbol, condition, encode};

use super::link::Link;
use super::settle::{Posted, Run};
use super::unsettled::Unsettled;
use super::{Fault, Session, error_of, no_session};
use crate::broker::{Broker, Outcome};
use crate::conn::Io;

/// One session of the peer.
pub(super) struct Channel {
    /// We sent end and wait for the peer's.
    pub ending: bool,
    pub next_incoming_id: u32,
    /// Transfers that the peer may still send.
    pub incoming_window: u32,
    pub next_outgoing_id: u32,
    /// Transfers that we may still send.
    pub remote_window: u32,
    pub next_delivery_id: u32,
    pub handle_max: u32,
    pub links: Vec<Option<Link>>,
    /// What we delivered and the peer has not settled.
    pub unsettled: Unsettled,
    /// What the peer sent, has our answer to, and has not settled (receiver settle mode second).
    pub posted: BTreeMap<u32, Posted>,
    /// Answers that will leave as one disposition.
    pub run: Option<Run>,
    /// Handles whose sender needs credit.
    pub thirsty: Vec<u32>,
    /// Listed for the end of the batch.
    pub owing: bool,
}

impl Channel {
    #[inline]
    pub(super) fn link(&mut self, handle: u32) -> Option<&mut Link> {
        self.links.get_mut(handle as usize)?.as_mut()
    }

    /// Puts a link in its place; the handle has been checked.
    pub(super) fn put(&mut self, handle: u32, link: Link) {
        let index = handle as usize;
        if self.links.len() <= index {
            self.links.resize_with(index + 1, || None);
        }
        self.links[index] = Some(link);
    }

    /// A sender needs credit: it gets it at the end of the batch.
    #[inline]
    pub(super) fn thirst(&mut self, handle: u32) {
        if !self.thirsty.contains(&handle) {
            self.thirsty.push(handle);
        }
    }
}

impl Session {
    pub(super) fn on_begin(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        begin: &Begin<'_>,
    ) -> Result<(), Fault> {
        if number > self.channel_max {
            let text = format!("channel {number} is above the negotiated channel-max {}", self.channel_max);
            return Err(Fault::connection(condition::CONNECTION_FRAMING_ERROR, text));
        }
        if begin.remote_channel.is_some() || self.channel(number).is_some() {
            return Err(Fault::connection(condition::ILLEGAL_STATE, format!("unexpected begin on channel {number}")));
        }
        let limits = &broker.limits;
        let handle_max = limits.links_max.saturating_sub(1);
        let channel = Channel {
            ending: false,
            next_incoming_id: begin.next_outgoing_id,
            incoming_window: limits.session_window,
            next_outgoing_id: 0,
            remote_window: begin.incoming_window,
            next_delivery_id: 0,
            handle_max: handle_max.min(begin.handle_max),
            links: Vec::new(),
            unsettled: Unsettled::default(),
            posted: BTreeMap::new(),
            run: None,
            thirsty: Vec::new(),
            owing: false,
        };
        let index = usize::from(number);
        if self.channels.len() <= index {
            self.channels.resize_with(index + 1, || None);
        }
        self.channels[index] = Some(Box::new(channel));
        let answer = Begin {
            remote_channel: Some(number),
            next_outgoing_id: 0,
            incoming_window: limits.session_window,
            outgoing_window: limits.session_window,
            handle_max,
            ..Begin::default()
        };
        encode(&mut io.output, number, &answer);
        Ok(())
    }

    pub(super) fn on_end(&mut self, io: &mut Io, broker: &mut Broker, number: u16) -> Result<(), Fault> {
        let Some(channel) = self.channel(number) else { return Err(no_session(number)) };
        if !channel.ending {
            self.send_owed(io, broker);
            self.drop_channel(io, broker, number, false);
            io.drop_promises(number);
            encode(&mut io.output, number, &End::default());
        }
        self.channels[usize::from(number)] = None;
        Ok(())
    }

    /// Ends a session because of a fault: it is emptied, and waits for the peer's end.
    pub(super) fn end_channel(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        condition: Symbol<'_>,
        text: &str,
    ) {
        self.send_owed(io, broker);
        self.drop_channel(io, broker, number, false);
        if let Some(channel) = self.channel(number) {
            channel.ending = true;
            io.drop_promises(number);
            encode(&mut io.output, number, &End { error: Some(error_of(condition, text)) });
        }
    }

    /// Takes a session's links apart; the session itself stays where it is.
    pub(super) fn drop_channel(&mut self, io: &mut Io, broker: &mut Broker, number: u16, failed: bool) {
        let Some(channel) = self.channel(number) else { return };
        let handles = channel.links.len();
        channel.posted.clear();
        // All at once: link by link, each would be searched for among all.
        for held in channel.unsettled.take_all() {
            broker.settle(held.queue, held.entry, Outcome::Returned { failed });
        }
        for handle in 0..handles as u32 {
            self.drop_link(io, broker, (number, handle), failed, false);
        }
        self.forget_suspended(broker, |suspended| suspended.dies_with(number));
        self.owing.retain(|other| *other != number);
        if let Some(channel) = self.channel(number) {
            channel.owing = false;
            channel.run = None;
        }
    }
}
