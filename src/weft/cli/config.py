"""`weft config`: what a configuration file may hold, and whether one is right.

Owns the text form of the schema on a terminal. Nothing comes in, or a file to check.
It must never start or change a node.
The same schema as a page: docs/reference/configuration.md.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from weft.cli.checked import load_checked
from weft.config._generated_schema import ENTITIES
from weft.config.schema import Attribute


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--check", metavar="FILE", help="read FILE and say whether it is right")


def run(options: argparse.Namespace) -> int:
    """Print the schema as a file with every key commented out, or check a file."""
    if options.check:
        load_checked(Path(options.check))
        print(f"{options.check} is right")
        return 0
    for entity in ENTITIES:
        print(_comment(entity.doc))
        # A table that is there may switch something on, so the names are comments too.
        print(f"# [[{entity.name}]]" if entity.many else f"# [{entity.name}]")
        for attribute in entity.attributes:
            print(_comment(attribute.doc))
            print(f"# {attribute.name} = {_value(attribute)}")
        print()
    return 0


def _comment(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="## ", subsequent_indent="## ")


def _value(attribute: Attribute) -> str:
    match attribute.default:
        case bool() as value:
            return "true" if value else "false"
        case int() as value:
            return str(value)
        case tuple():
            return "[]"
        case str() as value:
            return f'"{value}"'
        case None:
            return '"…"'
