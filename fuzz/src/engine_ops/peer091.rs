//! A 0-9-1 peer that does odd things and remembers what it is owed.
//!
//! Owns the client's side of two channels: consumers, deliveries, transactions. Choices come in, frames go out; what
//! the node says is checked against what may be said: prefetch, tags, flags. It must never assume that a request was
//! granted before it hears so. Rules: AMQP 0-9-1 section 1.8; RabbitMQ's prefetch per consumer and per channel.

use std::collections::{BTreeMap, VecDeque};

use weft_engine::conn::ConnId;
use weft_engine::queue::QueueId;
use weft_sim::client::{Item, parse, table, write_publish};
use weft_sim::{Client, Node};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value};

use super::ledger::Ledger;
use super::{QUEUES, body, show};
use crate::feature::{note, trace};
use crate::source::Source;

const EXCHANGES: [&str; 7] = ["", "x0", "x1", "amq.direct", "amq.fanout", "amq.topic", "amq.headers"];
const KEYS: [&str; 7] = ["q0", "q1", "q2", "q3", "a.b", "a.#", "#"];

struct Consumer {
    /// None if it was gone already.
    queue: Option<QueueId>,
    no_ack: bool,
    prefetch: u16,
}

/// Who has closed a channel.
#[derive(Clone, Copy, Default, PartialEq)]
enum State {
    #[default]
    Open,
    /// The node has, and waits for our close-ok.
    Refused,
    /// We have, and wait for its close-ok.
    Closing,
}

#[derive(Default)]
struct Channel {
    state: State,
    consumers: BTreeMap<String, Consumer>,
    /// Tags we hold, and the consumer each came to; None for basic.get.
    held: BTreeMap<u64, Option<String>>,
    last_tag: u64,
    prefetch: u16,
    limit: u16,
    /// Requests that will be answered in order.
    asked_qos: VecDeque<(u16, bool)>,
    asked_consume: VecDeque<(String, bool)>,
    asked_get: VecDeque<(String, bool)>,
    /// Tags settled in the open transaction, and whether for good.
    transaction: Option<Vec<(u64, bool)>>,
}

/// One connection.
pub struct Peer091 {
    pub conn: ConnId,
    unread: Vec<u8>,
    channels: BTreeMap<u16, Channel>,
}

impl Peer091 {
    pub fn open(node: &mut Node) -> Self {
        let conn = Client::connect(node).conn;
        Self { conn, unread: Vec::new(), channels: BTreeMap::from([(1, Channel::default())]) }
    }

    /// A channel to speak on, opened or closed to the end where that comes first.
    fn choose_channel(&mut self, source: &mut Source<'_>, out: &mut Vec<u8>) -> Option<(u16, &mut Channel)> {
        let number = 1 + source.below(2) as u16;
        if self.channels.get(&number).is_some_and(|channel| channel.state == State::Refused) {
            Method::ChannelCloseOk.encode_frame(number, out);
            self.channels.remove(&number);
        }
        let channel = self.channels.entry(number).or_insert_with(|| {
            Method::ChannelOpen.encode_frame(number, out);
            Channel::default()
        });
        (channel.state == State::Open).then_some((number, channel))
    }

    pub fn message(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        let (mut out, conn) = (Vec::new(), self.conn);
        let Some((number, channel)) = self.choose_channel(source, &mut out) else { return out };
        match source.below(8) {
            0..=3 => publish(number, source, ledger, &mut out),
            4 => {
                let (queue, no_ack) = (source.pick(&QUEUES), source.flag());
                channel.asked_get.push_back((queue.to_owned(), no_ack));
                Method::BasicGet { queue: queue.as_bytes(), no_ack }.encode_frame(number, &mut out);
            }
            _ => channel.settle((conn, number), source, ledger, &mut out),
        }
        out
    }

