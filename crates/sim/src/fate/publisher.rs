//! Publishers of both protocols that wait for confirms and send again what was not confirmed.
//!
//! Owns what one publisher has sent on its connection and what of it is answered. Bytes go out into a buffer that the
//! world carries to the node, now or later or never; bytes come back the same way. It must never skip a letter: order
//! is judged too. Rules: confirms of 0-9-1, dispositions and credit of 1.0.

use std::collections::VecDeque;

use weft_wire::amqp10::frame::{self, FrameKind};
use weft_wire::amqp10::{
    Attach, AttachTarget, Composite, DeliveryState, Header, MessageId, Performative, Properties as Properties10, Role,
    Source, Target, Transfer, encode, sections,
};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;

use super::ledger::{Ledger, Letter};
use super::wire::Wire;
use crate::{Random, client, client10};

/// Letters that a publisher has in flight at most.
const WINDOW: usize = 12;
/// One letter in so many is sent twice for no reason.
const AGAIN: usize = 6;

/// One publisher, for as long as the world lasts.
pub struct Publisher {
    pub wire: Wire,
    name: u8,
    /// 0-9-1: exchange and key. 1.0: an address and nothing.
    to: (&'static str, &'static str),
    modern: bool,
    /// The queues its letters reach.
    pub queues: &'static [&'static str],
    made: u32,
    /// Not confirmed, in order; so many of them were sent on this connection.
    waiting: VecDeque<Letter>,
    sent: usize,
    /// Sent on this connection and not answered, by number.
    flying: VecDeque<(u64, Letter)>,
    next: u64,
    /// 1.0: deliveries that the node has said it takes, counted from the first.
    credit: u64,
}

impl Publisher {
    pub fn new(name: u8, modern: bool, to: (&'static str, &'static str), queues: &'static [&'static str]) -> Self {
        let (waiting, flying) = (VecDeque::new(), VecDeque::new());
        let (wire, made, sent, next, credit) = (Wire::default(), 0, 0, 0, 0);
        Self { wire, name, to, modern, queues, made, waiting, sent, flying, next, credit }
    }

    /// Says what a new connection has to say first.
    pub fn open(&mut self) {
        (self.sent, self.credit) = (0, 0);
        self.flying.clear();
        let out = &mut self.wire.out;
        if self.modern {
            self.next = 0;
            out.extend(client10::opening());
            let target = Some(AttachTarget::Target(Target { address: Some(self.to.0), ..Target::default() }));
            let (source, initial_delivery_count) = (Some(Source::default()), Some(0));
            let attach = Attach { name: "letters", role: Role::Sender, source, target, ..Attach::default() };
            encode(out, 0, &Attach { initial_delivery_count, ..attach });
        } else {
            self.next = 1;
            self.credit = u64::MAX;
            out.extend(client::opening(0, |_| ()));
            Method::ChannelOpen.encode_frame(1, out);
            Method::ConfirmSelect { no_wait: false }.encode_frame(1, out);
        }
    }

    /// Is everything confirmed that was ever made?
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends the next letter: one that is still to be sent again, or a new one unless the world is `ending`.
    pub fn act(&mut self, random: &mut Random, ledger: &mut Ledger, ending: bool) {
        if self.wire.conn.is_none() || self.flying.len() >= WINDOW || self.next >= self.credit {
            return;
        }
        if self.sent == self.waiting.len() {
            if ending {
                return;
            }
            self.made += 1;
            self.waiting.push_back(Letter { publisher: self.name, number: self.made });
        }
        let Some(letter) = self.waiting.get(self.sent).copied() else { return };
        self.sent += 1;
        ledger.sent(self.queues, letter);
        for _ in 0..1 + usize::from(random.one_in(AGAIN) && self.next + 1 < self.credit) {
            self.flying.push_back((self.next, letter));
            self.write(letter);
            self.next += 1;
        }
    }

    fn write(&mut self, letter: Letter) {
        let (text, out) = (letter.text(), &mut self.wire.out);
        if !self.modern {
            let properties =
                Properties { delivery_mode: Some(2), message_id: Some(text.as_bytes()), ..Properties::default() };
            let to = (self.to.0.as_bytes(), self.to.1.as_bytes());
            return client::write_publish(out, 1, to, false, &properties, text.as_bytes());
        }
        let (id, tag) = (self.next as u32, self.next.to_be_bytes());
        let (delivery_id, delivery_tag) = (Some(id), Some(&tag[..]));
        let transfer = Transfer { delivery_id, delivery_tag, message_format: Some(0), ..Transfer::default() };
        let mark = frame::begin_frame(out, FrameKind::Amqp, 0);
        transfer.encode(out);
        Header { durable: true, ..Header::default() }.encode(out);
        Properties10 { message_id: Some(MessageId::String(&text)), ..Properties10::default() }.encode(out);
        sections::put_data(out, text.as_bytes());
        frame::end_frame(out, mark);
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
                Method::BasicAck { delivery_tag, multiple } => {
                    self.answered(if multiple { 0 } else { delivery_tag }, delivery_tag, ledger);
                }
                Method::BasicNack { .. } | Method::ConnectionClose { .. } | Method::ChannelClose { .. } => {
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
                Some((Performative::Flow(flow), _)) if flow.handle.is_some() => {
                    self.credit =
                        u64::from(flow.delivery_count.unwrap_or(0)) + u64::from(flow.link_credit.unwrap_or(0));
                }
                Some((Performative::Disposition(told), _)) => {
                    if !matches!(told.state, Some(DeliveryState::ACCEPTED)) {
                        return false;
                    }
                    self.answered(u64::from(told.first), u64::from(told.last.unwrap_or(told.first)), ledger);
                }
                Some((Performative::Detach(_) | Performative::End(_) | Performative::Close(_), _)) => return false,
                _ => {}
            }
        }
        true
    }

    /// The node answers for what was sent under these numbers.
    fn answered(&mut self, first: u64, last: u64, ledger: &mut Ledger) {
        let (waiting, sent, queues) = (&mut self.waiting, &mut self.sent, self.queues);
        self.flying.retain(|(number, letter)| {
            let safe = (first..=last).contains(number);
            if let Some(at) = waiting.iter().position(|other| safe && other == letter) {
                ledger.confirmed(queues, *letter);
                waiting.remove(at);
                *sent -= 1;
            }
            !safe
        });
    }
}
