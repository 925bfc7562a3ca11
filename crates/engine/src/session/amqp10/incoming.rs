//! Transfers from the peer become messages.
//!
//! Owns the gathering of a delivery's frames: windows and credit are counted, tags and ids checked, pieces kept until
//! the last one is there. A message in one frame is copied once; a larger one stays in the pieces it came in. It must
//! never read further than the head. Rules: AMQP 1.0 sections 2.6.14 and 2.7.5; an aborted delivery is forgotten, one
//! larger than allowed detaches its link.

use std::rc::Rc;

use weft_wire::amqp10::sections::{self, Head, SectionError};
use weft_wire::amqp10::{DecodeError, DeliveryState, Received, ReceiverSettleMode, Transfer, condition, transfer};

use super::channel::Channel;
use super::link::{Goal, Inlet, Link, unattached};
use super::settle::{Posted, Told, Verdict};
use super::{Fault, Place, Session, no_session};
use crate::broker::Broker;
use crate::conn::Io;
use crate::memory::Unfinished;
use crate::message::{Body, Gatherer};

/// How much of a gathered message is looked at first to find its head; doubled until it is there.
const HEAD_BYTES_GUESS: usize = 4 << 10;

/// What is known of a delivery besides its message.
pub(super) struct Delivery {
    pub id: u32,
    /// Kept only where the peer settles last, or where nothing but the end of the link could tell it of a mistake.
    pub tag: Box<[u8]>,
    pub settled: bool,
    pub second: bool,
    /// The outcome may be told later, with other frames.
    pub batchable: bool,
    pub transaction: Option<u64>,
}

/// A delivery whose last frame has not come yet.
pub(super) struct Partial {
    pub tag: Box<[u8]>,
    delivery: Delivery,
    bytes: Gatherer,
    charge: Unfinished,
    /// Nobody here knows it: its frames are only counted.
    ignored: bool,
}

impl Partial {
    pub(super) fn transaction(&self) -> Option<u64> {
        self.delivery.transaction
    }

    /// When it is given up if nothing more of it comes.
    pub(super) fn due_ns(&self, unfinished_s: u16) -> u64 {
        self.charge.due_ns(unfinished_s)
    }

    /// Can it go on when its link comes back?
    pub(super) fn may_wait(&self) -> bool {
        !self.delivery.settled && self.delivery.transaction.is_none() && !self.ignored
    }

    /// How much of it is here.
    pub(super) fn received(&self) -> Received {
        let (section_number, section_offset) = sections::place_of(&self.bytes.prefix(self.bytes.len()));
        Received { section_number, section_offset }
    }

    /// Goes on under a new delivery id, from where the sender begins. None if there would be a gap.
    fn go_on(&mut self, delivery: Delivery, begins: Option<Received>) -> Option<()> {
        let bytes = self.bytes.prefix(self.bytes.len());
        let at = match begins {
            Some(begins) => sections::offset_of(&bytes, begins.section_number, begins.section_offset)?,
            None => bytes.len(),
        };
        if at < bytes.len() {
            self.bytes = Gatherer::default();
            self.bytes.push(bytes.get(..at)?, 0);
        }
        self.delivery = delivery;
        Some(())
    }
}

