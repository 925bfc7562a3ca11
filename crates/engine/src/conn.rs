//! A connection as the engine sees it: bytes waiting in, bytes waiting out, and a session between them.
//!
//! Owns what both protocols need of a connection. The node feeds and drains it; the session inside reads frames from
//! it and writes frames to it. It must never know what the frames mean. Rule: a connection that waits for a decision
//! keeps its bytes and reads on from the same frame when the answer is there.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::durability::Needs;
use crate::input::Input;
use crate::memory::Account;
use crate::message::Message;
use crate::queue::QueueId;
use crate::queue::consumers::ConsumerId;
use crate::session::Session;
use crate::slab::Id;

/// Names a connection.
pub type ConnId = Id<Conn>;

/// An output buffer keeps this much room when it was flushed, so that an idle connection costs little.
const OUTPUT_KEEP_BYTES: usize = 4 << 10;
/// Small flushes in a row until a connection counts as quiet: between large ones there are always a few.
const QUIET_FLUSHES: u8 = 16;

/// One connection.
pub struct Conn {
    pub io: Io,
    pub session: Session,
}

/// The bytes and flags of a connection.
pub struct Io {
    pub id: ConnId,
    /// Bytes received and not yet understood: part of a frame, or what waits for a decision.
    pub input: Input,
    /// Bytes to send.
    pub output: Vec<u8>,
    /// Flushes in a row that were small for its room.
    pub quiet_flushes: u8,
    /// The request or grant this connection waits for; nothing is read meanwhile.
    pub parked: Option<Wait>,
    /// The node was told to stop reading.
    pub paused: bool,
    /// The socket takes bytes.
    pub writable: bool,
    /// Waits in the engine's list of connections with output.
    pub listed: bool,
    /// Waits in the engine's list of connections with input left over.
    pub queued: bool,
    /// Bytes of `output` that answer the peer's own frames; deliveries are bounded by `has_room`.
    pub answer_bytes: usize,
    /// The peer asks and does not take the answers: nothing more is read until it does.
    pub choked: bool,
    /// Replies to its direct reply-to consumers that wait for room, by channel.
    pub replies: VecDeque<(u16, Rc<Message>)>,
    /// Nothing more is read; hang up once the output is flushed.
    pub finished: bool,
    /// Waits in the engine's list of connections that are held back.
    pub held: bool,
    /// Waits in the engine's list of connections with promises that wait for the disk.
    pub unsynced: bool,
    /// Under what it is in the engine's table of connections that wait.
    pub waits_for: Option<Wait>,
    /// The node was told to hang up.
    pub hung_up: bool,
    /// Memory is short, or the disk behind: it is held back, since then.
    pub blocked: bool,
    pub blocked_ns: u64,
    /// The session was told so.
    pub told: bool,
    /// The earliest timer set for this connection, and one behind it that was there before.
    pub timer_ns: u64,
    pub later_ns: u64,
    /// The peer is on this machine.
    pub local: bool,
    pub tls: bool,
    pub principal: u32,
    pub account: Rc<Account>,
    /// This connection has published: memory limits apply to it.
    pub publishes: bool,
    pub opened_ns: u64,
    pub received_ns: u64,
    pub sent_ns: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Messages from the peer and deliveries to it.
    pub messages_in: u64,
    pub messages_out: u64,
    /// Publishes that were answered, and those of them whose answers left at once since this was last looked at.
    pub promised: u64,
    pub confirmed: u64,
    /// Consumers that sleep because the output is full.
    pub stalled: Vec<ConsumerId>,
    /// Frames that promise the safety of what was published, to be sent at the end of this call or when it is on disk.
    pub promises: Vec<Promise>,
    /// Promises that wait for the disk, in order.
    pub deferred: VecDeque<Promise>,
    /// What it takes until everything that this connection stored is safe.
    pub stored: Needs,
    /// What it publishes goes to the disk, whether it waits for that or not.
    pub stores: bool,
    /// Nothing of this connection waits for the disk: promises may be sent as they are made.
    pub direct: bool,
    /// Links wait for their messages to be consumed before they give more credit.
    pub sated: bool,
    /// Publishes of 0-9-1 whose consumers have not answered yet.
    pub awaited: usize,
    /// Why it ends, for the event.
    pub cause: Option<String>,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// The answer to this request.
    Answer(u64),
    /// Any grant or address for this principal.
    Grant(u32),
    /// Messages of this queue, from disk.
    Disk(QueueId),
    /// The batch that the deferred promises wait for.
    Sync,
}

/// A confirm, an outcome or a commit: it leaves once the disk has what it is about.
pub struct Promise {
    pub needs: Needs,
    pub channel: u16,
    pub bytes: Vec<u8>,
    /// Publishes that it answers, and when they came.
    pub count: u32,
    pub made_ns: u64,
}

