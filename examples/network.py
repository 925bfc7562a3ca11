"""The demonstration of the talk: a gateway, two remotes, two local nodes, and a service that announces itself.

Owns the story and the five processes it needs. Local nodes and remotes know the gateway's address and nothing else; a
service starts on each remote, one slower than the other; requests written locally reach whoever is free. Then the
gateway is killed under load. It must never leave a process or a folder behind.
Every step waits for an event, and whatever fails ends the story with its reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pika

import weft
from weft.cli.map import crawl
from weft.client.management import Management
from weft.fabric.draw import text

SERVICE = "user.lifecycle"
REQUESTS = "service_gateway.direct"
REPLIES = "service_res.direct"
STREAM = "traffic"
PORTS = {"gateway": 5673, "remote-5674": 5674, "remote-5675": 5675, "local-1": 5676, "local-2": 5677}
WORK_S = {"remote-5674": 0.0036, "remote-5675": 0.0020}
"""How long a service takes for one request: the talk's machines were as unequal."""
WAIT_S = 60.0

CONFIG = """
[[links]]
name = "up"
urls = ["amqp://127.0.0.1:{gateway}"]
role = "gateway"
retry_max_s = 1

[[routes]]
link = "up"
kind = "dynamic"
direction = "push"
exchange = "service_gateway.direct"

[[routes]]
link = "up"
kind = "dynamic"
direction = "push"
exchange = "service_res.direct"

[[routes]]
link = "up"
kind = "dynamic"
exchange = "service_res.direct"
"""


def say(line: str) -> None:
    """One line of the story."""
    print(line, flush=True)


class Network:
    """The five nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port(port) for name, port in PORTS.items()}
        self.nodes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        """Start a node and wait until it is ready."""
        command = [sys.executable, "-m", "weft", "up", "--name", name, "--listen", f"127.0.0.1:{self.ports[name]}"]
        command += ["--data-dir", str(self.folder / name)]
        if name != "gateway":
            config = self.folder / f"{name}.toml"
            config.write_text(CONFIG.format(gateway=self.ports["gateway"]))
            command += ["--config", str(config)]
        said = self.folder / f"{name}.log"  # links that go and come are no part of the story
        with said.open("a") as log:
            node = self.nodes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        for line in node.stdout or ():
            if line.startswith("ready"):
                return
        raise SystemExit(f"{name} did not start: {said.read_text()}")

    def end(self) -> None:
        """End every node."""
        for node in self.nodes.values():
            node.terminate()
        for node in self.nodes.values():
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
            if node.stdout:
                node.stdout.close()

    def url(self, name: str) -> str:
        """Where a node is."""
        return f"amqp://127.0.0.1:{self.ports[name]}"


def free_port(wanted: int) -> int:
    """The port of the talk, or another one if it is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise SystemExit("no port is free")


async def declare(network: Network) -> None:
    """The two exchanges everyone has, and a stream at the gateway that keeps all requests; the rest makes itself."""
    for name in network.ports:
        async with weft.connect(network.url(name)) as client:
            management = Management(client)
            arguments: dict[str, str] = {}
            if name == "gateway":
                stream = {"durable": True, "arguments": {"x-queue-type": "stream"}}
                await management.create("queue", STREAM, stream)
                arguments = {"x-tap": STREAM}
            for exchange in (REQUESTS, REPLIES):
                await management.create(
                    "exchange", exchange, {"type": "direct", "durable": True, "arguments": arguments}
                )


async def joined(network: Network) -> None:
    """Wait until every node's routes to the gateway flow."""
    for name in network.ports:
        async with weft.connect(network.url(name)) as client:
            management = Management(client)
            while {row["state"] for row in await management.query("route")} - {"flowing"}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def serve(network: Network, name: str, done: Counter[str], seen: Counter[str]) -> None:
    """The service on one remote: all it knows is its name and the node on its own machine."""
    async with weft.connect(network.url(name)) as client:
        receiver = client.receive(f"service://{SERVICE}", accept="explicit", credit=1)
        async for request in receiver:
            await asyncio.sleep(WORK_S[name])
            request.accept()
            done[name] += 1
            seen[str(request.message_id)] += 1


async def reachable(network: Network, name: str) -> float:
    """Wait until requests written at a node find the service; how long it took."""
    began = time.monotonic()
    async with weft.connect(network.url(name)) as client:
        management = Management(client)
        while not [row for row in await management.query("binding", where={"source": REQUESTS}) if row["destination"]]:
            if time.monotonic() - began > WAIT_S:
                raise SystemExit("the service did not become reachable")
            await asyncio.sleep(0.02)
    return time.monotonic() - began


