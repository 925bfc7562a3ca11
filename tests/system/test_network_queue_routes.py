"""Queue routes under load: whoever dies, every confirmed message is worked on, once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pika
import pytest

from system.fabrics import Fabric, until

COUNT = 1_500


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["gateway", "remote1"])
def test_nothing_is_lost_or_doubled(tmp_path: Path, victim: str) -> None:
    with Fabric(tmp_path) as fabric:
        for name in ("gateway", "remote1", "remote2"):
            fabric.add(name)
        fabric.channel("gateway").queue_declare("requests", durable=True)
        for name in ("remote1", "remote2"):
            fabric.channel(name).queue_declare("work", durable=True)
            url = fabric.url(name)
            fabric.command(f"weft link --url {url} add up {fabric.url('gateway')} --retry-max-s 1")
            fabric.command(f"weft route --url {url} add queue up --queue requests --key work --credit 100")
            fabric.until_flowing(name)

        sent: list[int] = []

        def publish() -> None:
            number = 0
            while number < COUNT:
                try:
                    channel = fabric.channel("gateway", confirms=True)
                    while number < COUNT:
                        channel.basic_publish("", "requests", str(number), pika.BasicProperties(delivery_mode=2))
                        sent.append(number)
                        number += 1
                except (pika.exceptions.AMQPError, OSError):
                    number += 1  # not confirmed, so nothing is promised about it

        publisher = threading.Thread(target=publish)
        publisher.start()
        until(lambda: len(sent) > COUNT // 3)
        fabric.kill(victim)
        fabric.restart(victim)
        publisher.join(60)
        assert not publisher.is_alive()
        seen: Counter[int] = Counter()
        channels = [fabric.channel(name) for name in ("remote1", "remote2")]

        def drain() -> bool:
            for channel in channels:
                while (got := channel.basic_get("work", auto_ack=True))[0] is not None:
                    seen[int(got[2])] += 1
            return set(sent) <= set(seen)

        until(drain, 60)
        assert {number: count for number, count in seen.items() if count > 1} == {}
