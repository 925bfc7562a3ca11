//! Publishers that are answered by their consumers, on one node, beside a disk, and over three hops.
//!
//! Owns the proof of docs/decisions/0024: what a consumer says is what the publisher hears, once, and nothing else is
//! waited for. Simulated clients of both protocols publish and settle; nodes are cut off and killed in between. It must
//! never look inside a session. Rule: no outcome before its consumer's, none that differs from it, no message lost.

mod pair;
mod peer10;

use pair::{anonymous, node, open, relay};
use peer10::{Peer, answers, bodies, deliveries, message};
use weft_engine::barrier::{self, Key};
use weft_engine::broker::Store;
use weft_engine::change::{Change, Direction, LinkOrder};
use weft_engine::queue::Settings;
use weft_engine::{Limits, event::Event};
use weft_journal::{Config, SimDisk, recover};
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Item, Node, Wire};
use weft_wire::amqp10::{Error, MapBuf, Modified, Outcome, Rejected, Symbol, Value};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;

fn declare(node: &mut Node, name: &str, settings: Settings) {
    let (vhost, name, settings) = ("/".to_owned(), name.to_owned(), Box::new(settings));
    node.apply(vec![Change::DeclareQueue { vhost, name, settings }]);
}

/// What a node may do to a message that waits.
type GiveUp = fn(&mut Node);

fn end_to_end() -> Settings {
    Settings { end_to_end: true, ..Settings::default() }
}

fn started(settings: Settings) -> Node {
    let mut node = node("a");
    declare(&mut node, "q", settings);
    node
}

fn publisher(node: &mut Node) -> Client {
    let mut client = Client::connect(node);
    client.call(node, &Method::ConfirmSelect { no_wait: false });
    client
}

/// Tags with `multiple` for acks, and tags alone for nacks.
fn confirms(items: &[Item]) -> Vec<String> {
    let confirm = |item: &Item| match item.method() {
        Method::BasicAck { delivery_tag, multiple: false } => Some(format!("+{delivery_tag}")),
        Method::BasicAck { delivery_tag, multiple: true } => Some(format!("+..{delivery_tag}")),
        Method::BasicNack { delivery_tag, .. } => Some(format!("-{delivery_tag}")),
        _ => None,
    };
    items.iter().filter_map(confirm).collect()
}

#[test]
fn a_confirm_is_what_the_consumer_says_when_it_says_it() {
    let mut node = started(end_to_end());
    let (mut publisher, mut consumer) = (publisher(&mut node), Client::connect(&mut node));
    consumer.consume(&mut node, "q", "c", false);
    for body in [b"1", b"2", b"3", b"4", b"5"] {
        assert!(confirms(&publisher.publish(&mut node, "", "q", body)).is_empty(), "nobody has taken it");
    }
    consumer.ack(&mut node, 3, false);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+3"]);
    consumer.nack(&mut node, 2, false, false);
    assert_eq!(confirms(&publisher.read(&mut node)), ["-2"]);
    // Given back to the queue: it comes again, and only then is there something to tell.
    consumer.nack(&mut node, 1, false, true);
    assert!(publisher.read(&mut node).is_empty());
    consumer.ack(&mut node, 0, true);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+..5"], "one frame for all that ended at once");
    // Who is not there any more has said nothing.
    publisher.publish(&mut node, "", "q", b"6");
    node.close(consumer.conn);
    assert!(publisher.read(&mut node).is_empty());
    let mut other = Client::connect(&mut node);
    other.consume(&mut node, "q", "c", true);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+6"]);
}

#[test]
fn what_the_node_gives_up_is_a_refusal() {
    let cases: [(Settings, GiveUp); 4] = [
        (Settings { message_ttl_ms: Some(5), ..end_to_end() }, |node| node.advance_ms(10)),
        (Settings { length_max: Some(0), ..end_to_end() }, |_| ()),
        (end_to_end(), |node| assert_eq!(node.engine.purge("/", "q"), Ok(1))),
        (end_to_end(), |node| {
            let (vhost, name) = ("/".to_owned(), "q".to_owned());
            node.apply(vec![Change::DeleteQueue { vhost, name }]);
        }),
    ];
    for (at, (settings, give_up)) in cases.into_iter().enumerate() {
        let mut node = started(settings);
        let mut publisher = publisher(&mut node);
        let mut said = publisher.publish(&mut node, "", "q", b"x");
        give_up(&mut node);
        node.settle();
        said.extend(publisher.read(&mut node));
        assert_eq!(confirms(&said), ["-1"], "case {at}");
    }
}

