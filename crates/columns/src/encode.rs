//! Rows back into messages.
//!
//! Owns the way from a record batch to encoded AMQP 1.0 messages: which column is which field, and which types may
//! stand in it. A batch comes in, one buffer per row goes out, or one sentence that says which column or row is wrong,
//! before anything is sent. It must never know a link or a connection. Rule: docs/reference/columns.md, "Back".

use std::fmt::{self, Write};

use arrow_array::RecordBatch;
use weft_wire::amqp10::{
    Composite, Header, MapBuf, MessageId, Properties, Symbol, Timestamp, Value, descriptor, sections,
};

use crate::cells::{Bytes, Entries, Flags, Moments, Numbers, Texts};

/// How rows become messages.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// Rows without a `message_id` get this, a colon and their number.
    pub identity: Option<String>,
    /// The number of the batch's first row.
    pub first: u64,
    /// `address`, or `exchange` and `routing_key`, say where each row goes; else the link does.
    pub addressed: bool,
    /// Headers that every message has besides its own.
    pub headers: Vec<(String, String)>,
}

/// Why rows are no messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMessage(pub String);

impl fmt::Display for NoMessage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "these rows cannot become messages: {}", self.0)
    }
}

impl std::error::Error for NoMessage {}

/// The columns that messages are made of.
const NAMES: &[&str] = &[
    "body",
    "address",
    "exchange",
    "routing_key",
    "message_id",
    "correlation_id",
    "reply_to",
    "content_type",
    "content_encoding",
    "type",
    "app_id",
    "user_id",
    "creation_time",
    "priority",
    "ttl_ms",
    "durable",
    "headers",
];

/// The columns of one batch.
struct Columns<'a> {
    body: Bytes<'a>,
    address: Texts<'a>,
    exchange: Texts<'a>,
    routing_key: Texts<'a>,
    message_id: Texts<'a>,
    correlation_id: Texts<'a>,
    reply_to: Texts<'a>,
    content_type: Texts<'a>,
    content_encoding: Texts<'a>,
    message_type: Texts<'a>,
    app_id: Texts<'a>,
    user_id: Texts<'a>,
    creation_time: Moments<'a>,
    priority: Numbers<'a>,
    ttl_ms: Numbers<'a>,
    durable: Flags<'a>,
    headers: Entries<'a>,
}

/// Every row of a batch as an encoded message.
pub fn encode_messages(batch: &RecordBatch, mapping: &Mapping) -> Result<Vec<Vec<u8>>, NoMessage> {
    let columns = Columns::of(batch)?;
    let mut texts = Scratch::default();
    (0..batch.num_rows()).map(|row| columns.encode(row, mapping, &mut texts)).collect()
}

/// Text that is made for one row.
#[derive(Default)]
struct Scratch {
    id: String,
    to: String,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Result<Self, NoMessage> {
        let schema = batch.schema_ref();
        if let Some(field) = schema.fields().iter().find(|field| !NAMES.contains(&field.name().as_str())) {
            return Err(NoMessage(format!("a message has no {}, only {}", field.name(), NAMES.join(", "))));
        }
        let column = |name: &str| batch.column_by_name(name).map(|array| &**array);
        let texts = |name: &str| Texts::of(column(name)).ok_or_else(|| wrong(batch, name, "text"));
        let numbers = |name: &str| Numbers::of(column(name)).ok_or_else(|| wrong(batch, name, "a whole number"));
        if column("body").is_none() {
            return Err(NoMessage("there is no column body".to_owned()));
        }
        Ok(Self {
            body: Bytes::of(column("body")).ok_or_else(|| wrong(batch, "body", "binary or text"))?,
            address: texts("address")?,
            exchange: texts("exchange")?,
            routing_key: texts("routing_key")?,
            message_id: texts("message_id")?,
            correlation_id: texts("correlation_id")?,
            reply_to: texts("reply_to")?,
            content_type: texts("content_type")?,
            content_encoding: texts("content_encoding")?,
            message_type: texts("type")?,
            app_id: texts("app_id")?,
            user_id: texts("user_id")?,
            creation_time: Moments::of(column("creation_time"))
                .ok_or_else(|| wrong(batch, "creation_time", "a timestamp"))?,
            priority: numbers("priority")?,
            ttl_ms: numbers("ttl_ms")?,
            durable: Flags::of(column("durable")).ok_or_else(|| wrong(batch, "durable", "a truth value"))?,
            headers: Entries::of(column("headers")).ok_or_else(|| wrong(batch, "headers", "a map of text to text"))?,
        })
    }

