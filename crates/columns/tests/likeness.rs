//! Rows that are taken for like the one before hold exactly what they would hold if each were taken apart.
//!
//! Two builders get the same messages: one as the journal keeps them, which may see that heads are alike, one as rows,
//! which never does. Messages come in runs whose ids, times and bodies change, of both protocols, some of them bent at
//! random. Rule: docs/decisions/0065-a-row-like-the-one-before.md.

use arrow_array::Array;
use weft_columns::{Builder, Column, Constants, Row};
use weft_journal::{Envelope, Random, Stored, StoredDeath};
use weft_wire::amqp10::{Composite, MapBuf, MessageId, Properties, Value, descriptor, sections};
use weft_wire::amqp091::properties::Properties as Properties091;
use weft_wire::amqp091::table::{Table, TableWriter, Value as Value091};

const TENANTS: [&str; 3] = ["x", "y", "a longer name"];

fn id(random: &mut Random) -> String {
    match random.below(8) {
        0 => format!("id-{}", random.below(100_000)),
        1 => String::new(),
        _ => format!("id-{:05}", random.below(100_000)),
    }
}

/// A message's own head in the format of 1.0; what changes seldom is a choice of few.
fn new_head(random: &mut Random, kind: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut map = MapBuf::new();
    if kind & 1 == 1 {
        map.put(Value::Symbol("x-tier"), Value::String("edge"));
        sections::put_map(&mut out, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
    }
    let (message, correlation) = (id(random), id(random));
    let message_id = match random.below(20) {
        0 => None,
        1 => Some(MessageId::Ulong(random.below(1_000))),
        _ => Some(MessageId::String(&message)),
    };
    let correlation_id = (kind & 2 == 2).then_some(MessageId::String(&correlation));
    Properties { message_id, correlation_id, ..Properties::default() }.encode(&mut out);
    let mut headers = MapBuf::new();
    headers.put(Value::String("tenant"), Value::String(TENANTS[kind as usize % 3]));
    sections::put_map(&mut out, descriptor::APPLICATION_PROPERTIES, headers.as_map());
    out
}

fn old_head(random: &mut Random, kind: u64) -> Vec<u8> {
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        table.value(b"tenant", Value091::LongString(TENANTS[kind as usize % 3].as_bytes()));
        if kind & 4 == 4 {
            table.array(b"x-weft-trace", |array| {
                array.value(Value091::LongString(b"one"));
                array.value(Value091::LongString(b"two"));
            });
        }
    });
    let (message, correlation) = (id(random), id(random));
    let mut out = Vec::new();
    Properties091 {
        headers: (kind & 1 == 1).then(|| Table::trusted(&headers[4..])),
        message_id: Some(message.as_bytes()),
        correlation_id: (kind & 2 == 2).then_some(correlation.as_bytes()),
        timestamp: (kind & 4 == 4).then_some(7),
        ..Properties091::default()
    }
    .encode(&mut out);
    out
}

fn head(random: &mut Random, kind: u64) -> Vec<u8> {
    let is_amqp10 = kind & 8 == 8;
    let own = if is_amqp10 { new_head(random, kind) } else { old_head(random, kind) };
    let death = StoredDeath {
        queue: b"q",
        reason: b"expired",
        count: 1,
        time_s: 2,
        exchange: b"",
        routing_keys: vec![b"key"],
        expiration_ms: None,
    };
    let mut out = Vec::new();
    Envelope {
        is_amqp10,
        durable: kind & 1 == 1,
        priority: kind as u8 % 3,
        ttl_ms: (kind & 2 == 2).then_some(500),
        delivery_count: u32::from(kind == 5),
        arrived_us: random.below(1 << 40),
        serial: random.next_u64(),
        exchange: b"exchange",
        routing_key: TENANTS[kind as usize % 3].as_bytes(),
        own: &own,
        ..Envelope::default()
    }
    .encode((kind == 3).then_some(death).into_iter(), &mut out);
    out
}

