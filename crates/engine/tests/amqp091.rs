//! AMQP 0-9-1 by the byte, without a socket: opening, publishing, consuming, settling, confirms, transactions.
//!
//! Owns the proof that the engine alone speaks the protocol. A simulated client says something, what the node answers
//! is compared. It must never look inside a session. Rules: AMQP 0-9-1 sections 1.4 to 1.9, RabbitMQ's confirms and
//! requeue order.

use weft_engine::Limits;
use weft_engine::event::Event;
use weft_sim::client::{opening, parse, write_publish};
use weft_sim::{Client, Item, Node};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::Table;

fn node() -> Node {
    Node::new(Limits::default(), 7)
}

/// Bodies of everything with content, in order.
fn bodies(items: &[Item]) -> Vec<String> {
    let with_content = items.iter().filter(|item| item.method().has_content());
    with_content.map(|item| String::from_utf8_lossy(&item.body).into_owned()).collect()
}

/// Delivery tag and redelivered flag of every basic.deliver.
fn tags(items: &[Item]) -> Vec<(u64, bool)> {
    let tag = |item: &Item| match item.method() {
        Method::BasicDeliver { delivery_tag, redelivered, .. } => Some((delivery_tag, redelivered)),
        _ => None,
    };
    items.iter().filter_map(tag).collect()
}

fn names(items: &[Item]) -> Vec<&'static str> {
    items.iter().map(|item| item.method().name()).collect()
}

/// The reply code of the only thing said, a close.
#[track_caller]
fn closed_with(items: &[Item]) -> u16 {
    match items.last().map(Item::method) {
        Some(Method::ChannelClose { reply_code, .. } | Method::ConnectionClose { reply_code, .. }) => reply_code,
        other => panic!("expected a close, got {other:?}"),
    }
}

fn get_body(client: &mut Client, node: &mut Node, queue: &str) -> Option<String> {
    bodies(&client.get(node, queue, true)).pop()
}

#[test]
fn the_opening_says_what_the_specification_says_and_asks_python_twice() {
    let mut node = node();
    let conn = node.open().expect("room");
    let whole = opening(0, |_| ());
    node.feed(conn, &whole);
    let (said, _) = parse(&node.take_output(conn));
    assert_eq!(names(&said), ["connection.start", "connection.tune", "connection.open-ok"]);
    let Method::ConnectionStart { mechanisms, server_properties, .. } = said[0].method() else { unreachable!() };
    assert!(mechanisms.windows(5).any(|word| word == b"PLAIN"));
    assert!(server_properties.get(b"capabilities").is_some());
    let asked = |event: &&Event| matches!(event, Event::AuthRequested { .. } | Event::OpenRequested { .. });
    assert_eq!(node.events.iter().filter(asked).count(), 2);
    // The same, one byte at a time, to another connection.
    let other = node.open().expect("room");
    for byte in &whole {
        node.feed(other, &[*byte]);
    }
    assert_eq!(parse(&node.take_output(other)).0, said);
}

#[test]
fn an_unknown_virtual_host_and_an_unknown_protocol_are_refused() {
    let mut node = node();
    let conn = node.open().expect("room");
    let mut bytes = opening(0, |_| ());
    bytes.truncate(bytes.len() - 16);
    Method::ConnectionOpen { virtual_host: b"nowhere" }.encode_frame(0, &mut bytes);
    node.feed(conn, &bytes);
    let (said, _) = parse(&node.take_output(conn));
    assert_eq!(closed_with(&said), 530);
    for greeting in [&b"GET / HT"[..], b"AMQP\0\0\x08\0", b"\0\0\0\0\0\0\0\0"] {
        let conn = node.open().expect("room");
        node.feed(conn, greeting);
        assert_eq!(node.take_output(conn), weft_wire::amqp091::PROTOCOL_HEADER);
        assert!(node.peers[&conn].gone);
    }
}

#[test]
fn messages_arrive_in_order_and_acks_are_counted() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.consume(&mut node, "q", "tag", false);
    let mut got = Vec::new();
    for body in ["a", "b", "c"] {
        got.extend(client.publish(&mut node, "", "q", body.as_bytes()));
    }
    assert_eq!(bodies(&got), ["a", "b", "c"]);
    assert_eq!(tags(&got), [(1, false), (2, false), (3, false)]);
    assert_eq!(node.queue("q"), (0, 3, 1));
    client.ack(&mut node, 2, true);
    assert_eq!(node.queue("q"), (0, 1, 1));
    assert_eq!(closed_with(&client.ack(&mut node, 2, false)), 406);
    assert_eq!(node.queue("q"), (1, 0, 0));
}

