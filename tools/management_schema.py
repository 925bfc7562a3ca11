"""Write what follows from the classes in schema/management.json: the classes as Python, and their reference page.

Owns the two generated files named below. The schema comes in, text goes out; `--check` writes nothing and fails on a
difference.
It must never hold a class, a field or a sentence about one: those are in the schema.
See CONTRIBUTING.md, "Generated files".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "schema" / "management.json"
MODULE = ROOT / "src" / "weft" / "management" / "_generated_classes.py"
PAGE = ROOT / "docs" / "reference" / "management.md"

MODULE_HEADER = '''"""Generated from schema/management.json by tools/management_schema.py: edit the schema.

Owns the managed classes as values of `weft.management.schema`.
It must never be edited by hand.
"""

from weft.management.schema import EventKind, Field, ManagedClass, Operation

# fmt: off
CLASSES = (
'''

PAGE_HEADER = """# Managed objects

Everything on a node is an object of one of these classes. The same names are used by `$management` over AMQP, by the
HTTP API under `/api/weft/CLASS`, by `weft ctl`, in events and in log lines; docs/guides/management.md shows how to ask.

Properties with **key** name an object, those with **create** may be given when it is made, those with **write** may be
changed later, those with **secret** are taken and never told. Counters count since the object was made or the node was
started, whichever is later. An event's routing key is `CLASS.KIND.SEVERITY.OBJECT.NODE`.

<!-- Generated from schema/management.json by tools/management_schema.py: edit the schema. -->
"""


def module(classes: dict[str, Any]) -> str:
    """The classes as a Python module."""
    lines = [MODULE_HEADER]
    for name, item in classes.items():
        lines.append(f"    ManagedClass(\n        {text(name)},\n        {text(item['doc'])},\n")
        lines.append(f"        scope={text(item['scope'])},\n        needs={text(item.get('needs', 'management'))},\n")
        for group in ("properties", "statistics"):
            lines.append(f"        {group}=(\n")
            lines += [f"            {field(key, value)},\n" for key, value in item[group].items()]
            lines.append("        ),\n")
        lines.append("        operations=(\n")
        lines += [f"            {operation(key, value)},\n" for key, value in item["operations"].items()]
        lines.append("        ),\n        events=(\n")
        for key, value in item["events"].items():
            lines.append(f"            EventKind({text(key)}, {text(value['severity'])}, {text(value['doc'])}),\n")
        lines.append("        ),\n    ),\n")
    lines.append(")\n")
    return "".join(lines)


def field(name: str, value: dict[str, Any]) -> str:
    """A field as an expression."""
    how = value.get("kind") or value.get("access", "read")
    return f"Field({text(name)}, {text(value['type'])}, {text(value['doc'])}, {text(how)})"


def operation(name: str, value: dict[str, Any]) -> str:
    """An operation as an expression."""
    arguments = "".join(field(key, item) + ", " for key, item in value.get("arguments", {}).items())
    return f"Operation({text(name)}, {text(value['doc'])}, {text(value.get('needs', ''))}, ({arguments}))"


def text(value: object) -> str:
    """A Python literal in the project's quotes."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def page(classes: dict[str, Any]) -> str:
    """The classes as a reference page."""
    lines = [PAGE_HEADER]
    for name, item in classes.items():
        where = "in a virtual host" if item["scope"] == "vhost" else "of the node"
        needs = f" Needs the tag `{item['needs']}`." if "needs" in item else ""
        lines.append(f"\n## `{name}`\n\n{item['doc']} One {where}.{needs}\n")
        for group, how in (("properties", "access"), ("statistics", "kind")):
            if item[group]:
                lines.append(f"\n| {group} | type | | |\n|---|---|---|---|\n")
            for key, value in item[group].items():
                mark = value.get(how, "")
                lines.append(f"| `{key}` | {value['type']} | {mark} | {value['doc'].replace('|', chr(92) + '|')} |\n")
        lines.append(operations(item["operations"]) if item["operations"] else "")
        if item["events"]:
            lines.append("\n| event | severity | |\n|---|---|---|\n")
        for key, value in item["events"].items():
            lines.append(f"| `{key}` | {value['severity']} | {value['doc']} |\n")
    return "".join(lines)


def operations(rows: dict[str, Any]) -> str:
    """The operations of a class as a table."""
    lines = ["\n| operation | arguments | |\n|---|---|---|\n"]
    for key, value in rows.items():
        arguments = ", ".join(f"`{name}`" for name in value.get("arguments", {}))
        details = " ".join(f"`{name}`: {item['doc']}" for name, item in value.get("arguments", {}).items())
        needs = f" Needs `{value['needs']}`." if "needs" in value else ""
        lines.append(f"| `{key}` | {arguments} | {value['doc']}{needs} {details} |\n")
    return "".join(lines)


def main() -> int:
    """Write the files, or compare them."""
    classes = json.loads(SCHEMA.read_text(encoding="utf-8"))["classes"]
    stale = []
    for path, content in ((MODULE, module(classes)), (PAGE, page(classes))):
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv[1:]:
            path.write_text(content, encoding="utf-8")
    if stale and "--check" in sys.argv[1:]:
        print(
            f"differs from schema/management.json: {', '.join(stale)}; run tools/management_schema.py", file=sys.stderr
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
