"""`qpid-config`: exchanges, queues and bindings in the words of Apache Qpid's tool.

Owns the tool's grammar: `[-a BROKER] add|del|bind|unbind|exchanges|queues …`, options anywhere. Each command becomes
requests to the management of one node.
It must never delete a queue that holds messages or is used, unless `--force` says so.
Rule: qpid-config of qpid-cpp, as the talk uses it (docs/reference/fabric.md); one line on failure (`weft.cli.qpid`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from weft.cli import Parser, qpid, remote
from weft.cli import exchange as exchanges
from weft.cli.options import key_values, not_negative, seconds
from weft.client.management import Management
from weft.model.errors import Refused

USAGE = """qpid-config [OPTIONS]
       qpid-config [OPTIONS] exchanges|queues [FILTER]
       qpid-config [OPTIONS] add exchange TYPE NAME [--durable] [--alternate-exchange EXCHANGE]
       qpid-config [OPTIONS] add queue NAME [--durable] [--max-queue-count N] [--max-queue-size BYTES] …
       qpid-config [OPTIONS] del exchange NAME
       qpid-config [OPTIONS] del queue NAME [--force] [--force-if-not-empty] [--force-if-used]
       qpid-config [OPTIONS] bind|unbind EXCHANGE QUEUE [KEY]"""
OVERFLOWS = {"none": None, "reject": "reject-publish", "ring": "drop-head", "ring-strict": "drop-head"}


def _parser() -> Parser:
    parser = Parser(prog="qpid-config", usage=USAGE, allow_abbrev=False)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-a", "--broker-addr", "-b", "--broker", dest="broker", default="localhost:5672")
    parser.add_argument("-r", "--recursive", action="store_true", help="show bindings too")
    parser.add_argument("-t", "--timeout", type=seconds, default=10.0, metavar="S")
    parser.add_argument("--durable", action="store_true", help="survive a restart")
    parser.add_argument("--alternate-exchange", metavar="EXCHANGE")
    parser.add_argument("--max-queue-count", type=not_negative, metavar="N")
    parser.add_argument("--max-queue-size", type=not_negative, metavar="BYTES")
    parser.add_argument("--limit-policy", choices=tuple(OVERFLOWS), default="none")
    parser.add_argument("--argument", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--force", action="store_true", help="delete whatever it holds and whoever uses it")
    parser.add_argument("--force-if-not-empty", action="store_true")
    parser.add_argument("--force-if-used", action="store_true")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    parser = _parser()

    def ask(options: argparse.Namespace) -> int:
        work = _command(options)
        if work is None:
            parser.error(f"{' '.join(options.words)!r} is no command, or has too few or too many words")

        async def done(management: Management) -> int:
            await work(management)
            return 0

        return remote.run_at(remote.broker_url(options.broker), done, options.timeout)

    return qpid.run(parser, arguments, ask)


def _command(options: argparse.Namespace) -> Callable[[Management], Awaitable[None]] | None:
    """What the words mean; None if nothing."""
    match options.words:
        case []:
            return _overview
        case ["exchanges" | "queues" as kind, *rest] if len(rest) <= 1:
            return lambda management: _list(options, management, kind.removesuffix("s"), rest[0] if rest else None)
        case ["add", "exchange", type_, name]:
            values = _exchange_values(options, type_)
            return lambda management: _add(management, "exchange", name, values)
        case ["add", "queue", name]:
            values = _queue_values(options)
            return lambda management: _add(management, "queue", name, values)
        case ["del", "exchange", name]:
            return lambda management: management.delete("exchange", name)
        case ["del", "queue", name]:
            return lambda management: management.delete("queue", name, _conditions(options))
        case ["bind" | "unbind" as word, exchange, queue, *rest] if len(rest) <= 1:
            change = exchanges.bind if word == "bind" else exchanges.unbind
            return lambda management: change(management, exchange, queue, rest[0] if rest else "")
    return None


async def _add(management: Management, kind: str, name: str, values: dict[str, Any]) -> None:
    if await management.find(kind, name) is not None:
        raise Refused(f"{kind} '{name}' exists already", 409)
    await management.create(kind, name, values)


def _exchange_values(options: argparse.Namespace, type_: str) -> dict[str, Any]:
    arguments = key_values(options.argument)
    if options.alternate_exchange:
        arguments["alternate-exchange"] = options.alternate_exchange
    return {"type": type_, "durable": options.durable, "arguments": arguments}


def _queue_values(options: argparse.Namespace) -> dict[str, Any]:
    arguments = key_values(options.argument)
    if options.max_queue_count is not None:
        arguments["x-max-length"] = options.max_queue_count
    if options.max_queue_size is not None:
        arguments["x-max-length-bytes"] = options.max_queue_size
    overflow = OVERFLOWS[options.limit_policy]
    if overflow is not None:
        arguments["x-overflow"] = overflow
    return {"durable": options.durable, "arguments": arguments}


def _conditions(options: argparse.Namespace) -> dict[str, bool]:
    keep_full = not (options.force or options.force_if_not_empty)
    keep_used = not (options.force or options.force_if_used)
    return {name: True for name, on in (("if_empty", keep_full), ("if_unused", keep_used)) if on}


async def _overview(management: Management) -> None:
    types = Counter(row["type"] for row in await management.query("exchange"))
    queues = await management.query("queue")
    durable = sum(bool(row["durable"]) for row in queues)
    print(f"Total Exchanges: {sum(types.values())}")
    for name, count in sorted(types.items()):
        print(f"{name:>15}: {count}")
    print(f"\n   Total Queues: {len(queues)}\n        durable: {durable}\n    non-durable: {len(queues) - durable}")


async def _list(options: argparse.Namespace, management: Management, kind: str, contains: str | None) -> None:
    columns = ("type", "name", "durable") if kind == "exchange" else ("name", "durable", "ready", "consumers")
    remote.print_rows(await management.query(kind, contains=contains), columns)
    if options.recursive:
        end = "source" if kind == "exchange" else "destination"
        for row in await management.query("binding"):
            if contains is None or contains in row[end]:
                print(f"    bind [{row.get('routing_key', '')}] {row['source']} => {row['destination']}")