#[test]
fn what_is_returned_takes_its_old_place() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    for body in ["a", "b", "c", "d"] {
        client.publish(&mut node, "", "q", body.as_bytes());
    }
    for _ in 0..3 {
        client.get(&mut node, "q", false);
    }
    client.nack(&mut node, 3, false, true);
    client.call(&mut node, &Method::BasicReject { delivery_tag: 1, requeue: true });
    client.nack(&mut node, 2, false, false);
    let got = client.consume(&mut node, "q", "tag", true);
    assert_eq!(bodies(&got), ["a", "c", "d"]);
    assert_eq!(tags(&got).iter().map(|tag| tag.1).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn everything_unsettled_comes_back_when_its_channel_or_connection_ends() {
    let mut node = node();
    let (mut first, mut second) = (Client::connect(&mut node), Client::connect(&mut node));
    first.declare(&mut node, "q", |_| ());
    for body in ["a", "b", "c"] {
        first.publish(&mut node, "", "q", body.as_bytes());
    }
    first.consume(&mut node, "q", "tag", false);
    assert_eq!(node.queue("q"), (0, 3, 1));
    let close = Method::ChannelClose { reply_code: 200, reply_text: b"", class_id: 0, method_id: 0 };
    first.call(&mut node, &close);
    assert_eq!(node.queue("q"), (3, 0, 0));
    second.consume(&mut node, "q", "tag", false);
    node.close(second.conn);
    assert_eq!(node.queue("q"), (3, 0, 0));
    first.call(&mut node, &Method::ChannelOpen);
    let got = first.consume(&mut node, "q", "tag", true);
    assert_eq!(bodies(&got), ["a", "b", "c"]);
    assert!(tags(&got).iter().all(|tag| tag.1));
}

#[test]
fn recover_delivers_again_in_order() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.consume(&mut node, "q", "tag", false);
    for body in ["a", "b"] {
        client.publish(&mut node, "", "q", body.as_bytes());
    }
    let got = client.call(&mut node, &Method::BasicRecover { requeue: true });
    assert_eq!(names(&got)[0], "basic.recover-ok");
    assert_eq!(bodies(&got), ["a", "b"]);
    assert_eq!(tags(&got), [(3, true), (4, true)]);
}

#[test]
fn prefetch_is_never_passed_and_always_used() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.qos(&mut node, 3, false);
    client.consume(&mut node, "q", "one", false);
    client.qos(&mut node, 2, false);
    client.consume(&mut node, "q", "two", false);
    for number in 0..20_u8 {
        client.publish(&mut node, "", "q", &[number]);
    }
    assert_eq!(node.queue("q"), (15, 5, 2));
    // A limit of the whole channel holds beside those of its consumers.
    client.qos(&mut node, 4, true);
    client.ack(&mut node, 2, true);
    assert_eq!(node.queue("q"), (14, 4, 2));
    client.qos(&mut node, 0, true);
    assert_eq!(node.queue("q"), (13, 5, 2));
}

#[test]
fn flow_stops_and_resumes_deliveries() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.consume(&mut node, "q", "tag", true);
    assert_eq!(names(&client.call(&mut node, &Method::ChannelFlow { active: false })), ["channel.flow-ok"]);
    assert!(client.publish(&mut node, "", "q", b"held").is_empty());
    assert_eq!(bodies(&client.call(&mut node, &Method::ChannelFlow { active: true })), ["held"]);
}

#[test]
fn a_cancelled_consumer_keeps_its_deliveries_within_the_channels_limit() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.qos(&mut node, 1, true);
    client.consume(&mut node, "q", "first", false);
    client.consume(&mut node, "q", "second", false);
    client.publish(&mut node, "", "q", b"a");
    client.publish(&mut node, "", "q", b"b");
    client.call(&mut node, &Method::BasicCancel { consumer_tag: b"first", no_wait: false });
    assert_eq!(node.queue("q"), (1, 1, 1), "the channel may hold one");
    let got = client.ack(&mut node, 1, false);
    assert_eq!(bodies(&got), ["b"], "the other consumer's turn has come");
}

