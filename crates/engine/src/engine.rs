//! The engine: one node's connections, tables and queues behind a handful of calls.
//!
//! Owns everything of a node that runs per message. Bytes, time and changes come in; signals, bytes and events go out.
//! The driver calls `receive`, `close`, `writable`, `advance` and `apply` as the world moves, then polls: events while
//! EVENTS is set, `poll_transmit` until it is empty, `poll_timeout` when TIMER is set. It must never do I/O, read a
//! clock or roll dice. Rule: HOUSE order of work in every call: input left over, queues, dead letters, then memory;
//! `limits.work_max` bounds each.

use std::collections::VecDeque;

use weft_journal::Job;

use crate::broker::{Broker, Store};
use crate::conn::{Conn, ConnId, Io, Wait};
use crate::delivery::Pump;
use crate::event::Event;
use crate::hash::{Map, Seeded};
use crate::limits::Limits;
use crate::local::Locals;
use crate::queue::consumers::Target;
use crate::session::Session;
use crate::slab::Slab;
use crate::timers::Due;

/// What the driver has to do after a call; a set of bits.
pub mod signal {
    /// There is output: flush once in this turn.
    pub const OUTPUT: u32 = 1;
    /// Much output: flush before reading anything else.
    pub const FLUSH: u32 = 2;
    /// Stop reading the connection; `ReadingResumed` ends it.
    pub const PAUSE: u32 = 4;
    /// Disk jobs wait to be run.
    pub const DISK: u32 = 8;
    /// Decisions are wanted.
    pub const EVENTS: u32 = 16;
    /// The next deadline moved earlier.
    pub const TIMER: u32 = 32;
    /// Budget spent, work left: call `advance` in the next turn.
    pub const MORE: u32 = 64;
    /// Local consumers have deliveries.
    pub const LOCAL: u32 = 128;
}

/// Unread input that a connection may pile up while it waits for a decision or for budget.
const INPUT_BYTES_MAX: usize = 1 << 20;
/// A 0-9-1 publisher that the disk holds is told so only if it lasts this long: for a moment it is just not read, as
/// RabbitMQ does it.
const TOLD_AFTER_NS: u64 = 1_000_000_000;

/// The caller named a connection that does not exist.
#[derive(Debug, PartialEq, Eq)]
pub struct NoSuchConnection;

/// One node's deterministic machine.
pub struct Engine {
    pub broker: Broker,
    pub conns: Slab<Conn>,
    pub locals: Locals,
    /// Connections with output.
    written: Vec<ConnId>,
    output_bytes: usize,
    /// Connections with input left over that could be read.
    backlog: VecDeque<ConnId>,
    /// Connections that wait for a grant or a read, by what they wait for.
    waiting: Map<Wait, Vec<ConnId>>,
    /// Connections the driver does not read, or that were told to hold back.
    pub(crate) held: Vec<ConnId>,
    /// Connections with promises that wait for the disk.
    pub(crate) unsynced: Vec<ConnId>,
    /// Connections whose links wait for their messages to be consumed.
    pub(crate) sated: Vec<ConnId>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) requests: Map<u64, ConnId>,
    pub(crate) quiesced: bool,
    told_timer_ns: u64,
    alarm: bool,
}

impl Engine {
    /// An empty node. The same seed and the same calls give the same bytes.
    pub fn new(limits: Limits, seed: u64, now_ns: u64, wall_ns: u64) -> Self {
        Self {
            broker: Broker::new(limits, seed, now_ns, wall_ns),
            conns: Slab::default(),
            locals: Locals::default(),
            written: Vec::new(),
            output_bytes: 0,
            backlog: VecDeque::new(),
            waiting: Map::with_hasher(Seeded(seed)),
            held: Vec::new(),
            unsynced: Vec::new(),
            sated: Vec::new(),
            jobs: Vec::new(),
            requests: Map::with_hasher(Seeded(seed)),
            quiesced: false,
            told_timer_ns: u64::MAX,
            alarm: false,
        }
    }

