"""Columns against a model: any message, through a journal, is what the model says its columns are.

Messages are made by Hypothesis and published inside an engine; disk jobs run when Hypothesis says. Whatever range and
columns are asked for, files and memory together show the messages so far, and files alone the first part of them.
Rule: docs/reference/columns.md.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from weft._kernel import Engine, LogReader
from weft.model.changes import CreateVhost, DeclareQueue
from weft.model.limits import Limits

NUMBER = 77
TEXTS = ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type", "user_id", "app_id")
SHORT = st.text(max_size=40)
LONG = st.integers(-(2**63), 2**63 - 1)
REAL = st.floats(allow_nan=False)
MOMENT = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)).map(
    lambda at: at.replace(microsecond=0)
)
SCALAR = st.none() | st.booleans() | LONG | REAL | SHORT | st.binary(max_size=20) | MOMENT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SHORT, inner, max_size=3), max_leaves=6
)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(TEXTS, SHORT),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**40),
        "headers": st.dictionaries(SHORT.filter(lambda key: key != "x-weft-trace"), VALUE, max_size=4),
    },
)
NAMES = ("offset", "exchange", "routing_key", *TEXTS, "creation_time", "priority", "durable", "headers", "body_bytes")
NAMES = (*NAMES, "body")


def plain(value: Any) -> Any:
    """A nested value as JSON tells it."""
    match value:
        case bytes():
            return value.hex()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case float() if value in (float("inf"), float("-inf")):
            return None
        case _:
            return value


def matches(text: str | None, value: Any) -> bool:
    """Is this how a header's value is spelled?"""
    match value:
        case None:
            return text is None
        case str():
            return text == value
        case bool() | int():
            return text == str(value).lower()
        case float():
            return text is not None and float(text) == value
        case list() | dict():
            return text is not None and json.loads(text) == plain(value)
        case _:
            return text == plain(value)


def check(row: dict[str, Any], names: list[str], sent: dict[str, Any]) -> None:
    assert list(row) == names
    headers = row.pop("headers", None)
    if "headers" in names:
        expected = sent["headers"]
        assert (headers is None) == (expected is None)
        assert [key for key, _ in headers or ()] == list(expected or ())
        for key, text in headers or ():
            assert matches(text, (expected or {})[key]), (key, text)
    assert row == {name: sent[name] for name in row}


class Columns(RuleBasedStateMachine):
    """One engine with one durable queue, and a reader of its files."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weft-columns-"))
        self.engine = Engine(
            Limits(), node="n", version="0", seed=1, now_ns=0, wall_ns=10**18, data_dir=str(self.folder)
        )
        self.engine.apply([CreateVhost("/"), DeclareQueue("/", "q", durable=True, number=NUMBER)])
        self.sent: list[dict[str, Any]] = []
        self.next_offset = 0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    @rule(properties=PROPERTIES, body=st.binary(max_size=50) | st.binary(min_size=70_000, max_size=70_010))
    def publish(self, properties: dict[str, Any], body: bytes) -> None:
        properties = {"delivery_mode": 2, **properties}
        self.engine.publish("/", "", "q", body, properties)
        offset, self.next_offset = self.next_offset, self.next_offset + 1
        if properties["delivery_mode"] != 2:
            return  # it has its place in the queue, and none on the disk
        sent = {name: properties.get(name) for name in (*TEXTS, "headers")}
        seconds = properties.get("timestamp")
        sent["creation_time"] = None if seconds is None else seconds * 1_000_000
        sent |= {"offset": offset, "exchange": "", "routing_key": "q", "durable": True}
        sent |= {"priority": properties.get("priority", 0), "body_bytes": len(body), "body": body}
        self.sent.append(sent)

    @rule(count=st.integers(0, 3))
    def work(self, count: int) -> None:
        for job in self.engine.poll_disk()[: count or None]:
            job.run()
            self.engine.disk_done(job)

    @rule(start=st.integers(0, 30), length=st.integers(0, 30), names=st.sets(st.sampled_from(NAMES)))
    def read(self, start: int, length: int, names: set[str]) -> None:
        asked = sorted(names)
        expected = [sent for sent in self.sent if start <= sent["offset"] < start + length]
        live = rows(self.engine.read_log("/", "q", start, start + length, asked), asked)
        assert len(live) == len(expected)
        for row, sent in zip(live, expected, strict=True):
            check(row, asked, sent)
        on_disk = rows(LogReader(self.folder, NUMBER).read(start, start + length, asked, batch_rows=3), asked)
        for row, sent in zip(on_disk, expected, strict=False):
            check(row, asked, sent)


def rows(stream: object, names: list[str]) -> list[dict[str, Any]]:
    table: Any = pa.table(stream)
    if "creation_time" in names:
        at = table.schema.get_field_index("creation_time")
        table = table.set_column(at, "creation_time", table["creation_time"].cast(pa.int64()))
    return table.to_pylist()  # type: ignore[no-any-return]


TestColumns = Columns.TestCase
TestColumns.settings = settings(max_examples=settings().max_examples // 3)
