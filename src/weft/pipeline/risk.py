"""Risk: accounts whose events look like theft, and the commands that lock them.

Owns the features of an account in a window, the rules over them and the messages that follow. Account events (JSON
bodies with `account`, `kind`, `amount`, `country`) come in; suspects with reasons go out, and `lock-account`
commands.
It must never lock twice for one incident: a command's id is made of account and day, so a repeated batch repeats
the id. Nor does it hold state per account in Python: features are Spark's own aggregates.
Precision and recall on an invented set are stated, and tested, in docs/guides/pipeline.md, "Risk".
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from weft.pipeline.messages import as_message
from weft.spark.schema import json_body

COLUMNS = ("enqueue_time", "creation_time", "routing_key", "body")
FIELDS = "account STRING, kind STRING, amount DOUBLE, country STRING"
WINDOW, SLIDE = "5 minutes", "1 minute"


@dataclass(frozen=True)
class Rules:
    """Thresholds, each per account and five minutes."""

    payments_max: int = 12
    failed_logins_max: int = 5
    small_payments_max: int = 4
    small_amount: float = 1.0
    countries_max: int = 1
    spike_factor: float = 15.0
    spike_history_min: int = 5
    score_min: float = 1.0


def events(rows: DataFrame) -> DataFrame:
    """Account events out of messages; what is no such JSON is left out."""
    at = F.coalesce("creation_time", "enqueue_time").alias("at")
    seen = F.col("enqueue_time").alias("seen")
    found = rows.select(at, seen, json_body(FIELDS).alias("event"))
    return found.select("at", "seen", "event.*").where("account IS NOT NULL")


def features(happened: DataFrame, rules: Rules = Rules()) -> DataFrame:  # noqa: B008 - frozen
    """What each account did in each window, beside what is usual for it."""
    payment = F.col("kind") == "payment"
    # "Usual" is the median of all its payments: one theft does not move it.
    usual = (
        happened.where(payment)
        .groupBy("account")
        .agg(F.percentile_approx("amount", 0.5).alias("usual"), F.count("*").alias("history"))
    )
    small = payment & (F.col("amount") <= rules.small_amount)
    counted = happened.groupBy("account", F.window("at", WINDOW, SLIDE).alias("window")).agg(
        _count(payment).alias("payments"),
        _count(small).alias("small"),
        _count(F.col("kind") == "login-failed").alias("failed_logins"),
        F.count_distinct(F.when(payment, F.col("country"))).alias("countries"),
        F.coalesce(F.max(F.when(payment, F.col("amount"))), F.lit(0.0)).alias("amount_max"),
    )
    return counted.join(usual, "account", "left").select(
        "account", F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"),
        "payments", "small", "failed_logins", "countries", "amount_max",
        F.coalesce("usual", F.lit(0.0)).alias("usual"), F.coalesce("history", F.lit(0)).alias("history"),
    )  # fmt: skip


def suspects(happened: DataFrame, rules: Rules = Rules()) -> DataFrame:  # noqa: B008
    """Accounts over the threshold: the worst window of each, its score and the reasons."""
    # Pandas takes most of a second to import, and other jobs do without.
    from weft.pipeline.verdict import judged

    columns = ["payments", "small", "failed_logins", "countries", "amount_max", "usual", "history"]
    scored = features(happened, rules).withColumn("verdict", judged(rules)(F.struct(*columns)))
    worst = Window.partitionBy("account").orderBy(F.desc("score"), "window_start")
    return (
        scored.select("*", "verdict.score", "verdict.reasons").drop("verdict")
        .where(F.col("score") >= rules.score_min)
        .withColumn("rank", F.row_number().over(worst)).where("rank = 1").drop("rank")
    )  # fmt: skip


def commands(found: DataFrame, exchange: str = "weft.commands") -> DataFrame:
    """A `lock-account` message per suspect and day."""
    body = F.struct("account", "score", "reasons", "window_start", "window_end", "payments", "amount_max")
    identity = F.concat(F.lit("lock-account:"), "account", F.lit(":"), F.date_format("window_end", "yyyy-MM-dd"))
    return as_message(found, exchange, F.lit("account.lock"), kind="lock-account", identity=identity, body=body)


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))
