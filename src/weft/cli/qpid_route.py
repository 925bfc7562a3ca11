"""`qpid-route`: the routes of a fabric in the words of Apache Qpid's tool.

Owns the tool's grammar: destination first, then source; options anywhere. Each command becomes requests to the
management of the destination, or with `-s` of the source.
It must never do what the words do not say: a link is made for a route, and goes with it only on `-e`.
Rule: qpid-route of qpid-cpp, as the talk uses it (docs/reference/fabric.md); one line on failure (`weft.cli.qpid`).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from weft.cli import Parser, qpid, remote
from weft.cli.map import crawl
from weft.cli.options import not_negative, seconds
from weft.client.management import Management, Row
from weft.fabric.draw import text
from weft.federation.records import CREDIT_DEFAULT, CREDIT_MAX, parse_url
from weft.model.errors import Refused

USAGE = """qpid-route [OPTIONS] dynamic add|del DEST SRC EXCHANGE [TAG] [EXCLUDE] [MECHANISM]
       qpid-route [OPTIONS] route add|del DEST SRC EXCHANGE KEY [TAG] [EXCLUDE] [MECHANISM]
       qpid-route [OPTIONS] queue add|del DEST SRC EXCHANGE QUEUE [MECHANISM]
       qpid-route [OPTIONS] route list|flush [DEST]
       qpid-route [OPTIONS] route map [BROKER]
       qpid-route [OPTIONS] link add|del DEST SRC [MECHANISM]
       qpid-route [OPTIONS] link list [DEST]
