"""Where a client connects to: URLs read into targets.

Owns the forms of URL a client takes and the defaults for what they leave out. Text comes in, targets in the order to be
tried go out; a `ConfigError` says what is wrong with the text.
It must never open a socket. Looking up SRV records is the one thing here that asks the network.
Rule: `amqp://user:password@host:port/vhost`, `amqps://`, `amqp+srv://domain` (RFC 2782), `weft+memory:name`.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from weft.model.errors import ConfigError, Unavailable
from weft.net.endpoint import is_host, parse_endpoint

PORT = 5672
PORT_TLS = 5671
PORT_DNS = 53
SRV_TIMEOUT_S = 5.0
"""Time the name servers have, of what a dial has."""
URL_DEFAULT = "amqp://localhost"
MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-256")
URL_VARIABLE = "WEFT_URL"
"""The environment variable that takes the place of the default."""

_TURNS = itertools.count()


class Target(NamedTuple):
    """One place to connect to."""

    kind: str
    """`tcp`, `tls`, `memory` or `srv`."""
    host: str
    port: int = 0
    user: str | None = None
    password: str = ""
    vhost: str | None = None
    mechanism: str | None = None
    """One of `MECHANISMS` and no other; None goes by whether there is a user."""
    resolver: str | None = None
    """Of `srv`: the name server to ask, `ADDRESS` or `ADDRESS:PORT`; None asks those of the system."""
    address: str | None = None
    """Where the host is, as the URL's own name server says; None has the system look it up."""

    @property
    def hostname(self) -> str:
        """What `open` says it wants: a virtual host, or the host's own name."""
        return f"vhost:{self.vhost}" if self.vhost else self.host

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """How to log in, best first: a password is proven where the peer lets us, and told where it does not."""
        if self.mechanism is not None:
            return (self.mechanism,)
        return ("ANONYMOUS",) if self.user is None else ("SCRAM-SHA-256", "PLAIN")

    def __str__(self) -> str:
        match self.kind:
            case "memory":
                return f"weft+memory:{self.host}"
            case "srv":
                return f"amqp+srv://{self.host}"
            case _:
                scheme = "amqps" if self.kind == "tls" else "amqp"
                host = f"[{self.host}]" if ":" in self.host else self.host
                return f"{scheme}://{host}:{self.port}"


def targets(url: str | Sequence[str] | None) -> tuple[Target, ...]:
    """The targets that one URL, several in a list or several with commas between them name."""
    given = url if url is not None else os.environ.get(URL_VARIABLE) or URL_DEFAULT
    texts = given.split(",") if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"a URL is str, and several are a list of them: {given!r}")
    found = tuple(_target(text.strip()) for text in texts if text.strip())
    if not found:
        raise ConfigError("there is no URL to connect to")
    return found


def arrange(found: Sequence[Target], policy: str) -> tuple[Target, ...]:
    """Targets in the order to be tried: as given, shuffled, or with each client of this process one further on.

    >>> [target.host for target in arrange(targets("amqp://a,amqp://b"), "failover")]
    ['a', 'b']
    """
    match policy:
        case "failover":
            return tuple(found)
        case "random":
            return tuple(random.sample(found, len(found)))
        case "round-robin":
            first = next(_TURNS) % len(found)
            return (*found[first:], *found[:first])
        case _:
            raise ConfigError(f"policy is failover, random or round-robin, not {policy!r}")


def _target(text: str) -> Target:
    if text.startswith("weft+memory:"):
        return Target("memory", text.removeprefix("weft+memory:").lstrip("/"))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a URL: {error}") from None
    kind = {"amqp": "tcp", "amqps": "tls", "amqp+srv": "srv"}.get(parts.scheme)
    if kind is None:
        raise ConfigError(f"{text!r} begins with none of amqp://, amqps://, amqp+srv:// and weft+memory:")
    if not parts.hostname:
        raise ConfigError(f"{text!r} names no host")
    if not is_host(parts.hostname):
        raise ConfigError(f"{text!r}: no host can have that name")
    if port == 0:
        raise ConfigError(f"{text!r}: nobody can be reached at port 0")
    user = None if parts.username is None else unquote(parts.username)
    path = parts.path.removeprefix("/")
    return Target(
        kind,
        parts.hostname,
        port or (PORT_TLS if kind == "tls" else PORT),
        user,
        unquote(parts.password or ""),
        unquote(path) or None,
        *_options(text, parts.query, ("mechanism", "resolver") if kind == "srv" else ("mechanism",)),
    )


def _options(text: str, query: str, known: Sequence[str]) -> list[str | None]:
    """The values of the options a URL may have."""
    given = parse_qs(query)
    unknown = given.keys() - set(known)
    if unknown:
        raise ConfigError(f"{text!r} has an option {min(unknown)!r}: there is only {' and '.join(known)}")
    values = [given.get(name, [None])[-1] for name in known]
    if values[0] not in (None, *MECHANISMS):
        raise ConfigError(f"{text!r}: the mechanism is one of {', '.join(MECHANISMS)}")
    return values


def resolve(target: Target) -> list[Target]:
    """The places an `amqp+srv` target stands for now, best first; any other target is itself. Blocks."""
    if target.kind != "srv":
        return [target]
    try:
        from dns import exception, resolver  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ConfigError(f"{target} needs the package dnspython: pip install 'weft[srv]'") from None
    try:
        asked = resolver.Resolver(configure=target.resolver is None)
        if target.resolver is not None:
            server = parse_endpoint(target.resolver, PORT_DNS)
            asked.nameservers, asked.port = [server.host], server.port
        end = monotonic() + SRV_TIMEOUT_S
        answer: Any = asked.resolve(f"_amqp._tcp.{target.host}", "SRV", lifetime=SRV_TIMEOUT_S)
        # RFC 2782: lower priority first, among equals the heavier more often.
        records = answer.rrset.processing_order()
    except (exception.DNSException, ValueError, OSError) as error:
        raise Unavailable(f"{target} has no SRV records: {error}") from error
    places = [target._replace(kind="tcp", host=str(record.target).rstrip("."), port=record.port) for record in records]
    if target.resolver is None:
        return places
    return [place._replace(address=each) for place in places for each in _addresses(asked, place.host, end)]


def _addresses(asked: Any, host: str, end: float) -> list[str | None]:
    """Where a host is, as a name server says; what that does not know is left to the system."""
    from dns.exception import DNSException

    try:
        found = list(asked.resolve_name(host, lifetime=max(0.1, end - monotonic())).addresses())
    except (DNSException, ValueError, OSError):
        found = []
    return found or [None]