#[test]
fn nobody_is_answered_who_does_not_wait() {
    let mut node = started(end_to_end());
    let mut publisher = publisher(&mut node);
    publisher.publish(&mut node, "", "q", b"1");
    node.close(publisher.conn);
    let mut receiver = Peer::connect(&mut node);
    let said = receiver.receiver(&mut node, 0, "/queues/q", 10);
    assert_eq!(bodies(&said), ["1"], "a message without its publisher is a message");
    // Nobody is left to give it back to, so it waits here as it would anywhere.
    let said = receiver.settle(&mut node, 0, 0, Outcome::Released);
    assert_eq!(bodies(&said), ["1"]);
    receiver.settle(&mut node, 1, 1, Outcome::Accepted);
    assert_eq!(node.queue("q"), (0, 0, 1));
}

#[test]
fn of_several_queues_the_worst_counts_and_the_last_is_waited_for() {
    for (second, expected) in [(true, "+1"), (false, "-1")] {
        let mut node = started(end_to_end());
        declare(&mut node, "r", end_to_end());
        declare(&mut node, "plain", Settings::default());
        let (mut publisher, mut consumer) = (publisher(&mut node), Client::connect(&mut node));
        for queue in ["q", "r", "plain"] {
            consumer.bind(&mut node, queue, "amq.fanout", "");
        }
        assert!(confirms(&publisher.publish(&mut node, "amq.fanout", "", b"x")).is_empty());
        consumer.get(&mut node, "r", false);
        consumer.nack(&mut node, 1, false, false);
        consumer.get(&mut node, "q", false);
        assert!(publisher.read(&mut node).is_empty(), "one has not spoken");
        consumer.nack(&mut node, 2, false, false);
        assert_eq!(confirms(&publisher.read(&mut node)), ["-1"]);
        publisher.publish(&mut node, "amq.fanout", "", b"y");
        consumer.get(&mut node, "q", true);
        consumer.get(&mut node, "r", false);
        match second {
            true => consumer.ack(&mut node, 4, false),
            false => consumer.nack(&mut node, 4, false, false),
        };
        assert_eq!(confirms(&publisher.read(&mut node)), [expected.replace('1', "2")]);
        assert_eq!(node.queue("plain").0, 2);
    }
}

/// What each outcome of a consumer looks like, to it and to the publisher.
fn outcomes(annotations: &MapBuf) -> Vec<(Outcome<'_>, String)> {
    let error = Some(Error { condition: Symbol("app:bad"), description: Some("no"), info: None });
    let modified = |delivery_failed, undeliverable_here| {
        let message_annotations = Some(annotations.as_map()).filter(|_| undeliverable_here);
        Outcome::Modified(Modified { delivery_failed, undeliverable_here, message_annotations })
    };
    let all = [Outcome::Accepted, Outcome::Released, modified(true, false), modified(true, true)];
    let mut all: Vec<_> = all.into_iter().map(|outcome| (outcome, format!("{outcome:?}").to_lowercase())).collect();
    all.push((Outcome::Rejected(Rejected { error }), "rejected app:bad".to_owned()));
    all
}

fn annotations() -> MapBuf {
    let mut map = MapBuf::new();
    map.put(Value::Symbol("x-opt-why"), Value::String("too heavy"));
    map
}

#[test]
fn each_outcome_of_amqp_1_0_reaches_the_sender_as_it_is() {
    let annotations = annotations();
    for (outcome, expected) in outcomes(&annotations) {
        let mut node = started(end_to_end());
        let (mut sender, mut receiver) = (Peer::connect(&mut node), Peer::connect(&mut node));
        sender.sender(&mut node, 0, Some("/queues/q"));
        assert!(answers(&sender.send(&mut node, 0, &message(b"x"), false)).is_empty());
        receiver.receiver(&mut node, 0, "/queues/q", 10);
        receiver.settle(&mut node, 0, 0, outcome);
        assert_eq!(answers(&sender.read(&mut node)), [(0, 0, true, expected)]);
        assert_eq!(node.queue("q"), (0, 0, 1), "whatever it was, it is over here");
        assert_eq!(node.engine.broker.totals.published, 1);
    }
}

