"""Write docs/reference/http.md from the tables of routes that the node serves.

Owns that one page. The routes come in, text goes out; `--check` writes nothing and fails on a difference.
It must never hold a route or a sentence about one: those are in `weft.management.http`.
See CONTRIBUTING.md, "Generated files".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "http.md"

HEADER = """# HTTP API

With `[http]` configured a node serves these addresses, with basic authentication by its own users, who need the tag
`management`. The same list as OpenAPI 3.1 is at `/api/openapi.json`; `/metrics` and that description need no login. The
answers are those of RabbitMQ's management API, with what weft has more under `weft`; parts of a path are
percent-encoded (`%2F` is the virtual host `/`).

Lists take `page`, `page_size` (at most 500), `name`, `use_regex`, `sort`, `sort_reverse` and `columns`. Making
something answers 201, or 204 if it was there; deleting answers 204; a refusal is `{"error": …, "reason": …}`.

Definitions of RabbitMQ can be taken over with their users: its password hashes (SHA-256, SHA-512) are kept, verified
and exported as they came. A hash that weft made (scrypt) is exported as `weft_password_hash`; RabbitMQ takes such a
user over without a password.

<!-- Generated from the tables of routes by tools/http_reference.py. -->

| method | path | |
|---|---|---|
"""


def page() -> str:
    """The reference page."""
    from weft.management.http.server import ROUTES

    rows = [f"| {one.method} | `{re.sub(r':[^}]*}', '}', one.path)}` | {one.doc} |\n" for one in ROUTES]
    return HEADER + "".join(rows)


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/reference/http.md differs from the routes; run tools/http_reference.py", file=sys.stderr)
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