impl Session {
    #[inline]
    pub(super) fn on_transfer(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        number: u16,
        transfer: &Transfer<'_>,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let Some(Some(channel)) = self.channels.get_mut(usize::from(number)) else { return Err(no_session(number)) };
        if channel.ending {
            return Ok(());
        }
        let Some(window) = channel.incoming_window.checked_sub(1) else {
            return Err(Fault::session(condition::SESSION_WINDOW_VIOLATION, "more transfers than the window allows"));
        };
        channel.incoming_window = window;
        channel.next_incoming_id = channel.next_incoming_id.wrapping_add(1);
        let handle = channel.ours(transfer.handle);
        let Some(Link::In(inlet)) = channel.link(handle) else { return no_inlet(channel, handle, transfer.handle) };
        let is_first = inlet.partial.is_none();
        if is_first {
            let Some(credit) = inlet.credit.checked_sub(1) else {
                let text = "more messages than the credit allows";
                return Err(Fault::link(handle, condition::LINK_TRANSFER_LIMIT_EXCEEDED, text));
            };
            inlet.credit = credit;
            inlet.delivery_count = inlet.delivery_count.wrapping_add(1);
            inlet.common.messages += 1;
        }
        if let Some(pace) = &mut inlet.common.pace {
            pace.take(payload.len(), is_first, broker.now_ns);
        }
        let is_familiar = inlet.familiar.as_ref().is_some_and(|familiar| familiar.begins(payload));
        let is_thirsty = inlet.credit <= inlet.window / 2;
        let delivery = if is_first { Some(delivery_of(inlet, handle, transfer)?) } else { None };
        if is_thirsty {
            channel.thirst(handle);
        }
        if is_thirsty || window <= broker.limits.session_window / 2 {
            self.owe(number);
        }
        let transaction = self.transaction_of(handle, transfer)?;
        match delivery {
            Some(delivery) if is_familiar && transaction.is_none() && !is_special(transfer) => {
                self.take_familiar(io, broker, (number, handle), delivery, payload)
            }
            Some(delivery) if !is_special(transfer) => {
                self.take_whole(io, broker, (number, handle), Delivery { transaction, ..delivery }, payload)
            }
            delivery => {
                let delivery = delivery.map(|delivery| Delivery { transaction, ..delivery });
                self.gather(io, broker, (number, handle), delivery, transfer, payload)
            }
        }
    }

    /// The whole message lies in one frame.
    #[inline]
    pub(super) fn take_whole(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Delivery,
        payload: &[u8],
    ) -> Result<(), Fault> {
        if payload.len() as u64 > broker.limits.message_bytes_max {
            return Err(too_large(place.1, broker));
        }
        let head = head_of(payload).map_err(|error| undecodable(place.1, error))?;
        let body_start = head.body_start as usize;
        let body = Body::new(Rc::from(payload), body_start..payload.len());
        let charge = io.account.charge(payload.len() as u64);
        self.take_message(io, broker, place, delivery, &payload[..body_start], head, body, charge)
    }

