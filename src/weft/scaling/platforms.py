"""Platforms that keep instances themselves: Docker, Kubernetes, and a cloud that is asked by messages.

Owns three drivers. A service and a number come in; requests go out to the platform's own interface, and what it has is
asked anew each time, so that nothing is lost when the scaler ends and comes again.
It must never decide how many (`decide`), nor keep a platform's instances alive or end them by itself.
Rules: Docker Engine API 1.41 (`/containers`); Kubernetes API, subresource `scale` of a deployment; for the cloud,
docs/guides/scaling.md, "A cloud by messages".
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from yarl import URL

from weft.model.errors import Unavailable, WeftError
from weft.scaling.file import CloudSettings, DockerSettings, KubernetesSettings, Service

LOG = logging.getLogger("weft.scaling")
TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 8 << 20
SAID_CHARS_MAX = 400
DOCKER_API = "v1.41"
DOCKER_SOCKET = "unix:///var/run/docker.sock"
LABEL = "weft.service"
"""On every container of a service; its value is the service's name."""
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds who it is."""

Ask = Callable[[str, Mapping[str, object]], Awaitable[Mapping[str, Any]]]
"""Send a JSON message to an address and wait for the answer."""


class _Web:
    """Requests to one server, with its errors as `Unavailable`."""

    def __init__(self, what: str, url: str, connector: Callable[[], aiohttp.BaseConnector] | None = None) -> None:
        self._what = what
        self._url = url
        self._connector = connector
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = "application/json",
        token: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """The answer as JSON; None if it has no body."""
        if self._session is None:
            connector = self._connector() if self._connector is not None else None
            self._session = aiohttp.ClientSession(connector=connector)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        data = None if body is None else json.dumps(body)
        if data is not None:
            headers["Content-Type"] = kind
        try:
            where = URL(self._url + path, encoded=True)
            async with self._session.request(method, where, data=data, headers=headers, timeout=timeout) as answer:
                text = await _read(answer.content)
                if answer.status >= 400:
                    raise Unavailable(f"{self._what} said {answer.status}: {_said(text)}")
                return json.loads(text) if text else None
        except TimeoutError as error:
            raise Unavailable(f"{self._what} at {self._url} did not answer within {timeout_s:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"{self._what} at {self._url} cannot be asked: {error}") from error
        except ValueError as error:
            raise Unavailable(f"{self._what} answered what is not JSON: {error}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def _read(content: aiohttp.StreamReader) -> bytes:
    """All of an answer, in however many pieces it comes."""
    pieces, size = [], 0
    async for piece in content.iter_any():
        pieces.append(piece)
        size += len(piece)
        if size > ANSWER_BYTES_MAX:
            raise ValueError(f"more than {ANSWER_BYTES_MAX} bytes")
    return b"".join(pieces)


def _said(text: bytes) -> str:
    """Docker's and Kubernetes' errors have a message inside."""
    try:
        words = json.loads(text)["message"]
    except (ValueError, TypeError, KeyError):
        words = text.decode(errors="replace")
    return str(words).strip()[:SAID_CHARS_MAX]


class Docker:
    """Instances are containers of one Docker engine, told by their label; they go on when the scaler ends."""

    def __init__(self, url: str, settings: DockerSettings) -> None:
        self._node_url = url
        self._settings = settings
        host = settings.host or os.environ.get("DOCKER_HOST") or DOCKER_SOCKET
        scheme, _, rest = host.partition("://")
        if scheme == "unix":
            self._web = _Web("Docker", "http://docker", lambda: aiohttp.UnixConnector(rest))
        else:
            self._web = _Web("Docker", f"http://{rest}")
        self._stopping: dict[str, asyncio.Task[None]] = {}

    async def count(self, service: Service) -> int:
        """Containers that run, without those that were told to end."""
        return len(await self._running(service))

    async def _running(self, service: Service) -> list[str]:
        """The newest first, as the engine lists them."""
        wanted = {"label": [f"{LABEL}={service.name}"], "status": ["created", "running", "restarting"]}
        rows = await self._ask("GET", f"/containers/json?filters={quote(json.dumps(wanted))}")
        try:
            return [row["Id"] for row in rows if row["Id"] not in self._stopping]
        except (TypeError, KeyError) as error:
            raise Unavailable(f"Docker's list of containers cannot be read: {error!r}") from error

    async def bring_to(self, service: Service, instances: int) -> None:
        """The newest go first; each has the service's time to end."""
        running = await self._running(service)
        for _ in range(instances - len(running)):
            await self._start(service)
        for container in running[: max(len(running) - instances, 0)]:
            task = asyncio.create_task(self._stop(container, service.stop_s))
            self._stopping[container] = task
            task.add_done_callback(partial(self._forget, container))

    def _forget(self, container: str, _: asyncio.Task[None]) -> None:
        self._stopping.pop(container, None)

    async def _start(self, service: Service) -> None:
        settings, instance = self._settings, f"{service.name}-{secrets.token_hex(3)}"
        told = {"WEFT_URL": self._node_url, "WEFT_SERVICE": service.name, "WEFT_INSTANCE": instance}
        host = {"AutoRemove": True} | ({"NetworkMode": settings.network} if settings.network else {})
        body: dict[str, object] = {
            "Image": settings.image,
            "Env": [f"{key}={value}" for key, value in told.items()],
            "Labels": {LABEL: service.name},
            "HostConfig": host,
        }
        if settings.command:
            body["Cmd"] = list(settings.command)
        name = "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in instance)
        made = await self._ask("POST", f"/containers/create?name={quote(name)}", body)
        try:
            container = quote(str(made["Id"]), safe="")
        except (TypeError, KeyError) as error:
            raise Unavailable(f"Docker's answer names no container: {error!r}") from error
        try:
            await self._ask("POST", f"/containers/{container}/start")
        except Unavailable:
            with suppress(Unavailable):  # most engines have removed it themselves by now
                await self._ask("DELETE", f"/containers/{container}?force=true")
            raise

    async def _stop(self, container: str, stop_s: float) -> None:
        """The engine answers when it has ended."""
        path = f"/containers/{quote(container, safe='')}/stop?t={int(stop_s)}"
        try:
            await self._ask("POST", path, timeout_s=stop_s + TIMEOUT_S)
        except Unavailable as error:
            # It is still there at the next look, and is stopped again.
            LOG.warning("%s", error)

    async def _ask(self, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        return await self._web.ask(method, f"/{DOCKER_API}{path}", body, timeout_s=timeout_s)

    async def close(self) -> None:
        """The containers go on; what was told to end is waited for."""
        await asyncio.gather(*self._stopping.values())
        await self._web.close()


class Kubernetes:
    """Instances are pods of a deployment, which is told how many."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._path = (
            f"/apis/apps/v1/namespaces/{quote(settings.namespace, safe='')}"
            f"/deployments/{quote(settings.deployment, safe='')}/scale"
        )
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = settings.url or f"https://{f'[{host}]' if ':' in host else host or 'kubernetes.default.svc'}:{port}"
        self._token = Path(settings.token_file) if settings.token_file else ACCOUNT / "token"
        authorities = settings.ca_file or (str(ACCOUNT / "ca.crt") if (ACCOUNT / "ca.crt").exists() else None)

        def connector() -> aiohttp.BaseConnector:
            return aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=authorities))

        self._web = _Web("Kubernetes", url.rstrip("/"), connector if url.startswith("https") else None)

    async def count(self, service: Service) -> int:  # noqa: ARG002 - the deployment is this service's
        """How many the deployment is told to have: pods that are still starting count."""
        return _replicas(await self._ask("GET"))

    async def bring_to(self, service: Service, instances: int) -> None:  # noqa: ARG002
        """Kubernetes starts and stops pods by itself."""
        await self._ask("PATCH", {"spec": {"replicas": instances}})

    async def _ask(self, method: str, body: object = None) -> Any:
        try:
            # It is renewed while we run.
            token = self._token.read_text().strip() if self._token.exists() else ""
        except OSError as error:
            raise Unavailable(f"cannot read {self._token}: {error.strerror}") from error
        return await self._web.ask(method, self._path, body, kind="application/merge-patch+json", token=token)

    async def close(self) -> None:
        """The deployment goes on by itself."""
        await self._web.close()


def _replicas(scale: Any) -> int:
    """An object leaves out what is 0."""
    try:
        return int(scale["spec"].get("replicas", 0))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Unavailable(f"Kubernetes' answer is no Scale: {error!r}") from error


class Cloud:
    """Whoever answers at an address keeps the instances: a cloud's own controller, reached over the fabric."""

    def __init__(self, settings: CloudSettings, ask: Ask) -> None:
        self._address = settings.address
        self._ask = ask

    async def count(self, service: Service) -> int:
        """What the cloud says it has or is about to have."""
        return await self._instances({"operation": "count", "service": service.name})

    async def bring_to(self, service: Service, instances: int) -> None:
        """The cloud answers once it has taken the order."""
        await self._instances({"operation": "scale", "service": service.name, "instances": instances})

    async def _instances(self, request: Mapping[str, object]) -> int:
        try:
            answer = await self._ask(self._address, request)
            if "error" in answer:
                raise Unavailable(f"the cloud at {self._address} said: {str(answer['error'])[:SAID_CHARS_MAX]}")
            return int(answer["instances"])
        except (TypeError, KeyError, ValueError) as error:
            raise Unavailable(f"the cloud at {self._address} answered what cannot be read: {error!r}") from error
        except WeftError as error:
            raise error if isinstance(error, Unavailable) else Unavailable(str(error)) from error

    async def close(self) -> None:
        """The cloud goes on by itself."""
