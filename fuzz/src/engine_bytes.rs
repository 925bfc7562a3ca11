//! One engine under a stream of any bytes, with a well-behaved neighbour.
//!
//! Owns what must hold whatever a peer sends: no panic; the same answers and events whether the bytes come at once or
//! in pieces; buffers and memory within their limits; a peer that is not understood is closed in time; the neighbour
//! is served as before. It must never look at what the bytes mean. Rules: decision 0002 (time comes with bytes),
//! `limits.rs`.

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::Limits;
use weft_engine::conn::ConnId;
use weft_engine::event::Event;
use weft_sim::{Client, Item, Node, Random, Said, client, client10};
use weft_wire::amqp10::{Performative, Role};
use weft_wire::amqp091::Method;

use crate::feature::note;
use crate::source::Source;
use crate::{generate10, generate091};

/// Words of both protocols.
pub const WORDS: &[&[u8]] = &[
    b"AMQP\0\0\x09\x01",
    b"AMQP\0\x01\0\0",
    b"AMQP\x03\x01\0\0",
    b"\x01\0\x01\0\0\0\x05\0\x14\0\x0a\0\xCE",
    b"\x01\0\x01\0\0\0\x04\0\x5a\0\x0a\xCE",
    b"\x08\0\0\0\0\0\0\xCE",
    b"\0\0\0\x08\x02\0\0\0",
    b"\0\0\0\x0c\x02\0\0\0\0\x53\x17\x45",
    b"\0\x53\x14\xc0",
    b"\0\x3c\0\x28",
    b"\xCE",
    b"\xff\xff\xff\xff",
];

const LIMITS: Limits = Limits {
    frame_bytes_max: 4_096,
    channels_max: 20,
    links_max: 10,
    heartbeat_s: 60,
    message_bytes_max: 2_000,
    memory_bytes_max: 4 << 20,
    output_bytes_max: 16 << 10,
    flush_bytes: 64 << 10,
    work_max: 1_000_000,
    link_credit: 1_000,
    session_window: 5_000,
    unauthenticated_s: 10,
    unfinished_s: 5,
    connections_max: 10,
    addresses_max: 10,
    transactions_max: 2,
    transaction_bytes_max: 3_000,
    prepared_max: 2,
    prepared_bytes_max: 3_000,
    doubt_s: 5,
    end_to_end_max: 4,
    consumers_max: 6,
    relay_window_s: 5,
    relay_ids_max: 100,
};

/// The most that a peer of a few kilobytes may make the node say: every frame answered with a message of the largest
/// size.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// A stream of either protocol, most often one that is open already.
pub fn generate(random: &mut Random) -> Vec<u8> {
    let opening = random.below(6) as u8;
    let mut input = vec![opening, random.byte()];
    for _ in 0..random.below(12) {
        match opening {
            0 | 1 => generate091::write_frame(random, &mut input),
            2 | 3 => generate10::write_frame(random, &mut input),
            4 => input.extend(generate091::frames(random)),
            _ => input.extend(generate10::frames(random)),
        }
    }
    input
}

/// What a peer can tell of a node's behaviour, apart from when it was told.
#[derive(Debug, Default)]
struct Seen {
    /// Everything said in answer, in order.
    answers: Vec<String>,
    /// Publishes and transfers that were settled: channel, number, outcome. Nodes may speak for many at once.
    settled: BTreeSet<(u16, u64, Vec<u8>)>,
    events: Vec<Event>,
    gone: bool,
}

/// Runs the target.
pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let opening = match source.below(6) {
        0 | 1 => {
            let mut bytes = client::opening(0, |_| ());
            Method::ChannelOpen.encode_frame(1, &mut bytes);
            bytes
        }
        2 | 3 => client10::opening(),
        _ => Vec::new(),
    };
    let cuts = u64::from(source.byte());
    let stream = [&opening, source.rest()].concat();
    let (whole, pushed) = converse(&stream, &mut |_| usize::MAX);
    let mut random = Random::new(cuts);
    let (pieces, pushed_again) = converse(&stream, &mut |_| 1 + random.below(40));
    if !pushed && !pushed_again {
        whole.compare(&pieces);
        if stream.len() < 1_000 {
            let (bytes, pushed) = converse(&stream, &mut |_| 1);
            if !pushed {
                whole.compare(&bytes);
            }
        }
    }
}

impl Seen {
    fn compare(&self, other: &Self) {
        for (whole, pieces) in self.answers.iter().zip(&other.answers) {
            assert_eq!(whole, pieces);
        }
        assert_eq!(self.answers.len(), other.answers.len(), "{:?} {:?}", self.answers.last(), other.answers.last());
        assert_eq!(self.events, other.events);
        assert_eq!(self.settled, other.settled);
        assert_eq!(self.gone, other.gone);
    }
}

