"""`weft map`: the whole network from one node: found by its links and its directory, drawn as text and as a picture.

Owns the crawl. One url comes in; every node that can be reached is asked for its links, routes and counters; a drawing
goes out (`weft.fabric.draw`).
It must never change anything, and never stop at a node that does not answer.
Rule: a node knows its own links; who links to it is known by the directory's members, so either side leads on.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from weft.client import connect
from weft.client.management import Management
from weft.client.url import URL_DEFAULT, URL_VARIABLE
from weft.fabric.diff import TOPOLOGY
from weft.fabric.draw import FACTS, Found, duration, svg, text
from weft.model.errors import WeftError

TIMEOUT_S = 5.0
NODES_MAX = 10_000
AT_ONCE_MAX = 16
MEMBERS = "/members/"
Places = dict[str, dict[str, object]]
"""What nodes are, by name: kind, tier, region, partition."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--url", metavar="URL", help="where to begin (default: WEFT_URL, or amqp://localhost)")
    parser.add_argument("--svg", metavar="FILE", help="write a picture too")


def run(options: argparse.Namespace) -> int:
    """Crawl and draw."""
    found = asyncio.run(crawl(options.url or os.environ.get(URL_VARIABLE) or URL_DEFAULT))
    print(text(found))
    if options.svg:
        Path(options.svg).write_text(svg(found), encoding="utf-8")
        print(f"\nthe picture is in {options.svg}")
    return 0


async def crawl(url: str | None) -> Found:
    """Everything that can be reached from one node. Those that are known are asked together, so that it does not take
    longer with each that is away.
    """
    found = Found()
    places: Places = {}
    seen: set[str | None] = set()
    gate = asyncio.Semaphore(AT_ONCE_MAX)
    pending: dict[str, str | None] = {"": url}
    while pending and len(found.nodes) < NODES_MAX:
        wave = {name: place for name, place in pending.items() if place not in seen and name not in found.nodes}
        seen.update(wave.values())
        more = await asyncio.gather(*(_visit(found, places, gate, *each) for each in wave.items()))
        pending = {name: place for told in more for name, place in told.items()}
    for link in found.links:
        # Who answers is known once a link was up: a node of another make, or one that was never reached.
        error = "not a weft node" if link["to"] else "not reached"
        found.nodes.setdefault(link["to"] or link["address"], {"url": link["address"], "error": error})
    for name, facts in found.nodes.items():
        facts.update(places.get(name, {}))
    return found


async def _visit(
    found: Found, places: Places, gate: asyncio.Semaphore, known: str, place: str | None
) -> dict[str, str]:
    try:
        async with gate, connect(place, timeout_s=TIMEOUT_S, patient=False) as client:
            shown = place or str(client.core.target)
            return await _ask(found, places, Management(client, timeout_s=TIMEOUT_S), shown)
    except WeftError as error:
        if not known:
            raise
        found.nodes[known] = {"url": place, "error": str(error)}
        return {}


async def _ask(found: Found, places: dict[str, dict[str, object]], management: Management, url: str) -> dict[str, str]:
    """One node's facts, and what it knows of others; (name, url) of the nodes it knows."""
    node = await management.read("node")
    name = str(node["name"])
    found.nodes[name] = {"url": url, **{fact: node.get(fact) for fact in FACTS}}
    routes = await management.query("route")
    more: dict[str, str] = {}
    for link in await management.query("uplink"):
        carried = [_route(row) for row in routes if row["link"] == link["name"]]
        ends = {"from": name, "to": link.get("peer") or "", "address": link["address"]}
        facts = {"name": link["name"], "role": link.get("role") or "", "state": link["state"]}
        found.links.append({**ends, **facts, "routes": carried})
        if link.get("peer") and link.get("product") == "weft":
            more[str(link["peer"])] = f"amqp://{link['address']}"
    for entry in await management.query("directory"):
        if entry["name"].startswith(f"{TOPOLOGY}/"):
            places[entry["name"].removeprefix(f"{TOPOLOGY}/")] = _words(entry.get("value") or {})
        elif entry["name"].startswith(MEMBERS):
            match entry.get("value"):
                case {"urls": [str(place), *_]}:
                    more.setdefault(entry["name"].removeprefix(MEMBERS), place)
    return more


def _words(value: dict[str, object]) -> dict[str, object]:
    """What of an entry belongs on a map: anyone may have written it."""
    return {key: str(value[key]) for key in ("kind", "tier", "region", "partition") if key in value}


def _route(row: dict[str, object]) -> str:
    arrow = "<-" if row["direction"] == "pull" else "->"
    what = row.get("queue") or row.get("key") or (f"{row.get('keys') or 0} keys" if row["kind"] == "dynamic" else "")
    carried, slowest = row.get("carried") or 0, row.get("round_trip_p99_us")
    pace = f", 99 of 100 answered within {duration(slowest)}" if isinstance(slowest, int) else ""
    return f"{arrow} {row['kind']} {row.get('exchange') or ''} {what}: {row['state']}, {carried} carried{pace}"
