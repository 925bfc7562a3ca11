"""Traffic: sums equal what a plain count gives, however the rows are cut into batches."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from weft.pipeline import report, synthetic, traffic
from weft.pipeline.store import Store
from weft.pipeline.svg import short

Table = Callable[[pa.Table], DataFrame]
ROWS = 4_000


@pytest.fixture(scope="module")
def messages() -> pa.Table:
    return synthetic.traffic(ROWS, per_s=200)


def test_counts_and_bytes_are_exact(table: Table, messages: pa.Table) -> None:
    found = traffic.results(traffic.partials(table(messages)))
    whole = found.agg(F.sum("messages"), F.sum("bytes"), F.min("window_start"), F.max("window_end")).first()
    assert whole is not None
    assert (whole[0], whole[1]) == (ROWS, sum(messages["body_bytes"].to_pylist()))
    assert (whole[3] - whole[2]).total_seconds() == ROWS / 200
    per_key = {row[0]: row[1] for row in found.groupBy("address").agg(F.sum("messages")).collect()}
    expected = messages.group_by("routing_key").aggregate([([], "count_all")]).to_pylist()
    assert per_key == {row["routing_key"]: row["count_all"] for row in expected}


def test_batches_merge_to_the_same_as_one(table: Table, messages: pa.Table) -> None:
    cut = [messages.slice(0, 1_234), messages.slice(1_234, 999), messages.slice(2_233)]
    parts = [traffic.partials(table(piece)) for piece in cut]
    merged = traffic.results(parts[0].union(parts[1]).union(parts[2]))
    exact = ("messages", "bytes", "size_max", "latency_max_ms", *traffic.KEYS)
    assertDataFrameEqual(merged.select(*exact), traffic.results(traffic.partials(table(messages))).select(*exact))


def test_percentiles_are_near_the_truth(table: Table, messages: pa.Table) -> None:
    one_window = traffic.partials(table(messages), "1 hour").withColumns(
        {name: F.lit("") for name in ("node", "tier", "exchange", "address", "type")}
    )
    row = traffic.results(one_window).first()
    assert row is not None
    enqueued, created = (messages[name].cast(pa.int64()).to_numpy() for name in ("enqueue_time", "creation_time"))
    latencies = (enqueued - created) / 1000
    # A KLL sketch of the default size errs by less than two percent in rank.
    for name, rank in (("p50", 50), ("p90", 90), ("p99", 99)):
        low, high = np.percentile(latencies, [max(0, rank - 2), min(100, rank + 2)])
        assert low <= row[f"latency_{name}_ms"] <= high
    assert row["senders"] == 8


def test_messages_without_creation_time_have_no_latency(table: Table) -> None:
    rows = table(synthetic.rows("s", 3, body=[b"a", b"bb", b"ccc"]))
    row = traffic.results(traffic.partials(rows)).first()
    assert row is not None
    assert (row["messages"], row["bytes"], row["latency_p50_ms"], row["latency_max_ms"]) == (3, 6, None, None)


def test_top_talkers(table: Table, messages: pa.Table) -> None:
    found = traffic.talkers(table(messages), top=3).collect()
    assert [row["sender"] for row in found] == ["service-0"] * 2 + ["service-1"]
    assert found[0]["bytes"] >= found[1]["bytes"] >= found[2]["bytes"]
    assert 0 < found[0]["share"] < 1


def test_latency_by_size(table: Table, messages: pa.Table) -> None:
    found = traffic.size_results(traffic.partials(table(messages))).collect()
    assert [row["size_class"] for row in found] == [256, 1024]
    assert sum(row["messages"] for row in found) == ROWS


def test_the_report_shows_that_larger_messages_take_longer(table: Table, tmp_path: Path) -> None:
    """Of each size the median and the slowest hundredth, as a bar each."""
    each, slowest_ms = 200, dict(zip(traffic.SIZES, (2, 4, 8, 16, 32, 64), strict=True))
    count = each * len(slowest_ms)
    sizes = np.repeat(np.array(list(slowest_ms), np.int64), each)
    # Evenly spread up to the slowest, for each size.
    latencies = np.concatenate([np.linspace(0, most * 1_000, each, dtype=np.int64) for most in slowest_ms.values()])
    times = synthetic.START_US + np.arange(count, dtype=np.int64)
    messages = synthetic.rows("s", count, enqueue_time=times, creation_time=times - latencies, body_bytes=sizes)
    store = Store(str(tmp_path))
    store.write_gold("sizes", traffic.size_results(traffic.partials(table(messages))).toArrow())
    drawn = re.findall(r'height="([0-9.]+)"><title>≤ ([^<]+?) B (p\d+): ([0-9.]+)<', report.html(store))
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        bars = [(float(height), size, float(value)) for height, size, which, value in drawn if which == name]
        assert [size for _, size, _ in bars] == [short(size) for size in traffic.SIZES]
        assert [height for height, *_ in bars] == sorted(height for height, *_ in bars)
        assert [value for *_, value in bars] == pytest.approx([most * share for most in slowest_ms.values()], rel=0.05)
