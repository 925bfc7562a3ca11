//! What queues do with time, length, priority and failure, seen by a 0-9-1 client on a virtual clock.
//!
//! Owns the proof of RabbitMQ's queue arguments in the engine. A simulated client declares and publishes, time passes
//! by the millisecond, and what is left is compared. It must never wait for anything. Rules: RabbitMQ's TTL, length
//! limit, priority queue, dead letter and quorum delivery-limit semantics.

use weft_engine::Limits;
use weft_sim::client::{table, write_publish};
use weft_sim::{Client, Item, Node};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value};

fn pair() -> (Node, Client) {
    let mut node = Node::new(Limits::default(), 7);
    let client = Client::connect(&mut node);
    (node, client)
}

/// Everything ready in a queue, taken by basic.get.
fn drain(node: &mut Node, client: &mut Client, queue: &str) -> Vec<Item> {
    let mut all = Vec::new();
    loop {
        let said = client.get(node, queue, true);
        match said.last().map(Item::method) {
            Some(Method::BasicGetOk { .. }) => all.extend(said),
            _ => return all,
        }
    }
}

fn texts(items: &[Item]) -> Vec<String> {
    items.iter().map(|item| String::from_utf8_lossy(&item.body).into_owned()).collect()
}

/// (queue, reason, count) of each line of a message's death record.
fn deaths(item: &Item) -> Vec<(String, String, i64)> {
    let Some(Value::Array(rows)) = item.properties().headers.and_then(|headers| headers.get(b"x-death")) else {
        return Vec::new();
    };
    let text = |row: &Table<'_>, key: &[u8]| {
        String::from_utf8_lossy(row.get(key).and_then(|value| value.as_bytes()).unwrap_or_default()).into_owned()
    };
    let read = |row: Value<'_>| match row {
        Value::Table(row) => {
            let count = row.get(b"count").and_then(|value| value.as_i64()).unwrap_or(0);
            (text(&row, b"queue"), text(&row, b"reason"), count)
        }
        other => panic!("{other:?} in a death record"),
    };
    rows.iter().map(read).collect()
}

fn to_dead(table: &mut TableWriter<'_>) {
    table.str(b"x-dead-letter-exchange", b"");
    table.str(b"x-dead-letter-routing-key", b"dead");
}

fn expiring(expiration: &[u8]) -> Properties<'_> {
    Properties { expiration: Some(expiration), ..Properties::default() }
}

#[test]
fn messages_live_as_long_as_the_shorter_of_both_limits() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.i64(b"x-message-ttl", 100));
    client.publish(&mut node, "", "q", b"queue");
    client.publish_with(&mut node, "", "q", &expiring(b"1000"), b"longer");
    node.advance_ms(100);
    assert_eq!(node.queue("q").0, 2, "not before its time");
    node.advance_ms(1);
    assert_eq!(node.queue("q").0, 0);
    client.publish_with(&mut node, "", "q", &expiring(b"10"), b"shorter");
    node.advance_ms(11);
    assert_eq!(node.queue("q").0, 0);
}

#[test]
fn only_the_head_expires_so_a_message_may_wait_behind_a_longer_one() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |_| ());
    client.publish_with(&mut node, "", "q", &expiring(b"1000"), b"long");
    client.publish_with(&mut node, "", "q", &expiring(b"10"), b"short");
    node.advance_ms(500);
    assert_eq!(node.queue("q").0, 2);
    node.advance_ms(501);
    assert_eq!(node.queue("q").0, 0);
}

#[test]
fn a_message_without_any_time_reaches_a_waiting_consumer_and_no_later_one() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |_| ());
    client.publish_with(&mut node, "", "q", &expiring(b"0"), b"late");
    node.advance_ms(1);
    assert_eq!(node.queue("q").0, 0);
    client.consume(&mut node, "q", "tag", true);
    assert_eq!(texts(&client.publish_with(&mut node, "", "q", &expiring(b"0"), b"now")), ["now"]);
}

