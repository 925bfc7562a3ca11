"""What a hop from one node to another costs in CPU, beside one node's own work, and beside RabbitMQ's ways to do it.

A program of its own. *Flowing*: a publisher at one node and a consumer at another, which acknowledges, with a queue
route (a shovel, a federated queue) between them; the same publisher and consumer at one node tell what is its own work,
and the difference is the hop. The publisher is never far ahead, so that no queue grows. *Waiting*: a queue is filled
faster than the route moves it, up to everything, and nobody consumes at the destination; beside it one node's queue is
filled, then emptied. One JSON object is printed, in microseconds of CPU per message, user and system time of all
brokers together. It must treat all products alike: same clients, same messages, same credit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pika
from pika import frame, spec

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import peers
from interop.raw091 import RawConnection

BODY = b"x" * 1024
PROPERTIES = spec.BasicProperties(content_type="text/plain")
CREDIT = 1_000
AHEAD_MAX = 4_000
"""Messages that a flow's publisher is ahead of its consumer: enough that neither waits for the other's every step."""
CHUNK_BYTES = 65_536
QUEUE = "q"
WAIT_S = 300.0
PAUSE_S = 0.001
CPU_CLOCK = 2
"""Which clock of a process is meant, in the low bits of its number (Linux, `clock_getcpuclockid`)."""
FRAMES_PER_MESSAGE = 3
FRAME_HEAD = struct.Struct(">BHL")

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
    """User and system time so far, of all threads. Ticks of `/proc/PID/stat` are a tenth of one node's whole work."""
    return sum(time.clock_gettime(~broker.pid << 3 | CPU_CLOCK) for broker in brokers)


@contextmanager
def channel_to(broker: peers.Peer) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    yield connection.channel()
    connection.close()


def wait_for(check: Callable[[], bool], pause_s: float = 0.05) -> None:
    deadline = time.monotonic() + WAIT_S
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit("the messages did not arrive")
        time.sleep(pause_s)


def depth(broker: peers.Peer, queue: str) -> int:
    with channel_to(broker) as channel:
        return int(channel.queue_declare(queue, passive=True).method.message_count)


def publish(broker: peers.Peer, count: int, may_go_on: Callable[[int], bool] = lambda _sent: True) -> None:
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
            if not may_go_on(start):
                wait_for(lambda start=start: may_go_on(start), PAUSE_S)
            connection.send(one * min(per_chunk, count - start))
        # Answered after everything before it was taken.
        connection.call(1, spec.Channel.Close(200, "", 0, 0))
        while not isinstance(getattr(connection.read(), "method", spec.Channel.CloseOk()), spec.Channel.CloseOk):
            pass  # blocked and unblocked again: the broker holds a flood to what its disk takes


class Drain:
    """Takes messages from a queue, acknowledged a quarter of the credit at a time."""

    def __init__(self, broker: peers.Peer, queue: str) -> None:
        self._connection = RawConnection(broker.host, broker.port)
        self._connection.open()
        self._connection.open_channel()
        self._connection.call(1, spec.Basic.Qos(prefetch_count=CREDIT))
        self._connection.expect(spec.Basic.QosOk)
        self._connection.call(1, spec.Basic.Consume(queue=queue, consumer_tag="tag"))
        self._connection.socket.settimeout(WAIT_S)
        self.taken = 0

    def run(self, count: int) -> None:
        """Take so many. All are as long as the first, so that bytes tell how many there are."""
        # The answer to basic.consume is read with the first deliveries, whose bytes follow it.
        front = len(frame.Method(1, spec.Basic.ConsumeOk("tag")).marshal())
        data, size, acked = b"", None, 0
        while size is None:
            data += self._connection.socket.recv(1 << 18)
            size = message_bytes(data[front:])
        read = len(data) - front
        while acked < count:
            self.taken = read // size
            if self.taken - acked >= CREDIT // 4 or self.taken == count:
                self._connection.call(1, spec.Basic.Ack(self.taken, multiple=True))
                acked = self.taken
            else:
                read += len(self._connection.socket.recv(1 << 18))
        if read != count * size:
            raise SystemExit(f"{read} bytes are not {count} messages of {size}")
        self._connection.call(1, spec.Channel.Close(200, "", 0, 0))
        self._connection.expect(spec.Channel.CloseOk)
        self._connection.socket.close()


def message_bytes(data: bytes) -> int | None:
    """Bytes of the three frames that a message is delivered in; None if they are not all there."""
    at = 0
    for _ in range(FRAMES_PER_MESSAGE):
        if at + FRAME_HEAD.size > len(data):
            return None
        at += FRAME_HEAD.size + FRAME_HEAD.unpack_from(data, at)[2] + 1
    return at if at <= len(data) else None


def flow(brokers: list[peers.Peer], queue: str, count: int) -> float:
    """CPU of all brokers while messages are published at the first and taken from a queue of the last."""
    drain = Drain(brokers[-1], queue)
    start = cpu_s(*brokers)
    consumer = threading.Thread(target=drain.run, args=(count,))
    consumer.start()
    publish(brokers[0], count, lambda sent: sent - drain.taken < AHEAD_MAX)
    consumer.join()
    return cpu_s(*brokers) - start


