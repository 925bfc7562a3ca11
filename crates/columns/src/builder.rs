//! Messages into record batches.
//!
//! Owns the buffers of one batch: those of the columns that were asked for and no others. Rows come in one at a time,
//! a record batch goes out when the caller wants one. Most messages of a stream have the head of the one before but for
//! time and place: such rows are counted, and their values put in at once. It must never touch a body or a head unless
//! a column needs it, nor fail on what a message holds: text that is no UTF-8 is repaired, times beyond reckoning are
//! null. Rule: docs/reference/columns.md.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, MapBuilder, StringBuilder};
use arrow_array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use weft_journal::Stored;

use crate::Batches;
use crate::buffer::{Buffer, Texts};
use crate::facts::{Facts, Headers, Remembered, Text, Trace, Wants};
use crate::likeness::Likeness;
use crate::row::Row;
use crate::schema::{Column, schema};
use crate::{amqp10, amqp091};

/// What is the same in every row.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    pub stream: String,
    pub shard: i32,
    /// The node that messages without a trace come from; empty if it is not known.
    pub origin: String,
}

/// Fills record batches.
pub struct Builder {
    columns: Vec<Column>,
    schema: SchemaRef,
    constants: Constants,
    wants: Wants,
    wants_body: bool,
    /// Bytes of text that every row has besides its own.
    constant_bytes: usize,
    buffers: Vec<Buffer>,
    /// Which of the columns every message has its own value of.
    own: Vec<usize>,
    rows: usize,
    /// Bytes of the rows so far: heads where they are read, bodies where they are copied.
    bytes: usize,
    headers: Remembered,
    scratch: String,
    likeness: Likeness,
    last_is_amqp10: bool,
    last_bytes: usize,
    /// Rows whose heads are like the last one's: what they share is not in the buffers yet.
    again: usize,
}

impl Builder {
    /// For these columns, in this order; each at most once.
    pub fn new(columns: &[Column], constants: Constants) -> Self {
        let wants_body = columns.contains(&Column::Body) || columns.contains(&Column::BodyBytes);
        let constant_bytes = |column: &Column| match column {
            Column::Stream => constants.stream.len(),
            Column::Origin | Column::Trace => constants.origin.len(),
            _ => 0,
        };
        Self {
            columns: columns.to_vec(),
            schema: schema(columns),
            constant_bytes: columns.iter().map(constant_bytes).sum(),
            constants,
            wants: Wants::of(columns),
            wants_body,
            buffers: columns.iter().map(|column| Buffer::new(*column, 0, 0)).collect(),
            own: columns.iter().enumerate().filter(|(_, column)| is_own(**column)).map(|(at, _)| at).collect(),
            rows: 0,
            bytes: 0,
            headers: Remembered::default(),
            scratch: String::new(),
            likeness: Likeness::default(),
            last_is_amqp10: false,
            last_bytes: 0,
            again: 0,
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

    /// Adds a message as the journal keeps it; false if its head is none.
    #[inline]
    pub fn push_stored(&mut self, stored: &Stored<'_>) -> bool {
        if let Some(arrived_us) = self.likeness.arrival(stored.head) {
            for own in self.likeness.own() {
                let buffer = own.column.and_then(|column| self.buffers.get_mut(column));
                if let (Some(Buffer::Text(to)), Some(text)) = (buffer, stored.head.get(own.at.clone())) {
                    to.put_bytes(text);
                }
            }
            self.push_own(stored.position, arrived_us, stored.body);
            self.again += 1;
            return true;
        }
        let Some(row) = Row::stored(stored) else { return false };
        let facts = self.put(&row);
        let texts = [(Column::MessageId, facts.message_id), (Column::CorrelationId, facts.correlation_id)];
        let texts = texts.iter().filter_map(|(column, text)| {
            let at = self.columns.iter().position(|other| other == column);
            Some((at, text.as_ref()?.bytes()?))
        });
        self.likeness.learn(stored, row.head.len(), self.wants.any(), texts);
        true
    }

    /// Adds a message.
    pub fn push(&mut self, row: &Row<'_>) {
        self.put(row);
        self.likeness.forget();
    }

    fn put<'a>(&mut self, row: &Row<'a>) -> Facts<'a> {
        self.settle();
        self.last_is_amqp10 = row.is_amqp10;
        let head_bytes = if self.wants.any() { row.head.len() } else { 0 };
        self.last_bytes = row.exchange.len() + row.routing_key.len() + head_bytes + self.constant_bytes;
        let facts = match (self.wants.any(), row.is_amqp10) {
            (false, _) => Facts::default(),
            (true, false) => amqp091::facts(row.head, self.wants),
            (true, true) => amqp10::facts(row.head, self.wants),
        };
        for (column, buffer) in self.columns.iter().zip(&mut self.buffers) {
            match (column, buffer) {
                (column, _) if is_own(*column) => {}
                (Column::Origin, Buffer::Text(to)) => put_origin(to, &facts.trace, &self.constants.origin),
                (Column::Exchange, Buffer::Text(to)) => to.put_bytes(row.exchange),
                (Column::RoutingKey, Buffer::Text(to)) => to.put_bytes(row.routing_key),
                (Column::CreationTime, Buffer::Time(to)) => to.append_option(facts.created_us),
                (Column::Priority, Buffer::Int32(to)) => to.append_value(i32::from(row.priority)),
                (Column::TtlMs, Buffer::Int64(to)) => to.append_option(row.ttl_ms.map(clamp)),
                (Column::Durable, Buffer::Bool(to)) => to.append_value(row.durable),
                (Column::Redelivered, Buffer::Bool(to)) => to.append_value(row.redelivered),
                (_, Buffer::Headers(to)) => {
                    put_headers(to, &mut self.headers, &facts.headers, &mut self.scratch);
                }
                (_, Buffer::Trace(to)) => put_trace(to, &facts.trace, &self.constants.origin),
                (column, Buffer::Text(to)) => put_text(to, facts.text(*column)),
                _ => {}
            }
        }
        self.push_own(row.offset, row.arrived_us, row.body);
        facts
    }

