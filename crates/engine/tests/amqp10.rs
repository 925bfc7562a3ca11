//! AMQP 1.0 by the byte, without a socket: opening, sessions, links, sending, receiving, settling.
//!
//! Owns the proof that the engine alone speaks the protocol. A simulated peer says something, what the node answers
//! is compared. It must never look inside a session. Rules: AMQP 1.0 parts 2, 3 and 5.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_engine::event::Event;
use weft_sim::{Client, Node};
use weft_wire::amqp10::frame::Protocol;
use weft_wire::amqp10::*;
use weft_wire::amqp091::Method;
use weft_wire::amqp091::table::Table;

fn node() -> Node {
    Node::new(Limits::default(), 7)
}

#[test]
fn a_peer_enters_by_sasl_and_learns_what_the_node_can_do() {
    let mut node = node();
    let conn = node.open().expect("room");
    let mut bytes = sasl_opening();
    encode(&mut bytes, 0, &Open { container_id: "peer", hostname: Some("vhost:/"), ..Open::default() });
    node.feed(conn, &bytes);
    let whole = node.take_output(conn);
    let open_at = whole.windows(8).position(|part| part == Protocol::Amqp.header()).expect("a header") + 8;
    let (said, _) = parse(&whole[open_at..]);
    let Performative::Open(open) = said[0].performative() else { panic!("{said:?}") };
    assert_eq!((open.container_id, open.max_frame_size, open.channel_max), ("weft", 131_072, 2_046));
    assert_eq!(open.idle_time_out, Some(60_000));
    assert!(open.offered_capabilities.contains(Symbol("ANONYMOUS-RELAY")));
    assert_eq!(open.properties.and_then(|map| map.get("product")), Some(Value::String("weft")));
    // The same, one byte at a time, to another connection.
    let other = node.open().expect("room");
    for byte in &bytes {
        node.feed(other, &[*byte]);
    }
    assert_eq!(node.take_output(other), whole);
}

#[test]
fn a_bare_connection_is_judged_as_anonymous() {
    let mut node = node();
    let conn = node.open().expect("room");
    let mut bytes = Protocol::Amqp.header().to_vec();
    encode(&mut bytes, 0, &Open { container_id: "peer", ..Open::default() });
    node.feed(conn, &bytes);
    let said = node.take_output(conn);
    assert_eq!(said[..8], Protocol::Amqp.header());
    assert_eq!(names(&parse(&said[8..]).0), ["open"]);
    let anonymous = |event: &Event| matches!(event, Event::AuthRequested { mechanism, .. } if mechanism == "ANONYMOUS");
    assert!(node.events.iter().any(anonymous));
}

#[test]
fn a_refused_login_and_a_refused_virtual_host_are_told() {
    let mut node = node();
    let conn = node.open().expect("room");
    let mut bytes = Protocol::Sasl.header().to_vec();
    encode_sasl(&mut bytes, &SaslInit { mechanism: Symbol("refused"), ..SaslInit::default() });
    node.feed(conn, &bytes);
    assert!(node.take_output(conn).ends_with(b"\x00\x53\x44\xc0\x03\x01\x50\x01"));
    assert!(node.peers[&conn].gone);
    let conn = node.open().expect("room");
    let mut bytes = Protocol::Amqp.header().to_vec();
    encode(&mut bytes, 0, &Open { container_id: "peer", hostname: Some("vhost:nowhere"), ..Open::default() });
    node.feed(conn, &bytes);
    let (said, _) = parse(&node.take_output(conn)[8..]);
    assert_eq!((names(&said), condition(&said)), (vec!["open", "close"], "amqp:not-allowed".to_owned()));
}

#[test]
fn messages_pass_settled_and_unsettled() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    let said = peer.sender(&mut node, 0, Some("q"));
    assert_eq!(names(&said), ["attach", "flow"]);
    let Performative::Flow(flow) = said[1].performative() else { panic!("{said:?}") };
    assert_eq!((flow.link_credit, flow.handle), (Some(1_000), Some(0)));
    assert_eq!(peer.send(&mut node, 0, &message(b"a"), true), [], "at most once: nothing is remembered or answered");
    assert_eq!(answers(&peer.send(&mut node, 0, &message(b"b"), false)), [(1, 1, true, "accepted".to_owned())]);
    assert_eq!(node.queue("q"), (2, 0, 0));
    let said = peer.receiver(&mut node, 1, "q", 10);
    assert_eq!(bodies(&said), ["a", "b"]);
    assert_eq!(node.queue("q"), (0, 2, 1));
    let got = deliveries(&said);
    assert!(got.iter().all(|got| !got.settled && got.frames == 1));
    peer.settle(&mut node, got[0].id, got[1].id, Outcome::Accepted);
    assert_eq!(node.queue("q"), (0, 0, 1));
}