    pub fn change(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        let (mut out, conn) = (Vec::new(), self.conn);
        let Some((number, channel)) = self.choose_channel(source, &mut out) else { return out };
        match source.below(16) {
            0..=2 => declare_queue(number, source, &mut out),
            3 | 4 => bind(number, source, &mut out),
            5 | 6 => declare_exchange(number, source, &mut out),
            7 => {
                let (queue, exchange) = (source.pick(&QUEUES).as_bytes(), source.pick(&EXCHANGES).as_bytes());
                let method = match source.below(4) {
                    0 => Method::QueueDelete { queue, if_unused: false, if_empty: false, no_wait: false },
                    1 => Method::ExchangeDelete { exchange, if_unused: false, no_wait: false },
                    _ => {
                        ledger.purged(&show(queue));
                        Method::QueuePurge { queue, no_wait: false }
                    }
                };
                method.encode_frame(number, &mut out);
            }
            8..=10 => channel.consume(number, source, &mut out),
            11 => {
                let tag =
                    channel.consumers.keys().nth(source.below(channel.consumers.len())).cloned().unwrap_or_default();
                Method::BasicCancel { consumer_tag: tag.as_bytes(), no_wait: false }.encode_frame(number, &mut out);
            }
            12 => {
                let (prefetch_count, global) = (source.below(4) as u16, source.flag());
                channel.asked_qos.push_back((prefetch_count, global));
                Method::BasicQos { prefetch_size: 0, prefetch_count, global }.encode_frame(number, &mut out);
            }
            13 => channel.transact((conn, number), source, ledger, &mut out),
            14 => {
                let close = Method::ChannelClose { reply_code: 200, reply_text: b"", class_id: 0, method_id: 0 };
                close.encode_frame(number, &mut out);
                ledger.ended(conn, number);
                *channel = Channel { state: State::Closing, ..Channel::default() };
            }
            _ => match source.below(3) {
                0 => Method::ChannelFlow { active: source.flag() }.encode_frame(number, &mut out),
                1 => Method::ConfirmSelect { no_wait: false }.encode_frame(number, &mut out),
                _ => Method::BasicRecover { requeue: true }.encode_frame(number, &mut out),
            },
        }
        out
    }

    pub fn hear(&mut self, bytes: &[u8], ledger: &mut Ledger) {
        self.unread.extend_from_slice(bytes);
        let (items, used) = parse(&self.unread);
        self.unread.drain(..used);
        for item in &items {
            note(("said", item.method().ids()));
            trace(|| format!("  to {:?}.{}: {:?}", self.conn, item.channel, item.method()));
            if let Method::ConnectionClose { reply_code, .. } = item.method() {
                note(("closed", reply_code));
                self.channels.values_mut().for_each(|channel| channel.state = State::Closing);
                ledger.lost(self.conn);
            }
            let Some(channel) = self.channels.get_mut(&item.channel) else { continue };
            match (item.method(), channel.state) {
                (Method::ChannelClose { reply_code, .. }, State::Open) => {
                    note(("closed", reply_code));
                    ledger.ended(self.conn, item.channel);
                    *channel = Channel { state: State::Refused, ..Channel::default() };
                }
                (Method::ChannelCloseOk, State::Closing) => drop(self.channels.remove(&item.channel)),
                (_, State::Open) => channel.hear((self.conn, item.channel), item, ledger),
                _ => {}
            }
        }
    }
}

impl Channel {
    fn hear(&mut self, (conn, number): (ConnId, u16), item: &Item, ledger: &mut Ledger) {
        match item.method() {
            Method::BasicQosOk => match self.asked_qos.pop_front() {
                Some((count, true)) => self.limit = count,
                Some((count, false)) => self.prefetch = count,
                None => panic!("qos-ok without qos"),
            },
            Method::BasicConsumeOk { consumer_tag } => {
                let (queue, no_ack) = self.asked_consume.pop_front().expect("consume-ok without consume");
                // It may be gone by the time that its consumer hears of it, if that did not read for a while.
                let consumer = Consumer { queue: ledger.queue(&queue), no_ack, prefetch: self.prefetch };
                self.consumers.insert(show(consumer_tag), consumer);
            }
            Method::BasicCancelOk { consumer_tag } | Method::BasicCancel { consumer_tag, .. } => {
                self.consumers.remove(&show(consumer_tag));
            }
            Method::BasicRecoverOk => self.recovered((conn, number), ledger),
            Method::BasicGetEmpty => drop(self.asked_get.pop_front().expect("get-empty without get")),
            Method::BasicGetOk { delivery_tag, redelivered, .. } => {
                let (queue, no_ack) = self.asked_get.pop_front().expect("get-ok without get");
                let Some(queue) = ledger.queue(&queue) else { return self.follow(delivery_tag) };
                self.take((conn, number), delivery_tag, (queue, no_ack, None), ledger);
                tell_new(redelivered, queue, item, ledger);
            }
            Method::BasicDeliver { consumer_tag, delivery_tag, redelivered, .. } => {
                let tag = show(consumer_tag);
                let Some(consumer) = self.consumers.get(&tag) else {
                    panic!("a delivery to {tag}, which is not there")
                };
                let Some(queue) = consumer.queue else { return self.follow(delivery_tag) };
                let no_ack = consumer.no_ack;
                self.check_limits(&tag, consumer);
                self.take((conn, number), delivery_tag, (queue, no_ack, Some(tag)), ledger);
                tell_new(redelivered, queue, item, ledger);
            }
            _ => {}
        }
    }

    fn check_limits(&self, tag: &str, consumer: &Consumer) {
        if consumer.no_ack {
            return;
        }
        let own = self.held.values().filter(|to| to.as_deref() == Some(tag)).count();
        let all = self.held.values().filter(|to| to.is_some()).count();
        assert!(consumer.prefetch == 0 || own < usize::from(consumer.prefetch), "{own} held by {tag}");
        assert!(self.limit == 0 || all < usize::from(self.limit), "{all} held by the channel");
    }

