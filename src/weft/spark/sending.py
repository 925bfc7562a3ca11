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
from time import monotonic
from typing import Self
from urllib.parse import quote

import pyarrow as pa

from weft._kernel import EncodedMessages, encode_messages
from weft.client import Fabric
from weft.client.links import Outlet
from weft.client.tickets import Ticket
from weft.model.errors import ConfigError, Undelivered
from weft.spark.options import WriteOptions, split_address

CONFIRM_TIMEOUT_S = 120.0
"""How long a message may wait for its confirm: a node that is restarted is back before."""

BURST_S = 0.1
"""What of a pace may be made up for: rows that came late are not sent all at once."""


def address(exchange: str, routing_key: str) -> str:
    """The address of a routing key at an exchange, or of a queue."""
    if not exchange:
        return f"/queues/{quote(routing_key, safe='')}"
    return f"/exchanges/{quote(exchange, safe='')}/{quote(routing_key, safe='')}"


class _Heedless(Ticket):
    """A ticket to which it is all the same whether anybody was there to take a message."""

    __slots__ = ("unheard",)

    def __init__(self, deadline: float, left: int) -> None:
        super().__init__(deadline, left)
        self.unheard = 0

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, Undelivered) or error.outcome != "released":
            super().fail(error)
            return
        self.unheard += 1
        self.left -= 1
        if self.left <= 0:
            self.done()


class Outbox:
    """Confirmed sending for one task: `with Outbox(options) as outbox`; leaving it waits for the last confirm.

    That nobody takes a message is an error, unless it is `heedless`: then `unheard` counts those.
    """

    def __init__(self, options: WriteOptions, *, heedless: bool = False) -> None:
        self.options = options
        self.unheard = 0
        self._ticket = _Heedless if heedless else Ticket
        self._runner = asyncio.Runner()
        self._fabric = Fabric(options.url, name="spark", window=options.in_flight)
        self._tickets: deque[Ticket] = deque()
        self._due = monotonic()

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
        addressed = self._outlet.address is None
        rows, headers = self._addressed(batch) if addressed else _plain(batch), dict(self.options.headers)
        try:
            messages = encode_messages(rows, identity=identity, first=first, addressed=addressed, headers=headers)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._runner.run(self._send(messages))

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

    async def _send(self, messages: EncodedMessages) -> None:
        outlet = self._outlet
        ticket = self._ticket(monotonic() + CONFIRM_TIMEOUT_S, len(messages))
        self._tickets.append(ticket)
        while len(messages):
            while outlet.is_full:
                room = Ticket(monotonic() + CONFIRM_TIMEOUT_S)
                outlet.when_free(room)
                await room.wait()
            count = await self._pace() if self.options.rate_per_s else len(messages)
            # At a slow pace a batch takes longer than any of its messages may.
            ticket.deadline = monotonic() + CONFIRM_TIMEOUT_S
            sent = outlet.send_encoded(messages, count, ticket)
            if self.options.rate_per_s:
                self._due += sent / self.options.rate_per_s
        # One batch may wait for its confirms while the next is made ready.
        await self._settle(1)

    async def _settle(self, waiting_max: int) -> None:
        while len(self._tickets) > waiting_max:
            ticket = self._tickets.popleft()
            if ticket.left > 0:
                await ticket.wait()
            if isinstance(ticket, _Heedless):
                self.unheard += ticket.unheard

    async def _pace(self) -> int:
        """How many may go now: at least one, when its time has come."""
        self._due = max(self._due, monotonic() - BURST_S)
        if self._due > monotonic():
            await asyncio.sleep(self._due - monotonic())
        return 1 + int(max(0.0, monotonic() - self._due) * self.options.rate_per_s)

    def _addressed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows with one column that says where each goes."""
        names, options = batch.schema.names, self.options
        if "address" in names:
            texts = batch.column("address").dictionary_encode()
            pairs = [split_address(text) for text in texts.dictionary.to_pylist()]
            column = pa.array([address(*pair) for pair in pairs], pa.string()).take(texts.indices)
            return _plain(batch).append_column("address", column)
        rows = _plain(batch)
        for name, value in (("exchange", options.exchange), ("routing_key", options.routing_key)):
            column = batch.column(name) if name in names else pa.repeat(pa.scalar(value or ""), batch.num_rows)
            rows = rows.append_column(name, column)
        return rows


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without what says where they go."""
    return batch.select([name for name in batch.schema.names if name not in ("address", "exchange", "routing_key")])
