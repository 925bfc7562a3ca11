"""Writes the generated code of the kernel from the files in schema/.

Owns the two modes: without options the outputs are rewritten, with --check they are compared and nothing is touched.
The generators hand in texts by path and know nothing of files to write; this module knows nothing of what is in them.
The rule it serves: a schema is edited, its output never; `make check` compares the two.
"""

import argparse
import pathlib
import sys

import codegen_amqp091
import codegen_amqp10

ROOT = pathlib.Path(__file__).resolve().parent.parent
GENERATORS = [codegen_amqp091, codegen_amqp10]


def stale(path: pathlib.Path, text: str) -> str | None:
    """Why the file at `path` is not `text`, or None if it is."""
    if not path.exists():
        return "is missing"
    if path.read_text(encoding="utf-8") != text:
        return "differs from its schema"
    return None


def main() -> int:
    """Regenerates or checks every output; the exit status for the shell."""
    parser = argparse.ArgumentParser(description="Regenerate code from schema/.")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if an output is stale")
    check = parser.parse_args().check
    try:
        outputs = {path: text for generator in GENERATORS for path, text in generator.outputs().items()}
    except (KeyError, OSError, ValueError) as error:
        print(f"a schema cannot be read: {error!r}", file=sys.stderr)
        return 1
    for path, text in outputs.items():
        reason = stale(path, text)
        if reason and check:
            print(f"{path.relative_to(ROOT)} {reason}: run python tools/codegen.py", file=sys.stderr)
            return 1
        if reason:
            path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
