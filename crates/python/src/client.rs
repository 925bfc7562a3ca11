//! The `Client` class of `weft._kernel`.
//!
//! Owns the calls a client library makes: bytes and time in, bytes, events, outcomes and deliveries out, each in
//! batches. Values are converted here and nowhere else. It must never wait, call back into Python or hold logic of its
//! own: the machine is `crates/client`. Rule: `src/weft/_kernel.pyi`.

use std::rc::Rc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySequence, PyTuple};
use weft_client::{
    Client as Native, Ending, Event, Limits, LinkOptions, Login, Manner, Mistake, Place, Settled, Verdict,
};
use weft_columns::{BATCH_BYTES_MAX, Builder, Constants, Row, single};
use weft_wire::amqp10::{Reader, TerminusDurability, TerminusExpiryPolicy, Value, writer};

use crate::delivery::Delivery;
use crate::engine::with_bytes;
use crate::errors::local_error;
use crate::log::{self, ArrowStream};
use crate::outgoing::{self, Words};
use crate::rows::EncodedMessages;
use crate::{tables, values};

/// The machine, of which one thread at a time holds everything there is.
struct Alone(Native);

// SAFETY: the counted references inside a client are not atomic, but every one of them lives inside it: no method hands
// one out. The interpreter's lock and PyO3's borrow of the object let one thread in at a time.
unsafe impl Send for Alone {}
// SAFETY: as above; shared borrows are also serialised by the interpreter's lock.
unsafe impl Sync for Alone {}

/// One client's deterministic machine. Threads share it, so a borrow ends before any Python object is made: making one
/// may run the garbage collector, and with it another thread.
#[pyclass(module = "weft._kernel")]
pub(crate) struct Client {
    native: Alone,
    publisher: String,
    published: u64,
    events: Py<PyAny>,
}

