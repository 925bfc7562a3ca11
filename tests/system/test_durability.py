"""Levels of durability: what a queue, or a node, is told to keep.

Owns one kill of a node whose queues keep their messages differently. It must not rely on when something reaches the
disk, only on what a killed process leaves behind. Rules: docs/guides/durability.md, "How safe is safe".
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pika
import pytest

from interop.support import depth, receive
from weft.cli import main
from weft.log import stored_queues
from weft.store import Store

from .conftest import StartNode
from .living import PERSISTENT, LivingNode

COUNT = 50


def fill(node: LivingNode, queue: str, **arguments: str) -> None:
    channel = node.channel(confirms=True)
    named = {key.replace("_", "-"): value for key, value in arguments.items()}
    channel.queue_declare(queue, durable=True, arguments=named)
    for _ in range(COUNT):
        channel.basic_publish("", queue, b"x", PERSISTENT)


def test_a_queue_says_what_its_messages_survive(node: LivingNode) -> None:
    for level in ("sync", "write", "memory"):
        fill(node, level, x_durability=level)
    node.restart(kill=True)
    channel = node.channel()
    assert [depth(channel, level) for level in ("sync", "write", "memory")] == [COUNT, COUNT, 0]


@pytest.mark.parametrize(("level", "kept"), [("write", COUNT), ("memory", 0)])
def test_a_node_says_it_for_queues_that_do_not(start_node: StartNode, tmp_path: Path, level: str, kept: int) -> None:
    config = tmp_path / "weft.toml"
    config.write_text(f'[settings]\ndurability = "{level}"\n')
    node = start_node(None, "--config", str(config))
    fill(node, "plain")
    fill(node, "own", x_durability="sync")
    node.restart(kill=True)
    channel = node.channel()
    assert (depth(channel, "plain"), depth(channel, "own")) == (kept, COUNT)


def test_a_message_in_two_queues_is_as_safe_as_the_stricter_one_wants(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    for level in ("sync", "write", "memory"):
        channel.queue_declare(level, durable=True, arguments={"x-durability": level})
        channel.queue_bind(level, "amq.fanout")
    channel.basic_publish("amq.fanout", "", b"x", PERSISTENT)
    assert [depth(channel, level) for level in ("sync", "write", "memory")] == [1, 1, 1]
    node.restart(kill=True)
    channel = node.channel()
    assert [depth(channel, level) for level in ("sync", "write", "memory")] == [1, 1, 0]


def test_a_message_in_five_queues_is_on_disk_once_until_the_last_has_done_with_it(node: LivingNode) -> None:
    body = b"one letter, five envelopes " * 1_000
    queues = [f"envelope-{number}" for number in range(5)]
    channel = node.channel(confirms=True)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    channel.basic_publish("amq.fanout", "", body, PERSISTENT)

    def copies() -> int:
        return sum(path.read_bytes().count(body) for path in node.folder.rglob("*") if path.is_file())

    assert copies() == 1
    for queue in queues[:-1]:
        assert [each.body for each in receive(channel, queue, 1)] == [body]
    node.restart(kill=True)
    assert copies() == 1
    assert [each.body for each in receive(node.channel(), queues[-1], 1)] == [body]


def test_what_a_crash_will_lose_is_known_before_it(node: LivingNode) -> None:
    """The node's count of messages that no disk has is what is missing afterwards, wherever they are."""
    fill(node, "kept")
    fill(node, "forgetful", x_durability="memory")
    channel = node.channel(confirms=True)
    channel.queue_declare("passing")
    for queue, count in (("kept", 7), ("passing", 3)):
        for _ in range(count):
            channel.basic_publish("", queue, b"transient")
    held = receive(channel, "kept", 5, auto_ack=False)
    assert len(held) == 5, "what a consumer has is as safe as before"
    stats = node.snapshot()["stats"]
    assert (stats["ready"], stats["unsettled"], stats["unsynced"]) == (2 * COUNT + 10 - 5, 5, COUNT + 10)
    node.restart(kill=True)
    after = node.snapshot()["stats"]
    assert stats["ready"] + stats["unsettled"] - after["ready"] == stats["unsynced"]
    assert (after["ready"], after["unsynced"]) == (COUNT, 0)


