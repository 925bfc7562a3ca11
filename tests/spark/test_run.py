"""A whole run: a stream in, bronze, silver and gold out, the same however often it is begun again."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.test_lake import TableLog
from weft.cli import main
from weft.model.errors import ConfigError
from weft.pipeline import synthetic
from weft.pipeline.jobs import choose
from weft.pipeline.run import Run, Settings
from weft.pipeline.store import MERGE_FILES, Store
from weft.spark import Lake, tier

ROWS = 6_000


def lake_with(folder: Path, *tables: pa.Table) -> str:
    for rows in tables:
        tier(TableLog(rows), Lake(str(folder)), ["*"], partial=True)
    return str(folder)


def settings(source: str, out: Path, **options: object) -> Settings:
    given = {"lake": source, "streams": "*", "maxRowsPerTrigger": "5000"}
    jobs: Any = options.pop("jobs", choose(None))
    return Settings(source=given, lake=str(out), once=True, jobs=jobs)


def run(spark: SparkSession, chosen: Settings) -> list[str]:
    told: list[str] = []
    pipeline = Run(spark, chosen, say=told.append)
    assert pipeline.start().awaitTermination(110)
    pipeline.write_gold()
    return told


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_all_jobs_and_their_report(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    messages = synthetic.traffic(ROWS, body_bytes=32)
    copies = synthetic.copies(500, {("a", "b", "z"): 0.1, ("a", "c", "z"): 0.1}, doubled=0.05)
    accounts = synthetic.accounts(40, frauds=5, seed=3)
    source = lake_with(tmp_path / "source", messages, copies, accounts.events)
    out = tmp_path / "out"
    told = run(spark, settings(source, out))
    store = Store(str(out))
    whole = ROWS + copies.num_rows + accounts.events.num_rows
    assert sum(row["messages"] for row in store.gold_rows("traffic")) == whole
    assert spark.read.parquet(str(out / "bronze")).count() == whole
    assert {row["account"] for row in store.gold_rows("suspects")} == set(accounts.fraud)
    assert {row["path"] for row in store.gold_rows("paths")} == {"a > b > z", "a > c > z"}
    assert ("a", "b") in {(row["source"], row["target"]) for row in store.gold_rows("edges")}
    assert any("rows in" in line for line in told)

    assert main(["pipeline", "report", "--lake", str(out), "--html", str(tmp_path / "report.html")]) == 0
    assert "bank/payment.made" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 4
    assert "http" not in page.replace("http-equiv", ""), "a report loads nothing from elsewhere"
    assert "a &gt; b &gt; z" in page
    if BROWSER is not None:
        seen = looked_at(page, tmp_path)
        assert seen == {"beyond": 0, "drawn": page.count("<svg"), "loaded": 0}, "it fits a phone, and is all there"


PHONE = 390
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
LOOKS = """<!doctype html><iframe width={wide} height=800 frameborder=0 srcdoc="{page}"></iframe><script>
onload = () => {{
  const seen = frames[0], within = seen.document
  const drawn = [...within.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 50)
  const {{scrollWidth, clientWidth}} = within.documentElement
  document.title = JSON.stringify({{beyond: scrollWidth - clientWidth, drawn: drawn.length,
                                    loaded: seen.performance.getEntriesByType("resource").length}})
}}</script>"""


def looked_at(page: str, folder: Path) -> dict[str, int]:
    """How far the page goes beyond a phone's width in a real browser, which plots have a size, what it loaded."""
    (folder / "look.html").write_text(LOOKS.format(wide=PHONE, page=escape(page)), encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    command = [str(BROWSER), *options, f"--user-data-dir={folder / 'browser'}", "--dump-dom"]
    address = f"file://{folder / 'look.html'}"
    told = subprocess.run([*command, address], capture_output=True, text=True, timeout=90, check=True).stdout
    found = re.search("<title>(.*?)</title>", told)
    assert found is not None, told[:500]
    seen: dict[str, int] = json.loads(unescape(found[1]))
    return seen


FURTHEST_US = 2**63 - 1
MARKUP = "\x1b]0;\"'><img src=x onerror=alert(1)><script>alert(1)</script>\n"


def hostile() -> pa.Table:
    """What a publisher may send though nobody should: every job has to pass by it, for ever."""
    bodies: list[dict[str, object]] = [
        {"account": MARKUP, "kind": "payment", "amount": "NaN", "country": MARKUP},
        *({"queue": MARKUP, "depth": 2**62, "arrived": number * 2**60, "departed": number} for number in range(6)),
        {"queue": "q", "depth": 0, "arrived": -(2**63), "departed": 0, "consumers": 1},
        {"queue": "q", "depth": 0, "arrived": FURTHEST_US, "departed": 0, "consumers": 1},
        *({"queue": "idle", "depth": 0, "arrived": 5, "departed": 5, "consumers": 1} for _ in range(6)),
        {"class": "queue", "kind": "statistics", "object": "q",
         "values": {"ready": FURTHEST_US, "unsettled": 9, "published": 1, "settled": 1, "consumers": 1}},
    ]  # fmt: skip
    count = len(bodies)
    times = [-FURTHEST_US - 1, FURTHEST_US, 0, *[None] * (count - 3)]
    numbers = [str(-FURTHEST_US - 1), str(FURTHEST_US), "1e3", *map(str, range(count - 3))]
    return synthetic.rows(
        "weft.statistics", count, creation_time=times, app_id=[MARKUP] * count, exchange=[MARKUP] * count,
        origin=[MARKUP] * count, trace=[[MARKUP, "b", "c"]] * count, type=[MARKUP] * count,
        enqueue_time=[synthetic.START_US + second * 1_000_000 for second in range(count)],
        routing_key=["account.x" if "account" in body else MARKUP for body in bodies],
        headers=[[("sequence", number), ("a", "1"), ("a", "2")] for number in numbers],
        body=[json.dumps({"consumers": 1, **body}).encode() for body in bodies],
    )  # fmt: skip


class Tags(HTMLParser):
    """The elements of a page, and the attributes that could run something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag} | {name for name, _ in attrs if name.startswith("on") or name in ("src", "href")}


def test_no_message_ends_a_run_or_acts_in_its_report(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = hostile()
    pipeline = Run(spark, settings("", tmp_path))
    pipeline.step(spark.createDataFrame(rows), 0)
    pipeline.write_gold()
    store = Store(str(tmp_path))
    assert sum(row["messages"] for row in store.gold_rows("traffic")) == rows.num_rows
    (path,) = store.gold_rows("paths")
    assert path["seen"] == rows.num_rows - 3, "what is no number from 0 on is not counted"
    assert {row["action"] for row in store.gold_rows("forecasts") if row["queue"] == "idle"} == {"keep"}
    assert main(["pipeline", "report", "--lake", str(tmp_path), "--html", str(tmp_path / "report.html")]) == 0
    assert "\x1b" not in capsys.readouterr().out, "a terminal obeys it"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert escape(MARKUP) in page
    assert not Tags(page).found & {"script", "img", "onerror", "src", "href"}


def test_a_batch_that_is_repeated_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    rows = synthetic.traffic(1_000)
    source = lake_with(tmp_path / "source", rows)
    chosen = settings(source, tmp_path / "out", jobs=choose("traffic"))
    pipeline = Run(spark, chosen)
    frame = spark.createDataFrame(rows)
    pipeline.step(frame.limit(10), 0)
    pipeline.step(frame, 0)
    pipeline.write_gold()
    assert sum(row["messages"] for row in Store(chosen.lake).gold_rows("traffic")) == 1_000
    pipeline.step(frame.where("false"), 0)
    assert Store(chosen.lake).silver(spark, "traffic") is None


def test_answers_are_the_sum_of_all_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A window has 1,000 of these. Batches touch the third, the third again, the first, and the third and fourth.
    rows = spark.createDataFrame(synthetic.traffic(4_000, per_s=100, body_bytes=8))
    parts = ((2_000, 2_300), (2_300, 2_600), (0, 300), (2_900, 3_200))
    answered: list[Counter[str]] = []

    def take(_run: Run, messages: DataFrame, _job: object, _batch: int) -> None:
        sums: Counter[str] = Counter()
        for message in messages.collect():
            body = json.loads(bytes(message["body"]))
            sums[body["window_start"][17:19]] += body["messages"]
        answered.append(sums)

    monkeypatch.setattr(Run, "_send", take)
    chosen = replace(settings("", tmp_path / "out", jobs=choose("traffic")), answers_to="amqp://nobody", bronze=False)
    for batches in (range(2), range(2, 4)):
        # The second run knows of the first by its files only; of what it did itself it opens none.
        pipeline = Run(spark, chosen)
        for batch in batches:
            low, high = parts[batch]
            pipeline.step(rows.where(f"offset >= {low} AND offset < {high}"), batch)
    assert answered == [{"20": 300}, {"20": 600}, {"00": 300}, {"20": 700, "30": 200}]


def test_silver_is_merged_without_a_change(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for batch in range(MERGE_FILES + 3):
        store.write_silver("t", batch, pa.table({"n": [batch]}))
    before = store.silver(spark, "t")
    assert before is not None
    total = before.agg({"n": "sum"}).collect()
    store.tidy_silver("t", before=MERGE_FILES + 1)
    assert len(list((tmp_path / "silver" / "t").iterdir())) == 3
    after = store.silver(spark, "t")
    assert after is not None
    assert after.agg({"n": "sum"}).collect() == total


def test_merged_file_counts_though_its_parts_are_still_there(spark: SparkSession, tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_silver("t", 1, pa.table({"n": [1]}))
    store.write_silver("t", 2, pa.table({"n": [2]}))
    whole = tmp_path / "silver" / "t" / "000000000001-000000000002.parquet"
    pa.parquet.write_table(pa.table({"n": [1, 2]}), whole)
    found = store.silver(spark, "t")
    assert found is not None
    assert pc.sum(found.toArrow()["n"]).as_py() == 3


def test_jobs_by_name() -> None:
    assert [job.name for job in choose("risk, traffic")] == ["risk", "traffic"]
    with pytest.raises(ConfigError, match="no job fraud"):
        choose("fraud")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "--url"),
        (["report", "--lake", "/nowhere/at/all"], "nothing in"),
        (["run", "--jobs", "x", "--url", "amqp://127.0.0.1:1"], "no job x"),
        (["run", "--trigger", "nan", "--url", "amqp://127.0.0.1:1"], "--trigger is a number"),
        (["run", "--keep", "0.5", "--url", "amqp://127.0.0.1:1"], "--keep is a number of days from 1"),
        (["run", "--lake", "/proc/nowhere", "--url", "amqp://127.0.0.1:1"], "--lake /proc/nowhere"),
        (["replay", "--name", "x", "--data-dir", "/nowhere", "--header", "tenant"], "--header is NAME=VALUE"),
    ],
)
def test_mistakes_are_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", *words]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told", "code"),
    [
        (["--data-dir", "/nowhere"], "there is no node's data in /nowhere", 1),
        (["--data-dir", "/nowhere", "--since", "yesterday"], "since is a time such as", 2),
    ],
)
@pytest.mark.usefixtures("spark")
def test_mistakes_that_spark_finds_are_one_line_too(
    words: list[str], told: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "replay", "--name", "x", *words]) == code
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error


def test_a_lake_has_one_run_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "running").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(["pipeline", "run", "--once", "--url", "amqp://127.0.0.1:1", "--lake", str(tmp_path)]) == 2
    assert "another run uses the lake" in capsys.readouterr().err


def test_a_lake_is_filled_by_one_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "tier", "--data-dir", "/nowhere", "--lake", str(tmp_path)]
    with (tmp_path / "tiering").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(words) == 2
    assert "another run uses the lake" in capsys.readouterr().err
    assert main(words) == 1
    assert "no node's data" in capsys.readouterr().err


def test_without_java_one_line_says_so(tmp_path: Path) -> None:
    words = ["run", "--once", "--data-dir", str(tmp_path), "--lake", str(tmp_path / "lake")]
    env = {**os.environ, "JAVA_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "weft", "pipeline", *words]
    told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 1
    assert told.stderr.splitlines()[-1] == (
        f"weft pipeline: Spark needs Java 17 or newer, and there is none in JAVA_HOME ({tmp_path})"
    )
    assert "Traceback" not in told.stderr
