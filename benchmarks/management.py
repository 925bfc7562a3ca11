"""How long a page of many queues takes, and what messages feel of it, beside RabbitMQ.

Run `python benchmarks/management.py [--queues 50000] [--rabbitmq]`. Queues are made by importing definitions over HTTP,
which both take; then the first page, a sorted page and a filtered page are asked for again and again, and a client
sends itself messages meanwhile. Prints a table; takes about a minute, with RabbitMQ several.
It must measure both by the same requests.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pika

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import peers

HEADERS = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
PAGES = {
    "first page of 100": "/api/queues?page=1&page_size=100",
    "by messages": "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "by name": "/api/queues?page=1&page_size=100&name=queue-4",
}
REPEAT = 20
QUIET_S = 3.0


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[float, bytes]:
    """(seconds, answer) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begin = time.perf_counter()
    connection.request(method, path, body, HEADERS)
    answer = connection.getresponse()
    data = answer.read()
    took = time.perf_counter() - begin
    connection.close()
    if answer.status >= 300:
        raise SystemExit(f"{method} {path}: {answer.status} {data[:200]!r}")
    return took, data


def round_trips(port: int, stop: Callable[[], bool]) -> list[float]:
    """Milliseconds from publish to delivery, one message at a time, until told to stop."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    found: list[float] = []
    deliveries = channel.consume(queue, auto_ack=True)
    while not stop():
        begin = time.perf_counter()
        channel.basic_publish("", queue, b"x")
        next(deliveries)
        found.append((time.perf_counter() - begin) * 1000)
    connection.close()
    return found


def p99(values: list[float]) -> float:
    """The 99th of a hundred."""
    return statistics.quantiles(values, n=100)[98]


def measure(name: str, amqp_port: int, http_port: int, count: int) -> None:
    """Make the queues, ask for pages, print a line for each."""
    queues = [{"name": f"queue-{n:05}", "vhost": "/", "durable": True, "auto_delete": False} for n in range(count)]
    document = json.dumps({"queues": [queue | {"arguments": {}} for queue in queues]}).encode()
    took, _ = ask(http_port, "POST", "/api/definitions", document)
    print(f"| {name} | import of {count} queues | {took:.1f} s | |")
    end = time.monotonic() + QUIET_S
    quiet = p99(round_trips(amqp_port, lambda: time.monotonic() > end))
    ended = threading.Event()
    busy: list[float] = []
    feeling = threading.Thread(target=lambda: busy.extend(round_trips(amqp_port, ended.is_set)))
    feeling.start()
    for what, path in PAGES.items():
        times = sorted(ask(http_port, "GET", path)[0] * 1000 for _ in range(REPEAT))
        print(f"| {name} | {what} | {times[len(times) // 2]:.1f} ms | longest {times[-1]:.1f} ms |")
    ended.set()
    feeling.join()
    print(
        f"| {name} | round trip of a message, p99 | {quiet:.2f} ms quiet | {p99(busy):.2f} ms while pages are served |"
    )


def main() -> None:
    """Measure weft, and RabbitMQ if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=50_000)
    parser.add_argument("--rabbitmq", action="store_true", help="RabbitMQ as well (3.10, with its management plug-in)")
    options = parser.parse_args()
    print("| broker | what | time | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        port = peers.free_port()
        config = Path(folder) / "weft.toml"
        config.write_text(f'[http]\naddress = "127.0.0.1:{port}"\n')
        weft = peers.start_weft(Path(folder) / "data", "--config", str(config))
        try:
            measure("weft", weft.port, port, options.queues)
        finally:
            weft.stop()
        if options.rabbitmq:
            port = peers.free_port()
            os.environ["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] = f"-rabbitmq_management tcp_config [{{port,{port}}}]"
            rabbitmq = peers.start_rabbitmq(Path(folder) / "rabbit", ("rabbitmq_management",))
            try:
                measure("RabbitMQ", rabbitmq.port, port, options.queues)
            finally:
                rabbitmq.stop()


if __name__ == "__main__":
    main()
