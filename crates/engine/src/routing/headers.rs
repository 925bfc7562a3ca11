//! Headers matching: whether a message's headers satisfy the arguments a binding was made with.
//!
//! Owns the rule of one binding. The wanted pairs come in once, then for each message a way to look up its
//! headers; yes or no goes out. It must never see an encoding: its caller turns arguments into `Field` and
//! headers into `FieldRef`, so that both protocols share it. Rule: AMQP 0-9-1 section 3.1.3.4 with RabbitMQ's
//! reading: a void argument asks only for presence, values compare within one class of types (integers of any
//! width, floats of any width), and `x-` headers count only in the `-with-x` modes.

use weft_wire::amqp091::table::{Array, ArrayWriter, Table, TableWriter, Value};

/// How many of the wanted pairs a message must have, the binding argument `x-match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every pair whose name does not begin with `x-`.
    All,
    /// At least one pair whose name does not begin with `x-`.
    Any,
    /// Every pair.
    AllWithX,
    /// At least one pair.
    AnyWithX,
}

impl Mode {
    fn counts(self, name: &[u8]) -> bool {
        name != b"x-match" && (matches!(self, Self::AllWithX | Self::AnyWithX) || !name.starts_with(b"x-"))
    }
}

/// A wanted value, as the binding keeps it.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// A void argument: the header only has to be there.
    Exists,
    /// A boolean.
    Bool(bool),
    /// A signed integer of any width.
    Int(i64),
    /// An unsigned integer of any width; equal to an [`Field::Int`] of the same value.
    Uint(u64),
    /// A float of either width.
    Float(f64),
    /// Text.
    Str(Box<[u8]>),
    /// Binary data, never equal to text.
    Bytes(Box<[u8]>),
    /// A point in time, in the unit of the protocol it came by.
    Timestamp(u64),
    /// Anything else, as its encoding including the type code: equal when encoded alike.
    Other(Box<[u8]>),
}

