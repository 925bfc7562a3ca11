//! Messages into record batches.
//!
//! Owns the buffers of one batch: those of the columns that were asked for and no others. Rows come in one at a time,
//! a record batch goes out when the caller wants one. It must never touch a body or a head unless a column needs it,
//! nor fail on what a message holds: text that is no UTF-8 is repaired, times beyond reckoning are null. Rule:
//! docs/reference/columns.md.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Int32Builder, Int64Builder, ListBuilder, MapBuilder, MapFieldNames,
    StringBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator, RecordBatchOptions, StringArray};
use arrow_schema::{ArrowError, DataType, SchemaRef};

use crate::Batches;
use crate::facts::{Facts, Headers, Remembered, Text, Trace, Wants};
use crate::row::Row;
use crate::schema::{Column, UTC, entry_fields, schema};
use crate::{amqp10, amqp091};

/// What is the same in every row.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    pub stream: String,
    pub shard: i32,
    /// The node that messages without a trace come from; empty if it is not known.
    pub origin: String,
}

/// The buffer of a column.
enum Buffer {
    /// Made at the end.
    Constant,
    Text(Texts),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Time(TimestampMicrosecondBuilder),
    Bool(BooleanBuilder),
    Headers(Box<MapBuilder<StringBuilder, StringBuilder>>),
    Trace(Box<ListBuilder<StringBuilder>>),
    Binary(BinaryBuilder),
}

/// Text that most messages lack costs next to nothing: what is absent is only counted until there is some.
struct Texts {
    builder: StringBuilder,
    absent: usize,
}

impl Texts {
    #[inline]
    fn put(&mut self, text: &str) {
        if self.absent > 0 {
            self.builder.append_nulls(std::mem::take(&mut self.absent));
        }
        self.builder.append_value(text);
    }

    #[inline]
    fn put_bytes(&mut self, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.put(text),
            Err(_) => self.put(&String::from_utf8_lossy(bytes)),
        }
    }

    fn finish(mut self) -> StringArray {
        if self.builder.is_empty() {
            return StringArray::new_null(self.absent);
        }
        self.builder.append_nulls(self.absent);
        self.builder.finish()
    }
}

/// Fills record batches.
pub struct Builder {
    columns: Vec<Column>,
    schema: SchemaRef,
    constants: Constants,
    wants: Wants,
    wants_body: bool,
    buffers: Vec<Buffer>,
    rows: usize,
    /// Bytes of the rows so far: heads where they are read, bodies where they are copied.
    bytes: usize,
    headers: Remembered,
    scratch: String,
}

impl Builder {
    /// For these columns, in this order.
    pub fn new(columns: &[Column], constants: Constants) -> Self {
        let wants_body = columns.contains(&Column::Body) || columns.contains(&Column::BodyBytes);
        Self {
            columns: columns.to_vec(),
            schema: schema(columns),
            constants,
            wants: Wants::of(columns),
            wants_body,
            buffers: columns.iter().map(|column| Buffer::new(*column, 0, 0)).collect(),
            rows: 0,
            bytes: 0,
            headers: Remembered::default(),
            scratch: String::new(),
        }
    }

    /// The schema of its batches.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// Rows since the last batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// About the bytes that those rows take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message.
    pub fn push(&mut self, row: &Row<'_>) {
        let facts = match (self.wants.any(), row.is_amqp10) {
            (false, _) => Facts::default(),
            (true, false) => amqp091::facts(row.head, self.wants),
            (true, true) => amqp10::facts(row.head, self.wants),
        };
        let body = match (self.wants_body, row.is_amqp10) {
            (false, _) => Cow::Borrowed(&[][..]),
            (true, false) => Cow::Borrowed(row.body),
            (true, true) => amqp10::body(row.body),
        };
        for (column, buffer) in self.columns.iter().zip(&mut self.buffers) {
            match (column, buffer) {
                (_, Buffer::Constant) => {}
                (Column::Offset, Buffer::Int64(to)) => to.append_value(clamp(row.offset)),
                (Column::EnqueueTime, Buffer::Time(to)) => to.append_value(clamp(row.arrived_us)),
                (Column::Origin, Buffer::Text(to)) => put_origin(to, &facts.trace, &self.constants.origin),
                (Column::Exchange, Buffer::Text(to)) => to.put_bytes(row.exchange),
                (Column::RoutingKey, Buffer::Text(to)) => to.put_bytes(row.routing_key),
                (Column::CreationTime, Buffer::Time(to)) => to.append_option(facts.created_us),
                (Column::Priority, Buffer::Int32(to)) => to.append_value(i32::from(row.priority)),
                (Column::TtlMs, Buffer::Int64(to)) => to.append_option(row.ttl_ms.map(clamp)),
                (Column::Durable, Buffer::Bool(to)) => to.append_value(row.durable),
                (Column::Redelivered, Buffer::Bool(to)) => to.append_value(row.redelivered),
                (Column::BodyBytes, Buffer::Int64(to)) => to.append_value(clamp(body.len() as u64)),
                (_, Buffer::Binary(to)) => {
                    self.bytes += body.len();
                    to.append_value(&body);
                }
                (_, Buffer::Headers(to)) => {
                    put_headers(to, &mut self.headers, &facts.headers, &mut self.scratch);
                }
                (_, Buffer::Trace(to)) => put_trace(to, &facts.trace, &self.constants.origin),
                (column, Buffer::Text(to)) => put_text(to, facts.text(*column)),
                (_, Buffer::Int32(_) | Buffer::Int64(_) | Buffer::Time(_) | Buffer::Bool(_)) => {}
            }
        }
        self.rows += 1;
        self.bytes += row.exchange.len() + row.routing_key.len() + if self.wants.any() { row.head.len() } else { 0 };
    }

