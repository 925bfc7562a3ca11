//! Whatever bytes a message is made of, its columns are made: never a panic, never a row too few.
//!
//! Good heads and bodies of both protocols are bent at random and pushed through every column. Rule: outside bytes
//! never end in a panic (CONTRIBUTING.md).

use weft_columns::{Builder, Column, Constants, Row};
use weft_journal::Random;
use weft_wire::amqp10::{Composite, Compound, Header, MapBuf, MessageId, Properties, Value, descriptor, sections};
use weft_wire::amqp091::properties::Properties as Properties091;
use weft_wire::amqp091::table::{Table, TableWriter, Value as Value091};

fn old_head() -> Vec<u8> {
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        table.value(b"text", Value091::LongString("grüße".as_bytes()));
        table.value(b"time", Value091::Timestamp(u64::MAX));
        table.value(b"price", Value091::Decimal { scale: 200, value: i32::MIN });
        table.array(b"x-weft-trace", |array| array.value(Value091::LongString(b"node")));
        table.table(b"deep", |table| table.value(b"bytes", Value091::Bytes(b"\xff")));
    });
    let mut head = Vec::new();
    Properties091 {
        headers: Some(Table::trusted(&headers[4..])),
        message_id: Some(b"id"),
        timestamp: Some(u64::MAX),
        user_id: Some(b"\xff\xfe"),
        ..Properties091::default()
    }
    .encode(&mut head);
    head
}

fn new_head() -> Vec<u8> {
    let mut out = Vec::new();
    Header { durable: true, ..Header::default() }.encode(&mut out);
    let mut map = MapBuf::new();
    map.put(Value::Symbol("x-opt-weft-id"), Value::String("n:1"));
    map.put_with(Value::Symbol("x-opt-weft-trace"), |out| {
        let mut list = Compound::list(out);
        list.value(&Value::String("node"));
        list.finish();
    });
    map.put(Value::Symbol("x-time"), Value::Timestamp(i64::MIN));
    sections::put_map(&mut out, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
    let properties = Properties { message_id: Some(MessageId::Binary(b"\x00\xff")), ..Properties::default() };
    properties.encode(&mut out);
    sections::put_map(&mut out, descriptor::APPLICATION_PROPERTIES, map.as_map());
    out
}

/// The same bytes with a few of them changed, cut or doubled.
fn bend(random: &mut Random, bytes: &[u8]) -> Vec<u8> {
    let mut bent = bytes.to_vec();
    for _ in 0..random.below(4) {
        let at = random.below(bent.len().max(1) as u64) as usize;
        match random.below(3) {
            0 => bent.truncate(at),
            1 => bent.extend_from_slice(&bytes[at.min(bytes.len())..]),
            _ => bent.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(256) as u8),
        }
    }
    bent
}

#[test]
fn every_column_of_any_bytes() {
    let mut random = Random::new(3);
    let mut data = Vec::new();
    sections::put_data(&mut data, b"some bytes");
    sections::put_data(&mut data, b"and more");
    let mut value = Vec::new();
    sections::put_amqp_value(&mut value, &Value::String("text"));
    let samples = [(old_head(), b"body".to_vec(), false), (new_head(), data, true), (new_head(), value, true)];
    let mut builder = Builder::new(Column::ALL, Constants { origin: "n".to_owned(), ..Constants::default() });
    for batch in 0..200 {
        for _ in 0..100 {
            let (head, body, is_amqp10) = &samples[random.below(3) as usize];
            let (head, body) = (bend(&mut random, head), bend(&mut random, body));
            builder.push(&Row {
                offset: u64::MAX,
                arrived_us: u64::MAX,
                exchange: &head,
                routing_key: &body,
                ttl_ms: Some(u64::MAX),
                is_amqp10: *is_amqp10,
                head: &head,
                body: &body,
                ..Row::default()
            });
        }
        let made = builder.finish().expect("a batch");
        assert_eq!((made.num_rows(), made.num_columns()), (100, Column::ALL.len()), "{batch}");
    }
}