    /// A new connection, of a protocol still unknown. None when there are as many as allowed.
    pub fn open(&mut self, tls: bool, local: bool) -> Option<ConnId> {
        if self.conns.len() >= self.broker.limits.connections_max {
            return None;
        }
        let account = self.broker.ledger.account();
        let io = Io::new(ConnId::from_raw(0), account, (tls, local), self.broker.now_ns);
        let id = self.conns.insert(Conn { io, session: Session::Detect });
        let deadline_ns = self.broker.now_ns + u64::from(self.broker.limits.unauthenticated_s) * 1_000_000_000;
        if let Some(conn) = self.conns.get_mut(id) {
            conn.io.id = id;
            self.broker.schedule_conn(&mut conn.io, deadline_ns);
        }
        self.broker.totals.connections_opened += 1;
        Some(id)
    }

    /// Bytes from a connection's socket.
    pub fn receive(&mut self, id: ConnId, data: &[u8], now_ns: u64) -> Result<u32, NoSuchConnection> {
        self.at(now_ns);
        self.broker.work_left = self.broker.limits.work_max;
        let conn = self.conns.get_mut(id).ok_or(NoSuchConnection)?;
        conn.io.received_ns = now_ns;
        conn.io.bytes_in += data.len() as u64;
        if !conn.io.finished {
            self.feed(id, data);
        }
        self.work();
        let paused = self.hold_back(id);
        Ok(self.signals() | if paused { signal::PAUSE } else { 0 })
    }

