//! Frames as they come in: each finds its session and its link, and changes them.
//!
//! Owns the split of bytes into frames and what every performative means to a client. Bytes may end anywhere; the rest
//! is kept until more comes, up to one frame. A peer that breaks the rules is told why and closed. It must never answer
//! with more than a frame per frame: everything that can be gathered is `output.rs`'s. Rules: AMQP 1.0 part 2.

use weft_wire::amqp10::frame::{self, FrameKind};
use weft_wire::amqp10::{
    Attach, AttachTarget, Begin, Close, DecodeError, DeliveryState, Detach, Disposition, End as EndFrame, Flow,
    Outcome, Performative, Role, Transfer, Value, condition, encode, transfer, writer,
};

use crate::attach::{End, Stage as LinkStage};
use crate::client::{Client, error_of};
use crate::event::{Ending, Event, Verdict};
use crate::opening::{Opening, ending_of, refused};
use crate::receiver::Partial;
use crate::session::Stage;

impl Client {
    /// Bytes from the transport.
    pub fn receive(&mut self, data: &[u8], now_ns: u64) -> u32 {
        (self.now_ns, self.heard_ns) = (now_ns, now_ns);
        if self.inbound.is_empty() {
            let used = self.consume(data);
            self.inbound.extend_from_slice(data.get(used..).unwrap_or(&[]));
        } else {
            let mut buffer = std::mem::take(&mut self.inbound);
            buffer.extend_from_slice(data);
            let used = self.consume(&buffer);
            buffer.drain(..used);
            self.inbound = buffer;
        }
        self.signals()
    }

    /// Takes whole frames; how many bytes they were.
    fn consume(&mut self, data: &[u8]) -> usize {
        let mut at = 0;
        loop {
            let rest = data.get(at..).unwrap_or(&[]);
            let taken = match self.opening {
                Opening::Idle | Opening::Closed => return data.len(),
                Opening::SaslHeader(_) | Opening::Header => match rest.first_chunk() {
                    Some(header) => self.on_header(header).map(|()| header.len()),
                    None => return at,
                },
                _ => match frame::split(rest, self.limits.frame_bytes_max.max(frame::MIN_MAX_FRAME_SIZE)) {
                    Ok(None) => return at,
                    Ok(Some(frame)) => self.on_frame(frame.kind, frame.channel, frame.body).map(|()| frame.size),
                    Err(error) => Err(refused(&error.to_string())),
                },
            };
            match taken {
                Ok(bytes) => at += bytes,
                Err(ending) => {
                    self.fail(&ending);
                    return data.len();
                }
            }
        }
    }

    /// The peer broke the rules: it is told, and that is the end.
    fn fail(&mut self, ending: &Ending) {
        if matches!(self.opening, Opening::Opened | Opening::Closing) {
            encode(&mut self.out, 0, &Close { error: Some(error_of(ending)) });
        }
        self.finish(ending.clone(), false);
    }

    fn on_frame(&mut self, kind: FrameKind, channel: u16, body: &[u8]) -> Result<(), Ending> {
        if kind == FrameKind::Sasl {
            return self.on_sasl(body);
        }
        if body.is_empty() {
            return Ok(());
        }
        if let Some((transfer, payload)) = transfer::decode_fast(body) {
            return self.on_transfer(channel, &transfer, payload);
        }
        let (performative, payload) = Performative::decode(body).map_err(decode_ending)?;
        match performative {
            Performative::Open(open) => self.on_open(&open),
            Performative::Close(close) => {
                self.on_close(&close);
                Ok(())
            }
            _ if !matches!(self.opening, Opening::Opened | Opening::Closing) => {
                Err(refused("a frame came before open"))
            }
            Performative::Begin(begin) => self.on_begin(channel, &begin),
            Performative::Attach(attach) => self.on_attach(channel, &attach),
            Performative::Flow(flow) => self.on_flow(channel, &flow),
            Performative::Transfer(transfer) => self.on_transfer(channel, &transfer, payload),
            Performative::Disposition(disposition) => self.on_disposition(channel, &disposition),
            Performative::Detach(detach) => self.on_detach(channel, &detach),
            Performative::End(end) => self.on_end(channel, &end),
        }
    }

    /// The session the peer means by its channel.
    fn session_of(&self, channel: u16) -> Result<u16, Ending> {
        let is_it = |at: usize| self.sessions.get(at).is_some_and(|session| session.remote_channel == Some(channel));
        if is_it(usize::from(channel)) {
            return Ok(channel);
        }
        match (0..self.sessions.len()).find(|at| is_it(*at)) {
            Some(at) => Ok(at as u16),
            None => Err(refused("a frame came on a channel without a session")),
        }
    }

