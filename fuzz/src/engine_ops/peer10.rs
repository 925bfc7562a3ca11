//! A 1.0 peer that does odd things and remembers what it is owed.
//!
//! Owns the client's side of one session: links, credit, deliveries. Choices come in, frames go out; what the node
//! says is checked against what may be said: credit, delivery ids, settlement. It must never assume that a link is
//! there before it hears so. Rules: AMQP 1.0 sections 2.5 to 2.7, 3.4.

use std::collections::BTreeMap;

use weft_engine::conn::ConnId;
use weft_sim::Node;
use weft_sim::client10::{Client10, parse};
use weft_wire::amqp10::frame::{self, FrameKind};
use weft_wire::amqp10::sections::{self, BodyKind};
use weft_wire::amqp10::*;

use super::ledger::Ledger;
use super::{QUEUES, body};
use crate::feature::{note, trace};
use crate::source::Source;

const WINDOW: u32 = u32::MAX >> 1;
/// Handles: the first two for links we send on, the others for links we receive on.
const HANDLES: u32 = 4;
const ADDRESSES: [&str; 4] = ["/exchanges/amq.fanout", "/exchanges/amq.topic/a.b", "/exchanges/x0/q0", "/queues/q1"];

#[derive(Default)]
struct Link {
    /// The queue we receive from.
    queue: String,
    attached: bool,
    /// The node closed it and waits for our detach.
    refused: bool,
    /// For sending: what we may still send.
    credit: u32,
    delivery_count: u32,
    /// For receiving: the count up to which we ever allowed deliveries; less may cross with what is under way.
    allowed: u32,
    /// A delivery whose last transfer has not come yet.
    partial: Option<(u32, bool, Vec<u8>)>,
    browse: bool,
}

/// One connection with one session.
pub struct Peer10 {
    pub conn: ConnId,
    unread: Vec<u8>,
    links: BTreeMap<u32, Link>,
    sent: u32,
    /// Delivery ids we hold, and the link each came by.
    held: BTreeMap<u32, u32>,
    heard: u32,
    /// The node ended the session.
    ended: bool,
}

impl Peer10 {
    pub fn open(node: &mut Node) -> Self {
        let conn = Client10::connect(node).conn;
        Self {
            conn,
            unread: Vec::new(),
            links: BTreeMap::new(),
            sent: 0,
            held: BTreeMap::new(),
            heard: 0,
            ended: false,
        }
    }

    pub fn message(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        let mut out = Vec::new();
        match source.below(4) {
            _ if self.ended => {}
            0 | 1 => self.send(source, ledger, &mut out),
            2 => self.grant(source, &mut out),
            _ => self.settle(source, ledger, &mut out),
        }
        out
    }

    pub fn change(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        let mut out = Vec::new();
        if self.ended {
            encode(&mut out, 0, &End::default());
            let begin = Begin { incoming_window: WINDOW, outgoing_window: WINDOW, ..Begin::default() };
            encode(&mut out, 0, &begin);
            (self.ended, self.sent, self.heard) = (false, 0, 0);
            return out;
        }
        let handle = source.below(HANDLES as usize) as u32;
        match self.links.get(&handle) {
            None => self.attach(handle, source, &mut out),
            Some(link) if link.refused || source.below(3) == 0 => {
                encode(&mut out, 0, &Detach { handle, closed: true, error: None });
                let refused = link.refused;
                self.forget(handle, ledger);
                if !refused {
                    // Until the node has answered, the handle is not free: another one is attached first.
                    self.links.insert(handle, Link { refused: false, ..Link::default() });
                }
            }
            Some(_) => self.grant(source, &mut out),
        }
        out
    }

    /// The deliveries of a link go back with it.
    fn forget(&mut self, handle: u32, ledger: &mut Ledger) {
        self.links.remove(&handle);
        let conn = self.conn;
        self.held.retain(|id, from| {
            if *from == handle {
                ledger.settle((conn, 0, u64::from(*id)), false);
            }
            *from != handle
        });
    }

