"""Queue routes under load: whoever dies, every confirmed message is worked on, once. No two clocks agree."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pika
import pytest

from system.fabrics import Fabric, until

COUNT = 900
VICTIMS = ("gateway", "remote1")
REMOTES = ("remote1", "remote2")
WAIT_S = 60.0
CONFIG = """
[[links]]
name = "up"
urls = ["{gateway}"]
retry_max_s = 1
[[routes]]
link = "up"
kind = "queue"
queue = "requests"
key = "work"
credit = 100
"""


AHEAD_S = {"gateway": 10_800, "remote1": -7_200, "remote2": 3_600}
"""What the clock of each is ahead. That of the gateway is set back while it is dead. Set forward by hours, it would end
the time that messages on disk have to live: nobody can tell that from hours without power.
"""
CLOCK = """
import time
now_ns, now = time.time_ns, time.time
time.time_ns = lambda: now_ns() + {ahead_s} * 1_000_000_000
time.time = lambda: now() + {ahead_s}
"""
TTL_MS = 600_000


def clock(folder: Path, ahead_s: int) -> dict[str, str]:
    """The environment of a Python whose clock is wrong."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(CLOCK.format(ahead_s=ahead_s))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


class Requests(threading.Thread):
    """Publishes numbers with confirms, whatever becomes of the gateway."""

    def __init__(self, fabric: Fabric) -> None:
        super().__init__(daemon=True)
        self._fabric = fabric
        self.confirmed: list[int] = []
        self.number = 0

    def run(self) -> None:
        properties = pika.BasicProperties(delivery_mode=2, expiration=str(TTL_MS))
        while self.number < COUNT:
            try:
                channel = self._fabric.channel("gateway", confirms=True)
                while self.number < COUNT:
                    body, self.number = self.number, self.number + 1  # without a confirm nothing is promised about it
                    channel.basic_publish("", "requests", str(body), properties)
                    self.confirmed.append(body)
            except (pika.exceptions.AMQPError, OSError):
                continue


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with Fabric(tmp_path) as fabric:
        clocks = {name: clock(tmp_path / f"clock-{name}", ahead_s) for name, ahead_s in AHEAD_S.items()}
        fabric.add("gateway", env=clocks["gateway"])
        fabric.channel("gateway").queue_declare("requests", durable=True)
        config = tmp_path / "remote.toml"
        config.write_text(CONFIG.format(gateway=fabric.url("gateway")))
        for name in REMOTES:
            fabric.add(name, "--config", str(config), env=clocks[name])
            fabric.channel(name).queue_declare("work", durable=True)
        requests = Requests(fabric)
        requests.start()
        for at, victim in enumerate(VICTIMS, 1):
            until(lambda at=at: requests.number > at * COUNT // 3, WAIT_S)
            fabric.kill(victim)
            fabric.restart(victim, env=None if victim == "gateway" else clocks[victim])
        requests.join(WAIT_S)
        assert not requests.is_alive()
        seen: Counter[int] = Counter()
        channels = [fabric.channel(name) for name in REMOTES]

        def drain() -> bool:
            for channel in channels:
                while (got := channel.basic_get("work", auto_ack=True))[0] is not None:
                    seen[int(got[2])] += 1
            return set(requests.confirmed) <= set(seen)

        until(drain, WAIT_S)
        assert {number: count for number, count in seen.items() if count > 1} == {}
