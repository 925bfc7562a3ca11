"""Audit and replay: find messages again, and send a selection of them once more, marked as such.

Owns the search by time, address, id and header, and the rows that a replay sends. Rows of streams, of the lake or
of a node, come in; the chosen rows go out, or messages for the writer.
It must never send by itself or hide what it did: every replayed message says of which message it is the copy and of
which replay it is part, and its id makes a second run of the same replay harmless.
Rate limits are the writer's (`ratePerSecond`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from weft.model.errors import ConfigError
from weft.spark.options import microseconds, split_address

REPLAY, REPLAY_OF = "x-weft-replay", "x-weft-replay-of"


@dataclass(frozen=True)
class Search:
    """What is looked for; what is not given does not matter."""

    since: str | None = None
    until: str | None = None
    address: str | None = None
    """A routing key, with `*` and `?` as in a shell; with `exchange/` before it, of that exchange only."""
    message_id: str | None = None
    correlation_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body_contains: str | None = None


def find(rows: DataFrame, search: Search) -> DataFrame:
    """The rows that fit, in the order of their arrival."""
    return rows.where(_condition(search)).orderBy("enqueue_time", "stream", "shard", "offset")


def _condition(search: Search) -> Column:
    condition = F.lit(True)
    if search.since is not None:
        condition &= F.col("enqueue_time") >= F.timestamp_micros(F.lit(microseconds(search.since, "since")))
    if search.until is not None:
        condition &= F.col("enqueue_time") < F.timestamp_micros(F.lit(microseconds(search.until, "until")))
    if search.address is not None:
        exchange, key = split_address(search.address)
        condition &= F.col("routing_key").rlike(_pattern(key))
        if "/" in search.address:
            condition &= F.col("exchange") == exchange
    if search.message_id is not None:
        condition &= F.col("message_id") == search.message_id
    if search.correlation_id is not None:
        condition &= F.col("correlation_id") == search.correlation_id
    for name, value in search.headers.items():
        condition &= F.col("headers")[name] == value
    if search.body_contains is not None:
        condition &= F.col("body").cast("string").contains(search.body_contains)
    return condition


def _pattern(text: str) -> str:
    special = {"*": ".*", "?": "."}
    inner = "".join(special.get(char, "\\" + char if not char.isalnum() else char) for char in text)
    # A key may hold line ends, too.
    return rf"(?s)\A{inner}\z"


def replay(rows: DataFrame, name: str, *, address: str | None = None) -> DataFrame:
    """Messages for the writer: as they were, but marked; to where they went, or to another address."""
    if not name:
        raise ConfigError("a replay needs a name: it is in every message it sends")
    place = F.concat_ws("/", "stream", "shard", "offset")
    marks = F.create_map(F.lit(REPLAY), F.lit(name), F.lit(REPLAY_OF), F.coalesce("message_id", place))
    headers = F.coalesce("headers", F.create_map().cast("map<string,string>"))
    # Nothing keeps a publisher from giving a key twice, and Spark makes no map of that.
    keys = F.array_except(F.map_keys(headers), F.array(F.lit(REPLAY), F.lit(REPLAY_OF)))
    old = F.map_from_arrays(keys, F.transform(keys, lambda key: F.element_at(headers, key)))
    # Where a replay goes into the stream that it is read from, a second run must not repeat the first one's copies.
    own = F.coalesce(headers[REPLAY] == name, F.lit(False))
    if address is None:
        target = [F.col("exchange"), F.col("routing_key")]
    else:
        exchange, key = split_address(address)
        target = [F.lit(exchange).alias("exchange"), F.lit(key).alias("routing_key")]
    kept = ("correlation_id", "reply_to", "content_type", "content_encoding", "type", "app_id", "creation_time",
            "priority", "durable")  # fmt: skip
    return rows.where(~own).select(
        *target,
        F.concat_ws(":", F.lit("replay"), F.lit(name), place).alias("message_id"),
        *kept,
        F.map_concat(old, marks).alias("headers"),
        "body",
    )
