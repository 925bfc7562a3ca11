"""A real Kafka for comparison: one node, started from the jars of Maven Central, with Spark's own source for it.

Owns the jars (fetched once by Maven into the user's cache), one broker process and its folder. A folder comes in; an
address, and the jars that Spark needs, go out, or one sentence that says why there is no Kafka here. It must never be
part of what is measured but as the peer it is. How a node without ZooKeeper is set up is in Kafka's own documentation
("KRaft").
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import uuid
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from peers import HOST, free_port

SERVER = "org.apache.kafka:kafka_2.13:4.1.0"
SOURCE = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""The newest of each that Maven Central has."""
FETCH_TIMEOUT_S = 300.0
START_TIMEOUT_S = 60.0
TOPIC = "rows"
PARTITIONS = 2
"""As many as there are cores: one is read by one task."""

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>weft</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
  </dependency></dependencies>
</project>
"""
CONFIG = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{control}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{control}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={folder}
num.partitions={partitions}
offsets.topic.replication.factor=1
"""


class NoKafkaError(RuntimeError):
    """Why there is none to compare with."""


def jars() -> tuple[Path, list[Path]]:
    """The folder with the server's jars, and the jars of Spark's source; fetched where the cache has none."""
    if shutil.which("mvn") is None:
        raise NoKafkaError("Maven is not installed (apt-get install maven), so Kafka could not be fetched")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft" / "kafka"
    server, source = cache / SERVER.rpartition(":")[2], cache / "source"
    server.mkdir(parents=True, exist_ok=True)
    if not (server / "fetched").exists():
        pom = server / "pom.xml"
        pom.write_text(POM.format(*SERVER.split(":")), encoding="utf-8")
        maven("-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={server}")
        (server / "fetched").touch()
    found = [source / f"{artifact.split(':')[1]}-{artifact.split(':')[2]}.jar" for artifact in SOURCE]
    for artifact, jar in zip(SOURCE, found, strict=True):
        if not jar.exists():
            maven("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={source}")
    return server, found


def maven(*words: str) -> None:
    try:
        done = subprocess.run(
            ["mvn", "-q", "-B", *words], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoKafkaError("Maven Central did not answer in time, so Kafka could not be fetched") from None
    if done.returncode:
        told = [line for line in done.stdout.splitlines() if line.startswith("[ERROR]")]
        raise NoKafkaError(f"Maven could not fetch Kafka: {told[0] if told else done.stderr[-200:]}")


class Kafka:
    """A broker of its own, in a `with`."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder, self.server = folder, server
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        config = self.folder / "server.properties"
        names = {"host": HOST, "port": self.port, "control": free_port(), "folder": self.folder / "logs"}
        config.write_text(CONFIG.format(**names, partitions=PARTITIONS), encoding="utf-8")
        java = ["java", "-Xmx1g", "-cp", f"{self.server}/*"]
        # One that begins with a dash would be taken for an option.
        identity = "w" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        command = [*java, "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(config)]
        subprocess.run(command, check=True, capture_output=True)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*java, "kafka.Kafka", str(config)], **quiet)
        deadline = monotonic() + START_TIMEOUT_S
        while not self._listens():
            if self.process.poll() is not None or monotonic() > deadline:
                self.process.kill()
                raise NoKafkaError("Kafka did not start")
            sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0

    @property
    def options(self) -> dict[str, str]:
        """What Spark's source and sink are told."""
        return {"kafka.bootstrap.servers": self.address}
