"""Transactions over several nodes: all of their queues change, or none does.

Owns the coordinator of a two-phase commit and what it must remember: one durable queue of decisions at the first node.
Work is done in branches, one local transaction per node; commit prepares all of them, and the commit of the first
branch, which carries the decision with it, is the decision. It must never end a branch on a guess: what it cannot know
it asks for, and what a coordinator of the same name left behind is settled before anything new begins.
Rules: decision 0022 (presumed abort); docs/guides/client.md, "Transactions over several nodes".
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

from weft.client.management import Management
from weft.client.message import Message
from weft.client.receiving import Receiver
from weft.client.sessions import Session, Transaction
from weft.client.tickets import Lock, Work, sleep, within
from weft.model.errors import ConfigError, LocalProtocolError, Refused, Unavailable, Undelivered, WeftError

if TYPE_CHECKING:
    from weft.client.fabric import Fabric

QUEUE = "weft.decisions."
"""Decisions of a coordinator are in the queue of this name and its own, at the first node."""
NAME_MAX = 64
"""Characters of a coordinator's name: a global id has room for 128 bytes."""
PAUSE_S = 0.2
"""Between two tries to tell a node what was decided."""
PATIENCE_S = 30.0
"""How long `commit` waits for nodes to hear of a decision that stands; they are told later if it takes longer."""
CLOSE_S = 5.0
"""How long `close` waits for one who is telling a node."""
DECISIONS_MAX = 1_000
"""Decisions that some node has not heard of; no new transaction is decided beyond that."""
_UNKNOWN = "amqp:transaction:unknown-id"
_LATER = {"", "amqp:resource-locked"}
"""Conditions that pass: none at all, when a connection was lost, and a node that has just started."""

LOG = logging.getLogger("weft")


class Distributed:
    """Transactions over several nodes, by one coordinator: `async with weft.distributed("orders", a, b) as both`.

    The name is this coordinator's for ever, and one process uses it at a time. A node that was killed, or this
    program, may leave transactions in doubt: the next `async with` of the same name and nodes ends them.
    """

    def __init__(self, name: str, first: Fabric, *others: Fabric) -> None:
        """`first` keeps the decisions; its user needs permissions on the queue `weft.decisions.NAME`, and users of all
        nodes the tag `management`, to see what is in doubt.
        """
        if not name or len(name) > NAME_MAX or not name.isascii() or not name.isprintable() or "/" in name:
            raise ConfigError(f"a coordinator's name has 1 to {NAME_MAX} printable characters without '/': {name!r}")
        if not others or len({id(fabric) for fabric in (first, *others)}) != len(others) + 1:
            raise ConfigError("a distributed transaction is over at least two connections, each named once")
        self._name = name
        self._fabrics = (first, *others)
        self._sessions: dict[int, Session] = {}
        self._decisions: Receiver | None = None
        self._known: dict[str, Message] = {}
        self._reading = Lock()
        self._telling: list[Work] = []
        self._guard = threading.Lock()
        """Of the list; never held while waiting."""

    async def open(self) -> Self:
        """Begin: what is in doubt is settled first."""
        for fabric in self._fabrics:
            self._sessions[id(fabric)] = fabric.session()
        self._decisions = self.session(self._fabrics[0]).receiver(
            self.decisions, window=2 * DECISIONS_MAX, properties={"x-exclusive": True}
        )
        await self._decisions.ready()
        await self.recover()
        return self

    async def close(self) -> None:
        """End; nodes that have not heard of a decision are told by the next of this name."""
        with self._guard:
            telling, self._telling = self._telling, []
        for work in telling:
            work.cancel()
        for work in telling:
            with contextlib.suppress(TimeoutError):
                await within(CLOSE_S, work.join)
        for session in self._sessions.values():
            await session.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    def session(self, fabric: Fabric) -> Session:
        """The session of one node: its senders and receivers can take part."""
        try:
            return self._sessions[id(fabric)]
        except KeyError:
            raise LocalProtocolError("this connection takes no part, or `async with` has not begun") from None

    def transaction(self) -> Everywhere:
        """A transaction over all nodes: `async with both.transaction() as work`."""
        return Everywhere(self, f"{self._name}/{os.urandom(16).hex()}")

    async def recover(self) -> dict[str, bool]:
        """End what a coordinator of this name left in doubt; global ids, and whether each was committed."""
        decided = await self._read_decisions()
        ended: dict[str, bool] = {}
        for fabric in self._fabrics[::-1]:  # the first is last: its prepared branch says that nothing was decided
            for row in await Management(fabric).query("transaction", contains=f"{self._name}/"):
                identity = str(row["name"])
                whole, _, _ = identity.rpartition("/")
                if identity.startswith(f"{self._name}/"):
                    ended[whole] = await self._end_doubt(fabric, identity, whole, decided)
        for whole in list(decided):
            decided.pop(whole).accept()
        return ended

    async def _end_doubt(self, fabric: Fabric, identity: str, whole: str, decided: dict[str, Message]) -> bool:
        commits = whole in decided
        if not commits:
            # A commit of the first branch that is still under way, on a connection that is dead, comes too late now.
            await resolve(self.session(self._fabrics[0]), branch(whole, 0), fail=True)
        await resolve(self.session(fabric), identity.encode(), fail=not commits)
        return commits

    async def _read_decisions(self, wanted: str | None = None) -> dict[str, Message]:
        """Every decision that is there now; with `wanted`, as soon as that one is."""
        decisions = self._decisions
        if decisions is None:
            raise LocalProtocolError("`async with` has not begun")
        async with self._reading:
            if wanted not in self._known:
                await decisions.ready()
                await decisions.drain()
            while wanted not in self._known and (message := await decisions.next(0)) is not None:
                self._known[message.data.decode(errors="replace")] = message
        return self._known

    async def is_decided(self, whole: str) -> bool:
        """Was it committed? Its first branch must be gone, or the answer may change."""
        return whole in await self._read_decisions(whole)

    def check_room(self) -> None:
        """Unavailable while too many decisions are not yet known everywhere."""
        with self._guard:
            self._telling = [work for work in self._telling if not work.is_done]
            if len(self._telling) > DECISIONS_MAX:
                raise Unavailable(f"{DECISIONS_MAX} transactions are decided and some node has not heard of them")

    async def finish(self, whole: str) -> None:
        """It is decided: every other node hears of it, all at once; then the decision is forgotten."""
        heard: set[int] = set()
        works = [Work(self._tell, whole, number, heard) for number in range(1, len(self._fabrics))]
        with self._guard:
            self._telling += works
        end = monotonic() + PATIENCE_S
        with contextlib.suppress(TimeoutError):
            for work in works:
                await within(max(0.0, end - monotonic()), work.join)

    async def _tell(self, whole: str, number: int, heard: set[int]) -> None:
        """One node hears of a decision; the last to have heard of it ends it."""
        session = self.session(self._fabrics[number])
        try:
            await persist(lambda: resolve(session, branch(whole, number)))
            heard.add(number)
            if len(heard) == len(self._fabrics) - 1 and await persist(lambda: self.is_decided(whole)):
                decision = self._known.pop(whole, None)
                if decision is not None:
                    decision.accept()
        except WeftError as error:
            LOG.error("a node did not take what was decided, which stays in doubt there: %s", error)

    @property
    def fabrics(self) -> tuple[Fabric, ...]:
        """Who takes part; the first keeps the decisions."""
        return self._fabrics

    @property
    def decisions(self) -> str:
        """The queue of decisions, at the first node."""
        return QUEUE + self._name


