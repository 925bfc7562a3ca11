"""Rows that wait for their tasks: all of them once, whoever read them, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

import peers
from spark.nodes import declare_stream, fill
from weft.spark import STREAM, ahead
from weft.spark.ahead import ASKED_FOR, Ahead
from weft.spark.offsets import Slice
from weft.spark.options import read_options
from weft.spark.reader import StreamReader

ROWS, PER_SLICE, PER_BATCH = 300, 100, 30
NARROW = StructType([STREAM["offset"], StructField("header_tenant", StringType()), STREAM["body_bytes"]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("node") / "edge"
    node = peers.start_weft(path)
    declare_stream(node, "orders")
    fill(node, "orders", [b"order %d" % number for number in range(ROWS)], headers={"tenant": "x"})
    yield path
    assert node.stop() == 0, node.output.text()


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StreamReader:
    monkeypatch.setenv(ASKED_FOR, "1")
    monkeypatch.setattr(ahead, "SLICE_ROWS_MIN", ROWS)
    monkeypatch.setattr(ahead, "NARROW_ROWS_PER_BATCH", PER_BATCH)
    return made(folder, NARROW)


def made(folder: Path, schema: StructType) -> StreamReader:
    options = {"path": str(folder), "stream": "orders", "maxRowsPerPartition": str(PER_SLICE)}
    return StreamReader(read_options(options, streaming=True), schema)


def planned(reader: StreamReader) -> list[Slice]:
    """The slices of all there is, once what is read ahead was read."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    if reader._ahead is not None:
        reader._ahead._ended.wait()
    return reader.partitions(start, end)


def offsets(reader: StreamReader, cut: list[Slice]) -> list[int]:
    batches = [batch for piece in cut for batch in reader.read(piece)]
    assert all(batch.schema == reader.arrow for batch in batches)
    assert {tenant for batch in batches for tenant in batch["header_tenant"].to_pylist()} == {"x"}
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


def test_tasks_find_the_rows_that_were_read_while_they_were_planned(
    reader: StreamReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = planned(reader)
    assert len(cut) == ROWS // PER_SLICE
    monkeypatch.setattr("weft.spark.reader.open_log", None)
    assert offsets(reader, cut) == list(range(ROWS)), "without a look at the log"
    assert offsets(reader, cut) == list(range(ROWS)), "and again, if a task has to begin anew"


def test_a_task_reads_on_where_the_rows_that_wait_end(reader: StreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "BYTES_MAX", 1)
    cut = planned(reader)
    assert [os.fstat(piece.kept.number).st_size > 0 for piece in cut if piece.kept] == [True, False, False]
    assert offsets(reader, cut) == list(range(ROWS))


def test_what_a_task_has_taken_over_is_read_no_further(reader: StreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ahead, "_read", lambda _: None)
    cut = planned(reader)
    found = offsets(reader, cut)
    monkeypatch.undo()
    assert reader._ahead is not None
    reader._ahead._read()
    assert [os.fstat(piece.kept.number).st_size for piece in cut if piece.kept] == [0, 0, 0]
    assert found == list(range(ROWS))


def test_a_place_that_is_gone_or_another_s_by_now_is_left_alone(reader: StreamReader) -> None:
    cut = planned(reader)
    kept = [piece.kept for piece in cut if piece.kept]
    others = [
        replace(cut[0], kept=replace(kept[0], number=kept[1].number)),
        replace(cut[1], kept=replace(kept[1], process=2**30)),
        cut[2],
    ]
    assert offsets(reader, others) == list(range(ROWS))
    planned(reader)
    assert offsets(reader, cut) == list(range(ROWS)), "of the batch before"


def test_rows_that_are_not_kept_any_more_are_the_task_s_to_tell(reader: StreamReader) -> None:
    cut = [replace(piece, kept=None) for piece in planned(reader)]
    (extent,) = reader.log.extents(["orders"])
    log, columns = reader.log, reader.columns
    later = Ahead(log, cut, {extent.key: replace(extent, first=1)}, columns, reader.arrow)  # type: ignore[arg-type]
    assert [piece.kept is None for piece in later.slices] == [True, False, False]
    later.close()


@pytest.mark.parametrize("why", ["tasks may run elsewhere", "bodies are asked for", "few rows"])
def test_nothing_is_read_ahead_where_it_does_not_pay(
    why: str, reader: StreamReader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if why == "tasks may run elsewhere":
        monkeypatch.delenv(ASKED_FOR)
    elif why == "bodies are asked for":
        reader = made(folder, StructType([*NARROW.fields, STREAM["body"]]))
    else:
        monkeypatch.setattr(ahead, "SLICE_ROWS_MIN", ROWS + 1)
    cut = planned(reader)
    assert [piece.kept for piece in cut] == [None] * len(cut)
    assert offsets(reader, cut) == list(range(ROWS))


def test_every_batch_gives_back_what_the_one_before_took(reader: StreamReader) -> None:
    planned(reader)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        planned(reader)
    assert len(os.listdir("/proc/self/fd")) == before
