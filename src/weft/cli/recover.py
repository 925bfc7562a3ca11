"""`weft recover`: after an outage too long for anything automatic, look what a queue holds, and put it right by hand.

Owns the words of this command and its report: what is there, what is there twice, what of a list of sent ids is not
there, and what was done about it. Messages are only looked at; the node moves or drops them (`move`, `purge`).
It must never act without having reported what was there before.
Rule: docs/guides/operations.md, "After a long outage".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from weft.cli import remote, showing
from weft.cli.options import printable
from weft.client.management import Management
from weft.model import document

READ_S = 30.0
"""How long the next message may take to come: what is counted as ready is there."""
SENT_BYTES_MAX = 1_073_741_824
"""Some ten million ids."""
SHOWN_MAX = 10
"""Ids of one kind that are printed; with `--json` all are."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    parser.add_argument("address", metavar="queue", help="a queue")
    parser.add_argument("--sent", type=Path, metavar="FILE", help="ids that should be there, one in a line")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--back", action="store_true", help="then send dead letters back to where they died first")
    action.add_argument("--to", metavar="PLACE", help="then move everything to a queue, or to `exchange/key`")
    action.add_argument("--purge", action="store_true", help="then drop everything that is ready")


def run(options: argparse.Namespace) -> int:
    """Report, act, report again. Exit code 1 if something is missing or there twice."""
    sent = None if options.sent is None else document.read(options.sent, SENT_BYTES_MAX).split()

    async def work(management: Management) -> int:
        ready = int((await management.read("queue", options.address))["ready"])
        report = await _look(options, ready, sent)
        _say(report, as_json=False, out=sys.stderr if options.json else sys.stdout)
        report |= await _act(management, options)
        if options.json:
            _say(report, as_json=True, out=sys.stdout)
        elif "action" in report:
            print(f"{report['action']}: {report['done']} messages, {report['left']} left")
        return 1 if report["twice"] or report.get("missing") else 0

    return remote.run(options, work)


async def _look(options: argparse.Namespace, ready: int, sent: list[str] | None) -> dict[str, Any]:
    """What is in a queue now, by the ids of its messages."""
    ids: Counter[str] = Counter()
    count = 0
    if ready:
        async for message in showing.browse(options, ready, READ_S):
            count += 1
            if message.message_id is not None:
                ids[str(message.message_id)] += 1
    twice = sorted(name for name, times in ids.items() if times > 1)
    report: dict[str, Any] = {
        "queue": options.address,
        "messages": count,
        "without_id": count - ids.total(),
        "twice": twice,
    }
    if sent is not None:
        report |= {"sent": len(set(sent)), "missing": sorted(set(sent) - ids.keys())}
    return report


async def _act(management: Management, options: argparse.Namespace) -> dict[str, Any]:
    """Do as the options say; what was done, and what is left."""
    if options.purge:
        action, arguments = "purge", {}
    elif options.back or options.to:
        action, arguments = "move", {"to": options.to} if options.to else {}
    else:
        return {}
    result = await management.call("queue", options.address, action, arguments)
    row = await management.read("queue", options.address)
    return {"action": "purged" if options.purge else "moved", "done": result["count"], "left": row["ready"]}


def _say(report: dict[str, Any], *, as_json: bool, out: Any) -> None:
    if as_json:
        print(json.dumps(report), file=out)
        return
    print(f"{report['queue']}: {report['messages']} messages, {report['without_id']} of them without an id", file=out)
    for kind, text in (("twice", "there more than once"), ("missing", "sent and not there")):
        if kind in report:
            names = report[kind]
            more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
            shown = f": {', '.join(map(printable, names[:SHOWN_MAX]))}{more}" if names else ""
            print(f"  {len(names)} {text}{shown}", file=out)