#[test]
fn unsettled_messages_do_not_expire_until_they_are_back() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.i64(b"x-message-ttl", 100));
    client.publish(&mut node, "", "q", b"a");
    client.get(&mut node, "q", false);
    node.advance_ms(1_000);
    assert_eq!(node.queue("q"), (0, 1, 0));
    client.nack(&mut node, 1, false, true);
    node.advance_ms(1);
    assert_eq!(node.queue("q"), (0, 0, 0));
}

#[test]
fn an_idle_queue_expires_and_a_used_one_does_not() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.i64(b"x-expires", 100));
    for _ in 0..3 {
        node.advance_ms(99);
        client.get(&mut node, "q", true);
    }
    client.consume(&mut node, "q", "tag", true);
    node.advance_ms(1_000);
    client.call(&mut node, &Method::BasicCancel { consumer_tag: b"tag", no_wait: false });
    node.advance_ms(99);
    assert!(node.engine.queue_stats("/", "q").is_some());
    node.advance_ms(2);
    assert!(node.engine.queue_stats("/", "q").is_none());
}

#[test]
fn what_becomes_the_head_after_its_time_dies_of_that_and_not_of_the_limit() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "dead", |_| ());
    client.declare(&mut node, "q", |table| {
        to_dead(table);
        table.i64(b"x-max-length", 2);
    });
    client.publish(&mut node, "", "q", b"head");
    let timed = Properties { expiration: Some(b"3"), ..Properties::default() };
    client.publish_with(&mut node, "", "q", &timed, b"timed");
    node.advance_ms(4);
    // In one read: the limit is looked at after each of them all the same.
    let mut bytes = Vec::new();
    for body in [b"a", b"b"] {
        write_publish(&mut bytes, 1, (b"", b"q"), false, &Properties::default(), body);
    }
    node.feed(client.conn, &bytes);
    let died = drain(&mut node, &mut client, "dead");
    let reasons: Vec<_> = died.iter().map(|item| deaths(item)[0].1.clone()).collect();
    assert_eq!((texts(&died), reasons), (vec!["head".into(), "timed".into()], vec!["maxlen".into(), "expired".into()]));
    assert_eq!(texts(&drain(&mut node, &mut client, "q")), ["a", "b"]);
}

#[test]
fn a_dead_letter_says_why_where_and_how_often() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "dead", |_| ());
    client.declare(&mut node, "q", |table| {
        to_dead(table);
        table.i64(b"x-message-ttl", 50);
        table.i64(b"x-max-length", 1);
    });
    client.publish(&mut node, "", "q", b"pushed out");
    client.publish(&mut node, "", "q", b"too old");
    node.advance_ms(51);
    client.publish(&mut node, "", "q", b"bad");
    client.get(&mut node, "q", false);
    client.nack(&mut node, 1, false, false);
    let got = drain(&mut node, &mut client, "dead");
    assert_eq!(texts(&got), ["pushed out", "too old", "bad"]);
    let reasons: Vec<_> = got.iter().map(|item| deaths(item)[0].1.clone()).collect();
    assert_eq!(reasons, ["maxlen", "expired", "rejected"]);
    assert!(got.iter().all(|item| deaths(item) == [("q".to_owned(), deaths(item)[0].1.clone(), 1)]));
}

#[test]
fn a_message_goes_round_while_consumers_reject_it_and_its_deaths_are_counted() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "dead", |table| table.str(b"x-dead-letter-exchange", b"amq.fanout"));
    client.bind(&mut node, "dead", "amq.fanout", "");
    client.publish(&mut node, "", "dead", b"again");
    for round in 1..=3 {
        let got = client.get(&mut node, "dead", false);
        let expected = if round == 1 { vec![] } else { vec![("dead".to_owned(), "rejected".to_owned(), round - 1)] };
        assert_eq!(deaths(&got[0]), expected);
        client.nack(&mut node, round as u64, false, false);
    }
    assert_eq!(node.queue("dead").0, 1);
}

