"""Links and routes as values: what an operator wrote down, in one spelling for files, stores and messages.

Owns the frozen `Link` and `Route`, their checks, and their form as a plain table. Tables come in from configuration
files, commands and the store; records go out, or a ConfigError that names the field at fault.
It must not know what a link is doing now: state is `uplink`'s and `controller`'s.
Words: qpid-route's (a route has a destination and a source, and pulls unless it says otherwise); see
docs/reference/fabric.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args
from urllib.parse import unquote, urlsplit

from weft.model.errors import ConfigError
from weft.net.endpoint import is_host

Kind = Literal["queue", "static", "dynamic"]
Direction = Literal["pull", "push"]
RelayMode = Literal["ring", "complete"]
"""Which messages an exchange route passes on, by the shape they suit."""

CREDIT_DEFAULT = 1_000
"""Messages a route may have on the way unsettled: enough to fill a pipe between two cities at full speed."""
CREDIT_MAX = 100_000
EXPIRES_MS_DEFAULT = 86_400_000
URLS_MAX = 16
"""Addresses of one link: every gateway of a site, several times over."""
NAME_BYTES_MAX = 200
"""Leaves room in a queue's name (255 bytes) for what is made for a route."""
PORTS = {"amqp": 5_672, "amqps": 5_671}

_NAME = re.compile(r"[^\s\x00-\x1f]+")


@dataclass(frozen=True, slots=True)
class Peer:
    """One address of a link, taken apart."""

    host: str
    port: int
    user: str | None
    password: str
    vhost: str
    tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_url(text: str) -> Peer:
    """Read amqp://[user[:password]@]host[:port][/vhost], or host[:port] alone."""
    url = text if "://" in text else f"amqp://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is not amqp://host:port: {error}") from None
    is_odd = bool(parts.query or parts.fragment) or any(letter.isspace() for letter in parts.netloc)
    if parts.scheme not in PORTS or not parts.hostname or not is_host(parts.hostname) or is_odd:
        raise ConfigError(f"{text!r} is not amqp://[user:password@]host[:port][/vhost] (or amqps://)")
    vhost = unquote(parts.path[1:]) or "/"
    user = None if parts.username is None else unquote(parts.username)
    password = unquote(parts.password or "")
    return Peer(parts.hostname, port or PORTS[parts.scheme], user, password, vhost, parts.scheme == "amqps")


@dataclass(frozen=True, slots=True)
class Link:
    """One resilient connection to another node; with several addresses the next is tried when one fails."""

    name: str
    urls: tuple[str, ...]
    role: str = ""
    """What the peer is to this node (gateway, remote, infra, core, …): shown on maps, never a rule by itself."""
    durable: bool = True
    """Survives a restart of this node."""
    heartbeat_s: int = 5
    """A peer that says nothing for twice this long is taken for dead."""
    retry_max_s: int = 30
    """The longest wait between two attempts."""
    tls_ca: str = ""
    """File with the certificates that may sign the peer's; the system's if empty."""
    management: str = ""
    """Where a RabbitMQ's management answers (http://host:15672): dynamic routes from it bind by that."""

    def __post_init__(self) -> None:
        check_name("link", self.name)
        if not self.urls:
            raise ConfigError(f"link {self.name!r} needs at least one url")
        if len(self.urls) > URLS_MAX:
            raise ConfigError(f"link {self.name!r} has more than {URLS_MAX} urls")
        for url in self.urls:
            parse_url(url)
        if self.management and not self.management.startswith(("http://", "https://")):
            raise ConfigError(f"link {self.name!r}: management is http://host:port or https://…")
        _check_range(f"link {self.name!r}: heartbeat_s", self.heartbeat_s, 1, 3_600)
        _check_range(f"link {self.name!r}: retry_max_s", self.retry_max_s, 1, 86_400)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The addresses, taken apart."""
        return tuple(parse_url(url) for url in self.urls)


@dataclass(frozen=True, slots=True)
class Route:
    """What one link carries, in one direction.

    `pull` (the default) brings messages here from the peer; `push` sends them there. A `queue` route drains a queue
    into an exchange, a `static` route carries what an exchange routes by one key, a `dynamic` route what the other
    end's bindings ask for.
    """

    name: str
    link: str
    kind: Kind
    exchange: str = ""
    """Where messages arrive: an exchange at the destination. Empty: the queue named by `key`."""
    queue: str = ""
    """queue: the queue that is drained, at the source."""
    key: str = ""
    """static: the binding key; queue: a routing key in place of each message's own."""
    source_exchange: str = ""
    """static and dynamic: the exchange at the source, if its name differs."""
    direction: Direction = "pull"
    vhost: str = "/"
    """The virtual host at this node; the peer's is in the link's url."""
    durable: bool = True
    """Survives a restart of this node, and so does what waits for it at the source."""
    credit: int = CREDIT_DEFAULT
    backlog_max: int = 0
    """pull: no more while this many of the route's messages wait here for consumers; 0: no such bound."""
    bytes_per_s_max: int = 0
    """Bytes of messages that may cross in a second; 0: no such bound."""
    expires_ms: int = EXPIRES_MS_DEFAULT
    """How long the source keeps messages for a destination that is away."""
    relay: RelayMode = "ring"
    """static and dynamic: `ring` passes on whatever the other end has not seen, in any shape; `complete` only what was
    published at the source itself, for nodes that are all linked to each other.
    """

    def __post_init__(self) -> None:
        check_name("route", self.name)
        where = f"route {self.name!r}"
        _check_choice(f"{where}: kind", self.kind, get_args(Kind))
        _check_choice(f"{where}: direction", self.direction, get_args(Direction))
        _check_choice(f"{where}: relay", self.relay, get_args(RelayMode))
        _check_range(f"{where}: credit", self.credit, 1, CREDIT_MAX)
        _check_range(f"{where}: backlog_max", self.backlog_max, 0, 2**31)
        _check_range(f"{where}: bytes_per_s_max", self.bytes_per_s_max, 0, 2**62)
        _check_range(f"{where}: expires_ms", self.expires_ms, 1_000, 315_360_000_000)
        if self.kind == "queue":
            if not self.queue:
                raise ConfigError(f"{where} drains a queue: which one?")
            if self.relay != "ring":
                raise ConfigError(f"{where} drains a queue, whose messages pass on as they are: relay is for exchanges")
            if not self.exchange and not self.key:
                raise ConfigError(f"{where} needs an exchange to publish to, or a key that names a queue")
        elif not self.exchange:
            raise ConfigError(f"{where} needs an exchange")

    @property
    def from_exchange(self) -> str:
        """The exchange at the source."""
        return self.source_exchange or self.exchange

    def with_pace_of(self, other: Route) -> Route:
        """The same route, as fast as another."""
        return replace(self, credit=other.credit, backlog_max=other.backlog_max, bytes_per_s_max=other.bytes_per_s_max)


