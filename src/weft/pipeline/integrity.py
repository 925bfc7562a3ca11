"""Integrity: what was lost or doubled on which path, and whether redundancy keeps its promise.

Owns the counting of numbered messages per sender and path. Rows that carry a sequence number come in; losses,
duplicates and probabilities with their confidence intervals go out, and messages that were confirmed and never
seen.
It must never guess: without a sequence number a message is not counted.
The rule is P_failure = P_loss^n for n independent paths; where it does not hold, paths are not independent.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

COLUMNS = ("enqueue_time", "origin", "app_id", "message_id", "headers", "trace")
SEQUENCE = "sequence"
"""The header in which a sender numbers its messages from 0 or 1 on, without holes."""
SEQUENCE_MAX = 2**62
"""Numbers beyond it, and those below 0, are no such numbers: their differences could not be reckoned."""

Z95 = 1.96


def sightings(rows: DataFrame, header: str = SEQUENCE) -> DataFrame:
    """Each numbered message as it was seen: sender, number, path, how often, when last. Of batches the union counts."""
    path = F.array_join(F.when(F.size("trace") > 0, F.col("trace")).otherwise(F.array("origin")), " > ")
    return (
        rows.select(
            F.coalesce("app_id", F.lit("")).alias("sender"),
            F.col("headers")[header].try_cast("bigint").alias("sequence"),
            F.coalesce(path, F.lit("")).alias("path"),
            "enqueue_time",
        )
        .where(F.col("sequence").between(0, SEQUENCE_MAX))
        .groupBy("sender", "sequence", "path")
        .agg(F.count("*").alias("copies"), F.max("enqueue_time").alias("at"))
    )


def paths(seen: DataFrame) -> DataFrame:
    """Losses and duplicates per sender and path; what was sent is what any path has seen between first and last."""
    expected = seen.groupBy("sender").agg((F.max("sequence") - F.min("sequence") + 1).alias("expected"))
    merged = seen.groupBy("sender", "path", "sequence").agg(F.sum("copies").alias("copies"))
    counted = merged.groupBy("sender", "path").agg(
        F.count("*").alias("seen"), (F.sum("copies") - F.count("*")).alias("duplicates")
    )
    lost = counted.join(expected, "sender").withColumn("lost", F.col("expected") - F.col("seen"))
    return lost.select(
        "sender", "path", "expected", "seen", "lost", "duplicates",
        (F.col("lost") / F.col("expected")).alias("p_loss"),
        *_interval("lost", "expected", "p_loss"),
    )  # fmt: skip


def redundancy(seen: DataFrame) -> DataFrame:
    """Per sender: how many messages came over no path at all, beside the product of the paths' losses."""
    per_path = paths(seen)
    predicted = per_path.groupBy("sender").agg(
        F.count("*").alias("paths"),
        F.max("expected").alias("expected"),
        F.product("p_loss").alias("p_failure_predicted"),
    )
    arrived = seen.groupBy("sender").agg(F.count_distinct("sequence").alias("arrived"))
    failed = predicted.join(arrived, "sender").withColumn("failed", F.col("expected") - F.col("arrived"))
    measured = failed.select(
        "sender", "paths", "expected", "failed",
        (F.col("failed") / F.col("expected")).alias("p_failure"),
        "p_failure_predicted",
        *_interval("failed", "expected", "p_failure"),
    )  # fmt: skip
    inside = F.col("p_failure_predicted").between(F.col("p_failure_low"), F.col("p_failure_high"))
    return measured.withColumn("independent", inside)


def gaps(seen: DataFrame) -> DataFrame:
    """Runs of numbers that no path has seen: sender, first and last number, how many."""
    order = Window.partitionBy("sender").orderBy("sequence")
    numbers = seen.select("sender", "sequence").distinct()
    after = numbers.withColumn("next", F.lead("sequence").over(order)).where("next > sequence + 1")
    return after.select(
        "sender",
        (F.col("sequence") + 1).alias("first"),
        (F.col("next") - 1).alias("last"),
        (F.col("next") - F.col("sequence") - 1).alias("messages"),
    )


def unseen(confirmed: DataFrame, seen: DataFrame, by: str = "message_id") -> DataFrame:
    """What publishers were told is safe and no stream has: must be empty."""
    return confirmed.select(by).distinct().join(seen.select(by), by, "left_anti")


def deduplicate(rows: DataFrame, within: str = "1 hour", by: str = "message_id") -> DataFrame:
    """The idempotency barrier at the size of a lake: the first of each id; rows without an id all pass.

    On a stream ids are remembered for `within`; on a table for ever.
    """
    identified = F.coalesce(F.col(by), F.concat_ws("/", "stream", "shard", "offset"))
    marked = rows.withColumn("_identity", identified)
    if rows.isStreaming:
        unique = marked.withWatermark("enqueue_time", within).dropDuplicatesWithinWatermark(["_identity"])
    else:
        first = Window.partitionBy("_identity").orderBy("enqueue_time", "stream", "shard", "offset")
        unique = marked.withColumn("_nth", F.row_number().over(first)).where("_nth = 1").drop("_nth")
    return unique.drop("_identity")


def _interval(hits: str, trials: str, name: str) -> list[Column]:
    """Wilson's interval at 95 %: honest for few hits, where the usual one is empty."""
    n, p = F.col(trials).cast("double"), F.col(hits) / F.col(trials)
    centre = p + Z95**2 / (2 * n)
    spread = Z95 * F.sqrt(p * (1 - p) / n + Z95**2 / (4 * n * n))
    whole = 1 + Z95**2 / n
    return [
        F.greatest(F.lit(0.0), (centre - spread) / whole).alias(f"{name}_low"),
        F.least(F.lit(1.0), (centre + spread) / whole).alias(f"{name}_high"),
    ]