#[test]
fn credit_is_respected_exactly() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    for number in 0..30 {
        peer.send(&mut node, 0, &message(format!("{number}").as_bytes()), true);
    }
    assert_eq!(bodies(&peer.receiver(&mut node, 1, "q", 10)).len(), 10);
    assert_eq!(node.queue("q"), (20, 10, 1));
    // The peer has seen ten; five more from there, and the same again is no credit at all.
    assert_eq!(bodies(&peer.credit(&mut node, 1, 10, 5, false)), ["10", "11", "12", "13", "14"]);
    assert_eq!(bodies(&peer.credit(&mut node, 1, 10, 5, false)), [""; 0]);
    assert_eq!(bodies(&peer.credit(&mut node, 1, 15, 1, false)), ["15"]);
}

#[test]
fn outcomes_are_told_before_a_close_in_the_same_breath() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let mut bytes: Vec<u8> = (0..3).flat_map(|_| peer.transfer(0, &message(b"x"), false)).collect();
    encode(&mut bytes, 0, &Close::default());
    node.feed(peer.conn, &bytes);
    let said = peer.read(&mut node);
    assert_eq!(names(&said), ["disposition", "close"]);
    assert_eq!(answers(&said), [(0, 2, true, "accepted".to_owned())]);
    assert_eq!(node.queue("q"), (3, 0, 0));
}

#[test]
fn an_outcome_that_nobody_waits_for_leaves_with_what_is_written_next() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    peer.sender(&mut node, 1, Some("r"));
    peer.receiver(&mut node, 2, "r", 10);
    let accepted = |first, last| vec![(first, last, true, "accepted".to_owned())];
    // Alone it waits its time out, and no longer.
    node.feed(peer.conn, &peer.batchable(0, &message(b"x")));
    node.feed(peer.conn, &peer.batchable(0, &message(b"x")));
    node.advance_ms(4);
    assert_eq!(peer.read(&mut node), []);
    assert_eq!(node.queue("q"), (2, 0, 0));
    node.advance_ms(1);
    assert_eq!(answers(&peer.read(&mut node)), accepted(0, 1));
    // A delivery takes it along, and so does an outcome that is waited for.
    node.feed(peer.conn, &peer.batchable(0, &message(b"x")));
    let said = peer.send(&mut node, 1, &message(b"reply"), true);
    assert_eq!((names(&said), answers(&said)), (vec!["disposition", "transfer"], accepted(2, 2)));
    let both = [peer.batchable(0, &message(b"x")), peer.transfer(0, &message(b"x"), false)].concat();
    node.feed(peer.conn, &both);
    assert_eq!(answers(&peer.read(&mut node)), accepted(4, 5));
    // What it is about is in its queue all the while, and a close says it all.
    node.feed(peer.conn, &peer.batchable(0, &message(b"x")));
    let said = peer.call(&mut node, 0, &Close::default());
    assert_eq!((names(&said), answers(&said)), (vec!["disposition", "close"], accepted(6, 6)));
    assert_eq!(node.queue("q"), (6, 0, 0));
}

#[test]
fn a_full_queue_rejects_and_an_exclusive_one_is_locked() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "full", |table| {
        table.i64(b"x-max-length", 1);
        table.str(b"x-overflow", b"reject-publish");
    });
    let declare = Method::QueueDeclare {
        queue: b"mine",
        passive: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        no_wait: false,
        arguments: Table::EMPTY,
    };
    client.call(&mut node, &declare);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("full"));
    let three: Vec<u8> = (0..3).flat_map(|_| peer.transfer(0, &message(b"x"), false)).collect();
    node.feed(peer.conn, &three);
    let refused = "rejected amqp:resource-limit-exceeded".to_owned();
    assert_eq!(answers(&peer.read(&mut node)), [(0, 0, true, "accepted".to_owned()), (1, 2, true, refused.clone())]);
    node.feed(peer.conn, &peer.batchable(0, &message(b"x")));
    assert_eq!(answers(&peer.read(&mut node)), [(3, 3, true, refused)]);
    assert_eq!(condition(&peer.receiver(&mut node, 1, "mine", 0)), "amqp:resource-locked");
}

#[test]
fn sessions_and_links_have_a_limit() {
    let limits = Limits { links_max: 2, channels_max: 40, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut peer = Peer::connect(&mut node);
    let target = Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() }));
    let mut attached = 0;
    for channel in 1..20 {
        peer.begin(&mut node, channel);
        for handle in 0..2 {
            let name = format!("{channel}-{handle}");
            let attach = Attach { name: &name, handle, target, initial_delivery_count: Some(0), ..Attach::default() };
            let said = peer.call(&mut node, channel, &attach);
            match said.last().map(Said::name) {
                Some("flow") => attached += 1,
                _ => assert_eq!(condition(&said), "amqp:resource-limit-exceeded"),
            }
        }
    }
    assert_eq!(attached, 32);
}