#[test]
fn a_cycle_without_a_rejection_ends() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "loop", |table| {
        table.i64(b"x-message-ttl", 10);
        table.str(b"x-dead-letter-exchange", b"amq.fanout");
    });
    client.bind(&mut node, "loop", "amq.fanout", "");
    client.publish(&mut node, "", "loop", b"once");
    node.advance_ms(11);
    node.advance_ms(11);
    assert_eq!(node.queue("loop").0, 0);
    assert_eq!(node.engine.stats()["memory_bytes"], 0);
}

/// A ring of queues, each so full that it passes every message on to the next.
fn ring_of_full_queues(count: usize, overflow: &[u8]) -> (Node, Client) {
    let (mut node, mut client) = pair();
    for number in 0..count {
        client.declare(&mut node, &format!("ring{number}"), |table| {
            table.i64(b"x-max-length", 0);
            table.str(b"x-overflow", overflow);
            table.str(b"x-dead-letter-exchange", b"");
            table.str(b"x-dead-letter-routing-key", format!("ring{}", (number + 1) % count).as_bytes());
        });
    }
    (node, client)
}

#[test]
fn however_long_a_ring_of_dead_letters_is_a_message_stops_in_it() {
    for overflow in [&b"drop-head"[..], b"reject-publish-dlx"] {
        for count in [3, 100] {
            let (mut node, mut client) = ring_of_full_queues(count, overflow);
            client.publish(&mut node, "", "ring0", b"round and round");
            assert_eq!(node.engine.stats()["memory_bytes"], 0, "{count} queues");
        }
    }
}

#[test]
fn a_chain_of_ten_thousand_dead_letter_queues_is_walked_without_a_deep_stack() {
    let (mut node, mut client) = ring_of_full_queues(10_000, b"reject-publish-dlx");
    client.publish(&mut node, "", "ring0", b"far");
    assert_eq!(node.engine.stats()["memory_bytes"], 0);
}

#[test]
fn what_fails_too_often_is_a_dead_letter() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "dead", |_| ());
    client.declare(&mut node, "q", |table| {
        to_dead(table);
        table.i64(b"x-delivery-limit", 2);
    });
    client.publish(&mut node, "", "q", b"poison");
    for tag in 1..=3 {
        let got = client.get(&mut node, "q", false);
        let count = got[0].properties().headers.and_then(|headers| headers.get(b"x-delivery-count"));
        assert_eq!(count.and_then(|value| value.as_i64()), if tag == 1 { None } else { Some(tag - 1) });
        client.nack(&mut node, tag as u64, false, true);
    }
    let got = drain(&mut node, &mut client, "dead");
    assert_eq!(deaths(&got[0]), [("q".to_owned(), "delivery_limit".to_owned(), 1)]);
}

#[test]
fn higher_priorities_overtake_and_equal_ones_keep_their_order() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.i64(b"x-max-priority", 5));
    for (priority, body) in [(0, "low"), (5, "high 1"), (9, "high 2"), (3, "middle"), (5, "high 3")] {
        let properties = Properties { priority: Some(priority), ..Properties::default() };
        client.publish_with(&mut node, "", "q", &properties, body.as_bytes());
    }
    client.get(&mut node, "q", false);
    client.nack(&mut node, 1, false, true);
    let got = drain(&mut node, &mut client, "q");
    assert_eq!(texts(&got), ["high 1", "high 2", "high 3", "middle", "low"]);
}

#[test]
fn a_full_queue_drops_its_head_or_refuses() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "heads", |table| table.i64(b"x-max-length", 2));
    client.declare(&mut node, "bytes", |table| table.i64(b"x-max-length-bytes", 4));
    client.declare(&mut node, "refuses", |table| {
        table.i64(b"x-max-length", 2);
        table.str(b"x-overflow", b"reject-publish");
    });
    for queue in ["heads", "bytes", "refuses"] {
        for body in ["aa", "bb", "cc"] {
            client.publish(&mut node, "", queue, body.as_bytes());
        }
    }
    assert_eq!(texts(&drain(&mut node, &mut client, "heads")), ["bb", "cc"]);
    assert_eq!(texts(&drain(&mut node, &mut client, "bytes")), ["bb", "cc"]);
    assert_eq!(texts(&drain(&mut node, &mut client, "refuses")), ["aa", "bb"]);
}

