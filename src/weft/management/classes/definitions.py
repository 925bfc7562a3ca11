"""Managed virtual hosts, exchanges and bindings.

Owns reading, making and deleting them by request, and sending one message to an exchange. Definitions come from the
broker's controller, counters from the kernel.
It must not decide what a declaration means: the broker does.
Rule: schema/management.json, classes `vhost`, `exchange` and `binding`; permissions as over AMQP.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal
from urllib.parse import quote

from weft._kernel import Tally
from weft.management.caller import Caller
from weft.management.classes.limits import limits_of, set_limits
from weft.management.classes.policies import applied_row
from weft.management.classes.tables import kernel_page, tallied
from weft.management.manager import Manager
from weft.management.provider import Provider, Values
from weft.management.query import RUN, Page, Query, Row, page_of
from weft.model.errors import LocalProtocolError, Refused
from weft.store import Binding, Notes
from weft.store.tables import encode_table


class Vhosts(Provider):
    """Every virtual host."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._host = manager.host

    async def query(self, caller: Caller, query: Query) -> Page:
        return await page_of(self._counted(caller.vhosts(), await tallied(self._host.engine)), query)

    async def fetch(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - it is the scope itself
        for row in self._counted([caller.enter(name)], await tallied(self._host.engine)):
            return row
        raise Refused(f"no virtual host '{name}'", 404)

    def _counted(self, names: Iterable[str], tally: Tally) -> Iterator[Row]:
        totals = {row[0]: row[1:] for row in tally.vhosts(self._host.engine)}
        limits = limits_of(self._host.policy, "vhost")
        for name in names:
            if name not in totals:
                continue  # deleted meanwhile
            counted: Row = dict(zip(("queues", "ready", "unsettled", "connections"), totals[name], strict=True))
            about = {"name": name, "tag": f"{self._host.name}:{name}", **_told_notes(self._host.policy.notes(name))}
            yield {**about, **limits.get(name, {}), **counted}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        caller.require("administrator")
        if name not in self._host.policy.vhosts():
            self._host.apply(self._host.topology.add_vhost(name))
            self._manager.on_vhosts()
            self._manager.events.tell("vhost", "created", name)
        if given := self._note(name, values) | set_limits(self._host, "vhost", name, values):
            self._manager.events.tell("vhost", "changed", name, **given)
        return name

    async def update(self, caller: Caller, vhost: str, name: str, values: Values) -> None:
        caller.enter(name)
        await self.create(caller, vhost, name, values)

    def _note(self, name: str, values: Values) -> Row:
        """Say what is given of it; what was new."""
        before = _told_notes(self._host.policy.notes(name))
        given = {what: values[what] for what in before if values.get(what) is not None}
        if "tags" in given:
            given["tags"] = list(given["tags"])
        told = before | given
        if told == before:
            return {}
        queue_type = told["default_queue_type"]
        self._host.policy.note(name, Notes(told["description"], tuple(told["tags"]), queue_type or None))
        return {what: value for what, value in given.items() if value != before[what]}

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        caller.require("administrator")
        caller.enter(name)
        self._host.apply(self._host.topology.delete_vhost(name))
        self._manager.on_vhosts()
        self._manager.events.tell("vhost", "deleted", name)


def _told_notes(notes: Notes) -> Row:
    about: Row = {"description": notes.description, "tags": list(notes.tags)}
    return about | {"default_queue_type": notes.queue_type}


class Exchanges(Provider):
    """Every exchange, the default one included."""

    def __init__(self, manager: Manager) -> None:
        self._host = manager.host

    async def query(self, caller: Caller, query: Query) -> Page:
        return await kernel_page(self._host, "exchanges", caller, query, self._finish)

    def read(self, caller: Caller, vhost: str, name: str) -> Row:  # noqa: ARG002 - who may enter the host sees it
        _, _, rows = self._host.engine.page("exchanges", vhosts=[vhost], contains=name)
        for row in rows:
            if row["name"] == name:
                return self._finish(row)
        raise Refused(f"no exchange '{name}' in virtual host '{vhost}'", 404)

    def _finish(self, row: Row) -> Row:
        exchange = self._host.topology.find_exchange(row["vhost"], row["name"])
        row["durable"] = exchange is None or exchange.durable
        row["auto_delete"] = exchange is not None and exchange.auto_delete
        row["arguments"] = {} if exchange is None else exchange.arguments
        row["bindings"] = self._host.topology.count_bindings(row["vhost"], row["name"])
        if exchange is not None:
            row["type"] = exchange.type
            row |= applied_row(self._host.topology.applied(exchange))
        return row

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:
        caller.need("configure", vhost, name)
        arguments = values.get("arguments") or {}
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            caller.need("read", vhost, name)
            caller.need("write", vhost, alternate)
        changes = self._host.topology.declare_exchange(
            vhost,
            name,
            values.get("type", "direct"),
            durable=values.get("durable", True),
            auto_delete=values.get("auto_delete", False),
            internal=values.get("internal", False),
            arguments=arguments,
        )
        self._host.apply(changes)
        return name

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:
        caller.need("configure", vhost, name)
        if name and self._host.topology.find_exchange(vhost, name) is None:
            raise Refused(f"no exchange '{name}' in virtual host '{vhost}'", 404)
        if_unused = bool(options.get("if_unused"))
        self._host.apply(self._host.topology.delete_exchange(vhost, name, if_unused=if_unused))

    async def call(self, caller: Caller, vhost: str, name: str, operation: str, arguments: Values) -> Values:
        if operation != "publish":
            return await super().call(caller, vhost, name, operation, arguments)
        exchange = self._host.topology.find_exchange(vhost, name)
        if name and exchange is None:
            raise Refused(f"no exchange '{name}' in virtual host '{vhost}'", 404)
        if exchange is not None and exchange.internal:
            raise Refused(f"exchange '{name}' is internal: only bindings send to it", 403)
        caller.need("write", vhost, name)
        key = arguments.get("routing_key") or ""
        if exchange is not None and exchange.type == "topic":
            caller.need_topic("write", vhost, name, key)
        body = _payload(arguments)
        properties = {key: value for key, value in (arguments.get("properties") or {}).items() if value is not None}
        try:
            taken = self._host.engine.publish(vhost, name, key, body, properties)
        except (ValueError, TypeError, OverflowError, LocalProtocolError) as error:
            raise Refused(f"not a message: {error}", 400) from None
        self._host.driver.advance_soon()
        return {"routed": taken > 0}


def _payload(arguments: Values) -> bytes:
    text = arguments.get("payload") or ""
    match arguments.get("payload_encoding") or "string":
        case "string":
            return str(text).encode()
        case "base64":
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError) as error:
                raise Refused(f"payload is not base64: {error}", 400) from None
        case other:
            raise Refused(f"payload_encoding is string or base64, not {other}", 400)


