"""A real standalone cluster on this machine: a master, two workers and spark-submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import peers
from spark.nodes import channel, declare_stream, fill

HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 4_000
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Five programs of Java that each live for some seconds: what they compile well never pays off."""


def environment() -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    given = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
             "PYTHONPATH": source, "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": os.devnull,
             "SPARK_DAEMON_JAVA_OPTS": BRIEF}  # fmt: skip
    return {**os.environ, **given}


@contextmanager
def daemon(folder: Path, kind: str, *words: str, until: str) -> Iterator[str]:
    """A master or worker; what its log says after the words it is waited for with."""
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *words]
    env = environment() | {"SPARK_WORKER_DIR": str(folder)}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env, cwd=folder
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(until, line)
            if found:
                break
        else:
            raise AssertionError(f"{kind} ended before it was ready")
        yield found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_submit_on_a_cluster(tmp_path: Path) -> None:
    with ExitStack() as stack:
        node = peers.start_weft(tmp_path / "node")
        stack.callback(node.stop)
        declare_stream(node, "orders")
        fill(node, "orders", [b"%d" % number for number in range(ROWS)])
        with channel(node) as opened:
            opened.queue_declare("copies", durable=True)
        port = str(peers.free_port())
        words = ("--host", "127.0.0.1", "--port", port, "--webui-port", "0")
        master = stack.enter_context(
            daemon(tmp_path, "master.Master", *words, until=r"Starting Spark master at spark://\S+")
        )
        url = master.rpartition(" ")[2]
        words = ("--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "512m", url)
        with ThreadPoolExecutor() as starting:
            workers = [daemon(tmp_path, "worker.Worker", *words, until="Successfully registered") for _ in range(2)]
            list(starting.map(stack.enter_context, workers))
        submit = [str(HOME / "bin" / "spark-submit"), "--master", url, "--executor-memory", "512m",
                  "--driver-java-options", BRIEF, "--conf", f"spark.executor.extraJavaOptions={BRIEF}",
                  "--conf", "spark.driver.host=127.0.0.1", str(JOB), str(tmp_path / "node"),
                  f"amqp://{node.host}:{node.port}"]  # fmt: skip
        ran = subprocess.run(submit, capture_output=True, text=True, timeout=180, env=environment())
        assert ran.returncode == 0, ran.stderr[-3000:]
        told = json.loads(ran.stdout.splitlines()[-1])
        assert told == {"counts": {"orders": ROWS}, "master": url, "executors": 2}
        with channel(node) as opened:
            assert opened.queue_declare("copies", passive=True).method.message_count == ROWS
