"""Capacity: where each queue is heading, and how many workers it will need when it is there.

Owns the forecast of arrivals and depth and the rule from forecast to workers. Samples of queue counters (`time,
node, queue, depth, arrived, departed, consumers`; counters rise) come in; forecasts and scaling recommendations go
out, also as messages that a scaling controller obeys.
It must never flap: more workers as soon as they are needed, fewer only when clearly fewer do.
The forecast is a straight line through the rates of the last minutes: rough, explainable and hard to fool.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from weft.pipeline.exchanges import COMMANDS
from weft.pipeline.messages import as_messages, message
from weft.spark.schema import json_body

SAMPLE = "queue STRING, depth BIGINT, arrived BIGINT, departed BIGINT, consumers INT"
EVENT = """
    class STRING, kind STRING, object STRING,
    values STRUCT<ready: BIGINT, unsettled: BIGINT, published: BIGINT, settled: BIGINT, consumers: INT>
"""
"""What of a node's own statistics events is looked at."""
COLUMNS = ("enqueue_time", "origin", "routing_key", "body")


@dataclass(frozen=True)
class Plan:
    """What the recommendations aim at."""

    horizon_s: int = 120
    lookback_s: int = 300
    utilisation: float = 0.7
    """How busy a worker should be at most."""
    drain_s: int = 60
    """In what time a backlog is to be worked off."""
    shrink_below: float = 0.6
    """Workers are taken away only when fewer than this share of them are needed."""
    rise_min: float = 1.2
    """Growth of arrivals from which on workers are added, where nobody knows yet how much one can do."""
    consumers_min: int = 1
    consumers_max: int = 64
    samples_min: int = 4


def samples(rows: DataFrame) -> DataFrame:
    """Samples out of messages with such JSON bodies, or out of the statistics events of nodes."""
    found = rows.select(
        F.col("enqueue_time").alias("time"), F.col("origin").alias("node"), json_body(f"{SAMPLE}, {EVENT}").alias("s")
    ).select("time", "node", "s.*")
    told = (F.col("class") == "queue") & (F.col("kind") == "statistics")
    values = F.col("values")
    either = found.select(
        "time",
        "node",
        F.coalesce("queue", F.when(told, F.col("object"))).alias("queue"),
        F.coalesce("depth", F.try_add(values["ready"], values["unsettled"])).alias("depth"),
        F.coalesce("arrived", values["published"]).alias("arrived"),
        F.coalesce("departed", values["settled"]).alias("departed"),
        F.coalesce("consumers", values["consumers"]).alias("consumers"),
    )
    # Counters begin at 0: what is below is none, and the difference of two might be beyond reckoning.
    return either.where("queue IS NOT NULL AND arrived >= 0 AND coalesce(departed, 0) >= 0")


def rates(taken: DataFrame) -> DataFrame:
    """Per sample what came and went per second since the one before; a counter that fell began anew."""
    order = Window.partitionBy("node", "queue").orderBy("time")
    seconds = (F.unix_micros("time") - F.unix_micros(F.lag("time").over(order))) / 1e6
    come = F.col("arrived") - F.lag("arrived").over(order)
    gone = F.col("departed") - F.lag("departed").over(order)
    between = taken.withColumns({"seconds": seconds, "come": come, "gone": gone})
    return between.where("seconds > 0 AND come >= 0 AND gone >= 0").select(
        "time", "node", "queue", "depth", "consumers",
        (F.col("come") / F.col("seconds")).alias("arrival_per_s"),
        (F.col("gone") / F.col("seconds")).alias("departure_per_s"),
    )  # fmt: skip