type Mapping<'a, 'py> = Option<&'a Bound<'py, PyDict>>;

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (container, *, properties = None, idle_ms = 30_000, frame_bytes_max = 131_072,
        message_bytes_max = 134_217_728, held_max = 65_536))]
    fn new(
        py: Python<'_>,
        container: &str,
        properties: Mapping<'_, '_>,
        idle_ms: u32,
        frame_bytes_max: u32,
        message_bytes_max: u64,
        held_max: usize,
    ) -> PyResult<Self> {
        let mut encoded = Vec::new();
        if let Some(dict) = properties {
            writer::put_value(&mut encoded, &Value::Map(values::map(dict, true)?.as_map()));
        }
        let limits = Limits { idle_ms, frame_bytes_max, message_bytes_max, held_max, ..Limits::default() };
        let events = py.import("weft.model.client_events")?.into_any().unbind();
        let native = Alone(Native::new(container, encoded, limits));
        Ok(Self { native, publisher: container.to_owned(), published: 0, events })
    }

    /// A transport is connected: log in, open, attach.
    #[pyo3(signature = (now_ns, *, hostname = None, mechanisms = None, user = "", password = "", nonce = ""))]
    fn start(
        &mut self,
        now_ns: u64,
        hostname: Option<&str>,
        mechanisms: Option<Vec<String>>,
        user: &str,
        password: &str,
        nonce: &str,
    ) -> PyResult<u32> {
        let login = |mechanism: &String| match mechanism.as_str() {
            "ANONYMOUS" => Ok(Login::Anonymous),
            "PLAIN" => Ok(Login::Plain { user: user.into(), password: password.into() }),
            "EXTERNAL" => Ok(Login::External),
            "SCRAM-SHA-256" if nonce.is_empty() => Err(PyValueError::new_err("SCRAM-SHA-256 needs a nonce")),
            "SCRAM-SHA-256" => Ok(Login::Scram { user: user.into(), nonce: nonce.into() }),
            other => Err(PyValueError::new_err(format!("there is no mechanism {other}"))),
        };
        let logins = match mechanisms {
            Some(names) => names.iter().map(login).collect::<PyResult<_>>()?,
            None => vec![Login::Anonymous],
        };
        Ok(self.native.0.start(hostname, logins, now_ns))
    }

    /// What PBKDF2 makes of the password.
    fn prove(&mut self, key: [u8; 32]) -> u32 {
        self.native.0.prove(&key)
    }

    /// Bytes from the transport.
    fn receive(&mut self, data: &Bound<'_, PyAny>, now_ns: u64) -> PyResult<u32> {
        let native = &mut self.native.0;
        with_bytes(data, |bytes| native.receive(bytes, now_ns))
    }

    /// The transport is gone.
    fn lost(&mut self) -> u32 {
        self.native.0.lost()
    }

    /// Time passes.
    fn advance(&mut self, now_ns: u64) -> u32 {
        self.native.0.advance(now_ns)
    }

    /// Says goodbye.
    #[pyo3(signature = (condition = "", description = ""))]
    fn close(&mut self, condition: &str, description: &str) -> u32 {
        self.native.0.close(ending(condition, description).as_ref())
    }

    /// Bytes for the transport.
    fn poll_transmit<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.native.0.poll_transmit())
    }

    /// When `advance` wants to be called next.
    fn poll_timeout(&mut self) -> Option<u64> {
        self.native.0.poll_timeout()
    }

    /// What happened.
    fn poll_events<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let (py, events) = (slf.py(), slf.borrow_mut().native.0.poll_events());
        let list = PyList::empty(py);
        for event in events {
            list.append(slf.borrow().event(py, event)?)?;
        }
        Ok(list)
    }

    /// How messages ended: (link, first, last, outcome, detail).
    fn poll_outcomes<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let (py, outcomes) = (slf.py(), slf.borrow_mut().native.0.poll_outcomes());
        let list = PyList::empty(py);
        for settled in outcomes {
            list.append(outcome(py, &settled)?)?;
        }
        Ok(list)
    }

    /// Links that got deliveries.
    fn poll_filled(&mut self) -> Vec<u32> {
        self.native.0.poll_filled()
    }

    /// Deliveries of a link that wait.
    fn poll_deliveries<'py>(slf: &Bound<'py, Self>, link: u32, count_max: usize) -> PyResult<Bound<'py, PyList>> {
        let mut taken = Vec::new();
        {
            let native = &mut slf.borrow_mut().native.0;
            taken.extend(std::iter::from_fn(|| native.take(link)).take(count_max));
        }
        let list = PyList::empty(slf.py());
        for arrived in taken {
            list.append(Bound::new(slf.py(), Delivery::new(arrived))?)?;
        }
        Ok(list)
    }

    /// Deliveries of a stream so far, as columns: the first and last number, and the rows. None if there are none.
    #[pyo3(signature = (link, count_max, columns = None, *, stream = "", shard = 0, origin = ""))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn poll_columns(
        &mut self,
        link: u32,
        count_max: usize,
        columns: Option<Vec<String>>,
        stream: &str,
        shard: i32,
        origin: &str,
    ) -> PyResult<Option<(u64, u64, ArrowStream)>> {
        let constants = Constants { stream: stream.to_owned(), shard, origin: origin.to_owned() };
        let mut builder = Builder::new(&log::named(columns.as_deref())?, constants);
        let mut bounds: Option<(u64, u64)> = None;
        while builder.rows() < count_max
            && builder.bytes() < BATCH_BYTES_MAX
            && let Some(arrived) = self.native.0.take(link)
        {
            let Some(row) = Row::delivered(&arrived.payload, stream) else {
                return Err(PyValueError::new_err(format!(
                    "delivery {} is not of a stream: it has no offset",
                    arrived.number
                )));
            };
            builder.push(&row);
            bounds = Some((bounds.map_or(arrived.number, |bounds| bounds.0), arrived.number));
        }
        let Some((first, last)) = bounds else { return Ok(None) };
        let batch = builder.finish().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Some((first, last, ArrowStream::new(single(batch)))))
    }

    /// What there is to poll.
    fn signals(&self) -> u32 {
        self.native.0.signals()
    }

    /// One more session.
    fn begin(&mut self, py: Python<'_>) -> PyResult<u16> {
        self.native.0.begin().map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Ends a session and its links.
    fn end(&mut self, py: Python<'_>, session: u16) -> PyResult<u32> {
        self.native.0.end(session).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// A link to send on.
    #[pyo3(signature = (name, address, *, session = 0, settled = false, dynamic = false, coordinator = false,
        durable = 0, expiry = "session-end", timeout_s = 0, capabilities = None, properties = None))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn attach_sender(
        &mut self,
        py: Python<'_>,
        name: &str,
        address: Option<&str>,
        session: u16,
        settled: bool,
        dynamic: bool,
        coordinator: bool,
        durable: u32,
        expiry: &str,
        timeout_s: u32,
        capabilities: Option<Vec<String>>,
        properties: Mapping<'_, '_>,
    ) -> PyResult<u32> {
        let mut place = place(address, dynamic, durable, expiry, timeout_s, capabilities.unwrap_or_default())?;
        place.coordinator = coordinator;
        let options = LinkOptions { name: name.into(), place, settled, properties: map(properties)?, window: 0 };
        self.native.0.attach_sender(session, options).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// A link to receive on.
    #[pyo3(signature = (name, address, *, session = 0, window = 0, settled = false, dynamic = false, browse = false,
        durable = 0, expiry = "session-end", timeout_s = 0, capabilities = None, filters = None,
        properties = None))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn attach_receiver(
        &mut self,
        py: Python<'_>,
        name: &str,
        address: Option<&str>,
        session: u16,
        window: u32,
        settled: bool,
        dynamic: bool,
        browse: bool,
        durable: u32,
        expiry: &str,
        timeout_s: u32,
        capabilities: Option<Vec<String>>,
        filters: Mapping<'_, '_>,
        properties: Mapping<'_, '_>,
    ) -> PyResult<u32> {
        let mut place = place(address, dynamic, durable, expiry, timeout_s, capabilities.unwrap_or_default())?;
        place.browse = browse;
        if let Some(dict) = filters {
            place.filters = values::filters(dict)?;
        }
        let options = LinkOptions { name: name.into(), place, settled, properties: map(properties)?, window };
        self.native.0.attach_receiver(session, options).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Ends a link.
    #[pyo3(signature = (link, *, closed = true, condition = "", description = ""))]
    fn detach(&mut self, py: Python<'_>, link: u32, closed: bool, condition: &str, description: &str) -> PyResult<u32> {
        let ended = self.native.0.detach(link, closed, ending(condition, description).as_ref());
        ended.map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Sends a batch; the number of its first message.
    #[pyo3(signature = (link, bodies, properties = None, settled = false, as_value = false, identify = false,
        txn = None, sign = None, batchable = false))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn send<'py>(
        slf: &Bound<'py, Self>,
        link: u32,
        bodies: &Bound<'py, PySequence>,
        properties: Mapping<'_, 'py>,
        settled: bool,
        as_value: bool,
        identify: bool,
        txn: Option<&[u8]>,
        sign: Option<&Bound<'py, PyAny>>,
        batchable: bool,
    ) -> PyResult<u64> {
        let words = Words::read(properties)?;
        let txn: Option<Rc<[u8]>> = txn.map(Rc::from);
        let identify = identify && !words.has_id();
        let (mut head, mut id, mut encoded) = (Vec::new(), String::new(), Vec::new());
        let mut bare = if identify { 0 } else { words.put(&mut head, None)? };
        // All are encoded before the first is sent: a batch goes out whole or not at all.
        for body in bodies.try_iter()? {
            let mut message = Vec::with_capacity(head.len() + 256);
            if identify {
                slf.borrow_mut().next_id(&mut id);
                bare = words.put(&mut message, Some(&id))?;
            } else {
                message.extend_from_slice(&head);
            }
            outgoing::put_body(&mut message, &body?, as_value)?;
            sign.map_or(Ok(()), |sign| outgoing::put_footer(&mut message, bare, sign))?;
            encoded.push(message);
        }
        match slf.borrow_mut().push(link, encoded, Manner { settled, batchable }, txn.as_ref()) {
            Ok(Some(first)) => Ok(first),
            Ok(None) => Err(local_error(slf.py(), "there is nothing to send")),
            Err(mistake) => Err(local_error(slf.py(), &mistake.to_string())),
        }
    }

    /// Sends the next of some encoded messages, at most `count_max`: the number of the first.
    #[pyo3(signature = (link, messages, count_max, *, settled = false))]
    fn send_encoded(
        &mut self,
        py: Python<'_>,
        link: u32,
        messages: &mut EncodedMessages,
        count_max: usize,
        settled: bool,
    ) -> PyResult<u64> {
        let mut first = None;
        for message in messages.take(count_max) {
            let number = self.native.0.send(link, message, Manner { settled, batchable: false }, None);
            let number = number.map_err(|mistake| local_error(py, &mistake.to_string()))?;
            first.get_or_insert(number);
        }
        first.ok_or_else(|| local_error(py, "there is nothing to send"))
    }

    /// Asks a coordinator for a transaction.
    fn declare(&mut self, py: Python<'_>, link: u32) -> PyResult<u64> {
        self.native.0.declare(link).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Ends a transaction.
    fn discharge(&mut self, py: Python<'_>, link: u32, txn: &[u8], fail: bool) -> PyResult<u64> {
        self.native.0.discharge(link, txn, fail).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Has a transaction wait under a global id.
    fn prepare(&mut self, py: Python<'_>, link: u32, txn: &[u8], global_id: &[u8]) -> PyResult<u64> {
        self.native.0.prepare(link, txn, global_id).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Ends one that waits.
    fn resolve(&mut self, py: Python<'_>, link: u32, global_id: &[u8], fail: bool) -> PyResult<u64> {
        self.native.0.resolve(link, global_id, fail).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// Gives a message up.
    fn forget(&mut self, link: u32, number: u64) -> bool {
        self.native.0.forget(link, number)
    }

    /// Decides on deliveries.
    #[pyo3(signature = (link, first, last, outcome = "accepted", *, condition = "", description = "", failed = false,
        undeliverable_here = false, txn = None))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn settle(
        &mut self,
        link: u32,
        first: u64,
        last: u64,
        outcome: &str,
        condition: &str,
        description: &str,
        failed: bool,
        undeliverable_here: bool,
        txn: Option<&[u8]>,
    ) -> PyResult<()> {
        let verdict = match outcome {
            "accepted" => Verdict::Accepted,
            "released" => Verdict::Released,
            "rejected" => Verdict::Rejected(ending(condition, description).unwrap_or_default()),
            "modified" => Verdict::Modified { failed, undeliverable_here },
            other => {
                let text = format!("outcome is accepted, released, rejected or modified, not {other:?}");
                return Err(PyValueError::new_err(text));
            }
        };
        let txn: Option<Rc<[u8]>> = txn.map(Rc::from);
        self.native.0.settle(link, first, last, &verdict, txn.as_ref());
        Ok(())
    }

    /// Gives a link more credit.
    fn grant(&mut self, link: u32, count: u32) {
        self.native.0.grant(link, count);
    }

    /// Sets how many deliveries of a link may be under way or unsettled.
    fn set_window(&mut self, link: u32, window: u32) {
        self.native.0.set_window(link, window);
    }

    /// Other filters for a link, from its next attach on.
    fn set_filters(&mut self, link: u32, filters: &Bound<'_, PyDict>) -> PyResult<()> {
        self.native.0.set_filters(link, values::filters(filters)?);
        Ok(())
    }

    /// Asks the peer to use its credit or give it back.
    fn drain(&mut self, py: Python<'_>, link: u32) -> PyResult<u32> {
        self.native.0.drain(link).map_err(|mistake| local_error(py, &mistake.to_string()))
    }

    /// (messages held, credit) of a link, or None if it is gone.
    fn load(&self, link: u32) -> Option<(usize, u32)> {
        self.native.0.load(link)
    }
}

impl Client {
    fn next_id(&mut self, text: &mut String) {
        outgoing::make_id(text, &self.publisher, self.published);
        self.published += 1;
    }

    /// Hands encoded messages to the machine; the number of the first.
    fn push(
        &mut self,
        link: u32,
        encoded: Vec<Vec<u8>>,
        manner: Manner,
        txn: Option<&Rc<[u8]>>,
    ) -> Result<Option<u64>, Mistake> {
        let mut first = None;
        for message in encoded {
            let number = self.native.0.send(link, message, manner, txn)?;
            first.get_or_insert(number);
        }
        Ok(first)
    }

    fn make<'py>(
        &self,
        py: Python<'py>,
        class: &str,
        arguments: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.events.bind(py).getattr(class)?.call1(arguments.into_pyobject(py)?)
    }

    fn event<'py>(&self, py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyAny>> {
        match event {
            Event::Opened { container, capabilities, properties } => {
                let capabilities = PyTuple::new(py, capabilities)?;
                self.make(py, "Opened", (container, capabilities, read_map(py, &properties)?))
            }
            Event::KeyRequested { salt, iterations } => {
                self.make(py, "KeyRequested", (PyBytes::new(py, &salt), iterations))
            }
            Event::LoginFailed { text, temporary } => self.make(py, "LoginFailed", (text, temporary)),
            Event::Attached { link, address, filters, properties } => {
                let filters = PyTuple::new(py, filters)?;
                self.make(py, "Attached", (link, address, filters, read_map(py, &properties)?))
            }
            Event::Detached { link, ending } => self.make(py, "Detached", (link, ending.condition, ending.description)),
            Event::Drained { link } => self.make(py, "Drained", (link,)),
            Event::SessionEnded { session, ending } => {
                self.make(py, "SessionEnded", (session, ending.condition, ending.description))
            }
            Event::Closed { ending, by_peer } => {
                self.make(py, "Closed", (ending.condition, ending.description, by_peer))
            }
        }
    }
}

