//! Links between two nodes on a virtual wire: pulled and pushed messages, and everything a peer can refuse.
//!
//! Owns the proof that nothing is lost between engines, whoever fails. Two simulated nodes talk through a `Wire`; a
//! 0-9-1 client looks at both ends. It must never look inside a session. Rules: docs/reference/links.md.

mod pair;
mod peer10;

use pair::*;
use peer10::{Peer, names};
use weft_engine::change::{Change, Direction, Refusal};
use weft_engine::event::Event;
use weft_engine::session::amqp10::Dial;
use weft_sim::{Client, Node, Wire};
use weft_wire::amqp10::frame::Protocol;
use weft_wire::amqp10::{Attach, AttachTarget, Begin, Open, Outcome, Performative, Role, Source, Target, encode};

#[test]
fn a_pull_takes_every_message_once_and_in_order() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 1_000);
    fill(&mut b, "here", 0);
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Pull, "q", "here")));
    wire.settle(&mut b, &mut a);
    assert_eq!(attached(&b), [1]);
    assert_eq!((a.queue("q"), b.queue("here")), ((0, 0, 1), (1_000, 0, 0)));
    let expected: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    assert_eq!(texts(&drain(&mut b, "here")), expected);
}

#[test]
fn an_answer_waits_for_a_message_to_leave_with_or_a_moment() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 1);
    fill(&mut a, "there", 0);
    fill(&mut b, "here", 0);
    fill(&mut b, "out", 0);
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Pull, "q", "here")));
    b.apply(open(order(wire.dialler.raw(), 2, Direction::Push, "there", "out")));
    wire.carry(&mut b, &mut a);
    assert_eq!((a.queue("q"), b.queue("here").0), ((0, 1, 1), 1), "it is there, and has not said so");
    fill(&mut b, "out", 1);
    wire.carry(&mut b, &mut a);
    assert_eq!(a.queue("q"), (0, 0, 1), "the answer left with a message");
    assert_eq!((a.queue("there").0, b.queue("out")), (1, (0, 1, 1)), "and so may the next one");
    fill(&mut a, "q", 300);
    wire.carry(&mut b, &mut a);
    assert!(a.queue("q").1 < 300, "many do not wait");
    wire.settle(&mut b, &mut a);
    assert_eq!((a.queue("q"), b.queue("out")), ((0, 0, 1), (0, 0, 1)), "nor does any for long");
}

#[test]
fn a_push_is_settled_by_the_peers_outcome_and_bounded_by_its_credit() {
    let mut b = node("b");
    fill(&mut b, "out", 5);
    let mut peer = Peer::connect(&mut b);
    // The peer dialled us: the link is ours all the same, on a session of the peer's.
    b.apply(open(order(peer.conn.raw(), 9, Direction::Push, "their-address", "out")));
    let said = peer.read(&mut b);
    let Performative::Attach(attach) = said[0].performative() else { panic!("{:?}", names(&said)) };
    assert_eq!((attach.role, attach.name), (Role::Sender, "link-9"));
    let target = Some(AttachTarget::Target(Target { address: Some("their-address"), ..Target::default() }));
    let answer = Attach {
        name: "link-9",
        handle: 7,
        role: Role::Receiver,
        source: Some(Source::default()),
        target,
        ..Attach::default()
    };
    assert!(peer.call(&mut b, 0, &answer).is_empty(), "no credit, no message");
    assert_eq!(attached(&b), [9]);
    assert_eq!(peer10::bodies(&peer.credit(&mut b, 7, 0, 2, false)), ["0", "1"]);
    assert_eq!(b.queue("out"), (3, 2, 1));
    peer.settle(&mut b, 0, 0, Outcome::Accepted);
    assert_eq!(b.queue("out"), (3, 1, 1));
    // Given back: it does not come again at once, though there is credit.
    peer.settle(&mut b, 1, 1, Outcome::Released);
    assert!(peer.credit(&mut b, 7, 2, 10, false).is_empty());
    assert_eq!(b.queue("out"), (4, 0, 1));
    b.advance_ms(1_000);
    assert_eq!(peer10::bodies(&peer.read(&mut b)), ["1", "2", "3", "4"]);
    peer.settle(&mut b, 2, 5, Outcome::Accepted);
    assert_eq!(b.queue("out"), (0, 0, 1));
}

