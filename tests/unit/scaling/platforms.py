"""Servers that speak as much of Docker's and Kubernetes' own APIs as a scaler asks of them.

Each keeps what the real one keeps and answers with its shapes, statuses and error bodies, over real sockets.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

IMAGES = {"lifecycle:1"}
TOKEN = "secret-of-the-pod"


class DockerEngine:
    """Containers of one engine (API 1.41), the newest first."""

    def __init__(self) -> None:
        self.containers: list[dict[str, Any]] = []
        self.stopped: list[tuple[str, str]] = []
        self.is_startable = True
        self._made = 0

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/v1.41/containers/json", self._list),
                web.post("/v1.41/containers/create", self._create),
                web.post("/v1.41/containers/{id}/start", self._start),
                web.post("/v1.41/containers/{id}/stop", self._stop),
                web.delete("/v1.41/containers/{id}", self._remove),
            ]
        )
        return application

    async def _list(self, request: web.Request) -> web.Response:
        filters = json.loads(request.query["filters"])
        labels = dict(label.split("=", 1) for label in filters["label"])
        return web.json_response(
            [
                {"Id": one["Id"], "Labels": one["Labels"], "State": one["State"]}
                for one in self.containers
                if labels.items() <= one["Labels"].items() and one["State"] in filters["status"]
            ]
        )

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["Image"] not in IMAGES:
            return web.json_response({"message": f"No such image: {body['Image']}"}, status=404)
        self._made += 1
        one = {"Id": f"{self._made:064x}", "Name": request.query["name"], "State": "created", **body}
        self.containers.insert(0, one)
        return web.json_response({"Id": one["Id"], "Warnings": []}, status=201)

    def _named(self, request: web.Request) -> dict[str, Any]:
        found = [one for one in self.containers if one["Id"] == request.match_info["id"]]
        if not found:
            text = json.dumps({"message": f"No such container: {request.match_info['id']}"})
            raise web.HTTPNotFound(text=text, content_type="application/json")
        return found[0]

    async def _start(self, request: web.Request) -> web.Response:
        one = self._named(request)
        if not self.is_startable:
            return web.json_response({"message": "driver failed programming external connectivity"}, status=500)
        one["State"] = "running"
        return web.Response(status=204)

    async def _stop(self, request: web.Request) -> web.Response:
        one = self._named(request)
        self.stopped.append((one["Name"], request.query["t"]))
        self.containers.remove(one)
        return web.Response(status=204)

    async def _remove(self, request: web.Request) -> web.Response:
        self.containers.remove(self._named(request))
        return web.Response(status=204)


class KubernetesServer:
    """One deployment and its scale."""

    def __init__(self) -> None:
        self.replicas = 1
        self.asked: list[str] = []

    def application(self) -> web.Application:
        path = "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"
        application = web.Application()
        application.add_routes([web.get(path, self._read), web.patch(path, self._patch)])
        return application

    def _check(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        if (request.match_info["namespace"], request.match_info["name"]) != ("payments", "lifecycle"):
            return _status(404, f'deployments.apps "{request.match_info["name"]}" not found')
        self.asked.append(request.method)
        return None

    def _scale(self) -> web.Response:
        spec = {"replicas": self.replicas} if self.replicas else {}
        return web.json_response(
            {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec, "status": {"replicas": self.replicas}}
        )

    async def _read(self, request: web.Request) -> web.Response:
        return self._check(request) or self._scale()

    async def _patch(self, request: web.Request) -> web.Response:
        if request.content_type != "application/merge-patch+json":
            return _status(415, f"the body of the request was in an unknown format: {request.content_type}")
        refused = self._check(request)
        if refused is None:
            self.replicas = (await request.json())["spec"]["replicas"]
        return refused or self._scale()


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)


@asynccontextmanager
async def serving(application: web.Application, socket: Path | None = None) -> AsyncIterator[str]:
    """Serve on a Unix socket or on a port; where."""
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        if socket is not None:
            await web.UnixSite(runner, str(socket)).start()
            yield f"unix://{socket}"
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