class Bindings(Provider):
    """Every binding, those of the default exchange left out."""

    def __init__(self, manager: Manager) -> None:
        self._host = manager.host

    def rows(self, caller: Caller, vhost: str | None) -> Iterable[Row]:
        for name in caller.vhosts() if vhost is None else [vhost]:
            bindings = self._host.topology.bindings(name)
            for start in range(0, len(bindings), RUN):
                part = bindings[start : start + RUN]
                for binding, matched in zip(part, self._host.engine.matched(part), strict=True):
                    yield binding_row(binding) | {"matched": matched or 0}

    async def create(self, caller: Caller, vhost: str, name: str, values: Values) -> str:  # noqa: ARG002
        wanted = self._wanted(vhost, values)
        caller.need("write", vhost, wanted.destination)
        caller.need("read", vhost, wanted.source)
        source = self._host.topology.find_exchange(vhost, wanted.source)
        if source is not None and source.type == "topic":
            caller.need_topic("read", vhost, wanted.source, wanted.routing_key)
        ends = wanted.source, wanted.destination, wanted.routing_key
        changes = self._host.topology.bind(vhost, *ends, kind=wanted.kind, arguments=wanted.arguments)
        self._host.apply(changes)
        return binding_name(wanted)

    async def delete(self, caller: Caller, vhost: str, name: str, options: Values) -> None:  # noqa: ARG002
        for binding in self._host.topology.bindings(vhost):
            if binding_name(binding) == name:
                caller.need("write", vhost, binding.destination)
                caller.need("read", vhost, binding.source)
                ends = binding.source, binding.destination, binding.routing_key
                self._host.apply(
                    self._host.topology.unbind(vhost, *ends, kind=binding.kind, arguments=binding.arguments)
                )
                return
        raise Refused(f"no binding '{name}' in virtual host '{vhost}'", 404)

    @staticmethod
    def _wanted(vhost: str, values: Values) -> Binding:
        missing = [key for key in ("source", "destination") if not values.get(key)]
        if missing:
            raise Refused(f"a binding needs {' and '.join(missing)}", 400)
        kind: Literal["queue", "exchange"] = "exchange" if values.get("kind") == "exchange" else "queue"
        if values.get("kind") not in (None, kind):
            raise Refused(f"kind is queue or exchange, not {values['kind']}", 400)
        key, arguments = values.get("routing_key") or "", values.get("arguments") or {}
        return Binding(vhost, values["source"], kind, values["destination"], key, arguments)


def properties_key(binding: Binding) -> str:
    """What tells apart the bindings between the same two ends, as RabbitMQ writes it: the key, and a fingerprint."""
    if not binding.arguments:
        return quote(binding.routing_key, safe="") or "~"
    fingerprint = hashlib.sha256(encode_table(binding.arguments).encode()).hexdigest()[:16]
    return f"{quote(binding.routing_key, safe='')}~{fingerprint}"


def binding_name(binding: Binding) -> str:
    """The name of a binding."""
    ends = quote(binding.source, safe=""), binding.kind, quote(binding.destination, safe="")
    return "/".join((*ends, properties_key(binding)))


def binding_row(binding: Binding) -> Row:
    """A binding as it is told."""
    return {
        "name": binding_name(binding),
        "vhost": binding.vhost,
        "source": binding.source,
        "kind": binding.kind,
        "destination": binding.destination,
        "routing_key": binding.routing_key,
        "arguments": binding.arguments,
        "properties_key": properties_key(binding),
    }
