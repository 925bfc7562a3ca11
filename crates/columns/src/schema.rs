//! The columns there are.
//!
//! Owns their names, order and types. Names come in, columns and an Arrow schema go out; a name that is not one is an
//! error with the names there are. It must never decide which are read: callers ask. Rule: docs/reference/columns.md.

use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

macro_rules! columns {
    ($($variant:ident $name:literal $type:ident,)*) => {
        /// A column of a stream.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Column {
            $(#[doc = $name] $variant,)*
        }

        impl Column {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            pub(crate) fn data_type(self) -> DataType {
                match self {
                    $(Self::$variant => types::$type(),)*
                }
            }
        }
    };
}

columns! {
    Stream "stream" utf8,
    Shard "shard" int32,
    Offset "offset" int64,
    EnqueueTime "enqueue_time" time,
    Origin "origin" utf8,
    Exchange "exchange" utf8,
    RoutingKey "routing_key" utf8,
    MessageId "message_id" utf8,
    CorrelationId "correlation_id" utf8,
    ReplyTo "reply_to" utf8,
    ContentType "content_type" utf8,
    ContentEncoding "content_encoding" utf8,
    Type "type" utf8,
    AppId "app_id" utf8,
    UserId "user_id" utf8,
    CreationTime "creation_time" time,
    Priority "priority" int32,
    TtlMs "ttl_ms" int64,
    Durable "durable" boolean,
    Redelivered "redelivered" boolean,
    Headers "headers" map,
    Trace "trace" list,
    BodyBytes "body_bytes" int64,
    Body "body" binary,
}

/// The zone of all times.
pub(crate) const UTC: &str = "UTC";

mod types {
    use super::*;

    pub(super) fn utf8() -> DataType {
        DataType::Utf8
    }
    pub(super) fn int32() -> DataType {
        DataType::Int32
    }
    pub(super) fn int64() -> DataType {
        DataType::Int64
    }
    pub(super) fn boolean() -> DataType {
        DataType::Boolean
    }
    pub(super) fn binary() -> DataType {
        DataType::Binary
    }
    pub(super) fn time() -> DataType {
        DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from(UTC)))
    }
    pub(super) fn list() -> DataType {
        DataType::List(Arc::new(Field::new("element", DataType::Utf8, true)))
    }
    pub(super) fn map() -> DataType {
        DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entry_fields()), false)), false)
    }
}

/// The fields of a header.
pub(crate) fn entry_fields() -> Fields {
    Fields::from(vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)])
}

/// A name that no column has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownColumn(pub String);

impl fmt::Display for UnknownColumn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Column::ALL.iter().map(|column| column.name()).collect();
        write!(out, "no column {:?}: there are {}", self.0, names.join(", "))
    }
}

impl std::error::Error for UnknownColumn {}

impl Column {
    /// The column of a name.
    pub fn named(name: &str) -> Result<Self, UnknownColumn> {
        let found = Self::ALL.iter().find(|column| column.name() == name);
        found.copied().ok_or_else(|| UnknownColumn(name.to_owned()))
    }
}

/// The schema of some columns, in the order they are asked for. All of them may be null, though some never are: Spark
/// and Parquet see every column so, and take the batches as they come.
pub fn schema(columns: &[Column]) -> SchemaRef {
    let field = |column: &Column| Field::new(column.name(), column.data_type(), true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}
