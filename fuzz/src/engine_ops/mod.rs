//! One engine under a list of operations by several peers of both protocols.
//!
//! Owns the interpreter: an input is read as operations (open, declare, publish, settle, wait, stop reading, ...) with
//! odd arguments. After each, `ledger.rs` compares what peers saw with what the engine counts. It must never do what a
//! peer or a driver could not do. Rules: `ledger.rs`; the same input gives the same bytes.

mod ledger;
mod peer091;
mod peer10;

use weft_engine::change::Change;
use weft_engine::conn::ConnId;
use weft_engine::{Limits, signal};
use weft_sim::{Node, Random, client10};
use weft_wire::amqp091::{Method, frame};

use crate::feature::{note, trace};
use crate::source::Source;
use ledger::Ledger;
use peer10::Peer10;
use peer091::Peer091;

/// More peers than a test of interplay needs would only slow it down.
const PEERS_MAX: usize = 4;
const OPERATIONS_MAX: usize = 200;
/// Time that may pass in one operation: more than any time to live.
const WAIT_MS_MAX: u64 = 100_000;

/// All queues that peers name.
const QUEUES: [&str; 4] = ["q0", "q1", "q2", "q3"];

const LIMITS: Limits = Limits {
    frame_bytes_max: 4_096,
    channels_max: 3,
    links_max: 4,
    heartbeat_s: 60,
    message_bytes_max: 20_000,
    memory_bytes_max: 2 << 20,
    output_bytes_max: 2_000,
    flush_bytes: 4_000,
    work_max: 50,
    link_credit: 10,
    session_window: 20,
    unauthenticated_s: 10,
    unfinished_s: 5,
    connections_max: 8,
    addresses_max: 4,
    transactions_max: 2,
    transaction_bytes_max: 3_000,
    prepared_max: 2,
    prepared_bytes_max: 3_000,
    doubt_s: 5,
    end_to_end_max: 4,
    consumers_max: 6,
    relay_window_s: 5,
    relay_ids_max: 100,
};

/// Random choices: any list of bytes is a list of operations.
pub fn generate(random: &mut Random) -> Vec<u8> {
    let len = 20 + random.below(600);
    // Small numbers mostly: they are the operations and names that meet each other.
    (0..len).map(|_| if random.one_in(6) { random.byte() } else { random.below(24) as u8 }).collect()
}

/// Runs the target.
pub fn run(input: &[u8]) {
    let first = World::play(input);
    if input.first().is_some_and(|byte| byte & 1 == 1) {
        assert_eq!(first, World::play(input), "the same operations gave other bytes");
    }
}

/// A peer of either protocol.
enum Peer {
    Amqp091(Peer091),
    Amqp10(Peer10),
}

impl Peer {
    fn conn(&self) -> ConnId {
        match self {
            Self::Amqp091(peer) => peer.conn,
            Self::Amqp10(peer) => peer.conn,
        }
    }

    /// What it says about messages: publish, fetch, settle.
    fn message(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        match self {
            Self::Amqp091(peer) => peer.message(source, ledger),
            Self::Amqp10(peer) => peer.message(source, ledger),
        }
    }

    /// What it says about anything else: topology, consumers, channels.
    fn change(&mut self, source: &mut Source<'_>, ledger: &mut Ledger) -> Vec<u8> {
        match self {
            Self::Amqp091(peer) => peer.change(source, ledger),
            Self::Amqp10(peer) => peer.change(source, ledger),
        }
    }

    /// What it says, in words.
    fn tell(&self, bytes: &[u8]) -> String {
        let (mut words, mut at) = (format!("  from {:?}:", self.conn()), 0);
        match self {
            Self::Amqp091(_) => {
                while let Ok(Some(frame)) = frame::split(&bytes[at..], usize::MAX) {
                    at += frame.size;
                    words += &format!(" {} {:?}", frame.channel, Method::decode(frame.payload));
                }
            }
            Self::Amqp10(_) => {
                for said in client10::parse(bytes).0 {
                    words += &format!(" {:?}", said.performative());
                }
            }
        }
        words
    }

    fn hear(&mut self, bytes: &[u8], ledger: &mut Ledger) {
        match self {
            Self::Amqp091(peer) => peer.hear(bytes, ledger),
            Self::Amqp10(peer) => peer.hear(bytes, ledger),
        }
    }
}

struct World {
    node: Node,
    peers: Vec<Peer>,
    ledger: Ledger,
    quiesced: bool,
    /// A hash of every byte the node sent.
    said: u64,
}

impl World {
    fn play(input: &[u8]) -> u64 {
        let mut source = Source::new(input);
        let node = Node::new(LIMITS, u64::from(source.byte()));
        let mut world = Self { node, peers: Vec::new(), ledger: Ledger::default(), quiesced: false, said: 0 };
        for _ in 0..OPERATIONS_MAX {
            if source.is_empty() {
                break;
            }
            world.step(&mut source);
        }
        world.end();
        world.said
    }

