"""Taking out of a running fabric what its file does not name any more.

Owns the last part of `weft fabric apply --prune`: to wait until new routes carry, then to remove, a route only when
nothing waits for it. Steps come in, words and an exit code go out.
It must never take away a route for which messages wait since before that, unless it is forced to: they go with its
queue. Those that came later go by the new ways too.
Rule: docs/reference/fabric.md; what is surplus says `weft.fabric.diff`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from weft.client import connect
from weft.client.management import Management
from weft.fabric import Fabric, Member
from weft.fabric.diff import Step
from weft.federation.bridges import bridge_name, pushed_bridge_name
from weft.model.errors import Refused, Unavailable

TIMEOUT_S = 10.0
PATIENCE_S = 10.0
"""How long is waited for new routes to carry, and for old ones to have carried what they had."""
PAUSE_S = 0.1
REST_S = 1.0
"""Longer than messages are on their way between two nodes."""


async def until_flowing(made: Sequence[tuple[Member, str]]) -> bool:
    """Wait until these routes carry; False if some do not after a while, since a node is away, say."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for url in {member.url for member, _ in made}:
                wanted = {name for member, name in made if member.url == url}
                while await _states(url, wanted) - {"flowing"}:  # noqa: ASYNC110 - a node tells when it is asked
                    await asyncio.sleep(PAUSE_S)
    except (TimeoutError, Unavailable, Refused):
        return False
    return True


async def _states(url: str, names: set[str]) -> set[str]:
    async with connect(url, timeout_s=TIMEOUT_S) as client:
        rows = await Management(client, timeout_s=TIMEOUT_S).query("route")
    return {str(row["state"]) for row in rows if row["name"] in names}


async def remove(fabric: Fabric, surplus: Sequence[tuple[Member, Step]], *, force: bool) -> int:
    """Remove what is to go, in order; the exit code."""
    code = 0
    since = time.monotonic()
    await asyncio.sleep(REST_S)
    for name in dict.fromkeys(member.name for member, _ in surplus):
        member = fabric.members[name]
        steps = [step for owner, step in surplus if owner.name == name]
        try:
            async with connect(member.url, timeout_s=TIMEOUT_S) as client:
                management = Management(client, timeout_s=TIMEOUT_S)
                for step in steps:
                    code |= await _remove(fabric, management, member, step, None if force else since)
        except Unavailable as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 1
    return code


async def _remove(fabric: Fabric, management: Management, member: Member, step: Step, since: float | None) -> int:
    held = 0 if since is None or step.kind != "route" else await _settle(fabric, management, member, step.name, since)
    if held:
        print(f"{member.name}\n    ! route {step.name}  ({held} messages wait for it; --force drops them)")
        return 1
    try:
        await management.delete(step.kind, step.name)
    except Refused as error:
        print(f"{member.name}: {error}", file=sys.stderr)
        return 1
    return 0


async def _settle(fabric: Fabric, management: Management, member: Member, route: str, since: float) -> int:
    """How many messages still wait for a route, after a while, that waited before a moment."""
    row = await management.find("route", route)
    if row is None or row["kind"] == "queue":
        return 0  # its messages are in a queue of somebody's own
    held = await _waiting(fabric, management, member, row, since)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while held:
                await asyncio.sleep(PAUSE_S)
                held = await _waiting(fabric, management, member, row, since)
    except TimeoutError:
        return held
    return 0


async def _waiting(fabric: Fabric, management: Management, member: Member, row: Mapping[str, Any], since: float) -> int:
    """Messages in the queue of a route, which is at its source."""
    if row["direction"] == "push":
        name = pushed_bridge_name if row["kind"] == "dynamic" else bridge_name
        return await _held(management, name(member.name, str(row["name"])), since)
    source = fabric.members.get(str(row["peer"] or ""))
    if source is None or source.is_foreign:
        return 0
    try:
        async with connect(source.url, timeout_s=TIMEOUT_S) as client:
            there = Management(client, timeout_s=TIMEOUT_S)
            return await _held(there, bridge_name(member.name, str(row["name"])), since)
    except Unavailable:
        return 0  # nothing is taken away from a node that cannot be reached


async def _held(management: Management, queue: str, since: float) -> int:
    row = await management.find("queue", queue)
    if row is None or int(row.get("oldest_ms") or 0) < (time.monotonic() - since) * 1_000:
        return 0
    return int(row.get("ready") or 0) + int(row.get("unsettled") or 0)
