"""The web server of a node.

Owns the socket, who is let in, and how refusals and failures are told. Requests come in; each goes to its route.
It must never let a mistake of a caller become a traceback, nor a mistake of ours tell the caller more than that.
Rule: basic authentication by the node's own users, who need the tag `management`; passwords are verified beside the
loop, as for AMQP.
"""

from __future__ import annotations

import asyncio
import binascii
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable
from ssl import SSLContext

from aiohttp import web

from weft.management.amqp import status_of
from weft.management.caller import Caller
from weft.management.http import access, metrics, node, objects, own, parameters, policies
from weft.management.http.openapi import describe
from weft.management.http.patience import Patience
from weft.management.http.request import BODY_BYTES_MAX, Ask, Web, failed, told
from weft.management.http.route import Route
from weft.management.manager import Manager
from weft.management.peers import Peers
from weft.management.rates import Rates
from weft.model.errors import ConfigError, LocalProtocolError, Refused, Unavailable

LOG = logging.getLogger("weft.management")
REALM = 'Basic realm="weft"'
ROUTES: tuple[Route, ...] = (
    *objects.ROUTES,
    *node.ROUTES,
    *access.ROUTES,
    *policies.ROUTES,
    *parameters.ROUTES,
    *own.ROUTES,
)

_Serve = Callable[[web.Request], Awaitable[web.StreamResponse]]
_End = Callable[[web.Application], Awaitable[None]]


class WebServer:
    """Serves HTTP until it is closed."""

    def __init__(self, manager: Manager, peers: Peers) -> None:
        self._web = Web(manager, peers, Rates())
        self._others: list[tuple[str, _Serve, _End]] = []
        self._runner: web.AppRunner | None = None
        self._patience: Patience | None = None
        self._listener: asyncio.Server | None = None
        self._description = describe(ROUTES, manager.host.version)
        self.port = 0
        """The port it listens on, once it was started."""

    def add(self, path: str, serve: _Serve, end: _End) -> None:
        """Serve a path that is not management's; whoever serves it decides whom it lets in, and is told of the end."""
        self._others.append((path, serve, end))

    async def start(self, host: str, port: int, tls: SSLContext | None = None) -> None:
        """Listen; Unavailable if that cannot be."""
        app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[self._timed, _known])
        for route in ROUTES:
            serve = self._serve(route)
            app.router.add_route(route.method, route.path, serve)
            if route.method == "GET":
                # RabbitMQ does not mind slashes at the end, and Flower writes `/api/queues//` for the default host.
                app.router.add_route("GET", route.path + "{slashes:/+}", serve)
        for path, serve, end in self._others:
            app.router.add_get(path, serve)
            app.on_shutdown.append(end)
        app.router.add_get("/api/openapi.json", self._openapi)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/per-object", self._queue_metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._patience = Patience(server)
        try:
            loop = asyncio.get_running_loop()
            self._listener = await loop.create_server(self._patience.connect, host, port, ssl=tls)
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Serve nothing more."""
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._patience is not None:
            self._patience.close()

    @web.middleware
    async def _timed(self, request: web.Request, handler: _Serve) -> web.StreamResponse:
        """Nobody hurries a request that is being served."""
        assert self._patience is not None
        self._patience.begin(request)
        try:
            return await handler(request)
        finally:
            self._patience.end(request)

    def _serve(self, route: Route) -> _Serve:
        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                caller = await self._enter(request)
                if caller is None:
                    return web.Response(status=401, headers={"WWW-Authenticate": REALM}, text="Unauthorized")
                caller.require("management")
                return await route.handle(Ask(self._web, caller, request))
            except (Refused, ConfigError, LocalProtocolError, Unavailable) as error:
                return failed(status_of(error), str(error))
            except web.HTTPException:
                raise
            except Exception:
                LOG.exception("%s %s failed", request.method, request.path)
                return failed(500, "the node failed on this request; its log says why")

        return serve

    async def _enter(self, request: web.Request) -> Caller | None:
        """Whoever asks, or None."""
        kind, _, text = request.headers.get("Authorization", "").partition(" ")
        try:
            user, colon, password = b64decode(text, validate=True).partition(b":")
            name = user.decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        if kind.lower() != "basic" or not colon or not name:
            return None
        loop = asyncio.get_running_loop()
        verdict: asyncio.Future[bool] = loop.create_future()

        def answer(is_right: bool) -> None:
            loop.call_soon_threadsafe(_settle, verdict, is_right)

        local = (request.remote or "").startswith(("127.", "::1", "::ffff:127."))
        policy = self._web.manager.host.policy
        if not policy.verify(name, password, local=local, verdict=answer):
            raise Unavailable("too many logins at once, try again later")
        return self._web.manager.caller(name) if await verdict else None

    async def _openapi(self, _request: web.Request) -> web.Response:
        return told(self._description)

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = await metrics.node_text(self._web.manager, self._web.peers)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    async def _queue_metrics(self, _request: web.Request) -> web.Response:
        text = await metrics.queues_text(self._web.manager)
        return web.Response(body=text.encode(), headers={"Content-Type": metrics.CONTENT_TYPE})


def _settle(verdict: asyncio.Future[bool], is_right: bool) -> None:
    if not verdict.done():
        verdict.set_result(is_right)


@web.middleware
async def _known(request: web.Request, handler: _Serve) -> web.StreamResponse:
    """Errors of the framework in the form of ours."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        answer = failed(error.status, error.reason or "")
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