    fn step(&mut self, source: &mut Source<'_>) {
        let operation = source.below(24);
        note(("operation", operation));
        trace(|| format!("operation {operation} at {} ms", self.node.now_ns / 1_000_000));
        match operation {
            0 => self.open(source.flag()),
            1 if source.below(4) == 0 => self.close(source),
            2 => {
                self.node.advance_by(source.odd_number().min(WAIT_MS_MAX) * 1_000_000);
            }
            3 => {
                let yes = source.flag();
                if let Some(peer) = self.peers.get(source.below(self.peers.len())) {
                    self.node.engine.writable(peer.conn(), yes);
                }
            }
            4 => self.flush_some(source.below(256) * 20),
            5 => {
                self.quiesced = source.flag();
                assert!(self.node.engine.apply(vec![Change::Quiesce { on: self.quiesced }]).is_ok());
            }
            6..=16 => {
                self.act(source, Peer::message);
                if source.below(3) == 0 {
                    return;
                }
            }
            _ => {
                self.settle();
                self.act(source, Peer::change);
            }
        }
        self.settle();
    }

    fn open(&mut self, amqp10: bool) {
        if self.peers.len() < PEERS_MAX {
            self.settle();
            self.peers.push(match amqp10 {
                true => Peer::Amqp10(Peer10::open(&mut self.node)),
                false => Peer::Amqp091(Peer091::open(&mut self.node)),
            });
        }
    }

    fn close(&mut self, source: &mut Source<'_>) {
        let choice = source.below(self.peers.len());
        if choice < self.peers.len() {
            self.settle();
            if choice < self.peers.len() {
                let peer = self.peers.remove(choice);
                self.node.close(peer.conn());
                self.ledger.lost(peer.conn());
            }
        }
    }

    /// One peer says something, unless it was asked to wait.
    fn act(&mut self, source: &mut Source<'_>, say: fn(&mut Peer, &mut Source<'_>, &mut Ledger) -> Vec<u8>) {
        let choice = source.below(self.peers.len());
        let Some(peer) = self.peers.get_mut(choice) else { return self.open(source.flag()) };
        let far = &self.node.peers[&peer.conn()];
        if far.paused || far.gone {
            return;
        }
        let bytes = say(peer, source, &mut self.ledger);
        trace(|| peer.tell(&bytes));
        let signals = self.node.receive(peer.conn(), &bytes);
        note(("signals", signals));
    }

    /// Part of the output, and the answers to some questions.
    fn flush_some(&mut self, bytes_max: usize) {
        let far = &mut self.node.peers;
        self.node.engine.poll_transmit(bytes_max, |conn, bytes| {
            far.entry(conn).or_default().output.extend_from_slice(bytes);
        });
        if self.node.advance_by(0) & signal::EVENTS != 0 {
            self.node.answer();
        }
    }

    /// Lets the node do all it can, hands each peer its bytes, and compares.
    fn settle(&mut self) {
        self.node.settle();
        self.ledger.look_at(&self.node);
        for peer in &mut self.peers {
            let bytes = self.node.take_output(peer.conn());
            for byte in &bytes {
                self.said = self.said.rotate_left(5) ^ u64::from(*byte).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            }
            peer.hear(&bytes, &mut self.ledger);
        }
        let gone: Vec<ConnId> = self.peers.iter().map(Peer::conn).filter(|conn| self.node.peers[conn].gone).collect();
        self.peers.retain(|peer| !gone.contains(&peer.conn()));
        gone.into_iter().for_each(|conn| self.ledger.lost(conn));
        self.ledger.check(&self.node, self.quiesced);
    }

    /// Everybody leaves and everything is deleted: nothing may be left.
    fn end(&mut self) {
        self.settle();
        assert!(self.node.engine.apply(vec![Change::Quiesce { on: false }]).is_ok());
        self.quiesced = false;
        for peer in std::mem::take(&mut self.peers) {
            self.node.close(peer.conn());
            self.ledger.lost(peer.conn());
        }
        self.settle();
        // Longer than the longest delay, so that nothing is still on its way.
        self.node.advance_ms(u64::from(u32::MAX) + 1);
        let names: Vec<String> = self.node.engine.broker.queues.iter().map(|(_, queue)| show(&queue.name)).collect();
        for name in names {
            let deleted = self.node.engine.apply(vec![Change::DeleteQueue { vhost: "/".to_owned(), name }]);
            assert!(deleted.is_ok());
        }
        self.node.settle();
        let stats = self.node.engine.stats();
        for left in ["connections", "consumers", "memory_bytes", "ready", "unsettled", "delayed"] {
            assert_eq!(stats[left], 0, "{left} left in {stats:?}");
        }
    }
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The body of a message: a number that no other has, and as many bytes as the peer likes.
fn body(number: u64, source: &mut Source<'_>) -> Vec<u8> {
    let mut body = number.to_be_bytes().to_vec();
    body.resize(8 + source.odd_number().min(5_000) as usize, 0);
    body
}
