"""Kombu and Celery as they come: a real worker in its own process, tasks, retries, results, remote control.

Owns the path Python's task queues take: py-amqp underneath, kombu's quality-of-service choices (which follow the
server's product name), Celery's reply queues, fanout control and prefetch changes on live consumers. The worker runs
`celery_tasks`. Results travel over rpc://; chords, which need a shared store, have a worker that keeps them in files.
The node of these tests is their own: the last thing they do is to kill it. Rules: Celery's and kombu's documentation.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from conftest import WHICH
from peers import Peer, start_weft

Name = Callable[..., str]
RESULT_TIMEOUT_S = 20
RETURN_TIMEOUT_S = 60.0
# py-amqp leaves a socket to the garbage collector when a pool is reset; that is not what is tested here
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("celery")


@pytest.fixture(scope="module")
def broker(broker: Any, folder: Path) -> Iterator[Any]:
    """A node of their own, where it is weft that is tested."""
    if WHICH != "weft":
        yield broker
        return
    node = start_weft(folder / "data")
    yield node
    node.stop()


@pytest.fixture
def kombu_connection(broker: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(broker.url) as connection:
        yield connection


def test_kombu_simple_queue(kombu_connection: kombu.Connection, name: Name) -> None:
    with contextlib.closing(kombu_connection.SimpleQueue(name())) as simple:
        for number in range(10):
            simple.put({"number": number}, compression="zlib" if number % 2 else None)
        for number in range(10):
            message = simple.get(timeout=30)
            assert message.payload == {"number": number}
            message.ack()
        with pytest.raises(queue.Empty):
            simple.get(block=False)
    kombu_connection.default_channel.queue_delete(simple.queue.name)


def test_kombu_topic_exchange_with_requeue(kombu_connection: kombu.Connection, name: Name) -> None:
    exchange = kombu.Exchange(name("exchange"), type="topic", durable=False, auto_delete=True)
    target = kombu.Queue(name("queue"), exchange, routing_key="log.#", exclusive=True)
    seen: list[tuple[Any, bool]] = []

    def on_message(body: Any, message: kombu.Message) -> None:
        redelivered = bool(message.delivery_info["redelivered"])
        seen.append((body, redelivered))
        message.ack() if redelivered else message.requeue()

    with kombu_connection.Consumer(target, callbacks=[on_message], prefetch_count=1):
        producer = kombu_connection.Producer()
        producer.publish({"a": 1}, exchange=exchange, routing_key="log.info", declare=[exchange], retry=True)
        while len(seen) < 2:
            kombu_connection.drain_events(timeout=30)
    assert seen == [({"a": 1}, False), ({"a": 1}, True)]


def test_kombu_confirms(broker: Any, name: Name) -> None:
    with kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        target = kombu.Queue(name(), exclusive=True)
        channel = connection.default_channel
        bound = target(channel)
        bound.declare()
        for number in range(20):
            connection.Producer().publish(number, routing_key=target.name)
        assert bound.queue_declare(passive=True).message_count == 20


class Worker:
    """A Celery worker in its own process; its log is read to know when it is ready."""

    def __init__(self, broker: Any, queue_name: str, backend: str = "rpc://") -> None:
        self.name = f"worker{uuid.uuid4().hex[:6]}@test"
        own = {"INTEROP_BROKER": broker.url, "INTEROP_QUEUE": queue_name, "INTEROP_BACKEND": backend}
        env = {**os.environ, **own}
        command = [
            sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--pool", "threads", "--concurrency", "2",
            "--hostname", self.name, "--loglevel", "INFO",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=Path(__file__).parent, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.log: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.log.append(line)
                if " ready." in line:
                    self._ready.set()
        self._ready.set()

    def wait_ready(self) -> None:
        assert self._ready.wait(30), "".join(self.log)
        assert self.process.poll() is None, "".join(self.log)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        assert self.process.wait(20) == 0, "".join(self.log)
        self.join()

    def join(self) -> None:
        """The process has ended: so does the reading of its log."""
        self._reader.join()


@pytest.fixture(scope="module")
def app(broker: Any) -> Iterator[Celery]:
    os.environ["INTEROP_BROKER"], os.environ["INTEROP_QUEUE"] = broker.url, f"celery.{uuid.uuid4().hex[:8]}"
    from . import celery_tasks

    with celery_tasks.app as application:
        yield application
        with contextlib.suppress(OSError):  # the node has been killed
            application.backend.result_consumer.stop()
        application.pool.force_close_all()


@pytest.fixture(scope="module")
def worker(broker: Any, app: Celery) -> Iterator[Worker]:
    worker = Worker(broker, app.conf.task_default_queue)
    worker.wait_ready()
    yield worker
    worker.end()
    if WHICH != "weft":
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(app.conf.task_default_queue)


def send(app: Celery, task: str, *arguments: Any, **options: Any) -> Any:
    return app.send_task(f"celery_tasks.{task}", arguments, **options)


def test_task_and_result(app: Celery, worker: Worker) -> None:
    assert send(app, "add", 2, 3).get(timeout=RESULT_TIMEOUT_S) == 5


def test_many_tasks(app: Celery, worker: Worker) -> None:
    results = [send(app, "add", number, number) for number in range(200)]
    assert [each.get(timeout=RESULT_TIMEOUT_S) for each in results] == [2 * number for number in range(200)]


def test_retries(app: Celery, worker: Worker) -> None:
    assert send(app, "third_time_lucky").get(timeout=RESULT_TIMEOUT_S) == 2


def test_exceptions_come_back(app: Celery, worker: Worker) -> None:
    with pytest.raises(ValueError, match="as asked"):
        send(app, "fail").get(timeout=RESULT_TIMEOUT_S)


def test_large_arguments_and_results(app: Celery, worker: Worker) -> None:
    text = "päyload " * 100_000
    assert send(app, "echo", text).get(timeout=RESULT_TIMEOUT_S) == text


def test_late_acknowledgement(app: Celery, worker: Worker) -> None:
    assert [send(app, "late", number).get(timeout=RESULT_TIMEOUT_S) for number in range(5)] == list(range(5))


def test_group_and_chain(app: Celery, worker: Worker) -> None:
    add = app.signature
    numbers = group(add("celery_tasks.add", (number, 1)) for number in range(10)).apply_async()
    assert numbers.get(timeout=RESULT_TIMEOUT_S) == list(range(1, 11))
    chained = chain(
        add("celery_tasks.add", (1, 1)), add("celery_tasks.add", (10,)), add("celery_tasks.add", (100,))
    ).apply_async()
    assert chained.get(timeout=RESULT_TIMEOUT_S) == 112


def test_countdown_raises_the_prefetch_of_a_live_consumer(app: Celery, worker: Worker) -> None:
    """Ten waiting tasks need a prefetch above the two the worker began with, or they would run in batches."""
    started = time.time()
    results = [send(app, "moment", countdown=1.5) for _ in range(10)]
    moments = [each.get(timeout=RESULT_TIMEOUT_S) for each in results]
    assert min(moments) >= started + 1.4
    assert max(moments) - min(moments) < 1.4
    assert send(app, "add", 1, 1).get(timeout=RESULT_TIMEOUT_S) == 2


def test_expired_task_is_not_run(app: Celery, worker: Worker) -> None:
    result = send(app, "add", 1, 1, countdown=0.4, expires=0.1)
    with pytest.raises(Exception, match="expired"):
        result.get(timeout=RESULT_TIMEOUT_S)


def test_priority_and_delivery_options(app: Celery, worker: Worker) -> None:
    result = send(app, "add", 4, 4, priority=5, serializer="json", compression="zlib", delivery_mode=1)
    assert result.get(timeout=RESULT_TIMEOUT_S) == 8


def test_ping_and_inspect(app: Celery, worker: Worker) -> None:
    assert {worker.name: {"ok": "pong"}} in app.control.ping(destination=[worker.name], timeout=30)
    inspect = app.control.inspect(destination=[worker.name], timeout=30)
    assert [each["name"] for each in inspect.active_queues()[worker.name]] == [app.conf.task_default_queue]
    assert "celery_tasks.add" in inspect.registered()[worker.name]
    assert inspect.stats()[worker.name]["prefetch_count"] == 2


def test_remote_control_changes_queues_and_pool(app: Celery, worker: Worker) -> None:
    extra = f"{app.conf.task_default_queue}.extra"
    added = app.control.add_consumer(extra, destination=[worker.name], reply=True, timeout=30)
    assert "ok" in added[0][worker.name]
    assert send(app, "add", 20, 1, queue=extra).get(timeout=RESULT_TIMEOUT_S) == 21
    cancelled = app.control.cancel_consumer(extra, destination=[worker.name], reply=True, timeout=30)
    assert "ok" in cancelled[0][worker.name]
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(extra)


def test_worker_events_are_published(app: Celery, worker: Worker) -> None:
    seen: list[str] = []

    def on_event(event: dict[str, Any]) -> None:
        seen.append(event["type"])
        receiver.should_stop = "task-succeeded" in seen

    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": on_event})
        with receiver.consumer_context(wakeup=False) as (draining, _channel, _consumers):
            send(app, "add", 1, 2)
            while not receiver.should_stop:
                draining.drain_events(timeout=10)
    assert {"task-received", "task-started", "task-succeeded"} <= set(seen)


def test_revoked_task_is_not_run(app: Celery, worker: Worker) -> None:
    task_id = str(uuid.uuid4())
    revoked = app.control.revoke(task_id, destination=[worker.name], reply=True, timeout=30)
    assert "ok" in revoked[0][worker.name]
    with pytest.raises(TaskRevokedError):
        send(app, "add", 1, 1, task_id=task_id).get(timeout=RESULT_TIMEOUT_S)


def test_rate_limit(app: Celery, worker: Worker) -> None:
    def limit(rate: str) -> None:
        told = app.control.rate_limit("celery_tasks.moment", rate, destination=[worker.name], reply=True, timeout=30)
        assert "ok" in told[0][worker.name]

    limit("5/s")
    moments = sorted(each.get(timeout=RESULT_TIMEOUT_S) for each in [send(app, "moment") for _ in range(3)])
    limit("0")
    assert moments[-1] - moments[0] > 0.3


@pytest.fixture(scope="module")
def mortal(broker: Any, app: Celery, folder: Path) -> Worker:
    """A worker with results in files, which a test kills."""
    (folder / "results").mkdir()
    worker = Worker(broker, f"{app.conf.task_default_queue}.mortal", f"file://{folder / 'results'}")
    worker.wait_ready()
    return worker


def test_chord_of_a_group(broker: Any, app: Celery, mortal: Worker, folder: Path) -> None:
    with Celery("chords", broker=broker.url, backend=f"file://{folder / 'results'}", set_as_current=False) as sender:
        sender.conf.update(task_default_queue=f"{app.conf.task_default_queue}.mortal", result_chord_retry_interval=0.1)
        parts = [sender.signature("celery_tasks.add", (number, 1)) for number in range(5)]
        whole = chord(parts, app=sender)(sender.signature("celery_tasks.total"))
        assert whole.get(timeout=RESULT_TIMEOUT_S) == 15


def test_a_task_outlives_the_worker_that_was_killed(app: Celery, worker: Worker, mortal: Worker, folder: Path) -> None:
    name = f"{app.conf.task_default_queue}.mortal"
    result = send(app, "die_once", str(folder / "died"), queue=name)
    assert mortal.process.wait(30) == -signal.SIGKILL
    mortal.join()
    added = app.control.add_consumer(name, destination=[worker.name], reply=True, timeout=30)
    assert "ok" in added[0][worker.name]
    assert result.get(timeout=RESULT_TIMEOUT_S) == "survived"
    app.control.cancel_consumer(name, destination=[worker.name], reply=True, timeout=30)
    with app.connection_for_write() as connection:
        connection.default_channel.queue_delete(name)


@pytest.mark.weft_only
def test_tasks_and_the_worker_outlive_the_node_that_was_killed(
    broker: Peer, app: Celery, worker: Worker, folder: Path
) -> None:
    """Tasks that were confirmed run when the node is back; the worker finds it again, and so does whoever controls it,
    and a new client gets its results.
    """
    name = f"{app.conf.task_default_queue}.kept"
    traces = [folder / f"trace{number}" for number in range(5)]
    with kombu.Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        for trace in traces:
            send(app, "touch", str(trace), queue=name, connection=connection, ignore_result=True)
    broker.kill()
    again = start_weft(folder / "data", "--listen", f"{broker.host}:{broker.port}")
    try:
        with Celery("after", broker=again.url, backend="rpc://", set_as_current=False) as client:
            client.conf.task_default_queue = app.conf.task_default_queue
            wait_for(lambda: client.control.ping(destination=[worker.name], timeout=1), worker)
            client.control.add_consumer(name, destination=[worker.name], reply=True, timeout=5)
            wait_for(lambda: all(trace.exists() for trace in traces), worker)
            assert send(client, "add", 2, 3).get(timeout=RESULT_TIMEOUT_S) == 5
            assert worker.name in client.control.inspect(destination=[worker.name], timeout=5).active_queues()
            client.control.shutdown(destination=[worker.name])
            assert worker.process.wait(30) == 0
            client.backend.result_consumer.stop()
            client.pool.force_close_all()
    finally:
        again.stop()


def wait_for(is_so: Callable[[], Any], worker: Worker) -> None:
    deadline = time.monotonic() + RETURN_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, "".join(worker.log[-20:])
        time.sleep(0.02)
