"""Traffic: how much, how large, how late and by whom, per window of time.

Owns the partial sums of a batch and their union. Rows of streams come in; a row per window, node, tier, address and
type goes out, with counts, rates, sizes and latency percentiles.
It must never keep state between batches: partial sums hold mergeable sketches (KLL for quantiles, HLL for distinct
counts), so any set of them makes the whole, late rows included.
Latency is from the publisher's creation time to the arrival here, where a publisher says when.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

WINDOW = "10 seconds"
KEYS = ("window_start", "window_end", "node", "tier", "exchange", "address", "type")
COLUMNS = (
    "enqueue_time", "creation_time", "origin", "exchange", "routing_key", "type", "app_id", "headers", "body_bytes",
)  # fmt: skip
"""What the job reads: never a body."""

SIZES = (256, 1_024, 4_096, 16_384, 65_536, 262_144)
"""Upper ends of the size classes, in bytes."""


# Columns are spelled in SQL: a batch is planned anew each time, and every object of an expression is a question to the
# JVM, two thousand of them for what stands here.

DIMENSIONS = (
    "coalesce(origin, '') AS node",
    "coalesce(headers['tier'], '') AS tier",
    "coalesce(exchange, '') AS exchange",
    "coalesce(routing_key, '') AS address",
    "coalesce(type, '') AS type",
    "coalesce(app_id, '') AS sender",
)
MEASURES = (
    "coalesce(body_bytes, 0) AS size",
    # Clocks of two machines differ a little; a message never arrives before it was sent. A publisher may set any time,
    # and one that is beyond reckoning must not end the run.
    "IF(enqueue_time < creation_time, 0, try_subtract(unix_micros(enqueue_time), unix_micros(creation_time)))"
    " AS latency_us",
)
_CLASSES = " ".join(f"WHEN coalesce(body_bytes, 0) <= {size} THEN {size}" for size in SIZES)
SIZE_CLASS = f"CASE {_CLASSES} ELSE {SIZES[-1] * 4} END AS size_class"
SUMS = (
    "count(*) AS messages",
    "sum(size) AS bytes",
    "max(size) AS size_max",
    "kll_sketch_agg_bigint(size) AS sizes",
    "count(latency_us) AS timed",
    "max(latency_us) AS latency_max_us",
    "kll_sketch_agg_bigint(latency_us) AS latencies",
    "hll_sketch_agg(sender) AS senders",
)
MERGED_LATENCIES = "kll_merge_agg_bigint(latencies) AS latencies"
MERGED = (
    "sum(messages) AS messages",
    "sum(bytes) AS bytes",
    "max(size_max) AS size_max",
    "kll_merge_agg_bigint(sizes) AS sizes",
    "sum(timed) AS timed",
    "max(latency_max_us) AS latency_max_us",
    MERGED_LATENCIES,
    "hll_union_agg(senders) AS senders",
)


def _quantile(sketch: str, rank: float, counted: str) -> str:
    """Null for a sketch of nothing, where the library would fail."""
    return f"CASE WHEN {counted} > 0 THEN kll_sketch_get_quantile_bigint({sketch}, {rank}D) END"


LATENCIES = tuple(
    f"{_quantile('latencies', rank, 'timed')} / 1000 AS latency_{name}_ms"
    for name, rank in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
)


def _sums(sums: tuple[str, ...]) -> Column:
    """Several sums in one column: one question to the JVM in place of four for each."""
    return F.expr(f"struct({', '.join(sums)}) AS sums")


def partials(rows: DataFrame, window: str = WINDOW) -> DataFrame:
    """The sums of these rows per window, dimensions and class of size, to be merged with those of others."""
    return (
        rows.selectExpr(f"window(enqueue_time, '{window}') AS window", *DIMENSIONS, *MEASURES, SIZE_CLASS)
        .groupBy("window", "node", "tier", "exchange", "address", "type", "size_class")
        .agg(_sums(SUMS))
        .selectExpr("window.start AS window_start", "window.end AS window_end", "* EXCEPT (window, sums)", "sums.*")
    )


def results(parts: DataFrame) -> DataFrame:
    """Partial sums of any number of batches as figures."""
    seconds = "(unix_micros(window_end) - unix_micros(window_start)) / 1e6"
    return (
        parts.groupBy(*KEYS)
        .agg(_sums(MERGED))
        .selectExpr(*KEYS, "sums.*")
        .selectExpr(
            *KEYS,
            "messages",
            "bytes",
            f"messages / ({seconds}) AS messages_per_s",
            f"bytes / ({seconds}) AS bytes_per_s",
            f"{_quantile('sizes', 0.5, 'messages')} AS size_p50",
            f"{_quantile('sizes', 0.99, 'messages')} AS size_p99",
            "size_max",
            *LATENCIES,
            "latency_max_us / 1000 AS latency_max_ms",
            "hll_sketch_estimate(senders) AS senders",
        )
    )


def talkers(rows: DataFrame, top: int = 10) -> DataFrame:
    """Who sends most, by bytes, with each one's share of all."""
    return (
        rows.selectExpr(*DIMENSIONS, *MEASURES)
        .groupBy("sender", "node")
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .withColumn("share", F.col("bytes") / F.sum("bytes").over(Window.partitionBy()))
        .orderBy(F.desc("bytes"), "sender", "node")
        .limit(top)
    )


def size_results(parts: DataFrame) -> DataFrame:
    """Latency percentiles by class of size, of partial sums with a latency."""
    return (
        parts.where("timed > 0")
        .groupBy("size_class")
        .agg(*map(F.expr, ("sum(messages) AS messages", "sum(timed) AS timed", MERGED_LATENCIES)))
        .selectExpr("size_class", "timed AS messages", *LATENCIES)
        .orderBy("size_class")
    )
