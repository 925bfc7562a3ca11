//! Single values between the two type systems.
//!
//! Owns the correspondence of 0-9-1 field values and 1.0 values, nested ones included. Values come in borrowed and
//! are written straight into the other encoding. It must never fail: what has no counterpart becomes the nearest
//! thing that does, or nothing. Rules: docs/reference/mapping.md, table of types.

use weft_wire::amqp10::{Compound, Value as Value10, writer};
use weft_wire::amqp091::table::{ArrayWriter, Table, TableWriter, Value as Value091};

/// Nesting that survives a conversion; anything deeper becomes nothing.
const DEPTH_MAX: u32 = 16;
/// Longest text that is not taken for binary.
const TEXT_BYTES_MAX: usize = 255;

/// Text of a 0-9-1 string, if it is some.
pub(super) fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.len() <= TEXT_BYTES_MAX && !text.contains('\0'))
}

/// Text that can stand as a symbol.
pub(super) fn symbol(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.is_ascii())
}

/// Appends a 0-9-1 value as 1.0 writes it.
pub(super) fn put_as_10(out: &mut Vec<u8>, value: Value091<'_>) {
    put_as_10_within(out, value, DEPTH_MAX);
}

fn put_as_10_within(out: &mut Vec<u8>, value: Value091<'_>, depth: u32) {
    let plain = match value {
        Value091::Bool(yes) => Value10::Bool(yes),
        Value091::I8(number) => Value10::Byte(number),
        Value091::U8(number) => Value10::Ubyte(number),
        Value091::I16(number) => Value10::Short(number),
        Value091::U16(number) => Value10::Ushort(number),
        Value091::I32(number) => Value10::Int(number),
        Value091::U32(number) => Value10::Uint(number),
        Value091::I64(number) => Value10::Long(number),
        Value091::F32(number) => Value10::Float(number),
        Value091::F64(number) => Value10::Double(number),
        Value091::Decimal { scale, value } => Value10::Double(f64::from(value) / 10_f64.powi(scale.into())),
        Value091::LongString(bytes) => text(bytes).map_or(Value10::Binary(bytes), Value10::String),
        Value091::Bytes(bytes) => Value10::Binary(bytes),
        Value091::Timestamp(seconds) => Value10::Timestamp((seconds as i64).saturating_mul(1_000)),
        Value091::Void => Value10::Null,
        Value091::Array(_) | Value091::Table(_) if depth == 0 => Value10::Null,
        Value091::Array(array) => {
            let mut list = Compound::list(out);
            array.iter().for_each(|item| list.item(|out| put_as_10_within(out, item, depth - 1)));
            return list.finish();
        }
        Value091::Table(table) => {
            let mut map = Compound::map(out);
            for (key, value) in table.iter() {
                let Some(key) = symbol(key) else { continue };
                map.value(&Value10::Symbol(key));
                map.item(|out| put_as_10_within(out, value, depth - 1));
            }
            return map.finish();
        }
    };
    writer::put_value(out, &plain);
}

/// Adds a 1.0 value to a table, as 0-9-1 writes it.
pub(super) fn put_as_091(table: &mut TableWriter<'_>, key: &[u8], value: Value10<'_>) {
    with_091(value, DEPTH_MAX, &mut |value| table.value(key, value));
}

fn push_as_091(array: &mut ArrayWriter<'_>, value: Value10<'_>, depth: u32) {
    with_091(value, depth, &mut |value| array.value(value));
}

/// Calls `each` with the 0-9-1 form of a value.
fn with_091(value: Value10<'_>, depth: u32, each: &mut dyn FnMut(Value091<'_>)) {
    each(match value {
        Value10::Null | Value10::Decimal32(_) | Value10::Decimal64(_) | Value10::Decimal128(_) => Value091::Void,
        Value10::Bool(yes) => Value091::Bool(yes),
        Value10::Byte(number) => Value091::I8(number),
        Value10::Ubyte(number) => Value091::U8(number),
        Value10::Short(number) => Value091::I16(number),
        Value10::Ushort(number) => Value091::U16(number),
        Value10::Int(number) => Value091::I32(number),
        Value10::Uint(number) => Value091::U32(number),
        Value10::Long(number) => Value091::I64(number),
        Value10::Ulong(number) => match i64::try_from(number) {
            Ok(number) => Value091::I64(number),
            Err(_) => return each(Value091::LongString(number.to_string().as_bytes())),
        },
        Value10::Float(number) => Value091::F32(number),
        Value10::Double(number) => Value091::F64(number),
        Value10::Timestamp(ms) => Value091::Timestamp((ms / 1_000).max(0) as u64),
        Value10::Binary(bytes) => Value091::Bytes(bytes),
        Value10::String(text) | Value10::Symbol(text) => Value091::LongString(text.as_bytes()),
        Value10::Char(c) => return each(Value091::LongString(c.encode_utf8(&mut [0; 4]).as_bytes())),
        Value10::Uuid(uuid) => return each(Value091::LongString(super::uuid_text(&uuid).as_bytes())),
        Value10::List(_) | Value10::Array(_) | Value10::Map(_) | Value10::Described(_) if depth == 0 => Value091::Void,
        Value10::Described(described) => return with_091(described.value(), depth - 1, each),
        Value10::List(list) => return with_array(list.iter(), depth, each),
        Value10::Array(array) => return with_array(array.iter(), depth, each),
        Value10::Map(map) => {
            let mut bytes = Vec::new();
            TableWriter::write(&mut bytes, |table| {
                for (key, value) in map.iter() {
                    if let Some(key) = key.as_str().filter(|key| key.len() <= TEXT_BYTES_MAX) {
                        with_091(value, depth - 1, &mut |value| table.value(key.as_bytes(), value));
                    }
                }
            });
            return each(Value091::Table(Table::trusted(bytes.get(4..).unwrap_or_default())));
        }
    });
}

