"""Debian's amqp-tools: the command line over librabbitmq, the C client most languages are built on.

Owns nothing but command lines: each test runs the installed programs and reads what they print. pika prepares and
looks where the tools cannot. Skipped only where the package amqp-tools is not installed. The programs' rules are in
their manual pages.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from .support import publish, receive, take_all, wait_depth

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(
        shutil.which("amqp-publish") is None, reason="amqp-tools is not installed (apt-get install amqp-tools)"
    ),
]

Name = Callable[..., str]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def run(broker: Any) -> Run:
    def run_tool(tool: str, *options: str, stdin: bytes = b"", expect: int = 0) -> subprocess.CompletedProcess[bytes]:
        url = f"amqp://guest:guest@{broker.host}:{broker.port}/%2f"
        done = subprocess.run([tool, "-u", url, *options], input=stdin, capture_output=True, timeout=20, check=False)
        assert done.returncode == expect, done.stderr
        return done

    return run_tool


def test_declare_publish_get_delete(run: Run, name: Name) -> None:
    queue = name()
    assert run("amqp-declare-queue", "-q", queue).stdout.decode().strip() == queue
    run("amqp-publish", "-r", queue, "-b", "hello")
    run("amqp-publish", "-r", queue, "-b", "again")
    assert run("amqp-get", "-q", queue).stdout == b"hello"
    assert run("amqp-delete-queue", "-q", queue).stdout.strip() == b"1"


def test_get_from_an_empty_queue(run: Run, name: Name) -> None:
    queue = name()
    run("amqp-declare-queue", "-q", queue)
    assert run("amqp-get", "-q", queue, expect=2).stdout == b""
    run("amqp-delete-queue", "-q", queue)


def test_body_from_standard_input_and_properties(run: Run, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name(), auto_delete=True).method.queue
    body = bytes(range(256)) * 2000  # several frames
    run("amqp-publish", "-r", queue, "-p", "-C", "application/octet-stream", "-H", "colour: blue", stdin=body)
    delivery = receive(channel, queue, 1)[0]
    assert delivery.body == body
    assert delivery.properties.delivery_mode == 2
    assert delivery.properties.content_type == "application/octet-stream"
    assert delivery.properties.headers["colour"].strip() == "blue"
    channel.queue_delete(queue)


def test_lines_become_messages(run: Run, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name(), auto_delete=True).method.queue
    run("amqp-publish", "-r", queue, "-l", stdin=b"one\ntwo\nthree\n")
    wait_depth(channel, queue, 3)
    assert [each.strip() for each in take_all(channel, queue)] == [b"one", b"two", b"three"]
    channel.queue_delete(queue)


def test_consume_runs_a_command_per_message(run: Run, channel: BlockingChannel, name: Name) -> None:
    queue = channel.queue_declare(name(), auto_delete=False).method.queue
    publish(channel, queue, b"first\n", b"second\n", b"third\n")
    assert run("amqp-consume", "-q", queue, "-c", "2", "-p", "1", "cat").stdout == b"first\nsecond\n"
    wait_depth(channel, queue, 1)
    channel.queue_delete(queue)


def test_consume_through_an_exchange(run: Run, broker: Any, connection: pika.BlockingConnection, name: Name) -> None:
    """The tool makes its own queue and binding; its consumer is seen on that queue before anything is published."""
    queue, channel = name(), connection.channel()
    command = [
        "amqp-consume", "-u", f"amqp://guest:guest@{broker.host}:{broker.port}/%2f", "-q", queue, "-d",
        "-e", "amq.topic", "-r", f"{queue}.#", "-c", "1", "cat",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tool:
        wait_for_consumer(connection, queue)
        channel.basic_publish("amq.topic", f"{queue}.a.b", b"routed")
        assert tool.communicate(timeout=20)[0] == b"routed"
    assert tool.returncode == 0


def wait_for_consumer(connection: pika.BlockingConnection, queue: str) -> None:
    for _ in range(500):
        try:
            with connection.channel() as channel:
                if channel.queue_declare(queue, passive=True).method.consumer_count:
                    return
        except pika.exceptions.ChannelClosedByBroker as error:
            assert error.reply_code in (404, 405), error
            if error.reply_code == 405:  # exclusive to the tool: it has got that far, and consumes next
                return
        connection.process_data_events(time_limit=0.02)
    pytest.fail("the tool did not start consuming")


def test_errors_are_reported(run: Run, name: Name) -> None:
    assert b"404" in run("amqp-get", "-q", name("missing"), expect=1).stderr