    fn follow(&mut self, tag: u64) {
        assert_eq!(tag, self.last_tag + 1, "tags rise by one");
        self.last_tag = tag;
    }

    fn take(
        &mut self,
        (conn, number): (ConnId, u16),
        tag: u64,
        (queue, no_ack, consumer): (QueueId, bool, Option<String>),
        ledger: &mut Ledger,
    ) {
        self.follow(tag);
        if !no_ack {
            self.held.insert(tag, consumer);
            ledger.hold((conn, number, tag), queue);
        }
    }

    /// Settles something it holds, mostly.
    fn settle(
        &mut self,
        (conn, number): (ConnId, u16),
        source: &mut Source<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<u8>,
    ) {
        let open = self.transaction.as_ref();
        let free: Vec<u64> = self
            .held
            .keys()
            .filter(|tag| open.is_none_or(|tags| tags.iter().all(|settled| settled.0 != **tag)))
            .copied()
            .collect();
        let chosen = free.get(source.below(free.len())).copied();
        let Some(tag) = chosen.filter(|_| source.below(16) > 0) else {
            if chosen.is_some() {
                // A tag far above any that was given out, or is under way.
                let delivery_tag = (1 << 32) + source.odd_number() / 2;
                Method::BasicAck { delivery_tag, multiple: source.flag() }.encode_frame(number, out);
            }
            return;
        };
        let (multiple, requeue) = (source.below(3) == 0, source.flag());
        let method = match source.below(4) {
            0 | 1 => Method::BasicAck { delivery_tag: tag, multiple },
            2 => Method::BasicNack { delivery_tag: tag, multiple, requeue },
            _ if !multiple => Method::BasicReject { delivery_tag: tag, requeue },
            _ => Method::BasicAck { delivery_tag: 0, multiple },
        };
        method.encode_frame(number, out);
        let last = if matches!(method, Method::BasicAck { delivery_tag: 0, .. }) { u64::MAX } else { tag };
        let for_good = !requeue && !matches!(method, Method::BasicAck { .. });
        let tags = free.into_iter().filter(|free| if multiple { *free <= last } else { *free == tag });
        match &mut self.transaction {
            Some(open) => open.extend(tags.map(|tag| (tag, for_good))),
            None => tags.for_each(|tag| {
                self.held.remove(&tag);
                ledger.settle((conn, number, tag), for_good);
            }),
        }
    }

    fn transact(
        &mut self,
        (conn, number): (ConnId, u16),
        source: &mut Source<'_>,
        ledger: &mut Ledger,
        out: &mut Vec<u8>,
    ) {
        match (source.below(3), &mut self.transaction) {
            (0, Some(open)) => {
                Method::TxRollback.encode_frame(number, out);
                open.clear();
            }
            (_, Some(open)) => {
                Method::TxCommit.encode_frame(number, out);
                for (tag, for_good) in std::mem::take(open) {
                    self.held.remove(&tag);
                    ledger.settle((conn, number, tag), for_good);
                }
            }
            (_, None) => {
                Method::TxSelect.encode_frame(number, out);
                self.transaction = Some(Vec::new());
            }
        }
    }

    /// Everything was given back, but for what an open transaction has settled.
    fn recovered(&mut self, (conn, number): (ConnId, u16), ledger: &mut Ledger) {
        let kept = self.transaction.clone().unwrap_or_default();
        self.held.retain(|tag, _| {
            let keep = kept.iter().any(|settled| settled.0 == *tag);
            if !keep {
                ledger.settle((conn, number, *tag), false);
            }
            keep
        });
    }

    fn consume(&mut self, number: u16, source: &mut Source<'_>, out: &mut Vec<u8>) {
        let (queue, no_ack) = (source.pick(&QUEUES), source.flag());
        let arguments = table(|table| table.i64(b"x-priority", source.below(3) as i64));
        self.asked_consume.push_back((queue.to_owned(), no_ack));
        let consume = Method::BasicConsume {
            queue: queue.as_bytes(),
            consumer_tag: b"",
            no_local: source.below(8) == 0,
            no_ack,
            exclusive: source.below(8) == 0,
            no_wait: false,
            arguments: Table::trusted(&arguments),
        };
        consume.encode_frame(number, out);
    }
}

/// Reports a message that is said to be new. Those that died before are told apart by how they died.
fn tell_new(redelivered: bool, queue: QueueId, item: &Item, ledger: &mut Ledger) {
    if redelivered {
        return;
    }
    let mut deaths = String::new();
    if let Some(Value::Array(rows)) = item.properties().headers.and_then(|headers| headers.get(b"x-death")) {
        for row in rows.iter() {
            let Value::Table(row) = row else { continue };
            deaths += &format!("{:?} {:?} {:?};", row.get(b"queue"), row.get(b"reason"), row.get(b"count"));
        }
    }
    ledger.delivered_new(queue, &item.body, deaths);
}