class Everywhere:
    """One transaction over several nodes. `work[fabric]` is its branch there: send and accept in it."""

    def __init__(self, whole: Distributed, identity: str) -> None:
        self._whole = whole
        self.identity = identity
        """Its name everywhere; branches add their number."""
        self._branches: dict[int, Transaction] = {}

    def __getitem__(self, fabric: Fabric) -> Transaction:
        try:
            return self._branches[id(fabric)]
        except KeyError:
            raise LocalProtocolError("this connection takes no part, or the transaction has not begun") from None

    async def begin(self) -> Self:
        """Begin a branch at every node."""
        self._whole.check_room()
        for fabric in self._whole.fabrics:
            self._branches[id(fabric)] = await self._whole.session(fabric).transaction().begin()
        return self

    async def commit(self) -> None:
        """Let all of it happen everywhere; an error says that none of it does, anywhere."""
        first, *others = self._whole.fabrics
        try:
            sender = self._whole.session(first).sender(self._whole.decisions)
            await self[first].send(sender, self.identity, durable=True)
            await sender.close()
            for number, fabric in enumerate(others, 1):
                await self[fabric].prepare(branch(self.identity, number))
            await self[first].prepare(branch(self.identity, 0))
        except BaseException:
            await self.rollback()
            raise
        if not await self._decide(first):
            await self.rollback()
            raise Undelivered("the transaction was rolled back everywhere: the first node was lost", "released")
        await self._whole.finish(self.identity)

    async def _decide(self, first: Fabric) -> bool:
        """Commit the first branch: that is the decision. If the answer is lost, nobody may commit it any more, and the
        decision is there or not.
        """
        session, identity = self._whole.session(first), branch(self.identity, 0)
        try:
            if await resolve(session, identity):
                return True
        except WeftError:
            await persist(lambda: resolve(session, identity, fail=True))
        return await persist(lambda: self._whole.is_decided(self.identity))

    async def rollback(self) -> None:
        """Let none of it happen. What cannot be told now is told by the next coordinator of this name."""
        for number, fabric in enumerate(self._whole.fabrics):
            transaction = self[fabric]
            try:
                if transaction.is_open:
                    await transaction.rollback()
                else:
                    await resolve(self._whole.session(fabric), branch(self.identity, number), fail=True)
            except WeftError:
                continue

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, kind: object, *_exc: object) -> None:
        if kind is None:
            await self.commit()
        else:
            await self.rollback()


def branch(whole: str, number: int) -> bytes:
    """The global id of one branch."""
    return f"{whole}/{number}".encode()


async def resolve(session: Session, identity: bytes, *, fail: bool = False) -> bool:
    """End a prepared branch; False if it is not there (any more)."""
    try:
        await session.resolve(identity, fail=fail)
    except Undelivered as error:
        if error.condition == _UNKNOWN:
            return False
        raise
    return True


async def persist(ask: Callable[[], Any]) -> bool:
    """Ask until there is an answer: it was promised, so there will be one. What is refused stays refused."""
    while True:
        try:
            return bool(await ask())
        except WeftError as error:
            if isinstance(error, Refused) or getattr(error, "condition", "") not in _LATER:
                raise
            await sleep(PAUSE_S)
