//! AMQP 1.0 messages by the byte: many frames, sections passed on, addresses, times, and the way between the protocols.
//!
//! Owns the proof that a message arrives as it was sent, and that each protocol reads the other's. A simulated peer
//! sends, another one receives, what arrives is compared. It must never look inside a session. Rules: AMQP 1.0 part
//! 3, docs/reference/mapping.md.

mod peer10;

use peer10::*;
use weft_engine::Limits;
use weft_engine::change::Change;
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Item, Node};
use weft_wire::amqp10::sections::{put_amqp_value, put_data, put_map};
use weft_wire::amqp10::*;
use weft_wire::amqp091::properties::Properties as Properties091;
use weft_wire::amqp091::table::{Table, TableWriter, Value as Value091};

fn node() -> Node {
    Node::new(Limits::default(), 7)
}

/// A message with every section there is.
fn full() -> Vec<u8> {
    let mut map = MapBuf::new();
    map.put(Value::Symbol("x-opt-mine"), Value::Ulong(3));
    let mut out = Vec::new();
    Header { durable: true, priority: 7, ttl: Some(60_000), ..Header::default() }.encode(&mut out);
    put_map(&mut out, descriptor::DELIVERY_ANNOTATIONS, map.as_map());
    put_map(&mut out, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
    let properties = Properties {
        message_id: Some(MessageId::String("m-1")),
        correlation_id: Some(MessageId::Uuid([1; 16])),
        subject: Some("key"),
        reply_to: Some("back"),
        content_type: Some(Symbol("text/plain")),
        creation_time: Some(Timestamp(1_700_000_000_123)),
        group_id: Some("app"),
        ..Properties::default()
    };
    properties.encode(&mut out);
    let mut application = MapBuf::new();
    application.put(Value::String("colour"), Value::String("blue"));
    application.put(Value::String("number"), Value::Int(-4));
    put_map(&mut out, descriptor::APPLICATION_PROPERTIES, application.as_map());
    put_data(&mut out, &(0..700_u32).map(|n| (n % 251) as u8).collect::<Vec<_>>());
    put_map(&mut out, descriptor::FOOTER, map.as_map());
    out
}

fn bare(message: &[u8]) -> &[u8] {
    let head = sections::scan(message).expect("a message").head;
    &message[head.bare_start as usize..]
}

/// The frames of a message cut at these offsets.
fn frames(id: u32, message: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut edges = vec![0];
    edges.extend(cuts);
    edges.push(message.len());
    for (index, edge) in edges.windows(2).enumerate() {
        let tag = id.to_be_bytes();
        let first = index == 0;
        let transfer = Transfer {
            handle: 0,
            delivery_id: first.then_some(id),
            delivery_tag: first.then_some(&tag),
            settled: Some(true),
            more: index + 2 < edges.len(),
            ..Transfer::default()
        };
        bytes.extend(frame_of(&transfer, &message[edge[0]..edge[1]]));
    }
    bytes
}

#[test]
fn a_message_cut_anywhere_arrives_whole_and_its_bare_part_untouched() {
    let mut node = node();
    let (mut sender, mut receiver) = (Peer::connect(&mut node), Peer::connect(&mut node));
    sender.sender(&mut node, 0, Some("q"));
    receiver.receiver(&mut node, 0, "q", 1_000_000);
    let message = full();
    for cut in 0..=message.len() {
        node.feed(sender.conn, &frames(cut as u32, &message, &[cut]));
        let got = deliveries(&receiver.read(&mut node));
        assert_eq!(got.len(), 1, "cut at {cut}");
        assert_eq!(got[0].bare(), bare(&message), "cut at {cut}");
        let header = got[0].header();
        assert_eq!((header.durable, header.priority, header.ttl), (true, 7, Some(60_000)));
        assert_eq!((header.first_acquirer, header.delivery_count), (true, 0));
        assert_eq!(got[0].annotation("x-opt-mine"), Some(Value::Ulong(3)));
        assert!(sections::scan(&got[0].bytes).is_ok_and(|found| found.head.delivery_annotations.is_none()));
    }
    assert_eq!(sender.read(&mut node).iter().filter(|said| said.name() != "flow").count(), 0);
}

#[test]
fn small_frames_carry_large_messages_both_ways() {
    let mut node = node();
    let open = Open { container_id: "small", max_frame_size: 512, ..Open::default() };
    let (mut sender, mut receiver) = (Peer::connect(&mut node), Peer::connect_with(&mut node, &open));
    sender.sender(&mut node, 0, Some("q"));
    receiver.receiver(&mut node, 0, "q", 10);
    for len in [0, 1, 400, 430, 450, 470, 500, 511, 512, 513, 120_000] {
        let body: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
        sender.send(&mut node, 0, &message(&body), true);
        let said = receiver.read(&mut node);
        assert!(said.iter().all(|said| said.body.len() + 8 <= 512));
        let got = deliveries(&said);
        assert_eq!((got.len(), got[0].data() == body), (1, true), "{len} bytes");
        receiver.settle(&mut node, got[0].id, got[0].id, Outcome::Accepted);
        receiver.credit(&mut node, 0, got[0].id + 1, 10, false);
    }
}

#[test]
fn a_large_message_leaves_room_for_small_ones_and_stops_when_the_socket_does() {
    let mut node = node();
    let mut sender = Peer::connect(&mut node);
    sender.sender(&mut node, 0, Some("large"));
    sender.sender(&mut node, 1, Some("small"));
    let mut receiver = Peer::connect(&mut node);
    receiver.receiver(&mut node, 0, "large", 10);
    receiver.receiver(&mut node, 1, "small", 10);
    let body = vec![7; 5_000_000];
    let cuts: Vec<usize> = (1..50).map(|n| n * 100_000).collect();
    node.engine.writable(receiver.conn, false);
    node.feed(sender.conn, &frames(0, &message(&body), &cuts));
    let small = sender.transfer(1, &message(b"small"), true);
    node.feed(sender.conn, &small);
    assert!(receiver.read(&mut node).is_empty());
    node.engine.writable(receiver.conn, true);
    node.settle();
    let said = receiver.read(&mut node);
    let handles: Vec<u32> = said
        .iter()
        .filter_map(|said| match said.performative() {
            Performative::Transfer(transfer) => Some(transfer.handle),
            _ => None,
        })
        .collect();
    let small_at = handles.iter().position(|handle| *handle == 1).expect("the small one");
    assert!(small_at + 10 < handles.len(), "{small_at} of {}", handles.len());
    let got = deliveries(&said);
    assert_eq!(got.iter().find(|got| got.handle == 0).map(|got| got.data().len()), Some(body.len()));
}

#[test]
fn aborted_and_oversized_deliveries_leave_nothing_behind() {
    let limits = Limits { message_bytes_max: 1_000, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let message = message(&[7; 500]);
    let whole = frames(0, &message, &[100]);
    let first = u32::from_be_bytes([whole[0], whole[1], whole[2], whole[3]]) as usize;
    node.feed(peer.conn, &whole[..first]);
    let aborted = Transfer { handle: 0, aborted: true, ..Transfer::default() };
    node.feed(peer.conn, &frame_of(&aborted, b""));
    node.feed(peer.conn, &frames(1, &message, &[100]));
    assert_eq!(node.queue("q"), (1, 0, 0));
    node.feed(peer.conn, &frames(2, &[0; 3_000], &[900, 1_800]));
    let said = peer.read(&mut node);
    assert_eq!(condition(&said), "amqp:link:message-size-exceeded");
    assert_eq!(node.queue("q"), (1, 0, 0));
    assert_eq!(node.engine.broker.ledger.used(), 505 + 256 + 3);
}

#[test]
fn subjects_and_addresses_choose_where_a_message_goes() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    for (queue, key) in [("red", "red.*"), ("blue", "blue.*")] {
        client.declare(&mut node, queue, |_| ());
        client.bind(&mut node, queue, "amq.topic", key);
    }
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("/exchanges/amq.topic"));
    peer.sender(&mut node, 1, Some("/exchanges/amq.topic/blue.x"));
    peer.sender(&mut node, 2, None);
    let to = |subject, to| {
        let mut bytes = Vec::new();
        Properties { subject, to, ..Properties::default() }.encode(&mut bytes);
        put_data(&mut bytes, b"x");
        bytes
    };
    let answer = |peer: &mut Peer, node: &mut Node, handle, bytes: &[u8]| {
        answers(&peer.send(node, handle, bytes, false)).pop().map(|answer| answer.3).unwrap_or_default()
    };
    assert_eq!(answer(&mut peer, &mut node, 0, &to(Some("red.a"), None)), "accepted");
    assert_eq!(answer(&mut peer, &mut node, 0, &to(Some("green.a"), None)), "released");
    assert_eq!(answer(&mut peer, &mut node, 0, &to(Some("blue.a"), None)), "accepted");
    assert_eq!(answer(&mut peer, &mut node, 1, &to(Some("red.a"), None)), "accepted");
    assert_eq!(answer(&mut peer, &mut node, 2, &to(None, Some("red"))), "accepted");
    assert_eq!(answer(&mut peer, &mut node, 2, &to(None, Some("blue"))), "accepted");
    assert_eq!(answer(&mut peer, &mut node, 2, &to(None, Some("refused"))), "rejected amqp:not-found");
    assert_eq!(answer(&mut peer, &mut node, 2, &to(None, None)), "rejected amqp:precondition-failed");
    assert_eq!((node.queue("red").0, node.queue("blue").0), (2, 3));
    let got = deliveries(&peer.receiver(&mut node, 3, "red", 10));
    assert_eq!(got[0].annotation("x-exchange"), Some(Value::String("amq.topic")));
    assert_eq!(got[0].annotation("x-routing-key"), Some(Value::String("red.a")));
    assert_eq!(got[1].annotation("x-exchange"), None);
}

