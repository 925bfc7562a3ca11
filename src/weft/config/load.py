"""From the text of a configuration file to a `Configuration`.

Owns reading, checking against the schema, and the checks no schema can say (a key without its certificate, a permission
for nobody).
Every complaint is a `ConfigError` of the form `FILE:LINE: what is wrong`.
It must never open sockets, make folders or hash passwords.
The keys are described in schema/management.json.
"""

from __future__ import annotations

import re
import socket
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.config._generated_schema import ENTITIES
from weft.config.schema import Entity, nearest
from weft.model import document
from weft.model.errors import ConfigError
from weft.model.limits import Limits
from weft.net.endpoint import Endpoint, parse_endpoint

PORT = 5_672
PORT_TLS = 5_671
PORT_HTTP = 15_672

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Listen:
    """One listener: with a certificate and a key it speaks TLS."""

    endpoint: Endpoint
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """Who may sign the certificates by which peers log in."""


@dataclass(frozen=True, slots=True)
class User:
    """Someone who may enter, with a password in clear or hashed."""

    name: str
    password: str | None = field(default=None, repr=False)
    password_hash: str | None = field(default=None, repr=False)
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a virtual host, as patterns."""

    user: str
    vhost: str = "/"
    configure: str = ""
    write: str = ""
    read: str = ""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for every queue and exchange whose name matches."""

    name: str
    pattern: str
    definition: dict[str, Any]
    vhost: str = "/"
    apply_to: str = "all"
    priority: int = 0
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """What the node does when nobody said otherwise."""

    auto_create_queues: bool = True
    guest: bool = True
    anonymous: bool = True
    scram: bool = False
    durability: str = "sync"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything a file may say; what it leaves out has its default."""

    name: str | None = None
    data_dir: Path | None = None
    listen: tuple[Listen, ...] = ()
    limits: Limits = field(default_factory=Limits)
    settings: Settings = field(default_factory=Settings)
    users: tuple[User, ...] = ()
    vhosts: tuple[str, ...] = ()
    permissions: tuple[Permission, ...] = ()
    policies: tuple[Policy, ...] = ()
    links: tuple[dict[str, Any], ...] = ()
    """Links to other nodes, as tables of `weft.federation`."""
    routes: tuple[dict[str, Any], ...] = ()
    directory_url: str = "embedded:"
    http: Listen | None = None
    """Where management is served over HTTP, if at all."""
    http_origins: tuple[str, ...] = ()
    """Sites whose pages may connect by WebSocket."""
    statistics_s: int = 10
    log_level: str | None = None
    """Of the log `weft` and those below it; None leaves them as the program has them."""
    tracing: tuple[str, int] | None = None
    """Where spans go, and of how many traces one is taken."""


def load(path: Path) -> Configuration:
    """Read a file."""
    return parse(document.read(path), str(path), path.parent)


def parse(text: str, origin: str = "configuration", folder: Path = Path()) -> Configuration:
    """Read a text; `origin` names it in complaints, paths in it are relative to `folder`."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(_syntax_complaint(origin, error)) from error
    checked = Checker(text, origin).check(document)
    return _build(checked, Checker(text, origin), folder)


def node_name_default() -> str:
    """The host's name without its domain, as far as it makes a node name."""
    name = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname().partition(".")[0]).strip("-")[:64]
    return name if _NODE_NAME.fullmatch(name) else "weft"


def validate_node_name(name: str) -> str:
    """A node's name is part of paths and of protocol fields, so it is kept plain."""
    if not _NODE_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a node name (up to 64 letters, digits, '.', '_' or '-', not starting with a sign)"
        )
    return name


def _syntax_complaint(origin: str, error: Exception) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", str(error))
    if found is None:
        return f"{origin}: not TOML: {'nested too deeply' if isinstance(error, RecursionError) else error}"
    return f"{origin}:{found[2] or 'end'}: not TOML: {found[1][:1].lower()}{found[1][1:]}"


