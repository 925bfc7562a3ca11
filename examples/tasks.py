"""A Celery application as anyone would write it; it knows nothing of weft but a URL.

Owns one task. The demo starts its worker with `celery -A tasks worker`.
"""

import os

from celery import Celery

app = Celery("tasks", broker=os.environ.get("BROKER_URL", "amqp://guest:guest@127.0.0.1:5672//"), backend="rpc://")


@app.task
def add(left: int, right: int) -> int:
    """The task of every introduction to Celery."""
    return left + right