#[test]
fn what_routing_does_not_need_is_not_read() {
    let mut node = node();
    Client::connect(&mut node).declare(&mut node, "q", |_| ());
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, None);
    let mut bytes = Vec::new();
    Properties { to: Some("q"), ..Properties::default() }.encode(&mut bytes);
    // Nobody who decodes this would accept it: application properties and a value of types that do not exist.
    bytes.extend_from_slice(&[0, 0x53, 0x74, 0xc1, 3, 2, 0xff, 0xff]);
    bytes.extend_from_slice(&[0, 0x53, 0x77, 0xff, 0xff, 0xff]);
    assert_eq!(answers(&peer.send(&mut node, 0, &bytes, false)), [(0, 0, true, "accepted".to_owned())]);
    let got = deliveries(&peer.receiver(&mut node, 1, "q", 1));
    assert!(got[0].bytes.ends_with(&bytes), "{:?}", got[0].bytes);
}

/// A message to a queue, with so many application properties, values in its body and entries in its footer.
#[cfg(debug_assertions)]
fn loaded(queue: &str, count: u64) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|number| format!("name-{number}")).collect();
    let (mut application, mut footer) = (MapBuf::new(), MapBuf::new());
    for name in &names {
        application.put(Value::String(name), Value::Ulong(7));
        footer.put(Value::Symbol(name), Value::Ulong(7));
    }
    let mut bytes = Vec::new();
    Properties { to: Some(queue), ..Properties::default() }.encode(&mut bytes);
    put_map(&mut bytes, descriptor::APPLICATION_PROPERTIES, application.as_map());
    put_amqp_value(&mut bytes, &Value::Map(footer.as_map()));
    put_map(&mut bytes, descriptor::FOOTER, footer.as_map());
    bytes
}

