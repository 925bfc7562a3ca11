//! Well-formed 0-9-1 bytes, made at random.
//!
//! Owns a generator for every layer: values, tables, methods with odd arguments, frames, whole conversations of a
//! client. Random numbers come in, bytes that decode go out; the driver damages them afterwards. It must never make
//! bytes that the codec refuses, since refusals are what damage is for. Rules: AMQP 0-9-1 section 4.2;
//! `schema/amqp-0-9-1`.

use weft_sim::Random;
use weft_sim::client::write_publish;
use weft_wire::amqp091::frame::{self, FRAME_BODY, FRAME_HEADER, FRAME_HEARTBEAT};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value};
use weft_wire::amqp091::{Method, PROTOCOL_HEADER};

/// What means something in 0-9-1.
pub const WORDS: &[&[u8]] = &[
    b"AMQP\0\0\x09\x01",
    b"\xCE",
    b"\x01\0\0\0\0\0\x04\0\x0a\0\x33\xCE",
    b"\x08\0\0\0\0\0\0\xCE",
    b"\0\x3c\0\x28",
    b"\0\x3c\0\x50",
    b"\0\x32\0\x0a",
    b"\0\x14\0\x28",
    b"\0\x3c\0\0\0\0\0\0\0\0\0\x05",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"x-death",
    b"x-delay",
    b"x-match",
    b"CC",
    b"BCC",
    b"x-max-length",
    b"x-dead-letter-exchange",
    b"amq.topic",
    b"amq.headers",
    b"amq.rabbitmq.reply-to",
    b"F\0\0\0\x08",
    b"A\0\0\0\x04",
];

const NAMES: [&[u8]; 8] = [b"", b"q", b"q2", b"amq.direct", b"amq.fanout", b"amq.topic", b"amq.headers", b"refused"];
const KEYS: [&[u8]; 8] = [b"", b"q", b"q2", b"a.b", b"#", b"*.b", b"a.#.b", b"a..b"];
const KINDS: [&[u8]; 6] = [b"direct", b"fanout", b"topic", b"headers", b"x-delayed-message", b"?"];
const ARGUMENTS: [&[u8]; 21] = [
    b"x-message-ttl",
    b"x-expires",
    b"x-max-length",
    b"x-max-length-bytes",
    b"x-overflow",
    b"x-dead-letter-exchange",
    b"x-dead-letter-routing-key",
    b"x-max-priority",
    b"x-single-active-consumer",
    b"x-delivery-limit",
    b"x-ack",
    b"alternate-exchange",
    b"x-match",
    b"x-priority",
    b"capabilities",
    b"x-queue-type",
    b"x-tap",
    b"x-stream-offset",
    b"x-stream-filter",
    b"x-stream-match-unfiltered",
    b"x-stream-consumer-name",
];

/// The content of a table.
pub fn table(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    TableWriter::write(&mut out, |table| fill(random, table, 0));
    out.split_off(4)
}

fn fill(random: &mut Random, table: &mut TableWriter<'_>, depth: usize) {
    for _ in 0..random.below(4) {
        let own = random.bytes(20);
        let key: &[u8] = if random.one_in(3) { &own } else { random.pick(&ARGUMENTS) };
        match random.below(8) {
            0 if depth < 5 => table.table(key, |inner| fill(random, inner, depth + 1)),
            1 => table.array(key, |array| {
                for _ in 0..random.below(4) {
                    let bytes = random.bytes(12);
                    array.value(plain(random, &bytes));
                }
            }),
            2 => table.str(key, random.pick(&NAMES)),
            3 => table.str(key, random.pick(&[&b"reject-publish"[..], b"reject-publish-dlx", b"drop-head", b"any"])),
            4 => table.i64(key, random.below(5) as i64),
            _ => {
                let bytes = random.bytes(12);
                table.value(key, plain(random, &bytes));
            }
        }
    }
}