fn publish(number: u16, source: &mut Source<'_>, ledger: &mut Ledger, out: &mut Vec<u8>) {
    ledger.messages += 1;
    let headers = table(|table| match source.below(6) {
        0 => table.array(b"CC", |keys| keys.str(source.pick(&KEYS).as_bytes())),
        1 => table.array(b"BCC", |keys| keys.str(source.pick(&KEYS).as_bytes())),
        2 => table.i64(b"x-delay", source.odd_number() as i64),
        3 => table.str(b"h", b"v"),
        _ => {}
    });
    let expiration = source.odd_number().to_string();
    let properties = Properties {
        headers: (!headers.is_empty()).then_some(Table::trusted(&headers)),
        priority: source.flag().then(|| source.byte()),
        expiration: (source.below(4) == 0).then_some(expiration.as_bytes()),
        ..Properties::default()
    };
    let names = (source.pick(&EXCHANGES).as_bytes(), source.pick(&KEYS).as_bytes());
    let body = body(ledger.messages, source);
    write_publish(out, number, names, source.flag(), &properties, &body);
}

fn declare_queue(number: u16, source: &mut Source<'_>, out: &mut Vec<u8>) {
    let arguments = table(|table| {
        for _ in 0..source.below(4) {
            queue_argument(source, table);
        }
    });
    let declare = Method::QueueDeclare {
        queue: source.pick(&QUEUES).as_bytes(),
        passive: false,
        durable: false,
        exclusive: source.below(12) == 0,
        auto_delete: source.below(6) == 0,
        no_wait: source.flag(),
        arguments: Table::trusted(&arguments),
    };
    declare.encode_frame(number, out);
}

fn queue_argument(source: &mut Source<'_>, table: &mut TableWriter<'_>) {
    let small = source.below(5) as i64;
    match source.below(9) {
        0 => table.i64(b"x-message-ttl", source.odd_number().min(i64::MAX as u64) as i64),
        1 => table.i64(b"x-expires", 1 + small * 1_000),
        2 => table.i64(b"x-max-length", small),
        3 => table.i64(b"x-max-length-bytes", small * 100),
        4 => table.str(b"x-overflow", source.pick(&[&b"reject-publish"[..], b"reject-publish-dlx"])),
        5 => {
            table.str(b"x-dead-letter-exchange", source.pick(&EXCHANGES).as_bytes());
            if source.flag() {
                table.str(b"x-dead-letter-routing-key", source.pick(&KEYS).as_bytes());
            }
        }
        6 => table.i64(b"x-max-priority", small),
        7 => table.bool(b"x-single-active-consumer", true),
        _ => table.i64(b"x-delivery-limit", small),
    }
}

fn declare_exchange(number: u16, source: &mut Source<'_>, out: &mut Vec<u8>) {
    let kind = source.pick(&["direct", "fanout", "topic", "headers", "x-delayed-message"]);
    let arguments = table(|table| {
        if kind == "x-delayed-message" {
            table.str(b"x-delayed-type", source.pick(&["direct", "fanout", "topic"]).as_bytes());
        }
        if source.flag() {
            table.str(b"alternate-exchange", source.pick(&EXCHANGES).as_bytes());
        }
    });
    let declare = Method::ExchangeDeclare {
        exchange: source.pick(&["x0", "x1"]).as_bytes(),
        kind: kind.as_bytes(),
        passive: false,
        durable: false,
        auto_delete: false,
        internal: source.below(8) == 0,
        no_wait: false,
        arguments: Table::trusted(&arguments),
    };
    declare.encode_frame(number, out);
}

fn bind(number: u16, source: &mut Source<'_>, out: &mut Vec<u8>) {
    let arguments = table(|table| {
        if source.below(4) == 0 {
            table.str(b"h", b"v");
        }
    });
    let arguments = Table::trusted(&arguments);
    let (queue, exchange) = (source.pick(&QUEUES).as_bytes(), source.pick(&EXCHANGES).as_bytes());
    let (other, routing_key) = (source.pick(&EXCHANGES).as_bytes(), source.pick(&KEYS).as_bytes());
    let method = match source.below(6) {
        0 => Method::QueueUnbind { queue, exchange, routing_key, arguments },
        1 => Method::ExchangeBind { destination: other, source: exchange, routing_key, no_wait: false, arguments },
        2 => Method::ExchangeUnbind { destination: other, source: exchange, routing_key, no_wait: false, arguments },
        _ => Method::QueueBind { queue, exchange, routing_key, no_wait: false, arguments },
    };
    method.encode_frame(number, out);
}