#[cfg(debug_assertions)]
#[test]
fn whatever_is_in_a_message_as_many_values_of_it_are_read_to_route_it() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, None);
    peer.receiver(&mut node, 1, "q", 3);
    // The first one asks where `q` is; the others are routed and delivered, every byte of them.
    let [_, empty, full] = [0, 0, 1_000].map(|count| {
        let bytes = peer.transfer(0, &loaded("q", count), true);
        let before = values_read();
        node.receive(peer.conn, &bytes);
        node.settle();
        values_read() - before
    });
    assert_eq!(empty, full, "application properties, body or footer were read");
    assert_eq!(deliveries(&peer.read(&mut node)).last().map(Got::bare), Some(&loaded("q", 1_000)[..]));
    // Who wants to see them has them read.
    peer.send(&mut node, 0, &loaded("q", 1_000), true);
    let before = values_read();
    assert_eq!(client.get(&mut node, "q", true).len(), 1);
    assert!(values_read() - before >= 2_000);
}

#[test]
fn a_question_about_an_address_holds_the_connection_and_nothing_is_lost() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, None);
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    let mut bytes = Vec::new();
    Properties { to: Some("q"), ..Properties::default() }.encode(&mut bytes);
    bytes.extend(message(b"x"));
    let three: Vec<u8> = (0..3).flat_map(|_| peer.transfer(0, &bytes, false)).collect();
    // Nobody answers yet: neither the message that asked nor those behind it go anywhere.
    node.receive(peer.conn, &three);
    assert_eq!(node.queue("q"), (0, 0, 0));
    node.settle();
    assert_eq!(answers(&peer.read(&mut node)), [(0, 2, true, "accepted".to_owned())]);
    assert_eq!(node.queue("q"), (3, 0, 0));
}