    fn on_begin(&mut self, channel: u16, begin: &Begin<'_>) -> Result<(), Ending> {
        let ours = begin.remote_channel.and_then(|ours| self.sessions.get_mut(usize::from(ours)));
        let Some(session) = ours.filter(|session| matches!(session.stage, Stage::Beginning | Stage::Ending)) else {
            return Err(refused("a begin came that answers none of ours"));
        };
        session.remote_channel = Some(channel);
        session.next_incoming_id = begin.next_outgoing_id;
        session.remote_window = begin.incoming_window;
        session.handle_max = begin.handle_max;
        if session.stage == Stage::Beginning {
            session.stage = Stage::Begun;
        }
        Ok(())
    }

    fn on_attach(&mut self, channel: u16, attach: &Attach<'_>) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let session = &mut self.sessions[usize::from(number)];
        let wants_sender = attach.role == Role::Receiver;
        let is_answer = |link: &&u32| {
            self.links.get(**link as usize).and_then(Option::as_ref).is_some_and(|link| {
                let same = link.options.name.as_ref() == attach.name;
                same && matches!(link.end, End::Sender(_)) == wants_sender
            })
        };
        let Some(index) = session.handles.iter().flatten().find(is_answer).copied() else {
            return Err(refused("an attach came that answers none of ours"));
        };
        session.remote.insert(attach.handle, index);
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut) else { return Ok(()) };
        let (address, accepted) = match (&link.end, attach.target, attach.source) {
            (End::Sender(_), Some(AttachTarget::Coordinator(_)), _) => (None, true),
            (End::Sender(_), Some(AttachTarget::Target(target)), _) => (target.address, true),
            (End::Receiver(_), _, Some(source)) => (source.address, true),
            _ => (None, false),
        };
        // Without its end the link is refused: a detach with the reason follows.
        if !accepted || link.stage != LinkStage::Attaching {
            return Ok(());
        }
        link.stage = LinkStage::Attached;
        match &mut link.end {
            End::Sender(sender) => sender.message_bytes_max = attach.max_message_size.unwrap_or(0),
            End::Receiver(receiver) => receiver.delivery_count = attach.initial_delivery_count.unwrap_or(0),
        }
        let filters = attach.source.and_then(|source| source.filter);
        let names = filters.iter().flat_map(|map| map.iter()).filter_map(|(key, _)| key.as_str().map(str::to_owned));
        let filters = names.collect();
        let mut properties = Vec::new();
        if let Some(map) = attach.properties {
            writer::put_value(&mut properties, &Value::Map(map));
        }
        let address = address.map(str::to_owned);
        self.events.push(Event::Attached { link: index, address, filters, properties });
        self.mark_dirty(index);
        Ok(())
    }

    fn on_flow(&mut self, channel: u16, flow: &Flow<'_>) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let session = &mut self.sessions[usize::from(number)];
        // What the peer had not seen when it wrote this is on its way; a window that has shrunk is none at all.
        let on_its_way = session.next_outgoing_id.wrapping_sub(flow.next_incoming_id.unwrap_or(0));
        session.remote_window = flow.incoming_window.saturating_sub(on_its_way);
        let index = flow.handle.and_then(|handle| session.remote.get(&handle).copied());
        for blocked in std::mem::take(&mut session.blocked) {
            self.mark_dirty(blocked);
        }
        if let Some(link) = index.and_then(|index| self.links.get_mut(index as usize)).and_then(Option::as_mut) {
            let credit = flow.link_credit.unwrap_or(0);
            let mut drained = false;
            match &mut link.end {
                End::Sender(sender) => {
                    let theirs = flow.delivery_count.unwrap_or(0);
                    let ahead = sender.delivery_count.wrapping_sub(theirs);
                    sender.credit = credit.saturating_sub(ahead);
                    sender.draining = flow.drain;
                }
                End::Receiver(receiver) => {
                    if let Some(count) = flow.delivery_count {
                        receiver.credit = receiver.credit.saturating_sub(count.wrapping_sub(receiver.delivery_count));
                        receiver.delivery_count = count;
                    }
                    drained = receiver.draining && receiver.credit == 0;
                    receiver.draining &= !drained;
                }
            }
            let index = index.unwrap_or_default();
            if drained {
                self.events.push(Event::Drained { link: index });
            }
            self.mark_dirty(index);
        }
        if flow.echo {
            self.write_session_flow(number);
        }
        Ok(())
    }

    fn on_transfer(&mut self, channel: u16, transfer: &Transfer<'_>, payload: &[u8]) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let bytes_max = self.limits.message_bytes_max;
        let session = &mut self.sessions[usize::from(number)];
        session.next_incoming_id = session.next_incoming_id.wrapping_add(1);
        session.incoming_left = session.incoming_left.saturating_sub(1);
        let index = session.remote.get(&transfer.handle).copied();
        let Some(index) = index else { return Err(refused("a transfer came on a handle without a link")) };
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut) else { return Ok(()) };
        let End::Receiver(receiver) = &mut link.end else { return Err(refused("a transfer came on a sending link")) };
        if link.stage == LinkStage::Detaching {
            return Ok(());
        }
        let mut partial = match (receiver.partial.take(), transfer.delivery_id) {
            (Some(partial), _) => partial,
            (None, Some(id)) => Partial {
                id,
                tag: transfer.delivery_tag.unwrap_or(&[]).into(),
                payload: Vec::with_capacity(payload.len()),
                settled: transfer.settled.unwrap_or(false),
            },
            (None, None) => return Err(refused("a transfer came without a delivery id")),
        };
        if transfer.aborted {
            receiver.credit = receiver.credit.saturating_sub(1);
            receiver.delivery_count = receiver.delivery_count.wrapping_add(1);
            return Ok(());
        }
        if (partial.payload.len() + payload.len()) as u64 > bytes_max {
            let description = format!("a message is larger than the {bytes_max} bytes taken here");
            let condition = condition::LINK_MESSAGE_SIZE_EXCEEDED.0.to_owned();
            let _gone = self.detach(index, true, Some(&Ending { condition, description }));
            return Ok(());
        }
        partial.payload.extend_from_slice(payload);
        partial.settled |= transfer.settled.unwrap_or(false);
        if transfer.more {
            receiver.partial = Some(partial);
            return Ok(());
        }
        receiver.arrived(partial);
        if !link.filled {
            link.filled = true;
            self.filled.push(index);
        }
        Ok(())
    }

    fn on_disposition(&mut self, channel: u16, disposition: &Disposition<'_>) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let outcome = disposition.state.and_then(|state| state.outcome());
        // What the peer sent and settles by itself asks nothing of us; progress without an outcome neither.
        if disposition.role == Role::Sender || (outcome.is_none() && !disposition.settled) {
            return Ok(());
        }
        let (first, last) = (disposition.first, disposition.last.unwrap_or(disposition.first));
        let mut verdict = outcome.map_or(Verdict::Unknown, verdict_of);
        if let Some(DeliveryState::Transactional(_)) = disposition.state {
            // What is in a transaction counts as done once the coordinator took it; the discharge has the last word.
            verdict = if outcome.is_none() { Verdict::Accepted } else { verdict };
        }
        let session = &mut self.sessions[usize::from(number)];
        if !disposition.settled {
            session.confirming.push((first, last));
        }
        let mut found = Vec::new();
        session.decided(first, last, |link, message| found.push((link, message)));
        for (link, message) in found {
            if let Some(End::Sender(sender)) = self.link_mut(link).map(|link| &mut link.end)
                && sender.settle(message)
            {
                self.settled(link, message, verdict.clone());
            }
        }
        Ok(())
    }

    fn on_detach(&mut self, channel: u16, detach: &Detach<'_>) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let Some(index) = self.sessions[usize::from(number)].remote.get(&detach.handle).copied() else {
            return Ok(());
        };
        let mut ending = ending_of(detach.error.as_ref());
        if let Some(link) = self.links.get(index as usize).and_then(Option::as_ref)
            && link.stage != LinkStage::Detaching
        {
            let answer = Detach { handle: link.handle, closed: detach.closed, error: None };
            encode(&mut self.out, number, &answer);
            if ending.condition.is_empty() {
                ending.condition = condition::LINK_DETACH_FORCED.0.to_owned();
                ending.description = "the peer detached the link and gave no reason".into();
            }
        }
        self.drop_link(index, ending);
        Ok(())
    }

    fn on_end(&mut self, channel: u16, end: &EndFrame<'_>) -> Result<(), Ending> {
        let number = self.session_of(channel)?;
        let ending = ending_of(end.error.as_ref());
        let session = &mut self.sessions[usize::from(number)];
        let was_ending = session.stage == Stage::Ending;
        (session.stage, session.remote_channel) = (Stage::Ended, None);
        if !was_ending {
            encode(&mut self.out, number, &EndFrame::default());
        }
        self.drop_links_of(number, &ending);
        self.events.push(Event::SessionEnded { session: number, ending });
        Ok(())
    }
}

fn decode_ending(error: DecodeError) -> Ending {
    Ending { condition: error.condition().0.to_owned(), description: error.to_string() }
}

fn verdict_of(outcome: Outcome<'_>) -> Verdict {
    match outcome {
        Outcome::Accepted => Verdict::Accepted,
        Outcome::Released => Verdict::Released,
        Outcome::Rejected(rejected) => Verdict::Rejected(ending_of(rejected.error.as_ref())),
        Outcome::Modified(modified) => {
            Verdict::Modified { failed: modified.delivery_failed, undeliverable_here: modified.undeliverable_here }
        }
        Outcome::Declared(declared) => Verdict::Declared(declared.txn_id.into()),
    }
}
