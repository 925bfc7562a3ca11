"""The synchronous face: made from the asynchronous one, and usable from many threads at once."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import peers
import weft
from house import tree
from weft.client import Message, sync


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    peer = peers.start_weft(tmp_path_factory.mktemp("node"))
    yield f"amqp://127.0.0.1:{peer.port}"
    peer.stop()


@pytest.fixture
def fabric(url: str) -> Iterator[sync.Fabric]:
    with sync.connect(url, timeout_s=10) as fabric:
        yield fabric


def test_it_is_what_the_tool_makes() -> None:
    tool = [sys.executable, str(tree.ROOT / "tools" / "unasync.py"), "--check"]
    ran = subprocess.run(tool, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_examples_in_docstrings_of_both_faces(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import weft.client.fabric
    import weft.client.sync.fabric

    monkeypatch.setenv("WEFT_URL", url)
    names = {"asyncio": asyncio, "weft": weft, "sync": sync}
    for module in (weft.client.fabric, weft.client.sync.fabric):
        found = doctest.testmod(module, extraglobs=names)
        assert found.attempted == 6
        assert found.failed == 0


def test_it_has_the_same_names() -> None:
    import weft.client

    assert sync.__all__ == weft.client.__all__
    for name in ("send", "receive", "publish", "subscribe", "request", "service", "pipeline", "stream", "session"):
        assert hasattr(sync.Fabric, name)


def test_messages_and_topics(fabric: sync.Fabric) -> None:
    fabric.send("sync", {"n": 1})
    with fabric.receive("sync") as messages:
        assert next(messages).body == {"n": 1}
    with fabric.subscribe("sync.#") as topics:
        fabric.publish("sync.a", "A")
        assert next(topics).body == "A"
        assert topics.next(0.05) is None


@pytest.mark.slow
def test_a_hundred_threads_ask_a_hundred_times_each(fabric: sync.Fabric, url: str) -> None:
    with sync.connect(url) as server:

        @server.service("square", concurrency=8)
        def square(request: Message) -> int:
            return int(request.body) ** 2

        square.start()

        def ask(thread: int) -> bool:
            numbers = range(thread * 100, thread * 100 + 100)
            return all(fabric.request("square", number, timeout_s=30).body == number**2 for number in numbers)

        with ThreadPoolExecutor(100) as pool:
            assert all(pool.map(ask, range(100)))
        assert square.served == 10_000
        square.stop()


def test_threads_send_and_receive_at_the_same_time(fabric: sync.Fabric) -> None:
    total = 400
    seen: list[int] = []
    lock = threading.Lock()

    def receive() -> None:
        with fabric.receive("threads", credit=10) as messages:
            while len(seen) < total:
                if (message := messages.next(0.1)) is not None:
                    with lock:
                        seen.append(message.body)

    with ThreadPoolExecutor(8) as pool:
        receivers = [pool.submit(receive) for _ in range(4)]
        list(pool.map(lambda number: fabric.send("threads", number), range(total)))
        for receiver in receivers:
            receiver.result()
    assert sorted(seen) == list(range(total))


def test_errors_are_raised_in_the_thread_that_asked(fabric: sync.Fabric) -> None:
    with pytest.raises(weft.DeadlineExceeded):
        fabric.request("nobody-there", b"", timeout_s=0.2)
    with pytest.raises(weft.Undelivered):
        fabric.send("/exchanges/amq.direct/nowhere", b"")
    with pytest.raises(weft.Unavailable):
        sync.connect("amqp://127.0.0.1:1", timeout_s=0.2).open()


def test_a_transaction(fabric: sync.Fabric) -> None:
    with fabric.session() as session:
        sender = session.sender("sync-transaction").ready()
        with session.transaction() as transaction:
            transaction.send(sender, "a", "b")
        with fabric.receive("sync-transaction") as messages:
            assert [next(messages).data for _ in range(2)] == [b"a", b"b"]


@pytest.fixture(scope="module")
def other_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    peer = peers.start_weft(tmp_path_factory.mktemp("other"))
    yield f"amqp://127.0.0.1:{peer.port}"
    peer.stop()


def test_a_transaction_over_two_nodes(fabric: sync.Fabric, other_url: str) -> None:
    with sync.connect(other_url, timeout_s=10) as store, sync.distributed("sync", fabric, store) as both:
        fabric.send_many("both.orders", ["one", "two"])
        orders = both.session(fabric).receiver("both.orders", window=10)
        shipments = both.session(store).sender("both.shipments")
        with both.transaction() as work:
            work[fabric].accept(next(orders))
            work[store].send(shipments, "one", durable=True)
        refused = next(orders)
        with contextlib.suppress(ZeroDivisionError), both.transaction() as work:
            work[fabric].accept(refused)
            work[store].send(shipments, "two", durable=True)
            raise ZeroDivisionError
        orders.close()
        with store.receive("both.shipments") as shipped, fabric.receive("both.orders") as left:
            assert next(shipped).data == b"one"
            assert next(left).data == b"two"
            assert shipped.next(0.05) is None
            assert left.next(0.05) is None
        assert both.recover() == {}
        with pytest.raises(weft.Refused, match="exclusive"):
            sync.distributed("sync", fabric, store).open()


def test_nothing_hangs_when_the_interpreter_ends(url: str) -> None:
    program = f"""
        from weft.client import sync
        fabric = sync.connect({url!r}).open()
        class Late:
            def __del__(self):
                try:
                    fabric.send("late", 1)
                except Exception as error:
                    print(error, flush=True)
        late = Late()
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=25)
    assert ran.returncode == 0, ran.stderr
    assert "the interpreter is ending" in ran.stdout