    /// What every message has of its own; the rest is the last head's.
    #[inline]
    fn push_own(&mut self, offset: u64, arrived_us: u64, body: &[u8]) {
        let body = match (self.wants_body, self.last_is_amqp10) {
            (false, _) => Cow::Borrowed(&[][..]),
            (true, false) => Cow::Borrowed(body),
            (true, true) => amqp10::body(body),
        };
        for &at in &self.own {
            match (self.columns.get(at), self.buffers.get_mut(at)) {
                (Some(Column::Offset), Some(Buffer::Int64(to))) => to.append_value(clamp(offset)),
                (Some(Column::EnqueueTime), Some(Buffer::Time(to))) => to.append_value(clamp(arrived_us)),
                (Some(Column::BodyBytes), Some(Buffer::Int64(to))) => to.append_value(clamp(body.len() as u64)),
                (_, Some(Buffer::Binary(to))) => {
                    self.bytes += body.len();
                    to.append_value(&body);
                }
                _ => {}
            }
        }
        self.rows += 1;
        self.bytes += self.last_bytes;
    }

    /// Puts in what was only counted.
    fn settle(&mut self) {
        let count = std::mem::take(&mut self.again);
        if count == 0 {
            return;
        }
        let own = self.likeness.own();
        for (at, (column, buffer)) in self.columns.iter().zip(&mut self.buffers).enumerate() {
            if !is_own(*column) && own.iter().all(|own| own.column != Some(at)) {
                buffer.again(count, &self.headers, &mut self.scratch);
            }
        }
    }

    /// The rows since the last batch, as one.
    pub fn finish(&mut self) -> Result<RecordBatch, ArrowError> {
        self.settle();
        // The value of the last row is put in again from the buffers, and they go.
        self.likeness.forget();
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

/// Whether messages with the same head have different values here.
fn is_own(column: Column) -> bool {
    matches!(column, Column::Offset | Column::EnqueueTime | Column::BodyBytes | Column::Body)
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
