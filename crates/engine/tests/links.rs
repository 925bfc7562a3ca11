//! Links between two nodes on a virtual wire: pulled and pushed messages, relays, and everything a peer can refuse.
//!
//! Owns the proof that nothing is lost, changed or sent in circles between engines. Two simulated nodes talk through a
//! `Wire`; a 0-9-1 client looks at both ends. It must never look inside a session. Rules: docs/reference/links.md.

mod peer10;

use std::rc::Rc;

use peer10::{Peer, message, names};
use weft_engine::Limits;
use weft_engine::change::{Change, Direction, LinkOrder, Refusal};
use weft_engine::event::Event;
use weft_engine::session::amqp10::Dial;
use weft_sim::client::table;
use weft_sim::{Client, Item, Node, Wire};
use weft_wire::amqp10::frame::Protocol;
use weft_wire::amqp10::{Attach, AttachTarget, Begin, Open, Outcome, Performative, Role, Source, Target, encode};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, Value};

fn node(name: &str) -> Node {
    let mut node = Node::new(Limits::default(), 7);
    node.engine.broker.node = Rc::from(name);
    node
}

fn anonymous() -> Dial {
    Dial { mechanism: "ANONYMOUS".to_owned(), frame_bytes_max: 131_072, idle_ms: 60_000, ..Dial::default() }
}

/// Node a, node b that dialled it, and the wire between them.
fn two() -> (Node, Node, Wire) {
    let (mut a, mut b) = (node("a"), node("b"));
    let wire = Wire::dial(&mut b, &mut a, anonymous());
    wire.carry(&mut b, &mut a);
    assert!(matches!(b.events.first(), Some(Event::PeerOpened { node, .. }) if node == "a"), "{:?}", b.events);
    (a, b, wire)
}

fn order(conn: u64, link: u64, direction: Direction, address: &str, queue: &str) -> LinkOrder {
    let queue = Some(queue.to_owned()).filter(|queue| !queue.is_empty());
    let (name, address, vhost) = (format!("link-{link}"), address.to_owned(), "/".to_owned());
    LinkOrder { conn, link, name, direction, address, vhost, queue, credit: 100, ..LinkOrder::default() }
}

fn open(order: LinkOrder) -> Vec<Change> {
    vec![Change::OpenLink(Box::new(order))]
}

fn detached(node: &Node) -> Vec<(u64, String, String)> {
    let found = node.events.iter().filter_map(|event| match event {
        Event::LinkDetached { link, condition, text, .. } => Some((*link, condition.clone(), text.clone())),
        _ => None,
    });
    found.collect()
}

fn attached(node: &Node) -> Vec<u64> {
    let found = node.events.iter().filter_map(|event| match event {
        Event::LinkAttached { link, .. } => Some(*link),
        _ => None,
    });
    found.collect()
}

/// Everything ready in a queue, taken by basic.get.
fn drain(node: &mut Node, queue: &str) -> Vec<Item> {
    let (mut client, mut all) = (Client::connect(node), Vec::new());
    loop {
        let said = client.get(node, queue, true);
        match said.last().map(Item::method) {
            Some(Method::BasicGetOk { .. }) => all.extend(said),
            _ => break,
        }
    }
    node.close(client.conn);
    all
}

fn texts(items: &[Item]) -> Vec<String> {
    items.iter().map(|item| String::from_utf8_lossy(&item.body).into_owned()).collect()
}

fn got(item: &Item) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match item.method() {
        Method::BasicGetOk { exchange, routing_key, .. } => (text(exchange), text(routing_key)),
        other => panic!("{other:?}"),
    }
}

fn fill(node: &mut Node, queue: &str, count: usize) {
    let mut client = Client::connect(node);
    client.declare(node, queue, |_| ());
    for number in 0..count {
        client.publish(node, "", queue, format!("{number}").as_bytes());
    }
    node.close(client.conn);
}

#[test]
fn a_pull_takes_every_message_once_and_in_order() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 1_000);
    fill(&mut b, "here", 0);
    b.apply(open(order(wire.dialler.raw(), 1, Direction::Pull, "q", "here")));
    wire.carry(&mut b, &mut a);
    assert_eq!(attached(&b), [1]);
    assert_eq!((a.queue("q"), b.queue("here")), ((0, 0, 1), (1_000, 0, 0)));
    let expected: Vec<String> = (0..1_000).map(|number| number.to_string()).collect();
    assert_eq!(texts(&drain(&mut b, "here")), expected);
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
        wire.carry(&mut b, &mut a);
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
    let causes = node.events.iter().filter_map(|event| match event {
        Event::ConnectionClosed { cause, .. } => Some(cause.clone()),
        _ => None,
    });
    causes.last().unwrap_or_default()
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
    wire.carry(&mut b, &mut a);
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

fn relay(conn: u64, link: u64, direction: Direction, address: &str, queue: &str) -> LinkOrder {
    LinkOrder { relay: true, ..order(conn, link, direction, address, queue) }
}