#[test]
fn handles_of_both_sides_may_collide() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 3);
    fill(&mut b, "here", 0);
    // Both attach on the one session there is, each with its first free handle.
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Pull, "q", "here")));
    fill(&mut a, "back", 2);
    wire.carry(&mut b, &mut a);
    a.apply(open(order(wire.listener.raw(), 2, Direction::Push, "refuses", "back")));
    wire.carry(&mut b, &mut a);
    assert_eq!(detached(&a)[0].1, "amqp:not-allowed", "b dialled without a principal for its peer");
    assert_eq!((b.queue("here").0, a.queue("back").0), (3, 2));
}

#[test]
fn what_nobody_takes_goes_back_and_comes_again_when_somebody_does() {
    for (refusal, left) in [(Refusal::Modify, 3), (Refusal::Release, 3), (Refusal::Reject, 0), (Refusal::Accept, 0)] {
        let (mut a, mut b, wire) = two();
        fill(&mut a, "q", 3);
        let mut pull = order(wire.dialler.raw(), 1, Direction::Pull, "q", "");
        (pull.exchange, pull.routing_key, pull.refusal) =
            (Some("amq.topic".to_owned()), Some("a.b".to_owned()), refusal);
        b.apply(open(pull));
        wire.settle(&mut b, &mut a);
        assert_eq!(a.queue("q").0 + a.queue("q").1, left, "{refusal:?}");
        let mut client = Client::connect(&mut b);
        client.declare(&mut b, "here", |_| ());
        client.bind(&mut b, "here", "amq.topic", "a.#");
        for _ in 0..4 {
            b.advance_ms(300);
            wire.carry(&mut b, &mut a);
        }
        assert_eq!((a.queue("q").0, b.queue("here").0), (0, left), "{refusal:?}");
    }
}

#[test]
fn a_refused_message_is_not_tried_a_thousand_times_a_second() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 1);
    let mut pull = order(wire.dialler.raw(), 1, Direction::Pull, "q", "");
    (pull.exchange, pull.routing_key, pull.credit) = (Some("amq.topic".to_owned()), Some("x".to_owned()), 10);
    b.apply(open(pull));
    let start = a.engine.broker.totals.returned;
    for _ in 0..10 {
        wire.carry(&mut b, &mut a);
        a.advance_ms(100);
        b.advance_ms(100);
    }
    let tries = a.engine.broker.totals.returned - start;
    assert!((1..=50).contains(&tries), "{tries} tries in a second");
}

#[test]
fn a_lost_connection_loses_no_message() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 100);
    fill(&mut b, "here", 0);
    fill(&mut b, "out", 100);
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Pull, "q", "here")));
    b.apply(open(order(wire.dialler.raw(), 2, Direction::Push, "there", "out")));
    for _ in 0..4 {
        wire.carry_once(&mut b, &mut a);
    }
    wire.cut(&mut b, &mut a);
    assert_eq!((a.queue("q").1, b.queue("out").1), (0, 0), "nothing is held for a peer that is gone");
    assert!(a.queue("q").0 + b.queue("here").0 >= 100 && b.queue("out").0 + a.queue("there").0 >= 100);
    let again = Wire::dial(&mut b, &mut a, anonymous());
    again.carry(&mut b, &mut a);
    b.apply(open(order(again.dialler.raw(), 3, Direction::Pull, "q", "here")));
    b.apply(open(order(again.dialler.raw(), 4, Direction::Push, "there", "out")));
    again.carry(&mut b, &mut a);
    for (node, queue) in [(&mut b, "here"), (&mut a, "there")] {
        let mut found: Vec<usize> = texts(&drain(node, queue)).iter().map(|text| text.parse().unwrap()).collect();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, (0..100).collect::<Vec<_>>());
    }
}

#[test]
fn every_refusal_is_told_in_words() {
    let (mut a, mut b) = (node("a"), node("b"));
    let wire = Wire::dial(&mut b, &mut a, Dial { mechanism: "refused".to_owned(), ..anonymous() });
    wire.carry(&mut b, &mut a);
    assert!(cause(&b).contains("the peer offers SASL PLAIN, ANONYMOUS, not refused"), "{}", cause(&b));
    let mut b = node("b");
    let dialled = b.connect(anonymous()).expect("room");
    b.settle();
    b.feed(dialled, b"AMQP\x00\x00\x09\x01");
    assert!(cause(&b).contains("AMQP 0-0-9-1"), "{}", cause(&b));
    for garbage in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0xff; 64]] {
        let mut b = node("b");
        let dialled = b.connect(anonymous()).expect("room");
        b.settle();
        b.feed(dialled, garbage);
        assert!(cause(&b).contains("does not speak AMQP"), "{}", cause(&b));
    }
    let mut b = node("b");
    let dialled = b.connect(Dial { mechanism: String::new(), ..anonymous() }).expect("room");
    b.settle();
    let mut bytes = Protocol::Amqp.header().to_vec();
    encode(&mut bytes, 0, &Open { container_id: "x", max_frame_size: 100, ..Open::default() });
    b.feed(dialled, &bytes);
    b.advance_ms(11_000);
    assert!(cause(&b).contains("max-frame-size"), "{}", cause(&b));
}

