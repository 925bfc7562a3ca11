//! Whoever waits for an answer gets one, whatever the disk does: confirms, transactions and outcomes beside each other.
//!
//! Owns two publishers, one of each protocol, that use everything a publisher can use: mandatory messages, queues that
//! refuse, queues that last, transactions. The disk fills up, fails and has room again, by chance. At the end it works,
//! and nothing may be unanswered. It must never look inside a session. Rule: docs/guides/durability.md, "When a confirm
//! is sent".

mod peer10;

use std::collections::VecDeque;

use peer10::*;
use weft_engine::Limits;
use weft_engine::broker::Store;
use weft_engine::change::Change;
use weft_engine::event::Event;
use weft_engine::queue::{Overflow, Settings};
use weft_journal::{Config, Job, SimDisk, recover};
use weft_sim::client::write_publish;
use weft_sim::node::WALL_NS;
use weft_sim::{Client, Item, Node, Random};
use weft_wire::amqp10::*;
use weft_wire::amqp091::Method;
use weft_wire::amqp091::properties::Properties as Properties091;

const SEEDS: u64 = 60;
const STEPS: usize = 120;
const CONTROL: u32 = 10;
const PLACES: [(&str, &str); 4] = [("", "kept"), ("", "small"), ("", "loose"), ("amq.direct", "nowhere")];

/// A node with a queue that lasts, one that lasts and refuses what is too much, and one that does neither.
fn node(disk: &SimDisk) -> Node {
    let config = Config { segment_bytes: 16 << 10, spares_max: 1, prepare_bytes: 4 << 10, ..Config::default() };
    let (journal, found) = recover(disk, config, WALL_NS / 1_000_000).expect("an empty store opens");
    let mut node = Node::new(Limits::default(), 7);
    node.engine.broker.attach(Store::new(journal, found.queues, found.barriers));
    for (number, name) in [(1, "kept"), (2, "small"), (0, "loose")] {
        let (length_max, overflow) = (Some(4).filter(|_| name == "small"), Overflow::RejectPublish);
        let settings = Box::new(Settings { durable: number > 0, number, length_max, overflow, ..Settings::default() });
        node.apply(vec![Change::DeclareQueue { vhost: "/".to_owned(), name: name.to_owned(), settings }]);
    }
    node
}

/// A publisher of 0-9-1: confirms on channel 1, transactions on channel 2.
struct Publisher091 {
    client: Client,
    published: u64,
    /// Tags that are answered.
    answered: Vec<u64>,
    /// Commits and rollbacks, and how many are answered.
    ended: (usize, usize),
}

impl Publisher091 {
    fn new(node: &mut Node) -> Self {
        let mut client = Client::connect(node);
        client.call(node, &Method::ConfirmSelect { no_wait: false });
        client.call_on(node, 2, &Method::ChannelOpen);
        client.call_on(node, 2, &Method::TxSelect);
        Self { client, published: 0, answered: Vec::new(), ended: (0, 0) }
    }

    fn act(&mut self, node: &mut Node, random: &mut Random) {
        let (channel, (exchange, key)) = (1 + random.below(2) as u16, PLACES[random.below(PLACES.len())]);
        let mut bytes = Vec::new();
        if channel == 2 && random.one_in(4) {
            let end = if random.one_in(4) { Method::TxRollback } else { Method::TxCommit };
            end.encode_frame(channel, &mut bytes);
            self.ended.0 += 1;
        } else {
            let properties = Properties091 { delivery_mode: Some(1 + random.below(2) as u8), ..Default::default() };
            let place = (exchange.as_bytes(), key.as_bytes());
            write_publish(&mut bytes, channel, place, random.one_in(2), &properties, b"old");
            self.published += u64::from(channel == 1);
        }
        node.feed(self.client.conn, &bytes);
    }