class Checker:
    """Compares a document with the schema."""

    def __init__(self, text: str, origin: str) -> None:
        self._text = text
        self._origin = origin

    def check(self, document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
        """The tables of each entity, with defaults filled in."""
        entities = {entity.name: entity for entity in ENTITIES}
        checked: dict[str, list[dict[str, Any]]] = {name: [] for name in entities}
        for name, value in document.items():
            if name not in entities:
                raise self.error(f"unknown table {name!r}, {nearest(name, entities)}", name)
            entity = entities[name]
            if entity.many and not (isinstance(value, list) and all(isinstance(row, dict) for row in value)):
                raise self.error(f"{name} is a list of tables: write [[{name}]]", name)
            if not entity.many and not isinstance(value, dict):
                raise self.error(f"{name} is a table: write [{name}]", name)
            rows = value if entity.many else [value]
            checked[name] = [self._row(entity, row, index) for index, row in enumerate(rows)]
        return checked

    def _row(self, entity: Entity, row: dict[str, Any], index: int) -> dict[str, Any]:
        attributes = {attribute.name: attribute for attribute in entity.attributes}
        for key, value in row.items():
            if key not in attributes:
                raise self.error(
                    f"unknown key {entity.name}.{key}, {nearest(key, attributes)}", entity.name, index, key
                )
            complaint = attributes[key].complaint(value)
            if complaint:
                raise self.error(f"{entity.name}.{key} {complaint}", entity.name, index, key)
        for attribute in entity.attributes:
            if attribute.required and attribute.name not in row:
                raise self.error(f"{entity.name}.{attribute.name} is missing", entity.name, index)
        return {attribute.name: row.get(attribute.name, attribute.default) for attribute in entity.attributes}

    def error(self, what: str, table: str, index: int = 0, key: str | None = None) -> ConfigError:
        """A complaint with the line it is about."""
        line = self._line_of(table, index, key)
        return ConfigError(f"{self._origin}:{line}: {what}" if line else f"{self._origin}: {what}")

    def _line_of(self, table: str, index: int, key: str | None) -> int | None:
        """The line of a key, as far as headers and plain keys tell; the parser itself does not keep lines."""
        current, seen, header_line = "", -1, None
        for number, line in enumerate(self._text.splitlines(), 1):
            header = re.match(r"\s*\[{1,2}\s*[\"']?([^\]\"']+?)[\"']?\s*\]", line)
            if header:
                current = header[1]
                seen += current == table
                if current == table and seen == index:
                    header_line = number
                continue
            name = re.match(r"\s*[\"']?([\w.-]+)[\"']?\s*=", line)
            if name is None:
                continue
            dotted = f"{current}.{name[1]}" if current else name[1]
            if key is None and dotted.split(".")[0] == table and header_line is None and not current:
                return number
            if key is not None and dotted == f"{table}.{key}" and seen in (index, -1):
                return number
        return header_line


def _build(checked: dict[str, list[dict[str, Any]]], checker: Checker, folder: Path) -> Configuration:
    node = checked["node"][0] if checked["node"] else {"name": None, "data_dir": None}
    if node["name"] is not None:
        try:
            validate_node_name(node["name"])
        except ConfigError as error:
            raise checker.error(str(error), "node", 0, "name") from None
    listen = tuple(_listen(row, index, checker, folder) for index, row in enumerate(checked["listen"]))
    users = tuple(_user(row, index, checker) for index, row in enumerate(checked["users"]))
    vhosts = tuple(row["name"] for row in checked["vhosts"])
    permissions = tuple(Permission(**row) for row in checked["permissions"])
    policies = tuple(Policy(**row) for row in checked["policies"])
    settings = Settings(*(checked["settings"][0].values() if checked["settings"] else ()))
    _check_names(users, vhosts, permissions, settings, checker)
    _check_policies(policies, vhosts, checker)
    return Configuration(
        name=node["name"],
        data_dir=folder / node["data_dir"] if node["data_dir"] is not None else None,
        listen=listen,
        limits=Limits(**checked["limits"][0]) if checked["limits"] else Limits(),
        settings=settings,
        users=users,
        vhosts=vhosts,
        permissions=permissions,
        policies=policies,
        links=tuple(checked["links"]),
        routes=tuple(checked["routes"]),
        directory_url=checked["directory"][0]["url"] if checked["directory"] else "embedded:",
        http=_listen(checked["http"][0], 0, checker, folder, "http") if checked["http"] else None,
        http_origins=tuple(checked["http"][0]["origins"]) if checked["http"] else (),
        statistics_s=checked["events"][0]["statistics_s"] if checked["events"] else 10,
        log_level=checked["log"][0]["level"] if checked["log"] else None,
        tracing=_tracing(checked["tracing"][0], checker) if checked["tracing"] else None,
    )


def _tracing(row: dict[str, Any], checker: Checker) -> tuple[str, int]:
    if not row["endpoint"].startswith(("http://", "https://")):
        raise checker.error("endpoint must begin with http:// or https://", "tracing", 0, "endpoint")
    return row["endpoint"], row["one_in"]


def _listen(row: dict[str, Any], index: int, checker: Checker, folder: Path, table: str = "listen") -> Listen:
    certificate, key = row["tls_cert"], row["tls_key"]
    if (certificate is None) != (key is None):
        raise checker.error("tls_cert and tls_key need each other", table, index)
    authorities = row.get("tls_ca")
    if authorities is not None and certificate is None:
        raise checker.error("tls_ca needs tls_cert and tls_key", table, index)
    port = PORT_HTTP if table == "http" else PORT if certificate is None else PORT_TLS
    try:
        endpoint = parse_endpoint(row["address"], port)
    except ConfigError as error:
        raise checker.error(str(error), table, index, "address") from None
    files = (None if name is None else folder / name for name in (certificate, key, authorities))
    return Listen(endpoint, *files)


def _user(row: dict[str, Any], index: int, checker: Checker) -> User:
    if (row["password"] is None) == (row["password_hash"] is None):
        raise checker.error(f"user {row['name']!r} needs either password or password_hash", "users", index)
    return User(row["name"], row["password"], row["password_hash"], tuple(row["tags"]))


def _check_names(
    users: tuple[User, ...],
    vhosts: tuple[str, ...],
    permissions: tuple[Permission, ...],
    settings: Settings,
    checker: Checker,
) -> None:
    known_users = [user.name for user in users]
    for index, name in enumerate(known_users):
        if name in known_users[:index]:
            raise checker.error(f"user {name!r} is there twice", "users", index)
    known_users += ["guest"] if settings.guest or settings.anonymous else []
    for index, permission in enumerate(permissions):
        if permission.user not in known_users:
            hint = nearest(permission.user, known_users) if known_users else "there are no users"
            raise checker.error(f"no user {permission.user!r}, {hint}", "permissions", index, "user")
        if permission.vhost not in ("/", *vhosts):
            hint = nearest(permission.vhost, ("/", *vhosts))
            raise checker.error(f"no virtual host {permission.vhost!r}, {hint}", "permissions", index, "vhost")
        for operation in ("configure", "write", "read"):
            _check_pattern(getattr(permission, operation), checker, "permissions", index, operation)


def _check_policies(policies: tuple[Policy, ...], vhosts: tuple[str, ...], checker: Checker) -> None:
    for index, policy in enumerate(policies):
        if policy.vhost not in ("/", *vhosts):
            hint = nearest(policy.vhost, ("/", *vhosts))
            raise checker.error(f"no virtual host {policy.vhost!r}, {hint}", "policies", index, "vhost")
        _check_pattern(policy.pattern, checker, "policies", index, "pattern")


def _check_pattern(text: str, checker: Checker, table: str, index: int, key: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise checker.error(f"{key} is not a regular expression: {error}", table, index, key) from None
