//! A queue that several nodes drain, whose links are cut and whose node dies at every instant: nothing comes twice.
//!
//! Owns the proof of docs/decisions/0021. A source on a simulated disk has two destinations; it is killed, or loses its
//! power, after each number of steps. It must never look inside a session. Rule: every message is at exactly one of the
//! three in the end, whoever comes back first.

mod pair;

use std::rc::Rc;

use pair::*;
use weft_engine::Limits;
use weft_engine::broker::Store;
use weft_engine::change::{Change, Direction, LinkOrder};
use weft_engine::event::Event;
use weft_engine::queue::Settings;
use weft_journal::{Config, SimDisk, recover};
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Node, Wire};
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties;

const MESSAGES: usize = 30;
const CREDIT: u32 = 4;

/// The source, on what its disk has.
fn source(disk: &SimDisk, now_ns: u64) -> Node {
    // Files so small that preparing them takes no time.
    let config = Config { segment_bytes: 16 << 10, spares_max: 1, prepare_bytes: 4 << 10, ..Config::default() };
    let opened = recover(disk, config, (WALL_NS + now_ns) / 1_000_000);
    let (journal, found) = opened.unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let mut node = Node::at(Limits::default(), 7, now_ns);
    node.engine.broker.node = Rc::from("source");
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    let settings = Box::new(Settings { durable: true, number: 1, ..Settings::default() });
    node.apply(vec![Change::DeclareQueue { vhost: "/".to_owned(), name: "q".to_owned(), settings }]);
    node
}

/// A source whose messages are on the disk itself.
fn filled(disk: &SimDisk) -> Node {
    let mut node = source(disk, 1);
    let mut client = Client::connect(&mut node);
    client.call(&mut node, &Method::ConfirmSelect { no_wait: false });
    let durable = Properties { delivery_mode: Some(2), ..Properties::default() };
    for number in 0..MESSAGES {
        client.publish_with(&mut node, "", "q", &durable, format!("{number}").as_bytes());
    }
    node.close(client.conn);
    node.run_disk(disk);
    node
}

fn destination(name: &str) -> Node {
    let mut node = node(name);
    fill(&mut node, "here", 0);
    node
}

/// A destination dials the source and pulls.
fn pull(from: &mut Node, source: &mut Node) -> Wire {
    let wire = Wire::dial(from, source, anonymous());
    wire.carry(from, source);
    let order = relay(wire.dialler.raw(), 1, Direction::Pull, "q", "here");
    from.apply(open(LinkOrder { circles: true, credit: CREDIT, ..order }));
    wire
}

/// Everything moves until nothing does.
fn calm(source: &mut Node, disk: &SimDisk, ends: &mut [(&mut Node, Wire)]) {
    loop {
        let mut busy = source.run_disk(disk);
        for (node, wire) in ends.iter_mut() {
            busy |= wire.carry_once(node, source);
        }
        if !busy {
            return;
        }
    }
}

fn numbers(nodes: [(&mut Node, &str); 3]) -> Vec<usize> {
    let found = nodes.into_iter().flat_map(|(node, queue)| texts(&drain(node, queue)));
    let mut numbers: Vec<usize> = found.map(|text| text.parse().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_source_that_dies_at_any_instant_doubles_nothing() {
    let (mut held_back, mut steps_seen) = (0, 0);
    for (power, steps) in (0..40).flat_map(|steps| [(true, steps), (false, steps)]) {
        let disk = SimDisk::new(steps);
        let (mut a, mut b, mut c) = (filled(&disk), destination("b"), destination("c"));
        let (to_b, to_c) = (pull(&mut b, &mut a), pull(&mut c, &mut a));
        for step in 0..steps {
            steps_seen += u64::from(match step % 3 {
                0 => to_b.carry_once(&mut b, &mut a),
                1 => to_c.carry_once(&mut c, &mut a),
                _ => a.run_disk(&disk),
            });
        }
        match power {
            true => disk.crash(),
            false => disk.kill(),
        }
        let mut a = source(&disk, a.now_ns + 1_000_000);
        b.close(to_b.dialler);
        c.close(to_c.dialler);
        // Who comes back first would get what the other one has.
        let to_c = pull(&mut c, &mut a);
        calm(&mut a, &disk, &mut [(&mut c, to_c)]);
        let to_b = pull(&mut b, &mut a);
        calm(&mut a, &disk, &mut [(&mut c, to_c), (&mut b, to_b)]);
        held_back += b.engine.broker.totals.duplicates + c.engine.broker.totals.duplicates;
        let all = numbers([(&mut a, "q"), (&mut b, "here"), (&mut c, "here")]);
        assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>(), "died after {steps} steps, power {power}");
    }
    assert!(held_back > 0 && steps_seen > 100, "nothing was in doubt: {held_back} of {steps_seen}");
}

#[test]
fn a_link_that_is_cut_at_any_instant_doubles_nothing() {
    let mut held_back = 0;
    for steps in 0..30 {
        let disk = SimDisk::new(steps);
        let (mut a, mut b, mut c) = (filled(&disk), destination("b"), destination("c"));
        let to_b = pull(&mut b, &mut a);
        for _ in 0..steps {
            to_b.carry_once(&mut b, &mut a);
            a.run_disk(&disk);
        }
        let unheard = a.take_output(to_b.listener);
        b.feed(to_b.dialler, &unheard);
        to_b.cut(&mut b, &mut a);
        let to_c = pull(&mut c, &mut a);
        calm(&mut a, &disk, &mut [(&mut c, to_c)]);
        let to_b = pull(&mut b, &mut a);
        calm(&mut a, &disk, &mut [(&mut c, to_c), (&mut b, to_b)]);
        held_back += b.engine.broker.totals.duplicates;
        let all = numbers([(&mut a, "q"), (&mut b, "here"), (&mut c, "here")]);
        assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>(), "cut after {steps} steps");
        assert_eq!(a.engine.stats()["undecided"], 0);
    }
    assert!(held_back > 0, "nothing was in doubt");
}

#[test]
fn a_destination_that_does_not_come_back_is_waited_for_so_long_and_no_longer() {
    let disk = SimDisk::new(1);
    let (mut a, mut b, mut c) = (filled(&disk), destination("b"), destination("c"));
    let to_b = pull(&mut b, &mut a);
    while a.queue("q").1 < CREDIT as usize {
        to_b.carry_once(&mut b, &mut a);
        a.run_disk(&disk);
    }
    // The source has sent as many as it may, and hears no more of them.
    a.take_output(to_b.listener);
    to_b.cut(&mut b, &mut a);
    let to_c = pull(&mut c, &mut a);
    calm(&mut a, &disk, &mut [(&mut c, to_c)]);
    assert_eq!((c.queue("here").0, a.queue("q").0), (MESSAGES - CREDIT as usize, CREDIT as usize));
    assert!(drain(&mut a, "q").is_empty(), "nobody else gets them either");
    a.advance_ms(u64::from(Limits::default().doubt_s) * 1_000);
    a.settle();
    calm(&mut a, &disk, &mut [(&mut c, to_c)]);
    assert_eq!((c.queue("here").0, a.queue("q").0), (MESSAGES, 0));
    assert_eq!(a.engine.stats()["undecided"], u64::from(CREDIT));
    let told = a.events.iter().filter(|event| matches!(event, Event::DoubtEnded { .. }));
    let expected = Event::DoubtEnded { vhost: "/".to_owned(), queue: "q".to_owned(), messages: CREDIT.into() };
    assert_eq!(told.collect::<Vec<_>>(), [&expected]);
}
