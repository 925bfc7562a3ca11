//! Columns as they come in, whichever of Arrow's types they have.
//!
//! Owns the few shapes a column of a message may have, each with its narrow and wide types. An array comes in, or none
//! where a batch lacks the column; values by row go out. It must never copy a column, nor panic on a row it does not
//! have. Rule: docs/reference/columns.md, "Back".

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type, UInt32Type,
};
use arrow_array::{
    Array, BinaryArray, BinaryViewArray, BooleanArray, LargeBinaryArray, LargeStringArray, MapArray, StringArray,
    StringViewArray,
};
use arrow_schema::{DataType, TimeUnit};

/// A column of text.
pub(crate) enum Texts<'a> {
    Absent,
    Small(&'a StringArray),
    Large(&'a LargeStringArray),
    View(&'a StringViewArray),
}

impl<'a> Texts<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        let Some(array) = array else { return Some(Self::Absent) };
        match array.data_type() {
            DataType::Null => Some(Self::Absent),
            DataType::Utf8 => array.as_string_opt().map(Self::Small),
            DataType::LargeUtf8 => array.as_string_opt().map(Self::Large),
            DataType::Utf8View => array.as_string_view_opt().map(Self::View),
            _ => None,
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<&'a str> {
        match *self {
            Self::Absent => None,
            Self::Small(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
            Self::Large(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
            Self::View(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
        }
    }
}

/// A column of bytes, or of text taken as bytes.
pub(crate) enum Bytes<'a> {
    Small(&'a BinaryArray),
    Large(&'a LargeBinaryArray),
    View(&'a BinaryViewArray),
    Texts(Texts<'a>),
}

impl<'a> Bytes<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        match array?.data_type() {
            DataType::Binary => array?.as_binary_opt().map(Self::Small),
            DataType::LargeBinary => array?.as_binary_opt().map(Self::Large),
            DataType::BinaryView => array?.as_binary_view_opt().map(Self::View),
            _ => Texts::of(array).map(Self::Texts),
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<&'a [u8]> {
        match self {
            Self::Small(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
            Self::Large(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
            Self::View(array) => (row < array.len() && array.is_valid(row)).then(|| array.value(row)),
            Self::Texts(texts) => texts.get(row).map(str::as_bytes),
        }
    }
}

/// A column of whole numbers of at most 63 bits.
pub(crate) struct Numbers<'a>(Option<&'a dyn Array>);

impl<'a> Numbers<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        match array.map(|array| array.data_type()) {
            None | Some(DataType::Null) => Some(Self(None)),
            Some(DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64) => Some(Self(array)),
            Some(DataType::UInt8 | DataType::UInt16 | DataType::UInt32) => Some(Self(array)),
            Some(_) => None,
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<i64> {
        let array = self.0.filter(|array| row < array.len() && array.is_valid(row))?;
        match array.data_type() {
            DataType::Int8 => array.as_primitive_opt::<Int8Type>().map(|array| array.value(row).into()),
            DataType::Int16 => array.as_primitive_opt::<Int16Type>().map(|array| array.value(row).into()),
            DataType::Int32 => array.as_primitive_opt::<Int32Type>().map(|array| array.value(row).into()),
            DataType::UInt8 => array.as_primitive_opt::<UInt8Type>().map(|array| array.value(row).into()),
            DataType::UInt16 => array.as_primitive_opt::<UInt16Type>().map(|array| array.value(row).into()),
            DataType::UInt32 => array.as_primitive_opt::<UInt32Type>().map(|array| array.value(row).into()),
            _ => array.as_primitive_opt::<Int64Type>().map(|array| array.value(row)),
        }
    }
}

/// A column of times.
pub(crate) struct Moments<'a>(Option<&'a dyn Array>);

impl<'a> Moments<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        match array.map(|array| array.data_type()) {
            None | Some(DataType::Null) => Some(Self(None)),
            Some(DataType::Timestamp(..)) => Some(Self(array)),
            Some(_) => None,
        }
    }

    /// In milliseconds since 1970.
    pub(crate) fn get_ms(&self, row: usize) -> Option<i64> {
        let array = self.0.filter(|array| row < array.len() && array.is_valid(row))?;
        let DataType::Timestamp(unit, _) = array.data_type() else { return None };
        match unit {
            TimeUnit::Second => array.as_primitive_opt::<TimestampSecondType>()?.value(row).checked_mul(1_000),
            TimeUnit::Millisecond => array.as_primitive_opt::<TimestampMillisecondType>().map(|array| array.value(row)),
            TimeUnit::Microsecond => {
                array.as_primitive_opt::<TimestampMicrosecondType>().map(|array| array.value(row).div_euclid(1_000))
            }
            TimeUnit::Nanosecond => {
                array.as_primitive_opt::<TimestampNanosecondType>().map(|array| array.value(row).div_euclid(1_000_000))
            }
        }
    }
}

/// A column of truth values.
pub(crate) struct Flags<'a>(Option<&'a BooleanArray>);

impl<'a> Flags<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        match array.filter(|array| *array.data_type() != DataType::Null) {
            None => Some(Self(None)),
            Some(array) => array.as_boolean_opt().map(|array| Self(Some(array))),
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<bool> {
        self.0.filter(|array| row < array.len() && array.is_valid(row)).map(|array| array.value(row))
    }
}

/// A column of maps from text to text.
pub(crate) struct Entries<'a>(Option<(&'a MapArray, Texts<'a>, Texts<'a>)>);

impl<'a> Entries<'a> {
    pub(crate) fn of(array: Option<&'a dyn Array>) -> Option<Self> {
        let Some(array) = array.filter(|array| *array.data_type() != DataType::Null) else { return Some(Self(None)) };
        let map = array.as_map_opt()?;
        Some(Self(Some((map, Texts::of(Some(&**map.keys()))?, Texts::of(Some(&**map.values()))?))))
    }

    /// Calls `each` with the pairs of a row.
    pub(crate) fn each(&self, row: usize, mut each: impl FnMut(&str, Option<&str>)) {
        let Some((map, keys, values)) = &self.0 else { return };
        if row >= map.len() || map.is_null(row) {
            return;
        }
        let offsets = map.value_offsets();
        let (Some(&start), Some(&end)) = (offsets.get(row), offsets.get(row + 1)) else { return };
        for at in start.max(0) as usize..end.max(0) as usize {
            if let Some(key) = keys.get(at) {
                each(key, values.get(at));
            }
        }
    }
}