/// An array can only be written inside a table, so it is read back from one.
fn with_array<'a>(items: impl Iterator<Item = Value10<'a>>, depth: u32, each: &mut dyn FnMut(Value091<'_>)) {
    let mut bytes = Vec::new();
    TableWriter::write(&mut bytes, |table| {
        table.array(b"", |array| items.for_each(|item| push_as_091(array, item, depth - 1)));
    });
    if let Some(array) = Table::trusted(bytes.get(4..).unwrap_or_default()).get(b"") {
        each(array);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::amqp10::{MapBuf, Reader};

    fn there_and_back(value: Value10<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        TableWriter::write(&mut bytes, |table| put_as_091(table, b"k", value));
        let table = Table::parse(&bytes[4..]).expect("a table");
        let mut out = Vec::new();
        put_as_10(&mut out, table.get(b"k").expect("a value"));
        out
    }

    #[test]
    fn what_both_type_systems_have_survives_both_ways() {
        let mut list = Vec::new();
        let mut inner = Compound::list(&mut list);
        inner.value(&Value10::String("a"));
        inner.item(|out| {
            let mut deeper = Compound::list(out);
            deeper.value(&Value10::Long(1_000));
            deeper.finish();
        });
        inner.finish();
        let list = Reader::new(&list).read().expect("a list");
        let mut map = MapBuf::new();
        map.put(Value10::Symbol("list"), list).put(Value10::Symbol("none"), Value10::Null);
        let values = [
            Value10::Bool(true),
            Value10::Byte(-3),
            Value10::Ubyte(200),
            Value10::Short(-300),
            Value10::Ushort(60_000),
            Value10::Int(-70_000),
            Value10::Uint(4_000_000_000),
            Value10::Long(i64::MIN),
            Value10::Float(1.5),
            Value10::Double(-2.25),
            Value10::Timestamp(1_700_000_000_000),
            Value10::Binary(b"\xff\x00"),
            Value10::String("h\u{e9}"),
            list,
            Value10::Map(map.as_map()),
        ];
        for value in values {
            let back = there_and_back(value);
            assert_eq!(Reader::new(&back).read(), Ok(value));
        }
    }

    #[test]
    fn what_only_one_has_becomes_the_nearest_thing() {
        let as_10 = |bytes: &[u8]| format!("{:?}", Reader::new(bytes).read().expect("a value"));
        assert_eq!(as_10(&there_and_back(Value10::Ulong(7))), "Long(7)");
        assert_eq!(as_10(&there_and_back(Value10::Ulong(u64::MAX))), "String(\"18446744073709551615\")");
        assert_eq!(as_10(&there_and_back(Value10::Symbol("s"))), "String(\"s\")");
        assert_eq!(as_10(&there_and_back(Value10::Char('x'))), "String(\"x\")");
        assert_eq!(as_10(&there_and_back(Value10::Decimal32(1))), "Null");
        let mut out = Vec::new();
        put_as_10(&mut out, Value091::Decimal { scale: 2, value: 314 });
        assert_eq!(as_10(&out), "Double(3.14)");
    }

    #[test]
    fn nesting_ends_before_a_reader_would_refuse_it() {
        let mut nested = vec![0x45];
        for _ in 0..30 {
            let mut outer = Vec::new();
            let mut list = Compound::list(&mut outer);
            list.item(|out| out.extend_from_slice(&nested));
            list.finish();
            nested = outer;
        }
        let value = Reader::new(&nested).read().expect("within the limit of 1.0");
        assert!(Reader::new(&there_and_back(value)).read().is_ok());
    }
}
