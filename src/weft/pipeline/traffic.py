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


def partials(rows: DataFrame, window: str = WINDOW) -> DataFrame:
    """The sums of these rows, to be merged with those of others."""
    return (
        rows.select(F.window("enqueue_time", window).alias("window"), *_dimensions(), *_measures())
        .groupBy("window", "node", "tier", "exchange", "address", "type")
        .agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.max("size").alias("size_max"),
            F.kll_sketch_agg_bigint("size").alias("sizes"),
            F.count("latency_us").alias("timed"),
            F.max("latency_us").alias("latency_max_us"),
            F.kll_sketch_agg_bigint("latency_us").alias("latencies"),
            F.hll_sketch_agg("sender").alias("senders"),
        )
        .select(F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"), "*")
        .drop("window")
    )


def results(parts: DataFrame) -> DataFrame:
    """Partial sums of any number of batches as figures."""
    seconds = F.unix_micros("window_end") / 1e6 - F.unix_micros("window_start") / 1e6
    merged = parts.groupBy(*KEYS).agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.max("size_max").alias("size_max"),
        F.kll_merge_agg_bigint("sizes").alias("sizes"),
        F.sum("timed").alias("timed"),
        F.max("latency_max_us").alias("latency_max_us"),
        F.kll_merge_agg_bigint("latencies").alias("latencies"),
        F.hll_union_agg("senders").alias("senders"),
    )
    return merged.select(
        *KEYS,
        "messages",
        "bytes",
        (F.col("messages") / seconds).alias("messages_per_s"),
        (F.col("bytes") / seconds).alias("bytes_per_s"),
        _quantile("sizes", 0.5, "messages").alias("size_p50"),
        _quantile("sizes", 0.99, "messages").alias("size_p99"),
        "size_max",
        *[
            (_quantile("latencies", rank, "timed") / 1000).alias(f"latency_{name}_ms")
            for name, rank in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        ],
        (F.col("latency_max_us") / 1000).alias("latency_max_ms"),
        F.hll_sketch_estimate("senders").alias("senders"),
    )


def talkers(rows: DataFrame, top: int = 10) -> DataFrame:
    """Who sends most, by bytes, with each one's share of all."""
    whole = Window.partitionBy()
    return (
        rows.select(*_dimensions(), *_measures())
        .groupBy("sender", "node")
        .agg(F.count("*").alias("messages"), F.sum("size").alias("bytes"))
        .withColumn("share", F.col("bytes") / F.sum("bytes").over(whole))
        .orderBy(F.desc("bytes"), "sender", "node")
        .limit(top)
    )


def by_size(rows: DataFrame) -> DataFrame:
    """Latency by size of message: partial sums, merged by `size_results`."""
    return (
        rows.select(*_measures(), _size_class().alias("size_class"))
        .where("latency_us IS NOT NULL")
        .groupBy("size_class")
        .agg(F.count("*").alias("messages"), F.kll_sketch_agg_bigint("latency_us").alias("latencies"))
    )


def size_results(parts: DataFrame) -> DataFrame:
    """Latency percentiles by size class."""
    merged = parts.groupBy("size_class").agg(
        F.sum("messages").alias("messages"), F.kll_merge_agg_bigint("latencies").alias("latencies")
    )
    figures = [
        (_quantile("latencies", rank, "messages") / 1000).alias(f"latency_{name}_ms")
        for name, rank in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    ]
    return merged.select("size_class", "messages", *figures).orderBy("size_class")


def _dimensions() -> list[Column]:
    absent = F.lit("")
    return [
        F.coalesce("origin", absent).alias("node"),
        F.coalesce(F.col("headers")["tier"], absent).alias("tier"),
        F.coalesce("exchange", absent).alias("exchange"),
        F.coalesce("routing_key", absent).alias("address"),
        F.coalesce("type", absent).alias("type"),
        F.coalesce("app_id", absent).alias("sender"),
    ]


def _measures() -> list[Column]:
    latency = F.unix_micros("enqueue_time") - F.unix_micros("creation_time")
    return [
        F.coalesce("body_bytes", F.lit(0)).alias("size"),
        # Clocks of two machines differ a little; a message never arrives before it was sent.
        F.when(latency < 0, 0).otherwise(latency).alias("latency_us"),
    ]


def _size_class() -> Column:
    column = F.lit(SIZES[-1] * 4)
    for size in reversed(SIZES):
        column = F.when(F.coalesce("body_bytes", F.lit(0)) <= size, size).otherwise(column)
    return column


def _quantile(sketch: str, rank: float, counted: str) -> Column:
    """Null for a sketch of nothing, where the library would fail."""
    return F.when(F.col(counted) > 0, F.kll_sketch_get_quantile_bigint(F.col(sketch), F.lit(rank)))
