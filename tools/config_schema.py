"""Write what follows from schema/management.json: the schema as Python, and the reference page of the configuration
file.

Owns the two generated files named below. The schema comes in, text goes out; `--check` writes nothing and fails on a
difference.
It must never hold a key, a default or a sentence about a key: those are in the schema.
See CONTRIBUTING.md, "Generated files".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "schema" / "management.json"
MODULE = ROOT / "src" / "weft" / "config" / "_generated_schema.py"
PAGE = ROOT / "docs" / "reference" / "configuration.md"

MODULE_HEADER = '''"""Generated from schema/management.json by tools/config_schema.py; edit the schema, then run that.

Owns the entities and attributes a configuration file may hold, as values of `weft.config.schema`.
It must never be edited by hand.
"""

from weft.config.schema import Attribute, Entity

# fmt: off
ENTITIES = (
'''

PAGE_HEADER = """# Configuration file

`weft up --config FILE` reads TOML. Every key is listed here; an unknown one is an error that names the nearest one.
`weft config --check FILE` reads a file without starting a node. Options on the command line win over the file.

<!-- Generated from schema/management.json by tools/config_schema.py: edit the schema. -->
"""


def module(entities: dict[str, Any]) -> str:
    """The schema as a Python module."""
    lines = [MODULE_HEADER]
    for name, entity in entities.items():
        lines.append(f"    Entity(\n        {text(name)},\n        {text(entity['doc'])},\n")
        lines.append(f"        many={bool(entity.get('many'))},\n        attributes=(\n")
        for key, attribute in entity["attributes"].items():
            options = "".join(
                f", {option}={text(attribute[option])}"
                for option in ("default", "required", "min", "max", "choices")
                if option in attribute
            )
            lines.append(
                f"            Attribute({text(key)}, {text(attribute['type'])}, {text(attribute['doc'])}{options}),\n"
            )
        lines.append("        ),\n    ),\n")
    lines.append(")\n")
    return "".join(lines)


def text(value: object) -> str:
    """A Python literal in the project's quotes."""
    if isinstance(value, list):
        return repr(tuple(value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def page(entities: dict[str, Any]) -> str:
    """The schema as a reference page."""
    lines = [PAGE_HEADER]
    for name, entity in entities.items():
        heading = f"[[{name}]]" if entity.get("many") else f"[{name}]"
        lines.append(f"\n## `{heading}`\n\n{entity['doc']}\n\n| key | type | default | |\n|---|---|---|---|\n")
        for key, attribute in entity["attributes"].items():
            default = f"`{json.dumps(attribute['default'])}`" if "default" in attribute else ""
            default = "**needed**" if attribute.get("required") else default
            kind = {"strings": "list of strings"}.get(attribute["type"], attribute["type"])
            lines.append(f"| `{key}` | {kind} | {default} | {attribute['doc'].replace('|', chr(92) + '|')} |\n")
    return "".join(lines)


def main() -> int:
    """Write the files, or compare them."""
    entities = json.loads(SCHEMA.read_text(encoding="utf-8"))["entities"]
    stale = []
    for path, content in ((MODULE, module(entities)), (PAGE, page(entities))):
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in sys.argv[1:]:
            path.write_text(content, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        print(
            f"differs from schema/management.json: {', '.join(map(str, stale))}; run tools/config_schema.py",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
