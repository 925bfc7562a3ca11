//! One AMQP 1.0 session, called channel here because `Session` is the engine's word for a connection's protocol.
//!
//! Owns transfer numbering, the windows of both directions and the table of links. Begin makes it, end or a fault
//! takes it apart: its consumers leave and what they held goes back. It must never hold a reference to a queue, only
//! ids. Rules: AMQP 1.0 section 2.5; numbers are compared by RFC 1982 arithmetic; a session and a link have the number
//! that the peer chose for them, unless one of ours has it already.

use std::collections::BTreeMap;

use weft_wire::amqp10::{Begin, End, Symbol, condition, encode};

use super::awaited::Awaited;
use super::link::Link;
use super::settle::{Posted, Run, lose_held};
use super::unsettled::Unsettled;
use super::{Fault, NO_CHANNEL, Session, error_of, no_session};
use crate::broker::{Broker, Ticket};
use crate::conn::Io;

/// No link has this handle: the table of links ends before it.
pub(super) const NO_HANDLE: u32 = u32::MAX;

/// One session.
pub(super) struct Channel {
    /// We sent end and wait for the peer's.
    pub ending: bool,
    /// The peer's begin is there.
    pub answered: bool,
    pub next_incoming_id: u32,
    /// Transfers that the peer may still send.
    pub incoming_window: u32,
    pub next_outgoing_id: u32,
    /// Transfers that we may still send.
    pub remote_window: u32,
    pub next_delivery_id: u32,
    pub handle_max: u32,
    pub links: Vec<Option<Link>>,
    /// The peer's handles, and ours plus one; 0 for none. They differ where both sides attach links.
    pub theirs: Vec<u32>,
    /// What we delivered and the peer has not settled.
    pub unsettled: Unsettled,
    /// What the peer sent, has our answer to, and has not settled (receiver settle mode second).
    pub posted: BTreeMap<u32, Posted>,
    /// What the peer sent and a consumer will answer, by delivery id.
    pub awaited: BTreeMap<u32, Awaited>,
    /// Answers that will leave as one disposition.
    pub run: Option<Run>,
    /// They wait for something to leave with.
    pub late: bool,
    /// Handles whose sender needs credit.
    pub thirsty: Vec<u32>,
    /// Listed for the end of the batch.
    pub owing: bool,
    /// Its place among the sessions of its user.
    _ticket: Option<Ticket>,
}

impl Channel {
    /// A session before the peer's begin is known.
    pub(super) fn new(window: u32, handle_max: u32) -> Self {
        Self {
            ending: false,
            answered: false,
            next_incoming_id: 0,
            incoming_window: window,
            next_outgoing_id: 0,
            remote_window: 0,
            next_delivery_id: 0,
            handle_max,
            links: Vec::new(),
            theirs: Vec::new(),
            unsettled: Unsettled::default(),
            posted: BTreeMap::new(),
            awaited: BTreeMap::new(),
            run: None,
            late: false,
            thirsty: Vec::new(),
            owing: false,
            _ticket: None,
        }
    }

    /// What the peer's begin says.
    fn take_begin(&mut self, begin: &Begin<'_>) {
        self.answered = true;
        self.next_incoming_id = begin.next_outgoing_id;
        self.remote_window = begin.incoming_window;
        self.handle_max = self.handle_max.min(begin.handle_max);
    }

    /// Our handle of the link that the peer's handle names.
    #[inline]
    pub(super) fn ours(&self, theirs: u32) -> u32 {
        self.theirs.get(theirs as usize).map_or(NO_HANDLE, |ours| ours.wrapping_sub(1))
    }

    /// A handle of ours for a link: the one wished for, else the first that is free.
    pub(super) fn free_handle(&self, wish: u32) -> Option<u32> {
        let is_free = |handle: &u32| !matches!(self.links.get(*handle as usize), Some(Some(_)));
        Some(wish).filter(is_free).or_else(|| (0..=self.handle_max).find(is_free))
    }

