"""A data folder is copied while its node is busy, and a node that is started with the copy has what was confirmed.

Real nodes and `weft backup` as a program. Rule: docs/guides/operations.md, "Backup".
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pika
import pytest

import peers

PERSISTENT = pika.BasicProperties(delivery_mode=2)
BODY_BYTES = 200_000
"""A segment is full after 300 of them."""


def backup(folder: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weft", "backup", str(folder), str(target)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def channel(node: peers.Peer) -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters(node.host, node.port, heartbeat=0)).channel()


class Writer(threading.Thread):
    """Publishes numbers to a queue and a stream, each until it is confirmed, and takes most of the queue away again."""

    def __init__(self, node: peers.Peer) -> None:
        super().__init__(daemon=True)
        self._channel = channel(node)
        self._channel.queue_declare("q", durable=True)
        self._channel.queue_declare("log", durable=True, arguments={"x-queue-type": "stream"})
        for queue in ("q", "log"):
            self._channel.queue_bind(queue, "amq.fanout")
        self._channel.confirm_delivery()
        self.confirmed = 0
        self.taken: set[int] = set()
        self.is_told_to_end = threading.Event()
        self.is_in_second_segment = threading.Event()

    def run(self) -> None:
        while not self.is_told_to_end.is_set():
            body = f"{self.confirmed} ".ljust(BODY_BYTES).encode()
            self._channel.basic_publish("amq.fanout", "", body, PERSISTENT)
            self.confirmed += 1
            if self.confirmed % 10:
                _, _, got = self._channel.basic_get("q", auto_ack=True)
                self.taken.add(int(got))
            if self.confirmed == 64 * 2**20 // BODY_BYTES + 10:
                self.is_in_second_segment.set()
        self._channel.connection.close()


def test_a_copy_has_what_was_confirmed_before_it_was_begun(tmp_path: Path) -> None:
    node = peers.start_weft(tmp_path / "data")
    writer = Writer(node)
    writer.start()
    try:
        assert writer.is_in_second_segment.wait(60)
        before = writer.confirmed
        said = backup(tmp_path / "data", tmp_path / "copy")
        taken = set(writer.taken)
    finally:
        writer.is_told_to_end.set()
        writer.join()
        node.stop()
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.startswith("copied ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "data"]

    node = peers.start_weft(tmp_path / "copy")
    try:
        text = node.output.text()
        there = channel(node)
        waiting = []
        while (got := there.basic_get("q", auto_ack=True))[0] is not None:
            waiting.append(int(got[2]))
        there.basic_qos(prefetch_count=10)
        kept = []
        for method, _, body in there.consume("log", arguments={"x-stream-offset": "first"}, inactivity_timeout=0.5):
            if method is None:
                break
            kept.append(int(body))
            there.basic_ack(method.delivery_tag)
        there.connection.close()
    finally:
        node.stop()
    assert "passed over" not in text
    assert "left alone" not in text
    assert kept == list(range(len(kept)))
    assert len(kept) >= before
    assert set(range(before)) - taken <= set(waiting)
    assert waiting == sorted(set(waiting))


@pytest.mark.parametrize(
    ("folder", "target", "words"),
    [
        ("nowhere", "copy", "there is no node's data in {}/nowhere"),
        ("data", "data", "{}/data is there already; name a folder that is not"),
        ("data", "no/where", "cannot copy {0}/data to {0}/no/where: no such file or directory"),
    ],
)
def test_what_cannot_be_copied(tmp_path: Path, folder: str, target: str, words: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "definitions.sqlite").touch()
    said = backup(tmp_path / folder, tmp_path / target)
    assert said.returncode == (2 if target == "data" else 1)
    assert said.stderr == f"weft backup: {words.format(tmp_path)}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
