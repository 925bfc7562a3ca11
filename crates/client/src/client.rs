//! The machine: what a caller may ask of a connection, its sessions and its links.
//!
//! Owns everything a client knows. Verbs change it and may leave frames in the output; every verb answers with signal
//! bits that say what to poll. A caller's mistake is a `Mistake`, a peer's becomes a `close` and an event. It must
//! never wait: what cannot be sent yet stays in the row of its link. Rules: the header of each file beside this one.

use std::collections::VecDeque;
use std::rc::Rc;

use weft_wire::amqp10::{
    Compound, Declare, Detach, Error, MapBuf, Prepare, Resolve, Symbol, TransactionRequest, descriptor, encode, writer,
};

use crate::attach::{End, Link, Stage};
use crate::event::{Ending, Event, Settled, Verdict};
use crate::opening::Opening;
use crate::options::{Limits, LinkOptions, Login};
use crate::receiver::{Arrived, Receiver};
use crate::sender::{Manner, Outgoing, Sender};
use crate::session::{Decision, Session, Stage as SessionStage};

/// What a call leaves to do; the bits of the engine where they mean the same.
pub mod signal {
    /// There are bytes to transmit.
    pub const OUTPUT: u32 = 1;
    /// `poll_events` has something.
    pub const EVENTS: u32 = 16;
    /// The next deadline moved.
    pub const TIMER: u32 = 32;
    /// `poll_filled` names links with deliveries.
    pub const DELIVERIES: u32 = 128;
    /// `poll_outcomes` has something.
    pub const OUTCOMES: u32 = 256;
}

/// What a caller did wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mistake {
    NoSuchLink(u32),
    NoSuchSession(u16),
    /// The link does the other thing.
    WrongDirection(u32),
    /// The message is larger than the peer takes.
    TooLarge {
        bytes: usize,
        bytes_max: u64,
    },
    /// A limit of `Limits`, by name.
    Limit(&'static str),
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoSuchLink(link) => write!(f, "there is no link {link}, or not any more"),
            Self::NoSuchSession(session) => write!(f, "there is no session {session}, or not any more"),
            Self::WrongDirection(link) => write!(f, "link {link} goes the other way"),
            Self::TooLarge { bytes, bytes_max } => {
                write!(f, "a message of {bytes} bytes is larger than the {bytes_max} the peer takes")
            }
            Self::Limit(name) => write!(f, "there are as many as {name} allows"),
        }
    }
}

/// One client, through all its connections.
pub struct Client {
    pub(crate) container: Box<str>,
    pub(crate) properties: Vec<u8>,
    pub(crate) limits: Limits,
    pub(crate) opening: Opening,
    pub(crate) peer_frame_bytes_max: u32,
    pub(crate) peer_idle_ms: u32,
    pub(crate) sessions: Vec<Session>,
    /// Never used twice, so that a number always means one link.
    pub(crate) links: Vec<Option<Box<Link>>>,
    pub(crate) links_open: usize,
    pub(crate) inbound: Vec<u8>,
    pub(crate) out: Vec<u8>,
    pub(crate) dirty: VecDeque<u32>,
    pub(crate) filled: Vec<u32>,
    pub(crate) events: Vec<Event>,
    pub(crate) outcomes: Vec<Settled>,
    pub(crate) timer_moved: bool,
    pub(crate) now_ns: u64,
    pub(crate) heard_ns: u64,
    pub(crate) sent_ns: u64,
}

impl Client {
    /// A client that calls itself `container`; `properties` is an encoded map for `open`, or empty.
    pub fn new(container: &str, properties: Vec<u8>, limits: Limits) -> Self {
        let first = Session::new(limits.session_window);
        Self {
            container: container.into(),
            properties,
            limits,
            opening: Opening::Idle,
            peer_frame_bytes_max: 512,
            peer_idle_ms: 0,
            sessions: vec![first],
            links: Vec::new(),
            links_open: 0,
            inbound: Vec::new(),
            out: Vec::new(),
            dirty: VecDeque::new(),
            filled: Vec::new(),
            events: Vec::new(),
            outcomes: Vec::new(),
            timer_moved: false,
            now_ns: 0,
            heard_ns: 0,
            sent_ns: 0,
        }
    }

    /// What there is to poll.
    pub fn signals(&self) -> u32 {
        let mut bits = 0;
        let mut set = |yes: bool, bit: u32| bits |= if yes { bit } else { 0 };
        set(self.has_output(), signal::OUTPUT);
        set(!self.events.is_empty(), signal::EVENTS);
        set(self.timer_moved, signal::TIMER);
        set(!self.filled.is_empty(), signal::DELIVERIES);
        set(!self.outcomes.is_empty(), signal::OUTCOMES);
        bits
    }