    fn attach(&mut self, handle: u32, source: &mut Source<'_>, out: &mut Vec<u8>) {
        let queue = source.pick(&QUEUES);
        let name = format!("link{handle}");
        let mut attach = Attach { name: &name, handle, ..Attach::default() };
        let mut link = Link { queue: queue.to_owned(), ..Link::default() };
        if handle < 2 {
            let address = match source.below(4) {
                0 => None,
                1 => Some(source.pick(&ADDRESSES)),
                _ => Some(queue),
            };
            attach.role = Role::Sender;
            attach.initial_delivery_count = Some(0);
            attach.source = Some(weft_wire::amqp10::Source::default());
            attach.target = Some(AttachTarget::Target(Target { address, ..Target::default() }));
        } else {
            link.browse = source.below(6) == 0;
            attach.role = Role::Receiver;
            let distribution_mode = link.browse.then_some(DistributionMode::Copy);
            attach.source = Some(weft_wire::amqp10::Source {
                address: Some(queue),
                distribution_mode,
                ..weft_wire::amqp10::Source::default()
            });
            attach.target = Some(AttachTarget::Target(Target::default()));
            if source.flag() {
                attach.snd_settle_mode = SenderSettleMode::Settled;
            }
        }
        encode(out, 0, &attach);
        self.links.insert(handle, link);
    }

    fn send(&mut self, source: &mut Source<'_>, ledger: &mut Ledger, out: &mut Vec<u8>) {
        let handle = source.below(2) as u32;
        let Some(link) = self.links.get_mut(&handle).filter(|link| link.attached && link.credit > 0) else { return };
        link.credit -= 1;
        link.delivery_count += 1;
        ledger.messages += 1;
        let id = self.sent;
        self.sent = self.sent.wrapping_add(1);
        let mut message = Vec::new();
        let ttl = (source.below(4) == 0).then(|| source.odd_number() as u32);
        Header { priority: source.byte(), ttl, ..Header::default() }.encode(&mut message);
        let to = Some(source.pick(&QUEUES));
        Properties { to, subject: Some("q1"), ..Properties::default() }.encode(&mut message);
        sections::put_data(&mut message, &body(ledger.messages, source));
        let (settled, tag) = (Some(source.flag()), id.to_be_bytes());
        let pieces = message.chunks(2_000).count();
        for (number, piece) in message.chunks(2_000).enumerate() {
            let more = number + 1 < pieces;
            let transfer = Transfer {
                handle,
                delivery_id: Some(id),
                delivery_tag: Some(&tag),
                message_format: Some(0),
                settled,
                more,
                aborted: more && source.below(8) == 0,
                ..Transfer::default()
            };
            let mark = frame::begin_frame(out, FrameKind::Amqp, 0);
            transfer.encode(out);
            out.extend_from_slice(piece);
            frame::end_frame(out, mark);
            if transfer.aborted {
                break;
            }
        }
    }

    /// Gives a link credit, now and then with drain.
    fn grant(&mut self, source: &mut Source<'_>, out: &mut Vec<u8>) {
        let handle = 2 + source.below(2) as u32;
        let Some(link) = self.links.get_mut(&handle).filter(|link| link.attached) else { return };
        let credit = source.below(12) as u32;
        link.allowed = link.allowed.max(link.delivery_count + credit);
        let flow = Flow {
            next_incoming_id: Some(self.heard),
            incoming_window: WINDOW,
            next_outgoing_id: self.sent,
            outgoing_window: WINDOW,
            handle: Some(handle),
            delivery_count: Some(link.delivery_count),
            link_credit: Some(credit),
            drain: source.below(4) == 0,
            echo: source.below(4) == 0,
            ..Flow::default()
        };
        encode(out, 0, &flow);
    }

    fn settle(&mut self, source: &mut Source<'_>, ledger: &mut Ledger, out: &mut Vec<u8>) {
        let Some(first) = self.held.keys().nth(source.below(self.held.len())).copied() else { return };
        // A range must not reach what is still under way.
        let last = self.held.range(first..).nth(source.below(3)).map_or(first, |(id, _)| *id);
        let (delivery_failed, undeliverable_here) = (source.flag(), source.flag());
        let outcome = match source.below(5) {
            0 => Outcome::Released,
            1 => Outcome::Rejected(Rejected::default()),
            2 => Outcome::Modified(Modified { delivery_failed, undeliverable_here, message_annotations: None }),
            _ => Outcome::Accepted,
        };
        let for_good = !matches!(outcome, Outcome::Accepted | Outcome::Released);
        let state = Some(DeliveryState::Outcome(outcome));
        let (role, settled) = (Role::Receiver, true);
        encode(out, 0, &Disposition { role, first, last: Some(last), settled, state, batchable: false });
        for id in first..=last {
            if self.held.remove(&id).is_some() {
                ledger.settle((self.conn, 0, u64::from(id)), for_good);
            }
        }
    }

