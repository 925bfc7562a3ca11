"""Rules and scaling over a living node: lines are crossed, instances come and go, and the commands end well."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest

from .living import LivingNode

WAIT_S = 30.0
WORKER = """
import asyncio, os, weft
async def main():
    async with weft.connect(os.environ["WEFT_URL"]) as fabric:
        @fabric.service(os.environ["WEFT_SERVICE"], concurrency=1)
        async def handle(message):
            await asyncio.sleep(0.05)
            return message.body
        await fabric.serve()
asyncio.run(main())
"""


class Command:
    """A `weft` command that runs beside the test; its lines can be waited for."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "weft", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.lines: list[str] = []
        self._arriving: Queue[str | None] = Queue()
        self._reader = Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self._arriving.put(line.rstrip())
        self._arriving.put(None)

    def until(self, words: str) -> str:
        """The first new line with these words in it."""
        while True:
            line = self._arriving.get(timeout=WAIT_S)
            assert line is not None, f"it ended without saying {words!r}:\n" + "\n".join(self.lines)
            self.lines.append(line)
            if words in line:
                return line

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.process.kill()
            command.process.wait()


def publish(node: LivingNode, queue: str, count: int) -> None:
    channel = node.channel(confirms=True)
    for _ in range(count):
        channel.basic_publish("", queue, b"work")


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_load_step_brings_instances_and_quiet_takes_them_away(
    node: LivingNode, tmp_path: Path, commands: list[Command]
) -> None:
    worker, file = tmp_path / "worker.py", tmp_path / "services.toml"
    worker.write_text(WORKER)
    file.write_text(
        f'[services."user.lifecycle"]\ncommand = ["{sys.executable}", "{worker}"]\n'
        "min = 1\nmax = 3\nmessages_each = 20\nup_s = 0.5\ndown_s = 1\n"
    )
    node.channel().queue_declare("user.lifecycle", durable=True)
    scale = Command("scale", str(file), "--url", f"amqp://127.0.0.1:{node.port}", "--interval", "0.2")
    commands.append(scale)
    scale.until("0 → 1")
    publish(node, "user.lifecycle", 150)
    assert "messages wait" in scale.until("1 → 2")
    scale.until("2 → 3")
    assert "quiet" in scale.until("3 → 2")
    scale.until("2 → 1")
    children = Path(f"/proc/{scale.process.pid}/task/{scale.process.pid}/children").read_text().split()
    assert scale.end() == 0
    assert not [child for child in children if os.path.exists(f"/proc/{child}")]
    assert node.channel().queue_declare("user.lifecycle", passive=True).method.message_count == 0


@pytest.mark.timeout(90)
def test_an_alert_takes_the_place_of_an_instance(node: LivingNode, tmp_path: Path, commands: list[Command]) -> None:
    file, started = tmp_path / "services.toml", tmp_path / "started"
    file.write_text(
        f'[services.s]\ncommand = ["{sys.executable}", "-c", "open({str(started)!r}, \'w\')"]\nmin = 0\nmax = 3\n'
        'messages_each = 20\nup_s = 0.2\nmode = "alert"\n'
    )
    channel = node.channel()
    channel.queue_declare("s", durable=True)
    channel.queue_declare("alerts", durable=True)
    channel.queue_bind("alerts", "weft.events", "service.#.s.*")
    scale = Command("scale", str(file), "--url", f"amqp://127.0.0.1:{node.port}", "--interval", "0.1")
    commands.append(scale)
    scale.until("scaling s")
    publish(node, "s", 50)
    scale.until("messages wait")
    method, _, body = next(channel.consume("alerts", auto_ack=True))
    channel.cancel()
    assert method.routing_key.startswith("service.advised.warning.s.")
    assert json.loads(body)["values"]["instances"] > 0
    assert scale.end() == 0
    assert not started.exists(), "it was to be told only"


@pytest.mark.timeout(90)
def test_a_request_from_outside_is_obeyed_and_a_bad_one_told(
    node: LivingNode, tmp_path: Path, commands: list[Command]
) -> None:
    file = tmp_path / "services.toml"
    file.write_text(
        f'[services.s]\nscale_command = ["{sys.executable}", "-c", "print()", "{{count}}"]\nmax = 5\n'
        "messages_each = 9\n"
    )
    scale = Command("scale", str(file), "--url", f"amqp://127.0.0.1:{node.port}", "--interval", "0.2")
    commands.append(scale)
    scale.until("scaling s")
    channel = node.channel()
    channel.basic_publish("", "weft.scaling", b"\xff not json")
    scale.until("cannot be read")
    channel.basic_publish(
        "", "weft.scaling", b'{"service": "s", "instances": 4, "reason": "peak", "source": "capacity"}'
    )
    assert scale.until("1 → 4").endswith("capacity: peak")
    channel.basic_publish("weft.commands", "scale.s", b'{"queue": "s", "recommended": 5, "consumers": 4}')
    assert scale.until("4 → 5").endswith("capacity: forecast")
    assert scale.end() == 0


@pytest.mark.timeout(60)
def test_a_rule_is_told_once_and_its_event_can_be_heard(
    node: LivingNode, tmp_path: Path, commands: list[Command]
) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        'interval_s = 0.1\n[rules.transaction_test]\nattribute = "messages"\nabove = 10\nclear = 5\n'
        'severity = "critical"\naction = ["log", "event"]\n[rules.new]\nevent = "queue.created.#"\nobject = "late"\n'
    )
    channel = node.channel()
    channel.queue_declare("transaction_test", durable=True)
    channel.queue_declare("alarms", durable=True)
    for kind in ("crossed", "cleared"):
        channel.queue_bind("alarms", "weft.events", f"rule.{kind}.#")
    watch = Command("watch", str(file), "--url", f"amqp://127.0.0.1:{node.port}")
    commands.append(watch)
    watch.until("watching")
    publish(node, "transaction_test", 11)
    assert "above 10" in watch.until("critical transaction_test")
    channel.queue_purge("transaction_test")
    watch.until("cleared transaction_test")
    found = []
    for method, _, _ in channel.consume("alarms", auto_ack=True):
        found.append(method.routing_key)
        if len(found) == 2:
            break
    channel.cancel()
    assert [key.rsplit(".", 1)[0] for key in found] == [
        "rule.crossed.warning.transaction_test",
        "rule.cleared.info.transaction_test",
    ]
    channel.queue_declare("late", durable=True)
    watch.until("new: queue late")
    assert watch.end() == 0


def test_a_node_that_is_not_there_and_a_bad_file_are_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[rules.q]\nattribute = "messages"\nabove = 1\n')
    words = [sys.executable, "-m", "weft", "watch", str(file), "--url", "amqp://127.0.0.1:1"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1), ended.stderr
    services = tmp_path / "services.toml"
    services.write_text('[services.s]\ncommand = ["x"]\nmessages_each = 1\n')
    scale = [sys.executable, "-m", "weft", "scale", str(services), "--interval", "-1"]
    ended = subprocess.run(scale, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    file.write_text("[rules.q]\n")
    ended = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "needs an attribute" in ended.stderr
