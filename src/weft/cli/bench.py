"""`weft bench`: how fast a node and this client are together, right here.

Owns one simple load: confirmed messages into an address and out of it at the same time, for some seconds. Sizes and
times come in; rates, and the time a message takes from send to receive, go out.
It must never be taken for the project's own measurements: those are in benchmarks/, with peers and a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from time import monotonic, perf_counter_ns

from weft.cli import remote
from weft.cli.messages import Progress, add_connection_options
from weft.cli.options import at_least_one, not_negative, seconds
from weft.client import Fabric, connect
from weft.model.errors import ConfigError

STAMP_BYTES = 8
SIZE_MAX = 134_217_728
"""The largest message of a node as it comes; `limits.message_bytes_max` may allow more."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--address", default="weft.bench", help="the queue to use (%(default)s)")
    parser.add_argument("--size", type=not_negative, default=1024, metavar="BYTES", help="of a body (%(default)s)")
    parser.add_argument("--seconds", type=seconds, default=5.0, metavar="S", help="how long to send (%(default)s)")
    parser.add_argument("--senders", type=at_least_one, default=200, metavar="N", help="sends at a time (%(default)s)")
    parser.add_argument("--transient", action="store_true", help="messages need not survive a restart of the node")
    add_connection_options(parser)


def run(options: argparse.Namespace) -> int:
    """Send and receive, and tell how it went."""
    if options.size > SIZE_MAX:
        raise ConfigError(f"--size is at most {SIZE_MAX} bytes")
    asyncio.run(_bench(options))
    return 0


async def _bench(options: argparse.Namespace) -> None:
    async with (
        connect(options.url, **remote.patience(options, options.timeout)) as sender,
        connect(options.url, **remote.patience(options, options.timeout)) as reader,
    ):
        sent = Progress("sent and confirmed")
        delays_ns: list[int] = []
        end = monotonic() + options.seconds
        padding = bytes(max(0, options.size - STAMP_BYTES))

        async def send() -> None:
            while monotonic() < end:
                stamp = perf_counter_ns().to_bytes(STAMP_BYTES, "big")
                await sender.send(options.address, stamp + padding, durable=not options.transient)
                sent.add()

        receiving = asyncio.ensure_future(_receive(reader, options.address, delays_ns))
        try:
            await asyncio.gather(*(send() for _ in range(options.senders)))
            sent.end()
            received = await receiving
        finally:
            receiving.cancel()
    print(f"sent {sent.count / options.seconds:,.0f} messages/s of {options.size} bytes, received {received:,}")
    if delays_ns:
        delays_ns.sort()
        p50, p99 = statistics.median(delays_ns) / 1e6, delays_ns[int(len(delays_ns) * 0.99)] / 1e6
        print(f"from send to receive: p50 {p50:.2f} ms, p99 {p99:.2f} ms")


async def _receive(fabric: Fabric, address: str, delays_ns: list[int]) -> int:
    count = 0
    async with fabric.receive(address, credit=1_000, timeout_s=1.0) as messages:
        while (message := await messages.next(1.0)) is not None:
            delays_ns.append(perf_counter_ns() - int.from_bytes(message.data[:STAMP_BYTES], "big"))
            count += 1
    return count
