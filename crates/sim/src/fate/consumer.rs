//! Consumers of both protocols that acknowledge, sooner or later.
//!
//! Owns what one consumer holds and has not settled. What arrives goes into the ledger at once; settlements go out when
//! the world lets it act. It must never acknowledge what it did not get. Rules: basic.ack of 0-9-1, dispositions and
//! credit of 1.0.

use weft_wire::amqp10::{
    Attach, AttachTarget, DeliveryState, Disposition, Flow, Performative, Role, Source, Target, encode, sections,
};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::table::Table;

use super::ledger::{Ledger, Letter};
use super::wire::Wire;
use crate::{Random, client, client10};

/// Deliveries that a consumer holds at most.
const PREFETCH: u32 = 10;

/// One consumer of one queue.
pub struct Consumer {
    pub wire: Wire,
    queue: &'static str,
    modern: bool,
    /// Delivered and not acknowledged: tags, or delivery ids.
    held: Vec<u64>,
    received: u32,
}

impl Consumer {
    pub fn new(queue: &'static str, modern: bool) -> Self {
        Self { wire: Wire::default(), queue, modern, held: Vec::new(), received: 0 }
    }

    /// Says what a new connection has to say first.
    pub fn open(&mut self) {
        self.held.clear();
        self.received = 0;
        let out = &mut self.wire.out;
        if self.modern {
            out.extend(client10::opening());
            let source = Some(Source { address: Some(self.queue), ..Source::default() });
            let target = Some(AttachTarget::Target(Target::default()));
            encode(out, 0, &Attach { name: "letters", role: Role::Receiver, source, target, ..Attach::default() });
            self.give_credit();
        } else {
            out.extend(client::opening(0, |_| ()));
            Method::ChannelOpen.encode_frame(1, out);
            let prefetch_count = PREFETCH as u16;
            Method::BasicQos { prefetch_size: 0, prefetch_count, global: false }.encode_frame(1, out);
            let consume = Method::BasicConsume {
                queue: self.queue.as_bytes(),
                consumer_tag: b"letters",
                no_local: false,
                no_ack: false,
                exclusive: false,
                no_wait: false,
                arguments: Table::EMPTY,
            };
            consume.encode_frame(1, out);
        }
    }

    fn give_credit(&mut self) {
        let flow = Flow {
            next_incoming_id: Some(self.received),
            incoming_window: u32::MAX >> 1,
            outgoing_window: u32::MAX >> 1,
            handle: Some(0),
            delivery_count: Some(self.received),
            link_credit: Some(PREFETCH),
            ..Flow::default()
        };
        encode(&mut self.wire.out, 0, &flow);
    }

    /// Acknowledges one of what it holds, or all; `ending` leaves nothing behind.
    pub fn act(&mut self, random: &mut Random, ending: bool) {
        if self.held.is_empty() || self.wire.conn.is_none() {
            return;
        }
        let all = ending || random.one_in(4);
        let at = if all { self.held.len() - 1 } else { random.below(self.held.len()) };
        let tags: Vec<u64> = if all { self.held.drain(..).collect() } else { vec![self.held.remove(at)] };
        for tag in tags {
            let out = &mut self.wire.out;
            if self.modern {
                let state = Some(DeliveryState::ACCEPTED);
                let (role, first, settled) = (Role::Receiver, tag as u32, true);
                encode(out, 0, &Disposition { role, first, last: None, settled, state, batchable: false });
            } else {
                Method::BasicAck { delivery_tag: tag, multiple: false }.encode_frame(1, out);
            }
        }
        if self.modern {
            self.give_credit();
        }
    }

    /// Reads what has arrived; false if the node said something that ends the connection.
    pub fn read(&mut self, ledger: &mut Ledger) -> bool {
        if self.modern { self.read10(ledger) } else { self.read091(ledger) }
    }

    fn read091(&mut self, ledger: &mut Ledger) -> bool {
        let (items, used) = client::parse(&self.wire.unread);
        self.wire.unread.drain(..used);
        for item in items {
            match item.method() {
                Method::BasicDeliver { delivery_tag, redelivered, .. } => {
                    self.held.push(delivery_tag);
                    if let Some(letter) = Letter::parse(&item.body) {
                        ledger.arrived(self.queue, letter, redelivered);
                    }
                }
                Method::ConnectionClose { .. } | Method::ChannelClose { .. } | Method::BasicCancel { .. } => {
                    return false;
                }
                _ => {}
            }
        }
        true
    }

    fn read10(&mut self, ledger: &mut Ledger) -> bool {
        let (said, used) = client10::parse(&self.wire.unread);
        self.wire.unread.drain(..used);
        for said in &said {
            match said.performative() {
                Some((Performative::Transfer(transfer), payload)) => {
                    self.received += 1;
                    self.held.extend(transfer.delivery_id.map(u64::from));
                    if let Some(letter) = Letter::parse(payload) {
                        ledger.arrived(self.queue, letter, is_redelivered(payload));
                    }
                }
                Some((Performative::Detach(_) | Performative::End(_) | Performative::Close(_), _)) => return false,
                _ => {}
            }
        }
        true
    }
}

/// Does the header of a message say that it may have been delivered before?
fn is_redelivered(payload: &[u8]) -> bool {
    use weft_wire::amqp10::{Composite, Header};
    let head = sections::scan(payload).ok().and_then(|scanned| scanned.head.header);
    let header = head.and_then(|span| Header::decode(span.of(payload)).ok()).unwrap_or_default();
    !header.first_acquirer || header.delivery_count > 0
}