#[test]
fn confirms_count_every_publish_and_nack_what_was_refused() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "full", |table| {
        table.i64(b"x-max-length", 1);
        table.str(b"x-overflow", b"reject-publish");
    });
    client.call(&mut node, &Method::ConfirmSelect { no_wait: false });
    let mut bytes = Vec::new();
    for key in [&b"full"[..], b"nowhere", b"full", b"nowhere"] {
        write_publish(&mut bytes, 1, (b"", key), false, &Properties::default(), b"x");
    }
    node.feed(client.conn, &bytes);
    let said = client.read(&mut node);
    let answers: Vec<Method<'_>> = said.iter().map(Item::method).collect();
    assert_eq!(
        answers,
        [
            Method::BasicAck { delivery_tag: 2, multiple: true },
            Method::BasicNack { delivery_tag: 3, multiple: false, requeue: true },
            Method::BasicAck { delivery_tag: 4, multiple: false },
        ]
    );
}

#[test]
fn an_unroutable_mandatory_message_comes_back_before_its_confirm() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.call(&mut node, &Method::ConfirmSelect { no_wait: false });
    let mut bytes = Vec::new();
    write_publish(&mut bytes, 1, (b"amq.direct", b"nobody"), true, &Properties::default(), b"lost");
    node.feed(client.conn, &bytes);
    let said = client.read(&mut node);
    assert_eq!(names(&said), ["basic.return", "basic.ack"]);
    assert_eq!(bodies(&said), ["lost"]);
}

#[test]
fn a_transaction_is_seen_at_its_commit_and_not_before() {
    let mut node = node();
    let (mut client, mut other) = (Client::connect(&mut node), Client::connect(&mut node));
    client.declare(&mut node, "q", |_| ());
    other.publish(&mut node, "", "q", b"old");
    client.call(&mut node, &Method::TxSelect);
    client.get(&mut node, "q", false);
    client.publish(&mut node, "", "q", b"new");
    client.ack(&mut node, 1, false);
    assert_eq!(node.queue("q"), (0, 1, 0));
    client.call(&mut node, &Method::TxRollback);
    assert_eq!(node.queue("q"), (0, 1, 0));
    client.publish(&mut node, "", "q", b"newer");
    client.ack(&mut node, 1, false);
    assert_eq!(names(&client.call(&mut node, &Method::TxCommit)), ["tx.commit-ok"]);
    assert_eq!(node.queue("q"), (1, 0, 0));
    assert_eq!(get_body(&mut other, &mut node, "q").as_deref(), Some("newer"));
}

#[test]
fn a_transactions_settlement_survives_the_cancel_of_its_consumer() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    client.call(&mut node, &Method::TxSelect);
    client.consume(&mut node, "q", "first", false);
    let mut other = Client::connect(&mut node);
    other.publish(&mut node, "", "q", b"a");
    client.ack(&mut node, 1, false);
    client.call(&mut node, &Method::BasicCancel { consumer_tag: b"first", no_wait: false });
    client.consume(&mut node, "q", "second", false);
    assert_eq!(names(&client.call(&mut node, &Method::TxCommit)), ["tx.commit-ok"]);
    assert_eq!(node.queue("q"), (0, 0, 1));
}

#[test]
fn a_direct_reply_goes_to_the_channel_that_asked_and_to_no_other() {
    let mut node = node();
    let (mut asker, mut server) = (Client::connect(&mut node), Client::connect(&mut node));
    server.declare(&mut node, "work", |_| ());
    asker.consume(&mut node, "amq.rabbitmq.reply-to", "replies", true);
    let question = Properties { reply_to: Some(b"amq.rabbitmq.reply-to"), ..Properties::default() };
    asker.publish_with(&mut node, "", "work", &question, b"?");
    let got = server.get(&mut node, "work", true);
    let address = String::from_utf8_lossy(got[0].properties().reply_to.unwrap_or_default()).into_owned();
    server.publish(&mut node, "", &address, b"!");
    assert_eq!(bodies(&asker.read(&mut node)), ["!"]);
    let forged = format!("{}0", &address[..address.len() - 1]);
    if forged != address {
        server.publish(&mut node, "", &forged, b"forged");
        assert!(asker.read(&mut node).is_empty());
    }
}

