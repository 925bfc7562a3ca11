"""Managed transactions: those that are prepared and wait to be resolved.

Owns reading them, and ending them by hand. Rows of the kernel's table come in; a row per transaction goes out. It must
never end one by itself: only its coordinator knows, and after it an operator.
Rule: schema/management.json, class `transaction`; docs/guides/operations.md, "Transactions in doubt".
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time_ns

from weft.management.caller import Caller
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import Row
from weft.model.errors import Refused


class Transactions(Provider):
    """Every prepared transaction."""

    def __init__(self, manager: Manager) -> None:
        self._host = manager.host
        self._events = manager.events

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        seen = caller.vhosts() if vhost is None else [vhost]
        now_ms = time_ns() // 1_000_000
        for identity, place, user, since_ms, messages, held, size in self._host.engine.prepared():
            if place in seen and (caller.sees_all or user == caller.user):
                yield {
                    "name": name_of(identity),
                    "vhost": place,
                    "user": user,
                    "since_ms": since_ms,
                    "age_ms": max(0, now_ms - since_ms),
                    "messages": messages,
                    "held": held,
                    "bytes": size,
                }

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        if operation not in {"commit", "rollback"}:
            return await super().call(caller, vhost, name, operation, arguments)
        row = self.read(caller, vhost, name)
        if row["user"] != caller.user:
            caller.require("administrator")
        ids = [identity for identity, *_ in self._host.engine.prepared() if name_of(identity) == name]
        if not ids or not self._host.engine.resolve(ids[0], operation == "commit"):
            raise Refused(f"there is no '{name}'", 404)
        self._host.driver.advance_soon()
        kind = "committed" if operation == "commit" else "rolled_back"
        self._events.tell("transaction", kind, name, vhost, user=caller.user)
        return {}


def name_of(identity: bytes) -> str:
    """A global id as text; hexadecimal if it is none."""
    try:
        text = identity.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text and not text.startswith("0x") else f"0x{identity.hex()}"