#[test]
fn publishers_that_wait_for_too_much_are_held() {
    let mut node = Node::new(Limits { end_to_end_max: 8, link_credit: 6, ..Limits::default() }, 7);
    declare(&mut node, "q", end_to_end());
    let mut publisher = publisher(&mut node);
    for number in 0..8 {
        assert!(!node.peers[&publisher.conn].paused, "after {number}");
        publisher.publish(&mut node, "", "q", b"x");
    }
    assert!(node.peers[&publisher.conn].paused, "nothing more is read");
    let mut consumer = Client::connect(&mut node);
    (0..2).for_each(|_| drop(consumer.get(&mut node, "q", true)));
    assert!(!node.peers[&publisher.conn].paused);
    assert!(!node.events.iter().any(|event| matches!(event, Event::MemoryAlarm { .. })));
    // A link is held by its credit: never more than the limit, and all of it again when consumers went on.
    declare(&mut node, "r", end_to_end());
    let mut sender = Peer::connect(&mut node);
    let mut credit = credit_of(&sender.sender(&mut node, 0, Some("/queues/r"))).expect("credit");
    let mut sent = 0;
    while sent < credit {
        sent += 1;
        credit = credit_of(&sender.send(&mut node, 0, &message(b"x"), false)).unwrap_or(credit);
        assert!(credit <= 8 && sent <= 8, "{sent} sent, credit up to {credit}");
    }
    assert!(sent >= 6);
    for _ in 0..sent {
        consumer.get(&mut node, "r", true);
    }
    let renewed = credit_of(&sender.read(&mut node)).expect("credit again");
    assert!(renewed >= sent + 3, "{sent} sent and taken, credit up to {renewed}");
}

/// How many messages a sender may have sent, by the last flow.
fn credit_of(said: &[peer10::Said]) -> Option<u32> {
    let mut flows = said.iter().filter_map(|said| match said.performative() {
        weft_wire::amqp10::Performative::Flow(flow) => Some(flow.delivery_count? + flow.link_credit?),
        _ => None,
    });
    flows.next_back()
}

/// A node on a disk that does nothing until it is told to.
fn on_disk(disk: &SimDisk) -> Node {
    let config = Config { segment_bytes: 64 << 10, spares_max: 1, prepare_bytes: 4 << 10, ..Config::default() };
    let (journal, found) = recover(disk, config, WALL_NS / 1_000_000).expect("an empty store opens");
    let mut node = node("a");
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    declare(&mut node, "q", Settings { durable: true, number: 1, ..end_to_end() });
    declare(&mut node, "kept", Settings { durable: true, number: 2, ..Settings::default() });
    node
}

#[test]
fn no_batch_and_no_disk_stand_between_a_consumer_and_its_publisher() {
    let disk = SimDisk::new(1);
    let mut node = on_disk(&disk);
    let (mut publisher, mut consumer) = (publisher(&mut node), Client::connect(&mut node));
    consumer.consume(&mut node, "q", "c", false);
    let durable = Properties { delivery_mode: Some(2), ..Properties::default() };
    // The one before it waits for the disk, which does not move; it is delivered, answered and told all the same.
    assert!(confirms(&publisher.publish_with(&mut node, "", "kept", &durable, b"1")).is_empty());
    for tag in 1..=3 {
        publisher.publish_with(&mut node, "", "q", &durable, b"x");
        assert_eq!(consumer.read(&mut node).len(), 1, "delivered as it came");
        consumer.ack(&mut node, tag, false);
        assert_eq!(confirms(&publisher.read(&mut node)), [format!("+{}", tag + 1)], "told as it was settled");
    }
    publisher.publish_with(&mut node, "", "q", &durable, b"x");
    publisher.publish_with(&mut node, "", "q", &durable, b"x");
    consumer.ack(&mut node, 0, true);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+5", "+6"], "an ack for all would speak for the first");
    node.run_disk(&disk);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+1"]);
    // What other queues keep is waited for.
    for queue in ["q", "kept"] {
        consumer.bind(&mut node, queue, "amq.fanout", "");
    }
    publisher.publish_with(&mut node, "amq.fanout", "", &durable, b"x");
    consumer.ack(&mut node, 0, true);
    assert!(publisher.read(&mut node).is_empty(), "one of its queues wants the disk");
    node.run_disk(&disk);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+7"]);
    assert_eq!(node.queue("kept").0, 2);
}

