//! A small world in which a node dies again and again: real engine and journal, invented disk, clock and network.
//!
//! Owns the world of one seed: publishers with confirms, consumers with acknowledgements and readers of streams, cables
//! between them and the node, a disk that tears, forgets, fills up and refuses, and the instants at which it dies.
//! A seed comes in; counts, mistakes and a trace go out. It must never use anything but the seed. Rule: nothing
//! confirmed is lost, nothing comes twice behind a barrier, an offset means one message; a seed gives the same trace.

mod consumer;
mod ledger;
mod publisher;
mod reader;
mod wire;

use weft_engine::Limits;
use weft_engine::barrier::{Key, Settings as BarrierSettings};
use weft_engine::broker::Store;
use weft_engine::change::{BindingSpec, Change, ExchangeKind};
use weft_engine::event::Resource;
use weft_engine::message::Name;
use weft_engine::queue::Settings;
use weft_engine::stream::Retention;
use weft_journal::{Config, Job, SimDisk, recover};

use self::consumer::Consumer;
pub use self::ledger::Counts;
use self::ledger::Ledger;
use self::publisher::Publisher;
use self::reader::{Begin, Reader};
use self::wire::Wire;
use crate::controller::VHOST;
use crate::node::WALL_NS;
use crate::{Node, Random};

/// Steps until the world heals and everybody finishes.
const STEPS: usize = 6_000;
/// Steps after which a healed world that is not finished is called stuck.
const ENDING_STEPS_MAX: usize = 400_000;
/// Bytes that a cable carries at once, at most.
const CARRY_BYTES_MAX: usize = 2_000;
/// Messages that the short stream keeps.
const SHORT_COUNT: u64 = 60;
/// A full disk has room for so much.
const FULL_BYTES: usize = 40_000;

/// How a world ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub counts: Counts,
    pub deaths: u64,
    pub mistakes: Vec<String>,
    /// What happened, in one number.
    pub trace: u64,
}

/// Lives through the world of a seed.
pub fn live(seed: u64) -> End {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step(false);
    }
    let mut mistakes = world.end();
    let (counts, judged) = world.ledger.judge();
    mistakes.extend(judged);
    world.note(counts.arrived as u64);
    End { counts, deaths: world.deaths, mistakes, trace: world.trace }
}

