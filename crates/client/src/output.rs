//! Frames as they leave: transfers, settlements and credit, gathered until someone polls.
//!
//! Owns the order and the bounds of output: settlements first, since they free the peer; then each link with something
//! to say in turn, until there are enough bytes for one write. What is left stays listed for the next poll. It also
//! knows when the peer must hear from us and when it was silent too long. Rules: AMQP 1.0 part 2, sections 2.4.5, 2.6.

use weft_wire::amqp10::frame::{self, end_frame};
use weft_wire::amqp10::transfer::{TransferHead, encode_continuation, encode_transfer};
use weft_wire::amqp10::{
    DeliveryState, Disposition, Flow, Role, TransactionalState, Transfer, encode, frame::FrameKind,
};

use crate::attach::{End, Link, Stage as LinkStage};
use crate::client::{Client, Mistake};
use crate::event::Ending;
use crate::sender::Manner;
use crate::session::{Session, Stage};

/// Bytes gathered for one write: a few of the largest frames.
const OUTPUT_BYTES: usize = 256 << 10;
/// Room in a frame for its header and the performative before the payload.
const TRANSFER_HEAD_BYTES: usize = 128;
const MS: u64 = 1_000_000;

impl Client {
    /// Bytes for the transport; empty if there are none. Poll again until it is, or until the transport is full.
    pub fn poll_transmit(&mut self) -> Vec<u8> {
        self.write_due();
        self.sent_ns = self.now_ns;
        std::mem::take(&mut self.out)
    }

    /// Whether `poll_transmit` would give something.
    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty() || (self.is_open() && (!self.dirty.is_empty() || self.sessions.iter().any(has_settled)))
    }

    /// Time passes.
    pub fn advance(&mut self, now_ns: u64) -> u32 {
        self.now_ns = now_ns;
        if self.is_open() {
            let silent_ns = now_ns.saturating_sub(self.heard_ns);
            if self.limits.idle_ms > 0 && silent_ns >= 2 * u64::from(self.limits.idle_ms) * MS {
                let text = format!("the peer was silent for {} ms", silent_ns / MS);
                let condition = "amqp:resource-limit-exceeded".to_owned();
                self.close(Some(&Ending { condition: condition.clone(), description: text.clone() }));
                self.finish(Ending { condition, description: text }, false);
            } else if self.peer_idle_ms > 0 && now_ns.saturating_sub(self.sent_ns) >= self.beat_ns() {
                frame::heartbeat(&mut self.out);
                self.sent_ns = now_ns;
            }
        }
        self.signals()
    }

    /// When `advance` wants to be called.
    pub fn poll_timeout(&mut self) -> Option<u64> {
        self.timer_moved = false;
        if !self.is_open() {
            return None;
        }
        let silence = u64::from(self.limits.idle_ms) * 2 * MS;
        let silent = (silence > 0).then_some(self.heard_ns + silence);
        let beat = (self.peer_idle_ms > 0).then(|| self.sent_ns + self.beat_ns());
        silent.into_iter().chain(beat).min()
    }

    /// A peer that is not heard within its own time closes: half of it leaves room for the network.
    fn beat_ns(&self) -> u64 {
        u64::from(self.peer_idle_ms) * MS / 2
    }

    /// Writes what has gathered, up to a good write's worth.
    pub(crate) fn write_due(&mut self) {
        if !self.is_open() {
            return;
        }
        for (channel, session) in self.sessions.iter_mut().enumerate() {
            write_settlements(&mut self.out, channel as u16, session);
        }
        while self.out.len() < OUTPUT_BYTES {
            let Some(index) = self.dirty.pop_front() else { break };
            self.write_link(index);
        }
        for number in 0..self.sessions.len() as u16 {
            let session = &self.sessions[usize::from(number)];
            if session.stage == Stage::Begun && session.incoming_left * 2 < self.limits.session_window {
                self.write_session_flow(number);
            }
        }
    }

    fn write_link(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut) else { return };
        link.dirty = false;
        let number = link.session;
        let Some(session) = self.sessions.get_mut(usize::from(number)) else { return };
        if link.stage != LinkStage::Attached || session.stage != Stage::Begun {
            return;
        }
        let frame_max = self.peer_frame_bytes_max.min(1 << 20) as usize;
        let flow = match &mut link.end {
            End::Sender(_) => write_transfers(&mut self.out, index, link, session, frame_max),
            End::Receiver(receiver) => receiver.credit_due().map(|credit| (credit, receiver.delivery_count)),
        };
        if let End::Sender(sender) = &link.end
            && sender.is_ready()
        {
            if session.remote_window == 0 {
                if !session.blocked.contains(&index) {
                    session.blocked.push(index);
                }
            } else {
                link.dirty = true;
                self.dirty.push_back(index);
            }
        }
        if let Some((credit, delivery_count)) = flow {
            let handle = link.handle;
            self.write_flow(number, Some((handle, delivery_count, credit, false)));
        }
    }

    pub(crate) fn write_session_flow(&mut self, number: u16) {
        self.write_flow(number, None);
    }

    /// Writes a flow: of the session, and of a link with (handle, delivery count, credit, drain).
    fn write_flow(&mut self, number: u16, link: Option<(u32, u32, u32, bool)>) {
        let window = self.limits.session_window;
        let Some(session) = self.sessions.get_mut(usize::from(number)) else { return };
        session.incoming_left = window;
        let flow = Flow {
            next_incoming_id: session.remote_channel.map(|_| session.next_incoming_id),
            incoming_window: window,
            next_outgoing_id: session.next_outgoing_id,
            outgoing_window: window,
            handle: link.map(|link| link.0),
            delivery_count: link.map(|link| link.1),
            link_credit: link.map(|link| link.2),
            drain: link.is_some_and(|link| link.3),
            ..Flow::default()
        };
        encode(&mut self.out, number, &flow);
    }

    /// Asks the peer to use its credit or give it back; `Drained` is the answer.
    pub fn drain(&mut self, link: u32) -> Result<u32, Mistake> {
        let known = self.link_mut(link).ok_or(Mistake::NoSuchLink(link))?;
        let End::Receiver(receiver) = &mut known.end else { return Err(Mistake::WrongDirection(link)) };
        receiver.credit_due();
        receiver.draining = true;
        let (handle, count, credit) = (known.handle, receiver.delivery_count, receiver.credit);
        let (session, is_attached) = (known.session, known.stage == LinkStage::Attached);
        if is_attached {
            self.write_flow(session, Some((handle, count, credit, true)));
        }
        Ok(self.signals())
    }
}