def forecasts(taken: DataFrame, plan: Plan = Plan()) -> DataFrame:  # noqa: B008 - frozen
    """Per queue: now, and what a straight line through the last minutes says of the horizon.

    A queue of which nothing was heard in that time has none: nobody knows whether it is still there.
    """
    whole = Window.partitionBy("node", "queue")
    recent = (
        rates(taken)
        .withColumn("age_s", (F.unix_micros(F.max("time").over(whole)) - F.unix_micros("time")) / 1e6)
        .where(F.col("age_s") <= plan.lookback_s)
    )
    # A worker's speed shows only while messages wait; it is null for a queue that never had to.
    speed = F.when((F.col("consumers") > 0) & (F.col("depth") > 0), F.col("departure_per_s") / F.col("consumers"))
    lines = recent.groupBy("node", "queue").agg(
        F.max("time").alias("time"),
        F.count("*").alias("samples"),
        F.max_by("depth", "time").alias("depth"),
        F.max_by("consumers", "time").alias("consumers"),
        F.max_by("departure_per_s", "time").alias("departure_per_s"),
        F.regr_slope("arrival_per_s", -F.col("age_s")).alias("slope"),
        F.regr_intercept("arrival_per_s", -F.col("age_s")).alias("level"),
        F.percentile_approx(speed, 0.5).alias("worker_per_s"),
    )
    slope, level = F.coalesce("slope", F.lit(0.0)), F.coalesce("level", "departure_per_s")
    ahead = F.greatest(F.lit(0.0), level + slope * plan.horizon_s)
    capacity = F.col("departure_per_s")
    growth = ((level + ahead) / 2 - capacity) * plan.horizon_s
    silent_s = (F.unix_micros(F.max("time").over(Window.partitionBy())) - F.unix_micros("time")) / 1e6
    heard = lines.withColumn("silent_s", silent_s).where(F.col("silent_s") <= plan.lookback_s)
    return heard.where(F.col("samples") >= plan.samples_min).select(
        "time", "node", "queue", "samples", "depth", "consumers",
        level.alias("arrival_per_s"),
        slope.alias("arrival_trend_per_s2"),
        ahead.alias("arrival_forecast_per_s"),
        "worker_per_s",
        F.greatest(F.lit(0.0), F.col("depth") + growth).alias("depth_forecast"),
    )  # fmt: skip


def recommendations(forecast: DataFrame, plan: Plan = Plan()) -> DataFrame:  # noqa: B008
    """Workers per queue: enough for the forecast at the wanted utilisation, and to drain the backlog in time.

    Of a queue that never had a backlog nobody knows a worker's speed: its workers grow in step with arrivals, and are
    not taken away.
    """
    speed = F.col("worker_per_s")
    arrivals, most = F.greatest("arrival_per_s", "arrival_forecast_per_s"), F.lit(float(plan.consumers_max))
    needed = arrivals / (speed * plan.utilisation) + F.col("depth") / (speed * plan.drain_s)
    bounded = F.ceil(F.least(F.greatest(needed, F.lit(float(plan.consumers_min))), most)).cast("int")
    grow = bounded > F.col("consumers")
    shrink = bounded < F.col("consumers") * plan.shrink_below
    rise = F.try_divide("arrival_forecast_per_s", "arrival_per_s")
    in_step = F.ceil(F.least(F.col("consumers") * rise, most)).cast("int")
    advised = F.when(speed > 0, F.when(grow | shrink, bounded)).when(rise >= plan.rise_min, in_step)
    return (
        forecast.withColumn("recommended", F.coalesce(advised, "consumers"))
        .withColumn("action", _action())
        .select("time", "node", "queue", "consumers", "recommended", "action", "depth", "depth_forecast",
                "arrival_per_s", "arrival_forecast_per_s", "worker_per_s")
    )  # fmt: skip


def commands(advice: DataFrame) -> DataFrame:
    """A `scale` message per queue that should change; its id holds the time of the sample it follows from."""
    changed = advice.where("action <> 'keep'")
    body = f"struct({', '.join(advice.columns)})"
    identity = "concat_ws(':', 'scale', node, queue, unix_millis(time))"
    return as_messages(
        changed, message(COMMANDS, "concat('scale.', queue)", kind="scale", identity=identity, body=body)
    )


def _action() -> Column:
    grown = F.when(F.col("recommended") > F.col("consumers"), "grow")
    return grown.when(F.col("recommended") < F.col("consumers"), "shrink").otherwise("keep")
