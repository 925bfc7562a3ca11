"""Policies: which of them applies to a queue or an exchange, and what the kernel is told then.

Owns the keys of a definition, their checks, and the rules by which policies of both kinds and arguments come together.
Records come in as they are set and cleared; the arguments that a queue or an exchange effectively has go out.
It must not store, and not know the kernel: a definition becomes arguments, and `arguments` makes rows of those.
Rule: RabbitMQ's policies (docs/guides/policies.md). One policy and one operator policy apply, those of the highest
priority; of two numbers the smaller counts; an argument wins over a policy where it is not a bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TypeVar

from weft.broker import streams
from weft.broker.arguments import (
    ALTERNATE_EXCHANGE,
    DEAD_LETTER_EXCHANGE,
    DEAD_LETTER_KEY,
    QUEUE_ARGUMENTS,
    QUEUE_TYPE,
    type_name,
)
from weft.broker.barriers import BARRIER, IDS_MAX, MISSING, WINDOW, complain
from weft.model.errors import Refused
from weft.model.events import Table
from weft.store import Exchange, Queue, ResourcePolicy

PRIORITY_MAX = 2**31 - 1
NAME_BYTES_MAX = 255
POLICIES_MAX = 1_000
"""In one virtual host: each is tried against the name of every queue that is made."""
APPLY_TO = ("all", "exchanges", "queues", "classic_queues", "quorum_queues", "streams")
_TYPES = {"classic": "classic_queues", "quorum": "quorum_queues", streams.STREAM: "streams"}

BOUNDS = ("expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit", "max-age")
"""Of two values the one that keeps less counts."""
_OF_QUEUES = {
    **{name: f"x-{name}" for name in BOUNDS},
    "overflow": "x-overflow",
    "dead-letter-exchange": DEAD_LETTER_EXCHANGE,
    "dead-letter-routing-key": DEAD_LETTER_KEY,
    "durability": "x-durability",
    "ack": "x-ack",
}
_OF_BOTH = {name.removeprefix("x-"): name for name in (BARRIER, WINDOW, IDS_MAX, MISSING, streams.TAP)}
_OF_EXCHANGES = {"alternate-exchange": ALTERNATE_EXCHANGE}
ARGUMENTS = _OF_QUEUES | _OF_BOTH | _OF_EXCHANGES
"""The argument that each key of a definition stands for."""
TARGET = "target"
"""The link over which messages go on. It is no argument: what follows it is not the kernel's (`weft.network`)."""
OPERATOR_KEYS = ("expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit", "overflow")
IGNORED = frozenset(
    {
        "consumer-timeout",
        "dead-letter-strategy",
        "federation-upstream",
        "federation-upstream-pattern",
        "federation-upstream-set",
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "initial-cluster-size",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "message-interceptors",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "stream-filter-size-bytes",
        "stream-max-segment-size-bytes",
        "target-group-size",
    }
)
"""RabbitMQ's keys that mean nothing here: kept, so that its definitions can be taken over and given back."""
_NOT_FOR_STREAMS = frozenset(name.removeprefix("x-") for name in streams.FOREIGN)
_FOR_STREAMS = frozenset({"max-age"})

Compile = Callable[[str], re.Pattern[str]]
_Object = TypeVar("_Object", Queue, Exchange)