A broker is [user/password@]host[:port], or a url."""
HERE = "localhost:5672"


def _parser() -> Parser:
    parser = Parser(prog="qpid-route", usage=USAGE, allow_abbrev=False)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-d", "--durable", action="store_true", help="survive a restart")
    parser.add_argument(
        "-e", "--del-empty-link", action="store_true", help="with del: the link goes with its last route"
    )
    parser.add_argument("-s", "--src-local", action="store_true", help="the source connects and pushes")
    parser.add_argument("-q", "--quiet", action="store_true", help="a duplicate is no failure")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is done")
    parser.add_argument("--ack", type=not_negative, metavar="N", help="accepted; messages are always acknowledged")
    parser.add_argument(
        "--credit", type=not_negative, default=0, metavar="N", help="messages on the way; 0 is the default's"
    )
    parser.add_argument("-t", "--transport", choices=("tcp", "ssl"), default="tcp")
    parser.add_argument("--timeout", type=seconds, default=10.0, metavar="S")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = _parser()

    def ask(options: argparse.Namespace) -> int:
        code = _command(options)
        if code is None:
            parser.error(f"{' '.join(options.words)!r} is no command, or has too few or too many words")
        return code

    return qpid.run(parser, arguments, ask)


def _command(options: argparse.Namespace) -> int | None:
    """Do as the words say; None if they say nothing."""
    match options.words:
        case ["queue", "add" | "del" as word, destination, source, exchange, queue, *rest] if len(rest) <= 1:
            values = {"kind": "queue", "exchange": exchange, "queue": queue}
            return _route(options, word, destination, source, values)
        case ["route", "add" | "del" as word, destination, source, exchange, key, *rest] if len(rest) <= 3:
            values = {"kind": "static", "exchange": exchange, "key": key}
            return _route(options, word, destination, source, values)
        case ["dynamic", "add" | "del" as word, destination, source, exchange, *rest] if len(rest) <= 3:
            return _route(options, word, destination, source, {"kind": "dynamic", "exchange": exchange})
        case ["route", "list" | "flush" as word, *rest] if len(rest) <= 1:
            return _list_or_flush(options, word, rest[0] if rest else HERE)
        case ["route", "map", *rest] if len(rest) <= 1:
            print(text(asyncio.run(crawl(remote.broker_url(rest[0] if rest else HERE)))))
            return 0
        case ["link", "add" | "del" as word, destination, source, *rest] if len(rest) <= 1:
            return _link(options, word, destination, source)
        case ["link", "list", *rest] if len(rest) <= 1:
            return _list_links(options, rest[0] if rest else HERE)
    return None


def _peer_url(options: argparse.Namespace, broker: str) -> str:
    url = remote.broker_url(broker)
    return url.replace("amqp://", "amqps://", 1) if options.transport == "ssl" else url


def _link_name(broker: str) -> str:
    """A link is known by the broker it leads to."""
    return str(parse_url(remote.broker_url(broker)))


def _link_to(peer: str, owner: str) -> str:
    if _link_name(owner) == _link_name(peer):
        raise Refused("linking a broker to itself is not permitted")
    return _link_name(peer)


def _route(options: argparse.Namespace, command: str, destination: str, source: str, values: Row) -> int:
    owner, peer = (source, destination) if options.src_local else (destination, source)
    link = _link_to(peer, owner)
    values = {
        **values,
        "link": link,
        "direction": "push" if options.src_local else "pull",
        "credit": min(options.credit, CREDIT_MAX) or CREDIT_DEFAULT,
        "durable": options.durable,
    }
    what = values.get("queue") or values.get("key") or ""
    way = "push" if options.src_local else ""  # one node may have both, over one link
    name = ":".join(part for part in (link, way, str(values["kind"]), str(values["exchange"]), str(what)) if part)

    async def work(management: Management) -> int:
        known = await management.find("route", name)
        if command == "add":
            if known is not None:
                return _duplicate(options, name)
            await _see_link(options, management, link, peer)
            await management.create("route", name, values)
            _say(options, f"Creating {values['kind']} route {name} at {owner}")
            return 0
        if known is None:
            raise Refused(f"no such route: {name}", 404)
        await management.delete("route", name)
        _say(options, f"Closing route {name} at {owner}")
        if options.del_empty_link and not await management.query("route", where={"link": link}):
            await management.delete("uplink", link)
            _say(options, f"Last route on link {link}, closing it")
        return 0

    return remote.run_at(remote.broker_url(owner), work, options.timeout)


async def _see_link(options: argparse.Namespace, management: Management, link: str, peer: str) -> None:
    if await management.find("uplink", link) is None:
        _say(options, f"Connecting to {peer}")
        await management.create("uplink", link, {"urls": [_peer_url(options, peer)], "durable": options.durable})


def _duplicate(options: argparse.Namespace, name: str) -> int:
    if options.quiet:
        return 0
    raise Refused(f"Duplicate Route - ROUTE NOT ADDED: {name}", 409)


def _link(options: argparse.Namespace, command: str, destination: str, source: str) -> int:
    link = _link_to(source, destination)

    async def work(management: Management) -> int:
        if command == "del":
            await management.delete("uplink", link)
            return 0
        if await management.find("uplink", link) is not None:
            return _duplicate(options, link)
        await _see_link(options, management, link, source)
        return 0

    return remote.run_at(remote.broker_url(destination), work, options.timeout)


def _list_links(options: argparse.Namespace, broker: str) -> int:
    async def work(management: Management) -> int:
        rows = await management.query("uplink")
        remote.print_rows(rows, ("name", "address", "durable", "state", "cause"))
        return 0

    return remote.run_at(remote.broker_url(broker), work, options.timeout)


def _list_or_flush(options: argparse.Namespace, command: str, broker: str) -> int:
    async def work(management: Management) -> int:
        for row in await management.query("route"):
            if command == "flush":
                await management.delete("route", row["name"])
                continue
            what = {"queue": row.get("queue"), "static": row.get("key")}.get(row["kind"], "<dynamic>")
            words = [broker, row["link"], row.get("exchange", ""), str(what)]
            print(" ".join(words if row["direction"] == "pull" else [words[1], words[0], *words[2:], "src-local"]))
        return 0

    return remote.run_at(remote.broker_url(broker), work, options.timeout)


def _say(options: argparse.Namespace, line: str) -> None:
    if options.verbose:
        print(line)
