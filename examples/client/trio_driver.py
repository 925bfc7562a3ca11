"""The client's machine driven by trio: the machine knows neither sockets nor loops, so whoever has bytes may drive it.

`weft.connect` drives it by asyncio, the synchronous face by a thread, `weft+memory:` by nothing but calls. The driver
below is all that another way of working needs: read, hand over, write what there is, and tell the time.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

import trio

from weft._kernel import Client

READ_BYTES_MAX = 65_536
IDLE_MS = 10_000


class Driver:
    """One connection; calls of the machine are followed by `flush`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.machine = Client("trio", idle_ms=IDLE_MS)
        self._stream = stream
        self._writing = trio.Lock()
        self._news = trio.Event()

    async def run(self) -> None:
        """Log in, and serve until the peer has closed."""
        self.machine.start(time.monotonic_ns())
        await self.flush()
        while data := await self._stream.receive_some(READ_BYTES_MAX):
            self.machine.receive(data, time.monotonic_ns())
            await self.flush()
            self._news.set()
            self._news = trio.Event()

    async def keep_time(self) -> None:
        """Heartbeats, and the end of a peer that is silent for too long."""
        while True:
            await trio.sleep(IDLE_MS / 4_000)
            self.machine.advance(time.monotonic_ns())
            await self.flush()

    async def flush(self) -> None:
        """Write what the machine has to say."""
        async with self._writing:
            while data := self.machine.poll_transmit():
                await self._stream.send_all(data)

    async def until(self, poll: Callable[[], list[Any]]) -> list[Any]:
        """What a poll gives, as soon as it gives something."""
        while True:
            news = self._news
            if found := poll():
                return found
            await news.wait()


async def talk(port: int) -> None:
    """Send three messages, see them confirmed, and receive them."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream, trio.open_nursery() as nursery:
        driver = Driver(stream)
        machine = driver.machine
        nursery.start_soon(driver.run)
        nursery.start_soon(driver.keep_time)
        sender = machine.attach_sender("out", "letters")
        machine.send(sender, [b"one", b"two", b"three"], {"durable": True})
        await driver.flush()
        confirmed = 0
        while confirmed < 3:
            for _, first, last, outcome, _ in await driver.until(machine.poll_outcomes):
                confirmed += last - first + 1
                print(f"{last - first + 1} {outcome}")
        receiver = machine.attach_receiver("in", "letters", window=10)
        await driver.flush()
        received = 0
        while received < 3:
            for delivery in await driver.until(lambda: machine.poll_deliveries(receiver, 10)):
                print(delivery.body.decode())
                machine.settle(receiver, delivery.number, delivery.number)
                received += 1
        machine.close()
        await driver.flush()
        nursery.cancel_scope.cancel()


def main() -> None:
    """A node as a process of its own, since nothing of asyncio is to be here."""
    command = [sys.executable, "-m", "weft", "up", "--listen", "127.0.0.1:0", "--data-dir"]
    with TemporaryDirectory() as folder, subprocess.Popen([*command, folder], stdout=PIPE, text=True) as node:
        assert node.stdout is not None
        told = iter(node.stdout)
        port = next(int(line.split(":")[-1].split()[0]) for line in told if line.startswith("listening on"))
        next(line for line in told if line.startswith("ready"))
        try:
            trio.run(talk, port)
        finally:
            node.terminate()


main()
