"""What a hop from one node to another costs in CPU, beside one node's own work, and beside RabbitMQ's shovel.

A program of its own: fills a queue at a source node and waits until a queue route (a shovel, between two RabbitMQs) has
moved everything into a queue of the destination, acknowledged. The same without a route tells what filling costs; the
difference is the hop. One JSON object is printed, in microseconds of CPU per message, user and system time of both
brokers together. It must treat both products alike: same publisher, same messages, same credit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pika
from pika import frame, spec

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import peers
from interop.raw091 import RawConnection

BODY = b"x" * 1024
PROPERTIES = spec.BasicProperties(content_type="text/plain")
CREDIT = 1_000
CHUNK_BYTES = 65_536
QUEUE = "q"
WAIT_S = 300.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")

LINK = """
[node]
name = "goal"
[[links]]
name = "source"
urls = ["amqp://guest:guest@127.0.0.1:{port}"]
[[routes]]
link = "source"
kind = "queue"
queue = "q"
exchange = "amq.direct"
credit = {credit}
"""
SHOVEL = """
[{{rabbitmq_shovel, [{{shovels, [{{hop, [
  {{source, [{{protocol, amqp091}}, {{uris, ["{source}"]}}, {{queue, <<"q">>}}, {{prefetch_count, {credit}}}]}},
  {{destination, [{{protocol, amqp091}}, {{uris, ["{goal}"]}},
    {{publish_fields, [{{exchange, <<"amq.direct">>}}, {{routing_key, <<"q">>}}]}}]}},
  {{ack_mode, on_confirm}}, {{reconnect_delay, 1}}]}}]}}]}}].
"""


def cpu_s(*brokers: peers.Peer) -> float:
    """User and system time so far."""
    fields = [Path(f"/proc/{broker.pid}/stat").read_text().rsplit(")", 1)[1].split() for broker in brokers]
    return sum(int(field[11]) + int(field[12]) for field in fields) * TICK_S


@contextmanager
def channel_to(broker: peers.Peer) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit("the messages did not arrive")
        time.sleep(0.05)


def depth(broker: peers.Peer, queue: str) -> int:
    with channel_to(broker) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


def publish(broker: peers.Peer, count: int) -> None:
    """Transient messages, encoded once, a chunk at a time."""
    one = b"".join(
        part.marshal()
        for part in (
            frame.Method(1, spec.Basic.Publish(exchange="", routing_key=QUEUE)),
            frame.Header(1, len(BODY), PROPERTIES),
            frame.Body(1, BODY),
        )
    )
    per_chunk = CHUNK_BYTES // len(one)
    with RawConnection(broker.host, broker.port) as connection:
        connection.open()
        connection.open_channel()
        connection.socket.settimeout(WAIT_S)
        for start in range(0, count, per_chunk):
            connection.send(one * min(per_chunk, count - start))
        # Answered after everything before it was taken.
        connection.call(1, spec.Channel.Close(200, "", 0, 0))
        while not isinstance(getattr(connection.read(), "method", spec.Channel.CloseOk()), spec.Channel.CloseOk):
            pass  # blocked and unblocked again: the broker holds a flood to what its disk takes


def drain(broker: peers.Peer, queue: str, count: int) -> None:
    """Take everything, acknowledged a quarter of the credit at a time; frames are counted by their bytes."""
    deliver = spec.Basic.Deliver("tag", 1, exchange="", routing_key=queue)
    parts = (frame.Method(1, deliver), frame.Header(1, len(BODY), PROPERTIES), frame.Body(1, BODY))
    size = sum(len(part.marshal()) for part in parts)
    with RawConnection(broker.host, broker.port) as connection:
        connection.open()
        connection.open_channel()
        connection.call(1, spec.Basic.Qos(prefetch_count=CREDIT))
        connection.expect(spec.Basic.QosOk)
        connection.call(1, spec.Basic.Consume(queue=queue, consumer_tag="tag"))
        # Its answer is read with the first deliveries, whose bytes follow it.
        read, acked = -len(frame.Method(1, spec.Basic.ConsumeOk("tag")).marshal()), 0
        connection.socket.settimeout(WAIT_S)
        while acked < count:
            read += len(connection.socket.recv(1 << 18))
            taken = read // size
            if taken - acked >= CREDIT // 4 or taken == count:
                connection.call(1, spec.Basic.Ack(taken, multiple=True))
                acked = taken
        connection.call(1, spec.Channel.Close(200, "", 0, 0))
        connection.expect(spec.Channel.CloseOk)


def alone(broker: peers.Peer, count: int) -> tuple[float, float]:
    """CPU of filling a queue, and of emptying it."""
    with channel_to(broker) as channel:
        channel.queue_declare(QUEUE, durable=True)
    start = cpu_s(broker)
    publish(broker, count)
    wait_for(lambda: depth(broker, QUEUE) == count)
    filled = cpu_s(broker)
    drain(broker, QUEUE, count)
    return filled - start, cpu_s(broker) - filled


def hop(source: peers.Peer, goal: peers.Peer, count: int) -> float:
    """CPU of both while messages are published at one and moved to the other."""
    start = cpu_s(source, goal)
    publish(source, count)
    wait_for(lambda: depth(goal, "there") == count)
    spent = cpu_s(source, goal) - start
    with channel_to(goal) as channel:
        channel.queue_purge("there")
    return spent


def start_goal(kind: str, folder: Path, source: peers.Peer) -> peers.Peer:
    """A destination with a queue that the messages go to, and the route to it."""
    if kind == "weft":
        file = folder / "goal.toml"
        folder.mkdir(parents=True)
        file.write_text(LINK.format(port=source.port, credit=CREDIT))
        return peers.start_weft(folder / "data", "--config", str(file))
    shovel = SHOVEL.format(source=source.url.replace("%2F", "%2f"), goal="amqp://", credit=CREDIT)
    return peers.start_rabbitmq(folder, ("rabbitmq_shovel",), shovel)


def measure(kind: str, count: int, runs: int) -> dict[str, float]:
    """Microseconds per message: one node's own work, and what a hop adds. The least of a few runs."""
    with tempfile.TemporaryDirectory(prefix="hop-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        start = peers.start_weft if kind == "weft" else peers.start_rabbitmq
        source = start(folder / "source")
        stack.callback(source.stop)
        alone(source, count // 10)
        own = [alone(source, count) for _ in range(runs)]
        goal = start_goal(kind, folder / "goal", source)
        stack.callback(goal.stop)
        with channel_to(goal) as channel:
            channel.queue_declare("there", durable=True)
            channel.queue_bind("there", "amq.direct", QUEUE)
        hop(source, goal, count // 10)
        moved = [hop(source, goal, count) for _ in range(runs)]
    fill, empty = min(fill for fill, _ in own), min(empty for _, empty in own)
    per_message = 1e6 / count
    return {"own": (fill + empty) * per_message, "hop": (min(moved) - fill) * per_message}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["weft", "rabbitmq"])
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["weft"] + ["rabbitmq"] * peers.rabbitmq_installed()
    print(json.dumps({kind: measure(kind, options.count, options.runs) for kind in kinds}))


if __name__ == "__main__":
    main()
