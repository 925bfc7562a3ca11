//! The client machine for C, and for every language that can call C: `include/weft.h`.
//!
//! Owns the conversion of pointers and strings and nothing else: the machine is `crates/client`. Calls of C come in,
//! values it can read go out, one event at a time. It must never wait, call back or keep a caller's pointer. Rule: the
//! header says who owns what and for how long; every pointer that comes in is looked at for null before it is used.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use weft_client::{Arrived, Client, Ending, Event, Limits, LinkOptions, Login, Manner, Place, Settled, Verdict};
use weft_wire::amqp10::sections::{self, BodyKind};
use weft_wire::amqp10::{Composite, Header};

/// What `weft_next` answers; the numbers of the header.
const NOTHING: u32 = 0;
const OPENED: u32 = 1;
const ATTACHED: u32 = 2;
const DETACHED: u32 = 3;
const OUTCOME: u32 = 4;
const MESSAGE: u32 = 5;
const REFUSED: u32 = 6;
const CLOSED: u32 = 7;

/// Verdicts; the numbers of the header.
const ACCEPTED: u32 = 1;
const RELEASED: u32 = 2;
const REJECTED: u32 = 3;
const FAILED: u32 = 4;
const UNKNOWN: u32 = 5;

const NO_LINK: u32 = u32::MAX;
const NO_MESSAGE: u64 = u64::MAX;
const NEVER: u64 = u64::MAX;

/// A client with what C looks at: output that was handed out, and the event it reads.
pub struct WeftClient {
    native: Client,
    links: u64,
    output: Vec<u8>,
    told: VecDeque<Told>,
    filled: VecDeque<u32>,
    text: CString,
    arrived: Option<Arrived>,
}

/// Something to tell that owns what it says.
struct Told {
    kind: u32,
    link: u32,
    range: (u64, u64),
    verdict: u32,
    text: String,
}

/// `weft_event`
#[repr(C)]
pub struct WeftEvent {
    kind: u32,
    link: u32,
    first: u64,
    last: u64,
    verdict: u32,
    text: *const c_char,
    data: *const u8,
    size: usize,
    message: *const u8,
    message_size: usize,
}

impl WeftClient {
    fn attach(&mut self, address: &str, window: u32) -> u32 {
        self.links += 1;
        let place = Place { address: Some(address.into()), ..Place::default() };
        let name = format!("{}-{}", if window > 0 { "from" } else { "to" }, self.links).into();
        let options = LinkOptions { name, place, window, ..LinkOptions::default() };
        let attached = match window {
            0 => self.native.attach_sender(0, options),
            _ => self.native.attach_receiver(0, options),
        };
        attached.unwrap_or(NO_LINK)
    }

    /// Polls the machine for whatever it has to tell.
    fn gather(&mut self) {
        for event in self.native.poll_events() {
            self.told.extend(told(event));
        }
        for Settled { link, first, last, verdict } in self.native.poll_outcomes() {
            let (verdict, text) = word(&verdict);
            self.told.push_back(Told { kind: OUTCOME, link, range: (first, last), verdict, text });
        }
        self.filled.extend(self.native.poll_filled());
    }

    fn take(&mut self) -> Option<(u32, Arrived)> {
        while let Some(link) = self.filled.front().copied() {
            if let Some(arrived) = self.native.take(link) {
                return Some((link, arrived));
            }
            self.filled.pop_front();
        }
        None
    }

