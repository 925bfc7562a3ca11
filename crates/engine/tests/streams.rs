//! Streams in an engine alone: on a virtual clock, and on a disk that tears and forgets.
//!
//! Owns the proof that an offset means one message for ever. A simulated client writes and reads while disk jobs run,
//! or do not, and the node dies between them; what any reader ever saw is compared with what is there in the end. It
//! must never wait, and a seed gives the same world again. Rules: docs/guides/streams.md.

use std::collections::BTreeMap;
use std::io;

use weft_engine::Limits;
use weft_engine::broker::Store;
use weft_engine::change::Change;
use weft_engine::message::Name;
use weft_engine::queue::Settings;
use weft_engine::stream::Retention;
use weft_journal::{Config, Job, JobKind, Operation, SimDisk, recover};
use weft_sim::client::table;
use weft_sim::controller::VHOST;
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Item, Node, Random};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::table::{Table, Value};

const CONFIG: Config = Config {
    segment_bytes: 8 << 10,
    segment_messages: 50,
    unsynced_bytes_max: 4 << 10,
    compact_bytes: 32 << 10,
    spares_max: 2,
    prepare_bytes: 4 << 10,
};

/// A stream; with a number its messages are in the journal.
fn stream(name: &str, number: u64, retention: Retention) -> Change {
    let settings = Settings { durable: true, number, stream: Some(retention), ..Settings::default() };
    Change::DeclareQueue { vhost: VHOST.to_owned(), name: name.to_owned(), settings: Box::new(settings) }
}

/// A node with a stream `log`, and a queue `flow` that is tapped into it.
fn node_on(disk: &SimDisk, now_ns: u64, retention: Retention) -> Node {
    node_with(CONFIG, disk, now_ns, retention)
}

fn node_with(config: Config, disk: &SimDisk, now_ns: u64, retention: Retention) -> Node {
    let (journal, found) = recover(disk, config, (WALL_NS + now_ns) / 1_000_000).expect("it opens");
    let mut node = Node::at(Limits::default(), 7, now_ns);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    let settings = Settings { tap: Some(Name::from(&b"log"[..])), ..Settings::default() };
    let (vhost, name) = (VHOST.to_owned(), "flow".to_owned());
    let tapped = Change::DeclareQueue { vhost, name, settings: Box::new(settings) };
    node.apply(vec![stream("log", 5, retention), tapped]);
    node
}

/// Begins to read: a client with a prefetch, from a place on.
fn read_from(node: &mut Node, start: &str, prefetch: u16, name: Option<&str>) -> (Client, Vec<Item>) {
    let mut client = Client::connect(node);
    client.qos(node, prefetch, false);
    let arguments = table(|table| {
        match start.parse() {
            Ok(offset) => table.i64(b"x-stream-offset", offset),
            Err(_) => table.str(b"x-stream-offset", start.as_bytes()),
        }
        name.into_iter().for_each(|name| table.str(b"x-stream-consumer-name", name.as_bytes()));
    });
    let consume = Method::BasicConsume {
        queue: b"log",
        consumer_tag: b"reader",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments: Table::trusted(&arguments),
    };
    let said = client.call(node, &consume);
    (client, said)
}

/// (tag, offset, body) of every delivery.
fn deliveries(items: &[Item]) -> Vec<(u64, u64, String)> {
    let delivery = |item: &Item| {
        let Method::BasicDeliver { delivery_tag, .. } = item.method() else { return None };
        let offset = match item.properties().headers.and_then(|headers| headers.get(b"x-stream-offset")) {
            Some(Value::I64(offset)) => offset as u64,
            other => panic!("{other:?} is no offset"),
        };
        Some((delivery_tag, offset, String::from_utf8_lossy(&item.body).into_owned()))
    };
    items.iter().filter_map(delivery).collect()
}

fn offsets(items: &[Item]) -> Vec<u64> {
    deliveries(items).into_iter().map(|(_, offset, _)| offset).collect()
}

/// Everything in the stream, by a reader that settles as it goes.
fn read_all(node: &mut Node, disk: &SimDisk) -> BTreeMap<u64, String> {
    let (mut client, said) = read_from(node, "first", 10, None);
    let (mut found, mut came) = (BTreeMap::new(), deliveries(&said));
    loop {
        node.run_disk(disk);
        came.extend(deliveries(&client.read(node)));
        let Some((tag, ..)) = came.last().cloned() else { break };
        for (_, offset, body) in came.drain(..) {
            assert!(found.last_key_value().is_none_or(|(last, _)| *last < offset), "{offset} came out of order");
            found.insert(offset, body);
        }
        came.extend(deliveries(&client.ack(node, tag, true)));
    }
    node.close(client.conn);
    found
}

