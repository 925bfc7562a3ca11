"""How fast management answers with many objects, and what messages feel meanwhile.

A script: it starts a node of its own (and RabbitMQ with its management plug-in, if asked), makes many queues and idle
connections, asks for pages of them over HTTP again and again, and lets a program of `load/` send messages at a steady
rate beside it, whose age on arrival is what messages feel. It prints a table. It must not be read as a benchmark of
HTTP: one client asks, one request after another.
Run: `python benchmarks/management.py [--queues 50000] [--connections 5000] [--rabbitmq]`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
import peers

LOAD = Path(__file__).resolve().parent / "load"
HEADERS = {"Authorization": "Basic " + b64encode(b"guest:guest").decode(), "Content-Type": "application/json"}
QUEUES = {
    "first page of 100 queues": "/api/queues?page=1&page_size=100",
    "by messages": "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "by part of the name": "/api/queues?page=1&page_size=100&name=queue-4",
    "by regular expression": "/api/queues?page=1&page_size=100&name=queue-.*4%24&use_regex=true",
    "page of 500": "/api/queues?page=3&page_size=500",
}
CONNECTIONS = {
    "first page of 100 connections": "/api/connections?page=1&page_size=100",
    "first page of 100 channels": "/api/channels?page=1&page_size=100",
}
RATE = 1_000
SECS = 5
PAUSE_S = 0.01
"""Between two requests, so that neither core is full and the machine's own scheduling is not what is measured."""


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[float, bytes]:
    """(milliseconds, answer) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3600)
    begin = time.perf_counter()
    connection.request(method, path, body, HEADERS)
    answer = connection.getresponse()
    data = answer.read()
    took = time.perf_counter() - begin
    connection.close()
    if answer.status >= 300:
        raise SystemExit(f"{method} {path}: {answer.status} {data[:200]!r}")
    return took * 1000, data


def messages(port: int, secs: int) -> subprocess.Popen[str]:
    """Messages at a steady rate; their age counts from when each was due."""
    command = [str(LOAD / "bin" / "load091"), "paced", f"port={port}", f"rate={RATE}", f"secs={secs}", "size=100"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def felt(process: subprocess.Popen[str]) -> str:
    """p50, p99 and the longest age of those messages."""
    text, _ = process.communicate()
    if process.returncode:
        raise SystemExit("load091 failed")
    found = json.loads(text)
    return " / ".join(f"{found[key] / 1000:.2f}" for key in ("p50_us", "p99_us", "max_us")) + " ms"


def cpu_s(pid: int) -> float:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pages(name: str, peer: peers.Peer, port: int, paths: dict[str, str]) -> None:
    """Ask for each page again and again for some seconds, with messages and without."""
    print(f"| {name} | messages, nobody asks | | | | {felt(messages(peer.port, SECS))} |", flush=True)
    for what, path in paths.items():
        ask(port, "GET", path)
        begin, spent, alone = time.perf_counter(), cpu_s(peer.pid), 0
        while time.perf_counter() - begin < 2:
            ask(port, "GET", path)
            alone += 1
        cost = (cpu_s(peer.pid) - spent) / alone * 1000
        beside = messages(peer.port, SECS)
        times = []
        while beside.poll() is None:
            times.append(ask(port, "GET", path)[0])
            time.sleep(PAUSE_S)
        times.sort()
        figures = f"{statistics.median(times):.1f} ms | {times[-1]:.1f} ms | {cost:.1f} ms"
        print(f"| {name} | {what} | {figures} | {felt(beside)} |", flush=True)


def declare(name: str, port: int, count: int) -> None:
    """Make so many queues."""
    queues = [{"name": f"queue-{n:05}", "vhost": "/", "durable": True, "auto_delete": False} for n in range(count)]
    took = 0.0
    for start in range(0, count, 5_000):
        part = [queue | {"arguments": {}} for queue in queues[start : start + 5_000]]
        took += ask(port, "POST", "/api/definitions", json.dumps({"queues": part}).encode())[0]
    print(f"| {name} | import of {count} queues | {took / 1000:.1f} s | | | |", flush=True)


def measure(name: str, peer: peers.Peer, port: int, options: argparse.Namespace) -> None:
    """All pages of one broker."""
    declare(name, port, options.queues)
    pages(name, peer, port, QUEUES)
    idle = [_connect(peer.port) for _ in range(options.connections)]
    print(f"| {name} | {len(idle)} connections open | | | | |", flush=True)
    pages(name, peer, port, CONNECTIONS)
    for one in idle:
        one.close()


def _connect(port: int) -> socket.socket:
    """An open connection with one channel, as bytes: no library, so that thousands cost nothing here."""
    one = socket.create_connection(("127.0.0.1", port))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.sendall(b"AMQP\0\0\x09\x01")
    _frame(one)
    start_ok = b"\0\x0a\0\x0b" + _long(b"") + b"\x05PLAIN" + _long(b"\0guest\0guest") + b"\x05en_US"
    _send(one, 0, start_ok)
    tune = _frame(one)
    _send(one, 0, b"\0\x0a\0\x1f" + tune[4:10] + b"\0\0")
    _send(one, 0, b"\0\x0a\0\x28\x01/\0\0")
    _frame(one)
    _send(one, 1, b"\0\x14\0\x0a\0")
    _frame(one)
    return one


def _long(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _send(one: socket.socket, channel: int, method: bytes) -> None:
    one.sendall(b"\x01" + channel.to_bytes(2, "big") + _long(method) + b"\xce")


def _frame(one: socket.socket) -> bytes:
    """The payload of the next frame."""
    head = one.recv(7, socket.MSG_WAITALL)
    return one.recv(int.from_bytes(head[3:], "big") + 1, socket.MSG_WAITALL)[:-1]


def main() -> None:
    """Measure weft, and RabbitMQ if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--rabbitmq", action="store_true", help="RabbitMQ as well (3.10, with its management plug-in)")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    subprocess.run(["make", "--silent", "-C", str(LOAD)], check=True)
    print(
        f"| broker | what | median | longest | CPU of the broker | {RATE} messages/s meanwhile, age p50 / p99 / max |\n"
        "|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        port = peers.free_port()
        config = Path(folder) / "weft.toml"
        config.write_text(f'[http]\naddress = "127.0.0.1:{port}"\n')
        weft = peers.start_weft(Path(folder) / "data", "--config", str(config))
        try:
            measure("weft", weft, port, options)
        finally:
            weft.stop()
        if options.rabbitmq:
            port = peers.free_port()
            os.environ["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"] = f"-rabbitmq_management tcp_config [{{port,{port}}}]"
            rabbitmq = peers.start_rabbitmq(Path(folder) / "rabbit", ("rabbitmq_management",))
            try:
                measure("RabbitMQ", rabbitmq, port, options)
            finally:
                rabbitmq.stop()


if __name__ == "__main__":
    main()
