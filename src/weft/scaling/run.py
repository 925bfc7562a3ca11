"""Scaling at work: look at the queues, decide, start and stop, for as long as it is wanted.

Owns the loop around one scaling file. Queue statistics, presence and requests come in through `Source`; drivers are
told how many instances there should be, and each step is published as an event.
It must never decide how many: that is `decide`.
Rule: what a driver cannot do is reported and tried again at the next look; instances of this process end with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Protocol

from weft.model.errors import Unavailable, WeftError
from weft.scaling.decide import REQUEST_S, Decision, Load, Request, Scaler
from weft.scaling.drivers import Commands, Driver, LocalProcesses
from weft.scaling.file import Service
from weft.scaling.platforms import Ask, Cloud, Docker, Kubernetes

LOG = logging.getLogger("weft.scaling")
ADDRESS = "weft.scaling"
INTERVAL_S = 1.0
FORECAST_S = 20.0
"""How long a forecast holds: the pipeline repeats it for as long as it is true."""
RETRY_S = 2.0


class Source(Protocol):
    """The fabric as scaling sees it."""

    node: str

    async def queue(self, name: str) -> Mapping[str, Any] | None:
        """A queue's statistics: `messages`, `published`, `settled`, `wait_ms`; None if there is no such queue."""
        ...

    def requests(self, address: str) -> AsyncIterator[bytes]:
        """Bodies of the requests that are sent to an address."""
        ...

    async def tell(self, kind: str, event: str, name: str, values: Mapping[str, object]) -> None:
        """Publish an event about an object of a class."""
        ...

    async def ask(self, address: str, body: Mapping[str, object]) -> Mapping[str, Any]:
        """Send a JSON message and wait for the answer."""
        ...


def driver_for(service: Service, url: str, ask: Ask) -> Driver:
    """The driver a service's section asks for."""
    if service.docker is not None:
        return Docker(url, service.docker)
    if service.kubernetes is not None:
        return Kubernetes(service.kubernetes)
    if service.cloud is not None:
        return Cloud(service.cloud, ask)
    return LocalProcesses(url) if service.command else Commands(url)


class Runner:
    """Every service of one file."""

    def __init__(
        self,
        services: Sequence[Service],
        source: Source,
        url: str,
        *,
        dry_run: bool = False,
        interval_s: float = INTERVAL_S,
        write: Callable[[str], None] = print,
    ) -> None:
        self._source = source
        self._dry_run = dry_run
        self._interval_s = interval_s
        self._write = write
        self._scalers = {service.name: Scaler(service) for service in services}
        self._drivers: dict[str, Driver] = {service.name: driver_for(service, url, source.ask) for service in services}
        self._counters: dict[str, tuple[float, int, int]] = {}

    async def run(self) -> None:
        """Until cancelled; then the instances of this machine end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch())
                group.create_task(self._listen())
        finally:
            await asyncio.gather(*(driver.close() for driver in self._drivers.values()))

    async def look(self) -> list[Decision]:
        """Look once at every service, and do what is to be done; one whose platform is away keeps no other waiting."""
        decisions = []
        for name, scaler in self._scalers.items():
            try:
                load = await self._load(scaler.service)
            except WeftError as error:
                LOG.warning("cannot look at %s: %s", name, error)
                continue
            decision = scaler.decide(load, time.monotonic())
            if decision is not None:
                decisions.append(decision)
                await self._carry_out(scaler.service, decision, self._drivers[name])
        return decisions

    async def request(self, body: bytes) -> None:
        """Somebody asks for more or less; Refused requests are told and dropped."""
        try:
            words = json.loads(body)
            scaler = self._named(words)
            if scaler is None:
                return
            instances, add = words.get("instances", words.get("recommended")), words.get("add", 0)
            if instances is not None and (isinstance(instances, bool) or not isinstance(instances, int)):
                raise TypeError("instances must be a whole number")
            if isinstance(add, bool) or not isinstance(add, int):
                raise TypeError("add must be a whole number")
            forecast = "forecast" if "recommended" in words else ""
            hold_s = float(words.get("hold_s", FORECAST_S if forecast else REQUEST_S))
            if math.isnan(hold_s):
                raise ValueError("hold_s must be a number")
            texts = words.get("reason", forecast), words.get("source", "capacity" if forecast else "")
            request = Request(instances, add, hold_s, *map(str, texts))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            self._write(f"a scaling request that cannot be read was dropped: {error!r}")
            return
        try:
            running = await self._drivers[scaler.service.name].count(scaler.service)
        except Unavailable as error:
            self._write(f"a scaling request for {scaler.service.name} was dropped: {error}")
            return
        scaler.request(request, time.monotonic(), running)

    def _named(self, words: Mapping[str, Any]) -> Scaler | None:
        """The service that a request names; None for a forecast of a queue that is nobody's here."""
        if "service" in words:
            return self._scalers[words["service"]]
        queue = words["queue"]
        return next((scaler for scaler in self._scalers.values() if scaler.service.source == queue), None)

    async def _load(self, service: Service) -> Load:
        statistics = await self._source.queue(service.source) or {}
        running = await self._drivers[service.name].count(service)
        now_s, arrived, left = time.monotonic(), int(statistics.get("published", 0)), int(statistics.get("settled", 0))
        before_s, arrived_before, left_before = self._counters.get(service.name, (now_s, arrived, left))
        self._counters[service.name] = (now_s, arrived, left)
        elapsed_s = max(now_s - before_s, 1e-3)
        return Load(
            messages=int(statistics.get("messages", 0)),
            instances=running,
            wait_ms=float(statistics.get("wait_ms") or 0.0),
            arrivals_per_s=max(arrived - arrived_before, 0) / elapsed_s,
            departures_per_s=max(left - left_before, 0) / elapsed_s,
        )

    async def _carry_out(self, service: Service, decision: Decision, driver: Driver) -> None:
        words = f"{service.name}: {decision.was} → {decision.instances}: {decision.reason}"
        if decision.alert or self._dry_run:
            self._write(f"would scale {words}")
        else:
            self._write(f"scale {words}")
            try:
                await driver.bring_to(service, decision.instances)
            except Unavailable as error:
                self._write(str(error))
                return
        values = {"was": decision.was, "instances": decision.instances, "reason": decision.reason}
        await self._source.tell("service", "advised" if decision.alert else "scaled", service.name, values)

    async def _watch(self) -> None:
        while True:
            try:
                await self.look()
            except WeftError as error:
                LOG.warning("cannot look: %s", error)
            await asyncio.sleep(self._interval_s)

    async def _listen(self) -> None:
        while True:
            try:
                async for body in self._source.requests(ADDRESS):
                    await self.request(body)
            except WeftError as error:
                LOG.warning("cannot take requests: %s", error)
            await asyncio.sleep(RETRY_S)
