"""The fabric file: nodes, who links to whom, and what the links carry, in one readable TOML or YAML.

Owns the format, its short-hands (ranges in names, patterns over nodes) and the checks of a whole topology. Text comes
in, a `Fabric` of frozen values goes out, or a ConfigError that names the line's table.
It must never know what runs: `diff` compares.
Rules of the talk: roles belong to links, regions meet only at gateways, partitions meet only where a link says so, and
gateways hold no queue that nobody drains.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from weft.federation import link_of, parse_url, relay_of, route_of
from weft.model.document import read_bytes
from weft.model.errors import ConfigError
from weft.net.endpoint import Endpoint, parse_endpoint

FILE_BYTES_MAX = 4_194_304
YAML_SUFFIXES = (".yaml", ".yml")
YAML_DEPTH_MAX = 16
NODES_MAX = 10_000
PORT = 5_672
PORT_MAX = 65_535
GATEWAY = "gateway"
NODE_KEYS = (
    "listen",
    "url",
    "kind",
    "tier",
    "region",
    "partition",
    "zone",
    "uptime",
    "exchanges",
    "queues",
    "bindings",
)
FOREIGN_KEYS = ("url", "kind", "tier", "region", "partition", "zone", "uptime")
"""What can be said of a broker that is none of ours."""
LINK_OPTIONS = ("role", "heartbeat_s", "retry_max_s", "tls_ca", "management")
LINK_KEYS = ("from", "to", "name", "each", "joins", *LINK_OPTIONS)
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BINDING = re.compile(r"\s*(\S+)\s*->\s*(\S+)\s*(?::\s*(\S*))?\s*")


@dataclass(frozen=True, slots=True)
class Binding:
    """exchange -> queue : key."""

    source: str
    destination: str
    routing_key: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """One node as the file wants it."""

    name: str
    listen: Endpoint
    kind: str = "local"
    tier: str = ""
    region: str = ""
    partition: str = ""
    zone: str = ""
    uptime: float = 0.99
    exchanges: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Their arguments, by their names."""
    bindings: tuple[Binding, ...] = ()
    links: tuple[Mapping[str, Any], ...] = ()
    """As `weft.federation.link_of` takes them."""
    routes: tuple[Mapping[str, Any], ...] = ()
    relays: tuple[Mapping[str, Any], ...] = ()
    is_foreign: bool = False
    """Another broker: others link to it; it is neither started nor changed."""

    @property
    def url(self) -> str:
        """Where it is; without a password, so that it can be shown."""
        return f"amqp://{self.listen}"

    @property
    def place(self) -> dict[str, str]:
        """What it is in the fabric, for whoever looks at the network."""
        words = {"kind": self.kind, "tier": self.tier, "region": self.region, "partition": self.partition}
        return {key: word for key, word in words.items() if word}


@dataclass(frozen=True, slots=True)
class Fabric:
    """A whole topology."""

    name: str
    members: Mapping[str, Member]
    edges: tuple[tuple[str, str, str], ...]
    """(who dials, whom, the link's name), one for each address of a link."""


def load(path: Path) -> Fabric:
    """Read a file."""
    data = read_bytes(path, FILE_BYTES_MAX)
    if path.suffix in YAML_SUFFIXES:
        return parse(_read_yaml(path, data), str(path))
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return parse(document, str(path))


