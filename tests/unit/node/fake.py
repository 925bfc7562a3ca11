"""A scripted engine: the driver's other side, without a protocol.

Owns a double of `weft._kernel.Engine` that answers each call with the signals a test put there and notes what it was
told.
It must never behave: whoever wants behaviour uses the real kernel.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

from weft._kernel import DiskJob
from weft.model.changes import Change
from weft.model.events import Event


class FakeEngine:
    """What a test scripts and what the driver did with it."""

    def __init__(self) -> None:
        self.signals: dict[str, deque[int]] = defaultdict(deque)
        self.calls: list[tuple[Any, ...]] = []
        self.output: deque[list[tuple[int, bytes]]] = deque()
        self.events: deque[list[Event]] = deque()
        self.deliveries: dict[int, list[tuple[int, str, str, bool, dict[str, Any], bytes, int]]] = {}
        self.timeout_ns: int | None = None
        self.needs: tuple[int, int] | None = None
        self.disk = (0, 0)
        self._ids = 0

    def answer(self, method: str, *signals: int) -> None:
        """The next calls of a method return these."""
        self.signals[method].extend(signals)

    def told(self, method: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a method."""
        return [call[1:] for call in self.calls if call[0] == method]

    def changes(self) -> list[tuple[Change, ...]]:
        """What was applied, without the empty lists that only ask for signals."""
        return [call for call in self.told("apply") if call]

    def _call(self, method: str, *arguments: Any) -> int:
        self.calls.append((method, *arguments))
        waiting = self.signals[method]
        return waiting.popleft() if waiting else 0

    def open(self, *, tls: bool = False, local: bool = True) -> int:
        self._call("open", tls, local)
        self._ids += 1
        return self._ids

    def receive(self, conn: int, data: bytes, now_ns: int) -> int:
        return self._call("receive", conn, bytes(data))

    def writable(self, conn: int, yes: bool) -> int:
        return self._call("writable", conn, yes)

    def close(self, conn: int, cause: str) -> int:
        return self._call("close", conn, cause)

    def advance(self, now_ns: int, wall_ns: int) -> int:
        return self._call("advance", now_ns)

    def at(self, now_ns: int) -> None:
        pass

    def poll_transmit(self, bytes_max: int) -> list[tuple[int, bytes]]:
        self._call("poll_transmit")
        return self.output.popleft() if self.output else []

    def poll_disk(self) -> list[DiskJob]:
        self._call("poll_disk")
        return []

    def poll_events(self) -> list[Event]:
        return self.events.popleft() if self.events else []

    def finish(self) -> int:
        return 0

    def rest(self) -> None:
        self._call("rest")

    def poll_timeout(self) -> int | None:
        return self.timeout_ns

    def apply(self, changes: list[Change]) -> int:
        self.calls.append(("apply", *changes))
        waiting = self.signals["apply" if changes else "apply nothing"]
        return waiting.popleft() if waiting else int(bool(self.output))

    def publish(self, vhost: str, exchange: str, routing_key: str, body: bytes, properties: dict[str, Any]) -> int:
        self._call("publish", vhost, exchange, routing_key, body, properties)
        return 1

    def stored(self) -> tuple[int, int] | None:
        return self.needs

    def reached(self) -> tuple[int, int]:
        return self.disk

    def subscribe(self, vhost: str, queue: str, credit: int, offset: int | str | None = None) -> int:
        self._call("subscribe", vhost, queue, credit)
        self._ids += 1
        return self._ids

    def unsubscribe(self, handle: int) -> None:
        self._call("unsubscribe", handle)

    def poll_local(self) -> list[int]:
        return list(self.deliveries)

    def take(self, handle: int, count_max: int) -> list[tuple[int, str, str, bool, dict[str, Any], bytes, int]]:
        return self.deliveries.pop(handle, [])

    def settle(self, handle: int, tag: int, outcome: str) -> int:
        return self._call("settle", handle, tag, outcome)
