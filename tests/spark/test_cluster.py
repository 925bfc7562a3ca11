"""A real standalone cluster on this machine: a master, two workers and spark-submit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

import peers
from spark.nodes import channel, declare_stream, fill

HOME = Path(pyspark.__file__).parent
JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 4_000


def environment() -> dict[str, str]:
    source = str(Path(__file__).parents[2] / "src")
    given = {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
             "PYTHONPATH": source, "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": os.devnull}  # fmt: skip
    return {**os.environ, **given}


JAVA = [
    "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{HOME}/jars/*",
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.lang.invoke", "java.nio", "java.util",
                                                               "java.util.concurrent", "sun.nio.ch")),
]  # fmt: skip
"""How Spark's scripts would start its servers, without another Java that only tells them how."""
BRIEF = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For programs that are over before the better of Java's compilers pays off."""


@contextmanager
def daemon(folder: Path, kind: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A master or worker."""
    env = environment() | {"SPARK_WORKER_DIR": str(folder)}
    process = subprocess.Popen(
        [*JAVA, f"org.apache.spark.deploy.{kind}", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env, cwd=folder,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(words, line):
            return
    raise AssertionError(f"{process.args} ended before it said {words}")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spark_submit_on_a_cluster(tmp_path: Path) -> None:
    with ExitStack() as stack:
        port = str(peers.free_port())
        url = f"spark://127.0.0.1:{port}"
        words = ("--host", "127.0.0.1", "--webui-port", "0")
        master = stack.enter_context(daemon(tmp_path, "master.Master", *words, "--port", port))
        wait_for(master, "Starting Spark master")
        workers = [
            stack.enter_context(daemon(tmp_path, "worker.Worker", *words, "-c", "1", "-m", "512m", url))
            for _ in range(2)
        ]
        node = peers.start_weft(tmp_path / "node")
        stack.callback(node.stop)
        declare_stream(node, "orders")
        fill(node, "orders", [b"%d" % number for number in range(ROWS)])
        with channel(node) as opened:
            opened.queue_declare("copies", durable=True)
        for worker in workers:
            wait_for(worker, "Successfully registered with master")
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