    fn encode(&self, row: usize, mapping: &Mapping, scratch: &mut Scratch) -> Result<Vec<u8>, NoMessage> {
        let body = self.body.get(row).unwrap_or_default();
        let mut out = Vec::with_capacity(body.len() + 256);
        self.header(row)?.encode(&mut out);
        let message_type = self.message_type.get(row);
        if let Some(text) = message_type {
            let mut annotations = MapBuf::new();
            annotations.put(Value::Symbol("x-basic-type"), Value::String(text));
            sections::put_map(&mut out, descriptor::MESSAGE_ANNOTATIONS, annotations.as_map());
        }
        let id = match self.message_id.get(row) {
            Some(id) => Some(id),
            None => make_id(row, mapping, &mut scratch.id)?,
        };
        let to = if mapping.addressed { Some(self.target(row, &mut scratch.to)?) } else { None };
        let properties = Properties {
            message_id: id.map(MessageId::String),
            user_id: self.user_id.get(row).map(str::as_bytes),
            to,
            subject: message_type,
            reply_to: self.reply_to.get(row),
            correlation_id: self.correlation_id.get(row).map(MessageId::String),
            content_type: self.symbol(row, "content_type", &self.content_type)?,
            content_encoding: self.symbol(row, "content_encoding", &self.content_encoding)?,
            creation_time: self.creation_time.get_ms(row).map(Timestamp),
            group_id: self.app_id.get(row),
            ..Properties::default()
        };
        properties.encode(&mut out);
        let mut headers = MapBuf::new();
        self.headers.each(row, |key, value| {
            // A header that all have replaces the row's own.
            if mapping.headers.iter().all(|(name, _)| name != key) {
                headers.put(Value::String(key), value.map_or(Value::Null, Value::String));
            }
        });
        mapping.headers.iter().for_each(|(key, value)| {
            headers.put(Value::String(key), Value::String(value));
        });
        if !headers.is_empty() {
            sections::put_map(&mut out, descriptor::APPLICATION_PROPERTIES, headers.as_map());
        }
        sections::put_data(&mut out, body);
        Ok(out)
    }

    fn header(&self, row: usize) -> Result<Header, NoMessage> {
        let mut header = Header { durable: self.durable.get(row).unwrap_or(true), ..Header::default() };
        if let Some(priority) = self.priority.get(row) {
            let fits = u8::try_from(priority);
            header.priority =
                fits.map_err(|_| NoMessage(format!("row {row}: priority is 0 to 255, not {priority}")))?;
        }
        if let Some(ttl_ms) = self.ttl_ms.get(row) {
            let fits = u32::try_from(ttl_ms);
            let most = u32::MAX;
            header.ttl = Some(fits.map_err(|_| NoMessage(format!("row {row}: ttl_ms is 0 to {most}, not {ttl_ms}")))?);
        }
        Ok(header)
    }

    /// Where a row goes: its address as it is, or one made of exchange and routing key.
    fn target<'s>(&'s self, row: usize, to: &'s mut String) -> Result<&'s str, NoMessage> {
        if let Some(address) = self.address.get(row).filter(|address| !address.is_empty()) {
            return Ok(address);
        }
        let (exchange, key) = (self.exchange.get(row).unwrap_or(""), self.routing_key.get(row).unwrap_or(""));
        to.clear();
        match (exchange, key) {
            ("", "") => return Err(NoMessage(format!("row {row}: nothing says where it goes"))),
            ("", queue) => {
                to.push_str("/queues/");
                quote(to, queue);
            }
            (exchange, key) => {
                to.push_str("/exchanges/");
                quote(to, exchange);
                to.push('/');
                quote(to, key);
            }
        }
        Ok(to)
    }

    /// The protocol keeps these to ASCII.
    fn symbol(&self, row: usize, name: &str, texts: &Texts<'a>) -> Result<Option<Symbol<'a>>, NoMessage> {
        match texts.get(row) {
            Some(text) if !text.is_ascii() => Err(NoMessage(format!("row {row}: {name} must be ASCII, not {text:?}"))),
            text => Ok(text.map(Symbol)),
        }
    }
}

fn make_id<'s>(row: usize, mapping: &Mapping, id: &'s mut String) -> Result<Option<&'s str>, NoMessage> {
    let Some(identity) = &mapping.identity else { return Ok(None) };
    let number = mapping.first.checked_add(row as u64);
    let number = number.ok_or_else(|| NoMessage(format!("row {row}: its number is over {}", u64::MAX)))?;
    id.clear();
    let _ = write!(id, "{identity}:{number}");
    Ok(Some(id))
}

