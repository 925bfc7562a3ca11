"""Distribution: readers of one queue share its messages, each as fast as it can, by its credit."""

import asyncio
from collections import Counter

import weft

JOBS = 40


async def work(node: weft.Node, name: str, pause_s: float, done: Counter[str]) -> None:
    """Takes one job at a time, and deletes the queue after the last, which ends everyone's loop."""
    async for message in node.receive("jobs", credit=1):
        await asyncio.sleep(pause_s)
        done[name] += 1
        message.accept()
        if done.total() == JOBS:
            node.delete_queue("jobs")


async def main() -> None:
    """A quick worker and a slow one."""
    async with weft.Node() as node:
        for number in range(JOBS):
            await node.send("jobs", str(number))
        done: Counter[str] = Counter()
        await asyncio.gather(work(node, "quick", 0.002, done), work(node, "slow", 0.02, done))
        print(f"quick did more than slow: {done['quick'] > done['slow']}, and together all {done.total()}")


asyncio.run(main())