#[test]
fn a_0_9_1_message_crosses_unharmed_with_its_names_and_where_it_has_been() {
    let headers = table(|table| {
        table.str(b"plain", b"text");
        table.str(b"x-own", b"mine");
        table.str(b"long", &[b'l'; 400]);
        table.table(b"nested", |inner| inner.array(b"list", |list| list.value(Value::I16(-3))));
        table.value(b"decimal", Value::Decimal { scale: 2, value: 314 });
        table.value(b"void", Value::Void);
    });
    let sent = Properties {
        content_type: Some(b"text/\xff"),
        headers: Some(Table::trusted(&headers)),
        delivery_mode: Some(1),
        priority: Some(0),
        expiration: Some(b"600000"),
        message_id: Some(b"urn:uuid:00112233-4455-6677-8899-AABBccddeeff"),
        timestamp: Some(1),
        message_type: Some(b"amqp-1.0"),
        cluster_id: Some(b"cluster"),
        ..Properties::default()
    };
    for direction in [Direction::Pull, Direction::Push] {
        let (mut a, mut b, wire) = two();
        // From a to b by b's pull, or from b to a by b's push.
        let (from, to) = if direction == Direction::Pull { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let mut client = Client::connect(from);
        client.declare(from, "q", |_| ());
        client.bind(from, "q", "amq.topic", "some.*");
        client.publish_with(from, "amq.topic", "some.key", &sent, b"body");
        fill(to, "there", 0);
        let (address, queue) = if direction == Direction::Pull { ("q", "there") } else { ("there", "q") };
        b.apply(open(relay(wire.dialler.raw(), 1, direction, address, queue)));
        wire.carry(&mut b, &mut a);
        let (name, to) = if direction == Direction::Pull { ("a", &mut b) } else { ("b", &mut a) };
        let found = drain(to, "there");
        assert_eq!((found.len(), got(&found[0])), (1, ("amq.topic".to_owned(), "some.key".to_owned())));
        let properties = found[0].properties();
        let mut seen: Vec<(&[u8], Value<'_>)> = properties.headers.unwrap_or(Table::EMPTY).iter().collect();
        let stamp: Vec<(&[u8], Value<'_>)> = seen.split_off(seen.len() - 2);
        assert_eq!(seen, Table::trusted(&headers).iter().collect::<Vec<_>>());
        assert_eq!(Properties { headers: None, ..properties }, Properties { headers: None, ..sent });
        assert_eq!(found[0].body, b"body");
        let id = String::from_utf8_lossy(stamp[0].1.as_bytes().expect("text")).into_owned();
        assert!(stamp[0].0 == b"x-weft-id" && id.starts_with(&format!("{name}:")), "{id}");
        let Value::Array(trace) = stamp[1].1 else { panic!("{stamp:?}") };
        assert_eq!(trace.iter().collect::<Vec<_>>(), [Value::LongString(name.as_bytes())]);
    }
}

#[test]
fn far_exchanges_see_the_same_key_and_headers() {
    let (mut a, mut b, wire) = two();
    let mut client = Client::connect(&mut a);
    client.declare(&mut a, "q", |_| ());
    client.bind(&mut a, "q", "amq.topic", "#");
    let mut far = Client::connect(&mut b);
    far.declare(&mut b, "by-key", |_| ());
    far.bind(&mut b, "by-key", "amq.topic", "*.orange");
    far.declare(&mut b, "by-header", |_| ());
    let spec = weft_engine::change::BindingSpec {
        vhost: "/".to_owned(),
        source: "amq.headers".to_owned(),
        kind: weft_engine::event::Resource::Queue,
        destination: "by-header".to_owned(),
        routing_key: String::new(),
        arguments: table(|table| table.str(b"colour", b"red")).into(),
    };
    b.apply(vec![Change::Bind(spec)]);
    for (link, exchange) in [(1, "amq.topic"), (2, "amq.headers")] {
        let mut pull = relay(wire.dialler.raw(), link, Direction::Pull, "q", "");
        (pull.exchange, pull.refusal) = (Some(exchange.to_owned()), Refusal::Accept);
        b.apply(open(pull));
        wire.carry(&mut b, &mut a);
        let headers = table(|table| table.str(b"colour", b"red"));
        let red = Properties { headers: Some(Table::trusted(&headers)), ..Properties::default() };
        client.publish_with(&mut a, "amq.topic", "quick.orange", &red, b"yes");
        client.publish(&mut a, "amq.topic", "quick.blue", b"no");
        wire.carry(&mut b, &mut a);
        b.apply(vec![Change::CloseLink { conn: wire.dialler.raw(), link, closed: true }]);
        wire.carry(&mut b, &mut a);
    }
    assert_eq!(texts(&drain(&mut b, "by-key")), ["yes"]);
    assert_eq!(texts(&drain(&mut b, "by-header")), ["yes"]);
}

#[test]
fn a_relay_in_circles_ends_where_it_began() {
    let (mut a, mut b, wire) = two();
    let conn = wire.dialler.raw();
    // Everything in a's exchange goes to b's exchange, and everything there goes to a's.
    for node in [&mut a, &mut b] {
        let mut client = Client::connect(node);
        for queue in ["seen", "away"] {
            client.declare(node, queue, |_| ());
            client.bind(node, queue, "amq.fanout", "");
        }
    }
    for (link, direction) in [(1, Direction::Pull), (2, Direction::Push)] {
        let mut order = relay(conn, link, direction, "away", "");
        match direction {
            Direction::Pull => order.exchange = Some("amq.fanout".to_owned()),
            Direction::Push => (order.queue, order.address) = (Some("away".to_owned()), "/exchanges/amq.fanout".into()),
        }
        order.discard = true;
        b.apply(open(order));
    }
    wire.carry(&mut b, &mut a);
    let mut client = Client::connect(&mut a);
    for number in 0..50 {
        client.publish(&mut a, "amq.fanout", "k", format!("{number}").as_bytes());
    }
    wire.carry(&mut b, &mut a);
    assert_eq!((a.queue("seen").0, b.queue("seen").0), (50, 50), "each node saw each message once");
    assert_eq!((a.queue("away").0, b.queue("away").0), (0, 0), "b did not even send them back");
    assert_eq!(a.engine.stats()["looped"], 0);
}

#[test]
fn a_message_that_comes_back_by_a_stranger_is_dropped_and_counted() {
    let mut a = node("a");
    fill(&mut a, "q", 0);
    let mut peer = Peer::connect(&mut a);
    let mut properties = weft_wire::amqp10::MapBuf::new();
    properties.put(weft_wire::amqp10::Value::Symbol("weft:relay"), weft_wire::amqp10::Value::String("stranger"));
    let attach = Attach {
        name: "s",
        handle: 0,
        role: Role::Sender,
        source: Some(Source::default()),
        target: Some(AttachTarget::Target(Target { address: Some("q"), ..Target::default() })),
        initial_delivery_count: Some(0),
        properties: Some(properties.as_map()),
        ..Attach::default()
    };
    peer.call(&mut a, 0, &attach);
    let traced = |nodes: &[&str]| {
        let mut map = weft_wire::amqp10::MapBuf::new();
        map.put_with(weft_wire::amqp10::Value::Symbol("x-opt-weft-trace"), |out| {
            let mut list = weft_wire::amqp10::Compound::list(out);
            nodes.iter().for_each(|node| list.value(&weft_wire::amqp10::Value::String(node)));
            list.finish();
        });
        let mut bytes = Vec::new();
        weft_wire::amqp10::sections::put_map(
            &mut bytes,
            weft_wire::amqp10::descriptor::MESSAGE_ANNOTATIONS,
            map.as_map(),
        );
        bytes.extend_from_slice(&message(b"x"));
        bytes
    };
    let said = peer.send(&mut a, 0, &traced(&["b", "a", "c"]), false);
    assert_eq!(peer10::answers(&said)[0].3, "accepted");
    assert_eq!((a.queue("q").0, a.engine.stats()["looped"]), (0, 1));
    let said = peer.send(&mut a, 0, &traced(&["b", "aa"]), false);
    assert_eq!((peer10::answers(&said)[0].3.as_str(), a.queue("q").0), ("accepted", 1));
    let said = peer.send(&mut a, 0, &traced(&["far"; 64]), false);
    assert!(peer10::answers(&said)[0].3.starts_with("rejected"), "{said:?}");
}

#[test]
fn identity_and_trace_grow_from_hop_to_hop() {
    let (mut a, mut b, ab) = two();
    let mut c = node("c");
    let cb = Wire::dial(&mut c, &mut b, anonymous());
    cb.carry(&mut c, &mut b);
    for (node, queue) in [(&mut a, "q"), (&mut b, "q"), (&mut c, "q")] {
        fill(node, queue, 0);
    }
    b.apply(open(relay(ab.dialler.raw(), 1, Direction::Pull, "q", "q")));
    c.apply(open(relay(cb.dialler.raw(), 1, Direction::Pull, "q", "q")));
    let mut peer = Peer::connect(&mut a);
    peer.sender(&mut a, 0, Some("q"));
    peer.send(&mut a, 0, &message(b"by 1.0"), true);
    let mut client = Client::connect(&mut a);
    client.publish(&mut a, "", "q", b"by 0-9-1");
    for _ in 0..3 {
        ab.carry(&mut b, &mut a);
        cb.carry(&mut c, &mut b);
    }
    let found = drain(&mut c, "q");
    assert_eq!(texts(&found), ["by 1.0", "by 0-9-1"]);
    for item in found {
        let properties = item.properties();
        let headers = properties.headers.expect("headers");
        let Some(Value::Array(trace)) = headers.get(b"x-weft-trace") else { panic!("{headers:?}") };
        assert_eq!(trace.iter().collect::<Vec<_>>(), [Value::LongString(b"a"), Value::LongString(b"b")]);
        assert!(headers.get(b"x-weft-id").and_then(|id| id.as_bytes()).expect("an id").starts_with(b"a:"));
        assert_eq!(got(&item), (String::new(), "q".to_owned()));
    }
}
