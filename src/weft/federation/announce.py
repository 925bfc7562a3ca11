"""The destination's half of a dynamic route: telling the source which keys are wanted, and being sure it knows.

Owns what a source was told and what it has confirmed, per route. Changes of wanted keys and the source's answers come
in; `reflect` and `verify` messages go out.
It must not know links or queues: whoever holds it sends what it makes.
Rule: a new connection begins with the whole set, which the source compares with the bindings it really has; later only
differences are sent, numbered, and the set is compared again from time to time (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.federation import control
from weft.federation.control import KEYS_PER_MESSAGE, Said
from weft.federation.reach import Key, Path, Paths, Reach
from weft.federation.records import Route

VERIFY_NS = 15_000_000_000
"""How often a quiet route is compared with its source: what was changed there by hand is mended within this time."""
RETRY_NS = 1_000_000_000
"""How soon a source that refused is asked again: what it lacks may be made at any time."""


class Announcer:
    """One dynamic route, as its source is told of it."""

    def __init__(self, node: str, route: Route, reach: Reach, epoch: int, *, is_invited: bool = False) -> None:
        """`epoch` is higher than any of a former life; `is_invited`: the route is its source's, which asked us to
        announce.
        """
        self.route = route
        self.source = ""
        """The node that is told; empty while there is no connection."""
        self.cause = "not announced yet"
        self.queue = ""
        """The queue the source made for us; empty until it has."""
        self.mended = 0
        """Bindings the source had to make or undo when it compared, since the node started."""
        self._node = node
        self._reach = reach
        self._is_invited = is_invited
        self._sent: dict[Key, Paths] = {}
        self._dirty: dict[Key, None] = {}
        self.epoch = epoch
        """Which announcement this is: each connection begins a new one."""
        self._sequence = 0
        self._confirmed = 0
        self._verify_ns = 0

    @property
    def is_on(self) -> bool:
        """Is there a source to talk to?"""
        return bool(self.source)

    @property
    def is_settled(self) -> bool:
        """Does the source have all it was told?"""
        return self.is_on and self._confirmed == self._sequence and not self._dirty

    @property
    def keys(self) -> int:
        """How many keys the source was told."""
        return len(self._sent)

    def mark(self, keys: Iterable[Key]) -> None:
        """These keys may have changed; `flush` says what of it the source must know."""
        if self.is_on:
            self._dirty.update(dict.fromkeys(keys))

    def start(self, source: str, now_ns: int) -> list[bytes]:
        """A connection to the source is up: everything, from the beginning."""
        self.source = source
        self.epoch += 1
        self._sequence = self._confirmed = 0
        self._dirty.clear()
        self.cause = f"comparing bindings with {source}"
        self._verify_ns = now_ns + VERIFY_NS
        wanted = ((key, self._paths(key)) for key in self._reach.all_keys())
        self._sent = {key: paths for key, paths in wanted if paths}
        keys = list(self._sent)
        chunks = [keys[at : at + KEYS_PER_MESSAGE] for at in range(0, len(keys), KEYS_PER_MESSAGE)] or [[]]
        last = len(chunks) - 1
        return [
            self._reflect(
                [(key, path) for key in chunk for path in self._sent[key].values()], (), fresh=at == 0, last=at == last
            )
            for at, chunk in enumerate(chunks)
        ]

    def stop(self, cause: str) -> None:
        """The connection is gone; what the source has been told it keeps."""
        self.source = ""
        self.queue = ""
        self._dirty.clear()
        self.cause = cause

    @property
    def is_dirty(self) -> bool:
        """Is there something for `flush` to look at?"""
        return bool(self._dirty)

    def flush(self, *, only_new: bool = False) -> list[bytes]:
        """What has changed since the source was last told; `only_new` leaves keys it knows for the next time, since
        their paths may change several times before they rest.
        """
        if not self._dirty or not self.is_on:
            return []
        added: list[tuple[Key, Path]] = []
        dropped: list[tuple[Key, str]] = []
        later: dict[Key, None] = {}
        for key in self._dirty:
            told = self._sent.get(key, {})
            if only_new and told:
                later[key] = None
                continue
            paths = self._paths(key)
            added += [(key, path) for origin, path in paths.items() if told.get(origin) != path]
            dropped += [(key, origin) for origin in told if origin not in paths]
            if paths:
                self._sent[key] = paths
            else:
                self._sent.pop(key, None)
        self._dirty = later
        return [self._reflect(added, dropped, fresh=False, last=True)] if added or dropped else []

    def verify(self, now_ns: int) -> list[bytes]:
        """The question whether the source still has what it was told, when it is time for it. One that has not
        answered, or refused, is told everything again.
        """
        if now_ns < self._verify_ns or not self.is_on:
            return []
        if not self.is_settled:
            return self.start(self.source, now_ns)
        self._verify_ns = now_ns + VERIFY_NS
        facts = {"count": len(self._sent), "digest": control.digest(self._sent), "sequence": self._sequence}
        return [control.encode("verify", self._node, **self._names(), epoch=self.epoch, **facts)]

    def on_reflected(self, said: Said) -> None:
        """The source has done as told."""
        if said.number("epoch") != self.epoch:
            return
        self._confirmed = max(self._confirmed, said.number("sequence"))
        self.queue = said.text("queue")
        self.mended += said.number("mended")
        self.cause = f"{len(self._sent)} bindings reflected at {self.source}"

    def on_refused(self, said: Said, now_ns: int) -> list[bytes]:
        """The source will not, or has lost count; then it gets everything again."""
        if said.number("epoch") != self.epoch or not self.is_on:
            return []
        self.cause = f"{self.source} refused: {said.text('text', '')}"
        self._verify_ns = now_ns + RETRY_NS
        return self.start(self.source, now_ns) if said.flag("resync") else []

    def withdraw(self) -> list[bytes]:
        """The route is over."""
        return [control.encode("withdraw", self._node, **self._names())] if self.is_on else []

    def _reflect(
        self, added: Iterable[tuple[Key, Path]], dropped: Iterable[tuple[Key, str]], *, fresh: bool, last: bool
    ) -> bytes:
        self._sequence += 1
        route = self.route
        keep = {"durable": route.durable, "expires_ms": route.expires_ms}
        keys = {"add": control.pack_paths(added), "drop": control.pack_origins(dropped)}
        place = {"epoch": self.epoch, "sequence": self._sequence, "fresh": fresh, "last": last}
        return control.encode("reflect", self._node, **self._names(), **keep, **keys, **place)

    def _paths(self, key: Key) -> Paths:
        # Among nodes that are all linked to each other everybody speaks for itself.
        return self._reach.paths(key, self.source, only_own=self.route.relay == "complete")

    def _names(self) -> dict[str, str | bool]:
        return {"route": self.route.name, "exchange": self.route.from_exchange, "invited": self._is_invited}
