//! Well-formed AMQP 1.0 bytes, made at random.
//!
//! Owns a generator for every layer: values, messages, performatives with odd fields, SASL frames, whole conversations
//! of a client. Random numbers come in, bytes that decode go out; the driver damages them afterwards. It must never
//! make bytes that the codec refuses, since refusals are what damage is for. Rules: AMQP 1.0 parts 1 to 5;
//! `schema/amqp-1.0`.

use weft_sim::Random;
use weft_wire::amqp10::frame::{self, FrameKind, Protocol};
use weft_wire::amqp10::generated::format;
use weft_wire::amqp10::*;

/// What means something in 1.0.
pub const WORDS: &[&[u8]] = &[
    b"AMQP\0\x01\0\0",
    b"AMQP\x03\x01\0\0",
    b"\0\0\0\x08\x02\0\0\0",
    b"\0\x53\x10\xc0",
    b"\0\x53\x12\xc0",
    b"\0\x53\x13\xc0",
    b"\0\x53\x14\xc0",
    b"\0\x53\x15\xc0",
    b"\0\x53\x24\x45",
    b"\0\x53\x25\x45",
    b"\0\x53\x30\x45",
    b"\0\x53\x31\x45",
    b"\0\x53\x34\xc0",
    b"\0\x53\x70\x45",
    b"\0\x53\x73\x45",
    b"\0\x53\x75\xa0\0",
    b"\0\x53\x77\x40",
    b"\0\x53\x78\xc1\x01\0",
    b"\0\x80\0\0\0\0\0\0\0\x14",
    b"\0\xa3\x0famqp:modified:list",
    b"\xd0\0\0\0\x04\0\0\0\0",
    b"\xe0\x02\x01\x40",
    b"\xf0\0\0\0\x05\0\0\0\x01\x45",
    b"\x40",
    b"\x41",
    b"\x43",
    b"\x45",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"/exchanges/amq.topic/a.b",
];

const ADDRESSES: [&str; 7] =
    ["q", "q2", "/queues/q", "/exchanges/amq.fanout", "/exchanges/amq.topic/a.b", "refused", ""];
const TEXTS: [&str; 6] = ["", "a", "a.b", "x-opt-delivery-time", "żółw", "apache.org:selector-filter:string"];

fn bit(random: &mut Random) -> bool {
    random.one_in(2)
}

/// Appends any value.
pub fn put_any(random: &mut Random, out: &mut Vec<u8>, depth: usize) {
    let number = random.odd_number();
    let bytes = random.bytes(16);
    let mut wide = [0; 16];
    wide[..bytes.len().min(16)].copy_from_slice(&bytes[..bytes.len().min(16)]);
    let value = match random.below(if depth < 4 { 26 } else { 21 }) {
        0 => Value::Null,
        1 => Value::Bool(number & 1 == 1),
        2 => Value::Ubyte(number as u8),
        3 => Value::Ushort(number as u16),
        4 => Value::Uint(number as u32),
        5 => Value::Ulong(number),
        6 => Value::Byte(number as i8),
        7 => Value::Short(number as i16),
        8 => Value::Int(number as i32),
        9 => Value::Long(number as i64),
        10 => Value::Float(f32::from_bits(number as u32)),
        11 => Value::Double(f64::from_bits(number)),
        12 => Value::Decimal32(number as u32),
        13 => Value::Decimal64(number),
        14 => Value::Decimal128(wide),
        15 => Value::Char(char::from_u32(number as u32).unwrap_or('?')),
        16 => Value::Timestamp(number as i64),
        17 => Value::Uuid(wide),
        18 => Value::Binary(&bytes),
        19 => Value::String(random.pick(&TEXTS)),
        20 => Value::Symbol("symbol"),
        21 | 22 => return put_list(random, out, depth),
        23 => {
            let map = any_map(random, depth + 1);
            return writer::put_value(out, &Value::Map(map.as_map()));
        }
        24 => return out.extend_from_slice(&[format::ARRAY8, 5, 3, format::UBYTE, 1, 2, 3]),
        _ => {
            writer::put_descriptor(out, number % 256);
            return put_any(random, out, depth + 1);
        }
    };
    writer::put_value(out, &value);
}

fn put_list(random: &mut Random, out: &mut Vec<u8>, depth: usize) {
    let mut list = Compound::list(out);
    for _ in 0..random.below(4) {
        list.item(|out| put_any(random, out, depth + 1));
    }
    list.finish();
}