fn has_settled(session: &Session) -> bool {
    !session.settling.is_empty() || !session.confirming.is_empty()
}

fn write_settlements(out: &mut Vec<u8>, channel: u16, session: &mut Session) {
    for settling in session.settling.drain(..) {
        let last = (settling.last != settling.first).then_some(settling.last);
        let disposition = Disposition {
            role: Role::Receiver,
            first: settling.first,
            last,
            settled: true,
            state: Some(settling.state()),
            batchable: false,
        };
        encode(out, channel, &disposition);
    }
    for (first, last) in session.confirming.drain(..) {
        let last = (last != first).then_some(last);
        let disposition = Disposition { role: Role::Sender, first, last, settled: true, state: None, batchable: false };
        encode(out, channel, &disposition);
    }
}

/// Sends what waits, as far as credit, window and the write allow; the answer to a drain, if one is due.
fn write_transfers(
    out: &mut Vec<u8>,
    index: u32,
    link: &mut Link,
    session: &mut Session,
    frame_max: usize,
) -> Option<(u32, u32)> {
    let (handle, channel, is_control) = (link.handle, link.session, link.options.place.coordinator);
    let End::Sender(sender) = &mut link.end else { return None };
    while out.len() < OUTPUT_BYTES && session.remote_window > 0 && sender.is_ready() {
        let (offset, mut delivery_id) = (sender.offset, sender.delivery_id);
        let Some((number, message)) = sender.next() else { break };
        session.next_outgoing_id = session.next_outgoing_id.wrapping_add(1);
        session.remote_window -= 1;
        if offset > 0 && message.done {
            // Given up in the middle: the peer must not take what it has for the whole.
            let delivery_id = Some(delivery_id);
            encode(out, channel, &Transfer { handle, delivery_id, aborted: true, ..Transfer::default() });
            sender.sent_whole();
            continue;
        }
        let rest = message.bytes.get(offset..).unwrap_or(&[]);
        let part = rest.get(..frame_max - TRANSFER_HEAD_BYTES).unwrap_or(rest);
        let more = part.len() < rest.len();
        let mark = if offset > 0 {
            encode_continuation(out, channel, handle, more)
        } else {
            delivery_id = session.next_delivery(index, number, !message.manner.settled);
            let tag = number.to_be_bytes();
            let txn_id = message.txn.as_deref().filter(|_| !is_control);
            write_first(out, channel, handle, delivery_id, &tag, message.manner, more, txn_id)
        };
        out.extend_from_slice(part);
        end_frame(out, mark);
        let next = offset + part.len();
        if more {
            (sender.offset, sender.delivery_id) = (next, delivery_id);
        } else {
            sender.sent_whole();
        }
    }
    if sender.draining && sender.is_idle() {
        sender.draining = false;
        sender.delivery_count = sender.delivery_count.wrapping_add(sender.credit);
        sender.credit = 0;
        return Some((0, sender.delivery_count));
    }
    None
}

/// Opens the first frame of a message, with the transaction it is part of.
#[allow(clippy::too_many_arguments)] // the fields of one performative
fn write_first(
    out: &mut Vec<u8>,
    channel: u16,
    handle: u32,
    delivery_id: u32,
    tag: &[u8],
    manner: Manner,
    more: bool,
    txn_id: Option<&[u8]>,
) -> usize {
    let Some(txn_id) = txn_id else {
        let Manner { settled, batchable } = manner;
        let head = TransferHead { handle, delivery_id, tag, message_format: 0, settled, more, batchable };
        return encode_transfer(out, channel, &head);
    };
    let mark = frame::begin_frame(out, FrameKind::Amqp, channel);
    let transfer = Transfer {
        handle,
        delivery_id: Some(delivery_id),
        delivery_tag: Some(tag),
        message_format: Some(0),
        settled: Some(manner.settled),
        more,
        state: Some(DeliveryState::Transactional(TransactionalState { txn_id, outcome: None })),
        ..Transfer::default()
    };
    weft_wire::amqp10::Composite::encode(&transfer, out);
    mark
}
