"""The synchronous face of the client, made from the asynchronous one.

Owns the rewriting of `src/weft/client/*.py` into `src/weft/client/sync/*.py`: the same names and texts without `async`
and `await`, waiting on threads. Sources come in, files go out; `--check` only says whether they would differ.
It must never need to understand the code: whatever differs between the two is in `tickets.py` and `threads.py`.
Run it after every change to the asynchronous face.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "src" / "weft" / "client"
MODULES = ("everywhere", "fabric", "management", "receiving", "service", "sessions", "steps")
WORDS = (
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait (?=[\w(])", ""),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\banext\(", "next("),
    (r"\basyncio\.run\((.*)\)", r"\1"),
    (r"\b([Aa])n asynchronous (iterator)", r"\1n \2"),
    (r"\bweft\.(connect|distributed)\b", r"sync.\1"),
    (r">>> import asyncio, weft\b", ">>> from weft.client import sync"),
    (r"\bweft\.client\.tickets\b", "weft.client.threads"),
    (rf"\bweft\.client\.({'|'.join(MODULES)})\b", r"weft.client.sync.\1"),
)
NOTE = "# Made by tools/unasync.py from the module of the same name one folder up: edit that, never this."


def translate(source: str) -> str:
    """The synchronous form of a module."""
    for pattern, replacement in WORDS:
        source = re.sub(pattern, replacement, source)
    return f"{NOTE}\n{_sort_imports(source)}"


def _sort_imports(source: str) -> str:
    """Imports in the order a formatter wants, after their names have changed."""
    lines = [_sort_names(line) for line in source.splitlines(keepends=True)]
    start = 0
    while start < len(lines):
        end = start
        while end < len(lines) and re.match(r"\s*from [\w.]+ import [^(]*$", lines[end]):
            end += 1
        lines[start:end] = sorted(lines[start:end], key=lambda line: line.split(" import ")[0])
        start = max(end, start + 1)
    return "".join(lines)


def _sort_names(line: str) -> str:
    found = re.match(r"(\s*from [\w.]+ import )([\w, ]+)\n$", line)
    if found is None:
        return line
    names = sorted(found[2].split(", "), key=lambda name: (not name.isupper(), not name[:1].isupper(), name))
    return f"{found[1]}{', '.join(names)}\n"


def main() -> int:
    """Write the files, or compare them."""
    wrong = []
    for module in MODULES:
        target = CLIENT / "sync" / f"{module}.py"
        text = translate((CLIENT / f"{module}.py").read_text(encoding="utf-8"))
        if "--check" not in sys.argv:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            wrong.append(target.name)
    if wrong:
        print(f"out of date: {', '.join(wrong)} (run tools/unasync.py)", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
