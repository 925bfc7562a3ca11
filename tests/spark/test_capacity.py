"""Capacity: a queue that rises gets workers before it is late, a calm one is left alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from weft.pipeline import capacity, synthetic

Table = Callable[[pa.Table], DataFrame]
NOON = datetime(2027, 1, 15, 12)


def test_rising_queue_grows_and_calm_one_stays(table: Table) -> None:
    forecasts = capacity.forecasts(table(synthetic.queue_samples(500, growth_per_s=0.12)))
    advice = {row["queue"]: row for row in capacity.recommendations(forecasts).collect()}
    assert advice["calm"]["action"] == "keep"
    rising = advice["rising"]
    assert rising["action"] == "grow"
    # 50/s + 0.12/s² × (495 + 120) s is 124/s; a worker does 50/s, and is to be busy for 70 % of its time.
    assert rising["arrival_forecast_per_s"] == pytest.approx(124, rel=0.05)
    assert rising["recommended"] == 4


def flat(spark: SparkSession, per_s: int, consumers: int, worker_per_s: int = 50) -> DataFrame:
    gone = min(per_s, consumers * worker_per_s)
    rows = [
        Row(time=NOON + timedelta(seconds=5 * n), node="n", queue="q", depth=1, arrived=per_s * 5 * n,
            departed=gone * 5 * n, consumers=consumers)
        for n in range(20)
    ]  # fmt: skip
    return spark.createDataFrame(rows)


def test_idle_workers_are_taken_away_only_when_clearly_too_many(spark: SparkSession) -> None:
    def advise(consumers: int) -> int:
        plan = capacity.Plan()
        forecast = capacity.forecasts(flat(spark, 100, consumers), plan).withColumn(
            "worker_per_s", capacity.F.lit(50.0)
        )
        row = capacity.recommendations(forecast, plan).first()
        assert row is not None
        return int(row["recommended"])

    assert advise(10) == 3  # 100/s at 50/s and 70 %
    assert advise(4) == 4  # 3 would do, but that is no reason


def test_unknown_speed_grows_in_step(table: Table) -> None:
    # Nothing ever waited: 50/s + 0.3/s² × 120 s is what two workers will get where they have 80/s now.
    forecasts = capacity.forecasts(table(synthetic.queue_samples(100, growth_per_s=0.3)))
    advice = {row["queue"]: row for row in capacity.recommendations(forecasts).collect()}
    assert (advice["rising"]["worker_per_s"], advice["rising"]["recommended"]) == (None, 3)
    assert advice["calm"]["action"] == "keep"


def test_a_queue_that_fell_silent_is_not_scaled(spark: SparkSession, table: Table) -> None:
    rising = table(synthetic.queue_samples(500, growth_per_s=0.12))
    late = timedelta(seconds=capacity.Plan().lookback_s + 1)
    for after, queues in ((late, {"q"}), (timedelta(0), {"q", "calm", "rising"})):
        ended = rising.selectExpr("max(time)").collect()[0][0] + after
        other = flat(spark, 40, 2).withColumn(
            "time", F.col("time") + (F.lit(ended) - F.lit(NOON + timedelta(seconds=95)))
        )
        found = capacity.forecasts(rising.unionByName(other.select(*rising.columns)))
        assert {row["queue"] for row in found.collect()} == queues


def test_counters_that_begin_anew_are_no_negative_rate(spark: SparkSession) -> None:
    rows = [Row(time=NOON + timedelta(seconds=n), node="n", queue="q", depth=0, arrived=count,
                departed=count, consumers=1)
            for n, count in enumerate([100, 110, 5, 15, 25, 35, 45])]  # fmt: skip
    assert [row["arrival_per_s"] for row in capacity.rates(spark.createDataFrame(rows)).collect()] == [10.0] * 5


def test_scale_commands_from_messages(table: Table) -> None:
    samples = synthetic.queue_samples(500, growth_per_s=0.12)
    bodies = [json.dumps({key: value for key, value in row.items() if key not in ("time", "node")}).encode()
              for row in samples.to_pylist()]  # fmt: skip
    rows = synthetic.rows("stats", len(bodies), body=bodies, enqueue_time=samples["time"].combine_chunks(),
                          origin=samples["node"].combine_chunks())  # fmt: skip
    advice = capacity.recommendations(capacity.forecasts(capacity.samples(table(rows))))
    commands = capacity.commands(advice).collect()
    assert [row["routing_key"] for row in commands] == ["scale.rising"]
    assert json.loads(bytes(commands[0]["body"]))["recommended"] == 4


def test_statistics_events_of_nodes_are_samples(table: Table) -> None:
    values = {"ready": 7, "unsettled": 3, "published": 90, "settled": 80, "consumers": 2}
    told = {"class": "queue", "kind": "statistics", "object": "orders", "node": "edge", "values": values}
    bodies = [json.dumps(told).encode(), json.dumps(told | {"kind": "created"}).encode(), b"not json"]
    (row,) = capacity.samples(table(synthetic.rows("stats", len(bodies), body=bodies))).collect()
    assert (row.queue, row.depth, row.arrived, row.departed, row.consumers) == ("orders", 10, 90, 80, 2)