def publish(port: int, count: int, pause_s: float) -> int:
    """Write requests at a node with an ordinary RabbitMQ client, each confirmed; how many were."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    channel = connection.channel()
    channel.confirm_delivery()
    for number in range(count):
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number))
        channel.basic_publish(REQUESTS, f"{SERVICE}.request", b"a user was born", properties)
        time.sleep(pause_s)  # a steady stream, so that some are always on the way
    connection.close()
    return count


async def until(done: Counter[str], total: int) -> None:
    """Wait until so many requests are done, with a sign of life."""
    began, told = time.monotonic(), 0
    while done.total() < total:
        if time.monotonic() - began > WAIT_S:
            raise SystemExit(f"only {done.total()} of {total} requests were done")
        if done.total() - told >= 250:
            told = done.total()
            say(f"      … {told} of {total}")
        await asyncio.sleep(0.02)


async def split(network: Network, at: str, count: int, talk: str, done: Counter[str]) -> None:
    """Publish at one node and tell who did the work."""
    done.clear()
    async with weft.connect(network.url(at)) as client:
        now = datetime.now(UTC)  # so that the pipeline can tell how long they took
        await client.send_many(f"service://{SERVICE}", [b"a user was born"] * count, created_at=now)
    await until(done, count)
    here = "/".join(str(done[name]) for name in WORK_S)
    say(f"    {count} requests written at {at}: {' and '.join(WORK_S)} did {here} (in the talk {talk})")


async def kill_gateway(network: Network, done: Counter[str], seen: Counter[str]) -> None:
    """Nothing that was confirmed may be lost when the node in the middle dies."""
    done.clear()
    seen.clear()
    writing = asyncio.create_task(asyncio.to_thread(publish, network.ports["local-1"], 500, 0.002))
    await until(done, 100)
    network.nodes["gateway"].send_signal(signal.SIGKILL)
    network.nodes["gateway"].wait()
    say("    the gateway was killed while requests were flowing; local nodes go on confirming")
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await asyncio.to_thread(network.start, "gateway")
    sent = await writing
    while len(seen) < sent:
        if time.monotonic() - began > WAIT_S:
            raise SystemExit(f"{sent - len(seen)} confirmed requests were lost")
        await asyncio.sleep(0.02)
    twice = sum(count - 1 for count in seen.values())
    say(f"    it was restarted; {sent} requests were confirmed, {len(seen)} were served: lost 0, served twice {twice}")


async def story(network: Network) -> None:
    """The whole of it."""
    say("Five nodes: one gateway, two remotes, two local nodes. All but the gateway know one address: the gateway's.")
    await asyncio.gather(*(asyncio.to_thread(network.start, name) for name in network.ports))
    say("    " + ", ".join(f"{name} on {port}" for name, port in network.ports.items()))
    await declare(network)
    await asyncio.wait_for(joined(network), WAIT_S)
    done: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    say(f"\nA service, {SERVICE}, starts on each remote. It tells its node its name; the network does the rest.")
    services = [asyncio.create_task(serve(network, name, done, seen)) for name in WORK_S]
    try:
        took_s = await reachable(network, "local-1")
        await reachable(network, "local-2")
        say(f"    requests written at local nodes find it after {took_s * 1000:.0f} ms\n")
        await asyncio.sleep(0.5)
        say("Messages are balanced, not connections: whoever is free takes the next request.")
        await split(network, "gateway", 1000, "359/641", done)
        await split(network, "remote-5674", 600, "241/359", done)
        say("    the second lot was written at a remote, went up to the gateway and came down to both\n")
        say("The gateway dies.")
        await kill_gateway(network, done, seen)
        say("\nThe map, found from one local node:\n")
        say(text(await crawl(network.url("local-1"))))
    finally:
        for service in services:
            service.cancel()
        await asyncio.gather(*services, return_exceptions=True)


def main() -> None:
    """Tell the story, and leave nothing behind but what was asked for: `--data-dir DIR` keeps the nodes' folders."""
    kept = sys.argv[2] if sys.argv[1:2] == ["--data-dir"] and len(sys.argv) > 2 else None
    with contextlib.nullcontext(kept) if kept else tempfile.TemporaryDirectory() as folder:
        network = Network(Path(folder))
        try:
            asyncio.run(story(network))
        finally:
            network.end()
    say(f"\nAll five nodes have ended, and their folders are {f'in {kept}' if kept else 'gone'}.")


if __name__ == "__main__":
    main()
