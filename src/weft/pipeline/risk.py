"""Risk: accounts whose events look like theft, the commands that lock them, and the alerts that tell of it.

Owns the features of an account in a window, the rules over them and the messages that follow. Account events (JSON
bodies with `account`, `kind`, `amount`, `country`) come in; suspects with reasons go out, as `lock-account` commands
and as events in the form of a node's own, so that rules over events act on them.
It must never lock or warn twice for one incident: ids are made of account and day, so a repeated batch repeats them.
Nor does it hold state per account in Python: features are Spark's own aggregates.
Precision and recall on an invented set are stated, and tested, in docs/guides/pipeline.md, "Risk".
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from weft.pipeline.exchanges import ALERTS, COMMANDS
from weft.pipeline.messages import as_messages, message
from weft.spark.schema import json_body

COLUMNS = ("enqueue_time", "creation_time", "routing_key", "body")
FIELDS = "account STRING, kind STRING, amount DOUBLE, country STRING"
WINDOW, SLIDE = "5 minutes", "1 minute"
HISTORY = "INTERVAL 1 DAY"
"""How far back an account's events are looked at, and how much later than it happened one may arrive."""
FINDINGS = ("score", "reasons", "window_start", "window_end", "payments", "amount_max")
"""What is told of a suspect."""
SEVERITY, NODE = "warning", "pipeline"
"""Of an alert; where a node's event names the node, it says who computed it."""
KEY_CHARACTERS_MAX = 30
"""Of an account in a routing key; the body has it whole."""


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
    """Account events out of messages; what is no such JSON is left out, and so is an amount that is no number.

    A time that cannot be, since it is after the arrival or long before it, does not count: whoever sets such times
    would else be looked for in windows of their own.
    """
    at = f"IF(creation_time BETWEEN enqueue_time - {HISTORY} AND enqueue_time, creation_time, enqueue_time) AS at"
    found = rows.select(F.expr(at), F.col("enqueue_time").alias("seen"), json_body(FIELDS).alias("event"))
    told = found.select("at", "seen", "event.*").where("account IS NOT NULL")
    return told.withColumn("amount", F.when(~F.isnan("amount"), F.col("amount")))


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


def commands(found: DataFrame) -> DataFrame:
    """A `lock-account` message per suspect and day."""
    return as_messages(found, _command())


def alerts(found: DataFrame) -> DataFrame:
    """An event `account.suspected` per suspect and day (docs/guides/management.md, "Events")."""
    return as_messages(found, _alert())


def answers(found: DataFrame) -> DataFrame:
    """Commands and alerts, of suspects that are looked for once."""
    return as_messages(found, _command(), _alert())


def _command() -> str:
    body, identity = f"struct(account, {', '.join(FINDINGS)})", _identity("lock-account")
    return message(COMMANDS, "'account.lock'", kind="lock-account", identity=identity, body=body)


def _alert() -> str:
    text = (
        "format_string('score %.1f for %s in the five minutes to %s', score, array_join(reasons, ', '),"
        " date_format(window_end, 'yyyy-MM-dd HH:mm'))"
    )
    fields = {
        "version": "1",
        "number": "0",
        "class": "'account'",
        "kind": "'suspected'",
        "severity": f"'{SEVERITY}'",
        "object": "account",
        "vhost": "CAST(NULL AS STRING)",
        "node": f"'{NODE}'",
        "time_ms": "unix_millis(current_timestamp())",
        "text": text,
        "values": f"struct({', '.join(FINDINGS)})",
    }
    body = f"struct({', '.join(f'{value} AS `{name}`' for name, value in fields.items())})"
    # One word of the key, as nodes make it of a name; a key has 255 bytes at most, and a character four.
    word = f"substring(regexp_replace(account, '[.]', '_'), 1, {KEY_CHARACTERS_MAX})"
    key = f"concat('account.suspected.{SEVERITY}.', coalesce(nullif({word}, ''), '-'), '.{NODE}')"
    identity = _identity("account-suspected")
    return message(ALERTS, key, kind="account.suspected", identity=identity, body=body)


def _identity(kind: str) -> str:
    return f"concat('{kind}:', account, ':', date_format(window_end, 'yyyy-MM-dd'))"


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, 1))