def _read_yaml(path: Path, data: bytes) -> Mapping[str, Any]:
    """The same tables in YAML. Aliases are not followed: a few lines of them may stand for more than there is room."""
    try:
        import yaml
    except ImportError:
        raise ConfigError(f"{path}: YAML needs PyYAML (weft[yaml]); TOML needs nothing") from None
    try:
        depth = 0
        for event in yaml.parse(data, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > YAML_DEPTH_MAX:
                raise ValueError("aliases (*name) and deep nesting are not read")
        document = yaml.load(data, yaml.SafeLoader)
        _check_keys(document)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: not YAML for us: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: holds no tables")
    return document


def _check_keys(value: object) -> None:
    """YAML reads some words as numbers or as yes and no; a name is a text."""
    if isinstance(value, list):
        for item in value:
            _check_keys(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{key!r} is read as no text: write it in quotes")
            _check_keys(item)


def parse(document: Mapping[str, Any], origin: str = "fabric") -> Fabric:
    """A fabric from a document."""
    try:
        return _Reader(document).read()
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None


class _Reader:
    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._nodes: dict[str, dict[str, Any]] = {}
        self._links: dict[str, list[dict[str, Any]]] = {}
        self._routes: dict[str, list[dict[str, Any]]] = {}
        self._relays: dict[str, list[dict[str, Any]]] = {}
        self._edges: list[tuple[str, str, str]] = []

    def read(self) -> Fabric:
        _known("fabric file", self._document, ("fabric", "nodes", "links", "routes", "relays"))
        for pattern, table in _tables(self._document.get("nodes", {}), "nodes").items():
            _known(f"nodes.{pattern}", table, FOREIGN_KEYS if "url" in table else NODE_KEYS)
            for at, name in enumerate(expand(pattern)):
                if name in self._nodes:
                    raise ConfigError(f"there are two nodes called {name!r}")
                if "url" not in table and not _NODE_NAME.fullmatch(name):
                    raise ConfigError(f"{name!r} is no name for a node: up to 64 letters, digits, '.', '_' and '-'")
                self._nodes[name] = {**table, "at": at}
        if not self._nodes:
            raise ConfigError("there are no [nodes.NAME]")
        if len(self._nodes) > NODES_MAX:
            raise ConfigError(f"more than {NODES_MAX} nodes")
        for row in self._rows("links"):
            self._read_link(row)
        for row in self._rows("routes"):
            self._read_route(row)
        for row in self._rows("relays"):
            self._read_relay(row)
        members = {name: self._member(name, table) for name, table in self._nodes.items()}
        _check_ports(members.values())
        _check_gateways(members)
        head = self._document.get("fabric", {})
        if not isinstance(head, dict):
            raise ConfigError("fabric is a table: write [fabric]")
        _known("fabric", head, ("name",))
        return Fabric(str(head.get("name", "fabric")), members, tuple(self._edges))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        rows = self._document.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{name} is a list of tables: write [[{name}]]")
        return rows

    def _select(self, what: str, patterns: Any) -> list[str]:
        """Nodes by name pattern, or by a property: kind:gateway, region:slc."""
        found: list[str] = []
        for pattern in [patterns] if isinstance(patterns, str) else _texts(what, patterns or []):
            key, colon, value = pattern.partition(":")
            if colon and key in NODE_KEYS:
                matched = [name for name, node in self._nodes.items() if fnmatchcase(str(node.get(key, "")), value)]
            else:
                matched = [name for name in self._nodes if fnmatchcase(name, pattern)]
            if not matched:
                raise ConfigError(f"{what}: no node is called {pattern!r}")
            found += [name for name in matched if name not in found]
        if not found:
            raise ConfigError(f"{what} is missing")
        return found

    def _read_link(self, row: dict[str, Any]) -> None:
        _known("links", row, LINK_KEYS)
        role = str(row.get("role", ""))
        for here in self._select("links.from", row.get("from")):
            there = [name for name in self._select("links.to", row.get("to")) if name != here]
            for peers in [[peer] for peer in there] if row.get("each") else [there]:
                if not peers:
                    continue
                name = str(row.get("name") or role or peers[0])
                name = f"{name}-{peers[0]}" if row.get("each") and (row.get("name") or role) else name
                self._add_link(here, peers, name, row)

    def _add_link(self, here: str, peers: list[str], name: str, row: dict[str, Any]) -> None:
        for peer in peers:
            _check_meeting(self._nodes, here, peer, joins=bool(row.get("joins")))
            self._edges.append((here, peer, name))
        if "url" in self._nodes[here]:
            raise ConfigError(f"{here} is another broker, and makes no links: let a node of ours link to it")
        urls = self._urls(peers)
        table: dict[str, Any] = {"name": name, "urls": urls, **{key: row[key] for key in LINK_OPTIONS if key in row}}
        link_of(table)
        links = self._links.setdefault(here, [])
        if any(link["name"] == name for link in links):
            raise ConfigError(f"node {here} has two links called {name!r}: give them a name")
        links.append(table)

    def _urls(self, peers: Iterable[str]) -> list[str]:
        nodes = ((peer, self._nodes[peer]) for peer in peers)
        return [str(node.get("url") or f"amqp://{_listen(peer, node)}") for peer, node in nodes]

    def _read_relay(self, row: dict[str, Any]) -> None:
        row = dict(row)
        joins, from_, to = bool(row.pop("joins", False)), row.pop("from", None), row.pop("to", None)
        for here in self._select("relays.from", from_):
            for there in [name for name in self._select("relays.to", to) if name != here]:
                _check_meeting(self._nodes, here, there, joins=joins)
                if "url" in self._nodes[here]:
                    raise ConfigError(f"{here} is another broker, and has no relays: let a node of ours have it")
                name = f"{row.get('name') or row.get('exchange') or row.get('queue') or ''}@{there}"
                table = {**row, "name": name, "urls": self._urls([there])}
                relay_of(table)
                self._relays.setdefault(here, []).append(table)
                self._edges.append((here, there, name))

    def _read_route(self, row: dict[str, Any]) -> None:
        row = dict(row)
        at, link = row.pop("from", "*"), str(row.pop("link", ""))
        count = 0
        for here in self._select("routes.from", at):
            for table in self._links.get(here, []):
                if fnmatchcase(table["name"], link or "*"):
                    route = route_of({**row, "link": table["name"]})
                    if any(other["name"] == route.name for other in self._routes.get(here, [])):
                        raise ConfigError(f"node {here} has two routes called {route.name!r}: give them a name")
                    self._routes.setdefault(here, []).append({**row, "link": table["name"], "name": route.name})
                    count += 1
        if not count:
            raise ConfigError(f"a route from {at!r} names link {link!r}, which no such node has")

    def _member(self, name: str, table: dict[str, Any]) -> Member:
        exchanges = table.get("exchanges", {})
        if not isinstance(exchanges, dict):
            raise ConfigError(f"nodes.{name}.exchanges is a table of names and types")
        words: dict[str, Any] = {key: str(table.get(key, "")) for key in ("tier", "region", "partition", "zone")}
        uptime = table.get("uptime", 0.99)
        if not isinstance(uptime, int | float) or not 0 <= uptime <= 1:
            raise ConfigError(f"nodes.{name}.uptime is a share from 0 to 1")
        return Member(
            name,
            _listen(name, table),
            kind=str(table.get("kind", "local")),
            **words,
            uptime=float(uptime),
            exchanges={str(key): str(value) for key, value in exchanges.items()},
            queues=_queues(f"nodes.{name}.queues", table.get("queues", [])),
            bindings=tuple(
                _binding(name, text) for text in _texts(f"nodes.{name}.bindings", table.get("bindings", []))
            ),
            links=tuple(self._links.get(name, ())),
            routes=tuple(self._routes.get(name, ())),
            relays=tuple(self._relays.get(name, ())),
            is_foreign="url" in table,
        )


def expand(pattern: str) -> list[str]:
    """`local-{1..3}` is three names."""
    found = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", pattern)
    if found is None:
        return [pattern]
    first, last = int(found[2]), int(found[3])
    if not first <= last <= first + NODES_MAX:
        raise ConfigError(f"{pattern!r} counts no nodes, or too many")
    return [f"{found[1]}{number}{found[4]}" for number in range(first, last + 1)]


def _listen(name: str, table: Mapping[str, Any]) -> Endpoint:
    if "url" in table:
        peer = parse_url(str(table["url"]))
        return Endpoint(peer.host, peer.port)
    text = table.get("listen")
    if not isinstance(text, str):
        raise ConfigError(f'nodes.{name} needs listen = "HOST:PORT"')
    endpoint = parse_endpoint(text, PORT)
    port = endpoint.port + int(table.get("at", 0))
    if port > PORT_MAX:
        raise ConfigError(f"nodes.{name} would listen on port {port}: ports of a range count up, and end at {PORT_MAX}")
    return Endpoint(endpoint.host, port)


def _texts(what: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{what} is a list of texts")
    return value


def _binding(name: str, text: str) -> Binding:
    found = _BINDING.fullmatch(text)
    if found is None:
        raise ConfigError(f'nodes.{name}.bindings: {text!r} is not "exchange -> queue : key"')
    return Binding(found[1], found[2], found[3] or "")


def _tables(value: Any, what: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(table, dict) for table in value.values()):
        raise ConfigError(f"{what} are tables: write [{what}.NAME]")
    return value


def _known(what: str, table: Mapping[str, Any], keys: Iterable[str]) -> None:
    for key in table:
        if key not in keys:
            raise ConfigError(f"{what} has no {key!r}; known are {', '.join(keys)}")


def _check_meeting(nodes: Mapping[str, Mapping[str, Any]], here: str, there: str, *, joins: bool) -> None:
    one, other = nodes[here], nodes[there]
    kinds = (one.get("kind", "local"), other.get("kind", "local"))
    if one.get("region", "") != other.get("region", "") and kinds != (GATEWAY, GATEWAY):
        raise ConfigError(f"{here} and {there} are in different regions, which meet only at gateways")
    if one.get("partition", "") != other.get("partition", "") and not joins:
        raise ConfigError(f"{here} and {there} are in different partitions: say joins = true if they are to meet")


def _check_ports(members: Iterable[Member]) -> None:
    taken: dict[str, str] = {}
    for member in members:
        place = str(member.listen)
        if place in taken:
            raise ConfigError(f"{taken[place]} and {member.name} both listen on {place}")
        taken[place] = member.name


def _queues(where: str, value: object) -> dict[str, dict[str, Any]]:
    """Names, or a table of names and the arguments of each."""
    if not isinstance(value, dict):
        return {name: {} for name in _texts(where, value)}
    if not all(isinstance(arguments, dict) for arguments in value.values()):
        raise ConfigError(f"{where} is a list of names, or a table of names and arguments")
    return {str(name): dict(arguments) for name, arguments in value.items()}


def _check_gateways(members: Mapping[str, Member]) -> None:
    """A gateway is a pipe: what waits there waits for somebody who takes it away."""
    drained = {str(route.get("queue")) for member in members.values() for route in member.routes}
    for member in members.values():
        for queue in member.queues if member.kind == GATEWAY else ():
            if queue not in drained:
                raise ConfigError(f"{member.name} is a gateway, and no route drains its queue {queue!r}")
