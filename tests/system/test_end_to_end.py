"""End-to-end acknowledgement over three hops, of four nodes: what the last receiver says is what the sender hears."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import weft
from system.fabrics import Fabric
from weft.client import Message
from weft.model.errors import Undelivered

WAIT_S = 60.0
END_TO_END = {"x-ack": "end-to-end"}


LINKED = """
[[links]]
name = "up"
urls = ["{url}"]
retry_max_s = 1
[[routes]]
link = "up"
kind = "queue"
queue = "jobs"
key = "jobs"
credit = 100
"""


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    """Nodes in a row, each of which drains the queue `jobs` of the one before it into its own."""
    folder = tmp_path_factory.mktemp("row")
    with Fabric(folder) as fabric:
        before = ""
        for name in ("first", "middle", "next", "last"):
            file = folder / f"{name}.toml"
            file.write_text(LINKED.format(url=fabric.url(before)) if before else "")
            fabric.add(name, "--config", str(file))
            fabric.channel(name).queue_declare("jobs", durable=True, arguments=END_TO_END)
            before = name
        yield fabric


OUTCOMES: dict[str, Callable[[Message], None]] = {
    "accepted": Message.accept,
    "released": Message.release,
    "modified": Message.retry,
    "rejected": lambda message: message.reject("wrong colour"),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_sender_hears_what_the_last_receiver_says(row: Fabric, outcome: str) -> None:
    async def run() -> None:
        async with weft.connect(row.url("first")) as sender, weft.connect(row.url("last")) as receiver:
            sending = asyncio.ensure_future(sender.send("jobs", b"paint it red", timeout_s=WAIT_S))
            async with receiver.receive("jobs", accept="explicit", timeout_s=WAIT_S) as messages:
                message = await anext(messages)
                assert message.data == b"paint it red"
                assert not sending.done(), "it is there, and nobody has taken it"
                OUTCOMES[outcome](message)
                if outcome == "accepted":
                    await sending
                    return
                with pytest.raises(Undelivered) as caught:
                    await sending
                assert caught.value.outcome == outcome
                assert ("wrong colour" in str(caught.value)) == (outcome == "rejected")

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))


def test_a_middle_that_is_killed_leaves_the_outcome_open_and_loses_nothing(row: Fabric) -> None:
    seen: Counter[bytes] = Counter()
    bodies = [b"%d" % number for number in range(40)]

    async def run() -> None:
        async with weft.connect(row.url("first")) as sender, weft.connect(row.url("last")) as receiver:
            sends = [asyncio.ensure_future(sender.send("jobs", body, timeout_s=WAIT_S)) for body in bodies]
            async with receiver.receive("jobs", accept="explicit", credit=10, timeout_s=WAIT_S) as messages:
                held = [await anext(messages) for _ in range(10)]
                seen.update(message.data for message in held)
                row.kill("middle")
                # Nobody between here and the sender hears of these.
                for message in held:
                    message.accept()
                row.restart("middle")
                while len(seen) < len(bodies):
                    message = await anext(messages)
                    seen[message.data] += 1
                    message.accept()
                await asyncio.gather(*sends)

    asyncio.run(asyncio.wait_for(run(), 2 * WAIT_S))
    assert seen == dict.fromkeys(bodies, 1), "the last node knew again what the middle had to send twice"