    pub fn hear(&mut self, bytes: &[u8], ledger: &mut Ledger) {
        self.unread.extend_from_slice(bytes);
        let (said, used) = parse(&self.unread);
        self.unread.drain(..used);
        for said in &said {
            let Some((performative, payload)) = said.performative() else { continue };
            note(("said", std::mem::discriminant(&performative)));
            trace(|| format!("  to {:?}: {performative:?}", self.conn));
            match performative {
                Performative::Attach(attach) => {
                    if let Some(link) = self.links.get_mut(&attach.handle).filter(|link| !link.queue.is_empty()) {
                        link.attached = true;
                        link.delivery_count = attach.initial_delivery_count.unwrap_or(0);
                    }
                }
                Performative::Flow(flow) => self.hear_flow(&flow),
                Performative::Transfer(transfer) => self.hear_transfer(&transfer, payload, ledger),
                Performative::Detach(detach) => self.hear_detach(&detach, ledger),
                Performative::End(End { error }) | Performative::Close(Close { error }) => {
                    note(("ended", error.map(|error| error.condition.0.to_owned())));
                    self.ended = true;
                    self.links.clear();
                    self.held.clear();
                    ledger.lost(self.conn);
                }
                _ => {}
            }
        }
    }

    fn hear_flow(&mut self, flow: &Flow<'_>) {
        let Some(link) = flow.handle.and_then(|handle| self.links.get_mut(&handle)) else { return };
        let count = flow.delivery_count.unwrap_or(link.delivery_count);
        if flow.handle < Some(2) {
            // What we sent meanwhile counts already.
            link.credit = flow.link_credit.unwrap_or(0).saturating_sub(link.delivery_count.wrapping_sub(count));
        } else {
            link.delivery_count = count;
        }
    }

    fn hear_detach(&mut self, detach: &Detach<'_>, ledger: &mut Ledger) {
        note(("detached", detach.error.map(|error| error.condition.0.to_owned())));
        match self.links.get_mut(&detach.handle) {
            // We asked for it.
            Some(link) if link.queue.is_empty() => drop(self.links.remove(&detach.handle)),
            Some(_) => {
                self.forget(detach.handle, ledger);
                self.links.insert(detach.handle, Link { refused: true, ..Link::default() });
            }
            None => {}
        }
    }

    fn hear_transfer(&mut self, transfer: &Transfer<'_>, payload: &[u8], ledger: &mut Ledger) {
        self.heard = self.heard.wrapping_add(1);
        let Some(link) = self.links.get_mut(&transfer.handle) else { panic!("a transfer on a link that is not there") };
        if link.queue.is_empty() {
            return;
        }
        let first = link.partial.is_none();
        let (id, settled, mut message) = link.partial.take().unwrap_or_else(|| {
            let id = transfer.delivery_id.expect("the first transfer has an id");
            (id, transfer.settled.unwrap_or(false), Vec::new())
        });
        if first {
            link.delivery_count += 1;
            assert!(link.delivery_count <= link.allowed, "a delivery without credit");
        }
        message.extend_from_slice(payload);
        if transfer.more {
            link.partial = Some((id, settled, message));
            return;
        }
        let (Some(queue), false) = (ledger.queue(&link.queue), link.browse) else { return };
        if !settled && !transfer.settled.unwrap_or(false) {
            self.held.insert(id, transfer.handle);
            ledger.hold((self.conn, 0, u64::from(id)), queue);
        }
        tell_new(&message, queue, ledger);
    }
}

/// Reports a message that is said to be new. Those with annotations may have died before, which is not looked into.
fn tell_new(message: &[u8], queue: weft_engine::queue::QueueId, ledger: &mut Ledger) {
    let found = sections::scan(message).expect("the node sends well-formed messages");
    let header = found.head.header.map(|span| Header::decode(span.of(message)).expect("a well-formed header"));
    let new = header.is_some_and(|header| header.first_acquirer);
    if let (true, None, BodyKind::Data(span)) = (new, found.head.message_annotations, found.kind) {
        ledger.delivered_new(queue, span.of(message), String::new());
    }
}