fn cause(node: &Node) -> String {
    let mut causes = node.events.iter().filter_map(|event| match event {
        Event::ConnectionClosed { cause, .. } => Some(cause.clone()),
        _ => None,
    });
    causes.next_back().unwrap_or_default()
}

#[test]
fn a_link_that_cannot_be_is_reported_and_the_connection_lives_on() {
    let (mut a, mut b, wire) = two();
    let conn = wire.dialler.raw();
    fill(&mut b, "here", 0);
    let mut nowhere = order(conn, 1, Direction::Pull, "q", "");
    nowhere.exchange = Some("missing".to_owned());
    b.apply(open(nowhere));
    b.apply(open(order(conn, 2, Direction::Push, "q", "missing")));
    b.apply(open(order(conn, 3, Direction::Pull, "refused", "here")));
    b.apply(open(order(77, 4, Direction::Pull, "q", "here")));
    wire.carry(&mut b, &mut a);
    let found: Vec<(u64, String)> = detached(&b).into_iter().map(|(link, condition, _)| (link, condition)).collect();
    let not_found = || "amqp:not-found".to_owned();
    let expected = [(1, not_found()), (2, not_found()), (4, not_found()), (3, "amqp:unauthorized-access".to_owned())];
    assert_eq!(found, expected);
    b.apply(open(order(conn, 5, Direction::Pull, "q", "here")));
    wire.carry(&mut b, &mut a);
    assert_eq!(attached(&b), [5]);
}

#[test]
fn a_closed_link_gives_back_what_it_had_and_its_name() {
    let (mut a, mut b, wire) = two();
    let conn = wire.dialler.raw();
    fill(&mut a, "q", 10);
    fill(&mut b, "here", 0);
    // Closed before the peer has answered, and again after it has.
    b.apply(open(order(conn, 1, Direction::Pull, "q", "here")));
    b.apply(vec![Change::CloseLink { conn, link: 1, closed: true }]);
    wire.carry(&mut b, &mut a);
    assert_eq!((detached(&b).len(), attached(&b).len(), a.queue("q")), (1, 0, (10, 0, 0)));
    b.apply(open(order(conn, 1, Direction::Pull, "q", "here")));
    wire.settle(&mut b, &mut a);
    assert_eq!((attached(&b), a.queue("q"), b.queue("here").0), (vec![1], (0, 0, 1), 10));
    b.apply(vec![Change::CloseLink { conn, link: 1, closed: true }, Change::CloseLink { conn, link: 1, closed: true }]);
    wire.carry(&mut b, &mut a);
    assert_eq!((detached(&b).len(), a.queue("q").2), (2, 0));
}

#[test]
fn a_deleted_queue_ends_its_push() {
    let (mut a, mut b, wire) = two();
    fill(&mut b, "out", 3);
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Push, "there", "out")));
    wire.carry(&mut b, &mut a);
    b.apply(vec![Change::DeleteQueue { vhost: "/".to_owned(), name: "out".to_owned() }]);
    wire.carry(&mut b, &mut a);
    assert_eq!(detached(&b)[0].1, "amqp:resource-deleted");
    assert_eq!(a.queue("there").0, 3);
}

#[test]
fn a_peer_that_ends_the_session_ends_the_links_on_it() {
    let mut b = node("b");
    fill(&mut b, "out", 1);
    let mut peer = Peer::connect(&mut b);
    b.apply(open(order(peer.conn.raw(), 1, Direction::Push, "x", "out")));
    peer.read(&mut b);
    peer.call(&mut b, 0, &weft_wire::amqp10::End::default());
    assert_eq!(detached(&b).len(), 1);
    // The next one gets a session of ours, on a channel of ours; the peer answers on another.
    b.apply(open(order(peer.conn.raw(), 2, Direction::Push, "x", "out")));
    assert_eq!(names(&peer.read(&mut b)), ["begin", "attach"]);
    let begin = Begin { remote_channel: Some(0), incoming_window: 100, outgoing_window: 100, ..Begin::default() };
    peer.call(&mut b, 5, &begin);
    let target = Some(AttachTarget::Target(Target::default()));
    let answer = Attach { name: "link-2", handle: 3, role: Role::Receiver, target, ..Attach::default() };
    peer.call(&mut b, 5, &answer);
    assert_eq!(attached(&b), [2]);
}

