//! Two simulated nodes and the wire between them.
//!
//! Owns nothing but the carrying of bytes: what one node sends to the other is fed to it, both ways, until neither has
//! anything left to say. A test decides when, so that it can look, or cut the wire, in between. It must never change a
//! byte. Rule: a connection has two ends, `ConnId`s of different engines.

use weft_engine::conn::ConnId;
use weft_engine::session::amqp10::Dial;

use crate::node::Node;

/// Rounds after which two nodes that still talk are taken to be in a loop.
const ROUNDS_MAX: usize = 100_000;
/// As long as an answer may wait at a node for a message to leave with.
const ANSWERS_WAIT_MS_MAX: u64 = 5;

/// A connection between two nodes: its end at the one that dialled, and at the other.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub dialler: ConnId,
    pub listener: ConnId,
}

impl Wire {
    /// Has one node dial another; nothing is carried yet.
    pub fn dial(from: &mut Node, to: &mut Node, dial: Dial) -> Self {
        let dialler = from.connect(dial).expect("the node opens one more connection");
        let listener = to.open().expect("the node takes one more connection");
        Self { dialler, listener }
    }

    /// Carries bytes both ways once; false when there were none.
    pub fn carry_once(&self, dialler: &mut Node, listener: &mut Node) -> bool {
        dialler.settle();
        let there = dialler.take_output(self.dialler);
        listener.feed(self.listener, &there);
        let back = listener.take_output(self.listener);
        dialler.feed(self.dialler, &back);
        !there.is_empty() || !back.is_empty()
    }

    /// Carries bytes until both are silent.
    pub fn carry(&self, dialler: &mut Node, listener: &mut Node) {
        for _ in 0..ROUNDS_MAX {
            if !self.carry_once(dialler, listener) {
                return;
            }
        }
        panic!("the nodes still talk after {ROUNDS_MAX} rounds");
    }

    /// Carries, and lets a moment pass, after which answers leave that waited for company.
    pub fn settle(&self, dialler: &mut Node, listener: &mut Node) {
        self.carry(dialler, listener);
        for node in [&mut *dialler, &mut *listener] {
            node.advance_ms(ANSWERS_WAIT_MS_MAX);
        }
        self.carry(dialler, listener);
    }

    /// Both ends are told that the socket is gone.
    pub fn cut(&self, dialler: &mut Node, listener: &mut Node) {
        dialler.close(self.dialler);
        listener.close(self.listener);
    }
}
