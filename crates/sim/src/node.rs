//! The driver of a simulated node: what `weft.node.driver` does with sockets and a loop, done with vectors and a
//! number.
//!
//! Owns one engine, its controller and the time. Tests hand in a peer's bytes and let time pass; what the node sends
//! is kept per peer until it is read. It must never skip what a signal asks for, since a signal that is not needed is
//! a defect as well. Rule: the order of `src/weft/node/driver.py`: flush, then events, then what a budget left over.

use std::collections::BTreeMap;

use weft_engine::conn::ConnId;
use weft_engine::event::Event;
use weft_engine::{Engine, Limits, signal};
use weft_journal::SimDisk;

use crate::controller::Controller;

/// The wall clock when a simulation starts: 2026-01-01 in nanoseconds.
pub const WALL_NS: u64 = 1_767_225_600_000_000_000;
/// Turns after which a node that still has work is called stuck.
const TURNS_MAX: usize = 200_000;
const TRANSMIT_BYTES_MAX: usize = 1 << 20;

/// The far end of a connection.
#[derive(Debug, Default)]
pub struct Peer {
    /// Bytes the node sent and nobody has read yet.
    pub output: Vec<u8>,
    /// The node asked not to be sent more (PAUSE).
    pub paused: bool,
    /// The node hung up.
    pub gone: bool,
}

/// A node on a virtual clock.
pub struct Node {
    pub engine: Engine,
    pub controller: Controller,
    pub now_ns: u64,
    pub peers: BTreeMap<ConnId, Peer>,
    /// Every event so far, oldest first.
    pub events: Vec<Event>,
}

impl Node {
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self::at(limits, seed, 1)
    }

    /// A node that is started at a later time.
    pub fn at(limits: Limits, seed: u64, now_ns: u64) -> Self {
        let mut engine = Engine::new(limits, seed, now_ns, WALL_NS + now_ns);
        let applied = engine.apply(Controller::first_changes());
        assert!(applied.is_ok(), "{applied:?}");
        let (controller, peers) = (Controller::default(), BTreeMap::new());
        Self { engine, controller, now_ns, peers, events: Vec::new() }
    }

    /// A new connection that has not said a word.
    pub fn open(&mut self) -> Option<ConnId> {
        let conn = self.engine.open(false, true)?;
        self.peers.insert(conn, Peer::default());
        Some(conn)
    }

    /// A connection that this node opens itself.
    pub fn connect(&mut self, dial: weft_engine::session::amqp10::Dial) -> Option<ConnId> {
        let conn = self.engine.connect(dial)?;
        self.peers.insert(conn, Peer::default());
        Some(conn)
    }

    /// Python's own decisions, and everything that follows from them.
    pub fn apply(&mut self, changes: Vec<weft_engine::change::Change>) {
        let applied = self.engine.apply(changes);
        assert!(applied.is_ok(), "{applied:?}");
        self.settle();
    }

    /// A peer's bytes, and everything that follows from them. The signals of the call itself are returned.
    pub fn feed(&mut self, conn: ConnId, bytes: &[u8]) -> u32 {
        let signals = self.receive(conn, bytes);
        self.settle();
        signals
    }

    /// A peer's bytes and nothing else: the caller does what the signals ask for.
    pub fn receive(&mut self, conn: ConnId, bytes: &[u8]) -> u32 {
        if self.peers.get(&conn).is_none_or(|peer| peer.gone) {
            return 0;
        }
        let signals = self.engine.receive(conn, bytes, self.now_ns).unwrap_or(0);
        if signals & signal::PAUSE != 0 {
            self.peers.entry(conn).or_default().paused = true;
        }
        signals
    }

    /// Turns until the node has nothing left to do.
    pub fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.turn() {
                return;
            }
        }
        panic!("the node still has work after {TURNS_MAX} turns");
    }

    /// One turn of the loop; false when nothing happened.
    pub fn turn(&mut self) -> bool {
        let mut busy = self.flush();
        busy |= self.answer();
        let signals = self.engine.apply(Vec::new()).unwrap_or(0);
        if signals & signal::MORE != 0 {
            self.advance_by(0);
            busy = true;
        }
        busy | (signals & (signal::OUTPUT | signal::EVENTS) != 0)
    }

    /// Hands what the node sends to its peers.
    pub fn flush(&mut self) -> bool {
        let mut sent = false;
        let peers = &mut self.peers;
        self.engine.poll_transmit(TRANSMIT_BYTES_MAX, |conn, bytes| {
            sent = true;
            peers.entry(conn).or_default().output.extend_from_slice(bytes);
        });
        sent
    }

    /// Lets the controller answer, and hangs up where the engine asks for it.
    pub fn answer(&mut self) -> bool {
        let events = self.engine.poll_events();
        for event in &events {
            let changes = self.controller.decide(&self.engine, event);
            let applied = self.engine.apply(changes);
            assert!(applied.is_ok(), "{applied:?} after {event:?}");
            match event {
                Event::ReadingResumed { conn } => self.peer(*conn).paused = false,
                Event::HangUp { conn } => {
                    while self.flush() {}
                    self.peer(*conn).gone = true;
                    self.engine.close(ConnId::from_raw(*conn), "hung up");
                }
                _ => {}
            }
        }
        let any = !events.is_empty();
        self.events.extend(events);
        any
    }

    fn peer(&mut self, conn: u64) -> &mut Peer {
        self.peers.entry(ConnId::from_raw(conn)).or_default()
    }

    /// Lets time pass, and everything happen that is due.
    pub fn advance_ms(&mut self, ms: u64) {
        self.advance_by(ms.saturating_mul(1_000_000));
        self.settle();
    }

    /// Tells the engine a later time; signals come back as they are.
    pub fn advance_by(&mut self, ns: u64) -> u32 {
        self.now_ns = self.now_ns.saturating_add(ns);
        self.engine.advance(self.now_ns, WALL_NS.saturating_add(self.now_ns))
    }

    /// Lets a disk do all that there is for it; false if that was nothing.
    pub fn run_disk(&mut self, disk: &SimDisk) -> bool {
        let mut busy = false;
        loop {
            let jobs = self.engine.poll_disk();
            if jobs.is_empty() {
                return busy;
            }
            for mut job in jobs {
                job.run(disk);
                self.engine.disk_done(job);
                self.settle();
            }
            busy = true;
        }
    }

    /// The peer's socket is gone.
    pub fn close(&mut self, conn: ConnId) {
        self.engine.close(conn, "the test closed it");
        self.peer(conn.raw()).gone = true;
        self.settle();
    }

    /// What the node sent to a peer since the last call.
    pub fn take_output(&mut self, conn: ConnId) -> Vec<u8> {
        self.peers.get_mut(&conn).map(|peer| std::mem::take(&mut peer.output)).unwrap_or_default()
    }

    /// (ready, unsettled, consumers) of a queue.
    pub fn queue(&self, name: &str) -> (usize, usize, usize) {
        self.engine.queue_stats(crate::controller::VHOST, name).unwrap_or_default()
    }
}
