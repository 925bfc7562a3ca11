"""The exchanges that answers go to: made if they are not there, each with a barrier in front of it.

Owns their names and arguments, and how alerts come among a node's events. The URL of a node comes in; exchanges and one
binding are there afterwards, or a line says why not.
It must never change what an operator has made: an exchange that is there is used as it is. Nor must it need Spark,
since `weft scale` listens to one of them.
Rule: docs/guides/pipeline.md, "Answers".
"""

from __future__ import annotations

from collections.abc import Callable

from weft.client import connect
from weft.client.management import Management
from weft.model.errors import Refused

RESULTS, COMMANDS, ALERTS = "weft.results", "weft.commands", "weft.alerts"
EVENTS = "weft.events"
CONNECT_S = 30.0
WINDOW_MS = 25 * 60 * 60 * 1_000
"""A command or alert about an account has one id for a day, so the barrier remembers it for a day and a bit."""

DEFINITION: dict[str, object] = {
    "type": "topic",
    "durable": True,
    "arguments": {"x-barrier": "message-id", "x-barrier-window": WINDOW_MS},
}


async def prepare(url: str, say: Callable[[str], None]) -> None:
    """See that the exchanges are there; who may not make them is told, as somebody else may have."""
    async with connect(url, timeout_s=CONNECT_S) as fabric:
        management = Management(fabric)
        try:
            for name in (RESULTS, COMMANDS, ALERTS):
                await make(management, name, say)
            await _among_events(management, say)
        except Refused as refused:
            say(f"the exchanges for answers are left as they are: {refused}")


async def make(management: Management, name: str, say: Callable[[str], None]) -> None:
    """One exchange with a barrier; one that is there without is told."""
    found = await management.find("exchange", name)
    if found is None:
        await management.create("exchange", name, DEFINITION)
    elif not any("barrier" in key or "dedup" in key for key in found.get("arguments") or {}):
        say(f"the exchange {name} has no barrier (x-barrier: message-id): what is repeated after a crash comes twice")


async def _among_events(management: Management, say: Callable[[str], None]) -> None:
    if await management.find("exchange", EVENTS) is None:
        say(f"alerts go to {ALERTS} only: rules listen to {EVENTS}, which is in the virtual host /")
        return
    binding = {"source": ALERTS, "kind": "exchange", "destination": EVENTS, "routing_key": "#"}
    if not await management.query("binding", where=binding):
        await management.create("binding", "", binding)
