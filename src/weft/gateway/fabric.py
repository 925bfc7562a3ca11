"""An address of a fabric as a side of a gateway: weft's own client, seen as a source or a target.

Owns one client each. Letters' ids become message ids, so that a barrier on `message-id` lets each in once.
It must not declare anything: how an address keeps its messages is said by whoever runs the fabric.
Rule: a message is accepted when its letter is done, and rejected, to the dead letters, when it is refused.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Self
from uuid import uuid4

from weft.client import Fabric, Message, Receiver, connect
from weft.gateway.letters import Letter, Refusals
from weft.model.errors import LocalProtocolError, Undelivered

CREDIT = 200
"""Messages that a source holds at most: two batches."""
OPEN_S = 10.0
SEND_S = 30.0


class FabricSource:
    """Messages of an address. One without a message id gets an id of its own each time it is delivered."""

    def __init__(self, url: str, address: str) -> None:
        self._url, self._address = url, address
        self._life = AsyncExitStack()
        self._receiver: Receiver | None = None

    async def __aenter__(self) -> Self:
        fabric = await self._life.enter_async_context(connect(self._url, timeout_s=OPEN_S))
        self._receiver = fabric.receive(self._address, accept="explicit", credit=CREDIT)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._receiver = None
        await self._life.aclose()

    async def pull(self, count_max: int) -> Sequence[Letter]:
        """The next messages: what is there, and one at least."""
        if self._receiver is None:
            raise LocalProtocolError("a source is used inside `async with`")
        letters: list[Letter] = []
        while len(letters) < count_max:
            message = await self._receiver.next(0 if letters else None)
            if message is None:
                break
            try:
                letters.append(_letter(message))
            except ValueError as error:  # it is none
                message.reject(str(error))
        return letters

    async def done(self, letters: Sequence[Letter]) -> None:
        """Accept them."""
        for letter in letters:
            letter.token.accept()

    async def refuse(self, letter: Letter, why: str) -> None:
        """To the dead letters."""
        letter.token.reject(why)


class FabricTarget:
    """An address that letters are sent to."""

    def __init__(self, url: str, address: str) -> None:
        self._url, self._address = url, address
        self._life = AsyncExitStack()
        self._fabric: Fabric | None = None

    async def __aenter__(self) -> Self:
        self._fabric = await self._life.enter_async_context(connect(self._url, timeout_s=OPEN_S))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._fabric = None
        await self._life.aclose()

    async def push(self, letters: Sequence[Letter]) -> Refusals:
        """Send them at once; done when the node has each safe."""
        if self._fabric is None:
            raise LocalProtocolError("a target is used inside `async with`")
        said = await asyncio.gather(*(self._send(self._fabric, letter) for letter in letters), return_exceptions=True)
        refusals: dict[str, str] = {}
        for letter, error in zip(letters, said, strict=True):
            if isinstance(error, Undelivered) and error.outcome == "rejected":
                refusals[letter.id] = str(error)
            elif isinstance(error, ValueError | TypeError):
                refusals[letter.id] = f"it cannot be said in AMQP: {error}"  # a type that is not ASCII, say
            elif isinstance(error, BaseException):
                raise error
        return refusals

    async def _send(self, fabric: Fabric, letter: Letter) -> None:
        named: dict[str, Any] = {"message_id": letter.id}
        if letter.content_type:
            named["content_type"] = letter.content_type
        await fabric.send(self._address, letter.body, headers=letter.headers, timeout_s=SEND_S, **named)


def _letter(message: Message) -> Letter:
    id_ = message.message_id
    headers = {str(name): str(value) for name, value in message.headers.items()}
    body, content_type = message.data, message.content_type
    if not isinstance(body, bytes):
        # A value of AMQP's own types: as text, or as JSON if it is none.
        kind, text = (
            ("text/plain", body) if isinstance(body, str) else ("application/json", json.dumps(body, default=str))
        )
        body, content_type = text.encode(), content_type or kind
    return Letter(new_id() if id_ is None else str(id_), body, content_type, headers, message)


def new_id() -> str:
    """An id for a letter that has none. It may come twice then; named after its body, two equal ones would be one."""
    return uuid4().hex