/// A message's value, borrowed from the message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldRef<'m> {
    /// A header without a value: there, but equal to nothing.
    Void,
    /// See [`Field::Bool`].
    Bool(bool),
    /// See [`Field::Int`].
    Int(i64),
    /// See [`Field::Uint`].
    Uint(u64),
    /// See [`Field::Float`].
    Float(f64),
    /// See [`Field::Str`].
    Str(&'m [u8]),
    /// See [`Field::Bytes`].
    Bytes(&'m [u8]),
    /// See [`Field::Timestamp`].
    Timestamp(u64),
    /// See [`Field::Other`].
    Other(&'m [u8]),
    /// A table or an array: equal to one with the same content, however its numbers are encoded.
    Nested(Value<'m>),
}

impl FieldRef<'_> {
    /// The value as a binding would ask for it.
    pub fn to_owned(self) -> Field {
        match self {
            Self::Void => Field::Exists,
            Self::Bool(value) => Field::Bool(value),
            Self::Int(value) => Field::Int(value),
            Self::Uint(value) => Field::Uint(value),
            Self::Float(value) => Field::Float(value),
            Self::Str(text) => Field::Str(text.into()),
            Self::Bytes(bytes) => Field::Bytes(bytes.into()),
            Self::Timestamp(time) => Field::Timestamp(time),
            Self::Other(encoded) => Field::Other(encoded.into()),
            Self::Nested(value) => Field::Other(canonical(value).into_boxed_slice()),
        }
    }
}

impl Field {
    fn accepts(&self, value: FieldRef<'_>) -> bool {
        match (self, &value) {
            (Self::Exists, _) => true,
            (Self::Bool(wanted), FieldRef::Bool(got)) => wanted == got,
            (Self::Int(wanted), FieldRef::Int(got)) => wanted == got,
            (Self::Uint(wanted), FieldRef::Uint(got)) => wanted == got,
            (Self::Int(signed), FieldRef::Uint(unsigned)) | (Self::Uint(unsigned), FieldRef::Int(signed)) => {
                u64::try_from(*signed) == Ok(*unsigned)
            }
            (Self::Float(wanted), FieldRef::Float(got)) => wanted == got,
            (Self::Timestamp(wanted), FieldRef::Timestamp(got)) => wanted == got,
            (Self::Str(wanted), FieldRef::Str(got))
            | (Self::Bytes(wanted), FieldRef::Bytes(got))
            | (Self::Other(wanted), FieldRef::Other(got)) => **wanted == **got,
            (Self::Other(wanted), FieldRef::Nested(value)) => **wanted == *canonical(*value),
            _ => false,
        }
    }
}

/// One encoding for values that say the same: keys sorted, integers as 64 bits, floats as doubles.
fn canonical(value: Value<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    TableWriter::write(&mut out, |writer| match value {
        Value::Table(table) => canonical_table(writer, table),
        Value::Array(array) => writer.array(b"", |writer| canonical_array(writer, array)),
        other => writer.value(b"", widest(other)),
    });
    out
}

fn canonical_table(writer: &mut TableWriter<'_>, table: Table<'_>) {
    let mut pairs: Vec<_> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| *key);
    for (key, value) in pairs {
        match value {
            Value::Table(inner) => writer.table(key, |writer| canonical_table(writer, inner)),
            Value::Array(inner) => writer.array(key, |writer| canonical_array(writer, inner)),
            other => writer.value(key, widest(other)),
        }
    }
}

fn canonical_array(writer: &mut ArrayWriter<'_>, array: Array<'_>) {
    for value in array.iter() {
        match value {
            Value::Table(inner) => writer.table(|writer| canonical_table(writer, inner)),
            Value::Array(inner) => writer.array(|writer| canonical_array(writer, inner)),
            other => writer.value(widest(other)),
        }
    }
}

fn widest(value: Value<'_>) -> Value<'_> {
    match value {
        Value::F32(number) => Value::F64(f64::from(number)),
        Value::Decimal { scale, value } => Value::F64(f64::from(value) / 10_f64.powi(i32::from(scale))),
        other => other.as_i64().map_or(other, Value::I64),
    }
}

/// The arguments of one binding to a headers exchange.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadersMatch {
    /// How many of the pairs must be there.
    pub mode: Mode,
    /// Names and wanted values, including any that do not count in this mode.
    pub pairs: Vec<(Box<[u8]>, Field)>,
}

impl HeadersMatch {
    /// Whether the message whose headers `lookup` reads fits. If no pair counts, "all" fits and "any" does not.
    pub fn matches<'m>(&self, lookup: &mut impl FnMut(&[u8]) -> Option<FieldRef<'m>>) -> bool {
        let mut counting = self.pairs.iter().filter(|(name, _)| self.mode.counts(name));
        let has = |(name, wanted): &(Box<[u8]>, Field)| lookup(name).is_some_and(|value| wanted.accepts(value));
        match self.mode {
            Mode::All | Mode::AllWithX => counting.all(has),
            Mode::Any | Mode::AnyWithX => counting.any(has),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Box<[u8]> {
        value.as_bytes().into()
    }

    fn fits(mode: Mode, wanted: &[(&str, Field)], headers: &[(&str, FieldRef<'_>)]) -> bool {
        let pairs = wanted.iter().map(|(name, field)| (text(name), field.clone())).collect();
        HeadersMatch { mode, pairs }.matches(&mut |name| {
            let found = headers.iter().find(|(header, _)| header.as_bytes() == name);
            found.map(|(_, value)| *value)
        })
    }

    #[test]
    fn all_wants_every_pair_and_any_wants_one() {
        let wanted = [("a", Field::Int(1)), ("b", Field::Str(text("two")))];
        let both = [("a", FieldRef::Int(1)), ("b", FieldRef::Str(b"two")), ("c", FieldRef::Bool(true))];
        let one = [("a", FieldRef::Int(1)), ("b", FieldRef::Str(b"three"))];
        let none = [("a", FieldRef::Int(2))];
        for (headers, all, any) in [(&both[..], true, true), (&one[..], false, true), (&none[..], false, false)] {
            assert_eq!(fits(Mode::All, &wanted, headers), all);
            assert_eq!(fits(Mode::AllWithX, &wanted, headers), all);
            assert_eq!(fits(Mode::Any, &wanted, headers), any);
            assert_eq!(fits(Mode::AnyWithX, &wanted, headers), any);
        }
    }

    #[test]
    fn x_headers_count_only_in_the_modes_that_say_so() {
        let wanted = [("x-tenant", Field::Int(1)), ("x-match", Field::Str(text("all")))];
        let tenant = [("x-tenant", FieldRef::Int(1))];
        assert!(fits(Mode::All, &wanted, &[]), "nothing left to ask for");
        assert!(!fits(Mode::Any, &wanted, &tenant), "nothing left that could fit");
        assert!(fits(Mode::AllWithX, &wanted, &tenant));
        assert!(!fits(Mode::AllWithX, &wanted, &[]));
        assert!(fits(Mode::AnyWithX, &wanted, &tenant));
        assert!(!fits(Mode::AnyWithX, &wanted, &[("x-match", FieldRef::Str(b"all"))]), "x-match never counts");
    }

    #[test]
    fn no_pairs_means_everything_for_all_and_nothing_for_any() {
        let headers = [("a", FieldRef::Int(1))];
        assert!(fits(Mode::All, &[], &headers));
        assert!(fits(Mode::AllWithX, &[], &headers));
        assert!(!fits(Mode::Any, &[], &headers));
        assert!(!fits(Mode::AnyWithX, &[], &headers));
    }

    #[test]
    fn a_void_argument_asks_for_presence_only() {
        let wanted = [("a", Field::Exists)];
        assert!(fits(Mode::All, &wanted, &[("a", FieldRef::Other(b"x"))]));
        assert!(fits(Mode::All, &wanted, &[("a", FieldRef::Void)]));
        assert_eq!(FieldRef::Void.to_owned(), Field::Exists);
        assert!(!fits(Mode::All, &wanted, &[("b", FieldRef::Int(1))]));
    }

    #[test]
    fn integers_compare_by_value_and_other_classes_stay_apart() {
        let equal = [
            (Field::Int(5), FieldRef::Uint(5)),
            (Field::Uint(5), FieldRef::Int(5)),
            (Field::Uint(u64::MAX), FieldRef::Uint(u64::MAX)),
            (Field::Int(-1), FieldRef::Int(-1)),
            (Field::Bool(false), FieldRef::Bool(false)),
            (Field::Float(0.5), FieldRef::Float(0.5)),
            (Field::Str(text("a")), FieldRef::Str(b"a")),
            (Field::Bytes(text("a")), FieldRef::Bytes(b"a")),
            (Field::Timestamp(9), FieldRef::Timestamp(9)),
            (Field::Other(text("D1")), FieldRef::Other(b"D1")),
        ];
        for (field, value) in equal {
            assert!(field.accepts(value), "{field:?} {value:?}");
            assert!(value.to_owned().accepts(value), "{value:?} asked for as itself");
        }
        let different = [
            (Field::Int(-1), FieldRef::Uint(u64::MAX)),
            (Field::Uint(u64::MAX), FieldRef::Int(-1)),
            (Field::Int(1), FieldRef::Int(2)),
            (Field::Uint(1), FieldRef::Uint(2)),
            (Field::Int(1), FieldRef::Float(1.0)),
            (Field::Int(1), FieldRef::Bool(true)),
            (Field::Int(1), FieldRef::Str(b"1")),
            (Field::Bool(true), FieldRef::Bool(false)),
            (Field::Float(f64::NAN), FieldRef::Float(f64::NAN)),
            (Field::Str(text("a")), FieldRef::Bytes(b"a")),
            (Field::Str(text("a")), FieldRef::Str(b"ab")),
            (Field::Timestamp(9), FieldRef::Uint(9)),
            (Field::Timestamp(9), FieldRef::Timestamp(8)),
            (Field::Other(text("D1")), FieldRef::Other(b"D2")),
            (Field::Str(text("")), FieldRef::Void),
        ];
        for (field, value) in different {
            assert!(!field.accepts(value), "{field:?} {value:?}");
        }
    }
}