#[test]
fn readers_go_at_their_own_pace_and_settling_is_credit() {
    let mut node = Node::new(Limits::default(), 7);
    node.apply(vec![stream("log", 0, Retention::default())]);
    let mut writer = Client::connect(&mut node);
    for number in 0..10 {
        writer.publish(&mut node, "", "log", format!("{number}").as_bytes());
    }
    let (mut slow, said) = read_from(&mut node, "first", 3, None);
    assert_eq!(offsets(&said), [0, 1, 2]);
    let (_fast, said) = read_from(&mut node, "4", 100, None);
    assert_eq!(offsets(&said), [4, 5, 6, 7, 8, 9]);
    assert_eq!(offsets(&slow.ack(&mut node, 2, true)), [3, 4]);
    assert_eq!(offsets(&slow.nack(&mut node, 3, false, true)), [5]);
    let (mut late, said) = read_from(&mut node, "next", 5, None);
    assert!(offsets(&said).is_empty());
    writer.publish(&mut node, "", "log", b"new");
    assert_eq!(offsets(&late.read(&mut node)), [10]);
    assert_eq!(node.queue("log").0, 11, "nothing was taken");
}

#[test]
fn a_reader_gets_every_offset_once_in_whatever_order_the_disk_answers() {
    const COUNT: u64 = 6_000;
    const CONFIG_LARGE: Config =
        Config { segment_bytes: 2 << 20, segment_messages: 2_500, unsynced_bytes_max: 1 << 20, ..CONFIG };
    for seed in 0..3 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed);
        let mut node = node_with(CONFIG_LARGE, &disk, 1, Retention::default());
        let mut writer = Client::connect(&mut node);
        // Where messages get larger, a read ends sooner than it was meant to.
        let size = |number: u64| if seed % 2 == 1 && number > COUNT / 2 { 4_000 } else { 4 };
        for number in 0..COUNT {
            writer.publish(&mut node, "", "log", format!("{number:0width$}", width = size(number)).as_bytes());
            if number % 500 == 499 {
                node.run_disk(&disk);
            }
        }
        while node.run_disk(&disk) {}
        let (mut reader, said) = read_from(&mut node, "first", 500, None);
        let (mut came, mut next, mut jobs, mut most) = (deliveries(&said), 0, Vec::new(), 0);
        for _ in 0..COUNT {
            if let Some((tag, ..)) = came.last().cloned() {
                for (_, offset, body) in came.drain(..) {
                    assert_eq!((offset, body.parse()), (next, Ok(next)), "with seed {seed}");
                    next += 1;
                }
                came = deliveries(&reader.ack(&mut node, tag, true));
                continue;
            }
            if random.one_in(20) {
                disk.fail_next(Operation::Read, io::ErrorKind::Other);
            }
            jobs.extend(node.engine.poll_disk());
            most = most.max(jobs.iter().filter(|job: &&Job| job.kind() == JobKind::Read).count());
            if jobs.is_empty() {
                node.advance_ms(100);
            } else {
                let mut job = jobs.remove(random.below(jobs.len()));
                job.run(&disk);
                node.engine.disk_done(job);
                node.settle();
            }
            came = deliveries(&reader.read(&mut node));
        }
        assert_eq!((next, most), (COUNT, 2), "read, and reads at a time, with seed {seed}");
    }
}

#[test]
fn what_is_too_old_goes_by_the_clock() {
    let mut node = Node::new(Limits::default(), 7);
    node.apply(vec![stream("log", 0, Retention { age_ms_max: Some(1_600), ..Retention::default() })]);
    let mut writer = Client::connect(&mut node);
    for _ in 0..100 {
        writer.publish(&mut node, "", "log", b"x");
        node.advance_ms(20);
    }
    let kept = node.queue("log").0;
    assert!((75..=90).contains(&kept), "{kept} of the last 80 are kept");
    let (_, said) = read_from(&mut node, "1s", 1_000, None);
    let first = offsets(&said)[0];
    assert!((49..=51).contains(&first), "the last second begins at {first}");
    node.advance_ms(10_000);
    assert_eq!(node.queue("log").0, 1, "the last one stays");
}

#[test]
fn a_reader_sees_nothing_that_a_crash_could_take_back() {
    let disk = SimDisk::new(1);
    let mut node = node_on(&disk, 1, Retention::default());
    let (mut reader, _) = read_from(&mut node, "first", 100, None);
    let mut writer = Client::connect(&mut node);
    writer.publish(&mut node, "", "log", b"transient, and kept all the same");
    assert!(deliveries(&reader.read(&mut node)).is_empty(), "the disk has not answered");
    node.run_disk(&disk);
    assert_eq!(offsets(&reader.read(&mut node)), [0]);
    disk.crash();
    let mut node = node_on(&disk, 2, Retention::default());
    assert_eq!(read_all(&mut node, &disk).len(), 1);
}