struct World {
    random: Random,
    seed: u64,
    disk: SimDisk,
    node: Node,
    publishers: Vec<Publisher>,
    consumers: Vec<Consumer>,
    readers: Vec<Reader>,
    ledger: Ledger,
    /// Disk jobs that are out, and whether the disk has done them.
    jobs: Vec<(Job, bool)>,
    deaths: u64,
    trace: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut ledger = Ledger::default();
        for (queue, guarded) in [("kept", true), ("worked", true), ("linked", true), ("plain", false)] {
            ledger.open(queue, guarded);
        }
        for (stream, trimmed) in [("log", false), ("watch", false), ("short", true)] {
            ledger.open_stream(stream, trimmed);
        }
        ledger.open("log", false);
        ledger.open("watch", false);
        let disk = SimDisk::new(seed);
        let mut world = Self {
            random: Random::new(seed),
            seed,
            node: start(&disk, seed, 1),
            disk,
            publishers: vec![
                Publisher::new(1, false, ("guarded", ""), &["kept", "worked"]),
                Publisher::new(2, true, ("linked", ""), &["linked"]),
                Publisher::new(3, false, ("", "plain"), &["plain", "watch"]),
                Publisher::new(4, false, ("", "log"), &["log"]),
                Publisher::new(5, true, ("short", ""), &[]),
            ],
            consumers: vec![Consumer::new("worked", false), Consumer::new("plain", true)],
            readers: vec![
                Reader::new("log", Begin::Named),
                Reader::new("watch", Begin::Own),
                Reader::new("short", Begin::First),
            ],
            ledger,
            jobs: Vec::new(),
            deaths: 0,
            trace: seed,
        };
        world.collect();
        world
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }

    /// One thing happens.
    fn step(&mut self, ending: bool) {
        let kind = self.random.below(100);
        self.note(kind as u64);
        match kind {
            0..20 => self.publish(ending),
            20..28 => self.consume(ending),
            28..32 => self.read(),
            32..56 => self.carry_in(),
            56..80 => self.carry_out(),
            80..94 => self.turn_disk(),
            94..99 => {
                let ms = if self.random.one_in(20) { 1_500 } else { self.random.below(8) as u64 };
                self.node.advance_ms(ms);
                self.collect();
            }
            _ if !ending => self.trouble(),
            _ => {}
        }
    }

    fn publish(&mut self, ending: bool) {
        let at = self.random.below(self.publishers.len());
        let publisher = &mut self.publishers[at];
        match publisher.wire.conn {
            Some(_) => publisher.act(&mut self.random, &mut self.ledger, ending),
            None => {
                publisher.wire.conn = self.node.open();
                publisher.open();
            }
        }
    }

    fn consume(&mut self, ending: bool) {
        let at = self.random.below(self.consumers.len());
        let consumer = &mut self.consumers[at];
        match consumer.wire.conn {
            Some(_) => consumer.act(&mut self.random, ending),
            None => {
                consumer.wire.conn = self.node.open();
                consumer.open();
            }
        }
    }

    fn read(&mut self) {
        let at = self.random.below(self.readers.len());
        let reader = &mut self.readers[at];
        match reader.wire.conn {
            Some(_) => reader.act(&mut self.random),
            None => {
                reader.wire.conn = self.node.open();
                reader.open();
            }
        }
    }

    /// Publishers first, then consumers, then readers.
    fn wire(&mut self, at: usize) -> &mut Wire {
        let (publishers, consumers) = (self.publishers.len(), self.consumers.len());
        match at {
            _ if at < publishers => &mut self.publishers[at].wire,
            _ if at < publishers + consumers => &mut self.consumers[at - publishers].wire,
            _ => &mut self.readers[at - publishers - consumers].wire,
        }
    }

    fn peers(&self) -> usize {
        self.publishers.len() + self.consumers.len() + self.readers.len()
    }

    fn pick(&mut self) -> usize {
        self.random.below(self.peers())
    }

    /// Some of what somebody said reaches the node.
    fn carry_in(&mut self) {
        let (at, most) = (self.pick(), 1 + self.random.below(CARRY_BYTES_MAX));
        let wire = self.wire(at);
        let Some(conn) = wire.conn else { return };
        let count = most.min(wire.out.len());
        let bytes: Vec<u8> = wire.out.drain(..count).collect();
        match self.node.peers.get(&conn) {
            Some(peer) if peer.gone => drop(self.wire(at).cut()),
            // Nobody reads the node's end of the cable: what was said waits.
            Some(peer) if peer.paused => drop(self.wire(at).out.splice(0..0, bytes)),
            _ => {
                self.node.feed(conn, &bytes);
                self.collect();
            }
        }
    }

    /// Some of what the node said reaches somebody.
    fn carry_out(&mut self) {
        let (at, most) = (self.pick(), 1 + self.random.below(CARRY_BYTES_MAX));
        let Some(conn) = self.wire(at).conn else { return };
        let Some(peer) = self.node.peers.get_mut(&conn) else { return };
        let count = most.min(peer.output.len());
        let bytes: Vec<u8> = peer.output.drain(..count).collect();
        let finished = peer.gone && peer.output.is_empty();
        self.note(count as u64);
        self.wire(at).unread.extend(bytes);
        let (publishers, consumers) = (self.publishers.len(), self.consumers.len());
        let goes_on = match at {
            _ if at < publishers => self.publishers[at].read(&mut self.ledger),
            _ if at < publishers + consumers => self.consumers[at - publishers].read(&mut self.ledger),
            _ => self.readers[at - publishers - consumers].read(&mut self.ledger),
        };
        if !goes_on || finished {
            self.cut(at);
        }
    }

    fn cut(&mut self, at: usize) {
        if let Some(conn) = self.wire(at).cut() {
            self.node.close(conn);
            self.collect();
        }
    }

    /// A job runs on the disk, or its outcome reaches the engine.
    fn turn_disk(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.random.below(self.jobs.len());
        if self.jobs[at].1 {
            let (job, _) = self.jobs.remove(at);
            self.node.engine.disk_done(job);
            self.node.settle();
            self.collect();
        } else {
            self.jobs[at].0.run(&self.disk);
            self.jobs[at].1 = true;
        }
    }

    fn collect(&mut self) {
        let jobs = self.node.engine.poll_disk();
        self.note(jobs.len() as u64);
        self.jobs.extend(jobs.into_iter().map(|job| (job, false)));
    }

    fn trouble(&mut self) {
        match self.random.below(12) {
            0..3 => self.die(true),
            3..5 => self.die(false),
            5 => {
                let bytes = FULL_BYTES + self.random.below(FULL_BYTES);
                self.disk.set_capacity(Some(bytes as u64));
            }
            6 => self.disk.set_fault_rate(100),
            7 | 8 => self.heal(),
            _ => {
                let at = self.pick();
                self.cut(at);
            }
        }
    }

    fn heal(&mut self) {
        self.disk.set_capacity(None);
        self.disk.set_fault_rate(0);
    }

    /// The node is gone, with or without the power, and comes back.
    fn die(&mut self, power: bool) {
        self.deaths += 1;
        self.jobs.clear();
        if power {
            self.disk.crash();
        } else {
            self.disk.kill();
        }
        for at in 0..self.peers() {
            self.wire(at).cut();
        }
        // A disk that refuses would keep the next node from starting at all.
        self.heal();
        self.node = start(&self.disk, self.seed ^ self.deaths, self.node.now_ns + 1_000_000);
        self.collect();
    }

    /// Nothing fails any more: everything is confirmed, and every queue is emptied. A world without end is told.
    fn end(&mut self) -> Vec<String> {
        self.heal();
        self.die(true);
        self.consumers.push(Consumer::new("kept", false));
        self.consumers.push(Consumer::new("linked", true));
        // Those that read all of a stream: what they do not find is gone.
        self.readers = ["log", "watch", "short"].map(|stream| Reader::new(stream, Begin::First)).into();
        for _ in 0..ENDING_STEPS_MAX {
            self.step(true);
            let queues = ["kept", "worked", "linked", "plain"];
            let empty = queues.iter().all(|queue| self.node.queue(queue).0 + self.node.queue(queue).1 == 0);
            let read = self.readers.iter().all(|reader| reader.count >= self.node.queue(reader.stream).0);
            if empty && read && self.jobs.is_empty() && self.publishers.iter().all(Publisher::is_done) {
                return self.judge_streams();
            }
        }
        vec!["the world did not come to an end".to_owned()]
    }
}

