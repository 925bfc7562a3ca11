"""`weft names`: a name server for the services and nodes of a fabric.

Owns the sockets, and asking a node for its directory now and then. Questions over UDP and TCP come in, answers go out.
It must never answer from a node's loop: it runs beside it, and goes on with what it knows while the node is away.
Rule: docs/guides/network.md, "Names"; RFC 7766 for questions over TCP.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from weft.cli import remote
from weft.client.management import Management
from weft.model.errors import ConfigError, Unavailable
from weft.net.endpoint import parse_endpoint

if TYPE_CHECKING:
    from weft.directory.names import Zone

LOOK_S = 1.0
CONNECTIONS_MAX = 64
IDLE_S = 10.0
"""How long a connection over TCP may say nothing."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_node(parser)
    parser.add_argument("--listen", default="127.0.0.1:5353", metavar="HOST:PORT", help="where questions come")
    parser.add_argument("--domain", default="weft.internal", help="what all names end with")


def run(options: argparse.Namespace) -> int:
    """Until interrupted."""
    try:
        from weft.directory.names import Zone
    except ImportError:
        raise ConfigError("this command needs the package dnspython: pip install 'weft[srv]'") from None
    try:
        zone = Zone(options.domain)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    place = parse_endpoint(options.listen, 53)

    async def work(management: Management) -> int:
        end = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, end.set)
        await follow(zone, management)
        async with Server(zone, place.host, place.port) as server:
            print(f"answering for {options.domain} on {server.place}", flush=True)
            while not end.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(end.wait(), LOOK_S)
                with suppress(Unavailable):
                    await follow(zone, management)
        return 0

    return remote.run(options, work)


async def follow(zone: Zone, management: Management) -> None:
    """Make the zone of what the node's directory holds now."""
    rows = await management.query("directory", columns=("name", "value"))
    zone.update((row["name"], row.get("value") or {}) for row in rows)


class Server(asyncio.DatagramProtocol):
    """One zone on one place, over UDP and TCP."""

    def __init__(self, zone: Zone, host: str, port: int) -> None:
        self._zone = zone
        self._host = host
        self._port = port
        self._connections = 0

    async def __aenter__(self) -> Server:
        loop = asyncio.get_running_loop()
        try:
            self._tcp = await asyncio.start_server(self._talk, self._host, self._port)
            host, port = self._tcp.sockets[0].getsockname()[:2]
            self._udp, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {self._host}:{self._port}: {error.strerror or error}") from None
        self.place = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._udp.close()
        self._tcp.close()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """A question over UDP."""
        answer = self._zone.answer(data, over_udp=True)
        if answer is not None:
            self._udp.sendto(answer, addr)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Questions over TCP, each with its length before it."""
        self._connections += 1
        try:
            while self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(IDLE_S):
                    length = int.from_bytes(await reader.readexactly(2))
                    answer = self._zone.answer(await reader.readexactly(length), over_udp=False)
                    if answer is None:
                        break
                    writer.write(len(answer).to_bytes(2) + answer)
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, OSError):
            pass  # it has said enough
        finally:
            self._connections -= 1
            writer.close()