fn body(random: &mut Random, is_amqp10: bool) -> Vec<u8> {
    let plain: Vec<u8> = (0..random.below(20)).map(|_| random.below(256) as u8).collect();
    let mut out = Vec::new();
    if is_amqp10 {
        sections::put_data(&mut out, &plain);
    } else {
        out = plain;
    }
    out
}

/// Both builders over the same messages give the same batches.
fn compare(seed: u64, columns: &[Column], bent: u64) {
    let mut random = Random::new(seed);
    let constants = Constants { stream: "s".to_owned(), shard: 1, origin: "n".to_owned() };
    let mut by_likeness = Builder::new(columns, constants.clone());
    let mut one_by_one = Builder::new(columns, constants);
    let mut position = 0;
    for _ in 0..60 {
        for _ in 0..random.below(8) {
            let kind = random.below(16);
            for _ in 0..random.below(12) {
                let mut head = head(&mut random, kind);
                let body = body(&mut random, kind & 8 == 8);
                if random.below(100) < bent {
                    // Behind version and flags, which say how the rest is to be read.
                    let at = 2 + random.below(head.len() as u64 - 2) as usize;
                    head[at] = random.below(256) as u8;
                }
                let stored = Stored { position, expires_ms: 0, transient: false, head: &head, body: &body };
                position += 1;
                let taken = Row::stored(&stored).map(|row| one_by_one.push(&row)).is_some();
                assert_eq!(by_likeness.push_stored(&stored), taken, "offset {position}, seed {seed}");
                assert_eq!((by_likeness.rows(), by_likeness.bytes()), (one_by_one.rows(), one_by_one.bytes()));
            }
        }
        let (one, other) = (by_likeness.finish().expect("a batch"), one_by_one.finish().expect("a batch"));
        assert_eq!(one, other, "up to {position}, seed {seed}");
    }
}

#[test]
fn rows_are_those_that_each_message_alone_gives() {
    for seed in 0..8 {
        compare(seed, Column::ALL, 0);
        compare(seed, Column::ALL, 20);
    }
}

#[test]
fn whatever_columns_are_asked_for() {
    let mut random = Random::new(1);
    for seed in 0..30 {
        let columns: Vec<Column> = Column::ALL.iter().copied().filter(|_| random.below(4) == 0).collect();
        compare(seed, &columns, 10);
    }
}

#[test]
fn a_head_that_only_begins_like_the_one_before_is_another() {
    let mut short = Vec::new();
    Properties { message_id: Some(MessageId::String("id")), ..Properties::default() }.encode(&mut short);
    let mut long = short.clone();
    let mut headers = MapBuf::new();
    headers.put(Value::String("tenant"), Value::String("x"));
    sections::put_map(&mut long, descriptor::APPLICATION_PROPERTIES, headers.as_map());
    let mut builder = Builder::new(&[Column::Headers], Constants::default());
    for own in [&short, &short, &long] {
        let mut head = Vec::new();
        Envelope { is_amqp10: true, own, ..Envelope::default() }.encode(std::iter::empty(), &mut head);
        let stored = Stored { position: 0, expires_ms: 0, transient: false, head: &head, body: b"" };
        assert!(builder.push_stored(&stored));
    }
    let batch = builder.finish().expect("a batch");
    assert_eq!((0..3).map(|row| batch.column(0).is_null(row)).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn what_rows_take_is_counted() {
    let constants = Constants { stream: "stream".to_owned(), shard: 0, origin: "node".to_owned() };
    let row = Row { exchange: b"ex", routing_key: b"key", head: b"\0\0", body: b"body", ..Row::default() };
    for (columns, each) in [
        (&[Column::Offset][..], 2 + 3),
        (&[Column::Body], 2 + 3 + 4),
        (&[Column::Headers], 2 + 3 + 2),
        (&[Column::Stream, Column::Offset], 2 + 3 + 6),
        (&[Column::Origin], 2 + 3 + 2 + 4),
    ] {
        let mut builder = Builder::new(columns, constants.clone());
        builder.push(&row);
        builder.push(&row);
        assert_eq!((builder.rows(), builder.bytes()), (2, 2 * each), "{columns:?}");
    }
}