    fn read(&mut self, node: &mut Node) {
        for item in self.client.read(node) {
            match item.method() {
                Method::BasicAck { delivery_tag, multiple: true } => self.answered.extend(1..=delivery_tag),
                Method::BasicAck { delivery_tag, .. } | Method::BasicNack { delivery_tag, .. } => {
                    self.answered.push(delivery_tag);
                }
                Method::TxCommitOk | Method::TxRollbackOk => self.ended.1 += 1,
                Method::BasicReturn { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn missing(&self) -> Vec<u64> {
        (1..=self.published).filter(|tag| !self.answered.contains(tag)).collect()
    }
}

/// A publisher of 1.0: messages that are answered each, some in a transaction.
struct Publisher10 {
    peer: Peer,
    sent: u32,
    answered: Vec<u32>,
    transaction: Option<Vec<u8>>,
}

impl Publisher10 {
    fn new(node: &mut Node) -> Self {
        let mut peer = Peer::connect(node);
        for (handle, (exchange, key)) in PLACES.iter().enumerate() {
            let address = if exchange.is_empty() { (*key).to_owned() } else { format!("{exchange}/{key}") };
            peer.sender(node, handle as u32, Some(&address));
        }
        let target = Some(AttachTarget::Coordinator(Coordinator::default()));
        let attach = Attach { name: "control", handle: CONTROL, target, ..Attach::default() };
        peer.call(node, 0, &Attach { initial_delivery_count: Some(0), ..attach });
        Self { peer, sent: 0, answered: Vec::new(), transaction: None }
    }

    fn act(&mut self, node: &mut Node, random: &mut Random) {
        let handle = random.below(PLACES.len()) as u32;
        let body = if random.one_in(2) { durable(b"new") } else { message(b"new") };
        let bytes = match self.transaction.take() {
            None if random.one_in(3) => self.request(&TransactionRequest::Declare(Declare::default())),
            Some(txn_id) if random.one_in(4) => {
                let fail = random.one_in(4);
                self.request(&TransactionRequest::Discharge(Discharge { txn_id: &txn_id, fail }))
            }
            Some(txn_id) if random.one_in(2) => {
                let state = DeliveryState::Transactional(TransactionalState { txn_id: &txn_id, outcome: None });
                let bytes = self.peer.transfer_in(handle, &body, false, Some(state));
                self.transaction = Some(txn_id);
                bytes
            }
            other => {
                self.transaction = other;
                self.peer.transfer(handle, &body, false)
            }
        };
        self.sent += 1;
        node.feed(self.peer.conn, &bytes);
    }

    fn request(&mut self, request: &TransactionRequest<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.peer.transfer(CONTROL, &bytes, false)
    }

    fn read(&mut self, node: &mut Node) {
        for said in self.peer.read(node) {
            let Performative::Disposition(told) = said.performative() else { continue };
            assert_eq!((told.role, told.settled), (Role::Receiver, true));
            self.answered.extend(told.first..=told.last.unwrap_or(told.first));
            if let Some(DeliveryState::Outcome(Outcome::Declared(declared))) = told.state {
                self.transaction = Some(declared.txn_id.to_vec());
            }
        }
    }

    fn missing(&self) -> Vec<u32> {
        (0..self.sent).filter(|id| !self.answered.contains(id)).collect()
    }
}

/// Runs so many disk jobs, in order; the others wait in `jobs`.
fn work(node: &mut Node, disk: &SimDisk, jobs: &mut VecDeque<Job>, count: usize) {
    for _ in 0..count {
        jobs.extend(node.engine.poll_disk());
        let Some(mut job) = jobs.pop_front() else { return };
        job.run(disk);
        node.engine.disk_done(job);
        node.settle();
    }
}

#[test]
fn every_publisher_is_answered_once_the_disk_works() {
    let mut alarms = 0;
    for seed in 0..SEEDS {
        let (mut random, disk, mut jobs) = (Random::new(seed), SimDisk::new(seed), VecDeque::new());
        let mut node = node(&disk);
        let (mut old, mut new, mut taker) =
            (Publisher091::new(&mut node), Publisher10::new(&mut node), Client::connect(&mut node));
        for _ in 0..STEPS {
            match random.below(12) {
                0 => disk.set_capacity(Some(0)),
                1 => disk.set_capacity(None),
                2 => disk.set_fault_rate(if random.one_in(2) { 300 } else { 0 }),
                3 => node.advance_ms(random.below(1_500) as u64),
                4 => drop(taker.get(&mut node, "small", true)),
                5 | 6 => work(&mut node, &disk, &mut jobs, random.below(4)),
                7 | 8 => new.act(&mut node, &mut random),
                _ => old.act(&mut node, &mut random),
            }
            old.read(&mut node);
            new.read(&mut node);
        }
        disk.set_capacity(None);
        disk.set_fault_rate(0);
        for _ in 0..5 {
            work(&mut node, &disk, &mut jobs, usize::MAX);
            node.advance_ms(1_100);
        }
        old.read(&mut node);
        new.read(&mut node);
        let missing = (old.missing(), old.ended.0 - old.ended.1, new.missing());
        assert_eq!(missing, (vec![], 0, vec![]), "seed {seed}: tags, ends of transactions, deliveries");
        let alarm = |event: &Event| matches!(event, Event::DiskAlarm { raised: true, .. });
        alarms += node.events.iter().filter(|event| alarm(event)).count();
    }
    assert!(alarms > SEEDS as usize / 4, "the disk hardly ever failed: {alarms}");
}

/// Publishes one message to `kept` and asks for a promise; the name of the answer that is one.
type Ask = fn(&mut Node, &mut Client) -> &'static str;

const PROMISES: [Ask; 2] = [
    |node, client| {
        client.call(node, &Method::ConfirmSelect { no_wait: false });
        assert!(publish_kept(node, client, 1).is_empty());
        "basic.ack"
    },
    |node, client| {
        client.call_on(node, 2, &Method::ChannelOpen);
        client.call_on(node, 2, &Method::TxSelect);
        assert!(publish_kept(node, client, 2).is_empty());
        assert!(client.call_on(node, 2, &Method::TxCommit).is_empty(), "the disk has not moved");
        "tx.commit-ok"
    },
];

fn publish_kept(node: &mut Node, client: &mut Client, channel: u16) -> Vec<Item> {
    let durable = Properties091 { delivery_mode: Some(2), ..Properties091::default() };
    let mut bytes = Vec::new();
    write_publish(&mut bytes, channel, (b"", b"kept"), false, &durable, b"promised");
    node.feed(client.conn, &bytes);
    client.read(node)
}

#[test]
fn a_promise_is_given_when_a_power_cut_would_not_break_it_and_not_before() {
    for (seed, ask) in (0..20).flat_map(|seed| PROMISES.map(|ask| (seed, ask))) {
        let (disk, mut jobs) = (SimDisk::new(seed), VecDeque::new());
        let mut before = node(&disk);
        let mut client = Client::connect(&mut before);
        let promise = ask(&mut before, &mut client);
        let mut done = 0;
        let said = loop {
            work(&mut before, &disk, &mut jobs, 1);
            done += 1;
            let said = client.read(&mut before);
            if !said.is_empty() {
                break said;
            }
            assert!(done < 100, "{promise} never came");
        };
        assert_eq!(said.iter().map(|item| item.method().name()).collect::<Vec<_>>(), [promise]);
        disk.crash();
        assert_eq!(node(&disk).queue("kept").0, 1, "{promise} after {done} jobs");
    }
}