#[test]
fn credit_and_frames_of_any_size_carry_large_messages_whole() {
    let (mut a, mut b) = (node("a"), node("b"));
    let wire = Wire::dial(&mut b, &mut a, Dial { frame_bytes_max: 512, ..anonymous() });
    wire.carry(&mut b, &mut a);
    fill(&mut a, "q", 0);
    fill(&mut b, "here", 0);
    let mut client = Client::connect(&mut a);
    let large: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
    client.publish(&mut a, "", "q", &large);
    client.publish(&mut a, "", "q", b"small");
    let mut pull = order(wire.dialler.raw(), 1, Direction::Pull, "q", "here");
    (pull.credit, pull.relay) = (1, true);
    b.apply(open(pull));
    wire.carry(&mut b, &mut a);
    let found = drain(&mut b, "here");
    assert_eq!((found.len(), &found[0].body, &*found[1].body), (2, &large, &b"small"[..]));
}

#[test]
fn a_link_with_a_backlog_takes_what_its_consumers_take() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 100);
    fill(&mut b, "here", 0);
    let mut pull = order(wire.dialler.raw(), 1, Direction::Pull, "q", "here");
    (pull.credit, pull.backlog_max) = (8, Some(10));
    b.apply(open(pull));
    wire.carry(&mut b, &mut a);
    let taken = b.queue("here").0;
    assert!((8..=10).contains(&taken), "{taken}");
    let mut client = Client::connect(&mut b);
    for left in (0..100).rev() {
        client.get(&mut b, "here", true);
        wire.carry(&mut b, &mut a);
        let waiting = b.queue("here").0;
        assert!(waiting <= 10 && waiting >= left.min(5), "{waiting} wait, {left} are left");
    }
    assert_eq!(a.queue("q").0, 0);
    let rows = b.engine.inspect("links").expect("a table");
    assert_eq!(rows.len(), 1);
    let cell = |name: &str| rows[0].iter().find(|cell| cell.0 == name).map(|cell| cell.1.clone());
    assert_eq!(cell("messages"), Some(weft_engine::inspect::Cell::Number(100)));
}

#[test]
fn a_link_with_a_pace_keeps_it_and_comes_to_rest() {
    for direction in [Direction::Pull, Direction::Push] {
        let (mut a, mut b, wire) = two();
        let (from, to) = match direction {
            Direction::Pull => (&mut a, &mut b),
            Direction::Push => (&mut b, &mut a),
        };
        let mut client = Client::connect(from);
        client.declare(from, "out", |_| ());
        for _ in 0..1_000 {
            client.publish(from, "", "out", &[b'x'; 10_000]);
        }
        from.close(client.conn);
        fill(to, "in", 0);
        let (address, queue) = if direction == Direction::Pull { ("out", "in") } else { ("in", "out") };
        let mut paced = order(wire.dialler.raw(), 1, direction, address, queue);
        paced.bytes_per_s_max = Some(500_000);
        b.apply(open(paced));
        let mut crossed = Vec::new();
        for _ in 0..30 * 200 {
            wire.carry(&mut b, &mut a);
            a.advance_ms(5);
            b.advance_ms(5);
            crossed.push(if direction == Direction::Pull { b.queue("in").0 } else { a.queue("in").0 });
        }
        let (ten_s, five_s) = (crossed[10 * 200 - 1], crossed[10 * 200 - 1] - crossed[5 * 200 - 1]);
        // Within a twentieth of fifty a second, in any five seconds. What counts is the message as it crosses, which is
        // a little more than its body.
        assert!((475..=525).contains(&ten_s) && (238..=262).contains(&five_s), "{direction:?}: {ten_s}, {five_s}");
        assert_eq!(crossed.last(), Some(&1_000), "{direction:?}");
        let mut wakes = 0;
        for _ in 0..200 {
            b.advance_ms(5);
            wakes += u32::from(b.engine.poll_timeout().is_some_and(|next_ns| next_ns <= b.now_ns + 10_000_000));
        }
        assert!(wakes < 20, "{direction:?}: nothing crosses, and it woke {wakes} times in a second");
    }
}
