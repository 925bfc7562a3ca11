"""Sides of gateways by their URL: those that come with weft, and those of other packages.

Owns which scheme means which side. A URL comes in, a source or a target that is not open yet goes out.
It must not load a side that was not asked for.
Rule: an installed package adds a scheme by an entry point of the group `weft.gateways`, named after the scheme: an
object with `source(url)` and `target(url)`, or one of them (docs/guides/gateways.md).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from weft.gateway.letters import Source, Target
from weft.model.errors import ConfigError

GROUP = "weft.gateways"
STOMP_PORT = 61_613


def open_source(url: str) -> Source:
    """Where letters come from: amqp://HOST#ADDRESS, stomp://HOST/DESTINATION, http://HOST:PORT/PATH to listen on."""
    source: Source = _side(url, "source")
    return source


def open_target(url: str) -> Target:
    """Where letters go: amqp://HOST#ADDRESS, stomp://HOST/DESTINATION, http(s)://… to post to."""
    target: Target = _side(url, "target")
    return target


def _side(url: str, kind: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from None
    own = _OWN.get((parts.scheme, kind))
    if own is not None:
        return own(parts)
    for plugin in entry_points(group=GROUP, name=parts.scheme):
        make = getattr(plugin.load(), kind, None)
        if make is not None:
            return make(url)
    known = sorted({f"{scheme}://" for scheme, of in _OWN if of == kind})
    raise ConfigError(f"{url!r} cannot be a {kind}: {', '.join(known)} can, and what packages add by {GROUP}")


def _fabric(kind: str) -> Callable[[SplitResult], Any]:
    def make(parts: SplitResult) -> Any:
        from weft.gateway.fabric import FabricSource, FabricTarget

        if not parts.fragment:
            raise ConfigError(f"{parts.geturl()!r} names no address: write amqp://HOST:PORT/VHOST#ADDRESS")
        place = (parts._replace(fragment="").geturl(), unquote(parts.fragment))
        return FabricSource(*place) if kind == "source" else FabricTarget(*place)

    return make


def _stomp(kind: str) -> Callable[[SplitResult], Any]:
    def make(parts: SplitResult) -> Any:
        try:
            from weft.gateway.stomp import StompSource, StompTarget
        except ModuleNotFoundError:
            raise ConfigError("STOMP needs stomp.py: pip install 'weft[stomp]'") from None
        if not parts.hostname or len(parts.path) < 2:
            raise ConfigError(f"{parts.geturl()!r} is not stomp://[USER:PASSWORD@]HOST[:PORT]/DESTINATION")
        entry = (unquote(parts.username or "guest"), unquote(parts.password or "guest"))
        place = (parts.hostname, parts.port or STOMP_PORT, *entry, unquote(parts.fragment) or "/")
        return (StompSource if kind == "source" else StompTarget)(unquote(parts.path), *place)

    return make


def _webhook(parts: SplitResult) -> Source:
    from weft.gateway.http import HttpSource

    return HttpSource(parts.hostname or "127.0.0.1", parts.port or 0, parts.path or "/")


def _posts(parts: SplitResult) -> Target:
    from weft.gateway.http import HttpTarget

    return HttpTarget(parts.geturl())


_OWN: dict[tuple[str, str], Callable[[SplitResult], Any]] = {
    **{(scheme, kind): _fabric(kind) for scheme in ("amqp", "amqps", "weft+memory") for kind in ("source", "target")},
    **{("stomp", kind): _stomp(kind) for kind in ("source", "target")},
    ("http", "source"): _webhook,
    ("http", "target"): _posts,
    ("https", "target"): _posts,
}