#[test]
fn messages_wait_expire_and_go_to_more_keys() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "copy", |_| ());
    let annotated = |fill: &dyn Fn(&mut MapBuf)| {
        let mut map = MapBuf::new();
        fill(&mut map);
        let mut bytes = Vec::new();
        put_map(&mut bytes, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
        bytes.extend(message(b"x"));
        bytes
    };
    let at_ms = (WALL_NS / 1_000_000) as i64 + 5_000;
    let delayed = annotated(&|map| {
        map.put(Value::Symbol("x-opt-delivery-time"), Value::Timestamp(at_ms));
    });
    assert_eq!(answers(&peer.send(&mut node, 0, &delayed, false))[0].3, "accepted");
    assert_eq!(node.queue("q").0, 0);
    node.advance_ms(5_001);
    assert_eq!(node.queue("q").0, 1);
    let copied = annotated(&|map| {
        map.put_with(Value::Symbol("x-cc"), |out| {
            let mut keys = Compound::list(out);
            keys.value(&Value::String("copy"));
            keys.finish();
        });
    });
    peer.send(&mut node, 0, &copied, true);
    assert_eq!((node.queue("q").0, node.queue("copy").0), (2, 1));
    let mut short = Vec::new();
    Header { ttl: Some(100), ..Header::default() }.encode(&mut short);
    short.extend(message(b"short"));
    peer.send(&mut node, 0, &short, true);
    node.advance_ms(60);
    let mut other = Peer::connect(&mut node);
    let got = deliveries(&other.receiver(&mut node, 0, "q", 10));
    assert_eq!((got.len(), got[2].header().ttl), (3, Some(40)));
    other.call(&mut node, 0, &Detach { handle: 0, closed: true, error: None });
    assert_eq!(node.queue("q").0, 3);
    node.advance_ms(60);
    assert_eq!(bodies(&other.receiver(&mut node, 0, "q", 10)), ["x", "x"]);
}

