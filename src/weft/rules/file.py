"""The rule file: TOML in, rules and the settings of actions out.

Owns the format and every complaint about it, as `FILE: section: what is wrong`.
It must never act, or check whether an action could succeed.
Rule: docs/guides/rules.md, "The file".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.model import document
from weft.model.errors import ConfigError
from weft.rules.rule import SEVERITIES, Rule

INTERVAL_S = 5.0
INTERVAL_S_MIN = 0.1

KINDS_OF_ACTION: Mapping[str, frozenset[str]] = {
    "log": frozenset({"file"}),
    "event": frozenset(),
    "snmp": frozenset({"target", "community", "oid"}),
    "nagios": frozenset({"file", "host", "service"}),
    "webhook": frozenset({"url", "timeout_s"}),
    "command": frozenset({"run", "timeout_s"}),
    "restart": frozenset({"run", "timeout_s"}),
    "scale": frozenset({"service", "add", "address"}),
}
_REQUIRED = {"snmp": ("target",), "nagios": ("file",), "webhook": ("url",), "command": ("run",), "restart": ("run",)}
_RULE_KEYS = {
    "class": str,
    "object": str,
    "attribute": str,
    "above": float,
    "below": float,
    "clear": float,
    "rate": bool,
    "for_s": float,
    "event": str,
    "severity": str,
    "action": str,
}


@dataclass(frozen=True, slots=True)
class ActionSettings:
    """One action by name: its kind and what the kind needs."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """Everything a rule file says."""

    rules: tuple[Rule, ...]
    actions: Mapping[str, ActionSettings]
    interval_s: float = INTERVAL_S


def load(path: Path) -> RuleFile:
    """Read a file."""
    return parse(document.read(path), str(path))


def parse(text: str, origin: str = "rules") -> RuleFile:
    """Read a text; `origin` names it in complaints."""
    tables = document.parse(text, origin)
    unknown = tables.keys() - {"rules", "actions", "interval_s"}
    if unknown:
        raise ConfigError(f"{origin}: no such section: {', '.join(sorted(unknown))} (there are rules and actions)")
    actions = {name: ActionSettings(name, name) for name, needs in KINDS_OF_ACTION.items() if name not in _REQUIRED}
    for name, table in _tables(tables, "actions", origin).items():
        actions[name] = _action(name, table, f"{origin}: actions.{name}")
    rules = tuple(
        _rule(name, table, actions, f"{origin}: rules.{name}")
        for name, table in _tables(tables, "rules", origin).items()
    )
    if not rules:
        raise ConfigError(f"{origin}: no rules: write a section [rules.NAME] for each object to be watched")
    interval_s = tables.get("interval_s", INTERVAL_S)
    if isinstance(interval_s, bool) or not isinstance(interval_s, int | float) or interval_s < INTERVAL_S_MIN:
        raise ConfigError(f"{origin}: interval_s must be a number from {INTERVAL_S_MIN}")
    return RuleFile(rules, actions, float(interval_s))


def _tables(all_tables: Mapping[str, Any], name: str, origin: str) -> dict[str, dict[str, Any]]:
    tables = all_tables.get(name, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{origin}: {name} must be sections [{name}.NAME]")
    return tables


def _action(name: str, table: dict[str, Any], where: str) -> ActionSettings:
    kind = table.get("kind", name)
    if kind not in KINDS_OF_ACTION:
        raise ConfigError(f"{where}: kind must be one of {', '.join(KINDS_OF_ACTION)}")
    options = {key: value for key, value in table.items() if key != "kind"}
    unknown = options.keys() - KINDS_OF_ACTION[kind]
    if unknown:
        known = ", ".join(sorted(KINDS_OF_ACTION[kind])) or "none"
        raise ConfigError(f"{where}: no such key: {', '.join(sorted(unknown))} (a {kind} action has {known})")
    for key in _REQUIRED.get(kind, ()):
        if key not in options:
            raise ConfigError(f"{where}: a {kind} action needs {key}")
    for key, value in options.items():
        good = _OPTION_CHECKS.get(key, _is_text)(value)
        if not good:
            raise ConfigError(f"{where}: {key} {_OPTION_WORDS.get(key, 'must be a string')}")
    return ActionSettings(name, kind, options)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_words(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) for word in value)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 3_600


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -1_000 <= value <= 1_000


_OPTION_CHECKS = {"run": _is_words, "timeout_s": _is_seconds, "add": _is_step}
_OPTION_WORDS = {
    "run": "must be a list of strings: the program and its arguments",
    "timeout_s": "must be a number of seconds up to 3600",
    "add": "must be a whole number from -1000 to 1000",
}


def _rule(name: str, table: dict[str, Any], actions: Mapping[str, ActionSettings], where: str) -> Rule:
    unknown = table.keys() - _RULE_KEYS.keys()
    if unknown:
        known = ", ".join(_RULE_KEYS)
        raise ConfigError(f"{where}: no such key: {', '.join(sorted(unknown))} (a rule has {known})")
    values = {key: _typed(value, _RULE_KEYS[key], f"{where}: {key}") for key, value in table.items() if key != "action"}
    chosen = _chosen(table.get("action", "log"), actions, f"{where}: action")
    severity = values.get("severity", "warning")
    if severity not in SEVERITIES:
        raise ConfigError(f"{where}: severity must be one of {', '.join(SEVERITIES)}")
    thresholds = [key for key in ("above", "below") if key in values]
    if values.get("event"):
        if thresholds or "attribute" in values:
            raise ConfigError(f"{where}: either an event, or an attribute with a threshold")
    elif "attribute" not in values or len(thresholds) != 1:
        raise ConfigError(f"{where}: needs an attribute and one of above, below; or an event")
    rule = Rule(
        name,
        kind=values.pop("class", "queue"),
        # The section's own name is the object's, unless told otherwise: as in the talk.
        object=values.pop("object", "*" if values.get("event") else name),
        actions=chosen,
        **values,
    )
    _check_clear(rule, where)
    return rule


def _check_clear(rule: Rule, where: str) -> None:
    if rule.clear is not None and rule.is_passed(rule.clear):
        raise ConfigError(f"{where}: clear must lie on the other side of the threshold, else the alarm never ends")
    if rule.for_s < 0:
        raise ConfigError(f"{where}: for_s must not be negative")


def _chosen(value: object, actions: Mapping[str, ActionSettings], where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where}: must be the name of an action, or a list of them")
    for name in names:
        if name not in actions:
            need = f": write a section [actions.{name}]" if name in KINDS_OF_ACTION else ""
            raise ConfigError(f"{where}: there is no action {name!r}{need}")
    return tuple(names)


def _typed(value: object, kind: type, where: str) -> Any:
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is not float and isinstance(value, kind):
        return value
    words = {float: "a number", str: "a string", bool: "true or false"}[kind]
    raise ConfigError(f"{where} must be {words}")