    /// The rows since the last batch, as one.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (column, buffer) in self.columns.iter().zip(&mut self.buffers) {
            let next = Buffer::new(*column, buffer.len(), buffer.text_bytes());
            arrays.push(match std::mem::replace(buffer, next) {
                Buffer::Constant => constant(*column, &self.constants, rows),
                buffer => buffer.finish(),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema(), arrays, &options)
    }
}

/// A single batch, where a stream of them is wanted.
pub fn single(batch: RecordBatch) -> Batches {
    let schema = batch.schema();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema))
}

impl Buffer {
    /// An empty buffer with room for as much as the last one held: batches of a stream are alike.
    fn new(column: Column, rows: usize, text_bytes: usize) -> Self {
        match column.data_type() {
            _ if matches!(column, Column::Stream | Column::Shard) => Self::Constant,
            DataType::Utf8 => Self::Text(Texts { builder: StringBuilder::with_capacity(rows, text_bytes), absent: 0 }),
            DataType::Int32 => Self::Int32(Int32Builder::with_capacity(rows)),
            DataType::Int64 => Self::Int64(Int64Builder::with_capacity(rows)),
            DataType::Boolean => Self::Bool(BooleanBuilder::with_capacity(rows)),
            DataType::Timestamp(..) => Self::Time(TimestampMicrosecondBuilder::with_capacity(rows).with_timezone(UTC)),
            DataType::Map(..) => {
                let [key, value] = ["key", "value"].map(str::to_owned);
                let names = MapFieldNames { entry: "entries".to_owned(), key, value };
                let (keys, values) = (StringBuilder::new(), StringBuilder::new());
                let map = MapBuilder::with_capacity(Some(names), keys, values, rows);
                let fields = entry_fields();
                Self::Headers(Box::new(
                    map.with_keys_field(Arc::clone(&fields[0])).with_values_field(Arc::clone(&fields[1])),
                ))
            }
            DataType::List(field) => {
                let list = ListBuilder::with_capacity(StringBuilder::new(), rows);
                Self::Trace(Box::new(list.with_field(field)))
            }
            _ => Self::Binary(BinaryBuilder::with_capacity(rows, text_bytes)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Constant => 0,
            Self::Text(buffer) => buffer.builder.len() + buffer.absent,
            Self::Int32(buffer) => buffer.len(),
            Self::Int64(buffer) => buffer.len(),
            Self::Time(buffer) => buffer.len(),
            Self::Bool(buffer) => buffer.len(),
            Self::Headers(buffer) => buffer.len(),
            Self::Trace(buffer) => buffer.len(),
            Self::Binary(buffer) => buffer.len(),
        }
    }

    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(buffer) => buffer.builder.values_slice().len(),
            Self::Binary(buffer) => buffer.values_slice().len(),
            _ => 0,
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Self::Constant => Arc::new(StringArray::new_null(0)),
            Self::Text(buffer) => Arc::new(buffer.finish()),
            Self::Int32(mut buffer) => Arc::new(buffer.finish()),
            Self::Int64(mut buffer) => Arc::new(buffer.finish()),
            Self::Time(mut buffer) => Arc::new(buffer.finish()),
            Self::Bool(mut buffer) => Arc::new(buffer.finish()),
            Self::Headers(mut buffer) => Arc::new(buffer.finish()),
            Self::Trace(mut buffer) => Arc::new(buffer.finish()),
            Self::Binary(mut buffer) => Arc::new(buffer.finish()),
        }
    }
}

fn constant(column: Column, constants: &Constants, rows: usize) -> ArrayRef {
    match column {
        Column::Shard => Arc::new(Int32Array::from_value(constants.shard, rows)),
        _ => {
            let mut texts = StringBuilder::with_capacity(rows, rows * constants.stream.len());
            texts.append_value_n(&constants.stream, rows);
            Arc::new(texts.finish())
        }
    }
}

/// Numbers beyond what a column can hold are the largest it can.
#[inline]
fn clamp(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[inline]
fn put_text(to: &mut Texts, text: Option<&Text<'_>>) {
    match text {
        None => to.absent += 1,
        Some(Text::Bytes(bytes)) => to.put_bytes(bytes),
        Some(Text::Str(text)) => to.put(text),
        Some(Text::Made(text)) => to.put(text),
    }
}

fn put_origin(to: &mut Texts, trace: &Trace<'_>, own: &str) {
    match trace.nodes().next() {
        Some(origin) => to.put(origin),
        None if own.is_empty() => to.absent += 1,
        None => to.put(own),
    }
}

fn put_headers(
    to: &mut MapBuilder<StringBuilder, StringBuilder>,
    last: &mut Remembered,
    headers: &Headers<'_>,
    scratch: &mut String,
) {
    let (keys, values) = to.entries();
    let there = last.each(headers, scratch, |key, value| {
        keys.append_value(key);
        values.append_option(value);
    });
    // Keys and values are always added in pairs, which is all that can go wrong here.
    let _ = to.append(there);
}

/// Each node adds itself when it forwards a message, so the last one, which did not, is added here.
fn put_trace(to: &mut ListBuilder<StringBuilder>, trace: &Trace<'_>, own: &str) {
    if !trace.is_absent() {
        trace.nodes().for_each(|node| to.values().append_value(node));
        if !own.is_empty() {
            to.values().append_value(own);
        }
    }
    to.append(!trace.is_absent());
}