    fn next(&mut self, event: &mut WeftEvent) {
        self.gather();
        if let Some(told) = self.told.pop_front() {
            // A zero byte would end the text for C: what comes after it is not worth more than that.
            let text: Vec<u8> = told.text.into_bytes().into_iter().take_while(|byte| *byte != 0).collect();
            self.text = CString::new(text).unwrap_or_default();
            (event.kind, event.link, event.verdict) = (told.kind, told.link, told.verdict);
            (event.first, event.last) = told.range;
            event.text = self.text.as_ptr();
        } else if let Some((link, arrived)) = self.take() {
            let payload = &self.arrived.insert(arrived);
            (event.kind, event.link) = (MESSAGE, link);
            (event.first, event.last) = (payload.number, payload.number);
            (event.message, event.message_size) = (payload.payload.as_ptr(), payload.payload.len());
            if let Ok(BodyKind::Data(span)) = sections::scan(&payload.payload).map(|found| found.kind) {
                let data = span.of(&payload.payload);
                (event.data, event.size) = (data.as_ptr(), data.len());
            }
        }
    }
}

fn told(event: Event) -> Option<Told> {
    let plain = |kind, link, text| Some(Told { kind, link, range: (0, 0), verdict: 0, text });
    match event {
        Event::Opened { container, .. } => plain(OPENED, NO_LINK, container),
        Event::Attached { link, address, .. } => plain(ATTACHED, link, address.unwrap_or_default()),
        Event::Detached { link, ending } => plain(DETACHED, link, said(&ending)),
        Event::LoginFailed { text, .. } => plain(REFUSED, NO_LINK, text),
        Event::Closed { ending, .. } => plain(CLOSED, NO_LINK, said(&ending)),
        // There is one session, whose end closes its links; nothing here drains or proves.
        Event::SessionEnded { .. } | Event::Drained { .. } | Event::KeyRequested { .. } => None,
    }
}

fn said(ending: &Ending) -> String {
    match (ending.condition.as_str(), ending.description.as_str()) {
        (condition, "") => condition.to_owned(),
        (condition, description) => format!("{condition}: {description}"),
    }
}

fn word(verdict: &Verdict) -> (u32, String) {
    match verdict {
        Verdict::Accepted => (ACCEPTED, String::new()),
        Verdict::Released => (RELEASED, String::new()),
        Verdict::Rejected(ending) => (REJECTED, said(ending)),
        Verdict::Modified { .. } => (FAILED, String::new()),
        Verdict::Declared(_) | Verdict::Unknown | Verdict::Lost(_) => (UNKNOWN, String::new()),
    }
}

/// A string of the caller's; none if it is null or no UTF-8.
///
/// # Safety
/// `text` is null or ends with a zero byte, and lives as long as the call.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: checked for null here; the rest is the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?.to_str().ok()
}

/// Bytes of the caller's; none if there are none.
///
/// # Safety
/// `data` is null or has `size` bytes that live as long as the call.
unsafe fn bytes<'a>(data: *const u8, size: usize) -> &'a [u8] {
    match data.is_null() || size == 0 {
        true => &[],
        // SAFETY: checked for null here; the rest is the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data, size) },
    }
}

/// The client behind a handle of the caller's.
macro_rules! client {
    ($handle:expr $(, $otherwise:expr)?) => {
        // SAFETY: null, or from `weft_new` and not freed; one thread at a time has it (the header says so).
        match unsafe { $handle.as_mut() } {
            Some(client) => client,
            None => return $($otherwise)?,
        }
    };
}

