"""The scaling file: which services there are, when one instance more is wanted, and how to get it.

Owns the format and every complaint about it, as `FILE: section: what is wrong`.
It must never start anything.
Rule: docs/guides/scaling.md, "The file".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from weft.model import document
from weft.model.errors import ConfigError

INSTANCES_MAX = 1_000
"""Of one service: beyond it a file is more likely wrong than right."""


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Instances as containers."""

    image: str = ""
    command: tuple[str, ...] = ()
    """In place of what the image runs."""
    host: str = ""
    """`unix:///path` or `tcp://host:port`; by default what DOCKER_HOST says, else the engine of this machine."""
    network: str = ""
    """The Docker network that containers join."""


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Instances as pods of a deployment."""

    deployment: str = ""
    namespace: str = "default"
    url: str = ""
    """The API server; by default that of the cluster this runs in."""
    token_file: str = ""
    ca_file: str = ""
    """By default both are the pod's own."""


@dataclass(frozen=True, slots=True)
class CloudSettings:
    """Instances of somebody who is asked by messages."""

    address: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One section: a service, its queue, its bounds, and what one instance is expected to bear."""

    name: str
    queue: str = ""
    """The queue it takes its work from; by default the one of its name."""
    command: tuple[str, ...] = ()
    """What starts one instance. `{service}`, `{instance}` and `{url}` are filled in."""
    scale_command: tuple[str, ...] = ()
    """In place of `command`: what brings a platform to `{count}` instances, by its own tool."""
    docker: DockerSettings | None = None
    kubernetes: KubernetesSettings | None = None
    cloud: CloudSettings | None = None
    """In place of both: who keeps the instances."""
    min: int = 1
    max: int = 4
    messages_each: int = 0
    """Messages that may wait per instance; 0 does not look at the length."""
    wait_ms_max: int = 0
    """Time that the first message in the queue may have waited; 0 does not look at it."""
    drain_s_max: float = 0.0
    """How long working off what waits may take at the present rate; 0 does not look at it."""
    idle_fraction: float = 0.3
    """An instance goes when what is left over, after it went, would still be below this part of each threshold."""
    up_s: float = 5.0
    """Time between two steps up."""
    down_s: float = 60.0
    """Quiet time before a step down."""
    stop_s: float = 30.0
    """Time an instance has to finish what it holds."""
    mode: Literal["scale", "alert"] = "scale"
    """`alert` changes nothing, and tells what it would have changed."""

    @property
    def source(self) -> str:
        """The name of its queue."""
        return self.queue or self.name


_TYPES: dict[str, type] = {
    "queue": str,
    "command": list,
    "scale_command": list,
    "min": int,
    "max": int,
    "messages_each": int,
    "wait_ms_max": int,
    "drain_s_max": float,
    "idle_fraction": float,
    "up_s": float,
    "down_s": float,
    "stop_s": float,
    "mode": str,
}
_PLATFORMS: dict[str, tuple[type, str]] = {
    "docker": (DockerSettings, "image"),
    "kubernetes": (KubernetesSettings, "deployment"),
    "cloud": (CloudSettings, "address"),
}
"""Sections inside a service's: what they become, and the key that each must have."""
_DRIVERS = ("command", "scale_command", *_PLATFORMS)
_WORDS = {str: "a string", list: "a list of strings", int: "a whole number", float: "a number"}


def load(path: Path) -> tuple[Service, ...]:
    """Read a file."""
    return parse(document.read(path), str(path))


def parse(text: str, origin: str = "scaling") -> tuple[Service, ...]:
    """Read a text; `origin` names it in complaints."""
    tables = document.parse(text, origin)
    sections = tables.get("services", {})
    if tables.keys() - {"services"} or not isinstance(sections, dict) or not sections:
        raise ConfigError(f'{origin}: write a section [services."NAME"] for each service, and nothing else')
    return tuple(_service(name, table, f"{origin}: services.{name}") for name, table in sections.items())


def _service(name: str, table: Any, where: str) -> Service:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a section")
    _known(table, (*_TYPES, *_PLATFORMS), where, "a service")
    values = {key: _typed(value, _TYPES[key], f"{where}: {key}") for key, value in table.items() if key in _TYPES}
    platforms = {key: _platform(key, table[key], f"{where}.{key}") for key in _PLATFORMS if key in table}
    service = Service(name, **values, **platforms)
    for complaint in _complaints(service):
        raise ConfigError(f"{where}: {complaint}")
    return service


def _known(table: dict[str, Any], keys: Iterable[str], where: str, what: str) -> None:
    unknown = table.keys() - set(keys)
    if unknown:
        raise ConfigError(f"{where}: no such key: {', '.join(sorted(unknown))} ({what} has {', '.join(keys)})")


def _platform(kind: str, table: Any, where: str) -> Any:
    made, needed = _PLATFORMS[kind]
    types = {field.name: list if field.name == "command" else str for field in fields(made)}
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: must be a section")
    _known(table, types, where, "it")
    settings = made(**{key: _typed(value, types[key], f"{where}: {key}") for key, value in table.items()})
    if not getattr(settings, needed):
        raise ConfigError(f"{where}: needs {needed}")
    return settings


def _complaints(service: Service) -> list[str]:
    checks = [
        (sum(bool(getattr(service, key)) for key in _DRIVERS) != 1, f"needs one of {', '.join(_DRIVERS)}"),
        (not 0 <= service.min <= service.max <= INSTANCES_MAX, f"needs 0 ≤ min ≤ max ≤ {INSTANCES_MAX}"),
        (service.max == 0, "max must be at least 1"),
        (service.mode not in ("scale", "alert"), "mode must be scale or alert"),
        (not 0 < service.idle_fraction < 1, "idle_fraction must be between 0 and 1"),
        (
            not (service.messages_each or service.wait_ms_max or service.drain_s_max),
            "needs a threshold: messages_each, wait_ms_max or drain_s_max",
        ),
    ]
    for field in fields(service):
        value = getattr(service, field.name)
        if isinstance(value, int | float):
            checks.append((value < 0, f"{field.name} must not be negative"))
    return [words for wrong, words in checks if wrong]


def _typed(value: object, kind: type, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is list and isinstance(value, list) and value and all(isinstance(word, str) for word in value):
        return tuple(value)
    if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ConfigError(f"{where} must be {_WORDS[kind]}")