#[test]
fn what_its_publisher_still_keeps_is_not_kept_by_a_node() {
    let disk = SimDisk::new(1);
    let mut node = on_disk(&disk);
    let (mut publisher, mut careless) = (publisher(&mut node), Client::connect(&mut node));
    let durable = Properties { delivery_mode: Some(2), ..Properties::default() };
    publisher.publish_with(&mut node, "", "q", &durable, b"waits");
    careless.publish_with(&mut node, "", "q", &durable, b"does not");
    node.run_disk(&disk);
    disk.kill();
    let mut again = on_disk(&disk);
    // Its publisher was never answered, and sends it again: then it is there once.
    assert_eq!(again.queue("q").0, 1);
    let mut consumer = Client::connect(&mut again);
    consumer.consume(&mut again, "q", "c", true);
    again.run_disk(&disk);
    let said = consumer.read(&mut again);
    assert_eq!(pair::texts(&said), ["does not"]);
}

#[test]
fn a_copy_ends_as_its_first_does_and_a_refusal_is_forgotten() {
    let mut node = node("a");
    let key = Key::MessageId;
    let barrier = Some(barrier::Settings { key, or_body: false, window_ms: 60_000, ids_max: 100, number: 0 });
    declare(&mut node, "q", Settings { barrier, ..end_to_end() });
    let (mut publisher, mut other) = (publisher(&mut node), publisher(&mut node));
    let mut consumer = Client::connect(&mut node);
    let named = Properties { message_id: Some(b"m"), ..Properties::default() };
    publisher.publish_with(&mut node, "", "q", &named, b"x");
    assert!(confirms(&other.publish_with(&mut node, "", "q", &named, b"x")).is_empty());
    assert_eq!(node.queue("q").0, 1);
    consumer.get(&mut node, "q", false);
    consumer.nack(&mut node, 1, false, false);
    assert_eq!(
        (confirms(&publisher.read(&mut node)), confirms(&other.read(&mut node))),
        (vec!["-1".into()], vec!["-1".into()])
    );
    // Nobody has taken it: it may come again. When somebody has, it may not.
    other.publish_with(&mut node, "", "q", &named, b"x");
    node.close(other.conn);
    assert!(confirms(&publisher.publish_with(&mut node, "", "q", &named, b"x")).is_empty());
    consumer.get(&mut node, "q", true);
    assert_eq!(confirms(&publisher.read(&mut node)), ["+2"], "for the one that is gone, too");
    assert_eq!(confirms(&publisher.publish_with(&mut node, "", "q", &named, b"x")), ["+3"]);
    assert_eq!(node.queue("q").0, 0);
}

/// Three nodes in a row, each with its queue: c pulls from b, and b from a.
struct Row {
    nodes: [Node; 3],
    wires: [Wire; 2],
}

impl Row {
    fn new() -> Self {
        let mut nodes = ["a", "b", "c"].map(node);
        nodes.iter_mut().for_each(|node| declare(node, "q", end_to_end()));
        let wires = [pull(&mut nodes, 0), pull(&mut nodes, 1)];
        let mut row = Self { nodes, wires };
        row.calm();
        row
    }

    fn calm(&mut self) {
        loop {
            let [a, b, c] = &mut self.nodes;
            let busy = [self.wires[0].carry_once(b, a), self.wires[1].carry_once(c, b)];
            if busy == [false, false] {
                return;
            }
        }
    }
}

/// The node behind this one dials it and pulls.
fn pull(nodes: &mut [Node; 3], at: usize) -> Wire {
    let (before, behind) = nodes.split_at_mut(at + 1);
    let (source, from) = (&mut before[at], &mut behind[0]);
    let wire = Wire::dial(from, source, anonymous());
    wire.carry(from, source);
    let order = relay(wire.dialler.raw(), 1, Direction::Pull, "q", "q");
    from.apply(open(LinkOrder { circles: true, ..order }));
    wire
}

#[test]
fn over_three_hops_the_sender_hears_what_the_last_receiver_says() {
    let annotations = annotations();
    for (outcome, expected) in outcomes(&annotations) {
        let mut row = Row::new();
        let (mut sender, mut receiver) = (Peer::connect(&mut row.nodes[0]), Peer::connect(&mut row.nodes[2]));
        sender.sender(&mut row.nodes[0], 0, Some("/queues/q"));
        sender.send(&mut row.nodes[0], 0, &message(b"x"), false);
        row.calm();
        let said = receiver.receiver(&mut row.nodes[2], 0, "/queues/q", 10);
        assert_eq!(bodies(&said), ["x"]);
        assert!(answers(&sender.read(&mut row.nodes[0])).is_empty(), "it is there, and nobody has taken it");
        receiver.settle(&mut row.nodes[2], 0, 0, outcome);
        row.calm();
        assert_eq!(answers(&sender.read(&mut row.nodes[0])), [(0, 0, true, expected)]);
        row.nodes.iter().for_each(|node| assert_eq!((node.queue("q").0, node.queue("q").1), (0, 0)));
    }
}

