//! The `Engine` class of `weft._kernel`.
//!
//! Owns the calls a node makes: plain verbs in, `poll_*` out, `apply` for decisions, counters for reading. Each call
//! takes and returns small numbers or bytes; one bytes object per connection and flush. It must never allocate a Python
//! object per message, except in `take`, which is for Python itself. Rule: `src/weft/_kernel.pyi`.

use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySequence, PyTuple};
use weft_columns::Constants;
use weft_engine::Engine as Native;
use weft_engine::broker::Outcome;
use weft_engine::conn::ConnId;
use weft_engine::convert;
use weft_engine::inspect::{Page, Question, TABLES};
use weft_engine::message::{Body, Kind, Message, Name, Traits};
use weft_engine::session::amqp10::Dial;
use weft_engine::stats::Spans;
use weft_engine::stream::start::Start;
use weft_journal::{Files, Recovered};
use weft_wire::amqp091::properties::{Properties, peek};

use crate::changes::{binding, change};
use crate::disk::DiskJob;
use crate::errors::{local_error, unavailable};
use crate::events::Classes;
use crate::limits::limits;
use crate::log::{self, ArrowStream, Asked};
use crate::prepared;
use crate::reading::{self, Scan, rows};
use crate::tables;

/// The engine, of which one thread at a time holds everything there is.
pub(crate) struct Alone(Native);

// SAFETY: the counted references inside an engine are not atomic, but every one of them lives inside it: no method
// hands one out. The interpreter's lock (this module does not offer to run without it) and PyO3's borrow of the object
// let one thread in at a time, so the whole may be used, or dropped by the garbage collector, on any thread.
unsafe impl Send for Alone {}
// SAFETY: as above; shared borrows are also serialised by the interpreter's lock.
unsafe impl Sync for Alone {}

impl Deref for Alone {
    type Target = Native;
    fn deref(&self) -> &Native {
        &self.0
    }
}

impl DerefMut for Alone {
    fn deref_mut(&mut self) -> &mut Native {
        &mut self.0
    }
}

/// Queues that there is room for from the start: moving half as many when the table grows takes 55 milliseconds. Room
/// that nobody uses is addresses, not memory.
const QUEUES_ROOM: usize = 1 << 16;

/// One node's deterministic machine.
#[pyclass(module = "weft._kernel")]
pub(crate) struct Engine {
    pub(crate) native: Alone,
    classes: Classes,
    files: Option<Arc<Files>>,
    found: Option<Recovered>,
}