fn any_map(random: &mut Random, depth: usize) -> MapBuf {
    let mut map = MapBuf::new();
    for _ in 0..random.below(4) {
        let key = random.pick(&TEXTS);
        map.put_with(Value::Symbol(if key.is_ascii() { key } else { "k" }), |out| put_any(random, out, depth + 1));
    }
    map
}

/// A message of any sections.
pub fn message(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    if bit(random) {
        let ttl = bit(random).then(|| random.odd_number() as u32);
        let (priority, delivery_count) = (random.byte(), random.odd_number() as u32);
        Header { durable: bit(random), priority, ttl, first_acquirer: bit(random), delivery_count }.encode(&mut out);
    }
    for code in [descriptor::DELIVERY_ANNOTATIONS, descriptor::MESSAGE_ANNOTATIONS] {
        if random.one_in(3) {
            sections::put_map(&mut out, code, any_map(random, 0).as_map());
        }
    }
    if bit(random) {
        properties(random, &mut out);
    }
    if random.one_in(3) {
        sections::put_map(&mut out, descriptor::APPLICATION_PROPERTIES, any_map(random, 2).as_map());
    }
    match random.below(4) {
        0 => {
            writer::put_descriptor(&mut out, descriptor::AMQP_VALUE);
            put_any(random, &mut out, 0);
        }
        1 => {
            writer::put_descriptor(&mut out, descriptor::AMQP_SEQUENCE);
            put_list(random, &mut out, 0);
        }
        _ => (0..=random.below(2)).for_each(|_| sections::put_data(&mut out, &random.bytes(300))),
    }
    if random.one_in(5) {
        sections::put_map(&mut out, descriptor::FOOTER, any_map(random, 0).as_map());
    }
    out
}

fn properties(random: &mut Random, out: &mut Vec<u8>) {
    let bytes = random.bytes(16);
    let id = match random.below(5) {
        0 => Some(MessageId::Ulong(random.odd_number())),
        1 => Some(MessageId::Uuid([7; 16])),
        2 => Some(MessageId::Binary(&bytes)),
        3 => Some(MessageId::String("id")),
        _ => None,
    };
    let properties = Properties {
        message_id: id,
        user_id: random.one_in(8).then_some(b"guest"),
        to: bit(random).then(|| random.pick(&ADDRESSES)),
        subject: bit(random).then(|| random.pick(&TEXTS)),
        reply_to: random.one_in(4).then(|| random.pick(&ADDRESSES)),
        correlation_id: id,
        content_type: random.one_in(4).then_some(Symbol("text/plain")),
        absolute_expiry_time: random.one_in(4).then(|| Timestamp(random.odd_number() as i64)),
        creation_time: random.one_in(4).then(|| Timestamp(random.odd_number() as i64)),
        group_id: random.one_in(4).then_some("group"),
        group_sequence: random.one_in(4).then(|| random.odd_number() as u32),
        ..Properties::default()
    };
    properties.encode(out);
}