#[test]
fn only_ready_messages_count_for_the_length() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.i64(b"x-max-length", 1));
    client.publish(&mut node, "", "q", b"held");
    client.get(&mut node, "q", false);
    client.publish(&mut node, "", "q", b"ready");
    assert_eq!(node.queue("q"), (1, 1, 0));
}

#[test]
fn one_consumer_at_a_time_and_then_the_next() {
    let (mut node, mut client) = pair();
    client.declare(&mut node, "q", |table| table.bool(b"x-single-active-consumer", true));
    client.consume(&mut node, "q", "first", true);
    client.consume(&mut node, "q", "second", true);
    let tag = |items: &[Item]| match items.last().map(Item::method) {
        Some(Method::BasicDeliver { consumer_tag, .. }) => String::from_utf8_lossy(consumer_tag).into_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(tag(&client.publish(&mut node, "", "q", b"1")), "first");
    assert_eq!(tag(&client.publish(&mut node, "", "q", b"2")), "first");
    client.call(&mut node, &Method::BasicCancel { consumer_tag: b"first", no_wait: true });
    assert_eq!(tag(&client.publish(&mut node, "", "q", b"3")), "second");
}

#[test]
fn a_delayed_message_is_routed_when_its_time_has_come_with_all_its_keys() {
    let (mut node, mut client) = pair();
    let arguments = table(|table| table.str(b"x-delayed-type", b"direct"));
    let declare = Method::ExchangeDeclare {
        exchange: b"later",
        kind: b"x-delayed-message",
        passive: false,
        durable: false,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::trusted(&arguments),
    };
    client.call(&mut node, &declare);
    for queue in ["q", "copy", "blind"] {
        client.declare(&mut node, queue, |_| ());
        client.bind(&mut node, queue, "later", queue);
    }
    let headers = table(|table| {
        table.i64(b"x-delay", 100);
        table.array(b"CC", |keys| keys.str(b"copy"));
        table.array(b"BCC", |keys| keys.str(b"blind"));
    });
    let properties = Properties { headers: Some(Table::trusted(&headers)), ..Properties::default() };
    client.publish_with(&mut node, "later", "q", &properties, b"later");
    client.publish(&mut node, "later", "q", b"now");
    node.advance_ms(99);
    assert_eq!(node.queue("q").0, 1);
    node.advance_ms(1);
    assert_eq!(texts(&drain(&mut node, &mut client, "q")), ["now", "later"]);
    assert_eq!((node.queue("copy").0, node.queue("blind").0), (1, 1));
}

#[test]
fn a_message_with_more_keys_than_may_be_matched_in_one_go_is_refused() {
    for (count, taken) in [(1_000, true), (1_001, false)] {
        let (mut node, mut client) = pair();
        client.declare(&mut node, "q", |_| ());
        let headers = table(|table| {
            table.array(b"CC", |keys| (0..count).for_each(|_| keys.str(b"q")));
        });
        let properties = Properties { headers: Some(Table::trusted(&headers)), ..Properties::default() };
        let said = client.publish_with(&mut node, "", "elsewhere", &properties, b"x");
        assert_eq!((said.is_empty(), node.queue("q").0), (taken, usize::from(taken)));
    }
}

#[test]
fn a_consumer_that_wants_no_message_of_its_own_finds_others_behind_many() {
    for priority_max in [0, 5] {
        let (mut node, mut client) = pair();
        let mut other = Client::connect(&mut node);
        client.declare(&mut node, "q", |table| table.i64(b"x-max-priority", priority_max));
        for _ in 0..3_000 {
            client.publish(&mut node, "", "q", b"own");
        }
        other.publish(&mut node, "", "q", b"other");
        let consume = Method::BasicConsume {
            queue: b"q",
            consumer_tag: b"picky",
            no_local: true,
            no_ack: true,
            exclusive: false,
            no_wait: false,
            arguments: Table::EMPTY,
        };
        let said = client.call(&mut node, &consume);
        assert_eq!(texts(&said[1..]), ["other"], "with priorities up to {priority_max}");
        assert_eq!(node.queue("q").0, 3_000);
    }
}
