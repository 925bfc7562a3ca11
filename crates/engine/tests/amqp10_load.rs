//! The engine under load, seen by 1.0 clients that do not read.
//!
//! Owns the proof that a peer's own slowness costs only itself. Simulated peers ask or receive without reading; bytes
//! and queues are compared. It must never measure real time. Rules: `limits.rs`, AMQP 1.0 section 2.7.4 (echo).

use weft_engine::Limits;
use weft_sim::{Client10, Node, Said};
use weft_wire::amqp10::frame::{FrameKind, begin_frame, end_frame};
use weft_wire::amqp10::{Composite, Flow, Performative, Transfer, encode};

const OUTPUT_BYTES_MAX: usize = 10_000;

fn node() -> Node {
    Node::new(Limits { output_bytes_max: OUTPUT_BYTES_MAX, ..Limits::default() }, 7)
}

#[test]
fn a_peer_that_asks_for_echoes_and_never_reads_is_not_read_either() {
    let mut node = node();
    let mut deaf = Client10::connect(&mut node);
    node.engine.writable(deaf.conn, false);
    let window = u32::MAX >> 1;
    let flow = Flow { incoming_window: window, outgoing_window: window, echo: true, ..Flow::default() };
    let mut bytes = Vec::new();
    (0..1_000).for_each(|_| encode(&mut bytes, 0, &flow));
    node.feed(deaf.conn, &bytes);
    let waiting = node.engine.conns.get(deaf.conn).map_or(0, |conn| conn.io.output.len());
    assert!((1..2 * OUTPUT_BYTES_MAX).contains(&waiting), "{waiting} bytes wait");
    assert!(node.peers[&deaf.conn].paused);
    node.engine.writable(deaf.conn, true);
    node.settle();
    let said = deaf.read(&mut node);
    let flows = said.iter().filter(|said| matches!(said.performative(), Some((Performative::Flow(_), _)))).count();
    assert_eq!(flows, 1_000);
    assert!(!node.peers[&deaf.conn].paused);
}

#[test]
fn a_slow_receiver_gets_what_it_can_take_and_the_rest_stays_in_the_queue() {
    let mut node = node();
    let (mut slow, mut feeder) = (Client10::connect(&mut node), Client10::connect(&mut node));
    feeder.attach_sender(&mut node, "feed", 0, Some("q"));
    slow.attach_receiver(&mut node, "slow", 0, "q", true);
    slow.credit(&mut node, 0, 0, 1_000, false);
    node.engine.writable(slow.conn, false);
    for _ in 0..100 {
        feeder.send(&mut node, 0, true, &[0; 1_000]);
    }
    assert!(slow.read(&mut node).is_empty());
    assert_eq!(node.queue("q").0, 100);
    node.engine.writable(slow.conn, true);
    node.settle();
    let said = slow.read(&mut node);
    let got = said.iter().filter(|said| matches!(said.performative(), Some((Performative::Transfer(_), _)))).count();
    assert_eq!((got, node.queue("q").0), (100, 0));
}

#[test]
fn messages_that_never_end_take_half_of_the_memory() {
    let mut node = Node::new(Limits { memory_bytes_max: 8 << 20, ..Limits::default() }, 7);
    let mut refused = 0;
    for _ in 0..20 {
        let mut client = Client10::connect(&mut node);
        client.attach_sender(&mut node, "s", 0, Some("q"));
        let mut bytes = Vec::new();
        for number in 0..16 {
            let (delivery_id, delivery_tag) = ((number == 0).then_some(0), (number == 0).then_some(&b"t"[..]));
            let mark = begin_frame(&mut bytes, FrameKind::Amqp, 0);
            Transfer { delivery_id, delivery_tag, more: true, ..Transfer::default() }.encode(&mut bytes);
            bytes.extend_from_slice(&[0; 60_000]);
            end_frame(&mut bytes, mark);
        }
        node.feed(client.conn, &bytes);
        let detach = |said: &Said| matches!(said.performative(), Some((Performative::Detach(_), _)));
        refused += usize::from(client.read(&mut node).iter().any(detach));
    }
    assert!((14..18).contains(&refused), "{refused}");
    assert!((3 << 20..5 << 20).contains(&node.engine.stats()["memory_bytes"]));
}

/// A frame of a message that has more of them.
fn write_part(bytes: &mut Vec<u8>, is_first: bool, more: bool, len: usize) {
    let (delivery_id, delivery_tag) = (is_first.then_some(0), is_first.then_some(&b"t"[..]));
    let mark = begin_frame(bytes, FrameKind::Amqp, 0);
    Transfer { delivery_id, delivery_tag, more, ..Transfer::default() }.encode(bytes);
    if is_first {
        // A data section of 600,000 bytes.
        bytes.extend_from_slice(&[0, 0x53, 0x75, 0xb0, 0, 9, 0x27, 0xc0]);
    }
    bytes.resize(bytes.len() + len, 0);
    end_frame(bytes, mark);
}

#[test]
fn a_message_whose_rest_does_not_come_is_given_up_and_one_that_comes_on_is_not() {
    let mut node = Node::new(Limits { unfinished_s: 10, ..Limits::default() }, 7);
    let (mut silent, mut slow) = (Client10::connect(&mut node), Client10::connect(&mut node));
    for client in [&mut silent, &mut slow] {
        client.attach_sender(&mut node, "s", 0, Some("q"));
        let mut bytes = Vec::new();
        write_part(&mut bytes, true, true, 100_000);
        node.feed(client.conn, &bytes);
    }
    for number in 1..6 {
        node.advance_ms(9_000);
        let mut bytes = Vec::new();
        write_part(&mut bytes, false, number < 5, 100_000);
        node.feed(slow.conn, &bytes);
        // It speaks, but brings a byte of the message at a time.
        let mut crumb = Vec::new();
        write_part(&mut crumb, false, true, 1);
        node.feed(silent.conn, &crumb);
    }
    assert_eq!(node.queue("q").0, 1, "slow, but it came");
    let said = silent.read(&mut node);
    let error = said.iter().find_map(|said| match said.performative() {
        Some((Performative::Detach(detach), _)) => detach.error.map(|error| error.condition.0.to_owned()),
        _ => None,
    });
    assert_eq!(error.as_deref(), Some("amqp:resource-limit-exceeded"));
    assert!(node.engine.stats()["memory_bytes"] < 700_000, "only the message is held");
}