/// Runs `with` on the bytes of any buffer; plain bytes are not copied.
pub(crate) fn with_bytes<T>(data: &Bound<'_, PyAny>, with: impl FnOnce(&[u8]) -> T) -> PyResult<T> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(with(bytes.as_bytes()));
    }
    let buffer: PyBuffer<u8> =
        PyBuffer::get(data).map_err(|_| PyTypeError::new_err("a bytes-like object is required"))?;
    Ok(with(&buffer.to_vec(data.py())?))
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (
        limits, *, node, version, seed, now_ns, wall_ns, data_dir = None, durability = "sync", first_number = 0
    ))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn new(
        py: Python<'_>,
        limits: &Bound<'_, PyAny>,
        node: &str,
        version: &str,
        seed: u64,
        now_ns: u64,
        wall_ns: u64,
        data_dir: Option<&str>,
        durability: &str,
        first_number: u64,
    ) -> PyResult<Self> {
        let mut native = Native::new(self::limits(limits)?, seed, now_ns, wall_ns);
        native.broker.number_from(first_number);
        native.broker.node = Rc::from(node);
        native.broker.version = Rc::from(version);
        native.broker.durability = crate::changes::durability(durability)?;
        native.broker.queues.make_room(QUEUES_ROOM);
        let (mut files, mut found) = (None, None);
        if let Some(folder) = data_dir {
            let opened = crate::disk::open(folder, wall_ns / 1_000_000);
            let (store, opened, report) = opened.map_err(|text| unavailable(py, &text))?;
            native.broker.attach(store);
            (files, found) = (Some(opened), Some(report));
        }
        Ok(Self { native: Alone(native), classes: Classes::load(py)?, files, found })
    }

    /// A new connection; returns its id.
    #[pyo3(signature = (*, tls = false, local = true))]
    fn open(&mut self, py: Python<'_>, tls: bool, local: bool) -> PyResult<u64> {
        match self.native.open(tls, local) {
            Some(id) => Ok(id.raw()),
            None => Err(local_error(py, "there are as many connections as limits.connections_max allows")),
        }
    }

    /// A connection that this node opens by AMQP 1.0; returns its id.
    #[pyo3(signature = (
        *, container = "", hostname = "", mechanism = "ANONYMOUS", response = b"".as_slice(), principal = 0,
        idle_ms = 60_000, max_frame = 131_072, tls = false
    ))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn connect(
        &mut self,
        py: Python<'_>,
        container: &str,
        hostname: &str,
        mechanism: &str,
        response: &[u8],
        principal: u32,
        idle_ms: u32,
        max_frame: u32,
        tls: bool,
    ) -> PyResult<u64> {
        let dial = Dial {
            container: container.to_owned(),
            hostname: hostname.to_owned(),
            mechanism: mechanism.to_owned(),
            response: response.to_vec(),
            principal,
            idle_ms,
            frame_bytes_max: max_frame,
            tls,
        };
        match self.native.connect(dial) {
            Some(id) => Ok(id.raw()),
            None => Err(local_error(py, "there are as many connections as limits.connections_max allows")),
        }
    }

    /// Bytes from a connection's socket.
    fn receive(&mut self, conn: u64, data: &Bound<'_, PyAny>, now_ns: u64) -> PyResult<u32> {
        let native = &mut self.native;
        match with_bytes(data, |bytes| native.receive(ConnId::from_raw(conn), bytes, now_ns))? {
            Ok(signals) => Ok(signals),
            Err(_) => Err(local_error(data.py(), &format!("there is no connection {conn}"))),
        }
    }

    /// The socket takes bytes, or does not.
    fn writable(&mut self, conn: u64, yes: bool) -> u32 {
        self.native.writable(ConnId::from_raw(conn), yes)
    }

    /// The socket is gone.
    fn close(&mut self, conn: u64, cause: &str) -> u32 {
        self.native.close(ConnId::from_raw(conn), cause)
    }

    /// Time passes.
    fn advance(&mut self, now_ns: u64, wall_ns: u64) -> u32 {
        self.native.advance(now_ns, wall_ns)
    }

    /// It is this late, for calls that do not say it themselves.
    fn at(&mut self, now_ns: u64) {
        self.native.at(now_ns);
    }

    /// Output of all connections that have some.
    fn poll_transmit<'py>(&mut self, py: Python<'py>, bytes_max: usize) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut result = Ok(());
        self.native.poll_transmit(bytes_max, |conn, bytes| {
            let pair = (conn.raw(), PyBytes::new(py, bytes));
            if result.is_ok() {
                result = list.append(pair);
            }
        });
        result.map(|()| list)
    }

    /// What wants a decision, and what happened.
    fn poll_events<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for event in self.native.poll_events() {
            list.append(self.classes.event(py, event)?)?;
        }
        Ok(list)
    }

    /// When `advance` wants to be called next.
    fn poll_timeout(&mut self) -> Option<u64> {
        self.native.poll_timeout()
    }

    /// Jobs to be run, writes in their order.
    fn poll_disk(&mut self) -> Vec<DiskJob> {
        let Some(files) = &self.files else { return Vec::new() };
        self.native.poll_disk().into_iter().map(|job| DiskJob::new(job, files)).collect()
    }

    /// A disk job has run.
    fn disk_done(&mut self, py: Python<'_>, job: &mut DiskJob) -> PyResult<u32> {
        match job.take() {
            Some(job) => Ok(self.native.disk_done(job)),
            None => Err(local_error(py, "the job was handed back before")),
        }
    }

    /// Nothing more comes: the store is brought into the shape that opens fastest.
    fn finish(&mut self) -> u32 {
        self.native.finish()
    }

    /// The disk had nothing to do for a while: memory that is kept for a flood is given back.
    fn rest(&mut self) {
        self.native.rest();
        crate::allocator::give_back();
    }

    /// What was found on disk at the start.
    fn recovered<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let Some(found) = &self.found else { return Ok(dict) };
        dict.set_item("segments", found.segments)?;
        let held = || found.queues.iter().filter(|queue| weft_engine::broker::holds_messages(queue.queue_no));
        dict.set_item("messages", held().map(|queue| queue.messages).sum::<u64>())?;
        dict.set_item("queues", held().filter(|queue| queue.messages > 0).count())?;
        let damage = |damage: &weft_journal::Damage| {
            let kept = damage.kept_as.as_ref().map_or(String::new(), |name| format!(", kept as {name}"));
            format!("segment {} at {}: {} bytes, {}{kept}", damage.segment, damage.offset, damage.bytes, damage.reason)
        };
        dict.set_item("torn", found.torn.iter().map(damage).collect::<Vec<_>>())?;
        dict.set_item("damaged", found.damaged.iter().map(damage).collect::<Vec<_>>())?;
        dict.set_item("strangers", &found.strangers)?;
        Ok(dict)
    }

    /// Queues on disk that nobody has declared: (number, messages).
    fn unclaimed(&self) -> Vec<(u64, u64)> {
        self.native.broker.unclaimed()
    }

    /// Everything that exists has been declared, and queues with these numbers were deleted: what they have goes.
    fn drop_unclaimed(&mut self, deleted: Vec<u64>) {
        self.native.broker.drop_unclaimed(deleted);
    }

    /// Prepared transactions: (global id, virtual host, user, when in ms since 1970, messages, deliveries, bytes).
    fn prepared<'py>(&self, py: Python<'py>) -> Vec<prepared::PreparedRow<'py>> {
        prepared::prepared(py, &self.native.broker)
    }

    /// Are prepared transactions of the last life still being read?
    fn is_recovering(&self) -> bool {
        self.native.broker.is_recovering()
    }

    /// Carries a prepared transaction out, or undoes it; False if there is none of this id (now).
    fn resolve(&mut self, global_id: &[u8], commit: bool) -> bool {
        self.native.resolve(global_id, commit).is_ok()
    }

    /// Decisions, in order.
    fn apply(&mut self, py: Python<'_>, changes: &Bound<'_, PySequence>) -> PyResult<u32> {
        let changes = changes.try_iter()?.map(|item| change(&item?)).collect::<PyResult<Vec<_>>>()?;
        self.native.apply(changes).map_err(|unknown| local_error(py, &unknown.0))
    }

    /// Routes a message; returns how many queues took it.
    #[pyo3(signature = (vhost, exchange, routing_key, body, properties = None, *, answer = false))]
    fn publish(
        &mut self,
        vhost: &str,
        exchange: &str,
        routing_key: &str,
        body: &Bound<'_, PyAny>,
        properties: Option<&Bound<'_, PyDict>>,
        answer: bool,
    ) -> PyResult<usize> {
        let py = body.py();
        let mut bytes = tables::encode_properties(properties)?;
        let head = bytes.len();
        with_bytes(body, |body| bytes.extend_from_slice(body))?;
        if bytes.len() as u64 > self.native.broker.limits.message_bytes_max {
            return Err(PyMemoryError::new_err("the message is larger than limits.message_bytes_max"));
        }
        let exchange = self.native.exchange(vhost, exchange).map_err(|unknown| local_error(py, &unknown.0))?;
        let body = Body::new(Rc::from(bytes.as_slice()), head..bytes.len());
        let facts = peek(&bytes[..head]).map_err(|error| local_error(py, &error.to_string()))?;
        let ttl_ms = facts.expiration.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let (arrived_us, serial) = self.native.broker.stamp();
        let traits = Traits {
            durable: facts.delivery_mode == 2,
            priority: facts.priority,
            ttl_ms,
            delivery_count: 0,
            publisher: 0,
            copied: false,
            relayed: false,
            untyped: false,
            arrived_us,
            serial,
        };
        let names: (Name, Name) = (Rc::clone(&exchange.1), Rc::from(routing_key.as_bytes()));
        let charge = self.native.broker.own_account.charge(bytes.len() as u64);
        let message = Message::new(Kind::Amqp091, names, traits, 0..head, body, charge);
        let message = Rc::new(message);
        Ok(match answer {
            true => self.native.answer_request(exchange.0, &message),
            false => self.native.publish(exchange.0, &message),
        })
    }

    /// How far the disk must be, in batches written and synced, until the last `publish` is safe; None if it is.
    fn stored(&self) -> Option<(u64, u64)> {
        self.native.stored().map(|needs| (needs.written, needs.synced))
    }

    /// How far the disk is, in batches written and synced.
    fn reached(&self) -> (u64, u64) {
        let reached = self.native.broker.store.as_ref().map(weft_engine::broker::Store::reached);
        reached.map_or((u64::MAX, u64::MAX), |reached| (reached.written, reached.synced))
    }

    /// A local consumer; returns its handle.
    #[pyo3(signature = (vhost, queue, credit, offset = None))]
    fn subscribe(
        &mut self,
        py: Python<'_>,
        vhost: &str,
        queue: &str,
        credit: usize,
        offset: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let now_ms = self.native.broker.wall_ns / 1_000_000;
        let start = offset.map_or(Some(Start::default()), |offset| match offset.extract::<i64>() {
            Ok(number) => Start::of_number(number),
            Err(_) => Start::of_text(&offset.extract::<String>().ok()?, now_ms),
        });
        let start = start.ok_or_else(|| PyValueError::new_err("offset is first, last, next, a number or an age"))?;
        self.native.subscribe(vhost, queue, credit, start).map_err(|unknown| local_error(py, &unknown.0))
    }

    /// Ends a local consumer; what it has not settled goes back.
    fn unsubscribe(&mut self, handle: u64) {
        self.native.unsubscribe(handle);
    }

    /// Deliveries so far: (tag, exchange, routing key, redelivered, properties, body, connection it came by).
    fn take<'py>(&mut self, py: Python<'py>, handle: u64, count_max: usize) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let mut result = Ok(());
        self.native.locals.take(handle, count_max, |tag, entry| {
            if result.is_ok() {
                result = delivery(py, tag, entry).and_then(|row| list.append(row));
            }
        });
        result.map(|()| list)
    }

    /// Ends a delivery: `accepted`, `rejected` or `released`.
    fn settle(&mut self, py: Python<'_>, handle: u64, tag: u64, outcome: &str) -> PyResult<u32> {
        let outcome = match outcome {
            "accepted" => Outcome::Accepted,
            "rejected" => Outcome::Rejected,
            "released" => Outcome::Returned { failed: false },
            other => return Err(local_error(py, &format!("outcome is accepted, rejected or released, not {other:?}"))),
        };
        match self.native.settle(handle, tag, outcome) {
            Some(signals) => Ok(signals),
            None => Err(local_error(py, &format!("consumer {handle} holds no delivery {tag}"))),
        }
    }

    /// Handles of local consumers that have deliveries to take.
    fn poll_local(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.native.locals.filled)
    }

    /// (ready, unsettled, consumers), or None if there is no such queue.
    fn queue_stats(&self, vhost: &str, queue: &str) -> Option<(usize, usize, usize)> {
        self.native.queue_stats(vhost, queue)
    }

    /// Node-wide counters and gauges.
    fn stats(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.native.stats()
    }

    /// Messages of a stream, or of what waits in a durable queue, as they are at this moment.
    #[pyo3(signature = (vhost, stream, start = 0, end = None, columns = None, *,
                        batch_rows = 4096, batch_bytes = 4_194_304, whole = false))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn read_log(
        &self,
        py: Python<'_>,
        vhost: &str,
        stream: &str,
        start: u64,
        end: Option<u64>,
        columns: Option<Vec<String>>,
        batch_rows: usize,
        batch_bytes: usize,
        whole: bool,
    ) -> PyResult<ArrowStream> {
        let asked = Asked::new(columns, batch_rows, batch_bytes, whole)?;
        let range = start..end.unwrap_or(u64::MAX);
        let Some(tail) = self.native.log_tail(vhost, stream, range.clone()) else {
            let kind = if self.files.is_some() { "stream or durable queue" } else { "stream" };
            return Err(local_error(py, &format!("no {kind} '{stream}' in vhost '{vhost}'")));
        };
        let constants = Constants { stream: stream.to_owned(), shard: 0, origin: self.native.broker.node.to_string() };
        Ok(log::snapshot(self.files.as_deref(), tail, range, constants, asked))
    }

    /// Every row of a table.
    fn inspect<'py>(&self, py: Python<'py>, table: &str) -> PyResult<Bound<'py, PyList>> {
        rows(py, &self.found_page(py, table, &Question::default())?.rows)
    }

    /// A page of a table: (rows in all, rows that fit, rows of the page).
    #[pyo3(signature = (table, *, vhosts = None, contains = None, ids = None, sort = None, descending = false,
                        offset = 0, count = None, columns = None))]
    #[expect(clippy::too_many_arguments, reason = "each is a keyword of the contract")]
    fn page<'py>(
        &self,
        py: Python<'py>,
        table: &str,
        vhosts: Option<Vec<String>>,
        contains: Option<String>,
        ids: Option<Vec<u64>>,
        sort: Option<String>,
        descending: bool,
        offset: usize,
        count: Option<usize>,
        columns: Option<Vec<String>>,
    ) -> PyResult<(usize, usize, Bound<'py, PyList>)> {
        let question = Question { vhosts, contains, ids, sort, descending, offset, count, columns };
        let page = self.found_page(py, table, &question)?;
        Ok((page.total, page.matched, rows(py, &page.rows)?))
    }

    /// Every channel and session of these connections.
    fn sessions<'py>(&self, py: Python<'py>, conns: Vec<u64>) -> PyResult<Bound<'py, PyList>> {
        rows(py, &self.native.sessions(&conns))
    }

    /// What they are sorted by: (connection, number, a column of theirs).
    #[pyo3(signature = (conns, column = None))]
    fn session_keys(&self, conns: Vec<u64>, column: Option<&str>) -> Vec<(u64, u16, Option<u64>)> {
        self.native.session_keys(&conns, column)
    }

    /// How long messages take: (name, size up to, durations counted, (p50, p90, p99, max) in microseconds).
    #[expect(clippy::type_complexity, reason = "a row of plain numbers")]
    fn latencies(&self) -> Vec<(&'static str, Option<u64>, u64, (u64, u64, u64, u64))> {
        let rows = self.native.latencies().into_iter();
        rows.map(|(name, size, count, q)| (name, size, count, (q.p50_us, q.p90_us, q.p99_us, q.max_us))).collect()
    }

    /// How long messages of each type wait, in a queue or on the node: (type, durations counted, quantiles).
    #[pyo3(signature = (queue = None))]
    #[expect(clippy::type_complexity, reason = "a row of plain numbers")]
    fn types(&self, queue: Option<u64>) -> Vec<(String, u64, (u64, u64, u64, u64))> {
        let rows = self.native.types(queue).into_iter();
        rows.map(|(name, count, q)| (name, count, (q.p50_us, q.p90_us, q.p99_us, q.max_us))).collect()
    }

    /// How many messages matched each of these bindings.
    fn matched(&mut self, bindings: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Option<u64>>> {
        let bindings: PyResult<Vec<_>> = bindings.iter().map(binding).collect();
        Ok(self.native.matched(&bindings?))
    }

    /// Tell of every session and consumer from now on, or no longer.
    fn watch(&mut self, yes: bool) {
        self.native.broker.watched = yes;
    }

    /// Note spans of one in so many traces from now on; 0: of none.
    fn trace(&mut self, one_in: u32) {
        self.native.broker.spans = (one_in > 0).then(|| Box::new(Spans::new(one_in)));
    }

    /// Takes spans away: (trace, parent, virtual host, queue, exchange, key, arrived, left, bytes).
    fn spans<'py>(&mut self, py: Python<'py>, count_max: usize) -> PyResult<Bound<'py, PyList>> {
        reading::spans(py, self.native.take_spans(count_max))
    }

    /// The number by which `page` knows a queue.
    fn queue_id(&self, vhost: &str, queue: &str) -> Option<u64> {
        self.native.queue_id(vhost, queue)
    }

    /// Looks at so many more rows; are there more still?
    fn look(&self, py: Python<'_>, scan: &mut Scan, count: usize) -> PyResult<bool> {
        self.native.look(&mut scan.0, count).ok_or_else(|| no_table(py, "of this scan"))
    }

    /// The rows of these numbers that are still there, in the same order.
    #[pyo3(signature = (table, ids, columns = None))]
    #[expect(clippy::needless_pass_by_value, reason = "Python's lists are copied in any case")]
    fn rows<'py>(
        &self,
        py: Python<'py>,
        table: &str,
        ids: Vec<u64>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let found = self.native.rows(table, &ids, columns.as_deref()).ok_or_else(|| no_table(py, table))?;
        rows(py, &found)
    }

    /// Drops what is ready in a queue; how many.
    fn purge(&mut self, py: Python<'_>, vhost: &str, queue: &str) -> PyResult<usize> {
        self.native.purge(vhost, queue).map_err(|unknown| local_error(py, &unknown.0))
    }

    /// Moves ready messages: (how many, is the next on its way from disk, did nobody take the next).
    #[pyo3(signature = (vhost, queue, to, count))]
    fn move_messages(
        &mut self,
        py: Python<'_>,
        vhost: &str,
        queue: &str,
        to: Option<(String, String)>,
        count: usize,
    ) -> PyResult<(usize, bool, bool)> {
        let to = to.as_ref().map(|(exchange, key)| (exchange.as_str(), key.as_str()));
        let moved = self.native.move_messages(vhost, queue, to, count);
        let moved = moved.map_err(|unknown| local_error(py, &unknown.0))?;
        Ok((moved.count, moved.waits, moved.refused))
    }
}