def test_messages_of_a_deleted_queue_go_and_those_of_an_unknown_one_stay(
    node: LivingNode, capsys: pytest.CaptureFixture[str]
) -> None:
    for queue in ("kept", "deleted", "unknown"):
        fill(node, queue)
    node.stop()
    store = Store(node.folder / "definitions.sqlite")
    with store.transaction():
        store.delete_queue("/", "deleted")
    store.close()
    with closing(sqlite3.connect(node.folder / "definitions.sqlite")) as database, database:
        database.execute("DELETE FROM queues WHERE name = 'unknown'")
    node.start()
    assert f"dropped {COUNT} messages of queues that are deleted" in node.said
    assert f"left alone {COUNT} messages of queues that the definitions do not know" in node.said
    node.restart(kill=False)
    assert "dropped" not in node.said
    told = re.search(rf"left alone {COUNT} messages of queues that .+: ([0-9]+) \({COUNT}\)", node.said)
    assert told
    assert main(["log", str(node.folder), "--number", told[1], "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["offset"], row["routing_key"]) for row in rows] == [(place, "unknown") for place in range(COUNT)]
    # A number that the definitions know is none of its business.
    known = next(queue.number for queue in stored_queues(node.folder) if queue.name == "kept")
    node.stop()
    node.start("--forget", told[1], "--forget", str(known))
    assert f"forgot {COUNT} messages that were left alone" in node.said
    node.restart(kill=True)
    assert "left alone" not in node.said
    assert "forgot" not in node.said, "it is remembered, whatever of it the crash undid"
    assert depth(node.channel(), "kept") == COUNT


def test_a_bit_of_the_definitions_that_the_disk_turned_over_costs_nothing(node: LivingNode) -> None:
    fill(node, "queue")
    node.kill()
    log = node.folder / "definitions.sqlite-wal"
    harmed = bytearray(log.read_bytes())
    # In the first frame, where it would end the log for SQLite.
    harmed[32 + 24 + 100] ^= 1
    log.write_bytes(harmed)
    node.start()
    assert "a bit of their log was turned over" in node.said
    assert depth(node.channel(), "queue") == COUNT


def test_messages_are_left_alone_where_the_definitions_are_lost(node: LivingNode) -> None:
    fill(node, "queue")
    node.stop()
    saved = node.folder.parent / "saved"
    saved.mkdir()
    for path in node.folder.glob("definitions.*"):
        path.rename(saved / path.name)
    node.start()
    assert f"left alone {COUNT} messages" in node.said
    node.stop()
    for path in node.folder.glob("definitions.*"):
        path.unlink()
    for path in saved.iterdir():
        path.rename(node.folder / path.name)
    node.start()
    assert depth(node.channel(), "queue") == COUNT


def test_a_message_that_waits_for_its_time_survives_a_kill(node: LivingNode) -> None:
    channel = node.channel(confirms=True)
    arguments = {"x-delayed-type": "direct", "x-barrier": "message-id"}
    channel.exchange_declare("later", "x-delayed-message", durable=True, arguments=arguments)
    for queue in ("key", "copy", "hidden"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "later", queue)
    headers = {"x-delay": 3_000, "CC": ["copy"], "BCC": ["hidden"]}
    due_s = time.monotonic() + 3
    for ident, mode in (("kept", 2), ("kept", 2), ("transient", 1)):
        properties = pika.BasicProperties(delivery_mode=mode, message_id=ident, headers=headers)
        channel.basic_publish("later", "key", ident.encode(), properties)
    node.restart(kill=True)
    channel = node.channel(confirms=True)
    depths = [depth(channel, queue) for queue in ("key", "copy", "hidden")]
    assert depths == [0, 0, 0] or time.monotonic() > due_s
    # It is known as well: a duplicate after the crash is still a duplicate.
    properties = pika.BasicProperties(delivery_mode=2, message_id="kept", headers=headers)
    channel.basic_publish("later", "key", b"again", properties)
    for queue in ("key", "copy", "hidden"):
        assert [bytes(each.body) for each in receive(channel, queue, 1)] == [b"kept"]
    node.restart(kill=False)
    channel = node.channel()
    assert [depth(channel, queue) for queue in ("key", "copy", "hidden")] == [0, 0, 0]
