"""`weft ingest`: what another broker has goes into a stream of a node, where Spark reads it.

Owns the words of this command: one stream, one exchange in front of it, one link, one route; each is made once and
found the next time. A URL and a queue or exchange at the other broker come in; the line that reads the stream in Spark
goes out.
It must never move a message itself, and never take from the other broker what the node has not kept: the route
acknowledges what the stream has on disk (docs/reference/links.md).
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys

from weft.cli import exchange, remote
from weft.cli.options import key_values
from weft.client.management import Management
from weft.client.url import targets
from weft.model.errors import ConfigError

WAIT_S = 15.0
POLL_S = 0.1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_node(parser)
    parser.add_argument("source", metavar="SOURCE", help="URL of the other broker (RabbitMQ, Artemis, another node)")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--queue", help="drain this queue: each message is taken once the stream has it")
    what.add_argument(
        "--exchange",
        help="copy what this exchange or topic routes by --key; a broker that is not weft keeps nothing while it is "
        "not connected, so where nothing may be missing bind a queue there and use --queue",
    )
    parser.add_argument("--key", default="", help="binding key at --exchange")
    parser.add_argument("--stream", help="name of the stream (default: that of the queue or exchange)")
    parser.add_argument("--link", help="name of the link (default: made of the URL)")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="KEY=VALUE", help="of the stream: x-max-age=7D"
    )


def run(options: argparse.Namespace) -> int:
    """Make what is missing, wait until messages flow."""
    stream = options.stream or options.queue or options.exchange
    if options.key and options.queue:
        raise ConfigError("--key belongs to --exchange: a queue is drained whole")
    link = options.link or _link_name(options.source)

    async def work(management: Management) -> int:
        await _make_stream(management, stream, key_values(options.argument))
        await management.create("uplink", link, {"urls": [options.source]})
        kind = {"kind": "queue", "queue": options.queue} if options.queue else _static(options)
        name = f"ingest:{link}:{stream}"
        await management.create("route", name, {"link": link, "exchange": _entry(stream), **kind})
        return await _until_flowing(management, name, stream)

    return remote.run(options, work)


def _link_name(source: str) -> str:
    first = targets(source)[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{first.host}-{first.port}")


def _entry(stream: str) -> str:
    """The exchange in front of a stream: routing keys pass it unchanged."""
    return f"{stream}.ingest"


def _static(options: argparse.Namespace) -> dict[str, str]:
    return {"kind": "static", "source_exchange": options.exchange, "key": options.key}


async def _make_stream(management: Management, stream: str, arguments: dict[str, object]) -> None:
    if await management.find("stream", stream) is None:
        await management.create("queue", stream, {"arguments": {"x-queue-type": "stream", **arguments}})
    await management.create("exchange", _entry(stream), {"type": "fanout"})
    await exchange.bind(management, _entry(stream), stream, "")


async def _until_flowing(management: Management, name: str, stream: str) -> int:
    row = await management.read("route", name)
    try:
        async with asyncio.timeout(WAIT_S):
            while row["state"] != "flowing":
                await asyncio.sleep(POLL_S)
                row = await management.read("route", name)
    except TimeoutError:
        print(f"route {name}: {row['state']}, {row['cause']}; the node goes on trying", file=sys.stderr)
        return 1
    print(f"flowing into the stream {stream}. In Spark:")
    print(f"  spark.readStream.format('weft').option('streams', {stream!r}).load()")
    return 0