#[test]
fn wrong_use_is_answered_with_the_protocols_own_codes() {
    let cases: [(Method<'_>, u16); 6] = [
        (Method::BasicGet { queue: b"missing", no_ack: true }, 404),
        (Method::BasicAck { delivery_tag: 9, multiple: false }, 406),
        (Method::TxCommit, 406),
        (Method::ChannelOpen, 504),
        (Method::BasicQos { prefetch_size: 1, prefetch_count: 0, global: false }, 540),
        (Method::BasicGetEmpty, 503),
    ];
    for (method, code) in cases {
        let mut node = node();
        let mut client = Client::connect(&mut node);
        assert_eq!(closed_with(&client.call(&mut node, &method)), code, "{method:?}");
    }
    let mut node = node();
    let mut client = Client::connect(&mut node);
    assert_eq!(closed_with(&client.call_on(&mut node, 2, &Method::TxSelect)), 504);
    // A content header out of the blue.
    let mut client = Client::connect(&mut node);
    node.feed(client.conn, b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\0\0\0\xCE");
    assert_eq!(closed_with(&client.read(&mut node)), 505);
}

#[test]
fn a_channel_has_so_many_consumers_and_no_more() {
    let mut node = Node::new(Limits { consumers_max: 2, ..Limits::default() }, 7);
    let mut client = Client::connect(&mut node);
    client.declare(&mut node, "q", |_| ());
    for round in 0..3 {
        let tag = format!("again-{round}");
        assert_eq!(names(&client.consume(&mut node, "q", &tag, true)), ["basic.consume-ok"]);
        let cancel = Method::BasicCancel { consumer_tag: tag.as_bytes(), no_wait: false };
        assert_eq!(names(&client.call(&mut node, &cancel)), ["basic.cancel-ok"]);
    }
    assert_eq!(names(&client.consume(&mut node, "q", "one", true)), ["basic.consume-ok"]);
    assert_eq!(names(&client.consume(&mut node, "amq.rabbitmq.reply-to", "two", true)), ["basic.consume-ok"]);
    assert_eq!(closed_with(&client.consume(&mut node, "q", "three", true)), 530);
}

#[test]
fn a_peer_that_lost_its_framing_is_told_once_and_cut() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    node.feed(client.conn, &[0xFF; 20]);
    for _ in 0..100 {
        node.feed(client.conn, &[0xFF; 20]);
    }
    let said = client.read(&mut node);
    assert_eq!(names(&said), ["connection.close"]);
    assert_eq!(closed_with(&said), 501);
    assert!(node.peers[&client.conn].gone);
}

#[test]
fn a_message_above_the_limit_is_refused_however_it_is_cut() {
    for pieces in [usize::MAX, 1] {
        let mut node = Node::new(Limits { message_bytes_max: 10, ..Limits::default() }, 7);
        let mut client = Client::connect(&mut node);
        client.declare(&mut node, "q", |_| ());
        let mut bytes = Vec::new();
        write_publish(&mut bytes, 1, (b"", b"q"), false, &Properties::default(), &[0; 11]);
        for piece in bytes.chunks(pieces) {
            node.feed(client.conn, piece);
        }
        assert_eq!(closed_with(&client.read(&mut node)), 406);
        assert_eq!(node.queue("q").0, 0);
    }
}

#[test]
fn a_server_made_name_is_remembered_by_its_channel() {
    let mut node = node();
    let mut client = Client::connect(&mut node);
    let said = client.declare(&mut node, "", |_| ());
    let Method::QueueDeclareOk { queue, .. } = said[0].method() else { panic!("{said:?}") };
    let name = String::from_utf8_lossy(queue).into_owned();
    let bind = Method::QueueBind {
        queue: b"",
        exchange: b"amq.direct",
        routing_key: b"",
        no_wait: false,
        arguments: Table::EMPTY,
    };
    assert_eq!(names(&client.call(&mut node, &bind)), ["queue.bind-ok"]);
    client.publish(&mut node, "amq.direct", &name, b"found");
    assert_eq!(get_body(&mut client, &mut node, "").as_deref(), Some("found"));
}