    /// The socket takes bytes, or does not.
    pub fn writable(&mut self, id: ConnId, yes: bool) -> u32 {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.io.writable = yes;
            if yes {
                self.broker.work_left = self.broker.limits.work_max;
                self.wake_stalled(id);
                self.work();
            }
        }
        self.signals()
    }

    /// The socket is gone.
    pub fn close(&mut self, id: ConnId, cause: &str) -> u32 {
        self.broker.work_left = self.broker.limits.work_max;
        if let Some(mut conn) = self.conns.remove(id) {
            conn.session.lost(&mut conn.io, &mut self.broker);
            if let Some(Wait::Answer(request)) = conn.io.parked {
                self.requests.remove(&request);
            }
            let cause = conn.io.cause.take().unwrap_or_else(|| cause.to_owned());
            let event = Event::ConnectionClosed { conn: id.raw(), principal: conn.io.principal, cause };
            self.broker.events.push(event);
            self.work();
        }
        self.signals()
    }

    /// Time passes.
    pub fn advance(&mut self, now_ns: u64, wall_ns: u64) -> u32 {
        self.at(now_ns);
        self.broker.wall_ns = wall_ns;
        self.broker.store.iter_mut().for_each(|store| store.journal.advance(wall_ns / 1_000_000));
        self.broker.work_left = self.broker.limits.work_max;
        while self.broker.work_left > 0 {
            let Some(due) = self.broker.timers.pop(now_ns) else { break };
            self.broker.spend(1);
            match due {
                Due::Queue(queue) => self.broker.queue_due(queue),
                Due::Delayed(number) => self.broker.release_delayed(number),
                Due::Conn(id) => self.tick(id),
                Due::Disk => self.broker.retry_disk(),
                Due::Watched => self.broker.sync_watched(),
            }
        }
        self.told_timer_ns = u64::MAX;
        self.work();
        self.signals()
    }

    /// It is this late, for calls that do not say it themselves.
    pub fn at(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.broker.now_ns);
        self.broker.now_ns += passed_ns;
        self.broker.wall_ns += passed_ns;
    }

    fn tick(&mut self, id: ConnId) {
        let now_ns = self.broker.now_ns;
        let Some(conn) = self.conns.get_mut(id) else { return };
        if conn.io.later_ns <= now_ns {
            conn.io.later_ns = u64::MAX;
        }
        if conn.io.finished || now_ns < conn.io.timer_ns {
            return;
        }
        conn.io.timer_ns = u64::MAX;
        if let Some(next_ns) = conn.session.tick(&mut conn.io, &mut self.broker) {
            self.broker.schedule_conn(&mut conn.io, next_ns.max(now_ns + 1));
        }
        if conn.io.blocked && !conn.io.told {
            self.hold_back(id);
        }
        self.note(id);
    }

    /// Hands bytes to a session, and keeps what it does not take yet.
    fn feed(&mut self, id: ConnId, mut data: &[u8]) {
        self.broker.begin_session();
        let Some(conn) = self.conns.get_mut(id) else { return };
        while !conn.io.input.is_empty() && !data.is_empty() {
            // Only the rest of a frame that was cut is put together; what follows is read where it lies.
            let waits = conn.io.waits() || !self.broker.may_read();
            let more = match waits {
                true => data.len(),
                false => conn.session.missing(conn.io.input.unread()).clamp(1, data.len()),
            };
            conn.io.input.extend(&data[..more]);
            data = &data[more..];
            if !waits {
                conn.read_input(&mut self.broker);
            }
        }
        if !data.is_empty() && !conn.io.finished {
            let used = match conn.io.waits() {
                true => 0,
                false => conn.session.receive(&mut conn.io, data, &mut self.broker),
            };
            if used < data.len() && !conn.io.finished {
                conn.io.input.extend(&data[used..]);
            }
        }
        self.note(id);
    }

    /// Looks at what a session left behind: output, a question, an end, bytes it had no budget for.
    pub(crate) fn note(&mut self, id: ConnId) {
        self.keep_promises(id);
        let Some(conn) = self.conns.get_mut(id) else { return };
        let io = &mut conn.io;
        if io.is_sendable() && !std::mem::replace(&mut io.listed, true) {
            self.written.push(id);
            self.output_bytes += io.output.len();
        }
        match io.parked {
            Some(Wait::Answer(request)) => {
                self.requests.insert(request, id);
            }
            Some(wait @ (Wait::Grant(_) | Wait::Disk(_))) if io.waits_for != Some(wait) => {
                io.waits_for = Some(wait);
                self.waiting.entry(wait).or_default().push(id);
            }
            _ => {}
        }
        if io.finished && !std::mem::replace(&mut io.hung_up, true) {
            self.broker.events.push(Event::HangUp { conn: id.raw() });
        }
        if std::mem::take(&mut io.sated) && !self.sated.contains(&id) {
            self.sated.push(id);
        }
        let out_of_budget = !self.broker.may_read() && !io.input.is_empty();
        if io.parked.is_none() && out_of_budget && !std::mem::replace(&mut io.queued, true) {
            self.backlog.push_back(id);
        }
    }

    /// A connection that waited may be read on.
    pub(crate) fn resume(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        conn.io.parked = None;
        if !std::mem::replace(&mut conn.io.queued, true) {
            self.backlog.push_back(id);
        }
    }

    /// Everything that can be done now, within the call's budget.
    pub(crate) fn work(&mut self) {
        loop {
            let (broker, conns, locals) = (&mut self.broker, &mut self.conns, &mut self.locals);
            let (written, output_bytes) = (&mut self.written, &mut self.output_bytes);
            let mut pump = Pump { broker, conns, locals, written, output_bytes, quiesced: self.quiesced };
            pump.run();
            pump.replies();
            self.broker.bury(!self.quiesced);
            self.tell_ended();
            self.tell_cancelled();
            self.end_drains();
            self.broker.pump_first = false;
            self.wake_answered();
            self.read_backlog();
            let idle = self.backlog.is_empty() && self.broker.dirty.is_empty();
            if self.broker.work_left == 0 || idle && self.broker.answered.is_empty() {
                break;
            }
        }
        self.tell_ended();
        self.broker.end_runs();
        self.release_held();
        self.refill_links();
        self.watch_memory();
        self.collect_jobs();
    }

    fn wake_answered(&mut self) {
        if self.broker.answered.is_empty() && self.broker.arrived.is_empty() {
            return;
        }
        let answered = std::mem::take(&mut self.broker.answered).into_iter().map(Wait::Grant);
        let arrived = std::mem::take(&mut self.broker.arrived).into_iter().map(Wait::Disk);
        for wait in answered.chain(arrived) {
            for id in self.waiting.remove(&wait).unwrap_or_default() {
                let Some(conn) = self.conns.get_mut(id) else { continue };
                conn.io.waits_for = conn.io.waits_for.filter(|known| *known != wait);
                if conn.io.parked == Some(wait) {
                    self.resume(id);
                }
            }
        }
    }

    fn read_backlog(&mut self) {
        while self.broker.may_read() {
            let Some(id) = self.backlog.pop_front() else { break };
            let Some(conn) = self.conns.get_mut(id) else { continue };
            conn.io.queued = false;
            self.broker.begin_session();
            conn.read_input(&mut self.broker);
            self.note(id);
        }
    }

    /// Publishers whose messages have come to their end are told how, at once: what else they wait for is not asked.
    fn tell_ended(&mut self) {
        let mut telling = None;
        loop {
            let ended = self.broker.receipts.pop_ended();
            let reached = self.broker.store.as_ref().map(Store::reached);
            let next = ended
                .as_ref()
                .map(|ended| (ended.waiter.conn, reached.is_none_or(|reached| ended.needs.are_met(reached))));
            if let Some((id, safe)) = telling.filter(|_| telling != next) {
                self.with_safe(id, safe, |conn, broker| conn.session.send_ended(&mut conn.io, broker));
                self.note(id);
            }
            let (Some(ended), Some((id, safe))) = (ended, next) else { return };
            telling = next;
            self.with_safe(id, safe, |conn, broker| conn.session.ended(&mut conn.io, broker, &ended));
        }
    }

    /// What a session says here need not wait for the disk if it is `safe`, whatever else of its connection has to.
    fn with_safe(&mut self, id: ConnId, safe: bool, tell: impl FnOnce(&mut Conn, &mut Broker)) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let direct = conn.io.direct;
        conn.io.direct |= safe;
        tell(conn, &mut self.broker);
        conn.io.direct = direct;
    }

    /// Consumers whose queue was deleted are told so.
    fn tell_cancelled(&mut self) {
        while let Some(consumer) = self.broker.cancelled.pop() {
            if let Target::Local { handle } = consumer.target {
                let (vhost, queue, link) = (String::new(), String::new(), handle.to_string());
                self.broker.events.push(Event::LinkClosed { conn: 0, vhost, queue, link, closed: true });
                continue;
            }
            let id = ConnId::from_raw(consumer.conn);
            if let Some(conn) = self.conns.get_mut(id) {
                conn.session.cancelled(&mut conn.io, &mut self.broker, &consumer);
                self.note(id);
            }
        }
    }

    /// Receivers that wanted their credit used up are told when there was nothing more.
    fn end_drains(&mut self) {
        for id in std::mem::take(&mut self.broker.draining) {
            if let Some(conn) = self.conns.get_mut(id) {
                conn.session.pumped(&mut conn.io, &mut self.broker);
                self.note(id);
            }
        }
    }

    /// Must this connection stop sending? True when the driver has to stop reading it.
    pub(crate) fn hold_back(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.conns.get_mut(id) else { return false };
        let io = &mut conn.io;
        let over = io.publishes && (io.account.over() || io.stores && self.broker.disk_is_behind());
        let awaits = io.awaited >= self.broker.limits.end_to_end_max as usize;
        if over && !std::mem::replace(&mut io.blocked, true) {
            io.blocked_ns = self.broker.now_ns;
        }
        if over && !io.told {
            let told_ns = io.blocked_ns + TOLD_AFTER_NS;
            let alarm = io.account.over() || self.broker.disk_refuses();
            // A 1.0 peer is held by what it is told.
            io.told = alarm || matches!(conn.session, Session::Amqp10(_)) || self.broker.now_ns >= told_ns;
            match io.told {
                true => conn.session.blocked(io, &mut self.broker, true),
                false => self.broker.schedule_conn(io, told_ns),
            }
        }
        // A 1.0 peer is held back by its credit, so that its settlements still come in.
        let stop = over && matches!(conn.session, Session::Amqp091(_))
            || awaits
            || io.input.len() > INPUT_BYTES_MAX
            || io.choked;
        let pause = stop && !std::mem::replace(&mut io.paused, stop);
        if (over || pause) && !std::mem::replace(&mut io.held, true) {
            self.held.push(id);
        }
        self.note(id);
        pause
    }

    /// Connections that were held back go on when there is room for them again.
    fn release_held(&mut self) {
        for id in std::mem::take(&mut self.held) {
            let Some(conn) = self.conns.get_mut(id) else { continue };
            let io = &mut conn.io;
            let behind = io.stores && self.broker.disk_is_behind();
            let awaits = io.awaited > self.broker.limits.end_to_end_max as usize / 4 * 3;
            let blocked = io.blocked && (behind || !io.account.under());
            if blocked || awaits || io.input.len() > INPUT_BYTES_MAX / 2 || io.choked {
                self.held.push(id);
                continue;
            }
            io.held = false;
            io.blocked = false;
            if std::mem::take(&mut io.told) {
                conn.session.blocked(io, &mut self.broker, false);
            }
            if std::mem::take(&mut conn.io.paused) {
                self.broker.events.push(Event::ReadingResumed { conn: id.raw() });
            }
            self.note(id);
        }
    }

    fn watch_memory(&mut self) {
        let (used, max) = (self.broker.ledger.used(), self.broker.ledger.max());
        let raised = if self.alarm { used > max / 10 * 8 } else { used > max / 10 * 9 };
        if raised != self.alarm {
            self.alarm = raised;
            self.broker.events.push(Event::MemoryAlarm { raised, used_bytes: used, max_bytes: max });
        }
    }

    fn wake_stalled(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        if !conn.io.writable {
            return;
        }
        for consumer in std::mem::take(&mut conn.io.stalled) {
            self.broker.wake(consumer);
        }
        conn.session.flushed(&mut conn.io, &mut self.broker);
        conn.deliver_replies(self.broker.limits.output_bytes_max);
        if std::mem::take(&mut conn.io.choked) && !std::mem::replace(&mut conn.io.queued, true) {
            self.backlog.push_back(id);
        }
        self.note(id);
    }

    /// The bits the driver has to act on now.
    pub(crate) fn signals(&mut self) -> u32 {
        let mut bits = 0;
        if !self.written.is_empty() {
            bits |= signal::OUTPUT;
            if self.output_bytes > self.broker.limits.flush_bytes {
                bits |= signal::FLUSH;
            }
        }
        if !self.broker.events.is_empty() {
            bits |= signal::EVENTS;
        }
        if !self.jobs.is_empty() {
            bits |= signal::DISK;
        }
        if !self.locals.filled.is_empty() {
            bits |= signal::LOCAL;
        }
        let more = !self.backlog.is_empty() || !self.broker.dirty.is_empty() || self.broker.has_dying();
        if more {
            bits |= signal::MORE;
        }
        if self.broker.timers.next_ns().is_some_and(|next_ns| next_ns < self.told_timer_ns) {
            bits |= signal::TIMER;
        }
        bits
    }

    /// Hands out what is to be sent, at most about `bytes_max` in all; call again until nothing comes.
    pub fn poll_transmit(&mut self, bytes_max: usize, mut each: impl FnMut(ConnId, &[u8])) {
        let now_ns = self.broker.now_ns;
        let mut total = 0;
        let mut written = std::mem::take(&mut self.written);
        let mut done = 0;
        for id in &written {
            if total >= bytes_max {
                break;
            }
            done += 1;
            let Some(conn) = self.conns.get_mut(*id) else { continue };
            conn.io.listed = false;
            if !conn.io.is_sendable() {
                continue;
            }
            total += conn.io.output.len();
            each(*id, &conn.io.output);
            conn.io.sent(now_ns);
        }
        self.output_bytes = self.output_bytes.saturating_sub(total);
        let flushed: Vec<ConnId> = written.drain(..done).collect();
        self.written.splice(0..0, written);
        if self.written.is_empty() {
            self.output_bytes = 0;
        }
        for id in flushed {
            self.wake_stalled(id);
        }
        if !self.broker.dirty.is_empty() || !self.backlog.is_empty() {
            self.broker.work_left = self.broker.limits.work_max;
            self.work();
        }
    }

    /// What wants a decision, and what happened.
    pub fn poll_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.broker.events)
    }

    /// The disk had nothing to do for a while: memory that is kept for it goes.
    pub fn rest(&mut self) {
        self.broker.store.iter_mut().for_each(|store| store.journal.rest());
    }

    /// When `advance` wants to be called next.
    pub fn poll_timeout(&mut self) -> Option<u64> {
        let next_ns = self.broker.timers.next_ns();
        self.told_timer_ns = next_ns.unwrap_or(u64::MAX);
        next_ns
    }
}

impl Conn {
    /// Reads on from the bytes that were kept.
    fn read_input(&mut self, broker: &mut Broker) {
        let mut input = std::mem::take(&mut self.io.input);
        let used = self.session.receive(&mut self.io, input.unread(), broker);
        if self.io.finished {
            return;
        }
        input.consume(used);
        self.io.input = input;
    }
}
