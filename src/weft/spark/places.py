"""From options to a log: the lake, a node's files, its wire, or history and live joined.

Owns the choice and nothing else. Options come in, a log goes out, in whatever process asks.
It must never keep a log open longer than its process, and never decide what is read from it.
"""

from __future__ import annotations

from weft.model.errors import ConfigError
from weft.spark.logs import Joined, Log
from weft.spark.options import ReadOptions


def open_log(options: ReadOptions) -> Log:
    """The log that the options name; only what it needs is imported, since Spark starts a process for every query."""
    live: Log | None = None
    if options.path:
        from weft.spark.files import files

        live = files(options.path, options.vhost)
    elif options.url:
        from weft.spark.wire import wire

        live = wire(options.url)
    if options.lake:
        from weft.spark.lake import Lake

        return Joined(Lake(options.lake), live) if live is not None else Lake(options.lake)
    if live is None:
        raise ConfigError("say where: url, path or lake")
    return live