#[test]
fn priorities_of_both_protocols_agree() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |table| table.i64(b"x-max-priority", 10));
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    for priority in [None, Some(9), Some(0), Some(4)] {
        let mut bytes = Vec::new();
        if let Some(priority) = priority {
            bytes.extend_from_slice(&[0, 0x53, 0x70, 0xc0, 4, 2, 0x40, 0x50, priority]);
        }
        bytes.extend(message(format!("{priority:?}").as_bytes()));
        peer.send(&mut node, 0, &bytes, true);
    }
    let five = Properties091 { priority: Some(5), ..Properties091::default() };
    client.publish_with(&mut node, "", "q", &five, b"0-9-1");
    let said = peer.receiver(&mut node, 1, "q", 10);
    assert_eq!(bodies(&said), ["Some(9)", "0-9-1", "Some(4)", "None", "Some(0)"]);
}

fn one(items: Vec<Item>) -> Item {
    items.into_iter().find(|item| item.method().has_content()).expect("a message")
}

#[test]
fn a_message_of_1_0_is_read_with_0_9_1() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    peer.send(&mut node, 0, &full(), true);
    let mut client = Client::connect(&mut node);
    let got = one(client.get(&mut node, "q", true));
    assert_eq!(got.body, (0..700_u32).map(|n| (n % 251) as u8).collect::<Vec<_>>());
    let properties = got.properties();
    assert_eq!((properties.delivery_mode, properties.priority), (Some(2), Some(7)));
    assert_eq!(properties.expiration, Some(&b"60000"[..]));
    assert_eq!(properties.message_id, Some(&b"m-1"[..]));
    assert_eq!(properties.correlation_id, Some(&b"urn:uuid:01010101-0101-0101-0101-010101010101"[..]));
    assert_eq!((properties.reply_to, properties.app_id), (Some(&b"back"[..]), Some(&b"app"[..])));
    assert_eq!((properties.content_type, properties.timestamp), (Some(&b"text/plain"[..]), Some(1_700_000_000)));
    let headers = properties.headers.expect("headers");
    assert_eq!(headers.get(b"colour").and_then(|value| value.as_bytes()), Some(&b"blue"[..]));
    assert_eq!(headers.get(b"number"), Some(Value091::I32(-4)));
    assert_eq!(headers.get(b"x-opt-mine"), Some(Value091::I64(3)));
}

#[test]
fn a_message_of_0_9_1_is_read_with_1_0() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.bind(&mut node, "q", "amq.direct", "key");
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        table.str(b"colour", b"blue");
        table.bool(b"ripe", true);
        table.i64(b"x-mine", 3);
        table.table(b"nested", |table| table.i64(b"n", 1));
        table.array(b"CC", |array| array.str(b"other"));
    });
    let properties = Properties091 {
        content_type: Some(b"text/plain"),
        headers: Some(Table::trusted(&headers[4..])),
        delivery_mode: Some(2),
        priority: Some(7),
        correlation_id: Some(b"urn:uuid:01010101-0101-0101-0101-010101010101"),
        reply_to: Some(b"back"),
        expiration: Some(b"60000"),
        message_id: Some(b"m-1"),
        timestamp: Some(1_700_000_000),
        message_type: Some(b"fruit"),
        user_id: Some(b"guest"),
        app_id: Some(b"app"),
        ..Properties091::default()
    };
    client.publish_with(&mut node, "amq.direct", "key", &properties, b"body");
    let mut peer = Peer::connect(&mut node);
    let got = &deliveries(&peer.receiver(&mut node, 0, "q", 1))[0];
    assert_eq!(got.data(), b"body");
    let header = got.header();
    assert_eq!((header.durable, header.priority, header.ttl), (true, 7, Some(60_000)));
    let found = sections::scan(&got.bytes).expect("a message").head;
    let properties = Properties::decode(found.properties.expect("properties").of(&got.bytes)).expect("properties");
    let expected = Properties {
        message_id: Some(MessageId::String("m-1")),
        user_id: Some(b"guest"),
        reply_to: Some("back"),
        correlation_id: Some(MessageId::Uuid([1; 16])),
        content_type: Some(Symbol("text/plain")),
        creation_time: Some(Timestamp(1_700_000_000_000)),
        group_id: Some("app"),
        ..Properties::default()
    };
    assert_eq!(properties, expected);
    let application = found.application_properties.expect("application properties").of(&got.bytes);
    let application = sections::decode_map(application).expect("a map");
    assert_eq!((application.get("colour"), application.len()), (Some(Value::String("blue")), 2));
    assert_eq!(got.annotation("x-mine"), Some(Value::Long(3)));
    assert_eq!(got.annotation("x-basic-type"), Some(Value::String("fruit")));
    assert_eq!(got.annotation("x-exchange"), Some(Value::String("amq.direct")));
    assert!(matches!(got.annotation("x-cc"), Some(Value::List(keys)) if keys.len() == 1));
}

