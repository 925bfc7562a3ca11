"""Many messages that must not get lost, ever, through a node that is killed again and again; and a few that may.

Owns the publisher, the kills and the audit. Numbers go by weft's own client into a queue that is `sync` and has a
barrier, and every tenth also into one that is `memory`; the node dies at random instants until all are confirmed, and
once more at the end. What the files hold then is counted without a node. It must never count by what a client
remembers of a queue. Run it with `make never-lost MESSAGES=1000000`. Rule: docs/guides/durability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import peers
import weft
from weft.log import open_log

from .living import LivingNode

KEPT, RISKED = "kept", "risked"
WINDOW = 3_000
"""Messages on their way at once: what the publisher must keep in doubt when the node dies."""
TOGETHER = 500
RISKED_EVERY = 10
SEND_TIMEOUT_S = 120.0
LIFE_S = (0.3, 2.5)
COLUMNS = ["body"]


@dataclass(frozen=True)
class Outcome:
    """What was confirmed, and what the files say of it."""

    confirmed: int
    kills: int
    lost: int
    twice: int
    risked: int
    """Messages of the other class that were confirmed, and of those the ones that are gone."""
    risked_lost: int

    @property
    def is_good(self) -> bool:
        return self.confirmed > 0 and self.kills > 0 and self.lost == self.twice == 0


class Run:
    """One node, one publisher, and the numbers it has been told are safe."""

    def __init__(self, folder: Path, messages: int, seed: int, life_s: tuple[float, float]) -> None:
        self._port = peers.free_port()
        self._node = LivingNode(folder, "--listen", f"{peers.HOST}:{self._port}")
        self._messages = messages
        self._dice = random.Random(seed)
        self._life_s = life_s
        self._next = 0
        self.confirmed = 0
        self.risked = 0
        self.kills = 0

    def declare(self) -> None:
        """A queue for each class."""
        channel = self._node.channel()
        barrier = {"x-barrier": "message-id", "x-barrier-ids-max": 10 * WINDOW}
        channel.queue_declare(KEPT, durable=True, arguments={"x-durability": "sync", **barrier})
        channel.queue_declare(RISKED, durable=True, arguments={"x-durability": "memory"})
        channel.connection.close()

    async def work(self) -> None:
        """Publish everything, and kill the node until that is done."""
        publishing = asyncio.create_task(self._publish())
        while not publishing.done():
            await asyncio.wait([publishing], timeout=self._dice.uniform(*self._life_s))
            self._kill()
        await publishing

    def _kill(self) -> None:
        self.kills += 1
        self._node.restart(kill=True)

    async def _publish(self) -> None:
        async with weft.connect(f"amqp://{peers.HOST}:{self._port}", window=WINDOW, timeout_s=SEND_TIMEOUT_S) as fabric:
            await asyncio.gather(*(self._send(fabric) for _ in range(WINDOW // TOGETHER)))

    async def _send(self, fabric: weft.Fabric) -> None:
        while (first := self._next) < self._messages:
            self._next = end = min(first + TOGETHER, self._messages)
            await fabric.send_many(KEPT, [b"%d" % number for number in range(first, end)], timeout_s=SEND_TIMEOUT_S)
            self.confirmed += end - first
            risked = [b"%d" % number for number in range(first, end, RISKED_EVERY)]
            await fabric.send_many(RISKED, risked, timeout_s=SEND_TIMEOUT_S)
            self.risked += len(risked)

    def audit(self) -> Outcome:
        """The node is dead: its files tell."""
        self._node.kill()
        kept, risked = (self._count(queue) for queue in (KEPT, RISKED))
        lost = self.confirmed - len(kept)
        twice = sum(count - 1 for count in kept.values())
        return Outcome(self.confirmed, self.kills + 1, lost, twice, self.risked, self.risked - len(risked))

    def _count(self, queue: str) -> Counter[int]:
        log = open_log(self._node.folder, "/", queue)
        batches = pa.RecordBatchReader.from_stream(log.read(*log.offsets(), COLUMNS))
        found: Counter[int] = Counter()
        for batch in batches:
            found.update(int(body) for body in batch.column("body").to_pylist())
        assert all(0 <= number < self._messages for number in found), "a number that nobody sent"
        return found

    def close(self) -> None:
        """Nothing is left running."""
        self._node.end()


def run(folder: Path, messages: int, seed: int, life_s: tuple[float, float] = LIFE_S) -> Outcome:
    """Publish so many, die meanwhile, and look."""
    one = Run(folder, messages, seed, life_s)
    try:
        one.declare()
        asyncio.run(one.work())
        return one.audit()
    finally:
        one.close()


def main(arguments: Sequence[str]) -> int:
    """The command behind `make never-lost`."""
    parser = argparse.ArgumentParser(prog="make never-lost", description="publish under kills, and count what is there")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args(arguments)
    print(f"{options.messages:,} messages, kills by SEED={options.seed}", flush=True)
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="never-lost-", ignore_cleanup_errors=True) as folder:
        outcome = run(Path(folder), options.messages, options.seed)
    took_s = time.monotonic() - begun_s
    print(f"{outcome.confirmed:,} confirmed in {took_s:.0f} s, killed {outcome.kills} times")
    print(f"sync, behind a barrier: lost {outcome.lost:,}, there twice {outcome.twice:,}")
    print(f"memory: {outcome.risked_lost:,} of {outcome.risked:,} lost, as such a queue may")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