def fill(broker: peers.Peer, count: int) -> float:
    """CPU of filling a queue that nobody reads."""
    start = cpu_s(broker)
    publish(broker, count)
    wait_for(lambda: depth(broker, QUEUE) == count)
    return cpu_s(broker) - start


def empty(broker: peers.Peer, count: int) -> float:
    """CPU of emptying it."""
    start = cpu_s(broker)
    Drain(broker, QUEUE).run(count)
    return cpu_s(broker) - start


def move(source: peers.Peer, goal: peers.Peer, queue: str, count: int) -> float:
    """CPU of both while messages are published at one and wait at the other in the end."""
    start = cpu_s(source, goal)
    publish(source, count)
    wait_for(lambda: depth(goal, queue) == count)
    spent = cpu_s(source, goal) - start
    with channel_to(goal) as channel:
        channel.queue_purge(queue)
    return spent


def start_goal(way: str, folder: Path, source: peers.Peer) -> peers.Peer:
    """A destination with a queue that the messages go to, and the way to it."""
    if way == "weft":
        file = folder / "goal.toml"
        folder.mkdir(parents=True)
        file.write_text(LINK.format(port=source.port, credit=CREDIT))
        return peers.start_weft(folder / "data", "--config", str(file))
    url = source.url.replace("%2F", "%2f")
    if way == "shovel":
        return peers.start_rabbitmq(
            folder, ("rabbitmq_shovel",), SHOVEL.format(source=url, goal="amqp://", credit=CREDIT)
        )
    return peers.start_rabbitmq(folder, ("rabbitmq_federation",), definitions=federation(url))


def federation(url: str) -> dict[str, object]:
    """A user, and the queue of another broker as upstream of ours of the same name."""
    own, every = {"user": "guest", "vhost": "/"}, ".*"
    upstream = {"uri": url, "prefetch-count": CREDIT, "ack-mode": "on-confirm"}
    named = {"name": "hop", "vhost": "/"}
    return {
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "vhosts": [{"name": "/"}],
        "permissions": [{**own, "configure": every, "write": every, "read": every}],
        "parameters": [{**named, "component": "federation-upstream", "value": upstream}],
        "policies": [
            {**named, "pattern": f"^{QUEUE}$", "apply-to": "queues", "definition": {"federation-upstream": "hop"}}
        ],
    }


def declare(broker: peers.Peer, queue: str) -> None:
    """A queue that messages with our key reach."""
    with channel_to(broker) as channel:
        channel.queue_declare(queue, durable=True)
        if queue != QUEUE:
            channel.queue_bind(queue, "amq.direct", QUEUE)


def least(measure: Callable[[int], float], count: int, runs: int) -> float:
    """Microseconds per message: the least of a few runs, after a short one."""
    measure(count // 10)
    return min(measure(count) for _ in range(runs)) * 1e6 / count


def own_beside_another(broker: peers.Peer, folder: Path, count: int, runs: int) -> float:
    """One node's own work while another, which has nothing to do with it, does the same on the same cores: what the
    nodes of a hop cost each other without a hop.
    """
    other = peers.start_weft(folder)
    try:
        declare(other, QUEUE)
        with ThreadPoolExecutor(2) as pool:

            def both(count: int) -> float:
                return statistics.mean(pool.map(lambda one: flow([one], QUEUE, count), (broker, other)))

            return least(both, count, runs)
    finally:
        other.stop()


def measure(kind: str, count: int, runs: int) -> dict[str, dict[str, float]]:
    """By way: one node's own work, and what a hop adds, with messages that flow and, where they can, that wait."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="hop-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        source = (peers.start_weft if kind == "weft" else peers.start_rabbitmq)(folder / "source")
        stack.callback(source.stop)
        declare(source, QUEUE)
        own = least(partial(flow, [source], QUEUE), count, runs)
        crowded = own_beside_another(source, folder / "other", count, runs) if kind == "weft" else own
        pairs = [(fill(source, count), empty(source, count)) for _ in range(runs)]
        filled, emptied = (min(figures) * 1e6 / count for figures in zip(*pairs, strict=True))
        for way in ("weft",) if kind == "weft" else ("shovel", "federation"):
            goal = start_goal(way, folder / way, source)
            try:
                # A federated queue takes messages for its consumers only, so nothing waits there.
                queue = QUEUE if way == "federation" else "there"
                declare(goal, queue)
                flowed = least(partial(flow, [source, goal], queue), count, runs)
                found[way] = {"own": own, "hop": flowed - own, "crowded": crowded}
                if way != "federation":
                    moved = least(partial(move, source, goal, queue), count, runs)
                    found[way] |= {"waiting_own": filled + emptied, "waiting_hop": moved - filled}
            finally:
                goal.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=["weft", "rabbitmq"])
    options = parser.parse_args()
    kinds = [options.only] if options.only else ["weft"] + ["rabbitmq"] * peers.rabbitmq_installed()
    found: dict[str, dict[str, float]] = {}
    for kind in kinds:
        found |= measure(kind, options.count, options.runs)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
