"""Start a real HDFS, a name node and a data node, for tests that need one.

Owns one jar from Maven's repository (Spark brings the rest of Hadoop), two processes, their ports and folder. It must
never leave a process behind or write outside its folders. Where Maven or its repository cannot be had, tests are
skipped and say so.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

import pyspark
import pytest

import peers

VERSION = "3.5.0"
"""That of the jars in Spark."""
BUILD = peers.BUILD / "hadoop"
FETCH_TIMEOUT_S = 120.0
START_TIMEOUT_S = 90.0
HOST = "127.0.0.1"


@functools.cache
def jar() -> Path:
    """Hadoop's servers in one file, fetched once."""
    found = BUILD / f"hadoop-client-minicluster-{VERSION}.jar"
    if found.exists():
        return found
    if shutil.which("mvn") is None:
        pytest.skip("Maven is not installed (apt-get install maven)")
    artifact = f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}"
    words = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={BUILD}"]
    try:
        with peers.fetching():
            done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not fetch Hadoop within {FETCH_TIMEOUT_S:.0f} s")
    if done.returncode or not found.exists():
        said = (done.stdout or done.stderr or "it says nothing").strip()
        pytest.skip(f"Maven cannot fetch Hadoop: {said.splitlines()[0]}")
    return found


class Hdfs:
    """A cluster of one data node, in a `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.web_port = folder, peers.free_port(), peers.free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"hdfs://{HOST}:{self.port}"

    @property
    def web_address(self) -> str:
        return f"{HOST}:{self.web_port}"

    def __enter__(self) -> Self:
        servers = jar()
        (self.folder / "conf").mkdir(parents=True)
        settings = {
            "fs.defaultFS": f"hdfs://{HOST}:{self.port}",
            "dfs.namenode.http-address": f"{HOST}:{self.web_port}",
            "dfs.datanode.address": f"{HOST}:0",
            "dfs.datanode.http.address": f"{HOST}:0",
            "dfs.datanode.ipc.address": f"{HOST}:0",
            "dfs.namenode.name.dir": str(self.folder / "names"),
            "dfs.datanode.data.dir": str(self.folder / "blocks"),
            "hadoop.tmp.dir": str(self.folder / "tmp"),
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
        }
        rows = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()]
        for name in ("core-site.xml", "hdfs-site.xml"):
            (self.folder / "conf" / name).write_text(f"<configuration>{''.join(rows)}</configuration>", "utf-8")
        spark = Path(pyspark.__file__).parent / "jars"
        java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._java = [*java, "-cp", f"{self.folder / 'conf'}:{servers}:{spark}/*"]
        self._run("namenode.NameNode", "-format", "-nonInteractive").wait()
        self._processes = [self._run("namenode.NameNode"), self._run("datanode.DataNode")]
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            command = [*self._java, f"org.apache.hadoop.hdfs.server.{name}", *words]
            return subprocess.Popen(command, stdout=output, stderr=output)

    def _wait(self) -> None:
        """Until the name node knows its data node and lets files be written."""
        deadline = time.monotonic() + START_TIMEOUT_S
        question = f"http://{HOST}:{self.web_port}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        while not self._is_ready(question):
            ended = [process for process in self._processes if process.poll() is not None]
            assert not ended, (self.folder / "output").read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, "HDFS does not become ready"
            time.sleep(0.1)  # it says nothing when it is

    def _is_ready(self, question: str) -> bool:
        try:
            with urllib.request.urlopen(question, timeout=10) as answer:
                state = json.load(answer)["beans"][0]
        except (urllib.error.URLError, OSError, ValueError, LookupError):
            return False
        return state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational"
