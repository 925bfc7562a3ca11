"""A configuration file, checked by all who will read a part of it, before anything is started or changed.

Owns which part of a node each table is shown to. A file comes in; a `Configuration` goes out, or a `ConfigError` with
the line it is about: `weft up`, its reload and `weft config --check` say the same.
It must never open a socket or a data folder, nor reach another node.
Rule: what the schema itself can say is checked in `weft.config`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from weft.broker.policies import check_policy
from weft.config import Configuration
from weft.config.load import Checker, Listen, parse
from weft.directory import open_directory
from weft.federation import link_of, route_of
from weft.model import document
from weft.model.errors import ConfigError, Refused
from weft.net.tls import server_context
from weft.policy.passwords import check_hash
from weft.policy.users import check_name
from weft.store import ResourcePolicy

Part = tuple[str, int, str | None, Callable[[], object]]
"""Table, number in it, key if it is known, and what refuses it."""


def load_checked(path: Path) -> Configuration:
    """Read a file."""
    text = document.read(path)
    configuration = parse(text, str(path), path.parent)
    blame = Checker(text, str(path)).error
    for table, index, key, check in _parts(configuration):
        try:
            check()
        except (ConfigError, Refused) as error:
            raise blame(str(error), table, index, key) from None
    return configuration


def _parts(configuration: Configuration) -> Iterator[Part]:
    for index, place in enumerate(configuration.listen):
        yield "listen", index, "tls_cert", partial(_check_tls, place)
    if configuration.http is not None:
        yield "http", 0, "tls_cert", partial(_check_tls, configuration.http)
    for index, vhost in enumerate(configuration.vhosts):
        yield "vhosts", index, "name", partial(check_name, "virtual host", vhost)
    for index, user in enumerate(configuration.users):
        yield "users", index, "name", partial(check_name, "user", user.name)
        if user.password_hash is not None:
            yield "users", index, "password_hash", partial(check_hash, user.password_hash)
    for index, policy in enumerate(configuration.policies):
        yield "policies", index, "definition", partial(check_policy, ResourcePolicy(**asdict(policy)))
    for index, link in enumerate(configuration.links):
        yield "links", index, None, partial(link_of, link)
    for index, route in enumerate(configuration.routes):
        yield "routes", index, None, partial(route_of, route)
    yield "directory", 0, "url", partial(open_directory, configuration.directory_url, "node")


def _check_tls(place: Listen) -> None:
    if place.tls_cert is not None and place.tls_key is not None:
        server_context(place.tls_cert, place.tls_key, place.tls_ca)