    /// The peer's handle, which has been checked, names this link of ours from now on.
    pub(super) fn map_handle(&mut self, theirs: u32, ours: u32) {
        let index = theirs as usize;
        if self.theirs.len() <= index {
            self.theirs.resize(index + 1, 0);
        }
        self.theirs[index] = ours + 1;
    }

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
        if self.ours(number) != NO_CHANNEL {
            return Err(Fault::connection(condition::ILLEGAL_STATE, format!("unexpected begin on channel {number}")));
        }
        if let Some(ours) = begin.remote_channel {
            return self.on_begin_answered(number, ours, begin);
        }
        let Some(ours) = self.free_channel(number) else {
            return Err(Fault::connection(condition::RESOURCE_LIMIT_EXCEEDED, "no channel is free"));
        };
        let (window, handle_max) = (broker.limits.session_window, broker.limits.links_max.saturating_sub(1));
        let ticket = broker.take_channel(io.principal);
        let mut channel = Channel::new(window, handle_max);
        channel._ticket = ticket.map_err(|text| Fault::connection(condition::RESOURCE_LIMIT_EXCEEDED, text))?;
        channel.take_begin(begin);
        self.put_channel(ours, channel);
        broker.tell_session(io.id, ours, true);
        self.map_channel(number, ours);
        let answer = Begin {
            remote_channel: Some(number),
            next_outgoing_id: 0,
            incoming_window: window,
            outgoing_window: window,
            handle_max,
            ..Begin::default()
        };
        encode(&mut io.output, ours, &answer);
        Ok(())
    }

    /// The peer's begin for a session that we began.
    fn on_begin_answered(&mut self, number: u16, ours: u16, begin: &Begin<'_>) -> Result<(), Fault> {
        match self.channel(ours) {
            Some(channel) if !channel.answered => channel.take_begin(begin),
            _ => return Err(Fault::connection(condition::ILLEGAL_STATE, format!("no begin of ours on {ours}"))),
        }
        self.map_channel(number, ours);
        Ok(())
    }

    /// A number of ours for a session: the one wished for, else the first that is free.
    pub(super) fn free_channel(&self, wish: u16) -> Option<u16> {
        let is_free = |number: &u16| !matches!(self.channels.get(usize::from(*number)), Some(Some(_)));
        Some(wish).filter(is_free).or_else(|| (0..=self.channel_max).find(is_free))
    }

    pub(super) fn put_channel(&mut self, number: u16, channel: Channel) {
        let index = usize::from(number);
        if self.channels.len() <= index {
            self.channels.resize_with(index + 1, || None);
        }
        self.channels[index] = Some(Box::new(channel));
    }

    fn map_channel(&mut self, theirs: u16, ours: u16) {
        let index = usize::from(theirs);
        if self.theirs.len() <= index {
            self.theirs.resize(index + 1, 0);
        }
        self.theirs[index] = ours + 1;
    }

    pub(super) fn on_end(&mut self, io: &mut Io, broker: &mut Broker, number: u16, end: &End<'_>) -> Result<(), Fault> {
        let Some(channel) = self.channel(number) else { return Err(no_session(number)) };
        if !channel.ending {
            self.send_owed(io, broker);
            self.report_detached_all(io, broker, number, end.error.as_ref());
            self.drop_channel(io, broker, number, false);
            io.drop_promises(number);
            encode(&mut io.output, number, &End::default());
        }
        self.channels[usize::from(number)] = None;
        broker.tell_session(io.id, number, false);
        self.theirs.iter_mut().filter(|ours| **ours == number + 1).for_each(|ours| *ours = 0);
        self.own_channel = self.own_channel.filter(|own| *own != number);
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
        self.report_detached_all(io, broker, number, Some(&error_of(condition, text)));
        self.drop_channel(io, broker, number, false);
        self.own_channel = self.own_channel.filter(|own| *own != number);
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
        self.abandon_awaited(broker, number, None);
        let Some(channel) = self.channel(number) else { return };
        // All at once: link by link, each would be searched for among all.
        for held in channel.unsettled.take_all() {
            lose_held(broker, held, failed);
        }
        self.transactions.let_go_all(number);
        for handle in 0..handles as u32 {
            self.drop_link(io, broker, (number, handle), failed, false);
        }
        self.forget_suspended(broker, |suspended| suspended.dies_with(number));
        self.owing.retain(|other| *other != number);
        self.names.retain(|_, place| place.0 != number);
        if let Some(channel) = self.channel(number) {
            (channel.owing, channel.late) = (false, false);
            channel.run = None;
        }
    }
}