fn plain<'a>(random: &mut Random, bytes: &'a [u8]) -> Value<'a> {
    let number = random.odd_number();
    match random.below(15) {
        0 => Value::Bool(number & 1 == 1),
        1 => Value::I8(number as i8),
        2 => Value::U8(number as u8),
        3 => Value::I16(number as i16),
        4 => Value::U16(number as u16),
        5 => Value::I32(number as i32),
        6 => Value::U32(number as u32),
        7 => Value::I64(number as i64),
        8 => Value::F32(f32::from_bits(number as u32)),
        9 => Value::F64(f64::from_bits(number)),
        10 => Value::Decimal { scale: number as u8, value: number as i32 },
        11 => Value::Bytes(bytes),
        12 => Value::Timestamp(number),
        13 => Value::Void,
        _ => Value::LongString(bytes),
    }
}

/// The payload of a method frame.
pub fn payload(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    with_method(random, |method| method.encode(&mut out));
    out
}

/// What a random method is made of.
struct Choice<'a> {
    arguments: Table<'a>,
    bytes: &'a [u8],
    queue: &'a [u8],
    other: &'a [u8],
    key: &'a [u8],
    kind: &'a [u8],
    bits: u8,
    rarely: bool,
    number: u64,
}

impl Choice<'_> {
    fn bit(&self, at: u8) -> bool {
        self.bits >> at & 1 == 1
    }
}

/// Calls `each` with a method that clients send, or now and then one that they do not.
pub fn with_method(random: &mut Random, each: impl FnOnce(&Method<'_>)) {
    let (raw, bytes) = (table(random), random.bytes(40));
    let choice = Choice {
        arguments: if random.one_in(2) { Table::EMPTY } else { Table::trusted(&raw) },
        bytes: &bytes,
        queue: random.pick(&NAMES),
        other: random.pick(&NAMES),
        key: random.pick(&KEYS),
        kind: random.pick(&KINDS),
        bits: random.byte(),
        rarely: random.one_in(8),
        number: random.odd_number(),
    };
    let method = match random.below(40) {
        which @ 0..10 => connection_method(which, &choice),
        which @ 10..23 => topology_method(which, &choice),
        which => basic_method(which, &choice),
    };
    each(&method);
}

fn connection_method<'a>(which: usize, choice: &Choice<'a>) -> Method<'a> {
    let (bytes, number) = (choice.bytes, choice.number);
    match which {
        0 => Method::ConnectionStartOk {
            client_properties: choice.arguments,
            mechanism: b"PLAIN",
            response: bytes,
            locale: b"",
        },
        1 => Method::ConnectionTuneOk { channel_max: number as u16, frame_max: 4_096, heartbeat: 0 },
        2 => Method::ConnectionOpen { virtual_host: if choice.rarely { bytes } else { b"/" } },
        3 => Method::ConnectionClose { reply_code: number as u16, reply_text: bytes, class_id: 0, method_id: 0 },
        4 if choice.rarely => Method::ConnectionCloseOk,
        5 => Method::ConnectionUpdateSecret { new_secret: bytes, reason: b"" },
        6 => Method::ChannelClose { reply_code: 200, reply_text: b"", class_id: 0, method_id: 0 },
        7 => Method::ChannelCloseOk,
        8 => Method::ChannelFlow { active: choice.bit(0) },
        _ => Method::ChannelOpen,
    }
}

fn topology_method<'a>(which: usize, choice: &Choice<'a>) -> Method<'a> {
    let Choice { arguments, queue, other, key: routing_key, rarely, .. } = *choice;
    let no_wait = choice.bit(0);
    match which {
        10 => Method::ExchangeDeclare {
            exchange: other,
            kind: choice.kind,
            passive: rarely,
            durable: choice.bit(1),
            auto_delete: choice.bit(2),
            internal: rarely,
            no_wait,
            arguments,
        },
        11 => Method::ExchangeDelete { exchange: other, if_unused: choice.bit(1), no_wait },
        12 => Method::ExchangeBind { destination: queue, source: other, routing_key, no_wait, arguments },
        13 => Method::ExchangeUnbind { destination: queue, source: other, routing_key, no_wait, arguments },
        14..=17 => Method::QueueDeclare {
            queue,
            passive: rarely,
            durable: choice.bit(1),
            exclusive: choice.bit(2) && rarely,
            auto_delete: choice.bit(3),
            no_wait,
            arguments,
        },
        18 | 19 => Method::QueueBind { queue, exchange: other, routing_key, no_wait, arguments },
        20 => Method::QueueUnbind { queue, exchange: other, routing_key, arguments },
        21 => Method::QueuePurge { queue, no_wait },
        _ => Method::QueueDelete { queue, if_unused: choice.bit(1), if_empty: choice.bit(2), no_wait },
    }
}

