"""The engine face: sessions, links, credit, settlement and transactions, for programs that want them by name.

Owns one AMQP session of a client and what is attached to it. Everything here is what the protocol calls it, and lives
as the simple face's links do: it comes back after a reconnect, transactions excepted.
It must never do by itself what a program is here to do by hand: credit is given when it says so, messages are settled
when it says so.
Rule: AMQP 1.0 parts 2 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from weft.client.links import SELECTOR, Outlet
from weft.client.message import Message
from weft.client.receiving import Receiver
from weft.client.tickets import Ticket
from weft.model.errors import LocalProtocolError

if TYPE_CHECKING:
    from weft.client.fabric import Fabric

TIMEOUT_S = 30.0
ENDED = 65_535
"""In place of the number of a session that was ended, which may mean another one since: no session has this one."""


class Sender:
    """A link to send on."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    @property
    def address(self) -> str | None:
        """Where it sends to; for a temporary address, as the node named it."""
        return self._outlet.address

    @property
    def credit(self) -> int:
        """How many messages the node would take now."""
        load = self._outlet.core.machine.load(self._outlet.number)
        return 0 if load is None else load[1]

    async def ready(self) -> Self:
        """Wait until the node has attached it; Refused if it does not."""
        ticket = Ticket(monotonic() + TIMEOUT_S)
        self._outlet.when_attached(ticket)
        await ticket.wait()
        return self

    async def send(
        self,
        *bodies: Any,
        settled: bool = False,
        as_value: bool = False,
        txn: bytes | None = None,
        timeout_s: float = TIMEOUT_S,
        **properties: Any,
    ) -> str | None:
        """Send messages with the same properties, bytes or str each; the outcome of the last."""
        ticket = Ticket(monotonic() + timeout_s, len(bodies))
        self._outlet.send(bodies, properties, ticket, settled=settled, as_value=as_value, txn=txn)
        outcome: str | None = await ticket.wait()
        return outcome

    async def close(self) -> None:
        """Detach."""
        ticket = Ticket(monotonic() + TIMEOUT_S)
        self._outlet.close(ticket)
        await ticket.wait()


class Transaction:
    """What happens wholly or not at all; `async with session.transaction() as transaction`."""

    def __init__(self, coordinator: Outlet) -> None:
        self._coordinator = coordinator
        self._id: bytes | None = None

    @property
    def id(self) -> bytes:
        """The node's name for it."""
        if self._id is None:
            raise LocalProtocolError("the transaction has not begun, or is over")
        return self._id

    @property
    def is_open(self) -> bool:
        """Has it begun, and is it neither over nor prepared?"""
        return self._id is not None

    async def begin(self) -> Self:
        """Declare it."""
        ticket = Ticket(monotonic() + TIMEOUT_S)
        self._coordinator.control(self._coordinator.core.machine.declare, ticket)
        self._id = await ticket.wait()
        return self

    async def send(self, sender: Sender, *bodies: Any, **properties: Any) -> None:
        """Send as part of it: nobody gets the messages before `commit`."""
        await sender.send(*bodies, txn=self.id, **properties)

    def accept(self, message: Message) -> None:
        """Accept as part of it: the message is gone with `commit`, and back without."""
        message.settle_in(self.id)

    async def commit(self) -> None:
        """Let all of it happen; Undelivered if that cannot be."""
        await self._discharge(False)

    async def rollback(self) -> None:
        """Let none of it happen."""
        await self._discharge(True)

    async def prepare(self, global_id: bytes) -> None:
        """Promise that all of it can happen, and wait for `Session.resolve`, on this connection or another; Undelivered
        if that cannot be, and then none of it happens.
        """
        txn, self._id = self.id, None
        machine = self._coordinator.core.machine
        ticket = Ticket(monotonic() + TIMEOUT_S)
        self._coordinator.control(lambda link: machine.prepare(link, txn, global_id), ticket)
        await ticket.wait()

    async def _discharge(self, fail: bool) -> None:
        txn, self._id = self.id, None
        machine = self._coordinator.core.machine
        ticket = Ticket(monotonic() + TIMEOUT_S)
        self._coordinator.control(lambda link: machine.discharge(link, txn, fail), ticket)
        await ticket.wait()

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, kind: object, *_exc: object) -> None:
        if self._id is not None:
            await self._discharge(kind is not None)


class Session:
    """One AMQP session; `fabric.session()` makes it."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._number = fabric.core.machine.begin()
        self._coordinator: Outlet | None = None
        fabric.core.kick()

    def sender(
        self,
        address: str | None,
        *,
        name: str | None = None,
        settled: bool = False,
        dynamic: bool = False,
        capabilities: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
    ) -> Sender:
        """A link to send on; without an address each message says `to`, with `dynamic` the node makes one."""
        return Sender(
            self._outlet(
                address,
                name=name,
                settled=settled,
                dynamic=dynamic,
                capabilities=list(capabilities),
                properties=dict(properties or {}),
            )
        )

    def receiver(
        self,
        address: str | None,
        *,
        name: str | None = None,
        window: int = 0,
        filters: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Receiver:
        """A link to receive on; with window 0 nothing comes before `grant`.

        Filters by their names: `selector` for the SQL-like one, any other by its symbol. Options: `settled`, `dynamic`,
        `browse`, `durable`, `expiry`, `timeout_s`, `capabilities`, `properties`.
        """
        known = {"selector": SELECTOR, "no-local": "apache.org:no-local-filter:list"}
        named = {known.get(key, key): value for key, value in (filters or {}).items()}
        inlet = self._fabric.inlet(address, name=name, session=self._number, window=window, filters=named, **options)
        return Receiver(inlet, auto=False)

    def transaction(self) -> Transaction:
        """A transaction of the node's, on this session."""
        return Transaction(self._control_link())

    async def resolve(self, global_id: bytes, *, fail: bool = False) -> None:
        """Carry out a prepared transaction, or undo it, whichever connection prepared it; Undelivered if there is none
        (condition `amqp:transaction:unknown-id`).
        """
        coordinator = self._control_link()
        machine = coordinator.core.machine
        ticket = Ticket(monotonic() + TIMEOUT_S)
        coordinator.control(lambda link: machine.resolve(link, global_id, fail), ticket)
        await ticket.wait()

    def _control_link(self) -> Outlet:
        if self._coordinator is None or self._coordinator.error is not None:
            self._coordinator = self._outlet(None, name=None, coordinator=True)
        return self._coordinator

    def _outlet(self, address: str | None, *, name: str | None, **options: Any) -> Outlet:
        core = self._fabric.core
        outlet = Outlet(core, address)
        link = name or self._fabric.link_name("send", address or "")
        outlet.number = core.machine.attach_sender(link, address, session=self._number, **options)
        core.add(outlet)
        return outlet

    async def close(self) -> None:
        """End the session and everything on it."""
        number, self._number = self._number, ENDED
        if number != ENDED:
            self._fabric.core.machine.end(number)
            self._fabric.core.look()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
