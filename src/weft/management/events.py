"""What happens to managed objects, told as messages and as log lines.

Owns the exchange `weft.events`, the form of its messages, and the log of the same. Class, kind, object and values come
in; a message goes out if anybody is bound to the exchange, and a log line if anybody reads it.
It must never be called per message, and costs a look-up when nobody listens.
Rule: routing key `CLASS.KIND.SEVERITY.OBJECT.NODE`, each without dots; the body is JSON by version 1 of
docs/guides/management.md, "Events".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import time_ns
from typing import Any

from weft._kernel import Engine, encode_json
from weft.management._generated_classes import CLASSES
from weft.management.lines import line

EXCHANGE = "weft.events"
VHOST = "/"
VERSION = 1
KEY_OBJECT_BYTES_MAX = 120
"""Of a name that goes into a routing key, which has at most 255 bytes; the body has it whole."""

LOG = logging.getLogger("weft.events")
"""Quiet unless a program sets its level: warnings and errors are told, the rest only at INFO."""
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SEVERITY = {(item.name, event.name): event.severity for item in CLASSES for event in item.events}


class Events:
    """Tells of what happens on one node."""

    def __init__(self, engine: Engine, node: str, *, is_heard: Callable[[], bool], changed: Callable[[], None]) -> None:
        """`is_heard` says whether anything is bound to the exchange, `changed` lets the driver look at the engine."""
        self._engine = engine
        self._node = node
        self._is_heard = is_heard
        self._changed = changed
        self._node_word = key_word(node)
        self.told = 0
        """Events that were published so far; each has this number."""

    @property
    def is_heard(self) -> bool:
        """Would a message be routed anywhere?"""
        return self._is_heard()

    @property
    def is_logged(self) -> bool:
        """Does anybody read the log of them?"""
        return LOG.isEnabledFor(logging.INFO)

    def wants(self, class_name: str, kind: str) -> bool:
        """Would anybody hear of this, or read it in the log?"""
        return self._is_heard() or LOG.isEnabledFor(_LEVELS[_SEVERITY[class_name, kind]])

    def tell(self, class_name: str, kind: str, name: str, vhost: str | None = None, /, **values: Any) -> None:
        """Something happened to an object."""
        severity = _SEVERITY[class_name, kind]
        if kind != "statistics" and LOG.isEnabledFor(_LEVELS[severity]):
            LOG.log(_LEVELS[severity], "%s", _line(class_name, kind, name, vhost, values))
        if self._is_heard():
            self.publish(class_name, kind, name, vhost, values)

    def publish(
        self,
        class_name: str,
        kind: str,
        name: str,
        vhost: str | None,
        values: dict[str, Any],
        *,
        severity: str | None = None,
    ) -> None:
        """Publish an event, for whoever has seen already that somebody listens; `severity` if it has one of its own."""
        severity = severity or _SEVERITY[class_name, kind]
        self.told += 1
        body = {
            "version": VERSION,
            "number": self.told,
            "class": class_name,
            "kind": kind,
            "severity": severity,
            "object": name,
            "vhost": vhost,
            "node": self._node,
            "time_ms": time_ns() // 1_000_000,
            "values": values,
        }
        key = f"{class_name}.{kind}.{severity}.{key_word(name)}.{self._node_word}"
        properties = {"content_type": "application/json", "type": f"{class_name}.{kind}", "app_id": "weft"}
        self._engine.publish(VHOST, EXCHANGE, key, encode_json(body), properties)
        self._changed()


def key_word(name: str) -> str:
    """A name as one word of a routing key."""
    word = name.replace(".", "_") or "-"
    if len(word) * 4 <= KEY_OBJECT_BYTES_MAX:
        return word
    return word.encode()[:KEY_OBJECT_BYTES_MAX].decode(errors="ignore")


def _line(class_name: str, kind: str, name: str, vhost: str | None, values: dict[str, Any]) -> str:
    return line({"event": f"{class_name}.{kind}", "object": name, "vhost": vhost} | values)