/// # Safety
/// As the header says, here and below: pointers are null or what they are called, a client has one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_new(container: *const c_char) -> *mut WeftClient {
    // SAFETY: the caller's string.
    let Some(container) = (unsafe { text(container) }) else { return ptr::null_mut() };
    Box::into_raw(Box::new(WeftClient {
        native: Client::new(container, Vec::new(), Limits::default()),
        links: 0,
        output: Vec::new(),
        told: VecDeque::new(),
        filled: VecDeque::new(),
        text: CString::default(),
        arrived: None,
    }))
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_free(client: *mut WeftClient) {
    if !client.is_null() {
        // SAFETY: from `weft_new`, and not freed before.
        drop(unsafe { Box::from_raw(client) });
    }
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_start(
    client: *mut WeftClient,
    hostname: *const c_char,
    user: *const c_char,
    password: *const c_char,
    now_ns: u64,
) -> c_int {
    let client = client!(client, -1);
    // SAFETY: the caller's strings.
    let (host, name, secret) = unsafe { (text(hostname), text(user), text(password)) };
    let unreadable = |given: *const c_char, read: Option<&str>| !given.is_null() && read.is_none();
    if unreadable(hostname, host) || unreadable(user, name) || unreadable(password, secret) {
        return -1;
    }
    let login = match name {
        None => Login::Anonymous,
        Some(name) => Login::Plain { user: name.into(), password: secret.unwrap_or_default().into() },
    };
    client.native.start(host, vec![login], now_ns);
    0
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_receive(client: *mut WeftClient, data: *const u8, size: usize, now_ns: u64) {
    let client = client!(client);
    // SAFETY: the caller's bytes.
    client.native.receive(unsafe { bytes(data, size) }, now_ns);
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_transmit(client: *mut WeftClient, data: *mut *const u8) -> usize {
    let client = client!(client, 0);
    // SAFETY: null, or room for a pointer.
    let Some(data) = (unsafe { data.as_mut() }) else { return 0 };
    client.output = client.native.poll_transmit();
    *data = client.output.as_ptr();
    client.output.len()
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_lost(client: *mut WeftClient) {
    client!(client).native.lost();
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_close(client: *mut WeftClient) {
    client!(client).native.close(None);
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_deadline(client: *mut WeftClient) -> u64 {
    client!(client, NEVER).native.poll_timeout().unwrap_or(NEVER)
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_advance(client: *mut WeftClient, now_ns: u64) {
    client!(client).native.advance(now_ns);
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_sender(client: *mut WeftClient, address: *const c_char) -> u32 {
    // SAFETY: the caller's string.
    let Some(address) = (unsafe { text(address) }) else { return NO_LINK };
    client!(client, NO_LINK).attach(address, 0)
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_receiver(client: *mut WeftClient, address: *const c_char, window: u32) -> u32 {
    // SAFETY: the caller's string.
    let Some(address) = (unsafe { text(address) }) else { return NO_LINK };
    client!(client, NO_LINK).attach(address, window.max(1))
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_detach(client: *mut WeftClient, link: u32) {
    // A link that is gone already is what was asked for.
    let _ = client!(client).native.detach(link, true, None);
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_send(
    client: *mut WeftClient,
    link: u32,
    data: *const u8,
    size: usize,
    durable: c_int,
) -> u64 {
    let client = client!(client, NO_MESSAGE);
    // SAFETY: the caller's bytes.
    let data = unsafe { bytes(data, size) };
    let mut message = Vec::with_capacity(data.len() + 32);
    if durable != 0 {
        Header { durable: true, ..Header::default() }.encode(&mut message);
    }
    sections::put_data(&mut message, data);
    client.native.send(link, message, Manner::default(), None).unwrap_or(NO_MESSAGE)
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_settle(client: *mut WeftClient, link: u32, number: u64, verdict: u32) {
    let verdict = match verdict {
        ACCEPTED => Verdict::Accepted,
        REJECTED => Verdict::Rejected(Ending::default()),
        FAILED => Verdict::Modified { failed: true, undeliverable_here: false },
        _ => Verdict::Released,
    };
    client!(client).native.settle(link, number, number, &verdict, None);
}

/// # Safety
/// See `weft_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_next(client: *mut WeftClient, event: *mut WeftEvent) -> u32 {
    let client = client!(client, NOTHING);
    // SAFETY: null, or room for an event.
    let Some(event) = (unsafe { event.as_mut() }) else { return NOTHING };
    *event = WeftEvent {
        kind: NOTHING,
        link: NO_LINK,
        first: 0,
        last: 0,
        verdict: 0,
        text: c"".as_ptr(),
        data: ptr::null(),
        size: 0,
        message: ptr::null(),
        message_size: 0,
    };
    client.next(event);
    event.kind
}