    /// One frame of several, or one with something special to it.
    fn gather(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        delivery: Option<Delivery>,
        transfer: &Transfer<'_>,
        payload: &[u8],
    ) -> Result<(), Fault> {
        let bytes_max = broker.limits.message_bytes_max;
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else {
            return Ok(());
        };
        let tag = transfer.delivery_tag.unwrap_or_default();
        if transfer.aborted {
            inlet.partial = None;
            inlet.resuming.forget(tag);
            return Ok(());
        }
        let mut partial = match (inlet.partial.take(), delivery) {
            (Some(partial), _) => partial,
            (None, Some(delivery)) if transfer.resume => {
                match self.resume_delivery(io, broker, place, delivery, transfer)? {
                    Some(partial) => partial,
                    None => return Ok(()),
                }
            }
            (None, Some(delivery)) => {
                self.transactions.begin_half(delivery.transaction, place);
                let (bytes, charge) = (Gatherer::default(), io.account.charge_part(0, broker.now_ns));
                broker.schedule_conn(io, charge.due_ns(broker.limits.unfinished_s));
                Box::new(Partial { tag: tag.into(), delivery, bytes, charge, ignored: false })
            }
            (None, None) => return Ok(()),
        };
        let Some(Link::In(inlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) else {
            return Ok(());
        };
        if let Some(id) = transfer.delivery_id.filter(|id| *id != partial.delivery.id) {
            let text = format!("delivery {id} begins before {} has ended", partial.delivery.id);
            return Err(Fault::link(place.1, condition::ILLEGAL_STATE, text));
        }
        if partial.ignored {
            inlet.partial = transfer.more.then_some(partial);
            return Ok(());
        }
        let len = partial.bytes.len() as u64 + payload.len() as u64;
        if len > bytes_max {
            return Err(too_large(place.1, broker));
        }
        partial.delivery.settled |= transfer.settled.unwrap_or(false);
        partial.bytes.push(payload, 0);
        partial.charge.grow(len, broker.now_ns);
        if partial.charge.is_too_much() {
            let text = "unfinished messages take too much memory, try again later";
            return Err(Fault::link(place.1, condition::RESOURCE_LIMIT_EXCEEDED, text));
        }
        if transfer.more {
            inlet.partial = Some(partial);
            return Ok(());
        }
        let Partial { delivery, bytes, charge, .. } = *partial;
        let (prefix, head) = gathered_head(&bytes).map_err(|error| undecodable(place.1, error))?;
        let head_bytes = &prefix[..head.body_start as usize];
        let body = bytes.finish(head_bytes.len());
        self.take_message(io, broker, place, delivery, head_bytes, head, body, charge.finish())
    }

    /// The peer takes up a delivery from before the link was suspended: it goes on, or gets the answer that the peer
    /// did not settle; one that nobody here knows is ignored. What comes of its frames.
    fn resume_delivery(
        &mut self,
        io: &mut Io,
        broker: &Broker,
        place: Place,
        mut delivery: Delivery,
        transfer: &Transfer<'_>,
    ) -> Result<Option<Box<Partial>>, Fault> {
        let Some(channel) = self.channel(place.0) else { return Ok(None) };
        let Some(Link::In(inlet)) = channel.link(place.1) else { return Ok(None) };
        let tag = transfer.delivery_tag.unwrap_or_default();
        if let Some(mut partial) = inlet.resuming.partial.take_if(|partial| *partial.tag == *tag) {
            let begins = match transfer.state {
                Some(DeliveryState::Received(begins)) => Some(begins),
                _ => None,
            };
            let gap = Fault::link(place.1, condition::ILLEGAL_STATE, "the delivery goes on behind what is here of it");
            return partial.go_on(delivery, begins).map(|()| Some(partial)).ok_or(gap);
        }
        if let Some(at) = inlet.resuming.answered.iter().position(|(known, _)| **known == *tag) {
            let (tag, verdict) = inlet.resuming.answered.swap_remove(at);
            match transfer.state {
                _ if delivery.settled => {}
                // What the sender has decided holds, whatever we answered.
                Some(DeliveryState::Outcome(outcome)) => {
                    channel.report(io, place.0, Told::verdict(delivery.id, Verdict::of(outcome), true));
                }
                _ => {
                    inlet.posted += 1;
                    channel.report(io, place.0, Told::verdict(delivery.id, verdict.clone(), false));
                    channel.posted.insert(delivery.id, Posted { handle: place.1, tag, verdict });
                }
            }
            self.owe(place.0);
        }
        delivery.settled = true;
        let (bytes, charge) = (Gatherer::default(), io.account.charge_part(0, broker.now_ns));
        Ok(Some(Box::new(Partial { tag: Box::default(), delivery, bytes, charge, ignored: true })))
    }

    /// Gives up messages whose rest does not come, and what suspended links have of such. When to look again.
    pub(super) fn end_unfinished(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        let (now_ns, limit_s) = (broker.now_ns, broker.limits.unfinished_s);
        let is_unread = io.paused || io.waits();
        let mut dues_ns = Vec::new();
        let mut ended = Vec::new();
        for suspended in self.suspended.values_mut() {
            dues_ns.extend(suspended.give_up_partial(now_ns, limit_s));
        }
        for (number, channel) in self.channels.iter_mut().enumerate() {
            let Some(channel) = channel else { continue };
            let is_unread = is_unread || channel.incoming_window == 0;
            for (handle, link) in channel.links.iter_mut().enumerate() {
                let Some(Link::In(inlet)) = link else { continue };
                for partial in inlet.partial.iter_mut().chain(&mut inlet.resuming.partial) {
                    if is_unread {
                        partial.charge.excuse(now_ns);
                    }
                    match partial.due_ns(limit_s) {
                        due_ns if due_ns > now_ns => dues_ns.push(due_ns),
                        _ => ended.push((number as u16, handle as u32)),
                    }
                }
            }
        }
        ended.dedup();
        for place in ended {
            let text = format!("the rest of a message did not come within {limit_s} s");
            self.detach_link(io, broker, place, condition::RESOURCE_LIMIT_EXCEEDED, &text);
        }
        dues_ns.into_iter().min()
    }

    /// The transaction that a transfer belongs to.
    #[inline]
    fn transaction_of(&self, handle: u32, transfer: &Transfer<'_>) -> Result<Option<u64>, Fault> {
        let Some(DeliveryState::Transactional(state)) = transfer.state else { return Ok(None) };
        match self.transactions.find(state.txn_id) {
            Some(id) => Ok(Some(id)),
            None => Err(Fault::link(handle, condition::TRANSACTION_UNKNOWN_ID, "no such transaction")),
        }
    }
}

/// Is it one frame of several, or none of a message at all?
#[inline]
fn is_special(transfer: &Transfer<'_>) -> bool {
    transfer.more || transfer.aborted || transfer.resume
}

/// Checks what the first transfer of a delivery must say.
#[inline]
fn delivery_of(inlet: &Inlet, handle: u32, transfer: &Transfer<'_>) -> Result<Delivery, Fault> {
    let invalid = |text: &str| Fault::link(handle, condition::INVALID_FIELD, text);
    let (Some(id), Some(tag)) = (transfer.delivery_id, transfer.delivery_tag) else {
        return Err(invalid("the first transfer of a delivery needs its id and tag"));
    };
    if tag.len() > transfer::DELIVERY_TAG_BYTES_MAX {
        return Err(invalid("the delivery tag is longer than 32 bytes"));
    }
    // The low byte is a version; the rest names a format, and 0 is the one defined by AMQP.
    if transfer.message_format.unwrap_or(0) >> 8 != 0 {
        return Err(Fault::link(handle, condition::NOT_IMPLEMENTED, "unknown message format"));
    }
    let settled = transfer.settled.unwrap_or(false);
    if settled && matches!(inlet.goal, Goal::Coordinator) {
        let text = "a request to the coordinator was sent settled";
        return Err(Fault::link(handle, condition::NOT_ALLOWED, text));
    }
    let second = inlet.second && transfer.rcv_settle_mode != Some(ReceiverSettleMode::First) && !settled;
    let kept = second || settled && matches!(inlet.goal, Goal::Anonymous);
    let tag = if kept { tag.into() } else { Box::default() };
    Ok(Delivery { id, tag, settled, second, batchable: transfer.batchable, transaction: None })
}

fn no_inlet(channel: &mut Channel, handle: u32, theirs: u32) -> Result<(), Fault> {
    match channel.link(handle) {
        Some(Link::Closing) => Ok(()),
        Some(_) => Err(Fault::link(handle, condition::NOT_ALLOWED, "a transfer on a link that only receives")),
        None => Err(unattached(theirs)),
    }
}

fn too_large(handle: u32, broker: &Broker) -> Fault {
    let text = format!("the message is larger than {} bytes", broker.limits.message_bytes_max);
    Fault::link(handle, condition::LINK_MESSAGE_SIZE_EXCEEDED, text)
}

fn undecodable(handle: u32, error: DecodeError) -> Fault {
    Fault::link(handle, error.condition(), error.to_string())
}

/// Finds the head of a whole message, which may have no body at all.
#[inline]
fn head_of(message: &[u8]) -> Result<Head, DecodeError> {
    match sections::scan_head(message) {
        Ok(head) => Ok(head),
        Err(SectionError::Malformed(error)) => Err(error),
        Err(SectionError::Incomplete) => match sections::scan(message) {
            Ok(sections) => Ok(sections.head),
            Err(SectionError::Malformed(error)) => Err(error),
            Err(SectionError::Incomplete) => Err(DecodeError::Truncated),
        },
    }
}

/// Finds the head of a message that came in many frames, without putting the rest of it together.
fn gathered_head(bytes: &Gatherer) -> Result<(Vec<u8>, Head), DecodeError> {
    let mut guess = HEAD_BYTES_GUESS;
    loop {
        let prefix = bytes.prefix(guess);
        if prefix.len() == bytes.len() {
            let head = head_of(&prefix)?;
            return Ok((prefix, head));
        }
        match sections::scan_head(&prefix) {
            Ok(head) => return Ok((prefix, head)),
            Err(SectionError::Malformed(error)) => return Err(error),
            Err(SectionError::Incomplete) => guess *= 2,
        }
    }
}