/// A conversation with a fresh node; also whether messages were pushed, whose time depends on when bytes come.
fn converse(stream: &[u8], cut: &mut dyn FnMut(usize) -> usize) -> (Seen, bool) {
    let mut node = Node::new(LIMITS, 7);
    let mut neighbour = Client::connect(&mut node);
    neighbour.declare(&mut node, "neighbour", |_| ());
    neighbour.consume(&mut node, "neighbour", "tag", true);
    serve(&mut node, &mut neighbour);
    let Some(conn) = node.open() else { return Default::default() };
    let before = node.events.len();
    let mut rest = stream;
    while !rest.is_empty() && !node.peers[&conn].gone && !node.peers[&conn].paused {
        let (now, later) = rest.split_at(cut(rest.len()).min(rest.len()));
        node.feed(conn, now);
        check_bounds(&node, conn);
        rest = later;
    }
    serve(&mut node, &mut neighbour);
    let pushed = node.engine.stats()["delivered"] > 2 + gets(&node, conn);
    let output = node.take_output(conn);
    let mut seen = read(&output);
    seen.answers.windows(2).for_each(|pair| note((name_in(&pair[0]), name_in(&pair[1]))));
    seen.events = node.events[before..].iter().filter(|event| concerns(event, conn)).cloned().collect();
    seen.events.iter().for_each(|event| note(std::mem::discriminant(event)));
    // Time passes: who has not opened, or was told to close, must be gone.
    node.advance_ms(11_000);
    node.advance_ms(11_000);
    if let Some(left) = node.engine.conns.get(conn) {
        assert!(left.io.principal != 0 && left.io.cause.is_none(), "a peer that was refused is still there");
    }
    seen.gone = node.peers[&conn].gone;
    serve(&mut node, &mut neighbour);
    node.close(conn);
    assert_eq!(node.engine.conns.len(), 1);
    assert_eq!(node.engine.stats()["consumers"], 1);
    (seen, pushed)
}

/// The name of what was said, which is the second word of an answer.
fn name_in(answer: &str) -> Option<&str> {
    answer.split([' ', '(']).nth(1)
}

fn serve(node: &mut Node, neighbour: &mut Client) {
    let said = neighbour.publish(node, "", "neighbour", b"hello");
    let served = matches!(said.first().map(Item::method), Some(Method::BasicDeliver { .. }));
    assert!(served && said.len() == 1 && said[0].body == b"hello", "the neighbour got {said:?}");
}

fn check_bounds(node: &Node, conn: ConnId) {
    assert!(node.engine.stats()["memory_bytes"] <= LIMITS.memory_bytes_max);
    assert!(node.peers[&conn].output.len() < OUTPUT_BYTES_MAX);
    if let Some(conn) = node.engine.conns.get(conn) {
        assert!(conn.io.input.len() <= LIMITS.frame_bytes_max as usize || conn.io.waits(), "kept more than a frame");
    }
}

fn concerns(event: &Event, id: ConnId) -> bool {
    match event {
        Event::AuthRequested { conn, .. }
        | Event::OpenRequested { conn, .. }
        | Event::TopologyRequested { conn, .. }
        | Event::AttachRequested { conn, .. }
        | Event::AccessRequested { conn, .. }
        | Event::AddressRequested { conn, .. } => *conn == id.raw(),
        _ => false,
    }
}

/// Messages the peer asked for one by one.
fn gets(node: &Node, conn: ConnId) -> u64 {
    let output = &node.peers[&conn].output;
    if output.first() != Some(&1) {
        return 0;
    }
    let (items, _) = client::parse(output);
    items.iter().filter(|item| matches!(item.method(), Method::BasicGetOk { .. })).count() as u64
}

/// What the node said, freed of what depends on how it was asked.
fn read(output: &[u8]) -> Seen {
    let mut seen = Seen::default();
    if output.starts_with(b"AMQP") {
        client10::parse(output).0.iter().for_each(|said| read_10(said, &mut seen));
    } else {
        let mut confirmed = BTreeMap::new();
        client::parse(output).0.iter().for_each(|item| read_091(item, &mut confirmed, &mut seen));
    }
    seen
}

fn read_091(item: &Item, confirmed: &mut BTreeMap<u16, u64>, seen: &mut Seen) {
    let last = confirmed.entry(item.channel).or_default();
    note(("said", item.method().ids()));
    match item.method() {
        Method::BasicAck { delivery_tag, .. } => {
            seen.settled.extend((*last + 1..=delivery_tag).map(|tag| (item.channel, tag, b"ack".to_vec())));
            *last = delivery_tag;
        }
        Method::BasicNack { delivery_tag, .. } => {
            seen.settled.insert((item.channel, delivery_tag, b"nack".to_vec()));
            *last = delivery_tag;
        }
        Method::BasicDeliver { .. } => {}
        method => {
            if let Method::ConnectionClose { reply_code, .. } | Method::ChannelClose { reply_code, .. } = method {
                note(("closed", reply_code));
            }
            seen.answers.push(format!("{} {method:?} {:?} {:?}", item.channel, item.properties, item.body));
        }
    }
}

fn read_10(said: &Said, seen: &mut Seen) {
    let Said::Frame(kind, channel, body) = said else {
        return seen.answers.push(format!("{said:?}"));
    };
    match said.performative() {
        Some((Performative::Flow(_) | Performative::Transfer(_), _)) => {}
        Some((Performative::Disposition(disposition), _)) if disposition.role == Role::Receiver => {
            let state = format!("{:?} {}", disposition.state, disposition.settled).into_bytes();
            let last = disposition.last.unwrap_or(disposition.first);
            for id in 0..=last.wrapping_sub(disposition.first).min(10_000) {
                seen.settled.insert((*channel, u64::from(disposition.first.wrapping_add(id)), state.clone()));
            }
        }
        other => {
            note(("said", *kind == weft_wire::amqp10::frame::FrameKind::Amqp, body.get(2)));
            if let Some((Performative::Close(close), _)) = other {
                note(("closed", close.error.map(|error| error.condition.0.to_owned())));
            }
            seen.answers.push(match other {
                Some((performative, _)) => format!("{channel} {performative:?}"),
                None => format!("{body:?}"),
            });
        }
    }
}