fn read_map<'py>(py: Python<'py>, encoded: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match Reader::new(encoded).read() {
        Ok(value) => tables::value10(py, value),
        Err(_) => Ok(PyDict::new(py).into_any()),
    }
}

fn outcome<'py>(py: Python<'py>, settled: &Settled) -> PyResult<Bound<'py, PyTuple>> {
    let (word, detail) = match &settled.verdict {
        Verdict::Accepted => ("accepted", py.None().into_bound(py)),
        Verdict::Released => ("released", py.None().into_bound(py)),
        Verdict::Rejected(ending) => ("rejected", reasons(py, ending)?),
        Verdict::Modified { failed, undeliverable_here } => {
            ("modified", (*failed, *undeliverable_here).into_pyobject(py)?.into_any())
        }
        Verdict::Declared(txn) => ("declared", PyBytes::new(py, txn).into_any()),
        Verdict::Unknown => ("unknown", py.None().into_bound(py)),
        Verdict::Lost(ending) => ("lost", reasons(py, ending)?),
    };
    (settled.link, settled.first, settled.last, word, detail).into_pyobject(py)
}

fn reasons<'py>(py: Python<'py>, ending: &Ending) -> PyResult<Bound<'py, PyAny>> {
    Ok((&ending.condition, &ending.description).into_pyobject(py)?.into_any())
}

