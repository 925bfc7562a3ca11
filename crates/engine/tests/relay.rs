//! Relays between nodes on virtual wires: identity, trace, loops, and messages that arrive as they were sent.
//!
//! Owns the proof that messages cross unharmed, once, and in no circle. Simulated nodes talk through `Wire`s; clients
//! of both protocols look at the ends. It must never look inside a session. Rules: docs/reference/links.md.

mod pair;
mod peer10;

use pair::*;
use peer10::{Peer, message};
use weft_engine::Limits;
use weft_engine::change::{Change, Direction, LinkOrder, Refusal};
use weft_sim::client::table;
use weft_sim::{Client, Node, Wire};
use weft_wire::amqp10::sections::put_map;
use weft_wire::amqp10::{Attach, AttachTarget, Compound, MapBuf, Role, Source, Target, Value as Value10, descriptor};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, Value};

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

/// What a message of `kind` is published with.
fn properties_of<'a>(kind: u32, headers: &'a [Vec<u8>; 3]) -> Properties<'a> {
    let own = |at: usize| Some(Table::trusted(&headers[at]));
    match kind {
        0 => Properties::default(),
        1 => Properties { content_type: Some(b"text/plain"), ..Properties::default() },
        2 => Properties { headers: own(0), priority: Some(3), ..Properties::default() },
        3 => Properties { headers: own(1), priority: Some(3), ..Properties::default() },
        4 => Properties { headers: own(2), delivery_mode: Some(2), ..Properties::default() },
        _ => Properties { expiration: Some(b"600000"), message_id: Some(b"a:1"), ..Properties::default() },
    }
}