#[test]
fn bodies_that_are_no_data_pass_through_0_9_1_and_back_unchanged() {
    let mut node = node();
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let mut client = Client::connect(&mut node);
    let mut body = Vec::new();
    put_amqp_value(&mut body, &Value::String("text"));
    peer.send(&mut node, 0, &body, true);
    let got = one(client.get(&mut node, "q", true));
    assert_eq!((got.properties().message_type, &got.body), (Some(&b"amqp-1.0"[..]), &body));
    client.publish_with(&mut node, "", "q", &got.properties(), &got.body);
    let said = peer.receiver(&mut node, 1, "q", 10);
    assert_eq!(deliveries(&said)[0].bare(), body);
    // Several data sections are one content; a lie about the type makes ordinary data.
    let mut many = message(b"one");
    many.extend(message(b"two"));
    peer.call(&mut node, 0, &Detach { handle: 1, closed: true, error: None });
    let purge = Change::DeleteQueue { vhost: "/".to_owned(), name: "q".to_owned() };
    node.engine.apply(vec![purge]).expect("a queue");
    client.declare(&mut node, "q", |_| ());
    peer.send(&mut node, 0, &many, true);
    assert_eq!(one(client.get(&mut node, "q", true)).body, b"onetwo");
    let lie = Properties091 { message_type: Some(b"amqp-1.0"), ..Properties091::default() };
    client.publish_with(&mut node, "", "q", &lie, b"\x00\x53\x77");
    let said = peer.receiver(&mut node, 2, "q", 10);
    assert_eq!(deliveries(&said)[0].data(), b"\x00\x53\x77");
}

#[test]
fn a_sender_is_stopped_by_its_window_when_memory_is_short_and_goes_on_later() {
    let limits = Limits { memory_bytes_max: 4 << 20, ..Limits::default() };
    let mut node = Node::new(limits, 7);
    let mut peer = Peer::connect(&mut node);
    peer.sender(&mut node, 0, Some("q"));
    let body = message(&[7; 60_000]);
    let window = |said: &[Said]| {
        said.iter().rev().find_map(|said| match said.performative() {
            Performative::Flow(flow) => Some(flow.incoming_window),
            _ => None,
        })
    };
    let mut sent = 0;
    while window(&peer.send(&mut node, 0, &body, true)) != Some(0) {
        sent += 1;
        assert!(sent < 100, "nobody stopped it");
    }
    assert!(!node.peers[&peer.conn].paused, "its settlements must still come in");
    let said = peer.receiver(&mut node, 1, "q", 1_000);
    let got = deliveries(&said);
    assert_eq!(got.len(), sent + 1);
    let said = peer.settle(&mut node, got[0].id, got[sent].id, Outcome::Accepted);
    assert_eq!(window(&said), Some(5_000));
    assert_eq!(answers(&peer.send(&mut node, 0, &body, false))[0].3, "accepted");
}
