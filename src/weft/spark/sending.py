"""Arrow batches out as confirmed messages, over one connection per task.

Owns the way from columns to messages: addresses, properties, identities, pace, and the wait for confirms. Batches
in the writer's schema come in; the node's confirms end it, and whatever the node refuses is an error that names it.
It must never have more than a window of messages on their way, nor report before the last confirm.
Connections are `weft.client`'s, which finds its way back to a node that was gone and sends again what had no
answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Iterator
from time import monotonic
from typing import Any, Self
from urllib.parse import quote

import pyarrow as pa

from weft.client import Fabric
from weft.client.links import Outlet
from weft.client.tickets import Ticket
from weft.model.errors import ConfigError
from weft.spark.options import WriteOptions, split_address

CONFIRM_TIMEOUT_S = 120.0
"""How long a message may wait for its confirm: a node that is restarted is back before."""

PROPERTIES = {
    "message_id": "message_id",
    "correlation_id": "correlation_id",
    "reply_to": "reply_to",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "app_id": "group_id",
    "user_id": "user_id",
    "creation_time": "created_at",
    "priority": "priority",
    "ttl_ms": "ttl_ms",
    "durable": "durable",
}
"""The client's names for columns; those of AMQP 1.0, as docs/reference/mapping.md pairs them."""


def address(exchange: str, routing_key: str) -> str:
    """The address of a routing key at an exchange, or of a queue."""
    if not exchange:
        return f"/queues/{quote(routing_key, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"


class Outbox:
    """Confirmed sending for one task: `with Outbox(options) as outbox`; leaving it waits for the last confirm."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self._runner = asyncio.Runner()
        self._fabric = Fabric(options.url, name="spark", window=options.in_flight)
        self._tickets: deque[Ticket] = deque()
        self._sent = 0
        self._began = monotonic()

    def __enter__(self) -> Self:
        try:
            self._runner.run(self._fabric.open())
            self._outlet = self._attach()
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._runner.run(self._settle(0))
        finally:
            self._runner.run(self._fabric.close())
            self._runner.close()

    def send(self, batch: pa.RecordBatch, identity: str, first: int) -> None:
        """Send the rows of a batch; rows without an id get one from the identity and their number."""
        self._runner.run(self._send(list(self._messages(batch, identity, first))))

    def _attach(self) -> Outlet:
        """A link to the one address of all rows, or one where every message says where it goes."""
        core, options = self._fabric.core, self.options
        target = None
        if options.exchange is not None and options.routing_key is not None:
            target = address(options.exchange, options.routing_key)
        outlet = Outlet(core, target, options.in_flight)
        outlet.number = core.machine.attach_sender(f"spark-{secrets.token_hex(6)}", target)
        core.add(outlet)
        return outlet

    async def _send(self, messages: list[tuple[Any, dict[str, Any]]]) -> None:
        outlet = self._outlet
        ticket = Ticket(monotonic() + CONFIRM_TIMEOUT_S, len(messages))
        self._tickets.append(ticket)
        for body, properties in messages:
            while outlet.is_full:
                room = Ticket(ticket.deadline)
                outlet.when_free(room)
                await room.wait()
            if self.options.rate_per_s:
                await self._pace()
            outlet.send((body,), properties, ticket)
            self._sent += 1
        # One batch may wait for its confirms while the next is made ready.
        await self._settle(1)

    async def _settle(self, waiting_max: int) -> None:
        while len(self._tickets) > waiting_max:
            ticket = self._tickets.popleft()
            if ticket.left > 0:
                await ticket.wait()

    async def _pace(self) -> None:
        due = self._began + self._sent / self.options.rate_per_s
        if due > monotonic():
            await asyncio.sleep(due - monotonic())

    def _messages(self, batch: pa.RecordBatch, identity: str, first: int) -> Iterator[tuple[Any, dict[str, Any]]]:
        """Bodies and properties. Python objects per message, here alone: each has properties of its own."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        known = [(PROPERTIES[name], values) for name, values in columns.items() if name in PROPERTIES]
        bodies, headers, kinds = columns["body"], columns.get("headers"), columns.get("type")
        to = None if self._outlet.address is not None else self._targets(columns, batch.num_rows)
        marks = dict(self.options.headers)
        for row in range(batch.num_rows):
            properties = {name: values[row] for name, values in known if values[row] is not None}
            properties.setdefault("message_id", f"{identity}:{first + row}")
            properties.setdefault("durable", True)
            if to is not None:
                properties["to"] = to[row]
            if headers is not None and headers[row]:
                properties["headers"] = dict(headers[row]) | marks
            elif marks:
                properties["headers"] = marks
            if kinds is not None and kinds[row] is not None:
                properties["subject"] = kinds[row]
                properties["annotations"] = {"x-basic-type": kinds[row]}
            yield (bodies[row] if bodies[row] is not None else b"", properties)

    def _targets(self, columns: dict[str, list[Any]], rows: int) -> list[str]:
        if "address" in columns:
            pairs: Any = (split_address(text or "") for text in columns["address"])
        else:
            exchanges = columns.get("exchange") or [self.options.exchange or ""] * rows
            keys = columns.get("routing_key") or [self.options.routing_key or ""] * rows
            pairs = zip(exchanges, keys, strict=True)
        made: dict[tuple[str, str], str] = {}
        targets = []
        for exchange, key in pairs:
            place = (exchange or "", key or "")
            if place == ("", ""):
                raise ConfigError("a row has neither address nor exchange and routing_key: it would go nowhere")
            if place not in made:
                made[place] = address(*place)
            targets.append(made[place])
        return targets