fn wrong(batch: &RecordBatch, name: &str, wanted: &str) -> NoMessage {
    let found = batch.column_by_name(name).map_or(String::new(), |array| array.data_type().to_string());
    NoMessage(format!("{name} must be {wanted}, not {found}"))
}

/// Percent-encodes a part of an address.
fn quote(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => drop(write!(out, "%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{Builder, Constants};
    use crate::row::Row;
    use crate::schema::Column;
    use arrow_array::{
        ArrayRef, BinaryArray, BinaryViewArray, Int8Array, Int16Array, Int32Array, Int64Array, LargeBinaryArray,
        LargeStringArray, NullArray, StringArray, StringViewArray, UInt8Array, UInt16Array, UInt32Array,
    };
    use std::sync::Arc;

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter(columns).expect("columns of one length")
    }

    fn texts(values: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    /// Reads encoded messages back as columns.
    fn back(messages: &[Vec<u8>], columns: &[Column]) -> RecordBatch {
        let mut builder = Builder::new(columns, Constants::default());
        for message in messages {
            let start = sections::scan(message).expect("a message").head.body_start as usize;
            let (head, body) = message.split_at(start);
            builder.push(&Row { is_amqp10: true, head, body, ..Row::default() });
        }
        builder.finish().expect("a batch")
    }

    #[test]
    fn what_goes_out_comes_back() {
        let columns = vec![
            ("message_id", texts(&[Some("a"), None])),
            ("correlation_id", texts(&[Some("c"), None])),
            ("reply_to", texts(&[Some("r"), None])),
            ("content_type", texts(&[Some("text/plain"), None])),
            ("type", texts(&[Some("order"), None])),
            ("app_id", texts(&[Some("shop"), None])),
            ("user_id", texts(&[Some("guest"), None])),
            ("body", texts(&[Some("grüße"), None])),
        ];
        let sent = batch(columns);
        let names: Vec<Column> = sent.schema().fields().iter().map(|f| Column::named(f.name()).expect("one")).collect();
        let read = back(&encode_messages(&sent, &Mapping::default()).expect("messages"), &names);
        for (name, column) in names.iter().zip(sent.columns()).take(names.len() - 1) {
            assert_eq!(read.column_by_name(name.name()), Some(column), "{}", name.name());
        }
        let kept = encode_messages(&sent, &Mapping::default()).expect("messages");
        let header = sections::scan(&kept[0]).expect("a message").head.header.expect("a header");
        assert!(Header::decode(header.of(&kept[0])).expect("a header").durable, "unless it says otherwise");
        let bodies = Bytes::of(read.column_by_name("body").map(|array| &**array)).expect("binary");
        assert_eq!((bodies.get(0), bodies.get(1)), (Some("grüße".as_bytes()), Some(&b""[..])));
    }

    #[test]
    fn whatever_type_holds_the_same_makes_the_same() {
        let (body, ttl_ms) = (texts(&[Some("a")]), || -> ArrayRef { Arc::new(Int64Array::from(vec![7])) });
        let of = |columns: Vec<(&str, ArrayRef)>| encode_messages(&batch(columns), &Mapping::default());
        let plain = of(vec![("body", Arc::clone(&body)), ("ttl_ms", ttl_ms())]);
        assert!(plain.is_ok(), "{plain:?}");
        let bodies: [ArrayRef; 5] = [
            Arc::new(BinaryArray::from_vec(vec![b"a"])),
            Arc::new(LargeBinaryArray::from_vec(vec![b"a"])),
            Arc::new(BinaryViewArray::from_iter_values([b"a"])),
            Arc::new(LargeStringArray::from(vec!["a"])),
            Arc::new(StringViewArray::from(vec!["a"])),
        ];
        for body in bodies {
            let type_ = body.data_type().clone();
            assert_eq!(of(vec![("body", body), ("ttl_ms", ttl_ms())]), plain, "{type_}");
        }
        let numbers: [ArrayRef; 6] = [
            Arc::new(Int8Array::from(vec![7])),
            Arc::new(Int16Array::from(vec![7])),
            Arc::new(Int32Array::from(vec![7])),
            Arc::new(UInt8Array::from(vec![7])),
            Arc::new(UInt16Array::from(vec![7])),
            Arc::new(UInt32Array::from(vec![7])),
        ];
        for number in numbers {
            let type_ = number.data_type().clone();
            assert_eq!(of(vec![("body", Arc::clone(&body)), ("ttl_ms", number)]), plain, "{type_}");
        }
        for name in ["message_id", "creation_time", "priority", "durable", "headers"] {
            let nothing: ArrayRef = Arc::new(NullArray::new(1));
            assert_eq!(of(vec![("body", Arc::clone(&body)), ("ttl_ms", ttl_ms()), (name, nothing)]), plain, "{name}");
        }
    }

    #[test]
    fn rows_get_ids_addresses_and_headers() {
        let body = || ("body", texts(&[Some("x"), Some("y")]));
        let keys = [("exchange", texts(&[Some("e/x"), None])), ("routing_key", texts(&[Some("a b"), Some("q")]))];
        let sent = batch(keys.into_iter().chain([body()]).collect());
        let mapping = Mapping {
            identity: Some("job:7".to_owned()),
            first: 40,
            addressed: true,
            headers: vec![("run".to_owned(), "r1".to_owned())],
        };
        let messages = encode_messages(&sent, &mapping).expect("messages");
        let to: Vec<String> = messages
            .iter()
            .map(|message| {
                let span = sections::scan(message).expect("a message").head.properties.expect("properties");
                Properties::decode(span.of(message)).expect("properties").to.expect("an address").to_owned()
            })
            .collect();
        assert_eq!(to, ["/exchanges/e%2Fx/a%20b", "/queues/q"]);
        let read = back(&messages, &[Column::MessageId, Column::Headers]);
        let ids = Texts::of(Some(&**read.column(0))).expect("text");
        assert_eq!((ids.get(0), ids.get(1)), (Some("job:7:40"), Some("job:7:41")));
        let headers = Entries::of(Some(&**read.column(1))).expect("a map");
        headers.each(1, |key, value| assert_eq!((key, value), ("run", Some("r1"))));
    }

    #[test]
    fn headers_may_repeat_change_and_be_absent() {
        let sent = batch(vec![("body", texts(&[Some("x")]))]);
        let tenants = [Some("a"), Some("a"), Some("b"), None, Some("b"), Some("a")];
        let messages = tenants.map(|tenant| {
            let headers = tenant.map(|tenant| ("tenant".to_owned(), tenant.to_owned())).into_iter().collect();
            let mapping = Mapping { headers, ..Mapping::default() };
            encode_messages(&sent, &mapping).expect("a message").remove(0)
        });
        let read = back(&messages, &[Column::Headers]);
        let headers = Entries::of(Some(&**read.column(0))).expect("a map");
        for (row, tenant) in tenants.into_iter().enumerate() {
            let mut found = Vec::new();
            headers.each(row, |key, value| found.push((key.to_owned(), value.map(str::to_owned))));
            let wanted: Vec<_> =
                tenant.map(|tenant| ("tenant".to_owned(), Some(tenant.to_owned()))).into_iter().collect();
            assert_eq!(found, wanted, "row {row}");
        }
    }

    #[test]
    fn what_is_no_message_is_said() {
        let bad = |columns: Vec<(&str, ArrayRef)>, addressed: bool| {
            let mapping = Mapping { addressed, ..Mapping::default() };
            encode_messages(&batch(columns), &mapping).expect_err("a mistake").0
        };
        let body = || ("body", texts(&[Some("x")]));
        assert_eq!(bad(vec![("type", texts(&[None]))], false), "there is no column body");
        assert!(bad(vec![body(), ("colour", texts(&[None]))], false).starts_with("a message has no colour, only body"));
        let number = || -> ArrayRef { Arc::new(Int64Array::from(vec![700])) };
        assert_eq!(bad(vec![("body", number())], false), "body must be binary or text, not Int64");
        assert_eq!(bad(vec![body(), ("type", number())], false), "type must be text, not Int64");
        assert_eq!(bad(vec![body(), ("priority", number())], false), "row 0: priority is 0 to 255, not 700");
        assert_eq!(bad(vec![body()], true), "row 0: nothing says where it goes");
    }
}
