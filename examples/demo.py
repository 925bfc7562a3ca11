"""The demonstration: one node with clients written for other brokers, PayPal's network of five, Spark, then speed.

Owns the story `make demo` tells. It starts a node on a free port and lets pika, proton and Celery talk through it; then
examples/network.py runs the network of the talk, `weft pipeline` tells what passed through it, examples/loop.py lets
Spark's forecast scale a service, and the benchmarks compare one node with RabbitMQ where that is installed.
It must never need more than the development tools and, for Spark, Java.
Each step waits for an event, and whatever fails ends the demonstration with its reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parent / "benchmarks" / "run.py"


def say(text: str) -> None:
    """One paragraph of the story."""
    print(text, flush=True)


def start_node(folder: str) -> tuple[subprocess.Popen[str], int]:
    """A node of its own; the process and its port."""
    began = time.monotonic()
    command = [sys.executable, "-m", "weft", "up", "--name", "demo", "--listen", "127.0.0.1:0", "--data-dir", folder]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    port = 0
    for line in node.stdout or ():
        say(f"    {line.rstrip()}")
        found = re.match(r"listening on [^ ]*:(\d+)", line)
        port = int(found[1]) if found else port
        if line.startswith("ready"):
            say(f"The node was ready after {time.monotonic() - began:.2f} seconds.\n")
            return node, port
    raise SystemExit("the node did not start")


def publish(port: int) -> None:
    """A RabbitMQ client, unmodified, publishes with confirms."""
    import pika

    connection = pika.BlockingConnection(pika.URLParameters(f"amqp://guest:guest@127.0.0.1:{port}/%2F"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for number in range(3):
        properties = pika.BasicProperties(content_type="text/plain", headers={"number": number})
        channel.basic_publish("", "orders", f"order {number}", properties)
    connection.close()
    say("pika (AMQP 0-9-1) published 3 orders, and the node confirmed each.")


def receive(port: int) -> None:
    """An AMQP 1.0 client, unmodified, receives the same messages."""
    from proton.utils import BlockingConnection

    connection = BlockingConnection(f"amqp://127.0.0.1:{port}", allowed_mechs="ANONYMOUS")
    receiver = connection.create_receiver("orders")
    for _ in range(3):
        message = receiver.receive(timeout=10)
        body = bytes(message.body).decode()
        say(f"    proton received {body!r}, {message.content_type}, number {int(message.properties['number'])}")
        receiver.accept()
    connection.close()
    say("proton (AMQP 1.0) received them from the same port: one queue, two protocols.\n")


def run_task(port: int) -> None:
    """A Celery worker and a caller, unmodified."""
    url = f"amqp://guest:guest@127.0.0.1:{port}//"
    os.environ["BROKER_URL"] = url
    command = [sys.executable, "-m", "celery", "--quiet", "--app", "tasks", "worker", "--pool", "solo"]
    worker = subprocess.Popen(
        [*command, "--loglevel", "ERROR"], cwd=HERE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        sys.path.insert(0, str(HERE))
        import tasks

        began = time.monotonic()
        result = tasks.add.delay(19, 23).get(timeout=30)
        say(f"A Celery worker came up and answered 19 + 23 = {result} (after {time.monotonic() - began:.1f} seconds).")
        began = time.monotonic()
        results = [tasks.add.delay(number, number) for number in range(100)]
        total = sum(task.get(timeout=30) for task in results)
        say(f"Then 100 tasks more, {total} in sum, in {time.monotonic() - began:.2f} seconds.\n")
    finally:
        worker.terminate()
        worker.wait()


def run_network(folder: str) -> None:
    """Many nodes that act as one: the demonstration of the talk, for real."""
    say("Now PayPal's network.\n")
    code = subprocess.run([sys.executable, str(HERE / "network.py"), "--data-dir", folder], check=False).returncode
    if code:
        raise SystemExit("the network did not work; the reason stands above")
    say("")


def run_pipeline(folder: str) -> None:
    """Spark reads what the gateway's tap kept, and then decides how many instances a service needs."""
    if shutil.which("java") is None:
        say("There is no java here, so Spark stays at home (apt-get install default-jdk-headless).\n")
        return
    say("Everything that passed the gateway is in a stream there. Spark reads it, from the files the node left:\n")
    lake, page = str(Path(folder) / "lake"), str(Path(tempfile.gettempdir()) / "weft-report.html")
    read = ["run", "--once", "--data-dir", str(Path(folder) / "gateway"), "--streams", "traffic"]
    for words in ([*read, "--jobs", "traffic,topology", "--lake", lake], ["report", "--lake", lake, "--html", page]):
        if subprocess.run([sys.executable, "-m", "weft", "pipeline", *words], check=False).returncode:
            raise SystemExit("the pipeline did not work; the reason stands above")
    say("\nAnd the loop closes: what Spark foresees decides how many instances of a service run.\n")
    if subprocess.run([sys.executable, str(HERE / "loop.py")], check=False).returncode:
        raise SystemExit("the loop did not close; the reason stands above")
    say("")


def compare() -> None:
    """The quick half of the benchmarks, which explain themselves."""
    say("How fast is that? The same load on this machine:\n")
    code = subprocess.run([sys.executable, str(BENCHMARKS), "--quick"], check=False).returncode
    if code:
        say("Not everything could be measured here; the reason stands above.")


def main() -> None:
    """Tell the story."""
    say("weft: a node that programs written for other brokers use unchanged.\n")
    with tempfile.TemporaryDirectory() as folder:
        node, port = start_node(folder)
        try:
            publish(port)
            receive(port)
            run_task(port)
        finally:
            node.terminate()
        code = node.wait(timeout=30)
    say(f"The node drained and ended with {code}.\n")
    if "--no-network" not in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            run_network(folder)
            if "--no-spark" not in sys.argv[1:]:
                run_pipeline(folder)
    if "--no-benchmarks" not in sys.argv[1:] and BENCHMARKS.exists():
        compare()


if __name__ == "__main__":
    main()
