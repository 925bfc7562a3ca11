"""Where something listens: a host and a port, read from text and written back.

Owns the frozen `Endpoint` and the one parser of HOST:PORT. Text from options and configuration files comes in,
endpoints go out.
It must never resolve a name or open a socket.
Rule: IPv6 addresses stand in brackets when a port follows, as in RFC 3986 section 3.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.model.errors import ConfigError

PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port; `str()` gives the text that `parse_endpoint` reads."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_host(text: str) -> bool:
    """May a host be called that? Whoever looks up what cannot be encoded gets an error that no socket makes."""
    try:
        return bool(text.encode("idna")) and "\0" not in text
    except UnicodeError:
        return False


def parse_endpoint(text: str, port_default: int) -> Endpoint:
    """Read HOST, HOST:PORT, [IPV6] or [IPV6]:PORT."""
    host, separator, port = text.rpartition(":")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        separator, port = rest[:1], rest[1:]
        if not bracket or separator not in ("", ":"):
            raise ConfigError(f"{text!r} is not HOST:PORT (an IPv6 address needs both brackets)")
    elif not separator:
        host = text
    elif ":" in host:
        raise ConfigError(f"{text!r} is not HOST:PORT (write an IPv6 address in brackets: [::1]:{port_default})")
    if not host or any(character.isspace() for character in host):
        raise ConfigError(f"{text!r} is not HOST:PORT (the host is missing)")
    if not is_host(host):
        raise ConfigError(f"{text!r} is not HOST:PORT (no host can have that name)")
    if not separator:
        return Endpoint(host, port_default)
    if not (port.isascii() and port.isdigit()) or int(port) > PORT_MAX:
        raise ConfigError(f"{text!r} is not HOST:PORT (the port is a number from 0 to {PORT_MAX})")
    return Endpoint(host, int(port))
