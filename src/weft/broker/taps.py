"""Taps: which stream gets a copy of what an exchange routes, or a queue is offered.

Owns the rules for the argument `x-tap` and for setting and clearing it later.
A declaration, or the names of both ends, come in; a refusal, or the edits that make it so, go out.
It must not copy anything: the kernel does, as one more target of the same record.
Rule: docs/guides/streams.md; a tap knows its stream by name, so it works again when the stream is made again.
"""

from __future__ import annotations

from dataclasses import replace

from weft.broker.access import Caller, Kind
from weft.broker.arguments import is_stream, type_name
from weft.broker.streams import TAP
from weft.broker.tables import Edit, Put, Tables
from weft.model.errors import Refused
from weft.store import Exchange, Queue


def check_tap(tables: Tables, caller: Caller, source: Exchange | Queue) -> None:
    """Refuse a declaration whose tap leads nowhere, or where the caller may not write."""
    if TAP not in source.arguments:
        return
    name = source.arguments[TAP]
    if not isinstance(name, str):
        text = f"invalid arg '{TAP}' for {source}: expected text, got {type_name(name)}"
        raise Refused(f"PRECONDITION_FAILED - {text}", 406)
    _stream(tables, name, source)
    caller.require("configure", "queue", name)


def set_tap(tables: Tables, kind: Kind, source: str, stream: str | None) -> list[Edit]:
    """Tap an exchange or a queue into a stream, or end that (None)."""
    record = tables.exchange(source) if kind == "exchange" else tables.queue(source)
    arguments = {name: value for name, value in record.arguments.items() if name != TAP}
    if stream is not None:
        _stream(tables, stream, record)
        arguments[TAP] = stream
    return [Put(replace(record, arguments=arguments), record.durable)]


def _stream(tables: Tables, name: str, source: Exchange | Queue) -> None:
    queue = tables.queue(name)
    if not is_stream(queue) or queue == source:
        raise Refused(f"PRECONDITION_FAILED - {source} can be tapped into another stream only, not into {queue}", 406)
