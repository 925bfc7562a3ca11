"""`weft report`: how large a node's work is, in the four senses that scale has.

Owns the words of this command and which figures belong to which sense: capacity (throughput, response, storage),
sharing (links, routes, services), availability (time up, what was lost to limits, what was kept from being doubled),
administration (who and what is managed). Everything is asked over AMQP, twice, so that rates are of this moment.
It must never judge: rules do that (`weft watch`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from time import monotonic

from weft.cli import remote
from weft.cli.options import seconds
from weft.client.management import Management, Row

PAUSE_S = 1.0
QUEUES_MAX = 1_000
"""Queues whose bytes are added up: those that hold most messages."""
COUNTED = ("vhost", "user", "permission", "exchange", "binding", "queue", "stream", "connection")
Group = dict[str, object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("--pause", type=seconds, default=PAUSE_S, metavar="S", help="seconds that rates are taken over")


def run(options: argparse.Namespace) -> int:
    """Look twice, print."""

    async def work(management: Management) -> int:
        before, started_s = await management.read("node"), monotonic()
        await asyncio.sleep(options.pause)
        node, seconds = await management.read("node"), monotonic() - started_s
        groups = {
            "capacity": await _capacity(management, before, node, seconds),
            "sharing": await _sharing(management),
            "availability": _availability(node),
            "administration": await _administration(management),
        }
        print(json.dumps(groups, indent=2) if options.json else _text(str(node["name"]), groups))
        return 0

    return remote.run(options, work)


async def _capacity(management: Management, before: Row, node: Row, seconds: float) -> Group:
    def rate(name: str) -> int:
        return round(float(node[name] - before[name]) / seconds)

    queues = await management.query("queue", sort="ready", descending=True, count=QUEUES_MAX)
    streams = await management.query("stream", count=QUEUES_MAX)
    return {
        "published_per_s": rate("published"),
        "delivered_per_s": rate("delivered"),
        "settled_per_s": rate("settled"),
        **{name: node.get(name) for name in ("time_in_queue_p50_us", "time_in_queue_p99_us", "confirm_p99_us")},
        "messages_waiting": node["ready"],
        "bytes_waiting": sum(row.get("ready_bytes", 0) for row in queues),
        "bytes_in_streams": sum(row.get("bytes", 0) for row in streams),
        "memory_bytes": node["memory_bytes"],
        "memory_bytes_max": node["memory_bytes_max"],
    }


async def _sharing(management: Management) -> Group:
    links, routes = await management.query("uplink"), await management.query("route")
    services = await management.query("service")
    return {
        "links": _states(links),
        "routes": _states(routes),
        "services": len({row["service"] for row in services}),
        "instances": len(services),
    }


def _availability(node: Row) -> Group:
    names = ("state", "uptime_s", "redelivered", "duplicate", "dead_lettered", "expired", "unroutable")
    return {name: node[name] for name in names}


async def _administration(management: Management) -> Group:
    return {f"{kind}s": len(await management.query(kind, columns=["name"])) for kind in COUNTED}


def _states(rows: Sequence[Row]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row["state"]] = found.get(row["state"], 0) + 1
    return found


def _text(name: str, groups: dict[str, Group]) -> str:
    lines = [f"node {name}"]
    for group, figures in groups.items():
        lines.append(f"\n{group}")
        lines += [f"  {figure.replace('_', ' '):<24}{_figure(value)}" for figure, value in figures.items()]
    return "\n".join(lines)


def _figure(value: object) -> str:
    match value:
        case dict():
            return ", ".join(f"{count} {state}" for state, count in value.items()) or "none"
        case int():
            return f"{value:,}"
        case None:
            return "–"
        case _:
            return str(value)
