"""How many instances there should be: a pure function with memory.

Owns the decision for one service: thresholds up, hysteresis and quiet time down, bounds, requests from outside. A
`Load` comes in with its time; a `Decision` goes out, with its reason in words.
It must never read a clock, start a process or send a message.
Rule: up as soon as one threshold is passed, by as much as it is passed; down one at a time, after quiet (KEDA's and
Kubernetes' autoscalers share the pattern); a request from outside holds until it expires.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weft.scaling.file import Service

REQUEST_S = 300.0
"""How long a request holds that does not say it."""
REQUEST_S_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class Load:
    """A service's queue and instances at one moment."""

    messages: int
    """Ready and unsettled."""
    instances: int
    """That are there, by presence or by the driver's own count."""
    wait_ms: float = 0.0
    arrivals_per_s: float = 0.0
    departures_per_s: float = 0.0

    @property
    def drain_s(self) -> float:
        """Until what waits is worked off, at the present rates; infinite while it grows."""
        if self.messages == 0:
            return 0.0
        speed = self.departures_per_s - self.arrivals_per_s
        return self.messages / speed if speed > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Request:
    """From outside: so many instances in all, or so many more."""

    instances: int | None = None
    add: int = 0
    hold_s: float = REQUEST_S
    reason: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many there should be, and why. `alert` says that nothing is to be changed, only told."""

    service: str
    instances: int
    was: int
    reason: str
    alert: bool = False


class Scaler:
    """Decides for one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._changed_s = -math.inf
        self._busy_s: float | None = None
        self._floor = service.min
        self._ceiling = service.max
        self._held_until_s = -math.inf
        self._held_reason = ""
        self._told: int | None = None

    def request(self, request: Request, now_s: float, instances: int) -> None:
        """Obey a recommendation, within the file's bounds, until it expires."""
        service = self.service
        wanted = instances + request.add if request.instances is None else request.instances
        wanted = min(max(wanted, service.min), service.max)
        # More is a floor and less a ceiling: the service's own thresholds still count.
        self._floor, self._ceiling = (wanted, service.max) if wanted >= instances else (service.min, wanted)
        self._held_until_s = now_s + min(max(request.hold_s, 0.0), REQUEST_S_MAX)
        source = request.source or "a request"
        self._held_reason = f"{source}: {request.reason}" if request.reason else source

    def decide(self, load: Load, now_s: float) -> Decision | None:
        """What to change now; None for nothing."""
        if now_s >= self._held_until_s:
            self._floor, self._ceiling, self._held_reason = self.service.min, self.service.max, ""
        wanted, reason = self._wanted(load, now_s)
        if wanted == load.instances:
            self._told = None
            return None
        if self.service.mode == "alert":
            if self._told == wanted:
                return None
            self._told = wanted
            return Decision(self.service.name, wanted, load.instances, reason, alert=True)
        self._changed_s = now_s
        return Decision(self.service.name, wanted, load.instances, reason)

    def _wanted(self, load: Load, now_s: float) -> tuple[int, str]:
        service, now = self.service, load.instances
        if now < service.min:
            return service.min, f"{now} of at least {service.min} instances are there"
        if now > service.max:
            return service.max, f"{now} instances are more than the {service.max} allowed"
        pressure, reason = self._pressure(load)
        idle = pressure * now <= service.idle_fraction * max(now - 1, 1) if now > 0 else True
        if not idle or self._busy_s is None:
            self._busy_s = now_s
        if now < self._floor:
            return self._floor, self._held_reason
        if now == 0 and load.messages and self._ceiling:
            return 1, f"{load.messages} messages wait for nobody"
        if pressure > 1 and now < self._ceiling and now_s - self._changed_s >= service.up_s:
            # By as much as it is passed, but at most twice as many: rates settle before the next step.
            step = min(math.ceil(max(now, 1) * min(pressure, 2.0)), self._ceiling)
            return max(step, now + 1), reason
        if now > self._ceiling:
            return self._ceiling, self._held_reason
        quiet_s = now_s - max(self._busy_s, self._changed_s)
        is_needed = now == 1 and load.messages > 0  # nobody would be left, however little there is to do
        if now > self._floor and idle and quiet_s >= service.down_s and not is_needed:
            return now - 1, f"quiet for {quiet_s:.0f} s"
        return now, ""

    def _pressure(self, load: Load) -> tuple[float, str]:
        """The threshold that is passed most, as a fraction of it."""
        service, each = self.service, load.messages / max(load.instances, 1)
        found = []
        if service.messages_each:
            words = f"{load.messages} messages wait for {load.instances} instances ({service.messages_each} each)"
            found.append((each / service.messages_each, words))
        if service.wait_ms_max:
            found.append((load.wait_ms / service.wait_ms_max, f"messages wait {load.wait_ms:.0f} ms"))
        if service.drain_s_max:
            words = (
                "what waits only grows" if math.isinf(load.drain_s) else f"working it off takes {load.drain_s:.0f} s"
            )
            # A few messages in flight are no backlog, whatever the rates of the moment say.
            few = load.messages <= max(load.instances, 1) * 2
            found.append((0.0 if few else load.drain_s / service.drain_s_max, words))
        return max(found)