#[test]
fn a_link_that_is_cut_leaves_the_outcome_open_and_it_comes_by_the_next() {
    for (hop, outcome, expected) in [0, 1].into_iter().flat_map(|hop| {
        [(hop, Outcome::Accepted, "accepted"), (hop, Outcome::Rejected(Rejected::default()), "rejected ")]
    }) {
        let mut row = Row::new();
        let (mut sender, mut receiver) = (Peer::connect(&mut row.nodes[0]), Peer::connect(&mut row.nodes[2]));
        sender.sender(&mut row.nodes[0], 0, Some("/queues/q"));
        sender.send(&mut row.nodes[0], 0, &message(b"x"), false);
        row.calm();
        let said = receiver.receiver(&mut row.nodes[2], 0, "/queues/q", 10);
        assert_eq!(deliveries(&said).len(), 1);
        let (before, behind) = row.nodes.split_at_mut(hop + 1);
        row.wires[hop].cut(&mut behind[0], &mut before[hop]);
        row.wires[hop] = pull(&mut row.nodes, hop);
        row.calm();
        assert!(receiver.read(&mut row.nodes[2]).is_empty(), "its node knew it again");
        assert!(answers(&sender.read(&mut row.nodes[0])).is_empty());
        receiver.settle(&mut row.nodes[2], 0, 0, outcome);
        row.calm();
        assert_eq!(answers(&sender.read(&mut row.nodes[0])), [(0, 0, true, expected.to_owned())]);
    }
}

#[test]
fn a_node_that_dies_in_the_middle_is_gone_round_and_nothing_is_lost() {
    for taken in [false, true] {
        let mut row = Row::new();
        let (mut sender, mut receiver) = (Peer::connect(&mut row.nodes[0]), Peer::connect(&mut row.nodes[2]));
        sender.sender(&mut row.nodes[0], 0, Some("/queues/q"));
        sender.send(&mut row.nodes[0], 0, &message(b"x"), false);
        row.calm();
        receiver.receiver(&mut row.nodes[2], 0, "/queues/q", 10);
        if taken {
            // The last node knows it, the middle one dies before it is told.
            receiver.settle(&mut row.nodes[2], 0, 0, Outcome::Accepted);
        }
        row.nodes[0].close(row.wires[0].listener);
        row.nodes[2].close(row.wires[1].dialler);
        row.nodes[1] = node("b");
        declare(&mut row.nodes[1], "q", end_to_end());
        row.wires = [pull(&mut row.nodes, 0), pull(&mut row.nodes, 1)];
        row.calm();
        assert!(receiver.read(&mut row.nodes[2]).is_empty(), "the last node knew it again");
        if taken {
            // That it was taken long ago is an ordinary answer, which may wait a moment (0028).
            row.nodes[2].advance_ms(10);
            row.calm();
        } else {
            assert!(answers(&sender.read(&mut row.nodes[0])).is_empty(), "nobody can know yet");
            receiver.settle(&mut row.nodes[2], 0, 0, Outcome::Accepted);
            row.calm();
        }
        assert_eq!(answers(&sender.read(&mut row.nodes[0])), [(0, 0, true, "accepted".to_owned())]);
    }
}

#[test]
fn a_node_that_keeps_what_it_confirmed_keeps_it_until_the_end() {
    // The first queue answers for itself; the second waits for its consumer, and the first keeps the message so long.
    let mut row = Row::new();
    declare(&mut row.nodes[0], "q", Settings::default());
    let mut publisher = publisher(&mut row.nodes[0]);
    assert_eq!(confirms(&publisher.publish(&mut row.nodes[0], "", "q", b"x")), ["+1"]);
    row.calm();
    assert_eq!((row.nodes[0].queue("q").1, row.nodes[1].queue("q").1, row.nodes[2].queue("q").0), (1, 1, 1));
    pair::drain(&mut row.nodes[2], "q");
    row.calm();
    assert_eq!((row.nodes[0].queue("q").1, row.nodes[1].queue("q").1), (0, 0));
}