impl Engine {
    fn found_page(&self, py: Python<'_>, table: &str, question: &Question) -> PyResult<Page> {
        self.native.page(table, question).ok_or_else(|| no_table(py, table))
    }
}

fn no_table(py: Python<'_>, table: &str) -> PyErr {
    local_error(py, &format!("no table {table:?}: known are {}", TABLES.join(", ")))
}

fn delivery<'py>(py: Python<'py>, tag: u64, entry: &weft_engine::queue::ready::Entry) -> PyResult<Bound<'py, PyTuple>> {
    let message = &*entry.message;
    let mut converted = Vec::new();
    let (head, body) = match message.kind {
        Kind::Amqp091 => (message.head(), std::borrow::Cow::Owned(message.body().gather())),
        Kind::Amqp10(_) => {
            let body = convert::to_amqp091(message, &mut converted);
            (converted.as_slice(), body)
        }
    };
    let properties = tables::properties(py, &Properties::decode(head).unwrap_or_default())?;
    if entry.reader > 0 {
        let headers = match properties.get_item("headers")? {
            Some(headers) => headers.cast_into::<PyDict>()?,
            None => PyDict::new(py),
        };
        headers.set_item("x-stream-offset", entry.position)?;
        properties.set_item("headers", headers)?;
    }
    let (exchange, key) = (tables::text(&message.exchange), tables::text(&message.routing_key));
    let publisher = message.traits.publisher;
    (tag, exchange, key, entry.redelivered, properties, PyBytes::new(py, &body), publisher).into_pyobject(py)
}
