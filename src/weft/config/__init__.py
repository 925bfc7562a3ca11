"""The configuration of a node: a TOML file with a documented schema, read into frozen values.

Owns the file format: which keys there are (`schema`, generated from schema/management.json), how a file is read and
what is wrong with it (`load`). Text comes in, a `Configuration` goes out, or a `ConfigError` that says what is wrong
and in which line.
It must never act on what it reads.
The reference page is docs/reference/configuration.md.
"""

from weft.config.load import (
    Configuration,
    Listen,
    Permission,
    Settings,
    User,
    load,
    node_name_default,
    parse,
    validate_node_name,
)

__all__ = [
    "Configuration",
    "Listen",
    "Permission",
    "Settings",
    "User",
    "load",
    "node_name_default",
    "parse",
    "validate_node_name",
]
