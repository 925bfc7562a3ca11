"""Streams of a node in Spark, and rows of Spark as messages: `format("weft")`.

Owns the public names of the data source. `import weft.spark` makes the format known to the session that is active;
`register(spark)` to any other, and `session()` makes one that starts fast.
It must never be imported by a node: Spark is an extra (`pip install 'weft[spark]'`).
Start at docs/guides/spark.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.spark.offsets import DataLost
from weft.spark.schema import MESSAGE, STREAM, json_body
from weft.spark.session import session
from weft.spark.source import WeftSource, register

if TYPE_CHECKING:
    from weft.spark.lake import Lake, tier

__all__ = ["MESSAGE", "STREAM", "DataLost", "Lake", "WeftSource", "json_body", "register", "session", "tier"]


def __getattr__(name: str) -> object:
    """The lake when somebody asks for it: Spark starts a process per query, and Parquet would be half of its start."""
    if name in ("Lake", "tier"):
        from weft.spark import lake

        return getattr(lake, name)
    raise AttributeError(f"module 'weft.spark' has no attribute {name!r}")


register()
