//! The buffers of a batch, one for each column.
//!
//! Owns `Buffer`: what the values of a column gather in, and how the value of the last row is put in again for rows
//! that have the same one. Values come in one at a time or many at once, an array goes out. It must never know a
//! message or where a value came from. Rule: docs/reference/columns.md.

use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BinaryBuilder, BooleanBuilder, Int32Builder, Int64Builder, ListBuilder, MapBuilder, MapFieldNames,
    PrimitiveBuilder, StringBuilder, TimestampMicrosecondBuilder,
};
use arrow_array::types::ArrowPrimitiveType;
use arrow_array::{ArrayRef, StringArray};
use arrow_schema::DataType;

use crate::facts::Remembered;
use crate::schema::{Column, UTC, entry_fields};

/// The buffer of a column.
pub(crate) enum Buffer {
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
pub(crate) struct Texts {
    builder: StringBuilder,
    pub(crate) absent: usize,
}

impl Texts {
    #[inline]
    pub(crate) fn put(&mut self, text: &str) {
        if self.absent > 0 {
            self.builder.append_nulls(std::mem::take(&mut self.absent));
        }
        self.builder.append_value(text);
    }

    #[inline]
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.put(text),
            Err(_) => self.put(&String::from_utf8_lossy(bytes)),
        }
    }

    fn again(&mut self, count: usize, scratch: &mut String) {
        match last_text(&self.builder) {
            Some(text) if self.absent == 0 => {
                scratch.clear();
                scratch.push_str(text);
                self.builder.append_value_n(scratch, count);
            }
            _ => self.absent += count,
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

impl Buffer {
    /// An empty buffer with room for as much as the last one held: batches of a stream are alike.
    pub(crate) fn new(column: Column, rows: usize, text_bytes: usize) -> Self {
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

    /// As many more rows with the value of the last one; `headers` are those that were put in last.
    pub(crate) fn again(&mut self, count: usize, headers: &Remembered, scratch: &mut String) {
        match self {
            // What every message has of its own is never the last one's.
            Self::Constant | Self::Binary(_) => {}
            Self::Text(buffer) => buffer.again(count, scratch),
            Self::Int32(buffer) => number_again(buffer, count),
            Self::Int64(buffer) => number_again(buffer, count),
            Self::Time(buffer) => number_again(buffer, count),
            Self::Bool(buffer) => {
                let last = buffer.len().checked_sub(1).is_some_and(|at| bit(buffer.values_slice(), at));
                buffer.append_n(count, last);
            }
            // Keys and values are always added in pairs, which is all that can go wrong here.
            Self::Headers(buffer) if !is_last_valid(buffer.validity_slice(), buffer.len()) => {
                let _ = buffer.append_nulls(count);
            }
            Self::Headers(buffer) => {
                for _ in 0..count {
                    let (keys, values) = buffer.entries();
                    headers.again(|key, value| {
                        keys.append_value(key);
                        values.append_option(value);
                    });
                    let _ = buffer.append(true);
                }
            }
            Self::Trace(buffer) if !is_last_valid(buffer.validity_slice(), buffer.len()) => buffer.append_nulls(count),
            Self::Trace(buffer) => trace_again(buffer, count),
        }
    }

    pub(crate) fn len(&self) -> usize {
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

    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(buffer) => buffer.builder.values_slice().len(),
            Self::Binary(buffer) => buffer.values_slice().len(),
            _ => 0,
        }
    }

    pub(crate) fn finish(self) -> ArrayRef {
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

fn number_again<T: ArrowPrimitiveType>(buffer: &mut PrimitiveBuilder<T>, count: usize) {
    match buffer.values_slice().last().copied() {
        Some(last) if is_last_valid(buffer.validity_slice(), buffer.len()) => buffer.append_value_n(last, count),
        _ => buffer.append_nulls(count),
    }
}

fn trace_again(buffer: &mut ListBuilder<StringBuilder>, count: usize) {
    let offsets = buffer.offsets_slice();
    let nodes = match offsets {
        [.., start, end] => (*end - *start).max(0) as usize,
        _ => 0,
    };
    let values = buffer.values_ref();
    let names: Vec<String> =
        (0..nodes).rev().map(|back| text_from_end(values, back).unwrap_or_default().into()).collect();
    for _ in 0..count {
        names.iter().for_each(|name| buffer.values().append_value(name));
        buffer.append(true);
    }
}

fn last_text(builder: &StringBuilder) -> Option<&str> {
    text_from_end(builder, 0)
}

/// The value that stands so many before the last one.
fn text_from_end(builder: &StringBuilder, back: usize) -> Option<&str> {
    let offsets = builder.offsets_slice();
    let end = offsets.len().checked_sub(back + 1)?;
    let (start, end) = (offsets.get(end.checked_sub(1)?)?, offsets.get(end)?);
    std::str::from_utf8(builder.values_slice().get(*start as usize..*end as usize)?).ok()
}

/// Whether the last of so many values is there; without a bitmap all are.
fn is_last_valid(validity: Option<&[u8]>, len: usize) -> bool {
    validity.is_none_or(|bits| len.checked_sub(1).is_some_and(|at| bit(bits, at)))
}

fn bit(bits: &[u8], at: usize) -> bool {
    bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}