fn ending(condition: &str, description: &str) -> Option<Ending> {
    let given = !condition.is_empty() || !description.is_empty();
    let condition = if condition.is_empty() { "amqp:internal-error" } else { condition };
    given.then(|| Ending { condition: condition.into(), description: description.into() })
}

fn map(properties: Mapping<'_, '_>) -> PyResult<weft_wire::amqp10::MapBuf> {
    properties.map_or_else(|| Ok(Default::default()), |dict| values::map(dict, true))
}

fn place(
    address: Option<&str>,
    dynamic: bool,
    durable: u32,
    expiry: &str,
    timeout_s: u32,
    capabilities: Vec<String>,
) -> PyResult<Place> {
    let durable = match durable {
        0 => TerminusDurability::None,
        1 => TerminusDurability::Configuration,
        2 => TerminusDurability::UnsettledState,
        _ => return Err(PyValueError::new_err("durable is 0, 1 or 2")),
    };
    let expiry = match expiry {
        "link-detach" => TerminusExpiryPolicy::LinkDetach,
        "session-end" => TerminusExpiryPolicy::SessionEnd,
        "connection-close" => TerminusExpiryPolicy::ConnectionClose,
        "never" => TerminusExpiryPolicy::Never,
        _ => return Err(PyValueError::new_err("expiry is link-detach, session-end, connection-close or never")),
    };
    for name in &capabilities {
        values::ascii(name)?;
    }
    let capabilities = capabilities.into_iter().map(String::into_boxed_str).collect();
    let address = address.map(Into::into);
    Ok(Place { address, dynamic, durable, expiry, timeout_s, capabilities, ..Place::default() })
}
