"""The broker every test of this tree talks to.

Owns the choice of broker: weft by default, real RabbitMQ with WEFT_TEST_BROKER=rabbitmq, or one that already runs
with WEFT_TEST_BROKER=amqp://host:port. Tests get a `Broker` (host, port, url) and cannot tell which one it is, which
is the point: behaviour that differs between the two is a defect of weft. Tests of what RabbitMQ 3.10 has not carry
the marker `weft_only` and are skipped there.

Owns too how hard properties are tried. A quick run is derandomised: it answers whether a change broke something, and
must answer the same twice. Looking for what nobody thought of is the work of WEFT_HYPOTHESIS=deep, whose finds become
tests in property/test_found.py.

Owns last how `make test` shares the tests between processes (pytest-xdist): the files of one go to whoever is free, and
Spark's tests stay together, since its session is the dearest thing that is started here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

import peers
from artemis import Artemis
from rabbit import RabbitMQ

# Whether examples are drawn quickly or are large says something of the machine and of chance, nothing of weft.
EXAMPLES = settings(deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.register_profile("quick", EXAMPLES, derandomize=True, max_examples=100, stateful_step_count=30)
settings.register_profile("deep", EXAMPLES, max_examples=3_000, stateful_step_count=80)
settings.load_profile(os.environ.get("WEFT_HYPOTHESIS", "quick"))

WHICH = os.environ.get("WEFT_TEST_BROKER", "weft")
SPARK = "tests/spark/"


@dataclass(frozen=True)
class Broker:
    """Where the broker under test is."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"


def pytest_configure() -> None:
    """In the background of a shell interrupts are ignored, and so would every program be that is tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):  # one of several processes: the longest company goes first
        items.sort(key=lambda item: not item.nodeid.startswith(SPARK))
    if WHICH == "weft":
        return
    skip = pytest.mark.skip(reason=f"weft only; running against {WHICH}")
    for item in items:
        if item.get_closest_marker("weft_only"):
            item.add_marker(skip)


class Companies(LoadScopeScheduling):
    """Which tests keep company in one process, one after the other: those of a file, and all of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return SPARK if file.startswith(SPARK) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Companies:
    config.option.loadscopereorder = False  # in the order of the collection, not by their numbers
    return Companies(config, log)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if WHICH.startswith("amqp://"):
        where = urlsplit(WHICH)
        yield Broker(where.hostname or "127.0.0.1", where.port or 5672)
        return
    folder = tmp_path_factory.mktemp("broker")
    peer = peers.start_rabbitmq(folder) if WHICH == "rabbitmq" else peers.start_weft(folder / "data")
    yield Broker(peer.host, peer.port)
    assert peer.stop() == 0, peer.output.text()


@pytest.fixture(scope="session")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """ActiveMQ Artemis, one for all tests: each uses addresses of its own, and one that kills it starts it again."""
    broker = Artemis(tmp_path_factory.mktemp("artemis"))
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if not peers.rabbitmq_installed():
        pytest.skip("RabbitMQ is not installed (apt-get install rabbitmq-server)")
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.kill()


@pytest.fixture
def rabbitmq(rabbitmq_server: RabbitMQ) -> RabbitMQ:
    """RabbitMQ as a new one is; one for all tests, beside the broker under test."""
    rabbitmq_server.reset()
    return rabbitmq_server
