"""Nodes are replaced one by one under confirmed traffic: both of one version here, of any two by `make upgrade`."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import peers
from system.living import LivingNode, publish_stored
from system.rolling import Outcome, roll

NEWER = 99
CASTAGNOLI = 0x82F63B78


@pytest.mark.slow
def test_nodes_are_replaced_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    outcome = roll(tmp_path, None, None, back=False, between=50)
    assert outcome.is_good, outcome
    assert [step.split(":")[0] for step in outcome.steps] == [
        f"{name} is new now" for name in ("gateway", "source", "sink")
    ]


@pytest.mark.parametrize(
    "bad",
    [
        Outcome(confirmed=0),
        Outcome(confirmed=9, lost=1, kept=9),
        Outcome(confirmed=9, twice=1, kept=9),
        Outcome(confirmed=9, kept=8),
    ],
)
def test_what_went_wrong_is_not_called_good(bad: Outcome) -> None:
    assert not bad.is_good


@pytest.mark.slow
def test_a_folder_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    node = LivingNode(tmp_path / "data")
    node.channel().queue_declare("q", durable=True)
    publish_stored(node, "q", [b"kept"])
    node.stop()
    definitions = tmp_path / "data" / "definitions.sqlite"
    with closing(sqlite3.connect(definitions)) as database:
        (format_now,) = database.execute("PRAGMA user_version").fetchone()
        database.execute(f"PRAGMA user_version = {NEWER}")
    assert f"written by a newer weft (format {NEWER}" in _refused(tmp_path)
    with closing(sqlite3.connect(definitions)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (NEWER,)
        database.execute(f"PRAGMA user_version = {format_now}")
    segment = sorted((tmp_path / "data").rglob("*.log"))[0]
    before = segment.read_bytes()
    newer = _of_format(before, NEWER)
    segment.write_bytes(newer)
    assert f"has format {NEWER}, and this program knows formats up to" in _refused(tmp_path)
    assert segment.read_bytes() == newer
    segment.write_bytes(before)
    node.start()
    assert node.channel().basic_get("q", auto_ack=True)[2] == b"kept"
    node.end()


def _of_format(segment: bytes, number: int) -> bytes:
    """The same segment with another format in its header (docs/internals/segment.md)."""
    header = segment[:8] + number.to_bytes(2, "little") + segment[10:60]
    return header + _crc32c(header).to_bytes(4, "little") + segment[64:]


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (CASTAGNOLI if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _refused(folder: Path) -> str:
    """What a node says that does not start, which must be one line."""
    command = [sys.executable, "-m", "weft", "up", "--listen", f"{peers.HOST}:0", "--data-dir", str(folder / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended
    (line,) = ended.stderr.splitlines()
    return line