#[test]
fn messages_that_look_like_the_one_before_cross_as_others_do() {
    // The second differs from the first in one letter, and the third has a client's own idea of an identity.
    let headers = [
        table(|table| table.str(b"colour", b"red")),
        table(|table| table.str(b"colour", b"rad")),
        table(|table| table.table(b"copied", |inner| inner.str(b"x-weft-id", b"a:1"))),
    ];
    for direction in [Direction::Pull, Direction::Push] {
        let (mut a, mut b, wire) = two();
        let (from, to) = if direction == Direction::Pull { (&mut a, &mut b) } else { (&mut b, &mut a) };
        let mut client = Client::connect(from);
        client.declare(from, "q", |_| ());
        client.bind(from, "q", "amq.topic", "#");
        fill(to, "there", 0);
        let (address, queue) = if direction == Direction::Pull { ("q", "there") } else { ("there", "q") };
        b.apply(open(relay(wire.dialler.raw(), 1, direction, address, queue)));
        wire.settle(&mut b, &mut a);
        let (mut word, mut sent) = (7_u32, Vec::new());
        for number in 0..600 {
            let (from, to) = if direction == Direction::Pull { (&mut a, &mut b) } else { (&mut b, &mut a) };
            // Runs of a kind, of a key and of a size, so that some messages are like the one before and some nearly.
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let kind =
                if number % 3 == 0 { (word >> 24) % 6 } else { sent.last().map_or(0, |last: &(u32, _, _)| last.0) };
            let key = ["k", "l", "longer"][(number / 40) % 3];
            let body = vec![b'0' + (number % 10) as u8; [1, 255, 256, 1_024, 0][(number / 7) % 5]];
            client.publish_with(from, "amq.topic", key, &properties_of(kind, &headers), &body);
            sent.push((kind, key, body));
            if number % 50 == 49 {
                fill(to, &format!("another-{number}"), 0); // what was remembered of routes is worth nothing now
            }
            if word >> 30 == 0 {
                wire.settle(&mut b, &mut a);
            }
        }
        wire.settle(&mut b, &mut a);
        let (name, to) = if direction == Direction::Pull { ("a", &mut b) } else { ("b", &mut a) };
        let (found, mut before) = (drain(to, "there"), 0);
        assert_eq!(found.len(), sent.len());
        for (item, (kind, key, body)) in found.iter().zip(&sent) {
            assert_eq!(got(item), ("amq.topic".to_owned(), (*key).to_owned()));
            assert_eq!(item.body, *body);
            let (properties, expected) = (item.properties(), properties_of(*kind, &headers));
            let mut seen: Vec<(&[u8], Value<'_>)> = properties.headers.unwrap_or(Table::EMPTY).iter().collect();
            let stamp: Vec<(&[u8], Value<'_>)> = seen.split_off(seen.len() - 2);
            assert_eq!(seen, expected.headers.unwrap_or(Table::EMPTY).iter().collect::<Vec<_>>());
            assert_eq!(Properties { headers: None, ..properties }, Properties { headers: None, ..expected });
            let id = String::from_utf8_lossy(stamp[0].1.as_bytes().expect("text")).into_owned();
            let number: u64 = id.strip_prefix(&format!("{name}:")).and_then(|it| it.parse().ok()).expect("a number");
            let follows = before == 0 || number == before + 1;
            assert!(stamp[0].0 == b"x-weft-id" && follows, "{id} after {before}");
            before = number;
        }
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
    let mut properties = MapBuf::new();
    properties.put(Value10::Symbol("weft:relay"), Value10::String("stranger"));
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
        let mut map = MapBuf::new();
        map.put_with(Value10::Symbol("x-opt-weft-trace"), |out| {
            let mut list = Compound::list(out);
            nodes.iter().for_each(|node| list.value(&Value10::String(node)));
            list.finish();
        });
        let mut bytes = Vec::new();
        put_map(&mut bytes, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
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

#[test]
fn a_lost_connection_neither_loses_nor_doubles() {
    let (mut a, mut b, mut wire) = two();
    fill(&mut a, "q", 500);
    fill(&mut a, "there", 0);
    fill(&mut b, "here", 0);
    fill(&mut b, "out", 500);
    // Cut after one round more each time, so that every state of a delivery is met.
    for rounds in 1..40 {
        let conn = wire.dialler.raw();
        let credit = 7;
        b.apply(open(LinkOrder { credit, ..relay(conn, 1, Direction::Pull, "q", "here") }));
        b.apply(open(relay(conn, 2, Direction::Push, "there", "out")));
        for _ in 0..rounds {
            wire.carry_once(&mut b, &mut a);
        }
        if rounds % 2 == 0 {
            // What b has said already still arrives; what a answers does not.
            let last_words = b.take_output(wire.dialler);
            a.feed(wire.listener, &last_words);
        }
        wire.cut(&mut b, &mut a);
        wire = Wire::dial(&mut b, &mut a, anonymous());
        wire.carry(&mut b, &mut a);
    }
    let conn = wire.dialler.raw();
    b.apply(open(relay(conn, 1, Direction::Pull, "q", "here")));
    b.apply(open(relay(conn, 2, Direction::Push, "there", "out")));
    wire.carry(&mut b, &mut a);
    let duplicates = a.engine.broker.totals.duplicates + b.engine.broker.totals.duplicates;
    assert!(duplicates > 0, "nothing was sent twice: the cuts were in the wrong places");
    for (node, queue) in [(&mut b, "here"), (&mut a, "there")] {
        let mut found: Vec<usize> = texts(&drain(node, queue)).iter().map(|text| text.parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..500).collect::<Vec<_>>(), "{queue}");
    }
}

#[test]
fn copies_by_several_paths_arrive_once_but_copies_for_several_queues_arrive_in_each() {
    let (mut a, mut b, ab) = two();
    let mut client = Client::connect(&mut a);
    for queue in ["q1", "q2"] {
        client.declare(&mut a, queue, |_| ());
        client.bind(&mut a, queue, "amq.fanout", "");
    }
    for queue in ["b1", "b2", "both"] {
        fill(&mut b, queue, 0);
    }
    let conn = ab.dialler.raw();
    for number in 0..10 {
        client.publish(&mut a, "amq.fanout", "", format!("{number}").as_bytes());
    }
    // Two ways into two queues, then two ways into one.
    b.apply(open(relay(conn, 1, Direction::Pull, "q1", "b1")));
    b.apply(open(relay(conn, 2, Direction::Pull, "q2", "b2")));
    ab.carry(&mut b, &mut a);
    assert_eq!((b.queue("b1").0, b.queue("b2").0), (10, 10));
    for link in [1, 2] {
        b.apply(vec![Change::CloseLink { conn, link, closed: true }]);
    }
    ab.carry(&mut b, &mut a);
    for number in 0..10 {
        client.publish(&mut a, "amq.fanout", "", format!("{number}").as_bytes());
    }
    b.apply(open(relay(conn, 3, Direction::Pull, "q1", "both")));
    b.apply(open(relay(conn, 4, Direction::Pull, "q2", "both")));
    ab.carry(&mut b, &mut a);
    assert_eq!((b.queue("both").0, a.queue("q1").0, a.queue("q2").0), (10, 0, 0));
}

#[test]
fn what_came_is_known_for_longer_than_an_outage_may_last_and_no_longer() {
    let limits = Limits { relay_window_s: 1, doubt_s: 100, relay_ids_max: 15, ..Limits::default() };
    let (mut a, mut b) = (node("a"), Node::new(limits, 7));
    b.engine.broker.node = "b".into();
    let mut client = Client::connect(&mut a);
    for queue in ["q1", "q2"] {
        client.declare(&mut a, queue, |_| ());
        client.bind(&mut a, queue, "amq.fanout", "");
    }
    fill(&mut b, "here", 0);
    // By one way, and by the other when the outage is over: as long as may be, a bit longer, and much longer.
    for (messages, outage_s, there) in [(10, 100, 10), (10, 124, 20), (10, 126, 40), (20, 100, 80)] {
        for number in 0..messages {
            client.publish(&mut a, "amq.fanout", "", format!("{number}").as_bytes());
        }
        for (link, queue, waits_s) in [(1, "q1", outage_s), (2, "q2", 1_000)] {
            let ab = Wire::dial(&mut b, &mut a, anonymous());
            ab.carry(&mut b, &mut a);
            b.apply(open(relay(ab.dialler.raw(), link, Direction::Pull, queue, "here")));
            ab.settle(&mut b, &mut a);
            ab.cut(&mut b, &mut a);
            b.advance_ms(waits_s * 1_000);
        }
        // Of the last twenty no more than fifteen are remembered, and each that comes again costs the next its place.
        assert_eq!((b.queue("here").0, a.queue("q2").0), (there, 0), "{messages} messages, {outage_s} s");
    }
}

#[test]
fn what_a_client_copies_is_a_message_of_its_own() {
    let (mut a, mut b, wire) = two();
    for queue in ["q", "replies"] {
        fill(&mut a, queue, 0);
        fill(&mut b, queue, 0);
    }
    b.apply(open(relay(wire.dialler.raw(), 1, Direction::Pull, "q", "q")));
    b.apply(open(relay(wire.dialler.raw(), 2, Direction::Push, "replies", "replies")));
    let mut client = Client::connect(&mut a);
    for body in [&b"one"[..], b"two"] {
        client.publish(&mut a, "", "q", body);
    }
    wire.carry(&mut b, &mut a);
    let requests = drain(&mut b, "q");
    assert_eq!(requests.len(), 2);
    // A service that answers with the headers of the request, twice the same: nothing of it may be lost.
    let mut service = Client::connect(&mut b);
    for item in [&requests[0], &requests[0], &requests[1]] {
        service.publish_with(&mut b, "", "replies", &item.properties(), b"reply");
    }
    wire.carry(&mut b, &mut a);
    assert_eq!((a.queue("replies").0, b.queue("replies").0), (3, 0));
}

#[test]
fn a_dead_letter_may_go_back_to_where_it_came_from() {
    let (mut a, mut b, wire) = two();
    fill(&mut a, "q", 1);
    fill(&mut a, "graveyard", 0);
    let mut client = Client::connect(&mut b);
    client.declare(&mut b, "q", |table| {
        table.str(b"x-dead-letter-exchange", b"");
        table.str(b"x-dead-letter-routing-key", b"dead");
    });
    client.declare(&mut b, "dead", |_| ());
    b.apply(open(relay(wire.dialler.raw(), 1, Direction::Pull, "q", "q")));
    b.apply(open(relay(wire.dialler.raw(), 2, Direction::Push, "graveyard", "dead")));
    wire.carry(&mut b, &mut a);
    let said = client.get(&mut b, "q", false);
    let Method::BasicGetOk { delivery_tag, .. } = said[0].method() else { panic!("{said:?}") };
    client.nack(&mut b, delivery_tag, false, false);
    wire.carry(&mut b, &mut a);
    let found = drain(&mut a, "graveyard");
    assert_eq!(found.len(), 1);
    let properties = found[0].properties();
    let headers = properties.headers.expect("headers");
    let Some(Value::Array(rows)) = headers.get(b"x-death") else { panic!("{headers:?}") };
    let Some(Value::Table(row)) = rows.iter().next() else { panic!("{rows:?}") };
    assert_eq!(row.get(b"queue").and_then(|name| name.as_bytes()), Some(&b"q"[..]));
    assert!(headers.get(b"x-weft-id").and_then(|id| id.as_bytes()).expect("an id").starts_with(b"b:"));
}

#[test]
fn a_message_of_a_queue_may_go_in_circles_and_is_still_not_doubled() {
    let (mut a, mut b, mut wire) = two();
    fill(&mut a, "q", 20);
    fill(&mut b, "q", 0);
    let circling = |conn, link, direction| LinkOrder { circles: true, ..relay(conn, link, direction, "q", "q") };
    // There and back, and there again; each way is cut once in the middle.
    for (round, direction) in [Direction::Pull, Direction::Push, Direction::Pull].into_iter().enumerate() {
        b.apply(open(circling(wire.dialler.raw(), 1, direction)));
        for _ in 0..3 {
            wire.carry_once(&mut b, &mut a);
        }
        let last_words = b.take_output(wire.dialler);
        a.feed(wire.listener, &last_words);
        wire.cut(&mut b, &mut a);
        wire = Wire::dial(&mut b, &mut a, anonymous());
        wire.carry(&mut b, &mut a);
        b.apply(open(circling(wire.dialler.raw(), 1, direction)));
        wire.settle(&mut b, &mut a);
        let conn = wire.dialler.raw();
        b.apply(vec![Change::CloseLink { conn, link: 1, closed: true }]);
        wire.carry(&mut b, &mut a);
        let expected = if round % 2 == 0 { (0, 20) } else { (20, 0) };
        assert_eq!((a.queue("q").0, b.queue("q").0), expected, "round {round}");
    }
    assert_eq!(a.engine.stats()["looped"] + b.engine.stats()["looped"], 0);
}