impl Conn {
    /// Hands on the replies there is room for. Those that wait are on the account of the connection that wrote them.
    pub fn deliver_replies(&mut self, output_bytes_max: usize) {
        let Session::Amqp091(session) = &mut self.session else { return self.io.replies.clear() };
        while self.io.has_room(output_bytes_max) {
            let Some((channel, message)) = self.io.replies.pop_front() else { return };
            session.deliver_reply(&mut self.io, channel, &message);
        }
    }
}

impl Io {
    pub fn new(id: ConnId, account: Rc<Account>, flags: (bool, bool), now_ns: u64) -> Self {
        Self {
            id,
            input: Input::default(),
            output: Vec::new(),
            quiet_flushes: 0,
            parked: None,
            paused: false,
            writable: true,
            listed: false,
            queued: false,
            answer_bytes: 0,
            choked: false,
            replies: VecDeque::new(),
            finished: false,
            held: false,
            unsynced: false,
            waits_for: None,
            hung_up: false,
            blocked: false,
            blocked_ns: 0,
            told: false,
            timer_ns: u64::MAX,
            later_ns: u64::MAX,
            tls: flags.0,
            local: flags.1,
            principal: 0,
            account,
            publishes: false,
            opened_ns: now_ns,
            received_ns: now_ns,
            sent_ns: now_ns,
            bytes_in: 0,
            bytes_out: 0,
            messages_in: 0,
            messages_out: 0,
            promised: 0,
            confirmed: 0,
            stalled: Vec::new(),
            promises: Vec::new(),
            deferred: VecDeque::new(),
            stored: Needs::default(),
            stores: false,
            direct: true,
            sated: false,
            awaited: 0,
            cause: None,
        }
    }

    /// Writes frames that promise something; the engine sends them when the promise can be kept.
    pub fn promise(&mut self, channel: u16, write: impl FnOnce(&mut Vec<u8>)) {
        // Whatever was published since the last promise is what this one is about.
        let count = self.messages_in - std::mem::replace(&mut self.promised, self.messages_in);
        if self.direct {
            self.confirmed += count;
            return write(&mut self.output);
        }
        match self.promises.last_mut() {
            Some(last) if last.channel == channel => {
                write(&mut last.bytes);
                last.count += count as u32;
            }
            _ => {
                let mut bytes = Vec::new();
                write(&mut bytes);
                let (count, made_ns) = (count as u32, self.received_ns);
                self.promises.push(Promise { needs: Needs::default(), channel, bytes, count, made_ns });
            }
        }
    }

    /// A channel is over: nothing more may be sent on it.
    pub fn drop_promises(&mut self, channel: u16) {
        self.promises.retain(|promise| promise.channel != channel);
        self.deferred.retain(|promise| promise.channel != channel);
    }

    /// Is there room for another delivery?
    #[inline]
    pub fn has_room(&self, output_bytes_max: usize) -> bool {
        self.writable && self.output.len() < output_bytes_max
    }

    /// Are bytes that come in to be kept for later?
    #[inline]
    pub fn waits(&self) -> bool {
        self.parked.is_some() || self.queued || self.choked
    }

    /// May one more frame be answered? `answers` are the bytes of output that this reading has made so far.
    #[inline]
    pub fn may_answer(&mut self, answers: usize, output_bytes_max: usize) -> bool {
        self.choked = self.answer_bytes + answers >= output_bytes_max;
        !self.choked
    }

    /// Will the node's driver be given the output? A socket that takes nothing gets no more, but for the last words.
    pub fn is_sendable(&self) -> bool {
        !self.output.is_empty() && (self.writable || self.finished)
    }

    /// Hands out what is to be sent and keeps a small buffer.
    pub fn sent(&mut self, now_ns: u64) {
        self.sent_ns = now_ns;
        let len = self.output.len();
        self.bytes_out += len as u64;
        self.output.clear();
        self.answer_bytes = 0;
        // A busy connection keeps its buffer; one that has become quiet gives it back.
        if self.output.capacity() <= OUTPUT_KEEP_BYTES || len >= self.output.capacity() / 8 {
            self.quiet_flushes = 0;
        } else if self.quiet_flushes < QUIET_FLUSHES {
            self.quiet_flushes += 1;
        } else {
            self.output = Vec::with_capacity(len.max(OUTPUT_KEEP_BYTES));
        }
    }

    /// Ends the connection: nothing more is read, `cause` is told when it is gone.
    pub fn finish(&mut self, cause: impl Into<String>) {
        self.finished = true;
        self.input = Input::default();
        self.parked = None;
        self.cause.get_or_insert_with(|| cause.into());
    }
}