impl World {
    /// What readers from the first message on have found in the end.
    fn judge_streams(&mut self) -> Vec<String> {
        let mut mistakes = Vec::new();
        for reader in &self.readers {
            let kept = self.node.queue(reader.stream).0;
            let (seen, last) = self.ledger.all_arrived(reader.stream);
            let trimmed = self.ledger.is_trimmed(reader.stream);
            if reader.last < last || !trimmed && reader.count < seen {
                mistakes
                    .push(format!("{}: {seen} were seen up to {last:?}, {} are there", reader.stream, reader.count));
            }
            if trimmed && kept > 3 * SHORT_COUNT as usize {
                mistakes.push(format!("{}: {kept} messages where {SHORT_COUNT} are wanted", reader.stream));
            }
        }
        mistakes
    }
}

/// A node on what the disk has.
fn start(disk: &SimDisk, seed: u64, now_ns: u64) -> Node {
    let config = Config {
        segment_bytes: 16 << 10,
        segment_messages: 100,
        unsynced_bytes_max: 4 << 10,
        compact_bytes: 32 << 10,
        spares_max: 2,
        prepare_bytes: 4 << 10,
    };
    let opened = recover(disk, config, (WALL_NS + now_ns) / 1_000_000);
    let (journal, found) = opened.unwrap_or_else(|error| panic!("the store does not open: {error}"));
    let mut node = Node::at(Limits::default(), seed, now_ns);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    node.apply(definitions());
    node
}

fn definitions() -> Vec<Change> {
    let barrier = |number| BarrierSettings {
        key: Key::MessageId,
        or_body: false,
        window_ms: 3_600_000,
        ids_max: 100_000,
        number,
    };
    let queue = |name: &str, number, barrier| Change::DeclareQueue {
        vhost: VHOST.to_owned(),
        name: name.to_owned(),
        settings: Box::new(Settings { durable: true, number, barrier, ..Settings::default() }),
    };
    let stream = |name: &str, number, count_max| Change::DeclareQueue {
        vhost: VHOST.to_owned(),
        name: name.to_owned(),
        settings: Box::new(Settings {
            durable: true,
            number,
            stream: Some(Retention { count_max, ..Retention::default() }),
            ..Settings::default()
        }),
    };
    let tapped = Settings { durable: true, number: 4, tap: Some(Name::from(&b"watch"[..])), ..Settings::default() };
    let bind = |queue: &str| {
        Change::Bind(BindingSpec {
            vhost: VHOST.to_owned(),
            source: "guarded".to_owned(),
            kind: Resource::Queue,
            destination: queue.to_owned(),
            routing_key: String::new(),
            arguments: Box::default(),
        })
    };
    vec![
        Change::DeclareExchange {
            vhost: VHOST.to_owned(),
            name: "guarded".to_owned(),
            kind: ExchangeKind::Fanout,
            internal: false,
            delayed: false,
            alternate: None,
            barrier: Some(barrier(11)),
            tap: None,
        },
        queue("kept", 1, None),
        queue("worked", 2, None),
        queue("linked", 3, Some(barrier(3))),
        stream("log", 5, None),
        stream("watch", 6, None),
        stream("short", 7, Some(SHORT_COUNT)),
        Change::DeclareQueue { vhost: VHOST.to_owned(), name: "plain".to_owned(), settings: Box::new(tapped) },
        bind("kept"),
        bind("worked"),
    ]
}