@dataclass(frozen=True, slots=True)
class Applied:
    """What applies to one queue or exchange."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Table = field(default_factory=dict)
    """Both, merged."""


NOTHING = Applied()


def check_policy(policy: ResourcePolicy) -> None:
    """Refuse a policy that does not make sense."""
    if not 0 < len(policy.name.encode()) <= NAME_BYTES_MAX:
        raise _wrong("name", f"must have 1 to {NAME_BYTES_MAX} bytes")
    if policy.apply_to not in APPLY_TO:
        raise _wrong("apply-to", f"is one of {', '.join(APPLY_TO)}")
    if abs(policy.priority) > PRIORITY_MAX:
        raise _wrong("priority", f"must be within {PRIORITY_MAX} of 0")
    if not policy.definition:
        raise _wrong("definition", "must not be empty")
    for key in policy.definition:
        if policy.operator and key not in OPERATOR_KEYS and key not in IGNORED:
            raise _wrong(f"'{key}'", f"cannot be set by an operator policy; those set {', '.join(OPERATOR_KEYS)}")
        if key not in ARGUMENTS and key not in IGNORED and key != TARGET:
            known = [*ARGUMENTS, TARGET]
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(known)}"
            raise _wrong(f"'{key}'", f"is no key of a definition; {hint}")
    target = policy.definition.get(TARGET, "")
    if not isinstance(target, str):
        raise _wrong(f"'{TARGET}'", f"expected the name of a link, got {type_name(target)}")
    if complaint := _complaint({ARGUMENTS[key]: value for key, value in policy.definition.items() if key in ARGUMENTS}):
        raise _wrong(f"'{complaint[0].removeprefix('x-')}'", complaint[1])


def _complaint(arguments: Table) -> tuple[str, str] | None:
    """The first value that is wrong, and why."""
    for name, value in arguments.items():
        known = QUEUE_ARGUMENTS.get(name)
        if known is not None and (wrong := known.check(value)):
            return name, wrong
        if name in (ALTERNATE_EXCHANGE, streams.TAP) and not isinstance(value, str):
            return name, f"expected text, got {type_name(value)}"
    age = {name: value for name, value in arguments.items() if name == streams.MAX_AGE}
    return streams.complaint(age) or complain(arguments)


def _wrong(what: str, text: str) -> Refused:
    return Refused(f"Validation failed: {what} {text}", 400)


def compile_policy(compile_pattern: Compile, policy: ResourcePolicy) -> re.Pattern[str]:
    """Its pattern; here, unlike in permissions, the empty one matches everything."""
    return compile_pattern(policy.pattern or ".*")


class Policies:
    """Every policy of one virtual host."""

    def __init__(self, compile_pattern: Compile) -> None:
        self._compile = compile_pattern
        self._ranked: dict[bool, list[tuple[ResourcePolicy, re.Pattern[str]]]] = {False: [], True: []}

    def copy(self) -> Policies:
        """The same policies, whatever becomes of these."""
        other = Policies(self._compile)
        other._ranked = {operator: list(ranked) for operator, ranked in self._ranked.items()}
        return other

    def __iter__(self) -> Iterator[ResourcePolicy]:
        return (policy for ranked in self._ranked.values() for policy, _ in ranked)

    def get(self, name: str, *, operator: bool) -> ResourcePolicy | None:
        """The policy of this name."""
        return next((policy for policy, _ in self._ranked[operator] if policy.name == name), None)

    def check_count(self, policy: ResourcePolicy) -> None:
        """Refuse one policy too many."""
        is_new = self.get(policy.name, operator=policy.operator) is None
        if is_new and len(self._ranked[policy.operator]) >= POLICIES_MAX:
            raise Refused(f"virtual host '{policy.vhost}' has {POLICIES_MAX} policies already", 409)

    def put(self, policy: ResourcePolicy) -> None:
        """Set a policy, or replace it."""
        pattern = compile_policy(self._compile, policy)
        self.remove(policy)
        ranked = self._ranked[policy.operator]
        ranked.append((policy, pattern))
        ranked.sort(key=lambda entry: (-entry[0].priority, entry[0].name))

    def remove(self, policy: ResourcePolicy) -> None:
        """Forget a policy, if it is there."""
        ranked = self._ranked[policy.operator]
        ranked[:] = [entry for entry in ranked if entry[0].name != policy.name]

    def applied(self, to: Queue | Exchange) -> Applied:
        """What applies to a queue or an exchange."""
        own, operator = self._best(to, operator=False), self._best(to, operator=True)
        if own is None and operator is None:
            return NOTHING
        names = None if own is None else own.name, None if operator is None else operator.name
        return Applied(*names, _merged(own, operator))

    def _best(self, to: Queue | Exchange, *, operator: bool) -> ResourcePolicy | None:
        for policy, pattern in self._ranked[operator]:
            if _is_for(policy, to) and pattern.search(to.name):
                return policy
        return None


def _is_for(policy: ResourcePolicy, to: Queue | Exchange) -> bool:
    """Is it for objects of this type, and has the type everything that it sets?"""
    if isinstance(to, Exchange):
        return policy.apply_to in ("all", "exchanges")
    type_ = str(to.arguments.get(QUEUE_TYPE, "classic"))
    if policy.apply_to not in ("all", "queues", _TYPES.get(type_)):
        return False
    return (_NOT_FOR_STREAMS if type_ == streams.STREAM else _FOR_STREAMS).isdisjoint(policy.definition)


def _merged(own: ResourcePolicy | None, operator: ResourcePolicy | None) -> Table:
    """Of both definitions: the smaller of two numbers, else the operator's word."""
    merged = dict(own.definition) if own else {}
    for key, value in operator.definition.items() if operator else ():
        merged[key] = _lesser(key, merged[key], value) if key in merged and key in BOUNDS else value
    return merged


def effective(to: _Object, applied: Applied) -> _Object:
    """The same with the arguments that it effectively has."""
    if not applied.definition:
        return to
    keys = (_OF_EXCHANGES if isinstance(to, Exchange) else _OF_QUEUES) | _OF_BOTH
    arguments = dict(to.arguments)
    for key, value in applied.definition.items():
        name = keys.get(key)
        if name is None or (name == streams.TAP and value == to.name) or _has_barrier(key, to.arguments):
            continue
        if name not in arguments:
            arguments[name] = value
        elif key in BOUNDS:
            arguments[name] = _lesser(key, arguments[name], value)
    return replace(to, arguments=arguments)


def _has_barrier(key: str, arguments: Mapping[str, object]) -> bool:
    """A barrier of its own is not mixed with one of a policy."""
    return key.startswith("barrier") and BARRIER in arguments


def _lesser(key: str, one: object, other: object) -> object:
    """The bound that keeps less; a limit of deliveries below 0 is none."""
    if key == "max-age":
        return min(str(one), str(other), key=lambda age: streams.age_ms(age) or 0)
    if not isinstance(one, int) or not isinstance(other, int):
        return one
    return max(one, other) if min(one, other) < 0 else min(one, other)