    /// A transport is connected: say hello. Of the logins the first that the peer offers is taken; none at all goes
    /// without SASL. Whatever was attached before is attached again.
    pub fn start(&mut self, hostname: Option<&str>, logins: Vec<Login>, now_ns: u64) -> u32 {
        self.lost();
        (self.now_ns, self.heard_ns, self.sent_ns) = (now_ns, now_ns, now_ns);
        self.say_hello(hostname, logins);
        self.signals()
    }

    /// The transport is gone, or was given up.
    pub fn lost(&mut self) -> u32 {
        self.opening = Opening::Idle;
        self.inbound.clear();
        self.out.clear();
        self.dirty.clear();
        self.filled.clear();
        (self.peer_idle_ms, self.timer_moved) = (0, true);
        for session in &mut self.sessions {
            session.rewind(self.limits.session_window);
        }
        // The first is always there, even if the peer ended it.
        if let Some(first) = self.sessions.first_mut() {
            *first = Session::new(self.limits.session_window);
        }
        for index in 0..self.links.len() as u32 {
            self.rewind_link(index);
        }
        self.signals()
    }

    fn rewind_link(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut) else { return };
        (link.dirty, link.filled) = (false, false);
        if link.stage == Stage::Detaching {
            self.drop_link(index, Ending::default());
            return;
        }
        link.stage = Stage::Wanted;
        match &mut link.end {
            End::Receiver(receiver) => receiver.rewind(),
            End::Sender(sender) => {
                for number in sender.rewind() {
                    sender.settle(number);
                    let text = "the connection was lost, and the transaction with it";
                    let ending = Ending { condition: "amqp:transaction:rollback".into(), description: text.into() };
                    let verdict = Verdict::Lost(ending);
                    self.outcomes.push(Settled { link: index, first: number, last: number, verdict });
                }
            }
        }
    }

    // sessions and links

    /// One more session; number 0 is always there. The number of one that was given back by `end` is used again.
    pub fn begin(&mut self) -> Result<u16, Mistake> {
        let free = |session: &Session| session.given_back && session.stage == SessionStage::Ended;
        let number = self.sessions.iter().position(free).unwrap_or(self.sessions.len());
        if number >= usize::from(self.limits.sessions_max) {
            return Err(Mistake::Limit("sessions_max"));
        }
        let session = Session::new(self.limits.session_window);
        match self.sessions.get_mut(number) {
            Some(ended) => *ended = session,
            None => self.sessions.push(session),
        }
        let number = number as u16;
        if self.is_open() {
            self.write_begin(number);
        }
        Ok(number)
    }

    /// Ends a session and its links; its number may mean another from now on.
    pub fn end(&mut self, session: u16) -> Result<u32, Mistake> {
        self.write_due();
        let Some(known) = self.sessions.get_mut(usize::from(session)) else {
            return Err(Mistake::NoSuchSession(session));
        };
        let is_begun = matches!(known.stage, SessionStage::Begun | SessionStage::Beginning);
        known.given_back = session > 0;
        if known.stage != SessionStage::Ending {
            known.stage = if is_begun { SessionStage::Ending } else { SessionStage::Ended };
        }
        if is_begun {
            encode(&mut self.out, session, &weft_wire::amqp10::End::default());
        }
        self.drop_links_of(session, &Ending::default());
        Ok(self.signals())
    }

    /// A link on which messages are sent.
    pub fn attach_sender(&mut self, session: u16, options: LinkOptions) -> Result<u32, Mistake> {
        self.attach(session, options, End::Sender(Sender::default()))
    }

    /// A link on which messages are received.
    pub fn attach_receiver(&mut self, session: u16, options: LinkOptions) -> Result<u32, Mistake> {
        let window = options.window;
        self.attach(session, options, End::Receiver(Receiver::new(window)))
    }

    fn attach(&mut self, session: u16, options: LinkOptions, end: End) -> Result<u32, Mistake> {
        let known = self.sessions.get(usize::from(session));
        let is_over = known.is_none_or(|known| matches!(known.stage, SessionStage::Ending | SessionStage::Ended));
        // The first comes again with the next connection, and its links with it.
        if is_over && session > 0 {
            return Err(Mistake::NoSuchSession(session));
        }
        if self.links_open >= self.limits.links_max {
            return Err(Mistake::Limit("links_max"));
        }
        let index = self.links.len() as u32;
        self.links_open += 1;
        self.links.push(Some(Box::new(Link::new(options, session, end))));
        if self.is_open() && !is_over {
            self.write_attach(index);
        }
        Ok(index)
    }

    /// Ends a link; `closed` says that nobody will come back for it.
    pub fn detach(&mut self, link: u32, closed: bool, error: Option<&Ending>) -> Result<u32, Mistake> {
        // Decisions and messages that wait belong before the end of what they belong to.
        self.write_due();
        let Some(known) = self.links.get_mut(link as usize).and_then(Option::as_mut) else {
            return Err(Mistake::NoSuchLink(link));
        };
        match known.stage {
            Stage::Wanted => self.drop_link(link, Ending::default()),
            Stage::Attaching | Stage::Attached => {
                known.stage = Stage::Detaching;
                let error = error.map(error_of);
                let detach = Detach { handle: known.handle, closed, error };
                encode(&mut self.out, known.session, &detach);
            }
            Stage::Detaching => {}
        }
        Ok(self.signals())
    }

    // sending

    /// Puts a whole encoded message into the row of a link; its number.
    pub fn send(&mut self, link: u32, bytes: Vec<u8>, manner: Manner, txn: Option<&Rc<[u8]>>) -> Result<u64, Mistake> {
        let held_max = self.limits.held_max;
        let known = self.links.get_mut(link as usize).and_then(Option::as_mut).ok_or(Mistake::NoSuchLink(link))?;
        let End::Sender(sender) = &mut known.end else { return Err(Mistake::WrongDirection(link)) };
        if sender.message_bytes_max > 0 && bytes.len() as u64 > sender.message_bytes_max {
            return Err(Mistake::TooLarge { bytes: bytes.len(), bytes_max: sender.message_bytes_max });
        }
        if sender.held() >= held_max {
            return Err(Mistake::Limit("held_max"));
        }
        let manner = Manner { settled: manner.settled || known.options.settled, ..manner };
        let message = Outgoing { bytes: bytes.into_boxed_slice(), manner, done: false, txn: txn.cloned() };
        let number = sender.push(message);
        self.mark_dirty(link);
        Ok(number)
    }

    /// Asks the coordinator behind `link` for a transaction; the answer is an outcome with its id.
    pub fn declare(&mut self, link: u32) -> Result<u64, Mistake> {
        let mut bytes = Vec::new();
        TransactionRequest::Declare(Declare::default()).encode(&mut bytes);
        self.control(link, bytes)
    }

    /// Ends a transaction, for good or without a trace.
    pub fn discharge(&mut self, link: u32, txn: &[u8], fail: bool) -> Result<u64, Mistake> {
        let mut bytes = Vec::new();
        writer::put_descriptor(&mut bytes, descriptor::AMQP_VALUE);
        writer::put_descriptor(&mut bytes, descriptor::DISCHARGE);
        // Both fields, though false is the default: Artemis does not know that.
        let mut list = Compound::list(&mut bytes);
        list.field(&txn);
        list.field(&fail);
        list.finish();
        self.control(link, bytes)
    }

    /// Has a transaction promise that it can be committed, and wait under a global id.
    pub fn prepare(&mut self, link: u32, txn_id: &[u8], global_id: &[u8]) -> Result<u64, Mistake> {
        let mut bytes = Vec::new();
        TransactionRequest::Prepare(Prepare { txn_id, global_id }).encode(&mut bytes);
        self.control(link, bytes)
    }

    /// Ends a prepared transaction.
    pub fn resolve(&mut self, link: u32, global_id: &[u8], fail: bool) -> Result<u64, Mistake> {
        let mut bytes = Vec::new();
        TransactionRequest::Resolve(Resolve { global_id, fail }).encode(&mut bytes);
        self.control(link, bytes)
    }

    fn control(&mut self, link: u32, bytes: Vec<u8>) -> Result<u64, Mistake> {
        // Any id marks it as part of a transaction: it must not be sent again on another connection.
        self.send(link, bytes, Manner::default(), Some(&Rc::from(&[][..])))
    }

    /// Gives a message up. True if it was never sent; otherwise it may have arrived.
    pub fn forget(&mut self, link: u32, number: u64) -> bool {
        match self.link_mut(link).map(|link| &mut link.end) {
            Some(End::Sender(sender)) => sender.forget(number),
            _ => false,
        }
    }

    /// How many messages of a link have no outcome, and how many the peer would take now.
    pub fn load(&self, link: u32) -> Option<(usize, u32)> {
        match &self.links.get(link as usize)?.as_ref()?.end {
            End::Sender(sender) => Some((sender.held(), sender.credit)),
            End::Receiver(receiver) => Some((receiver.waiting(), receiver.credit)),
        }
    }

    // receiving

    /// Takes a delivery that waits.
    pub fn take(&mut self, link: u32) -> Option<Arrived> {
        let known = self.links.get_mut(link as usize)?.as_mut()?;
        let End::Receiver(receiver) = &mut known.end else { return None };
        let taken = receiver.take()?;
        if taken.settled && receiver.is_due() {
            self.mark_dirty(link);
        }
        Some(taken)
    }

    /// How many deliveries of a link wait.
    pub fn waiting(&self, link: u32) -> usize {
        match self.links.get(link as usize).and_then(Option::as_ref).map(|link| &link.end) {
            Some(End::Receiver(receiver)) => receiver.waiting(),
            _ => 0,
        }
    }

    /// Decides on the deliveries first to last of a link; those of a lost connection are the peer's again.
    pub fn settle(&mut self, link: u32, first: u64, last: u64, verdict: &Verdict, txn: Option<&Rc<[u8]>>) {
        let decision = match verdict {
            Verdict::Accepted => Decision::Accepted,
            Verdict::Rejected(ending) => Decision::Rejected(ending.clone()),
            Verdict::Modified { failed, undeliverable_here } => {
                Decision::Modified { failed: *failed, undeliverable_here: *undeliverable_here }
            }
            _ => Decision::Released,
        };
        let Some(known) = self.links.get_mut(link as usize).and_then(Option::as_mut) else { return };
        let Some(session) = self.sessions.get_mut(usize::from(known.session)) else { return };
        let End::Receiver(receiver) = &mut known.end else { return };
        receiver.settle(first, last, |id| session.settle(id, &decision, txn));
        if receiver.is_due() {
            self.mark_dirty(link);
        }
    }

    /// Gives credit by hand, or changes the window that gives it.
    pub fn grant(&mut self, link: u32, count: u32) {
        if let Some(End::Receiver(receiver)) = self.link_mut(link).map(|link| &mut link.end) {
            receiver.grant(count);
            self.mark_dirty(link);
        }
    }

    /// Sets how many deliveries may be under way and unsettled.
    pub fn set_window(&mut self, link: u32, window: u32) {
        if let Some(known) = self.link_mut(link) {
            known.options.window = window;
            if let End::Receiver(receiver) = &mut known.end {
                receiver.window = window;
                self.mark_dirty(link);
            }
        }
    }

    /// Other filters for a link, from its next attach on.
    pub fn set_filters(&mut self, link: u32, filters: MapBuf) {
        if let Some(known) = self.link_mut(link) {
            known.options.place.filters = filters;
        }
    }

    // what to poll

    /// Everything rare that happened, in order.
    pub fn poll_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// How messages ended, in the order the peer said so.
    pub fn poll_outcomes(&mut self) -> Vec<Settled> {
        std::mem::take(&mut self.outcomes)
    }

    /// Links that got deliveries since the last call.
    pub fn poll_filled(&mut self) -> Vec<u32> {
        let filled = std::mem::take(&mut self.filled);
        for index in &filled {
            if let Some(link) = self.link_mut(*index) {
                link.filled = false;
            }
        }
        filled
    }

    // shared by the files beside this one

    pub(crate) fn link_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.links.get_mut(index as usize)?.as_deref_mut()
    }

    pub(crate) fn mark_dirty(&mut self, index: u32) {
        if let Some(link) = self.links.get_mut(index as usize).and_then(Option::as_mut)
            && !link.dirty
        {
            link.dirty = true;
            self.dirty.push_back(index);
        }
    }

    pub(crate) fn settled(&mut self, link: u32, number: u64, verdict: Verdict) {
        if let Some(last) = self.outcomes.last_mut()
            && last.link == link
            && last.last + 1 == number
            && last.verdict == verdict
        {
            last.last = number;
            return;
        }
        self.outcomes.push(Settled { link, first: number, last: number, verdict });
    }

    /// A link is gone: what it held has no outcome and never will, as the event tells.
    pub(crate) fn drop_link(&mut self, index: u32, ending: Ending) {
        let Some(link) = self.links.get_mut(index as usize).and_then(Option::take) else { return };
        self.links_open -= 1;
        if let Some(session) = self.sessions.get_mut(usize::from(link.session)) {
            session.free_handle(link.handle, index);
            session.remote.retain(|_, known| *known != index);
        }
        self.events.push(Event::Detached { link: index, ending });
    }

    pub(crate) fn drop_links_of(&mut self, session: u16, ending: &Ending) {
        for index in 0..self.links.len() as u32 {
            if self.link_mut(index).is_some_and(|link| link.session == session) {
                self.drop_link(index, ending.clone());
            }
        }
    }
}

/// An error for the peer.
pub(crate) fn error_of(ending: &Ending) -> Error<'_> {
    let text = ending.description.as_str();
    Error { condition: Symbol(&ending.condition), description: (!text.is_empty()).then_some(text), info: None }
}
