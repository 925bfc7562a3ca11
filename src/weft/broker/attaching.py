"""An attach in the making: what its decision is made from, and what it comes to.

Owns the two values that the files deciding on links hand to each other.
The controller fills the first from the event and what it remembers; it saves, applies and sends what the second holds.
It must not decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.broker.access import Caller
from weft.broker.tables import Edit, Tables
from weft.model.changes import AcceptLink
from weft.model.events import AttachRequested, Terminus

TOPIC_CAPABILITIES = frozenset({"topic", "temporary-topic"})


@dataclass(frozen=True, slots=True)
class Attaching:
    """What is known of a link that wants to be attached."""

    tables: Tables
    caller: Caller
    container: str
    event: AttachRequested

    @property
    def terminus(self) -> Terminus:
        """The node's end of the link."""
        return self.event.terminus

    @property
    def wants_topic(self) -> bool:
        """Does the peer take the address for a topic, as JMS clients say?"""
        return not TOPIC_CAPABILITIES.isdisjoint(self.terminus.capabilities)

    def echo(self, *capabilities: str) -> tuple[str, ...]:
        """Those of our capabilities the peer asked for."""
        return tuple(name for name in self.terminus.capabilities if name in capabilities)


@dataclass(frozen=True, slots=True)
class Attached:
    """Yes: what is to be made first, and the answer."""

    edits: list[Edit]
    link: AcceptLink