fn basic_method<'a>(which: usize, choice: &Choice<'a>) -> Method<'a> {
    let Choice { arguments, queue, other: exchange, key: routing_key, rarely, number: delivery_tag, .. } = *choice;
    let bit = |at| choice.bit(at);
    match which {
        23 => {
            let (prefetch_size, prefetch_count) = (u32::from(rarely), delivery_tag as u16);
            Method::BasicQos { prefetch_size, prefetch_count, global: bit(0) }
        }
        24 if rarely => {
            let (no_local, no_ack, exclusive, no_wait) = (bit(0), bit(1), bit(2), bit(3));
            Method::BasicConsume { queue, consumer_tag: routing_key, no_local, no_ack, exclusive, no_wait, arguments }
        }
        25 => Method::BasicCancel { consumer_tag: routing_key, no_wait: bit(0) },
        26 | 27 => Method::BasicPublish { exchange, routing_key, mandatory: bit(0), immediate: rarely },
        28..=30 => Method::BasicGet { queue, no_ack: bit(0) },
        31 => Method::BasicAck { delivery_tag, multiple: bit(0) },
        32 => Method::BasicReject { delivery_tag, requeue: bit(0) },
        33 => Method::BasicNack { delivery_tag, multiple: bit(0), requeue: bit(1) },
        34 => Method::BasicRecover { requeue: bit(0) },
        35 => Method::ConfirmSelect { no_wait: bit(0) },
        36 => Method::TxSelect,
        37 if bit(0) => Method::TxCommit,
        37 => Method::TxRollback,
        38 => {
            let (consumer_tag, redelivered) = (choice.bytes, bit(0));
            Method::BasicDeliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key }
        }
        _ => {
            let (redelivered, message_count) = (bit(0), delivery_tag as u32);
            Method::BasicGetOk { delivery_tag, redelivered, exchange, routing_key, message_count }
        }
    }
}

/// Frames of all kinds, methods and whole messages mostly.
pub fn frames(random: &mut Random) -> Vec<u8> {
    let mut out = if random.one_in(8) { PROTOCOL_HEADER.to_vec() } else { Vec::new() };
    for _ in 0..random.below(8) {
        write_frame(random, &mut out);
    }
    out
}

/// Appends something a client may say on one of two channels.
pub fn write_frame(random: &mut Random, out: &mut Vec<u8>) {
    let channel = if random.one_in(6) { random.below(3) as u16 } else { 1 };
    match random.below(10) {
        0 => out.extend_from_slice(&[FRAME_HEARTBEAT, 0, 0, 0, 0, 0, 0, frame::FRAME_END]),
        1 => {
            let kind = if random.one_in(2) { FRAME_HEADER } else { FRAME_BODY };
            let mark = frame::begin_frame(out, kind, channel);
            out.extend_from_slice(&random.bytes(40));
            frame::end_frame(out, mark);
        }
        2..=4 => write_message(random, channel, out),
        _ => with_method(random, |method| method.encode_frame(channel, out)),
    }
}

fn write_message(random: &mut Random, channel: u16, out: &mut Vec<u8>) {
    let (headers, body) = (table(random), random.bytes(200));
    let expiration = random.below(2_000).to_string();
    let properties = Properties {
        headers: random.one_in(3).then_some(Table::trusted(&headers)),
        delivery_mode: random.one_in(3).then_some(2),
        priority: random.one_in(3).then(|| random.byte()),
        expiration: random.one_in(4).then_some(expiration.as_bytes()),
        user_id: random.one_in(16).then_some(b"guest"),
        message_id: random.one_in(4).then_some(b"id"),
        reply_to: random.one_in(8).then_some(b"amq.rabbitmq.reply-to"),
        ..Properties::default()
    };
    let names = (random.pick(&NAMES), random.pick(&KEYS));
    write_publish(out, channel, names, random.one_in(3), &properties, &body);
}
