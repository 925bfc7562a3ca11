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
