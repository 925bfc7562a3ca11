"""Messages do not pass through Python: ten thousand cost a few calls per read and per flush, and none per message."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pika import frame, spec

from interop.raw091 import RawConnection

MESSAGES = 10_000
BODY = bytes(100)

NODE = """
import asyncio, collections, json, sys, weft

async def main():
    loop = asyncio.get_running_loop()
    calls = collections.Counter()
    def count(frame, event, _argument):
        if event == "call":
            calls[frame.f_code.co_name] += 1
    async with weft.Node(listen="127.0.0.1:0") as node:
        print(node.ports[0], flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        sys.setprofile(count)
        print("counting", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        sys.setprofile(None)
        print(json.dumps(calls), flush=True)

import uvloop
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


class Node:
    """A node that counts the Python calls of its loop between two lines of its standard input."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", NODE]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.port = int(self.read())

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def step(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        return self.read()


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.process.kill()
    made.process.communicate()


def publishes(queue: str) -> bytes:
    """All messages in one piece, as a publisher that does not wait sends them."""
    one = frame.Method(1, spec.Basic.Publish(exchange="", routing_key=queue)).marshal()
    one += frame.Header(1, len(BODY), spec.BasicProperties()).marshal() + frame.Body(1, BODY).marshal()
    return one * MESSAGES


def test_no_python_call_per_message(node: Node) -> None:
    with RawConnection("127.0.0.1", node.port) as publisher, RawConnection("127.0.0.1", node.port) as consumer:
        for connection in (publisher, consumer):
            connection.open().open_channel()
        publisher.call(1, spec.Queue.Declare(queue="counted", auto_delete=True))
        publisher.expect(spec.Queue.DeclareOk)
        consumer.call(1, spec.Basic.Consume(queue="counted", no_ack=True, consumer_tag="c"))
        consumer.expect(spec.Basic.ConsumeOk)
        publisher.publish(1, spec.Basic.Publish(exchange="", routing_key="counted"), BODY)  # asks for the grant
        delivery = frame.Method(1, spec.Basic.Deliver("c", 1, False, "", "counted")).marshal()
        delivery += frame.Header(1, len(BODY), spec.BasicProperties()).marshal() + frame.Body(1, BODY).marshal()
        assert consumer.read_bytes(len(delivery)) == delivery

        assert node.step() == "counting\n"
        publisher.send(publishes("counted"))
        received = consumer.read_bytes(len(delivery) * MESSAGES)
        calls = json.loads(node.step())

    assert len(received) == len(delivery) * MESSAGES
    reads, flushes = calls["data_received"], calls["flush"]
    assert reads + flushes < MESSAGES / 10, calls
    assert sum(calls.values()) <= 5 * (reads + flushes) + 100, calls
