"""The application a real Celery worker runs in the tests.

Owns a few tasks, one per feature the tests ask for, and the settings that make those features visible. The worker
imports it in its own process; the tests import it to send. The broker's address and the queue's name come from the
environment, and so does the place of results. Rules: Celery's documentation.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import Celery, Task

app = Celery(
    "interop",
    broker=os.environ.get("INTEROP_BROKER", "amqp://"),
    backend=os.environ.get("INTEROP_BACKEND", "rpc://"),
)
app.conf.update(
    task_default_queue=os.environ.get("INTEROP_QUEUE", "interop"),
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
    result_expires=60,
    result_chord_retry_interval=0.1,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=5)
def third_time_lucky(self: Task) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return int(self.request.retries)


@app.task
def fail() -> None:
    raise ValueError("as asked")


@app.task
def echo(text: str) -> str:
    return text


@app.task
def moment() -> float:
    return time.time()


@app.task(acks_late=True, reject_on_worker_lost=True)
def late(x: int) -> int:
    return x


@app.task
def touch(path: str) -> None:
    """Leave a trace that needs no result."""
    Path(path).touch()


@app.task(acks_late=True)
def die_once(mark: str) -> str:
    """Take the whole worker along, the first time."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "survived"
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"