fn with_state(random: &mut Random, each: impl FnOnce(Option<DeliveryState<'_>>)) {
    let (annotations, txn) = (any_map(random, 0), random.bytes(8));
    let error = Error { condition: Symbol("amqp:not-found"), description: Some("no"), info: None };
    let outcome = match random.below(5) {
        0 => Outcome::Rejected(Rejected { error: Some(error) }),
        1 => Outcome::Released,
        2 => Outcome::Modified(Modified {
            delivery_failed: bit(random),
            undeliverable_here: bit(random),
            message_annotations: bit(random).then(|| annotations.as_map()),
        }),
        _ => Outcome::Accepted,
    };
    each(match random.below(8) {
        0 => None,
        1 => Some(DeliveryState::Received(Received { section_number: 0, section_offset: random.odd_number() })),
        2 => Some(DeliveryState::Transactional(TransactionalState { txn_id: &txn, outcome: Some(outcome) })),
        _ => Some(DeliveryState::Outcome(outcome)),
    });
}

/// The body of an AMQP frame: a performative, and a payload where it has one.
pub fn body(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    put_performative(random, &mut out);
    out
}

fn small(random: &mut Random) -> u32 {
    if random.one_in(8) { random.odd_number() as u32 } else { random.below(3) as u32 }
}

fn put_performative(random: &mut Random, out: &mut Vec<u8>) {
    let map = any_map(random, 0);
    let properties = random.one_in(6).then(|| map.as_map());
    match random.below(20) {
        0 => {
            let (max_frame_size, idle_time_out) = (random.odd_number() as u32, bit(random).then_some(10_000));
            let hostname = random.one_in(4).then_some("vhost:/");
            Open { container_id: "peer", hostname, max_frame_size, idle_time_out, properties, ..Open::default() }
                .encode(out);
        }
        1 | 2 => {
            let (next_outgoing_id, incoming_window) = (small(random), random.odd_number() as u32);
            Begin { next_outgoing_id, incoming_window, outgoing_window: 100, properties, ..Begin::default() }
                .encode(out);
        }
        3..=6 => put_attach(random, out),
        7..=9 => {
            let handle = (!random.one_in(4)).then(|| small(random));
            let flow = Flow {
                next_incoming_id: bit(random).then(|| small(random)),
                incoming_window: random.odd_number() as u32,
                next_outgoing_id: small(random),
                outgoing_window: random.odd_number() as u32,
                handle,
                delivery_count: handle.map(|_| small(random)),
                link_credit: handle.map(|_| random.odd_number() as u32),
                drain: random.one_in(4),
                echo: random.one_in(4),
                ..Flow::default()
            };
            flow.encode(out);
        }
        10..=14 => put_transfer(random, out),
        15 | 16 => {
            let (role, settled) = (if bit(random) { Role::Receiver } else { Role::Sender }, bit(random));
            let (first, last) = (small(random), bit(random).then(|| small(random)));
            with_state(random, |state| Disposition { role, first, last, settled, state, batchable: false }.encode(out));
        }
        17 => Detach { handle: small(random), closed: bit(random), error: None }.encode(out),
        18 => End::default().encode(out),
        _ if random.one_in(4) => Close::default().encode(out),
        _ => put_attach(random, out),
    }
}

fn put_attach(random: &mut Random, out: &mut Vec<u8>) {
    let (filter, unsettled) = (any_map(random, 0), any_map(random, 0));
    let address = (!random.one_in(8)).then(|| random.pick(&ADDRESSES));
    let dynamic = address.is_none() && bit(random);
    let source = Source {
        address,
        dynamic,
        distribution_mode: random.one_in(4).then_some(DistributionMode::Copy),
        filter: random.one_in(4).then(|| filter.as_map()),
        ..Source::default()
    };
    let target = match random.one_in(6) {
        true => AttachTarget::Coordinator(Coordinator::default()),
        false => AttachTarget::Target(Target { address, dynamic, ..Target::default() }),
    };
    let attach = Attach {
        name: random.pick(&TEXTS),
        handle: small(random),
        role: if bit(random) { Role::Receiver } else { Role::Sender },
        snd_settle_mode: if bit(random) { SenderSettleMode::Mixed } else { SenderSettleMode::Settled },
        rcv_settle_mode: if bit(random) { ReceiverSettleMode::First } else { ReceiverSettleMode::Second },
        source: (!random.one_in(8)).then_some(source),
        target: (!random.one_in(8)).then_some(target),
        unsettled: random.one_in(8).then(|| unsettled.as_map()),
        initial_delivery_count: bit(random).then(|| small(random)),
        ..Attach::default()
    };
    attach.encode(out);
}

fn put_transfer(random: &mut Random, out: &mut Vec<u8>) {
    let (tag, payload) = (random.bytes(40), message(random));
    let (handle, delivery_id) = (small(random), bit(random).then(|| small(random)));
    let (more, aborted, settled) = (random.one_in(4), random.one_in(12), bit(random).then(|| bit(random)));
    let delivery_tag = bit(random).then_some(&tag[..]);
    with_state(random, |state| {
        let message_format = Some(0);
        Transfer {
            handle,
            delivery_id,
            delivery_tag,
            message_format,
            settled,
            more,
            state,
            aborted,
            ..Transfer::default()
        }
        .encode(out);
    });
    out.extend_from_slice(&payload);
}

/// Frames of both kinds.
pub fn frames(random: &mut Random) -> Vec<u8> {
    let mut out = match random.below(8) {
        0 => Protocol::Amqp.header().to_vec(),
        1 => Protocol::Sasl.header().to_vec(),
        _ => Vec::new(),
    };
    for _ in 0..random.below(8) {
        write_frame(random, &mut out);
    }
    out
}

/// Appends something a client may say on one of two sessions.
pub fn write_frame(random: &mut Random, out: &mut Vec<u8>) {
    match random.below(16) {
        0 => frame::heartbeat(out),
        1 => {
            let response = random.bytes(20);
            let mechanism = Symbol(random.pick(&["PLAIN", "ANONYMOUS", "refused"]));
            encode_sasl(out, &SaslInit { mechanism, initial_response: Some(&response), hostname: None });
        }
        _ => {
            let mark = frame::begin_frame(out, FrameKind::Amqp, random.below(10) as u16 / 9);
            put_performative(random, out);
            frame::end_frame(out, mark);
        }
    }
}
