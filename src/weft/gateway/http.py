"""HTTP as a side of a gateway: a webhook that takes letters, and posts that carry them away.

Owns a small server, or a client. A POST is answered when its letter is safe on the other side, so whoever posted may
forget it then; a letter goes out as one POST, done when that is answered with 2xx.
It must never keep more posts waiting than it says.
Rule: `Idempotency-Key` carries the id both ways; 408, 425, 429 and 5xx mean later, other answers mean never.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self

from aiohttp import ClientError, ClientSession, ClientTimeout, web

from weft.gateway.fabric import new_id
from weft.gateway.letters import Letter, Refusals
from weft.model.errors import LocalProtocolError, Unavailable

ID = "Idempotency-Key"
PREFIX = "X-Letter-"
"""Begins the names of a letter's own headers."""
WAITING_MAX = 1_000
"""Posts that wait for an answer; more are told to come again."""
BODY_BYTES_MAX = 16_777_216
WAITING_BYTES_MAX = 4 * BODY_BYTES_MAX
"""Bytes of all posts that wait for an answer; more are told to come again, too."""
ANSWER_S = 30.0
LATER = frozenset({408, 425, 429})


class HttpSource:
    """A webhook: letters are what is posted to one path."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self._host, self._port, self._path = host, port, path
        self._posts: asyncio.Queue[Letter] = asyncio.Queue()
        self._open: dict[asyncio.Future[web.Response], int] = {}
        """Posts without an answer, and the bytes that each may have."""
        self._runner: web.AppRunner | None = None
        self.port = 0
        """Where it listens."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post(self._path, self._take)
        self._posts = asyncio.Queue()
        runner = self._runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port)
        await site.start()
        self.port = runner.addresses[0][1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for post in self._open:
            if not post.done():
                post.set_result(_later())
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        # Who does not say how much it sends may send all that is allowed; who says more is told so when it is read.
        size = min(BODY_BYTES_MAX if request.content_length is None else request.content_length, BODY_BYTES_MAX)
        if len(self._open) >= WAITING_MAX or sum(self._open.values()) + size > WAITING_BYTES_MAX:
            return _later()
        post: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self._open[post] = size  # before its body is read: those on their way count too
        try:
            body = await request.read()
            self._open[post] = len(body)
            headers = {name[len(PREFIX) :].lower(): value for name, value in request.headers.items() if _is_own(name)}
            content_type = request.headers.get("Content-Type")
            self._posts.put_nowait(Letter(request.headers.get(ID) or new_id(), body, content_type, headers, post))
            return await post
        finally:
            del self._open[post]

    async def pull(self, count_max: int) -> Sequence[Letter]:
        """What was posted, one letter at least."""
        letters = [await self._posts.get()]
        while len(letters) < count_max and not self._posts.empty():
            letters.append(self._posts.get_nowait())
        return letters

    async def done(self, letters: Sequence[Letter]) -> None:
        """Answer those who posted."""
        for letter in letters:
            _answer(letter, web.Response(status=204))

    async def refuse(self, letter: Letter, why: str) -> None:
        """Say why."""
        _answer(letter, web.Response(status=422, text=why))


class HttpTarget:
    """Letters as posts to one URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = ClientSession(timeout=ClientTimeout(total=ANSWER_S))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def push(self, letters: Sequence[Letter]) -> Refusals:
        """Post them at once."""
        if self._session is None:
            raise LocalProtocolError("a target is used inside `async with`")
        said = await asyncio.gather(*(self._post(self._session, letter) for letter in letters))
        return {letter.id: why for letter, why in zip(letters, said, strict=True) if why}

    async def _post(self, session: ClientSession, letter: Letter) -> str:
        headers = {f"{PREFIX}{name}": value for name, value in letter.headers.items()} | {ID: letter.id}
        if letter.content_type:
            headers["Content-Type"] = letter.content_type
        try:
            async with session.post(self._url, data=letter.body, headers=headers) as answer:
                if answer.status in LATER or answer.status >= 500:
                    raise Unavailable(f"{self._url} says {answer.status}")
                return "" if answer.ok else f"{self._url} says {answer.status}: {(await answer.text())[:200]}"
        except ClientError as error:
            raise Unavailable(f"{self._url}: {error}") from None
        except ValueError as error:
            return f"it cannot be said in HTTP: {error}"  # an id or a header with a line's end in it, say


def _answer(letter: Letter, answer: web.Response) -> None:
    post: asyncio.Future[web.Response] = letter.token
    if not post.done():
        post.set_result(answer)


def _later() -> web.Response:
    return web.Response(status=503, headers={"Retry-After": "1"})


def _is_own(name: str) -> bool:
    return name.lower().startswith(PREFIX.lower())