def check_name(what: str, name: str) -> None:
    """Refuse what cannot name a thing of the fabric."""
    if not _NAME.fullmatch(name) or len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(f"{name!r} is not a name for a {what}: 1 to {NAME_BYTES_MAX} bytes without spaces")


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{what} is {value!r}; it may be {', '.join(choices)}")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{what} must be from {low} to {high}")


def to_table(record: Any) -> dict[str, Any]:
    """Every field by name; lists in place of tuples."""
    table = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}


def link_of(table: Mapping[str, Any]) -> Link:
    """A link from a table; `urls` may be one text."""
    record: Link = record_of(Link, "link", with_urls(table), ("name", "urls"))
    return record


def with_urls(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with its `urls` as several though they be one text."""
    urls = table.get("urls", ())
    return {**table, "urls": (urls,) if isinstance(urls, str) else urls}


def route_of(table: Mapping[str, Any]) -> Route:
    """A route from a table; without a name it gets one that says what it does."""
    table = dict(table)
    if not table.get("name"):
        table["name"] = route_name(table)
    record: Route = record_of(Route, "route", table, ("name", "link", "kind"))
    return record


def route_name(table: Mapping[str, Any]) -> str:
    """The name of a route that was given none: the same route has the same name."""
    what = table.get("queue") if table.get("kind") == "queue" else table.get("source_exchange") or table.get("exchange")
    parts = [table.get("link"), table.get("direction") or "pull", table.get("kind"), what, table.get("key")]
    return re.sub(r"\s", "_", ":".join(str(part) for part in parts if part))[:NAME_BYTES_MAX]


def record_of(record: Any, what: str, table: dict[str, Any], needed: Iterable[str]) -> Any:
    """A record of this class from a table of its fields; ConfigError says what is wrong."""
    known = {field.name: str(field.type) for field in fields(record)}
    for name, value in table.items():
        if name not in known:
            raise ConfigError(f"a {what} has no {name!r}; known are {', '.join(known)}")
        if not _fits(known[name], value):
            raise ConfigError(f"{what}: {name} cannot be {value!r}")
    for name in needed:
        if name not in table:
            raise ConfigError(f"a {what} needs {name!r}")
    return record(**{name: tuple(value) if isinstance(value, list) else value for name, value in table.items()})


def _fits(type_: str, value: object) -> bool:
    match type_:
        case "bool":
            return isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "tuple[str, ...]":
            return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        case _:
            return isinstance(value, str)
