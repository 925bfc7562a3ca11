"""The columns of a stream, as Spark and as Arrow name them.

Owns the schema that the log, the source, the lake and every job share, how a user's narrower schema is checked
against it, and the shape of the rows that become messages. Spark types come in, Arrow batches of exactly the wanted
columns go out.
It must never touch a body or a connection.
The schema itself is stated in docs/guides/spark.md, "Columns".
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from weft.model.errors import ConfigError

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "map": MapType(StringType(), StringType()),
    "list": ArrayType(StringType()),
}


def _struct(columns: str) -> StructType:
    """`name type, …` as a schema. Spark's own parser of such text needs a JVM, and executors have none."""
    pairs = (column.split() for column in columns.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


STREAM = _struct(
    "stream string, shard int, offset bigint, enqueue_time timestamp, origin string, exchange string,"
    "routing_key string, message_id string, correlation_id string, reply_to string, content_type string,"
    "content_encoding string, type string, app_id string, user_id string, creation_time timestamp, priority int,"
    "ttl_ms bigint, durable boolean, redelivered boolean, headers map, trace list, body_bytes bigint, body binary"
)
HEADER = "header_"
"""A column `header_tenant` of the user's schema holds the header `tenant`."""

MESSAGE = _struct(
    "exchange string, routing_key string, address string, message_id string, correlation_id string, reply_to string,"
    "content_type string, content_encoding string, type string, app_id string, user_id string,"
    "creation_time timestamp, priority int, ttl_ms bigint, durable boolean, headers map, body binary"
)


def narrow(schema: StructType) -> list[str]:
    """The columns of the log that a user's schema needs, in the log's order; ConfigError for what no log has."""
    wanted = set()
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise ConfigError(f"the schema names {', '.join(twice)} more than once")
    for field in schema.fields:
        if field.name in STREAM.names:
            if field.dataType != STREAM[field.name].dataType:
                raise ConfigError(
                    f"column {field.name} is {STREAM[field.name].dataType.simpleString()},"
                    f" the schema says {field.dataType.simpleString()}"
                )
            wanted.add(field.name)
        elif field.name.startswith(HEADER):
            if field.dataType != StringType():
                raise ConfigError(f"column {field.name} holds a header, so its type is string")
            wanted.add("headers")
        else:
            raise ConfigError(
                f"a stream has no column {field.name}: choose from {', '.join(STREAM.names)}, or {HEADER}NAME"
            )
    return [name for name in STREAM.names if name in wanted]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for a Spark schema, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def shape(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The wanted columns of a batch, promoted headers among them, in the types Spark expects."""
    if batch.schema == schema:
        return batch
    import pyarrow.compute as pc  # a tenth of a second that most readers do not need

    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
        else:
            column = pc.map_lookup(batch.column("headers"), field.name.removeprefix(HEADER), "last")
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def check_message(schema: StructType, *, has_address: bool) -> None:
    """See that rows of this schema can be messages, before anything is sent."""
    problems = []
    names = set(schema.names)
    if "body" not in names:
        problems.append("there is no column body")
    if not has_address and not names & {"address", "routing_key", "exchange"}:
        problems.append("nothing says where they go: a column address, or the option address")
    if "address" in names and names & {"exchange", "routing_key"}:
        problems.append("address stands for exchange and routing_key: leave it or them out")
    for field in schema.fields:
        if field.name not in MESSAGE.names:
            problems.append(f"a message has no {field.name}")
            continue
        expected = MESSAGE[field.name].dataType
        same = field.dataType == expected or (field.name == "body" and field.dataType == StringType())
        if not same and field.dataType.simpleString() != expected.simpleString():
            problems.append(f"{field.name} must be {expected.simpleString()}, not {field.dataType.simpleString()}")
    if problems:
        known = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in MESSAGE)
        raise ConfigError(f"these rows cannot become messages: {'; '.join(problems)} (columns of a message: {known})")


def json_body(fields: str | StructType, column: str = "body") -> Column:
    """A JSON body as a struct of these fields; null where it is none."""
    return F.from_json(F.col(column).cast("string"), fields)
