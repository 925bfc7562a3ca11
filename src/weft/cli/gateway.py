"""`weft gateway`: carry messages from another system into a fabric, or out of it.

Owns the words of this command; `weft.gateway` does the work.
It must never run inside a node.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal

from weft.cli.options import at_least_one

BATCH_MAX_MAX = 10_000


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    about = "amqp://HOST#ADDRESS, stomp://USER:PASSWORD@HOST:PORT/DESTINATION, http://HOST:PORT/PATH"
    parser.add_argument("source", metavar="FROM", help=f"{about} (to listen on), or a scheme of a plug-in")
    parser.add_argument("target", metavar="TO", help="the same; http:// is posted to")
    parser.add_argument(
        "--batch-max", type=at_least_one, default=100, metavar="N", help="messages on the way at once (%(default)s)"
    )
    parser.add_argument(
        "--count", type=at_least_one, metavar="N", help="end after so many; without it, carry until stopped"
    )


def run(options: argparse.Namespace) -> int:
    """Carry until told to stop."""
    return asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> int:
    from weft.gateway import Bridge, open_source, open_target

    enough = asyncio.Event()

    def count(_moved: int) -> None:
        if options.count is not None and bridge.moved >= options.count:
            enough.set()

    batch_max = max(1, min(options.batch_max, BATCH_MAX_MAX))
    bridge = Bridge(open_source(options.source), open_target(options.target), batch_max=batch_max, on_moved=count)
    work = asyncio.create_task(bridge.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, enough.set)
    stop = asyncio.create_task(enough.wait())
    await asyncio.wait([work, stop], return_when=asyncio.FIRST_COMPLETED)
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
    print(f"carried {bridge.moved}, refused {bridge.refused}")
    return 0
