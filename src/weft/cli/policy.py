"""`weft policy`: settings for every queue and exchange whose name matches.

Owns the words of this command; the node does the work (management classes `policy` and `operator_policy`).
It must never know what a definition means.
Rule: docs/guides/policies.md.
"""

from __future__ import annotations

import argparse

from weft.cli import remote
from weft.cli.options import key_values
from weft.client.management import Management

COLUMNS = ("name", "pattern", "apply_to", "priority", "definition")
APPLY_TO = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    remote.add_url(parser)
    remote.add_vhost(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="set|clear|list")
    setting = words.add_parser("set", help="set a policy; it holds at once for what it matches")
    setting.add_argument("name")
    setting.add_argument("pattern", help="a regular expression over names")
    setting.add_argument("definition", nargs="+", metavar="KEY=VALUE", help="such as max-length=1000")
    setting.add_argument("--apply-to", choices=APPLY_TO, default="all")
    setting.add_argument("--priority", type=int, default=0, help="of several that match, the highest applies")
    clearing = words.add_parser("clear", help="clear a policy")
    clearing.add_argument("name")
    listing = words.add_parser("list", help="every policy")
    for word in (setting, clearing, listing):
        word.add_argument("--operator", action="store_true", help="a policy that bounds what others set")


def run(options: argparse.Namespace) -> int:
    """Do as the word says."""
    kind = "operator_policy" if options.operator else "policy"

    async def work(management: Management) -> int:
        match options.word:
            case "set":
                about = {"pattern": options.pattern, "apply_to": options.apply_to, "priority": options.priority}
                definition = key_values(options.definition)
                await management.create(kind, options.name, {**about, "definition": definition})
            case "clear":
                await management.delete(kind, options.name)
            case _:
                rows = await management.query(kind)
                remote.print_rows(rows, remote.where_needed(rows, COLUMNS), as_json=options.json)
        return 0

    return remote.run(options, work)