#[test]
fn what_a_tap_copies_is_written_in_company_and_shown_a_moment_later() {
    let disk = SimDisk::new(3);
    let mut node = node_on(&disk, 1, Retention::default());
    let (mut reader, _) = read_from(&mut node, "first", 100, None);
    let mut writer = Client::connect(&mut node);
    node.run_disk(&disk);
    for number in 0..20 {
        writer.publish(&mut node, "", "flow", format!("{number}").as_bytes());
    }
    assert!(node.engine.poll_disk().is_empty(), "nobody waits for them");
    node.advance_ms(20);
    let jobs = node.engine.poll_disk();
    assert_eq!(jobs.iter().filter(|job| job.must_sync()).count(), 1, "one sync for all");
    assert!(deliveries(&reader.read(&mut node)).is_empty(), "the disk has not answered");
    for mut job in jobs {
        job.run(&disk);
        node.engine.disk_done(job);
        node.settle();
    }
    assert_eq!(offsets(&reader.read(&mut node)), (0..20).collect::<Vec<_>>());
    writer.publish(&mut node, "", "flow", b"goes with the next");
    writer.publish(&mut node, "", "log", b"which hurries");
    node.run_disk(&disk);
    assert_eq!(offsets(&reader.read(&mut node)), [20, 21]);
    writer.publish(&mut node, "", "flow", b"while a timer is set for one that is safe by now");
    for _ in 0..4 {
        node.advance_ms(10);
        node.run_disk(&disk);
    }
    assert_eq!(offsets(&reader.read(&mut node)), [22]);
    disk.crash();
    let mut node = node_on(&disk, 2, Retention::default());
    assert_eq!(read_all(&mut node, &disk).len(), 23);
}

#[test]
fn a_named_reader_goes_on_where_it_was_over_a_crash() {
    let disk = SimDisk::new(2);
    let mut node = node_on(&disk, 1, Retention::default());
    let mut writer = Client::connect(&mut node);
    for number in 0..30 {
        writer.publish(&mut node, "", "log", format!("{number}").as_bytes());
    }
    node.run_disk(&disk);
    for round in 0..3 {
        let (mut reader, said) = read_from(&mut node, "first", 5, Some("one"));
        let mut came = deliveries(&said);
        node.run_disk(&disk);
        came.extend(deliveries(&reader.read(&mut node)));
        assert_eq!(
            came.iter().map(|(_, offset, _)| *offset).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4].map(|at| at + round * 4)
        );
        // All but the last of them: it comes again.
        reader.ack(&mut node, came[3].0, true);
        node.run_disk(&disk);
        disk.kill();
        node = node_on(&disk, 2 + round, Retention::default());
    }
}

/// A world of a seed: writing, reading, disk jobs and deaths in any order.
fn live(seed: u64) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed);
    let retention = Retention { count_max: seed.is_multiple_of(3).then_some(64), ..Retention::default() };
    let mut node = node_on(&disk, 1, retention);
    let (mut seen, mut jobs, mut written) = (BTreeMap::<u64, String>::new(), Vec::new(), 0);
    let mut writer = Client::connect(&mut node);
    let mut reader: Option<Client> = None;
    for _ in 0..1_500 {
        match random.below(100) {
            0..40 => {
                written += 1;
                let key = if random.one_in(2) { "log" } else { "flow" };
                writer.publish(&mut node, "", key, format!("{written}").as_bytes());
            }
            40..50 => node.advance_ms(random.below(12) as u64),
            50..85 => {
                jobs.extend(node.engine.poll_disk());
                if !jobs.is_empty() {
                    let mut job = jobs.remove(random.below(jobs.len()));
                    job.run(&disk);
                    node.engine.disk_done(job);
                    node.settle();
                }
            }
            85..98 => {
                let mut came = Vec::new();
                let client = reader.get_or_insert_with(|| {
                    let start = if seed.is_multiple_of(2) { "first" } else { "next" };
                    let (client, said) = read_from(&mut node, start, 7, None);
                    came = deliveries(&said);
                    client
                });
                came.extend(deliveries(&client.read(&mut node)));
                if let Some((tag, ..)) = came.last().cloned() {
                    client.ack(&mut node, tag, true);
                }
                for (_, offset, body) in came {
                    let known = seen.entry(offset).or_insert_with(|| body.clone());
                    assert_eq!(*known, body, "offset {offset} with seed {seed}");
                }
            }
            _ => {
                jobs.clear();
                if random.one_in(2) {
                    disk.crash();
                } else {
                    disk.kill();
                }
                node = node_on(&disk, node.now_ns + 1_000_000, retention);
                (writer, reader) = (Client::connect(&mut node), None);
            }
        }
    }
    for mut job in jobs {
        job.run(&disk);
        node.engine.disk_done(job);
    }
    let there = read_all(&mut node, &disk);
    let (first, last) = (*there.keys().next().unwrap_or(&0), *there.keys().next_back().unwrap_or(&0));
    assert_eq!(there.len() as u64, last + 1 - first, "offsets have a gap with seed {seed}");
    let numbers: Vec<u64> = there.values().map(|body| body.parse().expect("a number")).collect();
    assert!(numbers.is_sorted(), "out of order with seed {seed}");
    for (offset, body) in seen.range(first..) {
        assert_eq!(there.get(offset), Some(body), "what was seen at {offset} is not there with seed {seed}");
    }
    assert!(retention.count_max.is_none() || there.len() <= 64 + 4, "{} are kept with seed {seed}", there.len());
}

#[test]
fn an_offset_means_one_message_for_ever() {
    for seed in 0..20 {
        live(seed);
    }
}
